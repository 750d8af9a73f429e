//! Chains of conditional writes: whether each version of a key was replaced by one write at most, and none was skipped.
//!
//! `kvorum bench cas --verify` and the tests of real clusters check their clients' results by it.

/// A write whose condition held. Versions are compared as text: all have the same length.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Success {
    /// The version that it got.
    pub version: String,
    /// The version that it replaced; none for a key without a value.
    pub expected: Option<String>,
    /// The number in its value.
    pub id: u64,
}

/// The conditional writes of one key.
#[derive(Debug, Default)]
pub struct Writes {
    /// Writes whose condition held.
    pub successes: Vec<Success>,
    /// Writes of unknown outcome, by the number in their values.
    pub unknown: Vec<u64>,
}

impl Writes {
    /// Adds the writes of another client.
    pub fn add(&mut self, other: Self) {
        self.successes.extend(other.successes);
        self.unknown.extend(other.unknown);
    }

    /// Checks that the successes are a chain up to the `last` version and value of the key. Between two of them there may be
    /// writes of unknown outcome, each once.
    ///
    /// # Errors
    /// The first break of the chain, as text.
    pub fn check(&mut self, last: Option<(&str, &[u8])>) -> Result<(), String> {
        self.successes.sort();
        let (mut latest, mut between): (Option<&Success>, usize) = (None, 0);
        for success in &self.successes {
            let version = latest.map(|latest| &latest.version);
            // A success that is skipped was lost, or the condition was judged on an older value.
            if success.expected.as_ref() < version {
                return Err(format!("{success:?} came just after {latest:?}"));
            }
            between += usize::from(success.expected.as_ref() != version);
            latest = Some(success);
        }
        if let Some(latest) = latest {
            let Some((version, value)) = last else {
                return Err(format!("{latest:?} was lost: there is no value"));
            };
            if version < latest.version.as_str() {
                return Err(format!("{latest:?} was lost: the last version is {version}"));
            }
            let is_of = |id: &u64| id.to_string().as_bytes() == value;
            if !is_of(&latest.id) && !self.unknown.iter().any(is_of) {
                return Err(format!(
                    "no client wrote the value {} of version {version}",
                    value.escape_ascii()
                ));
            }
        }
        if between > self.unknown.len() {
            let unknown = self.unknown.len();
            return Err(format!(
                "no client wrote {between} of the versions, and {unknown} writes are unknown"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn success(version: &str, expected: Option<&str>, id: u64) -> Success {
        Success { version: version.to_owned(), expected: expected.map(str::to_owned), id }
    }

    /// A version that is replaced twice, one that is skipped, one that no client wrote, and a lost end are found.
    #[test]
    fn broken_chains_are_found() {
        let start = [success("a", None, 1), success("b", Some("a"), 2)];
        let holds = |more: Option<Success>, unknown: &[u64], last: Option<(&str, &[u8])>| {
            let successes = start.iter().cloned().chain(more).collect();
            Writes { successes, unknown: unknown.to_vec() }.check(last).is_ok()
        };
        let end = Some(("c", &b"3"[..]));
        assert!(holds(Some(success("c", Some("b"), 3)), &[], end));
        assert!(!holds(Some(success("c", Some("a"), 3)), &[], end));
        assert!(!holds(Some(success("c", None, 3)), &[1], end));
        assert!(!holds(Some(success("d", Some("c"), 3)), &[], Some(("d", b"3"))));
        assert!(holds(Some(success("d", Some("c"), 3)), &[9], Some(("d", b"3"))));
        assert!(!holds(Some(success("c", Some("b"), 3)), &[], Some(("b", b"2"))));
        assert!(!holds(None, &[], None));
        assert!(holds(None, &[9], Some(("c", b"9"))));
        assert!(!holds(None, &[], Some(("c", b"9"))));
    }
}
