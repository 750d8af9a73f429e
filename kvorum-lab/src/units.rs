//! Numbers as people write and read them: durations, sizes, ratios.

use std::time::Duration;

/// `value` as a float, for ratios and printing.
#[expect(clippy::cast_precision_loss, reason = "printed figures have four digits, a float has fifteen")]
pub const fn float(value: u64) -> f64 {
    value as f64
}

/// `count` per second over `elapsed`; 0 if no time has passed.
pub fn per_second(count: u64, elapsed: Duration) -> f64 {
    let seconds = elapsed.as_secs_f64();
    if seconds > 0.0 { float(count) / seconds } else { 0.0 }
}

/// The nanoseconds of `duration`, at most `u64::MAX` (584 years).
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads `64`, `5k`, `2M` or `1G`: wrk's thousands.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let units = [(['k', 'K'], 1_000), (['m', 'M'], 1_000_000), (['g', 'G'], 1_000_000_000)];
    let with_unit = units.iter().find_map(|&(unit, scale)| Some((text.strip_suffix(unit)?, scale)));
    let (digits, scale) = with_unit.unwrap_or((text, 1));
    let count: Option<u64> = digits.parse().ok();
    count.and_then(|count| count.checked_mul(scale)).ok_or_else(|| format!("not a whole number: {text:?}"))
}

/// Reads a duration above 0 in the [grammar of all of kvorum](kvorum_units::duration).
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    match kvorum_units::duration(text) {
        Some(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(format!("not a duration above 0, such as 500ms, 30s, 7m or a number of seconds: {text:?}")),
    }
}

/// A latency in wrk's style: `12.34us`, `1.50ms`, `2.00s`.
pub fn latency(nanos: u64) -> String {
    let value = float(nanos);
    if value < 1e6 {
        format!("{:.2}us", value / 1e3)
    } else if value < 1e9 {
        format!("{:.2}ms", value / 1e6)
    } else {
        format!("{:.2}s", value / 1e9)
    }
}

/// A size in wrk's style: `512.00B`, `1.50KB`, `3.00MB`, `2.00GB`; powers of 1024.
pub fn size(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["B", "KB", "MB"] {
        if value < 1024.0 {
            return format!("{value:.2}{unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.2}GB")
}

/// A size in mebibytes with one decimal, as the suite's tables show memory.
pub fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", float(bytes) / MEBIBYTE)
}

/// Bytes in a mebibyte, as a float.
pub const MEBIBYTE: f64 = 1_048_576.0;

/// A count with commas between the thousands.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Seconds since 1970 as a date and time in UTC; times that no calendar of four-digit years has become its last one.
pub fn date(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    at.unwrap_or(jiff::Timestamp::MAX).strftime("%Y-%m-%d %H:%M UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: durations are parsed as everywhere in kvorum, and none is zero. Method: a table.
    #[test]
    fn durations_are_read() {
        let check = |text: &str, millis: u64| {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        };
        check("30s", 30_000);
        check("30", 30_000);
        check("0.5", 500);
        check("500ms", 500);
        check("7m", 420_000);
        check("1h", 3_600_000);
        for bad in ["", "s", "0", "-1s", "1w", "1 s", "inf", "nan", "1e400"] {
            assert!(parse_duration(bad).is_err(), "{bad:?} must be refused");
        }
    }

    /// Goal: counts as wrk takes them. Method: a table.
    #[test]
    fn counts_are_read() {
        for (text, count) in
            [("64", 64), ("5k", 5_000), ("5K", 5_000), ("2M", 2_000_000), ("1g", 1_000_000_000)]
        {
            assert_eq!(parse_count(text), Ok(count), "{text}");
        }
        for bad in ["", "k", "-1", "1.5k", "5 k", "1kk", "99999999999G"] {
            assert!(parse_count(bad).is_err(), "{bad:?} must be refused");
        }
    }

    /// Goal: figures change their unit where wrk's do. Method: values on both sides of the borders.
    #[test]
    fn figures_are_printed() {
        assert_eq!(latency(999_990), "999.99us");
        assert_eq!(latency(1_000_000), "1.00ms");
        assert_eq!(latency(2_500_000_000), "2.50s");
        assert_eq!(size(1023.0), "1023.00B");
        assert_eq!(size(1536.0), "1.50KB");
        assert_eq!(size(3.0 * 1024.0 * 1024.0), "3.00MB");
        assert_eq!(size(2.0 * 1024.0 * 1024.0 * 1024.0), "2.00GB");
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }

    /// Goal: dates are those of the calendar. Method: known ones, leap days among them.
    #[test]
    fn dates() {
        let check = |seconds, expect: &str| assert_eq!(date(seconds), expect);
        check(0, "1970-01-01 00:00 UTC");
        check(951_782_400, "2000-02-29 00:00 UTC");
        check(1_735_689_599, "2024-12-31 23:59 UTC");
        check(1_795_000_000, "2026-11-18 11:06 UTC");
    }
}
