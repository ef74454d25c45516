//! Who uses a GPU.
//!
//! Raw, because the wrapper (0.13.0) drops the number of the GPU instance, knows no driver before 510, and takes every list for one
//! of entries of 24 bytes. In early drivers of branch 535 (535.43 to 535.86) the same functions write 32 for each: the amount of
//! protected memory follows. They took that back, and added `nvmlDeviceGetRunningProcessDetailList` for it.

use std::{collections::BTreeSet, ffi::c_uint, ptr};

use nvml_wrapper::{
    Device,
    error::{NvmlError, nvml_sym, nvml_try, nvml_try_count},
};
use nvml_wrapper_sys::bindings as raw;

use super::{BackendError, gone_or_failed, library::Session, mig::is_in_mig_mode};

/// A process with a context on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Process id as the host counts.
    pub pid: u32,
    /// The GPU instance that it runs in. `None` counts on the whole GPU: it is not in MIG mode, or does not say in which.
    pub gpu_instance: Option<u32>,
}

/// One of NVML's lists. What it writes are numbers of 32 and 64 bits, in the order of `nvmlProcessInfo_v2_t`.
type List = unsafe extern "C" fn(
    raw::nvmlDevice_t,
    *mut c_uint,
    *mut raw::nvmlProcessInfo_v2_t,
) -> raw::nvmlReturn_t;

/// Words of an entry: its process id, its memory, its instances; early drivers of branch 535 have a fourth.
const WORDS: usize = 3;
const MOST_WORDS: usize = 4;
/// Room for processes that start between two questions.
const MORE: u32 = 16;
/// Most processes that are believed of a GPU.
const MOST_PROCESSES: u32 = 1 << 20;
/// How often a list is asked for that grows meanwhile.
const TRIES: u32 = 4;
/// What stands where NVML wrote nothing: no process id, no amount of memory and no number of an instance looks like it.
const UNWRITTEN: u64 = 0xA5A5_5A5A_C3C3_3C3C;

pub(super) fn processes(session: &Session, uuid: &str) -> Result<Vec<Process>, BackendError> {
    let gone = |error| gone_or_failed(uuid, error);
    let device = session.device(uuid)?;
    let lib = session.nvml.lib();
    let names_instances = is_in_mig_mode(&device).map_err(gone)?;
    // All lists of one library have the same layout.
    let has_one_layout = lib.nvmlDeviceGetRunningProcessDetailList.is_ok();
    let lists = [
        lib.nvmlDeviceGetComputeRunningProcesses_v3
            .as_ref()
            .or(lib.nvmlDeviceGetComputeRunningProcesses_v2.as_ref()),
        lib.nvmlDeviceGetGraphicsRunningProcesses_v3
            .as_ref()
            .or(lib.nvmlDeviceGetGraphicsRunningProcesses_v2.as_ref()),
        lib.nvmlDeviceGetMPSComputeRunningProcesses_v3
            .as_ref()
            .or(lib.nvmlDeviceGetMPSComputeRunningProcesses_v2.as_ref()),
    ];
    let mut processes = BTreeSet::new();
    let mut is_told = false;
    for list in lists {
        let listed = nvml_sym(list).and_then(|list| ask(&device, *list, has_one_layout));
        match listed {
            Ok(listed) => {
                is_told = true;
                processes.extend(listed.into_iter().map(|(pid, instance)| Process {
                    pid,
                    gpu_instance: instance.filter(|_| names_instances),
                }));
            }
            // An old driver, or a board that cannot have such processes.
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => {}
            Err(error) => return Err(gone(error)),
        }
    }
    if !is_told {
        let cause = "this driver does not say which processes use the GPU; 470 and later do";
        return Err(BackendError::Failed(cause.to_owned()));
    }
    Ok(processes.into_iter().collect())
}

