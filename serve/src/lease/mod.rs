//! Leader election over a `coordination.k8s.io/v1` Lease, client-go's way.
//!
//! Expiry is judged by the time that passed on *our* monotonic clock since *we* last saw the lease change; the
//! times in the lease are for people. So clocks may differ, only their rates may not.
//!
//! Why no two lead at once, as long as clock rates agree: a leader counts its renewals from before it *sent*
//! them and stops leading `renew_limit` after the last that succeeded, also while a call hangs. Another candidate
//! waits for `duration` from when it *saw* that renewal, which is later, and `duration` is longer. Every write
//! carries the resourceVersion, so of two candidates one wins. A write whose answer is lost is settled by reading:
//! if it was carried out, we find ourselves the holder.
//!
//! **It elects, it does not fence**: a process that is paused may go on for a moment when it wakes up. Whoever
//! leads must put a precondition on what it writes.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::watch, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::client::{CallError, within};

/// Field manager of the writes of a Lease.
const FIELD_MANAGER: &str = "muster-lease";
/// Longest time for giving the lease up at the end.
const RELEASE_LIMIT: Duration = Duration::from_secs(3);

/// Which lease, and how it is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Who we are: unique among all processes that ever compete for it.
    pub identity: String,
    /// How long others wait after the last renewal that they saw. Whole seconds.
    pub duration: Duration,
    /// How long after its last successful renewal a leader stops leading.
    pub renew_limit: Duration,
    /// Pause between two attempts.
    pub retry: Duration,
}

/// Settings under which two could lead at once, or none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "lease times must satisfy duration > renew limit > 2 x retry > 0, got {duration:?}, {renew_limit:?}, {retry:?} (try 15 s, 10 s, 2 s)"
)]
pub struct SettingsError {
    duration: Duration,
    renew_limit: Duration,
    retry: Duration,
}

/// Whether this process leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Another one leads, or nobody.
    Follower,
    /// This one leads, until the channel says otherwise.
    Leader,
}

/// Competes for the lease until `stop`, then gives it up. Cancel `stop` only after the work of a leader has ended.
/// The lease is also given up when every receiver is dropped.
pub fn spawn(
    client: Client,
    settings: LeaseSettings,
    stop: CancellationToken,
) -> Result<(watch::Receiver<Leadership>, JoinHandle<()>), SettingsError> {
    if settings.duration <= settings.renew_limit
        || settings.renew_limit <= settings.retry * 2
        || settings.retry.is_zero()
    {
        return Err(SettingsError {
            duration: settings.duration,
            renew_limit: settings.renew_limit,
            retry: settings.retry,
        });
    }
    let (sender, receiver) = watch::channel(Leadership::Follower);
    let candidate = Candidate {
        leases: Api::namespaced(client, &settings.namespace),
        settings,
        seen: None,
        is_certain: false,
    };
    let task = tokio::spawn(candidate.run(sender, stop));
    Ok((receiver, task))
}

struct Candidate {
    leases: Api<Lease>,
    settings: LeaseSettings,
    seen: Option<Sighting>,
    /// Whether the lease is stored as it was last seen, as far as we know: false while a write of ours has no
    /// answer, or after one that failed. Then it is read before it is written.
    is_certain: bool,
}

/// The lease as it was last seen, and since when it has been so on our clock.
struct Sighting {
    lease: Lease,
    since: Instant,
}

/// How an attempt to hold the lease ended.
enum Attempt {
    /// We hold it.
    Held,
    /// Another one does.
    HeldByOther,
    /// Unknown, or lost against another writer: read and try again.
    Failed,
}

