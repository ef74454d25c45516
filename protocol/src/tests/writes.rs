//! How many writes the whole life of a gang takes.

use muster_api::Reason;

use super::*;
use crate::in_flight::SHOWN_WITHIN_SECONDS;

/// What the life of a gang wrote.
struct Life {
    /// The writes, without Events and what Queues and Teams show.
    writes: Vec<String>,
    /// Writes of its Queue, and of its Team.
    shown: [usize; 2],
    /// The number of its nodes.
    nodes: usize,
}

/// A gang of `pods` pods, `per_node` on a node, from creation to the deletion of its Gang.
fn life(config: Config, pods: usize, per_node: usize) -> Life {
    let mut bench = Bench::with(config);
    bench.checks_polls = false;
    bench.server.put(team("vision", pods));
    for number in 0..pods.div_ceil(per_node) {
        for object in node_with_gpus(&format!("n{number}"), per_node) {
            bench.server.put(object);
        }
    }
    bench.run();
    // Before the first commit to a Ledger every Gang is fenced, which is a write more for those that exist then.
    let mut ledger = bench.server.ledger().unwrap();
    ledger.spec.sequence = 1;
    bench.server.put(Object::Ledger(Arc::new(ledger)));
    bench.written.clear();
    bench.gang("train", pods);
    bench.run();
    let nodes: BTreeMap<String, String> = (0..pods)
        .map(|rank| {
            let name = format!("train-{rank}");
            let pod = serde_json::to_value(bench.server.pod(&name).unwrap()).unwrap();
            let terms = &pod["spec"]["affinity"]["nodeAffinity"]
                ["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
            let node = terms[0]["matchFields"][0]["values"][0].as_str().unwrap();
            (name, node.to_owned())
        })
        .collect();
    // kube-scheduler binds, the kubelets start, one after the other.
    for (name, node) in &nodes {
        bench.change_pod(name, |pod| {
            pod.spec.as_mut().unwrap().node_name = Some(node.clone());
        });
        bench.run_at_once();
    }
    for name in nodes.keys() {
        bench.change_pod(name, |pod| {
            pod.status.as_mut().unwrap().phase = Some("Running".to_owned());
        });
        bench.run();
    }
    // They end in the same second, one after the other.
    for name in nodes.keys() {
        bench.ends(name);
        bench.run_at_once();
    }
    bench.run();
    bench.seconds += 3_600;
    bench.run();
    assert!(bench.server.list(Kind::Gang).is_empty(), "its life is over");
    let counted = bench.written.iter().filter(|write| {
        !matches!(
            write,
            ApiRequest::PublishEvent(_)
                | ApiRequest::PublishQueue { .. }
                | ApiRequest::PublishTeam { .. }
                | ApiRequest::ReadObject { .. }
        )
    });
    let used: std::collections::BTreeSet<&String> = nodes.values().collect();
    let counted = counted.map(|write| {
        let text = format!("{write:?}");
        text.split(['{', '(']).next().unwrap().trim().to_owned()
    });
    let of = |shows: fn(&ApiRequest) -> bool| {
        let shown = bench.written.iter().filter(|write| shows(write));
        shown.count()
    };
    Life {
        shown: [
            of(|write| matches!(write, ApiRequest::PublishQueue { .. })),
            of(|write| matches!(write, ApiRequest::PublishTeam { .. })),
        ],
        writes: counted.collect(),
        nodes: used.len(),
    }
}

#[test]
fn the_whole_life_of_a_gang_takes_at_most_n_plus_3m_plus_8_writes() {
    for (pods, per_node) in [(1, 1), (2, 2), (4, 2), (16, 8), (9, 1)] {
        for (whole_intent_bytes, besides) in [(config().whole_intent_bytes, 7), (0, 8)] {
            let config = Config {
                whole_intent_bytes,
                ..config()
            };
            let Life {
                writes,
                shown,
                nodes,
            } = life(config, pods, per_node);
            let most = pods + 3 * nodes + besides;
            assert!(
                writes.len() <= most,
                "{writes:?} for {pods} pods on {nodes} nodes, at most {most}"
            );
            // Once each when it waits, is admitted, ends, and for each second in which some of what it held was released:
            // here that is one.
            assert!(
                shown.iter().all(|shown| *shown <= 4),
                "{shown:?} writes of its Queue and its Team for {pods} pods"
            );
        }
    }
}

#[test]
fn each_reason_that_a_gang_waits_for_takes_one_write_more() {
    let mut bench = Bench::new();
    bench.gang("head", 4);
    bench.run();
    bench.written.clear();
    bench.gang("train", 1);
    for _ in 0..20 {
        bench.run();
        bench.seconds += 10;
    }
    let told = bench.written.iter().filter(|write| match write {
        ApiRequest::ReplaceGangStatus { status, .. } => status.queue.is_some(),
        _ => false,
    });
    assert_eq!(told.count(), 1);
}

#[test]
fn that_a_gang_waits_is_told_to_its_pods_too_and_that_it_no_longer_does_to_itself_and_that_it_ends_to_nobody()
 {
    let mut bench = Bench::new();
    bench.run();
    bench.gang("head", 4);
    bench.run();
    bench.gang("train", 1);
    bench.run();
    for rank in 0..4 {
        bench.change_pod(&format!("head-{rank}"), |pod| {
            pod.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
        });
    }
    bench.run();
    let pod = serde_json::to_value(bench.server.pod("train-0").unwrap()).unwrap();
    let terms = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"];
    let node = terms[0]["matchFields"][0]["values"][0].as_str().unwrap();
    for phase in ["Running", "Succeeded"] {
        bench.change_pod("train-0", |pod| {
            pod.spec.as_mut().unwrap().node_name = Some(node.to_owned());
            pod.status.as_mut().unwrap().phase = Some(phase.to_owned());
        });
        bench.run();
    }
    for (gang, reason, expected) in [
        ("train", Reason::WaitingForQuota, &["Gang", "Pod"][..]),
        // Its pods are scheduled, and told so, next. It has no owner.
        ("train", Reason::Admitted, &["Gang"]),
        ("train", Reason::Running, &[]),
        ("train", Reason::Completed, &[]),
        // It never waited.
        ("head", Reason::Admitted, &["Gang"]),
        ("head", Reason::Completed, &[]),
    ] {
        let told = bench.written.iter().filter_map(|write| match write {
            ApiRequest::PublishEvent(note) if note.name.contains(gang) => Some(note),
            _ => None,
        });
        let told: Vec<_> = told.map(|note| (note.reason, note.kind.as_str())).collect();
        let of_it = told.iter().filter(|(it, _)| *it == reason);
        let of_it: Vec<&str> = of_it.map(|(_, kind)| *kind).collect();
        assert_eq!(of_it, expected, "{reason} of {gang}: {told:?}");
    }
}

/// A Gang says nothing between two attempts, and is admitted in the second before it says what that one waits for.
#[test]
fn what_the_pods_of_a_gang_were_told_is_taken_back_there_though_it_is_admitted_in_its_next_attempt()
{
    let mut bench = Bench::new();
    bench.server.put(team("vision", 1));
    bench.run();
    bench.gang("train", 2);
    bench.run();
    let told = |bench: &Bench| -> Vec<(Reason, String)> {
        let notes = bench.written.iter().filter_map(|write| match write {
            ApiRequest::PublishEvent(note) => Some((note.reason, note.kind.clone())),
            _ => None,
        });
        notes.collect()
    };
    let waits_for = bench.gang_status().queue.unwrap().reason;
    let is_waiting = |told: &(Reason, String)| *told == (waits_for, "Pod".to_owned());
    assert!(told(&bench).iter().any(is_waiting), "{:?}", told(&bench));
    bench.written.clear();
    // A predecessor had come so far with it: the next attempt is the third.
    bench.change_pod("train-0", |pod| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::ATTEMPT.to_owned(), "3".to_owned());
    });
    bench.server.put(team("vision", 2));
    bench.run();
    assert_eq!(bench.gang_status().attempt, 3);
    let told = told(&bench);
    let admitted = told.iter().filter(|(it, _)| *it == Reason::Admitted);
    let kinds: Vec<&str> = admitted.map(|(_, kind)| kind.as_str()).collect();
    assert_eq!(kinds, ["Gang", "Pod", "Pod"], "{told:?}");
}

