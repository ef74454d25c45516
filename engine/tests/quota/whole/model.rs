//! What is so: limits, who waits, who holds what, who goes for whom. Plain lists; what follows from them is worked out anew
//! whenever it is asked for.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_engine::quota::{FairStrategy, FlavorFungibility, PreemptionReason};

use super::{
    history::{Arrival, History},
    memory::Memory,
};
use crate::model::{Name, Nodes, Pair, Tree};

pub(super) type Uid = u32;
/// By Flavor and resource.
pub(super) type Charges = BTreeMap<Pair, i128>;
/// Higher priority first, then who waits longest, then the smaller UID.
pub(super) type Place = (Reverse<i32>, i64, Uid);
/// Gangs that are judged alike: Team, with how many pods they may start and what each asks for, whether they may borrow.
pub(super) type Class = (Name, usize, [i128; 2], bool);

/// For how long something is kept, and a victim is counted on, after the end of the notice.
pub(super) const MOST_SECONDS: i64 = 600;

/// What does not change by a decision.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) nodes: Nodes,
    pub(super) strategies: Option<Vec<FairStrategy>>,
    pub(super) fungibility: BTreeMap<Name, FlavorFungibility>,
    pub(super) stopped: BTreeSet<Name>,
    pub(super) strict: BTreeSet<Name>,
}

#[derive(Clone, Debug)]
pub(super) struct Gang {
    pub(super) asked: Arrival,
    pub(super) attempt: i64,
    /// Whether it was told to give way in this attempt.
    pub(super) was_victim: bool,
}

impl Gang {
    pub(super) fn place(&self) -> Place {
        let Arrival {
            priority,
            queued_at,
            uid,
            ..
        } = self.asked;
        (Reverse(priority), queued_at, uid)
    }

    pub(super) fn class(&self) -> Class {
        let asked = &self.asked;
        (asked.team, asked.fewest(), asked.asks, asked.may_borrow)
    }
}

/// What preemption goes by.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) priority: i32,
    pub(super) admitted_at: i64,
    pub(super) protected_until: Option<i64>,
    /// Since when it is to give way, as it was told.
    pub(super) ending_since: Option<i64>,
    /// For how long it may run on once it was told to.
    pub(super) notice: i64,
    /// Whether it ends by itself.
    pub(super) ends: bool,
}

/// What is kept for a gang.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// Who goes for it, by what right, and holds something still.
    pub(super) victims: BTreeMap<Uid, PreemptionReason>,
    /// Who ends anyway.
    pub(super) ending: BTreeSet<Uid>,
    pub(super) charges: Charges,
    /// Until when at the latest: those that go for it may take so long after the end of their notice.
    pub(super) until: i64,
    /// Whether some of those that gave way recovered: what was kept for them came free at once.
    pub(super) frees_at_once: bool,
}

impl Kept {
    pub(super) fn waits_for(&self) -> impl Iterator<Item = Uid> {
        self.victims.keys().chain(&self.ending).copied()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) limits: Arc<Limits>,
    pub(super) now: i64,
    pub(super) gangs: BTreeMap<Uid, Gang>,
    pub(super) waiting: BTreeSet<Uid>,
    pub(super) held: BTreeMap<Uid, Charges>,
    /// Those that were admitted and not committed yet.
    pub(super) admitted: BTreeSet<Uid>,
    pub(super) told: BTreeMap<Uid, Told>,
    pub(super) kept: BTreeMap<Uid, Kept>,
    /// What was kept for those that were admitted and not committed yet.
    pub(super) kept_before: BTreeMap<Uid, Kept>,
    /// Gangs that recover, each with until when what it held is kept for it: it is held still.
    pub(super) recovering: BTreeMap<Uid, i64>,
    /// How many of those gave way.
    pub(super) yielded: usize,
    /// Victims that did not go in time.
    pub(super) overdue: BTreeSet<Uid>,
    pub(super) memory: Memory,
    /// Who gave way at any time since that was told last.
    pub(super) gave_way: BTreeSet<Uid>,
    /// Whether limits of the tree changed since the last decision, and whether anything of a Team did.
    pub(super) tree_changed: bool,
    pub(super) teams_changed: bool,
    /// Those that lacked something else than quota when they were asked: they may be asked at the end of a call.
    pub(super) in_turn: BTreeSet<Class>,
}

/// Quota at both moments, and what counts for whoever is to be admitted.
pub(super) struct Trees<'a> {
    pub(super) now: Tree<'a>,
    pub(super) afterwards: Tree<'a>,
    pub(super) larger: Tree<'a>,
}

/// The one at a position, counted round.
pub(super) fn at<T: Copy>(all: &[T], position: usize) -> Option<T> {
    (!all.is_empty()).then(|| all[position % all.len()])
}

