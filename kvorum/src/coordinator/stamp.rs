//! Stamps: where versions are born, and nowhere else.

use super::CoordinatorError;
use crate::canary::{self, Canary};
use crate::clock::{Clock, Rng};
use crate::replica::Replica;
use kvorum_core::hlc::LeaseNeeded;
use kvorum_core::{Hlc, NodeId, UnixMillis, Version};
use std::sync::{Arc, Mutex, PoisonError};

/// This is the node's clock for writes, shared by its threads.
pub struct Stamps {
    clock: Arc<dyn Clock>,
    replica: Replica,
    // Guards the clock; held for one stamp, which is a few instructions.
    hlc: Mutex<Hlc>,
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
        rng: &dyn Rng,
        replica: Replica,
    ) -> Self {
        let mut life = [0; 8];
        rng.fill(&mut life);
        let writer = NodeId(node.0 ^ u64::from_be_bytes(life));
        Self { clock, replica, hlc: Mutex::new(Hlc::resume(writer, lease)) }
    }

    /// A version above every one stamped or seen before, within a stored lease.
    pub(super) async fn next(&self) -> Result<Version, CoordinatorError> {
        loop {
            let stamped = self.lock().stamp(self.clock.wall());
            match stamped {
                Ok(version) => return Ok(version),
                Err(LeaseNeeded { until }) => {
                    self.replica.store_lease(until).await?;
                    self.lock().extend(until);
                }
            }
        }
    }

    /// A clock word that every later stamp is above, while the clock of this node does not go back.
    pub(super) fn reading(&self) -> u64 {
        self.lock().reading(self.clock.wall())
    }

    /// The clock word of the highest version that was stamped here or met, in this life.
    pub(super) fn met(&self) -> u64 {
        self.lock().met()
    }

    /// Makes every later stamp higher than `version`.
    pub fn observe(&self, version: Version) {
        if canary::is(Canary::LocalClockOnly) {
            return;
        }
        self.lock().observe(version);
    }

    /// The lease that was stored last: no version stamped here is later.
    pub(super) fn lease(&self) -> UnixMillis {
        self.lock().lease()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Hlc> {
        self.hlc.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
