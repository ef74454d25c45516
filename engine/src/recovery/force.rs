//! Whether a pod that does not die may be deleted by force, and by whose word.
//!
//! Such a deletion takes the pod out of the API server and nothing off its machine: what ran there may run on beside its successor. So it needs
//! somebody who knows that it does not, or who bears that it may.

/// Which pods may be deleted by force, as an administrator says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForcePolicy {
    /// None.
    Never,
    /// Those on nodes that are fenced: out of service, or gone.
    #[default]
    Fenced,
    /// Those as well whose owner consents, on nodes that are not Ready.
    WithConsent,
}

/// What has become of a pod's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForceNode {
    /// It is Ready: its kubelet ends the pod, however long that takes.
    Ready,
    /// It is not, or its kubelet is silent.
    NotReady {
        /// Whether that has lasted for as long as it takes until a node is lost.
        lasts: bool,
    },
    /// Its kubelet is silent, and somebody said that the machine is off.
    OutOfService,
    /// There is none of its name.
    Gone {
        /// Whether it is gone, or was not Ready before, for as long as it takes until a node is lost. A Node may be deleted by mistake, or to
        /// be registered anew, and its kubelet registers it again within seconds: what is bound to the name runs on.
        lasts: bool,
    },
}

/// A pod that did not die in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HangingPod {
    /// What the administrator says.
    pub policy: ForcePolicy,
    /// Its node.
    pub node: ForceNode,
    /// Whether its owner consents.
    pub owner_consents: bool,
    /// Whether all that it holds stays charged until a driver has given it back. What a device plugin or another driver handed out is
    /// charged for as long as the pod is there, and no longer.
    pub is_answered_for: bool,
}

/// By whose word a pod is deleted by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForceWord {
    /// Of whoever said that the machine is off.
    OutOfService,
    /// Of whoever deleted the Node.
    NodeGone,
    /// Of administrator and owner, who both bear that it may run on.
    Consent,
}

impl ForceWord {
    /// What that is, for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::OutOfService => "the node is out of service",
            Self::NodeGone => "the node is gone",
            Self::Consent => "the node is not Ready for long, and administrator and owner consent",
        }
    }
}

/// Why a pod is not deleted by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotForced {
    /// Its node is Ready.
    NodeReady,
    /// The administrator wants none to be.
    Never,
    /// Its node may run it still, and the administrator consents to nothing but fences.
    NotFenced,
    /// Its node may run it still, and its owner does not consent.
    OwnerSilent,
    /// Its node may run it still, and what it holds nobody would answer for once it is gone.
    NotAnsweredFor,
    /// It is not known for long enough that its node is not Ready, or gone.
    TooSoon,
}

impl NotForced {
    /// Why, and what would help, for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::NodeReady => {
                "the node is Ready, where nothing is deleted by force: look there for what keeps it (a process that cannot be killed, a volume that cannot be unmounted), or start the machine anew"
            }
            Self::Never => {
                "nothing is deleted by force, as recovery.forceDeletion is Never: delete it yourself once the machine is off"
            }
            Self::NotFenced => {
                "the node is not Ready and may run it still: once the machine is off, set the taint node.kubernetes.io/out-of-service, or delete the Node"
            }
            Self::OwnerSilent => {
                "the node is not Ready and may run it still: once the machine is off, set the taint node.kubernetes.io/out-of-service, or delete the Node; or consent by the annotation muster.dev/force-deletion: \"true\" of the pod"
            }
            Self::NotAnsweredFor => {
                "the node is not Ready and may run it still, and part of what it holds is charged only as long as the pod is there: once the machine is off, set the taint node.kubernetes.io/out-of-service, or delete the Node"
            }
            Self::TooSoon => {
                "the node is not Ready, or gone: if that lasts it is deleted by force, by consent not while many nodes are silent at once"
            }
        }
    }
}

