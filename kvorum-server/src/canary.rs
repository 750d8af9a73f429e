//! Canaries: each reintroduces one classic bug, so that the simulation can show that it would find it.
//!
//! They exist only in builds with the feature `canaries`, which no release has: without it [`is`] is false for every
//! canary, at compile time. With it at most one canary is activated, once, before anything runs.

/// A bug that can be reintroduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Canary {
    /// A store forgets what it promised and accepted about the next configuration.
    AcceptorForgets,
    /// A replica takes a ballot's record whatever it has promised since.
    AcceptUnchecked,
    /// A write is confirmed before it has been synced.
    AckBeforeSync,
    /// A timestamp is accepted however far it is ahead.
    BelievesAnyTimestamp,
    /// Records that a node no longer owned are dropped in a later epoch, in which it may own them again.
    BatchOutlivesEpoch,
    /// A store that is not known to be the last run's is treated as the last run's.
    CopiedStoreServes,
    /// A replica closes a cut only when it is told to, although a record above it comes first.
    CutClosesLate,
    /// A backup counts nodes that have closed in another epoch than the one whose lists it looks at.
    CutOfSeveralEpochs,
    /// A replica that has closed a cut goes on confirming writes at or below its timestamp.
    CutTakesLateWrites,
    /// When too few replicas took a write because other disks are full, the answer is 507, "nothing was stored".
    DiskFullForgetsStored,
    /// A record that overwrites another does not change the digest.
    DigestForgetsUpdate,
    /// A replica that lost its disk answers "absent".
    EmptyReplicaVotes,
    /// Records that have expired by this node's clock are destroyed, whatever the other clocks show.
    ExpiresByOneClock,
    /// A cut stays closed at a timestamp that only a wrong clock could bear out.
    CutBelievesAnyTimestamp,
    /// A request whose epoch has ended fails with the link to a removed node.
    EndedEpochFails,
    /// A replica says in each new epoch that it remembers nothing from before.
    EpochShortensMemory,
    /// A condition is told to have failed although the record that it was judged on might still be undone.
    EarlyRefusal,
    /// A fence of ballots is lost at a restart.
    FenceUnsynced,
    /// A new store adopts the first cluster id that it hears.
    FirstIdAdopted,
    /// Each write of a group is judged on the record before the group.
    GroupJudgedOnBase,
    /// A replica that did not answer counts as if it had, because it gets a hint.
    HintCountsAsAck,
    /// A hint of a ballot's record is kept although too few replicas have taken it.
    HintsBeforeTaken,
    /// Hints for a node that was removed stay.
    HintsOutliveNodes,
    /// A hint is taken although its record lies below a promised ballot.
    HintsIgnorePromises,
    /// A node that joins confirms no write before it is quorum-eligible.
    JoinerConfirmsNothing,
    /// Versions come from the node's own clock alone.
    LocalClockOnly,
    /// A request counts what a member answered before it lost its store, although that was refilled since.
    LostAnswersCount,
    /// A node hears what others remember of its store with heartbeats only, not with the handshake.
    RememberedRunComesLate,
    /// A store is believed to be the latest if it was started more often than other nodes remember.
    RestartedCopyCounts,
    /// A store that joins is refilled as one that was lost, behind a fence, and counts only after that.
    JoinerCountsLate,
    /// A change goes on without members that do not know of it.
    MarksUnknowing,
    /// A request that few replicas confirm is carried out without asking whether the epoch is the last one.
    MinorityUnconfirmed,
    /// A marked member takes from the others what both own, not what it owns since a change did not wait for it.
    MarkedTakeShared,
    /// Nobody takes from a marked member what it holds and owns no longer.
    MarkedKeepRecords,
    /// A store that the configuration marks as lacking records counts all the same.
    MarkedStoreCounts,
    /// New owners of a partition are read before they were compared with the old ones.
    NewOwnersUnfilled,
    /// A member counts as silent from the beginning of the run, also before it was one.
    NewMemberSilent,
    /// A store that came after another one of its node counts as one that has forgotten promises.
    NewStoreForgets,
    /// A read returns a record without making sure that later reads see it.
    NoWriteBack,
    /// A peer is accepted whatever it proves.
    PeerUnproven,
    /// A conditional write counts promises and records on one of two lists.
    PromisesOneList,
    /// A promise is answered before it has been synced.
    PromiseUnsynced,
    /// Tombstones are purged by age, even if another node may still hold older records.
    PurgeByAge,
    /// Nodes of another cluster are accepted as peers: the handshake does not compare the cluster ids.
    OtherClusterJoins,
    /// A store that is older than the one that other nodes know is treated as that one: it votes, and its records are
    /// merged.
    OlderStoreMerges,
    /// An outdated store drops its rows below the sealed floor of another node at once, even if that node need not hold
    /// them.
    OlderStoreDrops,
    /// A store that has lost its promises is refilled without a fence.
    RefillForgetsPromises,
    /// Tombstones are purged while partitions move.
    PurgesWhileJoint,
    /// A store that was removed is accepted as the one of a member.
    RetiredStoreServes,
    /// Repair takes a record although it lies below a promised ballot.
    RepairIgnoresPromises,
    /// Repair copies a record to replicas that its `from` excludes.
    RepairIgnoresFrom,
    /// A restored record is written whether the key has a value or not.
    RestoreOverwrites,
    /// A replica carries out requests of another epoch.
    ServesOldEpoch,
    /// An engine background that ended for lack of a resource is treated as a broken disk.
    ShortageIsFailure,
    /// A plain write is stamped again although a ballot may have gone on from its record.
    RestampContested,
    /// A write is stamped again while fewer replicas than its own `ack` hold the record, whichever nodes may have seen
    /// it.
    RestampByOwnAck,
    /// A node's registry of peers takes in nodes that are no members.
    RegistryTakesForeignNodes,
    /// Nodes with another list of nodes are accepted as peers.
    StaleTopology,
    /// A peer is accepted although its store was seen as another node's.
    StoreOfAnotherNode,
    /// A plain write that the record of a ballot supersedes counts as if it came just before it.
    SupersededByBallot,
    /// A replica that holds something newer counts as if it had applied the write.
    SupersededIgnored,
    /// A replica that holds something newer confirms a write that did not ask first.
    SupersededUnasked,
    /// A transfer sends records to replicas that their `from` excludes.
    TransferIgnoresFrom,
    /// A TTL counts from the version's timestamp, which may be ahead of every clock.
    TtlFromVersion,
    /// A read writes back a record although it lies below a promised ballot.
    WriteBacksIgnorePromises,
    /// Tombstones are purged although a node still holds older records that it no longer owns.
    UnownedIgnored,
    /// A plain write is taken although it lies below a promised ballot.
    WritesIgnorePromises,
    /// While a partition moves, writes reach only the owners that are read.
    WritesOneList,
}

