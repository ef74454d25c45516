//! Teams and Cohorts: what needs other objects to be judged. What one object shows is judged by its schema.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::{Cohort, Reason, Sharing, Team, keys};
use muster_cluster::{
    limits,
    quantity::QuantityError,
    shorthand::{self, Shorthand},
    text::{self, quoted},
};

use crate::{
    cache::Cache,
    finding::{Findings, listed},
};

/// Checks the memory that pods get which say nothing. One that no GPU has is warned of only: larger ones may come.
fn check_default(amount: &str, facts: &Cache, findings: &mut Findings) {
    const FIELD: &str = "spec.vramDefault";
    if let Err(why) = shorthand::check_memory(amount) {
        findings.error(Reason::InvalidValue, FIELD, why);
        return;
    }
    let given = [(keys::GPUS, "1"), (keys::VRAM, amount)];
    let given: BTreeMap<String, String> = given
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    if let Ok(Some(shorthand)) = Shorthand::read(Some(&given))
        && !facts.gpus.some_fit(&shorthand)
    {
        findings.warn(format!(
            "{FIELD}: no GPU has {amount}, so pods that say nothing about memory are refused; there are: {}",
            facts.gpus.described()
        ));
    }
}

/// Checks a Team. `before`: as it was, on an update. What it said then already is not refused any more: it could not be labelled,
/// nor deleted in the foreground.
pub fn check_team(team: &Team, before: Option<&Team>, facts: &Cache) -> Findings {
    let mut findings = Findings::default();
    if before.is_none_or(|before| before.spec != team.spec) {
        refuse_amounts(limits::team(team).1, &mut findings);
    }
    if before.is_none_or(|before| before.spec.vram_default != team.spec.vram_default)
        && let Some(amount) = &team.spec.vram_default
    {
        check_default(&amount.0, facts, &mut findings);
    }
    if let Some(cohort) = &team.spec.cohort {
        warn_of_implicit_cohort("spec.cohort", cohort, facts, &mut findings);
    }
    let Some(tiers) = &team.spec.tiers else {
        return findings;
    };
    if before.is_none_or(|before| before.spec.tiers != team.spec.tiers)
        && let Some(default) = &tiers.default
        && !tiers.allowed.is_empty()
        && !tiers.allowed.contains(default)
    {
        findings.error(
            Reason::TierNotAllowed,
            "spec.tiers.default",
            format!(
                "{} is not among the allowed tiers: {}",
                quoted(default),
                listed(tiers.allowed.iter().map(String::as_str))
            ),
        );
    }
    for tier in tiers.allowed.iter().chain(&tiers.default) {
        if !facts.tiers.contains(tier) {
            findings.warn(format!(
                "spec.tiers: there is no PriorityTier {} yet",
                quoted(tier)
            ));
        }
    }
    findings
}

/// Checks a Cohort: it must not be its own ancestor. `before`: as it was, on an update, as for a Team; one in a cycle can still be
/// labelled and deleted.
///
/// Two changes at the same moment, or one that our watch has not told us of yet, can still close a cycle
/// together; the engine therefore does not rely on there being none.
pub fn check_cohort(cohort: &Cohort, before: Option<&Cohort>, facts: &Cache) -> Findings {
    let mut findings = Findings::default();
    if before.is_none_or(|before| before.spec != cohort.spec) {
        refuse_amounts(limits::cohort(cohort).1, &mut findings);
    }
    let Some(parent) = &cohort.spec.parent else {
        return findings;
    };
    if cohort.spec.sharing != Sharing::default() {
        findings.warn(
            "spec.sharing: the root of the tree decides how it shares; this Cohort has a parent",
        );
    }
    let name = cohort.metadata.name.as_deref().unwrap_or_default();
    if before.is_none_or(|before| before.spec.parent != cohort.spec.parent)
        && let Some(ancestors) = ancestors_back_to(name, parent, &facts.parent_of_cohort)
    {
        findings.error(
            Reason::CohortCycle,
            "spec.parent",
            format!(
                "{name} would be its own ancestor: {name} -> {}",
                text::way(&ancestors)
            ),
        );
        return findings;
    }
    warn_of_implicit_cohort("spec.parent", parent, facts, &mut findings);
    findings
}

