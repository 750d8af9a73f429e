//! The trace: what happened, line by line. Nothing in it depends on the machine or the time of day, so the
//! traces of two runs of one seed are equal to the byte.
//!
//! Clients and the driver write their own lines; [`Trace::listen`] adds the nodes' logs and every message of
//! the simulated network.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use xxhash_rust::xxh3::xxh3_64;

/// Printed messages up to this length are shown in full. Longer ones, which carry data, are shown as length
/// and checksum.
const MESSAGE_CHARS_MAX: usize = 48;

/// The events so far. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    sink: Option<Sink>,
}

/// The destination of the lines.
#[derive(Debug, Clone)]
enum Sink {
    // Guards the lines; held for one line. A subscriber must be shareable between threads, although a run has
    // only one.
    Kept(Arc<Mutex<String>>),
    /// To standard output, so that a run which never ends can be inspected.
    Shown,
}

impl Trace {
    /// A trace that keeps its lines. The default trace keeps none.
    pub fn kept() -> Self {
        Self { sink: Some(Sink::Kept(Arc::default())) }
    }

    /// A trace that prints its lines.
    pub fn shown() -> Self {
        Self { sink: Some(Sink::Shown) }
    }

    /// Writes a line of `who` at `at`.
    pub fn line(&self, at: Duration, who: &str, what: &dyn fmt::Display) {
        let seconds = at.as_secs_f64();
        match &self.sink {
            // Writing to a string cannot fail.
            Some(Sink::Kept(text)) => drop(writeln!(lock(text), "{seconds:>11.6} {who:<9} {what}")),
            Some(Sink::Shown) => println!("{seconds:>11.6} {who:<9} {what}"),
            None => {}
        }
    }

    /// All lines that were kept so far.
    pub fn text(&self) -> String {
        if let Some(Sink::Kept(text)) = &self.sink { lock(text).clone() } else { String::new() }
    }

    /// Also records, until the guard is dropped, the nodes' logs and every message on the simulated network.
    pub fn listen(&self) -> Option<tracing::subscriber::DefaultGuard> {
        self.sink.as_ref()?;
        let (spans, numbers, latest) = (Mutex::default(), AtomicU64::new(1), Mutex::default());
        let listener = Listener { trace: self.clone(), spans, numbers, latest };
        Some(tracing::subscriber::set_default(listener))
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The hosts whose spans are known, and those that are entered now.
#[derive(Debug, Default)]
struct Spans {
    hosts: BTreeMap<u64, String>,
    entered: Vec<u64>,
}

struct Listener {
    trace: Trace,
    // Guards the spans; held for a look-up.
    spans: Mutex<Spans>,
    numbers: AtomicU64,
    // Guards the latest time that was read: while a message is sent, the time is not available.
    latest: Mutex<Duration>,
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        match metadata.target() {
            // A message has a source; an event without one is a step of the clock.
            "turmoil" => metadata.is_span() || metadata.fields().field("src").is_some(),
            target if target.starts_with("turmoil") => metadata.is_span(),
            target => target.starts_with("kvorum") && *metadata.level() <= Level::DEBUG,
        }
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut words = Words::default();
        span.record(&mut words);
        if let Some(name) = words.name {
            lock(&self.spans).hosts.insert(number, name);
        }
        Id::from_u64(number)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = Words::default();
        event.record(&mut words);
        let host = {
            let spans = lock(&self.spans);
            spans.entered.iter().rev().find_map(|span| spans.hosts.get(span).cloned())
        };
        let what = format!("{}{}", words.message, words.fields);
        let at = {
            let mut latest = lock(&self.latest);
            *latest = turmoil::sim_elapsed().map_or(*latest, |now| now.max(*latest));
            *latest
        };
        self.trace.line(at, host.as_deref().unwrap_or("network"), &what);
    }

    fn enter(&self, span: &Id) {
        lock(&self.spans).entered.push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        let mut spans = lock(&self.spans);
        if let Some(at) = spans.entered.iter().rposition(|entered| *entered == span.into_u64()) {
            spans.entered.remove(at);
        }
    }

    fn try_close(&self, span: Id) -> bool {
        lock(&self.spans).hosts.remove(&span.into_u64());
        true
    }
}

/// The fields of a span or event, as text.
#[derive(Default)]
struct Words {
    name: Option<String>,
    message: String,
    fields: String,
}

impl Visit for Words {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "name" {
            self.name = Some(value.to_owned());
        } else {
            let _ = write!(self.fields, " {}={value}", field.name());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        let _ = match field.name() {
            "message" => write!(self.message, "{text}"),
            "name" => {
                self.name = Some(text);
                Ok(())
            }
            "protocol" if text.len() > MESSAGE_CHARS_MAX => {
                let sum = xxh3_64(text.as_bytes()) >> 32;
                write!(self.fields, " TCP data {} bytes {sum:08x}", text.matches("0x").count())
            }
            "protocol" => write!(self.fields, " {text}"),
            name => write!(self.fields, " {name}={text}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trace that is not kept costs nothing and is empty; lines are in order, with time and origin.
    #[test]
    fn lines_are_kept_on_demand() {
        let (kept, not_kept) = (Trace::kept(), Trace::default());
        for trace in [&kept, &not_kept] {
            trace.line(Duration::from_millis(1500), "driver", &"one");
            trace.line(Duration::from_millis(1501), "node-0", &"two");
        }
        assert_eq!(not_kept.text(), "");
        assert_eq!(kept.text(), "   1.500000 driver    one\n   1.501000 node-0    two\n");
    }

    /// Logs of the node's crates are recorded while the guard lives, those of other crates never.
    #[test]
    fn logs_are_heard() {
        let trace = Trace::kept();
        let guard = trace.listen();
        tracing::info!(target: "kvorum_server::peer", peer = 7, "connected");
        tracing::info!(target: "hyper", "noise");
        drop(guard);
        tracing::info!(target: "kvorum_server::peer", "unheard");
        assert_eq!(trace.text(), "   0.000000 network   connected peer=7\n");
    }
}
