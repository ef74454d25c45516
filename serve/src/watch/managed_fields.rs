//! What is kept of an object's `managedFields`: they are large, and only one thing in them is asked for.

mod read;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};

pub(super) use read::read;

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
