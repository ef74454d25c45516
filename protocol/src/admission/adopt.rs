//! Devices that are held without an admission: charged as they are, never taken away here.
//!
//! Two ways lead here. A gang may run since before Muster was installed (or on another driver's devices): its
//! Gang is admitted as it is, and permits follow. And a driver may list claims that no permit names, after
//! a `NodeDevices` object was lost: those come back as withdrawn permits, so that they are charged until
//! their release is proved. A pod that only *waits* at the driver is a bypass: it gets no permit.

use std::collections::BTreeSet;

use muster_api::{
    Charge, ClaimByName, Gang, Held, NodeDevices, NodeDevicesSpec, Permit, Reason, keys,
};
use muster_engine as engine;

use crate::{
    ApiRequest, Mode,
    admission::admit,
    admission::charge::{ChargeSum, ClaimCost},
    admission::plan::{Plan, PlannedNode},
    feed::holds::allocated,
    jobs,
    objects::{bound_node, is_gated, phase, stamp, uid},
    outward::release::has_acknowledged,
    poll_context::{PollContext, attempt},
};
use muster_cluster::{
    formed::{FormedGang, FormedPod, GangKey, PendingReason},
    index::NamespacedName,
    pod::{ObservedPod, PodFields},
};

/// The write that admits a gang as it runs, if it does.
pub(crate) fn admission(
    context: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
) -> Option<ApiRequest> {
    let formed = context.formed(key)?;
    if !is_adoptable(context, formed) || is_in_part(context, formed) {
        return None;
    }
    let team = formed.team.as_ref()?.to_string();
    let mut charged = ChargeSum::default();
    let mut pods = Vec::new();
    let started = started(context, formed);
    for member in &started {
        let pod = context.index.pod_by_uid(&member.identity.uid)?;
        let name = bound_node(pod)?.to_owned();
        let node_uid = context.index.node(&name)?.metadata.uid.clone()?;
        let claims = claims_of(context, pod, &mut charged)?;
        let node = PlannedNode {
            name,
            uid: node_uid,
        };
        pods.push((uid(pod).to_owned(), claims, node));
    }
    let generation = context
        .index
        .team(&team)
        .and_then(|team| team.metadata.generation)
        .unwrap_or_default();
    let gang_uid = gang.metadata.uid.as_deref()?;
    let team = (team, generation);
    let attempt = attempt(gang);
    let mut plan = Plan::adopted(key, gang_uid, attempt, team, charged.into_charge(), pods);
    plan.gang_size = (started.len() < formed.pods.len())
        .then(|| i32::try_from(formed.pods.len()).unwrap_or(i32::MAX));
    plan.done_before = jobs::done(context.index, key, gang);
    plan.tier.clone_from(&formed.tier);
    admit::carry(context, &plan)
}

/// The members that run or were started: all, but for the pods that waited for the next attempt of a gang that started with fewer than
/// it has.
fn started<'f>(context: PollContext<'_>, formed: &'f FormedGang) -> Vec<&'f FormedPod> {
    let of_attempt = whole_attempt(context, formed);
    of_attempt.unwrap_or_else(|| formed.pods.iter().collect())
}

/// The members that were let go, if they started with fewer pods than their gang has, and all of these are there: they are where all pods of
/// the one attempt that there is were let go, as each of them says.
fn whole_attempt<'f>(
    context: PollContext<'_>,
    formed: &'f FormedGang,
) -> Option<Vec<&'f FormedPod>> {
    formed.spec.min_count?;
    let pod_of = |member: &FormedPod| context.index.pod_by_uid(&member.identity.uid);
    let is_let_go = |member: &&FormedPod| pod_of(member).is_some_and(|pod| !is_gated(pod));
    let let_go: Vec<&FormedPod> = formed.pods.iter().filter(is_let_go).collect();
    let last = pod_of(let_go.last()?)?;
    let count: usize = last.annotation(keys::ADMITTED_COUNT)?.parse().ok()?;
    let attempt = stamp(last);
    let pods = context.index.pods_of_gang(&formed.key).into_iter();
    let of_attempt = pods.filter(|pod| !is_gated(pod) && stamp(pod) == attempt);
    let are_all = let_go
        .iter()
        .all(|member| pod_of(member).is_some_and(|pod| stamp(pod) == attempt));
    (are_all && of_attempt.count() == count).then_some(let_go)
}

