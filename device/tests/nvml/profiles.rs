//! What GPUs can be cut into, as they tell it.

use muster_device::{BackendError, Media, MigProfile, Placement};
use nvidia_ml_mock::{
    BOARDS, Board, Failure,
    mig::{Profile, Table},
};

use crate::machine::{Machine, gpus, once, uuids};

const UNKNOWN: u32 = 999;
const NOT_SUPPORTED: u32 = 3;
const VERSION_MISMATCH: u32 = 25;

/// Boards whose GPUs can be cut, with what they can be cut into.
pub(crate) fn boards() -> Vec<(&'static str, &'static Table)> {
    let tables = BOARDS.into_iter().filter_map(|(name, _)| {
        let table = Board::named(name)?.mig_table()?;
        Some((name, table))
    });
    tables.collect()
}

fn expected(profile: &Profile) -> MigProfile {
    let whole = profile
        .compute_profiles()
        .find(|compute| compute.slices == profile.compute_slices);
    let engines = profile.engines;
    MigProfile {
        name: profile.name.to_owned(),
        gpu_instance_profile: profile.id,
        compute_instance_profile: whole.unwrap().id,
        memory_bytes: profile.memory_bytes(),
        multiprocessors: profile.multiprocessors,
        compute_slices: profile.compute_slices,
        memory_slices: profile.memory_slices,
        media: Media {
            copy_engines: engines.copy,
            decoders: engines.decoders,
            encoders: 0,
            jpeg_engines: engines.jpeg,
            ofa_engines: engines.optical_flow,
        },
        max_instances: profile.max_instances,
        placements: profile
            .placements()
            .map(|place| Placement {
                start: place.start,
                size: place.size,
            })
            .collect(),
    }
}

#[test]
fn every_profile_of_every_product_is_known_whatever_the_mode() {
    assert_eq!(boards().len(), 8);
    for (board, table) in boards() {
        let machine = Machine::of(board);
        let backend = machine.backend();
        let cut = gpus(&backend).swap_remove(1).uuid;
        machine.in_mig_mode(&cut);
        let mut profiles: Vec<_> = table.profiles.iter().map(expected).collect();
        profiles.sort_by_key(|profile| profile.gpu_instance_profile);
        for gpu in gpus(&backend) {
            let mig = gpu.mig.unwrap();
            let is_on = gpu.uuid == cut;
            assert_eq!((mig.current, mig.pending), (is_on, is_on), "{board}");
            assert_eq!(mig.implausible, Vec::<String>::new(), "{board}");
            assert_eq!(mig.profiles, profiles, "{board}");
            assert_eq!(mig.memory_slices(), table.memory_slices);
            assert_eq!(mig.compute_slices(), table.compute_slices);
        }
    }
}

#[test]
fn a_library_that_tells_no_names_has_them_made_as_nvidia_does() {
    // What is known of the memory of B200 is rounded.
    let boards = boards()
        .into_iter()
        .filter(|(board, _)| !board.starts_with("b200"));
    for (board, table) in boards {
        let machine = Machine::of(board);
        machine.fail(vec![Failure {
            times: None,
            ..once(
                "nvmlDeviceGetGpuInstanceProfileInfoV",
                VERSION_MISMATCH,
                false,
            )
        }]);
        let mig = gpus(&machine.backend()).swap_remove(0).mig.unwrap();
        for profile in table.profiles {
            let told = mig.profile(profile.name);
            let number = told.map(|told| told.gpu_instance_profile);
            assert_eq!(number, Some(profile.id), "{board}: {}", profile.name);
        }
    }
}

#[test]
fn a_gpu_that_cannot_be_cut_and_one_without_memory_of_its_own_say_so() {
    let machine = Machine::of("t4-2");
    let backend = machine.backend();
    for gpu in gpus(&backend) {
        assert_eq!(gpu.mig, None);
        assert!(gpu.memory_bytes.is_some());
    }

    let machine = Machine::new();
    let backend = machine.backend();
    let all = gpus(&backend);
    machine.change(|state| state.card(&all[2].uuid).has_no_memory = true);
    let after = gpus(&backend);
    assert_eq!(after[2].memory_bytes, None);
    assert_eq!(after[2].mig, all[2].mig);
    assert_eq!(after[3], all[3]);
}

#[test]
fn a_driver_that_tells_only_in_the_mode_is_believed_when_it_does() {
    let machine = Machine::new();
    machine.change(|state| state.profiles_need_mig_mode = true);
    let backend = machine.backend();
    let all = gpus(&backend);
    machine.in_mig_mode(&all[0].uuid);
    let after = gpus(&backend);
    for (gpu, known) in [(&all[0], 0), (&after[0], 7), (&after[1], 0)] {
        let mig = gpu.mig.as_ref().unwrap();
        assert_eq!(mig.profiles.len(), known);
        assert_eq!(mig.implausible, Vec::<String>::new());
    }
}

#[test]
fn a_gpu_that_does_not_answer_about_slices_costs_only_itself() {
    for function in [
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetGpuInstanceProfileInfoV",
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    ] {
        let machine = Machine::new();
        let backend = machine.backend();
        let before = backend.gpus().unwrap();
        let sick = before.gpus[3].gpu.uuid.clone();
        machine.fail(vec![Failure {
            gpu: sick.clone(),
            times: None,
            ..once(function, UNKNOWN, false)
        }]);
        let listed = backend.gpus().unwrap();
        assert_eq!(uuids(&listed).1, [sick], "{function}");
        let silent = &listed.gpus[3];
        assert!(matches!(silent.silent, Some(BackendError::Failed(_))));
        assert_eq!(silent.gpu, before.gpus[3].gpu, "it stays what it was");
        machine.fail(Vec::new());
        assert_eq!(backend.gpus().unwrap(), before);
    }
}

#[test]
fn a_driver_without_profiles_or_places_has_a_gpu_that_is_not_cut() {
    for function in [
        "nvmlDeviceGetGpuInstanceProfileInfoV",
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    ] {
        let machine = Machine::new();
        machine.fail(vec![Failure {
            times: None,
            ..once(function, NOT_SUPPORTED, false)
        }]);
        for gpu in gpus(&machine.backend()) {
            let mig = gpu.mig.unwrap();
            assert!(mig.profiles.is_empty() && mig.implausible.is_empty());
        }
    }
}
