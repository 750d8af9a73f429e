//! Canaries: each puts one classic bug back, so that the simulation can show that it would notice.
//!
//! They exist only in builds with the feature `canaries`, which no release has: without it [`is`] is false for all of
//! them, at compile time. With it at most one is let loose, once, before anything runs.

/// This is one bug that can be put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Canary {
    /// A write is confirmed before it has been synced.
    AckBeforeSync,
    /// A timestamp is believed however far it is ahead.
    BelievesAnyTimestamp,
    /// A store that is not known to be that of the last run is taken for it.
    CopiedStoreServes,
    /// A write that too few replicas took because the disks of others are full is answered 507, "nothing was stored".
    DiskFullForgetsStored,
    /// A record that overwrites another does not change the digest.
    DigestForgetsUpdate,
    /// A replica that lost its disk answers "absent".
    EmptyReplicaVotes,
    /// What has expired by this node's clock is destroyed, whatever the other clocks say.
    ExpiresByOneClock,
    /// A replica that did not answer counts as if it had, because it gets a hint.
    HintCountsAsAck,
    /// Versions come from the node's own clock alone.
    LocalClockOnly,
    /// A read answers what it saw without making sure that later reads see it.
    NoWriteBack,
    /// Tombstones go by age, whoever may still hold something older.
    PurgeByAge,
    /// A store that is older than the one that others knew is taken for it: it votes, and its records are merged.
    OlderStoreMerges,
    /// A store that is behind drops its rows below another node's word at once, whether or not that node must hold them.
    OlderStoreDrops,
    /// Repair copies a record to replicas that its `from` excludes.
    RepairIgnoresFrom,
    /// A background that ended for want of something is taken for a broken disk.
    ShortageIsFailure,
    /// A write is stamped again while fewer than its own `ack` hold the record, whoever may have met it.
    RestampByOwnAck,
    /// Nodes with another list of nodes are talked to.
    StaleTopology,
    /// A store that was seen as another node's is talked to.
    StoreOfAnotherNode,
    /// A replica that holds something newer counts as if it had taken the write.
    SupersededIgnored,
    /// A replica that holds something newer confirms a write that did not ask first.
    SupersededUnasked,
    /// A transfer sends records to replicas that their `from` excludes.
    TransferIgnoresFrom,
    /// A TTL counts from the version, which may be ahead of every clock.
    TtlFromVersion,
}

impl Canary {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::AckBeforeSync,
        Self::BelievesAnyTimestamp,
        Self::CopiedStoreServes,
        Self::DiskFullForgetsStored,
        Self::DigestForgetsUpdate,
        Self::EmptyReplicaVotes,
        Self::ExpiresByOneClock,
        Self::HintCountsAsAck,
        Self::LocalClockOnly,
        Self::NoWriteBack,
        Self::PurgeByAge,
        Self::OlderStoreMerges,
        Self::OlderStoreDrops,
        Self::RepairIgnoresFrom,
        Self::ShortageIsFailure,
        Self::RestampByOwnAck,
        Self::StaleTopology,
        Self::StoreOfAnotherNode,
        Self::SupersededIgnored,
        Self::SupersededUnasked,
        Self::TransferIgnoresFrom,
        Self::TtlFromVersion,
    ];

    /// The canary's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::AckBeforeSync => "ack-before-sync",
            Self::BelievesAnyTimestamp => "believes-any-timestamp",
            Self::CopiedStoreServes => "copied-store-serves",
            Self::DiskFullForgetsStored => "disk-full-forgets-stored",
            Self::DigestForgetsUpdate => "digest-forgets-update",
            Self::EmptyReplicaVotes => "empty-replica-votes",
            Self::ExpiresByOneClock => "expires-by-one-clock",
            Self::HintCountsAsAck => "hint-counts-as-ack",
            Self::LocalClockOnly => "local-clock-only",
            Self::NoWriteBack => "no-write-back",
            Self::PurgeByAge => "purge-by-age",
            Self::OlderStoreMerges => "older-store-merges",
            Self::OlderStoreDrops => "older-store-drops",
            Self::RepairIgnoresFrom => "repair-ignores-from",
            Self::ShortageIsFailure => "shortage-is-failure",
            Self::RestampByOwnAck => "restamp-by-own-ack",
            Self::StaleTopology => "stale-topology",
            Self::StoreOfAnotherNode => "store-of-another-node",
            Self::SupersededIgnored => "superseded-ignored",
            Self::SupersededUnasked => "superseded-unasked",
            Self::TransferIgnoresFrom => "transfer-ignores-from",
            Self::TtlFromVersion => "ttl-from-version",
        }
    }
}

#[cfg(feature = "canaries")]
static LOOSE: std::sync::OnceLock<Canary> = std::sync::OnceLock::new();

/// Lets `canary` loose for the rest of the process; the first call decides.
#[cfg(feature = "canaries")]
pub fn let_loose(canary: Canary) {
    let _ = LOOSE.set(canary);
}

/// Whether `canary` is loose.
#[cfg(feature = "canaries")]
#[inline]
pub(crate) fn is(canary: Canary) -> bool {
    LOOSE.get() == Some(&canary)
}

/// Whether `canary` is loose: never, in this build.
#[cfg(not(feature = "canaries"))]
#[inline]
pub(crate) const fn is(_canary: Canary) -> bool {
    false
}
