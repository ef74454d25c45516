//! `muster-cdi-hook create-symlinks|update-ldcache …`, with the state of an OCI container on its standard input.
//!
//! It runs on whatever the host is, so it ships static:
//! `cargo rustc --package muster-cdi-hook --bin muster-cdi-hook --profile dist -- -C target-feature=+crt-static`.

use std::{env, io, process::ExitCode};

use muster_cdi_hook::{Command, run};
use rustix::{fs::Mode, process::umask};

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--version") {
        eprintln!("muster-cdi-hook {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    // What is made must be readable for any user of the container, whatever the runtime's umask is.
    umask(Mode::WGRP | Mode::WOTH);
    let result = Command::parse(&arguments).and_then(|command| run(&command, io::stdin().lock()));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The runtime shows it as the reason why the container does not start.
            eprintln!("muster-cdi-hook: {failure}");
            ExitCode::FAILURE
        }
    }
}
