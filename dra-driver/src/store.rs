//! The checkpoint: what survives a crash at any line, on disk.
//!
//! ```text
//! STATE/lock               held (flock) by whoever decides; more than one instance may run during an update
//! STATE/node.json          boot id, acknowledged generation; while there is none, under which name what was lost is rebuilt
//! STATE/claims/UID.json    one record per claim
//! STATE/claims/UUID.hook.json  a command of the administrator runs on that GPU, or did when its driver ended (see `marks`)
//! STATE/devices.json       which GPU has which name (see `inventory`)
//! STATE/slices.json        UUIDs of the slices that were made in this boot, so that one without a record is known as ours
//! STATE/layout-slices.json UUIDs of the slices that declared layouts made in this boot: theirs to remove, should the node have none any more
//! STATE/faults.json        what is wrong with the GPUs (see `faults`)
//! STATE/fault-policy.json  what the administrator says that faults mean, as it was seen last (see `faults::policy`)
//! STATE/bypasses.json      what processes use which nothing explains (see `bypass::remembered`)
//! STATE/mended/UUID        what a person says of a GPU, and the answer (see `faults::mended`); no lock is needed for it
//! STATE/gpus/UUID.lock     held (flock) by whoever changes that GPU: its slices, or its MIG mode; its length is how many changes have begun
//! STATE/quarantine/        files that could not be read, for people
//! ```
//!
//! * Every file carries a `schema` number, the lowest that can say what is in it. A newer one is refused with a message,
//!   never rewritten: a downgrade must not forget what it does not understand. Unknown fields are kept, wherever they are.
//! * Whoever holds the lock of a GPU asks for no other lock. Whoever holds the one lock asks for that of a GPU only if it
//!   need not wait. So nobody waits for each other.
//! * Nobody changes a GPU under the one lock: hardware that hangs would hold up all claims of the node. Whoever changes one
//!   for no claim takes its lock under the one lock, looks there at what is recorded, and keeps the GPU's alone
//!   ([`Store::try_lock_gpu_and_load`]). No claim for a GPU is recorded while somebody has its lock (`under_lock`).
//! * Nor does anybody ask NVML under the one lock. What was seen of a GPU before counts if no change of it has begun since
//!   ([`Store::changes_of_gpu`]). Whoever takes the lock of a GPU makes its file one byte longer: that is atomic, cannot be
//!   half written, and needs no block on a disk that is full.
//! * Files are written whole (`muster_device::files`). All writers hold the lock; a write applied twice
//!   changes nothing.
//! * What cannot be parsed, is too large, or is no file (a directory, a link) is set aside, and with it the acknowledged generation, **before** that: so a crash
//!   in between, too, leads to the rebuild and never to a claim that is forgotten.

pub mod marks;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use muster_api::Reason;
use muster_device::{cdi, files};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    hook_program::HookProgram,
    prepare::{Acknowledged, Disk, DiskFailure, Record, RecordedDevice, RecordedSlice, Write},
    unknown_fields::{has_unknown, keep_unknown},
};

/// Latest version of the files' shape.
const SCHEMA: u32 = 3;
/// What is written where nothing needs a later one: whole GPUs are recorded as they always were.
const FIRST_SCHEMA: u32 = 1;
/// What a file says in which the name of a rebuild counts. Every version reads it, and none from before there were names writes it: such a driver
/// keeps a name, and says nothing of what was prepared and lost since it was written.
const REBUILD_SCHEMA: u32 = 0;
/// Version of records with slices. Before it nobody knew that a slice has to be removed.
const SLICE_SCHEMA: u32 = 2;
/// Version of the marks of GPUs that a command runs on. Before it nobody knew that such a GPU is not to be given to anybody.
const MARK_SCHEMA: u32 = 3;
/// Most bytes of a file of ours: far above what any of them comes to, and far below what would use up a node's memory.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Annotation of a CDI file: the record that it belongs to, so that a lost checkpoint can be rebuilt.
const RECORD_ANNOTATION: &str = "muster.dev/record";

/// The state directory of a node's driver, and its CDI files.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
    cdi: cdi::Directory,
    hook: Option<HookProgram>,
}

