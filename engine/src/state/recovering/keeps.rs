//! For which gangs something is kept, and until when.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    alike::AskedInVain,
    comers::Comers,
    keep::Keep,
    parked::Parked,
    turns::{Judged, Turns},
};
use crate::{
    names::{GangUid, PodUid, Timestamp},
    placement::Version,
    state::{clock::earlier, ids::GangId},
};

/// All of them.
#[derive(Clone, Debug, Default)]
pub(in crate::state) struct Keeps {
    pub(super) by_gang: BTreeMap<GangUid, Keep>,
    /// How many of them have a name.
    names: BTreeMap<String, usize>,
    pub(super) by_end: BTreeSet<(Timestamp, GangUid)>,
    /// Those that were judged in vain, and may preempt others by time alone, by when that is.
    by_more_at: BTreeSet<(Timestamp, GangUid)>,
    /// The pods by whose names something is kept.
    pub(super) pods: BTreeSet<PodUid>,
    /// Gangs of which something was released before anybody told, or whose admission was taken back.
    pub(super) with_missing: BTreeSet<GangUid>,
    /// Gangs that have released all, of which more may be kept than the limits let their Teams have.
    pub(super) to_trim: BTreeSet<GangUid>,
    /// Gangs that wait, and do not stand in line.
    pub(super) parked: Parked,
    /// How often others came whom they may ask.
    pub(in crate::state) comers: Comers,
    /// Who of them was asked, and who is next.
    pub(super) turns: Turns,
    /// Who of them the call that is under way asked in vain, for others as well.
    pub(super) asked_in_vain: AskedInVain,
    /// As of when nodes were when it was found out last whether anything came free on them.
    pub(super) nodes_seen: Version,
    /// What was kept for gangs that were admitted, until it is known that the admission was committed.
    pub(super) admitted: BTreeMap<GangUid, Keep>,
    /// Attempts for which nothing is kept any more though it is told that the gang recovers.
    pub(super) over: BTreeMap<GangUid, i64>,
    /// Whether the last call had enough before each was asked.
    pub(super) is_any_left: bool,
}

impl Keeps {
    /// Something is kept for a gang, which was not judged with that.
    pub(super) fn enter(&mut self, gang: GangUid, keep: Keep) {
        self.set_judged(&gang, None);
        self.by_end.insert((keep.until, gang.clone()));
        if let Some(name) = keep.gang_name() {
            *self.names.entry(name.to_owned()).or_default() += 1;
        }
        if let Some(before) = self.by_gang.insert(gang, keep) {
            self.forget_name_of(&before);
        }
    }

    /// Nothing is kept for a gang any more.
    pub(super) fn leave(&mut self, gang: &GangUid) -> Option<Keep> {
        self.set_judged(gang, None);
        let keep = self.by_gang.remove(gang)?;
        self.by_end.remove(&(keep.until, gang.clone()));
        self.with_missing.remove(gang);
        self.to_trim.remove(gang);
        self.forget_name_of(&keep);
        Some(keep)
    }

    fn forget_name_of(&mut self, keep: &Keep) {
        let Some(name) = keep.gang_name() else {
            return;
        };
        if let Some(count) = self.names.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                self.names.remove(name);
            }
        }
    }

    /// Whether something is kept for a gang of this name (`namespace/name`).
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Whether something is kept for a gang.
    pub(in crate::state) fn has(&self, gang: &GangUid) -> bool {
        self.by_gang.contains_key(gang)
    }

    /// Whether it is by this name that something is kept.
    pub(in crate::state) fn is_kept(&self, pod: &PodUid) -> bool {
        self.pods.contains(pod)
    }

    /// Whether a pod holds something that is kept once it is released.
    pub(in crate::state) fn goes_on(&self, gang: &GangUid, pod: &PodUid) -> bool {
        let keep = self.by_gang.get(gang);
        keep.is_some_and(|keep| keep.held.contains(pod))
    }

    /// Whether pods of a gang that recovers have not released all that its attempt held.
    pub(in crate::state) fn holds_still(&self, gang: &GangUid) -> bool {
        let keep = self.by_gang.get(gang);
        keep.is_some_and(|keep| !keep.held.is_empty())
    }

    /// When something is due by time alone.
    pub(in crate::state) fn due_next(&self, now: Timestamp) -> Option<Timestamp> {
        let soon = Timestamp(now.0.saturating_add(1));
        let left = self.is_any_left.then_some(soon);
        let ends = self.by_end.first().map(|(at, _)| *at);
        let may_ask_more = self.by_more_at.first().map(|(at, _)| soon.max(*at));
        [left, ends, may_ask_more].into_iter().flatten().min()
    }

    /// What was found out about a gang; `None`: nothing that holds.
    pub(super) fn set_judged(&mut self, gang: &GangUid, judged: Option<Judged>) {
        let Some(keep) = self.by_gang.get_mut(gang) else {
            return;
        };
        let before = std::mem::replace(&mut keep.judged, judged);
        if let Some(at) = before.and_then(|before| before.more_at) {
            self.by_more_at.remove(&(at, gang.clone()));
        }
        if let Some(at) = judged.and_then(|judged| judged.more_at) {
            self.by_more_at.insert((at, gang.clone()));
        }
    }

    /// The first gangs that may preempt others by now whom they could not ask when they were judged last, as many as `most`.
    pub(super) fn may_ask_more(&self, now: Timestamp, most: usize) -> Vec<GangUid> {
        let due = self.by_more_at.iter().take_while(|(at, _)| *at <= now);
        due.take(most).map(|(_, gang)| gang.clone()).collect()
    }

    /// What was found out about them does not hold any more.
    pub(in crate::state) fn judge_all_again(&mut self) {
        for keep in self.by_gang.values_mut() {
            keep.judged = None;
        }
        self.by_more_at.clear();
        self.comers.forget_all();
        self.turns.begin_anew();
    }

    /// What was found out about a gang does not hold any more.
    pub(in crate::state) fn judge_again(&mut self, gang: &GangUid, id: GangId) {
        self.parked.ask_again(id);
        self.set_judged(gang, None);
    }

    /// An admission cannot be taken back any more.
    pub(in crate::state) fn note_committed(&mut self, gang: &GangUid) {
        self.admitted.remove(gang);
    }

    /// The clock went back by so much: nothing is kept for longer by that.
    pub(in crate::state) fn end_earlier(&mut self, seconds: i64) {
        let kept = self.by_gang.values_mut().chain(self.admitted.values_mut());
        for keep in kept {
            keep.until = earlier(keep.until, seconds);
        }
        let by_end = self.by_gang.iter();
        self.by_end = by_end
            .map(|(gang, keep)| (keep.until, gang.clone()))
            .collect();
    }

    pub(super) fn ended(&self, now: Timestamp) -> Vec<GangUid> {
        let ended = self.by_end.iter().take_while(|(at, _)| *at <= now);
        ended.map(|(_, gang)| gang.clone()).collect()
    }
}
