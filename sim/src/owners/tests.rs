use super::{submission::intervals, *};
use crate::{
    gpu_node::{Container, GpuNode},
    scenario::{Counting, Hardships, JobShape, NodeShape, Product},
    workload::{self, Workload},
};

#[test]
fn completed_indices_are_written_as_a_job_writes_them() {
    for (indices, text) in [
        (vec![], ""),
        (vec![1], "1"),
        (vec![0, 1], "0,1"),
        (vec![0, 2, 3, 4, 7], "0,2-4,7"),
    ] {
        assert_eq!(intervals(&indices.iter().copied().collect()), text);
        assert_eq!(job::read_intervals(text), indices);
    }
}

/// Two pods of an owner, and the API server that they are in.
struct Stage {
    owners: Owners,
    api: ApiServer,
    now: u64,
}

impl Stage {
    fn new(owner: OwnerKind) -> Self {
        let scenario = Scenario {
            nodes: Vec::new(),
            teams: Vec::new(),
            hardships: Hardships::default(),
            keep_ended_seconds: 3_600,
            whole_intent_bytes: crate::scenario::WHOLE_INTENT_BYTES,
            on_cordon: muster_protocol::OnCordon::Nothing,
            gangs: vec![GangShape {
                submitted_at: 5,
                ..GangShape::plain("g", "blue", owner, 2)
            }],
        };
        let mut stage = Self {
            owners: Owners::new(&scenario),
            api: ApiServer::default(),
            now: 10,
        };
        stage.run();
        stage
    }

    fn of_job(shape: JobShape) -> Self {
        Self::new(OwnerKind::Job(shape))
    }

    /// Owners, and the garbage collector, do what they can.
    fn run(&mut self) {
        loop {
            let steps = self.owners.steps(self.now, &self.api);
            if let Some(step) = steps.first() {
                self.owners.perform(self.now, step, &mut self.api);
            } else if let Some(garbage) = self.api.garbage().first() {
                self.api.delete(garbage, Precondition::default()).unwrap();
            } else {
                return;
            }
            self.owners.look(&self.api);
        }
    }

    fn run_at(&mut self, now: u64) {
        self.now = now;
        self.run();
    }

    fn pods(&self) -> Vec<String> {
        let pods = self.api.list::<Pod>();
        pods.filter_map(|pod| pod.metadata.name.clone()).collect()
    }

    fn set_phase(&mut self, pod: &str, phase: &str) {
        let any = Precondition::default();
        self.api
            .update::<Pod>("blue", pod, any, |pod| {
                pod.status.get_or_insert_default().phase = Some(phase.to_owned());
            })
            .unwrap();
    }

    fn all_run(&mut self) {
        for pod in self.pods() {
            self.set_phase(&pod, "Running");
        }
    }

    /// Every pod is bound, so that a deletion waits for its kubelet.
    fn all_are_bound(&mut self) {
        for pod in self.pods() {
            let any = Precondition::default();
            self.api
                .update::<Pod>("blue", &pod, any, |pod| {
                    pod.spec.get_or_insert_default().node_name = Some("n".to_owned());
                })
                .unwrap();
        }
    }

    fn delete(&mut self, pod: &str) {
        let any = Precondition::default();
        self.api.delete(&key(Kind::Pod, "blue", pod), any).unwrap();
    }

    /// The kubelet of a deleted pod lets go.
    fn let_go(&mut self, pod: &str) {
        let any = Precondition::default();
        self.api
            .delete_now(&key(Kind::Pod, "blue", pod), any)
            .unwrap();
    }

    fn job(&self) -> &Job {
        self.api.get::<Job>("blue", "g").unwrap()
    }

    /// Pods that it counts as failed.
    fn failed(&self) -> i32 {
        let status = self.job().status.as_ref().unwrap();
        status.failed.unwrap_or_default()
    }

    /// Its conditions that hold.
    fn says(&self) -> Vec<String> {
        let status = self.job().status.as_ref().unwrap();
        let conditions = status.conditions.iter().flatten();
        let hold = conditions.filter(|condition| condition.status == "True");
        hold.map(|condition| condition.type_.clone()).collect()
    }
}

