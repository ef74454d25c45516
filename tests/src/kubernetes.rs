//! Waiting for what the API server says.
//!
//! A test waits for a condition with a deadline, never for a time; and when the deadline passes, the
//! failure says what was seen last.

use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};

/// Longest time that a scenario waits for one condition. On an idle machine the slowest of them takes a quarter of it.
pub const LIMIT: Duration = Duration::from_mins(1);

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(100);

/// What a look at a condition has shown.
#[derive(Debug)]
pub enum Progress<T> {
    /// It holds; the value is what was waited for.
    Done(T),
    /// It does not hold yet; the text says what was seen instead.
    NotYet(String),
    /// It never will, for this reason: waiting on would only hide it.
    Never(anyhow::Error),
}

impl Progress<()> {
    /// Done if `holds`, else not yet for the reason that `seen` tells.
    pub fn when(holds: bool, seen: impl FnOnce() -> String) -> Self {
        if holds {
            Self::Done(())
        } else {
            Self::NotYet(seen())
        }
    }
}

/// Looks until the condition holds. An error of a look counts as "not yet": the API server may be
/// between two states; but it is told when the deadline passes.
pub async fn eventually<T>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<Progress<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        let seen = match look().await {
            Ok(Progress::Done(value)) => return Ok(value),
            Ok(Progress::NotYet(seen)) => seen,
            Ok(Progress::Never(why)) => {
                return Err(why.context(format!("waited until {what}")));
            }
            Err(error) => format!("{error:#}"),
        };
        if Instant::now() >= deadline {
            bail!(
                "waited {} s until {what}; seen last: {seen}",
                limit.as_secs()
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Looks for all of `duration` and fails as soon as the condition does not hold.
pub async fn always(
    what: &str,
    duration: Duration,
    mut look: impl AsyncFnMut() -> Result<Progress<()>>,
) -> Result<()> {
    let deadline = Instant::now() + duration;
    while Instant::now() < deadline {
        match look().await? {
            Progress::Done(()) => {}
            Progress::NotYet(seen) => bail!("expected that {what}; seen: {seen}"),
            Progress::Never(why) => return Err(why),
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Creates an object; the error names it.
pub async fn create<K>(api: &Api<K>, object: &K) -> Result<K>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    api.create(&PostParams::default(), object)
        .await
        .with_context(|| format!("cannot create {}", object.name_any()))
}

/// What the API server said to an object that somebody creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is there.
    Taken,
    /// It was refused, in these words.
    Refused(String),
}

/// Creates an object, as often as it takes until the API server has decided: where the machine is busy the API server waits for a webhook in
/// vain, and what it says then refuses nothing for good.
pub async fn create_or_be_refused<K>(api: &Api<K>, object: &K) -> Result<Answer>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let what = format!("the API server decides about {}", object.name_any());
    let mut asked_before = false;
    eventually(&what, LIMIT, async || {
        let said = api.create(&PostParams::default(), object).await.map(drop);
        let progress = match decision(said, asked_before) {
            Ok(answer) => Progress::Done(answer),
            Err(undecided) => Progress::NotYet(undecided),
        };
        asked_before = true;
        Ok(progress)
    })
    .await
}

/// In what the API server says when it waited in vain. The address of a webhook says `timeout=` in any case.
const LATE: [&str; 5] = [
    "deadline exceeded",
    "client.timeout exceeded",
    "handshake timeout",
    "i/o timeout",
    "timed out",
];

/// What was decided, or why nothing was. What is there and was asked for before is what was made then. A webhook that breaks is not late:
/// asked again it might do better, and nobody would know.
fn decision(said: kube::Result<()>, asked_before: bool) -> Result<Answer, String> {
    match said {
        Ok(()) => Ok(Answer::Taken),
        Err(kube::Error::Api(status)) if asked_before && status.is_already_exists() => {
            Ok(Answer::Taken)
        }
        Err(kube::Error::Api(status)) if refuses(&status) => {
            Ok(Answer::Refused(status.message.clone()))
        }
        Err(error) => Err(error.to_string()),
    }
}

fn refuses(status: &kube::core::Status) -> bool {
    let message = status.message.to_lowercase();
    let is_late = LATE.iter().any(|words| message.contains(words));
    ((400..500).contains(&status.code) && status.code != 429) || (status.code == 500 && !is_late)
}

/// Applies an object (server-side apply), whatever was there.
pub async fn apply<K>(api: &Api<K>, object: &K) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let mut value = serde_json::to_value(object)?;
    value["apiVersion"] = K::api_version(&()).into();
    value["kind"] = K::kind(&()).into();
    api.patch(
        &object.name_any(),
        &PatchParams::apply("muster-tests").force(),
        &Patch::Apply(&value),
    )
    .await
    .with_context(|| format!("cannot apply {}", object.name_any()))
}

/// Deletes an object if it is there.
pub async fn delete<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot delete {name}")),
    }
}

