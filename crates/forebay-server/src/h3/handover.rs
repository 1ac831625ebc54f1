//! Datagrams that do not arrive where their connection is. The connection may be in another thread, since its client has moved or the
//! listeners have changed, or in another process, since one process of an upgrade reads the sockets of both.
//!
//! Processes that follow one another are neighbors with a pair of sockets between them. One of them reads the UDP sockets, and sends the
//! datagrams for connections of the other through the pair. A datagram that finds no place is lost, as the network may lose one.
//!
//! Connection identifiers (`forebay-net/src/quic/cid.rs`) name process, thread and endpoint. `forebay/src/succession.rs` makes the
//! pairs, and keeps the secret that all workers of a server share. Of two processes that run, the newer one reads the sockets
//! (`Thread::delegated`).

use forebay_net::quic::{HostKey, Mask, Place, Received};
use forebay_sys::sync::lock;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Maximum number of datagrams that wait for a thread. Further ones are lost, and QUIC sends their content again.
const WAITING: usize = 1024;
/// Largest message between processes: the head, and the largest datagram.
pub(super) const LARGEST: usize = HEAD + 65_536;
/// Bytes before the datagram: kind, place, ECN, two addresses, port.
const HEAD: usize = 1 + 4 + 1 + 17 + 17 + 2;

/// Datagram that waits for its thread.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stray {
    pub place: Place,
    pub remote: SocketAddr,
    pub local: Option<IpAddr>,
    pub ecn: u8,
    pub bytes: Vec<u8>,
}

impl Stray {
    pub(super) fn received(&self) -> Received<'_> {
        Received { remote: self.remote, local: self.local, ecn: self.ecn, bytes: &self.bytes }
    }
}

/// Datagrams for a thread.
#[derive(Debug)]
pub(super) struct Inbox {
    full: AtomicBool,
    strays: Mutex<Vec<Stray>>,
    /// Event descriptor that has the thread take a step.
    bell: OwnedFd,
}

impl Inbox {
    pub(super) fn new(bell: OwnedFd) -> Inbox {
        Inbox { full: AtomicBool::new(false), strays: Mutex::default(), bell }
    }

    fn push(&self, stray: Stray) {
        let mut strays = lock(&self.strays);
        if strays.len() < WAITING {
            strays.push(stray);
            drop(strays);
            self.ring();
        }
    }

    fn ring(&self) {
        if !self.full.swap(true, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Returns what has come since the last call; `None` if the thread has not been called.
    pub(super) fn take(&self) -> Option<Vec<Stray>> {
        // A plain load does not take the cache line from other threads in each step.
        if !self.full.load(Ordering::Relaxed) {
            return None;
        }
        // The order matters: a thread that adds something after the flag is cleared rings again, and everything that was added before is
        // taken below.
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        self.full.store(false, Ordering::SeqCst);
        Some(std::mem::take(&mut *lock(&self.strays)))
    }
}

/// Direction to a neighbor in the order in which processes follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Side {
    Older,
    Newer,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Older => Side::Newer,
            Side::Newer => Side::Older,
        }
    }
}

/// No neighbor reads the UDP sockets.
const NOBODY: u8 = u8::MAX;

/// Process before or after this one.
#[derive(Clone, Debug)]
struct Neighbor {
    socket: Arc<OwnedFd>,
    /// Number of the process, once it has said so.
    process: Option<u16>,
    /// Number of the thread that reads the socket.
    reader: Option<u8>,
    /// The neighbor knows that this process reads the UDP sockets.
    is_greeted: bool,
}

/// Message between neighbors.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Number of the sending process, and whether it reads the UDP sockets from now on.
    Hello(u16, bool),
    Stray(Stray),
}

/// State of the process.
#[derive(Debug)]
pub(super) struct Process {
    /// Number in connection identifiers, random.
    pub number: u16,
    /// Secret of resets, tokens and identifiers, where the configuration names none.
    pub key: HostKey,
    pub mask: Arc<Mask>,
    threads: Mutex<Vec<Option<Arc<Inbox>>>>,
    older: Mutex<Option<Neighbor>>,
    newer: Mutex<Option<Neighbor>>,
    /// The neighbor that reads the UDP sockets: [`Side`] as a number, or [`NOBODY`].
    delegated: AtomicU8,
    /// This process ends after its connections.
    leaving: AtomicBool,
}

