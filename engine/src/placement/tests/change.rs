//! Step by step equals at once: what a cluster answers depends on the facts alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::prelude::*;

use crate::{
    model::{Constraint, Gang, Hold, HostPort, HostPortProtocol, Node, NodeBlock},
    names::{NodeFilterId, NodeName, PodSelectorId, PodUid},
    placement::{
        Cluster, Effort, Fits, Refusal, Verdict, View, fits, fixtures::*, may_fit_since,
        may_fit_without, plan, plan_since,
    },
};

const NODES: usize = 7;

const LICENCE: &str = "example.com/licence";

/// One thing that happens.
#[derive(Clone, Debug)]
enum Event {
    Node {
        at: usize,
        leaf: usize,
        devices: usize,
        cores: i64,
    },
    Tainted {
        at: usize,
        device: usize,
        usable: bool,
    },
    Allocated {
        at: usize,
        device: usize,
        taken: bool,
    },
    Blocked {
        at: usize,
        blocked: bool,
    },
    Labelled {
        at: usize,
        passes: bool,
    },
    Gone {
        at: usize,
    },
    Held {
        pod: usize,
        at: usize,
        device: usize,
        memory: i64,
    },
    Waiting {
        pod: usize,
        at: usize,
        devices: u32,
    },
    WithoutClaims {
        pod: usize,
        at: usize,
        memory: i64,
        besides: Besides,
    },
    Released {
        pod: usize,
    },
    /// Nobody is planned there, or only who is let in; or everybody again.
    Closed {
        at: usize,
        to_all: bool,
        is_closed: bool,
    },
    Levels {
        deep: bool,
    },
    Ask {
        gang: usize,
    },
}

/// What a pod without claims asks for besides amounts that every node has.
#[derive(Clone, Copy, Debug)]
enum Besides {
    Nothing,
    /// A resource of every node.
    Licence,
    /// A resource of no node.
    Unknown,
    HostPort,
    /// To be alone of its kind.
    Solitude,
    /// More memory than can be counted.
    TooMuch,
}

const BESIDES: [Besides; 6] = [
    Besides::Nothing,
    Besides::Licence,
    Besides::Unknown,
    Besides::HostPort,
    Besides::Solitude,
    Besides::TooMuch,
];

fn event() -> impl Strategy<Value = Event> {
    let (at, pod, device) = (0..NODES, 0_usize..12, 0_usize..4);
    prop_oneof![
        4 => (at.clone(), 0_usize..5, 0_usize..5, 1_i64..6)
            .prop_map(|(at, leaf, devices, cores)| Event::Node { at, leaf, devices, cores }),
        2 => (at.clone(), device.clone(), any::<bool>())
            .prop_map(|(at, device, usable)| Event::Tainted { at, device, usable }),
        2 => (at.clone(), device.clone(), any::<bool>())
            .prop_map(|(at, device, taken)| Event::Allocated { at, device, taken }),
        2 => (at.clone(), any::<bool>()).prop_map(|(at, blocked)| Event::Blocked { at, blocked }),
        1 => (at.clone(), any::<bool>()).prop_map(|(at, passes)| Event::Labelled { at, passes }),
        1 => at.clone().prop_map(|at| Event::Gone { at }),
        4 => (pod.clone(), at.clone(), device, 1_i64..200)
            .prop_map(|(pod, at, device, memory)| Event::Held { pod, at, device, memory }),
        2 => (pod.clone(), at.clone(), 1_u32..4)
            .prop_map(|(pod, at, devices)| Event::Waiting { pod, at, devices }),
        4 => (pod.clone(), at.clone(), 1_i64..200, proptest::sample::select(&BESIDES[..]))
            .prop_map(|(pod, at, memory, besides)| Event::WithoutClaims { pod, at, memory, besides }),
        4 => pod.prop_map(|pod| Event::Released { pod }),
        2 => (at, any::<bool>(), any::<bool>())
            .prop_map(|(at, to_all, is_closed)| Event::Closed { at, to_all, is_closed }),
        1 => any::<bool>().prop_map(|deep| Event::Levels { deep }),
        8 => (0..gangs().len()).prop_map(|gang| Event::Ask { gang }),
    ]
}

