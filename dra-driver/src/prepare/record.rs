//! Preparing a claim: mark, compare with what is recorded ([`super::earlier`]), judge, record.

use std::collections::BTreeSet;

use muster_api::{NodeDevices, Reason, keys};

use super::{
    claim::{AllocatedDevice, Claim, ClaimRef},
    disk::{Acknowledged, Disk, Record, RecordState, RecordedDevice},
    earlier::Earlier,
    effect::{Answer, CallId, InUse, LiveSlices, PreparedDevice, Refusal, Write},
    injected_bug::InjectedBug,
    machine::{Machine, Stage},
    permit,
    slice::{PlacedSlice, RecordedSlice, SliceMode},
    slices::{Removal, Then, unlisted_slices},
    task::{After, Decision, plain},
    view::View,
};

/// What is to become of a Prepare call that has read its claim.
enum Verdict {
    Record(Record),
    /// These GPUs are looked at first.
    Look(BTreeSet<String>),
    Wait(Refusal),
    Refuse(Refusal),
    /// Refused at once, and the mark goes.
    Leave(Refusal),
}

impl Machine {
    /// Takes a call one step further.
    pub(super) fn decide_prepare(
        &mut self,
        id: CallId,
        disk: &Disk,
        in_use: InUse,
        live: &LiveSlices,
    ) -> Decision {
        let Some(call) = self.calls.get(&id) else {
            return (Vec::new(), After::Done);
        };
        let mark = self.mark(id);
        let record = disk.records.get(&call.claim.uid);
        let mine = record.filter(|record| record.call.as_ref() == Some(&mark));
        let uid = call.claim.uid.clone();
        match &call.stage {
            Stage::Leave(answer) => {
                let marked = mine.is_some_and(|record| !record.holds());
                let writes = marked.then_some(Write::RemoveRecord(uid));
                let after = After::Answer(id, answer.clone());
                (writes.into_iter().collect(), after)
            }
            Stage::Undo(answer) => {
                // What is prepared may be in use, and what was being given back holds until that is done.
                let unfinished = mine.filter(|record| {
                    matches!(record.state, RecordState::Waiting | RecordState::Preparing)
                });
                let Some(record) = unfinished else {
                    return (Vec::new(), After::Changed(Some((id, answer.clone()))));
                };
                let is_foreign = |slice: &PlacedSlice| {
                    let mut foreign = call.foreign.iter();
                    foreign.any(|it| (&it.gpu, it.placement) == (&slice.gpu, slice.placement))
                };
                let mut slices = record.removable();
                slices.retain(|slice| !is_foreign(slice));
                let is_gone = call.slices_gone || self.broken(InjectedBug::SliceLeftOnFailure);
                if slices.is_empty() || is_gone {
                    let writes = vec![Write::RemoveCdi(uid.clone()), Write::RemoveRecord(uid)];
                    return (writes, After::Changed(Some((id, answer.clone()))));
                }
                let removal = Removal {
                    claim: record.claim.clone(),
                    call: Some(mark),
                    then: Then::Undo(id, answer.clone()),
                };
                if let Some(call) = self.calls.get_mut(&id) {
                    call.stage = Stage::Removing;
                }
                (
                    vec![Write::RemoveCdi(uid)],
                    After::Remove { removal, slices },
                )
            }
            Stage::Mark => {
                let left = leave_mark(call.claim.clone(), record, mark);
                (vec![Write::PutRecord(left)], After::Marked(id))
            }
            Stage::Record => self.decide_record(id, disk, in_use, live),
            Stage::Finish(made) => match mine {
                Some(record) if record.state == RecordState::Preparing => {
                    let record = record.clone().with_made(&call.orders, made);
                    record_and_answer(id, record)
                }
                // Whoever has taken the record since removes what was made, or takes it up.
                _ => (
                    Vec::new(),
                    After::Answer(id, Answer::Refused(overtaken(&call.claim))),
                ),
            },
            Stage::Reading
            | Stage::Looking { .. }
            | Stage::Waiting { .. }
            | Stage::Making
            | Stage::Removing => (Vec::new(), After::Done),
        }
    }

