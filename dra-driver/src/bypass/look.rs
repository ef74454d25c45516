//! Looks at what uses the GPUs, and asks for what would explain it.
//!
//! What is nearly always enough is read each time: NVML, `/proc` of the processes, the checkpoint. The rest is asked for only
//! while something is unexplained without it: the names of pods, what device plugins handed out, for whom a claim is reserved by now.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use muster_cluster::managed::ManagedPods;
use muster_device::{Backend, BackendError};

use super::{
    origin::Origin,
    pod_logs, processes,
    sight::{Holder, Seen, Sight, Trusted},
};
use crate::{
    kubelet::pod_resources,
    kubernetes::Kubernetes,
    prepare::{ClaimRef, Disk, Read},
    store::Store,
};

/// Where it is looked.
#[derive(Clone, Debug)]
pub struct Places {
    /// NVML.
    pub backend: Arc<Backend>,
    /// The host's `/proc`.
    pub proc: PathBuf,
    /// The kubelet's directory of the logs of pods.
    pub pod_logs: PathBuf,
    /// The checkpoint.
    pub store: Store,
    /// The API server, for claims.
    pub kubernetes: Kubernetes,
    /// The kubelet's socket that says what device plugins handed out; not asked without it.
    pub pod_resources_socket: Option<PathBuf>,
    /// Which extended resources stand for devices.
    pub managed: ManagedPods,
}

/// Looks. Remembers what does not change while the program runs.
#[derive(Debug)]
pub struct Looker {
    places: Places,
    /// A process was seen in a pod's cgroup: the kubelet makes cgroups for pods.
    pods_have_cgroups: bool,
    /// For which pods claims were reserved when they were asked about, by UID of claims that hold. It is no matter if one is not any more:
    /// that pod has ended, and no other gets its UID.
    reserved: BTreeMap<String, BTreeSet<String>>,
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Looked {
    /// All that a judgement takes.
    pub sight: Sight,
    /// Whether permits are enforced.
    pub enforce: bool,
    /// GPUs that could not be judged, by UUID, and why.
    pub unanswered: BTreeMap<String, String>,
    /// The claims that hold each GPU, by its UUID.
    claims: BTreeMap<String, Vec<ClaimRef>>,
}

impl Looker {
    /// A looker that has not looked yet.
    pub fn new(places: Places) -> Self {
        Self {
            places,
            pods_have_cgroups: false,
            reserved: BTreeMap::new(),
        }
    }

    /// Looks once. An error says that nothing can be judged now.
    pub async fn look(
        &mut self,
        gpus: BTreeSet<String>,
        trusted: &Trusted,
    ) -> Result<Looked, String> {
        let places = self.places.clone();
        let mut looked = blocking(move || first_look(&places, gpus)).await?;
        looked.keep_held(&mut self.reserved);
        looked.take_reserved(&self.reserved);
        if is_open(&looked.sight, trusted, |origin| *origin == Origin::Node) {
            self.doubt_those_of_the_node(&mut looked.sight).await?;
        }
        if is_open(&looked.sight, trusted, |origin| *origin != Origin::Node) {
            self.name_pods(&mut looked.sight, trusted).await?;
            self.ask_claims(&mut looked, trusted).await;
        }
        Ok(looked)
    }

    /// Where pods have no cgroups of their own, whoever is in none of a pod's may be in a pod all the same.
    async fn doubt_those_of_the_node(&mut self, sight: &mut Sight) -> Result<(), String> {
        if !self.pods_have_cgroups {
            let proc = self.places.proc.clone();
            self.pods_have_cgroups =
                blocking(move || Ok(processes::some_are_in_pods(&proc))).await?;
        }
        if !self.pods_have_cgroups {
            let all = sight.processes.values_mut().flatten();
            for seen in all.filter(|seen| seen.origin == Origin::Node) {
                seen.origin = Origin::Unknown;
            }
        }
        Ok(())
    }

    /// Names the pods whose processes are unexplained, and those that device plugins gave something.
    async fn name_pods(&self, sight: &mut Sight, trusted: &Trusted) -> Result<(), String> {
        let pods = sight
            .unexplained(trusted)
            .filter_map(|(_, seen)| match &seen.origin {
                Origin::Pod(uid) => Some(uid.clone()),
                Origin::Node | Origin::Unknown | Origin::Hidden => None,
            });
        let wanted: BTreeSet<String> = pods.collect();
        let directory = self.places.pod_logs.clone();
        sight.names = blocking(move || {
            let names = pod_logs::names(&directory, &wanted);
            names.map_err(|error| format!("{}: {error}", directory.display()))
        })
        .await?;
        if let Some(socket) = &self.places.pod_resources_socket {
            let given = pod_resources::by_pod(socket, &self.places.managed).await;
            sight.plugins = given.map_err(|error| format!("{error:#}"))?;
        }
        Ok(())
    }

