//! Marks of GPUs that a command of the administrator runs on: a reset, or a check.
//!
//! Whoever has a command run holds the lock of each GPU that it concerns, taken under the one lock while nothing of them was recorded, and marks them
//! by the same turn. While a GPU is locked no claim is recorded for it. The kernel releases the lock when the driver ends, which may be before the
//! command does; so **a GPU is not free while its mark is there**, for this instance or any other ([`Store::changes_of_gpu`],
//! [`Store::try_lock_gpu`]).
//!
//! A mark whose GPU is not locked is of a driver that has ended. Whoever finds it takes the lock, ends what is left of the command, which is found by a
//! variable of its environment, counts the reset if it was one, and removes the mark. Twice, or by two instances, that comes to the same: the
//! reset has a number.
//!
//! **A driver of before marks knows nothing of them.** It would find no lock, and hand the GPU out while it is being reset. So a mark lies among the records of claims,
//! which every version reads before it decides anything, and says that it is of a later version ([`MARK_SCHEMA`]): an earlier one decides nothing for as
//! long as it is there, and says so. That costs the node's other claims as well; it knows nothing better to refuse one GPU by. A driver that is told to
//! stop leaves no mark behind.
//!
//! The lock is given back before the reset is counted, and the mark goes after that: nobody waits for the one lock who holds that of a GPU, and no
//! crash in between loses the count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use muster_device::files;
use serde::{Deserialize, Serialize};

use super::{Content, Guard, MARK_SCHEMA, Store, failure, put, read};
use crate::prepare::{Disk, DiskFailure};

/// How the name of a mark ends, before that of a record does. No UID of a claim has a dot in it.
const SUFFIX: &str = ".hook";
/// How the names of records end.
const RECORD_SUFFIX: &str = ".json";

/// What runs on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// Tells its processes from all others: the value of a variable of their environment.
    pub id: String,
    /// Boot in which they run.
    pub boot_id: String,
    /// The reset that it is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<MarkedReset>,
}

/// A reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MarkedReset {
    /// UUID of the GPU that has the fault.
    pub gpu: String,
    /// How many resets for this fault it makes.
    pub number: u32,
}

/// GPUs that are kept free for a command. Dropped without [`Reserved::release`], the marks stay.
#[derive(Debug)]
#[must_use = "without it the GPUs are not locked"]
pub struct Reserved {
    store: Store,
    guards: BTreeMap<String, Guard>,
    gpus: BTreeSet<String>,
    mark: Mark,
}

/// Why GPUs are not kept.
#[derive(Debug, thiserror::Error)]
pub enum NotReserved {
    /// They are in use, or being changed: in words.
    #[error("{0}")]
    InUse(String),
    /// The disk failed.
    #[error("{0}")]
    Disk(DiskFailure),
}

impl NotReserved {
    fn is_changed(uuid: &str) -> Self {
        Self::InUse(format!("GPU {uuid} is being changed"))
    }
}

impl From<DiskFailure> for NotReserved {
    fn from(failure: DiskFailure) -> Self {
        Self::Disk(failure)
    }
}

impl Reserved {
    /// Gives the locks back. The marks still keep the GPUs.
    pub fn unlock(&mut self) {
        self.guards.clear();
    }

    /// Gives the GPUs free.
    pub fn release(self) -> Result<(), DiskFailure> {
        let remove = |uuid: &String| {
            if self.guards.contains_key(uuid) {
                // Nobody else has come to it.
                self.store.remove_mark(uuid)
            } else {
                self.store.remove_left_mark(uuid, &self.mark)
            }
        };
        self.gpus.iter().map(remove).fold(Ok(()), Result::and)
    }
}

impl Store {
    /// Keeps GPUs for a command, if nobody changes them, none is recorded, and `is_free` holds of what is on the disk; else it says why not. Blocking, for
    /// the time of the one lock.
    pub fn reserve(
        &self,
        gpus: &BTreeSet<String>,
        mark: &Mark,
        is_free: impl FnOnce(&Guard, &Disk) -> Result<(), String>,
    ) -> Result<Reserved, NotReserved> {
        let io = |error: std::io::Error| DiskFailure::new(error.to_string());
        let lock = self.lock().map_err(io)?;
        let mut guards = BTreeMap::new();
        for uuid in gpus {
            let Some(guard) = self.try_lock_gpu(uuid).map_err(io)? else {
                return Err(NotReserved::is_changed(uuid));
            };
            guards.insert(uuid.clone(), guard);
        }
        self.have_no_claims(&lock, gpus, is_free)?;
        let reserved = Reserved {
            store: self.clone(),
            guards,
            gpus: gpus.clone(),
            mark: mark.clone(),
        };
        for uuid in gpus {
            if let Err(failure) = put(&self.mark_file(uuid), mark, MARK_SCHEMA) {
                // Nothing runs yet.
                drop(reserved.release());
                return Err(failure.into());
            }
        }
        Ok(reserved)
    }

