//! NVML that hangs, or is of another version than the kernel's module, while pods run.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::node::Node;
use nvidia_ml_mock::Hang;

/// How long the driver waits for NVML.
const NVML_LIMIT: Duration = Duration::from_secs(5);
const TAINT: &str = "gpu.muster.dev/unresponsive";
const BEFORE: &str = "580.95.05";
const AFTER: &str = "590.10.01";
const BOTH: [&str; 2] = ["gpu-0", "gpu-1"];

/// Installs NVML of a version, which the usual name then means; that name.
fn install(directory: &Path, version: &str) -> PathBuf {
    fs::create_dir_all(directory).unwrap();
    let file = format!("libnvidia-ml.so.{version}");
    fs::copy(nvidia_ml_mock::library().unwrap(), directory.join(&file)).unwrap();
    let (next, name) = (directory.join("next"), directory.join("libnvidia-ml.so.1"));
    symlink(file, &next).unwrap();
    fs::rename(next, &name).unwrap();
    name
}

#[tokio::test]
async fn a_gpu_that_hangs_is_tainted_alone_and_its_claim_waits_until_it_answers() {
    let node = Node::started().await;
    let sick = node.gpu("gpu-0").await;
    node.eventually("both are published", || node.api.published() == BOTH)
        .await;
    node.change(|state| {
        let function = String::new();
        let gpu = sick.clone();
        state.hangs = vec![Hang { function, gpu }];
    });
    node.eventually("it is tainted", || node.api.tainted(TAINT) == ["gpu-0"])
        .await;
    assert_eq!(node.api.published(), BOTH, "it is not withdrawn");
    node.api.allocate("sick", &["gpu-0"]);
    node.api.allocate("sound", &["gpu-1"]);
    let waiting = node.prepare("sick");
    let others = async {
        node.eventually("the claim waits", || {
            node.files("state/claims").contains(&"sick.json".to_owned())
        })
        .await;
        assert_eq!(node.prepare("sound").await.error, "");
        assert_eq!(node.files("cdi"), ["gpu.muster.dev-claim_sound.json"]);
        node.change(|_| {});
    };
    let (prepared, ()) = tokio::join!(waiting, others);
    assert_eq!(prepared.error, "", "{}", node.log());
    node.eventually("the taint is gone", || node.api.tainted(TAINT).is_empty())
        .await;
}

/// The driver does not know yet that it hangs: the claim is asked for before the GPUs are listed again.
#[tokio::test]
async fn a_gpu_that_begins_to_hang_under_a_prepare_or_an_unprepare_holds_up_no_claim_of_another() {
    let node = Node::started().await;
    let sick = node.gpu("gpu-0").await;
    node.eventually("both are published", || node.api.published() == BOTH)
        .await;
    node.api.allocate("held", &["gpu-0"]);
    assert_eq!(node.prepare("held").await.error, "");
    node.api.allocate("sick", &["gpu-0"]);
    node.api.allocate("sound", &["gpu-1"]);
    node.change(|state| {
        let function = String::new();
        let gpu = sick.clone();
        state.hangs = vec![Hang { function, gpu }];
    });
    let waiting = node.prepare("sick");
    let story = async {
        let others = async {
            // Each of these would wait for the limit of NVML if anybody waited for it under the lock.
            for _ in 0..3 {
                let started = Instant::now();
                assert_eq!(node.prepare("sound").await.error, "");
                assert_eq!(node.unprepare("sound").await, "");
                assert!(started.elapsed() < NVML_LIMIT, "{}", node.log());
            }
        };
        let (error, ()) = tokio::join!(node.unprepare("held"), others);
        assert!(error.starts_with("DeviceHeld"), "{error}");
        node.change(|_| {});
        let deadline = Instant::now() + 4 * NVML_LIMIT;
        while !node.unprepare("held").await.is_empty() {
            assert!(Instant::now() < deadline, "{}", node.log());
        }
    };
    let (prepared, ()) = tokio::join!(waiting, story);
    assert_eq!(prepared.error, "", "{}", node.log());
}

#[tokio::test]
async fn while_nvml_is_of_another_version_all_stays_and_what_is_installed_then_is_used() {
    let mut node = Node::new().await;
    let libraries = node.path("lib");
    node.library = install(&libraries, BEFORE);
    node.start().await;
    node.eventually("both are published", || node.api.published() == BOTH)
        .await;
    node.api.allocate("held", &["gpu-0"]);
    assert_eq!(node.prepare("held").await.error, "");
    let writes = node.api.slice_writes();

    node.change(|state| AFTER.clone_into(&mut state.module_version));
    node.eventually("it is told", || {
        node.log().contains("the GPUs cannot be listed")
    })
    .await;
    let error = node.unprepare("held").await;
    assert!(
        error.starts_with("DeviceHeld") && error.contains("NVML is not available"),
        "{error}"
    );
    node.api.allocate("new", &["gpu-1"]);
    let waiting = node.prepare("new");
    let exchange = async {
        node.eventually("the claim waits", || {
            node.files("state/claims").contains(&"new.json".to_owned())
        })
        .await;
        assert_eq!(node.files("cdi"), ["gpu.muster.dev-claim_held.json"]);
        assert_eq!(node.api.published(), BOTH);
        assert_eq!(node.api.slice_writes(), writes, "nothing is published anew");
        install(&libraries, AFTER);
    };
    let (prepared, ()) = tokio::join!(waiting, exchange);
    assert_eq!(prepared.error, "", "{}", node.log());
    assert!(
        node.log().contains(&format!("libnvidia-ml.so.{AFTER}")),
        "{}",
        node.log()
    );
    assert_eq!(node.unprepare("held").await, "");
    assert_eq!(node.api.published(), BOTH);
}

#[tokio::test]
async fn records_that_are_lost_are_rebuilt_once_it_is_known_which_gpus_there_are() {
    let mut node = Node::new().await;
    node.api.allocate("a", &["gpu-0"]);
    let container = node.path("cgroup/kubepods/podpod-a/1");
    fs::create_dir_all(&container).unwrap();
    fs::write(container.join("cgroup.procs"), "4242\n").unwrap();
    node.change(|state| state.unloaded = true);
    node.start().await;
    node.eventually("it waits for NVML", || {
        node.log().contains("the records cannot be rebuilt yet")
    })
    .await;
    node.change(|_| {});
    node.eventually("what the pod holds is recorded", || {
        node.files("state/claims") == ["a.json"]
    })
    .await;
    let error = node.unprepare("a").await;
    assert!(error.starts_with("DeviceHeld"), "{error}");
}
