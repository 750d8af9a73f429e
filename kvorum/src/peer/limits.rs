//! Limits: the bounds of what comes in on the connections between nodes, whoever sends it.
//!
//! They are checked where a frame becomes a message, so that no kind of message can be forgotten: a request is refused
//! with a code, a reply fails its call.

use crate::clock::TimestampBound;
use std::sync::Arc;

/// The bounds of what peers send, shared by all connections of a node.
pub struct PeerLimits {
    /// How far ahead of this node's clock a timestamp may be.
    pub timestamps: Arc<TimestampBound>,
}
