//! The messages of `k8s.io/kube-scheduler/extender/v1`.
//!
//! kube-scheduler has no JSON tags on these types: it sends Go field names in PascalCase, every field
//! always, `null` where unset, and decodes answers without regard to case. The protocol is frozen
//! (`extender/v1/types.go` has had one content since Kubernetes 1.33).
//!
//! Requests are decoded into slim structs that borrow from the body: of a pod only what the filter
//! reads, and 5,000 node names without 5,000 allocations. The lower-case spelling is accepted too,
//! as Go does, so that a request can be written by hand.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Affinity, Toleration};
use serde::{
    Deserialize, Serialize, Serializer,
    de::IgnoredAny,
    ser::{SerializeMap, SerializeSeq},
};
use std::collections::BTreeMap;

/// Request of the verbs filter and prioritize.
#[derive(Debug, Deserialize)]
pub struct Arguments<'a> {
    /// The pod that is being scheduled.
    #[serde(borrow, rename = "Pod", alias = "pod")]
    pub pod: RequestedPod<'a>,
    /// The nodes in full; kube-scheduler sends them only where `nodeCacheCapable` is false, which is
    /// a wrong configuration for this extender. Only their presence matters.
    #[serde(default, rename = "Nodes", alias = "nodes")]
    pub nodes: Option<IgnoredAny>,
    /// Names of the nodes that passed every other filter.
    #[serde(
        borrow,
        default,
        rename = "NodeNames",
        alias = "nodenames",
        alias = "nodeNames"
    )]
    pub node_names: Option<Vec<NodeName<'a>>>,
}

/// Name of a node, borrowed from the request (a bare `Vec<Cow>` would be copied by serde).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct NodeName<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// What the filter reads of a pod. kube-scheduler sends it without `apiVersion` and `kind`.
#[derive(Debug, Default, Deserialize)]
pub struct RequestedPod<'a> {
    /// Identity and annotations.
    #[serde(borrow, default)]
    pub metadata: RequestedMetadata<'a>,
    /// Pins and tolerations.
    #[serde(default)]
    pub spec: RequestedSpec,
}

/// Identity and annotations of a pod.
#[derive(Debug, Default, Deserialize)]
pub struct RequestedMetadata<'a> {
    /// Name.
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow, default)]
    pub namespace: Cow<'a, str>,
    /// UID.
    #[serde(borrow, default)]
    pub uid: Cow<'a, str>,
    /// Annotations; `null` where there are none.
    #[serde(default)]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// The part of a pod's spec that says where it may run.
#[derive(Debug, Default, Deserialize)]
pub struct RequestedSpec {
    /// Affinity; the controller's pin is in its required node terms.
    #[serde(default)]
    pub affinity: Option<Affinity>,
    /// Tolerations.
    #[serde(default)]
    pub tolerations: Option<Vec<Toleration>>,
}

/// Answer of the verb filter.
///
/// `NodeNames` is always a list: both lists `null` would also mean rejection, but an empty list says so.
#[derive(Debug, Serialize)]
pub struct FilterAnswer<'a> {
    /// Nodes on which the pod may run: a subset of the request, each once.
    #[serde(rename = "NodeNames")]
    pub node_names: Vec<&'a str>,
    /// Nodes where preemption could help. Always empty: what an extender refuses here is never cured
    /// by evicting a victim.
    #[serde(rename = "FailedNodes")]
    pub failed_nodes: BTreeMap<&'a str, &'a str>,
    /// Nodes where nothing that the scheduler can do would help.
    #[serde(rename = "FailedAndUnresolvableNodes")]
    pub failed_and_unresolvable_nodes: RefusedNodes<'a>,
    /// Non-empty only where the request itself could not be judged. Never a rejection: the scheduler
    /// takes the error path.
    #[serde(rename = "Error")]
    pub error: &'a str,
}

/// Nodes that are all refused for one reason; a JSON map from name to reason.
///
/// One constant text per cause: kube-scheduler puts a histogram of the texts into the pod's condition,
/// and every change of that condition wakes the pod again.
#[derive(Debug, Default)]
pub struct RefusedNodes<'a> {
    /// The names.
    pub names: Vec<&'a str>,
    /// The reason.
    pub reason: &'a str,
}

impl Serialize for RefusedNodes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.names.len()))?;
        for name in &self.names {
            map.serialize_entry(name, self.reason)?;
        }
        map.end()
    }
}

/// Answer of the verb prioritize: a bare array of `{Host, Score}`, the same score for every host.
#[derive(Debug)]
pub struct EqualScores<'a> {
    /// The nodes.
    pub hosts: Vec<&'a str>,
    /// The score of each, 0 to [`MAX_SCORE`].
    pub score: i64,
}

/// `MaxExtenderPriority`: the scheduler does not clamp, so a larger score would outweigh its own plugins.
pub const MAX_SCORE: i64 = 10;

impl Serialize for EqualScores<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct HostPriority<'a> {
            host: &'a str,
            score: i64,
        }
        let score = self.score.clamp(0, MAX_SCORE);
        let mut list = serializer.serialize_seq(Some(self.hosts.len()))?;
        for host in &self.hosts {
            list.serialize_element(&HostPriority { host, score })?;
        }
        list.end()
    }
}

