//! The verbs over HTTP.
//!
//! kube-scheduler is serial and waits for each answer, so nothing here waits for long: a request is judged from memory
//! under a read lock, for which it waits [`CACHE_LIMIT`] at most. Whatever is not status 200 is an error to the
//! scheduler, which asks again with back-off; a rejection is always a 200.

use std::{
    sync::{Arc, RwLock},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use k8s_openapi::jiff::Timestamp;
use muster_serve::{
    Readiness, lock,
    server::{ANSWERS_CONDITION, SELF_CHECK_PATH},
};
use serde::{Deserialize, Serialize};

use crate::{
    answer::{filter_answer, offered_nodes},
    cache::Cache,
    filter::{Verdict, judge},
    metrics::Requests,
    wire::{Arguments, EqualScores, PreemptionAnswer, PreemptionArguments},
};

/// Longest wait for the cache. An event takes microseconds, a whole list some tens of milliseconds; who writes for longer
/// is stuck, and an error in time is worth more than a late answer.
const CACHE_LIMIT: Duration = Duration::from_millis(200);

/// What the routes work with.
#[derive(Clone, Debug)]
pub struct Extender {
    /// What was seen of the cluster.
    pub cache: Arc<RwLock<Cache>>,
    /// Whether the first list of every kind is in the cache.
    pub readiness: Readiness,
    /// The request counter.
    pub requests: Requests,
}

/// Routes of the verbs, under `/scheduler` (the `urlPrefix` of the scheduler's configuration).
pub fn router(extender: Extender) -> Router {
    Router::new()
        .route("/scheduler/filter", post(filter))
        .route("/scheduler/prioritize", post(prioritize))
        .route("/scheduler/preempt", post(preempt))
        .route(SELF_CHECK_PATH, get(check_self))
        .with_state(extender)
}

/// What a request needs, and nothing else: the lock of the cache.
async fn check_self(State(extender): State<Extender>) {
    // Silence is what counts as stuck.
    while lock::read_within(&extender.cache, CACHE_LIMIT, |_| ())
        .await
        .is_none()
    {}
}

async fn filter(State(extender): State<Extender>, body: Bytes) -> Response {
    const VERB: &str = "filter";
    let arguments: Arguments<'_> = match extender.read(VERB, &body) {
        Ok(arguments) => arguments,
        Err(refusal) => return refusal.into_response(),
    };
    let verdict = extender.judge(&arguments).await;
    extender.requests.count(VERB, verdict.label());
    tracing::debug!(
        namespace = %arguments.pod.metadata.namespace,
        pod = %arguments.pod.metadata.name,
        ?verdict,
        "filter"
    );
    json(&filter_answer(&verdict, offered_nodes(&arguments)))
}

/// Neutral: equal scores change no order. The score proper comes with unpinned placement; a pinned pod has
/// one feasible node and is never scored.
async fn prioritize(State(extender): State<Extender>, body: Bytes) -> Response {
    const VERB: &str = "prioritize";
    let arguments: Arguments<'_> = match extender.read(VERB, &body) {
        Ok(arguments) => arguments,
        Err(refusal) => return refusal.into_response(),
    };
    extender.requests.count(VERB, "neutral");
    json(&EqualScores {
        hosts: offered_nodes(&arguments),
        score: 0,
    })
}

/// No node: a marked pod never preempts by kube-scheduler. Its gang waits for quota in the controller,
/// and evicting pods does not free devices for a claim anyway.
async fn preempt(State(extender): State<Extender>, body: Bytes) -> Response {
    const VERB: &str = "preempt";
    if let Err(refusal) = extender.read::<PreemptionArguments<'_>>(VERB, &body) {
        return refusal.into_response();
    }
    extender.requests.count(VERB, "refused");
    json(&PreemptionAnswer::default())
}

impl Extender {
    /// Decodes a request, once the cache is synced: before that nothing is known, and an error makes the
    /// scheduler ask again.
    fn read<'a, T: Deserialize<'a>>(
        &self,
        verb: &'static str,
        body: &'a Bytes,
    ) -> Result<T, Failure> {
        let missing = self.readiness.missing_besides(ANSWERS_CONDITION);
        if !missing.is_empty() {
            self.requests.count(verb, "unsynced");
            return Err(failure(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("starting: waits for {}", missing.join(", ")),
            ));
        }
        serde_json::from_slice(body).map_err(|error| {
            self.requests.count(verb, "malformed");
            failure(
                StatusCode::BAD_REQUEST,
                &format!("not a request of extender/v1: {error}"),
            )
        })
    }

    async fn judge(&self, arguments: &Arguments<'_>) -> Verdict {
        if arguments.nodes.is_some() && arguments.node_names.is_none() {
            return Verdict::Unknown(
                "kube-scheduler sends whole nodes: set nodeCacheCapable: true for this extender",
            );
        }
        lock::read_within(&self.cache, CACHE_LIMIT, |cache| {
            judge(&arguments.pod, cache, Timestamp::now())
        })
        .await
        .unwrap_or(Verdict::Unknown("the extender's cache is busy: ask again"))
    }
}

/// An answer that is no verdict.
type Failure = (StatusCode, String);

fn failure(status: StatusCode, message: &str) -> Failure {
    (status, format!("{message}\n"))
}

fn json(answer: &impl Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => failure(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("the answer cannot be written: {error}"),
        )
        .into_response(),
    }
}
