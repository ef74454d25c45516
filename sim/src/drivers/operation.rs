//! What an instance waits to have done, one operation per effect of its machine.

use std::collections::{BTreeSet, VecDeque};

use muster_api::{NodeDevices, NodeDevicesStatus};
use muster_dra_driver::prepare::{
    Answer, CallId, ClaimRef, DiskFailure, Effect, LookId, Probe, Sights, StatusOutcome, Ticket,
    Write,
};

use super::slices::{Making, Removing};

use crate::{
    api_server::{ApiServer, Failure, Precondition, Stored},
    matrix::EffectKind,
};

/// A status write on its way.
#[derive(Clone, Debug)]
pub struct StatusWrite {
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
    pub(super) status: NodeDevicesStatus,
}

/// What a turn goes by besides the disk: what was seen before, and what is read of the API server while the lock is held.
#[derive(Clone, Debug)]
pub(super) struct UnderLock {
    pub(super) sights: Sights,
    pub(super) node_devices: bool,
    pub(super) claim: Option<ClaimRef>,
}

/// What an instance waits to have done.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    /// It looks at a GPU, without the lock.
    Sight(LookId, String),
    Lock {
        ticket: Ticket,
        probe: Option<Probe>,
        read: UnderLock,
    },
    Look {
        ticket: Ticket,
        probe: Option<Probe>,
        read: UnderLock,
    },
    Commit {
        ticket: Ticket,
        writes: VecDeque<Write>,
    },
    /// It is told what came of a commit. The lock is free by then: another instance may have had it since.
    Hear(Ticket, Result<(), DiskFailure>),
    ReadClaim(CallId, ClaimRef),
    ReadNodeDevices,
    Gather,
    WriteStatus(StatusWrite),
    Answer(CallId, Answer),
    Taint(BTreeSet<String>),
    Make(Making),
    Remove(Removing),
}

/// What an operation is, as far as scripts tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A turn at the lock, but for the beginning of one that records.
    Turn,
    /// The lock is taken, to record a claim that was read.
    Record,
    /// `NodeDevices` are read uncached, without the lock.
    Read,
    /// The status is written.
    WriteStatus,
    /// Anything else.
    Other,
}

impl StatusWrite {
    pub(super) fn arrive(&self, api: &mut ApiServer, node: &str) -> StatusOutcome {
        let precondition = Precondition {
            uid: self.uid.as_deref(),
            resource_version: self.resource_version.as_deref(),
        };
        let written = api.update::<NodeDevices>("", node, precondition, |object| {
            object.status = Some(self.status.clone());
        });
        match written {
            Ok(object) => match NodeDevices::of(&object) {
                Some(object) => StatusOutcome::Written(object.clone()),
                None => StatusOutcome::Conflict,
            },
            Err(Failure::Refused(cause)) => StatusOutcome::Unknown(cause),
            Err(Failure::Conflict | Failure::NotFound) => StatusOutcome::Conflict,
        }
    }
}

impl From<Effect> for Operation {
    fn from(effect: Effect) -> Self {
        match effect {
            Effect::Look { look, gpu } => Self::Sight(look, gpu),
            Effect::Lock {
                ticket,
                probe,
                read_node_devices,
                read_claim,
                sights,
            } => Self::Lock {
                ticket,
                probe,
                read: UnderLock {
                    sights,
                    node_devices: read_node_devices,
                    claim: read_claim,
                },
            },
            Effect::Commit { ticket, writes } => Self::Commit {
                ticket,
                writes: writes.into(),
            },
            Effect::ReadClaim(call, claim) => Self::ReadClaim(call, claim),
            Effect::ReadNodeDevices => Self::ReadNodeDevices,
            Effect::Gather => Self::Gather,
            Effect::WriteStatus {
                uid,
                resource_version,
                status,
            } => Self::WriteStatus(StatusWrite {
                uid,
                resource_version,
                status,
            }),
            Effect::Answer(call, answer) => Self::Answer(call, answer),
            Effect::TaintHeld(devices) => Self::Taint(devices),
            Effect::MakeSlices {
                call,
                fence,
                slices,
                // MIG modes are not played.
                wholes: _,
            } => Self::Make(Making::new(call, fence, slices)),
            Effect::RemoveSlices {
                removal,
                fence,
                slices,
            } => Self::Remove(Removing::new(removal, fence, slices)),
        }
    }
}

impl Operation {
    pub(super) fn deed(&self) -> Deed {
        match self {
            // Only who is about to record wants to know whether the devices are in use.
            Self::Lock {
                probe: Some(Probe::Units(_)),
                ..
            } => Deed::Record,
            Self::Lock { .. } | Self::Look { .. } | Self::Commit { .. } | Self::Hear(..) => {
                Deed::Turn
            }
            Self::ReadNodeDevices => Deed::Read,
            Self::WriteStatus(_) => Deed::WriteStatus,
            _ => Deed::Other,
        }
    }

