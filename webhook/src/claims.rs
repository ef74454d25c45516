//! ResourceClaims and ResourceClaimTemplates: what they say to our driver, and what is remembered of them.

use std::marker::PhantomData;

use k8s_openapi::{
    api::resource::v1::{
        ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate, ResourceClaimTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;
use muster_api::{Reason, keys};
use muster_cluster::{device_config, shorthand::MemoryDeclaration};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use crate::finding::Findings;

/// A kind with the spec of a claim in it.
pub trait Claiming {
    /// That spec, and where it is in the object.
    fn claim_spec(&self) -> (&'static str, Option<&ResourceClaimSpec>);
}

impl Claiming for ResourceClaim {
    fn claim_spec(&self) -> (&'static str, Option<&ResourceClaimSpec>) {
        ("spec", self.spec.as_ref())
    }
}

impl Claiming for ResourceClaimTemplate {
    fn claim_spec(&self) -> (&'static str, Option<&ResourceClaimSpec>) {
        let spec = self.spec.as_ref();
        let spec = spec.and_then(|spec: &ResourceClaimTemplateSpec| spec.spec.as_ref());
        ("spec.spec", spec)
    }
}

/// Checks a claim or a template that is being created: its parameters for our driver. The driver reads them again, by the same
/// function, so what this never saw is refused there.
pub fn check(object: &impl Claiming) -> Findings {
    let (path, spec) = object.claim_spec();
    let devices = spec.and_then(|spec| spec.devices.as_ref());
    let config = devices.and_then(|devices| devices.config.as_deref());
    let path = format!("{path}.devices.config");
    let mut findings = Findings::default();
    for error in device_config::check_all(config.unwrap_or_default(), &path) {
        findings.error(Reason::InvalidValue, error.field, error.why);
    }
    findings
}

/// Of a claim or a template what is remembered: there are as many claims as pods, and a list of them is held whole.
#[derive(Clone, Debug)]
pub struct Asked<K> {
    /// Its name, namespace, UID and version.
    pub metadata: ObjectMeta,
    /// What it does not say about memory. One that was made from a template leaves that to the template.
    pub memory: MemoryDeclaration,
    kind: PhantomData<fn() -> K>,
}

impl<'de, K: Claiming + Resource + DeserializeOwned> Deserialize<'de> for Asked<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = K::deserialize(deserializer)?;
        let metadata = object.meta();
        let annotations = metadata.annotations.as_ref();
        let is_made =
            annotations.is_some_and(|annotations| annotations.contains_key(keys::POD_CLAIM_NAME));
        let (_, spec) = object.claim_spec();
        let spec = spec.filter(|_| !is_made);
        Ok(Self {
            metadata: ObjectMeta {
                name: metadata.name.clone(),
                namespace: metadata.namespace.clone(),
                uid: metadata.uid.clone(),
                resource_version: metadata.resource_version.clone(),
                ..ObjectMeta::default()
            },
            memory: spec.map(MemoryDeclaration::of).unwrap_or_default(),
            kind: PhantomData,
        })
    }
}

muster_serve::of_kind!(Asked<K>, |asked| &asked.metadata, &mut asked.metadata);

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config(driver: &str, parameters: &Value) -> Value {
        json!({"devices": {"config": [{"opaque": {"driver": driver, "parameters": parameters}}]}})
    }

    #[test]
    fn parameters_that_the_driver_would_not_take_are_refused_where_they_stand() {
        let good = json!({"apiVersion": "gpu.muster.dev/v1alpha1", "kind": "DeviceConfig"});
        let bad = json!({"apiVersion": "gpu.muster.dev/v1alpha1", "kind": "DeviceConfig", "sharing": {"strategy": "MPS"}});
        for (driver, parameters, is_refused) in [
            ("gpu.muster.dev", &good, false),
            ("gpu.muster.dev", &bad, true),
            ("gpu.example.com", &bad, false),
        ] {
            let spec = config(driver, parameters);
            let claim: ResourceClaim =
                serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": spec})).unwrap();
            let template: ResourceClaimTemplate =
                serde_json::from_value(json!({"metadata": {"name": "t"}, "spec": {"spec": spec}}))
                    .unwrap();
            for (found, path) in [(check(&claim), "spec"), (check(&template), "spec.spec")] {
                assert_eq!(!found.errors.is_empty(), is_refused, "{found:?}");
                for error in found.errors {
                    assert_eq!(error.reason, Reason::InvalidValue);
                    let field = format!("{path}.devices.config[0].opaque.parameters.sharing");
                    assert_eq!(error.field, field);
                }
            }
        }
    }

    #[test]
    fn a_claim_without_parameters_is_let_pass() {
        assert_eq!(check(&ResourceClaim::default()), Findings::default());
        assert_eq!(
            check(&ResourceClaimTemplate::default()),
            Findings::default()
        );
    }
}
