//! Judging rules that anybody may bring, on a thread of its own.
//!
//! The leader's task hands out what is to be judged next, a few requests at a time, and goes on. Whose turn it is the index
//! decides, so at most [`REQUESTS_AT_ONCE`] requests wait here, whatever is brought.
//!
//! The thread is expected to fail: an evaluator that loops or breaks off takes it along. A request of which nothing is
//! heard for [`LONGEST_SILENCE`] is given up, the thread is left behind, and another takes its place; of those that were
//! left behind at most [`MOST_LEFT_BEHIND`] may be busy at a time. What is given up is reported to the gangs that use the
//! rule, and tried again later.

use std::{
    collections::VecDeque,
    sync::mpsc as thread_channel,
    thread::JoinHandle,
    time::{Duration, Instant as ThreadInstant},
};

use muster_cluster::judgement::{Judgement, JudgementRequest};
use tokio::{sync::mpsc, time::Instant};

/// Requests that are handed to the thread at a time.
pub const REQUESTS_AT_ONCE: usize = 8;
/// How long one request may take: a hundred times as long as it should.
const LONGEST_SILENCE: Duration = Duration::from_secs(2);
/// Most threads that may be busy with what was given up.
pub const MOST_LEFT_BEHIND: usize = 4;

/// How a request is judged; tests put something worse in the place of [`evaluate`].
pub type Evaluate = fn(&JudgementRequest) -> Judgement;

/// The thread, and what it is busy with.
#[derive(Debug)]
pub struct Judge {
    evaluate: Evaluate,
    worker: Option<Worker>,
    left_behind: Vec<JoinHandle<()>>,
    /// Handed over and not answered yet, in their order.
    under_way: VecDeque<JudgementRequest>,
    /// Since when the first of these is being judged.
    since: Instant,
}

#[derive(Debug)]
struct Worker {
    requests: thread_channel::Sender<JudgementRequest>,
    judgements: mpsc::UnboundedReceiver<Judgement>,
    thread: JoinHandle<()>,
}

/// Judges a request within its slice of time.
pub fn evaluate(request: &JudgementRequest) -> Judgement {
    let begun = ThreadInstant::now();
    request.judge(&|| begun.elapsed())
}

impl Judge {
    /// A judge whose thread is started when there is something to be judged.
    pub fn new(evaluate: Evaluate) -> Self {
        Self {
            evaluate,
            worker: None,
            left_behind: Vec::new(),
            under_way: VecDeque::new(),
            since: Instant::now(),
        }
    }

    /// How many more requests may be handed over.
    pub fn room(&self) -> usize {
        REQUESTS_AT_ONCE - self.under_way.len().min(REQUESTS_AT_ONCE)
    }

    /// Hands over what is to be judged.
    pub fn begin(&mut self, requests: Vec<JudgementRequest>) {
        if self.under_way.is_empty() {
            self.since = Instant::now();
        }
        for request in requests {
            if let Some(worker) = &self.worker {
                worker.hand_over(&request);
            }
            self.under_way.push_back(request);
        }
    }

    /// The next judgement. Never ends while nothing is under way. Cancel-safe.
    pub async fn next(&mut self) -> Judgement {
        loop {
            let Some(first) = self.under_way.front() else {
                return std::future::pending().await;
            };
            let Some(worker) = &mut self.worker else {
                self.left_behind.retain(|thread| !thread.is_finished());
                if self.left_behind.len() < MOST_LEFT_BEHIND {
                    self.start();
                } else {
                    tokio::time::sleep(LONGEST_SILENCE).await;
                }
                continue;
            };
            let late = tokio::time::sleep_until(self.since + LONGEST_SILENCE);
            let cause = tokio::select! {
                biased;
                judged = worker.judgements.recv() => match judged {
                    Some(judgement) => {
                        self.under_way.pop_front();
                        self.since = Instant::now();
                        return judgement;
                    }
                    None => "evaluating it ended the thread that did".to_owned(),
                },
                () = late => format!(
                    "evaluating it for one device or node took longer than {} s",
                    LONGEST_SILENCE.as_secs()
                ),
            };
            tracing::error!(cause, subjects = first.subjects(), "a rule is given up");
            let given_up = first.give_up(&cause);
            self.under_way.pop_front();
            self.left_behind
                .extend(self.worker.take().map(|worker| worker.thread));
            return given_up;
        }
    }

    /// A new thread goes on with what is under way.
    fn start(&mut self) {
        let worker = Worker::start(self.evaluate);
        for request in &self.under_way {
            worker.hand_over(request);
        }
        self.worker = Some(worker);
        self.since = Instant::now();
    }
}

impl Worker {
    fn start(evaluate: Evaluate) -> Self {
        let (requests, taken) = thread_channel::channel::<JudgementRequest>();
        let (answers, judgements) = mpsc::unbounded_channel();
        // Ends as soon as nobody hands over requests, or takes answers, any more.
        let thread = std::thread::spawn(move || {
            while let Ok(request) = taken.recv() {
                if answers.send(evaluate(&request)).is_err() {
                    return;
                }
            }
        });
        Self {
            requests,
            judgements,
            thread,
        }
    }

    fn hand_over(&self, request: &JudgementRequest) {
        // That the thread has ended is noticed by whoever waits for its answers.
        let _ = self.requests.send(request.clone());
    }
}
