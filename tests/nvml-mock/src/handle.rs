//! What stands for a thing in the C functions: a pointer that is never dereferenced, of which the bits say what it is.

use crate::call::{Code, INVALID_ARGUMENT};

/// What a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Gpu,
    MigDevice,
    GpuInstance,
    ComputeInstance,
}

/// A handle. It names a place and not what was there when it was made: an instance that was made anew in the place of another has
/// the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) kind: Kind,
    /// Place of the GPU on the board.
    pub(crate) position: usize,
    /// 0 for a GPU.
    pub(crate) gpu_instance: u32,
    /// 0 for a GPU and for a GPU instance.
    pub(crate) compute_instance: u32,
}

const KINDS: [Kind; 4] = [
    Kind::Gpu,
    Kind::MigDevice,
    Kind::GpuInstance,
    Kind::ComputeInstance,
];
/// Bits of each of the four numbers.
const BITS: u32 = 12;
const MASK: usize = (1 << BITS) - 1;

impl Handle {
    pub(crate) fn gpu(position: usize) -> Self {
        Self {
            kind: Kind::Gpu,
            position,
            gpu_instance: 0,
            compute_instance: 0,
        }
    }

    /// The pointer for it.
    pub(crate) fn pointer<T>(self) -> *mut T {
        let kind = KINDS.iter().position(|kind| *kind == self.kind);
        let number = |id: u32| usize::try_from(id).unwrap_or(MASK) & MASK;
        // One more than the position, so that no handle is null.
        let numbers = [
            kind.unwrap_or_default(),
            number(self.compute_instance),
            number(self.gpu_instance),
            (self.position + 1) & MASK,
        ];
        let address = numbers
            .into_iter()
            .fold(0, |address, number| (address << BITS) | number);
        std::ptr::without_provenance_mut(address)
    }

    /// What a pointer is a handle of, if it is of one of these kinds.
    pub(crate) fn of<T>(pointer: *mut T, kinds: &[Kind]) -> Result<Self, Code> {
        let address = pointer.addr();
        let number = |place: u32| (address >> (BITS * place)) & MASK;
        let id = |place: u32| u32::try_from(number(place)).map_err(|_| INVALID_ARGUMENT);
        let kind = KINDS.get(address >> (BITS * 3)).copied();
        let handle = Self {
            kind: kind.ok_or(INVALID_ARGUMENT)?,
            position: number(0).checked_sub(1).ok_or(INVALID_ARGUMENT)?,
            gpu_instance: id(1)?,
            compute_instance: id(2)?,
        };
        kinds
            .contains(&handle.kind)
            .then_some(handle)
            .ok_or(INVALID_ARGUMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_a_handle_of_one_thing_and_of_one_kind() {
        let mut seen = std::collections::BTreeSet::new();
        for kind in KINDS {
            for (position, gpu_instance, compute_instance) in
                [(0, 0, 0), (15, 0, 0), (0, 14, 0), (0, 14, 7), (3, 7, 1)]
            {
                let handle = Handle {
                    kind,
                    position,
                    gpu_instance,
                    compute_instance,
                };
                let pointer: *mut u8 = handle.pointer();
                assert!(seen.insert(pointer.addr()), "{handle:?}");
                assert_eq!(Handle::of(pointer, &KINDS), Ok(handle));
                assert_eq!(Handle::of(pointer, &[kind]), Ok(handle));
                let others: Vec<Kind> = KINDS.into_iter().filter(|one| *one != kind).collect();
                assert_eq!(Handle::of(pointer, &others), Err(INVALID_ARGUMENT));
            }
        }
    }

    #[test]
    fn what_is_no_handle_is_refused() {
        for address in [0, 1 << 12, (4 << 36) | 1, usize::MAX] {
            let pointer: *mut u8 = std::ptr::without_provenance_mut(address);
            assert_eq!(Handle::of(pointer, &KINDS), Err(INVALID_ARGUMENT));
        }
    }
}
