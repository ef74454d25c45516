//! In which order writes are sent: five lanes, fair between Teams, bounded.
//!
//! What others wait for goes first: the commit, then what is carried out of it, then what is only told. A lane is
//! served before every lane below it, except that each tenth write goes by turns to the lanes below the first one that have
//! something waiting, so that no lane starves. Within a lane, parties (Teams) alternate, and the writes of one party
//! keep their order.
//!
//! **How much is sent at the same time** is decided here too ([`AT_ONCE`]): slow answers to what is only told never take
//! all places, and neither does one party whose writes are slow (a namespace with a hanging admission webhook, say).
//!
//! **Bounds.** At most one write per object is under way, so the upper two lanes hold no more than there are objects,
//! and nothing is ever dropped from them. The lower three have a [`Lane::capacity`]. Where it is exceeded, the party
//! with the most waiting gives up its newest write, so that a flood costs whoever caused it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use muster_api::{NodeDevicesSpec, Permit};
use muster_cluster::{formed::GangKey, index::Index, object::Kind};

use crate::{
    ApiRequest,
    outward::permits::{Identity, identity},
};

/// Writes that are under way at the same time.
pub const AT_ONCE: usize = 32;
/// Of these, writes of the lanes that only tell.
pub const TELLING_AT_ONCE: usize = 16;
/// Of those, Events.
pub const EVENTS_AT_ONCE: usize = 4;
/// Writes of one party that are under way at the same time.
pub const PARTY_AT_ONCE: usize = 16;
/// The party of reads of Nodes and their slices, of which so many are under way at the same time. No Team and no namespace has that name.
const NODE_READS: &str = "/nodes";
/// Writes that higher lanes get before a lower one gets one.
const BEFORE_A_LOWER_LANE: u32 = 9;

/// How soon a write is sent. Declared from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// The Ledger, reads that check the state of an object, and Gang status that carries, raises or ends an attempt, or says what
    /// is kept for a gang.
    Commit,
    /// What a commit is carried out with: NodeDevices, pods, and Gangs that are made.
    Outward,
    /// Gang status that only tells.
    Tell,
    /// Queues and the status of Teams, Cohorts and Flavors, and the removal of Gangs that ended.
    Queue,
    /// Events.
    Event,
}

impl Lane {
    /// Every lane, from the first to the last.
    pub const ALL: [Self; 5] = [
        Self::Commit,
        Self::Outward,
        Self::Tell,
        Self::Queue,
        Self::Event,
    ];

    /// How many writes may wait in it; `None`: all.
    pub fn capacity(self) -> Option<usize> {
        match self {
            Self::Commit | Self::Outward => None,
            Self::Tell | Self::Queue => Some(10_000),
            Self::Event => Some(1_000),
        }
    }

    /// One word for a metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Outward => "outward",
            Self::Tell => "tell",
            Self::Queue => "queue",
            Self::Event => "event",
        }
    }

    fn only_tells(self) -> bool {
        self >= Self::Tell
    }
}

/// Where a write belongs: its lane, and the party with which others alternate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The lane.
    pub lane: Lane,
    /// The Team that the write is for. A namespace without a Team counts as one; empty: nobody's in particular.
    pub party: String,
}

