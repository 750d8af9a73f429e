//! The plan: all decisions of a seed, as plain data, made before anything runs.
//!
//! Each part draws from a stream of its own, so that a new kind of fault does not change the others. Kinds of
//! fault are on or off by seed ("swarm testing"): a run with every kind at once finds fewer bugs than many
//! runs with a few kinds each.
//!
//! Faults stay within the contract's preconditions, so that every run is judged in full:
//! - at most one node of a seed has its disk wiped, rotten or replaced by an older one, so writes with ACK >=
//!   2 must survive;
//! - a sync fails only with `always`: with the other modes it is not known which writes were lost when;
//! - clocks are either all within [`CLOCK_ERROR`] or have no known bound, and then no TTL is judged;
//! - a clock that is wrong among others is right when its node starts (see `docs/dev/faults-found.md`, what
//!   is left);
//! - clients' own links are never cut, so that a node is the cause of every missing answer.
//!
//! After `length` all faults end and load stops; within `settle` all nodes must have converged.

mod cut_off_members;
mod faults;
mod keys;
mod lost_answers;
mod members;
mod restarted_copies;
mod restored;
mod stage;
mod stranded;

pub use keys::nodes_by_key;

use crate::fault::{Fault, FaultEvent, FaultKind};
use crate::history::AckFrom;
use crate::seed::{Seed, Stream};
use bytes::Bytes;
use kvorum_server::replica::DurabilityMode;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// How far a clock may be off, either way, in seeds with good clocks.
pub const CLOCK_ERROR: Duration = Duration::from_millis(20);
/// How far ahead a timestamp may be where clocks have no known bound: further than all jumps of a plan
/// together, so that no node stops taking writes because of its clock.
const WILD_CLOCK_LIMIT: Duration = Duration::from_hours(24);
/// The same limit with good clocks: a seed is short, and expired records are destroyed after twice the limit.
const CLOCK_LIMIT: Duration = Duration::from_secs(1);
/// The same limit where one clock is wrong for a while: it leaves room for errors that a node must tolerate.
const WRONG_CLOCK_LIMIT: Duration = Duration::from_secs(3);
/// The same limit in a cluster into which a backup is restored: its records are from a run of minutes.
const RESTORE_CLOCK_LIMIT: Duration = Duration::from_mins(5);
/// The largest error of one clock while the others are right: all TTLs are shorter.
const WRONG_CLOCK_MAX: Duration = Duration::from_hours(24 * 9);
/// The longest jump of a clock.
pub const JUMP_MAX: Duration = Duration::from_hours(1);
/// The longest that one fault lasts.
pub const FAULT_MAX: Duration = Duration::from_secs(8);

/// The latency where writes are to come late: a ballot is between its promise and its record for most of the time.
const LATE_LATENCY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(80));

/// Partitions of a cluster, as a power of two.
pub(crate) const PARTITION_BITS: u8 = 12;
/// The operations of a client, each with its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    /// GETs.
    pub get: u64,
    /// HEADs.
    pub head: u64,
    /// PUTs.
    pub put: u64,
    /// DELETEs.
    pub delete: u64,
    /// Ranges.
    pub range: u64,
}

/// A part of each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The length of a period.
    pub period: Duration,
    /// When the turn begins in it.
    pub from: Duration,
    /// When it ends.
    pub until: Duration,
    /// The operations meanwhile.
    pub mix: Mix,
}

impl Turn {
    /// How long after `now` the turn goes on or begins; zero while it lasts.
    pub fn wait(&self, now: Duration) -> Duration {
        let nanos = u64::try_from(now.as_nanos() % self.period.as_nanos().max(1)).unwrap_or(0);
        let into = Duration::from_nanos(nanos);
        if into < self.until {
            self.from.saturating_sub(into)
        } else {
            (self.period + self.from).saturating_sub(into)
        }
    }
}

