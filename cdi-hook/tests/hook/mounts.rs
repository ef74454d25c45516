//! Roots that are read-only, and volumes in them.

use std::fs;

use crate::container::{Container, LIBRARY, fails, succeeds};

const UPDATE: [&str; 3] = ["update-ldcache", "--library", LIBRARY];
const LINK: [&str; 3] = [
    "create-symlinks",
    "--link",
    "libcuda.so.1::/usr/lib/nvidia/libcuda.so",
];
/// The container's mount alone, as runtimes do it. Flags that are there stay: in a user namespace some are locked.
const READ_ONLY: &str =
    "mount --bind \"$ROOT\" \"$ROOT\"; mount -o remount,bind,ro,nosuid,nodev \"$ROOT\"";
/// The file system itself.
const READ_ONLY_BELOW: &str = "mount --bind \"$ROOT\" \"$ROOT/../image\"; mount -t tmpfs tmpfs \"$ROOT\"; \
                               cp -a \"$ROOT/../image/.\" \"$ROOT\"; mount -o remount,ro \"$ROOT\"";

/// crun before 1.26 makes the root read-only before it runs hooks.
#[test]
fn a_root_that_is_read_only_already_is_finished_and_stays_read_only() {
    for (arguments, made) in [
        (UPDATE, "etc/ld.so.cache"),
        (LINK, "usr/lib/nvidia/libcuda.so"),
    ] {
        let container = Container::new();
        // The shell is the container meanwhile: it looks whether anything changed for it.
        let script = format!(
            "{READ_ONLY}\n\"$@\"\n\
             if touch \"$ROOT/etc/new\" 2>/dev/null; then echo it may write >&2; exit 1; fi\nset -- true"
        );
        succeeds(&container.run_after(&script, &arguments));
        assert!(
            fs::symlink_metadata(container.path(made)).is_ok(),
            "no {made}"
        );
    }
}

#[test]
fn a_file_system_that_is_read_only_is_a_failure_that_says_what_would_work() {
    for arguments in [UPDATE, LINK] {
        let container = Container::new();
        fs::create_dir(container.host("image")).unwrap();
        let said = fails(&container.run_after(READ_ONLY_BELOW, &arguments));
        assert!(
            said.contains("read-only") && said.contains("writable root"),
            "{said}"
        );
    }
}

/// Nothing is wrong with the file system then.
#[test]
fn a_hook_that_may_have_no_mounts_of_its_own_does_not_blame_the_file_system() {
    for arguments in [UPDATE, LINK] {
        let container = Container::new();
        let script = format!("{READ_ONLY}\nset -- setpriv --bounding-set=-sys_admin \"$@\"");
        let said = fails(&container.run_after(&script, &arguments));
        assert!(
            said.contains("read-only for the hook, too") && said.contains("writable root"),
            "{said}"
        );
    }
}

#[test]
fn a_read_only_file_system_in_which_all_is_done_is_none() {
    for arguments in [UPDATE, LINK] {
        let container = Container::new();
        fs::create_dir(container.host("image")).unwrap();
        succeeds(&container.run(&arguments));
        succeeds(&container.run_after(READ_ONLY_BELOW, &arguments));
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
