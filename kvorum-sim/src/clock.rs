//! Clocks: each node's own, over the simulation's time.
//!
//! The wall clock is the true time plus an offset, a drift that adds up, and jumps. The monotonic clock is
//! the simulated time itself, as the run's timers are. A node whose clock and timers disagreed would show
//! faults that no machine has.

use kvorum_core::UnixMillis;
use kvorum_server::clock::Clock;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The true time at which every simulation begins: a fixed day in 2023.
pub const EPOCH: UnixMillis = UnixMillis(1_700_000_000_000);

/// A function that returns the simulated time since the run began; `None` outside of a host.
pub type Elapsed = fn() -> Option<Duration>;

/// One node's clock. It outlives the runs of the node's process, as a machine's clock does.
#[derive(Debug)]
pub struct SimClock {
    elapsed: Elapsed,
    // Guards the clock's errors; held for one reading.
    error: Mutex<ClockError>,
}

#[derive(Debug)]
struct ClockError {
    /// The offset from the true time, as of `as_of`.
    offset_micros: i64,
    /// Microseconds gained per second.
    drift_ppm: i32,
    as_of: Duration,
    last: Duration,
    /// Errors that end, by the fault's place in the plan, in milliseconds.
    passing: BTreeMap<usize, i64>,
}

impl SimClock {
    /// A clock with an error of `offset_millis` at the beginning, which gains `drift_ppm` microseconds per
    /// second.
    pub fn new(elapsed: Elapsed, offset_millis: i64, drift_ppm: i32) -> Self {
        let offset_micros = offset_millis.saturating_mul(1000);
        let (as_of, last, passing) = (Duration::ZERO, Duration::ZERO, BTreeMap::new());
        let error = ClockError { offset_micros, drift_ppm, as_of, last, passing };
        Self { elapsed, error: Mutex::new(error) }
    }

    /// A clock in a turmoil simulation.
    pub fn of_simulation(offset_millis: i64, drift_ppm: i32) -> Self {
        Self::new(turmoil::sim_elapsed, offset_millis, drift_ppm)
    }

    /// Sets the wall clock forward (or back) by `by_millis`.
    pub fn jump(&self, by_millis: i64) {
        let mut error = self.lock();
        error.offset_micros = error.offset_micros.saturating_add(by_millis.saturating_mul(1000));
    }

    /// Sets the wall clock wrong by `by_millis`, until the error `number` ends.
    pub fn err(&self, number: usize, by_millis: i64) {
        self.lock().passing.insert(number, by_millis);
    }

    /// Ends the error `number`; does nothing if it has ended already.
    pub fn end_error(&self, number: usize) {
        self.lock().passing.remove(&number);
    }

    /// Ends all such errors, as a machine's time service does when the machine starts.
    pub fn set_right(&self) {
        self.lock().passing.clear();
    }

    /// Makes the wall clock gain `drift_ppm` microseconds per second from now on.
    pub fn set_drift(&self, drift_ppm: i32) {
        let now = self.now();
        let mut error = self.lock();
        error.offset_micros = error.at(now);
        error.as_of = now;
        error.drift_ppm = drift_ppm;
    }

    /// Removes all errors of the wall clock.
    pub fn heal(&self) {
        self.set_drift(0);
        let mut error = self.lock();
        error.offset_micros = 0;
        error.passing.clear();
    }

    /// The simulated time. It never goes back, also when it is read outside of a host.
    fn now(&self) -> Duration {
        let elapsed = (self.elapsed)();
        let mut error = self.lock();
        error.last = error.last.max(elapsed.unwrap_or_default());
        error.last
    }

    fn lock(&self) -> MutexGuard<'_, ClockError> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClockError {
    fn at(&self, now: Duration) -> i64 {
        let passed = i64::try_from(now.saturating_sub(self.as_of).as_micros()).unwrap_or(i64::MAX);
        let drifted = i128::from(passed) * i128::from(self.drift_ppm) / 1_000_000;
        self.offset_micros.saturating_add(i64::try_from(drifted).unwrap_or(0))
    }
}

impl Clock for SimClock {
    fn wall(&self) -> UnixMillis {
        let now = self.now();
        let true_micros = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        let error = self.lock();
        let passing = error.passing.values().sum::<i64>().saturating_mul(1000);
        let micros = true_micros.saturating_add(error.at(now)).saturating_add(passing);
        UnixMillis(EPOCH.0.saturating_add_signed(micros.div_euclid(1000)))
    }

    fn mono(&self) -> Duration {
        self.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static NOW: Cell<Option<Duration>> = const { Cell::new(None) };
    }

    fn at(seconds: u64) {
        NOW.set(Some(Duration::from_secs(seconds)));
    }

    fn wall(clock: &SimClock) -> i64 {
        i64::try_from(clock.wall().0).unwrap() - i64::try_from(EPOCH.0).unwrap()
    }

    /// Offset, drift and jumps add up; a changed drift keeps the time gained so far; healing removes all
    /// errors.
    #[test]
    fn errors_add_up() {
        let clock = SimClock::new(|| NOW.get(), -250, 500);
        at(0);
        assert_eq!(wall(&clock), -250);
        at(100);
        assert_eq!(wall(&clock), 100_000 - 250 + 50);
        clock.jump(3_600_000);
        clock.set_drift(-500);
        assert_eq!(wall(&clock), 3_700_000 - 200);
        at(200);
        assert_eq!(wall(&clock), 3_800_000 - 250);
        clock.jump(-7_200_000);
        assert_eq!(wall(&clock), -3_400_000 - 250);
        assert_eq!(clock.mono(), Duration::from_secs(200));
        clock.err(1, 500);
        clock.err(2, -70);
        assert_eq!(wall(&clock), -3_399_570 - 250);
        clock.end_error(1);
        assert_eq!(wall(&clock), -3_400_070 - 250);
        clock.set_right();
        clock.end_error(2);
        assert_eq!(wall(&clock), -3_400_000 - 250);
        clock.heal();
        assert_eq!(wall(&clock), 200_000);
    }

    /// The monotonic clock stands still where there is no simulated time, and never goes back.
    #[test]
    fn mono_never_goes_back() {
        let clock = SimClock::new(|| NOW.get(), 0, 0);
        at(7);
        assert_eq!(clock.mono(), Duration::from_secs(7));
        NOW.set(None);
        assert_eq!(clock.mono(), Duration::from_secs(7));
        at(6);
        assert_eq!(clock.mono(), Duration::from_secs(7));
    }
}
