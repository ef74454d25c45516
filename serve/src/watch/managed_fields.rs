//! What is kept of an object's `managedFields`: they are large, and only one thing in them is asked for.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ObjectMeta};
use serde_json::json;

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
