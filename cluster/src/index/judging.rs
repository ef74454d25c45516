//! Having rules judged apart: what is handed out, and what is done with the answers.

use muster_engine::{NodeFilterId, SelectorId, Timestamp};

use super::{Index, NamespacedName};
use crate::judgement::{Judgement, JudgementRequest, Rule};

/// Most selectors that one namespace may use which are judged for each device.
pub(super) const OWN_SELECTORS_PER_USER: usize = 4;
/// Most selectors of all that are judged for each device.
pub(super) const OWN_SELECTORS: usize = 64;
/// After how many seconds a rule that was given up is tried again: the machine may have been busy with something else.
pub(super) const TRY_AGAIN_SECONDS: i64 = 600;

impl Index {
    /// Takes what is to be judged next, at most `room` requests, in turns between the namespaces that use the rules. Each
    /// may be judged on any thread, and is to be answered by [`Index::give_judgements`]. Until then the gangs that use the
    /// rule wait, and nobody else.
    pub fn take_judgements(&mut self, room: usize) -> Vec<JudgementRequest> {
        let mut requests = Vec::new();
        while requests.len() < room {
            let Some(rule) = self.docket.next() else {
                break;
            };
            match self.request(rule) {
                Some(request) => requests.push(request),
                None => self.docket.remove(rule),
            }
        }
        requests
    }

    /// Takes judgements in, in any order. One that nobody waits for any more changes nothing.
    pub fn give_judgements(&mut self, judgements: impl IntoIterator<Item = Judgement>) {
        for judgement in judgements {
            let rule = judgement.rule;
            match rule {
                Rule::Selector(id) => self.give_about_selector(id, judgement),
                Rule::Filter(id) => self.give_about_filter(id, judgement),
            }
            self.docket.answered(rule);
            if !self.is_pending(rule) {
                self.docket.remove(rule);
            }
        }
    }

    /// From now on rules are handed out by [`Index::take_judgements`]. Until this is called the index judges by itself
    /// within [`Index::refresh`], which is right for tests and tools, where nobody else waits.
    pub fn judge_apart(&mut self) {
        self.judges_inline = false;
    }

    /// Judges everything that is to be judged, without a limit of time.
    pub(super) fn judge_inline(&mut self) {
        while let Some(request) = self.take_judgements(1).pop() {
            self.give_judgements([request.judge(&|| std::time::Duration::ZERO)]);
        }
    }

    /// A selector of an administrator is judged at once: what is charged goes by it.
    pub(super) fn judge_at_once(&mut self, id: SelectorId) {
        while let Some(request) = self.selectors.request(id, &self.device_kinds) {
            self.give_about_selector(id, request.judge(&|| std::time::Duration::ZERO));
        }
    }

    fn request(&mut self, rule: Rule) -> Option<JudgementRequest> {
        match rule {
            Rule::Selector(id) => self.selectors.request(id, &self.device_kinds),
            Rule::Filter(id) => self.filters.request(id, self.objects.nodes.items()),
        }
    }

    fn is_pending(&self, rule: Rule) -> bool {
        match rule {
            Rule::Selector(id) => self.selectors.is_pending(id, &self.device_kinds),
            Rule::Filter(id) => self.filters.knows(id) && !self.filters.is_judged(id),
        }
    }

    fn give_about_selector(&mut self, id: SelectorId, judgement: Judgement) {
        let given = self.selectors.give(judgement, &self.device_kinds);
        for subject in given.news {
            let nodes = self.nodes_waiting.of(&subject).cloned();
            self.touched.nodes.extend(nodes);
        }
        self.limit_own(id);
        if !self.selectors.is_lagging() {
            self.nodes_waiting.clear();
        }
        let given_up = self.selectors.given_up(id).is_some();
        if given.is_refused || given_up {
            self.note_given_up(Rule::Selector(id), given_up);
            // A claim whose expressions turned out to be none is read again, and says so.
            let claims = self.claims_by_selector.of(&id).cloned();
            self.touched.claims.extend(claims);
            self.forget_requests_with(&[id].into());
        }
    }

