//! What `scheduler-config` prints, whole, for each kind of control plane; and what it refuses to print.
//!
//! `MUSTER_WRITE_EXPECTED=1` writes the expected files anew, to be read before they are committed.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{fs, path::Path};

use clap::Parser;
use k8s_openapi::api::core::v1::{Pod, Service};
use muster_cluster::managed::ManagedPods;
use muster_controller::{
    args::{Cli, Command, SchedulerConfigArgs},
    scheduler_config::{
        self, Request, discovery, document,
        extender::Certificates,
        guide,
        refusal::{Reason, Refusal},
        running::RunningScheduler,
        target,
    },
};
use serde_json::{Value, json};

fn directory() -> &'static Path {
    Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/scheduler_config"
    ))
}

fn args(flags: &[&str]) -> SchedulerConfigArgs {
    let command = ["muster-controller", "scheduler-config"];
    let cli = Cli::try_parse_from(command.iter().chain(flags)).unwrap();
    let Some(Command::SchedulerConfig(args)) = cli.command else {
        panic!("scheduler-config")
    };
    args
}

/// The extender's Service, as the chart makes it.
fn service() -> Service {
    serde_json::from_value(json!({
        "metadata": {"namespace": "muster-system", "name": "muster-extender"},
        "spec": {"clusterIP": "10.96.7.21", "ports": [
            {"name": "https", "port": 443}, {"name": "admin", "port": 8080}]},
    }))
    .unwrap()
}

/// A pod of kube-scheduler on this machine, as kubeadm makes it, with further flags.
fn kubeadm(machine: &str, flags: &[&str]) -> RunningScheduler {
    let mut command = vec![
        "kube-scheduler",
        "--authentication-kubeconfig=/etc/kubernetes/scheduler.conf",
        "--authorization-kubeconfig=/etc/kubernetes/scheduler.conf",
        "--bind-address=127.0.0.1",
        "--kubeconfig=/etc/kubernetes/scheduler.conf",
        "--leader-elect=true",
    ];
    command.extend(flags);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": format!("kube-scheduler-{machine}"),
            "annotations": {"kubernetes.io/config.mirror": "hash"},
        },
        "spec": {
            "containers": [{
                "name": "kube-scheduler",
                "command": command,
                "volumeMounts": [
                    {"name": "kubeconfig", "mountPath": "/etc/kubernetes/scheduler.conf"},
                    {"name": "scheduler", "mountPath": "/etc/kubernetes/scheduler"},
                    {"name": "elsewhere", "mountPath": "/etc/scheduler"},
                ],
            }],
            "volumes": [
                {"name": "kubeconfig", "hostPath": {"path": "/etc/kubernetes/scheduler.conf"}},
                {"name": "scheduler", "hostPath": {"path": "/etc/kubernetes/scheduler"}},
                {"name": "elsewhere", "hostPath": {"path": "/srv/scheduler"}},
            ],
        },
    }))
    .unwrap();
    RunningScheduler::of(&pod)
}

/// What is printed with these flags, where these schedulers run, for this file of `--merge`.
fn printed(
    flags: &[&str],
    running: &[RunningScheduler],
    existing: Option<&[u8]>,
) -> Result<String, Refusal> {
    let mut args = args(flags);
    if existing.is_some() {
        args.merge = Some("scheduler.yaml".into());
    }
    let existing = existing.map(document::read).transpose()?;
    let target = target::choose(args.target, running, args.describes_a_scheduler())?;
    let installation = match &args.extender_url {
        Some(url) => {
            let mut found = discovery::described_by(&[service()], &args, target)?;
            found.endpoint.url.clone_from(url);
            found.endpoint.server_name.clone_from(&args.server_name);
            found
        }
        None => discovery::described_by(&[service()], &args, target)?,
    };
    let certificates = match &args.tls_files {
        Some(directory) => Certificates::files(directory)?,
        None => Certificates::Inline {
            bundle: "authority".to_owned(),
            certificate: "certificate".to_owned(),
            key: "key".to_owned(),
        },
    };
    scheduler_config::configuration(&Request {
        target,
        endpoint: installation.endpoint.clone(),
        installation,
        certificates,
        running: match target {
            target::Target::Second => Vec::new(),
            _ => running.to_vec(),
        },
        existing,
        managed: ManagedPods::new(args.extended_resources.listed()).unwrap(),
        settings: args.settings(),
    })
}

