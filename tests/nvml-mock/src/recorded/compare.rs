//! Where the boards differ from cards that were recorded.
//!
//! What cannot be compared, and why:
//!
//! * The driver's version, the PCI bus id, the subsystem id, and whether a card was in MIG mode: they are of a machine, not of a product.
//! * How far the fabric manager has come: it is of a moment. Only whether there is a fabric is compared, and that a card has none only where it
//!   tells of its links: a card that was handed to a virtual machine is no longer part of any.
//! * Under which process id a program is listed for whoever is in another namespace of processes: the mock knows none.
//! * Whether a program is gone with its context or when it ends: the mock has no contexts, and lists whatever the state file says, and until a
//!   stated process ends.
//! * How two GPUs reach each other but for NVLink, and what they have in common on the way to the processor: that is of a machine.

use std::fmt::Debug;

use nvml_wrapper_sys::bindings::{
    nvmlEventTypeXidCriticalError, nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK,
};

use super::{
    Answer, GoneWith, ListedAs, RecordedGpu, RecordedPeers, RecordedProfile, RecordedUse, Recording,
};
use crate::{
    board::{BOARDS, Board},
    mig::Profile,
    state::Placement,
};

/// Drivers keep different amounts of memory for themselves: up to this difference two amounts are the same.
const MOST_DIFFERENCE_PERCENT: u64 = 1;
/// The same for what they keep, which differs more, by driver and by its settings. (A guess: of no product two amounts were recorded.)
const MOST_DIFFERENCE_OF_RESERVED_PERCENT: u64 = 20;
/// `NVML_GPU_FABRIC_STATE_NOT_SUPPORTED`: the driver knows of fabrics, and the card is part of none.
const NO_FABRIC: u8 = 0;

impl Recording {
    /// Where the boards of the mock differ from these cards, a sentence for each. Of products that no board has there is nothing to say.
    pub fn differences(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (number, gpu) in self.gpus.iter().enumerate() {
            let Some(board) = gpu.board() else {
                continue;
            };
            let sentence = |it: String| format!("GPU {number}, {}: {it}", gpu.product_name);
            found.extend(gpu.differences(&board).into_iter().map(sentence));
        }
        for peers in &self.peers {
            found.extend(self.differences_of(peers));
        }
        for used in &self.uses {
            found.extend(self.differences_of_use(used));
        }
        found
    }

    /// The mock lists a process on the GPU that it uses: by its own id for whoever is on the host, with a GPU instance if and only if the GPU is
    /// in MIG mode.
    fn differences_of_use(&self, used: &RecordedUse) -> Vec<String> {
        let Some(gpu) = self.gpus.get(used.gpu) else {
            let gpus = self.gpus.len();
            return vec![format!("GPU {} is used, and there are {gpus}", used.gpu)];
        };
        if gpu.board().is_none() {
            return Vec::new();
        }
        let mut found = Differences::default();
        if used.from_the_host {
            let what = "by which id a process is listed";
            found.compare(what, &used.listed, &ListedAs::Itself);
        }
        let is_listed = used.listed != ListedAs::Nobody;
        if is_listed {
            let what = "whether a process is listed with a GPU instance";
            found.compare(what, &used.has_gpu_instance, &gpu.is_cut());
        }
        let was_there = used.gone != GoneWith::Nothing;
        found.compare("whether what goes was listed", &was_there, &is_listed);
        let sentence = |it: String| format!("GPU {}, {}: {it}", used.gpu, gpu.product_name);
        found.0.into_iter().map(sentence).collect()
    }

    /// GPUs in MIG mode reach nobody, of two products there is no board, and which GPUs are bridged is another thing on each machine.
    fn differences_of(&self, peers: &RecordedPeers) -> Option<String> {
        let (first, second) = peers.gpus;
        let (one, other) = (self.gpus.get(first)?, self.gpus.get(second)?);
        if one.is_cut() || other.is_cut() || one.product_name != other.product_name {
            return None;
        }
        let is_linked = peers.nvlink == Ok(nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK);
        let on_board = one.board()?.nvlink;
        if on_board.as_ref().is_some_and(|it| !it.bridges.is_empty()) {
            return None;
        }
        let is_linked_here = on_board.is_some();
        (is_linked != is_linked_here).then(|| {
            format!(
                "GPUs {first} and {second} answer {:?} for NVLink, and the board {} it",
                peers.nvlink,
                if is_linked_here { "has" } else { "lacks" }
            )
        })
    }
}

