//! What must hold between one state of an object and the next (S4, S16).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use muster_api::{
    Gang, GangPlacement, Intent, Ledger, NodeDevices, Permit, Reason, Team, gang::AdmittedPod, keys,
};
use muster_cluster::object::{Kind, Object};

use super::{
    Charges, Violation, charges, fewer_pods::FewerPods, namespace_use::NamespaceUses,
    preemption::Preemptions, recovery::Recoveries,
};
use crate::{
    api_server::{ApiServer, Place, Stored, has_ended},
    scenario::Scenario,
    scheduler,
};

/// The plan of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    gang: String,
    pods: Vec<AdmittedPod>,
    placement: GangPlacement,
}

/// What was seen so far.
#[derive(Debug)]
pub(super) struct History {
    places: Vec<Place>,
    epochs: BTreeMap<String, i64>,
    attempts: BTreeMap<String, i64>,
    plans: BTreeMap<(String, i64), Plan>,
    pods: BTreeSet<String>,
    gated: BTreeSet<String>,
    live_permits: BTreeMap<String, Vec<Permit>>,
    /// Most thousandths of a GPU that a Team may use, by its name, generation and Flavor; absent where its Cohort alone
    /// limits it.
    limits_milli: BTreeMap<(String, i64, String), i64>,
    /// Attempts that an intent was seen of, by UID of their Gang.
    committed: BTreeSet<(String, i64)>,
    /// Generation of its Team that the last admission which charges a claim was judged by, by UID of the claim.
    judged_by: BTreeMap<String, i64>,
    /// UIDs of Gangs that said that they wait for a claim that another gang holds.
    waited_for_claims: BTreeSet<String>,
    preemptions: Preemptions,
    fewer_pods: FewerPods,
    namespace_uses: NamespaceUses,
    recoveries: Recoveries,
    /// Whether a node that was lost is back since a short while.
    is_node_back: bool,
}

impl History {
    pub(super) fn new(scenario: &Scenario) -> Self {
        // Limits before what is judged by them.
        let kinds = [
            Kind::Node,
            Kind::DeviceTaintRule,
            Kind::ResourceSlice,
            Kind::ResourceClaim,
            Kind::Team,
            Kind::Pod,
            Kind::Ledger,
            Kind::Gang,
            Kind::NodeDevices,
            Kind::Queue,
        ];
        Self {
            places: kinds.into_iter().map(Place::start).collect(),
            epochs: BTreeMap::new(),
            attempts: BTreeMap::new(),
            plans: BTreeMap::new(),
            pods: BTreeSet::new(),
            gated: BTreeSet::new(),
            live_permits: BTreeMap::new(),
            limits_milli: BTreeMap::new(),
            committed: BTreeSet::new(),
            judged_by: BTreeMap::new(),
            waited_for_claims: BTreeSet::new(),
            preemptions: Preemptions::new(scenario),
            fewer_pods: FewerPods::default(),
            namespace_uses: NamespaceUses::new(scenario),
            recoveries: Recoveries::new(scenario),
            is_node_back: false,
        }
    }

    pub(super) fn attempts_admitted(&self) -> usize {
        self.plans.len()
    }

    pub(super) fn waited_for_claims(&self) -> usize {
        self.waited_for_claims.len()
    }

    /// How often each thing happened.
    pub(super) fn tally(&self) -> &BTreeMap<String, u64> {
        self.preemptions.tally()
    }

    /// The monotonic clock of a controller counts so many milliseconds in a second from now on.
    pub(super) fn note_clock_rate(&mut self, rate: u64) {
        self.preemptions.margin.note(rate);
        self.recoveries.margin.note(rate);
        self.namespace_uses.margin.note(rate);
    }

    /// A person has closed the circuit breaker.
    pub(super) fn note_breaker_closed(&mut self) {
        self.recoveries.note_closed_by_person();
    }

    /// Whether an eviction is for what nothing proves.
    pub(super) fn is_without_proof(&self, api: &ApiServer, intent: &Intent) -> bool {
        self.recoveries.is_without_proof(api, intent)
    }

    /// Nothing goes wrong from now on.
    pub(super) fn heal(&mut self, api: &ApiServer) {
        self.preemptions.heal(api.time());
    }

    /// Takes in what changed since the last call.
    pub(super) fn check(&mut self, api: &ApiServer, is_node_back: bool) -> Result<(), Violation> {
        self.is_node_back = is_node_back;
        for number in 0..self.places.len() {
            while let Some(event) = api.next_event(self.places[number]) {
                match &event.object {
                    Some(object) => self.check_object(api, object)?,
                    None => self.recoveries.note_gone(&event.key, api.time()),
                }
                self.places[number] = self.places[number].after();
            }
        }
        self.preemptions.check_ending(api)
    }