fn compare(name: &str, text: &str) {
    let path = directory().join(format!("{name}.expected.yaml"));
    if std::env::var_os("MUSTER_WRITE_EXPECTED").is_some() {
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{name}");
}

/// Name of the expected file, flags, what runs, and the file of `--merge`.
type Case<'a> = (
    &'a str,
    &'a [&'a str],
    &'a [RunningScheduler],
    Option<&'a str>,
);

#[test]
fn what_is_printed_for_each_kind_of_control_plane_is_as_expected_to_the_letter() {
    let two = [kubeadm("a", &[]), kubeadm("b", &[])];
    let configured = [kubeadm(
        "a",
        &["--config=/etc/kubernetes/scheduler/config.yaml"],
    )];
    let files: [Case<'_>; 8] = [
        ("kubeadm", &[], &two, None),
        (
            "kubeadm-files",
            &["--tls-files=/etc/kubernetes/muster"],
            &two,
            None,
        ),
        (
            "kubeadm-merged",
            &[],
            &configured,
            Some("profiles-and-extender"),
        ),
        (
            "kubeadm-merged-sparse",
            &["--burst=300"],
            &two,
            Some("sparse"),
        ),
        (
            "second",
            &["--for=second", "--scheduler-name=gpu-scheduler"],
            &two,
            None,
        ),
        // What the chart runs; a test of the chart compares them.
        (
            "second-files",
            &["--for=second", "--tls-files=/etc/muster/extender"],
            &two,
            None,
        ),
        (
            "other",
            &[
                "--extender-url=https://127.0.0.1:9443/scheduler/",
                "--server-name=muster-extender",
                "--scheduler-kubeconfig=/var/lib/scheduler.conf",
                "--leader-elect=false",
                "--pod-max-backoff-seconds=2",
            ],
            &[],
            None,
        ),
        ("other-merged", &[], &[], Some("profiles-and-extender")),
    ];
    for (name, flags, running, existing) in files {
        let existing =
            existing.map(|file| fs::read(directory().join(format!("{file}.yaml"))).unwrap());
        let text = printed(flags, running, existing.as_deref()).unwrap();
        compare(name, &text);
    }
    compare("managed", &guide::managed_control_plane());
}

/// What a pod calls its file is a path of the pod; the way to it is one of the machine.
#[test]
fn a_configuration_that_exists_is_replaced_where_the_machine_has_it() {
    let file = format!("{HEAD}{CONNECTED}");
    for (config, place) in [
        (
            "/etc/scheduler/own.yaml",
            "in place of /srv/scheduler/own.yaml, which the pod reads already as /etc/scheduler/own.yaml.",
        ),
        (
            "/own.yaml",
            "in place of what the pod reads as /own.yaml, which it has from no directory of the machine.",
        ),
    ] {
        let flag = format!("--config={config}");
        let running = [kubeadm("a", &[&flag]), kubeadm("b", &[&flag])];
        let text = printed(&[], &running, Some(file.as_bytes())).unwrap();
        assert!(text.contains(place), "{text}");
    }
}

/// It has neither kubeadm's manifests nor its ConfigMap, and undoes at its next start what is changed in manifests.
#[test]
fn on_rke2_the_way_is_by_its_own_configuration() {
    const KUBECONFIG: &str = "/var/lib/rancher/rke2/server/cred/scheduler.kubeconfig";
    let flag = format!("--kubeconfig={KUBECONFIG}");
    let rke2 = |further: &[&str]| kubeadm("a", &[&[flag.as_str()][..], further].concat());
    let first = printed(&[], &[rke2(&[])], None).unwrap();
    let config = "--config=/etc/kubernetes/muster/scheduler.yaml";
    let existing = format!("{HEAD}{CONNECTED}");
    let merged = printed(&[], &[rke2(&[config])], Some(existing.as_bytes())).unwrap();
    for (text, parts) in [
        (
            &first,
            [
                "/etc/rancher/rke2/config.yaml",
                "kube-scheduler-arg:          [config=/etc/kubernetes/muster/scheduler.yaml]",
                r#"kube-scheduler-extra-mount:  ["/etc/kubernetes/muster:/etc/kubernetes/muster"]"#,
                KUBECONFIG,
            ]
            .as_slice(),
        ),
        (
            &merged,
            &["move /var/lib/rancher/rke2/agent/pod-manifests/kube-scheduler.yaml away"],
        ),
    ] {
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
        for of_kubeadm in ["/etc/kubernetes/manifests", "kubeadm-config"] {
            assert!(!text.contains(of_kubeadm), "{of_kubeadm}: {text}");
        }
    }
}

