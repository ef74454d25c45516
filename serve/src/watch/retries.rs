//! How a watch that fails is tried again.
//!
//! kube's watcher tells that a list begins before it asks for the list, and its own adapter
//! (`WatchStreamExt::default_backoff`, kube-runtime 5.0.0) takes whatever is no error for a success, which ends the back-off. So a list
//! that is refused again and again (RBAC was changed, a kind is not served) was asked for once in a second for ever, by every replica
//! and on every node.
//!
//! Here, as in client-go's reflector, a list that comes ends no back-off either: where each watch breaks off at once, every list is asked for
//! in vain, and that is the most expensive thing to repeat. Failures are forgotten once the watch tells a change, or after two minutes
//! without one.

use std::{fmt::Debug, time::Duration};

use futures::{Stream, StreamExt, stream};
use kube::{
    Api, Resource,
    runtime::{
        utils::Backoff,
        watcher::{self, Config, DefaultBackoff, Event},
    },
};
use serde::de::DeserializeOwned;

/// Longest pause after a failure: 30 s, and up to as much again at random, so that those who failed together do not come back together
/// ([`DefaultBackoff`]).
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// What kube's watcher tells of a kind, which rests after each failure: 0.8 s to 1.6 s at first, twice as long after each that follows, and
/// a minute at most. Never ends.
///
/// Whoever drives it tells what comes of it to a [`super::WatchHealth`], so that the failures show.
pub fn events<K>(
    api: Api<K>,
    config: Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    resting(kube::runtime::watcher(api, config))
}

/// The same of any events. The pause is made before the next is asked for, so a failure is told at once.
fn resting<T>(
    events: impl Stream<Item = watcher::Result<Event<T>>> + Send,
) -> impl Stream<Item = watcher::Result<Event<T>>> + Send {
    let begin = (
        Box::pin(events),
        DefaultBackoff::default(),
        None::<Duration>,
    );
    stream::unfold(begin, |(mut events, mut backoff, pause)| async move {
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        let seen = events.next().await?;
        let pause = match &seen {
            Ok(Event::Apply(_) | Event::Delete(_)) => {
                backoff.reset();
                None
            }
            Ok(_) => None,
            // It never gives up; if it did, we would not.
            Err(_) => Some(backoff.next().unwrap_or(LONGEST_PAUSE)),
        };
        Some((seen, (events, backoff, pause)))
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use tokio::time::Instant;

    use super::*;

    type Seen = watcher::Result<Event<Pod>>;

    fn refused() -> Seen {
        Err(watcher::Error::NoResourceVersion)
    }

    /// The pauses after each failure.
    async fn pauses(events: impl IntoIterator<Item = Seen, IntoIter: Send>) -> Vec<Duration> {
        let mut resting = Box::pin(resting(stream::iter(events)));
        let mut pauses = Vec::new();
        let mut failed_at: Option<Instant> = None;
        while let Some(seen) = resting.next().await {
            if let Some(failed_at) = failed_at.take() {
                pauses.push(failed_at.elapsed());
            }
            failed_at = seen.is_err().then(Instant::now);
        }
        pauses
    }

    /// Whether it is that long, or up to twice as long.
    fn is_about(pause: Duration, base: f64) -> bool {
        // Timers fire at the next millisecond.
        (base..=2.0 * base + 0.002).contains(&pause.as_secs_f64())
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_refused_for_ever_is_asked_for_ever_more_rarely_and_once_in_a_minute_at_least()
     {
        let lists = (0..12).flat_map(|_| [Ok(Event::Init), refused()]);
        let pauses = pauses(lists.chain([Ok(Event::Init)])).await;
        assert_eq!(pauses.len(), 12);
        let expected = [0.8, 1.6, 3.2, 6.4, 12.8, 25.6];
        let expected = expected.into_iter().chain(std::iter::repeat(30.0));
        for (pause, base) in pauses.iter().zip(expected) {
            assert!(is_about(*pause, base), "{base}: {pauses:?}");
        }
        let longest = LONGEST_PAUSE + Duration::from_millis(2);
        assert!(pauses.iter().all(|pause| *pause <= longest), "{pauses:?}");
        // Those who failed together do not come back together.
        let (all, base) = (&pauses[6..], Duration::from_secs(31));
        assert!(all.iter().any(|pause| *pause > base), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_forgotten_once_the_watch_tells_a_change_and_not_for_a_list() {
        type Tells = fn() -> Vec<Seen>;
        let rows: [(Tells, f64); 5] = [
            (|| vec![Ok(Event::Init)], 6.4),
            (
                || {
                    vec![
                        Ok(Event::Init),
                        Ok(Event::InitApply(Pod::default())),
                        Ok(Event::InitDone),
                    ]
                },
                6.4,
            ),
            (|| vec![Ok(Event::Apply(Pod::default()))], 0.8),
            (|| vec![Ok(Event::Delete(Pod::default()))], 0.8),
            (Vec::new, 6.4),
        ];
        for (row, (tells, base)) in rows.into_iter().enumerate() {
            let begun = [refused(), refused(), refused()];
            let all = begun.into_iter().chain(tells()).chain([refused()]);
            let pauses = pauses(all.chain([Ok(Event::Init)])).await;
            assert!(is_about(pauses[3], base), "row {row}: {pauses:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_forgotten_after_two_minutes_without_one() {
        // The last of three comes late.
        let seen = stream::unfold(3, |left| async move {
            if left == 1 {
                tokio::time::sleep(Duration::from_secs(121)).await;
            }
            (left > 0).then(|| (refused(), left - 1))
        });
        let mut resting = Box::pin(resting(seen.chain(stream::iter([Ok(Event::Init)]))));
        let mut last = Instant::now();
        while let Some(seen) = resting.next().await {
            if seen.is_ok() {
                break;
            }
            last = Instant::now();
        }
        assert!(is_about(last.elapsed(), 0.8), "{:?}", last.elapsed());
    }
}
