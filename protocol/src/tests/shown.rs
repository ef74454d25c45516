//! What Teams, Cohorts, Flavors and PriorityTiers say of themselves.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use muster_api::{CohortStatus, FlavorOverlap, FlavorStatus, conditions};

use super::*;

#[expect(clippy::needless_pass_by_value, reason = "callers write it in place")]
fn cohort(name: &str, spec: Value) -> Object {
    Object::Cohort(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Cohort", "metadata": {"name": name}, "spec": spec,
    })))
}

#[expect(clippy::needless_pass_by_value, reason = "callers write it in place")]
fn flavor(name: &str, spec: Value) -> Object {
    Object::Flavor(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": name}, "spec": spec,
    })))
}

#[expect(clippy::needless_pass_by_value, reason = "callers write it in place")]
fn team_that(spec: Value) -> Object {
    Object::Team(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "vision"}, "spec": spec,
    })))
}

fn quota(flavor: &str) -> Value {
    json!([{"flavor": flavor, "resources": [{"name": "gpus", "nominal": 4}]}])
}

fn tier(name: &str) -> Object {
    tier_that(name, json!({"value": 0}))
}

#[expect(clippy::needless_pass_by_value, reason = "callers write it in place")]
fn tier_that(name: &str, spec: Value) -> Object {
    Object::PriorityTier(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "PriorityTier", "metadata": {"name": name}, "spec": spec,
    })))
}

impl Bench {
    fn object(&self, kind: Kind, name: &str) -> Object {
        let mut objects = self.server.list(kind).into_iter();
        let named = objects.find(|object| object.key().name == name);
        named.unwrap_or_else(|| panic!("{kind:?} {name}"))
    }

    fn team_conditions(&self) -> Vec<Condition> {
        match self.object(Kind::Team, "vision") {
            Object::Team(team) => team.status.clone().unwrap_or_default().conditions,
            other => panic!("{other:?}"),
        }
    }

    fn cohort_status(&self, name: &str) -> CohortStatus {
        match self.object(Kind::Cohort, name) {
            Object::Cohort(cohort) => cohort.status.clone().unwrap_or_default(),
            other => panic!("{other:?}"),
        }
    }

    fn flavor_status(&self, name: &str) -> FlavorStatus {
        match self.object(Kind::Flavor, name) {
            Object::Flavor(flavor) => flavor.status.clone().unwrap_or_default(),
            other => panic!("{other:?}"),
        }
    }

    fn remove(&mut self, kind: Kind, name: &str) {
        let key = self.object(kind, name).key();
        self.server.remove(&key);
    }
}

/// The reasons of `Active` and `ResolvedRefs`, each with a sign before it that says whether the condition holds.
fn reasons(conditions: &[Condition]) -> [String; 2] {
    [conditions::ACTIVE, conditions::RESOLVED_REFS].map(|type_| {
        let found = conditions.iter().find(|it| it.type_ == type_);
        let found = found.unwrap_or_else(|| panic!("{type_} among {conditions:?}"));
        let sign = if found.status == "True" { '+' } else { '-' };
        assert!(!found.message.is_empty());
        format!("{sign}{}", found.reason)
    })
}

fn message<'a>(conditions: &'a [Condition], type_: &str) -> &'a str {
    let found = conditions.iter().find(|it| it.type_ == type_);
    found.map_or("", |condition| &condition.message)
}

