//! The cases, and the mistakes that they find.

use crate::change::Epoch::{JointNew, JointOld, New, Old};
use crate::{Case, Epoch, Mistake, NO_CHANGE, Script};
use stateright::{Checker, HasDiscoveries, Model};
use std::sync::{Mutex, PoisonError};

/// Held while a case is explored: each takes up to some GB of memory, and uses both threads.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn write(clock: u64) -> Script {
    Script::Write { clock, asks: false }
}

fn ask_first(clock: u64) -> Script {
    Script::Write { clock, asks: true }
}

fn cas(clock: u64, expects: usize) -> Script {
    Script::Cas { clock, expects }
}

/// A case with a reader first: client 0 is never a writer, so that 0 stands for "nothing written".
fn case(times: usize, writers: &[Script]) -> Case {
    let scripts = std::iter::once(Script::Read { times }).chain(writers.iter().copied()).collect();
    Case {
        mistake: Mistake::None,
        scripts,
        failures_max: 0,
        repairs: false,
        crashes_max: 0,
        losses_max: 0,
        ballots_max: 2,
        epochs: NO_CHANGE,
    }
}

/// Explores `case` in full, or until a property is broken. Returns the number of states, and the broken properties.
fn explore(case: Case) -> (usize, bool) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let checker = case.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    if let Some(path) = checker.discoveries().into_values().next()
        && std::env::var_os("KVORUM_MODEL_PATH").is_some()
    {
        for (state, step) in path.into_vec() {
            println!("{state:#?}\n=> {step:?}");
        }
    }
    (checker.unique_state_count(), checker.discoveries().is_empty())
}

fn holds(name: &str, case: Case) {
    let (states, is_sound) = explore(case);
    println!("figures: model of conditional writes, {name}: {states} states");
    assert!(states > 1000, "{name}: {states} states explore next to nothing");
    assert!(is_sound, "{name}");
}

fn ballots(ballots_max: usize, times: usize, writers: &[Script]) -> Case {
    Case { ballots_max, ..case(times, writers) }
}

fn failing(case: Case) -> Case {
    Case { failures_max: 1, ..case }
}

fn repairing(case: Case) -> Case {
    Case { repairs: true, ..case }
}

fn crashing(case: Case) -> Case {
    Case { crashes_max: 1, ..case }
}

fn losing(case: Case) -> Case {
    Case { losses_max: 1, ..case }
}

#[test]
fn conditional_writes() {
    holds("2 rivals, a reader", ballots(4, 1, &[cas(1, 0), cas(2, 0)]));
    holds("a chain of 2, a failure", failing(ballots(3, 1, &[cas(1, 0), cas(2, 1)])));
    holds("2 rivals, a failure", failing(ballots(3, 1, &[cas(1, 0), cas(2, 0)])));
}

#[test]
fn conditional_beside_plain_writes() {
    holds("slower plain write", ballots(3, 1, &[cas(2, 0), write(1)]));
    holds("faster plain write", ballots(3, 1, &[cas(1, 0), write(2)]));
    holds("plain write that asks first", ballots(3, 1, &[cas(2, 0), ask_first(1)]));
    holds("2 plain writes", ballots(3, 0, &[cas(2, 0), write(1), write(3)]));
    holds("2 rivals, a plain write", ballots(2, 1, &[cas(2, 0), cas(3, 3), write(1)]));
    holds("a chain of 2, 2 plain writes", ballots(2, 0, &[cas(2, 0), cas(4, 1), write(1), write(3)]));
}

#[test]
fn conditional_writes_beside_hints_and_repair() {
    holds("hints, slower plain write", failing(ballots(2, 1, &[cas(2, 0), write(1)])));
    holds("hints, faster plain write", failing(ballots(2, 1, &[cas(1, 0), write(2)])));
    holds("repair, slower plain write", repairing(ballots(3, 1, &[cas(2, 0), write(1)])));
    holds("repair, 2 rivals", repairing(failing(ballots(2, 1, &[cas(2, 0), cas(1, 0)]))));
}

#[test]
fn conditional_writes_over_crashes() {
    holds("a crash", crashing(ballots(2, 1, &[cas(2, 0), write(1)])));
    holds("a crash, a plain write that asks first", crashing(ballots(2, 1, &[cas(2, 0), ask_first(1)])));
    holds("a crash, 2 rivals", crashing(ballots(3, 1, &[cas(2, 0), cas(1, 0)])));
}

#[test]
fn conditional_writes_over_a_refill() {
    holds("a refill", losing(ballots(2, 0, &[cas(2, 0), write(1)])));
    holds("a refill, a reader", losing(ballots(1, 1, &[cas(2, 0), write(1)])));
    holds("a refill, 2 rivals", losing(ballots(2, 1, &[cas(2, 0), cas(1, 0)])));
    holds("a refill and a crash", crashing(losing(ballots(1, 0, &[cas(2, 0), write(1)]))));
    holds("a refill, a plain write, 2 reads", losing(ballots(1, 2, &[write(1)])));
    holds("a refill, hints", failing(losing(ballots(1, 0, &[cas(2, 0), write(1)]))));
}

