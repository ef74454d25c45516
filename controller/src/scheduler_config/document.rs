//! A KubeSchedulerConfiguration as a file: read strictly, kept whole, written plainly.
//!
//! Scalars mean here what they mean to kube-scheduler, whose YAML is of version 1.1: `yes` is true and `010` is eight. Otherwise
//! a file that worked would come out with other values than it had. Comments and the order of keys are lost.

use serde_json::{Map, Value, json};

use super::{
    refusal::{Reason, Refusal},
    refused,
};

/// Largest file that is read.
pub const LARGEST_BYTES: usize = 1 << 20;

/// The one version that is known.
pub const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
/// The one kind that is known.
pub const KIND: &str = "KubeSchedulerConfiguration";

/// A configuration that says nothing.
pub fn empty() -> Value {
    json!({"apiVersion": API_VERSION, "kind": KIND})
}

/// Reads the file of `--merge`.
pub fn read(text: &[u8]) -> Result<Value, Refusal> {
    read_from("--merge", text)
}

/// Reads a file; a refusal names the flag that it came by.
pub fn read_from(flag: &str, text: &[u8]) -> Result<Value, Refusal> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Refusal::new(Reason::InvalidFile, format!("{flag}: {error}"))
    };
    if text.len() > LARGEST_BYTES {
        let error = format!("the file has more than {LARGEST_BYTES} bytes");
        return Err(unreadable(&error));
    }
    let text = std::str::from_utf8(text).map_err(|error| unreadable(&error))?;
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    };
    let document: Value =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| unreadable(&error))?;
    check_version(flag, &document)?;
    Ok(document)
}

fn check_version(flag: &str, document: &Value) -> Result<(), Refusal> {
    let found = |field: &str| document[field].as_str().unwrap_or("(none)").to_owned();
    if document["apiVersion"] != API_VERSION || document["kind"] != KIND {
        return refused(
            Reason::UnknownVersion,
            format!(
                "{flag}: apiVersion {}, kind {}: only {API_VERSION}, {KIND} is understood; `kube-scheduler --config FILE \
                 --write-config-to NEW` of a version that reads the file writes it anew",
                found("apiVersion"),
                found("kind")
            ),
        );
    }
    Ok(())
}

/// As YAML; one line per certificate, since what is pasted elsewhere should not depend on how YAML folds lines.
pub fn write(document: &Value) -> Result<String, Refusal> {
    let style = serde_saphyr::ser_options! {
        prefer_block_scalars: false,
        compact_list_indent: false,
    };
    let text = serde_saphyr::to_string_with_options(document, style)
        .map_err(|error| Refusal::new(Reason::InvalidFile, error.to_string()))?;
    // Whatever could be written in another way than it was read would be found by kube-scheduler only as it starts.
    match read(text.as_bytes()) {
        Ok(again) if again == *document => Ok(text),
        _ => refused(
            Reason::InvalidFile,
            "--merge: the file holds values that cannot be written as they were read; quote them",
        ),
    }
}

/// The mapping at a field, made where there is none.
pub fn mapping<'a>(
    document: &'a mut Value,
    field: &str,
) -> Result<&'a mut Map<String, Value>, Refusal> {
    let value = &mut document[field];
    if value.is_null() {
        *value = json!({});
    }
    let wrong = format!("{field}: must be a mapping");
    value
        .as_object_mut()
        .ok_or_else(|| Refusal::new(Reason::InvalidField, wrong))
}

/// The list at a field; an empty one where there is none.
pub fn list<'a>(document: &'a Value, field: &str) -> Result<&'a [Value], Refusal> {
    match &document[field] {
        Value::Null => Ok(&[]),
        Value::Array(list) => Ok(list),
        _ => refused(Reason::InvalidField, format!("{field}: must be a list")),
    }
}

/// Sets a field that is not there, is null, or is empty: kube-scheduler takes an empty text for one that is not there.
pub fn set_absent(map: &mut Map<String, Value>, field: &str, value: Value) {
    let entry = map.entry(field).or_insert(Value::Null);
    if entry.is_null() || entry.as_str() == Some("") {
        *entry = value;
    }
}