/// The lock. Released when dropped, and by the kernel when the process ends.
#[derive(Debug)]
pub struct Guard {
    _file: File,
}

/// What a file holds besides its schema.
#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    schema: u32,
    #[serde(flatten)]
    content: T,
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    boot_id: Option<String>,
    acknowledged: Option<Acknowledged>,
    /// Counts only in a file of [`REBUILD_SCHEMA`], and says nothing beside a generation: a driver that does not know it keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rebuild: Option<String>,
}

/// File beside the checkpoint: what claims had made.
const MADE_SLICES_FILE: &str = "slices.json";
/// File beside the checkpoint: what declared layouts had made.
const LAYOUT_SLICES_FILE: &str = "layout-slices.json";

/// Slices that were made in a boot; they end with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MadeSlices {
    boot_id: Option<String>,
    #[serde(default)]
    uuids: BTreeSet<String>,
}

/// What there is where a file should be.
enum Content<T> {
    /// With what is unknown in it, and its schema.
    Good(T, Map<String, Value>, u32),
    Absent,
    Broken(String),
}

impl Store {
    /// Opens the directory, making it if need be. Only root may look into it.
    pub fn open(directory: impl Into<PathBuf>, cdi: cdi::Directory) -> io::Result<Self> {
        let directory = directory.into();
        let inside = ["claims", "gpus"].map(|name| directory.join(name));
        for path in std::iter::once(&directory).chain(&inside) {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(|error| named(path, &error))?;
        }
        Ok(Self {
            directory,
            cdi,
            hook: None,
        })
    }

    /// CDI files name this program. It is on the node as long as one does, and others of ours are not any longer.
    #[must_use]
    pub fn with_hook(mut self, hook: HookProgram) -> Self {
        self.hook = Some(hook);
        self
    }

