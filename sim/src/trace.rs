//! The last steps of a run, for people.

use std::collections::VecDeque;

const KEPT: usize = 80;

/// The last steps of a run.
#[derive(Debug, Default)]
pub struct Trace {
    lines: VecDeque<(u64, String)>,
    kept: Option<usize>,
}

impl Trace {
    /// Keeps so many lines instead.
    pub fn keep(&mut self, lines: usize) {
        self.kept = Some(lines);
    }

    /// Notes what happened at that millisecond.
    pub fn note(&mut self, now: u64, line: String) {
        if self.lines.len() >= self.kept.unwrap_or(KEPT) {
            self.lines.pop_front();
        }
        self.lines.push_back((now, line));
    }

    /// One line per step.
    pub fn text(&self) -> String {
        self.lines
            .iter()
            .map(|(now, line)| format!("{:>5}.{:03} s  {line}\n", now / 1_000, now % 1_000))
            .collect()
    }
}
