//! Stamps: where versions are born, and nowhere else.

use super::CoordinatorError;
use crate::canary::{self, Canary};
use crate::clock::{Clock, Rng, TimestampBound};
use crate::replica::{LeaseStored, Replica, ReplicaError};
use kvorum_core::hlc::StampError;
use kvorum_core::{Hlc, NodeId, UnixMillis, Version};
use std::sync::{Arc, Mutex, PoisonError};

/// This is the node's clock for writes, shared by its threads.
pub struct Stamps {
    node: NodeId,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    timestamps: Arc<TimestampBound>,
    replica: Replica,
    // Guards the clock, and that leases are stored in their order; held for one stamp, which is a few instructions.
    state: Mutex<State>,
}

struct State {
    hlc: Hlc,
    /// The next lease on its way to the disk.
    renewal: Option<LeaseStored>,
}

impl Stamps {
    /// The clock of `node`, resumed behind the lease that the life before stored.
    ///
    /// Versions carry the node's id mixed with a word of this life's own: a store that takes the place of a lost one does
    /// not know the lease, an older copy knows an older one, and neither may repeat a version that was stamped since.
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

    /// A version above `above` and every one stamped or seen before, within a stored lease. It waits for the disk only when
    /// nothing has been stamped for most of a second, or the disk is that slow.
    ///
    /// Where this node's clock was set back, what was seen before counts no more; `above` does.
    ///
    /// # Errors
    /// [`CoordinatorError::ClockOff`], [`CoordinatorError::ClockExhausted`], and what keeps a lease from being stored.
    pub(super) async fn next(&self, above: Version) -> Result<Version, CoordinatorError> {
        let clock_off = || CoordinatorError::ClockOff { limit_millis: self.timestamps.limit_millis() };
        loop {
            let stored = {
                let mut state = self.lock();
                state.take_renewal();
                let now = self.clock.wall();
                // Judged after it was read: a clock that is set in between is not trusted either.
                if self.timestamps.stands_down() {
                    return Err(clock_off());
                }
                self.return_to_the_wall_clock(&mut state);
                self.timestamps.check(above.clock()).map_err(|_| clock_off())?;
                state.hlc.observe(above);
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
                // Whether the lease was stored does not matter to the write, of which nothing has begun.
                ReplicaError::DiskFilledUp => ReplicaError::DiskFull,
                ReplicaError::ShortMet { shortage } => ReplicaError::Short { shortage },
                error => error,
            })?;
            self.lock().hlc.extend(until);
        }
    }

    /// Begins the clock anew where this node's wall clock was set back by more than `--clock-offset-limit`: no other node
    /// would take a stamp that is so far ahead. The new stamps are another writer's, so none is given out twice; where one
    /// of them meets a record of before, that record's replicas do not confirm it.
    fn return_to_the_wall_clock(&self, state: &mut State) {
        if self.timestamps.check(state.hlc.met()).is_ok() {
            return;
        }
        tracing::warn!(
            "this node's clock was set back by more than --clock-offset-limit: versions go on from the new time; keys \
             written in the future cannot be written again until that time has come (kvorum repair \
             --drop-unbelievable)"
        );
        *state = State { hlc: Hlc::resume(new_writer(self.node, &*self.rng), UnixMillis(0)), renewal: None };
    }

    /// Has the next lease stored, if it is time to and nobody has.
    fn renew(&self, state: &mut State) {
        if state.renewal.is_none()
            && let Some(until) = state.hlc.renewal()
        {
            // Whoever needs it and cannot have it is told why.
            state.renewal = self.replica.begin_lease(until).ok();
        }
    }

    /// Stores the lease anew, in a store that may not have it.
    pub(super) async fn store_lease(&self) -> Result<(), ReplicaError> {
        let stored = self.replica.begin_lease(self.lock().lease())?;
        stored.wait().await.map(drop)
    }

    /// A clock word that every later stamp is above, while the clock of this node does not go back.
    pub(super) fn reading(&self) -> u64 {
        self.lock().hlc.reading(self.clock.wall())
    }

    /// The clock word of the highest version that was stamped here or met, in this life.
    pub(super) fn met(&self) -> u64 {
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
    pub(super) fn lease(&self) -> UnixMillis {
        self.lock().lease()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The node's id mixed with a word that no other life of it has.
fn new_writer(node: NodeId, rng: &dyn Rng) -> NodeId {
    let mut life = [0; 8];
    rng.fill(&mut life);
    NodeId(node.0 ^ u64::from_be_bytes(life))
}

impl State {
    /// Goes on to the next lease if it has been stored by now.
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
