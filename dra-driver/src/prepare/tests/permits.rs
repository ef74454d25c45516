//! What is prepared only with leave (rule 2).

use super::*;

#[test]
fn what_has_no_permit_waits_and_is_refused_with_its_reason() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("b", 1_000)])));
    let call = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.state("a"), Some(RecordState::Waiting));
    assert!(node.log.contains(&"read".to_owned()), "past the watch");
    node.pass(34 * SECOND);
    assert_eq!(node.answered(call), None);
    node.pass(2 * SECOND);
    assert_eq!(node.refused(call).reason, Some(Reason::NoPermit));
    assert!(node.refused(call).message.contains("pod-a"));
    assert_eq!(node.state("a"), None);
    assert!(node.held_by_status().is_empty());
}

#[test]
fn a_permit_that_comes_ends_the_wait_by_the_watch_or_past_it() {
    for seen in [true, false] {
        let mut node = Node::new(Some(node_devices("u", 1, vec![])));
        let call = node.prepare(claim("a", &["gpu-0"]));
        node.write_api(node_devices("u", 2, vec![permit("a", 1_000)]), seen);
        node.pass(7 * SECOND);
        assert_eq!(node.prepared(call).len(), 1, "seen: {seen}");
        assert_eq!(node.disk.acknowledged.as_ref().unwrap().generation, 2);
    }
}

/// What claim `a` of pod `pod-a` was allocated: `gpu-0`, unless a case says otherwise.
struct Case {
    what: &'static str,
    permits: Vec<Permit>,
    claim: Claim,
    refused: Option<Reason>,
}

fn given(what: &'static str, permits: &[Permit]) -> Case {
    Case {
        what,
        permits: permits.to_vec(),
        claim: claim("a", &["gpu-0"]),
        refused: None,
    }
}

impl Case {
    fn allocated(mut self, devices: &[&str]) -> Self {
        self.claim = claim("a", devices);
        self
    }

    fn reserved_for(mut self, pods: &[&str]) -> Self {
        self.claim.pods = pods.iter().map(ToString::to_string).collect();
        self
    }

    fn for_administration(mut self) -> Self {
        for device in self.claim.devices.iter_mut().flatten() {
            device.admin_access = true;
        }
        self
    }

    fn but_refused(mut self, reason: Reason) -> Self {
        self.refused = Some(reason);
        self
    }
}

/// A permit for claim `a` that is charged this.
fn charged(gpus_milli: i64, vram_bytes: i64) -> Permit {
    let mut permit = permit("a", gpus_milli);
    for charge in &mut permit.charge.claims {
        charge.vram_bytes = vram_bytes;
    }
    permit
}

