//! A scheduler of the same policies that takes no time: the lower bound. It is written apart from the engine, naively, from
//! Kueue's rules for one resource, flat cohorts without quota of their own and no lending limits, and shares no code with it.
//!
//! In rounds every Team has its first gang that fits, or that others can give way to, admitted: who stays within the nominal quota
//! first, then the higher priority, then the earlier arrival. All is worked out anew after each.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use anyhow::Result;
use muster_engine::quota::{ReclaimWithinCohort, WithinTeam};

use crate::replay::{Job, Scheduler, Step, engine::TeamLimits};

/// Gangs that are judged alike: priority (higher first) and size.
type Class = (Reverse<i32>, u64);
/// Whose turn it is: whether it borrows, priority, arrival, position.
type Turn = (bool, Reverse<i32>, u64, usize);

struct Team<'a> {
    limits: &'a TeamLimits,
    cohort: usize,
    used: u64,
    /// In the order of arrival.
    pending: BTreeMap<Class, BTreeSet<usize>>,
    running: BTreeSet<usize>,
}

impl Team<'_> {
    fn borrows(&self, used: u64) -> bool {
        used > self.limits.nominal
    }
}

pub(crate) struct ZeroLatency<'a> {
    jobs: &'a [Job],
    teams: Vec<Team<'a>>,
    /// Teams of each cohort; one of its own for a Team without.
    cohorts: Vec<Vec<usize>>,
    admitted_at: Vec<u64>,
    served: BTreeSet<usize>,
    /// Cohorts in which something happened.
    changed: BTreeSet<usize>,
}

/// What a Team's first gang would do.
struct Head {
    job: usize,
    victims: Vec<usize>,
}

impl<'a> ZeroLatency<'a> {
    pub(crate) fn new(jobs: &'a [Job], limits: &'a [TeamLimits]) -> Self {
        let mut cohorts: Vec<Vec<usize>> = Vec::new();
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        let mut teams = Vec::new();
        for (position, limits) in limits.iter().enumerate() {
            let mut add = || {
                cohorts.push(Vec::new());
                cohorts.len() - 1
            };
            let cohort = match &limits.cohort {
                Some(name) => *names.entry(name).or_insert_with(add),
                None => add(),
            };
            cohorts[cohort].push(position);
            teams.push(Team {
                limits,
                cohort,
                used: 0,
                pending: BTreeMap::new(),
                running: BTreeSet::new(),
            });
        }
        Self {
            jobs,
            teams,
            cohorts,
            admitted_at: vec![0; jobs.len()],
            served: BTreeSet::new(),
            changed: BTreeSet::new(),
        }
    }

    fn members(&self, team: usize) -> &[usize] {
        &self.cohorts[self.teams[team].cohort]
    }

    /// Whether a gang fits if the Teams use so much.
    fn fits(&self, job: usize, used: &BTreeMap<usize, u64>, may_borrow: bool) -> bool {
        let Job { team, size, .. } = self.jobs[job];
        let limits = self.teams[team].limits;
        let members = self.members(team);
        let quota: u64 = members
            .iter()
            .map(|it| self.teams[*it].limits.nominal)
            .sum();
        let in_use: u64 = members.iter().map(|it| used[it]).sum();
        let wanted = used[&team] + size;
        let most = limits.borrowing_limit.map(|limit| limits.nominal + limit);
        in_use + size <= quota
            && most.is_none_or(|most| wanted <= most)
            && (may_borrow || wanted <= limits.nominal)
    }

    /// Lower priority first, then who was admitted last.
    fn sorted(&self, mut candidates: Vec<usize>) -> Vec<usize> {
        candidates.sort_by_key(|job| {
            (
                self.jobs[*job].priority,
                Reverse(self.admitted_at[*job]),
                *job,
            )
        });
        candidates
    }

