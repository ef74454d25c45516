//! The public face of the protocol, and the order of one poll.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use muster_engine::{self as engine, recovery::ResetTurns};

use crate::{
    ApiRequest, Config, Effect, EffectId, ExitReason, Mode, Now, Outcome,
    admission::admit::{self, Wanted},
    admission::checkpoints::Checkpoints,
    admission::stage::Views,
    clocks::Clocks,
    disruptions::Disruptions,
    drains::Drains,
    faults::{breaker::BreakerView, check::FaultChecks},
    feed::{EXPLAINING_LOOKS, Feed, restored},
    in_flight::{Answer, InFlightWrites},
    in_vain::FieldNotStored,
    injected_bug::{InjectedBug, InjectedBugs},
    leadership::fence::LedgerCheck,
    leadership::ledger_recovery,
    leadership::newest::NewestLeader,
    leadership::store_check::StoreCheck,
    leadership::takeover::Takeover,
    look::News,
    nodes::{check::NodeChecks, health::NodeHealth},
    objects::ledger_object,
    outward::capacity_status::Capacity,
    outward::events::EventTracker,
    outward::force::Forcing,
    outward::queue_status::Queues,
    outward::ungate,
    outward::window::Window,
    poll_context::PollContext,
    resync::Resync,
    stalls::Stalls,
    tables::agenda::Agenda,
    tables::permits::PermitTable,
    tables::plans::Plans,
    tables::suspensions::Suspensions,
};
use muster_cluster::{
    formed::GangKey,
    index::{Index, NamespacedName},
    judgement::{Judgement, JudgementRequest},
    object::{Change, ObjectKey},
};

/// The circuit breaker as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerState {
    /// Nodes that gangs were evicted for, or that were given leave to reset GPUs, within the window.
    pub evacuated_nodes: usize,
    /// How many may be.
    pub most_nodes: usize,
    /// Whether it is open: nothing is evicted without proof, and no GPU reset, until a person closes it.
    pub is_open: bool,
}

/// The protocol of one leadership, from takeover until it sees a higher epoch or is dropped.
///
/// How it is driven: make one when the lease is acquired, then for ever
///
/// 1. [`Machine::poll`], and perform the effects it returns, concurrently and in any order;
/// 2. hand over what is observed ([`Machine::observe`]) and what came of each effect ([`Machine::settle`]);
/// 3. poll again soon after either, unless [`Machine::settle`] says that the answer changes nothing, and when
///    [`Machine::next_due`] says so;
/// 4. stop, performing nothing more, as soon as [`Machine::must_exit`] says so or the lease is lost.
///
/// At first it knows nothing and asks, by effects, for the Ledger, then for every kind
/// ([`ApiRequest::ReadAll`]): observations before that are welcome and count for nothing.
///
/// A poll costs what changed since the last one: the gangs and nodes that an observation, an answer or the time touches.
#[derive(Debug)]
pub struct Machine {
    pub(crate) config: Config,
    pub(crate) index: Index,
    pub(crate) flights: InFlightWrites,
    pub(crate) takeover: Takeover,
    pub(crate) clocks: Clocks,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) health: NodeHealth,
    pub(crate) node_checks: NodeChecks,
    pub(crate) fault_checks: FaultChecks,
    pub(crate) stalls: Stalls,
    pub(crate) drains: Drains,
    pub(crate) disruptions: Disruptions,
    pub(crate) forcing: Forcing,
    pub(crate) breaker: BreakerView,
    pub(crate) resets: ResetTurns,
    pub(crate) plans: Plans,
    pub(crate) permits: PermitTable,
    pub(crate) suspensions: Suspensions,
    pub(crate) views: Views,
    pub(crate) window: Window,
    pub(crate) feed: Feed,
    pub(crate) events: EventTracker,
    pub(crate) queues: Queues,
    pub(crate) capacity: Capacity,
    pub(crate) agenda: Agenda,
    /// Gangs that became undecided in this poll.
    pub(crate) undecided: BTreeSet<GangKey>,
    pub(crate) news: News,
    pub(crate) resync: Resync,
    pub(crate) ledger_check: LedgerCheck,
    pub(crate) newest: NewestLeader,
    pub(crate) store_check: StoreCheck,
    pub(crate) exit: Option<ExitReason>,
    pub(crate) ungating_withheld: bool,
    ungating_careful: bool,
    /// Whether nothing that an older leader still sends is taken any more.
    is_fenced: bool,
    pub(crate) visited: u64,
    pub(crate) held_stages: u64,
    pub(crate) bugs: InjectedBugs,
    pub(crate) now: Option<Now>,
    /// When it was polled first.
    began: Option<Now>,
}

