//! A GPU breaks on a tenth of all nodes within one second, under gangs of Jobs that take up to four nodes each: all that were hit run again elsewhere, whole, once, with their
//! quota kept, and nobody else is touched. The controller's index, protocol and engine that ship, under virtual time.
//!
//! **Work follows change**: the same is done to a fifth of the nodes in the same run, and what one gang that was hit costs, in objects that are looked at and in writes, may not grow with
//! the cluster, and its search for a place no more than the cluster does. Each prints what it took of the machine's own time, which is no bound of a test.
//!
//! **Quota kept** is judged by those who would take it: every Team has exactly the quota that its gangs use, and one more gang that waits for quota. Without the keep
//! they do take it, which a test of its own shows.

mod scene;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use muster_api::Reason;

use self::scene::{Gangs, Scene, look};
use crate::{cluster::Shape, mass_faults::breaker, world::config};

const NODES: usize = 1_500;
/// The smaller cluster with which it is compared.
const FEWER_NODES: usize = 300;
/// Within which all that were hit run again.
const LIMIT_SECONDS: u64 = 60;
/// For how long nothing may follow.
const AFTER_SECONDS: u64 = 60;
/// What a gang of N pods on M nodes may take to be evicted and to run again is N, three for each of its nodes before and after, and so many: its status, its Job, the Ledger. (A whole life
/// takes N + 3M + 8: [`crate::writes`].)
const WRITES_BESIDE_PODS_AND_NODES: usize = 16;
/// How much more one gang may cost in a cluster of five times as many nodes: what is looked at and written is its own.
const GROWS_AT_MOST: f64 = 1.2;
/// The same of its search for a place: of the nodes that a domain has, and of those that are kept for others that were hit, there are five times as many.
const SEARCH_GROWS_AT_MOST: f64 = 5.0;

/// What one gang that was hit cost.
#[derive(Debug)]
struct Cost {
    looks: f64,
    searched: f64,
    writes: f64,
    /// How many writes it may have taken.
    most_writes: f64,
}

/// A share of what all of them cost.
#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of looks and writes are far below 2^52"
)]
fn each(all: u64, gangs: usize) -> f64 {
    all as f64 / gangs as f64
}

/// The Jobs whose gangs hold what is broken.
fn hit(gangs: &Gangs, broken: &BTreeSet<(String, String)>) -> BTreeSet<String> {
    let hit = gangs.iter().filter(|(_, seen)| seen.has_any(broken));
    hit.map(|(job, _)| job.clone()).collect()
}

