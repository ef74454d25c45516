//! The boards are as the cards that were recorded.

use std::{fs, path::Path};

use nvidia_ml_mock::Recording;

#[test]
fn no_board_differs_from_a_card_that_was_recorded() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded");
    let mut recorded = 0;
    for entry in fs::read_dir(&directory).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        let text = fs::read(&file).unwrap();
        let recording: Recording = serde_json::from_slice(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let differences = recording.differences();
        assert!(
            differences.is_empty(),
            "{}: {differences:#?}",
            file.display()
        );
        recorded += recording.gpus.len();
    }
    assert!(recorded > 0, "no card was read in {}", directory.display());
    eprintln!("{recorded} cards were recorded");
}