/// Whoever drives the machine need not poll it for such an answer: of a gang's writes that is nearly every one.
#[test]
fn after_an_answer_that_is_no_news_a_poll_finds_nothing() {
    let mut bench = Bench::new();
    bench.run();
    bench.gang("train", 2);
    let (mut answers, mut no_news) = (0, 0);
    for _ in 0..20 {
        bench.acknowledge(&[]);
        let mut is_news = false;
        for effect in bench.poll() {
            // What was written is seen with the next look only.
            let outcome = bench.server.perform(&effect.write);
            is_news |= bench.machine.settle(effect.id, outcome);
            answers += 1;
            if !is_news {
                no_news += 1;
                let found = bench.machine.poll(bench.now());
                assert!(found.is_empty(), "after {:?}: {found:?}", effect.write);
            }
        }
        bench.seconds += 1;
    }
    assert!(bench.gang_status().admission.is_some());
    assert!(2 * no_news > answers, "{no_news} of {answers}");
}

/// The name of a Gang of a group comes from the pod that counts as the oldest. Pods are created within a second, and seen one after the other.
#[test]
fn a_group_has_one_gang_though_a_pod_that_counts_as_older_comes_while_it_is_made() {
    let is_creation = |effect: &&Effect| matches!(*effect.write, ApiRequest::CreateGang { .. });
    for is_refused in [false, true] {
        let mut bench = Bench::new();
        bench.run();
        bench.pod("train", 1, 2, keys::DEVICE_CLASS_GPU);
        let first = bench.poll();
        let made = first.iter().find(is_creation).expect("a Gang is made");
        bench.pod("train", 0, 2, keys::DEVICE_CLASS_GPU);
        bench.change_pod("train-0", |pod| {
            let earlier = "2026-12-31T00:00:00Z".parse().unwrap();
            pod.metadata.creation_timestamp = Some(
                k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(earlier),
            );
        });
        let second = bench.poll();
        let another = second.iter().find(is_creation);
        assert!(another.is_none(), "{another:?} beside {made:?}");
        for effect in first.iter().chain(&second) {
            if is_refused && effect.id == made.id {
                let refused = Outcome::Refused("not now".to_owned());
                bench.machine.settle(effect.id, refused);
            } else {
                bench.perform(effect);
            }
        }
        bench.run();
        // A refusal is believed for a while.
        bench.seconds += 60;
        bench.run();
        assert!(bench.gang_status().admission.is_some(), "{is_refused}");
    }
}

