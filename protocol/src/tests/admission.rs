use muster_api::{GangPhase, Reason, conditions};

use super::*;
use crate::{
    Mode,
    objects::is_gated,
    outward::queue_status::{CHANGED_PER_SECOND, PUBLISHED_EVERY_SECONDS},
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The outward order of an admission, by what is written.
fn order(written: &[ApiRequest]) -> Vec<&'static str> {
    let mut order: Vec<&str> = written
        .iter()
        .filter_map(|write| match write {
            ApiRequest::ReplaceLedger { spec, .. } if spec.intents.is_empty() => Some("drop"),
            ApiRequest::ReplaceLedger { .. } => Some("commit"),
            ApiRequest::ReplaceGangStatus { status, .. } if status.admission.is_some() => {
                Some("gang")
            }
            ApiRequest::ReplaceNodeDevices { .. } => Some("permits"),
            ApiRequest::PatchPod { .. } => Some("pod"),
            _ => None,
        })
        .collect();
    order.dedup();
    order
}

#[test]
fn an_admission_goes_from_the_ledger_outwards_and_leaves_it_last() {
    let mut bench = Bench::new();
    bench.run();
    bench.written.clear();
    bench.gang("train", 2);
    bench.run();
    assert_eq!(
        order(&bench.written),
        ["commit", "gang", "permits", "pod", "drop"]
    );
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Admitted, 1));
    let admission = status.admission.unwrap();
    assert_eq!(
        admission.charge.claims[0].uids,
        ["claim-of-train-0", "claim-of-train-1"]
    );
    for (rank, name) in ["train-0", "train-1"].into_iter().enumerate() {
        let pod = bench.server.pod(name).unwrap();
        let annotations = pod.metadata.annotations.unwrap();
        assert_eq!(annotations[keys::RANK], rank.to_string());
        assert_eq!(annotations[keys::PLACEMENT], keys::PLACEMENT_PINNED);
        let spec = pod.spec.unwrap();
        assert!(spec.scheduling_gates.unwrap().is_empty());
        assert!(spec.affinity.unwrap().node_affinity.is_some());
    }
}

#[test]
fn a_gang_with_a_missing_pod_waits_and_says_so() {
    let mut bench = Bench::new();
    bench.run();
    bench.written.clear();
    bench.pod("train", 0, 2, keys::DEVICE_CLASS_GPU);
    bench.run();
    let status = bench.gang_status();
    assert_eq!(status.phase, GangPhase::Assembling);
    assert_eq!(status.queue.unwrap().reason, Reason::MissingPods);
    assert!(
        order(&bench.written).is_empty(),
        "nothing is committed or freed"
    );
}

#[test]
fn a_gang_over_quota_waits_with_its_place_in_the_queue() {
    let mut bench = Bench::new();
    bench.gang("large", 4);
    bench.run();
    bench.gang("small", 1);
    bench.run();
    let waiting: Vec<_> = bench
        .server
        .list(Kind::Gang)
        .into_iter()
        .filter_map(|object| match object {
            Object::Gang(gang) => gang.status.clone()?.queue,
            _ => None,
        })
        .collect();
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].reason, Reason::WaitingForQuota);
    let queue = bench.queue();
    let pending = &queue.status.as_ref().unwrap().pending;
    assert_eq!((pending.len(), pending[0].position), (1, 1));
}

#[test]
fn nothing_is_ungated_while_that_is_withheld_or_the_window_is_full() {
    let mut bench = Bench::with(Config {
        ungated_unbound_limit: 2,
        ..config()
    });
    bench.machine.withhold_ungating(true);
    bench.gang("train", 4);
    bench.run();
    let gated = |bench: &Bench| {
        (0..4)
            .filter(|rank| {
                let pod = bench.server.pod(&format!("train-{rank}")).unwrap();
                !pod.spec.unwrap().scheduling_gates.unwrap().is_empty()
            })
            .count()
    };
    assert_eq!(gated(&bench), 4);
    bench.machine.withhold_ungating(false);
    bench.run();
    assert_eq!(
        gated(&bench),
        2,
        "two wait for the scheduler, that is the limit"
    );
    bench.change_pod("train-0", |pod| {
        pod.spec.as_mut().unwrap().node_name = Some("n0".into());
    });
    bench.run();
    assert_eq!(gated(&bench), 1, "one was bound, one follows");
}

