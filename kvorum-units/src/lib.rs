//! Durations and sizes as people write them: one grammar for settings, the command line, requests and files. Bounds are
//! the caller's.

use std::time::Duration;

/// The most decimals that a number may have.
const DECIMALS_MAX: usize = 18;

/// Reads `500ms`, `30s`, `1.5h` or `7d`. Units are `us`, `ms`, `s`, `m`, `h` and `d`; a number without one is seconds.
/// A fraction of a nanosecond is rounded up, so that only zero is zero. None for any other text, and beyond `u64::MAX`
/// seconds.
pub fn duration(text: &str) -> Option<Duration> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(split)?;
    let unit_nanos: u128 = match unit {
        "us" => 1_000,
        "ms" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return None,
    };
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    if decimals.len() > DECIMALS_MAX {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(decimals.len()).ok()?);
    let fraction = (u128::from(digits(decimals)?) * unit_nanos).div_ceil(scale);
    let nanos = u128::from(digits(whole)?) * unit_nanos + fraction;
    let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
    Some(Duration::new(seconds, u32::try_from(nanos % 1_000_000_000).ok()?))
}

/// The milliseconds of `duration`, rounded up; none beyond `u64::MAX`.
pub fn millis_up(duration: Duration) -> Option<u64> {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).ok()
}

/// Reads a number of bytes: `512`, `64KiB`, `16MiB`, `2GiB` or `1TiB`. None for any other text, and beyond `u64::MAX`.
pub fn bytes(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(split)?;
    let unit: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    digits(number)?.checked_mul(unit)
}

/// A number of digits alone: `str::parse` would take a sign as well.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_read() {
        for (text, millis) in [
            ("5", Some(5_000)),
            ("05", Some(5_000)),
            ("2.5", Some(2_500)),
            ("1.5s", Some(1_500)),
            ("0.0001", Some(1)),
            ("0.000000000000000001us", Some(1)),
            ("500ms", Some(500)),
            ("500us", Some(1)),
            ("15m", Some(900_000)),
            ("0.5h", Some(1_800_000)),
            ("7d", Some(604_800_000)),
            ("0", Some(0)),
            ("0.0", Some(0)),
        ] {
            assert_eq!(duration(text).and_then(millis_up), millis, "{text:?}");
        }
        let bad =
            ["", "s", "soon", "-5", "+5", "5 ", " 5", "5 s", "5.", ".5", "1e3", "5w", "1.2.3", "inf", "NaN"];
        let too_long = ["0.0000000000000000001", "18446744073709551615d", "18446744073709551616"];
        for text in bad.into_iter().chain(too_long) {
            assert_eq!(duration(text), None, "{text:?}");
        }
    }

    #[test]
    fn sizes_are_read() {
        for (text, size) in [("0", 0), ("512", 512), ("7B", 7), ("64KiB", 65_536), ("2GiB", 1 << 31)] {
            assert_eq!(bytes(text), Some(size), "{text:?}");
        }
        for bad in ["", "KiB", "64K", "64kib", "64 KiB", "1.5MiB", "-1", "+1", "16777216TiB"] {
            assert_eq!(bytes(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "\\PC{0,40}|[0-9.]{0,40}(us|ms|s|m|h|d|KiB|GiB)?") {
            let _ = (duration(&text).map(millis_up), bytes(&text));
        }
    }
}
