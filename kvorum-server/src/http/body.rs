//! Bodies: reading a value against its bounds, and the kinds of answers.

use super::admission::LARGE_BYTES;
use super::batch::BatchBody;
use super::error::Failure;
use super::range::RangeBody;
use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http_body::{Body, Frame, SizeHint};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// The most bytes of a value that are handed to hyper at once, so that its buffer per connection stays this small.
const FRAME_BYTES_MAX: usize = 64 << 10;
/// How many bytes an upload reserves from the budget at a time.
const CHUNKED_RESERVE_BYTES: u64 = 64 << 10;
/// Values below this size are copied out of the buffer of their connection, which has 8 KiB.
const COPIED_BYTES_MAX: u64 = 1 << 10;

/// The most bytes of an unread body that are read and dropped to keep the connection; with more left, it is closed.
const DISCARD_BYTES_MAX: u64 = 64 << 10;
/// How long an answer waits for the unread rest of a body. A client that sends only the head must be answered, too.
const DISCARD_WAIT: Duration = Duration::from_secs(1);

/// The body of a request, and how far it was read.
///
/// The answer may be known before the body has been read. Then the rest of the body must be read and dropped, or the
/// client must be told that the connection ends. Otherwise the node would take the rest of the body for the next
/// request and lose that one.
pub struct Upload<B> {
    body: B,
    has_begun: bool,
    has_ended: bool,
}

impl<B: Body<Data = Bytes> + Unpin> Upload<B> {
    /// Wraps a body from which nothing has been read.
    pub fn new(body: B) -> Self {
        Self { body, has_begun: false, has_ended: false }
    }

    /// Reads and drops the rest of the body, if it is short. Returns whether the body is at its end, so that the
    /// connection can be kept.
    ///
    /// A client that `asks_first` (`Expect: 100-continue`) is not asked for a body that would be dropped. `is_lost`
    /// says whether the body's framing cannot be followed any more.
    pub async fn discard(&mut self, asks_first: bool, is_lost: impl Fn() -> bool) -> bool {
        if self.has_ended || self.is_end_stream() {
            return true;
        }
        if asks_first && !self.has_begun || self.size_hint().lower() > DISCARD_BYTES_MAX {
            return false;
        }
        let mut left = DISCARD_BYTES_MAX;
        let rest = poll_fn(|cx| {
            loop {
                if is_lost() {
                    return Poll::Ready(false);
                }
                match ready!(Pin::new(&mut *self).poll_frame(cx)) {
                    None => return Poll::Ready(true),
                    Some(Err(_)) => return Poll::Ready(false),
                    Some(Ok(frame)) => {
                        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                        let Some(less) = left.checked_sub(bytes) else { return Poll::Ready(false) };
                        left = less;
                    }
                }
            }
        });
        tokio::time::timeout(DISCARD_WAIT, rest).await.unwrap_or(false)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Upload<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.has_begun = true;
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.has_ended |= frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer.
pub enum ReplyBody {
    /// A whole value or text.
    Full {
        /// The bytes still to be sent.
        rest: Bytes,
        /// Its reservation in the budget; given back when the answer has gone out.
        reserved: Option<Reserved>,
    },
    /// A stream of records.
    Range(RangeBody),
    /// The answers of a batch.
    Batch(BatchBody),
}

impl ReplyBody {
    /// An empty body.
    pub fn empty() -> Self {
        Self::full(Bytes::new())
    }

    /// A body of the bytes `rest`, without a reservation.
    pub fn full(rest: Bytes) -> Self {
        Self::Full { rest, reserved: None }
    }

    /// The body for a value. A large value counts towards the budget until the client has taken it: clients that ask
    /// for much and read slowly must not fill the memory.
    ///
    /// # Errors
    /// 503 when the budget is used up.
    pub fn value(rest: Bytes, budget: &Arc<BodyBudget>) -> Result<Self, Failure> {
        let reserved = Self::reserve(rest.len(), budget)?;
        Ok(Self::Full { rest, reserved })
    }

    /// The reservation of an answer of `bytes`; a short one needs none.
    ///
    /// # Errors
    /// 503 when the budget is used up.
    pub(super) fn reserve(bytes: usize, budget: &Arc<BodyBudget>) -> Result<Option<Reserved>, Failure> {
        if bytes < FRAME_BYTES_MAX {
            return Ok(None);
        }
        let mut reserved = Reserved::new(budget);
        reserved.grow(bytes as u64)?;
        Ok(Some(reserved))
    }
}

/// The error that ends an answer early: the connection is cut, so that the client sees that the answer is incomplete.
#[derive(Debug)]
pub struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the rest of the answer cannot be read")
    }
}

