//! `/v0/converged`: up to which instant all replicas agree, and which node holds the watermark back.

use super::target::ConvergedQuery;
use crate::background::Watermark;
use crate::coordinator::Shared;
use crate::peer::HeldBack;
use kvorum_core::Version;

/// The body of `/v0/converged`.
pub(super) fn render(shared: &Shared, query: &ConvergedQuery) -> String {
    let now = shared.clock.wall().0;
    let gc = &shared.background.tombstone_gc;
    let shown = match &query.key {
        Some(key) => {
            let partition = shared.cluster.partition_of(key);
            gc.watermarks().get(usize::from(partition.0)).copied()
        }
        None => gc.oldest_watermark(),
    };
    let Some(shown) = shown else { return "{}\n".to_owned() };
    let agreed = millis(shown.agreed);
    let floor = shared.replica.floor(shown.partition);
    let mut body = serde_json::json!({
        "now": now,
        "agreed": agreed,
        "lag_ms": agreed.map(|at| now.saturating_sub(at)),
        "partition": shown.partition.0,
        "leader": shared.cluster.url_of(shown.leader),
        "held_by": held_by(shared, &shown),
        "floor": {
            "agreed": millis(floor.agreed),
            "sealed": millis(floor.sealed),
            "purged": millis(floor.purged),
        },
    });
    if query.all_partitions
        && let Some(fields) = body.as_object_mut()
    {
        let each: Vec<_> = gc.watermarks().iter().map(|watermark| millis(watermark.agreed)).collect();
        fields.insert("partitions".to_owned(), each.into());
    }
    format!("{body}\n")
}

/// Which node holds a watermark back, and why.
fn held_by(shared: &Shared, watermark: &Watermark) -> serde_json::Value {
    watermark.held_by.map_or(
        serde_json::Value::Null,
        |(node, why)| serde_json::json!({"node": shared.cluster.url_of(node), "why": why_name(why)}),
    )
}

/// The instant of a timestamp (clock word) in Unix milliseconds; none for 0.
pub(super) fn millis(word: u64) -> Option<u64> {
    (word > 0).then(|| Version::from_words(word, 0).millis().0)
}

/// The name of `why` in answers.
pub(super) fn why_name(why: HeldBack) -> &'static str {
    match why {
        HeldBack::Away => "away",
        HeldBack::NotVoting => "not-voting",
        HeldBack::Hints => "hints",
        HeldBack::Differs => "differs",
        HeldBack::NotHeard => "not-heard",
    }
}
