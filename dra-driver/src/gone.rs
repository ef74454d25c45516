//! When an answer proves that an object does not exist.
//!
//! A 404 alone proves nothing. A proxy or load balancer answers it for an address that it does not know; the API server
//! itself, in plain text, for a group, version or kind that it does not serve (yet, or at the moment); and a gateway may
//! wrap either into a `Status` of its own. Taken for "the object is gone", it would have a device of a running pod given
//! back.
//!
//! The API server says it of one object by `NewNotFound` (`k8s.io/apimachinery/pkg/api/errors`), which its storage calls
//! for a key that is not there (`InterpretGetError` in `k8s.io/apiserver/pkg/storage/errors`), for custom resources, too:
//! code 404, reason `NotFound`, and details with the name of the object, the group, and as `kind` the plural of the
//! resource. `NewGenericServerResponse`, by which Go clients describe an answer that is no `Status`, names the object as
//! well, and gives the cause `UnexpectedServerResponse`.

use kube::{Resource, core::response::reason};
use muster_serve::client::CallError;

/// Cause of an error that some client made of an answer that it did not understand.
const UNEXPECTED: &str = "UnexpectedServerResponse";

/// Whether the API server says that there is no `K` of this name. Everything else that is no success leaves open whether
/// there is one.
pub(crate) fn is_gone<K: Resource<DynamicType = ()>>(error: &CallError, name: &str) -> bool {
    let CallError::Api(error) = error else {
        return false;
    };
    let kube::Error::Api(status) = error.as_ref() else {
        return false;
    };
    let says_so = status.code == 404 && status.reason == reason::NOT_FOUND;
    says_so
        && status.details.as_ref().is_some_and(|details| {
            let unexpected = details.causes.iter().any(|it| it.reason == UNEXPECTED);
            details.name == name
                && details.group == K::group(&())
                && details.kind == K::plural(&())
                && !unexpected
        })
}
