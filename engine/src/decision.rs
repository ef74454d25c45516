//! What is decided, and why.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{
    amount::{Amount, FlavorResource, Resource, ResourceCharge},
    names::{
        ClaimUid, CohortName, FlavorName, GangUid, LevelName, NodeName, PodUid, TeamName,
        Timestamp, TopologyName,
    },
    placement::Effort,
    quota::PreemptionReason,
};

/// How much one commit can carry. Each number counts over all gangs of the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitRoom {
    /// Gangs: intents of the Ledger.
    pub gangs: usize,
    /// Pods of these gangs.
    pub pods: usize,
    /// Claims of these pods, each once per gang.
    pub claims: usize,
    /// Nodes of the plans, each once per gang.
    pub nodes: usize,
}

impl CommitRoom {
    /// Room for everything.
    pub const UNLIMITED: Self = Self {
        gangs: usize::MAX,
        pods: usize::MAX,
        claims: usize::MAX,
        nodes: usize::MAX,
    };

    /// Whether so much fits.
    pub(crate) fn holds(&self, size: &Self) -> bool {
        size.gangs <= self.gangs
            && size.pods <= self.pods
            && size.claims <= self.claims
            && size.nodes <= self.nodes
    }

    /// What is left after so much, which fits.
    pub(crate) fn less(&self, size: &Self) -> Self {
        Self {
            gangs: self.gangs.saturating_sub(size.gangs),
            pods: self.pods.saturating_sub(size.pods),
            claims: self.claims.saturating_sub(size.claims),
            nodes: self.nodes.saturating_sub(size.nodes),
        }
    }
}

/// How much may be admitted by one call of [`crate::State::decide`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The room that is left in the next commit.
    pub left: CommitRoom,
    /// The room of an empty commit: what exceeds this can never be committed.
    pub empty: CommitRoom,
    /// After how many looks ([`crate::State::visited`]) of searches that found nothing it is enough for one call. A look takes about
    /// 40 nanoseconds of a current server core. Groups that wait for a place are asked with as many, all of them together.
    pub looks_in_vain: u64,
}

impl Budget {
    /// No bound.
    pub const UNLIMITED: Self = Self {
        left: CommitRoom::UNLIMITED,
        empty: CommitRoom::UNLIMITED,
        looks_in_vain: u64::MAX,
    };

    /// The looks in vain of about twenty milliseconds: ten gangs that take all that one decision may.
    pub const LOOKS_IN_VAIN: u64 = 10 * Effort::ONE_DECISION;
}

/// What [`crate::State::decide`] decided. What could not be carried out comes back as an observation
/// ([`crate::Update`]) or by [`crate::State::undo`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// Gangs that get a charge and a placement, in the order in which they are to be committed. The engine counts
    /// them as held from now on.
    pub admissions: Vec<Admission>,
    /// Gangs that are to give way, each time for one other. From now on the engine keeps for that one what is freed. One that had room
    /// without them by a later turn of the same call is among the admissions, too, and they are spared.
    pub preemptions: Vec<Preemption>,
    /// Gangs that were to give way, hold something still, and give way to nobody any more: for whom they were to is gone, another
    /// one, stopped, or waited too long. In the order of their UIDs.
    pub spared: Vec<GangUid>,
    /// When something is due though nothing is observed: nobody may be preempted before the end of its minimum run time, and
    /// nothing is kept for a gang for ever. Ask again then.
    pub look_again_at: Option<Timestamp>,
    /// Gangs that no commit can carry. Told once; [`crate::State::explain`] repeats it.
    pub too_large: Vec<TooLarge>,
    /// Whether there was more to decide than the budget allowed: the first gang that is not among the
    /// admissions did not fit into what was left, and nothing behind it was admitted. Ask again with the next commit's room.
    pub exhausted: bool,
    /// Whether it ended because searches had been in vain for long enough. Nobody was passed over: asked again, it goes on
    /// where it stopped, with the same admissions.
    pub interrupted: bool,
    /// Teams of which some namespace counts as having used more or less than before ([`crate::State::namespace_use`]), by name: the
    /// order of their gangs may be another one.
    pub use_changed: Vec<TeamName>,
    /// Who may wait for another reason than before.
    pub reasons_changed: ReasonsChanged,
    /// What was looked at.
    pub visited: Visited,
}

