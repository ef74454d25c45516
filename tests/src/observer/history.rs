//! What was permitted and charged at any revision that a container may still have to be judged by.
//!
//! A container's start is read from its node's record a moment after it happened, when the watch may be further. So
//! it is judged by the state of its own revision, which is kept here until nobody can ask for it any more.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::{NodeDevices, Permit};

use super::etcd::Revision;

/// A NodeDevices object as it was from one revision to the next.
#[derive(Clone, Debug)]
pub(super) struct NodeVersion {
    pub(super) enforce: bool,
    permits: Vec<SeenPermit>,
    /// Generation of the permits that the driver has on disk.
    acknowledged: i64,
    /// Claims that the driver says it holds without a live permit.
    held: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct SeenPermit {
    permit: Permit,
    /// Whether it was seen live: a permit that was withdrawn from the beginning permits nothing.
    was_live: bool,
    /// Generation of the spec that withdrew it.
    withdrawn_in: Option<i64>,
}

/// How a container's claim stands with the permits of its node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Permission {
    /// The node does not enforce permits yet, or Muster does not know the node.
    NotEnforced,
    /// Permitted, and charged for at least as much.
    Given,
    /// Not permitted, for this reason.
    Missing(String),
}

impl NodeVersion {
    /// The version that follows `before`.
    fn after(before: Option<&Self>, node: &NodeDevices) -> Self {
        let generation = node.metadata.generation.unwrap_or(0);
        let known = |permit: &Permit| {
            let mut known = before.iter().flat_map(|before| &before.permits);
            known.find(|known| is_same(&known.permit, permit))
        };
        let permits = node.spec.permits.iter().map(|permit| {
            let known = known(permit);
            SeenPermit {
                was_live: !permit.withdrawn || known.is_some_and(|known| known.was_live),
                withdrawn_in: permit.withdrawn.then(|| {
                    known
                        .and_then(|known| known.withdrawn_in)
                        .unwrap_or(generation)
                }),
                permit: permit.clone(),
            }
        });
        let status = node.status.as_ref();
        let status = status.filter(|status| Some(&status.uid) == node.metadata.uid.as_ref());
        Self {
            enforce: node.spec.enforce,
            permits: permits.collect(),
            acknowledged: status.map_or(0, |status| status.observed_generation),
            held: status
                .iter()
                .flat_map(|status| &status.held)
                .map(|held| held.claim_uid.clone())
                .collect(),
        }
    }

    /// Whether a container of this pod may start with devices of this claim that cost so many thousandths of a GPU. `claim` is what it is
    /// permitted as.
    ///
    /// A permit that was withdrawn still covers what was prepared under it, until its driver has acknowledged the
    /// withdrawal and does not list the claim as held: that is the proof by which quota comes back.
    pub(super) fn permission(&self, pod_uid: &str, claim: &str, needed_milli: i64) -> Permission {
        if !self.enforce {
            return Permission::NotEnforced;
        }
        let of_pod = self.permits.iter().filter(|seen| {
            seen.permit.pod_uid == pod_uid && seen.permit.claim_uids.iter().any(|uid| uid == claim)
        });
        let mut missing = "there is no permit".to_owned();
        for seen in of_pod {
            if let Some(generation) = seen.withdrawn_in {
                let is_prepared =
                    seen.was_live && (self.acknowledged < generation || self.held.contains(claim));
                if !is_prepared {
                    missing = format!("the permit was withdrawn in generation {generation}");
                    continue;
                }
            }
            let covered = charged_gpus_milli(&seen.permit, claim);
            if covered >= needed_milli {
                return Permission::Given;
            }
            missing = format!(
                "the permit is charged {covered} thousandths of a GPU for it, not {needed_milli}"
            );
        }
        Permission::Missing(missing)
    }
}

fn is_same(one: &Permit, other: &Permit) -> bool {
    one.pod_uid == other.pod_uid && one.attempt == other.attempt
}

fn charged_gpus_milli(permit: &Permit, claim: &str) -> i64 {
    let groups = permit.charge.claims.iter();
    let of_claim = groups.filter(|group| group.uids.iter().any(|uid| uid == claim));
    of_claim.map(|group| group.gpus_milli).max().unwrap_or(0)
}

/// Versions of every node's permits, by the revision from which they held; `None`: the object was gone.
#[derive(Debug, Default)]
pub(super) struct PermitHistory {
    nodes: BTreeMap<String, BTreeMap<Revision, Option<NodeVersion>>>,
}

impl PermitHistory {
    /// The object of this node was written, or is gone.
    pub(super) fn write(&mut self, revision: Revision, node: &str, object: Option<&NodeDevices>) {
        let versions = self.nodes.entry(node.to_owned()).or_default();
        let before = versions.values().next_back().and_then(Option::as_ref);
        let version = object.map(|object| NodeVersion::after(before, object));
        versions.insert(revision, version);
    }

    /// What held at this revision.
    pub(super) fn at(&self, node: &str, revision: Revision) -> Option<&NodeVersion> {
        let versions = self.nodes.get(node)?;
        let (_, version) = versions.range(..=revision).next_back()?;
        version.as_ref()
    }

    /// Forgets what nobody asks for who asks for this revision or later ones.
    pub(super) fn forget_before(&mut self, revision: Revision) {
        for versions in self.nodes.values_mut() {
            let first = versions.range(..=revision).next_back();
            let first = first.map(|(first, _)| *first).unwrap_or_default();
            *versions = versions.split_off(&first);
        }
    }
}

