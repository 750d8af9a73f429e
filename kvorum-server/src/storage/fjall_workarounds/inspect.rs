//! Inspection: before fjall opens a store, finds damage that fjall would treat as the traces of a crash.
//!
//! Unnecessary once fjall reports damage instead of cutting it off; each row of the table says what it does today.
//!
//! | found | fjall alone | here |
//! | --- | --- | --- |
//! | a journal batch that is not whole, and a whole one after it | ends the journal there, cuts the rest off | damage |
//! | a last batch that was written to its end and is not whole | the same | damage |
//! | a last batch of which bytes were never written | the same, or an error | cut off here |
//! | sequence numbers that do not rise | ranks an old write above a newer one | damage |
//! | a keyspace whose file `current` is missing | removes the whole keyspace | damage, unless it was never used |
//! | a `current` that does not fit its version file | an I/O error | damage |
//! | a store whose file `version` is missing | makes a new store over it | damage, unless it was never used |
//!
//! The journal as fjall 3.1 writes it; numbers are little-endian. A file is a row of batches, then zeros:
//!
//! | bytes | what |
//! | --- | --- |
//! | 1, 4, 8 | `01`, count of items, sequence number |
//! | 1, 1, 1, 8, 2, 4, 4, k, v | an item: `02`, kind, compression, keyspace, bytes of key, of value, of value as stored, key, value |
//! | 1, 8 | or `04`, keyspace: an item that clears a keyspace |
//! | 1, 8, 4 | `03`, xxh3 of all items, `FJL\x03` |

use crate::storage::EngineError;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

const ATTEMPTED: &str = "open the store";
const MAGIC: &[u8; 4] = b"FJL\x03";
const TAG_START: u8 = 1;
const TAG_ITEM: u8 = 2;
const TAG_END: u8 = 3;
const TAG_CLEAR: u8 = 4;
/// Bytes of a batch's start, and of its end.
const START_BYTES: usize = 13;
const END_BYTES: usize = 13;
/// The unit in which a disk writes, in bytes: after a crash, unwritten bytes are zero in pieces of at least this size.
const SECTOR_BYTES: u64 = 512;
/// The fewest zero bytes that show that a part of a sector was not written: a batch may contain a few zeros anywhere.
const LOST_BYTES_MIN: u64 = 16;
/// How much is read at once behind the last whole batch, in bytes.
const PIECE_BYTES: usize = 64 << 10;
static ZEROS: [u8; PIECE_BYTES] = [0; PIECE_BYTES];

/// Inspects the closed store at `store`. `is_synced`: whether every batch was synced before the next was written, as
/// `--durability always` does. Otherwise a power loss may leave a later batch written and an earlier one not.
///
/// # Errors
/// [`EngineError::Corrupt`] for damage; the errors of reading the files.
pub(in crate::storage) fn inspect(store: &Path, is_synced: bool) -> Result<(), EngineError> {
    let failed = |error| EngineError::of_io(ATTEMPTED, error);
    if !store.try_exists().map_err(failed)? {
        return Ok(());
    }
    let mut seen = Seen::default();
    let journals = journals(store)?;
    for (place, path) in journals.iter().enumerate() {
        let has_gap = place > 0 && journals.get(place - 1).is_some_and(|before| before.0 + 1 != path.0);
        if has_gap {
            return Err(damaged(format!("the journal before {} is missing", path.1.display())));
        }
        walk_journal(&path.1, is_synced, &mut seen)?;
    }
    inspect_keyspaces(store, &seen)
}

fn damaged(detail: String) -> EngineError {
    EngineError::Corrupt { attempted: ATTEMPTED, detail, key: None }
}

/// Facts found in the journals.
#[derive(Default)]
struct Seen {
    last_seqno: Option<u64>,
    keyspaces: BTreeSet<u64>,
}

