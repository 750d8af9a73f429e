//! The one place where a request is judged: whether its token allows it, and whether it comes from where it may.
//!
//! The table of paths ([`super::routes`]) says what each of them needs. Here that is compared with the request: its token,
//! its keys (decoded as the handlers decode them), and for paths about the node itself also the `Host` and `Origin`.

use super::connection::{Connection, Origin};
use super::error::Failure;
use super::handler::ThreadState;
use super::local;
use super::routes::Path;
use super::target::{self, TargetError};
use crate::security::limit::User;
use crate::security::{
    self, AuthMode, Credentials, Need, Refusal, Security, TokenEntry, TokenTable, TokenView, audit,
};
use crate::tls::Shown;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, Method, Request};
use kvorum_core::{Key, Right, Scope, UnixMillis};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Checks that `request`, to `path`, is allowed, and notes in the audit log who was refused and who administers the node.
///
/// # Errors
/// 401 or 403 where it is not; 400 for a target whose keys cannot be read.
pub(super) fn check<B>(
    state: &ThreadState,
    connection: &Connection,
    request: &Request<B>,
    path: Path,
) -> Result<(), Failure> {
    // A method that the path does not have is refused there.
    let Some(need) = path.need(request.method()) else { return Ok(()) };
    let is_administered = need == Need::Right(Right::Admin);
    let allowed = judge(state, connection, request, path, need);
    connection.charge_to(allowed.as_ref().ok().cloned().flatten());
    let service = &state.service;
    let audit = service.security.audit();
    // To ask for too much is no attempt to do what is not allowed, and there may be very many such requests.
    let is_over = matches!(allowed, Err(NotAllowed::Refused(Refusal::OverLimit { .. })));
    if audit.is_open() && !is_over && (is_administered || allowed.is_err()) {
        let asked = Asked::of(path, request.uri().query()).unwrap_or(Asked::Node);
        let noted = audit::Asked {
            client: connection.origin().client(),
            method: request.method().as_str(),
            path: request.uri().path(),
            key: asked.key(),
        };
        let wall = service.clock.wall();
        match &allowed {
            Ok(user) => {
                let token = user.as_ref().map(|user| &*user.id).unwrap_or_default();
                audit.administered(noted, token, wall);
            }
            Err(NotAllowed::Refused(refusal)) => {
                let token = refusal.token().map(|token| &**token).unwrap_or_default();
                audit.refused(noted, refusal.reason(), token, (wall, service.clock.mono()));
            }
            Err(NotAllowed::Elsewhere(_)) => audit.refused(noted, "origin", "", (wall, service.clock.mono())),
            Err(NotAllowed::Unreadable(_)) => {}
        }
    }
    match allowed {
        Ok(_) => Ok(()),
        Err(NotAllowed::Refused(refusal)) => Err(Failure::refused(&refusal)),
        Err(NotAllowed::Elsewhere(failure)) => Err(failure),
        Err(NotAllowed::Unreadable(error)) => Err(error.into()),
    }
}

/// The token that allows the request; none where none is needed.
fn judge<B>(
    state: &ThreadState,
    connection: &Connection,
    request: &Request<B>,
    path: Path,
    need: Need,
) -> Result<Option<User>, NotAllowed> {
    if connection.origin() == Origin::AdminSocket && is_of_node(need) {
        return Ok(None);
    }
    let security = &state.service.security;
    let mode = security.mode();
    let judged = match (mode, need) {
        (AuthMode::Off, _) | (_, Need::Nothing) => Ok(None),
        _ => judge_token(state, connection, request, path, need),
    };
    let now = state.service.clock.mono();
    if let Err(NotAllowed::Refused(refusal)) = &judged {
        security.note(refusal, now);
    }
    let user = match judged {
        Err(error) if mode == AuthMode::On => return Err(error),
        // With `warn` all pass. What cannot be read is refused by the handler, which reads it in the same way.
        judged => judged.unwrap_or(None),
    };
    if need == Need::Right(Right::Admin) {
        check_site(state, connection, request).map_err(NotAllowed::Elsewhere)?;
    }
    if request.method() == Method::POST && matches!(path, Path::Entity | Path::Batch) {
        let page = local::check_page(request.headers(), host_of(request));
        page.map_err(|why| NotAllowed::Elsewhere(Failure::foreign_page(&why)))?;
    }
    if let Some(Err(over)) = user.as_ref().map(|user| user.meter.take(user.limit, now)) {
        let refusal = Refusal::OverLimit { id: user.map(|user| user.id).unwrap_or_default(), over };
        security.note(&refusal, now);
        // With `warn` it passes, and what it moves is not charged: the next ones are judged by what was allowed.
        return if mode == AuthMode::On { Err(NotAllowed::Refused(refusal)) } else { Ok(None) };
    }
    Ok(user)
}

