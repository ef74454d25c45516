//! The program that gangs run in tests.
//!
//! A rank of a gang is useful only when all its peers are there. This program behaves like that: it
//! finds its peers, waits for *all* of them, steps in lockstep, and obeys SIGTERM. So a gang of it
//! that ends with success proves that the whole gang ran at the same time.
//!
//! Ranks can be told to fail, to hang once they have lost a peer, as collective communication does, to write checkpoints and
//! go on from the last one, to write one when they are told that they are to go, to end when a GPU of them fails, and not to listen to
//! SIGTERM.
//!
//! | exit code | meaning |
//! | --- | --- |
//! | 0 | all peers were met and all steps done |
//! | 1 | it was told to fail |
//! | 2 | the arguments or the environment are wrong |
//! | 3 | a GPU of it failed |
//! | 10 | not all peers were there before the deadline |
//! | 11 | a peer went away between two steps |
//! | 12 | a peer says something else about the gang than this rank |
//! | 143 | ended by SIGTERM (128 + 15) |

mod checkpoint;
mod exchange;
mod gpus;
mod notice;
mod report;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    checkpoint::Checkpoint, exchange::Failure, gpus::Gpus, notice::Notice, report::Report,
};

/// How often a rank that hangs looks whether it is told to fail.
const ORDER_POLL: Duration = Duration::from_millis(50);

/// Everything comes from the environment, as it does for a real training job.
#[derive(Debug, Parser)]
#[command(version, about)]
#[expect(clippy::struct_excessive_bools, reason = "each is a variable")]
struct Options {
    /// Directory that all ranks of the gang share: each writes its address there as `RANK.addr`.
    #[arg(long, env = "MUSTER_PEERS_DIR")]
    peers_dir: PathBuf,
    /// This rank, from 0. Empty counts as absent.
    #[arg(long, env = "RANK", default_value = "")]
    rank: String,
    /// Rank of an Indexed Job's pod, where RANK is absent.
    #[arg(long, env = "JOB_COMPLETION_INDEX", default_value = "")]
    job_completion_index: String,
    /// Number of ranks.
    #[arg(long, env = "WORLD_SIZE")]
    world_size: u32,
    /// The ranks meet in this part of the shared directory, whatever their numbers are. Empty counts as absent.
    #[arg(long, env = "RENDEZVOUS", default_value = "")]
    rendezvous: String,
    /// Address of the pod: the only one that is listened on.
    #[arg(long, env = "POD_IP")]
    pod_ip: IpAddr,
    /// UUIDs of the GPUs that were given to this rank, separated by commas.
    #[arg(long, env = "MUSTER_VISIBLE_GPUS", default_value = "")]
    gpus: String,
    /// The gang finishes early once this file exists: all ranks after the same step. Empty counts as absent.
    #[arg(long, env = "MUSTER_FINISH_FILE", default_value = "")]
    finish_file: String,
    /// Most steps; all ranks wait for one another after each.
    #[arg(long, env = "STEPS", default_value_t = 3)]
    steps: u32,
    /// Duration of a step.
    #[arg(long, env = "STEP_MILLIS", default_value_t = 50)]
    step_millis: u64,
    /// Waits to be ended, or to be told to fail, once a peer has gone away, instead of ending with 11.
    #[arg(long, env = "HANG_WHEN_LOST", action = clap::ArgAction::Set, default_value_t = false)]
    hang_when_lost: bool,
    /// Rank 0 notes in the shared directory how many steps are done, and a gang that starts goes on from there.
    #[arg(long, env = "CHECKPOINTS", action = clap::ArgAction::Set, default_value_t = false)]
    checkpoints: bool,
    /// Steps from one checkpoint to the next.
    #[arg(long, env = "CHECKPOINT_STEPS", default_value_t = 1)]
    checkpoint_steps: u32,
    /// File that says when the gang has to be gone: rank 0 then writes a checkpoint at once, and `saved-for` with the
    /// same text into the shared directory. Empty counts as absent.
    #[arg(long, env = "NOTICE_FILE", default_value = "")]
    notice_file: String,
    /// SIGTERM changes nothing.
    #[arg(long, env = "IGNORE_SIGTERM", action = clap::ArgAction::Set, default_value_t = false)]
    ignore_sigterm: bool,
    /// Ends with 3 once a GPU of it fails, as programs that use CUDA do, also while it waits for a peer. Whole GPUs only.
    #[arg(long, env = "DIES_WITH_GPU", action = clap::ArgAction::Set, default_value_t = false)]
    dies_with_gpu: bool,
    /// The file that stands for the machine's cards.
    #[arg(
        long,
        env = "MUSTER_NVML_MOCK_STATE",
        default_value = "/run/machine/nvml.json"
    )]
    cards: PathBuf,
    /// Longest time until all peers are met.
    #[arg(long, env = "DEADLINE_SECONDS", default_value_t = 60)]
    deadline_seconds: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse();
    let Some(rank) = rank(&options) else {
        eprintln!(
            "neither RANK nor JOB_COMPLETION_INDEX is a number below WORLD_SIZE={}",
            options.world_size
        );
        return ExitCode::from(2);
    };
    let mut report = Report::new(rank, options.world_size, &options.gpus);
    let outcome = match signal(SignalKind::terminate()) {
        Ok(mut terminated) => tokio::select! {
            outcome = run(&options, rank, &mut report) => outcome,
            () = told_to_end(&mut terminated, options.ignore_sigterm) => Err(Failure::Terminated),
            failure = gpu_failure(&options) => Err(failure),
        },
        Err(error) => Err(Failure::Io(error)),
    };
    report.finish(&options.peers_dir, outcome)
}

