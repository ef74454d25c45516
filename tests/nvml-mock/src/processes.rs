//! Which processes use a GPU: as on hardware, those that were given it.
//!
//! In the tests a container is a plain process, and what CDI gave it stands in its environment. So a process with
//! the GPU's UUID in `MUSTER_VISIBLE_GPUS` or in a `MUSTER_GPU_N` uses it, as long as it lives. Only processes of the
//! same node count: those that share our mount namespace.

use std::{fs, path::Path};

/// Process ids that use the GPU, as the environments of living processes tell.
pub(crate) fn using(uuid: &str) -> Vec<u32> {
    let Ok(own) = fs::read_link("/proc/self/ns/mnt") else {
        return Vec::new();
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.file_name().to_str()?.parse().ok()?)))
        .filter(|(path, _)| fs::read_link(path.join("ns/mnt")).is_ok_and(|link| link == own))
        .filter(|(path, _)| was_given(path, uuid))
        .map(|(_, pid)| pid)
        .collect()
}

/// A process that is dead, or not ours to look at, has no environment to read.
fn was_given(process: &Path, uuid: &str) -> bool {
    let environment = fs::read(process.join("environ")).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .filter_map(|variable| std::str::from_utf8(variable).ok()?.split_once('='))
        .filter(|(name, _)| *name == "MUSTER_VISIBLE_GPUS" || name.starts_with("MUSTER_GPU_"))
        .any(|(_, value)| value.split(',').any(|given| given == uuid))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        process::{Child, Command, Stdio},
    };

    use super::*;

    /// Waits until the program itself runs. A process that was spawned has no environment yet for the moment between
    /// leaving its parent's memory and having its own; it cannot have opened a device by then either.
    fn wait_until_it_runs(echo: &mut Child) {
        echo.stdin.as_mut().unwrap().write_all(b"?").unwrap();
        let mut answer = [0];
        echo.stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut answer)
            .unwrap();
    }

    #[test]
    fn a_process_uses_what_it_was_given_until_it_is_dead() {
        let uuid = format!("GPU-test-{}", std::process::id());
        assert!(using(&uuid).is_empty());
        let mut given = Command::new("cat")
            .env("MUSTER_VISIBLE_GPUS", format!("GPU-other,{uuid}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until_it_runs(&mut given);
        assert_eq!(using(&uuid), [given.id()]);
        given.kill().unwrap();
        given.wait().unwrap();
        assert!(using(&uuid).is_empty());
    }
}