/// Gangs of every kind: equal and unequal pods, shared claims, groups, several claims, required levels, none.
fn gangs() -> Vec<Gang> {
    let mut grouped = equal_pods(2, 2);
    for pod in &mut grouped.pods {
        pod.claims[0].constraints = vec![Constraint {
            requests: Vec::new(),
            attribute: "pair".into(),
        }];
    }
    let mut shared = equal_pods(3, 0);
    for pod in &mut shared.pods {
        pod.claims = vec![claim("shared", 2)];
    }
    let mut several = equal_pods(2, 1);
    for (rank, pod) in several.pods.iter_mut().enumerate() {
        let mut second = claim(&format!("second-{rank}"), 1);
        second.requests[0].choices[0].selector = crate::names::SelectorId(1);
        pod.claims.push(second);
    }
    let mut hungry = equal_pods(2, 1);
    for pod in &mut hungry.pods {
        pod.resources.memory_bytes = 300 << 30;
        pod.resources.cpu_milli = 3_000;
    }
    let unequal = gang(vec![pod("a", 2), pod("b", 1), pod("c", 0)]);
    let wide = gang(vec![pod("a", 3), pod("b", 2), pod("c", 2), pod("d", 1)]);
    vec![
        equal_pods(1, 1),
        equal_pods(4, 1),
        equal_pods(2, 4),
        equal_pods(3, 0),
        requiring("leaf", equal_pods(4, 1)),
        requiring("spine", equal_pods(3, 2)),
        requiring("node", equal_pods(2, 2)),
        grouped,
        shared,
        several,
        hungry,
        requiring("leaf", unequal.clone()),
        unequal,
        wide,
    ]
}

/// Everything that was told, as it stands.
#[derive(Clone, Debug, Default)]
struct Facts {
    nodes: BTreeMap<usize, Node>,
    holds: BTreeMap<PodUid, Arc<Hold>>,
    reserved: BTreeSet<NodeName>,
    held_back: BTreeSet<NodeName>,
    deep: bool,
}

impl Facts {
    fn topology(&self) -> crate::model::Topology {
        let levels: &[&str] = if self.deep {
            &["spine", "leaf", "rack"]
        } else {
            &["spine", "leaf"]
        };
        topology(levels)
    }

