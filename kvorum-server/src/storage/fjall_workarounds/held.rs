//! Held resources: keeps fjall's memtable rotations from stalling readers and writers.
//!
//! Unnecessary once fjall drops obsolete memtables and tables after it has released its version lock, and syncs a
//! table as it writes it. No upstream issue about either was found.
//!
//! At a rotation fjall frees obsolete resources while it holds its version lock, which every read and write needs.
//! Unlinking and closing a table takes the file system 4 to 31 ms, and freeing a memtable of 58,000 entries about 70
//! ms. A compaction's last sync waits for all of its pages (traced; see `docs/dev/storage.md`). From outside, without a
//! fork, two threads move this work out of the lock. The holding thread
//!
//! - holds a descriptor of every table, blob file and journal, so that fjall's unlink and close free nothing;
//! - holds a reference to every memtable from the time it is active;
//! - begins the write-back of growing files early, so that syncs find little left to do.
//!
//! Once nobody else has a resource, the freeing thread frees it: a file by shrinking it in steps.
//!
//! None of this changes the stored data: a file is shrunk only when it has no name any more, and fjall unlinks a table
//! only when nothing reads it. If the threads are late or give up, fjall only becomes slow again.

use super::{workers, writeback};
use crate::crash;
use crate::sched::{self, Turns};
use crate::storage::wait;
use crate::supervise::{Part, Supervisor, Thread};
use fjall::{AbstractTree, Database, Keyspace};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

/// How often the holding thread checks while flushes or compactions run: meanwhile a compaction writes about half a megabyte,
/// which a sync may then have to wait for.
const TICK_BUSY: Duration = Duration::from_millis(1);
/// How often it checks otherwise: often enough to hold every memtable and table before it can become obsolete.
const TICK_IDLE: Duration = Duration::from_millis(50);
/// The bytes that one step of shrinking frees: about a millisecond of the file system's time.
const SHRINK_BYTES: u64 = 4 << 20;
/// The pause between two steps, for others to use the disk.
const SHRINK_PAUSE: Duration = Duration::from_millis(2);

/// The two threads, which run until this is dropped.
pub(in crate::storage) struct HeldResources {
    stop: Arc<AtomicBool>,
    threads: Vec<Thread>,
}

/// An obsolete resource, to be freed without holding a lock.
enum Obsolete {
    Memtable(Arc<dyn Send + Sync>),
    File(File),
}

impl HeldResources {
    /// Starts to watch the store at `path`. It holds at most `files_max` descriptors: later files are not held, and
    /// fjall frees them in its lock.
    pub(in crate::storage) fn start(
        path: &Path,
        files_max: usize,
        database: Database,
        trees: [Keyspace; 6],
        supervisor: &Supervisor,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        // Bounded by the held resources: every memtable and file is sent at most once.
        let (sender, receiver) = mpsc::channel();
        let mut holder = Holder::new(path, files_max, trees, sender);
        holder.look();
        workers::take_low_priority();
        let stopped = Arc::clone(&stop);
        let hold = move || {
            while !stopped.load(Ordering::Relaxed) {
                crash::step(Part::FilePin);
                let busy = database.outstanding_flushes() > 0 || database.active_compactions() > 0;
                let grew = holder.look();
                wait::pause(if busy || grew { TICK_BUSY } else { TICK_IDLE });
            }
        };
        let free = move || {
            sched::take_own(Turns::Polite);
            for resource in receiver {
                crash::step(Part::FileFree);
                match resource {
                    Obsolete::Memtable(memtable) => drop(memtable),
                    Obsolete::File(file) => shrink(&file),
                }
            }
        };
        let mut started = Self { stop, threads: Vec::with_capacity(2) };
        started.threads.push(supervisor.thread(Part::FilePin, None, hold)?);
        started.threads.push(supervisor.thread(Part::FileFree, None, free)?);
        Ok(started)
    }
}

impl Drop for HeldResources {
    fn drop(&mut self) {
        self.threads.iter().for_each(Thread::may_end);
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(Thread::join);
    }
}

/// The state of the holding thread.
struct Holder {
    trees: [Keyspace; 6],
    memtables: Vec<HeldMemtable>,
    folders: Vec<Folder>,
    obsolete: mpsc::Sender<Obsolete>,
}

struct HeldMemtable {
    tree: usize,
    id: u64,
    count: Box<dyn Fn() -> usize + Send>,
    memtable: Arc<dyn Send + Sync>,
}

/// A directory whose files are held.
struct Folder {
    path: PathBuf,
    suffix: &'static str,
    /// The most files that all folders together may hold.
    files_max: usize,
    listed: Option<SystemTime>,
    files: BTreeMap<PathBuf, HeldFile>,
}

struct HeldFile {
    file: File,
    bytes: u64,
}

impl Holder {
    fn new(path: &Path, files_max: usize, trees: [Keyspace; 6], obsolete: mpsc::Sender<Obsolete>) -> Self {
        let folder =
            |path: PathBuf, suffix| Folder { path, suffix, files_max, listed: None, files: BTreeMap::new() };
        let mut folders = vec![folder(path.to_path_buf(), ".jnl")];
        for tree in &trees {
            folders.push(folder(tree.path().join("tables"), ""));
            folders.push(folder(tree.path().join("blobs"), ""));
        }
        Self { trees, memtables: Vec::new(), folders, obsolete }
    }

