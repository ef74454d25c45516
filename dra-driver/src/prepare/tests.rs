//! The machine on a small virtual node. What happens between any two steps is the simulator's business (`sim`);
//! here stands what each rule does, one story at a time.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use muster_api::{
    Charge, ClaimsCharge, NodeDevices, NodeDevicesSpec, NodeDevicesStatus, Permit, Reason,
};

use super::*;

const SECOND: u64 = 1_000;

/// A disk, an API server and a machine.
struct Node {
    machine: Machine,
    now: u64,
    disk: Disk,
    cdi: BTreeSet<String>,
    api: Option<NodeDevices>,
    api_answers: bool,
    claims: BTreeMap<String, Claim>,
    in_use: InUse,
    gathered: Vec<Record>,
    /// How many writes succeed until one fails.
    disk_fails_after: Option<usize>,
    answers: BTreeMap<u64, Answer>,
    held: BTreeSet<String>,
    /// What was done, in order.
    log: Vec<String>,
    queue: VecDeque<Effect>,
    calls: u64,
}

fn config(instance: &str) -> Config {
    Config {
        instance: instance.to_owned(),
        node: "node-0".to_owned(),
        boot_id: "boot-1".to_owned(),
        enforce_unless_told: false,
        wait_milliseconds: 35 * SECOND,
        #[cfg(feature = "mutations")]
        mutation: None,
    }
}

fn inventory() -> Inventory {
    (0..2)
        .map(|index| {
            let facts = DeviceFacts {
                unit: Unit::whole(format!("GPU-{index}")),
                gpus_milli: 1_000,
                memory_bytes: 80,
                minor: index,
            };
            (format!("gpu-{index}"), facts)
        })
        .collect()
}

fn reference(uid: &str) -> ClaimRef {
    ClaimRef {
        uid: uid.to_owned(),
        namespace: "ml".to_owned(),
        name: format!("claim-{uid}"),
    }
}

fn claim(uid: &str, devices: &[&str]) -> Claim {
    let device = |name: &&str| AllocatedDevice {
        request: "gpu".to_owned(),
        pool: "node-0".to_owned(),
        device: (*name).to_owned(),
        admin_access: false,
    };
    Claim {
        reference: reference(uid),
        pods: vec![format!("pod-{uid}")],
        devices: Some(devices.iter().map(device).collect()),
    }
}

fn permit(uid: &str, gpus_milli: i64) -> Permit {
    Permit {
        pod_uid: format!("pod-{uid}"),
        claim_uids: vec![uid.to_owned()],
        charge: Charge {
            claims: vec![ClaimsCharge {
                flavor: "h100".to_owned(),
                gpus_milli,
                vram_bytes: 80,
                uids: vec![uid.to_owned()],
            }],
            resources: Vec::new(),
        },
        ..Permit::default()
    }
}

fn node_devices(uid: &str, generation: i64, permits: Vec<Permit>) -> NodeDevices {
    let spec = NodeDevicesSpec {
        enforce: true,
        permits,
        ..NodeDevicesSpec::default()
    };
    let mut object = NodeDevices::new("node-0", spec);
    object.metadata.uid = Some(uid.to_owned());
    object.metadata.generation = Some(generation);
    object.metadata.resource_version = Some(format!("{generation}00"));
    object
}

impl Node {
    /// A node that has started and come to rest.
    fn new(api: Option<NodeDevices>) -> Self {
        let mut node = Self::unstarted(api);
        node.restart("one");
        node
    }

    fn unstarted(api: Option<NodeDevices>) -> Self {
        Self {
            machine: Machine::new(config("none")),
            now: 0,
            disk: Disk::default(),
            cdi: BTreeSet::new(),
            api,
            api_answers: true,
            claims: BTreeMap::new(),
            in_use: InUse::No,
            gathered: Vec::new(),
            disk_fails_after: None,
            answers: BTreeMap::new(),
            held: BTreeSet::new(),
            log: Vec::new(),
            queue: VecDeque::new(),
            calls: 0,
        }
    }

    /// The driver dies and starts anew on the same disk.
    fn restart(&mut self, instance: &str) {
        self.boot(config(instance));
    }

