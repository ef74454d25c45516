//! Roots that are read-only, and volumes in them.

use std::fs;

use crate::container::{Container, LIBRARY, fails, succeeds};

const UPDATE: [&str; 3] = ["update-ldcache", "--library", LIBRARY];
const LINK: [&str; 3] = [
    "create-symlinks",
    "--link",
    "libcuda.so.1::/usr/lib/nvidia/libcuda.so",
];
const READ_ONLY: &str = "mount --bind \"$ROOT\" \"$ROOT\"; mount -o remount,bind,ro \"$ROOT\"";

#[test]
fn a_root_that_is_read_only_already_is_a_failure_that_says_what_would_work() {
    for arguments in [UPDATE, LINK] {
        let container = Container::new();
        let said = fails(&container.run_after(READ_ONLY, &arguments));
        assert!(
            said.contains("read-only") && said.contains("writable root"),
            "{said}"
        );
    }
}

#[test]
fn a_read_only_root_in_which_all_is_done_is_none() {
    for arguments in [UPDATE, LINK] {
        let container = Container::new();
        succeeds(&container.run(&arguments));
        succeeds(&container.run_after(READ_ONLY, &arguments));
    }
}

#[test]
fn a_volume_is_not_written_to() {
    for (path, arguments) in [("etc", UPDATE), ("usr/lib/nvidia", LINK)] {
        let container = Container::new();
        fs::create_dir_all(container.path(path)).unwrap();
        fs::create_dir(container.host("volume")).unwrap();
        let script = format!("mount --bind \"$ROOT/../volume\" \"$ROOT/{path}\"");
        let said = fails(&container.run_after(&script, &arguments));
        assert!(said.contains("a volume is mounted there"), "{said}");
        assert_eq!(fs::read_dir(container.host("volume")).unwrap().count(), 0);
    }
}
