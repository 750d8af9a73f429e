//! Whether this node's store is quorum-eligible ("votes"): whether its answers count in reads and writes.
//!
//! A node that lost its disk comes back empty. It would answer "absent" for records that it had confirmed, and a quorum
//! of such answers would lose acknowledged writes. The node cannot know of its loss, but the others can. Each remembers
//! durably with which store it saw every node, and two nodes exchange these memories whenever they meet ([`PeerRegistry`]).
//!
//! A new store becomes eligible once every other node has said that it knows no older store of this node. As soon as
//! one node does know an older store, the new one is not eligible until it has been refilled.
//!
//! Every other node must answer, not a majority. The node that remembers the older store may be the one that is away,
//! and another that is itself new remembers nothing. So the nodes of a new cluster must all have met once before they
//! answer reads, unless the operator vouches that there is no older store.

use crate::canary::{self, Canary};
use crate::replica::Vote;
use kvorum_core::{NodeId, PastRuns, Run, StoreSeen};
use std::collections::{BTreeMap, BTreeSet};

/// Whether this node's store is quorum-eligible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The store is eligible.
    Votes,
    /// The store is new, and some other node has not said what it knows of an older one.
    Unknown,
    /// The store is known to lack records that an earlier store of this node held.
    Lacks,
}

/// The highest run number that is believed: more starts than a thousand a second make in 30 years.
const RUN_NUMBER_MAX: u64 = 1 << 40;

/// The consequences of another node's message about all nodes' stores. The caller durably stores the changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// The verdict, when it has changed.
    pub verdict: Option<Verdict>,
    /// The run of this node, and those before it, when they have changed.
    pub run: Option<(Run, PastRuns)>,
    /// The store with which the other node remembers a run of this node that this store is not from.
    pub behind: Option<u128>,
    /// Entries of nodes that were unknown here.
    pub news: Vec<StoreSeen>,
}

impl Heard {
    /// Whether anything follows from it.
    pub fn is_news(&self) -> bool {
        self.verdict.is_some() || self.run.is_some() || self.behind.is_some() || !self.news.is_empty()
    }
}

/// The peer registry: the store that each node was seen with, and what others said of this node's own.
#[derive(Debug, Clone)]
pub struct PeerRegistry {
    me: NodeId,
    store_id: u128,
    run: Run,
    past: PastRuns,
    /// The run and those before it, as they are stored.
    stored: (Run, PastRuns),
    node_count: u16,
    seen: BTreeMap<NodeId, (u128, Run)>,
    verdict: Verdict,
    confirmed_by: BTreeSet<NodeId>,
}

impl PeerRegistry {
    /// The registry of the node `own` in a cluster of `node_count`, with the entries that its store remembers. `votes`
    /// is the eligibility that an earlier run found out.
    pub fn new(own: StoreSeen, node_count: u16, seen: BTreeMap<NodeId, (u128, Run)>, votes: Vote) -> Self {
        let StoreSeen { node: me, store: store_id, run } = own;
        let verdict = match votes {
            Vote::Yes => Verdict::Votes,
            Vote::No => Verdict::Lacks,
            Vote::Unknown => Verdict::Unknown,
        };
        let (past, stored) = (PastRuns::default(), (run, PastRuns::default()));
        let confirmed_by = BTreeSet::new();
        Self { me, store_id, run, past, stored, node_count, seen, verdict, confirmed_by }
    }

    /// The same registry, of a store that comes from the runs `past`.
    #[must_use]
    pub fn after(self, past: PastRuns) -> Self {
        Self { stored: (self.run, past.clone()), past, ..self }
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.me
    }

    /// Notes the members of the cluster, this node among them. From now on only their words count.
    pub fn note_members(&mut self, members: impl Iterator<Item = NodeId>) {
        let members: BTreeSet<NodeId> = members.collect();
        self.node_count = u16::try_from(members.len()).unwrap_or(u16::MAX);
        self.confirmed_by.retain(|node| members.contains(node));
    }

