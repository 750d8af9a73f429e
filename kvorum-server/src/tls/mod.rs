//! TLS on the node's port: what it shows, whom it believes, and how that changes while it runs.
//!
//! The files are read whole, checked as one ([`TlsSet::new`]), and only then put in the place of what held before. Open
//! connections that showed a certificate are judged again by what holds now ([`Tls::roles`], [`Tls::withdrawn`]).
//!
//! A port with TLS may take plain connections as well, for a cluster that changes over: [`accept`] tells them apart by the
//! first byte, which no HTTP request begins with.

mod accept;
mod set;
#[cfg(test)]
mod tests;
mod verify;

pub use accept::{Arrived, Handshake, Rewound, arrive};
pub use set::{Contents, Roles, TlsFiles, TlsSet};

use kvorum_core::UnixMillis;
use kvorum_tls::rustls::client::verify_server_name;
use kvorum_tls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use kvorum_tls::rustls::server::ParsedCertificate;
use kvorum_tls::{ClientTls, Facts, PemError};
use std::cell::Cell;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How often a connection whose certificate may expire is judged again without a change of the files.
const JUDGE_EVERY: Duration = Duration::from_mins(1);

/// A certificate that holds for less is to be renewed: 14 days, in seconds.
pub const EXPIRES_SOON: i64 = 14 * 24 * 60 * 60;

/// Why certificates, keys and authorities cannot be used together.
#[derive(Debug)]
pub enum TlsError {
    /// A file cannot be used.
    Pem(PemError),
    /// The file has something else than a certificate.
    NotACertificate {
        /// The file.
        path: PathBuf,
    },
    /// The library refuses the certificate or the key, for example because they do not belong together.
    Refused(kvorum_tls::rustls::Error),
    /// An authority's certificate cannot be used.
    Authorities {
        /// Why.
        reason: String,
    },
    /// An authority is one of clients and of nodes.
    OneAuthority,
    /// The node would not believe itself.
    NotBelieved {
        /// Why.
        reason: String,
    },
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pem(error) => error.fmt(f),
            Self::NotACertificate { path } => {
                write!(f, "{} has something else than a certificate", path.display())
            }
            Self::Refused(error) => write!(f, "the certificate and the key of the node cannot be used: {error}"),
            Self::Authorities { reason } => write!(f, "the authorities cannot be used: {reason}"),
            Self::OneAuthority => f.write_str(
                "--peer-ca and --tls-client-ca have an authority in common: a client's certificate would make its \
                 holder a node; use two authorities",
            ),
            Self::NotBelieved { reason } => write!(
                f,
                "the other nodes would refuse this node's certificate, as it refuses it itself: {reason}"
            ),
        }
    }
}

impl std::error::Error for TlsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Pem(error) => Some(error),
            Self::Refused(error) => Some(error),
            _ => None,
        }
    }
}

impl From<PemError> for TlsError {
    fn from(error: PemError) -> Self {
        Self::Pem(error)
    }
}

/// How a port treats connections without TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// It serves them as well.
    Allow,
    /// It refuses them.
    #[default]
    Require,
}

impl TlsMode {
    /// Its name in settings and on the status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Require => "require",
        }
    }

    /// The mode of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Allow, Self::Require].into_iter().find(|mode| mode.name() == name)
    }
}

/// The certificate that somebody showed in a handshake, which was valid then.
pub struct Shown {
    chain: Vec<CertificateDer<'static>>,
    /// The names in it, as the library gives them.
    pub names: Vec<String>,
    /// The last second at which it holds, in Unix time.
    not_after: i64,
    /// What it was good for when it was last judged, and in which generation of the files that was.
    judged: Cell<(Roles, u64)>,
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shown").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Shown {
    /// Reads the facts of a chain; none if it is empty or cannot be read.
    pub fn of(chain: Vec<CertificateDer<'static>>) -> Option<Self> {
        let facts = Facts::of(chain.first()?).ok()?;
        let Facts { names, not_after } = facts;
        Some(Self { chain, names, not_after, judged: Cell::new((Roles::default(), 0)) })
    }

    /// Whether it names `host`, a name or an IP address, as RFC 6125 compares them.
    pub fn names_host(&self, host: &str) -> bool {
        let parsed = self.chain.first().and_then(|der| ParsedCertificate::try_from(der).ok());
        let name = ServerName::try_from(host.to_owned()).ok();
        parsed.zip(name).is_some_and(|(parsed, name)| verify_server_name(&parsed, &name).is_ok())
    }
}

