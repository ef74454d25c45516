//! Slices made and destroyed, and the mode changed.
//!
//! All of it runs on the thread of one call in the lane of the GPU, so nobody else in this process looks at it or changes it
//! meanwhile; another instance of the driver is excluded by the node's lock. Who is left is whoever uses NVML by hand. Against
//! that helps only to look: before a change, so that nothing is made where something lies, and after it, so that what counts is
//! what exists and not what was answered. A slice is destroyed by its place and its number together: the number alone may be
//! another's by now.
//!
//! A call may hang, and its caller leaves ([`super::super::calls`]). The thread goes on when the call returns, and then nobody
//! waits for the slice: it is undone ([`Asker`]). Whoever left at the very end may find it made. So whoever asks for a slice
//! writes down before that he will, and looks afterwards ([`Backend::mig_instances`]).
//!
//! [`Backend::mig_instances`]: crate::Backend::mig_instances

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use nvml_wrapper::error::NvmlError;

use super::{
    super::BackendError,
    card::Card,
    live::{Found, Uuids, found},
    refusal,
};
use crate::mig::{MigInstance, MigModeAfter, MigProfile, Placement};

/// Whoever asked for a change, who may have left.
#[derive(Clone, Debug, Default)]
pub(super) struct Asker {
    left: Arc<AtomicBool>,
}

impl Asker {
    /// He does not wait any more.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
    }

    fn waits(&self) -> Result<(), BackendError> {
        if self.left.load(Ordering::SeqCst) {
            return Err(BackendError::Unresponsive);
        }
        Ok(())
    }
}

/// Makes a slice, or completes one whose GPU instance is there already without any compute instance. Whole, or not at all.
pub(super) fn create(
    card: &Card<'_>,
    gpu: &str,
    profile: &MigProfile,
    at: Placement,
    asker: &Asker,
) -> Result<MigInstance, BackendError> {
    let current = card.mode().map_err(refusal(gpu, "its MIG mode"))?;
    if !current.is_some_and(|told| told.current) {
        return Err(BackendError::Failed(format!(
            "GPU {gpu} is not in MIG mode"
        )));
    }
    let before = found(card).map_err(refusal(gpu, "what is there before"))?;
    let begun = begun(&before, profile, at)?;
    let made = make(card, gpu, profile, at, begun, asker);
    made.map_err(|cause| undo(card, gpu, profile, at, begun.is_some(), cause))
}

/// The GPU instance that is there already, if it is such a one without compute instances. Another that is in the way is a refusal
/// that names it: NVML would only say that resources are insufficient.
fn begun<'a>(
    before: &'a [Found],
    profile: &MigProfile,
    at: Placement,
) -> Result<Option<&'a Found>, BackendError> {
    let in_the_way = |found: &&Found| found.info.placement.overlaps(at);
    let Some(other) = before.iter().find(in_the_way) else {
        return Ok(None);
    };
    if is_such(other, profile, at) && other.computes.is_empty() {
        return Ok(Some(other));
    }
    let (instance, place) = (other.info, other.info.placement);
    Err(BackendError::Failed(format!(
        "{} at memory slice {} (size {}): GPU instance {} of profile {} is in the way, at memory slice {} (size {}), with {} compute \
         instances",
        profile.name,
        at.start,
        at.size,
        instance.id,
        instance.profile,
        place.start,
        place.size,
        other.computes.len()
    )))
}

fn is_such(found: &Found, profile: &MigProfile, at: Placement) -> bool {
    found.info.placement == at && found.info.profile == profile.gpu_instance_profile
}

fn make(
    card: &Card<'_>,
    gpu: &str,
    profile: &MigProfile,
    at: Placement,
    begun: Option<&Found>,
    asker: &Asker,
) -> Result<MigInstance, BackendError> {
    let handle = match begun {
        Some(begun) => begun.handle,
        None => card
            .create_gpu_instance(profile.gpu_instance_profile, at)
            .map_err(refusal(gpu, "the GPU instance was not made"))?,
    };
    asker.waits()?;
    let info = card
        .gpu_instance_info(handle)
        .map_err(refusal(gpu, "the GPU instance that was made"))?;
    if info.placement != at || info.profile != profile.gpu_instance_profile {
        let elsewhere = BackendError::Failed(format!("NVML made another GPU instance: {info:?}"));
        let destroyed = card.destroy_gpu_instance(handle);
        return Err(destroyed.map_or_else(refusal(gpu, "one that nobody wants"), |()| elsewhere));
    }
    let computes = card
        .compute_profiles(handle)
        .map_err(refusal(gpu, "what compute instances may be made"))?;
    // Several have as many slices where they differ in engines.
    let whole = computes
        .into_iter()
        .filter(|compute| compute.compute_slices == profile.compute_slices)
        .min_by_key(|compute| compute.enumerator != profile.compute_instance_profile);
    let whole = whole.ok_or_else(|| {
        let slices = profile.compute_slices;
        BackendError::Failed(format!(
            "{}: no compute instance has all of its {slices} compute slices",
            profile.name
        ))
    })?;
    let compute = card
        .create_compute_instance(handle, whole.id)
        .map_err(refusal(gpu, "the compute instance was not made"))?;
    asker.waits()?;
    let compute = card
        .compute_instance_info(compute)
        .map_err(refusal(gpu, "the compute instance that was made"))?;
    let uuid = Uuids::new(card)
        .of(info.id, compute)
        .map_err(refusal(gpu, "the UUID of the slice"))?;
    let uuid = uuid.ok_or_else(|| {
        BackendError::Failed(format!(
            "no slice with GPU instance {} and compute instance {} is listed",
            info.id, compute.id
        ))
    })?;
    asker.waits()?;
    Ok(MigInstance {
        placement: at,
        gpu_instance: info.id,
        compute_instance: Some(compute.id),
        is_divided: false,
        profile: info.profile,
        uuid: Some(uuid),
    })
}