    /// Whether this node's store is quorum-eligible.
    pub fn verdict(&self) -> Verdict {
        if canary::is(Canary::EmptyReplicaVotes) { Verdict::Votes } else { self.verdict }
    }

    /// The run that this node's store is in.
    pub fn run(&self) -> Run {
        self.run
    }

    /// The runs that this node's store comes from.
    pub fn past(&self) -> &PastRuns {
        &self.past
    }

    /// The store and the run that `node` was seen with.
    pub fn seen_of(&self, node: NodeId) -> Option<(u128, Run)> {
        self.seen.get(&node).copied()
    }

    /// Every node's store: that which it was seen with, and this node's own.
    pub fn stores(&self) -> Vec<StoreSeen> {
        let seen =
            self.seen.iter().map(|(node, (store, run))| StoreSeen { node: *node, store: *store, run: *run });
        let own = StoreSeen { node: self.me, store: self.store_id, run: self.stored.0 };
        seen.filter(|seen| seen.node != self.me).chain([own]).collect()
    }

    /// Notes that this run and the runs before it are stored.
    pub fn note_stored(&mut self, run: Run, past: PastRuns) {
        self.stored = (run, past);
    }

    /// The entries to send to other nodes: every node's store, and the runs that this node's comes from. Earlier releases read
    /// the first entry of a node.
    ///
    /// A node that hears that this one knows of a run forgets it. So only what is stored is told: a crash must not forget it here
    /// as well.
    pub fn entries(&self) -> Vec<StoreSeen> {
        let past = self.stored.1.told(self.store_id);
        let past = past.map(|(store, run)| StoreSeen { node: self.me, store, run });
        self.stores().into_iter().chain(past).collect()
    }

    /// Notes the store and the run that the node `node` was met with, as it says in its own `entries`. Returns the entry that must
    /// be stored durably before other nodes are told of it.
    ///
    /// A node may come with another store than before, or with one that is not from the run that it was seen in. Its old entry
    /// is kept until the node says that it knows of that run: so any node it meets tells it of its loss. For another store it must
    /// also say that the store is eligible.
    pub fn meet(&self, node: NodeId, entries: &[StoreSeen], votes: bool) -> Option<StoreSeen> {
        let mut own = entries.iter().filter(|seen| seen.node == node);
        let met = own.next().filter(|met| met.run.number <= RUN_NUMBER_MAX)?;
        let past = PastRuns::new(own.take(PastRuns::TOLD_MAX).map(|seen| (seen.store, seen.run)));
        let is_news = match self.seen.get(&node) {
            None => true,
            Some(&(store, run)) if run.number <= RUN_NUMBER_MAX => {
                let now = (met.store, met.run);
                now != (store, run) && (store == met.store || votes) && !is_denied(&past, now, (store, run))
            }
            // No store was started so often.
            Some(_) => votes,
        };
        is_news.then_some(*met)
    }

    /// The node other than `other_than` whose store `store` is, as far as this node remembers.
    pub fn owner_of(&self, store: u128, other_than: NodeId) -> Option<NodeId> {
        if store == self.store_id && other_than != self.me {
            return Some(self.me);
        }
        self.seen
            .iter()
            .find(|(node, (seen, _))| *seen == store && **node != other_than)
            .map(|(node, _)| *node)
    }

    /// Takes over entries that have been stored durably.
    pub fn remember(&mut self, entries: &[StoreSeen]) {
        self.seen.extend(entries.iter().map(|seen| (seen.node, (seen.store, seen.run))));
    }

