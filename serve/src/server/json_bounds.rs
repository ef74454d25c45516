//! How many values a JSON text may hold, found out before it is decoded.
//!
//! Decoded objects are far larger than their text: an empty container of a pod is 2 bytes of JSON and 2 KB of memory,
//! so 7 MiB of them would be gigabytes. Nobody who decodes counts, so this counts first, without allocating anything.

/// How much a text may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonBounds {
    /// Most elements of all arrays together.
    pub elements: usize,
    /// Most members of all objects together.
    pub members: usize,
}

/// Why a text is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooMuch {
    /// Too many elements of arrays.
    #[error("its lists have more than {0} elements in all")]
    Elements(usize),
    /// Too many members of objects.
    #[error("its objects have more than {0} fields in all")]
    Members(usize),
    /// Nested deeper than serde_json follows.
    #[error("it is nested deeper than {MOST_DEPTH} levels")]
    Depth,
}

/// Deepest nesting: where serde_json stops, too.
pub(crate) const MOST_DEPTH: u32 = 127;

impl JsonBounds {
    /// Counts the values of a text.
    ///
    /// A text that is no JSON passes or not, which is all the same: whoever decodes it stops at its first error, and up
    /// to there every value has been counted.
    pub fn check(self, text: &[u8]) -> Result<(), TooMuch> {
        let mut left = self;
        // The brackets that are open, innermost last: a bit each, 1 for an array.
        let (mut open, mut depth) = (0_u128, 0_u32);
        let mut rest = text.iter();
        // Whether the innermost bracket was opened just now, so that a value or its end follows.
        let mut is_new = false;
        while let Some(byte) = rest.next() {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' => continue,
                b']' | b'}' => {
                    is_new = false;
                    open >>= 1;
                    depth = depth.saturating_sub(1);
                    continue;
                }
                b',' => {
                    is_new = false;
                    self.count(&mut left, open, depth)?;
                    continue;
                }
                _ => {}
            }
            if std::mem::take(&mut is_new) {
                self.count(&mut left, open, depth)?;
            }
            match byte {
                b'"' => skip_string(&mut rest),
                b'[' | b'{' => {
                    depth += 1;
                    if depth > MOST_DEPTH {
                        return Err(TooMuch::Depth);
                    }
                    open = open << 1 | u128::from(*byte == b'[');
                    is_new = true;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Counts one value of the innermost bracket.
    fn count(self, left: &mut Self, open: u128, depth: u32) -> Result<(), TooMuch> {
        let (left, error) = match (depth, open & 1) {
            (0, _) => return Ok(()),
            (_, 1) => (&mut left.elements, TooMuch::Elements(self.elements)),
            _ => (&mut left.members, TooMuch::Members(self.members)),
        };
        *left = left.checked_sub(1).ok_or(error)?;
        Ok(())
    }
}

/// Skips to behind the closing quotation mark.
fn skip_string(rest: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => return,
            b'\\' => _ = rest.next(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const BOUNDS: JsonBounds = JsonBounds {
        elements: 3,
        members: 4,
    };

    #[test]
    fn elements_and_members_are_counted_apart_up_to_the_bound() {
        let elements = Err(TooMuch::Elements(3));
        let members = Err(TooMuch::Members(4));
        for (text, expected) in [
            ("", Ok(())),
            ("7", Ok(())),
            ("[]", Ok(())),
            ("[ ]", Ok(())),
            ("[1,2,3]", Ok(())),
            ("[1,2,3,4]", elements),
            ("[[],[1]]", Ok(())),
            ("[[],[1,2]]", elements),
            ("[{},{},{}]", Ok(())),
            ("[{},{},{},{}]", elements),
            (r#"{"a":1,"b":2,"c":3,"d":4}"#, Ok(())),
            (r#"{"a":1,"b":2,"c":3,"d":4,"e":5}"#, members),
            (r#"{"a":{"b":{"c":{"d":{}}}}}"#, Ok(())),
            (r#"{"a":{"b":{"c":{"d":{"e":1}}}}}"#, members),
            (r#"["a,b,c,d,[,[,{", "\",\",,,,"]"#, Ok(())),
            (r#"["\\",",,,,,"]"#, Ok(())),
            ("]]]}}},,,,,,,", Ok(())),
        ] {
            assert_eq!(BOUNDS.check(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn what_is_nested_too_deep_is_refused_where_serde_json_refuses_it() {
        let roomy = JsonBounds {
            elements: 1000,
            members: 1000,
        };
        for (depth, fits) in [(127, true), (128, false), (100_000, false)] {
            let text = "[".repeat(depth) + &"]".repeat(depth);
            assert_eq!(roomy.check(text.as_bytes()).is_ok(), fits, "{depth}");
            assert_eq!(serde_json::from_str::<Value>(&text).is_ok(), fits);
        }
    }

    #[test]
    fn seven_mebibytes_of_empty_containers_are_refused_and_nothing_is_allocated_for_them() {
        let text = format!("[{}{{}}]", "{},".repeat(7 * 1024 * 1024 / 3));
        let bounds = JsonBounds {
            elements: 10_000,
            members: 100_000,
        };
        assert_eq!(
            bounds.check(text.as_bytes()),
            Err(TooMuch::Elements(10_000))
        );
    }

    #[test]
    fn what_is_counted_is_what_is_there() {
        fn size(value: &Value) -> (usize, usize) {
            let (own, inner): ((usize, usize), Vec<_>) = match value {
                Value::Array(values) => ((values.len(), 0), values.iter().map(size).collect()),
                Value::Object(fields) => ((0, fields.len()), fields.values().map(size).collect()),
                _ => return (0, 0),
            };
            let add = |sum: (usize, usize), one: (usize, usize)| (sum.0 + one.0, sum.1 + one.1);
            inner.into_iter().fold(own, add)
        }
        let value = json!({"a": [1, [2, {"b": []}], "x"], "c": {"d": null}, "e": [[[0]]]});
        let (elements, members) = size(&value);
        for text in [
            value.to_string(),
            serde_json::to_string_pretty(&value).unwrap(),
        ] {
            let exact = JsonBounds { elements, members };
            assert_eq!(exact.check(text.as_bytes()), Ok(()));
            let elements = elements - 1;
            let less = JsonBounds { elements, ..exact };
            assert!(less.check(text.as_bytes()).is_err());
            let members = members - 1;
            let less = JsonBounds { members, ..exact };
            assert!(less.check(text.as_bytes()).is_err());
        }
    }
}
