//! A cluster of any size that is nine tenths full, with gangs that wait: half of them for a place, half for quota.
//!
//! Four fifths of the nodes are of Flavor `full`: every GPU is taken, and quota is plenty. The others are of Flavor
//! `spare`: half of their GPUs are free, and all quota is used. A fiftieth of the gangs belongs to each Team; Teams hang
//! below Cohorts three deep, ten children each, those of one Flavor in one tree.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_engine::{
    Amount, Claim, Cohort, CohortName, Device, DeviceName, DeviceRequest, Flavor, FlavorName, Gang,
    HeldClaim, Hold, Node, NodeFilterId, Pod, PodResources, Queueing, QuotaLimit, Resource,
    SelectorId, Shrink, State, Stop, Team, Timestamp, Topology, TopologyRequest, Update,
    quota::{FlavorFungibility, PreemptionPolicy, Sharing, Weight},
};

pub(crate) const FULL: &str = "full";
pub(crate) const SPARE: &str = "spare";
const GIB: i64 = 1 << 30;
const GPUS_PER_NODE: usize = 8;
const NODES_PER_LEAF: usize = 32;
const LEAVES_PER_SPINE: usize = 20;
const GANGS_PER_TEAM: usize = 50;
const CHILDREN: usize = 10;

/// What is generated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) nodes: usize,
    pub(crate) gangs: usize,
}

impl Size {
    pub(crate) fn teams(self) -> usize {
        (self.gangs / GANGS_PER_TEAM).max(2)
    }
}

/// The Flavor of a node.
pub(crate) fn flavor_of(node: usize) -> &'static str {
    if node % 5 == 4 { SPARE } else { FULL }
}

/// The Flavor in which a Team has quota.
pub(crate) fn flavor_of_team(team: usize) -> &'static str {
    if team.is_multiple_of(2) { FULL } else { SPARE }
}

fn selector(flavor: &str) -> SelectorId {
    SelectorId(u32::from(flavor == SPARE))
}

pub(crate) fn node(number: usize) -> Node {
    let flavor = flavor_of(number);
    let leaf = number / NODES_PER_LEAF;
    let path = vec![
        format!("s{:03}", leaf / LEAVES_PER_SPINE),
        format!("l{leaf:04}"),
    ];
    let name = format!("n{number:05}");
    let devices = (0..GPUS_PER_NODE).map(|at| Device {
        name: device(at),
        flavors: BTreeSet::from([FlavorName::from(flavor)]),
        gpus: Amount::ONE_GPU,
        vram: Amount(80 * GIB),
        selectors: BTreeSet::from([selector(flavor)]).into(),
        attributes: Arc::default(),
        own_attributes: Arc::default(),
        nvlink_group: Some("switch".to_owned()),
        usable: true,
        healthy: true,
        allocated_to: None,
        consumes: Arc::default(),
    });
    Node {
        uid: format!("uid-{name}"),
        name: name.into(),
        block: None,
        allocatable: PodResources {
            cpu_milli: 192_000,
            memory_bytes: 2048 * GIB,
            pods: 250,
            ..PodResources::default()
        },
        used: PodResources::default(),
        fabric: BTreeMap::from([("fabric".into(), path)]),
        accelerator: BTreeMap::new(),
        // Every node passes all filters; gangs that are not to be new name the first.
        filters: (0..64).map(NodeFilterId).collect::<BTreeSet<_>>().into(),
        devices: devices.collect(),
        counter_sets: Arc::default(),
    }
}

fn device(at: usize) -> DeviceName {
    format!("gpu.muster.dev/pool/gpu-{at}").into()
}

fn resources(memory_bytes: i64) -> PodResources {
    PodResources {
        cpu_milli: 8000,
        memory_bytes,
        pods: 1,
        ..PodResources::default()
    }
}

/// What a pod of a running gang holds: the devices from `first` on.
pub(crate) fn hold(name: &str, team: &str, number: usize, first: usize, count: usize) -> Hold {
    let devices = (first..first + count).map(device).collect();
    Hold {
        pod: name.into(),
        gang: format!("gang-{name}").into(),
        gang_name: format!("{team}/{name}"),
        team: team.into(),
        node: format!("n{number:05}").into(),
        charged_to_node: false,
        resources: resources(16 * GIB),
        charged: Vec::new(),
        claims: vec![HeldClaim {
            uid: format!("claim-{name}").into(),
            flavor: flavor_of(number).into(),
            gpus: Amount(1000 * i64::try_from(count).unwrap_or(0)),
            vram: Amount::ZERO,
            request: None,
            devices: Some(devices),
        }],
        releasing: false,
    }
}

/// The pods and GPUs per pod of a gang: 80, 15, 4, 0.8 and 0.2 %.
pub(crate) fn kind(number: usize) -> (usize, u32) {
    match number.wrapping_mul(7919) % 1000 {
        0..800 => (1, 1),
        800..950 => (1, 8),
        950..990 => (8, 8),
        990..998 => (64, 8),
        _ => (512, 1),
    }
}

