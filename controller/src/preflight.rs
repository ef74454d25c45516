//! `preflight`: looks at a cluster for everything that is known to go wrong with Muster, and says what to do.
//!
//! It runs before the install, by hand, and after it, by hand or by `helm test`. Each check is one subject in one module:
//! pure functions from what was read ([`reading::Reading`]) to findings ([`finding::Finding`]). What could not be read is a finding of
//! its own, which names the right that it takes, and is never told as fine. Reading is bounded: lists come page by page, of each object is
//! kept what will be said of it, every read ends, and so do all of them together.
//!
//! It writes nothing. Where it may create Teams it has the API server create one in a dry run, which proves that the webhook is reached.

pub mod access;
pub mod clocks;
pub mod control_plane;
pub mod definitions;
pub mod expressions;
pub mod extender;
mod extender_fields;
pub mod finding;
pub mod gates;
pub mod guards;
pub mod installation;
pub mod limits;
pub mod matching;
pub mod mig;
pub mod nodes;
pub mod nvidia_toolkit;
pub mod other_drivers;
pub mod pod_security;
pub mod policies;
pub mod programs;
pub mod reading;
pub mod report;
pub mod resources;
pub mod runtimes;
pub mod scheduler;
pub mod server_metrics;
pub mod versions;
pub mod webhook;

use std::{collections::BTreeMap, io::Write, process::ExitCode};

use anyhow::Context;
use kube::Client;
use muster_cluster::{managed::ManagedPods, mig_settings::Settings};
use muster_serve::client::{self, CALL_LIMIT, within};

use self::{
    extender::Address,
    finding::Finding,
    installation::Installation,
    nodes::Wanted,
    policies::Policies,
    reading::Reading,
    report::{Check, EXIT_NOT_LOOKED, Report, Section},
    scheduler::Given,
};
use crate::{
    args::{OutputArg, PreflightArgs},
    listing::with_causes,
    scheduler_config,
};

/// Prints the findings. The exit code is 0 without errors, 1 with some, and 2 if nothing could be looked at.
pub async fn run(args: &PreflightArgs) -> anyhow::Result<ExitCode> {
    let report = match Box::pin(reading::in_time(look(args))).await {
        Ok(report) => report,
        Err(error) => {
            let text = with_causes(error.as_ref());
            writeln!(std::io::stderr(), "NotLooked: {text}")?;
            return Ok(ExitCode::from(EXIT_NOT_LOOKED));
        }
    };
    let text = match args.output {
        OutputArg::Text => report.text(),
        OutputArg::Json => report.json()?,
    };
    // This program's one output: not a log line, so not through the subscriber.
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::from(report.exit_code()))
}

async fn look(args: &PreflightArgs) -> anyhow::Result<Report> {
    let devices = ManagedPods::new(args.extended_resources.listed())?;
    let labels = labels(&args.node_labels)?;
    let given = given(args);
    let client = client::write_client(args.kubeconfig.as_deref()).await?;
    // Without an answer to this there is nothing to look at; a refusal is an answer.
    let version = version(&client).await?;
    let releases = installation::read(&client, args.namespace.as_deref()).await;
    let driver = releases
        .found
        .first()
        .and_then(|release| release.driver.as_ref());
    let wanted = Wanted {
        labels: driver.map_or(labels, |driver| driver.node_selector.clone()),
        affinity: driver.and_then(|driver| driver.affinity.clone()),
        devices,
        mig: driver.map(|driver| Settings::parse(driver.mig.as_deref().unwrap_or("{}"))),
    };
    let cluster = Cluster {
        client,
        version,
        releases,
        wanted,
        given,
        runs_inside: args.kubeconfig.is_none(),
    };
    Ok(Report::new(cluster.sections(args).await))
}

/// The API server's version.
async fn version(client: &Client) -> anyhow::Result<Reading<String>> {
    match within(CALL_LIMIT, client.apiserver_version()).await {
        Ok(info) => Ok(Reading::whole(info.git_version)),
        Err(error) if error.status_code().is_some_and(|code| code != 401) => Ok(Reading {
            found: String::new(),
            unread: Some(reading::Unread::failed("get", "the path /version", &error)),
        }),
        Err(error) => Err(error).context("the API server does not answer"),
    }
}

/// The configuration of the command line, if it is one.
fn given(args: &PreflightArgs) -> Given {
    let path = args.scheduler_config.as_deref()?;
    let read = scheduler_config::read_file("--scheduler-config", path);
    Some(read.map_err(|error| format!("{error:#}")))
}

fn labels(pairs: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let pairs = pairs.iter().filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair
                .split_once('=')
                .with_context(|| format!("--node-label {pair}: must be KEY=VALUE"))?;
            Ok((key.to_owned(), value.to_owned()))
        })
        .collect()
}

