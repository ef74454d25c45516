//! Jobs of Microsoft's Philly cluster (USENIX ATC'19) by virtual cluster, and what each virtual cluster is guaranteed.

use anyhow::{Context, Result, ensure};
use jiff::civil::DateTime;

use crate::{replay::Job, traces};

const JOBS: &str = "philly/philly.csv";
const CLUSTERS: &str = "philly/philly_vc.csv";
const SOURCE_OF_JOBS: &str = "github.com/pkusys/ElasticFlow @04a0109a : pollux/pollux_simulator/traces/philly.csv (Apache-2.0)";
const SOURCE_OF_CLUSTERS: &str = "github.com/S-Lab-System-Group/HeliosArtifact @bdaae109 : framework/QSSF Service/data/philly_vc.csv (MIT)";

/// The window: jobs that were submitted in these 61 days.
const FIRST: DateTime = jiff::civil::date(2017, 10, 1).at(0, 0, 0, 0);
const LAST: DateTime = jiff::civil::date(2017, 11, 30).at(23, 59, 0, 0);
/// For how long use is measured, from the beginning of the window.
pub(crate) const WINDOW_SECONDS: u64 = 61 * 24 * 60 * 60;
/// GPUs of a node.
const GPUS_PER_NODE: u64 = 8;

/// A virtual cluster, which is a Team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VirtualCluster {
    pub(crate) name: String,
    pub(crate) nodes: u64,
}

/// What was read.
#[derive(Debug)]
pub(crate) struct Trace {
    /// Ticks are seconds, sizes GPUs; in the order of submission, then duration, GPUs and virtual cluster.
    pub(crate) jobs: Vec<Job>,
    /// In the order of the file.
    pub(crate) clusters: Vec<VirtualCluster>,
    /// How many jobs each virtual cluster submitted before the window, in a month: what is known of them when it begins.
    pub(crate) jobs_before: Vec<u64>,
    /// File and SHA-256.
    pub(crate) checksums: Vec<(String, String)>,
}

/// Reads the jobs of the window.
pub(crate) fn read() -> Result<Trace> {
    let clusters = traces::read(CLUSTERS, SOURCE_OF_CLUSTERS)?;
    let jobs = traces::read(JOBS, SOURCE_OF_JOBS)?;
    let checksums = vec![
        (JOBS.to_owned(), jobs.sha256),
        (CLUSTERS.to_owned(), clusters.sha256),
    ];
    let clusters = parse_clusters(&clusters.text).context(CLUSTERS)?;
    let (jobs, jobs_before) = parse_jobs(&jobs.text, &clusters).context(JOBS)?;
    Ok(Trace {
        jobs,
        clusters,
        jobs_before,
        checksums,
    })
}

/// The lines below a header, with their numbers; blank ones are left out.
fn lines<'a>(text: &'a str, header: &str) -> Result<impl Iterator<Item = (usize, &'a str)>> {
    let mut lines = text.lines().map(str::trim).zip(1..);
    let found = lines.next().map(|(line, _)| line);
    ensure!(
        found == Some(header),
        "the header is {found:?}, not {header:?}"
    );
    let lines = lines.filter(|(line, _)| !line.is_empty());
    Ok(lines.map(|(line, number)| (number, line)))
}

fn parse_clusters(text: &str) -> Result<Vec<VirtualCluster>> {
    let clusters = lines(text, "vc,node num")?.map(|(number, line)| {
        parse_cluster(line).with_context(|| format!("line {number}: {line:?}"))
    });
    clusters.collect()
}

fn parse_cluster(line: &str) -> Result<VirtualCluster> {
    let (name, nodes) = line.split_once(',').context("two columns are needed")?;
    Ok(VirtualCluster {
        name: name.to_owned(),
        nodes: nodes.parse()?,
    })
}

/// The jobs of the window, and how many each virtual cluster submitted before it.
fn parse_jobs(text: &str, clusters: &[VirtualCluster]) -> Result<(Vec<Job>, Vec<u64>)> {
    let mut jobs: Vec<(Job, &str)> = Vec::new();
    let mut before = vec![0; clusters.len()];
    for (number, line) in lines(text, "timestamp,duration,num_gpus,gpu_time,cluster")? {
        let line = parse_job(line, clusters).with_context(|| format!("line {number}: {line:?}"))?;
        match line {
            Submitted::InWindow(job, cluster) => jobs.push((job, cluster)),
            Submitted::Before(cluster) => {
                if let Some(before) = before.get_mut(cluster) {
                    *before += 1;
                }
            }
            Submitted::Elsewhere => {}
        }
    }
    jobs.sort_by_key(|(job, cluster)| (job.arrives_at, job.runs_for, job.size, *cluster));
    Ok((jobs.into_iter().map(|(job, _)| job).collect(), before))
}

/// What a line says.
enum Submitted<'a> {
    /// In the window, with the name of the virtual cluster.
    InWindow(Job, &'a str),
    /// Before the window, in this virtual cluster.
    Before(usize),
    /// After the window, or in a virtual cluster whose size nobody knows.
    Elsewhere,
}

