//! What a node is made of, apart from the programs on it: its GPUs, its disk, and the containers that live.

use std::collections::BTreeMap;

use muster_dra_driver::prepare::{
    DeviceFacts, Disk, InUse, Inventory, LiveSlices, MigInstance, Probe, Process, Record,
    RecordState, Sight, Sights, SliceFacts, SliceMode, Unit, Verified, Write,
};

use crate::{
    clock::Clock,
    fixtures::{self, GPU_BYTES},
    gpu_faults::GpuFaults,
    gpu_slices::GpuSlices,
    scenario::NodeShape,
};

/// A node. It outlives every program on it.
#[derive(Debug)]
pub struct GpuNode {
    /// Its name and hardware.
    pub shape: NodeShape,
    /// Identifies the boot.
    pub boot_id: String,
    /// The driver's state directory, shared by all its instances.
    pub disk: Disk,
    /// CDI files, by claim UID.
    pub cdi: BTreeMap<String, Record>,
    /// Which instance of the driver holds the lock.
    pub lock: Option<u64>,
    /// Living containers, by UID of their pod.
    pub containers: BTreeMap<String, Container>,
    /// Slices of its GPUs.
    pub slices: GpuSlices,
    /// Who makes them.
    pub slice_mode: SliceMode,
    /// What is wrong with its GPUs.
    pub faults: GpuFaults,
    /// What its driver remembers of that, beside the checkpoint.
    pub faults_file: Option<String>,
    /// By which its driver stores times.
    pub(crate) clock: Clock,
}

/// A living container.
#[derive(Clone, Debug)]
pub struct Container {
    /// The hardware that it was given, each with the UID of its claim.
    pub units: Vec<(String, Unit)>,
    /// When it began, in milliseconds.
    pub started_at: u64,
    /// Whether NVML lists its process: not before it has opened the device.
    pub listed: bool,
}

impl GpuNode {
    /// A node that has just booted for the first time; its driver never ran.
    pub fn new(shape: NodeShape) -> Self {
        Self {
            boot_id: format!("boot-{}", shape.name),
            shape,
            disk: Disk::default(),
            cdi: BTreeMap::new(),
            lock: None,
            containers: BTreeMap::new(),
            slices: GpuSlices::default(),
            slice_mode: SliceMode::Dynamic,
            faults: GpuFaults::default(),
            faults_file: None,
            clock: Clock::default(),
        }
    }

    /// Its GPUs as the driver enumerates them.
    pub fn inventory(&self) -> Inventory {
        (0..self.shape.gpus)
            .flat_map(|number| {
                let whole = DeviceFacts {
                    unit: Unit::whole(fixtures::gpu_uuid(&self.shape.name, number)),
                    gpus_milli: 1_000,
                    memory_bytes: GPU_BYTES,
                    minor: u32::try_from(number).unwrap_or_default(),
                    silent: false,
                    lacks_fabric: false,
                    slice: None,
                };
                let name = fixtures::device_name(number);
                let mut devices = self.slices_of(&name, &whole);
                devices.push((name, whole));
                devices
            })
            .collect()
    }

    /// All slices that a GPU can be cut into.
    fn slices_of(&self, name: &str, whole: &DeviceFacts) -> Vec<(String, DeviceFacts)> {
        let profiles = self.slices.profiles.iter();
        let places = profiles.flat_map(|profile| {
            let placements = profile.placements.iter();
            placements.map(move |placement| (profile, *placement))
        });
        places
            .map(|(profile, placement)| {
                let facts = DeviceFacts {
                    unit: Unit::slice(whole.unit.gpu.clone(), placement, profile.compute_slices),
                    gpus_milli: GpuSlices::gpus_milli(profile),
                    memory_bytes: i64::try_from(profile.memory_bytes).unwrap_or(i64::MAX),
                    slice: Some(SliceFacts {
                        profile: profile.clone(),
                        placement,
                        mode: self.slice_mode,
                    }),
                    ..whole.clone()
                };
                let kind = profile.name.replace('.', "");
                (format!("{name}-mig-{kind}-{}", placement.start), facts)
            })
            .collect()
    }

    /// What is seen of a GPU without the lock. The number of a process is that of its pod among those that live.
    pub fn look(&self, gpu: &str) -> Sight {
        let live = self.slices.live(gpu);
        let mut processes = Vec::new();
        for (pid, container) in (1_u32..).zip(self.containers.values()) {
            let units = container.units.iter().map(|(_, unit)| unit);
            for unit in units.filter(|unit| container.listed && unit.gpu == gpu) {
                let gpu_instance = instance_of(unit, &live);
                processes.push(Process { pid, gpu_instance });
            }
        }
        Sight {
            changes: self.slices.changes(gpu),
            processes: Ok(processes),
            live: Ok(live),
        }
    }

    /// What is known under the lock, by what was seen before it and by the cgroups of now.
    pub fn judge(&self, probe: Option<&Probe>, sights: &Sights) -> (Option<InUse>, LiveSlices) {
        let verified = Verified::of(probe, sights, |gpu| self.slices.changes(gpu));
        let in_use = probe.map(|probe| match verified.unknown {
            Some(cause) => InUse::Unknown(cause),
            None => self.use_seen(probe, &verified.sights),
        });
        (in_use, verified.live)
    }

