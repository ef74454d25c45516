//! What a claim may say to the driver: the parameters of `spec.devices.config[].opaque`.

use serde::{Deserialize, Serialize};

/// The `apiVersion` of [`DeviceConfig`].
pub const API_VERSION: &str = "gpu.muster.dev/v1alpha1";
/// The `kind` of [`DeviceConfig`].
pub const KIND: &str = "DeviceConfig";

/// Parameters for the driver, in a claim or a DeviceClass. There is nothing to choose yet: a device is the claim's alone. A
/// field that is not listed here is refused, at the creation of the claim and by the driver, so that what is not done is never taken
/// for done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceConfig {
    /// [`API_VERSION`].
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
}

impl DeviceConfig {
    /// Its fields, as they are written.
    pub const FIELDS: [&'static str; 2] = ["apiVersion", "kind"];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_listed() {
        let config = DeviceConfig {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
        };
        let written = serde_json::to_value(config).unwrap();
        let fields: Vec<&String> = written.as_object().unwrap().keys().collect();
        assert_eq!(fields, DeviceConfig::FIELDS.iter().collect::<Vec<_>>());
    }
}
