//! The judge: takes what happened, in order, and says what was wrong. Pure; the time is an argument.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;

use super::{
    COVERAGE_BOUND, DOUBT_BOUND, PARTLY_ENDED_BOUND, RELEASE_BOUND, Verdict, attempts,
    charges::Charges,
    claim_names::ClaimNames,
    containers::{Containers, Evidence},
    disk::Remains,
    epochs,
    etcd::Revision,
    fault_evictions::FaultEvictions,
    faults::Faults,
    findings::{
        Findings,
        Invariant::{S2, S6},
    },
    gang_lives::GangLives,
    hardware::{Cards, Part},
    history::{ChargeHistory, PermitHistory},
    leaks::{self, Holders},
    outages::Outages,
    overdue::Overdue,
    published::Published,
    quota::Quota,
    record::{Container, Event, Line},
    ungates,
    whole_evictions::WholeEvictions,
    world::{self, Change, Object, World},
};
use crate::{faults::journal::Injected, kubernetes::is_terminal};

/// Watches the world and remembers what was wrong with it.
#[derive(Debug)]
pub(super) struct Judge {
    world: World,
    /// The revision of the world.
    revision: Revision,
    now_millis: u64,
    /// How often records and disks were read and everything was judged.
    ticks: u64,
    /// Whether bounds of time stand still.
    suspended: bool,
    findings: Findings,
    /// The charges of the world.
    charges: Charges,
    quota: Quota,
    permit_history: PermitHistory,
    charge_history: ChargeHistory,
    containers: Containers,
    gang_lives: GangLives,
    whole_evictions: WholeEvictions,
    holders: Holders,
    names: ClaimNames,
    published: Published,
    remains: Remains,
    /// The slices that exist on the cards, by node.
    slices: BTreeMap<String, Vec<Part>>,
    uncovered: Overdue,
    leaking: Overdue,
    /// What of that was in doubt since it lost its cause.
    doubted: BTreeSet<String>,
    /// The epoch of the leader that doubts.
    doubted_by: Option<i64>,
    faults: Faults,
    fault_evictions: FaultEvictions,
    outages: Outages,
    seen_pods: BTreeSet<String>,
    /// The revision at the verdict before: nobody asks for what was earlier.
    judged_before: Revision,
}

impl Default for Judge {
    fn default() -> Self {
        Self {
            world: World::default(),
            revision: 0,
            now_millis: 0,
            ticks: 0,
            suspended: false,
            findings: Findings::default(),
            charges: Charges::default(),
            quota: Quota::default(),
            permit_history: PermitHistory::default(),
            charge_history: ChargeHistory::default(),
            containers: Containers::default(),
            gang_lives: GangLives::new(RELEASE_BOUND),
            whole_evictions: WholeEvictions::new(PARTLY_ENDED_BOUND),
            holders: Holders::default(),
            names: ClaimNames::default(),
            published: Published::default(),
            remains: Remains::default(),
            slices: BTreeMap::new(),
            uncovered: Overdue::after(COVERAGE_BOUND),
            leaking: Overdue::after(RELEASE_BOUND),
            doubted: BTreeSet::new(),
            doubted_by: None,
            faults: Faults::default(),
            fault_evictions: FaultEvictions::default(),
            outages: Outages::default(),
            seen_pods: BTreeSet::new(),
            judged_before: 0,
        }
    }
}

impl Judge {
    /// A node has GPUs with these UUIDs, in PCI order.
    pub(super) fn node(&mut self, node: &str, gpus: &[String]) {
        self.faults.node(node, gpus);
    }

    /// What was done to a GPU of a node, in its order. All that was done before what is committed next is known by then.
    pub(super) fn injected(&mut self, node: &str, injected: &Injected) {
        self.faults
            .injected(node, injected, self.revision, self.now_millis);
    }