    /// Who gives way to a gang that does not fit.
    fn victims(&self, job: usize, used: &BTreeMap<usize, u64>) -> Option<Vec<usize>> {
        let Job {
            team,
            size,
            priority,
            arrives_at,
            ..
        } = self.jobs[job];
        let own = &self.teams[team];
        let (nominal, policy) = (own.limits.nominal, own.limits.preemption);
        if size > nominal {
            return None;
        }
        let within = own.running.iter().copied().filter(|other| {
            let of = self.jobs[*other];
            match policy.within_team {
                WithinTeam::Never => false,
                WithinTeam::LowerPriority => of.priority < priority,
                WithinTeam::LowerOrNewerEqualPriority => {
                    of.priority < priority
                        || (of.priority == priority && of.arrives_at > arrives_at)
                }
            }
        });
        let within = self.sorted(within.collect());
        let mut borrowed = Vec::new();
        for member in self.members(team) {
            let other = &self.teams[*member];
            if *member == team || !other.borrows(used[member]) {
                continue;
            }
            borrowed.extend(other.running.iter().copied().filter(|it| {
                match policy.reclaim_within_cohort {
                    ReclaimWithinCohort::Never => false,
                    ReclaimWithinCohort::LowerPriority => self.jobs[*it].priority < priority,
                    ReclaimWithinCohort::Any => true,
                }
            }));
        }
        let borrowed = self.sorted(borrowed);
        // Within its quota a Team has an advantage over those who borrow; beyond it may only stop them and not borrow itself.
        let has_advantage = used[&team] + size <= nominal;
        let attempts: &[bool] = if borrowed.is_empty() || used[&team] >= nominal {
            &[true]
        } else if has_advantage {
            &[true, false]
        } else {
            &[false, true]
        };
        attempts.iter().find_map(|may_borrow| {
            let others: &[usize] = if *may_borrow && !has_advantage {
                &[]
            } else {
                &borrowed
            };
            self.attempt(job, used, *may_borrow, others, &within)
        })
    }

    /// Stops one after the other until the gang fits, then lets whoever need not have been stopped go on.
    fn attempt(
        &self,
        job: usize,
        used: &BTreeMap<usize, u64>,
        may_borrow: bool,
        others: &[usize],
        within: &[usize],
    ) -> Option<Vec<usize>> {
        let own = self.jobs[job].team;
        let mut used = used.clone();
        let mut victims = Vec::new();
        let mut fits = false;
        for candidate in others.iter().chain(within) {
            let Job { team, size, .. } = self.jobs[*candidate];
            if team != own && !self.teams[team].borrows(used[&team]) {
                continue;
            }
            *used.entry(team).or_default() -= size;
            victims.push(*candidate);
            fits = self.fits(job, &used, may_borrow);
            if fits {
                break;
            }
        }
        if !fits {
            return None;
        }
        for at in (0..victims.len().saturating_sub(1)).rev() {
            let Job { team, size, .. } = self.jobs[victims[at]];
            *used.entry(team).or_default() += size;
            if self.fits(job, &used, may_borrow) {
                victims.remove(at);
            } else {
                *used.entry(team).or_default() -= size;
            }
        }
        Some(victims)
    }

    fn head(&self, team: usize) -> Option<(Turn, Head)> {
        let used: BTreeMap<usize, u64> = self
            .members(team)
            .iter()
            .map(|it| (*it, self.teams[*it].used))
            .collect();
        let classes = self.teams[team].pending.values();
        let mut firsts: Vec<usize> = classes.filter_map(|jobs| jobs.first().copied()).collect();
        firsts.sort_by_key(|job| (Reverse(self.jobs[*job].priority), *job));
        firsts.into_iter().find_map(|job| {
            let victims = if self.fits(job, &used, true) {
                Vec::new()
            } else {
                self.victims(job, &used)?
            };
            let of = self.jobs[job];
            let own: u64 = victims
                .iter()
                .filter(|victim| self.jobs[**victim].team == team)
                .map(|victim| self.jobs[*victim].size)
                .sum();
            let borrows = self.teams[team].borrows(used[&team] + of.size - own);
            let turn = (borrows, Reverse(of.priority), of.arrives_at, job);
            Some((turn, Head { job, victims }))
        })
    }
}

impl Scheduler for ZeroLatency<'_> {
    fn wait(&mut self, job: usize) {
        let Job {
            team,
            priority,
            size,
            ..
        } = self.jobs[job];
        let team = &mut self.teams[team];
        let class = team.pending.entry((Reverse(priority), size)).or_default();
        class.insert(job);
        self.changed.insert(team.cohort);
    }

    /// Who gives way does so at once.
    fn will_end(&mut self, _job: usize, _now: u64) {}

    fn release(&mut self, job: usize) {
        let Job { team, size, .. } = self.jobs[job];
        let team = &mut self.teams[team];
        team.running.remove(&job);
        team.used -= size;
        self.changed.insert(team.cohort);
    }

    fn decide(&mut self, now: u64) -> Result<Step> {
        while let Some(cohort) = self.changed.first().copied() {
            let members = self.cohorts[cohort].iter();
            let unserved = members.filter(|team| !self.served.contains(team));
            let first = unserved.filter_map(|team| self.head(*team));
            let Some((_, Head { job, victims })) = first.min_by(|one, other| one.0.cmp(&other.0))
            else {
                // The round is over; the next one begins, unless nobody was served.
                if self.served.is_empty() {
                    self.changed.pop_first();
                }
                self.served.clear();
                continue;
            };
            let Job {
                team,
                priority,
                size,
                ..
            } = self.jobs[job];
            self.served.insert(team);
            let team = &mut self.teams[team];
            let class = (Reverse(priority), size);
            if let Some(waiting) = team.pending.get_mut(&class) {
                waiting.remove(&job);
                if waiting.is_empty() {
                    team.pending.remove(&class);
                }
            }
            team.running.insert(job);
            team.used += size;
            self.admitted_at[job] = now;
            return Ok(Step {
                admitted: vec![job],
                evicted: victims,
                ask_again_at: None,
            });
        }
        Ok(Step::default())
    }
}

