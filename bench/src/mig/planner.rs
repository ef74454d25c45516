//! Who gets what: Muster's planner with kube-scheduler on the node that it chose, or kube-scheduler alone.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use muster_engine::{
    Admission, Amount, Budget, Claim, Flavor, FlavorName, Gang, HeldClaim, Hold, NodeName, Pod,
    PodResources, Queueing, QuotaLimit, Resource, RunTime, Shrink, State, Stop, Team, Timestamp,
    TopologyRequest, Update,
    quota::{FlavorFungibility, PreemptionPolicy, Weight},
};

use super::{
    first_fit::Left,
    fleet::{ANY_NODE, FLAVOR, Fleet},
    packings::opened,
};

const TEAM: &str = "team";
/// More than all GPUs, and far from any bound: quota decides nothing here.
const ENOUGH: Amount = Amount(i64::MAX / 4);

/// What became of the requests that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// How many were placed, by what they ask for.
    pub(super) placed: Vec<u32>,
    /// GPUs of which something is given out.
    pub(super) opened: usize,
}

impl Outcome {
    fn of(placed: Vec<u32>, left: &[Left<'_>]) -> Result<Self> {
        let opened = left.iter().map(opened).sum::<Result<usize>>()?;
        Ok(Self { placed, opened })
    }

    /// How many were placed.
    pub(super) fn all_placed(&self) -> u32 {
        self.placed.iter().sum()
    }
}

/// Each request goes to the first node that has something for it, in the order of names, as do the devices of a node.
pub(super) fn first_fit(fleet: &Fleet, arrivals: &[usize]) -> Result<Outcome> {
    let mut left: Vec<Left<'_>> = fleet.nodes.iter().map(Left::by_name).collect();
    let mut placed = vec![0; fleet.requests.len()];
    for ask in arrivals {
        let request = &fleet.requests[*ask];
        let mut nodes = left.iter().enumerate();
        let found = nodes.find_map(|(node, left)| Some((node, left.first_fit(request)?)));
        if let Some((node, device)) = found {
            left[node].take(device);
            placed[*ask] += 1;
        }
    }
    Outcome::of(placed, &left)
}

/// Each request goes to the node that the engine plans, and gets there what kube-scheduler gives it.
///
/// A request that has no place when it arrives is gone: nothing ends here, so it would wait for ever.
pub(super) fn planned(fleet: &Fleet, arrivals: &[usize]) -> Result<Outcome> {
    let mut state = State::new();
    for update in [flavor(), team()] {
        state.apply(update);
    }
    let mut nodes: BTreeMap<&NodeName, usize> = BTreeMap::new();
    for (number, node) in fleet.nodes.iter().enumerate() {
        state.apply(Update::Node(node.node.clone()));
        nodes.insert(&node.node.name, number);
    }
    let mut left: Vec<Left<'_>> = fleet.nodes.iter().map(Left::as_published).collect();
    let mut placed = vec![0; fleet.requests.len()];
    for (number, ask) in arrivals.iter().enumerate() {
        let gang = gang(fleet, number, *ask);
        state.apply(Update::Waiting(gang.clone()));
        let decisions = state.decide(Timestamp(seconds(number)), &Budget::UNLIMITED);
        let Some(admission) = decisions.admissions.first() else {
            state.apply(Update::NotWaiting(gang.uid));
            continue;
        };
        let admitted = admission.pods.first().context("an admission of no pod")?;
        let node = nodes.get(&admitted.node);
        let node = *node.with_context(|| format!("there is no {}", admitted.node))?;
        let request = &fleet.requests[*ask];
        let device = left[node].first_fit(request);
        let device = device.with_context(|| {
            format!(
                "{} is planned on {}, which has nothing for it",
                gang.name, admitted.node
            )
        })?;
        left[node].take(device);
        placed[*ask] += 1;
        let hold = hold(fleet, &gang, admission, (node, device))?;
        state.apply(Update::Hold(hold));
        state.apply(Update::NotWaiting(gang.uid));
    }
    Outcome::of(placed, &left)
}

fn flavor() -> Update {
    Update::Flavor(Flavor {
        name: FLAVOR.into(),
        topology: None,
        excluded: BTreeSet::new(),
    })
}

fn team() -> Update {
    let limit = QuotaLimit {
        nominal: ENOUGH,
        ..QuotaLimit::default()
    };
    Update::Team(Team {
        name: TEAM.into(),
        generation: 1,
        cohort: None,
        quota: vec![(
            FLAVOR.into(),
            BTreeMap::from([(Resource::Gpus, limit), (Resource::Vram, limit)]),
        )],
        queueing: Queueing::BestEffort,
        stop: Stop::None,
        shrink: Shrink::Keep,
        fungibility: FlavorFungibility::default(),
        preemption: PreemptionPolicy::NEVER,
        weight: Weight::ONE,
        fairness: None,
    })
}

/// A gang of one pod with one claim.
fn gang(fleet: &Fleet, number: usize, ask: usize) -> Gang {
    let uid = format!("gang-{number:05}");
    Gang {
        uid: uid.as_str().into(),
        name: format!("{TEAM}/{uid}"),
        attempt: 1,
        team: TEAM.into(),
        priority: 0,
        queued_at: Timestamp(seconds(number)),
        may_borrow: false,
        topology: TopologyRequest::default(),
        run_time: RunTime::default(),
        lacks_place_since: None,
        min_count: None,
        pods: vec![Pod {
            uid: format!("{uid}-pod").into(),
            resources: PodResources {
                pods: 1,
                ..PodResources::default()
            },
            filter: ANY_NODE,
            claims: vec![Claim {
                uid: format!("{uid}-claim").into(),
                requests: vec![fleet.requests[ask].clone()],
                constraints: Vec::new(),
                allocated: None,
            }],
        }],
    }
}

/// What the pod holds once its claim has its device, which is charged as it was planned.
fn hold(
    fleet: &Fleet,
    gang: &Gang,
    admission: &Admission,
    (node, device): (usize, usize),
) -> Result<Hold> {
    let pod = gang.pods.first().context("a gang of no pod")?;
    let admitted = admission.pods.first().context("an admission of no pod")?;
    let charge = admitted.claims.first().context("nothing is charged")?;
    let node = &fleet.nodes[node].node;
    let device = &node.devices[device];
    ensure!(
        (charge.gpus, charge.vram) == (device.gpus, device.vram),
        "{}: the plan charges {charge:?}, and kube-scheduler gives it {} of {:?}",
        gang.name,
        device.name,
        device.gpus
    );
    Ok(Hold {
        pod: pod.uid.clone(),
        gang: gang.uid.clone(),
        gang_name: gang.name.clone(),
        team: TEAM.into(),
        node: node.name.clone(),
        charged_to_node: false,
        resources: pod.resources.clone(),
        charged: admitted.charged.clone(),
        claims: vec![HeldClaim {
            uid: charge.uid.clone(),
            flavor: FlavorName::from(FLAVOR),
            gpus: charge.gpus,
            vram: charge.vram,
            request: pod.claims.first().cloned(),
            devices: Some(vec![device.name.clone()]),
        }],
        releasing: false,
    })
}

/// One request arrives in each second; there are far fewer than 2^63.
fn seconds(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
