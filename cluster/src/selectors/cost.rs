//! How long an expression could take, and how large a value it could make.
//!
//! The API server refuses selectors whose estimated cost exceeds its limit, but a ResourceClaim may be older than that
//! limit, and another server may not enforce it. The evaluator cannot be interrupted and has no limit of its own
//! (`lists.range(9000000000)` would take all memory), so both are bounded here, before anything is evaluated: only
//! functions that are listed may be called, and each has a bound of what it returns.

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedEntryExpr, IdedExpr, LiteralValue};
use regex::RegexBuilder;

/// Most steps that an expression may take, as Kubernetes limits them (`CELSelectorExpressionMaxCost`).
pub(super) const MAX_COST: u64 = 1_000_000;
/// Largest value that an expression may make, in bytes or entries.
const MAX_SIZE: u64 = 1_000_000;
/// Most bytes or entries of what a device says: an attribute has at most 64 bytes, and a device at most 32 attributes and
/// capacities together.
const UNKNOWN_SIZE: u64 = 64;
/// Deepest nesting, so that neither estimate nor evaluation exhausts the stack.
const MAX_DEPTH: u32 = 64;
/// Steps that a regular expression costs beyond its length: the evaluator compiles it each time.
const PATTERN_COST: u64 = 10_000;
/// Most loops in each other: each doubles what it takes to bound them.
const MAX_LOOPS: u32 = 6;
/// Most regular expressions of one expression.
const MAX_PATTERNS: u32 = 32;
/// Largest regular expression once compiled, in bytes.
const MAX_PATTERN_BYTES: usize = 128 * 1024;

/// How large the result of a function is.
#[derive(Clone, Copy, Debug)]
enum Returns {
    /// Of a size of its own, whatever it is given.
    Small,
    /// At most all that it is given.
    Given,
    /// At most each entry of its target, joined by its first argument.
    Joined,
    /// Its target with something put in the place of each byte.
    Replaced,
    /// A part of its target, found by a regular expression.
    Found,
}

/// What a selector may call: the functions that Kubernetes gives selectors, without `format`.
fn returns(function: &str) -> Option<Returns> {
    Some(match function {
        "_&&_"
        | "_||_"
        | "!_"
        | "-_"
        | "_*_"
        | "_/_"
        | "_%_"
        | "_-_"
        | "_==_"
        | "_!=_"
        | "_>=_"
        | "_<=_"
        | "_>_"
        | "_<_"
        | "@in"
        | "in"
        | "@not_strictly_false"
        | "__not_strictly_false__"
        | "has"
        | "size"
        | "contains"
        | "startsWith"
        | "endsWith"
        | "int"
        | "uint"
        | "double"
        | "bool"
        | "type"
        | "quantity"
        | "isQuantity"
        | "isInteger"
        | "asInteger"
        | "asApproximateFloat"
        | "sign"
        | "sub"
        | "isGreaterThan"
        | "isLessThan"
        | "compareTo"
        | "semver"
        | "isSemver"
        | "major"
        | "minor"
        | "patch"
        | "isSorted"
        | "sum"
        | "indexOf"
        | "lastIndexOf"
        | "charAt"
        | "equivalent"
        | "intersects"
        | "url"
        | "isURL"
        | "getScheme"
        | "getHost"
        | "getHostname"
        | "getPort"
        | "ip"
        | "isIP"
        | "family"
        | "cidr"
        | "isCIDR"
        | "containsIP"
        | "containsCIDR"
        | "prefixLength" => Returns::Small,
        "_+_" | "_?_:_" | "_[_]" | "_[?_]" | "_?._" | "add" | "dyn" | "string" | "lowerAscii"
        | "upperAscii" | "trim" | "substring" | "split" | "reverse" | "slice" | "sort"
        | "distinct" | "first" | "last" | "min" | "max" | "optional.of" | "optional.none"
        | "orValue" | "or" | "value" | "hasValue" => Returns::Given,
        "join" => Returns::Joined,
        "replace" => Returns::Replaced,
        "matches" | "find" | "findAll" => Returns::Found,
        _ => return None,
    })
}

