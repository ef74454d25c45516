//! What one request, or one alternative of it, asks of each device.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceSelector, DeviceSubRequest, ExactDeviceRequest,
};

use super::MAX_DEVICES_PER_CLAIM;
use crate::{
    quantity::{self, ExactQuantity},
    unsupported_field::UnsupportedField,
};

/// Most capacities that a request names: a device has at most so many (the API's own limit).
const MAX_CAPACITIES: usize = 32;

/// What `exactly` and an alternative of `firstAvailable` have in common.
pub(super) struct Asked<'a> {
    pub(super) class: &'a str,
    selectors: &'a [DeviceSelector],
    count: Option<i64>,
    allocation_mode: Option<&'a str>,
    admin_access: bool,
    capacity: Option<&'a CapacityRequirements>,
    has_tolerations: bool,
    has_derived_attributes: bool,
}

impl<'a> From<&'a ExactDeviceRequest> for Asked<'a> {
    fn from(exactly: &'a ExactDeviceRequest) -> Self {
        Self {
            class: &exactly.device_class_name,
            selectors: exactly.selectors.as_deref().unwrap_or_default(),
            count: exactly.count,
            allocation_mode: exactly.allocation_mode.as_deref(),
            admin_access: exactly.admin_access == Some(true),
            capacity: exactly.capacity.as_ref(),
            has_tolerations: has_any(exactly.tolerations.as_ref()),
            has_derived_attributes: has_any(exactly.derived_attributes.as_ref()),
        }
    }
}

impl<'a> From<&'a DeviceSubRequest> for Asked<'a> {
    fn from(alternative: &'a DeviceSubRequest) -> Self {
        Self {
            class: &alternative.device_class_name,
            selectors: alternative.selectors.as_deref().unwrap_or_default(),
            count: alternative.count,
            allocation_mode: alternative.allocation_mode.as_deref(),
            admin_access: false,
            capacity: alternative.capacity.as_ref(),
            has_tolerations: has_any(alternative.tolerations.as_ref()),
            has_derived_attributes: has_any(alternative.derived_attributes.as_ref()),
        }
    }
}

impl Asked<'_> {
    /// An error for what changes what kube-scheduler takes in a way that is not planned.
    pub(super) fn check_plain(&self, path: &str) -> Result<(), UnsupportedField> {
        let refuse =
            |field: &str, why: &str| Err(UnsupportedField::new(format!("{path}.{field}"), why));
        if self.admin_access {
            return refuse("adminAccess", "devices that others hold are not planned");
        }
        if let Some(mode) = self.allocation_mode
            && mode != "ExactCount"
        {
            return refuse(
                "allocationMode",
                &format!("{mode} is not planned; use ExactCount with a count"),
            );
        }
        if self.has_tolerations {
            return refuse("tolerations", "tainted devices are not planned");
        }
        if self.has_derived_attributes {
            return refuse("derivedAttributes", "is not evaluated");
        }
        Ok(())
    }

    /// How many devices.
    pub(super) fn count(&self, path: &str) -> Result<u32, UnsupportedField> {
        let count = self.count.unwrap_or(1);
        u32::try_from(count)
            .ok()
            .filter(|count| (1..=MAX_DEVICES_PER_CLAIM).contains(count))
            .ok_or_else(|| {
                UnsupportedField::new(
                    format!("{path}.count"),
                    format!("is {count}; a claim has 1 to {MAX_DEVICES_PER_CLAIM} devices"),
                )
            })
    }

    /// How much a device must have of each capacity.
    pub(super) fn capacity(
        &self,
        path: &str,
    ) -> Result<BTreeMap<String, ExactQuantity>, UnsupportedField> {
        let asked = self
            .capacity
            .and_then(|capacity| capacity.requests.as_ref());
        let Some(asked) = asked else {
            return Ok(BTreeMap::new());
        };
        let path = format!("{path}.capacity.requests");
        if asked.len() > MAX_CAPACITIES {
            let why = format!(
                "names {} capacities; a device has at most {MAX_CAPACITIES}",
                asked.len()
            );
            return Err(UnsupportedField::new(path, why));
        }
        let amounts = asked.iter().map(|(name, amount)| {
            let amount = quantity::exact(&amount.0, &format!("{path}[{name}]"))?;
            Ok((name.clone(), amount))
        });
        amounts.collect()
    }

    /// Its expressions.
    pub(super) fn expressions(
        &self,
        path: &dyn Fn(usize) -> String,
    ) -> Result<Vec<String>, UnsupportedField> {
        expressions(self.selectors, path)
    }
}

/// The expressions of selectors. `path` says where each stands.
pub(super) fn expressions(
    selectors: &[DeviceSelector],
    path: &dyn Fn(usize) -> String,
) -> Result<Vec<String>, UnsupportedField> {
    selectors
        .iter()
        .enumerate()
        .map(|(index, selector)| match &selector.cel {
            Some(cel) => Ok(cel.expression.clone()),
            None => Err(UnsupportedField::new(
                path(index),
                "is of a kind that is not known; use cel",
            )),
        })
        .collect()
}

fn has_any<V>(list: Option<&Vec<V>>) -> bool {
    list.is_some_and(|list| !list.is_empty())
}
