//! Ballots at one replica: promises and fences, and everything that meets them.

use super::super::answer::Judged;
use super::*;
use kvorum_core::{Conditional, Lineage};

impl Bench {
    fn prepare(&mut self, ballot: u64, earlier: &[u64]) -> Judged {
        let observed = self.observe("k");
        let (done, mut answer) = oneshot::channel();
        let earlier = earlier.iter().map(|millis| version(*millis)).collect();
        let (key, ballot) = (key("k"), version(ballot));
        let request =
            Request::Prepare { key, ballot, earlier, observed, done, completions: None, times: None };
        self.committer.commit(vec![request]);
        answer.try_recv().unwrap().unwrap()
    }

    /// The same store after a restart.
    fn restarted(self) -> Self {
        Self::over(self.engine, DurabilityMode::Always, Purge::Keep)
    }
}

fn bench() -> Bench {
    Bench::new(DurabilityMode::Always, Purge::Keep)
}

fn is_promised(judged: &Judged) -> bool {
    matches!(judged, Judged::Promised { .. })
}

fn denied(millis: u64) -> Judged {
    Judged::Denied { by: version(millis) }
}

fn contested(millis: u64) -> Applied {
    Applied::Contested { by: version(millis) }
}

fn built(millis: u64, origin: u64, base: u64) -> Record {
    let lineage = Lineage { origin: version(origin), base: version(base) };
    let conditional = Some(Box::new(Conditional { lineage, operation: None }));
    Record { conditional, ..value(millis, "built") }
}

const ALL_COPIES: [Source; 4] =
    [Source::Writer, Source::Copy, Source::Reader, Source::Repair { agreed: u64::MAX }];

/// A promise keeps out what is below it, whoever sends it, also after a restart; what is above passes and ends it.
#[test]
fn a_promise_binds_everybody() {
    let mut bench = bench();
    assert_eq!(bench.apply_as(Source::Writer, value(1, "one")), Applied::Stored);
    assert!(is_promised(&bench.prepare(10, &[])));
    let mut bench = bench.restarted();
    assert_eq!(bench.promises.of(&key("k")), version(10));
    for source in ALL_COPIES {
        assert_eq!(bench.apply_as(source, value(5, "five")), contested(10), "{source:?}");
    }
    assert_eq!(bench.apply_as(Source::Ballot, built(9, 9, 1)), contested(10));
    assert_eq!(bench.prepare(10, &[]), denied(10));
    assert_eq!(bench.stored("k"), Some(value(1, "one")));
    // Another key is free.
    assert_eq!(bench.apply("other", value(5, "five")).unwrap(), Applied::Stored);
    assert_eq!(bench.apply_as(Source::Ballot, built(10, 10, 1)), Applied::Stored);
    assert_eq!((bench.promises.len(), bench.promises.of(&key("k"))), (0, Version::ZERO));
    assert!(bench.restarted().promises.is_empty());
}

/// A plain write above a promise ends it as well; the ballot's record then comes too late.
#[test]
fn a_newer_write_ends_a_promise() {
    let mut bench = bench();
    assert!(is_promised(&bench.prepare(10, &[])));
    assert_eq!(bench.apply_as(Source::Writer, value(11, "eleven")), Applied::Stored);
    assert!(bench.promises.is_empty());
    assert_eq!(bench.apply_as(Source::Ballot, built(10, 10, 1)), contested(11));
    assert_eq!(bench.prepare(11, &[]), denied(11));
}

/// A promise and what it keeps out, in one group.
#[test]
fn a_group_sees_its_own_promises() {
    let mut bench = bench();
    let observed = bench.observe("k");
    let (done, mut promised) = oneshot::channel();
    let ballot = Request::Prepare {
        key: key("k"),
        ballot: version(10),
        earlier: Vec::new(),
        observed,
        done,
        completions: None,
        times: None,
    };
    let (done, mut applied) = oneshot::channel();
    let source = Source::Writer;
    let write = Request::Apply {
        key: key("k"),
        record: value(5, "five"),
        source,
        observed,
        done,
        completions: None,
        times: None,
    };
    bench.committer.commit(vec![ballot, write]);
    assert!(is_promised(&promised.try_recv().unwrap().unwrap()));
    assert_eq!(applied.try_recv().unwrap().unwrap(), contested(10));
    assert_eq!(bench.stored("k"), None);
}

