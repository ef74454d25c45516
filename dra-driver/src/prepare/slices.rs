//! How the machine has slices made and removed (`slice` says in which order, and why that is safe).

use std::collections::BTreeSet;

use muster_api::Reason;
use muster_device::{MigInstance, Placement};

use super::{
    claim::ClaimRef,
    disk::{Disk, Record, RecordState},
    effect::{
        Answer, CallId, DiskFailure, Effect, Fence, InUse, LiveSlices, Refusal, RemovalId,
        SliceFailure, Write,
    },
    injected_bug::InjectedBug,
    machine::{Machine, Stage},
    slice::{Foreign, Lying, Made, MadeSlice, PlacedSlice, SliceOrder, lying},
    task::{After, Decision, disk_failed, plain},
};

/// Slices that are being removed, and what follows.
#[derive(Debug)]
pub(super) struct Removal {
    /// Whose.
    pub(super) claim: ClaimRef,
    /// The mark that was on the record when it was decided. Another one since is a later wish.
    pub(super) call: Option<String>,
    /// What follows.
    pub(super) then: Then,
}

/// What follows a removal.
#[derive(Debug)]
pub(super) enum Then {
    /// The record goes, and the Unprepare is answered, if one asked.
    Gone(Option<CallId>),
    /// The Prepare that failed is undone, and answered with this.
    Undo(CallId, Answer),
    /// The Prepare goes on, for a later allocation.
    Earlier(CallId),
}

impl Machine {
    /// Compares the slices that are there with what is to be recorded. A place must be empty, or hold what the record of this
    /// claim named before; a slice that is not ours to make must be there.
    pub(super) fn place_slices(
        &self,
        record: &mut Record,
        disk: &Disk,
        live: &LiveSlices,
    ) -> Result<(), Refusal> {
        let own = disk.records.get(&record.claim.uid);
        let takes_foreign = self.broken(InjectedBug::ForeignSliceTaken);
        let claim = &record.claim;
        for device in &mut record.devices {
            let gpu = &device.unit.gpu;
            if device.slice.is_none() && !self.can_be_cut(gpu) {
                continue;
            }
            let found = match live.get(gpu) {
                Some(Ok(found)) => found,
                Some(Err(cause)) => return Err(unlisted(claim, gpu, cause)),
                None => return Err(unlisted(claim, gpu, "nobody asked for them")),
            };
            let Some(slice) = &mut device.slice else {
                match found.first() {
                    Some(instance) if !device.admin_access => {
                        return Err(foreign(claim, gpu, instance));
                    }
                    _ => continue,
                }
            };
            let lies = lying(slice.gpu_instance_profile, slice.placement, found);
            let is_own = |instance: &MigInstance| own.is_some_and(|own| own.names(gpu, instance));
            // It was made for this claim while slices were this driver's to make. Whosever they are by now, it goes with the claim.
            if let Lying::Same(instance) = lies
                && is_own(instance)
                && !device.admin_access
            {
                slice.stays = false;
            }
            if slice.stays {
                let made = match lies {
                    Lying::Same(instance) => MadeSlice::of(instance),
                    Lying::Nothing | Lying::Other(_) => None,
                };
                slice.made = Some(made.ok_or_else(|| {
                    let Placement { start, .. } = slice.placement;
                    plain(format!(
                        "claim {claim}: there is no slice {} with a compute instance of all its compute at memory slice \
                         {start} of GPU {gpu}",
                        slice.profile
                    ))
                })?);
                continue;
            }
            let is_ours = |instance: &MigInstance| takes_foreign || is_own(instance);
            match lies {
                Lying::Nothing => {}
                Lying::Same(instance) if is_ours(instance) => {}
                Lying::Same(instance) | Lying::Other(instance) => {
                    return Err(foreign(claim, gpu, instance));
                }
            }
        }
        Ok(())
    }

