//! Fields that another version wrote, and that this one does not know: they stay where they are when a file is written again.
//!
//! What is unknown is what the file has and its reading does not. Something that is left out where it is empty or false, and that a
//! file says all the same, looks unknown as well; kept, it still says what was read.
//!
//! In a list an entry is the same as before if it is about the same `device`, or, where entries have none, stands at the same place.

use serde_json::Value;

/// Whether a file has something, below its top, that its reading does not have.
pub(crate) fn has_unknown(file: &Value, known: &Value) -> bool {
    match (file, known) {
        (Value::Object(file), Value::Object(known)) => {
            let inside = |(name, value): (&String, &Value)| match known.get(name) {
                Some(known) => differs(value, known),
                // At the top: serde keeps it.
                None => false,
            };
            file.iter().any(inside)
        }
        _ => false,
    }
}

fn differs(file: &Value, known: &Value) -> bool {
    match (file, known) {
        (Value::Object(file), Value::Object(known)) => file
            .iter()
            .any(|(name, value)| known.get(name).is_none_or(|known| differs(value, known))),
        (Value::Array(file), Value::Array(known)) => file
            .iter()
            .zip(known)
            .any(|(value, known)| differs(value, known)),
        _ => false,
    }
}

/// Puts what is unknown in `file`, of which `known` was read, into what replaces it.
pub(crate) fn keep_unknown(file: &Value, known: &Value, next: &mut Value) {
    match (file, known, next) {
        (Value::Object(file), Value::Object(known), Value::Object(next)) => {
            for (name, value) in file {
                match (known.get(name), next.get_mut(name)) {
                    (Some(known), Some(next)) => keep_unknown(value, known, next),
                    (None, None) => {
                        next.insert(name.clone(), value.clone());
                    }
                    // Known, and gone on purpose; or new here, and there before.
                    (Some(_), None) | (None, Some(_)) => {}
                }
            }
        }
        (Value::Array(file), Value::Array(known), Value::Array(next)) => {
            for (place, next) in next.iter_mut().enumerate() {
                let before = match device(next) {
                    Some(name) => known.iter().position(|known| device(known) == Some(name)),
                    None => Some(place),
                };
                let pair = before.and_then(|place| Some((file.get(place)?, known.get(place)?)));
                if let Some((file, known)) = pair {
                    keep_unknown(file, known, next);
                }
            }
        }
        _ => {}
    }
}

fn device(entry: &Value) -> Option<&str> {
    entry.get("device")?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kept(file: &Value, known: &Value, mut next: Value) -> Value {
        keep_unknown(file, known, &mut next);
        next
    }

    #[test]
    fn what_is_unknown_stays_where_it_was_and_what_is_known_may_go() {
        let file = json!({"a": {"known": 1, "later": 2}, "gone": 3, "list": [{"device": "x", "later": 4}, {"device": "y"}]});
        let known =
            json!({"a": {"known": 1}, "gone": 3, "list": [{"device": "x"}, {"device": "y"}]});
        assert!(has_unknown(&file, &known));
        let next = json!({"a": {"known": 5}, "list": [{"device": "y"}, {"device": "x"}]});
        assert_eq!(
            kept(&file, &known, next),
            json!({"a": {"known": 5, "later": 2}, "list": [{"device": "y"}, {"device": "x", "later": 4}]})
        );
    }

    #[test]
    fn what_is_told_of_a_device_goes_with_it() {
        let file = json!({"list": [{"device": "x", "later": 4}]});
        let known = json!({"list": [{"device": "x"}]});
        let next = json!({"list": [{"device": "z"}]});
        assert_eq!(kept(&file, &known, next.clone()), next);
    }

    #[test]
    fn a_file_that_has_nothing_else_is_written_as_it_always_was() {
        let file = json!({"a": {"known": 1}, "top": true});
        assert!(!has_unknown(&file, &json!({"a": {"known": 1}})));
    }
}
