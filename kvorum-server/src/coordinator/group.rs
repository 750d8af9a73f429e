//! Groups: conditional writes of one key that share a ballot.
//!
//! On each thread the conditional writes of a key queue. The first one takes up to [`GROUP_MAX`] along, and one ballot carries
//! them all out, in their order: each is judged on the record that the one before it has made, and has a version of its own.
//! Only the last record is stored. The others were overwritten in the same step, so no reader can have seen them, nor
//! can one ever. To the replicas a group is one write: the rules of ballots do not change.
//!
//! A write that names its operation has a ballot of its own, because its record must show that it was done. So has one
//! whose quorum is not the first one's.

use super::ballot::{Ballot, Base, End, Outcome, Purpose, Whole};
use super::edit::is_live;
use super::{Coordinator, CoordinatorError};
use crate::canary::{self, Canary};
use crate::peer::Held;
use crate::replica::ReplicaError;
use kvorum_core::{Conditional, Fate, Key, Lineage, Next, Quorum, Record, UnixMillis, Version};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use tokio::sync::Semaphore;

/// The most writes that share a ballot: their outcomes are unknown together if it is lost.
const GROUP_MAX: usize = 64;

/// The queues of one thread.
#[derive(Debug, Default)]
pub(super) struct Queues(RefCell<HashMap<Key, Rc<Queue>>>);

/// The conditional writes of a key on one thread.
#[derive(Debug)]
struct Queue {
    /// Held by the write that carries out a ballot for itself and others.
    lead: Semaphore,
    places: RefCell<VecDeque<Rc<Place>>>,
}

/// A write's place in the queue.
#[derive(Debug)]
struct Place {
    quorum: Quorum,
    state: RefCell<State>,
}

#[derive(Debug)]
enum State {
    Waiting(Purpose),
    /// Another write carries it out.
    Taken,
    Ended(Outcome),
    Gone,
}

impl Queues {
    fn of(&self, key: &Key) -> Rc<Queue> {
        let queue = || Rc::new(Queue { lead: Semaphore::new(1), places: RefCell::default() });
        Rc::clone(self.0.borrow_mut().entry(key.clone()).or_insert_with(queue))
    }

    /// Forgets a key that nobody waits for.
    fn forget(&self, key: &Key) {
        let mut queues = self.0.borrow_mut();
        if queues.get(key).is_some_and(|queue| Rc::strong_count(queue) == 1) {
            queues.remove(key);
        }
    }
}

impl Queue {
    fn enter(&self, purpose: Purpose, quorum: Quorum) -> Rc<Place> {
        let place = Rc::new(Place { quorum, state: RefCell::new(State::Waiting(purpose)) });
        self.places.borrow_mut().push_back(Rc::clone(&place));
        place
    }

    /// Takes the places out of the queue whose writes no longer wait: a write leaves with this unless another has taken it along.
    fn tidy(&self) {
        self.places.borrow_mut().retain(|place| matches!(*place.state.borrow(), State::Waiting(_)));
    }

    /// Takes the writes out of the queue that can share the ballot of a write of `quorum`.
    fn take_along(&self, quorum: Quorum) -> (Vec<Rc<Place>>, Vec<Purpose>) {
        let mut taken = (Vec::new(), Vec::new());
        self.places.borrow_mut().retain(|place| {
            if taken.0.len() + 1 < GROUP_MAX
                && let Some(purpose) = place.join(quorum)
            {
                taken.0.push(Rc::clone(place));
                taken.1.push(purpose);
            }
            matches!(*place.state.borrow(), State::Waiting(_))
        });
        taken
    }
}

impl Queue {
    /// Carries out `purpose` by `ballot`, and with it those writes of the queue that can share it.
    async fn lead(&self, mut ballot: Ballot, purpose: Purpose) -> Outcome {
        let (places, others) =
            if purpose.can_share() { self.take_along(ballot.quorum) } else { Default::default() };
        let mut purposes = vec![purpose];
        purposes.extend(others);
        match ballot.run_all(&purposes).await {
            Ok(ends) => {
                let mut ends = ends.into_iter();
                let own = ends.next().ok_or_else(|| ballot.unknown());
                for (place, end) in places.iter().zip(ends) {
                    place.end(Ok(end));
                }
                own
            }
            Err(error) => {
                for place in places {
                    place.end(Err(copy_of(&error, &ballot)));
                }
                Err(error)
            }
        }
    }
}

