//! Where each gang's attempt is: worked out once for a gang that changed, and what every writer goes by.

use std::collections::BTreeSet;

use crate::{
    admission::evict,
    admission::intent_state::{IntentState, intent_state},
    admission::plan::Plan,
    admission::void,
    feed::waiting,
    injected_bug::InjectedBug,
    objects::{is_gated, is_over},
    outward::{gang_status, ungate},
    poll_context::{PollContext, attempt},
};
use muster_api::IntentKind;
use muster_cluster::{
    formed::{DETAILS_BYTES, GangKey, PendingReason, has_ended},
    links::Links,
    table::Table,
    text::truncate,
};

/// How far an attempt has come. Stages are passed in this order, and none is passed back within a leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// It holds nothing.
    Waiting,
    /// The Ledger commits it.
    Committed,
    /// The Gang carries it; no pod was ungated.
    Carried,
    /// Some pods are ungated.
    Starting,
    /// Every pod was ungated, or is over.
    Started,
    /// It is taken back: voided before any of its pods was ungated, or evicted. What it holds is charged until it is proved
    /// released.
    Ending,
    /// The Gang ended, or every pod of the attempt is over.
    Over,
}

/// Where one gang is. At most one attempt of it is before [`Stage::Ending`]: this one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says something else, and none follows from another"
)]
pub(crate) struct View {
    /// UID of the Gang; empty while there is none.
    pub(crate) gang_uid: String,
    /// The attempt.
    pub(crate) attempt: i64,
    /// Its stage.
    pub(crate) stage: Stage,
    /// What is to become of the intent about the gang, which may be of an earlier attempt.
    pub(crate) intent: Option<IntentState>,
    /// Whether that intent owes nothing any more.
    pub(crate) is_settled: bool,
    /// Permits of that Gang up to that attempt are to be withdrawn.
    pub(crate) voided: Option<(String, i64)>,
    /// Nodes whose object must carry this leader's epoch for the intent to be settled.
    pub(crate) fenced: Vec<String>,
    /// Whether the plan that the Gang carries is to have its permits.
    pub(crate) is_permitted: bool,
    /// Whether the pods of the plan that the Gang carries may be ungated, and not all are.
    pub(crate) may_ungate: bool,
    /// Why it waits, or why it does not run as planned.
    pub(crate) reason: Option<PendingReason>,
    /// Why its attempt is to be evicted, or is being evicted while its Gang does not say so yet.
    pub(crate) eviction: Option<PendingReason>,
    /// Whether the Gang says of what is kept for it now that others give way to it.
    pub(crate) has_reservation: bool,
}

impl View {
    /// Whether the attempt is carried and not over, nor being taken back.
    pub(crate) fn is_under_way(&self) -> bool {
        (Stage::Carried..=Stage::Started).contains(&self.stage)
    }

    /// Whether its Gang carries an attempt of which it is not known yet what becomes of it, since an answer is owed first.
    pub(crate) fn is_undecided(&self) -> bool {
        self.intent == Some(IntentState::Undecided) && self.stage >= Stage::Carried
    }
}

/// The views of all gangs that were looked at, and what nodes need of them.
#[derive(Debug, Default)]
pub(crate) struct Views {
    by_gang: Table<GangKey, View>,
    /// The same gangs, in order.
    gangs: BTreeSet<GangKey>,
    voided: Table<String, i64>,
    fenced: Links<String, GangKey>,
    settled: BTreeSet<GangKey>,
    to_evict: BTreeSet<GangKey>,
}

impl Views {
    /// The view of a gang.
    pub(crate) fn of(&self, key: &GangKey) -> Option<&View> {
        self.by_gang.get(key)
    }

    /// The gangs after that one, in order.
    pub(crate) fn after(&self, key: Option<&GangKey>) -> impl Iterator<Item = &GangKey> {
        use std::ops::Bound::{Excluded, Unbounded};
        let start = key.map_or(Unbounded, Excluded);
        self.gangs.range((start, Unbounded))
    }

    /// Whether this leader has begun to take the attempt back.
    pub(crate) fn is_being_voided(&self, plan: &Plan) -> bool {
        self.of(&plan.key).is_some_and(|view| {
            let same = view.gang_uid == plan.gang_uid && view.attempt == plan.attempt;
            same && view.stage == Stage::Ending
        })
    }

    /// Gangs whose attempt is to be evicted, or is being evicted, and why.
    pub(crate) fn to_evict(&self) -> impl Iterator<Item = (&GangKey, &PendingReason)> {
        let gangs = self.to_evict.iter();
        gangs.filter_map(|key| Some((key, self.of(key)?.eviction.as_ref()?)))
    }

