//! One history of one node.

mod mishaps;
mod permits;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::ResourceClaim;
use muster_api::{NodeDevices, NodeDevicesSpec, keys};
use muster_cluster::object::Kind;
use muster_dra_driver::prepare::{
    Answer, CallId, ClaimRef, DeviceFacts, MadeSlice, MigInstance, SliceMode, SliceOrder, Unit,
};
use muster_sim::{
    api_server::{ApiServer, Precondition, key},
    drivers::{Drivers, InjectedBug, Step},
    gpu_node::{Container, GpuNode},
    gpu_slices::{GpuSlices, unit_of},
    matrix::{Matrix, Mishap},
    random::Random,
    scenario::{NodeShape, Product},
};

use mishaps::Aim;
use permits::Cost;

const NODE: &str = "node-0";
const NAMESPACE: &str = "ml";
/// Steps in which things go wrong.
const STEPS: u64 = 1_000;
/// Most steps until everything is at rest.
const MOST_STEPS: u64 = 60_000;
/// Most claims at a time.
const CLAIMS: usize = 6;
/// Most slices of an administrator where he makes them: where drivers do, one is in their way.
const MOST_FOREIGN: usize = 4;
/// Far longer than anything that is left takes to be looked for twice.
const REST_MILLISECONDS: u64 = 2 * 3_600_000;
/// How long the kubelet waits for an answer.
const CALL_MILLISECONDS: u64 = 45_000;

/// What came of a history.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) violation: Option<String>,
    /// The last steps.
    pub(crate) story: Vec<String>,
    pub(crate) slices_prepared: u64,
    pub(crate) wholes_prepared: u64,
    pub(crate) crashes: u64,
    pub(crate) crashes_while_locked: u64,
    pub(crate) refusals: u64,
    pub(crate) full_disks: u64,
    pub(crate) reboots: u64,
    pub(crate) foreign: u64,
    pub(crate) mode_changes: u64,
    /// Claims that were given slices of an administrator.
    pub(crate) foreign_prepared: u64,
    /// Claims with slices that were prepared while only what has a permit may be.
    pub(crate) slices_permitted: u64,
    /// The same of whole GPUs.
    pub(crate) wholes_permitted: u64,
    /// Permits that were withdrawn while their claim was wanted.
    pub(crate) permits_withdrawn: u64,
    /// Permits that were removed while their claim was still wanted.
    pub(crate) permits_lost: u64,
    /// What met what.
    pub(crate) matrix: Matrix,
}

/// What the kubelet wants with a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Prepare,
    Running,
    Unprepare,
}

#[derive(Debug)]
struct Wanted {
    claim: ClaimRef,
    wish: Wish,
    /// The call under way: instance, call, since when.
    call: Option<(u64, CallId, u64)>,
    /// Before that it is not asked again.
    not_before: u64,
    /// What its permit is charged.
    cost: Cost,
    /// Its permit was withdrawn: it gets no other.
    gives_way: bool,
}

struct History {
    random: Random,
    now: u64,
    api: ApiServer,
    node: GpuNode,
    drivers: Drivers,
    wanted: BTreeMap<String, Wanted>,
    foreign: Vec<(String, MigInstance)>,
    created: u64,
    /// When things ceased to go wrong.
    healed_at: u64,
    /// Whether only what has a permit may be prepared.
    enforces: bool,
    /// UIDs of the claims that were recorded, or had a CDI file, when it was looked last.
    recorded: BTreeSet<String>,
    aim: Aim,
    report: Report,
}

/// Plays a seed; with `bug` a rule is broken in every instance.
pub(crate) fn play(seed: u64, bug: Option<InjectedBug>) -> Report {
    let mut history = History::new(seed, bug);
    let violation = history.run().err();
    Report {
        violation,
        ..history.report
    }
}

