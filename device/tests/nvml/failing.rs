//! A call that fails, or hangs, costs the GPU that it is about an answer or a fact, and the others nothing.
//!
//! Which calls there are the library tells, which writes down what it is asked: one that is new is tried, too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    fs, thread,
    time::{Duration, Instant},
};

use muster_device::{
    Backend, BackendError, Gpu, Listed, ListedGpu, MigInstance, MigModeAfter, NvlinkGroups,
    Process, faults::Condition,
};
use nvidia_ml_mock::Failure;

use crate::{
    machine::{CALL_LIMIT, Machine, eventually, gpus},
    making::{UNKNOWN, make},
};

/// Its GPUs are linked in pairs: one that lost its links would be missed by another.
const BOARD: &str = "a100-40gb-pcie-bridged-4";
const GPU_LOST: u32 = 15;
const RESET_REQUIRED: u32 = 16;
const PID: u32 = 4_242;
/// Longer than any call takes that does not hang, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many machines hang at the same time.
const SIDE_BY_SIDE: usize = 8;

/// A machine whose first GPU is to fall ill. A process is on each GPU.
struct Node {
    machine: Machine,
    backend: Backend,
    sick: String,
    before: Looked,
}

/// What is said of all GPUs, and by each.
#[derive(Debug, PartialEq)]
struct Looked {
    listed: Listed,
    answers: BTreeMap<String, Answers>,
}

/// What a GPU answers beside its facts.
#[derive(Debug, PartialEq)]
struct Answers {
    processes: Result<Vec<Process>, BackendError>,
    slices: Result<Vec<MigInstance>, BackendError>,
    mode: Result<Option<MigModeAfter>, BackendError>,
    minor: Result<u32, BackendError>,
    index: Result<u32, BackendError>,
    recovery_action: Result<Option<u32>, BackendError>,
    condition: Result<Condition, BackendError>,
}

impl Answers {
    fn of(backend: &Backend, gpu: &str) -> Self {
        Self {
            processes: backend.processes(gpu),
            slices: backend.mig_instances(gpu),
            mode: backend.mig_mode(gpu),
            minor: backend.minor(gpu),
            index: backend.index(gpu),
            recovery_action: backend.recovery_action(gpu),
            condition: backend.condition(gpu),
        }
    }

    /// Each is what it was, or a fair refusal; only what has to be done with a GPU, and how it is found, may be left open.
    fn compare(&self, was: &Self, case: &str, is_fair: impl Fn(&BackendError) -> bool) {
        same_or_refused(&self.processes, &was.processes, case, &is_fair);
        same_or_refused(&self.slices, &was.slices, case, &is_fair);
        same_or_refused(&self.mode, &was.mode, case, &is_fair);
        same_or_refused(&self.minor, &was.minor, case, &is_fair);
        same_or_refused(&self.index, &was.index, case, &is_fair);
        if self.recovery_action != Ok(None) {
            let (now, was) = (&self.recovery_action, &was.recovery_action);
            same_or_refused(now, was, case, &is_fair);
        }
        if let Err(error) = &self.condition {
            assert!(is_fair(error), "{case}: {error}");
        }
    }

    /// Whether any of it is a refusal.
    fn is_refused(&self) -> bool {
        self.processes.is_err()
            || self.slices.is_err()
            || self.mode.is_err()
            || self.minor.is_err()
            || self.index.is_err()
            || self.recovery_action.is_err()
            || self.condition.is_err()
    }
}

fn same_or_refused<T: PartialEq + Debug>(
    now: &Result<T, BackendError>,
    was: &Result<T, BackendError>,
    case: &str,
    is_fair: impl Fn(&BackendError) -> bool,
) {
    match now {
        Ok(_) => assert_eq!(now, was, "{case}"),
        Err(error) => assert!(is_fair(error), "{case}: {error}"),
    }
}

