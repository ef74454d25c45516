//! What every pod holds, as the engine is told it: the union of intents, admissions and permits.
//!
//! A hold exists as long as any of them names it, so that no order in which they come and go lets a charge
//! drop out in between. Two of them may name the same claim: the engine charges a claim once on each node, by UID.
//!
//! Kept by difference: each source says what it contributes whenever something of it changed, and only the pods that it
//! names, or named, are worked out again.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use muster_api::{ClaimByName, Permit};
use muster_engine as engine;

use crate::{
    admission::charge, admission::plan::Plan, injected_bug::InjectedBug, nodes::loss,
    objects::is_over, outward::release, poll_context::PollContext,
};
use muster_cluster::{formed::GangKey, links::Links, table::Table};

/// What says that a pod holds something. In this order: what the first of them says of a pod counts, among permits what
/// that of the latest attempt says; the others add claims.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Source {
    /// The admission that a Gang carries.
    Gang(GangKey),
    /// The intent about a Gang.
    Intent(GangKey),
    /// The permits of a node.
    Node(String),
}

/// What a source says that a pod holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodHold {
    hold: Arc<engine::Hold>,
    /// The attempt of the hold's gang that it belongs to.
    attempt: i64,
}

impl PodHold {
    fn is_of_same_attempt(&self, other: &Self) -> bool {
        self.attempt == other.attempt && self.hold.gang == other.hold.gang
    }
}

/// What a source says, one hold for each pod, in the order of their UIDs. Most sources name one pod: a map of one would have
/// room for eleven. The holds are shared with what was sent to the engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Part(Arc<[PodHold]>);

impl Part {
    fn iter(&self) -> impl Iterator<Item = &PodHold> {
        self.0.iter()
    }

    /// What each pod holds, in the order of their UIDs.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &engine::Hold> {
        self.iter().map(|own| &*own.hold)
    }

    fn get(&self, pod: &engine::PodUid) -> Option<&PodHold> {
        let place = self.0.binary_search_by(|own| own.hold.pod.cmp(pod));
        self.0.get(place.ok()?)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Of two holds of one pod, the one that comes last counts.
impl FromIterator<(engine::Hold, i64)> for Part {
    fn from_iter<T: IntoIterator<Item = (engine::Hold, i64)>>(holds: T) -> Self {
        let by_pod = holds.into_iter().map(|(hold, attempt)| {
            let hold = Arc::new(hold);
            (hold.pod.clone(), PodHold { hold, attempt })
        });
        let by_pod: BTreeMap<engine::PodUid, PodHold> = by_pod.collect();
        Self(by_pod.into_values().collect())
    }
}

/// What a source says, and why.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    /// The plan that says so; none for permits.
    pub(crate) plan: Option<Arc<Plan>>,
    pub(crate) part: Part,
}

/// Holds, by what says so.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    by_source: Table<Source, Said>,
    /// Gangs whose plans may say something else now, though they are the same: their pods or claims changed.
    stale: Table<GangKey, ()>,
    of_pod: Links<engine::PodUid, Source>,
    of_claim: Links<String, Source>,
    changed: BTreeSet<engine::PodUid>,
    /// As the engine has them.
    applied: Table<engine::PodUid, Arc<engine::Hold>>,
}

impl Holds {
    /// Takes in what a source says now.
    pub(crate) fn set(&mut self, source: &Source, said: Option<Said>) {
        let said = said.filter(|said| !said.part.is_empty());
        let known = self.by_source.get_mut(source);
        match (known, &said) {
            (None, None) => return,
            (Some(known), Some(said)) if known.part == said.part => {
                *known = said.clone();
                return;
            }
            _ => {}
        }
        let before = self.by_source.remove(source).map(|said| said.part);
        let before = before.unwrap_or_default();
        let part = said.as_ref().map(|said| said.part.clone());
        let part = part.unwrap_or_default();
        // A node of a hundred pods says of all of them whenever something of one changed.
        let is_other = |own: &PodHold, part: &Part| part.get(&own.hold.pod) != Some(own);
        let mut unlinked = BTreeSet::new();
        for own in before.iter().filter(|own| is_other(own, &part)) {
            let pod = &own.hold.pod;
            self.of_pod.unlink(pod, source);
            for claim in &own.hold.claims {
                self.of_claim.unlink(claim.uid.as_str(), source);
                unlinked.insert(claim.uid.as_str());
            }
            self.changed.insert(pod.clone());
        }
        for own in part.iter() {
            let is_new = is_other(own, &before);
            // Pods share claims: what is gone of one may still be another's.
            for claim in &own.hold.claims {
                if is_new || unlinked.contains(claim.uid.as_str()) {
                    self.of_claim.link(claim.uid.to_string(), source.clone());
                }
            }
            if is_new {
                self.of_pod.link(own.hold.pod.clone(), source.clone());
                self.changed.insert(own.hold.pod.clone());
            }
        }
        if let Some(said) = said {
            self.by_source.insert(source.clone(), said);
        }
    }

