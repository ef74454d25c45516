//! What is decided under the lock, and what follows once it is written.

use std::collections::BTreeSet;

use muster_api::NodeDevicesStatus;

use super::{
    claim::ClaimRef,
    disk::{Disk, Record},
    effect::{Answer, CallId, DiskFailure, Effect, InUse, LiveSlices, Locked, Refusal, Write},
    looks::Seen,
    machine::{Machine, Stage},
    orphan::Orphan,
    slice::{PlacedSlice, SliceOrder},
    slices::{Removal, Then},
};

/// Who wants the lock, and what for.
#[derive(Debug)]
pub(super) enum Task {
    /// Give a claim back for the kubelet.
    Unprepare { call: CallId, claim: ClaimRef },
    /// Give back what the kubelet has forgotten.
    GiveBack(Orphan),
    /// Record what was found after the checkpoint was lost.
    Rebuild(Rebuild),
    /// Put the generation on disk, then say so.
    Acknowledge { uncached: bool },
    /// Take a Prepare call one step further.
    Prepare(CallId),
    /// Go on where slices were removed.
    Removed(Removal),
    /// Go on with a give-back that a crash cut off, if there are slices to remove.
    Finish(ClaimRef),
}

/// What was gathered after the checkpoint was lost.
#[derive(Debug)]
pub(super) struct Rebuild {
    /// The name that the loss had on disk before it was gathered.
    pub(super) name: String,
    /// What may have been prepared.
    pub(super) found: Vec<Record>,
}

/// What follows a commit that succeeded.
#[derive(Debug)]
pub(super) enum After {
    /// Nothing.
    Done,
    /// The boot id was put right, or something else has to be asked: this task is decided again.
    Again,
    /// These GPUs are looked at, and then this task is decided again; `under`: the mark on the record that the look is about.
    Look {
        gpus: BTreeSet<String>,
        under: Option<String>,
    },
    /// What is held has changed, and this task is decided again.
    GivenBack,
    /// The mark is left: the claim is read.
    Marked(CallId),
    /// The call is answered.
    Answer(CallId, Answer),
    /// The call is answered, and what is held has changed.
    Changed(Option<(CallId, Answer)>),
    /// The call waits; `permit`: for a permit, which may be there already past the watch.
    Wait { call: CallId, permit: bool },
    /// The intent is on disk: the slices are made.
    Make {
        call: CallId,
        orders: Vec<SliceOrder>,
        wholes: Vec<String>,
    },
    /// That they go is on disk: the slices are removed.
    Remove {
        removal: Removal,
        slices: Vec<PlacedSlice>,
    },
    /// What an earlier allocation gave is gone: the call goes on.
    Resumed(CallId),
    /// The loss has this name on disk: what may have been prepared is gathered.
    Gather(String),
    /// The generation is on disk; the status that says so, if it does not yet.
    Acknowledged(Option<NodeDevicesStatus>),
}

/// What is written, and what follows.
pub(super) type Decision = (Vec<Write>, After);

