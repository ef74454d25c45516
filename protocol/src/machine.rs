//! The public face of the protocol, and the order of one poll.

use std::collections::BTreeMap;

use muster_engine as engine;

use crate::{
    ApiRequest, Config, Effect, EffectId, ExitReason, Now, Outcome,
    admission::admit,
    admission::place,
    admission::plan::Plan,
    admission::void,
    clocks::{Clocks, Progress},
    feed::holds::{self, Holds},
    feed::waiting,
    in_flight::{Answer, InFlightWrites},
    injected_bug::InjectedBugs,
    leadership::ledger_recovery,
    leadership::takeover::Takeover,
    objects::{bound_node, is_gated, is_terminal, ledger_object, phase},
    outward::events::EventTracker,
    outward::gangs,
    outward::nudge,
    outward::permits,
    outward::queue_status,
    outward::ungate,
    poll_context::{Explanations, PollContext},
};
use muster_cluster::{
    explain::{Circumstances, explain},
    index::{Index, NamespacedName},
    object::Change,
};

/// The protocol of one leadership, from takeover until it sees a higher epoch or is dropped.
///
/// How it is driven: make one when the lease is acquired, then for ever
///
/// 1. [`Machine::poll`], and perform the effects it returns, concurrently and in any order;
/// 2. hand over what is observed ([`Machine::observe`]) and what came of each effect ([`Machine::settle`]);
/// 3. poll again soon after either, and at least once a second;
/// 4. stop, performing nothing more, as soon as [`Machine::must_exit`] says so or the lease is lost.
///
/// At first it knows nothing and asks, by effects, for the Ledger, then for every kind anew
/// ([`ApiRequest::ReadAll`]): observations before that are welcome and count for nothing.
#[derive(Debug)]
pub struct Machine {
    pub(crate) config: Config,
    pub(crate) identity: String,
    pub(crate) index: Index,
    pub(crate) engine: engine::State,
    pub(crate) flights: InFlightWrites,
    pub(crate) takeover: Takeover,
    pub(crate) clocks: Clocks,
    pub(crate) told: EventTracker,
    /// In which second of the monotonic clock Queues were looked at last.
    pub(crate) queues_told_at: Option<u64>,
    /// What the engine knows of waiting gangs and holds: only differences are told.
    pub(crate) waiting: BTreeMap<engine::GangUid, engine::Gang>,
    pub(crate) holds: Holds,
    pub(crate) explanations: Explanations,
    /// Attempts that no commit can carry.
    pub(crate) too_large: BTreeMap<engine::GangUid, i64>,
    /// Admissions of the commit that is under way.
    pub(crate) committing: Vec<engine::GangUid>,
    /// The Ledger is to be read again after a conflict, not before that time; the read that is under way.
    pub(crate) check_ledger: Option<u64>,
    pub(crate) checking: Option<EffectId>,
    pub(crate) exit: Option<ExitReason>,
    pub(crate) ungating_withheld: bool,
    pub(crate) bugs: InjectedBugs,
    pub(crate) now: Option<Now>,
}

impl Machine {
    /// A machine that knows nothing yet. `identity` is the replica's name, for events and logs.
    pub fn new(config: Config, identity: String) -> Self {
        Self {
            index: Index::new(config.index.clone()),
            flights: InFlightWrites::new(config.retry_seconds),
            config,
            identity,
            engine: engine::State::new(),
            takeover: Takeover::begin(),
            clocks: Clocks::default(),
            told: EventTracker::default(),
            queues_told_at: None,
            waiting: BTreeMap::new(),
            holds: Holds::new(),
            explanations: Explanations::new(),
            too_large: BTreeMap::new(),
            committing: Vec::new(),
            check_ledger: None,
            checking: None,
            exit: None,
            ungating_withheld: false,
            bugs: InjectedBugs::default(),
            now: None,
        }
    }

