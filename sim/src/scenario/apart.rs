//! What is drawn apart from all else, by streams of its own: which hardships a seed has, drains, gangs that stand still, and clocks that go
//! wrong. A seed that has none of it means what it meant before there was any.

use muster_protocol::OnCordon;

use super::{Counting, GangShape, Hardship, NodeShape, OwnerKind, Progress, Scenario};
use crate::random::Random;

/// The stream of [`Hardship::Drains`].
pub(crate) const DRAINS: u64 = 0x6472_6169_6e73;
/// The stream of [`Hardship::Stalls`].
pub(crate) const STALLS: u64 = 0x7374_616c_6c73;
/// The stream of clocks that go wrong.
pub(crate) const CLOCKS: u64 = 0x636c_6f63_6b73;
/// Of the seeds that may have such a hardship one in so many does: as much as elsewhere is to happen in the others.
const ONE_IN: u64 = 4;
/// Most gangs that stand still: where GPUs break no more nodes than two may be concerned within ten minutes, and the others
/// wait for longer than a run is at rest.
const MOST_STALLING: usize = 2;

/// A stream of a seed.
pub(crate) fn stream(seed: u64, of: u64) -> Random {
    Random::new(seed ^ of.rotate_left(16))
}

/// The stream of a hardship: the last eight letters of its name.
pub(crate) fn stream_of(hardship: Hardship) -> u64 {
    let name = format!("{hardship:?}").to_lowercase();
    let letters = name.bytes().map(u64::from);
    letters.fold(0, |stream, letter| (stream << 8) | letter)
}

/// Whether a seed that may have the hardship of that stream does.
pub(crate) fn is_drawn(seed: u64, of: u64) -> bool {
    stream(seed, of).one_in(ONE_IN)
}

impl Scenario {
    /// Draws what the seed has of the hardships that are drawn apart: in one of four seeds, or, where somebody has chosen what goes
    /// wrong, in all.
    pub fn draw_apart(&mut self, seed: u64, is_chosen: bool) {
        let has = |hardship, of| self.hardships.have(hardship) && (is_chosen || is_drawn(seed, of));
        let (drains, stalls) = (has(Hardship::Drains, DRAINS), has(Hardship::Stalls, STALLS));
        if drains {
            self.draw_drains(&mut stream(seed, !DRAINS));
        }
        if stalls {
            self.draw_stalls(&mut stream(seed, !STALLS));
        }
    }

    /// Gangs work for as long as it takes until somebody is moved, and there is a second node for each, beyond all quota, where they may go. One
    /// administrator in three has nobody moved.
    fn draw_drains(&mut self, random: &mut Random) {
        self.on_cordon = if random.one_in(3) {
            OnCordon::Nothing
        } else {
            OnCordon::Move
        };
        let second = self.nodes.iter().map(|node| NodeShape {
            name: format!("{}-second", node.name),
            ..node.clone()
        });
        let second: Vec<NodeShape> = second.collect();
        self.nodes.extend(second);
        for gang in &mut self.gangs {
            if gang.owner.is_finite() {
                gang.ranks.work_seconds = Some(random.between(60, 200));
            }
        }
    }

    /// Every other gang that may stand still tells of its progress, and works for longer than it would take to evict it if nobody heard.
    fn draw_stalls(&mut self, random: &mut Random) {
        let mut stalling = 0;
        for gang in self.gangs.iter_mut().filter(|gang| may_stall(gang)) {
            if random.one_in(2) {
                continue;
            }
            let deadline_seconds = random.between(10, 20);
            let stalls = stalling < MOST_STALLING && random.one_in(2);
            stalling += usize::from(stalls);
            gang.ranks.progress = Some(Progress {
                deadline_seconds,
                stalls,
            });
            gang.ranks.work_seconds = Some(deadline_seconds + random.between(70, 110));
        }
    }
}

/// Whether somebody sees to it that it is over in the end: ranks of a service are told to end by their user, and what waits for an index that
/// failed for good, or for a queue, nobody starts again.
fn may_stall(gang: &GangShape) -> bool {
    match &gang.owner {
        OwnerKind::User => true,
        OwnerKind::Job(job) => {
            job.counting == Counting::Indexed && job.backoff_limit_per_index.is_none()
        }
        OwnerKind::StatefulSet | OwnerKind::Deployment => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::scenario::{HARDSHIPS, Hardships};

    #[test]
    fn every_hardship_has_a_stream_of_its_own() {
        assert_eq!(stream_of(Hardship::Drains), DRAINS);
        assert_eq!(stream_of(Hardship::Stalls), STALLS);
        let streams: BTreeSet<u64> = HARDSHIPS.into_iter().map(stream_of).collect();
        assert_eq!(streams.len(), HARDSHIPS.len());
    }

    #[test]
    fn nothing_is_drawn_apart_without_the_hardship_and_all_of_it_in_some_seeds_with_it() {
        let both = Hardships::named("Drains,Stalls").unwrap();
        let mut seen = BTreeSet::new();
        for seed in 0..400 {
            let drawn = |hardships: &Hardships| Scenario::draw(&mut Random::new(seed), hardships);
            let plain = drawn(&Hardships::borne());
            let mut without = plain.clone();
            without.draw_apart(seed, true);
            assert_eq!(without, plain, "seed {seed}");
            for is_chosen in [false, true] {
                let mut with = drawn(&both);
                assert_eq!(with.gangs, plain.gangs, "seed {seed}: the same gangs");
                assert!(
                    with.nodes.starts_with(&plain.nodes),
                    "seed {seed}: the same nodes"
                );
                with.draw_apart(seed, is_chosen);
                let told = with.gangs.iter().filter_map(|gang| gang.ranks.progress);
                let stalling = told.filter(|it| it.stalls).count();
                assert!(stalling <= MOST_STALLING, "seed {seed}");
                let works = with
                    .gangs
                    .iter()
                    .any(|gang| gang.ranks.work_seconds.is_some());
                seen.insert(("works for long", is_chosen, works));
                let moves = with.on_cordon == OnCordon::Move;
                seen.insert(("has gangs moved", is_chosen, moves));
                seen.insert(("has gangs that stand still", is_chosen, stalling > 0));
            }
        }
        let never = ("works for long", true, false);
        assert!(!seen.contains(&never), "{seen:?}");
        assert_eq!(seen.len(), 11, "all others: {seen:?}");
        let drawn = (0..400).filter(|seed| is_drawn(*seed, DRAINS)).count();
        assert!((60..=140).contains(&drawn), "{drawn} of 400");
    }
}
