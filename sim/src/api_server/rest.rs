//! The API server as its clients see it: requests and answers in bytes.
//!
//! What a request asks for is parsed, judged and answered as Kubernetes does it, as far as the controller goes:
//!
//! * **POST** creates, without status where that has a write of its own; a name that is taken is answered 409;
//! * **PUT** replaces what a client may write of the object, or of its status, if UID and resourceVersion that the body
//!   names are the object's (409 else); a custom resource has to name its resourceVersion;
//! * **PATCH** takes a JSON patch or a merge patch. A JSON patch that cannot be applied, most of all because a `test`
//!   fails, is answered 422 with [`PATCH_FAILED`];
//! * **DELETE** honours preconditions, and a grace period of 0, and is answered with the object if something holds it;
//! * what the object's validation forbids is answered 422, what cannot be decoded 400, what does not exist 404.
//!
//! Events are judged and thrown away: nobody reads them here.

use http::{Method, StatusCode};
use k8s_openapi::{api::events::v1::Event, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use muster_api::Gang;
use muster_cluster::object::types;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{ApiServer, Failure, Precondition, Stored, key, validation};

/// Says a 422 whose patch could not be applied, and nothing of why: Kubernetes 1.37, `endpoints/handlers/patch.go` with
/// `NewGenericServerResponse`.
const PATCH_FAILED: &str = "the server rejected our request due to an error in our request";

/// A request, as it arrives.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Its method.
    pub method: Method,
    /// Its path, without query.
    pub path: &'a str,
    /// What its body is.
    pub content_type: &'a str,
    /// Its body.
    pub body: &'a [u8],
}

/// An answer: the status code, and JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The status code.
    pub code: StatusCode,
    /// The object, or a `Status`.
    pub body: Value,
}

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target<'a> {
    group: &'a str,
    version: &'a str,
    namespace: &'a str,
    plural: &'a str,
    name: Option<&'a str>,
    subresource: Option<&'a str>,
}