#[test]
fn a_gang_that_no_commit_can_carry_says_so_and_holds_nobody_up() {
    let mut bench = Bench::with(Config {
        ledger_bytes: 640,
        ..config()
    });
    bench.gang("large", 4);
    bench.run();
    assert_eq!(
        bench.gang_status().queue.unwrap().reason,
        Reason::GangTooLarge
    );
    bench.gang("small", 1);
    bench.run();
    let gate = bench
        .server
        .pod("small-0")
        .unwrap()
        .spec
        .unwrap()
        .scheduling_gates;
    assert!(gate.unwrap().is_empty());
}

#[test]
fn a_pod_whose_claim_is_no_longer_understood_still_takes_its_cpu() {
    let cores = |pod: &mut Pod| {
        let spec = pod.spec.as_mut().unwrap();
        spec.containers[0].resources.as_mut().unwrap().requests =
            Some(std::iter::once(("cpu".to_owned(), Quantity("60".to_owned()))).collect());
    };
    let mut bench = Bench::new();
    bench.gang("large", 2);
    bench.change_pod("large-0", cores);
    bench.change_pod("large-1", cores);
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
    for claim in ["large-0", "large-1"] {
        bench.server.remove(&ObjectKey {
            kind: Kind::ResourceClaim,
            ..pod_key(claim)
        });
    }
    bench.gang("next", 1);
    bench.change_pod("next-0", cores);
    bench.run();
    assert!(
        is_gated(&bench.server.pod("next-0").unwrap()),
        "no node has 60 cores left"
    );
}

#[test]
fn pods_on_excepted_devices_are_freed_at_once_and_never_charged() {
    let mut bench = Bench::new();
    bench.pod("launcher", 0, 1, "nic.example.com");
    bench.change_pod("launcher-0", |pod| pod.metadata.labels = None);
    bench.run();
    let pod = bench.server.pod("launcher-0").unwrap();
    assert_eq!(
        pod.metadata.annotations.unwrap()[keys::PLACEMENT],
        keys::PLACEMENT_ANY
    );
    assert!(bench.server.list(Kind::Gang).is_empty());
}

#[test]
fn a_declared_gang_on_excepted_devices_starts_together_without_permits() {
    let mut bench = Bench::new();
    bench.pod("fetch", 0, 2, "nic.example.com");
    bench.pod("fetch", 1, 2, "nic.example.com");
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Admitted, 1));
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
    assert!(!bench.has_permits("n0"));
}

#[test]
fn in_observe_a_pod_that_is_surplus_is_freed_like_the_others() {
    let mut bench = Bench::with(Config {
        mode: Mode::Observe,
        ..config()
    });
    bench.gang("train", 1);
    bench.pod("train", 1, 1, keys::DEVICE_CLASS_GPU);
    bench.run();
    for name in ["train-0", "train-1"] {
        let spec = bench.server.pod(name).unwrap().spec.unwrap();
        assert!(
            spec.scheduling_gates.is_none_or(|gates| gates.is_empty()),
            "{name}"
        );
    }
}

#[test]
fn in_observe_everything_is_freed_and_drivers_enforce_nothing() {
    let mut bench = Bench::with(Config {
        mode: Mode::Observe,
        ..config()
    });
    bench.gang("train", 1);
    bench.run();
    let pod = bench.server.pod("train-0").unwrap();
    assert_eq!(
        pod.metadata.annotations.unwrap()[keys::PLACEMENT],
        keys::PLACEMENT_ANY
    );
    assert!(!bench.server.node_devices("n0").unwrap().spec.enforce);
}

