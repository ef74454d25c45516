//! How this instance sees `NodeDevices`, and what comes back from the outside.

use std::sync::Arc;

use muster_api::NodeDevices;

use super::{
    claim::{Claim, ClaimRef},
    disk::Record,
    effect::{Answer, CallId, Read, Refusal, StatusOutcome},
    looks::Seen,
    machine::{Machine, Stage},
    task::{Rebuild, Task},
};

/// `NodeDevices` as this instance last saw it.
#[derive(Clone, Debug)]
pub(super) enum View {
    Unknown,
    Absent,
    Present(Arc<NodeDevices>),
}

/// How an uncached read compares with what was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    Current,
    /// Overtaken by the watch, or the API server was restored from a backup.
    Older,
}

impl View {
    pub(super) fn object(&self) -> Option<&NodeDevices> {
        match self {
            Self::Present(object) => Some(object),
            Self::Unknown | Self::Absent => None,
        }
    }

    pub(super) fn uid(&self) -> Option<&str> {
        self.object()?.metadata.uid.as_deref()
    }

    pub(super) fn generation(&self) -> i64 {
        self.object()
            .and_then(|object| object.metadata.generation)
            .unwrap_or_default()
    }
}

impl Machine {
    /// The watch may lag behind an uncached read: an older generation of the same object is no news.
    pub(super) fn observed(&mut self, object: Option<Arc<NodeDevices>>) {
        let view = object.map_or(View::Absent, View::Present);
        if self.is_older(&view) {
            return;
        }
        let unconfirmed = view.uid() != self.view.uid() || matches!(view, View::Absent);
        self.view = view;
        self.request_acknowledgement(unconfirmed);
        self.wake_waiting();
    }

    fn is_older(&self, view: &View) -> bool {
        view.uid().is_some()
            && view.uid() == self.view.uid()
            && view.generation() < self.view.generation()
    }

    /// Takes what an uncached read brought.
    pub(super) fn adopt(&mut self, read: Read<Arc<NodeDevices>>) -> Result<Age, String> {
        let view = match read {
            Read::Found(object) => View::Present(object),
            Read::Absent => View::Absent,
            Read::Failed(cause) => return Err(cause),
        };
        self.read_at = Some(self.now());
        if self.is_older(&view) {
            return Ok(Age::Older);
        }
        self.view = view;
        Ok(Age::Current)
    }

    pub(super) fn node_devices_read(&mut self, read: Read<Arc<NodeDevices>>) {
        self.reading = false;
        match self.adopt(read) {
            Ok(_) => {
                self.request_acknowledgement(false);
                self.wake_waiting();
            }
            Err(_) => self.read_at = Some(self.now()),
        }
    }

    pub(super) fn claim_read(&mut self, call: CallId, read: Read<Claim>) {
        let Some(waiting) = self.calls.get_mut(&call) else {
            return;
        };
        let refusal = |message: String| {
            Stage::Leave(Answer::Refused(Refusal {
                reason: None,
                is_overlap: false,
                message,
            }))
        };
        let named = &waiting.claim;
        waiting.stage = match read {
            Read::Failed(cause) => refusal(format!("claim {named} could not be read: {cause}")),
            Read::Absent => refusal(format!("claim {named} does not exist")),
            Read::Found(claim) => match unusable(&claim, named, &self.config.node) {
                Some(why) => refusal(why),
                None if claim.devices.iter().flatten().next().is_none() => {
                    Stage::Leave(Answer::Prepared(Vec::new()))
                }
                None => {
                    waiting.found = Some(claim.clone());
                    // What it will want to know in its turn is asked before.
                    let gpus = self.gpus_of(&claim);
                    self.look(Task::Prepare(call), gpus, Seen::default());
                    return;
                }
            },
        };
        self.queue.prepares.push_back(call);
    }

    pub(super) fn gathered(&mut self, found: Result<Vec<Record>, String>) {
        let Some(name) = self.gathering.take() else {
            return;
        };
        match found {
            Ok(found) => self.queue.rebuild = Some(Rebuild { name, found }),
            Err(_) => self.retry_later(),
        }
    }

    pub(super) fn status_written(&mut self, outcome: StatusOutcome) {
        self.writing_status = false;
        match outcome {
            StatusOutcome::Written(object) => {
                let view = View::Present(object);
                if view.uid() == self.view.uid() && !self.is_older(&view) {
                    self.view = view;
                }
                self.request_acknowledgement(false);
            }
            StatusOutcome::Conflict => self.request_acknowledgement(true),
            StatusOutcome::Unknown(_) => self.request_later(),
        }
    }
}

/// Why the claim that was read cannot be prepared here, whatever is permitted.
fn unusable(claim: &Claim, named: &ClaimRef, node: &str) -> Option<String> {
    if claim.reference.uid != named.uid {
        return Some(format!(
            "claim {named} was replaced by another of that name, UID {}",
            claim.reference.uid
        ));
    }
    let Some(devices) = &claim.devices else {
        return Some(format!("claim {named} is not allocated"));
    };
    // A device of that name may be here, too, and is another one.
    let elsewhere = devices.iter().find(|device| device.pool != node)?;
    Some(format!(
        "claim {named} was allocated device {} of pool {}, and this is node {node}",
        elsewhere.device, elsewhere.pool
    ))
}
