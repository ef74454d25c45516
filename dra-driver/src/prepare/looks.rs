//! Who waits for a look at which GPU.
//!
//! A GPU is looked at without the lock, and by one look at a time: whoever wants one while another is under way shares the next with all
//! who came meanwhile. So every look is later than the wish for it, and many who wait for one GPU cost two looks and not one each.
//! Looks at different GPUs are under way at once; one that hangs holds up those who wait for that GPU.
//!
//! What is seen of a GPU before this instance begins to change it is outdated by that. A Prepare that waits for its turn with such a sight
//! waits for the next look instead, which is put off until the change has ended: NVML would answer only after it. At its own end a Prepare
//! takes its turn without a look. An Unprepare, and all else that gives back, looks at once: it is never behind a Prepare.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    claim::ClaimRef,
    effect::{CallId, Effect, LookId, Milliseconds},
    machine::{Machine, Stage},
    sight::{Sight, Sights},
    task::Task,
};

/// How long a Prepare waits for a last look after its end. The kubelet waits ten seconds longer than a Prepare does.
const LAST_LOOK_MILLISECONDS: u64 = 5_000;

/// Who waits for looks: one task for each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Looker {
    Prepare(CallId),
    Unprepare(CallId),
    /// By UID of the claim, as the next.
    Orphan(String),
    Unfinished(String),
}

impl Looker {
    fn of(task: &Task) -> Option<Self> {
        match task {
            Task::Prepare(call) => Some(Self::Prepare(*call)),
            Task::Unprepare { call, .. } => Some(Self::Unprepare(*call)),
            Task::GiveBack(orphan) => Some(Self::Orphan(orphan.claim.uid.clone())),
            Task::Finish(claim) => Some(Self::Unfinished(claim.uid.clone())),
            Task::Rebuild(_) | Task::Acknowledge { .. } | Task::Removed(_) => None,
        }
    }

    fn is_prepare(&self) -> bool {
        matches!(self, Self::Prepare(_))
    }
}

/// What a task has seen for its next turn.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) sights: Sights,
    /// The mark that was on the record before it was looked at, where the look is about a record.
    pub(super) under: Option<String>,
}

/// Looks, wanted and under way.
#[derive(Debug, Default)]
pub(super) struct Looks {
    next: u64,
    /// At most one for each GPU, by its UUID.
    under_way: BTreeMap<String, UnderWay>,
    /// Who shares the next look at each GPU.
    wanted: BTreeMap<String, BTreeSet<Looker>>,
    waiting: BTreeMap<Looker, Waiting>,
    /// What those have seen that wait for their turn.
    ready: BTreeMap<Looker, Seen>,
}

#[derive(Debug)]
struct UnderWay {
    look: LookId,
    lookers: BTreeSet<Looker>,
}

#[derive(Debug)]
struct Waiting {
    task: Task,
    missing: BTreeSet<String>,
    seen: Seen,
}

impl Looks {
    /// What a task has seen, which counts for one turn. `None` if it has not looked.
    pub(super) fn take(&mut self, task: &Task) -> Option<Seen> {
        self.ready.remove(&Looker::of(task)?)
    }

    /// Claims that are to be unprepared, and are looked at first.
    pub(super) fn unprepares(&self) -> impl Iterator<Item = &ClaimRef> {
        self.waiting.values().filter_map(|it| match &it.task {
            Task::Unprepare { claim, .. } => Some(claim),
            _ => None,
        })
    }

    /// Whether anything that was seen waits to be judged.
    pub(super) fn holds_sights(&self) -> bool {
        let waiting = self.waiting.values().map(|waiting| &waiting.seen);
        let mut seen = waiting.chain(self.ready.values());
        seen.any(|seen| !seen.sights.is_empty())
    }

    /// A Prepare that is answered looks no more.
    pub(super) fn forget(&mut self, call: CallId) {
        let looker = Looker::Prepare(call);
        self.waiting.remove(&looker);
        self.ready.remove(&looker);
        self.leave_lists(&looker);
    }

