//! The files of secrets that a node watches while it runs, and the warnings about what it lets strangers do.

use super::NodeError;
use super::peer_secrets::{self, PeerSecretFile};
use crate::authority::Authority;
use crate::clock::Clock;
use crate::config::{self, Config, TlsConfig};
use crate::http::Service;
use crate::peer::{PeerAuth, PeerAuthMode};
use crate::security::{self, AuthMode, TokenFile, Watched};
use crate::supervise::{Part, Thread};
use crate::tls::{Contents, Tls, TlsFiles};
use std::sync::{Arc, mpsc};

/// A thread that watches a file, and what ends it.
pub(super) struct FileWatch {
    end: mpsc::Sender<()>,
    thread: Thread,
}

impl FileWatch {
    fn start<W: Watched>(watched: W, content: W::Content, service: &Service) -> Result<Self, NodeError> {
        let (end, ended) = mpsc::channel();
        let thread = security::watch_file(watched, content, ended, &service.supervisor);
        Ok(Self { end, thread: thread.map_err(NodeError::Thread)? })
    }

    /// Ends the thread, and waits until it has ended.
    pub(super) fn end(self) {
        self.thread.may_end();
        drop(self.end);
        self.thread.join();
    }
}

/// Says loudly that the node was started although strangers can use it.
pub(super) fn warn_if_open(config: &Config) {
    if config.is_insecure() {
        tracing::warn!(
            listen = %config.listen,
            open_to = config::open_to(config),
            "--insecure yes: everybody who reaches this port can read, change and delete everything; let only trusted \
             machines reach it"
        );
    }
}

/// Reads the tokens, if they are needed, and starts the thread that watches their file.
pub(super) fn tokens(config: &Config, service: &Arc<Service>) -> Result<Option<FileWatch>, NodeError> {
    let Some(path) = &config.token_file else { return Ok(None) };
    if config.auth == AuthMode::Off {
        tracing::warn!(
            "--token-file is given and --auth is off: no request is judged, every client can do everything"
        );
        return Ok(None);
    }
    let text = security::file::read(path).map_err(NodeError::Tokens)?;
    let table = security::file::parse(path, &text).map_err(NodeError::Tokens)?;
    tracing::info!(
        auth = config.auth.name(),
        tokens = table.tokens().len(),
        "clients are judged by their tokens"
    );
    let security = &service.security;
    security.replace(table, service.clock.wall());
    let (path, clock) = (path.clone(), Arc::clone(&service.clock));
    let watched = TokenFile { path, security: Arc::clone(security), clock };
    FileWatch::start(watched, text, service).map(Some)
}

/// Reads the peer secrets, if they are needed, and starts the thread that watches their file.
pub(super) fn peer_secrets(config: &Config, service: &Arc<Service>) -> Result<Option<FileWatch>, NodeError> {
    let Some(path) = &config.peer_secret_file else { return Ok(None) };
    if config.peer_auth == PeerAuthMode::Off {
        tracing::warn!(
            "--peer-secret-file is given and --peer-auth is off: every node that connects is accepted"
        );
        return Ok(None);
    }
    let content = peer_secrets::read(path).map_err(NodeError::PeerSecrets)?;
    let secrets = peer_secrets::parse(path, &content).map_err(NodeError::PeerSecrets)?;
    if peer_secrets::others_can_read(path) {
        tracing::warn!(
            path = %path.display(),
            "every user of this machine can read the file of peer secrets: take the right away (chmod o-rwx)"
        );
    }
    tracing::info!(
        peer_auth = config.peer_auth.name(),
        secrets = secrets.len(),
        "peers prove that they know the peer secret"
    );
    service.peer_auth.replace(secrets);
    let watched = PeerSecretFile { path: path.clone(), auth: Arc::clone(&service.peer_auth) };
    FileWatch::start(watched, content, service).map(Some)
}

/// The certificates and keys of the node with this URL, if it has any.
pub(super) fn open_tls(config: &Config, url: &str) -> Result<Option<(Arc<Tls>, Contents)>, NodeError> {
    let Some(TlsConfig { cert, key, mode }) = &config.tls else { return Ok(None) };
    let files = TlsFiles {
        cert: cert.clone(),
        key: key.clone(),
        client_ca: config.tls_client_ca.clone(),
        peer_ca: config.peer_ca.clone(),
    };
    if peer_secrets::others_can_read(key) {
        tracing::warn!(
            path = %key.display(),
            "every user of this machine can read the key of the certificate: take the right away (chmod o-rwx)"
        );
    }
    let host = Authority::of_url(url).map(|(_, authority)| authority.host()).unwrap_or_default();
    let (tls, contents) = Tls::open(files, &host, *mode).map_err(NodeError::Tls)?;
    tracing::info!(tls = mode.name(), peers = config.peer_ca.is_some(), "the port speaks TLS");
    Ok(Some((Arc::new(tls), contents)))
}

/// Starts the thread that watches the files of certificates and keys, if there are any.
pub(super) fn tls(
    contents: Option<Contents>,
    service: &Arc<Service>,
) -> Result<Option<FileWatch>, NodeError> {
    let Some((tls, contents)) = service.tls.as_ref().zip(contents) else { return Ok(None) };
    tls.warn_of_expiry(service.clock.wall());
    let (peer_auth, clock) = (Arc::clone(&service.peer_auth), Arc::clone(&service.clock));
    let watched = TlsWatch { tls: Arc::clone(tls), peer_auth, clock };
    FileWatch::start(watched, contents, service).map(Some)
}

/// The files of certificates and keys, watched.
struct TlsWatch {
    tls: Arc<Tls>,
    peer_auth: Arc<PeerAuth>,
    clock: Arc<dyn Clock>,
}

impl Watched for TlsWatch {
    const PART: Part = Part::TlsWatch;
    type Content = Contents;

    fn read(&self) -> Result<Contents, String> {
        self.tls.files().read().map_err(|error| error.to_string())
    }

    fn take(&self, contents: &Contents) -> Result<(), String> {
        self.tls.replace(contents).map_err(|error| error.to_string())?;
        tracing::info!("the certificates or keys have changed: they hold from now on");
        self.tls.warn_of_expiry(self.clock.wall());
        self.peer_auth.note_certificates();
        Ok(())
    }

    fn note_failure(&self) {
        self.tls.note_load_failure();
    }

    fn warn(&self, problem: &str) {
        tracing::error!(
            reason = problem,
            "the certificates and keys cannot be used: the last good ones stay in force until they are repaired"
        );
    }
}