    /// Processes the message `said` of the node `from` about all nodes' stores.
    ///
    /// Another node may remember a run of this node that this store is not from. That was a run of another store or
    /// of a later state of this one, and its writes are lost here. This node's run number then jumps past it, and the store
    /// notes that run, so that the same memory, repeated by a node that was away, is no longer news.
    pub fn hear(&mut self, from: NodeId, said: &[StoreSeen]) -> Heard {
        let of_me = said.iter().find(|seen| seen.node == self.me && seen.run.number <= RUN_NUMBER_MAX);
        let (before, mut is_noted) = (self.verdict, false);
        let own = (self.store_id, self.run);
        let is_behind = of_me.is_some_and(|seen| is_denied(&self.past, own, (seen.store, seen.run)));
        if let Some(seen) = of_me.filter(|seen| is_behind || seen.store != self.store_id) {
            let least = self.run.number + u64::from(is_behind);
            self.run.number = least.max(seen.run.number + 1);
            is_noted = self.past.note(self.store_id, self.store_id, own.1);
            is_noted |= self.past.note(self.store_id, seen.store, seen.run);
        }
        match (of_me, self.verdict) {
            (Some(seen), Verdict::Unknown) if seen.store != self.store_id => self.verdict = Verdict::Lacks,
            (_, Verdict::Unknown | Verdict::Votes) if is_behind => self.verdict = Verdict::Lacks,
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
            .filter(|seen| seen.node != self.me && seen.node != from && !self.seen.contains_key(&seen.node))
            .copied()
            .collect();
        Heard {
            verdict: (self.verdict != before).then_some(self.verdict),
            run: (is_noted || self.run != own.1).then(|| (self.run, self.past.clone())),
            behind: of_me.filter(|_| is_behind).map(|seen| seen.store),
            news,
        }
    }

    /// The nodes that have not yet said what they know of an older store of this node.
    pub fn unheard<'a>(
        &'a self,
        all: impl Iterator<Item = NodeId> + 'a,
    ) -> impl Iterator<Item = NodeId> + 'a {
        all.filter(|node| *node != self.me && !self.confirmed_by.contains(node))
    }

    /// Notes that the store lacks records: it was set aside and replaced by an empty one, or others have purged past
    /// it.
    pub fn lose(&mut self) {
        self.verdict = Verdict::Lacks;
    }

    /// Notes that the store has been refilled from the other replicas.
    pub fn refilled(&mut self) {
        self.verdict = Verdict::Votes;
    }
}

