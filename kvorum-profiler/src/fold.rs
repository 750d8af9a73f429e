//! Folding: turns addresses into names, and leaves out the frames that every stack of an asynchronous program has.
//!
//! Left out, from the outside in: how a thread begins, how the runtime polls a task, how a future polls the next. Names
//! lose their type parameters and the marks of closures (an asynchronous function *is* one); a function that then seems
//! to call itself is one frame. The innermost frame always stays, so that no time is attributed to a caller that did
//! not use it. Inlined functions are named like others, as far as the program's line tables allow.

use super::Event;
use super::stacks::{Collected, Place, Seen};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// A profile: counts and values by named stack.
#[derive(Debug)]
pub struct Profile {
    /// The counted event.
    pub event: Event,
    /// How long the profile took.
    pub lasted: Duration,
    /// How many records it is made of: samples, sampled allocations, waits for locks.
    pub samples: u64,
    /// The stacks that were seen.
    pub entries: Vec<Entry>,
}

/// A stack's share of a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The thread's name, and the functions from the outside in.
    pub frames: Vec<String>,
    /// How often: samples, allocations, waits.
    pub count: u64,
    /// Samples, bytes or microseconds: see [`Event`].
    pub value: u64,
}

/// The name of a function in a library without symbols.
const NO_SYMBOL: &str = "(no symbol)";

/// Frames that say nothing about a stack, given as beginnings of names that [`clean`] returns.
const NOISE: &[&str] = &[
    NO_SYMBOL,
    "__rust_try",
    "__clone3",
    "clone3",
    "start_thread",
    "alloc::boxed::Box::call_once",
    "alloc::boxed::Box::poll",
    "alloc::rc::Rc::poll",
    "core::future::",
    "core::ops::function::",
    "core::option::",
    "core::panic::",
    "core::pin::",
    "core::result::",
    "core::task::",
    "hyper::common::",
    "hyper::proto::h1::dispatch::",
    "hyper::server::conn::http1::",
    "hyper::service::",
    "hyper_util::",
    "mio::io_source::",
    "mio::sys::unix::selector::stateless_io_source::",
    "kvorum_profiler::futex::",
    "kvorum_profiler::waits::",
    "std::panic::",
    "std::panicking::",
    "std::rt::",
    "std::sys::backtrace::",
    "std::sys::thread",
    "std::sys::pal::unix::cvt_r",
    "std::sys::pal::unix::thread",
    "std::thread::",
    "tokio::future::",
    "tokio::loom::",
    "tokio::macros::",
    "tokio::runtime::",
    "tokio::task::",
    "tokio::time::timeout::",
    "tokio::util::",
];

/// Frames by which the standard library passes an allocation on; they are not the allocating code.
const PLUMBING: &[&str] = &[
    "backtrace::",
    "kvorum_profiler::",
    "__rust_alloc",
    "__rust_realloc",
    "__rustc::",
    "kvorum::__rust_",
    "alloc::alloc::",
    "alloc::boxed::box_new_uninit",
    "alloc::raw_vec::",
    "alloc::vec::Vec::with_capacity_in",
    "core::alloc::",
];

/// Frames of waits for a lock. The innermost frame from here or from [`IDLE`] tells what a futex wait was for.
const LOCKS: &[&str] = &["lock_contended", "read_contended", "write_contended", "_slow", "sync::once::"];
/// Frames of waits for work to do.
const IDLE: &[&str] = &["ondvar", "thread_parking", "std::thread::park"];

/// Turns collected addresses into a named profile.
pub(super) fn fold(event: Event, lasted: Duration, collected: Collected) -> Profile {
    let mut names = Names::default();
    let mut folded: BTreeMap<Vec<String>, Seen> = BTreeMap::new();
    for (place, seen) in collected {
        if let Some(frames) = names.frames(event, &place) {
            folded.entry(frames).or_default().add(seen);
        }
    }
    // The cached line tables of the program are tens of megabytes.
    backtrace::clear_symbol_cache();
    let scale = if event == Event::Lock { 1000 } else { 1 };
    let entry = |(frames, seen): (_, Seen)| Entry { frames, count: seen.count, value: seen.total / scale };
    let samples = folded.values().map(|seen| seen.samples).sum();
    Profile { event, lasted, samples, entries: folded.into_iter().map(entry).collect() }
}

