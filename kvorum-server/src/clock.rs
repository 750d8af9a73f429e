//! Time and randomness, as the node sees them. The simulation also implements both traits.

use crate::canary::{self, Canary};
use kvorum_core::{UnixMillis, Version, hlc};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// The time of day. It may jump in either direction; only timestamps and expiry depend on it.
    fn wall(&self) -> UnixMillis;

    /// The time since a fixed instant of this process. It never goes back; every duration is measured by it.
    fn mono(&self) -> Duration;
}

/// A source of unpredictable bytes.
pub trait Rng: Send + Sync + 'static {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    begun: Instant,
}

impl SystemClock {
    /// The machine's clocks; the monotonic one counts from now.
    #[expect(clippy::disallowed_methods, reason = "the one place where the machine's time comes in")]
    pub fn new() -> Self {
        Self { begun: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place where the machine's time comes in")]
    fn wall(&self) -> UnixMillis {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        UnixMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn mono(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// The operating system's random numbers.
#[derive(Debug, Default)]
pub struct SystemRng;

impl Rng for SystemRng {
    #[expect(clippy::disallowed_methods, reason = "the one place where the machine's randomness comes in")]
    fn fill(&self, bytes: &mut [u8]) {
        // Without random numbers the node would still run; its store id, which is only a name, would be all zeros.
        if let Err(error) = getrandom::fill(bytes) {
            tracing::warn!(%error, "the operating system provides no random bytes");
        }
    }
}

/// Random bytes for a secret.
///
/// # Errors
/// When the operating system provides none. No secret may be made then: [`SystemRng`] would leave zeros.
#[expect(clippy::disallowed_methods, reason = "the one place where the machine's randomness comes in")]
pub fn secret_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(bytes)
}

/// The limit for a node that is alone. No other clock can be wrong, and the node must be able to accept the timestamps
/// of its own past, whatever its clock showed.
const LIMIT_ALONE_MILLIS: u64 = 24 * 36_500 * 3_600_000;

/// How this node's clock compares with the other nodes' clocks. A node stands down if its clock is off, disputed, or
/// has just moved. It then destroys nothing and coordinates no writes until its clock is known to be right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockStanding {
    /// A majority of the nodes, including this one, is within the limit.
    Confirmed,
    /// No other node has been asked since this node started.
    Unasked,
    /// Unknown: too few nodes have been heard from recently, and none of them is beyond the limit.
    Unknown,
    /// The clock has just been set by more than the limit. Until a majority was asked again, it is treated as wrong.
    Moved,
    /// Some node is beyond the limit, and too few nodes have been heard from to tell which of the two clocks is wrong.
    Disputed,
    /// A majority of the nodes is beyond the limit.
    Off,
}

/// A standing, with the readings of both clocks when it was judged.
#[derive(Debug, Clone, Copy)]
struct Judged {
    standing: ClockStanding,
    mono: Duration,
    wall: UnixMillis,
}

/// The age from which a confirmation is no longer valid.
const CONFIRMED_AGE_MAX: Duration = Duration::from_secs(10);
/// A confirmation is no longer valid once the wall clock has moved by more than this against the monotonic clock.
const MOVED_MILLIS_MAX: u64 = 1000;

/// The upper bound for timestamps: clock words of versions, floors, hints and leases, whether they come from a peer or
/// from the disk. A timestamp that is further ahead of this node's wall clock than `--clock-offset-limit` is refused
/// and counted. It is never stored, and never moves the node's own clock.
pub struct TimestampBound {
    clock: Arc<dyn Clock>,
    limit_millis: u64,
    /// Whether there is no other node: then no other clock can be wrong.
    is_alone: AtomicBool,
    refused: AtomicU64,
    // Guards the latest judgement; held for one read or change.
    judged: Mutex<Judged>,
}

/// A timestamp that is too far ahead of this node's clock to be accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooFarAhead {
    /// The timestamp, as a clock word.
    pub timestamp: u64,
    /// How far it is ahead of this node's wall clock, in milliseconds.
    pub ahead_millis: u64,
    /// The limit, in milliseconds.
    pub limit_millis: u64,
}

impl fmt::Display for TooFarAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { timestamp, ahead_millis, limit_millis } = self;
        write!(
            f,
            "the timestamp {timestamp:016x} is {ahead_millis} ms ahead of this node's clock; --clock-offset-limit allows \
             {limit_millis} ms"
        )
    }
}

impl std::error::Error for TooFarAhead {}

