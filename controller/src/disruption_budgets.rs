//! Holds `kubectl drain`, and whoever else asks the eviction API, off gangs that run, where drains move gangs: a drain would end a gang one pod
//! after the other. A PodDisruptionBudget of each such gang says that none of its pods may go alone; the cordon is seen meanwhile, the
//! gang is moved whole, which asks no budget, and the drain goes on.
//!
//! **Never beside somebody else's**: two budgets that select one pod make every eviction of it fail. So where one of a user's selects any pod of the gang, there is none
//! of ours, and an Event says so once.
//!
//! **Who else writes.** Whoever makes a budget of the Gang's name first keeps it. Ours is made for the UID of its Gang and goes with it; it is never changed, but
//! removed as it was seen (UID and resourceVersion) and made anew. A second leader for a moment makes or removes the same from the same
//! Gangs, or from an earlier state of them; what it leaves the watch shows. A user's budget that comes right after it was looked is seen by the
//! watch too, and ours goes. So twice, late or never answered does no harm but for a while. Where gangs are not moved any more, ours are
//! removed. Nothing is concluded before Gangs and budgets were listed.
//!
//! **A watch that fails**: until it has told its first list, budgets are neither made nor removed; later, a user's that is new is not known. The log and the
//! metrics of watches say so. No gang waits for that, so this replica is ready all the same.

mod budget;
mod table;

use std::{collections::BTreeMap, pin::pin, time::Duration};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ObjectReference, Pod},
    events::v1::Event,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
    core::{Selector, SelectorExt},
    runtime::watcher,
};
use muster_api::{Gang, Reason, keys};
use muster_cluster::index::NamespacedName;
use muster_serve::{
    client::{CALL_LIMIT, CallError, within},
    event::Told,
    watch::{WatchHealth, WatchMetrics, retries},
};
use tokio::{task::JoinSet, time::Instant};

pub(crate) use self::budget::MANAGED_BY;
pub use self::table::Table;
use self::{
    budget::{Ours, Wanted, Whose},
    table::{Others, Step},
};
use crate::shared_table::SharedTable;

/// Budgets that are seen to at the same time.
const AT_ONCE: usize = 4;
/// Pause after a call that failed, doubled with each that fails after it.
const RETRY: Duration = Duration::from_secs(5);
/// Longest pause: a quota or a policy may refuse the budgets of a namespace for good.
const MOST_PAUSE: Duration = Duration::from_mins(5);
/// How often it is looked without a reason.
const LOOK_AGAIN: Duration = Duration::from_mins(1);
/// Who reports in Events.
const REPORTER: &str = "muster.dev/controller";

/// What is known of Gangs and budgets, and which are to be seen to.
pub type Gangs = SharedTable<Table>;

/// What came of it.
#[derive(Debug)]
enum Seen {
    Done,
    /// Somebody else has a budget for pods of the gang, of that name.
    Other(Wanted, String),
}

/// Sees to the budgets.
#[derive(Debug)]
pub struct Keeper {
    gangs: Gangs,
    /// Which instance reports.
    instance: String,
    /// Those of which a call failed.
    later: BTreeMap<NamespacedName, Later>,
}

/// A gang of which a call failed.
#[derive(Debug)]
struct Later {
    /// Not before; `None`: that has come.
    at: Option<Instant>,
    /// The last pause.
    pause: Duration,
}

/// What came of a step.
type Stepped = (NamespacedName, Result<Seen, CallError>);

impl Keeper {
    /// A keeper, and what it is told by. `moves_gangs`: whether budgets are wanted; if not, those that are left are removed.
    pub fn new(moves_gangs: bool, instance: String) -> (Self, Gangs) {
        let gangs = Gangs::default();
        gangs.table().moves_gangs = moves_gangs;
        let keeper = Self {
            gangs: gangs.clone(),
            instance,
            later: BTreeMap::new(),
        };
        (keeper, gangs)
    }

