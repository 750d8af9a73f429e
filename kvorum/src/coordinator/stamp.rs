//! Stamps: where versions are born, and nowhere else.

use super::CoordinatorError;
use crate::canary::{self, Canary};
use crate::clock::Clock;
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
    /// Versions carry the node's id mixed with its store's: a store that takes the place of a lost one does not know
    /// the lease, and must not repeat a version that the lost one stamped.
    pub fn resume(node: NodeId, lease: UnixMillis, clock: Arc<dyn Clock>, replica: Replica) -> Self {
        let [high, low] =
            [replica.store_id() >> 64, replica.store_id()].map(|word| word & u128::from(u64::MAX));
        let store = u64::try_from(high ^ low).unwrap_or(0);
        Self { clock, replica, hlc: Mutex::new(Hlc::resume(NodeId(node.0 ^ store), lease)) }
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
