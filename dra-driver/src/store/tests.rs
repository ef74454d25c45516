//! What is written, read, kept, and set aside.

mod fuzz;

use super::*;
use crate::prepare::{ClaimRef, MadeSlice, Placement, RecordState, Unit};

fn record(uid: &str) -> Record {
    Record {
        claim: ClaimRef {
            uid: uid.to_owned(),
            namespace: "ml".to_owned(),
            name: "train".to_owned(),
        },
        state: RecordState::Prepared,
        call: Some("i/1".to_owned()),
        by_name: None,
        pods: vec!["p".to_owned()],
        devices: vec![RecordedDevice {
            request: "gpu".to_owned(),
            pool: "node-0".to_owned(),
            device: "gpu-2".to_owned(),
            unit: Unit::whole("GPU-2"),
            minor: 2,
            admin_access: false,
            slice: None,
        }],
    }
}

/// The same of a slice of that GPU.
fn slice_record(uid: &str) -> Record {
    let placement = Placement { start: 4, size: 1 };
    let mut record = record(uid);
    for device in &mut record.devices {
        device.device = "gpu-2-mig-1g10gb-4".to_owned();
        device.unit = Unit::slice("GPU-2", placement, 1);
        device.slice = Some(RecordedSlice {
            profile: "1g.10gb".to_owned(),
            gpu_instance_profile: 19,
            placement,
            stays: false,
            made: Some(MadeSlice {
                gpu_instance: 1,
                compute_instance: 0,
                uuid: "MIG-1".to_owned(),
            }),
        });
    }
    record
}

fn acknowledged() -> Write {
    Write::PutNode {
        boot_id: "boot".to_owned(),
        acknowledged: Some(Acknowledged {
            uid: Some("u".to_owned()),
            generation: 7,
            enforce: true,
        }),
    }
}

struct Fixture {
    root: tempfile::TempDir,
    store: Store,
}

fn fixture() -> Fixture {
    let root = tempfile::tempdir().unwrap();
    let cdi = root.path().join("cdi");
    fs::create_dir(&cdi).unwrap();
    let cdi = cdi::Directory::new(cdi, "gpu.muster.dev", "/nonexistent-muster");
    let store = Store::open(root.path().join("state"), cdi).unwrap();
    Fixture { root, store }
}

impl Fixture {
    fn apply(&self, write: &Write) {
        let lock = self.store.lock().unwrap();
        self.store.apply(&lock, write).unwrap();
    }

    fn load(&self) -> Result<Disk, DiskFailure> {
        let lock = self.store.lock().unwrap();
        self.store.load(&lock)
    }
}

#[test]
fn what_is_written_is_read_and_a_write_may_be_repeated() {
    let f = fixture();
    assert_eq!(f.load().unwrap(), Disk::default());
    for _ in 0..2 {
        f.apply(&acknowledged());
        f.apply(&Write::PutRecord(record("c")));
        f.apply(&Write::PutCdi(record("c")));
    }
    let disk = f.load().unwrap();
    assert_eq!(disk.boot_id.as_deref(), Some("boot"));
    assert_eq!(disk.acknowledged.unwrap().generation, 7);
    assert_eq!(
        disk.records,
        BTreeMap::from([("c".to_owned(), record("c"))])
    );
    assert_eq!(
        f.store.records_in_cdi().unwrap(),
        BTreeMap::from([("c".to_owned(), Some(record("c")))])
    );
    for _ in 0..2 {
        f.apply(&Write::RemoveCdi("c".to_owned()));
        f.apply(&Write::RemoveRecord("c".to_owned()));
    }
    assert!(f.load().unwrap().records.is_empty());
    assert!(f.store.records_in_cdi().unwrap().is_empty());
}

#[test]
fn the_checkpoint_is_stored_as_it_was() {
    let f = fixture();
    f.apply(&acknowledged());
    f.apply(&Write::PutRecord(record("c")));
    for (file, name) in [
        ("state/node.json", "checkpoint-node.json"),
        ("state/claims/c.json", "checkpoint-claim.json"),
    ] {
        let stored = fs::read_to_string(f.root.path().join(file)).unwrap();
        crate::golden::compare(name, &stored);
    }
}