    /// What has to be made for a record that is about to be written to this disk, each once.
    pub(super) fn orders(&self, record: &Record, disk: &Disk) -> Result<Vec<SliceOrder>, Refusal> {
        let own = disk.records.get(&record.claim.uid);
        let named = own.map(Record::removable).unwrap_or_default();
        let takes_foreign = self.broken(InjectedBug::ForeignSliceTaken);
        let mut orders: Vec<SliceOrder> = Vec::new();
        let mut known: BTreeSet<(&str, Placement)> = BTreeSet::new();
        for device in record.devices.iter().filter(|device| !device.admin_access) {
            let Some(slice) = device.slice.as_ref().filter(|slice| !slice.stays) else {
                continue;
            };
            if !known.insert((device.unit.gpu.as_str(), slice.placement)) {
                continue;
            }
            let facts = self
                .inventory
                .as_ref()
                .and_then(|inventory| inventory.get(&device.device))
                .and_then(|facts| facts.slice.as_ref())
                .ok_or_else(|| {
                    plain(format!(
                        "claim {}: there is no device {} at present",
                        record.claim, device.device
                    ))
                })?;
            let is_it = |named: &PlacedSlice| {
                named.gpu == device.unit.gpu && named.placement == slice.placement
            };
            orders.push(SliceOrder {
                gpu: device.unit.gpu.clone(),
                profile: facts.profile.clone(),
                placement: slice.placement,
                is_new: !takes_foreign && !named.iter().any(is_it),
            });
        }
        Ok(orders)
    }

    /// GPUs of a record that can be cut into slices, by a claim or by an administrator, and are used whole.
    pub(super) fn wholes(&self, record: &Record) -> Vec<String> {
        let devices = record.devices.iter();
        let wholes = devices.filter(|device| device.slice.is_none() && !device.admin_access);
        let gpus: BTreeSet<&String> = wholes.map(|device| &device.unit.gpu).collect();
        let gpus = gpus.into_iter().filter(|gpu| self.can_be_cut(gpu));
        gpus.cloned().collect()
    }

    /// Whether slices of this GPU are devices.
    pub(super) fn can_be_cut(&self, gpu: &str) -> bool {
        let mut inventory = self.inventory.iter().flatten();
        inventory.any(|(_, facts)| facts.slice.is_some() && facts.unit.gpu == gpu)
    }

    /// The intent is on disk.
    pub(super) fn make(
        &mut self,
        id: CallId,
        orders: Vec<SliceOrder>,
        wholes: Vec<String>,
        effects: &mut Vec<Effect>,
    ) {
        let mark = self.mark(id);
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        call.stage = Stage::Making;
        let cut = orders.iter().map(|order| order.gpu.clone());
        let changing: BTreeSet<String> = cut.chain(wholes.iter().cloned()).collect();
        call.changing.clone_from(&changing);
        call.orders.clone_from(&orders);
        call.slices_gone = false;
        call.foreign = None;
        effects.push(Effect::MakeSlices {
            call: id,
            fence: Fence {
                claim: call.claim.uid.clone(),
                call: Some(mark),
            },
            slices: orders,
            wholes,
        });
        self.outdate(&changing);
    }

