//! Keeps looking which GPUs there are, and tells those who need to know.

use std::{sync::Arc, time::Duration};

use muster_device::Backend;
use muster_serve::{Condition, Shutdown};
use tokio::sync::watch;

use crate::{
    driver::Handle,
    inventory::KnownGpus,
    kubelet::health::NvmlReport,
    metrics::DriverMetrics,
    prepare::Input,
    store::{self, Store},
};

/// How often NVML is asked for its list.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How soon again while it has never answered: the driver may be loading.
const LOOK_SOON: Duration = Duration::from_secs(1);
/// File in the state directory.
const FILE: &str = "devices.json";

/// What looking needs.
#[derive(Debug)]
pub struct Enumerator {
    /// NVML.
    pub backend: Arc<Backend>,
    /// Where the names are kept.
    pub store: Store,
    /// Boot id of the node.
    pub boot_id: String,
    /// Who prepares claims.
    pub driver: Handle,
    /// Holds while NVML answers.
    pub listed: Condition,
    /// What is counted.
    pub metrics: DriverMetrics,
}

/// Where the results are seen.
#[derive(Debug)]
pub struct Results {
    /// For slices: the last good list; `None` before the first.
    pub gpus: watch::Receiver<Option<KnownGpus>>,
    /// For health: the list, and whether NVML answers.
    pub report: watch::Receiver<NvmlReport>,
}

/// Starts to look, until shutdown; then the senders are dropped and streams that follow them end.
pub fn spawn(enumerator: Enumerator, shutdown: &Shutdown) -> Results {
    let (gpus_sender, gpus) = watch::channel(None);
    let (report_sender, report) = watch::channel(NvmlReport::default());
    let looking = enumerator.run(gpus_sender, report_sender);
    shutdown.spawn_until_stopped("look at the GPUs", looking);
    Results { gpus, report }
}

impl Enumerator {
    async fn run(self, gpus: watch::Sender<Option<KnownGpus>>, report: watch::Sender<NvmlReport>) {
        loop {
            let result = self.look().await;
            self.listed.set(result.is_ok());
            match result {
                Ok(known) => self.found(known, &gpus, &report),
                Err(cause) => {
                    self.metrics.nvml_failures.inc();
                    tracing::warn!(cause, "the GPUs cannot be listed");
                    report.send_if_modified(|report| {
                        let news = report.failure.as_ref() != Some(&cause);
                        report.failure = Some(cause);
                        news
                    });
                }
            }
            let ever = gpus.borrow().is_some();
            tokio::time::sleep(if ever { LOOK_EVERY } else { LOOK_SOON }).await;
        }
    }

    fn found(
        &self,
        known: KnownGpus,
        gpus: &watch::Sender<Option<KnownGpus>>,
        report: &watch::Sender<NvmlReport>,
    ) {
        let there = known.gpus.iter().filter(|known| !known.gone).count();
        self.metrics
            .gpus
            .set(i64::try_from(there).unwrap_or(i64::MAX));
        if gpus.borrow().as_ref() != Some(&known) {
            tracing::info!(gpus = there, known = known.gpus.len(), "GPUs");
            self.driver.tell(Input::Inventory(known.inventory()));
            gpus.send_replace(Some(known.clone()));
        }
        report.send_if_modified(|report| {
            let next = NvmlReport {
                known: Some(known),
                failure: None,
            };
            let news = *report != next;
            *report = next;
            news
        });
    }

    /// Lists the GPUs, and keeps their names on disk before anybody hears of them.
    async fn look(&self) -> Result<KnownGpus, String> {
        let backend = self.backend.clone();
        let store = self.store.clone();
        let boot_id = self.boot_id.clone();
        let look = move || -> Result<KnownGpus, String> {
            let seen = backend.gpus().map_err(|error| error.to_string())?;
            let _lock = store.lock().map_err(|error| error.to_string())?;
            let before = store::load_beside::<KnownGpus>(&store, FILE)
                .map_err(|failure| failure.to_string())?;
            let after = before.clone().unwrap_or_default().after(&boot_id, &seen);
            if before.as_ref() != Some(&after) {
                store::put_beside(&store, FILE, &after).map_err(|failure| failure.to_string())?;
            }
            Ok(after)
        };
        tokio::task::spawn_blocking(look)
            .await
            .map_err(|panicked| panicked.to_string())?
    }
}
