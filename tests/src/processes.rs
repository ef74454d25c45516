//! What the programs of a cluster cost, by `/proc`: all of them are children of this process.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use rustix::param::{clock_ticks_per_second, page_size};

/// CPU time and memory of every child, summed by program.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    programs: BTreeMap<String, Cost>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    cpu_ticks: u64,
    resident_pages: u64,
}

impl Processes {
    /// All descendants of this process now.
    pub fn now() -> Result<Self> {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut costs: BTreeMap<u32, (String, Cost)> = BTreeMap::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // One that has just ended is not a process any more.
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
                continue;
            };
            let (parent, cost) = parse(&stat).with_context(|| format!("/proc/{id}/stat"))?;
            children.entry(parent).or_default().push(id);
            costs.insert(id, (program(&entry.path()), cost));
        }
        let mut programs: BTreeMap<String, Cost> = BTreeMap::new();
        let mut next = vec![std::process::id()];
        while let Some(id) = next.pop() {
            for child in children.remove(&id).unwrap_or_default() {
                next.push(child);
                if let Some((name, cost)) = costs.remove(&child) {
                    let sum = programs.entry(name).or_default();
                    sum.cpu_ticks += cost.cpu_ticks;
                    sum.resident_pages += cost.resident_pages;
                }
            }
        }
        Ok(Self { programs })
    }

    /// CPU seconds that each program took since `before`.
    #[expect(
        clippy::cast_precision_loss,
        reason = "ticks of minutes are far below 2^52"
    )]
    pub fn cpu_since(&self, before: &Self) -> BTreeMap<String, f64> {
        let ticks = |processes: &Self, name: &str| {
            let cost = processes.programs.get(name);
            cost.map_or(0, |cost| cost.cpu_ticks)
        };
        self.programs
            .keys()
            .map(|name| {
                let taken = ticks(self, name).saturating_sub(ticks(before, name));
                (name.clone(), taken as f64 / clock_ticks_per_second() as f64)
            })
            .collect()
    }

    /// Resident memory of each program in MiB.
    #[expect(clippy::cast_precision_loss, reason = "pages are far fewer than 2^52")]
    pub fn memory(&self) -> BTreeMap<String, f64> {
        self.programs
            .iter()
            .map(|(name, cost)| {
                let bytes = cost.resident_pages as f64 * page_size() as f64;
                (name.clone(), bytes / f64::from(1 << 20))
            })
            .collect()
    }
}

/// The program's file name.
fn program(process: &Path) -> String {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let path = String::from_utf8_lossy(first).into_owned();
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

/// Parent, CPU time (user and system) and resident pages of a line of proc(5) `stat`. The name of the program may
/// hold anything, so fields are counted from its last parenthesis.
fn parse(stat: &str) -> Option<(u32, Cost)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((
        fields.get(1)?.parse().ok()?,
        Cost {
            cpu_ticks: number(11)? + number(12)?,
            resident_pages: number(21)?,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_is_read_whatever_the_program_is_called() {
        let line =
            "7 (a) b (c)) S 3 7 7 0 -1 4194304 100 0 0 0 25 17 0 0 20 0 4 0 300 1000000 2048 1844";
        let (parent, cost) = parse(line).unwrap();
        assert_eq!((parent, cost.cpu_ticks, cost.resident_pages), (3, 42, 2048));
    }

    #[test]
    fn this_process_has_the_children_that_it_starts() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let seen = Processes::now().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // Between fork and exec it still bears our own name.
        let ours = std::env::current_exe().unwrap();
        let ours = ours.file_name().unwrap().to_string_lossy().into_owned();
        assert!(
            seen.programs.contains_key("sleep") || seen.programs.contains_key(&ours),
            "{seen:?}"
        );
    }
}
