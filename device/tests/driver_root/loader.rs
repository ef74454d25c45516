//! Drivers in directories of their own, which the root's loader is told of.

use std::{fmt::Write, fs};

use crate::{
    elf::Kind,
    node::{Node, ON_HOST, VERSION, mounts, values},
};

/// Where an installer put the driver.
const PREFIX: &str = "usr/local/nvidia";
const CONFIGURATION: &str = "etc/ld.so.conf";
/// Most files and searches, most directories, and the longest file: see `loader_configuration.rs`.
const MOST_STEPS: usize = 64;
const NAMES_OF_A_STEP: usize = 128;
const MOST_DIRECTORIES: usize = 32;
const LONGEST_PATTERN_BYTES: usize = 256;
const LONGEST_FILE_BYTES: usize = 65_536;

/// A driver that nobody finds who is not told where it is; `/usr/lib` has links to it of which no name tells a version.
fn hidden() -> Node {
    let node = Node::with_libraries(&format!("{PREFIX}/lib64"));
    for name in ["libcuda.so.1", "libcuda.so"] {
        node.link(
            &format!("usr/lib/{name}"),
            format!("/{PREFIX}/lib64/{name}"),
        );
    }
    node
}

fn cuda() -> String {
    let path = format!("{PREFIX}/lib64/libcuda.so.{VERSION}");
    format!("{ON_HOST}/{path} => /{path}")
}

/// Whether the driver is found.
fn is_found(node: &Node) -> bool {
    node.claim()
        .is_ok_and(|spec| mounts(&spec).contains(&cuda()))
}

#[test]
fn a_driver_is_found_where_the_loader_is_told_of_it() {
    let line = format!("/{PREFIX}/lib64\n");
    for (what, files) in [
        ("by itself", vec![(CONFIGURATION, line.clone())]),
        (
            "with a comment, blanks and a slash",
            vec![(
                CONFIGURATION,
                format!("# x\n\n  /{PREFIX}/lib64/ # the driver"),
            )],
        ),
        (
            "with its kind",
            vec![(CONFIGURATION, format!("/{PREFIX}/lib64=libc6"))],
        ),
        (
            "in a file that is included",
            vec![
                (CONFIGURATION, "include /etc/ld.so.conf.d/*.conf".to_owned()),
                ("etc/ld.so.conf.d/nvidia.conf", line.clone()),
            ],
        ),
        (
            "by names that are relative to the file",
            vec![
                (CONFIGURATION, "include\tmissing more/a?.conf".to_owned()),
                ("etc/more/ab.conf", "include deeper".to_owned()),
                ("etc/more/deeper", line.clone()),
            ],
        ),
        (
            "behind lines that mean nothing",
            vec![(
                CONFIGURATION,
                format!("hwcap 0 nosegneg\nincluded\ninclude\nlib\n{line}"),
            )],
        ),
    ] {
        let node = hidden();
        assert!(!is_found(&node), "{what}: nobody told of it");
        for (path, text) in files {
            node.file(path, text.as_bytes());
        }
        let spec = node.claim().unwrap();
        let found = mounts(&spec);
        assert_eq!(found.len(), 5, "{what}: {found:?}");
        assert!(found.contains(&cuda()), "{what}: {found:?}");
        let soname = format!("libcuda.so.{VERSION}::/{PREFIX}/lib64/libcuda.so.1");
        assert!(values(&spec, "--link").contains(&soname), "{what}");
    }
}

#[test]
fn programs_and_firmware_come_from_beside_it() {
    let node = hidden();
    node.file(CONFIGURATION, format!("/{PREFIX}/lib64").as_bytes());
    let firmware = format!("firmware/nvidia/{VERSION}/gsp_ga10x.bin");
    node.file(&format!("{PREFIX}/bin/nvidia-smi"), b"");
    node.file(&format!("{PREFIX}/bin/rm"), b"");
    node.file(&format!("{PREFIX}/{firmware}"), b"");
    let found = mounts(&node.claim().unwrap());
    for expected in [
        format!("{ON_HOST}/{PREFIX}/bin/nvidia-smi => /usr/bin/nvidia-smi"),
        format!("{ON_HOST}/{PREFIX}/{firmware} => /lib/{firmware}"),
    ] {
        assert!(found.contains(&expected), "{found:?}");
    }
    assert_eq!(found.len(), 7, "{found:?}");

    // What the system has where all look is taken before.
    node.file("usr/bin/nvidia-smi", b"");
    let found = mounts(&node.claim().unwrap());
    let expected = format!("{ON_HOST}/usr/bin/nvidia-smi => /usr/bin/nvidia-smi");
    assert!(found.contains(&expected), "{found:?}");
    assert_eq!(found.len(), 7, "{found:?}");
}

