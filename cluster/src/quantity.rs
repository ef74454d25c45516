//! Kubernetes quantities, read exactly and written back.
//!
//! No floating point: a quantity is a whole number of billionths (as far as Kubernetes itself
//! keeps them), and is rounded **up** to the unit that is asked for, as `Value()` and `MilliValue()`
//! of Kubernetes do. What is negative, too large or no quantity is an error that names its field.

use muster_api::Quantity;
use muster_engine::{Amount, Resource};

/// Billionths of a unit.
const NANO: i128 = 1_000_000_000;

/// A quantity that cannot be used, with the field in which it stands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {text:?} {cause}")]
pub struct QuantityError {
    /// Path of the field, from the object's root.
    pub field: String,
    /// The text that stands there.
    pub text: String,
    /// What is wrong with it.
    pub cause: QuantityFault,
}

/// What is wrong with a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityFault {
    /// It is not written as one.
    #[error("is not a quantity; write a number with an optional suffix, such as 16, 500m or 640Gi")]
    NotAQuantity,
    /// It is below zero.
    #[error("is negative; it must be 0 or more")]
    Negative,
    /// It does not fit into 63 bits of the unit that it is counted in.
    #[error("is more than can be counted")]
    Overflow,
}

/// Reads thousandths, rounded up: cpu, and GPUs in quota.
pub fn milli(text: &str, field: &str) -> Result<i64, QuantityError> {
    scaled(text, 1000).map_err(|cause| error(text, field, cause))
}

/// Reads whole units, rounded up: bytes of memory, pods, extended resources.
pub fn units(text: &str, field: &str) -> Result<i64, QuantityError> {
    scaled(text, 1).map_err(|cause| error(text, field, cause))
}

/// Reads billionths, rounded up: weights. Fewer than 2^63 of them, which is a weight of more than nine billion.
pub fn billionths(text: &str, field: &str) -> Result<u64, QuantityError> {
    let read = scaled(text, NANO).map_err(|cause| error(text, field, cause))?;
    Ok(read.unsigned_abs())
}

/// Reads whole units, rounded **down**: what there is of something of which a part serves nobody.
pub(crate) fn whole_units(text: &str, field: &str) -> Result<i64, QuantityError> {
    let read = exact(text, field)?;
    i64::try_from(read.0 / NANO).map_err(|_| error(text, field, QuantityFault::Overflow))
}

/// A quantity as exactly as Kubernetes keeps it: to be compared, not to be counted with. Two texts that say the same are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExactQuantity(i128);

/// Reads a quantity as exactly as Kubernetes keeps it.
pub fn exact(text: &str, field: &str) -> Result<ExactQuantity, QuantityError> {
    match nanos(text) {
        Ok(nanos) if nanos < 0 => Err(error(text, field, QuantityFault::Negative)),
        Ok(nanos) => Ok(ExactQuantity(nanos)),
        Err(fault) => Err(error(text, field, fault)),
    }
}

/// Reads an amount in the unit that the engine counts the resource in.
pub fn amount(resource: &Resource, text: &str, field: &str) -> Result<Amount, QuantityError> {
    match resource {
        Resource::Gpus | Resource::Cpu => milli(text, field),
        Resource::Vram | Resource::Memory | Resource::Extended(_) => units(text, field),
    }
    .map(Amount)
}

/// Writes an amount as people write it: `2`, `1500m`, `640Gi`. Reading it back gives the same amount.
pub fn written(resource: &Resource, amount: Amount) -> Quantity {
    Quantity(match resource {
        Resource::Gpus | Resource::Cpu => match amount.0 % 1000 {
            0 => (amount.0 / 1000).to_string(),
            _ => format!("{}m", amount.0),
        },
        Resource::Vram | Resource::Memory => written_bytes(amount.0),
        Resource::Extended(_) => amount.0.to_string(),
    })
}