impl Machine {
    pub(super) fn decide(
        &mut self,
        task: &Task,
        locked: Locked,
        under: Option<&str>,
        effects: &mut Vec<Effect>,
    ) -> Decision {
        let disk = match locked.disk {
            Ok(disk) => disk,
            Err(failure) => return self.unreadable(task, &failure),
        };
        if disk.boot_id.as_ref() != Some(&self.config.boot_id) {
            return (self.begin_boot(&disk), After::Again);
        }
        let read = locked.node_devices.map(|read| self.adopt(read));
        let live = locked.live;
        let in_use = locked.in_use.unwrap_or(InUse::No);
        match task {
            Task::Unprepare { call, claim } if is_asked_for_again(&claim.uid, &disk, under) => {
                let message =
                    format!("claim {claim} was asked for again while it was looked at who uses it");
                (
                    Vec::new(),
                    After::Answer(*call, Answer::Refused(plain(message))),
                )
            }
            Task::Unprepare { call, claim } => match unseen(&claim.uid, &disk, &live, under) {
                Some(look) => (Vec::new(), look),
                None => self.decide_unprepare(Some(*call), claim, &disk, in_use),
            },
            Task::GiveBack(orphan) => {
                if let Some(look) = unseen(&orphan.claim.uid, &disk, &live, under) {
                    return (Vec::new(), look);
                }
                let Some(read) = locked.claim else {
                    // It is read only in the turn that follows a look, be it at no GPU.
                    let gpus = BTreeSet::new();
                    return (Vec::new(), After::Look { gpus, under: None });
                };
                self.decide_orphan(orphan, &disk, in_use, &read)
            }
            Task::Rebuild(rebuild) => self.decide_rebuild(rebuild, &disk, read.as_ref()),
            Task::Acknowledge { .. } => self.decide_acknowledge(&disk, read.as_ref(), effects),
            Task::Prepare(call) => self.decide_prepare(*call, &disk, in_use, &live),
            Task::Removed(removal) => self.decide_removed(removal, &disk),
            Task::Finish(claim) => match unseen(&claim.uid, &disk, &live, under) {
                Some(look) => (Vec::new(), look),
                None => self.decide_finish(claim, &disk, &in_use),
            },
        }
    }

    /// A reboot ends everything that ran: what was prepared is void. Where no boot id is known the records may
    /// be of this boot, and stay.
    ///
    /// The slices of a boot end with it. Where one lies at the place of such a record nothing tells whether it is that one (on hardware that
    /// keeps them), or an administrator's from before the driver started: NVML gives the same UUID to whatever is made at one place. So no
    /// record claims it: it stays, a Prepare refuses its place, and who it is in the way of is told. A slice that is left costs its place until
    /// somebody looks; an administrator's that is destroyed may cost a tenant's work.
    fn begin_boot(&self, disk: &Disk) -> Vec<Write> {
        let rebooted = disk.boot_id.is_some();
        let mut writes = Vec::new();
        for uid in disk.records.keys().filter(|_| rebooted) {
            writes.push(Write::RemoveCdi(uid.clone()));
            writes.push(Write::RemoveRecord(uid.clone()));
        }
        writes.push(Write::PutNode {
            boot_id: self.config.boot_id.clone(),
            acknowledged: disk.acknowledged.clone(),
        });
        writes
    }

    fn unreadable(&mut self, task: &Task, failure: &DiskFailure) -> Decision {
        let after = match task {
            Task::Unprepare { call, claim } => After::Answer(*call, disk_failed(claim, failure)),
            Task::Prepare(call) => self.prepare_unreadable(*call, failure),
            Task::Removed(removal) => match &removal.then {
                Then::Gone(Some(call)) => {
                    After::Answer(*call, disk_failed(&removal.claim, failure))
                }
                Then::Earlier(call) => After::Wait {
                    call: *call,
                    permit: false,
                },
                Then::Gone(None) | Then::Undo(..) => {
                    self.retry_later();
                    After::Done
                }
            },
            Task::GiveBack(_) | Task::Rebuild(_) | Task::Acknowledge { .. } | Task::Finish(_) => {
                self.retry_later();
                After::Done
            }
        };
        (Vec::new(), after)
    }

    /// A call that waits goes on waiting, up to its end. Any other is answered: what it may have left on disk holds
    /// until somebody can read it.
    fn prepare_unreadable(&self, id: CallId, failure: &DiskFailure) -> After {
        let Some(call) = self.calls.get(&id) else {
            return After::Done;
        };
        match &call.stage {
            Stage::Leave(answer) | Stage::Undo(answer) => After::Answer(id, answer.clone()),
            Stage::Record if self.now() < call.give_up_at => After::Wait {
                call: id,
                permit: false,
            },
            _ => After::Answer(id, disk_failed(&call.claim, failure)),
        }
    }

