//! What must hold after every step, judged from the API server and the nodes alone.
//!
//! Nothing here asks the code under test. Charges are worked out anew: the set of claims, each once, that an intent,
//! a Gang's admission or a permit names.
//!
//! * **S1** no Team or Cohort is charged, or physically holds, more than its limits of any Flavor (but what a lost node brings back
//!   with it, and then use only falls), and nothing is committed beyond the limits of the Team's generation that it was judged by; no claim is charged to two gangs;
//! * **S2** what is physically held is charged, to the Flavor of the hardware, but what a machine holds that lives on without its
//!   Node and the pod;
//! * **S3** no Unit is held for two claims, nothing is recorded without a permit, and a container is given what its
//!   claims are allocated;
//! * **S4** a pod is let go only to where the stored plan of its attempt says, after that plan is stored and all its
//!   pods were made; no attempt has two plans;
//! * **S4** of gangs that start with fewer pods than they have: [`fewer_pods`];
//! * **S16** no epoch and no attempt ever falls, nothing is let go for an attempt that is over, and a stale leader
//!   withdraws no permit of an attempt that lives;
//! * **S4**, **S14** and **S15** of evictions and of who gives way to whom: [`preemption`], [`given_way`];
//! * **S7** of what is published of faults: [`severity`];
//! * **S8**, **S9** and **S10** of evictions for faults and silence: [`recovery`];
//! * **S18** of evictions for lost nodes: [`losses`];
//! * **move**, **S8** and **S10** of gangs that are moved away from what is drained: [`moves`];
//! * **stalled** and **S10** of gangs that make no progress: [`stalls`];
//! * **forced** of pods that are deleted by force: [`forced`];
//! * **S6** and **S10** of what is recorded of use: [`namespace_use`].
//!
//! What must hold in the end is in [`end`], S6 among it: in between only what is recorded of use is asked about by that name.
//!
//! All of it is judged by true time, that of the API server. Where a leader counts seconds before it does something, its clock may run fast, and what
//! is asked for is as many true ones as pass then at the least (`clock.rs`). A clock that runs slow makes it later, which breaks nothing.

mod charges;
pub mod end;
mod fewer_pods;
mod forced;
pub(crate) mod given;
mod given_way;
mod history;
mod holdings;
mod losses;
mod moves;
mod namespace_use;
mod preemption;
mod recovery;
mod severity;
mod stalls;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use k8s_openapi::api::core::v1::Pod;
use muster_api::{Intent, NodeDevices};
use muster_dra_driver::prepare::Unit;

use crate::{
    api_server::ApiServer,
    gpu_node::GpuNode,
    scenario::{Product, Scenario},
};
pub use charges::Charges;
use charges::Returns;
use forced::Forced;
use given::Given;
use history::History;
use severity::Severities;

/// An invariant does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its number in DESIGN section 8.
    pub invariant: &'static str,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.invariant, self.what)
    }
}

impl Violation {
    fn new(invariant: &'static str, what: String) -> Self {
        Self { invariant, what }
    }
}

/// The checks, and what they remember.
#[derive(Debug)]
pub struct Invariants {
    scenario: Scenario,
    history: History,
    given: Given,
    returns: Returns,
    severities: Severities,
    forced: Forced,
    /// Claims that are recorded or have a CDI file, by node.
    recorded: BTreeMap<String, BTreeSet<String>>,
}

impl Invariants {
    /// Checks for a run that has not begun.
    pub fn new(scenario: Scenario) -> Self {
        Self {
            history: History::new(&scenario),
            scenario,
            given: Given::default(),
            returns: Returns::default(),
            severities: Severities::default(),
            forced: Forced::default(),
            recorded: BTreeMap::new(),
        }
    }

    /// Number of attempts whose plan was stored.
    pub fn attempts_admitted(&self) -> usize {
        self.history.attempts_admitted()
    }

    /// Number of Gangs that waited for a claim that another gang held.
    pub fn waited_for_claims(&self) -> usize {
        self.history.waited_for_claims()
    }

    /// How often each thing happened that is worth to be counted.
    pub fn tally(&self) -> BTreeMap<String, u64> {
        let mut tally = self.history.tally().clone();
        tally.extend(self.forced.tally().clone());
        tally
    }

    /// Nothing goes wrong from now on.
    pub fn heal(&mut self, api: &ApiServer) {
        self.history.heal(api);
    }

    /// The monotonic clock of a controller counts so many milliseconds in a second from now on.
    pub(crate) fn note_clock_rate(&mut self, rate: u64) {
        self.history.note_clock_rate(rate);
        self.forced.margin.note(rate);
    }