    /// Changes the facts and tells the cluster.
    fn happen(&mut self, cluster: &mut Cluster, event: &Event) {
        match event {
            Event::Node {
                at,
                leaf,
                devices,
                cores,
            } => {
                let path = match leaf {
                    0 => String::new(),
                    leaf if self.deep => format!("s{}/l{}/r{}", leaf / 3, leaf % 3, at % 2),
                    leaf => format!("s{}/l{}", leaf / 3, leaf % 3),
                };
                let mut node = node_at(&format!("n{at}"), &path, *devices);
                node.allocatable.cpu_milli = cores * 1000;
                node.allocatable.others.insert(LICENCE.into(), 3);
                for (index, device) in node.devices.iter_mut().enumerate() {
                    Arc::make_mut(&mut device.attributes)
                        .insert("pair".into(), format!("{}-{}", at, index / 2));
                    device.nvlink_group = Some(format!("{}", index / 2));
                    if index % 2 == 0 {
                        Arc::make_mut(&mut device.selectors).insert(crate::names::SelectorId(1));
                    }
                }
                if *leaf == 4 {
                    node.accelerator
                        .insert(fabric(), format!("domain-{}", at % 2));
                }
                self.nodes.insert(*at, node);
                self.tell(cluster, *at);
            }
            Event::Tainted { at, device, usable } => {
                self.change(cluster, *at, |node| {
                    if let Some(device) = node.devices.get_mut(*device) {
                        device.usable = *usable;
                    }
                });
            }
            Event::Allocated { at, device, taken } => {
                self.change(cluster, *at, |node| {
                    if let Some(device) = node.devices.get_mut(*device) {
                        device.allocated_to = taken.then(|| "somebody".into());
                    }
                });
            }
            Event::Blocked { at, blocked } => {
                self.change(cluster, *at, |node| {
                    node.block = blocked.then_some(NodeBlock::Cordoned);
                });
            }
            Event::Labelled { at, passes } => {
                self.change(cluster, *at, |node| {
                    let filters: BTreeSet<_> =
                        passes.then_some(NodeFilterId(0)).into_iter().collect();
                    node.filters = filters.into();
                });
            }
            Event::Gone { at } => {
                if let Some(node) = self.nodes.remove(at) {
                    cluster.remove_node(&node.name);
                }
            }
            Event::Held {
                pod,
                at,
                device,
                memory,
            } => {
                let mut hold = hold(&format!("pod-{pod}"), &format!("n{at}"), &[*device]);
                hold.resources.memory_bytes = memory << 30;
                self.hold(cluster, hold);
            }
            Event::Waiting { pod, at, devices } => {
                let mut hold = hold(&format!("pod-{pod}"), &format!("n{at}"), &[]);
                hold.claims[0].devices = None;
                hold.claims[0].request = Some(claim("waits", *devices));
                self.hold(cluster, hold);
            }
            Event::WithoutClaims {
                pod,
                at,
                memory,
                besides,
            } => {
                let mut hold = hold(&format!("pod-{pod}"), &format!("n{at}"), &[]);
                hold.claims.clear();
                let asked = &mut hold.resources;
                asked.memory_bytes = memory << 30;
                match besides {
                    Besides::Nothing => {}
                    Besides::Licence => drop(asked.others.insert(LICENCE.into(), 1)),
                    Besides::Unknown => drop(asked.others.insert("example.com/none".into(), 1)),
                    Besides::HostPort => drop(asked.host_ports.insert(HostPort {
                        ip: None,
                        protocol: HostPortProtocol::Tcp,
                        port: 80,
                    })),
                    Besides::Solitude => {
                        asked.repels.insert(PodSelectorId(0));
                        asked.matched_by.insert(PodSelectorId(0));
                    }
                    Besides::TooMuch => asked.memory_bytes = i64::MAX,
                }
                self.hold(cluster, hold);
            }
            Event::Released { pod } => {
                if let Some(hold) = self.holds.remove(&format!("pod-{pod}").into()) {
                    cluster.remove_hold(&hold);
                }
            }
            Event::Closed {
                at,
                to_all,
                is_closed,
            } => self.close(
                cluster,
                &format!("n{at}").as_str().into(),
                *to_all,
                *is_closed,
            ),
            Event::Levels { deep } => {
                self.deep = *deep;
                cluster.set_topology(self.topology());
            }
            Event::Ask { .. } => {}
        }
    }

    fn close(&mut self, cluster: &mut Cluster, node: &NodeName, to_all: bool, is_closed: bool) {
        let closed = if to_all {
            &mut self.reserved
        } else {
            &mut self.held_back
        };
        let is_news = if is_closed {
            closed.insert(node.clone())
        } else {
            closed.remove(node)
        };
        match (is_news, to_all, is_closed) {
            (false, ..) => {}
            (true, true, true) => cluster.reserve(node),
            (true, true, false) => cluster.end_reservation(node),
            (true, false, true) => cluster.hold_back(node),
            (true, false, false) => cluster.end_hold_back(node),
        }
    }

    fn hold(&mut self, cluster: &mut Cluster, hold: Hold) {
        let hold = Arc::new(hold);
        match self.holds.insert(hold.pod.clone(), Arc::clone(&hold)) {
            Some(before) => cluster.replace_hold(&before, &hold),
            None => cluster.add_hold(&hold),
        }
    }