/// A request that is not fulfilled: code, reason and message of its `Status`.
type Refused = (StatusCode, &'static str, String);

impl ApiServer {
    /// Does what a request asks for, and answers it.
    pub fn answer(&mut self, request: &Request<'_>) -> Answer {
        let done = match Target::parse(request.path) {
            Some(target) => self.serve(request, &target),
            None => Err(not_found(request.path)),
        };
        done.unwrap_or_else(|(code, reason, message)| Answer {
            code,
            body: json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": reason, "code": code.as_u16(),
            }),
        })
    }

    fn serve(&mut self, request: &Request<'_>, target: &Target<'_>) -> Result<Answer, Refused> {
        macro_rules! of_kind {
            ($($kind:ident: $scope:ident $collection:ident $status:ident;)*) => {
                $(if target.is_of::<types::$kind>() {
                    return self.serve_kind::<types::$kind>(request, target);
                })*
            };
        }
        muster_cluster::for_each_kind!(of_kind);
        if target.is_of::<Event>() && request.method == Method::POST {
            return publish(request.body);
        }
        Err(not_found(request.path))
    }

    fn serve_kind<T>(
        &mut self,
        request: &Request<'_>,
        target: &Target<'_>,
    ) -> Result<Answer, Refused>
    where
        T: Stored + Serialize + DeserializeOwned,
    {
        match (request.method.as_str(), target.name, target.subresource) {
            ("GET", Some(name), None) => match self.get::<T>(target.namespace, name) {
                Some(object) => answer(StatusCode::OK, object),
                None => Err(refused(Failure::NotFound)),
            },
            ("POST", None, None) => self.post::<T>(target, decode(request.body)?),
            ("PUT", Some(name), None | Some("status")) => {
                self.put::<T>(target, name, decode(request.body)?)
            }
            ("PATCH", Some(name), None | Some("status")) => {
                let patched = self.patched::<T>(request, target, name)?;
                self.put::<T>(target, name, patched)
            }
            ("DELETE", Some(name), None) => {
                let has_options = !request.body.is_empty();
                let options = has_options.then(|| decode(request.body)).transpose()?;
                self.remove::<T>(target, name, &options.unwrap_or(Value::Null))
            }
            (method, ..) => Err((
                StatusCode::METHOD_NOT_ALLOWED,
                "MethodNotAllowed",
                format!("{method} is not possible on {}", request.path),
            )),
        }
    }

    fn post<T>(&mut self, target: &Target<'_>, mut object: T) -> Result<Answer, Refused>
    where
        T: Stored + Serialize,
    {
        let metadata = object.metadata_mut();
        if metadata.resource_version.is_some() {
            return Err(bad_request(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        *metadata = ObjectMeta {
            name: metadata.name.take(),
            namespace: (!target.namespace.is_empty()).then(|| target.namespace.to_owned()),
            ..ObjectMeta::default().written_as(metadata)
        };
        if metadata.name.is_none() {
            return Err(invalid("metadata.name: Required value"));
        }
        object.take_status_of(None);
        let stored = self.create(object).map_err(|failure| match failure {
            Failure::Conflict => (
                StatusCode::CONFLICT,
                "AlreadyExists",
                "already exists".to_owned(),
            ),
            other => refused(other),
        })?;
        answer_stored::<T>(StatusCode::CREATED, &stored)
    }

    fn put<T>(&mut self, target: &Target<'_>, name: &str, wanted: T) -> Result<Answer, Refused>
    where
        T: Stored + Serialize,
    {
        let stored = self.get::<T>(target.namespace, name);
        let stored = stored.ok_or_else(|| refused(Failure::NotFound))?;
        let asked = wanted.metadata().clone();
        if asked.resource_version.is_none() && target.group == Gang::group(&()) {
            return Err(invalid(
                "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update",
            ));
        }
        let mut after = wanted;
        if target.subresource.is_some() {
            let mut with_status = stored.clone();
            with_status.take_status_of(Some(&after));
            after = with_status;
        } else {
            after.take_status_of(Some(stored));
            *after.metadata_mut() = stored.metadata().clone().written_as(&asked);
            validation::update(stored, &after).map_err(|cause| invalid(&cause))?;
        }
        let precondition = Precondition {
            uid: asked.uid.as_deref(),
            resource_version: asked.resource_version.as_deref(),
        };
        let stored = self
            .update::<T>(target.namespace, name, precondition, |object| {
                *object = after;
            })
            .map_err(refused)?;
        answer_stored::<T>(StatusCode::OK, &stored)
    }

    /// The object as a patch would have it. It carries UID and version of what was patched.
    fn patched<T>(
        &self,
        request: &Request<'_>,
        target: &Target<'_>,
        name: &str,
    ) -> Result<T, Refused>
    where
        T: Stored + Serialize + DeserializeOwned,
    {
        let stored = self.get::<T>(target.namespace, name);
        let stored = stored.ok_or_else(|| refused(Failure::NotFound))?;
        let mut document = encode(stored)?;
        match request.content_type {
            "application/json-patch+json" => {
                let patch: json_patch::Patch = decode(request.body)?;
                json_patch::patch(&mut document, &patch.0).map_err(|_| invalid(PATCH_FAILED))?;
            }
            "application/merge-patch+json" => {
                json_patch::merge(&mut document, &decode(request.body)?);
            }
            other => {
                let message = format!("{other} is not supported");
                return Err((
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "UnsupportedMediaType",
                    message,
                ));
            }
        }
        serde_json::from_value(document).map_err(|error| invalid(&error.to_string()))
    }

    fn remove<T>(
        &mut self,
        target: &Target<'_>,
        name: &str,
        options: &Value,
    ) -> Result<Answer, Refused>
    where
        T: Stored + Serialize,
    {
        let precondition = Precondition {
            uid: options["preconditions"]["uid"].as_str(),
            resource_version: options["preconditions"]["resourceVersion"].as_str(),
        };
        let key = key(T::KIND, target.namespace, name);
        let done = if options["gracePeriodSeconds"] == json!(0) {
            self.delete_now(&key, precondition)
        } else {
            self.delete(&key, precondition)
        };
        done.map_err(refused)?;
        match self.get::<T>(target.namespace, name) {
            Some(held) => answer(StatusCode::OK, held),
            None => Ok(Answer {
                code: StatusCode::OK,
                body: json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                }),
            }),
        }
    }
}

impl<'a> Target<'a> {
    fn parse(path: &'a str) -> Option<Self> {
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", _, "status"] => ("", rest),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            _ => ("", rest),
        };
        let [plural, rest @ ..] = rest else {
            return None;
        };
        let (name, subresource) = match rest {
            [] => (None, None),
            [name] => (Some(*name), None),
            [name, subresource] => (Some(*name), Some(*subresource)),
            _ => return None,
        };
        Some(Self {
            group,
            version,
            namespace,
            plural,
            name,
            subresource,
        })
    }

    fn is_of<T: Resource<DynamicType = ()>>(&self) -> bool {
        T::plural(&()) == self.plural
            && T::group(&()) == self.group
            && T::version(&()) == self.version
    }
}

/// What clients write of an object's metadata.
trait Written {
    /// This metadata, with labels, annotations, owners and finalizers of the other. Empty ones are none.
    fn written_as(self, other: &Self) -> Self;
}

impl Written for ObjectMeta {
    fn written_as(self, other: &Self) -> Self {
        Self {
            labels: other.labels.clone().filter(|it| !it.is_empty()),
            annotations: other.annotations.clone().filter(|it| !it.is_empty()),
            owner_references: other.owner_references.clone().filter(|it| !it.is_empty()),
            finalizers: other.finalizers.clone().filter(|it| !it.is_empty()),
            ..self
        }
    }
}

/// Longest note of an Event, in bytes: Kubernetes 1.37, `pkg/apis/core/validation/events.go`.
const MOST_NOTE_BYTES: usize = 1_024;
/// Longest name of an object, in bytes.
const MOST_NAME_BYTES: usize = 253;

fn publish(body: &[u8]) -> Result<Answer, Refused> {
    let event: Event = decode(body)?;
    let name = event.metadata.name.as_deref().unwrap_or_default();
    if name.is_empty() || name.len() > MOST_NAME_BYTES {
        return Err(invalid("metadata.name: Invalid value"));
    }
    if event
        .note
        .as_ref()
        .is_some_and(|note| note.len() > MOST_NOTE_BYTES)
    {
        return Err(invalid("note: can have at most 1024 characters"));
    }
    let is_empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
    let required = [
        ("reportingController", &event.reporting_controller),
        ("reportingInstance", &event.reporting_instance),
        ("action", &event.action),
        ("reason", &event.reason),
    ];
    if let Some((field, _)) = required.into_iter().find(|(_, text)| is_empty(text)) {
        return Err(invalid(&format!("{field}: Required value")));
    }
    answer(StatusCode::CREATED, &event)
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|error| bad_request(&error.to_string()))
}