    /// Waits for the lock. Blocking; held for milliseconds, or for one uncached read.
    pub fn lock(&self) -> io::Result<Guard> {
        let path = self.directory.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| named(&path, &error))?;
        file.lock().map_err(|error| named(&path, &error))?;
        Ok(Guard { _file: file })
    }

    /// Waits for the lock of a GPU. Blocking: whoever has it makes or removes a slice.
    pub fn lock_gpu(&self, uuid: &str) -> io::Result<Guard> {
        let (path, file) = self.gpu_lock_file(uuid)?;
        file.lock().map_err(|error| named(&path, &error))?;
        begin_change(file).map_err(|error| named(&path, &error))
    }

    /// The lock of a GPU, if nobody has it, nor just counts its changes, and no command was left running on it.
    pub fn try_lock_gpu(&self, uuid: &str) -> io::Result<Option<Guard>> {
        let guard = self.try_lock_marked_gpu(uuid)?;
        Ok(guard.filter(|_| !self.is_marked(uuid)))
    }

    /// The same, whatever was left running on it.
    fn try_lock_marked_gpu(&self, uuid: &str) -> io::Result<Option<Guard>> {
        let (path, file) = self.gpu_lock_file(uuid)?;
        match file.try_lock() {
            Ok(()) => begin_change(file)
                .map(Some)
                .map_err(|error| named(&path, &error)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(named(&path, &error)),
        }
    }

    /// How many changes of a GPU have begun; `None` while one is under way, by whichever instance. Waits for nobody, and any number may ask at once.
    /// (An instance of before this count does not keep it, for as long as an update takes.)
    pub fn changes_of_gpu(&self, uuid: &str) -> io::Result<Option<u64>> {
        let (path, file) = self.gpu_lock_file(uuid)?;
        match file.try_lock_shared() {
            // The driver that had a command run on it may have ended.
            Ok(()) if self.is_marked(uuid) => Ok(None),
            Ok(()) => {
                let metadata = file.metadata();
                let metadata = metadata.map_err(|error| named(&path, &error))?;
                Ok(Some(metadata.len()))
            }
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(named(&path, &error)),
        }
    }

    /// The lock of a GPU, if nobody has it, and what was recorded when it was taken. Until it is given back no claim is recorded that has a
    /// part of this GPU, so what is not in use by these records stays free of claims. (An instance of before this rule does not keep to it, for
    /// as long as an update takes.)
    pub fn try_lock_gpu_and_load(&self, uuid: &str) -> Result<Option<(Guard, Disk)>, DiskFailure> {
        let failed = |error: io::Error| DiskFailure::new(error.to_string());
        let lock = self.lock().map_err(failed)?;
        let Some(gpu) = self.try_lock_gpu(uuid).map_err(failed)? else {
            return Ok(None);
        };
        Ok(Some((gpu, self.load(&lock)?)))
    }

    /// NVML says what a GPU's UUID is; it goes into a path all the same.
    fn gpu_lock_file(&self, uuid: &str) -> io::Result<(PathBuf, File)> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if uuid.is_empty() || !uuid.bytes().all(is_plain) {
            let message = format!("{uuid:?} is no UUID of a GPU");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let path = self.directory.join("gpus").join(format!("{uuid}.lock"));
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| named(&path, &error))?;
        Ok((path, file))
    }

    /// Reads one record, without the lock: files are written whole. What cannot be read is set aside by the next turn.
    pub fn record(&self, uid: &str) -> Result<Option<Record>, DiskFailure> {
        match read::<Record>(&self.record_file(uid))? {
            Content::Good(record, ..) if record.claim.uid == uid => Ok(Some(record)),
            Content::Good(..) | Content::Absent | Content::Broken(_) => Ok(None),
        }
    }

    /// UUIDs of the slices that were made in the boot with this id. What was made in another one is nobody's any more: whoever makes a slice at
    /// its place gives it the same UUID.
    pub fn made_slices(
        &self,
        _lock: &Guard,
        boot_id: &str,
    ) -> Result<BTreeSet<String>, DiskFailure> {
        let made = load_beside::<MadeSlices>(self, MADE_SLICES_FILE)?;
        let made = made.filter(|made| made.boot_id.as_deref() == Some(boot_id));
        Ok(made.unwrap_or_default().uuids)
    }

    /// UUIDs of the slices that declared layouts made in the boot with this id, and that no claim made anew since.
    pub fn layout_slices(
        &self,
        _lock: &Guard,
        boot_id: &str,
    ) -> Result<BTreeSet<String>, DiskFailure> {
        let noted = load_beside::<MadeSlices>(self, LAYOUT_SLICES_FILE)?;
        let noted = noted.filter(|noted| noted.boot_id.as_deref() == Some(boot_id));
        Ok(noted.unwrap_or_default().uuids)
    }

    /// Notes that a layout made a slice in this boot, or that this one is gone: whoever makes one there gives it the same UUID.
    pub fn note_layout_slice(
        &self,
        lock: &Guard,
        boot_id: &str,
        uuid: &str,
        is_made: bool,
    ) -> Result<(), DiskFailure> {
        if !is_made {
            let gone = BTreeSet::from([uuid.to_owned()]);
            return self.forget_layout_slices(lock, boot_id, &gone);
        }
        let mut uuids = self.layout_slices(lock, boot_id)?;
        if !uuids.insert(uuid.to_owned()) {
            return Ok(());
        }
        self.put_layout_slices(Some(boot_id.to_owned()), uuids)
    }

    /// Of the slices that layouts made these are not there any more.
    pub fn forget_layout_slices(
        &self,
        lock: &Guard,
        boot_id: &str,
        gone: &BTreeSet<String>,
    ) -> Result<(), DiskFailure> {
        let uuids = self.layout_slices(lock, boot_id)?;
        if uuids.is_disjoint(gone) {
            return Ok(());
        }
        let left = uuids.difference(gone).cloned().collect();
        self.put_layout_slices(Some(boot_id.to_owned()), left)
    }

    fn put_layout_slices(
        &self,
        boot_id: Option<String>,
        uuids: BTreeSet<String>,
    ) -> Result<(), DiskFailure> {
        put_beside(self, LAYOUT_SLICES_FILE, &MadeSlices { boot_id, uuids })
    }

    /// Before a record says that a slice was made, it is known as ours; before the record goes, it is not any more: whoever makes one
    /// there gives it the same UUID.
    fn note_slices(&self, uid: &str, next: Option<&Record>) -> Result<(), DiskFailure> {
        let uuids = |record: &Record| -> BTreeSet<String> {
            let slices = record.removable().into_iter();
            slices.filter_map(|slice| slice.uuid).collect()
        };
        let before = self.record(uid)?.as_ref().map(uuids).unwrap_or_default();
        let now = next.map(uuids).unwrap_or_default();
        if before == now {
            return Ok(());
        }
        let boot_id = self.load_node()?.boot_id;
        // What a claim had made is no layout's, whatever lay there before.
        if let Some(layouts) = load_beside::<MadeSlices>(self, LAYOUT_SLICES_FILE)?
            && !layouts.uuids.is_disjoint(&now)
        {
            let left = layouts.uuids.difference(&now).cloned().collect();
            self.put_layout_slices(layouts.boot_id, left)?;
        }
        let known = load_beside::<MadeSlices>(self, MADE_SLICES_FILE)?.unwrap_or_default();
        let mut noted = known.clone();
        if noted.boot_id != boot_id {
            noted = MadeSlices {
                boot_id,
                uuids: BTreeSet::new(),
            };
        }
        noted.uuids.retain(|uuid| !before.contains(uuid));
        noted.uuids.extend(now);
        if noted == known {
            return Ok(());
        }
        put_beside(self, MADE_SLICES_FILE, &noted)
    }

    /// Reads everything.
    pub fn load(&self, _lock: &Guard) -> Result<Disk, DiskFailure> {
        let node = self.load_node()?;
        let mut disk = Disk {
            boot_id: node.boot_id,
            acknowledged: node.acknowledged,
            rebuild: node.rebuild,
            records: BTreeMap::new(),
        };
        for uid in self.record_uids()? {
            let path = self.record_file(&uid);
            match read::<Record>(&path)? {
                Content::Good(record, ..) if record.claim.uid == uid => {
                    disk.records.insert(uid, record);
                }
                Content::Good(record, ..) => {
                    let cause = format!("it is about claim UID {}", record.claim.uid);
                    self.set_aside(&mut disk, &path, &cause)?;
                }
                Content::Broken(cause) => self.set_aside(&mut disk, &path, &cause)?,
                Content::Absent => {}
            }
        }
        Ok(disk)
    }

    /// UIDs of the claims that there are files for. Marks of GPUs lie beside them.
    pub fn record_uids(&self) -> Result<Vec<String>, DiskFailure> {
        let directory = self.directory.join("claims");
        let failed = |error: io::Error| failure(&directory, &error);
        let mut uids = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let uid = name.to_str().and_then(|name| name.strip_suffix(".json"));
            let uid = uid.filter(|uid| !uid.starts_with('.') && !marks::is_mark(uid));
            uids.extend(uid.map(str::to_owned));
        }
        uids.sort_unstable();
        Ok(uids)
    }

    /// Performs a write.
    pub fn apply(&self, _lock: &Guard, change: &Write) -> Result<(), DiskFailure> {
        match change {
            Write::PutRecord(record) => {
                self.note_slices(&record.claim.uid, Some(record))?;
                let has_slices = record.devices.iter().any(|device| device.slice.is_some());
                let schema = if has_slices {
                    SLICE_SCHEMA
                } else {
                    FIRST_SCHEMA
                };
                put(&self.record_file(&record.claim.uid), record, schema)
            }
            Write::RemoveRecord(uid) => {
                self.note_slices(uid, None)?;
                let path = self.record_file(uid);
                files::remove(&path).map_err(|error| failure(&path, &error))
            }
            Write::PutCdi(record) => self.put_cdi(record),
            Write::RemoveCdi(uid) => {
                let removed = self.cdi.remove(uid);
                removed.map_err(|error| failure(&self.cdi.file(uid), &error))?;
                self.remove_other_hooks();
                Ok(())
            }
            Write::PutNode {
                boot_id,
                acknowledged,
            } => {
                let node = Node {
                    boot_id: Some(boot_id.clone()),
                    acknowledged: acknowledged.clone(),
                    rebuild: None,
                };
                put(&self.directory.join("node.json"), &node, FIRST_SCHEMA)
            }
            Write::BeginRebuild { boot_id, rebuild } => {
                let node = Node {
                    boot_id: Some(boot_id.clone()),
                    acknowledged: None,
                    rebuild: Some(rebuild.clone()),
                };
                put(&self.directory.join("node.json"), &node, REBUILD_SCHEMA)
            }
        }
    }

    /// What the CDI files say was prepared, by claim UID; `None` where a file does not tell.
    pub fn records_in_cdi(&self) -> Result<BTreeMap<String, Option<Record>>, DiskFailure> {
        let specs = self
            .cdi
            .list()
            .map_err(|error| DiskFailure::new(format!("CDI directory: {error}")))?;
        let record = |uid: &str, spec: Option<cdi::Spec>| {
            let text = spec?.annotations.remove(RECORD_ANNOTATION)?;
            serde_json::from_str(&text)
                .ok()
                .filter(|record: &Record| record.claim.uid == uid)
        };
        Ok(specs
            .into_iter()
            .map(|(uid, spec)| {
                let record = record(&uid, spec);
                (uid, record)
            })
            .collect())
    }

    fn put_cdi(&self, record: &Record) -> Result<(), DiskFailure> {
        let path = self.cdi.file(&record.claim.uid);
        let gpus: Vec<_> = record
            .devices
            .iter()
            .map(claimed)
            .collect::<Result<_, _>>()?;
        let text = serde_json::to_string(record)
            .map_err(|error| failure(&path, &io::Error::other(error)))?;
        let annotations = BTreeMap::from([(RECORD_ANNOTATION.to_owned(), text)]);
        if let Some(hook) = &self.hook {
            // Under the lock, as its removal is: no file names a program that is not there.
            hook.ensure()
                .map_err(|error| incomplete(error.to_string()))?;
        }
        let written = self.cdi.write(&record.claim.uid, &gpus, annotations);
        written.map_err(|error| match error {
            cdi::Failure::File(error) => failure(&path, &error),
            lacking => incomplete(lacking.to_string()),
        })
    }

    /// Removes programs of other versions that no CDI file names any longer. Whoever calls holds the lock.
    pub fn remove_unnamed_hooks(&self, _lock: &Guard) {
        self.remove_other_hooks();
    }

    fn remove_other_hooks(&self) {
        let Some(hook) = &self.hook else {
            return;
        };
        let removed = hook.remove_others(|| {
            let specs = self.cdi.list()?.into_values();
            // A file that cannot be read may name any of them.
            let specs: Option<Vec<_>> = specs.collect();
            let specs = specs.ok_or_else(|| io::Error::other("a CDI file cannot be read"))?;
            let edits = specs.into_iter().map(|spec| spec.container_edits);
            Ok(edits
                .flat_map(|edits| edits.hooks)
                .map(|hook| hook.path)
                .collect())
        });
        if let Err(error) = removed {
            // Files that are left cost space, and the next removal looks again.
            tracing::warn!(%error, "old hook programs are left where they are");
        }
    }

    fn load_node(&self) -> Result<Node, DiskFailure> {
        let path = self.directory.join("node.json");
        match read::<Node>(&path)? {
            Content::Good(mut node, _, schema) => {
                let counts = schema == REBUILD_SCHEMA && node.acknowledged.is_none();
                node.rebuild = node.rebuild.filter(|_| counts);
                Ok(node)
            }
            Content::Absent => Ok(Node::default()),
            Content::Broken(cause) => {
                self.quarantine(&path, &cause)?;
                Ok(Node::default())
            }
        }
    }

    /// First the generation is forgotten, or the name of the rebuild, then the file is put away.
    fn set_aside(&self, disk: &mut Disk, path: &Path, cause: &str) -> Result<(), DiskFailure> {
        let (acknowledged, rebuild) = (disk.acknowledged.take(), disk.rebuild.take());
        if acknowledged.is_some() || rebuild.is_some() {
            let node = Node {
                boot_id: disk.boot_id.clone(),
                acknowledged: None,
                rebuild: None,
            };
            put(&self.directory.join("node.json"), &node, FIRST_SCHEMA)?;
        }
        self.quarantine(path, cause)
    }

    fn quarantine(&self, path: &Path, cause: &str) -> Result<(), DiskFailure> {
        let directory = self.directory.join("quarantine");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|error| failure(&directory, &error))?;
        let target = free_name(&directory, path);
        tracing::error!(
            file = %path.display(), quarantine = %target.display(), cause,
            "a file of the checkpoint cannot be read; the records are rebuilt"
        );
        fs::rename(path, &target).map_err(|error| failure(path, &error))
    }

    fn record_file(&self, uid: &str) -> PathBuf {
        self.directory.join("claims").join(format!("{uid}.json"))
    }
}

