//! `deny.toml`, checked by cargo-deny. Advisories are not: their database is not among the registries that CI reaches.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::test::succeed;

/// The version that `deny.toml` is written for.
const VERSION: &str = "0.20.2";

/// Installs cargo-deny once, outside the checkout, and runs it.
pub(crate) fn check(root: &Path) -> Result<()> {
    let home = cache()?.join(format!("cargo-deny-{VERSION}"));
    let program = home.join("bin/cargo-deny");
    if !program.is_file() {
        println!("installing cargo-deny {VERSION} (minutes, once)");
        let install = [
            "install",
            "cargo-deny",
            "--version",
            VERSION,
            "--locked",
            "--quiet",
            "--root",
        ];
        succeed(
            Command::new("cargo")
                .args(install)
                .arg(&home)
                .current_dir(root),
            "cargo install cargo-deny",
        )?;
    }
    let checks = [
        "--log-level",
        "error",
        "check",
        "bans",
        "licenses",
        "sources",
    ];
    succeed(
        Command::new(program).args(checks).current_dir(root),
        "cargo deny",
    )
}

/// Where things are kept that are only a speed-up; the same directory as the control plane's.
fn cache() -> Result<PathBuf> {
    if let Some(directory) = env::var_os("MUSTER_CACHE") {
        return Ok(directory.into());
    }
    let base = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .context("neither MUSTER_CACHE nor HOME is set")?;
    Ok(base.join("muster"))
}