    /// Adds whom claims are reserved for since they were prepared: the kubelet calls for the first pod of a shared claim only. Each is
    /// asked about once, of however many GPUs it is. A GPU whose claim cannot be read is not judged.
    async fn ask_claims(&mut self, looked: &mut Looked, trusted: &Trusted) {
        for (reference, gpus) in looked.claims_in_question(trusted) {
            match self.places.kubernetes.claim_now(&reference).await {
                Read::Found(claim) if claim.reference.uid == reference.uid => {
                    let pods = claim.pods.into_iter().collect();
                    self.reserved.insert(reference.uid, pods);
                }
                Read::Found(_) | Read::Absent => {}
                Read::Failed(cause) => {
                    let cause = format!("claim {reference}: {cause}");
                    for gpu in gpus {
                        looked.sight.processes.remove(&gpu);
                        looked.unanswered.insert(gpu, cause.clone());
                    }
                }
            }
        }
        looked.take_reserved(&self.reserved);
    }
}

fn is_open(sight: &Sight, trusted: &Trusted, is_meant: impl Fn(&Origin) -> bool) -> bool {
    let mut open = sight.unexplained(trusted);
    open.any(|(_, seen)| is_meant(&seen.origin))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|panicked| panicked.to_string())?
}

/// Processes first, then the checkpoint: what was prepared in between is there. Blocking; bounded by the limit of the NVML backend
/// per GPU, of which one that hangs costs the others nothing but this look.
fn first_look(places: &Places, gpus: BTreeSet<String>) -> Result<Looked, String> {
    let mut looked = Looked::default();
    for gpu in &gpus {
        match places.backend.processes(gpu) {
            Ok(listed) => {
                let seen: Vec<Seen> = listed
                    .iter()
                    .map(|process| Seen {
                        gpu_instance: process.gpu_instance,
                        ..processes::look_at(&places.proc, process.pid)
                    })
                    .collect();
                looked.sight.processes.insert(gpu.clone(), seen);
            }
            // Nothing runs on a GPU that is not there.
            Err(BackendError::Gone(_)) => {
                looked.sight.processes.insert(gpu.clone(), Vec::new());
            }
            Err(error) => {
                looked.unanswered.insert(gpu.clone(), error.to_string());
            }
        }
    }
    looked.sight.gpus = gpus;
    let lock = places.store.lock().map_err(|error| error.to_string())?;
    let disk = places
        .store
        .load(&lock)
        .map_err(|error| error.to_string())?;
    drop(lock);
    looked.take_disk(&disk)?;
    Ok(looked)
}

impl Looked {
    /// Without a generation on disk the records are not whole: they are being rebuilt, and who holds what nobody knows.
    fn take_disk(&mut self, disk: &Disk) -> Result<(), String> {
        let acknowledged = disk.acknowledged.as_ref();
        let acknowledged = acknowledged.ok_or("the records of claims are not rebuilt yet")?;
        self.enforce = acknowledged.enforce;
        self.take_claims(disk);
        Ok(())
    }

    /// A claim with administrative access explains its pods' processes like any other.
    fn take_claims(&mut self, disk: &Disk) {
        for record in disk.records.values().filter(|record| record.holds()) {
            let mut holders: BTreeSet<Holder> =
                record.pods.iter().cloned().map(Holder::Pod).collect();
            if holders.is_empty() {
                holders.insert(Holder::AnyPod);
            }
            for device in &record.devices {
                let gpu = &device.unit.gpu;
                let known = self.sight.holders.entry(gpu.clone()).or_default();
                known.extend(holders.iter().cloned());
                let claims = self.claims.entry(gpu.clone()).or_default();
                claims.push(record.claim.clone());
            }
        }
    }

    /// Forgets of claims that hold nothing any more.
    fn keep_held(&self, reserved: &mut BTreeMap<String, BTreeSet<String>>) {
        let claims = self.claims.values().flatten();
        let held: BTreeSet<&str> = claims.map(|claim| claim.uid.as_str()).collect();
        reserved.retain(|uid, _| held.contains(uid.as_str()));
    }

    /// Those for whom a claim was reserved hold its GPUs, too.
    fn take_reserved(&mut self, reserved: &BTreeMap<String, BTreeSet<String>>) {
        for (gpu, claims) in &self.claims {
            let pods = claims.iter().filter_map(|claim| reserved.get(&claim.uid));
            let pods = pods.flatten().cloned().map(Holder::Pod);
            let holders = self.sight.holders.entry(gpu.clone()).or_default();
            holders.extend(pods);
        }
    }