#[test]
fn a_slice_is_stored_as_it_was_by_a_version_that_earlier_drivers_refuse() {
    let f = fixture();
    f.apply(&Write::PutRecord(slice_record("c")));
    let path = f.root.path().join("state/claims/c.json");
    crate::golden::compare("checkpoint-slice.json", &fs::read_to_string(path).unwrap());
    assert_eq!(f.load().unwrap().records.get("c"), Some(&slice_record("c")));
    // Given back for a whole GPU, it is one that every version reads.
    f.apply(&Write::PutRecord(record("c")));
    let path = f.root.path().join("state/claims/c.json");
    crate::golden::compare("checkpoint-claim.json", &fs::read_to_string(path).unwrap());
}

#[test]
fn what_was_stored_before_there_were_slices_is_read_as_it_is() {
    let f = fixture();
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let state = f.root.path().join("state");
    for (name, file) in [
        ("checkpoint-node.json", "node.json"),
        ("checkpoint-claim.json", "claims/c.json"),
    ] {
        fs::copy(golden.join(name), state.join(file)).unwrap();
    }
    let disk = f.load().unwrap();
    assert_eq!(disk.records.get("c"), Some(&record("c")));
    assert_eq!(disk.acknowledged.unwrap().generation, 7);
}

#[test]
fn a_slice_that_was_made_in_this_boot_is_known_as_ours_without_its_record() {
    let f = fixture();
    f.apply(&acknowledged());
    let made_in = |boot_id: &str| {
        let lock = f.store.lock().unwrap();
        f.store.made_slices(&lock, boot_id).unwrap()
    };
    let made = || made_in("boot");
    f.apply(&Write::PutRecord(slice_record("c")));
    f.apply(&Write::RemoveRecord("c".to_owned()));
    assert_eq!(made(), BTreeSet::new(), "it was given back");
    f.apply(&Write::PutRecord(slice_record("c")));
    fs::remove_file(f.root.path().join("state/claims/c.json")).unwrap();
    assert_eq!(made(), BTreeSet::from(["MIG-1".to_owned()]));
    // It ended with its boot, also before anything was written in the next one.
    assert_eq!(made_in("next"), BTreeSet::new());
    f.apply(&Write::PutNode {
        boot_id: "next".to_owned(),
        acknowledged: None,
    });
    let mut other = slice_record("d");
    other.devices[0].slice.as_mut().unwrap().made = Some(MadeSlice {
        gpu_instance: 1,
        compute_instance: 0,
        uuid: "MIG-2".to_owned(),
    });
    f.apply(&Write::PutRecord(other));
    assert_eq!(made_in("next"), BTreeSet::from(["MIG-2".to_owned()]));
    assert_eq!(made(), BTreeSet::new());
}

#[test]
fn a_slice_that_is_not_made_yet_has_no_cdi_file() {
    let f = fixture();
    let mut intended = slice_record("c");
    intended.devices[0].slice.as_mut().unwrap().made = None;
    let lock = f.store.lock().unwrap();
    let failure = f.store.apply(&lock, &Write::PutCdi(intended)).unwrap_err();
    assert!(failure.message.contains("gpu-2-mig-1g10gb-4"), "{failure}");
    assert!(f.store.records_in_cdi().unwrap().is_empty());
}

#[test]
fn the_lock_of_a_gpu_is_its_own_and_no_path() {
    let f = fixture();
    let held = f.store.lock_gpu("GPU-2").unwrap();
    assert!(f.store.try_lock_gpu("GPU-2").unwrap().is_none());
    assert!(f.store.try_lock_gpu("GPU-3").unwrap().is_some());
    drop(held);
    assert!(f.store.try_lock_gpu("GPU-2").unwrap().is_some());
    for odd in ["", "../lock", "GPU/2"] {
        f.store.lock_gpu(odd).unwrap_err();
        f.store.changes_of_gpu(odd).unwrap_err();
    }
}

#[test]
fn changes_of_a_gpu_are_counted_by_whoever_takes_its_lock_and_not_by_who_counts_them() {
    let f = fixture();
    let changes = |gpu: &str| f.store.changes_of_gpu(gpu).unwrap();
    assert_eq!(changes("GPU-2"), Some(0));
    for before in 0..3 {
        assert_eq!(changes("GPU-2"), Some(before));
        let held = f.store.lock_gpu("GPU-2").unwrap();
        assert_eq!(changes("GPU-2"), None, "one is under way");
        drop(held);
    }
    drop(f.store.try_lock_gpu("GPU-2").unwrap());
    assert_eq!(changes("GPU-2"), Some(4));
    assert_eq!(changes("GPU-3"), Some(0), "another GPU");
    let locked = f.store.try_lock_gpu_and_load("GPU-3").unwrap();
    assert_eq!(changes("GPU-3"), None);
    drop(locked);
    assert_eq!(changes("GPU-3"), Some(1));
}

