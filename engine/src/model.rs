//! What was observed: the engine's picture of the cluster, kept by typed updates.
//!
//! Everything here is level-triggered: an update carries the whole new value of one thing, and may
//! be applied twice or late without harm (invariant S10).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use crate::{
    amount::{Amount, Resource, ResourceCharge},
    fairness::{AdmissionFairness, NamespaceUse},
    names::{
        AttributeName, ClaimUid, CohortName, DeviceName, FlavorName, GangUid, LevelName,
        NamespaceName, NodeFilterId, NodeName, PodSelectorId, PodUid, ResourceName, SelectorId,
        TeamName, Timestamp, TopologyName,
    },
    quota::{FlavorFungibility, PreemptionPolicy, PreemptionReason, Sharing, Weight},
};

/// One change of what was observed.
#[derive(Clone, Debug)]
pub enum Update {
    /// A Team is as given.
    Team(Team),
    /// A Team is gone.
    TeamGone(TeamName),
    /// A Cohort is as given.
    Cohort(Cohort),
    /// A Cohort is gone.
    CohortGone(CohortName),
    /// A Flavor is as given.
    Flavor(Flavor),
    /// A Flavor is gone.
    FlavorGone(FlavorName),
    /// A Topology is as given.
    Topology(Topology),
    /// A Topology is gone.
    TopologyGone(TopologyName),
    /// A node is as given, its devices included.
    Node(Node),
    /// A node is gone.
    NodeGone(NodeName),
    /// A complete gang that waits is as given. An admitted gang is known by its holds alone.
    Waiting(Gang),
    /// A gang no longer waits: admitted, incomplete, suspended, ended or deleted.
    NotWaiting(GangUid),
    /// An admitted gang is as given, as far as it goes by this who is evicted. Whoever was not told is preempted by nobody, and goes for
    /// no limit.
    Running(Running),
    /// A gang is admitted no longer, or ended.
    NotRunning(GangUid),
    /// An admitted gang ends, by whatever cause: what it holds comes free by itself. Of one that was not told as running it says
    /// nothing.
    Ending(GangUid),
    /// Something was kept for a gang by whoever decided before this state was made. To be told before the first decision.
    Reserved(Reserved),
    /// What one pod holds is as given.
    Hold(Hold),
    /// A pod holds nothing any more: its devices are proved released.
    HoldGone(PodUid),
    /// What a namespace of a Team used was recorded by whoever decided before this state was made. To be told before the first
    /// decision.
    NamespaceUse(NamespaceUse),
    /// A gang that holds something ends by then, whatever it does; without a time nobody knows when it ends.
    Ends(GangUid, Option<Timestamp>),
    /// An attempt of a gang ended by no will of anybody: what it held is kept for the next one. Told before what it held is released,
    /// and again by whoever decides anew.
    Recovering(Recovering),
    /// A gang recovers no longer: it is admitted again, gone, or held back by somebody's will.
    NotRecovering(GangUid),
}

/// Order discipline of a Team's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queueing {
    /// A gang that does not fit is passed over.
    #[default]
    BestEffort,
    /// A gang that does not fit holds up those behind it on the Flavors that it could use.
    StrictFifo,
}

/// Whether a Team is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stop {
    /// Gangs are admitted.
    #[default]
    None,
    /// No gang is admitted.
    Hold,
}

/// What becomes of running gangs of a Team that uses more than it may, as it does once limits were lowered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shrink {
    /// They stay until they end.
    #[default]
    Keep,
    /// So many of them go that the others are within the limits.
    Evict,
}

/// Limits of one resource of one Flavor at one node of the quota tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimit {
    /// Guaranteed to the owner. It is not read where it is `automatic`.
    pub nominal: Amount,
    /// Guaranteed is what is healthy of the Flavor, less all nominal quota that is given as a number: all of it, or a part by the
    /// weight of the owner where several ask for it. It follows GPUs and their memory; of other resources it is nothing.
    pub automatic: bool,
    /// Most that may be borrowed above `nominal`; no limit without it.
    pub borrowing_limit: Option<Amount>,
    /// Most of `nominal` that may be lent; all of it without.
    pub lending_limit: Option<Amount>,
}

