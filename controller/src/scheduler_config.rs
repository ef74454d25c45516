//! `scheduler-config`: the configuration that kube-scheduler is started with, certificates inline or as files.
//!
//! Inline is the default: one file, and nothing that can be out of step with it. But kube-scheduler logs the whole of it
//! from `--v=2` on. The key opens nothing but the extender, which only answers questions; who would rather not have it
//! in a log takes files.
//!
//! What is fixed here is what safety hangs on, and is therefore no flag: `nodeCacheCapable` (names, not whole nodes),
//! `ignorable: false` (an extender that is down holds its pods, it does not free them), the marker as the only
//! managed resource (all other pods never meet us), `httpTimeout` 1 s (the scheduler is serial), and a CA
//! (without one, kube-scheduler silently turns verification off).

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use k8s_openapi::ByteString;
use muster_api::keys;
use muster_serve::{
    authority_secret::{
        AUTHORITIES, Authorities, AuthoritySecret, BUNDLE, CLIENT_CERTIFICATE, CLIENT_KEY,
        SecretReference,
    },
    certificates::Policy,
    client,
    tls::CertificateAndKey,
};
use serde::Serialize;

use crate::args::SchedulerConfigArgs;

/// Common name of the scheduler's client certificate.
const CLIENT_NAME: &str = "muster-scheduler";

