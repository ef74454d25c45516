//! What the peers of a server share, and who gives way when it is used up.
//!
//! A bound that turns newcomers away is a weapon: whoever fills it first keeps everybody else out. Here a newcomer is
//! let in and somebody else gives way:
//!
//! * A peer that reached its half gives way itself. Otherwise the peer that holds most does, if that is a quarter or
//!   more; where nobody holds so much (a crowd of many addresses), all peers are one.
//! * Of these, the share that has cost most goes first: its weight times how long it has been held. How long is
//!   counted in what all shares together took since, so that the rule needs no clock and a flood ages itself. An
//!   honest request is served after milliseconds, so whoever hoards, or floods, meets its own requests long before
//!   it meets that one, however small each of them is.
//! * What was served and is kept (an idle connection, an answer that nobody fetches) has half of it. Beyond that it
//!   goes first, longest ago before others; below that, what was never served goes first. So kept connections leave
//!   newcomers the time to be served, and newcomers cannot push out every connection that is in use now and then.
//! * What is being worked on never gives way.
//!
//! That also holds where attacker and API server share an address (behind a proxy or a masquerading Service).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// Whom a share is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    all: Pool,
    of_peer: HashMap<Peer, Pool>,
    /// Peers by what they hold.
    by_weight: BTreeSet<(usize, Peer)>,
    entries: HashMap<u64, Entry>,
    next_number: u64,
    /// The clock: what all shares together have taken so far, and how often one was served.
    taken: u64,
}

#[derive(Debug)]
struct Entry {
    peer: Peer,
    weight: usize,
    standing: Standing,
    /// What had been taken when it came, or when it was last served.
    since: u64,
    /// Who is working on it now.
    users: usize,
    gives_way: CancellationToken,
    /// What else ends when it gives way.
    takes_along: Option<CancellationToken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    NeverServed,
    Served,
}

/// Shares among which one gives way: those of one peer, or of all.
#[derive(Debug, Default)]
struct Pool {
    /// What they hold together, what is being worked on included.
    weight: usize,
    never_served: Candidates,
    served: Candidates,
}