/// Quota by Flavor, in the order in which Flavors are tried.
pub type Quota = Vec<(FlavorName, BTreeMap<Resource, QuotaLimit>)>;

/// A leaf of the quota tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Team {
    /// Its name.
    pub name: TeamName,
    /// Generation of its spec; an admission records by which limits it was judged (S1).
    pub generation: i64,
    /// The Cohort above.
    pub cohort: Option<CohortName>,
    /// Its quota.
    pub quota: Quota,
    /// Order discipline.
    pub queueing: Queueing,
    /// Whether it is stopped.
    pub stop: Stop,
    /// What becomes of its running gangs where it uses more than it may.
    pub shrink: Shrink,
    /// How its gangs choose between its Flavors.
    pub fungibility: FlavorFungibility,
    /// Whom its gangs may preempt.
    pub preemption: PreemptionPolicy,
    /// What its fair share weighs.
    pub weight: Weight,
    /// How what its namespaces used decides who of them goes first; the order is by age alone without.
    pub fairness: Option<AdmissionFairness>,
}

/// An inner node of the quota tree. A Cohort that is named but has no object has no quota and no limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cohort {
    /// Its name.
    pub name: CohortName,
    /// The Cohort above.
    pub parent: Option<CohortName>,
    /// Its own quota: a pool that all members may borrow.
    pub quota: Quota,
    /// What its fair share weighs.
    pub weight: Weight,
    /// How all below it share what they do not use, if it is a root. Of other Cohorts it says nothing.
    pub sharing: Sharing<'static>,
}

/// A kind of capacity. Each device says to which Flavors it belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flavor {
    /// Its name.
    pub name: FlavorName,
    /// The Topology by which its gangs are placed; a flat one without it.
    pub topology: Option<TopologyName>,
    /// What pods may say about nodes that none of its nodes meets, by its own labels and taints. A gang with such a pod does not get
    /// it: neither its quota nor its nodes are asked about, and nobody gives way there.
    pub excluded: BTreeSet<NodeFilterId>,
}

/// A fabric tree over nodes. Each node says where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Its name.
    pub name: TopologyName,
    /// Levels, outermost first, **without** the node itself.
    pub levels: Vec<LevelName>,
}

/// A node and its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// Its UID; a plan holds for this UID only.
    pub uid: String,
    /// Why nothing new may be planned there, if so. What runs there still counts.
    pub block: Option<NodeBlock>,
    /// What its pods may use together.
    pub allocatable: PodResources,
    /// What pods use there that have no [`Hold`]: they count against `allocatable` as they are.
    pub used: PodResources,
    /// For each Topology that the node is part of, the path of domain names, one per level,
    /// outermost first. A node that lacks a label is not part of that Topology.
    pub fabric: BTreeMap<TopologyName, Vec<String>>,
    /// For each Topology with an accelerator domain, the node's domain.
    pub accelerator: BTreeMap<TopologyName, String>,
    /// The filters that this node passes. Thousands of nodes share one set.
    pub filters: Arc<BTreeSet<NodeFilterId>>,
    /// Its devices in the order in which kube-scheduler's allocator tries them.
    pub devices: Vec<Device>,
    /// What devices of the node share, set by set: the memory slices of a GPU that can be partitioned, say. Devices name sets by
    /// their place in this list. Empty where no device shares anything.
    pub counter_sets: Arc<[CounterSet]>,
}

/// What several devices of a node draw from while they are allocated.
///
/// kube-scheduler compares all counters of a *pool* whenever it tries a device that draws from one: if any of them is overdrawn,
/// no further device that draws from that pool is allocated, whichever set it draws from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CounterSet {
    /// The pool of devices that the set is part of. Equal numbers on one node, the same pool.
    pub pool: u32,
    /// What there is of each counter, in any unit. Never negative.
    pub counters: Vec<i64>,
}

