//! The page `/metrics`: adds up the threads' counters and renders them.

use super::metrics_text::{self, Family, Format, Kind, Labels, seconds, whole};
use crate::coordinator::{PeerStatus, Shared};
use crate::machine::{self, DiskSpace, Process};
use crate::metrics::{CallKind, LatencyCounts, Operation, STATUSES, StoreMetrics, ThreadMetrics};
use crate::peer::{PeerAuth, PeerAuthMode, Proven};
use crate::replica::{EngineStats, ReclaimState, StoreState};
use crate::security::{Refused, Security};
use crate::spans::{Sent, Spans};
use crate::supervise::{Part, Supervisor};
use crate::tls::Tls;
use crate::worker::{Pool, Pools};
use kvorum_core::Version;
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
    /// Traces for a collector.
    pub spans: &'a Spans,
    /// Its TLS; none without.
    pub tls: Option<&'a Tls>,
    /// The cluster as this node sees it.
    pub cluster: &'a Shared,
    /// Keys in the store, tombstones included; none if they are not counted.
    pub keys: Option<u64>,
    /// The figures of this process.
    pub process: Process,
    /// The space of the file system of the data directory, if it can be read.
    pub disk: Option<DiskSpace>,
}

/// Renders a scrape.
pub(super) fn render(scrape: &Scrape<'_>, format: Format) -> String {
    metrics_text::render(&families(scrape), format)
}

fn sum(threads: &[Arc<ThreadMetrics>], of: impl Fn(&ThreadMetrics) -> &AtomicU64) -> u64 {
    threads.iter().map(|thread| of(thread).load(Ordering::Relaxed)).sum()
}

fn one(value: u64) -> Vec<(Labels, f64)> {
    vec![(Labels::new(), whole(value))]
}

fn wholes(rows: impl IntoIterator<Item = (Labels, u64)>) -> Vec<(Labels, f64)> {
    rows.into_iter().map(|(labels, count)| (labels, whole(count))).collect()
}

fn real(value: f64) -> Vec<(Labels, f64)> {
    vec![(Labels::new(), value)]
}

