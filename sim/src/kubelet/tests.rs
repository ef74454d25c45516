//! A claim that pods share, and that the kubelet forgets.

use muster_api::{NodeDevices, NodeDevicesSpec};

use super::*;
use crate::{
    claim_controller, drivers, fixtures,
    invariants::given,
    scenario::{GangShape, NodeShape, OwnerKind, Product, SharedClaim},
};

/// More than anything here takes.
const MOST_STEPS: usize = 1_000;

/// A node whose driver enforces nothing, and two pods on it that share a claim.
struct Setup {
    api: ApiServer,
    kubelet: Kubelet,
    node: GpuNode,
    drivers: Drivers,
    random: Random,
    now: u64,
}

fn catch_up(informer: &mut Informer, api: &ApiServer) {
    while let Some(watch) = informer.pending(api).first() {
        informer.advance(api, *watch, 100);
    }
}

/// Pods that share a claim.
fn sharing(name: &str, claim: &str) -> GangShape {
    GangShape {
        gpus_per_pod: 0,
        claims_per_pod: 0,
        shared: Some(SharedClaim {
            name: claim.into(),
            pods: 2,
            gpus: 1,
        }),
        submitted_at: 0,
        ..GangShape::plain(name, "blue", OwnerKind::User, 2)
    }
}

impl Setup {
    fn new() -> Self {
        let shape = NodeShape {
            name: "node-0".into(),
            leaf: "leaf-0".into(),
            product: Product::H100,
            gpus: 2,
        };
        let gang = sharing("g", "data");
        let mut api = ApiServer::default();
        api.create(fixtures::node(&shape)).unwrap();
        api.create(fixtures::resource_slice(&shape)).unwrap();
        api.create(fixtures::shared_claim(&gang).unwrap()).unwrap();
        api.create(NodeDevices::new("node-0", NodeDevicesSpec::default()))
            .unwrap();
        let node = GpuNode::new(shape);
        let mut drivers = Drivers::default();
        drivers.start(0, &api, &node);
        let mut setup = Self {
            api,
            kubelet: Kubelet::default(),
            node,
            drivers,
            random: Random::new(1),
            now: 0,
        };
        for index in 0..2 {
            setup.run_pod(&gang, index);
        }
        setup.drive();
        setup
    }

    /// A pod is made, and bound with its claim.
    fn run_pod(&mut self, gang: &GangShape, index: usize) {
        let mut pod = fixtures::pod(gang, &format!("{}-{index}", gang.name), index, None);
        pod.spec.as_mut().unwrap().scheduling_gates = None;
        self.api.create(pod).unwrap();
        let mut scheduler = Informer::new(&scheduler::WATCHED);
        catch_up(&mut scheduler, &self.api);
        while let Some(step) = scheduler::steps(scheduler.cache()).first() {
            scheduler::perform(&mut self.api, &mut scheduler, step);
        }
        catch_up(&mut self.kubelet.informer, &self.api);
    }

    fn pods(&self) -> [String; 2] {
        let pods = self.api.list::<Pod>();
        let uids: Vec<String> = pods.filter_map(|pod| pod.metadata.uid.clone()).collect();
        uids.try_into().unwrap()
    }

    fn pod(&self, name: &str) -> String {
        let pod = self.api.get::<Pod>("blue", name).unwrap();
        pod.metadata.uid.clone().unwrap()
    }

    /// The pod's container runs, with what its claim is allocated.
    fn check(&self, pod: &str) {
        let container = &self.node.containers[pod];
        assert_eq!(container.units.len(), 1);
        given::check_container(&self.api, &self.node, pod, container).unwrap();
    }

    fn kubelet(&mut self, step: &Step) {
        self.kubelet.perform(
            step,
            self.now,
            &mut self.random,
            &mut self.api,
            &mut self.node,
            &mut self.drivers,
        );
    }

    /// The driver does all that it has to do, but for looks at what the kubelet may have forgotten.
    fn drive(&mut self) {
        for _ in 0..MOST_STEPS {
            let steps = self.drivers.steps(self.now, &self.api, &self.node);
            let next = steps.into_iter().find(|step| *step != drivers::Step::Look);
            let Some(step) = next else { return };
            self.drive_by(&step);
        }
        panic!("the driver does not come to rest");
    }

    fn drive_by(&mut self, step: &drivers::Step) {
        let answered = self
            .drivers
            .perform(step, self.now, &mut self.api, &mut self.node, None);
        if let Some(answered) = answered {
            self.kubelet.answered(self.now, &mut self.random, &answered);
        }
    }

    fn is_to_look(&self) -> bool {
        let steps = self.drivers.steps(self.now, &self.api, &self.node);
        steps.contains(&drivers::Step::Look)
    }

    /// Both pods are gone, and the claim controller clears the allocation of their claim, which stays.
    fn release(&mut self) {
        for name in ["g-0", "g-1"] {
            let pod = key(Kind::Pod, "blue", name);
            self.api.delete_now(&pod, Precondition::default()).unwrap();
        }
        let mut claims = Informer::new(&claim_controller::WATCHED);
        catch_up(&mut claims, &self.api);
        for step in claim_controller::steps(claims.cache()) {
            claim_controller::perform(&mut self.api, &mut claims, &step, 1);
        }
    }
}

