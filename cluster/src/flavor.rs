//! Which devices a Flavor counts, as its spec says.

use std::collections::BTreeMap;

use muster_api::{FlavorSpec, keys};

use crate::selectors;

/// The devices of a driver, or a resource of a device plugin, on some nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope<'a> {
    /// Labels that the node must carry.
    pub node_selector: &'a BTreeMap<String, String>,
    /// What counts there.
    pub counts: Counts<'a>,
}

/// Who hands out what a Flavor counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts<'a> {
    /// A DRA driver.
    Devices {
        /// The driver.
        driver: &'a str,
        /// The expression that a device must match, if any.
        selector: Option<&'a str>,
    },
    /// A device plugin, by this extended resource.
    Resource(&'a str),
}

impl<'a> Scope<'a> {
    /// Reads the spec. One that says both, which the API server refuses, counts the resource.
    pub fn of(spec: &'a FlavorSpec) -> Self {
        let devices = spec.devices.as_ref();
        Self {
            node_selector: &spec.node_selector,
            counts: match &spec.extended_resource {
                Some(resource) => Counts::Resource(resource),
                None => Counts::Devices {
                    driver: devices.map_or(keys::DRIVER, |devices| devices.driver.as_str()),
                    selector: devices.and_then(|devices| devices.selector.as_deref()),
                },
            },
        }
    }

    /// The expression that a device must match, if any.
    pub fn selector(&self) -> Option<&'a str> {
        match self.counts {
            Counts::Devices { selector, .. } => selector,
            Counts::Resource(_) => None,
        }
    }

    /// Whether Muster's driver hands out what counts.
    pub fn is_of_our_driver(&self) -> bool {
        matches!(self.counts, Counts::Devices { driver, .. } if driver == keys::DRIVER)
    }

    /// Why the expression is none, if so. It is not evaluated.
    pub fn check_selector(&self) -> Result<(), String> {
        let Some(selector) = self.selector() else {
            return Ok(());
        };
        selectors::check(&[selector.to_owned()]).map_err(|error| error.cause)
    }

    /// Whether everything that the other one counts counts here, too, whatever there is. Expressions are compared as
    /// text: those that are written otherwise may say the same.
    pub fn covers(&self, other: &Self) -> bool {
        let mut labels = self.node_selector.iter();
        let counts_it = match (self.counts, other.counts) {
            (
                Counts::Devices { driver, selector },
                Counts::Devices {
                    driver: of,
                    selector: matching,
                },
            ) => driver == of && (selector.is_none() || selector == matching),
            (Counts::Resource(own), Counts::Resource(of)) => own == of,
            _ => false,
        };
        counts_it && labels.all(|(key, value)| other.node_selector.get(key) == Some(value))
    }
}
