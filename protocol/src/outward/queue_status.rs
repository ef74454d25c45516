//! Queues, each Team as the members of its namespaces see it, and what a Team's own status shows. Nothing is ever decided by
//! what is written there.
//!
//! Written when something changed, each Team's at most once in [`PUBLISHED_EVERY_SECONDS`]; what changed by others' use (what a Team could
//! borrow, say) is looked at Team by Team, some each second, after anything was admitted or released.
//!
//! A Team with a long line rests for longer: each gang that leaves the line moves all behind it, and tens of kilobytes are made, stored and
//! sent to all who watch for one number less. The first change after a rest is written at once.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::{Gang, NamespaceUse, PendingGang, QueueLimit, QueueStatus, TeamStatus};
use muster_engine as engine;

use super::quota_conditions;
use crate::{ApiRequest, poll_context::PollContext};
use muster_cluster::{
    formed::{GangKey, has_ended},
    index::{NamespacedName, References},
    links::Links,
    namespace_use,
    object::{Kind, ObjectKey},
    quantity,
    table::Table,
};

/// Most waiting gangs that a Queue lists.
pub(crate) const PENDING_LISTED: usize = 100;
/// How many Teams are looked at in one second because others changed.
pub(crate) const TEAMS_PER_SECOND: usize = 32;
/// After how many of these have changed themselves the others wait for the next second: the Queues of each are made again, and
/// one of a thousand Teams that shares with all others must not cost one poll what its gangs cost in many.
pub(crate) const CHANGED_PER_SECOND: usize = 8;

/// How often what a Team, a Cohort or a Queue shows is written at most, in seconds. It sums up what many gangs do, each of which changes it
/// with each step; whoever looks at it knows that it is a moment old.
pub(crate) const PUBLISHED_EVERY_SECONDS: u64 = 3;

/// For each so many waiting gangs that its Queues list, a Team rests a second longer after it was looked at.
const LISTED_PER_SECOND: i64 = 20;

/// What Queues say, and which may have to be written.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// What each gang counts as.
    counted: Table<GangKey, Counted>,
    /// Gangs by Team; a Team without any takes no memory.
    counts: BTreeMap<String, GangCounts>,
    namespaces: Links<String, String>,
    team_of: BTreeMap<String, String>,
    changed: BTreeSet<String>,
    /// Teams whose numbers may have changed by what others do.
    affected: BTreeSet<String>,
    /// Whether others did anything since those were noted.
    is_use_changed: bool,
    /// By which limits the engine decided last.
    limits_version: u64,
    /// What each Team had and used when its Queues were looked at last.
    shown: BTreeMap<String, Shown>,
    /// Queues that may have lost their Team.
    orphans: BTreeSet<NamespacedName>,
    /// In which second of the monotonic clock they were looked at last.
    looked_at: Option<u64>,
    /// Until when Teams rest that were written.
    rests: BTreeMap<String, u64>,
    /// Teams that changed while they rest, by when that is over.
    postponed: BTreeMap<u64, BTreeSet<String>>,
}

/// What a gang counts as.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counted {
    team: String,
    is_admitted: bool,
}

/// What a Team has, uses and borrows, and what it names in vain.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    usage: Vec<engine::Usage>,
    weighted_share: Option<i64>,
    references: References,
}

impl Shown {
    fn of(context: PollContext<'_>, engine: &engine::State, team: &str) -> Self {
        let references = context.index.references_of_team(team);
        let team = team.into();
        Self {
            usage: engine.usage(&team),
            weighted_share: engine.fair_share(&team).as_ref().map(thousandths),
            references,
        }
    }
}

/// A share as statuses show it: the largest number there is for one beyond all measure.
pub(super) fn thousandths(share: &engine::quota::Share) -> i64 {
    let thousandths = share.thousandths();
    thousandths.map_or(i64::MAX, |it| i64::try_from(it).unwrap_or(i64::MAX))
}