#[cfg(test)]
mod tests {
    use muster_engine::quota::{PreemptionPolicy, Weight};

    use super::*;
    use crate::replay::{Interruption, Outcome, Rules, replay};

    const RECLAIMS: PreemptionPolicy = PreemptionPolicy {
        within_team: WithinTeam::LowerPriority,
        reclaim_within_cohort: ReclaimWithinCohort::Any,
        ..PreemptionPolicy::NEVER
    };

    fn limits(nominal: u64, borrowing_limit: u64) -> TeamLimits {
        TeamLimits {
            name: String::new(),
            cohort: Some("all".to_owned()),
            nominal,
            borrowing_limit: Some(borrowing_limit),
            weight: Weight::ONE,
            preemption: RECLAIMS,
        }
    }

    fn job(arrives_at: u64, team: usize, priority: i32, size: u64) -> Job {
        Job {
            arrives_at,
            team,
            class: 0,
            priority,
            size,
            runs_for: 100,
        }
    }

    fn run(jobs: &[Job], teams: &[TeamLimits]) -> Result<Outcome> {
        let rules = Rules {
            capacity: teams.iter().map(|team| team.nominal).sum(),
            horizon: None,
            interruption: Interruption::LosesEverything,
            notice: 0,
        };
        let mut scheduler = ZeroLatency::new(jobs, teams);
        replay(jobs, teams.len(), rules, &mut scheduler, |_| {})
    }

    fn firsts(outcome: &Outcome) -> Vec<u64> {
        let records = outcome.records.iter();
        records
            .filter_map(|record| record.first_admitted_at)
            .collect()
    }

    fn evictions(outcome: &Outcome) -> Vec<u32> {
        outcome.records.iter().map(|it| it.evictions).collect()
    }

    #[test]
    fn the_higher_priority_goes_first_and_preempts_in_its_team_as_few_as_it_needs() -> Result<()> {
        let teams = [limits(4, 0)];
        let jobs = [
            job(0, 0, 0, 1),
            job(0, 0, 1, 2),
            job(1, 0, 0, 1),
            job(5, 0, 2, 2),
        ];
        let outcome = run(&jobs, &teams)?;
        assert_eq!(firsts(&outcome), [0, 0, 1, 5]);
        assert_eq!(evictions(&outcome), [1, 0, 1, 0]);
        // One of two is enough: of the other it is found that it need not go.
        let jobs = [job(0, 0, 0, 3), job(1, 0, 0, 1), job(5, 0, 2, 3)];
        let outcome = run(&jobs, &teams)?;
        assert_eq!(evictions(&outcome), [1, 0, 0]);
        Ok(())
    }

    #[test]
    fn what_others_borrow_is_reclaimed_within_the_own_quota_only() -> Result<()> {
        let teams = [limits(4, 4), limits(4, 4)];
        let jobs = [
            job(0, 0, 0, 4),
            job(1, 0, 9, 3),
            job(5, 1, 0, 2),
            job(6, 1, 0, 4),
        ];
        let outcome = run(&jobs, &teams)?;
        // One is free, so one of the borrower's goes, the lower priority. Four more would be beyond the own quota, and nobody
        // borrows any more: they wait until what was stopped has run again first.
        assert_eq!(firsts(&outcome), [0, 1, 5, 105]);
        assert_eq!(evictions(&outcome), [1, 0, 0, 0]);
        Ok(())
    }

    #[test]
    fn a_borrowing_limit_holds_and_who_does_not_borrow_goes_before_who_does() -> Result<()> {
        let teams = [limits(4, 1), limits(4, 4)];
        let jobs = [
            job(0, 0, 0, 4),
            job(0, 0, 9, 2),
            job(0, 1, 0, 3),
            job(0, 0, 0, 1),
        ];
        let outcome = run(&jobs, &teams)?;
        assert_eq!(outcome.records[1].first_admitted_at, Some(0));
        assert_eq!(outcome.records[0].first_admitted_at, Some(100));
        assert_eq!(outcome.records[3].first_admitted_at, Some(0));
        Ok(())
    }
}