/// The processes of a list, each with its GPU instance if it names one.
fn ask(
    device: &Device<'_>,
    list: List,
    has_one_layout: bool,
) -> Result<Vec<(u32, Option<u32>)>, NvmlError> {
    let mut count = 0;
    // SAFETY: the handle is of the library that the function is of, which is loaded and initialised as long as `device` lives;
    // without a list it writes only how long that is.
    nvml_try_count(unsafe { list(device.handle(), &raw mut count, ptr::null_mut()) })?;
    for _ in 0..TRIES {
        if count == 0 {
            return Ok(Vec::new());
        }
        if count > MOST_PROCESSES {
            break;
        }
        let room = count + MORE;
        let mut words = vec![UNWRITTEN; MOST_WORDS * length(room)];
        count = room;
        let entries = words.as_mut_ptr().cast();
        // SAFETY: as before; there is room for as many entries as it is told, whatever their layout.
        match nvml_try(unsafe { list(device.handle(), &raw mut count, entries) }) {
            Ok(()) if count <= room => {
                return Ok(entries_of(&words, length(count), has_one_layout));
            }
            Ok(()) => break,
            // More than before.
            Err(NvmlError::InsufficientSize(_)) => count = count.max(room),
            Err(error) => return Err(error),
        }
    }
    Err(NvmlError::InsufficientSize(Some(length(count))))
}

/// Entries of 24 bytes, or of 32: those reach where no other would write. A library with one layout has those of 24.
fn entries_of(words: &[u64], count: usize, has_one_layout: bool) -> Vec<(u32, Option<u32>)> {
    let beyond = words.get(WORDS * count..).unwrap_or_default();
    let is_long = !has_one_layout && beyond.iter().any(|word| *word != UNWRITTEN);
    let each = if is_long { MOST_WORDS } else { WORDS };
    let entry = |words: &[u64]| {
        let (pid, _) = halves(*words.first()?);
        let (instance, _) = halves(*words.get(2)?);
        let is_instance = instance != raw::INVALID_GPU_INSTANCE_ID;
        Some((pid, is_instance.then_some(instance)))
    };
    let entries = words.chunks_exact(each).take(count);
    entries.filter_map(entry).collect()
}

/// The two numbers of 32 bits in eight bytes, in the order in which they lie there.
fn halves(word: u64) -> (u32, u32) {
    let bytes = word.to_ne_bytes();
    let half = |from: usize| std::array::from_fn(|at| bytes[from + at]);
    (u32::from_ne_bytes(half(0)), u32::from_ne_bytes(half(4)))
}

fn length(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: u32 = raw::INVALID_GPU_INSTANCE_ID;

    /// What NVML writes into room for more: process ids with their GPU instances, entries of so many words.
    fn written(processes: &[(u32, u32)], each: usize) -> Vec<u64> {
        let word = |low: u32, high: u32| {
            let halves = [low.to_ne_bytes(), high.to_ne_bytes()];
            u64::from_ne_bytes(std::array::from_fn(|at| halves[at / 4][at % 4]))
        };
        let mut words: Vec<u64> = processes
            .iter()
            .flat_map(|(pid, instance)| {
                // The upper half of the first is padding, which keeps what was there.
                let entry = [word(*pid, 0xA5A5_5A5A), 1 << 30, word(*instance, 0), 0];
                entry.into_iter().take(each)
            })
            .collect();
        words.resize(MOST_WORDS * (processes.len() + length(MORE)), UNWRITTEN);
        words
    }

    #[test]
    fn entries_of_either_layout_are_told_apart_by_how_far_they_reach() {
        for count in 1..9_u32 {
            let processes: Vec<(u32, u32)> = (0..count)
                .map(|number| (4_000 + number, if number % 2 == 0 { number } else { NONE }))
                .collect();
            let expected: Vec<(u32, Option<u32>)> = processes
                .iter()
                .map(|(pid, instance)| (*pid, Some(*instance).filter(|id| *id != NONE)))
                .collect();
            for each in [WORDS, MOST_WORDS] {
                let words = written(&processes, each);
                let entries = entries_of(&words, processes.len(), false);
                assert_eq!(entries, expected, "{each}");
            }
            // A library that has one layout may write what it likes behind it.
            let mut words = written(&processes, WORDS);
            words[WORDS * processes.len()] = 0;
            assert_eq!(entries_of(&words, processes.len(), true), expected);
        }
    }

    #[test]
    fn a_list_longer_than_its_room_has_what_is_there() {
        assert_eq!(entries_of(&[1, 2, 3], 5, true), [(1, Some(3))]);
        assert!(entries_of(&[], 1, false).is_empty());
    }
}