    /// What was written at a revision, in the order of revisions.
    pub(super) fn commit(&mut self, revision: Revision, changes: Vec<Change>) {
        if self.revision != 0 && revision != self.revision + 1 {
            let before = self.revision;
            self.blind(&format!("revision {revision} came after {before}"));
        }
        self.revision = revision;
        for change in changes {
            self.change(change);
        }
    }

    /// A line of a node's record, in the order of the record, and the node's cards.
    pub(super) fn record(&mut self, node: &str, cards: &Cards, line: &Line) {
        // Where etcd did not answer the runtime, nothing was committed after what the watch has brought.
        let revision = line.revision.unwrap_or(self.revision);
        let id = &line.container_id;
        match line.event {
            Event::Started => match Container::of(node, cards, line) {
                Ok(Some(container)) => {
                    let findings = &mut self.findings;
                    self.containers.start(id, container, revision, findings);
                }
                Ok(None) => {}
                Err(error) => self.blind(&format!("{error:#}")),
            },
            Event::Exited => {
                self.outages.exit(id, line.exit_code, &mut self.findings);
                self.containers.exit(id, revision);
            }
        }
    }

    /// What is on the disks of the nodes now.
    pub(super) fn disks(&mut self, remains: Remains) {
        self.remains = remains;
    }

    /// The slices that exist on a node's cards now.
    pub(super) fn slices(&mut self, node: &str, slices: Vec<Part>) {
        self.slices.insert(node.to_owned(), slices);
    }

    /// Something was missed, so that nothing that follows proves anything.
    pub(super) fn blind(&mut self, why: &str) {
        self.findings.blind(why);
    }

    /// Judges what should have ended by now.
    pub(super) fn tick(&mut self, now_millis: u64) {
        let passed = now_millis.saturating_sub(self.now_millis);
        self.now_millis = now_millis;
        self.ticks += 1;
        if self.suspended {
            self.uncovered.shift(passed);
            self.leaking.shift(passed);
            self.gang_lives.shift(passed);
            self.whole_evictions.shift(passed);
            self.faults.shift(passed);
        }
        // Before containers that have exited are judged to their end.
        self.faults
            .judge(&self.containers, now_millis, &mut self.findings);
        self.containers.judge(
            self.revision,
            now_millis,
            Evidence {
                permits: &self.permit_history,
                charges: &self.charge_history,
                names: &self.names,
                published: &self.published,
            },
            &mut self.findings,
        );
        self.check_coverage();
        self.check_leaks();
        let findings = &mut self.findings;
        self.gang_lives.judge(&self.world, now_millis, findings);
        self.whole_evictions
            .judge(&self.world, now_millis, findings);
    }

    /// Everything that was found since the last verdict.
    pub(super) fn take_verdict(&mut self) -> Verdict {
        let starts = self.containers.first_start();
        let needed = starts.map_or(self.judged_before, |first| first.min(self.judged_before));
        self.permit_history.forget_before(needed);
        self.charge_history.forget_before(needed);
        self.holders
            .forget(&self.world, &self.charges, &self.remains);
        self.judged_before = self.revision;
        // Whoever did not say that it is over has failed.
        self.outages = Outages::default();
        let (violations, seen) = self.findings.take();
        Verdict { violations, seen }
    }

    /// The same, without an end to it: the next verdict says it again.
    pub(super) fn verdict_so_far(&self) -> Verdict {
        let (violations, seen) = self.findings.so_far();
        Verdict { violations, seen }
    }

    pub(super) fn suspend_bounds(&mut self, suspended: bool) {
        self.suspended = suspended;
    }

