use std::sync::Arc;

use muster_cluster::object::{Change, Kind, Object};
use muster_serve::metrics::Metrics;
use serde_json::{Value, json};

use super::*;
use crate::scripted_api::{ScriptedApi, breaks_off, failure};

fn gang(name: &str, phase: &str) -> Arc<Gang> {
    let gang = json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
        "metadata": {"name": name, "namespace": "ml", "uid": format!("{name}-uid")},
        "spec": {"size": 2, "group": name},
        "status": {
            "phase": phase, "attempt": 1, "leaderEpoch": 1,
            "admission": {
                "team": "t", "teamGeneration": 1, "ledgerSequence": 1, "charge": {},
                "pods": [{"uid": "a"}, {"uid": "b"}],
            },
        },
    });
    Arc::new(serde_json::from_value(gang).unwrap())
}

fn name(gang: &str) -> NamespacedName {
    NamespacedName::new("ml", gang)
}

fn theirs(selector: &Value) -> PodDisruptionBudget {
    serde_json::from_value(json!({
        "metadata": {"name": "theirs", "namespace": "ml"},
        "spec": {"minAvailable": 1, "selector": selector},
    }))
    .unwrap()
}

/// The budget of the gang as it is stored.
fn stored(gang: &Gang) -> PodDisruptionBudget {
    let mut budget = Wanted::of(gang).unwrap().budget();
    budget.metadata.uid = Some("budget".to_owned());
    budget.metadata.resource_version = Some("7".to_owned());
    budget
}

/// Told of these Gangs, and of these budgets.
fn told(moves_gangs: bool, all: &[Arc<Gang>], budgets: Vec<PodDisruptionBudget>) -> Gangs {
    let (_, gangs) = Keeper::new(moves_gangs, "test".to_owned());
    let objects = all.iter().map(|gang| Object::Gang(Arc::clone(gang)));
    gangs.observe(&Change::Listed(Kind::Gang, objects.collect()));
    gangs.table().apply_budget(watcher::Event::Init);
    for budget in budgets {
        gangs
            .table()
            .apply_budget(watcher::Event::InitApply(budget));
    }
    gangs.table().apply_budget(watcher::Event::InitDone);
    gangs
}

#[test]
fn a_gang_has_a_budget_while_it_runs() {
    let running = gang("train", "Running");
    let gangs = told(true, &[Arc::clone(&running)], Vec::new());
    let step = || gangs.table().step(&name("train"));
    assert!(matches!(step(), Step::Make(wanted) if wanted.pods == 2));
    let seen = watcher::Event::Apply(stored(&running));
    gangs.table().apply_budget(seen);
    assert!(matches!(step(), Step::Nothing));
    gangs.table().due.clear();
    let evicting = Object::Gang(gang("train", "Evicting"));
    gangs.observe(&Change::Applied(evicting));
    assert!(gangs.table().due.contains(&name("train")));
    assert!(matches!(step(), Step::Remove(ours) if ours.uid == "budget" && ours.version == "7"));
    gangs
        .table()
        .apply_budget(watcher::Event::Delete(stored(&running)));
    assert!(matches!(step(), Step::Nothing));
}

#[test]
fn what_is_left_of_gangs_that_are_gone_and_where_none_is_moved_goes() {
    let running = gang("train", "Running");
    for (moves_gangs, gangs, goes) in [
        (true, vec![Arc::clone(&running)], false),
        (true, vec![], true),
        (false, vec![Arc::clone(&running)], true),
    ] {
        let gangs = told(moves_gangs, &gangs, vec![stored(&running)]);
        let step = gangs.table().step(&name("train"));
        assert_eq!(matches!(step, Step::Remove(_)), goes, "{step:?}");
        assert!(gangs.table().due.contains(&name("train")));
    }
}

#[test]
fn a_budget_of_another_in_its_namespace_has_a_gang_looked_at_again() {
    let gangs = told(
        true,
        &[gang("train", "Running"), gang("other", "Running")],
        Vec::new(),
    );
    gangs.table().due.clear();
    let other = theirs(&json!({"matchLabels": {"app": "x"}}));
    gangs
        .table()
        .apply_budget(watcher::Event::Apply(other.clone()));
    assert_eq!(gangs.table().due.len(), 2);
    gangs.table().due.clear();
    let mut fares = other.clone();
    fares.metadata.resource_version = Some("8".to_owned());
    gangs.table().apply_budget(watcher::Event::Apply(fares));
    assert!(gangs.table().due.is_empty(), "how it fares is no news");
    assert!(matches!(
        gangs.table().step(&name("train")),
        Step::Look { .. }
    ));
    gangs.table().apply_budget(watcher::Event::Delete(other));
    assert!(matches!(gangs.table().step(&name("train")), Step::Make(_)));
}

