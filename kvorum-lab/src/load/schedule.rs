//! When operations are due: plain arithmetic, no clock.
//!
//! A stream's operations are numbered slots, placed on a [`Timeline`] of stages. In a stage at a constant
//! rate, slot *n* is due *n* / rate after its begin; in a ramp, where the area under the rate reaches *n*.
//! The slots are dealt to lanes (one per thread) in turn, so that every lane has the same rate and the
//! stream's spacing stays even.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::units::{float, parse_count, parse_duration};

/// A part of a run whose rate is constant, or changes evenly from its begin to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Operations per second at its begin; at least 1.
    pub begin_per_second: u64,
    /// Operations per second at its end; at least 1.
    pub end_per_second: u64,
    /// How long it lasts.
    pub duration: Duration,
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;

impl Stage {
    /// A stage at one rate.
    pub const fn constant(rate_per_second: u64, duration: Duration) -> Self {
        Self { begin_per_second: rate_per_second, end_per_second: rate_per_second, duration }
    }

    /// How many slots are due before the stage has passed.
    pub fn slots(&self) -> u64 {
        // The area under a straight line is its duration times its mean rate; `twice` is double that.
        let twice = self.duration.as_nanos() * u128::from(self.begin_per_second + self.end_per_second);
        u64::try_from(twice.div_ceil(2 * NANOS_PER_SECOND)).unwrap_or(u64::MAX)
    }

    /// When the stage's slot `nth` (from 0) is due, from the stage's begin.
    fn due(&self, nth: u64) -> Duration {
        if self.begin_per_second == self.end_per_second {
            // Exact to the nanosecond: errors do not add up.
            let nanos = u128::from(nth) * NANOS_PER_SECOND / u128::from(self.begin_per_second.max(1));
            return Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        }
        // begin * t + slope * t^2 / 2 = nth, solved in the form that does not cancel for a small slope.
        let begin = float(self.begin_per_second);
        let slope = (float(self.end_per_second) - begin) / self.duration.as_secs_f64();
        let root = 2.0f64.mul_add(slope * float(nth), begin * begin).max(0.0).sqrt();
        let seconds = 2.0 * float(nth) / (begin + root);
        // Rounding must not move the last slot into the next stage.
        Duration::from_secs_f64(seconds.max(0.0)).min(self.duration.saturating_sub(Duration::from_nanos(1)))
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { begin_per_second, end_per_second, duration } = self;
        if begin_per_second == end_per_second {
            write!(f, "{begin_per_second}:{duration:?}")
        } else {
            write!(f, "{begin_per_second}-{end_per_second}:{duration:?}")
        }
    }
}

impl FromStr for Stage {
    type Err = String;

    /// Reads `1000:30s`, or `1000-5000:30s` for a ramp.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is neither RATE:DURATION nor BEGIN-END:DURATION, as in 1000:30s");
        let (rates, duration) = text.split_once(':').ok_or_else(bad)?;
        let (begin, end) = rates.split_once('-').unwrap_or((rates, rates));
        let rate = |text: &str| parse_count(text).ok().filter(|rate| (1..=RATE_MAX).contains(rate));
        let (begin_per_second, end_per_second) = rate(begin).zip(rate(end)).ok_or_else(bad)?;
        Ok(Self { begin_per_second, end_per_second, duration: parse_duration(duration)? })
    }
}

/// The highest rate that can be requested: slots are then 100 ns apart, a tenth of a timer's precision.
pub const RATE_MAX: u64 = 10_000_000;

/// The stages of a stream, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline(Arc<[Leg]>);

/// A stage with its place in the timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Leg {
    stage: Stage,
    begin: Duration,
    first_slot: u64,
}

impl Timeline {
    /// `stages` one after the other; a rate of 0 counts as 1.
    pub fn new(stages: impl IntoIterator<Item = Stage>) -> Self {
        let (mut begin, mut first_slot) = (Duration::ZERO, 0_u64);
        let legs = stages.into_iter().map(|stage| {
            let stage = Stage {
                begin_per_second: stage.begin_per_second.max(1),
                end_per_second: stage.end_per_second.max(1),
                ..stage
            };
            let leg = Leg { stage, begin, first_slot };
            begin += stage.duration;
            first_slot = first_slot.saturating_add(stage.slots());
            leg
        });
        Self(legs.collect())
    }

    /// How many slots all stages have.
    pub fn slots(&self) -> u64 {
        self.0.last().map_or(0, |leg| leg.first_slot.saturating_add(leg.stage.slots()))
    }

