//! Pods of attempts that are over and that do not die: where they are deleted by force, and where it is told what keeps them.

use k8s_openapi::api::core::v1::{Node, Taint};
use muster_api::Breaker;

use super::*;
use crate::{ForcePolicy, Mode, Recovery, objects::node_devices_object};

/// How long a pod may take to end, and how long after that it is deleted by force, in seconds.
const GRACE_SECONDS: u64 = 30;
const AFTER_SECONDS: u64 = 60;
/// Together, from when its deletion is seen.
const DUE_SECONDS: u64 = GRACE_SECONDS + AFTER_SECONDS;

fn with_policy(force_deletion: ForcePolicy) -> Config {
    Config {
        recovery: Recovery {
            force_deletion,
            ..config().recovery
        },
        ..config()
    }
}

/// The pod of a gang of one was told to end a moment ago, and does not. Returns its node.
fn hanging(config: Config, consents: bool) -> (Bench, String) {
    hanging_with(config, consents, &[])
}

/// The same, and the driver of its node lists these claims as held.
fn hanging_with(config: Config, consents: bool, held: &[&str]) -> (Bench, String) {
    let mut bench = Bench::with(config);
    bench.gang("train", 1);
    if consents {
        consent(&mut bench, "true");
    }
    bench.run();
    start(&mut bench, &["train-0"]);
    let node = bench.server.pod("train-0").unwrap().spec.unwrap().node_name;
    let node = node.unwrap();
    let held = held.iter().map(|claim| (*claim).to_owned());
    bench.holding.insert(node.clone(), held.collect());
    drain(&mut bench);
    for _ in 0..10 {
        bench.run_at_once();
        if is_deleting(&bench.server.pod("train-0").unwrap()) {
            bench.written.clear();
            return (bench, node);
        }
        bench.seconds += 1;
    }
    panic!("the pod is not deleted: {:?}", bench.gang_status());
}

fn consent(bench: &mut Bench, value: &str) {
    bench.change_pod("train-0", |pod| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::FORCE_DELETION.to_owned(), value.to_owned());
    });
}

/// Time passes, and whatever is owed is done.
fn pass(bench: &mut Bench, seconds: u64) {
    bench.run_at_once();
    for _ in 0..seconds {
        bench.seconds += 1;
        bench.run_at_once();
    }
}

fn node_object(bench: &Bench, name: &str) -> Node {
    let nodes = bench.server.list(Kind::Node).into_iter();
    let mut nodes = nodes.filter_map(|object| match object {
        Object::Node(node) => Some(Node::clone(&node)),
        _ => None,
    });
    nodes
        .find(|node| node.metadata.name.as_deref() == Some(name))
        .unwrap()
}

/// The node as its condition Ready says that.
fn with_ready(mut node: Node, ready: &str) -> Node {
    let status = node.status.as_mut().unwrap();
    let conditions = status.conditions.as_mut().unwrap();
    ready.clone_into(&mut conditions[0].status);
    node
}

fn set_ready(bench: &mut Bench, node: &str, ready: &str) {
    let node = with_ready(node_object(bench, node), ready);
    bench.server.put(Object::Node(Arc::new(node)));
}

fn set_out_of_service(bench: &mut Bench, node: &str) {
    let mut node = with_ready(node_object(bench, node), "Unknown");
    node.spec.get_or_insert_default().taints = Some(vec![Taint {
        key: "node.kubernetes.io/out-of-service".to_owned(),
        effect: "NoExecute".to_owned(),
        ..Taint::default()
    }]);
    bench.server.put(Object::Node(Arc::new(node)));
}

fn remove_node(bench: &mut Bench, node: &str) {
    bench.server.remove(&ObjectKey {
        kind: Kind::Node,
        namespace: String::new(),
        name: node.to_owned(),
    });
}

fn is_there(bench: &Bench) -> bool {
    bench.server.pod("train-0").is_some()
}

/// Why the gang waits, as its Gang says.
fn details(bench: &Bench) -> String {
    let queue = bench.gang_status().queue;
    queue.map_or_else(String::new, |queue| queue.details)
}

fn forces(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ForceDeletePod { .. })
}

fn reads(write: &ApiRequest, kind: Kind) -> bool {
    matches!(write, ApiRequest::ReadObject { key } if key.kind == kind)
}