/// One client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientPlan {
    /// Its operations.
    pub mix: Mix,
    /// When it acts, and how; empty: always, by its mix.
    pub turns: Vec<Turn>,
    /// Its writes in a hundred that have a condition, if not as the plan says.
    pub conditions: Option<u64>,
    /// The longest pause between an answer and the next request; the shortest is a millisecond, so that two
    /// operations of one client never end and begin at one instant.
    pub pause_max: Duration,
    /// The only node that it asks; `None` for all nodes.
    pub home: Option<u16>,
}

/// One key and its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPlan {
    /// Its bytes.
    pub key: Bytes,
    /// How often it is chosen, against the others.
    pub weight: u64,
    /// The replicas that its requests name, one at random each time; empty for the default.
    pub replicas: Vec<AckFrom>,
    /// The replicas that its reads name, if they name others.
    pub reads: Vec<AckFrom>,
}

impl KeyPlan {
    /// The replicas that a read or a write of the key names.
    pub fn replicas_of(&self, is_read: bool) -> &[AckFrom] {
        if is_read && !self.reads.is_empty() { &self.reads } else { &self.replicas }
    }

    /// Whether all operations of the key overlap, those of the final reads included: only then are conditions judged
    /// against all of them.
    pub fn overlaps(&self, default: AckFrom) -> bool {
        let all: Vec<AckFrom> = self.replicas.iter().chain(&self.reads).copied().chain([default]).collect();
        all.iter().all(|one| all.iter().all(|other| one.overlaps(*other)))
    }
}

/// How many values have a TTL, and how long the TTLs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TtlPlan {
    /// PUTs in a hundred that have one.
    pub percent: u64,
    /// The shortest.
    pub min: Duration,
    /// The longest TTL that ends within the run, or soon after.
    pub max: Duration,
    /// The longest of the other TTLs, which half of them have; `None` where all end within the run or soon
    /// after.
    pub outliving_max: Option<Duration>,
}

/// A node's clock at the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockPlan {
    /// How far it is off.
    pub offset_millis: i64,
    /// Microseconds that it gains per second.
    pub drift_ppm: i32,
}

/// Backups of all nodes, taken one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backups {
    /// Which node's disk is copied at which time, in that order.
    pub taken: Vec<(u16, Duration)>,
    /// The nodes whose disks are copied after the cluster is at rest. These nodes have sealed further than
    /// the others, also for partitions of which they hold nothing.
    pub last: Vec<u16>,
}

/// A cut of all nodes, as for a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutPlan {
    /// When it begins.
    pub at: Duration,
    /// How far its timestamp is ahead of all clocks.
    pub ahead: Duration,
    /// The longest pause between two orders.
    pub pause_max: Duration,
}

/// All decisions of a seed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a property of a seed of its own")]
pub struct Plan {
    /// The seed.
    pub seed: Seed,
    /// Nodes in the cluster at the beginning, 1 to 7.
    pub nodes: u16,
    /// Machines besides, which wait to join: numbered after the nodes.
    pub spares: u16,
    /// When replicas sync.
    pub durability: DurabilityMode,
    /// The shortest and the longest delay of a message while no fault is active.
    pub latency: (Duration, Duration),
    /// Each node's clock.
    pub clocks: Vec<ClockPlan>,
    /// The clients.
    pub clients: Vec<ClientPlan>,
    /// The keys.
    pub keys: Vec<KeyPlan>,
    /// Whether values have TTLs.
    pub ttl: Option<TtlPlan>,
    /// Writes in a hundred that have a condition.
    pub conditions: u64,
    /// Keys that are counters.
    pub counters: u16,
    /// The largest value.
    pub value_bytes_max: usize,
    /// Whether a comparison starts a bulk sync as soon as one partition lacks most of its records.
    pub transfers_early: bool,
    /// How long a member may be silent before a change goes on without it, where that is shorter than the node's default. The
    /// default is longer than faults last.
    pub away_after: Option<Duration>,
    /// Whether nodes prove a secret to each other.
    pub proves_peers: bool,
    /// How long load and faults last.
    pub length: Duration,
    /// How long convergence may take afterwards.
    pub settle: Duration,
    /// Copies of all disks that are put back at the end, when everything else has been judged.
    pub backups: Option<Backups>,
    /// Whether short partitions follow each other, so that some writes reach replicas between a promise and its record.
    pub has_late_writers: bool,
    /// Whether ballots are stranded between their promises and their records.
    pub strands_ballots: bool,
    /// Whether disks are lost and filled again while writes wait that they have confirmed.
    pub loses_answers: bool,
    /// Whether older copies of disks are started several times before another node answers.
    pub restarts_copies: bool,
    /// Whether a member is cut off with its clients while data moves.
    pub cuts_members_off: bool,
    /// Cuts that are taken under load. Most seeds have none.
    pub cuts: Vec<CutPlan>,
    /// Whether the last cut is restored into another cluster afterwards.
    pub is_restored: bool,
    /// Whether this is that other cluster.
    pub takes_backup: bool,
    /// The kinds of faults that this seed has.
    pub kinds: BTreeSet<FaultKind>,
    /// The faults, in the order in which they begin.
    pub faults: Vec<FaultEvent>,
}