static PROCESS: OnceLock<Process> = OnceLock::new();

/// Gives the process the secret that all processes of this server have, and the socket to its predecessor. The first call counts,
/// and only before the first thread has started.
pub fn start(secret: &[u8], older: Option<OwnedFd>) {
    let _ = PROCESS.set(Process::new(secret, older));
}

/// Gives the process the socket to a successor.
pub fn succeed(newer: OwnedFd) {
    let process = process();
    process.adopt(Side::Newer, newer);
    process.ring_all();
}

pub(super) fn process() -> &'static Process {
    PROCESS.get_or_init(|| {
        let words: Vec<u8> = (0..8).flat_map(|_| forebay_sys::random::random_u64().to_ne_bytes()).collect();
        Process::new(&words, None)
    })
}

impl Process {
    fn new(secret: &[u8], older: Option<OwnedFd>) -> Process {
        let key = HostKey::new(secret);
        let mask = Mask::new(&key.derive(b"identifiers"));
        let process = Process {
            // Two processes of one server need different numbers, and neither knows the other's when it starts.
            number: (forebay_sys::random::random_u64() >> 48) as u16,
            mask: Arc::new(mask.unwrap_or_else(|| unreachable!("16 bytes are a key"))),
            key,
            threads: Mutex::default(),
            older: Mutex::default(),
            newer: Mutex::default(),
            delegated: AtomicU8::new(NOBODY),
            leaving: AtomicBool::new(false),
        };
        if let Some(socket) = older {
            process.adopt(Side::Older, socket);
        }
        process
    }

    fn side(&self, side: Side) -> &Mutex<Option<Neighbor>> {
        match side {
            Side::Older => &self.older,
            Side::Newer => &self.newer,
        }
    }

    fn adopt(&self, side: Side, socket: OwnedFd) {
        let _ = rustix::io::ioctl_fionbio(&socket, true);
        // The socket should have room for the datagrams of a turn, but the kernel may give less.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4 << 20);
        *lock(self.side(side)) =
            Some(Neighbor { socket: Arc::new(socket), process: None, reader: None, is_greeted: false });
    }

    /// Registers a thread.
    pub(super) fn join(&self, thread: u8, inbox: Arc<Inbox>) {
        let mut threads = lock(&self.threads);
        let at = usize::from(thread);
        if threads.len() <= at {
            threads.resize_with(at + 1, || None);
        }
        if let Some(place) = threads.get_mut(at) {
            *place = Some(inbox);
        }
    }

    /// Removes a thread that ends. Another thread reads the sockets of neighbors from now on.
    pub(super) fn part(&self, thread: u8) {
        if let Some(place) = lock(&self.threads).get_mut(usize::from(thread)) {
            *place = None;
        }
        for side in [Side::Older, Side::Newer] {
            if let Some(neighbor) = lock(self.side(side)).as_mut().filter(|n| n.reader == Some(thread)) {
                neighbor.reader = None;
            }
        }
        self.ring_all();
    }

    /// Returns `true` if this thread is the one that reads the sockets of neighbors.
    pub(super) fn is_reader(&self, thread: u8) -> bool {
        lock(&self.threads).iter().position(Option::is_some) == Some(usize::from(thread))
    }

    fn ring_all(&self) {
        lock(&self.threads).iter().flatten().for_each(|inbox| inbox.ring());
    }

    /// Returns the sockets of neighbors that no thread reads, because the thread of this number is going to read them. A predecessor
    /// learns once that this process reads the UDP sockets.
    pub(super) fn unread(&self, thread: u8) -> Vec<(Side, Arc<OwnedFd>)> {
        let sides = [Side::Older, Side::Newer].into_iter();
        sides
            .filter_map(|side| {
                let (socket, is_greeted) = {
                    let mut neighbor = lock(self.side(side));
                    let neighbor = neighbor.as_mut().filter(|n| n.reader.is_none())?;
                    neighbor.reader = Some(thread);
                    (neighbor.socket.clone(), std::mem::replace(&mut neighbor.is_greeted, true))
                };
                if side == Side::Older && !is_greeted {
                    self.greet(side, true);
                }
                Some((side, socket))
            })
            .collect()
    }

    /// Tells a neighbor the number of this process, and whether it reads the UDP sockets.
    pub(super) fn greet(&self, side: Side, reads: bool) {
        let [high, low] = self.number.to_be_bytes();
        self.send(side, &[HELLO, high, low, u8::from(reads)]);
    }

