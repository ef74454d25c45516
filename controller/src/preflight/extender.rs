//! Whether the extender answers kube-scheduler, on the port that serves and with the certificates that kube-scheduler has.
//!
//! Its readiness is told by another port, without TLS ([`crate::extender_probe`] asks it): an extender can be ready, and its Service or its
//! certificates be wrong all the same. So it is asked what kube-scheduler asks: a filter call, of a pod that does not exist and
//! no node. It writes nothing, and has nothing to remember of it.

use std::{error::Error, io, path::Path, time::Duration};

use http::{Request, Uri};
use kube::config::Kubeconfig;
use muster_serve::{
    authority_secret::{BUNDLE, CLIENT_CERTIFICATE, CLIENT_KEY},
    client,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::finding::{Finding, Reason};
use crate::{listing, scheduler_config::safety};

/// Longest time for an answer: more than kube-scheduler waits, so that a slow one is told from none.
const LIMIT: Duration = Duration::from_secs(5);
/// As long as kube-scheduler waits.
const SCHEDULER_WAITS: Duration = Duration::from_secs(1);

/// Whom to ask, and as whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    /// As in `urlPrefix`.
    pub url: String,
    /// As in `tlsConfig`.
    pub tls: Value,
}

impl Address {
    /// As kube-scheduler's configuration says it.
    pub fn configured(entry: &Value) -> Self {
        Self {
            url: entry["urlPrefix"].as_str().unwrap_or_default().to_owned(),
            tls: entry["tlsConfig"].clone(),
        }
    }

    /// At this URL, with the files of the Secret that the extender's authority is in.
    pub fn with_files(url: &str, directory: &Path) -> Self {
        Self {
            url: url.to_owned(),
            tls: json!({
                "caFile": directory.join(BUNDLE),
                "certFile": directory.join(CLIENT_CERTIFICATE),
                "keyFile": directory.join(CLIENT_KEY),
            }),
        }
    }

    /// Whether it is a Service's name, which pods reach. Another address is kube-scheduler's machine's way, and need not be theirs.
    fn is_of_a_service(&self) -> bool {
        let parsed: Result<Uri, _> = self.url.parse();
        parsed.is_ok_and(|url| url.host().is_some_and(safety::is_a_services_name))
    }

    /// The files that are named and are not on this machine.
    fn absent_files(&self) -> Vec<&str> {
        [
            ("caData", "caFile"),
            ("certData", "certFile"),
            ("keyData", "keyFile"),
        ]
        .into_iter()
        .filter(|(data, _)| self.tls[*data].as_str().is_none_or(str::is_empty))
        .filter_map(|(_, file)| self.tls[file].as_str())
        .filter(|file| !file.is_empty() && !Path::new(file).is_file())
        .collect()
    }

    /// The same for a client of the API server's kind: what it takes is what kube-scheduler takes.
    fn kubeconfig(&self) -> Result<Kubeconfig, serde_json::Error> {
        let tls = |field: &str| &self.tls[field];
        serde_json::from_value(json!({
            "current-context": "extender",
            "contexts": [{"name": "extender", "context": {"cluster": "extender", "user": "scheduler"}}],
            "clusters": [{"name": "extender", "cluster": {
                "server": self.url.trim_end_matches('/'),
                "certificate-authority": tls("caFile"),
                "certificate-authority-data": tls("caData"),
                "tls-server-name": tls("serverName"),
            }}],
            "users": [{"name": "scheduler", "user": {
                "client-certificate": tls("certFile"),
                "client-certificate-data": tls("certData"),
                "client-key": tls("keyFile"),
                "client-key-data": tls("keyData"),
            }}],
        }))
    }
}

/// What came of asking.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The extender's answer, and how long it took.
    Answered(Duration),
    /// Another answer.
    Other(String),
    /// The certificates are not accepted by one side or the other.
    Certificates(String),
    /// The machine is there, and nothing listens.
    Refused(String),
    /// Nothing came, in time or at all.
    NotReached(String),
    /// What to ask with is of no use.
    Unusable(String),
    /// It names files of another machine.
    FilesElsewhere(Vec<String>),
}

