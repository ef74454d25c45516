//! What is stored changes on purpose only: it is compared, byte by byte, with the files in `tests/golden/`.
//! `MUSTER_GOLDEN=write` writes the files.

use std::{fs, path::PathBuf};

/// Compares a text with a file.
pub(crate) fn compare(name: &str, stored: &str) {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("tests/golden").join(name);
    if std::env::var("MUSTER_GOLDEN").is_ok_and(|value| value == "write") {
        fs::write(&path, stored).unwrap();
        return;
    }
    let expected = fs::read_to_string(&path).unwrap();
    assert_eq!(
        stored,
        expected,
        "{} is stored otherwise now",
        path.display()
    );
}
