//! The controller: two replicas of the machine that ships, and the lease between them.
//!
//! A lease elects, it does not fence: a replica that lost it may live on for a while, with watches that stand
//! still for any of the kinds. What it sent and was never answered stays on the **network**, and may arrive at any
//! time, also after its sender is dead. What it lists reaches it late, and piece by piece ([`crate::listing`]).

mod clocks;
mod replica;

use std::collections::{BTreeMap, BTreeSet};

use muster_api::keys;
use muster_cluster::{
    index::Config as IndexConfig,
    managed::ManagedPods,
    object::{Kind, ObjectKey},
};
use muster_protocol::{
    ApiRequest, Config, ForcePolicy, JobChange, Machine, Mode, OnCordon, Outcome,
};

use crate::{
    api_server::ApiServer,
    clock::{Clock, MOST_SKEW_SECONDS},
    controller_writes::{apply, describe},
    listing::Listing,
    matrix::Mishap,
    performing::Performing,
    scenario::{Hardship, Scenario},
};
use replica::{Replica, Sent};

/// A rule of the controller's machine that can be broken on purpose.
#[cfg(feature = "injected-bugs")]
pub type InjectedBug = muster_protocol::InjectedBug;

/// Number of replicas.
pub const REPLICAS: usize = 2;

/// How long after its grace period a pod may take to die before it is deleted by force, in seconds: as nothing lasts long here, less than
/// what ships.
pub(crate) const FORCE_AFTER_SECONDS: u64 = 10;

/// Kinds that a replica's watch may stand still on.
pub const LAGGING_KINDS: [Kind; 7] = [
    Kind::Ledger,
    Kind::Gang,
    Kind::NodeDevices,
    Kind::Pod,
    Kind::ResourceClaim,
    Kind::Job,
    Kind::Queue,
];

/// Both replicas, the lease, and the network.
#[derive(Debug, Default)]
pub struct Controllers {
    replicas: [Replica; REPLICAS],
    holder: Option<usize>,
    network: Vec<Sent>,
    /// So many of the lists that are asked for next come late.
    late_lists: usize,
    keep_ended_seconds: i64,
    whole_intent_bytes: usize,
    /// Whether GPUs break, and the circuit breaker is as it ships. Elsewhere it has no say: of two nodes that are dead it would be the
    /// third that has to wait for a person.
    do_gpus_break: bool,
    /// Whether who begins to lead ends anything without proof.
    recovery_mode: Mode,
    /// Whether pods hang, and are deleted by force where that is safe or consented to. Elsewhere none is.
    do_pods_hang: bool,
    /// What is done about gangs on what administrators drain.
    on_cordon: OnCordon,
    /// Carries out what machines ask for; without, it is done to the API server directly.
    performing: Option<Performing>,
    /// Effects that were carried out.
    pub effects: u64,
    #[cfg(feature = "injected-bugs")]
    bug: Option<InjectedBug>,
}

/// A step of the controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A replica gets the free lease, and begins to lead.
    Lead(usize),
    /// A replica looks at what is owed.
    Poll(usize),
    /// A replica receives the next objects of a list.
    Receive(usize, Kind),
    /// A replica's watch tells the next change of a kind.
    Watch(usize, Kind),
    /// A watch that stood still moves again.
    Thaw(usize, Kind),
    /// A request of a replica is carried out.
    Perform(usize, usize),
    /// A request that nobody waits for any more arrives.
    Arrive(usize),
    /// A rule that a replica had judged apart is judged.
    Judge(usize, usize),
    /// A replica notices that it lost the lease.
    Notice(usize),
}

impl Controllers {
    /// Replicas that keep ended Gangs so long; none leads yet.
    pub fn new(scenario: &Scenario) -> Self {
        let replica = |number| Replica {
            clock: clock(number),
            ..Replica::default()
        };
        Self {
            replicas: std::array::from_fn(replica),
            keep_ended_seconds: scenario.keep_ended_seconds,
            whole_intent_bytes: scenario.whole_intent_bytes,
            do_gpus_break: scenario.hardships.have(Hardship::BrokenDevices),
            do_pods_hang: scenario.hardships.have(Hardship::HungPods),
            on_cordon: scenario.on_cordon,
            ..Self::default()
        }
    }