impl Plan {
    /// The plan of `seed`; always the same one.
    pub fn of(seed: Seed) -> Self {
        let mut stream = seed.stream("plan");
        let nodes = [(1, 1), (1, 2), (8, 3), (3, 4), (5, 5), (1, 6), (2, 7)];
        let nodes = stream.weighted(&nodes).copied().unwrap_or(3);
        let interval = Duration::from_millis(stream.between(20, 500));
        let durability =
            [(6, DurabilityMode::Always), (2, DurabilityMode::Interval(interval)), (2, DurabilityMode::Os)];
        let durability = stream.weighted(&durability).copied().unwrap_or(DurabilityMode::Always);
        let length = stream.duration(Duration::from_secs(15), Duration::from_secs(40));
        let latency_min = Duration::from_millis(stream.between(0, 2));
        let latency_max = latency_min + Duration::from_millis(stream.between(1, 20));
        let value_bytes_max = usize::from(stream.between_u16(24, 2000));
        // Many clients on very few keys: writes and reads that run concurrently on the same keys, which is
        // rare elsewhere. Half of these seeds have no faults.
        let mut contention = seed.stream("contention");
        let (is_contended, is_calm) = (contention.percent(30), contention.percent(50));
        let mut kinds = faults::kinds(&mut seed.stream("kinds"), nodes, durability);
        if is_contended && is_calm {
            kinds.clear();
        }
        let mut late = seed.stream("late writers");
        let is_late = is_contended && is_calm && late.percent(50);
        let (nodes, length) = if is_late { (3, 4 * length) } else { (nodes, length) };
        if is_late {
            kinds = BTreeSet::from([FaultKind::Partition]);
        }
        let mut faults = if is_late {
            faults::short_faults(&mut late, nodes, length)
        } else {
            faults::faults(&mut seed.stream("faults"), nodes, length, &kinds)
        };
        faults.extend(faults::last_older_disk(length, &faults));
        let shifts = faults::shifts(&mut seed.stream("shifts"), nodes, &faults);
        kinds.extend(shifts.iter().map(|event| event.kind));
        faults.extend(shifts);
        if kinds.contains(&FaultKind::CrashPoint) {
            let led_to = faults::led_to(&mut seed.stream("crash points"), nodes, length, &faults);
            faults.extend(led_to);
        }
        let mut peer_auth = seed.stream("peer auth");
        let proves_peers = nodes > 1 && peer_auth.percent(33);
        if proves_peers && !(is_contended && is_calm) {
            let wrong = faults::wrong_secrets(&mut peer_auth, nodes, length);
            kinds.extend(wrong.iter().map(|event| event.kind));
            faults.extend(wrong);
        }
        let mut changing = seed.stream("changes");
        if changing.percent(50) {
            kinds.insert(FaultKind::Change);
            faults.extend(faults::changes(&mut changing, nodes, length));
            if kinds.contains(&FaultKind::CrashPoint) {
                faults.extend(faults::crashes_of_changes(&mut changing, nodes, length));
            }
        }
        faults.sort_by_key(|event| event.at);
        let mut plan = Self {
            seed,
            nodes,
            spares: 0,
            durability,
            latency: if is_late { LATE_LATENCY } else { (latency_min, latency_max) },
            clocks: clocks(&mut seed.stream("clocks"), nodes, &kinds),
            clients: clients(&mut seed.stream("clients"), nodes, is_contended),
            keys: if is_late {
                keys::late_keys(&mut late)
            } else {
                keys::keys(&mut seed.stream("keys"), nodes, &kinds, is_contended)
            },
            ttl: ttl(&mut seed.stream("ttl"), &kinds).filter(|_| !is_late),
            conditions: if is_late { 40 } else { conditions(&mut seed.stream("conditions")) },
            counters: counters(&mut seed.stream("counters")),
            value_bytes_max,
            has_late_writers: is_late,
            strands_ballots: false,
            loses_answers: false,
            restarts_copies: false,
            cuts_members_off: false,
            backups: backups(&mut seed.stream("backups"), nodes, length, &kinds),
            cuts: cuts(&mut seed.stream("cuts"), length),
            is_restored: false,
            takes_backup: false,
            transfers_early: seed.stream("transfers").percent(50),
            away_after: None,
            proves_peers,
            length,
            settle: Duration::from_secs(30),
            faults,
            kinds,
        };
        if is_contended && is_calm && !is_late {
            plan.act();
        }
        let mut members = seed.stream("members");
        let is_acted =
            plan.strands_ballots || plan.loses_answers || plan.restarts_copies || plan.cuts_members_off;
        let is_fit = nodes > 2 && !is_late && !is_acted && plan.backups.is_none();
        if is_fit && members.percent(35) {
            members::come_and_go(&mut plan, &mut members);
        }
        // Versions of a clock with no known bound may be refused there.
        plan.is_restored = !plan.cuts.is_empty() && plan.are_clocks_right();
        plan
    }

