//! S2 of machines that lose their checkpoint, and of machines whose Node goes and comes back.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use muster_api::{Charge, ClaimsCharge, NodeDevices, NodeDevicesSpec, NodeDevicesStatus, Permit};
use muster_dra_driver::prepare::{ClaimRef, Record, RecordState, RecordedDevice, Unit, Write};
use muster_protocol::OnCordon;

use super::{Invariants, Violation};
use crate::{
    api_server::{ApiServer, Precondition, Stored, key},
    fixtures,
    gpu_node::GpuNode,
    scenario::{Hardships, NodeShape, Product, Scenario, TeamShape, WHOLE_INTENT_BYTES},
};

const NODE: &str = "node-0";
const TEAM: &str = "blue";
const CLAIM: &str = "claim-0";
const GPUS: usize = 2;

/// A node on which a claim is prepared that its permit charges, and its driver has answered.
struct Setup {
    api: ApiServer,
    nodes: BTreeMap<String, GpuNode>,
    invariants: Invariants,
}

impl Setup {
    fn new() -> Self {
        let shape = NodeShape {
            name: NODE.to_owned(),
            leaf: "leaf-0".to_owned(),
            product: Product::H100,
            gpus: GPUS,
        };
        let scenario = Scenario {
            nodes: vec![shape.clone()],
            teams: vec![TeamShape::with_quota(TEAM, Product::H100, GPUS)],
            gangs: Vec::new(),
            hardships: Hardships::default(),
            keep_ended_seconds: 3_600,
            whole_intent_bytes: WHOLE_INTENT_BYTES,
            on_cordon: OnCordon::Nothing,
        };
        let mut setup = Self {
            api: ApiServer::default(),
            nodes: BTreeMap::from([(NODE.to_owned(), GpuNode::new(shape))]),
            invariants: Invariants::new(scenario),
        };
        setup.add_node();
        setup.add_node_devices(vec![permit()]);
        setup.answer();
        setup.prepare();
        assert_eq!(setup.check(), Ok(()), "what is held is charged");
        setup
    }

    fn machine(&mut self) -> &mut GpuNode {
        self.nodes.get_mut(NODE).unwrap()
    }

    fn add_node(&mut self) {
        let node = fixtures::node(&self.machine().shape);
        self.api.create(node).unwrap();
    }

    fn add_node_devices(&mut self, permits: Vec<Permit>) {
        let node = self.api.get::<Node>("", NODE).unwrap();
        let spec = NodeDevicesSpec {
            node_uid: node.metadata.uid.clone().unwrap(),
            permits,
            ..NodeDevicesSpec::default()
        };
        self.api.create(NodeDevices::new(NODE, spec)).unwrap();
    }

    fn update_node_devices(&mut self, change: impl FnOnce(&mut NodeDevices)) {
        let any = Precondition::default();
        self.api
            .update::<NodeDevices>("", NODE, any, change)
            .unwrap();
    }

    /// The driver has the object on disk, and says so.
    fn answer(&mut self) {
        self.update_node_devices(|object| {
            object.status = Some(NodeDevicesStatus {
                uid: object.metadata.uid.clone().unwrap(),
                observed_generation: object.metadata.generation.unwrap(),
                ..NodeDevicesStatus::default()
            });
        });
    }

    /// Another node has the claim, by another Flavor.
    fn charge_elsewhere(&mut self) {
        let spec = NodeDevicesSpec {
            permits: vec![permit_of_other_flavor()],
            ..NodeDevicesSpec::default()
        };
        self.api.create(NodeDevices::new("node-1", spec)).unwrap();
    }

    fn remove<T: Stored>(&mut self) {
        let object = key(T::KIND, "", NODE);
        self.api.delete(&object, Precondition::default()).unwrap();
    }

    fn prepare(&mut self) {
        let machine = self.machine();
        machine.write(Write::PutRecord(record()));
        machine.write(Write::PutCdi(record()));
    }

    fn unprepare(&mut self) {
        let machine = self.machine();
        machine.write(Write::RemoveCdi(CLAIM.to_owned()));
        machine.write(Write::RemoveRecord(CLAIM.to_owned()));
    }

    /// The driver makes its records again, of what it finds on the machine.
    fn rebuild(&mut self) {
        let machine = self.machine();
        let found = machine.gather();
        assert_eq!(found, [record()]);
        for record in found {
            machine.write(Write::PutRecord(record));
        }
    }

    fn check(&mut self) -> Result<(), Violation> {
        self.invariants.check(&self.api, &self.nodes)
    }

    /// The invariant that breaks.
    fn broken(&mut self) -> Option<&'static str> {
        self.check().err().map(|violation| violation.invariant)
    }
}

fn permit() -> Permit {
    Permit {
        pod_uid: "pod-0".to_owned(),
        claim_uids: vec![CLAIM.to_owned()],
        gang: format!("{TEAM}/train"),
        gang_uid: "gang-0".to_owned(),
        attempt: 1,
        team: TEAM.to_owned(),
        charge: Charge {
            claims: vec![ClaimsCharge {
                flavor: Product::H100.flavor().to_owned(),
                gpus_milli: 1_000,
                vram_bytes: fixtures::GPU_BYTES,
                uids: vec![CLAIM.to_owned()],
            }],
            ..Charge::default()
        },
        ..Permit::default()
    }
}

/// One for the same claim, by a Flavor that the node is not of.
fn permit_of_other_flavor() -> Permit {
    let mut permit = permit();
    // No Team may use any of that Flavor.
    let group = &mut permit.charge.claims[0];
    group.flavor = Product::A100.flavor().to_owned();
    group.gpus_milli = 0;
    permit
}

