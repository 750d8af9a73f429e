//! What comes after a failed attempt: another one, where and when, or the end.
//!
//! Decisions only: the clock is an argument, and `exchange` does the waiting and sending.

use crate::config::RetryPolicy;
use crate::error::{BoxError, Error};
use crate::operation::Operation;
use crate::pool::Node;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a node that could not be reached is asked last: some attempts of a busy client, not its whole day.
const AVOID: Duration = Duration::from_secs(1);

/// This is why one attempt failed.
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
    Status { code: u16, message: String, retry_after: Option<Duration> },
    /// The answer is larger than allowed.
    TooLarge { bytes_max: usize },
    /// The answer is not one of this protocol.
    Protocol { message: String },
}

/// This is a failed attempt.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    /// Whether any part of the request may have reached the node.
    pub(crate) sent: bool,
}

impl Failure {
    pub(crate) fn unsent(cause: Cause) -> Self {
        Self { cause, sent: false }
    }

    pub(crate) fn sent(cause: Cause) -> Self {
        Self { cause, sent: true }
    }

    /// Whether this attempt, if it was a write, may have changed the key or may yet.
    fn is_outcome_unknown(&self) -> bool {
        match self.cause {
            Cause::Status { code, .. } => !matches!(code, 400..=499 | 503 | 507),
            _ => self.sent,
        }
    }
}

/// This is the course of one operation over its attempts.
pub(crate) struct Course {
    operation: Operation,
    policy: RetryPolicy,
    nodes: Arc<[Arc<Node>]>,
    /// Where the coming attempt goes, in `nodes`.
    index: usize,
    /// How many attempts have begun.
    attempts: u32,
    /// Whether an attempt so far may have changed the key.
    is_outcome_unknown: bool,
    previous: Option<Error>,
    timeout: Duration,
    deadline: Instant,
    seed: u64,
}

impl Course {
    /// Begins at the first usable of `nodes` from number `turn` on; `nodes` are not empty.
    pub(crate) fn begin(
        operation: Operation,
        policy: RetryPolicy,
        nodes: Arc<[Arc<Node>]>,
        timeout: Duration,
        turn: usize,
        now: Instant,
    ) -> Self {
        let index = choose(&nodes, turn, now);
        Self {
            operation,
            policy,
            nodes,
            index,
            attempts: 1,
            is_outcome_unknown: false,
            previous: None,
            timeout,
            deadline: later(now, timeout),
            seed: u64::from(std::process::id()) << 32 ^ turn as u64,
        }
    }

