//! The step after a failed attempt: another attempt, with its node and time, or the end.
//!
//! Decisions only: the clock is an argument, and `exchange` does the waiting and sending.

use crate::answer::Missed;
use crate::config::RetryPolicy;
use crate::error::{BoxError, Error};
use crate::flight::NoPlace;
use crate::nodes::Nodes;
use crate::operation::Operation;
use crate::pool::{Health, Node};
use crate::request::{Call, Wanted};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Why one attempt failed.
#[derive(Debug)]
pub(crate) enum Cause {
    /// No connection could be made; nothing was sent.
    Connect(BoxError),
    /// The connection was lost before an answer began.
    Lost(BoxError),
    /// The connection was lost within an answer.
    Cut(BoxError),
    /// The answer did not begin in time for this attempt, but another one may be made.
    Impatient { after: Duration },
    /// The operation's deadline passed.
    DeadlinePassed { waiting_for: &'static str },
    /// The node answered with a failure.
    Status { code: u16, message: String, retry_after: Option<Duration>, missed: Missed },
    /// The answer is larger than allowed.
    TooLarge { bytes_max: usize },
    /// The answer is not one of this protocol.
    Protocol { message: String },
}

/// A failed attempt.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    /// Whether any part of the request may have reached the node.
    pub(crate) sent: bool,
    /// The node that was asked; `None` where there was none to ask.
    pub(crate) node: Option<Arc<Node>>,
}

impl Failure {
    pub(crate) fn unsent(cause: Cause) -> Self {
        Self { cause, sent: false, node: None }
    }

    pub(crate) fn sent(cause: Cause) -> Self {
        Self { cause, sent: true, node: None }
    }

    pub(crate) fn at(self, node: &Arc<Node>) -> Self {
        Self { node: Some(Arc::clone(node)), ..self }
    }

    /// Whether this attempt, if it was a write, may have changed the key or may yet.
    fn is_outcome_unknown(&self) -> bool {
        match self.cause {
            // By the contract, 503 and 507 mean that nothing was done, and 504 that the outcome is unknown.
            Cause::Status { code, .. } => !matches!(code, 400..=499 | 503 | 507),
            _ => self.sent,
        }
    }

    /// Whether the failure points at the node rather than at the request. `waited` is how long the attempt
    /// took, and `patience` is the limit above which a wait counts as long: a short deadline proves little
    /// about a node.
    pub(crate) fn is_node_suspect(&self, waited: Duration, patience: Duration) -> bool {
        match self.cause {
            Cause::Connect(_) | Cause::Lost(_) | Cause::Impatient { .. } => true,
            Cause::DeadlinePassed { .. } => self.sent && waited >= patience,
            Cause::Cut(_) | Cause::Status { .. } | Cause::TooLarge { .. } | Cause::Protocol { .. } => false,
        }
    }
}

/// The state of one operation over its attempts.
pub(crate) struct Course {
    operation: Operation,
    wanted: Wanted,
    policy: RetryPolicy,
    nodes: Arc<Nodes>,
    turn: usize,
    /// The nodes that were asked, in the order of the attempts, one for each that has begun.
    tried: Vec<Arc<Node>>,
    /// Whether an attempt so far may have changed the key.
    is_outcome_unknown: bool,
    previous: Option<Error>,
    timeout: Duration,
    deadline: Instant,
}

impl Course {
    pub(crate) fn begin(
        call: &Call,
        policy: RetryPolicy,
        nodes: Arc<Nodes>,
        timeout: Duration,
        now: Instant,
    ) -> Self {
        Self {
            operation: call.operation.clone(),
            wanted: call.wanted.clone(),
            policy,
            turn: nodes.next_turn(),
            nodes,
            tried: Vec::new(),
            is_outcome_unknown: false,
            previous: None,
            timeout,
            deadline: later(now, timeout),
        }
    }

