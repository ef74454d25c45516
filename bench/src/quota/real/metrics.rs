//! What the controller's `/metrics` say of a run.

use std::collections::BTreeMap;

/// Calls to the API server by kind, whatever came of them.
pub(super) fn calls(text: &str) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("muster_effects_total{") else {
            continue;
        };
        let Some((labels, value)) = rest.split_once("} ") else {
            continue;
        };
        let kind = labels
            .split(',')
            .find_map(|label| label.strip_prefix("kind=\"")?.strip_suffix('"'));
        if let (Some(kind), Ok(value)) = (kind, value.trim().parse::<u64>()) {
            *calls.entry(kind.to_owned()).or_default() += value;
        }
    }
    calls
}

/// Of calls by kind, those that write.
pub(super) fn writes(calls: &BTreeMap<String, u64>) -> u64 {
    let writes = calls.iter().filter(|(kind, _)| !kind.starts_with("Read"));
    writes.map(|(_, calls)| calls).sum()
}

/// Seconds that the leader's task took with polls; 0 where it does not say.
pub(super) fn deciding_seconds(text: &str) -> f64 {
    let mut lines = text.lines();
    let sum = lines.find_map(|line| line.strip_prefix("muster_decide_seconds_sum "));
    sum.and_then(|sum| sum.trim().parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_summed_over_what_came_of_them_and_those_that_read_write_nothing() {
        let text = "# TYPE muster_effects counter\n\
                    muster_effects_total{kind=\"PatchPod\",outcome=\"done\"} 7\n\
                    muster_effects_total{kind=\"PatchPod\",outcome=\"conflict\"} 2\n\
                    muster_effects_total{kind=\"CreateGang\",outcome=\"done\"} 3\n\
                    muster_effects_total{kind=\"ReadAll\",outcome=\"done\"} 4\n\
                    muster_decide_seconds_sum 1.25\n";
        let wanted = [("CreateGang", 3), ("PatchPod", 9), ("ReadAll", 4)];
        let wanted = wanted.map(|(kind, calls)| (kind.to_owned(), calls));
        assert_eq!(calls(text), BTreeMap::from(wanted));
        assert_eq!(writes(&calls(text)), 12);
        assert!((deciding_seconds(text) - 1.25).abs() < 1e-9);
    }
}
