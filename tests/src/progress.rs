//! Says what happens while a cluster starts.

use std::{fmt, sync::Arc, time::Instant};

/// Is told every step of a start, or nobody is.
#[derive(Clone)]
pub struct ProgressCallback {
    began: Instant,
    tell: Option<Arc<dyn Fn(&str) + Send + Sync>>,
}

impl ProgressCallback {
    /// Tells every step, with the seconds since this call.
    pub fn to(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            began: Instant::now(),
            tell: Some(Arc::new(tell)),
        }
    }

    /// Tells one step.
    pub fn say(&self, step: &str) {
        if let Some(tell) = &self.tell {
            tell(&format!(
                "{:>6.1} s  {step}",
                self.began.elapsed().as_secs_f64()
            ));
        }
    }
}

impl Default for ProgressCallback {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            tell: None,
        }
    }
}

impl fmt::Debug for ProgressCallback {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ProgressCallback")
            .finish_non_exhaustive()
    }
}