#[test]
fn a_gang_whose_ranks_all_run_is_running() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    for name in ["train-0", "train-1"] {
        bench.change_pod(name, |pod| {
            pod.status.as_mut().unwrap().phase = Some("Running".into());
        });
        bench.run();
    }
    let status = bench.gang_status();
    assert_eq!(status.phase, GangPhase::Running);
    let running = status
        .conditions
        .iter()
        .find(|it| it.type_ == conditions::RUNNING)
        .unwrap();
    assert_eq!(
        (running.status.as_str(), running.message.as_str()),
        ("True", "2 of 2 pods run or succeeded")
    );
}

#[test]
fn each_namespace_of_a_team_has_a_queue_with_limits_and_use() {
    let mut bench = Bench::new();
    bench.gang("train", 3);
    bench.run();
    bench.seconds += 1;
    bench.run();
    let queue = bench.queue();
    assert_eq!(queue.metadata.name.as_deref(), Some("vision"));
    let status = queue.status.clone().unwrap();
    let limit = &status.limits[0];
    assert_eq!(
        (
            limit.nominal.0.as_str(),
            limit.used.0.as_str(),
            limit.available.0.as_str()
        ),
        ("4", "3", "1")
    );
    assert_eq!(status.admitted_gangs, 1);
}

#[test]
fn a_team_shows_its_quota_and_its_use_and_a_user_may_edit_it_meanwhile() {
    let mut bench = Bench::new();
    let status = |bench: &Bench| match bench.server.list(Kind::Team).pop() {
        Some(Object::Team(team)) => team.status.clone().unwrap_or_default(),
        _ => panic!("a Team"),
    };
    for object in node_with_gpus("n2", 2) {
        bench.server.put(object);
    }
    bench.gang("train", 3);
    bench.run();
    bench.gang("later", 2);
    bench.run();
    let limit = |status: &muster_api::TeamStatus| {
        let gpus = status.limits.iter().find(|limit| limit.resource == "gpus");
        let gpus = gpus.unwrap();
        (gpus.nominal.0.clone(), gpus.used.0.clone())
    };
    let shown = status(&bench);
    assert_eq!(limit(&shown), ("4".to_owned(), "3".to_owned()));
    assert_eq!((shown.admitted_gangs, shown.pending_gangs), (1, 1));
    // An edit of the spec, whose writer knows of no status.
    bench.server.put(team("vision", 5));
    bench.run();
    let shown = status(&bench);
    assert_eq!(limit(&shown), ("5".to_owned(), "5".to_owned()));
    assert_eq!((shown.admitted_gangs, shown.pending_gangs), (2, 0));
}

#[test]
fn a_team_whose_tree_shares_fairly_shows_its_weighted_share_and_so_do_its_queues() {
    let mut bench = Bench::new();
    let shares = |bench: &Bench| {
        let Some(Object::Team(team)) = bench.server.list(Kind::Team).pop() else {
            panic!("a Team")
        };
        let queue = bench.queue();
        let share = queue.status.clone().unwrap_or_default().weighted_share;
        (
            team.status.clone().unwrap_or_default().weighted_share,
            share,
        )
    };
    let cohort = |sharing: &str| {
        Object::Cohort(parse(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Cohort", "metadata": {"name": "all"},
            "spec": {"sharing": sharing, "quota": [{"flavor": "gpu", "resources": [{"name": "gpus", "nominal": 2}]}]},
        })))
    };
    bench.tier_that_borrows();
    bench.server.put(cohort("Classical"));
    bench.server.put(Object::Team(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "vision"},
        "spec": {"cohort": "all", "fairShareWeight": "500m",
            "quota": [{"flavor": "gpu", "resources": [{"name": "gpus", "nominal": 2}]}]},
    }))));
    bench.gang("train", 3);
    bench.run();
    assert_eq!(shares(&bench), (None, None));
    // One of four that could be lent is borrowed, at half the weight.
    bench.server.put(cohort("Fair"));
    bench.run();
    assert_eq!(shares(&bench), (Some(500), Some(500)));
}

