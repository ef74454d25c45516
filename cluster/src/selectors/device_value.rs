//! A device as the CEL variable `device`.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute};
use kube_cel::cel::{
    Context, Program, Value,
    objects::{Key, Map},
};

use super::reach::Reach;

/// Makes CEL values of devices. Quantities and versions are values that only kube-cel itself can
/// make, so they are made by running `quantity(text)` and `semver(text)`.
pub(super) struct DeviceValues {
    quantity: Option<Program>,
    semver: Option<Program>,
}

impl Default for DeviceValues {
    fn default() -> Self {
        Self {
            quantity: Program::compile("quantity(text)").ok(),
            semver: Program::compile("semver(text)").ok(),
        }
    }
}

/// Fields of a device by domain, then name.
type Domains = BTreeMap<String, HashMap<Key, Value>>;

impl DeviceValues {
    /// As much as the expression reads of the device with `driver`, `attributes`, `capacity` and `allowMultipleAllocations`. A name
    /// without domain stands in the driver's. Domains that the expression names and the device lacks
    /// are empty, as in Kubernetes. An attribute that is a list, or a value that cannot be read, is
    /// left out: to look at it is an error.
    pub(super) fn of(
        &self,
        driver: &str,
        device: &Device,
        reach: &Reach,
        environment: &Context<'static>,
    ) -> Value {
        let mut attributes = Domains::new();
        let attributes_read = device.attributes.iter().flatten();
        for (name, attribute) in attributes_read.filter(|(name, _)| reach.reads(driver, name)) {
            if let Some(value) = self.attribute(attribute, environment) {
                insert(&mut attributes, driver, name, value);
            }
        }
        let mut capacity = Domains::new();
        let capacity_read = device.capacity.iter().flatten();
        for (name, amount) in capacity_read.filter(|(name, _)| reach.reads(driver, name)) {
            if let Some(value) = run(self.quantity.as_ref(), &amount.value.0, environment) {
                insert(&mut capacity, driver, name, value);
            }
        }
        for domain in reach.domains() {
            attributes.entry(domain.to_owned()).or_default();
            capacity.entry(domain.to_owned()).or_default();
        }
        let shared = device.allow_multiple_allocations.unwrap_or(false);
        map([
            ("driver".into(), Value::from(driver)),
            ("attributes".into(), nested(attributes)),
            ("capacity".into(), nested(capacity)),
            ("allowMultipleAllocations".into(), Value::Bool(shared)),
        ])
    }

    fn attribute(
        &self,
        attribute: &DeviceAttribute,
        environment: &Context<'static>,
    ) -> Option<Value> {
        if let Some(text) = &attribute.string {
            return Some(Value::from(text.as_str()));
        }
        if let Some(number) = attribute.int {
            return Some(Value::Int(number));
        }
        if let Some(truth) = attribute.bool {
            return Some(Value::Bool(truth));
        }
        let version = attribute.version.as_ref()?;
        run(self.semver.as_ref(), version, environment)
    }
}

fn run(program: Option<&Program>, text: &str, environment: &Context<'static>) -> Option<Value> {
    let mut scope = environment.new_inner_scope();
    scope.add_variable_from_value("text", text);
    program?.execute(&scope).ok()
}

fn insert(domains: &mut Domains, driver: &str, name: &str, value: Value) {
    let (domain, name) = name.split_once('/').unwrap_or((driver, name));
    domains
        .entry(domain.to_owned())
        .or_default()
        .insert(name.into(), value);
}

fn nested(domains: Domains) -> Value {
    map(domains
        .into_iter()
        .map(|(domain, fields)| (domain.into(), Value::Map(Map { map: fields.into() }))))
}

fn map(entries: impl IntoIterator<Item = (Key, Value)>) -> Value {
    Value::Map(Map {
        map: entries.into_iter().collect::<HashMap<_, _>>().into(),
    })
}