/// The claim's record, once it is prepared: it has the first GPU.
fn record() -> Record {
    Record {
        claim: ClaimRef {
            uid: CLAIM.to_owned(),
            namespace: TEAM.to_owned(),
            name: "gpus".to_owned(),
        },
        state: RecordState::Prepared,
        call: None,
        by_name: None,
        pods: vec!["pod-0".to_owned()],
        devices: vec![RecordedDevice {
            request: "gpus".to_owned(),
            pool: NODE.to_owned(),
            device: fixtures::device_name(0),
            unit: Unit::whole(fixtures::gpu_uuid(NODE, 0)),
            minor: 0,
            admin_access: false,
            slice: None,
        }],
    }
}

#[test]
fn what_is_left_behind_stays_so_while_its_record_is_lost_and_made_again() {
    for answers_before in [false, true] {
        let mut setup = Setup::new();
        // The Node is gone, and so is the pod: that proves the release, and the machine lives on.
        setup.remove::<Node>();
        setup.remove::<NodeDevices>();
        assert_eq!(setup.check(), Ok(()), "the machine has no Node");
        setup.add_node();
        setup.add_node_devices(Vec::new());
        if answers_before {
            setup.answer();
        }
        assert_eq!(setup.check(), Ok(()), "{answers_before}: it has one again");
        setup.machine().lose_checkpoint();
        assert_eq!(setup.check(), Ok(()), "{answers_before}: it is lost");
        setup.rebuild();
        assert_eq!(setup.check(), Ok(()), "{answers_before}: it is there again");
        setup.answer();
        assert_eq!(
            setup.check(),
            Ok(()),
            "{answers_before}: nobody released it"
        );
        setup.unprepare();
        assert_eq!(setup.check(), Ok(()), "{answers_before}: nothing is held");
        setup.prepare();
        assert_eq!(setup.broken(), Some("S2"), "{answers_before}: it is new");
    }
}

#[test]
fn a_claim_whose_record_is_lost_is_charged_for_as_long_as_it_has_its_file() {
    let mut setup = Setup::new();
    setup.machine().lose_checkpoint();
    assert_eq!(setup.check(), Ok(()));
    setup.update_node_devices(|object| object.spec.permits.clear());
    assert_eq!(setup.broken(), Some("S2"));
}

#[test]
fn what_lived_on_without_its_node_is_left_behind_though_its_object_goes_once_the_node_is_back() {
    for (is_made_again, broken) in [(true, None), (false, Some("S2"))] {
        let mut setup = Setup::new();
        if is_made_again {
            setup.remove::<Node>();
            assert_eq!(setup.check(), Ok(()), "its permit is there still");
            setup.add_node();
            assert_eq!(setup.check(), Ok(()), "and goes by what was proved before");
        }
        setup.remove::<NodeDevices>();
        assert_eq!(setup.broken(), broken, "made again: {is_made_again}");
    }
}

#[test]
fn a_node_that_was_made_again_is_as_any_other_once_its_driver_has_answered() {
    let mut setup = Setup::new();
    setup.unprepare();
    setup.remove::<Node>();
    setup.remove::<NodeDevices>();
    assert_eq!(setup.check(), Ok(()));
    setup.add_node();
    setup.add_node_devices(vec![permit()]);
    setup.answer();
    setup.prepare();
    assert_eq!(setup.check(), Ok(()));
    setup.update_node_devices(|object| object.spec.permits.clear());
    assert_eq!(setup.broken(), Some("S2"));
}

#[test]
fn what_a_lost_node_holds_is_judged_by_its_own_permit_though_its_claim_is_charged_elsewhere() {
    for (is_lost, broken) in [(true, None), (false, Some("S2"))] {
        let mut setup = Setup::new();
        setup.update_node_devices(|object| object.spec.lost = is_lost);
        assert_eq!(setup.check(), Ok(()), "lost: {is_lost}");
        setup.charge_elsewhere();
        assert_eq!(setup.broken(), broken, "lost: {is_lost}");
    }
}

#[test]
fn what_is_left_behind_is_not_judged_by_another_flavor_that_its_claim_is_charged_elsewhere() {
    let mut setup = Setup::new();
    // The Node is gone, and so is the pod: its permit goes, and the driver, which lives on, does not know it yet.
    setup.remove::<Node>();
    setup.update_node_devices(|object| object.spec.permits.clear());
    assert_eq!(setup.check(), Ok(()), "it was let go");
    // The next attempt has the same claim, on a node of another kind.
    setup.charge_elsewhere();
    assert_eq!(setup.check(), Ok(()), "it is charged elsewhere");
    // It comes back, and nobody is charged for it there: the API server says that the claim's devices are elsewhere.
    setup.add_node();
    assert_eq!(setup.check(), Ok(()), "it has a Node again");
    let node = setup.api.get::<Node>("", NODE).unwrap();
    let node_uid = node.metadata.uid.clone().unwrap();
    let returned = Permit {
        charge: Charge::default(),
        withdrawn: true,
        ..permit()
    };
    setup.update_node_devices(|object| {
        object.spec.node_uid = node_uid;
        object.spec.permits = vec![returned];
    });
    setup.answer();
    assert_eq!(setup.check(), Ok(()), "its driver has answered");
    // Whoever is charged for it there is charged by what it is.
    setup.update_node_devices(|object| object.spec.permits = vec![permit_of_other_flavor()]);
    assert_eq!(setup.broken(), Some("S2"), "it is charged there");
}

#[test]
fn what_a_node_holds_that_has_its_node_is_charged_by_what_it_is() {
    let mut setup = Setup::new();
    setup.charge_elsewhere();
    setup.update_node_devices(|object| object.spec.permits.clear());
    assert_eq!(setup.broken(), Some("S2"));
}