    /// Makes the plan one of those that act out what chance alone hardly meets, or leaves it as it is.
    fn act(&mut self) {
        let seed = self.seed;
        let (mut stranded, mut lost) = (seed.stream("stranded ballots"), seed.stream("lost answers"));
        let (mut copies, mut members) = (seed.stream("restarted copies"), seed.stream("cut-off members"));
        if stranded.percent(60) {
            stranded::strand(self, &mut stranded);
        } else if lost.percent(30) {
            lost_answers::lose(self, &mut lost);
        } else if copies.percent(50) {
            restarted_copies::put_back(self, &mut copies);
        } else if members.percent(60) {
            cut_off_members::cut_off(self, &mut members);
        }
    }

    /// All machines: the nodes and the spares.
    pub fn machines(&self) -> u16 {
        self.nodes + self.spares
    }

    /// The bound on the clocks' errors; `None` where they have no known bound.
    pub fn clock_error(&self) -> Option<Duration> {
        let is_wild = self.takes_backup
            || self.kinds.contains(&FaultKind::ClockJump)
            || self.kinds.contains(&FaultKind::ClockDrift);
        (!is_wild).then_some(CLOCK_ERROR)
    }

    /// How far ahead of a node's clock a timestamp is accepted.
    pub fn clock_limit(&self) -> Duration {
        match self.clock_error() {
            None if self.takes_backup => RESTORE_CLOCK_LIMIT,
            None => WILD_CLOCK_LIMIT,
            Some(_) if self.kinds.contains(&FaultKind::WrongClock) => WRONG_CLOCK_LIMIT,
            Some(_) => CLOCK_LIMIT,
        }
    }

    /// Whether no clock is ever wrong by more than [`CLOCK_ERROR`].
    pub fn are_clocks_right(&self) -> bool {
        self.clock_error().is_some() && !self.kinds.contains(&FaultKind::WrongClock)
    }

