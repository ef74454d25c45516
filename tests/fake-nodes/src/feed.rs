//! Two watches for all nodes, one where they have no driver: what they show goes to the node that it concerns.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use muster_api::NodeDevices;
use tokio::sync::mpsc::UnboundedSender;

use crate::node::Message;

/// How to reach each node.
pub type Inboxes = BTreeMap<String, UnboundedSender<Message>>;

/// Feeds the nodes for ever. Those without a driver have nothing to do with `NodeDevices`, which may not even be defined.
pub async fn feed(client: Client, nodes: Inboxes, has_driver: bool) -> Result<()> {
    let nodes = Arc::new(nodes);
    if !has_driver {
        return pods(client, nodes).await;
    }
    tokio::try_join!(
        pods(client.clone(), Arc::clone(&nodes)),
        node_devices(client, nodes)
    )?;
    Ok(())
}

async fn pods(client: Client, nodes: Arc<Inboxes>) -> Result<()> {
    let config = watcher::Config::default().fields("spec.nodeName!=");
    let mut events = watcher(Api::<Pod>::all(client), config)
        .default_backoff()
        .boxed();
    // Pods that a relist lacks were deleted meanwhile.
    let mut known: BTreeMap<String, (String, Arc<Pod>)> = BTreeMap::new();
    let mut listed: Option<BTreeSet<String>> = None;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = Some(BTreeSet::new()),
            Ok(Event::InitApply(pod)) => {
                let pod = Arc::new(pod);
                if let (Some(listed), Some(uid)) = (&mut listed, pod.uid()) {
                    listed.insert(uid);
                }
                applied(&nodes, &mut known, pod);
            }
            Ok(Event::Apply(pod)) => applied(&nodes, &mut known, Arc::new(pod)),
            Ok(Event::Delete(pod)) => {
                if let Some(uid) = pod.uid() {
                    gone(&nodes, &mut known, &uid);
                }
            }
            Ok(Event::InitDone) => {
                let listed = listed.take().unwrap_or_default();
                let lacking: Vec<String> = known
                    .keys()
                    .filter(|uid| !listed.contains(*uid))
                    .cloned()
                    .collect();
                for uid in lacking {
                    gone(&nodes, &mut known, &uid);
                }
            }
            Err(error) => tracing::warn!(%error, "watch of pods"),
        }
    }
    Err(anyhow::anyhow!("the watch of pods ended"))
}

fn applied(nodes: &Inboxes, known: &mut BTreeMap<String, (String, Arc<Pod>)>, pod: Arc<Pod>) {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let (Some(node), Some(uid)) = (node, pod.uid()) else {
        return;
    };
    let Some(inbox) = nodes.get(&node) else {
        return;
    };
    known.insert(uid, (node, Arc::clone(&pod)));
    // A node whose task has ended ends the process.
    let _ = inbox.send(Message::Pod(pod));
}

fn gone(nodes: &Inboxes, known: &mut BTreeMap<String, (String, Arc<Pod>)>, uid: &str) {
    if let Some((node, _)) = known.remove(uid)
        && let Some(inbox) = nodes.get(&node)
    {
        let _ = inbox.send(Message::PodGone(uid.to_owned()));
    }
}

async fn node_devices(client: Client, nodes: Arc<Inboxes>) -> Result<()> {
    let mut events = watcher(Api::<NodeDevices>::all(client), watcher::Config::default())
        .default_backoff()
        .boxed();
    let mut lacking: Option<BTreeSet<String>> = None;
    while let Some(event) = events.next().await {
        let (name, object) = match event {
            Ok(Event::Init) => {
                lacking = Some(nodes.keys().cloned().collect());
                continue;
            }
            Ok(Event::InitApply(object)) => {
                if let Some(lacking) = &mut lacking {
                    lacking.remove(&object.name_any());
                }
                (object.name_any(), Some(Arc::new(object)))
            }
            Ok(Event::Apply(object)) => (object.name_any(), Some(Arc::new(object))),
            Ok(Event::Delete(object)) => (object.name_any(), None),
            Ok(Event::InitDone) => {
                for name in lacking.take().unwrap_or_default() {
                    let inbox = nodes.get(&name).context("a node that is not known")?;
                    let _ = inbox.send(Message::NodeDevices(None));
                }
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "watch of NodeDevices");
                continue;
            }
        };
        if let Some(inbox) = nodes.get(&name) {
            let _ = inbox.send(Message::NodeDevices(object));
        }
    }
    Err(anyhow::anyhow!("the watch of NodeDevices ended"))
}
