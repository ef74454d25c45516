//! One reset: GPUs are kept for it, nobody has them open, NVML is closed, and the command is run.
//!
//! # NVML is closed as a whole
//!
//! `nvidia-smi --gpu-reset` resets no GPU that any process has open. Whoever has NVML open has the device files of all GPUs open, and NVML closes
//! none of them alone. So the driver closes it, for as long as the command runs: nothing is known of the other GPUs meanwhile, their claims wait within
//! their calls, and what was listed and tainted stays as it was. What happens to the other GPUs in that time the kernel's log tells, and the look that
//! follows. A second process that kept NVML open for the others would keep the reset from happening.
//!
//! # Order
//!
//! 1. The kernel's log can be read. The GPUs are kept ([`crate::store::marks`]): nobody changes them, no claim is recorded with any of them, and no slice lies on them that a reset would
//!    take from its administrator.
//! 2. NVML lists no process on them, and no slices but those that were known in step 1, and no process but this one has their files open. Then NVML is closed, and it is looked again, at this one as well.
//! 3. The command is run, unless the driver is about to stop. What it left is ended.
//! 4. NVML may be opened again. The locks are given back, the reset is counted and what it proves is noted, both are written, and the marks go.
//!
//! Whether it would be done is asked without leave, too ([`would_reset`]): step 1 without that anything is kept, and step 2 as far as that NVML is closed.
//!
//! Who is refused in step 1 or 2 has lost nothing, and no reset is counted. If NVML was closed for that it is not tried again soon. From step 3 on the reset counts, also if the driver ends before it has
//! counted: the mark tells the next one. The proof carries the number that the observations had reached before step 3, so it is about nothing that was
//! seen later (S7).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_device::{Backend, MigInstance, faults::resets_with};

use super::{
    Tools,
    holders::{Holder, holders},
    listed,
    resetting::RESET,
    run::{Ended, How, Run},
    settings::ResetOrder,
    words,
};
use crate::{
    inventory::KnownGpu,
    prepare::{Disk, DiskFailure},
    store::{
        Guard,
        marks::{Mark, MarkedReset, Reserved},
    },
};

/// How long a reset has to end that takes too long, or that runs while the driver stops: well within the 30 s that the kubelet waits for the driver.
const GRACE: Duration = Duration::from_secs(15);

/// Why none is begun while the driver stops.
const STOPS: &str = "the driver is about to stop";

/// Who has GPUs open, by their UUIDs.
type Holders = BTreeMap<String, BTreeSet<Holder>>;

/// What came of a reset.
#[derive(Debug)]
pub enum Outcome {
    /// It was done, whatever it was good for, to the GPUs with these UUIDs.
    Ran(Ended, BTreeSet<String>),
    /// It was not to be done now.
    Refused(String),
    /// It could not be begun, and NVML was closed for it.
    InVain(String),
}

/// What is to be reset, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// UUID of the GPU that has the fault.
    pub gpu: String,
    /// How many resets for the fault it makes.
    pub number: u32,
}

/// Whether a GPU would be reset if that were allowed now; else why not. Nothing is kept, marked or closed for that. Blocking.
pub fn would_reset(tools: &Tools, order: &ResetOrder, uuid: &str) -> Result<(), String> {
    let group = group_to_reset(tools, uuid)?;
    let uuids = uuids_of(&group);
    let is_free = |lock: &Guard, _: &Disk| have_no_slices_of_others(tools, lock, &group);
    let are_free = tools.store.are_free(&uuids, is_free);
    are_free.map_err(|refused| refused.to_string())?;
    are_unused(tools, order, &group, &minors_of(&group))?;
    words(tools, &order.order, group.iter())?;
    Ok(())
}