/// Whatever was in the file is in the output, but for what Muster adds.
#[test]
fn what_exists_is_kept_to_the_last_field_that_nobody_here_knows() {
    let file = fs::read(directory().join("profiles-and-extender.yaml")).unwrap();
    let mut before = document::read(&file).unwrap();
    let text = printed(&[], &[], Some(&file)).unwrap();
    let mut after = document::read(text.as_bytes()).unwrap();
    let extenders = after["extenders"].as_array_mut().unwrap();
    let ours = extenders.pop().unwrap();
    assert_eq!(
        ours["managedResources"],
        json!([{"name": "muster.dev/managed"}])
    );
    // The client's limits were not in it.
    before["clientConnection"]["qps"] = json!(500);
    before["clientConnection"]["burst"] = json!(1000);
    assert_eq!(after, before);
    assert_eq!(
        after["aFieldOfTheFuture"],
        json!({"kept": [1, 2.5, null, true]})
    );
}

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
const CONNECTED: &str = "clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}\n";

#[test]
fn what_would_leave_the_cluster_without_scheduling_is_refused_and_the_refusal_says_what_works() {
    use Reason::{
        ExistingConfiguration, InvalidField, MissingKubeconfig, SchedulerNameTaken,
        SchedulerNotFound, SchedulersDiffer, SeveralActive, UnresolvableUrl,
    };
    let one = vec![kubeadm("a", &[])];
    let two = vec![kubeadm("a", &[]), kubeadm("b", &[])];
    let silent = vec![RunningScheduler {
        pod: "kube-scheduler-a".to_owned(),
        is_static: true,
        ..RunningScheduler::default()
    }];
    let not_electing = |machine| kubeadm(machine, &["--leader-elect=false"]);
    let unflagged = |machine| RunningScheduler {
        leader_elect: None,
        ..kubeadm(machine, &[])
    };
    let cases: Vec<(&[&str], Vec<RunningScheduler>, Reason, &str)> = vec![
        (&[], vec![], SchedulerNotFound, "--for managed"),
        (&["--for=kubeadm"], vec![], SchedulerNotFound, "--for other"),
        (
            &["--for=other"],
            vec![],
            MissingKubeconfig,
            "--scheduler-kubeconfig",
        ),
        (
            &[],
            silent.clone(),
            MissingKubeconfig,
            "/etc/kubernetes/scheduler.conf",
        ),
        (
            &["--in-cluster"],
            silent,
            MissingKubeconfig,
            "a static pod never has",
        ),
        (
            &["--scheduler-kubeconfig=scheduler.conf"],
            one.clone(),
            InvalidField,
            "absolute path",
        ),
        (
            &[],
            vec![kubeadm("a", &["--config=/etc/kubernetes/own.yaml"])],
            ExistingConfiguration,
            "--config=/etc/kubernetes/own.yaml",
        ),
        (
            &[],
            vec![
                kubeadm("a", &[]),
                kubeadm("b", &["--kubeconfig=/other.conf"]),
            ],
            SchedulersDiffer,
            "kube-scheduler-b: /other.conf",
        ),
        // One has the extender already: the file is no place on the machine of the other.
        (
            &[],
            vec![
                kubeadm("a", &["--config=/etc/kubernetes/own.yaml"]),
                kubeadm("b", &[]),
            ],
            SchedulersDiffer,
            "kube-scheduler-b: (none)",
        ),
        (
            &["--extender-url=https://muster-extender.muster-system.svc:443/scheduler"],
            one.clone(),
            UnresolvableUrl,
            "cluster IP",
        ),
        (
            &["--extender-url=https://muster-extender.muster-system.svc.cluster.local/scheduler"],
            one.clone(),
            UnresolvableUrl,
            "cluster IP",
        ),
        (
            &["--extender-url=http://10.0.0.1:1/scheduler"],
            one.clone(),
            InvalidField,
            "https://",
        ),
        (
            &["--extender-url=https:///scheduler"],
            one.clone(),
            InvalidField,
            "--extender-url",
        ),
        (
            &["--leader-elect=false"],
            vec![not_electing("a"), not_electing("b")],
            SeveralActive,
            "take that flag from it",
        ),
        // One of two is enough: it takes pods without waiting for the lease of the other.
        (
            &[],
            vec![kubeadm("a", &[]), not_electing("b")],
            SeveralActive,
            "kube-scheduler-b is started with --leader-elect=false and 2 schedulers",
        ),
        (
            &["--leader-elect=false"],
            vec![unflagged("a"), unflagged("b")],
            SeveralActive,
            "say --leader-elect=true",
        ),
        (
            &["--tls-files=muster"],
            one.clone(),
            InvalidField,
            "absolute path",
        ),
        (&["--weight=0"], one.clone(), InvalidField, "at least 1"),
        // An int32 of kube-scheduler.
        (
            &["--burst=3000000000"],
            one.clone(),
            InvalidField,
            "clientConnection.burst 3000000000",
        ),
        (
            &["--parallelism=0"],
            one.clone(),
            InvalidField,
            "parallelism 0",
        ),
        (
            &[
                "--pod-initial-backoff-seconds=5",
                "--pod-max-backoff-seconds=2",
            ],
            one,
            InvalidField,
            "initial <= max",
        ),
        (
            &["--for=second", "--scheduler-name=default-scheduler"],
            two,
            SchedulerNameTaken,
            "--scheduler-name",
        ),
    ];
    for (flags, running, reason, word) in cases {
        let refusal = printed(flags, &running, None).unwrap_err();
        assert_eq!(refusal.reason, reason, "{flags:?}: {refusal}");
        assert!(refusal.text.contains(word), "{flags:?}: {refusal}");
    }
}

