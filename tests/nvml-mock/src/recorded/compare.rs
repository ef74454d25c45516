//! Where the boards differ from cards that were recorded.

use std::fmt::Debug;

use nvml_wrapper_sys::bindings::{
    nvmlEventTypeXidCriticalError, nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK,
};

use super::{RecordedGpu, RecordedPeers, RecordedProfile, Recording};
use crate::{
    board::{BOARDS, Board},
    mig::Profile,
    state::Placement,
};

/// Drivers keep different amounts of memory for themselves: up to this difference two amounts are the same.
const MOST_DIFFERENCE_PERCENT: u64 = 1;

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
        found
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
        found.compare("MIG", &self.mig.is_ok(), &board.mig.is_some());
        // Some drivers tell only while the GPU is in MIG mode.
        if !self.profiles.is_empty() {
            self.compare_profiles(board, &mut found);
        }
        // In virtual machines links may not be told.
        if self.links.iter().any(Result::is_ok) {
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
        let most = card.max(mock) / 100 * MOST_DIFFERENCE_PERCENT;
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
            reserved_bytes: Err(3),
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
            fabric_state: Err(3),
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
            uses: Vec::new(),
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
        let changes: [(Change, &str); 11] = [
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
    fn of_a_product_that_no_board_has_nothing_is_said() {
        let mut recording = recording("t4-2");
        for gpu in &mut recording.gpus {
            gpu.product_name = "NVIDIA GH200 480GB".to_owned();
            gpu.architecture = 1;
        }
        assert_eq!(recording.differences(), Vec::<String>::new());
    }
}