#[test]
fn a_job_makes_what_failed_anew_and_is_complete_when_every_index_succeeded() {
    let mut stage = Stage::of_job(JobShape::PATIENT);
    assert_eq!(stage.pods(), ["g-0-001", "g-1-002"]);
    stage.set_phase("g-0-001", "Failed");
    stage.set_phase("g-1-002", "Succeeded");
    stage.run();
    assert_eq!(stage.pods(), ["g-0-001", "g-1-002"], "it backs off");
    stage.run_at(10_010);
    assert!(stage.pods().contains(&"g-0-003".to_owned()));
    assert!(!stage.owners.is_complete("g", &stage.api));
    stage.set_phase("g-0-003", "Succeeded");
    stage.run();
    assert!(stage.owners.is_complete("g", &stage.api));
    assert_eq!(stage.says(), ["SuccessCriteriaMet", "Complete"]);
}

#[test]
fn a_deleted_pod_of_a_job_counts_as_a_failure_at_once_and_stays_until_it_is_counted() {
    let mut stage = Stage::of_job(JobShape::PATIENT);
    stage.all_are_bound();
    stage.delete("g-0-001");
    stage.run();
    assert_eq!(stage.failed(), 1);
    stage.run_at(20_000);
    assert_eq!(
        stage.pods(),
        ["g-0-001", "g-0-003", "g-1-002"],
        "replaced while it ends"
    );
    stage.delete("g-1-002");
    stage.let_go("g-1-002");
    assert!(
        stage.pods().contains(&"g-1-002".to_owned()),
        "held by the finalizer"
    );
    stage.run();
    assert!(!stage.pods().contains(&"g-1-002".to_owned()));
    assert_eq!(stage.failed(), 2);
}

#[test]
fn where_only_failed_pods_are_replaced_a_deleted_one_is_counted_when_it_has_failed() {
    let mut stage = Stage::of_job(JobShape {
        replaces_failed_only: true,
        ..JobShape::PATIENT
    });
    stage.all_are_bound();
    stage.delete("g-0-001");
    stage.run_at(20_000);
    assert_eq!((stage.failed(), stage.pods().len()), (0, 2));
    stage.set_phase("g-0-001", "Failed");
    stage.run();
    assert_eq!((stage.failed(), stage.pods().len()), (1, 2));
    stage.run_at(30_000);
    assert_eq!(stage.pods().len(), 3);
}

#[test]
fn a_suspended_job_deletes_its_pods_counts_nothing_and_its_clock_begins_anew() {
    let mut stage = Stage::of_job(JobShape {
        backoff_limit: 0,
        active_deadline_seconds: Some(60),
        ..JobShape::PATIENT
    });
    stage.all_are_bound();
    stage.owners.suspend("g", true, &mut stage.api);
    stage.run_at(50_000);
    assert_eq!(
        (stage.failed(), stage.says()),
        (0, vec!["Suspended".to_owned()])
    );
    assert!(stage.job().status.as_ref().unwrap().start_time.is_none());
    for pod in stage.pods() {
        stage.let_go(&pod);
    }
    stage.run_at(500_000);
    assert!(stage.pods().is_empty());
    stage.owners.suspend("g", false, &mut stage.api);
    stage.run();
    assert_eq!((stage.pods().len(), stage.failed()), (2, 0));
    stage.run_at(559_000);
    assert!(
        stage.says().is_empty(),
        "the deadline counts from its return"
    );
    stage.run_at(560_000);
    assert!(stage.says().contains(&"Failed".to_owned()));
}

#[test]
fn more_failures_than_the_limit_end_the_job_and_its_pods() {
    let mut stage = Stage::of_job(JobShape {
        backoff_limit: 0,
        ..JobShape::PATIENT
    });
    stage.all_are_bound();
    stage.set_phase("g-0-001", "Failed");
    stage.run();
    assert_eq!(stage.says(), ["FailureTarget"], "its other pod still ends");
    stage.let_go("g-1-002");
    stage.run();
    assert_eq!(stage.says(), ["FailureTarget", "Failed"]);
    assert!(stage.owners.is_complete("g", &stage.api));
    assert_eq!(stage.owners.wronged(&stage.api), None);
}

