//! False alarms on three fifths of 1,500 nodes: the controller's index, protocol and engine that ship, under virtual time. What faults on a tenth of them cost, and
//! that all who are hit run again, is [`crate::mass_recovery`].
//!
//! Each test prints what it took of the machine's own time. Gangs are single pods here: it is judged who is ended, and nobody makes them again.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::{
        core::v1::Pod,
        resource::v1::{DeviceTaint, ResourceSlice},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use muster_api::{
    Gang, GpuFault, Ledger, NodeDevices, NodeDevicesStatus, Reason, Remediation, keys,
};
use muster_protocol::{Config, Mode, ResetLimits};

use crate::{
    cluster::{Cluster, device_name, node_name},
    progress::Progress,
    world::{World, config},
};

const NODES: usize = 1_500;
/// A fifth of them, as it ships.
const MOST_EVACUATED: usize = 300;
/// The GPU that has the fault, on each node.
pub(crate) const GPU: usize = 3;
/// Reads that the API server answers between two polls: far fewer than there are faults.
pub(crate) const ANSWERED_AT_ONCE: usize = 16;
/// For how long nothing may be owed until a cluster is at rest.
pub(crate) const QUIET_SECONDS: usize = 5;
/// For how long a false alarm is watched.
const LIMIT_SECONDS: u64 = 30;
/// What the machine may take for all of it, not optimised and beside other tests.
const LIMIT: Duration = Duration::from_secs(30);

/// All nodes at rest, nine tenths of their GPUs held, with a controller that evicts for faults.
fn at_rest(cluster: &Cluster) -> Result<World> {
    let mut config: Config = config()?;
    config.recovery.mode = Mode::Enforce;
    let mut world = World::with(cluster, config)?;
    world.settle(QUIET_SECONDS, &mut Progress::of("mass faults"))?;
    let breaker = world.machine().breaker();
    ensure!(
        breaker.most_nodes == MOST_EVACUATED,
        "{} nodes may be evacuated, not {MOST_EVACUATED}",
        breaker.most_nodes
    );
    ensure!(evicted(&world).is_empty(), "somebody was evicted before");
    Ok(world)
}

/// The driver of the node publishes that its GPU has to be reset.
pub(crate) fn break_gpu(world: &mut World, node: usize) -> Result<()> {
    let since = world.api().time();
    let taint = DeviceTaint {
        key: keys::TAINT_FAULT.to_owned(),
        value: Some("Reset".to_owned()),
        effect: "NoSchedule".to_owned(),
        time_added: Some(Time(since)),
    };
    let name = format!("{}-gpus", node_name(node));
    world.change::<ResourceSlice>(("", &name), |slice| {
        let mut devices = slice.spec.devices.iter_mut().flatten();
        if let Some(device) = devices.nth(GPU) {
            device.taints = Some(vec![taint]);
        }
    })
}

/// How often each gang was evicted for a fault as far as its Gang says now, by its name.
fn evicted(world: &World) -> BTreeMap<String, usize> {
    let mut evicted = BTreeMap::new();
    for gang in world.api().list::<Gang>() {
        let evictions = gang.status.iter().flat_map(|status| &status.evictions);
        let count = evictions.filter(|eviction| eviction.reason == Reason::DeviceFault);
        let count = count.count();
        if count > 0 {
            evicted.insert(gang.metadata.name.clone().unwrap_or_default(), count);
        }
    }
    evicted
}

/// The gangs that hold the GPU on these nodes.
fn holders(cluster: &Cluster, nodes: &[usize]) -> BTreeMap<String, usize> {
    let holds = |pod: &&crate::cluster::RunningPod| {
        (pod.first_gpu..pod.first_gpu + pod.gpus).contains(&GPU) && nodes.contains(&pod.node)
    };
    let holders = cluster.running.iter().filter(holds);
    holders
        .map(|pod| (format!("pod-run-{:06}", pod.number), 1))
        .collect()
}

fn pods(world: &World) -> usize {
    world.api().list::<Pod>().count()
}

/// How often each gang was evicted for a fault so far: a Gang may go with its pods.
#[derive(Default)]
struct Evicted(BTreeMap<String, usize>);

impl Evicted {
    fn note(&mut self, world: &World) {
        for (gang, count) in evicted(world) {
            let known = self.0.entry(gang).or_default();
            *known = count.max(*known);
        }
    }
}

