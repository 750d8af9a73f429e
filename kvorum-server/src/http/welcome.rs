//! The answering side of the handshake between nodes, as `docs/wire.md` has it.

use super::body::ReplyBody;
use super::connection::{Connection, Upgraded};
use super::error::Failure;
use super::handler::Service;
use super::target;
use crate::authority::Authority;
use crate::peer::{
    Answer, AuthError, CONNECT_TIMEOUT, Challenge, HandshakeError, Hello, JOINING, PROOF_BYTES, Secret,
    UPGRADE_PATH, UPGRADE_PROTOCOL,
};
use crate::security::audit;
use crate::tls::Shown;
use bytes::Bytes;
use http::header::{CONNECTION, HeaderName, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use std::rc::Rc;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Welcomes a peer.
pub(super) fn welcome<B: Body>(
    service: &Service,
    connection: &Connection,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    target::parse_nothing(request.uri().query())?;
    let headers = request.headers();
    let upgrade = headers.get(UPGRADE).and_then(|upgrade| upgrade.to_str().ok());
    if upgrade != Some(UPGRADE_PROTOCOL) {
        return Err(Failure::upgrade_required(UPGRADE_PROTOCOL));
    }
    if !request.body().is_end_stream() {
        // Frames follow the answer, and a body would be read as one.
        return Err(Failure::malformed("an upgrade takes no body"));
    }
    let shared = &service.rooms()?.shared;
    let ours = shared.cluster.hello(service.clock.wall());
    let refuse = |reason: String| {
        if service.refusals.admit(&reason, service.clock.mono()) {
            tracing::warn!(
                reason,
                "refused the connection of another node: it gets the same reason, and tries again"
            );
        }
        reason
    };
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let malformed = |error: HandshakeError| Failure::malformed(refuse(error.to_string()));
    let theirs = Hello::parse_as(ours.spoken(), header).map_err(malformed)?;
    let remembers = shared.cluster.registry().seen_of(theirs.node);
    let ours = Hello { remembers, ..ours.in_answer_to(&theirs).map_err(malformed)? };
    let challenge = Challenge::parse(header).map_err(malformed)?;
    let unproven = |error: AuthError| {
        note_refused(service, connection, &error);
        Failure::unproven(refuse(error.to_string()))
    };
    // These two come before anything follows from what the caller says.
    let shown = judge_certificate(service, connection, (&ours, &theirs)).map_err(unproven)?;
    let answer =
        shared.peering.auth.answer((&ours, &theirs), challenge.as_ref(), &*shared.rng).map_err(unproven)?;
    let is_proving = matches!(answer, Answer::Prove { .. });
    let is_removed = shared.cluster.was_removed(&theirs);
    match shared.cluster.judge(&ours, &theirs, is_proving, service.clock.mono()) {
        // It may ask for the configuration without it.
        Err(HandshakeError::Removed { .. }) if is_removed => {}
        // It passes, once other nodes have said the same.
        Err(error @ HandshakeError::ClusterIdOpen { contradicts: None, .. }) => {
            return Err(Failure::peer_not_yet(error.to_string()));
        }
        Err(error) => return Err(Failure::foreign_node(refuse(error.to_string()))),
        Ok(()) => {}
    }
    let may_only_ask = is_removed || theirs.topology == JOINING;
    if !may_only_ask && shared.cluster.slot_of(theirs.node).is_none_or(|index| index == shared.cluster.me()) {
        let reason = format!("node {} is no other node of this cluster", theirs.node);
        return Err(Failure::foreign_node(refuse(reason)));
    }
    let (proof, expected) = match answer {
        Answer::Open => (Vec::new(), None),
        Answer::Prove { headers, expected } => {
            let nonce = challenge.map(|challenge| *challenge.nonce()).unwrap_or_default();
            let Some(place) = service.handshake_places.take_once(theirs.node, nonce) else {
                let error = AuthError::Replayed { theirs: ours.name_of(theirs.node) };
                service.peer_auth.note_refused(&error);
                return Err(unproven(error));
            };
            (Vec::from(headers), Some((expected, place)))
        }
    };
    let mut response = Response::new(ReplyBody::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(UPGRADE_PROTOCOL));
    for (name, value) in ours.headers().into_iter().chain(proof) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    }
    connection.upgrade(Upgraded { theirs, expected, shown });
    Ok(response)
}