#[test]
fn what_is_prepared_for_a_pod_after_its_claim_is_unprepared_for_another_is_given_back_though_the_kubelet_forgets_it()
 {
    let mut setup = Setup::new();
    let [first, second] = setup.pods();
    for step in [
        Step::Admit(first.clone()),
        Step::Admit(second.clone()),
        Step::Prepare(first.clone()),
        Step::Stop(first.clone()),
        Step::Unprepare(first),
    ] {
        setup.kubelet(&step);
    }
    // Else the second pod would be refused until the claim is unprepared.
    setup.kubelet.restart(setup.now);
    for step in [Step::Prepare(second.clone()), Step::Stop(second.clone())] {
        setup.kubelet(&step);
    }
    setup.drive();
    assert_eq!(setup.node.disk.records.len(), 1, "the second pod's Prepare");
    setup.kubelet.restart_without_checkpoint(setup.now);
    setup.kubelet(&Step::Unprepare(second));
    setup.drive();
    assert!(setup.kubelet.claims.is_empty(), "the kubelet asks no more");
    assert_eq!(setup.node.disk.records.len(), 1);
    assert!(!setup.is_to_look(), "pods may still use it");

    setup.release();
    for _ in 0..2 {
        assert!(setup.is_to_look());
        setup.drive_by(&drivers::Step::Look);
        setup.drive();
        setup.now += 300_000;
    }
    assert!(setup.node.disk.records.is_empty() && setup.node.cdi.is_empty());
    assert!(setup.api.get::<ResourceClaim>("blue", "data").is_some());
}

#[test]
fn a_container_is_given_what_its_claim_is_allocated_though_the_kubelet_forgot_the_allocation_before()
 {
    let mut setup = Setup::new();
    let [first, second] = setup.pods();
    for step in [Step::Admit(first.clone()), Step::Prepare(first.clone())] {
        setup.kubelet(&step);
    }
    setup.drive();
    setup.kubelet(&Step::Start(first.clone()));
    setup.check(&first);

    // Nobody has it unprepared, and its claim is released, and allocated again while somebody else has that GPU.
    setup.kubelet.restart_without_checkpoint(0);
    for pod in [&first, &second] {
        setup.kubelet(&Step::Stop(pod.clone()));
    }
    setup.release();
    assert_eq!(
        setup.node.disk.records.len(),
        1,
        "the driver does not know it"
    );
    let other = sharing("other", "other-data");
    setup
        .api
        .create(fixtures::shared_claim(&other).unwrap())
        .unwrap();
    setup.run_pod(&other, 0);
    setup.run_pod(&sharing("later", "data"), 0);

    let later = setup.pod("later-0");
    for step in [Step::Admit(later.clone()), Step::Prepare(later.clone())] {
        setup.kubelet(&step);
    }
    setup.drive();
    setup.kubelet(&Step::Start(later.clone()));
    setup.check(&later);
}

#[test]
fn no_other_pod_is_let_have_a_claim_from_its_first_unprepare_on_until_that_has_succeeded() {
    let mut setup = Setup::new();
    let [first, _] = setup.pods();
    for step in [Step::Admit(first.clone()), Step::Prepare(first.clone())] {
        setup.kubelet(&step);
    }
    setup.drive();
    for step in [Step::Start(first.clone()), Step::Open(first.clone())] {
        setup.kubelet(&step);
    }
    setup.check(&first);

    // Its pods are deleted by force, its container lives, and the claim is allocated again while somebody else has that GPU.
    setup.release();
    setup.kubelet(&Step::Unprepare(first.clone()));
    setup.drive();
    assert_eq!(setup.kubelet.claims.len(), 1, "the driver refuses that");
    let other = sharing("other", "other-data");
    setup
        .api
        .create(fixtures::shared_claim(&other).unwrap())
        .unwrap();
    setup.run_pod(&other, 0);
    setup.run_pod(&sharing("later", "data"), 0);
    let later = setup.pod("later-0");
    for step in [Step::Admit(later.clone()), Step::Prepare(later.clone())] {
        setup.kubelet(&step);
    }
    setup.drive();
    let steps = setup.kubelet.steps(setup.now, &setup.node, &setup.drivers);
    assert!(!steps.contains(&Step::Start(later.clone())), "{steps:?}");

    for step in [Step::Stop(first.clone()), Step::Unprepare(first)] {
        setup.kubelet(&step);
    }
    setup.drive();
    assert!(setup.kubelet.claims.is_empty());
    setup.kubelet(&Step::Prepare(later.clone()));
    setup.drive();
    setup.kubelet(&Step::Start(later.clone()));
    setup.check(&later);
}

#[test]
fn a_kubelet_that_starts_anew_removes_what_ended_and_is_being_deleted_and_lets_be_what_only_ended()
{
    let mut setup = Setup::new();
    let [first, second] = setup.pods();
    setup
        .api
        .delete(&key(Kind::Pod, "blue", "g-0"), Precondition::default())
        .unwrap();
    for name in ["g-0", "g-1"] {
        let any = Precondition::default();
        let fails = |pod: &mut Pod| {
            pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
        };
        setup.api.update::<Pod>("blue", name, any, fails).unwrap();
    }
    assert!(setup.api.pod_by_uid(&first).is_some(), "nobody removed it");
    for expected in [
        vec![Step::Admit(first.clone())],
        vec![Step::Remove(first.clone())],
        vec![Step::Forget(first.clone())],
        vec![],
    ] {
        catch_up(&mut setup.kubelet.informer, &setup.api);
        let steps = setup.kubelet.steps(setup.now, &setup.node, &setup.drivers);
        assert_eq!(steps, expected);
        for step in &steps {
            setup.kubelet(step);
        }
    }
    assert!(setup.api.pod_by_uid(&first).is_none());
    assert!(setup.api.pod_by_uid(&second).is_some());
}
