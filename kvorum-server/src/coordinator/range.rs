//! Ranges over the cluster: every live key once, its freshest record among a read quorum of its replicas.
//!
//! Every node that answers opens a snapshot of its own store and streams the rows of the range in key order; the
//! coordinator merges the streams. Of a key's replicas, only the best one that takes part sends the value; the others
//! send the version. If a version is newer than the value that came, the coordinator reads the key like a client would.
//! Each stream is asked for its next part only when the part before is in use, so a client that does not read stops all
//! of them.
//!
//! A node that is lost on the way is left out as long as the others are still a read quorum for every partition.
//! Otherwise the range ends with an error: it is never silently incomplete.

use super::calls::{Cause, TOO_EARLY_WAIT};
use super::{Coordinator, CoordinatorError, Missing, Shared};
use crate::cluster::View;
use crate::peer::{CallError, Held, Link, Refusal, Reply, Request, ScanRow};
use crate::replica::{RangeReader, ReplicaError};
use bytes::Bytes;
use kvorum_core::agreement::Epoch;
use kvorum_core::{Key, Partition, Quorum, Record, Slot, UnixMillis, Version};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of keys and values that a node sends at a time.
const PART_BYTES: u32 = 64 << 10;
/// How long a node may take to send a part; a slower one is left out.
const PART_TIMEOUT: Duration = Duration::from_secs(5);

/// The nodes that take part in a range: they decide which of a key's replicas sends the value.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    /// The view in which the range was opened. Later ones change nothing of it: it shows an instant.
    pub(crate) view: Arc<View>,
    /// The indexes of the nodes, ascending.
    pub(crate) sources: Vec<u16>,
    /// The number of replicas asked for each key.
    pub(crate) from: u16,
}

impl Share {
    /// The part of a record that the node at `me` sends: all of it, its header, or nothing.
    fn cut(&self, me: Slot, key: &Key, record: Record) -> Option<Held> {
        let list = self.view.preference_list(self.view.partition_of(key));
        let mut taking = list
            .iter()
            .take(usize::from(self.from))
            .filter(|index| self.sources.binary_search(&index.0).is_ok());
        let first = taking.next()?;
        if *first == me {
            return Some(Held::Whole(record));
        }
        taking.any(|index| *index == me).then(|| Held::new(record, 0))
    }

    /// Reads the next rows that this node sends; empty at the end of the range.
    pub(crate) async fn next(
        &self,
        shared: &Shared,
        reader: &mut RangeReader,
        bytes: u32,
    ) -> Result<Vec<ScanRow>, ReplicaError> {
        let me = shared.cluster.me();
        loop {
            let part = reader.next(usize::try_from(bytes.clamp(1, 1 << 20)).unwrap_or(1)).await?;
            if part.is_empty() {
                return Ok(Vec::new());
            }
            // Leaving out a record from the future would hide the key: fail, so that another node's copy is used.
            for (_, record) in &part {
                shared.timestamps.check(record.version.clock())?;
            }
            let rows: Vec<ScanRow> = part
                .into_iter()
                .filter_map(|(key, record)| {
                    let key = Key::new(key).ok()?;
                    let held = self.cut(me, &key, record)?;
                    Some(ScanRow { key, held })
                })
                .collect();
            if !rows.is_empty() {
                return Ok(rows);
            }
        }
    }
}

/// A part of a node's stream: its rows, and where the next part comes from, unless it is the last.
type Part = Result<(Vec<ScanRow>, Option<Stream>), Cause>;

/// The source of a node's next part.
enum Stream {
    Local(Box<RangeReader>),
    Remote(u32),
}

/// One node's stream of rows.
struct Source {
    node: Slot,
    rows: VecDeque<ScanRow>,
    /// The part that has been requested; `None` at the end.
    next: Option<Pin<Box<dyn Future<Output = Part>>>>,
    /// The scan that is open at the node.
    open: Option<(Rc<Link>, u32)>,
}

/// The records of a range over the cluster, in key order.
pub struct ClusterRange {
    coordinator: Rc<Coordinator>,
    quorum: Quorum,
    share: Rc<Share>,
    sources: Vec<Source>,
    missing: Vec<Missing>,
    begun: Instant,
}

