//! How long it takes until an idle cluster runs 18,000 gangs of one pod.

use anyhow::{Result, ensure};
use muster_engine::Update;

use crate::{
    cluster::{Cluster, GPUS_PER_NODE, Shape, WaitingGang, arriving},
    plans::{decide, gang_like, template},
    progress::Progress,
    scale_report::Drain,
    stopwatch::Stopwatch,
    world::World,
};

const MOST_GANGS: usize = 18_000;
const QUIET_SECONDS: usize = 5;

/// The engine alone, then engine, protocol and index, with a world that starts pods as soon as they are let go.
pub(crate) fn measure(nodes: usize, teams: usize, progress: &mut Progress) -> Result<Drain> {
    // One that fits nowhere, for the engine to be fed like it.
    let larger_than_a_node = WaitingGang::of_team(0, 0, Shape::new(1, GPUS_PER_NODE + 1));
    let cluster = Cluster::idle(nodes, teams, vec![larger_than_a_node]);
    let gangs = MOST_GANGS.min(cluster.gpus());
    if gangs < MOST_GANGS {
        progress.say(&format!("{gangs} gangs: there are no more GPUs"));
    }
    let mut world = World::new(&cluster)?;
    world.settle(QUIET_SECONDS, progress)?;
    let waiting: Vec<WaitingGang> = (1..=gangs)
        .map(|number| {
            let asks_little = WaitingGang::of_team(number, 1, Shape::new(1, 1));
            WaitingGang {
                team: number % teams,
                ..asks_little
            }
        })
        .collect();
    let drain = Drain {
        engine: engine(&world, &waiting)?,
        protocol: protocol(&mut world, &waiting, progress)?,
    };
    progress.say(&format!(
        "{:.2} s in the engine, {:.2} s with the protocol",
        drain.engine, drain.protocol
    ));
    Ok(drain)
}

fn engine(world: &World, waiting: &[WaitingGang]) -> Result<f64> {
    let mut engine = world.machine().engine().clone();
    let template = template(&engine, 0)?;
    let gangs = waiting.iter().map(|gang| {
        let name = format!("drain-{}", gang.number);
        gang_like(&template, &name, gang.team, gang.shape, gang.memory_bytes)
    });
    let gangs: Vec<_> = gangs.collect::<Result<_>>()?;
    let begun = Stopwatch::start();
    for gang in gangs {
        engine.apply(Update::Waiting(gang));
    }
    let decisions = decide(&mut engine);
    let took = begun.elapsed();
    ensure!(
        decisions.admissions.len() == waiting.len(),
        "{} of {} gangs were admitted",
        decisions.admissions.len(),
        waiting.len()
    );
    Ok(took.as_secs_f64())
}

fn protocol(world: &mut World, waiting: &[WaitingGang], progress: &mut Progress) -> Result<f64> {
    for gang in waiting {
        for (kind, value) in arriving(gang) {
            world.put(kind, value)?;
        }
    }
    let (begun, mut running) = (world.spent(), 0);
    let looks_before = world.machine().visited();
    let mut idle_seconds = 0;
    while running < waiting.len() {
        world.settle_second()?;
        let started = world.start_pods()?;
        running += started;
        progress.tick(|| {
            let spent = world.spent().saturating_sub(begun).as_secs_f64();
            format!(
                "{running} of {} run, {spent:.1} s of the machine",
                waiting.len()
            )
        });
        if started > 0 {
            idle_seconds = 0;
            continue;
        }
        idle_seconds += 1;
        ensure!(
            idle_seconds < 60,
            "{running} of {} gangs run, and no more",
            waiting.len()
        );
        world.wait_a_second();
    }
    world.settle_second()?;
    let looks = world.machine().visited() - looks_before;
    progress.say(&format!(
        "{looks} looks of the protocol at gangs and nodes, for {} gangs",
        waiting.len()
    ));
    Ok(world.spent().saturating_sub(begun).as_secs_f64())
}