/// Whether a store that comes from `past` and is `now` is not from the store and run `seen`.
fn is_denied(past: &PastRuns, now: (u128, Run), seen: (u128, Run)) -> bool {
    let knows_none = canary::is(Canary::RestartedCopyCounts).then(PastRuns::default);
    knows_none.as_ref().unwrap_or(past).deny(now, seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: NodeId = NodeId(1);
    const A: NodeId = NodeId(2);
    const B: NodeId = NodeId(3);

    fn seen(node: NodeId, store: u128, number: u64) -> StoreSeen {
        StoreSeen { node, store, run: Run { number, nonce: 5 } }
    }

    fn registry(nodes: u16, number: u64, vote: Vote) -> PeerRegistry {
        PeerRegistry::new(seen(ME, 11, number), nodes, BTreeMap::new(), vote)
    }

    fn fresh(nodes: u16) -> PeerRegistry {
        registry(nodes, 1, Vote::Unknown)
    }

    /// A new cluster: every other node must have been met, however often the first repeats its answer.
    #[test]
    fn new_store_votes_once_all_know_nothing_older() {
        let mut registry = fresh(3);
        assert_eq!(registry.verdict(), Verdict::Unknown);
        assert_eq!(registry.hear(A, &[seen(A, 22, 1)]).verdict, None);
        assert_eq!(registry.hear(A, &[seen(ME, 11, 1)]).verdict, None);
        assert_eq!(registry.hear(B, &[]).verdict, Some(Verdict::Votes));
    }

    /// A wiped disk: one node that remembers the old store is enough, and no other node can outvote it.
    #[test]
    fn wiped_store_does_not_vote() {
        let mut registry = fresh(3);
        assert_eq!(registry.hear(A, &[seen(ME, 10, 0)]).verdict, Some(Verdict::Lacks));
        assert_eq!(registry.hear(B, &[]).verdict, None);
        assert_eq!(registry.verdict(), Verdict::Lacks);
        let again = PeerRegistry::new(seen(ME, 11, 1), 3, BTreeMap::new(), Vote::No);
        assert_eq!(again.verdict(), Verdict::Lacks);
    }

    /// A store is an older copy if another node saw a later run of it. So is one of two copies that were started from
    /// the same state. The store reports it once, and continues with a number that no node has seen.
    #[test]
    fn older_run_does_not_vote() {
        let mut restored = registry(3, 4, Vote::Yes);
        assert_eq!(restored.hear(A, &[seen(ME, 11, 4)]).verdict, None, "the same run");
        assert_eq!(restored.hear(A, &[seen(ME, 11, 3)]).verdict, None, "the run before");
        let heard = restored.hear(A, &[seen(ME, 11, 7)]);
        assert_eq!((heard.verdict, heard.run.map(|(run, _)| run.number)), (Some(Verdict::Lacks), Some(8)));
        restored.refilled();
        assert_eq!(restored.hear(B, &[seen(ME, 11, 7)]).verdict, None, "told once more by one that was away");
        let mut copy = registry(3, 4, Vote::Yes);
        let other = StoreSeen { run: Run { number: 4, nonce: 6 }, ..seen(ME, 11, 4) };
        assert_eq!(copy.hear(A, &[other]).verdict, Some(Verdict::Lacks));
        assert_eq!(copy.run().number, 5);
        let forged = seen(ME, 11, u64::MAX);
        assert_eq!(
            registry(3, 4, Vote::Yes).hear(A, &[forged]).verdict,
            None,
            "no store was started so often"
        );
    }

    /// An older disk of a node whose store was replaced since: its store differs from the remembered one, and its run
    /// is earlier.
    #[test]
    fn store_before_a_replacement_does_not_vote() {
        let mut replaced = fresh(3);
        let heard = replaced.hear(A, &[seen(ME, 10, 6)]);
        assert_eq!((heard.verdict, heard.run.map(|(run, _)| run.number)), (Some(Verdict::Lacks), Some(7)));
        let mut older = PeerRegistry::new(seen(ME, 10, 5), 3, BTreeMap::new(), Vote::Yes);
        assert_eq!(older.hear(A, &[seen(ME, 11, 7)]).verdict, Some(Verdict::Lacks));
        // A node that was away tells the replacement store of the older one: no news.
        replaced.refilled();
        assert_eq!(replaced.hear(B, &[seen(ME, 10, 6)]).verdict, None);
    }

    /// Other nodes remember a node's old store until its new one is eligible, even if they only heard of the old one.
    #[test]
    fn old_stores_are_remembered() {
        let mut registry = fresh(3);
        assert_eq!(registry.meet(A, &[seen(A, 20, 1)], false), Some(seen(A, 20, 1)));
        registry.remember(&[seen(A, 20, 1)]);
        assert_eq!(registry.meet(A, &[seen(A, 21, 1)], false), None);
        assert_eq!(registry.entries(), [seen(A, 20, 1), seen(ME, 11, 1)]);
        assert_eq!(registry.meet(A, &[seen(A, 21, 1)], true), Some(seen(A, 21, 1)));
        assert_eq!(registry.hear(A, &[seen(B, 30, 1), seen(ME, 11, 1)]).news, [seen(B, 30, 1)]);
    }

    /// The latest run of a store is remembered, and no earlier one, nor one that no store can be in.
    #[test]
    fn latest_runs_are_remembered() {
        let mut registry = fresh(3);
        registry.remember(&[seen(A, 20, 3)]);
        assert_eq!(registry.meet(A, &[seen(A, 20, 3)], true), None);
        assert_eq!(registry.meet(A, &[seen(A, 20, 4)], false), Some(seen(A, 20, 4)));
        for votes in [false, true] {
            assert_eq!(registry.meet(A, &[seen(A, 20, 2)], votes), None);
            assert_eq!(registry.meet(A, &[seen(A, 20, u64::MAX)], votes), None);
            assert_eq!(registry.meet(A, &[seen(B, 20, 4)], votes), None, "the words of another node");
        }
    }

    /// Seed 2023317931. An older copy is started twice while no node answers, so its number passes that of the run that the other
    /// nodes remember. They tell it of that run all the same, until it says that it knows of it.
    #[test]
    fn older_copy_that_was_started_twice_does_not_vote() {
        let with = |number, nonce| StoreSeen { run: Run { number, nonce }, ..seen(ME, 11, number) };
        let past = |runs: &[StoreSeen]| PastRuns::new(runs.iter().map(|seen| (seen.store, seen.run)));
        let mut other = PeerRegistry::new(seen(A, 22, 1), 3, BTreeMap::new(), Vote::Yes);
        other.remember(&[with(5, 1)]);
        let own = with(6, 7);
        let mut copy =
            PeerRegistry::new(own, 3, BTreeMap::new(), Vote::Yes).after(past(&[with(4, 1), with(5, 6)]));
        assert_eq!(other.meet(ME, &copy.entries(), true), None);
        let heard = copy.hear(A, &other.entries());
        assert_eq!((heard.verdict, heard.behind), (Some(Verdict::Lacks), Some(11)));
        let (run, kept) = heard.run.unwrap();
        assert_eq!((run, kept.clone()), (copy.run(), copy.past().clone()));
        assert_eq!(other.meet(ME, &copy.entries(), false), None, "it may still forget that in a crash");
        copy.note_stored(run, kept.clone());
        copy.refilled();
        let again = StoreSeen { run, ..own };
        for copy in [copy, PeerRegistry::new(again, 3, BTreeMap::new(), Vote::Yes).after(kept)] {
            assert_eq!(copy.clone().hear(A, &other.entries()).verdict, None, "no news any more");
            assert_eq!(copy.clone().hear(B, &[with(6, 7)]).verdict, None, "seen in between");
            assert_eq!(other.meet(ME, &copy.entries(), false), Some(again));
        }
        // The run that the other node saw, and the one after it.
        let mut own = PeerRegistry::new(with(6, 3), 3, BTreeMap::new(), Vote::Yes).after(past(&[with(5, 1)]));
        assert_eq!(own.hear(A, &other.entries()).verdict, None);
        assert_eq!(other.meet(ME, &own.entries(), false), Some(with(6, 3)));
    }

    /// The same of a store that was replaced since: its number passes that of the store after it.
    #[test]
    fn store_before_a_replacement_does_not_vote_however_often_it_was_started() {
        let mut other = PeerRegistry::new(seen(A, 22, 1), 3, BTreeMap::new(), Vote::Yes);
        other.remember(&[seen(ME, 12, 3)]);
        let past = PastRuns::new((1..6).map(|number| (11, Run { number, nonce: number })));
        let mut older = registry(3, 6, Vote::Yes).after(past);
        assert_eq!(other.meet(ME, &older.entries(), true), None);
        assert_eq!(older.hear(A, &other.entries()).verdict, Some(Verdict::Lacks));
        older.note_stored(older.run(), older.past().clone());
        older.refilled();
        assert_eq!(older.hear(A, &other.entries()).verdict, None);
        assert!(other.meet(ME, &older.entries(), true).is_some());
    }

    /// The owner of a store is found under every node that it was seen with, except the node that is asked about.
    #[test]
    fn stores_have_owners() {
        let mut registry = fresh(3);
        registry.remember(&[seen(A, 20, 1)]);
        assert_eq!(registry.owner_of(20, A), None);
        assert_eq!(registry.owner_of(20, B), Some(A));
        assert_eq!(registry.owner_of(11, B), Some(ME));
        assert_eq!(registry.owner_of(30, B), None);
    }
}
