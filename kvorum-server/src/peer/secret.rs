//! The secret of the cluster's nodes, and the proofs that a node knows it.
//!
//! A proof is an HMAC-SHA256 over everything that both nodes have said in the handshake, with a label for the role and a
//! nonce of each side. So it is worth nothing on another connection, for another node, or in the other direction. Every
//! part has its length before it, so that no two different handshakes have the same bytes.
//!
//! A *claim* is a short HMAC by which the caller says which secrets it has, before the called node says anything. It
//! opens nothing: it lets the called node pick a secret that both have, and refuse with a reason where there is none.
//!
//! Nothing here reads a file, a clock or a source of randomness. `docs/wire.md` has the layout, and
//! `fixtures/peer-proofs-7.txt` and `peer-proofs-ranges.txt` have examples.

#![allow(clippy::similar_names, reason = "caller and called are the words of the protocol")]

use super::handshake::{Hello, PROTOCOLS_HEADER};
use hmac::{Hmac, KeyInit as _, Mac as _};
use kvorum_core::NodeId;
use sha2::Sha256;
use std::fmt;
use std::sync::Arc;
use subtle::ConstantTimeEq as _;

/// The shortest secret, in bytes: as long as the proof, so that it is not the weaker part.
pub const SECRET_BYTES_MIN: usize = 32;
/// The longest secret, in bytes.
pub(super) const SECRET_BYTES_MAX: usize = 1024;
/// The most secrets that hold at once: a rotation needs two.
pub(super) const SECRETS_MAX: usize = 8;
/// The length of a nonce, in bytes.
pub const NONCE_BYTES: usize = 32;
/// The length of a proof, in bytes.
pub const PROOF_BYTES: usize = 32;
/// The length of a claim, in bytes. It only picks a secret; the proof of full length is checked after it.
pub(super) const CLAIM_BYTES: usize = 8;

const CLAIM_LABEL: &[u8] = b"kvorum-peer claim of the caller";
const CALLER_LABEL: &[u8] = b"kvorum-peer proof of the caller";
const CALLED_LABEL: &[u8] = b"kvorum-peer proof of the called node";

/// A random number that makes a handshake unlike every other one.
pub(super) type Nonce = [u8; NONCE_BYTES];
/// A short proof that a caller has a secret; see the module's text.
pub(super) type Claim = [u8; CLAIM_BYTES];

/// A secret that all nodes of a cluster share.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

impl PartialEq for Secret {
    /// The time does not depend on where the two differ: `subtle` compares all bytes.
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The secrets of a node, in the order of its file: it claims the first one first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Secrets(Vec<Secret>);

/// The reason why a text is no list of secrets. It names lines and never their content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretsError {
    /// There is no secret.
    None,
    /// A secret is too short or too long.
    Length {
        /// The number of the line, from 1.
        line: usize,
        /// The length of the secret, in bytes.
        bytes: usize,
    },
    /// A secret is there twice.
    Twice {
        /// The number of the second line.
        line: usize,
    },
    /// There are more than [`SECRETS_MAX`].
    TooMany,
}

impl fmt::Display for SecretsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("it has no secret: a line of 32 to 1024 bytes is needed"),
            Self::Length { line, bytes } => write!(
                f,
                "line {line} has a secret of {bytes} bytes: allowed are {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}"
            ),
            Self::Twice { line } => write!(f, "line {line} repeats an earlier secret"),
            Self::TooMany => write!(f, "it has more than {SECRETS_MAX} secrets"),
        }
    }
}

impl std::error::Error for SecretsError {}

impl Secrets {
    /// Reads secrets from `text`, one a line. Blanks around a line do not count. Empty lines, and lines that begin with
    /// `#`, are skipped.
    ///
    /// # Errors
    /// [`SecretsError`]: none, too many, one twice, or one of the wrong length.
    pub fn parse(text: &[u8]) -> Result<Self, SecretsError> {
        let mut secrets: Vec<Secret> = Vec::new();
        for (line, bytes) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            let bytes = bytes.trim_ascii();
            if bytes.is_empty() || bytes.starts_with(b"#") {
                continue;
            }
            if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
                return Err(SecretsError::Length { line, bytes: bytes.len() });
            }
            let secret = Secret(bytes.into());
            if secrets.contains(&secret) {
                return Err(SecretsError::Twice { line });
            }
            if secrets.len() >= SECRETS_MAX {
                return Err(SecretsError::TooMany);
            }
            secrets.push(secret);
        }
        if secrets.is_empty() { Err(SecretsError::None) } else { Ok(Self(secrets)) }
    }

    /// The secrets, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Secret> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none: the node has no file of secrets.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `secret` is the one that this node claims first.
    pub fn is_first(&self, secret: &Secret) -> bool {
        self.0.first() == Some(secret)
    }

    /// Whether `secret` is one of them.
    pub fn contains(&self, secret: &Secret) -> bool {
        self.0.contains(secret)
    }
}

