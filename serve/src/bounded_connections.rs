//! An acceptor that bounds how many connections there are, and how long one may say nothing.
//!
//! hyper-util tells HTTP/1 from HTTP/2 by the first bytes and waits for them without limit; its header limit
//! begins only afterwards. So the stream itself fails if its first byte does not come in time, and when
//! nothing at all has come for [`SILENCE_LIMIT`] (HTTP/2 peers answer pings).

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum_server::accept::Accept;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep},
};

/// Longest silence of a client after its first byte.
const SILENCE_LIMIT: Duration = Duration::from_mins(2);

/// Accepts at most so many connections at a time; one more is closed at once, so that those that stand
/// keep their memory and their speed.
#[derive(Clone, Debug)]
pub(crate) struct BoundedConnections<A> {
    inner: A,
    free: Arc<Semaphore>,
    first_byte_limit: Duration,
}

impl<A> BoundedConnections<A> {
    pub(crate) fn new(inner: A, connections: usize, first_byte_limit: Duration) -> Self {
        Self {
            inner,
            free: Arc::new(Semaphore::new(connections)),
            first_byte_limit,
        }
    }
}

impl<A, S> Accept<TcpStream, S> for BoundedConnections<A>
where
    A: Accept<TcpStream, S>,
    A::Future: Send + 'static,
    A::Stream: 'static,
    A::Service: 'static,
{
    type Stream = BoundedStream<A::Stream>;
    type Service = A::Service;
    type Future =
        Pin<Box<dyn Future<Output = io::Result<(Self::Stream, Self::Service)>> + Send + 'static>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let permit = Arc::clone(&self.free).try_acquire_owned();
        let accepting = self.inner.accept(stream, service);
        let first_byte_limit = self.first_byte_limit;
        Box::pin(async move {
            let permit = permit.map_err(|_| io::Error::other("too many connections"))?;
            let (stream, service) = accepting.await?;
            let stream = BoundedStream {
                stream,
                silence: Box::pin(tokio::time::sleep(first_byte_limit)),
                _permit: permit,
            };
            Ok((stream, service))
        })
    }
}

/// A stream whose reads fail when nothing has come for too long.
#[derive(Debug)]
pub(crate) struct BoundedStream<S> {
    stream: S,
    silence: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Ready(read) => {
                if buffer.filled().len() > filled {
                    self.silence.as_mut().reset(Instant::now() + SILENCE_LIMIT);
                }
                Poll::Ready(read)
            }
            Poll::Pending => self
                .silence
                .as_mut()
                .poll(context)
                .map(|()| Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
