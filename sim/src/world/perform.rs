//! Taking a step: whoever's it is, with what goes wrong in it.

use std::collections::BTreeSet;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use muster_api::{Ledger, keys};
use muster_cluster::object::Kind;

use super::{
    World,
    turns::{Step, Who},
};
use crate::{
    api_server::{ApiServer, Precondition, Stored, node_of},
    claim_controller, controllers, drivers, kubelet,
    matrix::{EffectKind, Mishap},
    scheduler, workload,
};

impl World {
    pub(super) fn perform(&mut self, step: &Step) {
        match step {
            Step::Controllers(step) => self.perform_controllers(step),
            Step::Scheduler(step) => {
                self.trace.note(self.now, step.to_string());
                scheduler::perform(&mut self.api, &mut self.scheduler, step);
            }
            Step::Claims(step) => {
                self.trace
                    .note(self.now, format!("claim controller: {step:?}"));
                let random = self.random.below(1 << 20);
                claim_controller::perform(&mut self.api, &mut self.claim_controller, step, random);
            }
            Step::Inform(who, watch) => {
                let changes = usize::try_from(self.random.between(1, 12)).unwrap_or(1);
                let informer = match who {
                    Who::Scheduler => Some(&mut self.scheduler),
                    Who::ClaimController => Some(&mut self.claim_controller),
                    Who::Kubelet(node) => self
                        .kubelets
                        .get_mut(node)
                        .map(|kubelet| &mut kubelet.informer),
                };
                if let Some(informer) = informer {
                    informer.advance(&self.api, *watch, changes);
                }
            }
            Step::Garbage(key) => {
                self.trace
                    .note(self.now, format!("garbage: {:?} {}", key.kind, key.name));
                let _ = self.api.delete(key, Precondition::default());
            }
            Step::Owners(step) => {
                self.trace.note(self.now, format!("owner: {step:?}"));
                self.owners.perform(self.now, step, &mut self.api);
            }
            Step::Workload(workload::Step::Checkpoint(namespace, pod)) => {
                self.trace
                    .note(self.now, format!("{pod} writes a checkpoint"));
                let node = self.api.get::<Pod>(namespace, pod).and_then(node_of);
                let node = node.and_then(|node| self.nodes.get(node));
                if let Some(time_of_day) = node.map(|node| node.clock.time_of_day(self.now)) {
                    let any = Precondition::default();
                    let _ = self.api.update::<Pod>(namespace, pod, any, |pod| {
                        workload::save(pod, time_of_day);
                    });
                }
            }
            Step::Workload(workload::Step::Tell(tell)) => {
                let text = tell.text.clone();
                self.trace.note(
                    self.now,
                    format!("{} tells {text} of its progress", tell.pod),
                );
                self.workload.note_told(self.now, tell);
                let any = Precondition::default();
                let _ = self
                    .api
                    .update::<Pod>(&tell.namespace, &tell.pod, any, |pod| {
                        let annotations = pod.metadata.annotations.get_or_insert_default();
                        annotations.insert(keys::PROGRESS.to_owned(), text);
                    });
            }
            Step::Workload(workload::Step::End(step)) => {
                let end = if step.succeeded { "succeeds" } else { "fails" };
                self.trace.note(
                    self.now,
                    format!("{}: container of {} {end}", step.node, step.pod),
                );
                self.workload.note_end(step);
                self.finish(&step.node, &step.pod, step.succeeded);
            }
            Step::Kubelet(name, step) => self.perform_kubelet(name, step),
            Step::Driver(name, step) => self.perform_driver(name, step),
        }
    }

