//! Gangs from their pods to their end, with everything that ships: four nodes on two leaves, and a fifth
//! that stands alone.

use std::{
    collections::BTreeMap,
    env,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node, Pod, PodSpec};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use muster_api::{GangPhase, Queue, Reason, keys};
use muster_tests::{
    builders::{self, RankProgram, RankSource, gpu_quota},
    cluster::{Cluster, ClusterOptions},
    gangs,
    gpu_board::Board,
    install::MusterOptions,
    kubernetes::{self, Progress, always, eventually},
    node::NodeOptions,
    scenarios, suite, users,
    workloads::Workload,
};
use serde_json::json;

const LIMIT: Duration = Duration::from_mins(1);
/// Label of the flavors: the fabric, and the node alone.
const POOL: &str = "example.com/pool";
const LEAF: &str = "example.com/leaf";
const FABRIC_NODES: [&str; 4] = ["node-0", "node-1", "node-2", "node-3"];

fn main() -> ExitCode {
    let node = |name: &str, pool: &str, leaf: &str| NodeOptions {
        name: name.to_owned(),
        labels: BTreeMap::from([
            (POOL.to_owned(), pool.to_owned()),
            (LEAF.to_owned(), leaf.to_owned()),
        ]),
        board: Some(Board::H100Nvswitch8),
    };
    let mut nodes: Vec<NodeOptions> = FABRIC_NODES.map(|name| node(name, "fabric", "a")).into();
    nodes.push(node("solo", "solo", "solo"));
    let options = ClusterOptions {
        nodes,
        muster: Some(MusterOptions::default()),
        ..ClusterOptions::default()
    };
    suite::run(
        "gangs",
        options,
        scenarios![
            a_pod_that_declares_nothing_but_a_gpu_is_a_gang_of_one,
            pods_with_a_gang_label_start_together,
            a_launcher_without_gpus_starts_together_with_its_workers,
            a_gang_takes_the_only_whole_leaf_while_others_borrow_and_wait,
            of_two_gangs_that_fit_only_one_at_a_time_one_runs_and_the_other_waits_whole,
            twice_the_quota_is_queued_and_says_why_in_numbers,
            every_gang_that_cannot_start_says_exactly_why_and_holds_nobody_up,
            quota_comes_back_only_when_the_devices_are_proved_released,
            ten_gangs_that_are_created_at_once_all_start,
        ],
    )
}

/// Two flavors, each with the leaves as topology.
async fn prepare_flavors(client: &Client) -> Result<()> {
    builders::topology(client, "leaves", &[("leaf", LEAF)]).await?;
    for pool in ["fabric", "solo"] {
        builders::flavor_on(client, pool, Some("leaves"), &[(POOL, pool)]).await?;
    }
    Ok(())
}

/// A Team of its own with one namespace of the same name.
async fn prepare_team(client: &Client, name: &str, flavor: &str, gpus: u32) -> Result<()> {
    prepare_flavors(client).await?;
    builders::team(client, name, None, vec![gpu_quota(flavor, gpus, None)]).await?;
    builders::namespace(client, name, Some(name)).await
}

async fn a_pod_that_declares_nothing_but_a_gpu_is_a_gang_of_one(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "one", "fabric", 8).await?;
    let workload = Workload {
        namespace: "one",
        name: "alone",
        ranks: 1,
        gpus: 1,
    };
    let (ranks, spec) = workload.prepare(cluster).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "one");
    kubernetes::create(&pods, &builders::pod("alone", &[], &[], &spec)?).await?;
    let gang = running(&client, "one", &gangs::of_pod("alone")).await?;
    ensure!(gang.spec.size == 1, "its size is {}", gang.spec.size);
    ensure!(gangs::charged(&client).await?.get("one") == Some(&1000));
    ranks.finish()?;
    ended(&client, "one", &gangs::of_pod("alone")).await?;
    ranks_got_what_was_allocated(cluster, &ranks, 1)
}

