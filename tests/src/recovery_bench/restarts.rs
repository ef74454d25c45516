//! Which restarts were wrong, and which were not whole: by what was seen of pods and of the Ledger alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use super::watched::Seen;

/// A gang before something happened to it.
#[derive(Clone, Debug)]
pub(super) struct Before {
    /// `namespace/name`.
    pub(super) gang: String,
    /// The attempt that ran.
    pub(super) attempt: i64,
    /// Its pods, by UID.
    pub(super) pods: BTreeSet<String>,
}

impl Seen {
    /// Gangs that were evicted, or that lost a pod that had run, since then; each with what was seen of it.
    pub(super) fn restarted_since(&self, since: Instant) -> BTreeMap<String, String> {
        let mut restarted = BTreeMap::new();
        for pod in self.pods.values() {
            let ran = pod.running_since.is_some();
            if let (Some(gang), true, Some(end)) = (&pod.gang, ran, pod.end())
                && end >= since
            {
                restarted.insert(gang.clone(), format!("pod {} ended", pod.name));
            }
        }
        for ((gang, attempt), at) in &self.evicted {
            if *at >= since {
                restarted.insert(gang.clone(), format!("attempt {attempt} was evicted"));
            }
        }
        restarted
    }

    /// Whether an attempt of a gang was evicted before then.
    pub(super) fn evicted_before(&self, gang: &str, then: Instant) -> bool {
        let mut evicted = self.evicted.iter();
        evicted.any(|((of, _), at)| of == gang && *at < then)
    }

    /// Whether a gang that ran whole in this attempt was started anew once more.
    pub(super) fn restarted_after(&self, gang: &str, attempt: i64) -> bool {
        let mut evicted = self.evicted.keys();
        let is_evicted = evicted.any(|(of, at)| of == gang && *at >= attempt);
        let is_later = |at: &i64| *at > attempt;
        is_evicted
            || self
                .of_gang(gang)
                .any(|(_, pod)| pod.attempts.iter().any(is_later))
    }