/// Refuses requests to paths about the node itself that web pages of other sites made. Without tokens, also those of other
/// machines and proxies: where a request comes from is then all that there is to judge.
fn check_site<B>(state: &ThreadState, connection: &Connection, request: &Request<B>) -> Result<(), Failure> {
    let is_judged = state.service.security.mode() == AuthMode::On;
    if !is_judged && matches!(connection.origin(), Origin::Network(_)) {
        return Err(Failure::not_local());
    }
    let host = host_of(request);
    let own = state.service.facts.own_host.as_ref();
    // A page of another member is no foreign page where it may read.
    let is_of_member = state.service.facts.pages.reader(request).is_some();
    let mut checked = local::check_site(request.headers(), host, own, connection.scheme(), is_of_member);
    if !is_judged {
        checked = checked.and_then(|()| local::check_proxy(request.headers()));
    }
    checked.map_err(|why| Failure::foreign(&why))
}

/// The host that a request names.
fn host_of<B>(request: &Request<B>) -> Option<&str> {
    // RFC 9112, 3.2.2: the host of an absolute target overrides the header.
    match request.uri().authority() {
        Some(authority) => Some(authority.as_str()),
        None => request.headers().get(HOST).and_then(|host| host.to_str().ok()),
    }
}

/// Judges the lines of a batch, each as a request of its own: its token, the right on its key, and the limits.
pub(super) struct LineJudge {
    security: Arc<Security>,
    tokens: TokenView,
    /// The token that the batch came with; looked up again for each line, since it may be revoked in between.
    token: Result<Arc<str>, Refusal>,
    client: Option<IpAddr>,
}

impl LineJudge {
    /// Judges the lines of a request with these `headers`.
    pub(super) fn of(state: &ThreadState, connection: &Connection, headers: &HeaderMap) -> Self {
        let security = Arc::clone(&state.service.security);
        let (mut tokens, now) = (security.view(), state.service.clock.wall());
        // Also on the socket for administration, where the request itself needs none: keys need their token there, too.
        let token = authenticate(state, connection, headers, tokens.current(), now);
        let token = token.map(|entry| Arc::clone(&entry.id));
        Self { security, tokens, token, client: connection.origin().client() }
    }

    /// Checks that a line may do what needs `right` to `key`.
    ///
    /// # Errors
    /// 401, 403 or 429, as for a request.
    pub(super) fn check(
        &mut self,
        right: Right,
        key: &Key,
        wall: UnixMillis,
        mono: Duration,
    ) -> Result<(), Failure> {
        let mode = self.security.mode();
        if mode == AuthMode::Off {
            return Ok(());
        }
        let Err(refusal) = self.judge(right, key, wall, mono) else { return Ok(()) };
        self.security.note(&refusal, mono);
        if mode != AuthMode::On {
            return Ok(());
        }
        let audit = self.security.audit();
        if audit.is_open() && !matches!(refusal, Refusal::OverLimit { .. }) {
            let key = Some(key.as_ref());
            let noted = audit::Asked { client: self.client, method: "POST", path: "/v0/batch", key };
            let token = refusal.token().map(|token| &**token).unwrap_or_default();
            audit.refused(noted, refusal.reason(), token, (wall, mono));
        }
        Err(Failure::refused(&refusal))
    }

    fn judge(&mut self, right: Right, key: &Key, wall: UnixMillis, mono: Duration) -> Result<(), Refusal> {
        let id = self.token.as_ref().map_err(Clone::clone)?;
        let entry = security::valid(self.tokens.current().get(id).ok_or(Refusal::Unknown)?, wall)?;
        security::authorize(entry, right, Scope::Key(key.as_ref()), wall)?;
        let over = |over| Refusal::OverLimit { id: Arc::clone(id), over };
        entry.meter.take(entry.limit, mono).map_err(over)
    }
}

/// Whether `need` is about the node alone, which the socket for administration is for. Keys need their token there, too.
fn is_of_node(need: Need) -> bool {
    match need {
        Need::Nothing | Need::Token => true,
        Need::Right(right) => !right.is_of_keys(),
    }
}

enum NotAllowed {
    Refused(Refusal),
    /// It comes from where requests to this path may not come from.
    Elsewhere(Failure),
    /// The target names keys in a way that cannot be read.
    Unreadable(TargetError),
}

