//! Upstream groups and the choice of a peer in them (nginx: ngx_http_upstream_module, round robin).
//! Hot path.

pub mod config;
pub mod conn;
pub mod exchange;
pub mod spool;
pub mod stream;
pub mod tunnel;
pub mod vars;

use crate::reactor::Token;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Address of a server in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAddr {
    /// TCP.
    Inet(SocketAddr),
    /// `unix:PATH`.
    Unix(PathBuf),
}

/// One address of one `server`.
#[derive(Clone, Debug)]
pub struct Peer {
    /// As in `$upstream_addr`.
    pub name: Vec<u8>,
    /// Address.
    pub addr: PeerAddr,
    /// `weight=`.
    pub weight: i64,
    /// `max_fails=`; 0 = failures are not counted.
    pub max_fails: u32,
    /// `fail_timeout=`.
    pub fail_timeout: Duration,
    /// `max_conns=`; 0 = no limit.
    pub max_conns: u32,
    /// `backup`.
    pub backup: bool,
    /// `down`.
    pub down: bool,
}

/// `keepalive` and what belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct Keepalive {
    /// Idle connections kept per thread; 0 = none.
    pub connections: usize,
    /// `local`: connections stay with the location that opened them.
    pub local: bool,
    /// `keepalive_requests`.
    pub requests: u64,
    /// `keepalive_time`.
    pub time: Duration,
    /// `keepalive_timeout`.
    pub timeout: Duration,
}

impl Keepalive {
    /// What holds where nothing is said. Groups that only `proxy_pass` implies keep no connections.
    pub fn new(connections: usize) -> Keepalive {
        Keepalive {
            connections,
            local: true,
            requests: 1000,
            time: Duration::from_secs(3600),
            timeout: Duration::from_secs(60),
        }
    }
}

/// A group of servers.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name, lower case.
    pub name: Vec<u8>,
    /// Written as an `upstream` block.
    pub explicit: bool,
    /// Servers by address, in file order.
    pub peers: Vec<Peer>,
    /// Idle connections.
    pub keepalive: Keepalive,
    /// What the threads know about the servers together.
    pub state: Arc<Mutex<Vec<PeerState>>>,
}

/// State of a server.
#[derive(Clone, Debug, Default)]
pub struct PeerState {
    current: i64,
    effective: i64,
    fails: u32,
    /// Start of the period in which failures count.
    checked: Option<Instant>,
    /// The last failure.
    failed: Option<Instant>,
    connections: u32,
}

/// An idle connection.
#[derive(Debug)]
pub struct Idle {
    /// Its slot.
    pub token: Token,
    /// Server.
    pub peer: usize,
    /// Location that it belongs to.
    pub location: usize,
    /// Requests it has served.
    pub requests: u64,
    /// When it was opened.
    pub opened: Instant,
}

/// State of a group in one thread.
#[derive(Debug, Default)]
pub struct GroupState {
    /// Idle connections, latest last.
    pub idle: VecDeque<Idle>,
}

impl Group {
    /// A group at its start.
    pub fn new(name: Vec<u8>, explicit: bool, peers: Vec<Peer>, keepalive: Keepalive) -> Group {
        let mut g = Group { name, explicit, peers: Vec::new(), keepalive, state: Arc::default() };
        g.set_peers(peers);
        g
    }

    /// Gives it its servers.
    pub fn set_peers(&mut self, peers: Vec<Peer>) {
        let states = peers.iter().map(|p| PeerState { effective: p.weight, ..PeerState::default() });
        self.state = Arc::new(Mutex::new(states.collect()));
        self.peers = peers;
    }

    fn states(&self) -> MutexGuard<'_, Vec<PeerState>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The only server, where there is nothing to balance and nothing to count: no lock is taken for it.
    fn lone(&self) -> Option<&Peer> {
        match self.peers.as_slice() {
            [p] if p.max_conns == 0 => Some(p),
            _ => None,
        }
    }

    /// Smooth weighted round robin among the servers not in `tried`; backup servers when no other is left.
    pub fn choose(&self, tried: &[usize], now: Instant) -> Option<usize> {
        if let Some(p) = self.lone() {
            return (!p.down && tried.is_empty()).then_some(0);
        }
        let mut states = self.states();
        let chosen = self
            .choose_among(&mut states, tried, now, false)
            .or_else(|| self.choose_among(&mut states, tried, now, true))?;
        if let Some(s) = states.get_mut(chosen) {
            s.connections += 1;
        }
        Some(chosen)
    }

