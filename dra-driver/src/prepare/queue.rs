//! Who gets the lock next. One turn at a time: lock, decide, commit, follow.
//!
//! What a turn asks NVML about a GPU is answered only after what is under way on that GPU: a slice that is being made takes a second, and
//! one that hangs until the limit. Asked under the lock, that would hold up all other claims of the node. So a Prepare that would ask about a
//! GPU which this instance is changing is put off until the change has ended, in its place among the others of that GPU; at its own end it
//! takes its turn all the same, and is answered. An Unprepare is not put off: it is never behind a Prepare.

use std::collections::{BTreeSet, VecDeque};

use super::{
    claim::ClaimRef,
    disk::Record,
    effect::{CallId, DiskFailure, Effect, Locked, Probe, Ticket},
    machine::{Call, Machine, Stage},
    orphan::Orphan,
    slices::Removal,
    task::{After, Task},
};

/// Who wants the lock, in order of precedence.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Of which slices are gone, and records are to go.
    pub(super) removed: VecDeque<Removal>,
    pub(super) unprepares: VecDeque<(CallId, ClaimRef)>,
    pub(super) rebuild: Option<Vec<Record>>,
    pub(super) acknowledge: bool,
    /// The next acknowledgement reads `NodeDevices` uncached.
    pub(super) uncached: bool,
    pub(super) orphans: VecDeque<Orphan>,
    /// What was being given back, by somebody who is not there any more.
    pub(super) unfinished: VecDeque<ClaimRef>,
    pub(super) prepares: VecDeque<CallId>,
}

/// Who has the lock.
#[derive(Debug)]
pub(super) struct Turn {
    ticket: Ticket,
    task: Task,
    /// What is looked at while the lock is taken.
    probe: Option<Probe>,
    /// GPUs whose slices are listed meanwhile.
    lists: Vec<String>,
    after: Option<After>,
}

impl Turn {
    /// The Prepare call that is decided, and whose writes are under way.
    pub(super) fn committing(&self) -> Option<CallId> {
        match self.task {
            Task::Prepare(call) if self.after.is_some() => Some(call),
            _ => None,
        }
    }
}

impl Machine {
    pub(super) fn start_turn(&mut self, effects: &mut Vec<Effect>) {
        if self.turn.is_some() {
            return;
        }
        let Some(task) = self.next_task() else {
            return;
        };
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let read_node_devices = matches!(
            task,
            Task::Acknowledge { uncached: true } | Task::Rebuild(_)
        );
        let read_claim = match &task {
            Task::GiveBack(orphan) => Some(orphan.claim.clone()),
            _ => None,
        };
        let probe = self.probe(&task);
        let lists = self.lists(&task);
        effects.push(Effect::Lock {
            ticket,
            probe: probe.clone(),
            read_node_devices,
            read_claim,
            list_slices: lists.clone(),
        });
        self.turn = Some(Turn {
            ticket,
            task,
            probe,
            lists,
            after: None,
        });
    }

    fn next_task(&mut self) -> Option<Task> {
        let queue = &mut self.queue;
        if let Some(removal) = queue.removed.pop_front() {
            return Some(Task::Removed(removal));
        }
        if let Some((call, claim)) = queue.unprepares.pop_front() {
            return Some(Task::Unprepare { call, claim });
        }
        if let Some(found) = queue.rebuild.take() {
            return Some(Task::Rebuild(found));
        }
        if std::mem::take(&mut queue.acknowledge) {
            let uncached = std::mem::take(&mut queue.uncached);
            return Some(Task::Acknowledge { uncached });
        }
        if let Some(orphan) = queue.orphans.pop_front() {
            return Some(Task::GiveBack(orphan));
        }
        if let Some(claim) = queue.unfinished.pop_front() {
            return Some(Task::Finish(claim));
        }
        let mut prepares = std::mem::take(&mut self.queue.prepares);
        // A call may have been queued twice, or have gone to wait again.
        prepares.retain(|call| {
            self.calls.get(call).is_some_and(|waiting| {
                !matches!(
                    waiting.stage,
                    Stage::Waiting { .. } | Stage::Reading | Stage::Making | Stage::Removing
                )
            })
        });
        let next = {
            let changing = self.changing();
            prepares.iter().position(|call| {
                let call = self.calls.get(call);
                call.is_none_or(|call| !self.is_put_off(call, &changing))
            })
        };
        let next = next.and_then(|position| prepares.remove(position));
        self.queue.prepares = prepares;
        next.map(Task::Prepare)
    }

    /// UUIDs of the GPUs that this instance is making slices on, or removing them from.
    pub(super) fn changing(&self) -> BTreeSet<&str> {
        let making = self.calls.values();
        let making = making.filter(|call| matches!(call.stage, Stage::Making));
        let made = making.flat_map(|call| &call.changing);
        let removed = self.removing.values().flatten();
        made.chain(removed).map(String::as_str).collect()
    }

