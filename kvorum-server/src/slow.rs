//! Traces of requests: what a request waited for, and how long, kept only while `--slow-request` is on, and for those requests
//! that go to a collector of traces ([`crate::spans`]).
//!
//! A request and all its calls stay on one thread, so its trace goes with the task ([`within`]) and no function takes
//! it as an argument. A wait is noted where it is awaited ([`step`]). Without a trace, a step costs the look for one.

use kvorum_core::{Key, Slot};
use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::future::Future;
use std::num::{NonZeroU64, NonZeroU128};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// The most steps of a request that are kept; further ones are counted.
const STEPS_MAX: usize = 32;

tokio::task_local! {
    static TRACE: Rc<Trace>;
}

/// A span of a trace that goes to a collector: the parent of the spans that follow from it, here and at other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The id of the trace.
    pub trace: NonZeroU128,
    /// The id of the span.
    pub span: NonZeroU64,
}

/// What one request has waited for so far.
#[derive(Debug)]
pub struct Trace {
    begun: Instant,
    /// The request's own span; none if it does not go to a collector.
    context: Option<TraceContext>,
    key: RefCell<Option<Key>>,
    steps: RefCell<Vec<Step>>,
    left_out: Cell<u32>,
}

/// One wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    what: &'static str,
    node: Option<Slot>,
    /// Whether it is a call of this node's own replica, which the commit thread adds steps to.
    is_own: bool,
    /// The place of the step that it is a part of.
    within: Option<usize>,
    /// Since the request's begin.
    begun: Duration,
    /// None while it goes on.
    took: Option<Duration>,
}

impl Trace {
    /// The trace of a request that begins now, and whose span is `context` if it goes to a collector.
    pub fn begin(context: Option<TraceContext>) -> Rc<Self> {
        Rc::new(Self {
            begun: Instant::now(),
            context,
            key: RefCell::default(),
            steps: RefCell::default(),
            left_out: Cell::new(0),
        })
    }

    /// The key of the request, if it is about one.
    pub fn key(&self) -> Option<Key> {
        self.key.borrow().clone()
    }

    /// Adds a step; returns its place, unless there are too many.
    fn add(&self, step: Step) -> Option<usize> {
        let mut steps = self.steps.borrow_mut();
        if steps.len() >= STEPS_MAX {
            self.left_out.set(self.left_out.get().saturating_add(1));
            return None;
        }
        steps.push(step);
        Some(steps.len() - 1)
    }

    /// Adds the time that a request took in the commit thread: to the step that called this node's own replica, or as a
    /// step of its own where a peer called it.
    fn add_commit(&self, times: &CommitTimes) {
        let (Some(taken), Some((stored, is_synced))) = (times.taken.get(), times.stored.get()) else {
            return;
        };
        let part = |what, within, begun: Instant, end: Instant| Step {
            what,
            node: None,
            is_own: false,
            within,
            begun: begun.saturating_duration_since(self.begun),
            took: Some(end.saturating_duration_since(begun)),
        };
        let calling = self.steps.borrow().iter().rposition(|step| step.is_own && step.took.is_none());
        let within = calling.or_else(|| self.add(part("commit", None, times.queued, *stored)));
        self.add(part("queue", within, times.queued, *taken));
        self.add(part(if *is_synced { "sync" } else { "write" }, within, *taken, *stored));
    }

    /// The span of the step at `place`. It follows from the request's span, so that it can be told to a peer before the
    /// step has ended.
    fn span_of(&self, place: usize) -> Option<TraceContext> {
        let TraceContext { trace, span } = self.context?;
        let mut word = span.get().wrapping_add(GOLDEN.wrapping_mul(place as u64 + 1));
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let span = NonZeroU64::new(word ^ word >> 31).unwrap_or(NonZeroU64::MIN);
        Some(TraceContext { trace, span })
    }

    fn close(&self, place: usize) {
        let now = self.begun.elapsed();
        if let Some(step) = self.steps.borrow_mut().get_mut(place) {
            step.took = Some(now.saturating_sub(step.begun));
        }
    }

    /// The steps as spans, in the order in which they were added; none if the request does not go to a collector.
    pub fn spans(&self) -> Vec<StepSpan> {
        let span_of = |place| self.span_of(place).map(|context| context.span.get());
        let steps = self.steps.borrow();
        let spans = steps.iter().enumerate().filter_map(|(place, step)| {
            let own = self.context?.span.get();
            Some(StepSpan {
                span: span_of(place)?,
                parent: step.within.and_then(span_of).unwrap_or(own),
                what: step.what,
                node: step.node,
                begun: step.begun,
                took: step.took,
            })
        });
        spans.collect()
    }

    /// The steps in words, in the order in which they began; `url_of` names nodes.
    pub fn describe(&self, url_of: impl Fn(Slot) -> String) -> String {
        let mut text = String::new();
        let now = self.begun.elapsed();
        for Step { what, node, begun, took, .. } in &*self.steps.borrow() {
            if !text.is_empty() {
                text.push_str(", ");
            }
            text.push_str(what);
            if let Some(node) = node {
                let _ = write!(text, " at {}", url_of(*node));
            }
            let _ = match took {
                Some(took) => write!(text, " {} ms", millis(*took)),
                None => write!(text, " not answered in {} ms", millis(now.saturating_sub(*begun))),
            };
        }
        if self.left_out.get() > 0 {
            let _ = write!(text, ", and {} more", self.left_out.get());
        }
        text
    }
}