    /// What a plan says may be another now: of its pods or claims something changed.
    pub(crate) fn note_stale(&mut self, gang: &GangKey) {
        self.stale.insert(gang.clone(), ());
    }

    /// What a pod takes of its node besides devices may be another now. Nothing else that a plan says goes by the pod itself.
    pub(crate) fn note_pod(&mut self, gang: &GangKey, pod: &str, takes: &engine::PodResources) {
        let pod = engine::PodUid::from(pod);
        let sources = [Source::Gang(gang.clone()), Source::Intent(gang.clone())];
        let mut said = sources.iter().filter_map(|source| {
            let own = self.by_source.get(source)?.part.get(&pod)?;
            Some(&own.hold.resources)
        });
        if !said.all(|said| said == takes) {
            self.note_stale(gang);
        }
    }

    /// Whether the permits of a node are told with what a pod takes of its node besides devices.
    pub(crate) fn is_told_by_node(
        &self,
        node: &str,
        pod: &str,
        takes: &engine::PodResources,
    ) -> bool {
        let said = self.by_source.get(&Source::Node(node.to_owned()));
        let own = said.and_then(|said| said.part.get(&pod.into()));
        own.is_some_and(|own| own.hold.resources == *takes)
    }

    /// What a pod holds is to be told again.
    pub(crate) fn tell_anew(&mut self, pod: &str) {
        let pod = pod.into();
        self.applied.remove(&pod);
        self.changed.insert(pod);
    }

    /// Whether what the plans of a gang say is to be worked out again; asked once.
    pub(crate) fn take_stale(&mut self, gang: &GangKey) -> bool {
        self.stale.remove(gang).is_some()
    }

    /// What a source says, if it says so because of that very plan.
    pub(crate) fn made_of(&self, source: &Source, plan: &Arc<Plan>) -> Option<Said> {
        let said = self.by_source.get(source)?;
        let made_of = said.plan.as_ref()?;
        Arc::ptr_eq(made_of, plan).then(|| said.clone())
    }

    /// What says that something of a resource of a device plugin is held. A walk over everything that is held.
    pub(crate) fn sources_of_resource(&self, resource: &str) -> Vec<Source> {
        let is_of_it = |claim: &engine::HeldClaim| {
            let name = ClaimByName::parse(claim.uid.as_str());
            name.is_some_and(|name| name.resource == resource)
        };
        let said = self.by_source.in_order().filter(|(_, said)| {
            let mut holds = said.part.iter();
            holds.any(|own| own.hold.claims.iter().any(is_of_it))
        });
        said.map(|(source, _)| source.clone()).collect()
    }

    /// What says that a claim is held.
    pub(crate) fn sources_of_claim(&self, claim: &str) -> impl Iterator<Item = &Source> {
        self.of_claim.of(claim)
    }

    /// What the engine is to be told: pods, each with what it holds now.
    pub(crate) fn take_changes(&mut self) -> Vec<(engine::PodUid, Option<Arc<engine::Hold>>)> {
        let mut changes = Vec::new();
        for pod in mem::take(&mut self.changed) {
            let hold = self.of(&pod);
            if self.applied.get(&pod) == hold.as_ref() {
                continue;
            }
            match &hold {
                Some(hold) => self.applied.insert(pod.clone(), Arc::clone(hold)),
                None => self.applied.remove(&pod),
            };
            changes.push((pod, hold));
        }
        changes
    }

