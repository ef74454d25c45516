//! Driver roots as they are found: of several systems, broken, hostile.

use std::fs;

use crate::{
    elf::Kind,
    node::{Node, ON_HOST, VERSION, mounts, values},
};

#[test]
fn libraries_are_found_where_each_system_has_them_once() {
    for directory in [
        "usr/lib64",
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/x86_64-linux-gnu/nvidia/current",
        "lib64",
        "usr/lib",
        "run/opengl-driver/lib",
        "usr/local/glibc/usr/lib",
    ] {
        let spec = Node::with_libraries(directory).claim().unwrap();
        let cuda = format!(
            "{ON_HOST}/{directory}/libcuda.so.{VERSION} => /{directory}/libcuda.so.{VERSION}"
        );
        assert_eq!(mounts(&spec)[0], cuda);
        assert_eq!(mounts(&spec).len(), 5, "{directory}");
    }
}

#[test]
fn where_directories_are_links_to_each_other_each_library_is_mounted_once() {
    let node = Node::with_libraries("usr/lib/x86_64-linux-gnu");
    node.link("lib", "usr/lib");
    node.link("usr/lib64", "lib/x86_64-linux-gnu");
    let spec = node.claim().unwrap();
    assert_eq!(mounts(&spec).len(), 5);
    // By the first name in the list; on the host it is the real one.
    let cuda = format!(
        "{ON_HOST}/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION} => /usr/lib64/libcuda.so.{VERSION}"
    );
    assert_eq!(mounts(&spec)[0], cuda);
}

#[test]
fn absolute_links_are_of_the_driver_root_and_none_leads_out_of_it() {
    let node = Node::with_libraries("opt/nvidia");
    let outside = node.path("outside.so");
    let secret = crate::elf::library(Kind::X86Wide, "libsecret.so.1");
    fs::write(&outside, secret).unwrap();
    for name in ["libcuda.so", "libnvidia-ml.so"] {
        let name = format!("{name}.{VERSION}");
        node.link(&format!("usr/lib64/{name}"), format!("/opt/nvidia/{name}"));
    }
    node.link(&format!("usr/lib64/libabsolute.so.{VERSION}"), &outside);
    node.link(
        &format!("usr/lib64/libclimbing.so.{VERSION}"),
        "../../../outside.so",
    );
    node.link("usr/bin/nvidia-smi", &outside);
    let found = mounts(&node.claim().unwrap());
    assert_eq!(
        found,
        [
            format!("{ON_HOST}/opt/nvidia/libcuda.so.{VERSION} => /usr/lib64/libcuda.so.{VERSION}"),
            format!(
                "{ON_HOST}/opt/nvidia/libnvidia-ml.so.{VERSION} => /usr/lib64/libnvidia-ml.so.{VERSION}"
            ),
        ]
    );
}

