use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::DeviceTaintRule;

use super::*;
use crate::{
    api_server::node_of,
    claim_controller, fixtures,
    scenario::{GangShape, NodeShape, OwnerKind, Product},
};

fn gang(gpus_per_pod: usize) -> GangShape {
    GangShape {
        gpus_per_pod,
        submitted_at: 0,
        ..GangShape::plain("g", "blue", OwnerKind::User, 1)
    }
}

/// Two nodes with two GPUs each, and ungated pods, one after the other.
fn schedule(gpus_of_pods: &[usize], pin: Option<&str>) -> ApiServer {
    schedule_beside(ApiServer::default(), gpus_of_pods, pin)
}

/// The same where an API server has other things already.
fn schedule_beside(mut api: ApiServer, gpus_of_pods: &[usize], pin: Option<&str>) -> ApiServer {
    let mut claims = Informer::new(&claim_controller::WATCHED);
    let mut scheduler = Informer::new(&WATCHED);
    for name in ["node-0", "node-1"] {
        let shape = NodeShape {
            name: name.into(),
            leaf: "leaf-0".into(),
            product: Product::H100,
            gpus: 2,
        };
        api.create(fixtures::node(&shape)).unwrap();
        api.create(fixtures::resource_slice(&shape)).unwrap();
    }
    for (number, gpus) in gpus_of_pods.iter().enumerate() {
        let mut pod = fixtures::pod(&gang(*gpus), &format!("p-{number}"), number, None);
        let spec = pod.spec.as_mut().unwrap();
        spec.scheduling_gates = None;
        spec.node_selector =
            pin.map(|node| [("kubernetes.io/hostname".to_owned(), node.to_owned())].into());
        api.create(pod).unwrap();
        catch_up(&mut claims, &api);
        for step in claim_controller::steps(claims.cache()) {
            claim_controller::perform(&mut api, &mut claims, &step, number as u64);
        }
        catch_up(&mut scheduler, &api);
        while let Some(step) = steps(scheduler.cache()).first() {
            perform(&mut api, &mut scheduler, step);
        }
    }
    api
}

fn catch_up(informer: &mut Informer, api: &ApiServer) {
    while let Some(watch) = informer.pending(api).first() {
        informer.advance(api, *watch, 100);
    }
}

fn places(api: &ApiServer) -> Vec<Option<&str>> {
    api.list::<Pod>().map(node_of).collect()
}

#[test]
fn devices_are_taken_first_fit_and_no_device_twice() {
    let api = schedule(&[1, 2, 1], None);
    let nodes = [Some("node-0"), Some("node-1"), Some("node-0")];
    assert_eq!(places(&api), nodes);
    let devices: BTreeSet<(&str, &str)> = api
        .list::<ResourceClaim>()
        .flat_map(allocated_devices)
        .collect();
    assert_eq!(devices.len(), 4);
}

#[test]
fn a_device_that_a_rule_taints_is_given_to_nobody() {
    for (device, effect, node) in [
        (Some("gpu-1"), "NoSchedule", "node-1"),
        (Some("gpu-1"), "NoExecute", "node-1"),
        (Some("gpu-1"), "None", "node-0"),
        (Some("gpu-2"), "NoSchedule", "node-0"),
        (None, "NoSchedule", "node-1"),
    ] {
        let rule = serde_json::json!({
            "metadata": {"name": "swap"},
            "spec": {
                "deviceSelector": {"driver": keys::DRIVER, "pool": "node-0", "device": device},
                "taint": {"key": "example.com/swap", "effect": effect},
            },
        });
        let rule: DeviceTaintRule = serde_json::from_value(rule).unwrap();
        let mut api = ApiServer::default();
        api.create(rule).unwrap();
        let api = schedule_beside(api, &[2], None);
        assert_eq!(places(&api), [Some(node)], "{device:?} {effect}");
    }
}

#[test]
fn a_pod_that_fits_nowhere_is_called_unschedulable_and_stays_unbound() {
    let api = schedule(&[3], None);
    assert_eq!(places(&api), [None]);
    assert!(is_marked_unschedulable(api.list::<Pod>().next().unwrap()));
}

#[test]
fn a_node_selector_is_honoured() {
    let api = schedule(&[1, 1, 1], Some("node-1"));
    assert_eq!(places(&api), [Some("node-1"), Some("node-1"), None]);
}

