//! Counters: clients that add to numbers, each with addends of its own, so that a number shows which adds it counts.
//!
//! The addends of a key are the powers of four: the base-4 digit of an add is 0 where it has not been counted, 1 where it
//! has been counted once, and 2 or more where it has been counted again. [`crate::invariants`] judges the numbers.
//! Counters have keys of their own, which are outside of every range.

use crate::history::AckFrom;
use crate::http_client::{Answer, Failure};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use std::fmt;
use std::time::Duration;

/// Adds that one key takes: their sum is a number of 64 bits, even if each is counted three times.
pub const ADDS_MAX: u32 = 31;

/// An operation on a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterOperation {
    /// Its number, unique among all operations.
    pub id: u64,
    /// The client.
    pub client: u16,
    /// The node that was asked.
    pub node: u16,
    /// The key.
    pub key: Bytes,
    /// The base-4 digit that it adds to; none for a read.
    pub digit: Option<u32>,
    /// The replicas that it asked for: the default.
    pub replicas: AckFrom,
    /// An instant before the request was sent.
    pub invoked: Duration,
    /// An instant after the answer had arrived, or the client had given up.
    pub returned: Duration,
    /// Its result.
    pub outcome: Counted,
}

/// The result of an operation on a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// The number, after an add or as it was read.
    Number(i64),
    /// Certainly nothing was done.
    Refused {
        /// The status; 0 where there was no connection.
        status: u16,
    },
    /// An answer that no operation on these keys may have: the value is no number, or a condition failed.
    Wrong {
        /// The status.
        status: u16,
    },
    /// An add may have been counted, once, or may be counted later.
    Unknown,
}

/// The key of a counter.
pub fn key_of(number: u16) -> Bytes {
    Bytes::from(format!("counter-{number}"))
}

/// Whether a key is a counter's.
pub fn is_counter(key: &[u8]) -> bool {
    key.starts_with(b"counter-")
}

/// The request that adds to `digit`, or reads.
pub fn request_of(authority: &str, key: &Bytes, digit: Option<u32>) -> Request<Full<Bytes>> {
    let key = key.escape_ascii();
    let (method, target) = match digit {
        Some(digit) => (Method::POST, format!("/v0/entity?id={key}&add={}", addend(digit))),
        None => (Method::GET, format!("/v0/entity?id={key}")),
    };
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.method_mut() = method;
    *request.uri_mut() = target.parse().unwrap_or_default();
    if let Ok(host) = HeaderValue::from_str(authority) {
        request.headers_mut().insert(http::header::HOST, host);
    }
    request
}

/// The outcome of an answer.
pub fn outcome_of(digit: Option<u32>, answer: Result<&Answer, Failure>) -> Counted {
    let answer = match answer {
        Ok(answer) => answer,
        Err(Failure::NotSent) => return Counted::Refused { status: 0 },
        Err(Failure::Timeout | Failure::Cut) => return Counted::Unknown,
    };
    let status = answer.status.as_u16();
    let number = std::str::from_utf8(&answer.body).ok().and_then(|number| number.parse().ok());
    match (digit, answer.status, number) {
        (_, StatusCode::OK, Some(number)) => Counted::Number(number),
        (None, StatusCode::NOT_FOUND, _) => Counted::Number(0),
        (_, StatusCode::OK, None) => Counted::Wrong { status },
        (_, StatusCode::SERVICE_UNAVAILABLE | StatusCode::INSUFFICIENT_STORAGE, _) => {
            Counted::Refused { status }
        }
        _ if (400..500).contains(&status) => Counted::Wrong { status },
        _ => Counted::Unknown,
    }
}

/// The addend of `digit`.
pub fn addend(digit: u32) -> i64 {
    1 << (2 * digit)
}

/// The digits that `number` counts, as a set of bits.
///
/// # Errors
/// The digit that it counts more than once; [`ADDS_MAX`] for a number that no adds can make.
pub fn digits_of(number: i64) -> Result<u64, u32> {
    let number = u64::try_from(number).map_err(|_| ADDS_MAX)?;
    (0..32).try_fold(0, |digits, digit| match (number >> (2 * digit)) & 3 {
        0 => Ok(digits),
        1 if digit < ADDS_MAX => Ok(digits | 1 << digit),
        _ => Err(digit),
    })
}

impl fmt::Display for CounterOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, client, node, .. } = self;
        let (invoked, returned) = (self.invoked.as_secs_f64(), self.returned.as_secs_f64());
        write!(f, "{invoked:>11.6} {returned:>11.6}  #{id:<5} client {client:<2} node {node:<2} ")?;
        match self.digit {
            Some(digit) => write!(f, "add 4^{digit}: ")?,
            None => f.write_str("read: ")?,
        }
        match self.outcome {
            Counted::Number(number) => match digits_of(number) {
                Ok(digits) => write!(f, "counts {digits:031b}"),
                Err(digit) => write!(f, "counts {digit} more than once: {number}"),
            },
            Counted::Refused { status } => write!(f, "refused {status}"),
            Counted::Wrong { status } => write!(f, "wrong {status}"),
            Counted::Unknown => f.write_str("unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number shows which adds it counts, and which it counts twice.
    #[test]
    fn numbers_show_their_adds() {
        let sum = |digits: &[u32]| digits.iter().map(|digit| addend(*digit)).sum::<i64>();
        assert_eq!(digits_of(0), Ok(0));
        assert_eq!(digits_of(sum(&[0, 2, 30])), Ok(1 | 4 | 1 << 30));
        assert_eq!(digits_of(sum(&[0, 2, 2])), Err(2));
        assert_eq!(digits_of(sum(&[5, 5, 5])), Err(5));
        assert_eq!(digits_of(-1), Err(ADDS_MAX));
        let all: Vec<u32> = (0..ADDS_MAX).collect();
        assert_eq!(digits_of(sum(&all)), Ok((1 << ADDS_MAX) - 1));
    }
}