/// The certificate by which the caller `theirs` is known; none if this node has no authorities of nodes, or lets the caller
/// pass without.
fn judge_certificate(
    service: &Service,
    connection: &Connection,
    (ours, theirs): (&Hello, &Hello),
) -> Result<Option<Rc<Shown>>, AuthError> {
    let Some(tls) = service.tls.as_ref().filter(|tls| tls.files().peer_ca.is_some()) else { return Ok(None) };
    let name = ours.name_of(theirs.node);
    let shown = connection.shown().filter(|shown| tls.roles(shown, service.clock.wall()).peer);
    let Some(shown) = shown else {
        let error = AuthError::NoCertificate { ours: ours.name_of(ours.node), theirs: name };
        return service.peer_auth.without_certificate(error).map(|()| None);
    };
    // The name of a node that is none of this cluster is no URL: it is refused for that afterwards.
    let names_it = Authority::of_url(&name).is_none_or(|(_, authority)| shown.names_host(&authority.host()));
    if names_it {
        return Ok(Some(Rc::clone(shown)));
    }
    let error = AuthError::OtherCertificate { theirs: name, names: shown.names.join(", ") };
    service.peer_auth.without_certificate(error).map(|()| None)
}

/// Awaits the proof of a peer that owes one, within [`CONNECT_TIMEOUT`]. Reads nothing behind it. Returns the peer with
/// the secret that it has proved, or none if it has not.
///
/// Peers that still owe it have places of their own by member, and a handshake that is sent again takes none. Beyond the
/// places the oldest gives way, so that a member that answers at once finds one.
pub(super) async fn prove<S: AsyncRead + Unpin>(
    stream: &mut S,
    already_read: &mut Bytes,
    service: &Service,
    connection: &Connection,
    peer: Upgraded,
) -> Option<(Hello, Option<Secret>)> {
    let Upgraded { theirs, expected, shown: _ } = peer;
    let Some((expected, place)) = expected else { return Some((theirs, None)) };
    let mut sent = [0; PROOF_BYTES];
    let begun = already_read.split_to(already_read.len().min(PROOF_BYTES));
    let (head, rest) = sent.split_at_mut(begun.len());
    head.copy_from_slice(&begun);
    let read = tokio::time::timeout(CONNECT_TIMEOUT, stream.read_exact(rest));
    let is_read = tokio::select! {
        biased;
        read = read => matches!(read, Ok(Ok(_))),
        () = place.gives_way() => false,
    };
    let cluster = &service.rooms.get()?.shared.cluster;
    let name = cluster.hello(service.clock.wall()).name_of(theirs.node);
    let proved = if is_read {
        expected.check(&sent).ok_or(AuthError::WrongProof { theirs: name })
    } else {
        Err(AuthError::Late { theirs: name })
    };
    match proved {
        Ok(secret) => {
            cluster.note_proven(&theirs, service.clock.mono());
            Some((theirs, Some(secret)))
        }
        Err(error) => {
            service.peer_auth.note_refused(&error);
            note_refused(service, connection, &error);
            let reason = error.to_string();
            if service.refusals.admit(&reason, service.clock.mono()) {
                tracing::warn!(
                    reason,
                    "closed the connection of another node: nothing that it sent was used"
                );
            }
            None
        }
    }
}

/// Notes in the audit log that a node was refused because it has not proved the peer secret.
fn note_refused(service: &Service, connection: &Connection, error: &AuthError) {
    let asked =
        audit::Asked { client: connection.origin().client(), method: "GET", path: UPGRADE_PATH, key: None };
    service.security.audit().refused(asked, error.reason(), "", (service.clock.wall(), service.clock.mono()));
}
