//! Gangs that are evicted for faults of devices (S8, S9, S10), or without proof for whatever else (S9), by what the API server says alone.
//!
//! * **S8** a gang is evicted for a fault only if a device that it was given had one at any time since then;
//! * **S9** within any window gangs are evicted for faults and silence on no more nodes than the circuit breaker allows, but for what a person let through
//!   by closing it, and nobody else closes it; while it is open nobody is evicted without proof;
//! * **S10** a gang is evicted for the same fault once.
//!
//! Of those that are evicted since a node is lost, of those that are moved away from what is drained, and of those that make no progress,
//! [`losses`](super::losses), [`moves`](super::moves) and [`stalls`](super::stalls) judge.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    resource::v1::{DeviceTaintRule, ResourceClaim, ResourceSlice},
};
use muster_api::{Gang, Intent, IntentKind, Ledger, Reason, keys};
use muster_cluster::object::{Kind, ObjectKey};

use super::{
    Violation,
    holdings::{Device, Holdings},
    losses::Losses,
    moves::Moves,
    stalls::Stalls,
};
use crate::{
    api_server::ApiServer,
    clock::Margin,
    scenario::{Hardship, Scenario},
    taints,
};

/// The window of the circuit breaker, in seconds, as it ships.
const WINDOW_SECONDS: i64 = 600;
/// The share of the nodes that may be evacuated in it, in percent, and how many always.
const SHARE_PERCENT: usize = 20;
const LEAST_NODES: usize = 2;

/// Causes that nothing proves: nobody is evicted for them while recovery only observes, or the circuit breaker is open. A node that is lost is one as long as
/// nothing proves that.
const WITHOUT_PROOF: [Reason; 3] = [Reason::DeviceFault, Reason::Drained, Reason::NoProgress];

/// From when to when a device had a fault.
#[derive(Clone, Copy, Debug)]
struct Faulty {
    since: Timestamp,
    until: Option<Timestamp>,
}

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Recoveries {
    faults: BTreeMap<Device, Vec<Faulty>>,
    holdings: Holdings,
    losses: Losses,
    moves: Moves,
    stalls: Stalls,
    pub(super) margin: Margin,
    /// Attempts of which an intent was seen that evicts them.
    evicted: BTreeSet<(String, i64)>,
    /// For each gang that was evicted for a fault or silence, when, and the nodes of which that may have been the cause.
    evacuated: Vec<(Timestamp, BTreeSet<String>)>,
    most_nodes: usize,
    /// Whether the breaker is open, and the UID of the Ledger that says so.
    breaker: (bool, String),
    /// Whether a person has closed it, and that was not seen yet.
    is_closed_by_person: bool,
}

