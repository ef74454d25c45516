//! From an accepted socket to a connection that has a place.
//!
//! The two stages are bounded apart: whoever never finishes a TLS handshake takes a handshake from others, never a
//! connection, and where clients show a certificate, strangers take no connection at all.

use std::{
    collections::HashSet,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Extension, middleware::AddExtension};
use axum_server::accept::Accept;
use tokio::net::TcpStream;
use tower::Layer;

use super::{
    bounded_stream::BoundedStream,
    shares::{NoRoom, Peer, Share, Shares},
};

/// Who sent a request, and the place of its connection. In the extensions of every request.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Peer,
    pub(crate) place: Arc<Share>,
}

/// Addresses of sockets by which this process asks itself. They are known before they connect.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnSockets(Arc<Mutex<HashSet<SocketAddr>>>);

impl OwnSockets {
    pub(crate) fn add(&self, address: SocketAddr) {
        self.with(|addresses| addresses.insert(address));
    }

    pub(crate) fn remove(&self, address: SocketAddr) {
        self.with(|addresses| addresses.remove(&address));
    }

    fn with<T>(&self, act: impl FnOnce(&mut HashSet<SocketAddr>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Accepts connections within bounds.
#[derive(Clone, Debug)]
pub(crate) struct BoundedAcceptor<A> {
    inner: A,
    handshakes: Shares,
    places: Shares,
    own_sockets: OwnSockets,
    first_byte_limit: Duration,
}

impl<A> BoundedAcceptor<A> {
    /// `inner` does the handshake.
    pub(crate) fn new(
        inner: A,
        handshakes: usize,
        connections: usize,
        own_sockets: OwnSockets,
        first_byte_limit: Duration,
    ) -> Self {
        Self {
            inner,
            handshakes: Shares::new(handshakes),
            places: Shares::new(connections),
            own_sockets,
            first_byte_limit,
        }
    }

    fn peer(&self, stream: &TcpStream) -> io::Result<Peer> {
        let address = stream.peer_addr()?;
        let is_own = self.own_sockets.with(|own| own.contains(&address));
        Ok(if is_own {
            Peer::Itself
        } else {
            Peer::of(address)
        })
    }
}

impl<A, S> Accept<TcpStream, S> for BoundedAcceptor<A>
where
    A: Accept<TcpStream, S>,
    A::Future: Send + 'static,
    A::Stream: 'static,
    A::Service: 'static,
{
    type Stream = BoundedStream<A::Stream>;
    type Service = AddExtension<A::Service, Connection>;
    type Future =
        Pin<Box<dyn Future<Output = io::Result<(Self::Stream, Self::Service)>> + Send + 'static>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let peer = self.peer(&stream);
        let accepting = self.inner.accept(stream, service);
        let (handshakes, places) = (self.handshakes.clone(), self.places.clone());
        let first_byte_limit = self.first_byte_limit;
        Box::pin(async move {
            let peer = peer?;
            let handshake = one_of(&handshakes, peer)?;
            let (stream, service) = tokio::select! {
                accepted = accepting => accepted?,
                () = handshake.gives_way() => return Err(no_room(NoRoom)),
            };
            drop(handshake);
            let place = Arc::new(one_of(&places, peer)?);
            let connection = Connection {
                peer,
                place: Arc::clone(&place),
            };
            let stream = BoundedStream::new(stream, place, first_byte_limit);
            Ok((stream, Extension(connection).layer(service)))
        })
    }
}

fn one_of(shares: &Shares, peer: Peer) -> io::Result<Share> {
    let share = shares.join(peer);
    share.grow(1).map_err(no_room)?;
    Ok(share)
}

fn no_room(_: NoRoom) -> io::Error {
    io::Error::other("too many connections")
}
