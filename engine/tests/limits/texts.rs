//! One sample of each text: short, plain, with the numbers and with what would work.

use std::collections::BTreeSet;

use muster_engine::{
    Amount, FlavorResource, Holder, NodeBlock, NodeRepair, Order, Remedies, Remedy, RemedyEvent,
    Resource, ResourceCharge, Timestamp, Why,
    decision::{Blocker, CommitRoom, HeadReservation},
};

fn of() -> FlavorResource {
    FlavorResource {
        flavor: "h100".into(),
        resource: Resource::Gpus,
    }
}

fn by(gangs: &[&str], more: usize) -> Blocker {
    Blocker {
        gangs: gangs.iter().map(|gang| (*gang).to_owned()).collect(),
        more,
        is_partial: false,
    }
}

fn quota(asked: i64, available: i64, borrowable: i64, may_borrow: bool) -> Why {
    Why::Quota {
        of: of(),
        asked: Amount(asked),
        available: Amount(available),
        borrowable: Amount(borrowable),
        may_borrow,
        blocker: by(&["ml/big"], 2),
    }
}

fn most(may_borrow: bool) -> Why {
    Why::ExceedsMaxQuota {
        of: of(),
        asked: Amount(16_000),
        most: Amount(8_000),
        may_borrow,
    }
}

fn room(pods: usize, nodes: usize) -> CommitRoom {
    CommitRoom {
        gangs: 1,
        pods,
        claims: pods,
        nodes,
    }
}

#[test]
fn every_reason_says_what_lacks_and_what_would_work() {
    let excluded = || {
        vec![
            ("devices in use or tainted".to_owned(), 6),
            ("cordoned".to_owned(), 2),
        ]
    };
    let kept = HeadReservation {
        gang: "kept".into(),
        gang_name: "ml/kept".to_owned(),
        flavor: "h100".into(),
        domain: vec!["spine-1".to_owned()],
        nodes: BTreeSet::from(["n1".into(), "n2".into()]),
        since: Timestamp(0),
        starts_at: Some(Timestamp(900)),
        gpus: Amount(16_000),
        idle_gpu_seconds: 7_200_000,
        most_idle_gpu_seconds: Some(9_600_000),
    };
    for (why, text) in [
        (
            Why::NextCommit,
            "is about to be looked at, with the next commit",
        ),
        (
            Why::TeamStopped,
            "the Team is stopped; nothing is admitted until it is resumed",
        ),
        (
            Why::CohortCycle {
                cohort: "ring".into(),
            },
            "the Cohorts above the Team form a cycle through ring; nothing below it is admitted until one of them has another \
             parent",
        ),
        (
            Why::BehindHead {
                head: "ml/first".to_owned(),
                flavor: Some("h100".into()),
            },
            "waits for h100 behind ml/first, which does not fit yet; the Team is StrictFifo",
        ),
        (
            quota(16_000, 8_000, 4_000, true),
            "asks for 16 GPUs of h100, 8 can be had now (4 of them borrowed); used by ml/big and 2 more",
        ),
        (
            quota(16_000, 8_000, 4_000, false),
            "asks for 16 GPUs of h100, 4 can be had now; 4 more could be borrowed, but a gang that nobody may preempt (its \
             PriorityTier says preemption: Never, or it has none) borrows nothing; used by ml/big and 2 more",
        ),
        (
            most(true),
            "asks for 16 GPUs of h100, but the Team can never have more than 8, borrowing included; ask for less, or have the \
             Team's quota raised",
        ),
        (
            most(false),
            "asks for 16 GPUs of h100, but the Team has no more than 8 of its own, and a gang that nobody may preempt (its \
             PriorityTier says preemption: Never, or it has none) borrows nothing; ask for less, use another tier, or have the \
             Team's quota raised",
        ),
        (
            Why::NoQuotaForResource {
                resource: Resource::Gpus,
                flavors: vec!["t4".into(), "a100".into()],
            },
            "the Team has no quota for gpus; none of its Flavors names it (t4, a100)",
        ),
        (
            Why::Placement {
                pods: 4,
                fit: 3,
                is_fit_partial: false,
                gave_up: false,
                level: Some("leaf".into()),
                nodes: 8,
                excluded: excluded(),
                blocker: by(&["ml/a", "ml/b"], 0),
            },
            "quota is there, but there is a place for only 3 of 4 pods in one domain of level leaf; of 8 nodes left out: devices \
             in use or tainted: 6, cordoned: 2; used by ml/a, ml/b",
        ),
        (
            Why::PlacementImpossible {
                pods: 4,
                fit: 0,
                is_fit_partial: false,
                level: None,
                nodes: 8,
                excluded: vec![("too few devices that match".to_owned(), 8)],
            },
            "even on the empty cluster there is no place for any of 4 pods; of 8 nodes left out: too few devices that match: 8",
        ),
        (
            Why::Release {
                pods: 2,
                blocker: by(&["ml/old"], 0),
                behind: Some("ml/first".to_owned()),
            },
            "waits until the devices of 2 pods are proved released; held by ml/old; ml/first goes first",
        ),
        (
            Why::Preemption {
                victims: by(&["ml/low"], 0),
            },
            "ml/low gives way to it; it is admitted once their devices are proved released",
        ),
        (
            Why::PlaceKept {
                reservation: kept,
                now: Timestamp(600),
            },
            "2 nodes of h100 in spine-1, where it fits soonest, are kept for it for 10 minutes now; who runs there ends within 5 \
             minutes; 2 GPU hours stood idle for that, of 2.666 GPU hours at most",
        ),
        (
            Why::HeldOff {
                behind: "ml/kept".to_owned(),
                seconds: Some(900),
            },
            "its place is kept for ml/kept, which waits for long; with a max-runtime-seconds of at most 900 it would be let in \
             until then",
        ),
        (
            Why::ClaimShared {
                claim: "c-1".into(),
                holder: "ml/a".to_owned(),
            },
            "its ResourceClaim with UID c-1 is held by ml/a",
        ),
        (
            Why::TooLarge {
                needs: room(5_000, 700),
                most: room(4_096, 512),
            },
            "one commit carries at most 4096 pods, 4096 claims, 512 nodes, the gang needs 5000 pods, 5000 claims, 700 nodes; split \
             it",
        ),
        (
            Why::Overflow,
            "a number that it asks for or is judged by is too large to be counted",
        ),
    ] {
        assert_eq!(why.to_string(), text);
    }
}