    pub(super) fn follow(
        &mut self,
        task: Task,
        after: After,
        seen: Seen,
        effects: &mut Vec<Effect>,
    ) {
        match after {
            After::Done => {}
            After::Again => self.requeue(task),
            After::Look { gpus, under } => {
                let sights = seen.sights;
                self.look(task, gpus, Seen { sights, under });
            }
            After::GivenBack => {
                self.requeue(task);
                self.request_acknowledgement(false);
                self.wake_waiting();
            }
            After::Marked(call) => {
                if let Some(waiting) = self.calls.get_mut(&call) {
                    waiting.stage = Stage::Reading;
                    effects.push(Effect::ReadClaim(call, waiting.claim.clone()));
                }
            }
            After::Answer(call, answer) => self.answer(call, answer, effects),
            After::Changed(answer) => {
                if let Some((call, answer)) = answer {
                    self.answer(call, answer, effects);
                }
                self.request_acknowledgement(false);
                self.wake_waiting();
            }
            After::Wait { call, permit } => {
                self.wait(call);
                if permit {
                    self.look_past_the_watch(call, effects);
                }
            }
            After::Make {
                call,
                orders,
                wholes,
            } => self.make(call, orders, wholes, effects),
            After::Remove { removal, slices } => self.remove(removal, slices, effects),
            After::Resumed(call) => {
                self.queue_prepare(call, Stage::Record);
                self.request_acknowledgement(false);
                self.wake_waiting();
            }
            After::Gather(rebuild) => self.gather(rebuild, effects),
            After::Acknowledged(status) => {
                if let Some(status) = status {
                    self.write_status(status, effects);
                }
                self.wake_waiting();
            }
        }
    }

    /// The disk refused a write. What was written before it stands.
    pub(super) fn failed(&mut self, task: Task, failure: &DiskFailure, effects: &mut Vec<Effect>) {
        match task {
            Task::Unprepare { call, claim } => {
                self.answer(call, disk_failed(&claim, failure), effects);
            }
            Task::GiveBack(_) => {}
            Task::Rebuild(_) | Task::Acknowledge { .. } | Task::Finish(_) => self.retry_later(),
            Task::Removed(removal) => self.removed_unrecorded(&removal, failure, effects),
            Task::Prepare(id) => {
                let Some(call) = self.calls.get(&id) else {
                    return;
                };
                let answer = disk_failed(&call.claim, failure);
                if matches!(call.stage, Stage::Record | Stage::Finish(_)) {
                    self.queue_prepare(id, Stage::Undo(answer));
                } else {
                    self.answer(id, answer, effects);
                }
            }
        }
    }
}

/// The look that whoever gives a record back needs first: at all that it has, since the mark that is on it was left.
fn unseen(uid: &str, disk: &Disk, live: &LiveSlices, under: Option<&str>) -> Option<After> {
    let record = disk.records.get(uid)?;
    let gpus: BTreeSet<String> = record.units().map(|unit| unit.gpu.clone()).collect();
    let is_seen = record.call.as_deref() == under && gpus.iter().all(|gpu| live.contains_key(gpu));
    (!gpus.is_empty() && !is_seen).then(|| After::Look {
        gpus,
        under: record.call.clone(),
    })
}

/// Whether a Prepare has left its mark on the record since it was looked at: one of another instance, for here such a Prepare waits
/// ([`super::looks`]). It came after the Unprepare, and may have been answered.
fn is_asked_for_again(uid: &str, disk: &Disk, under: Option<&str>) -> bool {
    let record = disk.records.get(uid);
    under.is_some() && record.is_some_and(|record| record.call.as_deref() != under)
}

pub(super) fn plain(message: String) -> Refusal {
    Refusal {
        reason: None,
        is_overlap: false,
        message,
    }
}

pub(super) fn disk_failed(claim: &ClaimRef, failure: &DiskFailure) -> Answer {
    let of_what = match failure.reason {
        Some(_) => "",
        None => "the driver's files: ",
    };
    Answer::Refused(Refusal {
        reason: failure.reason,
        is_overlap: false,
        message: format!("claim {claim}: {of_what}{failure}"),
    })
}