#[test]
fn directories_that_installers_use_are_looked_at_before() {
    let node = hidden();
    node.file(CONFIGURATION, format!("/{PREFIX}/lib64").as_bytes());
    node.install("usr/lib64", VERSION);
    let found = mounts(&node.claim().unwrap());
    assert_eq!(found.len(), 5, "{found:?}");
    assert!(!found.contains(&cuda()), "{found:?}");
}

#[test]
fn a_directory_that_is_a_link_to_one_that_is_known_brings_nothing_twice() {
    let node = Node::with_libraries("usr/lib64");
    node.link("opt/driver", "/usr/lib64");
    node.file(CONFIGURATION, b"/opt/driver\n/usr/lib64\n/opt/driver/\n");
    assert_eq!(mounts(&node.claim().unwrap()).len(), 5);
}

#[test]
fn nothing_leads_out_of_the_root() {
    let outside = |node: &Node| {
        let outside = node.path("outside");
        fs::create_dir_all(&outside).unwrap();
        outside
    };
    // The configuration of the machine that we run on, instead of the root's.
    let node = hidden();
    let file = outside(&node).join("ld.so.conf");
    fs::write(&file, format!("/{PREFIX}/lib64")).unwrap();
    node.link(CONFIGURATION, &file);
    assert!(!is_found(&node));
    fs::remove_file(node.root(CONFIGURATION)).unwrap();
    node.link(CONFIGURATION, "../../outside/ld.so.conf");
    assert!(!is_found(&node));
    for include in [
        file.display().to_string(),
        "../../outside/ld.so.conf".to_owned(),
        "../../outside/*".to_owned(),
        "/proc/self/root/*".to_owned(),
    ] {
        let node = hidden();
        fs::write(
            outside(&node).join("ld.so.conf"),
            format!("/{PREFIX}/lib64"),
        )
        .unwrap();
        node.file(CONFIGURATION, format!("include {include}").as_bytes());
        assert!(!is_found(&node), "{include}");
    }
    // A directory that is elsewhere.
    let node = Node::with_libraries("usr/lib64");
    let library = crate::elf::library(Kind::X86Wide, "libsecret.so.1");
    let directory = outside(&node);
    fs::write(directory.join(format!("libsecret.so.{VERSION}")), library).unwrap();
    node.link("opt/absolute", &directory);
    node.link("opt/climbing", "../../outside");
    let text = format!(
        "/opt/absolute\n/opt/climbing\n{}\n/../outside\n",
        directory.display()
    );
    node.file(CONFIGURATION, text.as_bytes());
    let found = mounts(&node.claim().unwrap());
    assert_eq!(found.len(), 5, "{found:?}");
}

/// A link inside the root is one of the root.
#[test]
fn links_inside_the_root_are_followed_as_there() {
    let node = hidden();
    node.file(
        "usr/share/loader/nvidia",
        format!("/{PREFIX}/lib64").as_bytes(),
    );
    node.link(CONFIGURATION, "/usr/share/loader/nvidia");
    assert!(is_found(&node));
}

