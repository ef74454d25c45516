//! S15: once nothing goes wrong any more, no gang gives way to the same other one time and again for nothing.
//!
//! **Why it counts what was done in between.** Who goes round in a circle gives way in vain: the other one loses what it was given before its
//! work is done. But a gang that may start with fewer pods than it has does its work in several attempts, the ranks of one after those of
//! another, and holds nothing between two of them. Who is of a lower tier takes what is idle then, and gives way to the next attempt by
//! the same right as to the first: each time, where the higher one may not borrow and its Team borrows by the lower one. Nobody goes round
//! by that, and it ends: every attempt that runs to its end leaves fewer ranks, and the last one leaves none. An attempt that gives
//! way in its turn, fails, or never starts, leaves as many as there were before. That may happen [`MOST_TIMES`] times, and no more.
//!
//! So it is with a StatefulSet whose pods are one gang while it rolls out another template: it ends a pod of every attempt itself, and so the
//! attempt, and makes the next one of one pod more of the new template. After as many attempts as it has pods there is nothing left to replace.
//!
//! What was done is read off the pods, which the code under test does not write the phase of.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use muster_api::{Gang, Intent, keys};

use super::Violation;
use crate::{api_server::ApiServer, owners::is_of_new_revision};

/// How often a gang may give way to the same other gang that gets nothing done in between, or go for a limit. (Pods that failed by
/// themselves are made again as gangs of their own, so how many others there are is not known.)
const MOST_TIMES: u64 = 3;

/// Who gave way to whom since the last fault.
#[derive(Debug, Default)]
pub(super) struct GivenWay {
    /// By UID of who gave way, and namespace and name of whom it gave way to, which are empty for a limit.
    pairs: BTreeMap<(String, String), Pair>,
}

#[derive(Debug, Default)]
struct Pair {
    /// How often, since the other gang had one more pod done.
    times: u64,
    /// How many pods that had done at most, or replaced by those of a new template.
    done: usize,
}

impl GivenWay {
    /// An attempt is evicted for another gang, by namespace and name, or for a limit.
    pub(super) fn check(
        &mut self,
        api: &ApiServer,
        evict: &Intent,
        preemptor: String,
    ) -> Result<(), Violation> {
        let done = pods_done(api, &preemptor) + pods_replaced(api, &preemptor);
        let of = (evict.gang_uid.clone(), preemptor);
        let pair = self.pairs.entry(of).or_default();
        if done > pair.done {
            *pair = Pair { times: 0, done };
        }
        pair.times += 1;
        if pair.times <= MOST_TIMES {
            return Ok(());
        }
        let what = format!(
            "{} gives way {} times to the same gang, of which {done} pods are done all the while",
            evict.name, pair.times
        );
        Err(Violation::new("S15", what))
    }
}

/// How many pods of a gang have succeeded and are still there. A pod that was let go keeps the name of its gang.
fn pods_done(api: &ApiServer, gang: &str) -> usize {
    let Some((namespace, name)) = gang.split_once('/') else {
        return 0;
    };
    let is_done = |pod: &&Pod| {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let annotations = pod.metadata.annotations.as_ref();
        let of = annotations.and_then(|annotations| annotations.get(keys::GANG_NAME));
        phase == Some("Succeeded")
            && pod.metadata.namespace.as_deref() == Some(namespace)
            && of.is_some_and(|of| of == name)
    };
    api.list::<Pod>().filter(is_done).count()
}

/// How many pods of a gang that is declared by a label were made from the new template of their owner.
fn pods_replaced(api: &ApiServer, gang: &str) -> usize {
    let Some((namespace, name)) = gang.split_once('/') else {
        return 0;
    };
    let gang = api.get::<Gang>(namespace, name);
    let Some(group) = gang.and_then(|gang| gang.spec.group.as_deref()) else {
        return 0;
    };
    let is_replaced = |pod: &&Pod| {
        let labels = pod.metadata.labels.as_ref();
        let of = labels.and_then(|labels| labels.get(keys::GANG));
        is_of_new_revision(pod)
            && pod.metadata.namespace.as_deref() == Some(namespace)
            && of.is_some_and(|of| of == group)
    };
    api.list::<Pod>().filter(is_replaced).count()
}

