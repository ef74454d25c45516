//! A field of a request that cannot be evaluated: never a guess.

use std::fmt;

use muster_api::Reason;

use crate::{formed::PendingReason, quantity::QuantityError};

/// A field that is not understood, and why. The gang waits with `RequestNotUnderstood`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedField {
    /// Path of the field, from the root of the object that carries it.
    pub field: String,
    /// Why, and what would work instead.
    pub why: String,
}

impl UnsupportedField {
    /// A field and why it is not understood.
    pub fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            why: why.into(),
        }
    }

    /// The same, with the object that carries the field in front (`pod w-0`).
    pub fn wait(&self, object: &str) -> PendingReason {
        PendingReason {
            reason: Reason::RequestNotUnderstood,
            details: format!("{object}: {self}"),
        }
    }
}

impl fmt::Display for UnsupportedField {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.field, self.why)
    }
}

impl From<QuantityError> for UnsupportedField {
    fn from(error: QuantityError) -> Self {
        Self {
            why: format!("{:?} {}", error.text, error.cause),
            field: error.field,
        }
    }
}
