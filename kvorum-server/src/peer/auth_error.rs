//! Why a peer has not proved itself: for its log and this one, for metrics and the audit log.

use std::fmt;

/// Why a peer has not proved that it knows the secret. Nodes are named by their URLs if those are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthError {
    /// The peer has sent no proof, and this node requires one.
    NoProof {
        /// This node.
        ours: String,
        /// The peer.
        theirs: String,
    },
    /// The two nodes have no secret in common.
    NoSharedSecret {
        /// This node.
        ours: String,
        /// The peer.
        theirs: String,
    },
    /// The peer requires a proof, and this node has no secret or may not prove.
    NotProvedHere {
        /// This node.
        ours: String,
        /// The peer.
        theirs: String,
    },
    /// The peer meant another node.
    OtherNode {
        /// This node.
        ours: String,
        /// The peer.
        theirs: String,
        /// The node that it meant.
        meant: String,
    },
    /// The peer's proof is wrong: it does not know the secret that it has claimed.
    WrongProof {
        /// The peer.
        theirs: String,
    },
    /// The peer's handshake has the nonce of another one that is under way: it was recorded and sent again.
    Replayed {
        /// The peer.
        theirs: String,
    },
    /// The peer's proof did not come in time, or its connection ended before.
    Late {
        /// The peer.
        theirs: String,
    },
    /// The peer has shown no certificate that an authority of nodes vouches for.
    NoCertificate {
        /// This node.
        ours: String,
        /// The peer.
        theirs: String,
    },
    /// The peer's certificate does not name the host of its URL.
    OtherCertificate {
        /// The peer.
        theirs: String,
        /// What the certificate names.
        names: String,
    },
}

/// The kinds of [`AuthError`] as metrics name them.
pub(super) const REASONS: [&str; 9] = [
    "no-proof",
    "no-shared-secret",
    "not-proved-here",
    "other-node",
    "wrong-proof",
    "late",
    "replayed",
    "no-certificate",
    "other-certificate",
];

impl AuthError {
    /// Its kind, as metrics and the audit log name it.
    pub fn reason(&self) -> &'static str {
        REASONS.get(self.index()).copied().unwrap_or_default()
    }

    pub(super) fn index(&self) -> usize {
        match self {
            Self::NoProof { .. } => 0,
            Self::NoSharedSecret { .. } => 1,
            Self::NotProvedHere { .. } => 2,
            Self::OtherNode { .. } => 3,
            Self::WrongProof { .. } => 4,
            Self::Late { .. } => 5,
            Self::Replayed { .. } => 6,
            Self::NoCertificate { .. } => 7,
            Self::OtherCertificate { .. } => 8,
        }
    }
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProof { ours, theirs } => write!(
                f,
                "{ours} requires that peers prove the peer secret (--peer-auth require), and {theirs} does not: start \
                 it with --peer-secret-file"
            ),
            Self::NoSharedSecret { ours, theirs } => write!(
                f,
                "{ours} and {theirs} have no peer secret in common: their files of --peer-secret-file differ"
            ),
            Self::NotProvedHere { ours, theirs } => write!(
                f,
                "{theirs} requires that peers prove the peer secret (--peer-auth require), and {ours} does not: start \
                 it with --peer-secret-file"
            ),
            Self::OtherNode { ours, theirs, meant } => {
                write!(f, "{theirs} calls {meant}, and reaches {ours}: an address leads to the wrong node")
            }
            Self::WrongProof { theirs } => write!(f, "{theirs} sent a wrong proof of the peer secret"),
            Self::Replayed { theirs } => {
                write!(
                    f,
                    "{theirs} sent a handshake that is under way already: somebody may have recorded it"
                )
            }
            Self::Late { theirs } => write!(f, "{theirs} sent no proof of the peer secret in time"),
            Self::NoCertificate { ours, theirs } => write!(
                f,
                "{ours} requires a certificate of its --peer-ca, and {theirs} has shown none: start it with --tls-cert, and \
                 name {ours} by https in its --cluster"
            ),
            Self::OtherCertificate { theirs, names } => {
                write!(f, "{theirs} has shown a certificate of {names}, which is not its host")
            }
        }
    }
}

impl std::error::Error for AuthError {}