    /// The union of what all sources say of a pod. One that was planned again keeps what a permit of its earlier attempt
    /// names; that this permit is withdrawn, or its node lost, says nothing of the attempt that counts.
    fn of(&self, pod: &engine::PodUid) -> Option<Arc<engine::Hold>> {
        let said = |source| Some((source, self.by_source.get(source)?.part.get(pod)?));
        let parts = || self.of_pod.of(pod).filter_map(said);
        let (counting, first) = parts().min_by_key(|(source, part)| match source {
            Source::Gang(_) => (0, Reverse(0)),
            Source::Intent(_) => (1, Reverse(0)),
            // Where only permits are left, it was let go last by that of the latest attempt.
            Source::Node(_) => (2, Reverse(part.attempt)),
        })?;
        let mut hold = Arc::clone(&first.hold);
        for (_, part) in parts().filter(|(source, _)| *source != counting) {
            let claims = &part.hold.claims;
            if !claims.iter().all(|claim| names(&hold, claim)) {
                add_claims(Arc::make_mut(&mut hold), claims);
            }
            if part.is_of_same_attempt(first) {
                let releasing = hold.releasing || part.hold.releasing;
                let charged_to_node = hold.charged_to_node || part.hold.charged_to_node;
                if (releasing, charged_to_node) != (hold.releasing, hold.charged_to_node) {
                    let hold = Arc::make_mut(&mut hold);
                    hold.releasing = releasing;
                    hold.charged_to_node = charged_to_node;
                }
            }
        }
        Some(hold)
    }
}

fn names(hold: &engine::Hold, claim: &engine::HeldClaim) -> bool {
    hold.claims.iter().any(|known| known.uid == claim.uid)
}

fn add_claims(hold: &mut engine::Hold, claims: &[engine::HeldClaim]) {
    for claim in claims {
        if !names(hold, claim) {
            hold.claims.push(claim.clone());
        }
    }
}

/// What a plan says.
pub(crate) fn of_plan(context: PollContext<'_>, plan: &Plan) -> Part {
    let charged = charge::read(&plan.charge);
    let claims: BTreeMap<&str, &engine::HeldClaim> = charged
        .claims
        .iter()
        .map(|claim| (claim.uid.as_str(), claim))
        .collect();
    let holds = plan.ranks.iter().enumerate().map(|(place, rank)| {
        let own = rank
            .claims
            .iter()
            .filter_map(|uid| claims.get(uid.as_str()))
            .map(|claim| known(context, &rank.node.name, (*claim).clone()))
            .collect();
        let part = charge::resources_of_rank(&plan.charge, place, plan.ranks.len());
        let hold = engine::Hold {
            pod: rank.pod.as_str().into(),
            gang: plan.gang_uid.as_str().into(),
            gang_name: plan.key.to_string(),
            team: plan.team.as_str().into(),
            node: rank.node.name.as_str().into(),
            charged_to_node: loss::is_off_account(context, &rank.node.name),
            resources: resources(context, &rank.pod),
            charged: charge::read_resources(&part),
            claims: own,
            releasing: false,
        };
        (hold, plan.attempt)
    });
    holds.collect()
}

/// What the permits of a node say. Of several of one pod the latest attempt's counts, and the others add their claims.
pub(crate) fn of_node(context: PollContext<'_>, node: &str) -> Part {
    let mut part: BTreeMap<engine::PodUid, (engine::Hold, i64)> = BTreeMap::new();
    let Some(devices) = context.index.node_devices(node) else {
        return Part::default();
    };
    let is_off_account = loss::is_off_account(context, node);
    for permit in &devices.spec.permits {
        if permit.withdrawn && context.bugs.has(InjectedBug::ChargeLiteral) {
            continue;
        }
        let mut hold = of_permit(context, node, permit);
        if is_off_account || (permit.withdrawn && loss::is_release_overdue(context, node)) {
            loss::on_account_of(node, &mut hold);
        }
        match part.get_mut(&hold.pod) {
            Some((known, attempt)) => {
                if *attempt < permit.attempt {
                    mem::swap(known, &mut hold);
                    *attempt = permit.attempt;
                }
                add_claims(known, &hold.claims);
            }
            None => {
                part.insert(hold.pod.clone(), (hold, permit.attempt));
            }
        }
    }
    part.into_values().collect()
}

fn of_permit(context: PollContext<'_>, node: &str, permit: &Permit) -> engine::Hold {
    let charged = charge::read(&permit.charge);
    let claims = charged.claims.into_iter();
    let claims = claims.map(|claim| known(context, node, claim));
    let mut claims: Vec<engine::HeldClaim> = if permit.withdrawn {
        let claims = claims.map(|claim| as_it_is_here(context, node, claim));
        claims.collect()
    } else {
        claims.collect()
    };
    // What is charged to nobody is held all the same, under a name of the node's own: nobody but its driver says so, and
    // the claim of that UID may wait, or be held, elsewhere. On this node nobody gets it before that is over
    // (`crate::outward::still_prepared`).
    let of_nobody = charge::uncharged(permit).map(|uid| engine::HeldClaim {
        uid: of_node_itself(node, uid).into(),
        flavor: "".into(),
        gpus: engine::Amount::ZERO,
        vram: engine::Amount::ZERO,
        request: None,
        devices: listed(context, node, uid),
    });
    claims.extend(of_nobody);
    engine::Hold {
        pod: permit.pod_uid.as_str().into(),
        gang: permit.gang_uid.as_str().into(),
        gang_name: permit.gang.clone(),
        team: permit.team.as_str().into(),
        node: node.into(),
        charged_to_node: false,
        resources: resources(context, &permit.pod_uid),
        charged: charged.resources,
        claims,
        releasing: permit.withdrawn,
    }
}

