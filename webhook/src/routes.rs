//! Admission reviews over HTTP: one path per kind and phase.
//!
//! Everything is decided in memory; a review never waits for the API server. Bodies are decoded into the
//! types of their kind. Each body may be 7 MiB, and anybody in the cluster who reaches the port may send
//! one, so the number of reviews at a time is bounded before a body is read.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::post,
};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Resource,
    core::{
        DynamicObject,
        admission::{AdmissionRequest, AdmissionResponse, AdmissionReview},
    },
};
use muster_api::{Cohort, Team};
use muster_serve::Readiness;
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::Semaphore;

use crate::{cache::Cache, job, metrics::Reviews, pod::PodRules, quota_tree};

/// Reviews at a time: 32 bodies of 7 MiB are 224 MiB at the worst.
const CONCURRENT_REVIEWS: usize = 32;
/// Longest time a review waits for its turn. A review takes well below a millisecond, so whoever waits this
/// long meets a flood; the API server gives up after 3 s.
const TURN_LIMIT: Duration = Duration::from_secs(1);

/// The only version of reviews that is spoken.
const REVIEW_VERSION: &str = "admission.k8s.io/v1";

/// What the routes work with.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// What is known of other objects.
    pub facts: Arc<RwLock<Cache>>,
    /// Whether the first list of every kind is in the facts.
    pub readiness: Readiness,
    /// What is written into pods, and which pods.
    pub rules: Arc<PodRules>,
    /// The counter of reviews.
    pub reviews: Reviews,
}

/// The routes of the webhook configurations.
pub fn router(webhook: Webhook) -> Router {
    let turns = Arc::new(Semaphore::new(CONCURRENT_REVIEWS));
    Router::new()
        .route("/mutate/pods", post(mutate_pod))
        .route("/validate/pods", post(validate_pod))
        .route("/validate/jobs", post(validate_job))
        .route("/validate/teams", post(validate_team))
        .route("/validate/cohorts", post(validate_cohort))
        .with_state(webhook)
        .layer(middleware::from_fn_with_state(turns, in_turn))
}

async fn in_turn(State(turns): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    let Ok(Ok(_turn)) = tokio::time::timeout(TURN_LIMIT, turns.acquire()).await else {
        return refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many reviews at a time",
        );
    };
    next.run(request).await
}

async fn mutate_pod(State(webhook): State<Webhook>, headers: HeaderMap, body: Bytes) -> Response {
    webhook.review("mutate pods", &headers, &body, |request, pod: &Pod, _| {
        let patch = webhook.rules.patch(pod);
        let response = AdmissionResponse::from(request);
        if patch.0.is_empty() {
            return Ok(response);
        }
        response
            .with_patch(patch)
            .map_err(|error| error.to_string())
    })
}

async fn validate_pod(State(webhook): State<Webhook>, headers: HeaderMap, body: Bytes) -> Response {
    webhook.review("validate pods", &headers, &body, |request, pod, facts| {
        let findings = webhook.rules.check(pod, namespace(request), facts);
        Ok(findings.answer(AdmissionResponse::from(request)))
    })
}

async fn validate_job(State(webhook): State<Webhook>, headers: HeaderMap, body: Bytes) -> Response {
    webhook.review(
        "validate jobs",
        &headers,
        &body,
        |request, object, facts| {
            let findings = job::check(object, namespace::<Job>(request), facts);
            Ok(findings.answer(AdmissionResponse::from(request)))
        },
    )
}

async fn validate_team(
    State(webhook): State<Webhook>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    webhook.review(
        "validate teams",
        &headers,
        &body,
        |request, team: &Team, facts| {
            let findings = quota_tree::check_team(team, facts);
            Ok(findings.answer(AdmissionResponse::from(request)))
        },
    )
}