impl Decisions {
    /// Whether there may be more to decide.
    pub fn is_cut_short(&self) -> bool {
        self.exhausted || self.interrupted
    }
}

/// Gangs whose reason to wait may be another one than before (not its numbers only). Nothing is computed for it: ask
/// [`crate::State::explain`] for those that are to be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReasonsChanged {
    /// Single gangs, in the order of their UIDs.
    pub gangs: Vec<GangUid>,
    /// Teams all of whose waiting gangs are concerned, by name.
    pub teams: Vec<TeamName>,
}

/// How much was looked at. The same input gives the same numbers: they are what an event costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visited {
    /// Teams whose turn it was.
    pub teams: usize,
    /// Groups of waiting gangs that were asked whether what came free could help any of them.
    pub groups: usize,
    /// Classes of gangs that were judged, once for each time.
    pub classes: usize,
    /// Placements that were searched.
    pub plans: usize,
    /// Searches for victims: one for each charge by which somebody was to have a place.
    pub searches: usize,
    /// Teams whose next gang was known, and that were looked at again since the turn of another one might have changed that.
    pub heads: usize,
    /// Gangs that recover and wait, and were looked at: whether anything came free for them, and whether they have room.
    pub recovering: usize,
}

impl Visited {
    /// The sum of all.
    pub fn total(&self) -> usize {
        self.teams
            + self.groups
            + self.classes
            + self.plans
            + self.searches
            + self.heads
            + self.recovering
    }
}

/// Gangs that give way so that another one has its quota and its place.
///
/// The other one is admitted once they are proved released; until then what they free is kept for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// The gang that they give way to. It goes on waiting.
    pub gang: GangUid,
    /// Its attempt.
    pub attempt: i64,
    /// Who gives way, in the order in which they were chosen. Some may be ending already, by another cause.
    pub victims: Vec<Preempted>,
}

/// A gang that gives way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preempted {
    /// The gang.
    pub gang: GangUid,
    /// By what right.
    pub reason: PreemptionReason,
}

/// To whom a gang is to give way ([`crate::State::gives_way_to`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivesWay<'a> {
    /// `namespace/name` of the gang that waits for it.
    pub preemptor: &'a str,
    /// Its UID.
    pub preemptor_uid: &'a GangUid,
    /// By what right.
    pub reason: PreemptionReason,
}

/// Why a gang is to go without another one that asks for it: its Team uses more than it may, and says [`crate::Shrink::Evict`]
/// ([`crate::State::over_quota`]). What it names, and the numbers, are those of the last change before it was to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverQuota {
    /// The Team.
    pub team: TeamName,
    /// Of what too much is used.
    pub of: FlavorResource,
    /// The Cohort in which that is so, and from which the Team borrows; without it the Team itself is over its limits.
    pub cohort: Option<CohortName>,
    /// What is used there, without what is being given back already.
    pub used: Amount,
    /// What may be.
    pub most: Amount,
}

/// What is kept for a gang to which others give way ([`crate::State::kept_for`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept<'a> {
    /// Since when.
    pub since: Timestamp,
    /// When it is kept no longer.
    pub until: Timestamp,
    /// On which Flavor.
    pub flavor: &'a FlavorName,
    /// Who gives way to it and holds something still, and by what right.
    pub victims: &'a BTreeMap<GangUid, PreemptionReason>,
}

/// What is kept for a gang that recovers ([`crate::State::recovery_of`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptForRecovery {
    /// The attempt that ended.
    pub attempt: i64,
    /// When it is kept no longer.
    pub until: Timestamp,
    /// Pods of that attempt.
    pub pods: usize,
    /// Pods whose quota is kept, or held by that attempt still.
    pub charged: usize,
    /// Of these, pods whose place is, too.
    pub placed: usize,
}

