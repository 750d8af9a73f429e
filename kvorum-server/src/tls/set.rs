//! Certificates, keys and authorities that hold together, made and checked as one.

use super::TlsError;
use super::verify::EitherAuthority;
use kvorum_tls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use kvorum_tls::rustls::server::danger::ClientCertVerifier;
use kvorum_tls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use kvorum_tls::rustls::{ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use kvorum_tls::{ClientTls, Facts, Identity, pem, provider};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// The most bytes of one direction that the handshake with itself may take: more is no handshake.
const HANDSHAKE_BYTES_MAX: usize = 256 << 10;

/// The files that a node's TLS comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The node's chain of certificates, its own first.
    pub cert: PathBuf,
    /// The key of its certificate.
    pub key: PathBuf,
    /// The authorities of clients' certificates.
    pub client_ca: Option<PathBuf>,
    /// The authorities of the nodes' certificates.
    pub peer_ca: Option<PathBuf>,
}

/// The contents of these files at one moment.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
    peer_ca: Option<Vec<u8>>,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Contents(…)")
    }
}

impl TlsFiles {
    /// Reads all of them.
    ///
    /// # Errors
    /// [`TlsError::Pem`].
    pub fn read(&self) -> Result<Contents, TlsError> {
        let read = |path: &Option<PathBuf>| path.as_deref().map(pem::read).transpose();
        Ok(Contents {
            cert: pem::read(&self.cert)?,
            key: pem::read(&self.key)?,
            client_ca: read(&self.client_ca)?,
            peer_ca: read(&self.peer_ca)?,
        })
    }
}

/// What a certificate that somebody shows is good for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Roles {
    /// An authority of nodes vouches for it.
    pub peer: bool,
    /// An authority of clients vouches for it.
    pub client: bool,
}

/// Everything that a node's TLS needs, of one moment.
pub struct TlsSet {
    pub(super) server: Arc<ServerConfig>,
    /// For calls to other nodes.
    pub(super) dial: Option<ClientTls>,
    peers: Option<Arc<dyn ClientCertVerifier>>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    /// The last second at which the whole chain holds, in Unix time.
    pub(super) not_after: i64,
}

impl fmt::Debug for TlsSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSet").field("not_after", &self.not_after).finish_non_exhaustive()
    }
}

impl TlsSet {
    /// Makes a set of `contents`, which `files` have, for the node that others call by `host`. With authorities of nodes,
    /// the node must believe itself: it shakes hands with itself before anything is used.
    ///
    /// # Errors
    /// [`TlsError`] says what does not hold together.
    pub fn new(files: &TlsFiles, contents: &Contents, host: &str) -> Result<Self, TlsError> {
        let identity = Identity::parse((&files.cert, &contents.cert), (&files.key, &contents.key))?;
        let roots = |path: &Option<PathBuf>, content: &Option<Vec<u8>>| match (path, content) {
            (Some(path), Some(content)) => pem::authorities(path, content).map(Some),
            _ => Ok(None),
        };
        let peer_roots = roots(&files.peer_ca, &contents.peer_ca)?;
        let client_roots = roots(&files.client_ca, &contents.client_ca)?;
        if let (Some(peers), Some(clients)) = (&peer_roots, &client_roots)
            && share(peers, clients)
        {
            return Err(TlsError::OneAuthority);
        }
        let verifier = |roots: &Option<Arc<RootCertStore>>| roots.as_ref().map(verifier_of).transpose();
        let (peers, clients) = (verifier(&peer_roots)?, verifier(&client_roots)?);
        let either = EitherAuthority::new(peers.clone(), clients.clone());
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Refused)?
            .with_client_cert_verifier(Arc::new(either))
            .with_single_cert(identity.chain.clone(), identity.key.clone_key())
            .map_err(TlsError::Refused)?;
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A session that is taken up again would bring the certificate of its first connection with it.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let facts = identity.chain.iter().map(|der| Facts::of(der)).collect::<Result<Vec<_>, _>>();
        let facts = facts.map_err(|_| TlsError::NotACertificate { path: files.cert.clone() })?;
        let not_after = facts.iter().map(|facts| facts.not_after).min().unwrap_or_default();
        let dial = peer_roots.map(|roots| ClientTls::new(roots, Some(identity))).transpose();
        let dial = dial.map_err(TlsError::Refused)?;
        let set = Self { server: Arc::new(server), dial, peers, clients, not_after };
        if let Some(dial) = &set.dial {
            shake_hands(dial, &set.server, host).map_err(|reason| TlsError::NotBelieved { reason })?;
        }
        Ok(set)
    }

    /// What the certificate at the head of `chain` is good for at `now`.
    pub fn roles_of(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Roles {
        let Some((first, rest)) = chain.split_first() else { return Roles::default() };
        let is_believed = |verifier: &Option<Arc<dyn ClientCertVerifier>>| {
            verifier.as_ref().is_some_and(|verifier| verifier.verify_client_cert(first, rest, now).is_ok())
        };
        Roles { peer: is_believed(&self.peers), client: is_believed(&self.clients) }
    }
}

fn verifier_of(roots: &Arc<RootCertStore>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let built = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider()).build();
    built.map_err(|error| TlsError::Authorities { reason: error.to_string() })
}

/// Whether both have an authority. Each is known by its name and its key.
fn share(one: &RootCertStore, other: &RootCertStore) -> bool {
    one.roots.iter().any(|root| {
        other.roots.iter().any(|known| {
            root.subject == known.subject && root.subject_public_key_info == known.subject_public_key_info
        })
    })
}

/// The handshake of the node, called by `host`, with itself, in memory.
fn shake_hands(dial: &ClientTls, server: &Arc<ServerConfig>, host: &str) -> Result<(), String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    let near = ClientConnection::new(dial.config(), name).map_err(|error| error.to_string())?;
    let far = ServerConnection::new(Arc::clone(server)).map_err(|error| error.to_string())?;
    let (mut near, mut far) = (Connection::Client(near), Connection::Server(far));
    while near.is_handshaking() || far.is_handshaking() {
        let bytes = pass(&mut near, &mut far)? + pass(&mut far, &mut near)?;
        if bytes == 0 {
            return Err("the handshake of the node with itself does not end".to_owned());
        }
    }
    Ok(())
}

/// Gives `to` what `from` has to send, and returns how many bytes that was.
fn pass(from: &mut Connection, to: &mut Connection) -> Result<usize, String> {
    let mut sent = Vec::new();
    while from.wants_write() && sent.len() < HANDSHAKE_BYTES_MAX {
        from.write_tls(&mut sent).map_err(|error| error.to_string())?;
    }
    let mut rest = sent.as_slice();
    while !rest.is_empty() {
        to.read_tls(&mut rest).map_err(|error| error.to_string())?;
        to.process_new_packets().map_err(|error| error.to_string())?;
    }
    Ok(sent.len())
}
