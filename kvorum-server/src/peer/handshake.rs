//! The handshake: an HTTP/1.1 upgrade by which two nodes check that they belong together.
//!
//! The caller sends
//!
//! ```text
//! GET /v0/peer HTTP/1.1
//! Host: AUTHORITY
//! Connection: Upgrade
//! Upgrade: kvorum-peer
//! Kvorum-Protocol: 7
//! Kvorum-Protocols: 7-8
//! Kvorum-Cluster: NAME
//! Kvorum-Cluster-Id: <random id of the cluster, 32 hexadecimal digits; all 0 while the node knows none>
//! Kvorum-Node: <id of the node, 16 hexadecimal digits>
//! Kvorum-Topology: <16 hexadecimal digits>
//! Kvorum-Store: <identity of the store, 32 hexadecimal digits>
//! Kvorum-Run: <number of the run, and its nonce of 16 hexadecimal digits, with - between>
//! Kvorum-Members: <URLs of all nodes, with , between; or -, where they are too many>
//! Kvorum-Clock: <time of day in Unix milliseconds>
//! ```
//!
//! (and the headers of [`super::place`], where the settings name a zone or a weight; and `Kvorum-Remembers: STORE-RUN`, where the
//! sender remembers with which store and in which run it saw the other node)
//!
//! and is answered by `101` with the same `Kvorum-` headers of the answering node, after which frames begin in both
//! directions; or by another status with a line of text that names the difference. `http` implements the answering
//! side: it parses the request, and calls [`Hello::parse`] and [`Hello::check`].

use super::BoxedStream;
use super::auth::{self, Offer, PeerAuth, PeerAuthMode};
use super::auth_error::AuthError;
use super::link::Setback;
use super::place::PlaceSettings;
use super::protocols::Protocols;
use super::secret::{Nonce, PROOF_BYTES, Secret};
use crate::canary::{self, Canary};
use bytes::{Bytes, BytesMut};
use kvorum_core::{ClusterId, NodeId, Run, UnixMillis};
use std::fmt;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The path of the request.
pub const UPGRADE_PATH: &str = "/v0/peer";
/// The protocol of the upgrade.
pub const UPGRADE_PROTOCOL: &str = "kvorum-peer";
/// The topology that a node names which waits to join: it has none.
pub const JOINING: u64 = 0;
/// The longest name of a cluster, in bytes; all of them are visible ASCII.
pub const CLUSTER_BYTES_MAX: usize = 128;

const PROTOCOL_HEADER: &str = "Kvorum-Protocol";
/// The range of versions; see [`super::protocols`].
pub(super) const PROTOCOLS_HEADER: &str = "Kvorum-Protocols";
const CLUSTER_HEADER: &str = "Kvorum-Cluster";
const CLUSTER_ID_HEADER: &str = "Kvorum-Cluster-Id";
const NODE_HEADER: &str = "Kvorum-Node";
const TOPOLOGY_HEADER: &str = "Kvorum-Topology";
const STORE_HEADER: &str = "Kvorum-Store";
const RUN_HEADER: &str = "Kvorum-Run";
const MEMBERS_HEADER: &str = "Kvorum-Members";
const CLOCK_HEADER: &str = "Kvorum-Clock";
const REMEMBERS_HEADER: &str = "Kvorum-Remembers";

/// The longest list of members, in bytes: half of the longest head. A longer list is not sent; the topology's hash
/// stands for it.
const MEMBERS_BYTES_MAX: usize = HEAD_BYTES_MAX / 2;
/// The placeholder for a list of members that is not sent.
const NO_MEMBERS: &str = "-";
/// The most URLs that a refusal names for each side.
const DIFFERENCES_SHOWN_MAX: usize = 3;
/// The longest head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// The most headers of an answer.
const HEADERS_LEN_MAX: usize = 32;
/// The most characters of a text from the other side that are shown.
const SHOWN_LEN_MAX: usize = 500;
/// How long the node waits for a refusal's text once its status is known.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(200);