/// Resets a GPU, and what is reset with it. Blocking, as long as the command may take.
pub fn reset(
    tools: &Tools,
    order: &ResetOrder,
    wanted: &Wanted,
    is_over: impl Fn() -> bool,
) -> Outcome {
    if is_over() {
        return Outcome::Refused(STOPS.to_owned());
    }
    let group = match group_to_reset(tools, &wanted.gpu) {
        Ok(group) => group,
        Err(why) => return Outcome::Refused(why),
    };
    let mark = Mark {
        id: format!("{}-reset-{}-{}", tools.instance, wanted.gpu, wanted.number),
        boot_id: tools.boot_id.clone(),
        reset: Some(MarkedReset {
            gpu: wanted.gpu.clone(),
            number: wanted.number,
        }),
    };
    let uuids = uuids_of(&group);
    let is_free = |lock: &Guard, _: &Disk| have_no_slices_of_others(tools, lock, &group);
    let reserved = match tools.store.reserve(&uuids, &mark, is_free) {
        Ok(reserved) => reserved,
        Err(refused) => return Outcome::Refused(refused.to_string()),
    };
    let counted = tools.eye.state().wants_reset(&wanted.gpu, Some(RESET));
    if counted.is_none_or(|counted| counted >= wanted.number) {
        give_back(reserved);
        let why = "its fault is over by now, or it was reset for it meanwhile";
        return Outcome::Refused(why.to_owned());
    }
    let before = tools.eye.mark();
    match run(tools, order, &group, &mark.id, is_over) {
        Ok(Ended {
            how: How::NotRun(cause),
            output,
        }) => {
            give_back(reserved);
            let why = format!("the command cannot be run: {cause} {output}");
            Outcome::InVain(why.trim_end().to_owned())
        }
        Ok(ended) => {
            finish(tools, reserved, wanted, before, &uuids, &ended);
            Outcome::Ran(ended, uuids)
        }
        Err(not_begun) => {
            give_back(reserved);
            not_begun
        }
    }
}

/// The GPUs that are reset together, where the kernel's log can be read.
fn group_to_reset(tools: &Tools, uuid: &str) -> Result<Vec<KnownGpu>, String> {
    if !tools.eye.hears_the_log() {
        let why = "the kernel's log cannot be read, which alone tells of faults of the other GPUs while NVML is closed";
        return Err(why.to_owned());
    }
    group_of(tools, &tools.answering(), uuid)
}

fn uuids_of(group: &[KnownGpu]) -> BTreeSet<String> {
    let uuids = group.iter().map(|known| known.gpu.uuid.clone());
    uuids.collect()
}

/// Their UUIDs by the numbers of their device files.
fn minors_of(group: &[KnownGpu]) -> BTreeMap<u32, String> {
    let minors = group.iter();
    let minors = minors.map(|known| (known.gpu.minor, known.gpu.uuid.clone()));
    minors.collect()
}

/// The GPUs that are reset together. All of them have to answer: of one that does not nobody knows who uses it.
fn group_of(tools: &Tools, known: &[KnownGpu], uuid: &str) -> Result<Vec<KnownGpu>, String> {
    let all = tools.gpus.borrow().clone().unwrap_or_default();
    let there = all.gpus.iter().filter(|known| !known.gone);
    let uuids = resets_with(there.map(|known| &known.gpu), uuid);
    let found: Vec<KnownGpu> = uuids
        .iter()
        .filter_map(|uuid| Tools::named(known, uuid).cloned())
        .collect();
    if found.len() == uuids.len() {
        return Ok(found);
    }
    let answering: BTreeSet<String> = found.iter().map(|known| known.gpu.uuid.clone()).collect();
    let silent: BTreeSet<String> = uuids.difference(&answering).cloned().collect();
    Err(format!("GPU {} does not answer", listed(&silent)))
}

/// Slices end with a reset. Those that this driver made are made again; an administrator's are his.
fn have_no_slices_of_others(tools: &Tools, lock: &Guard, group: &[KnownGpu]) -> Result<(), String> {
    let failed = |failure: DiskFailure| failure.to_string();
    let mut ours = tools
        .store
        .layout_slices(lock, &tools.boot_id)
        .map_err(failed)?;
    ours.extend(
        tools
            .store
            .made_slices(lock, &tools.boot_id)
            .map_err(failed)?,
    );
    for known in group {
        let mut slices = known.instances.iter();
        let is_ours = |uuid: Option<&String>| uuid.is_some_and(|uuid| ours.contains(uuid));
        if let Some(slice) = slices.find(|slice| !is_ours(slice.uuid.as_ref())) {
            return Err(format!(
                "on GPU {} lies a slice at memory slice {} that nobody here made, and that would go with the reset: remove it, or reset the GPU by hand",
                known.gpu.uuid, slice.placement.start
            ));
        }
    }
    Ok(())
}

