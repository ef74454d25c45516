//! Work follows change: what one event costs does not depend on how much there is.

use muster_cluster::formed::GangKey;

use super::{server::Server, *};

/// So many nodes of two GPUs, one gang of two that runs, and so many gangs of one that wait for quota.
fn cluster(size: usize) -> Bench {
    let mut bench = Bench::new();
    bench.checks_polls = false;
    bench.server.put(team("vision", 2));
    for number in 2..size {
        for object in node_with_gpus(&format!("n{number}"), 2) {
            bench.server.put(object);
        }
    }
    bench.gang("head", 2);
    bench.run();
    for number in 0..size {
        bench.gang(&format!("wait-{number}"), 1);
    }
    bench.run();
    bench
}

/// How many gangs and nodes one change makes the machine look at.
fn visits(bench: &mut Bench, change: impl FnOnce(&mut Bench)) -> u64 {
    change(bench);
    bench.observe();
    let before = bench.machine.visited();
    let now = bench.now();
    bench.machine.poll(now);
    bench.machine.visited() - before
}

/// The visits of some events, each by itself.
fn of_events(size: usize) -> Vec<(&'static str, u64)> {
    let mut bench = cluster(size);
    let mut seen = vec![("nothing", visits(&mut bench, |_| {}))];
    let annotate = |bench: &mut Bench| {
        bench.change_pod("wait-7-0", |pod| {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert("muster.dev/seen".to_owned(), "yes".to_owned());
        });
    };
    seen.push(("a waiting pod changes", visits(&mut bench, annotate)));
    let bind = |bench: &mut Bench| {
        bench.change_pod("head-0", |pod| {
            pod.spec.as_mut().unwrap().node_name = Some("n0".to_owned());
        });
    };
    seen.push(("a pod is bound", visits(&mut bench, bind)));
    let heartbeat = |bench: &mut Bench| {
        let nodes = bench.server.list(Kind::Node);
        bench.server.put(nodes[5].clone());
    };
    seen.push(("a kubelet reports", visits(&mut bench, heartbeat)));
    let cordon = |bench: &mut Bench| {
        let mut node = bench.server.list(Kind::Node).swap_remove(5);
        if let Object::Node(node) = &mut node {
            let node = Arc::make_mut(node);
            node.spec.get_or_insert_default().unschedulable = Some(true);
        }
        bench.server.put(node);
    };
    seen.push(("a node is cordoned", visits(&mut bench, cordon)));
    let arrive = |bench: &mut Bench| bench.gang("late", 1);
    seen.push(("a gang arrives", visits(&mut bench, arrive)));
    let end = |bench: &mut Bench| {
        bench.ends("head-0");
    };
    seen.push(("a pod ends", visits(&mut bench, end)));
    seen
}

#[test]
fn one_event_visits_no_more_among_2000_gangs_and_nodes_than_among_100() {
    let small = of_events(100);
    let large = of_events(2_000);
    assert_eq!(small, large);
    assert_eq!(small[0], ("nothing", 0));
    let most = small.iter().map(|(_, visits)| *visits).max().unwrap();
    assert!((1..=8).contains(&most), "{small:?}");
}

#[test]
fn a_pod_that_starts_with_its_permit_visits_its_gang_and_not_its_node() {
    let mut bench = cluster(100);
    assert!(bench.has_permits("n0"));
    let bind = |bench: &mut Bench| {
        bench.change_pod("head-0", |pod| {
            pod.spec.as_mut().unwrap().node_name = Some("n0".to_owned());
        });
    };
    assert_eq!(visits(&mut bench, bind), 1, "it is bound");
    let report = |kind: &'static str| {
        move |bench: &mut Bench| {
            bench.change_pod("head-0", |pod| {
                let condition = json!({"type": kind, "status": "True"});
                let condition = serde_json::from_value(condition).unwrap();
                pod.status.as_mut().unwrap().conditions = Some(vec![condition]);
            });
        }
    };
    for kind in ["PodScheduled", "PodReadyToStartContainers", "Initialized"] {
        assert_eq!(visits(&mut bench, report(kind)), 1, "{kind}");
    }
    let phase = |phase: &'static str| {
        move |bench: &mut Bench| {
            bench.change_pod("head-0", |pod| {
                pod.status.as_mut().unwrap().phase = Some(phase.to_owned());
            });
        }
    };
    assert_eq!(visits(&mut bench, phase("Running")), 1, "it runs");
    assert_eq!(visits(&mut bench, phase("Succeeded")), 2, "its permit goes");
    bench.checks_polls = true;
    bench.run();
}