/// The node's TLS, shared by all threads.
pub struct Tls {
    files: TlsFiles,
    host: String,
    mode: TlsMode,
    // Guards the set. Held to copy or replace a pointer, once in a handshake.
    set: Mutex<Arc<TlsSet>>,
    /// Counts the sets; from 1.
    generation: AtomicU64,
    changes: Notify,
    handshakes: AtomicU64,
    handshake_failures: AtomicU64,
    load_failures: AtomicU64,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads `files` for the node that others call by `host`.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn open(files: TlsFiles, host: &str, mode: TlsMode) -> Result<(Self, Contents), TlsError> {
        let contents = files.read()?;
        let set = TlsSet::new(&files, &contents, host)?;
        let tls = Self {
            files,
            host: host.to_owned(),
            mode,
            set: Mutex::new(Arc::new(set)),
            generation: AtomicU64::new(1),
            changes: Notify::new(),
            handshakes: AtomicU64::new(0),
            handshake_failures: AtomicU64::new(0),
            load_failures: AtomicU64::new(0),
        };
        Ok((tls, contents))
    }

    /// The files.
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// How connections without TLS are treated.
    pub fn mode(&self) -> TlsMode {
        self.mode
    }

    /// What holds now.
    pub fn current(&self) -> Arc<TlsSet> {
        Arc::clone(&self.set.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What calls other nodes with; none without authorities of nodes.
    pub fn dial(&self) -> Option<ClientTls> {
        self.current().dial.clone()
    }

    /// Puts what `contents` say in the place of what holds now, if it is valid as a whole.
    ///
    /// # Errors
    /// [`TlsError`]. Nothing has changed.
    pub fn replace(&self, contents: &Contents) -> Result<(), TlsError> {
        let set = Arc::new(TlsSet::new(&self.files, contents, &self.host)?);
        *self.set.lock().unwrap_or_else(PoisonError::into_inner) = set;
        self.generation.fetch_add(1, Ordering::Release);
        self.changes.notify_waiters();
        Ok(())
    }

    /// What `shown` is good for at `now`. It is judged anew when the files have changed since, and once it has expired.
    pub fn roles(&self, shown: &Shown, now: UnixMillis) -> Roles {
        let seconds = now.0 / 1000;
        if i64::try_from(seconds).is_ok_and(|seconds| seconds > shown.not_after) {
            return Roles::default();
        }
        let generation = self.generation.load(Ordering::Acquire);
        let (roles, judged) = shown.judged.get();
        if judged == generation {
            return roles;
        }
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let roles = self.current().roles_of(&shown.chain, now);
        shown.judged.set((roles, generation));
        roles
    }

    /// Waits until no authority of nodes vouches for `shown` any more. `now` tells the time. Without one, waits for ever.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn withdrawn(&self, shown: Option<&Shown>, now: impl Fn() -> UnixMillis) {
        let Some(shown) = shown else { return std::future::pending().await };
        loop {
            let changed = self.changes.notified();
            if !self.roles(shown, now()).peer {
                return;
            }
            let _ = tokio::time::timeout(JUDGE_EVERY, changed).await;
        }
    }

    /// How often what holds was put in place; from 1.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Logs that the node's certificate expires soon, if that is so at `now`.
    pub fn warn_of_expiry(&self, now: UnixMillis) {
        let seconds = self.seconds_left(now);
        if seconds < EXPIRES_SOON {
            tracing::warn!(
                days = seconds / (24 * 60 * 60),
                "the certificate of this node expires soon: then neither clients nor other nodes connect to it"
            );
        }
    }

    /// The last second at which the node's own chain holds, in Unix time.
    pub fn not_after(&self) -> i64 {
        self.current().not_after
    }

    /// For how many seconds from `now` on it holds; below 0 once it does not.
    pub fn seconds_left(&self, now: UnixMillis) -> i64 {
        self.not_after().saturating_sub(i64::try_from(now.0 / 1000).unwrap_or(i64::MAX))
    }

    /// Counts files that could not be used.
    pub fn note_load_failure(&self) {
        self.load_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Looks at the files that found them missing or not valid.
    pub fn load_failures(&self) -> u64 {
        self.load_failures.load(Ordering::Relaxed)
    }

    /// Handshakes that were done, and those that failed.
    pub fn handshakes(&self) -> (u64, u64) {
        (self.handshakes.load(Ordering::Relaxed), self.handshake_failures.load(Ordering::Relaxed))
    }
}