    /// Begins an attempt, and returns its node.
    pub(crate) fn aim(&mut self, now: Instant) -> Option<Arc<Node>> {
        let node = self.nodes.choose(&self.wanted, self.turn, &self.tried, now)?;
        self.tried.push(Arc::clone(&node));
        Some(node)
    }

    /// Whether another attempt may be made, and there is a healthy node that was not asked yet.
    pub(crate) fn has_other(&self, now: Instant) -> bool {
        self.attempts() < self.policy.attempts_max && self.nodes.has_other(&self.tried, now)
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    fn attempts(&self) -> u32 {
        u32::try_from(self.tried.len()).unwrap_or(u32::MAX)
    }

    /// How long the attempt that begins may wait for a connection, and for an answer to begin, if that is
    /// less than the time until the deadline.
    pub(crate) fn patience(&self, now: Instant) -> (Option<Duration>, Option<Duration>) {
        let is_shorter = later(now, self.policy.read_patience) < self.deadline;
        let patience = (is_shorter && self.has_other(now)).then_some(self.policy.read_patience);
        let can_repeat = !self.operation.is_write() || self.policy.repeat_unknown_writes;
        (patience, patience.filter(|_| can_repeat))
    }

    /// Records a failed attempt, and returns when the next one may begin. The health of its node must have
    /// been updated before.
    ///
    /// The operation's failure, when no further attempt is allowed: the failure is of a kind that is not
    /// repeated, the attempts are used up, or the next one would begin after the deadline.
    pub(crate) fn after(&mut self, failure: Failure, now: Instant) -> Result<Instant, Error> {
        let is_repeatable = self.is_repeatable(&failure);
        let error = self.error(failure);
        if !is_repeatable || self.attempts() >= self.policy.attempts_max {
            return Err(error);
        }
        let next = self.nodes.choose(&self.wanted, self.turn, &self.tried, now);
        let backed_off = later(now, self.backoff());
        let due = match next.map(|node| node.health(now)) {
            Some(Health::RestsUntil(until)) => backed_off.max(until),
            _ => backed_off,
        };
        if due >= self.deadline {
            // Waiting would only replace this error by a timeout.
            return Err(error);
        }
        self.previous = Some(error);
        Ok(due)
    }

    /// The error of an operation that had no place in flight.
    pub(crate) fn without_place(self, NoPlace { has_waited }: NoPlace, in_flight_max: usize) -> Error {
        let waited = has_waited.then_some(self.timeout);
        Error::TooManyInFlight { operation: self.operation, in_flight_max, waited }
    }

    fn is_repeatable(&self, failure: &Failure) -> bool {
        let is_read = !self.operation.is_write();
        match failure.cause {
            Cause::Connect(_) | Cause::Status { code: 503, .. } => true,
            Cause::Lost(_) if !failure.sent => true,
            Cause::Lost(_) | Cause::Impatient { .. } | Cause::Status { code: 504, .. } => {
                is_read || self.policy.repeat_unknown_writes
            }
            // A repeated read does no harm, and another node may not have this fault.
            Cause::Cut(_) | Cause::Status { code: 500..=599, .. } => is_read,
            Cause::DeadlinePassed { .. }
            | Cause::Status { .. }
            | Cause::TooLarge { .. }
            | Cause::Protocol { .. } => false,
        }
    }

    /// The operation's error, if `failure` is its end.
    fn error(&mut self, failure: Failure) -> Error {
        self.is_outcome_unknown |= self.operation.is_write() && failure.is_outcome_unknown();
        let operation = self.operation.clone();
        let node = failure.node.map_or_else(|| Arc::from("any node"), |node| node.name());
        let attempts = self.attempts();
        let may_have_taken_effect = self.is_outcome_unknown;
        let previous = self.previous.take().map(Box::new);
        let timed_out = |waiting_for, after, previous| Error::TimedOut {
            operation: operation.clone(),
            node: Arc::clone(&node),
            waiting_for,
            after,
            attempts,
            may_have_taken_effect,
            previous,
        };
        match failure.cause {
            Cause::Connect(source) | Cause::Lost(source) => {
                Error::Unreachable { operation, node, attempts, may_have_taken_effect, source }
            }
            Cause::Cut(source) => Error::Cut { operation, node, entries: 0, source },
            Cause::Impatient { after } => timed_out("answer", after, previous),
            Cause::DeadlinePassed { waiting_for } => timed_out(waiting_for, self.timeout, previous),
            Cause::TooLarge { bytes_max } => Error::TooLarge { operation, node, bytes_max },
            Cause::Protocol { message } => {
                Error::Protocol { operation, node, message, may_have_taken_effect }
            }
            Cause::Status { code, message, retry_after, missed } => match code {
                400..=499 => Error::Refused { operation, node, status: code, message, may_have_taken_effect },
                503 => Error::Overloaded {
                    operation,
                    node,
                    attempts,
                    retry_after,
                    message,
                    may_have_taken_effect,
                },
                504 => Error::NotEnoughReplicas {
                    operation,
                    node,
                    attempts,
                    confirmed: missed.confirmed,
                    required: missed.required,
                    from: missed.from,
                    message,
                    may_have_taken_effect,
                },
                507 => Error::DiskFull { operation, node, message, may_have_taken_effect },
                500..=599 => {
                    Error::ServerFault { operation, node, status: code, message, may_have_taken_effect }
                }
                _ => {
                    let message = format!("status {code} is not one of this operation's: {message}");
                    Error::Protocol { operation, node, message, may_have_taken_effect }
                }
            },
        }
    }

    /// The wait before the next attempt: doubled with each, random between half of that and all of it.
    fn backoff(&self) -> Duration {
        let doubled = self.policy.backoff_min.saturating_mul(1 << (self.attempts().max(1) - 1).min(30));
        let half = doubled.min(self.policy.backoff_max) / 2;
        let seed = u64::from(std::process::id()) << 32 ^ self.turn as u64;
        let per_mille = mix(seed ^ u64::from(self.attempts())) % 1_001;
        half + half.saturating_mul(u32::try_from(per_mille).unwrap_or(0)) / 1_000
    }
}

/// The instant `wait` after `now`; 30 years after it where that cannot be expressed.
pub(crate) fn later(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or_else(|| now + Duration::from_hours(24 * 365 * 30))
}

/// Spreads the bits of `value` over all 64 (the finaliser of splitmix64; Steele, Lea, Flood, 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{PutOptions, ReadOptions};
    use crate::pool::tests::nodes as list;
    use crate::pool::{Access, PoolLimits};
    use bytes::Bytes;

