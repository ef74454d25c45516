//! New rules cost the gang that brings them, and nobody else.

use std::{cell::Cell, time::Duration};

use muster_api::Reason;
use muster_engine::{Node, Timestamp, Update};
use serde_json::{Value, json};

use crate::{
    formed::FormedGang,
    index::{
        Index, NamespacedName,
        judging::{OWN_SELECTORS, OWN_SELECTORS_PER_USER},
        rollout::NODES_PER_REFRESH,
    },
    judgement::JudgementRequest,
    object::Kind,
    selectors::Selectors,
    shares::RULES_PER_NAMESPACE,
    testing::{
        claim, gone, index_with, is, namespace, node, node_devices, pod, settle, slice, with,
    },
};

fn gang<'a>(index: &'a Index, pod: &str) -> &'a FormedGang {
    let key = index.gang_of_pod(&NamespacedName::new("ml", pod)).unwrap();
    index.formed_gang(key).unwrap()
}

fn selecting(of_pod: &str, expression: &str) -> Value {
    with(
        claim(of_pod, 1),
        "/spec/devices/requests/0/exactly/selectors",
        json!([{"cel": {"expression": expression}}]),
    )
}

fn told_nodes(index: &mut Index) -> Vec<Node> {
    let updates = index.engine_updates(Timestamp(0)).into_iter();
    let nodes = updates.filter_map(|update| match update {
        Update::Node(node) => Some(node),
        _ => None,
    });
    nodes.collect()
}

#[test]
fn a_request_may_be_judged_on_any_thread() {
    fn is_sent<T: Send + 'static>() {}
    is_sent::<JudgementRequest>();
}

/// Judges what is asked for, without a limit of time, until nothing is. Returns how many requests that took.
fn judge_all(index: &mut Index) -> usize {
    let mut requests = 0;
    loop {
        settle(index);
        let Some(request) = index.take_judgements(1).pop() else {
            return requests;
        };
        requests += 1;
        index.give_judgements([request.judge(&|| Duration::ZERO)]);
    }
}

fn wait(index: &mut Index, pod: &str) -> Option<String> {
    settle(index);
    gang(index, pod).wait.clone().map(|wait| wait.details)
}

#[test]
fn a_new_selector_is_judged_apart_and_holds_up_only_the_gang_that_uses_it() {
    let mut index = index_with([pod("old", 5), claim("old", 1)]);
    assert_eq!(gang(&index, "old").wait, None);
    index.engine_updates(Timestamp(0));
    index.judge_apart();

    let expression = "device.attributes['gpu.muster.dev'].productName.startsWith('NVIDIA')";
    index.observe(is(pod("new", 6)));
    index.observe(is(selecting("new", expression)));
    settle(&mut index);
    let requests = index.take_judgements(8);
    assert_eq!(requests.len(), 1);
    assert!(
        index.take_judgements(8).is_empty(),
        "each is handed out once"
    );
    let waiting = gang(&index, "new");
    assert_eq!(
        waiting.wait.as_ref().map(|wait| wait.reason),
        Some(Reason::WaitingForPlacement)
    );
    assert_eq!(gang(&index, "old").wait, None);
    assert!(
        told_nodes(&mut index).is_empty(),
        "no node is touched meanwhile"
    );

    // It is compiled first, and that is a request of its own.
    let compiled = requests[0].judge(&|| Duration::ZERO);
    index.give_judgements([compiled.clone()]);
    let requests = index.take_judgements(8);
    // Two GPUs of each of two nodes, all of one kind.
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].subjects(), 1, "once for each kind of device");
    let judged = requests[0].judge(&|| Duration::ZERO);
    index.give_judgements([judged.clone()]);
    settle(&mut index);
    assert_eq!(gang(&index, "new").wait, None);
    let selector = gang(&index, "new").pods[0].request.as_ref().unwrap().claims[0].requests[0]
        .choices[0]
        .selector;
    let told = told_nodes(&mut index);
    assert_eq!(told.len(), 2);
    let devices = told.iter().flat_map(|node| &node.devices);
    assert!(
        devices
            .into_iter()
            .all(|device| device.selectors.contains(&selector))
    );

    index.give_judgements([compiled, judged]);
    assert!(
        index.refresh(Timestamp(0)).is_empty(),
        "an answer that comes twice changes nothing"
    );
}

