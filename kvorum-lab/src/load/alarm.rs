//! A timer that is exact to microseconds, as long as the system lets it be.
//!
//! tokio's timers count whole milliseconds. An operation due in between would be sent up to a millisecond
//! late, and the node would be charged with that latency. A timerfd wakes the runtime through epoll when it
//! is due. From there to the waiting task it takes tens of microseconds if the processor was idle, and nearly
//! the same each time. So the timer is set earlier by the smallest recent lateness ([`Lead`]), and the
//! remaining time is spun away.

use std::cell::Cell;
use std::hint;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// One timer, for one task.
#[derive(Debug)]
pub struct Alarm {
    timer: AsyncFd<OwnedFd>,
    lead: Cell<Lead>,
}

/// How much earlier than wanted a timer is set: the smallest recent lateness.
#[derive(Debug, Clone, Copy, Default)]
struct Lead(Duration);

impl Lead {
    /// Beyond this the system is busy, and the lateness is not the usual one. Also the longest single spin.
    const MAX: Duration = Duration::from_micros(50);

    /// Learns that the timer woke its task `late`. The lead falls at once, because a task that wakes too
    /// early spins; it rises slowly.
    fn learn(&mut self, late: Duration) {
        let late = late.min(Self::MAX);
        self.0 = late.min(self.0 + late.saturating_sub(self.0) / 32);
    }
}

impl Alarm {
    /// A timer of the current runtime. Fails outside of a runtime's context, or without file descriptors.
    #[expect(
        deprecated,
        reason = "its flaw is an `AsRawFd` that lies; an `OwnedFd` cannot, and the successor is unsafe"
    )]
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { timer: AsyncFd::new(timer)?, lead: Cell::default() })
    }

    /// Returns when `duration` has passed, not before; at once for zero.
    ///
    /// # Cancel safety
    /// Dropping the wait is safe: the next wait overwrites the state of the timer.
    pub async fn sleep(&self, duration: Duration) -> io::Result<()> {
        if duration.is_zero() {
            return Ok(());
        }
        let begun = Instant::now();
        let due = begun + duration;
        let mut lead = self.lead.get();
        // A shorter wait would become a pure spin, and the runtime has other tasks.
        let early = if duration > lead.0 { lead.0 } else { Duration::ZERO };
        let sleep = duration.saturating_sub(early);
        let setting = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: i64::try_from(sleep.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(sleep.subsec_nanos()),
            },
        };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &setting)?;
        loop {
            // The expirations are not read: setting the timer clears them, and epoll reports every new one
            // (edge-triggered). That saves one system call per operation.
            self.timer.readable().await?.clear_ready();
            // `None`: an expiry of a wait that was dropped.
            if let Some(late) = Instant::now().checked_duration_since(begun + sleep) {
                lead.learn(late);
                self.lead.set(lead);
                spin_until(due);
                return Ok(());
            }
        }
    }
}

/// Spins on the thread until `due`, for [`Lead::MAX`] at most: too short a time to sleep.
fn spin_until(due: Instant) {
    while Instant::now() < due {
        hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a wait is never short, also when repeated. Method: measure several.
    #[tokio::test]
    async fn a_wait_is_never_short() {
        let alarm = Alarm::new().unwrap();
        for micros in [1, 50, 700, 3_000] {
            let duration = Duration::from_micros(micros);
            let begin = Instant::now();
            alarm.sleep(duration).await.unwrap();
            assert!(begin.elapsed() >= duration, "{micros} us");
        }
    }

    /// Goal: a timer that is always late by about the same is set earlier by that time. The lead is never
    /// above the latest lateness or the bound. Method: by hand.
    #[test]
    fn the_lead_follows_the_least_lateness() {
        let micros = Duration::from_micros;
        let mut lead = Lead::default();
        for nth in 0..1_000 {
            lead.learn(micros(if nth % 3 == 0 { 900 } else { 27 }));
            assert!(lead.0 <= Lead::MAX);
        }
        assert!(lead.0 > micros(25) && lead.0 <= Lead::MAX, "{lead:?}");
        lead.learn(micros(8));
        assert_eq!(lead.0, micros(8));
        // One long delay proves little about the next.
        lead.learn(Duration::from_secs(1));
        assert!(lead.0 < micros(10), "{lead:?}");
        lead.learn(Duration::ZERO);
        assert_eq!(lead.0, Duration::ZERO);
    }

    /// Goal: an abandoned long wait does not end or delay the next. Method: drop one, then wait shortly.
    #[tokio::test]
    async fn an_abandoned_wait_is_forgotten() {
        let alarm = Alarm::new().unwrap();
        let long = tokio::time::timeout(Duration::from_millis(5), alarm.sleep(Duration::from_hours(1)));
        assert!(long.await.is_err());
        let begin = Instant::now();
        alarm.sleep(Duration::from_millis(2)).await.unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(2));
    }
}
