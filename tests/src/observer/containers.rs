//! S2 and S3 of every container that got GPUs, by the record of the runtime that started it.
//!
//! A container is judged at the revision of its start, also if it has long exited when its line is read: by the
//! permits of that revision, and by the charges from its start to its end.

use std::collections::BTreeMap;

use super::{
    claim_names::ClaimNames,
    etcd::Revision,
    findings::{Findings, Invariant},
    history::{ChargeHistory, Permission, PermitHistory},
    published::Published,
    record::Container,
};

/// How long the line of an exit may come after the charge went: the runtime writes it once the container is dead,
/// and the file is read a moment later.
const EXIT_LINE_MILLIS: u64 = 2_000;

/// What containers are judged by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence<'a> {
    pub(super) permits: &'a PermitHistory,
    pub(super) charges: &'a ChargeHistory,
    pub(super) names: &'a ClaimNames,
    pub(super) published: &'a Published,
}

/// Containers that run, or have exited and are not judged to their end.
#[derive(Debug, Default)]
pub(super) struct Containers {
    /// By container id.
    runs: BTreeMap<String, Run>,
}

#[derive(Debug)]
struct Run {
    container: Container,
    started: Revision,
    exited: Option<Revision>,
    /// Whether permits were enforced at its start; unknown until the watch has come that far.
    enforced: Option<bool>,
    /// When its charge was seen to be gone, while it was not known to have exited.
    uncharged_at_millis: Option<u64>,
}

impl Containers {
    /// A container was started.
    pub(super) fn start(
        &mut self,
        id: &str,
        container: Container,
        revision: Revision,
        findings: &mut Findings,
    ) {
        findings.counts.containers += 1;
        let others = self.running();
        let shared: Vec<String> = others
            .filter_map(|other| shared_hardware(other, &container))
            .collect();
        findings.check(Invariant::S3, None);
        for how in shared {
            findings.violation(Invariant::S3, &how);
        }
        let run = Run {
            container,
            started: revision,
            exited: None,
            enforced: None,
            uncharged_at_millis: None,
        };
        self.runs.insert(id.to_owned(), run);
    }

    /// A container has exited, all its processes are dead.
    pub(super) fn exit(&mut self, id: &str, revision: Revision) {
        if let Some(run) = self.runs.get_mut(id) {
            run.exited = Some(revision);
        }
    }

    /// Containers that run.
    pub(super) fn running(&self) -> impl Iterator<Item = &Container> {
        let running = self.runs.values().filter(|run| run.exited.is_none());
        running.map(|run| &run.container)
    }

    /// The same, each with its id.
    pub(super) fn running_by_id(&self) -> impl Iterator<Item = (&str, &Container)> {
        let running = self.runs.iter().filter(|(_, run)| run.exited.is_none());
        running.map(|(id, run)| (id.as_str(), &run.container))
    }

    /// Containers that are not judged to their end.
    pub(super) fn open(&self) -> impl Iterator<Item = &Container> {
        self.runs.values().map(|run| &run.container)
    }

    /// Containers that ran at the first of these revisions and still at the second, as far as they are not judged to their end.
    pub(super) fn throughout(
        &self,
        first: Revision,
        second: Revision,
    ) -> impl Iterator<Item = &Container> {
        let throughout = self.runs.values().filter(move |run| {
            run.started <= first && run.exited.is_none_or(|exited| exited > second)
        });
        throughout.map(|run| &run.container)
    }

    /// The containers of a pod that are not judged to their end, each with the revision of its start.
    pub(super) fn of_pod(&self, pod_uid: &str) -> impl Iterator<Item = (&Container, Revision)> {
        let of_pod = self
            .runs
            .values()
            .filter(move |run| run.container.pod_uid == pod_uid);
        of_pod.map(|run| (&run.container, run.started))
    }

    /// The earliest start among them.
    pub(super) fn first_start(&self) -> Option<Revision> {
        self.runs.values().map(|run| run.started).min()
    }