    /// What was asked while the lock was taken, and looked at before, was chosen before the disk was seen: if it was the wrong thing, the
    /// next turn has the right one.
    fn decide_record(
        &mut self,
        id: CallId,
        disk: &Disk,
        in_use: InUse,
        live: &LiveSlices,
    ) -> Decision {
        let mark = self.mark(id);
        let found = self.calls.get_mut(&id);
        let Some((claim, call)) = found.and_then(|call| Some((call.found.clone()?, call))) else {
            let refusal = plain("the claim was not read".to_owned());
            return (Vec::new(), After::Answer(id, Answer::Refused(refusal)));
        };
        match Earlier::of(&claim, &mark, disk, live) {
            Earlier::SameAllocation(record) => {
                let unseen = unseen(cut_gpus(record), live);
                if !unseen.is_empty() {
                    return self.look_or_give_up(id, unseen, disk);
                }
                // Names say what was allocated, and not what lies there: by the numbers of slices that are gone a container would be given
                // another's.
                if let Some(refusal) = unlisted_slices(record, live) {
                    return self.wait_or_give_up(id, &refusal, disk);
                }
                self.answer_from(id, record, &claim)
            }
            Earlier::OtherAllocation(record) if call.looks_at_record => {
                let unseen = unseen(record.units().map(|unit| &unit.gpu), live);
                if unseen.is_empty() {
                    return self.decide_earlier(id, record, disk, in_use);
                }
                self.look_or_give_up(id, unseen, disk)
            }
            Earlier::Nothing if !call.looks_at_record => {
                match self.judge(id, &claim, disk, in_use, live) {
                    Verdict::Record(record) => self.record_intent(id, record, disk),
                    Verdict::Look(gpus) => self.look_or_give_up(id, gpus, disk),
                    Verdict::Refuse(refusal) => {
                        (Vec::new(), After::Answer(id, Answer::Refused(refusal)))
                    }
                    Verdict::Leave(refusal) => {
                        let own = disk.records.get(&claim.reference.uid);
                        let is_mark = own.is_some_and(|record| !record.holds());
                        let uid = claim.reference.uid.clone();
                        let writes = is_mark.then_some(Write::RemoveRecord(uid));
                        let after = After::Answer(id, Answer::Refused(refusal));
                        (writes.into_iter().collect(), after)
                    }
                    Verdict::Wait(refusal) => self.wait_or_give_up(id, &refusal, disk),
                }
            }
            Earlier::OtherAllocation(_) | Earlier::Nothing => {
                call.looks_at_record = !call.looks_at_record;
                (Vec::new(), After::Again)
            }
        }
    }

    /// Has GPUs looked at that this call is to be decided by: once more after its end, and then it is refused.
    fn look_or_give_up(&mut self, id: CallId, gpus: BTreeSet<String>, disk: &Disk) -> Decision {
        let now = self.now();
        let Some(call) = self.calls.get_mut(&id) else {
            return (Vec::new(), After::Done);
        };
        let is_over = now >= call.give_up_at;
        if !(is_over && call.looked_last) {
            call.looked_last = is_over;
            return (Vec::new(), After::Look { gpus, under: None });
        }
        let gpus: Vec<String> = gpus.into_iter().collect();
        let refusal = Refusal {
            reason: Some(Reason::DeviceUnknown),
            is_overlap: false,
            message: format!(
                "claim {}: whether its devices are free cannot be told: GPU {} is being changed, or does not answer",
                call.claim,
                gpus.join(", ")
            ),
        };
        self.wait_or_give_up(id, &refusal, disk)
    }

    /// GPUs that are looked at before a claim is recorded: of what it is to have, and of those that can be cut also what it only looks at.
    pub(super) fn gpus_of(&self, claim: &Claim) -> BTreeSet<String> {
        let known = |allocated: &AllocatedDevice| {
            let facts = self.inventory.as_ref()?.get(&allocated.device)?;
            let gpu = &facts.unit.gpu;
            (!allocated.admin_access || self.can_be_cut(gpu)).then(|| gpu.clone())
        };
        claim.devices.iter().flatten().filter_map(known).collect()
    }