    fn check_object(&mut self, api: &ApiServer, object: &Object) -> Result<(), Violation> {
        match object {
            Object::Ledger(ledger) => {
                self.raise_epoch(&**ledger, ledger.spec.leader_epoch)?;
                self.check_intents(api, ledger)
            }
            Object::Team(team) => {
                self.note_limit(team);
                Ok(())
            }
            Object::Node(node) => {
                self.recoveries.note_node(node, api.time());
                Ok(())
            }
            Object::DeviceTaintRule(rule) => {
                self.recoveries.note_rule(rule, api.time());
                Ok(())
            }
            Object::ResourceSlice(slice) => {
                self.recoveries.note_slice(slice, api.time());
                Ok(())
            }
            Object::ResourceClaim(claim) => {
                self.recoveries.note_claim(claim, api.time());
                Ok(())
            }
            Object::Gang(gang) => {
                self.preemptions.check_gang(api, gang)?;
                Recoveries::check_gang(gang)?;
                self.check_gang(api, gang)
            }
            Object::NodeDevices(devices) => self.check_permits(api, devices),
            Object::Pod(pod) => {
                self.recoveries.note_pod(pod, api.time());
                self.check_pod(api, pod)
            }
            Object::Queue(queue) => self.namespace_uses.check(queue, api.time()),
            _ => Ok(()),
        }
    }

    /// S16: nobody writes over a higher epoch.
    fn raise_epoch<T: Stored>(&mut self, object: &T, epoch: i64) -> Result<(), Violation> {
        let uid = object.metadata().uid.clone().unwrap_or_default();
        let before = self.epochs.entry(uid.clone()).or_insert(epoch);
        if epoch < *before {
            let what = format!("epoch {epoch} was written over epoch {before} of {uid}");
            return Err(Violation::new("S16", what));
        }
        *before = epoch;
        Ok(())
    }

    fn note_limit(&mut self, team: &Team) {
        let gpus = |quantity: &muster_api::Quantity| quantity.0.parse::<i64>().unwrap_or(0);
        let name = team.metadata.name.clone().unwrap_or_default();
        let generation = team.metadata.generation.unwrap_or_default();
        for quota in &team.spec.quota {
            for resource in &quota.resources {
                if let (Some(nominal), Some(borrowing)) =
                    (&resource.nominal, &resource.borrowing_limit)
                {
                    let most = gpus(nominal) + gpus(borrowing);
                    let of = (name.clone(), generation, quota.flavor.clone());
                    self.limits_milli.insert(of, most * 1_000);
                }
            }
        }
    }

    /// S1: an attempt that is committed fits, with all that its Team is charged, the limits that it was judged by of each
    /// Flavor that it takes. One that runs is committed again after the Ledger was lost, whatever the limits are by then.
    fn check_intents(&mut self, api: &ApiServer, ledger: &Ledger) -> Result<(), Violation> {
        let claims_of = |intent| charges::of_intent(api, intent).flat_map(|it| &it.claims);
        let mut entered = Vec::new();
        for intent in &ledger.spec.intents {
            let attempt = (intent.gang_uid.clone(), intent.attempt);
            if !self.committed.insert(attempt.clone()) || self.plans.contains_key(&attempt) {
                continue;
            }
            let uids = claims_of(intent).flat_map(|group| &group.uids).cloned();
            let judged = uids.map(|uid| (uid, intent.team_generation));
            self.judged_by.extend(judged);
            entered.push(intent);
        }
        self.preemptions.check_ledger(api, ledger, &entered)?;
        self.recoveries.check_ledger(api, ledger)?;
        let charges = Charges::of(api);
        for intent in entered {
            let team = &intent.team;
            let flavors: BTreeSet<&String> = claims_of(intent).map(|it| &it.flavor).collect();
            for flavor in flavors {
                // Gangs are not committed in the order in which they were decided: one whose proposal conflicts comes after
                // others that a later generation let in. Whatever was judged by the latest generation was judged with all
                // of this in view, committed or not.
                let charged = charges.claims_of(team, flavor);
                let generation = charged.filter_map(|claim| self.judged_by.get(claim)).max();
                let generation = generation.copied().unwrap_or_default();
                let used = charges.used_milli(team, flavor);
                let judged_by = (team.clone(), generation, flavor.clone());
                let limit = self.limits_milli.get(&judged_by);
                if let Some(most) = limit.filter(|most| used > **most && !self.is_node_back) {
                    let what = format!(
                        "{} is committed by generation {generation} of team {team}, which is charged {used} of {most} \
                         {flavor} then",
                        intent.name
                    );
                    return Err(Violation::new("S1", what));
                }
            }
        }
        Ok(())
    }

    fn check_gang(&mut self, api: &ApiServer, gang: &Gang) -> Result<(), Violation> {
        let Some(status) = &gang.status else {
            return Ok(());
        };
        self.raise_epoch(gang, status.leader_epoch)?;
        let uid = gang.metadata.uid.clone().unwrap_or_default();
        let reason = status.queue.as_ref().map(|queue| queue.reason);
        if reason == Some(Reason::ClaimShared) {
            self.waited_for_claims.insert(uid.clone());
        }
        let attempt = status.attempt;
        let before = self.attempts.entry(uid.clone()).or_insert(attempt);
        if attempt < *before {
            let what = format!("attempt {attempt} was written over attempt {before} of {uid}");
            return Err(Violation::new("S16", what));
        }
        *before = attempt;
        let (Some(admission), Some(placement)) = (&status.admission, &status.placement) else {
            return Ok(());
        };
        let plan = Plan {
            gang: uid.clone(),
            pods: admission.pods.clone(),
            placement: placement.clone(),
        };
        let known = self.plans.get(&(uid.clone(), attempt));
        if known.is_some_and(|known| *known != plan) {
            let what = format!("attempt {attempt} of {uid} has two plans");
            return Err(Violation::new("S4", what));
        }
        if known.is_none() {
            self.plans.insert((uid, attempt), plan);
            for what in self.fewer_pods.check(api, gang, admission)? {
                self.preemptions.count(what);
            }
        }
        Ok(())
    }

