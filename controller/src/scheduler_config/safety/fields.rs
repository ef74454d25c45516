//! Fields whose type or value kube-scheduler would not start with.

use serde_json::Value;

use crate::scheduler_config::{
    document,
    refusal::{Reason, Refusal},
    refused,
};

/// The fields that Muster sets or relies on. All others are left to kube-scheduler.
pub(super) fn check(document: &Value) -> Result<(), Refusal> {
    for (field, kind, fits) in [
        (
            "/clientConnection",
            "a mapping",
            Value::is_object as fn(&Value) -> bool,
        ),
        ("/clientConnection/kubeconfig", "a string", Value::is_string),
        ("/clientConnection/qps", "a number", Value::is_number),
        ("/leaderElection", "a mapping", Value::is_object),
        (
            "/leaderElection/leaderElect",
            "true or false",
            Value::is_boolean,
        ),
        ("/leaderElection/resourceName", "a string", Value::is_string),
        (
            "/leaderElection/resourceNamespace",
            "a string",
            Value::is_string,
        ),
    ] {
        let value = document.pointer(field).filter(|value| !value.is_null());
        if value.is_some_and(|value| !fits(value)) {
            let name = field.trim_start_matches('/').replace('/', ".");
            return refused(Reason::InvalidField, format!("{name}: must be {kind}"));
        }
    }
    for (field, least, most) in [
        ("clientConnection.burst", 0, i64::from(i32::MAX)),
        ("parallelism", 1, i64::from(i32::MAX)),
        ("percentageOfNodesToScore", 0, 100),
        ("podInitialBackoffSeconds", 1, i64::MAX),
        ("podMaxBackoffSeconds", 1, i64::MAX),
    ] {
        let pointer = format!("/{}", field.replace('.', "/"));
        whole_number(field, document.pointer(&pointer), least, most)?;
    }
    let seconds = |field: &str, otherwise| document[field].as_i64().unwrap_or(otherwise);
    let (initial, most) = (
        seconds("podInitialBackoffSeconds", 1),
        seconds("podMaxBackoffSeconds", 10),
    );
    if initial > most {
        return refused(
            Reason::InvalidField,
            format!(
                "podInitialBackoffSeconds {initial}, podMaxBackoffSeconds {most}: kube-scheduler demands initial <= max"
            ),
        );
    }
    for field in ["profiles", "extenders"] {
        for (position, item) in document::list(document, field)?.iter().enumerate() {
            if !item.is_object() {
                return refused(
                    Reason::InvalidField,
                    format!("{field}[{position}]: must be a mapping"),
                );
            }
        }
    }
    Ok(())
}

/// A number within these limits, where there is one.
pub(super) fn whole_number(
    field: &str,
    value: Option<&Value>,
    least: i64,
    most: i64,
) -> Result<(), Refusal> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(());
    };
    let within = value
        .as_i64()
        .is_some_and(|number| (least..=most).contains(&number));
    if !within {
        return refused(
            Reason::InvalidField,
            format!("{field} {value}: must be a whole number from {least} to {most}"),
        );
    }
    Ok(())
}
