//! What `cargo xtask image` prints.

use std::path::Path;

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

/// Two tables, in kubectl's manner: what was made for each platform, and the images, each over all its platforms.
pub(crate) fn render(rows: &[Row], output: &Path) -> String {
    let mut platforms =
        vec![["PROGRAM", "PLATFORM", "SIZE", "UNPACKED", "START", "DIGEST"].map(str::to_owned)];
    platforms.extend(rows.iter().map(Row::cells));
    let mut text = aligned(&platforms);
    for row in rows {
        if let Start::NotTried(why) = &row.start {
            let (program, platform) = (row.program, row.manifest.platform.name());
            text += &format!("{program} {platform}: {why}\n");
        }
    }
    let mut images = vec![["IMAGE", "DIGEST", "FILE"].map(str::to_owned)];
    images.extend(rows.iter().map(|row| {
        let file = output.join(format!("{}.tar", row.program));
        [
            row.reference.clone(),
            row.index.clone(),
            file.display().to_string(),
        ]
    }));
    // One line for each image: its platforms stand one after the other.
    images.dedup();
    text.push('\n');
    text + &aligned(&images)
}

fn aligned<const COLUMNS: usize>(lines: &[[String; COLUMNS]]) -> String {
    let mut widths = [0; COLUMNS];
    for line in lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.len().max(*width);
        }
    }
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(widths);
        let padded = cells.map(|(cell, width)| format!("{cell:<width$}   "));
        text += padded.collect::<String>().trim_end();
        text.push('\n');
    }
    text
}

impl Row {
    fn cells(&self) -> [String; 6] {
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

IMAGE                              DIGEST       FILE
example.com/muster-webhook:0.1.0   sha256:abc   out/muster-webhook.tar
";
        assert_eq!(render(&rows, Path::new("out")), wanted);
    }

    #[test]
    fn sizes_are_rounded_to_a_tenth() {
        assert_eq!(size(0), "0.0Mi");
        assert_eq!(size((1 << 20) - 1), "1.0Mi");
        assert_eq!(size(3 << 19), "1.5Mi");
    }
}
