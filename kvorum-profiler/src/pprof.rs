//! `profile.proto`, the format of the `pprof` tool (github.com/google/pprof, 2024), with the fields that a profile
//! without addresses needs. Written by hand: six messages of numbers and strings are less code than a code generator.
//!
//! | message | fields written (number: what) |
//! | --- | --- |
//! | Profile | 1: `ValueType` of each value, 2: `Sample`, 4: `Location`, 5: `Function`, 6: strings, 10: nanoseconds it lasted, 11: `ValueType` of the period, 12: period |
//! | `ValueType` | 1: type, 2: unit, both places in the strings |
//! | `Sample` | 1: locations, the innermost first, packed; 2: values, packed |
//! | `Location` | 1: id, 4: `Line` |
//! | `Line` | 1: function |
//! | `Function` | 1: id, 2: name |

use super::Event;
use super::alloc::INTERVAL_BYTES;
use super::fold::Profile;
use super::waits::nanos;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::HashMap;
use std::io::{self, Write};

/// Writes `profile` compressed.
pub(super) fn encode(profile: &Profile) -> io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&message(profile))?;
    gzip.finish()
}

/// Strings and their indexes; the first must be empty.
struct Strings<'a> {
    places: HashMap<&'a str, u64>,
    texts: Vec<&'a str>,
}

impl<'a> Strings<'a> {
    fn place(&mut self, text: &'a str) -> u64 {
        *self.places.entry(text).or_insert_with(|| {
            self.texts.push(text);
            self.texts.len() as u64 - 1
        })
    }
}

fn message(profile: &Profile) -> Vec<u8> {
    let mut strings = Strings { places: HashMap::from([("", 0)]), texts: vec![""] };
    let mut out = Vec::new();
    // The type and unit of each value; the tool shows the last one by default.
    let (types, period): ([[&str; 2]; 2], u64) = match profile.event {
        Event::Cpu => {
            ([["samples", "count"], ["cpu", "nanoseconds"]], 1_000_000_000 / super::cpu::PER_SECOND)
        }
        Event::Wall => {
            ([["samples", "count"], ["wall", "nanoseconds"]], 1_000_000_000 / super::cpu::WALL_PER_SECOND)
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a constant")]
        Event::Live => ([["inuse_objects", "count"], ["inuse_space", "bytes"]], INTERVAL_BYTES as u64),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a constant")]
        Event::Alloc => ([["alloc_objects", "count"], ["alloc_space", "bytes"]], INTERVAL_BYTES as u64),
        Event::Lock => ([["contentions", "count"], ["delay", "nanoseconds"]], 1),
    };
    let mut value_type = |[kind, unit]: [&'static str; 2]| {
        let mut message = Vec::new();
        number(&mut message, 1, strings.place(kind));
        number(&mut message, 2, strings.place(unit));
        message
    };
    for pair in types {
        bytes(&mut out, 1, &value_type(pair));
    }
    bytes(&mut out, 11, &value_type(types[1]));
    number(&mut out, 12, period);
    number(&mut out, 10, nanos(profile.lasted));
    // Each name has a location and a function with the same number, from 1 on.
    let mut locations: HashMap<&str, u64> = HashMap::new();
    for entry in &profile.entries {
        let mut sample = Vec::new();
        let stack = entry.frames.iter().rev().map(|frame| {
            let next = locations.len() as u64 + 1;
            *locations.entry(frame).or_insert(next)
        });
        packed(&mut sample, 1, stack);
        let value = match profile.event {
            Event::Cpu | Event::Wall => entry.value * period,
            Event::Alloc | Event::Live => entry.value,
            Event::Lock => entry.value * 1000,
        };
        packed(&mut sample, 2, [entry.count, value].into_iter());
        bytes(&mut out, 2, &sample);
    }
    let mut locations: Vec<_> = locations.into_iter().collect();
    locations.sort_unstable_by_key(|(_, id)| *id);
    for (name, id) in locations {
        let (mut line, mut location, mut function) = (Vec::new(), Vec::new(), Vec::new());
        number(&mut line, 1, id);
        number(&mut location, 1, id);
        bytes(&mut location, 4, &line);
        bytes(&mut out, 4, &location);
        number(&mut function, 1, id);
        number(&mut function, 2, strings.place(name));
        bytes(&mut out, 5, &function);
    }
    for text in &strings.texts {
        bytes(&mut out, 6, text.as_bytes());
    }
    out
}

/// Writes a base-128 varint: seven bits a byte, the lowest first; a byte's highest bit is set if more bytes follow.
fn varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            return out.push(low & 0x7f);
        }
        out.push(low | 0x80);
    }
}

fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn packed(out: &mut Vec<u8>, field: u64, values: impl Iterator<Item = u64>) {
    let mut message = Vec::new();
    values.for_each(|value| varint(&mut message, value));
    bytes(out, field, &message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Entry;
    use flate2::read::GzDecoder;
    use std::io::Read;
    use std::time::Duration;

    /// The fields of a message: field number, and a varint or bytes.
    fn fields(mut message: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        fn take(message: &mut &[u8]) -> u64 {
            let mut value = 0;
            for shift in (0..).step_by(7) {
                let byte = message[0];
                *message = &message[1..];
                value |= u64::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            value
        }
        let mut fields = Vec::new();
        while !message.is_empty() {
            let tag = take(&mut message);
            let value = take(&mut message);
            let mut text = Vec::new();
            if tag & 7 == 2 {
                text = message[..usize::try_from(value).unwrap()].to_vec();
                message = &message[text.len()..];
            }
            fields.push((tag >> 3, value, text));
        }
        fields
    }

    fn of(fields: &[(u64, u64, Vec<u8>)], number: u64) -> Vec<Vec<u8>> {
        fields.iter().filter(|field| field.0 == number).map(|field| field.2.clone()).collect()
    }

    /// A profile is parsed by the table in the module text; a sample leads to its names and values.
    #[test]
    fn reads_back() {
        let frames = ["net0", "a::b", "net0"].map(str::to_owned).to_vec();
        let entries = vec![Entry { frames, count: 300, value: 7 }];
        let profile = Profile { event: Event::Lock, lasted: Duration::from_secs(2), samples: 2, entries };
        let mut raw = Vec::new();
        GzDecoder::new(&encode(&profile).unwrap()[..]).read_to_end(&mut raw).unwrap();
        let message = fields(&raw);
        let strings = of(&message, 6);
        assert_eq!(strings[0], b"");
        let name_of =
            |place: u64| String::from_utf8(strings[usize::try_from(place).unwrap()].clone()).unwrap();
        let types: Vec<String> = of(&message, 1).iter().map(|kind| name_of(fields(kind)[0].1)).collect();
        assert_eq!(types, ["contentions", "delay"]);
        let functions: HashMap<u64, String> =
            of(&message, 5).iter().map(|f| (fields(f)[0].1, name_of(fields(f)[1].1))).collect();
        let locations: HashMap<u64, u64> =
            of(&message, 4).iter().map(|l| (fields(l)[0].1, fields(&fields(l)[1].2)[0].1)).collect();
        let samples = of(&message, 2);
        let sample = fields(&samples[0]);
        let stack: Vec<&str> =
            sample[0].2.iter().map(|id| &*functions[&locations[&u64::from(*id)]]).collect();
        assert_eq!((samples.len(), stack), (1, vec!["net0", "a::b", "net0"]));
        // 300 and 7,000 as varints.
        assert_eq!(sample[1].2, [0xac, 0x02, 0xd8, 0x36]);
    }
}
