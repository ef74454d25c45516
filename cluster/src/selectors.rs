//! Device selectors: the CEL expressions of a DeviceClass and a request, with the capacity that the request asks for, and which
//! devices match.
//!
//! kube-scheduler evaluates the class's expressions first, then the request's, each only if those
//! before it are true; a **run-time error aborts the whole pod's scheduling attempt**. So does this
//! room, and reads an error in the sound direction: a selector that fails on any device of a node
//! matches no device of that node (kube-scheduler might stop there), and one that fails somewhere and
//! matches nowhere is not understood.
//!
//! Expressions come from anybody, so they cost their author and nobody else. One that is too long, could take too long,
//! does not parse or makes the evaluator panic is refused. Compiling and evaluating is taken out of the index
//! ([`crate::judgement`]). Each selector is judged once for each kind of device, or for each device if it reads what every
//! device has of its own. Kinds and devices are numbered as they appear, so how far a selector has come is one number.

mod cost;
mod device_value;
mod expressions;
mod reach;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::resource::v1::{Device, ResourceSlice, ResourceSliceSpec};
use muster_engine::SelectorId;

pub use self::expressions::{Expressions, Subject, Verdict};
use crate::{
    devices::{DeviceId, DeviceKindId, DeviceKinds, PublishedDevice},
    judgement::{Judgement, JudgementRequest, Outcome, Progress, Rule, SUBJECTS_PER_REQUEST, Work},
    quantity::ExactQuantity,
};

/// Most verdicts that are remembered, of all selectors together: fifty selectors that match 80,000 devices one by one, or
/// hundreds of thousands that match by kind. What merely differs is not remembered.
pub const MAX_VERDICTS: usize = 4_000_000;

/// What a device must be like.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SelectorText {
    /// Expressions, all of which must be true.
    pub expressions: Vec<String>,
    /// How much it must have of each capacity at least, by the name that the capacity has in the device.
    pub capacity: BTreeMap<String, ExactQuantity>,
}

impl From<Vec<String>> for SelectorText {
    fn from(expressions: Vec<String>) -> Self {
        Self {
            expressions,
            capacity: BTreeMap::new(),
        }
    }
}

/// The interned selectors. Ids are never used twice.
#[derive(Clone, Debug)]
pub struct Selectors {
    by_text: BTreeMap<SelectorText, SelectorId>,
    interned: BTreeMap<SelectorId, Selector>,
    last: u32,
    by_kind: BTreeMap<DeviceKindId, OfKind>,
    /// Selectors that are judged for each device.
    own: BTreeSet<SelectorId>,
    /// Selectors that nodes know already, and that are to be judged for kinds or devices that came later.
    lagging: BTreeSet<SelectorId>,
    verdicts: usize,
    most_verdicts: usize,
    sweep_above: usize,
}

impl Default for Selectors {
    /// Of no selector, remembering up to [`MAX_VERDICTS`].
    fn default() -> Self {
        Self::remembering(MAX_VERDICTS)
    }
}

#[derive(Clone, Debug)]
struct Selector {
    text: SelectorText,
    state: State,
    verdicts: BTreeMap<Subject, Verdict>,
    /// The number of the last kind or device that was judged.
    up_to: u64,
    progress: Progress,
    /// Whether it was judged for all that there were, once.
    is_judged: bool,
    /// Whether all nodes were told what it says.
    is_told: bool,
}

#[derive(Clone, Debug)]
enum State {
    New,
    Compiled(Arc<Expressions>),
    Invalid(InvalidExpression),
    GivenUp(Arc<str>),
}

/// What is said of a kind of device.
#[derive(Clone, Debug, Default)]
struct OfKind {
    matching: BTreeSet<SelectorId>,
    fails: BTreeMap<SelectorId, Arc<str>>,
    /// `matching` as it is handed out, until it changes.
    shared: Option<Arc<BTreeSet<SelectorId>>>,
}

/// What the selectors say of a device.
#[derive(Clone, Debug, Default)]
pub struct DeviceVerdicts {
    /// Those that match it.
    pub matching: Arc<BTreeSet<SelectorId>>,
    /// Those that fail on it, with the cause.
    pub fails: BTreeMap<SelectorId, Arc<str>>,
    /// What else is to be judged before all is known that could be.
    pub unknown: BTreeSet<Subject>,
}

/// Why expressions are no selector: the position of the one that is at fault, and the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidExpression {
    /// Position in the list.
    pub position: usize,
    /// What is wrong with it.
    pub cause: String,
}

/// What a judgement changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Whether whoever uses the selector is to be told that it is none, or was given up.
    pub is_refused: bool,
    /// What a selector that nodes know already says of something new: it matches, or fails.
    pub news: Vec<Subject>,
}