#[test]
fn what_others_write_to_a_pod_and_nobody_reads_here_visits_nobody() {
    let mut bench = cluster(100);
    let annotate = |bench: &mut Bench| {
        bench.change_pod("wait-7-0", |pod| {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert("example.com/seen".to_owned(), "yes".to_owned());
        });
    };
    assert_eq!(visits(&mut bench, annotate), 0);
    let without_finalizer = |bench: &mut Bench| {
        bench.change_pod("head-0", |pod| {
            pod.metadata.finalizers = Some(vec!["batch.kubernetes.io/job-tracking".to_owned()]);
        });
    };
    assert_eq!(visits(&mut bench, without_finalizer), 0);
    // Both pods go on as if it had not been written.
    bench.checks_polls = true;
    for pod in ["head-0", "head-1"] {
        bench.ends(pod);
    }
    bench.run();
    assert_eq!(admitted(&bench), 2, "the next ones have what became free");
}

#[test]
fn what_a_jobs_controller_counts_visits_nobody_and_what_says_how_its_gang_goes_on_visits_that() {
    let mut bench = Bench::new();
    bench.server.put(ranks::job(2, 0));
    ranks::pod_of_job(&mut bench, 0);
    ranks::pod_of_job(&mut bench, 1);
    bench.run();
    let counts = |active: i32| {
        move |bench: &mut Bench| {
            evictions::change_job(bench, |job| {
                job.status.as_mut().unwrap().active = Some(active);
            });
        }
    };
    assert_eq!(visits(&mut bench, counts(1)), 0);
    assert_eq!(visits(&mut bench, counts(2)), 0);
    let resize = |bench: &mut Bench| {
        evictions::change_job(bench, |job| {
            job.spec.as_mut().unwrap().parallelism = Some(1);
        });
    };
    assert!(visits(&mut bench, resize) > 0);
}

/// Each kind listed once more, as one change and as the controller reports it.
fn relists(server: &Server) -> Vec<Change> {
    let of_kind = |kind| {
        let objects = server.list(kind);
        let keys = objects.iter().map(Object::key).collect();
        let one_by_one = objects.clone().into_iter().map(Change::Applied);
        let whole = Change::Listed(kind, objects);
        let parts = one_by_one.chain([Change::ListedKeys(kind, keys), whole]);
        parts.collect::<Vec<_>>()
    };
    Kind::ALL.into_iter().flat_map(of_kind).collect()
}

#[test]
fn a_list_in_which_nothing_is_new_visits_nothing_among_2000_waiting_gangs() {
    let mut bench = cluster(2_000);
    let relist = |bench: &mut Bench| {
        for change in relists(&bench.server) {
            bench.machine.observe(change);
        }
    };
    assert_eq!(visits(&mut bench, relist), 0);
}

#[test]
fn a_list_visits_what_changed_and_what_is_gone_since_the_last_one() {
    let mut bench = cluster(100);
    let changed = |bench: &mut Bench| {
        bench.change_pod("wait-7-0", |pod| {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert("muster.dev/seen".to_owned(), "yes".to_owned());
        });
        bench.server.remove(&pod_key("wait-8-0"));
        // The watch was interrupted: only the list says so.
        bench.server.news();
        for change in relists(&bench.server) {
            bench.machine.observe(change);
        }
    };
    let visited = visits(&mut bench, changed);
    assert!((2..=6).contains(&visited), "{visited}");
    bench.checks_polls = true;
    bench.run();
    let gone = GangKey::new("ml", "wait-8");
    assert!(bench.machine.index().formed_gang(&gone).is_none());
}

#[test]
fn an_edited_device_class_visits_the_gangs_that_ask_for_it() {
    let mut bench = cluster(100);
    bench.pod("nic", 0, 1, "nic.example.com");
    bench.run();
    let edit = |class: &'static str| {
        move |bench: &mut Bench| {
            bench.server.put(Object::DeviceClass(parse(json!({
                "metadata": {"name": class},
                "spec": {"selectors": [{"cel": {"expression": "device.driver == 'nobody'"}}]},
            }))));
        }
    };
    let of_one = visits(&mut bench, edit("nic.example.com"));
    assert!((1..=4).contains(&of_one), "{of_one}");
    let of_none = visits(&mut bench, edit("unused.example.com"));
    assert_eq!(of_none, 0);
}