async fn pods_with_a_gang_label_start_together(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "labelled", "fabric", 16).await?;
    let workload = Workload {
        namespace: "labelled",
        name: "pair",
        ranks: 2,
        gpus: 8,
    };
    let (ranks, spec) = workload.prepare(cluster).await?;
    workload.create_labelled_pod(&client, &spec, 0).await?;
    gangs::wait_for_reason(
        &client,
        "labelled",
        &gangs::of_label("pair"),
        Reason::MissingPods,
        LIMIT,
    )
    .await?;
    workload.create_labelled_pod(&client, &spec, 1).await?;
    running(&client, "labelled", &gangs::of_label("pair")).await?;
    ranks.finish()?;
    ended(&client, "labelled", &gangs::of_label("pair")).await?;
    ranks_got_what_was_allocated(cluster, &ranks, 8)
}

async fn a_launcher_without_gpus_starts_together_with_its_workers(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "launch", "fabric", 8).await?;
    let workers = Workload {
        namespace: "launch",
        name: "mpi",
        ranks: 3,
        gpus: 4,
    };
    let launcher = Workload { gpus: 0, ..workers };
    let (ranks, worker_spec) = workers.prepare(cluster).await?;
    let launcher_spec = launcher.pod_spec(&client, &ranks).await?;
    launcher
        .create_labelled_pod(&client, &launcher_spec, 0)
        .await?;
    workers
        .create_labelled_pod(&client, &worker_spec, 1)
        .await?;
    gangs::wait_for_reason(
        &client,
        "launch",
        &gangs::of_label("mpi"),
        Reason::MissingPods,
        LIMIT,
    )
    .await?;
    workers
        .create_labelled_pod(&client, &worker_spec, 2)
        .await?;
    running(&client, "launch", &gangs::of_label("mpi")).await?;
    ranks.finish()?;
    ended(&client, "launch", &gangs::of_label("mpi")).await?;
    ranks.ensure_all_met()
}

/// The story of the demo, with the leaves dealt out anew by three seeds, so that neither the order of names
/// nor luck can place the gang well.
async fn a_gang_takes_the_only_whole_leaf_while_others_borrow_and_wait(
    cluster: &mut Cluster,
) -> Result<()> {
    for seed in [1, 2, 3] {
        play_story(cluster, seed)
            .await
            .with_context(|| format!("seed {seed}"))?;
    }
    Ok(())
}

async fn play_story(cluster: &mut Cluster, seed: u64) -> Result<()> {
    let client = cluster.client();
    let leaves = deal_leaves(seed);
    for (node, leaf) in &leaves {
        set_leaf(&client, node, leaf).await?;
    }
    prepare_flavors(&client).await?;
    let (red, blue) = (format!("red-{seed}"), format!("blue-{seed}"));
    let lab = format!("lab-{seed}");
    builders::cohort(&client, &lab, vec![gpu_quota("fabric", 8, None)]).await?;
    for (team, gpus) in [(&red, 16), (&blue, 8)] {
        builders::team(
            &client,
            team,
            Some(&lab),
            vec![gpu_quota("fabric", gpus, None)],
        )
        .await?;
        builders::namespace(&client, team, Some(team)).await?;
    }
    // One GPU of a leaf is taken, so that only the other one has two whole nodes.
    let taker = Workload {
        namespace: &blue,
        name: "taker",
        ranks: 1,
        gpus: 1,
    };
    let (taker_ranks, spec) = taker.prepare(cluster).await?;
    let broken = &leaves
        .iter()
        .find(|(_, leaf)| **leaf == "b")
        .context("a leaf b")?
        .0;
    let spec = on_node(spec, broken)?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &blue);
    kubernetes::create(&pods, &builders::pod("taker", &[], &[], &spec)?).await?;
    running(&client, &blue, &gangs::of_pod("taker")).await?;

    let whole_leaf = [(keys::TOPOLOGY_REQUIRED, "leaf")];
    let train = Workload {
        namespace: &red,
        name: "train",
        ranks: 2,
        gpus: 8,
    };
    let train_ranks = train.submit_job(cluster, &whole_leaf).await?;
    let gang = running(&client, &red, &gangs::of_job("train")).await?;
    let mut nodes = gangs::nodes(&client, &gang).await?;
    nodes.sort();
    let whole: Vec<String> = leaves
        .iter()
        .filter(|(_, leaf)| **leaf == "a")
        .map(|(node, _)| node.to_string())
        .collect();
    ensure!(
        nodes == whole,
        "it runs on {nodes:?}, the whole leaf is {whole:?}"
    );

    let sweep = Workload {
        namespace: &blue,
        name: "sweep",
        ranks: 2,
        gpus: 7,
    };
    let sweep_ranks = sweep.submit_job(cluster, &[]).await?;
    running(&client, &blue, &gangs::of_job("sweep")).await?;
    let charged = gangs::charged(&client).await?;
    ensure!(
        charged.get(&blue) == Some(&15_000),
        "blue has 8 GPUs of its own: {charged:?}"
    );

    let next = Workload {
        namespace: &red,
        name: "next",
        ranks: 1,
        gpus: 8,
    };
    let next_ranks = next.submit_job(cluster, &[]).await?;
    let details = gangs::wait_for_reason(
        &client,
        &red,
        &gangs::of_job_pod("next", 0),
        Reason::WaitingForQuota,
        LIMIT,
    )
    .await?;
    ensure!(has_number(&details, "8"), "it asks for 8 GPUs: {details}");
    gangs::ensure_none_bound(&client, &red, "next").await?;

    train_ranks.finish()?;
    gangs::wait_for_job(&client, &red, "train", LIMIT).await?;
    running(&client, &red, &gangs::of_job_pod("next", 0)).await?;
    for ranks in [&next_ranks, &sweep_ranks, &taker_ranks] {
        ranks.finish()?;
    }
    gangs::wait_for_job(&client, &red, "next", LIMIT).await?;
    gangs::wait_for_job(&client, &blue, "sweep", LIMIT).await?;
    ended(&client, &blue, &gangs::of_pod("taker")).await?;
    ranks_got_what_was_allocated(cluster, &train_ranks, 8)
}

