//! Every bound of what is told at a time, met and passed by one.

use std::collections::{BTreeMap, BTreeSet};

use muster_cluster::formed::DETAILS_BYTES;
use muster_engine as engine;

use super::*;
use crate::{
    feed::{EXPLAINED_AT_ONCE, EXPLAINING_LOOKS, Feed},
    outward::{
        event_budget::BURST,
        events::PODS_TOLD,
        queue_status::{PENDING_LISTED, TEAMS_PER_SECOND},
    },
    resync::{EVERY_SECONDS, GANGS_PER_SLICE, NODES_PER_SLICE},
};

/// A feed whose engine has 20 nodes of two GPUs and four cores, no two of them alike.
fn feed() -> Feed {
    let mut feed = Feed::new();
    feed.apply(engine::Update::Flavor(engine::Flavor {
        name: "gpu".into(),
        topology: None,
        excluded: std::collections::BTreeSet::new(),
    }));
    let limit = engine::QuotaLimit {
        nominal: engine::Amount(1_000_000),
        ..engine::QuotaLimit::default()
    };
    feed.apply(engine::Update::Team(engine::Team {
        name: "vision".into(),
        generation: 1,
        cohort: None,
        quota: vec![(
            "gpu".into(),
            BTreeMap::from([(engine::Resource::Gpus, limit)]),
        )],
        queueing: engine::Queueing::BestEffort,
        stop: engine::Stop::None,
        shrink: engine::Shrink::Keep,
        fungibility: engine::quota::FlavorFungibility::default(),
        preemption: engine::quota::PreemptionPolicy::default(),
        weight: engine::quota::Weight::ONE,
        fairness: None,
    }));
    let device = |at: usize| engine::Device {
        name: format!("gpu.muster.dev/pool/gpu-{at}").into(),
        flavors: BTreeSet::from(["gpu".into()]),
        gpus: engine::Amount::ONE_GPU,
        vram: engine::Amount::ZERO,
        selectors: BTreeSet::from([engine::SelectorId(0)]).into(),
        attributes: Arc::default(),
        own_attributes: Arc::default(),
        nvlink_group: None,
        usable: true,
        healthy: true,
        allocated_to: None,
        consumes: Arc::default(),
    };
    for at in 0..20 {
        feed.apply(engine::Update::Node(engine::Node {
            name: format!("n{at:02}").into(),
            uid: format!("n{at:02}-uid"),
            block: None,
            allocatable: engine::PodResources {
                cpu_milli: 4_000,
                memory_bytes: (512 << 30) + at,
                pods: 110,
                ..engine::PodResources::default()
            },
            used: engine::PodResources::default(),
            fabric: BTreeMap::new(),
            accelerator: BTreeMap::new(),
            filters: BTreeSet::from([engine::NodeFilterId(0)]).into(),
            devices: (0..2).map(device).collect(),
            counter_sets: Arc::default(),
        }));
    }
    feed
}

/// A gang of pods of a GPU each, by their cores.
fn gang(uid: &str, cores: &[i64]) -> engine::Gang {
    let pod = |(at, cores): (usize, &i64)| engine::Pod {
        uid: format!("{uid}-{at}").into(),
        resources: engine::PodResources {
            cpu_milli: cores * 1_000,
            memory_bytes: 1 << 30,
            pods: 1,
            ..engine::PodResources::default()
        },
        filter: engine::NodeFilterId(0),
        claims: vec![engine::Claim {
            uid: format!("claim-of-{uid}-{at}").into(),
            requests: vec![engine::DeviceRequest::exactly(
                "gpu",
                engine::SelectorId(0),
                1,
            )],
            constraints: Vec::new(),
            allocated: None,
        }],
    };
    engine::Gang {
        uid: uid.into(),
        name: format!("ml/{uid}"),
        attempt: 1,
        team: "vision".into(),
        priority: 0,
        queued_at: engine::Timestamp(0),
        may_borrow: true,
        topology: engine::TopologyRequest::default(),
        run_time: engine::RunTime::default(),
        lacks_place_since: None,
        min_count: None,
        pods: cores.iter().enumerate().map(pod).collect(),
    }
}

