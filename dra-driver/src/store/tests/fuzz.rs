//! Files of the state directory in which anything is wrong, by chance: cut, changed, exchanged, of somebody else, empty, huge, or no files
//! at all. Whatever it is, nothing panics, nothing waits, what is whole is read, what is not is set aside once and can be written anew. Only a
//! file of a later version is left where it is.

use std::{fmt::Write as _, os::unix::fs::symlink};

use muster_api::{FaultPolicySpec, FaultRule};
use muster_device::{Listed, ListedGpu};

use super::{
    marks::{Mark, MarkedReset, NotReserved},
    *,
};
use crate::{
    bypass::remembered::Remembered,
    faults,
    inventory::{KnownGpus, fixtures},
    random::Random,
};

/// How many state directories, unless `MUSTER_RUNS` says otherwise: seconds, most of which the disk takes.
const RUNS: u64 = 25;
/// How often each is damaged, so that the same file is set aside more than once.
const ROUNDS: u64 = 3;
/// All files with a schema, two of claims and one of a GPU that a command was left running on. What people say (`mended`) is text, and is no
/// part of this.
const FILES: [&str; 10] = [
    "claims/c.json",
    "claims/s.json",
    MARK,
    "node.json",
    "devices.json",
    "slices.json",
    "layout-slices.json",
    "faults.json",
    "fault-policy.json",
    "bypasses.json",
];
/// The mark of that GPU, which no claim has.
const MARK: &str = "claims/GPU-7.hook.json";
const MARKED: &str = "GPU-7";

/// What files hold that are not ours, or that somebody has edited.
fn foreign() -> Vec<String> {
    let text = [
        "null",
        "[]",
        "{}",
        "\"x\"",
        "17",
        "{\"schema\":1}",
        "{\"schema\":\"1\"}",
        "{\"schema\":-1,\"gpus\":{}}",
        "{\"schema\":1,\"bootId\":7,\"uuids\":[1e999]}",
        "{\"schema\":1,\"bootId\":\"boot\",\"gpus\":[null],\"records\":[]}",
        "apiVersion: v1\nkind: List\n",
        "\u{feff}{\"schema\":1}",
    ];
    let mut foreign: Vec<String> = text.iter().map(|text| (*text).to_owned()).collect();
    foreign.push("[".repeat(100_000));
    foreign.push(format!("{{\"schema\":1,\"{}\":1}}", "x".repeat(100_000)));
    foreign
}

fn listed() -> Listed {
    Listed {
        gpus: vec![ListedGpu {
            gpu: fixtures::gpu("GPU-2", 0, "0000:01:00.0"),
            silent: None,
        }],
        unidentified: Vec::new(),
    }
}

fn known() -> KnownGpus {
    KnownGpus::default().after("boot", &listed())
}

fn records() -> BTreeMap<String, Record> {
    let records = [record("c"), slice_record("s")].into_iter();
    records
        .map(|record| (record.claim.uid.clone(), record))
        .collect()
}

fn fault_policy() -> FaultPolicySpec {
    let rule = FaultRule {
        xid: Some(31),
        class: "App".to_owned(),
        ..FaultRule::default()
    };
    FaultPolicySpec { rules: vec![rule] }
}

fn mark() -> Mark {
    Mark {
        id: "one".to_owned(),
        boot_id: "boot".to_owned(),
        reset: Some(MarkedReset {
            gpu: MARKED.to_owned(),
            number: 1,
        }),
    }
}

/// Takes up the mark that was left and leaves one anew, as drivers do that end while a command runs.
fn mark_anew(f: &Fixture) -> Result<(), DiskFailure> {
    for (uuid, left, guard) in f.store.left_marks()? {
        drop(guard);
        f.store.remove_left_mark(&uuid, &left)?;
    }
    // One of a later version stays, and keeps its GPU.
    drop(read::<Mark>(&state(f).join(MARK))?);
    let gpus = BTreeSet::from([MARKED.to_owned()]);
    match f.store.reserve(&gpus, &mark(), |_, _| Ok(())) {
        Ok(reserved) => {
            drop(reserved);
            Ok(())
        }
        Err(NotReserved::Disk(failure)) => Err(failure),
        Err(NotReserved::InUse(why)) => panic!("{why}"),
    }
}

/// What is left of the mark: it is found as somebody wrote it, set aside, or of a later version, and keeps its GPU if it is there.
fn check_mark(f: &Fixture, is_whole: bool, told: &str) {
    let left = f.store.left_marks().unwrap();
    let found = left.iter().find(|(uuid, ..)| uuid == MARKED);
    if is_whole {
        let found = found.map(|(_, mark, _)| mark);
        assert_eq!(found, Some(&mark()), "{told}");
    }
    let path = state(f).join(MARK);
    let is_there = fs::symlink_metadata(&path).is_ok();
    match found {
        Some(_) => assert!(is_there, "{told}"),
        None if is_there => {
            let failure = read::<Mark>(&path).err();
            assert!(
                failure.as_ref().is_some_and(is_newer),
                "{told}: {failure:?}"
            );
        }
        None => assert!(is_set_aside(f, MARK), "{told}"),
    }
    drop(left);
    let is_kept = f.store.changes_of_gpu(MARKED).unwrap().is_none();
    assert_eq!(is_kept, is_there, "{told}");
}