#[test]
fn an_answer_about_a_claim_that_is_gone_changes_nothing() {
    let mut index = index_with([]);
    index.judge_apart();
    index.observe(is(pod("late", 6)));
    index.observe(is(selecting("late", "device.driver.startsWith('gpu')")));
    settle(&mut index);
    let requests = index.take_judgements(8);
    assert_eq!(requests.len(), 2, "its selector, and its rules about nodes");
    index.observe(gone(Kind::Pod, "ml", "late"));
    index.observe(gone(Kind::ResourceClaim, "ml", "late-gpus"));
    settle(&mut index);
    index.engine_updates(Timestamp(0));
    index.refresh(Timestamp(0));
    index.give_judgements(
        requests
            .iter()
            .map(|request| request.judge(&|| Duration::ZERO)),
    );
    assert!(index.refresh(Timestamp(0)).is_empty());
    assert!(index.take_judgements(8).is_empty(), "and nothing is left");
    assert_eq!(
        index.selectors.len(),
        1,
        "that of the class, for pods that ask for it by limits"
    );
}

#[test]
fn a_selector_of_one_namespace_waits_for_no_more_than_one_request_of_each_other() {
    let mut objects = Vec::new();
    for number in 0..RULES_PER_NAMESPACE {
        let name = format!("p{number:03}");
        let mut claim = selecting(&name, &format!("device.driver != 'd{number}'"));
        claim["metadata"]["namespace"] = json!("flood");
        objects.push(claim);
    }
    let mut modest = selecting("modest", "device.driver == 'gpu.muster.dev' && true");
    modest["metadata"]["namespace"] = json!("ml");
    let mut index = index_with([]);
    index.judge_apart();
    for claim in objects {
        index.observe(is(claim));
    }
    settle(&mut index);
    index.take_judgements(1);
    index.observe(is(pod("modest", 5)));
    index.observe(is(modest));
    settle(&mut index);
    // Compiling, judging, and nodes have nothing to be judged for: two requests of its own, two of the flood's.
    let mut taken = 0;
    while wait(&mut index, "modest").is_some() {
        let requests = index.take_judgements(1);
        taken += requests.len();
        index.give_judgements(
            requests
                .iter()
                .map(|request| request.judge(&|| Duration::ZERO)),
        );
        assert!(taken <= 8, "it waits behind the others");
    }
}

#[test]
fn a_selector_that_takes_longer_than_a_second_is_given_up_with_the_numbers_and_tried_again_later() {
    let mut index = index_with((0..40).map(|number| slice(&format!("n{number}"), 8)));
    index.judge_apart();
    let expression = "device.attributes['gpu.muster.dev'].uuid != 'x'";
    index.observe(is(pod("slow", 6)));
    index.observe(is(selecting("slow", expression)));
    settle(&mut index);
    // Each device takes 10 ms: a request is judged for a slice of 20 ms, and then others have their turn.
    let mut requests = 0;
    while gang(&index, "slow")
        .wait
        .as_ref()
        .is_none_or(|wait| wait.reason != Reason::RequestNotUnderstood)
    {
        let request = index
            .take_judgements(1)
            .pop()
            .expect("it is judged further");
        let calls = Cell::new(0_u64);
        let elapsed = || {
            calls.set(calls.get() + 1);
            Duration::from_millis(10 * calls.get())
        };
        index.give_judgements([request.judge(&elapsed)]);
        settle(&mut index);
        requests += 1;
        assert!(requests < 200, "it ends");
    }
    assert!(requests > 30, "in slices: {requests}");
    let told = wait(&mut index, "slow").unwrap();
    assert!(
        told.contains("of 324 devices took 1.0 s, and with all it may take 1 s"),
        "{told}"
    );
    assert!(
        told.contains("attributes that many devices have in common"),
        "{told}"
    );
    assert!(index.take_judgements(8).is_empty());

    assert_eq!(index.next_due(), Some(Timestamp(600)));
    index.refresh(Timestamp(600));
    // Compiled, and judged; and its pod's rules about nodes, which nobody used meanwhile, for all nodes and for no more.
    assert_eq!(judge_all(&mut index), 4);
    assert_eq!(wait(&mut index, "slow"), None);
}

#[test]
fn rules_about_nodes_are_judged_apart_and_for_nodes_that_change_meanwhile_too() {
    let mut index = index_with([]);
    index.judge_apart();
    index.observe(is(with(
        pod("solo", 5),
        "/spec/nodeSelector",
        json!({"example.com/leaf": "l1"}),
    )));
    index.observe(is(claim("solo", 1)));
    settle(&mut index);
    index.engine_updates(Timestamp(0));
    let requests = index.take_judgements(8);
    let judged: Vec<_> = requests
        .iter()
        .map(|request| request.judge(&|| Duration::ZERO))
        .collect();
    // `a` passed and does not any more; `c` was not there.
    let moved = with(
        node("a", "s1", "l2"),
        "/metadata/resourceVersion",
        json!("9"),
    );
    index.observe(is(moved));
    index.observe(is(node("c", "s1", "l1")));
    index.give_judgements(judged);
    judge_all(&mut index);
    assert_eq!(wait(&mut index, "solo"), None);
    let filter = gang(&index, "solo").pods[0]
        .request
        .as_ref()
        .unwrap()
        .filter;
    let passing: Vec<&str> = ["a", "b", "c"]
        .into_iter()
        .filter(|name| {
            let node = index.engine_node(name);
            node.is_some_and(|node| node.filters.contains(&filter))
        })
        .collect();
    assert_eq!(passing, ["b", "c"]);
}

