use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

fn team(spec: &Value, status: &Value) -> Object {
    let team = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "vision"},
        "spec": spec, "status": status});
    Object::Team(Arc::new(serde_json::from_value(team).unwrap()))
}

fn cohort(status: &Value) -> Object {
    let cohort = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Cohort", "metadata": {"name": "all"},
        "spec": {}, "status": status});
    Object::Cohort(Arc::new(serde_json::from_value(cohort).unwrap()))
}

fn gang(name: &str, status: &Value) -> Object {
    let gang = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
        "metadata": {"name": name, "namespace": "ml", "uid": format!("uid-{name}")}, "spec": {"size": 1}, "status": status});
    Object::Gang(Arc::new(serde_json::from_value(gang).unwrap()))
}

fn waiting(reason: &str) -> Value {
    json!({"team": "vision", "phase": "Pending", "queuedAt": "2027-01-01T00:00:00Z",
        "queue": {"reason": reason, "details": ""}})
}

fn admitted(adopted: bool) -> Value {
    json!({"team": "vision", "phase": "Admitted", "queuedAt": "2027-01-01T00:00:00Z",
        "admission": {"team": "vision", "teamGeneration": 1, "ledgerSequence": 1, "pods": [], "adopted": adopted,
            "charge": {}},
        "conditions": [{"type": "Admitted", "status": "True", "reason": "Admitted", "message": "",
            "lastTransitionTime": "2027-01-01T00:01:30Z"}]})
}

struct Shown {
    registry: Metrics,
    census: QuotaCensus,
}

impl Shown {
    fn new() -> Self {
        let registry = Metrics::new("test", "0");
        let census = QuotaCensus::new(QuotaFamilies::register(&registry));
        Self { registry, census }
    }

    fn see(&mut self, object: Object) {
        self.census.observe(&Change::Applied(object));
    }

