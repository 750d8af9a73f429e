//! Frames: the layout of messages in a connection's bytes.
//!
//! Integers are big-endian.
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | length of all that follows this field, in bytes: 9 and the payload's |
//! | 4 | 4 | checksum: the low half of xxh3-64 (seed 0) of all that follows this field |
//! | 8 | 1 | kind of the message |
//! | 9 | 4 | id of the request; a reply carries its request's |
//! | 13 | rest | payload |
//!
//! A malformed frame ends the connection: after a wrong length, no later byte can be trusted. A frame that is longer
//! than its reader accepts, or than the free memory, is skipped: its kind and id are known, its payload is not kept.

use super::limits::{MemoryShare, PeerLimits};
use super::terms::MessageError;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::VecDeque;
use std::fmt;
use std::mem;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The largest length that a frame may announce, in bytes: the largest value and room for the fields beside it.
pub const FRAME_BYTES_MAX: usize = (256 << 20) + (64 << 10);

/// Length and checksum.
const UNCHECKED_BYTES: usize = 8;
/// The bytes that the length counts besides the payload: checksum, kind, id.
const COUNTED_BYTES: usize = 9;

/// The length in bytes from which a value is written without a copy: for shorter ones, a system call costs more.
const LONG_BYTES: usize = 64 << 10;
/// The most buffer for short bytes that is kept for reuse, so that one burst does not hold memory forever.
const SHORT_BYTES_KEPT: usize = 1 << 20;

/// How many bytes are read at once when no frame is known to be longer.
const READ_BYTES: usize = 64 << 10;
/// The buffer grows before a read when it has less free room than this, in bytes.
const READ_BYTES_MIN: usize = 4 << 10;

/// A message as it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) id: u32,
    pub(super) payload: Bytes,
    /// Why the payload was not kept; none if it was.
    pub(super) passed_over: Option<PassedOver>,
}

/// Why the payload of a frame was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PassedOver {
    /// It is longer than the reader takes.
    TooLong,
    /// There is no memory for it now.
    NoMemory,
}

/// An error in the framing of received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// A length of more than [`FRAME_BYTES_MAX`].
    TooLong {
        /// The length, in bytes.
        bytes: usize,
    },
    /// A length that leaves no room for a frame's fixed part.
    TooShort {
        /// The length, in bytes.
        bytes: usize,
    },
    /// The bytes are not the bytes that were sent.
    Checksum {
        /// The checksum in the frame.
        announced: u32,
        /// The checksum of its bytes.
        found: u32,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                write!(f, "a frame of {bytes} bytes is longer than the limit of {FRAME_BYTES_MAX}")
            }
            Self::TooShort { bytes } => write!(f, "a frame of {bytes} bytes is too short"),
            Self::Checksum { announced, found } => {
                write!(f, "a frame's checksum is {announced:08x}, but its bytes have {found:08x}")
            }
        }
    }
}

impl std::error::Error for FrameError {}

/// The error for a message that was not queued; no part of it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PushError {
    /// It is longer than the given room.
    Full,
    /// Its frame would be longer than [`FRAME_BYTES_MAX`].
    TooLong,
    /// It has no encoding.
    Message(MessageError),
}

impl From<MessageError> for PushError {
    fn from(error: MessageError) -> Self {
        Self::Message(error)
    }
}

/// A collector of frames to be written: short bytes in one run, long values by reference.
#[derive(Default)]
pub(super) struct Pieces {
    /// All bytes except long values, in order.
    pub(super) short: BytesMut,
    /// Long values, each with the index in `short` before which it belongs.
    long: Vec<(usize, Bytes)>,
}

impl Pieces {
    /// Adds the bytes of a value.
    pub(super) fn put_value(&mut self, value: &Bytes) {
        if value.len() < LONG_BYTES {
            self.short.put_slice(value);
        } else {
            self.long.push((self.short.len(), value.clone()));
        }
    }

    /// Adds a frame of at most `room` bytes with the payload that `payload` writes. Returns its length in bytes.
    pub(super) fn push(
        &mut self,
        kind: u8,
        id: u32,
        room: usize,
        payload: impl FnOnce(&mut Self) -> Result<(), MessageError>,
    ) -> Result<usize, PushError> {
        let (short, long) = (self.short.len(), self.long.len());
        let pushed = self.try_push(kind, id, room, payload);
        if pushed.is_err() {
            self.short.truncate(short);
            self.long.truncate(long);
        }
        pushed
    }