    /// A person has closed the circuit breaker.
    pub fn note_breaker_closed(&mut self) {
        self.history.note_breaker_closed();
    }

    /// A controller has deleted that pod by force, which was like that before.
    pub fn note_forced(&mut self, api: &ApiServer, pod: &Pod) {
        self.forced.note(api, pod);
    }

    /// Whether an eviction is for what nothing proves, by what was checked last.
    pub(crate) fn is_without_proof(&self, api: &ApiServer, intent: &Intent) -> bool {
        self.history.is_without_proof(api, intent)
    }

    /// Everything that must hold after a step.
    pub fn check(
        &mut self,
        api: &ApiServer,
        nodes: &BTreeMap<String, GpuNode>,
    ) -> Result<(), Violation> {
        self.forced.check()?;
        self.forced.look(api, nodes.keys());
        self.returns.look(api, nodes.keys());
        self.history.check(api, self.returns.is_recent())?;
        let charges = Charges::of(api);
        charges.check(&self.scenario, &mut self.returns)?;
        self.check_held(api, nodes, &charges)?;
        self.given.check(api, nodes)?;
        self.severities.check(api, nodes)?;
        self.check_permits(api, nodes)
    }

    /// S1, S2 and S3 of what is physically held.
    fn check_held(
        &mut self,
        api: &ApiServer,
        nodes: &BTreeMap<String, GpuNode>,
        charges: &Charges,
    ) -> Result<(), Violation> {
        let mut held: BTreeMap<Product, usize> = BTreeMap::new();
        for (name, node) in nodes {
            let product = node.shape.product;
            let mut holders: Vec<(&str, &Unit)> = Vec::new();
            let mut charged = 0;
            self.returns
                .forget_released(name, |claim| node.held().any(|(held, _)| held == claim));
            for (claim, unit) in node.held() {
                let flavor = self.returns.flavor_on(api, name, claim);
                let flavor = flavor.or_else(|| charges.flavor_of(claim));
                let is_left_behind =
                    self.returns
                        .is_left_behind(api, name, claim, flavor.is_some());
                let what = match flavor {
                    Some(flavor) if flavor == product.flavor() => None,
                    // A claim that its user made keeps its UID: once it was let go, it may be charged on another node.
                    _ if is_left_behind => None,
                    Some(flavor) => Some(format!("which is charged as {flavor}")),
                    None => Some("which nothing is charged for".to_owned()),
                };
                if let Some(what) = what {
                    let what = format!("node {name} holds {unit} for claim {claim}, {what}");
                    return Err(Violation::new("S2", what));
                }
                match holders.iter().find(|(_, taken)| taken.overlaps(unit)) {
                    None => {
                        charged += usize::from(!is_left_behind);
                        holders.push((claim, unit));
                    }
                    Some((other, _)) if *other == claim => {}
                    Some((other, _)) => {
                        let what =
                            format!("node {name} holds {unit} for claims {other} and {claim}");
                        return Err(Violation::new("S3", what));
                    }
                }
            }
            if !self.returns.is_off_account(name) {
                *held.entry(product).or_default() += charged;
            }
        }
        for (product, held) in held {
            let most = self.scenario.cohort_gpus(product);
            let count = |gpus: usize| i64::try_from(gpus).unwrap_or(i64::MAX);
            let name = product.name();
            if !self.returns.allow(name, count(held), count(most)) {
                let what = format!("{held} {name} are physically held, of a quota of {most}");
                return Err(Violation::new("S1", what));
            }
        }
        Ok(())
    }

    /// S3: at the moment a claim is recorded, a permit names it. (It may be withdrawn already: what matters is that
    /// it was not released.)
    fn check_permits(
        &mut self,
        api: &ApiServer,
        nodes: &BTreeMap<String, GpuNode>,
    ) -> Result<(), Violation> {
        for (name, node) in nodes {
            let now: BTreeSet<String> = node
                .disk
                .records
                .values()
                .filter(|record| record.holds())
                .map(|record| record.claim.uid.clone())
                .chain(node.cdi.keys().cloned())
                .collect();
            let before = self.recorded.entry(name.clone()).or_default();
            if let Some(claim) = now
                .difference(before)
                .find(|uid| !has_permit(api, name, uid))
            {
                let what =
                    format!("node {name} records claim {claim}, which no permit there names");
                return Err(Violation::new("S3", what));
            }
            *before = now;
        }
        Ok(())
    }
}

fn has_permit(api: &ApiServer, node: &str, claim: &str) -> bool {
    api.get::<NodeDevices>("", node).is_some_and(|object| {
        object
            .spec
            .permits
            .iter()
            .any(|permit| permit.claim_uids.iter().any(|uid| uid == claim))
    })
}

#[cfg(test)]
mod tests;
