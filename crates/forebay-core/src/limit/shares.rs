//! Choice of the connections to drop when a worker runs out of them. It takes into account how many each client network
//! holds, so that one network cannot push out the slow clients of others. Nothing is counted before such a choice.

use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Time that a new client has for its request head before its connection can be dropped for another one.
pub const GRACE: Duration = Duration::from_millis(250);

/// Time for a request head after which a connection is among the first to be dropped.
pub const SLOW_HEAD: Duration = Duration::from_secs(2);

/// Divisor of all connections: the share of waiting ones that a network may hold before it loses some for that alone.
const SHARE: usize = 8;

/// The network of a client: /24 of IPv4, /56 of IPv6; all unix sockets are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network(u64);

impl Network {
    /// Returns the network of an address; `None` is a unix socket.
    pub fn of(ip: Option<IpAddr>) -> Network {
        match ip.map(|ip| ip.to_canonical()) {
            // The bits above the address tell the families apart.
            Some(IpAddr::V4(a)) => Network(1 << 32 | u64::from(a.to_bits() >> 8)),
            Some(IpAddr::V6(a)) => Network(1 << 63 | (a.to_bits() >> 72) as u64),
            None => Network(0),
        }
    }
}

/// Connection or transfer that may be dropped.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<R> {
    /// The caller's number for it.
    pub number: usize,
    /// Network of its client.
    pub network: Network,
    /// Order among candidates of equal networks: the lowest goes first.
    pub rank: R,
}

/// Sorts candidates by network and rank. Returns for each how many its network still holds when its turn comes, after
/// those of the same network with a lower rank.
fn held<R: Ord + Copy>(all: &mut [Candidate<R>]) -> Vec<usize> {
    all.sort_unstable_by_key(|c| (c.network, c.rank));
    let mut held = vec![1; all.len()];
    for i in (1..all.len()).rev() {
        if all[i].network == all[i - 1].network {
            held[i - 1] = held[i] + 1;
        }
    }
    held
}

/// Returns the numbers of the `count` candidates with the lowest order.
fn lowest<R: Ord + Copy, O: Ord>(
    mut all: Vec<Candidate<R>>,
    count: usize,
    order: impl Fn(&Candidate<R>, usize) -> O,
) -> Vec<usize> {
    let held = held(&mut all);
    let mut ordered: Vec<_> = all.iter().zip(held).map(|(c, held)| (order(c, held), c.number)).collect();
    if count < ordered.len() {
        // The order among those that are dropped does not matter: no full sort is needed.
        ordered.select_nth_unstable(count);
        ordered.truncate(count);
    }
    ordered.into_iter().map(|(_, number)| number).collect()
}

/// Chooses `count` waiting connections to close; `max` is the limit of connections. Networks lose first what they hold
/// beyond their share, the largest network before others. The rest goes by rank, and among slow ones by what their
/// network still holds.
pub fn choose_idle(all: Vec<Candidate<(u8, Instant)>>, count: usize, max: usize) -> Vec<usize> {
    let share = (max / SHARE).max(1);
    lowest(all, count, |c, held| {
        let (class, since) = c.rank;
        let beyond = if held > share { held } else { 0 };
        // Size of the network does not count for idle keep-alive connections: a large network has many, and closing one
        // costs the client little.
        let among = if class == 1 { 0 } else { held };
        (usize::MAX - beyond, class, usize::MAX - among, since)
    })
}