/// All objects of a kind in a namespace (or all namespaces with `None`).
pub async fn list<K>(client: &Client, namespace: Option<&str>) -> Result<Vec<K>>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let api: Api<K> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    Ok(api.list(&ListParams::default()).await?.items)
}

/// Fails unless the pod runs, and none of its containers was ever started again.
pub fn ensure_untouched(pod: &Pod) -> Result<()> {
    let status = pod.status.clone().unwrap_or_default();
    let containers = status.container_statuses.unwrap_or_default();
    let is_untouched = containers.iter().all(|container| {
        let state = container.state.as_ref();
        let runs = state.is_some_and(|state| state.running.is_some());
        runs && container.restart_count == 0
    });
    ensure!(
        !containers.is_empty() && is_untouched,
        "{} is {:?}: {containers:?}",
        pod.name_any(),
        status.phase
    );
    Ok(())
}

/// Whether the pod ended for good.
#[must_use]
pub fn is_terminal(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_deadline_tells_what_was_seen_last() {
        let mut looks = 0;
        let error = eventually(
            "the count is 1000",
            Duration::from_millis(250),
            async || {
                looks += 1;
                Ok(Progress::<()>::NotYet(format!("the count is {looks}")))
            },
        )
        .await
        .unwrap_err();
        assert!(
            error.to_string().contains("seen last: the count is"),
            "{error}"
        );
    }

    #[test]
    fn a_webhook_that_is_late_refuses_nothing_one_that_breaks_does_and_what_was_made_meanwhile_is_taken()
     {
        let refused = |message: &str| Some(Answer::Refused(message.to_owned()));
        let late = "failed calling webhook \"pods.muster.dev\": context deadline exceeded";
        let broken = "failed calling webhook \"pods.muster.dev\": failed to call webhook: Post \"https://127.0.0.1:9443/mutate?timeout=3s\": EOF";
        for (code, reason, message, asked_before, expected) in [
            (500, "InternalError", late, false, None),
            (
                500,
                "InternalError",
                "net/http: TLS handshake timeout",
                true,
                None,
            ),
            (500, "InternalError", broken, true, refused(broken)),
            (504, "Timeout", "request did not complete", true, None),
            (429, "TooManyRequests", "too many requests", false, None),
            (
                403,
                "Forbidden",
                "NotPermitted: no",
                false,
                refused("NotPermitted: no"),
            ),
            (
                422,
                "Invalid",
                "InvalidValue: no",
                true,
                refused("InvalidValue: no"),
            ),
            (
                409,
                "AlreadyExists",
                "there is one",
                false,
                refused("there is one"),
            ),
            (
                409,
                "AlreadyExists",
                "there is one",
                true,
                Some(Answer::Taken),
            ),
        ] {
            let status = kube::core::Status::failure(message, reason).with_code(code);
            let said = Err(kube::Error::Api(Box::new(status)));
            let decided = decision(said, asked_before).ok();
            assert_eq!(decided, expected, "{code} {asked_before}");
        }
        assert_eq!(decision(Ok(()), false).ok(), Some(Answer::Taken));
    }

    #[tokio::test]
    async fn what_must_always_hold_fails_at_once() {
        let started = Instant::now();
        let result = always("nothing happens", Duration::from_mins(1), async || {
            Ok(Progress::NotYet("something".to_owned()))
        })
        .await;
        assert!(result.is_err());
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