#[test]
fn a_team_says_whether_its_gangs_may_be_admitted_and_what_it_names_in_vain() {
    let both = json!([{"flavor": "gpu", "resources": [{"name": "gpus", "nominal": 4}]},
        {"flavor": "other", "resources": [{"name": "gpus", "nominal": 4}]}]);
    let beyond = json!([{"flavor": "gpu", "resources": [{"name": "gpus", "nominal": "9E"}]}]);
    for (spec, expected, named) in [
        (json!({"quota": quota("gpu")}), ["+Ready", "+Ready"], ""),
        (json!({}), ["+Ready", "+Ready"], ""),
        (
            json!({"quota": quota("gpu"), "stop": "Hold"}),
            ["-TeamStopped", "+Ready"],
            "",
        ),
        (
            json!({"quota": quota("gpu"), "stop": "HoldAndDrain"}),
            ["-TeamStopped", "+Ready"],
            "",
        ),
        (
            json!({"quota": quota("gpu"), "cohort": "a"}),
            ["-CohortCycle", "+Ready"],
            "",
        ),
        // Below a cycle, and not on it.
        (
            json!({"quota": quota("gpu"), "cohort": "c"}),
            ["-CohortCycle", "+Ready"],
            "",
        ),
        (
            json!({"quota": quota("gpu"), "cohort": "new"}),
            ["+Ready", "-CohortNotFound"],
            "new",
        ),
        (
            json!({"quota": quota("other")}),
            ["-FlavorNotFound", "-FlavorNotFound"],
            "other",
        ),
        (
            json!({"quota": both}),
            ["+Ready", "-FlavorNotFound"],
            "other",
        ),
        (json!({"quota": beyond}), ["+Ready", "-InvalidValue"], "9E"),
        (
            json!({"quota": quota("gpu"), "tiers": {"default": "high"}}),
            ["+Ready", "-TierNotFound"],
            "high",
        ),
        (
            json!({"quota": quota("gpu"), "tiers": {"allowed": ["high"]}}),
            ["+Ready", "-TierNotFound"],
            "high",
        ),
    ] {
        let mut bench = Bench::new();
        for (name, parent) in [("a", "b"), ("b", "a"), ("c", "a")] {
            bench.server.put(cohort(name, json!({"parent": parent})));
        }
        bench.server.put(team_that(spec.clone()));
        bench.run();
        let conditions = bench.team_conditions();
        assert_eq!(reasons(&conditions), expected, "{spec}");
        let text = message(&conditions, conditions::RESOLVED_REFS);
        assert!(text.contains(named), "{text} of {spec}");
        if expected[0] == "-CohortCycle" {
            let text = message(&conditions, conditions::ACTIVE);
            assert!(text.contains("a -> b -> a"), "{text}");
        }
    }
}

#[test]
fn a_cycle_of_many_cohorts_is_told_in_a_few_words() {
    let mut bench = Bench::new();
    let names: Vec<String> = (0..300).map(|at| format!("{at:0>253}")).collect();
    for (name, parent) in names.iter().zip(names.iter().cycle().skip(1)) {
        // What such a Cohort grants is not understood, either.
        let quota = json!([{"flavor": "gpu", "resources": [{"name": "gpus", "nominal": "9E"}]}]);
        let spec = json!({"parent": parent, "quota": quota});
        bench.server.put(cohort(name, spec));
    }
    bench.server.put(team_that(
        json!({"quota": quota("gpu"), "cohort": names[0]}),
    ));
    bench.run();
    let conditions = bench.team_conditions();
    assert_eq!(reasons(&conditions), ["-CohortCycle", "-InvalidValue"]);
    for type_ in [conditions::ACTIVE, conditions::RESOLVED_REFS] {
        let text = message(&conditions, type_);
        assert!(text.len() <= 4_096, "{type_}: {}", text.len());
    }
    let text = message(&conditions, conditions::ACTIVE);
    assert!(
        text.contains("291 more") && text.ends_with("give one of them another parent"),
        "{text}"
    );
}

