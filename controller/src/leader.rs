//! The one task that owns the machine, from the moment its replica leads until it does not.
//!
//! It takes in everything that is ready (changes, outcomes), polls the machine once, and starts what is owed, at
//! most [`AT_ONCE`] at a time in the order it was asked for. Events wait apart: losing one harms nobody,
//! holding up a permit does.
//!
//! When the lease is lost or a higher epoch is seen, nothing more is started and what is under way is dropped;
//! what of it still arrives fails its precondition, or is what the protocol expects of a superseded leader.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use jiff::Timestamp;
use muster_cluster::object::{Change, Kind};
use muster_protocol::{ApiRequest, Effect, EffectId, ExitReason, Machine, Now, Outcome};
use muster_serve::lease::Leadership;
use tokio::{
    sync::watch,
    task::{JoinError, JoinSet},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

#[cfg(feature = "failpoints")]
use crate::failpoint;
use crate::{
    claim_templates,
    feed::Feed,
    metrics::{Census, ControllerMetrics},
    outcome,
    perform::{self, Performer},
};

/// Effects that are carried out at the same time.
const AT_ONCE: usize = 16;
/// Events that are published at the same time.
const EVENTS_AT_ONCE: usize = 4;
/// Events that may wait; more are given up.
const EVENTS_WAITING: usize = 1_000;
/// The machine wants to be polled once a second though nothing happens.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Changes that are taken in before the machine is polled: a flood must not keep it from writing.
const CHANGES_PER_POLL: usize = 2_000;

/// What a leader works with.
#[derive(Debug)]
pub struct Leader {
    /// Everything that is watched.
    pub feed: Feed,
    /// The protocol of this leadership.
    pub machine: Machine,
    /// Carries out its effects.
    pub performer: Performer,
    /// What is shown of it.
    pub metrics: ControllerMetrics,
    /// Whether we lead.
    pub leadership: watch::Receiver<Leadership>,
    /// Whether pods may be released, as far as extenders go.
    pub extender_ready: watch::Receiver<bool>,
    /// Is told of pods, for the claim templates of their shorthand.
    pub waiting_for_templates: claim_templates::Waiting,
    /// Which of those templates cannot be made.
    pub refused_templates: watch::Receiver<claim_templates::Refused>,
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
}

impl Leader {
    /// Leads until the program is to stop (`Ok`), or must not lead any more.
    pub async fn lead(self) -> Result<(), End> {
        let Self {
            mut feed,
            machine,
            performer,
            metrics,
            mut leadership,
            mut extender_ready,
            waiting_for_templates,
            mut refused_templates,
            stop,
        } = self;
        metrics.set_leading(true);
        let mut work = Work::new(machine, performer, metrics, waiting_for_templates);
        let mut tick = tokio::time::interval(POLL_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = leadership.wait_for(|leadership| *leadership == Leadership::Follower) => {
                    return Err(End::LeaseLost);
                }
                Some(performed) = work.under_way.join_next() => work.settle(performed?),
                Ok(()) = refused_templates.changed() => {
                    let refused = refused_templates.borrow_and_update().clone();
                    work.machine.note_refused_templates(refused);
                }
                change = feed.next() => work.observe(change),
                Ok(()) = extender_ready.changed() => {}
                _ = tick.tick() => {}
            }
            work.take_in_what_is_ready(&mut feed)?;
            work.poll(*extender_ready.borrow_and_update(), &mut feed);
            if let Some(reason) = work.machine.must_exit() {
                return Err(End::Superseded(reason.clone()));
            }
            work.start();
        }
    }
}

/// An effect that was carried out, and what came of it.
struct Performed {
    effect: Effect,
    outcome: Outcome,
}

struct Work {
    machine: Machine,
    performer: Performer,
    metrics: ControllerMetrics,
    census: Census,
    waiting_for_templates: claim_templates::Waiting,
    started_at: Instant,
    /// Lists that the machine asked for and that have not come yet.
    lists: BTreeMap<Kind, EffectId>,
    owed: VecDeque<Effect>,
    events: VecDeque<Effect>,
    under_way: JoinSet<Performed>,
    events_under_way: usize,
}

impl Work {
    fn new(
        machine: Machine,
        performer: Performer,
        metrics: ControllerMetrics,
        waiting_for_templates: claim_templates::Waiting,
    ) -> Self {
        Self {
            machine,
            performer,
            census: Census::new(metrics.clone()),
            metrics,
            waiting_for_templates,
            started_at: Instant::now(),
            lists: BTreeMap::new(),
            owed: VecDeque::new(),
            events: VecDeque::new(),
            under_way: JoinSet::new(),
            events_under_way: 0,
        }
    }

    fn take_in_what_is_ready(&mut self, feed: &mut Feed) -> Result<(), JoinError> {
        while let Some(performed) = self.under_way.try_join_next() {
            self.settle(performed?);
        }
        for _ in 0..CHANGES_PER_POLL {
            let Some(change) = feed.ready() else { break };
            self.observe(change);
        }
        Ok(())
    }

