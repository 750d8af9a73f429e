//! The page `/metrics`: adds up the threads' counters and renders them.

use crate::coordinator::{PeerStatus, Shared};
use crate::metrics::{
    LATENCY_BOUNDS_MICROS, LatencyHistogram, Operation, STATUSES, StoreMetrics, ThreadMetrics,
};
use crate::peer::{PeerAuth, PeerAuthMode, Proven};
use crate::replica::{EngineStats, ReclaimState, StoreState};
use crate::security::{AuthMode, Refused, Security};
use crate::supervise::{Part, Supervisor};
use crate::worker::{Pool, Pools};
use kvorum_core::Version;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The sources of one scrape.
pub(super) struct Scrape<'a> {
    /// Every network thread's counters.
    pub threads: &'a [Arc<ThreadMetrics>],
    /// The commit thread's counters.
    pub store: &'a StoreMetrics,
    /// The engine's gauges.
    pub engine: EngineStats,
    /// Connections open now.
    pub connections: usize,
    /// Bytes of request bodies in memory.
    pub body_bytes: u64,
    /// Writes that wait for the commit thread.
    pub commit_queue: usize,
    /// The worker pools.
    pub pools: &'a Pools,
    /// Records that the sweeper removed or made tombstones.
    pub purged: u64,
    /// The state of the sweeper.
    pub sweeper: &'a str,
    /// The state of the reclaimer, which gives back the space of removed records.
    pub reclaimer: &'a ReclaimState,
    /// The durability mode.
    pub durability: &'a str,
    /// Whether the store takes writes.
    pub store_state: StoreState,
    /// Notices when a thread or task ends.
    pub supervisor: &'a Supervisor,
    /// The tokens, and whom they refused.
    pub security: &'a Security,
    /// The cluster as this node sees it.
    pub cluster: &'a Shared,
    /// Keys in the store, tombstones included; none if they are not counted.
    pub keys: Option<u64>,
}

/// Renders a scrape as `OpenMetrics` text, which Prometheus reads.
pub(super) fn render(scrape: &Scrape<'_>) -> String {
    let mut registry = Registry::with_prefix("kvorum");
    registry.register_collector(Box::new(Snapshot::of(scrape)));
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = text::encode(&mut text, &registry);
    text
}

type Labels = Vec<(&'static str, String)>;

/// A metric with its readings.
#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Counter(Vec<(Labels, u64)>),
    Gauge(Vec<(Labels, u64)>),
    Histogram(Vec<(Labels, Vec<u64>, u64)>),
}

/// The readings of one scrape.
#[derive(Debug)]
struct Snapshot(Vec<Family>);

fn sum(threads: &[Arc<ThreadMetrics>], of: impl Fn(&ThreadMetrics) -> &AtomicU64) -> u64 {
    threads.iter().map(|thread| of(thread).load(Ordering::Relaxed)).sum()
}

fn add(into: &mut (Vec<u64>, u64), histogram: &LatencyHistogram) {
    let (buckets, sum_micros) = histogram.read();
    into.0.resize(buckets.len(), 0);
    into.0.iter_mut().zip(buckets).for_each(|(total, count)| *total += count);
    into.1 += sum_micros;
}

fn one(value: u64) -> Vec<(Labels, u64)> {
    vec![(Labels::new(), value)]
}

