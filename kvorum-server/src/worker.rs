//! The worker pools: a bounded number of threads for calls that may wait for the disk.
//!
//! Ranges are always read here, and point reads with `--execution pool`. Batches of records for repair and hints run in
//! a second pool, which yields to all other threads. The queues are bounded: when one is full, the caller is told at
//! once ([`PoolFull`]), so that overload becomes a refusal and not a wait.

use crate::crash;
use crate::sched::{self, Turns};
use crate::supervise::{Part, Supervisor, Thread};
use kvorum_profiler::waits::{Since, Wait};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use tokio::sync::oneshot;

/// The most jobs that may wait for a thread: with more, the node is overloaded.
pub const POOL_QUEUE_LEN_MAX: usize = 1024;

type Job = Box<dyn FnOnce() + Send>;

/// The error of a full pool. Nothing was done; a retry can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolFull;

impl fmt::Display for PoolFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the worker pool has {POOL_QUEUE_LEN_MAX} jobs waiting")
    }
}

impl std::error::Error for PoolFull {}

/// The worker pools of a node. There are two, so that background jobs do not delay clients' requests.
pub struct Pools {
    /// The pool for clients' requests.
    pub serving: Pool,
    /// The pool for repair, refill, hints and checks of the store.
    pub background: Pool,
}

impl Pools {
    /// Starts both pools, with `threads` threads each, at least one.
    ///
    /// # Errors
    /// When the operating system cannot start a thread.
    pub fn start(threads: usize, supervisor: &Supervisor) -> io::Result<Self> {
        Ok(Self {
            serving: Pool::start(Part::Worker, threads, Turns::Prompt, supervisor)?,
            background: Pool::start(Part::BackgroundPool, threads, Turns::Polite, supervisor)?,
        })
    }

    /// Pools without threads: the caller runs its jobs itself. For engines that never block, in the simulation.
    pub fn inline() -> Self {
        Self { serving: Pool::inline(), background: Pool::inline() }
    }
}

/// A pool of threads that run jobs. Dropping it waits for the accepted jobs.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<Thread>,
    is_inline: bool,
}

struct Shared {
    // Guards the queue; held for a push or a pop.
    queue: Mutex<Queue>,
    arrived: Condvar,
    busy: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Since, Job)>,
    closed: bool,
}

impl Pool {
    fn start(part: Part, threads: usize, turns: Turns, supervisor: &Supervisor) -> io::Result<Self> {
        let shared =
            Arc::new(Shared { queue: Mutex::default(), arrived: Condvar::new(), busy: AtomicUsize::new(0) });
        let mut pool = Self { shared, threads: Vec::new(), is_inline: false };
        for index in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let thread = supervisor.thread(part, Some(index), move || {
                sched::take_own(turns);
                shared.work(part);
            })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    fn inline() -> Self {
        let shared =
            Arc::new(Shared { queue: Mutex::default(), arrived: Condvar::new(), busy: AtomicUsize::new(0) });
        Self { shared, threads: Vec::new(), is_inline: true }
    }

    /// Runs `job` on one of the threads and returns its result.
    ///
    /// # Errors
    /// [`PoolFull`], at once, when [`POOL_QUEUE_LEN_MAX`] jobs wait.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop a job that was accepted.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolFull> {
        if self.is_inline {
            return Ok(job());
        }
        let (sender, receiver) = oneshot::channel();
        self.submit(Box::new(move || {
            // The caller may have gone; then the result is dropped.
            let _ = sender.send(job());
        }))?;
        // A job that panicked has dropped its sender; its caller gets the error of a full pool.
        receiver.await.map_err(|_| PoolFull)
    }

    /// The number of waiting jobs.
    pub fn queue_len(&self) -> usize {
        self.shared.lock().jobs.len()
    }

    /// The number of threads that are running a job.
    pub fn busy_count(&self) -> usize {
        self.shared.busy.load(Ordering::Relaxed)
    }

    fn submit(&self, job: Job) -> Result<(), PoolFull> {
        let mut queue = self.shared.lock();
        if queue.closed || queue.jobs.len() >= POOL_QUEUE_LEN_MAX {
            return Err(PoolFull);
        }
        queue.jobs.push_back((Since::now(), job));
        drop(queue);
        self.shared.arrived.notify_one();
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, part: Part) {
        let mut queue = self.lock();
        loop {
            crash::step(part);
            if let Some((since, job)) = queue.jobs.pop_front() {
                drop(queue);
                since.end(Wait::PoolQueue);
                self.busy.fetch_add(1, Ordering::Relaxed);
                // A panic in one job must not cost the pool a thread: the panic hook logs it, and it is caught here.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                self.busy.fetch_sub(1, Ordering::Relaxed);
                queue = self.lock();
            } else if queue.closed {
                return;
            } else {
                queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.threads.iter().for_each(Thread::may_end);
        self.shared.lock().closed = true;
        self.shared.arrived.notify_all();
        self.threads.drain(..).for_each(Thread::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// A full queue refuses a job at once and does not run it; it accepts jobs again after the blockage.
    #[test]
    fn full_queue_refuses() {
        let pool = Pool::start(Part::Worker, 1, Turns::Prompt, &Supervisor::default()).unwrap();
        let (release, gate) = mpsc::channel::<()>();
        let (running, is_running) = mpsc::channel();
        pool.submit(Box::new(move || {
            running.send(()).unwrap();
            gate.recv().unwrap();
        }))
        .unwrap();
        is_running.recv().unwrap();
        for _ in 0..POOL_QUEUE_LEN_MAX {
            pool.submit(Box::new(|| ())).unwrap();
        }
        assert_eq!(block_on(pool.run(|| 1)), Err(PoolFull));
        release.send(()).unwrap();
        while pool.queue_len() > 0 {
            thread::yield_now();
        }
        assert_eq!(block_on(pool.run(|| 2)), Ok(2));
    }

    /// A panicking job leaves the pool's only thread working.
    #[test]
    fn panic_costs_no_thread() {
        let pool = Pool::start(Part::Worker, 1, Turns::Prompt, &Supervisor::default()).unwrap();
        assert_eq!(block_on(pool.run(|| -> u8 { panic!("as the test wants") })), Err(PoolFull));
        assert_eq!(block_on(pool.run(|| 3)), Ok(3));
    }
}
