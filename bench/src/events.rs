//! What an event costs: three in ten are pods that end and let another gang in, four are gangs that come, three are nodes
//! that are cordoned and uncordoned.
//!
//! An event goes by steps: something is observed, the machine is polled and asks for writes, and the world does them, which
//! is the next thing observed. Between the end of a pod and the decision lie a second's wait and the driver's answer, so what
//! counts as the time of an event is its **longest step**: for so long nobody else is served. What it looks at is counted over
//! all steps, and the sum of their times is reported beside it.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use muster_api::{Gang, Reason};

use crate::{
    cluster::{
        Cluster, GPUS_PER_NODE, Lack, Shape, WaitingGang, arriving, lack_of_team, node_name,
        percent, running_key,
    },
    progress::Progress,
    report::{Spread, micros},
    world::{Step, World},
};

const MOST_EVENTS: usize = 1_000;
/// A cluster of few nodes runs out of pods that can end.
const EVENTS_PER_NODE: usize = 2;
/// Of all events at least, in percent.
const ADMITTING_PERCENT: f64 = 29.0;
const IDLE_POLLS: u32 = 1_000;
/// How far the share of GPUs that are held may be off, in percent: the cluster need not be a whole number of mixtures.
const FULL_PERCENT: std::ops::RangeInclusive<f64> = 85.0..=95.0;
const QUIET_SECONDS: usize = 5;
/// Spreads events over pods and nodes: a prime that is larger than neither is a multiple of.
const STRIDE: usize = 7_919;

/// What was measured.
pub(crate) struct Events {
    /// The longest step of each.
    pub(crate) micros: Spread,
    /// All steps of each together.
    pub(crate) whole_micros: Spread,
    pub(crate) visited: Spread,
    pub(crate) idle_poll_micros: f64,
}

/// A cluster at rest whose gangs all wait for what they are meant to wait for.
pub(crate) fn at_rest(cluster: &Cluster, progress: &mut Progress) -> Result<World> {
    let full = cluster.full_percent();
    ensure!(
        FULL_PERCENT.contains(&full),
        "{full:.1} % of the GPUs are held, not 90 %"
    );
    let mut world = World::new(cluster)?;
    progress.say("objects made");
    world.settle(QUIET_SECONDS, progress)?;
    progress.say(&format!(
        "at rest after {} polls, {:.1} s of the machine",
        world.polls(),
        world.spent().as_secs_f64()
    ));
    check(cluster, &world, progress)?;
    Ok(world)
}

/// Whether all gangs wait, half of them for a place and half for quota.
fn check(cluster: &Cluster, world: &World, progress: &Progress) -> Result<()> {
    let mut reasons: BTreeMap<Reason, usize> = BTreeMap::new();
    let mut lacking = BTreeMap::from([("place", 0), ("quota", 0), ("other", 0)]);
    for gang in world.api().list::<Gang>() {
        let status = gang.status.as_ref();
        let Some(queue) = status.and_then(|status| status.queue.as_ref()) else {
            continue;
        };
        *reasons.entry(queue.reason).or_default() += 1;
        let lack = match queue.reason {
            Reason::WaitingForPlacement | Reason::PlacementImpossible => "place",
            Reason::WaitingForQuota | Reason::ExceedsMaxQuota => "quota",
            _ => "other",
        };
        *lacking.entry(lack).or_default() += 1;
    }
    progress.say(&format!(
        "{:.1} % of the GPUs are held; gangs wait for {reasons:?}",
        cluster.full_percent()
    ));
    let meant = |lack| {
        let gangs = cluster.waiting.iter();
        gangs.filter(|gang| lack_of_team(gang.team) == lack).count()
    };
    ensure!(
        lacking["place"] == meant(Lack::Place) && lacking["quota"] == meant(Lack::Quota),
        "of {} gangs that were to wait for a place and {} for quota, {lacking:?} do",
        meant(Lack::Place),
        meant(Lack::Quota)
    );
    Ok(())
}

/// Polls without news.
pub(crate) fn idle_poll_micros(world: &mut World) -> Result<f64> {
    let mut spent = Duration::ZERO;
    for _ in 0..IDLE_POLLS {
        spent += world.idle_poll()?;
    }
    Ok(micros(spent) / f64::from(IDLE_POLLS))
}

