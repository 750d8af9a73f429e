//! Profiles of Go programs, from the page `/debug/pprof/` of `net/http/pprof` on the nodes' own ports.
//!
//! | event | page | value | unit here |
//! | --- | --- | --- | --- |
//! | cpu | `profile` | `samples` | samples |
//! | alloc | `allocs` | `alloc_space` | bytes |
//! | lock | `mutex`: needs `runtime.SetMutexProfileFraction` | `delay` | microseconds |
//!
//! Each with `seconds`, so that it is of the window only. The answer is `profile.proto` (github.com/google/pprof) in
//! gzip. Five messages of numbers and strings are read by hand: a code generator would be more than they are. `flate2`
//! unpacks them; the node's own profiles are packed with it.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use flate2::read::GzDecoder;

use crate::ask::ask;
use crate::error::LabError;
use crate::lab::profile::{Event, Stacks};

/// How much longer than its window a profile may take to arrive.
const FETCH_MARGIN: Duration = Duration::from_secs(30);

/// The most bytes of an unpacked profile.
const BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The outermost frame: the stacks are of goroutines, which have no names.
const THREAD: &str = "goroutines";

/// Whether the node has the page.
pub(super) fn is_offered(node: SocketAddr) -> Result<bool, LabError> {
    let answer = ask(node, Duration::from_secs(5), async |node| node.page("/debug/pprof/cmdline").await)?;
    Ok(answer.is_ok_and(|page| page.code == 200))
}

/// Takes a profile of every node at once.
pub(super) fn take(nodes: &[SocketAddr], event: Event, window: Duration) -> Result<Vec<Stacks>, LabError> {
    let page = match event {
        Event::Cpu => "profile",
        Event::Alloc => "allocs",
        Event::Lock => "mutex",
    };
    let target = format!("/debug/pprof/{page}?seconds={}", window.as_secs());
    let of = &|node: SocketAddr| ask(node, window + FETCH_MARGIN, async |node| node.page(&target).await);
    thread::scope(|scope| {
        let asked: Vec<_> = nodes.iter().map(|&node| scope.spawn(move || of(node))).collect();
        let answers = asked.into_iter().map(|thread| {
            let answer = thread.join().map_err(|_| bad("a thread that asked panicked"))??;
            match answer {
                Ok(answer) if answer.code == 200 => decode(&answer.body, event),
                Ok(answer) => {
                    let said = String::from_utf8_lossy(&answer.body).trim().to_owned();
                    Err(LabError::Subject(format!("no {event} profile: {} {said}", answer.code)))
                }
                Err(failure) => Err(LabError::Subject(format!("no {event} profile: {failure}"))),
            }
        });
        answers.collect()
    })
}

fn bad(why: &str) -> LabError {
    LabError::Subject(format!("pprof: {why}"))
}

/// The stacks of a packed profile.
fn decode(packed: &[u8], event: Event) -> Result<Stacks, LabError> {
    let mut bytes = Vec::new();
    let read = GzDecoder::new(packed).take(BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(|error| LabError::Subject(format!("pprof: the answer is no gzip: {error}")))?;
    if bytes.len() as u64 == BYTES_MAX {
        return Err(bad("the profile is too large"));
    }
    Profile::read(&bytes).ok_or_else(|| bad("the profile is damaged"))?.stacks(event)
}

/// The messages of a profile that stacks need.
#[derive(Debug, Default)]
struct Profile<'a> {
    /// The name of each value of a sample, as a place in `strings`.
    types: Vec<u64>,
    /// Locations, the innermost first, and values.
    samples: Vec<(Vec<u64>, Vec<u64>)>,
    /// The functions of each location, the innermost first: inlined ones have no location of their own.
    locations: BTreeMap<u64, Vec<u64>>,
    /// The place of each function's name in `strings`.
    functions: BTreeMap<u64, u64>,
    strings: Vec<&'a [u8]>,
}

impl<'a> Profile<'a> {
    /// `None` if the bytes are no such message.
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut profile = Self::default();
        for field in fields(bytes) {
            match field? {
                (1, Value::Bytes(kind)) => profile.types.push(number(kind, 1)?),
                (2, Value::Bytes(sample)) => {
                    profile.samples.push((numbers(sample, 1)?, numbers(sample, 2)?));
                }
                (4, Value::Bytes(location)) => {
                    let lines = fields(location).filter_map(|field| match field {
                        Some((4, Value::Bytes(line))) => Some(number(line, 1)),
                        Some(_) => None,
                        None => Some(None),
                    });
                    profile.locations.insert(number(location, 1)?, lines.collect::<Option<_>>()?);
                }
                (5, Value::Bytes(function)) => {
                    profile.functions.insert(number(function, 1)?, number(function, 2)?);
                }
                (6, Value::Bytes(string)) => profile.strings.push(string),
                _ => {}
            }
        }
        Some(profile)
    }

    fn string(&self, place: u64) -> String {
        let bytes = usize::try_from(place).ok().and_then(|place| self.strings.get(place));
        let text = String::from_utf8_lossy(bytes.copied().unwrap_or_default());
        // A semicolon would be read as the end of a frame.
        if text.is_empty() { "unknown".into() } else { text.replace([';', '\n'], ":") }
    }

    fn stacks(&self, event: Event) -> Result<Stacks, LabError> {
        let (name, divisor) = match event {
            Event::Cpu => ("samples", 1),
            Event::Alloc => ("alloc_space", 1),
            Event::Lock => ("delay", 1_000),
        };
        let place = self.types.iter().position(|&kind| self.string(kind) == name);
        let place = place.ok_or_else(|| bad(&format!("the profile has no values called {name}")))?;
        let mut lines = String::new();
        for (locations, values) in &self.samples {
            // Differences of two profiles may be negative where the collector ran in between.
            let value =
                values.get(place).copied().unwrap_or(0).cast_signed().max(0).cast_unsigned() / divisor;
            if value == 0 {
                continue;
            }
            lines.push_str(THREAD);
            for location in locations.iter().rev() {
                let functions = self.locations.get(location).map(Vec::as_slice).unwrap_or_default();
                for function in functions.iter().rev() {
                    lines.push(';');
                    lines.push_str(&self.string(self.functions.get(function).copied().unwrap_or(0)));
                }
            }
            lines.extend([" ", value.to_string().as_str(), "\n"]);
        }
        Stacks::read(&lines)
    }
}