/// A plain write below a record is contested where a ballot above it was here, however long ago, and superseded elsewhere.
#[test]
fn ballots_are_not_forgotten() {
    let mut bench = bench();
    assert!(is_promised(&bench.prepare(10, &[])));
    assert_eq!(bench.apply_as(Source::Writer, value(20, "twenty")), Applied::Stored);
    bench.forget();
    bench.source = Source::Writer;
    assert_eq!(bench.apply("k", value(9, "nine")).unwrap(), contested(20));
    assert!(matches!(bench.apply("k", value(11, "eleven")).unwrap(), Applied::Superseded { .. }));
    // After a restart it is not known any more which ballots were met, up to a second after the latest.
    let mut bench = bench.restarted();
    assert_eq!(bench.apply("k", value(11, "eleven")).unwrap(), contested(20));
    assert_eq!(bench.apply("k", value(3_000, "newer")).unwrap(), Applied::Stored);
    assert!(matches!(bench.apply("k", value(2_000, "older")).unwrap(), Applied::Superseded { .. }));
    // A reader begins again; it found nothing that was acknowledged.
    assert!(matches!(bench.apply_as(Source::Reader, value(9, "nine")), Applied::Superseded { .. }));
}

/// A ballot is told whether its write's earlier versions were the newest here, and whether anything was built on them.
#[test]
fn earlier_versions_are_remembered() {
    let flags = |judged| match judged {
        Judged::Promised { has_held, has_built, .. } => (has_held, has_built),
        Judged::Denied { .. } => panic!("{judged:?}"),
    };
    let mut bench = bench();
    assert_eq!(bench.apply_as(Source::Writer, value(4, "four")), Applied::Stored);
    assert_eq!(flags(bench.prepare(5, &[4])), (true, false));
    assert_eq!(bench.apply_as(Source::Ballot, built(6, 6, 4)), Applied::Stored);
    assert_eq!(bench.apply_as(Source::Ballot, built(7, 6, 4)), Applied::Stored);
    assert_eq!(bench.apply_as(Source::Writer, value(8, "eight")), Applied::Stored);
    assert_eq!(flags(bench.prepare(9, &[3])), (false, false));
    assert_eq!(flags(bench.prepare(10, &[3, 4])), (true, true));
    assert_eq!(flags(bench.prepare(11, &[6])), (true, true));
    assert_eq!(flags(bench.prepare(12, &[8])), (true, false));
    // The ballot's own record was overwritten: it was taken all the same.
    assert_eq!(bench.apply_as(Source::Ballot, built(7, 6, 4)), Applied::Stored);
}

/// A fence ends ballots and nothing else, survives a restart, and never goes back.
#[test]
fn a_fence_ends_ballots_only() {
    let mut bench = bench();
    let put = |key: &'static [u8], value| Change::Put {
        keyspace: Keyspace::Meta,
        key: Bytes::from_static(key),
        value,
    };
    let word = UnixMillis(version(10).clock());
    let row = put(format::META_FENCE, format::encode_lease(word));
    bench.engine.commit(vec![row], crate::storage::Durability::Synced).unwrap();
    bench = bench.restarted();
    assert_eq!(
        bench.apply_as(Source::Ballot, built(10, 10, 1)),
        Applied::Contested { by: bench.promises.fence() }
    );
    assert_eq!(bench.prepare(10, &[]), Judged::Denied { by: bench.promises.fence() });
    assert_eq!(bench.apply_as(Source::Repair { agreed: 0 }, built(8, 8, 1)), Applied::Stored);
    assert_eq!(bench.apply_as(Source::Writer, value(9, "nine")), Applied::Stored);
    // What was taken behind the fence does not count as taken by the ballot.
    assert_eq!(
        bench.apply_as(Source::Ballot, built(8, 8, 1)),
        Applied::Contested { by: bench.promises.fence() }
    );
    assert!(is_promised(&bench.prepare(11, &[])));
}