#[test]
fn behind_a_fence_a_pod_is_deleted_by_force_in_the_second_in_which_its_limit_is_over() {
    let fences: [fn(&mut Bench, &str); 2] = [set_out_of_service, remove_node];
    for fence in fences {
        let (mut bench, node) = hanging(with_policy(ForcePolicy::Fenced), false);
        let nodes = bench.server.list(Kind::Node).len();
        fence(&mut bench, &node);
        pass(&mut bench, DUE_SECONDS - 1);
        assert!(is_there(&bench), "{}", details(&bench));
        assert!(!bench.written.iter().any(|it| reads(it, Kind::Pod)));
        pass(&mut bench, 1);
        assert!(!is_there(&bench), "{}", details(&bench));
        // The pod was read before, and then its node.
        let pod = bench.written.iter().position(|it| reads(it, Kind::Pod));
        let force = bench.written.iter().position(forces);
        let between = &bench.written[pod.unwrap()..force.unwrap()];
        // What is not there is read, and recorded by nobody.
        let is_gone = bench.server.list(Kind::Node).len() < nodes;
        let is_read = between.iter().any(|it| reads(it, Kind::Node));
        assert!(is_read || is_gone, "{between:?}");
        let told = bench.written.iter().filter_map(|write| match write {
            ApiRequest::PublishEvent(note) if note.reason == Reason::ForcedDeletion => {
                Some((note.kind.as_str(), note.warning))
            }
            _ => None,
        });
        assert!(told.eq([("Gang", true), ("Pod", true)]));
    }
}

/// The API server takes a pod away at once that is deleted with a grace period of 0, and that is what its own may be.
#[test]
fn who_gives_its_pods_no_time_to_end_has_them_told_all_the_same() {
    for (own, given) in [(Some(0), Some(1)), (Some(7), None), (None, None)] {
        let mut bench = Bench::new();
        bench.gang("train", 1);
        bench.change_pod("train-0", |pod| {
            let spec = pod.spec.as_mut().unwrap();
            spec.termination_grace_period_seconds = own;
        });
        bench.run();
        start(&mut bench, &["train-0"]);
        drain(&mut bench);
        bench.run();
        let deletions = bench.written.iter().filter_map(|write| match write {
            ApiRequest::DeletePod {
                grace_period_seconds,
                ..
            } => Some(*grace_period_seconds),
            _ => None,
        });
        assert!(deletions.eq([given]), "{own:?}");
    }
}

/// Its kubelet may register it again, with all that runs there: Kubernetes' own garbage collector waits for that as well.
#[test]
fn a_node_that_is_gone_for_a_moment_is_waited_for() {
    let (mut bench, node) = hanging(with_policy(ForcePolicy::Fenced), false);
    pass(&mut bench, DUE_SECONDS);
    let mut again = node_object(&bench, &node);
    again.metadata.uid = None;
    remove_node(&mut bench, &node);
    pass(&mut bench, 59);
    assert!(is_there(&bench), "{}", details(&bench));
    bench.server.put(Object::Node(Arc::new(again)));
    pass(&mut bench, 300);
    assert!(is_there(&bench), "{}", details(&bench));
    remove_node(&mut bench, &node);
    pass(&mut bench, 59);
    assert!(is_there(&bench), "it counts anew: {}", details(&bench));
    pass(&mut bench, 1);
    assert!(!is_there(&bench), "{}", details(&bench));
}

#[test]
fn on_a_node_that_is_ready_nothing_is_forced_and_it_is_told_what_keeps_it() {
    let (mut bench, node) = hanging(with_policy(ForcePolicy::WithConsent), true);
    pass(&mut bench, DUE_SECONDS - 1);
    assert!(!details(&bench).contains("did not die"));
    pass(&mut bench, 40);
    let details = details(&bench);
    for word in [
        format!(
            "pod train-0 on node {node} did not die within 60 s after its grace period of 30 s"
        ),
        "the node is Ready".to_owned(),
        "start the machine anew".to_owned(),
    ] {
        assert!(details.contains(&word), "{word:?} is not in {details:?}");
    }
    pass(&mut bench, 600);
    assert!(is_there(&bench));
    assert!(!bench.written.iter().any(|it| reads(it, Kind::Pod)));
    assert_eq!(bench.gang_status().queue.unwrap().reason, Reason::Evicting);
}

#[test]
fn without_a_fence_it_takes_the_word_of_both_and_a_node_that_is_not_ready() {
    use ForcePolicy::{Fenced, Never, WithConsent};
    for (policy, consents, ready, is_forced, says) in [
        (WithConsent, true, "Unknown", true, ""),
        (WithConsent, true, "False", true, ""),
        (WithConsent, false, "Unknown", false, keys::FORCE_DELETION),
        (Fenced, true, "Unknown", false, "out-of-service"),
        (Never, true, "Unknown", false, "recovery.forceDeletion"),
        (WithConsent, true, "True", false, "is Ready"),
    ] {
        let (mut bench, node) = hanging(with_policy(policy), consents);
        set_ready(&mut bench, &node, ready);
        pass(&mut bench, DUE_SECONDS - 1);
        assert!(is_there(&bench));
        pass(&mut bench, 60);
        let case = format!("{policy:?} {consents} {ready}: {}", details(&bench));
        assert_eq!(!is_there(&bench), is_forced, "{case}");
        assert!(is_forced || details(&bench).contains(says), "{case}");
    }
}