/// Shares that nobody works on, oldest first, in classes of about the same weight: the costliest one is the oldest of
/// its class, so that finding it takes no look at the others.
#[derive(Debug, Default)]
struct Candidates {
    weight: usize,
    /// By the logarithm of their weights: since when, and which.
    classes: BTreeMap<u32, BTreeSet<(u64, u64)>>,
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
            all: Pool::default(),
            of_peer: HashMap::new(),
            by_weight: BTreeSet::new(),
            entries: HashMap::new(),
            next_number: 0,
            taken: 0,
        };
        Self {
            table: Arc::new(Mutex::new(table)),
        }
    }

    /// A share of no weight yet.
    pub(crate) fn join(&self, peer: Peer) -> Share {
        let mut table = lock(&self.table);
        table.next_number += 1;
        let number = table.next_number;
        let gives_way = CancellationToken::new();
        let entry = Entry {
            peer,
            weight: 0,
            standing: Standing::NeverServed,
            since: table.taken,
            users: 0,
            gives_way: gives_way.clone(),
            takes_along: None,
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

    /// Takes as much as it needs to have this much.
    pub(crate) fn grow_to(&self, weight: usize) -> Result<(), NoRoom> {
        let mut table = lock(&self.table);
        let held = table.entries.get(&self.number).ok_or(NoRoom)?.weight;
        table.grow(self.number, weight.saturating_sub(held))
    }

    /// Gives back all but this much.
    pub(crate) fn shrink_to(&self, weight: usize) {
        lock(&self.table).change(self.number, |entry| entry.weight = entry.weight.min(weight));
    }

    /// Has this end, too, if the share gives way.
    pub(crate) fn take_along(&self, token: CancellationToken) {
        lock(&self.table).change(self.number, |entry| entry.takes_along = Some(token));
    }

    /// What was served before is as if it were served now: its client says something.
    pub(crate) fn is_heard(&self) {
        let mut table = lock(&self.table);
        let now = table.tick();
        table.change(self.number, |entry| {
            if entry.standing == Standing::Served {
                entry.since = now;
            }
        });
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
        if !table.change(self.number, |entry| entry.users += 1) {
            return Err(NoRoom);
        }
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
        let now = table.tick();
        table.change(self.number, |entry| {
            entry.users -= 1;
            entry.standing = Standing::Served;
            entry.since = now;
        });
    }
}

impl Entry {
    /// This process asks itself one thing at a time, so what it holds needs no bound besides.
    fn can_give_way(&self) -> bool {
        self.users == 0 && self.weight > 0 && self.peer != Peer::Itself
    }
}

impl Table {
    fn grow(&mut self, number: u64, more: usize) -> Result<(), NoRoom> {
        loop {
            let entry = self.entries.get(&number).ok_or(NoRoom)?;
            let (peer, wanted) = (entry.peer, entry.weight + more);
            let own_cost = cost(wanted, entry.since, self.taken);
            let (crowd, competes) = if self.weight_of(peer) + more > self.most_of_peer {
                (self.of_peer.get(&peer), true)
            } else if self.all.weight + more > self.most {
                match self.heaviest() {
                    Some((heaviest, pool)) => (Some(pool), heaviest == peer),
                    None => (Some(&self.all), true),
                }
            } else {
                break;
            };
            let victim = crowd.and_then(|pool| pool.costliest(number, self.taken));
            let victim = victim.ok_or(NoRoom)?;
            let held = self.entries.get(&victim).ok_or(NoRoom)?;
            let its_cost = cost(held.weight, held.since, self.taken);
            if competes && held.standing == Standing::NeverServed && own_cost > its_cost {
                return Err(NoRoom);
            }
            if let Some(evicted) = self.remove(victim) {
                evicted.gives_way.cancel();
                if let Some(along) = evicted.takes_along {
                    along.cancel();
                }
            }
        }
        self.taken = self.taken.saturating_add(more as u64);
        self.change(number, |entry| entry.weight += more);
        Ok(())
    }

    /// A moment that is later than all before it.
    fn tick(&mut self) -> u64 {
        self.taken = self.taken.saturating_add(1);
        self.taken
    }

    fn weight_of(&self, peer: Peer) -> usize {
        self.of_peer.get(&peer).map_or(0, |pool| pool.weight)
    }

    /// The peer that holds most, if it is a quarter of everything and some of it can give way.
    fn heaviest(&self) -> Option<(Peer, &Pool)> {
        let heavy = self.by_weight.iter().rev();
        heavy
            .take_while(|(weight, _)| weight.saturating_mul(4) >= self.most)
            .filter_map(|(_, peer)| Some((*peer, self.of_peer.get(peer)?)))
            .find(|(_, pool)| !pool.never_served.is_empty() || !pool.served.is_empty())
    }

    /// Changes an entry and all that is computed from it. False: there is no such entry.
    fn change(&mut self, number: u64, change: impl FnOnce(&mut Entry)) -> bool {
        let Some(mut entry) = self.take(number) else {
            return false;
        };
        change(&mut entry);
        self.put(number, entry);
        true
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.take(number)?;
        if self.weight_of(entry.peer) == 0 {
            self.of_peer.remove(&entry.peer);
            self.by_weight.remove(&(0, entry.peer));
        }
        Some(entry)
    }

    fn take(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.all.take(number, &entry);
        if let Some(pool) = self.of_peer.get_mut(&entry.peer) {
            self.by_weight.remove(&(pool.weight, entry.peer));
            pool.take(number, &entry);
            self.by_weight.insert((pool.weight, entry.peer));
        }
        Some(entry)
    }

    fn put(&mut self, number: u64, entry: Entry) {
        self.all.put(number, &entry);
        let pool = self.of_peer.entry(entry.peer).or_default();
        self.by_weight.remove(&(pool.weight, entry.peer));
        pool.put(number, &entry);
        self.by_weight.insert((pool.weight, entry.peer));
        self.entries.insert(number, entry);
    }
}

impl Pool {
    fn candidates(&mut self, standing: Standing) -> &mut Candidates {
        match standing {
            Standing::NeverServed => &mut self.never_served,
            Standing::Served => &mut self.served,
        }
    }

    fn put(&mut self, number: u64, entry: &Entry) {
        self.weight += entry.weight;
        if entry.can_give_way() {
            self.candidates(entry.standing).put(number, entry);
        }
    }

    fn take(&mut self, number: u64, entry: &Entry) {
        self.weight -= entry.weight;
        if entry.can_give_way() {
            self.candidates(entry.standing).take(number, entry);
        }
    }

    /// Who gives way for `newcomer`.
    fn costliest(&self, newcomer: u64, now: u64) -> Option<u64> {
        let (first, second) = if self.served.weight.saturating_mul(2) > self.weight {
            (&self.served, &self.never_served)
        } else {
            (&self.never_served, &self.served)
        };
        first
            .costliest(newcomer, now)
            .or_else(|| second.costliest(newcomer, now))
    }
}

impl Candidates {
    fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    fn put(&mut self, number: u64, entry: &Entry) {
        self.weight += entry.weight;
        let class = self.classes.entry(entry.weight.ilog2()).or_default();
        class.insert((entry.since, number));
    }

    fn take(&mut self, number: u64, entry: &Entry) {
        self.weight -= entry.weight;
        let class = entry.weight.ilog2();
        if let Some(numbers) = self.classes.get_mut(&class) {
            numbers.remove(&(entry.since, number));
            if numbers.is_empty() {
                self.classes.remove(&class);
            }
        }
    }

    /// The costliest one besides `newcomer`: the oldest of a class, taken as heavy as the lightest in it.
    fn costliest(&self, newcomer: u64, now: u64) -> Option<u64> {
        let oldest = self.classes.iter().filter_map(|(class, numbers)| {
            let (since, number) = numbers.iter().find(|(_, number)| *number != newcomer)?;
            Some((cost(1 << class, *since, now), Reverse(*number)))
        });
        oldest.max().map(|(_, Reverse(number))| number)
    }
}

/// What a share has cost the others: its weight for as long as it was held.
fn cost(weight: usize, since: u64, now: u64) -> u128 {
    weight as u128 * (u128::from(now.saturating_sub(since)) + 1)
}

/// Nothing that is done under the lock panics, so a poisoned table is as good as any.
fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

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
        assert_eq!(table.all.weight, 0);
        assert!(table.entries.is_empty() && table.of_peer.is_empty());
        assert!(table.by_weight.is_empty() && table.all.served.is_empty());
    }

    #[test]
    fn an_ipv6_network_is_one_peer_and_a_mapped_address_is_the_ipv4_one() {
        let of = |text: &str| Peer::of(text.parse().unwrap());
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:2]:2"));
        assert_ne!(of("[2001:db8::1]:1"), of("[2001:db8:0:1::1]:1"));
        assert_eq!(of("[::ffff:10.0.0.1]:1"), of("10.0.0.1:9"));
    }

    /// What is held by requests without a body, from one address or two, is as light as can be.
    #[test]
    fn however_light_a_hoard_is_the_heavier_newcomer_finds_room() {
        for hoarders in [vec![1], vec![1, 2], vec![9], (10..30).collect()] {
            let shares = Shares::new(4096);
            let hoard: Vec<Share> = (0..8192)
                .map(|number| taken(&shares, peer(hoarders[number % hoarders.len()]), 1).unwrap())
                .collect();
            let honest = taken(&shares, peer(9), 1).unwrap();
            let mut flood = Vec::new();
            for _ in 0..4 {
                honest.grow(1).unwrap();
                flood.extend((0..20).map(|_| taken(&shares, peer(hoarders[0]), 1).unwrap()));
            }
            assert!(!has_given_way(&honest), "{hoarders:?}");
            assert!(has_given_way(&hoard[0]) && !has_given_way(&hoard[8191]));
        }
    }

    /// Whoever keeps connections open that were served once, and opens more all the time.
    #[test]
    fn kept_connections_leave_a_newcomer_the_time_to_be_served() {
        for kept_by in [vec![1], (10..60).collect()] {
            let shares = Shares::new(400);
            let kept: Vec<Share> = (0..400)
                .filter_map(|number| {
                    let share = taken(&shares, peer(kept_by[number % kept_by.len()]), 1).ok()?;
                    drop(share.in_use().ok()?);
                    Some(share)
                })
                .collect();
            let honest = taken(&shares, peer(1), 1).unwrap();
            let mut flood = Vec::new();
            for number in 0..90 {
                let by = peer(kept_by[number % kept_by.len()]);
                flood.push(taken(&shares, by, 1).unwrap());
            }
            assert!(!has_given_way(&honest), "{kept_by:?}");
            assert!(honest.in_use().is_ok());
            assert!(kept.iter().any(has_given_way));
        }
    }

    #[test]
    fn a_connection_that_says_something_outlives_those_that_are_only_kept() {
        let shares = Shares::new(8);
        let kept = [1, 1, 1, 1].map(|weight| taken(&shares, peer(1), weight).unwrap());
        for share in &kept {
            drop(share.in_use().unwrap());
        }
        kept[0].is_heard();
        let newcomer = taken(&shares, peer(1), 1).unwrap();
        let given_way = [&kept[0], &kept[1], &newcomer].map(has_given_way);
        assert_eq!(given_way, [false, true, false]);
    }

    #[test]
    fn what_nobody_fetches_takes_its_connection_along_when_it_gives_way() {
        let shares = Shares::new(8);
        let (answer, connection) = (
            taken(&shares, peer(1), 4).unwrap(),
            CancellationToken::new(),
        );
        drop(answer.in_use().unwrap());
        answer.shrink_to(3);
        answer.take_along(connection.clone());
        let _fits = taken(&shares, peer(1), 1).unwrap();
        assert!(!connection.is_cancelled());
        let _newcomer = taken(&shares, peer(1), 1).unwrap();
        assert!(has_given_way(&answer) && connection.is_cancelled());
    }

    #[test]
    fn what_this_process_asks_itself_never_gives_way() {
        let shares = Shares::new(40);
        let own = taken(&shares, Peer::Itself, 1).unwrap();
        let flood: Vec<Share> = (0..100)
            .map(|number| taken(&shares, peer(number), 1).unwrap())
            .collect();
        assert!(!has_given_way(&own) && has_given_way(&flood[0]));
    }

    proptest! {
        #[test]
        fn no_sequence_exceeds_a_bound_or_leaves_a_sum_wrong(
            steps in vec((0..6_u8, 0..5_u8, 0..40_usize, 0..12_usize), 1..300),
        ) {
            let shares = Shares::new(100);
            let (mut held, mut working) = (Vec::new(), Vec::new());
            for (what, by, at, amount) in steps {
                if held.is_empty() || what == 0 {
                    held.push(shares.join(peer(by)));
                    continue;
                }
                let at = at % held.len();
                match what {
                    1 | 2 => _ = held[at].grow(amount),
                    3 => held[at].shrink_to(amount),
                    4 => working.extend(held[at].in_use()),
                    _ if amount < 6 => drop(held.swap_remove(at)),
                    _ => drop(working.pop()),
                }
                let table = lock(&shares.table);
                let sum = |of: Option<Peer>| -> usize {
                    let entries = table.entries.values();
                    let counted = entries.filter(|entry| of.is_none_or(|peer| peer == entry.peer));
                    counted.map(|entry| entry.weight).sum()
                };
                prop_assert!(table.all.weight <= 100 && table.all.weight == sum(None));
                for (peer, pool) in &table.of_peer {
                    prop_assert!(pool.weight <= 50 && pool.weight == sum(Some(*peer)));
                    prop_assert!(table.by_weight.contains(&(pool.weight, *peer)));
                }
                prop_assert_eq!(table.by_weight.len(), table.of_peer.len());
                let idle = table.entries.values().filter(|entry| entry.can_give_way());
                let idle: usize = idle.map(|entry| entry.weight).sum();
                prop_assert_eq!(table.all.served.weight + table.all.never_served.weight, idle);
            }
        }
    }
}