/// Whether every member that was started is bound and holds what it asks for: it runs, it was let go to that node by a Gang that is no more,
/// or it is being started by a driver that does not enforce permits yet. One that was made under our webhook and does not
/// run only waits there: it is a bypass, also where the node's object was lost and nothing says any more that its driver
/// enforces.
fn is_adoptable(context: PollContext<'_>, formed: &FormedGang) -> bool {
    let unadmitted = |uid: &str| formed.unadmitted.iter().any(|pod| pod.uid == uid);
    !formed.pods.is_empty()
        && started(context, formed).into_iter().all(|member| {
            let Some(pod) = context.index.pod_by_uid(&member.identity.uid) else {
                return false;
            };
            let enforced = bound_node(pod)
                .and_then(|node| context.index.node_devices(node))
                .is_some_and(|devices| devices.spec.enforce);
            unadmitted(&member.identity.uid)
                && !is_gated(pod)
                && !pod.is_disrupted()
                && (phase(pod) == "Running"
                    || permits_of(context, pod).next().is_some()
                    || (!enforced && !context.index.is_marked(&member.identity.uid)))
        })
}

/// Whether what runs was let go by a Gang that is no more, and is a part of its attempt: others of it are gone, and are not done. A gang never goes
/// on in part (S4), and with its Gang went what says that the attempt was being evicted, or would be. So it is not adopted, but ended
/// ([`crate::outward::evict`]).
///
/// What no Gang would be evicted for is no such part: that pods are gone which waited for the next attempt, or that a Job makes no others in place of
/// those that are gone.
pub(crate) fn is_in_part(context: PollContext<'_>, formed: &FormedGang) -> bool {
    let is_missing = |wait: &PendingReason| wait.reason == Reason::MissingPods;
    if !formed.wait.as_ref().is_some_and(is_missing) {
        return false;
    }
    let is_let_go = |pod: &ObservedPod| !is_gated(pod) && stamp(pod) > 0;
    let gang = context.index.gang(&formed.key);
    let left = gang.and_then(|gang| jobs::left_at_once(context.index, &formed.key, gang));
    let done = if left == Some(formed.spec.size) {
        // Those that are done do not count among what is left.
        0
    } else {
        let pods = context.index.pods_of_gang(&formed.key).into_iter();
        let done = pods.filter(|pod| is_let_go(pod) && phase(pod) == "Succeeded");
        done.count()
    };
    let there = formed.pods.len() + done;
    let of_attempt = |member: &FormedPod| {
        let pod = context.index.pod_by_uid(&member.identity.uid);
        pod.is_some_and(|pod| is_let_go(pod))
    };
    i64::try_from(there).is_ok_and(|there| there < i64::from(formed.spec.size))
        && formed.pods.iter().all(of_attempt)
        && whole_attempt(context, formed).is_none()
        && !is_left_to_its_jobs(context, formed)
}

/// Whether a Job of the pods ends them anyway, or would not make them again.
fn is_left_to_its_jobs(context: PollContext<'_>, formed: &FormedGang) -> bool {
    let pods = formed.pods.iter();
    let pods = pods.filter_map(|member| context.index.pod_by_uid(&member.identity.uid));
    let of_pods = jobs::of_pods(context.index, pods.map(AsRef::as_ref));
    let mut of_pods = of_pods.into_iter();
    of_pods.any(|job| jobs::is_ending(job) || jobs::is_drained_queue(context.index, job))
}

/// The permits of the pod on the node that it is bound to. With one, a controller let the pod go to that node, its Gang was
/// deleted since, and what it holds was charged all the time.
fn permits_of<'a>(
    context: PollContext<'a>,
    pod: &'a ObservedPod,
) -> impl Iterator<Item = &'a Permit> {
    let devices = bound_node(pod).and_then(|node| context.index.node_devices(node));
    let permits = devices
        .into_iter()
        .flat_map(|devices| &devices.spec.permits);
    permits.filter(|permit| permit.pod_uid == uid(pod))
}