    fn observe(&mut self, change: Change) {
        let list = match &change {
            Change::Listed(kind, _) => self.lists.remove(kind),
            Change::Applied(_) | Change::Deleted(_) => None,
        };
        self.census.observe(&change);
        self.waiting_for_templates.observe(&change);
        self.machine.observe(change);
        if let Some(id) = list {
            self.machine.settle(id, Outcome::Done(None));
        }
    }

    fn settle(&mut self, performed: Performed) {
        let Performed { effect, outcome } = performed;
        if matches!(effect.write, ApiRequest::PublishEvent(_)) {
            self.events_under_way -= 1;
        }
        self.metrics.settled(&effect.write, &outcome);
        // Never observed: what is seen comes from the watches alone, in their order. Told out of turn, an object that
        // was made anew under a name would be taken for gone with its predecessor.
        self.machine.settle(effect.id, outcome);
    }

    fn poll(&mut self, extender_ready: bool, feed: &mut Feed) {
        self.machine.withhold_ungating(!extender_ready);
        self.metrics.set_withheld(!extender_ready);
        let begun = Instant::now();
        let effects = self.machine.poll(self.now());
        self.metrics.decided(begun.elapsed());
        self.metrics.set_epoch(self.machine.leading_epoch());
        for effect in effects {
            match &effect.write {
                ApiRequest::ReadAll { kind } => {
                    self.lists.insert(*kind, effect.id);
                    feed.reopen(*kind);
                }
                ApiRequest::PublishEvent(_) if self.events.len() >= EVENTS_WAITING => {
                    self.metrics.event_dropped();
                    self.machine.settle(
                        effect.id,
                        Outcome::Refused("too many Events wait".to_owned()),
                    );
                }
                ApiRequest::PublishEvent(_) => self.events.push_back(effect),
                _ => self.owed.push_back(effect),
            }
        }
    }

    fn start(&mut self) {
        while self.under_way.len() - self.events_under_way < AT_ONCE {
            let Some(effect) = self.owed.pop_front() else {
                break;
            };
            self.spawn(effect);
        }
        while self.events_under_way < EVENTS_AT_ONCE {
            let Some(effect) = self.events.pop_front() else {
                break;
            };
            self.events_under_way += 1;
            self.spawn(effect);
        }
        self.metrics.set_waiting(self.owed.len());
    }

    fn spawn(&mut self, effect: Effect) {
        let performer = self.performer.clone();
        self.under_way.spawn(async move {
            #[cfg(feature = "failpoints")]
            failpoint::before(&effect.write);
            let outcome = performer.perform(&effect.write).await;
            tracing::debug!(
                effect = perform::name(&effect.write),
                object = ?effect.write.target(),
                outcome = outcome::label(&outcome),
            );
            if let Outcome::Refused(answer) = &outcome {
                tracing::warn!(
                    effect = perform::name(&effect.write),
                    object = ?effect.write.target(),
                    answer,
                    "refused"
                );
            }
            #[cfg(feature = "failpoints")]
            if matches!(outcome, Outcome::Done(_)) {
                failpoint::after(&effect.write);
            }
            Performed { effect, outcome }
        });
    }

    fn now(&self) -> Now {
        Now {
            monotonic_seconds: self.started_at.elapsed().as_secs(),
            wall: Timestamp::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::{Client, client::Body};
    use muster_cluster::{index, managed::ManagedPods};
    use muster_protocol::Config;
    use muster_serve::{Readiness, metrics::Metrics};

    use super::*;

    /// A leader whose API server never answers, and the handle of its lease.
    fn leader() -> (Leader, watch::Sender<Leadership>) {
        let silent = tower::service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<http::Response<Body>, std::io::Error>>()
        });
        let client = Client::new(silent, "default");
        let config = Config::new(index::Config {
            managed: ManagedPods::new(["nvidia.com/gpu"]).unwrap(),
            excluded_namespaces: [].into(),
            excepted_device_classes: [].into(),
            default_team: None,
        });
        let metrics = Metrics::new("test", "0");
        let (lease, leadership) = watch::channel(Leadership::Leader);
        let leader = Leader {
            feed: Feed::open(&Readiness::default(), &metrics, client.clone()),
            machine: Machine::new(config, "replica-0".to_owned()),
            performer: Performer::new(client, "replica-0".to_owned()),
            metrics: ControllerMetrics::register(&metrics),
            leadership,
            extender_ready: watch::channel(true).1,
            waiting_for_templates: claim_templates::Waiting::default(),
            refused_templates: watch::channel(claim_templates::Refused::new()).1,
            stop: CancellationToken::new(),
        };
        (leader, lease)
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_whose_lease_is_lost_ends_at_once_whatever_is_under_way() {
        let (leader, lease) = leader();
        let leading = tokio::spawn(leader.lead());
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!leading.is_finished());
        let lost_at = Instant::now();
        lease.send_replace(Leadership::Follower);
        let end = leading.await.unwrap();
        assert!(matches!(end, Err(End::LeaseLost)), "{end:?}");
        assert_eq!(lost_at.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_told_to_stop_ends_well() {
        let (leader, _lease) = leader();
        let stop = leader.stop.clone();
        let leading = tokio::spawn(leader.lead());
        tokio::time::sleep(Duration::from_secs(5)).await;
        stop.cancel();
        assert!(leading.await.unwrap().is_ok());
    }
}