impl Snapshot {
    #[expect(clippy::too_many_lines, reason = "a table of all metrics reads best in one piece")]
    fn of(scrape: &Scrape<'_>) -> Self {
        let mut families = Vec::new();
        let mut family = |name, unit, kind, help| families.push(Family { name, help, unit, kind });
        let (requests, latencies) = requests(scrape.threads);
        family("requests", None, Kind::Counter(requests), "Requests answered, by operation and status");
        family(
            "request_duration",
            Some(Unit::Seconds),
            Kind::Histogram(latencies),
            "Time from a request's head to its answer, by operation",
        );
        let threads = scrape.threads;
        let counters: [(_, u64, _); 10] = [
            (
                "log_lines_dropped",
                kvorum_output::lines_dropped(),
                "Lines of this process's log that could not be written",
            ),
            ("panics", crate::log::panic_count(), "Panics in this process"),
            ("received_bytes", sum(threads, |t| &t.bytes_in), "Bytes read from connections"),
            ("sent_bytes", sum(threads, |t| &t.bytes_out), "Bytes written to connections"),
            ("connections_accepted", sum(threads, |t| &t.connections_accepted), "Connections accepted"),
            (
                "connections_refused",
                sum(threads, |t| &t.connections_refused),
                "Connections turned away over the cap",
            ),
            (
                "connections_timed_out",
                sum(threads, |t| &t.connections_timed_out),
                "Connections cut because a wait took longer than its bound",
            ),
            ("range_records", sum(threads, |t| &t.range_records), "Records sent in ranges"),
            ("commit_groups", scrape.store.groups.load(Ordering::Relaxed), "Groups committed"),
            ("commit_records", scrape.store.records.load(Ordering::Relaxed), "Records written in groups"),
        ];
        for (name, value, help) in counters {
            family(name, None, Kind::Counter(one(value)), help);
        }
        let engine = &scrape.engine;
        let counters = [
            ("purged_records", scrape.purged, "Records that the sweeper removed or made tombstones"),
            ("removed_records", scrape.store.removed.load(Ordering::Relaxed), "Records removed"),
            (
                "conflicting_records",
                scrape.store.conflicts.load(Ordering::Relaxed),
                "Received records that differ from the stored record of the same version; should be 0",
            ),
            (
                "reclaims",
                scrape.reclaimer.passes(),
                "Passes that reclaimed the disk space of removed records",
            ),
            ("reclaimed_bytes", scrape.reclaimer.bytes(), "Bytes of disk space reclaimed from tables"),
            ("block_cache_hits", engine.cache_hits, "Blocks served from the cache"),
            ("block_cache_misses", engine.cache_misses, "Blocks read from files"),
            ("compactions", engine.compactions_completed, "Compactions completed"),
            ("index_folds", engine.folds, "Flushes of rows of the index into its tree"),
            ("compaction_micros", engine.compaction_micros, "Time spent in compactions, in microseconds"),
        ];
        for (name, value, help) in counters {
            family(name, None, Kind::Counter(one(value)), help);
        }
        let gauges = [
            ("connections_open", scrape.connections as u64, "Connections open now"),
            ("body_bytes_in_flight", scrape.body_bytes, "Bytes of request bodies in memory"),
            ("commit_queue_requests", scrape.commit_queue as u64, "Writes that wait for the commit thread"),
            (
                "commit_group_records_max",
                scrape.store.group_records_max.load(Ordering::Relaxed),
                "The largest group so far",
            ),
            ("memtable_bytes", engine.memtable_bytes, "Bytes in memtables"),
            ("journal_bytes", engine.journal_bytes, "Bytes of journals on disk"),
            ("journals", engine.journal_count, "Journals on disk"),
            ("store_disk_bytes", engine.disk_bytes, "Bytes of tables and journals on disk"),
            ("tables", engine.table_count, "Tables on disk"),
            ("block_cache_bytes", engine.cache_bytes, "Bytes in the block cache"),
            (
                "reclaim_backlog_records",
                scrape.reclaimer.waiting(),
                "Removed records that still take space, as far as is known",
            ),
            (
                "index_unfolded_bytes",
                engine.unfolded_bytes,
                "Bytes of rows of the index that are not in its tree yet",
            ),
            ("compactions_running", engine.compactions_active, "Compactions that run now"),
            ("flushes_outstanding", engine.flushes_outstanding, "Flushes that wait or run"),
        ];
        for (name, value, help) in gauges {
            family(name, None, Kind::Gauge(one(value)), help);
        }
        let pools = |count: fn(&Pool) -> usize| {
            let pools = [("serving", &scrape.pools.serving), ("background", &scrape.pools.background)];
            let row = |(name, pool): (&str, _)| (vec![("pool", name.to_owned())], count(pool) as u64);
            Kind::Gauge(pools.map(row).to_vec())
        };
        let parts = |of: fn((u64, u64)) -> u64| {
            let row =
                |part: &Part| (vec![("part", part.name().to_owned())], of(scrape.supervisor.counts(*part)));
            Part::ALL.iter().map(row).collect::<Vec<_>>()
        };
        family(
            "parts_running",
            None,
            Kind::Gauge(parts(|(running, _)| running)),
            "Threads and tasks that run as long as the node, by name",
        );
        family(
            "part_restarts",
            None,
            Kind::Counter(parts(|(_, restarts)| restarts)),
            "Threads and tasks that ended unexpectedly and were started again",
        );
        family("pool_queue_jobs", None, pools(Pool::queue_len), "Jobs that wait for a worker pool, by pool");
        family("pool_busy_threads", None, pools(Pool::busy_count), "Worker threads that run a job, by pool");
        let mut commit = Default::default();
        add(&mut commit, &scrape.store.commit);
        let mut synced = Default::default();
        add(&mut synced, &scrape.store.sync);
        let histogram =
            |(buckets, sum): (Vec<u64>, u64)| Kind::Histogram(vec![(Labels::new(), buckets, sum)]);
        let seconds = || Some(Unit::Seconds);
        family("commit_duration", seconds(), histogram(commit), "Time to store one group, sync included");
        family(
            "sync_duration",
            seconds(),
            histogram(synced),
            "Time of commits and syncs that reached the disk",
        );
        let state = scrape.store_state.name();
        let stated = |name, value: &str, of: &'static [&'static str]| {
            let mut rows: Vec<(Labels, u64)> = of
                .iter()
                .map(|known| (vec![(name, (*known).to_owned())], u64::from(*known == value)))
                .collect();
            if !of.contains(&value) {
                rows.push((vec![(name, value.to_owned())], 1));
            }
            Kind::Gauge(rows)
        };
        family("store_state", None, stated("state", state, &StoreState::NAMES), "1 for the store's state");
        family(
            "sweeper_state",
            None,
            stated("state", scrape.sweeper, &["idle", "busy", "throttled"]),
            "1 for what the sweeper does",
        );
        family(
            "durability",
            None,
            stated("mode", scrape.durability, &[]),
            "1 for the active durability mode",
        );
        families.extend(tokens(scrape.security));
        families.extend(proofs(&scrape.cluster.peer_auth));
        families.extend(cluster(scrape));
        Self(families)
    }
}