/// Gangs of a Team.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GangCounts {
    admitted: i64,
    pending: i64,
}

impl GangCounts {
    /// For how long a Team of so many gangs is not looked at again once it was written, in seconds.
    fn rest_seconds(self) -> u64 {
        let listed = i64::try_from(PENDING_LISTED).unwrap_or(i64::MAX);
        let longer = self.pending.clamp(0, listed) / LISTED_PER_SECOND;
        PUBLISHED_EVERY_SECONDS + u64::try_from(longer).unwrap_or(0)
    }

    fn add(&mut self, is_admitted: bool, by: i64) {
        *(if is_admitted {
            &mut self.admitted
        } else {
            &mut self.pending
        }) += by;
    }
}

impl Queues {
    /// Notes what a gang counts as.
    pub(crate) fn note_gang(&mut self, key: &GangKey, gang: Option<&Gang>) {
        let counts_as = gang.and_then(|gang| {
            let status = gang.status.as_ref()?;
            let is_admitted = status.admission.is_some();
            let team = status.team.as_deref()?;
            (is_admitted || !has_ended(gang)).then_some((team, is_admitted))
        });
        let known = self.counted.get(key);
        if known.map(|it| (it.team.as_str(), it.is_admitted)) == counts_as {
            return;
        }
        let counts_as = counts_as.map(|(team, is_admitted)| Counted {
            team: team.to_owned(),
            is_admitted,
        });
        let before = match &counts_as {
            Some(it) => self.counted.insert(key.clone(), it.clone()),
            None => self.counted.remove(key),
        };
        for (counted, by) in [(before, -1), (counts_as, 1)] {
            let Some(Counted { team, is_admitted }) = counted else {
                continue;
            };
            let counts = self.counts.entry(team.clone()).or_default();
            counts.add(is_admitted, by);
            if *counts == GangCounts::default() {
                self.counts.remove(&team);
            }
            self.changed.insert(team);
        }
    }

    /// A Team, or why one of its gangs waits, may be another now.
    pub(crate) fn note_team(&mut self, team: &str) {
        self.changed.insert(team.to_owned());
    }

    /// What some Team uses changed: what others could get may be another, too.
    pub(crate) fn note_use(&mut self) {
        self.is_use_changed = true;
    }

    /// What Teams name may exist by now, or not any more.
    pub(crate) fn note_references(&mut self) {
        self.is_use_changed = true;
    }

    /// The engine decides by these limits. Those that follow the inventory change with it.
    pub(crate) fn note_limits(&mut self, version: u64) {
        self.is_use_changed |= self.limits_version != version;
        self.limits_version = version;
    }

    /// Notes the Team of a namespace.
    pub(crate) fn note_namespace(&mut self, context: PollContext<'_>, namespace: &str) {
        let team = context.index.team_of_namespace(namespace);
        let team = team.map(|team| team.to_string());
        let before = match &team {
            Some(team) => self.team_of.insert(namespace.to_owned(), team.clone()),
            None => self.team_of.remove(namespace),
        };
        if before == team {
            return;
        }
        if let Some(before) = before {
            self.namespaces
                .unlink(before.as_str(), &namespace.to_owned());
            self.orphans.insert(NamespacedName::new(namespace, before));
        }
        if let Some(team) = team {
            self.namespaces.link(team.clone(), namespace.to_owned());
            self.changed.insert(team);
        }
    }

