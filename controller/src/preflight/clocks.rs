//! Clocks: of nodes, and of the machine that this runs on, compared with the API server's.
//!
//! A kubelet renews its Lease by its own clock, and the API server notes by its own when that field was written
//! (`metadata.managedFields`). Both times are in the same object, so their difference is that of the clocks, whenever it is read.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry,
};
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::{
    finding::{Finding, Reason},
    reading::{self, Reading},
};
use crate::listing::Names;

/// Where kubelets keep their Leases.
const NAMESPACE: &str = "kube-node-lease";
/// A larger difference is told. The API server notes whole seconds, and a slow call takes a few.
const TOLERATED: SignedDuration = SignedDuration::from_secs(5);

/// How clocks of nodes differ from the API server's.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    nodes: usize,
    differ: Names,
    unknown: Names,
    largest: SignedDuration,
}

impl Clocks {
    fn see(&mut self, lease: &Lease) {
        self.nodes += 1;
        let Some(skew) = skew(lease) else {
            self.unknown.add(|| lease.name_any());
            return;
        };
        if skew.abs() > self.largest.abs() {
            self.largest = skew;
        }
        if skew.abs() > TOLERATED {
            self.differ
                .add(|| format!("{}: {} s", lease.name_any(), skew.as_secs()));
        }
    }
}

/// By how much the kubelet's clock is ahead.
fn skew(lease: &Lease) -> Option<SignedDuration> {
    let renewed = lease.spec.as_ref()?.renew_time.as_ref()?.0;
    let entries = lease.metadata.managed_fields.iter().flatten();
    let written = entries
        .filter(|entry| wrote_renewal(entry))
        .filter_map(|entry| Some(entry.time.as_ref()?.0))
        .max()?;
    Some(renewed.duration_since(written))
}

/// Whoever wrote it last: the kubelet calls itself by its program, which is k3s or kubelite where it is a part of these.
fn wrote_renewal(entry: &ManagedFieldsEntry) -> bool {
    let fields = entry
        .fields_v1
        .as_ref()
        .map(|fields| &fields.0["f:spec"]["f:renewTime"]);
    fields.is_some_and(|field| !field.is_null())
}

/// Reads the Leases of the nodes.
pub async fn read(client: &Client) -> Reading<Clocks> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    reading::list(
        leases,
        ListParams::default(),
        Clocks::default(),
        Clocks::see,
    )
    .await
}

/// Clocks of the nodes.
pub fn of_nodes(clocks: &Reading<Clocks>) -> Vec<Finding> {
    let object = "nodes";
    let Clocks {
        nodes,
        differ,
        unknown,
        largest,
    } = &clocks.found;
    let mut findings = Vec::new();
    if !differ.is_empty() {
        findings.push(Finding::new(
            Reason::ClockSkew,
            object,
            format!(
                "clocks of {} of {nodes} nodes differ from the API server's by more than {} s ({})",
                differ.count(),
                TOLERATED.as_secs(),
                differ.list()
            ),
            "Let NTP set them: certificates, tokens and Leases go by the clock",
        ));
    }
    if !unknown.is_empty() || (*nodes == 0 && clocks.unread.is_none()) {
        findings.push(Finding::new(
            Reason::NotVisible,
            object,
            format!(
                "Leases of {} of {nodes} nodes do not tell their clocks ({})",
                unknown.count(),
                unknown.list()
            ),
            "Make sure that NTP sets them",
        ));
    }
    clocks.or_passed(findings, || {
        Finding::passed(
            object,
            format!(
                "clocks of {nodes} nodes differ from the API server's by {} s at most",
                largest.abs().as_secs()
            ),
        )
    })
}

/// The API server's clock, as its answers are dated.
pub async fn read_server(client: &Client) -> Reading<Option<(Timestamp, Timestamp)>> {
    let call = async {
        let request = http::Request::get("/version")
            .body(kube::client::Body::empty())
            .map_err(kube::Error::HttpError)?;
        let answer = client.send(request).await?;
        let now = Timestamp::now();
        let date = answer
            .headers()
            .get("date")
            .and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
        Ok(date.map(|date| (date.timestamp(), now)))
    };
    reading::of("get", "the path /version", call).await
}

