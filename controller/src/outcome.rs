//! What an answer of the API server means to the protocol.
//!
//! The machine acts on the difference between "not done" and "not known", so it is decided here, once, and in
//! doubt it is "not known": [`Outcome::Unknown`] is repeated word by word, and every write is made so that this
//! is safe. (429 is such a doubt only in name: nothing was done, and repeating is what it asks for.)

use kube::core::Status;
use muster_protocol::Outcome;
use muster_serve::client::CallError;

/// The answer to a JSON patch one of whose operations, a test above all, failed. Kubernetes 1.37.1,
/// `endpoints/handlers/patch.go` with `NewGenericServerResponse`: 422 with this message and nothing of what
/// failed; a patched object that is invalid has the object's name in its message instead.
const PATCH_FAILED: &str = "the server rejected our request due to an error in our request";

/// What etcd, and the API server's client of it, say of an object that is larger than they take. kube-apiserver 1.37.1 knows neither of
/// them, and answers 500; nothing was stored, and repeated word by word it is as large.
const TOO_LARGE: [&str; 2] = [
    "etcdserver: request is too large",
    "trying to send message larger than max",
];

/// The outcome of a call that failed.
pub fn of_failure(error: &CallError) -> Outcome {
    match error {
        CallError::Api(error) => match error.as_ref() {
            kube::Error::Api(status) => of_status(status),
            // It never left the process, and never will.
            kube::Error::BuildRequest(error) => Outcome::Refused(error.to_string()),
            _ => Outcome::Unknown,
        },
        CallError::Timeout(_) => Outcome::Unknown,
    }
}

fn of_status(status: &Status) -> Outcome {
    match status.code {
        409 => Outcome::Conflict,
        422 if status.message == PATCH_FAILED => Outcome::Conflict,
        404 => Outcome::NotFound,
        400 | 403 | 405 | 413 | 415 | 422 => Outcome::Refused(status.message.clone()),
        500 if TOO_LARGE.iter().any(|says| status.message.contains(says)) => {
            Outcome::Refused(status.message.clone())
        }
        _ => Outcome::Unknown,
    }
}

/// One word for a metric's label.
pub fn label(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Done(_) => "done",
        Outcome::Conflict => "conflict",
        Outcome::NotFound => "not-found",
        Outcome::Refused(_) => "refused",
        Outcome::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn answered(code: u16, message: &str) -> CallError {
        let status = Status {
            code,
            message: message.to_owned(),
            ..Status::default()
        };
        CallError::Api(Box::new(kube::Error::Api(Box::new(status))))
    }

    #[test]
    fn every_answer_has_one_meaning() {
        let invalid = "Pod \"a\" is invalid: spec: Forbidden: pod updates may not change fields";
        for (error, meaning) in [
            (answered(409, "the object has been modified"), "conflict"),
            (
                answered(409, "gangs.muster.dev \"a\" already exists"),
                "conflict",
            ),
            (answered(422, PATCH_FAILED), "conflict"),
            (answered(422, invalid), "refused"),
            (answered(404, "pods \"a\" not found"), "not-found"),
            (answered(400, "bad request"), "refused"),
            (answered(403, "policy (b) denied the request"), "refused"),
            (answered(401, "Unauthorized"), "unknown"),
            (answered(429, "too many requests"), "unknown"),
            (answered(500, "etcdserver: request timed out"), "unknown"),
            (answered(500, "etcdserver: request is too large"), "refused"),
            (
                answered(
                    500,
                    "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2097183 vs. 2097152)",
                ),
                "refused",
            ),
            (answered(503, "apiserver is shutting down"), "unknown"),
            (answered(504, "request did not complete in time"), "unknown"),
            (CallError::Timeout(Duration::from_secs(10)), "unknown"),
            (
                CallError::Api(Box::new(kube::Error::Service("connection reset".into()))),
                "unknown",
            ),
        ] {
            assert_eq!(label(&of_failure(&error)), meaning, "{error}");
        }
    }

    #[test]
    fn a_refusal_keeps_the_answer() {
        let outcome = of_failure(&answered(403, "denied by a policy"));
        assert!(matches!(outcome, Outcome::Refused(answer) if answer == "denied by a policy"));
    }
}
