//! The side that calls.

use crate::pem::{Identity, PemError};
use crate::provider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How a client proves itself to servers, and which servers it believes.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientTls(…)")
    }
}

impl ClientTls {
    /// Believes servers whose certificate `authorities` vouch for and names the host that was called. Shows `identity`
    /// to servers that ask for one.
    ///
    /// # Errors
    /// What is wrong with the identity.
    pub fn new(authorities: Arc<RootCertStore>, identity: Option<Identity>) -> Result<Self, rustls::Error> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(authorities);
        let mut config = match identity {
            Some(Identity { chain, key }) => builder.with_client_auth_cert(chain, key)?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self { config: Arc::new(config) })
    }

    /// The same from files: `authorities`, and the certificate and key of the client.
    ///
    /// # Errors
    /// [`PemError`].
    pub fn load(authorities: &Path, identity: Option<(&Path, &Path)>) -> Result<Self, PemError> {
        let roots = crate::pem::authorities(authorities, &crate::pem::read(authorities)?)?;
        let shown = identity.map(|(cert, key)| Identity::load(cert, key)).transpose()?;
        Self::new(roots, shown).map_err(|error| PemError::Unusable {
            path: identity.map_or(authorities, |(cert, _)| cert).to_path_buf(),
            reason: error.to_string(),
        })
    }

    /// The handshake with `host`, a name or an IP address without brackets, over `stream`. The caller bounds the wait.
    ///
    /// # Errors
    /// The stream's, or [`io::ErrorKind::InvalidData`] for a server that is not believed.
    ///
    /// # Cancel safety
    /// Dropping the future drops the stream.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: &str,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        TlsConnector::from(Arc::clone(&self.config)).connect(name, stream).await
    }

    /// The configuration, for other kinds of streams.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }
}