#[expect(clippy::too_many_lines, reason = "a table of all metrics reads best in one piece")]
fn families(scrape: &Scrape<'_>) -> Vec<Family> {
    let mut families = Vec::new();
    let mut family = |name, kind, help| families.push(Family { name, help, kind });
    let (requests, latencies) = requests(scrape.threads);
    family("kvorum_requests_total", Kind::Counter(requests), "Requests answered, by operation and status");
    family(
        "kvorum_request_duration_seconds",
        Kind::Histogram(latencies),
        "Time from a request's head to its answer, by operation",
    );
    let threads = scrape.threads;
    let counters = [
        (
            "kvorum_log_lines_dropped_total",
            kvorum_output::lines_dropped(),
            "Lines of this process's log that could not be written",
        ),
        ("kvorum_panics_total", crate::log::panic_count(), "Panics in this process"),
        ("kvorum_received_bytes_total", sum(threads, |t| &t.bytes_in), "Bytes read from connections"),
        ("kvorum_sent_bytes_total", sum(threads, |t| &t.bytes_out), "Bytes written to connections"),
        (
            "kvorum_connections_accepted_total",
            sum(threads, |t| &t.connections_accepted),
            "Connections accepted",
        ),
        (
            "kvorum_connections_refused_total",
            sum(threads, |t| &t.connections_refused),
            "Connections turned away over the cap",
        ),
        (
            "kvorum_connections_timed_out_total",
            sum(threads, |t| &t.connections_timed_out),
            "Connections cut because a wait took longer than its bound",
        ),
        ("kvorum_range_records_total", sum(threads, |t| &t.range_records), "Records sent in ranges"),
        ("kvorum_commit_groups_total", scrape.store.groups.load(Ordering::Relaxed), "Groups committed"),
        (
            "kvorum_commit_records_total",
            scrape.store.records.load(Ordering::Relaxed),
            "Records written in groups",
        ),
    ];
    for (name, value, help) in counters {
        family(name, Kind::Counter(one(value)), help);
    }
    let engine = &scrape.engine;
    let counters = [
        ("kvorum_purged_records_total", scrape.purged, "Records that the sweeper removed or made tombstones"),
        ("kvorum_removed_records_total", scrape.store.removed.load(Ordering::Relaxed), "Records removed"),
        (
            "kvorum_conflicting_records_total",
            scrape.store.conflicts.load(Ordering::Relaxed),
            "Received records that differ from the stored record of the same version; should be 0",
        ),
        (
            "kvorum_reclaims_total",
            scrape.reclaimer.passes(),
            "Passes that reclaimed the disk space of removed records",
        ),
        (
            "kvorum_reclaimed_bytes_total",
            scrape.reclaimer.bytes(),
            "Bytes of disk space reclaimed from tables",
        ),
        ("kvorum_block_cache_hits_total", engine.cache_hits, "Blocks served from the cache"),
        ("kvorum_block_cache_misses_total", engine.cache_misses, "Blocks read from files"),
        ("kvorum_compactions_total", engine.compactions_completed, "Compactions completed"),
        ("kvorum_index_flushes_total", engine.flushes, "Flushes of rows of the index into its tree"),
    ];
    for (name, value, help) in counters {
        family(name, Kind::Counter(one(value)), help);
    }
    let compacting = Kind::Counter(real(seconds(engine.compaction_micros)));
    family("kvorum_compaction_seconds_total", compacting, "Time spent in compactions");
    let gauges = [
        ("kvorum_connections_open", scrape.connections as u64, "Connections open now"),
        ("kvorum_body_in_flight_bytes", scrape.body_bytes, "Bytes of request bodies in memory"),
        (
            "kvorum_commit_queue_requests",
            scrape.commit_queue as u64,
            "Writes that wait for the commit thread",
        ),
        (
            "kvorum_commit_group_records_max",
            scrape.store.group_records_max.load(Ordering::Relaxed),
            "The largest group so far",
        ),
        ("kvorum_memtable_bytes", engine.memtable_bytes, "Bytes in memtables"),
        ("kvorum_journal_bytes", engine.journal_bytes, "Bytes of journals on disk"),
        ("kvorum_journals", engine.journal_count, "Journals on disk"),
        ("kvorum_store_disk_bytes", engine.disk_bytes, "Bytes of tables and journals on disk"),
        ("kvorum_tables", engine.table_count, "Tables on disk"),
        ("kvorum_block_cache_bytes", engine.cache_bytes, "Bytes in the block cache"),
        (
            "kvorum_reclaim_backlog_records",
            scrape.reclaimer.waiting(),
            "Removed records that still take space, as far as is known",
        ),
        (
            "kvorum_index_unflushed_bytes",
            engine.unflushed_bytes,
            "Bytes of rows of the index that are not in its tree yet",
        ),
        ("kvorum_compactions_running", engine.compactions_active, "Compactions that run now"),
        ("kvorum_flushes_outstanding", engine.flushes_outstanding, "Flushes that wait or run"),
    ];
    for (name, value, help) in gauges {
        family(name, Kind::Gauge(one(value)), help);
    }
    let pools = |count: fn(&Pool) -> usize| {
        let pools = [("serving", &scrape.pools.serving), ("background", &scrape.pools.background)];
        let row = |(name, pool): (&str, _)| (vec![("pool", name.to_owned())], count(pool) as u64);
        Kind::Gauge(wholes(pools.map(row)))
    };
    let parts = |of: fn((u64, u64)) -> u64| {
        let row = |part: &Part| (vec![("part", part.name().to_owned())], of(scrape.supervisor.counts(*part)));
        wholes(Part::ALL.iter().map(row))
    };
    family(
        "kvorum_parts_running",
        Kind::Gauge(parts(|(running, _)| running)),
        "Threads and tasks that run as long as the node, by name",
    );
    family(
        "kvorum_part_restarts_total",
        Kind::Counter(parts(|(_, restarts)| restarts)),
        "Threads and tasks that ended unexpectedly and were started again",
    );
    family("kvorum_pool_queue_jobs", pools(Pool::queue_len), "Jobs that wait for a worker pool, by pool");
    family("kvorum_pool_busy_threads", pools(Pool::busy_count), "Worker threads that run a job, by pool");
    let histogram = |counts: LatencyCounts| Kind::Histogram(vec![(Labels::new(), counts)]);
    family(
        "kvorum_commit_duration_seconds",
        histogram(scrape.store.commit.read()),
        "Time to store one group, sync included",
    );
    family(
        "kvorum_sync_duration_seconds",
        histogram(scrape.store.sync.read()),
        "Time of commits and syncs that reached the disk",
    );
    let state = scrape.store_state.name();
    let stated = |name, value: &str, of: &'static [&'static str]| {
        let mut rows: Vec<(Labels, u64)> =
            of.iter().map(|known| (vec![(name, (*known).to_owned())], u64::from(*known == value))).collect();
        if !of.contains(&value) {
            rows.push((vec![(name, value.to_owned())], 1));
        }
        Kind::Gauge(wholes(rows))
    };
    family("kvorum_store_state", stated("state", state, &StoreState::NAMES), "1 for the store's state");
    family(
        "kvorum_sweeper_state",
        stated("state", scrape.sweeper, &["idle", "busy", "throttled"]),
        "1 for what the sweeper does",
    );
    family("kvorum_durability", stated("mode", scrape.durability, &[]), "1 for the active durability mode");
    families.extend(tokens(scrape.security));
    families.push(traces(scrape.spans));
    families.extend(proofs(&scrape.cluster.peering.auth));
    families.extend(scrape.tls.map(tls).unwrap_or_default());
    families.extend(cluster(scrape));
    families.extend(process(scrape));
    families
}