    /// Whether the turn of this call would ask about one of these GPUs, and may still wait.
    pub(super) fn is_put_off(&self, call: &Call, changing: &BTreeSet<&str>) -> bool {
        if changing.is_empty()
            || !matches!(call.stage, Stage::Record)
            || self.now() >= call.give_up_at
        {
            return false;
        }
        let Some((claim, inventory)) = call.found.as_ref().zip(self.inventory.as_ref()) else {
            return false;
        };
        let mut allocated = claim.devices.iter().flatten();
        allocated.any(|device| {
            let facts = inventory.get(&device.device);
            facts.is_some_and(|facts| changing.contains(facts.unit.gpu.as_str()))
        })
    }

    /// Puts a task back, before all others of its kind.
    pub(super) fn requeue(&mut self, task: Task) {
        match task {
            Task::Removed(removal) => self.queue.removed.push_front(removal),
            Task::Finish(claim) => self.queue.unfinished.push_front(claim),
            Task::Unprepare { call, claim } => self.queue.unprepares.push_front((call, claim)),
            Task::GiveBack(orphan) => self.queue.orphans.push_front(orphan),
            Task::Rebuild(found) => self.queue.rebuild = Some(found),
            Task::Acknowledge { uncached } => self.request_acknowledgement(uncached),
            Task::Prepare(call) => self.queue.prepares.push_front(call),
        }
    }

    fn probe(&self, task: &Task) -> Option<Probe> {
        match task {
            Task::Unprepare { claim, .. }
            | Task::GiveBack(Orphan { claim, .. })
            | Task::Finish(claim) => Some(Probe::Recorded(claim.uid.clone())),
            Task::Prepare(call) => {
                let call = self.calls.get(call)?;
                let found = call.found.as_ref()?;
                if call.looks_at_record && matches!(call.stage, Stage::Record) {
                    return Some(Probe::Recorded(call.claim.uid.clone()));
                }
                let inventory = self.inventory.as_ref()?;
                let units: Vec<_> = found
                    .devices
                    .iter()
                    .flatten()
                    .filter(|device| !device.admin_access)
                    .filter_map(|device| inventory.get(&device.device))
                    .map(|facts| facts.unit.clone())
                    .collect();
                (matches!(call.stage, Stage::Record) && !units.is_empty())
                    .then_some(Probe::Units(units))
            }
            Task::Acknowledge { .. } | Task::Rebuild(_) | Task::Removed(_) => None,
        }
    }

    /// GPUs whose slices are looked at before a claim is recorded: those of its devices that can be cut into slices.
    fn lists(&self, task: &Task) -> Vec<String> {
        let found = || {
            let Task::Prepare(call) = task else {
                return None;
            };
            let call = self.calls.get(call)?;
            let devices = call.found.as_ref()?.devices.as_ref()?;
            let inventory = self.inventory.as_ref()?;
            let is_recorded = matches!(call.stage, Stage::Record);
            is_recorded.then_some((devices, inventory))
        };
        let Some((devices, inventory)) = found() else {
            return Vec::new();
        };
        let gpus: BTreeSet<&String> = devices
            .iter()
            .filter_map(|device| inventory.get(&device.device))
            .map(|facts| &facts.unit.gpu)
            .collect();
        let can_be_cut = |gpu: &&String| {
            let mut devices = inventory.values();
            devices.any(|facts| facts.slice.is_some() && facts.unit.gpu == **gpu)
        };
        gpus.into_iter().filter(can_be_cut).cloned().collect()
    }

    pub(super) fn locked(&mut self, ticket: Ticket, locked: Locked, effects: &mut Vec<Effect>) {
        let Some(mut turn) = self.turn.take_if(|turn| turn.ticket == ticket) else {
            return;
        };
        // GPUs may have been listed since: what was looked at is then not what would be given away.
        let is_other = locked.disk.is_ok()
            && (self.probe(&turn.task) != turn.probe || self.lists(&turn.task) != turn.lists);
        let (writes, after) = if is_other {
            (Vec::new(), After::Again)
        } else {
            self.decide(&turn.task, locked, effects)
        };
        effects.push(Effect::Commit { ticket, writes });
        turn.after = Some(after);
        self.turn = Some(turn);
    }

    pub(super) fn committed(
        &mut self,
        ticket: Ticket,
        result: Result<(), DiskFailure>,
        effects: &mut Vec<Effect>,
    ) {
        let decided = |turn: &mut Turn| turn.ticket == ticket && turn.after.is_some();
        let Some(Turn { task, after, .. }) = self.turn.take_if(decided) else {
            return;
        };
        match (result, after) {
            (Ok(()), Some(after)) => self.follow(task, after, effects),
            (Ok(()), None) => {}
            (Err(failure), _) => self.failed(task, &failure, effects),
        }
    }
}
