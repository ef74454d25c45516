//! Kubernetes quantities, read independently of Muster's own reader.

/// A quantity in thousandths, if it is one that a quota or a request may have.
pub(super) fn thousandths(text: &str) -> Option<i128> {
    const BINARY: [(&str, u32); 6] = [
        ("Ki", 1),
        ("Mi", 2),
        ("Gi", 3),
        ("Ti", 4),
        ("Pi", 5),
        ("Ei", 6),
    ];
    const DECIMAL: [(&str, u32); 6] = [("k", 1), ("M", 2), ("G", 3), ("T", 4), ("P", 5), ("E", 6)];
    if let Some(number) = text.strip_suffix('m') {
        return number.parse().ok();
    }
    for (suffix, power) in BINARY {
        if let Some(number) = text.strip_suffix(suffix) {
            return decimal(number)?.checked_mul(1024_i128.pow(power));
        }
    }
    for (suffix, power) in DECIMAL {
        if let Some(number) = text.strip_suffix(suffix) {
            return decimal(number)?.checked_mul(1000_i128.pow(power));
        }
    }
    decimal(text)
}

/// A number with at most three decimals, in thousandths.
fn decimal(text: &str) -> Option<i128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 3 {
        return None;
    }
    let whole: i128 = whole.parse().ok()?;
    let fraction: i128 = format!("{fraction:0<3}").parse().ok()?;
    whole.checked_mul(1000)?.checked_add(fraction)
}

#[cfg(test)]
mod tests {
    use super::thousandths;

    #[test]
    fn quantities_are_read_in_thousandths() {
        for (text, expected) in [
            ("16", Some(16_000)),
            ("500m", Some(500)),
            ("1.5", Some(1_500)),
            ("1Ki", Some(1_024_000)),
            ("80Gi", Some(80 * 1024 * 1024 * 1024 * 1000)),
            ("2k", Some(2_000_000)),
            ("a lot", None),
        ] {
            assert_eq!(thousandths(text), expected, "{text}");
        }
    }
}