    /// The loss that a power loss of `node` at `at` may cause: all writes confirmed since the returned
    /// instant, or `None` for no loss. While a fault held the node back, an interval may have passed without
    /// a sync, so that time does not count.
    pub fn exposed_since(&self, node: u16, at: Duration) -> Option<Duration> {
        let every = match self.durability {
            DurabilityMode::Always => return None,
            DurabilityMode::Interval(every) => every + Duration::from_secs(1),
            DurabilityMode::Os => return Some(Duration::ZERO),
        };
        let mut since = at.saturating_sub(every);
        // Latest first: each may extend the period back to the one before.
        let mut held_back: Vec<&FaultEvent> =
            self.faults.iter().filter(|event| event.at <= at && event.fault.holds_back(node)).collect();
        held_back.sort_by_key(|event| event.at + event.lasts);
        for event in held_back.into_iter().rev() {
            if event.at + event.lasts >= since {
                since = since.min(event.at.saturating_sub(every));
            }
        }
        Some(since)
    }

    /// Whether hints alone must make the replicas equal in the end. No process ends and no disk fails, so
    /// that every write that misses a replica leaves a hint, and no clock jumps so far that hints grow too
    /// old.
    pub fn hints_suffice(&self) -> bool {
        let jumped: u64 = self
            .faults
            .iter()
            .map(|event| match event.fault {
                Fault::ClockJump { by_millis, .. } => by_millis.unsigned_abs(),
                _ => 0,
            })
            .sum();
        jumped <= 2 * crate::millis(JUMP_MAX) && self.kinds.iter().all(|kind| kind.leaves_processes_alone())
    }

    /// The quorum of requests that name none: a majority of three replicas, or of all if there are fewer.
    pub fn default_replicas(&self) -> AckFrom {
        let from = self.nodes.min(3);
        AckFrom::new(from / 2 + 1, from)
    }
}

/// A third of the seeds have counters: few, so that adds meet each other.
fn counters(stream: &mut Stream) -> u16 {
    stream.weighted(&[(4, 0), (1, 1), (1, 3)]).copied().unwrap_or(0)
}

/// Half of the seeds have conditional writes, so that plain ones are judged alone as well.
fn conditions(stream: &mut Stream) -> u64 {
    stream.weighted(&[(4, 0), (2, 20), (2, 50), (1, 90)]).copied().unwrap_or(0)
}

fn backups(
    stream: &mut Stream,
    nodes: u16,
    length: Duration,
    kinds: &BTreeSet<FaultKind>,
) -> Option<Backups> {
    let mut order: Vec<u16> = (0..nodes).collect();
    stream.shuffle(&mut order);
    let last = order.split_off(order.len().saturating_sub(if stream.percent(80) { 1 } else { 2 }));
    let mut at: Vec<Duration> = order.iter().map(|_| stream.duration(length / 3, length)).collect();
    at.sort_unstable();
    let taken = order.into_iter().zip(at).collect();
    kinds.contains(&FaultKind::StaggeredRestore).then_some(Backups { taken, last })
}

/// A quarter of the seeds has cuts. Short pauses let all nodes close at about one time, long ones let clocks pass the
/// timestamp in between.
fn cuts(stream: &mut Stream, length: Duration) -> Vec<CutPlan> {
    let count = if stream.percent(25) { stream.between(2, 5) } else { 0 };
    let mut cuts: Vec<CutPlan> = (0..count)
        .map(|_| CutPlan {
            at: stream.duration(length / 10, length),
            ahead: Duration::from_millis(stream.between(1, 1000)),
            pause_max: Duration::from_millis(stream.between(0, 300)),
        })
        .collect();
    cuts.sort_by_key(|cut| cut.at);
    cuts
}

fn clocks(stream: &mut Stream, nodes: u16, kinds: &BTreeSet<FaultKind>) -> Vec<ClockPlan> {
    let is_wild = kinds.contains(&FaultKind::ClockJump);
    let offset_max = if is_wild { 60_000 } else { 10 };
    (0..nodes)
        .map(|_| {
            let offset_millis = signed(stream, offset_max);
            ClockPlan { offset_millis, drift_ppm: i32::try_from(signed(stream, 50)).unwrap_or(0) }
        })
        .collect()
}