/// The metrics of traces.
fn traces(spans: &Spans) -> Family {
    let Sent { sent, lost } = spans.counts();
    let results = [("sent", sent), ("lost", lost)];
    let counts = results.map(|(result, count)| (vec![("result", result.to_owned())], count));
    Family {
        name: "kvorum_traces_total",
        help: "Traced requests that the collector of traces took (sent), and that it did not or that found the queue full (lost)",
        kind: Kind::Counter(wholes(counts)),
    }
}

/// The metrics of tokens.
fn tokens(security: &Security) -> Vec<Family> {
    let mut families = Vec::new();
    let mut family = |name, kind, help| families.push(Family { name, help, kind });
    let mode = security.mode();
    let mode_row = vec![(vec![("mode", mode.name().to_owned())], 1)];
    family("kvorum_auth_mode", Kind::Gauge(wholes(mode_row)), "1 for the mode of --auth");
    if security.audit().is_open() {
        let lost = Kind::Counter(one(security.audit().lost()));
        family("kvorum_audit_lines_lost_total", lost, "Lines of the audit log that could not be written");
    }
    let refused = security.refused().into_iter().map(|Refused { reason, token, count }| {
        (vec![("reason", reason.to_owned()), ("token", token.to_string())], count)
    });
    family(
        "kvorum_requests_not_allowed_total",
        Kind::Counter(wholes(refused)),
        "Requests that their token does not allow, by reason and the token's id (empty if the client proved none): \
         refused with --auth on, counted with warn",
    );
    family("kvorum_tokens", Kind::Gauge(one(security.token_count() as u64)), "Tokens that the node knows");
    let (loads, failures) = security.loads();
    family(
        "kvorum_token_file_loads_total",
        Kind::Counter(one(loads)),
        "Versions of the token file that were taken",
    );
    family(
        "kvorum_token_file_failures_total",
        Kind::Counter(one(failures)),
        "Looks at the token file that found it missing or not valid, so that the last good tokens stayed",
    );
    families
}

/// The metrics of TLS.
fn tls(tls: &Tls) -> Vec<Family> {
    let mut families = Vec::new();
    let mut family = |name, kind, help| families.push(Family { name, help, kind });
    let mode = vec![(vec![("mode", tls.mode().name().to_owned())], 1)];
    family("kvorum_tls_mode", Kind::Gauge(wholes(mode)), "1 for the mode of --tls");
    family(
        "kvorum_tls_certificate_expiry_timestamp_seconds",
        Kind::Gauge(one(u64::try_from(tls.not_after()).unwrap_or_default())),
        "The last second at which the node's certificate and those that it comes with hold",
    );
    let (done, failed) = tls.handshakes();
    let outcomes = [("done", done), ("failed", failed)];
    family(
        "kvorum_tls_handshakes_total",
        Kind::Counter(wholes(
            outcomes.map(|(outcome, count)| (vec![("outcome", outcome.to_owned())], count)),
        )),
        "Handshakes of TLS with those who connected",
    );
    family(
        "kvorum_tls_file_loads_total",
        Kind::Counter(one(tls.generation())),
        "Sets of certificates and keys that were taken",
    );
    family(
        "kvorum_tls_file_failures_total",
        Kind::Counter(one(tls.load_failures())),
        "Looks at the certificates and keys that found them missing or not valid, so that the last good ones stayed",
    );
    families
}