    fn boot(&mut self, config: Config) {
        self.queue.clear();
        self.machine = Machine::new(config);
        self.tell(Input::Inventory(inventory()));
        let seen = self.api.clone().map(Arc::new);
        self.tell(Input::Observed(seen));
    }

    fn tell(&mut self, input: Input) {
        let effects = self.machine.input(Milliseconds(self.now), input);
        self.queue.extend(effects);
        while let Some(effect) = self.queue.pop_front() {
            self.perform(effect);
        }
    }

    fn tell_later(&mut self, input: Input) {
        let effects = self.machine.input(Milliseconds(self.now), input);
        self.queue.extend(effects);
    }

    /// Time passes, with every tick that the machine asks for.
    fn pass(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds;
        while let Some(at) = self.machine.wake_at().filter(|at| at.0 <= end) {
            self.now = self.now.max(at.0);
            self.tell(Input::Tick);
        }
        self.now = end;
    }

    /// The controller writes `NodeDevices`; the watch shows it if `seen`.
    fn write_api(&mut self, object: NodeDevices, seen: bool) {
        let before = self
            .api
            .as_ref()
            .filter(|old| old.metadata.uid == object.metadata.uid);
        let status = before.and_then(|old| old.status.clone());
        let object = NodeDevices { status, ..object };
        self.api = Some(object.clone());
        if seen {
            self.tell(Input::Observed(Some(Arc::new(object))));
        }
    }

    fn prepare(&mut self, claim: Claim) -> u64 {
        self.calls += 1;
        let reference = claim.reference.clone();
        self.claims.insert(reference.name.clone(), claim);
        self.tell(Input::Prepare(CallId(self.calls), reference));
        self.calls
    }

    fn unprepare(&mut self, uid: &str) -> u64 {
        self.calls += 1;
        self.tell(Input::Unprepare(CallId(self.calls), reference(uid)));
        self.calls
    }

    fn read(&self) -> Read<Arc<NodeDevices>> {
        match (&self.api, self.api_answers) {
            (_, false) => Read::Failed("no answer".to_owned()),
            (Some(object), true) => Read::Found(Arc::new(object.clone())),
            (None, true) => Read::Absent,
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Lock {
                ticket,
                probe,
                read_node_devices,
            } => {
                let locked = Locked {
                    disk: Ok(self.disk.clone()),
                    in_use: probe.map(|_| self.in_use.clone()),
                    node_devices: read_node_devices.then(|| self.read()),
                };
                self.tell_later(Input::Locked(ticket, locked));
            }
            Effect::Commit { ticket, writes } => {
                let result = writes.into_iter().try_for_each(|write| self.write(write));
                self.tell_later(Input::Committed(ticket, result));
            }
            Effect::ReadClaim(call, claim) => {
                let found = self.claims.get(&claim.name).cloned();
                let read = found.map_or(Read::Absent, Read::Found);
                self.tell_later(Input::ClaimRead(call, read));
            }
            Effect::ReadNodeDevices => {
                self.log.push("read".to_owned());
                self.tell_later(Input::NodeDevicesRead(self.read()));
            }
            Effect::Gather => {
                self.log.push("gather".to_owned());
                let found = self.gathered.clone();
                self.tell_later(Input::Gathered(Ok(found)));
            }
            Effect::WriteStatus {
                uid,
                resource_version,
                status,
            } => {
                let outcome = self.write_status(uid.as_ref(), resource_version, status);
                self.tell_later(Input::StatusWritten(outcome));
            }
            Effect::Answer(call, answer) => {
                assert!(
                    self.answers.insert(call.0, answer).is_none(),
                    "answered twice"
                );
            }
            Effect::TaintHeld(devices) => self.held = devices,
        }
    }