/// Prints the configuration, after making the Secret where there is none.
pub async fn print(args: SchedulerConfigArgs) -> anyhow::Result<()> {
    let client = client::write_client(args.kubeconfig.as_deref()).await?;
    let reference = SecretReference {
        namespace: args.namespace.clone(),
        name: args.extender_ca_secret.clone(),
    };
    let authorities = AuthoritySecret::new(client, reference, Policy::PINNED)
        .with_client(CLIENT_NAME)
        .ensure(jiff::Timestamp::now().as_second())
        .await?;
    let text = configuration(&args, &authorities)?;
    // This program's one output: not a log line, so not through the subscriber.
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// The configuration as YAML.
pub fn configuration(
    args: &SchedulerConfigArgs,
    authorities: &Authorities,
) -> anyhow::Result<String> {
    let SchedulerConfigArgs {
        kubeconfig: _,
        namespace,
        extender_ca_secret,
        extender_url,
        server_name,
        tls_files,
        scheduler_kubeconfig,
        scheduler_name,
        leader_elect,
        parallelism,
        qps,
        burst,
        pod_initial_backoff_seconds,
        pod_max_backoff_seconds,
        weight,
    } = args.clone();
    ensure!(
        extender_url.starts_with("https://"),
        "--extender-url {extender_url}: must begin with https://, the extender answers nothing else"
    );
    ensure!(
        pod_initial_backoff_seconds >= 1 && pod_max_backoff_seconds >= pod_initial_backoff_seconds,
        "--pod-initial-backoff-seconds {pod_initial_backoff_seconds}, --pod-max-backoff-seconds {pod_max_backoff_seconds}: \
         kube-scheduler demands 1 <= initial <= max"
    );
    ensure!(
        weight >= 1 && parallelism >= 1,
        "--weight and --parallelism must be at least 1"
    );
    let client = authorities
        .client
        .as_ref()
        .with_context(|| format!("Secret {extender_ca_secret} holds no client certificate"))?;
    let certificates = match &tls_files {
        None => Certificates::inline(authorities, client),
        Some(directory) => Certificates::files(directory)?,
    };
    let configuration = Configuration {
        api_version: "kubescheduler.config.k8s.io/v1",
        kind: "KubeSchedulerConfiguration",
        leader_election: LeaderElection { leader_elect },
        client_connection: ClientConnection {
            kubeconfig: scheduler_kubeconfig,
            qps,
            burst,
        },
        parallelism,
        pod_initial_backoff_seconds,
        pod_max_backoff_seconds,
        profiles: [Profile { scheduler_name }],
        extenders: [Extender {
            url_prefix: extender_url.trim_end_matches('/').to_owned(),
            filter_verb: "filter",
            prioritize_verb: "prioritize",
            preempt_verb: "preempt",
            weight,
            enable_https: true,
            tls_config: TlsConfig {
                server_name,
                certificates,
            },
            http_timeout: "1s",
            node_cache_capable: true,
            managed_resources: [ManagedResource {
                name: keys::MARKER_RESOURCE,
            }],
            ignorable: false,
        }],
    };
    // One line per certificate: what is pasted elsewhere should not depend on how YAML folds lines.
    let style = serde_saphyr::ser_options! {
        prefer_block_scalars: false,
        compact_list_indent: false,
    };
    let text = serde_saphyr::to_string_with_options(&configuration, style)?;
    let hint = tls_files.map_or_else(String::new, |directory| {
        how_to_write(&directory, &namespace, &extender_ca_secret)
    });
    Ok(hint + &text)
}

/// As a comment before the configuration: the way of the three files from the Secret to the scheduler's machine. The
/// Secret is not to be mounted whole: it holds the authority's own key, too.
fn how_to_write(directory: &Path, namespace: &str, secret: &str) -> String {
    let directory = directory.display();
    format!(
        "\
# The files of tlsConfig are these keys of the Secret {namespace}/{secret}:
#
#   for file in {BUNDLE} {CLIENT_CERTIFICATE} {CLIENT_KEY}; do
#     kubectl -n {namespace} get secret {secret} -o go-template=\"{{{{index .data \\\"$file\\\" | base64decode}}}}\" > {directory}/$file
#   done
#   chmod 600 {directory}/{CLIENT_KEY}
#
# Where kube-scheduler runs in a pod of this cluster, mount them instead, and list them in `items`: the Secret also
# holds {AUTHORITIES}, the private key of the authority, which the scheduler must not have.
"
    )
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    api_version: &'static str,
    kind: &'static str,
    leader_election: LeaderElection,
    client_connection: ClientConnection,
    parallelism: u32,
    pod_initial_backoff_seconds: u32,
    pod_max_backoff_seconds: u32,
    profiles: [Profile; 1],
    extenders: [Extender; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LeaderElection {
    leader_elect: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClientConnection {
    #[serde(skip_serializing_if = "Option::is_none")]
    kubeconfig: Option<PathBuf>,
    qps: u32,
    burst: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    scheduler_name: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Extender {
    url_prefix: String,
    filter_verb: &'static str,
    prioritize_verb: &'static str,
    preempt_verb: &'static str,
    weight: u32,
    #[serde(rename = "enableHTTPS")]
    enable_https: bool,
    tls_config: TlsConfig,
    http_timeout: &'static str,
    node_cache_capable: bool,
    managed_resources: [ManagedResource; 1],
    ignorable: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TlsConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    server_name: Option<String>,
    #[serde(flatten)]
    certificates: Certificates,
}

/// The authority's certificate, and the scheduler's own with its key.
#[derive(Serialize)]
#[serde(untagged)]
enum Certificates {
    #[serde(rename_all = "camelCase")]
    Inline {
        ca_data: ByteString,
        cert_data: ByteString,
        key_data: ByteString,
    },
    #[serde(rename_all = "camelCase")]
    Files {
        ca_file: PathBuf,
        cert_file: PathBuf,
        key_file: PathBuf,
    },
}

impl Certificates {
    fn inline(authorities: &Authorities, client: &CertificateAndKey) -> Self {
        let data = |pem: &str| ByteString(pem.as_bytes().to_vec());
        Self::Inline {
            ca_data: data(&authorities.set.bundle_pem()),
            cert_data: data(&client.certificate_pem),
            key_data: data(&client.key_pem),
        }
    }

    /// kube-scheduler takes a relative path from wherever it was started.
    fn files(directory: &Path) -> anyhow::Result<Self> {
        ensure!(
            directory.is_absolute(),
            "--tls-files {}: must be an absolute path",
            directory.display()
        );
        Ok(Self::Files {
            ca_file: directory.join(BUNDLE),
            cert_file: directory.join(CLIENT_CERTIFICATE),
            key_file: directory.join(CLIENT_KEY),
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ManagedResource {
    name: &'static str,
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use muster_serve::certificates::AuthoritySet;
    use serde_json::Value;

    use super::*;
    use crate::args::{Cli, Command};

    fn args(flags: &[&str]) -> SchedulerConfigArgs {
        let command = ["muster-controller", "scheduler-config"];
        let cli = Cli::try_parse_from(command.iter().chain(flags)).unwrap();
        let Some(Command::SchedulerConfig(args)) = cli.command else {
            panic!("scheduler-config")
        };
        args
    }

    fn authorities() -> Authorities {
        Authorities {
            set: AuthoritySet::generate("extender", &Policy::PINNED, 1_800_000_000).unwrap(),
            client: Some(CertificateAndKey {
                certificate_pem: "certificate".to_owned(),
                key_pem: "key".to_owned(),
            }),
        }
    }

    #[test]
    fn the_configuration_reads_as_documented() {
        let args = args(&[
            "--extender-url=https://127.0.0.1:9443/scheduler/",
            "--server-name=muster-extender",
            "--scheduler-kubeconfig=/etc/kubernetes/scheduler.conf",
            "--leader-elect=false",
        ]);
        let authorities = authorities();
        let bundle = ByteString(authorities.set.bundle_pem().into_bytes());
        let bundle = serde_json::to_value(&bundle).unwrap();
        let text = configuration(&args, &authorities).unwrap();
        let expected = "\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: false
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
  qps: 500
  burst: 1000
parallelism: 16
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 10
profiles:
  - schedulerName: default-scheduler
extenders:
  - urlPrefix: https://127.0.0.1:9443/scheduler
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt
    weight: 20
    enableHTTPS: true
    tlsConfig:
      serverName: muster-extender
      caData: BUNDLE
      certData: Y2VydGlmaWNhdGU=
      keyData: a2V5
    httpTimeout: 1s
    nodeCacheCapable: true
    managedResources:
      - name: muster.dev/managed
    ignorable: false
";
        assert_eq!(text, expected.replace("BUNDLE", bundle.as_str().unwrap()));
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read["extenders"][0]["tlsConfig"]["caData"], bundle);
    }

    #[test]
    fn with_files_no_key_is_in_the_configuration_and_it_says_where_they_come_from() {
        let args = args(&[
            "--extender-url=https://127.0.0.1:9443/scheduler",
            "--tls-files=/etc/kubernetes/muster",
            "--namespace=gpus",
        ]);
        let text = configuration(&args, &authorities()).unwrap();
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(
            read["extenders"][0]["tlsConfig"],
            serde_json::json!({
                "caFile": "/etc/kubernetes/muster/ca.crt",
                "certFile": "/etc/kubernetes/muster/client.crt",
                "keyFile": "/etc/kubernetes/muster/client.key",
            })
        );
        let hint = r#"kubectl -n gpus get secret muster-extender-ca -o go-template="{{index .data \"$file\" | base64decode}}" > /etc/kubernetes/muster/$file"#;
        assert!(text.contains(hint), "{text}");
    }

    #[test]
    fn what_kube_scheduler_would_refuse_or_not_verify_is_refused_here() {
        for (flags, word) in [
            (
                vec!["--extender-url=https://a/scheduler", "--tls-files=muster"],
                "absolute path",
            ),
            (
                vec!["--extender-url=http://127.0.0.1:9443/scheduler"],
                "https://",
            ),
            (
                vec![
                    "--extender-url=https://a/scheduler",
                    "--pod-initial-backoff-seconds=5",
                    "--pod-max-backoff-seconds=2",
                ],
                "initial <= max",
            ),
            (
                vec!["--extender-url=https://a/scheduler", "--weight=0"],
                "at least 1",
            ),
        ] {
            let error = configuration(&args(&flags), &authorities()).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        let without_client = Authorities {
            client: None,
            ..authorities()
        };
        let args = args(&["--extender-url=https://a/scheduler"]);
        assert!(configuration(&args, &without_client).is_err());
    }
}