/// The name under which a node alone knows something.
pub(crate) fn of_node_itself(node: &str, name: &str) -> String {
    format!("{node}/{name}")
}

/// What is known of a held claim: what it asks for while it exists, and its devices, by its allocation or, once
/// the API forgot it, by what the driver lists. A claim by name says itself what it asks for. Of what a device plugin hands out nobody
/// lists the devices: where no Flavor counts its resource (any more), there are none. What kube-scheduler makes a claim for our driver
/// lists by that name.
fn known(context: PollContext<'_>, node: &str, mut claim: engine::HeldClaim) -> engine::HeldClaim {
    if let Some(name) = ClaimByName::parse(claim.uid.as_str()) {
        let units = claim.gpus.0 / engine::Amount::ONE_GPU.0;
        claim.request = context.index.claim_by_name(name, units);
        if name.device_class().is_none() {
            claim.devices = claim.request.is_none().then(Vec::new);
            return claim;
        }
    } else {
        claim.request = context.index.request_of_claim(&claim.uid);
    }
    claim.devices = allocated(context, claim.uid.as_str())
        .or_else(|| listed(context, node, claim.uid.as_str()));
    claim
}

/// A claim that a withdrawn permit names may have devices of our driver on another node by now: one that its user made outlives its pods, and
/// is allocated anew for others. These are not what this node has prepared. That its driver says; before it has answered,
/// nobody knows.
fn as_it_is_here(
    context: PollContext<'_>,
    node: &str,
    mut claim: engine::HeldClaim,
) -> engine::HeldClaim {
    if allocated(context, claim.uid.as_str()).is_some_and(|devices| are_elsewhere(node, &devices)) {
        let has_answered = || {
            let devices = context.index.node_devices(node);
            devices.is_some_and(|devices| release::has_acknowledged(context, devices))
        };
        // What it asks for has those devices, too.
        claim.request = None;
        claim.devices =
            listed(context, node, claim.uid.as_str()).or_else(|| has_answered().then(Vec::new));
    }
    claim
}

/// Whether these are devices of our driver, and none of them is of the node.
fn are_elsewhere(node: &str, devices: &[engine::DeviceName]) -> bool {
    let ours = format!("{}/", muster_api::keys::DRIVER);
    let own = format!("{ours}{node}/");
    let mut devices = devices.iter().map(engine::DeviceName::as_str).peekable();
    devices.peek().is_some()
        && devices.all(|device| device.starts_with(&ours) && !device.starts_with(&own))
}

/// The devices of a claim's allocation.
pub(crate) fn allocated(context: PollContext<'_>, claim: &str) -> Option<Vec<engine::DeviceName>> {
    let claim = context.index.claim_by_uid(claim)?;
    let allocated = claim.allocated.as_ref()?.iter();
    let names = allocated
        .map(|result| format!("{}/{}/{}", result.driver, result.pool, result.device).into());
    Some(names.collect())
}

fn listed(context: PollContext<'_>, node: &str, claim: &str) -> Option<Vec<engine::DeviceName>> {
    let devices = context.index.node_devices(node).map(AsRef::as_ref);
    let held = release::held(devices).find(|held| held.claim_uid == claim)?;
    let names = held.devices.iter().map(|name| device_name(node, name));
    Some(names.collect())
}

/// The engine's name of a device of our driver: its one pool per node is named after the node.
pub(crate) fn device_name(node: &str, device: &str) -> engine::DeviceName {
    format!("{}/{node}/{device}", muster_api::keys::DRIVER).into()
}