impl Place {
    /// Gives the write up to be carried out with others of `quorum`, if it can be.
    fn join(&self, quorum: Quorum) -> Option<Purpose> {
        let mut state = self.state.borrow_mut();
        match mem::replace(&mut *state, State::Taken) {
            State::Waiting(purpose) if purpose.can_share() && self.quorum == quorum => Some(purpose),
            other => {
                *state = other;
                None
            }
        }
    }

    fn end(&self, outcome: Outcome) {
        self.state.replace(State::Ended(outcome));
    }
}

impl Coordinator {
    /// Carries out a conditional write by `ballot`, or by that of another write of its key.
    pub(super) async fn decide(self: &Rc<Self>, ballot: Ballot, purpose: Purpose) -> Outcome {
        let (key, deadline) = (ballot.key.clone(), ballot.deadline);
        self.clock_asked(deadline).await?;
        let queue = self.queues.of(&key);
        let place = queue.enter(purpose, ballot.quorum);
        // One reference is that of the table.
        let queued = Rc::strong_count(&queue).saturating_sub(1) as u64;
        self.shared.metrics.conditional_queue_max.fetch_max(queued, Ordering::Relaxed);
        let leads = tokio::time::timeout_at(deadline, queue.lead.acquire()).await;
        let state = place.state.replace(State::Gone);
        if matches!(state, State::Waiting(_)) {
            queue.tidy();
        }
        let outcome = match (state, &leads) {
            (State::Ended(outcome), _) => outcome,
            (State::Waiting(purpose), Ok(_)) => queue.lead(ballot, purpose).await,
            // Nothing was sent.
            (State::Waiting(_), Err(_)) => Err(CoordinatorError::Replica(ReplicaError::Overloaded)),
            (State::Taken | State::Gone, _) => Err(ballot.unknown()),
        };
        drop(leads);
        drop(queue);
        self.queues.forget(&key);
        outcome
    }
}

/// The same error for another write of the group. What cannot be copied becomes an unknown outcome, which is never wrong.
fn copy_of(error: &CoordinatorError, ballot: &Ballot) -> CoordinatorError {
    match error {
        CoordinatorError::NotEnoughReplicas { quorum, confirmed, missing, waited } => {
            CoordinatorError::NotEnoughReplicas {
                quorum: *quorum,
                confirmed: *confirmed,
                missing: missing.clone(),
                waited: *waited,
            }
        }
        CoordinatorError::Replica(ReplicaError::DiskFull) => ReplicaError::DiskFull.into(),
        CoordinatorError::Replica(ReplicaError::Overloaded) => ReplicaError::Overloaded.into(),
        CoordinatorError::ClockOff { limit_millis } => {
            CoordinatorError::ClockOff { limit_millis: *limit_millis }
        }
        CoordinatorError::ClockExhausted => CoordinatorError::ClockExhausted,
        CoordinatorError::Stopped => CoordinatorError::Stopped,
        CoordinatorError::Replica(_) => ballot.unknown(),
    }
}

/// What the writes of a group have made so far.
struct Fold {
    /// The live value that the next one is judged on, and its `ETag`.
    current: Option<(Version, Held)>,
    ends: Vec<End>,
    /// The last record that was made, and which write made it.
    last: Option<(usize, Record)>,
}

impl Fold {
    /// Judges the writes one after the other on the live value `base`. Of each, `versions` has the one that it gets. None if
    /// one of them is no write.
    fn of(
        purposes: &[Purpose],
        versions: &[Version],
        base: Option<(Version, Held)>,
        from: u16,
        now: UnixMillis,
    ) -> Option<Self> {
        let first = base.clone();
        let mut fold = Self { current: base, ends: Vec::with_capacity(purposes.len()), last: None };
        for (at, (purpose, version)) in purposes.iter().zip(versions).enumerate() {
            let Purpose::Write { change, condition, .. } = purpose else { return None };
            let current = if canary::is(Canary::GroupJudgedOnBase) { &first } else { &fold.current };
            let etag = current.as_ref().map(|(etag, _)| *etag);
            let held = current.as_ref().map(|(_, held)| held);
            if condition.as_ref().is_some_and(|condition| !condition.holds(etag)) {
                fold.ends.push(End::Failed { current: etag });
                continue;
            }
            let value = match change.edit().map(|edit| edit.apply_to(held)) {
                Some(Err(error)) => {
                    fold.ends.push(End::Unfit(error));
                    continue;
                }
                Some(Ok(value)) => Some(value),
                None => None,
            };
            let record = change.record(*version, from, value.as_ref(), held)?;
            let number = change.edit().zip(value).and_then(|(edit, value)| edit.answer(&value));
            fold.ends.push(End::Done { version: *version, confirmed: 0, number });
            let made = Held::Whole(record.clone());
            fold.current = is_live(&made, now).then_some((*version, made));
            fold.last = Some((at, record));
        }
        Some(fold)
    }

