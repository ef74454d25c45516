//! The time of day of a leadership: what the API server said when it began, and what has passed since.
//!
//! Objects carry times that a former leader wrote: since when a gang is admitted, say, which runs for so long at most. The clocks of two
//! machines may be hours apart, and one that is ahead would end gangs early. So every leader goes by the clock of the API server, which
//! it is told with each answer (`Date`), to the second; what has passed since is counted by the monotonic clock, so that nobody sets it. A
//! server that does not tell keeps nobody from leading: then this machine's clock counts.

use std::time::Duration;

use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use kube::{Client, client::Body};
use muster_protocol::Now;
use muster_serve::client::within;
use tokio::time::Instant;

/// How long the API server may take to answer.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// From how many seconds on it is told that the clocks differ.
const TOLD_FROM_SECONDS: i64 = 5;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeOfDay {
    began: Timestamp,
    began_at: Instant,
}

impl TimeOfDay {
    /// Asks the API server. A leadership begins.
    pub(super) async fn ask(client: &Client) -> Self {
        let said = match within(ASK_LIMIT, said(client)).await {
            Ok(said) => said,
            Err(error) => {
                tracing::warn!(%error, "the API server was asked for the time");
                None
            }
        };
        let own = Timestamp::now();
        if let Some(said) = said {
            let ahead_seconds = own.as_second() - said.as_second();
            if ahead_seconds.abs() >= TOLD_FROM_SECONDS {
                tracing::warn!(
                    ahead_seconds,
                    "the clock of this machine is not that of the API server, which counts"
                );
            }
        } else {
            tracing::warn!(
                "the API server does not tell the time: the clock of this machine counts"
            );
        }
        Self::from(said.unwrap_or(own))
    }

    /// It is that time now, to the second.
    pub(super) fn from(now: Timestamp) -> Self {
        Self {
            began: Timestamp::from_second(now.as_second()).unwrap_or(now),
            began_at: Instant::now(),
        }
    }

    /// The time, in whole seconds as objects have it: what is written is then word for word what comes back, and nobody has to find
    /// out whether a field was stored that only lost its fraction.
    pub(super) fn now(&self) -> Now {
        let passed = self.began_at.elapsed().as_secs();
        let since = Duration::from_secs(passed);
        Now {
            monotonic_seconds: passed,
            wall: self.began.saturating_add(since).unwrap_or(self.began),
        }
    }

    /// How long this leadership lasts.
    pub(super) fn elapsed(&self) -> Duration {
        self.began_at.elapsed()
    }
}

/// What the answer to the cheapest question says, be it a refusal.
async fn said(client: &Client) -> Result<Option<Timestamp>, kube::Error> {
    let question = http::Request::get("/version").body(Body::empty());
    let answer = client
        .send(question.map_err(kube::Error::HttpError)?)
        .await?;
    let date = answer.headers().get(http::header::DATE);
    let date = date.and_then(|date| date.to_str().ok());
    Ok(date.and_then(|date| DateTimeParser::new().parse_timestamp(date).ok()))
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    /// A server that answers all with this, and says that it is that time.
    fn server(status: u16, date: Option<&'static str>) -> Client {
        let service = tower::service_fn(move |_: http::Request<Body>| async move {
            let answer = Response::builder().status(status);
            let answer = match date {
                Some(date) => answer.header(http::header::DATE, date),
                None => answer,
            };
            Ok::<_, std::io::Error>(answer.body(Body::empty()).unwrap())
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_of_the_api_server_counts_and_goes_on_by_itself() {
        for status in [200, 403] {
            let server = server(status, Some("Sat, 21 Nov 2037 08:09:10 GMT"));
            let time = TimeOfDay::ask(&server).await;
            tokio::time::advance(Duration::from_millis(90_700)).await;
            let now = time.now();
            // As it is written into objects, and read from them.
            let expected: Timestamp = "2037-11-21T08:10:40Z".parse().unwrap();
            assert_eq!(
                (now.wall, now.monotonic_seconds),
                (expected, 90),
                "{status}"
            );
        }
    }

    #[tokio::test]
    async fn a_server_that_does_not_tell_the_time_keeps_nobody_from_leading() {
        for date in [None, Some(""), Some("soon")] {
            let before = Timestamp::now();
            let time = TimeOfDay::ask(&server(200, date)).await;
            let now = time.now();
            assert!(
                before.as_second() <= now.wall.as_second() && now.wall <= Timestamp::now(),
                "{date:?}: {now:?}"
            );
        }
    }
}
