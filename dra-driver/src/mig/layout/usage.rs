//! Who has a part of a GPU, and for what that is a reason to wait.

use muster_device::{MigFacts, MigInstance, MigProfile, Placement};

use super::{
    places::{Part, target},
    steps::{Goal, Step},
};

/// A claim that has a part of a GPU, by the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// Which claim it is, for people.
    pub claim: String,
    /// Its slices of the GPU; `None`: it has the whole GPU.
    pub slices: Option<Vec<Part>>,
    /// Whether it has them for administrative access: it takes them from nobody then, and they may go while it looks at them.
    pub is_for_admin: bool,
}

/// Who has a part of a GPU, as far as this node can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Nobody.
    Idle,
    /// Somebody; who it is, for people.
    Used(String),
    /// The same, and each of them has slices that are there, and no more.
    UsedInSlices(String),
}

impl Usage {
    /// Who keeps a step from being taken. A slice is made where nothing lies.
    pub fn forbids(&self, step: &Step) -> Option<&str> {
        match (self, step) {
            (Self::Idle, _) | (Self::UsedInSlices(_), Step::Create { .. }) => None,
            (Self::Used(who) | Self::UsedInSlices(who), _) => Some(who),
        }
    }
}

/// What is seen of a GPU that is to become something.
#[derive(Clone, Debug)]
pub struct Sight<'a> {
    /// What it can be cut into.
    pub mig: &'a MigFacts,
    /// Its slices, as they are now.
    pub live: &'a [MigInstance],
    /// Its slices, as what is published has them.
    pub published: &'a [MigInstance],
    /// Who has a part of it, by records and processes.
    pub usage: Usage,
    /// Which claims have a part of it, by the API server; `None`: it was not asked.
    pub allocated: Option<Vec<Allocated>>,
    /// Whether its taint is published.
    pub is_fenced: bool,
    /// What it is to become.
    pub goal: &'a Goal,
    /// Whether its mode may be switched.
    pub may_toggle: bool,
}

impl Sight<'_> {
    /// The claim that keeps the GPU as it is: one that has a part of it which it will not have any more.
    pub(super) fn keeps_from<'b>(&self, allocated: &'b [Allocated]) -> Option<&'b str> {
        let target = match self.goal {
            Goal::Cut(cut) => target(self.mig, self.live, cut, &awaited(allocated)),
            Goal::Whole => Ok(Vec::new()),
        };
        let target = target.unwrap_or_default();
        let has = |(number, at): &Part| {
            let is_it = |(profile, placement): &(&MigProfile, Placement)| {
                profile.gpu_instance_profile == *number && placement == at
            };
            target.iter().any(is_it)
        };
        let is_kept = |it: &&Allocated| {
            let slices = it.slices.as_ref();
            it.is_for_admin || slices.is_some_and(|slices| slices.iter().all(has))
        };
        let claim = allocated.iter().find(|it| !is_kept(it))?;
        Some(&claim.claim)
    }
}

/// The slices that claims have been given, whether they are there or not; those for administrative access last.
pub fn awaited(allocated: &[Allocated]) -> Vec<Part> {
    let of = |is_for_admin: bool| {
        let claims = allocated.iter();
        let claims = claims.filter(move |it| it.is_for_admin == is_for_admin);
        claims.filter_map(|it| it.slices.as_ref())
    };
    of(false).chain(of(true)).flatten().copied().collect()
}
