//! What Teams can get now, and could ever get.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    queues::{self, BaseUnits, Queue},
    same,
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Case {
    cluster_queues: Vec<Queue>,
    #[serde(default)]
    cohorts: Vec<Queue>,
    #[serde(default)]
    usage: BTreeMap<String, BaseUnits>,
    want_available: BTreeMap<String, BaseUnits>,
    want_potentially_available: BTreeMap<String, BaseUnits>,
}

pub(super) fn judge(case: &Case) -> anyhow::Result<()> {
    let mut charges = Vec::new();
    for (team, amounts) in &case.usage {
        charges.extend(queues::charges_of(team, amounts)?);
    }
    let tree = queues::tree(&case.cluster_queues, &case.cohorts, &charges)?;
    for (team, expected) in &case.want_available {
        for (of, expected) in queues::base_units(expected)? {
            let available = tree.available(&team.as_str().into(), &of)?;
            same(
                || format!("{team} can get of {of:?}"),
                &available,
                &expected,
            )?;
        }
    }
    for (team, expected) in &case.want_potentially_available {
        for (of, expected) in queues::base_units(expected)? {
            let most = tree.potentially_available(&team.as_str().into(), &of)?;
            same(
                || format!("{team} could ever get of {of:?}"),
                &most,
                &expected,
            )?;
        }
    }
    Ok(())
}
