//! What is a bypass, by what was seen so far.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    origin::Origin,
    sight::{Holder, Judgement, Seen, Sight, Trusted},
};
use crate::prepare::Milliseconds;

/// Of the time in which a tenant does not use GPUs, what part of the use before it has forgotten.
const FORGOTTEN_PART: u64 = 10;

/// Processes of one origin on one GPU: what is judged as one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// UUID of the GPU.
    pub gpu: String,
    /// The GPU instance of it that they run in; `None` counts on the whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    /// Whose processes they are.
    pub origin: Origin,
}

/// What a look changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Bypasses that are new.
    pub began: Vec<Group>,
    /// Bypasses that are over.
    pub ended: Vec<Group>,
}

/// Judges what is seen. Knows no clock: `now` never goes back.
#[derive(Debug)]
pub struct Detector {
    /// How long nothing explains a process until it is a bypass, how long it is gone until it is none any more, and how long a
    /// claim still explains after it was given back.
    grace_milliseconds: u64,
    /// Looks that are further apart have a gap between them.
    gap_milliseconds: u64,
    trusted: Trusted,
    groups: BTreeMap<Group, State>,
    /// What tenants used and was not forgotten, on all GPUs together.
    usage: BTreeMap<Origin, Usage>,
    /// When each claim was seen last.
    holders: BTreeMap<(String, Holder), Milliseconds>,
    /// How many processes were trusted in the last look.
    trusted_processes: usize,
}

#[derive(Debug)]
struct Usage {
    /// At most as long as it takes to be a bypass.
    milliseconds: u64,
    as_of: Milliseconds,
    /// Whether it was seen then.
    is_seen: bool,
}

#[derive(Debug)]
struct State {
    /// Since when it was seen without a gap.
    since: Milliseconds,
    seen: Milliseconds,
    /// Since when it was not seen, though its GPU was.
    absent: Option<Milliseconds>,
    is_bypass: bool,
    /// As they were seen last.
    processes: Vec<Seen>,
}

impl Detector {
    /// `remembered` were bypasses when this was last known: they stand until they are seen to be gone.
    pub fn new(
        grace_milliseconds: u64,
        gap_milliseconds: u64,
        trusted: Trusted,
        remembered: impl IntoIterator<Item = Group>,
        now: Milliseconds,
    ) -> Self {
        let state = |group| {
            let state = State {
                is_bypass: true,
                ..State::new(now)
            };
            (group, state)
        };
        Self {
            grace_milliseconds,
            gap_milliseconds,
            trusted,
            groups: remembered.into_iter().map(state).collect(),
            usage: BTreeMap::new(),
            holders: BTreeMap::new(),
            trusted_processes: 0,
        }
    }

    /// Who may use GPUs without a claim.
    pub fn trusted(&self) -> &Trusted {
        &self.trusted
    }

    /// Takes what is seen now.
    pub fn see(&mut self, now: Milliseconds, sight: &Sight) -> Changes {
        let sight = self.with_earlier_holders(now, sight);
        let mut changes = Changes::default();
        let unexplained = self.sort(&sight);
        self.count_usage(now, &unexplained);
        let enough = self.grace_milliseconds;
        for (group, processes) in &unexplained {
            let state = self.groups.entry(group.clone());
            let state = state.or_insert_with(|| State::new(now));
            if since(now, state.seen) > self.gap_milliseconds {
                state.since = now;
            }
            state.seen = now;
            state.absent = None;
            state.processes.clone_from(processes);
            let usage = self.usage.get(&group.origin);
            let is_long = since(now, state.since) >= enough
                || usage.is_some_and(|usage| usage.milliseconds >= enough);
            if !state.is_bypass && is_long {
                state.is_bypass = true;
                changes.began.push(group.clone());
            }
        }
        self.groups.retain(|group, state| {
            if unexplained.contains_key(group) {
                return true;
            }
            let is_there = sight.gpus.contains(&group.gpu);
            // A GPU that does not answer tells nothing.
            if is_there && !sight.processes.contains_key(&group.gpu) {
                return true;
            }
            let absent = *state.absent.get_or_insert(now);
            if is_there && state.is_bypass && since(now, absent) < enough {
                return true;
            }
            if state.is_bypass {
                changes.ended.push(group.clone());
            }
            false
        });
        changes
    }