    /// A call that is not there any more was voided by an Unprepare, which removes what was made.
    pub(super) fn slices_made(&mut self, id: CallId, result: Result<Made, SliceFailure>) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        if !matches!(call.stage, Stage::Making) {
            return;
        }
        let stage = match result {
            Ok(made) => Stage::Finish(made),
            Err(failure) => {
                let answer = refused(&call.claim, &failure);
                call.foreign = failure.foreign;
                Stage::Undo(answer)
            }
        };
        self.queue_prepare(id, stage);
    }

    /// That they go is on disk.
    pub(super) fn remove(
        &mut self,
        removal: Removal,
        slices: Vec<PlacedSlice>,
        effects: &mut Vec<Effect>,
    ) {
        let id = RemovalId(self.next_removal);
        self.next_removal += 1;
        let gpus = slices.iter().map(|slice| slice.gpu.clone());
        let gpus: BTreeSet<String> = gpus.collect();
        self.outdate(&gpus);
        let call = match &removal.then {
            Then::Undo(..) => removal.call.clone(),
            Then::Gone(_) | Then::Earlier(_) => None,
        };
        effects.push(Effect::RemoveSlices {
            removal: id,
            fence: Fence {
                claim: removal.claim.uid.clone(),
                call,
            },
            slices,
        });
        self.removing.insert(id, gpus);
        self.removals.insert(id, removal);
    }

    pub(super) fn slices_removed(
        &mut self,
        id: RemovalId,
        result: Result<(), SliceFailure>,
        effects: &mut Vec<Effect>,
    ) {
        self.removing.remove(&id);
        let Some(removal) = self.removals.remove(&id) else {
            return;
        };
        let claim = removal.claim.clone();
        match (removal.then, result) {
            (Then::Undo(call, answer), Ok(())) => {
                if let Some(waiting) = self.calls.get_mut(&call) {
                    waiting.slices_gone = true;
                }
                self.queue_prepare(call, Stage::Undo(answer));
            }
            // The record stays, and holds; the next call of the claim takes up what is left, or removes it.
            (Then::Undo(call, answer), Err(failure)) => {
                if self.calls.contains_key(&call) {
                    self.answer(call, also(answer, &failure), effects);
                }
            }
            (then, Ok(())) => self.queue.removed.push_back(Removal {
                claim,
                call: removal.call,
                then,
            }),
            (Then::Gone(Some(call)), Err(failure)) => {
                self.answer(call, refused(&claim, &failure), effects);
                self.look_at_held_later();
            }
            (Then::Gone(None), Err(_)) => self.look_at_held_later(),
            (Then::Earlier(call), Err(failure)) => {
                let Some(waiting) = self.calls.get(&call) else {
                    return;
                };
                if self.now() < waiting.give_up_at {
                    self.wait(call);
                } else {
                    self.answer(call, refused(&claim, &failure), effects);
                }
            }
        }
    }

    /// Slices are gone: so is what the record held. A mark that was left on it since is a later wish, and stays.
    pub(super) fn decide_removed(&self, removal: &Removal, disk: &Disk) -> Decision {
        let record = disk.records.get(&removal.claim.uid);
        let record = record.filter(|record| record.state == RecordState::Unpreparing);
        let is_same = record.is_some_and(|record| record.call == removal.call);
        // The disk may have refused to let the file go when the record was marked. It goes before the record does: what is found without a record after
        // a loss is taken for prepared (rule 5).
        let file_first = |write| vec![Write::RemoveCdi(removal.claim.uid.clone()), write];
        match removal.then {
            Then::Gone(call) => {
                let write = record.map(|record| {
                    if is_same {
                        Write::RemoveRecord(removal.claim.uid.clone())
                    } else {
                        Write::PutRecord(record.mark_alone())
                    }
                });
                let answer = call.map(|call| (call, Answer::Unprepared));
                let writes = write.map_or_else(Vec::new, file_first);
                (writes, After::Changed(answer))
            }
            Then::Earlier(call) => {
                // An Unprepare may have voided the call: then nobody wants the mark.
                let goes_on = self.calls.contains_key(&call);
                let write = record.filter(|_| is_same).map(|record| {
                    if goes_on {
                        Write::PutRecord(record.mark_alone())
                    } else {
                        Write::RemoveRecord(removal.claim.uid.clone())
                    }
                });
                let writes = write.map_or_else(Vec::new, file_first);
                (writes, After::Resumed(call))
            }
            Then::Undo(..) => (Vec::new(), After::Done),
        }
    }

    /// Slices are gone, and the disk does not take that.
    pub(super) fn removed_unrecorded(
        &mut self,
        removal: &Removal,
        failure: &DiskFailure,
        effects: &mut Vec<Effect>,
    ) {
        let answer = disk_failed(&removal.claim, failure);
        match &removal.then {
            Then::Gone(Some(call)) => {
                self.answer(*call, answer, effects);
                self.look_at_held_later();
            }
            Then::Gone(None) => self.look_at_held_later(),
            Then::Earlier(call) | Then::Undo(call, _) => {
                if self.calls.contains_key(call) {
                    self.answer(*call, answer, effects);
                }
            }
        }
    }

    /// Finds what was being given back when somebody crashed. What a call here works on is left to it.
    pub(super) fn queue_unfinished(&mut self, disk: &Disk) {
        let unfinished: Vec<ClaimRef> = disk
            .records
            .values()
            .filter(|record| self.is_unfinished(record))
            .map(|record| record.claim.clone())
            .collect();
        if !unfinished.is_empty() {
            self.look_at_held_later();
        }
        // Who had looked, and is in this list no more, has no turn for what he saw.
        self.looks.forget_unfinished_but(&unfinished);
        self.queue.unfinished = unfinished.into();
    }

    fn is_unfinished(&self, record: &Record) -> bool {
        let uid = &record.claim.uid;
        let is_removed = self
            .removals
            .values()
            .chain(&self.queue.removed)
            .any(|removal| removal.claim.uid == *uid);
        let unprepares = self.queue.unprepares.iter().map(|(_, claim)| claim);
        let mut unprepares = unprepares.chain(self.looks.unprepares());
        let is_asked = unprepares.any(|claim| claim.uid == *uid);
        let mut calls = self.calls.keys();
        let is_marked = calls.any(|call| record.call.as_ref() == Some(&self.mark(*call)));
        record.state == RecordState::Unpreparing
            && !record.removable().is_empty()
            && !(is_removed || is_asked || is_marked)
    }

    /// Goes on with what [`Machine::queue_unfinished`] found, if that still is so. What is in use stays (rule 6).
    pub(super) fn decide_finish(&self, claim: &ClaimRef, disk: &Disk, in_use: &InUse) -> Decision {
        let record = disk.records.get(&claim.uid);
        let record = record.filter(|record| self.is_unfinished(record));
        let Some(record) = record.filter(|_| *in_use == InUse::No) else {
            return (Vec::new(), After::Done);
        };
        let removal = Removal {
            claim: claim.clone(),
            call: record.call.clone(),
            then: Then::Gone(None),
        };
        let slices = record.removable();
        (Vec::new(), After::Remove { removal, slices })
    }
}