impl Canary {
    /// Those that the simulation must notice.
    pub const NOTICED: &[Self] = &[
        Self::AcceptorForgets,
        Self::AckBeforeSync,
        Self::BelievesAnyTimestamp,
        Self::CopiedStoreServes,
        Self::CutClosesLate,
        Self::DiskFullForgetsStored,
        Self::DigestForgetsUpdate,
        Self::EmptyReplicaVotes,
        Self::ExpiresByOneClock,
        Self::HintCountsAsAck,
        Self::LocalClockOnly,
        Self::NoWriteBack,
        Self::PeerUnproven,
        Self::PurgeByAge,
        Self::OtherClusterJoins,
        Self::OlderStoreMerges,
        Self::OlderStoreDrops,
        Self::RepairIgnoresFrom,
        Self::ShortageIsFailure,
        Self::RestampByOwnAck,
        Self::RegistryTakesForeignNodes,
        Self::StaleTopology,
        Self::StoreOfAnotherNode,
        Self::SupersededIgnored,
        Self::SupersededUnasked,
        Self::TransferIgnoresFrom,
        Self::TtlFromVersion,
        Self::AcceptUnchecked,
        Self::EarlyRefusal,
        Self::PromiseUnsynced,
        Self::WritesIgnorePromises,
    ];

