//! Who is to go because its Team uses more than it may.
//!
//! Limits are lowered while gangs run: by an administrator, or since GPUs are drained and the quota follows them (`auto`, which gives up
//! its slack first). Nobody is admitted beyond them then, and whoever runs stays, unless its Team says [`Shrink::Evict`]. Of such Teams as
//! many gangs go as it takes, and no more ([`crate::quota::GivingBack`]); never one of another Team, nor one that was not told as running.
//! Whoever goes by itself, gives way to others, or waits for the proof of its release counts as gone.
//!
//! **Who**: of the Teams that owe something, first those of lower priority; of equals who was chosen before, so that a checkpoint
//! written meanwhile moves no notice; then who was admitted, or wrote a checkpoint, last; then those whose pods are made again. A minimum run
//! time protects from other gangs, and from no limit.
//!
//! **Of devices that nobody lists**: where a driver is down for so long that its slices are gone, `auto` quota has the devices no more, and what
//! runs on them runs on. So what is held of devices that its node does not list is not counted here, as what is held on a lost node, and whose
//! gangs it is go for no limit, until the driver tells what there is.
//!
//! **When**: once it has been chosen for [`LASTS_SECONDS`] without interruption. What blinks costs nobody: an edit that is taken back, or
//! a node that comes back. Whoever is told that it goes stays chosen for as long as anybody has to go for it, whoever else comes; and is told that
//! it may stay as soon as nobody has. A state that begins anew chooses anew, from what is there; whom it was told that it was told before,
//! it chooses first, and does not wait once more.
//!
//! **No ping-pong**: who went is admitted again only within the limits, like everybody, and is not chosen then. Where limits themselves go up
//! and down each way costs its gangs one eviction at most, and the way down takes longer than [`LASTS_SECONDS`] each time.
//!
//! **What it costs**: nothing where no Team says `Evict` or nobody owes anything, but for a look at whether a charge took a node
//! over its limit. A change of limits looks at each Team that says so once. While somebody owes something, each change below the same root
//! looks at those Teams and at whom it chose, and at the gangs of a Team that are told as running only if that owes more than they free.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{State, clock::earlier};
use crate::{
    amount::{Amount, FlavorResource},
    decision::OverQuota,
    model::{Hold, Shrink},
    names::{GangUid, NodeName, PodUid, TeamName, Timestamp},
    quota::{
        GivingBack, NodeId, PairId, QuotaTree,
        charges::{Delta, undoing},
    },
};

/// How long somebody has to be chosen until it is to go, in seconds.
const LASTS_SECONDS: i64 = 60;

/// See the module. Nodes are those of the tree as it was built last.
#[derive(Clone, Debug, Default)]
pub(super) struct Shrinking {
    /// The Teams that say so, and where they stand, by root.
    teams: BTreeMap<NodeId, Vec<(TeamName, NodeId)>>,
    chosen: BTreeMap<GangUid, Chosen>,
    /// Who was chosen before limits changed and was not to go yet, and since when.
    before: BTreeMap<GangUid, Timestamp>,
    /// Of those that were chosen, who is not to go yet, and when it will be.
    waiting: BTreeSet<(Timestamp, GangUid)>,
    /// Roots below which any of these Teams owes something, whoever is going already.
    owing: BTreeSet<NodeId>,
    /// Those to be looked at by the next decision.
    stale: BTreeSet<NodeId>,
    /// Pods that hold devices which their node does not list.
    unseen: BTreeSet<PodUid>,
}

/// A gang that is to go, or will be if that lasts.
#[derive(Clone, Debug)]
struct Chosen {
    why: OverQuota,
    /// Which one it was of those that were chosen.
    place: usize,
    since: Timestamp,
    is_due: bool,
}

/// A gang that may have to go.
struct Giver {
    gang: GangUid,
    team: TeamName,
    node: NodeId,
}

impl Shrinking {
    /// When somebody is to go who is not told yet.
    pub(super) fn due_next(&self) -> Option<Timestamp> {
        self.waiting.first().map(|(at, _)| *at)
    }