    /// Gives up a selector that is to be judged for each device where there are too many such already.
    fn limit_own(&mut self, id: SelectorId) {
        if !self.selectors.reads_own(id) || self.selectors.is_judged(id) {
            return;
        }
        let uses_many = |user: &&String| {
            let used = self.selector_shares.rules_of(user);
            used.filter(|rule| self.selectors.reads_own(*rule)).count() > OWN_SELECTORS_PER_USER
        };
        let by_user = self.selector_shares.users_of(id).find(uses_many);
        let cause = if let Some(user) = by_user {
            format!(
                "it reads what each device has of its own (a UUID, say), and namespace {user} uses {OWN_SELECTORS_PER_USER} such selectors already"
            )
        } else if self.selectors.reading_own() > OWN_SELECTORS {
            format!(
                "it reads what each device has of its own (a UUID, say), and {OWN_SELECTORS} such selectors are in use already"
            )
        } else {
            return;
        };
        self.selectors.give_up(id, cause.into());
    }

    fn give_about_filter(&mut self, id: NodeFilterId, judgement: Judgement) {
        let (passed, has_ended) = self.filters.give(judgement);
        for (node, basis) in passed {
            self.views.note_passed(&node, basis, id);
        }
        if has_ended {
            let given_up = self.filters.given_up(id).is_some();
            self.note_given_up(Rule::Filter(id), given_up);
            if given_up {
                self.forget_requests_with_filter(id);
            }
        }
    }

    fn note_given_up(&mut self, rule: Rule, given_up: bool) {
        if given_up {
            let at = Timestamp(self.derived_at.0.saturating_add(TRY_AGAIN_SECONDS));
            self.try_again.entry(rule).or_insert(at);
        } else {
            self.try_again.remove(&rule);
        }
    }

    /// Tries rules again that were given up a while ago.
    pub(super) fn try_again(&mut self, now: Timestamp) {
        self.derived_at = now;
        let due: Vec<Rule> = self
            .try_again
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(rule, _)| *rule)
            .collect();
        for rule in due {
            self.try_again.remove(&rule);
            match rule {
                Rule::Selector(id) => {
                    self.selectors.try_again(id);
                    self.add_selector(id);
                    self.forget_requests_with(&[id].into());
                }
                Rule::Filter(id) => {
                    self.filters.try_again(id);
                    self.add_filter(id);
                    self.forget_requests_with_filter(id);
                }
            }
        }
    }

    /// A new selector is judged, and then told to the nodes.
    pub(super) fn add_selector(&mut self, id: SelectorId) {
        self.rollout.add_selector(id);
        self.ask_about_selector(id);
    }

    /// Kinds of devices, or devices, appeared.
    pub(super) fn ask_about_new_devices(&mut self, new_kinds: bool) {
        for id in self.selectors.note_appeared(new_kinds, &self.device_kinds) {
            let mut flavors = self.views.flavors.iter();
            let by_flavor = flavors.any(|flavor| flavor.selector() == Some(id));
            // That of the class of whole GPUs.
            if by_flavor || self.views.counted_resources.uses(id) {
                self.judge_at_once(id);
            }
            self.ask_about_selector(id);
        }
    }

    fn ask_about_selector(&mut self, id: SelectorId) {
        if !self.is_pending(Rule::Selector(id)) {
            return;
        }
        for user in self.selector_shares.users_of(id) {
            self.docket.add(user, Rule::Selector(id));
        }
    }

    /// A claim or a pod uses the rule from now on.
    pub(super) fn use_rule(&mut self, user: &NamespacedName, rule: Rule) {
        if self.is_pending(rule) {
            self.docket.add(&user.namespace, rule);
        }
    }

    /// New rules about nodes are judged, and then told to them.
    pub(super) fn add_filter(&mut self, id: NodeFilterId) {
        self.rollout.add_filter(id);
        for user in self.filter_shares.users_of(id) {
            self.docket.add(user, Rule::Filter(id));
        }
    }

    fn forget_requests_with_filter(&mut self, id: NodeFilterId) {
        let pods: Vec<String> = self.pods_by_filter.of(&id).cloned().collect();
        for uid in pods {
            let pod = self.our_pod_by_uid(&uid);
            if let Some(key) = pod.map(|pod| NamespacedName::of_pod(&pod.object)) {
                self.forget_request(&key.namespace, &uid);
                let gang = self.membership.gang_of(&key).cloned();
                self.touched.gangs.extend(gang);
            }
        }
    }
}