#[test]
fn a_team_that_names_what_comes_and_goes_says_so_each_time_and_when_that_was() {
    let mut bench = Bench::new();
    bench.server.put(team_that(json!({
        "quota": quota("later"), "cohort": "all", "tiers": {"default": "high"},
    })));
    bench.run();
    let resolved = |bench: &Bench| {
        let conditions = bench.team_conditions();
        let since = conditions
            .iter()
            .find(|it| it.type_ == conditions::RESOLVED_REFS)
            .map(|it| it.last_transition_time.0)
            .unwrap();
        let [_, resolved] = reasons(&conditions);
        (resolved, since)
    };
    let (reason, since) = resolved(&bench);
    assert_eq!(reason, "-FlavorNotFound");
    bench.server.put(flavor("later", json!({})));
    bench.run();
    assert_eq!(resolved(&bench), ("-TierNotFound".to_owned(), since));
    bench.server.put(tier("high"));
    bench.run();
    assert_eq!(resolved(&bench), ("-CohortNotFound".to_owned(), since));
    bench.server.put(cohort("all", json!({})));
    bench.run();
    let (reason, resolved_at) = resolved(&bench);
    assert_eq!(reason, "+Ready");
    assert!(resolved_at > since);
    for (kind, name, reason) in [
        (Kind::Cohort, "all", "-CohortNotFound"),
        (Kind::PriorityTier, "high", "-TierNotFound"),
        (Kind::Flavor, "later", "-FlavorNotFound"),
    ] {
        bench.remove(kind, name);
        bench.run();
        assert_eq!(resolved(&bench).0, reason, "without {kind:?} {name}");
    }
}

#[test]
fn a_cohort_shows_what_its_members_share_and_use() {
    let mut bench = Bench::new();
    bench.tier_that_borrows();
    bench.server.put(cohort("all", json!({"sharing": "Fair"})));
    let pool = json!([{"flavor": "gpu", "resources": [{"name": "gpus", "nominal": 1}]}]);
    bench
        .server
        .put(cohort("below", json!({"parent": "all", "quota": pool})));
    let own = json!([{"flavor": "gpu", "resources": [{"name": "gpus", "nominal": 1}]}]);
    bench
        .server
        .put(team_that(json!({"cohort": "below", "quota": own})));
    bench.server.put(Object::Team(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "beside"},
        "spec": {"cohort": "all", "quota": quota("gpu")},
    }))));
    bench.gang("train", 3);
    bench.run();
    let shown = |bench: &Bench, name: &str| {
        let status = bench.cohort_status(name);
        assert_eq!(reasons(&status.conditions), ["+Ready", "+Ready"]);
        let limits = status.limits.iter().map(|limit| {
            assert_eq!(
                (limit.flavor.as_str(), limit.resource.as_str()),
                ("gpu", "gpus")
            );
            [
                &limit.nominal,
                &limit.subtree_quota,
                &limit.used,
                &limit.borrowed,
                &limit.available,
            ]
            .map(|amount| amount.0.clone())
        });
        (limits.collect::<Vec<_>>(), status.weighted_share)
    };
    let amounts = |amounts: [&str; 5]| vec![amounts.map(str::to_owned)];
    // One of three is borrowed, of six that could be lent.
    assert_eq!(
        shown(&bench, "below"),
        (amounts(["1", "2", "3", "1", "3"]), Some(167))
    );
    assert_eq!(
        shown(&bench, "all"),
        (amounts(["0", "6", "3", "0", "3"]), Some(0))
    );

    bench.server.put(cohort("all", json!({"parent": "below"})));
    bench.run();
    for name in ["all", "below"] {
        let status = bench.cohort_status(name);
        assert_eq!(reasons(&status.conditions), ["-CohortCycle", "+Ready"]);
        assert_eq!(
            (status.limits.len(), status.weighted_share),
            (0, None),
            "{name}"
        );
        let text = message(&status.conditions, conditions::ACTIVE);
        assert!(text.contains("all -> below -> all"), "{text}");
    }
}

