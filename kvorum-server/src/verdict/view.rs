//! One node's status as the verdict reads it, from the JSON of `/v0/status`.
//!
//! A node may send anything. A field that is missing or has another type counts as absent, and long texts are cut.

use serde_json::Value;

/// The longest text taken from a status, in characters.
const TEXT_CHARS_MAX: usize = 300;
/// The most peers taken from a status.
const PEERS_MAX: usize = 1024;

/// The status of a node that answered.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeView {
    /// `serving`: `ok`, or why the node does not serve or not all.
    pub serving: String,
    /// `state`: `starting`, `ready`, `draining` or `failed`.
    pub state: String,
    /// The version, and the commit if the build has one.
    pub version: String,
    /// `ack` of a default request.
    pub ack: Option<u64>,
    /// `from` of a default request.
    pub from: Option<u64>,
    /// `store.state`.
    pub store: String,
    /// `store.reason`.
    pub store_reason: String,
    /// `store.votes`: `yes`, `unknown` or `lacks`.
    pub votes: String,
    /// Why the store is not quorum-eligible, or what else the node waits for.
    pub waits_for: String,
    /// Why the node is about to end.
    pub ended: String,
    /// Damage beyond single records.
    pub damage: String,
    /// Damaged records.
    pub damaged_records: u64,
    /// Paused workers.
    pub paused: Vec<String>,
    /// How long ago all replicas agreed, in milliseconds.
    pub lag_millis: Option<u64>,
    /// The URL of the node that holds that back.
    pub held_by: String,
    /// `--max-clock-offset`, in milliseconds.
    pub clock_offset_max_millis: Option<u64>,
    /// How long the node has run, in milliseconds.
    pub uptime_millis: Option<u64>,
    /// Bytes free in the file system of its data.
    pub disk_free: Option<u64>,
    /// The size of that file system, in bytes.
    pub disk_size: Option<u64>,
    /// For how many seconds its certificate holds; none without TLS.
    pub certificate_seconds: Option<i64>,
    /// Memory of its process, in bytes.
    pub resident: Option<u64>,
    /// Its load in the last seconds.
    pub load: Option<LoadView>,
    /// The URLs of all nodes.
    pub cluster: Vec<String>,
    /// The other nodes as it sees them; none while it starts.
    pub peers: Vec<PeerView>,
}

/// The load of a node in its last sample.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LoadView {
    /// Requests a second.
    pub requests: f64,
    /// Requests a second that failed by the node's fault (5xx).
    pub failures: f64,
    /// The median time of a request for a key, in microseconds.
    pub p50_micros: Option<u64>,
    /// The time that 99 of 100 do not exceed, in microseconds.
    pub p99_micros: Option<u64>,
    /// Processors in use: 1.0 is one core.
    pub cpu: Option<f64>,
}

/// Another node as a node sees it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PeerView {
    /// Its URL.
    pub url: String,
    /// `up`, `suspect` or `down`.
    pub state: String,
    /// Why it is not up.
    pub reason: String,
    /// Whether its store is quorum-eligible.
    pub votes: bool,
    /// How far its clock is ahead, in milliseconds.
    pub clock_offset_millis: Option<i64>,
    /// How far off that may be, in milliseconds.
    pub clock_offset_error_millis: Option<u64>,
    /// Hints that wait for it.
    pub hints: u64,
    /// Partitions of it for which hints were dropped.
    pub partitions_to_repair: u64,
    /// The mean time of a read from it, in microseconds.
    pub latency_mean_micros: Option<u64>,
    /// The time that 95 of 100 reads from it do not exceed, in microseconds.
    pub latency_p95_micros: Option<u64>,
}

fn text(value: &Value, path: &str) -> String {
    let text = value.pointer(path).and_then(Value::as_str).unwrap_or_default();
    text.chars().take(TEXT_CHARS_MAX).collect()
}

fn number(value: &Value, path: &str) -> Option<u64> {
    value.pointer(path).and_then(Value::as_u64)
}

fn real(value: &Value, path: &str) -> Option<f64> {
    value.pointer(path).and_then(Value::as_f64).filter(|number| number.is_finite())
}

fn list<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(path).and_then(Value::as_array).into_iter().flatten().take(PEERS_MAX)
}

impl NodeView {
    /// Reads a status; none if it is not one.
    pub fn of(status: &Value) -> Option<Self> {
        status.pointer("/serving").and_then(Value::as_str)?;
        let commit = text(status, "/commit");
        let mut version = text(status, "/version");
        if !commit.is_empty() {
            version = format!("{version} ({commit})");
        }
        let ended = [text(status, "/ended/part"), text(status, "/ended/reason")].join(" ").trim().to_owned();
        let load = status.get("load").filter(|load| load.is_object()).map(|load| LoadView {
            requests: real(load, "/requests_per_second").unwrap_or_default(),
            failures: real(load, "/failures_per_second").unwrap_or_default(),
            p50_micros: number(load, "/latency_us_p50"),
            p99_micros: number(load, "/latency_us_p99"),
            cpu: real(load, "/cpu_cores"),
        });
        Some(Self {
            serving: text(status, "/serving"),
            state: text(status, "/state"),
            version,
            ack: number(status, "/quorum/ack"),
            from: number(status, "/quorum/from"),
            store: text(status, "/store/state"),
            store_reason: text(status, "/store/reason"),
            votes: text(status, "/store/votes"),
            waits_for: text(status, "/waits_for"),
            ended,
            damage: text(status, "/store/damage"),
            damaged_records: number(status, "/store/damaged_records").unwrap_or(0),
            paused: list(status, "/workers/paused").map(|name| text(name, "")).collect(),
            lag_millis: number(status, "/converged/lag_ms"),
            held_by: text(status, "/converged/held_by"),
            clock_offset_max_millis: number(status, "/clock/offset_max_ms"),
            uptime_millis: number(status, "/uptime_ms"),
            disk_free: number(status, "/disk/free_bytes"),
            disk_size: number(status, "/disk/size_bytes"),
            certificate_seconds: status.pointer("/security/certificate_s").and_then(Value::as_i64),
            resident: number(status, "/process/resident_bytes"),
            load,
            cluster: list(status, "/cluster").map(|url| text(url, "")).collect(),
            peers: list(status, "/peers").map(PeerView::of).collect(),
        })
    }
}

impl PeerView {
    fn of(peer: &Value) -> Self {
        Self {
            url: text(peer, "/url"),
            state: text(peer, "/state"),
            reason: text(peer, "/reason"),
            votes: peer.pointer("/votes").and_then(Value::as_bool).unwrap_or(false),
            clock_offset_millis: peer.pointer("/clock_offset_ms").and_then(Value::as_i64),
            clock_offset_error_millis: number(peer, "/clock_offset_error_ms"),
            hints: number(peer, "/hints/waiting").unwrap_or(0),
            partitions_to_repair: number(peer, "/hints/partitions_to_repair").unwrap_or(0),
            latency_mean_micros: number(peer, "/latency_us_mean"),
            latency_p95_micros: number(peer, "/latency_us_p95"),
        }
    }
}
