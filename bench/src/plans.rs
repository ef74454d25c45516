//! What a plan costs, on a copy of the engine as the protocol has fed it: nine tenths full, with all gangs that wait.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use muster_engine::{Budget, Decisions, Gang, GangUid, State, TeamName, Timestamp, Update};

use crate::{
    cluster::{Shape, WaitingGang, team_name},
    progress::Progress,
    report::{Spread, micros},
    scale_report::Quantiles,
    stopwatch::Stopwatch,
};

const ROUNDS: usize = 200;
/// Gangs of other numbers than those that wait ask for other memory.
const FIRST_NUMBER: usize = 10_000_000;
/// A Team that has quota and waits for a place, and one that lacks quota.
const WITH_QUOTA: usize = 0;
const WITHOUT_QUOTA: usize = 1;

/// What was measured.
pub(crate) struct Plans {
    pub(crate) known: BTreeMap<String, Option<Quantiles>>,
    pub(crate) new_shape_micros: f64,
    pub(crate) new_request_micros: f64,
    pub(crate) infeasible_micros: f64,
}

/// A gang as the engine is asked about it, made after one that waits.
pub(crate) fn gang_like(
    template: &Gang,
    name: &str,
    team: usize,
    shape: Shape,
    memory: i64,
) -> Result<Gang> {
    let pod = template.pods.first().context("a gang has pods")?;
    let pods = (0..shape.pods).map(|rank| {
        let mut pod = pod.clone();
        pod.uid = format!("{name}-{rank}").as_str().into();
        pod.resources.memory_bytes = memory;
        for claim in &mut pod.claims {
            claim.uid = format!("{name}-{rank}").as_str().into();
            let requests = claim.requests.iter_mut();
            for choice in requests.flat_map(|request| &mut request.choices) {
                choice.count = u32::try_from(shape.gpus).unwrap_or(u32::MAX);
            }
        }
        pod
    });
    Ok(Gang {
        uid: name.into(),
        name: format!("bench/{name}"),
        team: team_name(team).as_str().into(),
        pods: pods.collect(),
        ..template.clone()
    })
}

/// The first gang of a Team that waits.
/// See [`Bench::new_request`].
const NEW_REQUESTS: [usize; 5] = [2, 3, 5, 6, 7];

pub(crate) fn template(engine: &State, team: usize) -> Result<Gang> {
    let team: TeamName = team_name(team).as_str().into();
    let first = engine.queue(&team).next();
    first
        .cloned()
        .with_context(|| format!("nobody waits in {team}"))
}

pub(crate) fn decide(engine: &mut State) -> Decisions {
    engine.decide(Timestamp(0), &Budget::UNLIMITED)
}

/// Plans on a copy of this engine, which is at rest.
pub(crate) fn measure(engine: &State, progress: &mut Progress) -> Result<Plans> {
    let mut bench = Bench {
        template: template(engine, WITH_QUOTA)?,
        engine: engine.clone(),
    };
    let first = decide(&mut bench.engine);
    ensure!(first.admissions.is_empty(), "the engine was not at rest");
    let mut known = BTreeMap::new();
    for (name, shape) in [
        ("1x1", Shape::new(1, 1)),
        ("1x8", Shape::new(1, 8)),
        ("64x8", Shape::new(64, 8)),
        ("512x1", Shape::new(512, 1)),
    ] {
        let sample = bench.known(name, shape)?;
        match &sample {
            Some(spread) => progress.say(&format!("plan of {name}, known shape: {spread} us")),
            None => progress.say(&format!("plan of {name}: the cluster has no such place")),
        }
        known.insert(name.to_owned(), sample.map(Quantiles::from));
    }
    let new = bench.new_shape()?;
    progress.say(&format!("plan of 1x1, new shape: {new} us"));
    let request = bench.new_request()?;
    progress.say(&format!("plan of one pod, new request: {request} us"));
    let infeasible = bench.infeasible()?;
    progress.say(&format!("no place for 64x8, and why: {infeasible} us"));
    Ok(Plans {
        known,
        new_shape_micros: new.p99,
        new_request_micros: request.max,
        infeasible_micros: infeasible.p99,
    })
}