/// Takes back what was made before `cause`, as far as it exists: a call may have done what it is for and failed.
fn undo(
    card: &Card<'_>,
    gpu: &str,
    profile: &MigProfile,
    at: Placement,
    keeps_gpu_instance: bool,
    cause: BackendError,
) -> BackendError {
    let is_it = |found: &Found| is_such(found, profile, at);
    let made = found(card).map_err(refusal(gpu, "what was made"));
    let removed = made.and_then(|made| remove(card, gpu, &made, is_it, keeps_gpu_instance));
    // Without the GPU, or its driver, there are no slices.
    let nothing_is_left = matches!(cause, BackendError::Gone(_) | BackendError::Unavailable(_));
    match removed {
        Err(error) if !nothing_is_left => BackendError::Failed(format!(
            "{cause}; and the GPU instance at memory slice {} may still be there: {error}",
            at.start
        )),
        _ => cause,
    }
}

/// Destroys the slice with this number at this place. One that is not there, or has another number there, is gone already.
pub(super) fn destroy(
    card: &Card<'_>,
    gpu: &str,
    gpu_instance: u32,
    at: Placement,
) -> Result<(), BackendError> {
    let is_it = |found: &Found| found.info.id == gpu_instance && found.info.placement == at;
    let before = found(card).map_err(refusal(gpu, "what is there before"))?;
    let one = before.iter().find(|found| is_it(found));
    let computes = one.map_or(0, |one| one.computes.len());
    if computes > 1 {
        return Err(BackendError::Failed(format!(
            "GPU instance {gpu_instance} has {computes} compute instances, which somebody else made: destroy those that are too \
             many (nvidia-smi mig -dci)"
        )));
    }
    remove(card, gpu, &before, is_it, false)
}

/// Destroys the compute instances of a GPU instance, and itself unless it is kept, if it is among those there are. What is half
/// destroyed is finished by the next try.
fn remove(
    card: &Card<'_>,
    gpu: &str,
    before: &[Found],
    is_it: impl Fn(&Found) -> bool,
    keeps_gpu_instance: bool,
) -> Result<(), BackendError> {
    let Some(one) = before.iter().find(|found| is_it(found)) else {
        return Ok(());
    };
    let mut answers: Vec<Result<(), NvmlError>> = one
        .computes
        .iter()
        .map(|compute| card.destroy_compute_instance(compute.handle))
        .collect();
    if !keeps_gpu_instance {
        answers.push(card.destroy_gpu_instance(one.handle));
    }
    let after = found(card).map_err(refusal(gpu, "what is there afterwards"))?;
    let left = after.iter().find(|found| is_it(found));
    if left.is_none_or(|left| keeps_gpu_instance && left.computes.is_empty()) {
        return Ok(());
    }
    // The first: a GPU instance is in use while it has a compute instance, and that is not why.
    Err(match answers.into_iter().find_map(Result::err) {
        Some(error) => refusal(gpu, "the slice was not destroyed")(error),
        None => BackendError::Failed(
            "NVML says that the slice is destroyed, and still lists it".to_owned(),
        ),
    })
}

/// Changes the mode, and whether anything changed. What is only pending is told; after a refusal nothing is.
pub(super) fn set_mode(
    card: &Card<'_>,
    gpu: &str,
    on: bool,
) -> Result<(MigModeAfter, bool), BackendError> {
    let mode = || {
        let mode = card.mode().map_err(refusal(gpu, "its MIG mode"))?;
        mode.ok_or_else(|| BackendError::Failed(format!("GPU {gpu} has no MIG mode")))
    };
    let before = mode()?;
    let wanted = MigModeAfter {
        current: on,
        pending: on,
    };
    if before == wanted {
        return Ok((before, false));
    }
    let instances = found(card).map_err(refusal(gpu, "what is there before"))?;
    if !on && !instances.is_empty() {
        return Err(BackendError::InUse(format!(
            "GPU {gpu} has {} GPU instances, which would go with its MIG mode",
            instances.len()
        )));
    }
    let answer = card.set_mode(on);
    let after = mode()?;
    if after == wanted {
        return Ok((after, true));
    }
    let cause = match answer {
        // It waits for a reset, and that is all that is missing.
        Ok(Ok(()) | Err(NvmlError::ResetRequired)) if after.pending == on => {
            return Ok((after, true));
        }
        Ok(Ok(())) => BackendError::Failed(
            "NVML says that the MIG mode is changed, and it is as before".to_owned(),
        ),
        Ok(Err(error)) | Err(error) => refusal(gpu, "the MIG mode was not changed")(error),
    };
    if after.pending != before.pending {
        // Else it would come by surprise, with a reset that somebody does for another reason.
        let taken_back = card.set_mode(before.pending);
        let is_back = mode().is_ok_and(|mode| mode.pending == before.pending);
        if !is_back {
            let answer = taken_back.map_or_else(|error| error.to_string(), |_| "done".to_owned());
            return Err(BackendError::Failed(format!(
                "{cause}; and it is pending: taking that back was answered {answer:?}"
            )));
        }
    }
    Err(cause)
}