impl From<Refusal> for NotAllowed {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

fn judge_token<B>(
    state: &ThreadState,
    connection: &Connection,
    request: &Request<B>,
    path: Path,
    need: Need,
) -> Result<Option<User>, NotAllowed> {
    let now = state.service.clock.wall();
    let mut tokens = state.tokens.borrow_mut();
    let entry = authenticate(state, connection, request.headers(), tokens.current(), now)?;
    if let Need::Right(right) = need {
        let asked = Asked::of(path, request.uri().query()).map_err(NotAllowed::Unreadable)?;
        security::authorize(entry, right, asked.scope(), now)?;
    }
    let (id, meter) = (Arc::clone(&entry.id), Arc::clone(&entry.meter));
    Ok(Some(User { id, limit: entry.limit, meter }))
}

/// The token of `tokens` that a request's headers or its connection prove.
fn authenticate<'a>(
    state: &ThreadState,
    connection: &Connection,
    headers: &HeaderMap,
    tokens: &'a TokenTable,
    now: UnixMillis,
) -> Result<&'a TokenEntry, Refusal> {
    let credentials = match (credentials(headers), certified(state, connection, now)) {
        // What a request says itself counts more than who has connected.
        (Credentials::Absent, Some(shown)) => Credentials::Certificate(&shown.names),
        (credentials, _) => credentials,
    };
    security::authenticate(tokens, credentials, now)
}

/// The certificate that the client showed, if an authority of clients vouches for it.
fn certified<'a>(state: &ThreadState, connection: &'a Connection, now: UnixMillis) -> Option<&'a Shown> {
    let (tls, shown) = state.service.tls.as_ref().zip(connection.shown())?;
    tls.roles(shown, now).client.then_some(shown)
}

/// The credentials in a request's headers.
fn credentials(headers: &HeaderMap) -> Credentials<'_> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    match (values.next(), values.next()) {
        (None, _) => Credentials::Absent,
        (Some(value), None) => {
            let bearer = value.to_str().ok().and_then(|value| value.split_once(' '));
            let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            bearer.map_or(Credentials::Malformed, |(_, token)| Credentials::Bearer(token.trim_matches(' ')))
        }
        // Which one counts would be a guess.
        (Some(_), Some(_)) => Credentials::Malformed,
    }
}

/// The keys that a request is about.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Key(Key),
    Range { start: Key, end: Option<Key> },
    Node,
}

impl Asked {
    /// Reads the query of `path` with the parser of its handler, so that both see the same keys.
    fn of(path: Path, query: Option<&str>) -> Result<Self, TargetError> {
        Ok(match path {
            Path::Entity => Self::Key(target::parse_entity(query)?.key),
            Path::Explain => Self::Key(target::parse_explain(query)?),
            Path::Entities => {
                let range = target::parse_range(query)?;
                Self::Range { start: range.start, end: range.end }
            }
            // The keys of a batch are judged line by line.
            Path::Batch
            | Path::Status
            | Path::Root
            | Path::Console
            | Path::ConsoleScript
            | Path::ConsoleStyle
            | Path::Metrics
            | Path::History
            | Path::Peer
            | Path::Topology
            | Path::Converged
            | Path::Repair
            | Path::Cut
            | Path::CutRecords
            | Path::Restore
            | Path::OpenApi
            | Path::Profile
            | Path::Workers
            | Path::Settings
            | Path::Cluster
            | Path::ClusterPlan
            | Path::ClusterApply
            | Path::ClusterCancel
            | Path::ConsoleProfile
            | Path::WorkerPause
            | Path::WorkerResume => Self::Node,
        })
    }

