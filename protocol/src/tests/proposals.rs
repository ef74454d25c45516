//! Admissions that are too large for the Ledger: proposed to their Gang, named by digest.

use muster_api::{Gang, GangPhase, GangStatus, Intent, Reason};

use super::*;
use crate::{
    admission::record::bytes,
    objects::{is_gated, stamp},
};

/// A machine that proposes every admission.
fn proposing() -> Bench {
    Bench::with(Config {
        whole_intent_bytes: 0,
        ..config()
    })
}

impl Bench {
    /// A new machine with the same limits takes over; the old one is dead.
    fn take_over_proposing(&mut self) {
        let config = Config {
            whole_intent_bytes: 0,
            ..config()
        };
        self.machine = Machine::new(config);
        self.written.clear();
    }

    /// Runs until such a write was performed, and is not seen yet.
    fn run_through(&mut self, is_last: impl Fn(&ApiRequest) -> bool) {
        for _ in 0..100 {
            self.acknowledge(&[]);
            let effects = self.poll();
            for effect in &effects {
                self.perform(effect);
            }
            if effects.iter().any(|effect| is_last(&effect.write)) {
                return;
            }
            self.seconds += u64::from(effects.is_empty());
        }
        panic!("no such write");
    }

    /// The next such effect, which is not performed, nor anything after it.
    pub(super) fn withheld(&mut self, is_meant: impl Fn(&ApiRequest) -> bool) -> Effect {
        for _ in 0..100 {
            self.acknowledge(&[]);
            let effects = self.poll();
            for effect in &effects {
                if is_meant(&effect.write) {
                    return effect.clone();
                }
                self.perform(effect);
            }
            self.seconds += u64::from(effects.is_empty());
        }
        panic!("no such write");
    }

    fn gang_of(&self, pod: &str) -> Option<Arc<Gang>> {
        let label = pod.split('-').next().unwrap();
        self.server.list(Kind::Gang).into_iter().find_map(|it| {
            let Object::Gang(gang) = it else { return None };
            let labels = gang.metadata.labels.as_ref()?;
            (labels.get(keys::GANG)? == label).then_some(gang)
        })
    }

    fn change_gang(&mut self, pod: &str, change: impl FnOnce(&mut GangStatus)) {
        let mut gang = Gang::clone(&self.gang_of(pod).unwrap());
        change(gang.status.as_mut().unwrap());
        self.server.put(Object::Gang(Arc::new(gang)));
    }

    fn delete_gang_of(&mut self, pod: &str) {
        let gang = self.gang_of(pod).unwrap();
        self.server.remove(&Object::Gang(gang).key());
    }

    fn intents(&self) -> Vec<Intent> {
        self.server.ledger().unwrap().spec.intents
    }
}

fn proposes(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReplaceGangStatus { status, tells: false, .. } if status.proposal.is_some() && status.admission.is_none())
}

/// Not the raise of a new leader, which leaves the intents as they are.
fn commits(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReplaceLedger { spec, .. } if spec.intents.iter().any(|it| it.leader_epoch == spec.leader_epoch))
}

fn carries(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReplaceGangStatus { status, .. } if status.admission.is_some())
}

fn is_ungate(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::PatchPod { patch, .. } if patch.to_string().contains("\"remove\""))
}

/// What is written, one word for each run of equal writes.
fn order(written: &[ApiRequest]) -> Vec<&'static str> {
    let words = written.iter().filter_map(|write| match write {
        write if proposes(write) => Some("proposal"),
        write if carries(write) => Some("admission"),
        ApiRequest::ReplaceLedger { spec, .. } if spec.intents.is_empty() => Some("drop"),
        write if commits(write) => Some("commit"),
        ApiRequest::ReplaceNodeDevices { spec, .. } if spec.permits.is_empty() => Some("fence"),
        ApiRequest::ReplaceNodeDevices { .. } => Some("permits"),
        ApiRequest::PatchPod { .. } if is_ungate(write) => Some("pod"),
        ApiRequest::PatchPod { .. } => Some("stamp"),
        _ => None,
    });
    let mut order: Vec<&str> = words.collect();
    order.dedup();
    order
}

