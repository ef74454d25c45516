//! Whether it was said how much GPU memory is needed.
//!
//! A Team may require it (`spec.vram`). A claim says it by `capacity.requests` of `memory`, or by an expression, its own or its
//! DeviceClass's, that looks at the `memory` or at the `profile` of devices; so does what a shorthand with `muster.dev/vram` stands for. What
//! the expression makes of it is not asked: the rule is there to remind people, and no limit. That quota is.

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClassSpec, DeviceRequest, DeviceSelector, ResourceClaimSpec,
};
use muster_api::{device_class, keys};

/// How an expression names what says how much memory a device has.
const SAYING: [&str; 4] = [".memory", ".profile", "'memory'", "'profile'"];
/// The capacity, as a claim names it: with or without the domain of our driver.
const MEMORY: &str = "memory";
/// How NVIDIA's device plugin calls slices of a fixed profile.
const PLUGIN_SLICES: &str = "nvidia.com/mig-";

/// The requests of a claim that do not say it themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryDeclaration {
    /// Of each DeviceClass one: field and class.
    silent: Box<[(Box<str>, Box<str>)]>,
}

/// What a DeviceClass says about memory for the requests that name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassMemory {
    /// Whether it has GPUs of our driver.
    pub has_gpus: bool,
    /// Whether it says how much memory they have.
    pub is_said: bool,
}

impl ClassMemory {
    /// Of a DeviceClass. One that does not name our driver is none of ours, whatever it would match: what is not known for sure is let
    /// through.
    pub fn of(class: &DeviceClassSpec) -> Self {
        let selectors = class.selectors.as_deref().unwrap_or_default();
        Self {
            has_gpus: expressions(selectors).any(|text| text.contains(keys::DRIVER)),
            is_said: says(selectors),
        }
    }

    /// Of a class that the chart makes, and that is not known yet.
    fn of_shipped(name: &str) -> Option<Self> {
        let mut shipped = device_class::SHIPPED.iter();
        shipped.any(|class| class.name == name).then_some(Self {
            has_gpus: true,
            is_said: false,
        })
    }
}

impl MemoryDeclaration {
    /// Of a claim or a template.
    pub fn of(spec: &ResourceClaimSpec) -> Self {
        let devices = spec.devices.iter();
        let requests = devices.flat_map(|devices| devices.requests.iter().flatten());
        let mut silent: Vec<(Box<str>, Box<str>)> = Vec::new();
        for (index, request) in requests.enumerate() {
            for (field, class) in silent_parts(request, index) {
                if !silent.iter().any(|(_, known)| **known == *class) {
                    silent.push((field.into(), class.into()));
                }
            }
        }
        Self {
            silent: silent.into(),
        }
    }

    /// Whether every request says it itself.
    pub fn is_whole(&self) -> bool {
        self.silent.is_empty()
    }

    /// The field of the first request for GPUs that says nothing, and for which its class says nothing. `class` tells what is known of
    /// a DeviceClass; with one that nobody knows a request counts as having said it.
    pub fn missing(&self, class: impl Fn(&str) -> Option<ClassMemory>) -> Option<&str> {
        let mut silent = self.silent.iter();
        let found = silent.find(|(_, name)| {
            let class = class(name).or_else(|| ClassMemory::of_shipped(name));
            class.is_some_and(|class| class.has_gpus && !class.is_said)
        });
        found.map(|(field, _)| &**field)
    }
}

/// Whether a resource of a device plugin says it by its name.
pub fn resource_says_memory(resource: &str) -> bool {
    resource.starts_with(PLUGIN_SLICES)
}

/// What does not say it in a request, with its field and DeviceClass. Who only looks at devices that others hold needs no memory.
fn silent_parts(request: &DeviceRequest, index: usize) -> Vec<(String, &str)> {
    let path = format!("spec.devices.requests[{index}]");
    let is_silent = |capacity: Option<&CapacityRequirements>,
                     selectors: Option<&Vec<DeviceSelector>>| {
        !asks_for_memory(capacity) && !selectors.is_some_and(|selectors| says(selectors))
    };
    let exactly = request.exactly.iter().filter(|exactly| {
        exactly.admin_access != Some(true)
            && is_silent(exactly.capacity.as_ref(), exactly.selectors.as_ref())
    });
    let exactly = exactly.map(|exactly| {
        (
            format!("{path}.exactly"),
            exactly.device_class_name.as_str(),
        )
    });
    let alternatives = request.first_available.iter().flatten().enumerate();
    let alternatives =
        alternatives.filter(|(_, one)| is_silent(one.capacity.as_ref(), one.selectors.as_ref()));
    let alternatives = alternatives.map(|(at, one)| {
        let field = format!("{path}.firstAvailable[{at}]");
        (field, one.device_class_name.as_str())
    });
    exactly.chain(alternatives).collect()
}

fn asks_for_memory(capacity: Option<&CapacityRequirements>) -> bool {
    let requests = capacity.and_then(|capacity| capacity.requests.as_ref());
    let mut names = requests.into_iter().flatten().map(|(name, _)| name);
    names.any(|name| name.rsplit('/').next() == Some(MEMORY))
}

