//! Epochs: each epoch has one configuration, on whichever node and at whatever time. No node goes back to an earlier one, and
//! in the end all nodes work with the same.
//!
//! A node may go back only with its disk. Not checked where a disk was replaced by an older copy: its store may have forgotten
//! votes that no other node can witness, and two majorities may then meet in that store alone (decision 33.10).

use super::facts::LossKind;
use super::{Facts, Violation};
use crate::history::History;

/// Checks the invariant.
pub fn check(_history: &History, facts: &Facts) -> Result<(), Violation> {
    let broken = |explanation: String| {
        Err(Violation { invariant: "epochs", key: None, explanation, operations: Vec::new() })
    };
    if facts.losses.iter().any(|loss| matches!(loss.kind, LossKind::Older | LossKind::OlderNoticed)) {
        return Ok(());
    }
    if let Some((epoch, hashes)) = facts.adopted.iter().find(|(_, hashes)| hashes.len() > 1) {
        let shown: Vec<String> =
            hashes.iter().map(|(hash, nodes)| format!("{hash:032x} by nodes {nodes:?}")).collect();
        return broken(format!("epoch {epoch} has {} configurations: {}", hashes.len(), shown.join(", ")));
    }
    let has_lost = |node: u16| facts.losses.iter().any(|loss| loss.node == node);
    if let Some((node, before, after, at)) = facts.epochs_lost.iter().find(|(node, ..)| !has_lost(*node)) {
        return broken(format!("node {node} went back from epoch {before} to {after} at {at:?}"));
    }
    // A node that was removed learns no more.
    let mut ends = facts.epochs.iter().filter(|(node, _)| !facts.is_outside(**node)).map(|(_, epoch)| epoch);
    let first = ends.next();
    if facts.converged.is_some() && ends.any(|epoch| Some(epoch) != first) {
        return broken(format!("in the end the nodes work with different epochs: {:?}", facts.epochs));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::invariants::facts::{Loss, LossKind};
    use std::time::Duration;

    /// Two configurations of one epoch are found, also where no node has both; so is a node that goes back.
    #[test]
    fn forks_and_returns_are_found() {
        let at = Duration::from_secs(1);
        let run = |seen: &[(u16, &[(u64, u128)])], lost: Option<LossKind>| {
            let mut facts = facts();
            for (node, chain) in seen {
                facts.adopted(*node, chain, at);
            }
            let loss = lost.map(|kind| Loss { node: 0, at, kind, since: Duration::ZERO });
            facts.losses.extend(loss);
            check(&history([]), &facts)
        };
        assert_eq!(run(&[(0, &[(1, 7), (2, 8)]), (1, &[(1, 7), (2, 8)])], None), Ok(()));
        let fork: &[(u16, &[(u64, u128)])] = &[(0, &[(1, 7), (2, 8)]), (1, &[(1, 7), (2, 9)])];
        assert!(run(fork, None).is_err());
        assert!(run(fork, Some(LossKind::Wiped)).is_err());
        assert_eq!(run(fork, Some(LossKind::Older)), Ok(()));
        let back: &[(u16, &[(u64, u128)])] = &[(0, &[(1, 7)]), (0, &[]), (0, &[(1, 7)])];
        assert!(run(back, None).is_err());
        assert_eq!(run(back, Some(LossKind::Wiped)), Ok(()));
    }
}