/// The metrics of what peers prove; only the mode while they need not.
fn proofs(auth: &PeerAuth) -> Vec<Family> {
    let mut families = Vec::new();
    let mut family = |name, kind, help| families.push(Family { name, help, kind });
    let mode = auth.mode();
    let mode_row = vec![(vec![("mode", mode.name().to_owned())], 1)];
    family("kvorum_peer_auth_mode", Kind::Gauge(wholes(mode_row)), "1 for the mode of --peer-auth");
    if mode == PeerAuthMode::Off {
        return families;
    }
    let Proven { first, later, certificate, none } = auth.proven();
    let proven = [("first", first), ("later", later), ("certificate", certificate), ("none", none)];
    family(
        "kvorum_peer_connections_proven",
        Kind::Gauge(wholes(proven.map(|(secret, count)| (vec![("secret", secret.to_owned())], count)))),
        "Open connections of peers by the secret that they have proved: the first of this node's file, a later one, a certificate instead, none",
    );
    let by_reason = |counts: &mut dyn Iterator<Item = (&'static str, u64)>| {
        wholes(counts.map(|(reason, count)| (vec![("reason", reason.to_owned())], count)))
    };
    family(
        "kvorum_peer_handshakes_refused_total",
        Kind::Counter(by_reason(&mut auth.refused())),
        "Connections of peers that were refused for lack of a proof, by reason",
    );
    family(
        "kvorum_peer_handshakes_unproven_total",
        Kind::Counter(by_reason(&mut auth.unproven())),
        "Connections of peers that were accepted without a proof (--peer-auth prefer), by the reason for which require \
         would refuse them",
    );
    family(
        "kvorum_peer_secrets",
        Kind::Gauge(one(auth.secrets().len() as u64)),
        "Peer secrets that the node accepts",
    );
    let (loads, failures) = auth.loads();
    family(
        "kvorum_peer_secret_file_loads_total",
        Kind::Counter(one(loads)),
        "Versions of the file of peer secrets that were taken",
    );
    family(
        "kvorum_peer_secret_file_failures_total",
        Kind::Counter(one(failures)),
        "Looks at the file of peer secrets that found it missing or not valid, so that the last good secrets stayed",
    );
    families
}

/// A reader of one figure of a peer.
type Of = fn(&PeerStatus) -> f64;

/// The counters of a node's work in its cluster: name, count, help.
fn counters(shared: &Shared) -> Vec<(&'static str, u64, &'static str)> {
    let (metrics, background) = (&shared.metrics, &shared.background);
    let (anti_entropy, damage_repair, gc) =
        (&background.anti_entropy.progress, &background.damage_repair, &background.tombstone_gc);
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    vec![
        (
            "kvorum_writes_without_quorum_total",
            read(&metrics.writes_failed),
            "Writes that found too few replicas",
        ),
        (
            "kvorum_reads_without_quorum_total",
            read(&metrics.reads_failed),
            "Reads that found too few replicas",
        ),
        (
            "kvorum_writes_restamped_total",
            read(&metrics.restamped),
            "Further versions that writes needed after their first",
        ),
        (
            "kvorum_writes_asked_first_total",
            read(&metrics.asked_first),
            "Writes that asked for the newest version first",
        ),
        ("kvorum_hedges_total", read(&metrics.hedges), "Reads that asked one more replica"),
        ("kvorum_hints_lost_total", read(&metrics.hints_lost), "Hints that could not be stored"),
        (
            "kvorum_epoch_refusals_total",
            read(&metrics.epochs_refused),
            "Requests of peers that were refused because they were of another epoch",
        ),
        ("kvorum_repair_rounds_total", read(&anti_entropy.rounds), "Comparisons with other replicas"),
        (
            "kvorum_repair_pulled_records_total",
            read(&anti_entropy.pulled),
            "Records that anti-entropy pulled",
        ),
        (
            "kvorum_outlived_dropped_records_total",
            read(&anti_entropy.outlived_dropped),
            "Records of an older store, dropped because the replicas that should have them have purged them",
        ),
        (
            "kvorum_kept_in_doubt_records_total",
            read(&anti_entropy.kept_in_doubt),
            "Records kept although other nodes have purged beyond them: all their replicas are older copies, and \
             some records may have been deleted since",
        ),
        (
            "kvorum_repair_transfers_total",
            read(&anti_entropy.bulk_syncs),
            "Bulk syncs: partitions or stores streamed from another node, because this one lacked most of them",
        ),
        (
            "kvorum_records_healed_total",
            read(&damage_repair.rows_repaired),
            "Damaged records replaced by another node's copy",
        ),
        (
            "kvorum_stores_set_aside_total",
            read(&damage_repair.stores_set_aside),
            "Damaged stores set aside while the node ran",
        ),
        ("kvorum_scrubs_total", read(&damage_repair.walks), "Scrubs of the whole store"),
        (
            "kvorum_scrubbed_bytes_total",
            read(&damage_repair.bytes_walked),
            "Bytes of keys and values read by scrubs",
        ),
        ("kvorum_tombstone_gc_rounds_total", gc.rounds(), "Tombstone GC rounds that this node led"),
        (
            "kvorum_tombstone_gc_partitions_total",
            read(&gc.released),
            "Partitions that tombstone GC rounds released for purging",
        ),
        (
            "kvorum_purged_dead_records_total",
            read(&gc.purged),
            "Rows of deleted and expired keys that tombstone GC removed",
        ),
    ]
}

