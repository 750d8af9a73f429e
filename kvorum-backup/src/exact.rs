//! An exact backup: the whole cluster at one timestamp.
//!
//! The timestamp T is armed on every node that answers, then closed on each. Every node keeps its records as of T, and
//! confirms no write at or below T afterwards that it had not got by then. So the newest records of a read quorum of
//! nodes are what had been acknowledged at or below T. Writes go on meanwhile.
//!
//! All nodes are read at once, in the order of the keys, and their records are merged here. A partition that has not changed on
//! any node since the last backup is not read: its records come from the packs of that backup.

use crate::create::{Created, Packing, Plan, RateLimit, WAIT, id_shown, millis};
use crate::error::BackupError;
use crate::folder::Folder;
use crate::manifest::{CutEntry, Manifest, NodeDigests, PackEntry};
use crate::nodes::{Nodes, Topology};
use crate::pack::PackedRecord;
use crate::row::Row;
use crate::verify::{Depth, verify};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use kvorum_client::{Client, Error, LineStream};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

/// How often the cut is taken again: another backup may have one open, a clock may run ahead, or members may change.
const CUTS_MAX: u32 = 45;
const PAUSE: Duration = Duration::from_secs(1);
/// How often the nodes are told that the cut is still read.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How often the streams are opened again without having come further.
const ATTEMPTS_MAX: u32 = 5;

/// Makes a client of one node.
pub type Connect<'a> = &'a dyn Fn(&str) -> Result<Client, Error>;

/// Backs up every record that is live at one instant, which all nodes keep while they are read.
///
/// It has every write that was acknowledged at or below the instant, and none above. A write that was under way then is
/// in it or not.
///
/// # Errors
/// [`BackupError::NoCoverage`] when the nodes that answer are no read quorum of some partition,
/// [`BackupError::Refused`] when a node does not allow it, [`BackupError::MembersChange`] when the nodes closed in several epochs at
/// the last try. No backup exists then.
///
/// # Cancel safety
/// Dropping the future leaves packs without a manifest, and the nodes drop their cuts within half a minute.
pub async fn create_exact(
    client: &Client,
    connect: Connect<'_>,
    folder: &Folder,
    plan: &Plan,
    now: impl Fn() -> SystemTime,
) -> Result<Created, BackupError> {
    let begun_millis = millis(now());
    let (topology, mut nodes, upto) = take_cut(client, connect, plan).await?;
    let beating = heartbeat(&nodes, upto);
    let made = read(&topology, &mut nodes, folder, plan, upto, begun_millis, &now).await;
    beating.abort();
    nodes.order_all(&format!("drop={upto:016x}")).await;
    let (packing, cut, cuts) = made?;
    let Packing { packs, packs_new, value_bytes, values_read, .. } = packing;
    let times = (begun_millis, millis(now()));
    let mut manifest = Manifest::new(plan.id.clone(), times, Some(topology.epoch), packs, value_bytes);
    manifest.cut = Some(cut);
    folder.put_manifest(&manifest)?;
    Ok(Created { manifest, packs_new, cuts, away: nodes.away, values_read })
}