/// Request of the verb preempt. Only that it is one matters: a marked pod never preempts.
#[derive(Debug, Deserialize)]
pub struct PreemptionArguments<'a> {
    /// The pod that would preempt.
    #[serde(borrow, rename = "Pod", alias = "pod")]
    pub pod: RequestedPod<'a>,
    /// Victims by node, as UIDs (`nodeCacheCapable`).
    #[serde(
        default,
        rename = "NodeNameToMetaVictims",
        alias = "nodenametometavictims",
        alias = "nodeNameToMetaVictims"
    )]
    pub meta_victims: Option<BTreeMap<String, MetaVictims>>,
}

/// Victims on one node.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaVictims {
    /// The pods that would be evicted.
    #[serde(default, rename = "Pods", alias = "pods")]
    pub pods: Option<Vec<MetaPod>>,
    /// How many disruption budgets that would violate.
    #[serde(default, rename = "NumPDBViolations", alias = "numpdbviolations")]
    pub pdb_violations: i64,
}

/// A victim.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaPod {
    /// Its UID.
    #[serde(rename = "UID", alias = "uid")]
    pub uid: String,
}

/// Answer of the verb preempt. A node that is left out is no candidate any more.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct PreemptionAnswer {
    /// The nodes on which preemption may go ahead.
    pub node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

#[cfg(test)]
mod tests {
    use super::*;

    // The golden messages of kube-scheduler 1.37 with `nodeCacheCapable: true`.
    const FILTER_REQUEST: &str = r#"{"Pod":{"metadata":{"name":"w-0","namespace":"ml","uid":"u0"},"spec":{"containers":null},"status":{}},"Nodes":null,"NodeNames":["n1","n2","n3"]}"#;

    fn names<'a>(arguments: &'a Arguments<'_>) -> Vec<&'a str> {
        arguments
            .node_names
            .iter()
            .flatten()
            .map(|name| name.0.as_ref())
            .collect()
    }

    #[test]
    fn t1_t2_a_filter_request_is_read_without_kind_containers_or_status() {
        let arguments: Arguments<'_> = serde_json::from_str(FILTER_REQUEST).unwrap();
        assert_eq!(arguments.pod.metadata.uid, "u0");
        assert_eq!(names(&arguments), ["n1", "n2", "n3"]);
        assert!(arguments.nodes.is_none());
        assert!(
            arguments
                .node_names
                .unwrap()
                .iter()
                .all(|name| matches!(name.0, Cow::Borrowed(_))),
            "names are borrowed from the body"
        );
    }

    #[test]
    fn t1_a_lower_cased_request_is_read_as_go_reads_it() {
        let lower = FILTER_REQUEST.to_lowercase();
        let arguments: Arguments<'_> = serde_json::from_str(&lower).unwrap();
        assert_eq!(names(&arguments), ["n1", "n2", "n3"]);
        let preempt: PreemptionArguments<'_> = serde_json::from_str(
            r#"{"pod":{},"nodenametovictims":null,"nodenametometavictims":{"n1":{"pods":[{"uid":"v1"}],"numpdbviolations":0}}}"#,
        )
        .unwrap();
        assert_eq!(preempt.meta_victims.unwrap().len(), 1);
    }

    #[test]
    fn t1_null_lists_are_absent_lists() {
        let arguments: Arguments<'_> = serde_json::from_str(
            r#"{"Pod":{"metadata":{"annotations":null},"spec":{"affinity":null,"tolerations":null}},"Nodes":null,"NodeNames":null}"#,
        )
        .unwrap();
        assert!(arguments.node_names.is_none());
        let victims: MetaVictims = serde_json::from_str(r#"{"Pods":null}"#).unwrap();
        assert_eq!(victims, MetaVictims::default());
    }

    #[test]
    fn t4_a_rejection_is_an_empty_list_and_never_null() {
        let answer = FilterAnswer {
            node_names: vec![],
            failed_nodes: BTreeMap::new(),
            failed_and_unresolvable_nodes: RefusedNodes {
                names: vec!["n1", "n2"],
                reason: "gang not admitted",
            },
            error: "",
        };
        assert_eq!(
            serde_json::to_string(&answer).unwrap(),
            r#"{"NodeNames":[],"FailedNodes":{},"FailedAndUnresolvableNodes":{"n1":"gang not admitted","n2":"gang not admitted"},"Error":""}"#
        );
    }

    #[test]
    fn scores_are_a_bare_array_within_the_schedulers_bounds() {
        let answer = EqualScores {
            hosts: vec!["n1", "n2"],
            score: 700,
        };
        assert_eq!(
            serde_json::to_string(&answer).unwrap(),
            r#"[{"Host":"n1","Score":10},{"Host":"n2","Score":10}]"#
        );
    }

    #[test]
    fn victims_keep_the_spelling_of_go() {
        let golden =
            r#"{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"v1"}],"NumPDBViolations":0}}}"#;
        let request = format!(
            r#"{{"Pod":{{"metadata":{{"name":"w"}}}},"NodeNameToVictims":null,{}"#,
            &golden[1..]
        );
        let arguments: PreemptionArguments<'_> = serde_json::from_str(&request).unwrap();
        let answer = PreemptionAnswer {
            node_name_to_meta_victims: arguments.meta_victims.unwrap(),
        };
        assert_eq!(serde_json::to_string(&answer).unwrap(), golden);
    }

    #[test]
    fn a_field_that_comes_twice_is_refused_instead_of_guessed() {
        let twice = r#"{"Pod":{},"NodeNames":["n1"],"NodeNames":["n2"]}"#;
        assert!(serde_json::from_str::<Arguments<'_>>(twice).is_err());
    }
}