#[test]
fn a_limit_that_only_deletions_by_muster_exceed_wrongs_the_job() {
    let mut stage = Stage::of_job(JobShape {
        backoff_limit: 0,
        ..JobShape::PATIENT
    });
    let pod = stage.api.get::<Pod>("blue", "g-0-001").unwrap();
    let uid = pod.metadata.uid.clone().unwrap();
    stage.owners.note_evicted(&uid);
    stage.delete("g-0-001");
    stage.run();
    let wronged = stage.owners.wronged(&stage.api).unwrap();
    assert!(wronged.contains("1 of them by Muster"), "{wronged}");
}

#[test]
fn a_limit_that_the_api_server_refused_for_good_to_have_raised_wrongs_nobody() {
    const REFUSED: bool = true;
    const RAISED: bool = false;
    for (answers, is_wronged) in [
        (vec![], true),
        (vec![REFUSED; 2], true),
        (vec![REFUSED; 3], false),
        // Only what is refused each time is its last word.
        (vec![REFUSED, REFUSED, RAISED, REFUSED], true),
        // A leader that heard it may go by it still, though another one has raised the limit since.
        (vec![REFUSED, REFUSED, REFUSED, RAISED], false),
    ] {
        for asked_for in ["g", "another"] {
            let mut stage = Stage::of_job(JobShape {
                backoff_limit: 0,
                parent: Some(Parent::JobSet),
                ..JobShape::PATIENT
            });
            for is_refused in &answers {
                if *is_refused {
                    stage.owners.note_refused_raise(asked_for);
                } else {
                    stage.owners.note_raised(asked_for);
                }
            }
            stage.all_are_bound();
            for name in ["g-0-001", "g-1-002"] {
                let pod = stage.api.get::<Pod>("blue", name).unwrap();
                let uid = pod.metadata.uid.clone().unwrap();
                stage.owners.note_evicted(&uid);
                stage.delete(name);
            }
            let steps = stage.owners.steps(stage.now, &stage.api);
            let told = steps
                .into_iter()
                .find(|step| matches!(step, Step::Job(_, job::Step::TellStatus)));
            stage
                .owners
                .perform(stage.now, &told.unwrap(), &mut stage.api);
            let wronged = stage.owners.wronged(&stage.api);
            let expected = is_wronged || asked_for != "g";
            assert_eq!(wronged.is_some(), expected, "{answers:?} of {asked_for}");
        }
    }
}

#[test]
fn a_limit_that_only_faults_exceed_wrongs_the_job_unless_it_is_0_or_another_controls_it() {
    for (backoff_limit, parent, is_wronged) in [
        (1, None, true),
        (1, Some(Parent::CronJob), true),
        (1, Some(Parent::JobSet), false),
        (0, None, false),
    ] {
        let mut stage = Stage::of_job(JobShape {
            backoff_limit,
            parent,
            ..JobShape::PATIENT
        });
        stage.all_are_bound();
        for name in ["g-0-001", "g-1-002"] {
            let pod = stage.api.get::<Pod>("blue", name).unwrap();
            let uid = pod.metadata.uid.clone().unwrap();
            stage.owners.note_excused(&uid);
            stage.set_phase(name, "Failed");
        }
        let steps = stage.owners.steps(stage.now, &stage.api);
        let told = steps
            .into_iter()
            .find(|step| matches!(step, Step::Job(_, job::Step::TellStatus)));
        stage
            .owners
            .perform(stage.now, &told.unwrap(), &mut stage.api);
        let wronged = stage.owners.wronged(&stage.api);
        assert_eq!(wronged.is_some(), is_wronged, "{backoff_limit} {parent:?}");
    }
}

