//! A stream that ends when its client says nothing for too long, or when its place goes to somebody else.
//!
//! hyper-util tells HTTP/1 from HTTP/2 by the first bytes and waits for them without limit; its header limit
//! begins only afterwards. So the stream itself fails if its first byte does not come in time, and when
//! nothing at all has come or gone for [`SILENCE_LIMIT`] (HTTP/2 peers answer pings).

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::shares::Share;

/// Longest silence of a client after its first byte.
const SILENCE_LIMIT: Duration = Duration::from_mins(2);

/// A stream whose reads and writes fail when the client has been silent for too long or the place is lost.
#[derive(Debug)]
pub(crate) struct BoundedStream<S> {
    stream: S,
    silence: Pin<Box<Sleep>>,
    gives_way: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: Arc<Share>,
}

impl<S> BoundedStream<S> {
    /// A stream with a place among the connections.
    pub(crate) fn new(stream: S, place: Arc<Share>, first_byte_limit: Duration) -> Self {
        Self {
            stream,
            silence: Box::pin(tokio::time::sleep(first_byte_limit)),
            gives_way: Box::pin(place.token().clone().cancelled_owned()),
            _place: place,
        }
    }

    fn is_lost(&mut self, context: &mut Context<'_>) -> bool {
        self.gives_way.as_mut().poll(context).is_ready()
    }

    /// What a call that waits for the client comes to: it goes on waiting, or the client was silent for too long.
    fn wait<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.silence
            .as_mut()
            .poll(context)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn heard(&mut self) {
        self.silence.as_mut().reset(Instant::now() + SILENCE_LIMIT);
    }

    fn written(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.heard();
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.wait(context),
        }
    }
}

fn lost<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_lost(context) {
            return lost();
        }
        let filled = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Ready(read) => {
                if buffer.filled().len() > filled {
                    self.heard();
                }
                Poll::Ready(read)
            }
            Poll::Pending => self.wait(context),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_lost(context) {
            return lost();
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_lost(context) {
            return lost();
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(context) {
            Poll::Pending => self.wait(context),
            flushed @ Poll::Ready(_) => flushed,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_shutdown(context) {
            Poll::Pending => self.wait(context),
            ended @ Poll::Ready(_) => ended,
        }
    }
}