/// What a device takes of one counter set of its node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Consumption {
    /// The set, as its place in [`Node::counter_sets`].
    pub set: u32,
    /// How much of which counter, as its place in [`CounterSet::counters`]. Each counter at most once, and no amount is negative.
    pub amounts: Arc<[(u32, i64)]>,
}

/// Why nothing new may be planned on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeBlock {
    /// It is cordoned, whatever else is so: that lasts until somebody ends it.
    Cordoned,
    /// An administrator drains it, other than by a cordon: that lasts until somebody ends it, too.
    Drained,
    /// It is not Ready.
    NotReady,
    /// It is marked lost.
    Lost,
    /// Its slices vanished or are incomplete: the kubelet or the driver restarts.
    SlicesMissing,
    /// Its driver has not answered for the current `NodeDevices` object, or there is none yet.
    DriverSilent,
}

impl NodeBlock {
    /// Whether an administrator keeps what is new off the node, by whichever means.
    pub(crate) fn is_by_hand(self) -> bool {
        matches!(self, Self::Cordoned | Self::Drained)
    }
}

/// What a pod takes of a node besides devices, or what a node has of it.
///
/// Everything but `cpu_milli`, `memory_bytes` and `pods` may be left at its default where it does not occur.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodResources {
    /// Cores, in thousandths.
    pub cpu_milli: i64,
    /// Memory in bytes.
    pub memory_bytes: i64,
    /// Number of pods.
    pub pods: i64,
    /// Every other resource that a node's `allocatable` may list: extended resources in units, `hugepages-*`
    /// and `ephemeral-storage` in bytes. A resource that a node does not name is one that it has none of. An
    /// amount of zero is the same as no entry.
    pub others: BTreeMap<ResourceName, i64>,
    /// Ports of the host that a pod binds; on a node, those that are bound. In `allocatable` they mean nothing.
    pub host_ports: BTreeSet<HostPort>,
    /// Required anti-affinity by hostname: no pod that is [matched](Self::matched_by) by one of these
    /// selectors may run on the same node.
    pub repels: BTreeSet<PodSelectorId>,
    /// The selectors of anti-affinity terms (of any pod) that match the pod.
    pub matched_by: BTreeSet<PodSelectorId>,
}

impl PodResources {
    /// Cores, memory and the other resources, but not the number of pods.
    pub(crate) fn amounts_mut(&mut self) -> impl Iterator<Item = &mut i64> {
        let own = [&mut self.cpu_milli, &mut self.memory_bytes];
        own.into_iter().chain(self.others.values_mut())
    }
}

/// A port of the host that a pod binds. As for kube-scheduler, two pods conflict if protocol and port are
/// equal and the addresses are equal or one of them is every address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// The transport.
    pub protocol: HostPortProtocol,
    /// The address of the host; `None` for every address (`0.0.0.0`, `::` or none given).
    pub ip: Option<IpAddr>,
    /// The port, 1 to 65535.
    pub port: u16,
}

/// The transport of a host port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostPortProtocol {
    /// TCP, the default of a container port.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// A device of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, unique on the node.
    pub name: DeviceName,
    /// The Flavors that count it.
    pub flavors: BTreeSet<FlavorName>,
    /// Thousandths of a GPU that it is charged as.
    pub gpus: Amount,
    /// Bytes of memory.
    pub vram: Amount,
    /// The selectors that it matches. All devices of a kind share one set.
    pub selectors: Arc<BTreeSet<SelectorId>>,
    /// Attributes that a constraint may name, as far as all devices of a kind share them.
    pub attributes: Arc<BTreeMap<AttributeName, String>>,
    /// Those of this very device (its UUID, say).
    pub own_attributes: Arc<[(AttributeName, String)]>,
    /// Group of devices that are connected by NVLink: equal value, same group.
    pub nvlink_group: Option<String>,
    /// Whether it may be allocated again (no taint forbids it).
    pub usable: bool,
    /// Whether nothing is wrong with it. One that is not usable only because what it was given to is not released yet is healthy.
    pub healthy: bool,
    /// The claim that it is allocated to, as the API server knows it.
    pub allocated_to: Option<ClaimUid>,
    /// What it takes of the node's counter sets while it is allocated; empty for a device that shares nothing. One that draws from
    /// a set or a counter that the node does not have is never allocated.
    pub consumes: Arc<[Consumption]>,
}