    fn nodes(count: usize) -> Arc<Nodes> {
        let limits =
            PoolLimits { connections_max: 1, connect_timeout: Duration::MAX, idle_timeout: Duration::MAX };
        Arc::new(Nodes::new(list(count), limits, Access::default(), true))
    }

    fn course(is_write: bool, policy: RetryPolicy, nodes: &Arc<Nodes>, now: Instant) -> Course {
        let call = if is_write {
            Call::put(b"k", Bytes::new(), PutOptions::default())
        } else {
            Call::get(b"k", ReadOptions::default())
        };
        Course::begin(&call.unwrap(), policy, Arc::clone(nodes), Duration::from_secs(5), now)
    }

    /// Makes an attempt that ends in `failure`.
    fn fail(course: &mut Course, failure: Failure, now: Instant) -> Result<Instant, Error> {
        let node = course.aim(now).unwrap();
        if let Cause::Status { code: 503, retry_after: Some(wait), .. } = failure.cause {
            node.rest(now + wait);
        }
        course.after(failure.at(&node), now)
    }

    fn status(code: u16, retry_after: Option<u64>) -> Failure {
        let retry_after = retry_after.map(Duration::from_secs);
        Failure::sent(Cause::Status { code, message: String::new(), retry_after, missed: Missed::default() })
    }

