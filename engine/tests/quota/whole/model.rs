//! What is so: limits, who waits, who holds what, who goes for whom. Plain lists; what follows from them is worked out anew
//! whenever it is asked for.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_engine::quota::{FairStrategy, FlavorFungibility, PreemptionReason};

use super::{
    history::{Arrival, Event, History},
    memory::Memory,
};
use crate::model::{Name, Node, Nodes, Pair, Tree};

pub(super) type Uid = u32;
/// By Flavor and resource.
pub(super) type Charges = BTreeMap<Pair, i128>;
/// Higher priority first, then who waits longest, then the smaller UID.
pub(super) type Place = (Reverse<i32>, i64, Uid);
/// Gangs that are judged alike: Team, what they ask for, whether they may borrow.
pub(super) type Class = (Name, [i128; 2], bool);

/// For how long something is kept, and a victim is counted on.
pub(super) const MOST_SECONDS: i64 = 600;

/// What does not change by a decision.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) nodes: Nodes,
    pub(super) strategies: Option<Vec<FairStrategy>>,
    pub(super) fungibility: BTreeMap<Name, FlavorFungibility>,
    pub(super) stopped: BTreeSet<Name>,
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
        (self.asked.team, self.asked.asks, self.asked.may_borrow)
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
    pub(super) since: i64,
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
    pub(super) told: BTreeMap<Uid, Told>,
    pub(super) kept: BTreeMap<Uid, Kept>,
    /// What was kept for those that were admitted and not committed yet.
    pub(super) kept_before: BTreeMap<Uid, Kept>,
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
            }),
            now: 100,
            gangs: BTreeMap::new(),
            waiting: BTreeSet::new(),
            held: BTreeMap::new(),
            told: BTreeMap::new(),
            kept: BTreeMap::new(),
            kept_before: BTreeMap::new(),
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

    /// Those that hold something and were told as running.
    pub(super) fn running(&self) -> Vec<Uid> {
        let held = self.held.keys().copied();
        held.filter(|gang| self.told.contains_key(gang)).collect()
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

    /// Keeps nothing for a gang any more.
    pub(super) fn leave(&mut self, gang: Uid) -> Option<Kept> {
        let kept = self.kept.remove(&gang)?;
        self.gave_way.extend(kept.waits_for());
        Some(kept)
    }

    /// A gang holds nothing any more.
    pub(super) fn release(&mut self, gang: Uid) {
        self.held.remove(&gang);
        self.overdue.remove(&gang);
        for kept in self.kept.values_mut() {
            kept.victims.remove(&gang);
            kept.ending.remove(&gang);
        }
    }

    /// What preemption goes by is told of a gang.
    pub(super) fn tell(&mut self, gang: Uid, ending_since: Option<i64>) {
        let Some(told) = self.told.get_mut(&gang) else {
            return;
        };
        told.ends = false;
        told.ending_since = ending_since;
        if ending_since.is_none() {
            self.overdue.remove(&gang);
        }
    }

    /// An admission was committed.
    pub(super) fn commit(&mut self, gang: Uid) {
        self.waiting.remove(&gang);
        self.kept_before.remove(&gang);
        self.overdue.remove(&gang);
        let Arrival {
            priority,
            min_run_time,
            ..
        } = self.gangs[&gang].asked;
        let protected_until = (min_run_time > 0).then_some(self.now + min_run_time);
        self.told.insert(
            gang,
            Told {
                priority,
                admitted_at: self.now,
                protected_until,
                ending_since: None,
                ends: false,
            },
        );
    }

    /// An admission could not be committed.
    pub(super) fn undo(&mut self, gang: Uid) {
        self.release(gang);
        if let Some(kept) = self.kept_before.remove(&gang) {
            self.kept.insert(gang, kept);
            if !self.tree_changed && !self.has_room_afterwards(gang) {
                self.leave(gang);
            }
        }
    }

    fn edit(&mut self, name: Name, edit: impl FnOnce(&mut Node) -> bool) {
        if let Some(node) = Arc::make_mut(&mut self.limits).nodes.get_mut(&name)
            && edit(node)
        {
            self.tree_changed = true;
        }
    }

    /// What happens; whether anything does.
    pub(super) fn happens(&mut self, event: &Event) {
        match event {
            Event::Arrives(arrival) => {
                self.waiting.insert(arrival.uid);
                let gang = Gang {
                    asked: arrival.clone(),
                    attempt: 1,
                    was_victim: false,
                };
                self.gangs.insert(arrival.uid, gang);
            }
            Event::IsWithdrawn(position) => {
                if let Some(gang) = at(&self.open(), *position) {
                    self.leave(gang);
                    self.waiting.remove(&gang);
                }
            }
            Event::Priority(position, priority) => {
                if let Some(gang) = at(&self.open(), *position)
                    && let Some(known) = self.gangs.get_mut(&gang)
                    && known.asked.priority != *priority
                {
                    known.asked.priority = *priority;
                    self.leave(gang);
                }
            }
            Event::BeginsToEnd(position) => {
                if let Some(gang) = at(&self.running(), *position)
                    && let Some(told) = self.told.get_mut(&gang)
                {
                    told.ends = true;
                }
            }
            Event::Ends(position) => {
                if let Some(gang) = at(&self.running(), *position) {
                    self.told.remove(&gang);
                    self.release(gang);
                }
            }
            Event::Notice(position) => {
                if let Some(gang) = at(&self.not_noticed(), *position) {
                    self.tell(gang, Some(self.now));
                }
            }
            Event::Spared(position) => {
                if let Some(gang) = at(&self.noticed_in_vain(), *position) {
                    self.tell(gang, None);
                }
            }
            Event::Released { gang, comes_back } => {
                if let Some(gang) = at(&self.going(), *gang) {
                    self.told.remove(&gang);
                    self.release(gang);
                    self.comes_back(gang, *comes_back);
                }
            }
            Event::ComesBackEarly(position) => {
                let going = self.running().into_iter();
                let going: Vec<Uid> = going.filter(|gang| self.gives_way(*gang)).collect();
                if let Some(gang) = at(&going, *position) {
                    self.told.remove(&gang);
                    self.comes_back(gang, true);
                }
            }
            Event::Passes(seconds) => self.now += seconds,
            Event::Limit(name, pair, limit) => self.edit(*name, |node| match limit {
                Some(limit) => node.limits.insert(*pair, *limit) != Some(*limit),
                None => node.limits.remove(pair).is_some(),
            }),
            Event::Weight(name, weight) => self.edit(*name, |node| {
                std::mem::replace(&mut node.weight, *weight) != *weight
            }),
            Event::Policy(name, policy) => {
                self.edit(*name, |node| node.policy.replace(*policy) != Some(*policy));
            }
            Event::Moves(name, parent) => self.edit(*name, |node| {
                std::mem::replace(&mut node.parent, *parent) != *parent
            }),
            Event::Fungibility(team, fungibility) => {
                let all = &mut Arc::make_mut(&mut self.limits).fungibility;
                self.teams_changed |= all.insert(*team, *fungibility) != Some(*fungibility);
            }
            Event::Stops(team, stops) => {
                let stopped = &mut Arc::make_mut(&mut self.limits).stopped;
                self.teams_changed |= if *stops {
                    stopped.insert(*team)
                } else {
                    stopped.remove(team)
                };
            }
        }
    }

    /// A gang that was told to give way waits as its next attempt.
    fn comes_back(&mut self, gang: Uid, may: bool) {
        let waits = self.waiting.contains(&gang);
        if let Some(known) = self.gangs.get_mut(&gang)
            && known.was_victim
            && may
            && !waits
        {
            known.attempt += 1;
            known.was_victim = false;
            self.waiting.insert(gang);
        }
    }
}
