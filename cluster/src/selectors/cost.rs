//! How long an expression could take.
//!
//! The API server refuses selectors whose estimated cost exceeds its limit, but a ResourceClaim may be older than that
//! limit, and another server may not enforce it. So the cost is bounded here too, before anything is evaluated.

use kube_cel::cel::common::ast::{EntryExpr, Expr, LiteralValue};

/// Most steps that an expression may take, as Kubernetes limits them (`CELSelectorExpressionMaxCost`).
pub(super) const MAX_COST: u64 = 1_000_000;
/// Most entries of a list or map that is not written out: attributes and capacities of a device are at most 32 together,
/// and a text that is split has no more parts than this in practice.
const UNKNOWN_LENGTH: u64 = 64;
/// Deepest nesting, so that neither estimate nor evaluation exhausts the stack.
const MAX_DEPTH: u32 = 64;

/// An error if the expression could take more than [`MAX_COST`] steps.
pub(super) fn check(expression: &Expr) -> Result<(), String> {
    let cost =
        cost(expression, 0).ok_or_else(|| format!("is nested more than {MAX_DEPTH} deep"))?;
    if cost <= MAX_COST {
        return Ok(());
    }
    Err(format!(
        "could take {cost} steps for each device; an expression may take {MAX_COST}"
    ))
}

/// Steps at most; `None`: nested too deeply. Every literal costs its length, a comprehension its body for each entry.
fn cost(expression: &Expr, depth: u32) -> Option<u64> {
    if depth > MAX_DEPTH {
        return None;
    }
    let all = |parts: &mut dyn Iterator<Item = &Expr>| {
        let mut sum = 1_u64;
        for part in parts {
            sum = sum.saturating_add(cost(part, depth + 1)?);
        }
        Some(sum)
    };
    Some(match expression {
        Expr::Literal(LiteralValue::String(text)) => {
            1 + u64::try_from(text.inner().len()).unwrap_or(u64::MAX) / 10
        }
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => 1,
        Expr::Call(call) => {
            let parts = call.target.iter().map(|target| &target.expr);
            all(&mut parts.chain(call.args.iter().map(|part| &part.expr)))?
        }
        Expr::Comprehension(comprehension) => {
            let length = length(&comprehension.iter_range.expr);
            let body = all(
                &mut [&comprehension.loop_cond.expr, &comprehension.loop_step.expr].into_iter(),
            )?;
            all(&mut [
                &comprehension.iter_range.expr,
                &comprehension.accu_init.expr,
                &comprehension.result.expr,
            ]
            .into_iter())?
            .saturating_add(length.saturating_mul(body))
        }
        Expr::List(list) => all(&mut list.elements.iter().map(|part| &part.expr))?,
        Expr::Select(select) => 1 + cost(&select.operand.expr, depth + 1)?,
        Expr::Map(map) => entries(map.entries.iter().map(|entry| &entry.expr), depth)?,
        Expr::Struct(fields) => entries(fields.entries.iter().map(|entry| &entry.expr), depth)?,
    })
}

fn entries<'a>(entries: impl Iterator<Item = &'a EntryExpr>, depth: u32) -> Option<u64> {
    let mut sum = 1_u64;
    for entry in entries {
        let of_entry = match entry {
            EntryExpr::StructField(field) => cost(&field.value.expr, depth + 1)?,
            EntryExpr::MapEntry(entry) => cost(&entry.key.expr, depth + 1)?
                .saturating_add(cost(&entry.value.expr, depth + 1)?),
        };
        sum = sum.saturating_add(of_entry);
    }
    Some(sum)
}

/// Entries that a range has at most.
fn length(range: &Expr) -> u64 {
    let written = match range {
        Expr::List(list) => list.elements.len(),
        Expr::Map(map) => map.entries.len(),
        _ => return UNKNOWN_LENGTH,
    };
    u64::try_from(written).unwrap_or(u64::MAX)
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
}