#[test]
fn links_that_lead_nowhere_or_round_in_circles_and_what_is_no_library_are_left_out() {
    let node = Node::with_libraries("usr/lib64");
    node.link(&format!("usr/lib64/libdangling.so.{VERSION}"), "nowhere");
    node.link(
        &format!("usr/lib64/libloop.so.{VERSION}"),
        format!("libloop.so.{VERSION}"),
    );
    fs::create_dir_all(node.root(&format!("usr/lib64/libdirectory.so.{VERSION}"))).unwrap();
    node.file(&format!("usr/lib64/libempty.so.{VERSION}"), b"");
    node.file(&format!("usr/lib64/libtext.so.{VERSION}"), &[b'x'; 4096]);
    node.library(
        &format!("usr/lib64/libold.so.{VERSION}"),
        Kind::X86Narrow,
        "libold.so.1",
    );
    node.library(
        &format!("usr/lib64/libpower.so.{VERSION}"),
        Kind::Power,
        "libpower.so.1",
    );
    node.library(
        &format!("usr/lib64/lib evil::x.so.{VERSION}"),
        Kind::X86Wide,
        "libevil.so.1",
    );
    node.link("lib64", "lib64");
    node.link("usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu");
    let pipe = node.root(&format!("usr/lib64/libpipe.so.{VERSION}"));
    assert!(
        std::process::Command::new("mkfifo")
            .arg(pipe)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(mounts(&node.claim().unwrap()).len(), 5);
}

#[test]
fn a_soname_that_is_no_file_name_is_not_passed_on() {
    for soname in ["", "../../etc/passwd", "a::/etc/b.so", "libx.so\n", "nolib"] {
        let node = Node::with_libraries("usr/lib64");
        node.library(
            &format!("usr/lib64/libx.so.{VERSION}"),
            Kind::X86Wide,
            soname,
        );
        let known = values(&node.claim().unwrap(), "--library");
        let own = format!("x86_64::libx.so.{VERSION}::/usr/lib64/libx.so.{VERSION}");
        assert!(known.contains(&own), "{soname:?}: {known:?}");
    }
}

#[test]
fn a_library_that_is_cut_anywhere_is_left_out_or_known_by_its_file_name() {
    let whole = crate::elf::library(Kind::X86Wide, "libx.so.1");
    let node = Node::with_libraries("usr/lib64");
    for length in 0..whole.len() {
        node.file(&format!("usr/lib64/libx.so.{VERSION}"), &whole[..length]);
        let known = values(&node.claim().unwrap(), "--library");
        let has = |soname: &str| {
            known
                .iter()
                .any(|known| known.starts_with(&format!("x86_64::{soname}::")))
        };
        assert!(!has("libx.so.1"), "{length}: {known:?}");
        assert_eq!(has(&format!("libx.so.{VERSION}")), length >= 64, "{length}");
    }
}

#[test]
fn a_library_that_bears_the_file_name_of_another_takes_nothing_from_it() {
    let node = Node::with_libraries("usr/lib64");
    let soname = format!("libcuda.so.{VERSION}");
    node.library(
        &format!("usr/lib64/libx.so.{VERSION}"),
        Kind::X86Wide,
        &soname,
    );
    let spec = node.claim().unwrap();
    let links = values(&spec, "--link");
    assert!(
        links
            .iter()
            .all(|link| !link.ends_with(&format!("/{soname}"))),
        "{links:?}"
    );
    assert!(mounts(&spec)[0].ends_with(&soname));
}

#[test]
fn of_two_versions_that_of_the_kernel_s_module_is_taken() {
    let node = Node::with_libraries("usr/lib64");
    node.install("usr/lib64", "570.10");
    node.install("usr/lib/x86_64-linux-gnu", "590.1");
    let found = mounts(&node.claim().unwrap());
    assert_eq!(found.len(), 5);
    assert!(
        found.iter().all(|mount| mount.ends_with(VERSION)),
        "{found:?}"
    );
}

#[test]
fn a_root_of_another_version_is_refused_with_both() {
    let node = Node::new();
    node.install("usr/lib64", "570.10");
    let refusal = node.refusal();
    assert!(
        refusal.contains("version 570.10") && refusal.contains(VERSION),
        "{refusal}"
    );
    assert!(refusal.contains("restart"), "{refusal}");
}

#[test]
fn while_the_kernel_does_not_say_its_version_there_must_be_one() {
    let node = Node::with_libraries("usr/lib64");
    fs::remove_file(node.path("proc/driver/nvidia/version")).unwrap();
    assert_eq!(mounts(&node.claim().unwrap()).len(), 5);
    fs::remove_dir_all(node.path("cdi")).unwrap();
    fs::create_dir(node.path("cdi")).unwrap();
    node.install("usr/lib64", "570.10");
    let refusal = node.refusal();
    assert!(refusal.contains("570.10 and 580.65.06"), "{refusal}");
}

#[test]
fn what_is_missing_is_told_by_name() {
    let node = Node::new();
    let refusal = node.refusal();
    assert!(
        refusal.contains("no libcuda.so.VERSION in any of /usr/lib64")
            && refusal.contains("--driver-root"),
        "{refusal}"
    );

    let node = Node::with_libraries("usr/lib64");
    assert!(node.missing().contains(&"libnvidia-opencl.so"));
    assert!(!node.missing().contains(&"libnvidia-nvvm.so"));
    fs::remove_file(node.root(&format!("usr/lib64/libnvidia-ml.so.{VERSION}"))).unwrap();
    let refusal = node.refusal();
    assert!(
        refusal.contains(&format!("no libnvidia-ml.so of version {VERSION}")),
        "{refusal}"
    );

    fs::remove_dir_all(node.root("")).unwrap();
    let refusal = node.refusal();
    assert!(
        refusal.contains("driver root") && refusal.contains("No such file"),
        "{refusal}"
    );
}
