//! Reads that end: each has a time limit of its own, and says what it could not read and which right it lacked.

use std::{fmt, future::Future, time::Duration};

use kube::{Api, Resource, api::ListParams};
use muster_serve::client::{CALL_LIMIT, CallError, within};
use serde::de::DeserializeOwned;

use super::finding::{Finding, Reason};
use crate::listing;

/// Longest time for one list, all its pages together.
const LIST_LIMIT: Duration = Duration::from_secs(60);

/// What was read, as far as it was.
#[derive(Clone, Debug, Default)]
pub struct Reading<T> {
    /// What was seen.
    pub found: T,
    /// What was not, and why: then `found` is a part, or nothing.
    pub unread: Option<Unread>,
}

impl<T> Reading<T> {
    /// Everything was seen.
    pub fn whole(found: T) -> Self {
        Self {
            found,
            unread: None,
        }
    }

    /// These findings, and what was not read. If everything was, and nothing was found, this passed.
    pub fn or_passed(
        &self,
        mut findings: Vec<Finding>,
        passed: impl FnOnce() -> Finding,
    ) -> Vec<Finding> {
        match &self.unread {
            Some(unread) => findings.push(unread.finding()),
            None if findings.is_empty() => findings.push(passed()),
            None => {}
        }
        findings
    }
}

/// Something that was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The verb that it takes.
    verb: &'static str,
    /// The resource, with its group.
    resource: String,
    why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    Forbidden(String),
    Failed(String),
    GivenUp { seen: usize },
}

impl Unread {
    /// It could not be read.
    pub fn failed(verb: &'static str, resource: impl Into<String>, error: &CallError) -> Self {
        let text = error.to_string();
        let why = match error.status_code() {
            Some(401 | 403) => Why::Forbidden(text),
            _ => Why::Failed(text),
        };
        Self {
            verb,
            resource: resource.into(),
            why,
        }
    }

    /// It was refused for a reason that no right would help with.
    pub fn refused(verb: &'static str, resource: impl Into<String>, error: &CallError) -> Self {
        Self {
            verb,
            resource: resource.into(),
            why: Why::Failed(error.to_string()),
        }
    }

    /// As a finding: never that it is fine, and never that it is not.
    pub fn finding(&self) -> Finding {
        let Self {
            verb,
            resource,
            why,
        } = self;
        let remedy = "Run it again; if it lasts, look at the API server";
        match why {
            Why::Forbidden(text) => Finding::new(
                Reason::ReadForbidden,
                resource,
                format!(
                    "this needs the verb {verb} on {resource}, so it was not looked at: {text}"
                ),
                format!("Allow {verb} on {resource}, or name a --kubeconfig that may"),
            ),
            Why::Failed(text) => Finding::new(
                Reason::ReadFailed,
                resource,
                format!("{verb} failed, so it was not looked at: {text}"),
                remedy,
            ),
            Why::GivenUp { seen } => Finding::new(
                Reason::ReadGivenUp,
                resource,
                format!(
                    "{verb} was given up after {} s and {seen} objects; the rest was not looked at",
                    LIST_LIMIT.as_secs()
                ),
                remedy,
            ),
        }
    }
}

/// `nodes`, or `deployments.apps`.
pub fn resource_name<K: Resource<DynamicType = ()>>() -> String {
    let (plural, group) = (K::plural(&()), K::group(&()));
    if group.is_empty() {
        plural.into_owned()
    } else {
        format!("{plural}.{group}")
    }
}

/// Shows every object of a list to `see`, which takes of it what is needed.
pub async fn list<K, T>(
    api: Api<K>,
    params: ListParams,
    mut found: T,
    mut see: impl FnMut(&mut T, &K),
) -> Reading<T>
where
    K: Clone + fmt::Debug + DeserializeOwned + Resource<DynamicType = ()>,
{
    let mut seen = 0;
    let all = listing::each(&api, params, |object| {
        seen += 1;
        see(&mut found, object);
    });
    let ended = tokio::time::timeout(LIST_LIMIT, all).await;
    let unread = match ended {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(Unread::failed("list", resource_name::<K>(), &error)),
        Err(_) => Some(Unread {
            verb: "list",
            resource: resource_name::<K>(),
            why: Why::GivenUp { seen },
        }),
    };
    Reading { found, unread }
}

/// One object, if it exists.
pub async fn get<K>(api: Api<K>, name: &str) -> Reading<Option<K>>
where
    K: Clone + fmt::Debug + DeserializeOwned + Resource<DynamicType = ()>,
{
    of(
        "get",
        &format!("{} {name}", resource_name::<K>()),
        api.get_opt(name),
    )
    .await
}

/// The answer to one call.
pub async fn of<T: Default>(
    verb: &'static str,
    resource: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Reading<T> {
    match within(CALL_LIMIT, call).await {
        Ok(found) => Reading::whole(found),
        Err(error) => Reading {
            found: T::default(),
            unread: Some(Unread::failed(verb, resource, &error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Node};
    use serde_json::json;

    use super::*;
    use crate::scripted_api::{ScriptedApi, failure};

    fn page(names: &[&str], token: &str) -> (u16, serde_json::Value) {
        let items: Vec<_> = names
            .iter()
            .map(|name| json!({"metadata": {"name": name}}))
            .collect();
        let metadata = json!({"continue": token});
        (
            200,
            json!({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": items}),
        )
    }

    async fn nodes(api: &ScriptedApi) -> Reading<usize> {
        let nodes: Api<Node> = Api::all(api.client());
        list(nodes, ListParams::default(), 0, |count, _| *count += 1).await
    }

    #[tokio::test]
    async fn what_is_forbidden_names_the_right_that_it_takes_and_is_never_a_pass() {
        let api = ScriptedApi::new([failure(403, "nodes is forbidden")]);
        let reading = nodes(&api).await;
        let findings = reading.or_passed(Vec::new(), || Finding::passed("", ""));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].reason, Reason::ReadForbidden);
        assert!(findings[0].message.contains("verb list on nodes"));
        assert_eq!(resource_name::<DaemonSet>(), "daemonsets.apps");
    }

    #[tokio::test]
    async fn a_list_that_breaks_off_keeps_what_was_seen_and_says_so() {
        let api = ScriptedApi::new([page(&["a", "b"], "more"), failure(410, "expired")]);
        let reading = nodes(&api).await;
        assert_eq!(reading.found, 2);
        let findings = reading.or_passed(Vec::new(), || Finding::passed("", ""));
        assert_eq!(findings[0].reason, Reason::ReadFailed);
        assert_eq!(api.asked().len(), 2);
        assert!(api.asked()[0].query.contains("limit=500"));
    }

    #[test]
    fn what_was_given_up_says_how_far_it_came() {
        let unread = Unread {
            verb: "list",
            resource: "nodes".to_owned(),
            why: Why::GivenUp { seen: 7 },
        };
        let finding = unread.finding();
        assert_eq!(finding.reason, Reason::ReadGivenUp);
        assert!(
            finding.message.contains("60 s and 7 objects"),
            "{}",
            finding.message
        );
    }
}
