//! Values of settings: parses texts into values, or returns the reason why not.

use crate::authority;
use crate::replica::DurabilityMode;
use kvorum_core::ReplicationFactor;
use std::time::Duration;

const DURATION_MIN: Duration = Duration::from_millis(1);
const DURATION_MAX: Duration = Duration::from_hours(24);

/// URLs of nodes without a path, separated by commas, each in its normal form under RFC 3986.
pub(super) fn parse_urls(text: &str) -> Result<Vec<String>, String> {
    let urls = text.split(',').map(str::trim).filter(|url| !url.is_empty());
    urls.map(|url| {
        authority::node_url(url).ok_or_else(|| format!("{url:?} is not a URL such as http://10.0.0.1:8080"))
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

/// Bytes, with the suffix `KiB`, `MiB`, `GiB` or `TiB` or none; at least `least`.
pub(super) fn parse_size(text: &str, least: u64) -> Result<u64, String> {
    match kvorum_units::bytes(&without_space(text)) {
        Some(bytes) if bytes >= least => Ok(bytes),
        Some(_) => Err(format!("at least {least} bytes are needed")),
        None => Err("allowed is a number of bytes, with KiB, MiB, GiB or TiB behind it if you like".into()),
    }
}

/// A duration of at least a millisecond and at most a day.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    match kvorum_units::duration(&without_space(text)) {
        Some(duration) if (DURATION_MIN..=DURATION_MAX).contains(&duration) => Ok(duration),
        Some(_) => Err("allowed is at least 1ms and at most 24h".into()),
        None => Err("allowed is a duration such as 500ms, 2s, 5m or 1h, or a number of seconds".into()),
    }
}

/// Earlier releases took a space before the unit.
fn without_space(text: &str) -> String {
    text.replacen(' ', "", 1)
}
