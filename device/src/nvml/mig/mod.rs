//! Slices of GPUs through NVML: what a GPU can be cut into, what exists, and making and destroying it.

mod card;
mod change;
mod instances;
mod live;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use nvml_wrapper::{Device, error::NvmlError};
use nvml_wrapper_sys::bindings as raw;

use self::{
    card::Card,
    change::{Asker, create, destroy, set_mode},
    live::instances,
};
use super::{Backend, BackendError, calls::Lane};
use crate::mig::{MigFacts, MigInstance, MigModeAfter, MigProfile, Placement, believed};

/// How much longer a change may take than a question.
const CHANGE_LIMITS: u32 = 4;

impl Backend {
    /// Whether a GPU is in MIG mode, and whether it will be after a reset; `None`: it has no such mode.
    pub fn mig_mode(&self, gpu_uuid: &str) -> Result<Option<MigModeAfter>, BackendError> {
        let limit = self.calls.limit();
        self.with_card(gpu_uuid, limit, |card, gpu| {
            card.mode().map_err(refusal(gpu, "its MIG mode"))
        })
    }

    /// Minor number of a GPU's device node, as it is now: a change of the MIG mode may give it another.
    pub fn minor(&self, gpu_uuid: &str) -> Result<u32, BackendError> {
        let limit = self.calls.limit();
        self.with_card(gpu_uuid, limit, |card, gpu| {
            card.minor().map_err(refusal(gpu, "its minor number"))
        })
    }

    /// The slices that exist on a GPU, ascending by place; none while it is not in MIG mode.
    pub fn mig_instances(&self, gpu_uuid: &str) -> Result<Vec<MigInstance>, BackendError> {
        let limit = self.calls.limit();
        self.with_card(gpu_uuid, limit, |card, gpu| {
            instances(card).map_err(refusal(gpu, "its slices"))
        })
    }

    /// Makes a slice: a GPU instance at this place, and the compute instance that has all of it. On failure nothing is left of it, or
    /// the error says what is. A GPU instance of this profile that is there already, without any compute instance, is completed;
    /// anything else in the way is a refusal. [`BackendError::Unresponsive`] leaves open whether there will be a slice: look.
    pub fn create_slice(
        &self,
        gpu_uuid: &str,
        profile: &MigProfile,
        placement: Placement,
    ) -> Result<MigInstance, BackendError> {
        if !profile.placements.contains(&placement) {
            return Err(BackendError::Failed(format!(
                "{} may not lie at memory slice {} (size {})",
                profile.name, placement.start, placement.size
            )));
        }
        let asker = Asker::default();
        let (profile, waiting) = (profile.clone(), asker.clone());
        let made = self.with_card(gpu_uuid, self.change_limit(), move |card, gpu| {
            create(card, gpu, &profile, placement, &waiting)
        });
        if made.is_err() {
            asker.leave();
        }
        made
    }

    /// Destroys the slice that has this GPU instance and lies at this place; what is gone already is fine, and so is a number that is
    /// another's by now, which is left alone. [`BackendError::InUse`]: a process uses it; the next try goes on where this one ended.
    pub fn destroy_slice(
        &self,
        gpu_uuid: &str,
        gpu_instance: u32,
        placement: Placement,
    ) -> Result<(), BackendError> {
        self.with_card(gpu_uuid, self.change_limit(), move |card, gpu| {
            destroy(card, gpu, gpu_instance, placement)
        })
    }

    /// Puts a GPU into MIG mode or out of it. Where that needs a reset that somebody else must do (Ampere in a virtual machine) the
    /// answer says that it is pending. A mode that is on as asked already is fine. Out of it only without slices.
    ///
    /// The driver may reset the GPU for it and number it anew: NVML is closed afterwards and opened by the next question, and minor
    /// numbers from before are worth nothing until [`Backend::gpus`] told them again.
    pub fn set_mig_mode(&self, gpu_uuid: &str, on: bool) -> Result<MigModeAfter, BackendError> {
        let after = self.with_card(gpu_uuid, self.change_limit(), move |card, gpu| {
            set_mode(card, gpu, on)
        });
        if matches!(after, Ok((_, true)) | Err(BackendError::Unresponsive)) {
            // A stuck call keeps what it is in; the next question opens it anew all the same.
            drop(self.close(&format!("the MIG mode of GPU {gpu_uuid} was changed"), true));
        }
        after.map(|(mode, _)| mode)
    }

