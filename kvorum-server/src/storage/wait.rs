//! Waiting: on storage threads, which serve no requests, and on the commit thread, which all writes wait for.

use super::EngineError;
use std::time::Duration;

/// How long a commit waits for lagging background work before it is refused, and the pause between two checks.
const BEHIND_WAIT_MAX: Duration = Duration::from_secs(2);
const BEHIND_PAUSE: Duration = Duration::from_millis(1);

/// Sleeps for `time`.
#[expect(clippy::disallowed_methods, reason = "on threads that serve nobody meanwhile")]
pub(super) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Waits while `is_waiting` returns true, checking it once per `every`. Returns whether it ended before `at_most` had
/// passed.
pub(super) fn wait_while(
    at_most: Duration,
    every: Duration,
    mut is_waiting: impl FnMut() -> Result<bool, EngineError>,
) -> Result<bool, EngineError> {
    let mut waited = Duration::ZERO;
    while is_waiting()? {
        if waited >= at_most {
            return Ok(false);
        }
        pause(every);
        waited += every;
    }
    Ok(true)
}

/// Makes a commit wait for lagging background work.
///
/// # Errors
/// [`EngineError::Busy`] when the work does not catch up; the errors of `is_behind`.
pub(super) fn until_caught_up(
    is_behind: impl FnMut() -> Result<bool, EngineError>,
) -> Result<(), EngineError> {
    let has_caught_up = wait_while(BEHIND_WAIT_MAX, BEHIND_PAUSE, is_behind)?;
    if has_caught_up { Ok(()) } else { Err(EngineError::Busy) }
}
