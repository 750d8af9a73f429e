//! Limits of tokens: how many requests and bytes a second each may ask of this node.
//!
//! A [`Meter`] has one number for each limit: the instant at which all that was used would be paid off at the limit's
//! rate (the generic cell rate algorithm, ITU-T I.371). It may be up to [`BURST`] ahead, so short bursts pass. Bytes are
//! charged as they come and go, whatever is asked, so a large value leads to a debt; the requests after it wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How much may be used at once: what the limit allows in this time.
const BURST: Duration = Duration::from_secs(1);
/// The highest limit that a token can have, per second: nothing reaches it.
pub const PER_SECOND_MAX: u64 = 1 << 40;

/// The limits of a token on each node; none for no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limit {
    /// Requests per second.
    pub requests: Option<u64>,
    /// Bytes per second, received and sent.
    pub bytes: Option<u64>,
}

/// The limit that a request is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverLimit {
    /// What is limited: requests or bytes.
    pub what: &'static str,
    /// How many there may be a second.
    pub per_second: u64,
    /// In how many whole seconds the next request passes, at least one.
    pub retry_after: u64,
}

/// What a token has used, as instants on the monotonic clock in nanoseconds.
#[derive(Debug, Default)]
pub struct Meter {
    requests_paid: AtomicU64,
    bytes_paid: AtomicU64,
}

/// The token that a request has shown.
#[derive(Debug, Clone)]
pub struct User {
    /// Its id.
    pub id: Arc<str>,
    /// How much it allows.
    pub limit: Limit,
    /// How much of that was used.
    pub meter: Arc<Meter>,
}

impl PartialEq for Meter {
    /// What was used is no part of a token.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Meter {}

impl Meter {
    /// Counts a request at `now`.
    ///
    /// # Errors
    /// The limit that it is over. It is not counted then.
    pub fn take(&self, limit: Limit, now: Duration) -> Result<(), OverLimit> {
        let (now, burst) = (nanos(now), nanos(BURST));
        if let Some(per_second) = limit.bytes {
            let ahead = self.bytes_paid.load(Ordering::Relaxed).saturating_sub(now);
            if ahead > burst {
                return Err(over("bytes", per_second, ahead - burst));
            }
        }
        let Some(per_second) = limit.requests else { return Ok(()) };
        let cost = cost(1, per_second);
        let room = burst.saturating_sub(cost);
        let taken = self.requests_paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid| {
            let paid = paid.max(now);
            (paid - now <= room).then(|| paid.saturating_add(cost))
        });
        taken
            .map(drop)
            .map_err(|paid| over("requests", per_second, paid.saturating_sub(now).saturating_sub(room)))
    }

    /// Charges `bytes` that came or went at `now`.
    pub fn charge(&self, limit: Limit, bytes: u64, now: Duration) {
        let Some(per_second) = limit.bytes else { return };
        let (now, cost) = (nanos(now), cost(bytes, per_second));
        let _ = self.bytes_paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid| {
            Some(paid.max(now).saturating_add(cost))
        });
    }
}

fn over(what: &'static str, per_second: u64, wait: u64) -> OverLimit {
    OverLimit { what, per_second, retry_after: wait.div_ceil(1_000_000_000).max(1) }
}

/// How long `amount` takes at a rate, in nanoseconds.
fn cost(amount: u64, per_second: u64) -> u64 {
    let nanos = u128::from(amount) * 1_000_000_000 / u128::from(per_second.max(1));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

fn nanos(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Duration = Duration::from_secs(1000);
    const SECOND: Duration = Duration::from_secs(1);

    /// A burst of a second's requests passes, then the rate, and a refused request costs nothing.
    #[test]
    fn requests_keep_to_the_rate() {
        let limit = Limit { requests: Some(10), bytes: None };
        let meter = Meter::default();
        let passed = |at, tries: usize| (0..tries).filter(|_| meter.take(limit, at).is_ok()).count();
        assert_eq!(passed(NOW, 1000), 10);
        let over = meter.take(limit, NOW).unwrap_err();
        assert_eq!(over, OverLimit { what: "requests", per_second: 10, retry_after: 1 });
        assert_eq!(passed(NOW + SECOND / 2, 1000), 5);
        assert_eq!(passed(NOW + SECOND * 100, 1000), 10, "what is not used is not saved up");
        let (one, meter) = (Limit { requests: Some(1), bytes: None }, Meter::default());
        assert!(meter.take(one, NOW).is_ok() && meter.take(one, NOW).is_err());
        assert!(meter.take(one, NOW + SECOND).is_ok());
    }

    /// A value may be larger than a second's bytes. The requests after it wait until it is paid off.
    #[test]
    fn large_values_are_paid_off() {
        let limit = Limit { requests: None, bytes: Some(1000) };
        let meter = Meter::default();
        meter.take(limit, NOW).unwrap();
        meter.charge(limit, 10_000, NOW);
        assert_eq!(meter.take(limit, NOW).unwrap_err().retry_after, 9);
        assert!(meter.take(limit, NOW + SECOND * 8).is_err());
        assert!(meter.take(limit, NOW + SECOND * 9).is_ok());
        meter.charge(Limit::default(), u64::MAX, NOW);
        meter.charge(limit, u64::MAX, NOW);
        assert!(meter.take(limit, Duration::MAX).is_ok() && meter.take(limit, NOW).is_err());
        assert!(meter.take(Limit::default(), NOW).is_ok(), "no limit, no debt");
    }

    proptest! {
        /// Whatever is asked when, no more passes than the rate and one burst; and who waits as told passes.
        #[test]
        fn nothing_passes_beyond_the_rate(
            rate in 1_u64..1000, gaps in prop::collection::vec(0_u64..300, 1..200),
        ) {
            let (limit, meter) = (Limit { requests: Some(rate), bytes: None }, Meter::default());
            let (mut millis, mut passed) = (0, 0);
            for gap in gaps {
                millis += gap;
                let at = NOW + Duration::from_millis(millis);
                match meter.take(limit, at) {
                    Ok(()) => passed += 1,
                    Err(over) => {
                        let requests_paid = AtomicU64::new(meter.requests_paid.load(Ordering::Relaxed));
                        let later = Meter { requests_paid, ..Meter::default() };
                        prop_assert!(later.take(limit, at + Duration::from_secs(over.retry_after)).is_ok());
                    }
                }
                prop_assert!(passed * 1000 <= millis * rate + (rate + 1) * 1000, "{} in {} ms", passed, millis);
            }
        }
    }
}