    pub(super) fn effect(&self) -> EffectKind {
        match self {
            Self::Sight(..) | Self::Lock { .. } => EffectKind::DriverLock,
            Self::Look { .. } => EffectKind::DriverLook,
            Self::Commit { .. } => EffectKind::DriverCommit,
            Self::Hear(..) => EffectKind::DriverHear,
            Self::ReadClaim(..) => EffectKind::DriverReadClaim,
            Self::ReadNodeDevices => EffectKind::DriverReadNodeDevices,
            Self::Gather => EffectKind::DriverGather,
            Self::WriteStatus(_) => EffectKind::DriverWriteStatus,
            Self::Answer(..) => EffectKind::DriverAnswer,
            Self::Taint(_) => EffectKind::DriverTaint,
            Self::Make(_) | Self::Remove(_) => EffectKind::DriverSlices,
        }
    }

    /// Whether it can fail at all as it stands: a look that reads nothing of the API server, or the last part of a
    /// commit, cannot.
    pub(super) fn can_fail(&self) -> bool {
        match self {
            Self::Sight(..) => false,
            Self::Look { read, .. } => read.node_devices || read.claim.is_some(),
            Self::Commit { writes, .. } => !writes.is_empty(),
            Self::Make(making) => making.gpu().is_some(),
            Self::Remove(removing) => removing.gpu().is_some(),
            _ => true,
        }
    }

    /// The GPU whose lock it needs, and the lock that it holds.
    pub(super) fn gpu_lock(&self) -> Option<(&str, Option<u64>)> {
        match self {
            Self::Make(making) => Some((making.gpu()?, making.lock)),
            Self::Remove(removing) => Some((removing.gpu()?, removing.lock)),
            _ => None,
        }
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Self::Sight(_, gpu) => format!("looks at {gpu}"),
            Self::Lock { .. } => "takes the lock".to_owned(),
            Self::Look { read, .. } => {
                let node_devices = if read.node_devices {
                    " and NodeDevices"
                } else {
                    ""
                };
                let claim = read.claim.as_ref();
                let claim = claim.map_or_else(String::new, |it| format!(" and claim {}", it.uid));
                format!("reads its disk{node_devices}{claim}")
            }
            Self::Commit { writes, .. } => match writes.front() {
                None => "releases the lock".to_owned(),
                Some(Write::PutRecord(record)) => {
                    format!("disk: {} is {:?}", record.claim.uid, record.state)
                }
                Some(Write::RemoveRecord(uid)) => format!("disk: record of {uid} goes"),
                Some(Write::PutCdi(record)) => {
                    format!("disk: CDI file of {}", record.claim.uid)
                }
                Some(Write::RemoveCdi(uid)) => format!("disk: CDI file of {uid} goes"),
                Some(Write::PutNode { acknowledged, .. }) => match acknowledged {
                    Some(heard) => format!(
                        "disk: heard generation {} of {}",
                        heard.generation,
                        heard.uid.as_deref().unwrap_or("no object")
                    ),
                    None => "disk: boot id".to_owned(),
                },
                Some(Write::BeginRebuild { rebuild, .. }) => {
                    format!("disk: what was lost is rebuilt as {rebuild}")
                }
            },
            Self::Hear(_, Ok(())) => "hears that it is done".to_owned(),
            Self::Hear(_, Err(failure)) => format!("hears of {failure}"),
            Self::ReadClaim(_, claim) => format!("reads claim {}", claim.uid),
            Self::ReadNodeDevices => "reads NodeDevices uncached".to_owned(),
            Self::Gather => "gathers what may be prepared".to_owned(),
            Self::WriteStatus(write) => {
                let held: Vec<&str> = write
                    .status
                    .held
                    .iter()
                    .map(|held| held.claim_uid.as_str())
                    .collect();
                format!(
                    "status: generation {} of {}, held {held:?}",
                    write.status.observed_generation, write.status.uid
                )
            }
            Self::Answer(_, Answer::Prepared(_)) => "answers: prepared".to_owned(),
            Self::Answer(_, Answer::Unprepared) => "answers: unprepared".to_owned(),
            Self::Answer(_, Answer::Refused(refusal)) => format!("answers: {refusal}"),
            Self::Taint(devices) => format!("taints {devices:?}"),
            Self::Make(making) => format!("makes {making:?}"),
            Self::Remove(removing) => format!("removes {removing:?}"),
        }
    }
}