fn encode<T: Serialize>(object: &T) -> Result<Value, Refused> {
    serde_json::to_value(object).map_err(|error| {
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            error.to_string(),
        )
    })
}

fn answer<T: Serialize>(code: StatusCode, object: &T) -> Result<Answer, Refused> {
    let body = encode(object)?;
    Ok(Answer { code, body })
}

fn answer_stored<T: Stored + Serialize>(
    code: StatusCode,
    stored: &muster_cluster::object::Object,
) -> Result<Answer, Refused> {
    match T::of(stored) {
        Some(object) => answer(code, object.as_ref()),
        None => Err(refused(Failure::NotFound)),
    }
}

fn refused(failure: Failure) -> Refused {
    match failure {
        Failure::Conflict => (
            StatusCode::CONFLICT,
            "Conflict",
            "the object has been modified".to_owned(),
        ),
        Failure::NotFound => not_found("the object"),
        Failure::Refused(cause) => invalid(&cause),
    }
}

fn not_found(what: &str) -> Refused {
    (
        StatusCode::NOT_FOUND,
        "NotFound",
        format!("{what} not found"),
    )
}

fn invalid(cause: &str) -> Refused {
    (
        StatusCode::UNPROCESSABLE_ENTITY,
        "Invalid",
        cause.to_owned(),
    )
}

fn bad_request(cause: &str) -> Refused {
    (StatusCode::BAD_REQUEST, "BadRequest", cause.to_owned())
}

#[cfg(test)]
mod tests;
