//! The loop of all background work: runs a service piece by piece, and lets an operator see and pause it.
//!
//! A service is a struct with its own state that implements [`Worker`]. A service that ends unexpectedly is started
//! again by its supervisor, as a new struct.

use crate::clock::Clock;
use crate::coordinator::Coordinator;
use crate::pause::Pause;
use crate::supervise::Part;
use kvorum_core::Slot;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a piece of work came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// There is more to do now.
    Busy,
    /// There is more to do, but not before this time has passed.
    Throttled(Duration),
    /// There is nothing to do: wait for work.
    Idle,
    /// There is never anything to do again.
    Done,
}

/// A background service.
pub(crate) trait Worker {
    /// Whether a pause cuts a piece of work short, by dropping its future; otherwise the piece is finished first.
    const IS_CUT_BY_PAUSE: bool = false;

    /// How an operator sees and pauses the service; none if it is neither shown nor paused.
    fn control(&self) -> Option<Arc<Control>> {
        None
    }

    /// What the next piece of work is, for people; empty if it is only a look whether there is any.
    fn doing(&self) -> &'static str {
        ""
    }

    /// Does one piece of work.
    async fn work(&mut self) -> Work;

    /// Waits until there may be work. It is called after [`Work::Idle`].
    async fn wait_for_work(&mut self) {}
}

/// How an operator sees and pauses a service. It outlives the service's restarts.
#[derive(Debug, Default)]
pub(crate) struct Control {
    pub(crate) pause: Pause,
    done: AtomicU64,
    // Guards what is shown. Held to read or write two fields.
    shown: Mutex<Shown>,
}

/// What a service does, as it is shown.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shown {
    /// The piece of work under way; empty if there is none.
    pub(crate) doing: &'static str,
    /// When it began its latest piece of work, on the monotonic clock.
    pub(crate) begun_at: Option<Duration>,
}

impl Control {
    /// Adds `count` to the units done.
    pub(crate) fn count(&self, count: u64) {
        self.done.fetch_add(count, Ordering::Relaxed);
    }

    /// The units done since the node started.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub(crate) fn shown(&self) -> Shown {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, doing: &'static str, now: Duration) {
        if !doing.is_empty() {
            *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Shown { doing, begun_at: Some(now) };
        }
    }

    fn rest(&self) {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).doing = "";
    }
}

/// Starts the service that `make` makes, supervised as `part`, on the network thread of `coordinator`.
pub(crate) fn start<W: Worker + 'static>(
    coordinator: &Rc<Coordinator>,
    part: Part,
    index: Option<Slot>,
    make: impl Fn(Rc<Coordinator>) -> W + 'static,
) {
    coordinator.keep(part, index, move |own| {
        let clock = Arc::clone(&own.shared().clock);
        run(make(own), clock)
    });
}

/// Runs `worker` until it is done.
async fn run<W: Worker>(mut worker: W, clock: Arc<dyn Clock>) {
    let control = worker.control();
    loop {
        if let Some(control) = &control {
            control.pause.end(&*clock).await;
            control.begin(worker.doing(), clock.mono());
        }
        let work = match &control {
            Some(control) if W::IS_CUT_BY_PAUSE => tokio::select! {
                biased;
                work = worker.work() => work,
                () = control.pause.begin(&*clock) => Work::Busy,
            },
            _ => worker.work().await,
        };
        if let (Some(control), Work::Idle | Work::Done) = (&control, work) {
            control.rest();
        }
        match work {
            Work::Busy => {}
            Work::Throttled(wait) => tokio::time::sleep(wait).await,
            Work::Idle => worker.wait_for_work().await,
            Work::Done => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use std::cell::RefCell;

    const MOMENT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_hours(1);

    struct Script {
        control: Arc<Control>,
        works: std::vec::IntoIter<Work>,
        log: Rc<RefCell<Vec<&'static str>>>,
    }

    impl Worker for Script {
        const IS_CUT_BY_PAUSE: bool = true;

        fn control(&self) -> Option<Arc<Control>> {
            Some(Arc::clone(&self.control))
        }

        fn doing(&self) -> &'static str {
            "reading"
        }

        async fn work(&mut self) -> Work {
            self.log.borrow_mut().push("work");
            match self.works.next() {
                Some(work) => work,
                None => std::future::pending().await,
            }
        }

        async fn wait_for_work(&mut self) {
            assert_eq!(self.control.shown().doing, "");
            self.log.borrow_mut().push("wait");
        }
    }

    /// Goal: each answer of a service has its consequence. Method: a service that answers by a script, and its log.
    #[tokio::test]
    async fn answers_have_consequences() {
        let works = vec![Work::Busy, Work::Throttled(MOMENT), Work::Idle, Work::Done, Work::Busy];
        let log = Rc::new(RefCell::default());
        let control = Arc::new(Control::default());
        let script = Script { control: Arc::clone(&control), works: works.into_iter(), log: Rc::clone(&log) };
        run(script, Arc::new(SystemClock::new())).await;
        assert_eq!(*log.borrow(), ["work", "work", "work", "wait", "work"]);
        assert!(control.shown().begun_at.is_some());
    }

    /// Goal: a paused service begins no piece of work, and one that may be cut short is. Method: a service whose second
    /// piece never ends is paused and resumed.
    #[tokio::test]
    async fn pauses_hold_and_cut() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let log = Rc::new(RefCell::default());
        let control = Arc::new(Control::default());
        let works = vec![Work::Busy].into_iter();
        let script = Script { control: Arc::clone(&control), works, log: Rc::clone(&log) };
        control.pause.set(Some(clock.mono() + LONG));
        let mut running = std::pin::pin!(run(script, Arc::clone(&clock)));
        let mut for_a_moment = async || tokio::time::timeout(MOMENT, &mut running).await.unwrap_err();
        for_a_moment().await;
        assert_eq!(log.borrow().len(), 0, "it is paused");
        control.pause.set(None);
        for_a_moment().await;
        assert_eq!((log.borrow().len(), control.shown().doing), (2, "reading"));
        control.pause.set(Some(clock.mono() + LONG));
        for_a_moment().await;
        assert_eq!(log.borrow().len(), 2);
        control.pause.set(None);
        for_a_moment().await;
        assert_eq!(log.borrow().len(), 3, "the piece that was cut short is begun again");
    }
}