/// Where a file is put away: under its own name, in place of the file that was put there before. Where either is a directory neither takes the
/// other's place, and the name is continued by a number.
fn free_name(directory: &Path, path: &Path) -> PathBuf {
    let is_directory = |path: &Path| fs::symlink_metadata(path).is_ok_and(|it| it.is_dir());
    let name = path.file_name().unwrap_or_default();
    let is_free = |target: &PathBuf| {
        fs::symlink_metadata(target).is_err() || !(is_directory(path) || is_directory(target))
    };
    let numbered = (1_u32..).map(|number| {
        let mut name = name.to_owned();
        name.push(format!(".{number}"));
        directory.join(name)
    });
    let own = directory.join(name);
    let mut names = std::iter::once(own.clone()).chain(numbered);
    names.find(is_free).unwrap_or(own)
}

/// Counts the change for which the lock of a GPU was taken.
fn begin_change(file: File) -> io::Result<Guard> {
    let changes = file.metadata()?.len();
    file.set_len(changes + 1)?;
    Ok(Guard { _file: file })
}

/// What containers get of a device.
fn claimed(device: &RecordedDevice) -> Result<cdi::ClaimedGpu, DiskFailure> {
    let made = |slice: &RecordedSlice| -> Result<_, DiskFailure> {
        let made = slice.made.as_ref().ok_or_else(|| {
            let name = &device.device;
            DiskFailure::new(format!("{name} is not made yet, and no file can name it"))
        })?;
        let numbers = cdi::MigSlice {
            gpu_instance: made.gpu_instance,
            compute_instance: made.compute_instance,
        };
        Ok((made.uuid.clone(), numbers))
    };
    let made = device.slice.as_ref().map(made).transpose()?;
    let (uuid, slice) = match made {
        Some((uuid, slice)) => (uuid, Some(slice)),
        None => (device.unit.gpu.clone(), None),
    };
    Ok(cdi::ClaimedGpu {
        device: device.device.clone(),
        uuid,
        minor: device.minor,
        slice,
    })
}