    /// The key, or the first one of a range.
    fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Key(key) | Self::Range { start: key, .. } => Some(key.as_ref()),
            Self::Node => None,
        }
    }

    fn scope(&self) -> Scope<'_> {
        match self {
            Self::Key(key) => Scope::Key(key.as_ref()),
            Self::Range { start, end } => {
                Scope::Range { start: start.as_ref(), end: end.as_ref().map(Key::as_ref) }
            }
            Self::Node => Scope::Node,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use kvorum_core::Grant;

    /// Goal: a key is compared with a prefix as the bytes that are stored, however it is escaped. Method: spellings of one
    /// key, and of its neighbours.
    #[test]
    fn keys_are_judged_decoded() {
        let grant = Grant::new(&b"a/\0\xff"[..], &[Right::Read, Right::Scan], None).unwrap();
        let allows = |path: Path, right: Right, query: &str| {
            let asked = Asked::of(path, Some(query)).unwrap();
            grant.allows(right, asked.scope(), kvorum_core::UnixMillis(0))
        };
        let read = |query: &str, expect: bool| {
            assert_eq!(allows(Path::Entity, Right::Read, query), expect, "{query}");
            assert_eq!(allows(Path::Explain, Right::Read, query), expect, "{query}");
        };
        read("id=a/%00%FF", true);
        read("id=%61%2f%00%ffx", true);
        read("%69d=%61%2F%00%ff%00", true);
        read("id=a%252f%00%ff", false);
        read("id=a/%00%fe", false);
        read("id=a/%2500%ff", false);
        read("id=A/%00%ff", false);
        let scan = |query: &str, expect| {
            assert_eq!(allows(Path::Entities, Right::Scan, query), expect, "{query}");
        };
        scan("start=a/%00%ff&end=a/%01", true);
        scan("start=%61/%00%ff%00&end=a%2f%00%ff%00%00", true);
        scan("start=a/%00%ff&end=a/%01%00", false);
        scan("start=a/%00%ff", false);
        scan("start=a/%00&end=a/%01", false);
        let twice = Asked::of(Path::Entity, Some("id=a/%00%ff&id=b"));
        assert_eq!(twice, Err(TargetError::Repeated { name: "id" }));
    }

    #[test]
    fn credentials_are_one_bearer_token() {
        let check = |values: &[&str], expect| {
            let values = values.iter().map(|value| (AUTHORIZATION, HeaderValue::from_str(value).unwrap()));
            assert_eq!(credentials(&values.collect()), expect);
        };
        check(&[], Credentials::Absent);
        check(&["Bearer a.b"], Credentials::Bearer("a.b"));
        check(&["bEARER  a.b "], Credentials::Bearer("a.b"));
        check(&["Bearer"], Credentials::Malformed);
        check(&["Basic YTpi"], Credentials::Malformed);
        check(&["a.b"], Credentials::Malformed);
        check(&["Bearer a.b", "Bearer a.b"], Credentials::Malformed);
    }

    /// Goal: no path is open by mistake. Method: the table's needs against a list written by hand, so that each new path
    /// or method must be added here, too.
    #[test]
    fn every_path_says_what_it_needs() {
        let needs = Path::ALL.iter().flat_map(|(text, path)| {
            path.methods().iter().map(move |name| {
                let method = Method::from_bytes(name.as_bytes()).unwrap();
                let need = match path.need(&method).unwrap() {
                    Need::Nothing => "nothing",
                    Need::Token => "token",
                    Need::Right(right) => right.name(),
                };
                format!("{name} {text} {need}")
            })
        });
        let expect = "GET /v0/entity read, HEAD /v0/entity read, PUT /v0/entity write, POST /v0/entity write, DELETE /v0/entity delete, \
                      GET /v0/entities scan, HEAD /v0/entities scan, POST /v0/batch token, GET /v0/status nothing, HEAD /v0/status nothing, \
                      GET /metrics metrics, HEAD /metrics metrics, GET /v0/history metrics, HEAD /v0/history metrics, \
                      GET /v0/peer nothing, GET /v0/topology token, \
                      HEAD /v0/topology token, GET /v0/explain read, HEAD /v0/explain read, GET /v0/converged token, \
                      HEAD /v0/converged token, POST /admin/repair admin, GET /admin/cut admin, POST /admin/cut admin, \
                      GET /admin/cut/records admin, PUT /admin/entity admin, GET /openapi.json token, \
                      HEAD /openapi.json token, GET /debug/profile admin, GET /admin/workers admin, \
                      HEAD /admin/workers admin, GET /admin/settings admin, HEAD /admin/settings admin, GET /admin/cluster admin, HEAD /admin/cluster admin, \
                      POST /admin/cluster/plan admin, POST /admin/cluster/apply admin, POST /admin/cluster/cancel admin, \
                      GET / nothing, HEAD / nothing, GET /console nothing, HEAD /console nothing, \
                      GET /console/console.js nothing, HEAD /console/console.js nothing, \
                      GET /console/console.css nothing, HEAD /console/console.css nothing, \
                      GET /console/profile.js nothing, HEAD /console/profile.js nothing, \
                      POST /admin/workers/{name}/pause admin, \
                      POST /admin/workers/{name}/resume admin";
        assert_eq!(needs.collect::<Vec<_>>().join(", "), expect);
        assert_eq!(Path::Entity.need(&Method::PATCH), None);
    }
}