    fn change_limit(&self) -> Duration {
        self.calls.limit() * CHANGE_LIMITS
    }

    fn with_card<Answer: Send + 'static>(
        &self,
        gpu_uuid: &str,
        limit: Duration,
        question: impl FnOnce(&Card<'_>, &str) -> Result<Answer, BackendError> + Send + 'static,
    ) -> Result<Answer, BackendError> {
        // What a library of another version says, or does, is nothing to build on.
        self.library.compare_with_kernel();
        let deadline = Instant::now() + limit;
        let question = Arc::new(Mutex::new(Some(question)));
        loop {
            let closings = self.library.brief_closings();
            let answer = self.find(gpu_uuid).and_then(|()| {
                let (uuid, question) = (gpu_uuid.to_owned(), Arc::clone(&question));
                self.ask_within(Lane::Gpu(uuid.clone()), limit, move |session| {
                    let device = session.device(&uuid)?;
                    // The lock is free again before it is asked: it may hang.
                    let left = question
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .take();
                    let question = left.ok_or_else(asked_already)?;
                    question(&Card::new(&device), &uuid)
                })
            });
            // NVML may be closed for another GPU's sake between finding this one and asking it. Then nothing was asked, and nothing done.
            let is_interrupted = matches!(
                answer,
                Err(BackendError::Unavailable(_) | BackendError::Failed(_))
            ) && self.library.brief_closings() != closings;
            let is_left = question
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_some();
            if !(is_interrupted && is_left) || Instant::now() >= deadline {
                return answer;
            }
        }
    }
}

/// Only one of several tries asks.
fn asked_already() -> BackendError {
    BackendError::Failed("it was asked already".to_owned())
}

/// What a GPU can be cut into; `None` if it cannot be. `gpu_bytes` is its memory.
pub(super) fn mig_facts(
    device: &Device<'_>,
    gpu: &str,
    gpu_bytes: Option<u64>,
) -> Result<Option<MigFacts>, BackendError> {
    let card = Card::new(device);
    let Some(mode) = card.mode().map_err(refusal(gpu, "its MIG mode"))? else {
        return Ok(None);
    };
    let mut told = Vec::new();
    let mut absurd = Vec::new();
    for mut profile in card.profiles().map_err(refusal(gpu, "its profiles"))? {
        match card.placements(profile.id) {
            Ok(placements) => {
                profile.placements = placements;
                told.push(profile);
            }
            // A driver that tells only while the mode is on.
            Err(
                NvmlError::NotSupported | NvmlError::InvalidArg | NvmlError::FailedToLoadSymbol(_),
            ) => {}
            Err(NvmlError::InsufficientSize(Some(count))) => absurd.push(format!(
                "GPU instance profile {}: {count} placements",
                profile.id
            )),
            Err(error) => return Err(refusal(gpu, "places of its profiles")(error)),
        }
    }
    let (profiles, mut implausible) = believed(told, gpu_bytes);
    implausible.append(&mut absurd);
    Ok(Some(MigFacts {
        current: mode.current,
        pending: mode.pending,
        profiles,
        implausible,
    }))
}

/// Whether processes name instances of this GPU: only while it is in MIG mode.
pub(super) fn is_in_mig_mode(device: &Device<'_>) -> Result<bool, NvmlError> {
    let mode = Card::new(device).mode()?;
    Ok(mode.is_some_and(|mode| mode.current))
}

/// What an error means about slices: what is not found is an instance, not the GPU.
fn refusal<'a>(gpu: &'a str, about: &'a str) -> impl Fn(NvmlError) -> BackendError + 'a {
    move |error| match error {
        NvmlError::GpuLost => BackendError::Gone(gpu.to_owned()),
        NvmlError::InUse => BackendError::InUse(format!("{about}: GPU {gpu} is in use")),
        NvmlError::UnexpectedVariant(raw::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES) => {
            BackendError::Failed(format!("{about}: resources of GPU {gpu} are insufficient"))
        }
        error => match BackendError::from(error) {
            BackendError::Failed(cause) => BackendError::Failed(format!("{about}: {cause}")),
            other => other,
        },
    }
}
