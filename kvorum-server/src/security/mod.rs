//! Who may do what: tokens with rights by key prefix.
//!
//! [`token`] is a token as a client sends it, [`table`] what a node knows of all of them, [`file`] where that comes from.
//! [`Security`] judges a request against the table. The table is one value behind [`Security::replace`] and
//! [`TokenView`]: where it comes from is not known here.
//!
//! Every request is judged anew, so a change of the table holds on open connections as well. Peers are not judged here: the
//! peer protocol has no tokens, and what a coordinator asks of other nodes for a client is not asked again there. Peers
//! prove a secret instead (`peer/auth.rs`).

pub mod audit;
mod counts;
pub mod file;
mod instant;
pub mod limit;
pub mod table;
pub mod token;
mod watch_file;

use crate::log::Repeats;
use audit::Audit;
pub use audit::key_hash;
use counts::Counts;
pub use counts::Refused;
use kvorum_core::{Right, Scope, UnixMillis};
use limit::OverLimit;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
pub use table::{TokenEntry, TokenTable};
use tokio::sync::watch;
pub use watch_file::{LOOK_EVERY, TokenFile, Watched, watch_file};

/// What is done with a request that is not allowed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AuthMode {
    /// No request is judged.
    #[default]
    Off,
    /// Requests are judged and counted, and all pass.
    Warn,
    /// Requests that are not allowed are refused.
    On,
}

impl AuthMode {
    /// Its name in settings and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::On => "on",
        }
    }

    /// The mode of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Off, Self::Warn, Self::On].into_iter().find(|mode| mode.name() == name)
    }
}

/// What a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing: everybody may ask it.
    Nothing,
    /// Any valid token.
    Token,
    /// A valid token with this right.
    Right(Right),
}

/// The credentials of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credentials<'a> {
    /// None.
    Absent,
    /// Some that are not one bearer token.
    Malformed,
    /// A token's text.
    Bearer(&'a str),
    /// The names in a certificate that an authority of clients vouches for.
    Certificate(&'a [String]),
}

/// Why a request is not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It has no token.
    NoToken,
    /// Its credentials are not one bearer token.
    Malformed,
    /// There is no such token, or its secret is wrong.
    Unknown,
    /// There is a certificate, and no token for any of its names.
    NoSuchCertificate,
    /// The token was revoked.
    Revoked {
        /// The token's id.
        id: Arc<str>,
    },
    /// The token's time is over.
    Expired {
        /// The token's id.
        id: Arc<str>,
    },
    /// The token has asked for more than its limit allows.
    OverLimit {
        /// The token's id.
        id: Arc<str>,
        /// The limit.
        over: OverLimit,
    },
    /// The token is valid, and lacks a right.
    Missing {
        /// The token's id.
        id: Arc<str>,
        /// The right.
        right: Right,
    },
}

impl Refusal {
    /// Its name in metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoToken => "no-token",
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
            Self::NoSuchCertificate => "unknown-certificate",
            Self::Revoked { .. } => "revoked",
            Self::Expired { .. } => "expired",
            Self::OverLimit { .. } => "over-limit",
            Self::Missing { .. } => "missing-right",
        }
    }

    /// The id of the token, if the client has proved that it holds it.
    pub fn token(&self) -> Option<&Arc<str>> {
        match self {
            Self::NoToken | Self::Malformed | Self::Unknown | Self::NoSuchCertificate => None,
            Self::Revoked { id }
            | Self::Expired { id }
            | Self::OverLimit { id, .. }
            | Self::Missing { id, .. } => Some(id),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoToken => f.write_str("a token is needed: Authorization: Bearer ID.SECRET"),
            Self::Malformed => {
                f.write_str("the Authorization header is not one bearer token: Bearer ID.SECRET is needed")
            }
            Self::Unknown => f.write_str("the token is not known here, or its secret is wrong"),
            Self::NoSuchCertificate => {
                f.write_str("no token is for any name of the certificate of this connection")
            }
            Self::Revoked { id } => write!(f, "the token {id} was revoked"),
            Self::Expired { id } => write!(f, "the time of the token {id} is over"),
            Self::OverLimit { id, over: OverLimit { what, per_second, .. } } => {
                write!(f, "the token {id} is over its limit of {per_second} {what} a second on this node")
            }
            Self::Missing { id, right } if right.is_of_keys() => {
                write!(f, "the token {id} lacks the right {right} for ")?;
                let what = if *right == Right::Scan { "the whole of this range" } else { "this key" };
                f.write_str(what)
            }
            Self::Missing { id, right } => write!(f, "the token {id} lacks the right {right}"),
        }
    }
}

