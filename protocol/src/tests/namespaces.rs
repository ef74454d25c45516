use super::{evictions::start, *};

/// The Team `vision`, whose namespaces take turns; half of what was used counts after ten minutes.
fn fair_team() -> Object {
    Object::Team(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "vision"},
        "spec": {
            "quota": [{"flavor": "gpu", "resources": [{"name": "gpus", "nominal": 4}]}],
            "admissionFairness": {"halfLifeSeconds": 600, "samplingIntervalSeconds": 600},
        },
    })))
}

/// What the one Queue says of use: of how many thousandths of a GPU, and as of when.
fn shown(bench: &Bench) -> Option<(i64, i64)> {
    let queue = bench.queue();
    let shown = queue.status.as_ref()?.namespace_use.as_ref()?;
    let amount = &shown.used.first().expect("something is used").amount.0;
    let thousandths = muster_cluster::quantity::milli(amount, "").expect("a quantity");
    Some((thousandths, shown.as_of.0.as_second()))
}

fn queues_written(bench: &mut Bench) -> usize {
    let written = std::mem::take(&mut bench.written);
    let queues = written.iter();
    queues
        .filter(|write| matches!(write, ApiRequest::PublishQueue { .. }))
        .count()
}

#[test]
fn a_queue_shows_what_its_namespace_used_where_its_team_goes_by_that() {
    let mut bench = Bench::new();
    bench.gang("before", 1);
    bench.run();
    assert_eq!(shown(&bench), None);
    bench.server.put(fair_team());
    bench.run();
    // Nothing is known of the past: what is held now counts whole.
    assert_eq!(shown(&bench).expect("it is shown").0, 1_000);
    bench.gang("train", 2);
    bench.run();
    // An admission counts at once, for half of what it holds.
    assert_eq!(shown(&bench).expect("it is shown").0, 2_000);
}

#[test]
fn use_alone_is_written_with_the_next_sample_and_not_before() {
    let mut bench = Bench::new();
    bench.server.put(fair_team());
    bench.gang("train", 2);
    bench.run();
    // A gang that does not start is evicted after ten minutes, and its Queue is written for that.
    start(&mut bench, &["train-0", "train-1"]);
    let (used, as_of) = shown(&bench).expect("it is shown");
    assert_eq!(used, 1_000);
    queues_written(&mut bench);
    bench.seconds += 300;
    bench.run();
    assert_eq!(
        (queues_written(&mut bench), shown(&bench)),
        (0, Some((used, as_of)))
    );
    bench.seconds += 600;
    bench.run();
    assert_eq!(queues_written(&mut bench), 1);
    let (used, later) = shown(&bench).expect("it is shown");
    assert!(
        (1_500..2_000).contains(&used) && later >= as_of + 600,
        "{used}"
    );
}

#[test]
fn a_new_leader_goes_on_with_what_queues_say_of_use() {
    let mut bench = Bench::new();
    bench.server.put(fair_team());
    bench.gang("train", 2);
    bench.run();
    assert_eq!(shown(&bench).expect("it is shown").0, 1_000);
    bench.take_over();
    bench.run();
    let (used, _) = shown(&bench).expect("it is shown");
    // Some seconds later, and not as if nothing were known: then it were what is held.
    assert!((1_000..1_300).contains(&used), "{used}");
    // Without what was recorded what is held now counts whole.
    let queue = bench.queue();
    bench.server.remove(&Object::Queue(queue).key());
    bench.take_over();
    bench.run();
    assert_eq!(shown(&bench).expect("it is shown").0, 2_000);
}
