//! Small clusters and gangs for the engine's tests.
#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::{BTreeMap, BTreeSet};

use muster_engine::{
    Admission, Amount, Budget, Claim, ClaimUid, Cohort, CohortName, Constraint, Decisions, Device,
    DeviceName, DeviceRequest, Flavor, FlavorName, Gang, GangUid, HeldClaim, Hold, LevelName, Node,
    NodeFilterId, NodeName, Pod, PodResources, PodUid, Queueing, QuotaLimit, Resource, RunTime,
    Running, SelectorId, Shrink, State, Stop, Team, TeamName, Timestamp, Topology, TopologyName,
    TopologyRequest, Update, Why,
    model::Quota,
    quota::{FlavorFungibility, PreemptionPolicy, Sharing, Weight},
};

/// The Flavor of all devices here, unless said.
pub(crate) const H100: &str = "h100";
/// The Topology of that Flavor: spine, leaf.
pub(crate) const FABRIC: &str = "fabric";
/// Matches every GPU.
pub(crate) const ANY_GPU: SelectorId = SelectorId(0);
/// Every node passes.
pub(crate) const ANY_NODE: NodeFilterId = NodeFilterId(0);
pub(crate) const GIB: i64 = 1 << 30;
pub(crate) const NOW: Timestamp = Timestamp(0);

pub(crate) fn gpus(count: i64) -> Amount {
    Amount(count * 1000)
}

pub(crate) fn limit(nominal: i64) -> QuotaLimit {
    QuotaLimit {
        nominal: gpus(nominal),
        ..QuotaLimit::default()
    }
}

pub(crate) fn gpu_quota(limit: QuotaLimit) -> Quota {
    vec![(H100.into(), BTreeMap::from([(Resource::Gpus, limit)]))]
}

pub(crate) fn team(name: &str, cohort: Option<&str>, limit: QuotaLimit) -> Team {
    Team {
        name: name.into(),
        generation: 1,
        cohort: cohort.map(CohortName::from),
        quota: gpu_quota(limit),
        queueing: Queueing::BestEffort,
        stop: Stop::None,
        shrink: Shrink::Keep,
        fungibility: FlavorFungibility::default(),
        preemption: PreemptionPolicy::default(),
        weight: Weight::ONE,
        fairness: None,
    }
}

pub(crate) fn cohort(name: &str, parent: Option<&str>, nominal: i64) -> Cohort {
    Cohort {
        name: name.into(),
        parent: parent.map(CohortName::from),
        quota: gpu_quota(limit(nominal)),
        weight: Weight::ONE,
        sharing: Sharing::ByPriority,
    }
}

pub(crate) fn flavor(name: &str, topology: Option<&str>) -> Flavor {
    Flavor {
        name: name.into(),
        topology: topology.map(TopologyName::from),
        excluded: BTreeSet::new(),
    }
}

pub(crate) fn topology(levels: &[&str]) -> Topology {
    Topology {
        name: FABRIC.into(),
        levels: levels.iter().copied().map(LevelName::from).collect(),
    }
}

/// A GPU with 80 GiB in the flavor `h100`, its NVLink pair its index halved.
pub(crate) fn device(index: usize) -> Device {
    Device {
        name: DeviceName::from(format!("gpu.muster.dev/pool/gpu-{index}")),
        flavors: BTreeSet::from([FlavorName::from(H100)]),
        gpus: Amount::ONE_GPU,
        vram: Amount(80 * GIB),
        selectors: BTreeSet::from([ANY_GPU]).into(),
        attributes: BTreeMap::from([("pair".into(), format!("pair-{}", index / 2))]).into(),
        own_attributes: std::sync::Arc::default(),
        nvlink_group: None,
        usable: true,
        healthy: true,
        allocated_to: None,
        consumes: std::sync::Arc::default(),
    }
}

