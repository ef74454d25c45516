//! What the engine is told of gangs, which wait and what each pod holds, and what it says of them.

mod help;
pub(crate) mod holds;
pub(crate) mod recovering;
pub(crate) mod restored;
pub(crate) mod running;
mod unexplained;
pub(crate) mod waiting;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_engine as engine;

use crate::{
    admission::admit::Wanted,
    injected_bug::{InjectedBug, InjectedBugs},
    objects::is_deleting,
};
use help::Help;
use holds::Holds;
use muster_cluster::{
    explain::{Circumstances, explain},
    formed::{GangKey, PendingReason},
    index::Index,
    pod::PodFields,
    table::Table,
};
use unexplained::Unexplained;

/// Why gangs wait as the engine, or the commit, says, by UID of the Gang.
pub(crate) type Explanations = Table<String, Explained>;

/// Why a gang waits as the engine, or the commit, says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Explained {
    pub(crate) wait: PendingReason,
    /// Since which second of the monotonic clock it is among the first [`HELPED`] of its Team's line; `None`: it is behind them.
    pub(crate) near_since: Option<u64>,
}

/// Most gangs that are explained in one poll.
pub(crate) const EXPLAINED_AT_ONCE: usize = 16;
/// Looks of the engine after which a poll explains no further gang. One takes 40 to 200 nanoseconds, so these take about half a
/// millisecond; an explanation whose device request is new takes two for each node.
pub(crate) const EXPLAINING_LOOKS: u64 = 4_000;

/// Of how many gangs at the head of each Team's line it is worked out what would help: it costs more than to say why they wait.
pub(crate) const HELPED: usize = 16;

/// The engine, and what it was told: only differences are.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says something else, and none follows from another"
)]
pub(crate) struct Feed {
    pub(crate) engine: engine::State,
    pub(crate) holds: Holds,
    pub(crate) explanations: Explanations,
    /// The Gang that waits under a name; the engine has it as it was told.
    waiting: Table<GangKey, engine::GangUid>,
    /// The gangs that others may preempt, as the engine has them.
    running: Table<GangKey, engine::Running>,
    /// The gangs that recover, each with the attempt that ended, as the engine was told.
    recovering: Table<GangKey, (engine::GangUid, i64)>,
    /// When gangs that hold something end at the latest, as the engine has it.
    ends: Table<GangKey, (engine::GangUid, engine::Timestamp)>,
    /// Whether the engine decided once about everything that it was told: until then it may be about to let somebody give way.
    pub(crate) has_decided: bool,
    /// Whether the engine was told what is held: before that it says of all Teams and Cohorts that they use nothing.
    pub(crate) is_use_known: bool,
    /// Whether the engine was told what a former leader recorded of preemptions.
    pub(crate) is_restored: bool,
    /// Gangs of which a former leader recorded that they preempt, or are preempted and hold something still, and those of which
    /// the first decision says so before it is complete; until the engine has decided.
    pub(crate) recorded: BTreeSet<engine::GangUid>,
    /// When the engine is to be asked again though nothing changed, by [`crate::Now::engine_time`].
    look_again_at: Option<engine::Timestamp>,
    /// What is to be told of gangs: `None`, that it does not wait any more.
    changed: BTreeMap<GangKey, Option<engine::Gang>>,
    /// Attempts that no commit can carry, by UID of the Gang.
    too_large: Table<engine::GangUid, i64>,
    /// Admissions of the commit that is under way.
    committing: Vec<(GangKey, engine::GangUid)>,
    /// Admissions that are committed as soon as their Gangs carry them as a proposal.
    proposing: Vec<Wanted>,
    /// Whether the engine was told anything since it decided last, or had more to decide than there was room for.
    has_news: bool,
    /// Whether the engine stopped in the midst of deciding, in this poll.
    is_interrupted: bool,
    /// Gangs that may wait for another reason than was noted.
    unexplained: Unexplained,
    /// Whether some of a batch were left to be explained, in this poll.
    is_explaining: bool,
    help: Help,
    /// The room of the Ledger, in bytes, that was too little for the next admission: nothing is decided before there is more.
    too_little_room: Option<usize>,
    /// Teams of which some namespace used something else by now.
    use_changed: BTreeSet<engine::TeamName>,
}

