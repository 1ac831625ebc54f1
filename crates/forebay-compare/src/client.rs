//! The client of both servers: kept connections, one request at a time on each.

use crate::h2::Session;
use crate::h3;
use crate::message::{Answer, field, text};
use crate::requests::{Ask, Front, Version};
use crate::wire::{self, Framing};
use forebay_bench::load::Protocol;
use forebay_bench::tls::{Trust, config};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for a response, and between two of its parts.
const PATIENCE: Duration = Duration::from_secs(5);

/// Requests after which a connection is not used again: by default nginx ends one after 1000, and Forebay later.
const MOST_SERVED: u32 = 500;

/// Time for an answer to a datagram.
const DATAGRAM: Duration = Duration::from_secs(1);

/// Most connections of a client to one server.
const MOST_CONNECTIONS: usize = 24;

/// Bytes of a connection.
#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(s) => s.read(buf),
            Stream::Tls(s) => match s.read(buf) {
                // An end without close_notify.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
                other => other,
            },
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(s) => s.write(buf),
            Stream::Tls(s) => s.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(s) => s.flush(),
            Stream::Tls(s) => s.flush(),
        }
    }
}

/// A connection, with the number of the next stream if it speaks HTTP/2.
#[derive(Debug)]
enum Connection {
    One(BufReader<Stream>),
    Two(Session<Buffered>, u32),
}

/// A stream whose reads are buffered.
#[derive(Debug)]
struct Buffered(BufReader<Stream>);

impl Read for Buffered {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Buffered {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}

/// Key of a kept connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    front: Front,
    two: bool,
    name: Option<String>,
}

/// TLS of the clients of one server. Another one would be offered its sessions.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    one: Arc<ClientConfig>,
    two: Arc<ClientConfig>,
    three: Arc<ClientConfig>,
}

impl Tls {
    /// Makes the configurations: any certificate will do.
    pub(crate) fn new() -> Result<Tls, String> {
        let make = |p: Protocol| config(&Trust::Anyone, p).map_err(|e| e.to_string());
        Ok(Tls { one: make(Protocol::Http1)?, two: make(Protocol::Http2)?, three: make(Protocol::Http3)? })
    }
}

/// A client of one server.
#[derive(Debug)]
pub(crate) struct Client {
    address: Ipv4Addr,
    tls: Tls,
    open: HashMap<Key, Connection>,
    /// Connection of the request that has been sent.
    current: Option<(Key, Connection, bool)>,
    /// Requests that each connection has served.
    served: HashMap<Key, u32>,
    /// Connections of HTTP/3.
    quic: HashMap<Key, h3::Session>,
    /// Why there is no connection.
    refused: String,
}

impl Client {
    pub(crate) fn new(address: Ipv4Addr, tls: Tls) -> Client {
        Client {
            address,
            tls,
            open: HashMap::new(),
            current: None,
            served: HashMap::new(),
            quic: HashMap::new(),
            refused: String::new(),
        }
    }

    /// Sends a datagram with a request, and returns what comes back.
    fn datagram(&self, ask: &Ask) -> io::Result<Answer> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(DATAGRAM))?;
        socket.connect((self.address, ask.front.port))?;
        socket.send(&ask.bytes())?;
        let mut bytes = vec![0; 65_536];
        let n = socket.recv(&mut bytes)?;
        bytes.truncate(n);
        Ok(Answer { status: 200, wire: n, body: bytes, ..Answer::default() })
    }

    /// Sends a request over HTTP/3 and reads its response. A connection that has failed is not used again.
    fn over_quic(&mut self, ask: &Ask) -> io::Result<Answer> {
        let key = Key::of(ask);
        let until = Instant::now() + PATIENCE;
        if let Some(mut kept) = self.quic.remove(&key)
            && let Ok(answer) = kept.ask(ask, until)
        {
            self.quic.insert(key, kept);
            return Ok(answer);
        }
        let address = SocketAddr::from((self.address, key.front.port));
        let name = key.name.as_deref().unwrap_or("localhost");
        let mut fresh = h3::Session::connect(address, name, &self.tls.three, until)?;
        let answer = fresh.ask(ask, until);
        if answer.is_ok() && self.quic.len() < MOST_CONNECTIONS {
            self.quic.insert(key, fresh);
        } else {
            fresh.close();
        }
        answer
    }

    /// Sends a request. Errors show when its response is read.
    pub(crate) fn send(&mut self, ask: &Ask) {
        if ask.front.udp || ask.front.quic {
            return;
        }
        let key = Key::of(ask);
        let kept = self.open.remove(&key);
        let reused = kept.is_some();
        let connection = match kept {
            Some(connection) => Ok(connection),
            None => self.connect(&key),
        };
        match connection {
            Ok(mut connection) => {
                // A server that refuses a body answers before it has read all of it.
                let _ = connection.send(ask);
                self.current = Some((key, connection, reused));
            }
            Err(e) => self.refused = format!("no connection: {}", words(&e)),
        }
    }

    /// Reads the response to the request that was sent.
    pub(crate) fn receive(&mut self, ask: &Ask) -> Answer {
        if ask.front.udp {
            return self.datagram(ask).unwrap_or_else(|e| failed(&words(&e)));
        }
        if ask.front.quic {
            return self.over_quic(ask).unwrap_or_else(|e| failed(&words(&e)));
        }
        let Some((key, mut connection, reused)) = self.current.take() else {
            return failed(&self.refused);
        };
        let mut answer = connection.receive(ask);
        // The server has closed the kept connection meanwhile.
        if reused && answer.status == 0 && answer.failure.is_some() && !timed_out(&answer) {
            match self.connect(&key) {
                Ok(fresh) => connection = fresh,
                Err(e) => return failed(&e.to_string()),
            }
            let _ = connection.send(ask);
            answer = connection.receive(ask);
        }
        let served = self.served.entry(key.clone()).or_default();
        *served = if reused { *served + 1 } else { 1 };
        if *served < MOST_SERVED && stays(&answer, ask) {
            self.keep(key, connection);
        }
        answer
    }

    fn keep(&mut self, key: Key, connection: Connection) {
        if self.open.len() >= MOST_CONNECTIONS {
            self.open.clear();
        }
        self.open.insert(key, connection);
    }

    fn connect(&self, key: &Key) -> io::Result<Connection> {
        let address = SocketAddr::from((self.address, key.front.port));
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        if key.front.proxy_protocol {
            let port = key.front.port;
            stream.write_all(format!("PROXY TCP4 127.0.0.1 127.0.0.1 50000 {port}\r\n").as_bytes())?;
        }
        let stream = match key.front.tls {
            true => Stream::Tls(Box::new(self.handshake(key, stream)?)),
            false => Stream::Plain(stream),
        };
        let reader = BufReader::with_capacity(16 << 10, stream);
        Ok(if key.two {
            Connection::Two(Session::begin(Buffered(reader), true)?, 1)
        } else {
            Connection::One(reader)
        })
    }

    fn handshake(
        &self,
        key: &Key,
        mut stream: TcpStream,
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let config = if key.two { &self.tls.two } else { &self.tls.one };
        let given = key.name.clone().unwrap_or_default();
        let name = ServerName::try_from(given).or_else(|_| ServerName::try_from("localhost".to_owned()));
        let name = name.map_err(io::Error::other)?;
        let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut stream)?;
        }
        if key.two && tls.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::other("no HTTP/2 over TLS"));
        }
        Ok(StreamOwned::new(tls, stream))
    }
}

