//! What is wrong with an object, and how it is said.

use kube::core::{
    Status,
    admission::AdmissionResponse,
    response::{StatusCause, StatusDetails, StatusSummary},
};
use muster_api::Reason;
use muster_cluster::text;
pub use muster_cluster::text::listed;

/// Longest message, in bytes. Longer ones are cut; the causes stay whole.
const MESSAGE_BYTES: usize = 1024;

/// One thing that is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The stable reason.
    pub reason: Reason,
    /// Path of the field: `metadata.annotations[muster.dev/gang-size]`.
    pub field: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// Everything that was found in one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What it is refused for; allowed if empty.
    pub errors: Vec<Finding>,
    /// What the user should know though it is allowed.
    pub warnings: Vec<String>,
}

impl Findings {
    /// Adds an error.
    pub fn error(&mut self, reason: Reason, field: impl Into<String>, message: impl Into<String>) {
        self.errors.push(Finding {
            reason,
            field: field.into(),
            message: message.into(),
        });
    }

    /// Adds a warning; at most 256 bytes are shown by clients.
    pub fn warn(&mut self, message: impl Into<String>) {
        self.warnings.push(message.into());
    }

    /// Puts the findings into the answer.
    #[must_use]
    pub fn answer(self, mut response: AdmissionResponse) -> AdmissionResponse {
        if !self.warnings.is_empty() {
            response.warnings = Some(self.warnings);
        }
        if let Some(first) = self.errors.first() {
            response.allowed = false;
            response.result = status(first.reason, &self.errors);
        }
        response
    }
}

/// `deny` of kube sets only the message; clients and tests go by code, reason and causes.
fn status(reason: Reason, errors: &[Finding]) -> Status {
    let mut message = errors
        .iter()
        .map(|finding| {
            format!(
                "{}: {} ({})",
                finding.field, finding.message, finding.reason
            )
        })
        .collect::<Vec<_>>()
        .join("; ");
    text::truncate(&mut message, MESSAGE_BYTES);
    let causes = errors.iter().map(|finding| StatusCause {
        reason: finding.reason.to_string(),
        message: finding.message.clone(),
        field: finding.field.clone(),
    });
    Status {
        status: Some(StatusSummary::Failure),
        message,
        reason: reason.to_string(),
        details: Some(StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: causes.collect(),
            retry_after_seconds: 0,
        }),
        code: match reason {
            Reason::NotPermitted => 403,
            _ => 422,
        },
        ..Status::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_carries_code_reason_and_the_path_of_every_field() {
        let mut findings = Findings::default();
        findings.error(
            Reason::NotPermitted,
            "metadata.annotations[muster.dev/rank]",
            "only the controller writes it",
        );
        findings.error(Reason::InvalidValue, "spec.nodeName", "must be empty");
        let answer = findings.answer(AdmissionResponse::invalid(""));
        assert!(!answer.allowed);
        assert_eq!(
            (answer.result.code, answer.result.reason.as_str()),
            (403, "NotPermitted")
        );
        let causes = answer.result.details.unwrap().causes;
        assert_eq!(causes[1].field, "spec.nodeName");
        assert_eq!(causes[1].reason, "InvalidValue");
        assert!(
            answer
                .result
                .message
                .contains("spec.nodeName: must be empty (InvalidValue)")
        );
    }

    #[test]
    fn a_message_has_at_most_1024_bytes_and_its_causes_are_whole() {
        let mut findings = Findings::default();
        for _ in 0..10 {
            findings.error(Reason::InvalidValue, "spec", "ä".repeat(300));
        }
        let result = findings.answer(AdmissionResponse::invalid("")).result;
        assert!(result.message.len() <= 1024, "{}", result.message.len());
        assert!(result.message.ends_with('…'));
        let causes = result.details.unwrap().causes;
        assert!(causes.iter().all(|cause| cause.message.len() == 600));
    }
}