    fn write(&mut self, write: Write) -> Result<(), DiskFailure> {
        if let Some(left) = &mut self.disk_fails_after {
            let Some(fewer) = left.checked_sub(1) else {
                self.disk_fails_after = None;
                return Err(DiskFailure("No space left on device".to_owned()));
            };
            *left = fewer;
        }
        match write {
            Write::PutRecord(record) => {
                self.log
                    .push(format!("{} {:?}", record.claim.uid, record.state));
                self.disk.records.insert(record.claim.uid.clone(), record);
            }
            Write::RemoveRecord(uid) => {
                self.log.push(format!("{uid} removed"));
                self.disk.records.remove(&uid);
            }
            Write::PutCdi(record) => {
                self.log.push(format!("{} CDI", record.claim.uid));
                self.cdi.insert(record.claim.uid);
            }
            Write::RemoveCdi(uid) => {
                self.cdi.remove(&uid);
            }
            Write::PutNode {
                boot_id,
                acknowledged,
            } => {
                if let Some(acknowledged) = &acknowledged {
                    self.log.push(format!("disk {}", acknowledged.generation));
                }
                self.disk.boot_id = Some(boot_id);
                self.disk.acknowledged = acknowledged;
            }
        }
        Ok(())
    }

    fn write_status(
        &mut self,
        uid: Option<&String>,
        resource_version: Option<String>,
        status: NodeDevicesStatus,
    ) -> StatusOutcome {
        let Some(object) = &mut self.api else {
            return StatusOutcome::Conflict;
        };
        let metadata = &mut object.metadata;
        if metadata.uid.as_ref() != uid || metadata.resource_version != resource_version {
            return StatusOutcome::Conflict;
        }
        metadata.resource_version = resource_version.map(|version| format!("{version}+"));
        let held: Vec<_> = status.held.iter().map(|held| &*held.claim_uid).collect();
        self.log.push(format!(
            "status {} held [{}]",
            status.observed_generation,
            held.join(" ")
        ));
        object.status = Some(status);
        StatusOutcome::Written(Arc::new(object.clone()))
    }

    fn state(&self, uid: &str) -> Option<RecordState> {
        self.disk.records.get(uid).map(|record| record.state)
    }

    fn answered(&self, call: u64) -> Option<&Answer> {
        self.answers.get(&call)
    }

    #[track_caller]
    fn prepared(&self, call: u64) -> Vec<&str> {
        match self.answered(call) {
            Some(Answer::Prepared(devices)) => {
                devices.iter().map(|device| &*device.cdi_id).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn refused(&self, call: u64) -> &Refusal {
        match self.answered(call) {
            Some(Answer::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        }
    }

    fn status(&self) -> NodeDevicesStatus {
        let status = self.api.as_ref().and_then(|object| object.status.clone());
        status.unwrap_or_default()
    }

    fn held_by_status(&self) -> Vec<String> {
        let held = self.status().held.into_iter();
        held.map(|held| held.claim_uid).collect()
    }
}

// --- preparing

#[test]
fn before_there_is_a_controller_a_claim_is_prepared_as_it_is() {
    let mut node = Node::new(None);
    let call = node.prepare(claim("a", &["gpu-0", "gpu-1"]));
    assert_eq!(
        node.prepared(call),
        [
            "gpu.muster.dev/claim=a-gpu-0",
            "gpu.muster.dev/claim=a-gpu-1"
        ]
    );
    assert_eq!(node.state("a"), Some(RecordState::Prepared));
    assert!(
        node.held.is_empty(),
        "nothing is refused, so nothing is tainted"
    );
}

#[test]
fn the_intent_is_on_disk_before_the_cdi_file() {
    let mut node = Node::new(None);
    node.log.clear();
    node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(
        node.log,
        ["a Waiting", "a Preparing", "a CDI", "a Prepared"]
    );
}

#[test]
fn prepare_twice_is_answered_from_the_record_also_after_a_restart_and_without_a_permit() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("a", 1_000)])));
    let first = node.prepare(claim("a", &["gpu-0"]));
    node.write_api(node_devices("u", 2, vec![]), true);
    node.cdi.clear();
    node.restart("two");
    node.claims.clear();
    node.log.clear();
    let second = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.prepared(first), node.prepared(second));
    assert!(node.cdi.contains("a"), "the file is written again");
}