/// An amount of the resource of this name in GPUs, cores, bytes or pieces, as metrics show it: to be read, not to be counted
/// with. `None` if nobody can count with it.
pub fn in_base_units(name: &str, quantity: &Quantity) -> Option<f64> {
    let resource = resource(name);
    let amount = amount(&resource, &quantity.0, "").ok()?;
    #[expect(clippy::cast_precision_loss, reason = "it is read by people")]
    let counted = amount.0 as f64;
    Some(match resource {
        Resource::Gpus | Resource::Cpu => counted / 1000.0,
        Resource::Vram | Resource::Memory | Resource::Extended(_) => counted,
    })
}

/// The resource that a quota calls by this name.
pub fn resource(name: &str) -> Resource {
    match name {
        "gpus" => Resource::Gpus,
        "vram" => Resource::Vram,
        "cpu" => Resource::Cpu,
        "memory" => Resource::Memory,
        other => Resource::Extended(other.into()),
    }
}

/// Writes bytes as people write them: with the larger of the two suffixes that leave a whole number, binary or
/// decimal; of equals the binary.
pub fn written_bytes(bytes: i64) -> String {
    const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    // Six steps of either kind fit into 63 bits.
    let whole = |base: i64| {
        let mut rest = bytes;
        let mut steps = 0;
        while rest != 0 && rest % base == 0 {
            rest /= base;
            steps += 1;
        }
        (rest, steps)
    };
    let (binary, decimal) = (whole(1024), whole(1000));
    let ((number, steps), suffixes) = if decimal.1 > binary.1 {
        (decimal, DECIMAL)
    } else {
        (binary, BINARY)
    };
    format!("{number}{}", suffixes[steps])
}

fn error(text: &str, field: &str, cause: QuantityFault) -> QuantityError {
    QuantityError {
        field: field.to_owned(),
        // Texts come from anybody; a message stays short.
        text: text.chars().take(64).collect(),
        cause,
    }
}

fn scaled(text: &str, per_unit: i128) -> Result<i64, QuantityFault> {
    let nanos = nanos(text)?;
    if nanos < 0 {
        return Err(QuantityFault::Negative);
    }
    let step = NANO / per_unit;
    let rounded_up = nanos / step + i128::from(nanos % step != 0);
    i64::try_from(rounded_up).map_err(|_| QuantityFault::Overflow)
}

/// Billionths, rounded away from zero, as Kubernetes keeps them.
fn nanos(text: &str) -> Result<i128, QuantityFault> {
    let (negative, text) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return Err(QuantityFault::NotAQuantity);
    }
    let (factor, exponent) = multiplier(suffix)?;
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    let mantissa: i128 = digits.parse().map_err(|_| QuantityFault::Overflow)?;
    let mantissa = mantissa
        .checked_mul(factor)
        .ok_or(QuantityFault::Overflow)?;
    let places = i64::try_from(fraction.len()).map_err(|_| QuantityFault::Overflow)?;
    let nanos = times_power_of_ten(mantissa, i64::from(exponent) - places + 9)?;
    Ok(if negative { -nanos } else { nanos })
}

/// The factor and the power of ten that a suffix stands for.
fn multiplier(suffix: &str) -> Result<(i128, i32), QuantityFault> {
    Ok(match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => {
            let exponent = suffix
                .strip_prefix(['e', 'E'])
                .ok_or(QuantityFault::NotAQuantity)?;
            (
                1,
                exponent.parse().map_err(|_| QuantityFault::NotAQuantity)?,
            )
        }
    })
}

