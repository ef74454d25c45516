//! One GET of a program on loopback.

use std::time::Duration;

use anyhow::{Context, Result};
use http::{Request, header::AUTHORIZATION};
use kube::{Client, Config};

/// Longest time of an answer.
const LIMIT: Duration = Duration::from_secs(2);

/// The body that `url` answers for `path`; an error for any status but success.
///
/// Certificates are not verified: those of the controller manager and the scheduler are self-signed, and
/// nothing is sent that would be worth protecting.
pub async fn get(url: &str, path: &str) -> Result<String> {
    let request = Request::get(path).body(Vec::new())?;
    send(url, request).await
}

/// The same, for whoever the token stands for. It goes to whatever listens there, and is worth nothing outside the test's own cluster.
pub async fn get_as(url: &str, path: &str, token: &str) -> Result<String> {
    let request = Request::get(path).header(AUTHORIZATION, format!("Bearer {token}"));
    send(url, request.body(Vec::new())?).await
}

async fn send(url: &str, request: Request<Vec<u8>>) -> Result<String> {
    let mut config = Config::new(url.parse().with_context(|| format!("{url} is no URL"))?);
    config.accept_invalid_certs = true;
    config.default_retry = false;
    let client = Client::try_from(config)?;
    let asked = format!("{url}{}", request.uri());
    let answer = tokio::time::timeout(LIMIT, client.request_text(request)).await;
    Ok(answer.with_context(|| format!("{asked} did not answer"))??)
}