#[test]
fn a_claim_that_is_not_what_the_kubelet_named_is_refused_at_once() {
    let mut other = claim("a", &["gpu-0"]);
    other.reference.uid = "b".to_owned();
    let mut unallocated = claim("a", &[]);
    unallocated.devices = None;
    for (found, why) in [
        (Some(other), "replaced"),
        (Some(unallocated), "not allocated"),
        (None, "does not exist"),
    ] {
        let mut node = Node::new(None);
        if let Some(found) = found {
            node.claims.insert("claim-a".to_owned(), found);
        }
        node.calls = 1;
        node.tell(Input::Prepare(CallId(1), reference("a")));
        assert!(node.refused(1).message.contains(why), "{why}");
        assert_eq!(node.state("a"), None, "the mark is taken away");
    }
}

#[test]
fn a_claim_without_devices_of_ours_is_prepared_without_a_record() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![])));
    let call = node.prepare(claim("a", &[]));
    assert!(node.prepared(call).is_empty());
    assert_eq!(node.state("a"), None);
}

// --- permits

#[test]
fn what_has_no_permit_waits_and_is_refused_with_its_reason() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("b", 1_000)])));
    let call = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.state("a"), Some(RecordState::Waiting));
    assert!(node.log.contains(&"read".to_owned()), "past the watch");
    node.pass(34 * SECOND);
    assert_eq!(node.answered(call), None);
    node.pass(2 * SECOND);
    assert_eq!(node.refused(call).reason, Some(Reason::NoPermit));
    assert!(node.refused(call).message.contains("pod-a"));
    assert_eq!(node.state("a"), None);
    assert!(node.held_by_status().is_empty());
}

#[test]
fn a_permit_that_comes_ends_the_wait_by_the_watch_or_past_it() {
    for seen in [true, false] {
        let mut node = Node::new(Some(node_devices("u", 1, vec![])));
        let call = node.prepare(claim("a", &["gpu-0"]));
        node.write_api(node_devices("u", 2, vec![permit("a", 1_000)]), seen);
        node.pass(7 * SECOND);
        assert_eq!(node.prepared(call).len(), 1, "seen: {seen}");
        assert_eq!(node.disk.acknowledged.as_ref().unwrap().generation, 2);
    }
}

#[test]
fn a_permit_counts_only_for_its_pod_its_claim_and_as_far_as_its_charge() {
    let withdrawn = Permit {
        withdrawn: true,
        ..permit("a", 1_000)
    };
    let of_another_pod = Permit {
        pod_uid: "pod-b".to_owned(),
        ..permit("a", 1_000)
    };
    let of_another_claim = Permit {
        claim_uids: vec!["b".to_owned()],
        ..permit("a", 1_000)
    };
    for (given, reason) in [
        (withdrawn, Reason::NoPermit),
        (of_another_pod, Reason::NoPermit),
        (of_another_claim, Reason::NoPermit),
        (permit("a", 999), Reason::ChargeExceeded),
    ] {
        let mut node = Node::new(Some(node_devices("u", 1, vec![given.clone()])));
        let call = node.prepare(claim("a", &["gpu-0"]));
        node.pass(36 * SECOND);
        assert_eq!(node.refused(call).reason, Some(reason), "{given:?}");
    }
}

#[test]
fn a_charge_that_stands_with_another_pod_of_the_same_claim_covers_it() {
    let sharing = Permit {
        pod_uid: "pod-b".to_owned(),
        ..permit("a", 1_000)
    };
    let mut without_charge = permit("a", 1_000);
    without_charge.charge = Charge::default();
    let mut node = Node::new(Some(node_devices("u", 1, vec![sharing, without_charge])));
    let call = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.prepared(call).len(), 1);
}

#[test]
fn a_permit_withdrawn_during_the_wait_is_not_used() {
    let both = vec![permit("a", 1_000), permit("b", 1_000)];
    let mut node = Node::new(Some(node_devices("u", 1, both)));
    node.prepare(claim("b", &["gpu-0"]));
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.write_api(node_devices("u", 2, vec![permit("b", 1_000)]), true);
    node.unprepare("b");
    node.pass(36 * SECOND);
    assert_eq!(node.refused(call).reason, Some(Reason::NoPermit));
}