/// A gang that is larger than an empty commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// The gang.
    pub gang: GangUid,
    /// Its attempt.
    pub attempt: i64,
    /// What it needs. Nodes are counted only once a placement was found; before, they are 0.
    pub needs: CommitRoom,
    /// What a commit can carry.
    pub most: CommitRoom,
}

/// Leave to start: what is charged and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The gang.
    pub gang: GangUid,
    /// Its attempt.
    pub attempt: i64,
    /// The Team that is charged.
    pub team: TeamName,
    /// Generation of the Team whose limits it was judged by.
    pub team_generation: i64,
    /// Its pods, rank by rank; of a gang that may start with fewer than all, the first of them.
    pub pods: Vec<AdmittedPod>,
    /// How many pods the gang has, admitted or not.
    pub gang_pods: usize,
    /// The Topology by which it was placed, if its Flavor names one.
    pub topology: Option<TopologyName>,
    /// The narrowest level whose one domain holds the gang, if one does; `node` if a single node does.
    pub level: Option<LevelName>,
    /// Path of that domain, outermost first.
    pub domain: Vec<String>,
}

/// One pod of an admitted gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedPod {
    /// The pod.
    pub uid: PodUid,
    /// Its node.
    pub node: NodeName,
    /// Its claims, with what each is charged.
    pub claims: Vec<AdmittedClaim>,
    /// What it is charged besides claims.
    pub charged: Vec<ResourceCharge>,
}

/// What a claim is charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedClaim {
    /// The claim.
    pub uid: ClaimUid,
    /// The Flavor: of its devices, if it was allocated before, else the one that the gang was admitted on.
    pub flavor: FlavorName,
    /// Thousandths of a GPU.
    pub gpus: Amount,
    /// Bytes of memory.
    pub vram: Amount,
}

/// Why a gang waits, and how far it is from the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The gang.
    pub gang: GangUid,
    /// Its place in its Team's queue, from 1.
    pub position: usize,
    /// Why, with numbers.
    pub why: Why,
}

/// A place that is kept for a gang that lacked one for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadReservation {
    /// The gang.
    pub gang: GangUid,
    /// `namespace/name` of the gang.
    pub gang_name: String,
    /// The Flavor that it would be charged to.
    pub flavor: FlavorName,
    /// Path of the domain, outermost first.
    pub domain: Vec<String>,
    /// The nodes on which others are planned only if they are gone in time.
    pub nodes: BTreeSet<NodeName>,
    /// Since when.
    pub since: Timestamp,
    /// When they are free, if that is known.
    pub starts_at: Option<Timestamp>,
    /// What the gang would get, in thousandths of a GPU.
    pub gpus: Amount,
    /// What stood idle there so far, in thousandths of a GPU times seconds.
    pub idle_gpu_seconds: i128,
    /// How much may, before the place is given up; without, as much as it takes.
    pub most_idle_gpu_seconds: Option<i128>,
}

/// Who stands in the way: gangs that hold what is asked for, largest first, at most three named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocker {
    /// `namespace/name` of gangs.
    pub gangs: Vec<String>,
    /// How many more are known.
    pub more: usize,
    /// Whether not everything was looked at, so that there may be others.
    pub is_partial: bool,
}

