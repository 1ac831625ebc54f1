//! QUIC of a thread: sockets to the servers, and their connections. Hot path.

use super::conn::Conn;
use super::h3::{H3, UNIS};
use crate::load::{Load, Protocol};
use crate::{Error, clock};
use forebay_net::quic::Link;
use forebay_net::quic::client::{Client, Dialling, Limits, NO_OWNER, Packets};
use forebay_sys::datagrams::{Batch, MOST};
use rustix::event::epoll;
use rustix::io::Errno;
use rustls::ClientConfig;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sockets of a thread. Connections share them when there are more. A server that has a socket in each of its threads chooses one by
/// the client's address, so that one socket for all connections would keep one thread of the server busy.
const SOCKETS: usize = 64;
/// Content that a server may send ahead, bytes. Large enough never to limit it.
const WINDOW: u32 = 1 << 30;
/// Slot in the events of sockets that no slot has alone.
pub(super) const SHARED: u32 = u32::MAX;

/// A socket, and the origin that it leads to.
struct Lane {
    client: Rc<Client>,
    origin: u32,
}

/// QUIC connections of a thread.
pub(super) struct Quic {
    lanes: Vec<Lane>,
    /// Lane of each slot.
    of_slot: Vec<u32>,
    dialling: Option<Dialling>,
    batch: Batch,
    /// The same moment on both clocks.
    epoch: (Instant, u64),
}

impl Quic {
    /// Makes the sockets for these slots; `None` for another protocol.
    pub(super) fn new(
        load: &Load,
        conns: &[Conn],
        tls: Option<&Arc<ClientConfig>>,
        epoll: &OwnedFd,
    ) -> Result<Option<Quic>, Error> {
        if load.protocol != Protocol::Http3 {
            return Ok(None);
        }
        let limits = Limits {
            window: WINDOW,
            connection_window: WINDOW,
            send_window: None,
            uni_streams: UNIS,
            idle: None,
            keep_alive: None,
            ids: None,
            tokens: load.resume,
        };
        let mut quic = Quic {
            lanes: Vec::new(),
            of_slot: Vec::new(),
            dialling: tls.map(|tls| Dialling::new(tls.clone(), limits)),
            batch: Batch::new(),
            epoch: (Instant::now(), clock()),
        };
        let most = (SOCKETS / load.origins.len().max(1)).max(1);
        for (slot, conn) in conns.iter().enumerate() {
            let mut lanes = quic.lanes.iter().enumerate().filter(|(_, lane)| lane.origin == conn.origin);
            let lane = match lanes.clone().count() {
                n if n < most => quic.open(load, conn.origin, epoll)?,
                n => lanes.nth(slot % n).map_or(0, |(at, _)| at),
            };
            quic.of_slot.push(lane as u32);
        }
        Ok(Some(quic))
    }

    /// Makes a socket to an origin.
    fn open(&mut self, load: &Load, origin: u32, epoll: &OwnedFd) -> Result<usize, Error> {
        let target = load.origins.get(origin as usize);
        let (name, addr) = target
            .and_then(|o| Some((o.name.as_str(), *o.address.socket_addr()?)))
            .ok_or_else(|| Error::Usage("HTTP/3 goes to IP addresses only".into()))?;
        let client = Client::new(addr).map_err(Error::io(name))?;
        let lane = self.lanes.len();
        let data = epoll::EventData::new_u64(u64::from(SHARED) | (lane as u64) << 32);
        // Level-triggered: a turn that has received all need not ask again.
        epoll::add(epoll, client.socket(), data, epoll::EventFlags::IN)
            .map_err(|e| Error::Io("epoll".into(), e.into()))?;
        self.lanes.push(Lane { client: Rc::new(client), origin });
        Ok(lane)
    }

    /// Begins a connection of a slot.
    ///
    /// # Errors
    /// The reason in words.
    pub(super) fn connect(&self, slot: u32, name: &str, parallel: usize, now: u64) -> Result<H3, String> {
        let lane = self.of_slot.get(slot as usize).and_then(|lane| self.lanes.get(*lane as usize));
        let (Some(lane), Some(dialling)) = (lane, &self.dialling) else { return Err("no socket".into()) };
        let made = lane.client.connect(self.instant(now), dialling, name, slot);
        let link = made.map_err(|e| e.to_string())?;
        Ok(H3::new(lane.client.clone(), link, parallel))
    }

