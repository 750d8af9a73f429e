//! Counts of refusals by reason and token, with bounded labels.

use super::TOKENS_NAMED_MAX;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The name under which the tokens beyond [`TOKENS_NAMED_MAX`] are counted. No token has it: an id has no parentheses.
const OTHERS: &str = "(others)";

/// A count of refusals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The reason.
    pub reason: &'static str,
    /// The token's id; empty if the client has not proved that it holds one.
    pub token: Arc<str>,
    /// How many there were.
    pub count: u64,
}

/// Refusals by token and reason.
#[derive(Debug, Default)]
pub(super) struct Counts {
    // Guards the counts; held to add one, or to copy at most some hundred. Only refusals take it.
    counts: Mutex<BTreeMap<Arc<str>, BTreeMap<&'static str, u64>>>,
}

impl Counts {
    pub(super) fn add(&self, reason: &'static str, token: Option<&Arc<str>>) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let token = token.map_or_else(|| Arc::from(""), Arc::clone);
        let is_named = counts.len() < TOKENS_NAMED_MAX || counts.contains_key(&token);
        let token = if is_named { token } else { OTHERS.into() };
        *counts.entry(token).or_default().entry(reason).or_default() += 1;
    }

    pub(super) fn read(&self) -> Vec<Refused> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = counts.iter().flat_map(|(token, reasons)| {
            reasons.iter().map(|(&reason, &count)| Refused { reason, token: Arc::clone(token), count })
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is refused, the labels stay bounded and no refusal is lost.
    #[test]
    fn labels_are_bounded() {
        let counts = Counts::default();
        counts.add("unknown", None);
        for number in 0..1000 {
            let id: Arc<str> = format!("t{number}").into();
            counts.add("expired", Some(&id));
            counts.add("revoked", Some(&id));
        }
        let read = counts.read();
        assert_eq!(read.iter().map(|row| row.count).sum::<u64>(), 2001);
        assert!(read.len() <= 2 * (TOKENS_NAMED_MAX + 1), "{}", read.len());
        assert_eq!(read.iter().find(|row| row.token.is_empty()).map(|row| row.count), Some(1));
    }
}