/// A defect once: it was looked at a second later.
#[test]
fn a_group_whose_gang_went_before_anybody_saw_it_has_another_as_soon_as_that_is_known() {
    let is_creation = |effect: &&Effect| matches!(*effect.write, ApiRequest::CreateGang { .. });
    let mut bench = Bench::new();
    bench.run();
    bench.pod("train", 0, 1, keys::DEVICE_CLASS_GPU);
    let first = bench.poll();
    let made = first.iter().find(is_creation).expect("a Gang is made");
    let made = made.write.target().expect("it has a name");
    for effect in &first {
        bench.perform(effect);
    }
    // Another pod takes the place of the one that gave the Gang its name.
    bench.server.remove(&made);
    bench.server.remove(&pod_key("train-0"));
    bench.pod("train", 0, 1, keys::DEVICE_CLASS_GPU);
    let second = bench.poll();
    let another = second.iter().find(is_creation);
    assert!(another.is_none(), "{another:?} beside {made:?}");
    for effect in &second {
        bench.perform(effect);
    }
    bench.seconds += SHOWN_WITHIN_SECONDS;
    let asked = bench.poll();
    let asks =
        |effect: &Effect| matches!(&*effect.write, ApiRequest::ReadObject { key } if *key == made);
    assert!(asked.iter().any(asks), "{asked:?}");
    for effect in &asked {
        bench.perform(effect);
    }
    let third = bench.poll();
    let another = third.iter().find(is_creation);
    let another = another.and_then(|effect| effect.write.target());
    assert!(another.is_some_and(|key| key != made), "{third:?}");
    for effect in &third {
        bench.perform(effect);
    }
    bench.run();
    assert!(bench.gang_status().admission.is_some());
}