/// Lets a second pass, and what ends in it end.
fn pass_a_second(world: &mut World, evicted: &mut Evicted) -> Result<()> {
    world.settle_second()?;
    evicted.note(world);
    world.end_deleted_pods()?;
    world.wait_a_second();
    Ok(())
}

fn ledger(world: &World) -> Result<&Ledger> {
    let mut ledgers = world.api().list::<Ledger>();
    ledgers.next().context("there is no Ledger")
}

/// Whether the breaker is open, and how many nodes it counts.
pub(crate) fn breaker(world: &World) -> Result<(bool, usize)> {
    let breaker = &ledger(world)?.spec.breaker;
    Ok((breaker.opened_at.is_some(), breaker.drained.len()))
}

/// Three of five nodes.
fn alarmed() -> Vec<usize> {
    (0..NODES).filter(|node| node % 5 < 3).collect()
}

/// The store is asked about each fault before anybody is evicted for it, and answers a few at a time: they are waited for.
#[test]
fn s9_a_false_alarm_on_three_fifths_of_1500_nodes_that_is_seen_at_once_opens_the_breaker_and_ends_nothing()
-> Result<()> {
    let cluster = Cluster::busy(NODES, 0);
    let mut world = at_rest(&cluster)?;
    world.answer_at_once(ANSWERED_AT_ONCE);
    let before = pods(&world);
    let mut evicted = Evicted::default();
    let begun = world.spent();
    for node in alarmed() {
        break_gpu(&mut world, node)?;
    }
    for _ in 0..LIMIT_SECONDS {
        pass_a_second(&mut world, &mut evicted)?;
    }
    let took = world.spent().saturating_sub(begun);
    println!(
        "false alarm on {} of {NODES} nodes: {took:?} of the machine",
        alarmed().len()
    );
    assert_eq!(breaker(&world)?, (true, 0));
    assert_eq!(evicted.0, BTreeMap::new());
    assert_eq!(pods(&world), before, "pods");
    // No time closes it.
    world.wait(3_600);
    for _ in 0..LIMIT_SECONDS {
        pass_a_second(&mut world, &mut evicted)?;
    }
    assert_eq!(breaker(&world)?, (true, 0));
    assert_eq!(pods(&world), before, "pods");
    assert!(took < LIMIT, "{took:?}");
    Ok(())
}

/// Nobody knows at the first node that the others will follow.
#[test]
fn s9_a_false_alarm_that_comes_node_by_node_ends_no_more_than_the_breaker_allows() -> Result<()> {
    const NODES_PER_SECOND: usize = 40;
    let cluster = Cluster::busy(NODES, 0);
    let mut world = at_rest(&cluster)?;
    world.answer_at_once(ANSWERED_AT_ONCE);
    let before = pods(&world);
    let mut evicted = Evicted::default();
    for nodes in alarmed().chunks(NODES_PER_SECOND) {
        for node in nodes {
            break_gpu(&mut world, *node)?;
        }
        pass_a_second(&mut world, &mut evicted)?;
    }
    for _ in 0..LIMIT_SECONDS {
        pass_a_second(&mut world, &mut evicted)?;
    }
    let (is_open, evacuated) = breaker(&world)?;
    println!("{evacuated} nodes were evacuated before the breaker opened");
    assert!(is_open);
    assert!(
        (1..=MOST_EVACUATED).contains(&evacuated),
        "{evacuated} nodes, of {MOST_EVACUATED}"
    );
    assert_eq!(evicted.0.len(), evacuated, "one gang of each node");
    let alarmed = holders(&cluster, &alarmed());
    for (gang, times) in &evicted.0 {
        assert_eq!((alarmed.get(gang), *times), (Some(&1), 1), "{gang}");
    }
    assert_eq!(pods(&world) + evicted.0.len(), before, "pods");
    Ok(())
}

/// The driver of the node tells that its GPU has to be reset, or that nothing is wrong.
fn tell_fault(world: &mut World, node: &str, is_faulty: bool) -> Result<()> {
    let fault = GpuFault {
        device: device_name(GPU),
        gpu: format!("GPU-{node}-{GPU}"),
        class: "Reset".to_owned(),
        ..GpuFault::default()
    };
    let faults = is_faulty.then_some(fault).into_iter().collect();
    world.change::<NodeDevices>(("", node), |devices| {
        let status = devices.status.take().unwrap_or_default();
        devices.status = Some(NodeDevicesStatus {
            faults: Some(faults),
            ..status
        });
    })
}

