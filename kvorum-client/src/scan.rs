//! A range of entries, read as it is asked for.

use crate::entry::Entry;
use crate::error::{BoxError, Error};
use crate::exchange::Opened;
use crate::ndjson::{self, LineTooLong, Lines};
use crate::operation::Operation;
use crate::retry::later;
use bytes::Bytes;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// This is a stream of entries, sorted by the bytes of their keys; made by [`Client::scan`](crate::Client::scan).
///
/// It holds one connection until it has ended or is dropped, and at most about one line in memory. A scan that is not
/// read on is not lost by itself, but the node may give it up, which then is [`Error::Cut`].
#[derive(Debug)]
pub struct Scan {
    operation: Operation,
    node: Arc<str>,
    /// What is still to come; nothing after the end or an error, so that the connection is free as soon as can be.
    rest: Option<Opened>,
    lines: Lines,
    line_bytes_max: usize,
    entries: u64,
    last_key: Option<Bytes>,
    timeout: Duration,
}

impl Scan {
    pub(crate) fn new(
        operation: Operation,
        opened: Opened,
        timeout: Duration,
        line_bytes_max: usize,
    ) -> Self {
        Self {
            operation,
            node: Arc::clone(&opened.node),
            rest: Some(opened),
            lines: Lines::new(line_bytes_max),
            line_bytes_max,
            entries: 0,
            last_key: None,
            timeout,
        }
    }

    /// Reads the next entry; nothing after the last one, and nothing after an error.
    ///
    /// Nothing means that the range was read to its end. A stream that was cut ends with an error, never like that;
    /// whoever wants the rest begins a new scan after [`Scan::last_key`].
    ///
    /// # Errors
    /// [`Error::Cut`] when the connection was lost, [`Error::TimedOut`] when no entry came within the client's timeout,
    /// [`Error::TooLarge`] or [`Error::Protocol`] for a line that cannot be read. No attempt is repeated here: the
    /// parts of a second one would not be of the same instant.
    ///
    /// # Cancel safety
    /// A future that is dropped loses nothing; the next call goes on where it was.
    pub async fn next(&mut self) -> Option<Result<Entry, Error>> {
        let entry = self.advance().await;
        if entry.is_err() {
            self.rest = None;
        }
        entry.transpose()
    }

    /// The key of the last entry that was read: where a new scan goes on, with a zero byte appended.
    pub fn last_key(&self) -> Option<&Bytes> {
        self.last_key.as_ref()
    }

    async fn advance(&mut self) -> Result<Option<Entry>, Error> {
        let deadline = later(Instant::now(), self.timeout);
        loop {
            let Some(rest) = &mut self.rest else { return Ok(None) };
            match self.lines.next() {
                Ok(Some(line)) => return self.entry(&line).map(Some),
                Ok(None) => {}
                Err(LineTooLong) => return Err(self.too_large()),
            }
            match timeout_at(deadline, rest.body.frame()).await {
                Ok(Some(Ok(frame))) => self.lines.push(&frame.into_data().unwrap_or_default()),
                Ok(Some(Err(error))) => return Err(self.cut(error.into())),
                Ok(None) if self.lines.has_part() => return Err(self.cut("the last line has no end".into())),
                Ok(None) => {
                    if let Some(rest) = self.rest.take() {
                        rest.lease.recycle();
                    }
                    return Ok(None);
                }
                Err(_) => return Err(self.timed_out()),
            }
        }
    }

    fn entry(&mut self, line: &[u8]) -> Result<Entry, Error> {
        match ndjson::entry(line) {
            Ok(entry) => {
                self.entries += 1;
                self.last_key = Some(entry.key.clone());
                Ok(entry)
            }
            Err(message) => {
                let (operation, node) = self.what();
                Err(Error::Protocol { operation, node, message, may_have_taken_effect: false })
            }
        }
    }

    fn what(&self) -> (Operation, Arc<str>) {
        (self.operation.clone(), Arc::clone(&self.node))
    }

    fn cut(&self, source: BoxError) -> Error {
        let (operation, node) = self.what();
        Error::Cut { operation, node, entries: self.entries, source }
    }

    fn too_large(&self) -> Error {
        let (operation, node) = self.what();
        Error::TooLarge { operation, node, bytes_max: self.line_bytes_max }
    }

    fn timed_out(&self) -> Error {
        let (operation, node) = self.what();
        Error::TimedOut {
            operation,
            node,
            waiting_for: "next entry",
            after: self.timeout,
            attempts: 1,
            may_have_taken_effect: false,
            previous: None,
        }
    }
}