    fn instant(&self, now: u64) -> Instant {
        self.epoch.0 + Duration::from_nanos(now.saturating_sub(self.epoch.1))
    }

    /// Returns the connections of a lane.
    pub(super) fn client(&self, lane: usize) -> Option<Rc<Client>> {
        self.lanes.get(lane).map(|lane| lane.client.clone())
    }

    /// Receives what has arrived at a socket.
    pub(super) fn receive(&mut self, client: &Client, now: u64) {
        let now = self.instant(now);
        loop {
            match client.receive(&mut self.batch, now) {
                Ok(count) if count == MOST => {}
                Err(Errno::INTR) => {}
                _ => return,
            }
        }
    }

    /// Has connections of a lane do what is due. Returns the connections, if any of them may have done something.
    pub(super) fn expire(&self, lane: usize, now: u64) -> Option<Rc<Client>> {
        let client = &self.lanes.get(lane)?.client;
        let now = self.instant(now);
        client.next_timer().filter(|at| *at <= now)?;
        client.expire(now);
        Some(client.clone())
    }

    /// Returns the number of sockets.
    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Sends what the connections have to send. Calls `gone` for slots whose connections are lost without an event.
    pub(super) fn flush(&self, now: u64, mut gone: impl FnMut(u32)) {
        let now = self.instant(now);
        for lane in self.lanes.iter().filter(|lane| lane.client.has_unsent()) {
            lane.client.flush(now, |link: &Rc<Link>| {
                if link.owner.get() != NO_OWNER {
                    gone(link.owner.replace(NO_OWNER));
                }
            });
        }
    }

    /// Calls `f` for slots whose server has refused a datagram.
    pub(super) fn refused(&self, mut f: impl FnMut(u32)) {
        for (at, lane) in self.lanes.iter().enumerate() {
            if lane.client.take_refusal() {
                let slots = self.of_slot.iter().enumerate().filter(|(_, lane)| **lane as usize == at);
                slots.for_each(|(slot, _)| f(slot as u32));
            }
        }
    }

    /// Returns the packets of the connections that were closed.
    pub(super) fn packets(&self) -> Packets {
        self.lanes
            .iter()
            .map(|lane| lane.client.packets())
            .fold(Packets::default(), |a, b| Packets { sent: a.sent + b.sent, lost: a.lost + b.lost })
    }

    /// Returns the number of datagrams that the kernel has dropped because the buffers of the sockets were full.
    pub(super) fn dropped(&self) -> u64 {
        let sockets = self.lanes.iter().filter_map(|lane| rustix::fs::fstat(lane.client.socket()).ok());
        let inodes: Vec<u64> = sockets.map(|stat| stat.st_ino).collect();
        let tables = ["udp", "udp6"].map(|name| std::fs::read_to_string(format!("/proc/net/{name}")));
        tables
            .iter()
            .flatten()
            .flat_map(|table| drops(table))
            .filter(|(inode, _)| inodes.contains(inode))
            .map(|d| d.1)
            .sum()
    }

    /// Returns when connections have something to do, ns.
    pub(super) fn next_timer(&self) -> Option<u64> {
        if self.lanes.iter().any(|lane| lane.client.has_unsent()) {
            return Some(0);
        }
        let first = self.lanes.iter().filter_map(|lane| lane.client.next_timer()).min()?;
        Some(self.epoch.1 + first.saturating_duration_since(self.epoch.0).as_nanos() as u64)
    }
}

/// Returns the inodes of a table of the kernel (/proc/net/udp) with the datagrams that were dropped at each socket.
fn drops(table: &str) -> impl Iterator<Item = (u64, u64)> + '_ {
    table.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace();
        let inode = words.nth(9)?.parse().ok()?;
        Some((inode, words.last()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_read_from_the_kernels_table() {
        let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n \
             2401: 0100007F:9D3B 0100007F:24E3 01 00000000:00000000 00:00000000 00000000     0        0 77 2 0000000000000000 12\n \
             2402: 0100007F:9D3C 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 78 2 0000000000000000 0\n";
        assert_eq!(drops(table).collect::<Vec<_>>(), [(77, 12), (78, 0)]);
        let bound = std::net::UdpSocket::bind("127.0.0.1:0").expect("bound");
        let inode = rustix::fs::fstat(&bound).expect("stat").st_ino;
        let now = std::fs::read_to_string("/proc/net/udp").expect("table");
        assert_eq!(drops(&now).find(|(n, _)| *n == inode), Some((inode, 0)));
    }
}
