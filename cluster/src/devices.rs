//! Devices as they are published, kept by kind.
//!
//! Of 80,000 GPUs, each with its own UUID, a handful are different in anything else. What devices have in common is kept
//! once, as a [`DeviceKind`], and selectors are judged once for each kind.

mod state;

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, Weak},
};

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, ResourceSlice};
use muster_engine::{Amount, AttributeName, recovery::DeviceFault};

use self::state::DeviceState;
pub(crate) use self::state::{is_fault, repels};
use crate::{
    charge,
    counters::{NamedSets, Numbered, Sets},
    device_faults,
    pools::PoolKey,
    quantity,
    selectors::Subject,
};

/// Most devices of one ResourceSlice, as Kubernetes limits them.
const MAX_DEVICES_PER_SLICE: usize = 128;
/// Most devices of one ResourceSlice if any of them draws from counters, as Kubernetes limits them.
const MAX_DRAWING_DEVICES_PER_SLICE: usize = 64;

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

/// Number of a [`PublishedDevice`]; never used twice. A device that is published again with other content has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u64);

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
    pub attributes: Arc<BTreeMap<AttributeName, String>>,
    /// Bytes of memory.
    pub memory: Amount,
    /// Group of devices of a node that are connected by NVLink.
    pub nvlink_group: Option<String>,
    /// Thousandths of a GPU that a device is, should it be one, unless the counters say that it draws from.
    pub gpus: Amount,
    /// Whether a device is given out to one claim, and at once. Others are never planned.
    pub is_planned: bool,
    /// Whether a device may be planned: it is not tainted, and is given out to one claim and at once.
    pub usable: bool,
    /// Whether it may be once what it was given to is released.
    pub healthy: bool,
}

/// A device of a node.
#[derive(Clone, Debug)]
pub struct PublishedDevice {
    /// Its number.
    pub id: DeviceId,
    /// Its name, unique on the node: `driver/pool/device`.
    pub name: Arc<str>,
    /// What it has in common with others.
    pub kind: Arc<DeviceKind>,
    /// The attributes that it alone has, in the order of their names. (Nearly always one: a map has room for eleven.)
    pub own: Arc<[(String, DeviceAttribute)]>,
    /// Those of them that a constraint may name, by qualified name.
    pub own_attributes: Arc<[(AttributeName, String)]>,
    /// What it draws from the counters of its pool, if anything.
    pub(crate) draws: Option<Arc<Numbered<NamedSets>>>,
    /// What is wrong with it, if anything.
    pub(crate) faults: Option<Arc<[DeviceFault]>>,
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
    /// The counter sets that it publishes, if any.
    pub(crate) counter_sets: Option<Arc<Numbered<NamedSets>>>,
    /// Why its pool cannot be used, if it cannot be whatever else is published.
    pub(crate) fault: Option<Box<str>>,
}

/// The kinds of all devices that are published. A kind is forgotten with its last device.
#[derive(Debug, Default)]
pub struct DeviceKinds {
    by_text: BTreeMap<String, Weak<DeviceKind>>,
    by_id: BTreeMap<DeviceKindId, Weak<DeviceKind>>,
    /// Devices of all slices that are held.
    devices: BTreeMap<DeviceId, PublishedDevice>,
    /// What slices publish of counters, and devices draw.
    sets: Sets,
    last: u32,
    last_device: u64,
    sweep_above: usize,
    found: Vec<Arc<DeviceKind>>,
}

impl PublishedDevice {
    /// A device of the kind, without a name.
    pub(crate) fn any_of(kind: &Arc<DeviceKind>) -> Self {
        Self {
            id: DeviceId(0),
            name: "".into(),
            kind: Arc::clone(kind),
            own: Arc::default(),
            own_attributes: Arc::default(),
            draws: None,
            faults: None,
        }
    }

    /// All that selectors may read of the device.
    pub(crate) fn whole(&self) -> Device {
        let mut device = self.kind.device.clone();
        if !self.own.is_empty() {
            let own = self.own.iter().cloned();
            device.attributes.get_or_insert_default().extend(own);
        }
        device
    }
}