/// Two nodes for each leaf, chosen by the seed.
fn deal_leaves(seed: u64) -> BTreeMap<&'static str, &'static str> {
    let partner = FABRIC_NODES[1 + usize::try_from(seed % 3).unwrap_or(0)];
    // Of the two leaves either may be the one with the first node.
    let (first, second) = if seed.is_multiple_of(2) {
        ("a", "b")
    } else {
        ("b", "a")
    };
    FABRIC_NODES
        .map(|node| {
            (
                node,
                if node == FABRIC_NODES[0] || node == partner {
                    first
                } else {
                    second
                },
            )
        })
        .into()
}

async fn set_leaf(client: &Client, node: &str, leaf: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = json!({"metadata": {"labels": {LEAF: leaf}}});
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

fn on_node(mut spec: PodSpec, node: &str) -> Result<PodSpec> {
    spec.node_selector = Some(serde_json::from_value(
        json!({"kubernetes.io/hostname": node}),
    )?);
    Ok(spec)
}

async fn of_two_gangs_that_fit_only_one_at_a_time_one_runs_and_the_other_waits_whole(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "twins", "solo", 16).await?;
    let runs: u32 = env::var("MUSTER_RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok())
        .unwrap_or(10);
    for run in 0..runs {
        race(cluster, run)
            .await
            .with_context(|| format!("run {run}"))?;
    }
    // Two of half the size do fit together.
    let halves = ["half-a", "half-b"].map(|name| Workload {
        namespace: "twins",
        name,
        ranks: 2,
        gpus: 2,
    });
    let ranks = create_interleaved(cluster, &halves).await?;
    for half in &halves {
        running(&client, "twins", &gangs::of_label(half.name)).await?;
    }
    for (half, ranks) in halves.iter().zip(ranks) {
        ranks.finish()?;
        ended(&client, "twins", &gangs::of_label(half.name)).await?;
    }
    Ok(())
}

async fn race(cluster: &mut Cluster, run: u32) -> Result<()> {
    let client = cluster.client();
    let names = [format!("a{run}"), format!("b{run}")];
    let twins = names.each_ref().map(|name| Workload {
        namespace: "twins",
        name,
        ranks: 4,
        gpus: 2,
    });
    let ranks = create_interleaved(cluster, &twins).await?;
    let phases = [GangPhase::Running];
    let first = eventually("one of the two runs", LIMIT, async || {
        for (number, name) in names.iter().enumerate() {
            let gang = gangs::find(&client, "twins", &gangs::of_label(name)).await?;
            if gang
                .and_then(|gang| gang.status)
                .is_some_and(|status| phases.contains(&status.phase))
            {
                return Ok(Progress::Done(number));
            }
        }
        Ok(Progress::NotYet("none runs".to_owned()))
    })
    .await?;
    let second = 1 - first;
    let waiting = gangs::of_label(&names[second]);
    gangs::wait_for_reason(
        &client,
        "twins",
        &waiting,
        Reason::WaitingForPlacement,
        LIMIT,
    )
    .await?;
    always(
        "no pod of the other is bound",
        Duration::from_millis(500),
        async || {
            gangs::ensure_none_bound(&client, "twins", &names[second]).await?;
            Ok(Progress::Done(()))
        },
    )
    .await?;
    ranks[first].finish()?;
    running(&client, "twins", &waiting).await?;
    ranks[second].finish()?;
    ended(&client, "twins", &waiting).await?;
    ranks.iter().try_for_each(RankProgram::ensure_all_met)
}

/// Creates the pods of several gangs in turn, as fast as the API server takes them.
async fn create_interleaved(
    cluster: &Cluster,
    workloads: &[Workload<'_>],
) -> Result<Vec<RankProgram>> {
    let client = cluster.client();
    let mut prepared = Vec::new();
    for workload in workloads {
        prepared.push(workload.prepare(cluster).await?);
    }
    for number in 0..workloads.first().map_or(0, |workload| workload.ranks) {
        for (workload, (_, spec)) in workloads.iter().zip(&prepared) {
            workload.create_labelled_pod(&client, spec, number).await?;
        }
    }
    Ok(prepared.into_iter().map(|(program, _)| program).collect())
}

async fn twice_the_quota_is_queued_and_says_why_in_numbers(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "twice", "fabric", 16).await?;
    let names: Vec<String> = (0..8).map(|number| format!("job{number}")).collect();
    let mut programs = Vec::new();
    for name in &names {
        let workload = Workload {
            namespace: "twice",
            name,
            ranks: 2,
            gpus: 2,
        };
        programs.push(workload.submit_job(cluster, &[]).await?);
    }
    let queue = eventually("four gangs are admitted and four wait", LIMIT, async || {
        let queues: Api<Queue> = Api::namespaced(client.clone(), "twice");
        let Some(queue) = queues.get_opt("twice").await? else {
            return Ok(Progress::NotYet("there is no Queue".to_owned()));
        };
        let status = queue.status.unwrap_or_default();
        Ok(
            if status.admitted_gangs == 4 && status.pending_gangs == 4 && status.pending.len() == 4
            {
                Progress::Done(status)
            } else {
                Progress::NotYet(format!("{status:?}"))
            },
        )
    })
    .await?;
    for (place, pending) in (1..).zip(&queue.pending) {
        ensure!(
            pending.position == place && pending.reason == Reason::WaitingForQuota,
            "{pending:?}"
        );
        ensure!(
            has_number(&pending.details, "4"),
            "each asks for 4 GPUs: {pending:?}"
        );
    }
    let limit = queue
        .limits
        .iter()
        .find(|limit| limit.resource == "gpus")
        .context("a limit of GPUs")?;
    ensure!(limit.nominal.0 == "16" && limit.used.0 == "16", "{limit:?}");
    ensure!(gangs::charged(&client).await?.get("twice") == Some(&16_000));
    for kind in ["Pod", "Job"] {
        has_an_event(&client, "twice", kind, "job", Reason::WaitingForQuota).await?;
    }
    let member = users::user(cluster, "twice", "member", "view", Vec::new()).await?;
    let queues: Api<Queue> = Api::namespaced(member, "twice");
    queues
        .get("twice")
        .await
        .context("a member with view reads the Queue")?;
    for program in &programs {
        program.finish()?;
    }
    for name in &names {
        gangs::wait_for_job(&client, "twice", name, LIMIT).await?;
    }
    Ok(())
}

/// What `kubectl describe` shows of a waiting object of this kind whose name begins so.
async fn has_an_event(
    client: &Client,
    namespace: &str,
    kind: &str,
    name: &str,
    reason: Reason,
) -> Result<()> {
    let what = format!("an event on a {kind} {name}* says {reason}");
    eventually(&what, LIMIT, async || {
        let events: Vec<Event> = kubernetes::list(client, Some(namespace)).await?;
        let is_about = |event: &Event| {
            let object = &event.involved_object;
            object.kind.as_deref() == Some(kind)
                && object.name.as_ref().is_some_and(|n| n.starts_with(name))
        };
        let reasons: Vec<String> = events
            .into_iter()
            .filter(is_about)
            .filter_map(|event| event.reason)
            .collect();
        let told = reasons.iter().any(|told| told == reason.as_str());
        Ok(Progress::when(told, || format!("{reasons:?}")))
    })
    .await
}

async fn every_gang_that_cannot_start_says_exactly_why_and_holds_nobody_up(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "reasons", "fabric", 64).await?;
    builders::team(&client, "small", None, vec![gpu_quota("fabric", 2, None)]).await?;
    builders::namespace(&client, "small", Some("small")).await?;
    builders::namespace(&client, "nobody", None).await?;

    let label = gangs::of_label;
    let missing = Workload {
        namespace: "reasons",
        name: "missing",
        ranks: 2,
        gpus: 1,
    };
    let (_, spec) = missing.prepare(cluster).await?;
    missing.create_labelled_pod(&client, &spec, 0).await?;

    let sizes = Workload {
        name: "sizes",
        ..missing
    };
    let (_, spec) = sizes.prepare(cluster).await?;
    sizes.create_pod_of_size(&client, &spec, 0, "2").await?;
    sizes.create_pod_of_size(&client, &spec, 1, "3").await?;

    // 5 pods of 8 GPUs: the cluster has 4 such nodes in this flavor.
    let huge = Workload {
        name: "huge",
        ranks: 5,
        gpus: 8,
        ..missing
    };
    huge.submit_job(cluster, &[]).await?;
    let over = Workload {
        namespace: "small",
        name: "over",
        ranks: 2,
        gpus: 2,
    };
    over.submit_job(cluster, &[]).await?;
    let teamless = Workload {
        namespace: "nobody",
        name: "teamless",
        ranks: 2,
        gpus: 1,
    };
    teamless.submit_job(cluster, &[]).await?;
    submit_with_strange_selector(cluster, "reasons").await?;

    for (namespace, gang, reason) in [
        ("reasons", label("missing"), Reason::MissingPods),
        ("reasons", label("sizes"), Reason::SizeMismatch),
        (
            "reasons",
            gangs::of_job("huge"),
            Reason::PlacementImpossible,
        ),
        ("small", gangs::of_job("over"), Reason::ExceedsMaxQuota),
        ("nobody", gangs::of_job("teamless"), Reason::NoTeam),
        ("reasons", label("strange"), Reason::RequestNotUnderstood),
    ] {
        gangs::wait_for_reason(&client, namespace, &gang, reason, LIMIT).await?;
    }

    // The gang behind all of them runs, and a pod that comes too late for it waits.
    let behind = Workload {
        name: "behind",
        ..missing
    };
    let (ranks, spec) = behind.prepare(cluster).await?;
    for number in 0..2 {
        behind.create_labelled_pod(&client, &spec, number).await?;
    }
    running(&client, "reasons", &label("behind")).await?;
    behind.create_labelled_pod(&client, &spec, 2).await?;
    has_an_event(&client, "reasons", "Pod", "behind-2", Reason::ExcessPod).await?;
    gangs::ensure_none_bound(&client, "reasons", "behind-2").await?;
    ranks.finish()?;
    gangs::wait_for_phase(
        &client,
        "reasons",
        &label("behind"),
        &[GangPhase::Finished],
        LIMIT,
    )
    .await
    .map(drop)
}