impl TimestampBound {
    /// The bound `limit` ahead of `clock`, for a node that has peers.
    pub fn new(clock: Arc<dyn Clock>, limit: Duration) -> Self {
        let limit_millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        // The standing counts from now on, so that setting the clock before any node was asked is noticed as well.
        let judged = Judged { standing: ClockStanding::Unasked, mono: clock.mono(), wall: clock.wall() };
        let (refused, judged) = (AtomicU64::new(0), Mutex::new(judged));
        Self { clock, limit_millis, is_alone: AtomicBool::new(false), refused, judged }
    }

    /// The bound of a node that is alone.
    pub fn alone(clock: Arc<dyn Clock>) -> Self {
        Self::alone_at_first(clock, Duration::from_millis(LIMIT_ALONE_MILLIS))
    }

    /// The bound `limit` ahead of `clock`, for a node that is alone now, and may get peers.
    pub fn alone_at_first(clock: Arc<dyn Clock>, limit: Duration) -> Self {
        Self { is_alone: AtomicBool::new(true), ..Self::new(clock, limit) }
    }

    /// Notes whether this node is alone now. One that gets peers has not been judged by their clocks yet.
    pub fn note_alone(&self, is_alone: bool) {
        let was_alone = self.is_alone.swap(is_alone, Ordering::SeqCst);
        if was_alone && !is_alone {
            let (mono, wall) = (self.clock.mono(), self.clock.wall());
            *self.judged() = Judged { standing: ClockStanding::Unasked, mono, wall };
        }
    }

    fn is_alone(&self) -> bool {
        self.is_alone.load(Ordering::SeqCst)
    }

    /// The limit now, in milliseconds.
    pub fn limit_millis(&self) -> u64 {
        if self.is_alone() { LIMIT_ALONE_MILLIS } else { self.limit_millis }
    }

    /// The highest clock word that is accepted beside other nodes.
    pub fn max_beside_others(&self) -> u64 {
        hlc::believed_max(self.clock.wall(), self.limit_millis)
    }

    /// Records how this node's clock compares with the others now. Returns the previous record.
    ///
    /// While the clock counts as off, moved or disputed, `Unknown` does not change that: hearing from too few nodes is
    /// no reason to trust the clock again.
    pub fn note_standing(&self, standing: ClockStanding) -> ClockStanding {
        let stays = standing == ClockStanding::Unknown && self.stands_down();
        let mut judged = self.judged();
        let before = judged.standing;
        if !stays {
            *judged = Judged { standing, mono: self.clock.mono(), wall: self.clock.wall() };
        }
        before
    }

    /// How this node's clock compares with the others. A node that is alone always counts as confirmed.
    pub fn standing(&self) -> ClockStanding {
        if self.is_alone() {
            return ClockStanding::Confirmed;
        }
        let judged = *self.judged();
        let age = self.clock.mono().saturating_sub(judged.mono);
        let age_millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let moved = self.clock.wall().0.abs_diff(judged.wall.0.saturating_add(age_millis));
        match judged.standing {
            _ if moved > self.limit_millis() => ClockStanding::Moved,
            ClockStanding::Confirmed if age > CONFIRMED_AGE_MAX || moved > MOVED_MILLIS_MAX => {
                ClockStanding::Unknown
            }
            standing => standing,
        }
    }

    /// Whether records may be destroyed because of this clock: a majority confirms it.
    pub fn may_destroy(&self) -> bool {
        self.standing() == ClockStanding::Confirmed || canary::is(Canary::ExpiresByOneClock)
    }

    /// Whether `expires` has passed on every node whose clock is within the limit of a majority, so that the expired
    /// record may be destroyed. This requires that this node's clock is confirmed: two nodes within the limit of a
    /// majority differ by at most twice the limit.
    pub fn has_surely_passed(&self, expires: UnixMillis) -> bool {
        self.may_destroy() && self.surely_passed_at(expires) <= self.clock.wall()
    }

    /// When `expires` has passed on every node whose clock is within the limit of a majority, by this node's clock.
    pub fn surely_passed_at(&self, expires: UnixMillis) -> UnixMillis {
        let asks_nobody = self.is_alone() || canary::is(Canary::ExpiresByOneClock);
        expires.saturating_add(if asks_nobody { 0 } else { self.limit_millis().saturating_mul(2) })
    }

    /// Whether this node's clock is, or may well be, wrong, so that the node stands down.
    pub fn stands_down(&self) -> bool {
        matches!(self.standing(), ClockStanding::Off | ClockStanding::Moved | ClockStanding::Disputed)
    }