#[test]
fn by_consent_the_node_has_to_be_silent_for_as_long_as_it_takes_to_be_lost() {
    let (mut bench, node) = hanging(with_policy(ForcePolicy::WithConsent), true);
    pass(&mut bench, DUE_SECONDS);
    set_ready(&mut bench, &node, "Unknown");
    pass(&mut bench, 59);
    assert!(is_there(&bench));
    // It is heard of, and silent again before anybody looks.
    set_ready(&mut bench, &node, "True");
    set_ready(&mut bench, &node, "Unknown");
    pass(&mut bench, 59);
    assert!(is_there(&bench), "{}", details(&bench));
    pass(&mut bench, 1);
    assert!(!is_there(&bench), "{}", details(&bench));
}

#[test]
fn an_owner_consents_at_any_time_and_only_by_true() {
    let (mut bench, node) = hanging(with_policy(ForcePolicy::WithConsent), false);
    set_ready(&mut bench, &node, "Unknown");
    for value in ["yes", "True", ""] {
        consent(&mut bench, value);
        pass(&mut bench, DUE_SECONDS);
        assert!(is_there(&bench), "{value:?}");
    }
    consent(&mut bench, "true");
    pass(&mut bench, 1);
    assert!(!is_there(&bench), "{}", details(&bench));
}

#[test]
fn what_a_pod_that_was_forced_holds_stays_charged_until_its_driver_gives_it_back() {
    let policy = with_policy(ForcePolicy::WithConsent);
    let (mut bench, node) = hanging_with(policy, true, &["claim-of-train-0"]);
    set_ready(&mut bench, &node, "Unknown");
    pass(&mut bench, DUE_SECONDS);
    assert!(!is_there(&bench), "{}", details(&bench));
    pass(&mut bench, 300);
    assert!(bench.has_permits(&node), "its container may live on");
    bench.holding.clear();
    pass(&mut bench, 5);
    assert!(!bench.has_permits(&node));
}

/// Somebody deleted the object that said what it may hold, and the driver of a node that is silent does not say it either.
#[test]
fn what_no_permit_tells_of_is_forced_by_a_fence_alone() {
    let (mut bench, node) = hanging(with_policy(ForcePolicy::WithConsent), true);
    bench.silent_drivers.insert(node.clone());
    set_ready(&mut bench, &node, "Unknown");
    pass(&mut bench, 5);
    bench.server.remove(&node_devices_object(&node));
    pass(&mut bench, 2 * DUE_SECONDS);
    let devices = bench.server.node_devices(&node);
    assert!(devices.is_none_or(|it| it.spec.permits.is_empty()));
    assert!(is_there(&bench), "{}", details(&bench));
    set_out_of_service(&mut bench, &node);
    pass(&mut bench, 1);
    assert!(!is_there(&bench), "{}", details(&bench));
}

/// The nodes are as many as an outage takes, and all are silent.
#[test]
fn in_an_outage_of_many_nodes_nothing_is_forced_by_consent_and_all_that_is_fenced_is() {
    for is_fenced in [false, true] {
        let (mut bench, node) = hanging(with_policy(ForcePolicy::WithConsent), true);
        for object in node_with_gpus("n2", 2) {
            bench.server.put(object);
        }
        for name in ["n0", "n1", "n2"] {
            set_ready(&mut bench, name, "Unknown");
        }
        if is_fenced {
            set_out_of_service(&mut bench, &node);
        }
        pass(&mut bench, 2 * DUE_SECONDS);
        assert_eq!(is_there(&bench), !is_fenced, "{}", details(&bench));
        let says = details(&bench);
        let reservation = "but not while many nodes are silent at once";
        assert!(is_fenced || says.contains(reservation), "{says}");
    }
}

#[test]
fn while_recovery_only_observes_or_its_breaker_is_open_it_is_told_what_would_be_done() {
    let observing = Config {
        recovery: Recovery {
            mode: Mode::Observe,
            ..config().recovery
        },
        ..config()
    };
    for (config, opens, says) in [
        (observing, false, "recovery only observes"),
        (config(), true, "circuit breaker"),
    ] {
        let (mut bench, node) = hanging(config, false);
        if opens {
            open_breaker(&mut bench, true);
        }
        set_out_of_service(&mut bench, &node);
        pass(&mut bench, 2 * DUE_SECONDS);
        assert!(is_there(&bench));
        let details = details(&bench);
        assert!(
            details.contains("it would be deleted by force") && details.contains(says),
            "{details}"
        );
        if opens {
            open_breaker(&mut bench, false);
            pass(&mut bench, 1);
            assert!(!is_there(&bench), "a person has closed it");
        }
    }
}

