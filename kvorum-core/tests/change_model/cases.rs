//! The cases, and the mistakes that they find.

use crate::chain::Decisions;
use crate::clients::Script;
use crate::{Case, Mistake};
use stateright::{Checker, HasDiscoveries, Model};
use std::sync::{Mutex, PoisonError};

/// Held while a case is explored: each uses both threads.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn write(at: usize, version: u64) -> Script {
    Script::Write { at, version }
}

fn read(at: usize) -> Script {
    Script::Read { at }
}

fn create(at: usize, first: u64, rounds: u64) -> Script {
    Script::Create { at, first, rounds }
}

/// A change from beginning to end: four configurations.
fn replace(scripts: &[Script]) -> Case {
    Case {
        mistake: Mistake::None,
        is_replacement: true,
        scripts: scripts.to_vec(),
        epochs_max: 4,
        cancels: false,
        may_lack: 0,
        alone: None,
        ack: 2,
        purges: false,
        decisions: Decisions::default(),
    }
}

fn reweigh(scripts: &[Script]) -> Case {
    Case { is_replacement: false, ..replace(scripts) }
}

fn cancelling(epochs_max: usize, case: Case) -> Case {
    Case { cancels: true, epochs_max, ..case }
}

fn lacking(nodes: &[usize], case: Case) -> Case {
    Case { may_lack: nodes.iter().fold(0, |mask, at| mask | 1 << at), ..case }
}

/// Explores `case` in full, or until a property is broken. Returns the number of states, the broken properties, and
/// whether a change ended.
fn explore(case: Case) -> (usize, Vec<&'static str>, bool) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let checker = case.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let ends = "the change ends";
    let mut broken: Vec<&str> = checker.discoveries().into_keys().collect();
    let has_ended = broken.contains(&ends);
    broken.retain(|name| *name != ends);
    if let Some(name) = broken.first()
        && let Some(path) = checker.discovery(name)
        && std::env::var_os("KVORUM_MODEL_PATH").is_some()
    {
        for (state, step) in path.into_vec() {
            println!("{state:#?}\n=> {step:?}");
        }
    }
    (checker.unique_state_count(), broken, has_ended)
}

fn holds(name: &str, case: Case) {
    let (states, broken, has_ended) = explore(case);
    println!("figures: model of changes, {name}: {states} states");
    assert!(states > 1000, "{name}: {states} states explore next to nothing");
    assert_eq!(broken, Vec::<&str>::new(), "{name}");
    assert!(has_ended, "{name}: no change ever ended");
}

#[test]
fn writes_and_reads_over_a_change() {
    holds("a write", replace(&[write(0, 1)]));
    holds("a write by the leaver", replace(&[write(2, 1)]));
    holds("2 writes", replace(&[write(0, 1), write(2, 2)]));
    holds("a write, a read", replace(&[write(0, 1), read(1)]));
    holds("a write, a read by the leaver", replace(&[write(0, 1), read(2)]));
}

#[test]
fn conditional_writes_over_a_change() {
    holds("2 rivals", replace(&[create(0, 2, 1), create(2, 1, 2)]));
}

#[test]
fn changes_are_cancelled() {
    holds("cancelled, 2 writes", cancelling(5, replace(&[write(0, 1), write(2, 2)])));
    holds("cancelled and begun again", cancelling(6, reweigh(&[write(2, 1)])));
}

#[test]
fn a_member_is_away() {
    holds("an owner lacks, a write", lacking(&[1], replace(&[write(0, 1)])));
    holds("the leaver lacks, a write", lacking(&[2], replace(&[write(0, 1)])));
    holds("the joiner lacks, a write", lacking(&[3], replace(&[write(2, 1)])));
    holds("the leaver lacks, cancelled", cancelling(5, lacking(&[2], replace(&[write(2, 1)]))));
    holds(
        "the joiner lacks and is refilled",
        Case { epochs_max: 5, ..lacking(&[3], replace(&[write(2, 1)])) },
    );
    holds("an owner lacks and is refilled", Case { epochs_max: 5, ..lacking(&[1], replace(&[write(1, 1)])) });
}

/// A write to all replicas, while a member is away that may be the only one that a client asks.
fn read_of_one() -> Case {
    Case { ack: 3, ..lacking(&[2], reweigh(&[write(0, 1)])) }
}

#[test]
fn one_replica_is_read_over_a_change() {
    holds("a write to all, reads of one", read_of_one());
    holds("the same, cancelled", cancelling(5, read_of_one()));
}

/// A record that only a member which leaves the list has: it is marked, comes back, and drops what it owns no longer.
fn alone() -> Case {
    Case { epochs_max: 6, alone: Some(2), ..lacking(&[2], reweigh(&[])) }
}

#[test]
fn a_marked_member_hands_over_what_it_alone_has() {
    let (states, broken, has_ended) = explore(alone());
    println!("figures: model of changes, a record of one marked member: {states} states");
    assert_eq!((broken, has_ended), (Vec::new(), true));
}

#[test]
fn tombstones_over_a_change() {
    holds("a deletion", Case { purges: true, ..replace(&[write(0, 1), write(1, 2)]) });
}

/// Each mistake is found by one of the cases.
#[test]
fn mistakes_are_found() {
    let mut missed = Vec::new();
    let mut found = |mistake, case: Case| {
        let (states, broken, _) = explore(Case { mistake, decisions: Decisions::default(), ..case });
        println!("figures: model of changes, {mistake:?}: {states} states, found: {broken:?}");
        if broken.is_empty() {
            missed.push(mistake);
        }
    };
    let one = || replace(&[write(2, 1)]);
    found(Mistake::ReadBeforeFilled, one());
    found(Mistake::JointLeftEarly, one());
    found(Mistake::MarkedKeepRecords, alone());
    found(Mistake::MarksUnknowing, read_of_one());
    found(Mistake::MinorityUnconfirmed, read_of_one());
    found(Mistake::EndedEarly, replace(&[write(0, 1)]));
    found(Mistake::OneTally, one());
    found(Mistake::ReadListOnly, one());
    found(Mistake::WriteBackReadListOnly, replace(&[write(2, 1), read(2)]));
    found(Mistake::BallotReadListOnly, replace(&[create(0, 2, 1), create(2, 1, 2)]));
    found(Mistake::ComparisonsKept, cancelling(6, reweigh(&[write(2, 1)])));
    found(Mistake::BatchOfAnotherEpoch, cancelling(6, reweigh(&[write(2, 1)])));
    found(Mistake::DroppedEarly, one());
    found(Mistake::OldEpochServed, one());
    found(Mistake::AdoptionUnsynced, one());
    found(Mistake::LackingCounts, lacking(&[3], one()));
    found(Mistake::AnyNumberLacks, lacking(&[1, 2], one()));
    found(Mistake::MarkRemovedEarly, Case { epochs_max: 5, ..lacking(&[3], one()) });
    found(Mistake::PromiseHidesComparison, replace(&[create(0, 2, 1), create(2, 1, 2)]));
    found(Mistake::PurgedWhileJoint, Case { purges: true, ..replace(&[write(0, 1), write(1, 2)]) });
    assert_eq!(missed, []);
}
