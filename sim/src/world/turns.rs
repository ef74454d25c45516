//! Whose turn it is, and what all of them may do next.

use super::{
    World,
    breaking::{API_SERVER, OURS},
};
use crate::matrix::EffectKind;
use crate::{claim_controller, controllers, drivers, kubelet, owners, scheduler, workload};
use muster_cluster::object::ObjectKey;

/// One step of anybody.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Controllers(controllers::Step),
    Scheduler(scheduler::Step),
    Claims(claim_controller::Step),
    /// A watch of somebody's tells some of what it has to tell.
    Inform(Who, usize),
    Garbage(ObjectKey),
    Owners(owners::Step),
    Workload(workload::Step),
    Kubelet(String, kubelet::Step),
    Driver(String, drivers::Step),
}

impl Step {
    /// Whether it may change more than objects of the API server: what is on a node.
    pub(super) fn may_change_nodes(&self) -> bool {
        matches!(
            self,
            Self::Kubelet(..) | Self::Driver(..) | Self::Workload(_)
        )
    }
}

/// Who knows the cluster from an informer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Scheduler,
    ClaimController,
    Kubelet(String),
}

/// Who may act, and how often relative to each other.
pub(super) const ACTORS: [(Actor, u64); 9] = [
    (Actor::Controllers, 40),
    (Actor::Drivers, 24),
    (Actor::Kubelets, 12),
    (Actor::Scheduler, 6),
    (Actor::Claims, 6),
    (Actor::Informers, 14),
    (Actor::Owners, 5),
    (Actor::Workload, 4),
    (Actor::Garbage, 3),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Actor {
    Controllers,
    Drivers,
    Kubelets,
    Scheduler,
    Claims,
    Informers,
    Owners,
    Workload,
    Garbage,
}

impl World {
    /// Somebody's step: who is drawn and has nothing to do passes the turn on.
    pub(super) fn next_step(&mut self) -> Option<Step> {
        let mut actors = ACTORS.to_vec();
        while !actors.is_empty() {
            let total = actors.iter().map(|(_, weight)| weight).sum();
            let mut drawn = self.random.below(total);
            let position = actors.iter().position(|(_, weight)| {
                let hit = drawn < *weight;
                drawn = drawn.saturating_sub(*weight);
                hit
            })?;
            let (actor, _) = actors.swap_remove(position);
            let mut steps = self.steps_of(actor);
            // What comes in a burst is mostly looked at together.
            if !self.random.one_in(3) && !steps.iter().all(is_poll) {
                steps.retain(|step| !is_poll(step));
            }
            if !self.faults.left().is_empty() {
                if !self.random.one_in(30) {
                    steps.retain(|step| !is_recovery(step));
                }
                if !self.random.one_in(4) {
                    steps.retain(|step| !is_late(step));
                }
                // Only a driver that knows too little looks past its watch.
                if self.faults.aims_at(EffectKind::DriverReadNodeDevices) && !self.random.one_in(20)
                {
                    steps.retain(|step| !is_watch_of_driver(step));
                }
            }
            if let Some(step) = self.random.pick(steps) {
                return Some(step);
            }
        }
        None
    }

    /// What somebody may do next, but for what a script holds back.
    pub(super) fn steps_of(&mut self, actor: Actor) -> Vec<Step> {
        let mut steps = self.all_steps_of(actor);
        steps.retain(|step| !self.held.iter().any(|held| self.is_of(*held, step)));
        let (api_server, ours) = (self.is_away(API_SERVER), self.is_away(OURS));
        if api_server || ours {
            steps.retain(|step| !is_cut_off(step, api_server, ours));
        }
        steps
    }

    /// What somebody may do next.
    pub(super) fn all_steps_of(&mut self, actor: Actor) -> Vec<Step> {
        let now = self.now;
        match actor {
            Actor::Controllers => wrap(self.controllers.steps(now, &self.api), Step::Controllers),
            Actor::Scheduler => wrap(scheduler::steps(self.scheduler.cache()), Step::Scheduler),
            Actor::Claims => {
                let steps = claim_controller::steps(self.claim_controller.cache());
                wrap(steps, Step::Claims)
            }
            Actor::Informers => {
                let mut informers = vec![
                    (Who::Scheduler, &self.scheduler),
                    (Who::ClaimController, &self.claim_controller),
                ];
                for (name, kubelet) in &self.kubelets {
                    if kubelet.paused_until <= now && !self.is_off(name) {
                        informers.push((Who::Kubelet(name.clone()), &kubelet.informer));
                    }
                }
                informers
                    .into_iter()
                    .flat_map(|(who, informer)| {
                        let pending = informer.pending(&self.api).into_iter();
                        pending.map(move |watch| Step::Inform(who.clone(), watch))
                    })
                    .collect()
            }
            Actor::Garbage => wrap(self.api.garbage(), Step::Garbage),
            Actor::Owners => wrap(self.owners.steps(now, &self.api), Step::Owners),
            Actor::Workload => {
                let steps = self
                    .workload
                    .steps(now, &self.api, &self.nodes, &self.owners);
                wrap(steps, Step::Workload)
            }
            Actor::Kubelets => self
                .nodes
                .iter()
                .filter(|(name, _)| !self.is_off(name))
                .flat_map(|(name, node)| {
                    let kubelet = &self.kubelets[name];
                    kubelet
                        .steps(now, node, &self.drivers[name])
                        .into_iter()
                        .map(|step| Step::Kubelet(name.clone(), step))
                })
                .collect(),
            Actor::Drivers => self
                .drivers
                .iter()
                .flat_map(|(name, drivers)| {
                    let mut steps = drivers.steps(now, &self.api, &self.nodes[name]);
                    if self.is_off(name) {
                        // What it had sent may still arrive.
                        steps.retain(|step| matches!(step, drivers::Step::Late(_)));
                    }
                    wrap_all(steps, name)
                })
                .collect(),
        }
    }
}

/// Steps that end a fault: rare while faults are still to come, so that the fault lasts.
fn is_recovery(step: &Step) -> bool {
    matches!(
        step,
        Step::Controllers(controllers::Step::Notice(_) | controllers::Step::Thaw(..))
            | Step::Driver(_, drivers::Step::StopOld)
    )
}

/// Whether a step cannot be taken while the API server, or all of ours, is away: what runs goes on and ends, and a driver hears what the
/// kernel logs.
fn is_cut_off(step: &Step, api_server: bool, ours: bool) -> bool {
    match step {
        Step::Workload(workload::Step::End(_)) => false,
        Step::Driver(_, drivers::Step::Faults(step)) => {
            ours || api_server && *step == drivers::FaultStep::Publish
        }
        Step::Driver(..) | Step::Controllers(_) => true,
        _ => api_server,
    }
}

fn is_poll(step: &Step) -> bool {
    matches!(step, Step::Controllers(controllers::Step::Poll(_)))
}

fn is_watch_of_driver(step: &Step) -> bool {
    matches!(step, Step::Driver(_, drivers::Step::Watch(_)))
}

/// Requests that nobody waits for any more.
fn is_late(step: &Step) -> bool {
    matches!(
        step,
        Step::Controllers(controllers::Step::Arrive(_)) | Step::Driver(_, drivers::Step::Late(_))
    )
}

fn wrap_all(steps: Vec<drivers::Step>, node: &str) -> Vec<Step> {
    let wrapped = steps.into_iter();
    wrapped
        .map(|step| Step::Driver(node.to_owned(), step))
        .collect()
}

fn wrap<T>(steps: Vec<T>, make: fn(T) -> Step) -> Vec<Step> {
    steps.into_iter().map(make).collect()
}
