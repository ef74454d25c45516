//! S8: a gang is evicted for a fault only if a fault reached a device that the gang holds, and once for each.
//!
//! What a gang holds is worked out from what its claims were allocated, and from the devices that its containers were given; what was wrong with
//! that from what a test did to the hardware. What the eviction says of itself is compared with it, and proves nothing.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;
use muster_api::{Gang, Reason, gang::Eviction, keys};

use super::{
    containers::Containers,
    etcd::Revision,
    faults::Faults,
    findings::{Findings, Invariant::S8},
    world,
};

/// Who has held what, and who has paid for which fault.
#[derive(Debug, Default)]
pub(super) struct FaultEvictions {
    /// What each claim was allocated, by UID, also after it is gone.
    allocated: BTreeMap<String, Allocated>,
    /// Pods and claims of each attempt, by UID of the Gang.
    attempts: BTreeMap<(String, i64), Vec<Member>>,
    /// Faults, by their numbers, for which a Gang was evicted.
    paid: BTreeSet<(String, usize)>,
}

/// What a claim was allocated.
#[derive(Clone, Debug)]
struct Allocated {
    /// Node and device.
    devices: BTreeSet<(String, String)>,
    /// Whether whoever has it needs NVLinks: more than one whole GPU, or a constraint between them.
    needs_links: bool,
    since: Revision,
    /// It was given back since.
    is_freed: bool,
}

#[derive(Clone, Debug)]
struct Member {
    pod: String,
    claims: Vec<String>,
}

/// A device that an attempt holds.
struct Held<'a> {
    gpu: &'a str,
    needs_links: bool,
    since: Revision,
}

impl FaultEvictions {
    /// A claim was written.
    pub(super) fn claim(&mut self, claim: &ResourceClaim, revision: Revision) {
        let results = world::allocation(claim);
        let ours = results
            .filter(|result| result.driver == keys::DRIVER && result.admin_access != Some(true));
        let devices: BTreeSet<(String, String)> = ours
            .map(|result| (result.pool.clone(), result.device.clone()))
            .collect();
        if devices.is_empty() {
            // What the attempt held is asked for later.
            if let Some(known) = self.allocated.get_mut(&world::uid(claim)) {
                known.is_freed = true;
            }
            return;
        }
        let spec = claim.spec.as_ref().and_then(|spec| spec.devices.as_ref());
        let mut constraints = spec
            .into_iter()
            .flat_map(|it| it.constraints.iter().flatten());
        let whole = devices.iter().filter(|(_, name)| !name.contains("-mig-"));
        let needs_links = whole.count() > 1 || constraints.next().is_some();
        let known = self.allocated.get(&world::uid(claim));
        if known.is_some_and(|known| known.devices == devices && !known.is_freed) {
            return;
        }
        let allocated = Allocated {
            devices,
            needs_links,
            since: revision,
            is_freed: false,
        };
        self.allocated.insert(world::uid(claim), allocated);
    }

    /// A Gang was written.
    pub(super) fn gang(
        &mut self,
        before: Option<&Gang>,
        gang: &Gang,
        faults: &Faults,
        containers: &Containers,
        findings: &mut Findings,
    ) {
        let uid = world::uid(gang);
        let Some(status) = &gang.status else {
            return;
        };
        if let Some(admission) = &status.admission {
            let members = admission.pods.iter().map(|pod| Member {
                pod: pod.uid.clone(),
                claims: pod.claims.clone(),
            });
            let attempt = (uid.clone(), status.attempt);
            self.attempts.insert(attempt, members.collect());
        }
        let known = before.and_then(|gang| gang.status.as_ref());
        let known = known.map(|status| status.evictions.as_slice());
        let known = known.unwrap_or_default();
        let of_faults = status
            .evictions
            .iter()
            .filter(|it| it.reason == Reason::DeviceFault);
        for eviction in of_faults {
            let is_known = known
                .iter()
                .any(|it| it.attempt == eviction.attempt && it.reason == eviction.reason);
            if !is_known {
                let wrong = self.wrong_with(&uid, eviction, faults, containers);
                let wrong = wrong.map(|why| {
                    format!(
                        "attempt {} of gang {}/{} was evicted for a fault ({:?}): {why}",
                        eviction.attempt,
                        gang.namespace().unwrap_or_default(),
                        gang.name_any(),
                        eviction.fault
                    )
                });
                findings.check(S8, wrong);
            }
        }
    }

    /// What is wrong with an eviction for a fault. The faults that explain it are paid for.
    fn wrong_with(
        &mut self,
        gang: &str,
        eviction: &Eviction,
        faults: &Faults,
        containers: &Containers,
    ) -> Option<String> {
        let attempt = (gang.to_owned(), eviction.attempt);
        let members = self.attempts.get(&attempt).cloned().unwrap_or_default();
        let held = self.held(&members, faults, containers);
        if held.is_empty() {
            return Some("it held no device".to_owned());
        }
        let mut reached = BTreeSet::new();
        for (number, known) in faults.known().iter().enumerate() {
            let reaches = held.iter().any(|held| {
                held.gpu == known.gpu
                    && known.wrong.costs(held.needs_links)
                    && known.over.is_none_or(|over| over > held.since)
            });
            if reaches {
                reached.insert(number);
            }
        }
        let named = eviction.fault.as_ref().map(|fault| fault.device.as_str());
        let named = named.and_then(|name| {
            let (pool, device) = name
                .strip_prefix(keys::DRIVER)?
                .strip_prefix('/')?
                .split_once('/')?;
            faults.gpu_of(pool, device)
        });
        let of_named = |number: &usize| {
            let known = faults.known().get(*number);
            known.map(|known| known.gpu.as_str()) == named
        };
        if reached.is_empty() {
            let held: BTreeSet<&str> = held.iter().map(|held| held.gpu).collect();
            return Some(format!(
                "no fault that costs it reached what it held: {held:?}"
            ));
        }
        if !reached.iter().any(of_named) {
            return Some("none that reached it is of the device that is named".to_owned());
        }
        let mut is_new = false;
        for number in reached {
            is_new |= self.paid.insert((gang.to_owned(), number));
        }
        (!is_new).then(|| "it was evicted for all that reached it before".to_owned())
    }

    fn held<'a>(
        &self,
        members: &[Member],
        faults: &'a Faults,
        containers: &Containers,
    ) -> Vec<Held<'a>> {
        let mut held = Vec::new();
        for member in members {
            let claims = member.claims.iter();
            for allocated in claims.filter_map(|claim| self.allocated.get(claim)) {
                let gpus = allocated.devices.iter();
                let gpus = gpus.filter_map(|(node, device)| faults.gpu_of(node, device));
                held.extend(gpus.map(|gpu| Held {
                    gpu,
                    needs_links: allocated.needs_links,
                    since: allocated.since,
                }));
            }
            for (container, since) in containers.of_pod(&member.pod) {
                let devices = container.devices.keys();
                let gpus = devices.filter_map(|device| faults.gpu_of(&container.node, device));
                held.extend(gpus.map(|gpu| Held {
                    gpu,
                    needs_links: container.devices.len() > 1,
                    since,
                }));
            }
        }
        held
    }
}
