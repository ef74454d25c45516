//! The steered schedules. Each has one node, one Team with as many GPUs as the node, and gangs made by users pod by
//! pod.

pub(crate) mod faults;
pub(crate) mod instances;
pub(crate) mod leaders;
pub(crate) mod losses;
pub(crate) mod proposals;
pub(crate) mod silence;

use k8s_openapi::api::core::v1::Pod;
use muster_api::{Gang, GangStatus, Ledger, NodeDevices, keys};
use muster_protocol::OnCordon;
use muster_sim::{
    gpu_node::GpuNode,
    invariants::Violation,
    scenario::{
        GangShape, Hardships, NodeShape, OwnerKind, Product, Scenario, TeamShape,
        WHOLE_INTENT_BYTES,
    },
    script::Script,
    world::{Steps, World},
};

const NODE: &str = "node-0";
const TEAM: &str = "blue";
const GPUS: usize = 2;

/// Name, pods, and GPUs of each.
type Shape = (&'static str, usize, usize);

fn script(gangs: &[Shape], play: fn(&mut World) -> Result<(), Violation>) -> Script {
    let gangs = gangs.iter().map(|(name, pods, gpus_per_pod)| GangShape {
        gpus_per_pod: *gpus_per_pod,
        ..GangShape::plain(name, TEAM, OwnerKind::User, *pods)
    });
    let scenario = Scenario {
        nodes: vec![NodeShape {
            name: NODE.to_owned(),
            leaf: "leaf-0".to_owned(),
            product: Product::H100,
            gpus: GPUS,
        }],
        teams: vec![TeamShape::with_quota(TEAM, Product::H100, GPUS)],
        gangs: gangs.collect(),
        hardships: Hardships::default(),
        keep_ended_seconds: 3_600,
        whole_intent_bytes: WHOLE_INTENT_BYTES,
        on_cordon: OnCordon::Nothing,
    };
    Script { scenario, play }
}

/// The same with every admission proposed to its Gang first.
fn proposing(gangs: &[Shape], play: fn(&mut World) -> Result<(), Violation>) -> Script {
    let mut script = script(gangs, play);
    script.scenario.whole_intent_bytes = 0;
    script
}

/// A gang is submitted, and its leader dies with the patches that let the pods go on the network: they arrive when
/// [`Steps::Late`] is let go.
fn the_leader_dies_as_it_lets_go(world: &mut World, gang: &str) -> Result<(), Violation> {
    world.hold(Steps::PodPatches);
    world.submit(gang);
    world.until("the leader would let the pods go", |world| {
        world.offers(Steps::PodPatches)
    })?;
    world.hold(Steps::Late);
    world.crash_leader();
    world.let_go(Steps::PodPatches);
    Ok(())
}

/// A gang `a` is about to be permitted, and `b` waits for its quota, when something is lost. The permits are still on the
/// network, and arrive once `b` was given the quota.
fn permits_arrive_after_another_admission(
    world: &mut World,
    lose: impl FnOnce(&mut World),
) -> Result<(), Violation> {
    world.hold(Steps::Permits);
    world.submit("a");
    world.until("the leader would permit a", |world| {
        world.offers(Steps::Permits)
    })?;
    world.submit("b");
    world.until("b waits", |world| gang(world, "b").is_some())?;
    world.hold(Steps::Late);
    world.hold(Steps::Owners);
    lose(world);
    world.until("b is admitted", |world| is_committed(world, "b"))?;
    world.have(Steps::Late)
}

/// Waits for a day that never comes.
pub(crate) fn nothing_happens() -> Script {
    script(&[("a", 1, 1)], |world| {
        world.until("a runs without being submitted", |world| {
            !node(world).containers.is_empty()
        })
    })
}

fn node(world: &World) -> &GpuNode {
    &world.nodes[NODE]
}

fn devices(world: &World) -> Option<&NodeDevices> {
    world.api.get::<NodeDevices>("", NODE)
}

fn uid(world: &World) -> Option<String> {
    devices(world)?.metadata.uid.clone()
}

fn has_no_permits(world: &World) -> bool {
    devices(world).is_some_and(|object| object.spec.permits.is_empty())
}

/// Whether a permit is there that is not withdrawn.
fn is_permitted(world: &World) -> bool {
    devices(world).is_some_and(|object| object.spec.permits.iter().any(|permit| !permit.withdrawn))
}

/// Whether the status speaks of the object as it is now.
fn has_answered(world: &World) -> bool {
    devices(world).is_some_and(|object| {
        object.status.as_ref().is_some_and(|status| {
            Some(&status.uid) == object.metadata.uid.as_ref()
                && Some(status.observed_generation) == object.metadata.generation
        })
    })
}

/// Whether, besides, the node has it on disk.
fn has_acknowledged(world: &World) -> bool {
    let heard = node(world).disk.acknowledged.as_ref();
    has_answered(world)
        && devices(world).zip(heard).is_some_and(|(object, heard)| {
            heard.uid == object.metadata.uid && Some(heard.generation) == object.metadata.generation
        })
}

fn has_no_records(world: &World) -> bool {
    node(world).disk.records.is_empty()
}

fn gang<'a>(world: &'a World, label: &str) -> Option<&'a GangStatus> {
    world
        .api
        .list::<Gang>()
        .find(|gang| {
            gang.metadata
                .labels
                .as_ref()
                .and_then(|labels| labels.get(keys::GANG))
                .is_some_and(|value| value == label)
        })?
        .status
        .as_ref()
}

/// Whether a pod is stamped with the second attempt.
fn is_stamped(world: &mut World) -> bool {
    world.api.list::<Pod>().any(|pod| {
        let annotations = pod.metadata.annotations.as_ref();
        annotations.and_then(|annotations| annotations.get(keys::ATTEMPT)) == Some(&"2".to_owned())
    })
}

/// Name of the pod that was made first.
fn first_pod(world: &World) -> String {
    world
        .api
        .list::<Pod>()
        .min_by_key(|pod| (&pod.metadata.creation_timestamp, &pod.metadata.uid))
        .and_then(|pod| pod.metadata.name.clone())
        .unwrap_or_default()
}

fn attempt(world: &World, label: &str) -> i64 {
    gang(world, label).map_or(0, |status| status.attempt)
}

/// Whether the Ledger carries an intent about the pods of that label.
fn is_committed(world: &World, label: &str) -> bool {
    world
        .api
        .list::<Ledger>()
        .flat_map(|ledger| &ledger.spec.intents)
        .filter_map(|intent| world.api.get::<Gang>(TEAM, &intent.name))
        .filter_map(|gang| gang.metadata.labels.as_ref()?.get(keys::GANG))
        .any(|value| value == label)
}
