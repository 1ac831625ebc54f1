//! `bench backend`: a server to measure a proxy with. It sends back what it gets, over TCP and UDP. A connection whose
//! first bytes are an order (`forebay down 1048576`, `forebay up 1048576`, each with a line feed) sends or takes so many
//! bytes instead.

use crate::cli::print;
use crate::raw::{DOWN, ORDER, TAKEN, UP};
use crate::url::{Scheme, Url};
use crate::{Error, signals, units};
use clap::Args;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;

/// Bytes of a read or a write.
const PIECE: usize = 64 * 1024;
/// Longest line of an order.
const LINE: usize = 64;
/// Datagrams that are answered before other sockets have their turn.
const DATAGRAMS: usize = 64;
/// Pause after a connection that could not be accepted.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(1);
/// Pause between two looks for a signal to stop.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Arguments of `bench backend`.
#[derive(Args)]
pub(crate) struct BackendArgs {
    /// Addresses: tcp://127.0.0.1:9000, udp://127.0.0.1:9000; port 0 takes a free one
    #[arg(required = true)]
    addresses: Vec<String>,
    /// Threads
    #[arg(short, long, default_value = "1", value_parser = units::count)]
    threads: u64,
}

/// A socket of the backend.
enum Socket {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Socket {
    /// Binds an address of the command line.
    fn bind(text: &str) -> Result<Socket, Error> {
        let (scheme, addr) = address(text)?;
        let bound = match scheme {
            Scheme::Udp => UdpSocket::bind(addr).map(Socket::Udp),
            _ => TcpListener::bind(addr).map(Socket::Tcp),
        };
        let socket = bound.map_err(Error::io(text))?;
        match &socket {
            Socket::Tcp(listener) => listener.set_nonblocking(true),
            Socket::Udp(socket) => socket.set_nonblocking(true),
        }
        .map_err(Error::io(text))?;
        Ok(socket)
    }

    /// Returns its address as a URL.
    fn name(&self) -> std::io::Result<String> {
        Ok(match self {
            Socket::Tcp(listener) => format!("tcp://{}", listener.local_addr()?),
            Socket::Udp(socket) => format!("udp://{}", socket.local_addr()?),
        })
    }

    fn try_clone(&self) -> std::io::Result<Socket> {
        Ok(match self {
            Socket::Tcp(listener) => Socket::Tcp(listener.try_clone()?),
            Socket::Udp(socket) => Socket::Udp(socket.try_clone()?),
        })
    }
}

/// Returns the protocol and the address of an argument.
fn address(text: &str) -> Result<(Scheme, SocketAddr), Error> {
    // A URL has no port 0.
    let (free, url) = match text.strip_suffix(":0") {
        Some(host) => (true, Url::parse(&format!("{host}:1"))?),
        None => (false, Url::parse(text)?),
    };
    let resolved = url.resolve(url.scheme == Scheme::Udp)?.socket_addr().copied();
    let known = resolved.filter(|_| matches!(url.scheme, Scheme::Tcp | Scheme::Udp));
    let addr =
        known.ok_or_else(|| Error::Usage(format!("{text}: expected tcp://HOST:PORT or udp://HOST:PORT")))?;
    Ok((url.scheme, SocketAddr::new(addr.ip(), if free { 0 } else { addr.port() })))
}

/// Runs `bench backend` until a signal ends it.
///
/// # Errors
/// It cannot listen.
pub(crate) fn main(args: &BackendArgs) -> Result<u8, Error> {
    forebay_sys::limits::raise_descriptors();
    let sockets: Vec<Socket> = args.addresses.iter().map(|a| Socket::bind(a)).collect::<Result<_, _>>()?;
    for socket in &sockets {
        let name = socket.name().map_err(Error::io("a socket"))?;
        // Without a reader it serves all the same.
        print(format!("listening at {name}\n"));
    }
    let thread = || Thread::new(&sockets).map_err(Error::io("a socket"));
    let threads: Vec<Thread> = (0..args.threads).map(|_| thread()).collect::<Result<_, _>>()?;
    std::thread::scope(|scope| {
        let running: Vec<_> = threads.into_iter().map(|thread| scope.spawn(|| thread.run())).collect();
        running.into_iter().try_for_each(|handle| {
            let ended = handle.join().map_err(|_| Error::Usage("a thread panicked".into()))?;
            ended.map_err(Error::io("epoll"))
        })
    })?;
    Ok(0)
}

/// A thread with connections of its own.
struct Thread {
    epoll: OwnedFd,
    sockets: Vec<Socket>,
    /// By the number of their events.
    peers: HashMap<u64, Peer>,
    next: u64,
    piece: Vec<u8>,
}

impl Thread {
    fn new(sockets: &[Socket]) -> std::io::Result<Thread> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let sockets: Vec<Socket> = sockets.iter().map(Socket::try_clone).collect::<Result<_, _>>()?;
        for (n, socket) in sockets.iter().enumerate() {
            let number = EventData::new_u64(n as u64);
            match socket {
                Socket::Tcp(listener) => epoll::add(&epoll, listener, number, EventFlags::IN)?,
                Socket::Udp(socket) => epoll::add(&epoll, socket, number, EventFlags::IN)?,
            }
        }
        let next = sockets.len() as u64;
        Ok(Thread { epoll, sockets, peers: HashMap::new(), next, piece: vec![0; PIECE] })
    }

