//! What is seen at one time, and what of it explains a process.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::origin::Origin;

/// A process that uses a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its id, as the node counts.
    pub pid: u32,
    /// The GPU instance that it runs in; `None` counts on the whole GPU.
    pub gpu_instance: Option<u32>,
    /// Whose it is.
    pub origin: Origin,
    /// Path of its program. In a pod that is a path in its container, which says nothing about the program.
    pub program: Option<String>,
}

/// A pod by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// Who has a GPU by a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// The pod with this UID.
    Pod(String),
    /// The claim is reserved for something else than pods: whichever pod it is.
    AnyPod,
}

/// Who may use GPUs without a claim.
#[derive(Clone, Debug, Default)]
pub struct Trusted {
    /// Namespaces of pods.
    pub namespaces: BTreeSet<String>,
    /// Programs of the node itself, by path.
    pub programs: BTreeSet<String>,
}

/// What is seen at one time.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    /// UUIDs of the node's GPUs.
    pub gpus: BTreeSet<String>,
    /// What uses a GPU, by its UUID. A GPU that could not be judged is not there.
    pub processes: BTreeMap<String, Vec<Seen>>,
    /// Who has a GPU by a claim, by its UUID; also who has a part of it.
    pub holders: BTreeMap<String, BTreeSet<Holder>>,
    /// Names of pods by UID, as far as they are known.
    pub names: BTreeMap<String, PodName>,
    /// What device plugins, and other GPU drivers, gave to pods.
    pub plugins: BTreeMap<PodName, BTreeSet<String>>,
}

/// What a process is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It was given the GPU.
    Explained,
    /// It was not, and may use it all the same.
    Trusted,
    /// Nothing explains it.
    Unexplained,
}

impl Sight {
    /// What a process on a GPU is taken for.
    ///
    /// One whose origin is unknown may be whoever holds the GPU, so it is taken for that as long as somebody does.
    pub fn judge(&self, gpu: &str, seen: &Seen, trusted: &Trusted) -> Judgement {
        let is_trusted = match &seen.origin {
            Origin::Pod(uid) => {
                let name = self.names.get(uid);
                let has_unit = match name {
                    Some(name) => self.has_unit(gpu, name),
                    // It may be any of those that were given something.
                    None => self.somebody_has_unit(gpu),
                };
                if has_unit || self.has_claim(gpu, uid) {
                    return Judgement::Explained;
                }
                name.is_some_and(|name| trusted.namespaces.contains(&name.namespace))
            }
            Origin::Node => seen
                .program
                .as_ref()
                .is_some_and(|program| trusted.programs.contains(program)),
            Origin::Unknown => {
                let claimed = self.holders.get(gpu).is_some_and(|held| !held.is_empty());
                if claimed || self.somebody_has_unit(gpu) {
                    return Judgement::Explained;
                }
                false
            }
            Origin::Hidden => false,
        };
        if is_trusted {
            Judgement::Trusted
        } else {
            Judgement::Unexplained
        }
    }

