//! `/admin/cluster`: the configuration of the cluster that the node works with.
//!
//! It is that of epoch 0, the `--cluster` list: nodes do not adopt others yet.

use kvorum_core::ClusterId;
use kvorum_core::configuration::{ClusterMember, Configuration, MemberState, Slot};
use std::fmt::Write as _;

/// The configuration: a line for it and one for each member, or one JSON object.
pub(super) fn render(configuration: &Configuration, json: bool) -> String {
    let Configuration { epoch, phase, cluster, feature_level, members, .. } = configuration;
    let is_known = *cluster != ClusterId::STAND_IN;
    let known = |text: String| is_known.then_some(text);
    let (cluster, hash) = (known(cluster.to_string()), known(configuration.hash().to_string()));
    if json {
        let body = serde_json::json!({
            "epoch": epoch.0,
            "phase": phase.to_string(),
            "cluster_id": cluster,
            "hash": hash,
            "feature_level": feature_level,
            "members": members.iter().map(row).collect::<Vec<_>>(),
        });
        return format!("{body}\n");
    }
    let [cluster, hash] = [cluster, hash].map(|text| text.unwrap_or_else(|| "unknown".to_owned()));
    let head = format!("epoch {epoch} {phase} cluster {cluster} hash {hash}\n");
    members.iter().fold(head, |mut page, member| {
        let ClusterMember { id, slot: Slot(slot), url, zone, weight, state, lacks, store: _ } = member;
        let lacks = if *lacks { " lacks" } else { "" };
        let state = name_of(state);
        let _ = writeln!(page, "member {slot} {url} id {id} zone {zone:?} weight {weight} {state}{lacks}");
        page
    })
}

fn row(member: &ClusterMember) -> serde_json::Value {
    serde_json::json!({
        "id": member.id.to_string(),
        "slot": member.slot.0,
        "url": member.url,
        "zone": member.zone,
        "weight": member.weight,
        "store": member.store.map(|store| format!("{store:032x}")),
        "state": name_of(&member.state),
        "lacks": member.lacks,
    })
}

fn name_of(state: &MemberState) -> &'static str {
    match state {
        MemberState::In => "in",
        MemberState::Joining => "joining",
        MemberState::Leaving => "leaving",
        MemberState::Changing { .. } => "changing",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvorum_core::{Placement, Topology};

    /// Both forms have every member, and what will be there once members change.
    #[test]
    fn members_are_shown() {
        let topology = Topology::of_urls(["http://a:1", "https://b:1"]).unwrap();
        let cluster = ClusterId::new(0xc1).unwrap();
        let mut shown = Configuration::genesis(cluster, &topology, &Placement::initial(&topology));
        (shown.members[1].state, shown.members[1].lacks) = (MemberState::Leaving, true);
        shown.members[1].store = Some(7);
        let page = render(&shown, false);
        let head = format!("epoch 0 stable cluster {cluster} hash {}\n", shown.hash());
        assert!(page.starts_with(&head), "{page}");
        for (slot, member) in shown.members.iter().enumerate() {
            assert!(page.contains(&format!("\nmember {slot} {} id {} ", member.url, member.id)), "{page}");
        }
        assert!(page.ends_with(" zone \"\" weight 1 leaving lacks\n"), "{page}");
        let body: serde_json::Value = serde_json::from_str(&render(&shown, true)).unwrap();
        assert_eq!((&body["epoch"], &body["phase"]), (&0.into(), &"stable".into()));
        assert_eq!(body["hash"], shown.hash().to_string());
        let unknown = Configuration { cluster: ClusterId::STAND_IN, ..shown };
        assert!(render(&unknown, false).starts_with("epoch 0 stable cluster unknown hash unknown\n"));
        let none: serde_json::Value = serde_json::from_str(&render(&unknown, true)).unwrap();
        assert!(none["hash"].is_null() && none["cluster_id"].is_null());
        assert_eq!(body["members"][0]["store"], serde_json::Value::Null);
        assert_eq!(body["members"][1]["store"], format!("{:032x}", 7));
        assert_eq!(
            (&body["members"][1]["state"], &body["members"][1]["lacks"]),
            (&"leaving".into(), &true.into())
        );
    }
}