    fn send(&self, side: Side, message: &[u8]) -> bool {
        let socket = lock(self.side(side)).as_ref().map(|n| n.socket.clone());
        // The event loop must not wait for a neighbor. A datagram that finds no room is lost, and QUIC sends its content again.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        socket.is_some_and(|socket| rustix::net::send(&*socket, message, flags).is_ok())
    }

    /// Returns `true` if a neighbor reads the UDP sockets.
    pub(super) fn is_delegated(&self) -> bool {
        self.delegated.load(Ordering::Relaxed) != NOBODY
    }

    fn delegate(&self, to: Side) {
        // Each thread has to notice the change, since each has sockets of its own.
        if self.delegated.swap(to as u8, Ordering::AcqRel) != to as u8 {
            self.ring_all();
        }
    }

    /// Reads the UDP sockets again if this neighbor has read them so far.
    fn resume(&self, from: Side) {
        let was = self.delegated.compare_exchange(from as u8, NOBODY, Ordering::AcqRel, Ordering::Acquire);
        if was.is_ok() {
            self.ring_all();
        }
    }

    /// Notes that the process ends after its connections. A predecessor that still runs gets the UDP sockets back.
    pub(super) fn leave(&self) {
        if !self.leaving.swap(true, Ordering::AcqRel) && !self.is_delegated() {
            self.greet(Side::Older, false);
        }
    }

    /// Returns `true` if another program has been started that will read the UDP sockets.
    pub(super) fn has_successor(&self) -> bool {
        lock(&self.newer).is_some()
    }

    /// Sends a datagram to the thread or the process of its place. `from` is the neighbor that has sent it. With `exact`, it is sent only
    /// if the place is known. Returns `false` if there is no such place.
    pub(super) fn pass(
        &self,
        place: Place,
        exact: bool,
        received: &Received<'_>,
        from: Option<Side>,
    ) -> bool {
        if place.process == self.number {
            let inbox = lock(&self.threads).get(usize::from(place.thread)).cloned().flatten();
            let stray = || Stray {
                place,
                remote: received.remote,
                local: received.local,
                ecn: received.ecn,
                bytes: received.bytes.to_vec(),
            };
            return inbox.is_some_and(|inbox| {
                inbox.push(stray());
                true
            });
        }
        let is = |side: Side| {
            let neighbor = lock(self.side(side));
            neighbor.as_ref().map(|n| n.process == Some(place.process))
        };
        let side = match from {
            // The datagram goes on in the same direction, so that it cannot go around in a circle.
            Some(from) => is(from.other()).map(|_| from.other()),
            None if is(Side::Newer) == Some(true) => Some(Side::Newer),
            None => is(Side::Older).filter(|known| *known || !exact).map(|_| Side::Older),
        };
        side.is_some_and(|side| self.send(side, &encode(place, received)))
    }

    /// Reads all messages of a neighbor, and returns `false` if the neighbor is gone. Datagrams of this process go to their threads.
    pub(super) fn read(&self, side: Side, socket: &OwnedFd, room: &mut Vec<u8>) -> bool {
        room.resize(LARGEST, 0);
        loop {
            let length = match rustix::net::recv(socket, &mut **room, RecvFlags::DONTWAIT) {
                Ok((0, _)) => break,
                Ok((length, _)) => length,
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            match room.get(..length).and_then(decode) {
                Some(Message::Hello(number, reads)) => self.greeted(side, number, reads),
                Some(Message::Stray(stray)) => {
                    self.pass(stray.place, false, &stray.received(), Some(side));
                }
                None => {}
            }
        }
        *lock(self.side(side)) = None;
        self.resume(side);
        false
    }

    fn greeted(&self, side: Side, number: u16, reads: bool) {
        let known = match &mut *lock(self.side(side)) {
            Some(neighbor) => neighbor.process.replace(number).is_some(),
            None => return,
        };
        let leaving = self.leaving.load(Ordering::Acquire);
        match (side, reads) {
            // The successor has started, and reads the UDP sockets from now on.
            (Side::Newer, true) => {
                self.delegate(side);
                if !known {
                    self.greet(side, false);
                }
            }
            // The successor ends before this process, which serves on.
            (Side::Newer, false) if !leaving => {
                self.resume(side);
                self.greet(side, true);
            }
            (Side::Older, true) => self.delegate(side),
            _ => {}
        }
    }
}

const HELLO: u8 = 1;
const STRAY: u8 = 2;

fn push_ip(out: &mut Vec<u8>, ip: Option<IpAddr>) {
    let (kind, bytes) = match ip {
        None => (0, [0; 16]),
        Some(IpAddr::V4(v4)) => (4, v4.to_ipv6_mapped().octets()),
        Some(IpAddr::V6(v6)) => (6, v6.octets()),
    };
    out.push(kind);
    out.extend_from_slice(&bytes);
}

fn encode(place: Place, received: &Received<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + received.bytes.len());
    out.push(STRAY);
    out.extend_from_slice(&place.process.to_be_bytes());
    out.extend_from_slice(&[place.thread, place.endpoint, received.ecn]);
    push_ip(&mut out, Some(received.remote.ip()));
    out.extend_from_slice(&received.remote.port().to_be_bytes());
    push_ip(&mut out, received.local);
    out.extend_from_slice(received.bytes);
    out
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

fn take_ip(rest: &mut &[u8]) -> Option<Option<IpAddr>> {
    let [kind] = take(rest)?;
    let octets: [u8; 16] = take(rest)?;
    let [.., a, b, c, d] = octets;
    Some(match kind {
        0 => None,
        4 => Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d))),
        6 => Some(IpAddr::V6(Ipv6Addr::from(octets))),
        _ => return None,
    })
}

