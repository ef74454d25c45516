//! Whole specs, as they are written. A change of a golden file is a change of what containers get.
//!
//! Two libraries that runtimes read specs with read these files, too: in Go (`tests/controlplane/processruntime`) and in Rust
//! (`tests/cdi-validation`).

use std::{fs, os::unix::net::UnixListener, path::Path};

use muster_device::cdi::{Hooks, Spec};

use crate::{
    elf::Kind,
    node::{Node, ON_HOST, VERSION, slice, values, whole},
    slices::cut,
};

/// A driver as an installer leaves it, with all that there may be.
fn full() -> Node {
    let directory = "usr/lib/x86_64-linux-gnu";
    let node = Node::with_libraries(directory);
    for (stem, soname) in [
        ("libGLX_nvidia.so", "libGLX_nvidia.so.0"),
        ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
        ("libnvidia-encode.so", "libnvidia-encode.so.1"),
    ] {
        node.library(
            &format!("{directory}/{stem}.{VERSION}"),
            Kind::X86Wide,
            soname,
        );
    }
    node.link(
        &format!("{directory}/libnvidia-encode.so"),
        "libnvidia-encode.so.1",
    );
    node.library(
        &format!("usr/lib/i386-linux-gnu/libcuda.so.{VERSION}"),
        Kind::X86Narrow,
        "libcuda.so.1",
    );
    node.file(&format!("{directory}/libc.so.6"), b"\x7fELF");
    for program in [
        "nvidia-smi",
        "nvidia-persistenced",
        "nvidia-cuda-mps-control",
        "nvidia-modprobe",
    ] {
        node.file(&format!("usr/bin/{program}"), b"");
    }
    for firmware in ["gsp_ga10x.bin", "gsp_tu10x.bin", "other.bin"] {
        node.file(&format!("lib/firmware/nvidia/{VERSION}/{firmware}"), b"");
    }
    for socket in [
        "run/nvidia-persistenced/socket",
        "run/nvidia-fabricmanager/socket",
    ] {
        fs::create_dir_all(node.root(socket).parent().unwrap()).unwrap();
        UnixListener::bind(node.root(socket)).unwrap();
    }
    node.file("tmp/nvidia-mps/control", b"");
    node
}

/// `MUSTER_GOLDEN=write` writes the files.
fn compare(name: &str, spec: &Spec) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    let text = serde_json::to_string_pretty(spec).unwrap() + "\n";
    if std::env::var("MUSTER_GOLDEN").is_ok_and(|value| value == "write") {
        fs::write(&path, &text).unwrap();
        return;
    }
    let golden = fs::read_to_string(&path).unwrap();
    assert_eq!(text, golden, "{}", path.display());
}

#[test]
fn a_container_gets_all_of_the_driver_that_it_needs() {
    compare("claim-own-hooks.json", &full().claim().unwrap());
}

#[test]
fn a_claim_has_a_device_for_each_gpu_and_each_slice_and_one_for_both_where_an_administrator_looks()
{
    let node = full();
    cut(&node);
    for (name, gpus) in [
        ("claim-several.json", vec![whole(0), whole(3), whole(7)]),
        ("claim-slices.json", vec![slice((1, 0)), slice((9, 2))]),
        // With administrative access a claim may have a GPU and what it is cut into.
        ("claim-admin.json", vec![whole(3), slice((1, 0))]),
    ] {
        compare(name, &node.claim_of(&gpus).unwrap());
    }
}

#[test]
fn the_toolkit_s_hooks_take_the_place_of_ours_where_they_are_asked_for() {
    let mut node = full();
    node.hooks = Hooks::Toolkit("/usr/bin/nvidia-cdi-hook".into());
    compare("claim-toolkit-hooks.json", &node.claim().unwrap());
    node.hooks = Hooks::Toolkit("/usr/bin/nvidia-ctk".into());
    for hook in &node.claim().unwrap().container_edits.hooks {
        assert_eq!(hook.args[..2], ["nvidia-ctk", "hook"]);
    }
}

/// The runtime would say so of each container, again and again.
#[test]
fn a_toolkit_that_is_not_there_is_a_refusal_where_the_driver_root_shows_it() {
    let mut node = Node::with_libraries("usr/lib64");
    node.hooks = Hooks::Toolkit(format!("{ON_HOST}/usr/bin/nvidia-cdi-hook").into());
    let refusal = node.refusal();
    assert!(
        refusal.contains("/usr/bin/nvidia-cdi-hook: No such file")
            && refusal.contains("--toolkit-hook"),
        "{refusal}"
    );
    node.file("opt/toolkit/nvidia-cdi-hook", b"");
    node.link("usr/bin/nvidia-cdi-hook", "/opt/toolkit/nvidia-cdi-hook");
    node.claim().unwrap();
    // Elsewhere on the host: nobody can tell from here.
    node.hooks = Hooks::Toolkit("/usr/local/nvidia/toolkit/nvidia-cdi-hook".into());
    node.claim().unwrap();
}

/// Runtimes let a hook without an environment have their own.
#[test]
fn no_hook_inherits_an_environment() {
    let mut node = full();
    for hooks in [
        Hooks::Own("/opt/hook".into()),
        Hooks::Toolkit("/usr/bin/nvidia-cdi-hook".into()),
    ] {
        node.hooks = hooks;
        let spec = node.claim().unwrap();
        assert_eq!(spec.container_edits.hooks.len(), 2);
        assert!(
            spec.container_edits
                .hooks
                .iter()
                .all(|hook| !hook.env.is_empty())
        );
    }
}

#[test]
fn the_hook_s_own_program_understands_what_is_written_for_it() {
    let spec = full().claim().unwrap();
    for hook in &spec.container_edits.hooks {
        let arguments: Vec<_> = hook.args.iter().skip(1).map(Into::into).collect();
        let command = muster_cdi_hook::Command::parse(&arguments).unwrap();
        assert_eq!(command.arguments(), hook.args[1..]);
    }
}

/// Else a link would take the place of the file that it leads to.
#[test]
fn no_link_lies_where_something_is_mounted_and_every_known_library_is_mounted_or_linked() {
    let spec = full().claim().unwrap();
    let mounted: Vec<_> = spec
        .container_edits
        .mounts
        .iter()
        .map(|mount| mount.container_path.to_str().unwrap())
        .collect();
    let links = values(&spec, "--link");
    let links: Vec<_> = links
        .iter()
        .map(|link| link.split_once("::").unwrap().1)
        .collect();
    assert!(
        links.iter().all(|link| !mounted.contains(link)),
        "{links:?}"
    );
    for library in values(&spec, "--library") {
        let path = library.rsplit_once("::").unwrap().1;
        assert!(mounted.contains(&path) || links.contains(&path), "{path}");
    }
}
