//! Values of settings: parses texts into values, or returns the reason why not.

use crate::authority::Authority;
use crate::replica::DurabilityMode;
use kvorum_core::ReplicationFactor;
use std::time::Duration;

/// URLs of nodes without a path, separated by commas, each in its normal form under RFC 3986.
pub(super) fn parse_urls(text: &str) -> Result<Vec<String>, String> {
    let urls = text.split(',').map(str::trim).filter(|url| !url.is_empty());
    urls.map(|url| {
        let parsed = Authority::of_url(url);
        let (scheme, authority) =
            parsed.ok_or_else(|| format!("{url:?} is not a URL such as http://10.0.0.1:8080"))?;
        Ok(format!("{}://{authority}", scheme.name()))
    })
    .collect()
}

/// `all`, or a number of replicas.
pub(super) fn parse_factor(text: &str) -> Result<ReplicationFactor, String> {
    match text {
        "all" => Ok(ReplicationFactor::All),
        count => count
            .parse()
            .ok()
            .filter(|count| *count > 0)
            .map(ReplicationFactor::Count)
            .ok_or_else(|| "allowed are all, or a number from 1".into()),
    }
}

/// `always`, `os` or `interval:MS`.
pub(super) fn parse_durability(text: &str) -> Result<DurabilityMode, String> {
    match text {
        "always" => Ok(DurabilityMode::Always),
        "os" => Ok(DurabilityMode::Os),
        interval => {
            let millis = interval
                .strip_prefix("interval:")
                .and_then(|millis| millis.parse().ok())
                .filter(|millis| (1..=3_600_000).contains(millis));
            millis.map(|millis| DurabilityMode::Interval(Duration::from_millis(millis))).ok_or_else(|| {
                "allowed are always, os, and interval:MS with 1 to 3600000 milliseconds".into()
            })
        }
    }
}

/// A number within bounds.
pub(super) fn parse_number(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("allowed is a number from {least} to {most}"))
}

/// Bytes, with the suffix `KiB`, `MiB` or `GiB` or none; at least `least`.
pub(super) fn parse_size(text: &str, least: u64) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit: Option<u64> = match unit.trim() {
        "" | "B" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    };
    let bytes = number.parse().ok().zip(unit).and_then(|(number, unit): (u64, u64)| number.checked_mul(unit));
    match bytes {
        Some(bytes) if bytes >= least => Ok(bytes),
        Some(_) => Err(format!("at least {least} bytes are needed")),
        None => Err("allowed is a number of bytes, with KiB, MiB or GiB behind it if you like".into()),
    }
}

/// A duration above zero and at most a day, in `ms`, `s`, `m` or `h`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit_millis: Option<u64> = match unit.trim() {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let millis =
        number.parse().ok().zip(unit_millis).and_then(|(number, unit): (u64, u64)| number.checked_mul(unit));
    match millis {
        Some(millis @ 1..=86_400_000) => Ok(Duration::from_millis(millis)),
        Some(_) => Err("allowed is more than 0 and at most 24h".into()),
        None => Err("allowed is a duration such as 500ms, 2s, 5m or 1h".into()),
    }
}