/// The facts about a node that it sends when a connection begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Of a caller, the oldest version of the protocol that it speaks; of a called node, the version of the connection.
    pub protocol: u16,
    /// The versions that the node speaks; none if it did not say: then `protocol` is the only one.
    pub protocols: Option<Protocols>,
    /// The name of the cluster.
    pub cluster: String,
    /// The random id of the cluster; none while the node knows none.
    pub cluster_id: Option<ClusterId>,
    /// The node.
    pub node: NodeId,
    /// The hash of its topology.
    pub topology: u64,
    /// The identity of its store.
    pub store: u128,
    /// The store's current run.
    pub run: Run,
    /// The URLs of all nodes of its topology; empty if they are too many for a header. Used only in the texts of
    /// refusals.
    pub members: Vec<String>,
    /// Its time of day. No handshake is refused because of it.
    pub clock: UnixMillis,
    /// What its settings say of its place in the cluster.
    pub place: PlaceSettings,
    /// The store and the run in which it saw the other node. A node of an older release does not say it.
    pub remembers: Option<(u128, Run)>,
}

/// The reason why two nodes do not connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandshakeError {
    /// A header is missing.
    Missing {
        /// Its name.
        header: &'static str,
    },
    /// A header's value has the wrong form.
    Malformed {
        /// Its name.
        header: &'static str,
        /// Its value, shortened.
        value: String,
    },
    /// The nodes speak different versions of the protocol.
    Protocol {
        /// The versions of the node that checks.
        ours: Protocols,
        /// The versions of the other node.
        theirs: Protocols,
    },
    /// The called node took another version than the highest common one.
    ProtocolTaken {
        /// The highest common version.
        expected: u16,
        /// The version that the called node took.
        found: u16,
    },
    /// The nodes belong to clusters of different names. Each node is named by its URL if that is known, with its
    /// cluster.
    Cluster {
        /// The node that checks.
        ours: (String, String),
        /// The other node.
        theirs: (String, String),
    },
    /// The nodes belong to clusters of different ids.
    ClusterId {
        /// The node that checks.
        ours: (String, ClusterId),
        /// The other node.
        theirs: (String, ClusterId),
    },
    /// The node that checks has a new store, which cannot know yet whether the other node belongs to its cluster.
    ClusterIdOpen {
        /// The node that checks.
        ours: String,
        /// The other node.
        theirs: (String, ClusterId),
        /// A node that says another id, if there is one.
        contradicts: Option<String>,
    },
    /// The nodes work with different topologies.
    Topology {
        /// The node that checks, and its topology.
        ours: (String, u64),
        /// The other node, and its topology.
        theirs: (String, u64),
        /// The URLs that only the checking node has, and those that only the other has; none unless both lists are
        /// known.
        differences: Option<(Vec<String>, Vec<String>)>,
    },
    /// The other node's store was seen before as the store of a third node: its directory was exchanged or copied.
    StoreOfAnother {
        /// The other node.
        theirs: String,
        /// The identity of its store.
        store: u128,
        /// The node that the store belongs to.
        owner: String,
    },
    /// The other node was removed from the cluster with this store.
    Removed {
        /// The other node.
        theirs: String,
        /// The identity of its store.
        store: u128,
    },
    /// The other node waits to join, and cannot be noted: too many nodes wait.
    NotJoining {
        /// The other node.
        theirs: String,
        /// The identity of its store.
        store: u128,
    },
    /// Both are the same node.
    SameNode {
        /// The node.
        node: NodeId,
    },
    /// The nodes have the same store: one's directory is a copy of the other's.
    SameStore {
        /// The node that checks.
        ours: NodeId,
        /// The other node.
        theirs: NodeId,
        /// The identity of both stores.
        store: u128,
    },
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { header } => write!(f, "the header {header} is missing"),
            Self::Malformed { header, value } => {
                write!(f, "the header {header} has the malformed value \"{}\"", value.escape_debug())
            }
            Self::Protocol { ours, theirs } => {
                write!(
                    f,
                    "the protocols differ: version {ours} at the node that says this, {theirs} at the other"
                )
            }
            Self::ProtocolTaken { expected, found } => {
                write!(f, "the called node took version {found} of the protocol, but both speak {expected}")
            }
            Self::Cluster { ours: (us, ours), theirs: (them, theirs) } => {
                write!(f, "the clusters differ: \"{ours}\" at {us}, \"{theirs}\" at {them}")
            }
            Self::ClusterId { ours: (us, ours), theirs: (them, theirs) } => {
                write!(f, "the cluster ids differ: {ours} at {us}, {theirs} at {them}")
            }
            Self::ClusterIdOpen { ours, theirs: (them, id), contradicts } => {
                write!(
                    f,
                    "the store of {ours} is new, and takes its cluster's id from a majority of the nodes: {them} says {id}"
                )?;
                contradicts.as_ref().map_or(Ok(()), |other| write!(f, ", and {other} says another"))
            }
            Self::Topology { ours: (us, ours), theirs: (them, theirs), differences } => {
                write!(f, "the --cluster lists differ: hash {ours:016x} at {us}, {theirs:016x} at {them}")?;
                let Some((only_ours, only_theirs)) = differences else { return Ok(()) };
                for (node, only) in [(us, only_ours), (them, only_theirs)] {
                    if !only.is_empty() {
                        let shown = only.iter().take(DIFFERENCES_SHOWN_MAX).map(String::as_str);
                        let shown = shown.collect::<Vec<_>>().join(", ");
                        let rest = only.len().saturating_sub(DIFFERENCES_SHOWN_MAX);
                        let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
                        write!(f, "; only {node} lists {shown}{more}")?;
                    }
                }
                Ok(())
            }
            Self::StoreOfAnother { theirs, store, owner } => {
                write!(
                    f,
                    "{theirs} has the store {store:032x}, which belongs to {owner}: its data directory was exchanged or \
                     copied; give it its own directory, or an empty one"
                )
            }
            Self::Removed { theirs, store } => write!(
                f,
                "{theirs} was removed from the cluster with the store {store:032x}: it can join again only with an empty \
                 data directory"
            ),
            Self::NotJoining { theirs, store } => {
                write!(f, "{theirs} cannot wait to join with the store {store:032x}: too many nodes wait")
            }
            Self::SameNode { node } => write!(f, "both ends of the connection are node {node}"),
            Self::SameStore { ours, theirs, store } => {
                write!(
                    f,
                    "nodes {ours} and {theirs} both have the store {store:032x}: one is a copy of the other"
                )
            }
        }
    }
}

