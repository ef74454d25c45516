//! Devices as they are published, kept by kind.
//!
//! Of 80,000 GPUs, each with its own UUID, a handful are different in anything else. What devices have in common is kept
//! once, as a [`DeviceKind`], and selectors are judged once for each kind.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, ResourceSlice};
use muster_engine::{Amount, AttributeName};

use crate::{pools::PoolKey, quantity};

/// Names of attributes, without their domain, that are different for every device. An expression that reads one of them is
/// judged for each device.
const OWN_ATTRIBUTES: [&str; 9] = [
    "uuid",
    "parentUUID",
    "serial",
    "serialNumber",
    "pciBusID",
    "guid",
    "mac",
    "ipv4",
    "ipv6",
];

/// Whether an attribute of that name is different for every device.
pub(crate) fn is_own(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name);
    OWN_ATTRIBUTES.contains(&name)
}

/// Number of a [`DeviceKind`]; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKindId(pub u32);

/// What devices have in common.
#[derive(Debug)]
pub struct DeviceKind {
    /// Its number.
    pub id: DeviceKindId,
    /// The driver that publishes the devices.
    pub driver: String,
    /// Attributes, capacity and whether several claims may share a device; nothing else is set.
    pub device: Device,
    /// Attributes that a constraint may name, by qualified name.
    pub attributes: BTreeMap<AttributeName, String>,
    /// Bytes of memory.
    pub memory: Amount,
    /// Group of devices of a node that are connected by NVLink.
    pub nvlink_group: Option<String>,
    /// Whether a device may be planned: it is not tainted, and is given out as a whole and at once.
    pub usable: bool,
}

/// A device of a node.
#[derive(Clone, Debug)]
pub struct PublishedDevice {
    /// Its name, unique on the node: `driver/pool/device`.
    pub name: Arc<str>,
    /// What it has in common with others.
    pub kind: Arc<DeviceKind>,
    /// The attributes that it alone has.
    pub own: Arc<BTreeMap<String, DeviceAttribute>>,
}

/// A ResourceSlice as the index keeps it.
#[derive(Debug)]
pub struct SliceView {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its resourceVersion, if that is a number.
    pub version: Option<u64>,
    /// Driver and pool.
    pub pool: PoolKey,
    /// Generation of the pool.
    pub generation: i64,
    /// How many slices the pool has at that generation.
    pub slice_count: i64,
    /// The node; `None` for a slice that is not of one node.
    pub node: Option<String>,
    /// Whether a device is bound to a node by conditions.
    pub binds_conditionally: bool,
    /// Its devices, as they stand in the slice.
    pub devices: Vec<PublishedDevice>,
}

/// The kinds of all devices that are published. A kind is forgotten with its last device.
#[derive(Debug, Default)]
pub struct DeviceKinds {
    by_text: BTreeMap<String, Weak<DeviceKind>>,
    last: u32,
    sweep_above: usize,
    found: Vec<Arc<DeviceKind>>,
}

impl PublishedDevice {
    /// The attributes that a constraint may name, by qualified name.
    pub fn attributes(&self) -> BTreeMap<AttributeName, String> {
        let mut attributes = self.kind.attributes.clone();
        attributes.extend(qualified(&self.kind.driver, self.own.as_ref()));
        attributes
    }

    /// All that selectors may read of the device.
    pub(crate) fn whole(&self) -> Device {
        let mut device = self.kind.device.clone();
        if !self.own.is_empty() {
            let own = self
                .own
                .iter()
                .map(|(name, value)| (name.clone(), value.clone()));
            device.attributes.get_or_insert_default().extend(own);
        }
        device
    }
}

impl DeviceKinds {
    /// What is kept of a slice.
    pub fn slice(&mut self, slice: Arc<ResourceSlice>) -> SliceView {
        let ResourceSlice { metadata, spec } = Arc::unwrap_or_clone(slice);
        let devices = spec.devices.unwrap_or_default();
        let binds = |device: &Device| has_any(device.binding_conditions.as_ref());
        SliceView {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            version: metadata
                .resource_version
                .and_then(|version| version.parse().ok()),
            generation: spec.pool.generation,
            slice_count: spec.pool.resource_slice_count,
            node: spec.node_name,
            binds_conditionally: devices.iter().any(binds),
            devices: devices
                .into_iter()
                .map(|device| self.device(&spec.driver, &spec.pool.name, device))
                .collect(),
            pool: PoolKey {
                driver: spec.driver,
                name: spec.pool.name,
            },
        }
    }