/// The metrics of tokens; only the mode while they are not looked at.
fn tokens(security: &Security) -> Vec<Family> {
    let mut families = Vec::new();
    let mut family = |name, kind, help| families.push(Family { name, help, unit: None, kind });
    let mode = security.mode();
    let mode_row = vec![(vec![("mode", mode.name().to_owned())], 1)];
    family("auth_mode", Kind::Gauge(mode_row), "1 for the mode of --auth");
    if security.audit().is_open() {
        let lost = Kind::Counter(one(security.audit().lost()));
        family("audit_lines_lost", lost, "Lines of the audit log that could not be written");
    }
    if mode == AuthMode::Off {
        return families;
    }
    let refused = security.refused().into_iter().map(|Refused { reason, token, count }| {
        (vec![("reason", reason.to_owned()), ("token", token.to_string())], count)
    });
    family(
        "requests_not_allowed",
        Kind::Counter(refused.collect()),
        "Requests that their token does not allow, by reason and the token's id (empty if the client proved none): \
         refused with --auth on, counted with warn",
    );
    family("tokens", Kind::Gauge(one(security.token_count() as u64)), "Tokens that the node knows");
    let (loads, failures) = security.loads();
    family("token_file_loads", Kind::Counter(one(loads)), "Versions of the token file that were taken");
    family(
        "token_file_failures",
        Kind::Counter(one(failures)),
        "Looks at the token file that found it missing or not valid, so that the last good tokens stayed",
    );
    families
}