/// Asks as kube-scheduler does.
pub async fn ask(address: &Address) -> Outcome {
    let absent = address.absent_files();
    if !absent.is_empty() {
        return Outcome::FilesElsewhere(absent.into_iter().map(str::to_owned).collect());
    }
    let kubeconfig = match address.kubeconfig() {
        Ok(kubeconfig) => kubeconfig,
        Err(error) => return Outcome::Unusable(error.to_string()),
    };
    let client = match client::described_client(kubeconfig, &address.url).await {
        Ok(client) => client,
        Err(error) => return Outcome::Unusable(listing::with_causes(&error)),
    };
    let question = json!({
        "Pod": {"metadata": {"name": "muster-preflight", "namespace": "default", "uid": ""},
            "spec": {"containers": null}, "status": {}},
        "Nodes": null,
        "NodeNames": [],
    });
    let request = Request::post("/filter")
        .header("content-type", "application/json")
        .body(question.to_string().into_bytes());
    let request = match request {
        Ok(request) => request,
        Err(error) => return Outcome::Unusable(error.to_string()),
    };
    let asked = Instant::now();
    match tokio::time::timeout(LIMIT, client.request_text(request)).await {
        Ok(Ok(answer)) => read(&answer, asked.elapsed()),
        Ok(Err(error)) => failed(&error),
        Err(_) => Outcome::NotReached(format!("no answer in {} s", LIMIT.as_secs())),
    }
}

/// The answer is the extender's if it says which nodes are left.
fn read(answer: &str, took: Duration) -> Outcome {
    let document: Result<Value, _> = serde_json::from_str(answer);
    let text = || Outcome::Other(answer.chars().take(200).collect());
    match document {
        Ok(document)
            if document["Error"]
                .as_str()
                .is_some_and(|error| !error.is_empty()) =>
        {
            text()
        }
        Ok(document) if document["NodeNames"].is_array() => Outcome::Answered(took),
        _ => text(),
    }
}

fn failed(error: &kube::Error) -> Outcome {
    if let kube::Error::Api(status) = error {
        return Outcome::Other(format!("HTTP {}: {}", status.code, status.message));
    }
    let text = listing::with_causes(error);
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            // TLS reports all that it refuses, and is refused, in this way.
            Some(io::ErrorKind::InvalidData) => return Outcome::Certificates(text),
            Some(io::ErrorKind::ConnectionRefused) => return Outcome::Refused(text),
            _ => cause = cause_of(error),
        }
    }
    Outcome::NotReached(text)
}

/// An error of the machine that has another one within says only the cause of that as its own.
fn cause_of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
    {
        Some(within) => Some(within),
        None => error.source(),
    }
}

/// What that means. From outside of the cluster nobody reaches a Service, and a pod need not reach what a machine of the control plane does,
/// so a silence says nothing there, and a slow way little.
pub fn findings(address: &Address, outcome: &Outcome, in_cluster: bool) -> Finding {
    let url = &address.url;
    let says_something = in_cluster && address.is_of_a_service();
    match outcome {
        Outcome::Answered(took) if *took <= SCHEDULER_WAITS => Finding::passed(
            url,
            format!(
                "the extender answers kube-scheduler's certificate in {} ms",
                took.as_millis()
            ),
        ),
        Outcome::Answered(took) if !says_something => Finding::new(
            Reason::NotReachedFromHere,
            url,
            format!(
                "from here the extender answered after {} ms, which does not say how soon kube-scheduler is answered; it waits for {} s",
                took.as_millis(),
                SCHEDULER_WAITS.as_secs()
            ),
            "Try it from kube-scheduler's machine, or by helm test",
        ),
        Outcome::Answered(took) => Finding::new(
            Reason::ExtenderUnreachable,
            url,
            format!(
                "the extender answered after {} ms; kube-scheduler waits for {} s",
                took.as_millis(),
                SCHEDULER_WAITS.as_secs()
            ),
            "Look at the CPU that its pods have, and at the network",
        ),
        Outcome::Other(text) => Finding::new(
            Reason::ExtenderAnswerWrong,
            url,
            format!("what answers there is not an extender that can answer: {text}"),
            "Look at urlPrefix, and at the extender's log",
        ),
        Outcome::Certificates(text) => Finding::new(
            Reason::ExtenderTlsFailed,
            url,
            format!(
                "the extender and kube-scheduler do not accept each other's certificates: {text}"
            ),
            "Write kube-scheduler's configuration anew by muster-controller scheduler-config, and restart kube-scheduler, which reads it once",
        ),
        Outcome::Refused(text) if says_something => Finding::new(
            Reason::ExtenderUnreachable,
            url,
            format!("nothing listens there: {text}"),
            "Look at the extender's pods and its Service",
        ),
        Outcome::Refused(text) | Outcome::NotReached(text) => Finding::new(
            Reason::NotReachedFromHere,
            url,
            format!(
                "the extender was not reached from here, which does not say whether kube-scheduler reaches it: {text}"
            ),
            "Try it from kube-scheduler's machine, or by helm test; a NetworkPolicy may stand between",
        ),
        Outcome::Unusable(text) => Finding::new(
            Reason::ExtenderTlsFailed,
            url,
            format!("kube-scheduler could not call it with what it is given: {text}"),
            "Write kube-scheduler's configuration anew by muster-controller scheduler-config",
        ),
        Outcome::FilesElsewhere(files) => Finding::new(
            Reason::NotReachedFromHere,
            url,
            format!(
                "the certificates are files that are not on this machine ({}), so it was not asked",
                files.join(", ")
            ),
            "Run it on kube-scheduler's machine, or name the files by --extender-tls-files",
        ),
    }
}