fn parse_job<'a>(line: &'a str, clusters: &[VirtualCluster]) -> Result<Submitted<'a>> {
    let fields: Vec<&str> = line.split(',').collect();
    let [submitted, duration, gpus, _, cluster] = fields.as_slice() else {
        anyhow::bail!("five columns are needed");
    };
    let submitted: DateTime = submitted.replace(' ', "T").parse()?;
    let team = clusters.iter().position(|known| known.name == *cluster);
    let Some(team) = team.filter(|_| submitted <= LAST) else {
        return Ok(Submitted::Elsewhere);
    };
    if submitted < FIRST {
        return Ok(Submitted::Before(team));
    }
    let since = submitted.duration_since(FIRST).as_secs();
    // Whole seconds, written with a point.
    let (seconds, fraction) = duration.split_once('.').unwrap_or((duration, "0"));
    ensure!(
        fraction.bytes().all(|digit| digit == b'0'),
        "the duration is no number of whole seconds"
    );
    let job = Job {
        arrives_at: u64::try_from(since)?,
        team,
        class: 0,
        priority: 0,
        size: gpus.parse()?,
        runs_for: seconds.parse::<u64>()?.max(1),
    };
    Ok(Submitted::InWindow(job, cluster))
}

/// What each virtual cluster is guaranteed of so many GPUs, `reserved_percent` of them left out: in proportion to its nodes,
/// rounded to whole nodes (half to even), at least one, together not more than there is.
pub(crate) fn quotas(clusters: &[VirtualCluster], gpus: u64, reserved_percent: u64) -> Vec<u64> {
    let nodes: u64 = clusters.iter().map(|cluster| cluster.nodes).sum();
    // In hundredths of a GPU, so that nothing is rounded before its time.
    let shared = gpus * (100 - reserved_percent);
    let quota = |cluster: &VirtualCluster| {
        let (share, unit) = (shared * cluster.nodes, nodes * GPUS_PER_NODE * 100);
        GPUS_PER_NODE * round_half_to_even(share, unit).max(1)
    };
    let mut quotas: Vec<u64> = clusters.iter().map(quota).collect();
    while quotas.iter().sum::<u64>() * 100 > shared {
        // The first of the largest.
        let largest = quotas.iter().copied().max().unwrap_or_default();
        let Some(quota) = quotas.iter_mut().find(|quota| **quota == largest) else {
            break;
        };
        *quota -= GPUS_PER_NODE;
    }
    quotas
}

fn round_half_to_even(number: u64, divisor: u64) -> u64 {
    let (whole, rest) = (number / divisor, number % divisor);
    match (rest * 2).cmp(&divisor) {
        std::cmp::Ordering::Less => whole,
        std::cmp::Ordering::Greater => whole + 1,
        std::cmp::Ordering::Equal => whole + whole % 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clusters() -> Vec<VirtualCluster> {
        let nodes = [64, 32, 16, 64, 64, 16, 32, 16, 8, 8, 32];
        let named = nodes.into_iter().zip(b'a'..);
        named
            .map(|(nodes, name)| VirtualCluster {
                name: char::from(name).to_string(),
                nodes,
            })
            .collect()
    }

    #[test]
    fn quotas_are_those_that_were_published_with_the_reference() {
        for (gpus, reserved, wanted) in [
            (448, 0, [80, 40, 24, 80, 80, 24, 40, 24, 8, 8, 40]),
            (512, 10, [80, 40, 24, 80, 80, 24, 40, 24, 8, 8, 40]),
            (512, 0, [88, 48, 24, 96, 96, 24, 48, 24, 8, 8, 48]),
            (640, 0, [112, 56, 32, 112, 120, 32, 56, 32, 16, 16, 56]),
            (1024, 0, [176, 96, 48, 184, 184, 48, 96, 48, 24, 24, 96]),
        ] {
            assert_eq!(
                quotas(&clusters(), gpus, reserved),
                wanted,
                "{gpus} {reserved}"
            );
        }
    }

    #[test]
    fn jobs_of_the_window_are_read_in_the_order_of_their_submission() -> Result<()> {
        let text = "timestamp,duration,num_gpus,gpu_time,cluster\n\
            2017-10-01 00:00:10,66.0,2,132.0,b\n\
            2017-09-30 23:59:59,66.0,1,66.0,a\n\
            2017-10-01 00:00:00,0.0,1,0.0,a\n\
            2017-11-30 23:59:01,5.0,1,5.0,a\n\
            2017-10-02 00:00:00,5.0,1,5.0,unknown\n\
            2017-11-30 23:59:00,5.0,4,20.0,k\n\n";
        let (jobs, before) = parse_jobs(text, &clusters())?;
        assert_eq!(before, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let found = jobs
            .iter()
            .map(|job| (job.arrives_at, job.team, job.size, job.runs_for));
        assert_eq!(
            found.collect::<Vec<_>>(),
            [
                (0, 0, 1, 1),
                (10, 1, 2, 66),
                (WINDOW_SECONDS - 60, 10, 4, 5)
            ]
        );
        Ok(())
    }

    #[test]
    fn a_line_that_is_not_understood_is_named() {
        for (line, wanted) in [
            ("2017-10-01 00:00:10,66.5,2,132.0,b", "whole seconds"),
            ("2017-10-01 00:00:10,66.0,2,b", "five columns"),
            ("yesterday,66.0,2,132.0,b", "line 2"),
        ] {
            let text = format!("timestamp,duration,num_gpus,gpu_time,cluster\n{line}\n");
            let Err(error) = parse_jobs(&text, &clusters()) else {
                unreachable!("{line} was read");
            };
            assert!(format!("{error:#}").contains(wanted), "{error:#}");
        }
        assert!(parse_jobs("a,b\n", &clusters()).is_err());
    }
}
