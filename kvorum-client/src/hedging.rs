//! Second requests for slow reads, and the budget that bounds them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A second request to another node for reads that are slow; the first answer wins, the other attempt is
/// dropped.
///
/// It cuts the tail of latencies at the price of more requests. The budget bounds that price: a cluster that
/// is slow as a whole does not get twice as many requests.
///
/// Method: J. Dean, L. A. Barroso, "The Tail at Scale", 2013.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hedging {
    /// How long only the first node is asked; best near the 95th or 99th percentile of the cluster's latency.
    pub after: Duration,
    /// The most second requests per read, over time: above 0 and at most 1; 0.05 is 5 %.
    pub budget: f64,
}

/// The cost of one second request, in the units that reads earn.
const ONE: u64 = 1_000_000;

/// The most that can be saved: a quiet hour must not pay for a burst that doubles the load of a cluster in
/// trouble.
const SAVED_MAX: u64 = 10 * ONE;

/// The budget for second requests: each read earns a part of one, up to [`SAVED_MAX`].
#[derive(Debug)]
pub(crate) struct Budget {
    after: Duration,
    earned: u64,
    saved: AtomicU64,
}

impl Budget {
    /// `None` where the budget is out of range.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "above 0 and at most a million"
    )]
    pub(crate) fn new(hedging: Hedging) -> Option<Self> {
        let is_in_range = hedging.budget > 0.0 && hedging.budget <= 1.0;
        let earned = (hedging.budget * ONE as f64).round() as u64;
        is_in_range.then(|| Self { after: hedging.after, earned, saved: AtomicU64::new(ONE) })
    }

    pub(crate) fn after(&self) -> Duration {
        self.after
    }

    pub(crate) fn earn(&self) {
        let add = |saved: u64| Some(saved.saturating_add(self.earned).min(SAVED_MAX));
        let _ = self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Spends the cost of one second request. Returns whether the budget had enough.
    pub(crate) fn spend(&self) -> bool {
        self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |saved| saved.checked_sub(ONE)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(share: f64) -> Option<Budget> {
        Budget::new(Hedging { after: Duration::ZERO, budget: share })
    }

    #[test]
    fn second_requests_are_a_share_of_reads() {
        let budget = budget(0.05).unwrap();
        let reads = 10_000;
        let spent = (0..reads)
            .filter(|_| {
                budget.earn();
                budget.spend()
            })
            .count();
        // The first is free, then one in twenty.
        assert_eq!(spent, 1 + reads / 20);
        // However long nothing is spent, at most this many are saved.
        (0..reads).for_each(|_| budget.earn());
        assert_eq!((0..100).filter(|_| budget.spend()).count(), 10);
    }

    #[test]
    fn a_budget_has_its_range() {
        for (share, expect) in [(0.0, false), (-1.0, false), (1.0, true), (1.1, false), (f64::NAN, false)] {
            assert_eq!(budget(share).is_some(), expect, "{share}");
        }
    }
}