impl Device {
    /// What an attribute says, if the device has it.
    pub fn attribute(&self, name: &AttributeName) -> Option<&String> {
        let mut own = self.own_attributes.iter();
        let own = own.find_map(|(known, value)| (known == name).then_some(value));
        own.or_else(|| self.attributes.get(name))
    }
}

/// A complete gang that waits for admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang {
    /// Its UID.
    pub uid: GangUid,
    /// `namespace/name`.
    pub name: String,
    /// Attempt that is to be admitted.
    pub attempt: i64,
    /// The Team of its namespace; it is known to exist.
    pub team: TeamName,
    /// Value of its PriorityTier; higher goes first.
    pub priority: i32,
    /// Since when it queues; earlier goes first, then the smaller UID.
    pub queued_at: Timestamp,
    /// Whether it may be charged to quota that its Team borrows. One that nobody may preempt may not: what was lent could never
    /// come back.
    pub may_borrow: bool,
    /// Where it must or should be placed.
    pub topology: TopologyRequest,
    /// How long it would run.
    pub run_time: RunTime,
    /// Since when it lacked a place, and no quota, as somebody saw who decided before. It makes no other gang of it.
    pub lacks_place_since: Option<Timestamp>,
    /// With how many of its pods, the first of them, it may start at the least; with all of them only without. It waits as one of
    /// so many, and is admitted with as many more as fit when its turn comes.
    pub min_count: Option<usize>,
    /// Its pods, rank by rank.
    pub pods: Vec<Pod>,
}

/// The namespace that a `namespace/name` names.
pub(crate) fn namespace_of(name: &str) -> NamespaceName {
    let namespace = name.split_once('/').map_or("", |(namespace, _)| namespace);
    namespace.into()
}

impl Gang {
    /// Its namespace.
    pub fn namespace(&self) -> NamespaceName {
        namespace_of(&self.name)
    }

    /// With how many of its pods it starts at the least.
    pub fn least_pods(&self) -> usize {
        let all = self.pods.len();
        self.min_count
            .map_or(all, |least| least.clamp(1, all.max(1)).min(all))
    }

    /// The pods with which it starts at the least.
    pub(crate) fn first_pods(&self) -> &[Pod] {
        self.pods.get(..self.least_pods()).unwrap_or(&self.pods)
    }
}

/// How long a gang runs once it is admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// Seconds after which it is told to end, whatever it does. Without, nobody knows when it ends.
    pub max_seconds: Option<u64>,
    /// Seconds that its pods may take to end once they are told to.
    pub ends_within_seconds: u64,
    /// Seconds after which others may preempt it. Without, nobody ever may.
    pub preemptable_after_seconds: Option<u64>,
}

impl RunTime {
    /// Seconds after which it is gone, whatever it does.
    pub fn gone_after_seconds(&self) -> Option<u64> {
        let most = self.max_seconds?;
        Some(most.saturating_add(self.ends_within_seconds))
    }
}