    /// Up to which attempt permits of the Gang are to be withdrawn.
    pub(crate) fn voided(&self, gang_uid: &str) -> Option<i64> {
        self.voided.get(gang_uid).copied()
    }

    /// Whether the node's object must carry this leader's epoch.
    pub(crate) fn is_fenced(&self, node: &str) -> bool {
        self.fenced.has(node)
    }

    /// Gangs whose intent is settled only once the node's object carries this leader's epoch.
    pub(crate) fn fenced_on(&self, node: &str) -> impl Iterator<Item = &GangKey> {
        self.fenced.of(node)
    }

    /// Whether the intent about the gang owes nothing any more.
    pub(crate) fn is_settled(&self, key: &GangKey) -> bool {
        self.settled.contains(key)
    }

    /// Gangs whose intent owes nothing any more.
    pub(crate) fn settled(&self) -> impl Iterator<Item = &GangKey> {
        self.settled.iter()
    }

    /// Whether any intent owes nothing any more.
    pub(crate) fn is_any_settled(&self) -> bool {
        !self.settled.is_empty()
    }

    /// Keeps a view, or forgets one; returns the one before.
    pub(crate) fn set(&mut self, key: &GangKey, view: Option<View>) -> Option<View> {
        let before = if let Some(view) = &view {
            if let Some((gang, attempt)) = &view.voided {
                self.voided.insert(gang.clone(), *attempt);
            }
            for node in &view.fenced {
                self.fenced.link(node.clone(), key.clone());
            }
            let before = self.by_gang.insert(key.clone(), view.clone());
            if before.is_none() {
                self.gangs.insert(key.clone());
            }
            before
        } else {
            self.gangs.remove(key);
            self.by_gang.remove(key)
        };
        if view.as_ref().is_some_and(|view| view.is_settled) {
            self.settled.insert(key.clone());
        } else {
            self.settled.remove(key);
        }
        if view.as_ref().is_some_and(|view| view.eviction.is_some()) {
            self.to_evict.insert(key.clone());
        } else {
            self.to_evict.remove(key);
        }
        let before = before?;
        let (voided, fenced) = view.map_or((None, Vec::new()), |view| (view.voided, view.fenced));
        if let Some((gang, _)) = &before.voided
            && voided.is_none_or(|(now, _)| now != *gang)
        {
            self.voided.remove(gang);
        }
        for node in before.fenced.iter().filter(|node| !fenced.contains(node)) {
            self.fenced.unlink(node.as_str(), key);
        }
        Some(before)
    }
}

/// Where a gang is. `None`: there is neither a Gang nor an intent about one.
pub(crate) fn view(context: PollContext<'_>, key: &GangKey) -> Option<View> {
    let gang = context.index.gang(key);
    let intent = context.intent_of(key);
    let carried = context.plans.carried(key);
    if gang.is_none() && intent.is_none() {
        return None;
    }
    let state = intent.map(|intent| intent_state(context, intent));
    let gang_uid = gang.and_then(|gang| gang.metadata.uid.clone());
    let has_reservation = gang_uid
        .as_deref()
        .is_some_and(|uid| context.is_reservation_recorded(uid));
    let mut view = View {
        gang_uid: gang_uid.unwrap_or_default(),
        attempt: gang.map_or(0, |gang| attempt(gang)),
        stage: Stage::Waiting,
        intent: state,
        is_settled: false,
        voided: None,
        fenced: Vec::new(),
        is_permitted: false,
        may_ungate: false,
        reason: None,
        eviction: None,
        has_reservation,
    };
    let own_intent = intent.filter(|intent| {
        intent.plan.gang_uid == view.gang_uid && intent.plan.attempt == view.attempt
    });
    let is_void = own_intent.is_some() && state == Some(IntentState::Void);
    view.stage = match carried {
        _ if gang.is_none() || is_void => Stage::Ending,
        _ if gang.is_some_and(|gang| has_ended(gang)) => Stage::Over,
        Some(plan) => stage_of_carried(context, plan),
        None if own_intent.is_some() => Stage::Committed,
        None => Stage::Waiting,
    };
    // While an answer is owed, what is seen may be from before it.
    if state == Some(IntentState::Undecided)
        && let Some(before) = context.views.of(key)
        && (&before.gang_uid, before.attempt) == (&view.gang_uid, view.attempt)
    {
        view.stage = view.stage.max(before.stage);
    }
    if let Some(intent) = intent {
        void::judge(context, intent, &mut view);
        if own_intent.is_some() && intent.kind == IntentKind::Evict {
            // The Gang says why once it is raised; until then it is remembered, also while an answer is owed.
            let before = context
                .views
                .of(key)
                .filter(|it| it.attempt == view.attempt);
            view.eviction = before.and_then(|before| before.eviction.clone());
        }
    }
    if let Some(plan) = carried {
        view.is_permitted = match state {
            None => true,
            // While the start is not complete all of it must match; afterwards each pod counts by itself.
            Some(IntentState::Complete) => plan.mismatch(context).is_none(),
            Some(_) => false,
        };
        let complete = state.is_none_or(|state| state == IntentState::Complete);
        view.reason = gang.and_then(|gang| gang_status::degraded(context, gang, plan));
        view.may_ungate = complete && view.stage < Stage::Started && ungate::is_owed(context, plan);
        if context.bugs.has(InjectedBug::StartNotResumed) {
            view.may_ungate &= intent.is_none_or(|intent| intent.leader_epoch == context.epoch);
        }
        if let Some(gang) = gang.filter(|_| complete) {
            view.eviction = evict::due(context, gang, plan, &view);
        }
    }
    // What is committed waits for nothing but to be carried.
    if carried.is_none()
        && own_intent.is_none()
        && let Some(gang) = gang.filter(|gang| !has_ended(gang))
    {
        view.reason = waiting::why(context, key, gang);
    }
    for wait in [&mut view.reason, &mut view.eviction].into_iter().flatten() {
        truncate(&mut wait.details, DETAILS_BYTES);
    }
    Some(view)
}

