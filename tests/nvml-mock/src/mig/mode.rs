//! MIG mode, resets and reboots.

use crate::{
    board::Board,
    state::{Card, State},
};

/// How a change of the mode takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// At once: Hopper and later.
    NotNeeded,
    /// By a reset, which the library does itself: Ampere.
    Done,
    /// By a reset that the library cannot do: Ampere in a virtual machine.
    Impossible,
}

/// What became of the mode that was asked for. It is pending in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// It is the current one.
    Done,
    /// A process or an instance uses the GPU.
    InUse,
    /// The GPU has to be reset.
    ResetRequired,
}

/// Asks for MIG mode, or for none. `is_used` says whether a process uses the GPU; instances are looked for here.
pub fn set_mode(card: &mut Card, on: bool, reset: Reset, is_used: bool) -> Activation {
    card.mig_pending = on;
    if card.mig_current == on {
        return Activation::Done;
    }
    if is_used || !card.gpu_instances.is_empty() {
        return Activation::InUse;
    }
    match reset {
        Reset::NotNeeded => card.mig_current = on,
        Reset::Done => card.reset(),
        Reset::Impossible => return Activation::ResetRequired,
    }
    Activation::Done
}

impl Card {
    /// The GPU is reset: instances are gone, what was pending is so, and what a reset heals is healed.
    pub fn reset(&mut self) {
        self.gpu_instances.clear();
        self.mig_current = self.mig_pending;
        self.recovery_action = 0;
        self.remapped_rows.is_pending = false;
        if let Some(minor) = self.minor_after_reset.take() {
            self.minor = Some(minor);
        }
    }
}

impl State {
    /// The machine is started again: no process lives, and each card is reset. Ampere keeps its MIG mode in the card; later ones
    /// start without it. Whoever wants other indices or minors sets them beside.
    pub fn reboot(&mut self) {
        self.processes.clear();
        self.graphics_processes.clear();
        self.mps_processes.clear();
        let board = Board::named(&self.board);
        let keeps_mode = board.is_some_and(|board| board.needs_reset_for_mig());
        for card in self.cards.values_mut() {
            card.mig_pending = keeps_mode && card.mig_pending;
            card.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{GpuInstance, Placement};

    fn with_instance() -> Card {
        Card {
            mig_current: true,
            mig_pending: true,
            gpu_instances: vec![GpuInstance {
                id: 7,
                profile: 19,
                placement: Placement { start: 0, size: 1 },
                compute_instances: Vec::new(),
            }],
            ..Card::default()
        }
    }

    #[test]
    fn the_mode_changes_at_once_or_by_a_reset_or_stays_pending() {
        for (reset, is_used, activation, current) in [
            (Reset::NotNeeded, false, Activation::Done, true),
            (Reset::Done, false, Activation::Done, true),
            (Reset::Impossible, false, Activation::ResetRequired, false),
            (Reset::NotNeeded, true, Activation::InUse, false),
            (Reset::Done, true, Activation::InUse, false),
        ] {
            let mut card = Card::default();
            assert_eq!(set_mode(&mut card, true, reset, is_used), activation);
            assert_eq!((card.mig_current, card.mig_pending), (current, true));
        }
    }

    #[test]
    fn a_gpu_with_instances_stays_in_its_mode() {
        let mut card = with_instance();
        let activation = set_mode(&mut card, false, Reset::NotNeeded, false);
        assert_eq!(activation, Activation::InUse);
        assert!(card.mig_current && !card.mig_pending);
        assert_eq!(card.gpu_instances.len(), 1);
        // What was asked for can be taken back.
        assert_eq!(
            set_mode(&mut card, true, Reset::NotNeeded, false),
            Activation::Done
        );
        assert!(card.mig_pending);
    }

    #[test]
    fn instances_never_outlive_a_reboot_and_the_mode_does_on_ampere() {
        for (board, is_on) in [("a100-40gb-nvswitch-8", true), ("h100-nvswitch-8", false)] {
            let mut state = State {
                board: board.to_owned(),
                ..State::default()
            };
            *state.card("GPU-1") = with_instance();
            state.reboot();
            let card = state.card("GPU-1");
            assert!(card.gpu_instances.is_empty());
            assert_eq!((card.mig_current, card.mig_pending), (is_on, is_on));
        }
    }
}
