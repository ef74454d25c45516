use std::sync::Arc;

use super::*;
use crate::scripted_api::{ScriptedApi, breaks_off, failure};

fn node(name: &str, uid: &str, conditions: &Value) -> Change {
    let node =
        json!({"metadata": {"name": name, "uid": uid}, "status": {"conditions": conditions}});
    Change::Applied(Object::Node(Arc::new(
        serde_json::from_value(node).unwrap(),
    )))
}

fn devices(name: &str, node_uid: &str, status: &Value) -> Change {
    let devices = json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "NodeDevices", "metadata": {"name": name},
        "spec": {"nodeUid": node_uid, "leaderEpoch": 1}, "status": status,
    });
    let devices = serde_json::from_value(devices).unwrap();
    Change::Applied(Object::NodeDevices(Arc::new(devices)))
}

fn fault(device: &str, class: &str, cause: &str) -> Value {
    json!({"device": device, "gpu": format!("GPU-{device}"), "class": class, "causes": [cause], "since": "2026-11-27T00:00:00Z"})
}

fn write(reported: &Reported, name: &str) -> Option<Write> {
    let table = reported.table();
    let write = table.nodes.get(name).and_then(Known::write);
    assert_eq!(table.due.contains(name), write.is_some(), "{name}");
    write
}

/// Type, whether it holds, and why.
fn told(write: &Write) -> Vec<(&str, bool, &str)> {
    let all = write.conditions.iter();
    all.map(|(kind, state, _)| (*kind, state.is_true, state.reason.as_str()))
        .collect()
}

#[test]
fn what_is_wrong_with_gpus_becomes_conditions_and_what_never_was_does_not() {
    let reported = Reported::default();
    reported.observe(&node("n", "u", &json!([])));
    reported.observe(&devices("n", "u", &json!({"faults": []})));
    assert_eq!(
        write(&reported, "n"),
        None,
        "nothing is wrong, and nothing was"
    );
    let faults = json!([
        fault("gpu-3", "Reset", "XID 48"),
        fault("gpu-1", "Link", "XID 74"),
        fault("gpu-1", "Contained", "XID 94"),
        fault("gpu-0", "Info", "throttled"),
        fault("gpu-0", "App", "XID 13"),
    ]);
    reported.observe(&devices("n", "u", &json!({ "faults": faults })));
    let first = write(&reported, "n").unwrap();
    assert_eq!(
        told(&first),
        [
            ("muster.dev/GPUAnomaly", true, "Info"),
            ("muster.dev/GPUFault", true, "Reset"),
        ]
    );
    let message = &first.conditions[1].1.message;
    assert_eq!(message, "gpu-3: Reset (XID 48); gpu-1: Link (XID 74)");
    // Once the watch shows it there is nothing to write.
    let body = body(&first, Timestamp::UNIX_EPOCH);
    let standing = &body["status"]["conditions"];
    assert_eq!(standing[1]["lastTransitionTime"], "1970-01-01T00:00:00Z");
    reported.observe(&node("n", "u", standing));
    assert_eq!(write(&reported, "n"), None);
    // Another cause is no transition.
    let worse = json!([
        fault("gpu-3", "Retire", "row remap failure"),
        fault("gpu-0", "Info", "throttled")
    ]);
    reported.observe(&devices("n", "u", &json!({ "faults": worse })));
    let second = write(&reported, "n").unwrap();
    assert_eq!(told(&second), [("muster.dev/GPUFault", true, "Retire")]);
    assert!(!second.conditions[0].2);
    // The driver says that all is over.
    reported.observe(&devices("n", "u", &json!({"faults": []})));
    let over = write(&reported, "n").unwrap();
    assert_eq!(
        told(&over),
        [
            ("muster.dev/GPUAnomaly", false, "NothingFound"),
            ("muster.dev/GPUFault", false, "NothingFound"),
        ]
    );
}

/// As drivers tell of one that NVML does not list any more, without an XID.
#[test]
fn a_gpu_that_is_lost_gives_its_node_the_condition_until_it_is_back() {
    let reported = Reported::default();
    reported.observe(&node("n", "u", &json!([])));
    let lost = json!([fault("gpu-2", "Reboot", "GPU lost")]);
    reported.observe(&devices("n", "u", &json!({ "faults": lost })));
    let first = write(&reported, "n").unwrap();
    assert_eq!(told(&first), [("muster.dev/GPUFault", true, "Reboot")]);
    assert_eq!(first.conditions[0].1.message, "gpu-2: Reboot (GPU lost)");
    let body = body(&first, Timestamp::UNIX_EPOCH);
    reported.observe(&node("n", "u", &body["status"]["conditions"]));
    assert_eq!(write(&reported, "n"), None);
    reported.observe(&devices("n", "u", &json!({"faults": []})));
    let over = write(&reported, "n").unwrap();
    assert_eq!(
        told(&over),
        [("muster.dev/GPUFault", false, "NothingFound")]
    );
}

#[test]
fn a_class_that_a_later_driver_gives_is_one_that_nobody_knows() {
    for class in FATAL.iter().chain(&ODD).chain(&NEITHER) {
        let faults = json!([fault("gpu-0", class, "XID 48")]);
        let reported = Reported::default();
        reported.observe(&node("n", "u", &json!([])));
        reported.observe(&devices("n", "u", &json!({ "faults": faults })));
        let write = write(&reported, "n");
        let reasons: Vec<&str> = write.iter().flat_map(told).map(|it| it.2).collect();
        let stands = !NEITHER.contains(class);
        let expected = Vec::from_iter(stands.then_some(*class));
        assert_eq!(reasons, expected, "{class}");
    }
    let reported = Reported::default();
    let faults = json!([fault("gpu-0", "Sinking", "XID 48")]);
    reported.observe(&node("n", "u", &json!([])));
    reported.observe(&devices("n", "u", &json!({ "faults": faults })));
    let write = write(&reported, "n").unwrap();
    assert_eq!(told(&write), [("muster.dev/GPUFault", true, "Unknown")]);
    assert_eq!(write.conditions[0].1.message, "gpu-0: Sinking (XID 48)");
}

