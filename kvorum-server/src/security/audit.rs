//! The audit log: who was refused, who changed the node, which tokens changed. One JSON object a line.
//!
//! It has ids of tokens, never secrets or values, and a hash in the place of a key. A thread of its own writes it, so that a
//! slow disk delays no request. Lines that others can cause at will are limited to [`REFUSALS_MAX`] a second. What was left
//! out is counted in the next line.

use super::table::{TokenTable, instant_text};
use super::token::SecretHash;
use crate::crash;
use crate::log_limit::LogLimit;
use crate::supervise::{Part, Supervisor, Thread};
use kvorum_core::UnixMillis;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The most lines about refusals in a second.
pub const REFUSALS_MAX: u32 = 100;
/// The most lines that wait for the thread; further ones are counted as lost.
const QUEUE_LEN_MAX: usize = 1024;
/// How often the thread looks whether the file was moved away, as log rotation does.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How many characters of a path are shown: a client chooses the name of a worker in it.
const PATH_CHARS_MAX: usize = 128;
/// Of a key's SHA-256, how many hexadecimal digits are shown.
const KEY_DIGITS: usize = 16;

/// A request as the audit log has it.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The client's address; none for the socket for administration.
    pub client: Option<IpAddr>,
    /// The method.
    pub method: &'a str,
    /// The path, without the query.
    pub path: &'a str,
    /// The key, or the first key of a range.
    pub key: Option<&'a [u8]>,
}

/// The audit log; does nothing until it is opened, and after it is closed.
#[derive(Debug)]
pub struct Audit {
    is_open: AtomicBool,
    // Guards the way to the thread; held to queue a line. Only refused and administrative requests take it.
    lines: Mutex<Option<SyncSender<String>>>,
    refusals: LogLimit,
    lost: Arc<AtomicU64>,
}

impl Default for Audit {
    fn default() -> Self {
        let refusals = LogLimit::new(REFUSALS_MAX, Duration::from_secs(1));
        Self { is_open: AtomicBool::new(false), lines: Mutex::default(), refusals, lost: Arc::default() }
    }
}

impl Audit {
    /// Opens the log and starts the thread that writes it, which ends after [`Audit::close`].
    ///
    /// # Errors
    /// When the file cannot be opened, or the operating system cannot start a thread.
    pub fn open(&self, path: &Path, supervisor: &Supervisor) -> io::Result<Thread> {
        let mut log = LogFile { path: path.to_path_buf(), file: open(path)?, has_failed: false };
        let (sender, receiver) = sync_channel(QUEUE_LEN_MAX);
        let lost = Arc::clone(&self.lost);
        let thread = supervisor.thread_again(Part::Audit, move || log.run(&receiver, &lost))?;
        *self.lines.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        self.is_open.store(true, Ordering::Relaxed);
        Ok(thread)
    }

    /// Ends the log: the thread writes what waits, and ends.
    pub fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        *self.lines.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Lines that could not be written.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Notes a refused request. `wall` and `mono` are the two times now.
    pub fn refused(&self, asked: Asked<'_>, reason: &str, token: &str, (wall, mono): (UnixMillis, Duration)) {
        if !self.is_open() {
            return;
        }
        if let Some(left_out) = self.refusals.admit(mono) {
            let mut line = request("refused", asked, token, wall);
            insert(&mut line, "reason", json!(reason));
            if left_out > 0 {
                insert(&mut line, "left_out", json!(left_out));
            }
            self.write(&line);
        }
    }

    /// Notes a request about the node itself that was allowed.
    pub fn administered(&self, asked: Asked<'_>, token: &str, wall: UnixMillis) {
        if self.is_open() {
            self.write(&request("admin", asked, token, wall));
        }
    }

    /// Notes the differences between two tables of tokens.
    pub fn tokens_changed(&self, before: &TokenTable, after: &TokenTable, wall: UnixMillis) {
        if !self.is_open() {
            return;
        }
        let note = |change: &str, id: &str| {
            self.write(&json!({"at": instant_text(wall), "event": "tokens", "change": change, "token": id}));
        };
        for token in after.tokens() {
            match before.get(&token.id) {
                None => note("added", &token.id),
                Some(old) if old == token => {}
                Some(old) if old.revoked != token.revoked => note("revoked", &token.id),
                Some(_) => note("changed", &token.id),
            }
        }
        for token in before.tokens().iter().filter(|token| after.get(&token.id).is_none()) {
            note("removed", &token.id);
        }
    }

