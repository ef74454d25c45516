//! Does as NVIDIA's container runtime does where it is a node's default one: a container whose variable NVIDIA_VISIBLE_DEVICES
//! names GPUs gets them, and nobody is asked. All else is runc's work.
//!
//! Only what counts here is done: `all` and numbers are understood, and device nodes are what is given.

use std::{
    env,
    ffi::OsString,
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// What does the work.
const RUNC: &str = "/usr/sbin/runc";
/// GPUs of a machine of the lab.
const GPUS: std::ops::Range<u32> = 0..8;
/// Major number of their nodes.
const MAJOR: u32 = 195;

fn main() -> Result<()> {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    if arguments.iter().any(|argument| argument == "create") {
        let bundle = arguments
            .windows(2)
            .find(|pair| pair[0] == "--bundle")
            .map_or_else(|| PathBuf::from("."), |pair| PathBuf::from(&pair[1]));
        give(&bundle.join("config.json"))?;
    }
    let error = Command::new(RUNC).args(arguments).exec();
    Err(error).context(RUNC)
}

/// Writes the GPUs that a container's variable names into its configuration.
fn give(file: &Path) -> Result<()> {
    let text = fs::read(file).with_context(|| file.display().to_string())?;
    let mut configuration: Value = serde_json::from_slice(&text)?;
    let variables = configuration["process"]["env"].as_array();
    let named = variables
        .into_iter()
        .flatten()
        .rev()
        .find_map(|variable| variable.as_str()?.strip_prefix("NVIDIA_VISIBLE_DEVICES="));
    let minors: Vec<u32> = match named {
        Some("all") => GPUS.collect(),
        Some(list) => list
            .split(',')
            .filter_map(|word| word.parse().ok())
            .collect(),
        None => return Ok(()),
    };
    for minor in minors {
        let path = format!("/dev/nvidia{minor}");
        let linux = &mut configuration["linux"];
        add(
            &mut linux["devices"],
            json!({"path": path, "type": "c", "major": MAJOR, "minor": minor, "fileMode": 0o666, "uid": 0, "gid": 0}),
        );
        add(
            &mut linux["resources"]["devices"],
            json!({"allow": true, "type": "c", "major": MAJOR, "minor": minor, "access": "rwm"}),
        );
    }
    fs::write(file, serde_json::to_vec(&configuration)?).with_context(|| file.display().to_string())
}

/// A container without devices of its own has no such list.
fn add(list: &mut Value, element: Value) {
    match list {
        Value::Array(elements) => elements.push(element),
        other => *other = json!([element]),
    }
}