    fn change(&mut self, cluster: &mut Cluster, at: usize, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.nodes.get_mut(&at) {
            change(node);
            self.tell(cluster, at);
        }
    }

    fn tell(&self, cluster: &mut Cluster, at: usize) {
        if let Some(node) = self.nodes.get(&at) {
            cluster.set_node(node.clone());
        }
    }

    /// A cluster that is told these facts at once, in another order.
    fn at_once(&self) -> Cluster {
        let mut cluster = Cluster::default();
        for hold in self.holds.values().rev() {
            cluster.add_hold(hold);
        }
        for node in self.nodes.values().rev() {
            cluster.set_node(node.clone());
        }
        for node in &self.reserved {
            cluster.reserve(node);
        }
        for node in &self.held_back {
            cluster.hold_back(node);
        }
        cluster.set_topology(self.topology());
        cluster
    }
}

fn said_in(cluster: &Cluster, view: &View, gang: &Gang) -> Said {
    said(cluster, gang, &judged(cluster, view, gang))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Asked at any time, in any view, a cluster that followed events answers like one that was told the
    /// outcome.
    #[test]
    fn step_by_step_equals_at_once(events in proptest::collection::vec(event(), 1..60)) {
        let gangs = gangs();
        let mut facts = Facts::default();
        let mut cluster = Cluster::default();
        cluster.set_topology(facts.topology());
        for event in &events {
            facts.happen(&mut cluster, event);
            if let Event::Ask { gang } = event {
                let gang = &gangs[*gang];
                let fresh = facts.at_once();
                let asked = now(&cluster, gang);
                prop_assert_eq!(&asked, &now(&fresh, gang));
                let whether = asking(gang, |request| {
                    fits(&cluster, &View::Now, request, &mut Effort::default())
                });
                let expected = match asked {
                    Said::Placed(..) => Fits::Yes,
                    Said::NoPlace => Fits::No,
                    Said::GaveUp => Fits::GaveUp,
                };
                prop_assert_eq!(whether, expected);
                prop_assert_eq!(said_in(&cluster, &View::Empty, gang), said_in(&fresh, &View::Empty, gang));
            }
        }
        let fresh = facts.at_once();
        for gang in &gangs {
            prop_assert_eq!(now(&cluster, gang), now(&fresh, gang));
        }
        for node in facts.nodes.values() {
            let slot = |cluster: &Cluster| cluster.slot_of(&node.name).expect("a node told");
            let free = |cluster: &Cluster| cluster.record(slot(cluster)).map(|it| it.now.clone());
            prop_assert_eq!(free(&cluster), free(&fresh));
            let inside = |cluster: &Cluster| cluster.free_on_held_back(&node.name).cloned();
            prop_assert_eq!(inside(&cluster), inside(&fresh));
        }
    }

    /// Who was refused is told "not now" without a look, or finds the place that everybody would find.
    #[test]
    fn a_refused_gang_looks_only_where_something_came_free(
        events in proptest::collection::vec(event(), 1..80),
    ) {
        let gangs = gangs();
        let mut facts = Facts::default();
        let mut cluster = Cluster::default();
        cluster.set_topology(facts.topology());
        let mut refused: BTreeMap<usize, Refusal> = BTreeMap::new();
        for event in &events {
            facts.happen(&mut cluster, event);
            let Event::Ask { gang: asked } = event else { continue };
            let gang = &gangs[*asked];
            let full = judged(&cluster, &View::Now, gang);
            if let Some(refusal) = refused.get(asked) {
                let (worth, again) = asking(gang, |request| {
                    let mut effort = Effort::default();
                    (
                        may_fit_since(&cluster, &View::Now, request, *refusal),
                        plan_since(&cluster, request, *refusal, &mut effort),
                    )
                });
                prop_assert_eq!(&again, &full);
                if !worth {
                    prop_assert!(matches!(full, Verdict::NoPlace(_)));
                }
            }
            match full {
                Verdict::NoPlace(refusal) => refused.insert(*asked, refusal),
                _ => refused.remove(asked),
            };
        }
    }

    /// A view without some holds is the cluster after they ended, and the cluster is untouched by the look.
    #[test]
    fn a_view_without_holds_is_the_cluster_after_their_end(
        events in proptest::collection::vec(event(), 1..60),
        chosen in proptest::collection::btree_set(0_usize..12, 0..6),
    ) {
        let gangs = gangs();
        let mut facts = Facts::default();
        let mut cluster = Cluster::default();
        cluster.set_topology(facts.topology());
        for event in &events {
            facts.happen(&mut cluster, event);
        }
        let pods: BTreeSet<PodUid> = chosen.iter().map(|pod| format!("pod-{pod}").into()).collect();
        let gone: BTreeMap<PodUid, &Hold> = facts
            .holds
            .iter()
            .filter(|(pod, _)| pods.contains(*pod))
            .map(|(pod, hold)| (pod.clone(), &**hold))
            .collect();
        let view = cluster.without(&gone);
        let mut after = facts.clone();
        after.holds.retain(|pod, _| !pods.contains(pod));
        // What is given back counts as usable, whatever taint its driver keeps on it until then.
        for hold in gone.values() {
            for device in hold.claims.iter().flat_map(|claim| claim.devices.iter().flatten()) {
                let nodes = after.nodes.values_mut().filter(|node| node.name == hold.node);
                let devices = nodes.flat_map(|node| &mut node.devices);
                for device in devices.filter(|known| known.name == *device) {
                    device.usable = true;
                }
            }
        }
        let after = after.at_once();
        for gang in &gangs {
            let before = now(&cluster, gang);
            prop_assert_eq!(said_in(&cluster, &view, gang), now(&after, gang));
            prop_assert_eq!(now(&cluster, gang), before);
        }
    }

    /// The answer is the same whether anything was asked before or not.
    #[test]
    fn answers_do_not_depend_on_earlier_questions(
        events in proptest::collection::vec(event(), 1..40),
        steps in 1_u64..400,
    ) {
        let mut facts = Facts::default();
        let mut cluster = Cluster::default();
        cluster.set_topology(facts.topology());
        for event in &events {
            facts.happen(&mut cluster, event);
        }
        for gang in &gangs() {
            // Also where the steps run out.
            let ask = || asking(gang, |request| plan(&cluster, &View::Now, request, &mut Effort::of(steps)));
            let warm = (ask(), ask());
            cluster.forget();
            prop_assert_eq!(&ask(), &warm.0);
            prop_assert_eq!(warm.0, warm.1);
        }
    }
}

#[test]
fn only_the_nodes_of_what_is_released_can_help_who_has_no_place() {
    let mut cluster = cluster(["a", "b"].map(|name| node_at(name, "s/l", 8)));
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    let held = hold("held", "a", &all);
    add(&mut cluster, held.clone());
    add(&mut cluster, hold("other", "b", &all));
    let view = cluster.without(&BTreeMap::from([(held.pod.clone(), &held)]));
    let mut large = equal_pods(1, 1);
    large.pods[0].resources.memory_bytes = i64::MAX;
    let table = [
        (equal_pods(1, 8), true),
        // One pod has a place there; that the other has none is for the search to find out.
        (equal_pods(2, 8), true),
        (requiring("node", equal_pods(2, 8)), false),
        (requiring("node", equal_pods(2, 4)), true),
        (large, false),
    ];
    for (gang, may_fit) in table {
        let told = asking(&gang, |request| may_fit_without(&cluster, &view, request));
        assert_eq!(told, may_fit, "{gang:?}");
        let fits = matches!(judged(&cluster, &view, &gang), Verdict::Placed(_));
        assert!(may_fit || !fits);
    }
}