    /// Sees to them until it is dropped. The client must not repeat anything by itself; `watches` is one whose reads may be long.
    pub async fn keep(mut self, client: Client, watches: Client, metrics: WatchMetrics) {
        let budgets: Api<PodDisruptionBudget> = Api::all(watches);
        let mut config = watcher::Config::default();
        if !self.gangs.table().moves_gangs {
            let (key, value) = MANAGED_BY;
            config = config.labels(&format!("{key}={value}"));
        }
        let mut seen = pin!(retries::events(budgets, config));
        let mut health = WatchHealth::beside_readiness::<PodDisruptionBudget>(&metrics);
        let mut under_way: JoinSet<Stepped> = JoinSet::new();
        loop {
            let next = self.start(&client, &mut under_way);
            tokio::select! {
                stepped = self.gangs.wait(&mut under_way, next) => {
                    if let Some(stepped) = stepped {
                        self.settle(&client, stepped).await;
                    }
                }
                Some(seen) = seen.next() => {
                    health.note(&seen);
                    if let Ok(seen) = seen {
                        self.gangs.table().apply_budget(seen);
                    }
                }
            }
        }
    }

    /// Starts what is due, and says when the next is.
    fn start(&mut self, client: &Client, under_way: &mut JoinSet<Stepped>) -> Instant {
        let now = Instant::now();
        let mut next = now + LOOK_AGAIN;
        let gangs = self.gangs.clone();
        let mut table = gangs.table();
        if !table.gangs_are_listed || !table.budgets_are_listed {
            return next;
        }
        for (gang, later) in &mut self.later {
            match later.at {
                Some(at) if at > now => next = next.min(at),
                Some(_) => {
                    later.at = None;
                    table.due.insert(gang.clone());
                }
                None => {}
            }
        }
        // One that ends starts the next.
        while under_way.len() < AT_ONCE {
            let Some(gang) = table.take_due() else {
                break;
            };
            // It is due again when its pause is over.
            if self
                .later
                .get(&gang)
                .is_some_and(|later| later.at.is_some())
            {
                continue;
            }
            let step = table.step(&gang);
            if matches!(step, Step::Nothing) {
                self.later.remove(&gang);
                continue;
            }
            let client = client.clone();
            under_way.spawn(async move {
                let seen = take(&client, &gang, step).await;
                (gang, seen)
            });
        }
        next
    }

    async fn settle(&mut self, client: &Client, (gang, seen): Stepped) {
        match seen {
            Ok(Seen::Done) => {
                self.later.remove(&gang);
                self.gangs.table().told.remove(&gang);
            }
            Ok(Seen::Other(wanted, other)) => {
                self.later.remove(&gang);
                let uid = wanted.gang_uid.clone();
                let told = self.gangs.table().told.insert(gang, uid);
                if told.as_ref() != Some(&wanted.gang_uid) {
                    self.tell(client, &wanted, &other).await;
                }
            }
            Err(error) => {
                let before = self.later.get(&gang);
                let pause = before.map_or(RETRY, |before| (before.pause * 2).min(MOST_PAUSE));
                tracing::warn!(?gang, ?pause, %error, "the PodDisruptionBudget of a gang could not be seen to; trying again");
                let at = Some(Instant::now() + pause);
                self.later.insert(gang, Later { at, pause });
            }
        }
    }

    /// Says that the gang has no budget of ours. An Event that is lost is no harm.
    async fn tell(&self, client: &Client, wanted: &Wanted, other: &str) {
        let told = Told {
            regarding: ObjectReference {
                api_version: Some(Gang::api_version(&()).into_owned()),
                kind: Some(Gang::kind(&()).into_owned()),
                namespace: Some(wanted.gang.namespace.clone()),
                name: Some(wanted.gang.name.clone()),
                uid: Some(wanted.gang_uid.clone()),
                ..ObjectReference::default()
            },
            action: "Drain",
            reason: Reason::OtherDisruptionBudget.to_string(),
            note: format!(
                "PodDisruptionBudget {other} is for pods of the gang, so Muster makes none: two make every eviction fail. A drain may end the \
                 gang's pods one by one, as that budget lets it"
            ),
            is_warning: true,
            reporter: REPORTER,
            instance: &self.instance,
        };
        let event = told.at(Timestamp::now());
        let events: Api<Event> = Api::namespaced(client.clone(), &wanted.gang.namespace);
        if let Err(error) = within(CALL_LIMIT, events.create(&posting(), &event)).await {
            tracing::debug!(%error, "an Event was not published");
        }
    }
}