impl Machine {
    /// A machine that knows nothing yet.
    pub fn new(config: Config) -> Self {
        Self {
            index: Index::new(config.index.clone()),
            flights: InFlightWrites::new(config.retry_seconds),
            config,
            takeover: Takeover::begin(),
            clocks: Clocks::default(),
            checkpoints: Checkpoints::default(),
            health: NodeHealth::default(),
            node_checks: NodeChecks::default(),
            fault_checks: FaultChecks::default(),
            stalls: Stalls::default(),
            drains: Drains::default(),
            disruptions: Disruptions::default(),
            forcing: Forcing::default(),
            breaker: BreakerView::default(),
            resets: ResetTurns::default(),
            plans: Plans::default(),
            permits: PermitTable::default(),
            suspensions: Suspensions::default(),
            views: Views::default(),
            window: Window::default(),
            feed: Feed::new(),
            events: EventTracker::default(),
            queues: Queues::default(),
            capacity: Capacity::default(),
            agenda: Agenda::default(),
            undecided: BTreeSet::new(),
            news: News::default(),
            resync: Resync::default(),
            ledger_check: LedgerCheck::default(),
            newest: NewestLeader::default(),
            store_check: StoreCheck::default(),
            exit: None,
            ungating_withheld: false,
            ungating_careful: false,
            is_fenced: false,
            visited: 0,
            held_stages: 0,
            bugs: InjectedBugs::default(),
            now: None,
            began: None,
        }
    }

    /// A machine with a planted fault, to show that the simulator sees it.
    #[cfg(feature = "injected-bugs")]
    pub fn with_injected_bug(config: Config, bug: crate::InjectedBug) -> Self {
        Self {
            bugs: InjectedBugs::plant(bug),
            ..Self::new(config)
        }
    }

    /// What is known of the cluster.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// What the engine knows and decides by.
    pub fn engine(&self) -> &engine::State {
        &self.feed.engine
    }

    /// Something was observed.
    pub fn observe(&mut self, change: Change) {
        self.note_change(&change);
        self.index.observe(change);
    }

    /// What is owed next. Each effect is returned once; its outcome is to be told by [`Machine::settle`].
    pub fn poll(&mut self, now: Now) -> Vec<Effect> {
        self.now = Some(now);
        self.began.get_or_insert(now);
        if self.exit.is_some() {
            return Vec::new();
        }
        if self.takeover.is_read() && self.index.is_synced() {
            let (seen, _) = self.highest_epoch();
            self.takeover.conclude(seen, self.bugs);
            self.agenda.everything();
        }
        let mut effects = self.takeover.poll(&mut self.flights, self.bugs, now);
        self.exit = self.superseded();
        let Some(epoch) = self.takeover.leading_epoch() else {
            return effects;
        };
        if self.exit.is_some() || !self.index.is_synced() {
            return effects;
        }
        for key in self.flights.in_vain.take_due(now.monotonic_seconds) {
            self.note_key(&key);
        }
        let is_first = self.gather(epoch, now, &mut effects);
        if self.exit.is_some() {
            return Vec::new();
        }
        effects.extend(self.check_ledger(now));
        effects.extend(self.check_store(now));
        self.look(epoch, now, &mut effects);
        if self.drains.take_anew() {
            // What they say about nodes is judged like the rules of pods that wait: now, or apart.
            self.gather(epoch, now, &mut effects);
            if self.exit.is_some() {
                return Vec::new();
            }
            self.look(epoch, now, &mut effects);
        }
        self.decide(epoch, now, &mut effects);
        self.look(epoch, now, &mut effects);
        self.ungate(epoch, now, &mut effects);
        self.look_at_undecided(epoch, now, &mut effects);
        if is_first {
            self.events.begin();
        }
        self.publish_queues(epoch, now, &mut effects);
        effects
    }

