//! The contact with one peer as far as the log has reported it: a value that decides which changes are worth a line.
//!
//! Every network thread has a link to the peer and reports its changes. The log gets a line when the first link comes
//! up and when the last goes down. While none comes up, it gets one line for each reason.

use crate::peer::Setback;
use std::time::Duration;

/// How long a peer may not answer before the log says so: nodes that start together need a moment to meet.
const PATIENCE: Duration = Duration::from_secs(1);
/// Reasons that are logged until the peer answers: they could alternate for ever.
const REASONS_LEN_MAX: usize = 4;

/// A change that is worth a log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// The first contact since this node's start.
    Met,
    /// The contact is back.
    Back {
        /// How long there was no contact.
        away: Duration,
    },
    /// The contact was lost.
    Lost,
    /// There is no contact, for a reason that was not logged yet.
    Unreachable,
}

/// The contact with one peer, over all threads' links.
#[derive(Debug, Clone, Default)]
pub struct Contact {
    links_up: usize,
    /// Since when there is no contact; `None` before the first attempt failed.
    away_since: Option<Duration>,
    has_met: bool,
    /// Whether the log has said that there is no contact.
    is_told: bool,
    reasons: Vec<String>,
    reason: String,
}

impl Contact {
    /// Why there is no contact, as far as is known; empty while there is contact.
    pub fn reason(&self) -> &str {
        if self.links_up > 0 { "" } else { &self.reason }
    }

    /// Notes that a link has come up.
    pub fn connected(&mut self, now: Duration) -> Option<News> {
        self.links_up += 1;
        if self.links_up > 1 {
            return None;
        }
        let away = now.saturating_sub(self.away_since.take().unwrap_or(now));
        let (had_met, was_told) =
            (std::mem::replace(&mut self.has_met, true), std::mem::take(&mut self.is_told));
        self.reasons.clear();
        self.reason.clear();
        match (had_met, was_told) {
            (_, true) => Some(News::Back { away }),
            (false, false) => Some(News::Met),
            (true, false) => None,
        }
    }

    /// Notes that a link that was up has gone down; `reason` is `None` when this node itself took it down.
    pub fn disconnected(&mut self, now: Duration, reason: Option<&str>) -> Option<News> {
        self.links_up = self.links_up.saturating_sub(1);
        let reason = reason?;
        if self.links_up > 0 {
            return None;
        }
        self.away_since = Some(now);
        reason.clone_into(&mut self.reason);
        self.is_told = true;
        Some(News::Lost)
    }

    /// Notes that a link could not be made. A refusal is logged at once, because waiting changes nothing; a starting
    /// peer is not logged.
    pub fn failed(&mut self, now: Duration, reason: &str, setback: Setback) -> Option<News> {
        if self.links_up > 0 {
            return None;
        }
        let since = *self.away_since.get_or_insert(now);
        reason.clone_into(&mut self.reason);
        let is_due = match setback {
            Setback::Passing => false,
            Setback::Unreachable => now.saturating_sub(since) >= PATIENCE,
            Setback::Refused => true,
        };
        let is_known = self.reasons.iter().any(|known| known == reason);
        if !is_due || is_known || self.reasons.len() >= REASONS_LEN_MAX {
            return None;
        }
        self.reasons.push(reason.to_owned());
        self.is_told = true;
        Some(News::Unreachable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A peer starts together with this node, is lost and comes back: one line each, however many links there are.
    #[test]
    fn loss_and_return_are_told_once() {
        let mut contact = Contact::default();
        assert_eq!(contact.failed(at(0), "refused", Setback::Unreachable), None);
        assert_eq!(contact.connected(at(0)), Some(News::Met));
        assert_eq!(contact.connected(at(0)), None);
        assert_eq!(contact.reason(), "");
        assert_eq!(contact.disconnected(at(5), Some("silent")), None);
        assert_eq!(contact.disconnected(at(6), Some("silent")), Some(News::Lost));
        assert_eq!(contact.reason(), "silent");
        for second in 7..20 {
            let news = (second == 7).then_some(News::Unreachable);
            assert_eq!(
                contact.failed(at(second), "connection refused", Setback::Unreachable),
                news,
                "{second}"
            );
        }
        assert_eq!(contact.failed(at(20), "it starts", Setback::Passing), None);
        assert_eq!(contact.failed(at(20), "no such host", Setback::Unreachable), Some(News::Unreachable));
        assert_eq!(contact.reason(), "no such host");
        assert_eq!(contact.connected(at(26)), Some(News::Back { away: at(20) }));
        assert_eq!(contact.connected(at(27)), None);
        // A link that this node itself takes down is no loss.
        assert_eq!(contact.disconnected(at(28), None), None);
        assert_eq!(contact.disconnected(at(28), None), None);
    }

    /// A peer's refusal is logged at once and only once; reasons that alternate are not logged for ever.
    #[test]
    fn refusals_are_told_at_once() {
        let mut contact = Contact::default();
        assert_eq!(contact.failed(at(0), "other lists", Setback::Refused), Some(News::Unreachable));
        assert_eq!(contact.failed(at(1), "other lists", Setback::Refused), None);
        let told = (0..100)
            .filter_map(|number| contact.failed(at(2), &number.to_string(), Setback::Refused))
            .count();
        assert_eq!(told, REASONS_LEN_MAX - 1);
        assert_eq!(contact.connected(at(9)), Some(News::Back { away: at(9) }));
    }
}