/// What the pod is charged for, and its claims. That is what it was let go with, if a permit says so: one that was deleted
/// and made again since is charged to nobody, and gets nothing. Else what it was allocated, and nothing besides; `None`: not
/// everything is yet.
fn claims_of(
    context: PollContext<'_>,
    pod: &ObservedPod,
    charged: &mut ChargeSum,
) -> Option<Vec<String>> {
    let mut permits: Vec<&Permit> = permits_of(context, pod).collect();
    let mut claims: Vec<String> = if permits.is_empty() {
        let node = bound_node(pod)?;
        // Without the claims that are not charged.
        let request = context.index.request_of_pod(&uid(pod).into())?;
        for claim in &request.claims {
            let cost = if ClaimByName::driver_prepares(claim.uid.as_str()) {
                cost(context, node, &allocated(context, claim.uid.as_str())?)
            } else {
                cost_by_name(context, node, claim)
            };
            charged.add_claim(cost, claim.uid.as_str());
        }
        let claims = request.claims.iter();
        claims.map(|claim| claim.uid.to_string()).collect()
    } else {
        // The latest one that names a claim says what that claim costs.
        permits.sort_by_key(|permit| std::cmp::Reverse(permit.attempt));
        // What it takes besides claims the pod takes once, whatever earlier attempts were to give it.
        for part in permits
            .iter()
            .take(1)
            .flat_map(|permit| &permit.charge.resources)
        {
            charged.add_resource(&part.flavor, &part.resource, part.amount);
        }
        let mut known = BTreeSet::new();
        for group in permits.iter().flat_map(|permit| &permit.charge.claims) {
            for claim in group.uids.iter().filter(|uid| known.insert(*uid)) {
                charged.add_claim(ClaimCost::of(group), claim);
            }
        }
        let claims = permits.iter().flat_map(|permit| &permit.claim_uids);
        claims.cloned().collect()
    };
    claims.sort();
    claims.dedup();
    Some(claims)
}

/// Whether the node's driver may be told to enforce: not before every pod with claims that is bound there has been adopted, since its
/// permit has to stand in the same write. One without claims is nothing to a driver, and may never be adopted: it may hold what no Flavor
/// counts.
pub(crate) fn may_enforce(context: PollContext<'_>, node: &str) -> bool {
    if context.config.mode == Mode::Observe {
        return false;
    }
    let enforced = context
        .index
        .node_devices(node)
        .is_some_and(|devices| devices.spec.enforce);
    enforced
        || !context.index.pods_on_node(node).iter().any(|pod| {
            let gang = context.index.gang_of_pod(&NamespacedName::of_pod(pod));
            let formed = gang.and_then(|key| context.formed(key));
            !pod.claims().is_empty()
                && formed.is_some_and(|formed| {
                    formed.unadmitted.iter().any(|other| other.uid == uid(pod))
                        && is_adoptable(context, formed)
                        && formed.team.is_some()
                })
        })
}

/// What the driver lists as held and no permit names, after it has answered for this very object. Where there is no Node, that proves
/// the release ([`crate::nodes::loss`]), whatever a machine that lives on lists: it comes back with a Node of that name.
///
/// What an attempt holds does not come back like that while it is not known what becomes of the attempt: a write of its Gang was not
/// answered, say. As a withdrawn permit it would stay withdrawn, for one of that pod and attempt stands then, and its pod may live on. Until
/// that is known the Gang and the intent charge it.
pub(crate) fn permit_held(
    context: PollContext<'_>,
    node: &str,
    devices: &NodeDevices,
    spec: &mut NodeDevicesSpec,
) {
    if context.index.node(node).is_none() || !has_acknowledged(context, devices) {
        return;
    }
    let permits = spec.permits.iter();
    let mut named: BTreeSet<String> = permits
        .flat_map(|permit| permit.claim_uids.iter().cloned())
        .collect();
    let held = devices.status.iter().flat_map(|status| &status.held);
    let unnamed = held.filter(|held| !named.contains(&held.claim_uid));
    let unnamed: Vec<&Held> = unnamed.collect();
    if unnamed.is_empty() {
        return;
    }
    let undecided = claims_of_undecided(context, node);
    for held in unnamed {
        let claim = held.claim_uid.as_str();
        if !undecided.contains(claim) && named.insert(claim.to_owned()) {
            spec.permits.push(returned(context, node, held));
        }
    }
}

/// Claims that Gangs carry for pods of this node, and of which it is not known yet what becomes of their attempt. Whoever finds it out has the
/// node looked at again.
fn claims_of_undecided<'a>(context: PollContext<'a>, node: &str) -> BTreeSet<&'a str> {
    let mut claims = BTreeSet::new();
    for key in context.plans.on_node(node) {
        let view = context.views.of(key).filter(|view| view.is_undecided());
        let Some(plan) = view.and_then(|_| context.plans.carried(key)) else {
            continue;
        };
        for place in plan.places.get(node).into_iter().flatten() {
            claims.extend(plan.ranks[*place].claims.iter().map(String::as_str));
        }
    }
    claims
}