/// The nodes that are told anything about resets, and whether they may.
fn told(world: &World) -> BTreeMap<String, bool> {
    let devices = world.api().list::<NodeDevices>();
    let told = devices.filter_map(|devices| {
        let told = devices.spec.remediation?;
        let node = devices.metadata.name.clone()?;
        Some((node, told == Remediation::Allowed))
    });
    told.collect()
}

fn tainted_slices(world: &World) -> usize {
    let slices = world.api().list::<ResourceSlice>();
    let is_tainted = |slice: &&ResourceSlice| {
        let mut devices = slice.spec.devices.iter().flatten();
        devices.any(|device| device.taints.is_some())
    };
    slices.filter(is_tainted).count()
}

/// Nobody is evicted for them, so nothing else than the wish for a reset tells of the alarm.
#[test]
fn s9_a_false_alarm_on_1500_nodes_that_are_idle_opens_the_breaker_and_resets_nothing() -> Result<()>
{
    let cluster = Cluster::idle(NODES, 1, Vec::new());
    let mut world = at_rest(&cluster)?;
    let mut evicted = Evicted::default();
    let begun = world.spent();
    for node in 0..NODES {
        break_gpu(&mut world, node)?;
        tell_fault(&mut world, &node_name(node), true)?;
    }
    let seconds = 2 * ResetLimits::SHIPPED.patience_seconds;
    for _ in 0..seconds {
        pass_a_second(&mut world, &mut evicted)?;
        assert_eq!(told(&world), BTreeMap::new());
    }
    let took = world.spent().saturating_sub(begun);
    println!("false alarm on {NODES} idle nodes: {took:?} of the machine");
    assert_eq!(breaker(&world)?, (true, 0));
    let message = ledger(&world)?.spec.breaker.message.clone();
    let message = message.context("it says nothing")?;
    assert!(
        message.starts_with("1500 of 1500 nodes want GPUs reset"),
        "{message}"
    );
    // No time closes it, and nothing new is placed there all the while.
    world.wait(3_600);
    for _ in 0..LIMIT_SECONDS {
        pass_a_second(&mut world, &mut evicted)?;
    }
    assert_eq!(breaker(&world)?, (true, 0));
    assert_eq!(told(&world), BTreeMap::new());
    assert_eq!(tainted_slices(&world), NODES, "taints");
    assert!(took < LIMIT, "{took:?}");
    Ok(())
}

#[test]
fn of_50_of_1500_nodes_that_want_a_reset_no_more_than_five_are_at_it_at_a_time_and_all_come_to_it()
-> Result<()> {
    const WANTING: usize = 50;
    /// How long a reset takes, in seconds.
    const RESET_SECONDS: usize = 10;
    let cluster = Cluster::idle(NODES, 1, Vec::new());
    let mut world = at_rest(&cluster)?;
    let mut evicted = Evicted::default();
    for node in 0..WANTING {
        tell_fault(&mut world, &node_name(node), true)?;
    }
    let mut at_it: BTreeMap<String, usize> = BTreeMap::new();
    let (mut done, mut seconds) = (0, 0);
    while done < WANTING {
        ensure!(seconds < 40 * WANTING, "{done} are done in {seconds} s");
        pass_a_second(&mut world, &mut evicted)?;
        seconds += 1;
        let told = told(&world);
        let allowed = told.iter().filter(|(_, may)| **may);
        let allowed: Vec<&String> = allowed.map(|(node, _)| node).collect();
        assert!(
            allowed.len() <= ResetLimits::SHIPPED.most_nodes,
            "{allowed:?}"
        );
        for node in allowed {
            let taken = at_it.entry(node.clone()).or_default();
            *taken += 1;
            if *taken == RESET_SECONDS {
                tell_fault(&mut world, node, false)?;
                done += 1;
            }
        }
    }
    println!("{WANTING} of {NODES} nodes were reset within {seconds} s");
    assert_eq!(breaker(&world)?, (false, WANTING));
    Ok(())
}