/// The names of addresses and threads.
#[derive(Default)]
struct Names {
    addresses: HashMap<usize, Rc<[Rc<str>]>>,
    threads: HashMap<u32, String>,
}

impl Names {
    /// The frames of a place from the outside in; none if it does not belong in a profile of `event`.
    fn frames(&mut self, event: Event, place: &Place) -> Option<Vec<String>> {
        let inwards = match event {
            Event::Cpu | Event::Wall => self.interrupted(&place.frames),
            Event::Alloc | Event::Lock | Event::Live => self.all(&place.frames),
        };
        let inner = match event {
            Event::Cpu | Event::Wall => 0,
            Event::Alloc | Event::Live => inwards.iter().take_while(|name| begins(name, PLUMBING)).count(),
            Event::Lock if is_lock(&inwards) || inwards.is_empty() => {
                inwards.iter().position(|name| has(name, LOCKS)).unwrap_or(0)
            }
            Event::Lock => return None,
        };
        let mut frames = vec![self.thread(place.thread).to_owned()];
        let stack = inwards.get(inner..).unwrap_or_default();
        for (at, name) in stack.iter().enumerate().rev() {
            let is_last = frames.last().is_some_and(|last| last == &**name);
            if !is_last && (at == 0 || !is_noise(name)) {
                frames.push(name.to_string());
            }
        }
        Some(frames)
    }

    /// The names of all frames, the innermost first, without the frames that recorded the stack.
    fn all(&mut self, frames: &[usize]) -> Vec<Rc<str>> {
        frames.iter().flat_map(|address| self.address(*address).to_vec()).collect()
    }

    /// The same without the signal's handler and the kernel's frame below it.
    fn interrupted(&mut self, frames: &[usize]) -> Vec<Rc<str>> {
        let is_handler =
            |names: &[Rc<str>]| names.iter().any(|name| name.contains("kvorum_profiler::cpu::on_tick"));
        let handler = frames.iter().position(|address| is_handler(&self.address(*address)));
        let mut names = Vec::new();
        for (at, address) in frames.iter().enumerate().skip(handler.map_or(0, |at| at + 2)) {
            // The other addresses are return addresses; this one is the interrupted instruction itself.
            let is_interrupted = handler.is_some_and(|handler| at == handler + 2);
            names.extend_from_slice(&self.address(address + usize::from(is_interrupted)));
        }
        names
    }

    /// The names of the functions at an address, the innermost inlined one first.
    fn address(&mut self, address: usize) -> Rc<[Rc<str>]> {
        let known = self.addresses.entry(address).or_insert_with(|| {
            let mut names: Vec<Rc<str>> = Vec::new();
            backtrace::resolve(std::ptr::without_provenance_mut(address), |symbol| {
                let name = symbol.name().map(|name| clean(&format!("{name:#}"))).unwrap_or_default();
                let name = full(name, symbol.filename());
                if !name.is_empty() {
                    names.push(name.into());
                }
            });
            if names.is_empty() {
                names.push(NO_SYMBOL.into());
            }
            names.into()
        });
        Rc::clone(known)
    }

    fn thread(&mut self, number: u32) -> &str {
        self.threads.entry(number).or_insert_with(|| {
            if number == 0 {
                return "(samples that were lost)".to_owned();
            }
            #[expect(clippy::disallowed_methods, reason = "the system's name of a thread of this process")]
            let name = std::fs::read_to_string(format!("/proc/self/task/{number}/comm"));
            name.map_or_else(|_| "(ended thread)".to_owned(), |name| one_frame(name.trim_end()))
        })
    }
}

fn is_noise(name: &str) -> bool {
    begins(name, NOISE) || name.ends_with("::call_once") || name.ends_with("::call_mut")
}

fn begins(name: &str, with: &[&str]) -> bool {
    with.iter().any(|begin| name.starts_with(begin))
}

fn has(name: &str, any: &[&str]) -> bool {
    any.iter().any(|part| name.contains(part))
}

fn is_lock(inwards: &[Rc<str>]) -> bool {
    inwards.iter().find_map(|name| has(name, LOCKS).then_some(true).or(has(name, IDLE).then_some(false)))
        == Some(true)
}

/// A name with its module. Line tables name inlined functions without it; then it follows from the file's path.
fn full(name: String, file: Option<&Path>) -> String {
    match file.filter(|_| !name.contains("::")).and_then(module_of) {
        Some(module) if name.is_empty() => module,
        Some(module) => format!("{module}::{name}"),
        None => name,
    }
}