    /// Nor does what is left to the next look for orphans.
    pub(super) fn forget_orphans(&mut self) {
        let looks_for = |looker: &Looker| matches!(looker, Looker::Orphan(_));
        self.waiting.retain(|looker, _| !looks_for(looker));
        self.ready.retain(|looker, _| !looks_for(looker));
        self.wanted.retain(|_, lookers| {
            lookers.retain(|looker| !looks_for(looker));
            !lookers.is_empty()
        });
        for under_way in self.under_way.values_mut() {
            under_way.lookers.retain(|looker| !looks_for(looker));
        }
    }

    /// Nor does what was being given back, and is not to be finished now: what was seen of it is too old once it is.
    pub(super) fn forget_unfinished_but(&mut self, claims: &[ClaimRef]) {
        let is_due = |uid: &String| claims.iter().any(|claim| claim.uid == *uid);
        self.ready.retain(|looker, _| match looker {
            Looker::Unfinished(uid) => is_due(uid),
            Looker::Prepare(_) | Looker::Unprepare(_) | Looker::Orphan(_) => true,
        });
    }

    /// A Prepare takes its turn with what it has seen so far.
    pub(super) fn give_up(&mut self, call: CallId) {
        let looker = Looker::Prepare(call);
        if let Some(waiting) = self.waiting.remove(&looker) {
            self.leave_lists(&looker);
            self.ready.insert(looker, waiting.seen);
        }
    }

    fn leave_lists(&mut self, looker: &Looker) {
        self.wanted.retain(|_, lookers| {
            lookers.remove(looker);
            !lookers.is_empty()
        });
        for under_way in self.under_way.values_mut() {
            under_way.lookers.remove(looker);
        }
    }

    /// Who waits already goes on with what he waits for.
    fn want(&mut self, looker: Looker, waiting: Waiting) {
        if self.waiting.contains_key(&looker) {
            return;
        }
        for gpu in &waiting.missing {
            let lookers = self.wanted.entry(gpu.clone()).or_default();
            lookers.insert(looker.clone());
        }
        self.waiting.insert(looker, waiting);
    }

    /// Begins the looks that may begin now.
    fn start(&mut self, changing: &BTreeSet<String>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let wanted = self.wanted.keys();
        let free = wanted.filter(|gpu| !self.under_way.contains_key(*gpu));
        let free: Vec<String> = free.cloned().collect();
        for gpu in free {
            let lookers = self.wanted.remove(&gpu).unwrap_or_default();
            let is_changing = changing.contains(&gpu);
            let (later, lookers): (BTreeSet<Looker>, BTreeSet<Looker>) = lookers
                .into_iter()
                .partition(|looker| is_changing && looker.is_prepare());
            if !later.is_empty() {
                self.wanted.insert(gpu.clone(), later);
            }
            if lookers.is_empty() {
                continue;
            }
            let look = LookId(self.next);
            self.next += 1;
            let under_way = UnderWay { look, lookers };
            self.under_way.insert(gpu.clone(), under_way);
            effects.push(Effect::Look { look, gpu });
        }
        effects
    }

    /// Takes what was seen; returns the tasks that have seen all that they want to.
    fn looked(&mut self, look: LookId, sight: Sight) -> Vec<Task> {
        let mut under_way = self.under_way.iter();
        let found = under_way.find(|(_, under_way)| under_way.look == look);
        let Some(gpu) = found.map(|(gpu, _)| gpu.clone()) else {
            return Vec::new();
        };
        let lookers = self.under_way.remove(&gpu).map(|it| it.lookers);
        let sight = Arc::new(sight);
        let mut done = Vec::new();
        for looker in lookers.into_iter().flatten() {
            let Some(mut waiting) = self.waiting.remove(&looker) else {
                continue;
            };
            waiting.seen.sights.insert(gpu.clone(), Arc::clone(&sight));
            waiting.missing.remove(&gpu);
            if waiting.missing.is_empty() {
                self.ready.insert(looker, waiting.seen);
                done.push(waiting.task);
            } else {
                self.waiting.insert(looker, waiting);
            }
        }
        done
    }

