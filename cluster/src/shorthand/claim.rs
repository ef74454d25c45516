//! The ResourceClaimTemplate that a shorthand stands for.

use k8s_openapi::{
    api::{
        core::v1::{Pod, PodResourceClaim},
        resource::v1::{
            CELDeviceSelector, DeviceClaim, DeviceConstraint, DeviceRequest, DeviceSelector,
            DeviceSubRequest, ExactDeviceRequest, ResourceClaimSpec, ResourceClaimTemplate,
            ResourceClaimTemplateSpec,
        },
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use muster_api::keys;

use super::{
    Shorthand,
    ladder::{self, Rung},
};
use crate::{pod, quantity, stable_suffix};

/// Name of the claim in `spec.resourceClaims` of the pod, and of what a container refers to.
pub const CLAIM_NAME: &str = "muster-gpus";
/// Name of the one request of the claim.
const REQUEST_NAME: &str = "gpus";
/// How the alternatives of that request are called, each with its number, from 1 on.
const RUNG_NAME: &str = "size";
/// What the name of a profile has before each extension.
const EXTENSION: char = '+';
/// The allocation mode in which a request has a number of devices.
const EXACT_COUNT: &str = "ExactCount";
/// Label by which our templates are found.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "muster");

impl Shorthand {
    /// How the pod refers to its claim.
    pub fn reference(&self) -> PodResourceClaim {
        PodResourceClaim {
            name: CLAIM_NAME.to_owned(),
            resource_claim_template_name: Some(self.template_name()),
            ..PodResourceClaim::default()
        }
    }

    /// Name of the template: what it asks for in words, and a suffix made from its spec. Templates cannot be
    /// changed; a release that writes another spec for the same words makes another one beside the old.
    pub fn template_name(&self) -> String {
        let mut words = vec!["muster".to_owned()];
        words.extend(match self.gpus {
            None => vec!["vram".to_owned()],
            Some(1) => vec!["1".to_owned(), "gpu".to_owned()],
            Some(gpus) => vec![gpus.to_string(), "gpus".to_owned()],
        });
        words.extend(self.memory_text().map(|memory| memory.to_ascii_lowercase()));
        words.extend(self.constrained_by().map(|by| by.as_str().to_owned()));
        let spec = serde_json::to_string(&self.claim_spec()).unwrap_or_default();
        words.push(stable_suffix::of(&spec));
        words.join("-")
    }

    /// What the claim asks for. Every field that the API server would set is set, so that what is stored
    /// compares equal.
    pub fn claim_spec(&self) -> ResourceClaimSpec {
        let constraint = self.constrained_by().map(|by| DeviceConstraint {
            match_attribute: Some(format!("{}/{}", keys::DRIVER, by.attribute())),
            ..DeviceConstraint::default()
        });
        let request = match (self.gpus, self.least_bytes()) {
            (None, Some(least_bytes)) => smallest(least_bytes),
            (gpus, least_bytes) => whole(gpus.unwrap_or(1), least_bytes),
        };
        ResourceClaimSpec {
            devices: Some(DeviceClaim {
                requests: Some(vec![request]),
                constraints: constraint.map(|constraint| vec![constraint]),
                ..DeviceClaim::default()
            }),
        }
    }

    /// The template, for pods of a namespace.
    pub fn template(&self, namespace: &str) -> ResourceClaimTemplate {
        let (label, value) = MANAGED_BY;
        ResourceClaimTemplate {
            metadata: ObjectMeta {
                name: Some(self.template_name()),
                namespace: Some(namespace.to_owned()),
                labels: Some([(label.to_owned(), value.to_owned())].into()),
                ..ObjectMeta::default()
            },
            spec: Some(ResourceClaimTemplateSpec {
                metadata: None,
                spec: Some(self.claim_spec()),
            }),
        }
    }

    /// One form for all ways to write an amount, so that `40Gi` and `40960Mi` share a template.
    fn memory_text(&self) -> Option<String> {
        self.memory_bytes.map(quantity::written_bytes)
    }

    /// One GPU has nobody to be connected to.
    fn constrained_by(&self) -> Option<super::Interconnect> {
        self.interconnect.filter(|_| self.gpus() > 1)
    }
}

/// So many whole GPUs.
fn whole(gpus: u32, least_bytes: Option<i64>) -> DeviceRequest {
    let selector = least_bytes.map(|least_bytes| {
        selector(has_memory(Rung {
            least_bytes,
            end_bytes: None,
        }))
    });
    DeviceRequest {
        name: REQUEST_NAME.to_owned(),
        exactly: Some(ExactDeviceRequest {
            device_class_name: keys::DEVICE_CLASS_GPU.to_owned(),
            allocation_mode: Some(EXACT_COUNT.to_owned()),
            count: Some(i64::from(gpus)),
            selectors: selector.map(|selector| vec![selector]),
            ..ExactDeviceRequest::default()
        }),
        ..DeviceRequest::default()
    }
}

/// The smallest device with so much memory, whole or a slice. No rung is of one kind alone: a small GPU is less than half of a large one.
fn smallest(least_bytes: i64) -> DeviceRequest {
    let rungs = ladder::rungs(least_bytes).into_iter().enumerate();
    let rungs = rungs.map(|(index, rung)| DeviceSubRequest {
        name: format!("{RUNG_NAME}-{}", index + 1),
        device_class_name: keys::DEVICE_CLASS_GPU_OR_SLICE.to_owned(),
        allocation_mode: Some(EXACT_COUNT.to_owned()),
        count: Some(1),
        selectors: Some(vec![selector(stands_on(rung))]),
        ..DeviceSubRequest::default()
    });
    DeviceRequest {
        name: REQUEST_NAME.to_owned(),
        first_available: Some(rungs.collect()),
        ..DeviceRequest::default()
    }
}

/// Devices on that rung: by their memory, and none with an extension (`1g.10gb+me`), of which there are few on a GPU: those are for who asks
/// for them by profile. The profile of a whole GPU is its own name; a driver that says nothing of profiles is taken as it is.
fn stands_on(rung: Rung) -> String {
    let profile = format!("device.attributes['{}'].profile", keys::DRIVER);
    let memory = has_memory(rung);
    format!("{memory} && (!has({profile}) || !{profile}.contains('{EXTENSION}'))")
}

/// Devices with memory in that window. Some GPUs tell none; to look at it would be an error, which ends kube-scheduler's whole attempt.
fn has_memory(rung: Rung) -> String {
    let memory = format!("device.capacity['{}'].memory", keys::DRIVER);
    let least = quantity::written_bytes(rung.least_bytes);
    let mut expression = format!("has({memory}) && {memory}.compareTo(quantity('{least}')) >= 0");
    if let Some(end) = rung.end_bytes.map(quantity::written_bytes) {
        expression = format!("{expression} && {memory}.compareTo(quantity('{end}')) < 0");
    }
    expression
}

fn selector(expression: String) -> DeviceSelector {
    DeviceSelector {
        cel: Some(CELDeviceSelector { expression }),
    }
}

/// The template that a pod's claim is still to be made from. `None`: it has no shorthand, is not referred to
/// that template, has its claim already, has ended, or is going.
pub fn template_waited_for(pod: &Pod) -> Option<ResourceClaimTemplate> {
    if !pod::is_active(pod) || has_its_claim(pod) {
        return None;
    }
    let shorthand = Shorthand::read(pod.metadata.annotations.as_ref()).ok()??;
    let template = shorthand.template(pod.metadata.namespace.as_deref().unwrap_or_default());
    let reference = shorthand.reference();
    let mut claims = pod.spec.as_ref()?.resource_claims.iter().flatten();
    claims.any(|claim| *claim == reference).then_some(template)
}

fn has_its_claim(pod: &Pod) -> bool {
    let mut statuses = pod
        .status
        .iter()
        .flat_map(|status| status.resource_claim_statuses.iter().flatten());
    statuses.any(|status| status.name == CLAIM_NAME)
}
