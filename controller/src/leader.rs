//! The one task that owns the machine, from the moment its replica leads until it does not.
//!
//! It takes in everything that is ready (changes, outcomes), polls the machine once, and starts what is due, by lanes
//! ([`muster_protocol::lanes`]). After a poll it rests for some milliseconds, so that of many changes in a row most come together.
//! Nothing on this task waits for anybody: writes, watches and probes are tasks of their own, and
//! rules that anybody may bring are judged on a thread of their own ([`crate::judge`]). What waits for nobody may take long: it is on a
//! thread of its own, so that the lease is renewed meanwhile ([`crate::workplace`]).
//!
//! When the lease is lost or a higher epoch is seen, nothing more is started and what is under way is dropped;
//! what of it still arrives fails its precondition, or is what the protocol expects of a superseded leader.

mod pace;
mod takeover_clock;
#[cfg(test)]
mod tests;
mod time_of_day;
mod work;

use muster_protocol::{ExitReason, Machine};
use muster_serve::lease::Leadership;
use tokio::{sync::watch, task::JoinError};
use tokio_util::sync::CancellationToken;

pub use self::pace::Pace;
use self::{time_of_day::TimeOfDay, work::Work};
use crate::{
    claim_templates, disruption_budgets,
    extender_probe::ExtenderState,
    feed::{Feed, WatchBroken},
    judge::{self, Judge},
    metrics::ControllerMetrics,
    node_conditions,
    perform::Performer,
};

/// What a leader works with.
#[derive(Debug)]
pub struct Leader {
    /// Everything that is watched.
    pub feed: Feed,
    /// The protocol of this leadership.
    pub machine: Machine,
    /// Carries out its effects.
    pub performer: Performer,
    /// How many of them a second.
    pub pace: Pace,
    /// What is shown of it.
    pub metrics: ControllerMetrics,
    /// That we lead, which was seen. Any news of it ends this leadership: when it is asked after a long poll, the lease may have been lost,
    /// held by another and won again, and who leads then is to be a fresh process all the same.
    pub leadership: watch::Receiver<Leadership>,
    /// Whether pods may be released, and how many at a time, as far as the extender goes.
    pub extender: watch::Receiver<ExtenderState>,
    /// Whether kube-scheduler is away.
    pub scheduler_is_away: watch::Receiver<bool>,
    /// Is told of pods, for the claim templates of their shorthand.
    pub waiting_for_templates: claim_templates::Waiting,
    /// Which of those templates cannot be made.
    pub refused_templates: watch::Receiver<claim_templates::Refused>,
    /// What Nodes are to say of their GPUs.
    pub node_conditions: node_conditions::Reported,
    /// Is told of Gangs, for their disruption budgets.
    pub guarded_gangs: disruption_budgets::Gangs,
    /// When the program is to stop.
    pub stop: CancellationToken,
}

/// Why a leadership ended.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// The lease could not be renewed in time, or another replica holds it.
    #[error("the lease is lost; a fresh process is to follow")]
    LeaseLost,
    /// A newer leader has written, or what this one commits to is gone.
    #[error("{0}")]
    Superseded(ExitReason),
    /// An effect broke off.
    #[error("an effect broke off: {0}")]
    Broken(#[from] JoinError),
    /// A watch broke off.
    #[error(transparent)]
    Blind(#[from] WatchBroken),
}

impl Leader {
    /// Leads until the program is to stop (`Ok`), or must not lead any more.
    pub async fn lead(self) -> Result<(), End> {
        let Self {
            mut feed,
            machine,
            performer,
            pace,
            metrics,
            mut leadership,
            mut extender,
            mut scheduler_is_away,
            waiting_for_templates,
            mut refused_templates,
            node_conditions,
            guarded_gangs,
            stop,
        } = self;
        metrics.set_leading(true);
        let time = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = leadership.changed() => {
                return Err(End::LeaseLost);
            }
            time = TimeOfDay::ask(performer.client()) => time,
        };
        let mut judge = Judge::new(judge::evaluate);
        let mut work = Work::new(
            machine,
            performer,
            pace,
            metrics,
            waiting_for_templates,
            time,
        )
        .telling(node_conditions, guarded_gangs);
        loop {
            let next_turn = work.next_turn();
            let mut is_news = true;
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = leadership.changed() => {
                    return Err(End::LeaseLost);
                }
                Some(performed) = work.next_performed() => is_news = work.settle(performed?),
                Ok(()) = refused_templates.changed() => {
                    let refused = refused_templates.borrow_and_update().clone();
                    work.note_refused_templates(refused);
                }
                judgement = judge.next() => work.give_judgement(judgement),
                change = feed.next() => work.observe(change?, &mut feed),
                Ok(()) = extender.changed() => {}
                Ok(()) = scheduler_is_away.changed() => {}
                // What is due by then the machine says itself. That another call may be sent is nothing to decide.
                () = tokio::time::sleep_until(next_turn) => is_news = false,
            }
            // Else there is room for the next write, and nothing to decide. One answer after the other puts off nothing that is due.
            if is_news || work.is_due() || work.has_rested_long() {
                if let Some(rests_until) = work.rests_until() {
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return Ok(()),
                        _ = leadership.changed() => {
                            return Err(End::LeaseLost);
                        }
                        () = tokio::time::sleep_until(rests_until) => {}
                    }
                }
                work.take_in_what_is_ready(&mut feed)?;
                work.note_scheduler_away(*scheduler_is_away.borrow_and_update());
                work.poll(*extender.borrow_and_update(), &mut feed);
                if let Some(reason) = work.must_exit() {
                    return Err(End::Superseded(reason));
                }
            }
            // A poll may have taken long; what comes out of it is the business of whoever leads now.
            if leadership.has_changed().unwrap_or(true) {
                return Err(End::LeaseLost);
            }
            work.start();
            judge.begin(work.take_judgements(judge.room()));
        }
    }
}
