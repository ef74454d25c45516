//! A history as it is played: what runs, the engine's tree, and the questions that are asked on the way.

use std::collections::BTreeSet;

use muster_engine::quota::{self, FairStrategy, PreemptionReason, QuotaTree, RunningGang, Sharing};

use crate::{
    history::{Arrival, Event, History, Place},
    mirror,
    model::{self, Asking, Chosen, Contest, Name, Nodes, Pair, Running, Tree},
};

#[derive(Clone)]
pub(crate) struct Play {
    pub(crate) nodes: Nodes,
    pub(crate) strategies: Option<Vec<FairStrategy>>,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) running: Vec<Running>,
    /// Charged and discharged as gangs come and go; made anew when a node changes.
    pub(crate) tree: QuotaTree,
    now: i64,
}

/// Who gives way to this gang?
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) uid: u32,
    pub(crate) asking: Asking,
    pub(crate) place: Place,
}

impl Question {
    pub(crate) fn has_place(&self, running: &[Running], gone: &BTreeSet<usize>) -> bool {
        match self.place {
            Place::Always => true,
            Place::Without { gangs, remainder } => {
                let counts = |position: &&usize| running[**position].uid % 3 == remainder;
                gone.iter().filter(counts).count() >= gangs
            }
        }
    }
}

impl Play {
    pub(crate) fn new(history: &History) -> Self {
        Self {
            nodes: history.nodes.clone(),
            strategies: history.strategies.clone(),
            pairs: history.pairs.clone(),
            running: Vec::new(),
            tree: mirror::tree(&history.nodes, &[]),
            now: 100,
        }
    }

