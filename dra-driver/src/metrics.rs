//! What the driver counts.

use std::time::Duration;

use muster_api::Reason;
use muster_device::{
    LibraryStatus,
    faults::{FaultClass, FaultState},
};
use muster_serve::metrics::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

use crate::{bypass::origin::Origin, driver::CallKind, inventory::KnownGpus, prepare::Answer};

/// Metrics of the driver. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DriverMetrics {
    calls: Family<CallLabels, Counter>,
    seconds: Family<KindLabel, Histogram, fn() -> Histogram>,
    overlaps: Counter,
    /// Devices that are held without a permit.
    pub held: Gauge,
    /// Devices that processes use which nothing explains.
    pub bypassed: Gauge,
    bypasses: Family<OriginLabel, Counter>,
    /// Processes without a claim that are trusted.
    pub trusted: Gauge,
    /// GPUs that NVML lists.
    pub gpus: Gauge,
    /// GPUs that do not answer NVML.
    pub unresponsive: Gauge,
    /// Enumerations that failed.
    pub nvml_failures: Counter,
    /// Whether NVML is open: 1 or 0.
    pub nvml_open: Gauge,
    /// How often NVML was opened.
    pub nvml_openings: Counter,
    /// Calls of NVML that overran their limit and have not returned.
    pub nvml_stuck_calls: Gauge,
    /// Publications of ResourceSlices that failed.
    pub slice_failures: Counter,
    faults: Family<ClassLabel, Gauge>,
    unattributed: Gauge,
    unremembered: Gauge,
    mig_changes: Family<ChangeLabels, Counter>,
    mig_seconds: Family<ChangeLabel, Histogram, fn() -> Histogram>,
    resets: Family<OutcomeLabel, Counter>,
    checks: Family<CheckLabels, Counter>,
}

