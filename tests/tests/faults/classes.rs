//! Whom each fault costs its attempt, and whom it does not.
//!
//! A gang has two ranks with two GPUs each. One GPU of its second rank breaks; beside the gang a pod runs on another GPU of that node. Whoever is
//! restarted is so whole, once, with new pods, and without the broken GPU; whoever is not has the same pods as before. The pod beside it is
//! touched by nothing: also a fault for which the node has to be started anew closes the node to what is new, and ends nobody who holds another GPU.
//!
//! The Node says so, too, by the condition that the controller writes: of a fault that a person or a restart has to mend, until it is mended, and of nothing else.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use muster_api::{
    conditions::{NODE_GPU_ANOMALY, NODE_GPU_FAULT},
    keys::{TAINT_FAULT, TAINT_GONE, TAINT_LINK_FAULT},
};
use muster_tests::{
    builders::RankProgram,
    cluster::Cluster,
    faults::{Fault, TargetGpu},
    kubernetes::LIMIT,
    scenarios,
    suite::Scenario,
    workloads::Workload,
};

use crate::{
    node_condition::{
        ensure_node_says_no_fault, wait_until_node_says, wait_until_node_says_no_fault,
    },
    seed,
    stage::{Running, Single, in_room, mended, prepare_team, wait_until_listed, wait_until_told},
};

/// Namespace and Team.
const NAMESPACE: &str = "whom";
/// Rooms, each of two nodes: so many gangs lose a GPU at the same time.
const ROOMS: usize = 2;
/// Longest time of one row.
const LIMIT_OF_ROW: Duration = Duration::from_mins(2);

/// A row of the table.
struct Case {
    /// Name of the Job.
    name: &'static str,
    fault: Fault,
    told: Told,
    follows: Follows,
}

/// How it is told.
#[derive(Clone, Copy, Debug)]
enum Told {
    /// By the taint of this key with this value: nothing new is placed there.
    Taint(&'static str, &'static str),
    /// As an anomaly of this class, for this cause.
    Anomaly(&'static str, &'static str),
}

impl Told {
    /// Type and reason of the condition that the Node gets. A GPU that is gone has no class of its own, and needs the machine started anew like one of
    /// which the driver says so; what is contained is over with whoever used it.
    fn on_node(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Taint(_, "Contained") | Self::Anomaly("App", _) => None,
            Self::Taint(_, "") => Some((NODE_GPU_FAULT, "Reboot")),
            Self::Taint(_, class) => Some((NODE_GPU_FAULT, class)),
            Self::Anomaly(class, _) => Some((NODE_GPU_ANOMALY, class)),
        }
    }

    /// Whether no fault is to be told of the Node.
    fn is_no_fault_of_node(self) -> bool {
        matches!(self, Self::Anomaly(..) | Self::Taint(_, "Contained"))
    }
}

/// What follows for whoever holds the GPU, and needs its NVLinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Follows {
    /// They are restarted, and may be given the GPU again once nobody has it.
    Restart,
    /// They are restarted, and not on that GPU.
    RestartElsewhere,
    /// The same, and nothing new is started on that node.
    RestartAndCloseNode,
    /// They go on, and are told of it.
    GoOnTold,
    /// They go on.
    GoOn,
}

/// Those that cost the attempt. The last one only after half a minute: it is left out of samples.
static COSTING: [Case; 5] = [
    Case {
        name: "xid-79",
        fault: Fault::Xid(79),
        told: Told::Taint(TAINT_FAULT, "Reboot"),
        follows: Follows::RestartAndCloseNode,
    },
    Case {
        name: "xid-48",
        fault: Fault::Xid(48),
        told: Told::Taint(TAINT_FAULT, "Reset"),
        follows: Follows::RestartElsewhere,
    },
    Case {
        name: "xid-94",
        fault: Fault::Xid(94),
        told: Told::Taint(TAINT_FAULT, "Contained"),
        follows: Follows::Restart,
    },
    Case {
        name: "xid-74",
        fault: Fault::Xid(74),
        told: Told::Taint(TAINT_LINK_FAULT, "Link"),
        follows: Follows::RestartElsewhere,
    },
    Case {
        name: "lost",
        fault: Fault::Lost,
        told: Told::Taint(TAINT_GONE, ""),
        follows: Follows::RestartElsewhere,
    },
];

/// Those that cost nobody his attempt.
static SPARING: [Case; 5] = [
    Case {
        name: "xid-63",
        fault: Fault::Xid(63),
        told: Told::Anomaly("Info", "XID 63"),
        follows: Follows::GoOn,
    },
    Case {
        name: "xid-31",
        fault: Fault::Xid(31),
        told: Told::Anomaly("App", "XID 31"),
        follows: Follows::GoOn,
    },
    Case {
        name: "xid-13",
        fault: Fault::Xid(13),
        told: Told::Anomaly("App", "XID 13"),
        follows: Follows::GoOn,
    },
    Case {
        name: "row-remap-failure",
        fault: Fault::RowRemapFailure,
        told: Told::Taint(TAINT_FAULT, "Retire"),
        follows: Follows::GoOnTold,
    },
    Case {
        name: "too-hot",
        fault: Fault::TooHot,
        told: Told::Anomaly("Info", "throttled"),
        follows: Follows::GoOn,
    },
];