impl std::error::Error for HandshakeError {}

impl Hello {
    /// The headers that carry these facts.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = self.proved_headers();
        headers.extend(self.place.headers());
        let remembered = |(store, run)| (REMEMBERS_HEADER, format!("{store:032x}-{run}"));
        headers.extend(self.remembers.map(remembered));
        headers
    }

    /// The headers that proofs cover: a node of an older release knows just these.
    pub(super) fn proved_headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![(PROTOCOL_HEADER, self.protocol.to_string())];
        headers.extend(self.protocols.map(|protocols| (PROTOCOLS_HEADER, protocols.header())));
        headers.extend([
            (CLUSTER_HEADER, self.cluster.clone()),
            (CLUSTER_ID_HEADER, format!("{:032x}", self.cluster_id.map_or(0, ClusterId::get))),
            (NODE_HEADER, self.node.to_string()),
            (TOPOLOGY_HEADER, format!("{:016x}", self.topology)),
            (STORE_HEADER, format!("{:032x}", self.store)),
            (RUN_HEADER, self.run.to_string()),
            (MEMBERS_HEADER, join_members(&self.members)),
            (CLOCK_HEADER, self.clock.0.to_string()),
        ]);
        headers
    }

    /// Reads a hello from headers; `header` finds a value by name, whatever the case of its letters.
    ///
    /// # Errors
    /// The version of the protocol is checked first: other versions may have other headers.
    pub fn parse<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Result<Self, HandshakeError> {
        Self::parse_as(Protocols::SPOKEN, header)
    }

    /// As [`Self::parse`], for a node that speaks `ours`.
    ///
    /// # Errors
    /// As for [`Self::parse`].
    pub fn parse_as<'a>(
        ours: Protocols,
        header: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Self, HandshakeError> {
        let fields = Fields { header };
        let protocol = fields.decimal(PROTOCOL_HEADER)?;
        let protocols = match (fields.header)(PROTOCOLS_HEADER) {
            Some(_) => Some(fields.read(PROTOCOLS_HEADER, |text| {
                Protocols::parse(text).filter(|protocols| protocols.contains(protocol))
            })?),
            None => None,
        };
        let theirs = protocols.unwrap_or(Protocols::only(protocol));
        if ours.highest_common(theirs).is_none() {
            return Err(HandshakeError::Protocol { ours, theirs });
        }
        let is_name =
            |text: &str| text.len() <= CLUSTER_BYTES_MAX && text.bytes().all(|b| b.is_ascii_graphic());
        Ok(Self {
            protocol,
            protocols,
            cluster: fields.read(CLUSTER_HEADER, |text| is_name(text).then(|| text.to_owned()))?,
            cluster_id: ClusterId::new(fields.read(CLUSTER_ID_HEADER, |text| hexadecimal(text, 32))?),
            node: NodeId(
                fields.read(NODE_HEADER, |text| hexadecimal(text, 16).and_then(|n| n.try_into().ok()))?,
            ),
            topology: fields
                .read(TOPOLOGY_HEADER, |text| hexadecimal(text, 16).and_then(|n| n.try_into().ok()))?,
            store: fields.read(STORE_HEADER, |text| hexadecimal(text, 32))?,
            run: fields.read(RUN_HEADER, parse_run)?,
            members: fields.read(MEMBERS_HEADER, split_members)?,
            clock: UnixMillis(fields.decimal(CLOCK_HEADER)?),
            place: PlaceSettings::read(&fields)?,
            remembers: match (fields.header)(REMEMBERS_HEADER) {
                Some(_) => Some(fields.read(REMEMBERS_HEADER, parse_remembered)?),
                None => None,
            },
        })
    }

    /// Checks whether this node may connect with another. Each side of a connection does.
    pub fn check(&self, theirs: &Self) -> Result<(), HandshakeError> {
        let (us, them) = (self.node, theirs.node);
        self.common_protocol(theirs)?;
        if self.cluster != theirs.cluster {
            let (ours, theirs) =
                ((self.name_of(us), self.cluster.clone()), (theirs.name_of(them), theirs.cluster.clone()));
            return Err(HandshakeError::Cluster { ours, theirs });
        }
        // A node that does not know the cluster's id yet adopts the other's, once both are known to have the same
        // topology.
        if let (Some(our_id), Some(their_id)) = (self.cluster_id, theirs.cluster_id)
            && our_id != their_id
            && !canary::is(Canary::OtherClusterJoins)
        {
            let (ours, theirs) = ((self.name_of(us), our_id), (theirs.name_of(them), their_id));
            return Err(HandshakeError::ClusterId { ours, theirs });
        }
        if us == them {
            return Err(HandshakeError::SameNode { node: us });
        }
        let is_joining = self.topology == JOINING || theirs.topology == JOINING;
        if self.topology != theirs.topology && !is_joining && !canary::is(Canary::StaleTopology) {
            let only = |these: &[String], those: &[String]| {
                these.iter().filter(|url| !those.contains(url)).cloned().collect()
            };
            let both_known = !self.members.is_empty() && !theirs.members.is_empty();
            return Err(HandshakeError::Topology {
                ours: (self.name_of(us), self.topology),
                theirs: (theirs.name_of(them), theirs.topology),
                differences: both_known
                    .then(|| (only(&self.members, &theirs.members), only(&theirs.members, &self.members))),
            });
        }
        if self.store == theirs.store {
            return Err(HandshakeError::SameStore { ours: us, theirs: them, store: self.store });
        }
        Ok(())
    }
}