#[test]
fn while_the_driver_is_silent_what_stands_there_is_left_alone() {
    let stands = json!([{"type": "muster.dev/GPUFault", "status": "True", "reason": "Reset", "message": "gpu-3: Reset (XID 48)"}]);
    let silent = [
        // It has never said anything, as an older one does not.
        devices("n", "u", &json!({"uid": "d", "observedGeneration": 4})),
        // It spoke about a Node that is not there any more.
        devices("n", "earlier", &json!({"faults": []})),
    ];
    for change in silent {
        let reported = Reported::default();
        reported.observe(&node("n", "u", &stands));
        assert_eq!(write(&reported, "n"), None, "no NodeDevices");
        reported.observe(&change);
        assert_eq!(write(&reported, "n"), None);
    }
    let reported = Reported::default();
    reported.observe(&node("n", "u", &stands));
    let Change::Applied(Object::NodeDevices(awaited)) = devices("n", "u", &json!({"faults": []}))
    else {
        panic!("it is one");
    };
    let mut awaited = Arc::unwrap_or_clone(awaited);
    awaited.spec.awaits_driver = true;
    reported.observe(&Change::Applied(Object::NodeDevices(Arc::new(awaited))));
    assert_eq!(write(&reported, "n"), None, "it is awaited");
    reported.observe(&devices("n", "u", &json!({"faults": []})));
    assert!(write(&reported, "n").is_some());
    // And then its object is gone.
    reported.observe(&Change::ListedKeys(Kind::NodeDevices, BTreeSet::new()));
    assert_eq!(write(&reported, "n"), None);
    reported.observe(&Change::ListedKeys(Kind::Node, BTreeSet::new()));
    assert!(reported.table().nodes.is_empty());
}

#[test]
fn a_message_is_bounded() {
    let faults: Vec<Value> = (0..64)
        .map(|number| fault(&format!("gpu-{number}"), "Retire", &"x".repeat(200)))
        .collect();
    let reported = Reported::default();
    reported.observe(&node("n", "u", &json!([])));
    reported.observe(&devices("n", "u", &json!({ "faults": faults })));
    let write = write(&reported, "n").unwrap();
    assert!(write.conditions[0].1.message.len() <= MESSAGE_BYTES);
}

#[tokio::test(start_paused = true)]
async fn a_write_names_our_conditions_and_the_uid_and_is_repeated_until_it_succeeds() {
    let api = ScriptedApi::new([
        failure(500, "not now"),
        (200, json!({"metadata": {"name": "n"}})),
    ]);
    let (keeper, reported) = Keeper::new();
    reported.observe(&node("n", "u", &json!([])));
    let faults = json!([fault("gpu-3", "Reset", "XID 48")]);
    reported.observe(&devices("n", "u", &json!({ "faults": faults })));
    let keeping = tokio::time::timeout(Duration::from_secs(20), keeper.keep(api.client()));
    assert!(keeping.await.is_err(), "it goes on");
    let asked = api.asked();
    assert_eq!(asked.len(), 2, "{asked:?}");
    for patch in asked {
        assert_eq!(patch.what, "PATCH /api/v1/nodes/n/status");
        assert!(patch.query.contains("fieldManager=muster-controller"));
        assert_eq!(patch.body["metadata"]["uid"], "u");
        let conditions = patch.body["status"]["conditions"].as_array().unwrap();
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0]["type"], "muster.dev/GPUFault");
        assert_eq!(conditions[0]["status"], "True");
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_node_that_is_gone_or_was_made_anew_the_watch_tells_and_nothing_is_repeated() {
    let anew = "Node \"n\" is invalid: metadata.uid: Invalid value: \"u\": field is immutable";
    let invalid = "Node \"n\" is invalid: status.conditions: Invalid value: \"\": no";
    for (code, message, is_repeated) in [
        (404, "nodes \"n\" not found", false),
        (409, "the object has been modified", false),
        (422, anew, false),
        (422, invalid, true),
        (500, anew, true),
    ] {
        let api = ScriptedApi::new([
            failure(code, message),
            (200, json!({"metadata": {"name": "n"}})),
        ]);
        let (keeper, reported) = Keeper::new();
        reported.observe(&node("n", "u", &json!([])));
        let faults = json!([fault("gpu-3", "Reset", "XID 48")]);
        reported.observe(&devices("n", "u", &json!({ "faults": faults })));
        let keeping = tokio::time::timeout(Duration::from_secs(20), keeper.keep(api.client()));
        assert!(keeping.await.is_err(), "it goes on");
        let asked = 1 + usize::from(is_repeated);
        assert_eq!(api.asked().len(), asked, "{code} {message}");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_writes_a_condition_and_breaks_off_takes_the_keeper_along() {
    let (keeper, reported) = Keeper::new();
    reported.observe(&node("n", "u", &json!([])));
    let faults = json!([fault("gpu-3", "Reset", "XID 48")]);
    reported.observe(&devices("n", "u", &json!({ "faults": faults })));
    let api = ScriptedApi::new([breaks_off()]);
    let keeping = tokio::spawn(keeper.keep(api.client()));
    let ended = tokio::time::timeout(Duration::from_mins(1), keeping).await;
    let broke_off = ended.is_ok_and(|ended| ended.is_err_and(|broken| broken.is_panic()));
    assert!(broke_off, "it goes on, and nobody sees to that one");
}
