//! Quota as Kueue does it, by the cases in `shared/conformance/quota_cases.json`.
//!
//! What runs here: `quota_available` (the arithmetic of the tree: available and potentially available, with cohorts,
//! borrowing and lending limits), the cases of `schedule_cycle` that end without preemption, and of
//! `afs_queue_order` the one that orders by priority. Left for the issues on preemption and fair sharing:
//! `classical_preemption`, `hierarchical_preemption`, `fair_sharing_preemption`, `dominant_resource_share`,
//! `schedule_cycle_fair_sharing`, `schedule_cycle_recompute`, `flavor_is_preferred`, and the rest of
//! `afs_queue_order`. `flavor_assignment` presumes Kueue's resource groups and taints of Flavors, which Muster does
//! not have; of `tas_assignment` the vectors that apply stand in `placement.rs`, with one GPU per pod.
//!
//! The file is never copied into the project: without it these tests say SKIPPED, loudly. If
//! `MUSTER_CONFORMANCE` names it (or its directory) and it is not there, they fail.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use common::{ANY_NODE, decide};
use muster_engine::{
    Amount, Cohort, CohortName, Flavor, FlavorName, FlavorResource, Gang, GangUid, Hold, Node, Pod,
    PodResources, Queueing, QuotaLimit, Resource, ResourceCharge, State, Stop, Team, TeamName,
    Timestamp, TopologyRequest, Update,
    model::Quota,
    quota::{FlavorFungibility, PreemptionPolicy, QuotaTree, Weight},
};
use serde_json::Value;

const FILE: &str = "quota_cases.json";