/// An error if the expressions are no selector: too long, not to be parsed, or to take too long. Nothing is evaluated.
pub fn check(texts: &[String]) -> Result<(), InvalidExpression> {
    expressions::check_length(texts)?;
    Expressions::compile(&texts.to_vec().into()).map(|_| ())
}

/// What the expression says of a device of which nothing is known but the driver. An error if it is no selector.
pub fn of_bare_device(expression: &str, driver: &str) -> Result<Verdict, InvalidExpression> {
    let selector = SelectorText::from(vec![expression.to_owned()]);
    expressions::check_length(&selector.expressions)?;
    let expressions = Expressions::compile(&selector)?;
    let slice = ResourceSlice {
        spec: ResourceSliceSpec {
            driver: driver.to_owned(),
            devices: Some(vec![Device::default()]),
            ..ResourceSliceSpec::default()
        },
        ..ResourceSlice::default()
    };
    let devices = DeviceKinds::default().slice(Arc::new(slice), None).devices;
    let verdict = devices.first().map(|device| expressions.evaluate(device));
    Ok(verdict.unwrap_or(Verdict::Differs))
}

impl Selectors {
    /// Of no selector, remembering so many verdicts of all together. A selector that would take more is given up.
    pub(crate) fn remembering(most_verdicts: usize) -> Self {
        Self {
            by_text: BTreeMap::new(),
            interned: BTreeMap::new(),
            last: 0,
            by_kind: BTreeMap::new(),
            own: BTreeSet::new(),
            lagging: BTreeSet::new(),
            verdicts: 0,
            most_verdicts,
            sweep_above: 0,
        }
    }

    /// The id of a selector, and whether it is new. A new selector is to be judged ([`Selectors::request`]). An error: it was
    /// judged, and is none.
    pub fn intern(
        &mut self,
        selector: impl Into<SelectorText>,
    ) -> Result<(SelectorId, bool), InvalidExpression> {
        let text = selector.into();
        if let Some(id) = self.by_text.get(&text) {
            return match self.interned.get(id).map(|selector| &selector.state) {
                Some(State::Invalid(error)) => Err(error.clone()),
                _ => Ok((*id, false)),
            };
        }
        expressions::check_length(&text.expressions)?;
        self.last += 1;
        let id = SelectorId(self.last);
        self.by_text.insert(text.clone(), id);
        self.interned.insert(
            id,
            Selector {
                text,
                state: State::New,
                verdicts: BTreeMap::new(),
                up_to: 0,
                progress: Progress::default(),
                is_judged: false,
                is_told: false,
            },
        );
        Ok((id, true))
    }

    /// An id that stands for no expressions: whoever asks for it says what matches it.
    pub(crate) fn without_expressions(&mut self) -> SelectorId {
        self.last += 1;
        SelectorId(self.last)
    }

    /// The id of the selector, if it is interned.
    pub fn known(&self, selector: &SelectorText) -> Option<SelectorId> {
        self.by_text.get(selector).copied()
    }

    /// What is to be judged next about the selector; `None`: nothing.
    pub fn request(&self, id: SelectorId, kinds: &DeviceKinds) -> Option<JudgementRequest> {
        let selector = self.interned.get(&id)?;
        let (work, total) = match &selector.state {
            State::New => (Work::Compile(selector.text.clone()), 0),
            State::Compiled(expressions) => {
                let (devices, total) = if expressions.reads_own() {
                    let devices = kinds.devices_after(DeviceId(selector.up_to));
                    let devices = devices.take(SUBJECTS_PER_REQUEST);
                    let devices =
                        devices.map(|device| (Subject::Device(device.id), device.clone()));
                    (devices.collect::<Vec<_>>(), kinds.published())
                } else {
                    let kinds_after = kinds.kinds_after(kind_id(selector.up_to));
                    let devices = kinds_after
                        .take(SUBJECTS_PER_REQUEST)
                        .map(|kind| (Subject::Kind(kind.id), PublishedDevice::any_of(&kind)));
                    (devices.collect(), kinds.len())
                };
                if devices.is_empty() {
                    return None;
                }
                let expressions = Arc::clone(expressions);
                let work = Work::Devices {
                    expressions,
                    devices,
                };
                (work, total)
            }
            State::Invalid(_) | State::GivenUp(_) => return None,
        };
        Some(JudgementRequest {
            rule: Rule::Selector(id),
            work,
            progress: Progress {
                total: total.max(selector.progress.judged),
                ..selector.progress
            },
        })
    }

