//! Faults of the surroundings: what they happen to.

use std::collections::BTreeSet;

use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use muster_api::{Gang, Ledger, NodeDevices, TierPreemption};
use muster_cluster::object::{Kind, Object, ObjectKey};

use super::World;
use crate::{
    api_server::{Precondition, Stored, has_ended, is_bound, key},
    controllers::LAGGING_KINDS,
    faults::Fault,
    fixtures, scheduler,
};

impl World {
    /// Lets a fault happen, if there is something that it can happen to.
    pub(super) fn inject(&mut self, fault: Fault) -> bool {
        let told = match fault {
            Fault::LeaseLost => self.lose_lease(),
            Fault::WatchLag => self
                .random
                .pick(LAGGING_KINDS.to_vec())
                .filter(|_| self.controllers.holder().is_some())
                .map(|kind| {
                    self.controllers.freeze(kind);
                    format!("the leader's watch of {kind:?} stands still")
                }),
            Fault::StaleList => {
                self.controllers.delay_list();
                Some("the next list comes late, as it was when it was read".to_owned())
            }
            Fault::WatchRepeats => {
                let kind = self.random.pick(LAGGING_KINDS.to_vec());
                kind.filter(|kind| self.controllers.repeat(*kind, &self.api))
                    .map(|kind| format!("the leader's watch of {kind:?} repeats itself"))
            }
            Fault::DriverCrash => self.crash_driver(),
            Fault::DriverUpdate => self.update_driver(),
            Fault::CheckpointLost => self.lose_checkpoint(),
            Fault::KubeletRestart => self.pick_node().map(|name| {
                if let Some(kubelet) = self.kubelets.get_mut(&name) {
                    kubelet.restart(self.now);
                }
                format!("{name}: kubelet restarts")
            }),
            Fault::KubeletForgets => self.pick_node().map(|name| {
                if let Some(kubelet) = self.kubelets.get_mut(&name) {
                    kubelet.restart_without_checkpoint(self.now);
                }
                format!("{name}: kubelet restarts without its checkpoint")
            }),
            Fault::DriverPause => self.pause_driver(),
            Fault::KubeletPause => self.pick_node().map(|name| {
                let until = self.now + self.random.between(1_000, 20_000);
                if let Some(kubelet) = self.kubelets.get_mut(&name) {
                    kubelet.paused_until = until;
                }
                format!("{name}: kubelet does nothing for a while")
            }),
            Fault::ForceDelete => self.delete::<Pod>(true, |pod| !has_ended(pod) && is_bound(pod)),
            Fault::Delete => {
                let planned = self.planned_pods();
                self.delete::<Pod>(false, |pod| {
                    let uid = pod.metadata.uid.as_ref();
                    !has_ended(pod)
                        && (planned.is_empty() || uid.is_some_and(|uid| planned.contains(uid)))
                })
            }
            Fault::DeleteGang => self.delete::<Gang>(false, |_| true),
            Fault::DeleteNodeDevices => self.delete::<NodeDevices>(false, |_| true),
            Fault::DeleteLedger => self.delete::<Ledger>(false, |_| true),
            Fault::SwapClaim => self
                .delete::<ResourceClaim>(false, |claim| scheduler::allocated_node(claim).is_none()),
            Fault::Cancel => {
                let gangs = self.owners.cancellable(&self.api);
                self.random.pick(gangs).map(|gang| {
                    self.owners.cancel(&gang, &mut self.api);
                    format!("{gang} is deleted by its user")
                })
            }
            Fault::RankFails => self.fail_rank(),
            Fault::LeaveTeam
            | Fault::LowerQuota
            | Fault::Cordon
            | Fault::NotReady
            | Fault::NodeMadeAgain
            | Fault::MachineLost
            | Fault::SuspendJob
            | Fault::ImageMissing
            | Fault::MachineDies
            | Fault::HoldTeam
            | Fault::DrainTeam
            | Fault::GpuBreaks
            | Fault::RecoveryObserves
            | Fault::Outage
            | Fault::PodsHang
            | Fault::KubeletSilent
            | Fault::MachineOff
            | Fault::DrainNode
            | Fault::DrainDevice => self.begin(fault),
            Fault::RuleWatchLag => self.controllers.holder().map(|_| {
                self.controllers.freeze(Kind::DeviceTaintRule);
                "the leader's watch of rules about devices stands still".to_owned()
            }),
            Fault::ClockSkews => self.skew_clocks(),
            Fault::ClockJumps => self.jump_clock(),
            Fault::NodeReboots => self.reboot_node(),
            Fault::SliceWatchLag => self.controllers.holder().map(|_| {
                self.controllers.freeze(Kind::ResourceSlice);
                "the leader's watch of ResourceSlices stands still".to_owned()
            }),
            Fault::ResumeJob => {
                let jobs = self.owners.suspendable(&self.api, true);
                self.random.pick(jobs).map(|job| {
                    self.owners.suspend(&job, false, &mut self.api);
                    format!("{job} is resumed by its user")
                })
            }
            Fault::ChangeTier => self.change_tier(),
            Fault::Compaction => {
                self.api.compact();
                Some("the history is compacted".to_owned())
            }
            Fault::Aimed
            | Fault::MachineStaysDead
            | Fault::ControllerCrash
            | Fault::ControllerUnanswered
            | Fault::ControllerConflict
            | Fault::DriverUnanswered
            | Fault::DiskFull => None,
        };
        let happened = told.is_some();
        if let Some(told) = told {
            self.trace
                .note(self.now, format!("FAULT {fault:?}: {told}"));
        }
        happened
    }

