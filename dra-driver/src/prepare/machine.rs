//! The machine: what is under way.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_api::NodeDevicesStatus;
use muster_device::faults::FaultState;

use super::{
    claim::{Claim, ClaimRef},
    effect::{Answer, CallId, Effect, Input, Inventory, Milliseconds, RemovalId},
    injected_bug::InjectedBug,
    looks::Looks,
    queue::{Queue, Turn},
    slice::{Made, PlacedSlice, SliceOrder},
    slices::Removal,
    view::View,
};

/// How long a waiting call sleeps if nothing happens: another instance on the same disk may have
/// released what it waits for.
const POLL_MILLISECONDS: u64 = 500;
/// How often a missing permit is looked for past the watch.
const READ_AGAIN_MILLISECONDS: u64 = 5_000;
/// When what failed for reasons outside is tried again.
const RETRY_MILLISECONDS: u64 = 1_000;
/// When the disk is looked at again while the status lists something as held. It costs one turn of the lock.
const HELD_AGAIN_MILLISECONDS: u64 = 30_000;

/// What an instance is given at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Tells this instance from every other that ever ran on the node.
    pub instance: String,
    /// Name of the node.
    pub node: String,
    /// Boot id of the node. Records of another boot are void: nothing they gave survived.
    pub boot_id: String,
    /// Whether permits are enforced while there has never been a `NodeDevices` object that says it.
    pub enforce_unless_told: bool,
    /// How long a Prepare call waits for a permit or for a holder. The kubelet gives up after 45,000, and repeats a
    /// failed call only after 60,000 to 90,000.
    pub wait_milliseconds: u64,
    /// A rule that is broken on purpose.
    #[cfg(feature = "injected-bugs")]
    pub bug: Option<InjectedBug>,
}

/// How long a Prepare call waits for a permit or for a holder, unless it is configured otherwise.
const WAIT_MILLISECONDS: u64 = 35_000;

impl Config {
    /// An instance on a node that enforces permits and breaks no rule.
    pub fn new(instance: String, node: String, boot_id: String) -> Self {
        Self {
            instance,
            node,
            boot_id,
            enforce_unless_told: true,
            wait_milliseconds: WAIT_MILLISECONDS,
            #[cfg(feature = "injected-bugs")]
            bug: None,
        }
    }
}

/// One instance of the driver. See the [module](super).
#[derive(Debug)]
pub struct Machine {
    pub(super) config: Config,
    pub(super) inventory: Option<Inventory>,
    /// What is wrong with the GPUs.
    pub(super) faults: Arc<FaultState>,
    pub(super) view: View,
    pub(super) calls: BTreeMap<CallId, Call>,
    pub(super) queue: Queue,
    pub(super) looks: Looks,
    pub(super) turn: Option<Turn>,
    pub(super) next_ticket: u64,
    /// Removals of slices under way.
    pub(super) removals: BTreeMap<RemovalId, Removal>,
    pub(super) next_removal: u64,
    /// UUIDs of the GPUs that each of them changes.
    pub(super) removing: BTreeMap<RemovalId, BTreeSet<String>>,
    now: Milliseconds,
    pub(super) reading: bool,
    pub(super) read_at: Option<Milliseconds>,
    /// The name of the loss for which what may have been prepared is being gathered.
    pub(super) gathering: Option<String>,
    pub(super) writing_status: bool,
    retry_at: Option<Milliseconds>,
    tainted: Option<BTreeSet<String>>,
}

/// A Prepare call under way.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own; the stages say how far the call is"
)]
#[derive(Debug)]
pub(super) struct Call {
    pub(super) claim: ClaimRef,
    pub(super) give_up_at: Milliseconds,
    pub(super) stage: Stage,
    /// The claim, once it was read.
    pub(super) found: Option<Claim>,
    /// Whether `NodeDevices` was read uncached for this call.
    pub(super) looked: bool,
    /// The next turn looks at who uses what is recorded, not at who uses what the claim was allocated.
    pub(super) looks_at_record: bool,
    /// Whether it has had a look after its end: it has one, and no more.
    pub(super) looked_last: bool,
    /// Under [`InjectedBug::PermitBeforeWaitOnly`]: the permit was seen once.
    pub(super) permitted: bool,
    /// The slices that it asked for.
    pub(super) orders: Vec<SliceOrder>,
    /// UUIDs of the GPUs that are changed for it while it is [`Stage::Making`].
    pub(super) changing: BTreeSet<String>,
    /// What it had made is removed again.
    pub(super) slices_gone: bool,
    /// What it found where its own slice was to be made, and leaves there.
    pub(super) foreign: Option<Box<PlacedSlice>>,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Wants the lock to leave its mark.
    Mark,
    /// Its claim is being read.
    Reading,
    /// Wants the lock to answer from the record, or to record.
    Record,
    /// Waits for looks at GPUs, not for longer than this.
    Looking { until: Milliseconds },
    /// Waits for what the refusal says, or for the poll.
    Waiting { until: Milliseconds },
    /// Its slices are being made.
    Making,
    /// Wants the lock to record what was made.
    Finish(Made),
    /// Slices are being removed: its own, or those of an earlier allocation.
    Removing,
    /// Wants the lock to take its mark away, then answers.
    Leave(Answer),
    /// Wants the lock to undo what a failed write left, then answers.
    Undo(Answer),
}