    /// The bypasses that stand, with their processes as they were seen last.
    pub fn standing(&self) -> impl Iterator<Item = (&Group, &[Seen])> {
        let standing = self.groups.iter().filter(|(_, state)| state.is_bypass);
        standing.map(|(group, state)| (group, state.processes.as_slice()))
    }

    /// How many processes were trusted in the last look.
    pub fn trusted_processes(&self) -> usize {
        self.trusted_processes
    }

    /// A tenant that pauses, or goes from GPU to GPU, uses them all the same.
    fn count_usage(&mut self, now: Milliseconds, unexplained: &BTreeMap<Group, Vec<Seen>>) {
        let origins = unexplained.keys().map(|group| &group.origin);
        let seen: BTreeSet<&Origin> = origins.filter(|origin| origin.is_of_tenant()).collect();
        for origin in &seen {
            let usage = self.usage.entry((*origin).clone());
            usage.or_insert_with(|| Usage {
                milliseconds: 0,
                as_of: now,
                is_seen: false,
            });
        }
        let (most, gap) = (self.grace_milliseconds, self.gap_milliseconds);
        self.usage.retain(|origin, usage| {
            let passed = since(now, usage.as_of);
            let is_seen = seen.contains(origin);
            // What was between two looks that are far apart nobody knows.
            usage.milliseconds = if is_seen && usage.is_seen && passed <= gap {
                usage.milliseconds.saturating_add(passed).min(most)
            } else {
                usage.milliseconds.saturating_sub(passed / FORGOTTEN_PART)
            };
            usage.as_of = now;
            usage.is_seen = is_seen;
            is_seen || usage.milliseconds > 0
        });
    }

    /// What nothing explains, by group.
    fn sort(&mut self, sight: &Sight) -> BTreeMap<Group, Vec<Seen>> {
        let mut unexplained: BTreeMap<Group, Vec<Seen>> = BTreeMap::new();
        self.trusted_processes = 0;
        for (gpu, processes) in &sight.processes {
            for seen in processes {
                match sight.judge(gpu, seen, &self.trusted) {
                    Judgement::Explained => {}
                    Judgement::Trusted => self.trusted_processes += 1,
                    Judgement::Unexplained => {
                        let group = Group {
                            gpu: gpu.clone(),
                            gpu_instance: seen.gpu_instance,
                            origin: seen.origin.clone(),
                        };
                        unexplained.entry(group).or_default().push(seen.clone());
                    }
                }
            }
        }
        unexplained
    }

    /// A claim that was given back a moment ago still explains.
    fn with_earlier_holders(&mut self, now: Milliseconds, sight: &Sight) -> Sight {
        for (gpu, held) in &sight.holders {
            let held = held
                .iter()
                .map(|holder| ((gpu.clone(), holder.clone()), now));
            self.holders.extend(held);
        }
        let grace = self.grace_milliseconds;
        self.holders.retain(|_, last| since(now, *last) < grace);
        let mut holders: BTreeMap<String, BTreeSet<Holder>> = BTreeMap::new();
        for (gpu, holder) in self.holders.keys() {
            holders
                .entry(gpu.clone())
                .or_default()
                .insert(holder.clone());
        }
        Sight {
            holders,
            ..sight.clone()
        }
    }
}

impl State {
    fn new(now: Milliseconds) -> Self {
        Self {
            since: now,
            seen: now,
            absent: None,
            is_bypass: false,
            processes: Vec::new(),
        }
    }
}

