//! A Team as the queue sees it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    backfill::Looked,
    class_line::ClassLine,
    ids::{ClassId, GangId, ShapeId},
    lines::Lines,
    namespace_line::NamespaceLine,
    waiting::WaitingGang,
    waits::Wait,
};
use crate::{
    amount::FlavorResource,
    fairness::WeightedUse,
    model::Queueing,
    names::{NamespaceName, TeamName, Timestamp},
    placement::Refusal,
    queue::{Place, Standing},
    quota::{FlavorFungibility, Lack, NodeId, PairId, request::Assignment},
};

/// [`crate::Gang::may_borrow`].
pub(super) type MayBorrow = bool;

/// A Team that is known, by its object or because a gang of it waits.
#[derive(Clone, Debug)]
pub(super) struct TeamEntry {
    pub(super) name: TeamName,
    /// Where it stands in the quota tree; `None` while nothing of it can be admitted.
    pub(super) node: Option<NodeId>,
    /// What gangs are charged to, by Flavor in the order in which they are tried.
    pub(super) assignments: Arc<[Assignment]>,
    /// How its gangs choose between them.
    pub(super) fungibility: FlavorFungibility,
    /// The gangs that wait for admission, by place: first to be served first, unless `namespaces` says otherwise.
    pub(super) line: BTreeMap<Place, GangId>,
    /// The same in the order in which they are served, where that goes by what their namespaces used.
    pub(super) namespaces: Option<NamespaceLine>,
    /// The classes with gangs of a namespace, there.
    pub(super) classes_of: BTreeMap<NamespaceName, BTreeSet<ClassId>>,
    /// The gangs that wait for what others give up for them, in the same order: they are not judged, and hold up others where the
    /// order is strict.
    pub(super) given_way: BTreeMap<Place, GangId>,
    /// How many gangs were told as waiting, those included that hold something.
    pub(super) gangs: usize,
    /// How many of `line` ask for no device.
    pub(super) without_devices: usize,
    pub(super) classes: BTreeMap<(ShapeId, MayBorrow), ClassId>,
    pub(super) discipline: Discipline,
    /// Queues in which it has a class.
    pub(super) queues: BTreeSet<Wait>,
    /// Whether it is listed there: not while it is served, nor after it had its turn in a round.
    pub(super) listed: bool,
}

/// In which order a Team's gangs are admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Discipline {
    /// Who does not fit is passed over.
    BestEffort,
    /// Nobody is admitted on a Flavor before those who are before it in the line of that.
    StrictFifo(Lines),
}

impl TeamEntry {
    pub(super) fn new(name: TeamName) -> Self {
        Self {
            name,
            node: None,
            assignments: Arc::new([]),
            fungibility: FlavorFungibility::default(),
            line: BTreeMap::new(),
            namespaces: None,
            classes_of: BTreeMap::new(),
            given_way: BTreeMap::new(),
            gangs: 0,
            without_devices: 0,
            classes: BTreeMap::new(),
            discipline: Discipline::BestEffort,
            queues: BTreeSet::new(),
            listed: true,
        }
    }

    pub(super) fn set_discipline(&mut self, queueing: Queueing) {
        self.discipline = match queueing {
            Queueing::BestEffort => Discipline::BestEffort,
            Queueing::StrictFifo => Discipline::StrictFifo(Lines::new(self.assignments.len())),
        };
    }

    /// By what a namespace stands that has a gang in line.
    pub(super) fn used_by(&self, namespace: &NamespaceName) -> WeightedUse {
        let line = self.namespaces.as_ref();
        let used = line.and_then(|line| line.used_by(namespace));
        used.unwrap_or_default()
    }

    /// Where a gang stands that is in line.
    pub(super) fn standing_of(&self, waiting: &WaitingGang) -> Standing {
        Standing::new(self.used_by(&waiting.namespace), waiting.place.clone())
    }

    /// Where a gang stands in line that is not judged. One to which others give way is before all others of its tier,
    /// whatever its namespace uses, where that counts: it had its turn.
    pub(super) fn standing_aside(&self, waiting: &WaitingGang) -> Standing {
        if waiting.is_reserved_for && self.namespaces.is_some() {
            return Standing::new(WeightedUse::NOTHING, waiting.place.clone());
        }
        self.standing_of(waiting)
    }

    /// The gang at a place, be it judged or not.
    pub(super) fn gang_at(&self, place: &Place) -> Option<GangId> {
        let gang = self.line.get(place).or_else(|| self.given_way.get(place));
        gang.copied()
    }

