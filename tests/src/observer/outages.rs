//! S18: an outage of Muster or of the API server ends nothing that runs.
//!
//! A scenario says when an outage begins and when it is over. Of the containers that run when it begins, and whose pods nobody has told to end, each may
//! end by itself meanwhile, and well: with exit code 0, as a rank that has done its work. What is told to end leaves with another one, whoever told it,
//! and so does what was killed.

use std::collections::BTreeMap;

use super::{
    findings::{Findings, Invariant::S18},
    record::Container,
};

/// The outage that is on, if one is.
#[derive(Debug, Default)]
pub(super) struct Outages {
    /// What ran when it began and has not ended since: container id, and the pod with its node for people.
    running: BTreeMap<String, String>,
}

impl Outages {
    /// An outage begins while these run, each with its id.
    pub(super) fn begin<'a>(&mut self, running: impl Iterator<Item = (&'a str, &'a Container)>) {
        let named = running.map(|(id, container)| {
            let name = format!("{} on {}", container.pod, container.node);
            (id.to_owned(), name)
        });
        self.running = named.collect();
    }

    /// A container has exited; the runtime knows its exit code. Before an outage and after it that is nothing to S18.
    pub(super) fn exit(&mut self, id: &str, exit_code: Option<i64>, findings: &mut Findings) {
        let Some(name) = self.running.remove(id) else {
            return;
        };
        let wrong = (exit_code != Some(0)).then(|| {
            format!(
                "a container of {name} ended during an outage, with exit code {}",
                exit_code.map_or_else(|| "unknown".to_owned(), |code| code.to_string())
            )
        });
        findings.check(S18, wrong);
    }

    /// It is over: what has run all the time is well.
    pub(super) fn end(&mut self, findings: &mut Findings) {
        findings.checked(S18, std::mem::take(&mut self.running).len());
    }
}
