//! Kernel modules that are not loaded yet.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use muster_device::cdi::ModuleLoader;

use crate::node::{DEVICES, Node};

const WITHOUT_UNIFIED_MEMORY: &str =
    "Character devices:\n195 nvidia\n\nBlock devices:\n  7 nvidia-uvm\n";

/// The machine, where loading the module makes its devices.
#[derive(Debug)]
struct Machine {
    devices: PathBuf,
}

impl ModuleLoader for Machine {
    fn load(&self) -> Result<(), String> {
        fs::write(&self.devices, DEVICES).map_err(|error| error.to_string())
    }
}

#[test]
fn a_module_that_is_not_loaded_is_loaded_first() {
    let mut node = Node::with_libraries("usr/lib64");
    node.devices(WITHOUT_UNIFIED_MEMORY);
    node.modules = Arc::new(Machine {
        devices: node.path("proc/devices"),
    });
    let nodes = node.claim().unwrap().container_edits.device_nodes;
    let nodes: Vec<_> = nodes
        .iter()
        .map(|node| (&*node.path, node.major, node.minor))
        .collect();
    assert_eq!(
        nodes,
        [
            ("/dev/nvidiactl", 195, 255),
            ("/dev/nvidia-uvm", 505, 0),
            ("/dev/nvidia-uvm-tools", 505, 1),
            ("/dev/nvidia-modeset", 195, 254),
        ]
    );
}

#[test]
fn a_module_that_cannot_be_loaded_is_a_refusal_that_names_it() {
    for (devices, module) in [(WITHOUT_UNIFIED_MEMORY, "nvidia_uvm"), ("", "nvidia")] {
        let node = Node::with_libraries("usr/lib64");
        node.devices(devices);
        let refusal = node.refusal();
        assert!(
            refusal.contains(&format!("the kernel module {module} is not loaded")),
            "{refusal}"
        );
        assert!(
            refusal.contains("nvidia-modprobe in driver root"),
            "{refusal}"
        );
        assert!(refusal.contains("modules-load.d"), "{refusal}");
    }
}

/// As root only: others may not change their root.
#[test]
fn the_driver_root_s_own_program_loads_it_and_what_that_says_is_passed_on() {
    for directory in ["usr/bin", "usr/local/bin", "run/current-system/sw/bin"] {
        its_own_program_loads_it(directory);
    }
}

fn its_own_program_loads_it(directory: &str) {
    let node = Node::with_libraries("usr/lib64");
    node.devices(WITHOUT_UNIFIED_MEMORY);
    let source = r#"
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
    fprintf(stderr, "%s %s %s, environment %s\n", words[1], words[2], fopen("/inside", "r") ? "inside" : "outside",
            getenv("CARGO_MANIFEST_DIR") ? "set" : "unset");
    return 3;
}"#;
    node.file("inside", b"");
    compile(&node, directory, source);
    let refusal = node.refusal();
    if rustix::process::geteuid().is_root() {
        assert!(
            refusal.contains("exit status: 3 -u -c=0 inside, environment unset"),
            "{refusal}"
        );
    } else {
        assert!(refusal.contains("Operation not permitted"), "{refusal}");
    }
}

/// A daemon that something in `modprobe.d` starts, say: it has the complaint's pipe, too.
#[test]
fn what_the_program_leaves_running_is_not_waited_for() {
    let node = Node::with_libraries("usr/lib64");
    node.devices(WITHOUT_UNIFIED_MEMORY);
    let source = r#"
#include <stdio.h>
#include <unistd.h>
int main(void) {
    if (fork() == 0) {
        sleep(30);
        return 0;
    }
    fprintf(stderr, "no such module\n");
    return 3;
}"#;
    compile(&node, "usr/bin", source);
    let started = Instant::now();
    let refusal = node.refusal();
    let took = started.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    if rustix::process::geteuid().is_root() {
        assert!(
            refusal.contains("exit status: 3 no such module"),
            "{refusal}"
        );
    }
}

/// Puts `nvidia-modprobe` into a directory of the driver root.
fn compile(node: &Node, directory: &str, source: &str) {
    let file = format!("{directory}/source.c");
    node.file(&file, source.as_bytes());
    let program = node.root(&format!("{directory}/nvidia-modprobe"));
    let compiled = std::process::Command::new("cc")
        .arg("-static")
        .arg("-o")
        .arg(&program)
        .arg(node.root(&file))
        .status();
    assert!(compiled.unwrap().success());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}
