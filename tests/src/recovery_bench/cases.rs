//! Which faults are measured: how the ranks go, and how many die with their GPU.

use std::{fmt, str::FromStr};

use anyhow::{Context, Error, Result, ensure};
use serde::{Serialize, Serializer};

use super::gang::{Behaviour, GRACE_SECONDS, RANKS};

/// How many ranks of the gang die with the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RanksDied {
    /// So many, less than all: that of the faulty GPU first. The others hang once they have lost a peer, as collective communication does.
    Count(u32),
    /// That of the faulty GPU, and the others since they have lost a peer.
    All,
}

/// One case of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Whether ranks that are told to end stay for the whole grace of their pods, until they are killed; else they end at once.
    pub takes_grace: bool,
    /// How many ranks die with the GPU.
    pub ranks_died: RanksDied,
}

impl Case {
    /// What the report says first: ranks that take their whole grace, none of which dies.
    pub const MAIN: Self = Self {
        takes_grace: true,
        ranks_died: RanksDied::Count(0),
    };

    /// All that are measured, the main one first.
    pub fn all() -> Vec<Self> {
        let died = [0, 1, 3].map(RanksDied::Count).into_iter();
        let died: Vec<RanksDied> = died.chain([RanksDied::All]).collect();
        let of = |takes_grace: bool| {
            died.iter().map(move |ranks_died| Self {
                takes_grace,
                ranks_died: *ranks_died,
            })
        };
        of(true).chain(of(false)).collect()
    }

    /// How much of their pods' grace ranks take that are told to end.
    pub fn grace_seconds(self) -> u32 {
        if self.takes_grace { GRACE_SECONDS } else { 0 }
    }

    /// How the ranks behave.
    pub(super) fn behaviour(self) -> Behaviour {
        Behaviour {
            takes_grace: self.takes_grace,
            dies_with_gpu: self.ranks_died != RanksDied::Count(0),
            hangs_when_lost: self.ranks_died != RanksDied::All,
        }
    }

    /// How many ranks die with the GPU, so that it can be seen whether they did.
    pub(super) fn dying(self) -> u32 {
        match self.ranks_died {
            RanksDied::Count(count) => count,
            RanksDied::All => RANKS,
        }
    }

    /// Whether somebody is left to be evicted. Where all have ended the attempt may be over without any eviction.
    pub(super) fn is_always_evicted(self) -> bool {
        self.ranks_died != RanksDied::All
    }

    /// The ranks that are told to die when the GPU of this one breaks: beside itself, which needs no telling, and others that follow it because they
    /// have lost a peer.
    pub(super) fn told_to_die(self, faulty: u32) -> Vec<u32> {
        match self.ranks_died {
            RanksDied::Count(count) => (1..count).map(|more| (faulty + more) % RANKS).collect(),
            RanksDied::All => Vec::new(),
        }
    }
}

impl fmt::Display for RanksDied {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(formatter, "{count}"),
            Self::All => formatter.write_str("all"),
        }
    }
}

impl FromStr for RanksDied {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "all" {
            return Ok(Self::All);
        }
        let count: u32 = text
            .parse()
            .with_context(|| format!("{text:?} is neither a number of ranks nor `all`"))?;
        ensure!(
            count < RANKS,
            "{count} of {RANKS} ranks is not less than all: say `all` for all of them"
        );
        Ok(Self::Count(count))
    }
}

/// A number, or `"all"`.
impl Serialize for RanksDied {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u32(*count),
            Self::All => serializer.serialize_str("all"),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.grace_seconds(), self.ranks_died)
    }
}

/// `GRACE:DIED`, as `30:0` or `0:all`.
impl FromStr for Case {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (grace, died) = text
            .split_once(':')
            .with_context(|| format!("{text:?} is not GRACE:DIED, as 30:0 or 0:all"))?;
        let takes_grace = match grace.parse::<u32>() {
            Ok(0) => false,
            Ok(GRACE_SECONDS) => true,
            _ => anyhow::bail!("the grace is 0 or {GRACE_SECONDS} seconds, not {grace:?}"),
        };
        Ok(Self {
            takes_grace,
            ranks_died: died.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_read_as_it_is_written_and_the_main_one_is_first() {
        let all = Case::all();
        assert_eq!(all.first(), Some(&Case::MAIN));
        let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "30:0", "30:1", "30:3", "30:all", "0:0", "0:1", "0:3", "0:all"
            ]
        );
        for (case, text) in all.iter().zip(&texts) {
            assert_eq!(text.parse::<Case>().unwrap(), *case);
        }
    }

    #[test]
    fn what_is_no_case_is_refused_in_words() {
        for (text, says) in [
            ("30", "GRACE:DIED"),
            ("5:0", "0 or 30 seconds"),
            ("30:-1", "neither a number"),
            ("30:6", "say `all`"),
        ] {
            let error = text.parse::<Case>().unwrap_err();
            assert!(format!("{error:#}").contains(says), "{text}: {error:#}");
        }
        assert!("30:5".parse::<Case>().is_ok());
    }

    #[test]
    fn as_many_ranks_die_as_the_case_says_that_of_the_faulty_gpu_among_them() {
        for (text, dies_with_gpu, hangs_when_lost, told, dying) in [
            ("30:0", false, true, vec![], 0),
            ("30:1", true, true, vec![], 1),
            ("30:3", true, true, vec![5, 0], 3),
            ("0:all", true, false, vec![], 6),
        ] {
            let case: Case = text.parse().unwrap();
            let behaviour = case.behaviour();
            assert_eq!(
                (behaviour.dies_with_gpu, behaviour.hangs_when_lost),
                (dies_with_gpu, hangs_when_lost),
                "{text}"
            );
            assert_eq!(case.told_to_die(4), told, "{text}");
            assert_eq!(case.dying(), dying, "{text}");
            assert_eq!(case.is_always_evicted(), dying < RANKS, "{text}");
        }
    }

    #[test]
    fn the_report_has_numbers_and_the_word_all() {
        let json = |died: RanksDied| serde_json::to_string(&died).unwrap();
        assert_eq!(json(RanksDied::Count(3)), "3");
        assert_eq!(json(RanksDied::All), "\"all\"");
    }
}