/// One suite of the cases, or `None` where there are none on this machine.
fn suite(name: &str) -> Option<Value> {
    let named = std::env::var_os("MUSTER_CONFORMANCE").map(PathBuf::from);
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/conformance");
    let mut path = named.clone().unwrap_or(default);
    if path.is_dir() {
        path.push(FILE);
    }
    let Ok(text) = std::fs::read_to_string(&path) else {
        assert!(
            named.is_none(),
            "MUSTER_CONFORMANCE: cannot read {}",
            path.display()
        );
        println!("SKIPPED: no conformance cases at {}", path.display());
        return None;
    };
    let cases: Value = serde_json::from_str(&text).expect("the cases are JSON");
    Some(cases[name].clone())
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// Cases of a suite, without what describes it.
fn cases(suite: &Value) -> BTreeMap<&str, &Value> {
    entries(suite)
        .filter(|(name, _)| !name.starts_with('_'))
        .map(|(name, case)| (name.as_str(), case))
        .collect()
}

fn resource(name: &str) -> Resource {
    match name {
        "cpu" => Resource::Cpu,
        "memory" => Resource::Memory,
        other => Resource::Extended(other.into()),
    }
}

/// A Kubernetes quantity in the unit of the resource.
fn quantity(resource: &Resource, text: &str) -> Amount {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: i64 = digits.parse().expect("an integer quantity");
    let thousandths = match &text[digits.len()..] {
        "m" => number,
        "" => number * 1000,
        "Mi" => (number * 1000) << 20,
        "Gi" => (number * 1000) << 30,
        other => panic!("suffix {other}"),
    };
    Amount(if *resource == Resource::Cpu {
        thousandths
    } else {
        thousandths / 1000
    })
}

fn quota(owner: &Value) -> Quota {
    let flavors = list(&owner["resourceGroups"]).iter().flat_map(list);
    flavors
        .map(|flavor| {
            let limits = entries(&flavor["resources"]).map(|(name, limit)| {
                let resource = resource(name);
                let amount = |key: &str| limit[key].as_str().map(|text| quantity(&resource, text));
                let limits = QuotaLimit {
                    nominal: amount("nominal").unwrap_or_default(),
                    borrowing_limit: amount("borrowingLimit"),
                    lending_limit: amount("lendingLimit"),
                };
                (resource, limits)
            });
            (text(flavor, "flavor").into(), limits.collect())
        })
        .collect()
}

fn team(value: &Value) -> Team {
    Team {
        name: text(value, "name").into(),
        generation: 1,
        cohort: value["cohort"].as_str().map(CohortName::from),
        quota: quota(value),
        queueing: match value["queueingStrategy"].as_str() {
            Some("StrictFIFO") => Queueing::StrictFifo,
            _ => Queueing::BestEffort,
        },
        stop: Stop::None,
        fungibility: FlavorFungibility::default(),
        preemption: PreemptionPolicy::default(),
        weight: Weight::ONE,
    }
}

fn cohort(value: &Value) -> Cohort {
    Cohort {
        name: text(value, "name").into(),
        parent: value["parent"].as_str().map(CohortName::from),
        quota: quota(value),
        weight: Weight::ONE,
    }
}

/// `flavor/resource` with a number in base units.
fn amounts(value: &Value) -> BTreeMap<FlavorResource, Amount> {
    entries(value)
        .map(|(key, amount)| {
            let (flavor, name) = key.split_once('/').expect("flavor/resource");
            let of = FlavorResource {
                flavor: flavor.into(),
                resource: resource(name),
            };
            (of, Amount(amount.as_i64().expect("an integer")))
        })
        .collect()
}

#[test]
fn availability_is_kueues() {
    let Some(suite) = suite("quota_available") else {
        return;
    };
    let cases = cases(&suite);
    assert!(!cases.is_empty());
    for (name, case) in cases {
        let teams: Vec<Team> = list(&case["clusterQueues"]).iter().map(team).collect();
        let teams: BTreeMap<TeamName, Team> = teams
            .into_iter()
            .map(|team| (team.name.clone(), team))
            .collect();
        let cohorts: Vec<Cohort> = list(&case["cohorts"]).iter().map(cohort).collect();
        let cohorts: BTreeMap<CohortName, Cohort> = cohorts
            .into_iter()
            .map(|cohort| (cohort.name.clone(), cohort))
            .collect();
        let usage: Vec<(TeamName, FlavorResource, Amount)> = entries(&case["usage"])
            .flat_map(|(team, used)| {
                let used = amounts(used).into_iter();
                used.map(move |(of, amount)| (TeamName::from(team.as_str()), of, amount))
            })
            .collect();
        let charged = usage
            .iter()
            .map(|(team, of, amount)| (team, of, i128::from(amount.0)));
        let tree = QuotaTree::new(&teams, &cohorts, charged);
        for (team, wanted) in entries(&case["wantAvailable"]) {
            for (of, wanted) in amounts(wanted) {
                let available = tree.available(&team.as_str().into(), &of);
                assert_eq!(available, Ok(wanted), "{name}: {team} {of:?} available");
            }
        }
        for (team, wanted) in entries(&case["wantPotentiallyAvailable"]) {
            for (of, wanted) in amounts(wanted) {
                let most = tree.potentially_available(&team.as_str().into(), &of);
                assert_eq!(
                    most,
                    Ok(wanted),
                    "{name}: {team} {of:?} potentially available"
                );
            }
        }
    }
}

/// Cases of `schedule_cycle` that need what is not built here, and what that is.
const LEFT: [(&str, &str); 16] = [
    (
        "PreemptionOverBorrowing preference: preempt in first flavor instead of borrowing in second",
        "preemption",
    ),
    (
        "capacity blocked when lending clusterqueue not guaranteed to reclaim (ReclaimWithinCohort=LowerPriority)",
        "preemption",
    ),
    (
        "capacity not blocked when lending clusterqueue can reclaim (ReclaimWithinCohort=Any)",
        "preemption",
    ),
    (
        "multiple preemptions preemption possible after earlier workload fits",
        "preemption",
    ),
    ("multiple preemptions without borrowing", "preemption"),
    (
        "preempt when workload requests zero of a resource not defined in ClusterQueue",
        "preemption",
    ),
    (
        "prefer first preemption flavor when second flavor also requires cq preemption",
        "preemption",
    ),
    (
        "prefer first preemption flavor when second flavor requires both reclaim and cq priority preemption",
        "preemption",
    ),
    (
        "prefer reclamation over cq priority based preemption",
        "preemption",
    ),
    (
        "workload requiring reclaimation prioritized over wl in another full cq",
        "preemption",
    ),
    (
        "partial admission multiple variable pod sets",
        "partial admission",
    ),
    (
        "partial admission single variable pod set",
        "partial admission",
    ),
    (
        "flavors are structurally incompatible",
        "taints are judged by node, not by Flavor",
    ),
    (
        "error during admission",
        "Kueue's API write fails; here: State::undo",
    ),
    (
        "container resource requests exceed limits",
        "the webhook's business",
    ),
    (
        "skip workload with missing or deleted ClusterQueue (NoFit)",
        "the edge's business",
    ),
];

/// A gang of pods that ask for cpu; pods of all pod sets together.
fn pending(workload: &Value, team: &str) -> Gang {
    let name = format!("{}/{}", text(workload, "namespace"), text(workload, "name"));
    let sets = match list(&workload["podSets"]) {
        [] => std::slice::from_ref(workload),
        sets => sets,
    };
    let mut pods = Vec::new();
    for set in sets {
        for _ in 0..set["count"].as_u64().unwrap_or(1) {
            let cpu = set["requests"]["cpu"].as_str().expect("asks for cpu");
            pods.push(Pod {
                uid: format!("{name}-{}", pods.len()).into(),
                resources: PodResources {
                    cpu_milli: quantity(&Resource::Cpu, cpu).0,
                    memory_bytes: 0,
                    pods: 1,
                    ..PodResources::default()
                },
                filter: ANY_NODE,
                claims: Vec::new(),
            });
        }
    }
    Gang {
        uid: name.as_str().into(),
        name,
        attempt: 1,
        team: team.into(),
        priority: i32::try_from(workload["priority"].as_i64().unwrap_or(0)).expect("a priority"),
        queued_at: Timestamp(workload["createdAtSec"].as_i64().unwrap_or(0)),
        topology: TopologyRequest::default(),
        pods,
    }
}

fn running(workload: &Value) -> Hold {
    let reserved = &workload["reserved"];
    let name = format!("{}/{}", text(workload, "namespace"), text(workload, "name"));
    let charged = list(&reserved["podSets"]).iter().flat_map(|set| {
        entries(&set["flavors"]).map(|(name, assigned)| {
            let resource = resource(name);
            let flavor: FlavorName = assigned[0].as_str().expect("a flavor").into();
            let amount = quantity(&resource, assigned[1].as_str().expect("an amount"));
            ResourceCharge::new(flavor, resource, amount)
        })
    });
    Hold {
        pod: format!("{name}-0").into(),
        gang: name.as_str().into(),
        gang_name: name.clone(),
        team: text(reserved, "clusterQueue").into(),
        node: "elsewhere".into(),
        charged_to_node: false,
        resources: PodResources::default(),
        charged: charged.collect(),
        claims: Vec::new(),
        releasing: false,
    }
}

/// One node on which cpu is never scarce, so that quota alone decides.
fn endless_node() -> Node {
    Node {
        allocatable: PodResources {
            cpu_milli: i64::MAX / 2,
            memory_bytes: i64::MAX / 2,
            pods: i64::MAX / 2,
            ..PodResources::default()
        },
        ..common::node("endless", "", 0)
    }
}

/// Admitted workloads with the flavors of their pods' cpu.
fn cycle(fixture: &Value, case: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let mut state = State::new();
    state.apply(Update::Node(endless_node()));
    for name in ["default", "on-demand", "spot", "model-a"] {
        state.apply(Update::Flavor(Flavor {
            name: name.into(),
            topology: None,
        }));
    }
    for value in list(&case["cohorts"]) {
        state.apply(Update::Cohort(cohort(value)));
    }
    let queues = [&fixture["clusterQueues"], &case["extraClusterQueues"]];
    for value in queues.into_iter().flat_map(list) {
        state.apply(Update::Team(team(value)));
    }
    let locals = [&fixture["localQueues"], &case["extraLocalQueues"]];
    let team_of: BTreeMap<(String, String), String> = locals
        .into_iter()
        .flat_map(list)
        .map(|local| {
            (
                (text(local, "namespace"), text(local, "name")),
                text(local, "clusterQueue"),
            )
        })
        .collect();
    for workload in list(&case["workloads"]) {
        if workload["reserved"].is_object() {
            state.apply(Update::Hold(running(workload)));
        } else {
            let queue = (text(workload, "namespace"), text(workload, "queue"));
            state.apply(Update::Waiting(pending(workload, &team_of[&queue])));
        }
    }
    let decisions = decide(&mut state);
    let admitted = decisions.admissions.iter().map(|admission| {
        let charged = admission.pods.iter().flat_map(|pod| &pod.charged);
        let flavors = charged.map(|charge| charge.of.flavor.to_string()).collect();
        (admission.gang.to_string(), flavors)
    });
    admitted.collect()
}

#[test]
fn a_cycle_without_preemption_admits_what_kueue_admits() {
    let Some(suite) = suite("schedule_cycle") else {
        return;
    };
    let left: BTreeSet<&str> = LEFT.iter().map(|(name, _)| *name).collect();
    let mut ran = 0;
    for (name, case) in cases(&suite) {
        if left.contains(name) {
            continue;
        }
        ran += 1;
        let running: BTreeSet<String> = list(&case["workloads"])
            .iter()
            .filter(|workload| workload["reserved"].is_object())
            .map(|workload| format!("{}/{}", text(workload, "namespace"), text(workload, "name")))
            .collect();
        let wanted: BTreeMap<String, BTreeSet<String>> = entries(&case["wantAssignments"])
            .filter(|(workload, _)| !running.contains(*workload))
            .map(|(workload, assignment)| {
                let sets = list(&assignment["podSets"]).iter();
                let flavors = sets.map(|set| set["flavors"]["cpu"][0].as_str().unwrap_or_default());
                (workload.clone(), flavors.map(str::to_owned).collect())
            })
            .collect();
        assert!(
            case["wantPreempted"].is_null(),
            "{name} preempts and is not on the list"
        );
        assert_eq!(cycle(&suite["_fixture"], case), wanted, "{name}");
    }
    assert!(ran >= 10, "only {ran} cases ran");
}

#[test]
fn without_fair_sharing_a_queue_is_ordered_by_priority() {
    let Some(suite) = suite("afs_queue_order") else {
        return;
    };
    let case = &suite["workloads with NoFairSharing CQ are ordered by priority"];
    let mut state = State::new();
    state.apply(Update::Team(team(&case["cq"])));
    for workload in list(&case["wls"]) {
        let mut gang = common::gang(&text(workload, "name"), "cq", 1, 1);
        gang.priority =
            i32::try_from(workload["priority"].as_i64().expect("given")).expect("small");
        state.apply(Update::Waiting(gang));
    }
    let first = state
        .queue(&"cq".into())
        .next()
        .map(|gang| gang.uid.clone());
    assert_eq!(first, Some(GangUid::from(text(&case["wantWl"], "name"))));
}