    /// Takes a judgement in. An answer about what is judged already, or about a selector that nobody uses any more, changes
    /// nothing.
    pub fn give(&mut self, judgement: Judgement, kinds: &DeviceKinds) -> Given {
        let Rule::Selector(id) = judgement.rule else {
            return Given::default();
        };
        let Some(selector) = self.interned.get_mut(&id) else {
            return Given::default();
        };
        match (&selector.state, judgement.outcome) {
            (State::New, Outcome::Compiled(Ok(expressions))) => {
                if expressions.reads_own() {
                    self.own.insert(id);
                }
                selector.state = State::Compiled(expressions);
                self.note_end(id, kinds);
                Given::default()
            }
            (State::New, Outcome::Compiled(Err(error))) => {
                selector.state = State::Invalid(error);
                selector.is_judged = true;
                Given {
                    is_refused: true,
                    news: Vec::new(),
                }
            }
            (
                State::Compiled(_),
                Outcome::Devices {
                    verdicts,
                    judged,
                    up_to: Some(up_to),
                },
            ) if up_to.number() > selector.up_to => {
                let most = self.most_verdicts;
                if self.verdicts.saturating_add(verdicts.len()) > most {
                    let cause = format!(
                        "all selectors together may match {most} kinds of devices and devices, and with this one they would match \
                         more; use a selector that others use too, or attributes that many devices have in common"
                    );
                    self.give_up(id, cause.into());
                    return Given {
                        is_refused: true,
                        news: Vec::new(),
                    };
                }
                selector.up_to = up_to.number();
                selector.progress.judged += judged;
                selector.progress.spent += judgement.spent;
                let news = if selector.is_told || self.lagging.contains(&id) {
                    verdicts.iter().map(|(subject, _)| *subject).collect()
                } else {
                    Vec::new()
                };
                for (subject, verdict) in verdicts {
                    self.remember(id, subject, verdict);
                }
                self.note_end(id, kinds);
                Given {
                    is_refused: false,
                    news,
                }
            }
            (State::New | State::Compiled(_), Outcome::GivenUp(cause)) => {
                self.give_up(id, cause);
                Given {
                    is_refused: true,
                    news: Vec::new(),
                }
            }
            _ => Given::default(),
        }
    }

    /// Notes that there is nothing left to be judged about a selector, if that is so.
    fn note_end(&mut self, id: SelectorId, kinds: &DeviceKinds) {
        if self.is_pending(id, kinds) {
            return;
        }
        self.lagging.remove(&id);
        if let Some(selector) = self.interned.get_mut(&id) {
            selector.progress.spent = Duration::ZERO;
            selector.is_judged = true;
        }
    }

    fn remember(&mut self, id: SelectorId, subject: Subject, verdict: Verdict) {
        if let Subject::Kind(kind) = subject {
            let of_kind = self.by_kind.entry(kind).or_default();
            match &verdict {
                Verdict::Matches => {
                    of_kind.matching.insert(id);
                    of_kind.shared = None;
                }
                Verdict::Fails(cause) => {
                    of_kind.fails.insert(id, Arc::clone(cause));
                }
                Verdict::Differs => {}
            }
        }
        if let Some(selector) = self.interned.get_mut(&id) {
            selector.verdicts.insert(subject, verdict);
            self.verdicts += 1;
        }
    }

    /// From now on the selector matches nothing, and whoever uses it is told why.
    pub fn give_up(&mut self, id: SelectorId, cause: Arc<str>) {
        self.forget_verdicts(id);
        if let Some(selector) = self.interned.get_mut(&id) {
            selector.state = State::GivenUp(cause);
            selector.is_judged = true;
        }
    }

    /// A selector that was given up is judged again from the beginning.
    pub fn try_again(&mut self, id: SelectorId) {
        if let Some(selector) = self.interned.get_mut(&id)
            && matches!(selector.state, State::GivenUp(_))
        {
            selector.state = State::New;
            selector.up_to = 0;
            selector.progress = Progress::default();
            selector.is_judged = false;
            selector.is_told = false;
        }
    }

    /// Why the selector was given up, if it was.
    pub fn given_up(&self, id: SelectorId) -> Option<&Arc<str>> {
        match &self.interned.get(&id)?.state {
            State::GivenUp(cause) => Some(cause),
            _ => None,
        }
    }

    /// Whether something is to be judged about the selector.
    pub fn is_pending(&self, id: SelectorId, kinds: &DeviceKinds) -> bool {
        let Some(selector) = self.interned.get(&id) else {
            return false;
        };
        match &selector.state {
            State::New => true,
            State::Compiled(expressions) if expressions.reads_own() => kinds
                .devices_after(DeviceId(selector.up_to))
                .next()
                .is_some(),
            State::Compiled(_) => kinds.kinds_after(kind_id(selector.up_to)).next().is_some(),
            State::Invalid(_) | State::GivenUp(_) => false,
        }
    }