#[test]
fn enforcement_outlives_the_object_that_set_it() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![])));
    node.api = None;
    node.tell(Input::Observed(None));
    node.restart("two");
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.pass(36 * SECOND);
    assert_eq!(node.refused(call).reason, Some(Reason::NoPermit));
}

#[test]
fn a_node_may_be_told_to_enforce_before_it_is_told_by_an_object() {
    let mut node = Node::unstarted(None);
    node.boot(Config {
        enforce_unless_told: true,
        ..config("one")
    });
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.pass(36 * SECOND);
    assert_eq!(node.refused(call).reason, Some(Reason::NoPermit));
}

// --- exclusivity

#[test]
fn a_second_claim_on_the_same_gpu_waits_for_the_first_whatever_its_state() {
    for state in [
        RecordState::Preparing,
        RecordState::Prepared,
        RecordState::Unpreparing,
    ] {
        let mut node = Node::new(None);
        node.prepare(claim("a", &["gpu-0"]));
        node.disk.records.get_mut("a").unwrap().state = state;
        let call = node.prepare(claim("b", &["gpu-0"]));
        node.pass(10 * SECOND);
        assert_eq!(node.answered(call), None);
        node.unprepare("a");
        assert_eq!(node.prepared(call).len(), 1, "{state:?}");
    }
}

#[test]
fn a_holder_that_stays_is_named() {
    let mut node = Node::new(None);
    node.prepare(claim("a", &["gpu-0", "gpu-1"]));
    let call = node.prepare(claim("b", &["gpu-1"]));
    node.pass(36 * SECOND);
    let refusal = node.refused(call);
    assert_eq!(refusal.reason, Some(Reason::DeviceHeld));
    assert!(refusal.message.contains("ml/claim-a"), "{refusal}");
    assert_eq!(node.state("b"), None);
}

#[test]
fn a_slice_and_its_gpu_collide_and_two_slices_do_not() {
    let slice = |start, end| Unit {
        gpu: "GPU-0".to_owned(),
        slices: Slices { start, end },
    };
    let whole = Unit::whole("GPU-0");
    for (one, other, overlap) in [
        (&whole, &slice(7, 8), true),
        (&slice(0, 4), &slice(3, 5), true),
        (&slice(0, 4), &slice(4, 8), false),
        (&whole, &Unit::whole("GPU-1"), false),
    ] {
        assert_eq!(one.overlaps(other), overlap, "{one} {other}");
        assert_eq!(other.overlaps(one), overlap);
    }
}

#[test]
fn administrative_access_takes_nothing_from_anybody() {
    let mut node = Node::new(None);
    node.prepare(claim("a", &["gpu-0"]));
    let mut look = claim("b", &["gpu-0"]);
    look.devices
        .as_mut()
        .unwrap()
        .first_mut()
        .unwrap()
        .admin_access = true;
    let call = node.prepare(look);
    assert_eq!(node.prepared(call).len(), 1);
}

#[test]
fn a_gpu_with_a_process_that_no_claim_accounts_for_is_not_given_away() {
    let mut node = Node::new(None);
    node.in_use = InUse::Yes("process 4242".to_owned());
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.pass(10 * SECOND);
    assert_eq!(node.answered(call), None);
    node.in_use = InUse::No;
    node.pass(SECOND);
    assert_eq!(node.prepared(call).len(), 1);
}

// --- unprepare

#[test]
fn unprepare_twice_and_of_an_unknown_claim_succeeds() {
    let mut node = Node::new(None);
    node.prepare(claim("a", &["gpu-0"]));
    for uid in ["a", "a", "never"] {
        let call = node.unprepare(uid);
        assert_eq!(node.answered(call), Some(&Answer::Unprepared));
    }
    assert!(node.disk.records.is_empty() && node.cdi.is_empty());
}