/// Arms and closes one timestamp on all nodes that answer, in one epoch. Returns it, with the nodes that have closed it and their
/// placement.
async fn take_cut(
    client: &Client,
    connect: Connect<'_>,
    plan: &Plan,
) -> Result<(Topology, Nodes, u64), BackupError> {
    let mut attempt = 1;
    loop {
        let topology = Topology::of(client).await?;
        let mut nodes = Nodes::connect(&topology, connect)?;
        let failed = match try_cut(&topology, &mut nodes, plan).await? {
            Ok(upto) => return Ok((topology, nodes, upto)),
            Err(failed) => failed,
        };
        // If members have changed since the lists were read, other nodes must be asked.
        let is_lasting = matches!(failed, BackupError::NoCoverage { .. })
            && Topology::of(client).await?.epoch == topology.epoch;
        if is_lasting || attempt >= CUTS_MAX {
            return Err(failed);
        }
        attempt += 1;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Like [`take_cut`], once. The inner error may pass.
async fn try_cut(
    topology: &Topology,
    nodes: &mut Nodes,
    plan: &Plan,
) -> Result<Result<u64, BackupError>, BackupError> {
    let readings = nodes.readings().await?;
    if let Err(few) = topology.check_coverage(&nodes.sources(), &nodes.away) {
        return Ok(Err(few));
    }
    // Above whatever any node has stamped by the time at which the last one has armed.
    let upto = (readings.iter().max().copied().unwrap_or(0) >> 16).saturating_add(1000) << 16 | 0xffff;
    let arming = nodes.order_all(&format!("arm={upto:016x}&age={}", plan.age_max.as_secs())).await;
    let closed = if let Some(refusal) = arming.refused {
        Err(refusal)
    } else {
        // A node that did not arm may overwrite what it had at T: its records do not count.
        nodes.keep(&arming.done);
        let mut closing = nodes.order_all(&format!("close={upto:016x}")).await;
        // In another epoch other nodes may confirm writes. So only nodes count that closed in the epoch of the lists (docs/dev/cuts.md).
        let moved: Vec<u16> = closing
            .done
            .extract_if(.., |_, page| !page.is_of(&topology.epoch))
            .map(|(index, _)| index)
            .collect();
        nodes.order(&moved, &format!("drop={upto:016x}")).await;
        nodes.keep(&closing.done);
        nodes.take_digests(&closing);
        let covered = topology.check_coverage(&nodes.sources(), &nodes.away);
        covered.map_err(|few| if moved.is_empty() { few } else { BackupError::MembersChange })
    };
    if closed.is_err() {
        nodes.order_all(&format!("drop={upto:016x}")).await;
    }
    Ok(closed.map(|()| upto))
}

/// Tells the nodes that the cut is still in use, until it is aborted.
fn heartbeat(nodes: &Nodes, upto: u64) -> tokio::task::JoinHandle<()> {
    let clients = nodes.clients();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            for client in &clients {
                // A node that misses it notices reads, too.
                let _ = client.order(&format!("/admin/cut?close={upto:016x}")).await;
            }
        }
    })
}

/// The partitions that need not be read, and the records of the backup that has them.
struct Base<'a> {
    folder: &'a Folder,
    packs: VecDeque<PackEntry>,
    records: VecDeque<PackedRecord>,
    /// By partition.
    is_unchanged: Vec<bool>,
    count: usize,
    /// The instant of the backup before: nodes need not send the values of versions up to there. 0 without one.
    upto: u64,
}

impl<'a> Base<'a> {
    fn of(topology: &Topology, nodes: &Nodes, folder: &'a Folder) -> Self {
        let none = Self {
            folder,
            packs: VecDeque::new(),
            records: VecDeque::new(),
            is_unchanged: vec![false; topology.partitions()],
            count: 0,
            upto: 0,
        };
        let Ok(manifest) = folder.manifest(None) else { return none };
        let (Some(cut), true) = (&manifest.cut, manifest.epoch.as_ref() == Some(&topology.epoch)) else {
            return none;
        };
        let Ok(upto) = u64::from_str_radix(&cut.upto, 16) else { return none };
        let is_unchanged = nodes.unchanged_since(&cut.nodes, topology.partitions());
        let count = is_unchanged.iter().filter(|unchanged| **unchanged).count();
        // A damaged pack is read from the cluster again.
        if verify(folder, &manifest, Depth::Records).is_err() {
            return none;
        }
        // A longer query would not fit into a request: then all partitions are read.
        let (is_unchanged, count) =
            if is_unchanged.len() > 1 << 14 { (none.is_unchanged, 0) } else { (is_unchanged, count) };
        Self { folder, packs: manifest.packs.into(), records: VecDeque::new(), is_unchanged, count, upto }
    }

    /// The partitions that are read, as the nodes want them; `None` for all.
    fn wanted(&self) -> Option<String> {
        if self.count == 0 {
            return None;
        }
        let byte = |bits: &[bool]| {
            bits.iter().enumerate().fold(0_u8, |byte, (at, same)| byte | u8::from(!same) << (7 - at))
        };
        let mut wanted = String::new();
        for bits in self.is_unchanged.chunks(8) {
            // Writing to a string cannot fail.
            let _ = write!(wanted, "{:02x}", byte(bits));
        }
        Some(wanted)
    }

    /// The next record.
    fn next(&mut self) -> Result<Option<&PackedRecord>, BackupError> {
        while self.records.is_empty() {
            let Some(entry) = self.packs.pop_front() else { return Ok(None) };
            self.records = self.folder.records(&entry)?.into();
        }
        Ok(self.records.front())
    }

    /// Whether the record is of a partition that is not read.
    fn has_alone(&self, topology: &Topology, record: &PackedRecord) -> bool {
        self.is_unchanged.get(topology.partition_of(&record.key)).copied().unwrap_or(false)
    }

