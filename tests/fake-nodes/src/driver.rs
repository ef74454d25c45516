//! The driver of one node: the machine that ships, on a disk in memory.
//!
//! What is not played: several instances, a disk that fails, NVML. The simulator is for those. The lock is free whenever
//! the machine asks for it, because there is one instance; what is read over the network under it is read for real.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use kube::Client;
use muster_dra_driver::{
    kubernetes::Kubernetes,
    prepare::{
        Answer, CallId, ClaimRef, Config, Effect, Input, Locked, Machine, Milliseconds,
        SliceFailure,
    },
};
use muster_sim::gpu_node::{Container, GpuNode};
use tokio::sync::mpsc::UnboundedSender;

use crate::{hardware::Shape, node::Message, registration};

/// When slices that could not be published are published again.
const PUBLISH_AGAIN: Duration = Duration::from_secs(2);

/// The driver of one node.
#[derive(Debug)]
pub struct FakeDriver {
    machine: Machine,
    hardware: GpuNode,
    shape: Shape,
    node_uid: String,
    kubernetes: Kubernetes,
    client: ClientHandle,
    inbox: UnboundedSender<Message>,
    began: Instant,
    next_call: u64,
    held: BTreeSet<String>,
    publishing: bool,
}

/// A client, which shows nothing of itself.
struct ClientHandle(Client);

impl std::fmt::Debug for ClientHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Client")
    }
}

/// A call that the driver has answered.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Which.
    pub call: CallId,
    /// How.
    pub answer: Answer,
}

impl FakeDriver {
    /// The driver of a node that has just booted.
    pub fn new(
        shape: Shape,
        node_uid: String,
        client: Client,
        inbox: UnboundedSender<Message>,
    ) -> Self {
        let hardware = shape.gpu_node();
        let config = Config::new(
            "instance-1".to_owned(),
            shape.name.clone(),
            hardware.boot_id.clone(),
        );
        Self {
            machine: Machine::new(config),
            kubernetes: Kubernetes::new(client.clone(), shape.name.clone()),
            client: ClientHandle(client),
            hardware,
            shape,
            node_uid,
            inbox,
            began: Instant::now(),
            next_call: 0,
            held: BTreeSet::new(),
            publishing: false,
        }
    }

    /// The first word to the machine: what hardware there is.
    pub fn start(&mut self) -> Vec<Answered> {
        self.feed(Input::Inventory(self.hardware.inventory()))
    }

    /// When the machine wants to be told the time.
    pub fn wake_at(&self) -> Option<Instant> {
        let at = self.machine.wake_at()?;
        Some(self.began + Duration::from_millis(at.0))
    }

    /// Calls the driver as the kubelet does; the answer comes from this or a later [`FakeDriver::feed`].
    pub fn call(&mut self, claim: ClaimRef, prepare: bool) -> (CallId, Vec<Answered>) {
        self.next_call += 1;
        let call = CallId(self.next_call);
        let input = if prepare {
            Input::Prepare(call, claim)
        } else {
            Input::Unprepare(call, claim)
        };
        (call, self.feed(input))
    }

    /// A pod's containers live from now on.
    pub fn start_containers(&mut self, pod: &str, claims: &[ClaimRef]) {
        // By UID, so that a claim that is named twice counts once.
        let records: BTreeMap<&str, _> = claims
            .iter()
            .filter_map(|claim| Some((&*claim.uid, self.hardware.disk.records.get(&claim.uid)?)))
            .collect();
        let units = records.iter().flat_map(|(uid, record)| {
            let units = record.units().cloned();
            units.map(|unit| ((*uid).to_owned(), unit))
        });
        let container = Container {
            units: units.collect(),
            started_at: 0,
            listed: true,
        };
        self.hardware.containers.insert(pod.to_owned(), container);
    }

    /// A pod's containers are dead.
    pub fn end_containers(&mut self, pod: &str) {
        self.hardware.containers.remove(pod);
    }

    /// Tells the machine something and carries out what it asks for.
    pub fn feed(&mut self, input: Input) -> Vec<Answered> {
        let mut inputs = VecDeque::from([input]);
        let mut answers = Vec::new();
        while let Some(input) = inputs.pop_front() {
            let elapsed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
            for effect in self.machine.input(Milliseconds(elapsed), input) {
                self.perform(effect, &mut inputs, &mut answers);
            }
        }
        answers
    }

