//! A cluster's answers, as values: entries, versions, the state of a node.

use bytes::Bytes;
use std::fmt;
use std::time::SystemTime;

/// The version of a record: the text between the quotes of its `ETag`.
///
/// The cluster orders versions; a client only compares them for equality.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version(String);

impl Version {
    /// The version as the cluster spelled it, without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Version {
    fn from(spelled: String) -> Self {
        Self(spelled)
    }
}

impl From<Version> for String {
    fn from(version: Version) -> Self {
        version.0
    }
}

impl AsRef<str> for Version {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key's bytes.
    pub key: Bytes,
    /// The value's bytes.
    pub value: Bytes,
    /// The version of the write that stored the value.
    pub version: Version,
    /// The instant from which on no reader sees it, to the millisecond; `None` without a time to live.
    pub expires: Option<SystemTime>,
    /// How many replicas answered the read, of how many: `ANSWERED/FROM`. Absent in a scan.
    pub replicas: Option<String>,
}

/// The answer to a HEAD: all of an [`Entry`] but its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The key's bytes.
    pub key: Bytes,
    /// The value's length in bytes, if the node reports it.
    pub value_bytes: Option<u64>,
    /// The version of the write that stored the value.
    pub version: Version,
    /// The instant from which on no reader sees it, to the millisecond; `None` without a time to live.
    pub expires: Option<SystemTime>,
    /// How many replicas answered the read, of how many: `ANSWERED/FROM`.
    pub replicas: Option<String>,
}

/// The state that a node reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The node that answered, as it was given to the client.
    pub node: String,
    /// The HTTP status code: 200 when the node accepts requests, 503 while it starts or drains.
    pub code: u16,
    /// The answer's body, usually JSON; bytes that are not UTF-8 are replaced.
    pub body: String,
}

impl Status {
    /// Whether the node accepts requests.
    pub fn is_ready(&self) -> bool {
        self.code == 200
    }
}

/// A page of a node, unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The node that answered, as it was given to the client.
    pub node: String,
    /// The HTTP status code.
    pub code: u16,
    /// The answer's body.
    pub body: Bytes,
}