#[test]
fn files_that_are_none_or_never_end_cost_only_what_they_would_have_named() {
    let pipe = |node: &Node, path: &str| {
        let path = node.root(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
    };
    let line = format!("/{PREFIX}/lib64");
    let node = hidden();
    pipe(&node, CONFIGURATION);
    assert!(!is_found(&node), "nobody writes to it");
    let node = hidden();
    fs::create_dir_all(node.root(CONFIGURATION)).unwrap();
    assert!(!is_found(&node), "a directory");
    let node = hidden();
    node.link(CONFIGURATION, "ld.so.conf");
    assert!(!is_found(&node), "a link to itself");

    let node = hidden();
    node.file(
        CONFIGURATION,
        format!("include ld.so.conf ld.so.conf.d/* /etc/*\n{line}").as_bytes(),
    );
    node.file("etc/ld.so.conf.d/again", b"include again ../ld.so.conf\n");
    node.file("etc/ld.so.conf.d/binary", &[0xff, 0, b'\n', 0x80, b'/']);
    node.link("etc/ld.so.conf.d/loop", "loop");
    pipe(&node, "etc/ld.so.conf.d/pipe");
    fs::create_dir_all(node.root("etc/ld.so.conf.d/directory")).unwrap();
    assert!(is_found(&node), "what stands behind all of that");
}

#[test]
fn directories_that_no_container_can_have_are_left_out() {
    for directory in [
        "proc/nvidia",
        "dev/nvidia",
        "sys/nvidia",
        "opt/a::b",
        "opt/a b",
        "opt/ü",
    ] {
        let node = Node::with_libraries(directory);
        node.file(CONFIGURATION, format!("/{directory}").as_bytes());
        let refusal = node.refusal();
        assert!(refusal.contains("/etc/ld.so.conf"), "{refusal}");
    }
}

#[test]
fn as_many_files_are_read_as_the_limit_says() {
    // The first file and the search for the others are two.
    for (files, found) in [(MOST_STEPS - 2, true), (MOST_STEPS - 1, false)] {
        let node = hidden();
        node.file(CONFIGURATION, b"include many/*");
        for file in 1..=files {
            let text = if file == files {
                format!("/{PREFIX}/lib64")
            } else {
                String::new()
            };
            node.file(&format!("etc/many/{file:03}"), text.as_bytes());
        }
        assert_eq!(is_found(&node), found, "{files}");
    }
    // However deep.
    for (files, found) in [(MOST_STEPS - 1, true), (MOST_STEPS, false)] {
        let node = hidden();
        node.file(CONFIGURATION, b"include deep/1");
        for file in 1..files {
            let text = format!("include {}", file + 1);
            node.file(&format!("etc/deep/{file}"), text.as_bytes());
        }
        let line = format!("/{PREFIX}/lib64");
        node.file(&format!("etc/deep/{files}"), line.as_bytes());
        assert_eq!(is_found(&node), found, "{files}");
    }
}

#[test]
fn a_directory_of_many_names_costs_as_many_searches() {
    // The first file and the one that is found are two; the rest are searches.
    let most = (MOST_STEPS - 2) * NAMES_OF_A_STEP;
    for (names, found) in [(most, true), (most + 1, false)] {
        let node = hidden();
        node.file(CONFIGURATION, b"include many/*.conf");
        for name in 1..names {
            node.file(&format!("etc/many/{name:05}"), b"");
        }
        let line = format!("/{PREFIX}/lib64");
        node.file("etc/many/last.conf", line.as_bytes());
        assert_eq!(is_found(&node), found, "{names}");
    }
}

#[test]
fn a_pattern_is_taken_up_to_its_longest_and_not_at_all_beyond() {
    for (length, found) in [
        (LONGEST_PATTERN_BYTES, true),
        (LONGEST_PATTERN_BYTES + 1, false),
    ] {
        let node = hidden();
        let pattern = "*".repeat(length);
        node.file(CONFIGURATION, format!("include many/{pattern}").as_bytes());
        node.file("etc/many/one", format!("/{PREFIX}/lib64").as_bytes());
        assert_eq!(is_found(&node), found, "{length}");
    }
}

#[test]
fn as_many_directories_are_taken_as_the_limit_says() {
    for (before, found) in [(MOST_DIRECTORIES - 1, true), (MOST_DIRECTORIES, false)] {
        let mut text = String::new();
        for number in 0..before {
            writeln!(text, "/opt/{number}").unwrap();
        }
        let node = hidden();
        node.file(CONFIGURATION, format!("{text}/{PREFIX}/lib64\n").as_bytes());
        assert_eq!(is_found(&node), found, "{before}");
    }
}

#[test]
fn a_file_is_read_up_to_its_longest_and_not_at_all_beyond() {
    let line = format!("/{PREFIX}/lib64\n");
    for (length, found) in [(LONGEST_FILE_BYTES, true), (LONGEST_FILE_BYTES + 1, false)] {
        let node = hidden();
        let text = format!("{line}{}", "#".repeat(length - line.len()));
        assert_eq!(text.len(), length);
        node.file(CONFIGURATION, text.as_bytes());
        assert_eq!(is_found(&node), found, "{length}");
    }
}

#[test]
fn a_refusal_says_that_the_loader_was_asked_too() {
    let refusal = hidden().refusal();
    let expected = "nor where its /etc/ld.so.conf says; name the directory";
    assert!(refusal.contains(expected), "{refusal}");
}