async fn validate_cohort(
    State(webhook): State<Webhook>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    webhook.review(
        "validate cohorts",
        &headers,
        &body,
        |request, cohort: &Cohort, facts| {
            let findings = quota_tree::check_cohort(cohort, facts);
            Ok(findings.answer(AdmissionResponse::from(request)))
        },
    )
}

/// The namespace of the request: the object's own may be missing, or forged.
fn namespace<K: Resource>(request: &AdmissionRequest<K>) -> &str {
    request.namespace.as_deref().unwrap_or_default()
}

impl Webhook {
    /// Decodes a review, has `decide` answer it, and encodes the answer, which carries the UID of the
    /// request. Nothing has side effects, so a dry run is a run.
    ///
    /// A request without an object (DELETE) is allowed: deleting is nobody's business but RBAC's.
    fn review<K: Resource + DeserializeOwned>(
        &self,
        what: &'static str,
        headers: &HeaderMap,
        body: &Bytes,
        decide: impl FnOnce(&AdmissionRequest<K>, &K, &Cache) -> Result<AdmissionResponse, String>,
    ) -> Response {
        if let Err(refusal) = self.accept(headers) {
            self.reviews.count(what, "error");
            return refusal.into_response();
        }
        let request: AdmissionRequest<K> = match decode(body) {
            Ok(request) => request,
            Err(why) => {
                self.reviews.count(what, "malformed");
                return refuse(StatusCode::BAD_REQUEST, &why);
            }
        };
        let decided = match &request.object {
            Some(object) => {
                let facts = self.facts.read().unwrap_or_else(PoisonError::into_inner);
                decide(&request, object, &facts)
            }
            None => Ok(AdmissionResponse::from(&request)),
        };
        match decided {
            Ok(response) => {
                self.reviews.count(
                    what,
                    if response.allowed {
                        "allowed"
                    } else {
                        "denied"
                    },
                );
                tracing::debug!(
                    what,
                    namespace = request.namespace,
                    name = request.name,
                    dry_run = request.dry_run,
                    allowed = response.allowed,
                    message = response.result.message,
                    "review"
                );
                encode(&response.into_review())
            }
            Err(why) => {
                self.reviews.count(what, "error");
                refuse(StatusCode::INTERNAL_SERVER_ERROR, &why)
            }
        }
    }

    /// Whether a request may be looked at: what is not known cannot be judged, and the API server then
    /// refuses the creation (`failurePolicy: Fail`) for the second or two that a first list takes.
    fn accept(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let missing = self.readiness.missing();
        if !missing.is_empty() {
            return Err(refusal(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("starting: waits for {}", missing.join(", ")),
            ));
        }
        let content_type = headers
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        if !media_type.eq_ignore_ascii_case("application/json") {
            return Err(refusal(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "reviews are application/json",
            ));
        }
        Ok(())
    }
}

fn decode<K: Resource + DeserializeOwned>(body: &[u8]) -> Result<AdmissionRequest<K>, String> {
    let review: AdmissionReview<K> =
        serde_json::from_slice(body).map_err(|error| format!("not an AdmissionReview: {error}"))?;
    if review.types.api_version != REVIEW_VERSION {
        return Err(format!(
            "only {REVIEW_VERSION} is understood, not {:?}",
            review.types.api_version
        ));
    }
    let request: AdmissionRequest<K> = review
        .try_into()
        .map_err(|_| "the AdmissionReview has no request".to_owned())?;
    if request.uid.is_empty() {
        return Err("the request has no uid".to_owned());
    }
    Ok(request)
}

fn encode(review: &AdmissionReview<DynamicObject>) -> Response {
    fn json(value: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(value)
    }
    match json(review) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("the answer cannot be written: {error}"),
        ),
    }
}

/// An answer that is no review.
type Refusal = (StatusCode, String);

fn refusal(status: StatusCode, why: &str) -> Refusal {
    (status, format!("{why}\n"))
}

fn refuse(status: StatusCode, why: &str) -> Response {
    refusal(status, why).into_response()
}