#[test]
fn a_large_admission_is_proposed_to_its_gang_and_named_by_its_digest() {
    let mut bench = proposing();
    bench.run();
    bench.written.clear();
    bench.gang("train", 3);
    bench.run_through(commits);
    let proposal = bench.gang_status().proposal.unwrap();
    let [intent]: [Intent; 1] = bench.intents().try_into().unwrap();
    assert_eq!(intent.digest.as_ref(), Some(&proposal.digest));
    assert_eq!(intent.nodes, ["n0", "n1"]);
    assert!(intent.pods.is_empty() && intent.charge.claims.is_empty() && intent.plan.is_empty());
    assert_eq!(proposal.admission.pods.len(), 3);
    bench.run();
    assert_eq!(
        order(&bench.written),
        ["proposal", "commit", "admission", "permits", "pod", "drop"]
    );
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Admitted, 1));
    assert_eq!(
        status.proposal, None,
        "what is carried is not proposed any more"
    );
    assert_eq!(status.admission.unwrap().ledger_sequence, intent.sequence);
}

#[test]
fn what_is_proposed_has_no_effect_and_is_committed_if_it_is_decided_again() {
    let mut bench = proposing();
    bench.gang("train", 2);
    assert!(bench.run_until(commits), "proposed, not committed");
    bench.take_over_proposing();
    bench.run_through(commits);
    assert!(!bench.written.iter().any(proposes), "it is the same plan");
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
}

#[test]
fn a_proposal_that_another_plan_follows_is_written_over() {
    let mut bench = proposing();
    bench.gang("train", 2);
    assert!(bench.run_until(commits), "proposed, not committed");
    let before = bench.gang_status().proposal.unwrap();
    let node = before.placement.nodes[0].node.clone();
    bench.server.remove(&ObjectKey {
        kind: Kind::Node,
        namespace: String::new(),
        name: node.clone(),
    });
    bench.take_over_proposing();
    bench.run_through(commits);
    let after = bench.gang_status().proposal.unwrap();
    assert_ne!(after.digest, before.digest);
    assert!(after.placement.nodes.iter().all(|run| run.node != node));
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
}

#[test]
fn an_admission_whose_pod_vanishes_while_it_is_proposed_is_undone() {
    let mut bench = proposing();
    bench.gang("train", 2);
    bench.run_through(proposes);
    bench.server.remove(&pod_key("train-1"));
    bench.run();
    assert!(!bench.written.iter().any(commits));
    bench.gang("other", 4);
    bench.run();
    assert!(
        !is_gated(&bench.server.pod("other-0").unwrap()),
        "all four GPUs are free"
    );
}

#[test]
fn a_successor_voids_what_was_proposed_and_committed_and_not_carried() {
    let mut bench = proposing();
    bench.gang("train", 4);
    assert!(bench.run_until(carries), "committed, not carried");
    bench.take_over_proposing();
    assert!(bench.run_until(carries));
    let status = bench.gang_status();
    assert_eq!(status.attempt, 2);
    for rank in 0..4 {
        let pod = bench.server.pod(&format!("train-{rank}")).unwrap();
        assert_eq!(stamp(&pod), 2);
    }
    assert_eq!(
        order(&bench.written)[..4],
        ["stamp", "proposal", "fence", "drop"],
        "the Gang is raised, and keeps what the Ledger names"
    );
}

#[test]
fn what_an_intent_charges_is_known_to_whoever_follows_until_it_leaves_the_ledger() {
    let is_raise = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceGangStatus { status, .. } if status.attempt == 2);
    let drops = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceLedger { spec, .. } if spec.intents.is_empty());
    for carried in [false, true] {
        let mut bench = proposing();
        bench.gang("train", 2);
        assert!(bench.run_until(if carried { is_ungate } else { carries }));
        bench.server.remove(&pod_key("train-1"));
        bench.take_over_proposing();
        assert!(bench.run_until(drops), "taken back, but in the Ledger");
        assert!(bench.written.iter().any(is_raise));
        bench.take_over_proposing();
        bench.run_through(drops);
        assert!(!bench.machine.plans.is_any_lost(), "carried: {carried}");
        bench.run();
        assert!(bench.intents().is_empty());
    }
}

