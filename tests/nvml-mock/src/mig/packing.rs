//! What fits beside what: GPU instances on a GPU, compute instances in a GPU instance.

use super::{Engines, Profile, Table};
use crate::state::{Card, ComputeInstance, GpuInstance, Placement};

/// Why the hardware refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such profile, or it cannot be there.
    Invalid,
    /// What it needs is taken, or there are as many of it as there may be.
    Insufficient,
    /// It is in use: a process runs there, or compute instances exist.
    InUse,
    /// There is no such instance.
    NotFound,
}

/// What instances have together.
#[derive(Clone, Copy, Default)]
struct Taken {
    compute_slices: u32,
    multiprocessors: u32,
    engines: Engines,
}

impl Taken {
    fn plus(self, profile: &Profile) -> Self {
        Self {
            compute_slices: self.compute_slices + profile.compute_slices,
            multiprocessors: self.multiprocessors + profile.multiprocessors,
            engines: Engines {
                copy: self.engines.copy + profile.engines.copy,
                decoders: self.engines.decoders + profile.engines.decoders,
                jpeg: self.engines.jpeg + profile.engines.jpeg,
                optical_flow: self.engines.optical_flow + profile.engines.optical_flow,
            },
        }
    }

    fn is_within(self, table: &Table) -> bool {
        let (mine, all) = (self.engines, table.engines);
        self.compute_slices <= table.compute_slices
            && self.multiprocessors <= table.multiprocessors
            && mine.copy <= all.copy
            && mine.decoders <= all.decoders
            && mine.jpeg <= all.jpeg
            && mine.optical_flow <= all.optical_flow
    }
}

/// Where another instance of the profile can be made now.
pub fn free_placements(table: &Table, card: &Card, profile: &Profile) -> Vec<Placement> {
    let existing = &card.gpu_instances;
    let of_this = existing.iter().filter(|one| one.profile == profile.id);
    let number = u32::try_from(of_this.count()).unwrap_or(u32::MAX);
    let known = existing.iter().filter_map(|one| table.profile(one.profile));
    let taken = known.fold(Taken::default(), Taken::plus);
    if number >= profile.max_instances || !taken.plus(profile).is_within(table) {
        return Vec::new();
    }
    let is_free = |place: &Placement| !existing.iter().any(|one| one.placement.overlaps(*place));
    profile.placements().filter(is_free).collect()
}

/// How many more instances of the profile there can be.
pub fn remaining(table: &Table, card: &Card, profile: &Profile) -> u32 {
    let mut card = card.clone();
    let mut number = 0;
    // Places of one profile are of one size and aligned to it: to take the first never costs a second one.
    while create_gpu_instance(table, &mut card, profile.id, None).is_ok() {
        number += 1;
    }
    number
}

/// Makes a GPU instance; without a placement at the first that is free. Its id.
pub fn create_gpu_instance(
    table: &Table,
    card: &mut Card,
    profile: u32,
    placement: Option<Placement>,
) -> Result<u32, Refusal> {
    let profile = table.profile(profile).ok_or(Refusal::Invalid)?;
    if placement.is_some_and(|wanted| !profile.placements().any(|place| place == wanted)) {
        return Err(Refusal::Invalid);
    }
    let free = free_placements(table, card, profile);
    let wanted = |place: &Placement| placement.is_none_or(|wanted| wanted == *place);
    let placement = free.into_iter().find(wanted);
    let placement = placement.ok_or(Refusal::Insufficient)?;
    let id = table.gpu_instance_id(placement);
    card.gpu_instances.push(GpuInstance {
        id,
        profile: profile.id,
        placement,
        compute_instances: Vec::new(),
    });
    card.gpu_instances.sort_by_key(|instance| instance.id);
    Ok(id)
}

/// Destroys a GPU instance. `is_used` says whether a process runs on it.
pub fn destroy_gpu_instance(card: &mut Card, id: u32, is_used: bool) -> Result<(), Refusal> {
    let instance = gpu_instance(card, id)?;
    if is_used || !instance.compute_instances.is_empty() {
        return Err(Refusal::InUse);
    }
    card.gpu_instances.retain(|instance| instance.id != id);
    Ok(())
}

/// Where another compute instance of this profile can be made now.
pub fn free_compute_placements(
    table: &Table,
    instance: &GpuInstance,
    compute_profile: u32,
) -> Result<Vec<Placement>, Refusal> {
    let profile = table.profile(instance.profile).ok_or(Refusal::Invalid)?;
    let wanted = profile.compute_profile(compute_profile);
    let wanted = wanted.ok_or(Refusal::Invalid)?;
    let existing = &instance.compute_instances;
    let is_free = |place: &Placement| !existing.iter().any(|one| one.placement.overlaps(*place));
    let mut places = wanted.placements(profile.compute_slices);
    places.retain(is_free);
    Ok(places)
}

/// How many more compute instances of this profile there can be.
pub fn remaining_compute(
    table: &Table,
    instance: &GpuInstance,
    compute_profile: u32,
) -> Result<u32, Refusal> {
    // Places of one profile never overlap.
    let free = free_compute_placements(table, instance, compute_profile)?;
    Ok(u32::try_from(free.len()).unwrap_or(u32::MAX))
}

/// Makes a compute instance; without a placement at the first that is free. Its id.
pub fn create_compute_instance(
    table: &Table,
    card: &mut Card,
    gpu_instance_id: u32,
    compute_profile: u32,
    placement: Option<Placement>,
) -> Result<u32, Refusal> {
    let instance = gpu_instance(card, gpu_instance_id)?;
    let free = free_compute_placements(table, instance, compute_profile)?;
    let profile = table.profile(instance.profile).ok_or(Refusal::Invalid)?;
    let all = profile
        .compute_profile(compute_profile)
        .map(|wanted| wanted.placements(profile.compute_slices));
    if placement.is_some_and(|wanted| !all.unwrap_or_default().contains(&wanted)) {
        return Err(Refusal::Invalid);
    }
    let wanted = |place: &Placement| placement.is_none_or(|wanted| wanted == *place);
    let placement = free.into_iter().find(wanted);
    let placement = placement.ok_or(Refusal::Insufficient)?;
    let instances = &mut instance.compute_instances;
    let is_taken = |id: &u32| instances.iter().any(|one| one.id == *id);
    let id = (0..super::MOST_COMPUTE_INSTANCES).find(|id| !is_taken(id));
    let id = id.ok_or(Refusal::Insufficient)?;
    instances.push(ComputeInstance {
        id,
        profile: compute_profile,
        placement,
    });
    instances.sort_by_key(|instance| instance.id);
    Ok(id)
}

/// Destroys a compute instance. `is_used` says whether a process runs on it.
pub fn destroy_compute_instance(
    card: &mut Card,
    gpu_instance_id: u32,
    id: u32,
    is_used: bool,
) -> Result<(), Refusal> {
    let instances = &mut gpu_instance(card, gpu_instance_id)?.compute_instances;
    if !instances.iter().any(|instance| instance.id == id) {
        return Err(Refusal::NotFound);
    }
    if is_used {
        return Err(Refusal::InUse);
    }
    instances.retain(|instance| instance.id != id);
    Ok(())
}

fn gpu_instance(card: &mut Card, id: u32) -> Result<&mut GpuInstance, Refusal> {
    let mut instances = card.gpu_instances.iter_mut();
    instances
        .find(|instance| instance.id == id)
        .ok_or(Refusal::NotFound)
}