    fn run(mut self) -> std::io::Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        while !signals::interrupted() {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&LOOK)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            for event in &events {
                // Fields of a packed struct cannot be borrowed.
                let number = event.data.u64();
                match self.sockets.get(number as usize) {
                    Some(Socket::Udp(socket)) => answer_datagrams(socket, &mut self.piece),
                    Some(Socket::Tcp(listener)) => match listener.accept() {
                        // A connection that cannot be set up is closed; the others go on.
                        Ok((stream, _)) => self.accept(stream).unwrap_or_default(),
                        // Another thread has taken it.
                        Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                        // No descriptor is left, until a connection ends.
                        Err(_) => std::thread::sleep(PAUSE),
                    },
                    None => self.peer(number)?,
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nonblocking(true)?;
        // Without it the program only measures worse.
        let _ = stream.set_nodelay(true);
        epoll::add(&self.epoll, &stream, EventData::new_u64(self.next), EventFlags::IN)?;
        self.peers.insert(self.next, Peer::new(stream));
        self.next += 1;
        Ok(())
    }

    /// Serves a connection that is ready.
    fn peer(&mut self, number: u64) -> std::io::Result<()> {
        let Some(peer) = self.peers.get_mut(&number) else { return Ok(()) };
        let blocked = peer.is_blocked();
        if peer.serve(&mut self.piece).is_err() {
            self.peers.remove(&number);
            return Ok(());
        }
        if peer.is_blocked() != blocked {
            let wanted = if peer.is_blocked() { EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.epoll, &peer.stream, EventData::new_u64(number), wanted)?;
        }
        Ok(())
    }
}

/// Sends datagrams back.
fn answer_datagrams(socket: &UdpSocket, piece: &mut [u8]) {
    for _ in 0..DATAGRAMS {
        let Ok((n, peer)) = socket.recv_from(piece) else { return };
        send_datagram(socket, piece.get(..n).unwrap_or_default(), peer);
    }
}

fn send_datagram(socket: &UdpSocket, bytes: &[u8], peer: SocketAddr) {
    // A datagram that cannot be sent is one that was lost.
    let _ = socket.send_to(bytes, peer);
}

/// State of a connection's input.
#[derive(Debug, PartialEq, Eq)]
enum Mode {
    /// The first bytes are the beginning of an order, so far.
    Undecided,
    Echo,
    /// Lines with orders.
    Orders,
    /// So many bytes of an order are to come.
    Taking(u64),
}

/// A connection.
struct Peer {
    stream: TcpStream,
    state: OwedBytes,
    /// The client sends no more.
    ended: bool,
}

impl Peer {
    fn new(stream: TcpStream) -> Peer {
        Peer { stream, state: OwedBytes::default(), ended: false }
    }

    /// Returns `true` if the client has to take bytes before others are read.
    fn is_blocked(&self) -> bool {
        self.state.owes()
    }

