//! What a leader has to do, and what of it is under way.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use muster_api::NodeDevices;
use muster_cluster::{
    judgement::{Judgement, JudgementRequest},
    object::{Change, Kind},
};
use muster_protocol::{
    ApiRequest, Effect, EffectId, ExitReason, FieldNotStored, Machine, Outcome,
    lanes::{AT_ONCE, Lane, Lanes, Place},
};
use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};

#[cfg(feature = "failpoints")]
use crate::failpoint;
use crate::{
    claim_templates, disruption_budgets,
    extender_probe::ExtenderState,
    feed::Feed,
    leader::{pace::Pace, takeover_clock::TakeoverClock, time_of_day::TimeOfDay},
    metrics::{Census, ControllerMetrics},
    node_conditions, outcome,
    perform::{self, Performer},
};

/// Changes that are taken in before the machine is polled: a flood must not keep it from writing.
pub(super) const CHANGES_PER_POLL: usize = 2_000;
/// Shortest time between a poll that left work over and the next one.
pub(super) const BREATH: Duration = Duration::from_millis(5);
/// Shortest time between two polls of which the first left nothing over: what happens meanwhile is taken in at once by
/// the second. What happens after a longer rest is answered at once. Many small changes of one node, or one gang, then cost one look,
/// and a write waits for its turn by no more than it takes a busy API server to store one.
pub(super) const REST: Duration = Duration::from_millis(20);
/// The same while calls wait because no more are to be sent in a second ([`Pace`]): what another poll decides waits behind them.
///
/// And while there was no pause for so long that the cluster is busy ([`BUSY_AFTER`]): it is seconds and minutes that gangs wait for
/// others then, and a change of one is nearly always followed by the next, of the same gang or of a neighbour on its node. A poll that
/// comes a little later looks once at what two would have looked at, and has one write of the Ledger, or of a node's permits, where
/// they had two. Who finds the cluster at rest, as somebody with a single gang, waits for none of that.
pub(super) const LONGER_REST: Duration = Duration::from_millis(50);
/// For how long polls follow one another until that is so.
pub(super) const BUSY_AFTER: Duration = Duration::from_secs(1);
/// After how long without a poll the next one follows none. More than two rests: a cluster is no less busy for one that was quiet.
pub(super) const PAUSE: Duration = Duration::from_millis(120);
/// Longest time without a poll, whatever the machine says.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// An effect that was carried out, and what came of it.
pub(super) struct Performed {
    place: Place,
    effect: Effect,
    outcome: Outcome,
}

/// The machine, and everything that it is fed from and that carries out what it asks for.
pub(super) struct Work {
    machine: Machine,
    performer: Performer,
    metrics: ControllerMetrics,
    census: Census,
    waiting_for_templates: claim_templates::Waiting,
    node_conditions: node_conditions::Reported,
    guarded_gangs: disruption_budgets::Gangs,
    time: TimeOfDay,
    takeover: TakeoverClock,
    /// Lists that the machine asked for and that are not complete yet.
    lists: BTreeMap<Kind, EffectId>,
    /// What waits, and since when.
    waiting: Lanes<(Effect, Instant)>,
    /// When the machine was polled last.
    polled_at: Option<Instant>,
    /// For how long it rests since then at least.
    rest: Duration,
    /// When the first of the polls began that followed one another without a [`PAUSE`].
    busy_since: Instant,
    pace: Pace,
    /// The next to be sent, which waits for its turn by [`Pace`].
    next: Option<(Place, (Effect, Instant))>,
    under_way: JoinSet<Performed>,
}

impl Work {
    pub(super) fn new(
        mut machine: Machine,
        performer: Performer,
        pace: Pace,
        metrics: ControllerMetrics,
        waiting_for_templates: claim_templates::Waiting,
        time: TimeOfDay,
    ) -> Self {
        machine.judge_apart();
        Self {
            machine,
            performer,
            census: Census::new(metrics.clone()),
            takeover: TakeoverClock::start(metrics.clone()),
            metrics,
            waiting_for_templates,
            node_conditions: node_conditions::Reported::default(),
            guarded_gangs: disruption_budgets::Gangs::default(),
            time,
            lists: BTreeMap::new(),
            waiting: Lanes::default(),
            polled_at: None,
            rest: REST,
            busy_since: Instant::now(),
            pace,
            next: None,
            under_way: JoinSet::new(),
        }
    }

