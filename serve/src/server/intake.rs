//! What happens to a request before anybody looks at it: its body is read, then it waits for its turn.
//!
//! The body comes first. A turn that is given to a client that has not sent its request yet is a turn that the client
//! keeps for as long as it likes. So a body is read within a time and a budget of bytes that peers share
//! ([`super::shares`]: of those that nobody works on, the one that has cost most gives way), and only a whole one waits for a turn.
//! Large bodies have turns of their own, on threads where they hold up nobody else.
//!
//! An answer counts until it is sent: an HTTP/2 client that grants no window fetches none of them, as many as it likes.
//! When such an answer has to give way, its connection ends.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Error,
    body::{Body, Bytes, HttpBody},
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use hyper::body::{Frame, SizeHint};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
};

use super::{
    Limits,
    acceptor::Connection,
    shares::{InUse, NoRoom, Share, Shares},
};

/// The part of a request's limit that it may wait for its turn. A request takes well below a millisecond, so whoever
/// waits this long meets a flood, and learns so before the limit cuts it off without a word.
const WAITING_PART: u32 = 3;
/// Requests at a time whose bodies are small. All that are worked on at a time must fit into memory, decoded.
const TURNS: usize = 8;
/// Requests at a time whose bodies are large.
const LARGE_TURNS: usize = 2;
/// Largest small body. Decoding it takes a millisecond or two, as long as a thread of the runtime may be kept.
const SMALL_BODY_BYTES: usize = 256 * 1024;
/// What a request costs besides its body: headers, the state of its stream, and a small answer. So requests without any
/// body are bounded too.
const REQUEST_BYTES: usize = 16 * 1024;
/// First allocation for a body.
const FIRST_BYTES: usize = 4 * 1024;

/// The budget and the turns of one server.
#[derive(Clone, Debug)]
pub(crate) struct Intake {
    limits: Limits,
    bytes: Shares,
    turns: Arc<Semaphore>,
    large_turns: Arc<Semaphore>,
}

/// Why a request gets no answer from those that it is for.
#[derive(Debug)]
enum Refusal {
    TooLarge { most: usize },
    TooSlow { limit: Duration },
    Broken(Error),
    NoRoom,
    NoTurn,
}

impl Intake {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            bytes: Shares::new(limits.buffered_bytes),
            turns: Arc::new(Semaphore::new(TURNS)),
            large_turns: Arc::new(Semaphore::new(LARGE_TURNS)),
        }
    }

    /// The whole body.
    async fn read(&self, share: &Share, request: &mut Request) -> Result<Bytes, Refusal> {
        let most = self.limits.body_bytes;
        let declared = request.headers().get(header::CONTENT_LENGTH);
        let declared = declared.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if declared.is_some_and(|bytes| bytes > most as u64) {
            return Err(Refusal::TooLarge { most });
        }
        let body = std::mem::take(request.body_mut());
        let limit = self.limits.body_limit;
        let body = tokio::select! {
            read = tokio::time::timeout(limit, gather(body, share, most)) => {
                read.map_err(|_| Refusal::TooSlow { limit })??
            }
            () = share.gives_way() => return Err(Refusal::NoRoom),
        };
        Ok(body.into())
    }

    /// A turn; whoever waits for one may still have to give way.
    async fn turn(&self, share: &Share, is_large: bool) -> Result<OwnedSemaphorePermit, Refusal> {
        let turns = if is_large {
            &self.large_turns
        } else {
            &self.turns
        };
        let turn = tokio::time::timeout(
            self.limits.request_limit / WAITING_PART,
            Arc::clone(turns).acquire_owned(),
        );
        tokio::select! {
            turn = turn => turn.ok().and_then(Result::ok).ok_or(Refusal::NoTurn),
            () = share.gives_way() => Err(Refusal::NoRoom),
        }
    }

    async fn answer(
        &self,
        connection: &Connection,
        share: &Arc<Share>,
        mut request: Request,
        next: Next,
    ) -> Result<Response, Refusal> {
        let body = self.read(share, &mut request).await?;
        // A client may send many requests at once, and nothing of a small one ever waits: without this its connection would
        // keep a thread for as long as all of them take.
        tokio::task::yield_now().await;
        let is_large = body.len() > SMALL_BODY_BYTES;
        let turn = self.turn(share, is_large).await?;
        let work = Work {
            _in_use: (share.in_use()?, connection.place.in_use()?),
            _share: Arc::clone(share),
            _turn: turn,
        };
        *request.body_mut() = Body::from(body);
        if !is_large {
            let response = next.run(request).await;
            drop(work);
            return Ok(response);
        }
        let runtime = Handle::current();
        // The turn goes with the work: a client that hangs up does not free it for the next.
        let answered = tokio::task::spawn_blocking(move || {
            let response = runtime.block_on(next.run(request));
            drop(work);
            response
        });
        // No handler panics beyond its layer: the runtime is ending.
        answered.await.map_err(|_| Refusal::NoTurn)
    }
}

