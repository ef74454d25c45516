//! The configuration that exists, with what Muster needs added. What is there stays, fields that are not known here too; only
//! what the command line names is replaced.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{
    Request, document, extender,
    refusal::{Reason, Refusal},
    refused,
    running::{self, RunningScheduler},
    target::{DEFAULT_SCHEDULER, SECOND_SCHEDULER, Target},
};

/// Requests per second to the API server: a bound pod with claims costs four.
const QPS: u32 = 500;
/// Requests at once to the API server.
const BURST: u32 = 1000;

/// The whole configuration, not yet checked.
pub fn document(request: &Request) -> Result<Value, Refusal> {
    keep_what_runs(request)?;
    let mut document = request.existing.clone().unwrap_or_else(document::empty);
    connection(&mut document, request)?;
    leader_election(&mut document, request)?;
    profiles(&mut document, request)?;
    numbers(&mut document, request);
    flags(&mut document, request);
    let ours = extender::entry(
        &request.endpoint,
        &request.certificates,
        request.settings.weight,
    )?;
    let mut extenders = document::list(&document, "extenders")?.to_vec();
    extenders.push(ours);
    document["extenders"] = json!(extenders);
    Ok(document)
}

/// A configuration of its own would take the place of one that is in use.
fn keep_what_runs(request: &Request) -> Result<(), Refusal> {
    if request.target != Target::Kubeadm {
        return Ok(());
    }
    match running::configured(&request.running)? {
        Some(RunningScheduler {
            pod,
            config: Some(file),
            ..
        }) if request.existing.is_none() => refused(
            Reason::ExistingConfiguration,
            format!(
                "pod kube-system/{pod} is started with --config={file}, whose profiles and extenders would be lost; give that \
                 file by --merge FILE, or on standard input by --merge -"
            ),
        ),
        _ => Ok(()),
    }
}

fn connection(document: &mut Value, request: &Request) -> Result<(), Refusal> {
    let settings = &request.settings;
    let found = match &settings.kubeconfig {
        Some(path) => Some(path.clone()),
        None if request.target == Target::Kubeadm && !settings.in_cluster => {
            running::kubeconfig(&request.running)?.map(PathBuf::from)
        }
        None => None,
    };
    let connection = document::mapping(document, "clientConnection")?;
    match (found, &settings.kubeconfig) {
        (Some(path), Some(_)) => {
            connection.insert("kubeconfig".to_owned(), json!(path));
        }
        (Some(path), None) => document::set_absent(connection, "kubeconfig", json!(path)),
        (None, _) => {}
    }
    for (field, given, otherwise) in [("qps", settings.qps, QPS), ("burst", settings.burst, BURST)]
    {
        match given {
            Some(number) => {
                connection.insert(field.to_owned(), json!(number));
            }
            None => document::set_absent(connection, field, json!(otherwise)),
        }
    }
    Ok(())
}

fn leader_election(document: &mut Value, request: &Request) -> Result<(), Refusal> {
    let election = document::mapping(document, "leaderElection")?;
    match request.settings.leader_elect {
        Some(elect) => {
            election.insert("leaderElect".to_owned(), json!(elect));
        }
        None => document::set_absent(election, "leaderElect", json!(true)),
    }
    if request.target == Target::Second {
        let namespace = &request.installation.namespace;
        document::set_absent(election, "resourceNamespace", json!(namespace));
        document::set_absent(election, "resourceName", json!(second_name(request)));
    }
    Ok(())
}

/// Profiles that exist stay as they are: one more could have another queue sort than they, which kube-scheduler does not start with.
fn profiles(document: &mut Value, request: &Request) -> Result<(), Refusal> {
    if !document::list(document, "profiles")?.is_empty() {
        return Ok(());
    }
    let mut names = match request.target {
        Target::Second => vec![second_name(request)],
        Target::Kubeadm | Target::Other | Target::Managed => vec![DEFAULT_SCHEDULER],
    };
    names.extend(further_name(request));
    names.dedup();
    let profile = |name: &&str| json!({"schedulerName": name});
    document["profiles"] = names.iter().map(profile).collect();
    Ok(())
}

fn numbers(document: &mut Value, request: &Request) {
    let settings = &request.settings;
    for (field, given) in [
        ("parallelism", settings.parallelism),
        (
            "podInitialBackoffSeconds",
            settings.pod_initial_backoff_seconds,
        ),
        ("podMaxBackoffSeconds", settings.pod_max_backoff_seconds),
    ] {
        if let Some(number) = given {
            document[field] = json!(number);
        }
    }
}

/// Flags that kube-scheduler ignores once it is given a configuration: what they say goes into its first one.
fn flags(document: &mut Value, request: &Request) {
    let mut running = request.running.iter();
    if request.target != Target::Kubeadm || running.any(|scheduler| scheduler.config.is_some()) {
        return;
    }
    let said = |flag: fn(&RunningScheduler) -> Option<bool>| {
        let said = request.running.iter().filter_map(flag);
        // Whoever switches it off on one machine has a reason that holds for all.
        said.reduce(|one, other| one && other)
    };
    for (field, said) in [
        ("enableProfiling", said(|scheduler| scheduler.profiling)),
        (
            "enableContentionProfiling",
            said(|scheduler| scheduler.contention_profiling),
        ),
    ] {
        if let Some(said) = said
            && document[field].is_null()
        {
            document[field] = json!(said);
        }
    }
}

/// The name of a second scheduler that runs, whose pods are none of this one's.
pub fn name_of_another(request: &Request) -> Option<&str> {
    let settings = &request.settings;
    let is_of_another = settings.second_scheduler && request.target.is_cluster_scheduler();
    let name = settings.scheduler_name.as_deref();
    name.filter(|_| is_of_another)
}

/// The name that managed pods come to this scheduler by, besides its own. A second one that runs has its pods to itself.
pub fn further_name(request: &Request) -> Option<&str> {
    let name = request.settings.scheduler_name.as_deref();
    name.filter(|_| name_of_another(request).is_none())
}

/// The name that pods choose a second scheduler by.
pub fn second_name(request: &Request) -> &str {
    let named = request.settings.scheduler_name.as_deref();
    named.unwrap_or(SECOND_SCHEDULER)
}