#[test]
fn an_edited_flavor_visits_no_node_also_if_its_devices_are_another_drivers_now() {
    let mut bench = cluster(100);
    let edit = |driver: &'static str, label: &'static str| {
        move |bench: &mut Bench| {
            bench.server.put(Object::Flavor(parse(json!({
                "apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": "gpu"},
                "spec": {"devices": {"driver": driver}, "nodeSelector": {"zone": label}},
            }))));
        }
    };
    visits(&mut bench, edit(keys::DRIVER, "a"));
    bench.run();
    let relabelled = visits(&mut bench, edit(keys::DRIVER, "b"));
    assert_eq!(relabelled, 0);
    let foreign = visits(&mut bench, edit("other.example.com", "b"));
    assert_eq!(foreign, 0);
}

/// How many gangs are admitted.
fn admitted(bench: &Bench) -> usize {
    let gangs = bench.server.list(Kind::Gang).into_iter();
    let admitted = gangs.filter(|gang| match gang {
        Object::Gang(gang) => gang
            .status
            .as_ref()
            .is_some_and(|it| it.admission.is_some()),
        _ => false,
    });
    admitted.count()
}

/// How many looks it takes from the end of a gang's pods, over the release of their devices and the admission of the next
/// gangs, until nothing is left to do, so many gangs waiting.
fn looks_of_an_end(size: usize) -> u64 {
    let mut bench = cluster(size);
    // The first gang runs, and all others have been told why they wait.
    bench.seconds += 60;
    bench.run();
    let before = bench.machine.visited();
    for pod in ["head-0", "head-1"] {
        bench.ends(pod);
    }
    bench.run();
    assert_eq!(admitted(&bench), 2, "the next ones have what became free");
    bench.machine.visited() - before
}

#[test]
fn the_end_of_a_gang_visits_no_more_among_2000_waiting_gangs_than_among_100() {
    let (small, large) = (looks_of_an_end(100), looks_of_an_end(2_000));
    assert_eq!(small, large);
    assert!(small <= 60, "{small}");
}

/// How many looks at gangs and nodes it takes until a gang of one pod runs, and until what it held is free again, the other
/// gangs on its node being so many.
fn looks_of_a_life(neighbours: usize) -> (u64, u64) {
    let mut bench = Bench::new();
    bench.checks_polls = false;
    bench.server.put(team("vision", neighbours + 1));
    for object in node_with_gpus("n0", neighbours + 1) {
        bench.server.put(object);
    }
    for number in 0..neighbours {
        bench.gang(&format!("neighbour-{number}"), 1);
    }
    bench.run();
    let begun = bench.machine.visited();
    bench.gang("train", 1);
    bench.run();
    let mut change = |change: &dyn Fn(&mut Pod)| {
        bench.change_pod("train-0", change);
        bench.run();
        bench.machine.visited() - begun
    };
    change(&|pod| pod.spec.as_mut().unwrap().node_name = Some("n0".to_owned()));
    let phase = |phase: &'static str| {
        move |pod: &mut Pod| pod.status.as_mut().unwrap().phase = Some(phase.to_owned())
    };
    let started = change(&phase("Running"));
    let ended = change(&phase("Succeeded"));
    let permits = bench.server.node_devices("n0").unwrap().spec.permits;
    let names_it = |permit: &muster_api::Permit| permit.gang.contains("train");
    assert!(!permits.iter().any(names_it), "{permits:?}");
    (started, ended)
}

#[test]
fn the_life_of_a_gang_of_one_pod_takes_a_bounded_number_of_looks_whoever_else_is_on_its_node() {
    for neighbours in [0, 7, 40] {
        let (started, ended) = looks_of_a_life(neighbours);
        assert!(
            started <= 15 && ended <= 25,
            "{started} looks until it runs, {ended} until it is gone, beside {neighbours} others"
        );
    }
}

#[test]
fn the_slow_look_at_everything_comes_every_ten_minutes_in_slices() {
    let mut bench = cluster(300);
    bench.run();
    let all = 301 + 300;
    let before = bench.machine.visited();
    let now = bench.now();
    bench.machine.poll(now);
    assert_eq!(bench.machine.visited(), before, "nothing is due");
    bench.seconds += 700;
    let mut slices = Vec::new();
    for _ in 0..10 {
        slices.push(visits(&mut bench, |_| {}));
        bench.seconds += 1;
    }
    let visited: u64 = slices.iter().sum();
    assert!(visited >= all, "{slices:?}");
    // Beside a slice, what has become due in all that time.
    assert!(
        slices.iter().all(|slice| *slice <= 256 + 64 + 64),
        "{slices:?}"
    );
    assert_eq!(slices.last(), Some(&0), "{slices:?}");
}
