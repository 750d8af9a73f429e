//! One thread of the driver: a runtime, the lanes of its streams, and a task for each connection.
//!
//! In an open loop a dispatcher task wakes for every due slot and adds a permit to the lane's semaphore; a
//! free connection takes a permit and with it the oldest slot. So a slow answer holds up only its own
//! connection. Slots that find no free connection wait, while their latency counts.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::LocalSet;

use super::alarm::Alarm;
use super::connection::{Answer, Connection, Patience, Target};
use super::headers::Header;
use super::keys::{Inserts, KeyChooser};
use super::mix::{Action, Mix};
use super::operation::{AnswerBody, RequestWriter, StreamPlan, head};
use super::schedule::Schedule;
use super::tally::{Broken, LATE, Tally, WINDOW, WINDOWS_MAX};
use super::template::Template;
use super::{Plan, RunOptions, Tick, Timetable};
use crate::dataset::Records;
use crate::error::LabError;
use crate::histogram::Latencies;
use crate::http::BodySink;

/// The first pause after a failure; it doubles with every further one.
const BACKOFF_MIN: Duration = Duration::from_millis(10);

/// The longest pause between attempts to reach a node that is down.
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// Slots a dispatcher releases without a wait before it lets the connections run.
const RELEASED_MAX: u32 = 256;

/// A thread's share of a stream.
struct Lane {
    stream: StreamPlan,
    records: Records,
    mix: Option<Mix>,
    template: Option<Arc<Template>>,
    headers: Vec<Header>,
    keys: KeyChooser,
    inserts: Arc<Inserts>,
    schedule: Schedule,
    timetable: Timetable,
    timeout: Duration,
    /// How many slots belong to this lane; `next` counts those taken.
    slots: u64,
    next: Cell<u64>,
    in_flight: Cell<u64>,
    connections: usize,
    /// The least time between two wakings of the dispatcher.
    coalesce: Duration,
    /// Permits of slots that are due and not taken. Not used in a closed loop.
    due: Semaphore,
    tally: RefCell<Tally>,
    ticker: RefCell<Option<Ticker>>,
}

/// One operation to be made.
struct Slot {
    action: Action,
    key: u64,
    due: Instant,
    /// Whether it counts: it was not due in the warm-up.
    is_measured: bool,
}

/// A lane's figures since its last report.
struct Ticker {
    listener: Sender<Tick>,
    stream: usize,
    second: u64,
    latency: Latencies,
    failed: u64,
}

impl Ticker {
    /// Reports the figures so far, and begins the next second.
    fn tell(&mut self) {
        let tick = Tick {
            stream: self.stream,
            second: self.second,
            latency: self.latency.clone(),
            failed: self.failed,
        };
        // If the listener is gone, nobody needs the figures any more.
        let _ = self.listener.send(tick);
        self.latency.clear();
        self.failed = 0;
        self.second += 1;
    }
}