#[test]
fn a_file_with_which_the_scheduler_would_not_start_or_muster_would_not_work_is_refused() {
    use Reason::{
        ExtenderBinds, ExtenderExists, ExtenderManagesDevices, InvalidField, InvalidFile,
        MissingProfile, PluginDisabled, UnknownVersion,
    };
    let extender = |fields: &str| {
        format!("{HEAD}{CONNECTED}extenders: [{{urlPrefix: 'https://a', {fields}}}]\n")
    };
    let profile = |plugins: &str| format!("{HEAD}{CONNECTED}profiles: [{{plugins: {plugins}}}]\n");
    let with = |fields: &str| format!("{HEAD}{CONNECTED}{fields}\n");
    let bomb: String = (1..40).fold("a0: &a0 [x, x]\n".to_owned(), |text, level| {
        let below = level - 1;
        format!("{text}a{level}: &a{level} [*a{below}, *a{below}]\n")
    });
    let cases: Vec<(String, Reason, &str)> = vec![
        // Not what it should be.
        (
            HEAD.replace("/v1", "/v1beta3"),
            UnknownVersion,
            "kubescheduler.config.k8s.io/v1beta3",
        ),
        (
            HEAD.replace("KubeSchedulerConfiguration", "ConfigMap"),
            UnknownVersion,
            "ConfigMap",
        ),
        (String::new(), UnknownVersion, "(none)"),
        ("[]".to_owned(), UnknownVersion, "(none)"),
        ("just text".to_owned(), UnknownVersion, "(none)"),
        // Hostile YAML.
        (format!("{HEAD}---\n{HEAD}"), InvalidFile, "document"),
        (format!("{HEAD}kind: Other\n"), InvalidFile, "kind"),
        (format!("{HEAD}{bomb}"), InvalidFile, "--merge"),
        (
            format!("{HEAD}a: {}", "[".repeat(5000)),
            InvalidFile,
            "--merge",
        ),
        (format!("{HEAD}a: *nowhere\n"), InvalidFile, "--merge"),
        (
            format!("{HEAD}a: !include /etc/passwd\n"),
            InvalidFile,
            "--merge",
        ),
        (format!("{HEAD}a: .nan\n"), InvalidFile, "--merge"),
        (format!("{HEAD}a: \"unterminated\n"), InvalidFile, "--merge"),
        (format!("{HEAD}? [a, b]\n: c\n"), InvalidFile, "--merge"),
        (
            format!("{HEAD}a: {}", "x".repeat(document::LARGEST_BYTES)),
            InvalidFile,
            "bytes",
        ),
        // Wrong types and values.
        (
            with("leaderElection: {leaderElect: sometimes}"),
            InvalidField,
            "leaderElection.leaderElect",
        ),
        (with("leaderElection: []"), InvalidField, "leaderElection"),
        (
            format!("{HEAD}clientConnection: here"),
            InvalidField,
            "clientConnection",
        ),
        (
            format!("{HEAD}clientConnection: {{kubeconfig: 7}}"),
            InvalidField,
            "clientConnection.kubeconfig",
        ),
        (with("profiles: {}"), InvalidField, "profiles"),
        (with("profiles: [7]"), InvalidField, "profiles[0]"),
        (
            with("profiles: [{schedulerName: own}, {schedulerName: own}]"),
            InvalidField,
            "two of it",
        ),
        // kube-scheduler names a profile only if that is the only one.
        (
            with("profiles: [{}, {schedulerName: own}]"),
            InvalidField,
            "profiles[0].schedulerName",
        ),
        (
            with("profiles: [{schedulerName: default-scheduler}, {schedulerName: ''}]"),
            InvalidField,
            "profiles[1].schedulerName",
        ),
        (
            with(
                "profiles: [{schedulerName: default-scheduler}, {schedulerName: own, plugins: {queueSort: {enabled: [{name: \
                 Own}], disabled: [{name: '*'}]}}}]",
            ),
            InvalidField,
            "profiles[1].plugins.queueSort",
        ),
        (
            with("profiles: [{percentageOfNodesToScore: 101}]"),
            InvalidField,
            "profiles[0].percentageOfNodesToScore 101",
        ),
        (
            format!("{HEAD}clientConnection: {{burst: -1}}"),
            InvalidField,
            "clientConnection.burst -1",
        ),
        (
            format!("{HEAD}clientConnection: {{burst: 1.5}}"),
            InvalidField,
            "clientConnection.burst 1.5",
        ),
        (with("extenders: none"), InvalidField, "extenders"),
        (with("extenders: [null]"), InvalidField, "extenders[0]"),
        (with("parallelism: many"), InvalidField, "parallelism"),
        (
            with("percentageOfNodesToScore: 101"),
            InvalidField,
            "from 0 to 100",
        ),
        (
            with("podInitialBackoffSeconds: 11"),
            InvalidField,
            "podMaxBackoffSeconds 10",
        ),
        // Other extenders.
        (
            extender("managedResources: [{name: muster.dev/managed}]"),
            ExtenderExists,
            "extenders[0] (https://a)",
        ),
        (
            extender("managedResources: [{name: nvidia.com/gpu}]"),
            ExtenderManagesDevices,
            "nvidia.com/gpu",
        ),
        (
            extender("managedResources: [{name: nvidia.com/mig-1g.10gb}]"),
            ExtenderManagesDevices,
            "nvidia.com/mig-1g.10gb",
        ),
        (extender("bindVerb: bind"), ExtenderBinds, "bindVerb"),
        // Profiles.
        (
            with("profiles: [{schedulerName: own}]"),
            MissingProfile,
            "default-scheduler",
        ),
        (
            profile("{multiPoint: {disabled: [{name: '*'}]}}"),
            PluginDisabled,
            "SchedulingGates",
        ),
        (
            profile("{filter: {disabled: [{name: NodeAffinity}]}}"),
            PluginDisabled,
            "NodeAffinity",
        ),
        (
            profile("{preBind: {disabled: [{name: '*'}]}}"),
            PluginDisabled,
            "DynamicResources",
        ),
    ];
    let running = [kubeadm("a", &[])];
    for (file, reason, word) in cases {
        let refusal = printed(&[], &running, Some(file.as_bytes())).unwrap_err();
        let shown: String = file.chars().skip(HEAD.len()).take(120).collect();
        assert_eq!(refusal.reason, reason, "{shown}: {refusal}");
        assert!(refusal.text.contains(word), "{shown}: {refusal}");
    }
    let refusal = printed(&[], &running, Some(b"\xff\xfe")).unwrap_err();
    assert_eq!(refusal.reason, InvalidFile);
}

