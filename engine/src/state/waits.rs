//! What refused classes wait for, and what wakes them.
//!
//! * Quota: at the node of the quota tree that lets too little pass, by how much it would have to let pass. The queues
//!   of a node are *open* up to what it lets pass now.
//! * A place: in a group of shapes that want much the same of one Flavor's nodes. A group is open once something came
//!   free that could hold the least of its shapes.
//! * Both: in a group that is open only while quota lets them pass, too. A class that was refused for one and then for the
//!   other ends up here, so that it is not judged again and again as the one comes while the other goes.
//! * Limits, Flavors, devices that are not there: whoever waits for these is looked at again when they change.
//!
//! A class whose Team has several Flavors waits for each of them with its own reason; the first to open wakes it.
//! A queue that is not open costs nothing, however many wait in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    ids::{ClassId, GroupId, Slab, TeamId},
    wait_queue::WaitQueue,
};
use crate::{
    model::TopologyRequest,
    names::{FlavorName, TopologyName},
    placement::{Demand, Refusal, Request, Signature, Version},
    quota::{NodeId, PairId},
};

/// Most members of a group by which others are known to have no place.
pub(super) const MOST_FAILED: usize = 16;

/// What a class waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wait {
    /// To be judged.
    Ready,
    /// That a node of the quota tree lets so much pass.
    Quota(NodeId, PairId, i128),
    /// That something comes free on the nodes of a group.
    Place(GroupId),
    /// That limits, Flavors or the kinds of devices change.
    Change,
}

/// A node of the quota tree that has to let so much of a resource pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QuotaNeed {
    pub(super) node: NodeId,
    pub(super) pair: PairId,
    pub(super) need: i128,
}

/// What tells groups apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    flavor: Option<FlavorName>,
    rounded: Arc<Signature>,
    quota: Option<QuotaNeed>,
}

/// Shapes that want much the same of the nodes of one Flavor.
#[derive(Clone, Debug)]
pub(super) struct Group {
    key: GroupKey,
    topology: Option<TopologyName>,
    /// Of each amount the least that any shape asked for that waited here: what does not hold this holds no member.
    least: Demand,
    wish: TopologyRequest,
    /// The highest priority of any gang that led a class here.
    pub(super) highest: i32,
    /// Amounts of members that had no place since the group opened: who asks for as much has none either.
    failed: Vec<Vec<i64>>,
    /// Whether every member asks for devices that are not allocated yet.
    pub(super) needs_devices: bool,
    /// As of when it was last found that something may help some member.
    pub(super) asked: Version,
    /// As of when nothing that came free could help any member. Not kept up while the group is open.
    pub(super) closed: Refusal,
    pub(super) queue: WaitQueue,
    /// Members that what came free since the group opened does not help; they wait for it to close.
    passed: BTreeMap<ClassId, TeamId>,
}

impl Group {
    /// What is asked of placement for the least demanding member.
    pub(super) fn request(&self) -> Request<'_> {
        Request {
            demand: &self.least,
            flavor: self.key.flavor.as_ref(),
            topology: self.topology.as_ref(),
            wish: &self.wish,
            most_per_device: None,
        }
    }

    pub(super) fn flavor(&self) -> Option<&FlavorName> {
        self.key.flavor.as_ref()
    }

    /// Whether a member that asks for so much is known to have no place since the group opened.
    pub(super) fn is_hopeless(&self, amounts: &[i64]) -> bool {
        let mut failed = self.failed.iter();
        failed.any(|failed| {
            failed
                .iter()
                .zip(amounts)
                .all(|(failed, own)| failed <= own)
        })
    }

    /// The quota that its members lack, too.
    pub(super) fn quota(&self) -> Option<QuotaNeed> {
        self.key.quota
    }

    /// The least time for which any member runs at most, if that of any is known.
    pub(super) fn shortest_seconds(&self) -> Option<u64> {
        self.least.max_seconds
    }

    /// Whether a Team has a class here.
    pub(super) fn has_team(&self, team: TeamId) -> bool {
        self.queue.first_of(team).is_some() || self.passed.values().any(|of| *of == team)
    }

    /// The Teams that have a class here.
    pub(super) fn teams(&self) -> impl Iterator<Item = TeamId> + '_ {
        let queued = self.queue.classes().map(|(team, _)| team);
        queued.chain(self.passed.values().copied())
    }
}

