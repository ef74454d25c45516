//! Devices that are held without an admission: charged as they are, never taken away here.
//!
//! Two ways lead here. A gang may run since before Muster was installed (or on another driver's devices): its
//! Gang is admitted as it stands, and permits follow. And a driver may list claims that no permit names, after
//! a `NodeDevices` object was lost: those come back as withdrawn permits, so that they are charged until
//! their release is proved. A pod that only *waits* at the driver is a bypass: it gets no permit.

use std::collections::BTreeMap;

use muster_api::{
    Admission, Charge, ClaimsCharge, Gang, GangPlacement, Held, NodeDevices, NodeDevicesSpec,
    Permit, gang::AdmittedPod,
};
use muster_engine as engine;

use crate::{
    ApiRequest, Mode,
    admission::plan::{Plan, run_lengths},
    feed::holds::{allocated, device_name},
    objects::{bound_node, is_gated, phase, stamp, uid},
    outward::gang_status,
    outward::release::has_acknowledged,
    poll_context::PollContext,
};
use muster_cluster::formed::{FormedGang, GangKey};

/// The write that admits a gang as it runs, if it does.
pub(crate) fn admission(
    picture: PollContext<'_>,
    key: &GangKey,
    gang: &Gang,
) -> Option<ApiRequest> {
    let formed = picture.formed(key)?;
    if !is_adoptable(picture, formed) {
        return None;
    }
    let team = formed.team.as_ref()?.to_string();
    let mut groups: BTreeMap<(String, i64, i64), Vec<String>> = BTreeMap::new();
    let mut pods = Vec::new();
    let mut places = Vec::new();
    for member in &formed.pods {
        let pod = picture.index.pod_by_uid(&member.identity.uid)?;
        let node = bound_node(pod)?;
        let node_uid = picture.index.node(node)?.metadata.uid.as_deref()?;
        // Without the claims that are not charged.
        let request = picture.index.request_of_pod(&uid(pod).into())?;
        let mut claims: Vec<String> = request.claims.iter().map(|it| it.uid.to_string()).collect();
        claims.sort();
        claims.dedup();
        for claim in &claims {
            let devices = allocated(picture, claim)?;
            let cost = cost(picture, node, &devices);
            let uids = groups.entry(cost).or_default();
            if !uids.contains(claim) {
                uids.push(claim.clone());
            }
        }
        places.push((node, node_uid));
        pods.push(AdmittedPod {
            uid: uid(pod).to_owned(),
            claims,
        });
    }
    let mut status = gang.status.clone().unwrap_or_default();
    let team_generation = picture
        .index
        .team(&team)
        .and_then(|team| team.metadata.generation)
        .unwrap_or_default();
    status.admission = Some(Admission {
        team,
        team_generation,
        ledger_sequence: 0,
        charge: charge(groups),
        pods,
        adopted: true,
    });
    status.placement = Some(GangPlacement {
        nodes: run_lengths(places.into_iter()),
        ..GangPlacement::default()
    });
    let carrying = Gang {
        status: Some(status.clone()),
        ..gang.clone()
    };
    let plan = Plan::of_gang(key, &carrying)?;
    gang_status::tell_admitted(picture, gang, &plan, &mut status);
    gang_status::write(picture, key, gang, status)
}

/// Whether every member is bound and holds what it asks for: it runs, or it is being started by a driver that
/// does not enforce permits yet. One that was made under our webhook and does not run only waits there: it is
/// a bypass, also where the node's object was lost and nothing says any more that its driver enforces.
fn is_adoptable(picture: PollContext<'_>, formed: &FormedGang) -> bool {
    let unadmitted = |uid: &str| formed.unadmitted.iter().any(|pod| pod.uid == uid);
    !formed.pods.is_empty()
        && formed.pods.iter().all(|member| {
            let Some(pod) = picture.index.pod_by_uid(&member.identity.uid) else {
                return false;
            };
            let enforced = bound_node(pod)
                .and_then(|node| picture.index.node_devices(node))
                .is_some_and(|devices| devices.spec.enforce);
            unadmitted(&member.identity.uid)
                && !is_gated(pod)
                && (phase(pod) == "Running"
                    || (!enforced && !picture.index.is_marked(&member.identity.uid)))
        })
}