#[test]
fn a_second_scheduler_never_shares_the_lease_of_the_first() {
    let lease = |name: &str| {
        format!("{HEAD}leaderElection: {{resourceName: {name}, resourceNamespace: kube-system}}\n")
    };
    let flags = ["--for=second"];
    let refusal = printed(&flags, &[], Some(lease("kube-scheduler").as_bytes())).unwrap_err();
    assert_eq!(refusal.reason, Reason::SharedLease);
    assert!(printed(&flags, &[], Some(lease("own").as_bytes())).is_ok());
    // Empty is the lease of the first for kube-scheduler.
    let empty = format!("{HEAD}leaderElection: {{resourceName: '', resourceNamespace: ''}}\n");
    let text = printed(&flags, &[], Some(empty.as_bytes())).unwrap();
    let read = document::read(text.as_bytes()).unwrap();
    assert_eq!(read["leaderElection"]["resourceName"], "muster-scheduler");
    assert_eq!(read["leaderElection"]["resourceNamespace"], "muster-system");
}

/// Hardened control planes switch profiling off by a flag, which kube-scheduler ignores beside a file.
#[test]
fn what_flags_say_that_are_ignored_from_now_on_stands_in_the_file() {
    let profiling = |flags: &[&str], fields: Option<&str>| {
        let file = fields.map(|fields| format!("{HEAD}{CONNECTED}{fields}\n"));
        let running = [kubeadm("a", flags), kubeadm("b", flags)];
        let text = printed(&[], &running, file.as_deref().map(str::as_bytes)).unwrap();
        let read = document::read(text.as_bytes()).unwrap();
        (
            read["enableProfiling"].clone(),
            read["enableContentionProfiling"].clone(),
        )
    };
    let (off, on) = (json!(false), json!(true));
    let unsaid = || (Value::Null, Value::Null);
    assert_eq!(profiling(&[], None), unsaid());
    let flags = ["--profiling=false"];
    assert_eq!(profiling(&flags, None), (off.clone(), Value::Null));
    let flags = ["--profiling", "--contention-profiling=false"];
    assert_eq!(profiling(&flags, None), (on.clone(), off));
    // What the file says is what was meant for it.
    let flags = ["--profiling=false"];
    let said = profiling(&flags, Some("enableProfiling: true"));
    assert_eq!(said, (on, Value::Null));
    // It ignores them already.
    let flags = ["--profiling=false", "--config=/etc/kubernetes/own.yaml"];
    assert_eq!(profiling(&flags, Some("")), unsaid());
}

