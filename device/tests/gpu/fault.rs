//! Whether a fault of a process is told as what it is: of its GPU, once, as an application's own; and whether the GPU goes on.
//!
//! The program leaves an XID in the kernel's log. Nothing else of it stays.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use muster_device::{
    Backend, Gpu, Heard,
    faults::{
        Catalogue, Change, Device, FaultClass, FaultState, GpuFaults, KernelLog, KnownAddresses,
        Observation, PciAddress,
    },
};

use crate::{
    cuda::{FAULT, FAULTED, HOLD, HOLDING},
    program::{Program, START_LIMIT},
    uses::{self, Missing},
};

/// The kernel's log. Containers have none, and not everybody may read it.
const LOG: &str = "/dev/kmsg";
/// Longest time until NVML and the kernel have told of it.
const TOLD_LIMIT: Duration = Duration::from_secs(20);
/// How long is listened after that: for what says it again, or says worse.
const AFTERMATH: Duration = Duration::from_secs(1);
/// A wait for events.
const LISTEN: Duration = Duration::from_millis(200);

/// What was seen of a GPU, as the driver remembers it.
struct Seen<'a> {
    backend: &'a Backend,
    gpu: &'a Gpu,
    catalogue: Catalogue,
    known: KnownAddresses,
    state: FaultState,
    /// How often NVML told an XID of it, and the kernel's log did.
    told: (u32, u32),
    /// How many faults and anomalies were new, by class.
    new: BTreeMap<FaultClass, u32>,
}

/// Has a program make one on this GPU. What was seen of it, in words.
pub(crate) fn look(backend: &Backend, gpu: &Gpu) -> Result<String, Missing> {
    let visible = uses::visible(backend, gpu)?;
    begin_to_listen(backend, gpu)?;
    // What it said before is not about us.
    let mut log = KernelLog::open(Path::new(LOG), None).map_err(|error| error.to_string());
    while let Ok(open) = &mut log {
        match open.read() {
            Ok(read) if read.has_more => {}
            Ok(_) => break,
            Err(error) => log = Err(error.to_string()),
        }
    }
    let program = Program::start(FAULT, &visible)?;
    let said = program.wait_for(FAULTED, START_LIMIT)?;
    drop(program);
    let mut seen = Seen::new(backend, gpu);
    let mut deadline = Instant::now() + TOLD_LIMIT;
    let mut is_told = false;
    while Instant::now() < deadline {
        seen.heard(heard(backend)?);
        if let Ok(open) = &mut log {
            seen.read(open)?;
        }
        let (events, lines) = seen.told;
        if !is_told && events > 0 && (lines > 0 || log.is_err()) {
            is_told = true;
            deadline = Instant::now() + AFTERMATH;
        }
    }
    let told = seen.verdict(log.as_ref().err())?;
    // The next one computes.
    let next = Program::start(HOLD, &visible)?;
    next.wait_for(HOLDING, START_LIMIT)?;
    Ok(format!(
        "the program {said}; {told}; the next one has a context"
    ))
}

/// Until there is a set of events with this GPU in it: what comes from here on is heard.
fn begin_to_listen(backend: &Backend, gpu: &Gpu) -> Result<(), Missing> {
    let mut last = Heard::default();
    let listens = uses::eventually(TOLD_LIMIT, || {
        last = heard(backend)?;
        Ok(!last.is_anew && !last.is_broken && last.unheard.is_empty())
    })?;
    if listens {
        return Ok(());
    }
    let cause = format!("NVML does not listen to {}: {last:?}", gpu.uuid);
    Err(Missing::Failed(cause))
}

fn heard(backend: &Backend) -> Result<Heard, String> {
    let heard = backend.wait_for_events(LISTEN);
    heard.map_err(|error| format!("events: {error}"))
}

impl<'a> Seen<'a> {
    fn new(backend: &'a Backend, gpu: &'a Gpu) -> Self {
        let address = PciAddress::parse(&gpu.pci_bus_id);
        Self {
            backend,
            gpu,
            catalogue: Catalogue::shipped(),
            known: KnownAddresses(BTreeMap::from([(gpu.uuid.clone(), address)])),
            state: FaultState::default(),
            told: (0, 0),
            new: BTreeMap::new(),
        }
    }

    /// Events of NVML. Those of other GPUs are somebody else's.
    fn heard(&mut self, heard: Heard) {
        let gpu = self.gpu;
        let uuid = &gpu.uuid;
        let events = heard.events.into_iter();
        for event in events.filter(|event| event.gpu.as_ref() == Some(uuid)) {
            let observation = event.observation(&self.catalogue, self.action(), |_| None);
            if let Some(observation) = observation {
                self.told.0 += 1;
                self.saw(&Device::Uuid(uuid.clone()), observation);
            }
        }
    }

    /// Lines of the kernel's log.
    fn read(&mut self, log: &mut KernelLog) -> Result<(), String> {
        let read = log.read().map_err(|error| format!("{LOG}: {error}"))?;
        for line in read.lines {
            let device = Device::Address(line.address);
            if self.known.uuid(&device).is_some() {
                let observation = line.observation(&self.catalogue, self.action(), |_| None);
                self.told.1 += 1;
                self.saw(&device, observation);
            }
        }
        Ok(())
    }

    fn saw(&mut self, device: &Device, observation: Observation) {
        let class = observation.class;
        let change = self.state.observe(device, observation, &self.known, 0);
        if change == Change::New {
            *self.new.entry(class).or_default() += 1;
        }
    }

    /// What the driver wants done with the GPU.
    fn action(&self) -> Option<u32> {
        let action = self.backend.recovery_action(&self.gpu.uuid);
        action.ok().flatten()
    }

    /// Whether it is an application's fault and no other, told once whoever told it.
    fn verdict(&self, no_log: Option<&String>) -> Result<String, Missing> {
        let (events, lines) = self.told;
        let faults = self.state.gpus().get(&self.gpu.uuid);
        let faults = faults.map(GpuFaults::all).unwrap_or_default();
        let causes: Vec<String> = faults
            .iter()
            .map(|fault| format!("{}: {}", fault.class, fault.message()))
            .collect();
        let log = no_log.map_or_else(
            || format!("{lines} by the kernel's log"),
            |cause| format!("{LOG} is not read ({cause})"),
        );
        let told = format!("{causes:?}, {events} told by NVML and {log}");
        let is_of_the_application = self.new.get(&FaultClass::App) == Some(&1);
        let is_worse = faults.iter().any(|fault| fault.class.is_fault());
        let is_missing = events == 0 || (lines == 0 && no_log.is_none());
        if is_of_the_application && !is_worse && !is_missing {
            return Ok(told);
        }
        let uuid = &self.gpu.uuid;
        let cause = format!("{uuid}: it is to be one anomaly of an application, and is {told}");
        Err(Missing::Failed(cause))
    }
}
