//! Device selectors: the CEL expressions of a DeviceClass and a request, and which devices match.
//!
//! kube-scheduler evaluates the class's expressions first, then the request's, each only if those
//! before it are true; a **run-time error aborts the whole pod's scheduling attempt**. So does this
//! room, and reads an error in the sound direction: a selector that fails on any device of a node
//! matches no device of that node (kube-scheduler might stop there), and one that fails somewhere and
//! matches nowhere is not understood.
//!
//! Expressions come from anybody. One that does not parse, uses what kube-cel does not know, or makes
//! it panic, is an error like any other.

mod device_value;
mod reach;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use k8s_openapi::api::resource::v1::Device;
use kube_cel::{
    KubeCelExt,
    cel::{Context, Program, Value},
};
use muster_engine::SelectorId;

use self::{device_value::DeviceValues, reach::Reach};

/// How many verdicts of one selector are remembered. More than any cluster has devices; devices that
/// come and go under new UUIDs for months must not fill the memory.
const MOST_REMEMBERED: usize = 200_000;

/// What a selector says of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It matches.
    Matches,
    /// It does not match.
    Differs,
    /// It cannot be evaluated, with the cause.
    Fails(Arc<str>),
}

/// The interned selectors. Ids are never used twice.
pub struct Selectors {
    environment: Context<'static>,
    values: DeviceValues,
    by_text: BTreeMap<Vec<String>, SelectorId>,
    interned: BTreeMap<SelectorId, Selector>,
    last: u32,
}

struct Selector {
    steps: Vec<Step>,
    verdicts: BTreeMap<String, Verdict>,
}

struct Step {
    program: Program,
    reach: Reach,
}

impl Default for Selectors {
    fn default() -> Self {
        Self {
            environment: Context::default().with_all(),
            values: DeviceValues::default(),
            by_text: BTreeMap::new(),
            interned: BTreeMap::new(),
            last: 0,
        }
    }
}

impl fmt::Debug for Selectors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Selectors")
            .field("by_text", &self.by_text)
            .finish_non_exhaustive()
    }
}

impl Selectors {
    /// The id of the expressions, all of which must be true, and whether it is new: then every node
    /// must be told anew. The error says which expression does not parse, by its position.
    pub fn intern(
        &mut self,
        expressions: Vec<String>,
    ) -> Result<(SelectorId, bool), (usize, String)> {
        if let Some(id) = self.by_text.get(&expressions) {
            return Ok((*id, false));
        }
        let steps = expressions
            .iter()
            .enumerate()
            .map(|(position, text)| Step::compile(text).map_err(|error| (position, error)))
            .collect::<Result<_, _>>()?;
        self.last += 1;
        let id = SelectorId(self.last);
        self.by_text.insert(expressions, id);
        self.interned.insert(
            id,
            Selector {
                steps,
                verdicts: BTreeMap::new(),
            },
        );
        Ok((id, true))
    }

    /// What the selector says of a device that `driver` publishes. Devices that are alike in all that
    /// the selector looks at are evaluated once.
    pub fn judge(&mut self, id: SelectorId, driver: &str, device: &Device) -> Verdict {
        let Some(selector) = self.interned.get_mut(&id) else {
            return Verdict::Differs;
        };
        let signature = signature(&selector.steps, driver, device);
        if let Some(verdict) = selector.verdicts.get(&signature) {
            return verdict.clone();
        }
        let verdict = evaluate(
            &selector.steps,
            &self.environment,
            &self.values,
            driver,
            device,
        );
        if selector.verdicts.len() >= MOST_REMEMBERED {
            selector.verdicts.clear();
        }
        selector.verdicts.insert(signature, verdict.clone());
        verdict
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

    /// Forgets all selectors but the given ones.
    pub fn retain(&mut self, used: &BTreeSet<SelectorId>) {
        self.interned.retain(|id, _| used.contains(id));
        self.by_text.retain(|_, id| used.contains(id));
    }
}

impl Step {
    fn compile(text: &str) -> Result<Self, String> {
        let program = catch_unwind(|| Program::compile(text))
            .map_err(|_| "cannot be parsed".to_owned())?
            .map_err(|error| one_line(&error.to_string()))?;
        let reach = Reach::of(&program.expression().expr)?;
        Ok(Self { program, reach })
    }
}

fn evaluate(
    steps: &[Step],
    environment: &Context<'static>,
    values: &DeviceValues,
    driver: &str,
    device: &Device,
) -> Verdict {
    for step in steps {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut scope = environment.new_inner_scope();
            let value = values.of(driver, device, &step.reach, environment);
            scope.add_variable_from_value("device", value);
            step.program.execute(&scope)
        }));
        match outcome {
            Ok(Ok(Value::Bool(true))) => {}
            Ok(Ok(Value::Bool(false))) => return Verdict::Differs,
            Ok(Ok(_)) => return Verdict::Fails("the result is neither true nor false".into()),
            Ok(Err(error)) => return Verdict::Fails(one_line(&error.to_string()).into()),
            Err(_) => return Verdict::Fails("it cannot be evaluated".into()),
        }
    }
    Verdict::Matches
}

/// All of the device that the steps look at, as text.
fn signature(steps: &[Step], driver: &str, device: &Device) -> String {
    let mut text = driver.to_owned();
    for step in steps {
        text.push('\n');
        step.reach.write_signature(driver, device, &mut text);
    }
    text
}

fn one_line(text: &str) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > 200 {
        line = line.chars().take(200).collect::<String>() + "…";
    }
    line
}