#[test]
fn a_flavor_shows_what_it_counts_how_much_of_it_is_healthy_and_who_counts_it_too() {
    let mut bench = Bench::new();
    let of_n1 = json!({"nodeSelector": {"pool": "one"}, "topology": "fabric"});
    bench.server.put(flavor("one", of_n1));
    bench.run();
    let counts = |status: &FlavorStatus| {
        [
            status.nodes,
            status.ready_nodes,
            status.devices,
            status.healthy_devices,
        ]
    };
    let all = bench.flavor_status("gpu");
    assert_eq!(counts(&all), [2, 2, 4, 4]);
    assert_eq!(reasons(&all.conditions), ["+Ready", "+Ready"]);
    assert_eq!(all.overlaps, []);
    let one = bench.flavor_status("one");
    assert_eq!(counts(&one), [0; 4]);
    assert_eq!(
        reasons(&one.conditions),
        ["-NoDevices", "-TopologyNotFound"]
    );
    let text = message(&one.conditions, conditions::ACTIVE);
    assert_eq!(
        text,
        "no node with pool=one has a device of driver gpu.muster.dev"
    );

    let mut labelled = match bench.object(Kind::Node, "n1") {
        Object::Node(node) => (*node).clone(),
        other => panic!("{other:?}"),
    };
    labelled.metadata.labels = Some([("pool".to_owned(), "one".to_owned())].into());
    bench.server.put(Object::Node(Arc::new(labelled.clone())));
    bench.server.put(Object::Topology(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Topology", "metadata": {"name": "fabric"},
        "spec": {"fabric": []},
    }))));
    bench.run();
    let one = bench.flavor_status("one");
    assert_eq!(counts(&one), [1, 1, 2, 2]);
    assert_eq!(reasons(&one.conditions), ["+Ready", "+Ready"]);
    let overlap = |flavor: &str| FlavorOverlap {
        flavor: flavor.to_owned(),
        devices: 2,
    };
    assert_eq!(one.overlaps, [overlap("gpu")]);
    assert_eq!(bench.flavor_status("gpu").overlaps, [overlap("one")]);

    labelled.spec.get_or_insert_default().unschedulable = Some(true);
    bench.server.put(Object::Node(Arc::new(labelled)));
    bench.run();
    assert_eq!(counts(&bench.flavor_status("one")), [1, 0, 2, 0]);
    assert_eq!(counts(&bench.flavor_status("gpu")), [2, 1, 4, 2]);
    bench.remove(Kind::Node, "n1");
    bench.run();
    let one = bench.flavor_status("one");
    assert_eq!((counts(&one), one.overlaps), ([0; 4], vec![]));
}

#[test]
fn a_flavor_whose_selector_is_not_understood_says_why_it_counts_nothing() {
    let devices =
        |selector: &str| json!({"devices": {"driver": keys::DRIVER, "selector": selector}});
    for (selector, cause) in [
        ("device.driver ==", "spec.devices.selector"),
        ("device.attributes['gpu.muster.dev'].none == 'x'", "none"),
    ] {
        let mut bench = Bench::new();
        bench.server.put(flavor("odd", devices(selector)));
        bench.run();
        let status = bench.flavor_status("odd");
        assert_eq!(
            reasons(&status.conditions),
            ["-InvalidValue", "-InvalidValue"],
            "{selector}"
        );
        let text = message(&status.conditions, conditions::ACTIVE);
        assert!(text.contains(cause), "{text}");
    }
}

#[test]
fn a_status_that_somebody_else_wrote_over_is_written_again() {
    let mut bench = Bench::new();
    bench.server.put(cohort("all", json!({})));
    bench.run();
    let (flavor_shown, cohort_shown) = (bench.flavor_status("gpu"), bench.cohort_status("all"));
    for kind in [Kind::Flavor, Kind::Cohort] {
        let name = if kind == Kind::Flavor { "gpu" } else { "all" };
        match bench.object(kind, name) {
            Object::Flavor(object) => {
                let mut object = (*object).clone();
                object.status = None;
                bench.server.put(Object::Flavor(Arc::new(object)));
            }
            Object::Cohort(object) => {
                let mut object = (*object).clone();
                object.status = None;
                bench.server.put(Object::Cohort(Arc::new(object)));
            }
            other => panic!("{other:?}"),
        }
    }
    bench.run();
    let count = |status: FlavorStatus| (status.devices, reasons(&status.conditions));
    assert_eq!(count(bench.flavor_status("gpu")), count(flavor_shown));
    let said = |status: CohortStatus| reasons(&status.conditions);
    assert_eq!(said(bench.cohort_status("all")), said(cohort_shown));
}