/// A selector that asks for an attribute that no device has, in an expression that cannot be evaluated.
async fn submit_with_strange_selector(cluster: &Cluster, namespace: &str) -> Result<()> {
    let client = cluster.client();
    let workload = Workload {
        namespace,
        name: "strange",
        ranks: 1,
        gpus: 0,
    };
    let (mut ranks, _) = workload.prepare(cluster).await?;
    ranks.rank = RankSource::Annotation;
    let selector = "device.attributes['gpu.muster.dev'].noSuchAttribute == 'x'";
    let template = builders::claim_template("strange", 1, Some(selector))?;
    kubernetes::create(&Api::namespaced(client.clone(), namespace), &template).await?;
    let spec = builders::pod_spec(&ranks.container(&["gpus"])?)?;
    let spec = builders::with_claim_template(spec, "strange");
    workload.create_labelled_pod(&client, &spec, 0).await?;
    Ok(())
}

async fn quota_comes_back_only_when_the_devices_are_proved_released(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "proof", "solo", 8).await?;
    let first = Workload {
        namespace: "proof",
        name: "first",
        ranks: 1,
        gpus: 8,
    };
    let (_, spec) = first.prepare(cluster).await?;
    first.create_labelled_pod(&client, &spec, 0).await?;
    running(&client, "proof", &gangs::of_label("first")).await?;
    // The API forgets the pod at once; its process goes on.
    cluster
        .node("solo")?
        .set_runtime_faults(&json!({"hangStop": [{"pod": "first"}]}))?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "proof");
    pods.delete("first-0", &DeleteParams::default().grace_period(0))
        .await?;
    let second = Workload {
        name: "second",
        ..first
    };
    let (ranks, spec) = second.prepare(cluster).await?;
    second.create_labelled_pod(&client, &spec, 0).await?;
    let waits = always(
        "the second gang waits",
        Duration::from_secs(5),
        async || {
            let pod = pods.get("second-0").await?;
            let gates = pod
                .spec
                .and_then(|spec| spec.scheduling_gates)
                .unwrap_or_default();
            Ok(Progress::when(!gates.is_empty(), || {
                "its pod was let go".to_owned()
            }))
        },
    )
    .await;
    cluster.node("solo")?.set_runtime_faults(&json!({}))?;
    waits?;
    running(&client, "proof", &gangs::of_label("second")).await?;
    ranks.finish()?;
    ended(&client, "proof", &gangs::of_label("second")).await
}

