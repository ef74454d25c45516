//! The cluster's own kube-scheduler, as its pods say that it is started.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::{
    refusal::{Reason, Refusal},
    refused,
};

/// The annotation of a pod that a kubelet runs from a file of its machine.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// One replica of the cluster's own kube-scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningScheduler {
    /// Name of its pod.
    pub pod: String,
    /// Whether a kubelet runs it from a file of its machine; such a pod has no ServiceAccount.
    pub is_static: bool,
    /// `--config`, as its pod names the file.
    pub config: Option<String>,
    /// The same file as its machine names it, where the pod has it from there.
    pub config_on_machine: Option<String>,
    /// `--kubeconfig`, which kube-scheduler ignores beside `--config`.
    pub kubeconfig: Option<String>,
    /// `--leader-elect`, which holds beside `--config` too.
    pub leader_elect: Option<bool>,
    /// `--profiling`, which it ignores beside `--config`.
    pub profiling: Option<bool>,
    /// `--contention-profiling`, which it ignores likewise.
    pub contention_profiling: Option<bool>,
}

impl RunningScheduler {
    /// What a pod says of it.
    pub fn of(pod: &Pod) -> Self {
        let words = words(pod.spec.as_ref());
        let annotations = pod.metadata.annotations.as_ref();
        let config = flag(&words, "config");
        Self {
            pod: pod.metadata.name.clone().unwrap_or_default(),
            is_static: annotations.is_some_and(|annotations| annotations.contains_key(MIRROR)),
            config: config.map(str::to_owned),
            config_on_machine: pod
                .spec
                .as_ref()
                .zip(config)
                .and_then(|(pod, path)| on_machine(pod, path)),
            kubeconfig: flag(&words, "kubeconfig").map(str::to_owned),
            leader_elect: truth(&words, "leader-elect"),
            profiling: truth(&words, "profiling"),
            contention_profiling: truth(&words, "contention-profiling"),
        }
    }
}

/// What the containers of a pod are started with, word by word, also where that is one line for a shell.
pub(crate) fn words(pod: Option<&PodSpec>) -> Vec<&str> {
    let containers = pod.into_iter().flat_map(|spec| &spec.containers);
    containers
        .flat_map(|container| [&container.command, &container.args])
        .flatten()
        .flatten()
        .flat_map(|word| words_of(word))
        .collect()
}

/// The words of a line for a shell. A flag is one word, whatever its value has, and so is what is empty.
fn words_of(text: &str) -> impl Iterator<Item = &str> {
    let is_line = !text.starts_with('-');
    let parts = text.split(move |character: char| is_line && character.is_whitespace());
    parts.filter(move |part| !part.is_empty() || text.is_empty())
}

/// The path on its machine of what a pod sees at this one, if a volume brings it from there: the deepest mount counts.
fn on_machine(pod: &PodSpec, path: &str) -> Option<String> {
    let path = Path::new(path);
    let containers = pod.containers.iter();
    let mount = containers
        .flat_map(|container| container.volume_mounts.iter().flatten())
        .filter(|mount| path.starts_with(&mount.mount_path) && mount.sub_path_expr.is_none())
        .max_by_key(|mount| Path::new(&mount.mount_path).components().count())?;
    let mut volumes = pod.volumes.iter().flatten();
    let volume = volumes.find(|volume| volume.name == mount.name)?;
    let parts = [
        Path::new(&volume.host_path.as_ref()?.path),
        Path::new(mount.sub_path.as_deref().unwrap_or_default()),
        path.strip_prefix(&mount.mount_path).ok()?,
    ];
    let found: PathBuf = parts.into_iter().flat_map(Path::components).collect();
    found.into_os_string().into_string().ok()
}

/// One of those that have a configuration: all of them have the same then.
pub fn configured(running: &[RunningScheduler]) -> Result<Option<&RunningScheduler>, Refusal> {
    let Some(first) = running.first() else {
        return Ok(None);
    };
    let differs = running.iter().any(|other| {
        (&other.config, &other.config_on_machine) != (&first.config, &first.config_on_machine)
    });
    if differs {
        let each: Vec<String> = running
            .iter()
            .map(|scheduler| {
                let file = scheduler.config_on_machine.as_deref();
                let file = file.or(scheduler.config.as_deref()).unwrap_or("(none)");
                format!("{}: {file}", scheduler.pod)
            })
            .collect();
        return refused(
            Reason::SchedulersDiffer,
            format!(
                "the schedulers are started with different --config ({}), and one file cannot take the place of all; start them \
                 alike first, or have it printed for one of them by --for other --merge FILE",
                each.join(", ")
            ),
        );
    }
    Ok(Some(first).filter(|scheduler| scheduler.config.is_some()))
}