/// Counters of ballots.
fn ballots(shared: &Shared) -> [(&'static str, u64, &'static str); 6] {
    let read = |value: &std::sync::atomic::AtomicU64| value.load(Ordering::Relaxed);
    let metrics = &shared.metrics;
    [
        (
            "kvorum_conditional_done_total",
            read(&metrics.conditional_done),
            "Conditional writes, counters and appends that were done",
        ),
        (
            "kvorum_conditional_failed_total",
            read(&metrics.conditional_failed),
            "Conditional writes whose condition did not hold, and counters and appends that did not fit the value",
        ),
        (
            "kvorum_conditional_unknown_total",
            read(&metrics.conditional_unknown),
            "Conditional writes that ended with an error",
        ),
        ("kvorum_ballots_total", read(&metrics.ballots), "Ballots begun, also those of further tries"),
        (
            "kvorum_ballots_of_plain_total",
            read(&metrics.ballots_of_plain),
            "Plain writes that met a ballot and went on by ballots",
        ),
        (
            "kvorum_ballots_recovered_total",
            read(&metrics.ballots_recovered),
            "Reads and repairs that a promise kept from writing a record",
        ),
    ]
}

/// The metrics of the cluster.
fn cluster(scrape: &Scrape<'_>) -> Vec<Family> {
    let mut families = Vec::new();
    let mut family = |name, kind, help| families.push(Family { name, help, kind });
    let (shared, metrics) = (scrape.cluster, &scrape.cluster.metrics);
    for (name, count, help) in counters(shared).into_iter().chain(ballots(shared)) {
        family(name, Kind::Counter(one(count)), help);
    }
    family(
        "kvorum_promises_held",
        Kind::Gauge(one(shared.replica.promises().len() as u64)),
        "Keys for which this store has promised a ballot that no record has reached",
    );
    family(
        "kvorum_conditional_queue_max",
        Kind::Gauge(one(metrics.conditional_queue_max.load(Ordering::Relaxed))),
        "The most conditional writes of one key that were under way at once on one thread, since the start",
    );
    family(
        "kvorum_peer_frame_bytes",
        Kind::Gauge(one(shared.peering.limits.memory_used())),
        "Bytes of incomplete frames from peers and of replies that peers have not read",
    );
    family(
        "kvorum_timestamps_refused_total",
        Kind::Counter(one(shared.timestamps.refused())),
        "Timestamps of peers or of the store too far ahead of this node's clock (--clock-offset-limit)",
    );
    family(
        "kvorum_clock_off",
        Kind::Gauge(one(u64::from(shared.timestamps.stands_down()))),
        "Whether this node's clock is too far from those of a majority to take writes (--clock-offset-limit)",
    );
    let damaged = shared.replica.damage().row_count() as u64;
    family("kvorum_damaged_records", Kind::Gauge(one(damaged)), "Damaged records that are not repaired yet");
    let is_damaged = u64::from(shared.replica.damage().store().is_some());
    family(
        "kvorum_store_damaged",
        Kind::Gauge(one(is_damaged)),
        "1 while the store is damaged beyond single records",
    );
    let label = |name, value: &str| vec![(name, value.to_owned())];
    let reasons = [("before-answer", &metrics.read_repairs), ("late-reply", &metrics.late_repairs)];
    let repairs = reasons.map(|(why, count)| (label("reason", why), count.load(Ordering::Relaxed)));
    family("kvorum_read_repairs_total", Kind::Counter(wholes(repairs)), "Records that reads wrote back");
    let causes = ["write", "hint", "read-repair"];
    let applied = causes.iter().zip(&metrics.applied);
    let applied = applied.map(|(why, count)| (label("cause", why), count.load(Ordering::Relaxed)));
    family(
        "kvorum_peer_applies_total",
        Kind::Counter(wholes(applied)),
        "Records that peers asked this replica to apply",
    );
    let votes = u64::from(shared.cluster.votes());
    family("kvorum_store_votes", Kind::Gauge(one(votes)), "1 when this node's store is quorum-eligible");
    let configuration = shared.cluster.configuration();
    let (epoch, level) = (configuration.epoch.0, configuration.feature_level.into());
    family("kvorum_epoch", Kind::Gauge(one(epoch)), "Epoch of the configuration that this node works with");
    family("kvorum_feature_level", Kind::Gauge(one(level)), "Feature level of the cluster");
    if let Some(oldest) = shared.background.tombstone_gc.oldest_watermark() {
        let agreed = Version::from_words(oldest.agreed, 0).millis().0;
        family(
            "kvorum_agreed_until_timestamp_seconds",
            Kind::Gauge(real(seconds(agreed.saturating_mul(1000)))),
            "The instant up to which all replicas agree in every partition; 0 while that is not known",
        );
        let held_back = oldest.held_by.map(|(node, _)| (label("node", shared.cluster.url_of(node)), 1));
        family(
            "kvorum_agreement_held_back",
            Kind::Gauge(wholes(held_back)),
            "1 for the node that holds back the oldest partition",
        );
    }
    if let Some(keys) = scrape.keys {
        family("kvorum_store_keys", Kind::Gauge(one(keys)), "Keys in the store, tombstones included");
    }
    families.extend(peers(shared));
    families
}

