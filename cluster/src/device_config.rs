//! What claims say to the driver by `spec.devices.config`, read strictly.
//!
//! The webhook reads it when a claim is created, and says what is wrong to whoever wrote it; the driver reads it again before it
//! prepares anything, since a claim may have been made while the webhook was down. Both call this.

use k8s_openapi::api::resource::v1::{DeviceClaimConfiguration, OpaqueDeviceConfiguration};
use muster_api::{
    device_config::{API_VERSION, DeviceConfig, KIND},
    keys,
};
use serde_json::Value;

use crate::text::{listed, quoted};

/// Most bytes of parameters, as JSON: what Kubernetes takes (`OpaqueParametersMaxLength`).
pub const MOST_BYTES: usize = 10 * 1024;
/// Most fields that are named as unknown.
const NAMED_FIELDS: usize = 8;

/// A part of the parameters that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidConfig {
    /// Path of the field.
    pub field: String,
    /// What is wrong with it, and what would work.
    pub why: String,
}

/// All that is wrong with what a claim says to our driver; nothing with what it says to others. `path` is where the list is:
/// `spec.devices.config`.
pub fn check_all(config: &[DeviceClaimConfiguration], path: &str) -> Vec<InvalidConfig> {
    let ours = config.iter().enumerate().filter_map(|(index, one)| {
        let opaque = one.opaque.as_ref()?;
        Some((
            format!("{path}[{index}].opaque.parameters"),
            of_ours(opaque)?,
        ))
    });
    let read = ours.map(|(field, parameters)| read(parameters, &field));
    read.filter_map(Result::err).flatten().collect()
}

/// The parameters, if they are for our driver.
pub fn of_ours(opaque: &OpaqueDeviceConfiguration) -> Option<&Value> {
    (opaque.driver == keys::DRIVER).then_some(&opaque.parameters.0)
}

/// Reads parameters for our driver. `field` is where they are. Else all that is wrong, a few at most.
pub fn read(parameters: &Value, field: &str) -> Result<DeviceConfig, Vec<InvalidConfig>> {
    let invalid = |field: String, why: String| InvalidConfig { field, why };
    // The API server measures the text as it came, spaces included.
    let bytes = serde_json::to_vec(parameters).map_or(usize::MAX, |text| text.len());
    if bytes > MOST_BYTES {
        let why = format!("has {bytes} bytes; parameters have at most {MOST_BYTES}");
        return Err(vec![invalid(field.to_owned(), why)]);
    }
    let Value::Object(fields) = parameters else {
        let why = format!("must be an object with apiVersion {API_VERSION} and kind {KIND}");
        return Err(vec![invalid(field.to_owned(), why)]);
    };
    let mut errors = Vec::new();
    for (name, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let given = fields.get(name);
        if given.and_then(Value::as_str) != Some(expected) {
            let given = given.map_or_else(|| "is missing".to_owned(), shown);
            let why = format!("{given}: must be {expected:?}");
            errors.push(invalid(format!("{field}.{name}"), why));
        }
    }
    let unknown = fields
        .keys()
        .filter(|name| !DeviceConfig::FIELDS.contains(&name.as_str()));
    errors.extend(unknown.take(NAMED_FIELDS).map(|name| {
        let known = listed(DeviceConfig::FIELDS);
        let why = format!("is no field of {KIND}, which has {known}: leave it out");
        invalid(format!("{field}.{}", key(name)), why)
    }));
    if !errors.is_empty() {
        return Err(errors);
    }
    serde_json::from_value(parameters.clone())
        .map_err(|error| vec![invalid(field.to_owned(), error.to_string())])
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        other => quoted(&other.to_string()),
    }
}

/// A name as it may stand in a path: anybody may have written it.
fn key(name: &str) -> String {
    let is_plain = name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_plain {
        name.to_owned()
    } else {
        quoted(name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const FIELD: &str = "spec.devices.config[0].opaque.parameters";

    fn good() -> Value {
        json!({"apiVersion": API_VERSION, "kind": KIND})
    }

    fn with(name: &str, value: Value) -> Value {
        let mut parameters = good();
        parameters[name] = value;
        parameters
    }

    #[test]
    fn what_is_known_is_read_and_all_else_is_refused_by_its_path() {
        assert_eq!(read(&good(), FIELD).unwrap().kind, KIND);
        for (parameters, fields, says) in [
            (json!({}), vec![".apiVersion", ".kind"], "is missing"),
            (json!(null), vec![""], "must be an object"),
            (json!([good()]), vec![""], "must be an object"),
            (json!("x"), vec![""], "must be an object"),
            (
                with("apiVersion", json!("gpu.muster.dev/v2")),
                vec![".apiVersion"],
                "\"gpu.muster.dev/v2\": must be \"gpu.muster.dev/v1alpha1\"",
            ),
            (with("kind", json!(7)), vec![".kind"], "\"7\": must be"),
            (with("Kind", json!(KIND)), vec![".Kind"], "is no field"),
            (
                with("sharing", json!({"strategy": "MPS"})),
                vec![".sharing"],
                "is no field of DeviceConfig, which has apiVersion, kind",
            ),
            (
                with("../../etc", json!(1)),
                vec![".\"../../etc\""],
                "is no field",
            ),
        ] {
            let errors = read(&parameters, FIELD).unwrap_err();
            let found: Vec<&str> = errors
                .iter()
                .map(|error| error.field.strip_prefix(FIELD).unwrap())
                .collect();
            assert_eq!(found, fields, "{parameters}");
            assert!(errors[0].why.contains(says), "{errors:?}");
        }
    }

    #[test]
    fn parameters_may_have_ten_kibibytes_and_not_one_more() {
        let sized = |bytes: usize| {
            let empty = with("x", json!("")).to_string().len();
            let parameters = with("x", json!("y".repeat(bytes - empty)));
            assert_eq!(parameters.to_string().len(), bytes);
            read(&parameters, FIELD).unwrap_err().remove(0)
        };
        // At the limit it is read, and its field is unknown.
        assert_eq!(sized(MOST_BYTES).field, format!("{FIELD}.x"));
        let above = sized(MOST_BYTES + 1);
        assert_eq!(above.field, FIELD);
        assert!(above.why.contains("at most 10240"), "{above}");
    }

    #[test]
    fn what_is_said_to_other_drivers_is_their_business() {
        let of = |driver: &str, parameters: Value| {
            let config = json!({"opaque": {"driver": driver, "parameters": parameters}});
            serde_json::from_value::<DeviceClaimConfiguration>(config).unwrap()
        };
        let config = [
            of("gpu.example.com", json!({"sharing": 1})),
            DeviceClaimConfiguration::default(),
            of("gpu.muster.dev", with("sharing", json!(1))),
            of("gpu.muster.dev", good()),
        ];
        let found = check_all(&config, "spec.devices.config");
        assert_eq!(found.len(), 1, "{found:?}");
        let field = "spec.devices.config[2].opaque.parameters.sharing";
        assert_eq!(found[0].field, field);
    }

    proptest! {
        /// Whatever fields there are: no panic, a few errors, each short.
        #[test]
        fn no_parameters_panic(fields in prop::collection::btree_map(".{0,80}", ".{0,80}", 0..40)) {
            let parameters = serde_json::to_value(&fields).unwrap();
            let errors = read(&parameters, FIELD).unwrap_err();
            prop_assert!((1..=NAMED_FIELDS + 2).contains(&errors.len()));
            for error in errors {
                prop_assert!(error.field.len() + error.why.len() < 1_000);
            }
        }
    }
}