/// The side of a connection that proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The node that has opened the connection.
    Caller,
    /// The node that was called.
    Called,
}

/// Everything that a proof is bound to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transcript<'a> {
    /// What the caller has said of itself.
    pub(super) caller: &'a Hello,
    /// The caller's nonce.
    pub(super) caller_nonce: &'a Nonce,
    /// What the called node has said of itself.
    pub(super) called: &'a Hello,
    /// The called node's nonce.
    pub(super) called_nonce: &'a Nonce,
}

/// An HMAC that a node has sent, or is to send.
#[derive(Clone)]
pub(super) struct Proof([u8; PROOF_BYTES]);

impl Proof {
    /// The proof by `role` that it knows `secret`.
    pub(super) fn of(secret: &Secret, role: Role, transcript: &Transcript<'_>) -> Self {
        let mut mac = Mac::new(secret);
        mac.field(match role {
            Role::Caller => CALLER_LABEL,
            Role::Called => CALLED_LABEL,
        });
        // A node that sends no range does not read the other's: neither is bound then.
        let with_range = transcript.caller.protocols.is_some() && transcript.called.protocols.is_some();
        mac.hello(transcript.caller, with_range);
        mac.hello(transcript.called, with_range);
        mac.field(transcript.caller_nonce);
        mac.field(transcript.called_nonce);
        Self(mac.finish())
    }

    /// Whether `bytes` are this proof. The time does not depend on where they differ: `subtle` compares all bytes.
    pub(super) fn is(&self, bytes: &[u8; PROOF_BYTES]) -> bool {
        self.0.ct_eq(bytes).into()
    }

    /// Its bytes, as they are sent.
    pub(super) fn bytes(&self) -> &[u8; PROOF_BYTES] {
        &self.0
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof(…)")
    }
}

/// The claim of `secret` by the node `caller`, which calls the node `called`.
pub(super) fn claim(secret: &Secret, caller: &Hello, called: NodeId, nonce: &Nonce) -> Claim {
    let mut mac = Mac::new(secret);
    mac.field(CLAIM_LABEL);
    // Nothing is known of the called node yet: it may be one that reads no range.
    mac.hello(caller, false);
    mac.field(called.to_string().as_bytes());
    mac.field(nonce);
    let mut claim = [0; CLAIM_BYTES];
    claim.iter_mut().zip(mac.finish()).for_each(|(to, from)| *to = from);
    claim
}

/// Whether two claims are equal. The time does not depend on where they differ: `subtle` compares all bytes.
pub(super) fn is_claim(one: Claim, other: Claim) -> bool {
    one.ct_eq(&other).into()
}

/// An HMAC over fields with their lengths.
struct Mac(Hmac<Sha256>);

impl Mac {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of every length: RFC 2104, section 3")]
    fn new(secret: &Secret) -> Self {
        Self(Hmac::new_from_slice(&secret.0).expect("a key of any length"))
    }