#[test]
fn indexes_with_limits_of_their_own_fail_one_by_one() {
    let mut stage = Stage::of_job(JobShape {
        backoff_limit: i32::MAX,
        backoff_limit_per_index: Some(0),
        ..JobShape::PATIENT
    });
    stage.set_phase("g-0-001", "Failed");
    stage.run_at(700_000);
    assert_eq!(stage.pods().len(), 2, "index 0 is not made again");
    stage.set_phase("g-1-002", "Succeeded");
    stage.run();
    assert!(stage.says().contains(&"Failed".to_owned()));
    let status = stage.job().status.clone().unwrap();
    assert_eq!(status.failed_indexes.as_deref(), Some("0"));
    assert_eq!(status.completed_indexes.as_deref(), Some("1"));
}

#[test]
fn a_work_queue_of_which_a_pod_succeeded_is_complete_when_it_is_suspended() {
    let shape = JobShape {
        counting: Counting::WorkQueue,
        ..JobShape::PATIENT
    };
    let mut stage = Stage::of_job(shape);
    assert_eq!(stage.pods(), ["g-1", "g-2"]);
    stage.set_phase("g-1", "Succeeded");
    stage.run();
    assert!(
        !stage.owners.is_complete("g", &stage.api),
        "the other still works"
    );
    stage.owners.suspend("g", true, &mut stage.api);
    stage.run();
    assert!(stage.owners.is_complete("g", &stage.api));
}

#[test]
fn what_controls_a_job_makes_it_anew_when_it_failed_and_resumes_it() {
    let mut stage = Stage::of_job(JobShape {
        backoff_limit: 0,
        parent: Some(Parent::JobSet),
        ..JobShape::PATIENT
    });
    let first = stage.job().metadata.uid.clone();
    stage.set_phase("g-0-001", "Failed");
    stage.run();
    assert_ne!(stage.job().metadata.uid, first);
    assert_eq!(stage.pods(), ["g-0-003", "g-1-004"]);
    assert!(!stage.owners.is_complete("g", &stage.api));
    let any = Precondition::default();
    stage
        .api
        .update::<Job>("blue", "g", any, |job| {
            job.spec.get_or_insert_default().suspend = Some(true);
        })
        .unwrap();
    stage.run();
    assert_eq!(stage.job().spec.as_ref().unwrap().suspend, Some(false));
}

#[test]
fn a_suspension_of_a_user_that_somebody_undoes_wrongs_the_job() {
    let mut stage = Stage::of_job(JobShape::PATIENT);
    stage.owners.suspend("g", true, &mut stage.api);
    assert_eq!(stage.owners.wronged(&stage.api), None);
    let any = Precondition::default();
    stage
        .api
        .update::<Job>("blue", "g", any, |job| {
            job.spec.get_or_insert_default().suspend = Some(false);
        })
        .unwrap();
    assert!(stage.owners.wronged(&stage.api).is_some());
}

#[test]
fn a_stateful_set_replaces_one_pod_at_a_time_from_the_highest_and_waits_until_it_runs() {
    let mut stage = Stage::new(OwnerKind::StatefulSet);
    assert_eq!(stage.pods(), ["g-0", "g-1"]);
    let uid = |stage: &Stage, pod: &str| {
        let pod = stage.api.get::<Pod>("blue", pod);
        pod.and_then(|pod| pod.metadata.uid.clone()).unwrap()
    };
    let (first, second) = (uid(&stage, "g-0"), uid(&stage, "g-1"));
    stage.all_run();
    stage.run();
    stage.run_at(10_000);
    assert_ne!(uid(&stage, "g-1"), second, "replaced");
    assert_eq!(uid(&stage, "g-0"), first, "waits for the other");
    stage.set_phase("g-1", "Running");
    stage.run();
    assert_ne!(uid(&stage, "g-0"), first);
    stage.set_phase("g-0", "Running");
    stage.run();
    stage.run_at(20_000);
    assert!(stage.pods().is_empty(), "its user is done");
    assert!(stage.owners.is_complete("g", &stage.api));
}

