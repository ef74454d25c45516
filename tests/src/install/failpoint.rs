//! A controller that dies in the middle of what it does.

use anyhow::{Context, Result};

use super::{Installation, Part};
use crate::kubernetes::{LIMIT, Progress, eventually};

impl Installation {
    /// Replaces the controller by one that dies at this failpoint (they are named in `controller/src/failpoint.rs`),
    /// and waits until that one is ready. Only where Muster was installed with failpoints.
    pub async fn arm_controller(&mut self, failpoint: &str) -> Result<()> {
        self.stop_part(Part::Controller).await;
        let launch = self.launch(Part::Controller)?.clone();
        let armed = launch.env("MUSTER_FAILPOINT", failpoint);
        self.running
            .insert(Part::Controller, armed.start(&self.logs)?);
        self.wait_for(Part::Controller).await
    }

    /// Waits until the controller has died. [`Self::start`] starts it again, unarmed.
    pub async fn wait_until_controller_died(&mut self) -> Result<()> {
        let controller = self.running.get_mut(&Part::Controller);
        let controller = controller.context("the controller is not started")?;
        eventually("the controller dies at its failpoint", LIMIT, async || {
            let ended = controller.exit_status()?;
            Ok(Progress::when(ended.is_some(), || "it runs".to_owned()))
        })
        .await
    }
}