/// A pod that ended takes nothing of the node but its devices. One that lives takes its cpu and memory whether or not
/// its claims are understood (any more).
pub(crate) fn resources(context: PollContext<'_>, pod: &str) -> engine::PodResources {
    if is_over(context.index, pod) {
        return engine::PodResources::default();
    }
    let pod = pod.into();
    context
        .index
        .request_of_pod(&pod)
        .map(|request| request.resources.clone())
        .or_else(|| context.index.resources_of_pod(&pod))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a node's permit of an attempt says of pod `p`, and whether it is withdrawn.
    fn permit(node: &str, attempt: i64, withdrawn: bool) -> (Source, Option<Said>) {
        let hold = engine::Hold {
            pod: "p".into(),
            gang: "g".into(),
            gang_name: "ml/g".to_owned(),
            team: "vision".into(),
            node: node.into(),
            charged_to_node: false,
            resources: engine::PodResources::default(),
            charged: Vec::new(),
            claims: vec![engine::HeldClaim {
                uid: format!("claim-of-{attempt}").into(),
                flavor: "gpu".into(),
                gpus: engine::Amount::ONE_GPU,
                vram: engine::Amount::ZERO,
                request: None,
                devices: None,
            }],
            releasing: withdrawn,
        };
        let part = [(hold, attempt)].into_iter().collect();
        let said = Said { plan: None, part };
        (Source::Node(node.to_owned()), Some(said))
    }

    #[test]
    fn of_the_permits_of_a_pod_on_several_nodes_that_of_the_latest_attempt_says_where_it_is() {
        for (earlier, latest) in [("n0", "n1"), ("n1", "n0")] {
            let mut holds = Holds::default();
            for (source, said) in [permit(earlier, 1, true), permit(latest, 2, false)] {
                holds.set(&source, said);
            }
            let changes = holds.take_changes();
            let [(_, Some(hold))] = changes.as_slice() else {
                panic!("one hold, not {changes:?}");
            };
            let place = (hold.node.as_str(), hold.releasing);
            assert_eq!(place, (latest, false), "{earlier}, then {latest}");
            assert_eq!(hold.claims.len(), 2, "what both name is held");
        }
    }

    #[test]
    fn a_claim_is_found_as_long_as_any_pod_of_its_source_has_it() {
        let source = Source::Node("n0".to_owned());
        let of = |pods: &[(&str, &[&str])]| {
            let holds = pods.iter().map(|(pod, claims)| {
                let hold = engine::Hold {
                    pod: (*pod).into(),
                    gang: "g".into(),
                    gang_name: "ml/g".to_owned(),
                    team: "vision".into(),
                    node: "n0".into(),
                    charged_to_node: false,
                    resources: engine::PodResources::default(),
                    charged: Vec::new(),
                    claims: claims
                        .iter()
                        .map(|uid| engine::HeldClaim {
                            uid: (*uid).into(),
                            flavor: "gpu".into(),
                            gpus: engine::Amount::ONE_GPU,
                            vram: engine::Amount::ZERO,
                            request: None,
                            devices: None,
                        })
                        .collect(),
                    releasing: false,
                };
                (hold, 1)
            });
            Some(Said {
                plan: None,
                part: holds.collect(),
            })
        };
        let mut holds = Holds::default();
        holds.set(
            &source,
            of(&[("a", &["shared", "own"]), ("b", &["shared"])]),
        );
        assert_eq!(holds.take_changes().len(), 2);
        let found = |holds: &Holds, claim| holds.sources_of_claim(claim).count();
        assert_eq!((found(&holds, "shared"), found(&holds, "own")), (1, 1));
        holds.set(&source, of(&[("b", &["shared"]), ("c", &["new"])]));
        let changed = holds.take_changes().into_iter().map(|(pod, _)| pod);
        assert!(
            changed.eq(["a", "c"].map(engine::PodUid::from)),
            "what is said of b is the same"
        );
        let now = ["shared", "own", "new"].map(|claim| found(&holds, claim));
        assert_eq!(now, [1, 0, 1]);
        holds.set(&source, None);
        let now = ["shared", "own", "new"].map(|claim| found(&holds, claim));
        assert_eq!(now, [0, 0, 0]);
        assert_eq!(holds.take_changes().len(), 2);
    }

    #[test]
    fn a_pod_that_takes_what_it_did_makes_nothing_stale() {
        let gang = GangKey::new("ml", "g");
        let takes = |cpu_milli| engine::PodResources {
            cpu_milli,
            ..engine::PodResources::default()
        };
        let mut holds = Holds::default();
        let (_, said) = permit("n0", 1, false);
        holds.set(&Source::Gang(gang.clone()), said);
        holds.note_pod(&gang, "p", &takes(0));
        assert!(!holds.take_stale(&gang));
        holds.note_pod(&gang, "p", &takes(1));
        assert!(holds.take_stale(&gang));
        holds.note_pod(&gang, "another", &takes(0));
        assert!(!holds.take_stale(&gang));
    }
}
