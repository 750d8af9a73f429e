//! The parts of a node: the table of all threads and tasks that run as long as it does, with the consequence of an
//! unexpected end, be it a panic or a return. [`supervise`](crate::supervise) starts them.

/// The consequence for a node when a part of it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtEnd {
    /// The part is started again.
    Restart,
    /// The node reports it, and its process ends with a failure.
    StopNode,
    /// A return has no consequence, because the work is done. A panic is treated as in [`AtEnd::Restart`].
    Done,
    /// A return has no consequence, because the work is done. A panic is treated as in [`AtEnd::StopNode`].
    DoneOrStopNode,
}

macro_rules! parts {
    ($($(#[doc = $doc:literal])+ $part:ident = $name:literal, $at_end:ident;)+) => {
        /// A thread or task that runs as long as its node.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Part {
            $($(#[doc = $doc])+ $part,)+
        }

        impl Part {
            /// All parts.
            pub const ALL: &[Self] = &[$(Self::$part,)+];

            /// The part's name. A thread's name is this after `kvorum:`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$part => $name,)+
                }
            }

            /// The consequence of its unexpected end.
            pub fn at_end(self) -> AtEnd {
                match self {
                    $(Self::$part => AtEnd::$at_end,)+
                }
            }
        }
    };
}

parts! {
    /// A network thread: its acceptor, and the tasks of its connections.
    Network = "net", StopNode;
    /// The commit thread, which writes.
    Commit = "commit", StopNode;
    /// The sweeper thread, which finds expired and deleted records.
    Sweep = "sweep", Restart;
    /// The reclaimer thread, which reclaims the disk space of removed records.
    Reclaim = "reclaim", Restart;
    /// A thread of the worker pool for client requests.
    Worker = "worker", StopNode;
    /// A thread of the worker pool for background work.
    BackgroundPool = "bgpool", StopNode;
    /// The thread that flushes the index.
    IndexFlush = "idxflush", StopNode;
    /// The engine's thread that holds files and memtables, so that the engine frees none in its lock.
    FilePin = "filepin", StopNode;
    /// The engine's thread that frees them outside of the lock.
    FileFree = "filefree", StopNode;
    /// The thread that watches the file of tokens.
    TokenWatch = "tokens", Restart;
    /// The thread that watches the file of peer secrets.
    PeerSecretWatch = "secrets", Restart;
    /// The thread that watches the files of certificates and keys.
    TlsWatch = "tls", Restart;
    /// The thread on which a node waits that is to join a cluster, and opens its layers then.
    Join = "join", StopNode;
    /// The thread that writes the audit log.
    Audit = "audit", Restart;
    /// A thread's task that ends connections which take too long.
    Watchdog = "watchdog", Restart;
    /// A thread's task that gives requests their turns.
    Turns = "turns", Restart;
    /// A thread's task that shares the wake-ups of the commit thread.
    CommitWake = "commit-wake", DoneOrStopNode;
    /// The task that makes the node ready once it has taken its hints.
    HintDrain = "hint-drain", DoneOrStopNode;
    /// A thread's task that connects to one peer.
    Link = "link", Restart;
    /// A thread's task that starts and ends its links and tasks with the members of the cluster.
    Members = "members", Restart;
    /// A thread's task that records the state of its links.
    Gauges = "gauges", Restart;
    /// The task that samples the node's load.
    History = "history", Restart;
    /// The task that sends traces to a collector.
    SpanExport = "span-export", Restart;
    /// A thread's task that retries its link when another message shows that the peer is alive.
    Reconnect = "reconnect", Restart;
    /// The task that asks one peer once what it has purged.
    FenceQuery = "fence-query", Done;
    /// The task that delivers hints to one peer.
    Handoff = "handoff", Restart;
    /// The task that sends heartbeats to one peer.
    Heartbeat = "heartbeat", Restart;
    /// The task that tells one peer this node's epoch, and asks it for later configurations.
    CatchUp = "catch-up", Restart;
    /// The task that takes the steps of a change of members.
    ChangeDriver = "driver", Restart;
    /// The anti-entropy task, which keeps this node and one peer in sync.
    AntiEntropy = "anti-entropy", Restart;
    /// The task that repairs damaged records.
    DamageRepair = "damage-repair", Restart;
    /// The scrub task, which looks for damage.
    Scrub = "scrub", Restart;
    /// The task that sets the rate limit of background work.
    RateLimit = "rate-limit", Restart;
    /// The task that drops records which this node no longer owns.
    Drop = "drop", Restart;
    /// The tombstone GC task, which finds out up to where all nodes agree.
    TombstoneGc = "tombstone-gc", Restart;
    /// The task that purges records that no node needs any more.
    Purge = "purge", Done;
}