    /// Reads and writes until the socket would block. An error ends the connection.
    fn serve(&mut self, piece: &mut [u8]) -> std::io::Result<()> {
        loop {
            match self.turn(piece) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn turn(&mut self, piece: &mut [u8]) -> std::io::Result<()> {
        if self.state.owes() {
            let sent = self.stream.write(self.state.due(piece))?;
            return self.state.sent(sent);
        }
        if self.ended {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let n = self.stream.read(piece)?;
        if n == 0 {
            self.ended = true;
            self.state.end();
            return Ok(());
        }
        self.state.take(piece.get(..n).unwrap_or_default())
    }
}

/// Bytes that a connection is owed, by the bytes that came.
#[derive(Debug)]
struct OwedBytes {
    mode: Mode,
    /// Bytes that came and have no answer yet.
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of `output` that were sent.
    sent: usize,
    /// Zeros to send after `output`.
    zeros: u64,
}

impl Default for OwedBytes {
    fn default() -> OwedBytes {
        OwedBytes { mode: Mode::Undecided, input: Vec::new(), output: Vec::new(), sent: 0, zeros: 0 }
    }
}

impl OwedBytes {
    fn owes(&self) -> bool {
        !self.output.is_empty() || self.zeros > 0
    }

    /// Returns the bytes to send next.
    fn due<'b>(&'b self, piece: &'b mut [u8]) -> &'b [u8] {
        if !self.output.is_empty() {
            return self.output.get(self.sent..).unwrap_or_default();
        }
        let n = self.zeros.min(piece.len() as u64) as usize;
        let zeros = piece.get_mut(..n).unwrap_or_default();
        zeros.fill(0);
        zeros
    }

    /// Notes that bytes were sent, and looks at the input that waited for it.
    fn sent(&mut self, n: usize) -> std::io::Result<()> {
        if self.output.is_empty() {
            self.zeros = self.zeros.saturating_sub(n as u64);
        } else {
            self.sent += n;
        }
        if self.sent >= self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
        self.answer()
    }

    /// Takes bytes of the client.
    fn take(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.input.extend_from_slice(bytes);
        self.answer()
    }

    /// Takes the end of the client's bytes: what might have become an order is none.
    fn end(&mut self) {
        if self.mode == Mode::Undecided {
            self.mode = Mode::Echo;
            std::mem::swap(&mut self.input, &mut self.output);
        }
    }

    /// Answers the input in order, until bytes are owed or more input is needed.
    fn answer(&mut self) -> std::io::Result<()> {
        while !self.owes() && !self.input.is_empty() {
            match self.mode {
                Mode::Undecided => {
                    let order = ORDER.as_bytes();
                    let n = order.len().min(self.input.len());
                    self.mode = match self.input.get(..n) == order.get(..n) {
                        true if n < order.len() => return Ok(()),
                        true => Mode::Orders,
                        false => Mode::Echo,
                    };
                }
                Mode::Echo => std::mem::swap(&mut self.input, &mut self.output),
                Mode::Taking(left) => self.discard(left),
                Mode::Orders => match self.input.iter().position(|b| *b == b'\n') {
                    Some(end) => self.obey(end)?,
                    None if self.input.len() > LINE => return Err(ErrorKind::InvalidData.into()),
                    None => return Ok(()),
                },
            }
        }
        Ok(())
    }

    /// Drops bytes of an order, and confirms the last of them.
    fn discard(&mut self, left: u64) {
        let n = left.min(self.input.len() as u64);
        self.input.drain(..n as usize);
        self.mode = Mode::Taking(left - n);
        if left == n {
            self.output.extend_from_slice(TAKEN);
            self.mode = Mode::Orders;
        }
    }

    /// Obeys the order that ends at `end`.
    fn obey(&mut self, end: usize) -> std::io::Result<()> {
        let line: Vec<u8> = self.input.drain(..=end).collect();
        let text = String::from_utf8_lossy(&line);
        let order = text.trim_end().strip_prefix(ORDER).and_then(|rest| rest.split_once(' '));
        match order.and_then(|(word, size)| Some((word, size.parse().ok().filter(|n| *n > 0)?))) {
            Some((DOWN, size)) => self.zeros = size,
            Some((UP, size)) => self.mode = Mode::Taking(size),
            _ => return Err(ErrorKind::InvalidData.into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds pieces and returns all that is sent for them.
    fn answers(pieces: &[&[u8]]) -> std::io::Result<Vec<u8>> {
        let (mut state, mut all, mut piece) = (OwedBytes::default(), Vec::new(), [0; 7]);
        for bytes in pieces {
            state.take(bytes)?;
            while state.owes() {
                // Not all at once.
                let due: Vec<u8> = state.due(&mut piece).iter().copied().take(5).collect();
                all.extend_from_slice(&due);
                state.sent(due.len())?;
            }
        }
        Ok(all)
    }

    #[test]
    fn bytes_come_back() {
        assert_eq!(answers(&[b"hello", b"", b" world"]).expect("an echo"), b"hello world");
        // Not an order, which shows late.
        assert_eq!(answers(&[b"fore", b"bay?"]).expect("an echo"), b"forebay?");
    }

    #[test]
    fn the_beginning_of_an_order_comes_back_at_the_end() {
        let mut state = OwedBytes::default();
        state.take(b"fore").expect("taken");
        assert!(!state.owes());
        state.end();
        assert_eq!(state.due(&mut []), b"fore");
        let mut state = OwedBytes::default();
        state.take(b"forebay up 3\nab").expect("taken");
        state.end();
        assert!(!state.owes());
    }

    #[test]
    fn orders_are_obeyed_in_their_order() {
        let many = answers(&[b"forebay do", b"wn 12\nforebay up 3\nabcforebay down 2\n"]);
        assert_eq!(many.expect("obeyed"), [&[0; 12][..], b"OK\n", &[0; 2]].concat());
        assert_eq!(answers(&[b"forebay up 4\nab", b"c", b"d"]).expect("obeyed"), b"OK\n");
        let endless = [&b"forebay "[..], &[b'x'; LINE]].concat();
        for bad in [&b"forebay down\n"[..], b"forebay down 0\n", b"forebay left 1\n", &endless] {
            assert!(answers(&[bad]).is_err(), "{bad:?}");
        }
    }
}