fn stage_of_carried(context: PollContext<'_>, plan: &Plan) -> Stage {
    if plan.is_over(context) {
        return Stage::Over;
    }
    if context.views.is_being_voided(plan) {
        return Stage::Ending;
    }
    if plan.is_untouched(context) {
        return Stage::Carried;
    }
    let gated = |uid: &str| {
        let pod = context.index.pod_by_uid(uid);
        pod.is_some_and(|pod| is_gated(pod) && !is_over(context.index, uid))
    };
    if plan.ranks.iter().any(|rank| gated(&rank.pod)) {
        Stage::Starting
    } else {
        Stage::Started
    }
}

/// The view that follows another one, and whether it had to be held back: an attempt that passed a stage stays in it,
/// whatever seems to be seen, and no pod of it is ungated by what contradicts it.
pub(crate) fn following(before: Option<&View>, mut after: View) -> (View, bool) {
    let Some(before) = before.filter(|before| !may_follow(before, &after)) else {
        return (after, false);
    };
    after.stage = before.stage;
    after.may_ungate = false;
    (after, true)
}

/// Whether a view may follow another one of the same attempt.
fn may_follow(before: &View, after: &View) -> bool {
    let same = (&before.gang_uid, before.attempt) == (&after.gang_uid, after.attempt);
    // How it ends may become clearer, and an attempt that is taken back is over when its pods are.
    let rank = |stage: Stage| match stage {
        // An end is an end: a commit may show only after its Gang ended, and is taken back then.
        Stage::Ending | Stage::Over => Stage::Over,
        other => other,
    };
    // The only pods that were ungated may vanish: then nothing of the attempt has begun any more, and it is about to be
    // taken back because its members changed.
    let is_taken_back_next = after.stage == Stage::Carried && after.reason.is_some();
    !same || is_taken_back_next || rank(before.stage) <= rank(after.stage)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(attempt: i64, stage: Stage) -> View {
        View {
            gang_uid: "train-uid".to_owned(),
            attempt,
            stage,
            intent: None,
            is_settled: false,
            voided: None,
            fenced: Vec::new(),
            is_permitted: true,
            may_ungate: true,
            reason: None,
            eviction: None,
            has_reservation: false,
        }
    }

    #[test]
    fn no_stage_of_an_attempt_goes_back_and_what_contradicts_it_ungates_nothing() {
        let stages = [
            Stage::Waiting,
            Stage::Committed,
            Stage::Carried,
            Stage::Starting,
            Stage::Started,
            Stage::Ending,
            Stage::Over,
        ];
        for (first, before) in stages.iter().enumerate() {
            for (second, after) in stages.iter().enumerate() {
                let case = format!("{before:?}, then {after:?}");
                let before = view(1, *before);
                let (same, held) = following(Some(&before), view(1, *after));
                // How an attempt ends may become clearer.
                let goes_back = second < first && second < 5;
                assert_eq!(held, goes_back, "{case}");
                let stage = if goes_back { before.stage } else { *after };
                assert_eq!((same.stage, same.may_ungate), (stage, !goes_back), "{case}");
                let (next, held) = following(Some(&before), view(2, *after));
                assert_eq!((next.stage, held), (*after, false), "{case}, next attempt");
            }
        }
    }
}