/// The last request is about no node at all: it finds that nothing is left.
#[test]
fn a_node_that_comes_while_any_of_the_requests_is_judged_passes_the_rules_too() {
    for during in 0..3 {
        let mut index = index_with([]);
        index.judge_apart();
        index.observe(is(with(
            pod("solo", 5),
            "/spec/nodeSelector",
            json!({"example.com/leaf": "l1"}),
        )));
        index.observe(is(claim("solo", 1)));
        settle(&mut index);
        index.engine_updates(Timestamp(0));
        for request in 0.. {
            let requests = index.take_judgements(1);
            if request == during {
                index.observe(is(node("z", "s1", "l1")));
                settle(&mut index);
            }
            let Some(request) = requests.first() else {
                assert!(request >= during, "a node comes during {during}");
                break;
            };
            index.give_judgements([request.judge(&|| Duration::ZERO)]);
            settle(&mut index);
        }
        judge_all(&mut index);
        assert_eq!(wait(&mut index, "solo"), None);
        let request = gang(&index, "solo").pods[0].request.as_ref();
        let filter = request.expect("understood").filter;
        let node = index.engine_node("z").expect("known");
        assert!(node.filters.contains(&filter), "during request {during}");
    }
}

#[test]
fn a_device_that_appears_later_is_judged_for_the_selectors_that_are_known_and_nobody_waits() {
    let expression = "device.attributes['gpu.muster.dev'].productName.startsWith('NVIDIA')";
    let mut index = index_with([pod("solo", 5), selecting("solo", expression)]);
    index.judge_apart();
    index.engine_updates(Timestamp(0));
    let other = with(
        slice("c", 1),
        "/spec/devices/0/attributes/numaNode",
        json!({"int": 7}),
    );
    for object in [node("c", "s1", "l1"), node_devices("c"), other] {
        index.observe(is(object));
    }
    settle(&mut index);
    assert_eq!(gang(&index, "solo").wait, None, "its selector is known");
    let selector = gang(&index, "solo").pods[0]
        .request
        .as_ref()
        .unwrap()
        .claims[0]
        .requests[0]
        .choices[0]
        .selector;
    let matches = |index: &Index| {
        let node = index.engine_node("c").unwrap();
        node.devices[0].selectors.contains(&selector)
    };
    assert!(!matches(&index), "it is not judged yet");
    judge_all(&mut index);
    assert!(matches(&index));
}

/// The nodes are told about a selector that was judged for all that there was; in that very round a device appears for which it
/// was not.
#[test]
fn a_device_that_appears_while_nodes_are_told_about_a_selector_is_judged_for_it_too() {
    let mut index = index_with([node("c", "s1", "l1"), node_devices("c")]);
    index.judge_apart();
    index.engine_updates(Timestamp(0));
    let expression = "device.attributes['gpu.muster.dev'].productName.startsWith('NVIDIA')";
    index.observe(is(pod("solo", 5)));
    index.observe(is(selecting("solo", expression)));
    index.refresh(Timestamp(0));
    while let Some(request) = index.take_judgements(1).pop() {
        index.give_judgements([request.judge(&|| Duration::ZERO)]);
    }
    let other = with(
        slice("c", 1),
        "/spec/devices/0/attributes/numaNode",
        json!({"int": 7}),
    );
    index.observe(is(other));
    settle(&mut index);
    assert!(judge_all(&mut index) > 0);
    let gang = gang(&index, "solo");
    let selector = gang.pods[0].request.as_ref().unwrap().claims[0].requests[0].choices[0].selector;
    let devices = &index.engine_node("c").unwrap().devices;
    assert!(devices[0].selectors.contains(&selector));
}

