use k8s_openapi::api::core::v1::{PodSpec, PodStatus};
use muster_api::{NodeDevices, NodeDevicesSpec, NodeDevicesStatus};

use super::*;

fn node_devices() -> NodeDevices {
    NodeDevices::new("node-0", NodeDevicesSpec::default())
}

fn pod(node: Option<&str>) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.namespace = Some("ml".into());
    pod.metadata.name = Some("p".into());
    pod.spec = Some(PodSpec {
        node_name: node.map(str::to_owned),
        ..PodSpec::default()
    });
    pod
}

fn version(object: &Object) -> String {
    object.metadata().resource_version.clone().unwrap()
}

#[test]
fn a_spec_raises_the_generation_and_a_status_does_not() {
    let mut api = ApiServer::default();
    api.create(node_devices()).unwrap();
    let any = Precondition::default();
    let spec = api
        .update::<NodeDevices>("", "node-0", any, |object| object.spec.leader_epoch = 1)
        .unwrap();
    let status = api
        .update::<NodeDevices>("", "node-0", any, |object| {
            object.status = Some(NodeDevicesStatus::default());
        })
        .unwrap();
    assert_eq!(spec.metadata().generation, Some(2));
    assert_eq!(status.metadata().generation, Some(2));
    assert_ne!(version(&spec), version(&status));
}

#[test]
fn a_write_that_changes_nothing_moves_no_version() {
    let mut api = ApiServer::default();
    let made = api.create(node_devices()).unwrap();
    let any = Precondition::default();
    let again = api
        .update::<NodeDevices>("", "node-0", any, |_| ())
        .unwrap();
    assert_eq!(version(&made), version(&again));
}

#[test]
fn a_write_on_an_older_version_or_another_uid_conflicts() {
    let mut api = ApiServer::default();
    let made = version(&api.create(node_devices()).unwrap());
    let old = Precondition {
        uid: None,
        resource_version: Some(&made),
    };
    let raise = |object: &mut NodeDevices| object.spec.leader_epoch += 1;
    api.update::<NodeDevices>("", "node-0", old, raise).unwrap();
    assert_eq!(
        api.update::<NodeDevices>("", "node-0", old, raise)
            .unwrap_err(),
        Failure::Conflict
    );
    assert_eq!(
        api.update::<NodeDevices>("", "node-0", Precondition::uid("other"), raise)
            .unwrap_err(),
        Failure::Conflict
    );
    assert_eq!(api.create(node_devices()).unwrap_err(), Failure::Conflict);
}

#[test]
fn a_finalizer_keeps_what_is_deleted_and_its_removal_ends_it() {
    let mut api = ApiServer::default();
    let mut object = node_devices();
    object.metadata.finalizers = Some(vec!["muster.dev/permits".into()]);
    api.create(object).unwrap();
    let any = Precondition::default();
    api.delete(&key(Kind::NodeDevices, "", "node-0"), any)
        .unwrap();
    assert!(api.get::<NodeDevices>("", "node-0").is_some());
    api.update::<NodeDevices>("", "node-0", any, |object| {
        object.metadata.finalizers = None;
    })
    .unwrap();
    assert!(api.get::<NodeDevices>("", "node-0").is_none());
}

#[test]
fn a_bound_pod_stays_until_its_kubelet_lets_go_and_an_unbound_one_does_not() {
    let any = Precondition::default();
    for (node, stays) in [(Some("node-0"), true), (None, false)] {
        let mut api = ApiServer::default();
        api.create(pod(node)).unwrap();
        api.delete(&key(Kind::Pod, "ml", "p"), any).unwrap();
        assert_eq!(api.get::<Pod>("ml", "p").is_some(), stays, "{node:?}");
        if stays {
            api.update::<Pod>("ml", "p", any, |pod| {
                pod.status = Some(PodStatus {
                    phase: Some("Failed".into()),
                    ..PodStatus::default()
                });
            })
            .unwrap();
            assert!(
                api.get::<Pod>("ml", "p").is_some(),
                "a phase deletes nothing"
            );
            api.delete_now(&key(Kind::Pod, "ml", "p"), any).unwrap();
            assert!(api.get::<Pod>("ml", "p").is_none());
        }
    }
}

#[test]
fn a_watch_tells_every_change_from_where_it_began() {
    let mut api = ApiServer::default();
    api.create(node_devices()).unwrap();
    let mut place = api.watch(Kind::NodeDevices);
    assert!(api.next_event(place).is_none());
    let any = Precondition::default();
    api.update::<NodeDevices>("", "node-0", any, |object| object.spec.enforce = true)
        .unwrap();
    api.delete(&key(Kind::NodeDevices, "", "node-0"), any)
        .unwrap();
    let mut told = Vec::new();
    while let Some(event) = api.next_event(place) {
        told.push(event.object.is_some());
        place = place.after();
    }
    assert_eq!(told, [true, false]);
}

#[test]
fn what_has_lost_all_its_owners_is_garbage() {
    let mut api = ApiServer::default();
    let owner = api.create(node_devices()).unwrap();
    let mut owned = pod(None);
    owned.metadata.owner_references = Some(vec![OwnerReference {
        uid: owner.metadata().uid.clone().unwrap(),
        ..OwnerReference::default()
    }]);
    api.create(owned).unwrap();
    assert!(api.garbage().is_empty());
    api.delete(&owner.key(), Precondition::default()).unwrap();
    assert_eq!(api.garbage(), [key(Kind::Pod, "ml", "p")]);
}
