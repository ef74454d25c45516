//! Time on the processor. What is measured waits for nothing, so this is the time that it would take on a machine that does
//! nothing else; on one that does, the clock on the wall would show how the others were scheduled.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Since when this thread has been measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Duration);

impl Stopwatch {
    /// Begins now.
    pub(crate) fn start() -> Self {
        Self(processor_time())
    }

    /// What this thread has had of a processor since.
    pub(crate) fn elapsed(self) -> Duration {
        processor_time().saturating_sub(self.0)
    }
}

/// What all threads of this process have had so far.
#[cfg(feature = "cluster")]
pub(crate) fn of_process() -> Duration {
    read(ClockId::ProcessCPUTime)
}

fn processor_time() -> Duration {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_takes_no_time_and_working_does() {
        let watch = Stopwatch::start();
        std::thread::sleep(Duration::from_millis(200));
        let waited = watch.elapsed();
        let mut sum = 0_u64;
        while watch.elapsed() < waited + Duration::from_millis(20) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(waited < Duration::from_millis(100), "{waited:?}");
        assert!(sum > 0);
    }
}