/// When each claim was charged.
#[derive(Debug, Default)]
pub(super) struct ChargeHistory {
    spans: BTreeMap<String, Vec<Span>>,
}

/// From a revision, and up to the one at which the last charge was gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: Revision,
    until: Option<Revision>,
}

impl ChargeHistory {
    /// These claims are charged from this revision on, and no others.
    pub(super) fn write<'a>(
        &mut self,
        revision: Revision,
        charged: impl Iterator<Item = &'a String>,
    ) {
        let charged: BTreeSet<&String> = charged.collect();
        for (claim, spans) in &mut self.spans {
            if let Some(last) = spans.last_mut()
                && last.until.is_none()
                && !charged.contains(claim)
            {
                last.until = Some(revision);
            }
        }
        for claim in charged {
            let spans = self.spans.entry(claim.clone()).or_default();
            if spans.last().is_none_or(|last| last.until.is_some()) {
                spans.push(Span {
                    from: revision,
                    until: None,
                });
            }
        }
    }

    /// The first revision from this one on at which the claim was not charged; `None`: it is charged ever since.
    pub(super) fn first_uncharged(&self, claim: &str, from: Revision) -> Option<Revision> {
        let spans = self.spans.get(claim);
        let covering = spans
            .iter()
            .flat_map(|spans| spans.iter())
            .find(|span| span.from <= from && span.until.is_none_or(|until| from < until));
        match covering {
            None => Some(from),
            Some(span) => span.until,
        }
    }

    /// Forgets spans that ended before this revision.
    pub(super) fn forget_before(&mut self, revision: Revision) {
        self.spans.retain(|_, spans| {
            spans.retain(|span| span.until.is_none_or(|until| until > revision));
            !spans.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(generation: i64, withdrawn: bool, acknowledged: i64, held: &[&str]) -> NodeDevices {
        let held: Vec<_> = held
            .iter()
            .map(|uid| json!({"claimUid": uid, "namespace": "ml", "name": "c", "devices": []}))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "node-0", "uid": "nd0", "generation": generation},
            "spec": {"nodeUid": "n0", "leaderEpoch": 1, "enforce": true, "permits": [{
                "podUid": "p", "claimUids": ["c"], "gang": "ml/gang", "gangUid": "g", "attempt": 1, "team": "t", "withdrawn": withdrawn,
                "charge": {"claims": [{"flavor": "f", "gpusMilli": 2000, "vramBytes": 0, "uids": ["c"]}]}}]},
            "status": {"uid": "nd0", "observedGeneration": acknowledged, "held": held},
        }))
        .unwrap()
    }

    #[test]
    fn a_permit_is_judged_by_the_revision_of_the_start_and_its_charge() {
        let mut history = PermitHistory::default();
        history.write(10, "node-0", Some(&node(1, false, 1, &[])));
        history.write(20, "node-0", Some(&node(2, true, 1, &[])));
        history.write(30, "node-0", Some(&node(2, true, 2, &["c"])));
        history.write(40, "node-0", Some(&node(2, true, 2, &[])));
        history.write(50, "node-0", None);
        let at = |revision| {
            let version = history.at("node-0", revision);
            version.map(|version| version.permission("p", "c", 2000))
        };
        assert_eq!(at(9), None, "before the first permit");
        for revision in [10, 19, 20, 29, 30, 39] {
            assert_eq!(at(revision), Some(Permission::Given), "{revision}");
        }
        assert!(matches!(at(40), Some(Permission::Missing(_))), "released");
        assert_eq!(at(50), None, "the object is gone");
        let version = history.at("node-0", 10).unwrap();
        for (pod, claim, needed_milli) in [("p", "c", 2001), ("q", "c", 142), ("p", "d", 142)] {
            let permission = version.permission(pod, claim, needed_milli);
            assert!(
                matches!(permission, Permission::Missing(_)),
                "{pod} {claim} {needed_milli}: {permission:?}"
            );
        }
    }

    #[test]
    fn a_permit_that_was_never_live_permits_nothing() {
        let mut history = PermitHistory::default();
        history.write(10, "node-0", Some(&node(1, true, 0, &["c"])));
        let permission = history.at("node-0", 10).unwrap().permission("p", "c", 1000);
        assert!(
            matches!(permission, Permission::Missing(_)),
            "{permission:?}"
        );
    }

    #[test]
    fn what_was_forgotten_is_only_what_was_before() {
        let mut history = PermitHistory::default();
        for revision in [10, 20, 30] {
            let object = node(1, false, 1, &[]);
            history.write(revision, "node-0", Some(&object));
        }
        history.forget_before(25);
        assert!(history.at("node-0", 19).is_none());
        assert!(history.at("node-0", 25).is_some());
        assert!(history.at("node-0", 30).is_some());
    }

    #[test]
    fn a_charge_that_lapses_and_comes_back_leaves_a_hole() {
        let (claim, mut history) = ("c".to_owned(), ChargeHistory::default());
        history.write(10, [&claim].into_iter());
        history.write(20, [].into_iter());
        history.write(25, [&claim].into_iter());
        assert_eq!(history.first_uncharged("c", 5), Some(5));
        assert_eq!(history.first_uncharged("c", 10), Some(20));
        assert_eq!(history.first_uncharged("c", 22), Some(22));
        assert_eq!(history.first_uncharged("c", 25), None);
        history.forget_before(21);
        assert_eq!(history.first_uncharged("c", 25), None);
    }
}
