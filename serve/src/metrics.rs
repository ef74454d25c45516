//! The metrics of a program, as OpenMetrics text.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use prometheus_client::{
    encoding::text,
    metrics::{gauge::ConstGauge, info::Info},
    registry::Registry,
};

use crate::process_metrics::ProcessMetrics;

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of a program. Cheap to clone; clones share the registry.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// A registry with what is known of every process: build, start, CPU, memory, open files.
    pub fn new(program: &'static str, version: &'static str) -> Self {
        let mut registry = Registry::default();
        registry.register(
            "muster_build",
            "Program and version",
            Info::new(vec![("program", program), ("version", version)]),
        );
        registry.register(
            "process_start_time_seconds",
            "When the process started, in seconds since the Unix epoch",
            ConstGauge::new(jiff::Timestamp::now().as_second()),
        );
        registry.register_collector(Box::new(ProcessMetrics));
        Self {
            registry: Arc::new(Mutex::new(registry)),
        }
    }

    /// Registers metrics under `muster_` and hands back what `register` returns: the handles.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        register(registry.sub_registry_with_prefix("muster"))
    }

    /// All metrics in the OpenMetrics text format.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn what_is_registered_is_shown_under_our_prefix_and_so_is_the_process() {
        let metrics = Metrics::new("muster-test", "1.2.3");
        let admitted = metrics.register(|registry| {
            let admitted: Counter = Counter::default();
            registry.register("gangs_admitted", "Gangs admitted", admitted.clone());
            admitted
        });
        admitted.inc();
        let text = metrics.encode().unwrap();
        for line in [
            "muster_gangs_admitted_total 1",
            "muster_build_info{program=\"muster-test\",version=\"1.2.3\"} 1",
            "process_start_time_seconds ",
            "process_resident_memory_bytes ",
            "process_cpu_seconds_total ",
            "process_open_fds ",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
