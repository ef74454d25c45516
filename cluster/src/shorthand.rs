//! The shorthand for a claim: annotations of a pod that say which GPUs it needs.
//!
//! `muster.dev/gpus` says how many whole GPUs, `vram` how much memory each has at least, `interconnect` how they are
//! connected, `container` which container gets them. `vram` alone asks for the smallest device that has so much, be it a slice or a
//! whole GPU (`ladder`). They are read here, once, into a [`Shorthand`]. From it
//! alone follows a ResourceClaimTemplate ([`Shorthand::template`]), so that the webhook, which refers the pod to
//! it, the controller, which makes it, and the index, which compares the claim that came of it, agree without
//! a word between them.
//!
//! Every error names its annotation, the value, and what would work.

mod claim;
mod declared;
mod ladder;

use std::collections::BTreeMap;

use muster_api::keys;

use crate::{
    pod::PodFields, quantity, text::quoted, unsupported_field::UnsupportedField, whole_number,
};

pub use claim::{CLAIM_NAME, template_waited_for};
pub use declared::{ClassMemory, MemoryDeclaration, resource_says_memory};
pub use ladder::NOMINAL_PERCENT;

/// Most GPUs of one claim: what Kubernetes records in an allocation (`AllocationResultsMaxSize`).
pub const MAX_GPUS: u32 = 32;
/// Least memory that may be asked for, in bytes. No GPU has less, so what is below lacks its suffix: `40` for
/// `40Gi` would be met by every GPU there is.
const MIN_MEMORY_BYTES: i64 = 1 << 20;

/// Which GPUs a pod needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shorthand {
    /// `None`: one device, whole or a slice.
    gpus: Option<u32>,
    memory_bytes: Option<i64>,
    interconnect: Option<Interconnect>,
    container: Option<String>,
}

/// How GPUs are connected with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interconnect {
    /// By NVLink, directly or through switches.
    Nvlink,
    /// As a pair that is bridged by NVLink.
    NvlinkPair,
    /// As a quad, each to each by NVLink.
    NvlinkQuad,
}

/// An annotation of the shorthand that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metadata.annotations[{annotation}]: {why}")]
pub struct InvalidShorthand {
    /// Which annotation.
    pub annotation: &'static str,
    /// The value, what is wrong with it, and what would work.
    pub why: String,
}

impl Shorthand {
    /// Reads the annotations. `None`: there is no shorthand. Else all that is wrong, each annotation once.
    pub fn read(
        annotations: Option<&BTreeMap<String, String>>,
    ) -> Result<Option<Self>, Vec<InvalidShorthand>> {
        Self::read_by(|key| annotations?.get(key).map(String::as_str))
    }

    fn read_by<'a>(
        value: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Option<Self>, Vec<InvalidShorthand>> {
        if keys::SHORTHAND.iter().all(|key| value(key).is_none()) {
            return Ok(None);
        }
        let gpus = value(keys::GPUS).map(gpus).transpose();
        let memory_bytes = value(keys::VRAM).map(memory_bytes).transpose();
        let interconnect = value(keys::INTERCONNECT).map(interconnect).transpose();
        let container = value(keys::CONTAINER).map(container).transpose();
        match (gpus, memory_bytes, interconnect, container) {
            (Ok(gpus), Ok(memory_bytes), Ok(interconnect), Ok(container)) => {
                check_together(gpus, memory_bytes, interconnect).map_err(|error| vec![error])?;
                Ok(Some(Self {
                    gpus,
                    memory_bytes,
                    interconnect,
                    container,
                }))
            }
            (gpus, memory_bytes, interconnect, container) => Err([
                gpus.err(),
                memory_bytes.err(),
                interconnect.err(),
                container.err(),
            ]
            .into_iter()
            .flatten()
            .collect()),
        }
    }

    /// The shorthand of a pod, or the first thing that is wrong with it.
    pub fn of_pod(pod: &impl PodFields) -> Result<Option<Self>, UnsupportedField> {
        Self::read_by(|key| pod.annotation(key)).map_err(|errors| {
            let first = errors.into_iter().next();
            first.map_or_else(
                || UnsupportedField::new("metadata.annotations", "cannot be read"),
                |error| {
                    let field = format!("metadata.annotations[{}]", error.annotation);
                    UnsupportedField::new(field, error.why)
                },
            )
        })
    }

    /// How many GPUs, 1 to [`MAX_GPUS`].
    pub fn gpus(&self) -> u32 {
        self.gpus.unwrap_or(1)
    }

    /// Whether a slice will do, and the smallest device with the memory is to be taken. GPUs that are counted are whole.
    pub fn takes_slices(&self) -> bool {
        self.gpus.is_none()
    }

    /// Memory of each GPU in bytes as it was said, if it was.
    pub fn memory_bytes(&self) -> Option<i64> {
        self.memory_bytes
    }

    /// What a device must have at the least in bytes; none if nothing was said. Memory is meant nominally ([`NOMINAL_PERCENT`]).
    pub fn least_bytes(&self) -> Option<i64> {
        self.memory_bytes.map(ladder::least_bytes)
    }

