//! Which processes use GPUs, as whoever runs them states it.
//!
//! Hardware knows a process by the device nodes that it holds open. Here no node can be opened, so the runtime that was told to
//! put nodes into a container states them instead: a file of [`Stated`] for each container, in
//! [`crate::StateFile::stated_directory`], from its start until nothing of it lives. What Muster says of itself to the container
//! plays no part.

use std::{collections::BTreeSet, fs, path::Path};

use serde::{Deserialize, Serialize};

/// Content of such a file; its name does not matter, but for the ending `.json`. It is put there by rename.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stated {
    /// Process group of the container, as the library counts: each process of it that lives uses the devices.
    pub group: u32,
    /// Device nodes that the container has: `/dev/nvidia3`, `/dev/nvidia-caps/nvidia-cap30`.
    pub device_nodes: Vec<String>,
}

impl Stated {
    /// Minor numbers of the GPUs.
    pub(crate) fn gpus(&self) -> BTreeSet<u32> {
        self.minors("/dev/nvidia")
    }

    /// Minor numbers of the capabilities.
    pub(crate) fn capabilities(&self) -> BTreeSet<u32> {
        self.minors("/dev/nvidia-caps/nvidia-cap")
    }

    fn minors(&self, prefix: &str) -> BTreeSet<u32> {
        let names = self.device_nodes.iter();
        let minor = |name: &String| name.strip_prefix(prefix)?.parse().ok();
        names.filter_map(minor).collect()
    }
}

/// What is stated, each with the processes of its group that live. What cannot be read is not stated: whoever takes a statement back
/// does so at any moment.
pub(crate) fn all(directory: &Path) -> Vec<(Stated, Vec<u32>)> {
    let stated: Vec<Stated> = entries(directory)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        .filter_map(|path| serde_json::from_slice(&fs::read(path).ok()?).ok())
        .collect();
    if stated.is_empty() {
        return Vec::new();
    }
    let processes = living();
    let with_processes = |stated: Stated| {
        let of_group = processes
            .iter()
            .filter(|(_, group)| *group == stated.group)
            .map(|(pid, _)| *pid)
            .collect();
        (stated, of_group)
    };
    stated.into_iter().map(with_processes).collect()
}

/// Ids and groups of the processes that live.
fn living() -> Vec<(u32, u32)> {
    let number = |path: &std::path::PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    entries(Path::new("/proc"))
        .into_iter()
        .filter_map(|path| {
            let pid = number(&path)?;
            let text = fs::read_to_string(path.join("stat")).ok()?;
            Some((pid, group(&text)?))
        })
        .collect()
}

/// The group of a process, by its line `PID (NAME) STATE PARENT GROUP …`; none if it is dead and only waits to be noticed. A name may
/// have any character.
fn group(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut words = after_name.split_whitespace();
    let state = words.next()?;
    let group = words.nth(1)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(group)
}

fn entries(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::CommandExt, process::Command};

    use super::*;

    #[test]
    fn a_group_is_read_whatever_the_process_is_called() {
        for (line, expected) in [
            ("7 (cat) S 1 42 42 0 -1", Some(42)),
            ("7 (a) Z 1 9) R 1 42 42 0 -1", Some(42)),
            ("7 (cat) Z 1 42 42 0 -1", None),
            ("7 (cat) X 1 42 42 0 -1", None),
            ("7 (cat", None),
            ("", None),
        ] {
            assert_eq!(group(line), expected, "{line}");
        }
    }

    #[test]
    fn device_nodes_tell_gpus_and_capabilities_apart() {
        let stated = Stated {
            group: 1,
            device_nodes: [
                "/dev/nvidiactl",
                "/dev/nvidia-uvm",
                "/dev/nvidia3",
                "/dev/nvidia-caps/nvidia-cap30",
                "/dev/nvidia11",
                "/dev/nvidia-caps/nvidia-cap31",
            ]
            .map(str::to_owned)
            .to_vec(),
        };
        assert_eq!(stated.gpus(), BTreeSet::from([3, 11]));
        assert_eq!(stated.capabilities(), BTreeSet::from([30, 31]));
    }

    #[test]
    fn a_group_uses_what_is_stated_until_its_last_process_is_dead() {
        let name = format!("nvml-mock-stated-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        let mut process = Command::new("sleep")
            .arg("600")
            .process_group(0)
            .spawn()
            .unwrap();
        let stated = Stated {
            group: process.id(),
            device_nodes: vec!["/dev/nvidia0".to_owned()],
        };
        fs::write(
            directory.join("a.json"),
            serde_json::to_vec(&stated).unwrap(),
        )
        .unwrap();
        // Of no account: half written, and no statement.
        fs::write(directory.join("b.json.new"), "{").unwrap();
        fs::write(directory.join("c.json"), "{").unwrap();
        assert_eq!(all(&directory), [(stated.clone(), vec![process.id()])]);
        process.kill().unwrap();
        process.wait().unwrap();
        assert_eq!(all(&directory), [(stated, Vec::new())]);
        fs::remove_dir_all(directory).unwrap();
    }
}