#[test]
fn conditions_that_an_older_definition_drops_are_not_written_each_second() {
    let mut bench = Bench::new();
    bench.server.put(cohort("all", json!({})));
    bench.server.put(tier("high"));
    bench.server.prunes = Some(|object| match object {
        Object::Team(team) => {
            if let Some(status) = &mut Arc::make_mut(team).status {
                status.conditions.clear();
            }
        }
        Object::Cohort(cohort) => Arc::make_mut(cohort).status = None,
        Object::Flavor(flavor) => Arc::make_mut(flavor).status = None,
        Object::PriorityTier(tier) => Arc::make_mut(tier).status = None,
        _ => {}
    });
    for _ in 0..20 {
        bench.run();
        bench.seconds += 10;
    }
    for shows in [
        (|write| matches!(write, ApiRequest::PublishTeam { .. })) as fn(&ApiRequest) -> bool,
        |write| matches!(write, ApiRequest::PublishCohort { .. }),
        |write| matches!(write, ApiRequest::PublishFlavor { .. }),
        |write| matches!(write, ApiRequest::PublishPriorityTier { .. }),
    ] {
        let writes: Vec<_> = bench.written.iter().filter(|write| shows(write)).collect();
        assert!((1..=2).contains(&writes.len()), "{writes:?}");
    }
}

#[test]
fn each_second_at_most_so_many_cohorts_are_looked_at_and_all_of_them_in_the_end() {
    use crate::outward::capacity_status::LOOKS_PER_SECOND;
    let cohorts = 2 * LOOKS_PER_SECOND + 1;
    // Each poll is followed by a look at everything, which notes all of them again.
    let mut bench = Bench::new();
    assert!(bench.checks_polls);
    for number in 0..cohorts {
        bench
            .server
            .put(cohort(&format!("c{number:03}"), json!({})));
    }
    let mut by_second: BTreeMap<u64, usize> = BTreeMap::new();
    for _ in 0..60 {
        for effect in &bench.poll() {
            if matches!(*effect.write, ApiRequest::PublishCohort { .. }) {
                *by_second.entry(bench.seconds).or_default() += 1;
            }
            bench.perform(effect);
        }
        bench.acknowledge(&[]);
        bench.seconds += 1;
    }
    let counts: Vec<usize> = by_second.into_values().collect();
    assert_eq!(counts, [LOOKS_PER_SECOND, LOOKS_PER_SECOND, 1]);
}

#[test]
fn a_cohort_that_changes_each_second_keeps_no_other_from_being_right() {
    let mut bench = Bench::new();
    for name in ["b", "root"] {
        bench.server.put(cohort(name, json!({})));
    }
    // What is used in a is used in root, too.
    bench.server.put(cohort("a", json!({"parent": "root"})));
    bench
        .server
        .put(team_that(json!({"cohort": "a", "quota": quota("gpu")})));
    bench.server.put(Object::Team(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "speech"},
        "spec": {"cohort": "b", "quota": quota("gpu")},
    }))));
    bench.server.put(Object::Namespace(parse(
        json!({"metadata": {"name": "talk", "labels": {keys::TEAM: "speech"}}}),
    )));
    bench.run();
    // A look at everything looks at all Cohorts.
    bench.checks_polls = false;
    let used = |bench: &Bench, name: &str| bench.cohort_status(name).limits[0].used.0.clone();
    assert_eq!(used(&bench, "b"), "0");
    let mut shown = Vec::new();
    for second in 0..12 {
        // One gang of a pod ends, the next one begins.
        let label = format!("train-{second}");
        bench.gang(&label, 1);
        if second >= 2 {
            bench
                .server
                .remove(&pod_key(&format!("train-{}-0", second - 2)));
        }
        if second == 5 {
            bench.server.put(in_talk("voice-0"));
            let mut claim = claim("voice-0", keys::DEVICE_CLASS_GPU);
            if let Object::ResourceClaim(claim) = &mut claim {
                Arc::make_mut(claim).metadata.namespace = Some("talk".to_owned());
            }
            bench.server.put(claim);
        }
        bench.run_at_once();
        bench.seconds += 1;
        shown.push(used(&bench, "b"));
    }
    let (before, after) = shown.split_at(8);
    assert_eq!(before[4], "0", "{shown:?}");
    assert!(after.iter().all(|used| used == "1"), "{shown:?}");
}

