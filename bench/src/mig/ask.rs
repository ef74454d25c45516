//! What is asked for, and how a claim says so.

use std::{collections::BTreeMap, fmt};

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, DeviceRequest as ClaimedRequest, DeviceSelector, ExactDeviceRequest,
};
use muster_api::{device_class, keys};
use muster_cluster::{selectors::Selectors, shorthand::Shorthand};
use muster_engine::{DeviceChoice, DeviceRequest};

/// What one request asks for: one device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ask {
    /// A slice of this profile.
    Profile(&'static str),
    /// The smallest device with so much memory, in GiB, be it whole or a slice.
    Memory(u64),
    /// A whole GPU.
    Whole,
}

impl fmt::Display for Ask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Profile(name) => formatter.write_str(name),
            Self::Memory(gib) => write!(formatter, "{gib}Gi"),
            Self::Whole => formatter.write_str("whole GPU"),
        }
    }
}

impl Ask {
    /// The request of its claim, as a user writes it or as the shorthand stands for it.
    fn claimed(&self) -> Result<ClaimedRequest> {
        let annotation = match self {
            Self::Profile(name) => {
                let profile = format!("device.attributes['{}'].profile", keys::DRIVER);
                let selector = DeviceSelector {
                    cel: Some(CELDeviceSelector {
                        expression: format!("{profile} == '{name}'"),
                    }),
                };
                return Ok(ClaimedRequest {
                    name: "slice".to_owned(),
                    exactly: Some(ExactDeviceRequest {
                        device_class_name: device_class::MIG.name.to_owned(),
                        count: Some(1),
                        selectors: Some(vec![selector]),
                        ..ExactDeviceRequest::default()
                    }),
                    ..ClaimedRequest::default()
                });
            }
            Self::Memory(gib) => (keys::VRAM, format!("{gib}Gi")),
            Self::Whole => (keys::GPUS, "1".to_owned()),
        };
        let (key, value) = annotation;
        let annotations = BTreeMap::from([(key.to_owned(), value)]);
        let shorthand = Shorthand::read(Some(&annotations));
        let shorthand = shorthand.map_err(|errors| anyhow!("{self}: {errors:?}"))?;
        let spec = shorthand.context("no shorthand")?.claim_spec();
        let requests = spec.devices.and_then(|devices| devices.requests);
        let mut requests = requests.unwrap_or_default().into_iter();
        let request = requests.next().context("a shorthand without a request")?;
        ensure!(requests.next().is_none(), "{self}: one request is one item");
        Ok(request)
    }

    /// The same for the engine; what its choices select is interned.
    pub(super) fn request(&self, selectors: &mut Selectors) -> Result<DeviceRequest> {
        let claimed = self.claimed()?;
        let mut choice = |name: Option<&String>,
                          class: &str,
                          count: Option<i64>,
                          given: Option<&[DeviceSelector]>|
         -> Result<DeviceChoice> {
            let mut shipped = device_class::SHIPPED.iter();
            let shipped = shipped.find(|shipped| shipped.name == class);
            let shipped = shipped.with_context(|| format!("there is no DeviceClass {class}"))?;
            let given = given.unwrap_or_default().iter();
            let given =
                given.filter_map(|selector| Some(selector.cel.as_ref()?.expression.clone()));
            let expressions: Vec<String> = std::iter::once(shipped.selector.to_owned())
                .chain(given)
                .collect();
            let selector = selectors.intern(expressions);
            let (selector, _) = selector.map_err(|error| anyhow!("{self}: {error:?}"))?;
            ensure!(count.unwrap_or(1) == 1, "{self}: one request is one device");
            Ok(DeviceChoice {
                name: name.cloned(),
                selector,
                count: 1,
            })
        };
        let exactly = claimed.exactly.iter().map(|exactly| {
            let given = exactly.selectors.as_deref();
            choice(None, &exactly.device_class_name, exactly.count, given)
        });
        let mut choices = exactly.collect::<Result<Vec<_>>>()?;
        for rung in claimed.first_available.iter().flatten() {
            let given = rung.selectors.as_deref();
            let rung = choice(Some(&rung.name), &rung.device_class_name, rung.count, given)?;
            choices.push(rung);
        }
        Ok(DeviceRequest {
            name: claimed.name,
            choices,
        })
    }
}