/// The module in `file`: the directory before `src` is the crate, without its version; the path after it is the module.
/// C functions have none.
fn module_of(file: &Path) -> Option<String> {
    if file.extension().is_none_or(|extension| extension != "rs") {
        return None;
    }
    let parts: Vec<&str> = file.iter().filter_map(|part| part.to_str()).collect();
    let at = parts.iter().rposition(|part| *part == "src")?;
    let package = parts.get(at.checked_sub(1)?)?;
    let is_version = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let package =
        package.rsplit_once('-').filter(|(_, tail)| is_version(tail)).map_or(*package, |(name, _)| name);
    let mut module = package.replace('-', "_");
    for part in parts.get(at + 1..)? {
        let part = part.strip_suffix(".rs").unwrap_or(part);
        if !["lib", "main", "mod"].contains(&part) {
            module = format!("{module}::{part}");
        }
    }
    Some(module)
}

/// A name for readers: without type parameters and marks of closures; `<Type as Trait>` becomes the type.
fn clean(name: &str) -> String {
    let name = match name.strip_prefix('<').and_then(|rest| Some((rest, closing(rest)?))) {
        Some((rest, end)) => {
            let (inside, behind) = rest.split_at(end);
            let own = top_level_as(inside).map_or(inside, |at| inside.get(..at).unwrap_or(inside));
            format!("{}{}", clean(own), behind.get(1..).unwrap_or_default())
        }
        None => name.to_owned(),
    };
    let mut cleaned = String::with_capacity(name.len());
    let mut depth = 0_usize;
    let mut before = ' ';
    for c in name.chars() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth = depth.saturating_sub(1),
            _ if depth == 0 => cleaned.push(c),
            _ => {}
        }
        before = c;
    }
    let mut parts: Vec<&str> =
        cleaned.split("::").filter(|part| !part.is_empty() && !part.starts_with('{')).collect();
    if let Some(last) = parts.last_mut() {
        *last = last.split('{').next().unwrap_or(last);
    }
    one_frame(&parts.join("::"))
}

/// The position of the `>` that closes a `<` before `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before == '-' => {}
            '>' if depth == 0 => return Some(at),
            '>' => depth -= 1,
            _ => {}
        }
        before = c;
    }
    None
}

/// The position of ` as ` in `text`, outside of any `<…>`.
fn top_level_as(text: &str) -> Option<usize> {
    text.match_indices(" as ").map(|(at, _)| at).find(|at| {
        let before = text.get(..*at).unwrap_or_default().replace("->", "");
        before.matches('<').count() == before.matches('>').count()
    })
}

