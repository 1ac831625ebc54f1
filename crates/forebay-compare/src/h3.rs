//! HTTP/3 for one stream at a time, by the engines of the workspace: a client that waits.

use crate::message::{Answer, Field, MOST_BODY, text};
use crate::requests::Ask;
use forebay_http::compression;
use forebay_http::h3::connection::{Connection, Offer, Role};
use forebay_http::h3::frame::{Header, kind};
use forebay_http::h3::input::{Input, Next};
use forebay_http::h3::{Fatal, encode};
use forebay_net::quic::client::{Client, Dialling, Limits};
use forebay_net::quic::{Dir, Event, Link, StreamEvent, StreamId, WriteError};
use forebay_sys::datagrams::Batch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::ClientConfig;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest field section, bytes.
const SECTION: usize = 1 << 20;

/// Content that a server may send ahead, bytes.
const WINDOW: u32 = 16 << 20;

/// A connection.
pub(crate) struct Session {
    client: Client,
    link: Rc<Link>,
    batch: Batch,
    connection: Connection,
    connected: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

#[derive(Default)]
struct Fields(Vec<Field>);

impl compression::Sink for Fields {
    fn field(&mut self, field: compression::Field<'_>) {
        self.0.push((text(field.name), text(field.value)));
    }
}

/// A request under way.
struct Exchange {
    id: StreamId,
    bytes: Vec<u8>,
    sent: usize,
    finished: bool,
    input: Input,
    answer: Answer,
    ended: bool,
}

fn wrong(fatal: &Fatal) -> io::Error {
    io::Error::other(format!("the server {}", fatal.reason))
}

impl Session {
    /// Connects to a server.
    pub(crate) fn connect(
        address: SocketAddr,
        name: &str,
        tls: &Arc<ClientConfig>,
        until: Instant,
    ) -> io::Result<Session> {
        let client = Client::new(address)?;
        let limits = Limits {
            window: WINDOW,
            connection_window: WINDOW,
            send_window: None,
            uni_streams: 16,
            idle: None,
            keep_alive: None,
            ids: None,
            tokens: false,
        };
        let dialling = Dialling::new(Arc::clone(tls), limits);
        let link = client
            .connect(Instant::now(), &dialling, name, 0)
            .map_err(|e| io::Error::other(e.to_string()))?;
        // Without a dynamic table no section ever waits for another stream.
        let offer = Offer { table: 0, blocked_streams: 0, requests: 0 };
        let connection = Connection::new(Role::Client, offer);
        let mut session = Session { client, link, batch: Batch::new(), connection, connected: false };
        session.client.mark_sending(&session.link);
        while !session.connected {
            session.turn(None, until)?;
        }
        session.connection.open(session.link.as_ref()).map_err(|e| wrong(&e))?;
        session.connection.send(session.link.as_ref());
        session.client.mark_sending(&session.link);
        Ok(session)
    }

    /// Sends a request and reads its response.
    pub(crate) fn ask(&mut self, ask: &Ask, until: Instant) -> io::Result<Answer> {
        let id = loop {
            let opened = self.link.streams().open(Dir::Bi);
            match opened {
                Some(id) => break id,
                None => self.turn(None, until)?,
            }
        };
        let input = Input::new(Role::Client, id.0, SECTION);
        let answer = Answer { version: "HTTP/3".into(), ..Answer::default() };
        let mut exchange =
            Exchange { id, bytes: bytes(ask), sent: 0, finished: false, input, answer, ended: false };
        self.write(&mut exchange);
        while !exchange.ended {
            self.turn(Some(&mut exchange), until)?;
        }
        Ok(exchange.answer)
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        self.client.close(&self.link, 0x100);
        self.client.flush(Instant::now(), |_| {});
    }

