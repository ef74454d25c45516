//! Gangs that make no progress though all that they hold is well.

use super::*;
use crate::{Mode, Recovery};

/// How long a gang may be without progress, and what is seen of it may be late, in seconds.
const DEADLINE_SECONDS: u64 = 600;
const SLACK_SECONDS: u64 = 60;

fn with_deadline(job: &mut Job) {
    let annotations = job.metadata.annotations.get_or_insert_default();
    let seconds = DEADLINE_SECONDS.to_string();
    annotations.insert(keys::PROGRESS_DEADLINE_SECONDS.to_owned(), seconds);
}

fn tell(bench: &mut Bench, name: &str, text: &str) {
    bench.change_pod(name, |pod| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::PROGRESS.to_owned(), text.to_owned());
    });
    bench.run_at_once();
}

fn pass(bench: &mut Bench, seconds: u64) {
    bench.seconds += seconds;
    bench.run_at_once();
}

fn reads_pod(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReadObject { key } if key.kind == Kind::Pod)
}

#[test]
fn who_tells_the_same_for_too_long_is_evicted_once_the_store_says_so_too() {
    let mut bench = running_job(with_deadline);
    tell(&mut bench, "fit-0", "step 1");
    bench.written.clear();
    pass(&mut bench, DEADLINE_SECONDS + SLACK_SECONDS - 1);
    assert_eq!(evictions(&bench), []);
    assert!(!bench.written.iter().any(reads_pod));
    pass(&mut bench, 1);
    assert_eq!(evictions(&bench), [(1, Reason::NoProgress)]);
    let at = |what: fn(&ApiRequest) -> bool| bench.written.iter().position(what);
    assert!(at(reads_pod).unwrap() < at(evicts).unwrap());
    let message = bench.gang_status().evictions.pop().unwrap().message;
    assert!(message.contains("\"step 1\""), "{message}");
    let breaker = bench.server.ledger().unwrap().spec.breaker;
    assert_eq!(breaker.stalled.len(), 1, "it counts");
    assert!(breaker.drained.is_empty(), "and not as a fault");
}

#[test]
fn who_goes_on_or_does_not_say_is_left_alone() {
    let mut bench = running_job(with_deadline);
    for step in 0..5 {
        tell(&mut bench, "fit-0", &format!("step {step}"));
        pass(&mut bench, DEADLINE_SECONDS);
    }
    assert_eq!(evictions(&bench), [], "it goes on");
    let mut bench = running_job(with_deadline);
    pass(&mut bench, 100 * DEADLINE_SECONDS);
    assert_eq!(evictions(&bench), [], "it has told nothing yet");
    let mut bench = running_job(with_deadline);
    tell(&mut bench, "fit-1", "step 1");
    pass(&mut bench, 100 * DEADLINE_SECONDS);
    assert_eq!(evictions(&bench), [], "the first rank speaks for all");
    let mut bench = running_job(|_| {});
    tell(&mut bench, "fit-0", "step 1");
    pass(&mut bench, 100 * DEADLINE_SECONDS);
    assert_eq!(evictions(&bench), [], "there is no deadline");
}

/// S18: a watch that stands still shows no progress either.
#[test]
fn s18_nobody_is_evicted_for_what_only_a_watch_says() {
    type Answer = fn(&Bench) -> Outcome;
    let answers: [(&str, Answer); 3] = [
        ("it has told more since", |bench| {
            let mut pod = bench.server.pod("fit-0").unwrap();
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(keys::PROGRESS.to_owned(), "step 2".to_owned());
            Outcome::Done(Some(Object::Pod(Arc::new(pod))))
        }),
        ("it is gone", |_| Outcome::NotFound),
        ("no answer", |_| Outcome::Unknown),
    ];
    for (case, answer) in answers {
        let mut bench = running_job(with_deadline);
        tell(&mut bench, "fit-0", "step 1");
        bench.seconds += DEADLINE_SECONDS + SLACK_SECONDS;
        let answered = answer(&bench);
        let asked = std::cell::Cell::new(0);
        run_answering(&mut bench, 95, |write| {
            reads_pod(write).then(|| {
                asked.set(asked.get() + 1);
                answered.clone()
            })
        });
        assert_eq!(evictions(&bench), [], "{case}");
        assert_eq!(asked.get(), 4, "{case}: every half a minute");
        bench.seconds += 30;
        bench.run();
        assert_eq!(evictions(&bench), [(1, Reason::NoProgress)], "{case}");
    }
}

#[test]
fn a_new_leader_counts_anew() {
    let mut bench = running_job(with_deadline);
    tell(&mut bench, "fit-0", "step 1");
    pass(&mut bench, DEADLINE_SECONDS);
    bench.take_over();
    bench.run();
    // It needed some seconds.
    pass(&mut bench, DEADLINE_SECONDS + SLACK_SECONDS - 20);
    assert_eq!(evictions(&bench), []);
    pass(&mut bench, 20);
    assert_eq!(evictions(&bench), [(1, Reason::NoProgress)]);
}

#[test]
fn where_recovery_only_observes_it_is_told_and_nothing_is_ended() {
    let mut bench = Bench::with(Config {
        recovery: Recovery {
            mode: Mode::Observe,
            ..config().recovery
        },
        ..config()
    });
    bench.server.put(job(2, 0));
    change_job(&mut bench, with_deadline);
    make_again(&mut bench, 0..2);
    tell(&mut bench, "fit-0", "step 1");
    pass(&mut bench, DEADLINE_SECONDS + SLACK_SECONDS);
    pass(&mut bench, 60);
    assert_eq!(evictions(&bench), []);
    let mut conditions = bench.gang_status().conditions.into_iter();
    let degraded = conditions.find(|it| it.type_ == "Degraded").unwrap();
    assert_eq!(degraded.reason, "NoProgress", "{}", degraded.message);
    assert!(
        degraded.message.contains("only observes"),
        "{}",
        degraded.message
    );
}
