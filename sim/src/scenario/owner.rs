//! Who makes the pods of a gang, what its ranks do, and what only an eviction puts right.

use std::collections::BTreeSet;

use super::apart;
use crate::random::Random;

/// Who makes the pods of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerKind {
    /// A Job: what fails or vanishes is made anew, as far as its limits let it.
    Job(JobShape),
    /// A user, pod by pod: what fails stays failed.
    User,
    /// A StatefulSet, all pods at once. Its ranks serve until its user deletes it. Once it replaces them, one by one.
    StatefulSet,
    /// A Deployment, likewise; it makes a new pod before it deletes an old one.
    Deployment,
}

impl OwnerKind {
    /// Whether its ranks end by themselves.
    pub fn is_finite(self) -> bool {
        matches!(self, Self::Job(_) | Self::User)
    }
}

/// What a Job is told about failures, and who controls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobShape {
    /// Whether it counts by index.
    pub counting: Counting,
    /// More failed pods end it.
    pub backoff_limit: i32,
    /// More failed pods of an index fail that index.
    pub backoff_limit_per_index: Option<i32>,
    /// `podReplacementPolicy: Failed`: a pod is replaced, and counted, only once it has failed.
    pub replaces_failed_only: bool,
    /// Seconds that it may be active.
    pub active_deadline_seconds: Option<i64>,
    /// What controls it.
    pub parent: Option<Parent>,
}

/// How a Job knows that it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Every index succeeded.
    Indexed,
    /// No `completions`: a pod succeeded, and none is active.
    WorkQueue,
}

/// What controls a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// A `JobSet`, or what does as it: a Job that failed is deleted and made anew, a few times; a Job that somebody else
    /// suspends is resumed.
    JobSet,
    /// A `CronJob`: it lets the Job be.
    CronJob,
}

impl JobShape {
    /// An Indexed Job that fails never, and that nothing controls.
    pub const PATIENT: Self = Self {
        counting: Counting::Indexed,
        backoff_limit: 1_000,
        backoff_limit_per_index: None,
        replaces_failed_only: false,
        active_deadline_seconds: None,
        parent: None,
    };

    fn draw(random: &mut Random, hardships: &Hardships) -> Self {
        if !hardships.have(Hardship::LimitedJobs) || random.one_in(3) {
            return Self::PATIENT;
        }
        let counting = if hardships.have(Hardship::WorkQueues) && random.one_in(5) {
            Counting::WorkQueue
        } else {
            Counting::Indexed
        };
        let is_per_index = counting == Counting::Indexed && random.one_in(5);
        Self {
            counting,
            backoff_limit: match (is_per_index, random.index(4)) {
                (true, _) => i32::MAX,
                (false, 0) => 0,
                (false, 1) => 6,
                (false, _) => 1_000,
            },
            backoff_limit_per_index: is_per_index.then_some(2),
            replaces_failed_only: random.one_in(3),
            active_deadline_seconds: random.one_in(6).then_some(900),
            parent: match random.index(6) {
                0 => Some(Parent::JobSet),
                1 => Some(Parent::CronJob),
                _ => None,
            },
        }
    }
}

/// What the ranks of a gang do besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranks {
    /// Whether they hang where one of them fails or vanishes, as collective operations do.
    pub hang: bool,
    /// How long an init container runs first, in seconds.
    pub init_seconds: Option<u64>,
    /// Whether they do nothing on SIGTERM, so that all their grace period passes.
    pub ignore_sigterm: bool,
    /// How long they work, in seconds; for three without.
    pub work_seconds: Option<u64>,
    /// What the first of them tells of its progress, if it does.
    pub progress: Option<Progress>,
}

/// What a gang says of its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// For how long it may tell the same, in seconds.
    pub deadline_seconds: u64,
    /// Whether it stands still once, with no rank that fails.
    pub stalls: bool,
}

/// What only an eviction of whole attempts puts right, or tells from what must not be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hardship {
    /// Users delete nothing by themselves that gets nowhere.
    PatientUsers,
    /// Jobs have limits of failures, parents, and more than one way to be done.
    LimitedJobs,
    /// Jobs without `completions`: whatever pods fail, others are made of no index.
    WorkQueues,
    /// Users suspend Jobs, and resume them.
    Suspensions,
    /// StatefulSets replace the pods of a gang one by one.
    RollingSets,
    /// Deployments make one pod more than the gang has.
    SurgingDeployments,
    /// Ranks hang where one of them fails.
    HangingRanks,
    /// Images never arrive at a node.
    MissingImages,
    /// Init containers take longer than a start may.
    LongInits,
    /// Machines die, and nobody says so.
    DeadMachines,
    /// Administrators stop Teams.
    TeamStops,
    /// Gangs of the common tier give way to others.
    Preemptions,
    /// Gangs of Jobs may start with fewer pods than they have.
    FewerPods,
    /// GPUs break, and their drivers say so; ranks on them die, or hang.
    BrokenDevices,
    /// Containers that are told to end do not, kubelets are silent, and machines are off.
    HungPods,
    /// Administrators drain nodes and devices, and some have gangs moved away from them.
    Drains,
    /// Gangs tell of their progress, and some stand still.
    Stalls,
}