/// Why what is there is no file of ours, if it is none. A link is not followed: it may lead to what never ends.
fn is_no_file_of_ours(found: &fs::Metadata) -> Option<String> {
    let kind = found.file_type();
    if kind.is_dir() {
        return Some("it is a directory".to_owned());
    }
    if kind.is_symlink() {
        return Some("it is a link".to_owned());
    }
    if !kind.is_file() {
        return Some("it is no regular file".to_owned());
    }
    let bytes = found.len();
    let is_too_large = bytes > MAX_FILE_BYTES;
    is_too_large
        .then(|| format!("it has {bytes} bytes, and no file of ours more than {MAX_FILE_BYTES}"))
}

/// Reads a file of ours.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Content<T>, DiskFailure> {
    match fs::symlink_metadata(path) {
        Ok(found) => {
            if let Some(cause) = is_no_file_of_ours(&found) {
                return Ok(Content::Broken(cause));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::Absent),
        Err(error) => return Err(failure(path, &error)),
    }
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::Absent),
        Err(error) => return Err(failure(path, &error)),
    };
    let value: Value = match serde_json::from_slice(&text) {
        Ok(value) => value,
        Err(error) => return Ok(Content::Broken(error.to_string())),
    };
    if let Some(schema) = later_schema(&value) {
        return Err(DiskFailure::new(format!(
            "{} has schema {schema}, and this version of the driver knows {SCHEMA} at most; \
             run the version that wrote it until its claims are unprepared",
            path.display()
        )));
    }
    match serde_json::from_value::<Versioned<T>>(value) {
        Ok(file) => Ok(Content::Good(file.content, file.unknown, file.schema)),
        Err(error) => Ok(Content::Broken(error.to_string())),
    }
}

