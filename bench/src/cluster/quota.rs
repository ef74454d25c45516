//! Teams, the Cohorts above them, and their namespaces.

use muster_api::keys;
use muster_cluster::object::Kind;
use serde_json::{Value, json};

use super::{
    Cluster, Collection, GPUS_PER_NODE, Lack, RunningPod, lack_of_team,
    objects::{FLAVOR, metadata},
};

/// Teams below a Cohort, and Cohorts below a Cohort.
const CHILDREN: usize = 10;
/// How deep the Cohorts are.
const LEVELS: u32 = 3;

/// The name of a Team, and of its one namespace.
pub(crate) fn team_name(team: usize) -> String {
    format!("team-{team:04}")
}

/// GPUs that each Team is guaranteed. Those that lack quota have together what they use; every other of them has given half
/// of its own to the next.
pub(super) fn nominal(nodes: usize, teams: usize, running: &[RunningPod]) -> Vec<usize> {
    let mut used = vec![0; teams];
    for pod in running {
        used[pod.team] += pod.gpus;
    }
    let plenty = nodes * GPUS_PER_NODE;
    let mut nominal: Vec<usize> = (0..teams)
        .map(|team| match lack_of_team(team) {
            Lack::Place => plenty,
            Lack::Quota => used[team],
        })
        .collect();
    for giver in (1..teams.saturating_sub(2)).step_by(4) {
        let given = nominal[giver] / 2;
        nominal[giver] -= given;
        nominal[giver + 2] += given;
    }
    nominal
}

/// The Cohort of a level (0 is the root) above a Team.
fn cohort_name(team: usize, level: u32) -> String {
    let lack = match lack_of_team(team) {
        Lack::Place => "place",
        Lack::Quota => "quota",
    };
    let number = team / 2 / CHILDREN.pow(LEVELS - level);
    let number = if level == 0 { 0 } else { number };
    format!("{lack}-{level}-{number:03}")
}

impl Cluster {
    pub(super) fn objects_of_quota(&self) -> Vec<Collection> {
        let cohorts = self.cohorts();
        vec![
            Collection {
                kind: Kind::Cohort,
                path: "/apis/muster.dev/v1alpha1/cohorts",
                count: cohorts.len(),
                make: Box::new(move |_, number| cohorts[number].clone()),
            },
            Collection {
                kind: Kind::Team,
                path: "/apis/muster.dev/v1alpha1/teams",
                count: self.teams,
                make: Box::new(Self::team),
            },
            Collection {
                kind: Kind::Namespace,
                path: "/api/v1/namespaces",
                count: self.teams,
                make: Box::new(|_, team| namespace(team)),
            },
        ]
    }

    fn cohorts(&self) -> Vec<Value> {
        let mut cohorts = std::collections::BTreeMap::new();
        for team in 0..self.teams {
            for level in 0..LEVELS {
                let parent = (level > 0).then(|| cohort_name(team, level - 1));
                cohorts.insert(cohort_name(team, level), parent);
            }
        }
        let cohorts = cohorts.into_iter().map(|(name, parent)| {
            json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Cohort",
                "metadata": metadata(&name), "spec": {"parent": parent}})
        });
        cohorts.collect()
    }

    fn team(&self, team: usize) -> Value {
        json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Team",
        "metadata": metadata(&team_name(team)), "spec": {
            "cohort": cohort_name(team, LEVELS - 1),
            "quota": [{"flavor": FLAVOR, "resources": [{"name": "gpus", "nominal": self.nominal[team]}]}],
        }})
    }
}

fn namespace(team: usize) -> Value {
    let mut metadata = metadata(&team_name(team));
    metadata["labels"] = json!({keys::TEAM: team_name(team)});
    json!({"metadata": metadata})
}
