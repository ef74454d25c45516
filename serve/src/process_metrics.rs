//! What the kernel says about this process, read when the metrics are.
//!
//! The names are those of the Prometheus client libraries, so that existing dashboards work.
//! Off Linux, and wherever `/proc` cannot be read, the values are left out rather than guessed.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// Clock ticks per second in `/proc/self/stat`; fixed by the kernel's user-space ABI on every architecture
/// that we build for.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug)]
pub(crate) struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        if let Some(bytes) = resident_memory_bytes() {
            let gauge = ConstGauge::new(bytes);
            gauge.encode(encoder.encode_descriptor(
                "process_resident_memory_bytes",
                "Resident memory",
                None,
                gauge.metric_type(),
            )?)?;
        }
        if let Some(seconds) = cpu_seconds() {
            let counter = ConstCounter::new(seconds);
            counter.encode(encoder.encode_descriptor(
                "process_cpu_seconds",
                "CPU time in user and kernel mode",
                None,
                counter.metric_type(),
            )?)?;
        }
        if let Some(count) = open_files() {
            let gauge = ConstGauge::new(count);
            gauge.encode(encoder.encode_descriptor(
                "process_open_fds",
                "Open file descriptors",
                None,
                gauge.metric_type(),
            )?)?;
        }
        Ok(())
    }
}

/// `VmRSS` of `/proc/self/status` (kB there). Not `/proc/self/statm`, whose pages have no fixed size.
fn resident_memory_bytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: i64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// `utime` and `stime` of `/proc/self/stat` (proc(5): fields 14 and 15).
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the command in brackets and may itself contain blanks and brackets.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user_ticks: u32 = fields.next()?.parse().ok()?;
    let kernel_ticks: u32 = fields.next()?.parse().ok()?;
    Some((f64::from(user_ticks) + f64::from(kernel_ticks)) / TICKS_PER_SECOND)
}

fn open_files() -> Option<i64> {
    let count = std::fs::read_dir("/proc/self/fd").ok()?.count();
    i64::try_from(count).ok()
}