#[test]
fn the_count_of_changes_takes_no_room_on_the_disk() {
    let f = fixture();
    let (path, _) = f.store.gpu_lock_file("GPU-2").unwrap();
    for _ in 0..1_000 {
        drop(f.store.lock_gpu("GPU-2").unwrap());
    }
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.len(), 1_000);
    // There is nothing in it. (Some file systems count one block for the file itself.)
    let blocks = std::os::unix::fs::MetadataExt::blocks(&metadata);
    assert!(blocks <= 1, "{blocks}");
}

/// A record that is cut, or in which a byte is another, is read as something whole, refused as newer, or set aside: nothing
/// panics, and nothing but that record and the generation is lost.
#[test]
fn a_record_in_which_anything_is_wrong_costs_at_most_itself_and_the_generation() {
    let f = fixture();
    f.apply(&Write::PutRecord(record("good")));
    f.apply(&Write::PutRecord(slice_record("bad")));
    let path = f.root.path().join("state/claims/bad.json");
    let whole = fs::read(&path).unwrap();
    let cut = (0..whole.len()).map(|length| whole[..length].to_vec());
    let changed = (0..whole.len()).flat_map(|place| {
        [0, b'"', b'9'].map(|byte| {
            let mut changed = whole.clone();
            changed[place] = byte;
            changed
        })
    });
    for content in cut.chain(changed) {
        let told = String::from_utf8_lossy(&content).into_owned();
        let node = f.root.path().join("state/node.json");
        fs::write(
            &node,
            r#"{"schema":1,"bootId":"boot","acknowledged":{"uid":"u","generation":7,"enforce":true}}"#,
        )
        .unwrap();
        fs::write(&path, &content).unwrap();
        match f.load() {
            Ok(disk) => {
                assert_eq!(disk.records.get("good"), Some(&record("good")), "{told}");
                let is_read = disk.records.contains_key("bad");
                assert_eq!(disk.acknowledged.is_some(), is_read, "{told}");
            }
            Err(failure) => assert!(failure.message.contains("has schema"), "{failure}"),
        }
    }
}

#[test]
fn unknown_fields_are_kept_also_inside_a_device_and_go_with_it() {
    let f = fixture();
    f.apply(&Write::PutRecord(record("c")));
    let path = f.root.path().join("state/claims/c.json");
    let read = || -> Value { serde_json::from_slice(&fs::read(&path).unwrap()).unwrap() };
    let mut value = read();
    value["devices"][0]["later"] = Value::from(5);
    value["devices"][0]["unit"]["later"] = Value::from(6);
    fs::write(&path, serde_json::to_vec(&value).unwrap()).unwrap();
    let mut changed = record("c");
    changed.state = RecordState::Unpreparing;
    f.apply(&Write::PutRecord(changed));
    let value = read();
    assert_eq!(value["state"], "Unpreparing");
    assert_eq!(value["devices"][0]["later"], 5);
    assert_eq!(value["devices"][0]["unit"]["later"], 6);
    f.apply(&Write::PutRecord(slice_record("c")));
    assert_eq!(read()["devices"][0].get("later"), None);
}

#[test]
fn a_broken_record_costs_the_generation_and_nothing_else() {
    for broken in ["", "{", "[]", "{\"schema\":1}", "\u{0}\u{0}"] {
        let f = fixture();
        f.apply(&acknowledged());
        f.apply(&Write::PutRecord(record("good")));
        let path = f.root.path().join("state/claims/bad.json");
        fs::write(&path, broken).unwrap();

        let disk = f.load().unwrap();
        assert_eq!(disk.acknowledged, None, "{broken:?}");
        assert_eq!(disk.boot_id.as_deref(), Some("boot"));
        assert_eq!(disk.records.keys().collect::<Vec<_>>(), ["good"]);
        assert!(f.root.path().join("state/quarantine/bad.json").exists());
        // Also after a restart, until somebody rebuilds.
        assert_eq!(f.load().unwrap().acknowledged, None);
    }
}

fn node_file(f: &Fixture) -> PathBuf {
    f.root.path().join("state/node.json")
}

fn begun() -> Write {
    Write::BeginRebuild {
        boot_id: "boot".to_owned(),
        rebuild: "one/7".to_owned(),
    }
}

