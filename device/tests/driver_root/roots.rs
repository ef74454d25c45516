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
        "usr/lib/nvidia/tesla",
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

/// 32 bits in the first directory, a link to what was uninstalled, a file that was cut: each bears the right name.
#[test]
fn what_is_no_library_of_64_bits_hides_none_of_a_later_directory() {
    let narrow = crate::elf::library(Kind::X86Narrow, "libcuda.so.1");
    for name in ["libcuda.so", "libnvidia-ml.so", "libnvidia-nvvm.so"] {
        let file = format!("{name}.{VERSION}");
        let wanted = format!("/usr/lib/x86_64-linux-gnu/{file}");
        for content in [Some(&narrow[..]), Some(&b""[..]), None] {
            let node = Node::with_libraries("usr/lib/x86_64-linux-gnu");
            match content {
                Some(content) => node.file(&format!("usr/lib64/{file}"), content),
                None => node.link(&format!("usr/lib64/{file}"), "nowhere"),
            }
            let found = mounts(&node.claim().unwrap());
            assert_eq!(found.len(), 5, "{found:?}");
            assert!(
                found.iter().any(|mount| mount.ends_with(&wanted)),
                "{found:?}"
            );
            assert!(!node.missing().contains(&name), "{name}");
        }
    }
}

#[test]
fn a_root_in_which_only_the_name_of_a_needed_library_is_right_is_refused() {
    for name in ["libcuda.so", "libnvidia-ml.so"] {
        let node = Node::with_libraries("usr/lib64");
        node.library(
            &format!("usr/lib64/{name}.{VERSION}"),
            Kind::X86Narrow,
            &format!("{name}.1"),
        );
        let refusal = node.refusal();
        let expected = format!("no {name} of version {VERSION}");
        assert!(refusal.contains(&expected), "{refusal}");
    }
}

#[test]
fn the_compiler_of_older_code_comes_from_beside_the_others_whatever_its_version() {
    let node = Node::with_libraries("usr/lib64");
    let file = "libnvidia-nvvm70.so.4";
    node.library("usr/lib/libnvidia-nvvm70.so.4", Kind::X86Wide, file);
    let spec = node.claim().unwrap();
    assert!(
        mounts(&spec).iter().all(|mount| !mount.contains(file)),
        "what lies elsewhere may be of another driver"
    );

    node.library("usr/lib64/libnvidia-nvvm70.so.4", Kind::X86Wide, file);
    let spec = node.claim().unwrap();
    let mount = format!("{ON_HOST}/usr/lib64/{file} => /usr/lib64/{file}");
    assert!(mounts(&spec).contains(&mount), "{:?}", mounts(&spec));
    let known = values(&spec, "--library");
    let expected = format!("x86_64::{file}::/usr/lib64/{file}");
    assert!(known.contains(&expected), "{known:?}");
    let links = values(&spec, "--link");
    assert!(links.iter().all(|link| !link.contains(file)), "{links:?}");
}

/// Where a driver has that one, too, by its own version, and the other name is a link to it.
#[test]
fn no_library_is_mounted_over_the_link_that_leads_to_it() {
    let node = Node::with_libraries("usr/lib64");
    let soname = "libnvidia-nvvm70.so.4";
    let file = format!("libnvidia-nvvm70.so.{VERSION}");
    node.library(&format!("usr/lib64/{file}"), Kind::X86Wide, soname);
    node.link(&format!("usr/lib64/{soname}"), &file);
    let spec = node.claim().unwrap();
    assert_eq!(mounts(&spec).len(), 6, "{:?}", mounts(&spec));
    let links = values(&spec, "--link");
    let link = format!("{file}::/usr/lib64/{soname}");
    assert!(links.contains(&link), "{links:?}");
}

#[test]
fn programs_and_firmware_of_systems_with_paths_of_their_own_come_where_a_container_looks() {
    let firmware = format!("{VERSION}/gsp_ga10x.bin");
    for (here, there) in [
        (
            "usr/libexec/nvidia/tesla/bin/nvidia-smi".to_owned(),
            "/usr/bin/nvidia-smi".to_owned(),
        ),
        ("bin/nvidia-smi".to_owned(), "/bin/nvidia-smi".to_owned()),
        (
            format!("firmware/nvidia/{firmware}"),
            format!("/lib/firmware/nvidia/{firmware}"),
        ),
        (
            format!("lib/firmware/updates/nvidia/{firmware}"),
            format!("/lib/firmware/updates/nvidia/{firmware}"),
        ),
    ] {
        let node = Node::with_libraries("lib64");
        node.file(&here, b"");
        let found = mounts(&node.claim().unwrap());
        let expected = format!("{ON_HOST}/{here} => {there}");
        assert!(found.contains(&expected), "{found:?}");
    }
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
