//! A disk that is full: the kernel refuses, and nothing of ours stands in for it.
//!
//! The checkpoint and the CDI files lie each on a file system of its own with room for 256 pages. All but a few are taken, so that each
//! write of a Prepare is the one that is refused, also in its middle.

use std::{
    fs,
    io::{self, Write},
    path::Path,
    process::Command,
};

use crate::node::Node;

/// Set where the test runs once more, in namespaces in which it may mount.
const INSIDE: &str = "MUSTER_TEST_MAY_MOUNT";
/// What each file system is like.
const OPTIONS: &str = "size=1m,mode=700";
/// The file that takes the room.
const FILLER: &str = "filler";
/// More pods that the claim is reserved for. Their UIDs make its record longer than two pages, and its CDI file longer than one.
const PODS: usize = 240;

const RECORD: &str = "state/claims/a.json";
const CDI_FILE: &str = "cdi/gpu.muster.dev-claim_a.json";

/// Where there is room for so many pages, and the file that is refused for it.
const CASES: [(&str, u64, &str); 5] = [
    // The mark of the call.
    ("state", 0, RECORD),
    // The mark has its page; the record has none beside it.
    ("state", 1, RECORD),
    // The first page of the record is written, and no more.
    ("state", 2, RECORD),
    ("cdi", 0, CDI_FILE),
    // The first page of the CDI file is written, and no more.
    ("cdi", 1, CDI_FILE),
];

#[tokio::test]
async fn s6_a_full_disk_refuses_a_claim_and_nothing_of_it_is_left_and_with_room_it_is_prepared() {
    if std::env::var_os(INSIDE).is_none() {
        again_where_it_may_mount(
            "full_disk::s6_a_full_disk_refuses_a_claim_and_nothing_of_it_is_left_and_with_room_it_is_prepared",
        );
        return;
    }
    let mut node = Node::new().await;
    for directory in ["state", "cdi"] {
        mount(&node.path(directory));
    }
    node.start().await;
    node.eventually("both are published", || {
        node.api.published() == ["gpu-0", "gpu-1"]
    })
    .await;
    node.api.allocate("a", &["gpu-0"]);
    for number in 0..PODS {
        node.api.reserve("a", &format!("{number:036}"));
    }
    // From here on the driver writes nothing but for the claim.
    let first = node.prepare("a").await;
    assert_eq!(first.error, "");
    let page = page_bytes(&node.path("state"));
    let bytes = |file: &str| fs::metadata(node.path(file)).unwrap().len();
    assert!(
        bytes(RECORD) > 2 * page && bytes(CDI_FILE) > page,
        "{} and {} bytes are no halves of pages of {page}",
        bytes(RECORD),
        bytes(CDI_FILE)
    );
    assert_eq!(node.unprepare("a").await, "");

    for (directory, pages, file) in CASES {
        let case = format!("{directory} with room for {pages} pages");
        leave_room(&node.path(directory), pages);
        let listed = || ["state", "state/claims", "cdi"].map(|directory| node.files(directory));
        let before = listed();
        assert!(before[1].is_empty(), "{case}: {before:?}");

        let refused = node.prepare("a").await;
        let path = node.path(file).display().to_string();
        for word in ["ml/claim-a", &path, "No space left on device", "make room"] {
            assert!(
                refused.error.contains(word),
                "{case}: {word} is not in: {}",
                refused.error
            );
        }
        assert!(refused.devices.is_empty(), "{case}: {refused:?}");
        // Neither a record, nor a CDI file, nor half of one.
        assert_eq!(listed(), before, "{case}\n{}", node.log());
        assert_eq!(free_pages(&node.path(directory)), pages, "{case}");

        fs::remove_file(node.path(directory).join(FILLER)).unwrap();
        assert_eq!(node.prepare("a").await, first, "{case}\n{}", node.log());
        assert_eq!(node.unprepare("a").await, "", "{case}");
    }
    assert!(node.stop().await, "{}", node.log());
}

/// Runs a test of this program once more, as root of a user namespace, and with its own mounts.
fn again_where_it_may_mount(name: &str) {
    // A directory in which something is mounted cannot be removed: from outside nothing is.
    let root = tempfile::tempdir().unwrap();
    let again = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(INSIDE, "1")
        .env("TMPDIR", root.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout).into_owned()
        + &String::from_utf8_lossy(&again.stderr);
    assert!(
        again.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

fn mount(directory: &Path) {
    fs::create_dir(directory).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", OPTIONS, "tmpfs"])
        .arg(directory)
        .status()
        .unwrap();
    assert!(mounted.success());
}

fn page_bytes(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).unwrap().f_frsize
}

fn free_pages(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).unwrap().f_bavail
}

/// Fills the file system of a directory until the kernel refuses, then frees so many pages.
fn leave_room(directory: &Path, pages: u64) {
    let mut filler = fs::File::create(directory.join(FILLER)).unwrap();
    let full = loop {
        if let Err(error) = filler.write_all(&[0; 4_096]) {
            break error;
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    let bytes = filler.metadata().unwrap().len();
    filler
        .set_len(bytes - pages * page_bytes(directory))
        .unwrap();
    assert_eq!(free_pages(directory), pages);
}
