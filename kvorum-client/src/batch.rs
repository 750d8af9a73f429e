//! A batch's answers, read as the caller asks for them.

use crate::error::Error;
use crate::exchange::Opened;
use crate::flight::Place;
use crate::operation::Operation;
use crate::retry::later;
use bytes::Bytes;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The answers to a batch, as lines of JSON; made by [`Client::batch`](crate::Client::batch).
///
/// It holds its connection, and a place in flight, until it has ended or is dropped. Then lines without an answer may have
/// taken effect.
#[derive(Debug)]
pub struct Batch {
    opened: Option<(Opened, Place)>,
    node: Arc<str>,
    timeout: Duration,
}

impl Batch {
    pub(crate) fn new(opened: Opened, place: Place, timeout: Duration) -> Self {
        Self { node: Arc::clone(&opened.node), opened: Some((opened, place)), timeout }
    }

    /// The next bytes of the answers; `None` after the last ones. They need not end with a line.
    ///
    /// # Errors
    /// [`Error::Protocol`] where the rest of the answers does not come: the lines without an answer may have taken effect.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let Some((opened, _)) = &mut self.opened else { return Ok(None) };
            let deadline = later(Instant::now(), self.timeout);
            let message = match timeout_at(deadline, opened.body.frame()).await {
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Ok(Some(data)),
                    _ => continue,
                },
                Ok(None) => {
                    if let Some((opened, _)) = self.opened.take() {
                        opened.lease.recycle();
                    }
                    return Ok(None);
                }
                Ok(Some(Err(error))) => format!("the answers were cut: {error}"),
                Err(_) => format!("no more answers within {:?}", self.timeout),
            };
            self.opened = None;
            return Err(Error::Protocol {
                operation: Operation::Batch,
                node: Arc::clone(&self.node),
                message,
                may_have_taken_effect: true,
            });
        }
    }
}
