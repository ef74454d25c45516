//! What stands for the hardware of a node, and for what the kernel shows of it.

use std::{fs, path::Path};

use anyhow::Result;
use nvidia_ml_mock::{Board as CardsOfBoard, StateFile, uuid};

use super::{BOOT_ID_FILE, NodeOptions, PROC_ON_NODE};
use crate::gpu_board::Board;

/// The kernel's list of devices, as on a machine with NVIDIA's driver. Nothing opens them: containers are plain processes, and what they were
/// given is recorded.
const DEVICES: &str = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n235 nvidia-caps\n236 nvidia-uvm\n\nBlock devices:\n";

/// Puts the cards into a node: `state` is their state file, which lies in the node's directory.
pub(super) fn install(
    board: &Board,
    options: &NodeOptions,
    state_file: &StateFile,
    directory: &Path,
) -> Result<()> {
    let proc = directory.join("proc");
    fs::create_dir_all(&proc)?;
    fs::write(proc.join("devices"), DEVICES)?;
    fs::write(directory.join(BOOT_ID_FILE), "first")?;
    let mut state = board.state(&options.name);
    state.proc_directory = Some(PROC_ON_NODE.into());
    let cards = CardsOfBoard::named(&state.board).filter(|_| options.in_mig_mode);
    for gpu in cards.iter().flat_map(|board| &board.gpus) {
        let card = state.card(&uuid(&options.name, &gpu.pci_bus_id));
        card.mig_current = true;
        card.mig_pending = true;
    }
    state_file.write(&state)?;
    Ok(())
}
