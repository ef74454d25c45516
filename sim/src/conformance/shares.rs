//! Dominant resource shares.

use muster_engine::{TeamName, quota::Share};
use serde::Deserialize;

use super::{
    queues::{self, BaseUnits, Queue},
    same,
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Case {
    cluster_queue: Queue,
    lending_cluster_queue: Option<Queue>,
    #[serde(default)]
    cohorts: Vec<Queue>,
    #[serde(default)]
    usage: BaseUnits,
    /// What a gang would add to it.
    #[serde(default, rename = "flvResQ")]
    added: BaseUnits,
    want: Vec<Wanted>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Wanted {
    name: String,
    node_type: NodeType,
    borrowing: bool,
    dr_name: String,
    dr_value: u128,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum NodeType {
    #[serde(rename = "nodeTypeCq")]
    ClusterQueue,
    #[serde(rename = "nodeTypeCohort")]
    Cohort,
}

pub(super) fn judge(case: &Case) -> anyhow::Result<()> {
    let team = case.cluster_queue.name.as_str();
    let mut charges = queues::charges_of(team, &case.usage)?;
    charges.extend(queues::charges_of(team, &case.added)?);
    let queues = std::iter::once(&case.cluster_queue).chain(&case.lending_cluster_queue);
    let tree = queues::tree(queues, &case.cohorts, &charges)?;
    for wanted in &case.want {
        let share = match wanted.node_type {
            NodeType::ClusterQueue => tree.team_share(&TeamName::from(wanted.name.as_str())),
            NodeType::Cohort => tree.cohort_share(&wanted.name.as_str().into()),
        };
        let share = share.ok_or_else(|| anyhow::anyhow!("{} has no share", wanted.name))?;
        let told = (name_of(&share), share.thousandths(), share.is_borrowing());
        let expected = (
            wanted.dr_name.clone(),
            Some(wanted.dr_value),
            wanted.borrowing,
        );
        same(|| format!("share of {}", wanted.name), &told, &expected)?;
    }
    Ok(())
}

fn name_of(share: &Share) -> String {
    share
        .dominant()
        .map(ToString::to_string)
        .unwrap_or_default()
}