/// An admitted gang, as far as it goes by this who is evicted. What it holds is told by its [`Hold`]s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its UID.
    pub uid: GangUid,
    /// Its Team.
    pub team: TeamName,
    /// Value of its PriorityTier.
    pub priority: i32,
    /// Since when it queued: its age, kept over its attempts.
    pub queued_at: Timestamp,
    /// When it was admitted.
    pub admitted_at: Timestamp,
    /// When it wrote its last checkpoint, where it may go on from there: what it did since would be lost. Of equals whoever loses
    /// least goes first.
    pub checkpointed_at: Option<Timestamp>,
    /// Whether its pods are made again. Of equals those go last whose pods are not.
    pub is_made_again: bool,
    /// Until when nobody may preempt it: the end of its minimum run time.
    pub protected_until: Option<Timestamp>,
    /// Since when it is to give way, by whatever cause: it costs nothing to count on that, until [`MOST_SECONDS_AFTER_NOTICE`] after the
    /// end of its notice.
    pub ending_since: Option<Timestamp>,
    /// For how many seconds it may run on once it was told to go; a negative number counts as none.
    pub notice_seconds: i64,
    /// Whether other gangs may preempt it. One that none may goes only where its Team uses more than it may ([`Shrink::Evict`]).
    pub may_be_preempted: bool,
    /// Whether it was told already that it goes because its Team uses more than it may: by whoever decided before, say.
    pub is_told_over_quota: bool,
}

/// For how many seconds a gang that is to go is counted on after its notice has ended, and what it leaves is kept for whom it goes. The
/// grace period of its pods has to end within that time.
pub const MOST_SECONDS_AFTER_NOTICE: i64 = 600;

impl Running {
    /// Until when it is counted on, should it be told to go then.
    pub(crate) fn counted_on_until(&self, told_at: Timestamp) -> Timestamp {
        let seconds = self
            .notice_seconds
            .max(0)
            .saturating_add(MOST_SECONDS_AFTER_NOTICE);
        Timestamp(told_at.0.saturating_add(seconds))
    }
}

/// Most nodes that a gang avoids.
pub const MOST_AVOIDED_NODES: usize = 8;

/// That others were to give way to a gang, as it was recorded. It is taken up again if the gang waits, and has quota and a place once
/// those victims are gone that still hold something; else the gang waits like any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// UID of the gang that waits.
    pub gang: GangUid,
    /// The Flavor on which it is to be admitted.
    pub flavor: FlavorName,
    /// Who gives way to it, and by what right, each in the attempt that it is in when this is told. Those that hold nothing any more, or
    /// are admitted anew, count for nothing.
    pub victims: BTreeMap<GangUid, PreemptionReason>,
    /// Since when.
    pub since: Timestamp,
    /// Until when. It is taken up if that is not over, and lasts as long again, since notices are counted anew.
    pub until: Timestamp,
}

/// A gang of which an attempt ended by a fault, a lost node or the like. What that attempt held is kept for the gang, as if it held it
/// still, until it is admitted again, others have a right to it, or the time is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovering {
    /// UID of the gang.
    pub gang: GangUid,
    /// The attempt that ended. For each attempt something is kept once.
    pub attempt: i64,
    /// Value of its PriorityTier.
    pub priority: i32,
    /// Since when it queues: its age, kept over its attempts.
    pub queued_at: Timestamp,
    /// Whether other gangs may preempt it, by its tier.
    pub may_be_preempted: bool,
    /// Since when it recovers.
    pub since: Timestamp,
    /// Until when something is kept for it at the latest.
    pub until: Timestamp,
    /// What that attempt held, pod by pod. Devices that are not told are chosen among those of the node that nobody holds.
    pub held: Vec<Hold>,
    /// Nodes that it is not to have again: their quota is kept, their place is not.
    pub left: BTreeSet<NodeName>,
    /// Path of the narrowest domain that held that attempt, outermost first, as [`crate::Admission::domain`]. The next one is looked for
    /// there first, and then as near to it as there is room.
    pub domain: Vec<String>,
}

/// Where a gang must or should be placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyRequest {
    /// The level whose one domain must hold the gang.
    pub required: Option<LevelName>,
    /// The level whose one domain should hold the gang.
    pub preferred: Option<LevelName>,
    /// Nodes where an earlier attempt failed. It gets them only if it fits nowhere without them. At most [`MOST_AVOIDED_NODES`] count,
    /// the first by name.
    pub avoided: BTreeSet<NodeName>,
    /// Nodes that it does not get, though it fits nowhere else: until it is told otherwise they count as full for it, whatever is free.
    /// Any number. That passes, so where it is asked whether the gang ever fits they are open. Gangs with different ones are not judged
    /// together.
    pub closed: BTreeSet<NodeName>,
}

