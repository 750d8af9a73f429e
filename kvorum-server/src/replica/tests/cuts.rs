//! Cuts: what a snapshot has, what may be confirmed once it is taken, and when it goes.

use super::*;
use crate::replica::cut::CutStep;
use crate::storage::memory::Fault;

const AGE: Duration = Duration::from_hours(1);

fn upto() -> u64 {
    version(10).clock() | 0xffff
}

fn closed() -> Version {
    Version::from_words(upto(), u64::MAX)
}

impl Bench {
    fn cut(&mut self, step: CutStep) -> bool {
        let (done, mut answer) = oneshot::channel();
        self.committer.commit(vec![Request::Cut { step, done }]);
        answer.try_recv().unwrap().unwrap()
    }

    fn arm(&mut self) {
        assert!(self.cut(CutStep::Arm { upto: upto(), age_max: AGE }));
    }

    fn close(&mut self) -> bool {
        self.cut(CutStep::Close { upto: upto() })
    }

    /// The snapshot's records.
    fn cut_records(&self) -> Vec<(String, Record)> {
        let snapshot = self.cuts.snapshot().unwrap();
        let rows = snapshot.scan(b"\0", Bound::Unbounded).unwrap();
        rows.map(|row| {
            let (key, row) = row.unwrap();
            (String::from_utf8(key.to_vec()).unwrap(), format::decode_record(&row).unwrap())
        })
        .collect()
    }
}

/// Goal: no record above T hides one at or below it. Method: one group brings both to a key, after the cut was armed.
#[test]
fn the_first_record_above_closes_the_cut_before_it_is_judged() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    bench.apply("k", value(5, "old")).unwrap();
    bench.arm();
    bench.apply("other", value(9, "still before")).unwrap();
    let observed = bench.observe("k");
    let group = vec![("k", value(9, "late"), observed), ("k", value(11, "above"), observed)];
    let answers: Vec<_> = bench.apply_all(group).into_iter().map(Result::unwrap).collect();
    // Whatever is in the group with the first record above comes too late.
    assert_eq!(answers, [Applied::Contested { by: closed() }, Applied::Stored]);
    assert_eq!(bench.stored("k"), Some(value(11, "above")));
    let expected = [("k".to_owned(), value(5, "old")), ("other".to_owned(), value(9, "still before"))];
    assert_eq!(bench.cut_records(), expected);
    assert!(bench.close(), "it is closed already");
}

/// Goal: once a cut is closed, a client is told of no success at or below it that the snapshot lacks.
#[test]
fn nothing_at_or_below_a_closed_cut_is_confirmed() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    bench.apply("k", value(5, "old")).unwrap();
    bench.arm();
    assert!(bench.close());
    let too_late = Applied::Contested { by: closed() };
    assert_eq!(bench.apply("new", value(9, "late")).unwrap(), too_late);
    assert_eq!(bench.apply("k", value(9, "late")).unwrap(), too_late);
    assert_eq!(bench.apply("k", value(4, "older still")).unwrap(), too_late);
    // What was confirmed before may be confirmed again.
    assert_eq!(bench.apply("k", value(5, "old")).unwrap(), Applied::Stored);
    assert_eq!(bench.apply("k", value(11, "above")).unwrap(), Applied::Stored);
    assert_eq!(bench.apply("k", value(5, "old")).unwrap(), Applied::Stored);
    // A newer record does not stand for one that the backup would lack.
    assert_eq!(
        bench.apply("k", value(9, "late")).unwrap(),
        Applied::Contested { by: closed().max(version(11)) }
    );
    // Others bring what they have; its writer is told nothing by that.
    assert_eq!(bench.apply_as(Source::Copy, value(12, "hint")), Applied::Stored);
    bench.source = Source::Repair { agreed: 0 };
    assert_eq!(bench.apply("repaired", value(9, "of a writer")).unwrap(), Applied::Stored);
    bench.source = Source::Writer;
    assert_eq!(
        bench.apply("repaired", value(9, "of a writer")).unwrap(),
        Applied::Contested { by: closed() }
    );
}

/// A cut that was not armed cannot be closed, and there is one at a time.
#[test]
fn one_cut_at_a_time() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    assert!(!bench.close());
    bench.arm();
    assert!(!bench.cut(CutStep::Arm { upto: upto() + 1, age_max: AGE }));
    assert!(bench.close());
    assert!(bench.cut(CutStep::Drop { upto: upto() }));
    assert!(!bench.close());
    // The same timestamp again would not be exact: later records have been let in.
    assert!(!bench.cut(CutStep::Arm { upto: upto(), age_max: AGE }));
    assert!(bench.cut(CutStep::Arm { upto: upto() + 1, age_max: AGE }));
}

/// Goal: a snapshot never stays. Method: time passes, with nobody reading, and with a reader.
#[test]
fn cuts_that_nobody_reads_or_that_are_old_are_dropped() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Sole);
    bench.arm();
    bench.clock.pass(31_000);
    bench.committer.commit(Vec::new());
    assert!(!bench.close(), "it was armed for too long");
    assert!(bench.cut(CutStep::Arm { upto: upto(), age_max: AGE }));
    assert!(bench.close());
    for _ in 0..179 {
        bench.clock.pass(20_000);
        bench.committer.commit(Vec::new());
        assert!(bench.cuts.touch(upto(), crate::clock::Clock::mono(&*bench.clock)));
    }
    bench.clock.pass(21_000);
    bench.committer.commit(Vec::new());
    assert!(bench.cuts.snapshot().is_none(), "an hour has passed");
}

/// Goal: a cut that was taken while this node's clock was far ahead binds it no longer than that. Method: the clock is set right
/// after the cut has closed, and while one is armed.
#[test]
fn cut_of_a_wrong_clock_is_forgotten() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    let bound = crate::clock::TimestampBound::new(Arc::clone(&bench.clock) as _, Duration::from_mins(1));
    bench.committer.set_timestamps(Arc::new(bound));
    let day = 24 * 60 * 60 * 1000;
    let upto = Version::new(UnixMillis(1_000_500 + day), u16::MAX, NodeId(1)).clock();
    for closes in [true, false] {
        bench.clock.set_wall(1_000_000 + day);
        assert!(bench.cut(CutStep::Arm { upto, age_max: AGE }));
        if closes {
            assert!(bench.cut(CutStep::Close { upto }));
            assert_eq!(bench.cuts.closed().clock(), upto);
        }
        bench.clock.set_wall(1_000_000);
        bench.committer.commit(Vec::new());
        assert_eq!((bench.cuts.closed(), bench.cuts.armed()), (Version::ZERO, None));
        assert!(bench.cuts.snapshot().is_none());
        assert_eq!(bench.apply(&format!("closes {closes}"), value(5, "v")).unwrap(), Applied::Stored);
    }
    bench.arm();
    assert!(bench.close(), "one that is right is taken as ever");
}

/// A disk that runs short gets the space back, and the backup fails.
#[test]
fn a_full_disk_ends_the_cut() {
    let mut bench = Bench::new(DurabilityMode::Always, Purge::Keep);
    bench.arm();
    assert!(bench.close());
    bench.engine.set_fault(Some(Fault::DiskFull));
    assert!(bench.apply("k", value(11, "v")).is_err());
    bench.look_after_a_second();
    assert!(bench.cuts.snapshot().is_none());
    assert!(bench.cut(CutStep::Drop { upto: upto() }));
}
