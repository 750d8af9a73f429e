//! Instants as clients see them: any instant that a record can hold is shown in a form that clients can read.

use http::HeaderValue;
use kvorum_core::UnixMillis;
use std::time::{Duration, SystemTime};

/// The last millisecond that an HTTP date can name: its year has four digits.
const DATE_MILLIS_MAX: u64 = 253_402_300_799_999;
/// The largest integer that every JSON reader reads exactly: JavaScript numbers have 53 bits.
const NUMBER_MAX: u64 = (1 << 53) - 1;

/// `at` as an HTTP date, such as `Sun, 22 Nov 2026 02:07:08 GMT`; later instants become the end of the year 9999.
pub(super) fn date(at: UnixMillis) -> Option<HeaderValue> {
    let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(at.0.min(DATE_MILLIS_MAX)))?;
    HeaderValue::try_from(httpdate::fmt_http_date(at)).ok()
}

/// `at` in Unix milliseconds, as a number that every client can read; later instants become 2^53 - 1, in the year
/// 287,396.
pub(super) fn shown(at: UnixMillis) -> u64 {
    at.0.min(NUMBER_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no instant that a record can hold panics or is unreadable. Method: both ends of the range of dates, and of
    /// versions, expiries and numbers.
    #[test]
    fn every_instant_can_be_shown() {
        let check = |at: u64, text: &str, number: u64| {
            assert_eq!(date(UnixMillis(at)).unwrap(), text, "{at}");
            assert_eq!(shown(UnixMillis(at)), number);
        };
        check(0, "Thu, 01 Jan 1970 00:00:00 GMT", 0);
        check(1_795_313_228_999, "Sun, 22 Nov 2026 02:07:08 GMT", 1_795_313_228_999);
        let last = "Fri, 31 Dec 9999 23:59:59 GMT";
        check(DATE_MILLIS_MAX, last, DATE_MILLIS_MAX);
        check(DATE_MILLIS_MAX + 1, last, DATE_MILLIS_MAX + 1);
        check((1 << 48) - 1, last, (1 << 48) - 1);
        check(NUMBER_MAX + 1, last, NUMBER_MAX);
        check(u64::MAX, last, NUMBER_MAX);
    }
}
