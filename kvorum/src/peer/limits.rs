//! Limits: the bounds of what comes in on the connections between nodes, whoever sends it.
//!
//! They are checked where a frame becomes a message, so that no kind of message can be forgotten: a request is refused
//! with a code, a reply fails its call. A frame that is too long for a node, or for the memory that is left, is passed
//! over byte by byte, so that the connection and everything else on it goes on.

use crate::clock::TimestampBound;
use crate::log::Seldom;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a request may have besides its longest value, in bytes: a batch has 4 MiB and one value at most.
const BESIDES_VALUE_BYTES: usize = 8 << 20;
/// What a connection may hold without counting: most messages are shorter, and cost nothing this way.
pub(super) const UNCOUNTED_BYTES: usize = 128 << 10;
/// How often it is logged that peers break the protocol, whoever they are and however often they try.
const BAD_FRAMES_EVERY: Duration = Duration::from_secs(10);

/// The bounds of what peers send, shared by all connections of a node.
pub struct PeerLimits {
    /// How far ahead of this node's clock a timestamp may be.
    pub timestamps: Arc<TimestampBound>,
    /// The longest value that a request may bring, in bytes.
    value_bytes_max: u64,
    /// Memory of frames that have not wholly come, and of replies that have not wholly gone.
    pub(super) memory: Arc<FrameMemory>,
    /// Says that peers break the protocol.
    pub(super) bad_frames: Seldom,
}

impl PeerLimits {
    /// Values of `value_bytes_max` at most, and `memory_bytes` for unfinished frames and unsent replies.
    pub fn new(timestamps: Arc<TimestampBound>, value_bytes_max: u64, memory_bytes: u64) -> Self {
        let memory = Arc::new(FrameMemory { used: AtomicU64::new(0), max: memory_bytes });
        Self { timestamps, value_bytes_max, memory, bad_frames: Seldom::new(BAD_FRAMES_EVERY) }
    }

    /// The longest frame of a request, in bytes.
    pub(super) fn request_bytes_max(&self) -> usize {
        usize::try_from(self.value_bytes_max).unwrap_or(usize::MAX).saturating_add(BESIDES_VALUE_BYTES)
    }

    /// Bytes of frames that have not wholly come, and of replies that have not wholly gone.
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

/// What one direction of a connection holds of the memory; given back when it is dropped.
#[derive(Debug)]
pub(super) struct MemoryShare {
    memory: Arc<FrameMemory>,
    bytes: u64,
}

impl MemoryShare {
    /// A share of nothing.
    pub(super) fn new(memory: &Arc<FrameMemory>) -> Self {
        Self { memory: Arc::clone(memory), bytes: 0 }
    }

    /// How many bytes may be held altogether now, at most.
    pub(super) fn room(&self) -> usize {
        let free = self.memory.max.saturating_sub(self.memory.used.load(Ordering::Relaxed));
        usize::try_from(self.bytes.saturating_add(free)).unwrap_or(usize::MAX).saturating_add(UNCOUNTED_BYTES)
    }

    /// Holds memory for `bytes`, of which the first [`UNCOUNTED_BYTES`] cost nothing. False, and as before, where there is
    /// not so much left.
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
