//! What the chart's notes tell an operator to do can be done: rendered by real Helm, and each command looked at.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use clap::Parser;
use muster_controller::{
    args::{self, Cli},
    scheduler_config::target::Target,
};
use serde_json::Value;

static HELM: LazyLock<PathBuf> = LazyLock::new(|| {
    let build = Command::new(root().join("tests/helm/build.sh")).output();
    let build = build.expect("tests/helm/build.sh runs");
    PathBuf::from(String::from_utf8(build.stdout).unwrap().trim()).join("helm")
});

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The objects and the notes of an install of this name, in this namespace, with these values.
fn installed(release: &str, namespace: &str, values: &str) -> (Vec<Value>, String) {
    let output = Command::new(&*HELM)
        .args(["install", release, "--namespace", namespace])
        .args(["--dry-run=client", "--set", values])
        .arg(root().join("deploy/helm/muster"))
        .env("HOME", env!("CARGO_TARGET_TMPDIR"))
        .output()
        .expect("helm runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{values}: {errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (manifest, notes) = text.split_once("\nNOTES:\n").expect("there are notes");
    let (_, manifest) = manifest
        .split_once("\nMANIFEST:\n")
        .expect("there is a manifest");
    let objects = manifest
        .split("\n---\n")
        .map(|document| {
            serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"))
        })
        .filter(|object: &Value| !object.is_null())
        .collect();
    (objects, notes.to_owned())
}

/// The commands of the notes: what is indented by three.
fn commands(notes: &str) -> Vec<&str> {
    let lines = notes.lines().filter_map(|line| line.strip_prefix("   "));
    lines.filter(|line| !line.starts_with(' ')).collect()
}

/// The arguments of each `scheduler-config` that the notes name, whose pod and program the chart makes.
fn scheduler_configs(
    objects: &[Value],
    notes: &str,
    namespace: &str,
) -> Vec<args::SchedulerConfigArgs> {
    let mut found = Vec::new();
    for command in commands(notes) {
        let words: Vec<&str> = command.split_whitespace().collect();
        let Some(start) = words.iter().position(|word| *word == "--") else {
            continue;
        };
        let name = words
            .iter()
            .find_map(|word| word.strip_prefix("deploy/"))
            .unwrap();
        let deployment = objects
            .iter()
            .find(|object| object["kind"] == "Deployment" && object["metadata"]["name"] == name)
            .unwrap_or_else(|| panic!("no Deployment {name}: {command}"));
        assert_eq!(deployment["metadata"]["namespace"], namespace);
        assert!(command.contains(&format!("-n {namespace} ")), "{command}");
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["command"][0], words[start + 1], "{command}");
        let reads_input = words.contains(&"-");
        assert_eq!(
            words.contains(&"-i"),
            reads_input,
            "standard input is passed on: {command}"
        );
        // What follows is the shell's.
        let own = words[start + 1..]
            .iter()
            .take_while(|word| !["<", ">"].contains(word));
        let cli = Cli::try_parse_from(own).unwrap_or_else(|error| panic!("{command}: {error}"));
        let Some(args::Command::SchedulerConfig(args)) = cli.command else {
            panic!("{command}: is not scheduler-config")
        };
        let names: Vec<&str> = container["env"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|variable| variable["name"].as_str())
            .collect();
        for needed in [
            "MUSTER_NAMESPACE",
            "MUSTER_EXTENDER_SERVICE",
            "MUSTER_EXTENDER_CA_SECRET",
        ] {
            assert!(names.contains(&needed), "{needed} spares a flag");
        }
        found.push(args);
    }
    found
}