/// The kubeconfig that all of them are started with.
pub fn kubeconfig(running: &[RunningScheduler]) -> Result<Option<&str>, Refusal> {
    let mut all = running
        .iter()
        .map(|scheduler| scheduler.kubeconfig.as_deref());
    let first = all.next().flatten();
    if all.any(|other| other != first) {
        let each: Vec<String> = running
            .iter()
            .map(|scheduler| {
                let file = scheduler.kubeconfig.as_deref().unwrap_or("(none)");
                format!("{}: {file}", scheduler.pod)
            })
            .collect();
        return refused(
            Reason::SchedulersDiffer,
            format!(
                "the schedulers are started with different --kubeconfig ({}), and one configuration cannot be right for all; say \
                 which it is for by --scheduler-kubeconfig",
                each.join(", ")
            ),
        );
    }
    Ok(first)
}

/// Where `--NAME` stands, each time with its value if that follows by `=`.
fn given<'a>(words: &[&'a str], name: &str) -> Vec<(usize, Option<&'a str>)> {
    let flags = words.iter().enumerate().filter_map(|(position, word)| {
        let flag = word.strip_prefix("--")?;
        let (found, value) = flag
            .split_once('=')
            .map_or((flag, None), |(found, value)| (found, Some(value)));
        (found == name).then_some((position, value))
    });
    flags.collect()
}

/// The value of `--NAME=VALUE` or `--NAME VALUE`; the last one counts, as in kube-scheduler.
pub(crate) fn flag<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    let (position, value) = given(words, name).pop()?;
    let value = value.or_else(|| words.get(position + 1).copied());
    value.filter(|value| !value.is_empty())
}

/// What the lists of `--NAME=A,B` or `--NAME A,B` hold. Where it is given several times, all of it counts.
pub(crate) fn items<'a>(words: &[&'a str], name: &str) -> Vec<&'a str> {
    let given = given(words, name).into_iter();
    let lists =
        given.filter_map(|(position, list)| list.or_else(|| words.get(position + 1).copied()));
    let items = lists.flat_map(|list| list.split(','));
    items.map(str::trim).collect()
}