    /// When `slot` is due, from the begin of the first stage; after the last stage for slots beyond it.
    pub fn due(&self, slot: u64) -> Duration {
        let behind = self.0.partition_point(|leg| leg.first_slot <= slot);
        let Some(leg) = behind.checked_sub(1).and_then(|at| self.0.get(at)) else { return Duration::ZERO };
        let nth = slot - leg.first_slot;
        if nth >= leg.stage.slots() {
            return leg.begin + leg.stage.duration;
        }
        leg.begin + leg.stage.due(nth)
    }
}

/// One lane's share of a stream's slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    lane: u64,
    lanes: u64,
    timeline: Timeline,
}

impl Schedule {
    /// The share of lane `lane` (from 0) of `lanes`, of a stream with `timeline`; 0 lanes count as 1.
    pub fn new(lane: u64, lanes: u64, timeline: Timeline) -> Self {
        Self { lane, lanes: lanes.max(1), timeline }
    }

    /// The stream's slot that is this lane's `nth` (from 0).
    pub fn slot(&self, nth: u64) -> u64 {
        nth.saturating_mul(self.lanes).saturating_add(self.lane)
    }

    /// When this lane's `nth` slot is due, from the start.
    pub fn due(&self, nth: u64) -> Duration {
        self.timeline.due(self.slot(nth))
    }

    /// How many of `slots` slots of the stream belong to this lane.
    pub fn share(&self, slots: u64) -> u64 {
        slots.saturating_sub(self.lane).div_ceil(self.lanes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constant(rate: u64, duration: Duration) -> Timeline {
        Timeline::new([Stage::constant(rate, duration)])
    }

    /// Goal: the lanes together are the stream: every slot once, none after the end. Method: collect and
    /// sort, for constant rates, stages and ramps up and down.
    #[test]
    fn lanes_partition_the_stream() {
        let millis = Duration::from_millis;
        let ramp = |begin_per_second, end_per_second, duration| Stage {
            begin_per_second,
            end_per_second,
            duration: millis(duration),
        };
        for stages in [
            vec![ramp(1000, 1000, 1000)],
            vec![ramp(7, 7, 1000)],
            vec![ramp(3333, 3333, 250)],
            vec![ramp(2, 2, 1100)],
            vec![ramp(100, 100, 505), ramp(1000, 1000, 300)],
            vec![ramp(10, 2000, 700), ramp(2000, 3, 999), ramp(5, 5, 401)],
        ] {
            let timeline = Timeline::new(stages.clone());
            let end: Duration = stages.iter().map(|stage| stage.duration).sum();
            for lanes in [1, 2, 5] {
                let mut seen = Vec::new();
                for lane in 0..lanes {
                    let schedule = Schedule::new(lane, lanes, timeline.clone());
                    for nth in 0..schedule.share(timeline.slots()) {
                        assert!(schedule.due(nth) < end, "slot due after the end");
                        seen.push((schedule.slot(nth), schedule.due(nth)));
                    }
                }
                seen.sort_unstable();
                let slots: Vec<u64> = seen.iter().map(|&(slot, _)| slot).collect();
                assert_eq!(slots, (0..timeline.slots()).collect::<Vec<_>>(), "{lanes} lanes");
                assert!(seen.is_sorted_by_key(|&(_, due)| due));
            }
            assert!(timeline.due(timeline.slots()) >= end, "the next slot is not the run's");
        }
    }

    /// Goal: no drift. Method: a rate whose period is no whole number of nanoseconds, after a day.
    #[test]
    fn the_schedule_does_not_drift() {
        let schedule = Schedule::new(0, 1, constant(3_000, Duration::from_hours(25)));
        assert_eq!(schedule.due(1), Duration::from_nanos(333_333));
        assert_eq!(schedule.due(3_000 * 86_400), Duration::from_hours(24));
    }

    /// Goal: rates and ends are exact. Method: a table.
    #[test]
    fn slots_within_a_duration() {
        let slots = |rate, duration| constant(rate, duration).slots();
        assert_eq!(slots(8_000, Duration::from_mins(1)), 480_000);
        assert_eq!(slots(2, Duration::from_millis(501)), 2);
        assert_eq!(slots(2, Duration::from_millis(500)), 1);
    }

    /// Goal: a ramp has the right rate at every place. Method: count the slots of windows: 0 to 1,000 a
    /// second over 10 s are 5,000 slots, a quarter of them in the first half.
    #[test]
    fn a_ramp_climbs_evenly() {
        let up = Stage { begin_per_second: 1, end_per_second: 1_000, duration: Duration::from_secs(10) };
        let timeline = Timeline::new([up]);
        let before = |seconds| {
            let limit = Duration::from_secs(seconds);
            (0..timeline.slots()).filter(|&slot| timeline.due(slot) < limit).count()
        };
        assert_eq!(timeline.slots(), 5_005);
        assert_eq!(before(5), 1_254, "1 * 5 + 99.9 * 25 / 2, rounded up");
        assert_eq!(before(10), 5_005);
    }
}
