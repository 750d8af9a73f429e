//! `/v0/status`: whether the node serves, and the facts that an operator needs first.

use super::converged;
use super::members::MemberPages;
use super::reports::rounded;
use super::server::Phase;
use super::settings::ShownSetting;
use crate::authority::Authority;
use crate::coordinator::{PeerStatus, Shared, finds_default_quorum};
use crate::history::Sample;
use crate::machine::{self, DiskSpace, Process};
use crate::replica::StoreState;
use crate::supervise::Ended;
use crate::verdict::{self, NodeView};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Whether the node serves, and why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Serving {
    /// The node serves reads and writes.
    Ok,
    /// The node serves reads only: its disk is full.
    DiskFull,
    /// The node serves reads only: its store waits for a resource that the machine ran out of.
    StoreWaiting,
    /// The node accepts requests, but a default one would not reach its quorum now.
    NoQuorum,
    /// The node serves reads only: its clock is too far from the clocks of a majority.
    ClockOff,
    /// The store is being opened, or the node is taking the writes that it missed.
    Starting,
    /// The node was told to stop and answers the requests that it has accepted.
    Draining,
    /// The store failed.
    StoreFailed,
    /// A thread or task that the node needs has ended; its process is about to end.
    ThreadEnded,
    /// The node was removed from the cluster.
    Removed,
}

impl Serving {
    /// Derives it from the node's state.
    pub(super) fn of(phase: Phase, ended: Option<&Ended>, shared: Option<&Shared>) -> Self {
        let Some(shared) = shared else {
            return if ended.is_some() { Self::ThreadEnded } else { Self::Starting };
        };
        match (ended, phase, shared.replica.health()) {
            (Some(_), ..) => Self::ThreadEnded,
            (_, Phase::Draining, _) => Self::Draining,
            (_, Phase::Starting | Phase::Joining, _) => Self::Starting,
            (_, Phase::Ready, _) if shared.cluster.is_removed() => Self::Removed,
            (_, Phase::Ready, StoreState::Failed { .. }) => Self::StoreFailed,
            (_, Phase::Ready, _) if !finds_default_quorum(shared) => Self::NoQuorum,
            (_, Phase::Ready, _) if shared.timestamps.stands_down() => Self::ClockOff,
            (_, Phase::Ready, StoreState::DiskFull) => Self::DiskFull,
            (_, Phase::Ready, StoreState::Short(_)) => Self::StoreWaiting,
            (_, Phase::Ready, StoreState::Ok) => Self::Ok,
        }
    }

    /// Its name in the body.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::DiskFull => "disk-full",
            Self::StoreWaiting => "store-waiting",
            Self::NoQuorum => "no-quorum",
            Self::ClockOff => "clock-off",
            Self::Starting => "starting",
            Self::Draining => "draining",
            Self::StoreFailed => "store-failed",
            Self::ThreadEnded => "thread-ended",
            Self::Removed => "removed",
        }
    }

    /// Whether the HTTP status is 200; if `is_needed`, only while the default quorum can be reached.
    pub(super) fn is_able(self, is_needed: bool) -> bool {
        match self {
            Self::Ok | Self::DiskFull | Self::StoreWaiting => true,
            Self::NoQuorum => !is_needed,
            Self::Starting
            | Self::Draining
            | Self::ClockOff
            | Self::StoreFailed
            | Self::ThreadEnded
            | Self::Removed => false,
        }
    }

    /// The name of the node's phase.
    fn state(self, phase: Phase) -> &'static str {
        match (self, phase) {
            (Self::StoreFailed | Self::ThreadEnded, _) => "failed",
            (Self::Removed, _) => "removed",
            (_, Phase::Draining) => "draining",
            (_, Phase::Ready) => "ready",
            (_, Phase::Starting | Phase::Joining) => "starting",
        }
    }
}

/// The facts about the node that do not change while it runs.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// The node's id in versions.
    pub node: String,
    /// The URL by which other nodes know it.
    pub url: String,
    /// The host and port of that URL; none if it is not a node's URL.
    pub own_host: Option<Authority>,
    /// All nodes' URLs.
    pub cluster: Vec<String>,
    /// The durability mode as it was configured.
    pub durability: String,
    /// The mode of `--auth`.
    pub auth: &'static str,
    /// The mode of `--peer-auth`.
    pub peer_auth: &'static str,
    /// Whom the node lets do everything that reaches its port; none if nobody.
    pub open_to: Option<&'static str>,
    /// Whether it listens beyond its machine although that is so (`--insecure yes`).
    pub insecure: bool,
    /// The directory of its data.
    pub data_dir: PathBuf,
    /// The pages of the cluster's nodes.
    pub pages: MemberPages,
    /// The settings, each with its source.
    pub settings: Vec<ShownSetting>,
}

