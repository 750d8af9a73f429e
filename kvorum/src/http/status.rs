//! `/v0/status`: whether the node serves, and the facts an operator asks first.

use crate::replica::StoreState;

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
    /// The store's identity.
    pub store: String,
}

/// The body of `/v0/status`: one `name value` a line, or one JSON object.
pub(super) fn render(facts: &NodeFacts, draining: bool, store: &StoreState, json: bool) -> String {
    let state = if draining { "draining" } else { "ready" };
    let (store_state, reason) = match store {
        StoreState::Ok => ("ok", None),
        StoreState::DiskFull => ("disk-full", None),
        StoreState::Failed { reason } => ("failed", Some(reason.as_str())),
    };
    let version = env!("CARGO_PKG_VERSION");
    if json {
        let body = serde_json::json!({
            "state": state,
            "node": facts.node,
            "url": facts.url,
            "cluster": facts.cluster,
            "durability": facts.durability,
            "store": {"id": facts.store, "state": store_state, "reason": reason},
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