    /// For each kind of failure: whether it is repeated for a read, for a write, and for a write with
    /// `repeat_unknown_writes`; and whether the write's outcome is then unknown.
    #[test]
    fn table_of_failures() {
        let check = |failure: fn() -> Failure, repeats: [bool; 3], unknown: bool| {
            let bold = RetryPolicy { repeat_unknown_writes: true, ..RetryPolicy::default() };
            let cases = [(false, RetryPolicy::default()), (true, RetryPolicy::default()), (true, bold)];
            for ((is_write, policy), expect) in cases.into_iter().zip(repeats) {
                let now = Instant::now();
                let next = fail(&mut course(is_write, policy, &nodes(2), now), failure(), now);
                assert_eq!(next.is_ok(), expect, "{:?} write {is_write} {next:?}", failure());
                let mut once = course(is_write, RetryPolicy::NONE, &nodes(2), now);
                let none = fail(&mut once, failure(), now).unwrap_err();
                assert_eq!(none.may_have_taken_effect(), is_write && unknown, "{none}");
            }
        };
        check(|| Failure::unsent(Cause::Connect("".into())), [true; 3], false);
        check(|| Failure::unsent(Cause::Lost("".into())), [true; 3], false);
        check(|| Failure::sent(Cause::Lost("".into())), [true, false, true], true);
        check(|| Failure::sent(Cause::Impatient { after: Duration::ZERO }), [true, false, true], true);
        check(|| Failure::sent(Cause::DeadlinePassed { waiting_for: "answer" }), [false; 3], true);
        check(|| Failure::unsent(Cause::DeadlinePassed { waiting_for: "answer" }), [false; 3], false);
        check(|| Failure::sent(Cause::Protocol { message: String::new() }), [false; 3], true);
        check(|| status(503, None), [true; 3], false);
        check(|| status(504, None), [true, false, true], true);
        check(|| status(500, None), [true, false, false], true);
        check(|| status(502, None), [true, false, false], true);
        check(|| status(507, None), [true, false, false], false);
        check(|| status(400, None), [false; 3], false);
        check(|| status(302, None), [false; 3], true);
    }

    #[test]
    fn what_speaks_against_a_node() {
        let second = Duration::from_secs(1);
        let check = |failure: Failure, waited: Duration, expect: bool| {
            assert_eq!(failure.is_node_suspect(waited, second), expect, "{failure:?}");
        };
        let late = || Cause::DeadlinePassed { waiting_for: "answer" };
        check(Failure::unsent(Cause::Connect("".into())), Duration::ZERO, true);
        check(Failure::sent(Cause::Lost("".into())), Duration::ZERO, true);
        check(Failure::sent(Cause::Impatient { after: second }), second, true);
        check(Failure::sent(late()), second, true);
        check(Failure::sent(late()), second / 2, false);
        check(Failure::unsent(late()), second, false);
        check(status(500, None), second, false);
        check(Failure::sent(Cause::Cut("".into())), second, false);
    }

    #[test]
    fn each_attempt_goes_to_the_next_node_and_they_end() {
        let now = Instant::now();
        let mut course = course(false, RetryPolicy::default(), &nodes(3), now);
        let error = loop {
            if let Err(error) = fail(&mut course, Failure::sent(Cause::Lost("".into())), now) {
                break error;
            }
        };
        let seen: Vec<_> = course.tried.iter().map(|node| node.name().to_string()).collect();
        assert_eq!(seen, ["http://n0:1", "http://n1:1", "http://n2:1", "http://n0:1"]);
        assert!(
            matches!(error, Error::Unreachable { attempts: 4, may_have_taken_effect: false, .. }),
            "{error}"
        );
    }

    #[test]
    fn a_doubtful_attempt_is_not_forgotten() {
        let now = Instant::now();
        let bold = RetryPolicy { repeat_unknown_writes: true, ..RetryPolicy::default() };
        let mut course = course(true, bold, &nodes(2), now);
        fail(&mut course, Failure::sent(Cause::Lost("".into())), now).unwrap();
        let error = fail(&mut course, status(400, None), now).unwrap_err();
        assert!(matches!(error, Error::Refused { may_have_taken_effect: true, .. }), "{error}");
    }