/// Everything that is waited for.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    pub(super) ready: WaitQueue,
    quota: BTreeMap<(NodeId, PairId), BTreeMap<i128, WaitQueue>>,
    groups: Slab<GroupId, Group>,
    group_ids: BTreeMap<GroupKey, GroupId>,
    /// Groups that lack a place only.
    lacking_place: BTreeSet<GroupId>,
    /// Groups that lack quota too, by what they lack.
    lacking_both: BTreeMap<(NodeId, PairId), BTreeSet<(i128, GroupId)>>,
    /// Of these, the ones that quota lets pass, as far as is known.
    quota_is_there: BTreeSet<GroupId>,
    /// Whether one came to these that was not asked about a place yet.
    quota_came: bool,
    pub(super) change: BTreeSet<ClassId>,
    /// Nodes that keep quota for themselves, below those that classes wait for.
    watched: BTreeMap<(NodeId, PairId), BTreeSet<ClassId>>,
    /// Who may not borrow, and waits until the Team has so much of its own.
    nominal: BTreeMap<(NodeId, PairId), BTreeSet<(i128, ClassId)>>,
    open: BTreeSet<Wait>,
    /// Whether the last call was interrupted, so that those who are awake are to be judged before anybody else is woken.
    pub(super) was_interrupted: bool,
}

impl Waits {
    /// The group of a shape on a Flavor, which has no place as of `refusal`.
    pub(super) fn group(
        &mut self,
        flavor: Option<&FlavorName>,
        topology: Option<&TopologyName>,
        (rounded, demand): (&Arc<Signature>, &Demand),
        (wish, priority): (&TopologyRequest, i32),
        quota: Option<QuotaNeed>,
        refusal: Refusal,
    ) -> GroupId {
        let key = GroupKey {
            flavor: flavor.cloned(),
            rounded: Arc::clone(rounded),
            quota,
        };
        if let Some(id) = self.group_ids.get(&key).copied() {
            if let Some(group) = self.groups.get_mut(id) {
                group.closed.as_of = group.closed.as_of.min(refusal.as_of);
                group.least.lower_to(&demand.amounts());
                group.least.max_seconds = group.least.max_seconds.min(demand.max_seconds);
                group.highest = group.highest.max(priority);
            }
            return id;
        }
        let id = self.groups.insert(Group {
            key: key.clone(),
            topology: topology.cloned(),
            least: demand.clone(),
            wish: wish.clone(),
            highest: priority,
            failed: Vec::new(),
            needs_devices: demand
                .classes
                .iter()
                .any(|class| class.shape.needs_devices()),
            asked: refusal.as_of,
            closed: refusal,
            queue: WaitQueue::default(),
            passed: BTreeMap::new(),
        });
        self.group_ids.insert(key, id);
        if let Some(QuotaNeed { node, pair, need }) = quota {
            let of_node = self.lacking_both.entry((node, pair)).or_default();
            of_node.insert((need, id));
        } else {
            self.lacking_place.insert(id);
        }
        id
    }

    /// Groups that a place would help.
    pub(super) fn lacking_place(&self) -> Vec<GroupId> {
        let groups = self.lacking_place.iter().chain(&self.quota_is_there);
        groups.copied().collect()
    }

    /// A group lacks quota again.
    pub(super) fn quota_is_gone(&mut self, id: GroupId) {
        self.quota_is_there.remove(&id);
    }

    /// Whether quota lets a group pass that was not asked about a place since.
    pub(super) fn has_quota_since(&self) -> bool {
        self.quota_came
    }