/// What was applied of holds.
#[derive(Debug, Default)]
pub(crate) struct AppliedHolds {
    /// Whether anything was.
    pub(crate) any: bool,
    /// Pods that hold something and did not, or the reverse.
    pub(crate) came_or_went: Vec<engine::PodUid>,
}

impl Feed {
    /// Of an engine that knows nothing.
    pub(crate) fn new() -> Self {
        Self {
            engine: engine::State::new(),
            holds: Holds::default(),
            explanations: Explanations::default(),
            waiting: Table::default(),
            running: Table::default(),
            recovering: Table::default(),
            ends: Table::default(),
            has_decided: false,
            is_use_known: false,
            is_restored: false,
            recorded: BTreeSet::new(),
            look_again_at: None,
            changed: BTreeMap::new(),
            too_large: Table::default(),
            committing: Vec::new(),
            proposing: Vec::new(),
            has_news: true,
            is_interrupted: false,
            unexplained: Unexplained::default(),
            is_explaining: false,
            help: Help::default(),
            too_little_room: None,
            use_changed: BTreeSet::new(),
        }
    }

    /// Tells the engine what was observed. Who waits, and how much each Team may have, says which gang is the next, and the
    /// room in the Ledger that was too little was so for another one.
    pub(crate) fn apply(&mut self, update: engine::Update) {
        use engine::Update::{Cohort, CohortGone, NotWaiting, Team, TeamGone, Waiting};
        if let Waiting(_) | NotWaiting(_) | Team(_) | TeamGone(_) | Cohort(_) | CohortGone(_) =
            &update
        {
            self.too_little_room = None;
        }
        self.engine.apply(update);
        self.has_news = true;
    }

    /// Notes whether a gang may be admitted.
    pub(crate) fn set_candidate(&mut self, key: &GangKey, candidate: Option<engine::Gang>) {
        let mut candidate =
            candidate.filter(|gang| self.too_large.get(&gang.uid) != Some(&gang.attempt));
        // Since when it lacks a place is told once: from then on the engine sees that itself.
        if let Some((known, candidate)) = self.applied(key).zip(candidate.as_mut())
            && known.uid == candidate.uid
        {
            candidate.lacks_place_since = known.lacks_place_since;
        }
        if self.applied(key) == candidate.as_ref() {
            self.changed.remove(key);
        } else {
            self.changed.insert(key.clone(), candidate);
        }
    }

    /// Notes whether others may preempt a gang, and what they go by. `ends`: if not, because its attempt is being ended.
    pub(crate) fn set_running(
        &mut self,
        key: &GangKey,
        running: Option<engine::Running>,
        ends: bool,
    ) {
        let before = self.running.get(key);
        if before == running.as_ref() {
            return;
        }
        if let Some(before) = before
            && running.as_ref().is_none_or(|it| it.uid != before.uid)
        {
            let gone = before.uid.clone();
            self.running.remove(key);
            self.apply(if ends {
                engine::Update::Ending(gone)
            } else {
                engine::Update::NotRunning(gone)
            });
        }
        if let Some(running) = running {
            let before = self.running.insert(key.clone(), running.clone());
            let is_later_checkpoint = before.is_some_and(|mut before| {
                before.checkpointed_at = running.checkpointed_at;
                before == running
            });
            // Who would go first is news for nobody: it counts once somebody has to go.
            if is_later_checkpoint {
                self.engine.apply(engine::Update::Running(running));
            } else {
                self.apply(engine::Update::Running(running));
            }
        }
    }

    /// The gang of that name that recovers, and from which attempt, as the engine was told.
    pub(crate) fn recovering(&self, key: &GangKey) -> Option<&(engine::GangUid, i64)> {
        self.recovering.get(key)
    }

    /// All gangs that recover, as the engine was told, in order: for whoever looks at all of them.
    pub(crate) fn all_recovering(&self) -> impl Iterator<Item = &GangKey> {
        self.recovering.in_order().map(|(key, _)| key)
    }

