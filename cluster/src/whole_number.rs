//! Whole numbers as annotations give them: ASCII digits and nothing else.
//!
//! `str::parse` takes a sign and leading zeros, and two programs that read the same annotation differently
//! would disagree on the size of a gang, or on the GPUs of a pod.

use std::ops::RangeInclusive;

use muster_api::keys::{LONGEST_RUNTIME_SECONDS, MAX_GANG_SIZE, MAX_LIMIT_SECONDS, MOST_RESTARTS};

/// The number, if the text is plain digits without leading zero and within `range`.
pub fn parse(text: &str, range: &RangeInclusive<u32>) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = text == "0" || !text.starts_with('0');
    if !plain || !canonical {
        return None;
    }
    text.parse().ok().filter(|number| range.contains(number))
}

/// The size of a gang as the annotation `muster.dev/gang-size` gives it: 1 to 4,096.
pub fn gang_size(text: &str) -> Option<u32> {
    parse(text, &(1..=MAX_GANG_SIZE))
}

/// A limit of a gang in seconds, as its annotations give it: 1 to 86,400.
pub fn limit_seconds(text: &str) -> Option<u32> {
    parse(text, &(1..=MAX_LIMIT_SECONDS))
}

/// The longest run of a gang in seconds, as its annotations give it: 1 to 31,536,000.
pub fn runtime_seconds(text: &str) -> Option<u32> {
    parse(text, &(1..=LONGEST_RUNTIME_SECONDS))
}

/// How often a gang is started anew at most, as its annotations give it: 0 to 1,000.
pub fn restarts(text: &str) -> Option<u32> {
    parse(text, &(0..=MOST_RESTARTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_digits_within_the_range_are_a_number() {
        for (text, number) in [
            ("1", Some(1)),
            ("4096", Some(4096)),
            ("0", None),
            ("4097", None),
            ("", None),
            ("-1", None),
            ("+5", None),
            ("1e3", None),
            ("007", None),
            (" 5", None),
            ("5 ", None),
            ("٥", None),
            ("5.0", None),
            ("0x10", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(parse(text, &(1..=4096)), number, "{text:?}");
        }
    }
}
