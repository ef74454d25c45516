//! What befalls the GPUs of a rank: on a real machine the next call of CUDA fails, and the program ends. Here the file that stands for the
//! machine's cards says so (`tests/nvml-mock`).

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;

/// How often the cards are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// NVML's bit of events that are XIDs.
const XID: u64 = 8;
/// XIDs that end nobody's program: a row of memory was replaced, errors were corrected, a recovery action changed.
const HARMLESS: [u64; 3] = [63, 92, 154];

/// The whole GPUs of a rank.
#[derive(Debug)]
pub(crate) struct Gpus {
    cards: PathBuf,
    /// Their UUIDs.
    own: Vec<String>,
    /// The first event that is news.
    from: u64,
    /// By what a file that was put in the place of the one that was read is told from it.
    seen: Option<(u64, i64, i64)>,
}

/// As much of the cards as is of interest.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Cards {
    lost: Vec<String>,
    events: Vec<Event>,
    next_event: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Event {
    sequence: u64,
    gpu: String,
    kind: u64,
    data: u64,
}

impl Gpus {
    /// These GPUs, from now on.
    pub(crate) fn of(cards: &Path, own: &[String]) -> io::Result<Self> {
        let now = read(cards)?;
        Ok(Self {
            cards: cards.to_owned(),
            own: own.to_vec(),
            from: now.next_event,
            seen: None,
        })
    }

    /// Waits until something befalls one of them that ends the program, and says what. For ever, if nothing does.
    pub(crate) async fn fail(mut self) -> String {
        loop {
            // What cannot be read is looked at again: the file is replaced as a whole.
            if let Ok(Some(what)) = self.look() {
                return what;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn look(&mut self) -> io::Result<Option<String>> {
        let metadata = fs::metadata(&self.cards)?;
        let seen = (metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
        if self.seen == Some(seen) {
            return Ok(None);
        }
        let cards = read(&self.cards)?;
        self.seen = Some(seen);
        let is_own = |gpu: &String| self.own.contains(gpu);
        if let Some(gpu) = cards.lost.iter().find(|gpu| is_own(gpu)) {
            return Ok(Some(format!("{gpu} is lost")));
        }
        let mut events = cards.events.iter();
        let fatal = events.find(|event| {
            event.sequence >= self.from
                && event.kind == XID
                && !HARMLESS.contains(&event.data)
                && is_own(&event.gpu)
        });
        Ok(fatal.map(|event| format!("{} has XID {}", event.gpu, event.data)))
    }
}

fn read(cards: &Path) -> io::Result<Cards> {
    Ok(serde_json::from_slice(&fs::read(cards)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(cards: &Path, text: &str) {
        let next = cards.with_extension("new");
        fs::write(&next, text).unwrap();
        fs::rename(next, cards).unwrap();
    }

    #[test]
    fn a_program_ends_by_what_befalls_its_own_gpus_after_it_began() {
        let directory = tempfile::tempdir().unwrap();
        let cards = directory.path().join("nvml.json");
        let event = |sequence: u64, gpu: &str, xid: u64| {
            format!(r#"{{"sequence": {sequence}, "gpu": "{gpu}", "kind": 8, "data": {xid}}}"#)
        };
        let state = |next: u64, events: &[String], lost: &str| {
            format!(
                r#"{{"board": "t4-2", "nextEvent": {next}, "events": [{}], "lost": [{lost}]}}"#,
                events.join(",")
            )
        };
        for (events, lost, expected) in [
            (vec![], "", None),
            (vec![event(1, "GPU-a", 48)], "", Some("GPU-a has XID 48")),
            (vec![event(1, "GPU-b", 48)], "", None),
            (vec![event(1, "GPU-a", 63)], "", None),
            (
                vec![event(1, "GPU-a", 63), event(2, "GPU-a", 13)],
                "",
                Some("GPU-a has XID 13"),
            ),
            (vec![], r#""GPU-b""#, None),
            (vec![], r#""GPU-b", "GPU-a""#, Some("GPU-a is lost")),
        ] {
            // What was before it began is nothing to it.
            let before = event(0, "GPU-a", 79);
            write(&cards, &state(1, std::slice::from_ref(&before), ""));
            let mut gpus = Gpus::of(&cards, &["GPU-a".to_owned()]).unwrap();
            assert_eq!(gpus.look().unwrap(), None);
            let mut all = vec![before];
            all.extend(events);
            write(&cards, &state(9, &all, lost));
            let found = gpus.look().unwrap();
            assert_eq!(found.as_deref(), expected, "{all:?}, {lost}");
        }
        assert!(Gpus::of(&directory.path().join("none"), &[]).is_err());
    }

    #[tokio::test]
    async fn a_file_that_is_gone_for_a_moment_ends_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let cards = directory.path().join("nvml.json");
        write(&cards, "{}");
        let gpus = Gpus::of(&cards, &["GPU-a".to_owned()]).unwrap();
        fs::remove_file(&cards).unwrap();
        let failing = tokio::spawn(gpus.fail());
        tokio::time::sleep(2 * LOOK_EVERY).await;
        assert!(!failing.is_finished());
        write(&cards, r#"{"lost": ["GPU-a"]}"#);
        assert_eq!(failing.await.unwrap(), "GPU-a is lost");
    }
}