/// A promise is taken back by its own ballot, and then lets in what it kept out. One that stands for an earlier promise as
/// well stays: without it, a ballot below the earlier one could be taken.
#[test]
fn a_promise_is_taken_back() {
    let mut bench = bench();
    let release = |bench: &mut Bench, ballot| {
        let (done, mut answer) = oneshot::channel();
        bench.committer.commit(vec![Request::Release { key: key("k"), ballot: version(ballot), done }]);
        answer.try_recv().unwrap().unwrap();
    };
    assert!(is_promised(&bench.prepare(10, &[])));
    release(&mut bench, 9);
    assert_eq!(bench.apply_as(Source::Writer, value(8, "eight")), contested(10));
    release(&mut bench, 10);
    assert_eq!(bench.apply_as(Source::Writer, value(8, "eight")), Applied::Stored);
    assert!(bench.promises.is_empty());
    assert!(is_promised(&bench.prepare(11, &[])));
    assert!(is_promised(&bench.prepare(12, &[])));
    release(&mut bench, 12);
    assert_eq!(bench.apply_as(Source::Ballot, built(10, 10, 8)), contested(12));
    // After a restart it is not known any more.
    assert!(is_promised(&bench.prepare(13, &[])));
    let mut bench = bench.restarted();
    release(&mut bench, 13);
    assert_eq!(bench.apply_as(Source::Writer, value(10, "ten")), contested(13));
}

/// A promise goes once its partition was agreed past it.
#[test]
fn settled_promises_go() {
    let mut bench = bench();
    assert!(is_promised(&bench.prepare(10, &[])));
    let (upto, partitions) = (version(9).clock(), || Arc::from([partition().0]));
    assert!(bench.step(FloorStep::Close { round: 7, upto, partitions: partitions() }));
    assert!(bench.step(FloorStep::Agree { round: 7, upto, partitions: partitions() }));
    assert_eq!(bench.promises.len(), 1);
    bench.release(10);
    assert!(bench.promises.is_empty() && bench.restarted().promises.is_empty());
}

/// A store takes so many promises and no more; where there is one already, the next is taken.
#[test]
fn promises_are_bounded() {
    let mut bench = bench();
    let prepare = |bench: &mut Bench, name: String, millis| {
        let observed = Observed { mark: None, as_of: bench.groups.load(Ordering::Acquire) };
        let (done, answer) = oneshot::channel();
        let (key, ballot) = (key(&name), version(millis));
        (
            Request::Prepare {
                key,
                ballot,
                earlier: Vec::new(),
                observed,
                done,
                completions: None,
                times: None,
            },
            answer,
        )
    };
    let (requests, answers): (Vec<_>, Vec<_>) =
        (0..super::super::PROMISES_LEN_MAX).map(|i| prepare(&mut bench, format!("key-{i}"), 10)).unzip();
    bench.committer.commit(requests);
    assert!(answers.into_iter().all(|mut answer| is_promised(&answer.try_recv().unwrap().unwrap())));
    let (request, mut answer) = prepare(&mut bench, "one-more".to_owned(), 11);
    let (again, mut answered) = prepare(&mut bench, "key-7".to_owned(), 11);
    bench.committer.commit(vec![request, again]);
    assert!(matches!(answer.try_recv().unwrap(), Err(ReplicaError::Overloaded)));
    assert!(is_promised(&answered.try_recv().unwrap().unwrap()));
}

/// An expired value that becomes a tombstone keeps where it came from.
#[test]
fn an_expired_record_keeps_its_lineage() {
    let mut bench = bench();
    let expires = Some(UnixMillis(1_500_000));
    assert_eq!(bench.apply_as(Source::Ballot, Record { expires, ..built(5, 4, 1) }), Applied::Stored);
    bench.clock.pass(1_000_000_000);
    bench.sweep();
    let left = bench.stored("k").unwrap();
    assert_eq!((left.etag(), left.version), (version(4), version(5)));
}
