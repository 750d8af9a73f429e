//! `/admin/repair`: the result of a requested repair.

use crate::background::Repaired;

/// The body of the answer.
pub(super) fn render(repaired: &Repaired) -> String {
    let failed: Vec<_> = repaired
        .failed
        .iter()
        .map(|(node, reason)| serde_json::json!({"node": node, "reason": reason}))
        .collect();
    let body = serde_json::json!({
        "compared": repaired.compared,
        "failed": failed,
        "pulled": repaired.pulled,
        "purged": repaired.purged,
    });
    format!("{body}\n")
}

/// The body of the answer to a request that dropped records.
pub(super) fn render_dropped(dropped: u64) -> String {
    format!("{}\n", serde_json::json!({"dropped": dropped}))
}