/// Runs thread `index` of the plan to its end; returns its share of each stream's tally, in order.
pub(super) fn run_thread(
    plan: &Plan,
    options: &RunOptions,
    inserts: &[Arc<Inserts>],
    index: usize,
    timetable: Timetable,
) -> Result<Vec<Tally>, LabError> {
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
    for (nth, inserts) in inserts.iter().enumerate() {
        let lane = Rc::new(Lane::new(plan, options, nth, inserts, index, timetable)?);
        for nth in 0..lane.connections {
            // Connection numbers run over all lanes, so that every node gets its share of them.
            let target = plan.targets.iter().cycle().nth((nth * plan.threads + index) % plan.targets.len());
            if let Some(target) = target {
                joins.push(tasks.spawn_local(drive(Rc::clone(&lane), target.clone())));
            }
        }
        if lane.ticker.borrow().is_some() {
            // Not awaited in the end: it ends with the lane.
            drop(tasks.spawn_local(tick(Rc::clone(&lane))));
        }
        if lane.stream.pacing.is_open() && lane.connections > 0 {
            let alarm = Alarm::new().map_err(LabError::machine("create a timer"))?;
            joins.push(tasks.spawn_local(dispatch(Rc::clone(&lane), alarm)));
        }
        lanes.push(lane);
    }
    runtime.block_on(tasks.run_until(async {
        let all = async {
            for join in joins {
                if tokio::time::timeout_at(timetable.hard_end.into(), join).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            () = all => {}
            () = options.stopped() => {}
        }
    }));
    drop(tasks);
    let is_stopped = options.is_stopped() && Instant::now() < timetable.end;
    Ok(lanes.iter().map(|lane| lane.close(is_stopped)).collect())
}

impl Lane {
    fn new(
        plan: &Plan,
        options: &RunOptions,
        nth: usize,
        inserts: &Arc<Inserts>,
        index: usize,
        timetable: Timetable,
    ) -> Result<Self, LabError> {
        let stream =
            plan.streams.get(nth).ok_or_else(|| LabError::Usage("no such stream in the plan".into()))?;
        let lanes = plan.threads.min(stream.connections);
        let connections = if index < lanes {
            stream.connections / lanes + usize::from(index < stream.connections % lanes)
        } else {
            0
        };
        let timeline = stream.pacing.timeline(options.warm_up, plan.duration);
        let keys = stream.order.slots(stream.dataset.keys);
        let all = if stream.pacing.is_open() { keys.min(timeline.slots()) } else { keys };
        let schedule = Schedule::new(index as u64, lanes as u64, timeline);
        let slots = if connections > 0 { schedule.share(all) } else { 0 };
        let ticker = match &options.ticks {
            Some(listener) => Some(Ticker {
                listener: listener.clone(),
                stream: nth,
                second: 0,
                latency: Latencies::new()?,
                failed: 0,
            }),
            None => None,
        };
        let mix = if nth == 0 { options.mix } else { None };
        let mut tally = Tally::new()?;
        for kind in mix.iter().flat_map(Mix::kinds) {
            tally.by_kind.insert(kind, Latencies::new()?);
        }
        Ok(Self {
            stream: stream.clone(),
            records: options.records(stream),
            mix,
            template: options.template.clone(),
            headers: options.headers.clone(),
            keys: KeyChooser::new(&stream.order, stream.dataset.keys),
            inserts: Arc::clone(inserts),
            schedule,
            timetable,
            timeout: plan.timeout,
            slots,
            next: Cell::new(0),
            in_flight: Cell::new(0),
            connections,
            coalesce: options.coalesce,
            due: Semaphore::new(0),
            tally: RefCell::new(tally),
            ticker: RefCell::new(ticker),
        })
    }

    /// Takes the oldest slot that is due; waits for one in an open loop. `None`: the lane is at its end.
    async fn claim(&self) -> Option<Slot> {
        let is_open = self.stream.pacing.is_open();
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
        let number = self.schedule.slot(nth);
        let action = match &self.mix {
            Some(mix) => mix.action(number, self.stream.order.seed()),
            None => Action::from(self.stream.operation),
        };
        let key = match action {
            Action::Insert => self.inserts.begin(),
            _ => self.keys.choose(number, self.inserts.newest()),
        };
        Some(Slot { action, key, due, is_measured: due >= self.timetable.measured })
    }

    /// Whether `status` is that of a success.
    fn is_ok(&self, status: u16) -> bool {
        self.template.as_ref().map_or((200..=299).contains(&status), |template| template.is_ok(status))
    }

    /// Counts the result of an operation that was sent at `sent`.
    fn count(
        &self,
        slot: &Slot,
        answer: Result<Answer, Broken>,
        body: &AnswerBody,
        sent: Instant,
        done: Instant,
    ) {
        let is_success = answer.is_ok_and(|answer| self.is_ok(answer.status));
        let is_right = is_success && body.is_right(slot.action, slot.key);
        let mut tally = self.tally.borrow_mut();
        if !is_right && self.stream.is_bounded() {
            tally.failed_key(slot.key);
        }
        if !slot.is_measured {
            return;
        }
        let latency = done.duration_since(slot.due);
        if is_success && body.is_compared(slot.action) {
            match slot.action {
                Action::Scan { .. } => tally.verified.scans += 1,
                _ => tally.verified.read(slot.key),
            }
            if !is_right {
                tally.verified.wrong(|| body.complaint(slot.action, slot.key));
            }
        }
        if is_right {
            tally.latency.record(latency);
            tally.uncorrected.record(done.duration_since(sent));
            tally.succeeded += 1;
            if matches!(slot.action, Action::Scan { .. }) {
                tally.records += body.records();
            }
            if let Some(kind) = tally.by_kind.get_mut(slot.action.name()) {
                kind.record(latency);
            }
        } else {
            match answer {
                Ok(_) if is_success => tally.wrong_bodies += 1,
                Ok(Answer { status, .. }) => tally.status(status),
                Err(failure) => tally.failure(failure),
            }
        }
        if answer.is_ok() {
            tally.last_answer = tally.last_answer.max(Some(done));
            tally.answered(done.duration_since(self.timetable.measured));
        }
        if let Some(ticker) = self.ticker.borrow_mut().as_mut() {
            if is_right {
                ticker.latency.record(latency);
            } else {
                ticker.failed += 1;
            }
        }
    }

    /// Returns the counts, with the operations that were left undone. In a run that was ended early none
    /// counts as undone.
    fn close(&self, is_stopped: bool) -> Tally {
        if let Some(ticker) = self.ticker.borrow_mut().as_mut() {
            ticker.tell();
        }
        let mut tally = self.tally.borrow().clone();
        tally.cut = if is_stopped { 0 } else { self.in_flight.get() };
        if self.stream.pacing.is_open() && !is_stopped {
            tally.unsent = self.slots.saturating_sub(self.next.get());
        }
        // Only whole windows count, also those without an answer.
        let end = if is_stopped { Instant::now() } else { self.timetable.end };
        let measured = end.saturating_duration_since(self.timetable.measured);
        let windows = usize::try_from(measured.as_nanos() / WINDOW.as_nanos()).unwrap_or(usize::MAX);
        if self.connections == 0 {
            tally.windows.clear();
        } else if !self.stream.is_bounded() && windows <= WINDOWS_MAX {
            tally.windows.resize(windows, 0);
        }
        tally
    }
}

/// Reports the figures of every second of the measured part.
async fn tick(lane: Rc<Lane>) {
    let mut at = lane.timetable.measured;
    while at < lane.timetable.end {
        at += Duration::from_secs(1);
        tokio::time::sleep_until(at.into()).await;
        if let Some(ticker) = lane.ticker.borrow_mut().as_mut() {
            ticker.tell();
        }
    }
}

/// Releases the lane's slots when they are due, and in the end wakes waiting connections so that they end.
async fn dispatch(lane: Rc<Lane>, alarm: Alarm) {
    let mut released = 0;
    let mut waking = lane.timetable.start;
    for nth in 0..lane.slots {
        let due = lane.timetable.start + lane.schedule.due(nth);
        if due > waking {
            waking = due.max(waking + lane.coalesce);
        }
        if let Some(early) = waking.checked_duration_since(Instant::now()) {
            released = 0;
            if alarm.sleep(early).await.is_err() {
                break;
            }
        }
        if due >= lane.timetable.measured {
            lane.tally.borrow_mut().driver_lag.record(Instant::now().saturating_duration_since(due));
        }
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
async fn drive(lane: Rc<Lane>, target: Target) {
    let writer = RequestWriter {
        records: lane.records,
        replicas: lane.stream.replicas,
        head: head(&target.to_string(), &lane.headers, lane.template.as_deref()),
        template: lane.template.clone(),
    };
    let mut request = Vec::new();
    let mut body = AnswerBody::new(lane.records, lane.stream.verify, lane.template.clone());
    let mut pause = BACKOFF_MIN;
    while Instant::now() < lane.timetable.send_end {
        let opened = Connection::open(&target, Instant::now() + lane.timeout).await;
        let broken = match opened {
            Ok(mut connection) => {
                if !lane.stream.pacing.is_open() {
                    // In a closed loop all connections begin together; in an open one every slot has its own
                    // moment.
                    tokio::time::sleep_until(lane.timetable.start.into()).await;
                }
                match exchanges(&lane, &mut connection, &writer, &mut request, &mut body, &mut pause).await {
                    Some(is_broken) => is_broken,
                    None => return,
                }
            }
            Err(failure) => {
                if Instant::now() >= lane.timetable.measured {
                    lane.tally.borrow_mut().failure(failure);
                }
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

/// Makes operations on `connection` while it lasts. `Some(true)`: it broke. `Some(false)`: the server wants
/// another connection. `None`: the lane is at its end.
async fn exchanges(
    lane: &Lane,
    connection: &mut Connection,
    writer: &RequestWriter,
    request: &mut Vec<u8>,
    body: &mut AnswerBody,
    pause: &mut Duration,
) -> Option<bool> {
    loop {
        let slot = lane.claim().await?;
        writer.write(slot.action, slot.key, request);
        body.reset(slot.action);
        let sent = Instant::now();
        if slot.is_measured && sent.duration_since(slot.due) > LATE {
            lane.tally.borrow_mut().late += 1;
        }
        let patience = match slot.action {
            Action::Scan { .. } => Patience::Progress(lane.timeout),
            _ => Patience::Until(sent + lane.timeout),
        };
        lane.in_flight.set(lane.in_flight.get() + 1);
        let mut answer = connection.exchange(request, patience, body).await;
        if slot.action == Action::ReadModifyWrite
            && answer.is_ok_and(|answer| lane.is_ok(answer.status) && !answer.close)
            && body.is_right(slot.action, slot.key)
        {
            writer.write(Action::Put, slot.key, request);
            // The result of the read's check stays valid; the body of the write's answer is dropped.
            answer = connection.exchange(request, patience, &mut Nowhere).await;
        }
        let done = Instant::now();
        lane.in_flight.set(lane.in_flight.get() - 1);
        if slot.action == Action::Insert {
            lane.inserts.end(slot.key);
        }
        let (bytes_sent, bytes_received) = connection.take_bytes();
        if slot.is_measured {
            let mut tally = lane.tally.borrow_mut();
            tally.bytes_sent += bytes_sent;
            tally.bytes_received += bytes_received;
        }
        lane.count(&slot, answer, body, sent, done);
        match answer {
            Ok(Answer { close: true, .. }) => return Some(false),
            // An overloaded node asked for a pause; an open loop must ignore that, a closed one must obey.
            Ok(Answer { status: 503, .. }) if !lane.stream.pacing.is_open() => {
                tokio::time::sleep(*pause).await;
                *pause = (*pause * 2).min(BACKOFF_MAX);
            }
            Ok(_) => *pause = BACKOFF_MIN,
            Err(_) => return Some(true),
        }
    }
}

/// A sink that drops the body.
struct Nowhere;

impl BodySink for Nowhere {
    fn data(&mut self, _: &[u8]) {}
}
