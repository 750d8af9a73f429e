//! When operations are due: plain arithmetic, no clock.
//!
//! A stream's operations are numbered slots; slot *n* is due *n* / rate after the start. The slots are dealt to
//! lanes (one per thread) in turn, so that every lane has the same rate and the stream's spacing stays even.

use std::time::Duration;

/// One lane's share of a stream's slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    lane: u64,
    lanes: u64,
    rate_per_second: u64,
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;

impl Schedule {
    /// The share of lane `lane` (from 0) of `lanes`, of a stream at `rate_per_second`; zeros count as 1.
    pub fn new(lane: u64, lanes: u64, rate_per_second: u64) -> Self {
        Self { lane, lanes: lanes.max(1), rate_per_second: rate_per_second.max(1) }
    }

    /// The stream's slot that is this lane's `nth` (from 0).
    pub fn slot(&self, nth: u64) -> u64 {
        nth.saturating_mul(self.lanes).saturating_add(self.lane)
    }

    /// When this lane's `nth` slot is due, from the start. Exact to the nanosecond: errors do not add up.
    pub fn due(&self, nth: u64) -> Duration {
        let nanos = u128::from(self.slot(nth)) * NANOS_PER_SECOND / u128::from(self.rate_per_second);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How many of `slots` slots of the stream are this lane's.
    pub fn share(&self, slots: u64) -> u64 {
        slots.saturating_sub(self.lane).div_ceil(self.lanes)
    }

    /// How many slots of a whole stream are due before `duration` has passed.
    pub fn slots_within(rate_per_second: u64, duration: Duration) -> u64 {
        let slots = (duration.as_nanos() * u128::from(rate_per_second)).div_ceil(NANOS_PER_SECOND);
        u64::try_from(slots).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the lanes together are the stream: every slot once, none after the end. Method: collect and sort.
    #[test]
    fn lanes_partition_the_stream() {
        for (lanes, rate, millis) in [(1, 1000, 1000), (2, 7, 1000), (3, 3333, 250), (5, 2, 1100)] {
            let duration = Duration::from_millis(millis);
            let total = Schedule::slots_within(rate, duration);
            let mut seen = Vec::new();
            for lane in 0..lanes {
                let schedule = Schedule::new(lane, lanes, rate);
                for nth in 0..schedule.share(total) {
                    assert!(schedule.due(nth) < duration, "slot due after the end");
                    seen.push((schedule.slot(nth), schedule.due(nth)));
                }
            }
            seen.sort_unstable();
            let slots: Vec<u64> = seen.iter().map(|&(slot, _)| slot).collect();
            assert_eq!(slots, (0..total).collect::<Vec<_>>(), "{lanes} lanes");
            assert!(seen.is_sorted_by_key(|&(_, due)| due));
            assert!(Schedule::new(0, 1, rate).due(total) >= duration, "the next slot belongs to the run");
        }
    }

    /// Goal: no drift. Method: a rate whose period is no whole number of nanoseconds, after a day.
    #[test]
    fn the_schedule_does_not_drift() {
        let schedule = Schedule::new(0, 1, 3_000);
        assert_eq!(schedule.due(1), Duration::from_nanos(333_333));
        assert_eq!(schedule.due(3_000 * 86_400), Duration::from_hours(24));
    }

    /// Goal: rates and ends are exact. Method: a table.
    #[test]
    fn slots_within_a_duration() {
        assert_eq!(Schedule::slots_within(8_000, Duration::from_mins(1)), 480_000);
        assert_eq!(Schedule::slots_within(2, Duration::from_millis(501)), 2);
        assert_eq!(Schedule::slots_within(2, Duration::from_millis(500)), 1);
    }
}
