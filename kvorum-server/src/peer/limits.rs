//! Limits: the bounds for everything that arrives on the connections between nodes, whichever node sends it.
//!
//! They are checked where a frame becomes a message, so that no kind of message can be forgotten: a request is refused
//! with a code, a reply fails its call. A frame that is too long for the node, or for the free memory, is skipped as
//! its bytes come. The connection and its other messages go on.

use crate::clock::TimestampBound;
use crate::log::Seldom;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The most bytes of a request besides its longest value: a batch has at most 4 MiB and one value.
const BESIDES_VALUE_BYTES: usize = 8 << 20;
/// The bytes that a connection may hold without being counted: most messages are shorter, and then cost nothing.
pub(super) const UNCOUNTED_BYTES: usize = 128 << 10;
/// The interval between log lines about peers that break the protocol, whatever the peer and the number of tries.
const BAD_FRAMES_EVERY: Duration = Duration::from_secs(10);

/// The bounds of what peers send, shared by all connections of a node.
pub struct PeerLimits {
    /// How far ahead of this node's clock a timestamp may be.
    pub timestamps: Arc<TimestampBound>,
    /// The longest value that a request may bring, in bytes.
    value_bytes_max: u64,
    /// Memory for frames that are partly received, and for replies that are partly sent.
    pub(super) memory: Arc<FrameMemory>,
    /// Limits the log lines about peers that break the protocol.
    pub(super) bad_frames: Seldom,
}

impl PeerLimits {
    /// Allows values of at most `value_bytes_max`, and `memory_bytes` for unfinished frames and unsent replies.
    pub fn new(timestamps: Arc<TimestampBound>, value_bytes_max: u64, memory_bytes: u64) -> Self {
        let memory = Arc::new(FrameMemory { used: AtomicU64::new(0), max: memory_bytes });
        Self { timestamps, value_bytes_max, memory, bad_frames: Seldom::new(BAD_FRAMES_EVERY) }
    }

    /// The longest frame of a request, in bytes.
    pub(super) fn request_bytes_max(&self) -> usize {
        usize::try_from(self.value_bytes_max).unwrap_or(usize::MAX).saturating_add(BESIDES_VALUE_BYTES)
    }

    /// Bytes held by partly received frames and partly sent replies.
    pub fn memory_used(&self) -> u64 {
        self.memory.used.load(Ordering::Relaxed)
    }
}

/// Memory that all connections between nodes share.
#[derive(Debug)]
pub(super) struct FrameMemory {
    used: AtomicU64,
    max: u64,
}

impl FrameMemory {
    fn take(&self, bytes: u64) -> bool {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.max {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }
}

/// The memory that one direction of a connection holds; given back when it is dropped.
#[derive(Debug)]
pub(super) struct MemoryShare {
    memory: Arc<FrameMemory>,
    bytes: u64,
}

impl MemoryShare {
    /// An empty share.
    pub(super) fn new(memory: &Arc<FrameMemory>) -> Self {
        Self { memory: Arc::clone(memory), bytes: 0 }
    }

    /// The most bytes that the share may hold now.
    pub(super) fn room(&self) -> usize {
        let free = self.memory.max.saturating_sub(self.memory.used.load(Ordering::Relaxed));
        usize::try_from(self.bytes.saturating_add(free)).unwrap_or(usize::MAX).saturating_add(UNCOUNTED_BYTES)
    }

    /// Changes the share to `bytes`, the first [`UNCOUNTED_BYTES`] of which are free. If there is not enough memory,
    /// returns false and changes nothing.
    pub(super) fn hold(&mut self, bytes: usize) -> bool {
        let wanted = bytes.saturating_sub(UNCOUNTED_BYTES) as u64;
        if wanted > self.bytes {
            if !self.memory.take(wanted - self.bytes) {
                return false;
            }
        } else {
            self.memory.used.fetch_sub(self.bytes - wanted, Ordering::Relaxed);
        }
        self.bytes = wanted;
        true
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