/// The schema of a file that is of a later version than this one.
fn later_schema(file: &Value) -> Option<u64> {
    let schema = file.get("schema").and_then(Value::as_u64)?;
    (schema > u64::from(SCHEMA)).then_some(schema)
}

/// Writes a file of ours, keeping what another version put into it, at the top and further in.
fn put<T: Serialize + DeserializeOwned + Clone>(
    path: &Path,
    content: &T,
    schema: u32,
) -> Result<(), DiskFailure> {
    let invalid = |error: serde_json::Error| failure(path, &io::Error::other(error));
    let (unknown, inside) = match read::<T>(path)? {
        Content::Good(known, unknown, _) => {
            let old = fs::read(path).map_err(|error| failure(path, &error))?;
            let old: Value = serde_json::from_slice(&old).map_err(invalid)?;
            let known = serde_json::to_value(&known).map_err(invalid)?;
            (unknown, Some((old, known)))
        }
        Content::Absent | Content::Broken(_) => (Map::new(), None),
    };
    let file = Versioned {
        schema,
        content: content.clone(),
        unknown,
    };
    let text = match inside {
        Some((old, known)) if has_unknown(&old, &known) => {
            let mut value = serde_json::to_value(&file).map_err(invalid)?;
            keep_unknown(&old, &known, &mut value);
            serde_json::to_vec(&value)
        }
        _ => serde_json::to_vec(&file),
    };
    let text = text.map_err(invalid)?;
    files::write_whole(path, &text, 0o600).map_err(|error| failure(path, &error))
}

