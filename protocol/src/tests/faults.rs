//! Faults of devices: whom they cost an attempt, how often, and how many nodes at most.

mod disruptions;
mod drains;
mod limits;
mod resets;
mod silent;

use k8s_openapi::api::resource::v1::{DeviceTaint, ResourceSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_api::{Breaker, GangPhase, GangStatus, IntentKind, Reason, conditions};

use super::*;
use crate::{BreakerLimits, Mode, Recovery};

/// A gang of one pod for each of these runs; each has a GPU of its own.
fn running_with(config: Config, gangs: &[&str], nodes: usize) -> Bench {
    running_declaring(config, gangs, nodes, &[])
}

/// The same of gangs that declare something.
fn running_declaring(
    config: Config,
    gangs: &[&str],
    nodes: usize,
    declared: &[(&str, &str)],
) -> Bench {
    let mut bench = Bench::with(config);
    for node in 2..nodes {
        for object in node_with_gpus(&format!("n{node}"), 2) {
            bench.server.put(object);
        }
    }
    bench.server.put(team("vision", 2 * nodes));
    for gang in gangs {
        bench.gang(gang, 1);
        bench.change_pod(&format!("{gang}-0"), |pod| {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            let declared = declared.iter();
            annotations
                .extend(declared.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        });
    }
    bench.run();
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    for gang in gangs {
        let pod = format!("{gang}-0");
        let node = node_of(&bench, &pod);
        let gpu = taken.entry(node.clone()).or_default();
        allocate(&mut bench, &pod, &node, *gpu);
        *gpu += 1;
        bench.runs_on(&pod, &node);
    }
    bench.run();
    bench
}

fn running(gangs: &[&str]) -> Bench {
    running_with(config(), gangs, 2)
}

/// The node that a pod is permitted on.
fn node_of(bench: &Bench, pod: &str) -> String {
    let uid = bench.server.pod(pod).unwrap().metadata.uid.unwrap();
    let mut nodes = bench
        .server
        .list(Kind::NodeDevices)
        .into_iter()
        .filter_map(|object| match object {
            Object::NodeDevices(devices) => Some(devices),
            _ => None,
        });
    let node = nodes.find(|devices| devices.spec.permits.iter().any(|it| it.pod_uid == uid));
    node.unwrap().metadata.name.clone().unwrap()
}

/// kube-scheduler gives a claim a GPU.
fn allocate(bench: &mut Bench, pod: &str, node: &str, gpu: usize) {
    let Object::ResourceClaim(mut object) = claim(pod, keys::DEVICE_CLASS_GPU) else {
        panic!("a claim");
    };
    let results = json!([
        {"request": "gpu", "driver": keys::DRIVER, "pool": node, "device": format!("gpu-{gpu}")},
    ]);
    Arc::make_mut(&mut object).status =
        serde_json::from_value(json!({"allocation": {"devices": {"results": results}}})).unwrap();
    bench.server.put(Object::ResourceClaim(object));
}

fn device_of(bench: &Bench, pod: &str) -> (String, usize) {
    let claims = bench.server.list(Kind::ResourceClaim).into_iter();
    let mut claims = claims.filter_map(|object| match object {
        Object::ResourceClaim(claim) => Some(claim),
        _ => None,
    });
    let claim = claims.find(|claim| claim.metadata.name.as_deref() == Some(pod));
    let status = claim.unwrap().status.clone().unwrap();
    let results = status.allocation.unwrap().devices.unwrap().results.unwrap();
    let device = results[0].device.strip_prefix("gpu-").unwrap();
    (results[0].pool.clone(), device.parse().unwrap())
}

fn slice_of(bench: &Bench, node: &str) -> ResourceSlice {
    let slices = bench.server.list(Kind::ResourceSlice).into_iter();
    let mut slices = slices.filter_map(|object| match object {
        Object::ResourceSlice(slice) => Some(slice),
        _ => None,
    });
    let slice = slices.find(|slice| slice.spec.node_name.as_deref() == Some(node));
    ResourceSlice::clone(&slice.unwrap())
}

/// The slice of the node, with this taint on a GPU, or without any.
fn tainted(bench: &Bench, (node, gpu): &(String, usize), taint: Option<(&str, &str)>) -> Object {
    let mut slice = slice_of(bench, node);
    let device = &mut slice.spec.devices.as_mut().unwrap()[*gpu];
    device.taints = taint.map(|(key, value)| {
        vec![DeviceTaint {
            key: key.to_owned(),
            value: Some(value.to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: Some(Time(Timestamp::from_second(1_800_000_000).unwrap())),
        }]
    });
    Object::ResourceSlice(Arc::new(slice))
}

/// The driver publishes a fault of the GPU that a pod has, or that there is none any more.
fn taint(bench: &mut Bench, pod: &str, taint: Option<(&str, &str)>) {
    let device = device_of(bench, pod);
    let slice = tainted(bench, &device, taint);
    bench.server.put(slice);
}

const RESET: Option<(&str, &str)> = Some((keys::TAINT_FAULT, "Reset"));

fn status_of(bench: &Bench, gang: &str) -> GangStatus {
    let gangs = bench.server.list(Kind::Gang).into_iter();
    let mut gangs = gangs.filter_map(|object| match object {
        Object::Gang(gang) => Some(gang),
        _ => None,
    });
    let found = gangs.find(|it| it.spec.group.as_deref() == Some(gang));
    found.unwrap().status.clone().unwrap()
}

/// What the gang was evicted for.
fn evictions(bench: &Bench, gang: &str) -> Vec<Reason> {
    let status = status_of(bench, gang);
    status.evictions.iter().map(|it| it.reason).collect()
}

fn degraded(bench: &Bench, gang: &str) -> String {
    let status = status_of(bench, gang);
    let mut conditions = status.conditions.into_iter();
    let degraded = conditions.find(|it| it.type_ == conditions::DEGRADED && it.status == "True");
    degraded.map_or_else(String::new, |it| format!("{}: {}", it.reason, it.message))
}

fn pass(bench: &mut Bench, seconds: u64) {
    bench.run_at_once();
    for _ in 0..seconds {
        bench.seconds += 1;
        bench.run_at_once();
    }
}

fn evicts(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReplaceLedger { spec, .. } if spec.intents.iter().any(|it| it.kind == IntentKind::Evict))
}

fn reads_slice(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReadObject { key } if key.kind == Kind::ResourceSlice)
}

fn breaker(bench: &Bench) -> Breaker {
    bench.server.ledger().unwrap().spec.breaker
}

#[test]
fn s8_a_fault_costs_the_gang_that_holds_the_device_its_attempt_and_nobody_else() {
    let mut bench = running(&["sick", "well", "other"]);
    bench.written.clear();
    taint(&mut bench, "sick-0", RESET);
    bench.run();
    assert_eq!(evictions(&bench, "sick"), [Reason::DeviceFault]);
    for gang in ["well", "other"] {
        let status = status_of(&bench, gang);
        assert_eq!((status.phase, status.attempt), (GangPhase::Running, 1));
        assert_eq!(degraded(&bench, gang), "");
    }
    let (node, gpu) = device_of(&bench, "sick-0");
    let eviction = status_of(&bench, "sick").evictions.remove(0);
    let fault = eviction.fault.unwrap();
    assert_eq!(fault.device, format!("{}/{node}/gpu-{gpu}", keys::DRIVER));
    assert_eq!(fault.kind, "Reset");
    assert_eq!(fault.since.0.as_second(), 1_800_000_000);
    assert_eq!(eviction.node.as_deref(), Some(node.as_str()));
    let evacuated = breaker(&bench).drained;
    assert_eq!(evacuated.len(), 1);
    assert_eq!(evacuated[0].node, node, "recorded with the eviction");
    // The store was asked before, once.
    let writes = bench.written.iter();
    let order: Vec<bool> = writes
        .filter(|write| reads_slice(write) || evicts(write))
        .map(reads_slice)
        .collect();
    assert!(order.starts_with(&[true, false]), "{order:?}");
    assert_eq!(order.iter().filter(|reads| **reads).count(), 1);
}

#[test]
fn each_taint_costs_whoever_has_the_device_what_it_says() {
    for ((key, value), evicted_after_seconds) in [
        ((keys::TAINT_FAULT, "Contained"), Some(0)),
        ((keys::TAINT_FAULT, "Reset"), Some(0)),
        ((keys::TAINT_FAULT, "Reboot"), Some(0)),
        ((keys::TAINT_GONE, ""), Some(30)),
        ((keys::TAINT_FAULT, "Unknown"), None),
        ((keys::TAINT_FAULT, "Retire"), None),
        ((keys::TAINT_FAULT, "NewInALaterVersion"), None),
        ((keys::TAINT_LINK_FAULT, "Link"), None),
        (("gpu.muster.dev/node-fault", "Reboot"), None),
        ((keys::TAINT_HELD, ""), None),
        (("example.com/fault", "Reset"), None),
    ] {
        let mut bench = running(&["train"]);
        taint(&mut bench, "train-0", Some((key, value)));
        let case = format!("{key}={value}");
        match evicted_after_seconds {
            Some(0) => {}
            Some(seconds) => {
                pass(&mut bench, seconds - 1);
                assert!(evictions(&bench, "train").is_empty(), "{case}");
            }
            None => pass(&mut bench, 60),
        }
        bench.run();
        let expected: &[Reason] = if evicted_after_seconds.is_some() {
            &[Reason::DeviceFault]
        } else {
            &[]
        };
        assert_eq!(evictions(&bench, "train"), expected, "{case}");
    }
}

/// The claim of a failed pod is soon gone, and what it held is not known any more.
#[test]
fn where_a_rank_has_died_beside_a_fault_the_others_are_not_waited_for() {
    let retire = Some((keys::TAINT_FAULT, "Retire"));
    // What GPU it holds is known only while its claim is there; GPU 0 has the fault.
    for (fault, held, mode, at_once, counted) in [
        (RESET, None, Mode::Enforce, true, 0),
        (RESET, Some(1), Mode::Enforce, false, 1),
        (retire, None, Mode::Enforce, false, 1),
        (None, None, Mode::Enforce, false, 1),
        (RESET, None, Mode::Observe, false, 0),
    ] {
        let mut bench = Bench::with(Config {
            recovery: Recovery {
                mode,
                ..config().recovery
            },
            ..config()
        });
        bench.gang("pair", 2);
        bench.run();
        let nodes = ["pair-0", "pair-1"].map(|pod| (pod, node_of(&bench, pod)));
        for (pod, node) in &nodes {
            bench.runs_on(pod, node);
        }
        if let Some(gpu) = held {
            allocate(&mut bench, "pair-1", &nodes[1].1, gpu);
        }
        bench.run();
        bench.change_pod("pair-1", |pod| {
            pod.status.as_mut().unwrap().phase = Some("Failed".to_owned());
        });
        let slice = tainted(&bench, &(nodes[1].1.clone(), 0), fault);
        bench.server.put(slice);
        pass(&mut bench, 50);
        let found = evictions(&bench, "pair");
        let expected: &[Reason] = if at_once { &[Reason::PodFailed] } else { &[] };
        assert_eq!(found, expected, "{fault:?} {held:?} {mode:?}");
        pass(&mut bench, 20);
        assert_eq!(evictions(&bench, "pair"), [Reason::PodFailed]);
        let found = status_of(&bench, "pair").failed_attempts;
        assert_eq!(found, counted, "{fault:?} {held:?} {mode:?}");
    }
}

#[test]
fn who_only_observes_is_told_what_would_be_done_and_ends_nothing() {
    let observing = Config {
        recovery: Recovery::default(),
        ..config()
    };
    assert_eq!(observing.recovery.mode, Mode::Observe, "what ships");
    let mut bench = running_with(observing, &["train"], 2);
    bench.written.clear();
    taint(&mut bench, "train-0", RESET);
    pass(&mut bench, 100);
    assert!(evictions(&bench, "train").is_empty());
    assert!(!bench.written.iter().any(|it| evicts(it) || reads_slice(it)));
    let degraded = degraded(&bench, "train");
    assert!(degraded.starts_with("DeviceFault: rank 0"), "{degraded}");
    assert!(degraded.contains("only observes"), "{degraded}");
    taint(&mut bench, "train-0", None);
    pass(&mut bench, 5);
    assert_eq!(self::degraded(&bench, "train"), "");
}

#[test]
fn s18_a_fault_that_the_store_does_not_show_costs_nobody_anything() {
    let mut bench = running(&["train"]);
    // What the watch tells is from before: the store has no such taint any more.
    let device = device_of(&bench, "train-0");
    let mut stale = tainted(&bench, &device, RESET);
    if let Object::ResourceSlice(slice) = &mut stale {
        Arc::make_mut(slice).metadata.resource_version = Some("1000000".to_owned());
    }
    bench.machine.observe(Change::Applied(stale));
    bench.written.clear();
    pass(&mut bench, 100);
    assert!(evictions(&bench, "train").is_empty());
    let reads = bench.written.iter().filter(|it| reads_slice(it)).count();
    assert!((2..=8).contains(&reads), "{reads} reads in 100 s");
}

#[test]
fn s18_without_an_answer_nothing_is_ended() {
    let mut bench = running(&["train"]);
    taint(&mut bench, "train-0", RESET);
    for _ in 0..100 {
        for effect in bench.poll() {
            if reads_slice(&effect.write) {
                bench.machine.settle(effect.id, Outcome::Unknown);
            } else {
                bench.perform(&effect);
            }
        }
        bench.seconds += 1;
    }
    assert!(evictions(&bench, "train").is_empty());
    bench.run();
    pass(&mut bench, 40);
    assert_eq!(evictions(&bench, "train"), [Reason::DeviceFault]);
}

#[test]
fn s10_a_gang_that_was_evicted_for_a_fault_is_not_evicted_for_it_again() {
    let mut bench = running(&["train"]);
    let (node, gpu) = device_of(&bench, "train-0");
    let other = if node == "n0" { "n1" } else { "n0" };
    for (kind, name) in [
        (Kind::Node, other.to_owned()),
        (Kind::ResourceSlice, format!("{other}-gpus")),
    ] {
        let namespace = String::new();
        bench.server.remove(&ObjectKey {
            kind,
            namespace,
            name,
        });
    }
    taint(&mut bench, "train-0", RESET);
    bench.run();
    assert_eq!(evictions(&bench, "train"), [Reason::DeviceFault]);
    bench.server.remove(&pod_key("train-0"));
    bench.pod("train", 0, 1, keys::DEVICE_CLASS_GPU);
    bench.run();
    assert_eq!(status_of(&bench, "train").phase, GangPhase::Admitted);
    // It is given the very device that it had.
    allocate(&mut bench, "train-0", &node, gpu);
    bench.runs_on("train-0", &node);
    pass(&mut bench, 60);
    assert_eq!(evictions(&bench, "train"), [Reason::DeviceFault]);
    let degraded = degraded(&bench, "train");
    assert!(degraded.contains("for that fault already"), "{degraded}");
}

#[test]
fn s10_a_leader_that_dies_before_or_after_the_intent_leaves_one_eviction() {
    for is_written in [false, true] {
        let mut bench = running(&["train"]);
        taint(&mut bench, "train-0", RESET);
        let mut is_committed = false;
        for _ in 0..20 {
            let effects = bench.poll();
            is_committed = effects.iter().any(|effect| evicts(&effect.write));
            for effect in &effects {
                if is_written || !evicts(&effect.write) {
                    bench.perform(effect);
                }
            }
            if is_committed {
                break;
            }
        }
        assert!(is_committed, "it is committed without a second passing");
        let intents = bench.server.ledger().unwrap().spec.intents;
        assert_eq!(intents.len(), usize::from(is_written));
        bench.take_over();
        bench.run();
        assert_eq!(evictions(&bench, "train"), [Reason::DeviceFault]);
        let fault = status_of(&bench, "train").evictions.remove(0).fault;
        assert_eq!(fault.unwrap().kind, "Reset");
        assert_eq!(breaker(&bench).drained.len(), 1);
    }
}

/// The rank that had the GPU dies right after the intent: its claim loses what it was allocated, and then there is no fault of anything that the gang holds.
#[test]
fn s10_which_fault_it_was_outlives_the_claim_and_the_leader_that_saw_it() {
    for takes_over in [false, true] {
        let mut bench = running(&["train"]);
        let (node, gpu) = device_of(&bench, "train-0");
        taint(&mut bench, "train-0", RESET);
        let mut is_committed = false;
        for _ in 0..20 {
            let effects = bench.poll();
            is_committed = effects.iter().any(|effect| evicts(&effect.write));
            for effect in &effects {
                bench.perform(effect);
            }
            if is_committed {
                break;
            }
        }
        assert!(is_committed, "it is committed without a second passing");
        assert!(evictions(&bench, "train").is_empty(), "not raised yet");
        let Object::ResourceClaim(freed) = claim("train-0", keys::DEVICE_CLASS_GPU) else {
            panic!("a claim");
        };
        assert!(freed.status.is_none(), "allocated nothing");
        bench.server.put(Object::ResourceClaim(freed));
        if takes_over {
            bench.take_over();
        }
        bench.run();
        let case = format!("takes over: {takes_over}");
        let evictions = status_of(&bench, "train").evictions;
        assert_eq!(evictions.len(), 1, "{case}");
        assert_eq!(evictions[0].reason, Reason::DeviceFault, "{case}");
        let fault = evictions[0].fault.as_ref().expect(&case);
        assert_eq!(fault.device, format!("{}/{node}/gpu-{gpu}", keys::DRIVER));
        assert_eq!(fault.kind, "Reset", "{case}");
        assert_eq!(fault.since.0.as_second(), 1_800_000_000, "{case}");
        assert_eq!(evictions[0].node.as_deref(), Some(&*node), "{case}");
    }
}

/// Three nodes, on each of which a GPU has a fault: one more than may be evacuated.
fn with_three_faults() -> (Bench, Vec<String>) {
    let gangs = ["a", "b", "c", "d", "e", "f"];
    let mut bench = running_with(config(), &gangs, 3);
    let mut sick: BTreeMap<String, String> = BTreeMap::new();
    for gang in gangs {
        let (node, _) = device_of(&bench, &format!("{gang}-0"));
        sick.entry(node).or_insert_with(|| gang.to_owned());
    }
    let sick: Vec<String> = sick.into_values().collect();
    assert_eq!(sick.len(), 3, "they run on three nodes");
    bench.written.clear();
    for gang in &sick {
        taint(&mut bench, &format!("{gang}-0"), RESET);
    }
    (bench, sick)
}

#[test]
fn s9_faults_on_too_many_nodes_open_the_breaker_and_end_nothing_whoever_leads() {
    let (mut bench, sick) = with_three_faults();
    bench.run();
    assert!(!bench.written.iter().any(evicts));
    assert!(bench.machine.breaker().is_open);
    let record = breaker(&bench);
    assert!(record.opened_at.is_some() && record.drained.is_empty());
    let message = record.message.unwrap();
    assert!(message.contains("3 of 3 nodes"), "{message}");
    pass(&mut bench, 5);
    for gang in &sick {
        let degraded = degraded(&bench, gang);
        assert!(degraded.contains("circuit breaker"), "{degraded}");
    }
    bench.take_over();
    pass(&mut bench, 1_000);
    assert!(!bench.written.iter().any(evicts), "no time closes it");
    assert!(bench.machine.breaker().is_open);
}

/// Whatever is owed is done, but for that for which `held` holds, which is returned.
fn owed(bench: &mut Bench, held: impl Fn(&ApiRequest) -> bool) -> Vec<Effect> {
    let mut kept = Vec::new();
    for _ in 0..10 {
        for effect in bench.poll() {
            if held(&effect.write) {
                kept.push(effect);
            } else {
                bench.perform(&effect);
            }
        }
    }
    kept
}

/// Whatever is owed is done, but for reads of slices, which are returned.
fn owed_reads(bench: &mut Bench) -> Vec<Effect> {
    owed(bench, reads_slice)
}

#[test]
fn s9_while_the_store_is_asked_about_one_node_too_many_nobody_is_evicted_for_the_others() {
    let (mut bench, sick) = with_three_faults();
    let mut asked = owed_reads(&mut bench);
    assert_eq!(asked.len(), 3);
    let last = asked.pop().unwrap();
    for read in &asked {
        bench.perform(read);
    }
    assert!(owed_reads(&mut bench).is_empty(), "each is asked once");
    assert!(!bench.written.iter().any(evicts), "an answer is awaited");
    assert!(!bench.machine.breaker().is_open);
    // The store knows nothing of the third: as many as may be have a fault.
    bench.machine.settle(last.id, Outcome::NotFound);
    bench.run_at_once();
    assert!(bench.written.iter().any(evicts));
    assert_eq!(breaker(&bench).drained.len(), 2, "of {sick:?}");
    assert!(!bench.machine.breaker().is_open);
}

#[test]
fn whoever_has_a_fault_for_certain_waits_once_for_an_answer_that_never_comes() {
    let (mut bench, _) = with_three_faults();
    let mut asked = owed_reads(&mut bench);
    let last = asked.pop().unwrap();
    for read in &asked {
        bench.perform(read);
    }
    assert!(owed_reads(&mut bench).is_empty());
    assert!(!bench.written.iter().any(evicts));
    // It is asked again at once, and not answered either.
    bench.seconds += 10;
    bench.machine.settle(last.id, Outcome::Unknown);
    assert_eq!(owed_reads(&mut bench).len(), 1);
    assert!(bench.written.iter().any(evicts));
    assert!(!bench.machine.breaker().is_open);
}

#[test]
fn s9_once_a_person_closed_the_breaker_what_is_left_is_evicted_and_counted() {
    let (mut bench, sick) = with_three_faults();
    bench.run();
    taint(&mut bench, &format!("{}-0", sick[0]), None);
    let mut ledger = bench.server.ledger().unwrap();
    ledger.spec.breaker = Breaker::default();
    bench.server.put(Object::Ledger(Arc::new(ledger)));
    bench.run();
    pass(&mut bench, 40);
    assert!(evictions(&bench, &sick[0]).is_empty());
    for gang in &sick[1..] {
        assert_eq!(evictions(&bench, gang), [Reason::DeviceFault], "{gang}");
    }
    assert_eq!(bench.machine.breaker().evacuated_nodes, 2);
    assert!(!bench.machine.breaker().is_open);
    // A third one within the window is one too many, and after it is not.
    taint(&mut bench, &format!("{}-0", sick[0]), RESET);
    pass(&mut bench, 40);
    assert!(bench.machine.breaker().is_open);
    assert!(evictions(&bench, &sick[0]).is_empty());
}

#[test]
fn s9_after_the_window_a_node_counts_no_more() {
    let (mut bench, sick) = with_three_faults();
    taint(&mut bench, &format!("{}-0", sick[2]), None);
    bench.run();
    assert_eq!(bench.machine.breaker().evacuated_nodes, 2);
    pass(&mut bench, 601);
    assert_eq!(bench.machine.breaker().evacuated_nodes, 0);
    taint(&mut bench, &format!("{}-0", sick[2]), RESET);
    pass(&mut bench, 5);
    assert_eq!(evictions(&bench, &sick[2]), [Reason::DeviceFault]);
    assert_eq!(breaker(&bench).drained.len(), 1, "the others are left out");
}

/// What a gang tells of its progress, and how long that may stay, its user says: who has many that stand still ends no recovery of others.
#[test]
fn s9_gangs_that_make_no_progress_wait_beyond_as_many_nodes_as_may_be_and_open_no_breaker() {
    let gangs = ["a", "b", "c", "d", "e", "f"];
    let declared = [
        (keys::PROGRESS_DEADLINE_SECONDS, "60"),
        (keys::PROGRESS, "step 1"),
    ];
    let mut bench = running_declaring(config(), &gangs, 3, &declared);
    pass(&mut bench, 130);
    let (gone, left): (Vec<&str>, Vec<&str>) = gangs
        .into_iter()
        .partition(|gang| !evictions(&bench, gang).is_empty());
    assert_eq!((gone.len(), left.len()), (4, 2), "{gone:?}");
    for gang in &gone {
        assert_eq!(evictions(&bench, gang), [Reason::NoProgress], "{gang}");
    }
    let record = breaker(&bench);
    assert_eq!((record.stalled.len(), record.drained.len()), (2, 0));
    assert!(!bench.machine.breaker().is_open);
    let told = degraded(&bench, left[1]);
    assert!(told.contains("it waits"), "{told}");
    // A fault costs whoever holds the device its attempt, as ever.
    taint(&mut bench, &format!("{}-0", left[0]), RESET);
    pass(&mut bench, 5);
    assert_eq!(evictions(&bench, left[0]), [Reason::DeviceFault]);
    assert!(!bench.machine.breaker().is_open);
    pass(&mut bench, 400);
    assert!(evictions(&bench, left[1]).is_empty());
    pass(&mut bench, 200);
    assert_eq!(evictions(&bench, left[1]), [Reason::NoProgress]);
    assert_eq!(breaker(&bench).stalled.len(), 1, "the others are left out");
}

/// Hours later a new leader would count it for another window, and the next fault might open the breaker.
#[test]
fn what_counts_no_more_leaves_the_record_with_the_next_write_and_is_not_counted_by_the_next_leader()
{
    let mut bench = running(&["sick", "well"]);
    taint(&mut bench, "sick-0", RESET);
    bench.run();
    assert_eq!(breaker(&bench).drained.len(), 1);
    pass(&mut bench, 601);
    bench.written.clear();
    pass(&mut bench, 5);
    let writes_ledger = |write: &&ApiRequest| matches!(write, ApiRequest::ReplaceLedger { .. });
    let writes = bench.written.iter().filter(writes_ledger).count();
    assert_eq!(writes, 0, "it is no reason to write");
    bench.gang("late", 1);
    bench.run();
    assert!(bench.written.iter().any(|it| writes_ledger(&it)), "late");
    assert_eq!(breaker(&bench), Breaker::default());
    bench.take_over();
    bench.run();
    assert_eq!(bench.machine.breaker().evacuated_nodes, 0);
}

fn without_breaker(object: &mut Object) {
    if let Object::Ledger(ledger) = object {
        Arc::make_mut(ledger).spec.breaker = Breaker::default();
    }
}

/// An older definition of the Ledger drops what is recorded of the breaker. Then nobody could say how many nodes were evacuated.
#[test]
fn s9_where_the_api_server_drops_what_was_evacuated_no_more_nodes_are() {
    let (mut bench, sick) = with_three_faults();
    for gang in &sick[1..] {
        taint(&mut bench, &format!("{gang}-0"), None);
    }
    bench.server.prunes = Some(without_breaker);
    bench.run();
    assert_eq!(evictions(&bench, &sick[0]), [Reason::DeviceFault]);
    for gang in &sick[1..] {
        taint(&mut bench, &format!("{gang}-0"), RESET);
        pass(&mut bench, 40);
        assert!(evictions(&bench, gang).is_empty(), "{gang}");
        let told = degraded(&bench, gang);
        assert!(told.contains("definition of the Ledger"), "{told}");
    }
    bench.server.prunes = None;
    bench.take_over();
    bench.run();
    pass(&mut bench, 40);
    for gang in &sick[1..] {
        assert_eq!(evictions(&bench, gang), [Reason::DeviceFault], "{gang}");
    }
}

/// Their storage is away, say. No more than 16 pods are read at a time, and each gang has its turn by an answer.
#[test]
fn of_many_gangs_that_make_no_progress_at_once_each_is_asked_for_in_turn() {
    let names: Vec<String> = (0..18).map(|gang| format!("g{gang:02}")).collect();
    let gangs: Vec<&str> = names.iter().map(String::as_str).collect();
    let declared = [
        (keys::PROGRESS_DEADLINE_SECONDS, "60"),
        (keys::PROGRESS, "step 1"),
    ];
    let all_at_once = Config {
        recovery: Recovery {
            breaker: BreakerLimits {
                share_percent: 100,
                ..BreakerLimits::SHIPPED
            },
            ..config().recovery
        },
        ..config()
    };
    let mut bench = running_declaring(all_at_once, &gangs, 9, &declared);
    bench.written.clear();
    bench.seconds += 130;
    bench.run_at_once();
    let reads = bench
        .written
        .iter()
        .filter(|write| matches!(write, ApiRequest::ReadObject { key } if key.kind == Kind::Pod));
    assert_eq!(reads.count(), 18, "each once, without a second passing");
    for gang in gangs {
        assert_eq!(evictions(&bench, gang), [Reason::NoProgress], "{gang}");
    }
}