impl Hello {
    /// The versions of the protocol that the node speaks, as far as it says.
    pub fn spoken(&self) -> Protocols {
        self.protocols.unwrap_or(Protocols::only(self.protocol))
    }

    /// The version that this node and another speak with each other: the highest that both know.
    ///
    /// # Errors
    /// [`HandshakeError::Protocol`] if there is none.
    pub fn common_protocol(&self, other: &Self) -> Result<u16, HandshakeError> {
        let (ours, theirs) = (self.spoken(), other.spoken());
        ours.highest_common(theirs).ok_or(HandshakeError::Protocol { ours, theirs })
    }

    /// This hello as the answer to a caller's: it names the version of the connection. A caller that knows one version
    /// only finds just that one.
    ///
    /// # Errors
    /// As [`Self::common_protocol`].
    pub fn in_answer_to(mut self, caller: &Self) -> Result<Self, HandshakeError> {
        self.protocol = self.common_protocol(caller)?;
        Ok(self)
    }

    /// Checks that the called node took the highest common version.
    pub(super) fn check_taken(&self, called: &Self) -> Result<(), HandshakeError> {
        let expected = self.common_protocol(called)?;
        if called.protocol == expected {
            return Ok(());
        }
        Err(HandshakeError::ProtocolTaken { expected, found: called.protocol })
    }