    pub(super) fn wait_or_give_up(&self, id: CallId, refusal: &Refusal, disk: &Disk) -> Decision {
        let Some(call) = self.calls.get(&id) else {
            return (Vec::new(), After::Done);
        };
        if self.now() < call.give_up_at {
            let permit = refusal.reason == Some(Reason::NoPermit)
                || refusal.reason == Some(Reason::ChargeExceeded);
            return (Vec::new(), After::Wait { call: id, permit });
        }
        let marked = disk
            .records
            .get(&call.claim.uid)
            .is_some_and(|record| !record.holds());
        let writes = marked
            .then(|| Write::RemoveRecord(call.claim.uid.clone()))
            .into_iter()
            .collect();
        let answer = Answer::Refused(Refusal {
            message: format!(
                "{} (waited {} s)",
                refusal.message,
                self.config.wait_milliseconds / 1_000
            ),
            reason: refusal.reason,
            is_overlap: refusal.is_overlap,
        });
        (writes, After::Answer(id, answer))
    }

    /// Records what needs nothing of the hardware as prepared, and anything else as intended.
    fn record_intent(&self, id: CallId, record: Record, disk: &Disk) -> Decision {
        let wholes = self.wholes(&record);
        match self.orders(&record, disk) {
            Ok(orders) if orders.is_empty() && wholes.is_empty() => record_and_answer(id, record),
            Ok(orders) => {
                let make = After::Make {
                    call: id,
                    orders,
                    wholes,
                };
                (vec![Write::PutRecord(record)], make)
            }
            Err(refusal) => (Vec::new(), After::Answer(id, Answer::Refused(refusal))),
        }
    }

    /// All that speaks against recording this claim now, judged on the disk as it is under the lock.
    fn judge(
        &mut self,
        id: CallId,
        claim: &Claim,
        disk: &Disk,
        in_use: InUse,
        live: &LiveSlices,
    ) -> Verdict {
        let mark = self.mark(id);
        let marked = disk
            .records
            .get(&claim.reference.uid)
            .is_some_and(|record| record.call.as_ref() == Some(&mark));
        if !marked {
            return Verdict::Refuse(overtaken(&claim.reference));
        }
        if let Err(refusal) = self.may_prepare(id, claim, disk) {
            return Verdict::Wait(refusal);
        }
        if let Err(refusal) = self.is_in_order(claim) {
            return Verdict::Leave(refusal);
        }
        let mut record = match self.intended(claim, mark) {
            Ok(record) => record,
            Err(refusal) => return Verdict::Wait(refusal),
        };
        if let Some(refusal) = self_overlap(&record) {
            return Verdict::Refuse(refusal);
        }
        if let Some(refusal) = self.collision(&record, disk) {
            return Verdict::Wait(refusal);
        }
        // Whatever else speaks against it costs no look.
        let unseen = unseen(&self.gpus_of(claim), live);
        if !unseen.is_empty() {
            return Verdict::Look(unseen);
        }
        if let Err(refusal) = self.place_slices(&mut record, disk, live) {
            return Verdict::Wait(refusal);
        }
        match in_use {
            InUse::No => Verdict::Record(record),
            InUse::Yes(who) => Verdict::Wait(Refusal {
                reason: Some(Reason::DeviceHeld),
                is_overlap: false,
                message: format!(
                    "claim {}: its devices are used by {who}, which no claim here accounts for",
                    claim.reference
                ),
            }),
            InUse::Unknown(cause) => Verdict::Wait(Refusal {
                reason: Some(Reason::DeviceUnknown),
                is_overlap: false,
                message: format!(
                    "claim {}: whether its devices are free cannot be told: {cause}",
                    claim.reference
                ),
            }),
        }
    }

    /// Generation and permit (rules 2, 4 and 5).
    fn may_prepare(&mut self, id: CallId, claim: &Claim, disk: &Disk) -> Result<(), Refusal> {
        if self.broken(InjectedBug::NoPermitCheck) {
            return Ok(());
        }
        let Some(acknowledged) = &disk.acknowledged else {
            self.request_rebuild();
            return Err(plain(format!(
                "claim {}: the driver's records are being rebuilt",
                claim.reference
            )));
        };
        let permitted_before = self.calls.get(&id).is_some_and(|call| call.permitted);
        if permitted_before {
            return Ok(());
        }
        self.view_is_current(claim, acknowledged)?;
        let enforce = self
            .view
            .object()
            .map_or(acknowledged.enforce, |object| object.spec.enforce);
        if !enforce {
            return Ok(());
        }
        let any_claim = self.broken(InjectedBug::ClaimUidUnchecked);
        let inventory = self.inventory.clone().unwrap_or_default();
        let nothing = NodeDevices::new(&self.config.node, <_>::default());
        let object = self.view.object().unwrap_or(&nothing);
        permit::check(object, &self.config.node, claim, &inventory, any_claim)?;
        permit::check_name(disk, claim)?;
        if self.broken(InjectedBug::PermitBeforeWaitOnly)
            && let Some(call) = self.calls.get_mut(&id)
        {
            call.permitted = true;
            return Err(plain(
                "it looks again later, but not at the permit".to_owned(),
            ));
        }
        Ok(())
    }

