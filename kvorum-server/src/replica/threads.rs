//! The replica's threads: they commit, sweep and reclaim, or tasks do in the simulation.

use super::commit::Committer;
use super::queue::CommitQueue;
use super::reclaim::{ReclaimState, Reclaimer};
use super::sweep::SweeperState;
use super::{Replica, ReplicaError, Workers};
use crate::clock::Clock;
use crate::crash;
use crate::sched::{self, Turns};
use crate::storage::EngineError;
use crate::supervise::{Part, Thread};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long the shutdown of the node waits for tables that are being rewritten.
const RECLAIM_END_MAX: Duration = Duration::from_secs(3);
const RECLAIM_END_LOOK: Duration = Duration::from_millis(10);

/// The replica's threads; dropping them commits the queued writes and ends the threads.
pub struct ReplicaThreads {
    pub(super) queue: Arc<CommitQueue>,
    pub(super) sweeper: Arc<SweeperState>,
    pub(super) reclaimer: Arc<ReclaimState>,
    pub(super) threads: Vec<Thread>,
    pub(super) reclaims: Option<Thread>,
    pub(super) tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl ReplicaThreads {
    /// Commits the queued writes and ends the replica's work, where it runs as tasks.
    ///
    /// # Cancel safety
    /// Dropping the future ends the work at once, as a crash would.
    pub async fn finish(mut self) {
        self.sweeper.stop();
        self.queue.close();
        for task in self.tasks.drain(..) {
            let _ = task.await;
        }
    }
}

impl ReplicaThreads {
    /// Starts the commit thread, the sweeper and the reclaimer, or the tasks in their place.
    pub(super) fn start(
        mut self,
        replica: &Replica,
        clock: Arc<dyn Clock>,
        mut committer: Committer,
        reclaimer: Reclaimer,
    ) -> Result<Self, ReplicaError> {
        let (queue, sweeper, swept) = (Arc::clone(&self.queue), Arc::clone(&self.sweeper), replica.clone());
        let supervisor = replica.supervisor();
        let failed = |source| EngineError::of_io("start a thread of the store", source);
        match replica.shared.workers {
            Workers::Threads => {
                let commit = move || {
                    sched::take_own(Turns::Prompt);
                    while let Some(group) = queue.take(committer.idle_wait(), committer.gather_wait()) {
                        crash::step(Part::Commit);
                        committer.commit(group);
                    }
                    committer.finish();
                };
                self.threads.push(supervisor.thread(Part::Commit, None, commit).map_err(failed)?);
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
                let runtime = runtime.map_err(failed)?;
                let sweep = move || runtime.block_on(sweeper.run(&swept, &*clock));
                self.threads.push(supervisor.thread_again(Part::Sweep, sweep).map_err(failed)?);
                let reclaims = supervisor.thread_again(Part::Reclaim, move || reclaimer.run());
                self.reclaims = Some(reclaims.map_err(failed)?);
            }
            Workers::Tasks => {
                self.tasks.push(tokio::task::spawn_local(async move {
                    while let Some(group) = queue.take_async(committer.idle_wait()).await {
                        let latency = committer.latency();
                        if !latency.is_zero() {
                            tokio::time::sleep(latency).await;
                        }
                        committer.commit(group);
                    }
                    committer.finish();
                }));
                self.tasks.push(tokio::task::spawn_local(async move { sweeper.run(&swept, &*clock).await }));
            }
        }
        Ok(self)
    }

    /// Waits up to [`RECLAIM_END_MAX`] for the reclaimer's current piece of work. It need not finish: the engine does
    /// not use the new tables before it has, and keeps the old ones until then.
    fn end_reclaimer(&mut self) {
        let Some(thread) = self.reclaims.take() else { return };
        let mut waited = Duration::ZERO;
        while !thread.is_finished() && waited < RECLAIM_END_MAX {
            #[expect(clippy::disallowed_methods, reason = "the node ends, and this thread serves nobody")]
            thread::sleep(RECLAIM_END_LOOK);
            waited += RECLAIM_END_LOOK;
        }
        if thread.is_finished() {
            thread.join();
        } else {
            tracing::info!(
                "the rewrite of tables is stopped with the process: it begins again after a start"
            );
        }
    }
}

impl Drop for ReplicaThreads {
    fn drop(&mut self) {
        self.threads.iter().chain(&self.reclaims).for_each(Thread::may_end);
        self.sweeper.stop();
        self.reclaimer.stop();
        self.queue.close();
        self.threads.drain(..).for_each(Thread::join);
        self.end_reclaimer();
        for task in self.tasks.drain(..) {
            task.abort();
        }
    }
}