/// The value of `--NAME` or `--NAME=VALUE`: a flag of truth needs none.
fn truth(words: &[&str], name: &str) -> Option<bool> {
    let (_, value) = given(words, name).pop()?;
    Some(value.is_none_or(|value| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, command: &[&str]) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": {MIRROR: "hash"}},
            "spec": {"containers": [{"name": "kube-scheduler", "command": command}]},
        }))
        .unwrap()
    }

    #[test]
    fn the_flags_of_a_pod_of_kubeadm_are_read_in_either_spelling() {
        let kubeadm = RunningScheduler::of(&pod(
            "kube-scheduler-a",
            &[
                "kube-scheduler",
                "--authentication-kubeconfig=/etc/kubernetes/other.conf",
                "--kubeconfig=/etc/kubernetes/scheduler.conf",
                "--leader-elect=true",
                "--leader-elect-lease-duration=15s",
            ],
        ));
        assert_eq!(
            kubeadm,
            RunningScheduler {
                pod: "kube-scheduler-a".to_owned(),
                is_static: true,
                config: None,
                config_on_machine: None,
                kubeconfig: Some("/etc/kubernetes/scheduler.conf".to_owned()),
                leader_elect: Some(true),
                profiling: None,
                contention_profiling: None,
            }
        );
        let apart = RunningScheduler::of(&pod("b", &["--config", "/a.yaml", "--leader-elect"]));
        assert_eq!(apart.config.as_deref(), Some("/a.yaml"));
        assert_eq!(apart.leader_elect, Some(true));
        assert_eq!(apart.kubeconfig, None);
        let hardened = RunningScheduler::of(&pod("b", &["--profiling=false"]));
        assert_eq!(
            (hardened.profiling, hardened.contention_profiling),
            (Some(false), None)
        );
        let last = RunningScheduler::of(&pod("c", &["--config=/a", "--config=", "--config"]));
        assert_eq!(last.config, None);
    }

    #[test]
    fn flags_in_a_line_for_a_shell_are_seen_and_values_with_blanks_stay_whole() {
        let line = "exec /usr/local/bin/kube-scheduler --config=/a.yaml\n  --kubeconfig /b 1>>/var/log/a.log";
        let shell = RunningScheduler::of(&pod("a", &["/bin/sh", "-c", line]));
        assert_eq!(shell.config.as_deref(), Some("/a.yaml"));
        assert_eq!(shell.kubeconfig.as_deref(), Some("/b"));
        let pod = pod("b", &["--a=b --config=/c", "", "--config", ""]);
        let words = words(pod.spec.as_ref());
        assert_eq!(words, ["--a=b --config=/c", "", "--config", ""]);
        assert_eq!(flag(&words, "config"), None);
    }

    #[test]
    fn a_configuration_is_found_on_the_machine_where_the_deepest_mount_says() {
        let found = |config: &str| {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": "kube-scheduler-a"},
                "spec": {
                    "containers": [{
                        "name": "kube-scheduler",
                        "command": ["kube-scheduler", format!("--config={config}")],
                        "volumeMounts": [
                            {"name": "all", "mountPath": "/etc/kubernetes"},
                            {"name": "own", "mountPath": "/etc/kubernetes/own/"},
                            {"name": "part", "mountPath": "/part", "subPath": "of/it"},
                            {"name": "file", "mountPath": "/scheduler.yaml"},
                            {"name": "map", "mountPath": "/map"},
                        ],
                    }],
                    "volumes": [
                        {"name": "all", "hostPath": {"path": "/etc/kubernetes"}},
                        {"name": "own", "hostPath": {"path": "/srv/scheduler/"}},
                        {"name": "part", "hostPath": {"path": "/srv"}},
                        {"name": "file", "hostPath": {"path": "/srv/one.yaml"}},
                        {"name": "map", "configMap": {"name": "scheduler"}},
                    ],
                },
            }))
            .unwrap();
            RunningScheduler::of(&pod).config_on_machine
        };
        for (config, expected) in [
            ("/etc/kubernetes/a.yaml", Some("/etc/kubernetes/a.yaml")),
            ("/etc/kubernetes/own/a.yaml", Some("/srv/scheduler/a.yaml")),
            (
                "/etc/kubernetes/owner.yaml",
                Some("/etc/kubernetes/owner.yaml"),
            ),
            ("/part/a.yaml", Some("/srv/of/it/a.yaml")),
            ("/scheduler.yaml", Some("/srv/one.yaml")),
            ("/map/a.yaml", None),
            ("/in/the/image.yaml", None),
        ] {
            assert_eq!(found(config).as_deref(), expected, "{config}");
        }
    }

    #[test]
    fn schedulers_of_which_only_one_has_a_configuration_are_named() {
        let of = |name: &str, flags: &[&str]| RunningScheduler::of(&pod(name, flags));
        let one = of("a", &["--config=/x"]);
        assert_eq!(configured(&[]), Ok(None));
        assert_eq!(configured(&[of("a", &[])]), Ok(None));
        let alike = [one.clone(), of("b", &["--config=/x"])];
        assert_eq!(configured(&alike), Ok(Some(&one)));
        let refusal = configured(&[one, of("b", &[])]).unwrap_err();
        assert_eq!(refusal.reason, Reason::SchedulersDiffer);
        assert!(refusal.text.contains("a: /x, b: (none)"), "{refusal}");
    }

    #[test]
    fn schedulers_that_are_started_with_different_kubeconfigs_are_named() {
        let of = |name: &str, file: &str| {
            RunningScheduler::of(&pod(name, &[&format!("--kubeconfig={file}")]))
        };
        assert_eq!(kubeconfig(&[]), Ok(None));
        assert_eq!(kubeconfig(&[of("a", "/x"), of("b", "/x")]), Ok(Some("/x")));
        let refusal = kubeconfig(&[of("a", "/x"), of("b", "/y")]).unwrap_err();
        assert_eq!(refusal.reason, Reason::SchedulersDiffer);
        assert!(refusal.text.contains("a: /x, b: /y"), "{refusal}");
    }
}
