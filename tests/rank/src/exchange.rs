//! How ranks find one another and keep step.
//!
//! Each rank listens on its pod address and writes `RANK.addr` into the shared directory. Of each
//! pair the higher rank connects to the lower; both say who they are, one JSON line each. The address
//! is read again before every try: a rank that is started anew has a new one.
//!
//! A barrier is one line from every rank to every other, `STEP` or `STEP finish`. A connection that ends
//! is a lost peer.
//!
//! Ranks are numbered from 0 without a gap, or they **rendezvous**: the gang consists of those whose addresses are in the
//! directory, as many as its size says. So it is for an attempt of a gang that starts with what is left of its indexes.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

/// Pause between two tries to reach a peer that is not there yet.
const RETRY: Duration = Duration::from_millis(50);

/// Longest time of one greeting: a peer that accepts and says nothing must not hold up the others.
const GREETING_LIMIT: Duration = Duration::from_secs(5);

/// Why a rank did not finish.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Not all peers were there before the deadline; these were missing.
    Deadline(Vec<u32>),
    /// A peer went away.
    Lost(u32),
    /// A peer says something else about the gang.
    Disagreement(String),
    /// It was told to fail.
    Told,
    /// This befell a GPU of it.
    Gpu(String),
    /// SIGTERM.
    Terminated,
    /// This rank cannot listen, or cannot write its address.
    Io(io::Error),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Told => 1,
            Self::Io(_) => 2,
            Self::Gpu(_) => 3,
            Self::Deadline(_) => 10,
            Self::Lost(_) => 11,
            Self::Disagreement(_) => 12,
            Self::Terminated => 143,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline(missing) => write!(formatter, "deadline passed; not met: {missing:?}"),
            Self::Lost(rank) => write!(formatter, "lost rank {rank}"),
            Self::Disagreement(what) => write!(formatter, "disagreement: {what}"),
            Self::Told => formatter.write_str("told to fail"),
            Self::Gpu(what) => formatter.write_str(what),
            Self::Terminated => formatter.write_str("terminated"),
            Self::Io(error) => write!(formatter, "{error}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Which gang, and which rank of it.
#[derive(Clone, Debug)]
pub(crate) struct Gang {
    pub(crate) directory: PathBuf,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Whether the ranks are those that are found in the directory, whatever their numbers.
    pub(crate) rendezvous: bool,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Greeting {
    rank: u32,
    size: u32,
}

/// The connections to all peers.
#[derive(Debug)]
pub(crate) struct Peers {
    connections: BTreeMap<u32, BufReader<TcpStream>>,
}

impl Gang {
    /// Waits until every peer has been met.
    pub(crate) async fn meet(&self, address: IpAddr, deadline: Duration) -> Result<Peers, Failure> {
        let listener = TcpListener::bind(SocketAddr::new(address, 0)).await?;
        self.publish(listener.local_addr()?)?;
        let mut connections = BTreeMap::new();
        if let Ok(met) = timeout(deadline, self.meet_all(&listener, &mut connections)).await {
            return met.map(|()| Peers { connections });
        }
        let is_missing = |rank: &u32| *rank != self.rank && !connections.contains_key(rank);
        let known = if self.rendezvous {
            self.published()?
        } else {
            (0..self.size).collect()
        };
        Err(Failure::Deadline(
            known.into_iter().filter(is_missing).collect(),
        ))
    }

    /// The gang's ranks: waits until so many are known.
    async fn ranks(&self) -> Result<BTreeSet<u32>, Failure> {
        if !self.rendezvous {
            return Ok((0..self.size).collect());
        }
        loop {
            let ranks = self.published()?;
            match ranks.len().cmp(&(self.size as usize)) {
                Ordering::Equal => return Ok(ranks),
                Ordering::Less => sleep(RETRY).await,
                Ordering::Greater => {
                    let size = self.size;
                    let more = format!("the gang has {size} ranks, here are {ranks:?}");
                    return Err(Failure::Disagreement(more));
                }
            }
        }
    }

    /// The ranks whose addresses are in the directory.
    fn published(&self) -> io::Result<BTreeSet<u32>> {
        let mut ranks = BTreeSet::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let rank = name.strip_suffix(".addr");
            ranks.extend(rank.and_then(|rank| rank.parse::<u32>().ok()));
        }
        Ok(ranks)
    }

    /// By rename, so that nobody reads half an address. Programs that know nothing of each other may have one rank and one directory: each
    /// renames a file of its own.
    fn publish(&self, address: SocketAddr) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let partial = self
            .directory
            .join(format!("{}.addr.{address}.new", self.rank));
        fs::write(&partial, address.to_string())?;
        fs::rename(partial, self.directory.join(format!("{}.addr", self.rank)))
    }

    async fn meet_all(
        &self,
        listener: &TcpListener,
        connections: &mut BTreeMap<u32, BufReader<TcpStream>>,
    ) -> Result<(), Failure> {
        let ranks = self.ranks().await?;
        for lower in ranks.range(..self.rank).copied() {
            let connection = self.reach(lower).await?;
            connections.insert(lower, connection);
        }
        while connections.len() + 1 < self.size as usize {
            let (stream, _) = listener.accept().await?;
            // Whoever does not greet in time is no peer; a real one tries again.
            if let Ok(Ok((peer, connection))) = timeout(GREETING_LIMIT, self.greet(stream)).await {
                self.agree(peer)?;
                connections.insert(peer.rank, connection);
            }
        }
        Ok(())
    }

    /// Connects to a lower rank, as often as it takes.
    async fn reach(&self, rank: u32) -> Result<BufReader<TcpStream>, Failure> {
        let file = self.directory.join(format!("{rank}.addr"));
        loop {
            let address = fs::read_to_string(&file).ok();
            if let Some(address) = address.and_then(|text| text.parse::<SocketAddr>().ok())
                && let Ok(stream) = TcpStream::connect(address).await
                && let Ok(Ok((peer, connection))) =
                    timeout(GREETING_LIMIT, self.greet(stream)).await
            {
                self.agree(peer)?;
                if peer.rank == rank {
                    return Ok(connection);
                }
            }
            sleep(RETRY).await;
        }
    }

    async fn greet(&self, stream: TcpStream) -> io::Result<(Greeting, BufReader<TcpStream>)> {
        let mut connection = BufReader::new(stream);
        let own = Greeting {
            rank: self.rank,
            size: self.size,
        };
        let mut line = serde_json::to_string(&own)?;
        line.push('\n');
        connection.get_mut().write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        connection.read_line(&mut answer).await?;
        Ok((serde_json::from_str(&answer)?, connection))
    }

    fn agree(&self, peer: Greeting) -> Result<(), Failure> {
        let is_known = self.rendezvous || peer.rank < self.size;
        if peer.size == self.size && is_known && peer.rank != self.rank {
            return Ok(());
        }
        Err(Failure::Disagreement(format!(
            "this is rank {} of {}, a peer says it is rank {} of {}",
            self.rank, self.size, peer.rank, peer.size
        )))
    }
}

