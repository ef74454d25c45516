//! One check of a GPU that nobody uses, by a command: before a fault is over, or now and then.
//!
//! The GPU is kept for it as for a reset, but NVML stays open: to check a GPU takes no other from anybody. Whoever prepares a claim for the GPU ends the
//! check ([`super::running`]), and so does the driver when it stops. A check that was ended so, or could not be begun, has found nothing.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Tools,
    run::{Ended, How, Run},
    settings::Order,
    words,
};
use crate::{inventory::KnownGpu, store::marks::Mark};

/// How long a check has to end when its GPU is wanted: a Prepare waits for it.
const GRACE: Duration = Duration::from_secs(2);
/// The signal by which the kernel ends what has no memory left within the driver's limit. (What is ended by the driver itself is told apart.)
const SIGKILL: i32 = 9;

/// What came of a check.
#[derive(Debug)]
pub enum Outcome {
    /// The GPU is in order. The observations had reached this number before it was checked.
    InOrder(u64),
    /// It is not; with the exit status, if it ended in time.
    OutOfOrder(Option<i32>, Ended),
    /// The check could not be run, for want of the command or of memory: it has found nothing.
    NotRun(Ended),
    /// The GPU is in use, or was wanted, or the driver stops: in words.
    NotNow(String),
}

/// Checks a GPU. Blocking, as long as the command may take.
pub fn check(
    tools: &Tools,
    order: &Order,
    known: &KnownGpu,
    is_over: impl Fn() -> bool,
) -> Outcome {
    let uuid = &known.gpu.uuid;
    let mark = Mark {
        id: format!("{}-check-{uuid}", tools.instance),
        boot_id: tools.boot_id.clone(),
        reset: None,
    };
    // Before the GPU is locked: whoever finds it locked has given the sign after that.
    let Some(running) = tools.checks.begin(uuid) else {
        return Outcome::NotNow("another check of it runs".to_owned());
    };
    let reserved = tools
        .store
        .reserve(&BTreeSet::from([uuid.clone()]), &mark, |_, _| Ok(()));
    let reserved = match reserved {
        Ok(reserved) => reserved,
        Err(refused) => return Outcome::NotNow(refused.to_string()),
    };
    let outcome = match users(tools, uuid) {
        Ok(None) => {
            let before = tools.eye.mark();
            match words(tools, order, std::iter::once(known)) {
                Ok(words) => {
                    tracing::info!(command = ?words, "checking a GPU");
                    let run = Run {
                        words: &words,
                        root: tools.root.as_ref(),
                        id: &mark.id,
                        deadline: order.deadline,
                        grace: GRACE,
                    };
                    judge(run.until(|| is_over() || running.is_wanted()), before)
                }
                Err(why) => Outcome::NotNow(why),
            }
        }
        Ok(Some(pid)) => Outcome::NotNow(format!("process {pid} uses it")),
        Err(why) => Outcome::NotNow(why),
    };
    let is_stuck = matches!(&outcome, Outcome::OutOfOrder(_, ended) if ended.how == How::Stuck);
    if is_stuck {
        // It is not free; whoever finds that what it began has ended removes the mark.
        drop(reserved);
    } else if let Err(failure) = reserved.release() {
        tracing::warn!(%failure, "the mark of a GPU is not removed");
    }
    outcome
}

fn judge(ended: Ended, before: u64) -> Outcome {
    match ended.how {
        How::Exited(0) => Outcome::InOrder(before),
        How::Exited(status) => Outcome::OutOfOrder(Some(status), ended),
        How::Killed(SIGKILL) => Outcome::NotRun(ended),
        How::Killed(_) | How::Late | How::Stuck => Outcome::OutOfOrder(None, ended),
        How::Stopped => Outcome::NotNow("it was ended, for the GPU is wanted".to_owned()),
        How::NotRun(_) => Outcome::NotRun(ended),
    }
}

fn users(tools: &Tools, uuid: &str) -> Result<Option<u32>, String> {
    let processes = tools.eye.backend().processes(uuid);
    let processes = processes.map_err(|error| error.to_string())?;
    Ok(processes.first().map(|process| process.pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_for_which_there_is_no_memory_or_no_program_has_found_nothing() {
        let judged = |how| {
            let output = String::new();
            judge(Ended { how, output }, 7)
        };
        let none = How::NotRun("status 127".to_owned());
        for how in [How::Killed(SIGKILL), none] {
            let outcome = judged(how);
            assert!(matches!(outcome, Outcome::NotRun(_)), "{outcome:?}");
        }
        for how in [How::Killed(11), How::Late, How::Stuck, How::Exited(1)] {
            let outcome = judged(how);
            assert!(matches!(outcome, Outcome::OutOfOrder(..)), "{outcome:?}");
        }
        assert!(matches!(judged(How::Exited(0)), Outcome::InOrder(7)));
        assert!(matches!(judged(How::Stopped), Outcome::NotNow(_)));
    }
}