    /// Judges all of them as far as the watch has come. What claims are charged as and what devices cost does not change as long as a
    /// container may ask for it.
    pub(super) fn judge(
        &mut self,
        revision: Revision,
        now_millis: u64,
        evidence: Evidence<'_>,
        findings: &mut Findings,
    ) {
        self.runs.retain(|_, run| {
            if revision < run.started {
                return true;
            }
            if run.enforced.is_none() {
                run.enforced = Some(run.judge_start(evidence, findings));
            }
            if run.enforced == Some(true) {
                run.judge_charges(revision, now_millis, evidence, findings);
            }
            run.exited.is_none_or(|exited| revision < exited)
        });
    }
}

impl Run {
    /// S3: permitted at its start, for all devices that it got. Whether permits were enforced then.
    fn judge_start(&self, evidence: Evidence<'_>, findings: &mut Findings) -> bool {
        let Container { node, pod, .. } = &self.container;
        let Some(version) = evidence.permits.at(node, self.started) else {
            return false;
        };
        for (claim, devices) in self.container.claims() {
            let costs = devices.iter();
            let needed_milli: i64 = costs
                .map(|device| evidence.published.gpus_milli(node, device))
                .sum();
            let permitted_as = evidence.names.charged_as(claim);
            let permission =
                version.permission(&self.container.pod_uid, permitted_as, needed_milli);
            let missing = match permission {
                Permission::NotEnforced => continue,
                Permission::Given => None,
                Permission::Missing(why) => Some(format!(
                    "a container of {pod} was started on {node} with {devices:?} of claim {claim}: {why}"
                )),
            };
            findings.check(Invariant::S3, missing);
        }
        version.enforce
    }

    /// S2: charged from its start to its end.
    fn judge_charges(
        &mut self,
        revision: Revision,
        now_millis: u64,
        evidence: Evidence<'_>,
        findings: &mut Findings,
    ) {
        let pod = &self.container.pod;
        let mut is_charged = true;
        for claim in self.container.claims().into_keys() {
            let charged_as = evidence.names.charged_as(claim);
            let uncharged = evidence.charges.first_uncharged(charged_as, self.started);
            let uncharged = uncharged.filter(|at| *at <= revision);
            let ran_on = match (uncharged, self.exited) {
                (None, _) => false,
                (Some(at), Some(exited)) => at < exited || at == self.started,
                (Some(at), None) => {
                    is_charged = false;
                    let since = *self.uncharged_at_millis.get_or_insert(now_millis);
                    at == self.started || now_millis > since + EXIT_LINE_MILLIS
                }
            };
            let wrong = uncharged.filter(|_| ran_on).map(|at| {
                format!("a container of {pod} ran with claim {claim}, which was not charged at revision {at}")
            });
            findings.check(Invariant::S2, wrong);
        }
        if is_charged {
            self.uncharged_at_millis = None;
        }
    }
}

/// S3: how two containers have the same device in their hands by different claims, or hardware that overlaps, if they have.
fn shared_hardware(one: &Container, other: &Container) -> Option<String> {
    if one.node == other.node {
        let shared = one.devices.iter().find(|(device, claim)| {
            let holder = other.devices.get(*device);
            holder.is_some_and(|holder| holder != *claim)
        });
        if let Some((device, _)) = shared {
            return Some(format!(
                "{device} of {} is used by {} and by {}",
                one.node, one.pod, other.pod
            ));
        }
    }
    let (claims, of_other) = (one.claims(), other.claims());
    let have_a_claim_in_common = claims.keys().any(|claim| of_other.contains_key(claim));
    let overlapping = one.parts.iter().find_map(|part| {
        let mut parts = other.parts.iter();
        Some((part, parts.find(|other| other.overlaps(part))?))
    });
    let (part, of_the_other) = overlapping?;
    (!have_a_claim_in_common).then(|| {
        format!(
            "{part} is used by {}, and {of_the_other} by {}",
            one.pod, other.pod
        )
    })
}