/// The figures of the node itself, beside its cluster.
pub(super) struct Own<'a> {
    /// What it waits for, where it belongs to no cluster yet.
    pub joining: Option<String>,
    /// The facts that do not change.
    pub facts: &'a NodeFacts,
    /// How long the node has run.
    pub uptime: Duration,
    /// The figures of its process.
    pub process: Process,
    /// The file system of its data.
    pub disk: Option<DiskSpace>,
    /// The load of the last seconds, once it was sampled.
    pub load: Option<&'a Sample>,
    /// How the port treats connections without TLS, and for how many seconds its certificate holds; none without TLS.
    pub tls: Option<(&'static str, i64)>,
}

/// The body of `/v0/status`: one `name value` per line, or one JSON object. Facts about the store and the cluster are
/// there only while the store is open.
pub(super) fn render(
    own: &Own<'_>,
    phase: Phase,
    serving: Serving,
    ended: Option<&Ended>,
    shared: Option<&Shared>,
    json: bool,
) -> String {
    let facts = own.facts;
    let (state, serving) = (serving.state(phase), serving.name());
    let (store_state, reason) = match shared.map(|shared| shared.replica.health()) {
        None => ("opening", None),
        Some(StoreState::Failed { reason }) => ("failed", Some(reason)),
        Some(state) => (state.name(), None),
    };
    let version = machine::VERSION;
    let peers = shared.map(PeerStatus::of_all).unwrap_or_default();
    let votes = shared.map_or("unknown", |shared| shared.local.eligibility());
    let workers = shared.map(|shared| shared.background.list_workers()).unwrap_or_default();
    let paused: Vec<&str> =
        workers.iter().filter(|worker| worker.state == "paused").map(|worker| &*worker.name).collect();
    let waits_for =
        shared.filter(|shared| !shared.cluster.votes()).map(|shared| shared.local.why_not_voting());
    let waits_for = waits_for.or_else(|| own.joining.clone());
    let quorum = shared.map(|shared| shared.settings.default_quorum(shared.cluster.node_count()));
    let id = shared.map(|shared| format!("{:032x}", shared.replica.store_id()));
    let mut body = serde_json::json!({
        "state": state,
        "serving": serving,
        "ended": ended.map(|ended| serde_json::json!({"part": ended.part, "reason": ended.reason})),
        "node": facts.node,
        "url": facts.url,
        "cluster": facts.cluster,
        "durability": facts.durability,
        "security": {"auth": facts.auth, "peer_auth": facts.peer_auth, "open_to": facts.open_to,
            "insecure": facts.insecure, "tls": own.tls.map(|(mode, _)| mode), "certificate_s": own.tls.map(|(_, left)| left)},
        "store": {"id": id, "state": store_state, "reason": &reason, "votes": votes,
            "damage": shared.and_then(|shared| shared.replica.damage().store()),
            "damaged_records": shared.map_or(0, |shared| shared.replica.damage().row_count())},
        "peers": peers.iter().map(render_peer).collect::<Vec<_>>(),
        "requests": shared.map(render_requests),
        "repair": shared.map(render_repair),
        "workers": {"paused": &paused},
        "converged": shared.map(render_converged),
        "version": version,
        "commit": machine::COMMIT,
        "quorum": quorum.map(|quorum| serde_json::json!({"ack": quorum.ack(), "from": quorum.from()})),
        "waits_for": &waits_for,
        "uptime_ms": millis(own.uptime),
        "process": {"cpu_ms": own.process.cpu.map(millis), "resident_bytes": own.process.resident_bytes},
        "disk": own.disk.map(|disk| serde_json::json!({"free_bytes": disk.free, "size_bytes": disk.size})),
        "clock": shared.map(|shared| serde_json::json!({
            "offset_max_ms": millis(shared.settings.clock_offset_max),
            "offset_limit_ms": shared.timestamps.limit_millis(),
        })),
        "load": own.load.map(render_load),
    });
    // Judged from the status itself, as any program can that has the statuses of all nodes.
    let view = NodeView::of(&body).unwrap_or_default();
    let verdict = verdict::judge(&verdict::seen_by(&facts.url, view));
    if json {
        if let Some(fields) = body.as_object_mut() {
            fields.insert("verdict".to_owned(), verdict.to_json());
        }
        return format!("{body}\n");
    }
    let mut text = format!(
        "state {state}\nserving {serving}\nnode {}\nurl {}\ncluster {}\ndurability {}\nstore {store_state}\nvotes {votes}\nversion \
         {version}\n",
        facts.node,
        facts.url,
        facts.cluster.join(" "),
        facts.durability,
    );
    text.push_str(&security_lines(facts));
    if let Some((mode, left)) = own.tls {
        let _ = writeln!(text, "tls {mode} certificate-s {left}");
    }
    if let Some(ended) = ended {
        let _ = writeln!(text, "ended {ended}");
    }
    if let Some(waits_for) = waits_for {
        let _ = writeln!(text, "waits-for {}", one_line(&waits_for));
    }
    if let Some(reason) = reason {
        text.push_str("store-failure ");
        text.push_str(&one_line(&reason));
        text.push('\n');
    }
    if !paused.is_empty() {
        let _ = writeln!(text, "workers-paused {}", paused.join(" "));
    }
    text.push_str(&shared.map(damage_lines).unwrap_or_default());
    let _ = writeln!(text, "verdict {}: {}", verdict.word(), one_line(&verdict.sentence));
    for alarm in &verdict.alarms {
        let _ = writeln!(text, "alarm {}: {}", alarm.name, one_line(&alarm.sentence));
    }
    for peer in &peers {
        let PeerStatus { url, state, hints, clock_offset, .. } = peer;
        let _ = write!(text, "peer {url} {state} hints {}", hints.count);
        if let Some(offset) = clock_offset {
            let _ = write!(text, " clock-offset-ms {}", offset.millis);
        }
        if !peer.reason.is_empty() {
            let _ = write!(text, " ({})", one_line(&peer.reason));
        }
        text.push('\n');
    }
    text
}

