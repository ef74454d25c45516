//! What a look at a GPU tells: faults that no event did, and which are over.

use super::{
    super::{
        catalogue::Catalogue,
        class::FaultClass,
        condition::Condition,
        fault::Change,
        observation::Scope,
        recovery::{Proof, Recovery},
    },
    Device, FaultState, GpuFaults, KnownAddresses,
};

impl FaultState {
    /// What a look at a GPU found.
    pub fn look(
        &mut self,
        catalogue: &Catalogue,
        uuid: &str,
        condition: &Condition,
        known: &KnownAddresses,
        now_unix_seconds: i64,
    ) -> Change {
        let before = self.sequence;
        let links = condition.active_links;
        let stay_down = self
            .gpus
            .get_mut(uuid)
            .is_some_and(|faults| faults.links_stay_down(links, now_unix_seconds));
        let remembered = self.gpus.get(uuid);
        let best = remembered.and_then(GpuFaults::best_links);
        let errors = remembered.map(GpuFaults::errors).unwrap_or_default();
        let device = Device::Uuid(uuid.to_owned());
        let mut change = Change::None;
        let found = condition.observations(catalogue, best.filter(|_| stay_down), &errors);
        for observation in found {
            let seen = self.observe_by(catalogue, &device, observation, known, now_unix_seconds);
            change = change.max(seen);
        }
        if known.uuid(&device).is_none() {
            return change;
        }
        let now = self.sequence;
        let faults = self.gpus.entry(uuid.to_owned()).or_default();
        if condition.active_links > best {
            faults.note_links(condition.active_links);
            change = change.max(Change::Again);
        }
        faults.note_condition(condition, before, now, now_unix_seconds);
        self.forget_empty();
        change
    }

    /// What a look at a GPU proves to be over, beside what the start of the machine has mended: that its NVLinks work, and that it was reset.
    /// To be asked after [`Self::look`], with what that was given.
    pub fn proved(
        &self,
        uuid: &str,
        condition: &Condition,
        now_unix_seconds: i64,
    ) -> Vec<Recovery> {
        let Some(faults) = self.gpus.get(uuid) else {
            return Vec::new();
        };
        let links = faults.links_work_mark(now_unix_seconds);
        let links = links.map(|mark| (Proof::LinksWork, mark));
        // One that was seen by what it changed, or one that was done here.
        let reset = faults.reset_mark(condition).max(faults.reset_done_mark());
        let reset = reset.map(|mark| (Proof::Reset, mark));
        let proofs = links.into_iter().chain(reset);
        let is_of_use = |(proof, mark): &(Proof, u64)| {
            let mut all = faults.all().iter();
            all.any(|fault| {
                fault.class.is_fault() && proof.heals(fault.class) && fault.newest <= *mark
            })
        };
        let proofs = proofs.filter(is_of_use);
        proofs
            .map(|(proof, mark)| Recovery {
                proof,
                scope: Scope::Gpu,
                mark,
            })
            .collect()
    }

    /// Parts of a GPU whose faults are over once nobody uses them any more.
    pub fn waits_for_idle(&self, uuid: &str) -> Vec<Scope> {
        let faults = self.gpus.get(uuid).map(GpuFaults::all);
        let faults = faults.unwrap_or_default().iter();
        let contained = faults.filter(|fault| fault.class == FaultClass::Contained);
        contained.map(|fault| fault.scope).collect()
    }
}
