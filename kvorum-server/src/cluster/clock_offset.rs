//! How far a peer's wall clock is from this node's, estimated from exchanges: a pure value, without clock or socket.
//!
//! A peer reads its clock at some moment between a question and its answer. Half of the time between the two bounds the
//! error, so a quick exchange is precise and a slow one is not. NTP's clock filter (RFC 5905, 10) keeps the latest few
//! exchanges and believes the quickest. A process that was stopped for 3 s in the middle sees a slow exchange, not a
//! wrong clock. A clock reading that came one way (in a handshake, or with a peer's ping) has no such bound and is not
//! used.
//!
//! Times of day are compared through the monotonic clock, because either wall clock may be set at any moment:
//! - the peer's: an exchange that contradicts an older one replaces it;
//! - this node's: until the next exchange, the offset lies anywhere between the offsets by the old and the new clock.

use kvorum_core::UnixMillis;
use std::collections::VecDeque;
use std::time::Duration;

/// Exchanges that are kept, as many as in NTP's filter. With two a second they cover the latest 4 s.
const EXCHANGES_LEN_MAX: usize = 8;
/// An exchange of this age no longer counts.
const EXCHANGE_AGE_MAX: Duration = Duration::from_mins(1);
/// How fast two clocks may drift apart, in parts per million: twice the rate at which a system slews its clock at most.
const DRIFT_PPM: u64 = 1000;
/// The error of a difference of two readings: both clocks are read in whole milliseconds.
const READING_ERROR_MICROS: i64 = 1000;

/// One question to a peer, and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// When the question was sent, by the monotonic clock.
    pub asked: Duration,
    /// When the answer had come and `ours` had been read, by the monotonic clock.
    pub answered: Duration,
    /// The time of day of this node, read between the two.
    pub ours: UnixMillis,
    /// The time of day of the peer, read between the two.
    pub theirs: UnixMillis,
}

/// How far a peer's clock is ahead of this node's; negative when the peer's is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockOffset {
    /// The likeliest offset, in milliseconds.
    pub millis: i64,
    /// The true offset differs from it by this much at most, in milliseconds.
    pub error_millis: u64,
}

impl ClockOffset {
    /// Whether the clocks are further apart than `bound_millis`, whatever the error.
    pub fn is_surely_over(self, bound_millis: u64) -> bool {
        self.millis.unsigned_abs().saturating_sub(self.error_millis) > bound_millis
    }

    /// Whether the clocks are at most `bound_millis` apart, whatever the error.
    pub fn is_surely_within(self, bound_millis: u64) -> bool {
        self.millis.unsigned_abs().saturating_add(self.error_millis) <= bound_millis
    }
}

/// The latest exchanges with one peer.
#[derive(Debug, Clone, Default)]
pub struct ClockFilter {
    exchanges: VecDeque<Exchange>,
}

impl ClockFilter {
    /// Adds the latest exchange and drops those that are too old or contradict it.
    pub fn note(&mut self, exchange: Exchange) {
        let (now, wall) = (exchange.answered, exchange.ours);
        let latest = Interval::of(&exchange, now, wall);
        self.exchanges.retain(|older| {
            now.saturating_sub(older.answered) <= EXCHANGE_AGE_MAX
                && Interval::of(older, now, wall).meets(latest)
        });
        if self.exchanges.len() == EXCHANGES_LEN_MAX {
            self.exchanges.pop_front();
        }
        self.exchanges.push_back(exchange);
    }

    /// The offset by the most precise exchange, at the monotonic time `now` and the time of day `wall`; `None` without
    /// a recent exchange.
    pub fn offset(&self, now: Duration, wall: UnixMillis) -> Option<ClockOffset> {
        let recent = self
            .exchanges
            .iter()
            .filter(|exchange| now.saturating_sub(exchange.answered) <= EXCHANGE_AGE_MAX);
        let intervals = recent.map(|exchange| Interval::of(exchange, now, wall));
        let best = intervals.min_by_key(|interval| interval.high.saturating_sub(interval.low))?;
        let (middle, half) = (
            best.low.saturating_add(best.high.saturating_sub(best.low) / 2),
            best.high.saturating_sub(best.low) / 2,
        );
        let error_millis = u64::try_from(half).unwrap_or(0).div_ceil(1000);
        // One millisecond more, because the offset itself is rounded.
        Some(ClockOffset { millis: rounded_millis(middle), error_millis: error_millis.saturating_add(1) })
    }
}

/// The bounds of the true offset, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Interval {
    low: i64,
    high: i64,
}

impl Interval {
    /// The bounds by `exchange`, at the monotonic time `now` and the time of day `wall`.
    fn of(exchange: &Exchange, now: Duration, wall: UnixMillis) -> Self {
        let age = now.saturating_sub(exchange.answered);
        let delay = micros(exchange.answered.saturating_sub(exchange.asked));
        let drift = micros(age).saturating_mul(i64::try_from(DRIFT_PPM).unwrap_or(i64::MAX)) / 1_000_000;
        // The peer read its clock up to `delay` before `ours` was read.
        let difference = difference_micros(exchange.theirs, exchange.ours);
        let low = difference.saturating_sub(READING_ERROR_MICROS).saturating_sub(drift);
        let high =
            difference.saturating_add(delay).saturating_add(READING_ERROR_MICROS).saturating_add(drift);
        // How far this node's clock has moved beyond the time that has passed. If the clock was set, the offset has
        // shrunk by that much. If the machine was suspended, the monotonic clock stood still and the offset is
        // unchanged.
        let moved = difference_micros(wall, exchange.ours).saturating_sub(micros(age));
        if moved.unsigned_abs() <= READING_ERROR_MICROS.unsigned_abs() {
            return Self { low, high };
        }
        Self { low: low.saturating_sub(moved.max(0)), high: high.saturating_sub(moved.min(0)) }
    }