    /// Mostly while something is under way: at other times there is little to lose.
    fn lose_lease(&mut self) -> Option<String> {
        if !self.has_intents() && !self.random.one_in(4) {
            return None;
        }
        let everything = self.random.one_in(3);
        let mut frozen = BTreeSet::new();
        for kind in LAGGING_KINDS {
            if everything || self.random.one_in(3) {
                frozen.insert(kind);
            }
        }
        let text = format!("the old leader lives on, and lags on {frozen:?}");
        self.controllers
            .supersede(frozen, &self.api)
            .then_some(text)
    }

    pub(super) fn pick_node(&mut self) -> Option<String> {
        let names = self.nodes.keys().cloned().collect();
        self.random.pick(names)
    }

    fn crash_driver(&mut self) -> Option<String> {
        let name = self.pick_node()?;
        let drivers = self.drivers.get_mut(&name)?;
        let position = self.random.index(drivers.instances.len());
        let id = drivers.instances.get(position)?.id;
        drivers.crash(position, self.nodes.get_mut(&name)?);
        let kubelet = self.kubelets.get_mut(&name)?;
        kubelet.disconnected(self.now, &mut self.random, id);
        Some(format!("{name}: driver {id} crashes"))
    }

    fn pause_driver(&mut self) -> Option<String> {
        let name = self.pick_node()?;
        let drivers = self.drivers.get_mut(&name)?;
        let position = self.random.index(drivers.instances.len());
        let until = self.now + self.random.between(1_000, 20_000);
        let id = drivers.pause(position, until, self.nodes.get(&name)?)?;
        Some(format!("{name}: driver {id} does nothing for a while"))
    }

    /// Pods that an intent is about, every other time: what is under way is what is worth disturbing.
    fn planned_pods(&mut self) -> BTreeSet<String> {
        if self.random.one_in(2) {
            return BTreeSet::new();
        }
        self.api
            .list::<Ledger>()
            .flat_map(|ledger| &ledger.spec.intents)
            .flat_map(|intent| &intent.pods)
            .map(|pod| pod.uid.clone())
            .collect()
    }

    fn update_driver(&mut self) -> Option<String> {
        let name = self.pick_node()?;
        let drivers = self.drivers.get_mut(&name)?;
        if drivers.instances.len() != 1 {
            return None;
        }
        drivers.start(self.now, &self.api, self.nodes.get(&name)?);
        Some(format!("{name}: a second instance of the driver starts"))
    }

    fn lose_checkpoint(&mut self) -> Option<String> {
        let name = self.pick_node()?;
        let node = self.nodes.get_mut(&name)?;
        if node.lock.is_some() {
            return None;
        }
        node.lose_checkpoint();
        Some(format!("{name}: checkpoint lost"))
    }

    fn delete<T: Stored + 'static>(
        &mut self,
        by_force: bool,
        may: impl Fn(&T) -> bool,
    ) -> Option<String> {
        let candidates = self
            .api
            .list::<T>()
            .filter(|object| may(object))
            .map(|object| {
                let metadata = object.metadata();
                let namespace = metadata.namespace.clone().unwrap_or_default();
                key(
                    T::KIND,
                    &namespace,
                    metadata.name.as_deref().unwrap_or_default(),
                )
            })
            .collect();
        let key = self.random.pick(candidates)?;
        let any = Precondition::default();
        let done = if by_force {
            self.api.delete_now(&key, any)
        } else {
            self.api.delete(&key, any)
        };
        done.ok().map(|()| format!("{:?} {}", key.kind, key.name))
    }

    fn change_tier(&mut self) -> Option<String> {
        let gangs: Vec<ObjectKey> = self.api.objects(Kind::Gang).map(Object::key).collect();
        let gang = self.random.pick(gangs)?;
        let (tier, _, preemption) = fixtures::TIERS[self.random.index(fixtures::TIERS.len())];
        self.set_tier(&gang, tier);
        if preemption == TierPreemption::Never {
            self.promoted.insert(gang.clone());
        }
        Some(format!("{} is of tier {tier} now", gang.name))
    }

    /// Who waits for ever since nobody may preempt it is told to use another tier, and its user does.
    pub(super) fn take_promotions_back(&mut self) {
        for gang in std::mem::take(&mut self.promoted) {
            self.set_tier(&gang, fixtures::TIERS[0].0);
        }
    }

    fn set_tier(&mut self, gang: &ObjectKey, tier: &str) {
        let any = Precondition::default();
        let _ = self
            .api
            .update::<Gang>(&gang.namespace, &gang.name, any, |gang| {
                gang.spec.tier = Some(tier.to_owned());
            });
    }

    fn fail_rank(&mut self) -> Option<String> {
        let running = self
            .nodes
            .iter()
            .flat_map(|(name, node)| {
                node.containers
                    .keys()
                    .map(move |pod| (name.clone(), pod.clone()))
            })
            .collect();
        let (node, pod) = self.random.pick(running)?;
        self.finish(&node, &pod, false);
        Some(format!("{node}: container of {pod} fails"))
    }
}