    /// The same with a look at everything, as if all of it had just changed. After [`Machine::poll`] this returns
    /// nothing: the proof that a poll overlooks nothing.
    pub fn full_poll(&mut self, now: Now) -> Vec<Effect> {
        self.agenda.everything();
        self.poll(now)
    }

    /// The second of the monotonic clock at which there is something to do by time alone, or now if something is left
    /// over; `None`: only an observation or an answer makes work.
    pub fn next_due(&self) -> Option<u64> {
        let now = self.now.map_or(0, |now| now.monotonic_seconds);
        if self.takeover.leading_epoch().is_none() {
            return Some(now + 1);
        }
        if self.index.has_more()
            || !self.agenda.is_idle()
            || self.flights.has_moved()
            || self.feed.is_explaining()
            || self.feed.is_interrupted()
        {
            return Some(now);
        }
        let by_index = self.index.next_due();
        let due = [
            by_index.and_then(|due| u64::try_from(due.0).ok()),
            self.agenda.next_due(),
            self.flights.next_due(),
            self.flights.in_vain.next_due(),
            self.window.next_due(),
            self.health.next_due(),
            self.queues.next_due().filter(|_| self.shows_use()),
            self.capacity.next_due().filter(|_| self.shows_use()),
            self.ledger_check.next_due(),
            self.store_check.next_due(),
            self.resets.next_due(self.config.recovery.resets, now),
            // Not before something may be decided: it is tried a second later, not at once.
            self.feed.explains_again_at().map(|at| at.max(now + 1)),
            Some(self.resync.next_due(now)),
            self.now.and_then(|now| {
                let seconds = self
                    .feed
                    .due_in_seconds(self.engine_time(now.monotonic_seconds))?;
                Some(now.monotonic_seconds.saturating_add(seconds))
            }),
        ];
        due.into_iter().flatten().min()
    }

    /// How many gangs and nodes were looked at so far: what a change costs, in a measure that no machine's speed enters.
    pub fn visited(&self) -> u64 {
        self.visited
    }

    /// How often an attempt seemed to go back to a stage that it had passed, and was kept in the later one: none is right, and
    /// each is a fault of this program.
    pub fn held_stages(&self) -> u64 {
        self.held_stages
    }

    /// What came of an effect. The written object comes by [`Machine::observe`] too, through its watch;
    /// nothing more is written to it until then.
    ///
    /// Whether it is to be polled for that. It is not where the answer says no more than that a write is done as it was to be, and
    /// its object is still to be seen, or that an Event was published: a poll would find what the last one found.
    pub fn settle(&mut self, effect: EffectId, outcome: Outcome) -> bool {
        let Some(now) = self.now else { return false };
        let outcome = match outcome {
            Outcome::Unknown if self.bugs.has(InjectedBug::UnansweredCountsAsDone) => {
                Outcome::Done(None)
            }
            outcome => outcome,
        };
        if self.ledger_check.end(effect) {
            let leads = self.take_ledger_check(&outcome, now);
            self.end_proof(effect, leads, now);
            return true;
        }
        if let Some(read) = self.store_check.end(effect) {
            self.take_store_check(read, &outcome);
            return true;
        }
        let is_check = self.take_node_check(effect, &outcome)
            || self.take_fault_check(effect, &outcome)
            || self.take_stall_check(effect, &outcome)
            || self.take_drain_check(effect, &outcome)
            || self.take_force_check(effect, &outcome);
        if is_check {
            return true;
        }
        let retry = self.config.retry_seconds;
        if self.takeover.settle(effect, &outcome, retry, now) {
            return true;
        }
        // What is done changes nothing before it is seen: until then the object counts as being written.
        let is_done = matches!(outcome, Outcome::Done(_));
        let mut is_noted = self.end_proof(effect, is_done, now);
        if let Some(target) = self.flights.target(effect).cloned()
            && (!is_done || self.flights.was_refused(&target))
        {
            self.note_key(&target);
            is_noted = true;
        }
        match self.flights.settle(&self.index, effect, &outcome, now) {
            Answer::Foreign | Answer::Awaited => is_noted,
            Answer::Taken => true,
            Answer::Conflict => {
                self.ledger_check.ask(now.monotonic_seconds);
                true
            }
        }
    }