/// The journals in the order in which they were written.
fn journals(store: &Path) -> Result<Vec<(u64, PathBuf)>, EngineError> {
    let failed = |error| EngineError::of_io(ATTEMPTED, error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(store).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_suffix(".jnl")).and_then(|number| number.parse().ok());
        if let Some(number) = number {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Reads a journal to its end. A last batch that a crash cut short is cut off.
fn walk_journal(path: &Path, is_synced: bool, seen: &mut Seen) -> Result<(), EngineError> {
    let failed = |error| EngineError::of_io(ATTEMPTED, error);
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
    let mut reader = Counted { inner: BufReader::with_capacity(1 << 20, &file), bytes: 0 };
    let mut end = 0;
    while let Some(batch) = read_batch(&mut reader).map_err(failed)? {
        if seen.last_seqno.is_some_and(|last| batch.seqno <= last) {
            let name = path.display();
            return Err(damaged(format!("the sequence numbers of {name} do not rise at byte {end}")));
        }
        seen.last_seqno = Some(batch.seqno);
        seen.keyspaces.extend(batch.keyspaces);
        end = reader.bytes;
    }
    let rest = read_written(&file, end).map_err(failed)?;
    if rest.is_empty() {
        return Ok(());
    }
    if let Some(why) = why_damaged(&rest, end, is_synced, seen.last_seqno) {
        return Err(damaged(format!("{} at byte {end}: {why}", path.display())));
    }
    tracing::info!(journal = %path.display(), at = end, "a crash cut the last batch of a journal short: the \
                                                         incomplete batch, which was not acknowledged, is removed");
    file.set_len(end).and_then(|()| file.sync_all()).map_err(failed)
}

/// The bytes from `begin` to the last nonzero one. fjall makes its journals 64 MiB long before it writes them, so most of
/// a file is a hole: it is passed over, not read.
fn read_written(file: &File, begin: u64) -> io::Result<Vec<u8>> {
    let mut written = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = begin;
    loop {
        at = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data,
            // Only a hole is left, or nothing.
            Err(rustix::io::Errno::NXIO) => return Ok(written),
            Err(error) => return Err(error.into()),
        };
        let read = match file.read_at(&mut piece, at) {
            Ok(0) => return Ok(written),
            Ok(read) => piece.get(..read).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        // Compared as a whole first: a byte at a time, a file of zeros takes most of a start.
        if ZEROS.get(..read.len()) != Some(read) {
            let last = read.iter().rposition(|byte| *byte != 0).unwrap_or_default();
            written.resize(usize::try_from(at - begin).unwrap_or(usize::MAX), 0);
            written.extend_from_slice(read.get(..=last).unwrap_or_default());
        }
        at += read.len() as u64;
    }
}

/// Why the end of a journal is damaged; none if it is only cut short. `rest` begins at byte `begin` with a batch that
/// is not whole, and ends with its last nonzero byte.
fn why_damaged(rest: &[u8], begin: u64, is_synced: bool, last: Option<u64>) -> Option<&'static str> {
    let behind = (1..rest.len()).find(|at| is_batch_behind(rest.get(*at..).unwrap_or_default(), last));
    if let Some(at) = behind {
        let is_explained = !is_synced && has_lost_sector(rest.get(..at).unwrap_or_default(), begin);
        return (!is_explained).then_some("a batch that is not whole stands before one that is");
    }
    (ends_with_trailer(rest) && !has_lost_sector(rest, begin))
        .then_some("a batch that was written to its end is not whole")
}

/// Whether `bytes` begins with a whole batch that can be later than the one numbered `last`.
fn is_batch_behind(bytes: &[u8], last: Option<u64>) -> bool {
    // This runs at every byte, so the cheap checks come first.
    if bytes.first() != Some(&TAG_START) || !matches!(bytes.get(START_BYTES), Some(&(TAG_ITEM | TAG_CLEAR))) {
        return false;
    }
    let batch = read_batch(&mut Counted { inner: bytes, bytes: 0 });
    batch.is_ok_and(|batch| batch.is_some_and(|batch| last.is_none_or(|last| batch.seqno > last)))
}

/// Whether `rest` ends like a batch, even if one bit of the end has flipped.
fn ends_with_trailer(rest: &[u8]) -> bool {
    let Some(end) = rest.len().checked_sub(END_BYTES).and_then(|at| rest.get(at..)) else { return false };
    let (Some(tag), Some(magic)) = (end.first(), end.get(END_BYTES - MAGIC.len()..)) else { return false };
    let flipped: u32 = magic.iter().zip(MAGIC).map(|(a, b)| (a ^ b).count_ones()).sum();
    flipped + (tag ^ TAG_END).count_ones() <= 1
}

/// Whether some sector's part of `bytes`, which begin at byte `begin` of their file, was never written: all its bytes
/// are zero.
fn has_lost_sector(bytes: &[u8], begin: u64) -> bool {
    let mut at = begin;
    let mut rest = bytes;
    while !rest.is_empty() {
        let part = (SECTOR_BYTES - at % SECTOR_BYTES).min(rest.len() as u64);
        let (sector, behind) = rest.split_at(usize::try_from(part).unwrap_or(rest.len()));
        if part >= LOST_BYTES_MIN && sector.iter().all(|byte| *byte == 0) {
            return true;
        }
        at += part;
        rest = behind;
    }
    false
}

/// A whole batch.
struct JournalBatch {
    seqno: u64,
    keyspaces: BTreeSet<u64>,
}

/// A reader that counts the bytes it reads.
struct Counted<R> {
    inner: R,
    bytes: u64,
}

impl<R: Read> Counted<R> {
    /// The next `N` bytes; none if there are fewer.
    fn take<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        let mut bytes = [0; N];
        match self.inner.read_exact(&mut bytes) {
            Ok(()) => {
                self.bytes += N as u64;
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Hashes the next `count` bytes. Returns whether there were that many.
    fn hash(&mut self, count: u64, hash: &mut Xxh3) -> io::Result<bool> {
        let mut buffer = [0; 16 << 10];
        let mut left = count;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let piece = buffer.get_mut(..most).unwrap_or_default();
            let read = match self.inner.read(piece) {
                Ok(0) => return Ok(false),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            hash.update(piece.get(..read).unwrap_or_default());
            left -= read as u64;
            self.bytes += read as u64;
        }
        Ok(true)
    }
}

/// Reads a batch; none if no whole batch follows.
fn read_batch(reader: &mut Counted<impl Read>) -> io::Result<Option<JournalBatch>> {
    let Some([TAG_START, start @ ..]) = reader.take::<START_BYTES>()? else { return Ok(None) };
    let [c0, c1, c2, c3, seqno @ ..] = start;
    let mut batch = JournalBatch { seqno: u64::from_le_bytes(seqno), keyspaces: BTreeSet::new() };
    let mut hash = Xxh3::new();
    for _ in 0..u32::from_le_bytes([c0, c1, c2, c3]) {
        let Some([tag]) = reader.take()? else { return Ok(None) };
        hash.update(&[tag]);
        match tag {
            TAG_ITEM => {
                let Some(head) = reader.take::<20>()? else { return Ok(None) };
                hash.update(&head);
                let [_kind, _compression, keyspace @ .., k0, k1, _, _, _, _, v0, v1, v2, v3] = head;
                batch.keyspaces.insert(u64::from_le_bytes(keyspace));
                let bytes =
                    u64::from(u16::from_le_bytes([k0, k1])) + u64::from(u32::from_le_bytes([v0, v1, v2, v3]));
                if !reader.hash(bytes, &mut hash)? {
                    return Ok(None);
                }
            }
            TAG_CLEAR => {
                let Some(keyspace) = reader.take::<8>()? else { return Ok(None) };
                hash.update(&keyspace);
                batch.keyspaces.insert(u64::from_le_bytes(keyspace));
            }
            _ => return Ok(None),
        }
    }
    let Some([TAG_END, end @ ..]) = reader.take::<END_BYTES>()? else { return Ok(None) };
    let [checksum @ .., m0, m1, m2, m3] = end;
    let is_whole = u64::from_le_bytes(checksum) == hash.digest() && [m0, m1, m2, m3] == *MAGIC;
    Ok(is_whole.then_some(batch))
}

/// Inspects each keyspace's list of tables.
fn inspect_keyspaces(store: &Path, seen: &Seen) -> Result<(), EngineError> {
    let failed = |error| EngineError::of_io(ATTEMPTED, error);
    let folder = store.join("keyspaces");
    let mut keyspaces = BTreeSet::new();
    match std::fs::read_dir(&folder) {
        Ok(entries) => {
            for entry in entries {
                let name = entry.map_err(failed)?.file_name();
                keyspaces.extend(name.to_str().and_then(|name| name.parse::<u64>().ok()));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let is_used = !seen.keyspaces.is_empty() || keyspaces.iter().any(|id| *id > 0);
    if !store.join("version").try_exists().map_err(failed)? {
        if is_used {
            return Err(damaged("the store's file `version` is missing".to_owned()));
        }
        // A crash while the store was created: nothing was written to it.
        return std::fs::remove_dir_all(store).map_err(failed);
    }
    if let Some(lost) = seen.keyspaces.iter().find(|id| !keyspaces.contains(id)) {
        return Err(damaged(format!("keyspace {lost} is missing, and the journal has rows of it")));
    }
    if is_used && !keyspaces.contains(&0) {
        return Err(damaged("the list of keyspaces is missing".to_owned()));
    }
    for id in keyspaces {
        let keyspace = folder.join(id.to_string());
        // The first keyspace lists the others: without it fjall removes all of them.
        let is_used = if id == 0 { is_used } else { seen.keyspaces.contains(&id) };
        inspect_tables(&keyspace, is_used)?;
    }
    Ok(())
}

/// Inspects the list of tables of the keyspace at `folder`.
fn inspect_tables(folder: &Path, is_used: bool) -> Result<(), EngineError> {
    let failed = |error| EngineError::of_io(ATTEMPTED, error);
    let named = folder.join("current");
    #[expect(clippy::disallowed_methods, reason = "the engine's own files are read before the engine does")]
    let current = match std::fs::read(&named) {
        Ok(current) => current,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A crash while the keyspace was created leaves a folder without the file, and fjall creates it again.
            return if is_used || has_tables(folder).map_err(failed)? {
                Err(damaged(format!("{} is missing", named.display())))
            } else {
                Ok(())
            };
        }
        Err(error) => return Err(failed(error)),
    };
    let parsed: Result<[u8; 25], _> = current.try_into();
    let Ok([v0, v1, v2, v3, v4, v5, v6, v7, checksum @ .., 0]) = parsed else {
        return Err(damaged(format!("{} is not what was written", named.display())));
    };
    let version = folder.join(format!("v{}", u64::from_le_bytes([v0, v1, v2, v3, v4, v5, v6, v7])));
    let mut hash = Xxh3::new();
    #[expect(clippy::disallowed_methods, reason = "the engine's own files are read before the engine does")]
    match File::open(&version).and_then(|file| hash_all(file, &mut hash)) {
        Ok(()) if hash.digest128() == u128::from_le_bytes(checksum) => Ok(()),
        Ok(()) => Err(damaged(format!("the checksum of {} does not fit", version.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(damaged(format!("{} is missing", version.display())))
        }
        Err(error) => Err(failed(error)),
    }
}

fn hash_all(mut file: File, hash: &mut Xxh3) -> io::Result<()> {
    let mut buffer = [0; 16 << 10];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        hash.update(buffer.get(..read).unwrap_or_default());
    }
}

/// Whether a keyspace's folder contains anything that was written after its creation.
fn has_tables(folder: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let is_list =
            name.strip_prefix('v').is_some_and(|number| number != "0" && number.parse::<u64>().is_ok());
        let is_filled = entry.file_type()?.is_dir() && std::fs::read_dir(entry.path())?.next().is_some();
        if is_list || is_filled {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests look at the files themselves")]
mod tests {
    use super::*;
    use crate::storage::lsm::{LsmConfig, LsmEngine};
    use crate::storage::{Change, Durability, Engine, Keyspace};
    use bytes::Bytes;

    const VALUE_BYTES: usize = 300;

    /// A closed store with a journal of `count` batches.
    fn store_of(count: usize) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let engine = LsmEngine::open(LsmConfig::new(dir.path().join("store"), 4 << 20)).unwrap();
        for index in 0..count {
            let value = Bytes::from(format!("{index:04}").repeat(VALUE_BYTES / 4));
            let key = Bytes::from(format!("k{index}"));
            let batch = vec![Change::Put { keyspace: Keyspace::Records, key, value }];
            engine.commit(batch, Durability::Synced).unwrap();
        }
        drop(engine);
        dir
    }

    fn journal_of(dir: &tempfile::TempDir) -> PathBuf {
        journals(&dir.path().join("store")).unwrap().pop().unwrap().1
    }

    fn written(journal: &Path) -> Vec<u8> {
        let mut bytes = std::fs::read(journal).unwrap();
        bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1);
        bytes
    }

    fn inspected(dir: &tempfile::TempDir, is_synced: bool) -> Result<(), EngineError> {
        inspect(&dir.path().join("store"), is_synced)
    }

    /// Goal: every flipped bit of a journal is found, in the first, a middle and the last batch, in framing and values.
    /// Method: each bit of each byte in turn. In the sequence numbers, only flips that keep the order of the batches
    /// may stay unnoticed.
    #[test]
    fn every_flipped_bit_of_a_journal_is_found() {
        let dir = store_of(4);
        let journal = journal_of(&dir);
        let whole = written(&journal);
        inspected(&dir, true).unwrap();
        let mut reader = Counted { inner: &whole[..], bytes: 0 };
        let mut last = 0;
        while reader.bytes < whole.len() as u64 {
            last = usize::try_from(reader.bytes).unwrap();
            read_batch(&mut reader).unwrap().unwrap();
        }
        let mut unnoticed = Vec::new();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                std::fs::write(&journal, &bytes).unwrap();
                match inspected(&dir, true) {
                    Err(EngineError::Corrupt { .. }) => {}
                    Ok(()) => unnoticed.push(at),
                    Err(error) => panic!("byte {at} bit {bit}: {error}"),
                }
            }
        }
        // The first sequence number may become smaller and the last one larger: the order stays the same.
        let may_stay = |at: &usize| (5..13).contains(at) || (last + 5..last + 13).contains(at);
        assert!(unnoticed.iter().all(may_stay), "{unnoticed:?}");
    }

    /// Goal: the traces of a crash are not damage. Method: the last batch ends anywhere, and then the file ends or is
    /// zero; or some of its sectors were not written.
    #[test]
    fn ends_cut_short_are_forgiven() {
        let dir = store_of(4);
        let journal = journal_of(&dir);
        let whole = written(&journal);
        let batch = whole.len() - memchr::memmem::rfind(&whole, b"k3").unwrap() + 30;
        for cut in 1..batch {
            for is_long in [false, true] {
                let mut bytes = whole.clone();
                bytes.truncate(whole.len() - cut);
                if is_long {
                    bytes.resize(1 << 20, 0);
                }
                std::fs::write(&journal, &bytes).unwrap();
                inspected(&dir, true).unwrap_or_else(|error| panic!("cut by {cut}: {error}"));
                inspected(&dir, true).unwrap();
            }
        }
    }

    /// Goal: a last batch with an unwritten sector is cut off. Before a whole batch it is damage if every batch was
    /// synced before the next, and the effect of a power loss if none was.
    #[test]
    fn lost_sectors_are_judged_by_what_follows() {
        let dir = store_of(40);
        let journal = journal_of(&dir);
        let whole = written(&journal);
        let middle = usize::try_from(whole.len() as u64 / 2 / SECTOR_BYTES * SECTOR_BYTES).unwrap();
        let mut bytes = whole.clone();
        bytes[middle..middle + 512].fill(0);
        std::fs::write(&journal, &bytes).unwrap();
        assert!(matches!(inspected(&dir, true), Err(EngineError::Corrupt { .. })));
        inspected(&dir, false).unwrap();
        assert!(written(&journal).len() < middle, "it is cut off, with all that stood behind");
        // The last batch's own sector.
        let last = usize::try_from((whole.len() as u64 - 20) / SECTOR_BYTES * SECTOR_BYTES).unwrap();
        let mut bytes = whole.clone();
        bytes[last - 200..last].fill(0);
        let begin = memchr::memmem::rfind(&whole, b"k39").unwrap();
        if begin + 250 < last {
            std::fs::write(&journal, &bytes).unwrap();
            inspected(&dir, true).unwrap();
        }
    }

    /// A missing or damaged list of tables is damage, and so is a missing list of keyspaces or `version`; nothing is
    /// removed or created. A store that was never used may lack them.
    #[test]
    fn missing_and_damaged_lists_are_damage() {
        let flip = |path: &Path| {
            let mut bytes = std::fs::read(path).unwrap();
            bytes[0] ^= 0x40;
            std::fs::write(path, bytes).unwrap();
        };
        let remove = |path: &Path| std::fs::remove_file(path).unwrap();
        let shorten = |path: &Path| std::fs::write(path, b"abc").unwrap();
        let empty = |path: &Path| std::fs::write(path, b"").unwrap();
        let acts: [&dyn Fn(&Path); 4] = [&flip, &remove, &shorten, &empty];
        for keyspace in ["0", "1"] {
            for act in acts {
                let dir = store_of(4);
                act(&dir.path().join(format!("store/keyspaces/{keyspace}/current")));
                let config = LsmConfig::new(dir.path().join("store"), 4 << 20);
                let opened = LsmEngine::open(config).err();
                assert!(matches!(opened, Some(EngineError::Corrupt { .. })), "{keyspace}: {opened:?}");
            }
        }
        for lost in ["keyspaces/0", "keyspaces/1", "keyspaces"] {
            let dir = store_of(4);
            std::fs::remove_dir_all(dir.path().join("store").join(lost)).unwrap();
            assert!(matches!(inspected(&dir, true), Err(EngineError::Corrupt { .. })), "{lost}");
        }
        let dir = store_of(4);
        remove(&dir.path().join("store/version"));
        assert!(matches!(inspected(&dir, true), Err(EngineError::Corrupt { .. })));
        // Created, and never used.
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("store/keyspaces")).unwrap();
        std::fs::write(dir.path().join("store/0.jnl"), vec![0; 1000]).unwrap();
        inspected(&dir, true).unwrap();
        LsmEngine::open(LsmConfig::new(dir.path().join("store"), 4 << 20)).unwrap();
    }

    /// What stands behind the last whole batch is found wherever it stands: in the first piece, behind a hole, at an edge
    /// of two pieces, as the file's last byte. Only zeros, written or never written, are nothing.
    #[test]
    fn written_bytes_are_found_behind_holes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.jnl");
        let piece = PIECE_BYTES as u64;
        let size = 64 * piece + 7;
        for begin in [0, 5, piece, 3 * piece - 1] {
            for at in
                [None, Some(begin), Some(begin + 1), Some(10 * piece - 1), Some(10 * piece), Some(size - 1)]
            {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .open(&path)
                    .unwrap();
                file.set_len(size).unwrap();
                file.write_all_at(&vec![0; 3 * PIECE_BYTES], 20 * piece).unwrap();
                if let Some(at) = at {
                    file.write_all_at(&[7], at).unwrap();
                }
                let written = read_written(&file, begin).unwrap();
                let expected = at.map_or(0, |at| usize::try_from(at - begin).unwrap() + 1);
                assert_eq!(written.len(), expected, "from {begin}, the byte {at:?}");
                assert_eq!(written.last(), at.map(|_| &7));
                assert!(written.iter().rev().skip(1).all(|byte| *byte == 0));
            }
        }
        assert!(read_written(&File::open(&path).unwrap(), size + 1).unwrap().is_empty());
    }

    /// A missing journal among others is noticed.
    #[test]
    fn missing_journal_is_damage() {
        let dir = store_of(4);
        let journal = journal_of(&dir);
        let later = journal.with_file_name("2.jnl");
        std::fs::write(&later, vec![0; 100]).unwrap();
        assert!(matches!(inspected(&dir, true), Err(EngineError::Corrupt { .. })));
        std::fs::rename(&later, journal.with_file_name("1.jnl")).unwrap();
        inspected(&dir, true).unwrap();
    }
}