/// The value of a field on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of a fixed size; none of them is needed.
    Fixed,
}

/// The fields of a message; `None` among them ends it and says that it is damaged.
fn fields(bytes: &[u8]) -> impl Iterator<Item = Option<(u64, Value<'_>)>> {
    let mut rest = bytes;
    let mut is_over = false;
    std::iter::from_fn(move || {
        if rest.is_empty() || is_over {
            return None;
        }
        let field = take_field(&mut rest);
        is_over = field.is_none();
        Some(field)
    })
}

fn take_field<'a>(rest: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let key = take_varint(rest)?;
    let value = match key & 7 {
        0 => Value::Number(take_varint(rest)?),
        1 => take_bytes(rest, 8).map(|_| Value::Fixed)?,
        2 => {
            let length = take_varint(rest)?;
            Value::Bytes(take_bytes(rest, length)?)
        }
        5 => take_bytes(rest, 4).map(|_| Value::Fixed)?,
        _ => return None,
    };
    Some((key >> 3, value))
}

fn take_bytes<'a>(rest: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = behind;
    Some(taken)
}

/// A number in groups of seven bits, the lowest first; the tenth has only one bit of use.
fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, behind) = rest.split_first()?;
        *rest = behind;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// The last number of field `name`, 0 without any; `None` if the message is damaged.
fn number(message: &[u8], name: u64) -> Option<u64> {
    numbers(message, name).map(|all| all.last().copied().unwrap_or(0))
}

/// The numbers of field `name`, one by one or packed.
fn numbers(message: &[u8], name: u64) -> Option<Vec<u64>> {
    let mut all = Vec::new();
    for field in fields(message) {
        match field? {
            (other, _) if other != name => {}
            (_, Value::Number(number)) => all.push(number),
            (_, Value::Bytes(mut packed)) => {
                while !packed.is_empty() {
                    all.push(take_varint(&mut packed)?);
                }
            }
            (_, Value::Fixed) => return None,
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn field(name: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![name << 3 | 2, u8::try_from(bytes.len()).unwrap()];
        out.extend_from_slice(bytes);
        out
    }

    /// A profile with an inlined function, packed and unpacked numbers, and a field of a fixed size.
    fn profile() -> Vec<u8> {
        let mut out = Vec::new();
        for place in [1, 2] {
            out.extend(field(1, &[1 << 3, place]));
        }
        out.extend(field(2, &[field(1, &[2, 1]), field(2, &[3, 0x80, 0x20])].concat()));
        out.extend(field(2, &[1 << 3, 1, 2 << 3, 5, 2 << 3, 0]));
        out.extend(field(4, &[&[1 << 3, 1][..], &field(4, &[1 << 3, 1])].concat()));
        out.extend(field(4, &[&[1 << 3, 2][..], &field(4, &[1 << 3, 3]), &field(4, &[1 << 3, 2])].concat()));
        for function in [1, 2, 3] {
            out.extend(field(5, &[1 << 3, function, 2 << 3, function + 2]));
        }
        out.extend([9 << 3 | 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        for text in ["", "samples", "delay", "main.main", "main.put", "a;b"] {
            out.extend(field(6, text.as_bytes()));
        }
        out
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(bytes).unwrap();
        gzip.finish().unwrap()
    }

    /// Goal: stacks are those of the profile, the outermost function first, in the units of the event. Method: a
    /// profile made by hand.
    #[test]
    fn profiles_are_read() {
        let bytes = packed(&profile());
        let cpu = decode(&bytes, Event::Cpu).unwrap();
        assert_eq!(cpu.text(), "goroutines;main.main 5\ngoroutines;main.main;main.put;a:b 3\n");
        let lock = decode(&bytes, Event::Lock).unwrap();
        assert_eq!(lock.text(), "goroutines;main.main;main.put;a:b 4\n");
        assert!(decode(&bytes, Event::Alloc).unwrap_err().to_string().contains("alloc_space"));
    }

    /// Goal: no bytes from outside make the reader panic or loop. Method: every prefix, and every byte changed.
    #[test]
    fn damaged_profiles_are_refused() {
        let whole = profile();
        for length in 0..whole.len() {
            let _ = decode(&packed(&whole[..length]), Event::Cpu);
            for value in [0, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[length] = value;
                let _ = decode(&packed(&changed), Event::Cpu);
            }
        }
        assert!(decode(&packed(&whole[..whole.len() - 1]), Event::Cpu).is_err());
        assert!(decode(b"no gzip", Event::Cpu).is_err());
    }
}