#[test]
fn nothing_is_admitted_while_nobody_knows_what_an_intent_charges() {
    let mut bench = proposing();
    bench.gang("train", 4);
    // The Gang carries it; the permits are on the network as the old leader dies.
    let late = bench.withheld(|write| matches!(write, ApiRequest::ReplaceNodeDevices { spec, .. } if !spec.permits.is_empty()));
    bench.delete_gang_of("train");
    bench.gang("other", 1);
    bench.take_over_proposing();
    assert!(bench.run_until(commits), "another gang's turn comes");
    let order = order(&bench.written);
    let place = |word: &str| order.iter().position(|it| *it == word);
    assert_eq!(order.first(), Some(&"stamp"), "{order:?}");
    assert!(place("fence") < place("drop"), "{order:?}");
    assert!(place("drop").is_some(), "{order:?}");
    let own = bench.machine.leading_epoch().unwrap();
    for node in ["n0", "n1"] {
        assert_eq!(
            bench.server.node_devices(node).unwrap().spec.leader_epoch,
            own
        );
    }
    let outcome = bench.server.perform(&late.write);
    assert!(matches!(outcome, Outcome::Conflict), "{outcome:?}");
}

#[test]
fn what_was_decided_for_a_gang_that_is_gone_is_given_back_with_its_intent() {
    let mut bench = proposing();
    bench.gang("train", 4);
    bench.run_through(commits);
    bench.delete_gang_of("train");
    for rank in 0..4 {
        bench.server.remove(&pod_key(&format!("train-{rank}")));
    }
    bench.run();
    assert!(bench.intents().is_empty());
    bench.gang("other", 4);
    bench.run();
    assert!(!is_gated(&bench.server.pod("other-0").unwrap()));
}

#[test]
fn the_end_of_a_pod_that_only_a_permit_names_wakes_the_intent_that_waits_for_it() {
    let mut bench = proposing();
    bench.gang("train", 1);
    assert!(bench.run_until(is_ungate), "permitted");
    bench.delete_gang_of("train");
    // It leaves its gang, which nothing forbids while it is gated.
    bench.change_pod("train-0", |pod| pod.metadata.labels = None);
    bench.take_over_proposing();
    let stamps = |write: &ApiRequest| matches!(write, ApiRequest::PatchPod { .. });
    assert!(bench.run_until(stamps), "its pod is to be stamped");
    bench.server.remove(&pod_key("train-0"));
    bench.run();
    assert!(bench.intents().is_empty());
}

#[test]
fn what_was_proposed_for_an_eviction_goes_once_the_ledger_does_not_name_it() {
    let mut bench = proposing();
    bench.gang("train", 2);
    bench.run();
    super::evictions::start(&mut bench, &["train-0", "train-1"]);
    let mut object = team("vision", 4);
    if let Object::Team(team) = &mut object {
        Arc::make_mut(team).spec.stop = muster_api::team::Stop::HoldAndDrain;
    }
    bench.server.put(object);
    let raises = |write: &ApiRequest| match write {
        ApiRequest::ReplaceGangStatus { status, .. } => {
            status.attempt == 2 && status.proposal.is_some()
        }
        _ => false,
    };
    assert!(bench.run_until(raises), "a successor has to know it");
    bench.take_over_proposing();
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Evicting, 2));
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
    assert!(status.proposal.is_none());
}

#[test]
fn a_proposal_with_another_digest_or_of_another_attempt_is_not_what_was_committed() {
    let other_content = |status: &mut GangStatus| {
        let proposal = status.proposal.as_mut().unwrap();
        proposal.admission.pods.pop();
    };
    let other_attempt = |status: &mut GangStatus| status.proposal.as_mut().unwrap().attempt = 7;
    let gone = |status: &mut GangStatus| status.proposal = None;
    let changes: [&dyn Fn(&mut GangStatus); 3] = [&other_content, &other_attempt, &gone];
    for change in changes {
        let mut bench = proposing();
        bench.gang("train", 2);
        assert!(bench.run_until(carries), "committed, not carried");
        bench.change_gang("train", change);
        bench.take_over_proposing();
        let drops = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceLedger { spec, .. } if spec.intents.is_empty());
        bench.run_through(drops);
        assert!(bench.machine.plans.is_any_lost());
        assert!(!bench.written.iter().any(carries));
        for rank in 0..2 {
            let pod = bench.server.pod(&format!("train-{rank}")).unwrap();
            assert_eq!(stamp(&pod), 2, "the gang's pods, since nobody knows which");
        }
        bench.run();
        let status = bench.gang_status();
        assert_eq!((status.phase, status.attempt), (GangPhase::Admitted, 2));
    }
}