fn since(now: Milliseconds, then: Milliseconds) -> u64 {
    now.0.saturating_sub(then.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "GPU-0";

    /// What NVML says of the one GPU at some second, and which pod holds it then.
    #[derive(Clone)]
    struct Moment {
        second: u64,
        processes: Option<&'static [(u32, &'static str)]>,
        holder: Option<&'static str>,
    }

    fn moment(
        second: u64,
        processes: Option<&'static [(u32, &'static str)]>,
        holder: Option<&'static str>,
    ) -> Moment {
        Moment {
            second,
            processes,
            holder,
        }
    }

    fn detector(remembered: &[&str]) -> Detector {
        let remembered: Vec<Group> = remembered.iter().map(|pod| group(pod)).collect();
        let trusted = Trusted::default();
        Detector::new(30_000, 15_000, trusted, remembered, Milliseconds(0))
    }

    fn group(pod: &str) -> Group {
        Group {
            gpu: GPU.to_owned(),
            gpu_instance: None,
            origin: Origin::Pod(pod.to_owned()),
        }
    }

    fn sight(moment: &Moment) -> Sight {
        let seen = |(pid, pod): &(u32, &str)| Seen {
            pid: *pid,
            gpu_instance: None,
            origin: Origin::Pod((*pod).to_owned()),
            program: None,
        };
        let listed: Option<Vec<Seen>> = moment.processes.map(|all| all.iter().map(seen).collect());
        let held = moment.holder.map(|pod| Holder::Pod(pod.to_owned()));
        Sight {
            gpus: BTreeSet::from([GPU.to_owned()]),
            processes: listed
                .map(|all| (GPU.to_owned(), all))
                .into_iter()
                .collect(),
            holders: held
                .map(|holder| (GPU.to_owned(), BTreeSet::from([holder])))
                .into_iter()
                .collect(),
            ..Sight::default()
        }
    }

    /// What changed, each with its second: `+POD` began, `-POD` ended.
    fn changes(detector: &mut Detector, moments: &[Moment]) -> Vec<(u64, String)> {
        let mut all = Vec::new();
        for moment in moments {
            let now = Milliseconds(moment.second * 1_000);
            let changes = detector.see(now, &sight(moment));
            let began = changes.began.iter().map(|group| ("+", group));
            let ended = changes.ended.iter().map(|group| ("-", group));
            for (sign, group) in began.chain(ended) {
                let Origin::Pod(pod) = &group.origin else {
                    panic!("{group:?}");
                };
                all.push((moment.second, format!("{sign}{pod}")));
            }
        }
        all
    }

    /// The same every 5 s.
    fn steadily(
        seconds: std::ops::RangeInclusive<u64>,
        processes: Option<&'static [(u32, &'static str)]>,
        holder: Option<&'static str>,
    ) -> Vec<Moment> {
        let at = |second| moment(second, processes, holder);
        seconds.step_by(5).map(at).collect()
    }

    const SIDE: Option<&[(u32, &str)]> = Some(&[(7, "side")]);
    const NOBODY: Option<&[(u32, &str)]> = Some(&[]);

    #[test]
    fn a_process_is_a_bypass_after_30_s_and_no_more_30_s_after_it_is_gone() {
        let two: Option<&'static [(u32, &'static str)]> = Some(&[(7, "side"), (8, "holder")]);
        let next: Option<&'static [(u32, &'static str)]> = Some(&[(9, "side")]);
        for (what, moments, expected) in [
            (
                "it stays, and goes",
                [
                    steadily(0..=60, SIDE, None),
                    steadily(65..=120, NOBODY, None),
                ]
                .concat(),
                vec![(30, "+side"), (95, "-side")],
            ),
            (
                "it ends before",
                [
                    steadily(0..=25, SIDE, None),
                    steadily(30..=90, NOBODY, None),
                ]
                .concat(),
                vec![],
            ),
            (
                "a pause is no end of it",
                [
                    steadily(0..=25, SIDE, None),
                    steadily(30..=30, NOBODY, None),
                    steadily(35..=60, SIDE, None),
                ]
                .concat(),
                vec![(45, "+side")],
            ),
            (
                "one process follows another of the same pod",
                [steadily(0..=15, SIDE, None), steadily(20..=30, next, None)].concat(),
                vec![(30, "+side")],
            ),
            (
                "it holds the GPU",
                steadily(0..=90, SIDE, Some("side")),
                vec![],
            ),
            (
                "another holds the GPU, and is not told",
                steadily(0..=90, two, Some("holder")),
                vec![(30, "+side")],
            ),
            (
                "its claim was given back: grace, then 30 s",
                [
                    steadily(0..=20, SIDE, Some("side")),
                    steadily(25..=100, SIDE, None),
                ]
                .concat(),
                vec![(80, "+side")],
            ),
            (
                "it gets a claim: that explains it",
                [
                    steadily(0..=40, SIDE, None),
                    steadily(45..=100, SIDE, Some("side")),
                ]
                .concat(),
                vec![(30, "+side"), (75, "-side")],
            ),
            (
                "it comes back before it is forgotten",
                [
                    steadily(0..=40, SIDE, None),
                    steadily(45..=60, NOBODY, None),
                    steadily(65..=120, SIDE, None),
                ]
                .concat(),
                vec![(30, "+side")],
            ),
            (
                "a GPU that does not answer stays as it was",
                [steadily(0..=40, SIDE, None), steadily(45..=300, None, None)].concat(),
                vec![(30, "+side")],
            ),
            (
                "nor does its silence count as having been seen",
                [
                    steadily(0..=10, SIDE, None),
                    steadily(15..=60, None, None),
                    steadily(65..=90, SIDE, None),
                ]
                .concat(),
                vec![],
            ),
        ] {
            let expected: Vec<(u64, String)> = expected
                .into_iter()
                .map(|(second, what)| (second, what.to_owned()))
                .collect();
            assert_eq!(changes(&mut detector(&[]), &moments), expected, "{what}");
        }
    }

    /// Looks every 5 s for ten minutes; whether a bypass began. `on`: the GPU that is used at a second.
    fn is_found(origin: &Origin, on: impl Fn(u64) -> Option<&'static str>) -> bool {
        let mut detector = detector(&[]);
        (0..=600).step_by(5).any(|second| {
            let mut sight = Sight::default();
            for gpu in ["GPU-0", "GPU-1"] {
                let process = Seen {
                    pid: 7,
                    gpu_instance: None,
                    origin: origin.clone(),
                    program: None,
                };
                let seen = (on(second) == Some(gpu)).then_some(process);
                sight.gpus.insert(gpu.to_owned());
                let seen = seen.into_iter().collect();
                sight.processes.insert(gpu.to_owned(), seen);
            }
            let changes = detector.see(Milliseconds(second * 1_000), &sight);
            !changes.began.is_empty()
        })
    }

    #[test]
    fn a_tenant_that_pauses_or_moves_on_in_time_is_found_and_what_seldom_runs_is_not() {
        let pauses: fn(u64) -> Option<&'static str> =
            |second| (second % 30 < 25).then_some("GPU-0");
        let moves: fn(u64) -> Option<&'static str> = |second| {
            let is_first = (second / 25).is_multiple_of(2);
            Some(if is_first { "GPU-0" } else { "GPU-1" })
        };
        let seldom: fn(u64) -> Option<&'static str> =
            |second| (second % 300 < 25).then_some("GPU-0");
        let pod = Origin::Pod("side".to_owned());
        for (what, origin, on, expected) in [
            ("a pod that pauses", &pod, pauses, true),
            ("a pod that moves on", &pod, moves, true),
            ("one that hides and pauses", &Origin::Hidden, pauses, true),
            ("a pod that tests its GPU at times", &pod, seldom, false),
            // These may be different programs of different people.
            ("programs of the node", &Origin::Node, pauses, false),
            ("nobody knows whose", &Origin::Unknown, moves, false),
        ] {
            assert_eq!(is_found(origin, on), expected, "{what}");
        }
    }

    #[test]
    fn what_is_remembered_stands_at_once_and_goes_like_any_other() {
        let mut detector = detector(&["stays", "goes"]);
        assert_eq!(detector.standing().count(), 2);
        let stays: Option<&'static [(u32, &'static str)]> = Some(&[(7, "stays")]);
        assert_eq!(
            changes(&mut detector, &steadily(5..=60, stays, None)),
            [(35, "-goes".to_owned())]
        );
        let standing: Vec<(&Group, u32)> = detector
            .standing()
            .map(|(group, processes)| (group, processes[0].pid))
            .collect();
        assert_eq!(standing, [(&group("stays"), 7)]);
    }

    #[test]
    fn a_gpu_that_is_taken_out_takes_its_bypass_with_it() {
        let mut detector = detector(&["side"]);
        let changes = detector.see(Milliseconds(5_000), &Sight::default());
        assert_eq!(changes.ended, [group("side")]);
    }
}
