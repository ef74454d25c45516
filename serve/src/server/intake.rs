//! What happens to a request before anybody looks at it: its body is read, then it waits for its turn.
//!
//! The body comes first. A turn that is given to a client that has not sent its request yet is a turn that the client
//! keeps for as long as it likes. So a body is read within a time and a budget of bytes that peers share
//! ([`super::shares`]: the heaviest body that nobody works on gives way), and only a whole one waits for a turn.
//! Large bodies have turns of their own, on threads where they hold up nobody else.

use std::{panic, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures::StreamExt;
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
/// waits this long meets a flood, and is told so before the limit says nothing.
const WAITING_PART: u32 = 3;
/// Requests at a time whose bodies are small. All that are worked on at a time must fit into memory, decoded.
const TURNS: usize = 8;
/// Requests at a time whose bodies are large.
const LARGE_TURNS: usize = 2;
/// Largest small body. Decoding it takes a millisecond or two, as long as a thread of the runtime may be kept.
const SMALL_BODY_BYTES: usize = 256 * 1024;
/// What a request costs besides its body: headers, and the state of its stream. So requests without any body are
/// bounded too.
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
    Broken(axum::Error),
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

    /// The whole body, and the share of the budget that it has.
    async fn read(
        &self,
        connection: &Connection,
        request: &mut Request,
    ) -> Result<(Bytes, Share), Refusal> {
        let most = self.limits.body_bytes;
        let declared = request.headers().get(header::CONTENT_LENGTH);
        let declared = declared.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if declared.is_some_and(|bytes| bytes > most as u64) {
            return Err(Refusal::TooLarge { most });
        }
        let share = self.bytes.join(connection.peer);
        share.grow(REQUEST_BYTES)?;
        let body = std::mem::take(request.body_mut());
        let limit = self.limits.body_limit;
        let body = tokio::select! {
            read = tokio::time::timeout(limit, gather(body, &share, most)) => {
                read.map_err(|_| Refusal::TooSlow { limit })??
            }
            () = share.gives_way() => return Err(Refusal::NoRoom),
        };
        Ok((body.into(), share))
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

    async fn answer(&self, mut request: Request, next: Next) -> Result<Response, Refusal> {
        let connection = request.extensions().get::<Connection>().cloned();
        let connection = connection.ok_or(Refusal::NoRoom)?;
        let (body, share) = self.read(&connection, &mut request).await?;
        let is_large = body.len() > SMALL_BODY_BYTES;
        let turn = self.turn(&share, is_large).await?;
        let work = Work {
            _in_use: (share.in_use()?, connection.place.in_use()?),
            _share: share,
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
        match answered.await {
            Ok(response) => Ok(response),
            Err(error) => panic::resume_unwind(error.into_panic()),
        }
    }
}

/// What a request has while it is worked on.
struct Work {
    _in_use: (InUse, InUse),
    _share: Share,
    _turn: OwnedSemaphorePermit,
}

/// The layer: everything behind it sees whole bodies, and few of them at a time.
pub(crate) async fn take_in(
    State(intake): State<Intake>,
    request: Request,
    next: Next,
) -> Response {
    intake
        .answer(request, next)
        .await
        .unwrap_or_else(IntoResponse::into_response)
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
            Self::NoRoom => (
                StatusCode::SERVICE_UNAVAILABLE,
                "too many bytes are being received: send it again".to_owned(),
            ),
            Self::NoTurn => (
                StatusCode::SERVICE_UNAVAILABLE,
                "too many requests at a time: send it again".to_owned(),
            ),
        };
        (status, format!("{why}\n")).into_response()
    }
}
