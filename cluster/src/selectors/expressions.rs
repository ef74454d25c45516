//! Compiled expressions, and their evaluation on any thread.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use kube_cel::{
    KubeCelExt,
    cel::{Context, Program, Value},
};

use k8s_openapi::api::resource::v1::Device;

use super::{InvalidExpression, SelectorText, cost, device_value::DeviceValues, reach::Reach};
use crate::{
    devices::{DeviceId, DeviceKindId, PublishedDevice},
    quantity::{self, ExactQuantity},
    text::one_line,
};

/// Longest expression in bytes, as Kubernetes limits it.
pub(super) const MAX_EXPRESSION_BYTES: usize = 10 * 1024;
/// Most bytes of an error of the evaluator.
const CAUSE_BYTES: usize = 200;
/// Most opening brackets in an expression: for each the parser may call itself, and what it has done by then is not bounded by how deep it
/// gets. All count, in strings and comments too, since what is a string is for the parser to say. Nobody writes as many in so few bytes.
const MAX_OPENINGS: usize = 1_024;
/// The stack on which an expression is parsed, in bytes. Only what is used of it takes memory.
const PARSER_STACK_BYTES: usize = 64 * 1024 * 1024;

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

/// What a verdict holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// Every device of a kind.
    Kind(DeviceKindId),
    /// One device.
    Device(DeviceId),
}

/// A selector, its expressions compiled.
#[derive(Debug)]
pub struct Expressions {
    steps: Vec<Step>,
    /// How much a device must have of each capacity, by its name in the device.
    capacity: Vec<(String, ExactQuantity)>,
}

struct Step {
    program: Program,
    reach: Reach,
}

impl std::fmt::Debug for Step {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.reach.fmt(formatter)
    }
}

impl Subject {
    /// Its number. Kinds and devices are numbered as they appear, from one.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Kind(DeviceKindId(number)) => u64::from(number),
            Self::Device(DeviceId(number)) => number,
        }
    }
}

/// An error if one of the texts is too long to be read at all.
pub(super) fn check_length(texts: &[String]) -> Result<(), InvalidExpression> {
    let mut texts = texts.iter().enumerate();
    let Some((position, text)) = texts.find(|(_, text)| text.len() > MAX_EXPRESSION_BYTES) else {
        return Ok(());
    };
    let bytes = text.len();
    let cause = format!("has {bytes} bytes; an expression has at most {MAX_EXPRESSION_BYTES}");
    Err(InvalidExpression { position, cause })
}

impl Expressions {
    /// Parses the expressions, and refuses what could take too long.
    pub(crate) fn compile(selector: &SelectorText) -> Result<Self, InvalidExpression> {
        let steps = selector
            .expressions
            .iter()
            .enumerate()
            .map(|(position, text)| {
                Step::compile(text).map_err(|cause| InvalidExpression { position, cause })
            });
        Ok(Self {
            steps: steps.collect::<Result<_, _>>()?,
            capacity: selector.capacity.clone().into_iter().collect(),
        })
    }

    /// Whether an expression reads what every device has of its own.
    pub(super) fn reads_own(&self) -> bool {
        self.steps.iter().any(|step| step.reach.reads_own())
    }

    /// All that is read of the device: equal text, equal verdict.
    pub(crate) fn signature(&self, device: &PublishedDevice) -> String {
        let mut text = device.kind.driver.clone();
        let whole = device.whole();
        for step in &self.steps {
            text.push('\n');
            step.reach
                .write_signature(&device.kind.driver, &whole, &mut text);
        }
        for (name, _) in &self.capacity {
            text.push('\n');
            text.push_str(capacity_text(&whole, name).unwrap_or_default());
        }
        text
    }