#[test]
fn selectors_that_are_judged_for_each_device_are_few_in_each_namespace() {
    let expression =
        |number: usize| format!("device.attributes['gpu.muster.dev'].uuid == 'GPU-a-{number}'");
    let mut index = index_with([]);
    for number in 0..=OWN_SELECTORS_PER_USER {
        let name = format!("p{number}");
        index.observe(is(pod(&name, 5)));
        index.observe(is(selecting(&name, &expression(number))));
        settle(&mut index);
    }
    let last = format!("p{OWN_SELECTORS_PER_USER}");
    assert_eq!(wait(&mut index, "p0"), None);
    let told = wait(&mut index, &last).unwrap();
    assert!(
        told.contains("namespace ml uses 4 such selectors already"),
        "{told}"
    );
}

#[test]
fn selectors_that_are_judged_for_each_device_are_few_altogether() {
    let expression =
        |name: &str| format!("device.attributes['gpu.muster.dev'].uuid == 'GPU-a-{name}'");
    let told_with = |others: usize| {
        let mut index = index_with([]);
        for number in 0..others {
            let of = format!("ml-{}", number / OWN_SELECTORS_PER_USER);
            index.observe(is(namespace(&of, Some("research"))));
            let name = format!("o{number}");
            let place = |object| with(object, "/metadata/namespace", json!(of));
            index.observe(is(place(pod(&name, 5))));
            index.observe(is(place(selecting(&name, &expression(&name)))));
            settle(&mut index);
        }
        index.observe(is(pod("last", 5)));
        index.observe(is(selecting("last", &expression("last"))));
        wait(&mut index, "last")
    };
    assert_eq!(told_with(OWN_SELECTORS - 1), None);
    let told = told_with(OWN_SELECTORS).unwrap();
    assert!(
        told.contains(&format!(
            "{OWN_SELECTORS} such selectors are in use already"
        )),
        "{told}"
    );
}

#[test]
fn what_selectors_match_is_remembered_up_to_a_limit_and_the_gang_that_would_pass_it_is_told_so() {
    // Each of them matches the one kind of device that there is.
    let told_with = |most: usize| {
        let mut index = index_with([]);
        index.selectors = Selectors::remembering(most);
        let names = ["first", "second", "third"];
        for name in names {
            index.observe(is(pod(name, 5)));
            let expression = format!("device.driver.startsWith('gpu') && '{name}' != ''");
            index.observe(is(selecting(name, &expression)));
            settle(&mut index);
        }
        names.map(|name| wait(&mut index, name))
    };
    for enough in [4, 3] {
        assert_eq!(told_with(enough), [None, None, None], "{enough}");
    }
    let [first, second, third] = told_with(2);
    assert_eq!((first, second), (None, None), "they cost nobody else");
    let third = third.unwrap();
    for part in [
        "spec.devices.requests[0].exactly.selectors",
        "may match 2 kinds of devices and devices",
        "use a selector that others use too",
    ] {
        assert!(third.contains(part), "{third}");
    }
}

#[test]
fn a_selector_that_reads_the_uuid_is_judged_for_each_device() {
    let expression = "device.attributes['gpu.muster.dev'].uuid == 'GPU-a-1'";
    let mut index = index_with([pod("solo", 5), selecting("solo", expression)]);
    let selector = gang(&index, "solo").pods[0]
        .request
        .as_ref()
        .unwrap()
        .claims[0]
        .requests[0]
        .choices[0]
        .selector;
    let matching: Vec<String> = told_nodes(&mut index)
        .iter()
        .flat_map(|node| &node.devices)
        .filter(|device| device.selectors.contains(&selector))
        .map(|device| device.name.to_string())
        .collect();
    assert_eq!(matching, ["gpu.muster.dev/a/gpu-1"]);
}

#[test]
fn devices_that_differ_in_their_uuid_only_are_one_kind() {
    let index = index_with((0..50).map(|number| slice(&format!("n{number}"), 8)));
    // numaNode tells the first four of a node from the others.
    assert_eq!(index.device_kinds.len(), 2);
}

#[test]
fn an_expression_that_is_too_long_is_refused_and_one_at_the_limit_is_not() {
    let text = |bytes: usize| {
        let rest = bytes - "device.driver != ''".len();
        format!("device.driver != '{}'", "x".repeat(rest))
    };
    let index = index_with([pod("solo", 5), selecting("solo", &text(10 * 1024))]);
    assert_eq!(gang(&index, "solo").wait, None);
    let index = index_with([pod("solo", 5), selecting("solo", &text(10 * 1024 + 1))]);
    let details = gang(&index, "solo").wait.clone().unwrap().details;
    assert!(
        details.ends_with("has 10241 bytes; an expression has at most 10240"),
        "{details}"
    );
}