    /// What machines ask for is carried out by the requests of the shipping controller from now on.
    pub fn send_requests(&mut self, performing: Performing) {
        self.performing = Some(performing);
    }

    /// How often each kind of write was carried out by requests.
    pub fn requested(&self) -> BTreeMap<&'static str, u64> {
        let performing = self.performing.as_ref();
        performing.map_or_else(BTreeMap::new, |performing| performing.carried_out().clone())
    }

    /// Carries out a write. A list is not one: it is its watch's.
    fn write(&mut self, api: &mut ApiServer, sent: &Sent) -> Outcome {
        let before = api.hear(keys::FIELD_MANAGER_CONTROLLER);
        let outcome = match &mut self.performing {
            _ if matches!(*sent.write, ApiRequest::ReadAll { .. }) => Outcome::Done(None),
            Some(performing) => performing.perform(api, &sent.write, sent.seen.as_deref()),
            None => apply(api, &sent.write),
        };
        api.hear(before);
        outcome
    }

    /// Breaks a rule in every leadership that begins from now on.
    #[cfg(feature = "injected-bugs")]
    pub fn plant(&mut self, bug: Option<InjectedBug>) {
        self.bug = bug;
    }

    /// All that may happen next.
    pub fn steps(&self, now: u64, api: &ApiServer) -> Vec<Step> {
        let mut steps: Vec<Step> = (0..self.network.len()).map(Step::Arrive).collect();
        for (number, replica) in self.replicas.iter().enumerate() {
            if replica.machine.is_none() {
                if self.holder.is_none() {
                    steps.push(Step::Lead(number));
                }
                continue;
            }
            if self.holder != Some(number) {
                steps.push(Step::Notice(number));
            }
            if replica.stirred || replica.is_to_poll(now) {
                steps.push(Step::Poll(number));
            }
            for kind in replica.lists.keys() {
                steps.push(if replica.frozen.contains(kind) {
                    Step::Thaw(number, *kind)
                } else {
                    Step::Receive(number, *kind)
                });
            }
            for (kind, place) in &replica.watches {
                if replica.frozen.contains(kind) {
                    steps.push(Step::Thaw(number, *kind));
                } else if api.next_event(*place).is_some() {
                    steps.push(Step::Watch(number, *kind));
                }
            }
            steps.extend((0..replica.under_way.len()).map(|effect| Step::Perform(number, effect)));
            steps.extend((0..replica.judging.len()).map(|request| Step::Judge(number, request)));
        }
        steps
    }

    /// What is done without proof by whoever begins to lead from now on.
    pub fn set_recovery_mode(&mut self, mode: Mode) {
        self.recovery_mode = mode;
    }

    /// Whether the step carries out a request of a replica that only observes what may have gone wrong.
    pub fn observes(&self, step: &Step) -> bool {
        let Step::Perform(number, _) = *step else {
            return false;
        };
        self.replicas
            .get(number)
            .is_some_and(|replica| replica.observes)
    }

    /// The request that a step carries out.
    pub fn request(&self, step: &Step) -> Option<&ApiRequest> {
        let Step::Perform(number, effect) = *step else {
            return None;
        };
        let effect = self.replicas.get(number)?.under_way.get(effect)?;
        Some(&effect.write)
    }

    /// The pod that a step deletes by force, if it carries out a request that does.
    pub fn forces(&self, step: &Step) -> Option<&ObjectKey> {
        match self.carries_out(step)? {
            ApiRequest::ForceDeletePod { key, .. } => Some(key),
            _ => None,
        }
    }

    /// The Job whose limit a step raises, if it carries out a request that does.
    pub fn raises(&self, step: &Step) -> Option<&ObjectKey> {
        match self.carries_out(step)? {
            ApiRequest::PatchJob {
                key,
                change: JobChange::RaiseBackoffLimit,
                ..
            } => Some(key),
            _ => None,
        }
    }

    /// The same as [`Controllers::request`], be it one that comes late.
    fn carries_out(&self, step: &Step) -> Option<&ApiRequest> {
        match *step {
            Step::Arrive(number) => self.network.get(number).map(|sent| &*sent.write),
            _ => self.request(step),
        }
    }

    /// Whether the sender of a request has not been told yet of a change of the object that it writes.
    pub fn is_stale(&self, step: &Step, api: &ApiServer) -> bool {
        let Step::Perform(number, _) = *step else {
            return false;
        };
        let Some(target) = self.request(step).and_then(ApiRequest::target) else {
            return false;
        };
        let place = self.replicas[number].watches.get(&target.kind);
        place.is_some_and(|place| api.events_from(*place).any(|event| event.key == target))
    }

    /// Whether nothing is under way and every watch is up to date; polls do not count.
    pub fn is_settled(&self, now: u64, api: &ApiServer) -> bool {
        self.steps(now, api)
            .iter()
            .all(|step| matches!(step, Step::Poll(_)))
    }

    /// Whether, besides, every replica has looked at what it was told.
    pub fn is_at_rest(&self, now: u64, api: &ApiServer) -> bool {
        self.is_settled(now, api) && self.replicas.iter().all(|replica| !replica.stirred)
    }

    /// Takes a step; returns what it was, for the trace. `None` if nothing came of it.
    pub fn perform(
        &mut self,
        step: &Step,
        now: u64,
        api: &mut ApiServer,
        mishap: Option<Mishap>,
    ) -> Option<String> {
        let told = match *step {
            Step::Lead(number) => self.lead(number, api),
            Step::Poll(number) => self.replicas[number].poll(now),
            Step::Receive(number, kind) => self.replicas[number].receive(kind, api),
            Step::Watch(number, kind) => self.replicas[number].watch(kind, api),
            Step::Thaw(number, kind) => Some(self.replicas[number].thaw(kind, api)),
            Step::Perform(number, effect) => self.carry_out(number, effect, api, mishap),
            Step::Arrive(number) => self.arrive(number, api),
            Step::Judge(number, request) => self.replicas[number].judge(request),
            Step::Notice(number) => {
                self.crash(number, api);
                Some("notices that it lost the lease, and stops".to_owned())
            }
        };
        let who = match *step {
            Step::Arrive(_) => "network".to_owned(),
            Step::Lead(number)
            | Step::Poll(number)
            | Step::Receive(number, _)
            | Step::Watch(number, _)
            | Step::Thaw(number, _)
            | Step::Perform(number, _)
            | Step::Judge(number, _)
            | Step::Notice(number) => self.name(number),
        };
        let left = self.leave_if_superseded(api);
        match (told, left) {
            (told, Some(left)) => Some(format!("{who}: {}; {left}", told.unwrap_or_default())),
            (Some(told), None) => Some(format!("{who}: {told}")),
            (None, None) => None,
        }
    }

    fn name(&self, number: usize) -> String {
        let epoch = self.replicas[number]
            .machine
            .as_ref()
            .and_then(Machine::leading_epoch);
        match epoch {
            Some(epoch) => format!("controller {number} (epoch {epoch})"),
            None => format!("controller {number}"),
        }
    }

    fn lead(&mut self, number: usize, api: &ApiServer) -> Option<String> {
        self.holder = Some(number);
        let mut machine = self.machine()?;
        machine.judge_apart();
        let mut lists = std::mem::take(&mut self.replicas[number].lists);
        if lists.is_empty() {
            lists = lists_of_all(api);
        }
        self.replicas[number] = Replica {
            machine: Some(machine),
            lists,
            stirred: true,
            observes: self.recovery_mode == Mode::Observe,
            clock: self.replicas[number].clock,
            ..Replica::default()
        };
        Some("begins to lead".to_owned())
    }

    fn machine(&self) -> Option<Machine> {
        let managed = ManagedPods::new(["nvidia.com/gpu"]).ok()?;
        let mut config = Config::new(IndexConfig {
            managed,
            excluded_namespaces: BTreeSet::new(),
            excepted_device_classes: BTreeSet::new(),
            default_team: None,
            start_timeout_seconds: muster_cluster::index::START_TIMEOUT_SECONDS,
        });
        config.keep_ended_seconds = self.keep_ended_seconds;
        config.whole_intent_bytes = self.whole_intent_bytes;
        config.recovery.mode = self.recovery_mode;
        config.recovery.on_cordon = self.on_cordon;
        if !self.do_gpus_break {
            config.recovery.breaker.share_percent = 100;
        }
        config.recovery.force_after_seconds = FORCE_AFTER_SECONDS;
        config.recovery.force_deletion = if self.do_pods_hang {
            ForcePolicy::WithConsent
        } else {
            ForcePolicy::Never
        };
        #[cfg(feature = "injected-bugs")]
        if let Some(bug) = self.bug {
            return Some(Machine::with_injected_bug(config, bug));
        }
        Some(Machine::new(config))
    }

    fn carry_out(
        &mut self,
        number: usize,
        effect: usize,
        api: &mut ApiServer,
        mishap: Option<Mishap>,
    ) -> Option<String> {
        let replica = &mut self.replicas[number];
        if effect >= replica.under_way.len() {
            return None;
        }
        let effect = replica.under_way.swap_remove(effect);
        let text = describe(&effect.write);
        let sent = replica.send(&effect);
        self.effects += 1;
        let outcome = match mishap {
            Some(Mishap::CrashBefore) => {
                self.crash(number, api);
                return Some(format!("crashes before {text}"));
            }
            Some(Mishap::CrashAfter) => {
                self.write(api, &sent);
                self.crash(number, api);
                return Some(format!("crashes after {text}"));
            }
            Some(Mishap::Conflict) => Outcome::Conflict,
            Some(Mishap::Refused) => Outcome::Refused("admission webhook denied it".to_owned()),
            Some(Mishap::NotDone) => Outcome::Unknown,
            Some(Mishap::AnswerLost) => {
                self.write(api, &sent);
                Outcome::Unknown
            }
            Some(Mishap::DoneLate) => {
                self.network.push(sent);
                Outcome::Unknown
            }
            Some(Mishap::Duplicated) => {
                let outcome = self.write(api, &sent);
                self.network.push(sent);
                outcome
            }
            Some(Mishap::StaleRead) | None => {
                if let ApiRequest::ReadAll { kind } = *effect.write {
                    let listing = Listing::read(kind, api, Some(effect.id));
                    let replica = &mut self.replicas[number];
                    replica.lists.insert(kind, listing);
                    if self.late_lists > 0 {
                        self.late_lists -= 1;
                        replica.frozen.insert(kind);
                        return Some(format!("{text}, which comes late"));
                    }
                    return Some(text);
                }
                self.write(api, &sent)
            }
        };
        let told = match (&outcome, mishap) {
            (_, Some(mishap)) => format!("{text} -> {mishap:?}"),
            (Outcome::Done(_), None) => text,
            (other, None) => format!("{text} -> {other:?}"),
        };
        let replica = &mut self.replicas[number];
        if let Some(machine) = &mut replica.machine {
            // As its executor: an answer that is no news is no reason to poll.
            replica.stirred |= machine.settle(effect.id, outcome);
        }
        Some(told)
    }

    fn arrive(&mut self, number: usize, api: &mut ApiServer) -> Option<String> {
        if number >= self.network.len() {
            return None;
        }
        let sent = self.network.swap_remove(number);
        let outcome = self.write(api, &sent);
        let what = match outcome {
            Outcome::Done(_) => "done",
            _ => "comes to nothing",
        };
        Some(format!("late {}: {what}", describe(&sent.write)))
    }

    /// A replica dies. What it had sent may still arrive. Another process starts in its place, and watches.
    pub fn crash(&mut self, number: usize, api: &ApiServer) {
        let follower = Replica {
            lists: lists_of_all(api),
            clock: self.replicas[number].clock,
            ..Replica::default()
        };
        let replica = std::mem::replace(&mut self.replicas[number], follower);
        self.network.extend(
            replica
                .under_way
                .iter()
                .filter(|effect| effect.write.target().is_some())
                .map(|effect| replica.send(effect)),
        );
        if self.holder == Some(number) {
            self.holder = None;
        }
    }

    /// The replica that leads, or would if it had finished taking over.
    pub fn holder(&self) -> Option<usize> {
        self.holder
    }

    /// The holder loses the lease and does not know it: its watches of these kinds stand still, and another
    /// replica that is free leads. False if there is none.
    pub fn supersede(&mut self, frozen: BTreeSet<Kind>, api: &ApiServer) -> bool {
        let Some(old) = self.holder else {
            return false;
        };
        let Some(new) = (0..REPLICAS).find(|number| self.replicas[*number].machine.is_none())
        else {
            return false;
        };
        self.replicas[old].frozen.extend(frozen);
        self.lead(new, api).is_some()
    }

    /// Whether a list that a replica is receiving is one that its machine asked for.
    pub fn asked_for(&self, replica: usize, kind: Kind) -> bool {
        let replica = self.replicas.get(replica);
        let listing = replica.and_then(|replica| replica.lists.get(&kind));
        listing.is_some_and(|listing| listing.asked_by.is_some())
    }

    /// One more of the lists that are asked for next comes late: its reader is told other things meanwhile.
    pub fn delay_list(&mut self) {
        self.late_lists += 1;
    }

    /// The holder's watch of a kind stands still.
    pub fn freeze(&mut self, kind: Kind) {
        if let Some(number) = self.holder {
            self.replicas[number].frozen.insert(kind);
        }
    }

    /// The holder's watch of a kind tells its last change once more. False if it has told none.
    pub fn repeat(&mut self, kind: Kind, api: &ApiServer) -> bool {
        let Some(replica) = self.holder.and_then(|number| self.replicas.get_mut(number)) else {
            return false;
        };
        let told = replica.watches.get(&kind).and_then(|place| place.before());
        let told = told.and_then(|place| api.next_event(place));
        let (Some(event), Some(machine)) = (told, &mut replica.machine) else {
            return false;
        };
        machine.observe(event.change());
        replica.stirred = true;
        true
    }

    /// Everything that stood still moves again.
    pub fn heal(&mut self, api: &ApiServer) {
        self.late_lists = 0;
        for replica in &mut self.replicas {
            for kind in replica.frozen.clone() {
                replica.thaw(kind, api);
            }
        }
    }

    /// What a poll overlooked, if anything: a look at everything right after it found more to do.
    pub fn overlooked(&self) -> Option<&str> {
        self.replicas
            .iter()
            .find_map(|replica| replica.overlooked.as_deref())
    }

    fn leave_if_superseded(&mut self, api: &ApiServer) -> Option<String> {
        let (number, reason) = self
            .replicas
            .iter()
            .enumerate()
            .find_map(|(number, replica)| {
                let reason = replica.machine.as_ref()?.must_exit()?;
                Some((number, reason.to_string()))
            })?;
        self.crash(number, api);
        Some(format!("controller {number} exits: {reason}"))
    }
}

/// The clocks of the machine of a replica, as the run begins. Those of two machines have nothing in common, and the second one's time of day is
/// set wrong.
fn clock(number: usize) -> Clock {
    let ahead = MOST_SKEW_SECONDS * i64::try_from(number).unwrap_or_default();
    Clock::started(1_000_000 * number as u64, ahead)
}

/// What a process that starts now is told first.
fn lists_of_all(api: &ApiServer) -> BTreeMap<Kind, Listing> {
    let lists = Kind::ALL.into_iter();
    lists
        .map(|kind| (kind, Listing::read(kind, api, None)))
        .collect()
}