fn state(f: &Fixture) -> PathBuf {
    f.root.path().join("state")
}

/// Writes all files, as the driver does once it has rebuilt what was lost.
fn write_all(f: &Fixture) -> Result<(), DiskFailure> {
    let lock = f.store.lock().unwrap();
    f.store.apply(&lock, &acknowledged())?;
    for record in records().into_values() {
        f.store.apply(&lock, &Write::PutRecord(record))?;
    }
    f.store.note_layout_slice(&lock, "boot", "MIG-9", true)?;
    put_beside(&f.store, "devices.json", &known())?;
    drop(lock);
    let faults = faults::memory::load(&f.store, "boot")?;
    let generation = faults.generation();
    drop(faults::memory::write(&f.store, &faults, generation)?);
    faults::policy::keep(&f.store, &fault_policy())?;
    mark_anew(f)?;
    Remembered::load(&f.store).write(&f.store)
}

/// The files as they are, but for those that are not there.
fn snapshot(f: &Fixture) -> BTreeMap<&'static str, Vec<u8>> {
    let there = FILES
        .into_iter()
        .filter_map(|file| Some((file, fs::read(state(f).join(file)).ok()?)));
    there.collect()
}

fn take_away(path: &Path) {
    let is_directory = fs::symlink_metadata(path).is_ok_and(|it| it.is_dir());
    if is_directory {
        fs::remove_dir_all(path).unwrap();
    } else {
        let _ = fs::remove_file(path);
    }
}

/// Does something to a file; what, for people.
fn damage(
    f: &Fixture,
    file: &str,
    before: &BTreeMap<&'static str, Vec<u8>>,
    random: &mut Random,
) -> &'static str {
    let path = state(f).join(file);
    let mut content = before.get(file).cloned().unwrap_or_default();
    take_away(&path);
    match random.below(8) {
        0 => {
            let length = random.place(content.len() + 1);
            fs::write(&path, &content[..length]).unwrap();
            "cut"
        }
        1 => {
            for _ in 0..=random.below(8) {
                if !content.is_empty() {
                    let place = random.place(content.len());
                    content[place] ^= 1 << random.below(8);
                }
            }
            fs::write(&path, content).unwrap();
            "bits"
        }
        2 => {
            let other = FILES[random.place(FILES.len())];
            fs::write(&path, before.get(other).cloned().unwrap_or_default()).unwrap();
            "another of our files"
        }
        3 => {
            let foreign = foreign();
            fs::write(&path, &foreign[random.place(foreign.len())]).unwrap();
            "foreign"
        }
        4 => {
            fs::write(&path, "").unwrap();
            "empty"
        }
        5 => {
            // It takes no room on the disk, and more memory than anybody has for it.
            File::create(&path).unwrap().set_len(8 << 30).unwrap();
            "huge"
        }
        6 => {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), "{}").unwrap();
            "a directory"
        }
        _ => {
            let itself = path.file_name().unwrap().to_str().unwrap();
            let other = state(f).join("node.json");
            let targets = [itself, "nowhere", "/", "/dev/zero", other.to_str().unwrap()];
            symlink(targets[random.place(targets.len())], &path).unwrap();
            "a link"
        }
    }
}

/// A file of a later version, which is all that may be in the way.
fn is_newer(failure: &DiskFailure) -> bool {
    failure.message.contains("has schema")
}

/// Whether a file of this name was set aside.
fn is_set_aside(f: &Fixture, file: &str) -> bool {
    let name = Path::new(file).file_name().unwrap().to_str().unwrap();
    let aside = fs::read_dir(state(f).join("quarantine")).into_iter();
    let mut aside = aside.flatten().flatten();
    aside.any(|entry| entry.file_name().to_str().unwrap().starts_with(name))
}

