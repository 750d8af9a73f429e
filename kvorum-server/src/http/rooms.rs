//! The layers below `http`, and the epoch as answers show it.

use super::topology;
use crate::coordinator::Shared;
use crate::metrics::StoreMetrics;
use crate::replica::Replica;
use crate::worker::Pools;
use http::HeaderValue;
use kvorum_core::agreement::Epoch;
use std::sync::{Arc, Mutex, PoisonError};

/// The layers below `http`, which a request goes down to.
pub struct Rooms {
    /// The state that the threads' coordinators share.
    pub shared: Arc<Shared>,
    /// The node's replica, for its gauges.
    pub replica: Replica,
    /// The worker pools, for their gauges.
    pub pools: Arc<Pools>,
    /// The store's counters.
    pub store_metrics: Arc<StoreMetrics>,
    // Guards the epoch as answers show it. Held to compare a number and to copy a pointer.
    epoch: Mutex<(Epoch, HeaderValue)>,
}

impl Rooms {
    /// The layers of a node whose store is open.
    pub fn new(
        shared: Arc<Shared>,
        replica: Replica,
        pools: Arc<Pools>,
        store_metrics: Arc<StoreMetrics>,
    ) -> Self {
        let epoch = Mutex::new((shared.cluster.epoch(), epoch_header(&shared)));
        Self { shared, replica, pools, store_metrics, epoch }
    }

    /// The epoch that the node works with, as answers show it.
    pub(super) fn epoch(&self) -> HeaderValue {
        let now = self.shared.cluster.epoch();
        let mut shown = self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.0 != now {
            *shown = (now, epoch_header(&self.shared));
        }
        shown.1.clone()
    }
}

fn epoch_header(shared: &Shared) -> HeaderValue {
    let epoch = HeaderValue::try_from(topology::epoch(&shared.cluster));
    epoch.unwrap_or_else(|_| HeaderValue::from_static(""))
}