#[tokio::test]
async fn beside_a_users_own_budget_for_any_of_its_pods_there_is_none_of_ours() {
    const BUDGETS: &str = "/apis/policy/v1/namespaces/ml/poddisruptionbudgets";
    let running = gang("train", "Running");
    let pods = json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {},
        "items": [
            {"metadata": {"name": "a", "labels": {"muster.dev/gang": "train"}}},
            {"metadata": {"name": "b", "labels": {"muster.dev/gang": "train", "app": "x"}}},
        ],
    });
    let made = serde_json::to_value(stored(&running)).unwrap();
    let get_pods = "GET /api/v1/namespaces/ml/pods".to_owned();
    for (selector, has_ours, then, is_other) in [
        (json!({"matchLabels": {"app": "x"}}), false, vec![], true),
        (json!({}), false, vec![], true),
        (
            json!({"matchLabels": {"app": "x"}}),
            true,
            vec![format!("DELETE {BUDGETS}/train")],
            true,
        ),
        (
            json!({"matchLabels": {"app": "y"}}),
            false,
            vec![format!("POST {BUDGETS}")],
            false,
        ),
        (json!({"matchLabels": {"app": "y"}}), true, vec![], false),
    ] {
        let mut budgets = vec![theirs(&selector)];
        budgets.extend(has_ours.then(|| stored(&running)));
        let gangs = told(true, &[Arc::clone(&running)], budgets);
        let step = gangs.table().step(&name("train"));
        let api = ScriptedApi::new([(200, pods.clone()), (200, made.clone())]);
        let seen = take(&api.client(), &name("train"), step).await.unwrap();
        let case = format!("{selector} {has_ours}");
        assert_eq!(matches!(seen, Seen::Other(..)), is_other, "{case}");
        let asked: Vec<String> = api.asked().into_iter().map(|asked| asked.what).collect();
        let expected: Vec<String> = [get_pods.clone()].into_iter().chain(then).collect();
        assert_eq!(asked, expected, "{case}");
    }
}

#[tokio::test]
async fn a_budget_of_that_name_that_is_somebody_elses_is_left_alone() {
    let running = gang("train", "Running");
    let mut of_that_name = theirs(&json!({"matchLabels": {"app": "y"}}));
    of_that_name.metadata.name = Some("train".to_owned());
    for (there, is_other) in [(of_that_name, true), (stored(&running), false)] {
        let there = serde_json::to_value(there).unwrap();
        let api = ScriptedApi::new([failure(409, "already exists"), (200, there)]);
        let gangs = told(true, &[Arc::clone(&running)], Vec::new());
        let step = gangs.table().step(&name("train"));
        let seen = take(&api.client(), &name("train"), step).await.unwrap();
        assert_eq!(matches!(seen, Seen::Other(..)), is_other);
    }
}