fn told(events: impl IntoIterator<Item = (RemedyEvent, Order)>) -> String {
    let each = events.into_iter();
    let each = each.map(|(event, order)| Remedy { event, order });
    let remedies = Remedies {
        each: each.collect(),
        gave_up: false,
    };
    remedies.to_string()
}

fn holder(name: &str) -> Holder {
    Holder {
        gang: name.into(),
        name: format!("ml/{name}"),
        team: "research".into(),
        holds: Some(ResourceCharge {
            of: of(),
            amount: Amount(8_000),
        }),
    }
}

fn repair(node: &str, block: Option<NodeBlock>, devices: &[&str]) -> NodeRepair {
    NodeRepair {
        node: node.into(),
        block,
        devices: devices.iter().map(|device| (*device).into()).collect(),
    }
}

#[test]
fn every_remedy_names_what_has_to_happen() {
    let raised = RemedyEvent::QuotaRaised(vec![ResourceCharge {
        of: of(),
        amount: Amount(3_000),
    }]);
    let ends = RemedyEvent::GangsEnd(vec![holder("a"), holder("b")]);
    let cordoned = repair("n2", Some(NodeBlock::Cordoned), &[]);
    assert_eq!(
        told([
            (ends, Order::After("ml/first".to_owned())),
            (raised, Order::Open),
            (RemedyEvent::Repaired(vec![cordoned]), Order::Itself),
        ]),
        "as things are, it is admitted once ml/a of Team research (8 GPUs of h100) and ml/b of Team research (8 GPUs of h100) \
         end (after ml/first, which goes first), or once the Team's nominal quota is raised by 3 GPUs of h100 (unless others go \
         first), or once node n2, which is cordoned, is schedulable"
    );
    for (nodes, text) in [
        (
            vec![repair("n1", None, &["gpu.muster.dev/n1/gpu-4"])],
            "1 device of node n1 is healthy (gpu-4)",
        ),
        (
            vec![repair("n1", None, &["x/a", "x/b", "x/c", "x/d"])],
            "4 devices of node n1 are healthy (a, b, c, …)",
        ),
        (
            vec![
                repair("n1", Some(NodeBlock::NotReady), &["x/a"]),
                repair("n2", Some(NodeBlock::Lost), &[]),
            ],
            "node n1, which is not Ready, is schedulable and 1 of its devices is healthy (a) and node n2, which is lost, is \
             schedulable",
        ),
        (
            ["n1", "n2", "n3", "n4", "n5"]
                .map(|node| repair(node, None, &["x/a"]))
                .into(),
            "1 device of node n1 is healthy (a), 1 device of node n2 is healthy (a), 1 device of node n3 is healthy (a) and 2 more \
             nodes are all right",
        ),
    ] {
        let text = format!("as things are, it is admitted once {text}");
        assert_eq!(told([(RemedyEvent::Repaired(nodes), Order::Itself)]), text);
    }
}