    /// Whether this node may leave out of a list what it does not believe, and the list still counts as whole. Not by a clock
    /// that may be behind: then everything that the others wrote is from the future.
    pub fn may_leave_out(&self) -> bool {
        matches!(self.standing(), ClockStanding::Confirmed | ClockStanding::Unknown)
    }

    /// The time of day by which readers hide expired records; 0 while this node's clock is known to be wrong, so that
    /// they hide none.
    pub fn expiry_clock(&self) -> UnixMillis {
        match self.standing() {
            ClockStanding::Off | ClockStanding::Moved => UnixMillis(0),
            _ => self.clock.wall(),
        }
    }

    fn judged(&self) -> MutexGuard<'_, Judged> {
        self.judged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The highest clock word that is accepted now.
    pub fn max(&self) -> u64 {
        hlc::believed_max(self.clock.wall(), self.limit_millis())
    }

    /// Refuses `timestamp`, a clock word, if it is above [`Self::max`].
    ///
    /// # Errors
    /// [`TooFarAhead`]; the refusal has been counted.
    pub fn check(&self, timestamp: u64) -> Result<(), TooFarAhead> {
        if timestamp <= self.max() || canary::is(Canary::BelievesAnyTimestamp) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        let millis = Version::from_words(timestamp, 0).millis().0;
        let ahead_millis = millis.saturating_sub(self.clock.wall().0);
        Err(TooFarAhead { timestamp, ahead_millis, limit_millis: self.limit_millis() })
    }

    /// How many timestamps were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// A clock that stands still until a test moves it.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct ManualClock {
    wall_millis: std::sync::atomic::AtomicU64,
    mono_millis: std::sync::atomic::AtomicU64,
}

#[cfg(test)]
impl ManualClock {
    pub(crate) fn at(wall_millis: u64) -> std::sync::Arc<Self> {
        std::sync::Arc::new(Self { wall_millis: wall_millis.into(), mono_millis: 0.into() })
    }