/// Why a gang waits. Its text names the numbers; the edge maps each variant to one stable reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was not judged yet: the budget of the last decision ended before its turn came.
    NextCommit,
    /// The Team is stopped.
    TeamStopped,
    /// The Cohorts above the Team form a cycle: nothing of that tree is admitted until it is cut.
    CohortCycle {
        /// A Cohort on the cycle, the first by name.
        cohort: CohortName,
    },
    /// A gang before it in the same Team waits for the same Flavor and the Team is `StrictFifo`.
    BehindHead {
        /// `namespace/name` of the gang before.
        head: String,
        /// The Flavor; none where the Team has no quota and the gang needs none.
        flavor: Option<FlavorName>,
    },
    /// Others use the quota.
    Quota {
        /// Of which Flavor and resource.
        of: FlavorResource,
        /// Asked for.
        asked: Amount,
        /// What the Team could get now, borrowing included.
        available: Amount,
        /// Of that, what it would borrow.
        borrowable: Amount,
        /// Whether the gang may have that, too ([`crate::Gang::may_borrow`]).
        may_borrow: bool,
        /// Who uses it.
        blocker: Blocker,
    },
    /// More than the Team may ever have.
    ExceedsMaxQuota {
        /// Of which Flavor and resource.
        of: FlavorResource,
        /// Asked for.
        asked: Amount,
        /// The most that it may ever have.
        most: Amount,
        /// Whether that includes what may be borrowed: the gang may not, else ([`crate::Gang::may_borrow`]).
        may_borrow: bool,
    },
    /// No quota of the Team names a resource that is asked for.
    NoQuotaForResource {
        /// The resource.
        resource: Resource,
        /// The Flavors that the Team has.
        flavors: Vec<FlavorName>,
    },
    /// Quota is there, free nodes are not.
    Placement {
        /// Pods of the gang.
        pods: usize,
        /// How many of them fit at best, in one domain of the required level if there is one.
        fit: usize,
        /// Whether not every way was counted, so that more may fit.
        is_fit_partial: bool,
        /// Whether the search met its bound: there may be a place that it did not find.
        gave_up: bool,
        /// The required level.
        level: Option<LevelName>,
        /// Nodes looked at.
        nodes: usize,
        /// Why nodes were left out: cause and number, most frequent first.
        excluded: Vec<(String, usize)>,
        /// Who occupies the nodes.
        blocker: Blocker,
    },
    /// It would not fit on the empty cluster.
    PlacementImpossible {
        /// Pods of the gang.
        pods: usize,
        /// How many fit on the empty cluster.
        fit: usize,
        /// Whether not every way was counted, so that more may fit (but not all).
        is_fit_partial: bool,
        /// The required level.
        level: Option<LevelName>,
        /// Nodes looked at.
        nodes: usize,
        /// Why nodes were left out: cause and number, most frequent first.
        excluded: Vec<(String, usize)>,
    },
    /// What others gave up is not proved released yet; the gang fits as soon as it is.
    Release {
        /// Pods whose devices are not proved released.
        pods: usize,
        /// Who held them.
        blocker: Blocker,
        /// `namespace/name` of the gang that goes first, if another one is to have what is released.
        behind: Option<String>,
    },
    /// Others give way to it: it is admitted once they are proved released.
    Preemption {
        /// Who does.
        victims: Blocker,
    },
    /// A place is kept for it, since it waits for long: it is admitted once that is free.
    PlaceKept {
        /// Where, and at what cost so far.
        reservation: HeadReservation,
        /// When that was so.
        now: Timestamp,
    },
    /// It would have a place if that were not kept for a gang that waits for long.
    HeldOff {
        /// `namespace/name` of that gang.
        behind: String,
        /// In how many seconds that gang is to start there, if it is known: whoever runs no longer is let in until then.
        seconds: Option<u64>,
    },
    /// An attempt of it ended by a fault or the like, and what that held is kept for it; there is no room for the next attempt yet.
    Recovering {
        /// What is kept.
        kept: KeptForRecovery,
        /// When that was so.
        now: Timestamp,
    },
    /// A claim is held by another gang.
    ClaimShared {
        /// The claim.
        claim: ClaimUid,
        /// `namespace/name` of the holder.
        holder: String,
    },
    /// No commit can carry it.
    TooLarge {
        /// What it needs. Nodes are counted only once a placement was found; before, they are 0.
        needs: CommitRoom,
        /// What a commit can carry.
        most: CommitRoom,
    },
    /// A number does not fit.
    Overflow,
}

impl fmt::Display for Blocker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gangs.is_empty() {
            return formatter.write_str("nobody");
        }
        formatter.write_str(&self.gangs.join(", "))?;
        match (self.more, self.is_partial) {
            (0, false) => Ok(()),
            (0, true) => formatter.write_str(" and maybe others"),
            (more, false) => write!(formatter, " and {more} more"),
            (more, true) => write!(formatter, " and at least {more} more"),
        }
    }
}
