//! One node: the task that owns its driver and its kubelet.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Pod;
use muster_api::NodeDevices;
use muster_dra_driver::prepare::{ClaimRef, Input};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{
    Arguments, client::Clients, driver::FakeDriver, kubelet::FakeKubelet, registration::Registered,
    statistics::Statistics,
};

/// Something that a node is told.
#[derive(Clone, Debug)]
pub enum Message {
    /// A pod that is bound to it is as given.
    Pod(Arc<Pod>),
    /// A pod, by UID, does not exist any more.
    PodGone(String),
    /// Its NodeDevices are as given, or do not exist.
    NodeDevices(Option<Arc<NodeDevices>>),
    /// What an effect of the driver's machine came to.
    Input(Input),
    /// The claims that a pod (by UID) names, or why they could not be read.
    Claims(String, Result<Vec<ClaimRef>, String>),
    /// The slices are published with these devices tainted.
    Published(BTreeSet<String>),
}

/// A node that is played.
#[derive(Debug)]
pub struct FakeNode {
    name: String,
    /// Whether the driver is told what hardware there is. Without that it does nothing, and is asked for nothing: where Muster is
    /// not installed no pod has claims of its class.
    has_driver: bool,
    driver: FakeDriver,
    kubelet: FakeKubelet,
    sender: UnboundedSender<Message>,
    messages: UnboundedReceiver<Message>,
}

impl FakeNode {
    /// A node that has joined and has not been told anything.
    pub fn new(
        registered: Registered,
        arguments: &Arguments,
        clients: &Clients,
        statistics: Arc<Statistics>,
    ) -> Result<Self> {
        let (sender, messages) = unbounded_channel();
        let name = registered.shape.name.clone();
        Ok(Self {
            kubelet: FakeKubelet::new(
                clients.kubelet(&name)?,
                sender.clone(),
                Duration::from_secs(arguments.prepare_retry_seconds),
                statistics,
            ),
            driver: FakeDriver::new(
                registered.shape,
                registered.uid,
                clients.driver(&name)?,
                sender.clone(),
            ),
            has_driver: !arguments.without_driver,
            name,
            sender,
            messages,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How to reach it.
    pub fn inbox(&self) -> UnboundedSender<Message> {
        self.sender.clone()
    }

    /// Plays the node for ever.
    pub async fn run(mut self) -> Result<()> {
        if self.has_driver {
            let answers = self.driver.start();
            self.kubelet.answered(answers, &mut self.driver);
        }
        loop {
            let due = self.driver.wake_at().filter(|_| self.has_driver);
            let due = due.into_iter();
            let due = due.chain(self.kubelet.wake_at()).min();
            let message = match due {
                Some(at) => tokio::time::timeout_at(at.into(), self.messages.recv()).await,
                None => Ok(self.messages.recv().await),
            };
            match message {
                Ok(Some(message)) => self.take(message),
                Ok(None) => bail!("nobody feeds node {} any more", self.name),
                Err(_) => {
                    if self.has_driver {
                        let answers = self.driver.feed(Input::Tick);
                        self.kubelet.answered(answers, &mut self.driver);
                    }
                    self.kubelet.tick(Instant::now(), &mut self.driver);
                }
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Pod(pod) => self.kubelet.observed(&pod, &mut self.driver),
            Message::PodGone(uid) => self.kubelet.gone(&uid, &mut self.driver),
            Message::NodeDevices(object) => {
                let answers = self.driver.feed(Input::Observed(object));
                self.kubelet.answered(answers, &mut self.driver);
            }
            Message::Input(input) => {
                let answers = self.driver.feed(input);
                self.kubelet.answered(answers, &mut self.driver);
            }
            Message::Claims(pod, claims) => {
                self.kubelet.claims_found(&pod, claims, &mut self.driver);
            }
            Message::Published(held) => self.driver.published(&held),
        }
    }
}