impl Place {
    /// Where a write belongs, by what is seen of the object that it changes.
    pub fn of(write: &ApiRequest, index: &Index) -> Self {
        let (lane, party) = match write {
            // A thousand nodes may fall silent, or tell of faults, at once: what is read of them must not stand before the Ledger.
            ApiRequest::ReadObject { key }
                if matches!(
                    key.kind,
                    Kind::Node | Kind::ResourceSlice | Kind::DeviceTaintRule
                ) =>
            {
                (Lane::Outward, NODE_READS.to_owned())
            }
            ApiRequest::ReadObject { .. }
            | ApiRequest::ReadAll { .. }
            | ApiRequest::CreateLedger { .. }
            | ApiRequest::ReplaceLedger { .. } => (Lane::Commit, String::new()),
            ApiRequest::ReplaceGangStatus {
                key, tells, status, ..
            } => {
                let seen = index.gang(&GangKey::new(&key.namespace, &key.name));
                let seen = seen.and_then(|gang| gang.status.as_ref());
                let reservation = seen.and_then(|status| status.reservation.as_ref());
                let recovery = seen.and_then(|status| status.recovery.as_ref());
                // Those who give way are evicted only once it is seen for whom; and whoever leads next keeps what is said to be kept.
                let only_tells = *tells
                    && status.reservation.as_ref() == reservation
                    && status.recovery.as_ref() == recovery;
                let lane = if only_tells { Lane::Tell } else { Lane::Commit };
                (lane, party_of_namespace(&key.namespace, index))
            }
            ApiRequest::CreateNodeDevices { node, spec }
            | ApiRequest::ReplaceNodeDevices { node, spec, .. } => {
                (Lane::Outward, party_of_permits(node, spec, index))
            }
            ApiRequest::DeleteNodeDevices { .. } => (Lane::Outward, String::new()),
            ApiRequest::CreateGang { gang } => {
                let namespace = gang.metadata.namespace.as_deref().unwrap_or_default();
                (Lane::Outward, party_of_namespace(namespace, index))
            }
            ApiRequest::PatchPod { key, .. }
            | ApiRequest::PatchPodStatus { key, .. }
            | ApiRequest::DeletePod { key, .. }
            | ApiRequest::ForceDeletePod { key, .. }
            | ApiRequest::PatchJob { key, .. } => {
                (Lane::Outward, party_of_namespace(&key.namespace, index))
            }
            ApiRequest::DeleteGang { key, .. } | ApiRequest::DeleteQueue { key } => {
                (Lane::Queue, party_of_namespace(&key.namespace, index))
            }
            ApiRequest::PublishQueue { team, .. } | ApiRequest::PublishTeam { team, .. } => {
                (Lane::Queue, team.clone())
            }
            // Nobody's in particular: they have turns as a Team has.
            ApiRequest::PublishCohort { .. }
            | ApiRequest::PublishFlavor { .. }
            | ApiRequest::PublishPriorityTier { .. } => (Lane::Queue, String::new()),
            ApiRequest::PublishEvent(note) => {
                (Lane::Event, party_of_namespace(&note.namespace, index))
            }
        };
        Self { lane, party }
    }
}

fn party_of_namespace(namespace: &str, index: &Index) -> String {
    match index.team_of_namespace(namespace) {
        Some(team) => team.to_string(),
        None => format!("{namespace}/"),
    }
}

/// The Team of the first permit that the write brings or changes: one object carries the permits of many.
fn party_of_permits(node: &str, spec: &NodeDevicesSpec, index: &Index) -> String {
    let seen: BTreeMap<Identity<'_>, &Permit> = index
        .node_devices(node)
        .into_iter()
        .flat_map(|seen| &seen.spec.permits)
        .map(|permit| (identity(permit), permit))
        .collect();
    let changed = spec.permits.iter().find(|permit| {
        let seen = seen.get(&identity(permit));
        seen.is_none_or(|seen| *seen != *permit)
    });
    changed
        .map(|permit| permit.team.clone())
        .unwrap_or_default()
}

/// What waits to be sent, and how much of what is under way.
#[derive(Debug)]
pub struct Lanes<T> {
    waiting: BTreeMap<Lane, Parties<T>>,
    under_way: BTreeMap<Lane, usize>,
    under_way_of: BTreeMap<String, usize>,
    /// Writes that were sent since the last one of a lower lane, while one of those waited.
    since_lower: u32,
    /// The lane that had that one.
    last_lower: Lane,
}

/// The parties of one lane.
#[derive(Debug)]
struct Parties<T> {
    writes: BTreeMap<String, VecDeque<T>>,
    /// Those with something waiting, each once, in the order of their turns.
    turns: VecDeque<String>,
    len: usize,
}

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self {
            waiting: Lane::ALL.map(|lane| (lane, Parties::default())).into(),
            under_way: BTreeMap::new(),
            under_way_of: BTreeMap::new(),
            since_lower: 0,
            last_lower: Lane::Event,
        }
    }
}

