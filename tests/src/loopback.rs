//! A piece of the loopback network for each suite, so that any number of them run side by side.
//!
//! On Linux all of 127.0.0.0/8 is local without any configuration. A suite takes one 127.x.0.0/16:
//! its programs listen on 127.x.0.1, the pods of its n-th node get 127.x.(n+1).0/24.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, TcpListener},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result, bail};

/// The port that says "taken". A listening socket is the best lock there is here: it works between
/// users, leaves no file, and is gone with the process that held it.
const LOCK_PORT: u16 = 17_171;

/// Second numbers that suites may take; the low ones are left to what people configure by hand.
const RANGE: std::ops::RangeInclusive<u8> = 32..=250;

/// What [`free_ports`] has told in this process. The kernel chooses at random among some thousands, and what has been told need not be listened to
/// yet: kube-scheduler starts last, and kubelets seconds after their ports were found.
static TOLD: Mutex<BTreeSet<(Ipv4Addr, u16)>> = Mutex::new(BTreeSet::new());

/// A 127.x.0.0/16 that nobody else has while this value lives.
#[derive(Debug)]
pub struct Loopback {
    second: u8,
    _lock: TcpListener,
}

impl Loopback {
    /// Takes the first free piece.
    pub fn take() -> Result<Self> {
        for second in RANGE {
            let lock = Ipv4Addr::new(127, second, 255, 254);
            if let Ok(lock) = TcpListener::bind((lock, LOCK_PORT)) {
                return Ok(Self {
                    second,
                    _lock: lock,
                });
            }
        }
        bail!(
            "all of 127.{}.0.0/16 to 127.{}.0.0/16 are taken (port {LOCK_PORT} of 127.x.255.254 is the lock): wait for other test runs to end",
            RANGE.start(),
            RANGE.end()
        )
    }

    /// The address that the suite's programs listen on.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(127, self.second, 0, 1)
    }

    /// A further address for a program that needs one of its own: 127.x.0.N.
    pub fn host(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, self.second, 0, number)
    }

    /// The first three numbers of the pod addresses of a node, numbered from 0.
    pub fn pod_prefix(&self, node: u8) -> Result<String> {
        let third = node.checked_add(1).filter(|third| *third < 255);
        let third = third.context("a suite has at most 254 nodes with pods")?;
        Ok(format!("127.{}.{third}", self.second))
    }

    /// Ports of [`Self::address`] that are free now: see [`free_ports`].
    pub fn free_ports<const N: usize>(&self) -> Result<[u16; N]> {
        free_ports(self.address())
    }
}

/// Ports of an address that are free now. No two that this process finds are the same, however late they are used. Somebody else may take one before
/// that only by listening on all addresses of the machine.
pub fn free_ports<const N: usize>(address: Ipv4Addr) -> Result<[u16; N]> {
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    // Held to the end: a port that was told before is not found again.
    let mut listeners = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        *port = loop {
            let listener = TcpListener::bind((address, 0))
                .with_context(|| format!("cannot listen on {address}"))?;
            let found = listener.local_addr()?.port();
            listeners.push(listener);
            if told.insert((address, found)) {
                break found;
            }
        };
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_suites_never_share_an_address() {
        let first = Loopback::take().unwrap();
        let second = Loopback::take().unwrap();
        assert_ne!(first.address(), second.address());
    }

    #[test]
    fn ports_that_are_found_together_differ() {
        let loopback = Loopback::take().unwrap();
        let mut ports = loopback.free_ports::<8>().unwrap();
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn ports_that_are_found_one_after_the_other_differ_though_nobody_listens_to_them_yet() {
        let loopback = Loopback::take().unwrap();
        // So many of the kernel's choices are never all different.
        let found: Vec<u16> = (0..500)
            .flat_map(|_| loopback.free_ports::<2>().unwrap())
            .collect();
        let different: BTreeSet<u16> = found.iter().copied().collect();
        assert_eq!(different.len(), found.len());
    }

    #[test]
    fn a_node_too_many_is_refused() {
        let loopback = Loopback::take().unwrap();
        assert!(loopback.pod_prefix(253).is_ok());
        assert!(loopback.pod_prefix(254).is_err());
    }
}