    /// A machine with a planted fault, to show that the simulator sees it.
    #[cfg(feature = "injected-bugs")]
    pub fn with_injected_bug(config: Config, identity: String, bug: crate::InjectedBug) -> Self {
        Self {
            bugs: InjectedBugs::plant(bug),
            ..Self::new(config, identity)
        }
    }

    /// The replica's name.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The picture of the cluster that it decides by.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Something was observed.
    pub fn observe(&mut self, change: Change) {
        self.index.observe(change);
    }

    /// What is owed next. Each effect is returned once; its outcome is to be told by [`Machine::settle`].
    pub fn poll(&mut self, now: Now) -> Vec<Effect> {
        self.now = Some(now);
        if self.exit.is_some() {
            return Vec::new();
        }
        if self.takeover.is_read() && self.index.is_synced() {
            let (seen, _) = self.highest_epoch();
            self.takeover.conclude(seen, self.bugs);
        }
        let mut effects = self.takeover.poll(&mut self.flights, self.bugs, now);
        self.exit = self.superseded();
        let Some(epoch) = self.takeover.leading_epoch() else {
            return effects;
        };
        if self.exit.is_some() || !self.index.is_synced() {
            return effects;
        }
        effects.extend(self.check_ledger(now));
        if self.check_ledger.is_some() || self.checking.is_some() {
            return effects;
        }
        let seconds = engine::Timestamp(i64::try_from(now.monotonic_seconds).unwrap_or(i64::MAX));
        for update in self.index.engine_updates(seconds) {
            self.engine.apply(update);
        }
        self.index.refresh(seconds);
        effects.extend(self.flights.advance(&self.index, now));
        let nudges = self.note_clocks(epoch, now);
        self.send(nudges, &mut effects);
        self.write_outwards(epoch, now, &mut effects);
        self.decide(epoch, now, &mut effects);
        self.tell(epoch, now, &mut effects);
        effects
    }