impl DeviceKinds {
    /// What is kept of a slice. Devices that are as in `old`, the same slice as it was, keep their numbers.
    pub fn slice(&mut self, slice: Arc<ResourceSlice>, old: Option<&SliceView>) -> SliceView {
        let ResourceSlice { metadata, spec } = Arc::unwrap_or_clone(slice);
        let mut devices = spec.devices.unwrap_or_default();
        let fault = too_many(&devices);
        if fault.is_some() {
            devices.clear();
        }
        let old: BTreeMap<&str, &PublishedDevice> = old
            .iter()
            .flat_map(|old| &old.devices)
            .map(|device| (device.name.as_ref(), device))
            .collect();
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
            counter_sets: self.sets.published(spec.shared_counters.as_ref()),
            fault,
            devices: devices
                .into_iter()
                .map(|device| self.device(&spec.driver, &spec.pool.name, device, &old))
                .collect(),
            pool: PoolKey {
                driver: spec.driver,
                name: spec.pool.name,
            },
        }
    }

    fn device(
        &mut self,
        driver: &str,
        pool: &str,
        device: Device,
        old: &BTreeMap<&str, &PublishedDevice>,
    ) -> PublishedDevice {
        let name = crate::pools::device_name(driver, pool, &device.name);
        let state = DeviceState::of(&device);
        let draws = self.sets.drawn(&device);
        let faults = device_faults::of_device(driver, &device);
        let attributes = device.attributes.unwrap_or_default();
        let (own, common): (BTreeMap<_, _>, _) =
            attributes.into_iter().partition(|(name, _)| is_own(name));
        let own: Arc<[_]> = own.into_iter().collect();
        let common = Device {
            attributes: Some(common),
            capacity: device.capacity,
            allow_multiple_allocations: device.allow_multiple_allocations,
            ..Device::default()
        };
        let kind = self.intern(driver, common, state);
        let old = old.get(name.as_str());
        let is_same = |old: &&&PublishedDevice| {
            let draw_alike = match (&old.draws, &draws) {
                (Some(old), Some(new)) => Arc::ptr_eq(old, new),
                (None, None) => true,
                _ => false,
            };
            Arc::ptr_eq(&old.kind, &kind) && old.own == own && old.faults == faults && draw_alike
        };
        if let Some(old) = old.filter(is_same) {
            return (*old).clone();
        }
        self.last_device += 1;
        PublishedDevice {
            id: DeviceId(self.last_device),
            name: name.into(),
            kind,
            own_attributes: qualified(driver, own.iter().map(|(name, value)| (name, value)))
                .collect(),
            own,
            draws,
            faults,
        }
    }

    fn intern(&mut self, driver: &str, device: Device, state: DeviceState) -> Arc<DeviceKind> {
        // Serialising these types cannot fail.
        let DeviceState {
            is_planned,
            usable,
            healthy,
        } = state;
        let text = serde_json::to_string(&(driver, is_planned, usable, healthy, &device))
            .unwrap_or_default();
        if let Some(known) = self.by_text.get(&text).and_then(Weak::upgrade) {
            return known;
        }
        if self.by_text.len() > self.sweep_above {
            self.by_text.retain(|_, kind| kind.strong_count() > 0);
            self.by_id.retain(|_, kind| kind.strong_count() > 0);
            self.sweep_above = self.by_text.len() * 2 + 64;
        }
        self.last += 1;
        let attributes = device.attributes.iter().flatten();
        let nvlink_group =
            attribute(driver, &device, "nvlinkGroup").and_then(|group| group.string.clone());
        let kind = Arc::new(DeviceKind {
            id: DeviceKindId(self.last),
            driver: driver.to_owned(),
            attributes: Arc::new(qualified(driver, attributes).collect()),
            memory: memory(driver, &device),
            gpus: charge::by_attributes(driver, &device),
            nvlink_group,
            is_planned,
            usable,
            healthy,
            device,
        });
        self.by_text.insert(text, Arc::downgrade(&kind));
        self.by_id.insert(kind.id, Arc::downgrade(&kind));
        self.found.push(Arc::clone(&kind));
        kind
    }

    /// A slice took the place of another, or came, or went. Returns whether it has devices that were not there before.
    pub fn replace(&mut self, old: Option<&SliceView>, new: Option<&SliceView>) -> bool {
        for device in old.into_iter().flat_map(|old| &old.devices) {
            self.devices.remove(&device.id);
        }
        let last = old.and_then(|old| old.devices.iter().map(|device| device.id).max());
        let mut appeared = false;
        for device in new.into_iter().flat_map(|new| &new.devices) {
            appeared |= Some(device.id) > last;
            self.devices.insert(device.id, device.clone());
        }
        appeared
    }

    /// Kinds with a higher number, in their order.
    pub fn kinds_after(&self, last: DeviceKindId) -> impl Iterator<Item = Arc<DeviceKind>> {
        let later = self.by_id.range((Bound::Excluded(last), Bound::Unbounded));
        later.filter_map(|(_, kind)| kind.upgrade())
    }

    /// Published devices with a higher number, in their order.
    pub fn devices_after(&self, last: DeviceId) -> impl Iterator<Item = &PublishedDevice> {
        let later = self
            .devices
            .range((Bound::Excluded(last), Bound::Unbounded));
        later.map(|(_, device)| device)
    }

    /// Whether the kind or the device exists.
    pub fn exists(&self, subject: Subject) -> bool {
        match subject {
            Subject::Kind(kind) => {
                let kind = self.by_id.get(&kind);
                kind.is_some_and(|kind| kind.strong_count() > 0)
            }
            Subject::Device(device) => self.devices.contains_key(&device),
        }
    }

    /// How many kinds are known; a few may be gone.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// How many devices are published.
    pub fn published(&self) -> usize {
        self.devices.len()
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

/// Why a slice has more devices than Kubernetes allows, if so.
fn too_many(devices: &[Device]) -> Option<Box<str>> {
    let draws = |device: &Device| has_any(device.consumes_counters.as_ref());
    let most = if devices.len() <= MAX_DEVICES_PER_SLICE && devices.iter().any(draws) {
        MAX_DRAWING_DEVICES_PER_SLICE
    } else {
        MAX_DEVICES_PER_SLICE
    };
    let count = devices.len();
    (count > most).then(|| format!("spec.devices: {count} devices; at most {most} can be").into())
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