    /// Notes whether a gang recovers, and what is kept for it by that: told once for each attempt.
    pub(crate) fn set_recovering(
        &mut self,
        key: &GangKey,
        which: Option<(engine::GangUid, i64)>,
        told: Option<engine::Recovering>,
    ) {
        let before = self.recovering.get(key);
        if before == which.as_ref() {
            return;
        }
        if let Some((gone, _)) = before
            && which.as_ref().is_none_or(|(uid, _)| uid != gone)
        {
            let gone = gone.clone();
            self.recovering.remove(key);
            self.apply(engine::Update::NotRecovering(gone));
        }
        if let Some(which) = which {
            self.recovering.insert(key.clone(), which);
            if let Some(told) = told {
                self.apply(engine::Update::Recovering(told));
            }
        }
    }

    /// Notes when a gang ends at the latest, if that is known.
    pub(crate) fn set_end(
        &mut self,
        key: &GangKey,
        end: Option<(engine::GangUid, engine::Timestamp)>,
    ) {
        let before = self.ends.get(key);
        if before == end.as_ref() {
            return;
        }
        if let Some((gone, _)) = before
            && end.as_ref().is_none_or(|(uid, _)| uid != gone)
        {
            let gone = gone.clone();
            self.ends.remove(key);
            self.apply(engine::Update::Ends(gone, None));
        }
        if let Some((uid, at)) = end {
            self.ends.insert(key.clone(), (uid.clone(), at));
            self.apply(engine::Update::Ends(uid, Some(at)));
        }
    }

    /// A Gang is gone.
    pub(crate) fn forget(&mut self, gang_uid: &str) {
        self.explanations.remove(gang_uid);
        self.unexplained.remove(&gang_uid.into());
        self.help.forget(&gang_uid.into());
        self.too_large.remove(&gang_uid.into());
    }

    /// Applies what changed of holds to the engine.
    pub(crate) fn apply_holds(&mut self, index: &mut Index, bugs: InjectedBugs) -> AppliedHolds {
        self.is_use_known = true;
        let mut applied = AppliedHolds::default();
        for (pod, mut hold) in self.holds.take_changes() {
            if bugs.has(InjectedBug::FreedAtDeletion) {
                let deleted = index.pod_by_uid(pod.as_str()).is_some_and(is_deleting);
                hold = hold.filter(|_| !deleted);
            }
            applied.any = true;
            if index.has_hold(pod.as_str()) != hold.is_some() {
                index.set_hold(&pod, hold.is_some());
                applied.came_or_went.push(pod.clone());
            }
            self.apply(match hold {
                Some(hold) => engine::Update::Hold(Arc::unwrap_or_clone(hold)),
                None => engine::Update::HoldGone(pod),
            });
        }
        applied
    }

    /// The Gang that waits under a name, as the engine has it.
    fn applied(&self, key: &GangKey) -> Option<&engine::Gang> {
        self.engine.waiting(self.waiting.get(key)?)
    }

    /// Applies to the engine which gangs wait now and did not, or the reverse. Returns those that wait no more, each with its Team: what
    /// was said of why they wait is void.
    pub(crate) fn apply_waiting(&mut self) -> Vec<(GangKey, engine::TeamName)> {
        let mut gone = Vec::new();
        for (key, gang) in std::mem::take(&mut self.changed) {
            if let Some(before) = self.applied(&key)
                && gang.as_ref().is_none_or(|gang| gang.uid != before.uid)
            {
                let (uid, team) = (before.uid.clone(), before.team.clone());
                self.help.forget(&uid);
                if !self.too_large.contains_key(&uid) {
                    self.explanations.remove(uid.as_str());
                }
                self.waiting.remove(&key);
                gone.push((key.clone(), team));
                self.apply(engine::Update::NotWaiting(uid));
            }
            if let Some(gang) = gang {
                self.waiting.insert(key, gang.uid.clone());
                self.apply(engine::Update::Waiting(gang));
            }
        }
        gone
    }

    /// Whether the engine stopped in the midst of deciding, in this poll: asked again, it goes on.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// A poll begins in which the engine may be asked, or may not: as long as it may not, nothing is to be polled for that.
    pub(crate) fn begin_poll(&mut self) {
        self.is_interrupted = false;
        self.is_explaining = false;
    }

