//! A small authority: makes certificates for the nodes of a cluster and for its clients.
//!
//! Keys are ECDSA on P-256, which every TLS library knows. A node's certificate serves both sides of a connection, because
//! nodes call each other.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

/// How long an authority holds by default: ten years.
const AUTHORITY_DAYS: u64 = 3650;
/// How long a certificate holds by default: a year, a month more than the time in which it should be replaced.
pub const CERTIFICATE_DAYS: u64 = 397;
/// How long before it is made a certificate holds, for clocks that are slow.
const SLOW_CLOCKS: Duration = Duration::from_hours(1);

/// What a certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// A node: it answers and calls.
    Node,
    /// A client.
    Client,
}

/// Why a certificate cannot be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MakeError {
    /// A name is neither a DNS name, an IP address nor a URI.
    Name {
        /// The name.
        name: String,
    },
    /// An address that stands for all addresses names no machine.
    Unspecified {
        /// The address.
        address: IpAddr,
    },
    /// The texts are not those of an authority.
    NotAnAuthority {
        /// Why.
        reason: String,
    },
    /// The library refused.
    Failed {
        /// Why.
        reason: String,
    },
}

impl fmt::Display for MakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { name } => write!(f, "{name:?} is no DNS name, IP address or URI"),
            Self::Unspecified { address } => {
                write!(f, "{address} stands for all addresses of a machine: name the one that others call")
            }
            Self::NotAnAuthority { reason } => write!(f, "not an authority's certificate and key: {reason}"),
            Self::Failed { reason } => write!(f, "cannot make a certificate: {reason}"),
        }
    }
}

impl std::error::Error for MakeError {}

impl From<rcgen::Error> for MakeError {
    fn from(error: rcgen::Error) -> Self {
        Self::Failed { reason: error.to_string() }
    }
}

/// A certificate and its key, as PEM.
pub struct Made {
    /// The certificate.
    pub cert: String,
    /// The key: a secret.
    pub key: String,
}

/// An authority that signs certificates.
pub struct Authority {
    cert: String,
    key: String,
}

impl Authority {
    /// A new one, which calls itself `name`.
    ///
    /// # Errors
    /// [`MakeError::Failed`].
    pub fn new(name: &str) -> Result<Self, MakeError> {
        let key = KeyPair::generate()?;
        let mut params = params_of(name, in_days(AUTHORITY_DAYS));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let cert = params.self_signed(&key)?;
        Ok(Self { cert: cert.pem(), key: key.serialize_pem() })
    }

    /// The authority with this certificate and key.
    ///
    /// # Errors
    /// [`MakeError::NotAnAuthority`].
    pub fn load(cert: &str, key: &str) -> Result<Self, MakeError> {
        let refused = |error: rcgen::Error| MakeError::NotAnAuthority { reason: error.to_string() };
        let read = KeyPair::from_pem(key).map_err(refused)?;
        drop(Issuer::from_ca_cert_pem(cert, read).map_err(refused)?);
        Ok(Self { cert: cert.to_owned(), key: key.to_owned() })
    }

    /// Its certificate, as PEM.
    pub fn cert(&self) -> &str {
        &self.cert
    }

    /// Its key, as PEM: the most secret of all.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// A certificate for `name`, valid for `names`, for [`CERTIFICATE_DAYS`].
    ///
    /// # Errors
    /// [`MakeError`] for a name that no certificate can have.
    pub fn issue(&self, name: &str, names: &[String], of: Use) -> Result<Made, MakeError> {
        self.issue_until(in_days(CERTIFICATE_DAYS), name, names, of)
    }

    /// The same, valid until `end`.
    ///
    /// # Errors
    /// [`MakeError`] for a name that no certificate can have.
    pub fn issue_until(
        &self,
        end: SystemTime,
        name: &str,
        names: &[String],
        of: Use,
    ) -> Result<Made, MakeError> {
        let refused = |error: rcgen::Error| MakeError::NotAnAuthority { reason: error.to_string() };
        let issuer = Issuer::from_ca_cert_pem(&self.cert, KeyPair::from_pem(&self.key).map_err(refused)?);
        let issuer = issuer.map_err(refused)?;
        let mut params = params_of(name, end);
        params.subject_alt_names = names.iter().map(|name| san_of(name)).collect::<Result<_, _>>()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match of {
            Use::Node => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            Use::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &issuer)?;
        Ok(Made { cert: cert.pem(), key: key.serialize_pem() })
    }
}

/// The time of day. Certificates are made by a person's command, which no simulation runs.
#[expect(clippy::disallowed_methods, reason = "a command has no clock of a node")]
fn now() -> SystemTime {
    SystemTime::now()
}

fn in_days(days: u64) -> SystemTime {
    now() + Duration::from_hours(24 * days)
}

fn params_of(name: &str, end: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = (now() - SLOW_CLOCKS).into();
    params.not_after = end.into();
    params
}

fn san_of(name: &str) -> Result<SanType, MakeError> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return if address.is_unspecified() {
            Err(MakeError::Unspecified { address })
        } else {
            Ok(SanType::IpAddress(address))
        };
    }
    let refused = |_| MakeError::Name { name: name.to_owned() };
    if name.contains("://") {
        return Ok(SanType::URI(name.try_into().map_err(refused)?));
    }
    let is_name = !name.is_empty()
        && name.len() <= 253
        && name.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        });
    if !is_name {
        return Err(MakeError::Name { name: name.to_owned() });
    }
    Ok(SanType::DnsName(name.try_into().map_err(refused)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let authority = Authority::new("test").unwrap();
        let check = |name: &str, expect: &str| {
            let made = authority.issue("a", &[name.to_owned()], Use::Node);
            assert!(made.err().unwrap().to_string().contains(expect), "{name:?}");
        };
        for bad in ["", "a b", "a..b", "a/b", "é", &"a".repeat(64), "*"] {
            check(bad, "no DNS name");
        }
        check("0.0.0.0", "all addresses");
        check("::", "all addresses");
    }

    /// A stored authority signs as the new one did; other texts are none.
    #[test]
    fn authorities_are_loaded() {
        let new = Authority::new("test").unwrap();
        let loaded = Authority::load(new.cert(), new.key()).unwrap();
        assert!(loaded.issue("a", &["a".to_owned()], Use::Client).is_ok());
        for (cert, key) in [("", new.key()), (new.cert(), ""), (new.key(), new.cert())] {
            assert!(matches!(Authority::load(cert, key), Err(MakeError::NotAnAuthority { .. })));
        }
    }
}
