//! Slices of a node's GPUs, with the rules by which hardware makes and removes them.
//!
//! A slice is made in two steps, its GPU instance and then the compute instance in it, and goes in two steps, so that a crash or a
//! failure leaves halves. A place that is taken is refused whoever has it; a slice that a listed process uses is not removed; the
//! lowest free number is given away again.

use std::{collections::BTreeMap, sync::Arc};

use muster_dra_driver::prepare::{
    MadeSlice, Media, MigInstance, MigProfile, Placement, SliceOrder, Unit,
};

/// Compute slices of a GPU.
const COMPUTE_SLICES: u32 = 7;
/// Memory slices of a GPU.
const MEMORY_SLICES: u32 = 8;

/// Slices of a node's GPUs.
#[derive(Clone, Debug, Default)]
pub struct GpuSlices {
    /// What each GPU can be cut into; nothing: they are whole.
    pub profiles: Vec<Arc<MigProfile>>,
    /// What is there, by UUID of the GPU, each with the compute slices that it takes.
    live: BTreeMap<String, Vec<(MigInstance, u32)>>,
    /// Who holds the lock of a GPU, by its UUID.
    locks: BTreeMap<String, u64>,
    /// How many changes by drivers have begun, by UUID of the GPU.
    changes: BTreeMap<String, u64>,
    numbers: u64,
}

