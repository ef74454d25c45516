//! One gang, formed whole from what is observed now.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::Arc,
};

use k8s_openapi::{api::batch::v1::Job, apimachinery::pkg::apis::meta::v1::OwnerReference};
use muster_api::{Gang, PriorityTier, Team, keys};
use muster_engine as engine;

use super::{
    Group, age_order, bound_to, controller, controlling_job, created_at,
    declaration::{self, Declaring},
    group::{self, JobFinder},
    is_active, is_job, name, phase, ranks, uid, waiting,
};
use crate::{
    formed::{FormedGang, FormedPod, GangKey, PendingReason, PodIdentity, Preemptible, has_ended},
    pod::ObservedPod,
    table::Table,
};

/// The Team of a namespace.
#[derive(Clone, Debug)]
pub(crate) enum NamespaceTeam {
    /// It has one.
    Is(Arc<Team>),
    /// It names none, and there is no default.
    Unnamed,
    /// It names one that does not exist.
    Unknown(String),
}

/// What a pod asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodRequest {
    /// For the engine; excepted claims left out.
    pub(crate) pod: Arc<engine::Pod>,
    /// Whether it has claims, all of them excepted.
    pub(crate) excepted: bool,
    /// Fields that say something about nodes and that the planner does not look at.
    pub(crate) unmodelled: Vec<String>,
}

/// What pods ask for, by their UIDs; never walked.
pub(crate) type PodRequests = Table<String, Result<PodRequest, PendingReason>>;

/// All that a gang is formed from.
pub(crate) struct GangInputs<'a> {
    /// Its key.
    pub(crate) key: &'a GangKey,
    /// Its Gang object, if there is one.
    pub(crate) gang: Option<&'a Gang>,
    /// All its pods that exist.
    pub(crate) pods: &'a [Arc<ObservedPod>],
    /// What its pods were declared as, if any is left and its Job is known.
    pub(crate) group: Option<&'a Group>,
    /// Finds Jobs.
    pub(crate) jobs: &'a JobFinder<'a>,
    /// The Team of its namespace.
    pub(crate) team: NamespaceTeam,
    /// All PriorityTiers by name.
    pub(crate) tiers: &'a BTreeMap<String, Arc<PriorityTier>>,
    /// Names of the levels of all Topologies.
    pub(crate) levels: &'a BTreeSet<String>,
    /// How long its start may take without progress where nobody says, in seconds.
    pub(crate) start_timeout_seconds: i64,
    /// What each of its pods asks for, by UID.
    pub(crate) requests: &'a PodRequests,
    /// Whether every node knows the rules of a request.
    pub(crate) is_settled: &'a dyn Fn(&PodRequest) -> bool,
}

/// The size of a gang, as far as it can be told.
pub(super) struct Size {
    pub(super) pods: u32,
    /// What is declared, pods that are done included.
    pub(super) declared: u32,
    /// Only the shape of the Job says so.
    pub(super) implied: bool,
    pub(super) wait: Option<PendingReason>,
}

/// All that is read of a Gang object when its gang is formed, and when it is found out which Gang a group of pods means.
/// The rest of its status says how the gang fares, and changes with every step.
pub(crate) fn facts_of(gang: &Gang) -> impl PartialEq + '_ {
    let metadata = &gang.metadata;
    let born = (&metadata.uid, &metadata.creation_timestamp);
    let status = gang.status.as_ref();
    let admission = status.and_then(|status| status.admission.as_ref());
    let stands = (admission, has_ended(gang));
    (&gang.spec, born, &metadata.owner_references, stands)
}

/// Forms the gang. `None`: it has no pods, and no Gang that is under way.
pub(crate) fn form(facts: &GangInputs<'_>) -> Option<FormedGang> {
    if facts.pods.is_empty() && facts.gang.is_none_or(has_ended) {
        return None;
    }
    Some(Forming::new(facts).form())
}