    /// The name of `node` in texts: its URL if it is among the members, its id otherwise.
    pub fn name_of(&self, node: NodeId) -> String {
        let url = self.members.iter().find(|url| NodeId::of_url(url) == node);
        url.cloned().unwrap_or_else(|| format!("node {node}"))
    }
}

/// Whether `text` may be a value of [`MEMBERS_HEADER`].
fn are_members(text: &str) -> bool {
    text.len() <= MEMBERS_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn join_members(members: &[String]) -> String {
    let joined = members.join(",");
    let can_be_split = members.iter().all(|url| !url.is_empty() && !url.contains(','));
    if !joined.is_empty() && are_members(&joined) && can_be_split { joined } else { NO_MEMBERS.to_owned() }
}

fn split_members(text: &str) -> Option<Vec<String>> {
    let split = || text.split(',').map(str::to_owned).collect();
    are_members(text).then(|| if text == NO_MEMBERS { Vec::new() } else { split() })
}

fn parse_run(text: &str) -> Option<Run> {
    let (number, nonce) = text.split_once('-')?;
    let number = number.bytes().all(|b| b.is_ascii_digit()).then(|| number.parse().ok())??;
    Some(Run { number, nonce: hexadecimal(nonce, 16)?.try_into().ok()? })
}

fn parse_remembered(text: &str) -> Option<(u128, Run)> {
    let (store, run) = text.split_once('-')?;
    Some((hexadecimal(store, 32)?, parse_run(run)?))
}

/// Reads headers by name.
pub(super) struct Fields<F> {
    pub(super) header: F,
}

impl<'a, F: Fn(&str) -> Option<&'a str>> Fields<F> {
    pub(super) fn read<T>(
        &self,
        header: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, HandshakeError> {
        let text = (self.header)(header).map(str::trim).filter(|text| !text.is_empty());
        let text = text.ok_or(HandshakeError::Missing { header })?;
        parse(text).ok_or_else(|| HandshakeError::Malformed { header, value: plain_line(text.as_bytes()) })
    }

    fn decimal<T: std::str::FromStr>(&self, header: &'static str) -> Result<T, HandshakeError> {
        // Parsing alone would accept a sign.
        self.read(header, |text| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?)
    }
}

fn hexadecimal(text: &str, digits: usize) -> Option<u128> {
    let plain = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u128::from_str_radix(text, 16).ok())?
}

/// The first line of `text`, shortened and without control characters, so that it can be shown.
fn plain_line(text: &[u8]) -> String {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    String::from_utf8_lossy(line).chars().filter(|c| !c.is_control()).take(SHOWN_LEN_MAX).collect()
}

/// The reason why there is no connection to a peer.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// The stream could not be opened, or it broke.
    Io { attempted: &'static str, source: io::Error },
    /// The stream ended within the answer.
    Ended,
    /// The answer is not HTTP/1.1, or its head is longer than [`HEAD_BYTES_MAX`].
    NotHttp { reason: String },
    /// A value of this node cannot be sent in a header.
    Unsendable { value: String },
    /// The peer refused.
    Refused { status: u16, line: String },
    /// The peer answered 101, but without an upgrade to [`UPGRADE_PROTOCOL`].
    NotUpgraded,
    /// The node refuses the peer.
    Hello(HandshakeError),
    /// The peer has not proved that it knows the secret.
    Auth(AuthError),
    /// A node other than the expected one answered.
    OtherNode { expected: NodeId, found: NodeId },
    /// The whole attempt took too long.
    TimedOut { after: Duration },
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { attempted, source } => write!(f, "cannot {attempted}: {source}"),
            Self::Ended => f.write_str("the peer closed the connection during the handshake"),
            Self::NotHttp { reason } => write!(f, "the peer's answer is not HTTP/1.1: {reason}"),
            Self::Unsendable { value } => {
                write!(f, "\"{}\" cannot be sent in a header", value.escape_debug())
            }
            Self::Refused { status, line } => write!(f, "the peer refused with status {status}: {line}"),
            Self::NotUpgraded => write!(f, "the peer did not upgrade to {UPGRADE_PROTOCOL}"),
            Self::Hello(error) => error.fmt(f),
            Self::Auth(error) => error.fmt(f),
            Self::OtherNode { expected, found } => {
                write!(f, "node {found} answered instead of node {expected}")
            }
            Self::TimedOut { after } => write!(f, "no connection within {} ms", after.as_millis()),
        }
    }
}