    /// Whether GPUs would be kept for a command if that were asked now ([`Store::reserve`]); else why not. Nothing is locked, or marked, for longer than
    /// this takes, and no change of a GPU is counted. Blocking, for the time of the one lock.
    pub fn are_free(
        &self,
        gpus: &BTreeSet<String>,
        is_free: impl FnOnce(&Guard, &Disk) -> Result<(), String>,
    ) -> Result<(), NotReserved> {
        let io = |error: std::io::Error| DiskFailure::new(error.to_string());
        let lock = self.lock().map_err(io)?;
        for uuid in gpus {
            if self.changes_of_gpu(uuid).map_err(io)?.is_none() {
                return Err(NotReserved::is_changed(uuid));
            }
        }
        self.have_no_claims(&lock, gpus, is_free)
    }

    /// Whether no claim with any of these GPUs is recorded, and `is_free` holds.
    fn have_no_claims(
        &self,
        lock: &Guard,
        gpus: &BTreeSet<String>,
        is_free: impl FnOnce(&Guard, &Disk) -> Result<(), String>,
    ) -> Result<(), NotReserved> {
        let disk = self.load(lock)?;
        if disk.acknowledged.is_none() {
            let message = "the records of claims are not rebuilt yet";
            return Err(NotReserved::InUse(message.to_owned()));
        }
        for record in disk.records.values().filter(|record| record.holds()) {
            // One with administrative access has the device as well.
            let mut devices = record.devices.iter();
            if let Some(device) = devices.find(|it| gpus.contains(&it.unit.gpu)) {
                let message = format!("claim {} has {}", record.claim, device.device);
                return Err(NotReserved::InUse(message));
            }
        }
        is_free(lock, &disk).map_err(NotReserved::InUse)
    }

    /// The marks of GPUs that nobody has locked, each with the lock, which is held until it is dropped. One that cannot be read keeps its GPU, and hides
    /// no other. Blocking.
    pub fn left_marks(&self) -> Result<Vec<(String, Mark, Guard)>, DiskFailure> {
        let mut left = Vec::new();
        for uuid in self.marked_gpus()? {
            match self.left_mark(&uuid) {
                Ok(Some((mark, guard))) => left.push((uuid, mark, guard)),
                Ok(None) => {}
                Err(failure) => tracing::warn!(gpu = uuid, %failure, "a mark cannot be read"),
            }
        }
        Ok(left)
    }

    fn left_mark(&self, uuid: &str) -> Result<Option<(Mark, Guard)>, DiskFailure> {
        let locked = self.try_lock_marked_gpu(uuid);
        let locked = locked.map_err(|error| DiskFailure::new(error.to_string()))?;
        let Some(guard) = locked else {
            return Ok(None);
        };
        // It may have gone since it was listed.
        match read::<Mark>(&self.mark_file(uuid))? {
            Content::Good(mark, ..) => Ok(Some((mark, guard))),
            Content::Absent => Ok(None),
            Content::Broken(cause) => {
                self.quarantine(&self.mark_file(uuid), &cause)?;
                Ok(None)
            }
        }
    }

    /// Removes this mark of a GPU that is not locked any more. Somebody else may have done so meanwhile, and have marked it anew: that is left alone.
    /// Blocking, for the time of the one lock, under which marks are made.
    pub fn remove_left_mark(&self, uuid: &str, mark: &Mark) -> Result<(), DiskFailure> {
        let lock = self.lock();
        let _lock = lock.map_err(|error| DiskFailure::new(error.to_string()))?;
        match read::<Mark>(&self.mark_file(uuid))? {
            Content::Good(there, ..) if there == *mark => self.remove_mark(uuid),
            Content::Good(..) | Content::Absent | Content::Broken(_) => Ok(()),
        }
    }

    /// Removes the mark of a GPU.
    fn remove_mark(&self, uuid: &str) -> Result<(), DiskFailure> {
        let path = self.mark_file(uuid);
        files::remove(&path).map_err(|error| failure(&path, &error))
    }

    /// Whether a GPU has a mark. Where that cannot be told it has one.
    pub(super) fn is_marked(&self, uuid: &str) -> bool {
        self.mark_file(uuid).try_exists().unwrap_or(true)
    }