/// The clock here.
pub fn of_here(times: &Reading<Option<(Timestamp, Timestamp)>>) -> Vec<Finding> {
    let object = "this machine";
    let mut findings = Vec::new();
    let mut difference = SignedDuration::ZERO;
    match times.found {
        Some((server, here)) => {
            difference = here.duration_since(server);
            if difference.abs() > TOLERATED {
                findings.push(Finding::new(
                    Reason::ClockSkew,
                    object,
                    format!(
                        "its clock is {} s {} the API server's",
                        difference.abs().as_secs(),
                        if difference.is_negative() {
                            "behind"
                        } else {
                            "ahead of"
                        }
                    ),
                    "Let NTP set both",
                ));
            }
        }
        None if times.unread.is_none() => findings.push(Finding::new(
            Reason::NotVisible,
            object,
            "the API server does not date its answers, so the clocks were not compared",
            "",
        )),
        None => {}
    }
    times.or_passed(findings, || {
        Finding::passed(
            object,
            format!(
                "its clock differs from the API server's by {} s",
                difference.abs().as_secs()
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn lease(renewed: &str, manager: &str, fields: &Value, written: &str) -> Lease {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "managedFields": [
                {"manager": "other", "operation": "Update", "time": "2026-01-01T09:00:00Z", "fieldsV1": {"f:metadata": {}}},
                {"manager": manager, "operation": "Update", "time": written, "fieldsV1": fields}]},
            "spec": {"renewTime": renewed},
        }))
        .unwrap()
    }

    fn reason(lease: &Lease) -> Reason {
        let mut clocks = Clocks::default();
        clocks.see(lease);
        of_nodes(&Reading::whole(clocks))[0].reason
    }

    #[test]
    fn a_clock_that_differs_is_told_whichever_way_and_one_that_is_not_told_is_no_pass() {
        let fields = json!({"f:spec": {"f:renewTime": {}}});
        let other = json!({"f:metadata": {"f:labels": {}}});
        let written = "2026-01-01T10:00:00Z";
        for (renewed, manager, fields, expected) in [
            (
                "2026-01-01T10:00:00.900000Z",
                "kubelet",
                &fields,
                Reason::Passed,
            ),
            (
                "2026-01-01T09:59:57.100000Z",
                "kubelet",
                &fields,
                Reason::Passed,
            ),
            (
                "2026-01-01T10:00:30.000000Z",
                "kubelet",
                &fields,
                Reason::ClockSkew,
            ),
            (
                "2026-01-01T09:58:00.000000Z",
                "kubelet",
                &fields,
                Reason::ClockSkew,
            ),
            (
                "2026-01-01T10:00:00.000000Z",
                "kubelet",
                &other,
                Reason::NotVisible,
            ),
            (
                "2026-01-01T10:00:00.000000Z",
                "k3s",
                &fields,
                Reason::Passed,
            ),
            (
                "2026-01-01T10:00:00.000000Z",
                "k3s",
                &other,
                Reason::NotVisible,
            ),
        ] {
            let lease = lease(renewed, manager, fields, written);
            assert_eq!(reason(&lease), expected, "{renewed} {manager}");
        }
        assert_eq!(reason(&Lease::default()), Reason::NotVisible);
        assert_eq!(of_nodes(&Reading::default())[0].reason, Reason::NotVisible);
    }

    #[test]
    fn the_clock_here_is_compared_with_the_date_of_an_answer() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        for (times, expected, told) in [
            (Some((at(100), at(101))), Reason::Passed, "by 1 s"),
            (
                Some((at(100), at(200))),
                Reason::ClockSkew,
                "is 100 s ahead of",
            ),
            (
                Some((at(200), at(100))),
                Reason::ClockSkew,
                "is 100 s behind",
            ),
            (None, Reason::NotVisible, "does not date"),
        ] {
            let found = of_here(&Reading::whole(times));
            assert_eq!(found[0].reason, expected);
            assert!(found[0].message.contains(told), "{found:?}");
        }
    }
}