/// A gang of equal pods with a memory request of its own.
pub(crate) fn gang(number: usize, team: usize, (pods, gpus): (usize, u32)) -> Gang {
    let name = format!("g{number:06}");
    let flavor = flavor_of_team(team);
    let memory = 8 * GIB + 4096 * i64::try_from(number).unwrap_or(0);
    let pods = (0..pods).map(|rank| Pod {
        uid: format!("{name}-{rank}").into(),
        resources: resources(memory),
        filter: NodeFilterId(0),
        claims: vec![Claim {
            uid: format!("{name}-{rank}").into(),
            requests: vec![DeviceRequest::exactly("gpus", selector(flavor), gpus)],
            constraints: Vec::new(),
            allocated: None,
        }],
    });
    Gang {
        uid: name.as_str().into(),
        name: format!("team/{name}"),
        attempt: 1,
        team: format!("t{team:04}").into(),
        priority: 0,
        queued_at: Timestamp(i64::try_from(number).unwrap_or(0)),
        may_borrow: true,
        topology: TopologyRequest::default(),
        run_time: muster_engine::RunTime::default(),
        lacks_place_since: None,
        min_count: None,
        pods: pods.collect(),
    }
}

fn limits(flavor: &str, gpus: i64) -> Vec<(FlavorName, BTreeMap<Resource, QuotaLimit>)> {
    let limit = QuotaLimit {
        nominal: Amount(gpus * 1000),
        ..QuotaLimit::default()
    };
    vec![(flavor.into(), BTreeMap::from([(Resource::Gpus, limit)]))]
}

/// Teams and the Cohorts above them, three deep.
fn tell_limits(state: &mut State, teams: usize, gpus_of: impl Fn(usize) -> i64) {
    let cohort = |flavor: &str, level: usize, number: usize| -> CohortName {
        format!("{flavor}-{level}-{number:03}").into()
    };
    let mut cohorts: BTreeMap<CohortName, Option<CohortName>> = BTreeMap::new();
    for team in 0..teams {
        let flavor = flavor_of_team(team);
        let (inner, middle) = (team / 2 / CHILDREN, team / 2 / CHILDREN / CHILDREN);
        let path = [
            cohort(flavor, 2, inner),
            cohort(flavor, 1, middle),
            cohort(flavor, 0, 0),
        ];
        for pair in path.windows(2) {
            cohorts.insert(pair[0].clone(), Some(pair[1].clone()));
        }
        cohorts.insert(path[2].clone(), None);
        state.apply(Update::Team(Team {
            name: format!("t{team:04}").into(),
            generation: 1,
            cohort: Some(path[0].clone()),
            quota: limits(flavor, gpus_of(team)),
            queueing: Queueing::BestEffort,
            stop: Stop::None,
            shrink: Shrink::Keep,
            fungibility: FlavorFungibility::default(),
            preemption: PreemptionPolicy::default(),
            weight: Weight::ONE,
            fairness: None,
        }));
    }
    for (name, parent) in cohorts {
        state.apply(Update::Cohort(Cohort {
            name,
            parent,
            quota: Vec::new(),
            weight: Weight::ONE,
            sharing: Sharing::ByPriority,
        }));
    }
}

fn tell_nodes(state: &mut State, nodes: usize) {
    state.apply(Update::Topology(Topology {
        name: "fabric".into(),
        levels: vec!["spine".into(), "leaf".into()],
    }));
    for flavor in [FULL, SPARE] {
        state.apply(Update::Flavor(Flavor {
            name: flavor.into(),
            topology: Some("fabric".into()),
            excluded: BTreeSet::new(),
        }));
    }
    for number in 0..nodes {
        state.apply(Update::Node(node(number)));
    }
}

/// The nodes, nothing on them, and Teams that may have everything.
pub(crate) fn idle(size: Size) -> State {
    let mut state = State::new();
    tell_nodes(&mut state, size.nodes);
    tell_limits(&mut state, size.teams(), |_| 1_000_000);
    state
}

/// What runs: on every fourth full node eight pods of one GPU, on the others one of eight; on spare nodes
/// four of one GPU.
pub(crate) fn running(size: Size) -> Vec<Hold> {
    let teams = size.teams();
    let mut holds = Vec::new();
    for number in 0..size.nodes {
        let spare = flavor_of(number) == SPARE;
        let team = (number / 5 * 2 + usize::from(spare)) % (teams / 2 * 2);
        let team = format!("t{team:04}");
        let singles = if spare {
            GPUS_PER_NODE / 2
        } else {
            GPUS_PER_NODE
        };
        if spare || number % 4 == 0 {
            let pods =
                (0..singles).map(|at| hold(&format!("r{number:05}-{at}"), &team, number, at, 1));
            holds.extend(pods);
        } else {
            holds.push(hold(
                &format!("r{number:05}"),
                &team,
                number,
                0,
                GPUS_PER_NODE,
            ));
        }
    }
    holds
}

/// The cluster nine tenths full.
pub(crate) fn busy(size: Size) -> State {
    let mut state = State::new();
    tell_nodes(&mut state, size.nodes);
    let holds = running(size);
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for hold in &holds {
        let gpus: i64 = hold.claims.iter().map(|claim| claim.gpus.0).sum();
        *used.entry(hold.team.to_string()).or_default() += gpus / 1000;
    }
    // Every other Team of the spare nodes has given half of its quota to the next one.
    tell_limits(&mut state, size.teams(), |team| {
        if flavor_of_team(team) == FULL {
            return 1_000_000;
        }
        let own = used.get(&format!("t{team:04}")).copied().unwrap_or(0);
        if team % 4 == 1 { own * 3 / 2 } else { own / 2 }
    });
    for hold in holds {
        state.apply(Update::Hold(hold));
    }
    state
}

/// Lets the gangs come that wait.
pub(crate) fn submit(state: &mut State, size: Size) {
    for number in 0..size.gangs {
        state.apply(Update::Waiting(gang(
            number,
            number % size.teams(),
            kind(number),
        )));
    }
}
