//! A Job that is deleted in the moment in which it ends: what was seen of it last says that it runs.

use muster_api::GangPhase;

use super::{
    evictions::start,
    ranks::{job, pod_of_job},
    *,
};

/// A gang of two pods that ended like that, and whose Job is gone by the time anybody looks.
fn ended(phases: [&str; 2]) -> Bench {
    let mut bench = Bench::new();
    let job = bench.server.put(job(2, 0));
    for index in 0..2 {
        pod_of_job(&mut bench, index);
    }
    bench.run();
    start(&mut bench, &["fit-0", "fit-1"]);
    for (index, phase) in phases.into_iter().enumerate() {
        bench.change_pod(&format!("fit-{index}"), |pod| {
            pod.status.as_mut().unwrap().phase = Some(phase.to_owned());
        });
    }
    bench.server.remove(&job.key());
    bench.run();
    bench
}

#[test]
fn a_gang_whose_job_is_gone_as_soon_as_it_is_complete_is_finished_if_all_its_pods_succeeded() {
    for (phases, phase) in [
        (["Succeeded", "Succeeded"], GangPhase::Finished),
        (["Succeeded", "Failed"], GangPhase::Failed),
    ] {
        let bench = ended(phases);
        let status = bench.gang_status();
        assert_eq!(status.phase, phase, "{:?}", status.conditions);
        assert_eq!(status.admission, None);
    }
}