impl GpuSlices {
    /// GPUs that can be cut as an H100 can be (`reference/dra.md`, 8.3), but for the profiles with media engines.
    pub fn of_hopper() -> Self {
        let profile =
            |name: &str, number: u32, compute_slices: u32, memory_slices: u32, starts: &[u32]| {
                let placements = starts.iter().map(|&start| Placement {
                    start,
                    size: memory_slices,
                });
                Arc::new(MigProfile {
                    name: name.to_owned(),
                    gpu_instance_profile: number,
                    compute_instance_profile: number,
                    memory_bytes: u64::from(memory_slices) << 30,
                    multiprocessors: 16 * compute_slices,
                    compute_slices,
                    memory_slices,
                    media: Media::default(),
                    max_instances: MEMORY_SLICES / memory_slices,
                    placements: placements.collect(),
                })
            };
        Self {
            profiles: vec![
                profile("1g.10gb", 19, 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
                profile("1g.20gb", 15, 1, 2, &[0, 2, 4, 6]),
                profile("2g.20gb", 14, 2, 2, &[0, 2, 4]),
                profile("3g.40gb", 9, 3, 4, &[0, 4]),
                profile("4g.40gb", 5, 4, 4, &[0]),
                profile("7g.80gb", 0, 7, 8, &[0]),
            ],
            ..Self::default()
        }
    }

    /// Share of a GPU that a slice takes, in thousandths.
    pub fn gpus_milli(profile: &MigProfile) -> i64 {
        let share = |part: u32, all: u32| i64::from(part) * 1_000 / i64::from(all);
        share(profile.compute_slices, COMPUTE_SLICES)
            .max(share(profile.memory_slices, MEMORY_SLICES))
    }

    /// What is there on a GPU.
    pub fn live(&self, gpu: &str) -> Vec<MigInstance> {
        let there = self.live.get(gpu).into_iter().flatten();
        there.map(|(instance, _)| instance.clone()).collect()
    }

    /// What is there, with the UUID of its GPU.
    pub fn all(&self) -> impl Iterator<Item = (&str, &MigInstance)> {
        self.live.iter().flat_map(|(gpu, there)| {
            let there = there.iter();
            there.map(move |(instance, _)| (gpu.as_str(), instance))
        })
    }

    /// A number that nobody has had.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Whether somebody else holds the lock of a GPU.
    pub fn is_locked(&self, gpu: &str, by: Option<u64>) -> bool {
        self.locks
            .get(gpu)
            .is_some_and(|holder| Some(*holder) != by)
    }

    /// A driver that has the lock of a GPU, or keeps it for no longer than a step, begins to change it.
    pub fn begin_change(&mut self, gpu: &str) {
        *self.changes.entry(gpu.to_owned()).or_default() += 1;
    }

    /// How many changes of a GPU have begun; an error while one is under way.
    pub fn changes(&self, gpu: &str) -> Result<u64, String> {
        if self.is_locked(gpu, None) {
            return Err(format!("GPU {gpu} is being changed"));
        }
        Ok(self.changes.get(gpu).copied().unwrap_or_default())
    }

    /// Takes the lock of a GPU, which is free.
    pub fn lock(&mut self, gpu: &str) -> u64 {
        let holder = self.number();
        self.locks.insert(gpu.to_owned(), holder);
        holder
    }

    /// Gives a lock back; whoever dies does, too.
    pub fn unlock(&mut self, holder: u64) {
        self.locks.retain(|_, held| *held != holder);
    }

    /// Makes the GPU instance of a slice.
    pub fn make_gpu_instance(&mut self, order: &SliceOrder) -> Result<(), String> {
        let there = self.live.entry(order.gpu.clone()).or_default();
        let used: u32 = there.iter().map(|(_, compute)| compute).sum();
        let is_taken =
            |(instance, _): &(MigInstance, u32)| instance.placement.overlaps(order.placement);
        let is_legal = order.profile.placements.contains(&order.placement);
        if !is_legal
            || there.iter().any(is_taken)
            || used + order.profile.compute_slices > COMPUTE_SLICES
        {
            return Err("insufficient resources".to_owned());
        }
        let is_free = |number: &u32| {
            let mut numbers = there.iter().map(|(instance, _)| instance.gpu_instance);
            !numbers.any(|taken| taken == *number)
        };
        let gpu_instance = (1..=COMPUTE_SLICES).find(is_free).unwrap_or_default();
        let instance = MigInstance {
            placement: order.placement,
            gpu_instance,
            compute_instance: None,
            is_divided: false,
            profile: order.profile.gpu_instance_profile,
            uuid: None,
        };
        there.push((instance, order.profile.compute_slices));
        Ok(())
    }

    /// Makes the compute instance in it.
    pub fn make_compute_instance(&mut self, order: &SliceOrder) -> Result<MadeSlice, String> {
        let number = self.number();
        let there = self.live.entry(order.gpu.clone()).or_default();
        let mut there = there.iter_mut().map(|(instance, _)| instance);
        let instance = there
            .find(|instance| instance.placement == order.placement)
            .ok_or("there is no GPU instance")?;
        instance.compute_instance = Some(0);
        instance.uuid = Some(format!("MIG-{number}"));
        MadeSlice::of(instance).ok_or_else(|| "it is not whole".to_owned())
    }

    /// Removes the compute instance of a slice, or then its GPU instance. Whether it is gone.
    pub fn remove_step(&mut self, gpu: &str, placement: Placement) -> bool {
        let Some(there) = self.live.get_mut(gpu) else {
            return true;
        };
        let found = there
            .iter()
            .position(|(instance, _)| instance.placement == placement);
        let Some(found) = found else {
            return true;
        };
        let instance = &mut there[found].0;
        if instance.compute_instance.take().is_some() {
            instance.uuid = None;
            return false;
        }
        there.remove(found);
        true
    }

    /// The machine went down: nothing of it is left.
    pub fn reset(&mut self) {
        self.live.clear();
        self.locks.clear();
    }
}

/// The Unit of a slice that is there.
pub fn unit_of(gpu: &str, instance: &MigInstance) -> Unit {
    Unit::slice(gpu, instance.placement, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(slices: &GpuSlices, name: &str, start: u32) -> SliceOrder {
        let profile = slices.profiles.iter().find(|profile| profile.name == name);
        let profile = profile.unwrap().clone();
        let size = profile.memory_slices;
        SliceOrder {
            gpu: "GPU-0".to_owned(),
            profile,
            placement: Placement { start, size },
            is_new: false,
        }
    }

    #[test]
    fn what_overlaps_is_refused_and_a_number_is_given_away_again() {
        let mut slices = GpuSlices::of_hopper();
        let large = order(&slices, "3g.40gb", 0);
        slices.make_gpu_instance(&large).unwrap();
        slices.make_compute_instance(&large).unwrap();
        let inside = order(&slices, "1g.10gb", 3);
        slices.make_gpu_instance(&inside).unwrap_err();
        let beside = order(&slices, "1g.10gb", 4);
        slices.make_gpu_instance(&beside).unwrap();
        assert!(!slices.remove_step("GPU-0", large.placement));
        assert!(slices.remove_step("GPU-0", large.placement));
        slices.make_gpu_instance(&inside).unwrap();
        let numbers: Vec<u32> = slices.all().map(|(_, it)| it.gpu_instance).collect();
        assert_eq!(numbers, [2, 1]);
    }

    #[test]
    fn a_place_that_the_profile_does_not_have_is_refused() {
        let mut slices = GpuSlices::of_hopper();
        let odd = order(&slices, "3g.40gb", 1);
        slices.make_gpu_instance(&odd).unwrap_err();
    }

    #[test]
    fn a_slice_costs_the_larger_of_its_shares() {
        let slices = GpuSlices::of_hopper();
        let milli = |name: &str| GpuSlices::gpus_milli(&order(&slices, name, 0).profile);
        assert_eq!(
            ["1g.10gb", "1g.20gb", "3g.40gb", "7g.80gb"].map(milli),
            [142, 250, 500, 1_000]
        );
    }
}
