//! Whether this node's store votes in reads.
//!
//! A node that lost its disk comes back empty. It would answer "absent" for what it had confirmed, and a quorum of
//! such answers would lose acknowledged writes. The node cannot know; the others can: each remembers, durably, with
//! which store every node was seen, and tells what it remembers whenever two nodes meet ([`Roster`]). A new store
//! votes once every other node has said that it knows no older store of this one; from the moment that one says
//! otherwise it does not vote, until it has been refilled.
//!
//! Every other, not a majority: whoever remembers the older store may be the one that is away, and another that is
//! new itself has nothing to remember. So the nodes of a new cluster must all have met once before they answer reads,
//! unless the operator vouches for it that there is nothing older.

use crate::canary::{self, Canary};
use crate::replica::Vote;
use kvorum_core::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// This says whether this node's store votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Votes,
    /// It is new, and some other node has not said what it knows of it.
    Unknown,
    /// It is known to lack what an earlier store of this node held.
    Lacks,
}

/// This is who was seen with which store, and what others said of this node's own.
#[derive(Debug, Clone)]
pub struct Roster {
    me: NodeId,
    store_id: u128,
    node_count: u16,
    seen: BTreeMap<NodeId, u128>,
    verdict: Verdict,
    confirmed_by: BTreeSet<NodeId>,
}

impl Roster {
    /// The roster of the node `me` in a cluster of `node_count`, with what its store remembers. `votes` is what was
    /// found out in an earlier life.
    pub fn new(
        me: NodeId,
        store_id: u128,
        node_count: u16,
        seen: BTreeMap<NodeId, u128>,
        votes: Vote,
    ) -> Self {
        let verdict = match votes {
            Vote::Yes => Verdict::Votes,
            Vote::No => Verdict::Lacks,
            Vote::Unknown => Verdict::Unknown,
        };
        Self { me, store_id, node_count, seen, verdict, confirmed_by: BTreeSet::new() }
    }

    /// Whether this node's store votes.
    pub fn verdict(&self) -> Verdict {
        if canary::is(Canary::EmptyReplicaVotes) { Verdict::Votes } else { self.verdict }
    }

    /// What to tell others: this node with its store, and every other node with the store it was seen with.
    pub fn entries(&self) -> Vec<(NodeId, u128)> {
        let seen = self.seen.iter().map(|(node, store)| (*node, *store));
        seen.filter(|(node, _)| *node != self.me).chain([(self.me, self.store_id)]).collect()
    }

    /// Notes that `node` was met with `store`, and says what must be remembered durably before it is told to others.
    ///
    /// A node that comes with another store than before is remembered with the old one until it says that it
    /// votes: so it learns from whomever it meets that it lost something.
    pub fn meet(&self, node: NodeId, store: u128, votes: bool) -> Option<(NodeId, u128)> {
        let is_news = match self.seen.get(&node) {
            None => true,
            Some(known) => *known != store && votes,
        };
        is_news.then_some((node, store))
    }

    /// Takes up what has been stored durably.
    pub fn remember(&mut self, entries: &[(NodeId, u128)]) {
        self.seen.extend(entries.iter().copied());
    }

    /// Takes in what `from` said of everybody. Returns the verdict when it has changed, and the entries that are news
    /// here; both must be stored durably by the caller.
    pub fn hear(&mut self, from: NodeId, said: &[(NodeId, u128)]) -> (Option<Verdict>, Vec<(NodeId, u128)>) {
        let of_me = said.iter().find(|(node, _)| *node == self.me).map(|(_, store)| *store);
        let before = self.verdict;
        match (of_me, self.verdict) {
            (Some(store), Verdict::Unknown) if store != self.store_id => self.verdict = Verdict::Lacks,
            (_, Verdict::Unknown) => {
                self.confirmed_by.insert(from);
                if self.confirmed_by.len() + 1 >= usize::from(self.node_count) {
                    self.verdict = Verdict::Votes;
                }
            }
            (_, Verdict::Votes | Verdict::Lacks) => {}
        }
        let news = said
            .iter()
            .filter(|(node, _)| *node != self.me && *node != from && !self.seen.contains_key(node))
            .copied()
            .collect();
        ((self.verdict != before).then_some(self.verdict), news)
    }

    /// The nodes that have not said what they know of this one's store.
    pub fn unheard<'a>(
        &'a self,
        all: impl Iterator<Item = NodeId> + 'a,
    ) -> impl Iterator<Item = NodeId> + 'a {
        all.filter(|node| *node != self.me && !self.confirmed_by.contains(node))
    }

    /// Notes that the store lacks something: it was set aside and begun anew, or others have purged what it has not heard
    /// of.
    pub fn lose(&mut self) {
        self.verdict = Verdict::Lacks;
    }

    /// Notes that the store has been refilled from the other replicas.
    pub fn refilled(&mut self) {
        self.verdict = Verdict::Votes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: NodeId = NodeId(1);
    const A: NodeId = NodeId(2);
    const B: NodeId = NodeId(3);

    fn fresh(nodes: u16) -> Roster {
        Roster::new(ME, 11, nodes, BTreeMap::new(), Vote::Unknown)
    }

    /// A new cluster: everybody must have been met, however often the first says the same.
    #[test]
    fn new_store_votes_once_all_know_nothing_older() {
        let mut roster = fresh(3);
        assert_eq!(roster.verdict(), Verdict::Unknown);
        assert_eq!(roster.hear(A, &[(A, 22)]).0, None);
        assert_eq!(roster.hear(A, &[(ME, 11)]).0, None);
        assert_eq!(roster.hear(B, &[]).0, Some(Verdict::Votes));
    }

    /// A wiped disk: one that remembers is enough, and nobody else can outvote it.
    #[test]
    fn wiped_store_does_not_vote() {
        let mut roster = fresh(3);
        assert_eq!(roster.hear(A, &[(ME, 10)]).0, Some(Verdict::Lacks));
        assert_eq!(roster.hear(B, &[]).0, None);
        assert_eq!(roster.verdict(), Verdict::Lacks);
        let again = Roster::new(ME, 11, 3, BTreeMap::new(), Vote::No);
        assert_eq!(again.verdict(), Verdict::Lacks);
    }

    /// The old store of a node is remembered until its new one votes, also by those who heard of it only.
    #[test]
    fn old_stores_are_remembered() {
        let mut roster = fresh(3);
        assert_eq!(roster.meet(A, 20, false), Some((A, 20)));
        roster.remember(&[(A, 20)]);
        assert_eq!(roster.meet(A, 21, false), None);
        assert_eq!(roster.entries(), [(A, 20), (ME, 11)]);
        assert_eq!(roster.meet(A, 21, true), Some((A, 21)));
        assert_eq!(roster.hear(A, &[(B, 30), (ME, 11)]).1, [(B, 30)]);
    }
}