/// Damages some files and looks at what comes of it. `written`: the files as they were at first, for a change that could be read may have stayed.
/// `false`: one of them is of a later version by now.
fn goes_on(
    f: &Fixture,
    written: &BTreeMap<&'static str, Vec<u8>>,
    random: &mut Random,
    told: &mut String,
) -> bool {
    let before = snapshot(f);
    let first = random.place(FILES.len());
    let mut damaged = BTreeSet::new();
    for (place, file) in FILES.into_iter().enumerate() {
        if place == first || random.below(3) == 0 {
            let what = damage(f, file, &before, random);
            write!(told, "; {file}: {what}").unwrap();
            damaged.insert(file);
        }
    }
    let disk = match f.load() {
        Ok(disk) => disk,
        Err(failure) => {
            assert!(is_newer(&failure), "{told}: {failure}");
            return false;
        }
    };
    let mut is_any_lost = false;
    for (uid, record) in records() {
        let file = format!("claims/{uid}.json");
        if !damaged.contains(file.as_str()) {
            assert_eq!(disk.records.get(&uid), Some(&record), "{told}");
        } else if !disk.records.contains_key(&uid) {
            is_any_lost = true;
            assert!(
                fs::symlink_metadata(state(f).join(&file)).is_err(),
                "{told}"
            );
            assert!(is_set_aside(f, &file), "{told}");
        }
    }
    if is_any_lost {
        assert_eq!(disk.acknowledged, None, "{told}");
    } else if !damaged.contains("node.json") {
        assert!(disk.acknowledged.is_some(), "{told}");
    }
    assert_eq!(f.load().as_ref(), Ok(&disk), "{told}: a second time");

    let whole = |file: &str| {
        let is_as_written = before.get(file) == written.get(file);
        is_as_written && before.contains_key(file) && !damaged.contains(file)
    };
    let lock = f.store.lock().unwrap();
    let layouts = f.store.layout_slices(&lock, "boot");
    let made = f.store.made_slices(&lock, "boot");
    for (file, found, uuid) in [
        ("layout-slices.json", layouts, "MIG-9"),
        ("slices.json", made, "MIG-1"),
    ] {
        match found {
            Ok(uuids) => assert!(!whole(file) || uuids.contains(uuid), "{told}: {uuids:?}"),
            Err(failure) => assert!(is_newer(&failure), "{told}: {failure}"),
        }
    }
    match load_beside::<KnownGpus>(&f.store, "devices.json") {
        Ok(found) => {
            assert!(
                !whole("devices.json") || found.as_ref() == Some(&known()),
                "{told}: {found:?}"
            );
            let after = found.unwrap_or_default().after("boot", &listed());
            let mut gpus = after.gpus.iter();
            assert!(gpus.any(|it| it.gpu.uuid == "GPU-2"), "{told}: {after:?}");
        }
        Err(failure) => assert!(is_newer(&failure), "{told}: {failure}"),
    }
    drop(lock);
    let policy = faults::policy::load(&f.store);
    assert!(
        !whole("fault-policy.json") || policy == fault_policy(),
        "{told}: {policy:?}"
    );
    check_mark(f, whole(MARK), told);
    if let Err(failure) = write_all(f) {
        assert!(is_newer(&failure), "{told}: {failure}");
        return false;
    }
    let disk = f.load().unwrap();
    assert_eq!(disk.records, records(), "{told}");
    let generation = disk.acknowledged.map(|it| it.generation);
    assert_eq!(generation, Some(7), "{told}");
    true
}

#[test]
fn whatever_is_wrong_with_the_files_of_the_state_directory_the_rest_is_read_and_all_can_be_written_anew()
 {
    let runs = std::env::var("MUSTER_RUNS").ok();
    let runs = runs.map_or(RUNS, |number| number.parse().unwrap());
    let mut rounds = 0;
    for seed in 0..runs {
        let mut random = Random(seed);
        let mut told = format!("seed {seed}");
        println!("{told}");
        let f = fixture();
        write_all(&f).unwrap();
        let written = snapshot(&f);
        for _ in 0..ROUNDS {
            if !goes_on(&f, &written, &mut random, &mut told) {
                break;
            }
            rounds += 1;
        }
    }
    assert!(rounds > runs, "{rounds} rounds of {runs} runs");
}

#[test]
fn of_what_is_set_aside_twice_both_are_kept_where_one_cannot_take_the_place_of_the_other() {
    let f = fixture();
    f.apply(&acknowledged());
    let path = state(&f).join("node.json");
    for _ in 0..2 {
        take_away(&path);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "").unwrap();
        assert_eq!(f.load().unwrap(), Disk::default());
        fs::write(&path, "{").unwrap();
        assert_eq!(f.load().unwrap(), Disk::default());
    }
    let quarantine = fs::read_dir(state(&f).join("quarantine")).unwrap();
    assert_eq!(quarantine.count(), 3, "two directories, and the last file");
    f.apply(&acknowledged());
    assert_eq!(f.load().unwrap().boot_id.as_deref(), Some("boot"));
}

#[test]
fn a_file_is_read_up_to_the_limit_and_set_aside_beyond_it() {
    let f = fixture();
    let path = state(&f).join("node.json");
    let empty = "{\"schema\":1,\"bootId\":\"\"}";
    let limit = usize::try_from(MAX_FILE_BYTES).unwrap();
    for (bytes, is_read) in [(limit, true), (limit + 1, false)] {
        let boot_id = "b".repeat(bytes - empty.len());
        fs::write(&path, empty.replace("\"\"", &format!("\"{boot_id}\""))).unwrap();
        assert_eq!(f.load().unwrap().boot_id.is_some(), is_read, "{bytes}");
    }
}