fn recover(nodes: usize) -> Result<Cost> {
    let mut scene = Scene::new(nodes, config()?.recovery.keep_seconds)?;
    let before = look(&scene.world)?;
    let charged = scene.charged();
    let looks = scene.world.looked_at();
    let searched = scene.world.searched();
    let writes = scene.writes();
    let spent = scene.world.spent();
    let broken = scene.break_a_tenth(nodes)?;
    let hit = hit(&before, &broken);
    let shapes: BTreeMap<String, Shape> = scene
        .jobs
        .gangs()
        .iter()
        .map(|gang| (gang.name(), gang.shape))
        .collect();
    let span = |job: &String| before[job].nodes().len();
    let spans: BTreeSet<usize> = hit.iter().map(span).collect();
    ensure!(
        spans.is_superset(&BTreeSet::from([2, 3, 4])),
        "they take {spans:?} nodes"
    );
    let mut seconds = 0;
    loop {
        let now = look(&scene.world)?;
        check(&before, &now, &hit)?;
        let runs_again = |job: &&String| {
            let seen = &now[*job];
            seen.attempt == 2 && seen.runs_whole(shapes[*job])
        };
        let again = hit.iter().filter(runs_again).count();
        if again == hit.len() {
            break;
        }
        ensure!(
            seconds < LIMIT_SECONDS,
            "after {seconds} s {again} of {} run again",
            hit.len()
        );
        scene.pass_a_second()?;
        seconds += 1;
    }
    let again = look(&scene.world)?;
    let most_writes = hit.iter().map(|job| {
        let nodes = before[job].nodes().len() + again[job].nodes().len();
        shapes[job].pods + 3 * nodes + WRITES_BESIDE_PODS_AND_NODES
    });
    let most_writes = u64::try_from(most_writes.sum::<usize>())?;
    let cost = Cost {
        looks: each(scene.world.looked_at() - looks, hit.len()),
        searched: each(scene.world.searched() - searched, hit.len()),
        writes: each(scene.writes() - writes, hit.len()),
        most_writes: each(most_writes, hit.len()),
    };
    let spent = scene.world.spent().saturating_sub(spent);
    println!(
        "{} of {nodes} nodes: {} gangs run again after {seconds} s, {spent:?} of the machine; {cost:?} each",
        broken.len(),
        hit.len()
    );
    // And nothing follows.
    for _ in 0..AFTER_SECONDS {
        scene.pass_a_second()?;
    }
    let after = look(&scene.world)?;
    ensure!(after == again, "something follows");
    for job in &hit {
        let seen = &after[job];
        ensure!(seen.evictions == [Reason::DeviceFault], "{job}: {seen:?}");
        ensure!(
            seen.running.is_disjoint(&before[job].running),
            "{job}: a pod of it was not made again"
        );
        ensure!(!seen.has_any(&broken), "{job} has a broken GPU: {seen:?}");
    }
    ensure!(
        scene.charged() == charged,
        "the Teams are charged otherwise"
    );
    let (is_open, evacuated) = breaker(&scene.world)?;
    let held = hit.iter().flat_map(|job| &before[job].devices);
    let held = held.filter(|device| broken.contains(*device)).count();
    ensure!(
        !is_open && (1..=held).contains(&evacuated),
        "the breaker counts {evacuated} of {held} nodes, and is open: {is_open}"
    );
    Ok(cost)
}

/// What is so in every second: nobody else is touched (S8), nobody takes the quota, and no gang runs with pods of two attempts (S4).
fn check(before: &Gangs, now: &Gangs, hit: &BTreeSet<String>) -> Result<()> {
    for (job, was) in before {
        let is = now.get(job).context("a gang is gone")?;
        if hit.contains(job) {
            let old = is.running.intersection(&was.running).count();
            ensure!(
                old == 0 || old == is.running.len(),
                "{job} runs with pods of two attempts: {is:?}"
            );
            ensure!(is.evictions.len() <= 1, "{job}: {is:?}");
        } else {
            ensure!(is == was, "{job} was not hit, was {was:?} and is {is:?}");
        }
    }
    Ok(())
}

#[test]
fn of_faults_on_a_tenth_of_1500_nodes_at_once_each_gang_that_is_hit_runs_again_whole_and_once_and_costs_what_it_costs_among_300()
-> Result<()> {
    let fewer = recover(FEWER_NODES)?;
    let cost = recover(NODES)?;
    for cost in [&fewer, &cost] {
        assert!(cost.writes <= cost.most_writes, "{cost:?}");
    }
    for (cost, fewer, grows_at_most) in [
        (cost.looks, fewer.looks, GROWS_AT_MOST),
        (cost.writes, fewer.writes, GROWS_AT_MOST),
        (cost.searched, fewer.searched, SEARCH_GROWS_AT_MOST),
    ] {
        assert!(cost <= grows_at_most * fewer, "{cost}, {fewer}");
    }
    Ok(())
}

/// What the check of the quota would find.
#[test]
fn without_the_keep_those_who_wait_for_quota_take_it_from_gangs_that_are_hit() -> Result<()> {
    let mut scene = Scene::new(FEWER_NODES, 0)?;
    let before = look(&scene.world)?;
    scene.break_a_tenth(FEWER_NODES)?;
    for _ in 0..LIMIT_SECONDS {
        let now = look(&scene.world)?;
        let mut waited = before.iter().filter(|(_, seen)| !seen.is_admitted);
        if waited.any(|(job, _)| now[job].is_admitted) {
            return Ok(());
        }
        scene.pass_a_second()?;
    }
    anyhow::bail!("nobody took it within {LIMIT_SECONDS} s")
}