/// An error if the expression could take more than [`MAX_COST`] steps, make a value of more than [`MAX_SIZE`], or calls
/// what selectors may not call.
pub(super) fn check(expression: &Expr) -> Result<(), String> {
    let Bound { cost, .. } = Bounds::default().of(expression, 0)?;
    if cost <= MAX_COST {
        return Ok(());
    }
    Err(format!(
        "could take {cost} steps for each device; an expression may take {MAX_COST}"
    ))
}

/// At most so many steps, for a value of at most so many bytes or entries, nested ones included.
#[derive(Clone, Copy, Debug)]
struct Bound {
    cost: u64,
    size: u64,
}

/// Bounds of expressions within the loops around them.
#[derive(Debug, Default)]
struct Bounds {
    /// Variables of loops, and the size of their values.
    variables: Vec<(String, u64)>,
    /// Regular expressions so far: each is compiled to see how large it is.
    patterns: u32,
    /// Loops around what is looked at.
    loops: u32,
}

impl Bounds {
    fn of(&mut self, expression: &Expr, depth: u32) -> Result<Bound, String> {
        if depth > MAX_DEPTH {
            return Err(format!("is nested more than {MAX_DEPTH} deep"));
        }
        let bound = match expression {
            Expr::Literal(LiteralValue::String(text)) => literal(text.inner().len()),
            Expr::Unspecified | Expr::Literal(_) => Bound { cost: 1, size: 1 },
            Expr::Ident(name) => Bound {
                cost: 1,
                size: self.size_of(name),
            },
            Expr::Call(call) => {
                let target = match &call.target {
                    Some(target) => self.of(&target.expr, depth + 1)?,
                    None => Bound { cost: 0, size: 0 },
                };
                self.call(&call.func_name, target, &call.args, depth)?
            }
            Expr::Comprehension(_) => self.comprehension(expression, depth)?,
            Expr::List(list) => {
                let mut sum = Bound { cost: 1, size: 1 };
                for element in &list.elements {
                    sum = sum.and(self.of(&element.expr, depth + 1)?);
                }
                sum
            }
            Expr::Select(select) => {
                let operand = self.of(&select.operand.expr, depth + 1)?;
                Bound {
                    cost: operand.cost.saturating_add(1),
                    ..operand
                }
            }
            Expr::Map(map) => self.entries(&map.entries, depth)?,
            Expr::Struct(fields) => self.entries(&fields.entries, depth)?,
        };
        if bound.size > MAX_SIZE {
            return Err(format!(
                "could make a value of {} bytes or entries; an expression may make one of {MAX_SIZE}",
                bound.size
            ));
        }
        Ok(bound)
    }

    fn size_of(&self, variable: &str) -> u64 {
        let mut variables = self.variables.iter().rev();
        let known = variables.find(|(name, _)| name == variable);
        known.map_or(UNKNOWN_SIZE, |(_, size)| *size)
    }

    fn call(
        &mut self,
        function: &str,
        target: Bound,
        arguments: &[IdedExpr],
        depth: u32,
    ) -> Result<Bound, String> {
        let Some(returns) = returns(function) else {
            return Err(format!("calls {function}, which selectors cannot use"));
        };
        let bounds = arguments
            .iter()
            .map(|argument| self.of(&argument.expr, depth + 1))
            .collect::<Result<Vec<Bound>, String>>()?;
        let nothing = Bound { cost: 1, size: 0 };
        let given = bounds
            .iter()
            .fold(target.and(nothing), |sum, bound| sum.and(*bound));
        let argument = |place: usize| bounds.get(place).map_or(0, |bound| bound.size);
        let mut pattern_cost = 0;
        let size = match returns {
            Returns::Small => 1,
            Returns::Given => given.size,
            Returns::Joined => {
                let separators = target.size.saturating_mul(argument(0));
                target.size.saturating_add(separators)
            }
            Returns::Replaced => {
                // What is replaced may be empty: then it is found before and behind every byte.
                let places = target.size.saturating_add(1);
                target
                    .size
                    .saturating_add(places.saturating_mul(argument(1)))
            }
            Returns::Found => {
                let pattern = arguments.first().map(|pattern| &pattern.expr);
                pattern_cost = self.cost_of_pattern(pattern)?;
                given.size
            }
        };
        let reads = given.size / 10;
        let cost = given.cost.saturating_add(reads).saturating_add(size / 10);
        Ok(Bound {
            cost: cost.saturating_add(pattern_cost),
            size,
        })
    }

