//! One GET of a program on loopback.

use std::time::Duration;

use anyhow::{Context, Result};
use kube::{Client, Config};

/// Longest time of an answer.
const LIMIT: Duration = Duration::from_secs(2);

/// The body that `url` answers for `path`; an error for any status but success.
///
/// Certificates are not verified: those of the controller manager and the scheduler are self-signed, and
/// nothing is sent that would be worth protecting.
pub async fn get(url: &str, path: &str) -> Result<String> {
    let mut config = Config::new(url.parse().with_context(|| format!("{url} is no URL"))?);
    config.accept_invalid_certs = true;
    config.default_retry = false;
    let client = Client::try_from(config)?;
    let request = http::Request::get(path).body(Vec::new())?;
    let answer = tokio::time::timeout(LIMIT, client.request_text(request)).await;
    Ok(answer.with_context(|| format!("{url}{path} did not answer"))??)
}