/// Each device has 80 bytes of memory.
fn cases() -> Vec<Case> {
    use Reason::{ChargeExceeded, NoPermit};
    let withdrawn = Permit {
        withdrawn: true,
        ..permit("a", 1_000)
    };
    let of_pod = |pod: &str| Permit {
        pod_uid: pod.to_owned(),
        ..permit("a", 1_000)
    };
    let names_another_claim = Permit {
        claim_uids: vec!["b".to_owned()],
        ..permit("a", 1_000)
    };
    let charges_another_claim = Permit {
        charge: permit("b", 1_000).charge,
        ..permit("a", 0)
    };
    let without_charge = Permit {
        charge: Charge::default(),
        ..permit("a", 0)
    };
    let both = ["gpu-0", "gpu-1"];
    vec![
        given("its permit", &[permit("a", 1_000)]),
        // Whose permit.
        given("none", &[]).but_refused(NoPermit),
        given("a withdrawn one", std::slice::from_ref(&withdrawn)).but_refused(NoPermit),
        given("one of another pod", &[of_pod("pod-b")]).but_refused(NoPermit),
        given("one of another claim", &[permit("b", 1_000)]).but_refused(NoPermit),
        given(
            "one that is charged for the claim and names another",
            &[names_another_claim],
        )
        .but_refused(NoPermit),
        given("a claim reserved for nobody", &[permit("a", 1_000)])
            .reserved_for(&[])
            .but_refused(NoPermit),
        given("a claim that an admitted pod shares", &[permit("a", 1_000)])
            .reserved_for(&["pod-b", "pod-a"]),
        given(
            "the claim's by one permit and the pod's by another",
            &[of_pod("pod-b"), permit("b", 1_000)],
        )
        .but_refused(NoPermit),
        // How many.
        given("less than a GPU", &[permit("a", 999)]).but_refused(ChargeExceeded),
        given("one GPU for two", &[permit("a", 1_000)])
            .allocated(&both)
            .but_refused(ChargeExceeded),
        given("two GPUs for two", &[charged(2_000, 160)]).allocated(&both),
        given("more than is taken", &[charged(2_000, 160)]),
        given("no charge", std::slice::from_ref(&without_charge)).but_refused(ChargeExceeded),
        given("a charge for another claim", &[charges_another_claim]).but_refused(ChargeExceeded),
        given(
            "a charge that stands with another pod of the claim",
            &[of_pod("pod-b"), without_charge.clone()],
        ),
        given(
            "a charge that was withdrawn with another pod of the claim",
            &[withdrawn, without_charge.clone()],
        )
        .but_refused(ChargeExceeded),
        given(
            "two charges that only together would do",
            &[permit("a", 1_000), of_pod("pod-b")],
        )
        .allocated(&both)
        .but_refused(ChargeExceeded),
        given("a negative charge", &[permit("a", -1_000)]).but_refused(ChargeExceeded),
        // How much memory.
        given("its memory", &[charged(1_000, 80)]),
        given("less memory", &[charged(1_000, 79)]).but_refused(ChargeExceeded),
        given("a negative memory", &[charged(1_000, -1)]).but_refused(ChargeExceeded),
        given("memory that is not counted", &[charged(1_000, 0)]),
        given("memory that is not counted for two", &[charged(1_000, 0)])
            .allocated(&both)
            .but_refused(ChargeExceeded),
        given(
            "the GPUs of one charge and the memory of another",
            &[charged(1_000, 160), charged(2_000, 80)],
        )
        .allocated(&both)
        .but_refused(ChargeExceeded),
        // A device for administration takes nothing, and needs leave all the same.
        given("administration", &[without_charge]).for_administration(),
        given("administration without leave", &[])
            .for_administration()
            .but_refused(NoPermit),
    ]
}

#[test]
fn a_permit_counts_only_for_its_pod_its_claim_and_as_far_as_its_charge() {
    for case in cases() {
        let what = case.what;
        let mut node = Node::new(Some(node_devices("u", 1, case.permits)));
        let call = node.prepare(case.claim);
        node.pass(36 * SECOND);
        match (node.answered(call), case.refused) {
            (Some(Answer::Prepared(_)), None) => {}
            (Some(Answer::Refused(refusal)), Some(_)) if refusal.reason == case.refused => {
                assert_eq!(node.state("a"), None, "{what}");
            }
            (answer, expected) => panic!("{what}: {answer:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn a_charge_that_is_exceeded_is_told_in_numbers() {
    for (given, told) in [
        (
            charged(1_000, 0),
            "2000 thousandths of a GPU, and its permit is charged 1000;",
        ),
        (
            charged(2_000, 100),
            "160 bytes of device memory of 100 charged",
        ),
    ] {
        let mut node = Node::new(Some(node_devices("u", 1, vec![given])));
        let call = node.prepare(claim("a", &["gpu-0", "gpu-1"]));
        node.pass(36 * SECOND);
        let refusal = node.refused(call);
        assert!(refusal.message.contains(told), "{refusal}");
    }
}

#[test]
fn a_permit_withdrawn_during_the_wait_is_not_used() {
    let both = vec![permit("a", 1_000), permit("b", 1_000)];
    let mut node = Node::new(Some(node_devices("u", 1, both)));
    node.prepare(claim("b", &["gpu-0"]));
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.write_api(node_devices("u", 2, vec![permit("b", 1_000)]), true);
    node.unprepare("b");
    node.pass(36 * SECOND);
    assert_eq!(node.refused(call).reason, Some(Reason::NoPermit));
}

#[test]
fn enforcement_outlives_the_object_that_set_it() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![])));
    node.api = None;
    node.tell(Input::Observed(None));
    node.restart("two");
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.pass(36 * SECOND);
    assert_eq!(node.refused(call).reason, Some(Reason::NoPermit));
}