/// How many gangs are explained in each of some polls, and the looks that each takes.
fn explained(
    gangs: impl Iterator<Item = engine::Gang>,
    polls: usize,
    most_looks: u64,
) -> Vec<(usize, u64)> {
    let mut feed = feed();
    for gang in gangs {
        feed.apply(engine::Update::Waiting(gang));
    }
    let decided = feed.decide(engine::Timestamp(0), &engine::Budget::UNLIMITED, usize::MAX);
    assert!(decided.0.is_empty(), "{decided:?}");
    let index = index::Index::new(config().index);
    let mut polls_left = 0..polls;
    let poll = std::iter::from_fn(|| {
        polls_left.next()?;
        let before = feed.engine.visited();
        let explained = feed.explain(&index, most_looks, 0).len();
        Some((explained, feed.engine.visited() - before))
    });
    poll.collect()
}

#[test]
fn so_many_gangs_are_explained_in_one_poll() {
    // None of them has a node with so many cores.
    let gangs = (0..=EXPLAINED_AT_ONCE).map(|at| gang(&format!("g{at:02}"), &[5]));
    let told = explained(gangs, 3, EXPLAINING_LOOKS);
    let looks: u64 = told.iter().map(|(_, looks)| looks).sum();
    assert!(looks < EXPLAINING_LOOKS, "{told:?}");
    let counts: Vec<usize> = told.iter().map(|(count, _)| *count).collect();
    assert_eq!(counts, [EXPLAINED_AT_ONCE, 1, 0]);
}

#[test]
fn so_many_looks_are_spent_on_explanations_in_one_poll_and_one_gang_is_explained_whatever_it_takes()
{
    // Each has a pod that fits, and one that fits nowhere; no two are alike.
    let gangs = || (0..6).map(|at| gang(&format!("g{at}"), &[at % 4 + 1, 5]));
    let of_one = explained(gangs(), 1, 0)[0];
    assert_eq!(of_one.0, 1, "whatever it takes");
    assert!(of_one.1 > 0, "it takes looks");
    let counts = |most_looks| {
        let told = explained(gangs(), 2, most_looks);
        told.iter().map(|(count, _)| *count).collect::<Vec<_>>()
    };
    assert_eq!(counts(of_one.1 - 1)[0], 1, "the looks are spent");
    assert!(counts(of_one.1)[0] > 1, "some are left");
    assert_eq!(counts(u64::MAX), [6, 0]);
}

#[test]
fn a_queue_lists_so_many_gangs_of_a_namespace() {
    for gangs in [PENDING_LISTED, PENDING_LISTED + 1] {
        let mut bench = Bench::new();
        bench.checks_polls = false;
        bench.server.put(team("vision", 0));
        for number in 0..gangs {
            bench.gang(&format!("wait-{number:03}"), 1);
        }
        bench.run();
        // A Team with a long line rests in between.
        bench.seconds += 10;
        bench.run();
        let queue = bench.queue();
        let status = queue.status.as_ref().unwrap();
        assert_eq!(status.pending.len(), PENDING_LISTED);
        assert_eq!(usize::try_from(status.pending_gangs).unwrap(), gangs);
    }
}

#[test]
fn what_is_said_of_a_gang_is_cut_where_the_next_byte_is_too_many() {
    let said = |pod_name_bytes: usize| {
        let mut bench = Bench::new();
        let label = "x".repeat(pod_name_bytes - 2);
        bench.gang(&label, 1);
        bench.change_pod(&format!("{label}-0"), |pod| {
            pod.spec.as_mut().unwrap().scheduling_gates = None;
        });
        bench.run();
        let status = bench.gang_status();
        let admitted = status
            .conditions
            .into_iter()
            .find(|it| it.type_ == "Admitted");
        let details = status.queue.unwrap().details;
        assert_eq!(admitted.unwrap().message, details);
        details
    };
    let short = said(63);
    assert!(
        short.contains("passed the gate without an admission"),
        "{short}"
    );
    let own = short.len() - 63;
    for (bytes, is_whole) in [
        (DETAILS_BYTES - 1, true),
        (DETAILS_BYTES, true),
        (DETAILS_BYTES + 1, false),
    ] {
        let details = said(bytes - own);
        assert_eq!(details.len() == bytes, is_whole, "{details}");
        assert_eq!(details.ends_with('…'), !is_whole, "{details}");
        assert!(details.len() <= DETAILS_BYTES);
    }
}

