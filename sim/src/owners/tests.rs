use super::{submission::intervals, *};

#[test]
fn completed_indices_are_written_as_a_job_writes_them() {
    for (indices, text) in [
        (vec![], ""),
        (vec![1], "1"),
        (vec![0, 1], "0,1"),
        (vec![0, 2, 3, 4, 7], "0,2-4,7"),
    ] {
        assert_eq!(intervals(&indices.into_iter().collect()), text);
    }
}

fn owners(owner: OwnerKind) -> (Owners, ApiServer) {
    let scenario = Scenario {
        nodes: Vec::new(),
        teams: Vec::new(),
        keep_ended_seconds: 3_600,
        whole_intent_bytes: crate::scenario::WHOLE_INTENT_BYTES,
        gangs: vec![GangShape {
            name: "g".into(),
            team: "blue".into(),
            owner,
            pods: 2,
            product: None,
            gpus_per_pod: 1,
            claims_per_pod: 1,
            shared: None,
            submitted_at: 5,
        }],
    };
    (Owners::new(&scenario), ApiServer::default())
}

fn run(owners: &mut Owners, api: &mut ApiServer) {
    while let Some(step) = owners.steps(10, api).first().cloned() {
        owners.perform(&step, api);
    }
}

fn end(api: &mut ApiServer, pod: &str, phase: &str) {
    api.update::<Pod>("blue", pod, Precondition::default(), |pod| {
        pod.status.get_or_insert_default().phase = Some(phase.to_owned());
    })
    .unwrap();
}

#[test]
fn a_job_makes_what_failed_anew_and_is_complete_when_every_index_succeeded() {
    let (mut owners, mut api) = owners(OwnerKind::Job);
    assert!(owners.steps(4, &api).is_empty(), "not yet submitted");
    run(&mut owners, &mut api);
    let names: Vec<String> = api
        .list::<Pod>()
        .filter_map(|pod| pod.metadata.name.clone())
        .collect();
    assert_eq!(names, ["g-0-001", "g-1-002"]);
    end(&mut api, "g-0-001", "Failed");
    end(&mut api, "g-1-002", "Succeeded");
    run(&mut owners, &mut api);
    assert!(api.get::<Pod>("blue", "g-0-003").is_some());
    assert!(!owners.is_complete("g", &api));
    end(&mut api, "g-0-003", "Succeeded");
    run(&mut owners, &mut api);
    assert!(owners.is_complete("g", &api));
}

#[test]
fn a_user_makes_a_vanished_pod_again_only_while_none_was_let_go() {
    let (mut owners, mut api) = owners(OwnerKind::User);
    run(&mut owners, &mut api);
    let pod = key(Kind::Pod, "blue", "g-0");
    let any = Precondition::default();
    api.delete(&pod, any).unwrap();
    run(&mut owners, &mut api);
    assert!(api.object(&pod).is_some());
    api.update::<Pod>("blue", "g-1", any, |pod| {
        pod.spec.as_mut().unwrap().scheduling_gates = None;
    })
    .unwrap();
    owners.look(&api);
    api.delete(&pod, any).unwrap();
    run(&mut owners, &mut api);
    assert_eq!(api.list::<Pod>().count(), 0, "given up as a whole");
    assert_eq!(owners.wanted().count(), 0);
}
