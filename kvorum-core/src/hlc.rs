//! The hybrid logical clock that stamps writes.
//!
//! Algorithm: Kulkarni, Demirbas et al. 2014, section 3: the clock is the maximum of the physical clock and of
//! everything seen, with a counter for what happens within one millisecond. Here the counter overflowing carries
//! into the milliseconds, so stamping never waits for time to pass.
//!
//! The clock's *lease* makes it monotonic over restarts, whatever the physical clock does meanwhile. No stamp
//! beyond the lease is given out, and the lease is stored durably before it is raised here. A restarted node
//! begins above the lease of its previous run. The next lease is asked for before this one is used up
//! ([`Hlc::renewal`]), so that no stamp waits for the disk while stamps are made without a long pause.

use crate::version::{MILLIS_MAX, NodeId, UnixMillis, Version};

/// How far ahead a stored lease reaches, in milliseconds. The price: after a restart the clock may begin this
/// much in the future, and a TTL may end this much late. The gain: one stored lease per second instead of one
/// per write.
pub const LEASE_MILLIS: u64 = 1000;

/// The next lease is asked for when only this much of the current one is left: a disk's slow moments are
/// shorter.
const RENEWAL_MILLIS: u64 = LEASE_MILLIS / 4;

/// The highest timestamp that a node accepts at physical time `now` (`--clock-offset-limit`): a node whose
/// clock is at most `limit_millis` ahead never stamps above it.
///
/// One lease is added, because a clock that was just resumed begins that much ahead of its physical clock.
pub fn believed_max(now: UnixMillis, limit_millis: u64) -> u64 {
    let millis = now.saturating_add(limit_millis).saturating_add(LEASE_MILLIS);
    Version::new(millis, u16::MAX, NodeId(0)).clock()
}

/// A clock that stamps writes with rising versions, and learns of versions seen elsewhere.
///
/// A plain value: the node guards it and brings the time.
#[derive(Debug, Clone)]
pub struct Hlc {
    node: NodeId,
    last: u64,
    lease: UnixMillis,
}

/// Why a write could not be stamped. The clock is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StampError {
    /// The stamp lies beyond the lease: store a lease up to `until`, call [`Hlc::extend`], stamp again.
    LeaseNeeded {
        /// The lease to store durably.
        until: UnixMillis,
    },
    /// The clock has reached the highest version there can be: nothing can be stamped above it.
    Exhausted,
}

impl Hlc {
    /// A clock of `node` whose every stamp is later than `lease`, the lease stored by the previous run (0 for
    /// none).
    pub fn resume(node: NodeId, lease: UnixMillis) -> Self {
        let last = if lease.0 == 0 { 0 } else { Version::new(lease, u16::MAX, node).clock() };
        Self { node, last, lease }
    }

    /// Stamps a write at physical time `now`: a version higher than every one stamped or observed before.
    ///
    /// # Errors
    /// [`StampError::LeaseNeeded`] when the stamp would lie beyond the lease, [`StampError::Exhausted`] when no version is
    /// left above the last one.
    pub fn stamp(&mut self, now: UnixMillis) -> Result<Version, StampError> {
        let physical = Version::new(now, 0, self.node).clock();
        let clock = physical.max(self.last.checked_add(1).ok_or(StampError::Exhausted)?);
        let version = Version::from_words(clock, self.node.0);
        if version.millis() > self.lease {
            let until = version.millis().saturating_add(LEASE_MILLIS);
            return Err(StampError::LeaseNeeded { until: UnixMillis(until.0.min(MILLIS_MAX)) });
        }
        self.last = clock;
        Ok(version)
    }

    /// The lease to store next, once at most a quarter of this one is left. The caller need not wait for it.
    pub fn renewal(&self) -> Option<UnixMillis> {
        let reached = Version::from_words(self.last, self.node.0).millis();
        let is_near = reached.saturating_add(RENEWAL_MILLIS) > self.lease;
        is_near.then(|| UnixMillis(reached.saturating_add(LEASE_MILLIS).0.min(MILLIS_MAX)))
    }

    /// The timestamp that the clock has reached at physical time `now`. Later stamps are above it, unless the
    /// physical clock goes back before one is made.
    pub fn reading(&self, now: UnixMillis) -> u64 {
        Version::new(now, 0, self.node).clock().saturating_sub(1).max(self.last)
    }

    /// The timestamp of the highest version stamped or observed.
    pub fn met(&self) -> u64 {
        self.last
    }

    /// Makes every later stamp higher than `version`. Cheap, idempotent, order-independent.
    pub fn observe(&mut self, version: Version) {
        self.last = self.last.max(version.clock());
    }

    /// The lease: no stamp so far is later.
    pub fn lease(&self) -> UnixMillis {
        self.lease
    }