    /// While withheld, no pod is ungated (no replica of a configured extender is ready, say).
    pub fn withhold_ungating(&mut self, withheld: bool) {
        if self.ungating_withheld != withheld {
            self.ungating_withheld = withheld;
            self.news.withheld_changed = true;
        }
    }

    /// While kube-scheduler is away (nobody renews its lease), no start can make progress, and none is late.
    pub fn note_scheduler_away(&mut self, is_away: bool) {
        if self.clocks.note_scheduler_away(is_away) {
            self.news.withheld_changed = true;
        }
    }

    /// While careful, fewer pods are ungated at a time: [`Config::careful_ungated_unbound_limit`].
    pub fn ungate_carefully(&mut self, careful: bool) {
        if self.ungating_careful != careful {
            self.ungating_careful = careful;
            self.window.stir();
        }
    }

    /// For which pods the claim template of their shorthand cannot be made, with the API server's answer: all of
    /// them, each time. Their gangs say so.
    pub fn note_refused_templates(&mut self, refused: BTreeMap<NamespacedName, String>) {
        self.index.set_refused_templates(refused);
    }

    /// From now on rules that anybody may bring (device selectors, rules about nodes) are handed out by
    /// [`Machine::take_judgements`], and cost a poll nothing. Without this a poll judges them itself.
    pub fn judge_apart(&mut self) {
        self.index.judge_apart();
    }

    /// What is to be judged next, at most `room` requests: on any thread, each to be answered by
    /// [`Machine::give_judgements`]. Only the gangs that use the rule wait for it.
    pub fn take_judgements(&mut self, room: usize) -> Vec<JudgementRequest> {
        self.index.take_judgements(room)
    }

    /// What came of judgements; to be polled afterwards. Late, twice or never does no harm to anybody but the gangs that
    /// use the rule.
    pub fn give_judgements(&mut self, judgements: impl IntoIterator<Item = Judgement>) {
        self.index.give_judgements(judgements);
    }

    /// Objects of which only a part could be read (true), or that can be read again: those of which it was not said
    /// before. They count as being written for ever: nothing is written to them, and nothing that depends on them is
    /// taken back.
    pub fn note_undecodable(&mut self, objects: BTreeMap<ObjectKey, bool>) {
        for (key, is_undecodable) in objects {
            self.flights.set_untouchable(&key, is_undecodable);
            self.note_key(&key);
        }
    }

    /// Fields that the API server does not store as they are written, each told once: the CustomResourceDefinitions are
    /// older than this program, say. What is written without effect is written again ten minutes later at the earliest.
    pub fn take_fields_not_stored(&mut self) -> Vec<FieldNotStored> {
        self.flights.in_vain.take_news()
    }

    /// The epoch of this leadership, once it is raised and everything was read: from then on it decides.
    pub fn leading_epoch(&self) -> Option<i64> {
        self.takeover.leading_epoch()
    }

    /// How many nodes count as evacuated now, how many may at most, and whether the circuit breaker is open.
    pub fn breaker(&self) -> BreakerState {
        let recovery = &self.config.recovery;
        let now = self.now.map_or(0, |now| now.monotonic_seconds);
        let mut evacuated = self.breaker.evacuated(recovery.breaker_window_seconds, now);
        evacuated.extend(self.resets.under_way().cloned());
        let nodes = self.health.nodes_with_devices();
        BreakerState {
            evacuated_nodes: evacuated.len(),
            most_nodes: recovery.breaker.most_nodes(nodes),
            is_open: self.breaker.is_open(),
        }
    }

    /// Set once a higher epoch than its own was seen anywhere, its Ledger is no more, or the store was set back. The caller
    /// exits; polls return nothing.
    pub fn must_exit(&self) -> Option<&ExitReason> {
        self.exit.as_ref()
    }

