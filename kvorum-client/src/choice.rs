//! The choice of the node for an attempt. Decisions only: time is an argument, and `exchange` sends the
//! request.

use crate::pool::{Health, Node};
use std::sync::Arc;
use tokio::time::Instant;

/// The best node among tiers of nodes, the better tier first; `None` where all are empty.
///
/// Within a tier, `turn` decides. Nodes that the operation has tried come after all that it has not. Nodes
/// that rest or are set aside come last, because even they are better than none. `tried` is in the order of
/// the attempts.
pub(crate) fn choose(
    tiers: &[&[Arc<Node>]],
    turn: usize,
    tried: &[Arc<Node>],
    now: Instant,
) -> Option<Arc<Node>> {
    let mut best: Option<(Merit, &Arc<Node>)> = None;
    for tier in tiers {
        let start = turn.checked_rem(tier.len()).unwrap_or(0);
        let (before, from) = tier.split_at_checked(start).unwrap_or_default();
        for node in from.iter().chain(before) {
            let merit = Merit::of(node, tried, now);
            if merit == Merit::Fresh {
                return Some(Arc::clone(node));
            }
            // The first of equals stays.
            if best.as_ref().is_none_or(|(best, _)| merit < *best) {
                best = Some((merit, node));
            }
        }
    }
    best.map(|(_, node)| Arc::clone(node))
}

/// The rank of a node in the choice; less is better.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Merit {
    /// Healthy, and not tried yet.
    Fresh,
    /// Healthy, but tried in the attempt of this number, counted from the first: the node that was tried
    /// longest ago goes first.
    Tried(usize),
    /// Has asked not to be sent requests before this instant.
    Resting(Instant),
    /// Set aside; a node that was not tried goes first, then the one that was tried longest ago.
    Aside(Option<usize>),
}

impl Merit {
    fn of(node: &Arc<Node>, tried: &[Arc<Node>], now: Instant) -> Self {
        let tried_at = tried.iter().rposition(|other| Arc::ptr_eq(other, node));
        match (node.health(now), tried_at) {
            (Health::Well, None) => Self::Fresh,
            (Health::Well, Some(at)) => Self::Tried(at),
            (Health::RestsUntil(until), _) => Self::Resting(until),
            (Health::Aside, at) => Self::Aside(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::tests::nodes;
    use std::time::Duration;

    #[test]
    fn the_best_there_is() {
        let now = Instant::now();
        let all = nodes(4);
        let [a, b, c, d] = &all[..] else { panic!() };
        let check = |tiers: &[&[Arc<Node>]], turn, tried: &[&Arc<Node>], expect: &Arc<Node>| {
            let tried: Vec<_> = tried.iter().map(|&node| Arc::clone(node)).collect();
            let chosen = choose(tiers, turn, &tried, now).unwrap();
            assert_eq!(chosen.name(), expect.name(), "turn {turn}");
        };
        let tiers: &[&[Arc<Node>]] = &[&all[..2], &all[..]];
        // In turn within the first tier, then the rest of the second tier, then the node that was tried
        // longest ago.
        check(tiers, 0, &[], a);
        check(tiers, 1, &[], b);
        check(tiers, usize::MAX, &[], b);
        check(tiers, 0, &[a], b);
        check(tiers, 0, &[a, b], c);
        check(tiers, 0, &[a, b, d, c], a);
        check(tiers, 0, &[b, a, d, c], b);
        check(tiers, 0, &[b, a, d, c, b], a);
        // Resting nodes come after healthy ones, nodes that are set aside come after resting ones.
        a.rest(now + Duration::from_secs(2));
        check(tiers, 0, &[], b);
        check(tiers, 0, &[b, c, d], b);
        b.set_aside();
        check(tiers, 0, &[], c);
        c.rest(now + Duration::from_secs(1));
        d.set_aside();
        check(tiers, 0, &[], c);
        check(&[&all[3..], &all[1..2]], 0, &[], d);
        check(&[&all[3..], &all[1..2]], 0, &[d], b);
        d.take_back();
        check(tiers, 0, &[d], d);
        assert!(choose(&[&[]], 3, &[], now).is_none());
        assert!(choose(&[], 3, &[], now).is_none());
    }
}