impl Candidate {
    async fn run(mut self, leadership: watch::Sender<Leadership>, stop: CancellationToken) {
        let ended = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = leadership.closed() => {}
            }
        };
        tokio::select! {
            () = ended => {}
            () = self.compete(&leadership) => {}
        }
        leadership.send_replace(Leadership::Follower);
        self.release().await;
    }

    async fn compete(&mut self, leadership: &watch::Sender<Leadership>) {
        loop {
            let mut renewed_at = self.acquire().await;
            tracing::info!(identity = self.settings.identity, "leading");
            leadership.send_replace(Leadership::Leader);
            while let Some(at) = self.renew(renewed_at).await {
                renewed_at = at;
            }
            leadership.send_replace(Leadership::Follower);
            tracing::warn!(identity = self.settings.identity, "no longer leading");
        }
    }

    /// Tries until the lease is ours; when the successful attempt was begun.
    async fn acquire(&mut self) -> Instant {
        loop {
            let begun_at = Instant::now();
            let attempt = tokio::time::timeout(self.settings.renew_limit, self.attempt()).await;
            // An attempt that took so long that its renewal is due for expiry is worth nothing.
            if matches!(attempt, Ok(Attempt::Held))
                && begun_at.elapsed() < self.settings.renew_limit
            {
                return begun_at;
            }
            tokio::time::sleep(jittered(self.settings.retry)).await;
        }
    }

    /// Renews once, with as many attempts as fit before the limit; when the successful one was begun. `None`: lost.
    async fn renew(&mut self, renewed_at: Instant) -> Option<Instant> {
        let deadline = renewed_at + self.settings.renew_limit;
        loop {
            let pause = tokio::time::sleep(self.settings.retry);
            tokio::time::timeout_at(deadline, pause).await.ok()?;
            let begun_at = Instant::now();
            match tokio::time::timeout_at(deadline, self.attempt())
                .await
                .ok()?
            {
                Attempt::Held => return Some(begun_at),
                Attempt::HeldByOther => return None,
                Attempt::Failed => {}
            }
        }
    }

    /// One attempt to take or renew the lease.
    async fn attempt(&mut self) -> Attempt {
        // A holder knows the lease as it wrote it; all others read it first.
        if !(self.is_certain && self.is_holder()) {
            match within(self.call_limit(), self.leases.get_opt(&self.settings.name)).await {
                Ok(Some(lease)) => self.saw(lease),
                Ok(None) => return self.create().await,
                Err(error) => return failed("read", &error),
            }
            if self.is_held_by_other() {
                return Attempt::HeldByOther;
            }
        }
        self.take().await
    }

    async fn create(&mut self) -> Attempt {
        let lease = Lease {
            metadata: ObjectMeta {
                namespace: Some(self.settings.namespace.clone()),
                name: Some(self.settings.name.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(self.spec(0, None)),
        };
        let params = post_params();
        let call = self.leases.create(&params, &lease);
        let answer = within(self.call_limit(), call).await;
        self.wrote(answer)
    }

    async fn take(&mut self) -> Attempt {
        let Some(seen) = &self.seen else {
            return Attempt::Failed;
        };
        let mut lease = seen.lease.clone();
        let old = lease.spec.take().unwrap_or_default();
        let transitions = old.lease_transitions.unwrap_or(0);
        lease.spec = Some(
            if old.holder_identity.as_deref() == Some(&self.settings.identity) {
                self.spec(transitions, old.acquire_time)
            } else {
                self.spec(transitions.saturating_add(1), None)
            },
        );
        self.is_certain = false;
        let params = post_params();
        let call = self.leases.replace(&self.settings.name, &params, &lease);
        let answer = within(self.call_limit(), call).await;
        self.wrote(answer)
    }

    fn wrote(&mut self, answer: Result<Lease, CallError>) -> Attempt {
        match answer {
            Ok(lease) => {
                self.saw(lease);
                self.is_certain = true;
                Attempt::Held
            }
            Err(error) => failed("write", &error),
        }
    }

    /// Gives the lease up, so that the next leader need not wait for its expiry. Best effort.
    async fn release(&mut self) {
        if !self.is_holder() {
            return;
        }
        let Some(mut lease) = self.seen.take().map(|seen| seen.lease) else {
            return;
        };
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        let params = post_params();
        let call = self.leases.replace(&self.settings.name, &params, &lease);
        match within(RELEASE_LIMIT, call).await {
            Ok(_) => tracing::info!("the lease is given up"),
            Err(error) if error.status_code() == Some(409) => {
                tracing::info!("the lease is held by another one already");
            }
            Err(error) => tracing::warn!(%error, "the lease could not be given up; it expires"),
        }
    }

    fn spec(&self, transitions: i32, acquired: Option<MicroTime>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        LeaseSpec {
            acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
            holder_identity: Some(self.settings.identity.clone()),
            lease_duration_seconds: i32::try_from(self.settings.duration.as_secs()).ok(),
            lease_transitions: Some(transitions),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }
    }

    fn saw(&mut self, lease: Lease) {
        let unchanged = self
            .seen
            .as_ref()
            .filter(|seen| seen.lease.spec == lease.spec);
        let since = unchanged.map_or_else(Instant::now, |seen| seen.since);
        self.seen = Some(Sighting { lease, since });
    }

    fn is_holder(&self) -> bool {
        let holder = self.seen.as_ref().and_then(Sighting::holder);
        holder == Some(&self.settings.identity)
    }

    /// Whether another one holds the lease, and it has changed within its duration, on our clock.
    fn is_held_by_other(&self) -> bool {
        let Some(seen) = &self.seen else { return false };
        if seen.holder().is_none() || self.is_holder() {
            return false;
        }
        let seconds = seen
            .lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds);
        let duration = seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(self.settings.duration, Duration::from_secs);
        seen.since.elapsed() < duration
    }

    /// Two calls fit into the renew limit, so that a single lost answer does not cost the leadership.
    fn call_limit(&self) -> Duration {
        self.settings.renew_limit / 2
    }
}

impl Sighting {
    fn holder(&self) -> Option<&str> {
        let spec = self.lease.spec.as_ref()?;
        let holder = spec.holder_identity.as_deref()?;
        (!holder.is_empty()).then_some(holder)
    }
}

fn post_params() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

fn failed(what: &str, error: &CallError) -> Attempt {
    // 409: another candidate was faster. Everything else is worth a line.
    if error.status_code() != Some(409) {
        tracing::warn!(what, %error, "the lease cannot be reached");
    }
    Attempt::Failed
}

/// The pause, up to 1.2 times longer, so that candidates which started together do not stay in step.
fn jittered(pause: Duration) -> Duration {
    // Keys of a hasher are the standard library's only source of randomness; nothing here is secret.
    let random = RandomState::new().build_hasher().finish();
    let thousandths = u32::try_from(random % 200).unwrap_or(0);
    pause + pause * thousandths / 1000
}

#[cfg(test)]
mod tests;
