//! Which devices a Flavor counts, as its spec says.

use std::collections::BTreeMap;

use muster_api::{FlavorSpec, keys};

use crate::selectors;

/// The devices of a driver on some nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope<'a> {
    /// Labels that the node must carry.
    pub node_selector: &'a BTreeMap<String, String>,
    /// The driver.
    pub driver: &'a str,
    /// The expression that a device must match, if any.
    pub selector: Option<&'a str>,
}

impl<'a> Scope<'a> {
    /// Reads the spec.
    pub fn of(spec: &'a FlavorSpec) -> Self {
        let devices = spec.devices.as_ref();
        Self {
            node_selector: &spec.node_selector,
            driver: devices.map_or(keys::DRIVER, |devices| devices.driver.as_str()),
            selector: devices.and_then(|devices| devices.selector.as_deref()),
        }
    }

    /// Why the expression is none, if so. It is not evaluated.
    pub fn check_selector(&self) -> Result<(), String> {
        let Some(selector) = self.selector else {
            return Ok(());
        };
        selectors::check(&[selector.to_owned()]).map_err(|error| error.cause)
    }

    /// Whether every device that the other one counts counts here, too, whatever devices there are. Expressions are compared as
    /// text: those that are written otherwise may say the same.
    pub fn covers(&self, other: &Self) -> bool {
        let mut labels = self.node_selector.iter();
        self.driver == other.driver
            && (self.selector.is_none() || self.selector == other.selector)
            && labels.all(|(key, value)| other.node_selector.get(key) == Some(value))
    }
}
