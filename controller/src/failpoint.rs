//! Places where a test makes the process die. Compiled in only with the feature `failpoints`, and inert even
//! then unless the environment variable `MUSTER_FAILPOINT` names one.
//!
//! * `after-ledger-commit`: intents are in the Ledger, nothing else is written.
//! * `after-first-permit`: a permit is written, no pod is patched.
//! * `after-gang-status-before-ungate`: everything of an attempt is written, no pod of it is ungated.
//! * `after-first-ungate`: one pod is ungated, others may be.
//! * `before-second-ungate`: exactly one pod is ungated.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use muster_cluster::protocol::Write;

/// Writes are sent side by side; a second one waits this long before it dies, so that the first is answered.
const FIRST_IS_ANSWERED: Duration = Duration::from_millis(500);

/// Dies if the named failpoint lies right before this write, which is not sent.
pub(crate) fn before(write: &Write) {
    static UNGATED_BEFORE: AtomicBool = AtomicBool::new(false);
    if is_ungating(write) {
        die_at("after-gang-status-before-ungate");
        if UNGATED_BEFORE.swap(true, Ordering::Relaxed) && is_named("before-second-ungate") {
            thread::sleep(FIRST_IS_ANSWERED);
            die_at("before-second-ungate");
        }
    }
}

/// Dies if the named failpoint lies right after this write, which was carried out.
pub(crate) fn after(write: &Write) {
    match write {
        Write::ReplaceLedger { spec, .. } if !spec.intents.is_empty() => {
            die_at("after-ledger-commit");
        }
        Write::CreateNodeDevices { spec, .. } | Write::ReplaceNodeDevices { spec, .. }
            if spec.permits.iter().any(|permit| !permit.withdrawn) =>
        {
            die_at("after-first-permit");
        }
        write if is_ungating(write) => die_at("after-first-ungate"),
        _ => {}
    }
}

/// A stamp touches annotations only.
fn is_ungating(write: &Write) -> bool {
    let Write::PatchPod { patch, .. } = write else {
        return false;
    };
    let operations = patch.as_array().map(Vec::as_slice).unwrap_or_default();
    operations.iter().any(|operation| {
        let path = operation["path"].as_str().unwrap_or_default();
        operation["op"] != "test" && path.starts_with("/spec/schedulingGates")
    })
}

fn die_at(failpoint: &str) {
    if is_named(failpoint) {
        tracing::error!(failpoint, "dying on purpose");
        std::process::abort();
    }
}

fn is_named(failpoint: &str) -> bool {
    std::env::var("MUSTER_FAILPOINT").as_deref() == Ok(failpoint)
}
