//! Whether peers must prove that they know the cluster's secret, and what follows where they do not.
//!
//! The caller sends a [`Challenge`] in its handshake: a nonce, and which secrets it has. The called node answers with its
//! own nonce and its proof, or refuses with a reason ([`PeerAuth::answer`]). The caller checks that proof
//! ([`Offer::check`]) and sends its own as the first bytes of the connection ([`Expected`]). So neither side reads a
//! message of the other before the other's proof, and the exchange costs no round trip.
//!
//! The proofs themselves are in [`super::secret`]. Where secrets come from is not known here.

#![allow(clippy::similar_names, reason = "caller and called are the words of the protocol")]

use super::auth_error::{AuthError, REASONS};
use super::handshake::{Fields, HandshakeError, Hello};
use super::secret::{self, Claim, Nonce, PROOF_BYTES, Proof, Role, SECRETS_MAX, Secret, Secrets, Transcript};
use crate::canary::{self, Canary};
use crate::clock::Rng;
use kvorum_core::NodeId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

pub(super) const NONCE_HEADER: &str = "Kvorum-Nonce";
pub(super) const PROOF_HEADER: &str = "Kvorum-Proof";
const CALLED_HEADER: &str = "Kvorum-Called";
const CLAIMS_HEADER: &str = "Kvorum-Claims";
const AUTH_HEADER: &str = "Kvorum-Peer-Auth";

/// Whether peers prove that they know the secret.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PeerAuthMode {
    /// This node proves nothing and asks for no proof.
    #[default]
    Off,
    /// This node proves, and accepts peers without a proof. They are counted.
    Prefer,
    /// This node proves, and refuses peers without a proof.
    Require,
}

impl PeerAuthMode {
    /// Its name in settings, metrics and the handshake.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Prefer => "prefer",
            Self::Require => "require",
        }
    }

    /// The mode of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Off, Self::Prefer, Self::Require].into_iter().find(|mode| mode.name() == name)
    }
}

/// The part of a caller's handshake that asks for a proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    nonce: Nonce,
    /// The node that the caller means.
    called: NodeId,
    claims: Vec<Claim>,
    /// Whether the caller refuses a node without a proof.
    is_required: bool,
}

impl Challenge {
    /// The caller's nonce, which no other handshake has.
    pub fn nonce(&self) -> &Nonce {
        &self.nonce
    }

    pub(super) fn headers(&self) -> Vec<(&'static str, String)> {
        let claims: Vec<String> = self.claims.iter().map(|claim| secret::hex(claim)).collect();
        let mode = if self.is_required { PeerAuthMode::Require } else { PeerAuthMode::Prefer };
        vec![
            (NONCE_HEADER, secret::hex(&self.nonce)),
            (CALLED_HEADER, self.called.to_string()),
            (CLAIMS_HEADER, claims.join(",")),
            (AUTH_HEADER, mode.name().to_owned()),
        ]
    }

    /// Reads a challenge from headers; none if there is no nonce. `header` finds a value by name.
    ///
    /// # Errors
    /// The header that is missing or malformed.
    pub fn parse<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Result<Option<Self>, HandshakeError> {
        if header(NONCE_HEADER).is_none() {
            return Ok(None);
        }
        let fields = Fields { header };
        let claims = |text: &str| {
            let claims: Option<Vec<Claim>> =
                text.split(',').take(SECRETS_MAX + 1).map(secret::unhex).collect();
            claims.filter(|claims| claims.len() <= SECRETS_MAX)
        };
        let is_required = |text: &str| match PeerAuthMode::of_name(text)? {
            PeerAuthMode::Off => None,
            mode => Some(mode == PeerAuthMode::Require),
        };
        Ok(Some(Self {
            nonce: fields.read(NONCE_HEADER, secret::unhex)?,
            called: fields
                .read(CALLED_HEADER, |text| secret::unhex(text).map(u64::from_be_bytes).map(NodeId))?,
            claims: fields.read(CLAIMS_HEADER, claims)?,
            is_required: fields.read(AUTH_HEADER, is_required)?,
        }))
    }
}

/// A caller's challenge, with the secrets that it was made from.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) challenge: Challenge,
    secrets: Arc<Secrets>,
}