/// Measures, too: the time from the creation of the Jobs until all their pods run.
async fn ten_gangs_that_are_created_at_once_all_start(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "ten", "fabric", 32).await?;
    let mut programs = Vec::new();
    for (first, count) in [(0, 1), (1, 10)] {
        let names: Vec<String> = (first..first + count)
            .map(|number| format!("job{number}"))
            .collect();
        let began = Instant::now();
        for name in &names {
            let workload = Workload {
                namespace: "ten",
                name,
                ranks: 2,
                gpus: 1,
            };
            programs.push(workload.submit_job(cluster, &[]).await?);
        }
        for name in &names {
            running(&client, "ten", &gangs::of_job(name)).await?;
        }
        eprintln!(
            "measured: {count} gangs of 2 pods run {:.2} s after their creation",
            began.elapsed().as_secs_f64()
        );
    }
    programs.iter().try_for_each(RankProgram::finish)?;
    for number in 0..programs.len() {
        gangs::wait_for_job(&client, "ten", &format!("job{number}"), LIMIT).await?;
    }
    Ok(())
}

async fn running(client: &Client, namespace: &str, gang: &str) -> Result<muster_api::Gang> {
    gangs::wait_for_phase(client, namespace, gang, &[GangPhase::Running], LIMIT).await
}