    /// Those that the simulation must notice in seeds of one kind, as `kvorum-sim soak --with` names them: other seeds seldom
    /// meet them.
    pub const NOTICED_IN: &[(&str, &[Self])] = &[
        ("contended-conditions", &[Self::GroupJudgedOnBase, Self::RestampContested]),
        ("cut-off-members", &[Self::MarkedStoreCounts, Self::MarksUnknowing, Self::MinorityUnconfirmed]),
        ("foreign-disk", &[Self::FirstIdAdopted]),
        (
            "joins",
            &[
                Self::EndedEpochFails,
                Self::HintsOutliveNodes,
                Self::JoinerConfirmsNothing,
                Self::NewOwnersUnfilled,
                Self::NewStoreForgets,
                Self::WritesOneList,
            ],
        ),
        ("late-writers", &[Self::SupersededByBallot, Self::WriteBacksIgnorePromises]),
        ("lost-answers", &[Self::LostAnswersCount]),
        ("marks", &[Self::MarkedTakeShared]),
        ("restarted-copies", &[Self::RememberedRunComesLate, Self::RestartedCopyCounts]),
        ("restores", &[Self::RestoreOverwrites]),
        ("stranded-ballots", &[Self::HintsBeforeTaken, Self::RefillForgetsPromises]),
    ];

    /// Those that no seed has met.
    ///
    /// A fence that is lost at a restart needs a ballot that is prepared before a disk is lost, and accepted after the refill and
    /// one more restart: a coordinator whose ballot stands still for longer than its deadline while it answers the refill. A
    /// node of the simulation has one thread, so it does both or neither. Repair would have to copy a record within the deadline
    /// of the ballot that keeps it out, and before a reader copies it: the reader finds out what became of the ballot. Seeds
    /// with stranded ballots act that out, and none was fast enough. The model finds both
    /// (`kvorum-core/tests/conditional_model`). Hints that ignore promises were noticed by late writers until plans changed.
    ///
    /// Of a move, the models find those that count one list, and a batch that outlives its epoch. Tombstones that are purged while
    /// partitions move need a round in the moments between two steps. A removed store that is accepted does no harm as long as its
    /// epoch is an old one. A new member that counts as silent shows where a write to all replicas meets its mark and no fault
    /// excuses that: of the seeds that once failed, 2431231459 notices it. Seeds of an earlier plan with more marks noticed a
    /// marked member that keeps its records to itself; now the model alone does. A store that joins and counts late delays
    /// requests, which ask it again, but fails none. If a replica forgets at an epoch what it remembered, a write may end as
    /// unknown where a rival overtakes it; that is documented, so the oracle excuses it. The row of a former owner comes back only
    /// if its tombstone is purged in the two seconds before the row is dropped; earlier plans met that. Tests of units show both. A
    /// cut of several epochs misses a write only if a change ends between two closings, and the new owners confirm a write in that
    /// moment.
    pub const UNNOTICED: &[Self] = &[
        Self::BatchOutlivesEpoch,
        Self::CutBelievesAnyTimestamp,
        Self::CutOfSeveralEpochs,
        Self::CutTakesLateWrites,
        Self::EpochShortensMemory,
        Self::FenceUnsynced,
        Self::HintsIgnorePromises,
        Self::JoinerCountsLate,
        Self::MarkedKeepRecords,
        Self::NewMemberSilent,
        Self::PromisesOneList,
        Self::PurgesWhileJoint,
        Self::RepairIgnoresPromises,
        Self::RetiredStoreServes,
        Self::ServesOldEpoch,
        Self::UnownedIgnored,
    ];