    /// What is looked at, and where whoever asks about time says when to be asked again.
    pub(crate) fn context<'a>(
        &'a self,
        epoch: i64,
        now: Now,
        wake: &'a Cell<Option<u64>>,
    ) -> PollContext<'a> {
        PollContext {
            config: &self.config,
            index: &self.index,
            flights: &self.flights,
            plans: &self.plans,
            permits: &self.permits,
            views: &self.views,
            explanations: &self.feed.explanations,
            engine: &self.feed.engine,
            has_decided: self.feed.has_decided,
            began: self.began.unwrap_or(now),
            clocks: &self.clocks,
            checkpoints: &self.checkpoints,
            health: &self.health,
            node_checks: &self.node_checks,
            fault_checks: &self.fault_checks,
            stalls: &self.stalls,
            drains: &self.drains,
            disruptions: &self.disruptions,
            forcing: &self.forcing,
            breaker: &self.breaker,
            resets: &self.resets,
            newest: &self.newest,
            bugs: self.bugs,
            epoch,
            now,
            wake,
        }
    }

    /// Point 1: what is settled leaves the Ledger, what was decided enters it. Nothing is decided while the
    /// last commit is not seen: it would be decided on what was before it. Nor while it is not known who leads, or a late
    /// write of an older leader may still change what is seen. And while nobody knows what an intent in the Ledger
    /// charges, because its Gang was deleted before its admission reached it, nothing is admitted: that lasts until the
    /// intent is taken back, for which nobody but the API server has to answer.
    fn decide(&mut self, epoch: i64, now: Now, effects: &mut Vec<Effect>) {
        self.feed.begin_poll();
        if self.ledger_check.is_owed(now.monotonic_seconds)
            || self.flights.busy(&ledger_object())
            || !self.is_fenced(epoch, now)
        {
            return;
        }
        self.give_turns(epoch, now);
        self.undo_uncommitted();
        let holds = self.feed.apply_holds(&mut self.index, self.bugs);
        let wake = Cell::new(None);
        if holds.any {
            self.queues.note_use();
            self.capacity.note_use();
        }
        // A gang waits for what its pods were to get by an earlier attempt.
        for pod in &holds.came_or_went {
            self.note_waiting_gang_of(pod.as_str());
        }
        self.look(epoch, now, effects);
        let mut shorter = BTreeSet::new();
        for (key, team) in self.feed.apply_waiting() {
            // Those behind it in the queue have another place.
            self.queues.note_team(team.as_str());
            let view = self.views.of(&key);
            if view.is_some_and(|view| view.reason.is_some()) {
                self.agenda.gang(&key);
            }
            shorter.insert(team);
        }
        for team in shorter {
            for gang in self.feed.note_nearer(&team, now.monotonic_seconds) {
                self.note_gang_by_uid(&gang);
            }
        }
        self.take_engine_updates(now);
        let time = self.engine_time(now.monotonic_seconds);
        let proposing = self.feed.take_proposing();
        let (mut wanted, stale) = admit::still_wanted(self.context(epoch, now, &wake), proposing);
        for gang in &stale {
            self.feed.undo(gang);
        }
        let room = admit::room(self.context(epoch, now, &wake), &wanted);
        let is_charge_unknown =
            self.plans.is_any_lost() && !self.bugs.has(InjectedBug::LostProposalIgnored);
        self.note_changed_preemptions();
        if is_charge_unknown {
            self.feed.note_proposing(std::mem::take(&mut wanted));
        } else if self.feed.is_due(time, room) {
            if self.bugs.has(InjectedBug::DecidedNotHeld) {
                for wanted in &wanted {
                    self.feed.undo(&wanted.admission.gang);
                }
            }
            self.restore_reservations(epoch, now);
            let budget = admit::budget(self.context(epoch, now, &wake), &wanted);
            let (decided, recorded) = self.feed.decide(time, &budget, room);
            for gang in &recorded {
                self.note_gang_by_uid(gang);
            }
            // Whose notice is over goes with this commit, if it is wanted again.
            if self.note_changed_preemptions() || !recorded.is_empty() {
                self.look(epoch, now, effects);
            }
            wanted.extend(decided.into_iter().map(Wanted::new));
            for team in self.feed.take_use_changed() {
                self.queues.note_team(team.as_str());
            }
            let limits = self.feed.engine.limits_version();
            self.queues.note_limits(limits);
            self.capacity.note_limits(limits);
        }
        let second = now.monotonic_seconds;
        for gang in self.feed.explain(&self.index, EXPLAINING_LOOKS, second) {
            self.note_gang_by_uid(&gang);
        }
        let context = self.context(epoch, now, &wake);
        let again = if self.is_recovering() {
            ledger_recovery::intents(context)
        } else {
            Vec::new()
        };
        let commit = admit::commit(context, wanted, again);
        // Whatever is written changes the room: then it is asked once more.
        if commit.is_full && commit.write.is_none() && commit.proposals.is_empty() {
            let room = admit::room(context, &commit.proposing);
            self.feed.note_too_little_room(room);
        }
        // What it waits for is seen once this commit is.
        for key in &commit.held_back {
            self.agenda.gang(key);
        }
        for gang in &commit.left_out {
            self.feed.undo(gang);
        }
        for (gang, wait) in commit.too_large {
            self.note_gang_by_uid(&gang);
            if let Some(key) = self.key_of_gang(&gang) {
                self.feed.note_too_large(&gang, &key, wait);
            }
        }
        self.feed.note_committed(commit.committed);
        if let Some(nodes) = commit.to_reset {
            self.resets.choose(nodes);
        }
        if !is_charge_unknown {
            self.feed.note_proposing(commit.proposing);
        }
        self.note_changed_preemptions();
        self.send(commit.write.into_iter().collect(), epoch, now, effects);
        self.send(commit.proposals, epoch, now, effects);
    }

    /// A second of the monotonic clock as the engine is told it.
    fn engine_time(&self, monotonic_seconds: u64) -> engine::Timestamp {
        let began = self.began.or(self.now);
        began.map_or(engine::Timestamp(0), |began| {
            began.engine_time(monotonic_seconds)
        })
    }

    /// Tells the engine what Gangs say of preemptions that a former leader decided, and Queues of what namespaces used, once, before it
    /// decides itself.
    fn restore_reservations(&mut self, epoch: i64, now: Now) {
        if std::mem::replace(&mut self.feed.is_restored, true) {
            return;
        }
        let wake = Cell::new(None);
        for reserved in restored::recorded(self.context(epoch, now, &wake)) {
            self.feed.apply(engine::Update::Reserved(reserved));
        }
        let used = restored::namespace_use(&self.index);
        for used in used {
            self.feed.apply(engine::Update::NamespaceUse(used));
        }
    }

    /// Has those looked at who give way, or to whom others do, otherwise than before; whether there are any.
    fn note_changed_preemptions(&mut self) -> bool {
        let changed = self.feed.engine.take_changed_preemptions();
        for gang in &changed {
            self.note_gang_by_uid(gang);
        }
        let is_any = !changed.is_empty();
        // Nothing is told of a first decision that is cut short, until it is complete.
        if !self.feed.has_decided {
            self.feed.recorded.extend(changed);
        }
        is_any
    }

    /// Whether nothing that an older leader still sends is taken any more: once it is so, it stays so.
    fn is_fenced(&mut self, epoch: i64, now: Now) -> bool {
        let wake = Cell::new(None);
        self.is_fenced =
            self.is_fenced || ledger_recovery::is_fenced(self.context(epoch, now, &wake));
        self.is_fenced
    }

    /// Whether nothing was committed to this Ledger yet.
    fn is_recovering(&self) -> bool {
        self.index
            .ledger()
            .is_some_and(|ledger| ledger.spec.sequence == 0)
    }

    /// What the last commit was to carry and the Ledger does not show was not committed: the engine takes it
    /// back. Judged by what is seen, so it holds for a conflict, a refusal and a lost answer alike. Of an intent whose
    /// proposal is gone with its Gang no holds are known, and it is taken back when it leaves the Ledger.
    fn undo_uncommitted(&mut self) {
        let commit = self.feed.take_commit();
        if commit.is_empty() {
            return;
        }
        let mut lost = Vec::new();
        for (key, gang) in commit {
            let intent = self.plans.committed(&key);
            match intent.filter(|intent| intent.plan.gang_uid == gang.as_str()) {
                Some(intent) if intent.lost.is_some() => lost.push((key, gang)),
                Some(_) => {}
                None => self.feed.undo(&gang),
            }
        }
        self.feed.note_committed(lost);
    }

    /// Pods, as far as the window has room, in the order of the Ledger.
    fn ungate(&mut self, epoch: i64, now: Now, effects: &mut Vec<Effect>) {
        if self.config.mode == Mode::Observe || self.ungating_withheld {
            return;
        }
        let mut limit = self.config.ungated_unbound_limit;
        if self.ungating_careful {
            limit = limit.min(self.config.careful_ungated_unbound_limit);
        }
        // A full window stays stirred until a pod makes room.
        if self.window.is_full(limit) || !self.window.take_stirred() {
            return;
        }
        let mut last = None;
        while let Some((next, room)) = self.window.next(last.as_ref(), limit) {
            let key = next.1.clone();
            last = Some(next);
            let early = self.bugs.has(InjectedBug::UngateBeforePlan);
            let committed = || Some(&self.plans.committed(&key)?.plan);
            let plan = self
                .plans
                .carried(&key)
                .or_else(|| committed().filter(|_| early));
            let Some(plan) = plan.cloned().filter(|_| room > 0) else {
                continue;
            };
            let wake = Cell::new(None);
            let owed = ungate::ungates(self.context(epoch, now, &wake), &plan);
            let owed: Vec<(String, ApiRequest)> = owed
                .take(room)
                .map(|(pod, write)| (pod.to_owned(), write))
                .collect();
            for (pod, write) in owed {
                self.send(vec![write], epoch, now, effects);
                self.count_pod(&pod, epoch, now);
            }
        }
        // What was sent stirred it; there is nothing more to send before something else changes.
        self.window.take_stirred();
    }

    /// Whether anything is to be shown of what is used. Not before the engine was told what is held, once in a leadership: until the fence
    /// of a new Ledger is complete that may be minutes, for which each Team and Cohort would be shown as idle. Nor while other limits
    /// wait for a commit to be answered: each number would cost a tree of all Teams. What was written before stands meanwhile.
    fn shows_use(&self) -> bool {
        self.feed.is_use_known && self.feed.engine.has_taken_in_limits()
    }

    fn publish_queues(&mut self, epoch: i64, now: Now, effects: &mut Vec<Effect>) {
        if !self.shows_use() {
            return;
        }
        let wake = Cell::new(None);
        let mut queues = std::mem::take(&mut self.queues);
        let mut writes = queues.writes(self.context(epoch, now, &wake), &self.feed.engine);
        self.queues = queues;
        let mut capacity = std::mem::take(&mut self.capacity);
        writes.extend(capacity.writes(self.context(epoch, now, &wake), &self.feed.engine));
        self.capacity = capacity;
        self.send(writes, epoch, now, effects);
    }

    /// Sends writes, each unless one of its object is under way.
    pub(crate) fn send(
        &mut self,
        writes: Vec<ApiRequest>,
        epoch: i64,
        now: Now,
        effects: &mut Vec<Effect>,
    ) {
        debug_assert_eq!(self.takeover.leading_epoch(), Some(epoch));
        for write in writes {
            let gang_uid = match &write {
                ApiRequest::ReplaceGangStatus { uid, .. } => Some(uid.clone()),
                _ => None,
            };
            let forced = match &write {
                ApiRequest::ForceDeletePod { uid, .. } => Some(uid.clone()),
                _ => None,
            };
            let effect = self.flights.send(&self.index, write, now);
            if let (Some(uid), true) = (gang_uid, effect.is_some()) {
                self.clocks.note_status_write(&uid, now.monotonic_seconds);
            }
            if let (Some(pod), true) = (forced, effect.is_some()) {
                self.forcing.note_sent(&pod);
            }
            if let Some(effect) = &effect {
                self.begin_commit(effect.id, &effect.write);
            }
            effects.extend(effect);
        }
    }
}
