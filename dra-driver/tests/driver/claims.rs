//! Claims, as a kubelet has them prepared and given back.

use std::{fs, path::Path, time::Duration};

use crate::node::{Node, claim};
use muster_kubelet_api::dra::v1::NodePrepareResourcesRequest;
use serde_json::json;

fn permit(uid: &str) -> serde_json::Value {
    json!([{
        "podUid": format!("pod-{uid}"), "claimUids": [uid], "gang": "ml/g", "gangUid": "g", "attempt": 1, "team": "t",
        "charge": {"claims": [{"flavor": "t4", "gpusMilli": 1000, "vramBytes": 16_106_127_360_i64, "uids": [uid]}]},
    }])
}

#[tokio::test]
async fn a_claim_is_prepared_once_however_often_it_is_asked_for() {
    let mut node = Node::started().await;
    node.api.allocate("a", &["gpu-1"]);
    let first = node.prepare("a").await;
    assert_eq!(first.error, "");
    let device = first.devices.first().unwrap();
    assert_eq!(device.request_names, ["gpu"], "the main request's name");
    assert_eq!(device.device_name, "gpu-1");
    assert_eq!(device.pool_name, "node-0");
    assert_eq!(device.cdi_device_ids, ["gpu.muster.dev/claim=a-gpu-1"]);
    assert_eq!(node.files("cdi"), ["gpu.muster.dev-claim_a.json"]);
    assert_eq!(node.prepare("a").await, first);

    node.crash();
    node.start().await;
    assert_eq!(node.prepare("a").await, first);
    assert!(node.stop().await, "{}", node.log());
    assert!(node.files("p").is_empty() && node.files("r").is_empty());
}

/// Of a device plugin that was there at some time the kubelet says 0 for ever, as of one that is about to register again.
#[tokio::test]
async fn what_a_claim_has_is_published_again_at_once_where_a_device_plugin_may_be_restarting() {
    let mut node = Node::started().await;
    node.eventually("both are published", || {
        node.api.published() == ["gpu-0", "gpu-1"]
    })
    .await;
    node.api.allocate("a", &["gpu-1"]);
    assert_eq!(node.prepare("a").await.error, "");
    node.crash();
    node.api.delete_slices();
    node.api.has_capacity(json!({"nvidia.com/gpu": "0"}));
    node.start().await;
    node.eventually("what the claim has is published, and nothing else", || {
        node.api.published() == ["gpu-1"]
    })
    .await;
}

#[tokio::test]
async fn unprepare_leaves_nothing_also_twice_and_for_claims_that_nobody_knows() {
    let mut node = Node::started().await;
    node.api.allocate("a", &["gpu-0"]);
    assert_eq!(node.prepare("a").await.error, "");
    node.crash();
    node.start().await;
    for uid in ["a", "a", "never"] {
        assert_eq!(node.unprepare(uid).await, "");
    }
    assert!(node.files("cdi").is_empty());
    assert!(node.files("state/claims").is_empty());
}

#[tokio::test]
async fn every_claim_of_a_call_has_its_own_answer_and_none_is_an_answer_too() {
    let node = Node::started().await;
    node.api.allocate("a", &["gpu-0"]);
    let mut kubelet = node.kubelet().await;
    let request = NodePrepareResourcesRequest {
        claims: vec![claim("a"), claim("missing"), claim("../../etc/passwd")],
    };
    let answer = kubelet
        .node_prepare_resources(request)
        .await
        .unwrap()
        .into_inner();
    let errors: Vec<&str> = answer.claims.values().map(|entry| &*entry.error).collect();
    assert_eq!(errors.len(), 3);
    assert!(errors.iter().any(|error| error.is_empty()));
    assert!(errors.iter().any(|error| error.contains("does not exist")));
    assert!(errors.iter().any(|error| error.contains("no UID")));

    let empty = NodePrepareResourcesRequest { claims: vec![] };
    let answer = kubelet
        .node_prepare_resources(empty)
        .await
        .unwrap()
        .into_inner();
    assert!(answer.claims.is_empty());
}

#[tokio::test]
async fn the_second_claim_on_a_gpu_waits_in_the_call_for_the_first() {
    let node = Node::started().await;
    node.api.allocate("a", &["gpu-0"]);
    node.api.allocate("b", &["gpu-0"]);
    assert_eq!(node.prepare("a").await.error, "");
    let second = node.prepare("b");
    let first = async {
        node.eventually("the second claim waits", || {
            node.files("state/claims").contains(&"b.json".to_owned())
        })
        .await;
        node.unprepare("a").await
    };
    let (second, first) = tokio::join!(second, first);
    assert_eq!(first, "");
    assert_eq!(second.error, "");
}

#[tokio::test]
async fn a_gpu_with_a_process_is_not_given_back() {
    let node = Node::started().await;
    node.api.allocate("a", &["gpu-0"]);
    assert_eq!(node.prepare("a").await.error, "");
    let gpu = node.recorded_gpu("a");
    node.use_gpu(Some((&gpu, 4242)));
    let error = node.unprepare("a").await;
    assert!(
        error.starts_with("DeviceHeld") && error.contains("process 4242"),
        "{error}"
    );
    assert_eq!(node.files("cdi").len(), 1);
    node.use_gpu(None);
    assert_eq!(node.unprepare("a").await, "");
}