    /// Where the gang was not restarted whole: a pod that was made anew joined the attempt that ran, a pod belonged to two attempts, or a pod
    /// of the old attempt still ran when `again` (an attempt and when all of it ran) did. What ran on `lost_node` runs no more, whatever the API
    /// server says.
    pub(super) fn mixed(
        &self,
        before: &Before,
        again: (i64, Instant),
        lost_node: Option<&str>,
    ) -> Vec<String> {
        let (attempt, whole_at) = again;
        let mut mixed = Vec::new();
        for (uid, pod) in &self.pods {
            if pod.gang.as_ref() != Some(&before.gang) {
                continue;
            }
            let name = &pod.name;
            let is_old = before.pods.contains(uid);
            if pod.attempts.len() > 1 {
                mixed.push(format!("pod {name} was of attempts {:?}", pod.attempts));
            }
            let ran = pod.running_since.is_some();
            if !is_old && ran && pod.attempts.contains(&before.attempt) {
                let of = before.attempt;
                mixed.push(format!("pod {name} joined attempt {of}, which ran"));
            }
            let still_ran = ran && pod.end().is_none_or(|at| at > whole_at);
            let is_lost = lost_node.is_some() && pod.node.as_deref() == lost_node;
            if is_old && still_ran && !is_lost {
                mixed.push(format!(
                    "pod {name} of attempt {} still ran when attempt {attempt} did",
                    before.attempt
                ));
            }
        }
        mixed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::watched::SeenPod;
    use super::*;

    const GANG: &str = "bench/job-fault-1";

    /// Makes of a whole restart one that is not; with a time after all of the new attempt ran.
    type Change = fn(&mut Seen, Instant);

    fn pod(gang: &str, attempts: &[i64], running: Instant, gone: Option<Instant>) -> SeenPod {
        SeenPod {
            name: format!("pod-of-{}", attempts.len()),
            gang: Some(gang.to_owned()),
            node: Some("node-0".to_owned()),
            attempts: attempts.iter().copied().collect(),
            running_since: Some(running),
            gone_at: gone,
            ..SeenPod::default()
        }
    }

    /// Two pods of attempt 1, gone after 10 s, and two of attempt 2, which run since 20 s.
    fn restarted_whole(start: Instant) -> (Seen, Before) {
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let old = |number: u32| {
            (
                format!("old-{number}"),
                pod(GANG, &[1], start, Some(at(10))),
            )
        };
        let new = |number: u32| (format!("new-{number}"), pod(GANG, &[2], at(20), None));
        let seen = Seen {
            pods: [old(0), old(1), new(0), new(1)].into(),
            ..Seen::default()
        };
        let before = Before {
            gang: GANG.to_owned(),
            attempt: 1,
            pods: ["old-0", "old-1"].map(str::to_owned).into(),
        };
        (seen, before)
    }

    #[test]
    fn an_attempt_is_whole_when_the_last_of_its_pods_runs_and_not_before() {
        let start = Instant::now();
        let (mut seen, before) = restarted_whole(start);
        let later = start + Duration::from_secs(25);
        seen.pods.get_mut("new-1").unwrap().running_since = None;
        assert_eq!(seen.whole_after(GANG, 1, 2), None);
        seen.pods.get_mut("new-1").unwrap().running_since = Some(later);
        assert_eq!(seen.whole_after(GANG, 1, 2), Some((2, later)));
        assert_eq!(seen.whole_after(GANG, 2, 2), None);
        assert_eq!(
            seen.gone_since(&before.pods),
            Some(start + Duration::from_secs(10))
        );
        seen.pods.get_mut("old-0").unwrap().gone_at = None;
        assert_eq!(seen.gone_since(&before.pods), None);
    }

    #[test]
    fn an_attempt_of_which_a_pod_ended_before_the_last_one_ran_was_never_whole() {
        let start = Instant::now();
        let (mut seen, _) = restarted_whole(start);
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        seen.pods.get_mut("new-1").unwrap().running_since = Some(at(25));
        for (end, expected) in [(24, None), (26, Some((2, at(25))))] {
            seen.pods.get_mut("new-0").unwrap().ended_at = Some(at(end));
            assert_eq!(seen.whole_after(GANG, 1, 2), expected, "{end}");
        }
        // One that takes the place of the first makes it whole.
        seen.pods.get_mut("new-0").unwrap().ended_at = Some(at(24));
        let replaced = pod(GANG, &[2], at(30), None);
        seen.pods.insert("replaced".to_owned(), replaced);
        assert_eq!(seen.whole_after(GANG, 1, 2), Some((2, at(30))));
    }

    #[test]
    fn a_gang_that_was_evicted_before_its_gpu_broke_is_seen_to_and_no_other() {
        let start = Instant::now();
        let (mut seen, _) = restarted_whole(start);
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        seen.evicted.insert((GANG.to_owned(), 1), at(5));
        for (gang, then, expected) in [
            (GANG, 6, true),
            (GANG, 5, false),
            (GANG, 4, false),
            ("bench/job-fault-2", 6, false),
        ] {
            assert_eq!(
                seen.evicted_before(gang, at(then)),
                expected,
                "{gang} {then}"
            );
        }
    }

    #[test]
    fn a_rank_that_died_by_itself_is_gone_when_it_ended_and_one_that_was_told_to_go_when_it_is_no_more()
     {
        let start = Instant::now();
        let (mut seen, before) = restarted_whole(start);
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let died = seen.pods.get_mut("old-0").unwrap();
        (died.ended_at, died.gone_at) = (Some(at(1)), None);
        assert_eq!(seen.gone_since(&before.pods), Some(at(10)), "the other's");
        seen.pods.get_mut("old-1").unwrap().gone_at = Some(start);
        assert_eq!(seen.gone_since(&before.pods), Some(at(1)));
        seen.pods.get_mut("old-0").unwrap().is_deleted = true;
        assert_eq!(seen.gone_since(&before.pods), None, "it goes still");
    }

    #[test]
    fn a_gang_that_is_restarted_whole_is_not_mixed() {
        let start = Instant::now();
        let (seen, before) = restarted_whole(start);
        let again = seen.whole_after(GANG, 1, 2).unwrap();
        assert_eq!(seen.mixed(&before, again, None), Vec::<String>::new());
    }

    #[test]
    fn each_way_to_mix_old_and_new_pods_is_seen() {
        let start = Instant::now();
        let (whole, before) = restarted_whole(start);
        let again = whole.whole_after(GANG, 1, 2).unwrap();
        let after = again.1 + Duration::from_secs(1);
        let cases: [(Change, Option<&str>, &str); 4] = [
            (
                |seen, _| {
                    seen.pods.get_mut("old-0").unwrap().attempts.insert(2);
                },
                None,
                "attempts {1, 2}",
            ),
            (
                |seen, at| {
                    let replaced = pod(GANG, &[1], at, None);
                    seen.pods.insert("replaced".to_owned(), replaced);
                },
                None,
                "joined attempt 1",
            ),
            (
                |seen, at| seen.pods.get_mut("old-0").unwrap().gone_at = Some(at),
                None,
                "still ran",
            ),
            (
                |seen, at| seen.pods.get_mut("old-0").unwrap().gone_at = Some(at),
                Some("node-1"),
                "still ran",
            ),
        ];
        for (change, lost_node, says) in cases {
            let mut seen = whole.clone();
            change(&mut seen, after);
            let mixed = seen.mixed(&before, again, lost_node).join("; ");
            assert!(mixed.contains(says), "{says}: {mixed}");
        }
        // What ran on the node that is lost is excepted.
        let mut seen = whole.clone();
        seen.pods.get_mut("old-0").unwrap().gone_at = None;
        assert!(seen.mixed(&before, again, Some("node-0")).is_empty());
    }

    #[test]
    fn a_gang_that_goes_once_more_after_it_ran_again_is_seen_to() {
        let start = Instant::now();
        let (whole, _) = restarted_whole(start);
        let evicted = |attempt: i64| {
            let mut seen = whole.clone();
            seen.evicted.insert((GANG.to_owned(), attempt), start);
            seen.evicted.insert(("bench/other".to_owned(), 2), start);
            seen
        };
        let mut later = whole.clone();
        later
            .pods
            .insert("third".to_owned(), pod(GANG, &[3], start, None));
        for (seen, expected) in [
            (whole.clone(), false),
            (evicted(1), false),
            (evicted(2), true),
            (later, true),
        ] {
            assert_eq!(seen.restarted_after(GANG, 2), expected, "{seen:?}");
        }
    }

    #[test]
    fn gangs_that_lost_a_pod_or_were_evicted_since_then_are_restarted_and_no_others() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let (mut seen, _) = restarted_whole(start);
        let others = [
            ("earlier", pod("bench/earlier", &[1], start, Some(at(4)))),
            ("untouched", pod("bench/untouched", &[1], start, None)),
        ];
        for (uid, pod) in others {
            seen.pods.insert(uid.to_owned(), pod);
        }
        seen.evicted.insert(("bench/evicted".to_owned(), 3), at(6));
        seen.evicted.insert(("bench/before".to_owned(), 1), at(1));
        let restarted: Vec<String> = seen.restarted_since(at(5)).into_keys().collect();
        assert_eq!(restarted, ["bench/evicted", GANG]);
    }
}
