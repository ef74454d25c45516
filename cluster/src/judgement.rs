//! Judging rules (device selectors, rules about nodes) apart from the index.
//!
//! Rules come from anybody, so judging them costs their author and nobody else. The index hands out
//! [`JudgementRequest`]s, a few at a time and in turns between those who use the rules. A request needs nothing but itself
//! and may be judged on any thread; what comes of it goes back as a [`Judgement`].
//!
//! A request is judged for [`SLICE`] at most, and then goes on in its next turn. A rule that takes longer than [`LIMIT`]
//! altogether is given up, and its users are told so.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use muster_engine::{NodeFilterId, SelectorId};

use crate::{
    devices::PublishedDevice,
    node_filter::{NodeBasis, NodeRules},
    node_verdicts::NodeVerdicts,
    selectors::{Expressions, InvalidExpression, SelectorText, Subject, Verdict},
    text::one_line,
};

/// For how long one request is judged before others have their turn.
pub const SLICE: Duration = Duration::from_millis(20);
/// Most time that judging one rule may take, for all devices or nodes together.
pub const LIMIT: Duration = Duration::from_secs(1);
/// Most devices or nodes of one request.
pub(crate) const SUBJECTS_PER_REQUEST: usize = 2_048;
/// Most bytes of a cause.
const CAUSE_BYTES: usize = 300;

/// Something that is judged for each device or node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A device selector.
    Selector(SelectorId),
    /// Rules about nodes.
    Filter(NodeFilterId),
}

/// Something to be judged. It needs nothing else: [`JudgementRequest::judge`] may run on any thread.
#[derive(Clone, Debug)]
pub struct JudgementRequest {
    pub(crate) rule: Rule,
    pub(crate) work: Work,
    pub(crate) progress: Progress,
}

/// How far the judging of a rule has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Devices or nodes that were judged before.
    pub(crate) judged: usize,
    /// Of how many.
    pub(crate) total: usize,
    /// What that took.
    pub(crate) spent: Duration,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Compile(SelectorText),
    Devices {
        expressions: Arc<Expressions>,
        /// In the order of their subjects.
        devices: Vec<(Subject, PublishedDevice)>,
    },
    Nodes {
        rules: Arc<NodeRules>,
        /// Of nodes that were judged before.
        verdicts: NodeVerdicts,
        /// In the order of their names.
        nodes: Vec<Arc<Node>>,
    },
}

/// What came of a [`JudgementRequest`].
#[derive(Clone, Debug)]
pub struct Judgement {
    pub(crate) rule: Rule,
    pub(crate) outcome: Outcome,
    pub(crate) spent: Duration,
}

#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Compiled(Result<Arc<Expressions>, InvalidExpression>),
    Devices {
        /// What does not merely differ.
        verdicts: Vec<(Subject, Verdict)>,
        judged: usize,
        /// The last one that was judged.
        up_to: Option<Subject>,
    },
    Nodes {
        passed: Vec<(String, NodeBasis)>,
        verdicts: NodeVerdicts,
        judged: usize,
        /// The last one that was judged.
        up_to: Option<String>,
    },
    /// With the cause.
    GivenUp(Arc<str>),
}

impl JudgementRequest {
    /// Judges until everything is judged or [`SLICE`] has passed; `elapsed` says how much time has passed since the call.
    /// Pure but for that. At least one device or node is judged.
    pub fn judge(&self, elapsed: &dyn Fn() -> Duration) -> Judgement {
        let outcome = match &self.work {
            _ if self.progress.spent >= LIMIT => self.too_slow(0, Duration::ZERO),
            Work::Compile(selector) => {
                Outcome::Compiled(Expressions::compile(selector).map(Arc::new))
            }
            Work::Devices {
                expressions,
                devices,
            } => {
                let mut known: HashMap<String, Verdict> = HashMap::new();
                let mut verdicts = Vec::new();
                let judged = until_late(devices, elapsed, |(subject, device)| {
                    let signature = expressions.signature(device);
                    let verdict = known
                        .entry(signature)
                        .or_insert_with(|| expressions.evaluate(device));
                    if *verdict != Verdict::Differs {
                        verdicts.push((*subject, verdict.clone()));
                    }
                });
                Outcome::Devices {
                    verdicts,
                    judged,
                    up_to: devices[..judged].last().map(|(subject, _)| *subject),
                }
            }
            Work::Nodes {
                rules,
                verdicts,
                nodes,
            } => {
                let mut passed = Vec::new();
                let mut verdicts = verdicts.clone();
                let judged = until_late(nodes, elapsed, |node| {
                    if verdicts.judge(rules, node) {
                        passed.push((name(node), NodeBasis::of(node)));
                    }
                });
                Outcome::Nodes {
                    passed,
                    verdicts,
                    judged,
                    up_to: nodes[..judged].last().map(|node| name(node)),
                }
            }
        };
        let spent = elapsed();
        let left = match (&self.work, &outcome) {
            (Work::Devices { devices, .. }, Outcome::Devices { judged, .. }) => {
                devices.len() - judged
            }
            (Work::Nodes { nodes, .. }, Outcome::Nodes { judged, .. }) => nodes.len() - judged,
            _ => 0,
        };
        let outcome = if left > 0 && self.progress.spent + spent >= LIMIT {
            self.too_slow(self.subjects() - left, spent)
        } else {
            outcome
        };
        Judgement {
            rule: self.rule,
            outcome,
            spent,
        }
    }

    /// The judgement if whoever was to judge gives up, with the cause. The rule then matches nothing, and its users are
    /// told; it is tried again later.
    pub fn give_up(&self, cause: &str) -> Judgement {
        Judgement {
            rule: self.rule,
            outcome: Outcome::GivenUp(one_line(cause, CAUSE_BYTES).into()),
            spent: Duration::ZERO,
        }
    }

    /// Devices or nodes that it is about.
    pub fn subjects(&self) -> usize {
        match &self.work {
            Work::Compile(_) => 0,
            Work::Devices { devices, .. } => devices.len(),
            Work::Nodes { nodes, .. } => nodes.len(),
        }
    }

    fn too_slow(&self, judged: usize, spent: Duration) -> Outcome {
        let Progress {
            judged: before,
            total,
            spent: earlier,
        } = self.progress;
        let seconds = (earlier + spent).as_secs_f64();
        let judged = before + judged;
        let limit = LIMIT.as_secs();
        let (what, advice) = match self.rule {
            Rule::Selector(_) => (
                "devices",
                "use fewer or simpler expressions, and attributes that many devices have in common",
            ),
            Rule::Filter(_) => (
                "nodes",
                "name fewer values, or label the nodes that are meant",
            ),
        };
        Outcome::GivenUp(
            format!(
                "comparing it with {judged} of {total} {what} took {seconds:.1} s, and with all it may take {limit} s; {advice}"
            )
            .into(),
        )
    }
}

/// How many were judged before it was late.
fn until_late<T>(all: &[T], elapsed: &dyn Fn() -> Duration, mut judge: impl FnMut(&T)) -> usize {
    for (place, one) in all.iter().enumerate() {
        if place > 0 && elapsed() >= SLICE {
            return place;
        }
        judge(one);
    }
    all.len()
}

fn name(node: &Node) -> String {
    node.metadata.name.clone().unwrap_or_default()
}
