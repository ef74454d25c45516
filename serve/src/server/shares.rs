//! What the peers of a server share, and who gives way when it is used up.
//!
//! A bound that turns newcomers away is a weapon: whoever fills it first keeps everybody else out. Here a newcomer is
//! let in and somebody else gives way. That is the peer that holds most, and of what it holds the part that has
//! deserved least: what has never been served goes before what has, the heavy before the light, the old before the
//! new. What is being worked on never gives way. So a client that opens, sends and waits pushes out its own kind only,
//! also where attacker and API server share an address (behind a proxy or a masquerading Service), because an honest
//! request is served long before it has become the oldest, and is lighter than what is hoarded.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// Whom a share is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    /// This process, which asks itself whether it still serves. Nobody else can use up its part.
    Itself,
    /// An IPv4 address, or an IPv6 network of 64 bits (one host may use all addresses of its own).
    Address(IpAddr),
}

impl Peer {
    /// The peer behind a remote address.
    pub(crate) fn of(address: SocketAddr) -> Self {
        Self::Address(match address.ip().to_canonical() {
            IpAddr::V6(address) => {
                let network = u128::from(address) & !u128::from(u64::MAX);
                IpAddr::V6(Ipv6Addr::from(network))
            }
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

/// A bounded amount of something: connections, or bytes.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    table: Arc<Mutex<Table>>,
}

/// There is no room, and nobody who could give way for this one; or it has given way itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

#[derive(Debug)]
struct Table {
    /// Largest weight of all together, and of one peer.
    most: usize,
    most_of_peer: usize,
    total: usize,
    of_peer: HashMap<Peer, usize>,
    entries: BTreeMap<u64, Entry>,
    /// Numbers entries as they come and as they are served.
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    peer: Peer,
    weight: usize,
    /// When it was last served; 0: never.
    served: u64,
    /// Who is working on it now.
    users: usize,
    gives_way: CancellationToken,
}

/// One part of what is shared; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Share {
    table: Arc<Mutex<Table>>,
    number: u64,
    gives_way: CancellationToken,
}

/// While this exists, the share does not give way; afterwards it has been served.
#[derive(Debug)]
pub(crate) struct InUse {
    table: Arc<Mutex<Table>>,
    number: u64,
}

impl Shares {
    /// At most `most` in all, of which one peer may have half.
    pub(crate) fn new(most: usize) -> Self {
        let table = Table {
            most,
            most_of_peer: most.div_ceil(2),
            total: 0,
            of_peer: HashMap::new(),
            entries: BTreeMap::new(),
            clock: 0,
        };
        Self {
            table: Arc::new(Mutex::new(table)),
        }
    }

    /// A share of no weight yet.
    pub(crate) fn join(&self, peer: Peer) -> Share {
        let mut table = lock(&self.table);
        table.clock += 1;
        let number = table.clock;
        let gives_way = CancellationToken::new();
        let entry = Entry {
            peer,
            weight: 0,
            served: 0,
            users: 0,
            gives_way: gives_way.clone(),
        };
        table.entries.insert(number, entry);
        Share {
            table: Arc::clone(&self.table),
            number,
            gives_way,
        }
    }
}

impl Share {
    /// Takes more; others may have to give way for it.
    pub(crate) fn grow(&self, more: usize) -> Result<(), NoRoom> {
        lock(&self.table).grow(self.number, more)
    }

    /// Returns once the share has had to give way: whoever holds it must let go of what it stands for.
    pub(crate) async fn gives_way(&self) {
        self.gives_way.cancelled().await;
    }

    /// The token behind [`Share::gives_way`].
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.gives_way
    }

    /// Marks the share as being worked on. Fails if it has given way already.
    pub(crate) fn in_use(&self) -> Result<InUse, NoRoom> {
        let mut table = lock(&self.table);
        let entry = table.entries.get_mut(&self.number).ok_or(NoRoom)?;
        entry.users += 1;
        Ok(InUse {
            table: Arc::clone(&self.table),
            number: self.number,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        lock(&self.table).remove(self.number);
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut table = lock(&self.table);
        table.clock += 1;
        let now = table.clock;
        if let Some(entry) = table.entries.get_mut(&self.number) {
            entry.users -= 1;
            entry.served = now;
        }
    }
}

impl Table {
    fn grow(&mut self, number: u64, more: usize) -> Result<(), NoRoom> {
        let (peer, wanted) = {
            let entry = self.entries.get(&number).ok_or(NoRoom)?;
            (entry.peer, entry.weight + more)
        };
        loop {
            let crowded = if self.weight_of(peer) + more > self.most_of_peer {
                Some(peer)
            } else if self.total + more > self.most {
                None
            } else {
                break;
            };
            let victim = self.least_deserving(number, crowded).ok_or(NoRoom)?;
            if wanted > self.entries.get(&victim).map_or(0, |entry| entry.weight) {
                return Err(NoRoom);
            }
            if let Some(evicted) = self.remove(victim) {
                evicted.gives_way.cancel();
            }
        }
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.weight = wanted;
            self.total += more;
            *self.of_peer.entry(peer).or_default() += more;
        }
        Ok(())
    }

    fn weight_of(&self, peer: Peer) -> usize {
        self.of_peer.get(&peer).copied().unwrap_or_default()
    }

    /// Who gives way for `newcomer`: of this peer, or of the peer that holds most.
    fn least_deserving(&self, newcomer: u64, of: Option<Peer>) -> Option<u64> {
        self.entries
            .iter()
            .filter(|(number, entry)| {
                **number != newcomer
                    && entry.users == 0
                    && entry.weight > 0
                    && of.is_none_or(|peer| peer == entry.peer)
            })
            .min_by_key(|(number, entry)| {
                (
                    Reverse(self.weight_of(entry.peer)),
                    entry.served,
                    Reverse(entry.weight),
                    **number,
                )
            })
            .map(|(number, _)| *number)
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.total -= entry.weight;
        if let Some(weight) = self.of_peer.get_mut(&entry.peer) {
            *weight -= entry.weight;
            if *weight == 0 {
                self.of_peer.remove(&entry.peer);
            }
        }
        Some(entry)
    }
}

/// Nothing that is done under the lock panics, so a poisoned table is as good as any.
fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Peer {
        Peer::of(SocketAddr::from(([10, 0, 0, last], 1)))
    }

    fn taken(shares: &Shares, peer: Peer, weight: usize) -> Result<Share, NoRoom> {
        let share = shares.join(peer);
        share.grow(weight).map(|()| share)
    }

    fn has_given_way(share: &Share) -> bool {
        share.token().is_cancelled()
    }

    #[test]
    fn one_peer_has_half_and_its_newcomer_pushes_out_its_oldest_that_was_never_served() {
        let shares = Shares::new(6);
        let served = taken(&shares, peer(1), 1).unwrap();
        drop(served.in_use().unwrap());
        let oldest = taken(&shares, peer(1), 1).unwrap();
        let newer = taken(&shares, peer(1), 1).unwrap();
        let newest = taken(&shares, peer(1), 1).unwrap();
        let given_way = [&served, &oldest, &newer, &newest].map(has_given_way);
        assert_eq!(given_way, [false, true, false, false]);
        assert_eq!(oldest.grow(1), Err(NoRoom), "what gave way grows no more");
        assert!(oldest.in_use().is_err());
    }

    #[test]
    fn of_those_that_were_served_the_one_longest_ago_gives_way() {
        let shares = Shares::new(4);
        let [first, second] = [1, 1].map(|weight| taken(&shares, peer(1), weight).unwrap());
        drop(second.in_use().unwrap());
        drop(first.in_use().unwrap());
        let newcomer = taken(&shares, peer(1), 1).unwrap();
        assert_eq!(
            [&first, &second, &newcomer].map(has_given_way),
            [false, true, false]
        );
    }

    #[test]
    fn the_peer_that_holds_most_gives_way_to_others() {
        let shares = Shares::new(8);
        let small = taken(&shares, peer(2), 1).unwrap();
        let hoard: Vec<Share> = (0..4)
            .map(|_| taken(&shares, peer(1), 1).unwrap())
            .collect();
        let third: Vec<Share> = (0..3)
            .map(|_| taken(&shares, peer(3), 1).unwrap())
            .collect();
        let newcomer = taken(&shares, peer(4), 1).unwrap();
        assert!(has_given_way(&hoard[0]));
        let kept = hoard[1..].iter().chain(&third).chain([&small, &newcomer]);
        assert!(!kept.into_iter().any(has_given_way));
    }

    #[test]
    fn the_heaviest_gives_way_also_if_it_is_the_one_that_grows() {
        let shares = Shares::new(20);
        let heavy = taken(&shares, peer(1), 7).unwrap();
        let light = taken(&shares, peer(1), 3).unwrap();
        assert_eq!(heavy.grow(1), Err(NoRoom), "nothing is heavier");
        light.grow(1).unwrap();
        assert!(has_given_way(&heavy), "the light one may grow");
        light.grow(6).unwrap();
    }

    #[test]
    fn what_is_being_worked_on_stays_and_then_the_newcomer_is_refused() {
        let shares = Shares::new(2);
        let busy = taken(&shares, peer(1), 1).unwrap();
        let working = busy.in_use().unwrap();
        assert!(taken(&shares, peer(1), 1).is_err());
        drop(working);
        assert!(taken(&shares, peer(1), 1).is_ok());
        assert!(has_given_way(&busy));
    }

    #[test]
    fn what_is_given_back_can_be_taken_again_and_nothing_is_left_behind() {
        let shares = Shares::new(10);
        for _ in 0..100 {
            let share = taken(&shares, peer(1), 5).unwrap();
            let _working = share.in_use().unwrap();
        }
        let table = lock(&shares.table);
        assert_eq!(
            (table.total, table.entries.len(), table.of_peer.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn an_ipv6_network_is_one_peer_and_a_mapped_address_is_the_ipv4_one() {
        let of = |text: &str| Peer::of(text.parse().unwrap());
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:2]:2"));
        assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
        assert_eq!(of("[::ffff:10.0.0.1]:1"), of("10.0.0.1:9"));
    }
}
