//! `/v0/status`: whether the node serves, and the facts an operator asks first.

use crate::replica::{Replica, StoreState};

/// This says whether the node serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeState {
    /// The store is being opened.
    Starting,
    /// It serves.
    Ready,
    /// It was told to stop and answers what it has accepted.
    Draining,
}

/// These are the node's facts that do not change while it runs.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// The node's id in versions.
    pub node: String,
    /// The URL by which others know it.
    pub url: String,
    /// All nodes' URLs.
    pub cluster: Vec<String>,
    /// The durability mode as it was configured.
    pub durability: String,
}

/// The body of `/v0/status`: one `name value` a line, or one JSON object. Of the store only while it is open.
pub(super) fn render(facts: &NodeFacts, state: NodeState, replica: Option<&Replica>, json: bool) -> String {
    let state = match state {
        NodeState::Starting => "starting",
        NodeState::Ready => "ready",
        NodeState::Draining => "draining",
    };
    let (store_state, reason) = match replica.map(Replica::health) {
        None => ("opening", None),
        Some(StoreState::Ok) => ("ok", None),
        Some(StoreState::DiskFull) => ("disk-full", None),
        Some(StoreState::Failed { reason }) => ("failed", Some(reason)),
    };
    let version = env!("CARGO_PKG_VERSION");
    if json {
        let id = replica.map(|replica| format!("{:032x}", replica.store_id()));
        let body = serde_json::json!({
            "state": state,
            "node": facts.node,
            "url": facts.url,
            "cluster": facts.cluster,
            "durability": facts.durability,
            "store": {"id": id, "state": store_state, "reason": reason},
            "version": version,
        });
        return format!("{body}\n");
    }
    let mut text = format!(
        "state {state}\nnode {}\nurl {}\ncluster {}\ndurability {}\nstore {store_state}\nversion {version}\n",
        facts.node,
        facts.url,
        facts.cluster.join(" "),
        facts.durability,
    );
    if let Some(reason) = reason {
        text.push_str("store-failure ");
        text.extend(reason.chars().map(|c| if c.is_control() { ' ' } else { c }));
        text.push('\n');
    }
    text
}
