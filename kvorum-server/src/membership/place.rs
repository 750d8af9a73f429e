//! What nodes say of themselves, beside the configuration, which alone decides: the zone and weight in their settings, and
//! the store that they run with.
//!
//! A node that joins is planned with its settings. Afterwards only a plan changes its place: settings that differ are
//! told, in the log of the node and by `kvorum cluster show`, with the order that would plan them.

use super::Configurations;
use crate::peer::PlaceSettings;
use kvorum_core::configuration::{ClusterMember, MemberState};
use std::sync::PoisonError;

/// How `member`, which runs with `store`, differs from the configuration: its store, and what it has `stated`. Each with the order
/// that plans it.
pub(crate) fn differences(
    member: &ClusterMember,
    store: Option<u128>,
    stated: &PlaceSettings,
) -> Vec<String> {
    // A change under way counts as if it had ended.
    let (zone, weight) = match &member.state {
        MemberState::Changing { weight, zone } => (zone, *weight),
        _ => (&member.zone, member.weight),
    };
    let url = &member.url;
    let other_zone = stated.zone.as_ref().filter(|stated| *stated != zone).map(|stated| {
        format!(
            "{url} was started with --zone {stated}, and its zone is {zone:?}: kvorum cluster plan zone {url} {stated}"
        )
    });
    let other_weight = stated.weight.filter(|stated| *stated != weight).map(|stated| {
        format!(
            "{url} was started with --weight {stated}, and its weight is {weight}: kvorum cluster plan weight {url} {stated}"
        )
    });
    let other_store = member.store.zip(store).filter(|(named, store)| named != store).map(|(named, store)| {
        format!(
            "{url} runs with the store {store:032x}, and the configuration names {named:032x}, which was lost: it has no vote on \
             changes: kvorum cluster plan store {url}"
        )
    });
    other_store.into_iter().chain(other_zone).chain(other_weight).collect()
}

impl Configurations {
    /// Logs how the settings of this node's place differ from the configuration: once for each difference.
    pub(super) fn tell_place(&self) {
        let configuration = self.cluster.configuration();
        let own = configuration.member(self.cluster.voter().node);
        let stated = self.cluster.place_settings_of(self.cluster.me());
        let differences = own.map(|own| differences(own, None, &stated)).unwrap_or_default().join("; ");
        let mut told = self.place_told.lock().unwrap_or_else(PoisonError::into_inner);
        if *told == differences {
            return;
        }
        told.clone_from(&differences);
        drop(told);
        if !differences.is_empty() {
            tracing::warn!(
                differences,
                "the configuration of the cluster counts, not these settings of this node"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvorum_core::NodeId;
    use kvorum_core::configuration::Slot;

    /// Settings that say nothing differ from nothing; others differ with the order that plans them, until it is under way.
    #[test]
    fn differences_name_the_order() {
        let mut member = ClusterMember {
            id: NodeId(1),
            slot: Slot(0),
            url: "http://a:1".to_owned(),
            zone: "east".to_owned(),
            weight: 2,
            store: Some(7),
            state: MemberState::In,
            lacks: false,
        };
        let says = |zone: Option<&str>, weight| PlaceSettings { zone: zone.map(str::to_owned), weight };
        assert!(differences(&member, Some(7), &PlaceSettings::default()).is_empty());
        assert!(differences(&member, Some(7), &says(Some("east"), Some(2))).is_empty());
        let both = differences(&member, Some(7), &says(Some("west"), Some(3)));
        assert_eq!(both.len(), 2);
        assert!(both[0].ends_with("kvorum cluster plan zone http://a:1 west"), "{both:?}");
        assert!(both[1].ends_with("kvorum cluster plan weight http://a:1 3"), "{both:?}");
        let lost = differences(&member, Some(8), &PlaceSettings::default());
        assert!(lost.len() == 1 && lost[0].ends_with("kvorum cluster plan store http://a:1"), "{lost:?}");
        assert!(differences(&member, None, &PlaceSettings::default()).is_empty());
        member.state = MemberState::Changing { weight: 3, zone: "west".to_owned() };
        assert!(differences(&member, Some(7), &says(Some("west"), Some(3))).is_empty());
    }
}
