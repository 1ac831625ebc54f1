//! The recorder: one upstream for every protocol, whose answers are a function of what it received, and which keeps what it
//! received by the number of the request.
//!
//! The first bytes of a connection tell its protocol: a configuration may lead several of them to one `upstream`.

mod answer;
mod gateways;
mod http;

pub use answer::{NUMBER, WISH, WISHES};

use crate::message::{Field, Received};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Most connections at a time; more are closed.
const MOST_CONNECTIONS: usize = 4096;

/// Most requests that are kept for one number, or without one.
const MOST_KEPT: usize = 10_000;

/// Most numbers of requests for which something is kept.
const MOST_NUMBERS: usize = 100_000;

/// Time for which a connection may be silent.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
struct State {
    by_number: Mutex<HashMap<u32, Vec<Received>>>,
    without: Mutex<Vec<Received>>,
    /// Answers by number; `None`: to all others.
    scripts: Mutex<HashMap<Option<u32>, Scripted>>,
    ended: AtomicBool,
    connections: AtomicUsize,
}

/// Answer that takes the place of the usual one.
#[derive(Clone, Debug)]
pub struct Scripted {
    /// Status.
    pub status: u16,
    /// Fields. Without a `Content-Type` it is `text/plain`.
    pub fields: Vec<Field>,
    /// Content.
    pub body: Vec<u8>,
}

/// A recorder that listens. It ends when it is dropped.
#[derive(Debug)]
pub struct Recorder {
    address: Ipv4Addr,
    port: u16,
    state: Arc<State>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn keep(&self, number: Option<u32>, received: Received) {
        let mut numbered;
        let mut without;
        let list: &mut Vec<Received> = match number {
            Some(n) => {
                numbered = locked(&self.by_number);
                // What comes after its request was compared stays here.
                if numbered.len() >= MOST_NUMBERS {
                    numbered.clear();
                }
                numbered.entry(n).or_default()
            }
            None => {
                without = locked(&self.without);
                &mut without
            }
        };
        if list.len() < MOST_KEPT {
            list.push(received);
        }
    }
}

impl Scripted {
    fn reply(self, no_body: bool) -> answer::Reply {
        let mut fields = self.fields;
        if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            fields.push(("Content-Type".to_owned(), "text/plain".to_owned()));
        }
        let body = if no_body { Vec::new() } else { self.body };
        answer::Reply { status: self.status, fields, body, chunked: false }
    }
}

impl Recorder {
    /// Starts one at a port of an address, in threads of this process.
    ///
    /// # Errors
    /// The port is taken.
    pub fn start(address: Ipv4Addr, port: u16) -> io::Result<Recorder> {
        let listener = TcpListener::bind((address, port))?;
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        std::thread::Builder::new().name("recorder".into()).spawn(move || accept(&listener, &shared))?;
        let (socket, shared) = (UdpSocket::bind((address, port))?, Arc::clone(&state));
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        std::thread::Builder::new().name("datagrams".into()).spawn(move || datagrams(&socket, &shared))?;
        Ok(Recorder { address, port, state })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        (self.address, self.port).into()
    }

    /// Sets the answer to the requests with a number. `None`: to all that have none of their own.
    pub fn script(&self, number: Option<u32>, answer: Scripted) {
        locked(&self.state.scripts).insert(number, answer);
    }

    /// Takes out what has been received for a request.
    pub fn take(&self, number: u32) -> Vec<Received> {
        locked(&self.state.by_number).remove(&number).unwrap_or_default()
    }

    /// Puts back what was taken out: more may come.
    pub fn put_back(&self, number: u32, received: Vec<Received>) {
        if !received.is_empty() {
            let mut all = locked(&self.state.by_number);
            let later = std::mem::replace(all.entry(number).or_default(), received);
            all.entry(number).or_default().extend(later);
        }
    }

    /// Takes out what was received without a number.
    pub fn take_without(&self) -> Vec<Received> {
        std::mem::take(&mut *locked(&self.state.without))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((self.address, self.port));
    }
}

fn accept(listener: &TcpListener, state: &Arc<State>) {
    for stream in listener.incoming() {
        if state.ended.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else { continue };
        if state.connections.load(Ordering::Relaxed) >= MOST_CONNECTIONS {
            continue;
        }
        let state = Arc::clone(state);
        let _ = std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
            state.connections.fetch_add(1, Ordering::Relaxed);
            let _ = serve(stream, &state);
            state.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Answers each datagram by one.
fn datagrams(socket: &UdpSocket, state: &State) {
    let mut bytes = vec![0; 65_536];
    while !state.ended.load(Ordering::Relaxed) {
        let Ok((n, from)) = socket.recv_from(&mut bytes) else { continue };
        let mut rest = bytes.get(..n).unwrap_or_default();
        let line = crate::message::text(&crate::wire::line(&mut rest).unwrap_or_default());
        let fields = crate::wire::fields(&mut rest).unwrap_or_default();
        let received = Received { protocol: "UDP", line, fields, body: rest.to_vec() };
        let (number, _) = answer::answer(&received);
        let answer = format!("{} and {} bytes\n", received.line, received.body.len());
        state.keep(number, received);
        let _ = socket.send_to(answer.as_bytes(), from);
    }
}

/// Protocols that the first byte of a connection tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    FastCgi,
    Scgi,
    Uwsgi,
    Memcached,
    Tls,
    Http2,
    Http1,
}

fn protocol(first: &[u8]) -> Protocol {
    match first {
        [1, ..] => Protocol::FastCgi,
        [b'0'..=b'9', ..] => Protocol::Scgi,
        [0x16, ..] => Protocol::Tls,
        [0..0x20, ..] => Protocol::Uwsgi,
        [b'P', b'R', b'I', b' ', ..] => Protocol::Http2,
        [b'g', b'e', b't' | b'a', ..] => Protocol::Memcached,
        _ => Protocol::Http1,
    }
}

/// A connection of a server under comparison.
struct Connection<'s> {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    state: &'s State,
}