impl Machine {
    /// An instance that has just started. The first [`Input`] sets it going.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            inventory: None,
            faults: Arc::default(),
            view: View::Unknown,
            calls: BTreeMap::new(),
            queue: Queue {
                acknowledge: true,
                uncached: true,
                ..Queue::default()
            },
            looks: Looks::default(),
            turn: None,
            next_ticket: 0,
            removals: BTreeMap::new(),
            next_removal: 0,
            removing: BTreeMap::new(),
            now: Milliseconds::default(),
            reading: false,
            read_at: None,
            gathering: None,
            writing_status: false,
            retry_at: None,
            tainted: None,
        }
    }

    /// When a [`Input::Tick`] is due at the latest; `None` while nothing waits for time.
    pub fn wake_at(&self) -> Option<Milliseconds> {
        self.calls
            .values()
            .filter_map(|call| match call.stage {
                Stage::Waiting { until } | Stage::Looking { until } => Some(until),
                _ => None,
            })
            .chain(self.retry_at)
            .min()
    }

    /// Whether anything that was seen of a GPU waits to be judged under the lock.
    pub fn holds_sights(&self) -> bool {
        let has_seen = |turn: &Turn| turn.has_seen();
        self.looks.holds_sights() || self.turn.as_ref().is_some_and(has_seen)
    }

    /// Tells what happened at `now`; returns what is to be done.
    pub fn input(&mut self, now: Milliseconds, input: Input) -> Vec<Effect> {
        self.now = self.now.max(now);
        let mut effects = Vec::new();
        match input {
            Input::Tick => {}
            Input::Inventory(inventory) => {
                self.inventory = Some(inventory);
                self.wake_waiting();
            }
            Input::Faults(faults) => self.faults = faults,
            Input::Observed(object) => self.observed(object),
            Input::Prepare(call, claim) => self.prepare_called(call, claim),
            Input::Unprepare(call, claim) => self.unprepare_called(call, claim, &mut effects),
            Input::Orphaned(orphans) => self.queue.orphans.extend(orphans),
            Input::ClaimRead(call, read) => self.claim_read(call, read),
            Input::NodeDevicesRead(read) => self.node_devices_read(read),
            Input::Gathered(found) => self.gathered(found),
            Input::Looked(look, sight) => self.looked(look, sight),
            Input::Locked(ticket, locked) => self.locked(ticket, locked, &mut effects),
            Input::Committed(ticket, result) => self.committed(ticket, result, &mut effects),
            Input::StatusWritten(outcome) => self.status_written(outcome),
            Input::SlicesMade(call, result) => self.slices_made(call, result),
            Input::SlicesRemoved(removal, result) => {
                self.slices_removed(removal, result, &mut effects);
            }
        }
        self.wake_due();
        self.start_turn(&mut effects);
        self.start_looks(&mut effects);
        effects
    }

    pub(super) fn now(&self) -> Milliseconds {
        self.now
    }

    pub(super) fn later(&self, milliseconds: u64) -> Milliseconds {
        Milliseconds(self.now.0.saturating_add(milliseconds))
    }

    /// Whether this rule is broken on purpose.
    #[cfg_attr(
        not(feature = "injected-bugs"),
        expect(
            clippy::unused_self,
            reason = "without the feature no rule can be broken"
        )
    )]
    pub(super) fn broken(&self, bug: InjectedBug) -> bool {
        #[cfg(feature = "injected-bugs")]
        {
            self.config.bug == Some(bug)
        }
        #[cfg(not(feature = "injected-bugs"))]
        {
            let _ = bug;
            false
        }
    }

    fn prepare_called(&mut self, call: CallId, claim: ClaimRef) {
        let give_up_at = self.later(self.config.wait_milliseconds);
        self.calls.insert(
            call,
            Call {
                claim,
                give_up_at,
                stage: Stage::Mark,
                found: None,
                looked: false,
                looks_at_record: false,
                looked_last: false,
                permitted: false,
                orders: Vec::new(),
                changing: BTreeSet::new(),
                slices_gone: false,
                foreign: None,
            },
        );
        self.queue.prepares.push_back(call);
    }

    /// The mark that a call leaves on disk.
    pub(super) fn mark(&self, call: CallId) -> String {
        format!("{}/{}", self.config.instance, call.0)
    }

    pub(super) fn request_acknowledgement(&mut self, uncached: bool) {
        self.queue.acknowledge = true;
        self.queue.uncached |= uncached;
    }

    /// The same, a little later and uncached.
    pub(super) fn request_later(&mut self) {
        self.queue.uncached = true;
        self.retry_later();
    }

    /// Tries to acknowledge again, a little later.
    pub(super) fn retry_later(&mut self) {
        self.retry_at = Some(self.later(RETRY_MILLISECONDS));
    }

    /// A call has found that the checkpoint was lost. It is rebuilt, if that is not under way, or about to be tried again: a call comes often.
    pub(super) fn request_rebuild(&mut self) {
        let soon = self.later(RETRY_MILLISECONDS);
        let is_tried_soon = self.retry_at.is_some_and(|at| at <= soon);
        if self.gathering.is_none() && self.queue.rebuild.is_none() && !is_tried_soon {
            self.request_acknowledgement(false);
        }
    }

    /// Looks again whether what is held still is. Another instance may give it back, and be stopped before its status
    /// says so: nothing else would ever tell this one.
    pub(super) fn look_at_held_later(&mut self) {
        let at = self.later(HELD_AGAIN_MILLISECONDS);
        self.retry_at.get_or_insert(at);
    }

    /// What every waiting call waits for may have come.
    pub(super) fn wake_waiting(&mut self) {
        for (&id, call) in &mut self.calls {
            if matches!(call.stage, Stage::Waiting { .. }) {
                call.stage = Stage::Record;
                self.queue.prepares.push_back(id);
            }
        }
    }

    fn wake_due(&mut self) {
        let now = self.now;
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.queue.acknowledge = true;
        }
        for (&id, call) in &mut self.calls {
            if let Stage::Waiting { until } | Stage::Looking { until } = call.stage
                && until <= now
            {
                self.looks.give_up(id);
                call.stage = Stage::Record;
                self.queue.prepares.push_back(id);
            }
        }
    }

    /// Lets a call wait, not beyond its end.
    pub(super) fn wait(&mut self, call: CallId) {
        let poll = self.later(POLL_MILLISECONDS);
        if let Some(waiting) = self.calls.get_mut(&call) {
            waiting.stage = Stage::Waiting {
                until: poll.min(waiting.give_up_at),
            };
        }
    }

    /// A permit is missing: looks past the watch, once per call and then now and then.
    pub(super) fn look_past_the_watch(&mut self, call: CallId, effects: &mut Vec<Effect>) {
        let due = self
            .read_at
            .is_none_or(|at| self.now.0.saturating_sub(at.0) >= READ_AGAIN_MILLISECONDS);
        let Some(waiting) = self.calls.get_mut(&call) else {
            return;
        };
        if (due || !waiting.looked) && !self.reading {
            waiting.looked = true;
            self.reading = true;
            effects.push(Effect::ReadNodeDevices);
        }
    }

    /// Gathers what may have been prepared, for the loss that has this name on disk.
    pub(super) fn gather(&mut self, rebuild: String, effects: &mut Vec<Effect>) {
        self.gathering = Some(rebuild);
        effects.push(Effect::Gather);
    }

    /// Writes the status unless a write is under way; that one's outcome leads here again.
    pub(super) fn write_status(&mut self, status: NodeDevicesStatus, effects: &mut Vec<Effect>) {
        let Some(object) = self.view.object() else {
            return;
        };
        let blind = self.broken(InjectedBug::NoUidInStatus);
        // The object may have been lost, and created again, since this was decided: another acknowledgement is due then.
        let is_about_it = object.metadata.uid.as_ref() == Some(&status.uid);
        if self.writing_status || !(is_about_it || blind) {
            return;
        }
        effects.push(Effect::WriteStatus {
            uid: object.metadata.uid.clone().filter(|_| !blind),
            resource_version: object.metadata.resource_version.clone().filter(|_| !blind),
            status,
        });
        self.writing_status = true;
    }

    pub(super) fn taint(&mut self, devices: BTreeSet<String>, effects: &mut Vec<Effect>) {
        if self.tainted.as_ref() != Some(&devices) {
            effects.push(Effect::TaintHeld(devices.clone()));
            self.tainted = Some(devices);
        }
    }

    pub(super) fn answer(&mut self, call: CallId, answer: Answer, effects: &mut Vec<Effect>) {
        self.calls.remove(&call);
        self.looks.forget(call);
        effects.push(Effect::Answer(call, answer));
    }

    pub(super) fn queue_prepare(&mut self, call: CallId, stage: Stage) {
        if let Some(waiting) = self.calls.get_mut(&call) {
            waiting.stage = stage;
            self.queue.prepares.push_back(call);
        }
    }
}