/// Nobody says where it is, or with which certificates to ask.
pub fn not_given() -> Finding {
    Finding::new(
        Reason::NotGiven,
        "extender",
        "there is nothing to ask it with, so it was not asked",
        "Give --scheduler-config, or the certificates by --extender-tls-files; helm test does",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        Address::configured(
            &json!({"urlPrefix": "https://127.0.0.1:1/scheduler", "tlsConfig": {"serverName": "a"}}),
        )
    }

    #[test]
    fn only_a_list_of_nodes_is_the_extenders_answer() {
        let took = Duration::from_millis(3);
        for (text, answered) in [
            (
                r#"{"NodeNames":[],"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}"#,
                true,
            ),
            (r#"{"NodeNames":[],"Error":"no cache"}"#, false),
            (r#"{"NodeNames":null}"#, false),
            ("<html>", false),
            ("", false),
        ] {
            assert_eq!(
                read(text, took) == Outcome::Answered(took),
                answered,
                "{text}"
            );
        }
    }

    #[test]
    fn a_silence_is_an_error_only_where_it_says_something() {
        let text = || "x".to_owned();
        let service = Address::configured(
            &json!({"urlPrefix": "https://muster-extender.muster-system.svc:443/scheduler"}),
        );
        for (outcome, in_cluster, expected) in [
            (
                Outcome::Answered(Duration::from_millis(4)),
                true,
                Reason::Passed,
            ),
            (
                Outcome::Answered(Duration::from_millis(1500)),
                true,
                Reason::ExtenderUnreachable,
            ),
            (
                Outcome::Answered(Duration::from_millis(1500)),
                false,
                Reason::NotReachedFromHere,
            ),
            (Outcome::Other(text()), false, Reason::ExtenderAnswerWrong),
            (
                Outcome::Certificates(text()),
                false,
                Reason::ExtenderTlsFailed,
            ),
            (Outcome::Refused(text()), true, Reason::ExtenderUnreachable),
            (Outcome::Refused(text()), false, Reason::NotReachedFromHere),
            (
                Outcome::NotReached(text()),
                true,
                Reason::NotReachedFromHere,
            ),
            (Outcome::Unusable(text()), true, Reason::ExtenderTlsFailed),
            (
                Outcome::FilesElsewhere(vec![text()]),
                true,
                Reason::NotReachedFromHere,
            ),
        ] {
            let found = findings(&service, &outcome, in_cluster);
            assert_eq!(found.reason, expected, "{outcome:?}");
        }
        // As kube-scheduler's own machine reaches it.
        let found = findings(&address(), &Outcome::Refused(text()), true);
        assert_eq!(found.reason, Reason::NotReachedFromHere);
    }

    #[test]
    fn what_tls_refuses_is_told_from_what_is_not_there_however_deep_it_is() {
        let error = |kind: io::ErrorKind| io::Error::new(kind, "x");
        for (error, certificates, refused) in [
            (error(io::ErrorKind::InvalidData), true, false),
            (
                io::Error::other(error(io::ErrorKind::InvalidData)),
                true,
                false,
            ),
            (
                io::Error::other(error(io::ErrorKind::ConnectionRefused)),
                false,
                true,
            ),
            (error(io::ErrorKind::TimedOut), false, false),
            (io::Error::other("dns"), false, false),
        ] {
            let outcome = failed(&kube::Error::Service(Box::new(error)));
            assert_eq!(
                matches!(outcome, Outcome::Certificates(_)),
                certificates,
                "{outcome:?}"
            );
            assert_eq!(
                matches!(outcome, Outcome::Refused(_)),
                refused,
                "{outcome:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_port_on_which_nothing_listens_refuses_and_files_of_another_machine_are_not_guessed()
    {
        muster_serve::tls::install_provider();
        let outcome = ask(&address()).await;
        assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
        let elsewhere =
            Address::with_files("https://127.0.0.1:1/scheduler", Path::new("/nonexistent"));
        let outcome = ask(&elsewhere).await;
        assert!(
            matches!(&outcome, Outcome::FilesElsewhere(files) if files.len() == 3),
            "{outcome:?}"
        );
        let mut broken = address();
        broken.tls["caData"] = json!("no base64");
        let outcome = ask(&broken).await;
        assert!(matches!(outcome, Outcome::Unusable(_)), "{outcome:?}");
    }
}
