//! The faults that reach what an attempt holds.

use std::collections::BTreeSet;

use jiff::Timestamp;
use muster_api::{Gang, Reason, gang::EvictionFault, keys};
use muster_engine::{
    DeviceName,
    recovery::{
        Action, Answered, Consequence, DeviceFault, Facts, FaultClass, FaultKind, HeldFault,
        consequence, decide,
    },
};

use crate::{
    admission::plan::{Plan, Rank},
    faults,
    feed::running,
    injected_bug::InjectedBug,
    poll_context::PollContext,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_cluster::{
    claims, device_faults::FaultyDevice, formed::PendingReason, pod, pools::device_name,
    rank_state::RankState,
};

/// A fault of a device that a rank holds.
#[derive(Clone, Debug)]
pub(crate) struct Reached {
    rank: usize,
    node: String,
    device: DeviceName,
    fault: DeviceFault,
    needs_links: bool,
    slice: String,
}

impl Reached {
    /// By what it is told from every other fault.
    pub(crate) fn identity(&self) -> Answered {
        (self.device.clone(), self.fault)
    }
}

/// What is found about the faults that reach what an attempt holds.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Which fault asks for most, and what follows, for people.
    pub(crate) reason: PendingReason,
    /// What is to be done about it.
    pub(crate) action: Action,
    /// The node of the device.
    pub(crate) node: String,
    /// The slice that says so.
    pub(crate) slice: String,
    device: DeviceName,
    fault: DeviceFault,
}

impl Found {
    /// The fault as an eviction records it.
    pub(crate) fn record(&self) -> Option<EvictionFault> {
        let since = Timestamp::from_second(self.fault.since_unix_seconds).ok()?;
        Some(EvictionFault {
            device: self.device.to_string(),
            kind: self.fault.kind.name(),
            since: Time(since),
        })
    }
}

/// The node of the plan that later plans are to avoid after an eviction for that fault, if any: what was contained says nothing about it. Our drivers name the pool
/// of a node after it.
pub(crate) fn node_to_avoid<'a>(plan: &'a Plan, fault: &EvictionFault) -> Option<&'a String> {
    if FaultKind::named(&fault.kind) == FaultKind::Device(FaultClass::Contained) {
        return None;
    }
    let is_on = |node: &&String| {
        let prefix = device_name(keys::DRIVER, node, "");
        fault.device.starts_with(&prefix)
    };
    plan.nodes().find(is_on)
}

/// The faults that reach what the ranks of a plan hold: devices that their claims are allocated on their nodes. A rank that is done
/// holds nothing that matters to it.
pub(crate) fn reached(context: PollContext<'_>, plan: &Plan) -> Vec<Reached> {
    let mut reached = Vec::new();
    let is_faulty = |node: &String| context.index.faulty_devices(node).is_some();
    if !plan.nodes().any(is_faulty) {
        return reached;
    }
    for (place, (rank, state)) in plan.states(context).enumerate() {
        let node = &rank.node.name;
        let faulty = context.index.faulty_devices(node);
        let Some(faulty) = faulty.filter(|_| state != RankState::Succeeded) else {
            continue;
        };
        let found = |device: &str, known: &FaultyDevice, needs_links| {
            let faults: Vec<Reached> = known
                .faults
                .iter()
                .map(|fault| Reached {
                    rank: place,
                    node: node.clone(),
                    device: device.into(),
                    fault: *fault,
                    needs_links,
                    slice: known.slice.clone(),
                })
                .collect();
            faults
        };
        if context.bugs.has(InjectedBug::NodeForDevice) {
            let devices = faulty.iter();
            reached.extend(devices.flat_map(|(device, known)| found(device, known, true)));
            continue;
        }
        let claims = rank.claims.iter();
        for claim in claims.filter_map(|uid| context.index.claim_by_uid(uid)) {
            let devices = claim.allocated.iter().flatten();
            let own = devices.filter(|device| !device.for_admin && *device.driver == *keys::DRIVER);
            for device in own {
                let name = device_name(&device.driver, &device.pool, &device.device);
                let Some(known) = faulty.get(name.as_str()) else {
                    continue;
                };
                reached.extend(found(&name, known, claims::uses_links(claim)));
            }
        }
    }
    reached
}