/// What the controller could not count with. The schema lets pass what is written well; how much it is depends on the unit.
fn refuse_amounts(faults: Vec<QuantityError>, findings: &mut Findings) {
    for fault in faults {
        let message = format!("{} {}", quoted(&fault.text), fault.cause);
        findings.error(Reason::InvalidValue, &fault.field, message);
    }
}

/// A Cohort that is only named has neither quota nor limits: legal, and often a misspelling.
fn warn_of_implicit_cohort(field: &str, cohort: &str, facts: &Cache, findings: &mut Findings) {
    if !facts.parent_of_cohort.contains_key(cohort) {
        findings.warn(format!(
            "{field}: there is no Cohort {} yet; it counts as one without quota of its own",
            quoted(cohort)
        ));
    }
}

/// The way from `parent` up to `name`, if there is one.
fn ancestors_back_to<'a>(
    name: &str,
    parent: &'a str,
    parent_of_cohort: &'a BTreeMap<String, Option<String>>,
) -> Option<Vec<&'a str>> {
    let mut way = Vec::new();
    let mut seen = BTreeSet::new();
    let mut current = Some(parent);
    // A cycle among others does not concern this Cohort, and must not hold up its check.
    while let Some(cohort) = current.filter(|cohort| seen.insert(*cohort)) {
        way.push(cohort);
        if cohort == name {
            return Some(way);
        }
        current = parent_of_cohort
            .get(cohort)
            .and_then(|parent| parent.as_deref());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::testing::slice;
    use muster_api::{
        AdmissionFairness, CohortSpec, FlavorQuota, NamespaceWeight, ResourceQuota, ResourceWeight,
        TeamSpec, VramPolicy, team::TeamTiers,
    };
    use proptest::prelude::*;

    #[test]
    fn a_default_amount_of_memory_is_one_that_a_pod_could_ask_for() {
        let team = |amount: &str| {
            let spec = TeamSpec {
                vram: VramPolicy::Default,
                vram_default: Some(amount.into()),
                ..TeamSpec::default()
            };
            Team::new("red", spec)
        };
        for (amount, says) in [
            ("10Gi", None),
            (
                "40",
                Some("\"40\": is 40 bytes; write the memory of one GPU with a suffix"),
            ),
            ("0", Some("is 0 bytes")),
        ] {
            let found = check_team(&team(amount), None, &Cache::default());
            assert_eq!(found.errors.is_empty(), says.is_none(), "{found:?}");
            for error in &found.errors {
                assert_eq!(error.reason, Reason::InvalidValue);
                assert_eq!(error.field, "spec.vramDefault");
                assert!(error.message.contains(says.unwrap()), "{error:?}");
            }
            // As it stood before it is refused no more.
            let before = team(amount);
            let again = check_team(&team(amount), Some(&before), &Cache::default());
            assert!(again.errors.is_empty());
        }
        // What no GPU has is warned of. Memory is meant as it is sold.
        let mut facts = Cache::default();
        facts.gpus.put(&slice("n1", "T4", "15Gi", 1, 1));
        for (amount, warns) in [("16Gi", false), ("17Gi", true)] {
            let found = check_team(&team(amount), None, &facts);
            assert!(found.errors.is_empty(), "{found:?}");
            let warned = found
                .warnings
                .iter()
                .any(|it| it.contains("no GPU has 17Gi"));
            assert_eq!(warned, warns, "{found:?}");
        }
    }

    fn cohorts(parents: &[(&str, Option<&str>)]) -> Cache {
        Cache {
            parent_of_cohort: parents
                .iter()
                .map(|(name, parent)| ((*name).to_owned(), parent.map(str::to_owned)))
                .collect(),
            ..Cache::default()
        }
    }

    fn cohort(name: &str, parent: Option<&str>) -> Cohort {
        let spec = CohortSpec {
            parent: parent.map(str::to_owned),
            ..CohortSpec::default()
        };
        Cohort::new(name, spec)
    }

    #[test]
    fn a_cycle_is_refused_with_the_way_it_takes() {
        let facts = cohorts(&[("a", None), ("b", Some("a")), ("c", Some("b"))]);
        let findings = check_cohort(&cohort("a", Some("c")), None, &facts);
        assert_eq!(findings.errors[0].reason, Reason::CohortCycle);
        assert_eq!(findings.errors[0].field, "spec.parent");
        assert!(
            findings.errors[0].message.ends_with("a -> c -> b -> a"),
            "{findings:?}"
        );
        assert_eq!(
            check_cohort(&cohort("c", Some("a")), None, &facts),
            Findings::default()
        );
    }

    #[test]
    fn a_cycle_of_ten_thousand_cohorts_is_refused_in_a_few_words() {
        let names: Vec<String> = (0..10_000).map(|at| format!("{at:0>253}")).collect();
        let above = |at: usize| at.checked_sub(1).map(|above| names[above].as_str());
        let parents: Vec<_> = (0..names.len())
            .map(|at| (names[at].as_str(), above(at)))
            .collect();
        let last = names.last().unwrap();
        let findings = check_cohort(&cohort(&names[0], Some(last)), None, &cohorts(&parents));
        assert_eq!(findings.errors[0].reason, Reason::CohortCycle);
        let message = &findings.errors[0].message;
        assert!(message.len() < 4_096, "{}", message.len());
        assert!(message.contains("9990 more"), "{message}");
        assert!(message.ends_with(names[0].as_str()), "{message}");
    }

    #[test]
    fn what_stood_before_is_refused_no_more_so_that_it_can_be_labelled_and_deleted() {
        let facts = cohorts(&[("a", Some("b")), ("b", Some("a"))]);
        let in_cycle = cohort("a", Some("b"));
        let mut labelled = in_cycle.clone();
        labelled.metadata.labels = Some(BTreeMap::from([("x".into(), "y".into())]));
        let refused =
            |before: Option<&Cohort>| !check_cohort(&labelled, before, &facts).errors.is_empty();
        assert!(refused(None) && refused(Some(&cohort("a", None))));
        assert!(!refused(Some(&in_cycle)));

        let tiers = TeamTiers {
            allowed: vec!["high".into()],
            default: Some("low".into()),
        };
        let spec = |tiers| TeamSpec {
            tiers,
            ..TeamSpec::default()
        };
        let team = Team::new("red", spec(Some(tiers)));
        let other = Team::new("red", spec(None));
        let refused = |before: Option<&Team>| {
            !check_team(&team, before, &Cache::default())
                .errors
                .is_empty()
        };
        assert!(refused(None) && refused(Some(&other)));
        assert!(!refused(Some(&team.clone())));
    }

    #[test]
    fn a_weight_of_a_namespace_that_cannot_be_counted_is_refused_with_its_field() {
        let weighing = |weight: &str| {
            let fairness = AdmissionFairness {
                half_life_seconds: 3_600,
                sampling_interval_seconds: 300,
                resource_weights: vec![ResourceWeight {
                    resource: "gpus".into(),
                    weight: "1".into(),
                }],
                namespaces: vec![NamespaceWeight {
                    name: "training".into(),
                    weight: weight.into(),
                }],
            };
            let spec = TeamSpec {
                admission_fairness: Some(fairness),
                ..TeamSpec::default()
            };
            check_team(&Team::new("red", spec), None, &Cache::default()).errors
        };
        assert!(weighing("2").is_empty() && weighing("0").is_empty());
        let errors = weighing("9223372037");
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].reason, Reason::InvalidValue);
        assert_eq!(
            errors[0].field,
            "spec.admissionFairness.namespaces[0].weight"
        );
    }

    #[test]
    fn an_amount_beyond_what_can_be_counted_is_refused_with_its_field() {
        for (resource, amount, is_refused) in [
            ("gpus", "9223372036854775", false),
            ("gpus", "9223372036854776", true),
            ("memory", "7Ei", false),
            ("memory", "8Ei", true),
            ("cpu", "1E", true),
            ("example.com/nic", "9E", false),
            ("example.com/nic", "10E", true),
        ] {
            let quota = vec![FlavorQuota {
                flavor: "h100".into(),
                resources: vec![ResourceQuota {
                    name: resource.into(),
                    nominal: Some("0".into()),
                    borrowing_limit: Some(amount.into()),
                    ..ResourceQuota::default()
                }],
            }];
            let team = Team::new(
                "red",
                TeamSpec {
                    cohort: Some("all".into()),
                    quota: quota.clone(),
                    ..TeamSpec::default()
                },
            );
            let above = Cohort::new(
                "all",
                CohortSpec {
                    quota,
                    ..CohortSpec::default()
                },
            );
            let facts = cohorts(&[("all", None)]);
            let said_before = [
                check_team(&team, Some(&team), &facts),
                check_cohort(&above, Some(&above), &facts),
            ];
            assert!(
                said_before
                    .iter()
                    .all(|findings| findings.errors.is_empty())
            );
            for findings in [
                check_team(&team, None, &facts),
                check_cohort(&above, None, &facts),
                check_team(&team, Some(&Team::new("red", TeamSpec::default())), &facts),
                check_cohort(&above, Some(&cohort("all", None)), &facts),
            ] {
                assert_eq!(
                    !findings.errors.is_empty(),
                    is_refused,
                    "{amount} {resource}"
                );
                for error in &findings.errors {
                    assert_eq!(error.reason, Reason::InvalidValue);
                    assert_eq!(error.field, "spec.quota[0].resources[0].borrowingLimit");
                    assert!(error.message.contains(amount), "{error:?}");
                }
            }
        }
    }

    #[test]
    fn a_cohort_that_is_only_named_is_allowed_with_a_warning() {
        let findings = check_cohort(&cohort("a", Some("new")), None, &Cache::default());
        assert!(findings.errors.is_empty());
        assert_eq!(findings.warnings.len(), 1);
    }

    #[test]
    fn a_cohort_below_another_is_warned_that_it_does_not_decide_how_the_tree_shares() {
        let facts = cohorts(&[("all", None)]);
        for (parent, sharing, warnings) in [
            (None, Sharing::Fair, 0),
            (Some("all"), Sharing::Classical, 0),
            (Some("all"), Sharing::Fair, 1),
        ] {
            let mut below = cohort("a", parent);
            below.spec.sharing = sharing;
            let findings = check_cohort(&below, None, &facts);
            assert_eq!(findings.warnings.len(), warnings, "{parent:?} {sharing:?}");
        }
    }

    #[test]
    fn a_team_cannot_default_to_a_tier_that_it_may_not_use() {
        let tiers = |default: &str| {
            Some(TeamTiers {
                allowed: vec!["standard".into()],
                default: Some(default.into()),
            })
        };
        let facts = Cache {
            tiers: ["standard".to_owned(), "critical".to_owned()].into(),
            ..Cache::default()
        };
        for (default, refused) in [("standard", false), ("critical", true)] {
            let team = Team::new(
                "red",
                TeamSpec {
                    tiers: tiers(default),
                    ..TeamSpec::default()
                },
            );
            let findings = check_team(&team, None, &facts);
            assert_eq!(!findings.errors.is_empty(), refused, "{default}");
        }
    }

    proptest! {
        /// Whatever tree, or tangle, is there: the check ends, and a Cohort that passes it is not its own ancestor.
        #[test]
        fn what_passes_is_no_cycle(
            parents in prop::collection::btree_map("[a-e]", prop::option::of("[a-e]"), 0..6),
            name in "[a-e]",
            parent in "[a-e]",
        ) {
            let mut facts = Cache { parent_of_cohort: parents, ..Cache::default() };
            let refused = !check_cohort(&cohort(&name, Some(&parent)), None, &facts).errors.is_empty();
            facts.parent_of_cohort.insert(name.clone(), Some(parent));
            let mut current = name.clone();
            let mut back = false;
            for _ in 0..10 {
                match facts.parent_of_cohort.get(&current) {
                    Some(Some(next)) => current.clone_from(next),
                    _ => break,
                }
                back |= current == name;
            }
            prop_assert_eq!(refused, back);
        }
    }
}
