//! What `cargo xtask image` prints.

use super::{layout::Manifest, start::Start};

/// One program on one platform.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) program: &'static str,
    /// `REPOSITORY:TAG`.
    pub(crate) reference: String,
    /// Digest over all platforms.
    pub(crate) index: String,
    pub(crate) manifest: Manifest,
    pub(crate) unpacked_bytes: u64,
    pub(crate) start: Start,
}

const COLUMNS: [&str; 6] = ["PROGRAM", "PLATFORM", "SIZE", "UNPACKED", "START", "DIGEST"];

/// The table, in kubectl's manner.
pub(crate) fn render(rows: &[Row]) -> String {
    let mut lines = vec![COLUMNS.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    let mut widths = [0; COLUMNS.len()];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.len().max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(widths);
        let padded = cells.map(|(cell, width)| format!("{cell:<width$}   "));
        text += padded.collect::<String>().trim_end();
        text.push('\n');
    }
    for row in rows {
        if let Start::NotTried(why) = &row.start {
            let (program, platform) = (row.program, row.manifest.platform.name());
            text += &format!("{program} {platform}: {why}\n");
        }
    }
    text
}

impl Row {
    fn cells(&self) -> [String; COLUMNS.len()] {
        let start = match &self.start {
            Start::Took(duration) => format!("{}ms", duration.as_millis()),
            Start::NotTried(_) => "-".to_owned(),
        };
        [
            self.program.to_owned(),
            self.manifest.platform.name(),
            size(self.manifest.transfer_bytes),
            size(self.unpacked_bytes),
            start,
            self.manifest.digest.clone(),
        ]
    }

    /// By what name and digest pods ask for it.
    pub(crate) fn import(&self) -> String {
        format!("{}@{}", self.reference, self.index)
    }
}

/// As Kubernetes writes sizes, to a tenth.
fn size(bytes: u64) -> String {
    const MEBIBYTE: u64 = 1 << 20;
    let tenths = (bytes * 10 + MEBIBYTE / 2) / MEBIBYTE;
    format!("{}.{}Mi", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::image::platform::Platform;

    fn row(platform: Platform, start: Start) -> Row {
        Row {
            program: "muster-webhook",
            reference: "example.com/muster-webhook:0.1.0".to_owned(),
            index: "sha256:abc".to_owned(),
            manifest: Manifest {
                platform,
                digest: "sha256:def".to_owned(),
                transfer_bytes: 5 << 20,
            },
            unpacked_bytes: (10 << 20) + (512 << 10),
            start,
        }
    }

    #[test]
    fn the_table_is_aligned_and_says_why_a_program_was_not_started() {
        let rows = [
            row(Platform::Amd64, Start::Took(Duration::from_millis(12))),
            row(Platform::Arm64, Start::NotTried("because".to_owned())),
        ];
        let wanted = "\
PROGRAM          PLATFORM      SIZE    UNPACKED   START   DIGEST
muster-webhook   linux/amd64   5.0Mi   10.5Mi     12ms    sha256:def
muster-webhook   linux/arm64   5.0Mi   10.5Mi     -       sha256:def
muster-webhook linux/arm64: because
";
        assert_eq!(render(&rows), wanted);
    }

    #[test]
    fn an_image_is_named_with_its_tag_and_the_digest_over_all_platforms() {
        let row = row(Platform::Amd64, Start::Took(Duration::ZERO));
        let wanted = "example.com/muster-webhook:0.1.0@sha256:abc";
        assert_eq!(row.import(), wanted);
    }
}
