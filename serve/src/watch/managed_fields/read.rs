//! Reads an object from its text, and of its `managedFields` only what is kept, in one go ([`crate::fields`]).

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::suspension;
use crate::fields::{self, Field, Fields};

/// Where they stand.
const PATH: &[&str] = &["metadata", "managedFields"];
/// How the one thing that is kept of them is written.
const SUSPENSION: &str = "\"f:suspend\"";

/// An object without its `managedFields`, but for what is kept of them. They are as large as the object itself, and to read them takes
/// longer, since nothing of them is known beforehand.
pub(in crate::watch) fn read<K: DeserializeOwned>(text: &str) -> Result<K, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let object = fields::read(&mut deserializer, Above { path: PATH, text })?;
    deserializer.end()?;
    Ok(object)
}

/// What is kept of `managedFields`. Nothing of an object that is not suspended: nobody asks who did it, and a Job's say so all its life.
fn kept(above: Above<'_>, fields: &str) -> Result<Value, serde_json::Error> {
    if !fields.contains(SUSPENSION) || !may_be_suspended(above.text) {
        return Ok(Value::Null);
    }
    // Whoever reads them all finds out what is wrong.
    let kept = suspension(fields);
    serde_json::from_str(kept.as_deref().unwrap_or(fields))
}

/// Whether an object may be suspended, by its text: some field of that name in it is `true`. Nobody who writes JSON
/// writes letters as escapes.
fn may_be_suspended(text: &str) -> bool {
    text.split("\"suspend\"").skip(1).any(|rest| {
        let value = rest.trim_start().strip_prefix(':');
        value.is_some_and(|value| value.trim_start().starts_with("true"))
    })
}

/// What stands above them.
#[derive(Clone, Copy)]
struct Above<'a> {
    /// Their path from there.
    path: &'static [&'static str],
    /// The text of the object.
    text: &'a str,
}

impl Fields for Above<'_> {
    const ARE_OF_LISTS: bool = false;

    fn field(self, name: &str) -> Field<Self> {
        match self.path.split_first() {
            Some((first, [])) if *first == name => Field::Replaced(kept),
            Some((first, path)) if *first == name => Field::Within(Self { path, ..self }),
            _ => Field::Read,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::PartialObjectMeta;
    use serde_json::json;

    use super::*;
    use crate::watch::managed_fields::reduce;

    #[test]
    fn managed_fields_are_not_read_unless_they_say_who_set_the_suspension() {
        let with = |fields: &str| {
            format!(
                r#"{{"kind": "Job", "metadata": {{"name": "ä", "managedFields": {fields}, "uid": "u"}},
                    "spec": {{"managedFields": [7], "suspend": true}}}}"#
            )
        };
        for (fields, expected) in [
            (r#"[{"fieldsV1": {"f:spec": {"f:paused": {}}}}]"#, "null"),
            ("[]", "null"),
            ("null", "null"),
            ("7", "null"),
            (
                r#"[{"manager": "a", "fieldsV1": {"f:spec": {"f:paused": {}, "f:suspend": {}}}, "time": "t"}, {"manager": "b"}]"#,
                r#"[{"fieldsV1":{"f:spec":{"f:suspend":{}}},"manager":"a","time":"t"}]"#,
            ),
            (r#"[{"fieldsV1": {"f:status": {"f:suspend": {}}}}]"#, "[]"),
            // Whoever reads them all finds out what is wrong.
            (
                r#"[{"fieldsV1": {"f:spec": {"f:suspend": 7}}}]"#,
                r#"[{"fieldsV1": {"f:spec": {"f:suspend": 7}}}]"#,
            ),
            (r#"{"f:suspend": {}}"#, r#"{"f:suspend": {}}"#),
        ] {
            let object: Value = read(&with(fields)).unwrap();
            let expected: Value = serde_json::from_str(&with(expected)).unwrap();
            assert_eq!(object, expected, "{fields}");
        }
        for text in [
            r#"{"metadata": {"name": "a"}}"#,
            r#"{"metadata": null}"#,
            r#"{"spec": {}}"#,
            // In any place but theirs they are as any other field.
            r#"{"spec": {"metadata": {"managedFields": 7}}, "metadata": {"a": {"managedFields": [{}]}}}"#,
        ] {
            let object: Value = read(text).unwrap();
            assert_eq!(
                object,
                serde_json::from_str::<Value>(text).unwrap(),
                "{text}"
            );
        }
        // However their name is written.
        let odd: Value = read(r#"{"metadata": {"managed\u0046ields": [{}]}}"#).unwrap();
        assert_eq!(odd, json!({"metadata": {"managedFields": null}}));
    }

    #[test]
    fn of_an_object_that_is_not_suspended_they_are_not_read() {
        let entries = r#"[{"manager": "a", "fieldsV1": {"f:spec": {"f:suspend": {}}}}]"#;
        for (spec, is_kept) in [
            (r#"{"suspend":true}"#, true),
            (r#"{"suspend" : true}"#, true),
            (r#"{"why": "suspend", "suspend": true}"#, true),
            (r#"{"suspend": false}"#, false),
            (r#"{"suspend": null, "resume": true}"#, false),
            (r#"{"suspend": "true"}"#, false),
            (r#"{"why": "suspend"}"#, false),
            ("{}", false),
        ] {
            for text in [
                format!(r#"{{"metadata": {{"managedFields": {entries}}}, "spec": {spec}}}"#),
                format!(r#"{{"spec": {spec}, "metadata": {{"managedFields": {entries}}}}}"#),
            ] {
                let object: PartialObjectMeta = read(&text).unwrap();
                assert_eq!(object.metadata.managed_fields.is_some(), is_kept, "{text}");
            }
        }
    }

    #[test]
    fn what_is_no_object_as_a_whole_is_none() {
        for text in [
            "",
            r#"{"metadata": {"managedFields": [1"#,
            r#"{"metadata": {"managedFields": [1]}"#,
            r#"{"metadata": {}} {}"#,
            r#"{"metadata": 7}"#,
            "[]",
            "7",
        ] {
            assert!(read::<Value>(text).is_err(), "{text}");
        }
    }

    /// What is left of them is read and reduced as all of them would be.
    #[test]
    fn what_is_kept_without_reading_the_rest_is_what_is_kept_of_all() {
        let entries = json!([
            {"manager": "kubectl", "operation": "Update", "apiVersion": "batch/v1", "time": "2027-01-01T00:00:00Z",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:suspend": {}, "f:completions": {}}}},
            {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status",
                "fieldsV1": {"f:status": {"f:active": {}}}},
            {"manager": "other", "operation": "Apply", "subresource": "x",
                "fieldsV1": {"f:metadata": {"f:labels": {"f:f:suspend": {}}}, "f:spec": {"f:suspend": {}}}},
        ]);
        let text =
            json!({"metadata": {"name": "a", "managedFields": entries}, "spec": {"suspend": true}});
        let text = text.to_string();
        let mut all: PartialObjectMeta = serde_json::from_str(&text).unwrap();
        reduce(&mut all.metadata);
        let mut some: PartialObjectMeta = read(&text).unwrap();
        assert_eq!(some.metadata.managed_fields.as_ref().map(Vec::len), Some(2));
        reduce(&mut some.metadata);
        assert_eq!(some.metadata, all.metadata);
    }
}