/// Two that take the same pods allocate one device twice. In the pod of the controller the chart says which one runs.
#[test]
fn a_second_scheduler_that_runs_has_its_pods_to_itself() {
    let running = [kubeadm("a", &[])];
    let flags = ["--for=kubeadm", "--scheduler-name=gpus"];
    let profiles = |flags: &[&str]| {
        let text = printed(flags, &running, None).unwrap();
        document::read(text.as_bytes()).unwrap()["profiles"].clone()
    };
    let (cluster, gpus) = ("default-scheduler", "gpus");
    let both = json!([{"schedulerName": cluster}, {"schedulerName": gpus}]);
    assert_eq!(profiles(&flags), both);
    let beside = [flags[0], flags[1], "--second-scheduler"];
    assert_eq!(profiles(&beside), json!([{"schedulerName": cluster}]));
    let file = format!(
        "{HEAD}{CONNECTED}profiles: [{{schedulerName: {cluster}}}, {{schedulerName: {gpus}}}]\n"
    );
    let refusal = printed(&beside, &running, Some(file.as_bytes())).unwrap_err();
    assert_eq!(refusal.reason, Reason::SchedulerNameTaken);
    assert!(
        refusal.text.contains("scheduler.enabled=false"),
        "{refusal}"
    );
    assert!(printed(&flags, &running, Some(file.as_bytes())).is_ok());
    // Its own configuration has the name.
    let own = ["--for=second", flags[1], "--second-scheduler"];
    assert_eq!(profiles(&own), json!([{"schedulerName": gpus}]));
}