/// The golden ratio in 64 bits: the step of the `SplitMix64` generator.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A step of a request as a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSpan {
    /// Its id.
    pub span: u64,
    /// The id of the span that it is a part of.
    pub parent: u64,
    /// What it waited for.
    pub what: &'static str,
    /// At which node.
    pub node: Option<Slot>,
    /// When it began, since the request did.
    pub begun: Duration,
    /// How long it took; none while it goes on.
    pub took: Option<Duration>,
}

/// When the commit thread took up a request and when it had stored its group, as the thread notes it.
#[derive(Debug)]
pub struct CommitTimes {
    queued: Instant,
    taken: OnceLock<Instant>,
    stored: OnceLock<(Instant, bool)>,
}

impl CommitTimes {
    /// Times to be noted, for a request of the present trace that is queued now; none without a trace.
    pub fn wanted() -> Option<Arc<Self>> {
        let times = |_| Self { queued: Instant::now(), taken: OnceLock::new(), stored: OnceLock::new() };
        current().map(times).map(Arc::new)
    }

    /// Notes that the commit thread has taken it up.
    pub fn note_taken(&self) {
        let _ = self.taken.set(Instant::now());
    }

    /// Notes that its group is stored, and whether it is synced.
    pub fn note_stored(&self, is_synced: bool) {
        let _ = self.stored.set((Instant::now(), is_synced));
    }

    /// Adds the times to the present trace.
    pub fn tell(&self) {
        if let Some(trace) = current() {
            trace.add_commit(self);
        }
    }
}

/// A step that has begun, of the present request if that has a trace.
#[must_use = "a step ends with its wait"]
pub struct OpenStep {
    open: Option<(Rc<Trace>, Option<usize>)>,
}

impl OpenStep {
    /// Its span, for the peer that it calls; none if it goes to no collector.
    pub fn context(&self) -> Option<TraceContext> {
        let (trace, place) = self.open.as_ref()?;
        trace.span_of((*place)?)
    }

    /// Awaits `wait`, at whose end the step ends.
    pub fn over<F: Future>(self, wait: F) -> impl Future<Output = F::Output> + use<F> {
        let open = self.open;
        async move {
            let output = wait.await;
            if let Some((trace, Some(place))) = open {
                trace.close(place);
            }
            output
        }
    }
}

fn millis(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1000.0)
}

/// The trace of the request that this task works for, if there is one.
pub fn current() -> Option<Rc<Trace>> {
    TRACE.try_with(Rc::clone).ok()
}

/// Runs `work` for the request of `trace`.
pub fn within<F: Future>(trace: Rc<Trace>, work: F) -> impl Future<Output = F::Output> {
    TRACE.scope(trace, work)
}

/// Notes the key of the request.
pub fn note_key(key: &Key) {
    if let Some(trace) = current() {
        trace.key.replace(Some(key.clone()));
    }
}

/// Awaits `wait`, and notes in the trace of the present request how long that took. The step begins now, not when the
/// future is first polled.
pub fn step<F: Future>(
    what: &'static str,
    node: Option<Slot>,
    wait: F,
) -> impl Future<Output = F::Output> + use<F> {
    open(what, node, false).over(wait)
}

/// Begins a step; `is_own` says whether it calls this node's own replica.
pub fn open(what: &'static str, node: Option<Slot>, is_own: bool) -> OpenStep {
    let open = current().map(|trace| {
        let begun = trace.begun.elapsed();
        let place = trace.add(Step { what, node, is_own, within: None, begun, took: None });
        (trace, place)
    });
    OpenStep { open }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url_of(node: Slot) -> String {
        format!("http://n{}", node.0)
    }

    /// Steps are noted in the order in which they begin, with what is still awaited; without a trace nothing is.
    #[tokio::test(start_paused = true)]
    async fn steps_are_noted() {
        step("body", None, async {}).await;
        assert!(current().is_none());
        let trace = Trace::begin(None);
        within(Rc::clone(&trace), async {
            let slow = step("apply", Some(Slot(2)), tokio::time::sleep(Duration::from_secs(9)));
            step("stamp", None, tokio::time::sleep(Duration::from_millis(20))).await;
            step("apply", Some(Slot(1)), tokio::time::sleep(Duration::from_millis(100))).await;
            drop(slow);
        })
        .await;
        let said = "apply at http://n2 not answered in 121.0 ms, stamp 21.0 ms, apply at http://n1 100.0 ms";
        // Tokio's timers have a millisecond of slack.
        let steps = trace.describe(url_of);
        let words = |text: &str| text.replace(|c: char| c.is_ascii_digit() || c == '.', "");
        assert_eq!(words(&steps), words(said));
    }

    /// A request with many calls keeps the first ones and counts the rest.
    #[tokio::test]
    async fn steps_are_bounded() {
        let trace = Trace::begin(None);
        within(Rc::clone(&trace), async {
            for _ in 0..STEPS_MAX + 3 {
                step("get", None, async {}).await;
            }
        })
        .await;
        assert!(trace.describe(url_of).ends_with(", and 3 more"));
        assert_eq!(trace.steps.borrow().len(), STEPS_MAX);
    }
}