#[test]
fn a_device_in_use_or_of_unknown_use_is_held() {
    for in_use in [
        InUse::Yes("process 4242".to_owned()),
        InUse::Unknown("NVML does not answer".to_owned()),
    ] {
        let mut node = Node::new(None);
        node.prepare(claim("a", &["gpu-0"]));
        node.in_use = in_use;
        let call = node.unprepare("a");
        assert_eq!(node.refused(call).reason, Some(Reason::DeviceHeld));
        assert_eq!(node.state("a"), Some(RecordState::Prepared));
        node.in_use = InUse::No;
        let call = node.unprepare("a");
        assert_eq!(node.answered(call), Some(&Answer::Unprepared));
    }
}

#[test]
fn a_prepare_whose_mark_was_taken_records_nothing() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![])));
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.unprepare("a");
    assert!(node.refused(call).message.contains("unprepared"));
    node.write_api(node_devices("u", 2, vec![permit("a", 1_000)]), true);
    node.pass(SECOND);
    assert_eq!(node.state("a"), None);
}

#[test]
fn an_unprepare_by_another_instance_takes_the_mark_as_well() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![])));
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.disk.records.remove("a");
    node.write_api(node_devices("u", 2, vec![permit("a", 1_000)]), true);
    assert!(node.refused(call).message.contains("unprepared"));
    assert_eq!(node.state("a"), None);
}

#[test]
fn what_the_kubelet_forgot_is_given_back_unless_it_is_used() {
    let mut node = Node::new(None);
    node.prepare(claim("a", &["gpu-0"]));
    node.in_use = InUse::Yes("process 4242".to_owned());
    node.tell(Input::Orphaned(vec![reference("a")]));
    assert_eq!(node.state("a"), Some(RecordState::Prepared));
    node.in_use = InUse::No;
    node.tell(Input::Orphaned(vec![reference("a")]));
    assert_eq!(node.state("a"), None);
}

// --- acknowledgement

#[test]
fn the_generation_is_on_disk_before_the_status_says_so() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    node.log.clear();
    let withdrawn = Permit {
        withdrawn: true,
        ..permit("a", 1_000)
    };
    node.write_api(node_devices("u", 2, vec![withdrawn]), true);
    assert_eq!(node.log, ["disk 2", "status 2 held [a]"]);
    assert_eq!(node.held, BTreeSet::from(["gpu-0".to_owned()]));
    assert_eq!(node.status().uid, "u");
    assert_eq!(node.status().boot_id, "boot-1");

    node.unprepare("a");
    assert!(node.held_by_status().is_empty());
    assert!(node.held.is_empty());
}

#[test]
fn an_older_view_neither_acknowledges_nor_prepares() {
    let mut node = Node::new(Some(node_devices("u", 5, vec![])));
    // The watch of a new instance lags behind what the node has promised.
    node.queue.clear();
    node.machine = Machine::new(config("two"));
    node.api_answers = false;
    node.tell(Input::Inventory(inventory()));
    let old = node_devices("u", 4, vec![permit("a", 1_000)]);
    node.tell(Input::Observed(Some(Arc::new(old))));
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.pass(36 * SECOND);
    assert!(node.refused(call).message.contains("NodeDevices"));
    assert_eq!(node.disk.acknowledged.as_ref().unwrap().generation, 5);
    assert_eq!(node.status().observed_generation, 5);
}

#[test]
fn another_object_than_the_disks_counts_only_after_an_uncached_read() {
    let mut node = Node::new(Some(node_devices("u", 5, vec![])));
    node.api_answers = false;
    let made_anew = node_devices("v", 1, vec![permit("a", 1_000)]);
    node.write_api(made_anew, true);
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.pass(5 * SECOND);
    assert_eq!(node.answered(call), None);
    assert_eq!(
        node.disk.acknowledged.as_ref().unwrap().uid.as_deref(),
        Some("u")
    );
    node.api_answers = true;
    node.pass(5 * SECOND);
    assert_eq!(node.prepared(call).len(), 1);
    assert_eq!(
        (
            node.status().uid.as_str(),
            node.status().observed_generation
        ),
        ("v", 1)
    );
}

