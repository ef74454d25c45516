//! A layer of an image: files, packed so that the same files give the same bytes.

use std::{collections::BTreeMap, io::Write};

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use tar::{EntryType, Header};

use super::digest::sha256;

/// No byte of a layer depends on when it was packed.
const NO_TIME: u64 = 0;

/// Number that stands for an unknown system in gzip's header.
const UNKNOWN_SYSTEM: u8 = 255;

/// The files of a layer, by path without the leading slash. All are owned by root.
#[derive(Debug, Default)]
pub(crate) struct Files(BTreeMap<String, File>);

#[derive(Debug)]
struct File {
    mode: u32,
    content: Vec<u8>,
}

/// A packed layer.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// The compressed tar archive.
    pub(crate) blob: Vec<u8>,
    /// Digest of the archive before it was compressed.
    pub(crate) diff_id: String,
    /// Size of all files.
    pub(crate) unpacked_bytes: u64,
}

impl Files {
    /// Adds a file that everybody may read.
    pub(crate) fn add(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.insert(path, 0o644, content.into());
    }

    /// Adds a file that everybody may run.
    pub(crate) fn add_executable(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.insert(path, 0o755, content.into());
    }

    fn insert(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        let path = path.trim_start_matches('/').to_owned();
        self.0.insert(path, File { mode, content });
    }

    /// Packs the files and the directories above them, in the order of their paths.
    pub(crate) fn pack(&self) -> Result<Layer> {
        let mut archive = tar::Builder::new(Vec::new());
        let mut written = std::collections::BTreeSet::new();
        for (path, file) in &self.0 {
            let parents = path.match_indices('/').map(|(end, _)| &path[..end]);
            for parent in parents.filter(|parent| written.insert(*parent)) {
                let directory = format!("{parent}/");
                let header = header(EntryType::Directory, &directory, 0o755, 0)?;
                archive.append(&header, &[][..])?;
            }
            let size = file.content.len() as u64;
            let header = header(EntryType::Regular, path, file.mode, size)?;
            archive.append(&header, file.content.as_slice())?;
        }
        let archive = archive.into_inner()?;
        let mut gzip = GzBuilder::new()
            .mtime(0)
            .operating_system(UNKNOWN_SYSTEM)
            .write(Vec::new(), Compression::best());
        gzip.write_all(&archive)?;
        Ok(Layer {
            blob: gzip.finish()?,
            diff_id: sha256(&archive),
            unpacked_bytes: self.0.values().map(|file| file.content.len() as u64).sum(),
        })
    }
}

fn header(kind: EntryType, path: &str, mode: u32, size: u64) -> Result<Header> {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header
        .set_path(path)
        .with_context(|| format!("{path} in a layer"))?;
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(NO_TIME);
    header.set_size(size);
    header.set_cksum();
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn the_same_files_give_the_same_bytes_in_whatever_order_they_were_added() {
        let files = [("/usr/lib/b.so", "b"), ("/a", "a"), ("/usr/lib/a.so", "c")];
        let mut one = Files::default();
        let mut other = Files::default();
        for (path, content) in files {
            one.add(path, content);
        }
        for (path, content) in files.into_iter().rev() {
            other.add(path, content);
        }
        assert_eq!(one.pack().unwrap().blob, other.pack().unwrap().blob);

        other.add("/a", "A");
        assert_ne!(one.pack().unwrap().diff_id, other.pack().unwrap().diff_id);
    }

    #[test]
    fn files_come_after_their_directories_and_belong_to_root() {
        let mut files = Files::default();
        files.add_executable("/usr/bin/program", "program");
        files.add("/usr/bin/data", "data");
        let layer = files.pack().unwrap();
        assert_eq!(layer.unpacked_bytes, 11);

        let mut plain = Vec::new();
        let mut gzip = GzDecoder::new(layer.blob.as_slice());
        gzip.read_to_end(&mut plain).unwrap();
        assert_eq!(sha256(&plain), layer.diff_id);

        let mut archive = tar::Archive::new(plain.as_slice());
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            let owner = (header.uid().unwrap(), header.gid().unwrap());
            assert_eq!((owner, header.mtime().unwrap()), ((0, 0), 0));
            let path = entry.path().unwrap().display().to_string();
            found.push((path, header.mode().unwrap()));
        }
        let wanted = [
            ("usr/", 0o755),
            ("usr/bin/", 0o755),
            ("usr/bin/data", 0o644),
            ("usr/bin/program", 0o755),
        ];
        assert_eq!(found, wanted.map(|(path, mode)| (path.to_owned(), mode)));
    }

    #[test]
    fn gzips_header_tells_neither_time_nor_system() {
        let mut files = Files::default();
        files.add("/a", "a");
        let blob = files.pack().unwrap().blob;
        // RFC 1952: magic, method, flags without a name, four bytes of time, then compression and system.
        assert_eq!(blob[..8], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0]);
        assert_eq!(blob[9], UNKNOWN_SYSTEM);
    }
}