/// What is looked at, and what is known of it from the beginning.
struct Cluster {
    client: Client,
    version: Reading<String>,
    releases: Reading<Vec<Installation>>,
    wanted: Wanted,
    given: Given,
    /// Whether this runs in a pod of the cluster, which reaches its Services.
    runs_inside: bool,
}

impl Cluster {
    /// The release, if one was seen.
    fn installation(&self) -> Option<&Installation> {
        self.releases.found.first()
    }

    /// What is said of something of Muster's own where no release is seen: it is not there, or nobody knows.
    fn without_release(&self, object: &str) -> Finding {
        match &self.releases.unread {
            Some(unread) => unread.finding(),
            None => Finding::not_installed(object),
        }
    }

    async fn sections(&self, args: &PreflightArgs) -> Vec<Section> {
        let client = &self.client;
        let nodes = nodes::read(client, &self.wanted).await;
        let plane = control_plane::read(client).await;
        let metrics = server_metrics::read(client).await;
        let installation = self.installation();
        let groups = reading::of("get", "the path /apis", async {
            client.list_api_groups().await
        });
        let versions = [
            versions::of_server(&self.version),
            versions::of_apis(&groups.await),
            versions::of_kubelets(&nodes),
            self.definitions().await,
        ];
        let gates = [
            gates::of_server(&metrics),
            gates::of_flags(&plane),
            vec![gates::of_kubelets()],
        ];
        let slices = other_drivers::read(client).await;
        let classes = resources::read_classes(client).await;
        let devices = &self.wanted.devices;
        let enforces = installation.is_some_and(|release| release.enforces);
        let others = [
            nodes::findings(&nodes, &self.wanted),
            other_drivers::of_plugins(&nodes),
            other_drivers::of_drivers(&slices, &nodes),
            resources::of_plugins(&nodes),
            resources::of_classes(&classes, devices, enforces),
        ];
        let scheduler = [
            scheduler::findings(&self.given, &self.wanted.devices, installation),
            scheduler::of_running(&plane, installation),
        ];
        let clocks = [
            clocks::of_nodes(&clocks::read(client).await),
            clocks::of_here(&clocks::read_server(client).await),
        ];
        let limits = [
            limits::of_scheduler(&self.given),
            limits::of_controller_manager(&plane),
            limits::of_tolerations(&plane, installation),
        ];
        let access = access::read(client, installation).await;
        let policies = policies::read(client).await;
        let tenants = pod_security::read(client, installation).await;
        let section = |check, findings: Vec<Finding>| Section { check, findings };
        vec![
            section(Check::Versions, versions.concat()),
            section(Check::Programs, self.programs()),
            section(Check::FeatureGates, gates.concat()),
            section(Check::Runtimes, runtimes::findings(&nodes)),
            section(
                Check::NvidiaToolkit,
                self.nvidia_toolkit(&nodes, &policies).await,
            ),
            section(Check::OtherDrivers, others.concat()),
            section(Check::Mig, self.mig(&nodes).await),
            section(Check::SchedulerConfig, scheduler.concat()),
            section(Check::Extender, self.extender(args).await),
            section(Check::Policies, self.policies(&policies).await),
            section(Check::Webhook, self.webhook(&metrics).await),
            section(Check::Access, access::findings(&access)),
            section(Check::PodSecurity, pod_security::findings(&tenants)),
            section(Check::Clocks, clocks.concat()),
            section(Check::ApiLimits, limits.concat()),
        ]
    }

    async fn mig(&self, nodes: &Reading<nodes::Nodes>) -> Vec<Finding> {
        let Some(settings) = &self.wanted.mig else {
            return vec![self.without_release("driver.mig")];
        };
        let invalid = mig::of_settings(settings);
        if !invalid.is_empty() {
            return invalid;
        }
        let whole = mig::read(&self.client, &nodes.found).await;
        [
            mig::of_manager(nodes),
            mig::of_hardware(&nodes.found, &whole),
        ]
        .concat()
    }

    fn programs(&self) -> Vec<Finding> {
        match self.installation() {
            Some(release) => programs::findings(release),
            None => vec![self.without_release("programs")],
        }
    }

    async fn definitions(&self) -> Vec<Finding> {
        if self.installation().is_none() {
            return vec![self.without_release("customresourcedefinitions")];
        }
        definitions::findings(&definitions::read(&self.client).await)
    }