    /// Takes the next record, if its key is before `key`, or if there is no `key`.
    fn take_before(&mut self, key: Option<&Bytes>) -> Result<Option<PackedRecord>, BackupError> {
        let is_before = self.next()?.is_some_and(|record| key.is_none_or(|key| record.key < *key));
        Ok(if is_before { self.records.pop_front() } else { None })
    }

    /// The value of `row`, if the backup before has it: one version has one value.
    fn value_of(&mut self, row: &Row) -> Result<Option<Bytes>, BackupError> {
        let version = row.etag.as_ref().unwrap_or(&row.version);
        let known = self.next()?.filter(|record| record.key == row.key && record.version == *version);
        Ok(known.map(|record| record.value.clone()))
    }
}

async fn read<'a>(
    topology: &Topology,
    nodes: &mut Nodes,
    folder: &'a Folder,
    plan: &Plan,
    upto: u64,
    begun_millis: u64,
    now: &impl Fn() -> SystemTime,
) -> Result<(Packing<'a>, CutEntry, u64), BackupError> {
    let mut base = Base::of(topology, nodes, folder);
    let cut = CutEntry {
        upto: format!("{upto:016x}"),
        nodes: nodes.digests(),
        partitions: topology.partitions() as u64,
        partitions_read: (topology.partitions() - base.count) as u64,
    };
    let mut packing = Packing::new(folder);
    let pace = RateLimit::new(plan.bytes_per_second_max);
    let (mut bytes, mut cuts, mut attempts) = (0_u64, 0, 0);
    let mut start = vec![0];
    // Without a partition to read there is nothing to ask.
    let mut is_read = base.count == topology.partitions();
    while !is_read {
        let before = start.clone();
        let mut merge = Merge {
            topology,
            upto,
            begun_millis,
            base: &mut base,
            start: &mut start,
            pace: &pace,
            bytes: &mut bytes,
        };
        match merge.run(nodes, &mut packing).await? {
            None => is_read = true,
            Some(lost) => {
                cuts += 1;
                attempts = if start == before { attempts + 1 } else { 0 };
                // A node that cannot be read any more is left out, as long as the others suffice.
                if attempts >= ATTEMPTS_MAX || !nodes.still_has(lost, upto).await {
                    nodes.lose(lost);
                    topology.check_coverage(&nodes.sources(), &nodes.away)?;
                    attempts = 0;
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    while let Some(record) = base.take_before(None)? {
        if base.has_alone(topology, &record) && is_live(record.expires_millis, millis(now())) {
            packing.add(&record)?;
        }
    }
    packing.end_pack()?;
    Ok((packing, cut, cuts))
}

fn is_live(expires_millis: Option<u64>, at_millis: u64) -> bool {
    expires_millis.is_none_or(|expires| expires > at_millis)
}

/// One pass over the streams of all nodes, from `start` on.
struct Merge<'a, 'b> {
    topology: &'a Topology,
    upto: u64,
    begun_millis: u64,
    base: &'a mut Base<'b>,
    start: &'a mut Vec<u8>,
    pace: &'a RateLimit,
    bytes: &'a mut u64,
}

/// The stream of one node.
struct Stream {
    index: u16,
    lines: LineStream,
    head: Option<Row>,
}

impl Stream {
    /// Reads the next row; false when the stream failed.
    async fn advance(&mut self) -> Result<bool, BackupError> {
        self.head = match self.lines.next().await {
            None => None,
            Some(Ok(line)) => Some(Row::parse(&line).map_err(|reason| BackupError::Answer { reason })?),
            Some(Err(_)) => return Ok(false),
        };
        Ok(true)
    }
}

impl Merge<'_, '_> {
    /// Reads until the end of all streams, or until one fails: then its node is returned.
    async fn run(&mut self, nodes: &Nodes, packing: &mut Packing<'_>) -> Result<Option<u16>, BackupError> {
        let mut streams = Vec::new();
        let sources: Vec<String> = nodes.sources().iter().map(u16::to_string).collect();
        let (sources, wanted) = (sources.join(","), self.base.wanted());
        let wanted = wanted.map_or_else(String::new, |wanted| format!("&partitions={wanted}"));
        let known = match self.base.upto {
            0 => String::new(),
            upto => format!("&known={upto:016x}"),
        };
        for (index, client) in nodes.each() {
            let from = id_shown(self.start);
            let target = format!(
                "/admin/cut/records?cut={:016x}&start={from}&sources={sources}{wanted}{known}",
                self.upto
            );
            let Ok(lines) = client.lines(&target, Some(WAIT)).await else { return Ok(Some(index)) };
            let mut stream = Stream { index, lines, head: None };
            if !stream.advance().await? {
                return Ok(Some(index));
            }
            streams.push(stream);
        }
        loop {
            let first = streams.iter().filter_map(|stream| stream.head.as_ref()).map(|row| &row.key).min();
            let Some(key) = first.cloned() else { return Ok(None) };
            self.add_unread_before(&key, packing)?;
            let mut newest: Option<(u16, Row)> = None;
            for stream in &mut streams {
                if stream.head.as_ref().is_none_or(|row| row.key != key) {
                    continue;
                }
                let Some(row) = stream.head.take() else { continue };
                *self.bytes += row.bytes();
                newest = Some(match newest.take() {
                    Some(known) if !row.is_better_than(&known.1) => known,
                    _ => (stream.index, row),
                });
                if !stream.advance().await? {
                    return Ok(Some(stream.index));
                }
            }
            if let Some((index, row)) = newest {
                let (row, is_known) = self.with_known_value(row)?;
                match self.whole(nodes, index, row).await? {
                    Ok(row) => {
                        packing.values_read += u64::from(!is_known && row.value.is_some());
                        self.add(row, packing)?;
                    }
                    Err(lost) => return Ok(Some(lost)),
                }
            }
            *self.start = [&key[..], b"\0"].concat();
            self.pace.keep(*self.bytes).await;
        }
    }

    /// The row, with its value if the nodes have left that out and the backup before has it; and whether that is so.
    fn with_known_value(&mut self, row: Row) -> Result<(Row, bool), BackupError> {
        if row.is_deleted || row.value.is_some() {
            return Ok((row, false));
        }
        let value = self.base.value_of(&row)?;
        let is_known = value.is_some();
        Ok((Row { value, ..row }, is_known))
    }

    /// The row with its value, which another node may have sent in an older version.
    async fn whole(&self, nodes: &Nodes, index: u16, row: Row) -> Result<Result<Row, u16>, BackupError> {
        if row.clock()? > self.upto {
            return Err(BackupError::AboveCut { key: row.key.to_vec() });
        }
        if row.is_deleted || row.value.is_some() {
            return Ok(Ok(row));
        }
        let Some(client) = nodes.client(index) else { return Ok(Err(index)) };
        let (from, to) = (id_shown(&row.key), id_shown(&[&row.key[..], b"\0"].concat()));
        let target = format!("/admin/cut/records?cut={:016x}&start={from}&end={to}", self.upto);
        // A key of the longest length has no successor: then the first row is the one.
        let target = if row.key.len() < crate::pack::KEY_BYTES_MAX {
            target
        } else {
            target.replace(&format!("&end={to}"), "")
        };
        let Ok(mut lines) = client.lines(&target, Some(WAIT)).await else { return Ok(Err(index)) };
        let Some(Ok(line)) = lines.next().await else { return Ok(Err(index)) };
        let whole = Row::parse(&line).map_err(|reason| BackupError::Answer { reason })?;
        if whole.key == row.key && whole.version == row.version && (whole.is_deleted || whole.value.is_some())
        {
            return Ok(Ok(whole));
        }
        Err(BackupError::Answer { reason: "a cut changed while it was read".to_owned() })
    }

    fn add(&self, row: Row, packing: &mut Packing<'_>) -> Result<(), BackupError> {
        if row.is_deleted || !is_live(row.expires, self.begun_millis) {
            return Ok(());
        }
        let version = row.etag.unwrap_or(row.version);
        let value = row.value.unwrap_or_default();
        packing.add(&PackedRecord { key: row.key, value, version, expires_millis: row.expires })
    }

    /// Adds what comes before `key` of the partitions that are not read.
    fn add_unread_before(&mut self, key: &Bytes, packing: &mut Packing<'_>) -> Result<(), BackupError> {
        while let Some(record) = self.base.take_before(Some(key))? {
            if self.base.has_alone(self.topology, &record)
                && is_live(record.expires_millis, self.begun_millis)
            {
                packing.add(&record)?;
            }
        }
        Ok(())
    }
}

/// Decodes the digests of a node: 8 bytes for each partition.
pub(crate) fn digests_of(text: &str) -> Vec<u64> {
    let bytes = BASE64.decode(text).unwrap_or_default();
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_be_bytes(*word)).collect()
}

/// Encodes the digests of a node.
pub(crate) fn node_digests(node: String, digests: &[u64]) -> NodeDigests {
    let bytes: Vec<u8> = digests.iter().flat_map(|digest| digest.to_be_bytes()).collect();
    NodeDigests { node, digests: BASE64.encode(bytes) }
}