    /// Takes references to new resources and sends obsolete ones to the freeing thread. Returns whether any file grew.
    fn look(&mut self) -> bool {
        self.hold_memtables();
        let mut held: usize = self.folders.iter().map(|folder| folder.files.len()).sum();
        let mut grew = false;
        for folder in &mut self.folders {
            // A directory that cannot be read now is read at the next check.
            grew |= folder.look(&mut held, &self.obsolete).unwrap_or(false);
        }
        grew
    }

    fn hold_memtables(&mut self) {
        for (index, tree) in self.trees.iter().enumerate() {
            let active = tree.tree.active_memtable();
            let id = active.id();
            if self.memtables.iter().all(|held| (held.tree, held.id) != (index, id)) {
                let counted = Arc::downgrade(&active);
                let count = Box::new(move || counted.strong_count());
                self.memtables.push(HeldMemtable { tree: index, id, count, memtable: active });
            }
        }
        let (unused, held) = self.memtables.drain(..).partition(|held| (held.count)() == 1);
        self.memtables = held;
        for HeldMemtable { memtable, .. } in unused {
            // The freeing thread outlives this thread's sender; if it is gone, the drop happens here, outside any lock.
            let _ = self.obsolete.send(Obsolete::Memtable(memtable));
        }
    }
}

impl Folder {
    fn look(&mut self, held: &mut usize, obsolete: &mpsc::Sender<Obsolete>) -> io::Result<bool> {
        let changed = std::fs::metadata(&self.path)?.modified()?;
        if self.listed != Some(changed) {
            self.list(held, obsolete)?;
            // A change within the clock's resolution would not be seen later: the directory is listed again until that
            // time is past.
            let settled = changed.elapsed().is_ok_and(|age| age > Duration::from_millis(100));
            self.listed = settled.then_some(changed);
        }
        let mut grew = false;
        // The committing thread syncs the journals, which are preallocated: only tables and blob files grow unsynced.
        if self.suffix.is_empty() {
            for held in self.files.values_mut() {
                let bytes = held.file.metadata()?.len();
                if bytes != held.bytes {
                    held.bytes = bytes;
                    grew = true;
                    writeback::begin(&held.file)?;
                }
            }
        }
        Ok(grew)
    }

    fn list(&mut self, held: &mut usize, obsolete: &mpsc::Sender<Obsolete>) -> io::Result<()> {
        let mut gone = std::mem::take(&mut self.files);
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            if let Some(file) = gone.remove(&path) {
                self.files.insert(path, file);
            } else if path.to_string_lossy().ends_with(self.suffix) && *held < self.files_max {
                // The file may have been removed since it was listed.
                if let Ok(file) = OpenOptions::new().read(true).write(true).open(&path)
                    && file.metadata()?.is_file()
                {
                    self.files.insert(path, HeldFile { file, bytes: 0 });
                    *held += 1;
                }
            }
        }
        *held -= gone.len();
        for HeldFile { file, .. } in gone.into_values() {
            let _ = obsolete.send(Obsolete::File(file));
        }
        Ok(())
    }
}

/// Frees an unlinked file's blocks in steps. A file that still has a name (it was renamed) is left alone.
fn shrink(file: &File) {
    while let Ok(metadata) = file.metadata() {
        if metadata.nlink() != 0 || metadata.len() == 0 {
            return;
        }
        if file.set_len(metadata.len().saturating_sub(SHRINK_BYTES)).is_err() {
            return;
        }
        wait::pause(SHRINK_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file_with(path: &Path, bytes: usize) -> File {
        let mut file = OpenOptions::new().create_new(true).read(true).write(true).open(path).unwrap();
        file.write_all(&vec![1; bytes]).unwrap();
        file
    }

    /// A file that still has a name keeps every byte; one without is emptied.
    #[test]
    fn shrinks_only_files_without_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table");
        let file = file_with(&path, 9 << 20);
        shrink(&file);
        assert_eq!(file.metadata().unwrap().len(), 9 << 20);
        let renamed = dir.path().join("renamed");
        std::fs::rename(&path, &renamed).unwrap();
        shrink(&file);
        assert_eq!(file.metadata().unwrap().len(), 9 << 20);
        std::fs::remove_file(&renamed).unwrap();
        shrink(&file);
        assert_eq!(file.metadata().unwrap().len(), 0);
    }

    /// A folder's files are held when they appear, and sent on when their names are gone, and only then.
    #[test]
    fn holds_files_until_their_names_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (sender, receiver) = mpsc::channel();
        let mut folder = Folder {
            path: dir.path().to_path_buf(),
            suffix: "",
            files_max: 9,
            listed: None,
            files: BTreeMap::new(),
        };
        let mut held = 0;
        drop(file_with(&dir.path().join("1"), 10));
        drop(file_with(&dir.path().join("2"), 10));
        assert!(folder.look(&mut held, &sender).unwrap(), "new bytes are growth");
        assert!(!folder.look(&mut held, &sender).unwrap(), "no growth without new bytes");
        assert_eq!((held, folder.files.len(), receiver.try_iter().count()), (2, 2, 0));
        std::fs::remove_file(dir.path().join("1")).unwrap();
        folder.look(&mut held, &sender).unwrap();
        assert_eq!((held, folder.files.len()), (1, 1));
        assert!(matches!(receiver.try_iter().collect::<Vec<_>>()[..], [Obsolete::File(_)]));
    }
}
