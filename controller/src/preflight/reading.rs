//! Reads that end: each has a time limit of its own, all together have another, and each says what it could not read and which
//! right it lacked.
//!
//! The limit of all together holds within [`in_time`]. It is the task's, and no parameter of each read, so that none can
//! be without it.

use std::{fmt, future::Future, time::Duration};

use kube::{Api, Resource, api::ListParams};
use muster_serve::client::{CALL_LIMIT, CallError};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::finding::{Finding, Reason};
use crate::listing;

/// Longest time for one list, all its pages together.
const LIST_LIMIT: Duration = Duration::from_secs(60);
/// Longest time for all reads together: the pod that `helm test` runs has 280 s, its image and its start included.
pub const ALL_LIMIT: Duration = Duration::from_secs(200);

tokio::task_local! {
    /// When all reads of this task are to have ended.
    static END: Instant;
}

/// Does something whose reads end within [`ALL_LIMIT`] from now. What is not read by then is told as not looked at.
pub async fn in_time<T>(reads: impl Future<Output = T>) -> T {
    END.scope(Instant::now() + ALL_LIMIT, reads).await
}

/// Ends a read after `limit`, or when all reads are to have ended; then it says which of the two it was.
pub(super) async fn ended<T>(limit: Duration, read: impl Future<Output = T>) -> Result<T, Over> {
    let own = Instant::now() + limit;
    let end = END.try_with(|end| *end).unwrap_or(own);
    let over = if end < own { Over::All } else { Over::Own };
    // A read for which no time is left is not begun.
    if end <= Instant::now() {
        return Err(Over::All);
    }
    tokio::time::timeout_at(end.min(own), read)
        .await
        .map_err(|_| over)
}

/// Which limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// That of the read itself.
    Own,
    /// That of all reads.
    All,
}

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
    OutOfTime { seen: usize },
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

    /// All reads together took too long, before this one was begun or while it had seen so many objects.
    pub(super) fn out_of_time(
        verb: &'static str,
        resource: impl Into<String>,
        seen: usize,
    ) -> Self {
        Self {
            verb,
            resource: resource.into(),
            why: Why::OutOfTime { seen },
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
            Why::OutOfTime { seen } => Finding::new(
                Reason::ReadGivenUp,
                resource,
                format!(
                    "{verb} was given up after {seen} objects, since all reads together may take {} s; the rest was not looked at",
                    ALL_LIMIT.as_secs()
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
    let ended = ended(LIST_LIMIT, all).await;
    let unread = match ended {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(Unread::failed("list", resource_name::<K>(), &error)),
        Err(Over::Own) => Some(Unread {
            verb: "list",
            resource: resource_name::<K>(),
            why: Why::GivenUp { seen },
        }),
        Err(Over::All) => Some(Unread::out_of_time("list", resource_name::<K>(), seen)),
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
    match one(call).await {
        Ok(found) => Reading::whole(found),
        Err(failure) => Reading {
            found: T::default(),
            unread: Some(failure.unread(verb, resource)),
        },
    }
}

/// One call.
pub async fn one<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, CallFailure> {
    match ended(CALL_LIMIT, call).await {
        Ok(answer) => answer.map_err(|error| CallFailure::Call(CallError::Api(Box::new(error)))),
        Err(Over::Own) => Err(CallFailure::Call(CallError::Timeout(CALL_LIMIT))),
        Err(Over::All) => Err(CallFailure::OutOfTime),
    }
}

/// Why a call gave no result.
#[derive(Debug)]
pub enum CallFailure {
    /// The answer, or that there was none in time.
    Call(CallError),
    /// All reads together took too long.
    OutOfTime,
}

impl CallFailure {
    /// As what was not read.
    pub fn unread(&self, verb: &'static str, resource: &str) -> Unread {
        match self {
            Self::Call(error) => Unread::failed(verb, resource, error),
            Self::OutOfTime => Unread::out_of_time(verb, resource, 0),
        }
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

    /// Answers every list with a page of one object and with another page to come, and each takes 9 s.
    fn endless() -> kube::Client {
        let service = tower::service_fn(|_| async {
            tokio::time::sleep(Duration::from_secs(9)).await;
            let (status, body) = page(&["a"], "more");
            let body = kube::client::Body::from(serde_json::to_vec(&body).unwrap());
            let answer = http::Response::builder().status(status).body(body).unwrap();
            Ok::<_, std::io::Error>(answer)
        });
        kube::Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn all_reads_together_end_and_what_was_not_begun_is_told_as_not_looked_at() {
        let begun = Instant::now();
        let client = endless();
        let read = || {
            let nodes: Api<Node> = Api::all(client.clone());
            list(nodes, ListParams::default(), 0, |count, _| *count += 1)
        };
        let readings = in_time(async {
            [
                read().await,
                read().await,
                read().await,
                read().await,
                read().await,
            ]
        });
        let readings = readings.await;
        assert_eq!(begun.elapsed(), ALL_LIMIT);
        let seen = readings.each_ref().map(|reading| reading.found);
        assert_eq!(seen, [6, 6, 6, 2, 0]);
        for (position, reading) in readings.iter().enumerate() {
            let findings = reading.or_passed(Vec::new(), || Finding::passed("", ""));
            assert_eq!(findings.len(), 1);
            assert_eq!(findings[0].reason, Reason::ReadGivenUp);
            let which = if position < 3 {
                "after 60 s and 6 objects"
            } else {
                "together may take 200 s"
            };
            assert!(findings[0].message.contains(which), "{:?}", findings[0]);
        }
        // Outside of that time a read has only its own limit, and calls end in the same way.
        assert!(read().await.found > 0);
        let call = in_time(async {
            tokio::time::sleep(ALL_LIMIT).await;
            of("get", "the path /version", std::future::ready(Ok(1))).await
        });
        let call = call.await;
        assert_eq!(call.found, 0);
        assert_eq!(call.unread.unwrap().finding().reason, Reason::ReadGivenUp);
    }

    #[test]
    fn the_pod_of_helm_test_lives_longer_than_all_reads() {
        let chart = include_str!("../../../deploy/helm/muster/templates/tests/preflight.yaml");
        let lives = chart
            .lines()
            .find_map(|line| line.trim().strip_prefix("activeDeadlineSeconds: "));
        let lives: u64 = lives.unwrap().parse().unwrap();
        // Its image has to come, too.
        assert!(lives >= ALL_LIMIT.as_secs() + 60);
    }
}