fn open_breaker(bench: &mut Bench, opens: bool) {
    let mut ledger = bench.server.ledger().unwrap();
    ledger.spec.breaker = Breaker::default();
    if opens {
        let now = bench.now().wall;
        let at = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now);
        ledger.spec.breaker.opened_at = Some(at);
    }
    bench.server.put(Object::Ledger(Arc::new(ledger)));
}

/// How the API server answers a request while the pod hangs on that Node; `None`: as it would.
type Answer<'a> = &'a dyn Fn(&ApiRequest, &Node) -> Option<Outcome>;

/// What the watches show may be long over.
#[test]
fn s18_nothing_is_forced_that_the_store_does_not_confirm() {
    let (bench, _) = hanging(config(), false);
    let pod = bench.server.pod("train-0").unwrap();
    let answers: [(&str, Answer<'_>); 5] = [
        ("the node is back", &|write, node| {
            let node = with_ready(node.clone(), "True");
            let stored = Object::Node(Arc::new(node));
            reads(write, Kind::Node).then_some(Outcome::Done(Some(stored)))
        }),
        ("nobody says how the node is", &|write, _| {
            reads(write, Kind::Node).then_some(Outcome::Unknown)
        }),
        ("nobody says how the pod is", &|write, _| {
            reads(write, Kind::Pod).then_some(Outcome::Unknown)
        }),
        ("the pod is gone", &|write, _| {
            reads(write, Kind::Pod).then_some(Outcome::NotFound)
        }),
        ("the pod was written since", &|write, _| {
            let mut pod = pod.clone();
            pod.metadata.resource_version = Some("1000000".to_owned());
            let stored = Object::Pod(Arc::new(pod));
            reads(write, Kind::Pod).then_some(Outcome::Done(Some(stored)))
        }),
    ];
    for (case, answer) in answers {
        let (mut bench, node) = hanging(config(), false);
        set_out_of_service(&mut bench, &node);
        let stored = node_object(&bench, &node);
        run_answering(&mut bench, 2 * DUE_SECONDS, |write| answer(write, &stored));
        assert!(is_there(&bench), "{case}");
        assert!(!bench.written.iter().any(forces), "{case}");
        pass(&mut bench, 31);
        assert!(!is_there(&bench), "{case}: once it is asked again");
    }
}

#[test]
fn what_conflicts_or_is_never_answered_is_judged_anew_and_what_is_refused_is_told() {
    let unanswered = Outcome::Unknown;
    for (outcome, says) in [
        (Outcome::Conflict, ""),
        (unanswered, ""),
        (forbidden(), "a policy forbids it"),
    ] {
        let (mut bench, node) = hanging(config(), false);
        set_out_of_service(&mut bench, &node);
        pass(&mut bench, DUE_SECONDS - 1);
        bench.written.clear();
        let case = format!("{outcome:?}");
        run_answering(&mut bench, 100, |write| {
            forces(write).then(|| outcome.clone())
        });
        assert!(is_there(&bench), "{case}");
        let reads = bench.written.iter().filter(|it| reads(it, Kind::Pod));
        assert!((3..=5).contains(&reads.count()), "{case}");
        assert!(
            details(&bench).contains(says),
            "{case}: {}",
            details(&bench)
        );
        pass(&mut bench, 120);
        assert!(!is_there(&bench), "{case}: it is tried again");
    }
}

#[test]
fn a_new_leader_counts_anew() {
    let (mut bench, node) = hanging(config(), false);
    set_out_of_service(&mut bench, &node);
    pass(&mut bench, DUE_SECONDS - 1);
    bench.take_over();
    pass(&mut bench, DUE_SECONDS - 1);
    assert!(is_there(&bench));
    pass(&mut bench, 3);
    assert!(!is_there(&bench), "{}", details(&bench));
}

#[test]
fn what_finalizers_keep_is_forced_once_and_not_again() {
    let (mut bench, node) = hanging(config(), false);
    bench.change_pod("train-0", |pod| {
        pod.metadata.finalizers = Some(vec!["example.com/kept".to_owned()]);
    });
    set_out_of_service(&mut bench, &node);
    pass(&mut bench, 4 * DUE_SECONDS);
    assert_eq!(bench.written.iter().filter(|it| forces(it)).count(), 1);
    let pod = bench.server.pod("train-0").unwrap();
    assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(0));
}