    /// The canary of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        let of_kinds = Self::NOTICED_IN.iter().flat_map(|(_, canaries)| *canaries);
        let mut all = Self::NOTICED.iter().chain(of_kinds).chain(Self::UNNOTICED);
        all.find(|canary| canary.name() == name).copied()
    }

    /// The canary's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::AcceptorForgets => "acceptor-forgets",
            Self::AckBeforeSync => "ack-before-sync",
            Self::BelievesAnyTimestamp => "believes-any-timestamp",
            Self::CopiedStoreServes => "copied-store-serves",
            Self::CutBelievesAnyTimestamp => "cut-believes-any-timestamp",
            Self::CutClosesLate => "cut-closes-late",
            Self::CutOfSeveralEpochs => "cut-of-several-epochs",
            Self::CutTakesLateWrites => "cut-takes-late-writes",
            Self::DiskFullForgetsStored => "disk-full-forgets-stored",
            Self::DigestForgetsUpdate => "digest-forgets-update",
            Self::EmptyReplicaVotes => "empty-replica-votes",
            Self::ExpiresByOneClock => "expires-by-one-clock",
            Self::FirstIdAdopted => "first-id-adopted",
            Self::GroupJudgedOnBase => "group-judged-on-base",
            Self::HintCountsAsAck => "hint-counts-as-ack",
            Self::LocalClockOnly => "local-clock-only",
            Self::LostAnswersCount => "lost-answers-count",
            Self::RememberedRunComesLate => "remembered-run-comes-late",
            Self::RestartedCopyCounts => "restarted-copy-counts",
            Self::NoWriteBack => "no-write-back",
            Self::PeerUnproven => "peer-unproven",
            Self::PurgeByAge => "purge-by-age",
            Self::OtherClusterJoins => "other-cluster-joins",
            Self::OlderStoreMerges => "older-store-merges",
            Self::OlderStoreDrops => "older-store-drops",
            Self::RepairIgnoresFrom => "repair-ignores-from",
            Self::RestoreOverwrites => "restore-overwrites",
            Self::ServesOldEpoch => "serves-old-epoch",
            Self::ShortageIsFailure => "shortage-is-failure",
            Self::RestampByOwnAck => "restamp-by-own-ack",
            Self::RegistryTakesForeignNodes => "registry-takes-foreign-nodes",
            Self::StaleTopology => "stale-topology",
            Self::StoreOfAnotherNode => "store-of-another-node",
            Self::SupersededIgnored => "superseded-ignored",
            Self::SupersededUnasked => "superseded-unasked",
            Self::TransferIgnoresFrom => "transfer-ignores-from",
            Self::TtlFromVersion => "ttl-from-version",
            Self::WritesIgnorePromises => "writes-ignore-promises",
            Self::WriteBacksIgnorePromises => "write-backs-ignore-promises",
            Self::SupersededByBallot => "superseded-by-ballot",
            Self::RepairIgnoresPromises => "repair-ignores-promises",
            Self::RefillForgetsPromises => "refill-forgets-promises",
            Self::PromiseUnsynced => "promise-unsynced",
            Self::HintsIgnorePromises => "hints-ignore-promises",
            Self::FenceUnsynced => "fence-unsynced",
            Self::AcceptUnchecked => "accept-unchecked",
            Self::EarlyRefusal => "early-refusal",
            Self::HintsBeforeTaken => "hints-before-taken",
            Self::BatchOutlivesEpoch => "batch-outlives-epoch",
            Self::JoinerCountsLate => "joiner-counts-late",
            Self::MarksUnknowing => "marks-unknowing",
            Self::MinorityUnconfirmed => "minority-unconfirmed",
            Self::MarkedKeepRecords => "marked-keep-records",
            Self::MarkedTakeShared => "marked-take-shared",
            Self::MarkedStoreCounts => "marked-store-counts",
            Self::NewOwnersUnfilled => "new-owners-unfilled",
            Self::PromisesOneList => "promises-one-list",
            Self::RetiredStoreServes => "retired-store-serves",
            Self::WritesOneList => "writes-one-list",
            Self::EndedEpochFails => "ended-epoch-fails",
            Self::EpochShortensMemory => "epoch-shortens-memory",
            Self::HintsOutliveNodes => "hints-outlive-nodes",
            Self::JoinerConfirmsNothing => "joiner-confirms-nothing",
            Self::NewMemberSilent => "new-member-silent",
            Self::NewStoreForgets => "new-store-forgets",
            Self::PurgesWhileJoint => "purges-while-joint",
            Self::UnownedIgnored => "unowned-ignored",
            Self::RestampContested => "restamp-contested",
        }
    }
}

#[cfg(all(feature = "canaries", not(debug_assertions)))]
compile_error!(
    "canaries are bugs, for the simulation only: build the packages that you need, such as `-p kvorum`"
);

#[cfg(feature = "canaries")]
static LOOSE: std::sync::OnceLock<Canary> = std::sync::OnceLock::new();

/// Activates `canary` for the rest of the process; only the first call has an effect.
#[cfg(feature = "canaries")]
pub fn let_loose(canary: Canary) {
    let _ = LOOSE.set(canary);
}

/// Whether `canary` is active.
#[cfg(feature = "canaries")]
#[inline]
pub fn is(canary: Canary) -> bool {
    LOOSE.get() == Some(&canary)
}

/// Whether `canary` is active: never, in this build.
#[cfg(not(feature = "canaries"))]
#[inline]
pub const fn is(_canary: Canary) -> bool {
    false
}