#[test]
fn a_gang_that_nobody_may_preempt_borrows_nothing_until_its_tier_is_another_one() {
    let mut bench = Bench::new();
    for name in ["vision", "speech"] {
        bench.server.put(Object::Team(parse(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": name},
            "spec": {"cohort": "all",
                "quota": [{"flavor": "gpu", "resources": [{"name": "gpus", "nominal": 2}]}]},
        }))));
    }
    bench.gang("train", 3);
    bench.run();
    bench.seconds += 2;
    bench.run();
    let wait = bench.gang_status().queue.expect("it waits");
    assert_eq!(wait.reason, Reason::ExceedsMaxQuota);
    let why = "the Team has no more than 2 of its own, and a gang that nobody may preempt";
    assert!(wait.details.contains(why), "{}", wait.details);
    bench.tier_that_borrows();
    bench.run();
    assert!(bench.gang_status().admission.is_some());
}

#[test]
fn a_quota_that_follows_the_inventory_is_shown_as_it_is_by_now_though_nothing_else_happens() {
    let mut bench = Bench::new();
    bench.server.put(Object::Team(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "vision"},
        "spec": {"quota": [{"flavor": "gpu", "resources": [{"name": "gpus", "auto": true}]}]},
    }))));
    bench.run();
    let nominal = |bench: &Bench| match bench.server.list(Kind::Team).pop() {
        Some(Object::Team(team)) => team.status.clone().unwrap_or_default().limits[0]
            .nominal
            .0
            .clone(),
        _ => panic!("a Team"),
    };
    assert_eq!(nominal(&bench), "4");
    for object in node_with_gpus("n2", 3) {
        bench.server.put(object);
    }
    bench.run();
    assert_eq!(nominal(&bench), "7");
}

#[test]
fn a_gang_shows_the_tier_that_counts_whoever_names_it() {
    let tier = |name: &str, default: bool| {
        Object::PriorityTier(parse(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "PriorityTier",
            "metadata": {"name": name}, "spec": {"value": 100, "default": default},
        })))
    };
    let mut bench = Bench::new();
    bench.server.put(tier("standard", true));
    bench.server.put(tier("critical", false));
    bench.gang("train", 1);
    bench.run();
    assert_eq!(bench.gang_status().tier.as_deref(), Some("standard"));
    let Some(Object::Gang(gang)) = bench.server.list(Kind::Gang).pop() else {
        panic!("a Gang")
    };
    let mut gang = Arc::unwrap_or_clone(gang);
    assert_eq!(gang.spec.tier, None);
    gang.spec.tier = Some("critical".to_owned());
    bench.server.put(Object::Gang(Arc::new(gang)));
    bench.run();
    assert_eq!(bench.gang_status().tier.as_deref(), Some("critical"));
}

#[test]
fn a_queue_is_written_at_most_once_in_three_seconds_and_shows_the_last_state_in_the_end() {
    let mut bench = Bench::new();
    bench.run_at_once();
    bench.seconds += 1;
    bench.written.clear();
    let mut written_at = Vec::new();
    for gang in ["a", "b", "c", "d"] {
        // Every step of each gang changes what the Queue sums up.
        bench.gang(gang, 1);
        written_at.extend(queues_by_second(&mut bench, 2));
    }
    let quiet = usize::try_from(PUBLISHED_EVERY_SECONDS).unwrap();
    written_at.extend(queues_by_second(&mut bench, quiet));
    for window in written_at.windows(quiet) {
        assert!(window.iter().sum::<usize>() <= 1, "{written_at:?}");
    }
    let shown = bench.queue().status.as_ref().unwrap().admitted_gangs;
    assert_eq!(shown, 4, "{written_at:?}");
}

