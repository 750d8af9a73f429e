//! Supervision: starts every thread and task that runs as long as its node, and notices when one ends.
//!
//! [`Part`] is the table of all of them, with the consequence of an unexpected end, be it a panic or a return:
//! - [`AtEnd::Restart`]: the part restarts after a pause. For parts without state of their own that a panic could
//!   break: tasks for one peer, and tasks that look for work.
//! - [`AtEnd::StopNode`]: the node can no longer serve, or the state that the part has left behind is unknown. The
//!   status is 503 and names the part, and the process ends with a failure, so that its service manager restarts it.
//!
//! Tasks that end with a request or a connection are not here: their end affects only that request or connection.

use crate::crash;

pub use crate::part::{AtEnd, Part};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;
use tokio::sync::watch;

/// The pause before the first restart; it doubles with each up to [`RESTART_WAIT_MAX`].
const RESTART_WAIT_MIN: Duration = Duration::from_millis(100);
/// The longest pause before a restart.
const RESTART_WAIT_MAX: Duration = Duration::from_secs(30);

/// The reason why a node cannot serve any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The thread or task.
    pub part: String,
    /// How the part ended.
    pub reason: String,
}

impl Ended {
    fn is_panic(&self) -> bool {
        self.reason == reason(true)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.part, self.reason)
    }
}

/// A supervisor: starts a node's threads and tasks, and notices their ends. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Supervisor {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    counts: Vec<Counts>,
    has_ended: AtomicBool,
    ended: watch::Sender<Option<Ended>>,
}

#[derive(Debug, Default)]
struct Counts {
    running: AtomicU64,
    restarts: AtomicU64,
}

impl Default for Shared {
    fn default() -> Self {
        let counts = Part::ALL.iter().map(|_| Counts::default()).collect();
        Self { counts, has_ended: AtomicBool::new(false), ended: watch::Sender::new(None) }
    }
}

/// A supervised thread. Dropping it neither ends nor waits for it.
#[derive(Debug)]
pub struct Thread {
    thread: thread::JoinHandle<()>,
    may_end: Arc<AtomicBool>,
}

impl Thread {
    /// Marks the thread's end as expected. To be called before the thread is told to end.
    pub fn may_end(&self) {
        self.may_end.store(true, Ordering::SeqCst);
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until the thread ends.
    pub fn join(self) {
        self.may_end();
        // A panic of the thread has been logged.
        let _ = self.thread.join();
    }
}

impl Supervisor {
    /// Starts a thread that runs `run` once.
    ///
    /// # Errors
    /// When the operating system cannot start a thread.
    pub fn thread(
        &self,
        part: Part,
        number: Option<usize>,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<Thread> {
        let mut run = Some(run);
        let once = move || {
            if let Some(run) = run.take() {
                run();
            }
        };
        self.start(part, number, AtEnd::StopNode, once)
    }

    /// Starts a thread that runs `run`, and runs it again when it ends unexpectedly.
    ///
    /// # Errors
    /// When the operating system cannot start a thread.
    pub fn thread_again(&self, part: Part, run: impl FnMut() + Send + 'static) -> io::Result<Thread> {
        self.start(part, None, part.at_end(), run)
    }

    fn start(
        &self,
        part: Part,
        number: Option<usize>,
        at_end: AtEnd,
        mut run: impl FnMut() + Send + 'static,
    ) -> io::Result<Thread> {
        let name =
            format!("kvorum:{}{}", part.name(), number.map_or(String::new(), |number| number.to_string()));
        let may_end = Arc::new(AtomicBool::new(false));
        let (supervisor, is_to_end, called) = (self.clone(), Arc::clone(&may_end), name.clone());
        let live = move || {
            let _running = supervisor.running(part);
            let mut wait = RESTART_WAIT_MIN;
            loop {
                let outcome = panic::catch_unwind(AssertUnwindSafe(&mut run));
                if is_to_end.load(Ordering::SeqCst) {
                    return;
                }
                let reason = reason(outcome.is_err());
                if at_end == AtEnd::StopNode {
                    return supervisor.fail(Ended { part: called, reason: reason.to_owned() });
                }
                supervisor.note_restart(part, "", reason, wait);
                #[expect(
                    clippy::disallowed_methods,
                    reason = "a thread of its own, which serves nobody meanwhile"
                )]
                thread::sleep(wait);
                wait = (wait * 2).min(RESTART_WAIT_MAX);
                if is_to_end.load(Ordering::SeqCst) {
                    return;
                }
            }
        };
        #[expect(clippy::disallowed_methods, reason = "the room that starts the threads")]
        let thread = thread::Builder::new().name(name).spawn(live)?;
        Ok(Thread { thread, may_end })
    }

