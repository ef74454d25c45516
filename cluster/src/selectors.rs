//! Device selectors: the CEL expressions of a DeviceClass and a request, and which devices match.
//!
//! kube-scheduler evaluates the class's expressions first, then the request's, each only if those
//! before it are true; a **run-time error aborts the whole pod's scheduling attempt**. So does this
//! room, and reads an error in the sound direction: a selector that fails on any device of a node
//! matches no device of that node (kube-scheduler might stop there), and one that fails somewhere and
//! matches nowhere is not understood.
//!
//! Expressions come from anybody, so they cost their author and nobody else. One that is too long, could take too long,
//! does not parse or makes the evaluator panic is refused. Evaluation is taken out of the index: what is to be judged is
//! handed out as [`JudgementRequest`]s, which need nothing else and may run on any thread, and comes back as
//! [`Judgement`]s. Each selector is judged once for each kind of device, or for each device if it reads what every
//! device has of its own.

mod cost;
mod device_value;
mod expressions;
mod reach;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use muster_engine::SelectorId;

pub use self::expressions::{Expressions, Judgement, JudgementRequest, Subject, Verdict};
use crate::devices::{DeviceKind, PublishedDevice};

/// Most verdicts that are remembered, of all selectors together: twelve selectors that are judged for each of 80,000
/// devices, or thousands that are judged by kind.
pub const MAX_VERDICTS: usize = 1_000_000;

/// The interned selectors. Ids are never used twice.
#[derive(Clone, Debug, Default)]
pub struct Selectors {
    by_text: BTreeMap<Vec<String>, SelectorId>,
    interned: BTreeMap<SelectorId, Selector>,
    last: u32,
    requests: Vec<JudgementRequest>,
    verdicts: usize,
}

#[derive(Clone, Debug)]
struct Selector {
    expressions: Arc<Expressions>,
    verdicts: BTreeMap<Subject, Verdict>,
    /// What is being judged.
    outstanding: BTreeSet<Subject>,
}

/// What the selectors say of a device; those that do not match are left out.
#[derive(Debug, Default)]
pub struct Verdicts {
    /// What is known.
    pub known: Vec<(SelectorId, Verdict)>,
    /// What is being judged.
    pub unknown: Vec<(SelectorId, Subject)>,
}

/// Why expressions are no selector: the position of the one that is at fault, and the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidExpression {
    /// Position in the list.
    pub position: usize,
    /// What is wrong with it.
    pub cause: String,
}

impl Selectors {
    /// The id of the expressions, all of which must be true, and whether it is new. A new selector is to be judged for the
    /// kinds that exist ([`Selectors::judge_kind`]).
    pub fn intern(&mut self, texts: Vec<String>) -> Result<(SelectorId, bool), InvalidExpression> {
        if let Some(id) = self.by_text.get(&texts) {
            return Ok((*id, false));
        }
        let expressions = Expressions::compile(&texts)?;
        self.last += 1;
        let id = SelectorId(self.last);
        self.by_text.insert(texts, id);
        self.interned.insert(
            id,
            Selector {
                expressions: Arc::new(expressions),
                verdicts: BTreeMap::new(),
                outstanding: BTreeSet::new(),
            },
        );
        Ok((id, true))
    }

    /// The id of the expressions, if they are interned.
    pub fn known(&self, texts: &[String]) -> Option<SelectorId> {
        self.by_text.get(texts).copied()
    }

    /// Asks for what the selector says of a kind, unless that is known, asked for, or differs from device to device.
    pub fn judge_kind(&mut self, id: SelectorId, kind: &Arc<DeviceKind>) {
        let reads_own = |selector: &Selector| selector.expressions.reads_own();
        if self.interned.get(&id).is_some_and(reads_own) {
            return;
        }
        let device = PublishedDevice {
            name: "".into(),
            kind: Arc::clone(kind),
            own: Arc::default(),
        };
        self.ask(id, &device);
    }

    /// Asks for what every selector says of a new kind.
    pub fn judge_all(&mut self, kind: &Arc<DeviceKind>) {
        for id in self.ids() {
            self.judge_kind(id, kind);
        }
    }

    fn ask(&mut self, id: SelectorId, device: &PublishedDevice) {
        let Some(selector) = self.interned.get_mut(&id) else {
            return;
        };
        let subject = selector.expressions.subject(device);
        if selector.verdicts.contains_key(&subject) || !selector.outstanding.insert(subject) {
            return;
        }
        self.requests.push(JudgementRequest {
            selector: id,
            subject,
            expressions: Arc::clone(&selector.expressions),
            device: device.clone(),
        });
    }

    /// What the selectors say of a device; what is not known yet is asked for, and does not match until then.
    pub fn verdicts(&mut self, device: &PublishedDevice) -> Verdicts {
        let mut verdicts = Verdicts::default();
        for (id, selector) in &self.interned {
            let subject = selector.expressions.subject(device);
            match selector.verdicts.get(&subject) {
                Some(Verdict::Differs) => {}
                Some(verdict) => verdicts.known.push((*id, verdict.clone())),
                None => verdicts.unknown.push((*id, subject)),
            }
        }
        for (id, _) in &verdicts.unknown {
            self.ask(*id, device);
        }
        verdicts
    }

    /// Whether something is to be judged.
    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Takes what is to be judged. Each is handed out once, and is to be answered by [`Selectors::give`].
    pub fn take_requests(&mut self) -> Vec<JudgementRequest> {
        mem::take(&mut self.requests)
    }

    /// Takes a judgement in. An answer that nobody waits for changes nothing. Returns whether it was waited for.
    pub fn give(&mut self, judgement: Judgement) -> bool {
        let Some(selector) = self.interned.get_mut(&judgement.selector) else {
            return false;
        };
        if !selector.outstanding.remove(&judgement.subject) {
            return false;
        }
        if self.verdicts >= MAX_VERDICTS {
            // Devices that came and went under new names for months: what is still needed is asked for again.
            for selector in self.interned.values_mut() {
                selector
                    .verdicts
                    .retain(|subject, _| matches!(subject, Subject::Kind(_)));
            }
            self.verdicts = self
                .interned
                .values()
                .map(|selector| selector.verdicts.len())
                .sum();
        }
        if let Some(selector) = self.interned.get_mut(&judgement.selector) {
            selector
                .verdicts
                .insert(judgement.subject, judgement.verdict);
            self.verdicts += 1;
        }
        true
    }

    /// Whether everything that was asked for about the selector is judged.
    pub fn is_judged(&self, id: SelectorId) -> bool {
        self.interned
            .get(&id)
            .is_none_or(|selector| selector.outstanding.is_empty())
    }

    /// Whether the selector matches or fails on the device, as far as is known; also true if it is to be judged for each
    /// device.
    pub fn concerns(&self, id: SelectorId, device: &PublishedDevice) -> bool {
        self.interned.get(&id).is_some_and(|selector| {
            selector.expressions.reads_own()
                || selector
                    .verdicts
                    .get(&selector.expressions.subject(device))
                    .is_some_and(|verdict| *verdict != Verdict::Differs)
        })
    }

    /// All interned ids, ascending.
    pub fn ids(&self) -> Vec<SelectorId> {
        self.interned.keys().copied().collect()
    }

    /// How many selectors are interned.
    pub fn len(&self) -> usize {
        self.interned.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.interned.is_empty()
    }

    /// Forgets a selector that nobody uses any more.
    pub fn forget(&mut self, id: SelectorId) {
        if let Some(selector) = self.interned.remove(&id) {
            self.by_text.remove(selector.expressions.texts());
            self.verdicts -= selector.verdicts.len();
        }
    }
}
