//! The verdict: whether a default request would succeed, and what is wrong, in sentences with their remedies.
//!
//! One pure function, [`judge`], over the statuses of nodes. `kvorum status` gives it the statuses of all nodes,
//! `/v0/status` that of its own node and what that node knows of the others. So all of them say the same.

mod alarms;
mod view;

pub use alarms::{ALARMS, AlarmKind, Severity};
pub use view::{LoadView, NodeView, PeerView};

use crate::tls::EXPIRES_SOON;
use std::collections::BTreeSet;
use std::fmt;

/// The seconds of a day.
const DAY_SECONDS: i64 = 24 * 60 * 60;

/// The lag of the replicas from which on it is an alarm, in milliseconds: an hour.
const LAG_MILLIS_MAX: u64 = 3_600_000;
/// `--max-clock-offset` of a node that does not say it, in milliseconds.
const CLOCK_OFFSET_MILLIS_MAX: u64 = 500;

/// What is known of one node.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// The URL of the node.
    pub url: String,
    /// What is known.
    pub known: Known,
}

/// How much is known of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum Known {
    /// It answered with its status.
    Status(Box<NodeView>),
    /// Another node says that it is up; its own status is not known.
    Up {
        /// Whether its store is quorum-eligible.
        votes: bool,
    },
    /// It was not asked yet: the node that is asked has just started.
    Unheard,
    /// It does not answer.
    Silent {
        /// Why.
        reason: String,
    },
}

/// The verdict on a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether a default read of any key would succeed.
    pub reads: bool,
    /// Whether a default write of any key would succeed.
    pub writes: bool,
    /// The state in one sentence.
    pub sentence: String,
    /// What is wrong, the most urgent first.
    pub alarms: Vec<Alarm>,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alarm {
    /// Its name, which is its anchor in `docs/operating.md`.
    pub name: &'static str,
    /// How soon a person must act.
    pub severity: Severity,
    /// The URL of the node that it is about; empty for all.
    pub node: String,
    /// What is wrong.
    pub sentence: String,
    /// What to do.
    pub remedy: &'static str,
}

impl Alarm {
    fn new(kind: &'static AlarmKind, node: &str, detail: impl fmt::Display) -> Self {
        let detail = detail.to_string();
        // A reason that is not known leaves no colon behind.
        let sentence = if detail.is_empty() {
            kind.sentence.replace(": {detail}", "")
        } else {
            kind.sentence.to_owned()
        };
        // In one pass, so that a node cannot put a {node} into its detail.
        let mut said = String::new();
        let mut rest = sentence.as_str();
        while let Some(at) = rest.find('{') {
            let (before, after) = rest.split_at(at);
            said.push_str(before);
            if let Some(tail) = after.strip_prefix("{node}") {
                said.push_str(node);
                rest = tail;
            } else if let Some(tail) = after.strip_prefix("{detail}") {
                said.push_str(&detail);
                rest = tail;
            } else {
                said.push('{');
                rest = after.strip_prefix('{').unwrap_or_default();
            }
        }
        said.push_str(rest);
        Self {
            name: kind.name,
            severity: kind.severity,
            node: node.to_owned(),
            sentence: said,
            remedy: kind.remedy,
        }
    }
}

impl Verdict {
    /// The verdict in one word: `ok`, `alarms`, or `failing` when default requests fail.
    pub fn word(&self) -> &'static str {
        let is_calm = self.alarms.iter().all(|alarm| alarm.severity == Severity::Info);
        match self.reads && self.writes {
            false => "failing",
            true if is_calm => "ok",
            true => "alarms",
        }
    }

    /// As JSON, for programs.
    pub fn to_json(&self) -> serde_json::Value {
        let alarm = |alarm: &Alarm| {
            serde_json::json!({
                "name": alarm.name,
                "severity": alarm.severity.name(),
                "node": (!alarm.node.is_empty()).then_some(&alarm.node),
                "sentence": alarm.sentence,
                "remedy": alarm.remedy,
                "docs": format!("docs/operating.md#{}", alarm.name),
            })
        };
        serde_json::json!({
            "word": self.word(),
            "reads": self.reads,
            "writes": self.writes,
            "sentence": self.sentence,
            "alarms": self.alarms.iter().map(alarm).collect::<Vec<_>>(),
        })
    }
}

impl Seen {
    /// A node that answered.
    pub fn answered(url: impl Into<String>, view: NodeView) -> Self {
        Self { url: url.into(), known: Known::Status(Box::new(view)) }
    }

    fn view(&self) -> Option<&NodeView> {
        match &self.known {
            Known::Status(view) => Some(view),
            _ => None,
        }
    }

    fn is_up(&self) -> bool {
        matches!(self.known, Known::Status(_) | Known::Up { .. })
    }