#[test]
fn what_was_decided_by_an_older_view_is_not_written() {
    type Change = fn(&mut Pod);

    let any = Precondition::default();
    let mut api = schedule(&[3], None);
    let mut scheduler = Informer::new(&WATCHED);
    catch_up(&mut scheduler, &api);
    let cases: [(&str, Change); 2] = [
        ("made again under its name", |pod| {
            pod.metadata.uid = Some("another".into());
        }),
        ("bound meanwhile", |pod| {
            pod.spec.as_mut().unwrap().node_name = Some("node-1".into());
        }),
    ];
    for (name, change) in cases {
        api.update::<Pod>("blue", "p-0", any, change).unwrap();
        let before = api.revision();
        let bind = Step {
            namespace: "blue".into(),
            pod: "p-0".into(),
            write: Write::Bind {
                node: "node-0".into(),
            },
        };
        perform(&mut api, &mut scheduler, &bind);
        assert_eq!(api.revision(), before, "{name}");
    }
}

#[test]
fn what_the_scheduler_assumes_it_does_not_give_away_again() {
    let mut api = schedule(&[], None);
    let mut claims = Informer::new(&claim_controller::WATCHED);
    let mut scheduler = Informer::new(&WATCHED);
    for number in 0..3 {
        let mut pod = fixtures::pod(&gang(2), &format!("p-{number}"), number, None);
        pod.spec.as_mut().unwrap().scheduling_gates = None;
        api.create(pod).unwrap();
    }
    catch_up(&mut claims, &api);
    for step in claim_controller::steps(claims.cache()) {
        claim_controller::perform(&mut api, &mut claims, &step, 1);
    }
    catch_up(&mut scheduler, &api);
    // Its watches tell it nothing from here on.
    while let Some(step) = steps(scheduler.cache()).first() {
        perform(&mut api, &mut scheduler, step);
    }
    assert_eq!(places(&api), [Some("node-0"), Some("node-1"), None]);
}

/// One pod of two that share a claim, which is allocated to `node-0`, may go to `node-1` only. Whether the other one is
/// still there.
fn share_out_of_reach(other_pod: bool) -> ApiServer {
    let mut api = schedule(&[1], Some("node-0"));
    let mut scheduler = Informer::new(&WATCHED);
    let first = api.get::<Pod>("blue", "p-0").unwrap().clone();
    let claim = claims_of(&api, &first).unwrap()[0].metadata.name.clone();
    let mut pod = fixtures::pod(&gang(1), "p-1", 1, None);
    let spec = pod.spec.as_mut().unwrap();
    spec.scheduling_gates = None;
    spec.node_selector = Some([("kubernetes.io/hostname".to_owned(), "node-1".to_owned())].into());
    for named in spec.resource_claims.iter_mut().flatten() {
        named.resource_claim_template_name = None;
        named.resource_claim_name.clone_from(&claim);
    }
    api.create(pod).unwrap();
    if !other_pod {
        let any = Precondition::default();
        let name = claim.unwrap();
        api.update::<ResourceClaim>("blue", &name, any, |claim| {
            claim.status.as_mut().unwrap().reserved_for = None;
        })
        .unwrap();
    }
    catch_up(&mut scheduler, &api);
    while let Some(step) = steps(scheduler.cache()).first() {
        perform(&mut api, &mut scheduler, step);
    }
    api
}

#[test]
fn an_allocation_out_of_reach_that_nobody_has_reserved_is_made_anew() {
    let api = share_out_of_reach(false);
    assert_eq!(places(&api), [Some("node-0"), Some("node-1")]);
    let claim = api.list::<ResourceClaim>().next().unwrap();
    assert_eq!(allocated_node(claim), Some("node-1"));
}

#[test]
fn a_claim_out_of_reach_that_another_pod_has_reserved_is_left_as_it_is() {
    let api = share_out_of_reach(true);
    assert_eq!(places(&api), [Some("node-0"), None]);
    let claim = api.list::<ResourceClaim>().next().unwrap();
    assert_eq!(allocated_node(claim), Some("node-0"));
    let pod = api.get::<Pod>("blue", "p-1").unwrap();
    assert!(!is_reserved_for(claim, pod), "it fits nowhere");
    assert!(is_marked_unschedulable(pod));
}