/// The metrics of what peers prove; only the mode while they need not.
fn proofs(auth: &PeerAuth) -> Vec<Family> {
    let mut families = Vec::new();
    let mut family = |name, kind, help| families.push(Family { name, help, unit: None, kind });
    let mode = auth.mode();
    let mode_row = vec![(vec![("mode", mode.name().to_owned())], 1)];
    family("peer_auth_mode", Kind::Gauge(mode_row), "1 for the mode of --peer-auth");
    if mode == PeerAuthMode::Off {
        return families;
    }
    let Proven { first, later, none } = auth.proven();
    let proven = [("first", first), ("later", later), ("none", none)];
    let rows = proven.map(|(secret, count)| (vec![("secret", secret.to_owned())], count));
    family(
        "peer_connections_proven",
        Kind::Gauge(rows.into()),
        "Open connections of peers by the secret that they have proved: the first of this node's file, a later one, none",
    );
    let by_reason = |counts: &mut dyn Iterator<Item = (&'static str, u64)>| {
        counts.map(|(reason, count)| (vec![("reason", reason.to_owned())], count)).collect::<Vec<_>>()
    };
    family(
        "peer_handshakes_refused",
        Kind::Counter(by_reason(&mut auth.refused())),
        "Connections of peers that were refused for lack of a proof, by reason",
    );
    family(
        "peer_handshakes_unproven",
        Kind::Counter(by_reason(&mut auth.unproven())),
        "Connections of peers that were accepted without a proof (--peer-auth prefer), by the reason for which require \
         would refuse them",
    );
    family(
        "peer_secrets",
        Kind::Gauge(one(auth.secrets().len() as u64)),
        "Peer secrets that the node accepts",
    );
    let (loads, failures) = auth.loads();
    family(
        "peer_secret_file_loads",
        Kind::Counter(one(loads)),
        "Versions of the file of peer secrets that were taken",
    );
    family(
        "peer_secret_file_failures",
        Kind::Counter(one(failures)),
        "Looks at the file of peer secrets that found it missing or not valid, so that the last good secrets stayed",
    );
    families
}

/// A reader of one figure of a peer.
type Of = fn(&PeerStatus) -> u64;

/// The counters of a node's work in its cluster: name, count, help.
fn counters(shared: &Shared) -> Vec<(&'static str, u64, &'static str)> {
    let (metrics, background) = (&shared.metrics, &shared.background);
    let (anti_entropy, mending, gc) =
        (&background.anti_entropy.progress, &background.mending, &background.tombstone_gc);
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    vec![
        ("writes_without_quorum", read(&metrics.writes_failed), "Writes that found too few replicas"),
        ("reads_without_quorum", read(&metrics.reads_failed), "Reads that found too few replicas"),
        (
            "writes_restamped",
            read(&metrics.restamped),
            "Further versions that writes needed after their first",
        ),
        ("writes_asked_first", read(&metrics.asked_first), "Writes that asked for the newest version first"),
        ("hedges", read(&metrics.hedges), "Reads that asked one more replica"),
        ("hints_lost", read(&metrics.hints_lost), "Hints that could not be stored"),
        ("repair_rounds", read(&anti_entropy.rounds), "Comparisons with other replicas"),
        ("repair_pulled_records", read(&anti_entropy.pulled), "Records that anti-entropy pulled"),
        (
            "outlived_dropped_records",
            read(&anti_entropy.outlived_dropped),
            "Records of an older store, dropped because the replicas that should have them have purged them",
        ),
        (
            "kept_in_doubt_records",
            read(&anti_entropy.kept_in_doubt),
            "Records kept although other nodes have purged beyond them: all their replicas are older copies, and \
             some records may have been deleted since",
        ),
        (
            "repair_transfers",
            read(&anti_entropy.bulk_syncs),
            "Bulk syncs: partitions or stores streamed from another node, because this one lacked most of them",
        ),
        ("records_healed", read(&mending.rows_healed), "Damaged records replaced by another node's copy"),
        ("stores_set_aside", read(&mending.stores_set_aside), "Damaged stores set aside while the node ran"),
        ("scrubs", read(&mending.walks), "Scrubs of the whole store"),
        ("scrubbed_bytes", read(&mending.bytes_walked), "Bytes of keys and values read by scrubs"),
        ("settle_rounds", gc.rounds(), "Tombstone GC rounds that this node led"),
        (
            "settled_partitions",
            read(&gc.released),
            "Partitions that tombstone GC rounds released for purging",
        ),
        (
            "purged_dead_records",
            read(&gc.purged),
            "Rows of deleted and expired keys that tombstone GC removed",
        ),
    ]
}

