//! What is kept of an object's `managedFields`: they are large, and only one thing in them is asked for.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ObjectMeta};
use serde::Deserialize;
use serde_json::{json, value::RawValue};

/// How the one thing that is asked for is written.
const SUSPENSION: &str = "\"f:suspend\"";

/// The text of an object without its `managedFields`, where nothing of them would be kept. They are as large as the object
/// itself, and to read them takes longer, since nothing of them is known beforehand.
pub(super) fn left_out(object: &str) -> Cow<'_, str> {
    match find(object) {
        Some(fields) if !fields.contains(SUSPENSION) => {
            // It is a part of the object's text, so this is where it stands there.
            let start = fields.as_ptr().addr() - object.as_ptr().addr();
            let (before, after) = (&object[..start], &object[start + fields.len()..]);
            Cow::Owned([before, "null", after].concat())
        }
        _ => Cow::Borrowed(object),
    }
}

/// The text of an object's `managedFields`, within its own.
fn find(object: &str) -> Option<&str> {
    #[derive(Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        metadata: Metadata<'a>,
    }

    #[derive(Deserialize)]
    struct Metadata<'a> {
        #[serde(borrow, rename = "managedFields")]
        managed_fields: &'a RawValue,
    }

    let found: Object<'_> = serde_json::from_str(object).ok()?;
    Some(found.metadata.managed_fields.get())
}

/// Keeps who set `spec.suspend`, and drops the rest. Whether a suspension is somebody's own cannot be told from the field, which
/// two may have set to the same value.
pub fn reduce(metadata: &mut ObjectMeta) {
    let Some(entries) = &mut metadata.managed_fields else {
        return;
    };
    entries.retain_mut(|entry| {
        let fields = entry.fields_v1.as_ref();
        let sets = fields.is_some_and(|it| it.0.pointer("/f:spec/f:suspend").is_some());
        if sets {
            entry.fields_v1 = Some(FieldsV1(json!({"f:spec": {"f:suspend": {}}})));
        }
        sets
    });
    if entries.is_empty() {
        metadata.managed_fields = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_fields_are_not_read_unless_they_say_who_set_the_suspension() {
        let with = |fields: &str| {
            format!(
                r#"{{"kind": "Job", "metadata": {{"name": "ä", "managedFields": {fields}, "uid": "u"}},
                    "spec": {{"managedFields": [7]}}}}"#
            )
        };
        for (fields, expected) in [
            (r#"[{"fieldsV1": {"f:spec": {"f:paused": {}}}}]"#, "null"),
            ("[]", "null"),
            ("null", "null"),
            ("7", "null"),
            (
                r#"[{"fieldsV1": {"f:spec": {"f:suspend": {}}}}]"#,
                r#"[{"fieldsV1": {"f:spec": {"f:suspend": {}}}}]"#,
            ),
        ] {
            assert_eq!(left_out(&with(fields)), with(expected), "{fields}");
        }
        for object in [
            r#"{"metadata": {"name": "a"}}"#,
            r#"{"metadata": null}"#,
            r#"{"spec": {}}"#,
            "[]",
            "7",
            "",
            r#"{"metadata": {"managedFields": [], "managedFields": [1]}}"#,
        ] {
            assert_eq!(left_out(object), object);
        }
    }

    #[test]
    fn of_managed_fields_only_who_set_the_suspension_is_kept() {
        let entry = |manager: &str, fields| json!({"manager": manager, "operation": "Update", "fieldsV1": fields});
        let mut metadata: ObjectMeta = serde_json::from_value(json!({"managedFields": [
            entry("kubectl", json!({"f:spec": {"f:parallelism": {}, "f:suspend": {}}})),
            entry("other", json!({"f:spec": {"f:template": {"f:suspend": {}}}})),
            {"manager": "none"},
        ]}))
        .unwrap();
        reduce(&mut metadata);
        let kept = json!([entry("kubectl", json!({"f:spec": {"f:suspend": {}}}))]);
        assert_eq!(
            serde_json::to_value(&metadata.managed_fields).unwrap(),
            kept
        );
        metadata.managed_fields.as_mut().unwrap()[0].fields_v1 = None;
        reduce(&mut metadata);
        assert_eq!(metadata.managed_fields, None);
    }
}
