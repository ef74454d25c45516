//! The instances that exist now.

use std::collections::BTreeMap;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings as raw;

use super::{
    card::Card,
    instances::{ComputeInstance, ComputeInstanceInfo, GpuInstance, GpuInstanceInfo},
};
use crate::mig::MigInstance;

/// A GPU instance that exists.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) handle: GpuInstance,
    pub(super) info: GpuInstanceInfo,
    /// Its compute instances, ascending by their numbers.
    pub(super) computes: Vec<FoundCompute>,
    /// Compute slices of its profile.
    compute_slices: u32,
}

/// A compute instance that exists.
#[derive(Debug)]
pub(super) struct FoundCompute {
    pub(super) handle: ComputeInstance,
    info: ComputeInstanceInfo,
    compute_slices: u32,
}

/// All GPU instances, ascending by their numbers. None while the mode is off.
pub(super) fn found(card: &Card<'_>) -> Result<Vec<Found>, NvmlError> {
    if !card.mode()?.is_some_and(|mode| mode.current) {
        return Ok(Vec::new());
    }
    let profiles = card.profiles()?;
    if profiles.is_empty() {
        // They are listed by profile: nobody can say that there are none.
        return Err(NvmlError::NotSupported);
    }
    let mut found = BTreeMap::new();
    for profile in profiles {
        for handle in card.gpu_instances(profile.id)? {
            let info = match card.gpu_instance_info(handle) {
                Ok(info) => info,
                // Somebody has just destroyed it.
                Err(NvmlError::NotFound) => continue,
                Err(error) => return Err(error),
            };
            let one = Found {
                handle,
                info,
                computes: computes(card, handle)?,
                compute_slices: profile.compute_slices,
            };
            found.insert(info.id, one);
        }
    }
    Ok(found.into_values().collect())
}

fn computes(card: &Card<'_>, instance: GpuInstance) -> Result<Vec<FoundCompute>, NvmlError> {
    let mut computes = BTreeMap::new();
    for profile in card.compute_profiles(instance)? {
        for handle in card.compute_instances(instance, profile.id)? {
            match card.compute_instance_info(handle) {
                Ok(info) => {
                    let compute_slices = profile.compute_slices;
                    let one = FoundCompute {
                        handle,
                        info,
                        compute_slices,
                    };
                    computes.insert(info.id, one);
                }
                Err(NvmlError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(computes.into_values().collect())
}

/// What exists, ascending by place.
pub(super) fn instances(card: &Card<'_>) -> Result<Vec<MigInstance>, NvmlError> {
    let mut uuids = Uuids::new(card);
    let mut instances = Vec::new();
    for one in found(card)? {
        let first = one.computes.first();
        let is_divided = match one.computes.as_slice() {
            [] => false,
            [only] => only.compute_slices != one.compute_slices,
            _ => true,
        };
        let uuid = match first {
            Some(compute) if !is_divided => uuids.of(one.info.id, compute.info)?,
            _ => None,
        };
        instances.push(MigInstance {
            placement: one.info.placement,
            gpu_instance: one.info.id,
            compute_instance: first.map(|compute| compute.info.id),
            is_divided,
            profile: one.info.profile,
            uuid,
        });
    }
    instances.sort();
    Ok(instances)
}

/// UUIDs of slices.
#[derive(Debug)]
pub(super) struct Uuids<'a> {
    card: &'a Card<'a>,
    /// All of them, by the numbers of their instances. To list them may take seconds.
    listed: Option<BTreeMap<(u32, u32), String>>,
}

impl<'a> Uuids<'a> {
    pub(super) fn new(card: &'a Card<'a>) -> Self {
        Self { card, listed: None }
    }

    /// That of a compute instance in a GPU instance; `None` if NVML lists no such slice. Some drivers give the slice's handle with
    /// the instance; others give the GPU's, and the slices have to be listed.
    pub(super) fn of(
        &mut self,
        gpu_instance: u32,
        compute: ComputeInstanceInfo,
    ) -> Result<Option<String>, NvmlError> {
        let numbers = (gpu_instance, compute.id);
        if self.is_of(compute.device, numbers) {
            return self.card.uuid(compute.device).map(Some);
        }
        if self.listed.is_none() {
            self.listed = Some(self.list()?);
        }
        let listed = self.listed.as_ref();
        Ok(listed.and_then(|listed| listed.get(&numbers).cloned()))
    }

    fn is_of(&self, device: raw::nvmlDevice_t, numbers: (u32, u32)) -> bool {
        !device.is_null()
            && self.card.is_slice(device).unwrap_or(false)
            && self.card.numbers(device).is_ok_and(|own| own == numbers)
    }

    fn list(&self) -> Result<BTreeMap<(u32, u32), String>, NvmlError> {
        let mut listed = BTreeMap::new();
        for device in self.card.mig_devices()? {
            let named = self
                .card
                .numbers(device)
                .and_then(|numbers| Ok((numbers, self.card.uuid(device)?)));
            match named {
                Ok((numbers, uuid)) => {
                    listed.insert(numbers, uuid);
                }
                // Somebody has just destroyed it.
                Err(NvmlError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(listed)
    }
}
