//! Real runtimes, those that this machine has, on bundles of their own: what happens before a hook and after it, and who it
//! runs as, is theirs to say. As root only.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Command, Output},
};

use crate::container::{Container, LIBRARY};

/// What a runtime is, and how it is told to leave cgroups alone, which not every machine lets it make.
const RUNTIMES: [(&str, &[&str]); 2] = [("runc", &[]), ("crun", &["--cgroup-manager=disabled"])];
/// Whom the root of a container with users of its own is for the host.
const MAPPED_USER: u32 = 100_000;
/// What runs in the container: it says what it finds, linked to nothing of the image.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <unistd.h>
int main(void) {
    char cache[32] = {0}, link[64] = {0};
    FILE *file = fopen("/etc/ld.so.cache", "r");
    if (file && !fread(cache, 20, 1, file)) return 1;
    if (readlink("/usr/lib/nvidia/libcuda.so", link, 63) < 0) return 2;
    printf("%s, %s, %s\n", cache, link, fopen("/etc/new", "w") ? "writable" : "read-only");
    return 0;
}"#;

/// What crun before 1.9 says on a machine with both versions of cgroups, whatever it is told to leave alone.
const REFUSED_MACHINE: &str = "cgroups in hybrid mode not supported";

/// Whether a runtime starts nothing at all on this machine, which says nothing of the hook.
fn refuses_machine(runtime: (&str, &[&str]), complaint: &str) -> bool {
    let refuses = complaint.contains(REFUSED_MACHINE);
    if refuses {
        eprintln!("{} is left out: {}", runtime.0, complaint.trim());
    }
    refuses
}

fn installed() -> Vec<(&'static str, &'static [&'static str])> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("runtimes are left out: they take root");
        return Vec::new();
    }
    let is_there = |runtime: &str| Command::new(runtime).arg("--version").output().is_ok();
    let (there, absent): (Vec<_>, Vec<_>) = RUNTIMES
        .into_iter()
        .partition(|(runtime, _)| is_there(runtime));
    for (runtime, _) in absent {
        eprintln!("{runtime} is left out: it is not installed");
    }
    there
}

/// Runs a container that reads its own root only, finished by the hook.
fn run(runtime: (&str, &[&str]), container: &Container, has_users: bool, volume: &str) -> Output {
    let (name, flags) = runtime;
    let program = container.path("program");
    fs::write(container.host("program.c"), PROGRAM).unwrap();
    let compiled = Command::new("cc")
        .args(["-static", "-o"])
        .arg(&program)
        .arg(container.host("program.c"))
        .status();
    assert!(compiled.unwrap().success());
    // Whoever the container's root is must reach the bundle and the hook, as with any installation.
    let hook = container.host("muster-cdi-hook");
    fs::copy(env!("CARGO_BIN_EXE_muster-cdi-hook"), &hook).unwrap();
    fs::set_permissions(container.host(""), fs::Permissions::from_mode(0o755)).unwrap();
    for directory in ["proc", "dev"] {
        fs::create_dir_all(container.path(directory)).unwrap();
    }
    let hooks = [
        &["update-ldcache", "--library", LIBRARY][..],
        &[
            "create-symlinks",
            "--link",
            "libcuda.so.1::/usr/lib/nvidia/libcuda.so",
        ],
    ]
    .map(|arguments| {
        let words = [&["muster-cdi-hook"][..], arguments].concat();
        serde_json::json!({"path": hook, "args": words, "env": ["MUSTER_CDI_HOOK=1"]})
    });
    let mut configuration = serde_json::json!({
        "ociVersion": "1.0.2",
        // Nothing of this is the hook's.
        "process": {"user": {"uid": 0, "gid": 0}, "args": ["/program"], "cwd": "/", "env": ["LD_PRELOAD=/nonexistent-muster.so"]},
        "root": {"path": "rootfs", "readonly": true},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
        ],
        "hooks": {"createContainer": hooks},
        "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}]},
    });
    if !volume.is_empty() {
        let mounts = configuration["mounts"].as_array_mut().unwrap();
        let volume = serde_json::json!({"destination": volume, "type": "tmpfs", "source": "tmpfs"});
        mounts.push(volume);
    }
    if has_users {
        let linux = &mut configuration["linux"];
        let namespaces = linux["namespaces"].as_array_mut().unwrap();
        namespaces.push(serde_json::json!({"type": "user"}));
        let mapping =
            serde_json::json!([{"containerID": 0, "hostID": MAPPED_USER, "size": 65_536}]);
        linux["uidMappings"] = mapping.clone();
        linux["gidMappings"] = mapping;
        let owned = Command::new("chown")
            .args(["--recursive", &format!("{MAPPED_USER}:{MAPPED_USER}")])
            .arg(container.path(""))
            .status();
        assert!(owned.unwrap().success());
    }
    fs::write(container.host("config.json"), configuration.to_string()).unwrap();
    // Also its cgroup is called so, and whichever test ended first would take that from the others.
    let bundle = container.host("");
    let own_name = bundle.file_name().unwrap().to_str().unwrap();
    Command::new(name)
        .args(flags)
        .arg("--root")
        .arg(container.host("state"))
        .args(["run", "--bundle"])
        .arg(&bundle)
        .arg(format!("muster-cdi-hook-{own_name}"))
        .output()
        .unwrap()
}

#[test]
fn a_read_only_root_is_finished_first_also_in_a_container_with_users_of_its_own() {
    for runtime in installed() {
        for has_users in [false, true] {
            let container = Container::new();
            let output = run(runtime, &container, has_users, "");
            let said = String::from_utf8_lossy(&output.stdout);
            let complaint = String::from_utf8_lossy(&output.stderr);
            if refuses_machine(runtime, &complaint) {
                break;
            }
            assert_eq!(
                said, "glibc-ld.so.cache1.1, libcuda.so.1, read-only\n",
                "{runtime:?}, users of its own: {has_users}: {complaint}"
            );
        }
    }
}

#[test]
fn a_container_that_cannot_be_finished_does_not_start_and_its_runtime_says_why() {
    for runtime in installed() {
        let output = run(runtime, &Container::new(), false, "/etc");
        let said = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        if refuses_machine(runtime, &complaint) {
            continue;
        }
        assert!(!output.status.success(), "{runtime:?}: {said}");
        assert_eq!(said, "", "{runtime:?}: {complaint}");
        assert!(
            complaint.contains("a volume is mounted there"),
            "{runtime:?}: {complaint}"
        );
    }
}
