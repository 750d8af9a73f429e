//! One thread of the driver: a runtime, the lanes of its streams, and a task for each connection.
//!
//! In an open loop a dispatcher task wakes for every due slot and adds a permit to the lane's semaphore; a free
//! connection takes a permit and with it the oldest slot. So a slow answer holds up its own connection only,
//! and slots that find no free connection wait, while their latency counts.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::LocalSet;

use super::alarm::Alarm;
use super::connection::{Answer, Connection, Patience};
use super::operation::{AnswerBody, Operation, Pacing, StreamPlan};
use super::schedule::Schedule;
use super::tally::{Failure, LATE, Tally};
use super::{Plan, Timetable};
use crate::error::LabError;

/// The first pause after a failure; it doubles with every further one.
const BACKOFF_MIN: Duration = Duration::from_millis(10);

/// The longest pause between attempts to reach a dead node.
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// Slots a dispatcher releases without a wait before it lets the connections run.
const RELEASED_MAX: u32 = 256;

/// A thread's share of a stream.
struct Lane {
    stream: StreamPlan,
    schedule: Schedule,
    timetable: Timetable,
    timeout: Duration,
    /// How many slots are this lane's; `next` counts those taken.
    slots: u64,
    next: Cell<u64>,
    in_flight: Cell<u64>,
    connections: usize,
    /// Permits of slots that are due and not taken. Not used in a closed loop.
    due: Semaphore,
    tally: RefCell<Tally>,
}

/// One operation to be made.
struct Slot {
    key: u64,
    due: Instant,
}