#[test]
fn a_new_rule_is_told_to_a_bounded_number_of_nodes_per_refresh() {
    let mut index = index_with((0..600).map(|number| node(&format!("n{number}"), "s1", "l1")));
    index.engine_updates(Timestamp(0));
    index.observe(is(with(
        pod("solo", 5),
        "/spec/nodeSelector",
        json!({"example.com/leaf": "l1"}),
    )));
    index.observe(is(claim("solo", 1)));
    let mut told = Vec::new();
    loop {
        let before = index.visits().nodes;
        let more = index.refresh(Timestamp(0)).more;
        // Besides, the two nodes with devices wait for what the new selector says of these.
        let visited = index.visits().nodes - before;
        assert!(
            visited <= u64::try_from(NODES_PER_REFRESH).unwrap() + 2,
            "{visited}"
        );
        told.push(told_nodes(&mut index).len());
        if !more && !index.has_more() {
            break;
        }
        assert!(told.len() < 20, "it ends");
    }
    assert_eq!(
        told.iter().sum::<usize>(),
        602,
        "every node that passes, once"
    );
    assert_eq!(gang(&index, "solo").wait, None);
}

/// The engine is told between two refreshes as well, and that may be the call that reaches the last node.
#[test]
fn whoever_waits_for_a_rule_is_named_once_the_last_node_knows_it_whichever_call_that_is() {
    for nodes in [20, 100, 170, 300] {
        let numbers = 0..nodes;
        let mut index = index_with(numbers.map(|number| node(&format!("n{number}"), "s1", "l1")));
        index.engine_updates(Timestamp(0));
        index.observe(is(with(
            pod("solo", 5),
            "/spec/nodeSelector",
            json!({"example.com/leaf": "l1"}),
        )));
        index.observe(is(claim("solo", 1)));
        let mut named_with = None;
        let mut calls = 0;
        while calls == 0 || index.has_more() {
            index.engine_updates(Timestamp(0));
            let named = index.refresh(Timestamp(0)).gangs;
            if named.contains(&gang(&index, "solo").key) {
                named_with = Some(gang(&index, "solo").wait.clone());
            }
            index.engine_updates(Timestamp(0));
            calls += 1;
            assert!(calls < 20, "it ends");
        }
        assert_eq!(gang(&index, "solo").wait, None);
        assert_eq!(named_with, Some(None), "{nodes} nodes");
    }
}

#[test]
fn a_driver_that_is_said_to_be_silent_leaves_its_node_to_be_derived() {
    let mut index = index_with([node("n0", "s1", "l1")]);
    index.engine_updates(Timestamp(0));
    assert!(!index.has_more());
    index.set_driver_silent("n0", true);
    assert!(index.has_more());
    index.engine_updates(Timestamp(0));
    assert!(!index.has_more());
}

#[test]
fn one_rule_more_than_its_share_waits_until_another_is_no_longer_used() {
    let name = |number: usize| format!("p{number:03}");
    let ruled = |number: usize| {
        with(
            pod(&name(number), 5),
            "/spec/nodeSelector",
            json!({"example.com/leaf": format!("l{number}")}),
        )
    };
    let objects =
        (0..=RULES_PER_NAMESPACE).flat_map(|number| [ruled(number), claim(&name(number), 1)]);
    let mut index = index_with(objects);
    let refused = |index: &Index| -> Vec<usize> {
        (0..=RULES_PER_NAMESPACE)
            .filter(|number| {
                index
                    .gang_of_pod(&NamespacedName::new("ml", name(*number)))
                    .is_some()
            })
            .filter(|number| gang(index, &name(*number)).wait.is_some())
            .collect()
    };
    let late = refused(&index);
    assert_eq!(late.len(), 1, "{late:?}");
    let details = gang(&index, &name(late[0])).wait.clone().unwrap().details;
    assert!(
        details.contains("128 different rules about nodes"),
        "{details}"
    );
    let other = usize::from(late[0] == 0);
    index.observe(gone(Kind::Pod, "ml", &name(other)));
    settle(&mut index);
    assert_eq!(refused(&index), [0_usize; 0]);
}

/// It is ours, and written whenever a gang below it starts or ends.
#[test]
fn the_status_of_a_cohort_tells_the_engine_nothing() {
    let cohort = |status: Value| {
        json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Cohort", "metadata": {"name": "all", "uid": "all"},
            "spec": {}, "status": status,
        })
    };
    let mut index = index_with([cohort(json!({}))]);
    let told = |index: &mut Index| {
        index.refresh(Timestamp(0));
        index.engine_updates(Timestamp(0)).len()
    };
    assert_ne!(told(&mut index), 0);
    index.observe(is(cohort(json!({"weightedShare": 7}))));
    assert_eq!(told(&mut index), 0);
}
