//! What a user of a namespace, or whoever has the token of one node, can do to others: nothing.

use muster_api::{Gang, GangPhase, Held};

use super::{
    evictions::change_job,
    ranks::{job, pod_of_job},
    *,
};
use crate::outward::release::HELD_AT_MOST;

fn held(claim_uid: &str, pod_uid: Option<&str>) -> Held {
    Held {
        claim_uid: claim_uid.to_owned(),
        namespace: "ml".to_owned(),
        name: "claim".to_owned(),
        pod_uid: pod_uid.map(str::to_owned),
        devices: Vec::new(),
    }
}

#[test]
fn a_node_holds_nobody_up_by_listing_a_pod_or_a_claim_that_is_none_of_its_own() {
    for invented in [
        held("no-such-claim", Some("train-0-uid")),
        held("claim-of-train-0", None),
        held("claim-of-train-0", Some("train-0-uid")),
    ] {
        let mut bench = Bench::new();
        bench.invented = vec![invented.clone()];
        bench.run();
        assert!(bench.has_permits("n0"), "it counts for that node");
        bench.gang("train", 1);
        bench.run();
        let status = bench.gang_status();
        assert_eq!(
            status.phase,
            GangPhase::Admitted,
            "{invented:?}: {:?}",
            status.queue
        );
    }
}

#[test]
fn a_node_that_lists_more_claims_than_any_driver_has_acknowledges_nothing() {
    for (count, permits) in [
        (HELD_AT_MOST, HELD_AT_MOST),
        (HELD_AT_MOST + 1, 0),
        (20_000, 0),
    ] {
        let mut bench = Bench::new();
        bench.checks_polls = false;
        bench.run();
        let names = (0..count).map(|number| held(&format!("claim-{number}"), None));
        bench.invented = names.collect();
        bench.run();
        let spec = bench.server.node_devices("n0").unwrap().spec;
        assert_eq!(spec.permits.len(), permits, "{count} listed");
    }
}

#[test]
fn whoever_writes_to_an_object_without_end_does_not_keep_the_leader_from_committing() {
    let mut bench = Bench::new();
    bench.checks_polls = false;
    bench.run();
    bench.gang("train", 1);
    bench.run_until(|write| matches!(write, ApiRequest::ReplaceNodeDevices { .. }));
    // From here on the drivers write their status whenever the controller is about to write the permits.
    bench.gang("next", 1);
    for _ in 0..60 {
        for effect in bench.poll() {
            if let ApiRequest::ReplaceNodeDevices { node, .. } = &*effect.write {
                let devices = bench.server.node_devices(node).unwrap();
                bench.server.put(Object::NodeDevices(Arc::new(devices)));
            }
            bench.perform(&effect);
        }
    }
    let committed = bench.written.iter().any(|write| match write {
        ApiRequest::ReplaceLedger { spec, .. } => spec
            .intents
            .iter()
            .any(|intent| intent.name.starts_with("group-next")),
        _ => false,
    });
    assert!(committed);
}

#[test]
fn an_attempt_that_somebody_wrote_into_a_pod_is_never_one_that_cannot_be_followed() {
    for forged in [i64::MAX.to_string(), "-1".to_owned(), i64::MIN.to_string()] {
        let mut bench = Bench::new();
        bench.gang("train", 1);
        bench.change_pod("train-0", |pod| {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(keys::ATTEMPT.to_owned(), forged.clone());
        });
        bench.run();
        let status = bench.gang_status();
        assert_eq!(
            (status.attempt, status.phase),
            (1, GangPhase::Admitted),
            "{forged}"
        );
    }
}

#[test]
fn a_reason_that_quotes_what_a_user_wrote_is_cut() {
    let mut bench = Bench::new();
    bench.gang("train", 1);
    bench.change_pod("train-0", |pod| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(
            keys::TOPOLOGY_REQUIRED.to_owned(),
            "rack\u{0}é".repeat(30_000),
        );
    });
    bench.run();
    let details = bench.gang_status().queue.unwrap().details;
    assert!(
        details.contains("rack") && details.len() <= 1_024,
        "{}",
        details.len()
    );
}

/// The webhook sees a Job when it is created. What is written into it later it does not.
#[test]
fn a_level_that_a_job_names_later_and_no_topology_has_is_named() {
    let mut bench = Bench::new();
    bench.server.put(job(2, 0));
    for index in 0..2 {
        pod_of_job(&mut bench, index);
    }
    change_job(&mut bench, |job| {
        let annotations = job.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::TOPOLOGY_REQUIRED.to_owned(), "rack".repeat(50_000));
    });
    bench.run();
    let queue = bench.gang_status().queue.unwrap();
    assert_eq!(
        queue.reason,
        muster_api::Reason::RequestNotUnderstood,
        "{}",
        queue.details
    );
    assert!(
        queue.details.contains(keys::TOPOLOGY_REQUIRED),
        "{}",
        queue.details
    );
    let gang = bench.server.list(Kind::Gang).pop().unwrap();
    let bytes = serde_json::to_vec(
        &serde_json::to_value(match gang {
            Object::Gang(gang) => Gang::clone(&gang),
            other => panic!("a Gang, not {other:?}"),
        })
        .unwrap(),
    )
    .unwrap()
    .len();
    assert!(bytes < 10_000, "a Gang of {bytes} bytes");
}

#[test]
fn what_vanished_while_the_watches_were_interrupted_is_charged_no_more() {
    let mut bench = Bench::new();
    bench.gang("train", 4);
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
    for rank in 0..4 {
        bench.server.remove(&pod_key(&format!("train-{rank}")));
    }
    for node in ["n0", "n1"] {
        let of_node = |kind| ObjectKey {
            kind,
            namespace: String::new(),
            name: node.to_owned(),
        };
        bench.server.remove(&of_node(Kind::Node));
        bench.server.remove(&of_node(Kind::NodeDevices));
    }
    for object in ["n2", "n3"]
        .into_iter()
        .flat_map(|node| node_with_gpus(node, 2))
    {
        bench.server.put(object);
    }
    bench.gang("next", 4);
    bench.server.news();
    for kind in Kind::ALL {
        let list = bench.server.list(kind);
        bench.machine.observe(Change::Listed(kind, list));
    }
    bench.run();
    let admitted = bench
        .server
        .list(Kind::Gang)
        .into_iter()
        .any(|gang| match gang {
            Object::Gang(gang) => gang.status.as_ref().unwrap().phase == GangPhase::Admitted,
            _ => false,
        });
    assert!(admitted, "the Team has its four GPUs again");
}