#[test]
fn a_deployment_makes_one_pod_more_and_deletes_an_old_one_when_it_runs() {
    let mut stage = Stage::new(OwnerKind::Deployment);
    stage.all_run();
    stage.run();
    stage.run_at(10_000);
    assert_eq!(stage.pods(), ["g-1", "g-2", "g-3"]);
    stage.set_phase("g-3", "Running");
    stage.run();
    assert_eq!(stage.pods(), ["g-2", "g-3", "g-4"]);
    stage.set_phase("g-4", "Running");
    stage.run();
    assert_eq!(stage.pods(), ["g-3", "g-4"]);
    stage.run_at(20_000);
    assert!(stage.owners.is_complete("g", &stage.api));
}

#[test]
fn a_deployment_whose_new_pod_waits_for_the_old_ones_is_told_to_end_these_first() {
    let mut stage = Stage::new(OwnerKind::Deployment);
    stage.all_run();
    stage.run();
    stage.run_at(10_000);
    stage.run_at(609_999);
    assert_eq!(stage.pods(), ["g-1", "g-2", "g-3"]);
    let of = |pod: &str| {
        let pod = stage.api.get::<Pod>("blue", pod).unwrap();
        pod.metadata.owner_references.clone().unwrap().remove(0)
    };
    let (old, new) = (of("g-1"), of("g-3"));
    assert_ne!((&old.name, &old.uid), (&new.name, &new.uid));
    for pod in [("g-1", "old"), ("g-2", "old"), ("g-3", "new")] {
        assert_eq!(of(pod.0) == new, pod.1 == "new", "{pod:?}");
    }
    stage.all_are_bound();
    stage.run_at(610_000);
    assert_eq!(stage.pods(), ["g-1", "g-2", "g-3"], "the old ones end");
    stage.let_go("g-1");
    stage.run();
    assert_eq!(stage.pods(), ["g-2", "g-3"], "one of them still does");
    stage.let_go("g-2");
    stage.run();
    assert_eq!(stage.pods(), ["g-3", "g-4"]);
    stage.all_run();
    stage.run();
    assert!(!stage.owners.is_complete("g", &stage.api));
    stage.run_at(620_000);
    assert!(stage.owners.is_complete("g", &stage.api));
}

#[test]
fn a_user_makes_a_vanished_pod_again_only_while_none_was_let_go() {
    let mut stage = Stage::new(OwnerKind::User);
    stage.delete("g-0");
    stage.run();
    assert_eq!(stage.pods(), ["g-0", "g-1"]);
    let any = Precondition::default();
    stage
        .api
        .update::<Pod>("blue", "g-1", any, |pod| {
            pod.spec.as_mut().unwrap().scheduling_gates = None;
        })
        .unwrap();
    stage.owners.look(&stage.api);
    stage.delete("g-0");
    stage.run();
    assert!(stage.pods().is_empty(), "given up as a whole");
    assert_eq!(stage.owners.wanted().count(), 0);
}

#[test]
fn a_rank_that_is_made_again_meets_those_that_its_job_counts_as_done_though_their_pods_are_gone() {
    let mut stage = Stage::of_job(JobShape::PATIENT);
    stage.set_phase("g-0-001", "Succeeded");
    stage.run();
    stage.delete("g-0-001");
    stage.run();
    assert_eq!(stage.pods(), ["g-1-002"]);
    assert_eq!(stage.owners.completed_indexes("g", &stage.api), [0]);
    let pod = stage.api.get::<Pod>("blue", "g-1-002").unwrap();
    let pod = pod.metadata.uid.clone().unwrap();
    let mut node = GpuNode::new(NodeShape {
        name: "n".into(),
        leaf: "leaf".into(),
        product: Product::H100,
        gpus: 1,
    });
    let container = Container {
        units: Vec::new(),
        started_at: 0,
        listed: true,
    };
    node.containers.insert(pod, container);
    let nodes = BTreeMap::from([("n".to_owned(), node)]);
    let steps = Workload::default().steps(200_000, &stage.api, &nodes, &stage.owners);
    let [workload::Step::End(end)] = steps.as_slice() else {
        panic!("one step, not {steps:?}");
    };
    assert!(end.succeeded);
}