    /// Raises the lease to `until`, which must have been stored durably; a lower one changes nothing.
    pub fn extend(&mut self, until: UnixMillis) {
        self.lease = self.lease.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stamp(clock: &mut Hlc, now: u64) -> Version {
        loop {
            match clock.stamp(UnixMillis(now)) {
                Ok(version) => return version,
                Err(StampError::LeaseNeeded { until }) => clock.extend(until),
                Err(StampError::Exhausted) => panic!("no version is left"),
            }
        }
    }

    /// Goal: a clock at its end returns an error, and never gives the same version twice. Method: the last version
    /// but one is observed; one more is left, and none above it.
    #[test]
    fn a_clock_at_its_end_is_an_error() {
        let mut clock = Hlc::resume(NodeId(1), UnixMillis(0));
        clock.extend(UnixMillis(MILLIS_MAX));
        clock.observe(Version::from_words(u64::MAX - 1, 9));
        assert_eq!(clock.stamp(UnixMillis(5)).map(Version::clock), Ok(u64::MAX));
        for _ in 0..2 {
            assert_eq!(clock.stamp(UnixMillis(5)), Err(StampError::Exhausted));
        }
        assert_eq!(clock.met(), u64::MAX);
        let resumed = Hlc::resume(NodeId(1), UnixMillis(MILLIS_MAX)).stamp(UnixMillis(5));
        assert_eq!(resumed, Err(StampError::Exhausted));
    }

    /// Goal: no clock that is at most the limit ahead stamps above the accepted maximum, resumed or not; and no
    /// timestamp exceeds all bounds. Method: both ends of a limit, and clocks at the end of time.
    #[test]
    fn what_is_believed_covers_every_clock_within_the_limit() {
        let (now, limit) = (1_000_000, 60_000);
        let mut resumed = Hlc::resume(NodeId(1), UnixMillis(now + limit + LEASE_MILLIS - 1));
        let fresh = stamp(&mut Hlc::resume(NodeId(1), UnixMillis(0)), now + limit);
        let max = believed_max(UnixMillis(now), limit);
        assert!(fresh.clock() <= max && stamp(&mut resumed, now + limit).clock() <= max);
        assert_eq!(Version::from_words(max + 1, 0).millis().0, now + limit + LEASE_MILLIS + 1);
        assert_eq!(believed_max(UnixMillis(u64::MAX), u64::MAX), u64::MAX);
    }

    /// The physical clock goes back by an hour over a restart: stamps still rise, because the lease was stored.
    #[test]
    fn restart_with_clock_an_hour_back_still_rises() {
        let mut before = Hlc::resume(NodeId(1), UnixMillis(0));
        let now = 10_000_000;
        let last = stamp(&mut before, now);
        let mut after = Hlc::resume(NodeId(1), before.lease);
        assert!(stamp(&mut after, now - 3_600_000) > last);
    }

    /// No stamp is ever beyond the lease, and a refused stamp does not move the clock.
    #[test]
    fn stamp_beyond_lease_is_refused() {
        let mut clock = Hlc::resume(NodeId(1), UnixMillis(0));
        assert_eq!(
            clock.stamp(UnixMillis(5)),
            Err(StampError::LeaseNeeded { until: UnixMillis(5 + LEASE_MILLIS) })
        );
        clock.extend(UnixMillis(6));
        assert_eq!(clock.stamp(UnixMillis(5)).map(|v| (v.millis().0, v.counter())), Ok((5, 0)));
        assert!(clock.stamp(UnixMillis(7)).is_err());
    }

    /// The next lease is asked for before this one ends, and reaches as far from there.
    #[test]
    fn renewal_comes_before_the_end() {
        let mut clock = Hlc::resume(NodeId(1), UnixMillis(0));
        clock.extend(UnixMillis(1000));
        let at = |clock: &mut Hlc, now: u64| {
            clock.stamp(UnixMillis(now)).unwrap();
            clock.renewal()
        };
        assert_eq!(at(&mut clock, 750), None);
        assert_eq!(at(&mut clock, 751), Some(UnixMillis(1751)));
        clock.extend(UnixMillis(1751));
        assert_eq!(at(&mut clock, 1000), None);
    }

    /// 70,000 stamps within one millisecond overflow the counter; they carry into the milliseconds and rise.
    #[test]
    fn counter_overflow_carries() {
        let mut clock = Hlc::resume(NodeId(1), UnixMillis(0));
        let mut last = Version::ZERO;
        for _ in 0..70_000 {
            let next = stamp(&mut clock, 1);
            assert!(next > last);
            last = next;
        }
        assert_eq!(last.millis(), UnixMillis(2));
    }

    proptest! {
        /// Stamps rise strictly and exceed all observed versions, whatever the physical clock does.
        #[test]
        fn stamps_rise(steps in prop::collection::vec((0..100_000u64, prop::option::of(0..200_000u64)), 1..100)) {
            let mut clock = Hlc::resume(NodeId(7), UnixMillis(0));
            let mut floor = Version::ZERO;
            for (now, seen) in steps {
                if let Some(ms) = seen {
                    let seen = Version::new(UnixMillis(ms), 3, NodeId(9));
                    clock.observe(seen);
                    floor = floor.max(seen);
                }
                let next = stamp(&mut clock, now);
                prop_assert!(next > floor, "{next} after {floor}");
                floor = next;
            }
        }
    }
}