    /// Tells these of Nodes and what their drivers say, and of Gangs.
    pub(super) fn telling(
        mut self,
        node_conditions: node_conditions::Reported,
        guarded_gangs: disruption_budgets::Gangs,
    ) -> Self {
        self.node_conditions = node_conditions;
        self.guarded_gangs = guarded_gangs;
        self
    }

    /// The next effect that was carried out; `None`: none is under way. Cancel-safe.
    pub(super) async fn next_performed(&mut self) -> Option<Result<Performed, JoinError>> {
        self.under_way.join_next().await
    }

    pub(super) fn take_in_what_is_ready(&mut self, feed: &mut Feed) -> Result<(), JoinError> {
        while let Some(performed) = self.under_way.try_join_next() {
            // A poll follows, whatever it says.
            self.settle(performed?);
        }
        for _ in 0..CHANGES_PER_POLL {
            let Some(change) = feed.ready() else { break };
            self.observe(change, feed);
        }
        Ok(())
    }

    pub(super) fn observe(&mut self, change: Change, feed: &mut Feed) {
        // First, since what is observed may be a replacement.
        let undecodable = feed.undecodable_news();
        if !undecodable.is_empty() {
            self.metrics.set_stand_ins(feed.undecodable());
            self.machine.note_undecodable(undecodable);
        }
        let list = match &change {
            Change::Listed(kind, _) | Change::ListedKeys(kind, _) => self.lists.remove(kind),
            Change::Applied(_) | Change::Deleted(_) => None,
        };
        self.census.observe(&change);
        self.waiting_for_templates.observe(&change);
        self.node_conditions.observe(&change);
        self.guarded_gangs.observe(&change);
        self.machine.observe(change);
        if let Some(id) = list {
            self.machine.settle(id, Outcome::Done(None));
            self.takeover.list_is_read(self.lists.len());
        }
    }

    pub(super) fn note_refused_templates(&mut self, refused: claim_templates::Refused) {
        self.machine.note_refused_templates(refused);
    }

    /// Takes an effect in that was carried out; whether the machine is to be polled for that.
    pub(super) fn settle(&mut self, performed: Performed) -> bool {
        let Performed {
            place,
            effect,
            outcome,
        } = performed;
        self.waiting.finished(&place);
        self.metrics.settled(&effect.write, &outcome);
        // Never observed: what is seen comes from the watches alone, in their order. Told out of turn, an object that
        // was created again under a name would be taken for gone with its predecessor.
        self.machine.settle(effect.id, outcome)
    }

    pub(super) fn take_judgements(&mut self, room: usize) -> Vec<JudgementRequest> {
        self.machine.take_judgements(room)
    }

    pub(super) fn give_judgement(&mut self, judgement: Judgement) {
        self.machine.give_judgements([judgement]);
    }

    pub(super) fn note_scheduler_away(&mut self, is_away: bool) {
        self.machine.note_scheduler_away(is_away);
    }

