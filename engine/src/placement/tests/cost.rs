//! What questions cost: looks at nodes and domains are asserted, times are printed
//! (`cargo test -p muster-engine --lib placement::tests::cost -- --nocapture`).

use std::time::Instant;

use crate::{
    model::{Gang, MOST_AVOIDED_NODES},
    names::NodeName,
    placement::{
        Cluster, Effort, Request, Verdict, View, explain, fits, fixtures::*, plan, plan_since,
        search::MOST_TIES,
    },
};

const LEAF: usize = 32;
const LEAVES_PER_SPINE: usize = 20;

fn name(at: usize) -> String {
    format!("n{at:05}")
}

/// Nodes of eight GPUs under leaves of 32 nodes and spines of 20 leaves; nine of ten are full, of every twentieth
/// half is taken.
fn nine_tenths_full(nodes: usize) -> Cluster {
    let mut cluster = cluster((0..nodes).map(|at| {
        let leaf = at / LEAF;
        let path = format!(
            "s{:02}/l{:02}",
            leaf / LEAVES_PER_SPINE,
            leaf % LEAVES_PER_SPINE
        );
        let mut node = node_at(&name(at), &path, 8);
        for device in &mut node.devices {
            device.nvlink_group = Some("switch".into());
        }
        node
    }));
    for at in 0..nodes {
        let taken: &[usize] = match at % 20 {
            0 => &[],
            1 => &[0, 1, 2, 3],
            _ => &[0, 1, 2, 3, 4, 5, 6, 7],
        };
        if !taken.is_empty() {
            add(&mut cluster, hold(&format!("h{at}"), &name(at), taken));
        }
    }
    cluster
}

/// Looks and microseconds of the fastest of several runs.
fn measured(cluster: &Cluster, runs: usize, mut ask: impl FnMut()) -> (u64, u128) {
    let mut best = (u64::MAX, u128::MAX);
    for _ in 0..runs {
        let (visited, start) = (cluster.visited(), Instant::now());
        ask();
        let took = start.elapsed().as_micros();
        best = (best.0.min(cluster.visited() - visited), best.1.min(took));
    }
    best
}

fn report(what: &str, nodes: usize, (visited, micros): (u64, u128)) -> u64 {
    println!("{nodes:6} nodes  {what:44} {visited:7} looks {micros:7} us");
    visited
}

fn placed(cluster: &Cluster, gang: &Gang) {
    assert!(matches!(now(cluster, gang), Said::Placed(..)));
}

/// Looks at nodes for what happens all the time, on clusters of both sizes.
fn looks(nodes: usize) -> Vec<(&'static str, u64)> {
    let mut cluster = nine_tenths_full(nodes);
    let mut seen = Vec::new();
    let gangs = [
        ("1 x 1, known shape", equal_pods(1, 1)),
        ("1 x 8, known shape", equal_pods(1, 8)),
        ("8 x 1, known shape", equal_pods(8, 1)),
        ("2 x 8, known shape", equal_pods(2, 8)),
    ];
    for (what, gang) in &gangs {
        let new = measured(&cluster, 1, || placed(&cluster, gang));
        report("  (new shape)", nodes, new);
        let known = measured(&cluster, 20, || placed(&cluster, gang));
        seen.push((*what, report(what, nodes, known)));
    }
    // What is avoided costs nothing but a look at each: the nodes that come first, which it would get.
    let gang = &gangs[1].1;
    let avoided: Vec<NodeName> = (0..MOST_AVOIDED_NODES)
        .map(|at| name(at * 20).as_str().into())
        .collect();
    let view = cluster
        .without_nodes(avoided.iter())
        .expect("they are there");
    let elsewhere = measured(&cluster, 20, || {
        assert!(matches!(judged(&cluster, &view, gang), Verdict::Placed(_)));
    });
    seen.push((
        "avoiding",
        report("1 x 8, avoiding 8 nodes", nodes, elsewhere),
    ));
    // A gang that finds no node with eight GPUs and then one that came free.
    let full: Vec<usize> = (0..nodes).filter(|at| at % 20 == 0).collect();
    for at in &full {
        add(&mut cluster, hold(&format!("x{at}"), &name(*at), &[0]));
    }
    let gang = &gangs[1].1;
    let no_place = measured(&cluster, 20, || {
        assert_eq!(now(&cluster, gang), Said::NoPlace);
    });
    seen.push(("no place", report("1 x 8: no place", nodes, no_place)));
    let Verdict::NoPlace(refusal) = judged(&cluster, &View::Now, gang) else {
        panic!("no node is free");
    };
    let before = cluster.visited();
    let start = Instant::now();
    let freed = hold(&format!("h{}", nodes / 2 + 2), &name(nodes / 2 + 2), &[]);
    cluster.remove_hold(&freed);
    let again = asking(gang, |request| {
        plan_since(&cluster, request, refusal, &mut Effort::default())
    });
    let took = (cluster.visited() - before, start.elapsed().as_micros());
    assert!(matches!(again, Verdict::Placed(_)));
    seen.push((
        "freed",
        report("a hold ends, 1 x 8 fits again", nodes, took),
    ));
    seen
}