    /// All that wait, first to be served first. Where that goes by what namespaces used, those are before all others to which somebody
    /// gives way already.
    pub(super) fn waiting(&self) -> impl Iterator<Item = GangId> {
        let mut given_way = self.given_way.iter().peekable();
        let by_place = self.namespaces.is_none().then_some(&self.line);
        let mut by_place = by_place.into_iter().flatten().peekable();
        let by_use = self.namespaces.iter().flat_map(NamespaceLine::in_order);
        let merged = std::iter::from_fn(move || {
            let is_given_way = match (given_way.peek(), by_place.peek()) {
                (Some((one, _)), Some((other, _))) => one < other,
                (one, _) => one.is_some(),
            };
            let next = if is_given_way {
                given_way.next()
            } else {
                by_place.next()
            };
            next.map(|(_, id)| *id)
        });
        merged.chain(by_use)
    }

    /// How many of them go before a gang. It counts them.
    pub(super) fn before(&self, waiting: &WaitingGang) -> usize {
        let place = &waiting.place;
        let given_way = self.given_way.range(..place).count();
        match &self.namespaces {
            None => given_way + self.line.range(..place).count(),
            Some(_) if self.given_way.contains_key(place) => given_way,
            Some(line) => self.given_way.len() + line.before(&self.standing_of(waiting)),
        }
    }

    pub(super) fn is_strict(&self) -> bool {
        self.discipline != Discipline::BestEffort
    }
}

/// Gangs of one Team that ask for the same: they are refused together.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) team: super::ids::TeamId,
    pub(super) shape: ShapeId,
    pub(super) line: ClassLine,
    /// What it waits for; nothing while its Team is stopped.
    pub(super) waits: BTreeSet<Wait>,
    /// Whether they may borrow.
    pub(super) may_borrow: MayBorrow,
    /// See [`super::waits::Waits::watch`].
    pub(super) watches: Vec<(NodeId, PairId)>,
    /// See [`super::waits::Waits::wait_for_nominal`].
    pub(super) within_nominal: Vec<(NodeId, PairId, i128)>,
    /// Why it was refused last, roughly: the nearest of its Flavors' reasons, and of what too little was there by that. By name, since
    /// the numbers of a tree are others once limits changed.
    pub(super) reason: Option<(Reason, Vec<FlavorResource>)>,
    /// When it was first refused for a place, and not for quota.
    pub(super) lacks_place_since: Option<Timestamp>,
    /// How often a place was looked for, to be kept.
    pub(super) looked: Looked,
}

/// What a class was refused for, nearest to admission first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    /// No place, now or for ever.
    Place,
    Quota,
    Order,
    Limits,
    Other,
}

/// Why a Flavor refuses a gang.
#[derive(Clone, Debug)]
pub(super) enum Refusing {
    /// Less is available now.
    Quota {
        pair: PairId,
        asked: crate::amount::Amount,
        lack: Lack,
    },
    /// The Team would borrow, and the gang may not.
    Nominal {
        pair: PairId,
        asked: crate::amount::Amount,
        /// Where the devices that it would get are too many: as of when no place with lesser ones was found, and whether that search
        /// gave up.
        lesser: Option<(Refusal, bool)>,
    },
    /// The devices that it would get exceed the quota, and no place with lesser ones was found: there is none, unless the
    /// search gave up.
    QuotaForDevices {
        pair: PairId,
        asked: crate::amount::Amount,
        lack: Lack,
        refusal: Refusal,
        gave_up: bool,
    },
    /// More than the Team may ever have.
    ExceedsMax {
        pair: PairId,
        asked: crate::amount::Amount,
        most: crate::amount::Amount,
    },
    /// No quota for GPUs.
    Unnamed,
    /// There is no such Flavor.
    UnknownFlavor,
    /// None of its nodes is what some pod says about nodes.
    ExcludedFlavor,
    /// All nodes together have too few such devices.
    TooFewDevices(Refusal),
    /// No nodes.
    NoPlace { refusal: Refusal, gave_up: bool },
    /// A sum does not fit.
    Overflow,
    /// A gang before it in the line of the Flavor waits.
    BehindHead,
}

impl Refusing {
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::NoPlace { .. } | Self::TooFewDevices(_) => Reason::Place,
            Self::Quota { .. } | Self::Nominal { .. } | Self::QuotaForDevices { .. } => {
                Reason::Quota
            }
            Self::BehindHead => Reason::Order,
            Self::ExceedsMax { .. } => Reason::Limits,
            Self::Unnamed | Self::UnknownFlavor | Self::ExcludedFlavor | Self::Overflow => {
                Reason::Other
            }
        }
    }

    /// Of what too little is there, where quota lacks.
    pub(super) fn lacking(&self) -> Option<PairId> {
        match self {
            Self::Quota { pair, .. }
            | Self::Nominal { pair, .. }
            | Self::QuotaForDevices { pair, .. }
            | Self::ExceedsMax { pair, .. } => Some(*pair),
            Self::Unnamed
            | Self::UnknownFlavor
            | Self::ExcludedFlavor
            | Self::TooFewDevices(_)
            | Self::NoPlace { .. }
            | Self::Overflow
            | Self::BehindHead => None,
        }
    }
}