    /// From now on, quota that comes is news again.
    pub(super) fn note_quota_asked(&mut self) {
        self.quota_came = false;
    }

    pub(super) fn group_of(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id)
    }

    /// Notes that a member of an open group has no place.
    pub(super) fn note_failed(&mut self, id: GroupId, amounts: &[i64]) {
        if let Some(group) = self.groups.get_mut(id)
            && self.open.contains(&Wait::Place(id))
            && group.failed.len() < MOST_FAILED
            && !group.is_hopeless(amounts)
        {
            group.failed.push(amounts.to_vec());
        }
    }

    /// Notes that something may help some member of an open group.
    pub(super) fn note_asked(&mut self, id: GroupId, asked: Version) {
        if let Some(group) = self.groups.get_mut(id) {
            group.asked = asked;
        }
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.groups.iter()
    }

    /// The queue behind a wait, if it has one and anybody is in it.
    pub(super) fn queue(&self, wait: Wait) -> Option<&WaitQueue> {
        match wait {
            Wait::Ready => Some(&self.ready),
            Wait::Quota(node, pair, need) => self.quota.get(&(node, pair))?.get(&need),
            Wait::Place(group) => self.groups.get(group).map(|group| &group.queue),
            Wait::Change => None,
        }
    }

    /// The queue behind a wait, made if it is not there.
    pub(super) fn queue_mut(&mut self, wait: Wait) -> Option<&mut WaitQueue> {
        match wait {
            Wait::Ready => Some(&mut self.ready),
            Wait::Quota(node, pair, need) => {
                let of_node = self.quota.entry((node, pair)).or_default();
                Some(of_node.entry(need).or_default())
            }
            Wait::Place(group) => self.groups.get_mut(group).map(|group| &mut group.queue),
            Wait::Change => None,
        }
    }

    /// Drops the queue behind a wait if nobody is in it.
    pub(super) fn tidy(&mut self, wait: Wait) {
        match wait {
            Wait::Quota(node, pair, need) => {
                if let Some(of_node) = self.quota.get_mut(&(node, pair)) {
                    if of_node.get(&need).is_some_and(WaitQueue::is_empty) {
                        of_node.remove(&need);
                        self.open.remove(&wait);
                    }
                    if of_node.is_empty() {
                        self.quota.remove(&(node, pair));
                    }
                }
            }
            Wait::Place(id) => {
                let group = self.groups.get(id);
                if group.is_some_and(|group| group.queue.is_empty() && group.passed.is_empty())
                    && let Some(group) = self.groups.remove(id)
                {
                    self.group_ids.remove(&group.key);
                    self.open.remove(&wait);
                    self.lacking_place.remove(&id);
                    self.quota_is_there.remove(&id);
                    if let Some(QuotaNeed { node, pair, need }) = group.key.quota
                        && let Some(of_node) = self.lacking_both.get_mut(&(node, pair))
                    {
                        of_node.remove(&(need, id));
                        if of_node.is_empty() {
                            self.lacking_both.remove(&(node, pair));
                        }
                    }
                }
            }
            Wait::Ready | Wait::Change => {}
        }
    }

    /// Sets a member of an open group aside until the group closes.
    pub(super) fn pass(&mut self, id: GroupId, team: TeamId, class: ClassId) {
        if let Some(group) = self.groups.get_mut(id) {
            group.passed.insert(class, team);
        }
    }

    /// Whether a class is set aside; it is no longer.
    pub(super) fn unpass(&mut self, id: GroupId, class: ClassId) -> bool {
        let group = self.groups.get_mut(id);
        group.is_some_and(|group| group.passed.remove(&class).is_some())
    }

    /// Closes a group: nothing that came free so far helps any member. Those that were set aside go back in line,
    /// which is left to the caller.
    pub(super) fn close(&mut self, id: GroupId, refusal: Refusal) -> BTreeMap<ClassId, TeamId> {
        self.open.remove(&Wait::Place(id));
        let Some(group) = self.groups.get_mut(id) else {
            return BTreeMap::new();
        };
        group.closed = refusal;
        std::mem::take(&mut group.passed)
    }

    /// A group lacks quota again before all its members were judged.
    pub(super) fn shut_group(&mut self, id: GroupId) -> BTreeMap<ClassId, TeamId> {
        self.open.remove(&Wait::Place(id));
        let group = self.groups.get_mut(id);
        group.map_or_else(BTreeMap::new, |group| std::mem::take(&mut group.passed))
    }

    /// Opens a group; those that were set aside before have to be put back in line by the caller.
    pub(super) fn open_group(&mut self, id: GroupId) -> BTreeMap<ClassId, TeamId> {
        self.open.insert(Wait::Place(id));
        let Some(group) = self.groups.get_mut(id) else {
            return BTreeMap::new();
        };
        group.failed.clear();
        std::mem::take(&mut group.passed)
    }

    /// A node of the quota tree lets so much pass: whoever needs no more may be judged.
    pub(super) fn open_quota(&mut self, node: NodeId, pair: PairId, ceiling: i128) {
        if let Some(of_node) = self.lacking_both.get(&(node, pair)) {
            let groups = of_node.iter().take_while(|(need, _)| *need <= ceiling);
            for (_, id) in groups {
                self.quota_came |= self.quota_is_there.insert(*id);
            }
        }
        if let Some(of_node) = self.quota.get(&(node, pair)) {
            for need in of_node.range(..=ceiling).map(|(need, _)| *need) {
                self.open.insert(Wait::Quota(node, pair, need));
            }
        }
    }

    /// Who waits at a node of the quota tree for no more than this.
    pub(super) fn for_quota_at(
        &self,
        node: NodeId,
        pair: PairId,
        ceiling: i128,
    ) -> impl Iterator<Item = Wait> + '_ {
        let of_node = self.quota.get(&(node, pair)).into_iter();
        of_node.flat_map(move |of_node| {
            let needs = of_node.range(..=ceiling);
            needs.map(move |(need, _)| Wait::Quota(node, pair, *need))
        })
    }

    /// A queue is no longer open.
    pub(super) fn shut(&mut self, wait: Wait) {
        self.open.remove(&wait);
    }

    pub(super) fn is_open(&self, wait: Wait) -> bool {
        wait == Wait::Ready || self.open.contains(&wait)
    }

    /// Everything that is open, what is to be judged anyway first.
    pub(super) fn open(&self) -> impl Iterator<Item = Wait> + '_ {
        std::iter::once(Wait::Ready).chain(self.open.iter().copied())
    }

    /// Whether anybody is in an open queue.
    pub(super) fn is_anybody_awake(&self) -> bool {
        self.open()
            .any(|wait| self.queue(wait).is_some_and(|queue| !queue.is_empty()))
    }

    /// A class whose gangs may not borrow is judged again once its Team has so much left of its own.
    pub(super) fn wait_for_nominal(
        &mut self,
        (node, pair, need): (NodeId, PairId, i128),
        class: ClassId,
    ) {
        let classes = self.nominal.entry((node, pair)).or_default();
        classes.insert((need, class));
    }

    /// A class does so no longer.
    pub(super) fn forget_nominal(
        &mut self,
        (node, pair, need): (NodeId, PairId, i128),
        class: ClassId,
    ) {
        if let Some(classes) = self.nominal.get_mut(&(node, pair)) {
            classes.remove(&(need, class));
            if classes.is_empty() {
                self.nominal.remove(&(node, pair));
            }
        }
    }

    /// Who may not borrow, and waits until a Team has no more than this of its own.
    pub(super) fn for_nominal(&self, node: NodeId, pair: PairId, has: i128) -> Vec<ClassId> {
        let classes = self.nominal.get(&(node, pair)).into_iter().flatten();
        let classes = classes.take_while(|(need, _)| *need <= has);
        classes.map(|(_, class)| *class).collect()
    }

    /// A class asks less of the quota above a node as soon as that node gets more of its own free.
    pub(super) fn watch(&mut self, node: NodeId, pair: PairId, class: ClassId) {
        self.watched.entry((node, pair)).or_default().insert(class);
    }

    pub(super) fn unwatch(&mut self, node: NodeId, pair: PairId, class: ClassId) {
        if let Some(classes) = self.watched.get_mut(&(node, pair)) {
            classes.remove(&class);
            if classes.is_empty() {
                self.watched.remove(&(node, pair));
            }
        }
    }

    pub(super) fn watching(&self, node: NodeId, pair: PairId) -> Vec<ClassId> {
        let classes = self.watched.get(&(node, pair));
        classes.into_iter().flatten().copied().collect()
    }

    /// Every class that waits for quota: the numbers of nodes are about to change.
    pub(super) fn for_quota(&self) -> BTreeSet<ClassId> {
        let in_queues = self
            .quota
            .values()
            .flat_map(BTreeMap::values)
            .flat_map(WaitQueue::classes)
            .map(|(_, (_, class))| *class);
        let groups = self.lacking_both.values().flatten();
        let in_groups = groups
            .filter_map(|(_, id)| self.groups.get(*id))
            .flat_map(|group| {
                let queued = group.queue.classes().map(|(_, (_, class))| *class);
                queued.chain(group.passed.keys().copied())
            });
        in_queues.chain(in_groups).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Gang, Pod, PodResources};

    /// The demand of a pod, and what it asks for: cores and memory.
    fn demand(cpu_milli: i64, memory_bytes: i64) -> (Demand, Vec<i64>) {
        let pod = Pod {
            uid: "p".into(),
            resources: PodResources {
                cpu_milli,
                memory_bytes,
                pods: 1,
                ..PodResources::default()
            },
            filter: crate::names::NodeFilterId(0),
            claims: Vec::new(),
        };
        let gang = Gang {
            uid: "g".into(),
            name: "ml/g".into(),
            attempt: 1,
            team: "ml".into(),
            priority: 0,
            queued_at: crate::names::Timestamp(0),
            may_borrow: true,
            topology: TopologyRequest::default(),
            run_time: crate::model::RunTime::default(),
            lacks_place_since: None,
            min_count: None,
            pods: vec![pod],
        };
        let demand = Demand::new(&gang);
        let amounts = demand.amounts();
        (demand, amounts)
    }

    /// Who asks for more cores asks for less memory: none of them speaks for another.
    #[test]
    fn so_many_members_of_a_group_speak_for_others_and_no_more() {
        let mut waits = Waits::default();
        let wish = TopologyRequest::default();
        let refusal = Refusal {
            as_of: Version::default(),
        };
        let asking = |at: i64| demand(1_000 + at, 1_000 - at);
        let (first, _) = asking(0);
        let rounded = Arc::new(first.signature(&wish));
        let id = waits.group(None, None, (&rounded, &first), (&wish, 0), None, refusal);
        waits.open_group(id);
        let most = i64::try_from(MOST_FAILED).unwrap();
        for at in 0..=most {
            waits.note_failed(id, &asking(at).1);
        }
        let hopeless = |waits: &Waits, at: i64| {
            let group = waits.group_of(id).unwrap();
            // Whoever asks for more than one that failed, of everything.
            let more: Vec<i64> = asking(at).1.iter().map(|amount| amount + 1).collect();
            group.is_hopeless(&more) && group.is_hopeless(&asking(at).1)
        };
        assert!((0..most).all(|at| hopeless(&waits, at)));
        let (_, last) = asking(most);
        assert!(
            !waits.group_of(id).unwrap().is_hopeless(&last),
            "one too many"
        );
        // It opens anew: what failed then says nothing about now.
        waits.open_group(id);
        assert!((0..most).all(|at| !hopeless(&waits, at)));
    }
}
