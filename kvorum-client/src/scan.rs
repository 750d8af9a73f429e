//! A range of entries, read as the caller asks for it.

use crate::entry::Entry;
use crate::error::{BoxError, Error};
use crate::exchange::Opened;
use crate::flight::Place;
use crate::ndjson::{self, LineTooLong, Lines};
use crate::operation::Operation;
use crate::retry::later;
use bytes::Bytes;
use futures_core::Stream;
use http_body::Body;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// A stream of entries, sorted by the bytes of their keys; made by [`Client::scan`](crate::Client::scan).
///
/// It is read with [`Scan::next`], or as a [`Stream`] with the adapters of other libraries. It reads from its
/// connection only when it is asked for an entry: memory holds about one line and one read of the socket, and
/// the rest waits in the node. It holds the connection, and a place in flight, until it has ended or is
/// dropped. A node cuts a scan that takes longer than it allows (5 minutes, unless configured otherwise);
/// that is [`Error::Cut`].
#[derive(Debug)]
pub struct Scan {
    operation: Operation,
    node: Arc<str>,
    /// The part that is not read yet; `None` after the end or an error, so that the connection is freed as
    /// early as possible.
    rest: Option<Rest>,
    lines: Lines,
    line_bytes_max: usize,
    entries: u64,
    last_key: Option<Bytes>,
    timeout: Duration,
    /// Ends the wait for the next entry; `None` while nothing waits.
    late: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
struct Rest {
    opened: Opened,
    #[expect(dead_code, reason = "held for its drop")]
    place: Place,
}

impl Scan {
    pub(crate) fn new(
        operation: Operation,
        opened: Opened,
        place: Place,
        timeout: Duration,
        line_bytes_max: usize,
    ) -> Self {
        Self {
            operation,
            node: Arc::clone(&opened.node),
            rest: Some(Rest { opened, place }),
            lines: Lines::new(line_bytes_max),
            line_bytes_max,
            entries: 0,
            last_key: None,
            timeout,
            late: None,
        }
    }

    /// Reads the next entry; `None` after the last one, and after an error.
    ///
    /// `None` without an error before it means that the range was read to its end: a stream that was cut
    /// always ends with an error. To read the rest, begin a new scan after [`Scan::last_key`].
    ///
    /// # Errors
    /// [`Error::Cut`] when the connection was lost, [`Error::TimedOut`] when no entry came within the client's timeout,
    /// [`Error::TooLarge`] or [`Error::Protocol`] for a line that cannot be read. No attempt is repeated here: the
    /// parts of a second one would not be of the same instant.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; the next call continues where it was, with its own time limit.
    pub async fn next(&mut self) -> Option<Result<Entry, Error>> {
        self.late = None;
        poll_fn(|context| self.poll_entry(context)).await
    }

    /// The key of the last entry that was read: a new scan continues there, with a zero byte appended.
    pub fn last_key(&self) -> Option<&Bytes> {
        self.last_key.as_ref()
    }

    fn poll_entry(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Entry, Error>>> {
        let entry = ready!(self.poll_advance(context));
        self.late = None;
        if entry.is_err() {
            self.rest = None;
        }
        Poll::Ready(entry.transpose())
    }

    fn poll_advance(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Entry>, Error>> {
        let line = ready!(self.poll_line(context))?;
        Poll::Ready(line.map(|line| self.entry(&line)).transpose())
    }

    /// The next whole line; `None` at the end.
    fn poll_line(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        loop {
            let Some(Rest { opened, .. }) = &mut self.rest else { return Poll::Ready(Ok(None)) };
            match self.lines.next() {
                Ok(Some(line)) => return Poll::Ready(Ok(Some(line))),
                Ok(None) => {}
                Err(LineTooLong) => return Poll::Ready(Err(self.too_large())),
            }
            match Pin::new(&mut opened.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => self.lines.push(&frame.into_data().unwrap_or_default()),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(self.cut(error.into()))),
                Poll::Ready(None) if self.lines.has_part() => {
                    return Poll::Ready(Err(self.cut("the last line has no end".into())));
                }
                Poll::Ready(None) => {
                    if let Some(rest) = self.rest.take() {
                        rest.opened.lease.recycle();
                    }
                    return Poll::Ready(Ok(None));
                }
                Poll::Pending => {
                    let timeout = self.timeout;
                    let late = self
                        .late
                        .get_or_insert_with(|| Box::pin(sleep_until(later(Instant::now(), timeout))));
                    ready!(late.as_mut().poll(context));
                    return Poll::Ready(Err(self.timed_out()));
                }
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

/// A stream of lines; made by [`Client::lines`](crate::Client::lines). It uses memory and connections as a [`Scan`] does.
#[derive(Debug)]
pub struct LineStream {
    scan: Scan,
}

impl LineStream {
    /// The lines that `scan` would read as entries.
    pub(crate) fn of(scan: Scan) -> Self {
        Self { scan }
    }

    /// Reads the next line, without its end; `None` after the last one, and after an error.
    ///
    /// # Errors
    /// As [`Scan::next`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        self.scan.late = None;
        let line = poll_fn(|context| self.scan.poll_line(context)).await;
        self.scan.late = None;
        if line.is_err() {
            self.scan.rest = None;
        }
        line.transpose()
    }
}

/// As [`Scan::next`], but the time limit runs from the first poll that waits for an entry.
impl Stream for Scan {
    type Item = Result<Entry, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_entry(context)
    }
}