    /// The clock went back by so much: nobody waits for longer by that.
    pub(super) fn count_from_earlier(&mut self, seconds: i64) {
        let chosen = self.chosen.values_mut().map(|chosen| &mut chosen.since);
        for since in chosen.chain(self.before.values_mut()) {
            *since = earlier(*since, seconds);
        }
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let waiting = waiting.map(|(at, gang)| (earlier(at, seconds), gang));
        self.waiting = waiting.collect();
    }
}

fn due(since: Timestamp) -> Timestamp {
    Timestamp(since.0.saturating_add(LASTS_SECONDS))
}

impl Shrinking {
    /// Those that are to go by now.
    pub(super) fn due(&self) -> impl Iterator<Item = &GangUid> {
        let due = self.chosen.iter().filter(|(_, chosen)| chosen.is_due);
        due.map(|(gang, _)| gang)
    }
}

impl State {
    /// Why a gang is to go though nobody asks for its place, if it is: as decided, and not taken back since.
    pub fn over_quota(&self, gang: &GangUid) -> Option<&OverQuota> {
        let chosen = self.shrinking.chosen.get(gang)?;
        chosen.is_due.then_some(&chosen.why)
    }

    /// The tree was built anew: whoever was told that it goes stays chosen if it still has to; all others are chosen anew.
    pub(super) fn note_limits_of_shrinking(&mut self) {
        let mut teams: BTreeMap<NodeId, Vec<(TeamName, NodeId)>> = BTreeMap::new();
        let evicting = self.limits.teams.values();
        for team in evicting.filter(|team| team.shrink == Shrink::Evict) {
            if let Some(node) = self.tree.node_of(&team.name) {
                let teams = teams.entry(self.tree.root_of(node)).or_default();
                teams.push((team.name.clone(), node));
            }
        }
        let shrinking = &mut self.shrinking;
        shrinking.stale = teams.keys().copied().collect();
        shrinking.owing.clear();
        shrinking.waiting.clear();
        let known: BTreeSet<&TeamName> = teams.values().flatten().map(|(name, _)| name).collect();
        let mut gone = Vec::new();
        for (gang, chosen) in std::mem::take(&mut shrinking.chosen) {
            if !chosen.is_due {
                shrinking.before.insert(gang, chosen.since);
            } else if known.contains(&chosen.why.team) {
                shrinking.chosen.insert(gang, chosen);
            } else {
                gone.push(gang);
            }
        }
        shrinking.teams = teams;
        for gang in gone {
            self.note_preemption_changed(gang);
        }
    }

    /// What a Team is charged changed, or will. (`came`: by how much it is charged more.)
    pub(super) fn note_shrinking_at(&mut self, team: NodeId, pair: PairId, came: i128) {
        if self.shrinking.teams.is_empty() {
            return;
        }
        let root = self.tree.root_of(team);
        let now = &self.moments.now;
        let is_over = || now.path(team).any(|node| now.is_over(node, pair));
        if self.shrinking.owing.contains(&root)
            || came > 0 && self.shrinking.teams.contains_key(&root) && is_over()
        {
            self.shrinking.stale.insert(root);
        }
    }

    /// It is known otherwise than before whether what a Team is charged is on its way.
    pub(super) fn note_shrinking_below(&mut self, team: &TeamName) {
        if self.shrinking.owing.is_empty() || self.tree_is_stale {
            return;
        }
        if let Some(node) = self.tree.node_of(team) {
            let root = self.tree.root_of(node);
            if self.shrinking.owing.contains(&root) {
                self.shrinking.stale.insert(root);
            }
        }
    }

    /// What was told of a gang as running changed.
    pub(super) fn note_shrinking_of(&mut self, gang: &GangUid) {
        if self.shrinking.owing.is_empty() {
            return;
        }
        let pods = self.running.pods_of(gang);
        let teams = pods.filter_map(|pod| Some(self.holds.get(pod)?.team.clone()));
        let teams: BTreeSet<TeamName> = teams.collect();
        for team in &teams {
            self.note_shrinking_below(team);
        }
    }

