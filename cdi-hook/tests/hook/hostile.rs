//! Images that want the host's root to write where they point.

use std::{fs, os::unix::fs::symlink, path::Path};

use crate::container::{Container, LIBRARY, fails, succeeds};

const UPDATE: [&str; 3] = ["update-ldcache", "--library", LIBRARY];
const LINK: [&str; 3] = [
    "create-symlinks",
    "--link",
    "target::/usr/lib/nvidia/libcuda.so",
];

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().count() == 0
}

#[test]
fn a_directory_that_is_a_link_to_the_host_leads_nowhere() {
    for (path, arguments) in [("etc", UPDATE), ("usr/lib", LINK), ("usr/lib/nvidia", LINK)] {
        let container = Container::new();
        let outside = container.host("outside");
        fs::create_dir(&outside).unwrap();
        let climbing = Path::new("../../../../../../../../../../../..")
            .join(outside.strip_prefix("/").unwrap());
        for target in [&outside, &climbing] {
            container.link(path, target);
            let said = fails(&container.run(&arguments));
            assert!(said.contains("in the container"), "{said}");
            assert!(is_empty(&outside), "{path} -> {}", target.display());
        }
    }
}

#[test]
fn a_cache_that_is_a_link_to_a_file_of_the_host_is_replaced_and_the_file_is_not() {
    let container = Container::new();
    let file = container.host("file");
    fs::write(&file, "the host's").unwrap();
    container.link("etc/ld.so.cache", &file);
    succeeds(&container.run(&UPDATE));
    assert_eq!(fs::read(&file).unwrap(), b"the host's");
    let cache = fs::symlink_metadata(container.path("etc/ld.so.cache")).unwrap();
    assert!(cache.is_file());
    assert_eq!(fs::read_dir(container.path("etc")).unwrap().count(), 2);
}

#[test]
fn a_link_through_proc_is_not_followed() {
    let container = Container::new();
    let outside = container.host("outside");
    fs::create_dir(&outside).unwrap();
    // In a container of the kernel's kind /proc is mounted when hooks run, and its links lead anywhere.
    container.link("etc", "/proc/self/cwd");
    let script =
        "mkdir \"$ROOT/proc\"; mount --rbind /proc \"$ROOT/proc\"; cd \"$ROOT/../outside\"";
    let said = fails(&container.run_after(script, &UPDATE));
    assert!(said.contains("/etc in the container"), "{said}");
    assert!(is_empty(&outside));
}

#[test]
fn what_lies_under_the_temporary_name_is_not_written_to() {
    let container = Container::new();
    let file = container.host("file");
    fs::write(&file, "the host's").unwrap();
    symlink(&file, container.path("etc/.muster-cdi-hook")).unwrap();
    succeeds(&container.run(&UPDATE));
    assert_eq!(fs::read(&file).unwrap(), b"the host's");
}

#[test]
fn a_cache_that_is_a_pipe_or_garbage_or_huge_is_replaced() {
    for make in ["mkfifo", "head -c 1000 /dev/urandom >", "truncate -s 20G"] {
        let container = Container::new();
        let script = format!("{make} \"$ROOT/etc/ld.so.cache\"");
        succeeds(&container.run_after(&script, &UPDATE));
        let cache = fs::read(container.path("etc/ld.so.cache")).unwrap();
        assert!(cache.starts_with(b"glibc-ld.so.cache1.1"), "{make}");
        assert!(cache.len() < 200, "{make}");
    }
}

#[test]
fn the_root_of_the_host_is_no_container() {
    let container = Container::new();
    fs::write(container.host("config.json"), r#"{"root": {"path": "/"}}"#).unwrap();
    let said = fails(&container.run(&UPDATE));
    assert!(
        said.contains("the root that the hook itself runs in"),
        "{said}"
    );
}

#[test]
fn nothing_of_the_container_is_read_from_the_environment() {
    let container = Container::new();
    let script = "export LD_PRELOAD=/nonexistent-muster.so TMPDIR=/nonexistent-muster HOME=/nonexistent-muster";
    let output = container.run_after(script, &UPDATE);
    assert!(output.status.success());
    assert!(container.path("etc/ld.so.cache").exists());
}
