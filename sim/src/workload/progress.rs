//! What first ranks tell of their progress, and gangs that stand still: once each, all ranks that met, and none fails.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use muster_api::Gang;

use crate::{api_server::ApiServer, scenario::GangShape};

/// How often a first rank tells how far it has come: well within every deadline.
const AGAIN_MILLISECONDS: u64 = 4_000;
/// How often it does before it stands still, of a gang that does.
const TIMES_BEFORE_STALL: u64 = 2;

/// A rank tells how far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tell {
    /// Namespace of its pod.
    pub namespace: String,
    /// Name of its pod.
    pub pod: String,
    /// UID of its pod.
    pub uid: String,
    /// What it tells: how often it did.
    pub text: String,
}

/// What a first rank does now.
pub(super) enum Now {
    Tells(Tell),
    /// It stands still from now on, and so do the others.
    Stalls,
}

/// What was told so far.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// When, and how often, by UID of the pod.
    times: BTreeMap<String, (u64, u64)>,
    /// Gangs that stood still.
    stalled: BTreeSet<String>,
}

impl Told {
    /// What a rank does that has met the others, if it is the first of a gang that tells.
    pub(super) fn next(
        &mut self,
        now: u64,
        api: &ApiServer,
        pod: &Pod,
        shape: &GangShape,
    ) -> Option<Now> {
        let progress = shape.ranks.progress?;
        let uid = pod.metadata.uid.as_deref()?;
        let known = self.times.get(uid).copied();
        if known.is_some_and(|(at, _)| at + AGAIN_MILLISECONDS > now) || !is_first(api, uid) {
            return None;
        }
        let times = known.map_or(0, |(_, times)| times);
        let is_over = progress.stalls && times >= TIMES_BEFORE_STALL;
        if is_over && self.stalled.insert(shape.name.clone()) {
            return Some(Now::Stalls);
        }
        Some(Now::Tells(Tell {
            namespace: pod.metadata.namespace.clone()?,
            pod: pod.metadata.name.clone()?,
            uid: uid.to_owned(),
            text: (times + 1).to_string(),
        }))
    }

    /// A rank has told that.
    pub(super) fn note(&mut self, now: u64, tell: &Tell) {
        let (at, times) = self.times.entry(tell.uid.clone()).or_default();
        *at = now;
        *times += 1;
    }

    /// When a rank tells again, if it has told anything.
    pub(super) fn again_at(&self, pod: &str) -> Option<u64> {
        let (at, _) = self.times.get(pod)?;
        Some(at + AGAIN_MILLISECONDS)
    }
}

/// Whether the pod is the first rank of the attempt that its Gang carries, as ranks are told.
fn is_first(api: &ApiServer, uid: &str) -> bool {
    let gangs = api.list::<Gang>().filter_map(|gang| gang.status.as_ref());
    let mut admissions = gangs.filter_map(|status| status.admission.as_ref());
    admissions.any(|admission| admission.pods.first().is_some_and(|it| it.uid == uid))
}

#[cfg(test)]
mod tests {
    use muster_api::{
        GangSpec,
        gang::{Admission, AdmittedPod},
    };
    use serde_json::json;

    use super::*;
    use crate::{
        api_server::Precondition,
        random::Random,
        scenario::{Hardships, Progress, Scenario},
    };

    fn gang(stalls: bool) -> GangShape {
        let scenario = Scenario::draw(&mut Random::new(1), &Hardships::default());
        let mut gang = scenario.gangs[0].clone();
        gang.ranks.progress = Some(Progress {
            deadline_seconds: 10,
            stalls,
        });
        gang
    }

    fn pod(uid: &str) -> Pod {
        let pod = json!({"metadata": {"namespace": "ml", "name": "p", "uid": uid}});
        serde_json::from_value(pod).unwrap()
    }

    /// A Gang of the pods `first` and `second`.
    fn admitted() -> ApiServer {
        let mut gang = Gang::new("train", GangSpec::default());
        gang.metadata.namespace = Some("ml".to_owned());
        let mut api = ApiServer::default();
        api.create(gang).unwrap();
        let pods = ["first", "second"].map(|uid| AdmittedPod {
            uid: uid.to_owned(),
            ..AdmittedPod::default()
        });
        api.update::<Gang>("ml", "train", Precondition::default(), |gang| {
            gang.status.get_or_insert_default().admission = Some(Admission {
                pods: pods.into(),
                ..Admission::default()
            });
        })
        .unwrap();
        api
    }

    /// What the rank tells at these times, as often as it does; `None` where it stands still.
    fn told(stalls: bool, uid: &str, times: &[u64]) -> Vec<Option<String>> {
        let (api, shape, pod) = (admitted(), gang(stalls), pod(uid));
        let mut told = Told::default();
        let mut texts = Vec::new();
        for now in times {
            match told.next(*now, &api, &pod, &shape) {
                Some(Now::Tells(tell)) => {
                    told.note(*now, &tell);
                    texts.push(Some(tell.text));
                }
                Some(Now::Stalls) => texts.push(None),
                None => {}
            }
        }
        texts
    }

    #[test]
    fn the_first_rank_tells_something_else_each_time_and_stands_still_once() {
        let texts = |texts: &[&str]| -> Vec<Option<String>> {
            texts
                .iter()
                .map(|text| Some((*text).to_owned()).filter(|text| !text.is_empty()))
                .collect()
        };
        let times = [0, 1_000, 4_000, 8_000, 12_000];
        assert_eq!(told(false, "first", &times), texts(&["1", "2", "3", "4"]));
        assert_eq!(told(true, "first", &times), texts(&["1", "2", "", "3"]));
        assert_eq!(told(true, "second", &times), texts(&[]));
    }
}