impl Offer {
    /// Checks the called node's proof `sent`; returns the secret and this node's own proof.
    pub(super) fn check(
        &self,
        (ours, theirs): (&Hello, &Hello),
        (nonce, sent): &(Nonce, [u8; PROOF_BYTES]),
    ) -> Option<(Secret, Proof)> {
        let transcript = Transcript {
            caller: ours,
            caller_nonce: &self.challenge.nonce,
            called: theirs,
            called_nonce: nonce,
        };
        let of = |secret: &Secret, role| Proof::of(secret, role, &transcript);
        let secret = self.secrets.iter().find(|secret| of(secret, Role::Called).is(sent))?;
        Some((secret.clone(), of(secret, Role::Caller)))
    }
}

/// The called node's nonce and proof in its answer; none if there is none.
pub(super) fn parse_answer<'a>(
    header: impl Fn(&str) -> Option<&'a str>,
) -> Result<Option<(Nonce, [u8; PROOF_BYTES])>, HandshakeError> {
    if header(NONCE_HEADER).is_none() {
        return Ok(None);
    }
    let fields = Fields { header };
    Ok(Some((fields.read(NONCE_HEADER, secret::unhex)?, fields.read(PROOF_HEADER, secret::unhex)?)))
}

/// What the called node does about a caller.
#[derive(Debug)]
pub enum Answer {
    /// The caller need prove nothing: frames follow.
    Open,
    /// The caller's proof follows, then frames.
    Prove {
        /// The headers of the answer.
        headers: [(&'static str, String); 2],
        /// The caller's proof.
        expected: Expected,
    },
}

/// The proof that a caller is to send before its first frame.
#[derive(Debug)]
pub struct Expected {
    secret: Secret,
    proof: Proof,
}

impl Expected {
    /// The secret that both nodes have; none unless the caller has `sent` its proof.
    pub fn check(self, sent: &[u8; PROOF_BYTES]) -> Option<Secret> {
        (self.proof.is(sent) || canary::is(Canary::PeerUnproven)).then_some(self.secret)
    }
}

/// The node's secrets and what it demands of peers, shared by all threads.
#[derive(Debug)]
pub struct PeerAuth {
    mode: PeerAuthMode,
    /// Whether peers are known by certificates, so that a node without a secret still demands something.
    has_certificates: bool,
    // Guards the secrets. Held to copy or replace a pointer, once in a handshake.
    secrets: Mutex<Arc<Secrets>>,
    /// Wakes those who wait for other secrets, in the order in which they began to wait: a simulated run must be the
    /// same again, which a `watch` with several receivers is not.
    changes: Notify,
    refused: [AtomicU64; REASONS.len()],
    unproven: [AtomicU64; REASONS.len()],
    // Guards the open connections of callers by number, with the secret of each and whether it showed a certificate. Held for an insertion, a removal, or a
    // walk over at most a few hundred.
    connections: Mutex<BTreeMap<u64, (Option<Secret>, bool)>>,
    loads: AtomicU64,
    load_failures: AtomicU64,
    /// Counts the changes of the certificates by which peers know each other.
    certificates: AtomicU64,
}

/// What peers prove each other with at some moment.
#[derive(Debug, Clone)]
pub struct Known {
    /// The secrets.
    pub secrets: Arc<Secrets>,
    /// How often the certificates had changed.
    pub certificates: u64,
}

/// The open connections of callers, by what they have proved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Proven {
    /// By the node's first secret.
    pub first: u64,
    /// By another of its secrets.
    pub later: u64,
    /// By a certificate, and by no secret.
    pub certificate: u64,
    /// Nothing.
    pub none: u64,
}

impl Default for PeerAuth {
    fn default() -> Self {
        Self::new(PeerAuthMode::Off)
    }
}

impl PeerAuth {
    /// Demands what `mode` says, with no secrets yet.
    pub fn new(mode: PeerAuthMode) -> Self {
        Self {
            mode,
            has_certificates: false,
            secrets: Mutex::default(),
            changes: Notify::new(),
            refused: Default::default(),
            unproven: Default::default(),
            connections: Mutex::default(),
            loads: AtomicU64::new(0),
            load_failures: AtomicU64::new(0),
            certificates: AtomicU64::new(0),
        }
    }

    /// The same for a node that knows peers by certificates (`--peer-ca`).
    #[must_use]
    pub fn with_certificates(self) -> Self {
        Self { has_certificates: true, ..self }
    }