impl Model {
    pub(super) fn new(history: &History) -> Self {
        Self {
            limits: Arc::new(Limits {
                nodes: history.nodes.clone(),
                strategies: history.strategies.clone(),
                fungibility: history.fungibility.clone(),
                stopped: BTreeSet::new(),
                strict: history.strict.clone(),
            }),
            now: 100,
            gangs: BTreeMap::new(),
            waiting: BTreeSet::new(),
            held: BTreeMap::new(),
            admitted: BTreeSet::new(),
            told: BTreeMap::new(),
            kept: BTreeMap::new(),
            kept_before: BTreeMap::new(),
            recovering: BTreeMap::new(),
            yielded: 0,
            overdue: BTreeSet::new(),
            memory: Memory::default(),
            gave_way: BTreeSet::new(),
            tree_changed: true,
            teams_changed: true,
            in_turn: BTreeSet::new(),
        }
    }

    pub(super) fn gives_way(&self, gang: Uid) -> bool {
        let mut kept = self.kept.values();
        kept.any(|kept| kept.waits_for().any(|victim| victim == gang))
    }

    /// Those that hold something and go or end.
    pub(super) fn going(&self) -> Vec<Uid> {
        let held = self.held.keys().copied();
        let goes = |gang: &Uid| {
            let told = self.told.get(gang);
            told.is_none_or(|told| told.ends || told.ending_since.is_some())
                || self.gives_way(*gang)
        };
        held.filter(goes).collect()
    }

    /// Those that hold something and were told as running, but for those that recover.
    pub(super) fn running(&self) -> Vec<Uid> {
        let held = self.held.keys().copied();
        held.filter(|gang| self.told.contains_key(gang) && !self.recovering.contains_key(gang))
            .collect()
    }

    /// Those whose attempt may end by a fault: who goes or ends already is not meant.
    pub(super) fn may_fail(&self) -> Vec<Uid> {
        let running = self.running().into_iter();
        running
            .filter(|gang| {
                let told = &self.told[gang];
                !told.ends && told.ending_since.is_none() && !self.gives_way(*gang)
            })
            .collect()
    }

    /// Those that give way, hold something, and were not told so.
    pub(super) fn not_noticed(&self) -> Vec<Uid> {
        let running = self.running().into_iter();
        running
            .filter(|gang| self.told[gang].ending_since.is_none() && self.gives_way(*gang))
            .collect()
    }

    /// Those that were told to give way, and give way to nobody.
    pub(super) fn noticed_in_vain(&self) -> Vec<Uid> {
        let running = self.running().into_iter();
        running
            .filter(|gang| self.told[gang].ending_since.is_some() && !self.gives_way(*gang))
            .collect()
    }

    /// Those that wait and hold nothing.
    pub(super) fn open(&self) -> Vec<Uid> {
        let waiting = self.waiting.iter().copied();
        waiting
            .filter(|gang| !self.held.contains_key(gang))
            .collect()
    }

    /// Whether gangs of a Team may be admitted.
    pub(super) fn is_active(&self, team: Name) -> bool {
        let limits = &self.limits;
        !limits.stopped.contains(&team) && !Tree::new(&limits.nodes, []).is_in_a_cycle(team)
    }

    /// What is charged, by gang.
    fn charged<'b>(
        &'b self,
        holds: impl Fn(Uid) -> bool + 'b,
    ) -> impl Iterator<Item = (Name, Pair, i128)> + 'b {
        let held = self.held.iter().filter(move |(gang, _)| holds(**gang));
        held.flat_map(|(gang, charges)| self.as_charges(*gang, charges))
    }

    pub(super) fn as_charges<'b>(
        &'b self,
        gang: Uid,
        charges: &'b Charges,
    ) -> impl Iterator<Item = (Name, Pair, i128)> + 'b {
        let team = self.gangs[&gang].asked.team;
        charges
            .iter()
            .map(move |(pair, amount)| (team, *pair, *amount))
    }

    /// What will be charged once all that give way are gone, but for what some hold or have kept.
    pub(super) fn charged_afterwards(&self, but: impl Fn(Uid) -> bool) -> Vec<(Name, Pair, i128)> {
        let stays = |gang| !self.gives_way(gang) && !but(gang);
        let held = self.charged(stays);
        let kept = self.kept.iter().filter(|(gang, _)| !but(**gang));
        let kept = kept.flat_map(|(gang, kept)| self.as_charges(*gang, &kept.charges));
        held.chain(kept).collect()
    }

    pub(super) fn trees(&self) -> Trees<'_> {
        let nodes = &self.limits.nodes;
        let now = Tree::new(nodes, self.charged(|_| true));
        let afterwards = Tree::new(nodes, self.charged_afterwards(|_| false));
        let larger = Tree::of_larger(&now, &afterwards);
        Trees {
            now,
            afterwards,
            larger,
        }
    }
}