    pub(crate) fn set_wall(&self, millis: u64) {
        self.wall_millis.store(millis, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn pass(&self, millis: u64) {
        self.wall_millis.fetch_add(millis, std::sync::atomic::Ordering::Relaxed);
        self.mono_millis.fetch_add(millis, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(test)]
impl Clock for ManualClock {
    fn wall(&self) -> UnixMillis {
        UnixMillis(self.wall_millis.load(std::sync::atomic::Ordering::Relaxed))
    }

    fn mono(&self) -> Duration {
        Duration::from_millis(self.mono_millis.load(std::sync::atomic::Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(millis: u64) -> u64 {
        Version::new(UnixMillis(millis), 0, kvorum_core::NodeId(0)).clock()
    }

    /// Goal: an expired record is destroyed only by a confirmed clock, and only when every clock within the limit
    /// agrees. Method: the instants around the expiry; a clock without confirmation, one that has just jumped, an old
    /// confirmation.
    #[test]
    fn expiry_is_certain_by_a_confirmed_clock_only() {
        let clock = ManualClock::at(1_000_000);
        let bound = TimestampBound::new(Arc::clone(&clock) as Arc<dyn Clock>, Duration::from_secs(10));
        let expired = UnixMillis(1_000_000 - 20_000);
        assert!(!bound.has_surely_passed(expired), "nobody has confirmed this clock");
        assert_eq!(bound.note_standing(ClockStanding::Confirmed), ClockStanding::Unasked);
        assert!(bound.has_surely_passed(expired));
        assert!(!bound.has_surely_passed(UnixMillis(expired.0 + 1)), "it is not past on a clock 20 s behind");
        clock.set_wall(1_000_000 + 5_000);
        assert_eq!(bound.standing(), ClockStanding::Unknown, "set, and within the limit perhaps");
        assert!(!bound.has_surely_passed(expired));
        clock.set_wall(1_000_000 + 7_200_000);
        assert_eq!(bound.standing(), ClockStanding::Moved, "this clock has just jumped");
        assert!(!bound.has_surely_passed(expired));
        bound.note_standing(ClockStanding::Off);
        assert_eq!((bound.standing(), bound.expiry_clock()), (ClockStanding::Off, UnixMillis(0)));
        clock.pass(60_000);
        assert_eq!(bound.standing(), ClockStanding::Off, "until it is judged otherwise");
        clock.set_wall(1_060_000);
        assert_eq!(bound.expiry_clock(), UnixMillis(0), "set right, and not judged yet");
        assert_eq!(bound.note_standing(ClockStanding::Confirmed), ClockStanding::Off);
        clock.pass(10_001);
        assert_eq!(bound.standing(), ClockStanding::Unknown, "nobody was heard for 10 s");
        let alone = TimestampBound::alone(Arc::clone(&clock) as Arc<dyn Clock>);
        assert!(alone.has_surely_passed(UnixMillis(1_070_001)));
    }

    /// Goal: a clock that may be wrong counts as wrong until a majority has confirmed it. It used to count as unknown,
    /// and to stamp again, as soon as one exchange had told too little (found by the simulation). Method: every such
    /// standing, then answers from too few nodes.
    #[test]
    fn a_clock_that_may_be_wrong_stays_so_until_it_is_confirmed() {
        let clock = ManualClock::at(1_000_000);
        let bound = TimestampBound::new(Arc::clone(&clock) as Arc<dyn Clock>, Duration::from_secs(10));
        assert_eq!((bound.standing(), bound.stands_down()), (ClockStanding::Unasked, false));
        clock.set_wall(7_200_000_000);
        assert_eq!(bound.standing(), ClockStanding::Moved, "set before anybody was asked");
        clock.set_wall(1_000_000);
        bound.note_standing(ClockStanding::Unknown);
        assert!(!bound.stands_down(), "nobody disagrees");
        for standing in [ClockStanding::Off, ClockStanding::Disputed] {
            bound.note_standing(standing);
            bound.note_standing(ClockStanding::Unknown);
            assert_eq!(bound.standing(), standing);
            bound.note_standing(ClockStanding::Confirmed);
            assert!(!bound.stands_down());
        }
        clock.set_wall(1_000_000 + 7_200_000);
        bound.note_standing(ClockStanding::Unknown);
        assert_eq!(bound.standing(), ClockStanding::Moved);
        bound.note_standing(ClockStanding::Disputed);
        let hidden_by = bound.expiry_clock();
        assert_eq!(hidden_by, clock.wall(), "it may well be right: what has expired by it is hidden");
        assert!(!bound.may_destroy());
    }

    /// Goal: the bound follows the clock, to the millisecond, and no timestamp that a version can hold is accepted
    /// under every bound. Method: clock words around the limit, before and after the clock has moved.
    #[test]
    fn timestamps_are_believed_up_to_the_limit() {
        let clock = ManualClock::at(1_000_000);
        let bound = TimestampBound::new(Arc::clone(&clock) as Arc<dyn Clock>, Duration::from_mins(1));
        let last = 1_000_000 + 60_000 + hlc::LEASE_MILLIS;
        assert_eq!((bound.check(word(last)), bound.check(0)), (Ok(()), Ok(())));
        let refused = bound.check(word(last + 1)).unwrap_err();
        assert_eq!((refused.ahead_millis, refused.limit_millis), (61_001, 60_000));
        assert!(bound.check(u64::MAX).is_err());
        assert_eq!(bound.refused(), 2);
        clock.pass(1);
        assert_eq!(bound.check(word(last + 1)), Ok(()));
        clock.set_wall(0);
        assert!(bound.check(word(last)).is_err());
    }

    /// A node that gets peers is bound by the limit from then on, and is not confirmed until they have answered; one that is left
    /// alone confirms itself.
    #[test]
    fn a_node_that_gets_peers_is_judged_by_them() {
        let clock = ManualClock::at(1_000_000);
        let bound =
            TimestampBound::alone_at_first(Arc::clone(&clock) as Arc<dyn Clock>, Duration::from_mins(1));
        let later = word(1_000_000 + 3_600_000);
        assert!(bound.may_destroy() && bound.check(later).is_ok() && later > bound.max_beside_others());
        assert_eq!(bound.surely_passed_at(UnixMillis(5)), UnixMillis(5));
        clock.set_wall(1_000_000 + 7_200_000);
        bound.note_alone(false);
        assert!(!bound.stands_down(), "the clock was set while no other node could be told");
        assert!(!bound.may_destroy() && bound.check(word(clock.wall().0 + 3_600_000)).is_err());
        assert_eq!(
            (bound.limit_millis(), bound.surely_passed_at(UnixMillis(5))),
            (60_000, UnixMillis(120_005))
        );
        bound.note_alone(true);
        assert!(bound.may_destroy());
    }

    /// A node that is alone accepts its own timestamps from when its clock was an hour ahead, but not the highest
    /// timestamp.
    #[test]
    fn a_node_that_is_alone_believes_its_own_past() {
        let bound = TimestampBound::alone(ManualClock::at(1_700_000_000_000));
        assert_eq!(bound.check(word(1_700_000_000_000 + 3_600_000)), Ok(()));
        assert!(bound.check(u64::MAX).is_err());
    }
}