impl<T> Default for Parties<T> {
    fn default() -> Self {
        Self {
            writes: BTreeMap::new(),
            turns: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T> Lanes<T> {
    /// Takes a write in. Returns the one that is given up for it, if the lane is full: perhaps this very one.
    #[must_use = "a write that is given up is to be told to whoever waits for it"]
    pub fn push(&mut self, place: &Place, write: T) -> Option<T> {
        let parties = self.waiting.get_mut(&place.lane)?;
        parties.push(&place.party, write);
        match place.lane.capacity() {
            Some(capacity) if parties.len > capacity => parties.give_up(),
            _ => None,
        }
    }

    /// The write to be sent next, if one may be; it counts as under way until [`Lanes::finished`].
    pub fn pop(&mut self) -> Option<(Place, T)> {
        if self.under_way.values().sum::<usize>() >= AT_ONCE {
            return None;
        }
        let mut open = Lane::ALL
            .into_iter()
            .filter_map(|lane| Some((lane, self.turn(lane)?)));
        let first = open.next()?;
        let lower: Vec<(Lane, usize)> = open.collect();
        let (lane, turn) = self.choose(first, &lower);
        let (party, write) = self.waiting.get_mut(&lane)?.take(turn)?;
        *self.under_way.entry(lane).or_default() += 1;
        *self.under_way_of.entry(party.clone()).or_default() += 1;
        Some((Place { lane, party }, write))
    }

    /// A write that was sent is answered, or given up.
    pub fn finished(&mut self, place: &Place) {
        if let Some(count) = self.under_way.get_mut(&place.lane) {
            *count = count.saturating_sub(1);
        }
        if let Some(count) = self.under_way_of.get_mut(&place.party) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.under_way_of.remove(&place.party);
            }
        }
    }

    /// How many writes wait in a lane.
    pub fn waiting(&self, lane: Lane) -> usize {
        self.waiting.get(&lane).map_or(0, |parties| parties.len)
    }

    /// The party of the lane whose turn it is, as its number in the order of turns, if the lane may send now.
    fn turn(&self, lane: Lane) -> Option<usize> {
        let count = |lane: Lane| self.under_way.get(&lane).copied().unwrap_or_default();
        let telling: usize = Lane::ALL
            .into_iter()
            .filter(|lane| lane.only_tells())
            .map(count)
            .sum();
        if lane.only_tells() && telling >= TELLING_AT_ONCE
            || lane == Lane::Event && count(lane) >= EVENTS_AT_ONCE
        {
            return None;
        }
        // Only a party with all its places taken is passed over, so this looks at few: AT_ONCE / PARTY_AT_ONCE at most.
        self.waiting.get(&lane)?.turns.iter().position(|party| {
            self.under_way_of
                .get(party)
                .is_none_or(|count| *count < PARTY_AT_ONCE)
        })
    }

    fn choose(&mut self, first: (Lane, usize), lower: &[(Lane, usize)]) -> (Lane, usize) {
        if lower.is_empty() {
            return first;
        }
        if self.since_lower < BEFORE_A_LOWER_LANE {
            self.since_lower += 1;
            return first;
        }
        self.since_lower = 0;
        // The lane that is served anyway has its turn too: while it is the first one for a moment, those below must not
        // pass it over again and again.
        let own = Some(first).filter(|(lane, _)| *lane != Lane::Commit);
        let mut turns = own.into_iter().chain(lower.iter().copied());
        let next = turns.clone().find(|(lane, _)| *lane > self.last_lower);
        let chosen = next.or_else(|| turns.next()).unwrap_or(first);
        self.last_lower = chosen.0;
        chosen
    }
}

impl<T> Parties<T> {
    fn push(&mut self, party: &str, write: T) {
        self.len += 1;
        if let Some(writes) = self.writes.get_mut(party) {
            writes.push_back(write);
            return;
        }
        self.turns.push_back(party.to_owned());
        self.writes
            .insert(party.to_owned(), VecDeque::from([write]));
    }

    fn take(&mut self, turn: usize) -> Option<(String, T)> {
        let party = self.turns.remove(turn)?;
        let writes = self.writes.get_mut(&party)?;
        let write = writes.pop_front()?;
        self.len -= 1;
        if writes.is_empty() {
            self.writes.remove(&party);
        } else {
            self.turns.push_back(party.clone());
        }
        Some((party, write))
    }

    /// The newest write of the party with the most; of several, of the first by name.
    fn give_up(&mut self) -> Option<T> {
        let most = self.writes.values().map(VecDeque::len).max()?;
        let mut parties = self.writes.iter_mut();
        let (party, writes) = parties.find(|(_, writes)| writes.len() == most)?;
        let given_up = writes.pop_back()?;
        self.len -= 1;
        if writes.is_empty() {
            let party = party.clone();
            self.writes.remove(&party);
            self.turns.retain(|waiting| *waiting != party);
        }
        Some(given_up)
    }
}