    /// A full disk means that its own attempt stored nothing; it proves nothing about the attempt before.
    #[test]
    fn disk_full_does_not_take_an_earlier_attempt_back() {
        let now = Instant::now();
        let bold = RetryPolicy { repeat_unknown_writes: true, ..RetryPolicy::default() };
        let mut course = course(true, bold, &nodes(2), now);
        fail(&mut course, status(504, None), now).unwrap();
        let error = fail(&mut course, status(507, None), now).unwrap_err();
        assert!(matches!(error, Error::DiskFull { may_have_taken_effect: true, .. }), "{error}");
    }

    #[test]
    fn a_node_that_rests_is_left_alone_as_long_as_it_asked() {
        let now = Instant::now();
        // Another node is asked at once.
        let both = nodes(2);
        let mut turn = course(true, RetryPolicy::default(), &both, now);
        assert!(fail(&mut turn, status(503, Some(2)), now).unwrap() < now + Duration::from_secs(1));
        // Both rest: the wait is for the one whose rest ends first.
        assert_eq!(fail(&mut turn, status(503, Some(1)), now).unwrap(), now + Duration::from_secs(1));
        assert_eq!(&*turn.aim(now).unwrap().name(), "http://n1:1");
        // A new operation goes to the one whose rest ends first, too, and does not wait.
        let mut other = course(false, RetryPolicy::default(), &both, now);
        assert_eq!(&*other.aim(now).unwrap().name(), "http://n1:1");
        // A rest that ends after the deadline ends the operation at once.
        let mut turn = course(true, RetryPolicy::default(), &nodes(1), now);
        let error = fail(&mut turn, status(503, Some(6)), now).unwrap_err();
        assert!(matches!(error, Error::Overloaded { attempts: 1, .. }), "{error}");
    }

    #[test]
    fn backoff_stays_in_its_bounds() {
        let now = Instant::now();
        let policy = RetryPolicy { attempts_max: u32::MAX, ..RetryPolicy::default() };
        let nodes = nodes(1);
        for turn in 0..100 {
            let mut course = course(false, policy, &nodes, now);
            for attempts in 1..12 {
                course.aim(now);
                let full = Duration::from_millis(20 * 2u64.pow(attempts - 1)).min(policy.backoff_max);
                let wait = course.backoff();
                assert!((full / 2..=full).contains(&wait), "{turn}/{attempts}: {wait:?} of {full:?}");
            }
        }
    }

    #[test]
    fn patience_needs_somebody_else_to_ask() {
        let now = Instant::now();
        let check = |is_write, policy, count, expect: bool| {
            let mut course = course(is_write, policy, &nodes(count), now);
            course.aim(now);
            let (connection, answer) = course.patience(now);
            assert_eq!(answer.is_some(), expect);
            assert!(connection.is_some() || answer.is_none());
        };
        let default = RetryPolicy::default();
        check(false, default, 2, true);
        check(false, default, 1, false);
        check(true, default, 2, false);
        check(true, RetryPolicy { repeat_unknown_writes: true, ..default }, 2, true);
        check(false, RetryPolicy { attempts_max: 1, ..default }, 2, false);
        check(false, RetryPolicy { read_patience: Duration::from_secs(6), ..default }, 2, false);
        // Before anything is sent, a write has the same patience.
        let mut write = course(true, default, &nodes(2), now);
        write.aim(now);
        assert_eq!(write.patience(now), (Some(default.read_patience), None));
        // A node that is set aside does not count.
        let list = list(2);
        list[1].set_aside();
        let limits =
            PoolLimits { connections_max: 1, connect_timeout: Duration::MAX, idle_timeout: Duration::MAX };
        let mut course =
            course(false, default, &Arc::new(Nodes::new(list, limits, Access::default(), true)), now);
        course.aim(now);
        assert_eq!(course.patience(now), (None, None));
    }
}