    /// Kinds or devices appeared: returns the selectors that are to be judged for them. Forgets what was said of those
    /// that are gone.
    pub fn note_appeared(&mut self, new_kinds: bool, kinds: &DeviceKinds) -> Vec<SelectorId> {
        if self.verdicts > self.sweep_above {
            self.sweep(kinds);
        }
        let ids: Vec<SelectorId> = if new_kinds {
            self.interned.keys().copied().collect()
        } else {
            self.own.iter().copied().collect()
        };
        let pending = ids.into_iter().filter(|id| self.is_pending(*id, kinds));
        let pending: Vec<SelectorId> = pending.collect();
        for id in &pending {
            if self
                .interned
                .get(id)
                .is_some_and(|selector| selector.is_told || selector.is_judged)
            {
                self.lagging.insert(*id);
            }
        }
        pending
    }

    fn sweep(&mut self, kinds: &DeviceKinds) {
        for selector in self.interned.values_mut() {
            selector
                .verdicts
                .retain(|subject, _| kinds.exists(*subject));
        }
        self.by_kind
            .retain(|kind, _| kinds.exists(Subject::Kind(*kind)));
        let verdicts = self
            .interned
            .values()
            .map(|selector| selector.verdicts.len());
        self.verdicts = verdicts.sum();
        self.sweep_above = self.verdicts * 2 + 1_024;
    }

    /// What the selectors say of a device.
    pub fn verdicts(&mut self, device: &PublishedDevice) -> DeviceVerdicts {
        let mut verdicts = DeviceVerdicts::default();
        if let Some(of_kind) = self.by_kind.get_mut(&device.kind.id) {
            let shared = of_kind
                .shared
                .get_or_insert_with(|| Arc::new(of_kind.matching.clone()));
            verdicts.matching = Arc::clone(shared);
            verdicts.fails.clone_from(&of_kind.fails);
        }
        for id in &self.own {
            let selector = self.interned.get(id);
            match selector.and_then(|selector| selector.verdicts.get(&Subject::Device(device.id))) {
                Some(Verdict::Matches) => {
                    Arc::make_mut(&mut verdicts.matching).insert(*id);
                }
                Some(Verdict::Fails(cause)) => {
                    verdicts.fails.insert(*id, Arc::clone(cause));
                }
                Some(Verdict::Differs) | None => {}
            }
        }
        for id in &self.lagging {
            let Some(selector) = self.interned.get(id) else {
                continue;
            };
            let subject = if self.own.contains(id) {
                Subject::Device(device.id)
            } else {
                Subject::Kind(device.kind.id)
            };
            if subject.number() > selector.up_to {
                verdicts.unknown.insert(subject);
            }
        }
        verdicts
    }

    /// Whether a selector that nodes know already, or are being told about, is still to be judged for something new.
    pub fn is_lagging(&self) -> bool {
        !self.lagging.is_empty()
    }

    /// Whether the selector was judged for all that there was when it was new, or was refused or given up.
    pub fn is_judged(&self, id: SelectorId) -> bool {
        self.interned
            .get(&id)
            .is_none_or(|selector| selector.is_judged)
    }

    /// All nodes were told what the selector says.
    pub fn set_told(&mut self, id: SelectorId, kinds: &DeviceKinds) {
        let pending = self.is_pending(id, kinds);
        if let Some(selector) = self.interned.get_mut(&id) {
            selector.is_told = true;
            if pending {
                self.lagging.insert(id);
            }
        }
    }

    /// Whether the selector matches or fails on the device, as far as is known.
    pub fn concerns(&self, id: SelectorId, device: &PublishedDevice) -> bool {
        self.interned.get(&id).is_some_and(|selector| {
            let subject = if self.own.contains(&id) {
                Subject::Device(device.id)
            } else {
                Subject::Kind(device.kind.id)
            };
            selector.verdicts.contains_key(&subject)
        })
    }

    /// Whether the selector is judged for each device.
    pub fn reads_own(&self, id: SelectorId) -> bool {
        self.own.contains(&id)
    }

    /// How many selectors are judged for each device.
    pub fn reading_own(&self) -> usize {
        self.own.len()
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
        self.forget_verdicts(id);
        if let Some(selector) = self.interned.remove(&id) {
            self.by_text.remove(&selector.text);
        }
    }

    fn forget_verdicts(&mut self, id: SelectorId) {
        self.own.remove(&id);
        self.lagging.remove(&id);
        let Some(selector) = self.interned.get_mut(&id) else {
            return;
        };
        let verdicts = std::mem::take(&mut selector.verdicts);
        self.verdicts -= verdicts.len();
        for subject in verdicts.into_keys() {
            if let Subject::Kind(kind) = subject
                && let Some(of_kind) = self.by_kind.get_mut(&kind)
            {
                of_kind.fails.remove(&id);
                if of_kind.matching.remove(&id) {
                    of_kind.shared = None;
                }
            }
        }
    }
}

fn kind_id(number: u64) -> DeviceKindId {
    DeviceKindId(u32::try_from(number).unwrap_or(u32::MAX))
}