/// What is to be done about the faults that reach what the plan holds, if there are any.
pub(crate) fn find(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<Found> {
    let reached = reached(context, plan);
    if reached.is_empty() {
        return None;
    }
    let now_seconds = context.now.monotonic_seconds;
    let faults: Vec<HeldFault> = reached
        .iter()
        .map(|reached| {
            let identity = reached.identity();
            let seen = context
                .clocks
                .fault_seen_at(&plan.gang_uid, plan.attempt, &identity);
            let seen_at_seconds = seen.unwrap_or(now_seconds);
            let checks = context.fault_checks;
            HeldFault {
                rank: reached.rank,
                node: reached.node.as_str().into(),
                device: reached.device.clone(),
                fault: reached.fault,
                needs_links: reached.needs_links,
                seen_at_seconds,
                is_confirmed: checks.confirms(&reached.slice, &identity, seen_at_seconds)
                    || context.bugs.has(InjectedBug::FaultUnconfirmed),
            }
        })
        .collect();
    let answered = if context.bugs.has(InjectedBug::FaultNotRemembered) {
        BTreeSet::new()
    } else {
        answered(gang)
    };
    let decision = decide(Facts {
        faults: &faults,
        answered: &answered,
        acts: faults::acts(context),
        now_seconds,
    })?;
    let about = decision.about;
    if let Action::Wait { until_seconds } = decision.action {
        context.has_come(until_seconds);
    }
    let mut same = reached.iter();
    let same = same.find(|it| it.device == about.device && it.fault == about.fault)?;
    let follows = match decision.action {
        Action::Spare(spared) => Some(spared.text().to_owned()),
        Action::Restart | Action::Confirm | Action::Wait { .. } => context.breaker.halt_text(),
    };
    let (device, node, kind) = (&about.device, &same.node, about.fault.kind);
    let mut details = format!("rank {}: device {device} of node {node} {kind}", about.rank);
    if let Ok(since) = Timestamp::from_second(about.fault.since_unix_seconds) {
        details = format!("{details} since {since}");
    }
    if let Some(follows) = follows {
        details = format!("{details}; {follows}");
    }
    Some(Found {
        reason: PendingReason {
            reason: Reason::DeviceFault,
            details,
        },
        action: decision.action,
        node: same.node.clone(),
        slice: same.slice.clone(),
        device: about.device.clone(),
        fault: about.fault,
    })
}

/// How much earlier than its pod was made a fault may be dated that a rank died of, in seconds: the API server dates both, and there may be several whose clocks
/// differ.
const TOLD_BEFORE_SECONDS: i64 = 60;

/// Whether a rank that failed may have died of a fault of what it held: one that costs attempts. The claims of a failed pod are gone soon, and with them what it held;
/// then any device of its node is taken for it whose fault is not older than the pod: else a gang that fails by itself beside a GPU that waits for its repair would be
/// excused for ever. As it is, a fault that came while the gang waited excuses it once. When it was admitted decides only where the pod is gone: that is dated by the clock of
/// whoever led then, and by one that is ahead each fault would be older.
pub(crate) fn may_have_ended(context: PollContext<'_>, plan: &Plan, rank: &Rank) -> bool {
    let Some(faulty) = context.index.faulty_devices(&rank.node.name) else {
        return false;
    };
    let costs = |known: &FaultyDevice, needs_links| {
        let mut faults = known.faults.iter();
        faults.any(|fault| consequence(fault.kind, needs_links) != Consequence::GoOn)
    };
    let claims = rank.claims.iter().map(|uid| {
        let claim = context.index.claim_by_uid(uid)?;
        claim.allocated.is_some().then_some(claim)
    });
    let claims: Option<Vec<_>> = claims.collect();
    let Some(claims) = claims.filter(|claims| !claims.is_empty()) else {
        let pod = context.index.pod_by_uid(&rank.pod);
        let made_at = pod
            .map(pod::created_at)
            .or_else(|| context.gang_of(plan).and_then(running::admitted_at))
            .unwrap_or(i64::MIN);
        let is_new = |fault: &&DeviceFault| {
            let since = fault.since_unix_seconds;
            // One without a time is told by an administrator, say.
            since == 0 || since.saturating_add(TOLD_BEFORE_SECONDS) >= made_at
        };
        let costs = |fault: &DeviceFault| consequence(fault.kind, true) != Consequence::GoOn;
        let mut known = faulty.values();
        return known.any(|known| known.faults.iter().filter(is_new).any(costs));
    };
    claims.into_iter().any(|claim| {
        let needs_links = claims::uses_links(claim);
        let mut devices = claim.allocated.iter().flatten();
        devices.any(|device| {
            let name = device_name(&device.driver, &device.pool, &device.device);
            let known = faulty.get(name.as_str());
            !device.for_admin && known.is_some_and(|known| costs(known, needs_links))
        })
    })
}

/// Why the attempt is to be evicted for a fault now, if it is.
pub(crate) fn due(context: PollContext<'_>, gang: &Gang, plan: &Plan) -> Option<PendingReason> {
    let found = find(context, gang, plan)?;
    (found.action == Action::Restart && faults::held_back(context).is_none())
        .then_some(found.reason)
}

/// The nodes for whose faults the attempt would be evicted: all of them, however many it takes.
pub(crate) fn faulty_nodes(context: PollContext<'_>, plan: &Plan) -> BTreeSet<String> {
    let costs = |reached: &Reached| {
        let consequence = consequence(reached.fault.kind, reached.needs_links);
        consequence != Consequence::GoOn
    };
    let reached = reached(context, plan).into_iter();
    reached.filter(costs).map(|reached| reached.node).collect()
}

/// The faults for which attempts of the Gang were evicted, as far as it remembers.
fn answered(gang: &Gang) -> BTreeSet<Answered> {
    let evictions = gang.status.iter().flat_map(|status| &status.evictions);
    let faults = evictions.filter_map(|eviction| eviction.fault.as_ref());
    faults
        .map(|fault| {
            let device: DeviceName = fault.device.as_str().into();
            let fault = DeviceFault {
                kind: FaultKind::named(&fault.kind),
                since_unix_seconds: fault.since.0.as_second(),
            };
            (device, fault)
        })
        .collect()
}