/// The metrics of the cluster.
fn cluster(scrape: &Scrape<'_>) -> Vec<Family> {
    let mut families = Vec::new();
    let mut family = |name, kind, help| families.push(Family { name, help, unit: None, kind });
    let (shared, metrics) = (scrape.cluster, &scrape.cluster.metrics);
    for (name, count, help) in counters(shared) {
        family(name, Kind::Counter(one(count)), help);
    }
    family(
        "peer_frame_bytes",
        Kind::Gauge(one(shared.peer_limits.memory_used())),
        "Bytes of incomplete frames from peers and of replies that peers have not read",
    );
    family(
        "timestamps_refused",
        Kind::Counter(one(shared.timestamps.refused())),
        "Timestamps of peers or of the store too far ahead of this node's clock (--clock-offset-limit)",
    );
    family(
        "clock_off",
        Kind::Gauge(one(u64::from(shared.timestamps.stands_down()))),
        "Whether this node's clock is too far from those of a majority to take writes (--clock-offset-limit)",
    );
    let damaged = shared.replica.damage().row_count() as u64;
    family("damaged_records", Kind::Gauge(one(damaged)), "Damaged records that are not repaired yet");
    let is_damaged = u64::from(shared.replica.damage().store().is_some());
    family(
        "store_damaged",
        Kind::Gauge(one(is_damaged)),
        "1 while the store is damaged beyond single records",
    );
    let label = |name, value: &str| vec![(name, value.to_owned())];
    let reasons = [("before-answer", &metrics.read_repairs), ("late-reply", &metrics.late_repairs)];
    let repairs = reasons.map(|(why, count)| (label("reason", why), count.load(Ordering::Relaxed)));
    family("read_repairs", Kind::Counter(repairs.to_vec()), "Records that reads wrote back");
    let causes = ["write", "hint", "read-repair"];
    let applied = causes.iter().zip(&metrics.applied);
    let applied = applied.map(|(why, count)| (label("cause", why), count.load(Ordering::Relaxed)));
    family(
        "peer_applies",
        Kind::Counter(applied.collect()),
        "Records that peers asked this replica to apply",
    );
    let votes = u64::from(shared.cluster.votes());
    family("store_votes", Kind::Gauge(one(votes)), "1 when this node's store is quorum-eligible");
    if let Some(oldest) = shared.background.tombstone_gc.oldest_watermark() {
        let agreed = Version::from_words(oldest.agreed, 0).millis().0;
        family(
            "agreed_until_unix_millis",
            Kind::Gauge(one(agreed)),
            "The instant up to which all replicas agree in every partition; 0 while that is not known",
        );
        let held_back = oldest.held_by.map(|(node, _)| (label("node", shared.cluster.url_of(node)), 1));
        family(
            "agreement_held_back",
            Kind::Gauge(held_back.into_iter().collect()),
            "1 for the node that holds back the oldest partition",
        );
    }
    if let Some(keys) = scrape.keys {
        family("store_keys", Kind::Gauge(one(keys)), "Keys in the store, tombstones included");
    }
    families.extend(peers(shared));
    families
}