/// The facts, with the places of the admitted pods at hand: a gang may have thousands.
pub(super) struct Forming<'f, 'a> {
    facts: &'f GangInputs<'a>,
    /// The place of each admitted pod by UID; `None`: the gang is not admitted.
    pub(super) places: Option<BTreeMap<&'a str, usize>>,
}

impl<'a> Deref for Forming<'_, 'a> {
    type Target = GangInputs<'a>;

    fn deref(&self) -> &GangInputs<'a> {
        self.facts
    }
}

impl<'f, 'a> Forming<'f, 'a> {
    fn new(facts: &'f GangInputs<'a>) -> Self {
        let admission = facts
            .gang
            .and_then(|gang| gang.status.as_ref()?.admission.as_ref());
        let places = admission.map(|admission| {
            let pods = admission.pods.iter().enumerate();
            pods.map(|(place, pod)| (pod.uid.as_str(), place)).collect()
        });
        Self { facts, places }
    }

    fn form(&self) -> FormedGang {
        let mut active: Vec<&Arc<ObservedPod>> = self.pods.iter().filter(is_active).collect();
        active.sort_by(|a, b| age_order(a).cmp(&age_order(b)));
        let job = self.job();
        let declaring = self.declaring(&active);
        let size = self.size(&declaring, job, active.len());
        let (members, excess) = self.members(&active, size.pods);
        let topology = declaration::topology(&declaring, job);
        let asked = topology.as_ref().ok().and_then(Option::as_ref);
        let unknown_level = asked.and_then(|request| self.unknown_level(request));
        let limits = declaration::limits(&declaring, job);
        let min_count = declaration::min_count(&declaring, job, size.declared);
        let declared_tier = self.declared_tier(&declaring, job);
        let tier = declared_tier
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|declared| self.tier(declared.as_deref()));
        let excepted = self.is_excepted(&members, size.implied);
        let wait = if excepted {
            None
        } else {
            let declared = topology.as_ref().err().or_else(|| limits.as_ref().err());
            let declared = declared.or_else(|| min_count.as_ref().err());
            let declared = declared.or(unknown_level.as_ref());
            self.wait(&members, &size, &tier, declared)
        };
        let is_settling = wait.is_none() && !excepted && self.is_settling(&members);
        let wait = wait.or_else(|| is_settling.then(waiting::settling));
        let unadmitted = if self.places.is_none() && !excepted {
            active
                .iter()
                .filter(|pod| bound_to(pod).is_some())
                .map(|pod| identity(pod))
                .collect()
        } else {
            Vec::new()
        };
        FormedGang {
            key: self.key.clone(),
            owner: self.owner(),
            spec: self.spec(
                &members,
                &size,
                declared_tier.ok().flatten(),
                topology.ok().flatten().filter(waiting::may_be_known),
                limits.unwrap_or_default(),
                min_count.ok().flatten(),
            ),
            team: match &self.team {
                NamespaceTeam::Is(team) => team.metadata.name.as_deref().map(Into::into),
                NamespaceTeam::Unnamed | NamespaceTeam::Unknown(_) => None,
            },
            priority: tier.as_ref().map_or(0, |tier| tier.value),
            preemptible: tier
                .as_ref()
                .map_or_else(|_| Preemptible::default(), |tier| tier.preemptible),
            tier: tier.ok().and_then(|tier| tier.name),
            queued_since: self.queued_since(&members),
            last_pod_created_at: members.iter().map(created_at).max().unwrap_or(0),
            pods: self.formed_pods(&members),
            excess: excess.into_iter().map(|pod| identity(pod)).collect(),
            wait,
            ended: self.ended(job),
            excepted,
            implied: size.implied,
            unadmitted,
            unmodelled: self.unmodelled(&members),
        }
    }

    /// The place of the pod in the admission.
    pub(super) fn place(&self, pod: &ObservedPod) -> Option<usize> {
        self.places.as_ref()?.get(uid(pod)).copied()
    }

    /// The one Job behind the gang, if there is one and it is known.
    fn job(&self) -> Option<&'a Job> {
        let jobs = self.jobs;
        let namespace = &self.key.namespace;
        let from_pods = self.common_owner().filter(|owner| is_job(owner));
        let from_gang = || self.gang_owner().filter(|owner| is_job(owner));
        match self.group {
            Some(Group::Job { name, uid, .. }) => jobs(namespace, name, uid),
            Some(Group::Single { .. }) => None,
            Some(Group::Label { .. }) | None => {
                let owner = from_pods.or_else(from_gang)?;
                jobs(namespace, &owner.name, &owner.uid)
            }
        }
    }

    fn declaring(&self, active: &[&'a Arc<ObservedPod>]) -> Vec<Declaring<'a>> {
        let jobs = self.jobs;
        active
            .iter()
            .map(|pod| Declaring {
                pod,
                job: controlling_job(pod)
                    .and_then(|owner| jobs(&self.key.namespace, &owner.name, &owner.uid)),
            })
            .collect()
    }

    fn size(&self, declaring: &[Declaring<'_>], job: Option<&Job>, active: usize) -> Size {
        let of = |pods: u32| Size {
            pods,
            declared: pods,
            implied: false,
            wait: None,
        };
        let implied = self.is_jobs_only_pod(declaring, job);
        if let Some(places) = &self.places {
            let pods = u32::try_from(places.len()).unwrap_or(keys::MAX_GANG_SIZE);
            // What was judged when it was admitted is not judged again.
            return Size {
                implied,
                declared: keys::MAX_GANG_SIZE,
                ..of(pods)
            };
        }
        if implied {
            return Size { implied, ..of(1) };
        }
        if matches!(self.group, Some(Group::Single { .. })) {
            return of(1);
        }
        // Where nobody is left to say it, what was said before stands.
        let is_unsaid = declaring.is_empty() && job.is_none_or(declaration::says_no_size);
        if let (true, Some(gang)) = (is_unsaid, self.gang) {
            return of(u32::try_from(gang.spec.size).unwrap_or(1));
        }
        match declaration::size(declaring, job) {
            Ok((declared, implied)) => {
                let pods: Vec<&ObservedPod> = self.pods.iter().map(AsRef::as_ref).collect();
                // Who says by a label that they belong together may come from several Jobs: one that runs fewer at once does not say how many are left.
                let maker = job
                    .filter(|job| !self.is_by_label() || declaration::runs_at_once(job, declared));
                Size {
                    pods: declaration::left(declared, maker, &pods).max(1),
                    declared,
                    implied,
                    wait: None,
                }
            }
            Err(wait) => {
                let pods = u32::try_from(active).unwrap_or(keys::MAX_GANG_SIZE);
                Size {
                    wait: Some(wait),
                    ..of(pods.clamp(1, keys::MAX_GANG_SIZE))
                }
            }
        }
    }

    /// Whether it is the one pod that its Job makes. Where pods say by a label that they are a gang, others may belong to it.
    fn is_jobs_only_pod(&self, declaring: &[Declaring<'_>], job: Option<&Job>) -> bool {
        matches!(self.group, Some(Group::Job { .. }))
            && job.is_some_and(|job| {
                group::makes_one_pod(job) && declaration::says_no_more_than_one(declaring, job)
            })
    }

    /// Members in rank order, and the others. `active` is in the order of age.
    fn members(
        &self,
        active: &[&'a Arc<ObservedPod>],
        size: u32,
    ) -> (Vec<&'a Arc<ObservedPod>>, Vec<&'a Arc<ObservedPod>>) {
        if self.places.is_some() {
            let (mut members, excess): (Vec<_>, Vec<_>) = active
                .iter()
                .copied()
                .partition(|pod| self.place(pod).is_some());
            members.sort_by_key(|pod| self.place(pod));
            return (members, excess);
        }
        let count = usize::try_from(size)
            .unwrap_or(usize::MAX)
            .min(active.len());
        let (members, excess) = active.split_at(count);
        let mut members = members.to_vec();
        ranks::sort(&mut members);
        (members, excess.to_vec())
    }

    fn queued_since(&self, members: &[&Arc<ObservedPod>]) -> i64 {
        let created = self
            .gang
            .and_then(|gang| gang.metadata.creation_timestamp.as_ref())
            .map(|time| time.0.as_second());
        let last = members.iter().map(created_at).max();
        created.or(last).unwrap_or(0)
    }

    fn formed_pods(&self, members: &[&Arc<ObservedPod>]) -> Vec<FormedPod> {
        let succeeded = self.pods.iter().filter(|pod| phase(pod) == "Succeeded");
        let with_rank: Vec<&Arc<ObservedPod>> = members.iter().copied().chain(succeeded).collect();
        let ranks = ranks::of(&with_rank);
        members
            .iter()
            .enumerate()
            .map(|(index, pod)| {
                let number = |place: usize| u32::try_from(place).unwrap_or(u32::MAX);
                let place = number(self.place(pod).unwrap_or(index));
                let request = self.request(pod).and_then(|request| request.as_ref().ok());
                FormedPod {
                    identity: identity(pod),
                    rank: ranks.get(uid(pod)).copied().unwrap_or(place),
                    place,
                    request: request.map(|request| Arc::clone(&request.pod)),
                }
            })
            .collect()
    }

    pub(super) fn request(
        &self,
        pod: &ObservedPod,
    ) -> Option<&'a Result<PodRequest, PendingReason>> {
        self.requests.get(uid(pod))
    }

    /// Only where nobody declared a gang: who does wants its pods to start together.
    fn is_excepted(&self, members: &[&Arc<ObservedPod>], implied: bool) -> bool {
        (implied || matches!(self.group, Some(Group::Single { .. })))
            && !members.is_empty()
            && members.iter().all(|pod| {
                self.request(pod)
                    .and_then(|request| request.as_ref().ok())
                    .is_some_and(|request| request.excepted)
            })
    }

    /// The label by which its pods are one gang.
    pub(super) fn declared_label(&self) -> Option<&'a String> {
        match self.group {
            Some(Group::Label { label, .. }) => Some(label),
            Some(Group::Job { .. } | Group::Single { .. }) | None => None,
        }
    }

    /// Whether pods say by a label that they are a gang, or said so when its Gang was made.
    fn is_by_label(&self) -> bool {
        let said = || self.gang.is_some_and(|gang| gang.spec.group.is_some());
        self.declared_label().is_some() || self.group.is_none() && said()
    }

    pub(super) fn common_owner(&self) -> Option<&'a OwnerReference> {
        let mut owners = self.pods.iter().map(|pod| controller(pod));
        let first = owners.next()??;
        owners
            .all(|owner| owner.is_some_and(|owner| owner.uid == first.uid))
            .then_some(first)
    }

    pub(super) fn gang_owner(&self) -> Option<&'a OwnerReference> {
        self.gang?.metadata.owner_references.as_ref()?.first()
    }

    pub(super) fn owner(&self) -> Option<OwnerReference> {
        let owner = self.gang_owner().or_else(|| self.common_owner())?;
        Some(OwnerReference {
            block_owner_deletion: Some(false),
            controller: None,
            ..owner.clone()
        })
    }

    fn unmodelled(&self, members: &[&Arc<ObservedPod>]) -> Vec<String> {
        let fields: BTreeSet<String> = members
            .iter()
            .filter_map(|pod| self.request(pod)?.as_ref().ok())
            .flat_map(|request| request.unmodelled.iter().cloned())
            .collect();
        fields.into_iter().collect()
    }
}

fn identity(pod: &ObservedPod) -> PodIdentity {
    PodIdentity {
        uid: uid(pod).to_owned(),
        name: name(pod).to_owned(),
    }
}