    /// Starts a task on the calling thread, which must run local tasks; the task ends with them. `of` is the peer that
    /// it is for. If the table says that the part restarts, `begin` makes the task again after its end.
    pub fn task<F: Future<Output = ()>>(
        &self,
        part: Part,
        of: &str,
        mut begin: impl FnMut() -> F + 'static,
    ) -> tokio::task::JoinHandle<()> {
        let (supervisor, of) = (self.clone(), of.to_owned());
        tokio::task::spawn_local(async move {
            let _running = supervisor.running(part);
            let mut wait = RESTART_WAIT_MIN;
            loop {
                let has_panicked = run_caught(part, begin()).await;
                let reason = reason(has_panicked);
                match part.at_end() {
                    AtEnd::Done | AtEnd::DoneOrStopNode if !has_panicked => return,
                    AtEnd::StopNode | AtEnd::DoneOrStopNode => {
                        let part = part.name().to_owned();
                        return supervisor.fail(Ended { part, reason: reason.to_owned() });
                    }
                    AtEnd::Restart | AtEnd::Done => {}
                }
                supervisor.note_restart(part, &of, reason, wait);
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(RESTART_WAIT_MAX);
            }
        })
    }

    /// Whether the node cannot serve any more.
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended.load(Ordering::Relaxed)
    }

    /// The part that ended, once the node cannot serve any more.
    pub fn ended(&self) -> Option<Ended> {
        self.shared.ended.borrow().clone()
    }

    /// Waits until the node cannot serve any more.
    ///
    /// # Cancel safety
    /// The future may be dropped.
    pub async fn until_ended(&self) -> Ended {
        let mut ended = self.shared.ended.subscribe();
        loop {
            if let Some(ended) = ended.borrow_and_update().clone() {
                return ended;
            }
            if ended.changed().await.is_err() {
                // The sender lives as long as this supervisor.
                std::future::pending::<()>().await;
            }
        }
    }

    /// How many of `part` are running, and how often one was restarted.
    pub fn counts(&self, part: Part) -> (u64, u64) {
        let counts = self.shared.counts.get(part as usize);
        counts.map_or((0, 0), |counts| {
            (counts.running.load(Ordering::Relaxed), counts.restarts.load(Ordering::Relaxed))
        })
    }

    /// The number of unexpected ends, of all parts.
    pub fn unexpected_ends(&self) -> u64 {
        Part::ALL.iter().map(|part| self.counts(*part).1).sum::<u64>() + u64::from(self.has_ended())
    }

    fn running(&self, part: Part) -> Running {
        let running = Running { supervisor: self.clone(), part };
        if let Some(counts) = self.shared.counts.get(part as usize) {
            counts.running.fetch_add(1, Ordering::Relaxed);
        }
        running
    }

    fn note_restart(&self, part: Part, of: &str, reason: &str, wait: Duration) {
        if let Some(counts) = self.shared.counts.get(part as usize) {
            counts.restarts.fetch_add(1, Ordering::Relaxed);
        }
        let (part, in_ms) = (part.name(), wait.as_millis());
        let of = (!of.is_empty()).then_some(of);
        tracing::error!(part, of, in_ms, "a thread or task of the node {reason}: it is started again");
    }

    fn fail(&self, ended: Ended) {
        tracing::error!(
            part = ended.part,
            "a thread or task of the node {}: the node cannot serve any more, and its process ends with a failure",
            ended.reason
        );
        self.shared.ended.send_if_modified(|known| {
            // The first of several ends is the cause, unless a later one is a panic. A panicking thread's values are
            // dropped before its panic is recorded, and other parts may end because of that.
            let is_cause = known.as_ref().is_none_or(|known| !known.is_panic() && ended.is_panic());
            if is_cause {
                *known = Some(ended);
            }
            is_cause
        });
        self.shared.has_ended.store(true, Ordering::Relaxed);
    }
}