    /// The namespaces that belong to any Team, as far as is known.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &String> {
        self.team_of.keys()
    }

    /// The namespaces that are known to belong to a Team.
    pub(crate) fn namespaces_of(&self, team: &str) -> impl Iterator<Item = String> {
        self.namespaces.of(team).cloned()
    }

    /// A Queue was seen as it is, or is gone.
    pub(crate) fn note_queue(&mut self, queue: &NamespacedName) {
        self.changed.insert(queue.name.clone());
        self.orphans.insert(queue.clone());
    }

    /// The second in which there is something to look at.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let idle = self.changed.is_empty() && self.affected.is_empty() && self.orphans.is_empty();
        let idle = idle && !self.is_use_changed;
        let next = (!idle).then(|| self.looked_at.map_or(0, |at| at + 1));
        let rested = self.postponed.keys().next().copied();
        next.into_iter().chain(rested).min()
    }

    /// Queues that are to be written or removed, and Teams whose status is to be written. Looked at once a second.
    pub(crate) fn writes(
        &mut self,
        context: PollContext<'_>,
        engine: &engine::State,
    ) -> Vec<ApiRequest> {
        let second = context.now.monotonic_seconds;
        if self.looked_at == Some(second) || self.next_due().is_none_or(|due| due > second) {
            return Vec::new();
        }
        self.looked_at = Some(second);
        self.rests.retain(|_, until| *until > second);
        let mut teams = std::mem::take(&mut self.changed);
        teams.retain(|team| !self.is_postponed(team));
        while let Some(rested) = self
            .postponed
            .first_entry()
            .filter(|it| *it.key() <= second)
        {
            teams.extend(rested.remove());
        }
        if self.affected.is_empty() && std::mem::take(&mut self.is_use_changed) {
            let all = context.index.teams().map(|(team, _)| team.clone());
            self.affected = all.collect();
        }
        let mut changed = 0;
        for _ in 0..TEAMS_PER_SECOND {
            if changed == CHANGED_PER_SECOND {
                break;
            }
            let Some(team) = self.affected.pop_first() else {
                break;
            };
            // Others change what it has, and nothing else that its Queues show.
            let is_shown = self.shown.get(&team) == Some(&Shown::of(context, engine, &team));
            if !is_shown && !self.is_postponed(&team) {
                changed += usize::from(teams.insert(team));
            }
        }
        let mut writes = Vec::new();
        for team in teams {
            let of_team = self.of_team(context, engine, &team);
            let counts = self.counts.get(&team).copied().unwrap_or_default();
            if !of_team.is_empty() {
                self.rests.insert(team, second + counts.rest_seconds());
            }
            writes.extend(of_team);
        }
        for queue in std::mem::take(&mut self.orphans) {
            writes.extend(removal(context, &queue));
        }
        writes
    }

    /// Whether a Team rests: then it is looked at once that is over.
    fn is_postponed(&mut self, team: &str) -> bool {
        let Some(until) = self.rests.get(team) else {
            return false;
        };
        let postponed = self.postponed.entry(*until).or_default();
        postponed.insert(team.to_owned());
        true
    }

    fn of_team(
        &mut self,
        context: PollContext<'_>,
        engine: &engine::State,
        team: &str,
    ) -> Vec<ApiRequest> {
        let Some(object) = context.index.team(team) else {
            self.shown.remove(team);
            self.rests.remove(team);
            return Vec::new();
        };
        let name = team.into();
        let shown = Shown::of(context, engine, team);
        let limits: Vec<QueueLimit> = shown.usage.iter().map(limit).collect();
        let weighted_share = shown.weighted_share;
        let conditions = quota_conditions::of_team(context, object, &shown.references);
        self.shown.insert(team.to_owned(), shown);
        let counts = self.counts.get(team).copied().unwrap_or_default();
        let own = TeamStatus {
            limits: limits.clone(),
            admitted_gangs: counts.admitted,
            pending_gangs: counts.pending,
            weighted_share,
            conditions,
        };
        let own = (object.status.as_ref() != Some(&own)).then(|| ApiRequest::PublishTeam {
            team: team.to_owned(),
            status: Box::new(own),
        });
        if !self.namespaces.has(team) {
            return own.into_iter().collect();
        }
        let mut waiting = pending(context, engine.queue(&name));
        let statuses = self.namespaces.of(team).filter_map(|namespace| {
            let used = engine.namespace_use(&name, &namespace.as_str().into());
            let status = QueueStatus {
                namespace_use: used.as_ref().and_then(namespace_use::written),
                limits: limits.clone(),
                admitted_gangs: counts.admitted,
                pending_gangs: counts.pending,
                weighted_share,
                pending: waiting.remove(namespace.as_str()).unwrap_or_default(),
            };
            publication(context, namespace, team, status)
        });
        statuses.chain(own).collect()
    }
}