    /// Gives the last record the ballot as its version, and with it all that was told of that record.
    fn under(mut self, ballot: Version) -> (Option<Record>, Vec<End>) {
        let Some((at, record)) = self.last else { return (None, self.ends) };
        let made = record.version;
        for end in self.ends.iter_mut().skip(at) {
            match end {
                End::Done { version, .. } => *version = ballot,
                End::Failed { current: Some(current) } if *current == made => *current = ballot,
                End::Failed { .. } | End::Kept(_) | End::Unfit(_) => {}
            }
        }
        (Some(Record { version: ballot, ..record }), self.ends)
    }
}

impl Ballot {
    /// Decides on the base for several writes; as [`Self::judge`] does for one. The last of `versions` is the ballot.
    pub(super) async fn judge_group(
        &self,
        purposes: &[Purpose],
        versions: &[Version],
        base: Base,
    ) -> Result<Option<(Option<Record>, Vec<End>)>, CoordinatorError> {
        let Base { prepared, mut held } = base;
        let Some(ballot) = versions.last().copied() else { return Ok(None) };
        let now = self.coordinator.shared.timestamps.expiry_clock();
        for purpose in purposes {
            let Some(Whole(whole)) = self.whole_for(purpose, held, now).await? else { return Ok(None) };
            held = whole;
        }
        let (built, mut ends) = match prepared.fate {
            Fate::Unknown => return Err(self.unknown()),
            // As they were judged then.
            Fate::TookEffect(version) => match self.sent.iter().find(|(sent, _)| *sent == version) {
                Some((_, ends)) => (None, ends.clone()),
                None => return Err(self.unknown()),
            },
            Fate::Open => {
                let origin = prepared.base.lineage.origin;
                let live = held.as_ref().map(|(_, held)| held).filter(|held| is_live(held, now));
                let live = live.map(|held| (origin, held.clone()));
                let fold = Fold::of(purposes, versions, live, self.from, now);
                let Some(fold) = fold else { return Ok(None) };
                fold.under(ballot)
            }
        };
        if let Some(record) = built {
            let lineage = Lineage { origin: ballot, base: prepared.base.lineage.origin };
            let conditional = Conditional { lineage, operation: None };
            return Ok(Some((Some(Record { conditional: Some(Box::new(conditional)), ..record }), ends)));
        }
        for end in &mut ends {
            if let End::Done { confirmed, .. } = end {
                *confirmed = self.quorum.ack();
            }
        }
        // Nothing new is written: the record that all of it was judged on must stay.
        let is_secured = matches!(prepared.next(false), Next::Secure(_)) && !canary::is(Canary::EarlyRefusal);
        let secured = match held {
            Some((_, Held::Whole(record))) if is_secured => Some(record),
            Some((node, Held::HeaderOnly { version, .. })) if is_secured => {
                let Some(record) = self.fetch(node, version).await? else { return Ok(None) };
                Some(record)
            }
            _ => None,
        };
        Ok(Some((secured.map(|record| self.anew(record, ballot)), ends)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Mutation;
    use super::super::edit::{Change, Edit};
    use super::*;
    use bytes::Bytes;
    use kvorum_core::condition::{ApplyError, Tags};
    use kvorum_core::{Condition, NodeId, Value};
    use std::num::NonZeroU128;

    const NOW: UnixMillis = UnixMillis(1000);

    fn v(at: u64) -> Version {
        Version::new(UnixMillis(at), 0, NodeId(1))
    }

    fn write(change: Change, condition: Option<Condition>) -> Purpose {
        Purpose::Write { change, condition, operation: None }
    }

    fn put(value: &'static str, condition: Condition) -> Purpose {
        let mutation = Mutation::Put { value: value.into(), ttl_millis: None };
        write(Change::Set { mutation, expires: None }, Some(condition))
    }

    fn tags(text: &str) -> Tags {
        Tags::parse(text.as_bytes()).unwrap()
    }

    fn delete() -> Purpose {
        write(Change::Set { mutation: Mutation::Delete, expires: None }, None)
    }

    fn add(addend: i64) -> Purpose {
        write(Change::Edit(Edit::Add { addend }), None)
    }

    fn base(value: &'static str) -> (Version, Held) {
        let value = Value::Present(value.into());
        let record = Record { version: v(1), from: 3, expires: None, value, conditional: None };
        (v(1), Held::Whole(record))
    }

    fn folded(purposes: &[Purpose], base: (Version, Held)) -> (Option<Record>, Vec<String>) {
        let versions: Vec<Version> = (0..purposes.len() as u64).map(|at| v(10 + at)).collect();
        let (record, ends) =
            Fold::of(purposes, &versions, Some(base), 3, NOW).unwrap().under(*versions.last().unwrap());
        let told = |end: &End| match end {
            End::Done { version, number, .. } => {
                let number = number.as_ref().map_or(String::new(), |number| format!(" {number:?}"));
                format!("done {}{number}", version.millis().0)
            }
            End::Failed { current } => {
                format!("failed at {}", current.map_or(0, |current| current.millis().0))
            }
            End::Kept(_) => "kept".to_owned(),
            End::Unfit(error) => format!("unfit {error:?}"),
        };
        (record, ends.iter().map(told).collect())
    }

    /// Each write is judged on the one before, the last record has the ballot, and a refusal after it says so.
    #[test]
    fn each_is_judged_on_the_one_before() {
        let matches =
            |at| Condition { if_match: Some(tags(&format!("\"{}\"", v(at)))), ..Condition::default() };
        let absent = || Condition { if_none_match: Some(tags("*")), ..Condition::default() };
        let writes =
            [put("b", matches(1)), put("c", matches(1)), delete(), put("d", absent()), put("e", absent())];
        let (record, ends) = folded(&writes, base("a"));
        assert_eq!(ends, ["done 10", "failed at 10", "done 12", "done 14", "failed at 14"]);
        let record = record.unwrap();
        assert_eq!((record.version, record.value), (v(14), Value::Present("d".into())));
    }

    /// A counter counts each addition once; one that does not fit changes nothing.
    #[test]
    fn additions_share_a_record() {
        let (record, ends) = folded(&[add(1), add(i64::MAX), add(2)], base("5"));
        let unfit = format!("unfit {:?}", ApplyError::Overflow);
        assert_eq!(ends, ["done 10 b\"6\"", &*unfit, "done 12 b\"8\""]);
        assert_eq!(record.unwrap().value, Value::Present("8".into()));
        let (record, ends) = folded(&[add(1), add(1)], base("no number"));
        assert!(record.is_none() && ends.iter().all(|end| end.starts_with("unfit")), "{ends:?}");
    }

    /// What can share a ballot is taken along in order, up to the bound; the rest stays.
    #[test]
    fn some_go_along() {
        let queue = Queue { lead: Semaphore::new(1), places: RefCell::default() };
        let quorum = Quorum::majority_of(3);
        let named = Purpose::Write {
            change: Change::Edit(Edit::Append { suffix: Bytes::new(), value_bytes_max: 1 }),
            condition: None,
            operation: NonZeroU128::new(1),
        };
        queue.enter(named, quorum);
        queue.enter(add(1), Quorum::majority_of(5));
        let gone = queue.enter(add(2), quorum);
        gone.state.replace(State::Gone);
        for _ in 0..GROUP_MAX + 5 {
            queue.enter(add(3), quorum);
        }
        let (places, purposes) = queue.take_along(quorum);
        assert_eq!((places.len(), purposes.len()), (GROUP_MAX - 1, GROUP_MAX - 1));
        // The named one, the one of another quorum, and those beyond the bound.
        assert_eq!(queue.places.borrow().len(), 2 + 6);
    }

    /// Places of writes that have led their own ballot, or have given up, do not stay.
    #[test]
    fn queues_do_not_grow() {
        let queue = Queue { lead: Semaphore::new(1), places: RefCell::default() };
        for _ in 0..100 {
            let place = queue.enter(add(1), Quorum::majority_of(3));
            place.state.replace(State::Gone);
            queue.tidy();
        }
        assert!(queue.places.borrow().is_empty());
    }
}