/// A gang of `pods` pods with `claims` claims of one GPU each, on nodes of eight GPUs.
fn large(config: Config, pods: usize, claims: usize) -> Bench {
    let mut bench = Bench::with(Config {
        ungated_unbound_limit: pods,
        ..config
    });
    bench.checks_polls = false;
    let gpus = pods * claims;
    bench.server.put(team("vision", gpus));
    for number in 0..gpus.div_ceil(8) {
        for object in node_with_gpus(&format!("ip-10-0-{number}.us-west-2.compute.internal"), 8) {
            bench.server.put(object);
        }
    }
    bench.run();
    for rank in 0..pods {
        bench.pod("train", rank, pods, keys::DEVICE_CLASS_GPU);
        let name = format!("train-{rank}");
        let extra: Vec<String> = (1..claims)
            .map(|number| format!("{name}-{number}"))
            .collect();
        for (number, claim_name) in std::iter::once(&name).chain(&extra).enumerate() {
            let Object::ResourceClaim(claim) = claim(claim_name, keys::DEVICE_CLASS_GPU) else {
                panic!("a claim");
            };
            let mut claim = claim.as_ref().clone();
            claim.metadata.uid = Some(format!("00000000-0000-4000-{number:04}-{rank:012}"));
            bench.server.put(Object::ResourceClaim(Arc::new(claim)));
        }
        bench.change_pod(&name, |pod| {
            // As long as in a real cluster.
            pod.metadata.uid = Some(format!("00000000-0000-4000-8000-{rank:012}"));
            let spec = pod.spec.as_mut().unwrap();
            let names = spec.resource_claims.as_mut().unwrap();
            for claim_name in extra {
                let reference = json!({"name": claim_name, "resourceClaimName": claim_name});
                names.push(serde_json::from_value(reference).unwrap());
            }
        });
    }
    bench
}

/// What etcd takes in one request.
const ETCD_REQUEST_BYTES: usize = 1_572_864;

#[test]
fn a_gang_of_4096_pods_with_a_claim_each_is_admitted_and_goes() {
    let mut bench = large(config(), 4_096, 1);
    bench.written.clear();
    bench.run();
    let status = bench.gang_status();
    assert_eq!(status.phase, GangPhase::Admitted, "{:?}", status.queue);
    assert!((0..4_096).all(|rank| !is_gated(&bench.server.pod(&format!("train-{rank}")).unwrap())));
    assert!(bench.intents().is_empty(), "nothing is owed any more");
    let most = |sizes: &dyn Fn(&ApiRequest) -> Option<usize>| {
        bench.written.iter().filter_map(sizes).max().unwrap()
    };
    let ledger = most(&|write| match write {
        ApiRequest::ReplaceLedger { spec, .. } => Some(bytes(spec)),
        _ => None,
    });
    let gang = most(&|write| match write {
        ApiRequest::ReplaceGangStatus { status, .. } => Some(bytes(status)),
        _ => None,
    });
    println!("Ledger {ledger} bytes, Gang status {gang} bytes");
    assert!(ledger < config().ledger_bytes / 4);
    assert!(gang < ETCD_REQUEST_BYTES / 2);
}

#[test]
fn a_gang_that_can_never_be_carried_says_what_would_fit_and_that_does_fit() {
    let limits = || Config {
        whole_intent_bytes: 4 * 1024,
        proposal_bytes: 64 * 1024,
        ..config()
    };
    let mut bench = large(limits(), 256, 4);
    bench.run();
    let queue = bench.gang_status().queue.unwrap();
    assert_eq!(queue.reason, Reason::GangTooLarge);
    println!("{}", queue.details);
    for number in ["256 pods", "1024 claims", "65536"] {
        assert!(queue.details.contains(number), "{}", queue.details);
    }
    let fit = queue.details.split("about ").nth(1).unwrap();
    let fit: usize = fit.split(' ').next().unwrap().parse().unwrap();
    assert!((64..256).contains(&fit), "{}", queue.details);
    let mut bench = large(limits(), fit, 4);
    bench.run();
    let status = bench.gang_status();
    assert_eq!(status.phase, GangPhase::Admitted, "{:?}", status.queue);
}

