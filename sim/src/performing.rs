//! The controller's own requests: its [`Performer`] with a client whose API server is the simulated one.
//!
//! What a machine asks for becomes the bytes that the shipping controller would send, [`ApiServer::answer`] judges
//! those, and the answer becomes an outcome as it does in the shipping controller. A request is sent and answered
//! within one step: nothing here waits for time or for another thread, so a run stays one of its seed.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::{Request, Response, header::CONTENT_TYPE};
use kube::{Client, client::Body};
use muster_api::NodeDevices;
use muster_controller::perform::{self, Performer};
use muster_protocol::{ApiRequest, Outcome};
use tokio::runtime::{Builder, Runtime};

use crate::api_server::{ApiServer, rest};

/// Carries out what machines ask for by the requests of the shipping controller.
#[derive(Debug)]
pub struct Performing {
    performer: Performer,
    /// The API server, while a request is under way.
    served: Served,
    runtime: Runtime,
    carried_out: BTreeMap<&'static str, u64>,
}

type Served = Arc<Mutex<ApiServer>>;

impl Performing {
    /// A client of its own. Fails if the system has no more file descriptors.
    pub fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let served = Served::default();
        let client = {
            // The client has a task of its own.
            let _entered = runtime.enter();
            client(Arc::clone(&served))
        };
        Ok(Self {
            performer: Performer::new(client, "controller".to_owned()),
            served,
            runtime,
            carried_out: BTreeMap::new(),
        })
    }

    /// Carries out a write and says what came of it. `seen` is the NodeDevices that the write replaces, as its sender sees
    /// it.
    pub fn perform(
        &mut self,
        api: &mut ApiServer,
        write: &ApiRequest,
        seen: Option<&NodeDevices>,
    ) -> Outcome {
        *self.carried_out.entry(perform::name(write)).or_insert(0) += 1;
        std::mem::swap(&mut *lock(&self.served), api);
        let outcome = self.runtime.block_on(self.performer.perform(write, seen));
        std::mem::swap(&mut *lock(&self.served), api);
        outcome
    }

    /// How often each kind of write was carried out.
    pub fn carried_out(&self) -> &BTreeMap<&'static str, u64> {
        &self.carried_out
    }
}

fn lock(served: &Mutex<ApiServer>) -> MutexGuard<'_, ApiServer> {
    served.lock().unwrap_or_else(PoisonError::into_inner)
}

fn client(served: Served) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let served = Arc::clone(&served);
        async move { Ok::<_, Infallible>(answer(&served, request).await) }
    });
    Client::new(service, "default")
}

async fn answer(served: &Mutex<ApiServer>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    // The body was in memory all along.
    let body = body.collect_bytes().await.unwrap_or_default();
    let content_type = parts.headers.get(CONTENT_TYPE);
    let answer = lock(served).answer(&rest::Request {
        method: parts.method,
        path: parts.uri.path(),
        content_type: content_type
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default(),
        body: &body,
    });
    let mut response = Response::new(Body::from(answer.body.to_string().into_bytes()));
    *response.status_mut() = answer.code;
    response
}