    pub(super) fn poll(&mut self, extender: ExtenderState, feed: &mut Feed) {
        self.machine
            .withhold_ungating(extender == ExtenderState::Unready);
        self.machine
            .ungate_carefully(extender == ExtenderState::Unreliable);
        self.metrics.set_extender(extender);
        let begun = Instant::now();
        let pauses = |polled_at| begun.saturating_duration_since(polled_at) > PAUSE;
        if self.polled_at.is_none_or(pauses) {
            self.busy_since = begun;
        }
        let effects = self.machine.poll(self.time.now());
        self.metrics.decided(begun.elapsed());
        self.polled_at = Some(Instant::now());
        // Asked now, and not when the rest begins: whatever is taken in until then is to be looked at as well, and would pass for
        // work that this poll left over.
        self.rest = if self.is_due() { BREATH } else { REST };
        for FieldNotStored { kind, field } in self.machine.take_fields_not_stored() {
            tracing::warn!(
                ?kind,
                field,
                "the API server does not store this field as it is written: its CustomResourceDefinition may be older than \
                 this controller; apply the definitions of this release"
            );
        }
        let epoch = self.machine.leading_epoch();
        self.metrics.set_epoch(epoch);
        self.metrics.set_stages_held(self.machine.held_stages());
        if epoch.is_some() {
            self.metrics.set_breaker(self.machine.breaker());
        }
        self.takeover.polled(epoch.is_some());
        for effect in effects {
            if let ApiRequest::ReadAll { kind } = *effect.write {
                self.lists.insert(kind, effect.id);
                self.takeover.list_is_asked_for();
                feed.reopen(kind);
                continue;
            }
            let place = Place::of(&effect.write, self.machine.index());
            if let Some((given_up, _)) = self.waiting.push(&place, (effect, begun)) {
                self.metrics.given_up(place.lane);
                let why = format!("too many writes wait in lane {}", place.lane.name());
                self.machine.settle(given_up.id, Outcome::Refused(why));
            }
        }
    }

    /// Until when the machine rests, whatever happens. No longer than it takes until half as many calls may be sent as are sent at a
    /// time, so that what is sent after it makes up for it.
    pub(super) fn rests_until(&self) -> Option<Instant> {
        let calls = u32::try_from(AT_ONCE / 2).unwrap_or(u32::MAX);
        let waits = self.next.as_ref().and_then(|_| self.pace.time_for(calls));
        let rest = waits.map_or(self.rest, |time| time.min(LONGER_REST).max(self.rest));
        let polled_at = self.polled_at?;
        let is_longer = self.rest == REST && self.is_busy(polled_at);
        Some(polled_at + if is_longer { LONGER_REST } else { rest })
    }

    /// Whether polls have followed one another for long, up to the last. Not while writes wait for others to be answered: nothing is sent
    /// while the machine rests. Nor while it reads whole lists, and decides nothing before it has: nothing is taken in either while it rests, and
    /// watches wait as soon as there is no room for more.
    fn is_busy(&self, polled_at: Instant) -> bool {
        let waits = Lane::ALL.iter().any(|lane| self.waiting.waiting(*lane) > 0);
        let reads = !self.lists.is_empty();
        let busy = polled_at.saturating_duration_since(self.busy_since);
        busy >= BUSY_AFTER && !waits && !reads && self.next.is_none()
    }

    /// Whether the machine has something left to do, which nothing but another poll brings about, or is due by time.
    pub(super) fn is_due(&self) -> bool {
        let due = self.machine.next_due();
        due.is_some_and(|due| due <= self.time.elapsed().as_secs())
    }

    /// Whether it is long since it was polled.
    pub(super) fn has_rested_long(&self) -> bool {
        let polled_at = self.polled_at;
        polled_at.is_none_or(|polled_at| polled_at.elapsed() >= LONGEST_REST)
    }

    /// When there is something to do though nothing happens: when the machine, or the next call, is due by time alone.
    pub(super) fn next_turn(&self) -> Instant {
        let now = Instant::now();
        let due = self.machine.next_due().map_or(LONGEST_REST, |due| {
            Duration::from_secs(due).saturating_sub(self.time.elapsed())
        });
        let next_poll = now + due.clamp(BREATH, LONGEST_REST);
        // Not every turn is a poll, and the longest rest is counted from the last one that was.
        let rested = self.polled_at.map(|polled_at| polled_at + LONGEST_REST);
        let next_poll = rested.map_or(next_poll, |rested| next_poll.min(rested.max(now)));
        let next_call = self.pace.again_at().filter(|_| self.next.is_some());
        next_call.map_or(next_poll, |next_call| next_poll.min(next_call))
    }

    /// Why this leadership is over, if it is.
    pub(super) fn must_exit(&self) -> Option<ExitReason> {
        self.machine.must_exit().cloned()
    }