impl ConnectError {
    /// The kind of failure, for the link's observer.
    pub(super) fn setback(&self) -> Setback {
        match self {
            Self::Hello(HandshakeError::ClusterIdOpen { contradicts: None, .. })
            | Self::Refused { status: 503, .. } => Setback::Passing,
            // 409, or 400 from a release that cannot read the handshake.
            Self::Hello(_)
            | Self::Auth(_)
            | Self::OtherNode { .. }
            | Self::Refused { status: 400..500, .. } => Setback::Refused,
            _ => Setback::Unreachable,
        }
    }
}

impl From<HandshakeError> for ConnectError {
    fn from(error: HandshakeError) -> Self {
        Self::Hello(error)
    }
}

/// A check whether this node may connect with the peer that sent this hello.
type Admit<'a> = dyn Fn(&Hello) -> Result<(), HandshakeError> + 'a;

/// A connection to a peer that both sides have accepted.
pub(super) struct Accepted {
    /// The peer's hello.
    pub(super) theirs: Hello,
    /// The first bytes after it.
    pub(super) already_read: Bytes,
    /// The secret that both sides have proved; none if they have proved nothing.
    pub(super) secret: Option<Secret>,
}

/// Asks for the upgrade on a fresh stream. Sends this node's hello and its `offer` to prove, checks the peer's proof as
/// `auth` demands, and lets `admit` check the peer's hello. Nothing that the peer says is believed before its proof.
pub(super) async fn ask(
    stream: &mut BoxedStream,
    authority: &str,
    (ours, admit): (&Hello, &Admit<'_>),
    peer: NodeId,
    (auth, offer): (&PeerAuth, Option<&Offer>),
) -> Result<Accepted, ConnectError> {
    let request = request(authority, ours, offer)?;
    let failed = |source| ConnectError::Io { attempted: "send the handshake", source };
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    let mut read = BytesMut::with_capacity(HEAD_BYTES_MAX);
    let answer = loop {
        read_more(stream, &mut read).await?;
        if let Some(answer) = Answer::parse(ours.spoken(), &read)? {
            break answer;
        }
        if read.len() >= HEAD_BYTES_MAX {
            return Err(ConnectError::NotHttp { reason: format!("its head exceeds {HEAD_BYTES_MAX} bytes") });
        }
    };
    let behind = read.split_off(answer.head_bytes);
    if answer.status != 101 {
        let line = refusal(stream, behind).await;
        return Err(ConnectError::Refused { status: answer.status, line });
    }
    if !answer.is_upgrade {
        return Err(ConnectError::NotUpgraded);
    }
    let theirs = answer.hello?;
    ours.check_taken(&theirs)?;
    let name = || ours.name_of(theirs.node);
    let proved = match (offer, answer.proof?) {
        (Some(offer), Some(sent)) => {
            let proved = offer.check((ours, &theirs), &sent);
            Some(proved.ok_or_else(|| ConnectError::Auth(AuthError::WrongProof { theirs: name() }))?)
        }
        // The certificate of a node that was called was judged with the connection.
        _ if auth.mode() == PeerAuthMode::Require && !auth.is_by_certificates_alone() => {
            let error = AuthError::NoProof { ours: ours.name_of(ours.node), theirs: name() };
            return Err(ConnectError::Auth(error));
        }
        _ => None,
    };
    admit(&theirs)?;
    if theirs.node != peer {
        return Err(ConnectError::OtherNode { expected: peer, found: theirs.node });
    }
    let already_read = behind.freeze();
    let Some((secret, proof)) = proved else { return Ok(Accepted { theirs, already_read, secret: None }) };
    let failed = |source| ConnectError::Io { attempted: "send the proof of the peer secret", source };
    stream.write_all(proof.bytes()).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    Ok(Accepted { theirs, already_read, secret: Some(secret) })
}

fn request(authority: &str, ours: &Hello, offer: Option<&Offer>) -> Result<String, ConnectError> {
    let headers = [
        ("Host", authority.to_owned()),
        ("Connection", "Upgrade".to_owned()),
        ("Upgrade", UPGRADE_PROTOCOL.to_owned()),
    ];
    let mut request = format!("GET {UPGRADE_PATH} HTTP/1.1\r\n");
    let challenge = offer.map(|offer| offer.challenge.headers()).unwrap_or_default();
    for (name, value) in headers.into_iter().chain(ours.headers()).chain(challenge) {
        if value.is_empty() || !value.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(ConnectError::Unsendable { value });
        }
        request.extend([name, ": ", &value, "\r\n"]);
    }
    request.push_str("\r\n");
    Ok(request)
}

