//! The threads that watch files: of tokens, of peer secrets, of certificates and keys.
//!
//! Each reads the whole files each time instead of comparing times: such files are small, and times of change are too
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

/// Something that files hold, and that changes while the node runs.
pub trait Watched: Send + 'static {
    /// The thread that watches it.
    const PART: Part;
    /// What the files have at one moment.
    type Content: PartialEq + Send;

    /// Reads the files.
    ///
    /// # Errors
    /// Why they cannot be read.
    fn read(&self) -> Result<Self::Content, String>;

    /// Checks `content` as a whole, and only then puts it in the place of the present one.
    ///
    /// # Errors
    /// What is wrong with it. Nothing has changed.
    fn take(&self, content: &Self::Content) -> Result<(), String>;

    /// Counts a look that found no content to take.
    fn note_failure(&self);

    /// Logs `problem`, which is a new one.
    fn warn(&self, problem: &str);
}

/// Starts the thread, which takes the content of the files whenever it changes. A content that is not valid is
/// logged and counted, and changes nothing. `content` is the one that `watched` has already. The thread ends when the
/// sender of `end` is dropped.
///
/// # Errors
/// When the operating system cannot start a thread.
pub fn watch_file<W: Watched>(
    watched: W,
    content: W::Content,
    end: Receiver<()>,
    supervisor: &Supervisor,
) -> io::Result<Thread> {
    let mut watch = Watch { watched, content, problem: None };
    supervisor.thread_again(W::PART, move || {
        while end.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
            crash::step(W::PART);
            watch.look();
        }
    })
}

struct Watch<W: Watched> {
    watched: W,
    /// What was read last, valid or not.
    content: W::Content,
    /// What was wrong at the last look.
    problem: Option<String>,
}

impl<W: Watched> Watch<W> {
    fn look(&mut self) {
        let taken = match self.watched.read() {
            Ok(content) if content == self.content && self.problem.is_none() => return,
            Ok(content) => {
                let taken = self.watched.take(&content);
                self.content = content;
                taken
            }
            Err(problem) => Err(problem),
        };
        let Err(problem) = taken else {
            self.problem = None;
            return;
        };
        self.watched.note_failure();
        // The same problem is logged once, however long it lasts.
        if self.problem.as_ref() != Some(&problem) {
            self.watched.warn(&problem);
            self.problem = Some(problem);
        }
    }
}

/// The file of tokens.
pub struct TokenFile {
    /// Where it is.
    pub path: PathBuf,
    /// Takes the tokens.
    pub security: Arc<Security>,
    /// For the audit log.
    pub clock: Arc<dyn Clock>,
}

impl Watched for TokenFile {
    const PART: Part = Part::TokenWatch;

    type Content = String;

    fn read(&self) -> Result<String, String> {
        file::read(&self.path).map_err(|error| error.to_string())
    }

    fn take(&self, content: &String) -> Result<(), String> {
        let table = file::parse(&self.path, content).map_err(|error| error.to_string())?;
        tracing::info!(
            tokens = table.tokens().len(),
            "the token file has changed: its tokens hold from now on"
        );
        self.security.replace(table, self.clock.wall());
        Ok(())
    }

    fn note_failure(&self) {
        self.security.note_failure();
    }

    fn warn(&self, problem: &str) {
        tracing::error!(
            reason = problem,
            "the token file cannot be used: the last good tokens stay in force until it is repaired, and \
             revocations in it are not in force"
        );
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
        let watched = TokenFile { path: path.clone(), security: Arc::clone(&security), clock };
        let mut watch = Watch { watched, content: good.clone(), problem: None };
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