impl RecordedGpu {
    /// The board of this product.
    pub fn board(&self) -> Option<Board> {
        let mut boards = BOARDS.iter().filter_map(|(name, _)| Board::named(name));
        boards.find(|board| board.product_name == self.product_name)
    }

    fn is_cut(&self) -> bool {
        self.mig.is_ok_and(|mig| mig.current)
    }

    fn differences(&self, board: &Board) -> Vec<String> {
        let mut found = Differences::default();
        found.compare("architecture", &self.architecture, &board.architecture);
        found.compare(
            "compute capability",
            &self.compute_capability,
            &board.compute_capability,
        );
        found.compare("PCI device", &self.pci_device_id, &board.pci_device_id);
        match self.memory_bytes {
            Ok(bytes) => found.compare_amounts("memory in bytes", bytes, board.memory_bytes),
            Err(code) => found.0.push(format!("it tells no memory ({code})")),
        }
        // One call tells both.
        if let Ok(bytes) = self.reserved_bytes {
            let most = MOST_DIFFERENCE_OF_RESERVED_PERCENT;
            found.compare_within(most, "memory kept in bytes", bytes, board.reserved_bytes);
        }
        found.compare("MIG", &self.mig.is_ok(), &board.mig.is_some());
        // Some drivers tell only while the GPU is in MIG mode.
        if !self.profiles.is_empty() {
            self.compare_profiles(board, &mut found);
        }
        let has_fabric = has_fabric(self.fabric_state);
        // In virtual machines links may not be told.
        let tells_links = self.links.iter().any(Result::is_ok);
        if has_fabric || tells_links {
            found.compare("a fabric", &has_fabric, &board.fabric_managed);
        }
        if tells_links {
            let active = self.links.iter().flatten().filter(|link| link.is_active);
            let on_board = board.nvlink.as_ref().map_or(0, |it| it.links_per_gpu);
            let on_board = usize::try_from(on_board).unwrap_or(usize::MAX);
            found.compare("active links", &active.count(), &on_board);
        }
        let xid = u64::from(nvmlEventTypeXidCriticalError);
        let tells_xids = self.events.is_ok_and(|kinds| kinds & xid != 0);
        found.compare("events for XIDs", &tells_xids, &true);
        found.0
    }

    fn compare_profiles(&self, board: &Board, found: &mut Differences) {
        let profiles = board
            .mig_table()
            .map(|table| table.profiles)
            .unwrap_or_default();
        for card in &self.profiles {
            let name = card.name.clone().unwrap_or_else(|_| card.id.to_string());
            match profiles.iter().find(|profile| profile.id == card.id) {
                Some(profile) => card.compare(&name, profile, found),
                None => found
                    .0
                    .push(format!("profile {name} is not among the mock's")),
            }
        }
        for profile in profiles {
            if self.profiles.iter().all(|card| card.id != profile.id) {
                found
                    .0
                    .push(format!("profile {} is the mock's only", profile.name));
            }
        }
    }
}

impl RecordedProfile {
    fn compare(&self, name: &str, profile: &Profile, found: &mut Differences) {
        let engines = profile.engines;
        for (what, card, mock) in [
            ("enumerator", self.enumerator, profile.enumerator),
            (
                "compute slices",
                self.compute_slices,
                profile.compute_slices,
            ),
            ("instances", self.max_instances, profile.max_instances),
            (
                "multiprocessors",
                self.multiprocessors,
                profile.multiprocessors,
            ),
            ("copy engines", self.copy_engines, engines.copy),
            ("decoders", self.decoders, engines.decoders),
            ("encoders", self.encoders, 0),
            ("JPEG engines", self.jpeg_engines, engines.jpeg),
            (
                "optical flow accelerators",
                self.ofa_engines,
                engines.optical_flow,
            ),
        ] {
            found.compare(&format!("{what} of {name}"), &card, &mock);
        }
        if let Ok(card) = &self.name {
            found.compare("the name of a profile", card, &profile.nvml_name());
        }
        let what = format!("memory of {name} in MiB");
        found.compare_amounts(&what, self.memory_mib, profile.memory_mib);
        if let Ok(placements) = &self.placements {
            let mut placements = placements.clone();
            placements.sort();
            let mock: Vec<Placement> = profile.placements().collect();
            found.compare(&format!("places of {name}"), &placements, &mock);
        }
    }
}

