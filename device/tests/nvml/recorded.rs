//! What the suite `gpu` records of cards, recorded of the mock: both are right about each other, or a real card will tell which is not.

use nvidia_ml_mock::{BOARDS, Board};

use crate::{
    look::Library,
    machine::{LIBRARIES, Machine, VERSION, once},
};

#[test]
fn every_board_is_recorded_as_it_is_and_has_no_differences() {
    for (name, _) in BOARDS {
        let board = Board::named(name).unwrap();
        let machine = Machine::of(name);
        let file = machine.root(&format!("{LIBRARIES}/libnvidia-ml.so.{VERSION}"));
        let library = Library::open(file.as_os_str()).unwrap();
        let recording = library.record().unwrap();
        assert_eq!(recording.gpus.len(), board.gpus.len(), "{name}");
        let pairs = board.gpus.len() * (board.gpus.len() - 1) / 2;
        assert_eq!(recording.peers.len(), pairs, "{name}");
        assert_eq!(recording.driver_version, VERSION, "{name}");
        assert_eq!(recording.differences(), Vec::<String>::new(), "{name}");
        for (gpu, on_board) in recording.gpus.iter().zip(&board.gpus) {
            assert_eq!(gpu.pci_bus_id, on_board.pci_bus_id, "{name}");
            assert_eq!(gpu.registered, Ok(()), "{name}");
            let table = board.mig_table();
            let profiles = table.map_or(0, |table| table.profiles.len());
            assert_eq!(gpu.profiles.len(), profiles, "{name}");
        }
    }
}

#[test]
fn what_a_card_refuses_is_recorded_with_its_code() {
    let machine = Machine::of("h100-nvswitch-8");
    machine.fail(vec![
        once("nvmlDeviceGetMemoryInfo_v2", 3, false),
        once("nvmlDeviceRegisterEvents", 999, false),
    ]);
    let file = machine.root(&format!("{LIBRARIES}/libnvidia-ml.so.{VERSION}"));
    let library = Library::open(file.as_os_str()).unwrap();
    let recording = library.record().unwrap();
    let first = &recording.gpus[0];
    assert_eq!((first.memory_bytes, first.registered), (Err(3), Err(999)));
    let second = &recording.gpus[1];
    assert!(second.memory_bytes.is_ok() && second.registered.is_ok());
    let differences = recording.differences();
    assert!(
        matches!(differences.as_slice(), [only] if only.contains("it tells no memory (3)")),
        "{differences:?}"
    );
}