    pub(super) fn start(&mut self) {
        while let Some((place, (effect, since))) = self.next.take().or_else(|| self.waiting.pop()) {
            if has_expired(&effect.write, since) {
                self.waiting.finished(&place);
                self.machine.settle(effect.id, Outcome::Unknown);
                continue;
            }
            if !self.pace.take() {
                self.next = Some((place, (effect, since)));
                break;
            }
            self.metrics.sent(place.lane, since.elapsed());
            self.spawn(place, effect, since);
        }
        for lane in Lane::ALL {
            self.metrics.set_waiting(lane, self.waiting.waiting(lane));
        }
    }

    /// Sends an effect that waits since then, as soon as this thread comes to it: another poll may come first, and take long.
    fn spawn(&mut self, place: Place, effect: Effect, since: Instant) {
        let performer = self.performer.clone();
        let replaced = self.replaced(&effect.write);
        self.under_way.spawn(async move {
            if has_expired(&effect.write, since) {
                return Performed {
                    place,
                    effect,
                    outcome: Outcome::Unknown,
                };
            }
            #[cfg(feature = "failpoints")]
            failpoint::before(&effect.write);
            let outcome = performer.perform(&effect.write, replaced.as_deref()).await;
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
            Performed {
                place,
                effect,
                outcome,
            }
        });
    }

    /// The NodeDevices that a write replaces, as it is seen now.
    fn replaced(&self, write: &ApiRequest) -> Option<Arc<NodeDevices>> {
        match write {
            ApiRequest::ReplaceNodeDevices { node, .. } => {
                self.machine.index().node_devices(node).cloned()
            }
            _ => None,
        }
    }
}

/// Whether a write has waited since then for longer than it is right for. It is not sent, and the machine judges it anew.
fn has_expired(write: &ApiRequest, since: Instant) -> bool {
    let longest = write.expires_after_seconds().map(Duration::from_secs);
    let has_expired = longest.is_some_and(|longest| since.elapsed() > longest);
    if has_expired {
        tracing::warn!(
            effect = perform::name(write),
            object = ?write.target(),
            "waited too long to be sent, and is judged anew"
        );
    }
    has_expired
}

#[cfg(test)]
mod tests {
    use muster_cluster::{index, managed::ManagedPods, object::ObjectKey};
    use muster_protocol::Config;
    use muster_serve::metrics::Metrics;

    use super::*;
    use crate::feed::tests::silent;

    /// What is to be done, of a machine with nothing to decide that was polled just now, so many calls a second.
    fn polled(qps: u32) -> Work {
        let metrics = Metrics::new("test", "0");
        let machine = Machine::new(Config::new(index::Config {
            managed: ManagedPods::new(["nvidia.com/gpu"]).unwrap(),
            excluded_namespaces: [].into(),
            excepted_device_classes: [].into(),
            default_team: None,
            start_timeout_seconds: muster_cluster::index::START_TIMEOUT_SECONDS,
        }));
        let mut work = Work::new(
            machine,
            Performer::new(silent(), "replica-0".to_owned()),
            Pace::new(qps, 1),
            ControllerMetrics::register(&metrics),
            claim_templates::Waiting::default(),
            TimeOfDay::from(jiff::Timestamp::now()),
        );
        work.polled_at = Some(Instant::now());
        work
    }

    fn call(number: u64) -> (Place, (Effect, Instant)) {
        let key = ObjectKey {
            kind: Kind::Gang,
            namespace: "ml".to_owned(),
            name: number.to_string(),
        };
        let place = Place {
            lane: Lane::Tell,
            party: "vision".to_owned(),
        };
        let effect = Effect {
            id: EffectId(number),
            write: Arc::new(ApiRequest::ReadObject { key }),
        };
        (place, (effect, Instant::now()))
    }