/// Whether a card is part of a fabric, however far its manager has come.
fn has_fabric(told: Answer<u8>) -> bool {
    told.is_ok_and(|state| state != NO_FABRIC)
}

/// What differs, in words.
#[derive(Debug, Default)]
struct Differences(Vec<String>);

impl Differences {
    fn compare<T: PartialEq + Debug>(&mut self, what: &str, card: &T, mock: &T) {
        if card != mock {
            self.0
                .push(format!("{what}: the card says {card:?}, the mock {mock:?}"));
        }
    }

    fn compare_amounts(&mut self, what: &str, card: u64, mock: u64) {
        self.compare_within(MOST_DIFFERENCE_PERCENT, what, card, mock);
    }

    fn compare_within(&mut self, percent: u64, what: &str, card: u64, mock: u64) {
        let most = card.max(mock) / 100 * percent;
        if card.abs_diff(mock) > most {
            self.compare(what, &card, &mock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::{RecordedLink, RecordedMig};

    /// What two cards of this board would be recorded as if the mock were right.
    fn recording(board: &str) -> Recording {
        let board = Board::named(board).unwrap();
        let profiles = board
            .mig_table()
            .map(|table| table.profiles)
            .unwrap_or_default();
        let links = board.nvlink.as_ref().map_or(0, |it| it.links_per_gpu);
        let gpu = RecordedGpu {
            product_name: board.product_name.clone(),
            architecture: board.architecture,
            compute_capability: board.compute_capability,
            pci_bus_id: "00000000:1B:00.0".to_owned(),
            pci_device_id: board.pci_device_id,
            pci_subsystem_id: 0,
            memory_bytes: Ok(board.memory_bytes + (64 << 20)),
            reserved_bytes: Ok(board.reserved_bytes + (64 << 20)),
            mig: match board.mig {
                Some(_) => Ok(RecordedMig {
                    current: false,
                    pending: false,
                }),
                None => Err(3),
            },
            profiles: profiles.iter().map(recorded).collect(),
            links: (0..links)
                .map(|_| {
                    Ok(RecordedLink {
                        is_active: true,
                        remote: Ok(2),
                    })
                })
                .collect(),
            fabric_state: if board.fabric_managed { Ok(3) } else { Err(3) },
            events: Ok(8),
            registered: Ok(()),
        };
        let nvlink = if links > 0 { Ok(0) } else { Ok(5) };
        Recording {
            driver_version: "580.95.05".to_owned(),
            cuda_driver_version: Ok(13_000),
            gpus: vec![gpu.clone(), gpu],
            peers: vec![RecordedPeers {
                gpus: (0, 1),
                read: nvlink,
                write: nvlink,
                nvlink,
                atomics: nvlink,
                common_ancestor: Ok(40),
            }],
            uses: vec![
                used(true, ListedAs::Itself, GoneWith::Context),
                used(false, ListedAs::Another, GoneWith::Process),
                used(false, ListedAs::Nobody, GoneWith::Nothing),
            ],
        }
    }

    /// A program that used the first GPU, which is whole.
    fn used(from_the_host: bool, listed: ListedAs, gone: GoneWith) -> RecordedUse {
        RecordedUse {
            gpu: 0,
            from_the_host,
            listed,
            has_gpu_instance: false,
            gone,
        }
    }

    fn recorded(profile: &Profile) -> RecordedProfile {
        RecordedProfile {
            enumerator: profile.enumerator,
            id: profile.id,
            name: Ok(profile.nvml_name()),
            compute_slices: profile.compute_slices,
            max_instances: profile.max_instances,
            multiprocessors: profile.multiprocessors,
            copy_engines: profile.engines.copy,
            decoders: profile.engines.decoders,
            encoders: 0,
            jpeg_engines: profile.engines.jpeg,
            ofa_engines: profile.engines.optical_flow,
            memory_mib: profile.memory_mib,
            placements: Ok(profile.placements().collect()),
        }
    }

    #[test]
    fn a_card_that_is_as_the_board_has_no_differences() {
        for (board, _) in BOARDS {
            let recording = recording(board);
            assert_eq!(recording.differences(), Vec::<String>::new(), "{board}");
            let text = serde_json::to_string(&recording).unwrap();
            assert_eq!(serde_json::from_str::<Recording>(&text).unwrap(), recording);
        }
    }

    /// A change of what was recorded.
    type Change = fn(&mut Recording);

    #[test]
    fn whatever_differs_is_told() {
        let changes: [(Change, &str); 20] = [
            (
                |it| it.gpus[0].architecture = 8,
                "GPU 0, NVIDIA H100 80GB HBM3: architecture: the card says 8, the mock 9",
            ),
            (
                |it| it.gpus[0].compute_capability = (9, 1),
                "compute capability",
            ),
            (|it| it.gpus[0].pci_device_id = 1, "PCI device"),
            (
                |it| it.gpus[0].memory_bytes = Ok(96 << 30),
                "memory in bytes",
            ),
            (|it| it.gpus[0].memory_bytes = Err(3), "no memory"),
            (
                |it| it.gpus[0].profiles[0].multiprocessors += 1,
                "multiprocessors of MIG 1g.10gb",
            ),
            (
                |it| it.gpus[0].profiles[0].placements = Ok(Vec::new()),
                "places of MIG 1g.10gb",
            ),
            (
                |it| it.gpus[0].profiles.truncate(6),
                "profile 7g.80gb is the mock's only",
            ),
            (
                |it| it.gpus[0].profiles[0].id = 99,
                "is not among the mock's",
            ),
            (|it| it.gpus[0].links[0] = Err(3), "active links"),
            (|it| it.peers[0].nvlink = Ok(5), "the board has it"),
            (
                |it| it.gpus[0].reserved_bytes = Ok(1 << 30),
                "memory kept in bytes",
            ),
            (
                |it| it.gpus[0].fabric_state = Ok(NO_FABRIC),
                "a fabric: the card says false, the mock true",
            ),
            (|it| it.gpus[0].fabric_state = Err(3), "a fabric"),
            (
                |it| it.uses[0].listed = ListedAs::Another,
                "GPU 0, NVIDIA H100 80GB HBM3: by which id a process is listed: the card says Another, the mock Itself",
            ),
            (
                |it| it.uses[0].listed = ListedAs::Nobody,
                "by which id a process is listed",
            ),
            (
                |it| it.uses[0].has_gpu_instance = true,
                "listed with a GPU instance: the card says true, the mock false",
            ),
            (
                |it| {
                    it.gpus[0].mig = Ok(RecordedMig {
                        current: true,
                        pending: true,
                    });
                },
                "listed with a GPU instance: the card says false, the mock true",
            ),
            (
                |it| it.uses[1].gone = GoneWith::Nothing,
                "whether what goes was listed",
            ),
            (|it| it.uses[2].gpu = 2, "GPU 2 is used, and there are 2"),
        ];
        for (change, sentence) in changes {
            let mut recording = recording("h100-nvswitch-8");
            change(&mut recording);
            let found = recording.differences();
            assert!(
                found.iter().any(|it| it.contains(sentence)),
                "{sentence}: {found:?}"
            );
        }
    }

    #[test]
    fn a_card_that_tells_of_no_links_may_be_in_a_virtual_machine_and_has_no_fabric_there() {
        let mut recording = recording("h100-nvswitch-8");
        for gpu in &mut recording.gpus {
            gpu.links.fill(Err(3));
            gpu.fabric_state = Ok(NO_FABRIC);
        }
        assert_eq!(recording.differences(), Vec::<String>::new());
        // But one that has a fabric which its board lacks is another card than the mock's.
        let mut recording = self::recording("t4-2");
        recording.gpus[0].fabric_state = Ok(2);
        let found = recording.differences();
        let only = "a fabric: the card says true, the mock false";
        assert!(
            matches!(found.as_slice(), [one] if one.contains(only)),
            "{found:?}"
        );
    }

    #[test]
    fn of_a_product_that_no_board_has_nothing_is_said() {
        let mut recording = recording("t4-2");
        for gpu in &mut recording.gpus {
            gpu.product_name = "NVIDIA GH200 480GB".to_owned();
            gpu.architecture = 1;
        }
        assert_eq!(recording.differences(), Vec::<String>::new());
    }
}
