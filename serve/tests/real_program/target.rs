//! A program that is asked honestly, and in time, while others attack it.

use std::{
    ops::Deref,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::process::setpriority_process;
use tokio::{
    runtime::Builder,
    sync::{Mutex, MutexGuard, oneshot},
};

use super::{client::JSON, program::Program};

/// The address that honest requests come from.
pub(crate) const HONEST: [u8; 4] = [127, 0, 0, 1];
/// Another one.
pub(crate) const STRANGER: [u8; 4] = [127, 0, 0, 66];
/// Between two bursts of an attack. It is about what an attack holds, not about who has more processors.
pub(crate) const PACE: Duration = Duration::from_millis(5);
/// Honest requests while all that an attack opens is held.
const HONEST_REQUESTS: u32 = 5;
/// Longest time for an attack, on processors that it leaves to everybody else.
const ATTACK_LIMIT: Duration = Duration::from_secs(240);
/// The kubelet gives up a probe after 2 s.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// One attack at a time: each takes hundreds of sockets of this process.
static ATTACKS: Mutex<()> = Mutex::const_new(());

/// What is asked honestly, and what the server grants.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// The binary of the server.
    pub(crate) binary: &'static str,
    /// Where it is asked.
    pub(crate) path: &'static str,
    /// Whether an answer of status 200 is the right one.
    pub(crate) is_right: fn(&str) -> bool,
    /// Longest time for an honest request, its handshake included: whoever asks gives up soon after.
    pub(crate) limit: Duration,
    /// How often it is tried, each time within the limit. More than once only where whoever asks does so, too: the limit is
    /// of this machine's clock, and others may work on it.
    pub(crate) tries: u32,
    /// Largest body that the server takes.
    pub(crate) body_limit_bytes: usize,
    /// What the chart grants the program.
    pub(crate) memory_mebibytes: u64,
}

/// A program under attack.
pub(crate) struct Target {
    program: Program,
    pub(crate) terms: Terms,
    /// The body of an honest request.
    body: String,
    _alone: MutexGuard<'static, ()>,
}

impl Deref for Target {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl Target {
    /// Starts it, when no other is under attack.
    pub(crate) async fn start(terms: Terms, body: String) -> Self {
        let alone = ATTACKS.lock().await;
        Self {
            program: Program::start(terms.binary).await,
            terms,
            body,
            _alone: alone,
        }
    }

    /// The head of a request with a body of this length.
    pub(crate) fn head(&self, length: usize) -> Vec<u8> {
        let path = self.terms.path;
        format!("POST {path} HTTP/1.1\r\nHost: server\r\nContent-Type: {JSON}\r\nContent-Length: {length}\r\n\r\n")
            .into_bytes()
    }

    /// An honest request, after which the connection stays open.
    pub(crate) fn request(&self) -> Vec<u8> {
        let mut request = self.head(self.body.len());
        request.extend_from_slice(self.body.as_bytes());
        request
    }

    /// Asks honestly, and fails unless an answer comes in time.
    pub(crate) async fn ask(&self) {
        let mut failures = Vec::new();
        for _ in 0..self.terms.tries {
            match self.ask_once().await {
                Ok(()) => return,
                Err(why) => failures.push(why),
            }
        }
        panic!("{failures:?}");
    }

    async fn ask_once(&self) -> Result<(), String> {
        let limit = self.terms.limit;
        let asked = self.post(self.terms.path, JSON, &self.body);
        let (status, answer) = tokio::time::timeout(limit, asked)
            .await
            .map_err(|_| format!("no answer within {limit:?}"))?;
        if status != 200 {
            return Err(format!("{status}: {answer}"));
        }
        assert!((self.terms.is_right)(&answer), "{answer}");
        Ok(())
    }

    /// Fails unless the probes are answered in time.
    pub(crate) async fn ask_probes(&self) {
        for path in ["/healthz", "/readyz", "/metrics"] {
            let asked = tokio::time::timeout(PROBE_LIMIT, self.probe(path)).await;
            let (status, answer) =
                asked.unwrap_or_else(|_| panic!("{path}: no answer within {PROBE_LIMIT:?}"));
            assert_eq!(status, 200, "{path}: {answer}");
        }
    }

    /// Asks for as long as an attack goes on, and some times more while what it opened is held. Returns that.
    pub(crate) async fn ask_during<T: Send + 'static>(
        &self,
        attack: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (opened, mut is_opened) = oneshot::channel();
        let (release, released) = oneshot::channel::<()>();
        let attack = elsewhere(async move {
            let held = attack.await;
            let _ = opened.send(());
            let _ = released.await;
            held
        });
        let began = Instant::now();
        while let Err(oneshot::error::TryRecvError::Empty) = is_opened.try_recv() {
            self.ask().await;
            assert!(began.elapsed() < ATTACK_LIMIT, "the attack does not end");
        }
        for _ in 0..HONEST_REQUESTS {
            self.ask().await;
        }
        self.ask_probes().await;
        let mebibytes = self.resident_bytes().await >> 20;
        assert!(mebibytes < self.terms.memory_mebibytes, "{mebibytes} MiB");
        drop(release);
        attack.join().unwrap()
    }
}

/// Runs an attack on a thread of its own that yields to everybody else. An attack comes from other machines: what it costs
/// to send is not taken from the server, nor from those who ask honestly.
fn elsewhere<T: Send + 'static>(attack: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(|| {
        // Of this thread alone, on Linux.
        setpriority_process(None, 19).unwrap();
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(attack)
    })
}