    /// What it says of the device. Bounded by the cost that was estimated when it was compiled. As for kube-scheduler, the expressions
    /// come first, and then the capacity.
    pub(crate) fn evaluate(&self, device: &PublishedDevice) -> Verdict {
        thread_local! {
            static ENVIRONMENT: (Context<'static>, DeviceValues) =
                (Context::default().with_all(), DeviceValues::default());
        }
        let whole = device.whole();
        let driver = device.kind.driver.as_str();
        for step in &self.steps {
            let outcome = ENVIRONMENT.with(|(environment, values)| {
                catch_unwind(AssertUnwindSafe(|| {
                    let mut scope = environment.new_inner_scope();
                    let value = values.of(driver, &whole, &step.reach, environment);
                    scope.add_variable_from_value("device", value);
                    step.program.execute(&scope)
                }))
            });
            let cause = match outcome {
                Ok(Ok(Value::Bool(true))) => continue,
                Ok(Ok(Value::Bool(false))) => return Verdict::Differs,
                Ok(Ok(_)) => "the result is neither true nor false".to_owned(),
                Ok(Err(error)) => one_line(&error.to_string(), CAUSE_BYTES),
                Err(_) => "it cannot be evaluated".to_owned(),
            };
            return Verdict::Fails(cause.into());
        }
        let mut capacity = self.capacity.iter();
        if capacity.all(|(name, least)| has_capacity(&whole, name, *least)) {
            Verdict::Matches
        } else {
            Verdict::Differs
        }
    }
}

/// Whether the device has at least so much of a capacity. One that it does not name, or that cannot be read, is none at all. Names are
/// compared as they are written, as kube-scheduler does: a domain that the device leaves out is not added.
fn has_capacity(device: &Device, name: &str, least: ExactQuantity) -> bool {
    let amount = capacity_text(device, name).and_then(|text| quantity::exact(text, "").ok());
    amount.is_some_and(|amount| amount >= least)
}

fn capacity_text<'a>(device: &'a Device, name: &str) -> Option<&'a str> {
    let amount = device.capacity.as_ref()?.get(name)?;
    Some(&amount.value.0)
}

impl Step {
    /// On a stack of its own: the parser, what looks through the tree and what frees it call themselves as deep as the text is nested, and
    /// a stack that overflows ends the process. What is returned is nested no more than [`cost::check`] allows.
    fn compile(text: &str) -> Result<Self, String> {
        check_openings(text)?;
        let parser = thread::Builder::new().stack_size(PARSER_STACK_BYTES);
        thread::scope(|scope| {
            let parsing = parser.spawn_scoped(scope, || Self::parse(text));
            let parsing = parsing.map_err(|error| format!("cannot be parsed now: {error}"))?;
            parsing
                .join()
                .unwrap_or_else(|_| Err("cannot be parsed".to_owned()))
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let program = catch_unwind(|| Program::compile(text))
            .map_err(|_| "cannot be parsed".to_owned())?
            .map_err(|error| one_line(&error.to_string(), CAUSE_BYTES))?;
        let expression = &program.expression().expr;
        let reach = Reach::of(expression)?;
        cost::check(expression)?;
        Ok(Self { program, reach })
    }
}

/// An error if the parser might call itself too often.
fn check_openings(text: &str) -> Result<(), String> {
    let count = text.matches(['(', '[', '{']).count();
    if count <= MAX_OPENINGS {
        return Ok(());
    }
    Err(format!(
        "has {count} opening brackets; an expression has at most {MAX_OPENINGS}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A defect once: whoever wrote such a text ended the process.
    #[test]
    fn no_text_however_nested_overflows_the_stack_of_who_compiles_it() {
        let longest = |unit: &str, end: &str| {
            let times = (MAX_EXPRESSION_BYTES - end.len()) / unit.len();
            format!("{}{end}", unit.repeat(times))
        };
        let nested = |open: &str, close: &str| {
            format!(
                "{}1{}",
                open.repeat(MAX_OPENINGS),
                close.repeat(MAX_OPENINGS)
            )
        };
        // Whether it is refused. Signs cancel out, and what is said side by side is not nested.
        let texts = [
            (longest("(", "1"), true),
            (longest("[", ""), true),
            (longest("!", "true"), false),
            (longest("- ", "1"), false),
            (nested("(", ")"), true),
            (nested("[", "]"), true),
            (nested("{1:", "}"), true),
            (nested("a(", ")"), true),
            (nested("a[", "]"), true),
            (nested("a.a(", ")"), true),
            (nested("(1?", ":1)"), true),
            (nested("(true||", ")"), true),
            (longest("a.", "a"), true),
            (longest("a?a:", "a"), true),
            (longest("a+", "a"), true),
            (longest("a&&", "a"), false),
            (longest("a||", "a"), false),
            (longest("a==", "a"), true),
            (longest("a in ", "a"), true),
            (longest("a?a||a:", "a"), true),
        ];
        let compile = move || {
            for (text, is_refused) in &texts {
                let compiled = Step::compile(text);
                assert_eq!(compiled.is_err(), *is_refused, "{}...", &text[..16]);
            }
        };
        // As small a stack as a worker has.
        let small = thread::Builder::new().stack_size(256 * 1024);
        small.spawn(compile).unwrap().join().unwrap();
    }
}
