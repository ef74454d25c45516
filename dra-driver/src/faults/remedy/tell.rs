//! Tells people what was done about a fault, by an Event on the Node and in the log.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use muster_api::Reason;
use muster_cluster::text::truncate;
use muster_serve::event::Told;
use tokio::sync::watch;

use crate::{inventory::KnownGpus, kubernetes::Kubernetes};

/// What Events name as their reporter.
const REPORTER: &str = "muster.dev/dra-driver";
/// Longest note; the API takes 1,024 bytes. The log has all of it.
const NOTE_BYTES: usize = 1_024;

/// Who tells. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Teller {
    /// The API server.
    pub kubernetes: Kubernetes,
    /// The GPUs, for their names.
    pub gpus: watch::Receiver<Option<KnownGpus>>,
}

impl Teller {
    /// Something was done.
    pub async fn tell(&self, uuid: &str, reason: Reason, note: String) {
        tracing::info!(gpu = uuid, %reason, note);
        self.event(uuid, reason, &note, false).await;
    }

    /// Something could not be done, or came out badly.
    pub async fn warn(&self, uuid: &str, reason: Reason, note: String) {
        tracing::warn!(gpu = uuid, %reason, note);
        self.event(uuid, reason, &note, true).await;
    }

    /// It is told once: what is not delivered is in the log.
    async fn event(&self, uuid: &str, reason: Reason, note: &str, is_warning: bool) {
        let device = {
            let known = self.gpus.borrow();
            let mut gpus = known.iter().flat_map(|known| &known.gpus);
            let found = gpus.find(|known| known.gpu.uuid == uuid);
            found.map_or_else(
                || "no device of the node".to_owned(),
                |it| it.gpu.device_name(),
            )
        };
        let mut note = format!("GPU {uuid} ({device}): {note}");
        truncate(&mut note, NOTE_BYTES);
        let node = self.kubernetes.node();
        // As kubelets do.
        let node_uid = self.kubernetes.node_uid().await;
        let node_uid = node_uid.unwrap_or_else(|_| node.to_owned());
        let told = Told {
            regarding: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(node.to_owned()),
                uid: Some(node_uid),
                ..ObjectReference::default()
            },
            action: "Remediation",
            reason: reason.to_string(),
            note,
            is_warning,
            reporter: REPORTER,
            instance: node,
        };
        if let Err(error) = self
            .kubernetes
            .create_event(&told.at(Timestamp::now()))
            .await
        {
            tracing::warn!(%error, "what was done about a fault could not be told by an Event");
        }
    }
}