/// What is known of slices is some seconds old. While the GPUs are locked nobody here makes one, so what is new is an administrator's.
fn have_no_new_slices(backend: &Backend, group: &[KnownGpu]) -> Result<(), String> {
    for known in group.iter().filter(|known| known.gpu.mig.is_some()) {
        let uuid = &known.gpu.uuid;
        let live = backend
            .mig_instances(uuid)
            .map_err(|error| format!("which slices GPU {uuid} has cannot be told: {error}"))?;
        let is_known = |slice: &MigInstance| known.instances.contains(slice);
        if let Some(slice) = live.iter().find(|slice| !is_known(slice)) {
            return Err(format!(
                "on GPU {uuid} a slice was made at memory slice {} since it was looked at last",
                slice.placement.start
            ));
        }
    }
    Ok(())
}

/// Whether the command takes care of a program that has a GPU open.
fn is_ignored(order: &ResetOrder, holder: &Holder) -> bool {
    let program = holder.program.as_ref();
    program.is_some_and(|program| order.ignored_programs.contains(program))
}

/// Who has the device files of these GPUs open.
fn open_by(tools: &Tools, minors: &BTreeMap<u32, String>) -> Result<Holders, String> {
    let open = holders(&tools.proc, minors);
    open.map_err(|error| format!("who has the GPUs open cannot be told: {error}"))
}

/// Whether nobody uses these GPUs, nor has them open but for this process, and no slice was made on them.
fn are_unused(
    tools: &Tools,
    order: &ResetOrder,
    group: &[KnownGpu],
    minors: &BTreeMap<u32, String>,
) -> Result<(), String> {
    let mut users = Holders::new();
    for known in group {
        let uuid = &known.gpu.uuid;
        let processes = tools.eye.backend().processes(uuid);
        let processes =
            processes.map_err(|error| format!("who uses GPU {uuid} cannot be told: {error}"))?;
        let own = processes
            .iter()
            .map(|process| Holder::of(&tools.proc, process.pid));
        users.entry(uuid.clone()).or_default().extend(own);
    }
    refuse(&users, |it| is_ignored(order, it))?;
    have_no_new_slices(tools.eye.backend(), group)?;
    let own = std::process::id();
    let open = open_by(tools, minors)?;
    refuse(&open, |it| it.pid == own || is_ignored(order, it))
}

/// Runs the command, if nobody has the GPUs open. An error is what came of it if it was not begun.
fn run(
    tools: &Tools,
    order: &ResetOrder,
    group: &[KnownGpu],
    id: &str,
    is_over: impl Fn() -> bool,
) -> Result<Ended, Outcome> {
    let minors = minors_of(group);
    // NVML is not closed, which all GPUs of the node would feel, as long as somebody else has these open.
    are_unused(tools, order, group, &minors).map_err(Outcome::Refused)?;
    let words = words(tools, &order.order, group.iter()).map_err(Outcome::Refused)?;
    let released = tools.eye.backend().release("a GPU is being reset");
    let released =
        released.map_err(|error| Outcome::InVain(format!("NVML cannot be closed: {error}")))?;
    let by_anybody = open_by(tools, &minors);
    let by_anybody = by_anybody.and_then(|open| refuse(&open, |it| is_ignored(order, it)));
    by_anybody.map_err(Outcome::InVain)?;
    let run = Run {
        words: &words,
        root: tools.root.as_ref(),
        id,
        deadline: order.order.deadline,
        grace: GRACE,
    };
    let ended = begin(&run, is_over);
    drop(released);
    ended
}