impl Coordinator {
    /// Opens the range start <= key < end over the cluster, at the default read quorum. Also returns the time at which
    /// expiry is to be judged.
    ///
    /// # Errors
    /// [`CoordinatorError::NotEnoughReplicas`] when some partition has too few replicas that answer.
    pub async fn scan_cluster(
        self: &Rc<Self>,
        start: Key,
        end: Option<Key>,
    ) -> Result<(ClusterRange, UnixMillis), CoordinatorError> {
        let (now, begun) = (self.shared.timestamps.expiry_clock(), Instant::now());
        let quorum = self.default_quorum();
        let me = self.shared.cluster.me();
        let answering = |view: &View| -> Vec<u16> {
            let answers = |index: &&Slot| {
                if **index == me { self.shared.cluster.votes() } else { self.is_ready(**index) }
            };
            view.slots().iter().filter(answers).map(|index| index.0).collect()
        };
        let mut view = self.view();
        let mut sources = answering(&view);
        let mut missing = Vec::new();
        // Open again if a node fails: it must not be counted on to send values.
        loop {
            let share =
                Rc::new(Share { view: Arc::clone(&view), sources: sources.clone(), from: quorum.from() });
            let mut range = ClusterRange {
                coordinator: Rc::clone(self),
                quorum,
                share: Rc::clone(&share),
                sources: Vec::new(),
                missing: std::mem::take(&mut missing),
                begun,
            };
            range.check_quorum(&sources)?;
            for index in &sources {
                let node = Slot(*index);
                let next = Some(self.open_source(node, &start, end.as_ref(), &share));
                range.sources.push(Source { node, rows: VecDeque::new(), next, open: None });
            }
            let filled = range.fill().await;
            if !self.shared.cluster.is_placed_as(view.placed_since())
                && begun.elapsed() < self.shared.settings.request_timeout
            {
                view = self.view();
                (sources, missing) = (answering(&view), Vec::new());
                continue;
            }
            filled?;
            if range.sources.len() == sources.len() {
                return Ok((range, now));
            }
            sources = range.sources.iter().map(|source| source.node.0).collect();
            missing = std::mem::take(&mut range.missing);
        }
    }

    fn open_source(
        self: &Rc<Self>,
        node: Slot,
        start: &Key,
        end: Option<&Key>,
        share: &Rc<Share>,
    ) -> Pin<Box<dyn Future<Output = Part>>> {
        let (coordinator, share) = (Rc::clone(self), Rc::clone(share));
        let (start, end) = (start.clone(), end.cloned());
        Box::pin(async move {
            let (shared, epoch) = (&coordinator.shared, share.view.placed_since());
            if node == shared.cluster.me() {
                let reader = shared.local.scan(start, end, epoch).await;
                let reader = reader.map_err(|why| why.into_cause(&shared.cluster))?;
                return read_local(shared, &share, Box::new(reader)).await;
            }
            let open = Request::ScanOpen {
                start,
                end,
                bytes: PART_BYTES,
                sources: share.sources.clone(),
                from: coordinator.default_quorum().from(),
            };
            let deadline = Instant::now() + shared.settings.request_timeout;
            loop {
                match coordinator.ask_part(node, epoch, &open).await {
                    // It works with another epoch: one of the two nodes is about to catch up.
                    Err(cause) if cause.is_too_early() && Instant::now() < deadline => {
                        tokio::time::sleep(TOO_EARLY_WAIT).await;
                    }
                    part => return part,
                }
            }
        })
    }

    async fn ask_part(&self, node: Slot, epoch: Epoch, request: &Request) -> Part {
        let Some(link) = self.link(node) else { return Err(Cause::Unreachable) };
        match link.call_within(request, PART_TIMEOUT, epoch, None).await {
            Err(error @ CallError::Refused { code: Refusal::Epoch, .. }) => {
                Err(self.shared.peering.failed(node, epoch, error))
            }
            answer => self.part_of(answer),
        }
    }

    fn part_of(&self, answer: Result<Reply, CallError>) -> Part {
        match answer {
            Ok(Reply::ScanPart { scan, rows, is_last }) => {
                if let Some(newest) = rows.iter().map(|row| row.held.version()).max() {
                    self.shared.stamps.observe(newest);
                }
                Ok((rows, (!is_last).then_some(Stream::Remote(scan))))
            }
            Ok(_) => Err(Cause::OffTopic),
            Err(error) => Err(Cause::Call(error)),
        }
    }
}

async fn read_local(shared: &Arc<Shared>, share: &Share, mut reader: Box<RangeReader>) -> Part {
    let read = share.next(shared, &mut reader, PART_BYTES).await;
    // Check afterwards: the store may have been set aside meanwhile.
    if !shared.cluster.votes() {
        return Err(Cause::NotVoting);
    }
    let rows = read.map_err(Cause::Replica)?;
    let next = (!rows.is_empty()).then_some(Stream::Local(reader));
    Ok((rows, next))
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some((link, scan)) = self.open.take() {
            // No caller waits for the answer; a node that misses the request drops the scan by its age.
            drop(link.call(&Request::ScanClose { scan }, PART_TIMEOUT));
        }
    }
}

