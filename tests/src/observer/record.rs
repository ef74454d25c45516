//! The process runtime's record: which container got which GPUs, from when to when.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{
    etcd::Revision,
    hardware::{Cards, Part},
};

/// One line of the record.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    pub(super) event: Event,
    /// Absent where etcd did not answer the runtime.
    #[serde(default)]
    pub(super) revision: Option<Revision>,
    pub(super) pod_namespace: String,
    pub(super) pod_name: String,
    pub(super) pod_uid: String,
    pub(super) container_id: String,
    #[serde(default)]
    pub(super) cdi_devices: Option<Vec<String>>,
    /// Device nodes that it was given.
    #[serde(default)]
    pub(super) device_nodes: Option<Vec<String>>,
    /// How it ended, of one that has exited: 128 and the signal's number where that ended it.
    #[serde(default)]
    pub(super) exit_code: Option<i64>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Event {
    Started,
    Exited,
}

/// A container that was started with devices.
#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) node: String,
    /// `namespace/name`.
    pub(super) pod: String,
    pub(super) pod_uid: String,
    /// Devices, each with the claim by which it came.
    pub(super) devices: BTreeMap<String, String>,
    /// The hardware that it can use, by the device nodes that it was given.
    pub(super) parts: Vec<Part>,
}

/// What every CDI device of Muster begins with.
const CDI_PREFIX: &str = "gpu.muster.dev/claim=";
/// Length of a UID, by which a CDI device name `CLAIM-DEVICE` is taken apart.
const UID_LENGTH: usize = 36;

impl Container {
    /// The container of a `started` line, on a node with these cards; `None` if it got no device of Muster's.
    pub(super) fn of(node: &str, cards: &Cards, line: &Line) -> Result<Option<Self>> {
        let mut devices = BTreeMap::new();
        for id in line.cdi_devices.iter().flatten() {
            let Some(name) = id.strip_prefix(CDI_PREFIX) else {
                continue;
            };
            let parts = name.split_at_checked(UID_LENGTH);
            let (claim, device) = parts.with_context(|| format!("{id} names no claim"))?;
            devices.insert(device.trim_start_matches('-').to_owned(), claim.to_owned());
        }
        if devices.is_empty() {
            return Ok(None);
        }
        let pod = format!("{}/{}", line.pod_namespace, line.pod_name);
        let nodes = line.device_nodes.as_deref().unwrap_or_default();
        let parts = cards.parts(nodes);
        let parts = parts.with_context(|| format!("a container of {pod} on {node}"))?;
        ensure!(
            !parts.is_empty(),
            "a container of {pod} on {node} was given {devices:?} and the device node of no GPU, only {nodes:?}"
        );
        Ok(Some(Self {
            node: node.to_owned(),
            pod,
            pod_uid: line.pod_uid.clone(),
            parts,
            devices,
        }))
    }

    /// Whether it can use something of this GPU.
    pub(super) fn has(&self, gpu: &str) -> bool {
        self.parts.iter().any(|part| part.is_of(gpu))
    }

    /// Claims by which it got devices, each with their names.
    pub(super) fn claims(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut claims: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (device, claim) in &self.devices {
            claims.entry(claim).or_default().push(device);
        }
        claims
    }
}

/// A node's record, read as it grows.
#[derive(Debug)]
pub(super) struct RecordFile {
    pub(super) node: String,
    path: PathBuf,
    read: u64,
}

impl RecordFile {
    /// The record of this node, from its first line.
    pub(super) fn new(node: String, path: PathBuf) -> Self {
        Self {
            node,
            path,
            read: 0,
        }
    }

    /// Whole lines since the last call; the runtime writes each by one write. Whatever cannot be read is an error:
    /// an observer that skips a line does not know who holds which GPU.
    pub(super) fn new_lines(&mut self) -> Result<Vec<Line>> {
        let name = self.path.display();
        let mut file = File::open(&self.path).with_context(|| format!("cannot open {name}"))?;
        let length = file.metadata()?.len();
        ensure!(
            length >= self.read,
            "{name} has {length} bytes, and {} were read before",
            self.read
        );
        let mut text = String::new();
        file.seek(SeekFrom::Start(self.read))?;
        file.read_to_string(&mut text)
            .with_context(|| format!("cannot read {name}"))?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let lines = text[..whole].lines().map(|line| {
            serde_json::from_str(line).with_context(|| format!("{name}: no line of it: {line}"))
        });
        let lines: Result<Vec<Line>> = lines.collect();
        self.read += whole as u64;
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;

    const LINE: &str = r#"{"event":"exited","revision":7,"podNamespace":"ml","podName":"p","podUid":"u","containerId":"c"}"#;

    fn record(content: &str) -> (tempfile::TempDir, RecordFile) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record.jsonl");
        fs::write(&path, content).unwrap();
        (directory, RecordFile::new("node-0".to_owned(), path))
    }

    #[test]
    fn half_a_line_is_read_once_it_is_whole() {
        let (_directory, mut record) = record(&format!("{LINE}\n{}", &LINE[..20]));
        assert_eq!(record.new_lines().unwrap().len(), 1);
        assert_eq!(record.new_lines().unwrap().len(), 0);
        let mut file = File::options().append(true).open(&record.path).unwrap();
        writeln!(file, "{}", &LINE[20..]).unwrap();
        assert_eq!(record.new_lines().unwrap()[0].revision, Some(7));
    }

    #[test]
    fn a_record_that_cannot_be_read_is_an_error() {
        let (_directory, mut missing) = record("");
        fs::remove_file(&missing.path).unwrap();
        assert!(missing.new_lines().is_err());

        let (_directory, mut garbled) = record("{\"event\":\"vanished\"}\n");
        assert!(garbled.new_lines().is_err());

        let (_directory, mut shrunk) = record(&format!("{LINE}\n"));
        shrunk.new_lines().unwrap();
        fs::write(&shrunk.path, "").unwrap();
        assert!(shrunk.new_lines().is_err());
    }
}