    /// The same with an amount of memory, as a Kubernetes quantity; what was said already stays. The error is for people.
    pub fn with_memory(self, text: &str) -> Result<Self, InvalidShorthand> {
        let memory_bytes = match self.memory_bytes {
            Some(said) => said,
            None => memory_bytes(text)?,
        };
        Ok(Self {
            memory_bytes: Some(memory_bytes),
            ..self
        })
    }

    /// How the GPUs are connected, if that was said.
    pub fn interconnect(&self) -> Option<Interconnect> {
        self.interconnect
    }

    /// The container that gets them; the first one if `None`.
    pub fn container(&self) -> Option<&str> {
        self.container.as_deref()
    }
}

impl Interconnect {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Nvlink, Self::NvlinkPair, Self::NvlinkQuad];

    /// As it stands in the annotation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nvlink => "nvlink",
            Self::NvlinkPair => "nvlink-pair",
            Self::NvlinkQuad => "nvlink-quad",
        }
    }

    /// Name of the device attribute that has the same value on GPUs that are connected so. A GPU without
    /// neighbours has its own name there.
    pub fn attribute(self) -> &'static str {
        match self {
            Self::Nvlink => "nvlinkGroup",
            Self::NvlinkPair => "nvlinkPair",
            Self::NvlinkQuad => "nvlinkQuad",
        }
    }

    /// How many GPUs can be connected so at the most, where the word says it.
    fn most_gpus(self) -> Option<u32> {
        match self {
            Self::Nvlink => None,
            Self::NvlinkPair => Some(2),
            Self::NvlinkQuad => Some(4),
        }
    }
}

/// Whether the text is an amount of memory that a pod may ask for; the error says why it is not.
pub fn check_memory(text: &str) -> Result<(), String> {
    memory_bytes(text).map(|_| ()).map_err(|error| error.why)
}

fn gpus(text: &str) -> Result<u32, InvalidShorthand> {
    whole_number::parse(text, &(1..=MAX_GPUS)).ok_or_else(|| {
        let why = format!(
            "{}: must be a whole number from 1 to {MAX_GPUS}, in plain digits",
            quoted(text)
        );
        invalid(keys::GPUS, why)
    })
}

fn memory_bytes(text: &str) -> Result<i64, InvalidShorthand> {
    let wrong = |why: &str| invalid(keys::VRAM, format!("{}: {why}", quoted(text)));
    let bytes = quantity::units(text, keys::VRAM)
        .map_err(|error| wrong(&format!("{}, such as 40Gi", error.cause)))?;
    if bytes < MIN_MEMORY_BYTES {
        return Err(wrong(&format!(
            "is {bytes} bytes; write the memory of one GPU with a suffix, such as 40Gi"
        )));
    }
    Ok(bytes)
}

fn interconnect(text: &str) -> Result<Interconnect, InvalidShorthand> {
    let mut known = Interconnect::ALL.into_iter();
    known.find(|one| one.as_str() == text).ok_or_else(|| {
        let names = Interconnect::ALL.map(Interconnect::as_str).join(", ");
        let why = format!("{}: must be one of {names}", quoted(text));
        invalid(keys::INTERCONNECT, why)
    })
}

fn container(text: &str) -> Result<String, InvalidShorthand> {
    if text.is_empty() {
        let why = "must name a container of the pod, not be empty".to_owned();
        return Err(invalid(keys::CONTAINER, why));
    }
    Ok(text.to_owned())
}

/// What each annotation leaves to the others. An interconnect without a number would mean one GPU, which
/// nobody can have meant.
fn check_together(
    gpus: Option<u32>,
    memory_bytes: Option<i64>,
    interconnect: Option<Interconnect>,
) -> Result<(), InvalidShorthand> {
    let Some(interconnect) = interconnect else {
        let asks = gpus.is_some() || memory_bytes.is_some();
        let alone = format!(
            "says which container gets the GPUs, and neither {} nor {} says which GPUs",
            keys::GPUS,
            keys::VRAM
        );
        return asks
            .then_some(())
            .ok_or_else(|| invalid(keys::CONTAINER, alone));
    };
    let name = interconnect.as_str();
    let Some(gpus) = gpus else {
        let why = format!(
            "{name:?}: {} must say how many GPUs are to be connected so, 2 or more",
            keys::GPUS
        );
        return Err(invalid(keys::INTERCONNECT, why));
    };
    match interconnect.most_gpus() {
        Some(most) if gpus > most => {
            let why = format!(
                "{name:?}: connects {most} GPUs, and {} asks for {gpus}; any number may be connected by nvlink",
                keys::GPUS
            );
            Err(invalid(keys::INTERCONNECT, why))
        }
        _ => Ok(()),
    }
}

fn invalid(annotation: &'static str, why: String) -> InvalidShorthand {
    InvalidShorthand { annotation, why }
}

#[cfg(test)]
mod tests;