    /// The macros `all`, `exists`, `exists_one`, `filter` and `map`: each turn adds to what the last one left.
    ///
    /// All entries together are no larger than what they are taken from, and bounds grow at least in proportion: so all
    /// turns take no more than so many with an empty entry, and one with everything.
    fn comprehension(&mut self, expression: &Expr, depth: u32) -> Result<Bound, String> {
        let Expr::Comprehension(comprehension) = expression else {
            return Ok(Bound { cost: 1, size: 1 });
        };
        if self.loops >= MAX_LOOPS {
            return Err(format!("has more than {MAX_LOOPS} loops in each other"));
        }
        let range = self.of(&comprehension.iter_range.expr, depth + 1)?;
        let length = length(&comprehension.iter_range.expr).unwrap_or(range.size);
        let begin = self.of(&comprehension.accu_init.expr, depth + 1)?;
        let outside = self.variables.len();
        self.loops += 1;
        let mut turn = |entry: u64| {
            self.variables.truncate(outside);
            self.variables.push((comprehension.iter_var.clone(), entry));
            if let Some(second) = &comprehension.iter_var2 {
                self.variables.push((second.clone(), entry));
            }
            self.variables.push((comprehension.accu_var.clone(), 0));
            let condition = self.of(&comprehension.loop_cond.expr, depth + 1)?;
            let step = self.of(&comprehension.loop_step.expr, depth + 1)?;
            let cost = condition.cost.saturating_add(step.cost);
            Ok::<Bound, String>(Bound { cost, ..step })
        };
        let (empty, everything) = (turn(0)?, turn(range.size)?);
        let all = |empty: u64, everything: u64| {
            length
                .saturating_mul(empty)
                .saturating_add(everything.saturating_sub(empty))
        };
        let left = begin.size.saturating_add(all(empty.size, everything.size));
        if let Some((_, size)) = self.variables.last_mut() {
            *size = left;
        }
        let result = self.of(&comprehension.result.expr, depth + 1);
        self.variables.truncate(outside);
        self.loops -= 1;
        let result = result?;
        // What the last turn left may be copied by the next.
        let copies = length.saturating_mul(left / 100);
        let turns = all(empty.cost, everything.cost).saturating_add(copies);
        let around = range.cost.saturating_add(begin.cost);
        Ok(Bound {
            cost: turns.saturating_add(around).saturating_add(result.cost),
            size: result.size,
        })
    }

    fn entries(&mut self, entries: &[IdedEntryExpr], depth: u32) -> Result<Bound, String> {
        let mut sum = Bound { cost: 1, size: 1 };
        for entry in entries {
            sum = match &entry.expr {
                EntryExpr::StructField(field) => sum.and(self.of(&field.value.expr, depth + 1)?),
                EntryExpr::MapEntry(entry) => sum
                    .and(self.of(&entry.key.expr, depth + 1)?)
                    .and(self.of(&entry.value.expr, depth + 1)?),
            };
        }
        Ok(sum)
    }

    /// What it costs to use a regular expression. It must be written out, or nobody could say.
    fn cost_of_pattern(&mut self, pattern: Option<&Expr>) -> Result<u64, String> {
        let Some(Expr::Literal(LiteralValue::String(pattern))) = pattern else {
            return Err("uses a regular expression that is not written out".to_owned());
        };
        self.patterns += 1;
        if self.patterns > MAX_PATTERNS {
            return Err(format!("uses more than {MAX_PATTERNS} regular expressions"));
        }
        let compiled = RegexBuilder::new(pattern.inner())
            .size_limit(MAX_PATTERN_BYTES)
            .build();
        match compiled {
            Ok(_) => Ok(PATTERN_COST.saturating_add(literal(pattern.inner().len()).size)),
            Err(regex::Error::CompiledTooBig(_)) => Err(format!(
                "uses a regular expression of more than {MAX_PATTERN_BYTES} bytes once compiled; shorten its repetitions"
            )),
            // A text that is none fails where it is evaluated, and is reported so.
            Err(_) => Ok(1),
        }
    }
}

