//! What the guides say of this program's command line is so.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, fs, iter, path::Path};

use clap::{CommandFactory, Parser};
use muster_controller::args::Cli;

/// Where operators look.
const GUIDES: [&str; 5] = [
    "README.md",
    "deploy/helm/muster/README.md",
    "docs/clusters.md",
    "docs/first-hour.md",
    "docs/operator-guide.md",
];
/// Of these, those that name flags of programs by themselves.
const NAME_FLAGS: [&str; 3] = [
    "docs/clusters.md",
    "docs/first-hour.md",
    "docs/operator-guide.md",
];
/// Flags of other programs.
const OF_OTHERS: [&str; 10] = [
    // Of kube-scheduler and kube-apiserver.
    "config",
    "v",
    "write-config-to",
    "default-unreachable-toleration-seconds",
    // Of kubectl.
    "disable-eviction",
    // Of nvidia-ctk, Helm and `cargo xtask image`.
    "set-as-default",
    "reuse-values",
    "take-ownership",
    "no-hooks",
    "repository",
];
/// This program, as a shell and a container have it.
const PROGRAM: [&str; 2] = ["muster-controller", "/muster-controller"];
/// What follows is the shell's.
const SHELL: [&str; 4] = [">", "<", "|", "#"];

fn text(guide: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(guide)).unwrap()
}

/// Code of a guide: lines of its blocks, and what is quoted within its lines.
fn code(text: &str) -> Vec<&str> {
    let mut is_block = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_block = !is_block;
        } else if is_block {
            found.push(line);
        } else {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

/// What this program is given where code runs it with anything.
fn arguments(code: &str) -> Option<Vec<&str>> {
    let mut words = code.split_whitespace();
    words.find(|word| PROGRAM.contains(word))?;
    let own = words.take_while(|word| !SHELL.contains(word));
    // `cargo run` has its own flags before it.
    let own: Vec<&str> = own.skip_while(|word| *word == "--").collect();
    (!own.is_empty()).then_some(own)
}

/// The flag that code begins with, and no rule of YAML.
fn flag_of(code: &str) -> Option<&str> {
    let name = code.strip_prefix("--")?.split([' ', '=']).next()?;
    name.starts_with(|character: char| character.is_ascii_lowercase())
        .then_some(name)
}

/// The flags of this program and its commands.
fn flags() -> BTreeSet<String> {
    let cli = Cli::command();
    let commands = iter::once(&cli).chain(cli.get_subcommands());
    commands
        .flat_map(clap::Command::get_arguments)
        .filter_map(clap::Arg::get_long)
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_command_that_a_guide_runs_is_one_that_this_program_takes() {
    let mut taken = 0;
    for guide in GUIDES {
        let text = text(guide);
        for arguments in code(&text).into_iter().filter_map(arguments) {
            let words = iter::once("muster-controller").chain(arguments.iter().copied());
            let cli = Cli::try_parse_from(words);
            assert!(cli.is_ok(), "{guide}: {arguments:?}: {cli:?}");
            assert!(cli.unwrap().command.is_some(), "{guide}: {arguments:?}");
            taken += 1;
        }
    }
    assert!(taken >= 8, "{taken} commands");
}

#[test]
fn every_flag_that_a_guide_names_is_one_of_this_program() {
    let flags = flags();
    let mut named = 0;
    for guide in NAME_FLAGS {
        let text = text(guide);
        for flag in code(&text).into_iter().filter_map(flag_of) {
            if !OF_OTHERS.contains(&flag) {
                assert!(flags.contains(flag), "{guide}: --{flag}");
                named += 1;
            }
        }
    }
    assert!(named > 10, "{named} flags");
    for other in OF_OTHERS {
        assert!(!flags.contains(other), "--{other} is of this program, too");
    }
}