    /// Whether peers prove themselves by certificates alone. A node that has neither secrets nor certificates lets nobody
    /// in: what it was to demand is lost.
    pub(super) fn is_by_certificates_alone(&self) -> bool {
        self.has_certificates && self.secrets().is_empty()
    }

    /// The mode.
    pub fn mode(&self) -> PeerAuthMode {
        self.mode
    }

    /// Puts `secrets` in the place of the present ones. Connections that were proved by a secret that is gone end.
    pub fn replace(&self, secrets: Secrets) {
        self.loads.fetch_add(1, Ordering::Relaxed);
        *self.secrets.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(secrets);
        self.changes.notify_waiters();
    }

    /// Counts a file of secrets that could not be used.
    pub fn note_load_failure(&self) {
        self.load_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// The secrets now.
    pub fn secrets(&self) -> Arc<Secrets> {
        Arc::clone(&self.secrets.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that the certificates by which peers know each other have changed: connections are made anew.
    pub fn note_certificates(&self) {
        self.certificates.fetch_add(1, Ordering::Release);
        self.changes.notify_waiters();
    }

    /// What peers prove each other with now.
    pub fn known(&self) -> Known {
        Known { secrets: self.secrets(), certificates: self.certificates.load(Ordering::Acquire) }
    }

    /// Waits until peers prove each other with something else than `known`, and returns it.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn changed_from(&self, known: &Known) -> Known {
        loop {
            let changed = self.changes.notified();
            let now = self.known();
            if now.certificates != known.certificates || now.secrets != known.secrets {
                return now;
            }
            changed.await;
        }
    }

    /// Waits until `secret` is none of the secrets any more. Without one, waits for ever.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn withdrawn(&self, secret: Option<&Secret>) {
        let Some(secret) = secret else { return std::future::pending().await };
        drop(self.until(|secrets| !secrets.contains(secret)).await);
    }

    async fn until(&self, condition: impl Fn(&Secrets) -> bool) -> Arc<Secrets> {
        loop {
            // Made before the secrets are read: it misses no change from then on.
            let changed = self.changes.notified();
            let secrets = self.secrets();
            if condition(&secrets) {
                return secrets;
            }
            changed.await;
        }
    }

    /// The challenge with which the node `ours` calls the node `called`; none if this node proves nothing.
    pub(super) fn offer(&self, ours: &Hello, called: NodeId, rng: &dyn Rng) -> Option<Offer> {
        let secrets = self.secrets();
        if self.mode == PeerAuthMode::Off || secrets.is_empty() {
            return None;
        }
        let nonce = nonce(rng);
        let claims = secrets.iter().map(|secret| secret::claim(secret, ours, called, &nonce)).collect();
        let is_required = self.mode == PeerAuthMode::Require;
        Some(Offer { challenge: Challenge { nonce, called, claims, is_required }, secrets })
    }

    /// Answers the caller `theirs` as the node `ours`, and counts a caller that proves nothing. Of the secrets that both
    /// nodes have, the caller's order decides.
    ///
    /// # Errors
    /// Why the caller is refused.
    pub fn answer(
        &self,
        (ours, theirs): (&Hello, &Hello),
        challenge: Option<&Challenge>,
        rng: &dyn Rng,
    ) -> Result<Answer, AuthError> {
        let names = || (ours.name_of(ours.node), ours.name_of(theirs.node));
        let secrets = self.secrets();
        let is_required = self.mode == PeerAuthMode::Require;
        let Some(challenge) = challenge else {
            // Certificates are judged elsewhere.
            if self.mode == PeerAuthMode::Off || self.is_by_certificates_alone() {
                return Ok(Answer::Open);
            }
            let (ours, theirs) = names();
            return self.without_proof(is_required, AuthError::NoProof { ours, theirs });
        };
        if challenge.called != ours.node {
            let ((name, theirs), meant) = (names(), ours.name_of(challenge.called));
            return self.without_proof(true, AuthError::OtherNode { ours: name, theirs, meant });
        }
        if self.mode == PeerAuthMode::Off || secrets.is_empty() {
            let (ours, theirs) = names();
            return self.without_proof(challenge.is_required, AuthError::NotProvedHere { ours, theirs });
        }
        let own: Vec<(Claim, &Secret)> = secrets
            .iter()
            .map(|secret| (secret::claim(secret, theirs, ours.node, &challenge.nonce), secret))
            .collect();
        let known = |claim: &Claim| {
            own.iter().find(|(own, _)| secret::is_claim(*own, *claim)).map(|(_, secret)| *secret)
        };
        let Some(secret) = challenge.claims.iter().find_map(known) else {
            let (ours, theirs) = names();
            let is_required = is_required || challenge.is_required;
            return self.without_proof(is_required, AuthError::NoSharedSecret { ours, theirs });
        };
        let nonce = nonce(rng);
        let transcript =
            Transcript { caller: theirs, caller_nonce: &challenge.nonce, called: ours, called_nonce: &nonce };
        let proof = Proof::of(secret, Role::Called, &transcript);
        Ok(Answer::Prove {
            headers: [(NONCE_HEADER, secret::hex(&nonce)), (PROOF_HEADER, secret::hex(proof.bytes()))],
            expected: Expected {
                secret: secret.clone(),
                proof: Proof::of(secret, Role::Caller, &transcript),
            },
        })
    }

    fn without_proof(&self, is_refused: bool, error: AuthError) -> Result<Answer, AuthError> {
        if is_refused && !canary::is(Canary::PeerUnproven) {
            self.note_refused(&error);
            return Err(error);
        }
        if let Some(count) = self.unproven.get(error.index()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Answer::Open)
    }

    /// Judges a caller whose certificate has the fault `error`: refuses it, or counts it and lets it pass.
    ///
    /// # Errors
    /// `error`, if this node requires that peers prove themselves.
    pub fn without_certificate(&self, error: AuthError) -> Result<(), AuthError> {
        match self.mode {
            PeerAuthMode::Off => Ok(()),
            mode => self.without_proof(mode == PeerAuthMode::Require, error).map(drop),
        }
    }

    /// Counts a caller that was refused for `error`.
    pub fn note_refused(&self, error: &AuthError) {
        if let Some(count) = self.refused.get(error.index()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes the connection `number` of a caller, which has proved `secret` and may be known by a certificate, until the
    /// guard is dropped.
    pub fn connected(
        self: &Arc<Self>,
        number: u64,
        secret: Option<Secret>,
        has_certificate: bool,
    ) -> Connected {
        self.lock().insert(number, (secret, has_certificate));
        Connected { auth: Arc::clone(self), number }
    }

    /// The open connections of callers, by what they have proved.
    pub fn proven(&self) -> Proven {
        let secrets = self.secrets();
        self.lock().values().fold(Proven::default(), |mut proven, secret| {
            match secret {
                (None, true) => proven.certificate += 1,
                (None, false) => proven.none += 1,
                (Some(secret), _) if secrets.is_first(secret) => proven.first += 1,
                (Some(_), _) => proven.later += 1,
            }
            proven
        })
    }

    /// Callers that were refused, by reason.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS.into_iter().zip(self.refused.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Callers that were accepted without a proof, by reason.
    pub fn unproven(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS.into_iter().zip(self.unproven.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// How many lists of secrets were taken, and how many could not be used.
    pub fn loads(&self) -> (u64, u64) {
        (self.loads.load(Ordering::Relaxed), self.load_failures.load(Ordering::Relaxed))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, (Option<Secret>, bool)>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nonce(rng: &dyn Rng) -> Nonce {
    let mut nonce = Nonce::default();
    rng.fill(&mut nonce);
    nonce
}

/// An open connection of a caller, counted until it is dropped.
#[derive(Debug)]
pub struct Connected {
    auth: Arc<PeerAuth>,
    number: u64,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.auth.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemRng;
    use crate::peer::{PROTOCOL, Protocols};
    use kvorum_core::{Run, UnixMillis};

    fn hello(node: u64) -> Hello {
        Hello {
            protocol: PROTOCOL,
            protocols: Some(Protocols::SPOKEN),
            cluster: "blue".to_owned(),
            cluster_id: None,
            node: NodeId(node),
            topology: 1,
            store: node.into(),
            run: Run::default(),
            members: Vec::new(),
            clock: UnixMillis(5),
            place: crate::peer::PlaceSettings::default(),
            remembers: None,
        }
    }

    fn node(mode: PeerAuthMode, secrets: &[&str]) -> Arc<PeerAuth> {
        let auth = Arc::new(PeerAuth::new(mode));
        if !secrets.is_empty() {
            let text = secrets.iter().map(|secret| format!("{secret:x<40}")).collect::<Vec<_>>().join("\n");
            auth.replace(Secrets::parse(text.as_bytes()).unwrap());
        }
        auth
    }

    fn parse<T>(
        headers: &[(&'static str, String)],
        parse: impl Fn(&dyn Fn(&str) -> Option<&'static str>) -> T,
    ) -> T {
        let headers: Vec<(&str, &'static str)> =
            headers.iter().map(|(name, value)| (*name, &*value.clone().leak())).collect();
        parse(&|name| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value))
    }

    /// A whole handshake of the node 1 with the node 2, over headers; whether it was proved, or why it was refused.
    fn shake(caller: &PeerAuth, called: &PeerAuth) -> Result<bool, AuthError> {
        let (one, two) = (hello(1), hello(2));
        let offer = caller.offer(&one, two.node, &SystemRng);
        let headers = offer.as_ref().map(|offer| offer.challenge.headers()).unwrap_or_default();
        let challenge = parse(&headers, |header| Challenge::parse(header)).unwrap();
        assert_eq!(challenge.as_ref(), offer.as_ref().map(|offer| &offer.challenge));
        match called.answer((&two, &one), challenge.as_ref(), &SystemRng)? {
            Answer::Open => Ok(false),
            Answer::Prove { headers, expected } => {
                let sent = parse(&headers, |header| parse_answer(header)).unwrap().unwrap();
                let (secret, proof) = offer.unwrap().check((&one, &two), &sent).unwrap();
                assert_eq!(expected.check(proof.bytes()), Some(secret));
                Ok(true)
            }
        }
    }

    /// Each mode of the caller, with no, a wrong and the right secret, at a node of each mode. A caller that requires also
    /// refuses what is open; that is [`super::super::handshake::ask`]'s part.
    #[test]
    fn modes_and_secrets_decide() {
        use PeerAuthMode::{Off, Prefer, Require};
        let check = |caller: (PeerAuthMode, &[&str]), called: (PeerAuthMode, &[&str]), expect| {
            let shaken = shake(&node(caller.0, caller.1), &node(called.0, called.1));
            let reason = shaken.map_err(|error| REASONS[error.index()]);
            assert_eq!(reason, expect, "{caller:?} {called:?}");
        };
        for called in [(Off, &[][..]), (Off, &["a"])] {
            for caller in [(Off, &[][..]), (Off, &["a"]), (Prefer, &[]), (Prefer, &["a"])] {
                check(caller, called, Ok(false));
            }
            check((Require, &["a"]), called, Err("not-proved-here"));
        }
        check((Off, &[]), (Prefer, &["a"]), Ok(false));
        check((Prefer, &[]), (Prefer, &["a"]), Ok(false));
        check((Prefer, &["b"]), (Prefer, &["a"]), Ok(false));
        check((Prefer, &["a"]), (Prefer, &["a"]), Ok(true));
        check((Prefer, &["a"]), (Prefer, &[]), Ok(false));
        check((Require, &["b"]), (Prefer, &["a"]), Err("no-shared-secret"));
        check((Require, &["a"]), (Prefer, &["a"]), Ok(true));
        check((Off, &[]), (Require, &["a"]), Err("no-proof"));
        check((Prefer, &[]), (Require, &["a"]), Err("no-proof"));
        check((Prefer, &["b"]), (Require, &["a"]), Err("no-shared-secret"));
        check((Require, &["b"]), (Require, &["a"]), Err("no-shared-secret"));
        check((Require, &["a"]), (Require, &["a"]), Ok(true));
        // Rotation: any secret in common is enough.
        check((Require, &["a", "b"]), (Require, &["b"]), Ok(true));
        check((Require, &["b", "a"]), (Require, &["a", "b"]), Ok(true));
    }

    /// Goal: nothing that was seen on the network opens a connection. Method: replay a caller's handshake and proof,
    /// reflect the called node's proof, call another node, and forge the claim.
    #[test]
    fn proofs_open_one_connection() {
        let (caller, called) = (node(PeerAuthMode::Require, &["a"]), node(PeerAuthMode::Require, &["a"]));
        let (one, two) = (hello(1), hello(2));
        let offer = caller.offer(&one, two.node, &SystemRng).unwrap();
        let answer = || match called.answer((&two, &one), Some(&offer.challenge), &SystemRng).unwrap() {
            Answer::Prove { headers, expected } => {
                (parse(&headers, |header| parse_answer(header)).unwrap().unwrap(), expected)
            }
            Answer::Open => panic!("a proof is needed"),
        };
        let ((nonce, sent), expected) = answer();
        let (_, proof) = offer.check((&one, &two), &(nonce, sent)).unwrap();
        let (second, replayed) = answer();
        assert_ne!(nonce, second.0);
        assert_eq!(replayed.check(proof.bytes()), None, "replayed");
        assert_eq!(answer().1.check(&sent), None, "reflected");
        assert!(offer.check((&one, &two), &(second.0, sent)).is_none(), "a called node's proof, replayed");
        assert!(offer.check((&one, &hello(3)), &(nonce, sent)).is_none(), "another node's proof");
        assert!(expected.check(proof.bytes()).is_some());

        let elsewhere = called.answer((&hello(3), &one), Some(&offer.challenge), &SystemRng).unwrap_err();
        assert_eq!(REASONS[elsewhere.index()], "other-node");
        let as_another = called.answer((&two, &hello(4)), Some(&offer.challenge), &SystemRng).unwrap_err();
        assert_eq!(REASONS[as_another.index()], "no-shared-secret", "the claims are bound to the caller");
        let forged = Challenge { claims: vec![[0; 8]; SECRETS_MAX], ..offer.challenge.clone() };
        assert!(called.answer((&two, &one), Some(&forged), &SystemRng).is_err());
        let refused: BTreeMap<_, _> = called.refused().collect();
        assert_eq!((refused["other-node"], refused["no-shared-secret"]), (1, 2));
    }

    /// Headers of a challenge have one form each, and all of them are needed.
    #[test]
    fn challenges_are_read_strictly() {
        let caller = node(PeerAuthMode::Prefer, &["a", "b"]);
        let headers = caller.offer(&hello(1), NodeId(2), &SystemRng).unwrap().challenge.headers();
        for at in 1..headers.len() {
            let mut fewer = headers.clone();
            let (header, _) = fewer.remove(at);
            let parsed = parse(&fewer, |header| Challenge::parse(header));
            assert_eq!(parsed, Err(HandshakeError::Missing { header }));
        }
        for at in 0..headers.len() {
            for bad in ["x", "00", "off", ",", &"0123456789abcdef,".repeat(9)] {
                let mut changed = headers.clone();
                changed[at].1 = bad.to_owned();
                let parsed = parse(&changed, |header| Challenge::parse(header));
                assert!(matches!(parsed, Err(HandshakeError::Malformed { .. })), "{at} {bad}");
            }
        }
    }

    /// A node whose secrets are gone lets nobody in, unless it knows peers by certificates.
    #[test]
    fn without_secrets_nobody_is_let_in() {
        let (ours, theirs) = (hello(1), hello(2));
        let answer = |auth: &PeerAuth| auth.answer((&ours, &theirs), None, &SystemRng).map(drop);
        let lost = PeerAuth::new(PeerAuthMode::Require);
        assert!(matches!(answer(&lost), Err(AuthError::NoProof { .. })));
        assert_eq!(answer(&PeerAuth::new(PeerAuthMode::Require).with_certificates()), Ok(()));
    }

    /// A connection counts by what it has proved, and ends when its secret is withdrawn.
    #[tokio::test]
    async fn secrets_are_withdrawn() {
        let auth = node(PeerAuthMode::Require, &["a", "b"]);
        let secrets = auth.secrets();
        let of = |index| secrets.iter().nth(index).cloned();
        let connected =
            [(1, of(0)), (2, of(1)), (3, None)].map(|(number, secret)| auth.connected(number, secret, false));
        let certified = auth.connected(4, None, true);
        assert_eq!(auth.proven(), Proven { first: 1, later: 1, certificate: 1, none: 1 });
        auth.replace(Secrets::parse(format!("{:x<40}", "b").as_bytes()).unwrap());
        assert_eq!(auth.proven(), Proven { first: 1, later: 1, certificate: 1, none: 1 }, "b is first now");
        auth.withdrawn(of(0).as_ref()).await;
        let later = of(1);
        tokio::select! {
            biased;
            () = auth.withdrawn(later.as_ref()) => panic!("b is still there"),
            () = auth.withdrawn(None) => panic!("nothing was proved"),
            () = std::future::ready(()) => {}
        }
        drop((connected, certified));
        assert_eq!(auth.proven(), Proven::default());
    }
}