/// The permit that a claim comes back as. It is charged only as far as the API server itself says that the claim has
/// devices of that node, and it names a pod only if that one is bound there: else whoever has one node's token
/// could charge any Team, and hold up any pod as one that was given devices already. The devices are blocked in any case.
fn returned(context: PollContext<'_>, node: &str, held: &Held) -> Permit {
    let pool = format!("{}/{node}/", muster_api::keys::DRIVER);
    let devices = allocated(context, &held.claim_uid).filter(|devices| {
        let own = |device: &engine::DeviceName| device.as_str().starts_with(&pool);
        devices.iter().any(own)
    });
    let claim = context.index.claim_by_uid(&held.claim_uid);
    let namespace = claim
        .filter(|_| devices.is_some())
        .map(|claim| claim.namespace.to_string());
    let team = namespace.and_then(|namespace| context.index.team_of_namespace(&namespace));
    let charge = devices.map_or_else(Charge::default, |devices| {
        let mut charged = ChargeSum::default();
        charged.add_claim(cost(context, node, &devices), &held.claim_uid);
        charged.into_charge()
    });
    let pod = held
        .pod_uid
        .as_deref()
        .and_then(|uid| context.index.pod_by_uid(uid))
        .filter(|pod| bound_node(pod) == Some(node));
    let gang = pod.and_then(|pod| {
        let name = NamespacedName::of_pod(pod);
        context.index.gang_of_pod(&name)
    });
    Permit {
        pod_uid: pod.map_or_else(
            || format!("of-claim-{}", held.claim_uid),
            |pod| uid(pod).to_owned(),
        ),
        claim_uids: vec![held.claim_uid.clone()],
        gang: gang.map_or_else(|| format!("{}/", held.namespace), ToString::to_string),
        gang_uid: gang
            .and_then(|key| context.index.gang(key))
            .and_then(|gang| gang.metadata.uid.clone())
            .unwrap_or_default(),
        attempt: pod.map_or(0, stamp),
        team: team.map_or_else(String::new, |team| team.to_string()),
        charge,
        of_other_driver: false,
        withdrawn: true,
    }
}

/// What devices cost, as far as the node's slices show them. Devices that are not published any more count as whole GPUs
/// of no Flavor.
fn cost(context: PollContext<'_>, node: &str, devices: &[engine::DeviceName]) -> ClaimCost {
    let known = context.index.engine_node(node);
    let mut cost = ClaimCost::default();
    let mut add = |gpus: engine::Amount, vram: engine::Amount| {
        cost.gpus_milli = cost.gpus_milli.saturating_add(gpus.0);
        cost.vram_bytes = cost.vram_bytes.saturating_add(vram.0);
    };
    let mut flavor = String::new();
    for name in devices {
        let device = known.and_then(|node| node.devices.iter().find(|it| it.name == *name));
        match device {
            Some(device) => {
                if let Some(first) = device.flavors.first() {
                    flavor = first.to_string();
                }
                add(device.gpus, device.vram);
            }
            None => add(engine::Amount::ONE_GPU, engine::Amount::ZERO),
        }
    }
    ClaimCost { flavor, ..cost }
}

/// What the units of a device plugin cost that a pod has: each a whole GPU, of the first Flavor that counts the resource on its node.
fn cost_by_name(context: PollContext<'_>, node: &str, claim: &engine::Claim) -> ClaimCost {
    let node = context.index.engine_node(node);
    let matching = |device: &&engine::Device| {
        let mut choices = claim.requests.iter().flat_map(|request| &request.choices);
        choices.any(|choice| device.selectors.contains(&choice.selector))
    };
    let device = node.and_then(|node| node.devices.iter().find(matching));
    let flavor = device.and_then(|device| device.flavors.first());
    // It has no alternatives.
    let first = claim.requests.iter().filter_map(|it| it.choices.first());
    let units: i64 = first.map(|choice| i64::from(choice.count)).sum();
    ClaimCost {
        flavor: flavor.map(ToString::to_string).unwrap_or_default(),
        gpus_milli: units.saturating_mul(engine::Amount::ONE_GPU.0),
        vram_bytes: 0,
    }
}
