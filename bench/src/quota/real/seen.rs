//! What a watch shows of a run: when each gang was admitted, had to go, and ended. Of Muster's it is a watch of Gangs, of Kueue's one of
//! Workloads.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use kube::Client;
use muster_api::{Gang, GangPhase};
use muster_tests::{gangs, kueue};
use tokio_util::task::AbortOnDropHandle;

use super::load;
use crate::{
    quota::scenario::Scenario,
    replay::{Measured, Outcome, Record, TeamUse},
};

/// Watches Gangs until it is dropped. Times are milliseconds since it began.
pub(super) struct Seen {
    begun: Instant,
    gangs: Arc<Mutex<Gangs>>,
    _task: AbortOnDropHandle<()>,
}

/// Is given what is to be noted, and says when.
type Note = Box<dyn Fn(&dyn Fn(&mut Gangs, u64)) + Send>;

struct Gangs {
    /// Position of a gang among the scenario's jobs, by namespace and Job.
    places: BTreeMap<(String, String), usize>,
    /// Team and size of each.
    charges: Vec<(usize, u64)>,
    records: Vec<Record>,
    /// Who holds quota, by which admission.
    held: BTreeMap<usize, i64>,
    teams: Vec<TeamUse>,
    finished: usize,
    evictions: u64,
    makespan: u64,
    wrong: Option<String>,
}

impl Seen {
    /// Watches Muster's Gangs.
    pub(super) fn of_muster(client: Client, scenario: &Scenario) -> Self {
        Self::start(scenario, |note| {
            gangs::watch(client, move |gang| {
                note(&|gangs, now| gangs.note_gang(gang, now));
            })
        })
    }

    /// Watches Kueue's Workloads.
    pub(super) fn of_kueue(client: Client, scenario: &Scenario) -> Self {
        Self::start(scenario, |note| {
            kueue::watch_workloads(client, move |workload| {
                note(&|gangs, now| gangs.note_workload(&workload, now));
            })
        })
    }

    fn start(scenario: &Scenario, watch: impl FnOnce(Note) -> AbortOnDropHandle<()>) -> Self {
        let begun = Instant::now();
        let all = Arc::new(Mutex::new(Gangs::of(scenario)));
        let noted = Arc::clone(&all);
        let note: Note = Box::new(move |tell| {
            let now = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            tell(&mut lock(&noted), now);
        });
        Self {
            begun,
            gangs: all,
            _task: watch(note),
        }
    }

    pub(super) fn begun(&self) -> Instant {
        self.begun
    }

    pub(super) fn have_all_finished(&self) -> bool {
        let gangs = lock(&self.gangs);
        gangs.finished == gangs.records.len()
    }

    /// What must not happen, if it did.
    pub(super) fn wrong(&self) -> Option<String> {
        lock(&self.gangs).wrong.clone()
    }

    pub(super) fn outcome(&self) -> Outcome {
        let gangs = lock(&self.gangs);
        Outcome {
            records: gangs.records.clone(),
            measured: Measured {
                teams: gangs.teams.clone(),
                ..Measured::default()
            },
            makespan: gangs.makespan,
            evictions: gangs.evictions,
            lost: 0,
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gangs = lock(&self.gangs);
        write!(
            formatter,
            "{} of {} ended, {} hold quota, {} evictions",
            gangs.finished,
            gangs.records.len(),
            gangs.held.len(),
            gangs.evictions
        )
    }
}

fn lock(gangs: &Mutex<Gangs>) -> MutexGuard<'_, Gangs> {
    gangs.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gangs {
    fn of(scenario: &Scenario) -> Self {
        let places = scenario.jobs.iter().enumerate().map(|(place, job)| {
            let namespace = scenario.teams[job.team].name.clone();
            ((namespace, load::job_name(place)), place)
        });
        let charges = scenario.jobs.iter().map(|job| (job.team, job.size));
        Self {
            places: places.collect(),
            charges: charges.collect(),
            records: vec![Record::default(); scenario.jobs.len()],
            held: BTreeMap::new(),
            teams: vec![TeamUse::default(); scenario.teams.len()],
            finished: 0,
            evictions: 0,
            makespan: 0,
            wrong: None,
        }
    }

    fn note_gang(&mut self, gang: &Gang, now: u64) {
        let Some(job) = gangs::owner_of(gang) else {
            return;
        };
        let Some(status) = &gang.status else { return };
        if status.phase == GangPhase::Failed {
            self.wrong
                .get_or_insert_with(|| format!("a gang failed: {:?}", status.conditions));
        }
        let has_ended = status.phase == GangPhase::Finished;
        let admission = status.admission.as_ref().filter(|_| !has_ended);
        let sequence = admission.map(|admission| admission.ledger_sequence);
        self.note(&job, sequence, has_ended, now);
    }

    /// An admission of Kueue's has no number; no gang is admitted twice in a second.
    fn note_workload(&mut self, workload: &kueue::SeenWorkload, now: u64) {
        let since = workload.admitted_since.map(jiff::Timestamp::as_second);
        self.note(&workload.job, since, workload.has_finished, now);
    }

    /// The gang of this Job holds quota by this admission, or by none, and has ended or not.
    fn note(&mut self, job: &(String, String), admission: Option<i64>, has_ended: bool, now: u64) {
        let Some(place) = self.places.get(job).copied() else {
            return;
        };
        let held = self.held.get(&place).copied();
        if admission != held {
            let (team, size) = self.charges[place];
            if held.is_some() {
                self.held.remove(&place);
                self.teams[team].give_back(size, now);
                if !has_ended {
                    self.records[place].evictions += 1;
                    self.evictions += 1;
                }
            }
            if let Some(admission) = admission {
                self.held.insert(place, admission);
                self.teams[team].hold(size, now);
                let record = &mut self.records[place];
                record.first_admitted_at.get_or_insert(now);
                record.last_admitted_at = Some(now);
            }
        }
        if has_ended && self.records[place].finished_at.is_none() {
            self.records[place].finished_at = Some(now);
            self.finished += 1;
            self.makespan = self.makespan.max(now);
        }
    }
}