fn says(selectors: &[DeviceSelector]) -> bool {
    expressions(selectors).any(|text| {
        let text = text.replace('"', "'");
        SAYING.iter().any(|word| text.contains(word))
    })
}

fn expressions(selectors: &[DeviceSelector]) -> impl Iterator<Item = &str> {
    let cel = selectors.iter().filter_map(|one| one.cel.as_ref());
    cel.map(|cel| cel.expression.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(requests: &Value) -> MemoryDeclaration {
        let spec = json!({"devices": {"requests": requests}});
        MemoryDeclaration::of(&serde_json::from_value(spec).unwrap())
    }

    fn class(expression: &str) -> ClassMemory {
        let spec = json!({"selectors": [{"cel": {"expression": expression}}]});
        ClassMemory::of(&serde_json::from_value(spec).unwrap())
    }

    fn selecting(expression: &str) -> Value {
        json!({"deviceClassName": "gpu.muster.dev", "selectors": [{"cel": {"expression": expression}}]})
    }

    /// What is known of classes: ours, one of a fixed profile, and a network card's.
    fn known(name: &str) -> Option<ClassMemory> {
        match name {
            "gpu.muster.dev" => Some(class(device_class::GPU.selector)),
            "small" => Some(class(
                "device.driver == 'gpu.muster.dev' && device.attributes['gpu.muster.dev'].profile == '1g.10gb'",
            )),
            "nic" => Some(class("device.driver == 'nic.example.com'")),
            _ => None,
        }
    }

    #[test]
    fn a_request_for_gpus_says_how_much_memory_or_is_named_by_its_field() {
        let plain = |class: &str| json!({"deviceClassName": class, "count": 2});
        let capacity = |name: &str| json!({"deviceClassName": "gpu.muster.dev", "capacity": {"requests": {name: "40Gi"}}});
        let exactly = "spec.devices.requests[0].exactly";
        for (request, missing) in [
            (json!({"exactly": plain("gpu.muster.dev")}), Some(exactly)),
            // The chart makes it, and its watch has not told of it yet.
            (json!({"exactly": plain("mig.muster.dev")}), Some(exactly)),
            (json!({"exactly": plain("small")}), None),
            (json!({"exactly": plain("nic")}), None),
            (json!({"exactly": plain("unheard-of")}), None),
            (json!({"exactly": capacity("memory")}), None),
            (json!({"exactly": capacity("gpu.muster.dev/memory")}), None),
            (
                json!({"exactly": capacity("multiprocessors")}),
                Some(exactly),
            ),
            (
                json!({"exactly": selecting("device.capacity['gpu.muster.dev'].memory.compareTo(quantity('40Gi')) >= 0")}),
                None,
            ),
            (
                json!({"exactly": selecting("device.attributes['gpu.muster.dev'].profile == '2g.20gb'")}),
                None,
            ),
            (
                json!({"exactly": selecting("\"memory\" in device.capacity[\"gpu.muster.dev\"]")}),
                None,
            ),
            (
                json!({"exactly": selecting("device.attributes['gpu.muster.dev'].productName == 'H100'")}),
                Some(exactly),
            ),
            (
                json!({"exactly": {"deviceClassName": "gpu.muster.dev", "adminAccess": true}}),
                None,
            ),
            (
                json!({"firstAvailable": [capacity("memory"), plain("gpu.muster.dev")]}),
                Some("spec.devices.requests[0].firstAvailable[1]"),
            ),
            (
                json!({"firstAvailable": [capacity("memory"), plain("small")]}),
                None,
            ),
            (json!({}), None),
        ] {
            assert_eq!(of(&json!([request])).missing(known), missing, "{request}");
        }
        let second = json!([{"exactly": plain("nic")}, {"exactly": plain("gpu.muster.dev")}]);
        let missing = Some("spec.devices.requests[1].exactly");
        assert_eq!(of(&second).missing(known), missing);
        assert!(of(&json!([])).is_whole() && !of(&second).is_whole());
    }

    #[test]
    fn what_a_shorthand_stands_for_says_it_if_the_shorthand_does() {
        for (annotations, is_said) in [
            (vec![(keys::VRAM, "10Gi")], true),
            (vec![(keys::VRAM, "10Gi"), (keys::GPUS, "2")], true),
            (vec![(keys::GPUS, "2")], false),
        ] {
            let given = annotations
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let shorthand = super::super::Shorthand::read(Some(&given.collect()));
            let spec = shorthand.unwrap().unwrap().claim_spec();
            let declaration = MemoryDeclaration::of(&spec);
            assert_eq!(declaration.is_whole(), is_said, "{annotations:?}");
            assert_eq!(declaration.missing(|_| None).is_none(), is_said);
        }
    }

    #[test]
    fn a_slice_of_a_device_plugin_says_it_by_its_name() {
        assert!(resource_says_memory("nvidia.com/mig-1g.10gb"));
        assert!(!resource_says_memory("nvidia.com/gpu"));
    }
}
