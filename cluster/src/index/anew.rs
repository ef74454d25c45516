//! Pods that may be planned anew though they have their place: what drains their node is to move them, if they have another one.
//!
//! The rules about nodes of a pod that is placed are not read, since they have done their work. Of these they are: like those of pods that wait, with the
//! same limit for each namespace, judged apart, and told to the nodes a few at a time. Until that is done it is not known where such a
//! pod may go. It is said again whenever the pod's gang is looked at; what was said of a pod that is gone, or read anew, is forgotten.

use std::sync::Arc;

use muster_engine::NodeFilterId;

use super::{Index, NamespacedName};
use crate::{formed::PendingReason, node_filter::NodeRules, pod};

impl Index {
    /// Says whether a pod that is placed may be planned anew; whether that is news. Idempotent.
    pub fn plan_anew(&mut self, uid: &str, is_wanted: bool) -> bool {
        let known = self.requests.anew.contains_key(uid);
        if known == is_wanted {
            return false;
        }
        let pod = self.our_pod_by_uid(uid).map(|pod| Arc::clone(&pod.object));
        let Some(pod) = pod.filter(|pod| pod.is_placed()) else {
            return false;
        };
        let key = NamespacedName::of_pod(&pod);
        if !is_wanted {
            self.requests.anew.remove(uid);
            self.forget_filter(&key.namespace, uid);
            return true;
        }
        let rules = NodeRules::of_pod(&pod);
        let filter = rules.and_then(|rules| self.filter_of(&key, rules));
        let filter = filter.map_err(|error| error.wait(&format!("pod {}", pod::name(&pod))));
        if let Ok(filter) = &filter {
            self.use_filter(&key, uid, *filter);
        }
        self.requests.anew.insert(uid.to_owned(), filter);
        true
    }

    /// The rules about nodes of a pod that may be planned anew, or why they cannot be read; `None`: that is not known yet.
    pub fn filter_anew(&self, uid: &str) -> Option<Result<NodeFilterId, PendingReason>> {
        match self.requests.anew.get(uid)? {
            Err(why) => Some(Err(why.clone())),
            Ok(filter) => self.is_told_to_nodes(*filter).then_some(Ok(*filter)),
        }
    }
}