    /// A pod may hold devices now that its node does not list, or not any more.
    pub(super) fn note_unseen(&mut self, pod: &PodUid) {
        let hold = self.holds.get(pod).cloned();
        let unseen = &mut self.shrinking.unseen;
        let is_news = match &hold {
            Some(hold) if self.cluster.is_unseen(hold) => unseen.insert(pod.clone()),
            _ => unseen.remove(pod),
        };
        if let Some(hold) = hold.filter(|_| is_news) {
            self.note_shrinking_below(&hold.team);
        }
    }

    pub(super) fn note_all_unseen_on(&mut self, node: &NodeName) {
        for pod in self.cluster.pods_on(node).cloned().collect::<Vec<_>>() {
            self.note_unseen(&pod);
        }
    }

    /// Chooses anew where anything changed, and notes whose time has come.
    pub(super) fn settle_shrinking(&mut self, now: Timestamp) {
        let stale = std::mem::take(&mut self.shrinking.stale);
        for root in &stale {
            self.choose_below(*root, now);
        }
        self.shrinking.before.clear();
        if !stale.is_empty() {
            let chosen = self.shrinking.chosen.iter();
            let waiting = chosen.filter(|(_, chosen)| !chosen.is_due);
            let waiting = waiting.map(|(gang, chosen)| (due(chosen.since), gang.clone()));
            self.shrinking.waiting = waiting.collect();
        }
        while let Some((at, gang)) = self.shrinking.waiting.pop_first() {
            if at > now {
                self.shrinking.waiting.insert((at, gang));
                break;
            }
            if let Some(chosen) = self.shrinking.chosen.get_mut(&gang) {
                chosen.is_due = true;
            }
            self.note_preemption_changed(gang);
        }
    }