#[test]
fn a_status_that_conflicts_is_worked_out_anew() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![])));
    // The controller writes, and the watch does not show it yet.
    node.write_api(node_devices("u", 2, vec![permit("a", 1_000)]), false);
    node.tell(Input::Observed(Some(Arc::new(node_devices(
        "u",
        1,
        vec![],
    )))));
    node.pass(2 * SECOND);
    node.prepare(claim("a", &["gpu-0"]));
    node.pass(2 * SECOND);
    assert_eq!(node.status().observed_generation, 2);
    assert!(node.held_by_status().is_empty());
}

// --- loss, reboot, full disk

#[test]
fn after_a_loss_nothing_is_done_until_records_and_generation_are_known() {
    let mut node = Node::new(Some(node_devices("u", 3, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    let lost = std::mem::take(&mut node.disk);
    node.gathered = lost.records.into_values().collect();
    node.api_answers = false;
    node.restart("two");
    let prepare = node.prepare(claim("b", &["gpu-1"]));
    let unprepare = node.unprepare("a");
    assert!(node.refused(unprepare).message.contains("rebuilt"));
    node.pass(3 * SECOND);
    assert_eq!(node.answered(prepare), None);
    assert_eq!(node.disk.acknowledged, None);

    node.api_answers = true;
    node.pass(3 * SECOND);
    assert_eq!(node.state("a"), Some(RecordState::Prepared));
    assert_eq!(node.disk.acknowledged.as_ref().unwrap().generation, 3);
    let again = node.unprepare("a");
    assert_eq!(node.answered(again), Some(&Answer::Unprepared));
}

#[test]
fn a_reboot_voids_what_was_prepared_and_keeps_what_was_promised() {
    let mut node = Node::new(Some(node_devices("u", 3, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    node.boot(Config {
        boot_id: "boot-2".to_owned(),
        ..config("two")
    });
    assert!(node.disk.records.is_empty() && node.cdi.is_empty());
    assert_eq!(node.disk.acknowledged.as_ref().unwrap().generation, 3);
    assert_eq!(node.status().boot_id, "boot-2");
}

#[test]
fn a_disk_that_fails_at_any_write_leaves_nothing_behind_and_the_next_try_succeeds() {
    // Mark, intent, CDI file, completion.
    for writes in 0..4 {
        let mut node = Node::new(None);
        node.disk_fails_after = Some(writes);
        let call = node.prepare(claim("a", &["gpu-0"]));
        assert!(
            node.refused(call).message.contains("No space left"),
            "{writes}"
        );
        assert_eq!(node.state("a"), None, "{writes}");
        assert!(node.cdi.is_empty(), "{writes}");
        let call = node.prepare(claim("a", &["gpu-0"]));
        assert_eq!(node.prepared(call).len(), 1, "{writes}");
    }
}

#[test]
fn an_unprepare_that_fails_at_any_write_succeeds_the_next_time() {
    for writes in 0..3 {
        let mut node = Node::new(None);
        node.prepare(claim("a", &["gpu-0"]));
        node.disk_fails_after = Some(writes);
        let call = node.unprepare("a");
        assert!(
            node.refused(call).message.contains("No space left"),
            "{writes}"
        );
        let call = node.unprepare("a");
        assert_eq!(node.answered(call), Some(&Answer::Unprepared), "{writes}");
        assert!(
            node.disk.records.is_empty() && node.cdi.is_empty(),
            "{writes}"
        );
    }
}

#[test]
fn what_a_crash_left_half_prepared_holds_and_is_completed_or_given_back() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    node.disk.records.get_mut("a").unwrap().state = RecordState::Preparing;
    node.write_api(node_devices("u", 2, vec![]), true);
    node.restart("two");
    assert_eq!(node.held_by_status(), ["a"]);

    let refused = node.prepare(claim("a", &["gpu-0"]));
    node.pass(36 * SECOND);
    assert_eq!(node.refused(refused).reason, Some(Reason::NoPermit));
    assert_eq!(
        node.state("a"),
        Some(RecordState::Preparing),
        "it still holds"
    );

    node.write_api(node_devices("u", 3, vec![permit("a", 1_000)]), true);
    let call = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.prepared(call).len(), 1);
}

#[test]
fn a_machine_at_rest_asks_for_no_time() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.machine.wake_at(), None);
}