    /// Whether a replica there takes a record and counts.
    fn takes_writes(&self) -> bool {
        match &self.known {
            Known::Status(view) => {
                view.votes == "yes"
                    && view.store == "ok"
                    && matches!(view.serving.as_str(), "ok" | "no-quorum")
            }
            Known::Up { votes } => *votes,
            Known::Unheard | Known::Silent { .. } => false,
        }
    }
}

/// What one node knows of its cluster, from its own status.
pub fn seen_by(url: &str, view: NodeView) -> Vec<Seen> {
    let other = |peer: &PeerView| {
        let known = if peer.state == "up" {
            Known::Up { votes: peer.votes }
        } else {
            Known::Silent { reason: peer.reason.clone() }
        };
        Seen { url: peer.url.clone(), known }
    };
    let mut others: Vec<Seen> = view.peers.iter().map(other).collect();
    if others.is_empty() {
        let unheard = view.cluster.iter().filter(|other| *other != url);
        others = unheard.map(|url| Seen { url: url.clone(), known: Known::Unheard }).collect();
    }
    std::iter::once(Seen::answered(url, view)).chain(others).collect()
}

/// Judges a cluster by what is known of each of its nodes.
pub fn judge(nodes: &[Seen]) -> Verdict {
    let views: Vec<(&str, &NodeView)> =
        nodes.iter().filter_map(|node| Some((node.url.as_str(), node.view()?))).collect();
    // A node says `no-quorum` before all of these: each of them means that it finds a quorum for reads of every key.
    let reads = views
        .iter()
        .any(|(_, view)| matches!(view.serving.as_str(), "ok" | "disk-full" | "store-waiting" | "clock-off"));
    let unable = nodes.iter().filter(|node| !node.takes_writes()).count() as u64;
    let spare = views.iter().find_map(|(_, view)| view.from?.checked_sub(view.ack?)).unwrap_or(0);
    let writes = views.iter().any(|(_, view)| view.serving == "ok") && unable <= spare;
    let mut alarms: Vec<Alarm> = nodes.iter().flat_map(alarms_of).collect();
    alarms.extend(clocks(&views));
    alarms.extend(gaps(&views));
    alarms.extend(lag(&views));
    let versions: BTreeSet<&str> =
        views.iter().map(|(_, view)| view.version.as_str()).filter(|version| !version.is_empty()).collect();
    if versions.len() > 1 {
        let versions: Vec<&str> = versions.into_iter().collect();
        alarms.push(Alarm::new(alarms::MIXED_VERSIONS, "", versions.join(", ")));
    }
    let place = |alarm: &Alarm| ALARMS.iter().position(|kind| kind.name == alarm.name);
    alarms.sort_by_key(|alarm| (alarm.severity, place(alarm)));
    let sentence = sentence(nodes, &views, reads, writes);
    Verdict { reads, writes, sentence, alarms }
}

fn sentence(nodes: &[Seen], views: &[(&str, &NodeView)], reads: bool, writes: bool) -> String {
    let up = nodes.iter().filter(|node| node.is_up()).count();
    let quorum = match (reads, writes) {
        (true, true) => "default reads and writes have a quorum",
        (true, false) => "default reads have a quorum, default writes do not",
        (false, true) => "default writes have a quorum, default reads do not",
        (false, false) => "default reads and writes have no quorum",
    };
    let agree = if nodes.len() < 2 {
        String::new()
    } else {
        match views.iter().filter_map(|(_, view)| view.lag_millis).max() {
            Some(lag) => format!(", replicas agree up to {} ago", span(lag)),
            None => ", it is not known yet up to when replicas agree".to_owned(),
        }
    };
    format!("{up} of {} node{} up, {quorum}{agree}", nodes.len(), if nodes.len() == 1 { "" } else { "s" })
}

/// The alarms that a node's own state raises.
fn alarms_of(node: &Seen) -> Vec<Alarm> {
    let url = node.url.as_str();
    let view = match &node.known {
        Known::Silent { reason } => return vec![Alarm::new(alarms::NODE_DOWN, url, reason)],
        Known::Unheard | Known::Up { votes: true } => return Vec::new(),
        Known::Up { votes: false } => return vec![Alarm::new(alarms::NOT_ELIGIBLE, url, "")],
        Known::Status(view) => view,
    };
    let mut raised = Vec::new();
    let mut raise = |kind, detail: String| raised.push(Alarm::new(kind, url, detail));
    match view.serving.as_str() {
        "no-quorum" => raise(alarms::NO_QUORUM, String::new()),
        "thread-ended" => raise(alarms::NODE_ENDING, view.ended.clone()),
        "clock-off" => raise(alarms::CLOCK_OFF, String::new()),
        "removed" => raise(alarms::NODE_REMOVED, view.waits_for.clone()),
        state @ ("starting" | "draining") => raise(alarms::NOT_READY, state.to_owned()),
        _ => {}
    }
    match view.store.as_str() {
        "" | "ok" | "opening" => {}
        "failed" => raise(alarms::STORE_FAILED, view.store_reason.clone()),
        "disk-full" => raise(alarms::DISK_FULL, String::new()),
        other => raise(alarms::STORE_WAITING, other.to_owned()),
    }
    if view.votes != "yes" && !matches!(view.serving.as_str(), "starting" | "draining" | "removed") {
        raise(alarms::NOT_ELIGIBLE, view.waits_for.clone());
    }
    if !view.damage.is_empty() {
        raise(alarms::STORE_DAMAGED, view.damage.clone());
    }
    if view.damaged_records > 0 {
        raise(alarms::DAMAGED_RECORDS, view.damaged_records.to_string());
    }
    if let (Some(free), Some(size)) = (view.disk_free, view.disk_size)
        && free < size / 10
        && view.store != "disk-full"
    {
        raise(alarms::DISK_LOW, format!("{} of {}", bytes(free), bytes(size)));
    }
    if let Some(seconds) = view.certificate_seconds.filter(|seconds| *seconds < EXPIRES_SOON) {
        let when = match seconds {
            ..0 => "has expired".to_owned(),
            seconds => format!("expires in {} days", seconds / DAY_SECONDS),
        };
        raise(alarms::CERTIFICATE_EXPIRES, when);
    }
    if !view.paused.is_empty() {
        raise(alarms::WORKER_PAUSED, view.paused.join(", "));
    }
    raised
}

