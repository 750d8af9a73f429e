//! Traces of requests: what a request waited for, and how long, kept only while `--slow-request` is on, and for those requests
//! that go to a collector of traces ([`crate::spans`]).
//!
//! A request and all its calls stay on one thread, so its trace goes with the task ([`within`]) and no function takes
//! it as an argument. A wait is noted where it is awaited ([`step`]). Without a trace, a step costs the look for one.

use kvorum_core::{Key, NodeIndex};
use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// The most steps of a request that are kept; further ones are counted.
const STEPS_MAX: usize = 32;

tokio::task_local! {
    static TRACE: Rc<Trace>;
}

/// What one request has waited for so far.
#[derive(Debug)]
pub struct Trace {
    begun: Instant,
    key: RefCell<Option<Key>>,
    steps: RefCell<Vec<Step>>,
    left_out: Cell<u32>,
}

/// One wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    what: &'static str,
    node: Option<NodeIndex>,
    /// Since the request's begin.
    begun: Duration,
    /// None while it goes on.
    took: Option<Duration>,
}

impl Trace {
    /// The trace of a request that begins now.
    pub fn begin() -> Rc<Self> {
        Rc::new(Self {
            begun: Instant::now(),
            key: RefCell::default(),
            steps: RefCell::default(),
            left_out: Cell::new(0),
        })
    }

    /// The key of the request, if it is about one.
    pub fn key(&self) -> Option<Key> {
        self.key.borrow().clone()
    }

    /// Begins a step; returns its place, unless there are too many.
    fn open(&self, what: &'static str, node: Option<NodeIndex>) -> Option<usize> {
        let mut steps = self.steps.borrow_mut();
        if steps.len() >= STEPS_MAX {
            self.left_out.set(self.left_out.get().saturating_add(1));
            return None;
        }
        steps.push(Step { what, node, begun: self.begun.elapsed(), took: None });
        Some(steps.len() - 1)
    }

    fn close(&self, place: usize) {
        let now = self.begun.elapsed();
        if let Some(step) = self.steps.borrow_mut().get_mut(place) {
            step.took = Some(now.saturating_sub(step.begun));
        }
    }

    /// The steps, in the order in which they began: what, at which node, when since the request's begin, and how long if it
    /// has ended.
    pub fn steps(&self) -> Vec<(&'static str, Option<NodeIndex>, Duration, Option<Duration>)> {
        self.steps.borrow().iter().map(|step| (step.what, step.node, step.begun, step.took)).collect()
    }

    /// The steps in words, in the order in which they began; `url_of` names nodes.
    pub fn describe(&self, url_of: impl Fn(NodeIndex) -> String) -> String {
        let mut text = String::new();
        let now = self.begun.elapsed();
        for Step { what, node, begun, took } in &*self.steps.borrow() {
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
    node: Option<NodeIndex>,
    wait: F,
) -> impl Future<Output = F::Output> + use<F> {
    let open = current().map(|trace| {
        let place = trace.open(what, node);
        (trace, place)
    });
    async move {
        let output = wait.await;
        if let Some((trace, Some(place))) = open {
            trace.close(place);
        }
        output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url_of(node: NodeIndex) -> String {
        format!("http://n{}", node.0)
    }

    /// Steps are noted in the order in which they begin, with what is still awaited; without a trace nothing is.
    #[tokio::test(start_paused = true)]
    async fn steps_are_noted() {
        step("body", None, async {}).await;
        assert!(current().is_none());
        let trace = Trace::begin();
        within(Rc::clone(&trace), async {
            let slow = step("apply", Some(NodeIndex(2)), tokio::time::sleep(Duration::from_secs(9)));
            step("stamp", None, tokio::time::sleep(Duration::from_millis(20))).await;
            step("apply", Some(NodeIndex(1)), tokio::time::sleep(Duration::from_millis(100))).await;
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
        let trace = Trace::begin();
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