#[tokio::test]
async fn a_claim_that_is_allocated_again_gets_its_own_gpu_once_the_earlier_one_is_free() {
    let node = Node::started().await;
    node.api.allocate("a", &["gpu-0"]);
    let earlier = node.prepare("a").await;
    assert_eq!(earlier.devices[0].device_name, "gpu-0");
    let earlier_gpu = node.recorded_gpu("a");
    node.use_gpu(Some((&earlier_gpu, 4242)));
    // The kubelet has forgotten it: no Unprepare comes in between.
    node.api.allocate("a", &["gpu-1"]);
    {
        let later = node.prepare("a");
        tokio::pin!(later);
        let waits = tokio::time::timeout(Duration::from_secs(2), &mut later).await;
        assert!(waits.is_err(), "it is answered while the GPU is in use");
        assert_eq!(node.recorded_gpu("a"), earlier_gpu);
        node.use_gpu(None);
        let later = later.await;
        assert_eq!(later.error, "", "{}", node.log());
        assert_eq!(later.devices[0].device_name, "gpu-1");
    }
    let later_gpu = node.recorded_gpu("a");
    assert_ne!(later_gpu, earlier_gpu);
    let spec = fs::read_to_string(node.path("cdi/gpu.muster.dev-claim_a.json")).unwrap();
    assert!(
        spec.contains(&later_gpu) && !spec.contains(&earlier_gpu),
        "{spec}"
    );
}

#[tokio::test]
async fn a_pod_whose_cgroup_lives_holds_its_gpu() {
    let node = Node::started().await;
    node.api.allocate("a", &["gpu-0"]);
    assert_eq!(node.prepare("a").await.error, "");
    let container = node.path("cgroup/kubepods/podpod-a/1");
    fs::create_dir_all(&container).unwrap();
    fs::write(container.join("cgroup.procs"), "4242\n").unwrap();
    let error = node.unprepare("a").await;
    assert!(error.starts_with("DeviceHeld"), "{error}");
    fs::write(container.join("cgroup.procs"), "").unwrap();
    assert_eq!(node.unprepare("a").await, "");
}

#[tokio::test]
async fn without_a_permit_nothing_is_prepared_until_it_comes() {
    let mut node = Node::new().await;
    node.api.permit(1, &permit("other"));
    node.api.allocate("a", &["gpu-0"]);
    node.start().await;
    let prepare = node.prepare("a");
    let permitted = async {
        node.eventually("the claim waits", || {
            node.files("state/claims").contains(&"a.json".to_owned())
        })
        .await;
        assert!(node.files("cdi").is_empty());
        node.api.permit(2, &permit("a"));
    };
    let (prepared, ()) = tokio::join!(prepare, permitted);
    assert_eq!(prepared.error, "", "{}", node.log());
    node.eventually("the generation is acknowledged", || {
        node.api.status().get("observedGeneration") == Some(&json!(2))
    })
    .await;
    assert_eq!(node.api.status().get("uid"), Some(&json!("nd-1")));
    assert_eq!(node.api.status().get("held"), Some(&json!([])));
}

#[tokio::test]
async fn a_corrupt_checkpoint_is_rebuilt_and_what_was_prepared_still_holds() {
    for broken in ["state/claims/a.json", "state/node.json"] {
        let mut node = Node::started().await;
        node.api.allocate("a", &["gpu-0"]);
        let first = node.prepare("a").await;
        assert_eq!(first.error, "");
        node.crash();
        fs::write(node.path(broken), "{\"schema\": 1, \"cla").unwrap();
        node.start().await;
        node.eventually(
            "the broken file is put aside and the record there again",
            || {
                node.files("state/quarantine").len() == 1
                    && node.files("state/claims") == ["a.json"]
            },
        )
        .await;
        assert_eq!(node.prepare("a").await, first, "{broken}");
        assert_eq!(node.unprepare("a").await, "", "{broken}");
    }
}

#[tokio::test]
async fn directories_and_links_in_place_of_the_checkpoint_are_set_aside_and_what_was_prepared_still_holds()
 {
    for is_directory in [true, false] {
        let mut node = Node::started().await;
        node.eventually("both are published", || {
            node.api.published() == ["gpu-0", "gpu-1"]
        })
        .await;
        node.api.allocate("a", &["gpu-1"]);
        let first = node.prepare("a").await;
        assert_eq!(first.error, "");
        let gpu = node.recorded_gpu("a");
        node.crash();
        let mut files = node.files("state");
        files.retain(|file| {
            Path::new(file)
                .extension()
                .is_some_and(|ending| ending == "json")
        });
        files.push("claims/a.json".to_owned());
        assert!(files.len() >= 3, "{files:?}");
        for file in &files {
            let path = node.path(&format!("state/{file}"));
            fs::remove_file(&path).unwrap();
            if is_directory {
                fs::create_dir(&path).unwrap();
            } else {
                // Whoever reads it never comes to its end.
                std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
            }
        }
        node.start().await;
        let record = node.path("state/claims/a.json");
        node.eventually("the record is there again", || record.is_file())
            .await;
        assert!(!record.is_symlink());
        assert_eq!(node.prepare("a").await, first, "{}", node.log());
        assert_eq!(node.recorded_gpu("a"), gpu);
        node.eventually("both are published under their names", || {
            node.api.published() == ["gpu-0", "gpu-1"]
                && node.files("state/quarantine").len() == files.len()
        })
        .await;
        assert_eq!(node.unprepare("a").await, "");
    }
}

#[tokio::test]
async fn a_reboot_voids_what_was_prepared() {
    let mut node = Node::started().await;
    node.api.allocate("a", &["gpu-0"]);
    assert_eq!(node.prepare("a").await.error, "");
    node.crash();
    fs::write(node.path("boot_id"), "boot-2\n").unwrap();
    node.start().await;
    node.eventually("records and CDI files are gone", || {
        node.files("state/claims").is_empty() && node.files("cdi").is_empty()
    })
    .await;
}