pub(crate) fn scenarios(is_all: bool) -> Vec<Scenario> {
    let scenario = if is_all {
        scenarios![every_fault_costs_whom_its_row_says]
    } else {
        scenarios![some_faults_cost_whom_their_rows_say]
    };
    let rows = COSTING.len() + SPARING.len();
    let in_turn = if is_all { rows.div_ceil(ROOMS) } else { 1 };
    let more = LIMIT_OF_ROW * u32::try_from(in_turn).unwrap_or(1);
    let scenario = scenario.into_iter().map(Scenario::with_fault_evictions);
    scenario.map(|one| one.with_more_time(more)).collect()
}

async fn every_fault_costs_whom_its_row_says(cluster: &mut Cluster) -> Result<()> {
    let cases: Vec<&Case> = COSTING.iter().chain(&SPARING).collect();
    cost_whom_they_say(cluster, &cases).await
}

/// One that costs the attempt, and at the same time one that does not.
async fn some_faults_cost_whom_their_rows_say(cluster: &mut Cluster) -> Result<()> {
    let (seed, quick) = (seed(), COSTING.len() - 1);
    let costing = COSTING.get(seed % quick);
    let sparing = SPARING.get(seed / quick % SPARING.len());
    let cases: Vec<&Case> = [costing, sparing].into_iter().flatten().collect();
    cost_whom_they_say(cluster, &cases).await
}

/// Each in a room of its own, and in a room one after another.
async fn cost_whom_they_say(cluster: &Cluster, cases: &[&Case]) -> Result<()> {
    prepare_team(&cluster.client(), NAMESPACE, 64).await?;
    let rooms = (0..ROOMS).map(async |room| {
        for case in cases.iter().skip(room).step_by(ROOMS) {
            costs_whom_it_says(cluster, case, &format!("room-{room}"))
                .await
                .with_context(|| format!("{:?}", case.fault))?;
        }
        anyhow::Ok(())
    });
    try_join_all(rooms).await.map(drop)
}

async fn costs_whom_it_says(cluster: &Cluster, case: &Case, room: &str) -> Result<()> {
    let workload = Workload {
        namespace: NAMESPACE,
        name: case.name,
        ranks: 2,
        gpus: 2,
    };
    let running = Running::start_where(cluster, workload, RankProgram::hanging_when_lost, |spec| {
        in_room(spec, room)
    });
    let running = running.await?;
    let gpu = running.gpu_of(cluster, 1).await?;
    let judged = breaks(cluster, case, &running, &gpu).await;
    let closed = mended(cluster, &gpu, judged).await?;
    let client = cluster.client();
    wait_until_node_says_no_fault(&client, &gpu.node).await?;
    if let Some(closed) = closed {
        closed.runs(cluster).await?;
        closed.finishes(&client).await?;
    }
    running.finishes(&client).await
}

/// The GPU breaks. What is returned waits until its node is open again.
async fn breaks(
    cluster: &Cluster,
    case: &Case,
    running: &Running<'_>,
    gpu: &TargetGpu,
) -> Result<Option<Single>> {
    let client = cluster.client();
    let beside = format!("beside-{}", case.name);
    let beside = Single::create(cluster, NAMESPACE, &beside, 1, &gpu.node).await?;
    beside.runs(cluster).await?;
    gpu.inject(case.fault)?;
    match case.told {
        Told::Taint(key, value) => {
            gpu.wait_until_tainted(&client, key, value).await?;
        }
        Told::Anomaly(class, cause) => wait_until_listed(&client, gpu, class, cause).await?,
    }
    if let Some((kind, class)) = case.told.on_node() {
        wait_until_node_says(&client, gpu, kind, class).await?;
    }
    match case.follows {
        Follows::Restart => running.restarts_once(cluster, gpu, 2 * LIMIT, &[]).await?,
        Follows::RestartElsewhere | Follows::RestartAndCloseNode => {
            running
                .restarts_once(cluster, gpu, 2 * LIMIT, &[gpu])
                .await?;
        }
        Follows::GoOnTold => {
            wait_until_told(&client, running, "it goes on").await?;
            running.stays(&client).await?;
        }
        Follows::GoOn => running.stays(&client).await?,
    }
    let mut closed = None;
    if case.follows == Follows::RestartAndCloseNode {
        let name = format!("new-{}", case.name);
        let new = Single::create(cluster, NAMESPACE, &name, 1, &gpu.node).await?;
        new.waits_for_place(&client).await?;
        closed = Some(new);
    }
    beside.is_untouched(&client).await?;
    beside.finishes(&client).await?;
    // Long after it was told: the gang was started anew, or looked at for a while, and a pod has ended.
    if case.told.is_no_fault_of_node() {
        ensure_node_says_no_fault(&client, &gpu.node).await?;
    }
    Ok(closed)
}
