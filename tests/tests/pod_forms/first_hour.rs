//! The end of `docs/first-hour.md`: its Team, its two Jobs, and why the second one says that it waits, word for word.

use anyhow::{Context, Result, ensure};
use muster_api::Reason;
use muster_tests::{
    builders,
    cluster::Cluster,
    containers::operator::blocks,
    gangs,
    kubernetes::{Answer, LIMIT, Progress, eventually},
};

use crate::{
    document::guide,
    made::{create, documents},
};

/// The namespace, and the Team, of the guide.
const RESEARCH: &str = "research";

pub(crate) async fn the_first_hour_ends_with_a_gang_that_says_why_it_waits(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    let text = guide("first-hour.md")?;
    for block in blocks(&text, "yaml") {
        for object in documents(&block)? {
            if object["kind"] == "Namespace" {
                let team = object["metadata"]["labels"]["muster.dev/team"].as_str();
                builders::namespace(&client, RESEARCH, team).await?;
                continue;
            }
            let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
            let name = object["metadata"]["name"].as_str().map(str::to_owned);
            let answer = create(&client, namespace.as_deref(), object).await?;
            ensure!(matches!(answer, Answer::Taken), "{answer:?}");
            if name.as_deref() == Some("first") {
                gangs::wait_until_running(&client, RESEARCH, &gangs::of_job("first")).await?;
            }
        }
    }
    let blocks = blocks(&text, "text");
    let promised = blocks.first().context("the guide shows what it says")?;
    let promised = words(promised);
    let second = gangs::of_job("second");
    gangs::wait_for_reason(&client, RESEARCH, &second, Reason::WaitingForQuota).await?;
    eventually("the Gang says what the guide does", LIMIT, async || {
        let gang = gangs::find(&client, RESEARCH, &second).await?;
        let queue = gang.and_then(|gang| gang.status).and_then(|it| it.queue);
        let said = queue.map(|queue| words(&queue.details));
        let is_same = said
            .as_ref()
            .is_some_and(|said| said.starts_with(&promised));
        Ok(Progress::when(is_same, || {
            format!("{said:?}\nand not\n{promised:?}")
        }))
    })
    .await
}

/// The words, without the ends of Gangs' names, which are made from UIDs.
fn words(text: &str) -> Vec<String> {
    let words = text.split_whitespace();
    let words = words.map(|word| match word.split_once("job-first-") {
        Some((before, _)) => format!("{before}job-first-"),
        None => word.to_owned(),
    });
    words.collect()
}