impl ClusterRange {
    /// The next records, about `bytes` of keys and values, tombstones and expired ones included; empty at the end of
    /// the range.
    ///
    /// # Errors
    /// When the quorum of some partition is lost. The range then ends.
    pub async fn next(&mut self, bytes: usize) -> Result<Vec<(Bytes, Record)>, CoordinatorError> {
        let mut records = Vec::new();
        let mut read = 0;
        while read < bytes {
            self.fill().await?;
            let first =
                self.sources.iter().filter_map(|source| source.rows.front()).map(|row| &row.key).min();
            let Some(key) = first.cloned() else { break };
            let Some(record) = self.take(&key).await? else { continue };
            read += key.as_ref().len() + record.live(UnixMillis(0)).map_or(0, Bytes::len);
            records.push((key.into_bytes(), record));
        }
        Ok(records)
    }

    /// Waits until every stream has a row or is at its end. Streams that fail are left out.
    async fn fill(&mut self) -> Result<(), CoordinatorError> {
        let mut at = 0;
        while let Some(source) = self.sources.get_mut(at) {
            let (true, Some(next)) = (source.rows.is_empty(), source.next.as_mut()) else {
                at += 1;
                continue;
            };
            let node = source.node;
            match next.as_mut().await {
                Ok((rows, stream)) => {
                    source.rows = rows.into();
                    source.open = match (&stream, self.coordinator.link(node)) {
                        (Some(Stream::Remote(scan)), Some(link)) => Some((Rc::clone(link), *scan)),
                        _ => None,
                    };
                    source.next = stream.map(|stream| self.coordinator.next_part(node, &self.share, stream));
                }
                Err(cause) => {
                    self.sources.remove(at);
                    let missing = Missing::of(&self.coordinator.shared, node, &cause);
                    tracing::debug!(node = missing.url, %cause, "a range goes on without a node");
                    self.missing.push(missing);
                    let left: Vec<u16> = self.sources.iter().map(|source| source.node.0).collect();
                    self.check_quorum(&left)?;
                }
            }
        }
        Ok(())
    }

    /// Takes `key`, which is first in some streams, off all of them and returns its freshest record.
    async fn take(&mut self, key: &Key) -> Result<Option<Record>, CoordinatorError> {
        let mut newest: Option<Record> = None;
        let mut version = Version::ZERO;
        for source in &mut self.sources {
            let Some(row) = source.rows.pop_front_if(|row| row.key == *key) else { continue };
            version = version.max(row.held.version());
            if let Held::Whole(record) = row.held {
                newest = Some(match newest {
                    Some(known) => known.merge(record),
                    None => record,
                });
            }
        }
        match newest {
            Some(record) if record.version == version => Ok(Some(record)),
            // A replica holds a newer version than the replica that sent the value, or that replica has been lost.
            _ => Ok(self.coordinator.read(key.clone(), self.quorum).await?.record),
        }
    }

    /// Checks that every partition has enough replicas among `sources`.
    fn check_quorum(&self, sources: &[u16]) -> Result<(), CoordinatorError> {
        let view = &self.share.view;
        for partition in Partition::all(self.coordinator.shared.cluster.partition_bits()) {
            let list = view.preference_list(partition);
            let answering =
                list.iter().take(usize::from(self.quorum.from())).filter(|index| sources.contains(&index.0));
            let confirmed = u16::try_from(answering.count()).unwrap_or(u16::MAX);
            if confirmed < self.quorum.ack() {
                return Err(CoordinatorError::NotEnoughReplicas {
                    quorum: self.quorum,
                    confirmed,
                    missing: self.missing.clone(),
                    waited: self.begun.elapsed(),
                });
            }
        }
        Ok(())
    }
}

impl Coordinator {
    /// Requests a stream's next part at once, so that it is under way while the part before is merged.
    fn next_part(
        self: &Rc<Self>,
        node: Slot,
        share: &Rc<Share>,
        stream: Stream,
    ) -> Pin<Box<dyn Future<Output = Part>>> {
        let (coordinator, share) = (Rc::clone(self), Rc::clone(share));
        match stream {
            Stream::Local(reader) => {
                Box::pin(async move { read_local(&coordinator.shared, &share, reader).await })
            }
            Stream::Remote(scan) => {
                let request = Request::ScanNext { scan, bytes: PART_BYTES };
                let call = self.link(node).map(|link| link.call(&request, PART_TIMEOUT));
                Box::pin(async move {
                    match call {
                        Some(call) => coordinator.part_of(call.await),
                        None => Err(Cause::Unreachable),
                    }
                })
            }
        }
    }
}