/// All of them.
pub const HARDSHIPS: [Hardship; 17] = [
    Hardship::PatientUsers,
    Hardship::LimitedJobs,
    Hardship::WorkQueues,
    Hardship::Suspensions,
    Hardship::RollingSets,
    Hardship::SurgingDeployments,
    Hardship::HangingRanks,
    Hardship::MissingImages,
    Hardship::LongInits,
    Hardship::DeadMachines,
    Hardship::TeamStops,
    Hardship::Preemptions,
    Hardship::FewerPods,
    Hardship::BrokenDevices,
    Hardship::HungPods,
    Hardship::Drains,
    Hardship::Stalls,
];

/// Those that a run has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardships(BTreeSet<Hardship>);

impl Hardships {
    /// What every seed bears: in each of them gangs, Teams and machines draw their share of it. All others some seeds have
    /// ([`of_seed`](Self::of_seed)).
    pub fn borne() -> Self {
        let borne = [
            Hardship::LimitedJobs,
            Hardship::Suspensions,
            Hardship::LongInits,
            Hardship::DeadMachines,
            Hardship::TeamStops,
            Hardship::Preemptions,
            Hardship::FewerPods,
        ];
        Self(borne.into())
    }

    /// All of them.
    pub fn all() -> Self {
        Self(HARDSHIPS.into())
    }

    /// These: `all`, or names with commas between them; those that are [borne](Self::borne) besides. `None` where a name is
    /// not known.
    pub fn named(names: &str) -> Option<Self> {
        if names == "all" {
            return Some(Self::all());
        }
        let mut named = Self::borne();
        for name in names.split(',').filter(|name| !name.is_empty()) {
            let mut known = HARDSHIPS.into_iter();
            named
                .0
                .insert(known.find(|known| format!("{known:?}") == name)?);
        }
        Some(named)
    }

    /// What a seed has of these where it is left to the seed: what is [borne](Self::borne), and each of the others in one of four
    /// seeds, by a stream of its own. So each is met with and without each other one.
    #[must_use]
    pub fn of_seed(&self, seed: u64) -> Self {
        let borne = Self::borne();
        let is_had = |hardship: &Hardship| {
            borne.have(*hardship) || apart::is_drawn(seed, apart::stream_of(*hardship))
        };
        Self(self.0.iter().copied().filter(is_had).collect())
    }

    /// All of these but one.
    #[cfg(test)]
    pub(super) fn without(mut self, hardship: Hardship) -> Self {
        self.0.remove(&hardship);
        self
    }

    /// Whether this is one of them.
    pub fn have(&self, hardship: Hardship) -> bool {
        self.0.contains(&hardship)
    }
}

/// Mostly Jobs.
pub(super) fn draw(random: &mut Random, hardships: &Hardships) -> OwnerKind {
    if hardships.have(Hardship::RollingSets) && random.one_in(6) {
        return OwnerKind::StatefulSet;
    }
    if hardships.have(Hardship::SurgingDeployments) && random.one_in(8) {
        return OwnerKind::Deployment;
    }
    if random.one_in(3) {
        OwnerKind::User
    } else {
        OwnerKind::Job(JobShape::draw(random, hardships))
    }
}

/// What the ranks of a gang do, by who makes them.
pub(super) fn draw_ranks(random: &mut Random, owner: OwnerKind, hardships: &Hardships) -> Ranks {
    let hardship = |random: &mut Random, hardship, odds| {
        hardships.have(hardship) && owner.is_finite() && random.one_in(odds)
    };
    // Who bears with indexes that fail for good has ranks that do without each other. One that hung would hold what it has for ever.
    let does_without =
        matches!(owner, OwnerKind::Job(job) if job.backoff_limit_per_index.is_some());
    Ranks {
        hang: hardship(random, Hardship::HangingRanks, 2) && !does_without,
        init_seconds: hardship(random, Hardship::LongInits, 5).then(|| random.between(1, 1_500)),
        ignore_sigterm: random.one_in(4),
        // Drawn apart.
        work_seconds: None,
        progress: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardships_are_known_by_name() {
        assert_eq!(Hardships::named("all"), Some(Hardships::all()));
        assert_eq!(Hardships::named(""), Some(Hardships::borne()));
        let some = Hardships::named("RollingSets,HangingRanks").unwrap();
        assert!(some.have(Hardship::RollingSets) && some.have(Hardship::HangingRanks));
        assert!(!some.have(Hardship::MissingImages));
        assert_eq!(Hardships::named("RollingSet"), None);
    }

    #[test]
    fn every_seed_has_what_is_borne_and_of_the_others_each_with_and_without_each() {
        let borne = Hardships::borne();
        let others = || HARDSHIPS.into_iter().filter(|it| !borne.have(*it));
        let all = Hardships::all();
        let seeds: Vec<Hardships> = (0..400).map(|seed| all.of_seed(seed)).collect();
        for (seed, had) in (0..).zip(&seeds) {
            assert!(borne.0.is_subset(&had.0), "seed {seed}");
            assert_eq!(borne.of_seed(seed), borne, "seed {seed}");
        }
        for one in others() {
            let of_one = seeds.iter().filter(|had| had.have(one)).count();
            assert!((60..=140).contains(&of_one), "{one:?}: {of_one} of 400");
            for other in others().filter(|other| *other != one) {
                let both = seeds.iter().filter(|had| had.have(one) && had.have(other));
                let both = both.count();
                assert!((5..of_one).contains(&both), "{one:?}, {other:?}: {both}");
            }
        }
    }
}