/// The nodes whose clocks differ: of two that differ, the one that differs from more nodes.
fn clocks(views: &[(&str, &NodeView)]) -> Vec<Alarm> {
    let mut pairs = Vec::new();
    for (url, view) in views {
        let max = view.clock_offset_max_millis.unwrap_or(CLOCK_OFFSET_MILLIS_MAX);
        for peer in &view.peers {
            let Some(offset) = peer.clock_offset_millis else { continue };
            if offset.unsigned_abs().saturating_sub(peer.clock_offset_error_millis.unwrap_or(0)) > max {
                pairs.push((*url, peer.url.as_str(), offset));
            }
        }
    }
    let weight = |url: &str| {
        let differing =
            pairs.iter().filter_map(|(a, b, _)| if *a == url { Some(*b) } else { (*b == url).then_some(*a) });
        differing.collect::<BTreeSet<_>>().len()
    };
    let mut told = BTreeSet::new();
    let mut raised = Vec::new();
    for (from, to, offset) in &pairs {
        let (node, other, ahead) =
            if weight(from) > weight(to) { (*from, *to, -*offset) } else { (*to, *from, *offset) };
        if told.insert(node) {
            let direction = if ahead > 0 { "ahead of" } else { "late against" };
            let detail = format!("{} {direction} that of {other}", span(ahead.unsigned_abs()));
            raised.push(Alarm::new(alarms::CLOCK_DRIFT, node, detail));
        }
    }
    raised
}

/// The nodes that lack writes for which hints were dropped.
fn gaps(views: &[(&str, &NodeView)]) -> Vec<Alarm> {
    let mut most = std::collections::BTreeMap::<&str, u64>::new();
    for peer in views.iter().flat_map(|(_, view)| &view.peers) {
        if peer.state == "up" && peer.partitions_to_repair > 0 {
            let gaps = most.entry(&peer.url).or_default();
            *gaps = (*gaps).max(peer.partitions_to_repair);
        }
    }
    most.into_iter().map(|(url, gaps)| Alarm::new(alarms::PARTITIONS_TO_REPAIR, url, gaps)).collect()
}

/// The lag of the replicas, if it is long.
fn lag(views: &[(&str, &NodeView)]) -> Option<Alarm> {
    let lags = views.iter().filter_map(|(url, view)| Some((view.lag_millis?, *url, view)));
    let (lag, url, view) = lags.max_by_key(|(lag, ..)| *lag).filter(|(lag, ..)| *lag > LAG_MILLIS_MAX)?;
    let node = if view.held_by.is_empty() { url } else { view.held_by.as_str() };
    Some(Alarm::new(alarms::REPLICAS_LAG, node, span(lag)))
}

/// A time span for people: one unit.
pub fn span(millis: u64) -> String {
    match millis {
        0..1000 => format!("{millis} ms"),
        1000..120_000 => format!("{} s", millis / 1000),
        120_000..7_200_000 => format!("{} min", millis / 60_000),
        7_200_000..172_800_000 => format!("{} h", millis / 3_600_000),
        _ => format!("{} days", millis / 86_400_000),
    }
}

/// Bytes for people: three digits.
pub fn bytes(count: u64) -> String {
    let mut unit = 0;
    let mut scaled = u128::from(count) * 10;
    while scaled >= 10_240 && unit < 5 {
        scaled /= 1024;
        unit += 1;
    }
    let unit = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].get(unit).copied().unwrap_or_default();
    if scaled < 100 && unit != "B" {
        format!("{}.{} {unit}", scaled / 10, scaled % 10)
    } else {
        format!("{} {unit}", scaled / 10)
    }
}

#[cfg(test)]
mod tests;