/// The metrics of each peer.
fn peers(shared: &Shared) -> Vec<Family> {
    let mut families = Vec::new();
    let mut family = |name, kind, help| families.push(Family { name, help, kind });
    let label = |value: &str| vec![("peer", value.to_owned())];
    let peers = PeerStatus::of_all(shared);
    let per_peer = |of: Of| peers.iter().map(|peer| (label(&peer.url), of(peer))).collect::<Vec<_>>();
    let gauges: [(_, Of, _); 9] = [
        ("kvorum_peer_up", |p| f64::from(u8::from(p.state == "up")), "1 when a peer answers"),
        ("kvorum_peer_votes", |p| f64::from(u8::from(p.votes)), "1 when a peer's store is quorum-eligible"),
        ("kvorum_peer_calls_in_flight", |p| whole(p.in_flight), "Calls that wait for a reply"),
        ("kvorum_peer_latency_mean_seconds", |p| p.latency_mean.as_secs_f64(), "Mean time of a read"),
        ("kvorum_peer_latency_p95_seconds", |p| p.latency_p95.as_secs_f64(), "95 % of reads take less"),
        (
            "kvorum_peer_clock_offset_seconds",
            |p| {
                p.clock_offset.map_or(0.0, |offset| {
                    Duration::from_millis(offset.millis.unsigned_abs())
                        .as_secs_f64()
                        .copysign(if offset.millis < 0 { -1.0 } else { 1.0 })
                })
            },
            "How far a peer's clock is ahead of this node's; below 0 if it is late; 0 while it is not known",
        ),
        ("kvorum_hints_waiting", |p| whole(p.hints.count), "Hints kept for a peer"),
        ("kvorum_hints_waiting_bytes", |p| whole(p.hints.bytes), "Bytes of hints kept for a peer"),
        (
            "kvorum_partitions_to_repair",
            |p| whole(p.hints.gaps),
            "Partitions of a peer for which a hint was dropped",
        ),
    ];
    for (name, of, help) in gauges {
        family(name, Kind::Gauge(per_peer(of)), help);
    }
    let counters: [(_, Of, _); 9] = [
        ("kvorum_peer_calls_total", |p| whole(p.counts.calls), "Calls that were sent"),
        ("kvorum_peer_calls_not_sent_total", |p| whole(p.counts.calls_not_sent), "Calls that were not sent"),
        ("kvorum_peer_calls_lost_total", |p| whole(p.counts.calls_lost), "Calls lost with a connection"),
        (
            "kvorum_peer_calls_timed_out_total",
            |p| whole(p.counts.calls_timed_out),
            "Calls that were not answered in time",
        ),
        ("kvorum_peer_calls_refused_total", |p| whole(p.counts.calls_refused), "Calls that were refused"),
        ("kvorum_peer_connects_total", |p| whole(p.counts.connects), "Connections that came up"),
        ("kvorum_peer_received_bytes_total", |p| whole(p.counts.bytes_in), "Bytes read from a peer"),
        ("kvorum_peer_sent_bytes_total", |p| whole(p.counts.bytes_out), "Bytes written to a peer"),
        ("kvorum_hints_delivered_total", |p| whole(p.hints_delivered), "Hints delivered to a peer"),
    ];
    for (name, of, help) in counters {
        family(name, Kind::Counter(per_peer(of)), help);
    }
    let mut calls = Vec::new();
    for kind in CallKind::ALL {
        for (peer, latencies) in peers.iter().zip(shared.peering.call_latencies(kind)) {
            calls.push((vec![("peer", peer.url.clone()), ("kind", kind.name().to_owned())], latencies));
        }
    }
    family(
        "kvorum_peer_call_duration_seconds",
        Kind::Histogram(calls),
        "Time from sending a call to a peer to its answer, by peer and kind; calls without an answer are not in it",
    );
    families
}