impl History {
    fn new(seed: u64, bug: Option<InjectedBug>) -> Self {
        let mut random = Random::new(seed);
        let aim = Aim::of(seed);
        // Where permits are asked for, fewer claims are prepared: almost half of the histories go without.
        let enforces = random.one_in(2) || aim.needs_permits();
        let mut api = ApiServer::default();
        let spec = NodeDevicesSpec {
            enforce: enforces,
            ..NodeDevicesSpec::default()
        };
        let devices = NodeDevices::new(NODE, spec);
        let _ = api.create(devices);
        let mut node = GpuNode::new(NodeShape {
            name: NODE.to_owned(),
            leaf: "leaf".to_owned(),
            product: Product::H100,
            gpus: 2,
        });
        node.slices = GpuSlices::of_hopper();
        let mut drivers = Drivers::default();
        drivers.plant(bug);
        Self {
            random,
            now: 1,
            api,
            node,
            drivers,
            wanted: BTreeMap::new(),
            foreign: Vec::new(),
            created: 0,
            healed_at: 0,
            enforces,
            recorded: BTreeSet::new(),
            aim,
            report: Report {
                seed,
                ..Report::default()
            },
        }
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            if self.random.one_in(12) {
                self.mishap();
            }
            self.outside(true);
            self.step(true)?;
        }
        self.say("from now on nothing goes wrong");
        self.healed_at = self.now;
        for number in 0..MOST_STEPS {
            self.outside(false);
            if !self.step(false)? && self.wanted.is_empty() {
                if self.is_at_rest() {
                    return self.check_rest();
                }
                // What was left is looked for in the long run.
                self.now += 1_000;
            }
            if number > MOST_STEPS / 2 {
                self.now += 1_000;
            }
        }
        Err(format!("it does not come to rest: {:?}", self.wanted))
    }

    fn say(&mut self, what: impl Into<String>) {
        let story = &mut self.report.story;
        if story.len() > 150 {
            story.remove(0);
        }
        let line = format!("{:>8} {}", self.now, what.into());
        story.push(line);
    }

    /// What only bad luck brings.
    fn mishap(&mut self) {
        match self.random.below(40) {
            0..=5 => self.crash(),
            6..=8 if self.drivers.instances.len() < 2 => {
                self.say("another instance starts");
                self.drivers.start(self.now, &self.api, &self.node);
            }
            9 => self.reboot(),
            10..=12 => self.make_foreign(),
            13 => self.remove_foreign(),
            14 => self.change_mode(SliceMode::Static),
            15 | 16 => self.change_mode(SliceMode::Dynamic),
            _ => {}
        }
    }

    fn crash(&mut self) {
        let running = self.drivers.instances.len();
        if running == 0 {
            return;
        }
        let position = self.random.index(running);
        self.crash_at(position);
    }

    fn crash_at(&mut self, position: usize) {
        let halves = self.node.slices.all().filter(|(_, it)| it.uuid.is_none());
        let foreign = self.foreign.iter().filter(|(_, it)| it.uuid.is_none());
        self.report.crashes_while_locked += u64::from(halves.count() > foreign.count());
        self.report.crashes += 1;
        self.say(format!("instance number {position} crashes"));
        self.drivers.crash(position, &mut self.node);
    }

    fn reboot(&mut self) {
        self.report.reboots += 1;
        // No two boots have one name.
        self.now += 1;
        while !self.drivers.instances.is_empty() {
            self.drivers.crash(0, &mut self.node);
        }
        self.node.containers.clear();
        // Slices may outlive it, or an administrator makes such before a driver starts: nobody can tell whose they are, and they are his.
        let slices = self.node.slices.clone();
        self.node.boot(self.now);
        if self.random.one_in(2) {
            self.node.slices = slices;
        }
        let left = self.node.slices.all();
        self.foreign = left
            .map(|(gpu, instance)| (gpu.to_owned(), instance.clone()))
            .collect();
        self.say("the machine reboots");
        for wanted in self.wanted.values_mut() {
            wanted.call = None;
            if wanted.wish == Wish::Running {
                wanted.wish = Wish::Prepare;
            }
        }
    }

    fn gpu(&mut self) -> String {
        let number = self.random.index(self.node.shape.gpus);
        muster_sim::fixtures::gpu_uuid(NODE, number)
    }

    /// An administrator says that he makes the slices (`Static`, or `Off`), and does; or that drivers do. Nobody is restarted for it, but
    /// anybody may crash right after it.
    fn change_mode(&mut self, mode: SliceMode) {
        if self.node.slice_mode == mode {
            return;
        }
        self.report.mode_changes += 1;
        self.say(format!("slices are made by the rule of {mode:?}"));
        self.node.slice_mode = mode;
        self.drivers.tell_inventory(self.now, &self.node);
        if mode == SliceMode::Static {
            for _ in 0..MOST_FOREIGN {
                self.make_foreign();
            }
        }
    }

    /// An administrator makes a slice where there is room and no claim has anything.
    fn make_foreign(&mut self) {
        // Between the look at what is there and the intent that is decided by it nobody can tell his slice from ours.
        if self.node.lock.is_some() || self.drivers.hold_sights() {
            return;
        }
        let gpu = self.gpu();
        let profiles = self.node.slices.profiles.clone();
        let Some(profile) = self.random.pick(profiles) else {
            return;
        };
        let Some(placement) = self.random.pick(profile.placements.clone()) else {
            return;
        };
        let unit = Unit::slice(gpu.clone(), placement, profile.compute_slices);
        let most = match self.node.slice_mode {
            SliceMode::Static => MOST_FOREIGN,
            SliceMode::Dynamic => 1,
        };
        let is_held = self.node.held().any(|(_, held)| held.overlaps(&unit));
        if is_held || self.foreign.len() >= most {
            return;
        }
        let order = SliceOrder {
            gpu: gpu.clone(),
            profile,
            placement,
            is_new: true,
        };
        if self.node.slices.make_gpu_instance(&order).is_err() {
            return;
        }
        let _ = self.node.slices.make_compute_instance(&order);
        let live = self.node.slices.live(&gpu);
        let made = live.into_iter().find(|it| it.placement == placement);
        self.say(format!("an administrator makes {made:?}"));
        self.foreign.extend(made.map(|made| (gpu, made)));
        self.report.foreign += 1;
    }

    /// An administrator removes his slices, but for those that a claim has, or that one may be about to be given.
    fn remove_foreign(&mut self) {
        let is_being_decided = self.node.lock.is_some() || self.drivers.hold_sights();
        if is_being_decided && !self.wanted.is_empty() {
            return;
        }
        for (gpu, instance) in std::mem::take(&mut self.foreign) {
            let unit = unit_of(&gpu, &instance);
            if self.node.held().any(|(_, held)| held.overlaps(&unit)) {
                self.foreign.push((gpu, instance));
                continue;
            }
            self.say(format!("an administrator removes {instance:?}"));
            while !self.node.slices.remove_step(&gpu, instance.placement) {}
        }
    }

    /// What users and the kubelet do.
    fn outside(&mut self, goes_on: bool) {
        if goes_on && self.wanted.len() < CLAIMS && self.random.one_in(4) {
            self.create_claim();
        }
        if !goes_on {
            self.remove_foreign();
        }
        self.permit(goes_on);
        let odds = if goes_on { 6 } else { 2 };
        let uids: Vec<String> = self.wanted.keys().cloned().collect();
        for uid in uids {
            if self.random.one_in(odds) {
                self.kubelet(&uid, goes_on);
            }
        }
    }

    fn create_claim(&mut self) {
        self.created += 1;
        let inventory = self.node.inventory();
        let names: Vec<String> = inventory.keys().cloned().collect();
        let wholes: Vec<String> = inventory
            .iter()
            .filter(|(_, facts)| facts.slice.is_none())
            .map(|(name, _)| name.clone())
            .collect();
        let there: Vec<String> = inventory
            .iter()
            .filter(|(_, facts)| self.is_there(facts))
            .map(|(name, _)| name.clone())
            .collect();
        // What is published where an administrator makes slices; what was allocated before may be anything.
        let is_offered_as_it_is = self.node.slice_mode == SliceMode::Static && !there.is_empty();
        let mut devices: Vec<String> = Vec::new();
        for _ in 0..self.random.between(1, 3) {
            let among = if self.random.one_in(4) {
                wholes.clone()
            } else if is_offered_as_it_is && !self.random.one_in(4) {
                there.clone()
            } else {
                names.clone()
            };
            let Some(name) = self.random.pick(among) else {
                continue;
            };
            let overlaps = |other: &String| inventory[other].unit.overlaps(&inventory[&name].unit);
            if !devices.iter().any(overlaps) {
                devices.push(name);
            }
        }
        let name = format!("claim-{}", self.created);
        let results: Vec<serde_json::Value> = devices
            .iter()
            .enumerate()
            .map(|(number, device)| {
                serde_json::json!({
                    "request": format!("r{number}"), "driver": keys::DRIVER, "pool": NODE, "device": device,
                })
            })
            .collect();
        let claim = serde_json::json!({
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": {},
            "status": {
                "reservedFor": [{"resource": "pods", "name": name, "uid": format!("pod-of-{name}")}],
                "allocation": {"devices": {"results": results}},
            },
        });
        let claim: ResourceClaim = serde_json::from_value(claim).unwrap_or_default();
        let Ok(created) = self.api.create(claim) else {
            return;
        };
        let uid = created.metadata().uid.clone().unwrap_or_default();
        self.say(format!("{name} ({uid}) is allocated {devices:?}"));
        let claim = ClaimRef {
            uid: uid.clone(),
            namespace: NAMESPACE.to_owned(),
            name,
        };
        let cost = Cost::of(devices.iter().filter_map(|name| inventory.get(name)));
        self.wanted.insert(
            uid,
            Wanted {
                claim,
                wish: Wish::Prepare,
                call: None,
                not_before: 0,
                cost,
                gives_way: false,
            },
        );
    }

    /// Whether a device is a slice that exists.
    fn is_there(&self, facts: &DeviceFacts) -> bool {
        let Some(slice) = &facts.slice else {
            return false;
        };
        let live = self.node.slices.live(&facts.unit.gpu);
        live.iter().any(|instance| {
            instance.placement == slice.placement
                && instance.profile == slice.profile.gpu_instance_profile
        })
    }

    /// One thing that the kubelet does about a claim.
    fn kubelet(&mut self, uid: &str, goes_on: bool) {
        let ends = !goes_on || self.random.one_in(30);
        let now = self.now;
        let newest = self.drivers.instances.last().map(|instance| instance.id);
        let there: BTreeSet<u64> = self.drivers.instances.iter().map(|it| it.id).collect();
        let Some(wanted) = self.wanted.get_mut(uid) else {
            return;
        };
        // The instance is gone, or the kubelet waits no longer.
        let has_lapsed = wanted.call.is_some_and(|(instance, _, since)| {
            !there.contains(&instance) || since + CALL_MILLISECONDS < now
        });
        if has_lapsed {
            wanted.call = None;
        }
        if ends && wanted.wish != Wish::Unprepare {
            wanted.wish = Wish::Unprepare;
            wanted.call = None;
            wanted.not_before = 0;
            let pod = format!("pod-of-{}", wanted.claim.name);
            self.node.containers.remove(&pod);
            self.say(format!("{uid}: its pod ends"));
            return;
        }
        if wanted.wish == Wish::Running || wanted.call.is_some() || wanted.not_before > now {
            // NVML begins to list the container's process.
            let pod = format!("pod-of-{}", wanted.claim.name);
            if let Some(container) = self.node.containers.get_mut(&pod) {
                container.listed = true;
            }
            return;
        }
        let Some(instance) = newest else {
            return;
        };
        let prepare = wanted.wish == Wish::Prepare;
        let call = self
            .drivers
            .call(instance, now, wanted.claim.clone(), prepare);
        wanted.call = call.map(|call| (instance, call, now));
        self.say(format!("{uid}: the kubelet calls, prepare: {prepare}"));
    }

    /// One step of the drivers; whether there was one.
    fn step(&mut self, goes_wrong: bool) -> Result<bool, String> {
        let steps = self.drivers.steps(self.now, &self.api, &self.node);
        // The simulator's own histories publish slices; and an update ends when it does.
        let steps = steps.into_iter().filter(|step| match step {
            Step::Publish => false,
            Step::StopOld => !goes_wrong,
            _ => true,
        });
        let Some(step) = self.random.pick(steps.collect()) else {
            self.pass();
            return Ok(false);
        };
        let mishap = if goes_wrong {
            self.draw_mishap(&step)
        } else {
            None
        };
        self.note_met(&step, mishap);
        self.say(format!("{} {mishap:?}", self.drivers.describe(&step)));
        let position = self.drivers.position(&step);
        if mishap != Some(Mishap::CrashBefore) {
            let answered =
                self.drivers
                    .perform(&step, self.now, &mut self.api, &mut self.node, mishap);
            if let Some(answered) = answered {
                self.hear(answered.instance, answered.call, &answered.answer)?;
            }
        }
        if let (Some(Mishap::CrashBefore | Mishap::CrashAfter), Some(position)) = (mishap, position)
        {
            // What it did is judged as it died.
            self.check()?;
            self.crash_at(position);
        }
        if self.random.one_in(10) {
            self.now += self.random.between(1, 400);
        }
        self.check()?;
        Ok(true)
    }

    /// Nothing can be done now: time passes until something can.
    fn pass(&mut self) {
        let wakes = self.drivers.wakes_at(&self.api, &self.node);
        let soon = self.now + 500;
        let next = wakes.filter(|at| *at > self.now).unwrap_or(soon);
        self.now = next.min(self.now + 5_000);
    }

    fn hear(&mut self, instance: u64, call: CallId, answer: &Answer) -> Result<(), String> {
        let is_its = |wanted: &Wanted| {
            wanted
                .call
                .is_some_and(|(of, its, _)| (of, its) == (instance, call))
        };
        let found = self.wanted.iter().find(|(_, wanted)| is_its(wanted));
        let Some(uid) = found.map(|(uid, _)| uid.clone()) else {
            return Ok(());
        };
        let Some(wanted) = self.wanted.get_mut(&uid) else {
            return Ok(());
        };
        wanted.call = None;
        match answer {
            Answer::Refused(_) => wanted.not_before = self.now + 2_000,
            Answer::Prepared(_) => {
                wanted.wish = Wish::Running;
                self.start(&uid)?;
            }
            Answer::Unprepared => {
                let claim = wanted.claim.clone();
                self.wanted.remove(&uid);
                let key = key(Kind::ResourceClaim, &claim.namespace, &claim.name);
                let _ = self.api.delete_now(&key, Precondition::uid(&uid));
            }
        }
        Ok(())
    }

    /// The container gets what the CDI file says.
    fn start(&mut self, uid: &str) -> Result<(), String> {
        let Some(record) = self.node.cdi.get(uid).cloned() else {
            // Unprepared by an earlier call: nothing starts without its file.
            return Ok(());
        };
        let Some(wanted) = self.wanted.get(uid) else {
            return Ok(());
        };
        if record.devices.iter().any(|it| it.slice.is_some()) {
            self.report.slices_prepared += 1;
            self.report.slices_permitted += u64::from(self.enforces);
        } else {
            self.report.wholes_prepared += 1;
            self.report.wholes_permitted += u64::from(self.enforces);
        }
        let mut slices = record.devices.iter().filter_map(|it| it.slice.as_ref());
        self.report.foreign_prepared += u64::from(slices.any(|slice| slice.stays));
        for device in &record.devices {
            let slice = device.slice.as_ref();
            if slice.is_some_and(|slice| slice.made.is_none()) {
                return Err(format!(
                    "S3: the file of {uid} names {} unmade",
                    device.device
                ));
            }
        }
        let units = record.devices.iter();
        let units = units.map(|device| (uid.to_owned(), device.unit.clone()));
        let container = Container {
            units: units.collect(),
            started_at: self.now,
            listed: false,
        };
        let pod = format!("pod-of-{}", wanted.claim.name);
        self.node.containers.insert(pod, container);
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        self.check_permits()?;
        let held: Vec<(&str, &Unit)> = self.node.held().collect();
        for (number, (claim, unit)) in held.iter().enumerate() {
            let before = &held[..number];
            let other = before
                .iter()
                .find(|(other, taken)| other != claim && taken.overlaps(unit));
            if let Some((other, _)) = other {
                return Err(format!("S3: {unit} is held for {claim} and for {other}"));
            }
        }
        for container in self.node.containers.values() {
            for (claim, unit) in &container.units {
                self.check_there(claim, unit)?;
            }
        }
        let gone = self.foreign.iter().find(|(gpu, instance)| {
            let live = self.node.slices.live(gpu);
            !live.contains(instance)
        });
        if let Some((gpu, instance)) = gone {
            return Err(format!("S3: somebody's {instance:?} of {gpu} was removed"));
        }
        Ok(())
    }

    /// What a container runs on is there, whole, and is what its file says.
    fn check_there(&self, claim: &str, unit: &Unit) -> Result<(), String> {
        let Some(record) = self.node.cdi.get(claim) else {
            return Ok(());
        };
        let its = record.devices.iter().find(|device| device.unit == *unit);
        let Some(slice) = its.and_then(|device| device.slice.as_ref()) else {
            return Ok(());
        };
        let live = self.node.slices.live(&unit.gpu);
        let there = live.iter().find(|it| it.placement == slice.placement);
        if there.and_then(MadeSlice::of) == slice.made {
            Ok(())
        } else {
            Err(format!(
                "S3: {claim} runs on {slice:?}, and there is {there:?}"
            ))
        }
    }

    /// Whether nothing is left, or nobody comes for it any more. (What only the look for forgotten claims finds takes two looks.)
    fn is_at_rest(&self) -> bool {
        let is_left =
            !self.node.disk.records.is_empty() || !self.node.cdi.is_empty() || self.has_permits();
        let is_over = self.now > self.healed_at + REST_MILLISECONDS;
        self.drivers.instances.len() == 1 && self.foreign.is_empty() && (!is_left || is_over)
    }

    /// S6: nothing is left over.
    fn check_rest(&self) -> Result<(), String> {
        if let Some(uid) = self.node.disk.records.keys().next() {
            return Err(format!("S6: the record of {uid} is left"));
        }
        if let Some(uid) = self.node.cdi.keys().next() {
            return Err(format!("S6: the CDI file of {uid} is left"));
        }
        if self.has_permits() {
            let status = self
                .api
                .get::<NodeDevices>("", NODE)
                .map(|it| (&it.spec, &it.status));
            return Err(format!("S6: permits are left: {status:?}"));
        }
        match self.node.slices.all().next() {
            None => Ok(()),
            Some((gpu, instance)) => Err(format!("S6: {instance:?} of {gpu} is left")),
        }
    }
}
