//! The cluster's own kube-scheduler, as its pods say that it is started.

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
    /// `--config`.
    pub config: Option<String>,
    /// `--kubeconfig`, which kube-scheduler ignores beside `--config`.
    pub kubeconfig: Option<String>,
    /// `--leader-elect`, which holds beside `--config` too.
    pub leader_elect: Option<bool>,
}

impl RunningScheduler {
    /// What a pod says of it.
    pub fn of(pod: &Pod) -> Self {
        let words = words(pod.spec.as_ref());
        let annotations = pod.metadata.annotations.as_ref();
        Self {
            pod: pod.metadata.name.clone().unwrap_or_default(),
            is_static: annotations.is_some_and(|annotations| annotations.contains_key(MIRROR)),
            config: flag(&words, "config").map(str::to_owned),
            kubeconfig: flag(&words, "kubeconfig").map(str::to_owned),
            leader_elect: leader_elect(&words),
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

/// The value of `--NAME=VALUE` or `--NAME VALUE`; the last one counts, as in kube-scheduler.
pub(crate) fn flag<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    let mut value = None;
    for (position, word) in words.iter().enumerate() {
        let Some(flag) = word.strip_prefix("--") else {
            continue;
        };
        match flag.split_once('=') {
            Some((found, text)) if found == name => value = Some(text),
            None if flag == name => value = words.get(position + 1).copied(),
            _ => {}
        }
    }
    value.filter(|value| !value.is_empty())
}

/// What the lists of `--NAME=A,B` or `--NAME A,B` hold. Where it is given several times, all of it counts.
pub(crate) fn items<'a>(words: &[&'a str], name: &str) -> Vec<&'a str> {
    let mut lists: Vec<&str> = Vec::new();
    for (position, word) in words.iter().enumerate() {
        let Some(flag) = word.strip_prefix("--") else {
            continue;
        };
        match flag.split_once('=') {
            Some((found, list)) if found == name => lists.push(list),
            None if flag == name => lists.extend(words.get(position + 1)),
            _ => {}
        }
    }
    let items = lists.into_iter().flat_map(|list| list.split(','));
    items.map(str::trim).collect()
}

/// A flag of truth needs no value.
fn leader_elect(words: &[&str]) -> Option<bool> {
    let mut value = None;
    for word in words {
        match word.strip_prefix("--leader-elect") {
            Some("") => value = Some(true),
            Some(text) if text.starts_with('=') => {
                value = Some(matches!(
                    &text[1..],
                    "1" | "t" | "T" | "true" | "TRUE" | "True"
                ));
            }
            _ => {}
        }
    }
    value
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
                kubeconfig: Some("/etc/kubernetes/scheduler.conf".to_owned()),
                leader_elect: Some(true),
            }
        );
        let apart = RunningScheduler::of(&pod("b", &["--config", "/a.yaml", "--leader-elect"]));
        assert_eq!(apart.config.as_deref(), Some("/a.yaml"));
        assert_eq!(apart.leader_elect, Some(true));
        assert_eq!(apart.kubeconfig, None);
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
