//! Places where a test makes the process die. Compiled in only with the feature `failpoints`, and inert even
//! then unless the environment variable `MUSTER_FAILPOINT` names one. A name that is none is refused at the start: a test
//! that waits for a death that never comes should not have to find out why.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use muster_api::{GangPhase, IntentKind};
use muster_protocol::ApiRequest;
use serde_json::Value;

/// Writes are sent side by side; a second one waits this long before it dies, so that the first is answered.
const FIRST_IS_ANSWERED: Duration = Duration::from_millis(500);

/// The failpoint that this process dies at.
static ARMED: OnceLock<Failpoint> = OnceLock::new();

/// A place to die at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failpoint {
    /// Intents are in the Ledger, nothing else is written.
    AfterLedgerCommit,
    /// A permit is written, no pod is patched.
    AfterFirstPermit,
    /// Everything of an attempt is written, no pod of it is ungated.
    AfterGangStatusBeforeUngate,
    /// One pod is ungated, others may be.
    AfterFirstUngate,
    /// Exactly one pod is ungated.
    BeforeSecondUngate,
    /// An Evict is in the Ledger, nothing else of it is written.
    AfterEvictCommit,
    /// The Gang of an attempt that is evicted is in the next one, its pods are as they were.
    AfterGangEvicted,
    /// A Job is suspended for an eviction.
    AfterJobSuspended,
    /// Its pods are gone, and it was not resumed.
    BeforeJobResumed,
}

impl Failpoint {
    const ALL: [(&str, Self); 9] = [
        ("after-ledger-commit", Self::AfterLedgerCommit),
        ("after-first-permit", Self::AfterFirstPermit),
        (
            "after-gang-status-before-ungate",
            Self::AfterGangStatusBeforeUngate,
        ),
        ("after-first-ungate", Self::AfterFirstUngate),
        ("before-second-ungate", Self::BeforeSecondUngate),
        ("after-evict-commit", Self::AfterEvictCommit),
        ("after-gang-evicted", Self::AfterGangEvicted),
        ("after-job-suspended", Self::AfterJobSuspended),
        ("before-job-resumed", Self::BeforeJobResumed),
    ];

    fn named(name: &str) -> anyhow::Result<Self> {
        let known = Self::ALL.iter().find(|(known, _)| *known == name);
        known.map(|(_, failpoint)| *failpoint).with_context(|| {
            let names = Self::ALL.map(|(name, _)| name).join(", ");
            format!("MUSTER_FAILPOINT {name} is none of {names}")
        })
    }

    fn is_armed(self) -> bool {
        ARMED.get() == Some(&self)
    }

    fn die_here(self) {
        if self.is_armed() {
            tracing::error!(failpoint = ?self, "dying on purpose");
            std::process::abort();
        }
    }
}

/// Arms the failpoint that the environment names, if it does.
pub(crate) fn arm() -> anyhow::Result<()> {
    let name = std::env::var("MUSTER_FAILPOINT").unwrap_or_default();
    if !name.is_empty() {
        let failpoint = Failpoint::named(&name)?;
        ARMED.get_or_init(|| failpoint);
    }
    Ok(())
}

/// Dies if the named failpoint lies right before this write, which is not sent.
pub(crate) fn before(write: &ApiRequest) {
    static UNGATED_BEFORE: AtomicBool = AtomicBool::new(false);
    if suspends(write) == Some(false) {
        Failpoint::BeforeJobResumed.die_here();
    }
    if is_ungating(write) {
        Failpoint::AfterGangStatusBeforeUngate.die_here();
        if UNGATED_BEFORE.swap(true, Ordering::Relaxed) && Failpoint::BeforeSecondUngate.is_armed()
        {
            thread::sleep(FIRST_IS_ANSWERED);
            Failpoint::BeforeSecondUngate.die_here();
        }
    }
}

/// Dies if the named failpoint lies right after this write, which was carried out.
pub(crate) fn after(write: &ApiRequest) {
    match write {
        ApiRequest::ReplaceLedger { spec, .. } if !spec.intents.is_empty() => {
            Failpoint::AfterLedgerCommit.die_here();
            let mut kinds = spec.intents.iter().map(|intent| intent.kind);
            if kinds.any(|kind| kind == IntentKind::Evict) {
                Failpoint::AfterEvictCommit.die_here();
            }
        }
        ApiRequest::ReplaceGangStatus { status, .. } if status.phase == GangPhase::Evicting => {
            Failpoint::AfterGangEvicted.die_here();
        }
        write if suspends(write) == Some(true) => Failpoint::AfterJobSuspended.die_here(),
        ApiRequest::CreateNodeDevices { spec, .. }
        | ApiRequest::ReplaceNodeDevices { spec, .. }
            if spec.permits.iter().any(|permit| !permit.withdrawn) =>
        {
            Failpoint::AfterFirstPermit.die_here();
        }
        write if is_ungating(write) => Failpoint::AfterFirstUngate.die_here(),
        _ => {}
    }
}

/// A stamp touches annotations only.
fn is_ungating(write: &ApiRequest) -> bool {
    let ApiRequest::PatchPod { patch, .. } = write else {
        return false;
    };
    change_of(patch, "/spec/schedulingGates").is_some()
}

/// Whether a Job is suspended (true) or resumed by the write; `None`: neither.
fn suspends(write: &ApiRequest) -> Option<bool> {
    let ApiRequest::PatchJob { patch, .. } = write else {
        return None;
    };
    change_of(patch, "/spec/suspend")?["value"].as_bool()
}

/// The operation of a JSON patch that changes what is below a path.
fn change_of<'a>(patch: &'a Value, below: &str) -> Option<&'a Value> {
    let operations = patch.as_array().map(Vec::as_slice).unwrap_or_default();
    operations.iter().find(|operation| {
        let path = operation["path"].as_str().unwrap_or_default();
        operation["op"] != "test" && path.starts_with(below)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_failpoint_is_refused_with_those_that_are() {
        for (name, failpoint) in Failpoint::ALL {
            assert_eq!(Failpoint::named(name).unwrap(), failpoint);
        }
        let error = Failpoint::named("after-first-unagte").unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("after-first-ungate, before-second-ungate"),
            "{message}"
        );
    }
}