    fn marked_gpus(&self) -> Result<BTreeSet<String>, DiskFailure> {
        let directory = self.directory.join("claims");
        let failed = |error: std::io::Error| failure(&directory, &error);
        let mut marked = BTreeSet::new();
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let name = name.to_str();
            let name = name.and_then(|name| name.strip_suffix(RECORD_SUFFIX));
            let uuid = name.and_then(|name| name.strip_suffix(SUFFIX));
            marked.extend(
                uuid.filter(|uuid| !uuid.starts_with('.'))
                    .map(str::to_owned),
            );
        }
        Ok(marked)
    }

    fn mark_file(&self, uuid: &str) -> PathBuf {
        self.directory
            .join("claims")
            .join(format!("{uuid}{SUFFIX}{RECORD_SUFFIX}"))
    }
}

/// Whether what lies among the records of claims under this name, but for how those end, is a mark.
pub(super) fn is_mark(name: &str) -> bool {
    name.ends_with(SUFFIX)
}

#[cfg(test)]
mod tests {
    use muster_device::cdi;

    use super::*;
    use crate::{
        mock_node::{BOOT, acknowledged, prepared},
        prepare::{Record, RecordState, Unit, Write},
    };

    const GPU: &str = "GPU-0";

    fn store(directory: &tempfile::TempDir) -> Store {
        let path = directory.path();
        let cdi = cdi::Directory::new(path, "gpu.muster.dev", path);
        let store = Store::open(path.join("state"), cdi).unwrap();
        let node = Write::PutNode {
            boot_id: BOOT.to_owned(),
            acknowledged: Some(acknowledged()),
        };
        let lock = store.lock().unwrap();
        store.apply(&lock, &node).unwrap();
        drop(lock);
        store
    }

    fn mark() -> Mark {
        Mark {
            id: "one".to_owned(),
            boot_id: BOOT.to_owned(),
            reset: Some(MarkedReset {
                gpu: GPU.to_owned(),
                number: 1,
            }),
        }
    }

    fn gpus() -> BTreeSet<String> {
        BTreeSet::from([GPU.to_owned(), "GPU-1".to_owned()])
    }

