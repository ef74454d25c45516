//! Who permits what is prepared, and what is judged of it.
//!
//! The controller is reduced to what drivers see of it: it permits a claim to its pod, now and then another claim first; it withdraws the
//! permit of who gives way, and of whose pod is gone; and it removes a permit only once the driver has acknowledged that it is withdrawn,
//! and does not hold its claim.

use std::collections::BTreeSet;

use muster_api::{Charge, ClaimsCharge, NodeDevices, Permit};
use muster_dra_driver::prepare::{DeviceFacts, Record};
use muster_sim::api_server::Precondition;

use super::{History, NODE, Wish};

/// In one of so many steps the controller looks what there is to permit.
const LOOK_ODDS: u64 = 8;
/// One of so many permits names another claim first.
const WRONG_ODDS: u64 = 6;
/// In one of so many looks such a permit is put right.
const RIGHTED_ODDS: u64 = 10;
/// In one of so many looks a claim gives way.
const WITHDRAWAL_ODDS: u64 = 200;

/// What a claim takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    gpus_milli: i64,
    vram_bytes: i64,
}

impl Cost {
    /// Of these devices together.
    pub(super) fn of<'device>(devices: impl Iterator<Item = &'device DeviceFacts>) -> Self {
        devices.fold(Self::default(), |sum, facts| Self {
            gpus_milli: sum.gpus_milli + facts.gpus_milli,
            vram_bytes: sum.vram_bytes + facts.memory_bytes,
        })
    }
}

fn pod_of(claim: &str) -> String {
    format!("pod-of-{claim}")
}

fn permit_for(pod: &str, claim_uid: &str, cost: Cost) -> Permit {
    Permit {
        pod_uid: pod.to_owned(),
        claim_uids: vec![claim_uid.to_owned()],
        charge: Charge {
            claims: vec![ClaimsCharge {
                flavor: "h100".to_owned(),
                gpus_milli: cost.gpus_milli,
                vram_bytes: cost.vram_bytes,
                uids: vec![claim_uid.to_owned()],
            }],
            ..Charge::default()
        },
        ..Permit::default()
    }
}

/// Whether the driver has heard of the object as it is, and does not hold the claims of a permit.
fn is_released(object: &NodeDevices, permit: &Permit) -> bool {
    let Some(status) = &object.status else {
        return false;
    };
    let has_heard = object.metadata.uid.as_ref() == Some(&status.uid)
        && object.metadata.generation == Some(status.observed_generation);
    let mut held = status.held.iter();
    has_heard && !held.any(|held| permit.claim_uids.contains(&held.claim_uid))
}

impl History {
    /// What the controller does. It writes once for all.
    pub(super) fn permit(&mut self, goes_on: bool) {
        if !self.enforces || (goes_on && !self.random.one_in(LOOK_ODDS)) {
            return;
        }
        let Some(object) = self.api.get::<NodeDevices>("", NODE) else {
            return;
        };
        let mut permits = object.spec.permits.clone();
        permits.retain(|permit| !(permit.withdrawn && is_released(object, permit)));
        let removed = object.spec.permits.iter();
        let removed: BTreeSet<String> = removed
            .filter(|permit| !permits.contains(permit))
            .map(|permit| permit.pod_uid.clone())
            .collect();
        let mut pods = BTreeSet::new();
        for (uid, wanted) in &mut self.wanted {
            let pod = pod_of(&wanted.claim.name);
            self.report.permits_lost += u64::from(removed.contains(&pod));
            let right = permit_for(&pod, uid, wanted.cost);
            match permits.iter_mut().find(|permit| permit.pod_uid == pod) {
                Some(permit) if permit.withdrawn => {}
                Some(permit) if goes_on && self.random.one_in(WITHDRAWAL_ODDS) => {
                    permit.withdrawn = true;
                    wanted.gives_way = true;
                    self.report.permits_withdrawn += 1;
                }
                Some(permit) if *permit != right && self.random.one_in(RIGHTED_ODDS) => {
                    *permit = right;
                }
                None if goes_on && !wanted.gives_way && wanted.wish == Wish::Prepare => {
                    let is_wrong = self.random.one_in(WRONG_ODDS);
                    let other = format!("another-than-{uid}");
                    permits.push(if is_wrong {
                        permit_for(&pod, &other, wanted.cost)
                    } else {
                        right
                    });
                }
                Some(_) | None => {}
            }
            pods.insert(pod);
        }
        for permit in &mut permits {
            permit.withdrawn |= !pods.contains(&permit.pod_uid);
        }
        // Nobody else writes its spec.
        let any = Precondition::default();
        let written = self.api.update::<NodeDevices>("", NODE, any, |object| {
            object.spec.permits.clone_from(&permits);
        });
        if written.is_ok() && !removed.is_empty() {
            self.say(format!("the permits of {removed:?} are removed"));
        }
    }

    /// Whether there are any.
    pub(super) fn has_permits(&self) -> bool {
        let object = self.api.get::<NodeDevices>("", NODE);
        object.is_some_and(|object| !object.spec.permits.is_empty())
    }

    /// S3: at the moment a claim is recorded, or gets its CDI file, a permit names it. (It may be withdrawn already: what matters is that
    /// it was not removed.)
    pub(super) fn check_permits(&mut self) -> Result<(), String> {
        if !self.enforces {
            return Ok(());
        }
        let records = self.node.disk.records.values();
        let holding = records.filter(|record| record.holds());
        let now: BTreeSet<String> = holding
            .chain(self.node.cdi.values())
            .map(|record: &Record| record.claim.uid.clone())
            .collect();
        let object = self.api.get::<NodeDevices>("", NODE);
        let permits = object.map(|object| object.spec.permits.as_slice());
        let permits = permits.unwrap_or_default();
        let is_permitted =
            |uid: &&String| permits.iter().any(|permit| permit.claim_uids.contains(uid));
        if let Some(uid) = now
            .difference(&self.recorded)
            .find(|uid| !is_permitted(uid))
        {
            return Err(format!("S3: {uid} is recorded, and no permit names it"));
        }
        self.recorded = now;
        Ok(())
    }
}