    /// These GPUs begin to change: what Prepares have seen of them, or are about to see, does not count. Returns those that
    /// had seen everything.
    fn outdate(&mut self, gpus: &BTreeSet<String>) -> Vec<CallId> {
        for gpu in gpus {
            let Some(under_way) = self.under_way.get_mut(gpu) else {
                continue;
            };
            let lookers = std::mem::take(&mut under_way.lookers);
            let (prepares, others): (BTreeSet<Looker>, BTreeSet<Looker>) =
                lookers.into_iter().partition(Looker::is_prepare);
            under_way.lookers = others;
            if !prepares.is_empty() {
                self.wanted.entry(gpu.clone()).or_default().extend(prepares);
            }
        }
        let mut again = Vec::new();
        let ready = std::mem::take(&mut self.ready);
        for (looker, seen) in ready {
            match looker {
                Looker::Prepare(call) if gpus.iter().any(|it| seen.sights.contains_key(it)) => {
                    let waiting = Waiting {
                        task: Task::Prepare(call),
                        missing: BTreeSet::new(),
                        seen,
                    };
                    self.waiting.insert(looker, waiting);
                    again.push(call);
                }
                looker => _ = self.ready.insert(looker, seen),
            }
        }
        let prepares = self.waiting.iter_mut();
        for (looker, waiting) in prepares.filter(|(looker, _)| looker.is_prepare()) {
            for gpu in gpus {
                if waiting.seen.sights.remove(gpu).is_some() {
                    waiting.missing.insert(gpu.clone());
                    let lookers = self.wanted.entry(gpu.clone()).or_default();
                    lookers.insert(looker.clone());
                }
            }
        }
        again
    }
}

impl Machine {
    /// Has GPUs looked at for a task, which has its turn after that. What it has seen of others it keeps.
    pub(super) fn look(&mut self, task: Task, gpus: BTreeSet<String>, mut seen: Seen) {
        let Some(looker) = Looker::of(&task) else {
            return;
        };
        if let Task::Prepare(call) = task
            && !self.wait_for_look(call)
        {
            return;
        }
        if gpus.is_empty() {
            self.looks.ready.insert(looker, seen);
            self.go_on(task);
            return;
        }
        seen.sights.retain(|gpu, _| !gpus.contains(gpu));
        let waiting = Waiting {
            task,
            missing: gpus,
            seen,
        };
        self.looks.want(looker, waiting);
    }

    /// Whether there is such a call.
    fn wait_for_look(&mut self, call: CallId) -> bool {
        let now = self.now();
        let Some(waiting) = self.calls.get_mut(&call) else {
            return false;
        };
        let end = waiting.give_up_at;
        let until = if now < end {
            end
        } else {
            Milliseconds(end.0.saturating_add(LAST_LOOK_MILLISECONDS))
        };
        waiting.stage = Stage::Looking { until };
        true
    }

    fn go_on(&mut self, task: Task) {
        match task {
            Task::Prepare(call) => self.queue_prepare(call, Stage::Record),
            task => self.requeue(task),
        }
    }

    /// These GPUs begin to change.
    pub(super) fn outdate(&mut self, gpus: &BTreeSet<String>) {
        for call in self.looks.outdate(gpus) {
            self.wait_for_look(call);
        }
    }

    pub(super) fn start_looks(&mut self, effects: &mut Vec<Effect>) {
        if self.looks.wanted.is_empty() {
            return;
        }
        let changing = self.changing().into_iter();
        let changing: BTreeSet<String> = changing.map(str::to_owned).collect();
        effects.extend(self.looks.start(&changing));
    }

    pub(super) fn looked(&mut self, look: LookId, sight: Sight) {
        for task in self.looks.looked(look, sight) {
            self.go_on(task);
        }
    }
}