    fn try_push(
        &mut self,
        kind: u8,
        id: u32,
        room: usize,
        payload: impl FnOnce(&mut Self) -> Result<(), MessageError>,
    ) -> Result<usize, PushError> {
        let (begin, long_begin) = (self.short.len(), self.long.len());
        self.short.put_bytes(0, UNCHECKED_BYTES);
        self.short.put_u8(kind);
        self.short.put_u32(id);
        payload(self)?;
        let long = self.long.get(long_begin..).unwrap_or_default();
        let bytes = self.short.len() - begin + long.iter().map(|(_, value)| value.len()).sum::<usize>();
        let length = bytes - 4;
        if length > FRAME_BYTES_MAX {
            return Err(PushError::TooLong);
        }
        if bytes > room {
            return Err(PushError::Full);
        }
        let checksum = checksum(&self.short, begin + UNCHECKED_BYTES, long);
        let length = u32::try_from(length).map_err(|_| PushError::TooLong)?;
        let head = self.short.get_mut(begin..).and_then(|frame| frame.first_chunk_mut());
        if let Some(head) = head {
            *head = (u64::from(length) << 32 | u64::from(checksum)).to_be_bytes();
        }
        Ok(bytes)
    }

    /// Moves all bytes to the end of `queue`, as pieces that one call each can write.
    pub(super) fn take(&mut self, queue: &mut VecDeque<Bytes>) {
        let mut short =
            if self.short.len() > SHORT_BYTES_KEPT { mem::take(&mut self.short) } else { self.short.split() };
        let mut taken = 0;
        for (before, value) in self.long.drain(..) {
            queue.push_back(short.split_to(before - taken).freeze());
            queue.push_back(value);
            taken = before;
        }
        if !short.is_empty() {
            queue.push_back(short.freeze());
        }
    }
}