/// The name without the separators of frames and lines in the collapsed format.
fn one_frame(name: &str) -> String {
    name.replace(';', ",").replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cleaned() {
        let check = |name: &str, expect: &str| assert_eq!(clean(name), expect, "{name}");
        check("main", "main");
        check("kvorum::http::handler::handle::{{closure}}", "kvorum::http::handler::handle");
        check("kvorum::http::handler::handle::{closure#0}::{closure#1}", "kvorum::http::handler::handle");
        check(
            "<kvorum::peer::Guarded<S> as tokio::io::AsyncRead>::poll_read",
            "kvorum::peer::Guarded::poll_read",
        );
        check("<alloc::vec::Vec<u8>>::push", "alloc::vec::Vec::push");
        check("<fn(&str) -> core::option::Option<u8> as a::B>::c", "fn(&str) -> core::option::Option::c");
        check("core::ptr::drop_in_place::<[u8; 4]>", "core::ptr::drop_in_place");
        check(
            "core::ops::function::FnOnce::call_once{{vtable.shim}}",
            "core::ops::function::FnOnce::call_once",
        );
        check("<a::B<<c::D as e::F>::G> as h::I<j::K>>::l::<m::N>", "a::B::l");
        check("<&[u8; 3] as x::Y>::z", "&[u8, 3]::z");
    }

    #[test]
    fn files_say_modules() {
        let check = |file: &str, expect: Option<&str>| {
            assert_eq!(module_of(Path::new(file)).as_deref(), expect, "{file}");
        };
        check("/r/hyper-1.12.0/src/proto/h1/mod.rs", Some("hyper::proto::h1"));
        check("/r/tokio-util-0.7.1/src/lib.rs", Some("tokio_util"));
        check("kvorum-server/src/http/handler.rs", Some("kvorum_server::http::handler"));
        check("/rustc/5980/library/core/src/future/poll_fn.rs", Some("core::future::poll_fn"));
        check("kvorum/tests/profile.rs", None);
        check("src/main.rs", None);
        check("/t/build/tikv-jemalloc-sys-9/out/build/src/arena.c", None);
        assert_eq!(full("poll".to_owned(), Some(Path::new("a/src/b.rs"))), "a::b::poll");
        assert_eq!(full("c::d".to_owned(), Some(Path::new("a/src/b.rs"))), "c::d");
        assert_eq!(full(String::new(), Some(Path::new("a/src/b.rs"))), "a::b");
    }

    /// Names of frames stand for addresses, so that the test is readable.
    fn frames(event: Event, inwards: &[&str]) -> Option<String> {
        let mut names = Names::default();
        names.threads.insert(7, "net0".to_owned());
        let addresses: Box<[usize]> = (1..=inwards.len()).map(|at| at * 1000).collect();
        for (address, name) in addresses.iter().zip(inwards) {
            // The frame that a signal interrupted is looked up one address later.
            for address in [*address, address + 1] {
                names.addresses.insert(address, Rc::new([Rc::from(*name)]));
            }
        }
        Some(names.frames(event, &Place { thread: 7, frames: addresses })?.join(";"))
    }

    #[test]
    fn noise_is_folded_and_the_innermost_stays() {
        let inwards = [
            "backtrace::trace",
            "kvorum_profiler::cpu::on_tick",
            "(no symbol)",
            "tokio::runtime::io::driver::Driver::turn",
            "kvorum::http::handler::get",
            "core::future::poll_fn::PollFn::poll",
            "kvorum::http::handler::get",
            "hyper::proto::h1::dispatch::Dispatcher::poll_loop",
            "kvorum::http::server::serve_connection",
            "tokio::runtime::task::core::Core::poll",
            "std::thread::spawn_unchecked",
            "start_thread",
        ];
        let expect = "net0;kvorum::http::server::serve_connection;kvorum::http::handler::get;\
                      tokio::runtime::io::driver::Driver::turn";
        assert_eq!(frames(Event::Cpu, &inwards).unwrap(), expect);
        assert_eq!(frames(Event::Cpu, &[]).unwrap(), "net0");
    }

    #[test]
    fn allocations_end_in_what_allocates() {
        let inwards = [
            "kvorum_profiler::stacks::note",
            "__rust_alloc",
            "alloc::raw_vec::finish_grow",
            "a::grows",
            "main",
        ];
        assert_eq!(frames(Event::Alloc, &inwards).unwrap(), "net0;main;a::grows");
    }

    /// A wait on a condition variable is idle, unless it is for the lock that it takes afterwards.
    #[test]
    fn waits_for_locks_are_told_from_idle_ones() {
        let futex = "std::sys::pal::unix::futex::futex_wait";
        let lock = "std::sys::sync::mutex::futex::Mutex::lock_contended";
        let condition = "std::sys::sync::condvar::futex::Condvar::wait_optional_timeout";
        let slow = "parking_lot::raw_mutex::RawMutex::lock_slow";
        assert_eq!(frames(Event::Lock, &[futex, lock, "a::b"]).unwrap(), format!("net0;a::b;{lock}"));
        assert_eq!(
            frames(Event::Lock, &[futex, lock, condition, "a::b"]).unwrap(),
            format!("net0;a::b;{condition};{lock}")
        );
        assert_eq!(frames(Event::Lock, &["x::park", slow, "a::b"]).unwrap(), format!("net0;a::b;{slow}"));
        assert_eq!(frames(Event::Lock, &[futex, condition, "a::b"]), None);
        assert_eq!(frames(Event::Lock, &[futex, "std::thread::park", "a::b"]), None);
        assert_eq!(frames(Event::Lock, &[futex, "a::b"]), None);
    }

    /// Real addresses get names: this test function is among the names of its own stack.
    #[test]
    fn real_addresses_have_names() {
        let stack = crate::stacks::Stack::here();
        let names = Names::default().all(stack.frames());
        let this = "kvorum_profiler::fold::tests::real_addresses_have_names";
        assert!(names.iter().any(|name| &**name == this), "{names:?}");
    }
}