async fn read_more(stream: &mut BoxedStream, read: &mut BytesMut) -> Result<(), ConnectError> {
    match stream.read_buf(read).await {
        Ok(0) => Err(ConnectError::Ended),
        Ok(_) => Ok(()),
        Err(source) => Err(ConnectError::Io { attempted: "read the handshake's answer", source }),
    }
}

/// The line of text after a head that refuses; as much of it as comes in time.
async fn refusal(stream: &mut BoxedStream, behind: BytesMut) -> String {
    let mut text = BytesMut::with_capacity(HEAD_BYTES_MAX);
    text.extend_from_slice(&behind);
    let read = async {
        while !text.contains(&b'\n') && text.len() < HEAD_BYTES_MAX {
            if read_more(stream, &mut text).await.is_err() {
                break;
            }
        }
    };
    // Without a line end or an end of the stream, only the text that came in time is shown.
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, read).await;
    plain_line(&text)
}

/// The parsed head of an answer.
struct Answer {
    status: u16,
    head_bytes: usize,
    is_upgrade: bool,
    hello: Result<Hello, HandshakeError>,
    proof: Result<Option<(Nonce, [u8; PROOF_BYTES])>, HandshakeError>,
}

impl Answer {
    /// Parses a head; none when its end has not come.
    fn parse(ours: Protocols, read: &[u8]) -> Result<Option<Self>, ConnectError> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_LEN_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(read);
        let not_http = |error: httparse::Error| ConnectError::NotHttp { reason: error.to_string() };
        let httparse::Status::Complete(head_bytes) = parsed.map_err(not_http)? else { return Ok(None) };
        let header = |name: &str| {
            let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            found.and_then(|header| std::str::from_utf8(header.value).ok())
        };
        let is_upgrade = header("Upgrade").is_some_and(|value| value.eq_ignore_ascii_case(UPGRADE_PROTOCOL));
        let status = response.code.unwrap_or_default();
        let (hello, proof) = (Hello::parse_as(ours, header), auth::parse_answer(header));
        Ok(Some(Self { status, head_bytes, is_upgrade, hello, proof }))
    }
}

#[cfg(test)]
mod tests;