/// A number of `-max..=max`.
fn signed(stream: &mut Stream, max: u64) -> i64 {
    let size = i64::try_from(stream.between(0, max)).unwrap_or(0);
    if stream.percent(50) { size } else { -size }
}

fn clients(stream: &mut Stream, nodes: u16, is_contended: bool) -> Vec<ClientPlan> {
    let mixes = [
        (4, Mix { get: 40, head: 5, put: 40, delete: 10, range: 5 }),
        (2, Mix { get: 80, head: 5, put: 10, delete: 2, range: 3 }),
        (2, Mix { get: 20, head: 0, put: 75, delete: 5, range: 0 }),
        (1, Mix { get: 40, head: 0, put: 30, delete: 30, range: 0 }),
        (1, Mix { get: 30, head: 0, put: 30, delete: 0, range: 40 }),
    ];
    let fallback = Mix { get: 1, head: 0, put: 1, delete: 0, range: 0 };
    let (count, pause_max) = if is_contended { ((6, 12), 10) } else { ((1, 8), 200) };
    (0..stream.between(count.0, count.1))
        .map(|_| ClientPlan {
            turns: Vec::new(),
            conditions: None,
            mix: stream.weighted(&mixes).copied().unwrap_or(fallback),
            pause_max: Duration::from_millis(stream.between(2, pause_max)),
            home: stream.percent(30).then(|| stream.between_u16(0, nodes - 1)),
        })
        .collect()
}