    fn view_is_current(
        &mut self,
        claim: &Claim,
        acknowledged: &Acknowledged,
    ) -> Result<(), Refusal> {
        if self.broken(InjectedBug::PrepareByOlderView) && !matches!(self.view, View::Unknown) {
            return Ok(());
        }
        let same =
            !matches!(self.view, View::Unknown) && acknowledged.uid.as_deref() == self.view.uid();
        if same && self.view.generation() >= acknowledged.generation {
            return Ok(());
        }
        self.request_acknowledgement(true);
        Err(plain(format!(
            "claim {}: this instance of the driver has yet to see the NodeDevices that the node acknowledged",
            claim.reference
        )))
    }

    /// The record that preparing `claim` begins with.
    fn intended(&self, claim: &Claim, mark: String) -> Result<Record, Refusal> {
        if let Some(why) = &claim.invalid_config {
            return Err(plain(format!("claim {}: {why}", claim.reference)));
        }
        let mut devices = Vec::new();
        for allocated in claim.devices.iter().flatten() {
            let facts = self
                .inventory
                .as_ref()
                .and_then(|inventory| inventory.get(&allocated.device))
                .ok_or_else(|| {
                    plain(format!(
                        "claim {}: node {} has no device {} at present",
                        claim.reference, self.config.node, allocated.device
                    ))
                })?;
            // Who has its device file now is not known: since it last spoke the kernel may have numbered the GPUs anew.
            if facts.silent && !allocated.admin_access {
                return Err(Refusal {
                    reason: Some(Reason::DeviceUnknown),
                    is_overlap: false,
                    message: format!(
                        "claim {}: GPU {} does not say what it is",
                        claim.reference, facts.unit
                    ),
                });
            }
            if facts.lacks_fabric && !allocated.admin_access {
                return Err(Refusal {
                    reason: Some(Reason::DriverIncomplete),
                    is_overlap: false,
                    message: format!(
                        "claim {}: the fabric manager has not set up GPU {}, and CUDA does not start on it before (error 802): look at \
                         nvidia-fabricmanager on the node",
                        claim.reference, facts.unit
                    ),
                });
            }
            devices.push(RecordedDevice {
                request: allocated.request.clone(),
                pool: allocated.pool.clone(),
                device: allocated.device.clone(),
                unit: facts.unit.clone(),
                minor: facts.minor,
                admin_access: allocated.admin_access,
                slice: facts.slice.as_ref().map(|slice| RecordedSlice {
                    profile: slice.profile.name.clone(),
                    gpu_instance_profile: slice.profile.gpu_instance_profile,
                    placement: slice.placement,
                    // Who administers a slice looks at it: it is neither made nor removed for him.
                    stays: slice.mode == SliceMode::Static || allocated.admin_access,
                    made: None,
                }),
            });
        }
        Ok(Record {
            claim: claim.reference.clone(),
            state: RecordState::Preparing,
            call: Some(mark),
            by_name: claim.by_name.clone(),
            pods: self.pods_of(claim),
            devices,
        })
    }

    /// Pods that may use the claim: those that it is reserved for, and those that are permitted to share it. The kubelet
    /// calls for the first of them alone; the others use what is prepared, and nothing tells of them when they come.
    pub(super) fn pods_of(&self, claim: &Claim) -> Vec<String> {
        let mut pods = claim.pods.clone();
        let object = self.view.object().into_iter();
        let permits = object.flat_map(|object| &object.spec.permits);
        let sharing = permits
            .filter(|permit| !permit.withdrawn && permit::names(permit, claim.permitted_as()));
        for permit in sharing {
            if !pods.contains(&permit.pod_uid) {
                pods.push(permit.pod_uid.clone());
            }
        }
        pods
    }
}