    fn device(&mut self, driver: &str, pool: &str, device: Device) -> PublishedDevice {
        let name = crate::pools::device_name(driver, pool, &device.name);
        let usable = is_whole(&device) && !is_tainted(&device);
        let attributes = device.attributes.unwrap_or_default();
        let (own, common) = attributes.into_iter().partition(|(name, _)| is_own(name));
        let common = Device {
            attributes: Some(common),
            capacity: device.capacity,
            allow_multiple_allocations: device.allow_multiple_allocations,
            ..Device::default()
        };
        PublishedDevice {
            name: name.into(),
            kind: self.intern(driver, common, usable),
            own: Arc::new(own),
        }
    }

    fn intern(&mut self, driver: &str, device: Device, usable: bool) -> Arc<DeviceKind> {
        // Serialising these types cannot fail.
        let text = serde_json::to_string(&(driver, usable, &device)).unwrap_or_default();
        if let Some(known) = self.by_text.get(&text).and_then(Weak::upgrade) {
            return known;
        }
        if self.by_text.len() > self.sweep_above {
            self.by_text.retain(|_, kind| kind.strong_count() > 0);
            self.sweep_above = self.by_text.len() * 2 + 64;
        }
        self.last += 1;
        let attributes = device.attributes.iter().flatten();
        let nvlink_group =
            attribute(driver, &device, "nvlinkGroup").and_then(|group| group.string.clone());
        let kind = Arc::new(DeviceKind {
            id: DeviceKindId(self.last),
            driver: driver.to_owned(),
            attributes: qualified(driver, attributes).collect(),
            memory: memory(driver, &device),
            nvlink_group,
            usable,
            device,
        });
        self.by_text.insert(text, Arc::downgrade(&kind));
        self.found.push(Arc::clone(&kind));
        kind
    }

    /// The kinds that exist.
    pub fn iter(&self) -> impl Iterator<Item = Arc<DeviceKind>> {
        self.by_text.values().filter_map(Weak::upgrade)
    }

    /// Takes the kinds that were found since the last call.
    pub fn take_found(&mut self) -> Vec<Arc<DeviceKind>> {
        std::mem::take(&mut self.found)
    }
}

/// An attribute of a device by its name within the driver's domain.
pub fn attribute<'a>(driver: &str, device: &'a Device, name: &str) -> Option<&'a DeviceAttribute> {
    let attributes = device.attributes.as_ref()?;
    attributes
        .get(&format!("{driver}/{name}"))
        .or_else(|| attributes.get(name))
}

/// Bytes of memory. Devices that state none, or something that is no quantity, count as having none.
pub fn memory(driver: &str, device: &Device) -> Amount {
    let given = device.capacity.as_ref().and_then(|capacity| {
        capacity
            .get(&format!("{driver}/memory"))
            .or_else(|| capacity.get("memory"))
    });
    let bytes = given.and_then(|memory| quantity::units(&memory.value.0, "capacity[memory]").ok());
    Amount(bytes.unwrap_or(0))
}

/// Devices that kube-scheduler gives out in ways that the planner does not model (slices of a device that share its
/// counters, devices shared by several claims, devices that are bound later) are never planned.
fn is_whole(device: &Device) -> bool {
    !has_any(device.consumes_counters.as_ref())
        && !has_any(device.binding_conditions.as_ref())
        && device.allow_multiple_allocations != Some(true)
        && device.node_selector.is_none()
        && device.all_nodes != Some(true)
}

fn is_tainted(device: &Device) -> bool {
    let mut taints = device.taints.iter().flatten();
    taints.any(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
}

fn has_any<V>(list: Option<&Vec<V>>) -> bool {
    list.is_some_and(|list| !list.is_empty())
}

/// Attributes by qualified name. A constraint compares type and value, so the type stands in front; lists are left out: a
/// constraint on one matches no device.
fn qualified<'a>(
    driver: &'a str,
    attributes: impl IntoIterator<Item = (&'a String, &'a DeviceAttribute)>,
) -> impl Iterator<Item = (AttributeName, String)> {
    attributes.into_iter().filter_map(move |(name, attribute)| {
        let text = match attribute {
            DeviceAttribute {
                string: Some(text), ..
            } => format!("string {text}"),
            DeviceAttribute {
                int: Some(number), ..
            } => format!("int {number}"),
            DeviceAttribute {
                bool: Some(truth), ..
            } => format!("bool {truth}"),
            DeviceAttribute {
                version: Some(version),
                ..
            } => format!("version {version}"),
            _ => return None,
        };
        let qualified = match name.split_once('/') {
            Some(_) => name.clone(),
            None => format!("{driver}/{name}"),
        };
        Some((qualified.into(), text))
    })
}
