//! A timer that is exact to tens of microseconds.
//!
//! tokio's timers count whole milliseconds; an operation due in between would be sent up to a millisecond late,
//! and that would be charged to the node as latency. A timerfd wakes the runtime through epoll when it is due.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// One timer, for one task.
#[derive(Debug)]
pub struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    /// A timer of the current runtime. Fails outside of a runtime's context, or without file descriptors.
    #[expect(
        deprecated,
        reason = "its flaw is an `AsRawFd` that lies; an `OwnedFd` cannot, and the successor is unsafe"
    )]
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        AsyncFd::new(timer).map(Self)
    }

    /// Returns when `duration` has passed, not before; at once for zero.
    ///
    /// # Cancel safety
    /// A dropped wait leaves nothing behind that the next one does not overwrite.
    pub async fn sleep(&self, duration: Duration) -> io::Result<()> {
        if duration.is_zero() {
            return Ok(());
        }
        let setting = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(duration.subsec_nanos()),
            },
        };
        let due = Instant::now() + duration;
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &setting)?;
        loop {
            // The expirations are not read: setting the timer forgets them, and epoll tells of every new one
            // (edge-triggered). That is one system call less for every operation.
            self.0.readable().await?.clear_ready();
            if Instant::now() >= due {
                return Ok(());
            }
        }
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