impl Node {
    fn new(is_cut: bool, call_limit: Duration) -> Self {
        let machine = Machine::of(BOARD);
        let backend = machine.backend_within(call_limit);
        let all = gpus(&backend);
        let uuids: Vec<String> = all.iter().map(|gpu| gpu.uuid.clone()).collect();
        let sick = uuids[0].clone();
        let mut used = uuids.clone();
        if is_cut {
            machine.in_mig_mode(&sick);
            let slice = make(&backend, &all[0], "1g.5gb", 0).unwrap();
            used[0] = slice.uuid.unwrap();
        }
        let process = |gpu: String| nvidia_ml_mock::Process {
            gpu,
            pid: PID,
            used_bytes: 0,
        };
        machine.change(|state| state.processes = used.into_iter().map(process).collect());
        let before = look(&backend, &uuids);
        assert!(before.listed.gpus.iter().all(|gpu| gpu.silent.is_none()));
        assert!(before.answers.values().all(|answers| !answers.is_refused()));
        assert_eq!(before.listed.gpus[2].gpu.nvlink.pair, 0);
        Self {
            machine,
            backend,
            sick,
            before,
        }
    }

    fn look(&self) -> Looked {
        let uuids: Vec<String> = self.before.answers.keys().cloned().collect();
        look(&self.backend, &uuids)
    }

    /// The functions that one look asks about the first GPU.
    fn asked(&self) -> BTreeSet<String> {
        let log = self.machine.path("calls");
        self.machine
            .change(|state| state.call_log = Some(log.clone()));
        assert_eq!(self.look(), self.before);
        self.machine.change(|state| state.call_log = None);
        let text = fs::read_to_string(&log).unwrap();
        let calls = text.lines().filter_map(|line| line.split_once(' '));
        let about_it = calls.filter(|(_, gpu)| *gpu == self.sick);
        about_it.map(|(function, _)| function.to_owned()).collect()
    }

    /// What is listed of the first GPU, and of the others.
    fn apart<'a>(&self, listed: &'a Listed) -> (Option<&'a ListedGpu>, Vec<&'a ListedGpu>) {
        let is_sick = |listed: &&ListedGpu| listed.gpu.uuid == self.sick;
        let (sick, others): (Vec<_>, Vec<_>) = listed.gpus.iter().partition(is_sick);
        (sick.first().copied(), others)
    }

    fn others_answer_as_before(&self, case: &str) {
        let others = self.before.answers.iter();
        for (gpu, was) in others.filter(|(gpu, _)| **gpu != self.sick) {
            assert_eq!(Answers::of(&self.backend, gpu), *was, "{case}");
        }
    }

    /// The function answers so about the first GPU.
    fn fail(&self, function: &str, code: u32) {
        let case = format!("{function} answers {code}");
        self.machine.fail(vec![Failure {
            function: function.to_owned(),
            gpu: self.sick.clone(),
            code,
            ..Failure::default()
        }]);
        let listed = self.backend.gpus();
        assert_eq!(listed.as_ref().err(), None, "{case}");
        let listed = listed.unwrap();
        assert!(listed.unidentified.is_empty(), "{case}: {listed:?}");
        let (sick, others) = self.apart(&listed);
        let (was, were) = self.apart(&self.before.listed);
        let was = was.unwrap();
        match sick {
            // It fell off the bus, and without it the others are numbered and grouped anew.
            None => {
                assert_eq!(code, GPU_LOST, "{case}");
                assert_eq!(unplaced(&others), unplaced(&were), "{case}");
            }
            Some(sick) => {
                assert_eq!(others, were, "{case}");
                let lost = differences(&sick.gpu, &was.gpu);
                match &sick.silent {
                    None => assert!(lost.len() <= 1, "{case}: {lost:?}"),
                    Some(error) => {
                        assert!(matches!(error, BackendError::Failed(_)), "{case}: {error}");
                        assert!(lost.is_empty(), "{case}: {lost:?}");
                    }
                }
            }
        }
        let is_fair = |error: &BackendError| match error {
            BackendError::Failed(_) => true,
            BackendError::Gone(_) => code == GPU_LOST,
            _ => false,
        };
        let answers = Answers::of(&self.backend, &self.sick);
        answers.compare(&self.before.answers[&self.sick], &case, is_fair);
        self.others_answer_as_before(&case);
        if code == UNKNOWN {
            self.start_anew(&case, &were);
        }
    }

    /// A driver that starts now does not know what was said before.
    fn start_anew(&self, case: &str, were: &[&ListedGpu]) {
        let listed = self.machine.backend_within(PATIENCE).gpus().unwrap();
        let (sick, others) = self.apart(&listed);
        assert_eq!(unplaced(&others), unplaced(were), "{case}");
        let told = listed.unidentified.len() + usize::from(sick.is_some());
        assert_eq!(told, 1, "{case}: {listed:?}");
    }
}

