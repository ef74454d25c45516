//! From an accepted socket to a connection that has a place.
//!
//! The two stages are bounded apart: whoever never finishes a TLS handshake takes a handshake from others, never a
//! connection, and where clients show a certificate, strangers take no connection at all.
//!
//! What a connection takes first, it takes in the order in which connections come ([`Arrivals`], on the accept loop). The
//! tasks that serve them begin in any order, the newest of a burst often first, and the oldest connections that were
//! never served give way: taken there, an honest newcomer would make room for the whole burst that came before it.

use std::{
    collections::HashSet,
    convert::Infallible,
    future::{Future, Ready, ready},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{Extension, middleware::AddExtension};
use axum_server::accept::Accept;
use tokio::net::TcpStream;
use tower::{Layer, Service};

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

/// Makes the service of each connection, in the order in which they come, and gives it what it needs first: a handshake,
/// or its place where there is none.
#[derive(Clone, Debug)]
pub(crate) struct Arrivals<S> {
    service: S,
    first: Shares,
    own_sockets: OwnSockets,
}

/// A connection that has come, and what serves it.
#[derive(Clone, Debug)]
pub(crate) struct Arrival<S> {
    service: S,
    peer: Peer,
    share: Result<Arc<Share>, NoRoom>,
}

impl<S> Arrivals<S> {
    /// `first` is what each connection takes one of.
    pub(crate) fn new(service: S, first: Shares, own_sockets: OwnSockets) -> Self {
        Self {
            service,
            first,
            own_sockets,
        }
    }
}

impl<S: Clone> Service<SocketAddr> for Arrivals<S> {
    type Response = Arrival<S>;
    type Error = Infallible;
    type Future = Ready<Result<Arrival<S>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, from: SocketAddr) -> Self::Future {
        let is_own = self.own_sockets.with(|own| own.contains(&from));
        let peer = if is_own { Peer::Itself } else { Peer::of(from) };
        ready(Ok(Arrival {
            service: self.service.clone(),
            peer,
            share: one_of(&self.first, peer),
        }))
    }
}

/// What serves the connection, as it is before anything is known of the connection.
impl<S: Service<R>, R> Service<R> for Arrival<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.service.call(request)
    }
}

/// A connection that is served: what its bytes come from, and what answers its requests.
type Served<T, S> = (BoundedStream<T>, AddExtension<S, Connection>);

fn serve_at<T, S>(
    place: Arc<Share>,
    peer: Peer,
    stream: T,
    service: S,
    first_byte_limit: Duration,
) -> Served<T, S> {
    let connection = Connection {
        peer,
        place: Arc::clone(&place),
    };
    let stream = BoundedStream::new(stream, place, first_byte_limit);
    (stream, Extension(connection).layer(service))
}

/// Accepts connections that begin with no handshake: each has its place since it came.
#[derive(Clone, Debug)]
pub(crate) struct PlainAcceptor {
    first_byte_limit: Duration,
}

impl PlainAcceptor {
    pub(crate) const fn new(first_byte_limit: Duration) -> Self {
        Self { first_byte_limit }
    }
}

impl<S> Accept<TcpStream, Arrival<S>> for PlainAcceptor {
    type Stream = BoundedStream<TcpStream>;
    type Service = AddExtension<S, Connection>;
    type Future = Ready<io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, arrival: Arrival<S>) -> Self::Future {
        let Arrival {
            service,
            peer,
            share: place,
        } = arrival;
        ready(place.map_err(no_room).map(|place| {
            let limit = self.first_byte_limit;
            serve_at(place, peer, stream, service, limit)
        }))
    }
}

/// Accepts connections that begin with a handshake, and have a place after it.
#[derive(Clone, Debug)]
pub(crate) struct HandshakeAcceptor<A> {
    inner: A,
    places: Shares,
    first_byte_limit: Duration,
}

impl<A> HandshakeAcceptor<A> {
    /// `inner` does the handshake.
    pub(crate) const fn new(inner: A, places: Shares, first_byte_limit: Duration) -> Self {
        Self {
            inner,
            places,
            first_byte_limit,
        }
    }
}

impl<A, S> Accept<TcpStream, Arrival<S>> for HandshakeAcceptor<A>
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

    fn accept(&self, stream: TcpStream, arrival: Arrival<S>) -> Self::Future {
        let Arrival {
            service,
            peer,
            share: handshake,
        } = arrival;
        let accepting = self.inner.accept(stream, service);
        let (places, first_byte_limit) = (self.places.clone(), self.first_byte_limit);
        Box::pin(async move {
            let handshake = handshake.map_err(no_room)?;
            let (stream, service) = tokio::select! {
                accepted = accepting => accepted?,
                () = handshake.gives_way() => return Err(no_room(NoRoom)),
            };
            drop(handshake);
            let place = one_of(&places, peer).map_err(no_room)?;
            Ok(serve_at(place, peer, stream, service, first_byte_limit))
        })
    }
}

fn one_of(shares: &Shares, peer: Peer) -> Result<Arc<Share>, NoRoom> {
    let share = shares.join(peer);
    share.grow(1).map(|()| Arc::new(share))
}

fn no_room(_: NoRoom) -> io::Error {
    io::Error::other("too many connections")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrive(arrivals: &mut Arrivals<()>, port: u16) -> Arrival<()> {
        let from = SocketAddr::from(([10, 0, 0, 1], port));
        arrivals.call(from).into_inner().unwrap()
    }

    /// The tasks that serve them may begin with the newest.
    #[test]
    fn of_a_burst_the_last_to_come_has_a_place_in_whatever_order_it_is_served() {
        let mut arrivals = Arrivals::new((), Shares::new(8), OwnSockets::default());
        let burst: Vec<_> = (0..100).map(|port| arrive(&mut arrivals, port)).collect();
        let gave_way = |arrival: &Arrival<()>| {
            let place = arrival.share.as_ref().unwrap();
            place.token().is_cancelled()
        };
        let kept: Vec<bool> = burst
            .iter()
            .rev()
            .map(|arrival| !gave_way(arrival))
            .collect();
        // One peer may have half of them.
        assert_eq!(kept[..5], [true, true, true, true, false]);
        assert!(!kept[4..].contains(&true), "more than its half");
    }

    #[test]
    fn what_this_process_asks_itself_is_known_by_its_socket() {
        let own_sockets = OwnSockets::default();
        own_sockets.add(SocketAddr::from(([10, 0, 0, 1], 7)));
        let mut arrivals = Arrivals::new((), Shares::new(8), own_sockets);
        let peers = [7, 8].map(|port| arrive(&mut arrivals, port).peer);
        assert_eq!(peers[0], Peer::Itself);
        assert_ne!(peers[1], Peer::Itself);
    }
}