/// Runs thread `index` of the plan to its end; returns its share of each stream's tally, in order.
pub(super) fn run_thread(plan: &Plan, index: usize, timetable: Timetable) -> Result<Vec<Tally>, LabError> {
    if let Some(core) = plan.core {
        crate::machine::pin_to_core(core)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(LabError::machine("start a load runtime"))?;
    let tasks = LocalSet::new();
    let mut lanes = Vec::new();
    let mut joins = Vec::new();
    let _context = runtime.enter();
    for stream in &plan.streams {
        let lane = Rc::new(Lane::new(plan, stream, index, timetable)?);
        for nth in 0..lane.connections {
            // Connection numbers run over all lanes, so that every node gets its share of them.
            let target = plan.targets.iter().cycle().nth((nth * plan.threads + index) % plan.targets.len());
            if let Some(&target) = target {
                joins.push(tasks.spawn_local(drive(Rc::clone(&lane), target)));
            }
        }
        if matches!(stream.pacing, Pacing::Open { .. }) && lane.connections > 0 {
            let alarm = Alarm::new().map_err(LabError::machine("create a timer"))?;
            joins.push(tasks.spawn_local(dispatch(Rc::clone(&lane), alarm)));
        }
        lanes.push(lane);
    }
    runtime.block_on(tasks.run_until(async {
        for join in joins {
            if tokio::time::timeout_at(timetable.hard_end.into(), join).await.is_err() {
                break;
            }
        }
    }));
    drop(tasks);
    Ok(lanes.iter().map(|lane| lane.close()).collect())
}

impl Lane {
    fn new(plan: &Plan, stream: &StreamPlan, index: usize, timetable: Timetable) -> Result<Self, LabError> {
        let lanes = plan.threads.min(stream.connections);
        let connections = if index < lanes {
            stream.connections / lanes + usize::from(index < stream.connections % lanes)
        } else {
            0
        };
        let rate_per_second = match stream.pacing {
            Pacing::Open { rate_per_second } => rate_per_second,
            Pacing::Closed => 1,
        };
        let schedule = Schedule::new(index as u64, lanes as u64, rate_per_second);
        let slots = if connections > 0 { schedule.share(stream.slots(plan.duration)) } else { 0 };
        Ok(Self {
            stream: stream.clone(),
            schedule,
            timetable,
            timeout: plan.timeout,
            slots,
            next: Cell::new(0),
            in_flight: Cell::new(0),
            connections,
            due: Semaphore::new(0),
            tally: RefCell::new(Tally::new()?),
        })
    }

    /// Takes the oldest slot that is due; waits for one in an open loop. `None` = the lane is at its end.
    async fn claim(&self) -> Option<Slot> {
        let is_open = matches!(self.stream.pacing, Pacing::Open { .. });
        if is_open && self.next.get() < self.slots {
            self.due.acquire().await.ok()?.forget();
        }
        let now = Instant::now();
        let limit = if is_open { self.timetable.send_end } else { self.timetable.end };
        let nth = self.next.get();
        if nth >= self.slots || now >= limit {
            return None;
        }
        self.next.set(nth + 1);
        let due = if is_open { self.timetable.start + self.schedule.due(nth) } else { now };
        Some(Slot { key: self.stream.key_of(self.schedule.slot(nth)), due })
    }

    /// Counts what became of an operation.
    fn count(&self, slot: &Slot, answer: Result<Answer, Failure>, body: &AnswerBody, done: Instant) {
        let mut tally = self.tally.borrow_mut();
        let is_success = match answer {
            Ok(Answer { status: 200..=299, .. }) if body.is_right(self.stream.operation, slot.key) => {
                tally.latency.record(done.duration_since(slot.due));
                tally.succeeded += 1;
                tally.records += body.records();
                true
            }
            Ok(Answer { status: 200..=299, .. }) => {
                tally.wrong_bodies += 1;
                false
            }
            Ok(Answer { status, .. }) => {
                tally.status(status);
                false
            }
            Err(failure) => {
                tally.failure(failure);
                false
            }
        };
        if answer.is_ok() {
            tally.last_answer = tally.last_answer.max(Some(done));
        }
        if !is_success && self.stream.is_bounded() {
            tally.failed_key(slot.key);
        }
    }

    /// What was counted, with what was left undone.
    fn close(&self) -> Tally {
        let mut tally = self.tally.borrow().clone();
        tally.cut = self.in_flight.get();
        if matches!(self.stream.pacing, Pacing::Open { .. }) {
            tally.unsent = self.slots.saturating_sub(self.next.get());
        }
        tally
    }
}

/// Releases the lane's slots when they are due, and in the end lets waiting connections go.
async fn dispatch(lane: Rc<Lane>, alarm: Alarm) {
    let mut released = 0;
    for nth in 0..lane.slots {
        let due = lane.timetable.start + lane.schedule.due(nth);
        if let Some(early) = due.checked_duration_since(Instant::now()) {
            released = 0;
            if alarm.sleep(early).await.is_err() {
                break;
            }
        }
        lane.tally.borrow_mut().driver_lag.record(Instant::now().saturating_duration_since(due));
        lane.due.add_permits(1);
        released += 1;
        if released == RELEASED_MAX {
            released = 0;
            tokio::task::yield_now().await;
        }
    }
    lane.due.add_permits(lane.connections);
}

/// Keeps one connection busy until the lane is at its end; opens another, after a pause, when it breaks.
async fn drive(lane: Rc<Lane>, target: SocketAddr) {
    let host = target.to_string();
    let mut request = Vec::new();
    let mut body = AnswerBody::new(&lane.stream);
    let mut pause = BACKOFF_MIN;
    while Instant::now() < lane.timetable.send_end {
        let opened = Connection::open(target, Instant::now() + lane.timeout).await;
        let broken = match opened {
            Ok(mut connection) => {
                if lane.stream.pacing == Pacing::Closed {
                    // A closed loop begins together; in an open one every slot knows its moment.
                    tokio::time::sleep_until(lane.timetable.start.into()).await;
                }
                match exchanges(&lane, &mut connection, &host, &mut request, &mut body, &mut pause).await {
                    Some(is_broken) => is_broken,
                    None => return,
                }
            }
            Err(failure) => {
                lane.tally.borrow_mut().failure(failure);
                true
            }
        };
        if broken {
            let end: tokio::time::Instant = lane.timetable.send_end.into();
            tokio::time::sleep_until((tokio::time::Instant::now() + pause).min(end)).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }
}

/// Makes operations on `connection` while it lasts. `Some(true)` = it broke, `Some(false)` = the server wants
/// another one, `None` = the lane is at its end.
async fn exchanges(
    lane: &Lane,
    connection: &mut Connection,
    host: &str,
    request: &mut Vec<u8>,
    body: &mut AnswerBody,
    pause: &mut Duration,
) -> Option<bool> {
    loop {
        let slot = lane.claim().await?;
        lane.stream.write_request(slot.key, host, request);
        body.reset();
        let sent = Instant::now();
        if sent.duration_since(slot.due) > LATE {
            lane.tally.borrow_mut().late += 1;
        }
        let patience = match lane.stream.operation {
            Operation::Put | Operation::Get => Patience::Until(sent + lane.timeout),
            Operation::Scan { .. } => Patience::Progress(lane.timeout),
        };
        lane.in_flight.set(lane.in_flight.get() + 1);
        let answer = connection.exchange(request, patience, body).await;
        let done = Instant::now();
        lane.in_flight.set(lane.in_flight.get() - 1);
        let (bytes_sent, bytes_received) = connection.take_bytes();
        {
            let mut tally = lane.tally.borrow_mut();
            tally.bytes_sent += bytes_sent;
            tally.bytes_received += bytes_received;
        }
        lane.count(&slot, answer, body, done);
        match answer {
            Ok(Answer { close: true, .. }) => return Some(false),
            // An overloaded node asked to be left alone; an open loop may not listen, a closed one must.
            Ok(Answer { status: 503, .. }) if lane.stream.pacing == Pacing::Closed => {
                tokio::time::sleep(*pause).await;
                *pause = (*pause * 2).min(BACKOFF_MAX);
            }
            Ok(_) => *pause = BACKOFF_MIN,
            Err(_) => return Some(true),
        }
    }
}