/// Chooses `count` slow transfers to drop. The network that holds most loses some first, the slowest before others.
pub fn choose_slow<R: Ord + Copy>(all: Vec<Candidate<R>>, count: usize) -> Vec<usize> {
    lowest(all, count, |c, held| (usize::MAX - held, c.rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Network {
        Network::of(text.parse().ok())
    }

    fn candidates<R: Copy>(groups: &[(&str, usize, R)]) -> Vec<Candidate<R>> {
        let each = groups.iter().flat_map(|(text, count, rank)| (0..*count).map(|_| (net(text), *rank)));
        each.enumerate().map(|(number, (network, rank))| Candidate { number, network, rank }).collect()
    }

    #[test]
    fn networks() {
        assert_eq!(net("10.1.2.3"), net("10.1.2.200"));
        assert_ne!(net("10.1.2.3"), net("10.1.3.3"));
        assert_eq!(net("::ffff:10.1.2.3"), net("10.1.2.9"));
        assert_eq!(net("2001:db8:0:ab00::1"), net("2001:db8:0:abff::2"));
        assert_ne!(net("2001:db8:0:ab00::1"), net("2001:db8:0:ac00::1"));
        assert_ne!(net("::1"), net(""));
        assert_eq!(Network::of(None), Network::default());
    }

    #[test]
    fn the_largest_network_leaves_down_to_its_share() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        // The slow clients of others have waited longest; the large network is between requests, or has hardly begun.
        for class in [0, 1, 2] {
            let all = candidates(&[("10.0.0.1", 5, (0, at(0))), ("10.0.1.1", 50, (class, at(9)))]);
            let left = choose_idle(all, 42, 64);
            assert!(left.len() == 42 && left.iter().all(|n| *n >= 5), "{class}: {left:?}");
        }
        // Within its share it is like others: by rank.
        let all = candidates(&[("10.0.0.1", 2, (0, at(0))), ("10.0.1.1", 8, (1, at(9)))]);
        let mut left = choose_idle(all, 3, 64);
        left.sort_unstable();
        assert_eq!(left[..2], [0, 1]);
        // Two large ones are trimmed alike, whoever is older.
        let all = candidates(&[("10.0.0.1", 20, (0, at(0))), ("10.0.1.1", 30, (0, at(9)))]);
        let left = choose_idle(all, 20, 64);
        assert_eq!(left.iter().filter(|n| **n < 20).count(), 5);
    }

    #[test]
    fn among_the_slow_the_larger_network_leaves_first() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let all = candidates(&[
            ("10.0.0.1", 1, (0, at(0))),
            ("10.0.1.1", 3, (0, at(5))),
            ("10.0.2.1", 5, (1, at(0))),
            ("10.0.3.1", 4, (2, at(0))),
        ]);
        let order: Vec<_> = (1..=13)
            .map(|count| {
                let mut left = choose_idle(all.clone(), count, 1024);
                left.sort_unstable();
                left
            })
            .collect();
        assert!(order[1].iter().all(|n| (1..4).contains(n)), "{order:?}");
        assert!(order[3] == [0, 1, 2, 3], "{order:?}");
        assert!(order[8] == [0, 1, 2, 3, 4, 5, 6, 7, 8], "{order:?}");
        assert_eq!(order[12].len(), 13);
    }

    #[test]
    fn one_network_alone_goes_by_rank() {
        let start = Instant::now();
        let all: Vec<_> = (0..100u64)
            .map(|i| Candidate {
                number: i as usize,
                network: net("10.0.0.1"),
                rank: ((i % 3) as u8, start + Duration::from_secs(i)),
            })
            .collect();
        let mut expected: Vec<_> = all.iter().map(|c| (c.rank, c.number)).collect();
        expected.sort_unstable();
        for count in [1, 12, 50, 100, 200] {
            let mut left = choose_idle(all.clone(), count, 128);
            left.sort_unstable();
            let mut by_rank: Vec<_> = expected.iter().take(count).map(|(_, number)| *number).collect();
            by_rank.sort_unstable();
            assert_eq!(left, by_rank, "{count}");
        }
    }

    #[test]
    fn slow_transfers_of_the_largest_network_are_given_up_first() {
        let mut all = candidates(&[("10.0.0.1", 2, 0), ("10.0.1.1", 6, 100)]);
        all.push(Candidate { number: 8, network: net("10.0.2.1"), rank: 50 });
        all.push(Candidate { number: 9, network: net("10.0.3.1"), rank: 50 });
        let left = choose_slow(all.clone(), 4);
        assert!(left.iter().all(|n| (2..8).contains(n)), "{left:?}");
        // Two each are left then: the slowest of the two.
        let left = choose_slow(all, 5);
        assert!(left.iter().any(|n| *n < 2), "{left:?}");
    }

    #[test]
    fn of_many_the_slow_leave_first() {
        let start = Instant::now();
        let all: Vec<_> = (0..100_000u64)
            .map(|i| Candidate {
                number: i as usize,
                network: Network(i * 0x9e37_79b9 % 5000),
                rank: ((i % 3) as u8, start + Duration::from_micros(i * 7919 % 100_000)),
            })
            .collect();
        let left = choose_idle(all, 1562, 100_000);
        assert_eq!(left.len(), 1562);
        assert!(left.iter().all(|n| n % 3 == 0), "the slow first");
    }
}