fn ttl(stream: &mut Stream, kinds: &BTreeSet<FaultKind>) -> Option<TtlPlan> {
    let mut plan = TtlPlan {
        percent: stream.between(5, 60),
        min: Duration::from_millis(stream.between(1, 500)),
        max: Duration::from_millis(stream.between(1000, 20_000)),
        outliving_max: None,
    };
    let mut has_ttl = stream.percent(30);
    if kinds.contains(&FaultKind::WrongClock) {
        has_ttl = true;
        plan.percent = stream.between(30, 70);
        // TTLs that end while versions are still ahead, and TTLs that only a wrong clock ends.
        plan.max = Duration::from_millis(stream.between(500, 2000));
        plan.outliving_max = Some(Duration::from_hours(2));
    }
    has_ttl.then_some(plan)
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan of seed {}", self.seed.0)?;
        writeln!(f, "  nodes      {}", self.nodes)?;
        if self.spares > 0 {
            writeln!(f, "  spares     {}", self.spares)?;
        }
        writeln!(f, "  durability {}", kvorum_server::node::durability_name(self.durability))?;
        writeln!(f, "  length     {:.3} s", self.length.as_secs_f64())?;
        writeln!(f, "  latency    {:?} to {:?}", self.latency.0, self.latency.1)?;
        for (node, clock) in self.clocks.iter().enumerate() {
            writeln!(f, "  clock      node {node} {:+} ms {:+} ppm", clock.offset_millis, clock.drift_ppm)?;
        }
        for (client, plan) in self.clients.iter().enumerate() {
            let Mix { get, head, put, delete, range } = plan.mix;
            let home = plan.home.map_or("any node".to_owned(), |node| format!("node {node}"));
            let pause = plan.pause_max;
            let turns: Vec<String> =
                plan.turns.iter().map(|turn| format!(" {:?}..{:?}", turn.from, turn.until)).collect();
            let turns = if turns.is_empty() { String::new() } else { format!(", acts in{}", turns.concat()) };
            writeln!(
                f,
                "  client     {client} asks {home}, pauses up to {pause:?}, GET {get} HEAD {head} PUT {put} DELETE {delete} RANGE {range}{turns}"
            )?;
        }
        let plain = self.keys.iter().filter(|key| key.replicas.is_empty()).count();
        writeln!(f, "  keys       {}, {plain} of them with the default replicas", self.keys.len())?;
        for key in self.keys.iter().filter(|key| !key.replicas.is_empty() && key.weight > 1) {
            let replicas: Vec<String> = key.replicas.iter().map(ToString::to_string).collect();
            writeln!(f, "  hot key    {} {}", key.key.escape_ascii(), replicas.join(" "))?;
        }
        if let Some(TtlPlan { percent, min, max, outliving_max }) = self.ttl {
            let outliving = outliving_max.map(|max| format!(", half of them up to {max:?}"));
            let outliving = outliving.unwrap_or_default();
            writeln!(f, "  ttl        {percent} % of PUTs, {min:?} to {max:?}{outliving}")?;
        }
        if self.counters > 0 {
            writeln!(f, "  counters   {}", self.counters)?;
        }
        writeln!(f, "  values     up to {} bytes", self.value_bytes_max)?;
        if let Some(away_after) = self.away_after {
            writeln!(f, "  away       after {away_after:?}")?;
        }
        if self.transfers_early {
            writeln!(f, "  transfers  early")?;
        }
        if self.proves_peers {
            writeln!(f, "  peers      prove a secret")?;
        }
        writeln!(f, "  faults     {}", self.faults.len())?;
        self.faults.iter().try_for_each(|event| writeln!(f, "  {event}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plans() -> impl Iterator<Item = Plan> {
        (0..500).map(|seed| Plan::of(Seed(seed)))
    }

    /// A seed gives one plan, and prints it.
    #[test]
    fn plans_are_stable() {
        for seed in 0..50 {
            let (one, two) = (Plan::of(Seed(seed)), Plan::of(Seed(seed)));
            assert_eq!(one, two);
            assert_eq!(one.to_string(), two.to_string());
        }
        assert_ne!(Plan::of(Seed(1)).to_string(), Plan::of(Seed(2)).to_string());
    }

    /// Faults stay within the contract's preconditions.
    #[test]
    fn faults_keep_the_preconditions() {
        for plan in plans() {
            let (mut lost, mut foreign) = (BTreeSet::new(), BTreeSet::new());
            for event in &plan.faults {
                assert!(event.at <= plan.length + FAULT_MAX && event.lasts <= FAULT_MAX, "{event}");
                assert!(plan.kinds.contains(&event.kind));
                match &event.fault {
                    Fault::Wipe { node } | Fault::BitRot { node, .. } | Fault::OlderDisk { node, .. } => {
                        lost.insert(*node);
                    }
                    Fault::Partition { side } => {
                        assert!(!side.is_empty() && side.len() < usize::from(plan.nodes));
                    }
                    Fault::OneWay { source, target } | Fault::Hold { source, target } => {
                        assert_ne!(source, target);
                    }
                    Fault::ClockJump { by_millis, .. } => {
                        assert!(by_millis.unsigned_abs() <= crate::millis(JUMP_MAX));
                        assert_eq!(plan.clock_error(), None);
                    }
                    Fault::SyncError { .. } => assert_eq!(plan.durability, DurabilityMode::Always),
                    Fault::ForeignDisk { node, .. } => {
                        foreign.insert(*node);
                    }
                    _ => {}
                }
            }
            assert!(lost.is_disjoint(&foreign), "a disk that is kept meanwhile is lost: {plan}");
            assert!(lost.len() <= 1, "two disks lost for good: {plan}");
            assert!(plan.faults.is_sorted_by_key(|event| event.at));
        }
    }

    /// A disk of another cluster is left out where another fault changes the same node's disk meanwhile.
    #[test]
    fn foreign_disks_are_kept_apart() {
        let seconds = Duration::from_secs;
        let event = |at, kind, fault| FaultEvent { at: seconds(at), lasts: seconds(4), kind, fault };
        let foreign = |at, node| event(at, FaultKind::ForeignDisk, Fault::ForeignDisk { node, choice: 1 });
        let kept = |others: &[FaultEvent], one: FaultEvent| {
            let all = faults::keep_foreign_disks_apart([others, std::slice::from_ref(&one)].concat());
            all.len() > others.len()
        };
        let exchanged = event(10, FaultKind::ExchangedDisks, Fault::ExchangedDisks { nodes: (1, 2) });
        let alone = Fault::RestartAlone { node: 1, is_copied: false };
        let alone = event(10, FaultKind::RestartAlone, alone);
        for other in [exchanged, alone, foreign(10, 1)] {
            for at in [6, 10, 13, 14] {
                assert!(!kept(std::slice::from_ref(&other), foreign(at, 1)), "{other} at {at}");
            }
            assert!(kept(std::slice::from_ref(&other), foreign(5, 1)), "{other}");
            assert!(kept(std::slice::from_ref(&other), foreign(15, 1)), "{other}");
            assert!(kept(std::slice::from_ref(&other), foreign(10, 3)), "{other}");
        }
        assert!(kept(&[event(10, FaultKind::Restart, Fault::Restart { node: 1 })], foreign(10, 1)));
    }

    /// With an interval, a power loss takes the writes of the interval, and more if faults in a row held the
    /// node back.
    #[test]
    fn exposure_follows_the_faults() {
        let seconds = Duration::from_secs;
        let pause = |at, lasts, node| FaultEvent {
            at: seconds(at),
            lasts: seconds(lasts),
            kind: FaultKind::Pause,
            fault: Fault::Pause { node },
        };
        let mut plan = Plan::of(Seed(1));
        plan.durability = DurabilityMode::Interval(seconds(1));
        plan.faults = vec![pause(10, 4, 0), pause(15, 4, 0), pause(15, 4, 1), pause(30, 1, 0)];
        assert_eq!(plan.exposed_since(0, seconds(50)), Some(seconds(48)));
        assert_eq!(plan.exposed_since(1, seconds(20)), Some(seconds(13)));
        assert_eq!(plan.exposed_since(0, seconds(20)), Some(seconds(8)));
        plan.durability = DurabilityMode::Always;
        assert_eq!(plan.exposed_since(0, seconds(20)), None);
        plan.durability = DurabilityMode::Os;
        assert_eq!(plan.exposed_since(0, seconds(20)), Some(Duration::ZERO));
    }

    /// Every request that a plan can make is valid in its cluster.
    #[test]
    fn replicas_are_allowed() {
        for plan in plans() {
            let named = plan.keys.iter().flat_map(|key| key.replicas.iter().chain(&key.reads).copied());
            for replicas in named.chain([plan.default_replicas()]) {
                assert!(1 <= replicas.ack && replicas.ack <= replicas.from && replicas.from <= plan.nodes);
            }
            assert!((1..=26).contains(&plan.clients.len()) && (1..=7).contains(&plan.nodes));
            assert!(plan.clients.iter().all(|client| client.home.is_none_or(|home| home < plan.nodes)));
            let keys: BTreeSet<_> = plan.keys.iter().map(|key| &key.key).collect();
            assert_eq!(keys.len(), plan.keys.len());
        }
    }

    /// 500 seeds contain every kind of fault, every cluster size, every durability, TTLs and calm runs.
    #[test]
    fn everything_is_planned() {
        let mut kinds = BTreeSet::new();
        let mut sizes = BTreeSet::new();
        let mut durabilities = BTreeSet::new();
        let (mut calm, mut ttl) = (0, 0);
        for plan in plans() {
            kinds.extend(plan.kinds.iter().copied());
            sizes.insert(plan.nodes);
            durabilities.insert(match plan.durability {
                DurabilityMode::Always => 0,
                DurabilityMode::Interval(_) => 1,
                DurabilityMode::Os => 2,
            });
            calm += usize::from(plan.faults.iter().all(|event| !event.kind.disturbs()));
            ttl += usize::from(plan.ttl.is_some());
        }
        assert_eq!(kinds.len(), FaultKind::ALL.len());
        assert_eq!((sizes.len(), durabilities.len()), (7, 3));
        assert!(calm > 20 && ttl > 100, "{calm} {ttl}");
    }
}