/// Events one after the other.
pub(crate) fn measure(
    cluster: &Cluster,
    world: &mut World,
    progress: &mut Progress,
) -> Result<Events> {
    let idle_poll_micros = idle_poll_micros(world)?;
    let count = MOST_EVENTS.min(cluster.nodes * EVENTS_PER_NODE);
    let mut script = Script::new(cluster);
    let mut kinds: BTreeMap<&str, OfKind> = BTreeMap::new();
    let (mut all, mut all_whole, mut visited) = (Vec::new(), Vec::new(), Vec::new());
    let mut admitting = 0;
    for event in 0..count {
        let (kind, seconds) = script.perform(event, world)?;
        world.steps.clear();
        let (looked_at, admitted) = (world.visited(), world.admitted());
        world.settle_second()?;
        for _ in 0..seconds {
            world.wait_a_second();
            world.settle_second()?;
        }
        let (longest, whole) = kinds.entry(kind).or_default().add(&world.steps);
        all.push(longest);
        all_whole.push(whole);
        visited.push(number(world.visited() - looked_at));
        admitting += usize::from(world.admitted() > admitted);
        // What was admitted starts, apart from what is measured.
        if world.start_pods()? > 0 {
            world.settle_second()?;
        }
        progress.tick(|| format!("{event} of {count} events"));
    }
    let share = percent(admitting, count);
    ensure!(
        share >= ADMITTING_PERCENT,
        "{admitting} of {count} events admitted a gang, not three in ten"
    );
    progress.say(&format!("{admitting} of {count} events admitted a gang"));
    for (kind, of_kind) in kinds {
        let OfKind {
            longest,
            whole,
            slowest,
        } = of_kind;
        let (longest, whole) = (Spread::of(longest), Spread::of(whole));
        progress.say(&format!(
            "{kind}: {longest} us; all steps together {whole} us; the slowest:"
        ));
        for step in slowest {
            progress.say(&format!("  {step}"));
        }
    }
    Ok(Events {
        micros: Spread::of(all),
        whole_micros: Spread::of(all_whole),
        visited: Spread::of(visited),
        idle_poll_micros,
    })
}

/// What was measured of one kind of event, in microseconds.
#[derive(Default)]
struct OfKind {
    /// The longest step of each.
    longest: Vec<f64>,
    /// All steps of each.
    whole: Vec<f64>,
    /// The steps of the one that took longest.
    slowest: Vec<Step>,
}

impl OfKind {
    /// Adds an event, and returns what its longest step took, and all of them.
    fn add(&mut self, steps: &[Step]) -> (f64, f64) {
        let whole: f64 = steps.iter().map(|step| step.micros).sum();
        if self.whole.iter().all(|other| *other < whole) {
            self.slowest = steps.to_vec();
        }
        self.whole.push(whole);
        let longest = steps.iter().map(|step| step.micros).fold(0.0, f64::max);
        self.longest.push(longest);
        (longest, whole)
    }
}

/// A count as a number of JSON.
#[expect(
    clippy::cast_precision_loss,
    reason = "a number of looks is far below 2^52"
)]
fn number(count: u64) -> f64 {
    count as f64
}

/// Which event comes next.
struct Script<'a> {
    cluster: &'a Cluster,
    /// Gangs with one GPU each, by what their Teams lack.
    singles: [Vec<usize>; 2],
    /// Nodes on which none of them runs.
    others: Vec<usize>,
    ended: usize,
    changed: usize,
}

impl<'a> Script<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let of_lack = |lack| {
            let singles = cluster.running.iter().filter(|pod| pod.gpus == 1);
            let of_lack = singles.filter(|pod| lack_of_team(pod.team) == lack);
            of_lack.map(|pod| pod.number).collect::<Vec<_>>()
        };
        let mut others = vec![true; cluster.nodes];
        for pod in cluster
            .running
            .iter()
            .filter(|pod| pod.gpus < GPUS_PER_NODE)
        {
            others[pod.node] = false;
        }
        Self {
            cluster,
            singles: [of_lack(Lack::Place), of_lack(Lack::Quota)],
            others: (0..cluster.nodes).filter(|node| others[*node]).collect(),
            ended: 0,
            changed: 0,
        }
    }

    /// Lets the event happen. Returns what it is, and after how many seconds it is over.
    fn perform(&mut self, event: usize, world: &mut World) -> Result<(&'static str, usize)> {
        match event % 10 {
            0 | 3 | 6 => {
                let (round, lack) = (self.ended / 2, self.ended % 2);
                let singles = &self.singles[lack];
                let pod = &self.cluster.running[singles[round * STRIDE % singles.len()]];
                self.ended += 1;
                let (namespace, name) = running_key(pod);
                world.end_pod(&namespace, &name)?;
                // What ended is withdrawn in the next second.
                Ok((
                    ["a pod ends, place is free", "a pod ends, quota is free"][lack],
                    1,
                ))
            }
            1 | 4 | 7 | 9 => {
                let number = self.cluster.waiting.len() + event;
                let shape = Shape::of_number(number.wrapping_mul(31));
                // The budget is for gangs of at most 64 pods.
                let shape = if shape.pods > 64 {
                    Shape::new(64, 8)
                } else {
                    shape
                };
                let team = number * STRIDE % self.cluster.teams;
                for (kind, value) in arriving(&WaitingGang::of_team(number, team, shape)) {
                    world.put(kind, value)?;
                }
                Ok(("a gang comes", 0))
            }
            _ => {
                let place = self.changed / 2 * STRIDE % self.others.len();
                let name = node_name(self.others[place]);
                let cordons = self.changed.is_multiple_of(2);
                self.changed += 1;
                world.change::<Node>(("", &name), |node| {
                    node.spec.get_or_insert_default().unschedulable = Some(cordons);
                })?;
                Ok(("a node changes", 0))
            }
        }
    }
}