    fn choose_below(&mut self, root: NodeId, now: Timestamp) {
        let teams = self.shrinking.teams.get(&root).cloned().unwrap_or_default();
        self.cluster.note_visits(teams.len() as u64);
        // It is taken out to be changed, and changed back.
        let mut tree = std::mem::take(&mut self.moments.now);
        let chosen = if teams.iter().any(|(_, node)| tree.owes(*node)) {
            self.shrinking.owing.insert(root);
            self.chosen_of(&teams, root, &mut tree, now)
        } else {
            self.shrinking.owing.remove(&root);
            BTreeMap::new()
        };
        self.moments.now = tree;
        let is_below = |chosen: &Chosen| {
            let node = self.tree.node_of(&chosen.why.team);
            node.is_none_or(|node| self.tree.root_of(node) == root)
        };
        let before = std::mem::take(&mut self.shrinking.chosen);
        let (below, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            before.into_iter().partition(|(_, chosen)| is_below(chosen));
        for (gang, was) in below {
            if was.is_due && !chosen.contains_key(&gang) {
                self.note_preemption_changed(gang);
            }
        }
        self.shrinking.chosen = others;
        self.shrinking.chosen.extend(chosen);
    }

    /// Who of these Teams is chosen now.
    fn chosen_of(
        &self,
        teams: &[(TeamName, NodeId)],
        root: NodeId,
        tree: &mut QuotaTree,
        now: Timestamp,
    ) -> BTreeMap<GangUid, Chosen> {
        let leaving = self.leaving_below(root);
        tree.apply(&leaving, |_, _, _| {});
        let mut givers = self.chosen_before(teams);
        let mut owed = BTreeMap::new();
        let mut giving = GivingBack::new(tree);
        for (position, giver) in givers.iter().enumerate() {
            self.take(&mut giving, &mut owed, position, giver);
        }
        let first = givers.len();
        let more = self.more_givers(teams, giving.tree());
        givers.extend(more);
        for (position, giver) in givers.iter().enumerate().skip(first) {
            self.take(&mut giving, &mut owed, position, giver);
        }
        let taken: BTreeMap<&GangUid, usize> = owed
            .keys()
            .map(|position| (&givers[*position].gang, *position))
            .collect();
        let going = giving.spare(&mut |tree, team, pair, spared| {
            let stays = |gang: &GangUid| taken.get(gang).is_none_or(|at| spared.contains(at));
            let mut others = teams.iter().filter(|(_, node)| *node != team);
            others.any(|(name, node)| {
                self.cluster.note_visits(1);
                tree.owed_to(*node, pair).is_some() && {
                    let mut gangs = self.told_holding(tree.named(pair), name);
                    gangs.any(|gang| stays(gang) && self.may_have_to_go(gang))
                }
            })
        });
        drop(giving);
        let chosen = going
            .into_iter()
            .enumerate()
            .filter_map(|(place, position)| {
                let giver = &givers[position];
                let chosen = match self.shrinking.chosen.get(&giver.gang) {
                    // What was too much when it was told stands.
                    Some(known) if known.is_due => Chosen {
                        place,
                        ..known.clone()
                    },
                    known => Chosen {
                        why: why(tree, &giver.team, *owed.get(&position)?),
                        place,
                        since: known.map_or_else(
                            || self.chosen_since(&giver.gang, now),
                            |known| known.since,
                        ),
                        is_due: false,
                    },
                };
                Some((giver.gang.clone(), chosen))
            });
        let chosen = chosen.collect();
        tree.apply(&undoing(&leaving), |_, _, _| {});
        chosen
    }

    /// Takes a gang away if its Team owes something that it holds, and notes what and to whom.
    fn take(
        &self,
        giving: &mut GivingBack<'_>,
        owed: &mut BTreeMap<usize, (NodeId, PairId)>,
        position: usize,
        giver: &Giver,
    ) {
        self.cluster.note_visits(1);
        if !giving.tree().owes(giver.node) {
            return;
        }
        let charges = self.freed_by(&giver.team, &giver.gang).into_iter();
        let charges = charges.filter_map(|charge| {
            let pair = giving.tree().known_pair(&charge.of)?;
            Some((pair, i128::from(charge.amount.0)))
        });
        let charges = charges.collect();
        if let Some(of) = giving.take(position, giver.node, charges) {
            owed.insert(position, of);
        }
    }

    /// Since when a gang counts as chosen that was not chosen just before.
    fn chosen_since(&self, gang: &GangUid, now: Timestamp) -> Timestamp {
        let told = self.running.told(gang);
        if told.is_some_and(|told| told.is_told_over_quota) {
            return Timestamp(now.0.saturating_sub(LASTS_SECONDS));
        }
        let before = self.shrinking.before.get(gang);
        before.copied().unwrap_or(now)
    }

    /// Whether a gang can be told to go, and does not go anyway.
    fn may_have_to_go(&self, gang: &GangUid) -> bool {
        let unseen = &self.shrinking.unseen;
        let mut pods = self.running.pods_of(gang);
        let is_seen = unseen.is_empty() || !pods.any(|pod| unseen.contains(pod));
        is_seen
            && self.running.told(gang).is_some()
            && !self.running.is_released(gang)
            && !self.running.ends(gang)
            && !self.reservations.gives_way(gang)
    }

    /// The gangs that hold something for a Team and are told as running: found among all that hold it or all that are told, whichever
    /// are fewer. What a Team owes it may owe for long, where nobody that holds it can be told to go.
    fn told_holding<'a>(
        &'a self,
        of: &'a FlavorResource,
        team: &'a TeamName,
    ) -> Box<dyn Iterator<Item = &'a GangUid> + 'a> {
        let Some(told) = self.running.told_of(team) else {
            return Box::new(std::iter::empty());
        };
        let look = |_: &&GangUid| self.cluster.note_visits(1);
        if told.len() < self.charges.count_holding(of, team) {
            let holding = told.iter().inspect(look);
            Box::new(holding.filter(move |gang| self.charges.is_holding(of, team, gang)))
        } else {
            let told = self.charges.holding(of, team).inspect(look);
            Box::new(told.filter(|gang| self.running.told(gang).is_some()))
        }
    }