/// `number` (above zero) times ten to the `power`, rounded up.
fn times_power_of_ten(number: i128, power: i64) -> Result<i128, QuantityFault> {
    let ten_to = |power: i64| {
        u32::try_from(power)
            .ok()
            .and_then(|p| 10_i128.checked_pow(p))
    };
    if power >= 0 {
        return ten_to(power)
            .and_then(|factor| number.checked_mul(factor))
            .ok_or(QuantityFault::Overflow);
    }
    // A divisor above all 127-bit numbers leaves less than one billionth, which counts as one.
    Ok(ten_to(-power).map_or(1, |divisor| {
        number / divisor + i128::from(number % divisor != 0)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, in_milli, in_units) in [
            ("0", 0, 0),
            ("16", 16_000, 16),
            ("500m", 500, 1),
            ("1.5", 1500, 2),
            (".5", 500, 1),
            ("2.", 2000, 2),
            ("+3", 3000, 3),
            ("-0", 0, 0),
            ("1n", 1, 1),
            ("100u", 1, 1),
            ("1k", 1_000_000, 1000),
            ("1Ki", 1_024_000, 1024),
            ("1.5Gi", 1_610_612_736_000, 1_610_612_736),
            ("12e3", 12_000_000, 12_000),
            ("12E-3", 12, 1),
            ("1.000000000000000000000000000000000000000000", 1000, 1),
            ("0.0000000000000000000000000000000000000000000000001", 1, 1),
        ] {
            assert_eq!(milli(text, "f"), Ok(in_milli), "{text} in thousandths");
            assert_eq!(units(text, "f"), Ok(in_units), "{text} in units");
        }
        for (text, whole) in [
            ("1500m", 1),
            ("999m", 0),
            ("2", 2),
            ("1.5Gi", 1_610_612_736),
        ] {
            assert_eq!(whole_units(text, "f"), Ok(whole), "{text} in whole units");
        }
        let quantity = |text| exact(text, "f").unwrap();
        assert_eq!(quantity("40Gi"), quantity("40960Mi"));
        assert!(quantity("39.5Gi") < quantity("40Gi") && quantity("40Gi") < quantity("43G"));
        assert_eq!(units("7Ei", "f"), Ok(7 << 60));
        assert_eq!(units("9E", "f"), Ok(9_000_000_000_000_000_000));
    }

    #[test]
    fn what_is_no_quantity_is_an_error_that_says_where_and_why() {
        use QuantityFault::{Negative, NotAQuantity, Overflow};
        for (text, cause) in [
            ("", NotAQuantity),
            (".", NotAQuantity),
            ("-", NotAQuantity),
            ("abc", NotAQuantity),
            ("1.2.3", NotAQuantity),
            ("1 Gi", NotAQuantity),
            ("1gi", NotAQuantity),
            ("1K", NotAQuantity),
            ("1e", NotAQuantity),
            ("1e99999999999", NotAQuantity),
            ("Ⅻ", NotAQuantity),
            ("-1", Negative),
            ("-1n", Negative),
            ("8Ei", Overflow),
            ("10E", Overflow),
            ("1e400", Overflow),
            ("99999999999999999999999999999999999999999999", Overflow),
        ] {
            let error = units(text, "spec.quota[0].nominal").unwrap_err();
            assert_eq!(error.cause, cause, "{text}");
            assert!(error.to_string().starts_with("spec.quota[0].nominal: "));
            if cause != Overflow {
                assert_eq!(exact(text, "f").unwrap_err().cause, cause, "{text}");
            }
        }
    }

    #[test]
    fn amounts_are_written_as_people_write_them() {
        for (name, amount, text) in [
            ("gpus", 16_000, "16"),
            ("gpus", 1500, "1500m"),
            ("cpu", 0, "0"),
            ("vram", 640 << 30, "640Gi"),
            ("vram", (1 << 30) + 1, "1073741825"),
            ("memory", 3 << 20, "3Mi"),
            ("memory", 512_000, "500Ki"),
            ("vram", 80_000_000_000, "80G"),
            ("vram", 81_559 << 20, "81559Mi"),
            ("vram", 0, "0"),
            ("rdma/hca", 4, "4"),
        ] {
            assert_eq!(written(&resource(name), Amount(amount)).0, text);
        }
    }

    proptest! {
        #[test]
        fn an_amount_that_is_written_and_read_is_the_same(
            name in prop::sample::select(vec!["gpus", "vram", "cpu", "memory", "a/b"]),
            number in 0..=i64::MAX,
        ) {
            let resource = resource(name);
            let text = written(&resource, Amount(number)).0;
            prop_assert_eq!(amount(&resource, &text, "f"), Ok(Amount(number)));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = (milli(&text, "f"), units(&text, "f"));
        }

        #[test]
        fn no_number_with_a_suffix_panics(text in "[-+]?[0-9.]{0,60}(e[-+]?[0-9]{1,12}|[numkMGTPEKi]{0,3})") {
            let _ = (milli(&text, "f"), units(&text, "f"));
        }
    }
}
