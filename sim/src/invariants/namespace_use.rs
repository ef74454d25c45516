//! What Queues record of use, by which the namespaces of a Team take turns ([`FairnessShape`](crate::scenario::FairnessShape)).
//!
//! * A Queue says so only of a Team whose namespaces take turns, and only of a namespace in which a gang ever ran or waited.
//! * It says so as of a time that has come, by the clock of whichever replica wrote it: the latest that any may show.
//! * In the end everything that was used has decayed, and no Queue says anything any more ([`left`]).

use std::collections::BTreeSet;

use jiff::Timestamp;
use muster_api::Queue;

use super::Violation;
use crate::{api_server::ApiServer, clock::Margin, scenario::Scenario};

/// Namespaces that may have used anything.
#[derive(Debug, Default)]
pub(super) struct NamespaceUses {
    able: BTreeSet<String>,
    pub(super) margin: Margin,
}

impl NamespaceUses {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let takes_turns = |name: &str| {
            let mut teams = scenario.teams.iter();
            teams.any(|team| team.name == name && team.fairness.is_some())
        };
        let gangs = scenario.gangs.iter();
        let able = gangs.filter(|gang| takes_turns(&gang.team));
        Self {
            able: able.map(|gang| gang.namespace.clone()).collect(),
            margin: Margin::default(),
        }
    }

    /// What a Queue says now.
    pub(super) fn check(&self, queue: &Queue, now: Timestamp) -> Result<(), Violation> {
        let Some(recorded) = recorded(queue) else {
            return Ok(());
        };
        let namespace = queue.metadata.namespace.as_deref().unwrap_or_default();
        if !self.able.contains(namespace) {
            let what = format!("namespace {namespace} is said to have used {recorded:?}");
            return Err(Violation::new("S6", what));
        }
        if recorded.as_of.0 > self.margin.latest(now) {
            let what = format!("namespace {namespace} used {recorded:?}, and it is {now}");
            return Err(Violation::new("S10", what));
        }
        Ok(())
    }
}

fn recorded(queue: &Queue) -> Option<&muster_api::NamespaceUse> {
    queue.status.as_ref()?.namespace_use.as_ref()
}

/// Whether any Queue says that its namespace used anything.
pub(super) fn is_any_recorded(api: &ApiServer) -> bool {
    api.list::<Queue>().any(|queue| recorded(queue).is_some())
}

/// What is still said of use once nothing was used for long.
pub(super) fn left(api: &ApiServer) -> Option<String> {
    let mut left = api.list::<Queue>();
    let queue = left.find(|queue| recorded(queue).is_some())?;
    let namespace = queue.metadata.namespace.as_deref().unwrap_or_default();
    let used = recorded(queue);
    Some(format!("namespace {namespace} is left with {used:?}"))
}