    /// The claims that may explain a process of a pod which nothing explains so far, each with the GPUs of such processes.
    fn claims_in_question(&self, trusted: &Trusted) -> BTreeMap<ClaimRef, BTreeSet<String>> {
        let open = self.sight.unexplained(trusted);
        let of_pods = open.filter(|(_, seen)| matches!(seen.origin, Origin::Pod(_)));
        let gpus: BTreeSet<&str> = of_pods.map(|(gpu, _)| gpu).collect();
        let mut claims: BTreeMap<ClaimRef, BTreeSet<String>> = BTreeMap::new();
        for gpu in gpus {
            for claim in self.claims.get(gpu).into_iter().flatten() {
                let of_claim = claims.entry(claim.clone()).or_default();
                of_claim.insert(gpu.to_owned());
            }
        }
        claims
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepare::{Acknowledged, Record, RecordState, RecordedDevice, Unit};

    fn record(uid: &str, state: RecordState, pods: &[&str], admin_access: bool) -> Record {
        Record {
            claim: ClaimRef {
                uid: uid.to_owned(),
                namespace: "ml".to_owned(),
                name: "claim".to_owned(),
            },
            state,
            call: None,
            by_name: None,
            pods: pods.iter().map(|pod| (*pod).to_owned()).collect(),
            devices: vec![RecordedDevice {
                request: "gpu".to_owned(),
                pool: "node-0".to_owned(),
                device: "gpu-0".to_owned(),
                unit: Unit::whole("GPU-0"),
                minor: 0,
                admin_access,
                slice: None,
            }],
        }
    }

    #[test]
    fn a_claim_explains_from_its_intent_until_it_is_given_back() {
        let pod = |uid: &str| Holder::Pod(uid.to_owned());
        for (record, expected) in [
            (record("c", RecordState::Waiting, &["p"], false), vec![]),
            (
                record("c", RecordState::Preparing, &["p"], false),
                vec![pod("p")],
            ),
            (
                record("c", RecordState::Prepared, &["p", "q"], true),
                vec![pod("p"), pod("q")],
            ),
            (
                record("c", RecordState::Unpreparing, &["p"], false),
                vec![pod("p")],
            ),
            (
                record("c", RecordState::Prepared, &[], false),
                vec![Holder::AnyPod],
            ),
        ] {
            let mut looked = Looked::default();
            let mut disk = Disk::default();
            disk.records.insert("c".to_owned(), record);
            looked.take_claims(&disk);
            let held = looked.sight.holders.remove("GPU-0").unwrap_or_default();
            assert_eq!(held.into_iter().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn while_the_records_are_not_rebuilt_nothing_is_judged() {
        let mut disk = Disk::default();
        disk.records.insert(
            "c".to_owned(),
            record("c", RecordState::Prepared, &["p"], false),
        );
        assert!(Looked::default().take_disk(&disk).is_err());
        disk.acknowledged = Some(Acknowledged {
            uid: None,
            generation: 0,
            enforce: true,
        });
        let mut looked = Looked::default();
        looked.take_disk(&disk).unwrap();
        assert!(looked.enforce);
        assert_eq!(looked.sight.holders.len(), 1);
    }

    #[test]
    fn a_claim_of_many_gpus_is_asked_about_once_and_not_again_while_its_answer_explains() {
        let shared = |pod: &str| {
            let mut looked = Looked::default();
            let mut record = record("c", RecordState::Prepared, &["p"], false);
            let mut second = record.devices[0].clone();
            second.unit = Unit::whole("GPU-1");
            record.devices.push(second);
            let mut disk = Disk::default();
            disk.records.insert("c".to_owned(), record);
            looked.take_claims(&disk);
            for gpu in ["GPU-0", "GPU-1"] {
                let seen = Seen {
                    pid: 7,
                    gpu_instance: None,
                    origin: Origin::Pod(pod.to_owned()),
                    program: None,
                };
                looked.sight.processes.insert(gpu.to_owned(), vec![seen]);
            }
            looked
        };
        let trusted = Trusted::default();
        let asked = |looked: &Looked| {
            let claims = looked.claims_in_question(&trusted).into_iter();
            let claims = claims.map(|(claim, gpus)| (claim.uid, gpus.len()));
            claims.collect::<Vec<_>>()
        };
        assert!(asked(&shared("p")).is_empty());
        assert_eq!(asked(&shared("q")), [("c".to_owned(), 2)]);
        let mut reserved = BTreeMap::new();
        let pods = BTreeSet::from(["p".to_owned(), "q".to_owned()]);
        reserved.insert("c".to_owned(), pods);
        for (pod, expected) in [("q", 0), ("side", 1)] {
            let mut looked = shared(pod);
            looked.keep_held(&mut reserved);
            looked.take_reserved(&reserved);
            assert_eq!(asked(&looked).len(), expected, "{pod}");
        }
        Looked::default().keep_held(&mut reserved);
        assert!(reserved.is_empty(), "the claim was given back");
    }
}