#[test]
fn each_scheduler_config_that_the_notes_name_is_one_that_this_program_takes_in_its_pod() {
    for (release, namespace, values) in [
        ("muster", "muster-system", "mode=Observe"),
        ("muster", "muster-system", "mode=Enforce"),
        ("second", "gpus", "mode=Enforce,fullnameOverride=gangs"),
    ] {
        let (objects, notes) = installed(release, namespace, values);
        let found = scheduler_configs(&objects, &notes, namespace);
        let [plain, merging, managed] = &found[..] else {
            panic!("{values}: {notes}")
        };
        assert!(plain.merge.is_none() && plain.target.is_none() && plain.extender_url.is_none());
        assert_eq!(merging.merge.as_deref(), Some(Path::new("-")));
        assert_eq!(managed.target, Some(Target::Managed));
        assert_eq!(
            notes.contains("Mode is Observe"),
            values.starts_with("mode=Observe")
        );
    }
}

#[test]
fn where_there_is_nothing_to_configure_the_notes_name_no_configuration() {
    for (values, word) in [
        (
            "mode=Enforce,scheduler.enabled=true",
            "The second scheduler muster-scheduler",
        ),
        (
            "mode=Enforce,scheduler.enabled=true,schedulerName=gpus",
            "The second scheduler gpus",
        ),
        (
            "mode=Enforce,extender.enabled=false",
            "kube-scheduler stays as it is",
        ),
    ] {
        let (_, notes) = installed("muster", "muster-system", values);
        assert!(!notes.contains("scheduler-config"), "{values}: {notes}");
        assert!(notes.contains(word), "{values}: {notes}");
    }
}

/// Without the label the driver runs nowhere.
#[test]
fn nodes_get_the_label_by_which_the_driver_chooses_them() {
    let (objects, notes) = installed("muster", "muster-system", "mode=Observe");
    let driver = objects
        .iter()
        .find(|object| object["kind"] == "DaemonSet")
        .unwrap();
    let selector = driver["spec"]["template"]["spec"]["nodeSelector"]
        .as_object()
        .unwrap();
    assert!(!selector.is_empty(), "nodes of other drivers are let be");
    for (key, value) in selector {
        let command = format!("kubectl label node NODE {key}={}", value.as_str().unwrap());
        assert!(commands(&notes).contains(&command.as_str()), "{notes}");
    }
}

/// Its rights, its name and its configuration are the chart's; this is what the operator is told to look at.
#[test]
fn pods_and_tests_that_the_notes_name_exist() {
    let values = "mode=Enforce,scheduler.enabled=true,test.namespace=research";
    let (objects, notes) = installed("muster", "muster-system", values);
    let label = "app.kubernetes.io/component=scheduler";
    assert!(
        commands(&notes)
            .iter()
            .any(|command| command.ends_with(label)),
        "{notes}"
    );
    let labelled = objects.iter().any(|object| {
        object["kind"] == "Deployment"
            && object["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
                == "scheduler"
    });
    assert!(labelled);
    assert!(
        commands(&notes).contains(&"helm test muster --namespace muster-system"),
        "{notes}"
    );
    let (_, without) = installed(
        "muster",
        "muster-system",
        "mode=Enforce,test.preflight=false",
    );
    assert!(
        !commands(&without)
            .iter()
            .any(|command| command.starts_with("helm test")),
        "{without}"
    );
    // Preflight is a test that needs no namespace.
    let (_, preflight) = installed("muster", "muster-system", "mode=Enforce");
    assert!(
        commands(&preflight).contains(&"helm test muster --namespace muster-system"),
        "{preflight}"
    );
}

/// The values that are printed for a managed control plane are values of the chart.
#[test]
fn what_is_printed_for_a_managed_control_plane_installs_a_second_scheduler() {
    let output = Command::new(env!("CARGO_BIN_EXE_muster-controller"))
        .args(["scheduler-config", "--for", "managed"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("managed-values.yaml");
    std::fs::write(&file, &output.stdout).unwrap();
    let chart = Command::new(&*HELM)
        .args(["template", "muster", "--kube-version", "1.37.1", "--values"])
        .arg(&file)
        .arg(root().join("deploy/helm/muster"))
        .env("HOME", env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&chart.stderr);
    assert!(chart.status.success(), "{errors}");
    assert!(String::from_utf8_lossy(&chart.stdout).contains("name: muster-scheduler"));
}