async fn ended(client: &Client, namespace: &str, gang: &str) -> Result<()> {
    gangs::wait_for_phase(client, namespace, gang, &[GangPhase::Finished], LIMIT)
        .await
        .map(drop)
}

/// Every rank met all others and was given as many GPUs as its claim asks for, each of them a GPU of a node
/// of this cluster, and none of them was given twice.
fn ranks_got_what_was_allocated(
    cluster: &Cluster,
    ranks: &RankProgram,
    gpus_each: usize,
) -> Result<()> {
    ranks.ensure_all_met()?;
    let mut seen = Vec::new();
    for (rank, mut gpus) in ranks.gpus()? {
        ensure!(gpus.len() == gpus_each, "rank {rank} got {gpus:?}");
        let of_one_node = cluster.nodes.iter().any(|node| {
            let own = node.gpu_uuids();
            gpus.iter().all(|gpu| own.contains(gpu))
        });
        ensure!(
            of_one_node,
            "rank {rank} got GPUs that no node has: {gpus:?}"
        );
        seen.append(&mut gpus);
    }
    let given = seen.len();
    seen.sort();
    seen.dedup();
    ensure!(seen.len() == given, "a GPU was given to two ranks");
    Ok(())
}

/// Whether the text has this number as a word.
fn has_number(text: &str, number: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| word == number)
}