fn look(backend: &Backend, gpus: &[String]) -> Looked {
    let answers = gpus.iter().map(|gpu| {
        let answers = Answers::of(backend, gpu);
        (gpu.clone(), answers)
    });
    Looked {
        listed: backend.gpus().unwrap(),
        answers: answers.collect(),
    }
}

/// The same without what follows from which others there are.
fn unplaced(gpus: &[&ListedGpu]) -> Vec<ListedGpu> {
    let unplaced = |listed: &&ListedGpu| ListedGpu {
        gpu: Gpu {
            index: 0,
            nvlink: NvlinkGroups::alone(0),
            ..listed.gpu.clone()
        },
        silent: listed.silent.clone(),
    };
    gpus.iter().map(unplaced).collect()
}

/// Names of the facts in which they differ.
fn differences(one: &Gpu, other: &Gpu) -> Vec<String> {
    let [one, other] = [one, other].map(|gpu| serde_json::to_value(gpu).unwrap());
    let facts = one.as_object().unwrap().iter();
    let differ = facts.filter(|(name, value)| other.get(name.as_str()) != Some(*value));
    differ.map(|(name, _)| name.clone()).collect()
}

#[test]
fn a_call_that_fails_costs_its_gpu_an_answer_or_a_fact_and_the_others_nothing() {
    let mut tried = BTreeSet::new();
    for is_cut in [false, true] {
        let node = Node::new(is_cut, PATIENCE);
        let asked = node.asked();
        let new: Vec<&String> = asked.difference(&tried).collect();
        for function in new {
            for code in [UNKNOWN, RESET_REQUIRED, GPU_LOST] {
                node.fail(function, code);
            }
            node.machine.fail(Vec::new());
            assert_eq!(node.look(), node.before, "{function} is as it was");
        }
        tried.extend(asked);
    }
    // The log is of what it should be.
    for function in [
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetFieldValues",
        "nvmlGpuInstanceGetInfo",
    ] {
        assert!(tried.contains(function), "{function}: {tried:?}");
    }
}

#[test]
fn a_call_that_hangs_costs_its_gpu_an_answer_and_the_others_nothing() {
    let asked = Node::new(false, PATIENCE).asked();
    let asked: Vec<String> = asked.into_iter().collect();
    for functions in asked.chunks(SIDE_BY_SIDE) {
        thread::scope(|scope| {
            for function in functions {
                scope.spawn(move || hang(function));
            }
        });
    }
}

fn hang(function: &str) {
    let node = Node::new(false, CALL_LIMIT);
    node.machine.hang(&[(function, &node.sick)]);
    let started = Instant::now();
    let listed = node.backend.gpus().unwrap();
    assert!(listed.unidentified.is_empty(), "{function}: {listed:?}");
    let (sick, others) = node.apart(&listed);
    let (was, were) = node.apart(&node.before.listed);
    let (sick, was) = (sick.unwrap(), was.unwrap());
    assert_eq!(others, were, "{function}");
    assert_eq!(sick.gpu, was.gpu, "{function}");
    let is_silent = sick.silent == Some(BackendError::Unresponsive);
    assert!(is_silent || sick.silent.is_none(), "{function}: {sick:?}");
    let answers = Answers::of(&node.backend, &node.sick);
    let is_fair = |error: &BackendError| *error == BackendError::Unresponsive;
    answers.compare(&node.before.answers[&node.sick], function, is_fair);
    assert!(is_silent || answers.is_refused(), "{function} never hung");
    node.others_answer_as_before(function);
    let waited = started.elapsed();
    assert!(waited < 5 * CALL_LIMIT, "{function}: {waited:?}");
    assert_eq!(node.backend.status().stuck_calls, 1, "{function}");
    node.machine.hang(&[]);
    eventually("it answers again", || node.look() == node.before);
}