/// What a request has while it is worked on.
struct Work {
    _in_use: (InUse, InUse),
    _share: Arc<Share>,
    _turn: OwnedSemaphorePermit,
}

/// The layer: everything behind it sees whole bodies, and few of them at a time.
pub(crate) async fn take_in(
    State(intake): State<Intake>,
    request: Request,
    next: Next,
) -> Response {
    let Some(connection) = request.extensions().get::<Connection>().cloned() else {
        return no_room();
    };
    connection.place.is_heard();
    let share = Arc::new(intake.bytes.join(connection.peer));
    if share.grow(REQUEST_BYTES).is_err() {
        return no_room();
    }
    let response = intake
        .answer(&connection, &share, request, next)
        .await
        .unwrap_or_else(IntoResponse::into_response);
    until_sent(response, share, &connection)
}

/// No body: nothing of it could wait for its client.
fn no_room() -> Response {
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

/// An answer that has its share until it is sent.
fn until_sent(response: Response, share: Arc<Share>, connection: &Connection) -> Response {
    let bytes = response.body().size_hint().lower();
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    share.shrink_to(REQUEST_BYTES.max(bytes));
    if share.grow_to(bytes).is_err() {
        return no_room();
    }
    share.take_along(connection.place.token().clone());
    response.map(|body| {
        Body::new(Unsent {
            body,
            _share: share,
        })
    })
}

/// The body of an answer, and its share.
struct Unsent {
    body: Body,
    _share: Arc<Share>,
}

impl HttpBody for Unsent {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads a body. What is allocated is charged first. Pieces are copied: a piece of one byte would keep the whole
/// buffer alive that it came in.
async fn gather(body: Body, share: &Share, most: usize) -> Result<Vec<u8>, Refusal> {
    let mut pieces = body.into_data_stream();
    let mut gathered = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(Refusal::Broken)?;
        let bytes = gathered.len() + piece.len();
        if bytes > most {
            return Err(Refusal::TooLarge { most });
        }
        if bytes > gathered.capacity() {
            let capacity = (gathered.capacity() * 2)
                .max(FIRST_BYTES)
                .min(most)
                .max(bytes);
            share.grow(capacity - gathered.capacity())?;
            gathered.reserve_exact(capacity - gathered.len());
        }
        gathered.extend_from_slice(&piece);
    }
    Ok(gathered)
}

impl From<NoRoom> for Refusal {
    fn from(_: NoRoom) -> Self {
        Self::NoRoom
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            Self::NoRoom => return no_room(),
            Self::TooLarge { most } => (
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("a body may have {most} bytes"),
            ),
            Self::TooSlow { limit } => (
                StatusCode::REQUEST_TIMEOUT,
                format!("the body did not come within {} ms", limit.as_millis()),
            ),
            Self::Broken(error) => (
                StatusCode::BAD_REQUEST,
                format!("the body cannot be read: {error}"),
            ),
            Self::NoTurn => (
                StatusCode::SERVICE_UNAVAILABLE,
                "too many requests at a time: send it again".to_owned(),
            ),
        };
        (status, format!("{why}\n")).into_response()
    }
}