    /// The slices were published, or could not be.
    pub fn published(&mut self, held: &BTreeSet<String>) {
        self.publishing = false;
        if *held != self.held {
            self.publish(Duration::ZERO);
        }
    }

    fn perform(
        &mut self,
        effect: Effect,
        inputs: &mut VecDeque<Input>,
        answers: &mut Vec<Answered>,
    ) {
        let inbox = self.inbox.clone();
        let kubernetes = self.kubernetes.clone();
        match effect {
            Effect::Look { look, gpu } => {
                let sight = self.hardware.look(&gpu);
                inputs.push_back(Input::Looked(look, sight));
            }
            Effect::Lock {
                ticket,
                probe,
                read_node_devices,
                read_claim,
                sights,
            } => {
                let (in_use, live) = self.hardware.judge(probe.as_ref(), &sights);
                let mut locked = Locked {
                    disk: Ok(self.hardware.disk.clone()),
                    in_use,
                    node_devices: None,
                    claim: None,
                    live,
                };
                if read_node_devices || read_claim.is_some() {
                    tokio::spawn(async move {
                        if read_node_devices {
                            locked.node_devices = Some(kubernetes.node_devices().await);
                        }
                        if let Some(claim) = read_claim {
                            locked.claim = Some(Box::new(kubernetes.claim_now(&claim).await));
                        }
                        let _ = inbox.send(Message::Input(Input::Locked(ticket, locked)));
                    });
                } else {
                    inputs.push_back(Input::Locked(ticket, locked));
                }
            }
            Effect::Commit { ticket, writes } => {
                for write in writes {
                    self.hardware.write(write);
                }
                inputs.push_back(Input::Committed(ticket, Ok(())));
            }
            Effect::ReadClaim(call, claim) => {
                tokio::spawn(async move {
                    let read = kubernetes.claim(&claim).await;
                    let _ = inbox.send(Message::Input(Input::ClaimRead(call, read)));
                });
            }
            Effect::ReadNodeDevices => {
                tokio::spawn(async move {
                    let read = kubernetes.node_devices().await;
                    let _ = inbox.send(Message::Input(Input::NodeDevicesRead(read)));
                });
            }
            Effect::Gather => inputs.push_back(Input::Gathered(Ok(self.hardware.gather()))),
            Effect::WriteStatus {
                uid,
                resource_version,
                status,
            } => {
                tokio::spawn(async move {
                    let outcome = kubernetes
                        .write_status(uid, resource_version, &status)
                        .await;
                    let _ = inbox.send(Message::Input(Input::StatusWritten(outcome)));
                });
            }
            // Its GPUs cannot be cut, and it publishes no slices.
            Effect::MakeSlices { call, .. } => {
                let failure = SliceFailure {
                    reason: None,
                    foreign: None,
                    message: "the GPUs of this node cannot be cut".to_owned(),
                };
                inputs.push_back(Input::SlicesMade(call, Err(failure)));
            }
            Effect::RemoveSlices { removal, .. } => {
                inputs.push_back(Input::SlicesRemoved(removal, Ok(())));
            }
            Effect::Answer(call, answer) => answers.push(Answered { call, answer }),
            Effect::TaintHeld(devices) => {
                self.held = devices;
                if !self.publishing {
                    self.publish(Duration::ZERO);
                }
            }
        }
    }

    /// At most one publication is under way; what changed meanwhile is published after it.
    fn publish(&mut self, after: Duration) {
        self.publishing = true;
        let (client, shape, uid) = (
            self.client.0.clone(),
            self.shape.clone(),
            self.node_uid.clone(),
        );
        let (held, inbox) = (self.held.clone(), self.inbox.clone());
        tokio::spawn(async move {
            let mut wait = after;
            loop {
                tokio::time::sleep(wait).await;
                match registration::publish(&client, &shape, &uid, &held).await {
                    Ok(()) => break,
                    Err(error) => tracing::warn!(node = shape.name, %error, "publishing slices"),
                }
                wait = PUBLISH_AGAIN;
            }
            let _ = inbox.send(Message::Published(held));
        });
    }
}