    #[test]
    fn a_gpu_that_is_kept_for_a_command_is_being_changed_for_everybody_else() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        assert!(store.changes_of_gpu(GPU).unwrap().is_some());
        let mut reserved = store.reserve(&gpus(), &mark(), |_, _| Ok(())).unwrap();
        let is_taken = || {
            store.changes_of_gpu(GPU).unwrap().is_none()
                && store.try_lock_gpu(GPU).unwrap().is_none()
                && store.reserve(&gpus(), &mark(), |_, _| Ok(())).is_err()
        };
        assert!(is_taken());
        assert!(store.left_marks().unwrap().is_empty(), "its driver lives");
        reserved.unlock();
        assert!(is_taken(), "the mark is there");
        reserved.release().unwrap();
        assert!(store.changes_of_gpu(GPU).unwrap().is_some());
        assert!(store.try_lock_gpu(GPU).unwrap().is_some());
    }

    #[test]
    fn what_a_driver_that_ended_has_left_is_found_until_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        drop(store.reserve(&gpus(), &mark(), |_, _| Ok(())).unwrap());
        assert_eq!(store.changes_of_gpu(GPU).unwrap(), None, "nobody gets it");
        for _ in 0..2 {
            let left = store.left_marks().unwrap();
            let found: BTreeSet<String> = left.iter().map(|(uuid, ..)| uuid.clone()).collect();
            assert_eq!(found, gpus());
            assert!(left.iter().all(|(_, found, _)| *found == mark()));
        }
        let anew = Mark {
            id: "another".to_owned(),
            ..mark()
        };
        for uuid in gpus() {
            store.remove_left_mark(&uuid, &anew).unwrap();
            assert_eq!(store.changes_of_gpu(&uuid).unwrap(), None, "not its own");
            store.remove_left_mark(&uuid, &mark()).unwrap();
            store.remove_left_mark(&uuid, &mark()).unwrap();
        }
        assert!(store.left_marks().unwrap().is_empty());
        assert!(store.changes_of_gpu(GPU).unwrap().is_some());
    }

    #[test]
    fn a_gpu_that_is_recorded_or_locked_or_otherwise_not_free_is_not_kept_and_bears_no_mark() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        let told = || match store.reserve(&gpus(), &mark(), |_, _| Ok(())) {
            Err(NotReserved::InUse(why)) => {
                let only_asked = store.are_free(&gpus(), |_, _| Ok(())).unwrap_err();
                assert_eq!(only_asked.to_string(), why);
                why
            }
            other => panic!("{other:?}"),
        };
        assert!(store.are_free(&gpus(), |_, _| Ok(())).is_ok());
        let changes = store.changes_of_gpu(GPU).unwrap();
        assert!(store.are_free(&gpus(), |_, _| Ok(())).is_ok());
        assert_eq!(store.changes_of_gpu(GPU).unwrap(), changes, "none counted");
        let held = store.lock_gpu("GPU-1").unwrap();
        assert!(told().contains("GPU-1 is being changed"));
        drop(held);
        let refused = store.reserve(&gpus(), &mark(), |_, _| Err("a slice".to_owned()));
        assert_eq!(refused.unwrap_err().to_string(), "a slice");
        let asked = store.are_free(&gpus(), |_, _| Err("a slice".to_owned()));
        assert_eq!(asked.unwrap_err().to_string(), "a slice");
        let mut record = Record {
            state: RecordState::Preparing,
            ..prepared(Unit::whole(GPU))
        };
        record.devices[0].admin_access = true;
        let lock = store.lock().unwrap();
        store.apply(&lock, &Write::PutRecord(record)).unwrap();
        drop(lock);
        assert!(told().contains("ml/claim"), "{}", told());
        assert!(store.left_marks().unwrap().is_empty());
    }

    /// The record of a claim as drivers of before slices, and before marks, have it, and what they make of the directory: they read each file whose name ends as
    /// that of a record does, and refuse to decide anything if one is of a later version than theirs.
    #[test]
    fn a_driver_of_before_marks_decides_nothing_while_a_gpu_has_one_and_goes_on_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        let claims = directory.path().join("state/claims");
        let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        for (name, uid) in [
            ("checkpoint-claim.json", "c"),
            ("checkpoint-slice.json", "s"),
        ] {
            let text = fs::read_to_string(golden.join(name)).unwrap();
            let text = text.replace(r#""uid":"c""#, &format!(r#""uid":"{uid}""#));
            fs::write(claims.join(format!("{uid}.json")), text).unwrap();
        }
        let refused_by = |latest: u64| -> usize {
            let entries = fs::read_dir(&claims).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let names =
                names.filter(|name| !name.starts_with('.') && name.ends_with(RECORD_SUFFIX));
            let later = names.filter(|name| {
                let text = fs::read(claims.join(name)).unwrap();
                let file: serde_json::Value = serde_json::from_slice(&text).unwrap();
                file["schema"].as_u64().unwrap() > latest
            });
            later.count()
        };
        let slice_schema = u64::from(super::super::SLICE_SCHEMA);
        assert_eq!(refused_by(slice_schema), 0);
        let reserved = store.reserve(&gpus(), &mark(), |_, _| Ok(())).unwrap();
        assert_eq!(refused_by(slice_schema), 2, "a driver of before marks");
        // This one goes on with the other GPUs.
        let lock = store.lock().unwrap();
        let disk = store.load(&lock).unwrap();
        assert_eq!(disk.records.keys().collect::<Vec<_>>(), ["c", "s"]);
        assert_eq!(disk.acknowledged, Some(acknowledged()));
        assert_eq!(store.record_uids().unwrap(), ["c", "s"]);
        drop(lock);
        // It ended in the middle of it: the next one of its own version takes the mark off.
        drop(reserved);
        assert_eq!(refused_by(slice_schema), 2);
        for (uuid, mark, guard) in store.left_marks().unwrap() {
            drop(guard);
            store.remove_left_mark(&uuid, &mark).unwrap();
        }
        assert_eq!(refused_by(slice_schema), 0);
    }

    #[test]
    fn a_mark_is_stored_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        let reserved = store.reserve(&gpus(), &mark(), |_, _| Ok(())).unwrap();
        let stored = fs::read_to_string(store.mark_file(GPU)).unwrap();
        crate::golden::compare("checkpoint-mark.json", &stored);
        reserved.release().unwrap();
        assert!(!store.mark_file(GPU).exists());
    }

    #[test]
    fn what_is_no_mark_and_one_of_a_later_version_hide_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        drop(store.reserve(&gpus(), &mark(), |_, _| Ok(())).unwrap());
        for (name, text) in [
            ("", "{}"),
            ("no_uuid", "{}"),
            (GPU, r#"{"schema": 999, "id": "later"}"#),
        ] {
            fs::write(store.mark_file(name), text).unwrap();
        }
        let left = store.left_marks().unwrap();
        let found: Vec<&str> = left.iter().map(|(uuid, ..)| uuid.as_str()).collect();
        assert_eq!(found, ["GPU-1"]);
        drop(left);
        assert_eq!(store.changes_of_gpu(GPU).unwrap(), None, "nobody gets it");
    }

    #[test]
    fn a_mark_that_cannot_be_read_is_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        fs::write(store.mark_file(GPU), "{").unwrap();
        assert_eq!(store.changes_of_gpu(GPU).unwrap(), None);
        assert!(store.left_marks().unwrap().is_empty());
        assert!(store.changes_of_gpu(GPU).unwrap().is_some());
    }
}