    /// Sends what waits, waits for datagrams, and handles what they bring.
    fn turn(&mut self, mut exchange: Option<&mut Exchange>, until: Instant) -> io::Result<()> {
        self.client.flush(Instant::now(), |_| {});
        let timer = self.client.next_timer().map_or(until, |at| at.min(until));
        self.wait(timer)?;
        let now = Instant::now();
        if now >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        while self.client.receive(&mut self.batch, now).is_ok() {}
        if self.client.take_refusal() {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        self.client.expire(now);
        loop {
            let event = self.link.quic().poll();
            match event {
                None => break,
                Some(event) => self.event(event, exchange.as_deref_mut())?,
            }
        }
        self.connection.send(self.link.as_ref());
        self.client.mark_sending(&self.link);
        Ok(())
    }

    fn wait(&self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let left = left.max(Duration::from_micros(100));
        let time =
            Timespec { tv_sec: left.as_secs().try_into().unwrap_or(1), tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::new(self.client.socket(), PollFlags::IN)];
        match poll(&mut fds, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn event(&mut self, event: Event, exchange: Option<&mut Exchange>) -> io::Result<()> {
        match event {
            Event::Connected => self.connected = true,
            Event::Lost(reason) => {
                return Err(io::Error::other(format!("the connection was lost: {reason:?}")));
            }
            Event::Stream(StreamEvent::Readable { id }) if id.dir() == Dir::Bi => {
                if let Some(exchange) = exchange.filter(|e| e.id == id) {
                    self.read(exchange)?;
                }
            }
            Event::Stream(StreamEvent::Readable { id }) => self.read_uni(id.0)?,
            Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                while let Some(id) = self.connection.accept(self.link.as_ref()).map_err(|e| wrong(&e))? {
                    self.read_uni(id)?;
                }
            }
            Event::Stream(StreamEvent::Writable { id }) => {
                if let Some(exchange) = exchange.filter(|e| e.id == id) {
                    self.write(exchange);
                }
            }
            // The response may still come.
            Event::Stream(StreamEvent::Stopped { id, .. }) => {
                let _ = self.link.streams().reset(id, 0x100);
            }
            _ => {}
        }
        Ok(())
    }

    fn read_uni(&mut self, id: u64) -> io::Result<()> {
        while self.connection.receive(self.link.as_ref(), id).map_err(|e| wrong(&e))?.is_some() {}
        Ok(())
    }

    fn write(&self, exchange: &mut Exchange) {
        let mut streams = self.link.streams();
        while let Some(rest) = exchange.bytes.get(exchange.sent..).filter(|r| !r.is_empty()) {
            match streams.write_slice(exchange.id, rest) {
                Ok(n) => exchange.sent += n,
                Err(WriteError::Blocked) => return,
                Err(_) => exchange.sent = exchange.bytes.len(),
            }
        }
        if !exchange.finished {
            exchange.finished = true;
            let _ = streams.finish(exchange.id);
        }
        drop(streams);
        self.client.mark_sending(&self.link);
    }

    fn read(&mut self, exchange: &mut Exchange) -> io::Result<()> {
        let reset = self.link.streams().received_reset(exchange.id);
        if let Some(code) = reset {
            return Err(io::Error::other(format!("reset with code 0x{code:x}")));
        }
        exchange.input.note_readable();
        loop {
            let Exchange { input, answer, .. } = exchange;
            let next = input.drain(self.link.as_ref(), |piece| {
                if answer.body.len() < MOST_BODY {
                    answer.body.extend_from_slice(piece);
                }
            });
            match next {
                Ok(Next::Section(section)) => self.section(&section, exchange)?,
                Ok(Next::End) => {
                    exchange.answer.wire = exchange.answer.body.len();
                    exchange.ended = true;
                    return Ok(());
                }
                Ok(Next::Nothing | Next::Content) => return Ok(()),
                Ok(Next::TooLarge) => return Err(io::Error::other("too many fields")),
                Err(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    fn section(&mut self, section: &[u8], exchange: &mut Exchange) -> io::Result<()> {
        let mut fields = Fields::default();
        let tables = &mut self.connection.tables;
        let decoded = tables.decode(|decoder, scratch| decoder.decode(section, scratch, &mut fields));
        decoded.map_err(|_| io::Error::other("a field section that is not QPACK"))?;
        let status = fields.0.iter().find(|(n, _)| n == ":status").and_then(|(_, v)| v.parse().ok());
        let answer = &mut exchange.answer;
        match status {
            Some(100..200) => exchange.input.await_head(),
            Some(status) => {
                answer.status = status;
                answer.fields = fields.0.into_iter().filter(|(n, _)| n != ":status").collect();
            }
            None => answer.fields.extend(fields.0.into_iter().map(|(n, v)| (format!("trailer {n}"), v))),
        }
        Ok(())
    }
}

/// Returns the frames of a request.
fn bytes(ask: &Ask) -> Vec<u8> {
    let (fields, body) = ask.block();
    let mut section = Vec::new();
    encode::prefix(&mut section);
    for (name, value) in fields {
        encode::field(&mut section, name.to_ascii_lowercase().as_bytes(), value.as_bytes());
    }
    let mut out = Vec::new();
    let head = |kind, len: usize| Header { kind, len: len as u64 };
    head(kind::HEADERS, section.len()).push(&mut out);
    out.extend_from_slice(&section);
    if !body.is_empty() {
        head(kind::DATA, body.len()).push(&mut out);
        out.extend_from_slice(&body);
    }
    out
}