    fn perform_controllers(&mut self, step: &controllers::Step) {
        let effect = self.controllers.request(step).map(EffectKind::of);
        let mishap =
            effect.and_then(|effect| self.faults.controller_mishap(&mut self.random, effect));
        if let Some(effect) = effect {
            let stale = self.controllers.is_stale(step, &self.api);
            self.note_met(effect, mishap, stale);
        }
        // What a lost Ledger said is committed again, whoever leads.
        let is_lost = !self
            .api
            .list::<Ledger>()
            .any(|ledger| ledger.spec.sequence > 0);
        let observes = !is_lost && self.controllers.observes(step);
        let before = observes.then(|| self.evicted_without_proof());
        let forced = self.controllers.forces(step).cloned();
        let pod_of = |api: &ApiServer| {
            let key = forced.as_ref()?;
            api.get::<Pod>(&key.namespace, &key.name).cloned()
        };
        let forced_pod = pod_of(&self.api);
        let raised = self.controllers.raises(step).cloned();
        let pods = self.api.watch(Kind::Pod);
        let jobs = self.api.watch(Kind::Job);
        let told = self
            .controllers
            .perform(step, self.now, &mut self.api, mishap);
        if let Some(told) = told {
            self.trace.note(self.now, told);
        }
        if let Some(before) = before {
            let after = self.evicted_without_proof();
            let mut new = after.difference(&before);
            self.ended_by_observer = new.next().map(|(gang, attempt)| {
                format!("attempt {attempt} of {gang} is evicted by who only observes")
            });
        }
        if let Some(before) = forced_pod
            && pod_of(&self.api).as_ref() != Some(&before)
        {
            self.invariants.note_forced(&self.api, &before);
        }
        // What does not fit is refused as well, and that is no excuse.
        if let Some(job) = raised {
            if mishap == Some(Mishap::Refused) {
                self.owners.note_refused_raise(&job.name);
            } else if self.api.events_from(jobs).any(|event| event.key == job) {
                self.owners.note_raised(&job.name);
            }
        }
        // Whichever pods that deletes, their Jobs count as failed what no rank of theirs did.
        for event in self.api.events_from(pods) {
            let pod = event.object.as_ref().and_then(Pod::of);
            let now = Some(Time(self.api.time()));
            let deleted = pod.filter(|pod| pod.metadata.deletion_timestamp == now);
            if let Some(uid) = deleted.and_then(|pod| pod.metadata.uid.as_deref()) {
                self.owners.note_evicted(uid);
            }
        }
    }

    /// The attempts that the Ledger evicts for what nothing proves, by UID of their Gang.
    fn evicted_without_proof(&self) -> BTreeSet<(String, i64)> {
        let ledgers = self.api.list::<Ledger>();
        let intents = ledgers.flat_map(|ledger| &ledger.spec.intents);
        intents
            .filter(|intent| self.invariants.is_without_proof(&self.api, intent))
            .map(|intent| (intent.gang_uid.clone(), intent.attempt))
            .collect()
    }

    fn perform_kubelet(&mut self, name: &str, step: &kubelet::Step) {
        self.trace
            .note(self.now, format!("{name}: kubelet: {step:?}"));
        if let (Some(kubelet), Some(node), Some(drivers)) = (
            self.kubelets.get_mut(name),
            self.nodes.get_mut(name),
            self.drivers.get_mut(name),
        ) {
            kubelet.perform(
                step,
                self.now,
                &mut self.random,
                &mut self.api,
                node,
                drivers,
            );
        }
    }

    fn perform_driver(&mut self, name: &str, step: &drivers::Step) {
        let (Some(kubelet), Some(node), Some(drivers)) = (
            self.kubelets.get_mut(name),
            self.nodes.get_mut(name),
            self.drivers.get_mut(name),
        ) else {
            return;
        };
        let effect = drivers.effect(step);
        let mishap = effect
            .and_then(|effect| self.faults.driver_mishap(&mut self.random, effect))
            .filter(|mishap| {
                matches!(mishap, Mishap::CrashBefore | Mishap::CrashAfter) || drivers.can_fail(step)
            });
        let position = drivers.position(step);
        if let Some(effect) = effect {
            let stale = drivers.is_stale(step, &self.api, name);
            let met = mishap.into_iter().chain(stale.then_some(Mishap::StaleRead));
            for mishap in met {
                self.matrix.note(effect, mishap);
            }
        }
        let failed = mishap.map_or_else(String::new, |mishap| format!(" -> {mishap:?}"));
        let text = drivers.describe(step);
        self.trace.note(self.now, format!("{name}: {text}{failed}"));
        if *step == drivers::Step::StopOld
            && let Some(old) = drivers.instances.first()
        {
            kubelet.disconnected(self.now, &mut self.random, old.id);
        }
        if mishap != Some(Mishap::CrashBefore) {
            let answered = drivers.perform(step, self.now, &mut self.api, node, mishap);
            if let Some(answered) = answered {
                kubelet.answered(self.now, &mut self.random, &answered);
            }
        }
        if let (Some(Mishap::CrashBefore | Mishap::CrashAfter), Some(position)) = (mishap, position)
            && let Some(instance) = drivers.instances.get(position)
        {
            let id = instance.id;
            drivers.crash(position, node);
            kubelet.disconnected(self.now, &mut self.random, id);
        }
    }

    fn note_met(&mut self, effect: EffectKind, mishap: Option<Mishap>, stale: bool) {
        let met = mishap.into_iter().chain(stale.then_some(Mishap::StaleRead));
        for mishap in met {
            self.matrix.note(effect, mishap);
        }
    }

    pub(super) fn finish(&mut self, node: &str, pod: &str, succeeded: bool) {
        if let (Some(kubelet), Some(node)) = (self.kubelets.get_mut(node), self.nodes.get_mut(node))
        {
            kubelet.finish(pod, node, succeeded);
        }
    }
}