fn over(epochs: &'static [Epoch], case: Case) -> Case {
    Case { epochs, ..case }
}

/// What one joint epoch decides.
#[test]
fn joint_lists() {
    holds("joint, a plain write", over(&[JointOld], ballots(2, 0, &[cas(2, 0), write(1)])));
    holds("joint, 2 plain writes, a reader", over(&[JointOld], ballots(1, 1, &[write(1), write(2)])));
}

/// Neighbours in a change, forwards and back.
#[test]
fn neighbouring_epochs() {
    let beside = |count| ballots(count, 0, &[cas(2, 0), write(1)]);
    holds("old, joint", over(&[Old, JointOld], beside(2)));
    holds("joint, new", over(&[JointNew, New], beside(1)));
    holds("joint, cancelled", over(&[JointNew, JointOld], beside(1)));
}

#[test]
fn a_whole_change() {
    holds(
        "a change, a plain write",
        over(&[Old, JointOld, JointNew, New], ballots(1, 0, &[cas(2, 0), write(1)])),
    );
}

/// The mistake, if the model with it holds in `case`.
fn missed_in(mistake: Mistake, case: Case) -> Option<Mistake> {
    let (states, is_sound) = explore(Case { mistake, ..case });
    println!("figures: model of conditional writes, {mistake:?}: {states} states, found: {}", !is_sound);
    is_sound.then_some(mistake)
}

/// Each mistake is found by one of the cases.
#[test]
fn mistakes_are_found() {
    let mut missed = Vec::new();
    let mut found = |mistake, case| missed.extend(missed_in(mistake, case));
    let slower = || ballots(3, 1, &[cas(2, 0), write(1)]);
    let beside = || ballots(2, 1, &[cas(2, 0), cas(3, 3), write(1)]);
    let rivals = || ballots(3, 1, &[cas(1, 0), cas(2, 0)]);
    found(Mistake::AcceptUnchecked, rivals());
    found(Mistake::EarlyRefusal, rivals());
    found(Mistake::AnyBase, rivals());
    found(Mistake::PromiseUnsynced, crashing(slower()));
    found(Mistake::PromiseDroppedEarly, slower());
    found(Mistake::WritesIgnorePromises, slower());
    found(Mistake::HintsIgnorePromises, failing(slower()));
    found(Mistake::WriteBacksIgnorePromises, slower());
    found(Mistake::RepairIgnoresPromises, repairing(slower()));
    found(Mistake::RefillForgets, losing(slower()));
    found(Mistake::LostAnswersCount, losing(ballots(1, 2, &[write(1)])));
    found(Mistake::FenceLostAtRestart, crashing(losing(ballots(1, 1, &[cas(2, 0), write(1)]))));
    found(Mistake::HintsBeforeTaken, failing(losing(ballots(1, 1, &[cas(2, 0), write(1)]))));
    found(Mistake::SupersededByConditional, ballots(3, 1, &[cas(2, 0), ask_first(1)]));
    found(Mistake::StampAgainContested, beside());
    found(Mistake::ForgetBuilt, ballots(3, 0, &[cas(2, 0), cas(3, 3), write(1), write(9)]));
    found(Mistake::ForgetHeld, ballots(3, 1, &[cas(1, 0), write(2)]));
    found(Mistake::ForgetEarlier, ballots(3, 1, &[cas(1, 0), write(2)]));
    found(Mistake::TakeBackAny, ballots(4, 1, &[cas(1, 0), cas(2, 0), cas(4, 9)]));
    assert_eq!(missed, []);
}

/// Each mistake about two lists is found by one of the cases.
#[test]
fn mistakes_of_changes_are_found() {
    let mut missed = Vec::new();
    let mut found = |mistake, case| missed.extend(missed_in(mistake, case));
    let all = &[Old, JointOld, JointNew, New];
    let left = |on| Script::Left { clock: 9, on };
    found(Mistake::SentEarlierForgotten, over(&[Old, JointOld], ballots(1, 2, &[write(1), left(&[1])])));
    found(
        Mistake::StampAgainPerList,
        over(&[JointOld, Old], ballots(1, 0, &[cas(9, 2), write(1), left(&[1, 3])])),
    );
    found(Mistake::BallotReadListOnly, over(&[JointNew, JointOld], ballots(2, 0, &[cas(2, 0), cas(1, 0)])));
    found(Mistake::MemoryOverEpochs, over(all, ballots(1, 0, &[cas(2, 0), write(1)])));
    found(Mistake::BallotOverEpochs, over(all, ballots(1, 0, &[cas(2, 0), write(1)])));
    assert_eq!(missed, []);
}