/// What containers need is not there.
fn incomplete(message: String) -> DiskFailure {
    DiskFailure {
        reason: Some(Reason::DriverIncomplete),
        message,
    }
}

fn failure(path: &Path, error: &io::Error) -> DiskFailure {
    let help = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room there, and the kubelet's next call goes on"
        }
        _ => "",
    };
    DiskFailure::new(format!("{}: {error}{help}", path.display()))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Loads a file beside the checkpoint; `None` if it is not there or broken.
pub(crate) fn load_beside<T: DeserializeOwned>(
    store: &Store,
    name: &str,
) -> Result<Option<T>, DiskFailure> {
    let path = store.directory.join(name);
    match read::<T>(&path)? {
        Content::Good(content, ..) => Ok(Some(content)),
        Content::Absent => Ok(None),
        Content::Broken(cause) => {
            store.quarantine(&path, &cause)?;
            Ok(None)
        }
    }
}

/// Whether a file beside the checkpoint that could not be loaded is of a later version: the disk is in order then.
pub(crate) fn is_later_beside(store: &Store, name: &str) -> bool {
    let path = store.directory.join(name);
    let found = fs::symlink_metadata(&path).ok();
    let is_ours = found.is_some_and(|found| is_no_file_of_ours(&found).is_none());
    let read = || -> Option<Value> { serde_json::from_slice(&fs::read(&path).ok()?).ok() };
    let value = is_ours.then(read).flatten();
    value.is_some_and(|value| later_schema(&value).is_some())
}

/// Whether a file beside the checkpoint is not there, and none was set aside.
pub(crate) fn was_never_beside(store: &Store, name: &str) -> Result<bool, DiskFailure> {
    let places = [
        store.directory.join(name),
        store.directory.join("quarantine").join(name),
    ];
    for path in places {
        // A link that leads nowhere, or to itself, is there as well.
        match fs::symlink_metadata(&path) {
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failure(&path, &error)),
        }
    }
    Ok(true)
}

/// Writes a file beside the checkpoint.
pub(crate) fn put_beside<T: Serialize + DeserializeOwned + Clone>(
    store: &Store,
    name: &str,
    content: &T,
) -> Result<(), DiskFailure> {
    put(&store.directory.join(name), content, FIRST_SCHEMA)
}

#[cfg(test)]
mod tests;