/// What other Teams have does not change; the last Team lends to one that takes something.
#[test]
fn so_many_teams_are_asked_each_second_whether_others_changed_what_they_have() {
    let second_of = |unconcerned: usize| {
        let mut bench = Bench::new();
        bench.checks_polls = false;
        bench.server.put(Object::Cohort(parse(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Cohort", "metadata": {"name": "all"}, "spec": {},
        }))));
        let names = (0..unconcerned).map(|number| (format!("team-{number:02}"), None));
        let sharing = ["vision", "zoo"].map(|name| (name.to_owned(), Some("all")));
        for (name, cohort) in names.chain(sharing) {
            bench.server.put(Object::Team(parse(json!({
                "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": name},
                "spec": {"cohort": cohort, "quota": [
                    {"flavor": "gpu", "resources": [{"name": "gpus", "nominal": 2}]},
                ]},
            }))));
            if name != "vision" {
                bench.server.put(Object::Namespace(parse(json!({
                    "metadata": {"name": name, "labels": {keys::TEAM: name}},
                }))));
            }
        }
        for _ in 0..10 {
            bench.run_at_once();
            bench.seconds += 1;
        }
        bench.gang("train", 1);
        let of_zoo = |write: &ApiRequest| matches!(write, ApiRequest::PublishQueue { team, .. } if team == "zoo");
        (0..10).find(|_| {
            bench.written.clear();
            bench.run_at_once();
            bench.seconds += 1;
            bench.written.iter().any(of_zoo)
        })
    };
    // Vision is asked, too.
    let in_time = second_of(TEAMS_PER_SECOND - 2).expect("it is told");
    let late = second_of(TEAMS_PER_SECOND - 1).expect("it is told");
    assert_eq!(late, in_time + 1);
}

#[test]
fn an_event_goes_to_so_many_pods_of_a_gang() {
    for (pods, told) in [(PODS_TOLD, PODS_TOLD), (PODS_TOLD + 1, PODS_TOLD)] {
        let mut bench = Bench::new();
        bench.gang("train", pods);
        bench.run();
        let notes = bench.written.iter().filter_map(|write| match write {
            ApiRequest::PublishEvent(note) if note.kind == "Pod" => Some(note.reason),
            _ => None,
        });
        let mut by_reason: BTreeMap<muster_api::Reason, usize> = BTreeMap::new();
        for reason in notes {
            *by_reason.entry(reason).or_default() += 1;
        }
        let too_large = by_reason.get(&muster_api::Reason::ExceedsMaxQuota);
        assert_eq!(too_large, Some(&told), "{by_reason:?}");
    }
}

#[test]
fn an_owner_of_many_gangs_is_told_so_many_events_in_a_row_and_each_gang_its_own() {
    let pods = usize::try_from(BURST).unwrap() + 1;
    let mut bench = Bench::new();
    bench.checks_polls = false;
    bench.server.put(team("vision", 0));
    for rank in 0..pods {
        bench.pod("web", rank, 1, keys::DEVICE_CLASS_GPU);
        bench.change_pod(&format!("web-{rank}"), |pod| {
            pod.metadata.labels = None;
            let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web-uid", "controller": true}]);
            pod.metadata.owner_references = serde_json::from_value(owner).unwrap();
        });
    }
    bench.run();
    let told = |bench: &Bench, kind: &str| {
        let notes = bench.written.iter();
        notes
            .filter(|write| matches!(write, ApiRequest::PublishEvent(note) if note.kind == kind))
            .count()
    };
    assert_eq!(told(&bench, "ReplicaSet"), pods - 1);
    assert_eq!((told(&bench, "Gang"), told(&bench, "Pod")), (pods, pods));
    bench.written.clear();
    bench.server.put(team("vision", 4));
    bench.run();
    assert_eq!(told(&bench, "ReplicaSet"), 0);
    assert!(told(&bench, "Gang") > 0);
}

#[test]
fn the_slow_look_at_everything_takes_so_many_gangs_and_nodes_at_a_time() {
    let mut bench = Bench::new();
    bench.checks_polls = false;
    bench.server.put(team("vision", 0));
    // Two nodes are there anyway.
    for number in 2..=NODES_PER_SLICE {
        for object in node_with_gpus(&format!("n{number}"), 2) {
            bench.server.put(object);
        }
    }
    for number in 0..=GANGS_PER_SLICE {
        bench.gang(&format!("wait-{number:03}"), 1);
    }
    bench.run();
    bench.seconds += EVERY_SECONDS;
    let looks = (0..3).map(|_| {
        let before = bench.machine.visited();
        let now = bench.now();
        bench.machine.poll(now);
        bench.seconds += 1;
        bench.machine.visited() - before
    });
    let looks: Vec<u64> = looks.collect();
    let slice = u64::try_from(GANGS_PER_SLICE + NODES_PER_SLICE).unwrap();
    assert_eq!(looks, [slice, 2, 0]);
}