#[test]
fn a_node_may_be_told_to_enforce_before_it_is_told_by_an_object() {
    let mut node = Node::unstarted(None);
    node.boot(Config {
        enforce_unless_told: true,
        ..config("one")
    });
    let call = node.prepare(claim("a", &["gpu-0"]));
    node.pass(36 * SECOND);
    assert_eq!(node.refused(call).reason, Some(Reason::NoPermit));
}

/// What the claim that kube-scheduler makes for `pod-a` is permitted as.
const BY_NAME: &str = "pod-a/deviceclass.resource.kubernetes.io/gpu.muster.dev";

fn permit_by_name(withdrawn: bool) -> Permit {
    Permit {
        pod_uid: "pod-a".to_owned(),
        withdrawn,
        ..permit(BY_NAME, 1_000)
    }
}

/// A claim that says that kube-scheduler made it for `pod-a`.
fn made_by_scheduler(uid: &str, devices: &[&str]) -> Claim {
    Claim {
        by_name: Some(BY_NAME.to_owned()),
        pods: vec!["pod-a".to_owned()],
        ..claim(uid, devices)
    }
}

#[test]
fn a_claim_that_kube_scheduler_made_is_prepared_by_its_pods_permit_once_and_listed_by_that_name() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit_by_name(false)])));
    let call = node.prepare(made_by_scheduler("a", &["gpu-0"]));
    assert_eq!(node.prepared(call).len(), 1);
    assert!(node.held_by_status().is_empty(), "it is permitted");

    let second = node.prepare(made_by_scheduler("b", &["gpu-1"]));
    node.pass(36 * SECOND);
    let refusal = node.refused(second);
    assert_eq!(refusal.reason, Some(Reason::NoPermit));
    assert!(refusal.message.contains("for one of them"), "{refusal}");

    node.write_api(node_devices("u", 2, vec![permit_by_name(true)]), true);
    node.pass(SECOND);
    assert_eq!(node.held_by_status(), [BY_NAME]);
}

#[test]
fn a_claim_that_says_so_is_prepared_for_no_other_pod_and_not_beyond_the_charge() {
    let of_other = Claim {
        pods: vec!["pod-b".to_owned()],
        ..made_by_scheduler("a", &["gpu-0"])
    };
    let too_much = made_by_scheduler("a", &["gpu-0", "gpu-1"]);
    for (claim, reason) in [
        (of_other, Reason::NoPermit),
        (too_much, Reason::ChargeExceeded),
    ] {
        let mut node = Node::new(Some(node_devices("u", 1, vec![permit_by_name(false)])));
        let call = node.prepare(claim);
        node.pass(36 * SECOND);
        assert_eq!(node.refused(call).reason, Some(reason));
    }
}

#[test]
fn parameters_that_cannot_be_used_are_refused_with_what_is_wrong() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("a", 1_000)])));
    let call = node.prepare(Claim {
        invalid_config: Some("parameters.sharing: is no field".to_owned()),
        ..claim("a", &["gpu-0"])
    });
    node.pass(36 * SECOND);
    assert!(node.refused(call).message.contains("is no field"));
    assert_eq!(node.state("a"), None);
}
