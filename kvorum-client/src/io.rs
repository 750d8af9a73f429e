//! The socket, in the form that hyper needs.
//!
//! hyper reads into memory that need not be initialised, which only `unsafe` code can hand to tokio. So each
//! socket has a buffer of its own and its bytes are copied once more, and no `unsafe` code has to be proved
//! sound.

use hyper::rt::{Read, ReadBufCursor, Write};
use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most that one read takes from the socket, in bytes: small enough to be held for every idle
/// connection, large enough that a value of the usual size is one read.
const READ_BYTES_MAX: usize = 16 * 1024;

/// A stream that hyper can drive.
pub(crate) struct TokioIo<S> {
    stream: S,
    buffer: Box<[u8]>,
}

impl<S> TokioIo<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, buffer: vec![0; READ_BYTES_MAX].into_boxed_slice() }
    }
}

impl<S: AsyncRead + Unpin> Read for TokioIo<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut target: ReadBufCursor<'_>,
    ) -> Poll<Result<()>> {
        let Self { stream, buffer } = self.get_mut();
        let bytes_max = target.remaining().min(buffer.len());
        let mut source = ReadBuf::new(buffer.split_at_mut(bytes_max).0);
        ready!(Pin::new(stream).poll_read(cx, &mut source))?;
        target.put_slice(source.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> Write for TokioIo<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, source: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, source)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        sources: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, sources)
    }
}
