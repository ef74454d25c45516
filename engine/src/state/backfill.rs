//! A place is kept for a large gang that waits at the head, and others run there meanwhile as long as they are gone in time.
//!
//! Without that, small gangs start wherever a few GPUs come free, and those that a large gang needs are never free together.
//! In the words of batch schedulers: the head has a *reservation*, and what fits beside it is *backfilled*. It has nothing to do
//! with what is kept for preemptors ([`super::reservations`]): nobody gives way here, and no quota is charged ahead.
//!
//! * **Who** ([`heads`]). A gang of at least two devices that has quota and lacks a place, [`HEAD_WAITS_SECONDS`] after it did first.
//!   A Flavor keeps a place for one gang at a time, so what stands idle never adds up to more than one gang's. Teams take turns, the one
//!   whose turn is longest ago first, and so do the classes of a Team ([`turns`]): a place that is kept is never the right of one Team, nor of
//!   one gang. A place that was looked for in vain was a turn, too, and is looked for again after [`HEAD_WAITS_SECONDS`], then after twice
//!   and four times that.
//! * **Where.** On the nodes that are free soonest ([`super::soonest`]).
//! * **Who is let in** ([`entry`]): the gang itself; who goes before it, by its tier or in its own Team's line; who is
//!   gone by the time that the place is free, by the most that it runs; and whom the gang may preempt in its own Team by then. To everybody
//!   else these nodes are full ([`crate::placement::View`]).
//! * **At what cost** ([`kept`]). What stands idle there is counted, in GPU-seconds. Where it is known when the place is free, and the Team has the
//!   quota of its own, that is all: it ends by itself, within a day. Where it is not known, where a place that lost a node is found again only
//!   for a time more than a day after the first one was kept, or where quota is borrowed, no more stands idle than the gang's own GPUs for
//!   [`IDLE_SECONDS`]: then the place is given up, and the Flavor keeps none for as long as its own GPUs would
//!   take to come to what stood idle, and no longer than that.
//!   A gang that does not end in time makes a time unknown that was known.
//!   A place of unknown end is given up, too, where nothing more came free for [`STANDS_STILL_SECONDS`], be it that nothing is idle: else who
//!   never ends would take the only place of the Flavor. Whoever outlasts a place is counted on less than others when the next one is looked
//!   for. It counts what is idle, whether or not somebody
//!   else would use it: that is simple, and errs on the side of those who are kept out.
//! * **How long.** Until the gang is admitted, wherever, or others give way to it. A place that is given up for any other reason,
//!   be it that the gang was withdrawn, is paid for in the same way. A gang that loses a node of its place has another one looked for at
//!   once, at the same account, and one that is told anew keeps its place and its age unless it asks for something else.
//!
//! Time is told with each decision, and the latest that was told counts: a clock that goes back stands still. After a restart
//! everything here is found again from what is told: for how long a gang lacks a place comes with it
//! ([`crate::Gang::lacks_place_since`]), and until everybody was judged once a place is kept at once, so that those who are judged
//! later do not take it. What stood idle before is not known: the account begins anew.

mod entry;
mod heads;
mod kept;
mod turns;

use std::collections::{BTreeMap, BTreeSet};

use kept::Kept;
pub(super) use turns::Looked;
use turns::{Heads, Lacking};

use super::{
    State,
    ids::{ClassId, TeamId},
    waiting::WaitingGang,
};
use crate::{
    amount::Amount,
    decision::HeadReservation,
    names::{FlavorName, GangUid, NodeName, Timestamp},
    queue::Place,
    quota::Rank,
};

/// For how many seconds a gang lacks a place before one is kept for it.
const HEAD_WAITS_SECONDS: i64 = 600;

/// Where it is not known when a place is free, its gang's own GPUs may stand idle for so many seconds.
const IDLE_SECONDS: i64 = 600;

/// Where it is not known when a place is free, it is given up once nothing more came free there for so many seconds.
const STANDS_STILL_SECONDS: i64 = 2 * IDLE_SECONDS;

/// An end that is further away than a day says as little as none.
pub(super) const FORESEEABLE_SECONDS: i64 = 86_400;

/// For how many heads a place is looked for at most before everybody was judged once.
const MOST_LOOKED_FOR: usize = 8;