/// What the running scheduler is started with says it as well as for a file without the field.
#[test]
fn a_file_with_an_empty_kubeconfig_gets_that_of_the_running_scheduler() {
    let file = format!("{HEAD}clientConnection: {{kubeconfig: ''}}\n");
    let text = printed(&[], &[kubeadm("a", &[])], Some(file.as_bytes())).unwrap();
    let read = document::read(text.as_bytes()).unwrap();
    assert_eq!(
        read["clientConnection"]["kubeconfig"],
        "/etc/kubernetes/scheduler.conf"
    );
}

#[test]
fn plugins_that_are_switched_off_and_on_again_and_extenders_of_others_are_let_be() {
    for fields in [
        "profiles: [{plugins: {multiPoint: {disabled: [{name: ImageLocality}]}}}]",
        "profiles: [{plugins: {filter: {disabled: [{name: '*'}], enabled: [{name: NodeAffinity}, {name: DynamicResources}]}}}]",
        "extenders: [{urlPrefix: 'https://a', filterVerb: f}]",
        "extenders: [{urlPrefix: 'https://a', filterVerb: f, bindVerb: '', managedResources: [{name: example.com/fpga}]}]",
        "extenders: null\nprofiles: null",
    ] {
        let file = format!("{HEAD}{CONNECTED}{fields}\n");
        let text = printed(&[], &[kubeadm("a", &[])], Some(file.as_bytes()));
        assert!(text.is_ok(), "{fields}: {text:?}");
    }
}

#[test]
fn scalars_mean_what_they_mean_to_kube_scheduler() {
    let file = format!(
        "{HEAD}{CONNECTED}leaderElection: {{leaderElect: yes}}\nparallelism: 010\nprofiles:\n- {{schedulerName: default-scheduler}}\n- {{schedulerName: 'yes'}}\n- {{schedulerName: '010'}}\n"
    );
    let text = printed(&[], &[kubeadm("a", &[])], Some(file.as_bytes())).unwrap();
    let read: Value = document::read(text.as_bytes()).unwrap();
    assert_eq!(read["leaderElection"]["leaderElect"], true);
    assert_eq!(read["parallelism"], 8);
    assert!(text.contains("parallelism: 8\n"), "{text}");
    // Quoted, or kube-scheduler would read a truth and a number.
    for quoted in ["yes", "010"] {
        let (single, double) = (
            format!("schedulerName: '{quoted}'"),
            format!("schedulerName: \"{quoted}\""),
        );
        assert!(text.contains(&single) || text.contains(&double), "{text}");
    }
}

#[test]
fn the_extender_is_found_by_its_service_and_never_guessed() {
    let args = args(&[]);
    let found = |services: &[Service], target| discovery::described_by(services, &args, target);
    let kubeadm = target::Target::Kubeadm;
    let installation = found(&[service()], kubeadm).unwrap();
    assert_eq!(installation.namespace, "muster-system");
    assert_eq!(installation.extender_ca_secret, "muster-extender-ca");
    let mut dual = service();
    dual.spec.as_mut().unwrap().cluster_ip = Some("fd00::7".to_owned());
    let url = found(&[dual], kubeadm).unwrap().endpoint.url;
    assert_eq!(url, "https://[fd00::7]:443/scheduler");
    let mut headless = service();
    headless.spec.as_mut().unwrap().cluster_ip = Some("None".to_owned());
    for (services, word) in [
        (vec![], "extender.enabled=true"),
        (vec![service(), service()], "choose one by --namespace"),
        (vec![headless], "no cluster IP"),
    ] {
        let refusal = found(&services, kubeadm).unwrap_err();
        assert_eq!(refusal.reason, Reason::ServiceNotFound);
        assert!(refusal.text.contains(word), "{refusal}");
    }
}