/// Waits until a GPU of it fails; for ever, if it does not die of that.
async fn gpu_failure(options: &Options) -> Failure {
    if !options.dies_with_gpu {
        return std::future::pending().await;
    }
    let own: Vec<String> = report::gpus(&options.gpus).map(str::to_owned).collect();
    match Gpus::of(&options.cards, &own) {
        Ok(gpus) => Failure::Gpu(gpus.fail().await),
        Err(error) => Failure::Io(error),
    }
}

/// Waits for SIGTERM; one that is ignored never comes.
async fn told_to_end(terminated: &mut Signal, is_ignored: bool) {
    loop {
        terminated.recv().await;
        if !is_ignored {
            return;
        }
    }
}

/// RANK, else the index of an Indexed Job.
fn rank(options: &Options) -> Option<u32> {
    let given = [&options.rank, &options.job_completion_index];
    let text = given.into_iter().find(|text| !text.is_empty())?;
    let rank: u32 = text.parse().ok()?;
    let is_known = !options.rendezvous.is_empty() || rank < options.world_size;
    is_known.then_some(rank)
}

async fn run(options: &Options, rank: u32, report: &mut Report) -> Result<(), Failure> {
    let deadline = Duration::from_secs(options.deadline_seconds);
    let gang = exchange::Gang {
        directory: options.peers_dir.join(&options.rendezvous),
        rank,
        size: options.world_size,
        rendezvous: !options.rendezvous.is_empty(),
    };
    // Before the meeting: nobody is past it, and writes the next checkpoint, until all have read this one.
    let mut saves = options.checkpoints.then(|| Saves::of(options));
    let first = saves.as_ref().map_or(0, |saves| saves.checkpoint.read());
    report.resumed_at = first;
    report.steps = first;
    let mut peers = gang.meet(options.pod_ip, deadline).await?;
    report.peers = peers.ranks();
    for step in first..options.steps {
        tokio::time::sleep(Duration::from_millis(options.step_millis)).await;
        let wants_to_finish =
            !options.finish_file.is_empty() && Path::new(&options.finish_file).exists();
        if take_order_to_fail(&options.peers_dir, rank) {
            return Err(Failure::Told);
        }
        let finished = match peers.barrier(step, wants_to_finish).await {
            Err(Failure::Lost(_)) if options.hang_when_lost => {
                wait_for_order_to_fail(&options.peers_dir, rank).await;
                return Err(Failure::Told);
            }
            done => done?,
        };
        report.steps = step + 1;
        if let Some(saves) = saves.as_mut().filter(|_| rank == 0) {
            saves.after(report.steps)?;
        }
        if finished {
            break;
        }
    }
    Ok(())
}

/// When rank 0 saves.
#[derive(Debug)]
struct Saves {
    checkpoint: Checkpoint,
    every_steps: u32,
    notice: Option<Notice>,
}

impl Saves {
    fn of(options: &Options) -> Self {
        let file = Path::new(&options.notice_file);
        let is_told = !options.notice_file.is_empty();
        Self {
            checkpoint: Checkpoint::of(&options.peers_dir),
            every_steps: options.checkpoint_steps.max(1),
            notice: is_told.then(|| Notice::of(file, &options.peers_dir)),
        }
    }

    /// So many steps are done.
    fn after(&mut self, steps: u32) -> Result<(), Failure> {
        let news = self.notice.as_ref().and_then(Notice::news);
        if news.is_some() || steps.is_multiple_of(self.every_steps) {
            self.checkpoint.write(steps)?;
        }
        if let (Some(notice), Some(said)) = (&mut self.notice, news) {
            notice.answer(said)?;
        }
        Ok(())
    }
}

/// A rank that hangs can still be told to fail, as one whose GPU breaks while it waits for another.
async fn wait_for_order_to_fail(peers_dir: &Path, rank: u32) {
    while !take_order_to_fail(peers_dir, rank) {
        tokio::time::sleep(ORDER_POLL).await;
    }
}

/// Whether `RANK.fail` is in the shared directory. It is removed: the next attempt's rank does not fail.
fn take_order_to_fail(peers_dir: &Path, rank: u32) -> bool {
    std::fs::remove_file(peers_dir.join(format!("{rank}.fail"))).is_ok()
}