/// The metrics of each peer.
fn peers(shared: &Shared) -> Vec<Family> {
    let mut families = Vec::new();
    let mut family = |name, kind, help| families.push(Family { name, help, unit: None, kind });
    let label = |value: &str| vec![("peer", value.to_owned())];
    let peers = shared.peers();
    let per_peer = |of: fn(&PeerStatus) -> u64| {
        peers.iter().map(|peer| (label(&peer.url), of(peer))).collect::<Vec<_>>()
    };
    let gauges: [(_, Of, _); 9] = [
        ("peer_up", |p| u64::from(p.state == "up"), "1 when a peer answers"),
        ("peer_votes", |p| u64::from(p.votes), "1 when a peer's store is quorum-eligible"),
        ("peer_calls_in_flight", |p| p.in_flight, "Calls that wait for a reply"),
        ("peer_latency_mean_micros", |p| micros(p.latency_mean), "Mean time of a read"),
        ("peer_latency_p95_micros", |p| micros(p.latency_p95), "95 % of reads take less"),
        (
            "peer_clock_offset_abs_millis",
            |p| p.clock_offset.map_or(0, |offset| offset.millis.unsigned_abs()),
            "How far a peer's clock is off",
        ),
        ("hints_waiting", |p| p.hints.count, "Hints kept for a peer"),
        ("hints_waiting_bytes", |p| p.hints.bytes, "Bytes of hints kept for a peer"),
        ("partitions_to_repair", |p| p.hints.gaps, "Partitions of a peer for which a hint was dropped"),
    ];
    for (name, of, help) in gauges {
        family(name, Kind::Gauge(per_peer(of)), help);
    }
    let counters: [(_, Of, _); 9] = [
        ("peer_calls", |p| p.counts.calls, "Calls that were sent"),
        ("peer_calls_not_sent", |p| p.counts.calls_not_sent, "Calls that were not sent"),
        ("peer_calls_lost", |p| p.counts.calls_lost, "Calls lost with a connection"),
        ("peer_calls_timed_out", |p| p.counts.calls_timed_out, "Calls that were not answered in time"),
        ("peer_calls_refused", |p| p.counts.calls_refused, "Calls that were refused"),
        ("peer_connects", |p| p.counts.connects, "Connections that came up"),
        ("peer_received_bytes", |p| p.counts.bytes_in, "Bytes read from a peer"),
        ("peer_sent_bytes", |p| p.counts.bytes_out, "Bytes written to a peer"),
        ("hints_delivered", |p| p.hints_delivered, "Hints delivered to a peer"),
    ];
    for (name, of, help) in counters {
        family(name, Kind::Counter(per_peer(of)), help);
    }
    families
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

type Requests = Vec<(Labels, u64)>;
type Latencies = Vec<(Labels, Vec<u64>, u64)>;

/// Requests by operation and status, and latencies by operation; only those that have occurred.
fn requests(threads: &[Arc<ThreadMetrics>]) -> (Requests, Latencies) {
    let (mut counts, mut latencies) = (Vec::new(), Vec::new());
    for (row, operation) in Operation::ALL.into_iter().enumerate() {
        let labels = || vec![("operation", operation.name().to_owned())];
        for (column, status) in STATUSES.into_iter().enumerate() {
            let cell = |thread: &ThreadMetrics| {
                thread
                    .requests
                    .get(row)
                    .and_then(|row| row.get(column))
                    .map_or(0, |count| count.load(Ordering::Relaxed))
            };
            let count: u64 = threads.iter().map(|thread| cell(thread)).sum();
            if count > 0 {
                let status = if status == 0 { "unlisted".to_owned() } else { status.to_string() };
                let mut labels = labels();
                labels.push(("status", status));
                counts.push((labels, count));
            }
        }
        let mut total = Default::default();
        threads
            .iter()
            .filter_map(|thread| thread.latencies.get(row))
            .for_each(|latency| add(&mut total, latency));
        if total.0.iter().any(|count| *count > 0) {
            latencies.push((labels(), total.0, total.1));
        }
    }
    (counts, latencies)
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for family in &self.0 {
            let kind = family.kind.metric_type();
            let metric = encoder.encode_descriptor(family.name, family.help, family.unit.as_ref(), kind)?;
            family.kind.encode(metric)?;
        }
        Ok(())
    }
}

impl EncodeMetric for Kind {
    fn encode(&self, mut encoder: prometheus_client::encoding::MetricEncoder<'_>) -> Result<(), fmt::Error> {
        match self {
            Self::Counter(rows) => {
                for (labels, value) in rows {
                    encoder.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(value, None)?;
                }
            }
            Self::Gauge(rows) => {
                for (labels, value) in rows {
                    encoder.encode_family(labels)?.encode_gauge(value)?;
                }
            }
            Self::Histogram(rows) => {
                for (labels, counts, sum_micros) in rows {
                    let bounds = LATENCY_BOUNDS_MICROS.iter().map(|bound| micros_to_seconds(*bound));
                    let buckets: Vec<(f64, u64)> =
                        bounds.chain([f64::INFINITY]).zip(counts.iter().copied()).collect();
                    let count = counts.iter().sum();
                    let sum = micros_to_seconds(*sum_micros);
                    encoder
                        .encode_family(labels)?
                        .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                }
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        match self {
            Self::Counter(_) => MetricType::Counter,
            Self::Gauge(_) => MetricType::Gauge,
            Self::Histogram(_) => MetricType::Histogram,
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a metric's value is a float; 2^53 microseconds are 285 years"
)]
fn micros_to_seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}
