//! Slices of GPUs give way to whoever takes the GPU as a whole.

use crate::{common::*, cut_gpus::*};
use muster_engine::{
    Team, Timestamp, Update,
    quota::{PreemptionPolicy, WithinTeam},
};

#[test]
fn the_holder_of_a_slice_gives_way_to_a_whole_gpu_which_starts_once_it_is_released() {
    let preempting = Team {
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            ..PreemptionPolicy::NEVER
        },
        ..team("a", None, limit(1))
    };
    let mut state = state(vec![cut_node("n", "s/l", 1)], vec![preempting]);
    let slice = hold_part("p", "a", "n", (0, ONE_SLICE, 2));
    state.apply(Update::Hold(slice.clone()));
    state.apply(Update::Running(held_since(Timestamp(0), &slice)));
    submit(&mut state, [with_priority(10, gang("whole", "a", 1, 1))]);
    let decisions = decide(&mut state);
    let victims: Vec<String> = decisions
        .preemptions
        .iter()
        .flat_map(|preemption| &preemption.victims)
        .map(|victim| victim.gang.to_string())
        .collect();
    assert_eq!(victims, ["gang-of-p"]);
    assert!(decisions.admissions.is_empty());
    state.apply(Update::NotRunning(slice.gang.clone()));
    state.apply(Update::HoldGone(slice.pod));
    assert_eq!(admitted(&decide(&mut state)), ["whole"]);
}