/// Why it cannot be told whether the slices of a record lie where it says, if it cannot: a GPU of theirs was looked at and does not list them.
pub(super) fn unlisted_slices(record: &Record, live: &LiveSlices) -> Option<Refusal> {
    let mut slices = record.devices.iter().filter(|it| it.slice.is_some());
    slices.find_map(|device| {
        let gpu = &device.unit.gpu;
        let cause = live.get(gpu)?.as_ref().err()?;
        Some(unlisted(&record.claim, gpu, cause))
    })
}

fn unlisted(claim: &ClaimRef, gpu: &str, cause: &str) -> Refusal {
    Refusal {
        reason: Some(Reason::DeviceUnknown),
        is_overlap: false,
        message: format!("claim {claim}: which slices GPU {gpu} has cannot be told: {cause}"),
    }
}

fn foreign(claim: &ClaimRef, gpu: &str, instance: &MigInstance) -> Refusal {
    Refusal {
        reason: Some(Reason::DeviceHeld),
        is_overlap: false,
        message: format!(
            "claim {claim}: {}, and no claim here made it; remove it (nvidia-smi mig -dci, -dgi), or let the node's slices \
             be an administrator's",
            Foreign { gpu, instance }
        ),
    }
}

fn refused(claim: &ClaimRef, failure: &SliceFailure) -> Answer {
    Answer::Refused(Refusal {
        reason: failure.reason,
        is_overlap: false,
        message: format!("claim {claim}: {}", failure.message),
    })
}

/// The answer, and that not even that could be undone.
fn also(answer: Answer, failure: &SliceFailure) -> Answer {
    match answer {
        Answer::Refused(refusal) => Answer::Refused(Refusal {
            message: format!(
                "{}; what was made for it is left for the next try: {failure}",
                refusal.message
            ),
            ..refusal
        }),
        other => other,
    }
}
