//! What the engine keeps of gangs that wait, in bytes of this process.
//!
//! 50,000 gangs, each with a memory request of its own, cost a small record each: what is known of nodes is shared by all that
//! ask for the same devices.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test"
)]

mod common;

use common::*;
use muster_engine::{GangUid, Node, State, Update};

const GANGS: i64 = 50_000;

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let line = lines.find(|line| line.starts_with("VmRSS:")).unwrap();
    let kibibytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kibibytes * 1024
}

/// What gangs take that wait for a place, each: of a pod with the memory that is given by number.
fn bytes_per_gang(state: &mut State, memory: impl Fn(i64) -> i64) -> u64 {
    let before = resident();
    for number in 0..GANGS {
        let mut gang = gang(&format!("g{number}"), "research", 1, 8);
        gang.pods[0].resources.memory_bytes = memory(number);
        state.apply(Update::Waiting(gang));
    }
    assert!(admitted(&decide(state)).is_empty());
    resident().saturating_sub(before) / GANGS.unsigned_abs()
}

fn leave(state: &mut State) {
    for number in 0..GANGS {
        state.apply(Update::NotWaiting(GangUid::from(format!("g{number}"))));
    }
    decide(state);
}

#[test]
fn gangs_with_a_request_of_their_own_take_a_small_record_each_and_leave_nothing() {
    let nodes: Vec<Node> = (0..100)
        .map(|at| node(&format!("n{at}"), "s/l", 8))
        .collect();
    let mut state = open_state(nodes);
    for at in 0..100 {
        let held = hold(&format!("p{at}"), "research", &format!("n{at}"), &[0]);
        state.apply(Update::Hold(held));
    }
    let own = bytes_per_gang(&mut state, |number| GIB + number * 4096);
    leave(&mut state);
    let again = bytes_per_gang(&mut state, |number| 2 * GIB + number * 4096);
    leave(&mut state);
    println!("{own} bytes for each gang with a request of its own, {again} more when others came");
    // What left makes room for what comes: nothing is kept of requests that nobody has any more.
    assert!(again < own / 4, "{again} of {own} bytes");
    assert!(own < 8 * 1024, "{own} bytes");
}