impl Key {
    fn of(ask: &Ask) -> Key {
        let name = ask.host.as_ref().filter(|_| ask.front.tls);
        let name = name.and_then(|h| h.split(':').next()).map(str::to_owned);
        Key { front: ask.front, two: ask.version == Version::Http2, name }
    }
}

impl Connection {
    fn send(&mut self, ask: &Ask) -> io::Result<()> {
        match self {
            Connection::One(stream) => {
                stream.get_mut().write_all(&ask.bytes())?;
                stream.get_mut().flush()
            }
            Connection::Two(session, next) => {
                let (fields, body) = ask.block();
                session.send(*next, &fields, &body)?;
                *next += 2;
                Ok(())
            }
        }
    }

    fn receive(&mut self, ask: &Ask) -> Answer {
        let mut answer = Answer::default();
        let result = match self {
            Connection::One(stream) => read_one(stream, ask, &mut answer),
            Connection::Two(session, _) => session.receive().map(|message| {
                answer.version = "HTTP/2".into();
                answer.status = field(&message.fields, ":status").and_then(|s| s.parse().ok()).unwrap_or(0);
                answer.fields = message.fields.into_iter().filter(|(n, _)| n != ":status").collect();
                answer.fields.extend(message.trailers.into_iter().map(|(n, v)| (format!("trailer {n}"), v)));
                answer.wire = message.body.len();
                answer.body = message.body;
            }),
        };
        answer.failure = result.err().map(|e| words(&e));
        answer
    }
}

/// Returns words for an error that do not depend on where it was noticed.
fn words(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no answer for 5 s".into(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "the connection was closed".into()
        }
        _ => e.to_string(),
    }
}

/// Returns `true` if a server did not answer in time.
pub(crate) fn timed_out(answer: &Answer) -> bool {
    answer.failure.as_deref() == Some("no answer for 5 s")
}

fn failed(why: &str) -> Answer {
    Answer { failure: Some(why.to_owned()), ..Answer::default() }
}

/// Returns `true` if the connection can be used for another request.
fn stays(answer: &Answer, ask: &Ask) -> bool {
    let connection = field(&answer.fields, "connection").map(str::to_ascii_lowercase);
    let kept = match ask.version {
        Version::Http10 => connection.as_deref() == Some("keep-alive"),
        Version::Http11 => connection.as_deref() != Some("close"),
        Version::Http2 | Version::Http3 => return answer.failure.is_none(),
    };
    let delimited = wire::framing(&answer.fields, Framing::Close) != Framing::Close
        || matches!(answer.status, 204 | 304)
        || ask.method == "HEAD";
    answer.failure.is_none() && kept && delimited && answer.status > 101
}

/// Reads a response of HTTP/1.
fn read_one(stream: &mut BufReader<Stream>, ask: &Ask, answer: &mut Answer) -> io::Result<()> {
    loop {
        let line = text(&wire::line(stream)?);
        let Some((version, rest)) = line.split_once(' ').filter(|(v, _)| v.starts_with("HTTP/")) else {
            // A response without a head.
            answer.body = line.into_bytes();
            answer.body.extend(wire::body(stream, Framing::Close)?.bytes);
            return Ok(());
        };
        answer.version = version.to_owned();
        answer.status = rest.get(..3).and_then(|s| s.parse().ok()).unwrap_or(0);
        answer.fields = wire::fields(stream)?;
        if !matches!(answer.status, 100 | 102..200) {
            break;
        }
    }
    let none = ask.method == "HEAD" || matches!(answer.status, 101 | 204 | 304);
    let framing = if none { Framing::Nothing } else { wire::framing(&answer.fields, Framing::Close) };
    let body = wire::body(stream, framing)?;
    (answer.body, answer.wire) = (body.bytes, body.wire);
    answer.fields.extend(body.trailers.into_iter().map(|(n, v)| (format!("trailer {n}"), v)));
    Ok(())
}