    /// The model's tree, from the list of what runs.
    pub(crate) fn model(&self) -> Tree<'_> {
        let charges = self.running.iter().flat_map(|gang| {
            let charges = gang.charges.iter();
            charges.map(|(pair, amount)| (gang.team, *pair, *amount))
        });
        Tree::new(&self.nodes, charges)
    }

    fn available(&self, team: Name, pair: Pair) -> i128 {
        let available = self
            .tree
            .available(&mirror::team_name(team), &mirror::pair(pair));
        available.map_or(0, |available| i128::from(available.0))
    }

    fn most(&self, team: Name, pair: Pair) -> i128 {
        let (team, of) = (mirror::team_name(team), mirror::pair(pair));
        let most = self.tree.potentially_available(&team, &of);
        most.map_or(0, |most| i128::from(most.0))
    }

    /// Of what it asks for, the pairs of which less is available.
    pub(crate) fn lacks(&self, team: Name, charges: &[(Pair, i128)]) -> BTreeSet<Pair> {
        let asked: BTreeSet<Pair> = charges.iter().map(|(pair, _)| *pair).collect();
        let of = |pair: &Pair| -> i128 {
            let charges = charges.iter().filter(|(charged, _)| charged == pair);
            charges.map(|(_, amount)| *amount).sum()
        };
        let lacks = |pair: &Pair| of(pair) > self.available(team, *pair);
        asked.into_iter().filter(lacks).collect()
    }

    pub(crate) fn is_in_tree(&self, team: Name) -> bool {
        self.tree.check(&mirror::team_name(team)).is_ok()
    }

    /// What happens, but for questions.
    pub(crate) fn happens(&mut self, event: &Event) {
        self.now += 1;
        match event {
            Event::Arrives(arrival) => {
                let fits = self.lacks(arrival.team, &arrival.charges).is_empty();
                if fits && self.is_in_tree(arrival.team) {
                    self.admit(arrival);
                }
            }
            Event::IsFound(arrival) => self.admit(arrival),
            Event::Ends(position) if !self.running.is_empty() => {
                self.end(*position % self.running.len());
            }
            Event::BeginsToEnd(position) if !self.running.is_empty() => {
                let position = *position % self.running.len();
                self.running[position].is_ending = true;
            }
            Event::Ends(_) | Event::BeginsToEnd(_) | Event::Preempts { .. } => {}
            Event::Limit(name, pair, limit) => self.edit(*name, |node| match limit {
                Some(limit) => {
                    node.limits.insert(*pair, *limit);
                }
                None => {
                    node.limits.remove(pair);
                }
            }),
            Event::Weight(name, weight) => self.edit(*name, |node| node.weight = *weight),
            Event::Policy(name, policy) => self.edit(*name, |node| node.policy = Some(*policy)),
            Event::Moves(name, parent) => self.edit(*name, |node| node.parent = *parent),
        }
    }

    fn edit(&mut self, name: Name, edit: impl FnOnce(&mut model::Node)) {
        if let Some(node) = self.nodes.get_mut(&name) {
            edit(node);
        }
        self.tree = mirror::tree(&self.nodes, &self.running);
    }

    /// Some gangs do not know when they were admitted.
    fn admit(&mut self, arrival: &Arrival) {
        let knows_when = !arrival.uid.is_multiple_of(7);
        self.start(Running {
            uid: arrival.uid,
            team: arrival.team,
            priority: arrival.priority,
            queued_at: arrival.queued_at,
            // Some are admitted in the same second.
            admitted_at: knows_when.then_some(self.now / 2),
            is_ending: false,
            charges: arrival.charges.clone(),
        });
    }

    pub(crate) fn start(&mut self, gang: Running) {
        for (pair, amount) in &gang.charges {
            let (team, of) = (mirror::team_name(gang.team), mirror::pair(*pair));
            self.tree.charge(&team, &of, mirror::amount(*amount));
        }
        self.running.push(gang);
    }

    pub(crate) fn end(&mut self, position: usize) -> Running {
        let gang = self.running.remove(position);
        for (pair, amount) in &gang.charges {
            let (team, of) = (mirror::team_name(gang.team), mirror::pair(*pair));
            self.tree.discharge(&team, &of, mirror::amount(*amount));
        }
        gang
    }

    /// What an event asks, by Team: the one that the event names first.
    pub(crate) fn questions(&self, event: &Event) -> Vec<Question> {
        let Event::Preempts { arrival, .. } = event else {
            return Vec::new();
        };
        let is_team = |name: &&Name| self.nodes[*name].policy.is_some();
        let (before, after): (Vec<Name>, Vec<Name>) = self
            .nodes
            .keys()
            .filter(is_team)
            .partition(|name| **name < arrival.team);
        let teams = after.into_iter().chain(before);
        teams
            .filter_map(|team| self.question(event, team))
            .collect()
    }

    /// A gang that fits and has a place does not ask.
    fn question(&self, event: &Event, team: Name) -> Option<Question> {
        let Event::Preempts {
            arrival,
            against,
            beyond_available,
            all_contested,
            place,
        } = event
        else {
            return None;
        };
        let mut charges = arrival.charges.clone();
        let mut priority = arrival.priority;
        if let Some((position, halves)) = against
            && !self.running.is_empty()
        {
            let gang = &self.running[position % self.running.len()];
            let (pair, held) = gang.charges[0];
            charges[0] = (pair, (held + 1) / 2 * i128::from(*halves));
            priority = priority.max(gang.priority + 1);
        }
        if *beyond_available {
            // But, if it can be helped, not for more than it could ever get.
            let (pair, amount) = charges[0];
            let available = self.available(team, pair);
            let most = self.most(team, pair).max(available + 1);
            charges[0].1 = (available + amount).min(most);
        }
        let mut contested = self.lacks(team, &charges);
        if contested.is_empty() && matches!(place, Place::Always) {
            return None;
        }
        if *all_contested || contested.is_empty() {
            contested = charges.iter().map(|(pair, _)| *pair).collect();
        }
        Some(Question {
            uid: arrival.uid,
            asking: Asking {
                team,
                priority,
                queued_at: arrival.queued_at,
                charges,
                contested,
            },
            place: *place,
        })
    }

    /// The engine's answer.
    pub(crate) fn decided(&mut self, question: &Question) -> Vec<Chosen> {
        self.decided_if(question, |running, gone| question.has_place(running, gone))
    }

    pub(crate) fn decided_if(
        &mut self,
        question: &Question,
        has_place: impl Fn(&[Running], &BTreeSet<usize>) -> bool,
    ) -> Vec<Chosen> {
        let gangs: Vec<RunningGang> = self.running.iter().map(mirror::running).collect();
        let running = &self.running;
        let mut has_place =
            |gone: &[usize]| has_place(running, &gone.iter().copied().collect::<BTreeSet<_>>());
        let sharing = match &self.strategies {
            None => Sharing::ByPriority,
            Some(strategies) => Sharing::Fair(strategies),
        };
        let preemptor = mirror::preemptor(&question.asking);
        let victims = quota::victims(&mut self.tree, sharing, &gangs, &preemptor, &mut has_place);
        let victims = victims
            .iter()
            .map(|victim| (victim.position, victim.reason));
        victims.collect::<Vec<(usize, PreemptionReason)>>()
    }

    /// The model's answer.
    pub(crate) fn expected(&self, question: &Question) -> Vec<Chosen> {
        let contest = Contest {
            nodes: &self.nodes,
            running: &self.running,
            besides: &[],
            asking: &question.asking,
            has_place: &|gone| question.has_place(&self.running, gone),
        };
        model::victims(&contest, self.strategies.as_deref())
    }

    /// The victims end, and the gang that asked is admitted, if there were any.
    pub(crate) fn carry_out(&mut self, question: &Question, victims: &[Chosen]) -> Vec<Running> {
        let mut positions: Vec<usize> = victims.iter().map(|victim| victim.0).collect();
        positions.sort_unstable();
        let ended = positions
            .iter()
            .rev()
            .map(|position| self.end(*position))
            .collect();
        if !victims.is_empty() {
            self.admit(&Arrival {
                uid: question.uid,
                team: question.asking.team,
                priority: question.asking.priority,
                queued_at: question.asking.queued_at,
                charges: question.asking.charges.clone(),
            });
        }
        ended
    }
}
