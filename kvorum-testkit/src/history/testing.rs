//! The clocks and versions of histories that tests make by hand.

use super::Moment;
use kvorum_core::{NodeId, UnixMillis, Version};

/// One number serves as both clocks here: instant t is t nanoseconds and t milliseconds.
pub(super) fn at(t: u64) -> Moment {
    Moment { mono: t, wall: t }
}

/// A version of that time.
pub(super) fn version(millis: u64) -> Version {
    Version::new(UnixMillis(millis), 0, NodeId(1))
}
