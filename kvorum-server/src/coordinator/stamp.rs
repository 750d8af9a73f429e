//! Stamps: the only place where versions are made.

use super::CoordinatorError;
use crate::canary::{self, Canary};
use crate::clock::{Clock, Rng, TimestampBound};
use crate::replica::{LeaseStored, Replica, ReplicaError};
use kvorum_core::hlc::StampError;
use kvorum_core::{Hlc, NodeId, UnixMillis, Version};
use std::sync::{Arc, Mutex, PoisonError};

/// The node's clock for writes, shared by its threads.
pub struct Stamps {
    node: NodeId,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    timestamps: Arc<TimestampBound>,
    replica: Replica,
    // Guards the clock and the order in which leases are stored. Held for one stamp, which is a few instructions.
    state: Mutex<State>,
}

struct State {
    hlc: Hlc,
    /// The next lease, while it is being stored.
    renewal: Option<LeaseStored>,
}

impl Stamps {
    /// The clock of `node`, resumed after the lease that the previous run stored.
    ///
    /// Versions carry the node's id mixed with a random number of this run. A store that replaces a lost one does not
    /// know the lease, and an older copy knows an older lease: neither may repeat a version that was stamped since.
    pub fn resume(
        node: NodeId,
        lease: UnixMillis,
        clock: Arc<dyn Clock>,
        timestamps: Arc<TimestampBound>,
        rng: Arc<dyn Rng>,
        replica: Replica,
    ) -> Self {
        let hlc = Hlc::resume(new_writer(node, &*rng), lease);
        let state = Mutex::new(State { hlc, renewal: None });
        Self { node, clock, rng, timestamps, replica, state }
    }

    /// Makes a version above `above` and above every version stamped or seen before, within a stored lease. It waits
    /// for the disk only if nothing has been stamped for most of a second, or if the disk takes that long.
    ///
    /// If this node's clock was set back, versions seen before no longer count; `above` does.
    ///
    /// # Errors
    /// [`CoordinatorError::ClockOff`], [`CoordinatorError::ClockExhausted`], and errors of storing a lease.
    pub(crate) async fn next(&self, above: Version) -> Result<Version, CoordinatorError> {
        let clock_off = || CoordinatorError::ClockOff { limit_millis: self.timestamps.limit_millis() };
        loop {
            let stored = {
                let mut state = self.lock();
                state.take_renewal();
                let now = self.clock.wall();
                // Check the clock after reading it: a clock that is set in between is not trusted either.
                if self.timestamps.stands_down() {
                    return Err(clock_off());
                }
                self.return_to_the_wall_clock(&mut state);
                if !canary::is(Canary::LocalClockOnly) {
                    self.timestamps.check(above.clock()).map_err(|_| clock_off())?;
                    state.hlc.observe(above);
                }
                match state.hlc.stamp(now) {
                    Ok(version) => {
                        self.renew(&mut state);
                        return Ok(version);
                    }
                    Err(StampError::LeaseNeeded { until }) => self.replica.begin_lease(until)?,
                    Err(StampError::Exhausted) => return Err(CoordinatorError::ClockExhausted),
                }
            };
            let until = stored.wait().await.map_err(|error| match error {
                // Whether the lease was stored does not matter to the write, which has not begun.
                ReplicaError::DiskFilledUp => ReplicaError::DiskFull,
                ReplicaError::ShortMet { shortage } => ReplicaError::Short { shortage },
                error => error,
            })?;
            self.lock().hlc.extend(until);
        }
    }

    /// Restarts the clock if this node's wall clock was set back by more than `--clock-offset-limit`: no other node
    /// would take a stamp so far ahead. The new stamps carry another writer id, so none repeats an earlier one. If such
    /// a stamp meets a record stamped before, that record's replicas do not confirm the write.
    fn return_to_the_wall_clock(&self, state: &mut State) {
        if self.timestamps.check(state.hlc.met()).is_ok() {
            return;
        }
        tracing::warn!(
            "this node's clock was set back by more than --clock-offset-limit: versions continue from the new time; \
             keys whose versions are in the future cannot be written until then (or run kvorum repair \
             --drop-unbelievable)"
        );
        *state = State { hlc: Hlc::resume(new_writer(self.node, &*self.rng), UnixMillis(0)), renewal: None };
    }

    /// Begins to store the next lease, if it is time and it is not being stored yet.
    fn renew(&self, state: &mut State) {
        if state.renewal.is_none()
            && let Some(until) = state.hlc.renewal()
        {
            // Ignore an error here: a write that needs the lease tries again and reports why it failed.
            state.renewal = self.replica.begin_lease(until).ok();
        }
    }

    /// Stores the lease again, in a store that may not have it.
    pub(crate) async fn store_lease(&self) -> Result<(), ReplicaError> {
        let stored = self.replica.begin_lease(self.lock().lease())?;
        stored.wait().await.map(drop)
    }

    /// A timestamp below every later stamp, as long as this node's clock does not go back.
    pub(crate) fn reading(&self) -> u64 {
        self.lock().hlc.reading(self.clock.wall())
    }

    /// The timestamp of the highest version that was stamped here or met in this run.
    pub(crate) fn met(&self) -> u64 {
        self.lock().hlc.met()
    }

    /// Makes every later stamp higher than `version`, unless it is too far ahead to be believed.
    pub fn observe(&self, version: Version) {
        if canary::is(Canary::LocalClockOnly) || self.timestamps.check(version.clock()).is_err() {
            return;
        }
        self.lock().hlc.observe(version);
    }

    /// A lease that is stored or about to be: no version stamped here is later.
    pub(crate) fn lease(&self) -> UnixMillis {
        self.lock().lease()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The node's id mixed with a random number of this run.
fn new_writer(node: NodeId, rng: &dyn Rng) -> NodeId {
    let mut life = [0; 8];
    rng.fill(&mut life);
    NodeId(node.0 ^ u64::from_be_bytes(life))
}

impl State {
    /// Switches to the next lease if it has been stored by now.
    fn take_renewal(&mut self) {
        if let Some(outcome) = self.renewal.as_mut().and_then(LeaseStored::poll) {
            self.renewal = None;
            if let Ok(until) = outcome {
                self.hlc.extend(until);
            }
        }
    }

    fn lease(&self) -> UnixMillis {
        let renewed = self.renewal.as_ref().map(|renewal| renewal.until);
        renewed.map_or(self.hlc.lease(), |until| until.max(self.hlc.lease()))
    }
}