struct Bench {
    engine: State,
    template: Gang,
}

impl Bench {
    fn gang(&self, name: &str, number: usize, team: usize, shape: Shape) -> Result<Gang> {
        // Whose own Team lacks quota asks for little memory: there is a place for it.
        let memory = WaitingGang::of_team(FIRST_NUMBER + number, WITHOUT_QUOTA, shape).memory_bytes;
        gang_like(&self.template, name, team, shape, memory)
    }

    /// A gang comes, is planned, and goes again. `None`: it was not admitted.
    fn plan(&mut self, gang: Gang) -> Option<Duration> {
        let uid = gang.uid.clone();
        let begun = Stopwatch::start();
        self.engine.apply(Update::Waiting(gang));
        let decisions = decide(&mut self.engine);
        let took = begun.elapsed();
        let admitted = decisions.admissions.iter().any(|it| it.gang == uid);
        self.take_back(&uid);
        admitted.then_some(took)
    }

    fn take_back(&mut self, uid: &GangUid) {
        self.engine.apply(Update::NotWaiting(uid.clone()));
        self.engine.undo(uid);
        decide(&mut self.engine);
    }

    /// Another gang of the same shape, which lacks quota, waits all the time.
    fn known(&mut self, name: &str, shape: Shape) -> Result<Option<Spread>> {
        let other = self.gang(&format!("other-{name}"), 0, WITHOUT_QUOTA, shape)?;
        let other_uid = other.uid.clone();
        self.engine.apply(Update::Waiting(other));
        decide(&mut self.engine);
        let mut sample = Vec::new();
        for round in 0..=ROUNDS {
            let gang = self.gang(&format!("{name}-{round}"), 0, WITH_QUOTA, shape)?;
            let Some(took) = self.plan(gang) else {
                break;
            };
            // The first one makes the shape known.
            if round > 0 {
                sample.push(micros(took));
            }
        }
        self.take_back(&other_uid);
        Ok((sample.len() == ROUNDS).then(|| Spread::of(sample)))
    }

    fn new_shape(&mut self) -> Result<Spread> {
        let mut sample = Vec::new();
        for round in 1..=ROUNDS {
            let gang = self.gang(&format!("new-{round}"), round, WITH_QUOTA, Shape::new(1, 1))?;
            let took = self.plan(gang).context("there is room for one GPU more")?;
            sample.push(micros(took));
        }
        Ok(Spread::of(sample))
    }

    /// Numbers of devices that no gang of the mixture asks for: each is new once.
    fn new_request(&mut self) -> Result<Spread> {
        let mut sample = Vec::new();
        for (gpus, round) in NEW_REQUESTS.into_iter().zip(1..) {
            let name = format!("new-request-{gpus}");
            let gang = self.gang(&name, round, WITH_QUOTA, Shape::new(1, gpus))?;
            let uid = gang.uid.clone();
            let begun = Stopwatch::start();
            self.engine.apply(Update::Waiting(gang));
            decide(&mut self.engine);
            sample.push(micros(begun.elapsed()));
            self.take_back(&uid);
        }
        Ok(Spread::of(sample))
    }

    fn infeasible(&mut self) -> Result<Spread> {
        let (shape, mut sample) = (Shape::new(64, 8), Vec::new());
        for round in 1..=ROUNDS {
            let memory = WaitingGang::of_team(FIRST_NUMBER + round, WITH_QUOTA, shape).memory_bytes;
            let name = format!("infeasible-{round}");
            let gang = gang_like(&self.template, &name, WITH_QUOTA, shape, memory)?;
            let uid = gang.uid.clone();
            let begun = Stopwatch::start();
            self.engine.apply(Update::Waiting(gang));
            let decisions = decide(&mut self.engine);
            let explanation = self.engine.explain(&uid);
            sample.push(micros(begun.elapsed()));
            ensure!(
                decisions.admissions.is_empty() && explanation.is_some(),
                "a gang that fits nowhere was admitted, or not explained"
            );
            self.take_back(&uid);
        }
        Ok(Spread::of(sample))
    }
}