    fn write(&self, line: &Value) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(lines) = lines.as_ref() else { return };
        if lines.try_send(format!("{line}\n")).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn request(event: &str, asked: Asked<'_>, token: &str, wall: UnixMillis) -> Value {
    let Asked { client, method, path, key } = asked;
    let path: String = path.chars().take(PATH_CHARS_MAX).collect();
    let client = client.map_or_else(|| "admin-socket".to_owned(), |client| client.to_string());
    let mut line = json!({
        "at": instant_text(wall), "event": event, "client": client, "method": method, "path": path, "token": token,
    });
    if let Some(key) = key {
        insert(&mut line, "key_sha256", json!(key_hash(key)));
    }
    line
}

/// What stands in logs for a key: the first digits of its SHA-256.
pub fn key_hash(key: &[u8]) -> String {
    let mut hash = SecretHash::of_bytes(key).to_string();
    hash.truncate(KEY_DIGITS);
    hash
}

fn insert(line: &mut Value, name: &str, value: Value) {
    if let Value::Object(members) = line {
        members.insert(name.to_owned(), value);
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

struct LogFile {
    path: PathBuf,
    file: File,
    has_failed: bool,
}

impl LogFile {
    /// Writes lines until their sender is gone.
    fn run(&mut self, lines: &Receiver<String>, lost: &AtomicU64) {
        loop {
            crash::step(Part::Audit);
            match lines.recv_timeout(LOOK_EVERY) {
                Ok(line) => {
                    if let Err(error) = self.file.write_all(line.as_bytes()) {
                        lost.fetch_add(1, Ordering::Relaxed);
                        self.note_failure(&error);
                    } else {
                        self.has_failed = false;
                    }
                }
                Err(RecvTimeoutError::Timeout) => self.follow(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Opens the file anew if its path names another one, or none.
    fn follow(&mut self) {
        let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let ours = self.file.metadata().map(identity).ok();
        if ours.is_some() && self.path.metadata().map(identity).ok() == ours {
            return;
        }
        match open(&self.path) {
            Ok(file) => self.file = file,
            Err(error) => self.note_failure(&error),
        }
    }

    fn note_failure(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.has_failed, true) {
            tracing::error!(%error, "the audit log cannot be written: its lines are lost and counted until it can");
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests look at the files themselves")]
mod tests {
    use super::*;
    use crate::security::limit::Limit;
    use crate::security::table::TokenEntry;

    fn lines(path: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Goal: refusals are limited and counted, keys are hashed, changes of tokens are named, a moved file is followed.
    /// Method: more refusals than may be in a second, two tables, and a rotation between two runs of the writer.
    #[test]
    fn lines_say_what_happened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let supervisor = Supervisor::default();
        let audit = Audit::default();
        let asked = Asked {
            client: Some("192.0.2.1".parse().unwrap()),
            method: "GET",
            path: "/v0/entity",
            key: Some(b"user/1"),
        };
        audit.refused(asked, "unknown", "", (UnixMillis(0), Duration::ZERO));
        assert!(!audit.is_open());
        let thread = audit.open(&path, &supervisor).unwrap();
        for _ in 0..REFUSALS_MAX + 5 {
            audit.refused(asked, "unknown", "", (UnixMillis(0), Duration::ZERO));
        }
        audit.refused(asked, "expired", "a", (UnixMillis(0), Duration::from_secs(1)));
        let entry = |id: &str, revoked| TokenEntry {
            id: id.into(),
            name: String::new(),
            secret: Some(SecretHash::of("x")),
            certificate: None,
            created: None,
            not_after: None,
            revoked,
            grants: Vec::new(),
            limit: Limit::default(),
            meter: Arc::default(),
        };
        let table = |entries: Vec<TokenEntry>| {
            let mut table = TokenTable::default();
            for entry in entries {
                table.add(entry).unwrap();
            }
            table
        };
        let before = table(vec![entry("same", None), entry("gone", None), entry("old", None)]);
        let after = table(vec![entry("same", None), entry("old", Some(UnixMillis(0))), entry("new", None)]);
        audit.tokens_changed(&before, &after, UnixMillis(0));
        let lengthy = "/admin/".repeat(1000);
        audit.administered(Asked { client: None, key: None, path: &lengthy, ..asked }, "", UnixMillis(0));
        thread.may_end();
        audit.close();
        thread.join();
        let lines = lines(&path);
        let (refused, others) = lines.split_at(REFUSALS_MAX as usize + 1);
        assert!(
            refused[..100].iter().all(|line| line["reason"] == "unknown" && line.get("left_out").is_none())
        );
        assert_eq!((&refused[100]["left_out"], &refused[100]["token"]), (&json!(5), &json!("a")));
        assert_eq!(refused[0]["key_sha256"], SecretHash::of("user/1").to_string()[..16]);
        assert_eq!(
            (&refused[0]["client"], &refused[0]["at"]),
            (&json!("192.0.2.1"), &json!("1970-01-01T00:00:00Z"))
        );
        let changes: Vec<_> =
            others.iter().map(|line| (line["change"].as_str(), line["token"].as_str())).collect();
        let change = |change, token| (Some(change), Some(token));
        assert_eq!(
            changes[..3],
            [change("revoked", "old"), change("added", "new"), change("removed", "gone")]
        );
        assert_eq!((&others[3]["event"], &others[3]["client"]), (&json!("admin"), &json!("admin-socket")));
        assert_eq!(others[3]["path"], lengthy[..PATH_CHARS_MAX]);
        let mut log = LogFile { path: path.clone(), file: open(&path).unwrap(), has_failed: false };
        std::fs::rename(&path, folder.path().join("audit.log.1")).unwrap();
        log.follow();
        log.file.write_all(b"{}\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n");
    }
}
