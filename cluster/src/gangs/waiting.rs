//! Why a gang cannot be offered to the engine yet: the first cause, in the order in which a user
//! would clear them.

use std::sync::Arc;

use muster_api::{Reason, TopologyLevel, TopologyRequest, keys};

use super::{
    forming::{Forming, NamespaceTeam, Size},
    is_terminal, name,
    tiers::ResolvedTier,
};
use crate::{
    formed::PendingReason,
    pod::{self, ObservedPod},
    text::{listed, quoted},
    unsupported_field::UnsupportedField,
};

/// Name of the innermost level of every Topology.
const NODE_LEVEL: &str = "node";

/// Whether a Topology could have all levels that are named. What else a Job says does not become part of its Gang, which has to stay small.
pub(super) fn may_be_known(request: &TopologyRequest) -> bool {
    named(request).all(|(_, level)| level.chars().count() <= TopologyLevel::MOST_NAME_CHARACTERS)
}

/// The levels that are named, each with the annotation that does.
fn named(request: &TopologyRequest) -> impl Iterator<Item = (&'static str, &str)> {
    let required = (keys::TOPOLOGY_REQUIRED, request.required.as_deref());
    let preferred = (keys::TOPOLOGY_PREFERRED, request.preferred.as_deref());
    let levels = [required, preferred].into_iter();
    levels.filter_map(|(key, level)| Some((key, level?)))
}

impl Forming<'_, '_> {
    pub(super) fn wait(
        &self,
        members: &[&Arc<ObservedPod>],
        size: &Size,
        tier: &Result<ResolvedTier, PendingReason>,
        declared: Option<&PendingReason>,
    ) -> Option<PendingReason> {
        self.suspended()
            .or_else(|| self.no_team())
            .or_else(|| size.wait.clone())
            .or_else(|| tier.as_ref().err().cloned())
            .or_else(|| self.missing_pods(members, size.pods))
            .or_else(|| foreign_gate(members))
            .or_else(|| declared.cloned())
            .or_else(|| {
                let mut requests = members.iter().filter_map(|pod| self.request(pod));
                requests.find_map(|request| request.as_ref().err()).cloned()
            })
    }

    fn suspended(&self) -> Option<PendingReason> {
        self.gang
            .filter(|gang| gang.spec.suspend)
            .map(|_| PendingReason {
                reason: Reason::Suspended,
                details: "spec.suspend of the Gang is true; it queues again once that is false"
                    .to_owned(),
            })
    }

    fn no_team(&self) -> Option<PendingReason> {
        let namespace = &self.key.namespace;
        let details = match &self.team {
            NamespaceTeam::Is(_) => return None,
            NamespaceTeam::Unnamed => format!(
                "namespace {namespace} belongs to no Team; an administrator puts it into one by its label {}",
                keys::TEAM
            ),
            NamespaceTeam::Unknown(team) => {
                format!("namespace {namespace} belongs to Team {team}, which does not exist")
            }
        };
        Some(PendingReason {
            reason: Reason::NoTeam,
            details,
        })
    }

    fn missing_pods(&self, members: &[&Arc<ObservedPod>], size: u32) -> Option<PendingReason> {
        let wanted = usize::try_from(size).unwrap_or(usize::MAX);
        // Of an admitted gang, members that ended are there.
        let ended = self
            .pods
            .iter()
            .filter(|pod| is_terminal(pod) && self.place(pod).is_some())
            .count();
        let there = members.len() + ended;
        (there < wanted).then(|| {
            let hint = if self.is_of_stateful_set() {
                "; their StatefulSet makes the next one when the last is ready, unless its podManagementPolicy is Parallel"
            } else {
                ""
            };
            PendingReason {
                reason: Reason::MissingPods,
                details: format!("{there} of {wanted} pods exist{hint}"),
            }
        })
    }

    fn is_of_stateful_set(&self) -> bool {
        self.common_owner().is_some_and(|owner| {
            owner.kind == "StatefulSet" && owner.api_version.starts_with("apps/")
        })
    }

    /// Of the levels that the gang names, whoever does for it, the first that no Topology has.
    pub(super) fn unknown_level(&self, request: &TopologyRequest) -> Option<PendingReason> {
        let (key, level) = named(request)
            .find(|(_, level)| *level != NODE_LEVEL && !self.levels.contains(*level))?;
        let known = self.levels.iter().map(String::as_str);
        let cause = format!(
            "no Topology has a level {}; there are {}",
            quoted(level),
            listed(known.chain([NODE_LEVEL]))
        );
        let field = format!("metadata.annotations[{key}]");
        Some(UnsupportedField::new(field, cause).wait("pods"))
    }
}

impl Forming<'_, '_> {
    /// Whether a rule of a member is still being evaluated. What is admitted is not planned again.
    pub(super) fn is_settling(&self, members: &[&Arc<ObservedPod>]) -> bool {
        self.places.is_none()
            && members.iter().any(|pod| {
                let request = self.request(pod).and_then(|request| request.as_ref().ok());
                request.is_some_and(|request| !(self.is_settled)(request))
            })
    }
}

/// The reason while rules are being evaluated. It lasts for a second or two.
pub(super) fn settling() -> PendingReason {
    PendingReason {
        reason: Reason::WaitingForPlacement,
        details: "its rules about nodes and devices are being compared with the nodes".to_owned(),
    }
}

fn foreign_gate(members: &[&Arc<ObservedPod>]) -> Option<PendingReason> {
    members.iter().find_map(|pod| {
        let gate = pod::foreign_gate(pod)?;
        Some(PendingReason {
            reason: Reason::ForeignGate,
            details: format!(
                "pod {} carries the scheduling gate {}; whoever put it there must take it first",
                name(pod),
                gate
            ),
        })
    })
}
