//! Compiled expressions, and their evaluation on any thread.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use kube_cel::{
    KubeCelExt,
    cel::{Context, Program, Value},
};
use muster_engine::SelectorId;

use super::{InvalidExpression, cost, device_value::DeviceValues, reach::Reach};
use crate::{
    devices::{DeviceKindId, PublishedDevice},
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// Every device of a kind.
    Kind(DeviceKindId),
    /// Devices that are alike in all that the selector reads, by a hash of it.
    Device(u128),
}

/// The expressions of a selector, compiled.
#[derive(Debug)]
pub struct Expressions {
    texts: Vec<String>,
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

/// Something to be judged. It needs nothing else: [`JudgementRequest::judge`] may run on any thread.
#[derive(Clone, Debug)]
pub struct JudgementRequest {
    pub(super) selector: SelectorId,
    pub(super) subject: Subject,
    pub(super) expressions: Arc<Expressions>,
    pub(super) device: PublishedDevice,
}

/// What came of a [`JudgementRequest`].
#[derive(Clone, Debug)]
pub struct Judgement {
    pub(super) selector: SelectorId,
    pub(super) subject: Subject,
    pub(super) verdict: Verdict,
}

impl Judgement {
    /// What it is about.
    pub(crate) fn about(&self) -> (SelectorId, Subject) {
        (self.selector, self.subject)
    }
}

impl JudgementRequest {
    /// Evaluates. Pure, and bounded by the cost that was estimated when the expressions were compiled.
    pub fn judge(&self) -> Judgement {
        Judgement {
            selector: self.selector,
            subject: self.subject,
            verdict: self.expressions.evaluate(&self.device),
        }
    }

    /// The judgement if evaluation was given up, with the cause. The selector then matches no device of a node with such
    /// a device.
    pub fn give_up(&self, cause: &str) -> Judgement {
        Judgement {
            selector: self.selector,
            subject: self.subject,
            verdict: Verdict::Fails(one_line(cause, CAUSE_BYTES).into()),
        }
    }
}

impl Expressions {
    pub(super) fn compile(texts: &[String]) -> Result<Self, InvalidExpression> {
        let steps = texts.iter().enumerate().map(|(position, text)| {
            Step::compile(text).map_err(|cause| InvalidExpression { position, cause })
        });
        Ok(Self {
            steps: steps.collect::<Result<_, _>>()?,
            texts: texts.to_vec(),
        })
    }

    pub(super) fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Whether an expression reads what every device has of its own.
    pub(super) fn reads_own(&self) -> bool {
        self.steps.iter().any(|step| step.reach.reads_own())
    }

    /// What a verdict about the device holds for.
    pub(super) fn subject(&self, device: &PublishedDevice) -> Subject {
        if !self.reads_own() {
            return Subject::Kind(device.kind.id);
        }
        let mut text = device.kind.driver.clone();
        let whole = device.whole();
        for step in &self.steps {
            text.push('\n');
            step.reach
                .write_signature(&device.kind.driver, &whole, &mut text);
        }
        let hash = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, &text).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        Subject::Device(hash(0) << 64 | hash(1))
    }

    fn evaluate(&self, device: &PublishedDevice) -> Verdict {
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
        if text.len() > MAX_EXPRESSION_BYTES {
            return Err(format!(
                "has {} bytes; an expression has at most {MAX_EXPRESSION_BYTES}",
                text.len()
            ));
        }
        let program = catch_unwind(|| Program::compile(text))
            .map_err(|_| "cannot be parsed".to_owned())?
            .map_err(|error| one_line(&error.to_string(), CAUSE_BYTES))?;
        let expression = &program.expression().expr;
        let reach = Reach::of(expression)?;
        cost::check(expression)?;
        Ok(Self { program, reach })
    }
}
