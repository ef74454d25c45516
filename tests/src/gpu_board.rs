//! GPUs of a test node: the state file of the mock NVML library.

use nvidia_ml_mock::State;

/// A machine of GPUs that the mock NVML library shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Board {
    /// 8 H100 with 80 GB, all to all by NVSwitch.
    H100Nvswitch8,
    /// 8 H200, all to all by NVSwitch.
    H200Nvswitch8,
    /// 8 B200, all to all by NVSwitch.
    B200Nvswitch8,
    /// 8 A100 with 40 GB, all to all by NVSwitch.
    A100With40GbNvswitch8,
    /// 8 A100 with 80 GB, all to all by NVSwitch.
    A100With80GbNvswitch8,
    /// 4 A100 with 40 GB on PCIe: bridges connect the first with the third, and the second with the fourth.
    A100With40GbBridgedFour,
    /// 16 A30 without NVLink: more than have their counters in one ResourceSlice.
    A30Sixteen,
    /// 2 T4 without NVLink.
    T4Pair,
}

impl Board {
    /// Number of its GPUs.
    pub fn gpus(&self) -> usize {
        match self {
            Self::H100Nvswitch8
            | Self::H200Nvswitch8
            | Self::B200Nvswitch8
            | Self::A100With40GbNvswitch8
            | Self::A100With80GbNvswitch8 => 8,
            Self::A100With40GbBridgedFour => 4,
            Self::A30Sixteen => 16,
            Self::T4Pair => 2,
        }
    }

    /// Its name in the mock.
    fn name(&self) -> &'static str {
        match self {
            Self::H100Nvswitch8 => "h100-nvswitch-8",
            Self::H200Nvswitch8 => "h200-nvswitch-8",
            Self::B200Nvswitch8 => "b200-nvswitch-8",
            Self::A100With40GbNvswitch8 => "a100-40gb-nvswitch-8",
            Self::A100With80GbNvswitch8 => "a100-80gb-nvswitch-8",
            Self::A100With40GbBridgedFour => "a100-40gb-pcie-bridged-4",
            Self::A30Sixteen => "a30-16",
            Self::T4Pair => "t4-2",
        }
    }

    /// The state of a machine of this name on which all is well.
    pub fn state(&self, node: &str) -> State {
        State {
            board: self.name().to_owned(),
            seed: node.to_owned(),
            ..State::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_board_is_one_of_the_mock_and_has_its_gpus() {
        for board in [
            Board::H100Nvswitch8,
            Board::H200Nvswitch8,
            Board::B200Nvswitch8,
            Board::A100With40GbNvswitch8,
            Board::A100With80GbNvswitch8,
            Board::A100With40GbBridgedFour,
            Board::A30Sixteen,
            Board::T4Pair,
        ] {
            let of_mock = nvidia_ml_mock::Board::named(board.name()).unwrap();
            assert_eq!(of_mock.gpus.len(), board.gpus(), "{board:?}");
        }
    }
}