type Requests = Vec<(Labels, f64)>;
type Latencies = Vec<(Labels, LatencyCounts)>;

/// Requests by operation and status, and latencies by operation. Statuses that are usual for an operation are there
/// from the start, the others once they have occurred.
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
            if count > 0 || operation.usual_statuses().contains(&status) {
                let status = if status == 0 { "unlisted".to_owned() } else { status.to_string() };
                let mut labels = labels();
                labels.push(("status", status));
                counts.push((labels, whole(count)));
            }
        }
        let mut total = LatencyCounts::default();
        let histograms = threads.iter().filter_map(|thread| thread.latencies.get(row));
        histograms.for_each(|histogram| total.add(histogram));
        latencies.push((labels(), total));
    }
    (counts, latencies)
}

/// The metrics of the process, by the names that Prometheus' own libraries give them, of the build and of the disk.
fn process(scrape: &Scrape<'_>) -> Vec<Family> {
    let mut families = Vec::new();
    let mut family = |name, kind, help| families.push(Family { name, help, kind });
    let Process { cpu, resident_bytes, virtual_bytes, threads, fds_open, fds_max, started } = scrape.process;
    let seconds_of = |duration: Option<Duration>| duration.map(|duration| duration.as_secs_f64());
    if let Some(cpu) = seconds_of(cpu) {
        let help = "Total user and system CPU time spent in seconds";
        family("process_cpu_seconds_total", Kind::Counter(real(cpu)), help);
    }
    let gauges = [
        ("process_resident_memory_bytes", resident_bytes.map(whole), "Resident memory size in bytes"),
        ("process_virtual_memory_bytes", virtual_bytes.map(whole), "Virtual memory size in bytes"),
        ("process_threads", threads.map(whole), "Number of OS threads in the process"),
        ("process_open_fds", fds_open.map(whole), "Number of open file descriptors"),
        ("process_max_fds", fds_max.map(whole), "Maximum number of open file descriptors"),
        (
            "process_start_time_seconds",
            seconds_of(started),
            "Start time of the process since unix epoch in seconds",
        ),
        (
            "kvorum_disk_free_bytes",
            scrape.disk.map(|disk| whole(disk.free)),
            "Free space of the file system of the data directory",
        ),
        (
            "kvorum_disk_size_bytes",
            scrape.disk.map(|disk| whole(disk.size)),
            "Size of the file system of the data directory",
        ),
    ];
    for (name, value, help) in gauges {
        if let Some(value) = value {
            family(name, Kind::Gauge(real(value)), help);
        }
    }
    let build = vec![
        ("version", machine::VERSION.to_owned()),
        ("commit", machine::COMMIT.to_owned()),
        ("rustc", machine::RUSTC.to_owned()),
    ];
    let help =
        "1, with the version, the commit (empty if the build was told none) and the compiler of this build";
    family("kvorum_build_info", Kind::Gauge(vec![(build, 1.0)]), help);
    families
}