#[test]
fn a_queue_with_a_long_line_is_written_more_rarely_and_shows_the_last_state_in_the_end() {
    let mut bench = Bench::new();
    bench.checks_polls = false;
    bench.server.put(team("vision", 0));
    let waiting = 40;
    for number in 0..waiting {
        bench.gang(&format!("wait-{number:02}"), 1);
    }
    bench.run();
    bench.seconds += 10;
    bench.run();
    // Each second somebody joins the line.
    let seconds = 12;
    let mut written = 0;
    for number in 0..seconds {
        bench.gang(&format!("more-{number:02}"), 1);
        written += queues_by_second(&mut bench, 1)[0];
    }
    // A line of 40 to 52 is shown each fifth second.
    assert!((1..=3).contains(&written), "{written} in {seconds} s");
    bench.run();
    bench.seconds += 10;
    bench.run();
    let queue = bench.queue();
    let status = queue.status.as_ref().unwrap();
    assert_eq!(status.pending.len(), waiting + seconds);
    let pending = usize::try_from(status.pending_gangs).unwrap();
    assert_eq!(pending, waiting + seconds);
}

/// Writes of Queues in each of so many seconds.
fn queues_by_second(bench: &mut Bench, seconds: usize) -> Vec<usize> {
    let mut by_second = Vec::new();
    for _ in 0..seconds {
        bench.written.clear();
        bench.run_at_once();
        let is_queue = |write: &&ApiRequest| matches!(write, ApiRequest::PublishQueue { .. });
        by_second.push(bench.written.iter().filter(is_queue).count());
        bench.seconds += 1;
    }
    by_second
}

#[test]
fn what_one_team_takes_of_all_is_shown_to_the_others_some_each_second() {
    let others = 3 * CHANGED_PER_SECOND;
    let mut bench = Bench::new();
    // A look at everything looks at every Team.
    bench.checks_polls = false;
    bench.server.put(Object::Cohort(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Cohort", "metadata": {"name": "all"}, "spec": {},
    }))));
    let names = (0..others).map(|number| format!("team-{number:02}"));
    for name in names.chain(["vision".to_owned()]) {
        bench.server.put(Object::Team(parse(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": name},
            "spec": {"cohort": "all", "quota": [
                {"flavor": "gpu", "resources": [{"name": "gpus", "nominal": 1}]},
            ]},
        }))));
        if name != "vision" {
            bench.server.put(Object::Namespace(parse(json!({
                "metadata": {"name": name, "labels": {keys::TEAM: name}},
            }))));
        }
    }
    bench.tier_that_borrows();
    let shown = queues_by_second(&mut bench, 8);
    assert_eq!(shown.last(), Some(&0), "at rest: {shown:?}");
    bench.gang("train", 2);
    let shown = queues_by_second(&mut bench, 10);
    // That of the Team itself comes besides.
    let most = shown.iter().max();
    assert!(most <= Some(&(CHANGED_PER_SECOND + 1)), "{shown:?}");
    assert_eq!(shown.last(), Some(&0), "at rest: {shown:?}");
    for queue in bench.server.list(Kind::Queue) {
        let Object::Queue(queue) = queue else {
            panic!("{queue:?}")
        };
        let available = &queue.status.as_ref().unwrap().limits[0].available;
        assert_eq!(available.0, (others - 1).to_string(), "{queue:?}");
    }
}

#[test]
fn a_change_of_reason_is_told_once_to_the_gang_and_its_pods() {
    let mut bench = Bench::new();
    bench.run();
    bench.written.clear();
    bench.pod("train", 0, 2, keys::DEVICE_CLASS_GPU);
    bench.run();
    bench.run();
    let told: Vec<(&str, Reason)> = bench
        .written
        .iter()
        .filter_map(|write| match write {
            ApiRequest::PublishEvent(note) => Some((note.kind.as_str(), note.reason)),
            _ => None,
        })
        .collect();
    assert_eq!(
        told,
        [("Gang", Reason::MissingPods), ("Pod", Reason::MissingPods)]
    );
}
