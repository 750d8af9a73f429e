//! Waiting: on threads of the storage, which serve nobody, and on the one that commits, which all others wait for.

use super::EngineError;
use std::time::Duration;

/// How long a commit waits for what is behind before it is refused, and between two looks.
const BEHIND_WAIT_MAX: Duration = Duration::from_secs(2);
const BEHIND_PAUSE: Duration = Duration::from_millis(1);

/// Sleeps for `time`.
#[expect(clippy::disallowed_methods, reason = "on threads that serve nobody meanwhile")]
pub(super) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Waits while `is_waiting` says so, which is asked `every` so often. Says whether it ended before `at_most` had passed.
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

/// Waits with a commit for what is behind.
///
/// # Errors
/// [`EngineError::Busy`] when it does not catch up; those of `is_behind`.
pub(super) fn until_caught_up(
    is_behind: impl FnMut() -> Result<bool, EngineError>,
) -> Result<(), EngineError> {
    let has_caught_up = wait_while(BEHIND_WAIT_MAX, BEHIND_PAUSE, is_behind)?;
    if has_caught_up { Ok(()) } else { Err(EngineError::Busy) }
}
