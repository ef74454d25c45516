//! Admission reviews over HTTP: one path per kind and phase.
//!
//! Everything is decided in memory; a review never waits for the API server. Bodies are decoded into the
//! types of their kind. Anybody in the cluster who reaches the port may send one of 7 MiB: `muster_serve::server`
//! bounds how many there are at a time, and what a body may hold is counted before it is decoded.

use std::{
    sync::{Arc, RwLock},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::Pod,
    resource::v1::{ResourceClaim, ResourceClaimTemplate},
};
use kube::{
    Resource,
    core::{
        DynamicObject,
        admission::{AdmissionRequest, AdmissionResponse, AdmissionReview},
    },
};
use muster_api::{Cohort, FaultPolicy, Flavor, Team};
use muster_serve::{
    Readiness, lock,
    server::{ANSWERS_CONDITION, SELF_CHECK_PATH, json_bounds::JsonBounds},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    cache::Cache,
    claims::{self, Claiming},
    fault_policy, flavor, job,
    metrics::Reviews,
    pod::PodRules,
    quota_tree,
};

/// What a review may hold. An element of a list can be an empty container or volume, a few bytes of JSON that take
/// kilobytes of memory. The largest pods that people write have some hundreds.
pub const REVIEW_BOUNDS: JsonBounds = JsonBounds {
    elements: 5_000,
    members: 100_000,
};

/// Longest wait for the cache, whose writers take microseconds: one that takes longer is stuck.
const CACHE_LIMIT: Duration = Duration::from_secs(1);

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

/// The routes of the webhook configurations, and the one by which the server asks itself.
pub fn router(webhook: Webhook) -> Router {
    Router::new()
        .route("/mutate/pods", post(mutate_pod))
        .route("/validate/pods", post(validate_pod))
        .route("/validate/jobs", post(validate_job))
        .route("/validate/teams", post(validate_team))
        .route("/validate/cohorts", post(validate_cohort))
        .route("/validate/flavors", post(validate_flavor))
        .route("/validate/faultpolicies", post(validate_fault_policy))
        .route(
            "/validate/resourceclaims",
            post(validate_claiming::<ResourceClaim>),
        )
        .route(
            "/validate/resourceclaimtemplates",
            post(validate_claiming::<ResourceClaimTemplate>),
        )
        .route(SELF_CHECK_PATH, get(check_self))
        .with_state(webhook)
}

/// What a review needs, and nothing else: the lock of the cache.
async fn check_self(State(webhook): State<Webhook>) {
    // Silence is what counts as stuck.
    while lock::read_within(&webhook.facts, CACHE_LIMIT, |_| ())
        .await
        .is_none()
    {}
}

async fn mutate_pod(State(webhook): State<Webhook>, headers: HeaderMap, body: Bytes) -> Response {
    webhook
        .review(
            "mutate pods",
            &headers,
            &body,
            |request, pod: &Pod, facts| {
                let patch = webhook.rules.patch(pod, namespace(request), facts);
                let response = AdmissionResponse::from(request);
                if patch.0.is_empty() {
                    return Ok(response);
                }
                response
                    .with_patch(patch)
                    .map_err(|error| error.to_string())
            },
        )
        .await
}

async fn validate_pod(State(webhook): State<Webhook>, headers: HeaderMap, body: Bytes) -> Response {
    webhook
        .review("validate pods", &headers, &body, |request, pod, facts| {
            let findings = webhook.rules.check(pod, namespace(request), facts);
            Ok(findings.answer(AdmissionResponse::from(request)))
        })
        .await
}

async fn validate_job(State(webhook): State<Webhook>, headers: HeaderMap, body: Bytes) -> Response {
    webhook
        .review(
            "validate jobs",
            &headers,
            &body,
            |request, object, facts| {
                let findings = job::check(object, namespace::<Job>(request), facts);
                Ok(findings.answer(AdmissionResponse::from(request)))
            },
        )
        .await
}

async fn validate_team(
    State(webhook): State<Webhook>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    webhook
        .review(
            "validate teams",
            &headers,
            &body,
            |request, team: &Team, facts| {
                let findings = quota_tree::check_team(team, request.old_object.as_ref(), facts);
                Ok(findings.answer(AdmissionResponse::from(request)))
            },
        )
        .await
}

async fn validate_cohort(
    State(webhook): State<Webhook>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    webhook
        .review(
            "validate cohorts",
            &headers,
            &body,
            |request, cohort: &Cohort, facts| {
                let findings = quota_tree::check_cohort(cohort, request.old_object.as_ref(), facts);
                Ok(findings.answer(AdmissionResponse::from(request)))
            },
        )
        .await
}

async fn validate_flavor(
    State(webhook): State<Webhook>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let managed = &webhook.rules.managed;
    webhook
        .review(
            "validate flavors",
            &headers,
            &body,
            |request, object: &Flavor, facts| {
                let findings = flavor::check(object, request.old_object.as_ref(), managed, facts);
                Ok(findings.answer(AdmissionResponse::from(request)))
            },
        )
        .await
}

async fn validate_fault_policy(
    State(webhook): State<Webhook>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    webhook
        .review(
            "validate fault policies",
            &headers,
            &body,
            |request, object: &FaultPolicy, _| {
                let findings = fault_policy::check(object, request.old_object.as_ref());
                Ok(findings.answer(AdmissionResponse::from(request)))
            },
        )
        .await
}

async fn validate_claiming<K: Claiming + Resource + DeserializeOwned + Send + Sync + 'static>(
    State(webhook): State<Webhook>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    webhook
        .review(
            "validate claims",
            &headers,
            &body,
            |request, object: &K, _| {
                Ok(claims::check(object).answer(AdmissionResponse::from(request)))
            },
        )
        .await
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
    async fn review<K: Resource + DeserializeOwned>(
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
                let decide = |facts: &Cache| decide(&request, object, facts);
                lock::read_within(&self.facts, CACHE_LIMIT, decide)
                    .await
                    .unwrap_or_else(|| Err("the webhook's cache is busy: send it again".to_owned()))
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
        let missing = self.readiness.missing_besides(ANSWERS_CONDITION);
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
    REVIEW_BOUNDS
        .check(body)
        .map_err(|error| format!("the AdmissionReview holds too much: {error}"))?;
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Volume};

    use super::*;

    /// Ten reviews at a time (`muster_serve::server`), each with all its elements of the largest kind in a list that has
    /// just been doubled, and the budget of bodies beside them: within the 512 MiB that the chart grants.
    #[test]
    fn the_largest_reviews_that_are_decoded_at_a_time_fit_into_memory() {
        let sizes = [
            size_of::<Container>(),
            size_of::<EphemeralContainer>(),
            size_of::<Volume>(),
        ];
        let largest = sizes.into_iter().max().unwrap_or_default();
        let reviews = 10 * REVIEW_BOUNDS.elements * largest * 2;
        let bodies = muster_serve::server::Limits::OBJECTS.buffered_bytes;
        assert!(reviews + bodies < 400 * 1024 * 1024, "{largest} bytes each");
    }
}