impl Recoveries {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let nodes = scenario.nodes.len();
        // Where no GPU breaks the breaker has no say.
        let share = if scenario.hardships.have(Hardship::BrokenDevices) {
            nodes * SHARE_PERCENT / 100
        } else {
            nodes
        };
        Self {
            most_nodes: share.max(LEAST_NODES),
            losses: Losses::new(scenario),
            moves: Moves::new(scenario),
            stalls: Stalls::new(scenario),
            ..Self::default()
        }
    }

    /// A person has closed the circuit breaker.
    pub(super) fn note_closed_by_person(&mut self) {
        self.is_closed_by_person = true;
    }

    /// What a driver publishes now.
    pub(super) fn note_slice(&mut self, slice: &ResourceSlice, now: Timestamp) {
        for device in slice.spec.devices.iter().flatten() {
            let key = (slice.spec.pool.name.clone(), device.name.clone());
            let has = |key| taints::has(device, key);
            let is_faulty = has(keys::TAINT_FAULT) || has(keys::TAINT_LINK_FAULT);
            let known = self.faults.entry(key).or_default();
            match known.last_mut().filter(|last| last.until.is_none()) {
                Some(last) if !is_faulty => last.until = Some(now),
                None if is_faulty => known.push(Faulty {
                    since: now,
                    until: None,
                }),
                _ => {}
            }
        }
    }

    /// Whether a node is Ready, and whether it is drained.
    pub(super) fn note_node(&mut self, node: &Node, now: Timestamp) {
        self.losses.note_node(node, now);
        self.moves.note_node(node, now);
    }

    /// What a claim has now.
    pub(super) fn note_claim(&mut self, claim: &ResourceClaim, now: Timestamp) {
        self.holdings.note_claim(claim, now);
    }

    /// Which device a rule drains.
    pub(super) fn note_rule(&mut self, rule: &DeviceTaintRule, now: Timestamp) {
        self.moves.note_rule(rule, now);
    }

    /// What a pod tells.
    pub(super) fn note_pod(&mut self, pod: &Pod, now: Timestamp) {
        self.stalls.note_pod(pod, now);
    }

    /// An object is no more.
    pub(super) fn note_gone(&mut self, key: &ObjectKey, now: Timestamp) {
        match key.kind {
            Kind::Node => {
                self.losses.note_no_node(&key.name, now);
                self.moves.note_no_node(&key.name, now);
            }
            Kind::DeviceTaintRule => self.moves.note_no_rule(&key.name, now),
            _ => {}
        }
    }

    /// S10, of what a Gang says now.
    pub(super) fn check_gang(gang: &Gang) -> Result<(), Violation> {
        let evictions = gang.status.iter().flat_map(|status| &status.evictions);
        let mut seen = BTreeSet::new();
        for fault in evictions.filter_map(|eviction| eviction.fault.as_ref()) {
            let since = fault.since.0.as_second();
            if !seen.insert((&fault.device, &fault.kind, since)) {
                let name = gang.metadata.name.as_deref().unwrap_or_default();
                let what = format!("{name} was evicted twice for {fault:?}");
                return Err(Violation::new("S10", what));
            }
        }
        Ok(())
    }

    /// S8, S9 and S18, of what the Ledger commits now, and what must hold of moves and stalls.
    pub(super) fn check_ledger(
        &mut self,
        api: &ApiServer,
        ledger: &Ledger,
    ) -> Result<(), Violation> {
        let is_open = ledger.spec.breaker.opened_at.is_some();
        let uid = ledger.metadata.uid.clone().unwrap_or_default();
        let (was_open, before) = std::mem::replace(&mut self.breaker, (is_open, uid.clone()));
        let is_closed = was_open && !is_open && before == uid;
        if is_closed && !std::mem::take(&mut self.is_closed_by_person) {
            let what = "the circuit breaker is closed, and no person closed it".to_owned();
            return Err(Violation::new("S9", what));
        }
        if is_closed || before != uid {
            // A person has looked, or the record is lost with its object.
            self.evacuated.clear();
        }
        for intent in &ledger.spec.intents {
            let attempt = (intent.gang_uid.clone(), intent.attempt);
            let is_new = intent.kind == IntentKind::Evict && self.evicted.insert(attempt);
            if !is_new {
                continue;
            }
            match intent.cause {
                Some(Reason::DeviceFault) => self.check_eviction(api, intent)?,
                Some(Reason::NodeLost) => self.check_loss(api, intent)?,
                _ => {}
            }
            // Who opens it evicts nobody by the same write.
            if is_open && self.is_without_proof(api, intent) {
                let what = format!(
                    "{} is evicted for {:?} while the circuit breaker is open",
                    intent.name, intent.cause
                );
                return Err(Violation::new("S9", what));
            }
        }
        self.moves.check_ledger(api, &self.holdings, ledger)?;
        self.stalls.check_ledger(api, ledger)
    }

    /// Whether an eviction is for what nothing proves.
    pub(super) fn is_without_proof(&self, api: &ApiServer, intent: &Intent) -> bool {
        intent.kind == IntentKind::Evict
            && intent.cause.is_some_and(|cause| {
                WITHOUT_PROOF.contains(&cause)
                    || cause == Reason::NodeLost
                        && !self.losses.is_proved(api, &self.holdings, intent)
            })
    }

    /// S18, and S9 of what is evicted for silence.
    fn check_loss(&mut self, api: &ApiServer, intent: &Intent) -> Result<(), Violation> {
        let checked = self
            .losses
            .check(api, &self.holdings, intent, self.margin)?;
        checked.map_or(Ok(()), |silent| self.count_evacuated(api, silent))
    }

    fn check_eviction(&mut self, api: &ApiServer, intent: &Intent) -> Result<(), Violation> {
        let Some(given) = self.holdings.of_attempt(api, intent) else {
            return Ok(());
        };
        let mut hit: BTreeSet<String> = BTreeSet::new();
        for (since, devices) in &given {
            for device in devices {
                if self.had_fault_since(device, *since) {
                    hit.insert(device.0.clone());
                }
            }
        }
        if hit.is_empty() {
            let what = format!(
                "{} is evicted for a fault, and no device that it was given had any since: {given:?}",
                intent.name
            );
            return Err(Violation::new("S8", what));
        }
        self.count_evacuated(api, hit)
    }

    /// S9: gangs are evicted on no more nodes than may be. These may have been the cause now.
    fn count_evacuated(
        &mut self,
        api: &ApiServer,
        nodes: BTreeSet<String>,
    ) -> Result<(), Violation> {
        let now = api.time();
        // Of leaders each counts from when it saw what was committed.
        let window = self.margin.at_least(WINDOW_SECONDS);
        self.evacuated.retain(|(at, _)| *at + window > now);
        self.evacuated.push((now, nodes));
        let causes: Vec<&BTreeSet<String>> =
            self.evacuated.iter().map(|(_, nodes)| nodes).collect();
        if !are_explained(&causes, self.most_nodes) {
            let what = format!(
                "gangs are evicted for faults or silence of {causes:?} within {WINDOW_SECONDS} s, and for {} nodes at most they may be",
                self.most_nodes
            );
            return Err(Violation::new("S9", what));
        }
        Ok(())
    }

    fn had_fault_since(&self, device: &Device, since: Timestamp) -> bool {
        let faults = self.faults.get(device);
        let mut faults = faults.into_iter().flatten();
        faults.any(|fault| {
            debug_assert!(fault.until.is_none_or(|until| fault.since <= until));
            fault.until.is_none_or(|until| until >= since)
        })
    }
}

