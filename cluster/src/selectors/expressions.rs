//! Compiled expressions, and their evaluation on any thread.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use kube_cel::{
    KubeCelExt,
    cel::{Context, Program, Value},
};

use super::{InvalidExpression, cost, device_value::DeviceValues, reach::Reach};
use crate::{
    devices::{DeviceId, DeviceKindId, PublishedDevice},
    text::one_line,
};

/// Longest expression in bytes, as Kubernetes limits it.
pub(super) const MAX_EXPRESSION_BYTES: usize = 10 * 1024;
/// Most bytes of an error of the evaluator.
const CAUSE_BYTES: usize = 200;

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

/// The expressions of a selector, compiled.
#[derive(Debug)]
pub struct Expressions {
    steps: Vec<Step>,
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
    pub(crate) fn compile(texts: &[String]) -> Result<Self, InvalidExpression> {
        let steps = texts.iter().enumerate().map(|(position, text)| {
            Step::compile(text).map_err(|cause| InvalidExpression { position, cause })
        });
        Ok(Self {
            steps: steps.collect::<Result<_, _>>()?,
        })
    }

    /// Whether an expression reads what every device has of its own.
    pub(super) fn reads_own(&self) -> bool {
        self.steps.iter().any(|step| step.reach.reads_own())
    }

    /// All that the expressions read of the device: equal text, equal verdict.
    pub(crate) fn signature(&self, device: &PublishedDevice) -> String {
        let mut text = device.kind.driver.clone();
        let whole = device.whole();
        for step in &self.steps {
            text.push('\n');
            step.reach
                .write_signature(&device.kind.driver, &whole, &mut text);
        }
        text
    }

    /// What they say of the device. Bounded by the cost that was estimated when they were compiled.
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
        Verdict::Matches
    }
}

impl Step {
    fn compile(text: &str) -> Result<Self, String> {
        let program = catch_unwind(|| Program::compile(text))
            .map_err(|_| "cannot be parsed".to_owned())?
            .map_err(|error| one_line(&error.to_string(), CAUSE_BYTES))?;
        let expression = &program.expression().expr;
        let reach = Reach::of(expression)?;
        cost::check(expression)?;
        Ok(Self { program, reach })
    }
}
