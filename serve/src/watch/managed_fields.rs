//! What is kept of an object's `managedFields`: they are large, and only one thing in them is asked for.

use std::{borrow::Cow, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ObjectMeta};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{json, value::RawValue};

/// How the one thing that is asked for is written.
const SUSPENSION: &str = "\"f:suspend\"";

/// The text of an object without its `managedFields`, but for what is kept of them. They are as large as the object
/// itself, and to read them takes longer, since nothing of them is known beforehand.
pub(super) fn left_out(object: &str) -> Cow<'_, str> {
    let Some(fields) = find(object) else {
        return Cow::Borrowed(object);
    };
    let kept = if fields.contains(SUSPENSION) {
        suspension(fields)
    } else {
        Some("null".to_owned())
    };
    let Some(kept) = kept else {
        return Cow::Borrowed(object);
    };
    // They are a part of the object's text, so this is where they stand there.
    let start = fields.as_ptr().addr() - object.as_ptr().addr();
    let (before, after) = (&object[..start], &object[start + fields.len()..]);
    Cow::Owned([before, &kept, after].concat())
}

/// What is kept of `managedFields` that may say who set `spec.suspend`, as text: a Job's always do, since that field has a default.
/// All else is passed over. `None`: they are not as they should be.
fn suspension(fields: &str) -> Option<String> {
    #[derive(Deserialize, Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Entry<'a> {
        #[serde(borrow, skip_serializing_if = "Option::is_none")]
        api_version: Option<&'a RawValue>,
        #[serde(borrow, skip_serializing_if = "Option::is_none")]
        fields_type: Option<&'a RawValue>,
        #[serde(rename = "fieldsV1")]
        fields: Option<Fields>,
        #[serde(borrow, skip_serializing_if = "Option::is_none")]
        manager: Option<&'a RawValue>,
        #[serde(borrow, skip_serializing_if = "Option::is_none")]
        operation: Option<&'a RawValue>,
        #[serde(borrow, skip_serializing_if = "Option::is_none")]
        subresource: Option<&'a RawValue>,
        #[serde(borrow, skip_serializing_if = "Option::is_none")]
        time: Option<&'a RawValue>,
    }

    #[derive(Deserialize, Serialize)]
    struct Fields {
        #[serde(rename = "f:spec")]
        spec: Option<Spec>,
    }

    #[derive(Deserialize, Serialize)]
    struct Spec {
        #[serde(rename = "f:suspend")]
        suspend: Option<Suspend>,
    }

    #[derive(Deserialize, Serialize)]
    struct Suspend {}

    let mut entries: Vec<Entry<'_>> = serde_json::from_str(fields).ok()?;
    entries.retain(|entry| {
        let spec = entry.fields.as_ref().and_then(|it| it.spec.as_ref());
        spec.is_some_and(|spec| spec.suspend.is_some())
    });
    serde_json::to_string(&entries).ok()
}

/// The text of an object's `managedFields`, within its own. What stands behind them is not looked at: the API server writes the
/// metadata before all else that is large, so that is most of the object.
fn find(object: &str) -> Option<&str> {
    let mut found = None;
    let search = Search {
        path: &["metadata", "managedFields"],
        found: &mut found,
    };
    // Ends with an error where it finds what it looks for, since there is no other way not to read on.
    let _ = search.deserialize(&mut serde_json::Deserializer::from_str(object));
    found
}

/// Looks for the text of a field.
struct Search<'found, 'text> {
    /// Which one, from here.
    path: &'static [&'static str],
    found: &'found mut Option<&'text str>,
}

impl<'text> DeserializeSeed<'text> for Search<'_, 'text> {
    type Value = ();

    fn deserialize<D: Deserializer<'text>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.path.is_empty() {
            *self.found = Some(<&RawValue>::deserialize(deserializer)?.get());
            return Err(D::Error::custom("found"));
        }
        deserializer.deserialize_map(self)
    }
}

impl<'text> Visitor<'text> for Search<'_, 'text> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'text>>(self, mut fields: A) -> Result<(), A::Error> {
        let Some((name, path)) = self.path.split_first() else {
            return Ok(());
        };
        while let Some(is_it) = fields.next_key_seed(Is(name))? {
            if is_it {
                let found = &mut *self.found;
                fields.next_value_seed(Search { path, found })?;
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Whether a name is this one.
struct Is(&'static str);

impl<'text> DeserializeSeed<'text> for Is {
    type Value = bool;

    fn deserialize<D: Deserializer<'text>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Is {
    type Value = bool;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
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
            assert_eq!(left_out(&with(fields)), with(expected), "{fields}");
        }
        for object in [
            r#"{"metadata": {"name": "a"}}"#,
            r#"{"metadata": null}"#,
            r#"{"spec": {}}"#,
            "[]",
            "7",
            "",
            r#"{"metadata": {"managedFields": [1"#,
        ] {
            assert_eq!(left_out(object), object);
        }
    }

    /// They end what is read: an object that is cut off behind them is left to whoever reads it whole.
    #[test]
    fn what_stands_behind_managed_fields_is_not_looked_at() {
        for (object, expected) in [
            (
                r#"{"metadata": {"managedFields": [{}], "uid": "u"}, "spec": {"#,
                r#"{"metadata": {"managedFields": null, "uid": "u"}, "spec": {"#,
            ),
            (
                r#"{"metadata": {"managedFields": [{}]}, "metadata": {"managedFields": [7]}}"#,
                r#"{"metadata": {"managedFields": null}, "metadata": {"managedFields": [7]}}"#,
            ),
            // In any order, and however its name is written.
            (
                r#"{"spec": {"metadata": {"managedFields": 7}}, "metadata": {"a": [{}], "managed\u0046ields": [{}]}}"#,
                r#"{"spec": {"metadata": {"managedFields": 7}}, "metadata": {"a": [{}], "managed\u0046ields": null}}"#,
            ),
        ] {
            assert_eq!(left_out(object), expected);
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
        let object = json!({"metadata": {"name": "a", "managedFields": entries}}).to_string();
        let read = |text: &str| {
            let mut object: kube::core::PartialObjectMeta = serde_json::from_str(text).unwrap();
            reduce(&mut object.metadata);
            object.metadata
        };
        let left = left_out(&object);
        assert!(left.len() < object.len(), "{left}");
        assert_eq!(read(&left), read(&object));
        assert_eq!(read(&left).managed_fields.map(|kept| kept.len()), Some(2));
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
