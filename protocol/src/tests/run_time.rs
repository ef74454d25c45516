//! How long gangs run at most, as the engine is told: a place is kept for a large gang, and who is gone in time is let in.

use muster_api::{GangPhase, GangStatus, Reason};

use super::*;

fn status(bench: &Bench, label: &str) -> GangStatus {
    let gangs = bench.server.list(Kind::Gang);
    let mut gangs = gangs.iter().filter_map(|gang| match gang {
        Object::Gang(gang) => Some(gang),
        _ => None,
    });
    let gang = gangs.find(|gang| gang.spec.group.as_deref() == Some(label));
    gang.unwrap().status.clone().unwrap()
}

/// A gang of one pod that runs no longer than this.
fn runs_at_most(bench: &mut Bench, label: &str, seconds: &str) {
    bench.pod(label, 0, 1, keys::DEVICE_CLASS_GPU);
    bench.change_pod(&format!("{label}-0"), |pod| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::MAX_RUNTIME_SECONDS.to_owned(), seconds.to_owned());
    });
    bench.run();
}

#[test]
fn a_place_is_kept_for_who_waits_for_long_and_a_new_leader_goes_on_counting() {
    for is_taken_over in [false, true] {
        let mut bench = Bench::new();
        bench.server.put(team("vision", 100));
        runs_at_most(&mut bench, "old", "5000");
        assert_eq!(status(&bench, "old").phase, GangPhase::Admitted);
        bench.gang("large", 4);
        bench.run();
        let waits = status(&bench, "large").queue.unwrap();
        assert_eq!(waits.reason, Reason::WaitingForPlacement);
        bench.seconds += 400;
        if is_taken_over {
            bench.take_over();
        }
        bench.run();
        let still = status(&bench, "large").queue.unwrap();
        assert_eq!(still.since, waits.since);
        assert!(!still.details.contains("kept"), "{}", still.details);
        // Since the beginning, and not since the new leader came.
        bench.seconds += 250;
        bench.run();
        bench.seconds += 31;
        bench.run();
        let kept = status(&bench, "large").queue.unwrap();
        assert!(kept.details.contains("are kept for it"), "{}", kept.details);
        assert!(kept.details.contains("ends within"), "{}", kept.details);
        // Who is gone in time is let in, and nobody else.
        // Of those that came at the same time the smaller UID goes first: it is not this one.
        bench.gang("zealous", 1);
        bench.run();
        let endless = status(&bench, "zealous").queue.unwrap();
        assert_eq!(endless.reason, Reason::WaitingForPlacement);
        assert!(
            endless.details.contains("kept for ml/"),
            "{}",
            endless.details
        );
        runs_at_most(&mut bench, "brief", "600");
        assert_eq!(status(&bench, "brief").phase, GangPhase::Admitted);
    }
}