    fn meets(self, other: Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// `a` minus `b`, saturating: a reading from a peer may be any number.
fn difference_micros(a: UnixMillis, b: UnixMillis) -> i64 {
    let difference = (i128::from(a.0) - i128::from(b.0)) * 1000;
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

fn rounded_millis(micros: i64) -> i64 {
    micros.saturating_add(if micros < 0 { -500 } else { 500 }) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BEGIN: u64 = 1_700_000_000_000;

    /// An exchange that begins `asked` ms into the test and takes `back` + `forth` ms, with a peer `offset` ms ahead.
    fn exchange(asked: u64, forth: u64, back: u64, offset: i64) -> Exchange {
        let answered = asked + forth + back;
        Exchange {
            asked: Duration::from_millis(asked),
            answered: Duration::from_millis(answered),
            ours: UnixMillis(BEGIN + answered),
            theirs: UnixMillis((BEGIN + asked + forth).checked_add_signed(offset).unwrap()),
        }
    }

    fn seen(filter: &ClockFilter, at: u64) -> ClockOffset {
        filter.offset(Duration::from_millis(at), UnixMillis(BEGIN + at)).unwrap()
    }

    /// Goal: a process that was stopped does not see a wrong clock.
    /// Method: quick exchanges, and one that takes 3 s, all of it before the peer reads its clock or all of it after.
    #[test]
    fn stopped_process_sees_no_wrong_clock() {
        for (forth, back) in [(3000, 0), (0, 3000)] {
            let mut filter = ClockFilter::default();
            filter.note(exchange(0, 1, 1, 0));
            filter.note(exchange(500, forth, back, 0));
            let offset = seen(&filter, 3600);
            assert!(offset.millis.abs() <= 2 && offset.error_millis <= 8, "{offset:?}");
        }
        // The very first exchange: the error is as large as the offset that it shows.
        for (forth, back) in [(3000, 0), (0, 3000)] {
            let mut filter = ClockFilter::default();
            filter.note(exchange(0, forth, back, 0));
            assert!(!seen(&filter, 3001).is_surely_over(0), "{:?}", seen(&filter, 3001));
        }
    }

    /// Goal: the next exchange shows that a peer's clock was set, and when it is set back, the one after.
    #[test]
    fn peer_that_is_set_is_seen_at_once() {
        let mut filter = ClockFilter::default();
        for at in 0..8 {
            filter.note(exchange(at * 500, 0, 1, 3));
        }
        filter.note(exchange(4000, 10, 10, 7_200_000));
        let offset = seen(&filter, 4021);
        assert!((offset.millis - 7_200_000).abs() <= 11 && offset.is_surely_over(60_000), "{offset:?}");
        filter.note(exchange(4500, 0, 1, 3));
        assert!(seen(&filter, 4502).is_surely_within(10), "{:?}", seen(&filter, 4502));
    }

    /// Goal: when this node's own clock moves, the offset is neither surely far nor surely near until the next exchange.
    #[test]
    fn own_clock_that_moves_makes_the_offset_unsure() {
        for moved in [7_200_000_i64, -7_200_000] {
            let mut filter = ClockFilter::default();
            filter.note(exchange(0, 1, 1, 0));
            let wall = UnixMillis((BEGIN + 100).checked_add_signed(moved).unwrap());
            let offset = filter.offset(Duration::from_millis(100), wall).unwrap();
            assert!(!offset.is_surely_over(60_000) && !offset.is_surely_within(60_000), "{offset:?}");
            let mut next = exchange(500, 1, 1, 0);
            next.ours = UnixMillis(next.ours.0.checked_add_signed(moved).unwrap());
            filter.note(next);
            let offset = filter.offset(next.answered, next.ours).unwrap();
            assert!(offset.is_surely_over(60_000) && (offset.millis + moved).abs() <= 5, "{offset:?}");
        }
    }

    /// An old exchange no longer counts, and a peer's reading may be any number.
    #[test]
    fn old_words_and_wild_words() {
        let mut filter = ClockFilter::default();
        assert_eq!(filter.offset(Duration::ZERO, UnixMillis(BEGIN)), None);
        filter.note(exchange(0, 1, 1, 0));
        assert!(filter.offset(Duration::from_secs(59), UnixMillis(BEGIN + 59_000)).is_some());
        assert_eq!(filter.offset(Duration::from_secs(61), UnixMillis(BEGIN + 61_000)), None);
        for theirs in [0, u64::MAX] {
            let mut wild = exchange(1000, 1, 1, 0);
            wild.theirs = UnixMillis(theirs);
            filter.note(wild);
            assert!(seen(&filter, 1003).is_surely_over(60_000));
        }
    }

    proptest! {
        /// With any delays in either direction, the true offset is within the error of the estimate. The filter keeps
        /// no more exchanges than its maximum.
        #[test]
        fn true_offset_is_within_the_error(
            offset in -100_000_i64..100_000,
            delays in prop::collection::vec((0_u64..3000, 0_u64..3000, 0_u64..2000), 1..30),
        ) {
            let mut filter = ClockFilter::default();
            let mut at = 0;
            for (forth, back, pause) in delays {
                filter.note(exchange(at, forth, back, offset));
                at += forth + back + pause;
                let estimate = seen(&filter, at);
                prop_assert!(
                    (estimate.millis - offset).unsigned_abs() <= estimate.error_millis, "{estimate:?}"
                );
            }
            prop_assert!(filter.exchanges.len() <= EXCHANGES_LEN_MAX);
        }
    }
}
