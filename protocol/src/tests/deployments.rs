//! Pods of Deployments, each a gang of its own, or all of them one gang.

use super::*;
use crate::objects::is_gated;

/// A pod of a ReplicaSet.
fn pod_of(bench: &mut Bench, name: &str, replica_set: &str) {
    bench.pod("serve", 0, 1, keys::DEVICE_CLASS_GPU);
    let Some(mut pod) = bench.server.pod("serve-0") else {
        panic!("a pod")
    };
    bench.server.remove(&pod_key("serve-0"));
    let metadata = json!({
        "name": name, "namespace": "ml", "creationTimestamp": "2027-01-01T00:00:00Z",
        "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": replica_set, "uid": replica_set, "controller": true,
        }],
    });
    pod.metadata = serde_json::from_value(metadata).unwrap();
    let claims = &mut pod.spec.as_mut().unwrap().resource_claims;
    claims.as_mut().unwrap()[0].resource_claim_name = Some(name.to_owned());
    bench.server.put(claim(name, keys::DEVICE_CLASS_GPU));
    bench.server.put(Object::Pod(Arc::new(pod)));
    bench.run();
}

#[test]
fn a_pod_that_waits_for_what_the_old_pod_of_its_deployment_has_is_told_so() {
    for (old, new, is_told) in [
        ("serve-5d9c7b6f4", "serve-6c8b5d4f7", true),
        ("serve-5d9c7b6f4", "other-6c8b5d4f7", false),
        // Nobody rolls out what is no Deployment.
        ("serve-a", "serve-b", false),
        // Scaled up.
        ("serve-5d9c7b6f4", "serve-5d9c7b6f4", false),
    ] {
        let mut bench = Bench::new();
        bench.server.put(team("vision", 1));
        pod_of(&mut bench, "old", old);
        assert!(!is_gated(&bench.server.pod("old").unwrap()));
        pod_of(&mut bench, "new", new);
        let gangs = bench.server.list(Kind::Gang).into_iter();
        let mut waits = gangs.filter_map(|gang| match gang {
            Object::Gang(gang) => gang.status.as_ref()?.queue.clone(),
            _ => None,
        });
        let wait = waits.next().unwrap();
        assert_eq!(wait.reason, muster_api::Reason::WaitingForQuota);
        let says = wait.details.contains("pod old of the same Deployment");
        assert_eq!(says, is_told, "{old}, {new}: {}", wait.details);
        assert_eq!(wait.details.contains("maxSurge 0"), is_told);
    }
}

#[test]
fn a_pod_that_is_one_too_many_beside_those_that_its_deployment_keeps_is_told_what_ends_them() {
    for (new, is_told) in [
        ("serve-6c8b5d4f7", true),
        ("other-6c8b5d4f7", false),
        // Nobody rolls out what is no Deployment.
        ("serve-a", false),
        // Scaled up.
        ("serve-5d9c7b6f4", false),
    ] {
        let mut bench = Bench::new();
        let old = "serve-5d9c7b6f4";
        for (rank, replica_set) in [(0, old), (1, old), (2, new)] {
            bench.pod("serve", rank, 2, keys::DEVICE_CLASS_GPU);
            let owner = json!([{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": replica_set, "uid": replica_set, "controller": true,
            }]);
            bench.change_pod(&format!("serve-{rank}"), |pod| {
                pod.metadata.owner_references = serde_json::from_value(owner).unwrap();
            });
            bench.run();
        }
        let notes = bench.written.iter().filter_map(|write| match write {
            ApiRequest::PublishEvent(note) if note.reason == muster_api::Reason::ExcessPod => {
                Some((note.name.as_str(), note.note.as_str()))
            }
            _ => None,
        });
        let notes: Vec<(&str, &str)> = notes.collect();
        let [(pod, note)] = notes.as_slice() else {
            panic!("{new}: {notes:?}")
        };
        assert_eq!(*pod, "serve-2");
        let says = ["pod serve-0 of the same Deployment", "strategy Recreate"];
        for text in says {
            assert_eq!(note.contains(text), is_told, "{new}: {note}");
        }
    }
}