/// A node at a path of the fabric (`spine/leaf`), with 64 cores, 512 GiB, 110 pods.
pub(crate) fn node(name: &str, path: &str, devices: usize) -> Node {
    let path: Vec<String> = path
        .split('/')
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect();
    Node {
        name: name.into(),
        uid: format!("uid-{name}"),
        block: None,
        allocatable: PodResources {
            cpu_milli: 64_000,
            memory_bytes: 512 * GIB,
            pods: 110,
            ..PodResources::default()
        },
        used: PodResources::default(),
        fabric: if path.is_empty() {
            BTreeMap::new()
        } else {
            BTreeMap::from([(TopologyName::from(FABRIC), path)])
        },
        accelerator: BTreeMap::new(),
        filters: BTreeSet::from([ANY_NODE]).into(),
        devices: (0..devices).map(device).collect(),
        counter_sets: std::sync::Arc::default(),
    }
}

pub(crate) fn claim(uid: &str, count: u32) -> Claim {
    Claim {
        uid: uid.into(),
        requests: vec![DeviceRequest::exactly("gpus", ANY_GPU, count)],
        constraints: Vec::new(),
        allocated: None,
    }
}

/// All devices of the claim from one NVLink pair.
pub(crate) fn paired(mut claim: Claim) -> Claim {
    claim.constraints = vec![Constraint {
        requests: Vec::new(),
        attribute: "pair".into(),
    }];
    claim
}

pub(crate) fn pod(uid: &str, claims: Vec<Claim>) -> Pod {
    Pod {
        uid: uid.into(),
        resources: PodResources {
            cpu_milli: 1000,
            memory_bytes: GIB,
            pods: 1,
            ..PodResources::default()
        },
        filter: ANY_NODE,
        claims,
    }
}

pub(crate) fn gang_of(name: &str, team: &str, pods: Vec<Pod>) -> Gang {
    Gang {
        uid: name.into(),
        name: format!("{team}/{name}"),
        attempt: 1,
        team: team.into(),
        priority: 0,
        queued_at: Timestamp(0),
        may_borrow: true,
        topology: TopologyRequest::default(),
        run_time: RunTime::default(),
        lacks_place_since: None,
        min_count: None,
        pods,
    }
}

/// A gang of equal pods with one claim each.
pub(crate) fn gang(name: &str, team: &str, pods: usize, devices: u32) -> Gang {
    let pods = (0..pods).map(|rank| {
        let claims = if devices == 0 {
            Vec::new()
        } else {
            vec![claim(&format!("{name}-{rank}"), devices)]
        };
        pod(&format!("{name}-{rank}"), claims)
    });
    gang_of(name, team, pods.collect())
}

pub(crate) fn at(seconds: i64, mut gang: Gang) -> Gang {
    gang.queued_at = Timestamp(seconds);
    gang
}

pub(crate) fn with_priority(priority: i32, mut gang: Gang) -> Gang {
    gang.priority = priority;
    gang
}

pub(crate) fn avoiding(nodes: &[&str], mut gang: Gang) -> Gang {
    gang.topology.avoided = nodes.iter().map(|node| (*node).into()).collect();
    gang
}

/// A gang that nobody may preempt.
pub(crate) fn within_nominal(mut gang: Gang) -> Gang {
    gang.may_borrow = false;
    gang
}

pub(crate) fn requiring(level: &str, mut gang: Gang) -> Gang {
    gang.topology.required = Some(level.into());
    gang
}

pub(crate) fn preferring(level: &str, mut gang: Gang) -> Gang {
    gang.topology.preferred = Some(level.into());
    gang
}

/// A state with the flavor, its topology, these nodes and these teams.
pub(crate) fn state(nodes: Vec<Node>, teams: Vec<Team>) -> State {
    let mut state = State::new();
    state.apply(Update::Topology(topology(&["spine", "leaf"])));
    state.apply(Update::Flavor(flavor(H100, Some(FABRIC))));
    for team in teams {
        state.apply(Update::Team(team));
    }
    for node in nodes {
        state.apply(Update::Node(node));
    }
    state
}

/// A state with one team that may have everything.
pub(crate) fn open_state(nodes: Vec<Node>) -> State {
    state(nodes, vec![team("research", None, limit(100_000))])
}

pub(crate) fn submit(state: &mut State, gangs: impl IntoIterator<Item = Gang>) {
    for gang in gangs {
        state.apply(Update::Waiting(gang));
    }
}

/// Everything that can be decided.
pub(crate) fn decide(state: &mut State) -> Decisions {
    state.decide(NOW, &Budget::UNLIMITED)
}