    #[tokio::test(start_paused = true)]
    async fn while_calls_wait_for_their_turn_the_machine_rests_longer_and_no_longer_than_is_made_up_for()
     {
        for (qps, rest) in [
            (0, REST),
            (50, LONGER_REST),
            (400, Duration::from_millis(40)),
            (1_000, REST),
        ] {
            let mut work = polled(qps);
            let polled_at = Instant::now();
            assert_eq!(work.rests_until(), Some(polled_at + REST), "none waits");
            work.next = Some(call(1));
            assert_eq!(work.rests_until(), Some(polled_at + rest), "{qps} a second");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_is_busy_rests_longer_unless_it_waits_for_writes_or_lists_or_left_something_over()
     {
        let mut work = polled(0);
        tokio::time::advance(BUSY_AFTER).await;
        let polled_at = Instant::now();
        work.polled_at = Some(polled_at);
        assert_eq!(work.rests_until(), Some(polled_at + LONGER_REST));
        work.rest = BREATH;
        assert_eq!(work.rests_until(), Some(polled_at + BREATH));
        work.rest = REST;
        work.lists.insert(Kind::Pod, EffectId(1));
        assert_eq!(work.rests_until(), Some(polled_at + REST), "a list");
        work.lists.clear();
        // No limit says when it may be sent, so it is sent at the end of the rest.
        work.next = Some(call(2));
        assert_eq!(work.rests_until(), Some(polled_at + REST), "the next");
        work.next = None;
        let (place, call) = call(1);
        assert!(work.waiting.push(&place, call).is_none());
        assert_eq!(work.rests_until(), Some(polled_at + REST), "a write");
    }

    /// A pod is to be deleted by force, and that waits to be sent from now on.
    fn with_a_pod_to_force() -> (Work, Place) {
        let mut work = polled(1_000);
        let key = ObjectKey {
            kind: Kind::Pod,
            namespace: "ml".to_owned(),
            name: "train-0".to_owned(),
        };
        let force = ApiRequest::ForceDeletePod {
            key,
            uid: "uid".to_owned(),
            resource_version: "7".to_owned(),
        };
        let effect = Effect {
            id: EffectId(1),
            write: Arc::new(force),
        };
        let place = Place::of(&effect.write, work.machine.index());
        let waits = (effect, Instant::now());
        assert!(work.waiting.push(&place, waits).is_none());
        (work, place)
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_not_deleted_by_force_by_what_was_read_long_ago() {
        for (waited_seconds, sent) in [(10, 1), (11, 0)] {
            let (mut work, place) = with_a_pod_to_force();
            tokio::time::advance(Duration::from_secs(waited_seconds)).await;
            work.start();
            assert_eq!(work.under_way.len(), sent, "{waited_seconds} s");
            assert_eq!(work.waiting.waiting(place.lane), 0);
        }
    }

    /// The thread that is to send it polls the machine first, and a poll may be long.
    #[tokio::test(start_paused = true)]
    async fn nor_by_what_was_read_long_before_its_call_is_begun() {
        for (waited_seconds, is_given_up) in [(10, false), (11, true)] {
            let (mut work, _) = with_a_pod_to_force();
            work.start();
            assert_eq!(work.under_way.len(), 1);
            // Its task has not begun yet.
            tokio::time::advance(Duration::from_secs(waited_seconds)).await;
            tokio::task::yield_now().await;
            // The API server answers nothing.
            let performed = work.under_way.try_join_next();
            assert_eq!(performed.is_some(), is_given_up, "{waited_seconds} s");
            if let Some(performed) = performed {
                let performed = performed.unwrap();
                assert!(matches!(performed.outcome, Outcome::Unknown));
                work.settle(performed);
            }
        }
    }

    /// A poll for each call that may be sent would find what the last one found.
    #[tokio::test(start_paused = true)]
    async fn that_another_call_may_be_sent_is_a_turn_and_nothing_that_is_due() {
        let mut work = polled(2);
        for number in 1..=2 {
            let (place, call) = call(number);
            assert!(work.waiting.push(&place, call).is_none());
        }
        work.start();
        assert!(work.next_turn() <= Instant::now() + Duration::from_millis(500));
        assert!(!work.is_due() && !work.has_rested_long());
    }
}