    async fn nvidia_toolkit(
        &self,
        nodes: &Reading<nodes::Nodes>,
        policies: &Reading<Policies>,
    ) -> Vec<Finding> {
        let toolkits = nvidia_toolkit::read(&self.client).await;
        let mut findings = nvidia_toolkit::of_settings(&toolkits, nodes);
        match self.installation() {
            Some(release) => {
                let classes = nvidia_toolkit::read_classes(&self.client).await;
                findings.extend(nvidia_toolkit::of_classes(&classes, policies, release));
            }
            None => findings.push(self.without_release("side doors")),
        }
        findings
    }

    /// Asked wherever it is known where it is, before the install too: the configuration may name one already.
    async fn extender(&self, args: &PreflightArgs) -> Vec<Finding> {
        let configured = self
            .given
            .as_ref()
            .and_then(|given| scheduler::ours(given.as_ref().ok()?));
        let url = || {
            let release = self.installation()?;
            let service = format!(
                "https://{}-extender.{}.svc:443/scheduler",
                release.name, release.namespace
            );
            release.has_extender.then_some(service)
        };
        let url = configured
            .and_then(|entry| entry["urlPrefix"].as_str().map(str::to_owned))
            .or_else(|| args.extender_url.clone())
            .or_else(url);
        let address = match (configured, &args.extender_tls_files, url) {
            (_, Some(directory), Some(url)) => {
                let mut address = Address::with_files(&url, directory);
                // Its name is checked as kube-scheduler checks it.
                if let Some(entry) = configured {
                    address.tls["serverName"] = entry["tlsConfig"]["serverName"].clone();
                }
                address
            }
            (Some(entry), None, _) => Address::configured(entry),
            _ if self.installation().is_none() => return vec![self.without_release("extender")],
            _ if self
                .installation()
                .is_some_and(|release| !release.has_extender) =>
            {
                return vec![Finding::passed(
                    "extender",
                    "extender.enabled is false: nobody asks it",
                )];
            }
            _ => return vec![extender::not_given()],
        };
        let outcome = extender::ask(&address).await;
        vec![extender::findings(&address, &outcome, self.runs_inside)]
    }

    async fn policies(&self, policies: &Reading<Policies>) -> Vec<Finding> {
        let Some(release) = self.installation() else {
            return vec![self.without_release("policies")];
        };
        let bindings = policies::read_bindings(&self.client, &policies.found).await;
        let mut findings = policies::findings(release, policies, &bindings);
        findings.extend(policies::of_releases(&self.releases.found, &policies.found));
        // There may be another release, or this one's driver, where nobody looked.
        findings.extend(self.releases.unread.as_ref().map(reading::Unread::finding));
        findings
    }