/// One pod of a waiting gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its UID.
    pub uid: PodUid,
    /// What it takes of a node besides devices.
    pub resources: PodResources,
    /// What it says about nodes.
    pub filter: NodeFilterId,
    /// Its claims in pod order. A claim that several pods of the gang share is listed with each of them.
    pub claims: Vec<Claim>,
}

/// A ResourceClaim: devices that are allocated together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its UID.
    pub uid: ClaimUid,
    /// Its requests in claim order.
    pub requests: Vec<DeviceRequest>,
    /// What the devices of some requests must have in common.
    pub constraints: Vec<Constraint>,
    /// Devices that are allocated already (a claim that was made in advance), with their node.
    pub allocated: Option<(NodeName, Vec<DeviceName>)>,
}

/// Devices for one purpose, in one of several ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// Its name, which constraints refer to.
    pub name: String,
    /// Its choices in the order in which kube-scheduler tries them (`firstAvailable`), at most 8 of them. What is asked for exactly
    /// is a single one. Without any, no node can satisfy the request.
    pub choices: Vec<DeviceChoice>,
}

/// One way to satisfy a request: a number of devices that match a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    /// Its name, if it is an alternative (`firstAvailable`): constraints refer to it as `request/alternative`.
    pub name: Option<String>,
    /// What a device must match: the selectors of its class, those of the request, and the capacity that it asks for.
    pub selector: SelectorId,
    /// How many.
    pub count: u32,
}

impl DeviceRequest {
    /// A number of devices that match one selector, and nothing else instead.
    pub fn exactly(name: impl Into<String>, selector: SelectorId, count: u32) -> Self {
        Self {
            name: name.into(),
            choices: vec![DeviceChoice {
                name: None,
                selector,
                count,
            }],
        }
    }

    /// The fewest devices with which it is satisfied.
    pub(crate) fn least(&self) -> usize {
        let counts = self.choices.iter().map(|choice| choice.count as usize);
        counts.min().unwrap_or(0)
    }
}

/// `matchAttribute`: the devices of the named requests have the same value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// Names of the requests, each `request` for whatever it gets or `request/alternative` for that alternative alone; all if empty.
    pub requests: Vec<String>,
    /// The attribute.
    pub attribute: AttributeName,
}

/// What one pod holds on one node, by whatever evidence: an intent, its Gang's admission, a permit
/// (live or withdrawn), or an adoption. It counts against quota and occupies the node until it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// UID of the pod.
    pub pod: PodUid,
    /// UID of the gang.
    pub gang: GangUid,
    /// `namespace/name` of the gang.
    pub gang_name: String,
    /// The Team that is charged.
    pub team: TeamName,
    /// The node.
    pub node: NodeName,
    /// Whether the charge is borne by the node's account instead of the Team's (the node is lost).
    pub charged_to_node: bool,
    /// What the pod takes of the node besides devices.
    pub resources: PodResources,
    /// What is charged besides claims.
    pub charged: Vec<ResourceCharge>,
    /// Its claims.
    pub claims: Vec<HeldClaim>,
    /// Whether the hold only waits for the proof of release (withdrawn, or evicted).
    pub releasing: bool,
}

/// A claim that is held. Two holds may name the same claim: it is charged once on each node. It is held on two where a node is back with
/// what it held of a claim that was allocated elsewhere meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldClaim {
    /// UID of the claim.
    pub uid: ClaimUid,
    /// The Flavor that is charged.
    pub flavor: FlavorName,
    /// Thousandths of a GPU.
    pub gpus: Amount,
    /// Bytes of memory.
    pub vram: Amount,
    /// What it asks for, while its object is known. Without it and without `devices`, nothing new
    /// is planned on the node.
    pub request: Option<Claim>,
    /// The devices it has, once they are known.
    pub devices: Option<Vec<DeviceName>>,
}