fn publication(
    context: PollContext<'_>,
    namespace: &str,
    team: &str,
    status: QueueStatus,
) -> Option<ApiRequest> {
    let key = NamespacedName::new(namespace, team);
    let stands = context.index.queue(&key);
    let stands = stands.and_then(|queue| queue.status.as_ref());
    let is_news = stands.is_none_or(|stands| !shows_the_same(stands, &status));
    is_news.then(|| ApiRequest::PublishQueue {
        namespace: namespace.to_owned(),
        team: team.to_owned(),
        status: Box::new(status),
    })
}

/// Whether a Queue shows all that is to be shown. What a namespace used changes by each admission, which changes the counts as well, and
/// with each sample. If it changed and nothing else did, no sample included, it is written with the next one.
fn shows_the_same(stands: &QueueStatus, status: &QueueStatus) -> bool {
    let QueueStatus {
        limits,
        admitted_gangs,
        pending_gangs,
        weighted_share,
        namespace_use,
        pending,
    } = status;
    let as_of = |used: &Option<NamespaceUse>| used.as_ref().map(|it| it.as_of.clone());
    stands.limits == *limits
        && stands.admitted_gangs == *admitted_gangs
        && stands.pending_gangs == *pending_gangs
        && stands.weighted_share == *weighted_share
        && stands.pending == *pending
        && as_of(&stands.namespace_use) == as_of(namespace_use)
}

/// A Queue whose namespace belongs to another Team, or to none, goes.
fn removal(context: PollContext<'_>, key: &NamespacedName) -> Option<ApiRequest> {
    let queue = context.index.queue(key)?;
    let team = context.index.team_of_namespace(&key.namespace);
    let owed = queue.metadata.deletion_timestamp.is_none()
        && team.is_none_or(|team| team.as_str() != key.name);
    owed.then(|| ApiRequest::DeleteQueue {
        key: ObjectKey {
            kind: Kind::Queue,
            namespace: key.namespace.clone(),
            name: key.name.clone(),
        },
    })
}

/// The first waiting gangs of each namespace, in the order of the Team's queue, each with its place in that.
fn pending<'a>(
    context: PollContext<'a>,
    waiting: impl Iterator<Item = &'a engine::Gang>,
) -> BTreeMap<&'a str, Vec<PendingGang>> {
    let mut listed: BTreeMap<&str, Vec<PendingGang>> = BTreeMap::new();
    for (place, gang) in (1_i64..).zip(waiting) {
        // As the engine was told by [`crate::feed::waiting::candidate`].
        let Some((namespace, name)) = gang.name.split_once('/') else {
            continue;
        };
        let of_namespace = listed.entry(namespace).or_default();
        if of_namespace.len() < PENDING_LISTED
            && let Some(explained) = context.explanations.get(gang.uid.as_str())
        {
            let wait = &explained.wait;
            of_namespace.push(PendingGang {
                name: name.to_owned(),
                position: place,
                reason: wait.reason,
                details: wait.details.clone(),
            });
        }
    }
    listed
}

fn limit(usage: &engine::Usage) -> QueueLimit {
    let quantity = |amount: engine::Amount| quantity::written(&usage.of.resource, amount);
    QueueLimit {
        flavor: usage.of.flavor.to_string(),
        resource: usage.of.resource.to_string(),
        nominal: quantity(usage.nominal),
        used: quantity(usage.used),
        borrowed: quantity(usage.borrowed),
        available: quantity(usage.available),
    }
}