    /// What nothing explains, each with the UUID of its GPU.
    pub fn unexplained<'a>(
        &'a self,
        trusted: &'a Trusted,
    ) -> impl Iterator<Item = (&'a str, &'a Seen)> {
        let all = self.processes.iter().flat_map(|(gpu, processes)| {
            let on_gpu = move |seen: &'a Seen| (gpu.as_str(), seen);
            processes.iter().map(on_gpu)
        });
        all.filter(move |(gpu, seen)| self.judge(gpu, seen, trusted) == Judgement::Unexplained)
    }

    fn has_claim(&self, gpu: &str, pod: &str) -> bool {
        let mut held = self.holders.get(gpu).into_iter().flatten();
        held.any(|holder| match holder {
            Holder::Pod(uid) => uid == pod,
            Holder::AnyPod => true,
        })
    }

    fn somebody_has_unit(&self, gpu: &str) -> bool {
        self.plugins.keys().any(|pod| self.has_unit(gpu, pod))
    }

    /// Whether a device plugin gave the pod the GPU, or what cannot be told from it: an index, the UUID of a slice, or a device of
    /// another driver. (A share of a GPU is called `UUID::N`.)
    fn has_unit(&self, gpu: &str, pod: &PodName) -> bool {
        let mut given = self.plugins.get(pod).into_iter().flatten();
        given.any(|device| {
            let device = device.split("::").next().unwrap_or(device);
            device == gpu || !self.gpus.contains(device)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(origin: Origin, program: &str) -> Seen {
        Seen {
            pid: 1,
            gpu_instance: None,
            origin,
            program: Some(program.to_owned()),
        }
    }

    fn name(namespace: &str, name: &str) -> PodName {
        PodName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    fn strings(texts: &[&str]) -> BTreeSet<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    /// `GPU-0` is held by pod `holder`, `GPU-1` by nobody, `GPU-2` by a claim of something else than pods.
    fn sight() -> Sight {
        let holders = [
            ("GPU-0", Holder::Pod("holder".to_owned())),
            ("GPU-2", Holder::AnyPod),
        ];
        let names = [
            ("holder", name("ml", "holder")),
            ("side", name("ml", "side")),
            ("plugged", name("ml", "plugged")),
            ("indexed", name("ml", "indexed")),
            ("shared", name("ml", "shared")),
            ("monitor", name("gpu-operator", "dcgm")),
        ];
        let plugins = [
            ("plugged", strings(&["GPU-1"])),
            ("indexed", strings(&["3"])),
            ("shared", strings(&["GPU-1::2"])),
        ];
        Sight {
            gpus: strings(&["GPU-0", "GPU-1", "GPU-2", "GPU-3"]),
            holders: holders
                .into_iter()
                .map(|(gpu, holder)| (gpu.to_owned(), BTreeSet::from([holder])))
                .collect(),
            names: names
                .into_iter()
                .map(|(uid, name)| (uid.to_owned(), name))
                .collect(),
            plugins: plugins
                .into_iter()
                .map(|(pod, given)| (name("ml", pod), given))
                .collect(),
            ..Sight::default()
        }
    }

    #[test]
    fn a_process_is_explained_by_its_pod_s_claim_or_plugin_or_trusted_or_neither() {
        use Judgement::{Explained, Trusted as IsTrusted, Unexplained};
        let trusted = Trusted {
            namespaces: strings(&["gpu-operator"]),
            programs: strings(&["/usr/bin/nv-hostengine"]),
        };
        let pod = |uid: &str| Origin::Pod(uid.to_owned());
        for (gpu, origin, program, expected) in [
            ("GPU-0", pod("holder"), "python", Explained),
            ("GPU-1", pod("holder"), "python", Unexplained),
            ("GPU-0", pod("side"), "python", Unexplained),
            ("GPU-2", pod("side"), "python", Explained),
            ("GPU-1", pod("plugged"), "python", Explained),
            ("GPU-0", pod("plugged"), "python", Unexplained),
            ("GPU-1", pod("shared"), "python", Explained),
            ("GPU-3", pod("shared"), "python", Unexplained),
            ("GPU-3", pod("indexed"), "python", Explained),
            // Whose name nobody knows may be any of those.
            ("GPU-1", pod("nameless"), "python", Explained),
            ("GPU-3", pod("monitor"), "dcgm", IsTrusted),
            // A container may call its program what it likes.
            ("GPU-3", pod("side"), "/usr/bin/nv-hostengine", Unexplained),
            ("GPU-3", Origin::Node, "/usr/bin/nv-hostengine", IsTrusted),
            ("GPU-3", Origin::Node, "/tmp/miner", Unexplained),
            ("GPU-0", Origin::Node, "/tmp/miner", Unexplained),
            ("GPU-0", Origin::Unknown, "/tmp/miner", Explained),
            // It is not the holder who hides.
            ("GPU-0", Origin::Hidden, "/tmp/miner", Unexplained),
            (
                "GPU-3",
                Origin::Hidden,
                "/usr/bin/nv-hostengine",
                Unexplained,
            ),
        ] {
            let seen = seen(origin.clone(), program);
            let judged = sight().judge(gpu, &seen, &trusted);
            assert_eq!(judged, expected, "{gpu} {origin:?} {program}");
        }
    }

    #[test]
    fn who_is_unknown_is_unexplained_only_where_nobody_holds_the_gpu() {
        let mut sight = sight();
        let judge = |sight: &Sight| {
            let unknown = seen(Origin::Unknown, "");
            sight.judge("GPU-3", &unknown, &Trusted::default())
        };
        // Somebody has a unit that may be this GPU.
        assert_eq!(judge(&sight), Judgement::Explained);
        sight.plugins.remove(&name("ml", "indexed"));
        assert_eq!(judge(&sight), Judgement::Unexplained);
    }
}
