//! `/v0/explain`: every node's copy of a key, as a table for people or JSON for programs.

use super::converged::{millis, why_name};
use super::instant;
use crate::coordinator::{Explained, Explanation, HeldPromise, HeldRecord};
use std::fmt::Write as _;

/// The body of `/v0/explain`.
pub(super) fn render(explanation: &Explanation, json: bool) -> String {
    if json { format!("{}\n", json_of(explanation)) } else { table_of(explanation) }
}

fn json_of(explanation: &Explanation) -> serde_json::Value {
    let replica = |(rank, replica): (usize, &Explained)| {
        let (held, reason) = match &replica.held {
            Ok(held) => (held.as_ref().map(held_json), None),
            Err(reason) => (None, Some(reason)),
        };
        serde_json::json!({
            "rank": rank,
            "url": replica.url,
            "asked_by_default_read": replica.is_asked,
            "answered": reason.is_none(),
            "reason": reason,
            "held": held,
            "promise": promise_json(&replica.promise),
            "hints_waiting": replica.hints_waiting,
        })
    };
    serde_json::json!({
        "token": format!("{:016x}", explanation.token),
        "partition": explanation.partition,
        "default_quorum": explanation.quorum.to_string(),
        "now": explanation.now.0,
        "agreed": millis(explanation.agreed),
        "held_by": explanation.held_by.as_ref().map(|(node, why)| serde_json::json!({"node": node, "why": why_name(*why)})),
        "replicas": explanation.replicas.iter().enumerate().map(replica).collect::<Vec<_>>(),
        "conflict": conflict_of(explanation),
    })
}

/// Names two replicas that hold different records of one version, and what brings them in sync.
fn conflict_of(explanation: &Explanation) -> Option<String> {
    let (one, other) = explanation.conflict()?;
    let state = |rank: usize| {
        let held = explanation.replicas.get(rank).and_then(|replica| replica.held.as_ref().ok()?.as_ref());
        held.map_or("nothing", |held| held.state)
    };
    let (one_state, other_state) = (state(one), state(other));
    let remedy = if one_state == other_state {
        "write the key again".to_owned()
    } else {
        format!("run kvorum repair --partition {}: the value wins", explanation.partition)
    };
    Some(format!(
        "rank {one} ({one_state}) and rank {other} ({other_state}) hold different records of one version: {remedy}"
    ))
}

fn held_json(held: &HeldRecord) -> serde_json::Value {
    serde_json::json!({
        "state": held.state,
        "version": held.version,
        "from": held.from,
        "expires": held.expires.map(instant::shown),
        "value_bytes": held.value_bytes,
        "value_hash": held.value_hash,
    })
}

fn promise_json(promise: &Result<Option<HeldPromise>, String>) -> serde_json::Value {
    match promise {
        Ok(Some(HeldPromise { ballot, since })) => {
            serde_json::json!({"state": "held", "ballot": ballot, "since": since.0, "reason": null})
        }
        Ok(None) => serde_json::json!({"state": "none", "ballot": null, "since": null, "reason": null}),
        Err(reason) => {
            serde_json::json!({"state": "unknown", "ballot": null, "since": null, "reason": reason})
        }
    }
}

fn table_of(explanation: &Explanation) -> String {
    let mut text = format!(
        "token {:016x}  partition {}  default read and write {}\n",
        explanation.token, explanation.partition, explanation.quorum
    );
    let _ = match millis(explanation.agreed) {
        Some(at) => write!(
            text,
            "all replicas of the partition agree up to {} ms ago",
            explanation.now.0.saturating_sub(at)
        ),
        None => write!(text, "not known yet whether all replicas of the partition agree"),
    };
    if let Some((node, why)) = &explanation.held_by {
        let _ = write!(text, ", held back by {node}: {}", why_name(*why));
    }
    text.push('\n');
    let width = explanation.replicas.iter().map(|replica| replica.url.len()).max().unwrap_or(0);
    for (rank, replica) in explanation.replicas.iter().enumerate() {
        let asked = if replica.is_asked { "asked" } else { "-" };
        let _ = write!(text, "rank {rank:<3} {:width$}  {asked:5}  ", replica.url);
        let _ = match &replica.held {
            Ok(None) => write!(text, "holds nothing"),
            Ok(Some(held)) => write!(
                text,
                "{:9} {}  from {}{}{}",
                held.state,
                held.version,
                held.from,
                held.value_bytes.map_or(String::new(), |bytes| format!("  {bytes} bytes")),
                held.value_hash.as_ref().map_or(String::new(), |hash| format!("  xxh3 {hash}")),
            ),
            Err(reason) => write!(text, "unknown: {reason}"),
        };
        if let Ok(Some(HeldRecord { expires: Some(at), .. })) = &replica.held {
            let _ = write!(text, "  expires {}", instant::shown(*at));
        }
        let _ = match &replica.promise {
            Ok(None) => Ok(()),
            Ok(Some(HeldPromise { ballot, since })) => {
                let ago = explanation.now.0.saturating_sub(since.0);
                write!(text, "  promised {ballot} {ago} ms ago: takes no older version")
            }
            // The record is unknown for the same reason.
            Err(_) if replica.held.is_err() => Ok(()),
            Err(reason) => write!(text, "  promise unknown: {reason}"),
        };
        if replica.hints_waiting > 0 {
            let _ = write!(text, "  ({} hints wait here for it)", replica.hints_waiting);
        }
        text.push('\n');
    }
    if let Some(conflict) = conflict_of(explanation) {
        text += &conflict;
        text.push('\n');
    }
    text
}
