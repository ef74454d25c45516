//! How the GPUs of a board are numbered and named, by what the state says. A position is the place on the board, in PCI order.

use crate::{board::Board, state::State, uuid::uuid};

impl State {
    /// UUID of the GPU at this position; empty where there is none.
    pub fn uuid(&self, board: &Board, position: usize) -> String {
        let gpu = board.gpus.get(position);
        gpu.map_or_else(String::new, |gpu| uuid(&self.seed, &gpu.pci_bus_id))
    }

    /// Minor number of its device node.
    pub fn minor(&self, board: &Board, position: usize) -> u32 {
        let card = self.cards.get(&self.uuid(board, position));
        let own = u32::try_from(position).unwrap_or(u32::MAX);
        card.and_then(|card| card.minor).unwrap_or(own)
    }

    /// The positions in the order of NVML's indices.
    pub fn positions(&self, board: &Board) -> Vec<usize> {
        let position = |bus: &String| board.gpus.iter().position(|gpu| gpu.pci_bus_id == *bus);
        let mut positions: Vec<usize> = Vec::new();
        let named = self.index_order.iter().filter_map(position);
        for next in named.chain(0..board.gpus.len()) {
            if !positions.contains(&next) {
                positions.push(next);
            }
        }
        positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_follow_the_order_that_is_said_and_then_that_of_pci() {
        let board = Board::named("a30-4").unwrap();
        let bus = |position: usize| board.gpus[position].pci_bus_id.clone();
        for (order, positions) in [
            (vec![], [0, 1, 2, 3]),
            (vec![bus(2)], [2, 0, 1, 3]),
            (vec![bus(3), bus(2), bus(1), bus(0)], [3, 2, 1, 0]),
            (
                vec![bus(3), "no such slot".to_owned(), bus(3)],
                [3, 0, 1, 2],
            ),
        ] {
            let state = State {
                index_order: order,
                ..State::default()
            };
            assert_eq!(state.positions(&board), positions);
        }
    }

    #[test]
    fn a_minor_number_is_the_position_unless_the_card_has_another() {
        let board = Board::named("a30-4").unwrap();
        let mut state = State::default();
        let uuid = state.uuid(&board, 1);
        state.card(&uuid).minor = Some(7);
        let minors: Vec<u32> = (0..4)
            .map(|position| state.minor(&board, position))
            .collect();
        assert_eq!(minors, [0, 7, 2, 3]);
    }
}