#[test]
fn what_teams_have_by_new_limits_is_shown_once_the_engine_decides_by_them() {
    let mut bench = Bench::new();
    bench.run();
    bench.gang("train", 1);
    let commits = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceLedger { spec, .. } if !spec.intents.is_empty());
    // It is not answered for some seconds.
    let mut commit = None;
    while commit.is_none() {
        bench.acknowledge(&[]);
        for effect in bench.poll() {
            if commits(&effect.write) {
                commit = Some(effect);
            } else {
                bench.perform(&effect);
            }
        }
        bench.seconds += 1;
    }
    bench.server.put(team("vision", 5));
    for _ in 0..3 {
        let mut polls = 0;
        while polls == 0
            || bench
                .machine
                .next_due()
                .is_some_and(|due| due <= bench.seconds)
        {
            for effect in bench.poll() {
                let shows = matches!(*effect.write, ApiRequest::PublishTeam { .. });
                assert!(!shows, "{effect:?}");
                bench.perform(&effect);
            }
            polls += 1;
            assert!(polls < 20, "it waits without being asked all the time");
        }
        bench.seconds += 1;
    }
    bench.perform(&commit.unwrap());
    bench.run();
    match bench.object(Kind::Team, "vision") {
        Object::Team(team) => {
            assert_eq!(team.status.as_ref().unwrap().limits[0].nominal.0, "5");
        }
        other => panic!("{other:?}"),
    }
}

/// A pod of its own, in namespace `talk`.
fn in_talk(name: &str) -> Object {
    Object::Pod(parse(json!({
        "metadata": {"name": name, "namespace": "talk", "creationTimestamp": "2027-01-01T00:00:00Z"},
        "spec": {
            "containers": [{"name": "rank", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "schedulingGates": [{"name": keys::ADMISSION_GATE}],
        },
        "status": {"phase": "Pending"},
    })))
}

#[test]
fn of_several_tiers_one_says_that_it_is_the_default_and_the_others_which_one_is() {
    let mut bench = Bench::new();
    let shown = |bench: &Bench, name: &str| match bench.object(Kind::PriorityTier, name) {
        Object::PriorityTier(tier) => {
            let conditions = tier.status.clone().unwrap_or_default().conditions;
            assert_eq!(conditions.len(), 1, "{conditions:?}");
            let condition = &conditions[0];
            assert_eq!(condition.type_, conditions::DEFAULT);
            let sign = if condition.status == "True" { '+' } else { '-' };
            (
                format!("{sign}{}", condition.reason),
                condition.message.clone(),
            )
        }
        other => panic!("{other:?}"),
    };
    let default = |value: i32| json!({"value": value, "default": true});
    bench.server.put(tier("plain"));
    bench.run();
    let (reason, text) = shown(&bench, "plain");
    assert_eq!(reason, "-NotDefault");
    assert!(text.contains("no PriorityTier"), "{text}");
    bench.server.put(tier_that("b", default(1)));
    bench.server.put(tier_that("a", default(1)));
    bench.run();
    assert_eq!(shown(&bench, "a").0, "+Ready");
    for (name, says) in [("b", "PriorityTier a has"), ("plain", "PriorityTier a is")] {
        let (reason, text) = shown(&bench, name);
        assert_eq!(reason, "-NotDefault");
        assert!(text.starts_with(says), "{text}");
    }
    bench.server.put(tier_that("b", default(2)));
    bench.run();
    assert_eq!(shown(&bench, "a").0, "-NotDefault");
    assert_eq!(shown(&bench, "b").0, "+Ready");
    bench.remove(Kind::PriorityTier, "b");
    bench.run();
    assert_eq!(shown(&bench, "a").0, "+Ready");
}