    /// The node of the coming attempt.
    pub(crate) fn node(&self) -> Option<&Arc<Node>> {
        self.nodes.get(self.index)
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// How long the coming attempt may wait for an answer to begin, where that is less than all the time there is.
    pub(crate) fn patience(&self, now: Instant) -> Option<Duration> {
        let can_repeat = !self.operation.is_write() || self.policy.repeat_unknown_writes;
        let has_other = self.nodes.len() > 1 && self.attempts < self.policy.attempts_max;
        let is_shorter = later(now, self.policy.read_patience) < self.deadline;
        (can_repeat && has_other && is_shorter).then_some(self.policy.read_patience)
    }

    /// Takes note of a failed attempt, and says when the next one is due.
    ///
    /// # Errors
    /// The operation's failure, when no attempt is due any more: the failure is of a kind that is not repeated, the
    /// attempts are used up, or the next one would begin after the deadline.
    pub(crate) fn after(&mut self, failure: Failure, now: Instant) -> Result<Instant, Error> {
        if let Some(node) = self.node() {
            match failure.cause {
                Cause::Connect(_) | Cause::Impatient { .. } => node.avoid(later(now, AVOID)),
                Cause::Status { code: 503, retry_after: Some(wait), .. } => node.rest(later(now, wait)),
                _ => {}
            }
        }
        let is_repeatable = self.is_repeatable(&failure.cause);
        let error = self.error(failure);
        if !is_repeatable || self.attempts >= self.policy.attempts_max {
            return Err(error);
        }
        let index = choose(&self.nodes, self.index + 1, now);
        let due = later(now, self.backoff());
        let due =
            self.nodes.get(index).and_then(|node| node.rests_until()).map_or(due, |until| due.max(until));
        if due >= self.deadline {
            // Waiting would only replace what is known by a timeout.
            return Err(error);
        }
        self.index = index;
        self.attempts += 1;
        self.previous = Some(error);
        Ok(due)
    }

    fn is_repeatable(&self, cause: &Cause) -> bool {
        let is_read = !self.operation.is_write();
        match cause {
            Cause::Connect(_) | Cause::Lost(_) | Cause::Status { code: 503, .. } => true,
            Cause::Impatient { .. } | Cause::Status { code: 504, .. } => {
                is_read || self.policy.repeat_unknown_writes
            }
            Cause::Cut(_) => is_read,
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
        let node = self.node().map_or_else(|| Arc::from(""), |node| node.name());
        let attempts = self.attempts;
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
            Cause::Status { code, message, retry_after } => match code {
                400..=499 => Error::Refused { operation, node, status: code, message, may_have_taken_effect },
                503 => Error::Overloaded {
                    operation,
                    node,
                    attempts,
                    retry_after,
                    message,
                    may_have_taken_effect,
                },
                504 => Error::NotEnoughReplicas { operation, node, attempts, message, may_have_taken_effect },
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

    /// The wait before the next attempt: doubled with each, between half of that and all of it.
    fn backoff(&self) -> Duration {
        let doubled = self.policy.backoff_min.saturating_mul(1 << (self.attempts - 1).min(30));
        let half = doubled.min(self.policy.backoff_max) / 2;
        let per_mille = mix(self.seed ^ u64::from(self.attempts)) % 1_001;
        half + half.saturating_mul(u32::try_from(per_mille).unwrap_or(0)) / 1_000
    }
}

/// The first of `nodes` from number `turn` on, in a circle, that nothing speaks against; else the first to be again.
fn choose(nodes: &[Arc<Node>], turn: usize, now: Instant) -> usize {
    let in_turn = (0..nodes.len()).map(|step| turn.wrapping_add(step) % nodes.len());
    // `min_by_key` takes the first of equals, and all usable nodes are equal.
    in_turn.min_by_key(|&index| nodes.get(index).map_or(now, |node| node.usable_from(now))).unwrap_or(0)
}

/// Some instant that far from `now`; a limit without an end is 30 years.
pub(crate) fn later(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or_else(|| now + Duration::from_hours(24 * 365 * 30))
}

/// Spreads the bits of `value` over all 64 (the finaliser of splitmix64; Steele, Lea, Flood, 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::PoolLimits;
    use bytes::Bytes;

    fn nodes(count: usize) -> Arc<[Arc<Node>]> {
        let limits =
            PoolLimits { connections_max: 1, connect_timeout: Duration::MAX, idle_timeout: Duration::MAX };
        (0..count).map(|n| Arc::new(Node::new(&format!("http://n{n}:1"), limits).unwrap())).collect()
    }

    fn course(is_write: bool, policy: RetryPolicy, nodes: Arc<[Arc<Node>]>, now: Instant) -> Course {
        let key = Bytes::from_static(b"k");
        let operation = if is_write { Operation::Put { key } } else { Operation::Get { key } };
        Course::begin(operation, policy, nodes, Duration::from_secs(5), 0, now)
    }

    fn status(code: u16, retry_after: Option<u64>) -> Failure {
        let retry_after = retry_after.map(Duration::from_secs);
        Failure::sent(Cause::Status { code, message: String::new(), retry_after })
    }

    /// Each kind of failure: is it repeated for a read, for a write, for a write that may be; is a write then unknown?
    #[test]
    fn table_of_failures() {
        let check = |failure: fn() -> Failure, repeats: [bool; 3], unknown: bool| {
            let bold = RetryPolicy { repeat_unknown_writes: true, ..RetryPolicy::default() };
            let cases = [(false, RetryPolicy::default()), (true, RetryPolicy::default()), (true, bold)];
            for ((is_write, policy), expect) in cases.into_iter().zip(repeats) {
                let now = Instant::now();
                let next = course(is_write, policy, nodes(2), now).after(failure(), now);
                assert_eq!(next.is_ok(), expect, "{:?} write {is_write} {next:?}", failure());
                let none =
                    course(is_write, RetryPolicy::NONE, nodes(2), now).after(failure(), now).unwrap_err();
                assert_eq!(none.may_have_taken_effect(), is_write && unknown, "{none}");
            }
        };
        check(|| Failure::unsent(Cause::Connect("".into())), [true; 3], false);
        check(|| Failure::unsent(Cause::Lost("".into())), [true; 3], false);
        check(|| Failure::sent(Cause::Lost("".into())), [true; 3], true);
        check(|| Failure::sent(Cause::Impatient { after: Duration::ZERO }), [true, false, true], true);
        check(|| Failure::sent(Cause::DeadlinePassed { waiting_for: "answer" }), [false; 3], true);
        check(|| Failure::unsent(Cause::DeadlinePassed { waiting_for: "answer" }), [false; 3], false);
        check(|| Failure::sent(Cause::Protocol { message: String::new() }), [false; 3], true);
        check(|| status(503, None), [true; 3], false);
        check(|| status(504, None), [true, false, true], true);
        check(|| status(500, None), [false; 3], true);
        check(|| status(502, None), [false; 3], true);
        check(|| status(507, None), [false; 3], false);
        check(|| status(400, None), [false; 3], false);
        check(|| status(302, None), [false; 3], true);
    }

    #[test]
    fn each_attempt_goes_to_the_next_node_and_they_end() {
        let now = Instant::now();
        let nodes = nodes(3);
        let mut course = course(true, RetryPolicy::default(), Arc::clone(&nodes), now);
        let mut seen = vec![course.index];
        let error = loop {
            match course.after(Failure::sent(Cause::Lost("".into())), now) {
                Ok(_) => seen.push(course.index),
                Err(error) => break error,
            }
        };
        assert_eq!(seen, [0, 1, 2, 0]);
        assert!(
            matches!(error, Error::Unreachable { attempts: 4, may_have_taken_effect: true, .. }),
            "{error}"
        );
    }

    #[test]
    fn a_doubtful_attempt_is_not_forgotten() {
        let now = Instant::now();
        let mut course = course(true, RetryPolicy::default(), nodes(2), now);
        course.after(Failure::sent(Cause::Lost("".into())), now).unwrap();
        let error = course.after(status(400, None), now).unwrap_err();
        assert!(matches!(error, Error::Refused { may_have_taken_effect: true, .. }), "{error}");
    }

    #[test]
    fn a_node_that_rests_is_left_alone_as_long_as_it_asked() {
        let now = Instant::now();
        // Another node takes over at once.
        let both = nodes(2);
        let mut turn = course(true, RetryPolicy::default(), Arc::clone(&both), now);
        assert!(turn.after(status(503, Some(2)), now).unwrap() < now + Duration::from_secs(1));
        assert_eq!(turn.index, 1);
        // Both rest: the wait is for the one that is back first.
        let due = turn.after(status(503, Some(1)), now).unwrap();
        assert_eq!((turn.index, due), (1, now + Duration::from_secs(1)));
        // A new operation goes to the one that is back first, too, and does not wait.
        assert_eq!(course(false, RetryPolicy::default(), both, now).index, 1);
        // A rest beyond the deadline is the end at once.
        let mut turn = course(true, RetryPolicy::default(), nodes(1), now);
        let error = turn.after(status(503, Some(6)), now).unwrap_err();
        assert!(matches!(error, Error::Overloaded { attempts: 1, .. }), "{error}");
    }

    #[test]
    fn a_node_that_cannot_be_reached_is_asked_last_for_a_while() {
        let now = Instant::now();
        let nodes = nodes(2);
        let refused = || Failure::unsent(Cause::Connect("".into()));
        course(false, RetryPolicy::default(), Arc::clone(&nodes), now).after(refused(), now).unwrap();
        let index = |at| course(false, RetryPolicy::default(), Arc::clone(&nodes), at).index;
        assert_eq!((index(now), index(now + AVOID)), (1, 0));
    }

    #[test]
    fn backoff_stays_in_its_bounds() {
        let now = Instant::now();
        let policy = RetryPolicy { attempts_max: u32::MAX, ..RetryPolicy::default() };
        let mut course = course(false, policy, nodes(1), now);
        for attempts in 1..100 {
            course.attempts = attempts;
            course.seed = u64::from(attempts) * 7;
            let full = Duration::from_millis(20 * 2u64.pow((attempts - 1).min(10))).min(policy.backoff_max);
            let wait = course.backoff();
            assert!((full / 2..=full).contains(&wait), "{attempts}: {wait:?} of {full:?}");
        }
    }

    #[test]
    fn patience_needs_somebody_else_to_ask() {
        let now = Instant::now();
        let check = |is_write, policy, count, expect: bool| {
            assert_eq!(course(is_write, policy, nodes(count), now).patience(now).is_some(), expect);
        };
        let default = RetryPolicy::default();
        check(false, default, 2, true);
        check(false, default, 1, false);
        check(true, default, 2, false);
        check(true, RetryPolicy { repeat_unknown_writes: true, ..default }, 2, true);
        check(false, RetryPolicy { attempts_max: 1, ..default }, 2, false);
        check(false, RetryPolicy { read_patience: Duration::from_secs(6), ..default }, 2, false);
    }
}
