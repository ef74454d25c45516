//! Who gets the lock next. One turn at a time: lock, decide, commit, follow.
//!
//! # In which order
//!
//! What gives back goes before what takes, so an Unprepare is never behind a Prepare. Of the turns of Prepares **those that end a call go
//! first**: its slices are made, or it failed, or its claim is of no use. All others (to leave a mark, to record) go in the order in which they
//! came. In a burst of claims the first are answered while the last are still to be recorded; else each that could be answered would
//! wait for all that came after it.
//!
//! Nobody starves by that. A call ends once, and has its slices made only after a turn that recorded it: so between two turns of the second
//! kind there are at most as many of the first as calls were on their way then, and new ones come of turns of the second kind alone. What
//! is given back was prepared, likewise; and the calls of a kubelet are finite.
//!
//! # Nothing is asked of NVML in a turn
//!
//! A turn that wants to know who uses a GPU, or which slices it has, and whose task has not looked at it, writes nothing, and is over: the task
//! looks ([`super::looks`]), and comes again with what it saw ([`super::sight`] says what that is worth by then). A Prepare looks as soon as it has
//! read its claim, so that mostly its turn finds what it needs. While an Unprepare looks, no Prepare of its claim that came after it
//! has a turn: it is a later wish.

use std::collections::{BTreeSet, VecDeque};

use super::{
    claim::ClaimRef,
    effect::{CallId, DiskFailure, Effect, Locked, Probe, Ticket},
    looks::Seen,
    machine::{Machine, Stage},
    orphan::Orphan,
    slices::Removal,
    task::{After, Rebuild, Task},
};

/// Who wants the lock, in order of precedence.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Of which slices are gone, and records are to go.
    pub(super) removed: VecDeque<Removal>,
    pub(super) unprepares: VecDeque<(CallId, ClaimRef)>,
    pub(super) rebuild: Option<Rebuild>,
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
    /// What is asked while the lock is taken.
    probe: Option<Probe>,
    /// What was seen before it.
    seen: Seen,
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

    /// Whether it is to be decided by something that was seen before it.
    pub(super) fn has_seen(&self) -> bool {
        self.after.is_none() && !self.seen.sights.is_empty()
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
        let seen = self.looks.take(&task);
        let read_claim = match &task {
            // By the turn before nobody knows yet what it will be decided by.
            Task::GiveBack(orphan) if seen.is_some() => Some(orphan.claim.clone()),
            _ => None,
        };
        let seen = seen.unwrap_or_default();
        let probe = self.probe(&task);
        effects.push(Effect::Lock {
            ticket,
            probe: probe.clone(),
            read_node_devices,
            read_claim,
            sights: seen.sights.clone(),
        });
        self.turn = Some(Turn {
            ticket,
            task,
            probe,
            seen,
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
        if let Some(rebuild) = queue.rebuild.take() {
            return Some(Task::Rebuild(rebuild));
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
                    Stage::Waiting { .. }
                        | Stage::Reading
                        | Stage::Looking { .. }
                        | Stage::Making
                        | Stage::Removing
                )
            })
        });
        let next = self.first_of(&prepares);
        let next = next.and_then(|position| prepares.remove(position));
        self.queue.prepares = prepares;
        next.map(Task::Prepare)
    }

    /// Which of these calls has the next turn.
    fn first_of(&self, prepares: &VecDeque<CallId>) -> Option<usize> {
        let later: BTreeSet<&str> = self.looks.unprepares().map(|it| it.uid.as_str()).collect();
        let may_go = |call: &CallId| {
            let waiting = self.calls.get(call);
            waiting.is_some_and(|waiting| !later.contains(waiting.claim.uid.as_str()))
        };
        let ends = |call: &CallId| {
            self.calls.get(call).is_some_and(|waiting| {
                matches!(
                    waiting.stage,
                    Stage::Finish(_) | Stage::Leave(_) | Stage::Undo(_)
                )
            })
        };
        let ending = prepares.iter().position(|call| may_go(call) && ends(call));
        ending.or_else(|| prepares.iter().position(may_go))
    }

    /// UUIDs of the GPUs that this instance is making slices on, or removing them from.
    pub(super) fn changing(&self) -> BTreeSet<&str> {
        let making = self.calls.values();
        let making = making.filter(|call| matches!(call.stage, Stage::Making));
        let made = making.flat_map(|call| &call.changing);
        let removed = self.removing.values().flatten();
        made.chain(removed).map(String::as_str).collect()
    }

    /// Puts a task back, before all others of its kind.
    pub(super) fn requeue(&mut self, task: Task) {
        match task {
            Task::Removed(removal) => self.queue.removed.push_front(removal),
            Task::Finish(claim) => self.queue.unfinished.push_front(claim),
            Task::Unprepare { call, claim } => self.queue.unprepares.push_front((call, claim)),
            Task::GiveBack(orphan) => self.queue.orphans.push_front(orphan),
            Task::Rebuild(rebuild) => self.queue.rebuild = Some(rebuild),
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

    pub(super) fn locked(&mut self, ticket: Ticket, locked: Locked, effects: &mut Vec<Effect>) {
        let Some(mut turn) = self.turn.take_if(|turn| turn.ticket == ticket) else {
            return;
        };
        // GPUs may have been listed since: what was asked is then not what would be given away.
        let is_other = locked.disk.is_ok() && self.probe(&turn.task) != turn.probe;
        let (writes, after) = if is_other {
            (Vec::new(), After::Again)
        } else {
            let under = turn.seen.under.as_deref();
            self.decide(&turn.task, locked, under, effects)
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
        let Some(Turn {
            task, after, seen, ..
        }) = self.turn.take_if(decided)
        else {
            return;
        };
        match (result, after) {
            (Ok(()), Some(after)) => self.follow(task, after, seen, effects),
            (Ok(()), None) => {}
            (Err(failure), _) => self.failed(task, &failure, effects),
        }
    }
}
