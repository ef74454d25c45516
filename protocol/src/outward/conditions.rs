//! Standard conditions: the time of a transition is kept as long as the status stays the same.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// What a condition says now.
#[derive(Clone, Debug)]
pub(crate) struct ConditionUpdate<'a> {
    /// Type.
    pub(crate) type_: &'static str,
    /// Whether it holds.
    pub(crate) holds: bool,
    /// Stable reason.
    pub(crate) reason: &'a str,
    /// For people.
    pub(crate) message: String,
}

/// Longest message that is written; the API takes 32 KiB.
const MESSAGE_BYTES: usize = 4_096;

/// Sets a condition.
pub(crate) fn set(
    conditions: &mut Vec<Condition>,
    says: ConditionUpdate<'_>,
    generation: i64,
    now: Timestamp,
) {
    let status = if says.holds { "True" } else { "False" };
    let mut message = says.message;
    truncate(&mut message, MESSAGE_BYTES);
    let before = conditions
        .iter()
        .find(|condition| condition.type_ == says.type_);
    let last_transition_time = before
        .filter(|before| before.status == status)
        .map_or(Time(now), |before| before.last_transition_time.clone());
    let condition = Condition {
        type_: says.type_.to_owned(),
        status: status.to_owned(),
        reason: says.reason.to_owned(),
        message,
        observed_generation: Some(generation),
        last_transition_time,
    };
    match conditions
        .iter_mut()
        .find(|condition| condition.type_ == says.type_)
    {
        Some(slot) => *slot = condition,
        None => conditions.push(condition),
    }
}

/// Sets a condition to False, unless it never stood there.
pub(crate) fn clear(
    conditions: &mut Vec<Condition>,
    says: ConditionUpdate<'_>,
    generation: i64,
    now: Timestamp,
) {
    if conditions
        .iter()
        .any(|condition| condition.type_ == says.type_)
    {
        set(conditions, says, generation, now);
    }
}

/// Cuts a text at a character, at most `bytes` long.
pub(crate) fn truncate(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        let end = (0..=bytes)
            .rev()
            .find(|end| text.is_char_boundary(*end))
            .unwrap_or(0);
        text.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(holds: bool, message: &str) -> ConditionUpdate<'static> {
        ConditionUpdate {
            type_: "Running",
            holds,
            reason: "Running",
            message: message.to_owned(),
        }
    }

    #[test]
    fn the_time_of_a_transition_moves_only_with_the_status() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut conditions = Vec::new();
        set(&mut conditions, says(false, "1 of 2"), 1, at(10));
        set(&mut conditions, says(false, "2 of 2"), 1, at(20));
        assert_eq!(conditions[0].last_transition_time, Time(at(10)));
        assert_eq!(conditions[0].message, "2 of 2");
        set(&mut conditions, says(true, "all"), 2, at(30));
        assert_eq!(conditions[0].last_transition_time, Time(at(30)));
        assert_eq!(conditions.len(), 1);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let mut text = "aäää".to_owned();
        truncate(&mut text, 4);
        assert_eq!(text, "aä");
    }
}