    /// Those of these Teams that are chosen, in their order.
    fn chosen_before(&self, teams: &[(TeamName, NodeId)]) -> Vec<Giver> {
        let nodes: BTreeMap<&TeamName, NodeId> =
            teams.iter().map(|(name, node)| (name, *node)).collect();
        let chosen = self.shrinking.chosen.iter();
        let chosen = chosen.filter(|(gang, _)| self.may_have_to_go(gang));
        let mut chosen: Vec<(usize, Giver)> = chosen
            .filter_map(|(gang, chosen)| {
                let team = chosen.why.team.clone();
                let node = *nodes.get(&team)?;
                let gang = gang.clone();
                Some((chosen.place, Giver { gang, team, node }))
            })
            .collect();
        chosen.sort_by_key(|(place, _)| *place);
        chosen.into_iter().map(|(_, giver)| giver).collect()
    }

    /// The gangs that hold something of which their Team, which is one of these, owes more than those free that are chosen: who goes first
    /// comes first.
    fn more_givers(&self, teams: &[(TeamName, NodeId)], tree: &QuotaTree) -> Vec<Giver> {
        let mut givers = BTreeMap::new();
        for (team, node) in teams {
            let owed = tree.pairs_at(*node);
            for pair in owed.filter(|pair| tree.owed_to(*node, *pair).is_some()) {
                for gang in self.told_holding(tree.named(pair), team) {
                    let is_chosen = self.shrinking.chosen.contains_key(gang);
                    let told = self.running.told(gang);
                    let told = told.filter(|_| !is_chosen && self.may_have_to_go(gang));
                    let Some(told) = told else { continue };
                    let admitted_at = told.checkpointed_at.max(Some(told.admitted_at));
                    let order = (
                        !told.is_told_over_quota,
                        told.priority,
                        !self.shrinking.before.contains_key(gang),
                        Reverse(admitted_at),
                        !told.is_made_again,
                        gang,
                    );
                    let giver = Giver {
                        gang: gang.clone(),
                        team: team.clone(),
                        node: *node,
                    };
                    givers.insert(order, giver);
                }
            }
        }
        givers.into_values().collect()
    }

    /// What Teams below a root are charged for what is on its way already, or is not counted.
    fn leaving_below(&self, root: NodeId) -> Vec<Delta> {
        let gangs = self.running.all_ending();
        let gangs = gangs.chain(self.reservations.victims());
        let pods = gangs.flat_map(|gang| self.running.pods_of(gang));
        let pods = pods.chain(&self.releasing).chain(&self.shrinking.unseen);
        let holds = pods.filter_map(|pod| Some((pod, self.holds.get(pod)?)));
        let below = holds.filter(|(_, hold)| {
            let node = self.tree.node_of(&hold.team);
            node.is_some_and(|node| self.tree.root_of(node) == root)
        });
        let leaving: BTreeMap<PodUid, &Hold> =
            below.map(|(pod, hold)| (pod.clone(), &**hold)).collect();
        self.cluster.note_visits(leaving.len() as u64);
        self.charges.without(&leaving)
    }
}

/// What a Team owes to a node, in names and numbers.
fn why(tree: &QuotaTree, team: &TeamName, (to, pair): (NodeId, PairId)) -> OverQuota {
    let (used, _) = tree.usage_and_headroom(to, pair);
    let most = used + tree.ceiling(to, pair).unwrap_or_default();
    let amount = |amount: i128| {
        let most = i128::from(i64::MAX);
        Amount(i64::try_from(amount.clamp(0, most)).unwrap_or(i64::MAX))
    };
    OverQuota {
        team: team.clone(),
        of: tree.named(pair).clone(),
        cohort: tree.name_of_cohort(to).cloned(),
        used: amount(used),
        most: amount(most),
    }
}