#[test]
fn the_name_of_a_rebuild_stands_until_it_is_done_or_more_is_lost() {
    let f = fixture();
    f.apply(&begun());
    let disk = f.load().unwrap();
    assert_eq!(disk.rebuild.as_deref(), Some("one/7"));
    assert_eq!(disk.boot_id.as_deref(), Some("boot"));
    assert_eq!(disk.acknowledged, None);
    f.apply(&acknowledged());
    assert_eq!(f.load().unwrap().rebuild, None);
    let text = fs::read_to_string(node_file(&f)).unwrap();
    crate::golden::compare("checkpoint-node.json", &text);
    // A record is lost, and then the whole file.
    let record = f.root.path().join("state/claims/bad.json");
    for lost in [record, node_file(&f)] {
        f.apply(&begun());
        fs::write(&lost, "{").unwrap();
        for _ in 0..2 {
            assert_eq!(f.load().unwrap().rebuild, None, "{}", lost.display());
        }
    }
}

/// A driver from before rebuilds had names keeps them as it keeps all that it does not know, and says itself how far it has come.
#[test]
fn beside_a_generation_the_name_of_a_rebuild_says_nothing_and_goes_with_the_next_write() {
    let f = fixture();
    let kept = r#"{"schema":1,"bootId":"boot","acknowledged":{"uid":"u","generation":6,"enforce":true},"rebuild":"one/7"}"#;
    fs::write(node_file(&f), kept).unwrap();
    let disk = f.load().unwrap();
    assert_eq!(
        (disk.acknowledged.unwrap().generation, disk.rebuild),
        (6, None)
    );
    f.apply(&acknowledged());
    let text = fs::read_to_string(node_file(&f)).unwrap();
    crate::golden::compare("checkpoint-node.json", &text);
}

/// It rebuilt as well, prepared, and lost a record: what was gathered under that name before knows nothing of it.
#[test]
fn s1_the_name_of_a_rebuild_that_a_driver_from_before_names_kept_over_another_loss_counts_no_more()
{
    let f = fixture();
    f.apply(&begun());
    let text = fs::read_to_string(node_file(&f)).unwrap();
    let mut file: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(file["acknowledged"], Value::Null);
    assert!(later_schema(&file).is_none(), "it can read that: {text}");
    // Whatever it writes has this schema.
    file["schema"] = Value::from(FIRST_SCHEMA);
    fs::write(node_file(&f), serde_json::to_vec(&file).unwrap()).unwrap();
    for _ in 0..2 {
        assert_eq!(f.load().unwrap().rebuild, None);
    }
    f.apply(&Write::BeginRebuild {
        boot_id: "boot".to_owned(),
        rebuild: "one/9".to_owned(),
    });
    assert_eq!(f.load().unwrap().rebuild.as_deref(), Some("one/9"));
}

#[test]
fn a_broken_node_file_costs_the_generation() {
    let f = fixture();
    f.apply(&acknowledged());
    f.apply(&Write::PutRecord(record("good")));
    fs::write(f.root.path().join("state/node.json"), "{\"schema\":1,").unwrap();
    let disk = f.load().unwrap();
    assert_eq!((disk.boot_id, disk.acknowledged), (None, None));
    assert_eq!(disk.records.len(), 1);
}

