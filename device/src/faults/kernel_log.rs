//! The kernel's log as it is read: `/dev/kmsg`, or a file that is written like it.
//!
//! Each opening begins with the oldest record that the kernel still has, so that what happened while nobody listened is heard of;
//! what was read before is passed over by its number. If records were overwritten before they were read, the kernel says so, once, and goes on
//! with the oldest that is left. Nothing here blocks: who reads looks again after a while.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::fs::OFlags;

use super::{
    log_line::{MOST_RECORD_BYTES, XidLine, record, xid_line},
    state::LogPosition,
};

/// Most records of `/dev/kmsg` that are read at once: it hands out one for each call.
const MOST_READS: usize = 4_096;
/// Lines after which a reading pauses.
const MANY_LINES: usize = 4_096;
/// A record and the lines that belong to it.
const BUFFER_BYTES: usize = 4 * MOST_RECORD_BYTES;

/// The log, as far as it was read.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
    position: Option<LogPosition>,
    /// Number of the newest record that was read since this was opened, also of those that are passed over.
    newest: Option<u64>,
    /// What was read of a line that has not ended.
    rest: Vec<u8>,
    /// Whether that line is too long to be one, and is passed over.
    passes_over: bool,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogRead {
    /// What the driver said of GPUs, in its order.
    pub lines: Vec<XidLine>,
    /// Whether records were overwritten before they were read: what they said only a look at the GPUs can tell.
    pub has_lost: bool,
    /// Whether there may be more at once.
    pub has_more: bool,
}