#[test]
fn a_plan_whose_nodes_cannot_be_named_in_one_commit_says_how_many_can() {
    let limits = || Config {
        whole_intent_bytes: 512,
        ledger_bytes: 2 * 1024,
        ..config()
    };
    let mut bench = large(limits(), 64 * 8, 1);
    bench.run();
    let queue = bench.gang_status().queue.unwrap();
    assert_eq!(queue.reason, Reason::GangTooLarge);
    println!("{}", queue.details);
    assert!(queue.details.contains("64 nodes"), "{}", queue.details);
    let fit = queue.details.split("about ").nth(1).unwrap();
    let fit: usize = fit.split(' ').next().unwrap().parse().unwrap();
    let mut bench = large(limits(), fit * 8, 1);
    bench.run();
    let status = bench.gang_status();
    assert_eq!(status.phase, GangPhase::Admitted, "{:?}", status.queue);
}

#[test]
fn a_gang_at_the_limit_of_what_it_may_carry_leaves_room_for_all_else_that_it_says() {
    // Server-side apply's bookkeeping names the fields of a status, not what its lists contain: those are atomic.
    let rest = 64 * 1024;
    assert!(config().proposal_bytes + rest < ETCD_REQUEST_BYTES * 4 / 5);
}

#[test]
fn a_proposal_that_is_not_answered_holds_nobody_else_up() {
    let mut bench = Bench::with(Config {
        whole_intent_bytes: 600,
        ..config()
    });
    bench.gang("large", 3);
    assert!(bench.run_until(proposes), "sent, and not answered");
    bench.gang("small", 1);
    bench.run();
    assert!(!is_gated(&bench.server.pod("small-0").unwrap()));
    assert!(is_gated(&bench.server.pod("large-0").unwrap()));
}

/// While its status is being written, a gang is neither proposed nor committed, and its room is kept all the same: what
/// was too little is what was left beside it.
#[test]
fn a_gang_whose_node_vanishes_while_it_waits_for_an_answer_is_decided_again_and_so_is_what_did_not_fit_beside_it()
 {
    let with_room = |ledger_bytes| {
        Bench::with(Config {
            whole_intent_bytes: 0,
            ledger_bytes,
            ..config()
        })
    };
    let mut alone = with_room(config().ledger_bytes);
    alone.gang("first", 2);
    alone.run_through(commits);
    let first_alone = bytes(&alone.server.ledger().unwrap().spec);

    let mut bench = with_room(first_alone + 16);
    bench.server.put(team("vision", 0));
    bench.gang("second", 1);
    bench.change_pod("second-0", |pod| {
        let later = json!("2027-01-01T00:00:10Z");
        pod.metadata.creation_timestamp = serde_json::from_value(later).unwrap();
    });
    bench.run();
    bench.gang("first", 2);
    let tells = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceGangStatus { key, tells: true, .. } if key.name.contains("first"));
    let unanswered = bench.withheld(tells);
    // Capacity for both comes at once.
    bench.server.put(team("vision", 4));
    let perform = |bench: &mut Bench| {
        for effect in bench.poll() {
            bench.perform(&effect);
        }
    };
    perform(&mut bench);
    for name in ["n2", "n3"] {
        for object in node_with_gpus(name, 2) {
            bench.server.put(object);
        }
    }
    for name in ["n0", "n1"] {
        bench.server.remove(&ObjectKey {
            kind: Kind::Node,
            namespace: String::new(),
            name: name.to_owned(),
        });
    }
    perform(&mut bench);
    bench.perform(&unanswered);
    bench.run();
    for pod in ["first-0", "first-1", "second-0"] {
        assert!(!is_gated(&bench.server.pod(pod).unwrap()), "{pod}");
    }
}
