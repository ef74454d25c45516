//! Gangs that Jobs own: the Job, and what its controller and the claim controller make of it.

use jiff::Timestamp;
use muster_api::keys;
use muster_cluster::object::Kind;
use muster_sim::fixtures::JOB_NAME;
use serde_json::{Value, json};

use super::{
    GIB, Shape,
    pods::{claim_spec, pod_spec, within},
};

const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// What each pod asks for beside GPUs.
const MEMORY_BYTES: i64 = 16 * GIB;

/// A gang whose pods a Job makes, and makes again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobGang {
    pub(crate) number: usize,
    pub(crate) team: usize,
    pub(crate) shape: Shape,
}

impl JobGang {
    /// The name of its Job.
    pub(crate) fn name(&self) -> String {
        format!("job-{:06}", self.number)
    }

    fn uid(&self) -> String {
        format!("uid-{}", self.name())
    }
}

/// The Job: Indexed, all ranks at once.
pub(crate) fn job(gang: &JobGang) -> Value {
    let pods = gang.shape.pods;
    json!({"metadata": within(gang.team, &gang.name(), gang.number), "spec": {
        "completionMode": "Indexed", "completions": pods, "parallelism": pods, "backoffLimit": 6, "suspend": false,
        "template": {"spec": pod_spec("gpus", MEMORY_BYTES)},
    }})
}

/// A pod of a rank that the Job's controller makes now, gated as the webhook has it, and its claim, which has its name. No two are
/// made with the same number.
pub(crate) fn rank_pod(
    gang: &JobGang,
    rank: usize,
    number: usize,
    now: Timestamp,
) -> [(Kind, Value); 2] {
    let (job, name) = (gang.name(), format!("{}-{rank}-{number:06}", gang.name()));
    let made = |name: &str| {
        let mut metadata = within(gang.team, name, gang.number);
        metadata["creationTimestamp"] = json!(now.to_string());
        metadata
    };
    let mut metadata = made(&name);
    let index = rank.to_string();
    metadata["labels"] = json!({JOB_NAME: job, COMPLETION_INDEX: index});
    metadata["annotations"] = json!({COMPLETION_INDEX: index});
    metadata["ownerReferences"] = json!([{
        "apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": gang.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let mut spec = pod_spec(&name, MEMORY_BYTES);
    spec["restartPolicy"] = json!("Never");
    spec["schedulingGates"] = json!([{"name": keys::ADMISSION_GATE}]);
    let pod = json!({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}});
    let claim = json!({"metadata": made(&name), "spec": claim_spec(gang.shape.gpus)});
    [(Kind::ResourceClaim, claim), (Kind::Pod, pod)]
}