/// Whether the node's driver may be told to enforce: not before every pod that is bound there has been
/// adopted, since its permit has to stand in the same write.
pub(crate) fn may_enforce(picture: PollContext<'_>, node: &str) -> bool {
    if picture.config.mode == Mode::Observe {
        return false;
    }
    let enforced = picture
        .index
        .node_devices(node)
        .is_some_and(|devices| devices.spec.enforce);
    enforced
        || !picture.index.pods_on_node(node).iter().any(|pod| {
            let name = muster_cluster::index::NamespacedName {
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                name: pod.metadata.name.clone().unwrap_or_default(),
            };
            picture
                .index
                .gang_of_pod(&name)
                .and_then(|key| picture.formed(key))
                .is_some_and(|formed| {
                    formed.unadmitted.iter().any(|other| other.uid == uid(pod))
                        && is_adoptable(picture, formed)
                        && formed.team.is_some()
                })
        })
}

/// What the driver lists as held and no permit names, after it has answered for this very object.
pub(crate) fn permit_held(
    picture: PollContext<'_>,
    node: &str,
    devices: &NodeDevices,
    spec: &mut NodeDevicesSpec,
) {
    if !has_acknowledged(picture, devices) {
        return;
    }
    for held in devices.status.iter().flat_map(|status| &status.held) {
        let named = spec
            .permits
            .iter()
            .any(|permit| permit.claim_uids.contains(&held.claim_uid));
        if !named {
            spec.permits.push(returned(picture, node, held));
        }
    }
}

fn returned(picture: PollContext<'_>, node: &str, held: &Held) -> Permit {
    let names: Vec<engine::DeviceName> = held
        .devices
        .iter()
        .map(|device| device_name(node, device))
        .collect();
    let mut groups = BTreeMap::new();
    groups.insert(cost(picture, node, &names), vec![held.claim_uid.clone()]);
    let pod_uid = held.pod_uid.clone().unwrap_or_default();
    let pod = picture.index.pod_by_uid(&pod_uid);
    let gang = pod.and_then(|pod| {
        picture
            .index
            .gang_of_pod(&muster_cluster::index::NamespacedName {
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                name: pod.metadata.name.clone().unwrap_or_default(),
            })
    });
    Permit {
        pod_uid: if pod_uid.is_empty() {
            format!("of-claim-{}", held.claim_uid)
        } else {
            pod_uid
        },
        claim_uids: vec![held.claim_uid.clone()],
        gang: gang.map_or_else(|| format!("{}/", held.namespace), ToString::to_string),
        gang_uid: gang
            .and_then(|key| picture.index.gang(key))
            .and_then(|gang| gang.metadata.uid.clone())
            .unwrap_or_default(),
        attempt: pod.map_or(0, |pod| stamp(pod)),
        team: picture
            .index
            .team_of_namespace(&held.namespace)
            .map_or_else(String::new, |team| team.to_string()),
        charge: charge(groups),
        withdrawn: true,
    }
}

/// Flavor, thousandths of a GPU and bytes of memory of devices, as far as the node's slices show them. Devices
/// that are not published any more count as whole GPUs of no Flavor.
fn cost(
    picture: PollContext<'_>,
    node: &str,
    devices: &[engine::DeviceName],
) -> (String, i64, i64) {
    let known = picture.index.engine_node(node);
    let mut flavor = String::new();
    let mut gpus = 0_i64;
    let mut vram = 0_i64;
    for name in devices {
        let device = known.and_then(|node| node.devices.iter().find(|it| it.name == *name));
        match device {
            Some(device) => {
                if let Some(first) = device.flavors.first() {
                    flavor = first.to_string();
                }
                gpus = gpus.saturating_add(device.gpus.0);
                vram = vram.saturating_add(device.vram.0);
            }
            None => gpus = gpus.saturating_add(engine::Amount::ONE_GPU.0),
        }
    }
    (flavor, gpus, vram)
}

fn charge(groups: BTreeMap<(String, i64, i64), Vec<String>>) -> Charge {
    let claims = groups
        .into_iter()
        .map(|((flavor, gpus_milli, vram_bytes), mut uids)| {
            uids.sort();
            ClaimsCharge {
                flavor,
                gpus_milli,
                vram_bytes,
                uids,
            }
        });
    Charge {
        claims: claims.collect(),
        resources: Vec::new(),
    }
}