impl Peers {
    /// Their ranks, ascending.
    pub(crate) fn ranks(&self) -> Vec<u32> {
        self.connections.keys().copied().collect()
    }

    /// Waits until every peer has done this step. True if any rank, this one or another, wants to finish
    /// after it: then all of them know, and nobody waits for one that is gone.
    pub(crate) async fn barrier(
        &mut self,
        step: u32,
        wants_to_finish: bool,
    ) -> Result<bool, Failure> {
        let finish = if wants_to_finish { " finish" } else { "" };
        let line = format!("{step}{finish}\n");
        for (rank, connection) in &mut self.connections {
            let written = connection.get_mut().write_all(line.as_bytes()).await;
            written.map_err(|_| Failure::Lost(*rank))?;
        }
        let mut finished = wants_to_finish;
        for (rank, connection) in &mut self.connections {
            let mut answer = String::new();
            let read = connection.read_line(&mut answer).await;
            if !matches!(read, Ok(bytes) if bytes > 0) {
                return Err(Failure::Lost(*rank));
            }
            let answer = answer.trim();
            let (at, flag) = answer.split_once(' ').unwrap_or((answer, ""));
            if at != step.to_string() {
                return Err(Failure::Disagreement(format!(
                    "rank {rank} is at step {at}, this one at step {step}"
                )));
            }
            finished |= flag == "finish";
        }
        Ok(finished)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn gang(directory: &std::path::Path, rank: u32, size: u32) -> Gang {
        Gang {
            directory: directory.to_owned(),
            rank,
            size,
            rendezvous: false,
        }
    }

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn four_ranks_meet_whatever_order_they_start_in() {
        let directory = tempfile::tempdir().unwrap();
        let mut ranks = Vec::new();
        for rank in [2, 0, 3, 1] {
            let gang = gang(directory.path(), rank, 4);
            ranks.push(tokio::spawn(async move {
                let mut peers = gang.meet(LOCAL, Duration::from_secs(20)).await?;
                for step in 0..5 {
                    peers.barrier(step, false).await?;
                }
                Ok::<_, Failure>(peers.ranks())
            }));
            tokio::task::yield_now().await;
        }
        for (rank, task) in [2_u32, 0, 3, 1].into_iter().zip(ranks) {
            let expected: Vec<u32> = (0..4).filter(|peer| *peer != rank).collect();
            assert_eq!(task.await.unwrap().unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn a_rank_that_stays_alone_names_who_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        let alone = gang(directory.path(), 1, 3);
        let failure = alone
            .meet(LOCAL, Duration::from_millis(200))
            .await
            .unwrap_err();
        assert_eq!(failure.exit_code(), 10);
        assert!(failure.to_string().contains("[0, 2]"), "{failure}");
    }

    #[tokio::test]
    async fn ranks_of_gangs_of_different_size_disagree() {
        let directory = tempfile::tempdir().unwrap();
        let limit = Duration::from_secs(20);
        let small = gang(directory.path(), 0, 2);
        let large = gang(directory.path(), 1, 3);
        let (first, second) = tokio::join!(small.meet(LOCAL, limit), large.meet(LOCAL, limit));
        assert!(matches!(first, Err(Failure::Disagreement(_))));
        assert!(matches!(second, Err(Failure::Disagreement(_))));
    }

    #[tokio::test]
    async fn ranks_that_rendezvous_meet_whatever_their_numbers_are() {
        let directory = tempfile::tempdir().unwrap();
        let met = |rank| {
            let mut gang = gang(directory.path(), rank, 3);
            gang.rendezvous = true;
            async move { gang.meet(LOCAL, Duration::from_secs(20)).await.unwrap() }
        };
        let (seven, four, five) = tokio::join!(met(7), met(4), met(5));
        assert_eq!(four.ranks(), [5, 7]);
        assert_eq!(five.ranks(), [4, 7]);
        assert_eq!(seven.ranks(), [4, 5]);
    }

    #[tokio::test]
    async fn a_rank_more_than_the_gang_has_is_a_disagreement() {
        let directory = tempfile::tempdir().unwrap();
        for rank in [1, 2] {
            std::fs::write(directory.path().join(format!("{rank}.addr")), "").unwrap();
        }
        let mut gang = gang(directory.path(), 5, 2);
        gang.rendezvous = true;
        let failure = gang.meet(LOCAL, Duration::from_secs(20)).await.unwrap_err();
        assert!(matches!(failure, Failure::Disagreement(_)), "{failure}");
        assert!(failure.to_string().contains("{1, 2, 5}"), "{failure}");
    }

    #[tokio::test]
    async fn a_peer_that_goes_away_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let limit = Duration::from_secs(20);
        let (zero, one) = (gang(directory.path(), 0, 2), gang(directory.path(), 1, 2));
        let (first, second) = tokio::join!(zero.meet(LOCAL, limit), one.meet(LOCAL, limit));
        drop(second.unwrap());
        let failure = first.unwrap().barrier(0, false).await.unwrap_err();
        assert!(matches!(failure, Failure::Lost(1)));
    }

    #[tokio::test]
    async fn all_ranks_finish_after_the_same_step() {
        let directory = tempfile::tempdir().unwrap();
        let limit = Duration::from_secs(20);
        let (zero, one) = (gang(directory.path(), 0, 2), gang(directory.path(), 1, 2));
        let (first, second) = tokio::join!(zero.meet(LOCAL, limit), one.meet(LOCAL, limit));
        let (mut first, mut second) = (first.unwrap(), second.unwrap());
        for (step, wants) in [(0, false), (1, true)] {
            let (one, other) =
                tokio::join!(first.barrier(step, wants), second.barrier(step, false));
            assert_eq!((one.unwrap(), other.unwrap()), (wants, wants));
        }
    }
}
