//! Which devices claims were given, and since when, whether or not they have them still.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::ResourceClaim;
use muster_api::{Gang, Intent};

use crate::{api_server::ApiServer, scheduler};

/// A device: its node, which is its pool, and its name there.
pub(super) type Device = (String, String);

/// What a claim was given, and when.
pub(super) type Holding = (Timestamp, Vec<Device>);

/// The devices that claims were given last, by their UID.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    given: BTreeMap<String, Holding>,
}

impl Holdings {
    /// What a claim has now.
    pub(super) fn note_claim(&mut self, claim: &ResourceClaim, now: Timestamp) {
        let devices = scheduler::allocated_devices(claim);
        let devices: Vec<Device> = devices
            .map(|(pool, device)| (pool.to_owned(), device.to_owned()))
            .collect();
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let is_same = self.given.get(&uid).is_some_and(|(_, it)| *it == devices);
        if !devices.is_empty() && !is_same {
            self.given.insert(uid, (now, devices));
        }
    }

    /// What the claims of the attempt that the Gang of an intent carries were given, and since when; `None`: it carries none.
    pub(super) fn of_attempt(&self, api: &ApiServer, intent: &Intent) -> Option<Vec<&Holding>> {
        let gang = api.get::<Gang>(&intent.namespace, &intent.name)?;
        let is_meant = gang.metadata.uid.as_ref() == Some(&intent.gang_uid);
        let status = gang.status.as_ref().filter(|_| is_meant)?;
        let pods = &status.admission.as_ref()?.pods;
        let claims = pods.iter().flat_map(|pod| &pod.claims);
        Some(claims.filter_map(|uid| self.given.get(uid)).collect())
    }
}