/// The most different token ids that metrics name; others are counted together.
pub const TOKENS_NAMED_MAX: usize = 64;

/// The node's tokens and mode, shared by all threads.
#[derive(Debug)]
pub struct Security {
    mode: AuthMode,
    table: watch::Sender<Arc<TokenTable>>,
    counts: Counts,
    refusal_lines: Repeats,
    loads: AtomicU64,
    load_failures: AtomicU64,
    audit: Audit,
}

impl Security {
    /// Judges by `mode`, with no tokens yet.
    pub fn new(mode: AuthMode) -> Self {
        Self {
            mode,
            table: watch::Sender::new(Arc::default()),
            counts: Counts::default(),
            refusal_lines: Repeats::default(),
            loads: AtomicU64::new(0),
            load_failures: AtomicU64::new(0),
            audit: Audit::default(),
        }
    }

    /// The mode.
    pub fn mode(&self) -> AuthMode {
        self.mode
    }

    /// The audit log.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Puts `table` in the place of the present one at `now`: the next request on each thread is judged by it.
    pub fn replace(&self, mut table: TokenTable, now: UnixMillis) {
        self.loads.fetch_add(1, Ordering::Relaxed);
        table.go_on_from(&self.table.borrow());
        let table = Arc::new(table);
        let before = self.table.send_replace(Arc::clone(&table));
        self.audit.tokens_changed(&before, &table, now);
    }

    /// Counts a table that could not be used.
    pub fn note_failure(&self) {
        self.load_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread's view of the table.
    pub fn view(&self) -> TokenView {
        let mut receiver = self.table.subscribe();
        let table = Arc::clone(&receiver.borrow_and_update());
        TokenView { receiver, table }
    }

    /// Counts a refusal, and logs it if it is new. `now` is the monotonic time.
    pub fn note(&self, refusal: &Refusal, now: Duration) {
        self.counts.add(refusal.reason(), refusal.token());
        let reason = refusal.to_string();
        if !self.refusal_lines.admit(&reason, now) {
            return;
        }
        if self.mode == AuthMode::On {
            tracing::warn!(reason, "a request was refused");
        } else {
            tracing::warn!(reason, "a request passed that --auth on would refuse");
        }
    }

    /// The counted refusals.
    pub fn refused(&self) -> Vec<Refused> {
        self.counts.read()
    }

    /// How many tables were taken, and how many could not be used.
    pub fn loads(&self) -> (u64, u64) {
        (self.loads.load(Ordering::Relaxed), self.load_failures.load(Ordering::Relaxed))
    }

    /// How many tokens the table has.
    pub fn token_count(&self) -> usize {
        self.table.borrow().tokens().len()
    }
}

/// One thread's view of the table: as long as the table is the same, no other thread is disturbed.
#[derive(Debug)]
pub struct TokenView {
    receiver: watch::Receiver<Arc<TokenTable>>,
    table: Arc<TokenTable>,
}

impl TokenView {
    /// The table now.
    pub fn current(&mut self) -> &TokenTable {
        if self.receiver.has_changed().unwrap_or(false) {
            self.table = Arc::clone(&self.receiver.borrow_and_update());
        }
        &self.table
    }
}

/// The token that `credentials` prove, if it is valid at `now`.
///
/// # Errors
/// [`Refusal`], but not [`Refusal::Missing`].
pub fn authenticate<'a>(
    table: &'a TokenTable,
    credentials: Credentials<'_>,
    now: UnixMillis,
) -> Result<&'a TokenEntry, Refusal> {
    let text = match credentials {
        Credentials::Certificate(names) => {
            let entry =
                names.iter().find_map(|name| table.certified(name)).ok_or(Refusal::NoSuchCertificate)?;
            return valid(entry, now);
        }
        Credentials::Absent => return Err(Refusal::NoToken),
        Credentials::Malformed => return Err(Refusal::Malformed),
        Credentials::Bearer(text) => text,
    };
    let (id, secret) = token::split(text).ok_or(Refusal::Malformed)?;
    // Nobody but the token's holder is told that it exists.
    let is_of = |entry: &&TokenEntry| entry.secret.as_ref().is_some_and(|known| known.is_of(secret));
    valid(table.get(id).filter(is_of).ok_or(Refusal::Unknown)?, now)
}

