//! The files of secrets that a node watches while it runs, and the warnings about what it lets strangers do.

use super::NodeError;
use super::peer_secrets::{self, PeerSecretFile};
use crate::config::{self, Config};
use crate::http::Service;
use crate::peer::PeerAuthMode;
use crate::security::{self, AuthMode, TokenFile, Watched};
use crate::supervise::Thread;
use std::path::Path;
use std::sync::{Arc, mpsc};

/// A thread that watches a file, and what ends it.
pub(super) struct FileWatch {
    end: mpsc::Sender<()>,
    thread: Thread,
}

impl FileWatch {
    fn start<W: Watched>(
        watched: W,
        path: &Path,
        content: Vec<u8>,
        service: &Service,
    ) -> Result<Self, NodeError> {
        let (end, ended) = mpsc::channel();
        let thread = security::watch_file(watched, path.to_path_buf(), content, ended, &service.supervisor);
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
    let watched = TokenFile { security: Arc::clone(security), clock: Arc::clone(&service.clock) };
    FileWatch::start(watched, path, text.into_bytes(), service).map(Some)
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
    let watched = PeerSecretFile { auth: Arc::clone(&service.peer_auth) };
    FileWatch::start(watched, path, content, service).map(Some)
}