#[test]
fn looks_do_not_grow_with_the_cluster() {
    let (small, large) = (looks(1_000), looks(10_000));
    for ((what, small), (_, large)) in small.into_iter().zip(large) {
        // As many equally tight domains as are compared at a time may not occur in the small cluster.
        assert!(
            large <= 2 * small.max(2 * MOST_TIES as u64),
            "{what}: {small} looks, then {large}"
        );
    }
}

#[test]
fn large_gangs_and_refusals_at_ten_thousand_nodes() {
    let nodes = 10_000;
    let cluster = nine_tenths_full(nodes);
    let gangs = [
        ("512 x 1", equal_pods(512, 1), true),
        ("64 x 8", equal_pods(64, 8), true),
        ("128 x 8", equal_pods(128, 8), true),
        ("1,024 x 1", equal_pods(1024, 1), true),
        ("2,000 x 8: no place now", equal_pods(2000, 8), false),
        (
            "128 x 8 in one leaf: no place ever",
            requiring("leaf", equal_pods(128, 8)),
            false,
        ),
    ];
    for (what, gang, has_place) in &gangs {
        let ask = || match now(&cluster, gang) {
            Said::Placed(..) => assert!(has_place, "{what}"),
            Said::NoPlace => assert!(!has_place, "{what}"),
            Said::GaveUp => panic!("{what}"),
        };
        report(what, nodes, measured(&cluster, 5, ask));
        if !has_place {
            let ever = measured(&cluster, 5, || {
                asking(gang, |request| {
                    fits(&cluster, &View::Empty, request, &mut Effort::default())
                });
            });
            report("  would it ever fit", nodes, ever);
            let told = measured(&cluster, 2, || {
                asking(gang, |request| {
                    explain(&cluster, &View::Now, request, &mut Effort::default())
                });
            });
            report("  explained", nodes, told);
        }
    }
}

/// Memory is nowhere left: each node with free GPUs is looked at once, for all gangs that ask for too much.
#[test]
fn what_lacks_on_all_nodes_with_devices_is_found_out_once() {
    let mut cluster = nine_tenths_full(10_000);
    for at in (0..10_000).filter(|at| at % 20 < 2) {
        let mut hold = hold(&format!("m{at}"), &name(at), &[]);
        hold.resources.memory_bytes = 500 << 30;
        add(&mut cluster, hold);
    }
    let mut gang = equal_pods(4, 1);
    for pod in &mut gang.pods {
        pod.resources.memory_bytes = 64 << 30;
    }
    let ask = |gang: &Gang| {
        let asked = measured(&cluster, 1, || {
            assert_eq!(now(&cluster, gang), Said::NoPlace);
        });
        report("4 x 1 without memory", 10_000, asked)
    };
    let first = ask(&gang);
    assert!((1_000..15_000).contains(&first), "{first}");
    for pod in &mut gang.pods {
        pod.resources.memory_bytes = 65 << 30;
    }
    let second = ask(&gang);
    assert!(second < 20, "{second}");
}

/// Every node has free GPUs and memory of its own left; of a gang that asks for more than most have, it is told why.
fn looks_to_explain(nodes: usize) -> u64 {
    let mut cluster = nine_tenths_full(nodes);
    for at in 0..nodes {
        let mut hold = hold(&format!("h{at}"), &name(at), &[at % 8]);
        let own = i64::try_from(at * 7919 % nodes * 4096).unwrap();
        hold.resources.memory_bytes = (900 << 30) - own;
        add(&mut cluster, hold);
    }
    let mut most = 0;
    for round in 0..20 {
        let mut gang = equal_pods(4, 4);
        for pod in &mut gang.pods {
            pod.resources.memory_bytes = (200 << 30) + round * 4096;
        }
        let told = measured(&cluster, 1, || {
            let unfit = asking(&gang, |request| {
                explain(&cluster, &View::Now, request, &mut Effort::default())
            });
            assert_eq!((unfit.fit, unfit.nodes), (0, nodes));
            assert_eq!(unfit.excluded, [("too little memory".to_owned(), nodes)]);
        });
        report("4 x 4 without memory, explained", nodes, told);
        if round > 0 {
            most = most.max(told.0);
        }
    }
    most
}

#[test]
fn an_explanation_does_not_cost_the_nodes() {
    let (small, large) = (looks_to_explain(1_000), looks_to_explain(10_000));
    assert!(large <= 2 * small, "{small} looks, then {large}");
}

#[test]
fn of_equal_nodes_without_a_topology_the_first_is_taken_and_the_others_are_not_looked_at() {
    let mut cluster = cluster((0..1_000).map(|at| node(&name(at), 0)));
    cluster.remove_topology(&fabric());
    let gang = equal_pods(1, 0);
    let plan_now = |cluster: &Cluster| {
        asking(&gang, |request| {
            let request = Request {
                topology: None,
                ..*request
            };
            plan(cluster, &View::Now, &request, &mut Effort::default())
        })
    };
    // The first question reads the nodes.
    plan_now(&cluster);
    let before = cluster.visited();
    let verdict = plan_now(&cluster);
    assert_eq!(
        said(&cluster, &gang, &verdict),
        Said::Placed(vec![name(0)], vec![name(0)])
    );
    let looks = cluster.visited() - before;
    assert!(looks < 16, "{looks} looks for one of 1,000 equal nodes");
}