    /// Whether the engine has anything new to decide, or its time has come, and there is more room in the Ledger, in bytes, than was
    /// too little.
    pub(crate) fn is_due(&self, now: engine::Timestamp, room: usize) -> bool {
        let has_come = self.look_again_at.is_some_and(|at| at <= now);
        (self.has_news || has_come) && self.too_little_room.is_none_or(|least| room > least)
    }

    /// In how many seconds the engine is to be asked though nothing changes. That time may have passed, where nothing can be
    /// decided: it is tried again a second later, not at once.
    pub(crate) fn due_in_seconds(&self, now: engine::Timestamp) -> Option<u64> {
        let seconds = self.look_again_at?.0.saturating_sub(now.0);
        Some(u64::try_from(seconds).unwrap_or(0).max(1))
    }

    /// Lets the engine decide what is new. Returns what is to be admitted, in order, and, with the first decision, the Gangs that
    /// say of a preemption what is confirmed now, or not.
    pub(crate) fn decide(
        &mut self,
        now: engine::Timestamp,
        budget: &engine::Budget,
        room: usize,
    ) -> (Vec<engine::Admission>, BTreeSet<engine::GangUid>) {
        let decisions = self.engine.decide(now, budget);
        self.has_news = decisions.is_cut_short();
        self.is_interrupted = decisions.interrupted;
        let fits_none = decisions.exhausted && decisions.admissions.is_empty();
        self.too_little_room = fits_none.then_some(room);
        let changed = &decisions.reasons_changed;
        self.unexplained.extend(changed.gangs.iter().cloned());
        for team in &changed.teams {
            let waiting = self.engine.queue(team).map(|gang| gang.uid.clone());
            self.unexplained.extend(waiting);
        }
        let too_large = decisions.too_large.iter().map(|gang| gang.gang.clone());
        self.unexplained.extend(too_large);
        let mut recorded = BTreeSet::new();
        if !decisions.is_cut_short() {
            self.has_decided = true;
            recorded = std::mem::take(&mut self.recorded);
        }
        self.look_again_at = decisions.look_again_at;
        self.use_changed.extend(decisions.use_changed);
        (decisions.admissions, recorded)
    }

    /// Teams of which some namespace counts as having used something else by now than when somebody asked last.
    pub(crate) fn take_use_changed(&mut self) -> BTreeSet<engine::TeamName> {
        std::mem::take(&mut self.use_changed)
    }

    /// Asks the engine why gangs wait, of those whose reason may be another one. That stops after a bounded number of
    /// gangs, and of looks ([`EXPLAINING_LOOKS`]), because each costs up to two searches for a placement; at least one gang is explained. Returns
    /// the Gangs with another reason, by UID.
    pub(crate) fn explain(
        &mut self,
        index: &Index,
        most_looks: u64,
        second: u64,
    ) -> Vec<engine::GangUid> {
        self.unexplained.extend(self.help.take_due(second));
        let mut explained = Vec::new();
        let before = self.engine.visited();
        for _ in 0..EXPLAINED_AT_ONCE {
            if self.engine.visited().wrapping_sub(before) > most_looks {
                break;
            }
            let Some(gang) = self.unexplained.take(second) else {
                break;
            };
            if let Some(explanation) = self.engine.explain(&gang)
                && self.note_explanation(index, &explanation, second)
            {
                explained.push(gang);
            }
        }
        self.is_explaining = self.unexplained.is_in_batch();
        explained
    }

    /// The second in which gangs are to be explained, though nothing changes until then.
    pub(crate) fn explains_again_at(&self) -> Option<u64> {
        let due = [self.help.next_due(), self.unexplained.next_due()];
        due.into_iter().flatten().min()
    }

    /// Whether gangs of a batch were left to be explained, in this poll: asked again, the engine explains more of them.
    pub(crate) fn is_explaining(&self) -> bool {
        self.is_explaining
    }