/// Counts a part while it is running.
struct Running {
    supervisor: Supervisor,
    part: Part,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(counts) = self.supervisor.shared.counts.get(self.part as usize) {
            counts.running.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn reason(has_panicked: bool) -> &'static str {
    if has_panicked { "has panicked" } else { "has ended by itself" }
}

/// Runs `task` to its end. Returns whether it panicked.
async fn run_caught(part: Part, task: impl Future<Output = ()>) -> bool {
    let mut task = pin!(task);
    poll_fn(|cx| {
        let polled = panic::catch_unwind(AssertUnwindSafe(|| {
            crash::step(part);
            task.as_mut().poll(cx)
        }));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(false),
            Err(_) => Poll::Ready(true),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::rc::Rc;
    use std::sync::mpsc;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        tokio::task::LocalSet::new().block_on(&runtime.unwrap(), future)
    }

    /// Goal: a node reports the part that failed, not the parts that ended because of it. Method: ends in all orders.
    #[test]
    fn panic_is_the_cause_of_other_ends() {
        let cause = |ends: &[(&str, bool)]| {
            let supervisor = Supervisor::default();
            for (part, has_panicked) in ends {
                supervisor.fail(Ended { part: (*part).to_owned(), reason: reason(*has_panicked).to_owned() });
            }
            supervisor.ended().unwrap().part
        };
        assert_eq!(
            cause(&[("filefree", false), ("filepin", true), ("commit-wake", false), ("sweep", true)]),
            "filepin"
        );
        assert_eq!(cause(&[("filepin", true), ("filefree", false)]), "filepin");
        assert_eq!(cause(&[("filefree", false), ("commit-wake", false)]), "filefree");
    }

    /// A thread that panics, or returns, ends the node; a thread that was told to end does not.
    #[test]
    fn end_of_a_thread_ends_the_node() {
        for panics in [true, false] {
            let supervisor = Supervisor::default();
            let thread = supervisor
                .thread(Part::Worker, Some(3), move || assert!(!panics, "as the test wants"))
                .unwrap();
            let ended = block_on(supervisor.until_ended());
            assert_eq!(ended.part, "kvorum:worker3");
            assert_eq!(ended.reason.contains("panicked"), panics);
            assert!(supervisor.ended().is_some());
            thread.join();
        }
        let supervisor = Supervisor::default();
        let (end, is_to_end) = mpsc::channel::<()>();
        let thread = supervisor
            .thread(Part::Commit, None, move || {
                let _ = is_to_end.recv();
            })
            .unwrap();
        thread.may_end();
        drop(end);
        thread.join();
        assert_eq!((supervisor.ended(), supervisor.has_ended()), (None, false));
        assert_eq!(supervisor.counts(Part::Commit), (0, 0));
    }

    /// A thread that may be restarted is restarted as often as it ends.
    #[test]
    fn thread_is_started_again() {
        let supervisor = Supervisor::default();
        let (begun, begins) = mpsc::channel();
        let thread = supervisor
            .thread_again(Part::Sweep, move || {
                begun.send(()).unwrap();
                panic!("as the test wants");
            })
            .unwrap();
        for _ in 0..3 {
            begins.recv().unwrap();
        }
        thread.join();
        assert!(supervisor.counts(Part::Sweep).1 >= 2 && supervisor.ended().is_none());
    }

    /// Tasks: a restartable one is restarted, however it ends; one whose work is done stays ended; one that the node
    /// needs ends the node.
    #[test]
    fn ends_of_tasks() {
        let supervisor = Supervisor::default();
        block_on(async {
            for panics in [true, false] {
                let begun = Rc::new(Cell::new(0));
                let count = Rc::clone(&begun);
                let task = supervisor.task(Part::Link, "b:1", move || {
                    let count = Rc::clone(&count);
                    async move {
                        count.set(count.get() + 1);
                        assert!(!panics, "as the test wants");
                    }
                });
                tokio::time::sleep(Duration::from_secs(5)).await;
                assert!(begun.get() >= 4, "{}", begun.get());
                assert_eq!(supervisor.counts(Part::Link).0, 1);
                task.abort();
            }
            let done = supervisor.task(Part::FenceQuery, "b:1", || async {});
            done.await.unwrap();
            assert_eq!(supervisor.counts(Part::FenceQuery), (0, 0));
            assert!(!supervisor.has_ended());
            let _task = supervisor.task(Part::HintDrain, "", || async { panic!("as the test wants") });
            assert_eq!(supervisor.until_ended().await.part, "hint-drain");
        });
    }

    /// Names are unique.
    #[test]
    fn names_are_apart() {
        let names: BTreeSet<&str> = Part::ALL.iter().map(|part| part.name()).collect();
        assert_eq!(names.len(), Part::ALL.len());
        assert!(Part::ALL.iter().enumerate().all(|(place, part)| *part as usize == place));
    }

    /// The operating system cuts a thread's name after 15 bytes: the names of parts that are threads fit, those of several
    /// threads with a number of two digits.
    #[test]
    fn names_of_threads_fit() {
        let numbered = [Part::Network, Part::Worker, Part::BackgroundPool].map(|part| (part, "10"));
        let single = [
            Part::Commit,
            Part::Sweep,
            Part::Reclaim,
            Part::IndexFlush,
            Part::FilePin,
            Part::FileFree,
            Part::TokenWatch,
            Part::PeerSecretWatch,
            Part::TlsWatch,
            Part::Audit,
        ];
        for (part, number) in numbered.into_iter().chain(single.map(|part| (part, ""))) {
            let name = format!("kvorum:{}{number}", part.name());
            assert!(name.len() <= 15, "{name}");
        }
    }
}
