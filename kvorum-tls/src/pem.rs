//! Certificates and keys in PEM files (RFC 7468).

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The longest file that is read, in bytes: enough for all authorities that an operating system trusts.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// The most certificates of a chain.
pub const CHAIN_LEN_MAX: usize = 16;

/// Why a file of certificates or of a key cannot be used. It never has bytes of a key.
#[derive(Debug)]
pub enum PemError {
    /// The system refused to read it.
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is over [`FILE_BYTES_MAX`].
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// It is not PEM.
    Form {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// It has no certificate.
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// Its chain has more than [`CHAIN_LEN_MAX`] certificates.
    TooMany {
        /// The file.
        path: PathBuf,
    },
    /// It has no private key, or only an encrypted one.
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// What it has cannot be used.
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl fmt::Display for PemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "cannot read {}: {source}", path.display()),
            Self::TooLong { path } => write!(f, "{} is over {FILE_BYTES_MAX} bytes", path.display()),
            Self::Form { path, reason } => write!(f, "{} is not PEM: {reason}", path.display()),
            Self::NoCertificate { path } => write!(f, "{} has no certificate", path.display()),
            Self::TooMany { path } => {
                write!(f, "{} has more than {CHAIN_LEN_MAX} certificates in its chain", path.display())
            }
            Self::NoKey { path } => {
                write!(f, "{} has no private key that is not encrypted", path.display())
            }
            Self::Unusable { path, reason } => write!(f, "{} cannot be used: {reason}", path.display()),
        }
    }
}

impl std::error::Error for PemError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Reads the content of the file at `path`.
///
/// # Errors
/// [`PemError::Io`] or [`PemError::TooLong`].
pub fn read(path: &Path) -> Result<Vec<u8>, PemError> {
    let failed = |source| PemError::Io { path: path.to_path_buf(), source };
    let mut content = Vec::new();
    #[expect(clippy::disallowed_methods, reason = "the operator names this file")]
    let file = File::open(path).map_err(failed)?;
    let bytes = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    if bytes as u64 > FILE_BYTES_MAX {
        return Err(PemError::TooLong { path: path.to_path_buf() });
    }
    Ok(content)
}

/// The certificates in `content`, which the file at `path` has; at least one.
///
/// # Errors
/// [`PemError`] for another content.
pub fn certificates(path: &Path, content: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(content).collect();
    let read = read.map_err(|error| form(path, &error))?;
    if read.is_empty() {
        return Err(PemError::NoCertificate { path: path.to_path_buf() });
    }
    Ok(read)
}

/// The authorities in `content`, which the file at `path` has; at least one.
///
/// # Errors
/// [`PemError`] for another content.
pub fn authorities(path: &Path, content: &[u8]) -> Result<Arc<RootCertStore>, PemError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, content)? {
        let added = roots.add(certificate);
        added.map_err(|error| PemError::Unusable { path: path.to_path_buf(), reason: error.to_string() })?;
    }
    Ok(Arc::new(roots))
}

/// What somebody shows of itself: a chain of certificates, the own one first, and its key.
#[derive(Debug)]
pub struct Identity {
    /// The chain.
    pub chain: Vec<CertificateDer<'static>>,
    /// The key of the first certificate.
    pub key: PrivateKeyDer<'static>,
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

impl Identity {
    /// Reads the chain and the key of the contents of two files.
    ///
    /// # Errors
    /// [`PemError`] for another content.
    pub fn parse(cert: (&Path, &[u8]), key: (&Path, &[u8])) -> Result<Self, PemError> {
        let chain = certificates(cert.0, cert.1)?;
        if chain.len() > CHAIN_LEN_MAX {
            return Err(PemError::TooMany { path: cert.0.to_path_buf() });
        }
        let key = PrivateKeyDer::from_pem_slice(key.1).map_err(|error| match error {
            pem::Error::NoItemsFound => PemError::NoKey { path: key.0.to_path_buf() },
            error => form(key.0, &error),
        })?;
        Ok(Self { chain, key })
    }

    /// Reads both files.
    ///
    /// # Errors
    /// [`PemError`].
    pub fn load(cert: &Path, key: &Path) -> Result<Self, PemError> {
        Self::parse((cert, &read(cert)?), (key, &read(key)?))
    }
}

/// The parser's text of an unknown section has bytes of the file, which may be a key's: only its kind is told.
fn form(path: &Path, error: &pem::Error) -> PemError {
    let reason = match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no end",
        pem::Error::IllegalSectionStart { .. } => "a section has a malformed first line",
        pem::Error::Base64Decode(_) => "a section is not base64",
        _ => "it cannot be read",
    };
    PemError::Form { path: path.to_path_buf(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::{Authority, Use};

    /// What is no certificate or no key is refused with the file's name, and no byte of it is shown.
    #[test]
    fn other_contents_are_refused() {
        let made = Authority::new("test").unwrap().issue("a", &["a".to_owned()], Use::Client).unwrap();
        let path = Path::new("some.pem");
        let check = |cert: &str, key: &str, expect: &str| {
            let error =
                Identity::parse((path, cert.as_bytes()), (path, key.as_bytes())).unwrap_err().to_string();
            assert!(
                error.contains("some.pem") && error.contains(expect) && !error.contains("secret"),
                "{error}"
            );
        };
        check("", &made.key, "no certificate");
        check(&made.key, &made.key, "no certificate");
        check(&made.cert, "", "no private key");
        check(&made.cert, &made.cert, "no private key");
        check(&made.cert.replace("-----END", "--secret--"), &made.key, "no end");
        check("-----BEGIN CERTIFICATE-----\n!secret!\n-----END CERTIFICATE-----\n", &made.key, "base64");
        check(&made.cert.repeat(CHAIN_LEN_MAX + 1), &made.key, "more than 16");
        assert!(Identity::parse((path, made.cert.as_bytes()), (path, made.key.as_bytes())).is_ok());
        let rubbish = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(authorities(path, rubbish.as_bytes()), Err(PemError::Unusable { .. })));
        assert!(authorities(path, made.cert.as_bytes()).is_ok());
        assert!(matches!(read(Path::new("/nowhere")), Err(PemError::Io { .. })));
    }
}