/// Whether the pod may be deleted by force, and by whose word.
///
/// # Errors
///
/// Why it may not.
pub fn may_force(pod: HangingPod) -> Result<ForceWord, NotForced> {
    let (word, lasts) = match pod.node {
        ForceNode::Ready => return Err(NotForced::NodeReady),
        // Nobody says that of a node by mistake.
        ForceNode::OutOfService => (ForceWord::OutOfService, true),
        ForceNode::Gone { lasts } => (ForceWord::NodeGone, lasts),
        ForceNode::NotReady { lasts } => (ForceWord::Consent, lasts),
    };
    match (pod.policy, word) {
        (ForcePolicy::Never, _) => Err(NotForced::Never),
        (ForcePolicy::Fenced, ForceWord::Consent) => Err(NotForced::NotFenced),
        (ForcePolicy::WithConsent, ForceWord::Consent) if !pod.owner_consents => {
            Err(NotForced::OwnerSilent)
        }
        (ForcePolicy::WithConsent, ForceWord::Consent) if !pod.is_answered_for => {
            Err(NotForced::NotAnsweredFor)
        }
        _ if !lasts => Err(NotForced::TooSoon),
        _ => Ok(word),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICIES: [ForcePolicy; 3] = [
        ForcePolicy::Never,
        ForcePolicy::Fenced,
        ForcePolicy::WithConsent,
    ];

    /// Every pod on such a node, by every policy.
    fn pods(node: ForceNode) -> impl Iterator<Item = HangingPod> {
        POLICIES.into_iter().flat_map(move |policy| {
            [false, true].into_iter().flat_map(move |owner_consents| {
                [false, true].map(|is_answered_for| HangingPod {
                    policy,
                    node,
                    owner_consents,
                    is_answered_for,
                })
            })
        })
    }

    #[test]
    fn on_a_node_that_is_ready_nothing_is_forced_whoever_consents() {
        for pod in pods(ForceNode::Ready) {
            assert_eq!(may_force(pod), Err(NotForced::NodeReady), "{pod:?}");
        }
    }

    #[test]
    fn a_fence_is_enough_unless_an_administrator_wants_nothing_forced() {
        for (node, word) in [
            (ForceNode::OutOfService, ForceWord::OutOfService),
            (ForceNode::Gone { lasts: true }, ForceWord::NodeGone),
        ] {
            for pod in pods(node) {
                let expected = if pod.policy == ForcePolicy::Never {
                    Err(NotForced::Never)
                } else {
                    Ok(word)
                };
                assert_eq!(may_force(pod), expected, "{pod:?}");
            }
        }
    }

    #[test]
    fn a_node_that_is_gone_for_a_moment_may_be_registered_again_with_all_that_runs_there() {
        for pod in pods(ForceNode::Gone { lasts: false }) {
            let expected = if pod.policy == ForcePolicy::Never {
                NotForced::Never
            } else {
                NotForced::TooSoon
            };
            assert_eq!(may_force(pod), Err(expected), "{pod:?}");
        }
    }

    #[test]
    fn without_a_fence_it_takes_both_words_time_and_a_driver_that_answers() {
        use ForcePolicy::{Fenced, Never, WithConsent};
        for (policy, owner_consents, is_answered_for, lasts, expected) in [
            (Never, true, true, true, Err(NotForced::Never)),
            (Fenced, true, true, true, Err(NotForced::NotFenced)),
            (WithConsent, false, true, true, Err(NotForced::OwnerSilent)),
            (
                WithConsent,
                true,
                false,
                true,
                Err(NotForced::NotAnsweredFor),
            ),
            (WithConsent, true, true, false, Err(NotForced::TooSoon)),
            (WithConsent, true, true, true, Ok(ForceWord::Consent)),
        ] {
            let pod = HangingPod {
                policy,
                node: ForceNode::NotReady { lasts },
                owner_consents,
                is_answered_for,
            };
            assert_eq!(may_force(pod), expected, "{pod:?}");
        }
    }
}
