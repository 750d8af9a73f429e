//! What a certificate says: whom it names, and how long it holds.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// The most names of a certificate that are looked at.
pub const NAMES_LEN_MAX: usize = 64;

/// The facts of a certificate that decisions and metrics need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its subject alternative names: DNS names in lower case, IP addresses, URIs and mail addresses; at most
    /// [`NAMES_LEN_MAX`].
    pub names: Vec<String>,
    /// The last second at which it holds, in Unix time.
    pub not_after: i64,
}

/// The bytes are not a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotACertificate;

impl fmt::Display for NotACertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a certificate")
    }
}

impl std::error::Error for NotACertificate {}

impl Facts {
    /// The facts of a certificate in DER. Nothing of it is proved.
    ///
    /// # Errors
    /// [`NotACertificate`].
    pub fn of(der: &[u8]) -> Result<Self, NotACertificate> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|_| NotACertificate)?;
        let extension = certificate.subject_alternative_name().map_err(|_| NotACertificate)?;
        let names = extension.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
        Ok(Self {
            names: names.iter().filter_map(name_of).take(NAMES_LEN_MAX).collect(),
            not_after: certificate.validity().not_after.timestamp(),
        })
    }
}

fn name_of(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        GeneralName::URI(name) | GeneralName::RFC822Name(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(|bytes| IpAddr::V4(Ipv4Addr::from(bytes)));
            let v6 = <[u8; 16]>::try_from(*bytes).map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes)));
            v4.or(v6).ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::{Authority, Use};
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    #[test]
    fn names_and_times_are_read() {
        let names = ["Node-A.example", "10.0.0.1", "::1", "spiffe://example/billing"].map(str::to_owned);
        let made = Authority::new("test").unwrap().issue("a", &names, Use::Client).unwrap();
        let der = CertificateDer::from_pem_slice(made.cert.as_bytes()).unwrap();
        let facts = Facts::of(&der).unwrap();
        assert_eq!(facts.names, ["node-a.example", "10.0.0.1", "::1", "spiffe://example/billing"]);
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        assert!(facts.not_after > i64::try_from(now).unwrap());
    }

    /// No bytes make the reading panic, and a cut certificate is none.
    #[test]
    fn other_bytes_are_refused() {
        let made = Authority::new("test").unwrap().issue("a", &["a".to_owned()], Use::Client).unwrap();
        let der = CertificateDer::from_pem_slice(made.cert.as_bytes()).unwrap();
        for end in 0..der.len() {
            assert_eq!(Facts::of(&der[..end]), Err(NotACertificate), "{end}");
        }
        for at in 0..der.len() {
            let mut changed = der.to_vec();
            changed[at] ^= 0x55;
            drop(Facts::of(&changed));
        }
    }
}