    /// S4 and S16 of a pod that is let go.
    fn check_pod(&mut self, api: &ApiServer, pod: &Pod) -> Result<(), Violation> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        self.pods.insert(uid.clone());
        let gates = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.scheduling_gates.as_ref());
        let is_gated = gates
            .iter()
            .any(|gates| gates.iter().any(|gate| gate.name == keys::ADMISSION_GATE));
        if is_gated {
            self.gated.insert(uid);
            return Ok(());
        }
        if !self.gated.remove(&uid) {
            return Ok(());
        }
        let attempt = pod
            .metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(keys::ATTEMPT))
            .and_then(|attempt| attempt.parse::<i64>().ok())
            .unwrap_or_default();
        let plan = self
            .plans
            .iter()
            .filter(|((_, number), _)| *number == attempt)
            .filter_map(|(_, plan)| {
                let rank = plan.pods.iter().position(|planned| planned.uid == uid)?;
                Some((plan, rank))
            })
            // Where a Gang was made again, and nothing told of its predecessor's attempts, the plan is that of the Gang
            // that is there.
            .max_by_key(|(plan, _)| gang_of(api, plan).is_some());
        let Some((plan, rank)) = plan else {
            let what = format!("{uid} is let go for attempt {attempt}, whose plan is not stored");
            return Err(Violation::new("S4", what));
        };
        let planned = plan.placement.node_of(rank).map(|run| run.node.as_str());
        if planned != scheduler::pinned_node(pod) {
            let what = format!(
                "{uid} is let go to {:?} instead of {planned:?}",
                scheduler::pinned_node(pod)
            );
            return Err(Violation::new("S4", what));
        }
        if let Some(missing) = plan.pods.iter().find(|pod| !self.pods.contains(&pod.uid)) {
            let what = format!("{uid} is let go before {} was made", missing.uid);
            return Err(Violation::new("S4", what));
        }
        FewerPods::check_told(pod, plan.pods.len())?;
        let now = gang_of(api, plan).and_then(|gang| gang.status.as_ref());
        if let Some(status) = now
            && status.attempt > attempt
        {
            let what = format!(
                "{uid} is let go for attempt {attempt}, and its Gang is at {}",
                status.attempt
            );
            return Err(Violation::new("S16", what));
        }
        Ok(())
    }

    /// S16: a stale leader withdraws no permit of an attempt that lives.
    fn check_permits(&mut self, api: &ApiServer, devices: &NodeDevices) -> Result<(), Violation> {
        self.raise_epoch(devices, devices.spec.leader_epoch)?;
        let node = devices.metadata.name.clone().unwrap_or_default();
        let live = |permits: &[Permit]| -> Vec<Permit> {
            permits
                .iter()
                .filter(|permit| !permit.withdrawn)
                .cloned()
                .collect()
        };
        let now = live(&devices.spec.permits);
        let before = self.live_permits.insert(node.clone(), now.clone());
        let is_stale = api
            .list::<Ledger>()
            .any(|ledger| ledger.spec.leader_epoch > devices.spec.leader_epoch);
        if !is_stale {
            return Ok(());
        }
        let lost = before
            .into_iter()
            .flatten()
            .filter(|permit| !now.contains(permit))
            .find(|permit| is_living(api, permit));
        match lost {
            None => Ok(()),
            Some(permit) => {
                let what = format!(
                    "a stale leader withdraws the permit of {} on {node}, whose attempt {} lives",
                    permit.pod_uid, permit.attempt
                );
                Err(Violation::new("S16", what))
            }
        }
    }
}

fn gang_of<'a>(api: &'a ApiServer, plan: &Plan) -> Option<&'a Gang> {
    api.list::<Gang>()
        .find(|gang| gang.metadata.uid.as_ref() == Some(&plan.gang))
}

/// Whether the permit's pod and attempt are what is wanted.
fn is_living(api: &ApiServer, permit: &Permit) -> bool {
    let pod_lives = api
        .pod_by_uid(&permit.pod_uid)
        .is_some_and(|pod| !has_ended(pod) && pod.metadata.deletion_timestamp.is_none());
    let attempt_lives = api
        .list::<Gang>()
        .filter(|gang| gang.metadata.uid.as_ref() == Some(&permit.gang_uid))
        .filter_map(|gang| gang.status.as_ref())
        .any(|status| status.admission.is_some() && status.attempt == permit.attempt);
    pod_lives && attempt_lives
}