impl Bound {
    fn and(self, other: Self) -> Self {
        Self {
            cost: self.cost.saturating_add(other.cost),
            size: self.size.saturating_add(other.size),
        }
    }
}

fn literal(bytes: usize) -> Bound {
    let size = u64::try_from(bytes).unwrap_or(u64::MAX);
    Bound {
        cost: 1 + size / 10,
        size: size.max(1),
    }
}

/// Entries of a range that is written out.
fn length(range: &Expr) -> Option<u64> {
    let written = match range {
        Expr::List(list) => list.elements.len(),
        Expr::Map(map) => map.entries.len(),
        _ => return None,
    };
    u64::try_from(written).ok()
}

#[cfg(test)]
mod tests {
    use kube_cel::cel::Program;

    use super::*;

    fn checked(text: &str) -> Result<(), String> {
        check(&Program::compile(text).unwrap().expression().expr)
    }

    #[test]
    fn what_claims_usually_say_is_far_below_the_limit() {
        for text in [
            "device.driver == 'gpu.example.com'",
            "device.attributes['gpu.example.com'].productName.lowerAscii().matches('^.*h100.*$')",
            "device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) >= 0",
            "['a', 'b', 'c'].exists(name, device.attributes['d'].model == name)",
            "'d' in device.attributes && has(device.attributes['d'].numa) && device.attributes['d'].numa in [0, 1]",
            "device.attributes['d'].version.isGreaterThan(semver('550.0.0'))",
            "device.attributes['d'].model.split('-').filter(part, part.size() > 1).exists(part, part == 'sxm')",
            "sets.contains(['a', 'b'], [device.attributes['d'].model])",
        ] {
            assert_eq!(checked(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn nested_loops_are_refused_where_their_product_exceeds_the_limit() {
        let list = format!(
            "[{}]",
            (0..40).map(|n| n.to_string()).collect::<Vec<_>>().join(",")
        );
        let nested = |depth: usize| {
            (0..depth).fold("true".to_owned(), |body, level| {
                format!("{list}.all(x{level}, {body})")
            })
        };
        assert_eq!(checked(&nested(2)), Ok(()));
        let error = checked(&nested(4)).unwrap_err();
        assert!(
            error.starts_with("could take ") && error.contains("may take 1000000"),
            "{error}"
        );
    }

    #[test]
    fn deep_nesting_is_refused_before_anything_recurses_into_it() {
        let sum = |terms: usize| vec!["1"; terms].join(" + ") + " > 0";
        assert_eq!(checked(&sum(40)), Ok(()));
        assert!(
            checked(&sum(200))
                .unwrap_err()
                .contains("nested more than 64")
        );
    }

    #[test]
    fn an_expression_that_would_take_all_memory_is_refused_before_it_is_evaluated() {
        let replaced = "'aaaaaaaaaa'".to_owned() + &".replace('a', 'aaaaaaaaaa')".repeat(12);
        let many: String = (0..60).map(|n| format!("{n},")).collect();
        let many = format!("[{many}0]");
        let mapped = format!("{many}.map(a, {many}.map(b, {many}.map(c, {many}))).size() > 0");
        for (text, cause) in [
            ("lists.range(9000000000).size() > 0", "calls range"),
            ("cel.bind(a, 1, a == 1)", "calls bind"),
            ("'%.999999999f'.format([1.0]) == ''", "calls format"),
            (&format!("{replaced} == ''"), "could make a value of "),
            (&mapped, "could make a value of "),
            (
                "'a'.matches('((a{500}){500})')",
                "regular expression of more than",
            ),
            (
                "device.attributes['d'].model.matches(device.attributes['d'].pattern)",
                "is not written out",
            ),
        ] {
            let error = checked(text).unwrap_err();
            assert!(error.contains(cause), "{cause}: {error}");
        }
    }

    #[test]
    fn a_regular_expression_in_a_loop_costs_what_it_is_compiled_as_often() {
        let names = |count: usize| vec!["'a'"; count].join(",");
        let text = |count: usize| format!("[{}].exists(n, n.matches('^h[12]00$'))", names(count));
        assert_eq!(checked(&text(50)), Ok(()));
        let error = checked(&text(150)).unwrap_err();
        assert!(error.contains("could take "), "{error}");
    }
}