/// The lines of whom the node lets in.
fn security_lines(facts: &NodeFacts) -> String {
    let mut text = format!("auth {}\npeer-auth {}\n", facts.auth, facts.peer_auth);
    if facts.insecure {
        let open_to = facts.open_to.unwrap_or_default();
        let _ = writeln!(
            text,
            "insecure yes: everybody who reaches this port can do everything (open to {open_to})"
        );
    }
    text
}

/// The lines of damage that was found and is not repaired.
fn damage_lines(shared: &Shared) -> String {
    let (mut text, damage) = (String::new(), shared.replica.damage());
    if damage.row_count() > 0 {
        let _ = writeln!(text, "damaged-records {}", damage.row_count());
    }
    if let Some(damage) = damage.store() {
        let _ = writeln!(text, "store-damage {}", one_line(&damage));
    }
    text
}

fn render_load(sample: &Sample) -> serde_json::Value {
    serde_json::json!({
        "requests_per_second": rounded(sample.requests_per_second()),
        "failures_per_second": rounded(sample.failures),
        "latency_us_p50": sample.p50_micros,
        "latency_us_p99": sample.p99_micros,
        "cpu_cores": sample.cpu_cores.map(rounded),
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn render_peer(peer: &PeerStatus) -> serde_json::Value {
    serde_json::json!({
        "url": peer.url,
        "node": peer.node,
        "state": peer.state,
        "reason": (!peer.reason.is_empty()).then_some(&peer.reason),
        "votes": peer.votes,
        "latency_us_mean": micros(peer.latency_mean),
        "latency_us_p95": micros(peer.latency_p95),
        "in_flight": peer.in_flight,
        "calls": peer.counts.calls,
        "failures": peer.failures,
        "clock_offset_ms": peer.clock_offset.map(|offset| offset.millis),
        "clock_offset_error_ms": peer.clock_offset.map(|offset| offset.error_millis),
        "hints": {
            "waiting": peer.hints.count,
            "bytes": peer.hints.bytes,
            "delivered": peer.hints_delivered,
            "partitions_to_repair": peer.hints.gaps,
        },
    })
}

fn render_requests(shared: &Shared) -> serde_json::Value {
    let metrics = &shared.metrics;
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    serde_json::json!({
        "writes_without_quorum": read(&metrics.writes_failed),
        "reads_without_quorum": read(&metrics.reads_failed),
        "restamped": read(&metrics.restamped),
        "asked_first": read(&metrics.asked_first),
        "hedges": read(&metrics.hedges),
        "read_repairs": read(&metrics.read_repairs),
        "late_repairs": read(&metrics.late_repairs),
        "hints_lost": read(&metrics.hints_lost),
    })
}

fn render_repair(shared: &Shared) -> serde_json::Value {
    let progress = &shared.background.anti_entropy.progress;
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    serde_json::json!({
        "rounds": read(&progress.rounds),
        "partitions_differing": read(&progress.differing),
        "partitions_to_heal": read(&progress.to_sync),
        "pulled": read(&progress.pulled),
        "outlived_dropped": read(&progress.outlived_dropped),
        "kept_in_doubt": read(&progress.kept_in_doubt),
    })
}

/// The convergence of the partition whose watermark is the oldest.
fn render_converged(shared: &Shared) -> serde_json::Value {
    let gc = &shared.background.tombstone_gc;
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let oldest = gc.oldest_watermark();
    let agreed = oldest.and_then(|watermark| converged::millis(watermark.agreed));
    let held_by = oldest.and_then(|watermark| watermark.held_by);
    serde_json::json!({
        "agreed": agreed,
        "lag_ms": agreed.map(|at| shared.clock.wall().0.saturating_sub(at)),
        "held_by": held_by.map(|(node, _)| shared.cluster.url_of(node)),
        "why": held_by.map(|(_, why)| converged::why_name(why)),
        "rounds": gc.rounds(),
        "partitions_agreed": read(&gc.released),
        "purged": read(&gc.purged),
    })
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