    /// The lines of a family, without its name.
    fn family(&self, name: &str) -> Vec<String> {
        let text = self.registry.encode().unwrap();
        let prefix = format!("muster_{name}{{");
        let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

#[test]
fn what_a_team_has_and_uses_is_shown_in_base_units_until_it_is_gone() {
    let mut shown = Shown::new();
    let quota = json!({"cohort": "all", "quota": [{"flavor": "h100", "resources": [
        {"name": "gpus", "nominal": "7500m", "borrowingLimit": 2, "lendingLimit": 0},
        {"name": "vram", "nominal": "1Gi"}]}]});
    let status = json!({"limits": [{"flavor": "h100", "resource": "gpus", "nominal": "7500m", "used": "500m",
        "borrowed": "0", "available": "7"}], "weightedShare": 125});
    shown.see(team(&quota, &status));
    assert_eq!(
        shown.family("team_nominal_quota"),
        [
            "team=\"vision\",flavor=\"h100\",resource=\"gpus\"} 7.5",
            "team=\"vision\",flavor=\"h100\",resource=\"vram\"} 1073741824.0",
        ]
    );
    let gpus = |value| {
        vec![format!(
            "team=\"vision\",flavor=\"h100\",resource=\"gpus\"}} {value}"
        )]
    };
    assert_eq!(shown.family("team_borrowing_limit"), gpus("2.0"));
    assert_eq!(shown.family("team_lending_limit"), gpus("0.0"));
    assert_eq!(shown.family("team_resource_usage"), gpus("0.5"));
    assert_eq!(
        shown.family("team_weighted_share"),
        ["team=\"vision\"} 125.0"]
    );

    let follows =
        json!({"quota": [{"flavor": "h100", "resources": [{"name": "gpus", "auto": true}]}]});
    shown.see(team(&follows, &status));
    assert_eq!(shown.family("team_nominal_quota"), gpus("7.5"));

    let narrowed =
        json!({"quota": [{"flavor": "h100", "resources": [{"name": "gpus", "nominal": 4}]}]});
    shown.see(team(&narrowed, &json!({})));
    assert_eq!(shown.family("team_nominal_quota"), gpus("4.0"));
    for gone in [
        "team_borrowing_limit",
        "team_lending_limit",
        "team_resource_usage",
        "team_weighted_share",
    ] {
        assert_eq!(shown.family(gone), [""; 0], "{gone}");
    }
    shown
        .census
        .observe(&Change::ListedKeys(Kind::Team, BTreeSet::new()));
    assert_eq!(shown.family("team_nominal_quota"), [""; 0]);
}

#[test]
fn what_is_shared_in_a_cohort_is_shown_in_base_units_until_it_is_gone() {
    let mut shown = Shown::new();
    let limit = |resource, subtree_quota, used| {
        json!({"flavor": "h100", "resource": resource, "nominal": "0", "subtreeQuota": subtree_quota, "used": used,
            "borrowed": "0", "available": "0"})
    };
    let line = |resource, value| {
        format!("cohort=\"all\",flavor=\"h100\",resource=\"{resource}\"}} {value}")
    };
    let limits = [limit("gpus", "7500m", "500m"), limit("vram", "1Gi", "0")];
    shown.see(cohort(&json!({"limits": limits, "weightedShare": 250})));
    assert_eq!(
        shown.family("cohort_subtree_quota"),
        [line("gpus", "7.5"), line("vram", "1073741824.0")]
    );
    assert_eq!(
        shown.family("cohort_subtree_resource_reservations"),
        [line("gpus", "0.5"), line("vram", "0.0")]
    );
    let share = "cohort=\"all\"} 250.0";
    assert_eq!(shown.family("cohort_weighted_share"), [share]);

    let narrowed = [limit("gpus", "8", "3")];
    shown.see(cohort(&json!({"limits": narrowed})));
    let families = [
        ("cohort_subtree_quota", vec![line("gpus", "8.0")]),
        (
            "cohort_subtree_resource_reservations",
            vec![line("gpus", "3.0")],
        ),
        ("cohort_weighted_share", vec![]),
    ];
    for (family, lines) in &families {
        assert_eq!(&shown.family(family), lines, "{family}");
    }

    let goes: [fn(ObjectKey) -> Change; 3] = [
        |_| Change::Listed(Kind::Cohort, Vec::new()),
        |_| Change::ListedKeys(Kind::Cohort, BTreeSet::new()),
        Change::Deleted,
    ];
    for goes in goes {
        let is_there = cohort(&json!({"limits": narrowed, "weightedShare": 250}));
        let gone = goes(is_there.key());
        shown.see(is_there);
        shown.census.observe(&gone);
        for (family, _) in &families {
            assert_eq!(shown.family(family), [""; 0], "{family} after {gone:?}");
        }
    }
}

#[test]
fn waiting_gangs_are_counted_by_the_reason_that_they_have_now() {
    let mut shown = Shown::new();
    shown.see(gang("a", &waiting("WaitingForQuota")));
    shown.see(gang("a", &waiting("WaitingForQuota")));
    shown.see(gang("b", &waiting("WaitingForQuota")));
    let line = |reason, count| format!("team=\"vision\",reason=\"{reason}\"}} {count}");
    assert_eq!(shown.family("pending_gangs"), [line("WaitingForQuota", 2)]);
    shown.see(gang("a", &waiting("WaitingForPlacement")));
    assert_eq!(
        shown.family("pending_gangs"),
        [line("WaitingForPlacement", 1), line("WaitingForQuota", 1)]
    );
    // Made again under its name, before anything was said of it.
    shown.see(gang("b", &json!({})));
    assert_eq!(
        shown.family("pending_gangs"),
        [line("WaitingForPlacement", 1)]
    );
    shown.see(gang("a", &admitted(false)));
    assert_eq!(shown.family("pending_gangs"), [""; 0]);
    shown.see(gang("c", &waiting("WaitingForQuota")));
    let c = gang("c", &waiting("WaitingForQuota"));
    shown.census.observe(&Change::Deleted(c.key()));
    assert_eq!(shown.family("pending_gangs"), [""; 0]);
}

#[test]
fn an_eviction_counts_once_by_its_cause() {
    let evicted = |attempts: &[(i64, &str)]| {
        let evictions = attempts.iter().map(|(attempt, reason)| {
            json!({"attempt": attempt, "reason": reason, "message": "", "at": "2027-01-01T00:00:00Z"})
        });
        let evictions: Vec<Value> = evictions.collect();
        json!({"team": "vision", "phase": "Evicting", "evictions": evictions})
    };
    let mut shown = Shown::new();
    shown.see(gang("a", &admitted(false)));
    shown.see(gang("a", &evicted(&[(1, "Preempted")])));
    shown.see(gang("a", &evicted(&[(1, "Preempted")])));
    shown.see(gang(
        "a",
        &evicted(&[(1, "Preempted"), (2, "StartTimeout")]),
    ));
    // Before this leader looked.
    shown.see(gang("earlier", &evicted(&[(1, "Preempted")])));
    let line = |reason| format!("team=\"vision\",reason=\"{reason}\"}} 1");
    let expected = [line("Preempted"), line("StartTimeout")];
    assert_eq!(shown.family("evicted_gangs_total"), expected);
}

/// A gang that gives way to `preemptor` in this attempt.
fn gives_way(attempt: i64, preemptor: &str, right: &str) -> Value {
    json!({"attempt": attempt, "preemptor": format!("ml/{preemptor}"), "preemptorUid": format!("uid-{preemptor}"),
        "right": right, "message": "", "noticedAt": "2027-01-01T00:00:00Z", "preemptAt": "2027-01-01T00:01:00Z"})
}

fn noticed(attempt: i64, preemptor: &str, right: &str) -> Value {
    let mut status = admitted(false);
    status["preemption"] = gives_way(attempt, preemptor, right);
    status
}

fn preempted(attempts: &[i64], notice: &Value) -> Value {
    let evictions = attempts.iter().map(|attempt| {
        json!({"attempt": attempt, "reason": "Preempted", "message": "", "at": "2027-01-01T00:01:00Z"})
    });
    let evictions: Vec<Value> = evictions.collect();
    json!({"team": "vision", "phase": "Evicting", "evictions": evictions, "preemption": notice})
}

#[test]
fn a_preemption_counts_once_by_the_team_that_it_is_for_and_its_right() {
    let line =
        |team, right, count| format!("preempting_team=\"{team}\",reason=\"{right}\"}} {count}");
    let waits_in = |team| json!({"team": team, "phase": "Pending"});
    let mut shown = Shown::new();
    // The gang that gives way is told of before the one that it is for, as a first list may have it.
    shown.see(gang("victim", &noticed(1, "owner", "Reclaimed")));
    shown.see(gang("owner", &waits_in("speech")));
    shown.see(gang("victim", &noticed(1, "owner", "Reclaimed")));
    assert_eq!(shown.family("preempted_gangs_total"), [""; 0]);

    let notice = gives_way(1, "owner", "Reclaimed");
    shown.see(gang("victim", &preempted(&[1], &notice)));
    shown.see(gang("victim", &preempted(&[1], &notice)));
    shown.see(gang("victim", &preempted(&[1], &Value::Null)));
    let reclaimed = line("speech", "Reclaimed", 1);
    assert_eq!(
        shown.family("preempted_gangs_total"),
        std::slice::from_ref(&reclaimed)
    );

    // The next attempt, for another gang, which is gone when the eviction is seen: it was there when the notice was.
    shown.see(gang("urgent", &waits_in("vision")));
    let mut again = preempted(&[1], &gives_way(2, "urgent", "InTeam"));
    again["admission"] = admitted(false)["admission"].clone();
    shown.see(gang("victim", &again));
    let urgent = gang("urgent", &waits_in("vision"));
    shown.census.observe(&Change::Deleted(urgent.key()));
    let notice = gives_way(2, "urgent", "InTeam");
    shown.see(gang("victim", &preempted(&[1, 2], &notice)));
    let in_team = line("vision", "InTeam", 1);
    assert_eq!(
        shown.family("preempted_gangs_total"),
        [reclaimed.clone(), in_team.clone()]
    );

    // Evicted for something else though it was told to give way, and evicted before this leader looked.
    shown.see(gang("failed", &noticed(1, "owner", "Reclaimed")));
    let mut failed = preempted(&[1], &gives_way(1, "owner", "Reclaimed"));
    failed["evictions"][0]["reason"] = json!("PodFailed");
    shown.see(gang("failed", &failed));
    let notice = gives_way(1, "owner", "Reclaimed");
    shown.see(gang("earlier", &preempted(&[1], &notice)));
    shown.see(gang("earlier", &preempted(&[1], &notice)));
    assert_eq!(shown.family("preempted_gangs_total"), [reclaimed, in_team]);
}

#[test]
fn evictions_that_were_seen_together_are_all_counted() {
    let mut shown = Shown::new();
    shown.see(gang(
        "owner",
        &json!({"team": "speech", "phase": "Pending"}),
    ));
    shown.see(gang("victim", &noticed(1, "owner", "FairShare")));
    let notice = gives_way(2, "owner", "FairShare");
    shown.see(gang("victim", &preempted(&[1, 2], &notice)));
    assert_eq!(
        shown.family("evicted_gangs_total"),
        ["team=\"vision\",reason=\"Preempted\"} 2"]
    );
    assert_eq!(
        shown.family("preempted_gangs_total"),
        ["preempting_team=\"speech\",reason=\"FairShare\"} 2"]
    );
}

#[test]
fn what_was_counted_of_a_team_goes_with_it() {
    let mut shown = Shown::new();
    shown.see(team(&json!({}), &json!({})));
    shown.see(gang(
        "owner",
        &json!({"team": "vision", "phase": "Pending"}),
    ));
    shown.see(gang("victim", &waiting("WaitingForQuota")));
    shown.see(gang("victim", &noticed(1, "owner", "InTeam")));
    let notice = gives_way(1, "owner", "InTeam");
    shown.see(gang("victim", &preempted(&[1], &notice)));
    let families = [
        "admitted_gangs_total",
        "evicted_gangs_total",
        "preempted_gangs_total",
        "admission_wait_time_seconds_count",
    ];
    for family in families {
        assert_eq!(shown.family(family).len(), 1, "{family}");
    }
    let key = team(&json!({}), &json!({})).key();
    shown.census.observe(&Change::Deleted(key));
    for family in families {
        assert_eq!(shown.family(family), [""; 0], "{family}");
    }
}

#[test]
fn an_admission_counts_once_with_the_time_that_the_gang_waited() {
    let mut shown = Shown::new();
    shown.see(gang("a", &waiting("WaitingForQuota")));
    shown.see(gang("a", &admitted(false)));
    shown.see(gang("a", &admitted(false)));
    // It ran already.
    shown.see(gang(
        "found",
        &json!({"team": "vision", "phase": "Assembling"}),
    ));
    shown.see(gang("found", &admitted(true)));
    // It was admitted before this leader looked: a first list comes object by object.
    shown.see(gang("earlier", &admitted(false)));
    assert_eq!(shown.family("admitted_gangs_total"), ["team=\"vision\"} 1"]);
    assert_eq!(
        shown.family("admission_wait_time_seconds_sum"),
        ["team=\"vision\"} 90.0"]
    );
    assert_eq!(
        shown.family("admission_wait_time_seconds_count"),
        ["team=\"vision\"} 1"]
    );

    // Again, after an attempt that ran: it counts, but nobody knows for how long it waited since.
    let mut again = admitted(false);
    again["attempt"] = json!(2);
    shown.see(gang("a", &waiting("WaitingForQuota")));
    shown.see(gang("a", &again));
    assert_eq!(shown.family("admitted_gangs_total"), ["team=\"vision\"} 2"]);
    assert_eq!(
        shown.family("admission_wait_time_seconds_count"),
        ["team=\"vision\"} 1"]
    );
}