fn decode(mut message: &[u8]) -> Option<Message> {
    let rest = &mut message;
    match take(rest)? {
        [HELLO] => {
            let number = u16::from_be_bytes(take(rest)?);
            let [reads] = take(rest)?;
            Some(Message::Hello(number, reads != 0))
        }
        [STRAY] => {
            let process = u16::from_be_bytes(take(rest)?);
            let [thread, endpoint, ecn] = take(rest)?;
            let ip = take_ip(rest)??;
            let remote = SocketAddr::new(ip, u16::from_be_bytes(take(rest)?));
            let local = take_ip(rest)?;
            let place = Place { process, thread, endpoint };
            Some(Message::Stray(Stray { place, remote, local, ecn, bytes: rest.to_vec() }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair")
    }

    /// Process with a thread.
    fn with_thread(older: Option<OwnedFd>) -> (Process, Arc<Inbox>) {
        let process = Process::new(b"secret", older);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd");
        let inbox = Arc::new(Inbox::new(bell));
        process.join(0, inbox.clone());
        (process, inbox)
    }

    fn read(process: &Process, side: Side) -> bool {
        let socket = lock(process.side(side)).as_ref().map(|n| n.socket.clone()).expect("a neighbor");
        process.read(side, &socket, &mut Vec::new())
    }

    fn received(bytes: &[u8]) -> Received<'_> {
        let remote = "[2001:db8::1]:4433".parse().expect("an address");
        Received { remote, local: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), ecn: 2, bytes }
    }

    #[test]
    fn messages_survive_their_way() {
        let place = Place { process: 0x1234, thread: 3, endpoint: 4 };
        for bytes in [&b""[..], b"datagram"] {
            let message = encode(place, &received(bytes));
            let Some(Message::Stray(stray)) = decode(&message) else { panic!("{message:?}") };
            assert_eq!((stray.place, stray.received()), (place, received(bytes)));
            for length in 0..message.len() - bytes.len() {
                assert_eq!(decode(&message[..length]), None, "{length}");
            }
        }
        assert_eq!(decode(&[9, 0, 0]), None);
    }

    /// A call that comes while another is taken is not lost.
    #[test]
    fn every_datagram_is_taken() {
        let (process, inbox) = with_thread(None);
        let place = Place { process: process.number, thread: 0, endpoint: 1 };
        const ALL: usize = 200_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..ALL {
                    process.pass(place, true, &received(b"x"), None);
                    if n % 100 == 0 {
                        std::thread::yield_now();
                    }
                    // No more than wait at a time.
                    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
                    while lock(&inbox.strays).len() > WAITING / 2 {
                        assert!(std::time::Instant::now() < end, "nobody takes them");
                        std::thread::yield_now();
                    }
                }
            });
            let mut taken = 0;
            while taken < ALL {
                let bell = rustix::event::PollFd::new(&inbox.bell, rustix::event::PollFlags::IN);
                let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
                let rung = rustix::event::poll(&mut [bell], Some(&limit)).expect("poll");
                assert_eq!(rung, 1, "{taken} of {ALL}: nobody rings");
                taken += inbox.take().map_or(0, |all| all.len());
            }
        });
    }

    #[test]
    fn a_datagram_finds_its_thread() {
        let (process, inbox) = with_thread(None);
        let place = Place { process: process.number, thread: 0, endpoint: 1 };
        assert!(process.pass(place, true, &received(b"x"), None));
        assert_eq!(inbox.take().and_then(|all| Some(all.first()?.received() == received(b"x"))), Some(true));
        assert!(inbox.take().is_none());
        assert!(!process.pass(Place { thread: 9, ..place }, false, &received(b"x"), None));
        let other = Place { process: process.number.wrapping_add(1), ..place };
        assert!(!process.pass(other, false, &received(b"x"), None), "nobody else is there");
        for _ in 0..2 * WAITING {
            process.pass(place, true, &received(b"x"), None);
        }
        assert_eq!(inbox.take().map(|all| all.len()), Some(WAITING));
    }

    /// The first process gets datagrams of its connections from the second and the third, and the sockets back when they end.
    #[test]
    fn three_processes_follow_one_another() {
        let (first, at_first) = with_thread(None);
        let (newer, older) = pair();
        first.adopt(Side::Newer, newer);
        let (second, _) = with_thread(Some(older));
        assert!(!first.is_delegated());
        second.greet(Side::Older, true);
        assert!(read(&first, Side::Newer) && first.is_delegated());
        assert!(read(&second, Side::Older) && !second.is_delegated());
        let place = |of: &Process| Place { process: of.number, thread: 0, endpoint: 0 };
        assert!(second.pass(place(&first), true, &received(b"1"), None));
        assert!(read(&first, Side::Newer));
        assert_eq!(at_first.take().map(|all| all.len()), Some(1));
        // Identifiers that a client has made up stay where they are; packets of unknown connections may be of older processes.
        let unknown = Place { process: first.number ^ second.number ^ 1, thread: 0, endpoint: 0 };
        assert!(!second.pass(unknown, true, &received(b"2"), None));
        assert!(second.pass(unknown, false, &received(b"2"), None));
        assert!(read(&first, Side::Newer));
        assert!(at_first.take().is_none_or(|all| all.is_empty()));
        // A third.
        let (newer, older) = pair();
        second.adopt(Side::Newer, newer);
        let (third, at_third) = with_thread(Some(older));
        third.greet(Side::Older, true);
        assert!(read(&second, Side::Newer) && second.is_delegated());
        assert!(third.pass(place(&first), false, &received(b"3"), None));
        assert!(read(&second, Side::Newer) && read(&first, Side::Newer));
        assert_eq!(at_first.take().map(|all| all.len()), Some(1));
        // It ends before the second, which reads on and feeds it.
        assert!(read(&third, Side::Older));
        third.leave();
        assert!(read(&second, Side::Newer) && !second.is_delegated());
        assert!(read(&third, Side::Older) && third.is_delegated());
        assert!(second.pass(place(&third), true, &received(b"4"), None));
        assert!(read(&third, Side::Older));
        assert_eq!(at_third.take().map(|all| all.len()), Some(1));
        // Or dies.
        second.greeted(Side::Newer, third.number, true);
        assert!(second.is_delegated());
        drop(third);
        assert!(!read(&second, Side::Newer) && !second.is_delegated());
        // Threads end one by one: the next one reads.
        let inbox = Arc::new(Inbox::new(eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd")));
        second.join(1, inbox.clone());
        assert_eq!((second.unread(0).len(), second.unread(1).len()), (1, 0));
        assert!(second.is_reader(0) && !second.is_reader(1));
        assert!(read(&first, Side::Newer));
        first.resume(Side::Newer);
        second.part(1);
        assert_eq!(second.unread(0).len(), 0, "the reader is another");
        second.join(1, inbox.clone());
        second.part(0);
        assert!(second.is_reader(1) && inbox.take().is_some());
        assert_eq!(second.unread(1).len(), 1);
        assert!(read(&first, Side::Newer) && !first.is_delegated(), "told once");
        // The first ends, whoever reads.
        second.delegate(Side::Newer);
        first.leave();
        drop(first);
        assert!(!read(&second, Side::Older) && second.is_delegated());
        assert!(!second.pass(unknown, false, &received(b"5"), None));
    }
}
