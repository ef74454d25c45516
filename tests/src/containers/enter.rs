//! Into the namespaces of a lab: the program of a suite runs itself a second time, as the first process of a mount, network
//! and process namespace. Whoever ends that process, or the one that started it, ends everything.

use std::{
    env, fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus},
};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::{cgroups, cgroups::Cgroups, prepared::Prepared, requirements};
use crate::progress::ProgressCallback;

/// Names the file that says what was built; set inside of the namespaces only.
const PREPARED: &str = "MUSTER_LAB";
/// What is kept of a lab in which something failed. Disks of machines are not.
const KEPT: &str = "target/suites";

/// Where this program is.
#[derive(Debug)]
pub enum Side {
    /// In the namespaces, with what was built outside.
    Inside(Box<Prepared>),
    /// Outside; the program inside has ended in this way.
    Outside(ExitCode),
}

/// Enters the namespaces. A machine on which that cannot work skips the suite, and says so: as root that is a failure.
pub async fn enter(name: &str, examples: &[String]) -> Result<Side> {
    if let Some(file) = env::var_os(PREPARED) {
        let file = PathBuf::from(file);
        let text = fs::read(&file).with_context(|| file.display().to_string())?;
        return Ok(Side::Inside(Box::new(serde_json::from_slice(&text)?)));
    }
    if let Some(reason) = requirements::missing() {
        eprintln!("\n*** {name}: SKIPPED, nothing was tested: {reason}\n");
        return Ok(Side::Outside(if requirements::must_run() {
            eprintln!("*** {name}: as root a skipped suite is a failure");
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        }));
    }
    cgroups::remove_abandoned()?;
    let directory = tempfile::Builder::new().prefix("muster-lab-").tempdir()?;
    let told = name.to_owned();
    let progress = ProgressCallback::to(move |step| eprintln!("{told}: {step}"));
    let prepared = Prepared::build(directory.path(), examples, &progress).await?;
    let file = directory.path().join("prepared.json");
    fs::write(&file, serde_json::to_vec_pretty(&prepared)?)?;
    let ended = run_inside(&file)?;
    Cgroups::of(prepared.process)?
        .remove()
        .context("cgroups of the lab stay")?;
    if ended.success() {
        return Ok(Side::Outside(ExitCode::SUCCESS));
    }
    if let Some(signal) = ended.signal() {
        eprintln!("{name}: ended by signal {signal}");
    }
    let kept = keep(name, &directory)?;
    eprintln!("{name}: logs and reports are kept in {}", kept.display());
    Ok(Side::Outside(ExitCode::FAILURE))
}

/// Runs this program again, and waits for its end.
fn run_inside(prepared: &Path) -> Result<ExitStatus> {
    let mut words = vec!["--pdeathsig", "KILL", "--", "unshare"];
    // Own mounts, so that it sees its own processes; the child is killed with its parent.
    words.extend(["--mount", "--net", "--pid", "--fork", "--mount-proc"]);
    words.push("--kill-child");
    Command::new("setpriv")
        .args(words)
        .arg(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(PREPARED, prepared)
        .status()
        .context("starting setpriv")
}

/// Copies what tells why something failed.
fn keep(name: &str, directory: &TempDir) -> Result<PathBuf> {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(KEPT)
        .join(format!("{name}-logs"));
    if kept.exists() {
        fs::remove_dir_all(&kept)?;
    }
    fs::create_dir_all(&kept)?;
    for part in ["logs", "report"] {
        let from = directory.path().join(part);
        if from.exists() {
            Command::new("cp")
                .arg("--archive")
                .args([&from, &kept])
                .status()?;
        }
    }
    Ok(fs::canonicalize(kept)?)
}
