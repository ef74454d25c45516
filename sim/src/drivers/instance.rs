//! One instance of the driver: the machine that ships, its watch, and what it waits to have done.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::resource::v1::ResourceClaim;
use muster_api::{NodeDevices, keys};
use muster_dra_driver::prepare::{
    Answer, CallId, Claim, ClaimRef, DiskFailure, Input, Locked, Machine, Milliseconds, Read,
    StatusOutcome,
};

use super::{
    operation::{Operation, StatusWrite},
    upkeep::taint,
};
use crate::{
    api_server::{ApiServer, Event, Place, Stored},
    gpu_node::GpuNode,
    matrix::Mishap,
};

/// One running instance.
#[derive(Debug)]
pub struct Instance {
    /// Tells it from every other on the node.
    pub id: u64,
    pub(super) machine: Machine,
    pub(super) watch: Place,
    pub(super) operations: Vec<Operation>,
    /// Until when it does nothing.
    pub(super) paused_until: u64,
    /// What it publishes as tainted, once it said so.
    pub(super) tainted: Option<BTreeSet<String>>,
}

/// What an operation leaves behind outside its instance.
pub(super) enum Left {
    Nothing,
    Late(StatusWrite),
    Answer(CallId, Answer),
}

pub(super) fn current(api: &ApiServer, node: &str) -> Option<Arc<NodeDevices>> {
    api.get::<NodeDevices>("", node).cloned().map(Arc::new)
}

fn read(api: &ApiServer, node: &str, mishap: Option<Mishap>) -> Read<Arc<NodeDevices>> {
    if matches!(mishap, Some(Mishap::NotDone | Mishap::Refused)) {
        return Read::Failed("no answer".to_owned());
    }
    current(api, node).map_or(Read::Absent, Read::Found)
}

impl Instance {
    pub(super) fn tell(&mut self, now: u64, input: Input) {
        for effect in self.machine.input(Milliseconds(now), input) {
            let operation = Operation::from(effect);
            if let Operation::Taint(devices) = &operation {
                self.tainted = Some(devices.clone());
                // What is published is what was said last.
                self.operations
                    .retain(|older| !matches!(older, Operation::Taint(_)));
            }
            self.operations.push(operation);
        }
    }

    /// The next change of this node's object, and where it stands.
    pub(super) fn next_change<'a>(
        &self,
        api: &'a ApiServer,
        node: &str,
    ) -> Option<(Place, &'a Event)> {
        let mut place = self.watch;
        loop {
            let event = api.next_event(place)?;
            if event.key.name == node {
                return Some((place, event));
            }
            place = place.after();
        }
    }

    pub(super) fn watch(&mut self, now: u64, api: &ApiServer, node: &str) {
        let Some((place, event)) = self.next_change(api, node) else {
            return;
        };
        let object = event.object.as_ref().and_then(NodeDevices::of).cloned();
        self.watch = place.after();
        self.tell(now, Input::Observed(object));
    }

    pub(super) fn operate(
        &mut self,
        operation: Operation,
        now: u64,
        api: &mut ApiServer,
        node: &mut GpuNode,
        mishap: Option<Mishap>,
    ) -> Left {
        let name = node.shape.name.clone();
        match operation {
            Operation::Sight(look, gpu) => {
                let sight = node.look(&gpu);
                self.tell(now, Input::Looked(look, sight));
            }
            Operation::Lock {
                ticket,
                probe,
                read,
            } => {
                node.lock = Some(self.id);
                self.operations.push(Operation::Look {
                    ticket,
                    probe,
                    read,
                });
            }
            Operation::Look {
                ticket,
                probe,
                read: wanted,
            } => {
                let (in_use, live) = node.judge(probe.as_ref(), &wanted.sights);
                let locked = Locked {
                    disk: Ok(node.disk.clone()),
                    in_use,
                    node_devices: wanted.node_devices.then(|| read(api, &name, mishap)),
                    claim: wanted
                        .claim
                        .map(|claim| Box::new(read_claim(api, &claim, mishap))),
                    live,
                };
                self.tell(now, Input::Locked(ticket, locked));
            }
            Operation::Commit { ticket, mut writes } => {
                if mishap == Some(Mishap::Refused) && !writes.is_empty() {
                    node.lock = None;
                    let failure = DiskFailure::new("no space left on device");
                    self.operations.push(Operation::Hear(ticket, Err(failure)));
                } else if let Some(write) = writes.pop_front() {
                    node.write(write);
                    self.operations.push(Operation::Commit { ticket, writes });
                } else {
                    node.lock = None;
                    self.operations.push(Operation::Hear(ticket, Ok(())));
                }
            }
            Operation::Hear(ticket, result) => self.tell(now, Input::Committed(ticket, result)),
            Operation::ReadClaim(call, claim) => {
                let read = read_claim(api, &claim, mishap);
                self.tell(now, Input::ClaimRead(call, read));
            }
            Operation::ReadNodeDevices => {
                let read = read(api, &name, mishap);
                self.tell(now, Input::NodeDevicesRead(read));
            }
            Operation::Gather => self.tell(now, Input::Gathered(Ok(node.gather()))),
            Operation::WriteStatus(write) => {
                return self.write_status(write, now, api, &name, mishap);
            }
            Operation::Answer(call, answer) => return Left::Answer(call, answer),
            Operation::Taint(devices) => taint(api, &name, &devices),
            Operation::Make(mut making) => match making.step(node, mishap) {
                Some(input) => self.tell(now, input),
                None => self.operations.push(Operation::Make(making)),
            },
            Operation::Remove(mut removing) => match removing.step(node, mishap) {
                Some(input) => self.tell(now, input),
                None => self.operations.push(Operation::Remove(removing)),
            },
        }
        Left::Nothing
    }

    fn write_status(
        &mut self,
        write: StatusWrite,
        now: u64,
        api: &mut ApiServer,
        node: &str,
        mishap: Option<Mishap>,
    ) -> Left {
        let unknown = || StatusOutcome::Unknown("no answer".to_owned());
        let (outcome, left) = match mishap {
            Some(Mishap::NotDone) => (unknown(), Left::Nothing),
            Some(Mishap::AnswerLost) => {
                let _ = write.arrive(api, node);
                (unknown(), Left::Nothing)
            }
            Some(Mishap::DoneLate) => (unknown(), Left::Late(write)),
            Some(Mishap::Duplicated) => (write.arrive(api, node), Left::Late(write)),
            Some(Mishap::Conflict) => (StatusOutcome::Conflict, Left::Nothing),
            Some(Mishap::Refused) => {
                let cause = "admission webhook denied it".to_owned();
                (StatusOutcome::Unknown(cause), Left::Nothing)
            }
            // Crashes are their caller's to bring about.
            Some(Mishap::CrashBefore | Mishap::CrashAfter | Mishap::StaleRead) | None => {
                (write.arrive(api, node), Left::Nothing)
            }
        };
        self.tell(now, Input::StatusWritten(outcome));
        left
    }
}

pub(super) fn read_claim(api: &ApiServer, claim: &ClaimRef, mishap: Option<Mishap>) -> Read<Claim> {
    if matches!(mishap, Some(Mishap::NotDone | Mishap::Refused)) {
        return Read::Failed("no answer".to_owned());
    }
    let Some(object) = api.get::<ResourceClaim>(&claim.namespace, &claim.name) else {
        return Read::Absent;
    };
    match Claim::read(object, keys::DRIVER) {
        Ok(claim) => Read::Found(claim),
        Err(error) => Read::Failed(error.to_string()),
    }
}