/// `entry`, if it is valid at `now`.
pub(crate) fn valid(entry: &TokenEntry, now: UnixMillis) -> Result<&TokenEntry, Refusal> {
    let id = || Arc::clone(&entry.id);
    if entry.is_revoked(now) {
        Err(Refusal::Revoked { id: id() })
    } else if entry.is_expired(now) {
        Err(Refusal::Expired { id: id() })
    } else {
        Ok(entry)
    }
}

/// Whether the token `entry` allows `right` on all of `scope` at `now`.
///
/// # Errors
/// [`Refusal::Missing`].
pub fn authorize(entry: &TokenEntry, right: Right, scope: Scope<'_>, now: UnixMillis) -> Result<(), Refusal> {
    if entry.allows(right, scope, now) {
        Ok(())
    } else {
        Err(Refusal::Missing { id: Arc::clone(&entry.id), right })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::limit::Limit;
    use crate::security::token::SecretHash;
    use kvorum_core::Grant;

    const NOW: UnixMillis = UnixMillis(1000);

    fn table() -> TokenTable {
        let mut table = TokenTable::default();
        for (id, not_after, revoked) in
            [("ok", None, None), ("old", Some(999), None), ("gone", None, Some(1000))]
        {
            let grants = vec![Grant::new(&b"a/"[..], &[Right::Read], None).unwrap()];
            let (not_after, revoked) = (not_after.map(UnixMillis), revoked.map(UnixMillis));
            let secret = Some(SecretHash::of("right"));
            let name = String::new();
            table
                .add(TokenEntry {
                    id: id.into(),
                    name,
                    secret,
                    certificate: Some(format!("{id}.example")),
                    created: None,
                    not_after,
                    revoked,
                    grants,
                    limit: Limit::default(),
                    meter: Arc::default(),
                })
                .unwrap();
        }
        table
    }

    /// Every refusal is named, and only the holder of a token learns more than that it is not known.
    #[test]
    fn requests_are_judged() {
        let table = table();
        let judge = |credentials: Credentials<'_>, right: Right| {
            authenticate(&table, credentials, NOW)
                .and_then(|entry| authorize(entry, right, Scope::Key(b"a/1"), NOW))
        };
        let check = |text: &str, expect: Result<(), &str>| {
            let judged = judge(Credentials::Bearer(text), Right::Read).map_err(|refusal| refusal.reason());
            assert_eq!(judged, expect, "{text}");
        };
        check("ok.right", Ok(()));
        check("ok.wrong", Err("unknown"));
        check("no.right", Err("unknown"));
        check("ok", Err("malformed"));
        check("old.right", Err("expired"));
        check("old.wrong", Err("unknown"));
        check("gone.right", Err("revoked"));
        check("gone.wrong", Err("unknown"));
        let by = |name: &str| {
            let names = ["other.example".to_owned(), name.to_owned()];
            judge(Credentials::Certificate(&names), Right::Read).map_err(|refusal| refusal.reason())
        };
        assert_eq!(by("ok.example"), Ok(()));
        assert_eq!(by("old.example"), Err("expired"));
        assert_eq!(by("gone.example"), Err("revoked"));
        assert_eq!(by("ok"), Err("unknown-certificate"));
        assert_eq!(judge(Credentials::Absent, Right::Read), Err(Refusal::NoToken));
        assert_eq!(judge(Credentials::Malformed, Right::Read), Err(Refusal::Malformed));
        let write = judge(Credentials::Bearer("ok.right"), Right::Write).unwrap_err();
        assert_eq!(write, Refusal::Missing { id: "ok".into(), right: Right::Write });
        assert!(write.to_string().contains("right write for this key"), "{write}");
    }

    /// A thread sees a new table at its next request.
    #[test]
    fn views_follow_the_table() {
        let security = Security::new(AuthMode::On);
        let mut view = security.view();
        assert!(view.current().get("ok").is_none());
        security.replace(table(), NOW);
        assert!(view.current().get("ok").is_some());
        assert_eq!((security.loads(), security.token_count()), ((1, 0), 3));
    }
}
