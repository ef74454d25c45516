//! Standard conditions: the time of a transition is kept as long as the status stays the same.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use muster_cluster::text::truncate;

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
    fn a_message_is_cut_where_the_next_byte_is_too_many() {
        let written = |bytes: usize| {
            let mut conditions = Vec::new();
            let says = says(true, &"x".repeat(bytes));
            set(&mut conditions, says, 1, Timestamp::UNIX_EPOCH);
            conditions.remove(0).message
        };
        let whole = written(MESSAGE_BYTES);
        assert_eq!((whole.len(), whole.ends_with('x')), (MESSAGE_BYTES, true));
        let cut = written(MESSAGE_BYTES + 1);
        assert!(cut.len() <= MESSAGE_BYTES && cut.ends_with('…'));
    }
}
