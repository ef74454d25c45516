//! Gangs that recover of which one speaks for all: they ask for the same, and as much is kept for each of them, without a place.
//!
//! Each is asked as if nothing were kept for it. What is kept without a place is quota alone, so that the question about one of them is the question
//! about the next: the same Team asks for the same, with as much more quota, on the same nodes. Where the first of them has no room in vain is asked
//! about the others for as long as nothing came free, and nobody whom they may preempt ([`AskedAt`]). What comes by time alone (that others may be preempted, say) does so between
//! two calls: then all of them are to be asked again ([`Judged`]), and who spoke for others by a call is not remembered by the next.
//!
//! | what may tell two of them apart | why it does not |
//! |---|---|
//! | what they ask for, and where | it is their [`ShapeId`] |
//! | which nodes they avoid | whoever has no room without these is asked with them, too: who has none on all nodes has none on some |
//! | where places are kept for others and they may be planned all the same, by how long they run, say, or by what their namespace used | it is compared |
//! | whether their Team may borrow for them | it is compared |
//! | how much is kept, and how much they held | both are compared; where a place is kept as well, a gang is asked for itself |
//! | where they are looked for first | it is compared |
//! | whom they may preempt | of the same priority, who came later may preempt nobody whom the first one may not. One that went for another gang, which it may not preempt for that (S15), speaks for nobody whose Team preempts |
//!
//! So a call costs a question for each kind of those that wait, and a look for each gang.

use std::collections::BTreeMap;

use super::{
    keep::{has_place, sum_by_resource, sum_of},
    turns::{AskedAt, Judged},
};
use crate::{
    amount::{FlavorResource, Resource},
    names::{FlavorName, GangUid},
    queue::Place,
    state::{
        State,
        ids::{GangId, ShapeId, TeamId},
    },
};

/// What gangs have in common of which one speaks for all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Alike {
    team: TeamId,
    shape: ShapeId,
    may_borrow: bool,
    priority: i32,
    /// How many pods the attempt had that ended.
    pods: usize,
    /// What it held in all.
    held: BTreeMap<Resource, i128>,
    /// The quota that is kept.
    kept: BTreeMap<FlavorResource, i128>,
    /// Where it is looked for first.
    domain: Vec<String>,
    /// The Flavors of which they may have a place that is kept for somebody else.
    let_in: Vec<FlavorName>,
}

/// Who was asked in vain by the call that is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct AskedInVain {
    /// The last one of each kind, and what came of it.
    by_kind: BTreeMap<Alike, (Judged, Place)>,
}

impl State {
    /// A call ends.
    pub(super) fn forget_asked_in_vain(&mut self) {
        self.keeps.asked_in_vain = AskedInVain::default();
    }

    /// A gang was asked in vain, with this result: so is who comes later and is like it.
    pub(super) fn note_asked_in_vain(
        &mut self,
        uid: &GangUid,
        id: GangId,
        place: &Place,
        judged: Judged,
    ) {
        let Some(kind) = self.kind_of(uid, id) else {
            return;
        };
        // Whom it may not preempt others like it may.
        let went = !self.circles.above(uid, kind.priority).is_empty();
        if went && self.may_preempt(kind.team) {
            return;
        }
        let last = (judged, place.clone());
        self.keeps.asked_in_vain.by_kind.insert(kind, last);
    }

    /// What came of asking one before a gang that is like it, if that was in vain, and nothing and nobody came since.
    pub(super) fn asked_for(
        &self,
        uid: &GangUid,
        id: GangId,
        place: &Place,
        now: AskedAt,
    ) -> Option<Judged> {
        if self.keeps.asked_in_vain.by_kind.is_empty() {
            return None;
        }
        let kind = self.kind_of(uid, id)?;
        let (judged, before) = self.keeps.asked_in_vain.by_kind.get(&kind)?;
        (judged.as_of == now && before < place).then_some(*judged)
    }

    /// Who is like a gang. `None`: nobody is taken to be, since it has a place that nobody else has, or asks for another Team than it held for.
    fn kind_of(&self, uid: &GangUid, id: GangId) -> Option<Alike> {
        let keep = self.keeps.by_gang.get(uid)?;
        let waiting = self.waiting.get(id)?;
        if keep.team() != Some(&waiting.gang.team) {
            return None;
        }
        let looks = keep.parts.len() + keep.kept.len();
        self.cluster.note_visits(looks as u64);
        let kept = || keep.kept.values().map(|hold| &**hold);
        if kept().any(has_place) {
            return None;
        }
        Some(Alike {
            team: waiting.team,
            shape: waiting.shape,
            may_borrow: waiting.gang.may_borrow,
            priority: waiting.gang.priority,
            pods: keep.parts.len(),
            held: sum_by_resource(keep.parts.values()),
            kept: sum_of(kept()),
            domain: keep.told.domain.clone(),
            let_in: self.lets_in(waiting),
        })
    }
}
