//! A controller that dies in the middle of what it does.

use anyhow::Result;

use super::{Installation, Part};

impl Installation {
    /// Replaces all replicas of the controller by one that dies at this failpoint (they are named in
    /// `controller/src/failpoint.rs`), and waits until that one is ready. Only where Muster was installed with
    /// failpoints.
    pub async fn arm_controller(&mut self, failpoint: &str) -> Result<()> {
        self.stop_part(Part::Controller).await;
        let controller = self.service(Part::Controller, 0)?;
        controller.spawn_with_env("MUSTER_FAILPOINT", failpoint)?;
        controller.wait_until_ready().await
    }

    /// Waits until the controller that was armed has died. [`Self::start`] starts it again, unarmed.
    pub async fn wait_until_controller_died(&mut self) -> Result<()> {
        let controller = self.service(Part::Controller, 0)?;
        controller.wait_until_ended().await
    }
}