/// Runs the command, unless the driver is to stop already: then it would be asked to end at once, and count as one of the two tries. Who is asked to stop after
/// this question has begun it, and waits for it for [`GRACE`].
fn begin(run: &Run<'_>, is_over: impl Fn() -> bool) -> Result<Ended, Outcome> {
    if is_over() {
        return Err(Outcome::InVain(STOPS.to_owned()));
    }
    tracing::warn!(command = ?run.words, "resetting");
    Ok(run.until(is_over))
}

fn refuse(users: &Holders, is_ignored: impl Fn(&Holder) -> bool) -> Result<(), String> {
    let found = users.iter().filter_map(|(uuid, holders)| {
        let counted = holders.iter().filter(|holder| !is_ignored(holder));
        let counted: Vec<String> = counted.map(ToString::to_string).collect();
        (!counted.is_empty()).then(|| format!("GPU {uuid} is open in {}", counted.join(", ")))
    });
    let found: Vec<String> = found.collect();
    if found.is_empty() {
        Ok(())
    } else {
        Err(found.join("; "))
    }
}

/// The reset counts, and proves something if it ended well. Once that is on the disk the marks go; else they stay, and it is counted by them.
fn finish(
    tools: &Tools,
    mut reserved: Reserved,
    wanted: &Wanted,
    before: u64,
    uuids: &BTreeSet<String>,
    ended: &Ended,
) {
    reserved.unlock();
    tools.eye.count_reset(&wanted.gpu, wanted.number);
    if ended.how == How::Exited(0) {
        for uuid in uuids {
            tools.eye.note_reset(uuid, before);
        }
    }
    if let Err(failure) = tools.eye.keep() {
        tracing::warn!(%failure, "a reset is not kept; its mark stays");
    } else if ended.how != How::Stuck {
        give_back(reserved);
    }
    for uuid in uuids {
        tools.eye.look_at_one(uuid);
    }
}

/// Gives the GPUs free. What fails the next look for marks does.
fn give_back(reserved: Reserved) {
    if let Err(failure) = reserved.release() {
        tracing::warn!(%failure, "the mark of a GPU is not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        inventory::KnownGpus,
        mock_node::{BOOT, MockNode},
    };

    #[test]
    fn a_reset_that_is_to_stop_before_it_is_begun_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let begun = directory.path().join("begun");
        let words = ["/bin/sh", "-c", "echo > \"$0\"", begun.to_str().unwrap()];
        let words = words.map(str::to_owned);
        let id = format!("begin-{}", std::process::id());
        let run = Run {
            words: &words,
            root: None,
            id: &id,
            deadline: Duration::from_mins(1),
            grace: GRACE,
        };
        let outcome = begin(&run, || true);
        assert!(
            matches!(&outcome, Err(Outcome::InVain(why)) if why == STOPS),
            "{outcome:?}"
        );
        assert!(!begun.exists(), "the command was begun");
        let ended = begin(&run, || false).unwrap();
        assert_eq!(ended.how, How::Exited(0), "{ended:?}");
        assert!(begun.exists());
    }

    #[test]
    fn a_slice_that_an_administrator_made_a_moment_ago_is_not_reset_away() {
        let node = MockNode::new();
        let listed = node.backend.gpus().unwrap();
        let known = KnownGpus::default().after(BOOT, &listed);
        let gpu = known.gpus[0].gpu.clone();
        assert_eq!(have_no_new_slices(&node.backend, &known.gpus), Ok(()));
        node.backend.set_mig_mode(&gpu.uuid, true).unwrap();
        let profile = &gpu.mig.as_ref().unwrap().profiles[0];
        let placement = profile.placements[0];
        let made = node.backend.create_slice(&gpu.uuid, profile, placement);
        let made = made.unwrap();
        let told = have_no_new_slices(&node.backend, &known.gpus).unwrap_err();
        assert!(told.contains(&gpu.uuid), "{told}");
        let others = &known.gpus[1..];
        assert_eq!(have_no_new_slices(&node.backend, others), Ok(()));
        // Once it is known, who made it decides.
        let seen = BTreeMap::from([(gpu.uuid, vec![made])]);
        let known = known.with_instances(&seen, |_, _| false);
        assert_eq!(have_no_new_slices(&node.backend, &known.gpus), Ok(()));
    }
}