#[cfg(test)]
mod tests {
    use muster_api::GangSpec;
    use serde_json::json;

    use super::*;

    /// A pod of a gang that was let go.
    fn pod(gang: &str, rank: u64, phase: &str) -> Pod {
        let pod = json!({
            "metadata": {
                "name": format!("{gang}-{rank}"), "namespace": "ml", "annotations": {keys::GANG_NAME: gang},
            },
            "status": {"phase": phase},
        });
        serde_json::from_value(pod).unwrap()
    }

    /// A gang gives way to another one.
    fn gives_way(
        given_way: &mut GivenWay,
        api: &ApiServer,
        gang: &str,
        preemptor: &str,
    ) -> Result<(), &'static str> {
        let evict = Intent {
            name: gang.to_owned(),
            gang_uid: gang.to_owned(),
            ..Intent::default()
        };
        let judged = given_way.check(api, &evict, format!("ml/{preemptor}"));
        judged.map_err(|violation| violation.invariant)
    }

    #[test]
    fn s15_a_gang_may_give_way_to_every_attempt_of_one_that_does_its_work_rank_by_rank() {
        let mut api = ApiServer::default();
        let mut given_way = GivenWay::default();
        for rank in 0..10 {
            let judged = gives_way(&mut given_way, &api, "low", "high");
            assert_eq!(judged, Ok(()), "{rank} ranks are done");
            api.create(pod("high", rank, "Succeeded")).unwrap();
        }
    }

    #[test]
    fn s15_a_gang_may_give_way_to_every_attempt_of_a_set_that_replaces_its_pods_one_by_one() {
        let mut api = ApiServer::default();
        let spec = GangSpec {
            group: Some("serve".to_owned()),
            ..GangSpec::default()
        };
        let mut gang = Gang::new("high", spec);
        gang.metadata.namespace = Some("ml".to_owned());
        api.create(gang).unwrap();
        let mut given_way = GivenWay::default();
        for ordinal in 0..10 {
            let judged = gives_way(&mut given_way, &api, "low", "high");
            assert_eq!(judged, Ok(()), "{ordinal} pods are replaced");
            let pod = json!({"metadata": {
                "name": format!("serve-{ordinal}"), "namespace": "ml",
                "labels": {keys::GANG: "serve", "controller-revision-hash": "6c8b5d4f7"},
            }});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            api.create(pod).unwrap();
        }
        // All are replaced.
        for time in 1..=MOST_TIMES {
            let judged = gives_way(&mut given_way, &api, "low", "high");
            assert_eq!(judged, Ok(()), "time {time}");
        }
        let judged = gives_way(&mut given_way, &api, "low", "high");
        assert_eq!(judged, Err("S15"));
    }

    #[test]
    fn s15_who_gives_way_time_and_again_while_nothing_gets_done_is_seen() {
        // What there is of the preemptor, and whether it gives way in its turn.
        let cases = [
            ("Running", false),
            ("Failed", false),
            ("Succeeded", false),
            ("Running", true),
        ];
        for (phase, is_circle) in cases {
            let mut api = ApiServer::default();
            let mut given_way = GivenWay::default();
            api.create(pod("high", 0, phase)).unwrap();
            for time in 1..=MOST_TIMES + 1 {
                let expected = if time > MOST_TIMES {
                    Err("S15")
                } else {
                    Ok(())
                };
                let judged = gives_way(&mut given_way, &api, "low", "high");
                assert_eq!(judged, expected, "{phase}, {is_circle}, time {time}");
                if is_circle {
                    let back = gives_way(&mut given_way, &api, "high", "low");
                    assert_eq!(back, expected, "back, time {time}");
                }
                // That others get on is no excuse.
                api.create(pod("other", time, "Succeeded")).unwrap();
            }
        }
    }

    #[test]
    fn s15_who_goes_for_a_limit_time_and_again_is_seen() {
        let mut api = ApiServer::default();
        let mut given_way = GivenWay::default();
        let evict = Intent::default();
        for time in 1..=MOST_TIMES + 1 {
            let judged = given_way.check(&api, &evict, String::new());
            assert_eq!(judged.is_ok(), time <= MOST_TIMES, "time {time}");
            api.create(pod("other", time, "Succeeded")).unwrap();
        }
    }
}