#[tokio::test(start_paused = true)]
async fn before_gangs_and_budgets_were_listed_nothing_is_done() {
    let (mut keeper, gangs) = Keeper::new(true, "test".to_owned());
    let api = ScriptedApi::new([]);
    let mut under_way = JoinSet::new();
    let running = Object::Gang(gang("train", "Running"));
    gangs.observe(&Change::Applied(running.clone()));
    keeper.start(&api.client(), &mut under_way);
    assert!(under_way.is_empty());
    gangs.observe(&Change::Listed(Kind::Gang, vec![running]));
    keeper.start(&api.client(), &mut under_way);
    assert!(under_way.is_empty(), "budgets were not listed");
    gangs.table().apply_budget(watcher::Event::Init);
    gangs.table().apply_budget(watcher::Event::InitDone);
    keeper.start(&api.client(), &mut under_way);
    assert_eq!(under_way.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn that_budgets_may_not_be_read_shows_in_the_metrics_of_watches() {
    let registry = Metrics::new("test", "0");
    let metrics = WatchMetrics::register(&registry);
    let (keeper, gangs) = Keeper::new(true, "test".to_owned());
    let running = Object::Gang(gang("train", "Running"));
    gangs.observe(&Change::Listed(Kind::Gang, vec![running]));
    let forbidden = std::iter::repeat_with(|| failure(403, "poddisruptionbudgets is forbidden"));
    let api = ScriptedApi::new(forbidden.take(1_000));
    let keeping = Box::pin(keeper.keep(api.client(), api.client(), metrics));
    let ended = tokio::time::timeout(Duration::from_mins(1), keeping).await;
    assert!(ended.is_err(), "it goes on asking");
    let text = registry.encode().unwrap();
    let value = |metric: &str| -> u64 {
        let start = format!("muster_watch_{metric}{{kind=\"PodDisruptionBudget\"}} ");
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(&start));
        value.expect(metric).parse().unwrap()
    };
    let asked = api.asked();
    let errors = u64::try_from(asked.len()).unwrap();
    assert_eq!(value("errors_total"), errors, "each refusal is counted");
    // Not in the measure of the pauses: it is as old as it is when somebody looks.
    assert!(value("stale_seconds") >= 59, "{text}");
    // At 0, 0.8, 2.4, 5.6, 12, 24.8 and 50.4 s, if nothing is added at random.
    assert!(asked.len() <= 7, "asked {} times", asked.len());
    for asked in asked {
        let list = "GET /apis/policy/v1/poddisruptionbudgets";
        assert_eq!(asked.what, list, "nothing is made meanwhile");
    }
}

#[test]
fn a_namespace_whose_budgets_come_and_go_holds_up_no_other() {
    let gangs = told(true, &[], Vec::new());
    let mut table = gangs.table();
    let of = |namespace: &str, gang: &str| NamespacedName::new(namespace, gang);
    table.due.extend([of("b", "g"), of("c", "g")]);
    let mut seen = Vec::new();
    for _ in 0..5 {
        // All gangs of one are due again and again.
        table.due.extend([of("a", "g0"), of("a", "g1")]);
        seen.push(table.take_due().unwrap().namespace);
    }
    assert_eq!(seen, ["a", "b", "c", "a", "a"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_again_and_again_is_tried_ever_more_rarely() {
    let (mut keeper, gangs) = Keeper::new(true, "test".to_owned());
    let running = Object::Gang(gang("train", "Running"));
    gangs.observe(&Change::Listed(Kind::Gang, vec![running]));
    gangs.table().apply_budget(watcher::Event::Init);
    gangs.table().apply_budget(watcher::Event::InitDone);
    let api = ScriptedApi::new([]);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let mut under_way = JoinSet::new();
        keeper.start(&api.client(), &mut under_way);
        assert_eq!(under_way.len(), 1);
        let failed = Err(CallError::Timeout(CALL_LIMIT));
        let stepped = (name("train"), failed);
        keeper.settle(&api.client(), stepped).await;
        let pause = keeper.later[&name("train")].pause;
        pauses.push(pause.as_secs());
        // A change meanwhile has it tried no sooner.
        gangs.table().due.insert(name("train"));
        let mut under_way = JoinSet::new();
        keeper.start(&api.client(), &mut under_way);
        assert!(under_way.is_empty());
        tokio::time::advance(pause).await;
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn what_was_told_of_a_gang_is_forgotten_with_it() {
    let gangs = told(true, &[gang("train", "Running")], Vec::new());
    let uid = "train-uid".to_owned();
    gangs.table().told.insert(name("train"), uid);
    let pending = Object::Gang(gang("train", "Pending"));
    gangs.observe(&Change::Applied(pending.clone()));
    assert_eq!(gangs.table().told.len(), 1, "once for each Gang");
    gangs.observe(&Change::Deleted(pending.key()));
    assert!(gangs.table().told.is_empty());
}

#[tokio::test(start_paused = true)]
async fn whoever_makes_a_budget_and_breaks_off_takes_the_keeper_along() {
    let (keeper, gangs) = Keeper::new(true, "test".to_owned());
    let running = Object::Gang(gang("train", "Running"));
    gangs.observe(&Change::Listed(Kind::Gang, vec![running]));
    let none = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudgetList",
        "metadata": {"resourceVersion": "1"}, "items": [],
    });
    let (watches, writes) = (
        ScriptedApi::new([(200, none)]),
        ScriptedApi::new([breaks_off()]),
    );
    let metrics = WatchMetrics::register(&Metrics::new("test", "0"));
    let keep = Box::pin(keeper.keep(writes.client(), watches.client(), metrics));
    let keeping = tokio::spawn(keep);
    let ended = tokio::time::timeout(Duration::from_mins(1), keeping).await;
    let broke_off = ended.is_ok_and(|ended| ended.is_err_and(|broken| broken.is_panic()));
    assert!(broke_off, "it goes on, and nobody sees to that one");
}