    fn choose_among(
        &self,
        states: &mut [PeerState],
        tried: &[usize],
        now: Instant,
        backup: bool,
    ) -> Option<usize> {
        let mut best: Option<(usize, i64)> = None;
        let mut total = 0;
        let alone = self.peers.len() == 1;
        for (i, (p, s)) in self.peers.iter().zip(states.iter_mut()).enumerate() {
            let failed = p.max_fails != 0
                && !alone
                && s.fails >= p.max_fails
                && s.checked.is_some_and(|t| now.saturating_duration_since(t) <= p.fail_timeout);
            let full = p.max_conns != 0 && s.connections >= p.max_conns;
            if p.backup != backup || p.down || failed || full || tried.contains(&i) {
                continue;
            }
            s.current += s.effective;
            total += s.effective;
            if s.effective < p.weight {
                s.effective += 1;
            }
            if best.is_none_or(|(_, c)| s.current > c) {
                best = Some((i, s.current));
            }
        }
        let (i, _) = best?;
        let (p, s) = (self.peers.get(i)?, states.get_mut(i)?);
        s.current -= total;
        if s.checked.is_none_or(|t| now.saturating_duration_since(t) > p.fail_timeout) {
            s.checked = Some(now);
        }
        Some(i)
    }

    /// A request to a chosen server is over.
    pub fn end(&self, peer: usize) {
        if self.lone().is_some() {
            return;
        }
        if let Some(s) = self.states().get_mut(peer) {
            s.connections = s.connections.saturating_sub(1);
        }
    }

    /// A request failed. `true`: the server is now taken for dead.
    pub fn fail(&self, peer: usize, now: Instant) -> bool {
        if self.peers.len() < 2 {
            return false;
        }
        let mut states = self.states();
        let (Some(p), Some(s)) = (self.peers.get(peer), states.get_mut(peer)) else { return false };
        s.fails = s.fails.saturating_add(1);
        s.failed = Some(now);
        s.checked = Some(now);
        if p.max_fails == 0 {
            return false;
        }
        s.effective = (s.effective - p.weight / i64::from(p.max_fails)).max(0);
        s.fails >= p.max_fails
    }

    /// A request went well: failures before the present period are forgotten.
    pub fn succeed(&self, peer: usize) {
        if self.lone().is_some() {
            return;
        }
        if let Some(s) = self.states().get_mut(peer)
            && s.failed.is_some_and(|f| s.checked.is_none_or(|c| f < c))
        {
            s.fails = 0;
            s.failed = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(weights: &[i64]) -> Group {
        let peers = weights
            .iter()
            .enumerate()
            .map(|(i, w)| Peer {
                name: vec![b'a' + i as u8],
                addr: PeerAddr::Inet(SocketAddr::from(([127, 0, 0, 1], 80))),
                weight: *w,
                max_fails: 1,
                fail_timeout: Duration::from_secs(10),
                max_conns: 0,
                backup: false,
                down: false,
            })
            .collect();
        Group::new(b"u".to_vec(), true, peers, Keepalive::new(32))
    }

    fn order(g: &Group, n: usize) -> String {
        let now = Instant::now();
        (0..n).filter_map(|_| g.choose(&[], now)).map(|i| char::from(b'a' + i as u8)).collect()
    }

    #[test]
    fn weights_are_spread_smoothly() {
        assert_eq!(order(&group(&[1, 1, 1]), 6), "abcabc");
        assert_eq!(order(&group(&[5, 1, 1]), 7), "aabacaa");
    }

    #[test]
    fn backups_wait_and_failures_count() {
        let mut g = group(&[1, 1, 1]);
        g.peers[2].backup = true;
        let now = Instant::now();
        assert_eq!(g.choose(&[0, 1], now), Some(2));
        assert_eq!(g.choose(&[0, 1, 2], now), None);
        assert!(g.fail(0, now) && g.fail(1, now));
        assert_eq!(g.choose(&[], now), Some(2));
        let later = now + Duration::from_secs(11);
        assert_eq!(g.choose(&[], later), Some(0));
        g.succeed(0);
        assert_eq!(g.choose(&[0], later), Some(1));
    }
}
