//! The check of a caller's certificate during the handshake: an authority of nodes or one of clients must vouch for it.
//!
//! A caller need not show one: then it is nobody, and what it asks is judged by its token. Which authority vouches is
//! looked at after the handshake ([`super::TlsSet::roles_of`]).

use kvorum_tls::provider;
use kvorum_tls::rustls::client::danger::HandshakeSignatureValid;
use kvorum_tls::rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use kvorum_tls::rustls::pki_types::{CertificateDer, UnixTime};
use kvorum_tls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use kvorum_tls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct EitherAuthority {
    authorities: Vec<Arc<dyn ClientCertVerifier>>,
    subjects: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl EitherAuthority {
    pub(super) fn new(
        peers: Option<Arc<dyn ClientCertVerifier>>,
        clients: Option<Arc<dyn ClientCertVerifier>>,
    ) -> Self {
        let authorities: Vec<_> = peers.into_iter().chain(clients).collect();
        let subjects = authorities.iter().flat_map(|one| one.root_hint_subjects()).cloned().collect();
        Self { authorities, subjects, provider: provider() }
    }
}

impl ClientCertVerifier for EitherAuthority {
    fn offer_client_auth(&self) -> bool {
        !self.authorities.is_empty()
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let mut refusal = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        for authority in &self.authorities {
            match authority.verify_client_cert(shown, chain, now) {
                Ok(verified) => return Ok(verified),
                // Another authority's word on a certificate that is not its own says nothing.
                Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {}
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
