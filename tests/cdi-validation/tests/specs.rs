//! What the driver writes is valid to the last field, and arrives in a container whole.
//!
//! The files are compared with what the driver writes by `device/tests/driver_root/spec.rs`. The library knows the JSON schema of CDI,
//! the rules beyond it (names, versions, annotations), and refuses fields that it does not know.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use container_device_interface::spec::{Spec, read_spec};
use oci_spec::runtime;

/// One of each kind: whole GPU with either hooks, several GPUs, slices, administrative access.
const FILES: [&str; 5] = [
    "claim-admin.json",
    "claim-own-hooks.json",
    "claim-several.json",
    "claim-slices.json",
    "claim-toolkit-hooks.json",
];

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../device/tests/golden")
}

fn read(file: &Path) -> Result<Spec> {
    read_spec(&file.to_owned(), 0).with_context(|| file.display().to_string())
}

#[test]
fn every_kind_of_claim_is_among_the_files() -> Result<()> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(golden())? {
        found.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    assert_eq!(found, BTreeSet::from(FILES.map(str::to_owned)));
    Ok(())
}

#[test]
fn every_file_is_valid_and_arrives_whole() -> Result<()> {
    for name in FILES {
        let file = golden().join(name);
        let mut spec = read(&file)?;
        assert_eq!(spec.get_vendor(), "gpu.muster.dev", "{name}");
        assert_eq!(spec.get_class(), "claim", "{name}");
        let text = fs::read_to_string(&file)?;
        let mut container = runtime::Spec::default();
        spec.apply_edits(&mut container)?;
        for mut device in spec.get_devices().into_values() {
            let qualified = device.get_qualified_name();
            ensure!(
                qualified.starts_with("gpu.muster.dev/claim=0d9a1f4e-"),
                "{name}: {qualified}"
            );
            device.apply_edits(&mut container)?;
        }
        let linux = container.linux().clone().unwrap_or_default();
        let nodes: BTreeSet<String> = linux
            .devices()
            .iter()
            .flatten()
            .map(|node| node.path().display().to_string())
            .collect();
        let written: BTreeSet<String> = values(&text, "\"path\": \"/dev/")
            .into_iter()
            .map(|rest| format!("/dev/{rest}"))
            .collect();
        assert_eq!(nodes, written, "{name}");
        let mounts: BTreeSet<String> = container
            .mounts()
            .iter()
            .flatten()
            .map(|mount| mount.destination().display().to_string())
            .collect();
        for path in values(&text, "\"containerPath\": \"") {
            ensure!(mounts.contains(&path), "{name}: {path} is not mounted");
        }
        let hooks = container.hooks().clone().unwrap_or_default();
        let finishing = hooks.create_container().iter().flatten().count();
        assert_eq!(finishing, 2, "{name}");
    }
    Ok(())
}

/// What stands between these words and the next quotation mark, wherever they are.
fn values(text: &str, words: &str) -> BTreeSet<String> {
    let rests = text.split(words).skip(1);
    let values = rests.filter_map(|rest| rest.split('"').next());
    values.map(str::to_owned).collect()
}

/// Else the other tests would show nothing.
#[test]
fn what_is_wrong_is_refused() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("gpu.muster.dev-claim_x.json");
    let text = fs::read_to_string(golden().join("claim-slices.json"))?;
    fs::write(&file, &text)?;
    read(&file)?;
    for (right, wrong) in [
        ("\"0.6.0\"", "\"0.4.0\""),
        ("gpu.muster.dev/claim", "gpu muster dev/claim"),
        ("NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES"),
        ("\"createContainer\"", "\"createcontainer\""),
        ("\"type\": \"c\"", "\"type\": \"character\""),
        ("\"major\": 235", "\"major\": \"235\""),
        ("\"hostPath\"", "\"hostpath\""),
        ("-gpu-3-mig-9-2\"", "-gpu-3-mig-1-0\""),
        ("muster.dev/record", "muster.dev/a/record"),
    ] {
        let changed = text.replace(right, wrong);
        ensure!(changed != text, "nothing is {right}");
        fs::write(&file, changed)?;
        ensure!(read(&file).is_err(), "{wrong} instead of {right} is taken");
    }
    Ok(())
}