    async fn webhook(&self, metrics: &Reading<server_metrics::ServerMetrics>) -> Vec<Finding> {
        let Some(release) = self.installation() else {
            return vec![self.without_release("webhook")];
        };
        let configurations = webhook::read(&self.client, release).await;
        let ready = webhook::read_endpoints(&self.client, release).await;
        let dry_run = webhook::dry_run(&self.client).await;
        [
            webhook::of_configurations(release, &configurations),
            webhook::of_endpoints(release, &configurations, &ready),
            webhook::of_reach(&dry_run, &configurations, metrics),
        ]
        .concat()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser;

    use super::*;
    use crate::{
        args::{Cli, Command},
        preflight::finding::{Reason, Severity},
        scripted_api::{ScriptedApi, failure},
    };

    fn args(flags: &[&str]) -> PreflightArgs {
        let command = ["muster-controller", "preflight"];
        let cli = Cli::try_parse_from(command.iter().chain(flags)).unwrap();
        let Some(Command::Preflight(args)) = cli.command else {
            panic!("preflight")
        };
        args
    }

    fn cluster(api: &ScriptedApi, releases: Vec<Installation>) -> Cluster {
        Cluster {
            client: api.client(),
            version: Reading::whole("v1.37.1".to_owned()),
            releases: Reading::whole(releases),
            wanted: nodes::tests::wanted(),
            given: None,
            runs_inside: true,
        }
    }

    fn installed() -> Installation {
        Installation {
            name: "muster".to_owned(),
            namespace: "muster-system".to_owned(),
            enforces: true,
            has_extender: true,
            ..Installation::default()
        }
    }

    /// The resource of a path, without its namespace and the name of an object.
    fn resource(path: &str) -> &str {
        let path = path.trim_start_matches("GET /");
        let after = path.split_once("/v1/").map_or(path, |(_, after)| after);
        let words: Vec<&str> = after.split('/').collect();
        match words[..] {
            ["namespaces", _, resource, ..] | [resource, ..] => resource,
            [] => path,
        }
    }

    #[tokio::test]
    async fn who_may_read_nothing_is_told_no_pass_and_the_chart_allows_every_read() {
        let api = ScriptedApi::new(vec![failure(403, "forbidden"); 100]);
        let sections = cluster(&api, vec![installed()]).sections(&args(&[])).await;
        assert_eq!(sections.len(), 15);
        for section in &sections {
            let findings = &section.findings;
            assert!(!findings.is_empty(), "{section:?}");
            let told = findings.iter().all(|finding| {
                finding.severity == Severity::NotChecked || finding.object == "kube-apiserver"
            });
            assert!(told, "{section:?}");
        }
        let chart = include_str!("../../deploy/helm/muster/templates/tests/preflight.yaml");
        for asked in api.asked() {
            if asked.what.starts_with("POST") {
                // The dry run, which `helm test` may not try.
                assert!(asked.query.contains("dryRun=All"), "{asked:?}");
                continue;
            }
            let resource = resource(&asked.what);
            // Everybody may read these.
            let open = ["version", "apis"].contains(&resource);
            assert!(
                open || chart.contains(resource),
                "{}: {resource}",
                asked.what
            );
        }
    }

    #[tokio::test]
    async fn before_the_install_what_is_musters_is_passed_over_and_all_else_looked_at() {
        let api = ScriptedApi::new(vec![failure(403, "forbidden"); 100]);
        let sections = cluster(&api, Vec::new()).sections(&args(&[])).await;
        for section in &sections {
            let about_muster = matches!(
                section.check,
                Check::Programs | Check::Mig | Check::Extender | Check::Policies | Check::Webhook
            );
            let reasons: Vec<Reason> = section.findings.iter().map(|found| found.reason).collect();
            if about_muster {
                assert_eq!(reasons, [Reason::NotInstalled], "{:?}", section.check);
            } else {
                assert_ne!(reasons, [Reason::NotInstalled], "{:?}", section.check);
            }
        }
        let mut unknown = cluster(&api, Vec::new());
        let error = client::CallError::Timeout(CALL_LIMIT);
        unknown.releases.unread = Some(reading::Unread::failed("list", "deployments.apps", &error));
        // Nobody knows whether it is installed, so nobody says that it is not.
        assert_eq!(
            unknown.without_release("policies").reason,
            Reason::ReadFailed
        );
    }

    #[tokio::test]
    async fn what_was_not_read_of_releases_is_told_beside_one_that_was() {
        let api = ScriptedApi::new(vec![failure(403, "forbidden"); 100]);
        let mut partly = cluster(&api, vec![installed()]);
        let error = client::CallError::Timeout(CALL_LIMIT);
        partly.releases.unread = Some(reading::Unread::failed("list", "daemonsets.apps", &error));
        let found = partly.policies(&Reading::default()).await;
        let told = |finding: &Finding| finding.object == "daemonsets.apps";
        assert!(found.iter().any(told), "{found:?}");
    }

    #[tokio::test]
    async fn an_api_server_that_does_not_answer_and_flags_without_meaning_are_exit_code_2() {
        muster_serve::tls::install_provider();
        let file = std::env::temp_dir().join(format!("muster-preflight-{}", std::process::id()));
        // Port 1 of loopback refuses.
        let kubeconfig = "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
            clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}], users: [{name: a, user: {token: t}}]}";
        std::fs::write(&file, kubeconfig).unwrap();
        let not_looked = format!("{:?}", ExitCode::from(EXIT_NOT_LOOKED));
        let unreachable = PreflightArgs {
            kubeconfig: Some(file.clone()),
            ..args(&[])
        };
        let absent = PreflightArgs {
            kubeconfig: Some(PathBuf::from("/nonexistent")),
            ..args(&[])
        };
        let label = PreflightArgs {
            kubeconfig: Some(file.clone()),
            ..args(&["--node-label=no-pair"])
        };
        for args in [unreachable, absent, label] {
            let code = run(&args).await.unwrap();
            assert_eq!(format!("{code:?}"), not_looked, "{args:?}");
        }
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_configuration_that_is_no_yaml_is_a_finding_with_the_flag_that_it_came_by() {
        let file =
            std::env::temp_dir().join(format!("muster-preflight-{}.yaml", std::process::id()));
        for (text, word) in [
            ("\u{0}\u{1}", "--scheduler-config"),
            ("a: [", "--scheduler-config"),
            ("kind: Pod", "UnknownVersion: --scheduler-config"),
        ] {
            std::fs::write(&file, text).unwrap();
            let given = given(&args(&["--scheduler-config", file.to_str().unwrap()]));
            let error = given.unwrap().unwrap_err();
            assert!(
                error.contains(word) && !error.contains("--merge"),
                "{error}"
            );
        }
        std::fs::remove_file(&file).unwrap();
        let missing = given(&args(&["--scheduler-config=/nonexistent"]));
        assert!(missing.unwrap().unwrap_err().contains("/nonexistent"));
    }
}