    /// An outage begins: whatever runs, and is not told to end by now, goes on until it is over.
    pub(super) fn outage_begins(&mut self) {
        let pods = &self.world.pods;
        let goes_on = |container: &Container| {
            let pod = pods.get(&container.pod_uid);
            pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none() && !is_terminal(pod))
        };
        let running = self.containers.running_by_id();
        self.outages
            .begin(running.filter(|(_, container)| goes_on(container)));
    }

    /// The outage is over.
    pub(super) fn outage_is_over(&mut self) {
        self.outages.end(&mut self.findings);
    }

    /// The revision up to which everything was judged.
    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    /// How often [`Self::tick`] was called.
    pub(super) fn ticks(&self) -> u64 {
        self.ticks
    }

    /// What is still charged, allocated, prepared, tainted or in use, whether it has a cause or not.
    pub(super) fn left_over(&self) -> Vec<String> {
        let left = self.everything_left().into_iter().map(|(what, _)| what);
        let open = self.containers.open();
        left.chain(open.map(|container| format!("a container of {}", container.pod)))
            .collect()
    }

    fn everything_left(&self) -> Vec<(String, bool)> {
        leaks::everything(
            &self.world,
            &self.charges,
            &self.holders,
            &self.containers,
            &self.remains,
            &self.slices,
        )
    }

    fn change(&mut self, change: Change) {
        self.before(&change);
        let name = match &change.object {
            Object::NodeDevices(node) => Some(node.name_any()),
            _ => None,
        };
        let may_have_risen = matches!(
            change.object,
            Object::Ledger(_) | Object::Gang(_) | Object::NodeDevices(_)
        );
        let may_be_over = matches!(change.object, Object::Team(_) | Object::Cohort(_));
        let is_claim = match &change.object {
            Object::Claim(_) => true,
            Object::Pod(pod) => !world::asked_of_plugins(&self.world, pod).is_empty(),
            _ => false,
        };
        let is_back = self.takes_mark_away(&change);
        self.world.apply(change);
        if let Some(node) = name {
            let object = self.world.node_devices.get(&node);
            self.permit_history.write(self.revision, &node, object);
        }
        let findings = &mut self.findings;
        if may_have_risen {
            self.charges = self.quota.charges(&self.world, findings);
            self.charge_history
                .write(self.revision, self.charges.claims.keys());
        }
        if may_have_risen || may_be_over {
            let (world, charges) = (&self.world, &self.charges);
            self.quota
                .check_limits(world, charges, may_have_risen && !is_back, findings);
        }
        if may_have_risen || is_claim {
            let known = (&self.published, &self.names);
            let (world, charges) = (&self.world, &self.charges);
            self.quota.check_claims(world, charges, known, findings);
        }
    }

    /// Whether a node that was lost is back by this change: what it holds counts again, for whatever its Teams use by now.
    fn takes_mark_away(&self, change: &Change) -> bool {
        let Object::NodeDevices(after) = &change.object else {
            return false;
        };
        let before = self.world.node_devices.get(&after.name_any());
        before.is_some_and(|before| before.spec.lost) && (change.gone || !after.spec.lost)
    }

    /// What can be told only from the step from the old state to the new one.
    fn before(&mut self, change: &Change) {
        match &change.object {
            Object::Pod(pod) if !change.gone => {
                let spec = pod.spec.as_ref();
                let status = pod.status.as_ref();
                // What kube-scheduler makes for it stands in its status.
                let has_claims = spec.is_some_and(|spec| spec.resource_claims.is_some())
                    || status.is_some_and(|it| it.extended_resource_claim_status.is_some());
                if has_claims && self.seen_pods.insert(world::uid(&**pod)) {
                    self.findings.counts.pods += 1;
                }
                ungates::check(&self.world, pod, &mut self.findings);
            }
            Object::Pod(pod) => {
                self.seen_pods.remove(&world::uid(&**pod));
            }
            Object::Claim(claim) => {
                self.holders.note(claim);
                self.names.note(claim);
                self.fault_evictions.claim(claim, self.revision);
            }
            Object::Slice(slice) => {
                if !change.gone {
                    self.published.note(slice);
                }
                let now = (self.revision, self.now_millis);
                self.faults
                    .slice(slice, change.gone, now, &mut self.findings);
            }
            Object::NodeDevices(node) if !change.gone => self.faults.node_devices(node),
            Object::Ledger(ledger) if !change.gone => {
                self.whole_evictions.ledger(&self.world, ledger);
            }
            Object::Gang(gang) => {
                let findings = &mut self.findings;
                self.gang_lives.write(gang, change.gone, findings);
                if !change.gone {
                    attempts::check(&self.world, gang, findings);
                    let before = self.world.gangs.get(&world::uid(&**gang));
                    let (faults, containers) = (&self.faults, &self.containers);
                    self.fault_evictions
                        .gang(before, gang, faults, containers, findings);
                }
            }
            _ => {}
        }
        if !change.gone {
            epochs::check(&self.world, &change.object, &mut self.findings);
        }
    }

    /// S2: no GPU pod without a charge, bound with devices of ours or running with them. A pod that was found running
    /// when Muster came is charged within a bound; containers that start later are judged exactly, by their records.
    fn check_coverage(&mut self) {
        let is_charged = |claim: &str| {
            let charged_as = self.names.charged_as(claim);
            self.charges.claims.contains_key(charged_as)
        };
        let mut uncovered = BTreeSet::new();
        let mut checks = 0;
        for pod in self.world.pods.values() {
            if world::node_of(pod).is_none() || is_terminal(pod) {
                continue;
            }
            for claim in world::claims_of(&self.world, pod) {
                let devices = self.world.claims.get(&claim);
                if devices.map_or(0, world::allocated_devices) == 0 {
                    continue;
                }
                checks += 1;
                if !is_charged(&claim) {
                    uncovered.insert(format!(
                        "pod {} is bound with claim {claim} and not charged",
                        pod.name_any()
                    ));
                }
            }
        }
        for pod in self.world.pods.values() {
            // Of namespaces without a Team nobody is charged.
            let namespace = pod.namespace().unwrap_or_default();
            let is_bound = world::node_of(pod).is_some() && !is_terminal(pod);
            if !is_bound || self.world.team_of(&namespace).is_none() {
                continue;
            }
            for (resource, _) in world::asked_of_plugins(&self.world, pod) {
                checks += 1;
                let claim = format!("{}/{resource}", world::uid(pod));
                if !is_charged(&claim) {
                    uncovered.insert(format!(
                        "pod {} is bound, asks for {resource} and is not charged",
                        pod.name_any()
                    ));
                }
            }
        }
        for container in self.containers.running() {
            for claim in container.claims().into_keys() {
                checks += 1;
                if !is_charged(claim) {
                    uncovered.insert(format!(
                        "a container of {} runs with claim {claim} and is not charged",
                        container.pod
                    ));
                }
            }
        }
        self.findings.checked(S2, checks);
        for late in self.uncovered.note(uncovered, self.now_millis) {
            self.findings.violation(S2, &late);
        }
    }

    /// S6: what has lost its cause goes within a bound.
    fn check_leaks(&mut self) {
        let all = self.everything_left();
        self.findings.checked(S6, all.len());
        let causeless = all.into_iter().filter(|(_, is_caused)| !is_caused);
        let causeless: BTreeSet<String> = causeless.map(|(what, _)| what).collect();
        // What a pod died of is told no sooner because somebody removes the pod.
        self.doubted.retain(|what| causeless.contains(what));
        let in_doubt = leaks::in_doubt(&self.world).into_iter();
        let in_doubt = in_doubt.filter(|what| causeless.contains(what));
        self.doubted.extend(in_doubt);
        let ledger = self.world.ledger.as_ref();
        let epoch = ledger.map(|ledger| ledger.spec.leader_epoch);
        // No leader tells the next one since when it doubts.
        if epoch != self.doubted_by {
            self.doubted_by = epoch;
            self.leaking.begin_anew(&self.doubted, self.now_millis);
        }
        let doubted = &self.doubted;
        let late = self
            .leaking
            .note_longer(causeless, doubted, DOUBT_BOUND, self.now_millis);
        for late in late {
            self.findings.violation(S6, &late);
        }
    }
}
