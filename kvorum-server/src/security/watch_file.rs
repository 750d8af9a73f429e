//! The thread that watches the file of tokens.
//!
//! It reads the whole file each time instead of comparing times: a file of tokens is small, and times of change are too
//! coarse, or come from another machine.

use super::Security;
use super::file;
use crate::clock::Clock;
use crate::crash;
use crate::supervise::{Part, Supervisor, Thread};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// How often the file is looked at. A revocation holds on all threads after at most this long, and the time of one
/// read.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Starts the thread, which takes the table of the file at `path` whenever its text changes. A text that is not valid is
/// logged and counted, and changes nothing. `text` is the text whose table `security` has already. The thread ends when
/// the sender of `end` is dropped.
///
/// # Errors
/// When the operating system cannot start a thread.
pub fn watch_file(
    security: Arc<Security>,
    clock: Arc<dyn Clock>,
    path: PathBuf,
    text: String,
    end: Receiver<()>,
    supervisor: &Supervisor,
) -> io::Result<Thread> {
    let mut watch = Watch { security, clock, path, text, problem: None };
    supervisor.thread_again(Part::TokenWatch, move || {
        while end.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
            crash::step(Part::TokenWatch);
            watch.look();
        }
    })
}

struct Watch {
    security: Arc<Security>,
    clock: Arc<dyn Clock>,
    path: PathBuf,
    /// The text that was read last, valid or not.
    text: String,
    /// What was wrong at the last look.
    problem: Option<String>,
}

impl Watch {
    fn look(&mut self) {
        let loaded = match file::read(&self.path) {
            Ok(text) if text == self.text && self.problem.is_none() => return,
            Ok(text) => {
                let parsed = file::parse(&self.path, &text);
                self.text = text;
                parsed
            }
            Err(error) => Err(error),
        };
        match loaded {
            Ok(table) => {
                self.problem = None;
                tracing::info!(
                    tokens = table.tokens().len(),
                    "the token file has changed: its tokens hold from now on"
                );
                self.security.replace(table, self.clock.wall());
            }
            Err(error) => {
                self.security.note_failure();
                let problem = error.to_string();
                // The same problem is logged once, however long it lasts.
                if self.problem.as_ref() != Some(&problem) {
                    tracing::error!(
                        reason = problem,
                        "the token file cannot be used: the last good tokens stay in force until it is mended, and \
                         revocations in it are not in force"
                    );
                    self.problem = Some(problem);
                }
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests write the files themselves")]
mod tests {
    use super::*;
    use crate::security::AuthMode;

    /// Goal: only a whole and valid file changes anything, each failed look is counted, and a mended file holds again.
    #[test]
    fn only_good_files_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.toml");
        let text = |id: &str| {
            let hash = crate::security::token::SecretHash::of(id);
            format!("[[token]]\nid = \"{id}\"\nsecret_sha256 = \"{hash}\"\n[end]\ntokens = 1\n")
        };
        let security = Arc::new(Security::new(AuthMode::On));
        let (good, mut view) = (text("a"), security.view());
        let clock: Arc<dyn Clock> = Arc::new(crate::clock::SystemClock::new());
        security.replace(file::parse(&path, &good).unwrap(), clock.wall());
        let mut watch = Watch {
            security: Arc::clone(&security),
            clock,
            path: path.clone(),
            text: good.clone(),
            problem: None,
        };
        let mut check = |content: Option<&str>, id: &str, loads| {
            match content {
                Some(content) => std::fs::write(&path, content).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            watch.look();
            assert!(view.current().get(id).is_some(), "{content:?}");
            assert_eq!(security.loads(), loads, "{content:?}");
        };
        check(Some(&good), "a", (1, 0));
        let next = text("b");
        check(Some(&next[..next.len() - 4]), "a", (1, 1));
        check(Some(&next), "b", (2, 1));
        check(None, "b", (2, 2));
        check(Some(&next), "b", (3, 2));
        check(Some(&next), "b", (3, 2));
        check(Some("rubbish"), "b", (3, 3));
        check(Some("rubbish"), "b", (3, 4));
        check(Some(&good), "a", (4, 4));
    }
}
