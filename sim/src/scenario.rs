//! A small cluster and the gangs that its users submit, drawn from a seed.

use crate::random::Random;

/// What a run begins with, and what is submitted while it lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// The nodes, in the order of their names.
    pub nodes: Vec<NodeShape>,
    /// The Teams; all are in one Cohort.
    pub teams: Vec<TeamShape>,
    /// What is submitted.
    pub gangs: Vec<GangShape>,
    /// How long a Gang that ended is kept, in seconds.
    pub keep_ended_seconds: i64,
    /// Bytes of an intent up to which it stands whole in the Ledger; larger ones are proposed first.
    pub whole_intent_bytes: usize,
}

/// What the chart ships: far above what these gangs need.
pub const WHOLE_INTENT_BYTES: usize = 32 * 1024;
/// About what a gang of two pods needs.
const MIDDLING_INTENT_BYTES: usize = 700;

/// A node with GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeShape {
    /// Its name.
    pub name: String,
    /// Its leaf switch.
    pub leaf: String,
    /// Its GPUs.
    pub gpus: usize,
}

/// A Team; its one namespace has its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamShape {
    /// Its name.
    pub name: String,
    /// GPUs guaranteed to it.
    pub nominal_gpus: usize,
    /// GPUs that it may borrow; no limit without.
    pub borrowing_gpus: Option<usize>,
}

/// Who makes the pods of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerKind {
    /// An Indexed Job: what fails or vanishes is made anew.
    Job,
    /// A user, pod by pod: what fails stays failed.
    User,
}

/// As the time of a gang that a script submits.
pub const BY_SCRIPT: u64 = u64::MAX;

/// A gang that is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangShape {
    /// Name of its Job, or value of its label.
    pub name: String,
    /// Its Team and namespace.
    pub team: String,
    /// Who makes its pods.
    pub owner: OwnerKind,
    /// Number of pods.
    pub pods: usize,
    /// GPUs of each pod.
    pub gpus_per_pod: usize,
    /// Claims that they are spread over, evenly.
    pub claims_per_pod: usize,
    /// When it is submitted, in milliseconds of the run.
    pub submitted_at: u64,
}

impl Scenario {
    /// The scenario of a seed: every gang fits the empty cluster and its Team's limits.
    pub fn draw(random: &mut Random) -> Self {
        let nodes = nodes(random);
        let gpus: usize = nodes.iter().map(|node| node.gpus).sum();
        let teams = teams(random, gpus);
        let count = random.between(2, 5);
        let keep_ended_seconds = if random.one_in(3) { 60 } else { 3_600 };
        let gangs = (0..count)
            .map(|number| gang(random, number, &nodes, &teams))
            .collect();
        let whole_intent_bytes = [0, MIDDLING_INTENT_BYTES, WHOLE_INTENT_BYTES][random.index(3)];
        Self {
            nodes,
            teams,
            gangs,
            keep_ended_seconds,
            whole_intent_bytes,
        }
    }

    /// GPUs that the Cohort's members are guaranteed together: no more is ever in use.
    pub fn cohort_gpus(&self) -> usize {
        self.teams.iter().map(|team| team.nominal_gpus).sum()
    }

    /// Most GPUs that a Team may use at a time.
    pub fn most_gpus(&self, team: &TeamShape) -> usize {
        let all = self.cohort_gpus();
        team.borrowing_gpus
            .map_or(all, |borrowing| all.min(team.nominal_gpus + borrowing))
    }
}

fn nodes(random: &mut Random) -> Vec<NodeShape> {
    let count = random.between(2, 4);
    (0..count)
        .map(|number| NodeShape {
            name: format!("node-{number}"),
            leaf: format!("leaf-{}", number / 2),
            gpus: 2 * usize::from(random.one_in(3)) + 2,
        })
        .collect()
}

/// Quota for all GPUs, or for two fewer, so that now quota and now place is what a gang waits for.
fn teams(random: &mut Random, gpus: usize) -> Vec<TeamShape> {
    let quota = gpus - 2 * usize::from(random.one_in(2));
    let names = ["blue", "green"];
    let count = 1 + random.index(2);
    let mut left = quota;
    names
        .iter()
        .take(count)
        .enumerate()
        .map(|(number, name)| {
            let nominal_gpus = if number + 1 == count {
                left
            } else {
                random.index(left + 1)
            };
            left -= nominal_gpus;
            TeamShape {
                name: (*name).to_owned(),
                nominal_gpus,
                borrowing_gpus: random.one_in(3).then(|| random.index(quota + 1)),
            }
        })
        .collect()
}

fn gang(random: &mut Random, number: u64, nodes: &[NodeShape], teams: &[TeamShape]) -> GangShape {
    let scenario = Scenario {
        nodes: nodes.to_vec(),
        teams: teams.to_vec(),
        gangs: Vec::new(),
        keep_ended_seconds: 3_600,
        whole_intent_bytes: WHOLE_INTENT_BYTES,
    };
    let able: Vec<&TeamShape> = teams
        .iter()
        .filter(|team| scenario.most_gpus(team) > 0)
        .collect();
    let team = random.pick(able).unwrap_or(&teams[0]);
    let most = scenario.most_gpus(team);
    let gpus_per_pod = 1 + random.index(most.min(2));
    let fits: usize = nodes.iter().map(|node| node.gpus / gpus_per_pod).sum();
    let pods = 1 + random.index(4.min(fits).min(most / gpus_per_pod).max(1));
    let claims_per_pod = 1 + random.index(gpus_per_pod);
    let owner = if random.one_in(3) {
        OwnerKind::User
    } else {
        OwnerKind::Job
    };
    GangShape {
        name: format!("gang-{number}"),
        team: team.name.clone(),
        owner,
        pods,
        gpus_per_pod,
        claims_per_pod,
        submitted_at: random.below(20_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gang_fits_the_empty_cluster_and_the_limits_of_its_team() {
        for seed in 0..500 {
            let scenario = Scenario::draw(&mut Random::new(seed));
            let fits =
                |gpus: usize| -> usize { scenario.nodes.iter().map(|node| node.gpus / gpus).sum() };
            assert!(scenario.cohort_gpus() >= 2, "seed {seed}");
            for gang in &scenario.gangs {
                let team = scenario
                    .teams
                    .iter()
                    .find(|team| team.name == gang.team)
                    .unwrap();
                assert!(
                    gang.pods * gang.gpus_per_pod <= scenario.most_gpus(team),
                    "seed {seed}: {gang:?}"
                );
                assert!(
                    fits(gang.gpus_per_pod) >= gang.pods,
                    "seed {seed}: {gang:?}"
                );
            }
        }
    }
}