/// The checksum of `short` from `begin` on, with the `long` values in their places.
fn checksum(short: &[u8], begin: usize, long: &[(usize, Bytes)]) -> u32 {
    let rest = |at: usize| short.get(at..).unwrap_or_default();
    if long.is_empty() {
        return low_half(xxh3_64(rest(begin)));
    }
    let mut hash = Xxh3::new();
    let mut at = begin;
    for (before, value) in long {
        hash.update(short.get(at..*before).unwrap_or_default());
        hash.update(value);
        at = *before;
    }
    hash.update(rest(at));
    low_half(hash.digest())
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is wanted")]
fn low_half(hash: u64) -> u32 {
    hash as u32
}

/// A reader that cuts received bytes into frames.
pub(super) struct FrameReader {
    buffer: BytesMut,
    /// The buffer's share of the memory for frames; none if that is not bounded.
    memory: Option<MemoryShare>,
    /// The longest frame that is kept.
    bytes_max: usize,
    passing: Option<Passing>,
}

/// A frame whose payload is skipped, while it arrives.
struct Passing {
    kind: u8,
    id: u32,
    /// Bytes that are still to come.
    left: usize,
    why: PassedOver,
}

impl FrameReader {
    /// A reader that begins with `already_read`, without bounds.
    #[cfg(test)]
    pub(super) fn new(already_read: Bytes) -> Self {
        let buffer = BytesMut::from(already_read);
        Self { buffer, memory: None, bytes_max: FRAME_BYTES_MAX, passing: None }
    }

    /// A reader that begins with `already_read`. It keeps frames of at most `bytes_max`, within the node's memory for
    /// frames.
    pub(super) fn bounded(already_read: Bytes, limits: &PeerLimits, bytes_max: usize) -> Self {
        let memory = Some(MemoryShare::new(&limits.memory));
        Self { buffer: BytesMut::from(already_read), memory, bytes_max, passing: None }
    }

    /// The next complete frame; none while bytes of it are missing. Its payload shares the read buffer.
    ///
    /// # Errors
    /// After an error the reader cannot be used any more.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        if self.passing.is_some() {
            return Ok(self.pass());
        }
        let Some(length) = self.announced()? else { return Ok(None) };
        if length > self.bytes_max {
            self.begin_to_pass(PassedOver::TooLong);
            return Ok(self.pass());
        }
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        let mut payload = self.buffer.split_to(4 + length).freeze();
        let too_short = FrameError::TooShort { bytes: length };
        let (&[_, _, _, _, a, b, c, d], checked) = payload.split_first_chunk().ok_or(too_short)?;
        let (announced, found) = (u32::from_be_bytes([a, b, c, d]), low_half(xxh3_64(checked)));
        if announced != found {
            return Err(FrameError::Checksum { announced, found });
        }
        let &[kind, a, b, c, d] = checked.first_chunk().ok_or(too_short)?;
        payload.advance(4 + COUNTED_BYTES);
        self.hold(self.buffer.capacity());
        Ok(Some(Frame { kind, id: u32::from_be_bytes([a, b, c, d]), payload, passed_over: None }))
    }

    /// Starts to skip the payload of the frame that has begun, once its kind and id have come.
    fn begin_to_pass(&mut self, why: PassedOver) {
        let Some(&[l0, l1, l2, l3, _, _, _, _, kind, a, b, c, d]) = self.buffer.first_chunk() else { return };
        let left = 4 + u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        self.passing = Some(Passing { kind, id: u32::from_be_bytes([a, b, c, d]), left, why });
    }

    /// Drops the received bytes of the skipped frame. Returns the frame without its payload once all its bytes have
    /// come.
    fn pass(&mut self) -> Option<Frame> {
        let passing = self.passing.as_mut()?;
        let gone = passing.left.min(self.buffer.len());
        passing.left -= gone;
        if gone == self.buffer.len() {
            // Gives its memory back for other frames.
            self.buffer = BytesMut::new();
        } else {
            self.buffer.advance(gone);
        }
        self.hold(self.buffer.capacity());
        let Passing { kind, id, left, why } = self.passing.take()?;
        if left > 0 {
            self.passing = Some(Passing { kind, id, left, why });
            return None;
        }
        Some(Frame { kind, id, payload: Bytes::new(), passed_over: Some(why) })
    }

    /// Reserves memory for `bytes` in all; false if there is not enough.
    fn hold(&mut self, bytes: usize) -> bool {
        self.memory.as_mut().is_none_or(|memory| memory.hold(bytes))
    }

    /// The buffer for the next bytes, with some room. It grows as bytes come, never because of an announced length
    /// alone. If there is no memory to grow, the frame is skipped.
    pub(super) fn room(&mut self) -> &mut BytesMut {
        let length = self.buffer.len();
        let wanted = match self.announced() {
            Ok(Some(announced)) if self.passing.is_none() => {
                (4 + announced).saturating_sub(length).min(length.max(READ_BYTES))
            }
            _ => 0,
        };
        let spare = self.buffer.capacity() - length;
        if spare < wanted.max(READ_BYTES_MIN) {
            let more = wanted.max(READ_BYTES);
            if self.hold(length + more) {
                self.buffer.reserve(more);
                // The buffer may have reserved more than it was asked for.
                self.hold(self.buffer.capacity());
            } else {
                self.begin_to_pass(PassedOver::NoMemory);
                self.pass();
                self.buffer.reserve(READ_BYTES);
            }
        }
        &mut self.buffer
    }

    /// Whether a frame has begun to arrive and is not complete.
    pub(super) fn is_midway(&self) -> bool {
        !self.buffer.is_empty() || self.passing.is_some()
    }

    /// The length that the next frame announces; none while it has not come.
    fn announced(&self) -> Result<Option<usize>, FrameError> {
        let Some(length) = self.buffer.first_chunk() else { return Ok(None) };
        match u32::from_be_bytes(*length) as usize {
            bytes if bytes > FRAME_BYTES_MAX => Err(FrameError::TooLong { bytes }),
            bytes if bytes < COUNTED_BYTES => Err(FrameError::TooShort { bytes }),
            bytes => Ok(Some(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(pieces: &mut Pieces) -> Vec<u8> {
        let mut queue = VecDeque::new();
        pieces.take(&mut queue);
        queue.into_iter().flatten().collect()
    }

    fn push(pieces: &mut Pieces, id: u32, parts: &[Bytes]) -> Result<usize, PushError> {
        pieces.push(7, id, usize::MAX, |to| {
            for part in parts {
                to.put_value(part);
            }
            Ok(())
        })
    }

    fn value(bytes: usize) -> Bytes {
        (0..bytes).map(|at| u8::try_from(at % 251).unwrap()).collect()
    }

    /// Frames of short and long values are read in order, however their bytes are cut.
    #[test]
    fn frames_survive_any_cut() {
        let frames: Vec<Vec<Bytes>> = vec![
            vec![],
            vec![value(5)],
            vec![value(LONG_BYTES), value(3), value(LONG_BYTES + 1)],
            vec![value(LONG_BYTES)],
            vec![value(1)],
        ];
        let mut pieces = Pieces::default();
        for (id, parts) in (0..).zip(&frames) {
            push(&mut pieces, id, parts).unwrap();
        }
        let bytes = written(&mut pieces);
        for cut in [1, 7, 13, 4096, bytes.len()] {
            let mut reader = FrameReader::new(Bytes::new());
            let mut came = Vec::new();
            for part in bytes.chunks(cut) {
                reader.room().extend_from_slice(part);
                while let Some(frame) = reader.next().unwrap() {
                    assert_eq!((frame.kind, frame.id), (7, u32::try_from(came.len()).unwrap()));
                    came.push(frame.payload);
                }
            }
            let expected: Vec<Bytes> = frames.iter().map(|parts| parts.concat().into()).collect();
            assert_eq!(came, expected, "cut to {cut}");
            assert!(!reader.is_midway());
        }
    }

    /// Long values are written by reference, not copied.
    #[test]
    fn long_values_are_not_copied() {
        let long = value(LONG_BYTES);
        let mut pieces = Pieces::default();
        push(&mut pieces, 1, std::slice::from_ref(&long)).unwrap();
        let mut queue = VecDeque::new();
        pieces.take(&mut queue);
        assert_eq!(queue.iter().map(Bytes::len).collect::<Vec<_>>(), [13, LONG_BYTES]);
        assert_eq!(queue[1].as_ptr(), long.as_ptr());
    }

    /// A refused message leaves no bytes behind.
    #[test]
    fn refused_pushes_leave_nothing() {
        let mut pieces = Pieces::default();
        push(&mut pieces, 1, &[value(2)]).unwrap();
        let put = |value: Bytes| {
            move |to: &mut Pieces| {
                to.put_value(&value);
                Ok(())
            }
        };
        assert_eq!(pieces.push(7, 2, 13 + 99, put(value(100))), Err(PushError::Full));
        assert_eq!(pieces.push(7, 2, 13 + LONG_BYTES - 1, put(value(LONG_BYTES))), Err(PushError::Full));
        let long = Bytes::from(vec![0; FRAME_BYTES_MAX - COUNTED_BYTES + 1]);
        assert_eq!(pieces.push(7, 2, usize::MAX, put(long.clone())), Err(PushError::TooLong));
        let refused = MessageError::Truncated;
        assert_eq!(pieces.push(7, 2, usize::MAX, |_| Err(refused)), Err(PushError::Message(refused)));
        assert_eq!(pieces.push(7, 2, usize::MAX, put(long.slice(1..))), Ok(4 + FRAME_BYTES_MAX));
        push(&mut pieces, 3, &[]).unwrap();
        let mut queue = VecDeque::new();
        pieces.take(&mut queue);
        let lengths: Vec<usize> = queue.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [15 + 13, FRAME_BYTES_MAX - COUNTED_BYTES, 13]);
    }

    /// Lengths out of bounds are refused before any later byte is awaited.
    #[test]
    fn lengths_are_judged_at_once() {
        let judge = |length: u32| FrameReader::new(Bytes::copy_from_slice(&length.to_be_bytes())).next();
        assert_eq!(judge(8), Err(FrameError::TooShort { bytes: 8 }));
        assert_eq!(judge(9), Ok(None));
        let max = u32::try_from(FRAME_BYTES_MAX).unwrap();
        assert_eq!(judge(max), Ok(None));
        assert_eq!(judge(max + 1), Err(FrameError::TooLong { bytes: FRAME_BYTES_MAX + 1 }));
    }

    fn limits(memory_bytes: u64) -> PeerLimits {
        use crate::clock::{Clock, ManualClock, TimestampBound};
        let clock: std::sync::Arc<dyn Clock> = ManualClock::at(1);
        let timestamps = TimestampBound::new(clock, std::time::Duration::from_secs(1));
        PeerLimits::new(std::sync::Arc::new(timestamps), 1 << 20, memory_bytes)
    }

    fn frame(id: u32, bytes: usize) -> Vec<u8> {
        let mut pieces = Pieces::default();
        push(&mut pieces, id, &[value(bytes)]).unwrap();
        written(&mut pieces)
    }

    /// Goal: unfinished frames of all connections together hold at most the memory for frames, whatever lengths they
    /// announce and however much has come; 8 of them used to hold 2.7 GiB. Frames that do not fit are skipped, and the
    /// frames after them are read. Method: 64 readers with all but the last byte of 8 MiB each, then the last bytes.
    #[test]
    fn unfinished_frames_are_bounded_together() {
        let (memory, value_bytes) = (32 << 20, 8 << 20);
        let limits = limits(memory);
        let bytes = [frame(1, value_bytes), frame(2, 5)].concat();
        let (most, rest) = bytes.split_at(4 + COUNTED_BYTES + value_bytes - 1);
        let mut readers: Vec<FrameReader> =
            (0..64).map(|_| FrameReader::bounded(Bytes::new(), &limits, FRAME_BYTES_MAX)).collect();
        for reader in &mut readers {
            for part in most.chunks(READ_BYTES_MIN) {
                reader.room().extend_from_slice(part);
                assert_eq!(reader.next(), Ok(None));
            }
            assert!(reader.is_midway() && limits.memory_used() <= memory);
        }
        let held: usize = readers.iter().map(|reader| reader.buffer.capacity()).sum();
        assert!(held <= 2 * usize::try_from(memory).unwrap() + 64 * 2 * READ_BYTES, "{held} bytes");
        let mut kept = 0;
        for reader in &mut readers {
            reader.room().extend_from_slice(rest);
            let first = reader.next().unwrap().unwrap();
            assert_eq!((first.kind, first.id), (7, 1));
            match first.passed_over {
                None => kept += usize::from(first.payload.len() == value_bytes),
                why => assert_eq!((why, first.payload.len()), (Some(PassedOver::NoMemory), 0)),
            }
            assert_eq!(reader.next().unwrap().unwrap().id, 2);
        }
        assert!((1..=4).contains(&kept), "{kept}");
        drop(readers);
        assert_eq!(limits.memory_used(), 0);
    }

    /// Goal: an announced length alone holds no memory. Method: the heads of many long frames, and no further bytes.
    #[test]
    fn announced_bytes_hold_nothing() {
        let limits = limits(1 << 20);
        let mut readers: Vec<FrameReader> =
            (0..100).map(|_| FrameReader::bounded(Bytes::new(), &limits, FRAME_BYTES_MAX)).collect();
        for reader in &mut readers {
            reader.room().extend_from_slice(&frame(1, 200 << 10)[..64]);
            assert_eq!(reader.next(), Ok(None));
            reader.room();
        }
        assert_eq!(limits.memory_used(), 0);
    }

    /// A frame that is longer than its reader accepts is skipped, wherever its bytes are cut. The frames before and
    /// after it are read.
    #[test]
    fn frames_that_are_too_long_are_passed_over() {
        let limits = limits(1 << 20);
        let bytes = [frame(1, 50), frame(2, 101), frame(3, 91), frame(4, 92), frame(5, 0)].concat();
        for cut in [1, 7, 13, 100, bytes.len()] {
            let mut reader = FrameReader::bounded(Bytes::new(), &limits, 100);
            let mut came = Vec::new();
            for part in bytes.chunks(cut) {
                reader.room().extend_from_slice(part);
                while let Some(frame) = reader.next().unwrap() {
                    came.push((frame.id, frame.payload.len(), frame.passed_over));
                }
            }
            let over = Some(PassedOver::TooLong);
            assert_eq!(came, [(1, 50, None), (2, 0, over), (3, 91, None), (4, 0, over), (5, 0, None)]);
            assert!(!reader.is_midway());
        }
    }

    proptest! {
        /// A frame with one flipped bit is never accepted.
        #[test]
        fn flipped_bits_are_seen(payload in prop::collection::vec(any::<u8>(), 0..40), bit in 0usize..53 * 8) {
            let mut pieces = Pieces::default();
            push(&mut pieces, 9, &[payload.into()]).unwrap();
            let mut bytes = written(&mut pieces);
            let at = bit % (bytes.len() * 8);
            bytes[at / 8] ^= 1 << (at % 8);
            prop_assert!(!matches!(FrameReader::new(bytes.into()).next(), Ok(Some(_))));
        }

        /// Any bytes are read or refused without a panic.
        #[test]
        fn any_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut reader = FrameReader::new(bytes.into());
            while let Ok(Some(_)) = reader.next() {}
        }
    }
}