    /// What came of an effect. The written object comes by [`Machine::observe`] too, through its watch;
    /// nothing more is written to it until then.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "an outcome is told once and is of no use afterwards"
    )]
    pub fn settle(&mut self, effect: EffectId, outcome: Outcome) {
        let Some(now) = self.now else { return };
        if self.checking == Some(effect) {
            self.checking = None;
            self.take_ledger_check(&outcome, now);
            return;
        }
        let retry = self.config.retry_seconds;
        if self.takeover.settle(effect, &outcome, retry, now) {
            return;
        }
        if self.flights.settle(effect, &outcome, now) == Answer::Conflict {
            self.check_ledger = Some(now.monotonic_seconds);
        }
    }

    /// While withheld, no pod is ungated (no replica of a configured extender is ready, say).
    pub fn withhold_ungating(&mut self, withheld: bool) {
        self.ungating_withheld = withheld;
    }

    /// For which pods the claim template of their shorthand cannot be made, with the API server's answer: all of
    /// them, each time. Their gangs say so.
    pub fn note_refused_templates(&mut self, refused: BTreeMap<NamespacedName, String>) {
        self.index.set_refused_templates(refused);
    }

    /// The epoch of this leadership, once it is raised and everything was read: from then on it decides.
    pub fn leading_epoch(&self) -> Option<i64> {
        self.takeover.leading_epoch()
    }

    /// Set once a higher epoch than its own was seen anywhere, or its Ledger is no more. The caller exits; polls
    /// return nothing.
    pub fn must_exit(&self) -> Option<&ExitReason> {
        self.exit.as_ref()
    }

    fn picture(&self, epoch: i64, now: Now) -> PollContext<'_> {
        PollContext {
            config: &self.config,
            index: &self.index,
            flights: &self.flights,
            explanations: &self.explanations,
            clocks: &self.clocks,
            bugs: self.bugs,
            epoch,
            now,
        }
    }

    /// Notes what happens, and returns the pods whose kubelets are to be nudged.
    fn note_clocks(&mut self, epoch: i64, now: Now) -> Vec<ApiRequest> {
        let seconds = now.monotonic_seconds;
        let not_ready = self
            .index
            .nodes()
            .filter(|(_, node)| !place::is_ready(node))
            .map(|(name, _)| name.clone());
        self.clocks.note_not_ready(not_ready, seconds);
        let picture = self.picture(epoch, now);
        let (mut starts, mut waiting) = (Vec::new(), Vec::new());
        for plan in picture
            .index
            .gangs()
            .filter_map(|(key, gang)| Plan::of_gang(key, gang))
        {
            let progress = progress(picture.index, &plan);
            if progress.running < plan.ranks.len() {
                starts.push((plan.gang_uid.to_owned(), progress));
                waiting.extend(nudge::waiting(picture, &plan));
            }
        }
        self.clocks
            .note_starts(starts.into_iter(), self.ungating_withheld, seconds);
        let due = self.clocks.nudges_due(waiting, seconds);
        nudge::writes(&self.index, &due)
    }

    /// Points 2 and 3 of the protocol: what stands in the Ledger goes outwards, in the order in which each
    /// step is seen to be done.
    fn write_outwards(&mut self, epoch: i64, now: Now, effects: &mut Vec<Effect>) {
        let picture = self.picture(epoch, now);
        let mut writes = ledger_recovery::writes(picture);
        writes.extend(void::writes(picture));
        writes.extend(admit::carry(picture));
        writes.extend(gangs::writes(picture));
        writes.extend(permits::writes(picture));
        writes.extend(ungate::writes(picture, self.ungating_withheld));
        self.send(writes, effects);
    }

    /// Point 1: what is settled leaves the Ledger, what was decided enters it. Nothing is decided while the
    /// last commit is not seen: it would be decided on a picture from before it. Nor while a late write of an older
    /// leader may still change it.
    fn decide(&mut self, epoch: i64, now: Now, effects: &mut Vec<Effect>) {
        if self.flights.busy(&ledger_object())
            || !ledger_recovery::is_fenced(self.picture(epoch, now))
        {
            return;
        }
        self.undo_uncommitted(epoch, now);
        self.tell_holds(epoch, now);
        self.tell_waiting(epoch, now);
        let decisions = self.engine.decide(engine::Timestamp(now.wall.as_second()));
        let explained = decisions
            .iter()
            .any(|decision| matches!(decision, engine::Decision::Explain(_)));
        let mut admissions = Vec::new();
        for decision in decisions {
            match decision {
                engine::Decision::Admit(admission) => admissions.push(admission),
                engine::Decision::Explain(explanation) => self.note_explanation(&explanation),
            }
        }
        let commit = admit::commit(self.picture(epoch, now), &admissions);
        for gang in &commit.left_out {
            self.engine.undo(gang);
        }
        let explained = explained || !commit.too_large.is_empty();
        for (gang, wait) in commit.too_large {
            let attempt = self.waiting.get(&gang).map_or(0, |gang| gang.attempt);
            self.explanations.insert(gang.to_string(), (None, wait));
            self.too_large.insert(gang, attempt);
        }
        self.committing = commit.committed;
        self.send(commit.write.into_iter().collect(), effects);
        if explained {
            let writes = gangs::writes(self.picture(epoch, now));
            self.send(writes, effects);
        }
    }

    /// What the last commit was to carry and the Ledger does not show was not committed: the engine takes it
    /// back. Judged by what is seen, so it holds for a conflict, a refusal and a lost answer alike.
    fn undo_uncommitted(&mut self, epoch: i64, now: Now) {
        for gang in std::mem::take(&mut self.committing) {
            let picture = self.picture(epoch, now);
            let committed = picture
                .intents()
                .iter()
                .any(|intent| intent.gang_uid == gang.as_str());
            if !committed {
                self.engine.undo(&gang);
            }
        }
    }

    fn tell(&mut self, epoch: i64, now: Now, effects: &mut Vec<Effect>) {
        let mut writes = Vec::new();
        // Looked at once a second: a Queue shows sums over many gangs, which change with each of their steps. It is
        // polled every second, so the last state is always told.
        if self.queues_told_at.replace(now.monotonic_seconds) != Some(now.monotonic_seconds) {
            writes = queue_status::writes(self.picture(epoch, now), &self.engine);
        }
        let mut told = std::mem::take(&mut self.told);
        writes.extend(told.owed(self.picture(epoch, now)));
        self.told = told;
        self.send(writes, effects);
    }

    fn send(&mut self, writes: Vec<ApiRequest>, effects: &mut Vec<Effect>) {
        for write in writes {
            effects.extend(self.flights.send(&self.index, write));
        }
    }

    fn tell_holds(&mut self, epoch: i64, now: Now) {
        let holds = holds::all(self.picture(epoch, now));
        for pod in self.holds.keys().filter(|pod| !holds.contains_key(*pod)) {
            self.index.set_hold(pod, false);
            self.engine.apply(engine::Update::HoldGone(pod.clone()));
        }
        for (pod, hold) in &holds {
            if self.holds.get(pod) != Some(hold) {
                self.index.set_hold(pod, true);
                self.engine.apply(engine::Update::Hold(hold.clone()));
            }
        }
        self.holds = holds;
    }

    fn tell_waiting(&mut self, epoch: i64, now: Now) {
        let index = &self.index;
        self.too_large
            .retain(|gang, _| index.gang_by_uid(gang.as_str()).is_some());
        let picture = self.picture(epoch, now);
        let waiting: BTreeMap<engine::GangUid, engine::Gang> = picture
            .index
            .gangs()
            .filter_map(|(key, gang)| waiting::candidate(picture, key, gang))
            .filter(|gang| self.too_large.get(&gang.uid) != Some(&gang.attempt))
            .map(|gang| (gang.uid.clone(), gang))
            .collect();
        for gang in self
            .waiting
            .keys()
            .filter(|gang| !waiting.contains_key(*gang))
        {
            if !self.too_large.contains_key(gang) {
                self.explanations.remove(gang.as_str());
            }
            self.engine.apply(engine::Update::NotWaiting(gang.clone()));
        }
        for (uid, gang) in &waiting {
            if self.waiting.get(uid) != Some(gang) {
                self.engine.apply(engine::Update::Waiting(gang.clone()));
            }
        }
        self.waiting = waiting;
    }

    fn note_explanation(&mut self, explanation: &engine::Explanation) {
        let formed = self
            .index
            .gang_by_uid(explanation.gang.as_str())
            .and_then(|gang| {
                let key = muster_cluster::formed::GangKey {
                    namespace: gang.metadata.namespace.clone()?,
                    name: gang.metadata.name.clone()?,
                };
                self.index.formed_gang(&key)
            });
        let team = formed.and_then(|formed| formed.team.as_ref());
        let faults = team.map_or_else(Vec::new, |team| self.index.faults_of_team(team.as_str()));
        let circumstances = formed.map_or_else(Circumstances::default, |formed| Circumstances {
            implied: formed.implied,
            unmodelled: &formed.unmodelled,
            faults: &faults,
        });
        let wait = explain(&explanation.why, circumstances);
        let position = i64::try_from(explanation.position).ok();
        self.explanations
            .insert(explanation.gang.to_string(), (position, wait));
    }
}

fn progress(index: &Index, plan: &Plan<'_>) -> Progress {
    let mut progress = Progress::default();
    for pod in plan
        .ranks
        .iter()
        .filter_map(|rank| index.pod_by_uid(rank.pod))
    {
        progress.ungated += usize::from(!is_gated(pod));
        progress.bound += usize::from(bound_node(pod).is_some());
        progress.running += usize::from(phase(pod) == "Running" || is_terminal(pod));
    }
    progress
}
