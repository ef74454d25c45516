//! What the eviction API answers about pods of gangs, where drains move gangs: each gang that runs has a PodDisruptionBudget that lets none of its
//! pods go alone.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::{
    Api, Client, ResourceExt,
    api::{EvictParams, ListParams},
};
use muster_api::Gang;
use muster_tests::{
    cluster::Cluster,
    gangs, kubeconfig,
    kubernetes::{LIMIT, Progress, eventually},
};

use crate::stage::Running;

/// What the API server answers where a budget lets no pod go.
const TOO_MANY_REQUESTS: u16 = 429;
/// And where there is no such pod.
const NOT_FOUND: u16 = 404;

/// What came of asking the eviction API for a pod.
enum Answer {
    /// It is told to end.
    LetGo,
    /// A budget forbids it.
    HeldOff,
    /// There is none of its name.
    Gone,
}

/// Who asks the eviction API, as a drain does, and takes its first answer.
pub(crate) struct Evictor(Client);

impl Evictor {
    pub(crate) async fn of(cluster: &Cluster) -> Result<Self> {
        let file = cluster.control_plane.admin_kubeconfig();
        Ok(Self(kubeconfig::client_that_asks_once(file).await?))
    }

    /// The gang has a budget that counts all its pods as healthy, and none of them is let go.
    pub(crate) async fn is_held_off(&self, gang: &Gang) -> Result<()> {
        let namespace = gang.namespace().context("a Gang has a namespace")?;
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.0.clone(), &namespace);
        let members = gangs::pods(&self.0, gang).await?;
        let (name, size) = (gang.name_any(), i32::try_from(members.len())?);
        eventually(
            "the budget of the gang counts its pods",
            LIMIT,
            async || {
                let budget = budgets.get_opt(&name).await?;
                let status = budget.and_then(|budget| budget.status);
                let counts = status.as_ref().is_some_and(|status| {
                    status.current_healthy == Some(size) && status.disruptions_allowed == Some(0)
                });
                Ok(Progress::when(counts, || format!("{name}: {status:?}")))
            },
        )
        .await?;
        for pod in members.values() {
            let answer = self.ask(pod).await?;
            let is_held_off = matches!(answer, Answer::HeldOff);
            ensure!(is_held_off, "{} is let go, or gone", pod.name_any());
        }
        Ok(())
    }

    /// Asks for the pods of the first attempt again and again until none of them is there: each is held off until its Gang says that the attempt is
    /// over. It has to be asked for before anything is drained, so that it is held off at least once.
    pub(crate) async fn is_held_off_until_moved(
        &self,
        running: &Running<'_>,
        pods: &BTreeMap<u32, Pod>,
    ) -> Result<()> {
        let mut held_off = 0_u32;
        eventually("no pod of the first attempt is left", LIMIT, async || {
            let mut left = 0_u32;
            for pod in pods.values() {
                match self.ask(pod).await? {
                    Answer::Gone => continue,
                    Answer::HeldOff => held_off += 1,
                    Answer::LetGo => {
                        let status = running.now(&self.0).await?.status.unwrap_or_default();
                        if status.attempt < 2 {
                            let name = pod.name_any();
                            return Ok(Progress::Never(anyhow!("{name} was let go alone")));
                        }
                    }
                }
                left += 1;
            }
            Ok(Progress::when(left == 0, || {
                format!("{left} are, and {held_off} times one was held off")
            }))
        })
        .await?;
        ensure!(held_off > 0, "nothing held anybody off");
        Ok(())
    }

    async fn ask(&self, pod: &Pod) -> Result<Answer> {
        let namespace = pod.namespace().context("a pod has a namespace")?;
        let pods: Api<Pod> = Api::namespaced(self.0.clone(), &namespace);
        match pods.evict(&pod.name_any(), &EvictParams::default()).await {
            Ok(_) => Ok(Answer::LetGo),
            Err(kube::Error::Api(status)) if status.code == TOO_MANY_REQUESTS => {
                Ok(Answer::HeldOff)
            }
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(Answer::Gone),
            Err(error) => Err(error).context("the eviction API"),
        }
    }
}

/// Fails if there is any budget in the namespace.
pub(crate) async fn ensure_there_are_none(client: &Client, namespace: &str) -> Result<()> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), namespace);
    let budgets = budgets.list(&ListParams::default()).await?;
    let names: Vec<String> = budgets.iter().map(ResourceExt::name_any).collect();
    ensure!(names.is_empty(), "there are budgets: {names:?}");
    Ok(())
}