    /// Keeps an explanation; whether it is another one than before.
    fn note_explanation(
        &mut self,
        index: &Index,
        explanation: &engine::Explanation,
        second: u64,
    ) -> bool {
        let uid = explanation.gang.as_str();
        let formed = index
            .gang_by_uid(uid)
            .and_then(|gang| index.formed_gang(&crate::objects::key_of(gang)?));
        let team = formed.and_then(|formed| formed.team.as_ref());
        let faults = team.map_or_else(Vec::new, |team| index.faults_of_team(team.as_str()));
        let single = formed.filter(|formed| formed.spec.size == 1);
        let pod = single.and_then(|formed| index.pod_by_uid(&formed.pods.first()?.identity.uid));
        let elder = pod.and_then(|pod| index.elder_of_deployment(pod));
        // Whoever is further behind mostly waits for those before it.
        let is_near = explanation.position <= HELPED;
        let state = &self.engine;
        let work_out = |explained: &engine::Explanation| state.remedies(explained);
        let known = if is_near {
            self.help.of(explanation, second, work_out)
        } else {
            None
        };
        let circumstances = formed.map_or_else(Circumstances::default, |formed| Circumstances {
            is_implied_gang: formed.implied && formed.spec.size > 1,
            least_of: formed
                .spec
                .min_count
                .map(|least| (least, formed.pods.len()))
                .filter(|(least, all)| usize::try_from(*least).is_ok_and(|least| least < *all)),
            unmodelled: &formed.unmodelled,
            faults: &faults,
            elder: elder.map(PodFields::name),
            remedies: known.map(|known| &known.remedies),
        });
        let why = known.map_or(&explanation.why, |known| &known.why);
        let wait = explain(why, circumstances);
        let before = self.explanations.get(uid);
        let since = before.and_then(|before| before.near_since);
        let near_since = is_near.then(|| since.unwrap_or(second));
        let explained = Explained { wait, near_since };
        if before == Some(&explained) {
            return false;
        }
        self.explanations.insert(uid.to_owned(), explained);
        true
    }

    /// Some gangs wait in a Team's line no more. Returns those that are near its head since then: what was said of why they wait stands,
    /// and is not asked for anew.
    pub(crate) fn note_nearer(
        &mut self,
        team: &engine::TeamName,
        second: u64,
    ) -> Vec<engine::GangUid> {
        let mut nearer = Vec::new();
        for gang in self.engine.queue(team).take(HELPED) {
            if let Some(explained) = self.explanations.get_mut(gang.uid.as_str())
                && explained.near_since.is_none()
            {
                explained.near_since = Some(second);
                nearer.push(gang.uid.clone());
            }
        }
        nearer
    }

    /// Takes back an admission that could not be committed.
    pub(crate) fn undo(&mut self, gang: &engine::GangUid) {
        self.engine.undo(gang);
        self.has_news = true;
    }

    /// An attempt is so large that no commit can carry it. It does not wait in the engine any more.
    pub(crate) fn note_too_large(
        &mut self,
        gang: &engine::GangUid,
        key: &GangKey,
        wait: PendingReason,
    ) {
        let attempt = self.applied(key).map_or(0, |gang| gang.attempt);
        let near_since = Some(0);
        let explained = Explained { wait, near_since };
        self.explanations.insert(gang.to_string(), explained);
        self.too_large.insert(gang.clone(), attempt);
        self.changed.insert(key.clone(), None);
    }

    /// A commit of these gangs was sent, or is in the Ledger without what it charges.
    pub(crate) fn note_committed(&mut self, gangs: Vec<(GangKey, engine::GangUid)>) {
        self.committing.extend(gangs);
    }

    /// The admissions that wait for their proposals, once.
    pub(crate) fn take_proposing(&mut self) -> Vec<Wanted> {
        std::mem::take(&mut self.proposing)
    }

    /// These admissions wait for their proposals.
    pub(crate) fn note_proposing(&mut self, proposing: Vec<Wanted>) {
        self.proposing = proposing;
    }

    /// The room of the Ledger, in bytes, is too little for the next admission.
    pub(crate) fn note_too_little_room(&mut self, room: usize) {
        self.too_little_room = Some(room);
    }

    /// The gangs of which a commit is not seen with all that it charges, once.
    pub(crate) fn take_commit(&mut self) -> Vec<(GangKey, engine::GangUid)> {
        std::mem::take(&mut self.committing)
    }
}