/// UIDs of admitted gangs, in order.
pub(crate) fn admitted(decisions: &Decisions) -> Vec<String> {
    let admissions = decisions.admissions.iter();
    admissions
        .map(|admission| admission.gang.to_string())
        .collect()
}

/// Why a gang waits.
pub(crate) fn why(state: &State, gang: &str) -> Why {
    let explanation = state.explain(&GangUid::from(gang));
    explanation.expect("the gang waits").why
}

/// Submits one gang, decides, and says where its pods go, rank by rank.
pub(crate) fn nodes_of(state: &mut State, gang: Gang) -> Option<Vec<String>> {
    let uid = gang.uid.clone();
    state.apply(Update::Waiting(gang));
    let decisions = decide(state);
    let mut admissions = decisions.admissions.iter();
    let admission = admissions.find(|admission| admission.gang == uid)?;
    Some(
        admission
            .pods
            .iter()
            .map(|pod| pod.node.to_string())
            .collect(),
    )
}

/// The holds that the protocol would tell after an admission, with the devices not known yet.
pub(crate) fn holds_of(gang: &Gang, admission: &Admission) -> Vec<Hold> {
    gang.pods
        .iter()
        .zip(&admission.pods)
        .map(|(pod, admitted)| Hold {
            pod: pod.uid.clone(),
            gang: gang.uid.clone(),
            gang_name: gang.name.clone(),
            team: gang.team.clone(),
            node: admitted.node.clone(),
            charged_to_node: false,
            resources: pod.resources.clone(),
            charged: admitted.charged.clone(),
            claims: admitted
                .claims
                .iter()
                .map(|charge| HeldClaim {
                    uid: charge.uid.clone(),
                    flavor: charge.flavor.clone(),
                    gpus: charge.gpus,
                    vram: charge.vram,
                    request: pod
                        .claims
                        .iter()
                        .find(|claim| claim.uid == charge.uid)
                        .cloned(),
                    devices: None,
                })
                .collect(),
            releasing: false,
        })
        .collect()
}

/// What the protocol would tell of a gang that runs since then and may be preempted.
pub(crate) fn running_since(admitted_at: Timestamp, gang: &Gang) -> Running {
    Running {
        uid: gang.uid.clone(),
        team: gang.team.clone(),
        priority: gang.priority,
        queued_at: gang.queued_at,
        admitted_at,
        checkpointed_at: None,
        is_made_again: true,
        protected_until: None,
        ending_since: None,
        notice_seconds: 0,
        may_be_preempted: true,
        is_told_over_quota: false,
    }
}

/// The same of the gang of a hold, which queued then.
pub(crate) fn held_since(admitted_at: Timestamp, hold: &Hold) -> Running {
    let gang = Gang {
        uid: hold.gang.clone(),
        queued_at: admitted_at,
        ..gang(hold.gang.as_str(), hold.team.as_str(), 0, 0)
    };
    running_since(admitted_at, &gang)
}

/// A hold of one claim, with its devices by index.
pub(crate) fn hold(pod: &str, team: &str, node: &str, devices: &[usize]) -> Hold {
    let count = i64::try_from(devices.len()).expect("small");
    Hold {
        pod: pod.into(),
        gang: GangUid::from(format!("gang-of-{pod}")),
        gang_name: format!("{team}/{pod}"),
        team: team.into(),
        node: node.into(),
        charged_to_node: false,
        resources: PodResources {
            cpu_milli: 1000,
            memory_bytes: GIB,
            pods: 1,
            ..PodResources::default()
        },
        charged: Vec::new(),
        claims: vec![HeldClaim {
            uid: ClaimUid::from(format!("claim-of-{pod}")),
            flavor: H100.into(),
            gpus: gpus(count),
            vram: Amount::ZERO,
            request: None,
            devices: Some(devices.iter().map(|index| device(*index).name).collect()),
        }],
        releasing: false,
    }
}

pub(crate) fn pod_uid(name: &str) -> PodUid {
    name.into()
}

pub(crate) fn node_name(name: &str) -> NodeName {
    name.into()
}

pub(crate) fn team_name(name: &str) -> TeamName {
    name.into()
}
