//! The program: flags, start, end.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use clap::{ArgAction, Parser};
use muster_cluster::managed::ManagedPods;
use muster_serve::{
    ExtendedResourcesArgs, Program, ServeArgs,
    authority_secret::{AuthoritySecret, SecretReference},
    certificate_source::CertificateSource,
    certificates::Policy,
    server::{ANSWERS_CONDITION, HttpsServer, Limits},
    tls::Clients,
};

use crate::{
    feed,
    metrics::Reviews,
    pod::PodRules,
    routes::{self, Webhook},
};

/// The admission server of Muster.
#[derive(Parser, Clone, Debug)]
#[command(name = "muster-webhook", version)]
pub struct Args {
    /// What every program has.
    #[command(flatten)]
    pub serve: ServeArgs,

    /// Address of the HTTPS server.
    #[arg(long, default_value = "0.0.0.0:8443", value_name = "IP:PORT")]
    pub listen_addr: SocketAddr,

    /// Namespace that Muster runs in.
    #[arg(
        long,
        env = "MUSTER_NAMESPACE",
        default_value = "muster-system",
        value_name = "NAMESPACE"
    )]
    pub namespace: String,

    /// Secret with the CA; made by who starts first.
    #[arg(long, default_value = "muster-webhook-ca", value_name = "NAME")]
    pub webhook_ca_secret: String,

    /// DNS names and IP addresses that kube-apiserver reaches this program by.
    #[arg(
        long,
        value_delimiter = ',',
        required_unless_present = "tls_certificate_file",
        value_name = "NAME,..."
    )]
    pub tls_names: Vec<String>,

    /// Certificate (PEM, leaf first) that somebody else renews, such as cert-manager; without it an authority of Muster's own,
    /// in the Secret, issues one.
    #[arg(
        long,
        requires = "tls_key_file",
        conflicts_with = "tls_names",
        value_name = "FILE"
    )]
    pub tls_certificate_file: Option<PathBuf>,

    /// The private key of that certificate (PEM).
    #[arg(long, requires = "tls_certificate_file", value_name = "FILE")]
    pub tls_key_file: Option<PathBuf>,

    /// Which resources stand for devices.
    #[command(flatten)]
    pub extended_resources: ExtendedResourcesArgs,

    /// Whether kube-scheduler has Muster's extender: then pods get the marker by which it asks.
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "true|false")]
    pub extender: bool,

    /// Whether containers of managed pods for which no GPU was asked get NVIDIA_VISIBLE_DEVICES=void, so that NVIDIA's runtime gives
    /// them none that their image names.
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "true|false")]
    pub void_devices: bool,

    /// Namespaces whose pods may come to GPUs past claims: they do not get that variable.
    #[arg(
        long = "excepted-namespace",
        value_delimiter = ',',
        value_name = "NAMESPACE"
    )]
    pub excepted_namespaces: Vec<String>,

    /// Scheduler for managed pods that name none; the cluster's default without it.
    #[arg(long, value_name = "NAME")]
    pub scheduler_name: Option<String>,
}

/// Starts the program and runs it until it is told to stop.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let rules = PodRules {
        managed: ManagedPods::new(args.extended_resources.listed())?,
        extender: args.extender,
        void_devices: args.void_devices,
        excepted_namespaces: args.excepted_namespaces.into_iter().collect(),
        scheduler_name: args.scheduler_name.filter(|name| !name.is_empty()),
    };
    let program = Program::start("muster-webhook", env!("CARGO_PKG_VERSION"), &args.serve).await?;
    let answers = program.readiness.condition(ANSWERS_CONDITION);
    let facts = feed::spawn(&program, program.watch_client().await?);
    let webhook = Webhook {
        facts,
        readiness: program.readiness.clone(),
        rules: Arc::new(rules),
        reviews: Reviews::register(&program.metrics),
    };
    let source =
        if let (Some(certificate), Some(key)) = (args.tls_certificate_file, args.tls_key_file) {
            CertificateSource::Files { certificate, key }
        } else {
            let reference = SecretReference {
                namespace: args.namespace,
                name: args.webhook_ca_secret,
            };
            let client = program.write_client().await?;
            CertificateSource::Issued {
                secret: AuthoritySecret::new(client, reference, Policy::ROTATED),
                names: args.tls_names,
            }
        };
    let kept = source.spawn(&program.readiness, &program.metrics, &program.shutdown);
    let Some(kept) = kept.await else {
        return Ok(program.finish().await?);
    };
    let address = HttpsServer {
        name: "webhook",
        address: args.listen_addr,
        router: routes::router(webhook),
        certificate: kept.serving,
        clients: Clients::Anyone.always(),
        limits: Limits::OBJECTS,
        answers,
    }
    .spawn(&program.shutdown)
    .await?;
    tracing::info!(%address, "serving kube-apiserver");
    program.finish().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_somebody_else_takes_the_place_of_names_and_comes_with_its_key() {
        let parse = |flags: &[&str]| {
            let flags = ["muster-webhook"].iter().chain(flags);
            Args::try_parse_from(flags).map(|args| args.tls_certificate_file)
        };
        let certificate = "--tls-certificate-file=/tls/tls.crt";
        let key = "--tls-key-file=/tls/tls.key";
        assert_eq!(parse(&["--tls-names=a.svc"]).unwrap(), None);
        let file = parse(&[certificate, key]).unwrap();
        assert_eq!(file, Some(PathBuf::from("/tls/tls.crt")));
        for wrong in [
            &[][..],
            &[certificate],
            &[key],
            &[certificate, key, "--tls-names=a.svc"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