/// What is done to slices of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceChange {
    /// They are made.
    Make,
    /// They are removed.
    Remove,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ChangeLabels {
    change: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ChangeLabel {
    change: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    call: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    call: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabel {
    class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CheckLabels {
    check: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OriginLabel {
    origin: &'static str,
}

fn histogram() -> Histogram {
    Histogram::new([0.005, 0.02, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 35.0])
}

impl DriverMetrics {
    /// Registers the metrics; once per program.
    pub fn register(metrics: &Metrics) -> Self {
        let driver = Self {
            calls: Family::default(),
            seconds: Family::new_with_constructor(histogram),
            overlaps: Counter::default(),
            held: Gauge::default(),
            bypassed: Gauge::default(),
            bypasses: Family::default(),
            trusted: Gauge::default(),
            gpus: Gauge::default(),
            unresponsive: Gauge::default(),
            nvml_failures: Counter::default(),
            nvml_open: Gauge::default(),
            nvml_openings: Counter::default(),
            nvml_stuck_calls: Gauge::default(),
            slice_failures: Counter::default(),
            faults: Family::default(),
            unattributed: Gauge::default(),
            unremembered: Gauge::default(),
            mig_changes: Family::default(),
            mig_seconds: Family::new_with_constructor(histogram),
            resets: Family::default(),
            checks: Family::default(),
        };
        metrics.register(|registry| {
            let registry = registry.sub_registry_with_prefix("driver");
            registry.register(
                "claims",
                "Claims that the kubelet had prepared or unprepared, by outcome",
                driver.calls.clone(),
            );
            registry.register(
                "claim_seconds",
                "Time until a claim was answered, waits included",
                driver.seconds.clone(),
            );
            registry.register(
                "device_overlap_rejected",
                "Claims refused because another holds their device",
                driver.overlaps.clone(),
            );
            registry.register(
                "held_devices",
                "Devices that are held without a permit",
                driver.held.clone(),
            );
            registry.register(
                "bypassed_devices",
                "Devices that processes use which no claim and no device plugin explains",
                driver.bypassed.clone(),
            );
            registry.register(
                "bypasses",
                "Uses of a device that became a bypass, by whose processes they are",
                driver.bypasses.clone(),
            );
            registry.register(
                "trusted_processes",
                "Processes on devices without a claim that are trusted",
                driver.trusted.clone(),
            );
            registry.register("gpus", "GPUs that NVML lists", driver.gpus.clone());
            registry.register(
                "nvml_failures",
                "Enumerations of the GPUs that failed",
                driver.nvml_failures.clone(),
            );
            registry.register(
                "unresponsive_gpus",
                "GPUs that do not answer NVML",
                driver.unresponsive.clone(),
            );
            registry.register(
                "nvml_open",
                "Whether NVML is open: 1 or 0",
                driver.nvml_open.clone(),
            );
            registry.register(
                "nvml_openings",
                "How often NVML was opened",
                driver.nvml_openings.clone(),
            );
            registry.register(
                "nvml_stuck_calls",
                "Calls of NVML that overran their limit and have not returned",
                driver.nvml_stuck_calls.clone(),
            );
            registry.register(
                "slice_publication_failures",
                "Publications of ResourceSlices that failed",
                driver.slice_failures.clone(),
            );
            registry.register(
                "faulty_gpus",
                "GPUs of the node with a fault or an anomaly of a class that is not over",
                driver.faults.clone(),
            );
            registry.register(
                "unattributed_faults",
                "GPUs that are not known and of which a fault was seen",
                driver.unattributed.clone(),
            );
            registry.register(
                "unremembered_faults",
                "Faults and anomalies of GPUs that are not known, beyond as many such GPUs as are remembered",
                driver.unremembered.clone(),
            );
            registry.register(
                "mig_changes",
                "Times that the slices of a claim were made or removed, by outcome",
                driver.mig_changes.clone(),
            );
            registry.register(
                "mig_change_seconds",
                "Time until the slices of a claim were made or removed, the wait for their GPU included",
                driver.mig_seconds.clone(),
            );
            registry.register(
                "gpu_resets",
                "Resets of GPUs for their faults, by outcome: done, failed, or refused for a minute",
                driver.resets.clone(),
            );
            registry.register(
                "gpu_checks",
                "Checks of GPUs by the administrator's command, by kind and outcome",
                driver.checks.clone(),
            );
        });
        driver
    }

    /// Tells how NVML stands; `openings` of it were counted before.
    pub fn nvml(&self, status: &LibraryStatus, openings: u64) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.nvml_open.set(i64::from(status.file.is_some()));
        self.nvml_openings
            .inc_by(status.openings.saturating_sub(openings));
        self.nvml_stuck_calls.set(count(status.stuck_calls));
    }

    /// Tells what is wrong with the GPUs. Of a GPU that was exchanged faults are remembered, in case it comes back, but nobody can
    /// mend it here: it does not count. `known` are the GPUs of the node; until they are known all count.
    pub fn faults(&self, state: &FaultState, known: Option<&KnownGpus>) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let is_of_node = |uuid: &str| {
            known.is_none_or(|known| known.gpus.iter().any(|known| known.gpu.uuid == uuid))
        };
        for class in FaultClass::ALL {
            let gpus = state.gpus().iter();
            let has = gpus.filter(|(uuid, faults)| {
                faults.all().iter().any(|fault| fault.class == class) && is_of_node(uuid)
            });
            let class = class.as_str();
            self.faults
                .get_or_create_owned(&ClassLabel { class })
                .set(count(has.count()));
        }
        let unknown = state.waiting().len() + state.unconfirmed().len();
        self.unattributed.set(count(unknown));
        let unremembered = i64::try_from(state.unattributed());
        self.unremembered.set(unremembered.unwrap_or(i64::MAX));
    }

    /// Counts a reset of a GPU.
    pub fn reset_gpu(&self, outcome: &'static str) {
        let label = OutcomeLabel { outcome };
        self.resets.get_or_create_owned(&label).inc();
    }

    /// Counts a check of a GPU.
    pub fn checked_gpu(&self, check: &'static str, outcome: &'static str) {
        let labels = CheckLabels { check, outcome };
        self.checks.get_or_create_owned(&labels).inc();
    }

    /// Counts a bypass that is new.
    pub fn began(&self, origin: &Origin) {
        let origin = origin.as_str();
        self.bypasses
            .get_or_create_owned(&OriginLabel { origin })
            .inc();
    }

    /// Counts a change of the slices of a claim.
    pub fn changed_slices(&self, change: SliceChange, is_done: bool, after: Duration) {
        let change = match change {
            SliceChange::Make => "make",
            SliceChange::Remove => "remove",
        };
        let outcome = if is_done { "done" } else { "failed" };
        self.mig_changes
            .get_or_create_owned(&ChangeLabels { change, outcome })
            .inc();
        self.mig_seconds
            .get_or_create_owned(&ChangeLabel { change })
            .observe(after.as_secs_f64());
    }

    /// Counts an answer.
    pub fn answered(&self, kind: CallKind, answer: &Answer, after: Duration) {
        let call = match kind {
            CallKind::Prepare => "prepare",
            CallKind::Unprepare => "unprepare",
        };
        let outcome = match answer {
            Answer::Prepared(_) | Answer::Unprepared => "done",
            Answer::Refused(refusal) => refusal.reason.map_or("Error", Reason::as_str),
        };
        self.calls
            .get_or_create_owned(&CallLabels { call, outcome })
            .inc();
        self.seconds
            .get_or_create_owned(&KindLabel { call })
            .observe(after.as_secs_f64());
        if let (CallKind::Prepare, Answer::Refused(refusal)) = (kind, answer)
            && refusal.is_overlap
        {
            self.overlaps.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_device::{
        Listed, ListedGpu,
        faults::{Cause, Device, KnownAddresses, MOST_WAITING, Observation, Scope},
    };

    use super::*;
    use crate::{inventory::fixtures::gpu, prepare::Refusal};

    fn after(known: &KnownGpus, boot_id: &str, uuids: &[&str]) -> KnownGpus {
        let gpus = (0_u32..).zip(uuids).map(|(index, uuid)| ListedGpu {
            gpu: gpu(uuid, index, &index.to_string()),
            silent: None,
        });
        let listed = Listed {
            gpus: gpus.collect(),
            unidentified: Vec::new(),
        };
        known.after(boot_id, &listed)
    }

    #[test]
    fn a_gpu_that_fell_off_the_bus_counts_as_faulty_and_one_that_was_exchanged_does_not() {
        let both = after(&KnownGpus::default(), "boot", &["a", "b"]);
        let addresses = both.gpus.iter().map(|known| (known.gpu.uuid.clone(), None));
        let addresses = KnownAddresses(addresses.collect());
        let mut state = FaultState::default();
        for uuid in ["a", "b"] {
            let observation = Observation {
                class: FaultClass::Reset,
                scope: Scope::Gpu,
                cause: Cause::Xid(48),
            };
            state.observe(&Device::Uuid(uuid.to_owned()), observation, &addresses, 0);
        }
        for (what, known, faulty) in [
            ("nobody knows the GPUs", None, 2),
            ("both are there", Some(both.clone()), 2),
            ("one is gone", Some(after(&both, "boot", &["a"])), 2),
            (
                "one is exchanged",
                Some(after(&both, "boot", &["a", "c"])),
                1,
            ),
            (
                "the machine came up without",
                Some(after(&both, "next", &["a"])),
                1,
            ),
            (
                "both are exchanged",
                Some(after(&both, "next", &["c", "d"])),
                0,
            ),
        ] {
            let metrics = DriverMetrics::register(&Metrics::new("test", "0"));
            metrics.faults(&state, known.as_ref());
            let told = |class: FaultClass| {
                let class = class.as_str();
                let gauge = metrics.faults.get_or_create_owned(&ClassLabel { class });
                gauge.get()
            };
            assert_eq!(told(FaultClass::Reset), faulty, "{what}");
            assert_eq!(told(FaultClass::Contained), 0, "{what}");
        }
    }

    #[test]
    fn what_is_seen_of_more_unknown_gpus_than_are_remembered_is_told_by_its_number() {
        let mut state = FaultState::default();
        for number in 0..MOST_WAITING + 2 {
            let observation = Observation {
                class: FaultClass::Reset,
                scope: Scope::Gpu,
                cause: Cause::Xid(48),
            };
            let gpu = Device::Uuid(format!("GPU-{number}"));
            state.observe(&gpu, observation, &KnownAddresses::default(), 0);
        }
        let metrics = DriverMetrics::register(&Metrics::new("test", "0"));
        metrics.faults(&state, None);
        let told = (metrics.unattributed.get(), metrics.unremembered.get());
        assert_eq!(told, (i64::try_from(MOST_WAITING).unwrap(), 2));
    }

    #[test]
    fn only_a_second_claim_counts_as_an_overlap() {
        for (kind, is_overlap, counted) in [
            (CallKind::Prepare, true, 1),
            (CallKind::Prepare, false, 0),
            (CallKind::Unprepare, false, 0),
        ] {
            let metrics = DriverMetrics::register(&Metrics::new("test", "0"));
            let refused = Answer::Refused(Refusal {
                reason: Some(Reason::DeviceHeld),
                message: String::new(),
                is_overlap,
            });
            metrics.answered(kind, &refused, Duration::ZERO);
            assert_eq!(metrics.overlaps.get(), counted, "{kind:?} {is_overlap}");
        }
    }
}
