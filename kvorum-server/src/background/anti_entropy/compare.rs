//! Comparing: finds the partitions in which two replicas differ, with few bytes.
//!
//! A digest has eight bytes, and there are thousands of partitions. So the question carries one sum for each group of
//! partitions, about as many groups as each has partitions. The answer carries only the digests of the groups whose
//! sums differ there. Two replicas in sync exchange only as many sums as the square root of the number of partitions.
//! It is one round trip, whatever differs.
//!
//! A sum is the exclusive or of a group's digests, which are the exclusive or of hashes of keys with their versions. So
//! a sum covers all keys of a group as a digest covers all keys of a partition.

use super::{Comparisons, Puller};
use crate::background::anti_entropy::sync::CALL_TIMEOUT;
use crate::cluster::{Pull, View};
use crate::coordinator::calls::Cause;
use crate::peer::{Reply, Request};
use kvorum_core::{Partition, Slot};
use std::collections::BTreeMap;

/// Two replicas' digests of a partition in which they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unlike {
    pub(crate) ours: u64,
    pub(crate) theirs: u64,
}

impl Puller {
    /// The partitions in which this node and the peer differ, in the records that they must share.
    pub(super) async fn unlike(&self) -> Result<BTreeMap<u16, Unlike>, Cause> {
        let (state, index) = (&self.own.shared.background.anti_entropy, self.index);
        let pull = state.pull_from(index);
        let sums = sums_of(&state.digests_of(pull));
        let request = Request::Compare { sums };
        let theirs = match self.own.link(index).ok_or(Cause::Unreachable)?.call(&request, CALL_TIMEOUT).await
        {
            Ok(Reply::Compared(digests)) => digests,
            Ok(_) => return Err(Cause::OffTopic),
            Err(error) => return Err(Cause::Call(error)),
        };
        let view = state.cluster.view();
        let mut unlike = BTreeMap::new();
        for (partition, theirs) in theirs {
            if partition >= state.partition_count() {
                return Err(Cause::OffTopic);
            }
            // Compare the current digest: most writes that were under way have arrived here by now.
            let ours = state.digest_of(pull, Partition(partition), &view);
            // What one may hold besides its own, where one of them is marked, is in few partitions: the others are not listed.
            let is_any_marked = view.is_lacking(index) || view.is_lacking(state.cluster.me());
            let has_nothing = theirs == 0 && is_any_marked;
            if ours != theirs && !has_nothing {
                unlike.insert(partition, Unlike { ours, theirs });
            }
        }
        Ok(unlike)
    }
}

impl Comparisons {
    /// The digests, by partition, of the groups whose sums differ from the `sums` of the node at `index`.
    pub(crate) fn compared(&self, index: Slot, sums: &[u64]) -> Vec<(u16, u64)> {
        unlike_stretches(&self.digests_of(self.pull_by(index)), sums)
    }

    /// This node takes from the node at `index`.
    pub(super) fn pull_from(&self, index: Slot) -> Pull {
        Pull { by: self.cluster.me(), from: index }
    }

    /// The node at `index` takes from this one.
    pub(crate) fn pull_by(&self, index: Slot) -> Pull {
        Pull { by: index, from: self.cluster.me() }
    }

    /// The digests of all partitions, over the records that the two nodes of `pull` are compared in.
    fn digests_of(&self, pull: Pull) -> Vec<u64> {
        let view = self.cluster.view();
        (0..self.partition_count())
            .map(|partition| self.digest_of(pull, Partition(partition), &view))
            .collect()
    }

    /// The digest of `partition` over the records that the two nodes of `pull` are compared in; 0 without digests.
    fn digest_of(&self, pull: Pull, partition: Partition, view: &View) -> u64 {
        let rank_max = view.rank_max(partition, pull);
        self.replica.digests().map_or(0, |digests| digests.shared(partition, rank_max))
    }

    pub(crate) fn partition_count(&self) -> u16 {
        u16::try_from(1u32 << self.cluster.partition_bits()).unwrap_or(u16::MAX)
    }
}

fn sum(digests: impl IntoIterator<Item = u64>) -> u64 {
    digests.into_iter().fold(0, |sum, digest| sum ^ digest)
}

/// The sums of groups of partitions, about as many groups as each has partitions.
fn sums_of(digests: &[u64]) -> Vec<u64> {
    digests.chunks(digests.len().isqrt().max(1)).map(|stretch| sum(stretch.iter().copied())).collect()
}

/// The digests, by partition, of the groups whose sum here differs from the one in `sums`. All digests if `sums` is
/// empty.
fn unlike_stretches(digests: &[u64], sums: &[u64]) -> Vec<(u16, u64)> {
    let length = digests.len().div_ceil(sums.len().max(1)).max(1);
    let numbered: Vec<(u16, u64)> = (0u16..).zip(digests.iter().copied()).collect();
    let theirs = sums.iter().copied().map(Some).chain(std::iter::repeat(None));
    let stretches = numbered.chunks(length).zip(theirs);
    let unlike =
        stretches.filter(|(stretch, theirs)| *theirs != Some(sum(stretch.iter().map(|(_, digest)| *digest))));
    unlike.flat_map(|(stretch, _)| stretch).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two replicas in sync exchange only sums, whatever the number of partitions; one difference costs one group.
    #[test]
    fn what_agrees_costs_its_sums() {
        for (partitions, sums, stretch) in
            [(4_096, 64, 64), (256, 16, 16), (512, 24, 22), (1, 1, 1), (0, 0, 0)]
        {
            let ours: Vec<u64> = (0..partitions).map(|number| number * 0x9e37_79b9).collect();
            assert_eq!(sums_of(&ours).len(), sums, "{partitions}");
            assert_eq!(unlike_stretches(&ours, &sums_of(&ours)), [], "{partitions}");
            let mut theirs = ours.clone();
            theirs.iter_mut().take(1).for_each(|digest| *digest ^= 1);
            assert_eq!(unlike_stretches(&theirs, &sums_of(&ours)).len(), stretch, "{partitions}");
        }
        assert_eq!(unlike_stretches(&[7, 8], &[]), [(0, 7), (1, 8)], "nothing is known of the asker");
    }

    proptest! {
        /// Every partition that differs is in the answer, with its digest there.
        #[test]
        fn whatever_differs_is_answered(
            ours in prop::collection::vec(any::<u64>(), 1..300),
            changed in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let mut theirs = ours.clone();
            // Each change flips a different bit, so that no two cancel each other.
            for (bit, at) in changed.iter().enumerate() {
                *at.get_mut(&mut theirs) ^= 1 << bit;
            }
            let answer: BTreeMap<u16, u64> = unlike_stretches(&theirs, &sums_of(&ours)).into_iter().collect();
            for (partition, (ours, theirs)) in (0u16..).zip(ours.iter().zip(&theirs)) {
                let answered = answer.get(&partition);
                prop_assert!(answered.map_or(ours == theirs, |answered| answered == theirs), "{partition}");
            }
        }

        /// Any number of sums is answered.
        #[test]
        fn sums_of_another_length_do_no_harm(
            digests in prop::collection::vec(any::<u64>(), 0..300),
            sums in prop::collection::vec(any::<u64>(), 0..400),
        ) {
            let answer = unlike_stretches(&digests, &sums);
            prop_assert!(answer.len() <= digests.len());
            prop_assert!(answer.iter().all(|(partition, digest)| digests.get(usize::from(*partition)) == Some(digest)));
        }
    }
}