#[test]
fn a_newer_schema_is_refused_and_left_as_it_is() {
    let f = fixture();
    let path = f.root.path().join("state/claims/c.json");
    fs::write(&path, r#"{"schema":4,"later":true}"#).unwrap();
    let failure = f.load().unwrap_err();
    assert!(failure.to_string().contains("schema 4"), "{failure}");
    assert!(path.exists());
}

#[test]
fn unknown_fields_are_kept() {
    let f = fixture();
    f.apply(&Write::PutRecord(record("c")));
    let path = f.root.path().join("state/claims/c.json");
    let mut value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    value
        .as_object_mut()
        .unwrap()
        .insert("later".to_owned(), Value::from(5));
    fs::write(&path, serde_json::to_vec(&value).unwrap()).unwrap();

    let mut changed = record("c");
    changed.call = None;
    f.apply(&Write::PutRecord(changed.clone()));
    let value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(value.get("later"), Some(&Value::from(5)));
    assert_eq!(value.get("call"), None);
    assert_eq!(f.load().unwrap().records.get("c"), Some(&changed));
}

fn hook(f: &Fixture, content: &str) -> HookProgram {
    let source = f.root.path().join(content);
    fs::write(&source, content).unwrap();
    HookProgram::new(&source, &f.root.path().join("bin")).unwrap()
}

fn hooks(f: &Fixture) -> usize {
    fs::read_dir(f.root.path().join("bin")).unwrap().count()
}

/// The CDI file of a claim that names a hook.
fn write_spec(f: &Fixture, uid: &str, hook: &HookProgram) {
    let spec = serde_json::json!({
        "cdiVersion": "0.6.0", "kind": "gpu.muster.dev/claim", "devices": [], "containerEdits": {"hooks": [
            {"hookName": "createContainer", "path": hook.path(), "args": [], "env": ["A=b"]}]},
    });
    fs::write(f.store.cdi.file(uid), spec.to_string()).unwrap();
}

#[test]
fn an_old_hook_goes_with_the_last_cdi_file_that_names_it_and_not_while_one_cannot_be_read() {
    let f = fixture();
    let old = hook(&f, "old");
    old.install().unwrap();
    let f = Fixture {
        store: f.store.clone().with_hook(hook(&f, "new")),
        ..f
    };
    for uid in ["a", "b"] {
        write_spec(&f, uid, &old);
    }
    fs::write(f.store.cdi.file("c"), "{").unwrap();
    // The new one is installed no later than a file names it.
    f.apply(&Write::PutCdi(record("d")));
    assert_eq!(hooks(&f), 2);
    for (uid, left) in [("a", 2), ("b", 2), ("c", 1)] {
        f.apply(&Write::RemoveCdi(uid.to_owned()));
        assert_eq!(hooks(&f), left, "after {uid}");
    }
}

#[test]
fn what_the_driver_root_lacks_has_its_own_reason_and_no_cdi_file() {
    let f = fixture();
    let driver = cdi::Driver {
        root: cdi::DriverRoot {
            path: f.root.path().join("root"),
            on_host: "/".into(),
        },
        hooks: cdi::Hooks::Toolkit("/usr/bin/nvidia-cdi-hook".into()),
        modules: std::sync::Arc::new(cdi::NvidiaModprobe::new(f.root.path().join("root"))),
    };
    let cdi = f.store.cdi.clone().with_driver(driver);
    let store = Store::open(f.root.path().join("state"), cdi).unwrap();
    let lock = store.lock().unwrap();
    let failure = store.apply(&lock, &Write::PutCdi(record("c"))).unwrap_err();
    assert_eq!(failure.reason, Some(Reason::DriverIncomplete));
    assert!(
        failure
            .message
            .contains("kernel module nvidia is not loaded"),
        "{failure}"
    );
    assert!(store.records_in_cdi().unwrap().is_empty());
}

#[test]
fn slices_of_layouts_are_noted_for_a_boot_until_they_are_gone_or_a_claim_makes_them() {
    let f = fixture();
    let noted = |boot_id: &str| {
        let lock = f.store.lock().unwrap();
        let noted = f.store.layout_slices(&lock, boot_id).unwrap();
        noted.into_iter().collect::<Vec<_>>()
    };
    let note = |uuid: &str, is_made: bool| {
        let lock = f.store.lock().unwrap();
        f.store
            .note_layout_slice(&lock, "boot", uuid, is_made)
            .unwrap();
    };
    f.apply(&acknowledged());
    for uuid in ["MIG-1", "MIG-2", "MIG-3", "MIG-4"] {
        note(uuid, true);
    }
    assert_eq!(noted("boot"), ["MIG-1", "MIG-2", "MIG-3", "MIG-4"]);
    assert!(noted("next").is_empty(), "slices end with the boot");
    // It was removed.
    note("MIG-2", false);
    assert_eq!(noted("boot"), ["MIG-1", "MIG-3", "MIG-4"]);
    // A claim has the one made anew that lies there.
    f.apply(&Write::PutRecord(slice_record("c")));
    assert_eq!(noted("boot"), ["MIG-3", "MIG-4"]);
    f.apply(&Write::RemoveRecord("c".to_owned()));
    assert_eq!(noted("boot"), ["MIG-3", "MIG-4"]);
    // Somebody else removed it.
    let lock = f.store.lock().unwrap();
    let gone = BTreeSet::from(["MIG-1".to_owned(), "MIG-3".to_owned()]);
    f.store.forget_layout_slices(&lock, "boot", &gone).unwrap();
    drop(lock);
    assert_eq!(noted("boot"), ["MIG-4"]);
}

#[test]
fn the_lock_is_held_by_one() {
    let f = fixture();
    let held = f.store.lock().unwrap();
    let path = f.root.path().join("state/lock");
    let other = OpenOptions::new().write(true).open(path).unwrap();
    assert!(other.try_lock().is_err());
    drop(held);
    assert!(other.try_lock().is_ok());
}