/// How often the time doubles after which a place is looked for again that was not found.
const MOST_DOUBLED: u32 = 2;

/// Of how many classes whose time has come a call takes notice.
const MOST_DUE: usize = 1_024;

/// How many heads that have no quota by now a call passes over.
const MOST_PASSED: usize = 64;

/// How many devices a gang needs at least for a place to be kept for it: for one device, whatever comes free is enough.
const FEWEST_DEVICES: usize = 2;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Backfill {
    /// The latest time that was told.
    now: Timestamp,
    kept: BTreeMap<FlavorName, Kept>,
    /// Until when a Flavor keeps no place.
    rests: BTreeMap<FlavorName, Timestamp>,
    /// How many places that were kept in vain were outlasted by gangs of unknown end. Forgotten some time after they are gone.
    outlasted: BTreeMap<GangUid, u32>,
    /// When it was the turn of a Team last: a number that grows.
    turns: BTreeMap<(FlavorName, TeamId), u64>,
    turns_given: u64,
    /// Classes that lack a place only.
    lacking: BTreeMap<ClassId, Lacking>,
    /// Those that are not thought of yet, by when they are.
    due: BTreeSet<(Timestamp, Place, ClassId)>,
    /// The others.
    heads: BTreeMap<FlavorName, Heads>,
    /// Where a place was looked for last: those Flavors after it come first.
    looked_on: Option<FlavorName>,
    /// Whether some are left that no place was looked for.
    is_more_to_look_for: bool,
    /// Whether everybody was judged once. Before, for so many heads a place was looked for.
    has_settled: bool,
    looked_for: usize,
    /// Whether a place was given up since somebody asked.
    gave_up_a_place: bool,
}

/// Who a place may be kept for, and where that is.
pub(super) struct Found {
    pub(super) nodes: BTreeSet<NodeName>,
    pub(super) domain: Vec<String>,
    /// When it is free, if that is known.
    pub(super) starts_at: Option<Timestamp>,
    /// Thousandths of a GPU that the gang would get there.
    pub(super) gpus: Amount,
}

impl Backfill {
    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// Whether everybody was judged once.
    pub(super) fn has_settled(&self) -> bool {
        self.has_settled
    }

    /// The nodes that are kept, by what is told of them.
    pub(super) fn told(&self) -> impl Iterator<Item = &HeadReservation> {
        self.kept.values().map(|kept| &kept.told)
    }

    /// How many places that were kept in vain a gang outlasted.
    pub(super) fn outlasted_by(&self, gang: &GangUid) -> u32 {
        self.outlasted.get(gang).copied().unwrap_or(0)
    }

    /// Whether a Flavor keeps no place for anybody else now.
    fn is_taken(&self, flavor: &FlavorName) -> bool {
        self.kept.contains_key(flavor) || self.rests.contains_key(flavor)
    }

    /// When something is due by time alone.
    pub(super) fn due_next(&self) -> Option<Timestamp> {
        let soon = after(self.now, 1);
        let due = self.due.first().map(|(at, ..)| soon.max(*at));
        let kept = self.kept.values().filter_map(Kept::due_at).min();
        let waited_for = self.rests.iter();
        let waited_for = waited_for.filter(|(flavor, _)| self.heads.contains_key(*flavor));
        let rested = waited_for.map(|(_, until)| *until).min();
        let soon = self.is_more_to_look_for.then_some(soon);
        [due, kept, rested, soon].into_iter().flatten().min()
    }
}

/// So many seconds later.
pub(super) fn after(at: Timestamp, seconds: i64) -> Timestamp {
    Timestamp(at.0.saturating_add(seconds))
}

/// The same where the seconds come from outside.
pub(super) fn end_after(at: Timestamp, seconds: u64) -> Timestamp {
    after(at, i64::try_from(seconds).unwrap_or(i64::MAX))
}

impl State {
    /// The places that are kept for gangs that waited long, by Flavor.
    pub fn head_reservations(&self) -> impl Iterator<Item = &HeadReservation> {
        self.backfill.told()
    }
}

fn rank(waiting: &WaitingGang) -> Rank {
    Rank {
        priority: waiting.gang.priority,
        queued_at: waiting.gang.queued_at,
    }
}