/// What a call leaves before it reads its claim. What is prepared, or was left half done, still holds.
fn leave_mark(claim: ClaimRef, left: Option<&Record>, mark: String) -> Record {
    let mut record = left.cloned().unwrap_or(Record {
        claim,
        state: RecordState::Waiting,
        call: None,
        by_name: None,
        pods: Vec::new(),
        devices: Vec::new(),
    });
    record.call = Some(mark);
    record
}

/// Those of these GPUs that were not looked at, or were changed since.
fn unseen<'a>(gpus: impl IntoIterator<Item = &'a String>, live: &LiveSlices) -> BTreeSet<String> {
    let gpus = gpus.into_iter();
    let unseen = gpus.filter(|gpu| !live.contains_key(*gpu));
    unseen.cloned().collect()
}

/// GPUs that a record has slices of.
fn cut_gpus(record: &Record) -> impl Iterator<Item = &String> {
    let devices = record.devices.iter();
    let slices = devices.filter(|device| device.slice.is_some());
    slices.map(|device| &device.unit.gpu)
}

fn overtaken(claim: &ClaimRef) -> Refusal {
    plain(format!(
        "claim {claim} was unprepared, or asked for again, while this call waited"
    ))
}

/// Two devices of the claim that are the same hardware by different names: no allocator gives that.
fn self_overlap(record: &Record) -> Option<Refusal> {
    let devices = || record.devices.iter().filter(|device| !device.admin_access);
    let (one, other) = devices().find_map(|one| {
        let other =
            devices().find(|other| other.device != one.device && other.unit.overlaps(&one.unit))?;
        Some((one, other))
    })?;
    Some(Refusal {
        reason: Some(Reason::DeviceHeld),
        is_overlap: true,
        message: format!(
            "claim {} was allocated {} and {}, which are the same hardware",
            record.claim, one.device, other.device
        ),
    })
}

impl Machine {
    /// The holder, if another claim has one of these Units, in whatever state.
    fn collision(&self, record: &Record, disk: &Disk) -> Option<Refusal> {
        let by_name = self.broken(InjectedBug::NamesCompared);
        let only_prepared = self.broken(InjectedBug::OnlyPreparedHolds);
        let mut others = disk.records.values().filter(|other| {
            other.claim.uid != record.claim.uid
                && (!only_prepared || other.state == RecordState::Prepared)
        });
        let (unit, holder) = others.find_map(|other| {
            let has = |device: &RecordedDevice| {
                let mut theirs = other.devices.iter();
                theirs.any(|their| their.device == device.device)
            };
            let shared = if by_name {
                let mut devices = record.devices.iter();
                devices.find(|device| has(device)).map(|it| &it.unit)
            } else {
                record
                    .units()
                    .find(|unit| other.units().any(|taken| unit.overlaps(taken)))
            };
            Some((shared?, other))
        })?;
        Some(Refusal {
            reason: Some(Reason::DeviceHeld),
            is_overlap: true,
            message: format!(
                "claim {} needs GPU {unit}, which claim {} holds ({:?})",
                record.claim, holder.claim, holder.state
            ),
        })
    }
}

fn record_and_answer(call: CallId, record: Record) -> Decision {
    let complete = Record {
        state: RecordState::Prepared,
        ..record.clone()
    };
    let answer = Answer::Prepared(prepared(&complete));
    let writes = vec![
        Write::PutRecord(record),
        // The file carries its record, as it will be: written again for a later call, it is the same.
        Write::PutCdi(complete.clone()),
        Write::PutRecord(complete),
    ];
    (writes, After::Changed(Some((call, answer))))
}

/// The devices, as the kubelet is told them.
pub(super) fn prepared(record: &Record) -> Vec<PreparedDevice> {
    record
        .devices
        .iter()
        .map(|device| PreparedDevice {
            request: device.request.clone(),
            pool: device.pool.clone(),
            device: device.device.clone(),
            cdi_id: format!(
                "{}/claim={}-{}",
                keys::DRIVER,
                record.claim.uid,
                device.device
            ),
        })
        .collect()
}