    fn field(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    /// The headers of `hello` that proofs cover, in their fixed order: protocol, range of protocols if `with_range`, cluster, its id, node,
    /// topology, store, run, members, clock.
    fn hello(&mut self, hello: &Hello, with_range: bool) {
        let mut headers = hello.proved_headers();
        headers.retain(|(name, _)| with_range || *name != PROTOCOLS_HEADER);
        self.0.update(&(headers.len() as u64).to_be_bytes());
        for (_, value) in headers {
            self.field(value.as_bytes());
        }
    }

    fn finish(self) -> [u8; PROOF_BYTES] {
        self.0.finalize().into_bytes().into()
    }
}

/// `bytes` as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes that `text` writes as twice as many hexadecimal digits; none if it does not.
pub(super) fn unhex<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() != BYTES {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        let digit = |digit: u8| u8::try_from(char::from(digit).to_digit(16)?).ok();
        *byte = (digit(*high)? << 4) | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{PROTOCOL_OLDEST, Protocols};
    use kvorum_core::{ClusterId, Run, UnixMillis};
    use proptest::prelude::*;

    fn hello(node: u64) -> Hello {
        Hello {
            protocol: PROTOCOL_OLDEST,
            protocols: None,
            cluster: "blue".to_owned(),
            cluster_id: ClusterId::new(0xc1),
            node: NodeId(node),
            topology: 0xbeef,
            store: u128::from(node) << 64 | 7,
            run: Run { number: 3, nonce: 0xab },
            members: vec!["http://a:1".to_owned(), "http://b:1".to_owned()],
            clock: UnixMillis(1_700_000_000_000),
            place: crate::peer::PlaceSettings::default(),
            remembers: None,
        }
    }

    fn secret(of: u8) -> Secret {
        Secret([of; SECRET_BYTES_MIN].as_slice().into())
    }

    /// The HMAC is the one of RFC 4231, test case 2 (a key that is no secret of ours, being too short).
    #[test]
    fn hmac_is_the_standard_one() {
        let mut mac = Mac::new(&Secret(b"Jefe".as_slice().into()));
        mac.0.update(b"what do ya want for nothing?");
        assert_eq!(hex(&mac.finish()), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    /// The wire does not change unnoticed: the proofs and the claim of the released fixtures, without ranges of versions
    /// and with them.
    #[test]
    fn proofs_are_those_of_the_fixtures() {
        let before = include_str!("../../../fixtures/peer-proofs-7.txt");
        check_fixture(before, &hello(0xa), &hello(0xb));
        let ranges = include_str!("../../../fixtures/peer-proofs-ranges.txt");
        let caller = Hello { protocol: 7, protocols: Protocols::new(7, 9), ..hello(0xa) };
        let called = Hello { protocol: 8, protocols: Protocols::new(7, 8), ..hello(0xb) };
        check_fixture(ranges, &caller, &called);
    }

    fn check_fixture(fixture: &str, caller: &Hello, called: &Hello) {
        let row = |name: &str| {
            let line = fixture.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{name}")).to_owned()
        };
        let secret = Secrets::parse(row("secret").as_bytes()).unwrap().0.remove(0);
        let (caller_nonce, called_nonce) =
            (unhex(&row("caller-nonce")).unwrap(), unhex(&row("called-nonce")).unwrap());
        let transcript =
            Transcript { caller, caller_nonce: &caller_nonce, called, called_nonce: &called_nonce };
        let values =
            |hello: &Hello| hello.headers().into_iter().map(|(_, value)| value).collect::<Vec<_>>().join(" ");
        let made = [
            ("caller", values(caller)),
            ("called", values(called)),
            ("claim", hex(&claim(&secret, caller, called.node, &caller_nonce))),
            ("called-proof", hex(Proof::of(&secret, Role::Called, &transcript).bytes())),
            ("caller-proof", hex(Proof::of(&secret, Role::Caller, &transcript).bytes())),
        ];
        for (name, value) in made {
            assert_eq!(value, row(name), "{name}");
        }
    }

    /// Ranges of versions are proved where both nodes send one: a third party cannot make the two speak an older
    /// version. Where one sends none, the proofs are those of the releases before.
    #[test]
    fn ranges_are_proved_where_both_send_one() {
        let range = |newest| Some(Protocols::new(PROTOCOL_OLDEST, newest).unwrap());
        let proof = |caller: Option<Protocols>, called: Option<Protocols>| {
            let caller = Hello { protocols: caller, ..hello(0xa) };
            let called = Hello { protocols: called, ..hello(0xb) };
            let transcript = Transcript {
                caller: &caller,
                caller_nonce: &[1; 32],
                called: &called,
                called_nonce: &[2; 32],
            };
            hex(Proof::of(&secret(1), Role::Caller, &transcript).bytes())
        };
        let before = proof(None, None);
        assert_eq!(proof(range(9), None), before);
        assert_eq!(proof(None, range(9)), before);
        let both = proof(range(8), range(8));
        assert_ne!(both, before);
        assert_ne!(both, proof(range(9), range(8)));
        assert_ne!(both, proof(range(8), range(9)));
        let claimed =
            |protocols| claim(&secret(1), &Hello { protocols, ..hello(0xa) }, NodeId(0xb), &[1; 32]);
        assert_eq!(claimed(range(9)), claimed(None));
    }

    #[test]
    fn secrets_are_read_strictly() {
        let long = |bytes: usize| "s".repeat(bytes);
        let check = |text: &str, expect: Result<usize, SecretsError>| {
            assert_eq!(Secrets::parse(text.as_bytes()).map(|secrets| secrets.len()), expect, "{text:.60}");
        };
        check(&long(32), Ok(1));
        check(&long(1024), Ok(1));
        check(&format!("# a comment\r\n\n \t{}  \r\n  # more\n{}\n", long(32), long(33)), Ok(2));
        check("", Err(SecretsError::None));
        check("# nothing\n\n", Err(SecretsError::None));
        check(&format!("\n {} ", long(31)), Err(SecretsError::Length { line: 2, bytes: 31 }));
        check(&long(1025), Err(SecretsError::Length { line: 1, bytes: 1025 }));
        check(&format!("{0}\n{0}", long(40)), Err(SecretsError::Twice { line: 2 }));
        let many = (0..=SECRETS_MAX).map(|number| long(32 + number)).collect::<Vec<_>>().join("\n");
        check(&many, Err(SecretsError::TooMany));
        assert_eq!(Secrets::parse(&[0xff; 32]).map(|secrets| secrets.len()), Ok(1), "bytes of any value");
        let text = format!("{:?}", Secrets::parse(long(40).as_bytes()));
        assert!(!text.contains("ssss"), "{text}");
    }

    /// A change of one fact about a node.
    fn change(hello: &mut Hello, which: usize) {
        match which {
            0 => hello.protocol += 1,
            1 => hello.cluster.push('x'),
            2 => hello.cluster_id = None,
            3 => hello.node.0 ^= 1 << 40,
            4 => hello.topology ^= 1,
            5 => hello.store ^= 1,
            6 => hello.run.number += 1,
            7 => hello.members.swap(0, 1),
            _ => hello.clock.0 += 1,
        }
    }

    proptest! {
        /// Goal: a proof holds for exactly one handshake, one role and one secret: whatever else is changed, moved or
        /// reflected, it is another proof. Method: one change of anything that was said.
        #[test]
        fn proofs_hold_for_one_handshake(
            nonces in any::<([u8; 32], [u8; 32])>(), what in 0_usize..23, bit in 0_usize..256,
        ) {
            let (caller, called) = (hello(0xa), hello(0xb));
            let transcript = Transcript {
                caller: &caller, caller_nonce: &nonces.0, called: &called, called_nonce: &nonces.1,
            };
            let proof = Proof::of(&secret(1), Role::Caller, &transcript);
            prop_assert!(proof.is(Proof::of(&secret(1), Role::Caller, &transcript).bytes()));

            let (mut role, mut of) = (Role::Caller, 1);
            let (mut other_caller, mut other_called, mut other_nonces) = (caller.clone(), called.clone(), nonces);
            match what {
                0..9 => change(&mut other_caller, what),
                9..18 => change(&mut other_called, what - 9),
                18 => other_nonces.0[bit / 8] ^= 1 << (bit % 8),
                19 => other_nonces.1[bit / 8] ^= 1 << (bit % 8),
                20 => role = Role::Called,
                21 => of = 2,
                _ => {
                    std::mem::swap(&mut other_caller, &mut other_called);
                    other_nonces = (nonces.1, nonces.0);
                }
            }
            let other = Transcript {
                caller: &other_caller, caller_nonce: &other_nonces.0,
                called: &other_called, called_nonce: &other_nonces.1,
            };
            let other = Proof::of(&secret(of), role, &other);
            prop_assert!(!proof.is(other.bytes()), "change {}", what);
        }

        /// No two lists of fields have the same bytes, wherever one ends and the next begins.
        #[test]
        fn fields_do_not_run_together(text in "[a-z]{2,40}", one in 1_usize..39, other in 1_usize..39) {
            let (one, other) = (one % (text.len() - 1) + 1, other % (text.len() - 1) + 1);
            let mac = |at: usize| {
                let mut mac = Mac::new(&secret(1));
                mac.field(&text.as_bytes()[..at]);
                mac.field(&text.as_bytes()[at..]);
                mac.finish()
            };
            prop_assert_eq!(mac(one) == mac(other), one == other);
        }

        /// A claim holds for one secret, one caller, one called node and one nonce.
        #[test]
        fn claims_hold_for_one_call(nonce in any::<[u8; 32]>(), what in 0_usize..12) {
            let (caller, called) = (hello(0xa), NodeId(0xb));
            let right = claim(&secret(1), &caller, called, &nonce);
            let (mut of, mut other_caller, mut other_called, mut other_nonce) = (1, caller, called, nonce);
            match what {
                0..9 => change(&mut other_caller, what),
                9 => of = 2,
                10 => other_called.0 += 1,
                _ => other_nonce[0] ^= 1,
            }
            let other = claim(&secret(of), &other_caller, other_called, &other_nonce);
            prop_assert!(is_claim(right, right) && !is_claim(right, other));
        }

        #[test]
        fn hexadecimal_round_trips(bytes in any::<[u8; 32]>(), other in "[0-9a-zA-Z+ ]{62,66}") {
            prop_assert_eq!(unhex::<32>(&hex(&bytes)), Some(bytes));
            let is_hex = other.len() == 64 && other.bytes().all(|byte| byte.is_ascii_hexdigit());
            prop_assert_eq!(unhex::<32>(&other).is_some(), is_hex);
        }
    }
}
