//! `check-device`: what `helm test` runs in a pod that asked for GPUs. It looks at what its container was given.

use std::{collections::BTreeSet, fs, io::Write, os::unix::fs::FileTypeExt, path::Path};

use anyhow::{Context, ensure};

use crate::args::CheckDeviceArgs;

/// Where a container finds device nodes.
const DEVICES: &str = "/dev";

/// Prints the GPUs of this container; an error if they are not as many as expected.
pub fn run(args: &CheckDeviceArgs) -> anyhow::Result<()> {
    let found = gpus(Path::new(DEVICES), |kind| kind.is_char_device())?;
    let names: Vec<String> = found
        .iter()
        .map(|minor| format!("{DEVICES}/nvidia{minor}"))
        .collect();
    let list = if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    };
    ensure!(
        found.len() == args.gpus,
        "WrongDevices: this container has {} GPUs ({list}), not {}. Fewer: does the container runtime resolve CDI ids? More: does \
         something else than Muster's driver give GPUs to containers, such as NVIDIA's runtime as the default one?",
        found.len(),
        args.gpus
    );
    // This program's one output: not a log line, so not through the subscriber.
    writeln!(
        std::io::stdout(),
        "{} of {} GPUs: {list}",
        found.len(),
        args.gpus
    )?;
    Ok(())
}

/// The numbers of the device nodes `nvidiaN`.
fn gpus(
    directory: &Path,
    is_device: impl Fn(fs::FileType) -> bool,
) -> anyhow::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    for entry in entries {
        let entry = entry.with_context(|| directory.display().to_string())?;
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix("nvidia")?.parse().ok());
        if let Some(number) = number
            && is_device(entry.file_type()?)
        {
            found.insert(number);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gpus_of_a_container_are_its_numbered_device_nodes_and_nothing_else() {
        let directory =
            std::env::temp_dir().join(format!("muster-check-device-{}", std::process::id()));
        fs::create_dir_all(directory.join("nvidia7")).unwrap();
        for name in [
            "nvidia0",
            "nvidia12",
            "nvidiactl",
            "nvidia-uvm",
            "nvidia",
            "null",
        ] {
            fs::write(directory.join(name), "").unwrap();
        }
        // Device nodes cannot be made without rights; here files stand for them, and a directory for what is none.
        let found = gpus(&directory, |kind| kind.is_file()).unwrap();
        assert_eq!(found, BTreeSet::from([0, 12]));
        assert!(
            gpus(&directory, |kind| kind.is_char_device())
                .unwrap()
                .is_empty()
        );
        fs::remove_dir_all(&directory).unwrap();
        assert!(gpus(&directory, |_| true).is_err());
    }

    #[test]
    fn a_container_without_the_gpus_that_it_asked_for_is_told_what_to_look_at() {
        let error = run(&CheckDeviceArgs { gpus: 4096 })
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("WrongDevices: ") && error.contains("not 4096"),
            "{error}"
        );
    }
}