impl KernelLog {
    /// Opens the log. What was read up to `position`, in this boot, is not read again.
    pub fn open(path: &Path, position: Option<LogPosition>) -> io::Result<Self> {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path)?;
        Ok(Self {
            file,
            position,
            newest: None,
            rest: Vec::new(),
            passes_over: false,
        })
    }

    /// How far it was read.
    pub fn position(&self) -> Option<LogPosition> {
        self.position
    }

    /// Reads what is there.
    pub fn read(&mut self) -> io::Result<LogRead> {
        let mut read = LogRead::default();
        let mut buffer = vec![0; BUFFER_BYTES];
        for _ in 0..MOST_READS {
            match self.file.read(&mut buffer) {
                Ok(0) => return self.at_end(read),
                Ok(count) => self.take(buffer.get(..count).unwrap_or_default(), &mut read.lines),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return self.at_end(read),
                    io::ErrorKind::Interrupted => {}
                    // Overwritten. The next call goes on with what is left.
                    io::ErrorKind::BrokenPipe => {
                        read.has_lost = true;
                        self.rest.clear();
                    }
                    _ => return Err(error),
                },
            }
            if read.lines.len() >= MANY_LINES {
                break;
            }
        }
        read.has_more = true;
        Ok(read)
    }

    /// All that is there was read. The kernel numbers its records upwards and keeps the newest. So if that is older than what was read before,
    /// the number of the latter is none of this log, since whoever kept it had it damaged: then all is read again.
    fn at_end(&mut self, mut read: LogRead) -> io::Result<LogRead> {
        let known = self.position.zip(self.newest);
        if known.is_some_and(|(position, newest)| newest < position.sequence) {
            self.file.seek(SeekFrom::Start(0))?;
            (self.position, self.newest) = (None, None);
            self.rest.clear();
            self.passes_over = false;
            (read.has_lost, read.has_more) = (true, true);
        }
        Ok(read)
    }

    fn take(&mut self, bytes: &[u8], lines: &mut Vec<XidLine>) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.rest.len() + piece.len() > BUFFER_BYTES {
                self.passes_over = true;
                self.rest.clear();
            }
            let ended = piece.strip_suffix(b"\n");
            if !self.passes_over {
                self.rest.extend_from_slice(ended.unwrap_or(piece));
            }
            if ended.is_some() {
                let line = std::mem::take(&mut self.rest);
                if !std::mem::take(&mut self.passes_over) {
                    lines.extend(self.line(&line));
                }
            }
        }
    }

    fn line(&mut self, line: &[u8]) -> Option<XidLine> {
        // A line that begins with a blank belongs to the record before it: it has no numbers, so it is none.
        let record = record(line)?;
        self.newest = self.newest.max(Some(record.sequence));
        let is_old = self
            .position
            .is_some_and(|position| record.sequence <= position.sequence);
        if is_old {
            return None;
        }
        self.position = Some(LogPosition {
            sequence: record.sequence,
        });
        if record.is_kernel {
            xid_line(record.message)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;

    struct Log {
        directory: tempfile::TempDir,
    }

    impl Log {
        fn new(text: &[u8]) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let log = Self { directory };
            fs::write(log.path(), text).unwrap();
            log
        }

        fn path(&self) -> std::path::PathBuf {
            self.directory.path().join("kmsg")
        }

        fn add(&self, text: &[u8]) {
            let file = OpenOptions::new().append(true).open(self.path());
            file.unwrap().write_all(text).unwrap();
        }

        fn open(&self, position: Option<LogPosition>) -> KernelLog {
            KernelLog::open(&self.path(), position).unwrap()
        }
    }

    fn xids(log: &mut KernelLog) -> Vec<u32> {
        let read = log.read().unwrap();
        read.lines.into_iter().map(|line| line.xid).collect()
    }

    const TEXT: &[u8] = b"6,1,10,-;NVRM: loading\n\
        4,2,20,-;NVRM: Xid (PCI:0000:01:00): 13, x\n SUBSYSTEM=pci\n\
        12,3,30,-;NVRM: Xid (PCI:0000:01:00): 79, a program says so\n\
        \xff\xfe\n4,4,40,-;NVRM: Xid (PCI:0000:01:00): 48, x\n";

    #[test]
    fn what_the_kernel_says_is_read_once_from_the_oldest_on() {
        let log = Log::new(TEXT);
        let mut reader = log.open(None);
        assert_eq!(xids(&mut reader), [13, 48]);
        assert!(xids(&mut reader).is_empty());
        log.add(b"4,5,50,-;NVRM: Xid (PCI:0000:01:0");
        assert!(xids(&mut reader).is_empty(), "half a line");
        log.add(b"0): 94, x\n");
        assert_eq!(xids(&mut reader), [94]);
        assert_eq!(reader.position(), Some(LogPosition { sequence: 5 }));
    }

    #[test]
    fn what_was_said_while_nobody_listened_is_heard_and_what_was_heard_is_not_again() {
        let log = Log::new(TEXT);
        let mut reader = log.open(Some(LogPosition { sequence: 2 }));
        assert_eq!(xids(&mut reader), [48]);
        let mut again = log.open(reader.position());
        assert!(xids(&mut again).is_empty());
        assert_eq!(again.position(), reader.position());
    }

    #[test]
    fn a_position_that_the_log_has_not_reached_is_none_of_it_and_all_is_heard() {
        let log = Log::new(TEXT);
        for sequence in [5, u64::MAX] {
            let mut reader = log.open(Some(LogPosition { sequence }));
            let read = reader.read().unwrap();
            assert!(read.lines.is_empty() && read.has_lost && read.has_more);
            assert_eq!(xids(&mut reader), [13, 48], "{sequence}");
            assert_eq!(reader.position(), Some(LogPosition { sequence: 4 }));
            assert!(xids(&mut reader).is_empty());
        }
        // Of an empty log nobody can tell.
        let mut empty = Log::new(b"").open(Some(LogPosition { sequence: 5 }));
        assert_eq!(empty.read().unwrap(), LogRead::default());
    }

    #[test]
    fn a_line_that_never_ends_costs_itself_only() {
        let log = Log::new(b"4,1,1,-;NVRM: Xid (PCI:0000:01:00): 13, ");
        log.add(&vec![b'x'; 10 * BUFFER_BYTES]);
        let mut reader = log.open(None);
        assert!(xids(&mut reader).is_empty());
        assert!(reader.rest.len() <= BUFFER_BYTES);
        log.add(b"\n4,2,2,-;NVRM: Xid (PCI:0000:01:00): 48, x\n");
        assert_eq!(xids(&mut reader), [48]);
    }

    #[test]
    fn a_storm_is_read_in_parts_and_nothing_of_it_is_lost() {
        let mut text = Vec::new();
        for sequence in 0..10_000 {
            let line = format!("4,{sequence},1,-;NVRM: Xid (PCI:0000:01:00): {sequence}, x\n");
            text.extend_from_slice(line.as_bytes());
        }
        let log = Log::new(&text);
        let mut reader = log.open(None);
        let mut heard = Vec::new();
        loop {
            let read = reader.read().unwrap();
            assert!(read.lines.len() < 2 * MANY_LINES);
            heard.extend(read.lines.into_iter().map(|line| line.xid));
            if !read.has_more {
                break;
            }
        }
        assert!(heard.into_iter().eq(0..10_000));
    }

    #[test]
    fn no_log_is_an_error() {
        assert!(KernelLog::open(Path::new("/nonexistent-muster/kmsg"), None).is_err());
    }
}