fn posting() -> PostParams {
    PostParams {
        field_manager: Some(keys::FIELD_MANAGER_CONTROLLER.to_owned()),
        ..PostParams::default()
    }
}

async fn take(client: &Client, gang: &NamespacedName, step: Step) -> Result<Seen, CallError> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), &gang.namespace);
    match step {
        Step::Nothing => Ok(Seen::Done),
        Step::Make(wanted) => make(&budgets, wanted).await,
        Step::Remove(ours) => remove(&budgets, gang, &ours).await,
        Step::Look {
            wanted,
            others,
            ours,
        } => {
            let other = select_any(client, &wanted, &others).await?;
            match (other, ours) {
                (None, None) => make(&budgets, wanted).await,
                (None, Some(_)) => Ok(Seen::Done),
                (Some(other), ours) => {
                    if let Some(ours) = ours {
                        remove(&budgets, gang, &ours).await?;
                    }
                    Ok(Seen::Other(wanted, other))
                }
            }
        }
    }
}

async fn make(budgets: &Api<PodDisruptionBudget>, wanted: Wanted) -> Result<Seen, CallError> {
    let budget = wanted.budget();
    match within(CALL_LIMIT, budgets.create(&posting(), &budget)).await {
        Ok(_) => Ok(Seen::Done),
        // Of that name there is one: ours, and the watch shows it, or somebody else's, who may keep it.
        Err(error) if error.status_code() == Some(409) => {
            let call = budgets.get_opt(&wanted.gang.name);
            let there = within(CALL_LIMIT, call).await?;
            let is_ours = there
                .as_ref()
                .is_none_or(|it| matches!(Whose::of(it), Whose::Ours(_)));
            Ok(if is_ours {
                Seen::Done
            } else {
                let name = wanted.gang.name.clone();
                Seen::Other(wanted, name)
            })
        }
        Err(error) => Err(error),
    }
}

/// As it was seen. One that is gone, or another by now, is fine: the watch shows it.
async fn remove(
    budgets: &Api<PodDisruptionBudget>,
    gang: &NamespacedName,
    ours: &Ours,
) -> Result<Seen, CallError> {
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(ours.uid.clone()),
            resource_version: Some(ours.version.clone()),
        }),
        ..DeleteParams::default()
    };
    match within(CALL_LIMIT, budgets.delete(&gang.name, &params)).await {
        Ok(_) => Ok(Seen::Done),
        Err(error) if matches!(error.status_code(), Some(404 | 409)) => Ok(Seen::Done),
        Err(error) => Err(error),
    }
}

/// The first of the others' budgets that selects a pod of the gang. Pods of a gang may have all sorts of labels besides, so they are asked for.
async fn select_any(
    client: &Client,
    wanted: &Wanted,
    others: &Others,
) -> Result<Option<String>, CallError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &wanted.gang.namespace);
    let which = ListParams::default().labels_from(&wanted.selector());
    let pods = within(CALL_LIMIT, pods.list_metadata(&which)).await?;
    let is_selected = |selector: &Selector| {
        let mut pods = pods.items.iter();
        pods.any(|pod| selector.matches(pod.metadata.labels.as_ref().unwrap_or(&BTreeMap::new())))
    };
    let mut others = others.iter();
    let found = others.find(|(_, selector)| is_selected(selector));
    Ok(found.map(|(name, _)| name.clone()))
}

#[cfg(test)]
mod tests;
