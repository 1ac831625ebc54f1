//! A client, a server, and the network between them.

use crate::network::{Datagram, Faults, Network};
use crate::node::Host;
use forebay_quic::time::Time;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

/// What happens to the network at some time.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// The client gets another port from its address translator.
    Port,
    /// The client gets another address.
    Address,
    /// Nothing gets to the client any more, or again.
    Dead(bool),
    /// The path carries datagrams of this size.
    Mtu(usize),
    /// Nothing gets through for a while.
    Stall(Duration),
}

/// Traffic of the server with an address.
#[derive(Debug, Default)]
struct Account {
    received: u64,
    sent: u64,
    /// The client has got something that was sent there, and answered.
    has_got: bool,
    is_proved: bool,
}

/// Simulated world.
pub struct World<'h> {
    pub now: Time,
    pub client: &'h mut dyn Host,
    pub server: &'h mut dyn Host,
    pub network: Network,
    /// Address of the client, as the server sees it.
    outside: SocketAddr,
    is_dead: bool,
    changes: Vec<(Time, Change)>,
    accounts: HashMap<SocketAddr, Account>,
    /// The server knows the client's address from tokens.
    pub trusts_all: bool,
    pub steps: u64,
    /// `FOREBAY_TEST_TRACE` is set: each step is shown.
    traces: bool,
}

pub const START: Time = Time::from_nanos(1_000_000_000);

impl<'h> World<'h> {
    pub fn new(seed: u64, faults: Faults, client: &'h mut dyn Host, server: &'h mut dyn Host) -> World<'h> {
        client.begin();
        server.begin();
        World {
            now: START,
            outside: client.addr(),
            client,
            server,
            network: Network::new(faults, seed),
            is_dead: false,
            changes: Vec::new(),
            accounts: HashMap::new(),
            trusts_all: false,
            steps: 0,
            traces: std::env::var_os("FOREBAY_TEST_TRACE").is_some(),
        }
    }

    /// Plans changes, after so much time each.
    pub fn plan(&mut self, changes: &[(Duration, Change)]) {
        self.changes = changes.iter().map(|(after, change)| (self.now + *after, *change)).collect();
        self.changes.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    }

    /// Gives the client another port for its next connection.
    pub fn change_port(&mut self) {
        self.outside.set_port(self.outside.port() + 1);
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Port => self.change_port(),
            Change::Address => {
                let SocketAddr::V4(old) = self.outside else { return };
                let [a, b, c, d] = old.ip().octets();
                self.outside = SocketAddr::from(([a, b, c, d + 1], old.port()));
            }
            Change::Dead(is_dead) => self.is_dead = is_dead,
            Change::Mtu(mtu) => self.network.faults.mtu = mtu,
            Change::Stall(time) => self.network.stalled_until = self.now + time,
        }
    }

    fn sent_by_server(&mut self, datagram: &Datagram) {
        let account = self.accounts.entry(datagram.to).or_default();
        account.sent += datagram.bytes.len() as u64;
        assert!(
            self.trusts_all || account.is_proved || account.sent <= 3 * account.received,
            "{account:?}: too much to {}, which has not proved its address",
            datagram.to
        );
    }

    /// Hands a datagram to its receiver. Returns the answers.
    fn deliver(&mut self, mut datagram: Datagram) -> Vec<Datagram> {
        let mut out = Vec::new();
        if datagram.to == self.server.addr() {
            let account = self.accounts.entry(datagram.from).or_default();
            account.received += datagram.bytes.len() as u64;
            account.is_proved |= account.has_got;
            self.server.receive(self.now, &datagram, &mut out);
        } else if datagram.to == self.outside && !self.is_dead {
            self.accounts.entry(datagram.to).or_default().has_got = true;
            datagram.to = self.client.addr();
            self.client.receive(self.now, &datagram, &mut out);
        }
        out
    }

    fn send(&mut self, out: &mut Vec<Datagram>) {
        for mut datagram in out.drain(..) {
            if datagram.from == self.server.addr() {
                self.sent_by_server(&datagram);
            } else {
                datagram.from = self.outside;
            }
            self.network.send(self.now, datagram);
        }
    }

    /// Lets everything happen that happens now.
    pub fn step(&mut self) {
        self.steps += 1;
        while let Some((_, change)) = self.changes.pop_if(|(at, _)| *at <= self.now) {
            // Clients do not move before the handshake is confirmed (RFC 9000, section 9).
            let is_early = !self.server.apps().iter().any(|app| app.is_connected && app.end.is_none());
            match change {
                Change::Port | Change::Address | Change::Dead(_) if is_early => {
                    let at = self.now + Duration::from_millis(300);
                    let place = self.changes.partition_point(|(other, _)| *other > at);
                    self.changes.insert(place, (at, change));
                }
                _ => self.change(change),
            }
        }
        if self.traces {
            eprintln!("{}", self.describe());
        }
        while let Some(datagram) = self.network.take(self.now) {
            if self.traces {
                eprintln!("{} -> {} {}", datagram.from, datagram.to, datagram.bytes.len());
            }
            let mut out = self.deliver(datagram);
            self.send(&mut out);
        }
        let mut out = Vec::new();
        self.client.turn(self.now, &mut out);
        self.send(&mut out);
        self.server.turn(self.now, &mut out);
        self.send(&mut out);
    }

    /// Goes on to the next thing that happens. Returns `false` if nothing will before `end`.
    fn advance(&mut self, end: Time) -> bool {
        let change = self.changes.last().map(|(at, _)| *at);
        let next =
            [self.network.next(), self.client.deadline(self.now), self.server.deadline(self.now), change];
        match next.into_iter().flatten().min().filter(|next| *next <= end) {
            Some(next) => {
                self.now = self.now.max(next);
                true
            }
            None => false,
        }
    }

    /// Runs until `done` returns `true`; it is asked after each step. Returns `false` if that did not happen in time.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&mut World<'_>) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            self.step();
            if done(self) {
                return true;
            }
            assert!(self.steps < 1_000_000, "no end: {}", self.describe());
            if !self.advance(end) {
                return false;
            }
        }
    }

    pub fn describe(&self) -> String {
        let after = self.now.since(START);
        format!("after {after:?}: {}{}", self.client.describe(), self.server.describe())
    }
}