/// Whether so many nodes have a part in each of these. A gang is evicted for the faults that the leader knows of; that others
/// of its devices were faulty too says nothing.
fn are_explained(causes: &[&BTreeSet<String>], nodes: usize) -> bool {
    let Some((first, others)) = causes.split_first() else {
        return true;
    };
    nodes > 0
        && first.iter().any(|node| {
            let left: Vec<&BTreeSet<String>> = others
                .iter()
                .copied()
                .filter(|cause| !cause.contains(node))
                .collect();
            are_explained(&left, nodes - 1)
        })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use muster_api::LedgerSpec;

    use super::*;

    #[test]
    fn s9_whoever_closes_the_breaker_without_a_person_is_seen() {
        let ledger = |is_open: bool, uid: &str| {
            let mut ledger = Ledger::new(keys::LEDGER_NAME, LedgerSpec::default());
            ledger.metadata.uid = Some(uid.to_owned());
            ledger.spec.breaker.opened_at = is_open.then_some(Time(Timestamp::UNIX_EPOCH));
            ledger
        };
        let api = ApiServer::default();
        for (uid, is_said, is_right) in [("a", false, false), ("a", true, true), ("b", false, true)]
        {
            let mut recoveries = Recoveries::default();
            let mut check = |ledger: &Ledger, is_said: bool| {
                if is_said {
                    recoveries.note_closed_by_person();
                }
                recoveries.check_ledger(&api, ledger).is_ok()
            };
            assert!(check(&ledger(true, "a"), false));
            let case = format!("{uid} {is_said}");
            assert_eq!(check(&ledger(false, uid), is_said), is_right, "{case}");
        }
    }

    #[test]
    fn evictions_are_explained_by_as_few_nodes_as_can_be() {
        let of = |nodes: &[&str]| -> BTreeSet<String> {
            nodes.iter().map(|it| (*it).to_owned()).collect()
        };
        for (causes, fewest) in [
            (vec![], 0),
            (vec![of(&["a", "b", "c"])], 1),
            (vec![of(&["a", "b"]), of(&["b"])], 1),
            (vec![of(&["a", "b"]), of(&["b", "c"]), of(&["c", "a"])], 2),
            (vec![of(&["a"]), of(&["b"]), of(&["c"])], 3),
        ] {
            let causes: Vec<&BTreeSet<String>> = causes.iter().collect();
            for nodes in 0..=3 {
                assert_eq!(
                    are_explained(&causes, nodes),
                    nodes >= fewest,
                    "{causes:?}, {nodes}"
                );
            }
        }
    }
}
