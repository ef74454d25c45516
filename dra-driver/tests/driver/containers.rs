//! What containers get of a driver root, by the flags of the program.

use std::{fs, path::Path, process::Command};

use crate::node::Node;

const VERSION: &str = "580.65.06";

/// A node with a driver root, and a driver that is told of it.
async fn node() -> Node {
    let mut node = Node::new().await;
    for (stem, soname) in [
        ("libcuda.so", "libcuda.so.1"),
        ("libnvidia-ml.so", "libnvidia-ml.so.1"),
    ] {
        library(&node.path("root/usr/lib64"), stem, soname);
    }
    fs::create_dir_all(node.path("proc/driver/nvidia")).unwrap();
    let version =
        format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Sun Jul 27\n");
    fs::write(node.path("proc/driver/nvidia/version"), version).unwrap();
    fs::write(node.path("proc/devices"), "195 nvidia\n505 nvidia-uvm\n").unwrap();
    fs::write(node.path("hook"), "the hook").unwrap();
    node.flags = vec![
        format!("--driver-root={}", node.path("root").display()),
        "--driver-root-on-host=/run/nvidia/driver".to_owned(),
        format!("--hook-dir={}", node.path("bin").display()),
        format!("--hook-program={}", node.path("hook").display()),
    ];
    node
}

fn library(directory: &Path, stem: &str, soname: &str) {
    fs::create_dir_all(directory).unwrap();
    let source = directory.join("source.c");
    fs::write(&source, "").unwrap();
    let status = Command::new("cc")
        .args(["-shared", &format!("-Wl,-soname,{soname}"), "-o"])
        .arg(directory.join(format!("{stem}.{VERSION}")))
        .arg(source)
        .status();
    assert!(status.unwrap().success());
}

fn spec(node: &Node, uid: &str) -> serde_json::Value {
    let path = node.path(&format!("cdi/gpu.muster.dev-claim_{uid}.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[tokio::test]
async fn a_prepared_claim_gives_the_driver_s_libraries_and_a_hook_that_is_there() {
    let mut node = node().await;
    node.start().await;
    node.api.allocate("a", &["gpu-1"]);
    assert_eq!(node.prepare("a").await.error, "", "{}", node.log());
    let spec = spec(&node, "a");
    let mount = spec.pointer("/containerEdits/mounts/0").unwrap();
    assert_eq!(
        mount["hostPath"],
        format!("/run/nvidia/driver/usr/lib64/libcuda.so.{VERSION}")
    );
    assert_eq!(
        mount["containerPath"],
        format!("/usr/lib64/libcuda.so.{VERSION}")
    );
    let hook = spec.pointer("/containerEdits/hooks/0/path").unwrap();
    assert_eq!(
        fs::read_to_string(hook.as_str().unwrap()).unwrap(),
        "the hook"
    );
}

#[tokio::test]
async fn a_claim_whose_containers_would_lack_something_waits_for_it_with_its_name() {
    let mut node = node().await;
    fs::write(node.path("proc/devices"), "195 nvidia\n").unwrap();
    node.start().await;
    node.api.allocate("a", &["gpu-1"]);
    let refusal = node.prepare("a").await.error;
    assert!(
        refusal.starts_with("DriverIncomplete: claim ml/claim-a"),
        "{refusal}"
    );
    assert!(refusal.contains("nvidia_uvm"), "{refusal}");
    assert!(node.files("cdi").is_empty() && node.files("state/claims").is_empty());
    fs::write(node.path("proc/devices"), "195 nvidia\n505 nvidia-uvm\n").unwrap();
    assert_eq!(node.prepare("a").await.error, "");
}

#[tokio::test]
async fn the_hook_of_an_earlier_version_stays_as_long_as_a_claim_that_was_prepared_with_it() {
    let mut node = node().await;
    node.start().await;
    node.api.allocate("a", &["gpu-0"]);
    node.api.allocate("b", &["gpu-1"]);
    assert_eq!(node.prepare("a").await.error, "");
    let first = node.files("bin");
    node.crash();
    fs::write(node.path("hook"), "the next hook").unwrap();
    node.start().await;
    assert_eq!(node.prepare("b").await.error, "");
    assert_eq!(node.files("bin").len(), 2);
    assert_eq!(node.unprepare("a").await, "");
    let left = node.files("bin");
    assert!(left.len() == 1 && left != first, "{left:?}");
}