    fn use_seen(&self, probe: &Probe, sights: &Sights) -> InUse {
        let recorded = match probe {
            Probe::Units(_) => None,
            Probe::Recorded(uid) => self.disk.records.get(uid),
        };
        let mut pods = recorded.iter().flat_map(|record| &record.pods);
        if let Some(pod) = pods.find(|pod| self.containers.contains_key(*pod)) {
            return InUse::Yes(format!("pod {pod}"));
        }
        let units: Vec<&Unit> = match probe {
            Probe::Units(units) => units.iter().collect(),
            Probe::Recorded(_) => recorded.into_iter().flat_map(Record::units).collect(),
        };
        for unit in units {
            let user = match sights.get(&unit.gpu) {
                Some(sight) => sight.user_of(unit, |_| false),
                None => Err("it was not looked at".to_owned()),
            };
            match user {
                Ok(None) => {}
                Ok(Some(pid)) => return InUse::Yes(format!("process {pid}")),
                Err(cause) => return InUse::Unknown(cause),
            }
        }
        InUse::No
    }

    /// One write to the disk.
    pub fn write(&mut self, write: Write) {
        match write {
            Write::PutRecord(record) => {
                self.disk.records.insert(record.claim.uid.clone(), record);
            }
            Write::RemoveRecord(uid) => {
                self.disk.records.remove(&uid);
            }
            Write::PutCdi(record) => {
                self.cdi.insert(record.claim.uid.clone(), record);
            }
            Write::RemoveCdi(uid) => {
                self.cdi.remove(&uid);
            }
            Write::PutNode {
                boot_id,
                acknowledged,
            } => {
                self.disk.boot_id = Some(boot_id);
                self.disk.acknowledged = acknowledged;
                self.disk.rebuild = None;
            }
            Write::BeginRebuild { boot_id, rebuild } => {
                self.disk.boot_id = Some(boot_id);
                self.disk.acknowledged = None;
                self.disk.rebuild = Some(rebuild);
            }
        }
    }

    /// The checkpoint is lost; CDI files and containers are not.
    pub fn lose_checkpoint(&mut self) {
        self.disk = Disk::default();
    }

    /// The machine is gone.
    pub fn lose_everything(&mut self) {
        self.lose_checkpoint();
        self.cdi.clear();
        self.containers.clear();
        self.slices.reset();
        self.lock = None;
        // The next machine has other GPUs.
        self.faults.exchange();
        self.faults_file = None;
        self.clock = Clock::default();
    }

    /// The machine is started anew, with the disk that it has. Nothing runs there any more.
    pub fn reboot(&mut self, now: u64) {
        self.containers.clear();
        // They are in memory.
        self.cdi.clear();
        self.faults.reboot();
        self.boot(now);
    }

    /// Whether anybody uses a GPU: a claim that is recorded, or a process.
    pub fn is_used(&self, gpu: &str) -> bool {
        let records = self.disk.records.values();
        let mut held = records
            .filter(|record| record.holds())
            .flat_map(Record::units);
        let mut containers = self.containers.values();
        held.any(|unit| unit.gpu == gpu)
            || containers.any(|container| {
                let mut units = container.units.iter();
                container.listed && units.any(|(_, unit)| unit.gpu == gpu)
            })
    }

    /// A machine comes up under this name, at that time.
    pub fn boot(&mut self, now: u64) {
        self.boot_id = format!("boot-{}-{now}", self.shape.name);
        self.slices.reset();
    }

    /// What may have been prepared, as far as anything but the checkpoint tells.
    pub fn gather(&self) -> Vec<Record> {
        self.cdi
            .values()
            .map(|record| Record {
                state: RecordState::Prepared,
                ..record.clone()
            })
            .collect()
    }

    /// A pod whose process uses one of these Units now.
    pub fn process_on(&self, units: &[Unit]) -> Option<&String> {
        let uses = |container: &Container| {
            container.listed
                && units
                    .iter()
                    .any(|unit| container.units.iter().any(|(_, used)| used.overlaps(unit)))
        };
        self.containers
            .iter()
            .find(|(_, container)| uses(container))
            .map(|(pod, _)| pod)
    }

    /// What is held physically: each Unit of each claim that is recorded, has a CDI file, or is in a living container. A record
    /// that went with the checkpoint lets nothing go: whoever has the file has the devices, and by it the record is made again.
    pub fn held(&self) -> impl Iterator<Item = (&str, &Unit)> {
        let records = self.disk.records.iter().chain(&self.cdi);
        let recorded =
            records.flat_map(|(uid, record)| record.units().map(move |unit| (uid.as_str(), unit)));
        let containers = self.containers.values();
        let used = containers.flat_map(|container| &container.units);
        let used = used.map(|(claim, unit)| (claim.as_str(), unit));
        recorded.chain(used)
    }
}

/// Number of the GPU instance that a Unit is. `None`: it is no slice, or that one is gone.
fn instance_of(unit: &Unit, live: &[MigInstance]) -> Option<u32> {
    let is_it = |instance: &&MigInstance| {
        let placement = instance.placement;
        u32::from(unit.slices.start) == placement.start
            && u32::from(unit.slices.end) == placement.end()
    };
    live.iter()
        .find(is_it)
        .map(|instance| instance.gpu_instance)
}