impl Connection<'_> {
    /// Keeps a request and returns the answer to it.
    fn answer(&self, received: Received) -> answer::Reply {
        let (number, mut reply) = answer::answer(&received);
        let scripts = locked(&self.state.scripts);
        let scripted = scripts.get(&number).or_else(|| scripts.get(&None)).cloned();
        drop(scripts);
        if let Some(scripted) = scripted {
            let no_body = received.line.starts_with("HEAD ") && !received.protocol.starts_with("HTTP");
            reply = scripted.reply(no_body);
        }
        self.state.keep(number, received);
        reply
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes)
    }

    /// Serves a request of a gateway. An error is the end of the connection.
    fn gateway(&mut self, protocol: Protocol) -> io::Result<()> {
        let (received, keep) = match protocol {
            Protocol::FastCgi => gateways::fastcgi(&mut self.reader)?,
            Protocol::Scgi => (gateways::scgi(&mut self.reader)?, false),
            Protocol::Memcached => (gateways::memcached(&mut self.reader)?, true),
            _ => (gateways::uwsgi(&mut self.reader)?, false),
        };
        let line = received.line.clone();
        let reply = self.answer(received);
        let bytes = match protocol {
            Protocol::FastCgi => gateways::fastcgi_answer(&reply),
            Protocol::Memcached => gateways::memcached_answer(&line, &reply),
            _ => gateways::plain_answer(&reply),
        };
        self.write(&bytes)?;
        if keep { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

fn serve(stream: TcpStream, state: &State) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let writer = stream.try_clone()?;
    let mut connection = Connection { reader: BufReader::with_capacity(16 << 10, stream), writer, state };
    let result = requests(&mut connection);
    let _ = connection.writer.shutdown(Shutdown::Write);
    drain(&mut connection.reader);
    result
}

/// Reads what is left, for a while: closing a socket with bytes in it would reset the answer.
fn drain(reader: &mut BufReader<TcpStream>) {
    let _ = reader.get_ref().set_read_timeout(Some(Duration::from_secs(2)));
    let _ = io::copy(&mut reader.take(16 << 20), &mut io::sink());
}

fn requests(connection: &mut Connection<'_>) -> io::Result<()> {
    loop {
        let first = connection.reader.fill_buf()?;
        if first.is_empty() || connection.state.ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        match protocol(first) {
            Protocol::Http1 => http::one(connection)?,
            Protocol::Http2 => return http::two(connection),
            // A stream whose TLS passes through: that it came here is what counts.
            Protocol::Tls => {
                connection.state.keep(None, Received { protocol: "TLS", ..Received::default() });
                return connection.write(&[0x15, 3, 3, 0, 2, 2, 40]);
            }
            gateway => connection.gateway(gateway)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder() -> (Recorder, u16) {
        let port = forebay_bench::ports::free_port().expect("a port");
        (Recorder::start(Ipv4Addr::LOCALHOST, port).expect("listens"), port)
    }

    fn asked(port: u16, bytes: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connected");
        stream.write_all(bytes).expect("sent");
        stream.shutdown(Shutdown::Write).expect("ended");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("an answer");
        all
    }

    #[test]
    fn http_requests_are_answered_and_kept() {
        let (recorder, port) = recorder();
        let head = "POST /a HTTP/1.1\r\nHost: app\r\nForebay-Compare: 3\r\nForebay-Answer: chunked\r\nContent-Length: 2\r\n\r\nxy";
        let answer = String::from_utf8(asked(port, head.as_bytes())).expect("text");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n0\r\n\r\n"), "{answer}");
        let kept = recorder.take(3);
        assert_eq!(
            (kept.len(), kept[0].line.as_str(), kept[0].body.as_slice()),
            (1, "POST /a HTTP/1.1", b"xy".as_slice())
        );
        assert!(recorder.take(3).is_empty());
    }

    #[test]
    fn memcached_has_no_number() {
        let (recorder, port) = recorder();
        assert!(asked(port, b"get key\r\n").starts_with(b"VALUE key 0 "));
        assert_eq!(recorder.take_without()[0].line, "get key");
    }

    #[test]
    fn first_bytes_tell_the_protocol() {
        for (bytes, which) in [
            (b"\x01\x01".as_slice(), Protocol::FastCgi),
            (b"70:CONTENT", Protocol::Scgi),
            (b"\x00\x10\x00\x00", Protocol::Uwsgi),
            (b"PRI * HTTP/2.0", Protocol::Http2),
            (b"PROPFIND / HTTP/1.1", Protocol::Http1),
            (b"get /x\r\n", Protocol::Memcached),
        ] {
            assert_eq!(protocol(bytes), which);
        }
    }
}