impl std::error::Error for Cut {}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            Self::Full { rest, .. } if rest.is_empty() => Poll::Ready(None),
            Self::Full { rest, .. } => {
                let piece = rest.split_to(rest.len().min(FRAME_BYTES_MAX));
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            Self::Range(range) => {
                range.poll_record(cx).map(|record| record.map(|record| record.map(Frame::data)))
            }
            Self::Batch(batch) => {
                batch.poll_bytes(cx, FRAME_BYTES_MAX).map(|bytes| bytes.map(|bytes| bytes.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full { rest, .. } if rest.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full { rest, .. } => SizeHint::with_exact(rest.len() as u64),
            Self::Range(_) | Self::Batch(_) => SizeHint::default(),
        }
    }
}

/// The budget for bytes of bodies in memory, over all threads: received values and large values being sent.
#[derive(Debug)]
pub struct BodyBudget {
    used: AtomicU64,
    max: u64,
}

impl BodyBudget {
    /// Makes a budget of `max` bytes.
    pub fn new(max: u64) -> Self {
        Self { used: AtomicU64::new(0), max }
    }

    /// Bytes reserved now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether `bytes` more would fit now.
    fn has_room(&self, bytes: u64) -> bool {
        self.used().saturating_add(bytes) <= self.max
    }

    fn reserve(&self, bytes: u64) -> bool {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.max {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }
}

/// A reservation in the budget, given back when it is dropped.
#[derive(Debug)]
pub struct Reserved {
    budget: Arc<BodyBudget>,
    bytes: u64,
}

impl Reserved {
    fn grow(&mut self, bytes: u64) -> Result<(), Failure> {
        if !self.budget.reserve(bytes) {
            return Err(Failure::no_memory());
        }
        self.bytes += bytes;
        Ok(())
    }

    fn new(budget: &Arc<BodyBudget>) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0 }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The length that a body announces; none for a chunked one.
///
/// # Errors
/// 411 without either.
pub(super) fn announced(headers: &HeaderMap) -> Result<Option<u64>, Failure> {
    match headers.get(CONTENT_LENGTH) {
        Some(length) => {
            let length = length.to_str().ok().and_then(|length| length.parse().ok());
            length.map(Some).ok_or_else(Failure::broken_body)
        }
        None if headers.contains_key(TRANSFER_ENCODING) => Ok(None),
        None => Err(Failure::length_required()),
    }
}

/// Reads a value of at most `value_bytes_max` bytes within the budget. An announced length is checked before a byte is
/// read, so a huge upload costs nothing. `is_lost` says whether the body's framing cannot be followed any more. Before
/// more than [`LARGE_BYTES`] of an announced body are read, `turn` is awaited.
///
/// # Errors
/// 413, 503 or 400, as a [`Failure`]; the error of `turn`.
pub async fn read_value<B>(
    mut body: B,
    announced: Option<u64>,
    value_bytes_max: u64,
    budget: &Arc<BodyBudget>,
    is_lost: impl Fn() -> bool,
    turn: impl AsyncFnOnce() -> Result<(), Failure>,
) -> Result<(Bytes, Reserved), Failure>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut turn = announced.is_some_and(|length| length >= LARGE_BYTES).then_some(turn);
    let mut reserved = Reserved::new(budget);
    if let Some(length) = announced {
        if length > value_bytes_max {
            return Err(Failure::too_large(value_bytes_max));
        }
        // Only bytes that have arrived are reserved: an announced length costs nothing. Room for the whole value is
        // checked first, so that a refusal comes before the body is read.
        if !budget.has_room(length) {
            return Err(Failure::no_memory());
        }
    }
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    // hyper polls this whenever bytes have come, whether or not they end a frame, so a lost body is noticed at once.
    let mut next = async || {
        std::future::poll_fn(|cx| {
            if is_lost() {
                Poll::Ready(Some(Err(())))
            } else {
                Pin::new(&mut body).poll_frame(cx).map_err(|_| ())
            }
        })
        .await
    };
    while let Some(frame) = next().await {
        let frame = frame.map_err(|()| Failure::broken_body())?;
        let Ok(data) = frame.into_data() else { continue };
        let length = (first.len() + whole.len() + data.remaining()) as u64;
        if length > value_bytes_max {
            return Err(Failure::too_large(value_bytes_max));
        }
        while length > reserved.bytes {
            // Never more than the largest value needs: a value that fits when announced also fits in chunks.
            let most = announced.unwrap_or(value_bytes_max).max(length);
            reserved.grow(CHUNKED_RESERVE_BYTES.min(most - reserved.bytes))?;
        }
        if length >= LARGE_BYTES
            && let Some(turn) = turn.take()
        {
            turn().await?;
        }
        if first.is_empty() && whole.is_empty() {
            // Most values come in one piece, which then is not copied, unless it is a small part of the buffer that it came
            // in: the connection uses that again for its next request.
            first = if length < COPIED_BYTES_MAX { Bytes::copy_from_slice(&data) } else { data };
            continue;
        }
        if whole.is_empty() {
            let capacity = announced.unwrap_or(length).max(length);
            whole.reserve(usize::try_from(capacity).unwrap_or(0));
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&data);
    }
    if is_lost() {
        return Err(Failure::broken_body());
    }
    Ok((if whole.is_empty() { first } else { whole.freeze() }, reserved))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    struct Pieces(VecDeque<&'static [u8]>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Cut;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(Bytes::from_static(piece)))))
        }
    }

    fn read(
        pieces: &[&'static [u8]],
        announced: Option<u64>,
        max: u64,
        budget: &Arc<BodyBudget>,
    ) -> Result<Bytes, u16> {
        let body = Pieces(pieces.iter().copied().collect());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let read = runtime.block_on(read_value(body, announced, max, budget, || false, async || Ok(())));
        read.map(|(value, _)| value).map_err(|failure| failure.status().as_u16())
    }

    /// Values are read whole however they arrive. The limit counts the bytes that came, announced or not. The budget is
    /// given back after success and failure alike.
    #[test]
    fn values_are_read_within_bounds() {
        let budget = Arc::new(BodyBudget::new(5));
        assert_eq!(read(&[], Some(0), 5, &budget), Ok(Bytes::new()));
        assert_eq!(read(&[b"hello"], Some(5), 5, &budget), Ok(Bytes::from_static(b"hello")));
        assert_eq!(read(&[b"he", b"", b"l", b"lo"], None, 5, &budget), Ok(Bytes::from_static(b"hello")));
        assert_eq!(read(&[b"hello", b"!"], None, 5, &budget), Err(413));
        assert_eq!(read(&[], Some(6), 5, &budget), Err(413));
        assert_eq!(budget.used(), 0);
    }

    /// A value over the budget is refused before anything is read.
    #[test]
    fn budget_is_kept() {
        let budget = Arc::new(BodyBudget::new(10));
        let held = Reserved { budget: Arc::clone(&budget), bytes: 6 };
        assert!(budget.reserve(6));
        assert_eq!(read(&[b"hello"], Some(5), 100, &budget), Err(503));
        drop(held);
        assert_eq!(read(&[b"hello"], Some(5), 100, &budget).map(|value| value.len()), Ok(5));
    }

    /// A large answer holds its bytes of the budget until it is dropped; a small one holds none.
    #[test]
    fn large_answers_count() {
        let budget = Arc::new(BodyBudget::new(100_000));
        let large = ReplyBody::value(Bytes::from(vec![0; 70_000]), &budget).unwrap();
        assert_eq!(budget.used(), 70_000);
        assert!(ReplyBody::value(Bytes::from(vec![0; 70_000]), &budget).is_err());
        assert!(ReplyBody::value(Bytes::from_static(b"small"), &budget).is_ok());
        drop(large);
        assert_eq!(budget.used(), 0);
    }
}
