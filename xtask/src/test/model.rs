//! The checked model of the protocol (`sim/model`): a few seconds of it. The whole is searched by hand, as its README says.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use anyhow::{Context, Result, bail, ensure};

use super::succeed;

/// Searches, each with what it must end with. The first two look at the first 300,000 states, the third walks at random for some seconds; in the
/// next two one rule is left out, and the search must find what it is for.
///
/// The last two are about a node that is cut off, deleted, and comes back, and about who is charged for what it holds. With all rules nothing is
/// wrong in the first 300,000 states: three times as many as it takes to see a mark that goes before the driver has answered
/// (`lost-cleared-unacknowledged`), the deepest of four mutations that these budgets show. With the same budgets the other one must see what follows where a Team is
/// charged no more for what a silent node holds before the node has the mark.
const SEARCHES: [(&str, Expected); 7] = [
    (
        "nodes=2 take=1 delgang=1 fix=511 prop=1 max=300000",
        Expected::Nothing,
    ),
    (
        "nodes=2 take=1 evict=1 fix=511 live=1000 max=300000",
        Expected::Nothing,
    ),
    (
        "nodes=2 take=1 evict=1 force=1 freeze=1 swap=1 finish=1 fix=511 walks=1000000 depth=200 seed=1 time=3",
        Expected::Nothing,
    ),
    ("nodes=2 take=1 delgang=1 fix=510", Expected::Violation),
    (
        "nodes=2 take=1 delgang=1 freeze=1 fix=511 prop=1 mut=proposed-nodes-forgotten",
        Expected::Violation,
    ),
    (
        "nodes=2 cut=1 nodedel=1 fix=2047 live=200 max=300000",
        Expected::Nothing,
    ),
    (
        "nodes=2 cut=1 nodedel=1 fix=2047 live=200 max=300000 mut=lost-charge-before-mark",
        Expected::Violation,
    ),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Nothing,
    Violation,
}

/// Compiles the model and runs the searches.
pub(super) fn check(root: &Path) -> Result<()> {
    let directory = root.join("target/model");
    fs::create_dir_all(&directory).context("making target/model")?;
    let program = directory.join("model");
    let mut compile = Command::new("g++");
    compile
        .args(["-O2", "-std=c++17", "-o"])
        .arg(&program)
        .arg(root.join("sim/model/model.cpp"));
    succeed(&mut compile, "g++")?;
    for (arguments, expected) in SEARCHES {
        let output = Command::new(&program)
            .args(arguments.split(' '))
            .output()
            .context("starting the model")?;
        judge(arguments, expected, &output)?;
    }
    Ok(())
}

fn judge(arguments: &str, expected: Expected, output: &Output) -> Result<()> {
    let text = String::from_utf8_lossy(&output.stdout);
    // A search that counted nothing has checked nothing.
    let is_complete = ["states ", "walks "].iter().any(|word| text.contains(word));
    ensure!(is_complete, "model {arguments}: no result\n{text}");
    let found = if text.contains("VIOLATION") {
        Expected::Violation
    } else {
        Expected::Nothing
    };
    if found != expected {
        bail!("model {arguments}: {expected:?} was expected\n{text}");
    }
    Ok(())
}
