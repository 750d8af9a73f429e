//! A row of a cut, as a node sends it: one JSON object a line.

use crate::error::BackupError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::Deserialize;

/// What one node holds of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) key: Bytes,
    /// The version that decides.
    pub(crate) version: String,
    /// The version that clients see, where it is another one.
    pub(crate) etag: Option<String>,
    pub(crate) expires: Option<u64>,
    pub(crate) is_deleted: bool,
    /// `None` for a deletion, and when another node is to send it.
    pub(crate) value: Option<Bytes>,
}

#[derive(Deserialize)]
struct Line {
    key: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
    version: String,
    etag: Option<String>,
    expires: Option<u64>,
    #[serde(default)]
    is_deleted: bool,
}

impl Row {
    /// Reads a line; the error is a text.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, String> {
        let line: Line = serde_json::from_slice(line)
            .map_err(|error| format!("a line of a cut cannot be read: {error}"))?;
        let key = bytes(line.key, line.key_base64)?.ok_or("a line of a cut has no key")?;
        let value = bytes(line.value, line.value_base64)?;
        let Line { version, etag, expires, is_deleted, .. } = line;
        Ok(Self { key, version, etag, expires, is_deleted, value })
    }

    /// Whether it decides over `other`, of the same key: the newer version, then the deletion, then the one with a value.
    pub(crate) fn is_better_than(&self, other: &Self) -> bool {
        let rank = |row: &Self| (row.is_deleted, row.value.is_some());
        (&self.version, rank(self)) > (&other.version, rank(other))
    }

    /// The timestamp of its version.
    pub(crate) fn clock(&self) -> Result<u64, BackupError> {
        let digits = self.version.split('-').next().filter(|digits| digits.len() == 16);
        digits
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
            .ok_or_else(|| BackupError::Answer { reason: format!("{:?} is no version", self.version) })
    }

    /// What it counts towards the rate.
    pub(crate) fn bytes(&self) -> u64 {
        (self.key.len() + self.value.as_ref().map_or(0, Bytes::len)) as u64
    }
}

fn bytes(text: Option<String>, base64: Option<String>) -> Result<Option<Bytes>, String> {
    match (text, base64) {
        (None, None) => Ok(None),
        (Some(text), None) => Ok(Some(text.into())),
        (None, Some(base64)) => match BASE64.decode(base64) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(error) => Err(format!("a line of a cut has bad base64: {error}")),
        },
        (Some(_), Some(_)) => Err("a line of a cut has a key or value twice".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(line: &str) -> Row {
        Row::parse(line.as_bytes()).unwrap()
    }

    #[test]
    fn rows_are_read() {
        let whole = row(r#"{"key":"k","value_base64":"/w==","version":"2-1","etag":"1-1","expires":5}"#);
        assert_eq!(
            (&whole.value.unwrap()[..], whole.etag.as_deref(), whole.expires),
            (&b"\xff"[..], Some("1-1"), Some(5))
        );
        assert!(row(r#"{"key":"k","version":"2-1","is_deleted":true}"#).is_deleted);
        for bad in [
            "",
            "{}",
            r#"{"key":"k"}"#,
            r#"{"key":"k","key_base64":"aw==","version":"1"}"#,
            r#"{"key_base64":"?","version":"1"}"#,
        ] {
            assert!(Row::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let clock = row(r#"{"key":"k","version":"0000000000000010-0000000000000001"}"#).clock();
        assert_eq!(clock.unwrap(), 16);
        assert!(row(r#"{"key":"k","version":"10-1"}"#).clock().is_err());
    }

    /// Of one version the deletion of what has expired decides, and a header does not hide a value.
    #[test]
    fn the_newest_row_decides() {
        let old = row(r#"{"key":"k","version":"1-1","value":"v"}"#);
        let head = row(r#"{"key":"k","version":"2-1"}"#);
        let whole = row(r#"{"key":"k","version":"2-1","value":"v"}"#);
        let deleted = row(r#"{"key":"k","version":"2-1","is_deleted":true}"#);
        let rising = [&old, &head, &whole, &deleted];
        for (at, one) in rising.iter().enumerate() {
            for (beside, other) in rising.iter().enumerate() {
                assert_eq!(one.is_better_than(other), at > beside, "{one:?} {other:?}");
            }
        }
    }
}
