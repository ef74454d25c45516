//! A claim as it is kept: what is read of it, and nothing else.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimSpec, ResourceClaimStatus};

use crate::device_plugin;

/// What is read of a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedClaim {
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.namespace`.
    pub namespace: Box<str>,
    /// `metadata.uid`; of a claim that kube-scheduler made for what a pod asks for by the name of a resource, what it is charged and
    /// permitted as ([`device_plugin::made_by_scheduler`]): it had no UID yet when its pod was admitted.
    pub uid: Box<str>,
    /// `metadata.uid`, where `uid` is another one. kube-scheduler may delete such a claim and make another one for the same pod.
    pub own_uid: Option<Box<str>>,
    /// `metadata.resourceVersion`, if that is a number.
    pub version: Option<u64>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub is_going: bool,
    /// UIDs of its owners.
    pub owners: Box<[Box<str>]>,
    /// What it asks for, shared by the claims that ask for the same.
    pub spec: Option<Arc<ResourceClaimSpec>>,
    /// The devices that it is allocated; `None`: none are listed.
    pub allocated: Option<Box<[AllocatedDevice]>>,
}

/// A device that a claim is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedDevice {
    /// The driver that publishes the device.
    pub driver: Box<str>,
    /// Its pool.
    pub pool: Box<str>,
    /// Its name in the pool.
    pub device: Box<str>,
    /// Whether the claim has the device beside those who have it for themselves.
    pub for_admin: bool,
}

impl ObservedClaim {
    /// Its UID as an object.
    pub fn object_uid(&self) -> &str {
        self.own_uid.as_deref().unwrap_or(&self.uid)
    }

    /// Whether an owner has that UID.
    pub fn is_owned_by(&self, uid: &str) -> bool {
        self.owners.iter().any(|owner| **owner == *uid)
    }

    /// All of it but its version: without a change of that, nothing is to be derived again.
    pub(crate) fn facts(&self) -> impl PartialEq + '_ {
        let Self {
            name,
            namespace,
            uid,
            own_uid,
            version: _,
            is_going,
            owners,
            spec,
            allocated,
        } = self;
        (
            (name, namespace, uid, own_uid),
            (is_going, owners),
            (spec, allocated),
        )
    }
}

/// What claims ask for, each once: claims are many, and made from a few templates. What no claim asks for any more is
/// forgotten.
#[derive(Debug, Default)]
pub(crate) struct ClaimSpecs {
    by_text: BTreeMap<String, Weak<ResourceClaimSpec>>,
    sweep_above: usize,
}

impl ClaimSpecs {
    /// What is read of the claim. `old` is what was read of it before.
    pub(crate) fn observe(
        &mut self,
        claim: &ResourceClaim,
        old: Option<&ObservedClaim>,
    ) -> ObservedClaim {
        let metadata = &claim.metadata;
        let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
        let owners = metadata.owner_references.iter().flatten();
        let version = metadata.resource_version.as_deref();
        let by_name = device_plugin::made_by_scheduler(claim).map(String::into_boxed_str);
        ObservedClaim {
            name: text(&metadata.name),
            namespace: text(&metadata.namespace),
            own_uid: by_name.is_some().then(|| text(&metadata.uid)),
            uid: by_name.unwrap_or_else(|| text(&metadata.uid)),
            version: version.and_then(|version| version.parse().ok()),
            is_going: metadata.deletion_timestamp.is_some(),
            owners: owners.map(|owner| owner.uid.as_str().into()).collect(),
            spec: claim.spec.as_ref().map(|spec| {
                let known = old.and_then(|old| old.spec.as_ref());
                let known = known.filter(|known| ***known == *spec).cloned();
                known.unwrap_or_else(|| self.share(spec))
            }),
            allocated: claim.status.as_ref().and_then(allocated),
        }
    }

    fn share(&mut self, spec: &ResourceClaimSpec) -> Arc<ResourceClaimSpec> {
        // Serialising these types cannot fail.
        let text = serde_json::to_string(spec).unwrap_or_default();
        if let Some(known) = self.by_text.get(&text).and_then(Weak::upgrade) {
            return known;
        }
        if self.by_text.len() > self.sweep_above {
            self.by_text.retain(|_, spec| spec.strong_count() > 0);
            self.sweep_above = self.by_text.len() * 2 + 64;
        }
        let spec = Arc::new(spec.clone());
        self.by_text.insert(text, Arc::downgrade(&spec));
        spec
    }
}

fn allocated(status: &ResourceClaimStatus) -> Option<Box<[AllocatedDevice]>> {
    let devices = status.allocation.as_ref()?.devices.as_ref()?;
    let results = devices.results.as_ref()?.iter();
    let devices = results.map(|result| AllocatedDevice {
        driver: result.driver.as_str().into(),
        pool: result.pool.as_str().into(),
        device: result.device.as_str().into(),
        for_admin: result.admin_access == Some(true),
    });
    Some(devices.collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(name: &str, spec: &Value) -> ResourceClaim {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "ml", "uid": format!("uid-{name}"), "resourceVersion": "7",
                "deletionTimestamp": "2026-11-22T00:00:09Z",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p"}],
            },
            "spec": spec,
            "status": {"allocation": {"devices": {"results": [
                {"request": "gpus", "driver": "d", "pool": "n", "device": "gpu-0"},
                {"request": "gpus", "driver": "d", "pool": "n", "device": "gpu-1", "adminAccess": true},
            ]}}},
        }))
        .unwrap()
    }

    fn spec(count: i64) -> Value {
        json!({"devices": {"requests": [
            {"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": count}},
        ]}})
    }

    #[test]
    fn a_claim_that_is_kept_says_what_it_said() {
        let whole = claim("c", &spec(2));
        let kept = ClaimSpecs::default().observe(&whole, None);
        let device = |device: &str, for_admin| AllocatedDevice {
            driver: "d".into(),
            pool: "n".into(),
            device: device.into(),
            for_admin,
        };
        let expected = ObservedClaim {
            name: "c".into(),
            namespace: "ml".into(),
            uid: "uid-c".into(),
            own_uid: None,
            version: Some(7),
            is_going: true,
            owners: Box::new(["uid-p".into()]),
            spec: whole.spec.map(Arc::new),
            allocated: Some(Box::new([device("gpu-0", false), device("gpu-1", true)])),
        };
        assert_eq!(kept, expected);
        assert!(kept.is_owned_by("uid-p"));
        let nothing = ClaimSpecs::default().observe(&ResourceClaim::default(), None);
        assert_eq!((nothing.spec, nothing.allocated), (None, None));
    }

    #[test]
    fn a_claim_that_kube_scheduler_made_is_called_as_it_was_permitted() {
        let mut made = claim("c", &spec(2));
        let request = made.spec.as_mut().and_then(|spec| spec.devices.as_mut());
        let request = request.and_then(|devices| devices.requests.as_mut());
        let exactly = request.unwrap()[0].exactly.as_mut().unwrap();
        exactly.device_class_name = "gpu.muster.dev".to_owned();
        made.metadata.owner_references.as_mut().unwrap()[0].controller = Some(true);
        let observed = |claim: &ResourceClaim| ClaimSpecs::default().observe(claim, None);
        assert_eq!(*observed(&made).uid, *"uid-c");
        let annotation = ("resource.kubernetes.io/extended-resource-claim", "true");
        let (key, value) = annotation;
        made.metadata.annotations = Some([(key.to_owned(), value.to_owned())].into());
        let expected = "uid-p/deviceclass.resource.kubernetes.io/gpu.muster.dev";
        let observed = observed(&made);
        assert_eq!(*observed.uid, *expected);
        assert_eq!(observed.own_uid.as_deref(), Some("uid-c"));
    }

    #[test]
    fn claims_that_ask_for_the_same_share_it_and_what_nobody_asks_for_is_forgotten() {
        let mut specs = ClaimSpecs::default();
        let (a, b) = (claim("a", &spec(2)), claim("b", &spec(2)));
        let (a, b) = (specs.observe(&a, None), specs.observe(&b, None));
        assert!(Arc::ptr_eq(
            a.spec.as_ref().unwrap(),
            b.spec.as_ref().unwrap()
        ));
        for count in 0..10_000 {
            specs.observe(&claim("c", &spec(count)), None);
        }
        assert!(specs.by_text.len() < 200, "{}", specs.by_text.len());
        let again = specs.observe(&claim("d", &spec(2)), None);
        assert!(Arc::ptr_eq(
            a.spec.as_ref().unwrap(),
            again.spec.as_ref().unwrap()
        ));
    }
}
