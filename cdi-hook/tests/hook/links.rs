//! Links in images that mean no harm.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use crate::container::{Container, fails, succeeds};

const LINKS: [&str; 5] = [
    "create-symlinks",
    "--link",
    "libcuda.so.580.1::/usr/lib/nvidia/libcuda.so.1",
    "--link",
    "libcuda.so.1::/usr/lib/nvidia/libcuda.so",
];

fn target(container: &Container, path: &str) -> String {
    let target = fs::read_link(container.path(path)).unwrap();
    target.to_str().unwrap().to_owned()
}

#[test]
fn links_are_made_with_the_directories_that_they_need_and_again_without_a_change() {
    let container = Container::new();
    for _ in 0..2 {
        succeeds(&container.run(&LINKS));
        assert_eq!(
            target(&container, "usr/lib/nvidia/libcuda.so.1"),
            "libcuda.so.580.1"
        );
        assert_eq!(
            target(&container, "usr/lib/nvidia/libcuda.so"),
            "libcuda.so.1"
        );
        assert_eq!(
            fs::read_dir(container.path("usr/lib/nvidia"))
                .unwrap()
                .count(),
            2
        );
    }
}

#[test]
fn what_the_image_has_under_the_name_gives_way() {
    let container = Container::new();
    container.write(
        "usr/lib/nvidia/libcuda.so.1",
        b"a driver of another version",
    );
    container.link("usr/lib/nvidia/libcuda.so", "libcuda.so.470.1");
    succeeds(&container.run(&LINKS));
    assert_eq!(
        target(&container, "usr/lib/nvidia/libcuda.so.1"),
        "libcuda.so.580.1"
    );
    assert_eq!(
        target(&container, "usr/lib/nvidia/libcuda.so"),
        "libcuda.so.1"
    );
}

#[test]
fn a_directory_under_the_name_is_a_failure_that_names_it() {
    let container = Container::new();
    container.write("usr/lib/nvidia/libcuda.so.1/file", b"");
    let said = fails(&container.run(&LINKS));
    assert!(
        said.contains("/usr/lib/nvidia/libcuda.so.1 in the container"),
        "{said}"
    );
    assert_eq!(
        fs::read_dir(container.path("usr/lib/nvidia"))
            .unwrap()
            .count(),
        1
    );
}

#[test]
fn links_of_the_image_are_followed_inside_the_container() {
    let container = Container::new();
    container.write("data/lib/file", b"");
    container.link("usr/lib", "/data/lib");
    succeeds(&container.run(&LINKS));
    assert_eq!(
        target(&container, "data/lib/nvidia/libcuda.so"),
        "libcuda.so.1"
    );
}

#[test]
fn any_user_may_read_what_is_made_whatever_the_umask_of_the_runtime() {
    let container = Container::new();
    fs::remove_dir_all(container.path("etc")).unwrap();
    let update = ["update-ldcache", "--library", crate::container::LIBRARY];
    succeeds(&container.run_after("umask 077", &LINKS));
    succeeds(&container.run_after("umask 077", &update));
    for (path, mode) in [
        ("usr/lib/nvidia", 0o755),
        ("etc", 0o755),
        ("etc/ld.so.cache", 0o644),
    ] {
        let found = fs::metadata(container.path(path))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(found & 0o777, mode, "{path}");
    }
    assert!(Path::new(&container.path("usr/lib/nvidia/libcuda.so.1")).is_symlink());
}
