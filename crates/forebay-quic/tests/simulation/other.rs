//! A host with another implementation of QUIC: quinn-proto, as it is published.

use crate::app::{App, Work};
use crate::network::Datagram;
use crate::node::{Host, client_tls, server_tls};
use crate::transport::{End, News, Read, Transport, Write};
use bytes::{Bytes, BytesMut};
use forebay_quic::id::{Dir, Side, StreamId};
use forebay_quic::time::Time;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    Connection, ConnectionError, ConnectionHandle, DatagramEvent, EcnCodepoint, Event, StreamEvent, VarInt,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn instant(time: Time) -> Instant {
    *BEGIN + Duration::from_nanos(time.as_nanos())
}

fn time(instant: Instant) -> Time {
    // Rounded up, so that a timer is never asked too early.
    Time::from_nanos(instant.duration_since(*BEGIN).as_nanos() as u64 + 1)
}

struct Member {
    connection: Connection,
    app: App,
    waits_to_open: [bool; 2],
    is_connected: bool,
}

/// Host with quinn-proto.
pub struct Other {
    addr: SocketAddr,
    side: Side,
    endpoint: quinn_proto::Endpoint,
    members: BTreeMap<usize, Member>,
    ended: Vec<App>,
    work: Work,
    retries: bool,
    client: quinn_proto::ClientConfig,
}

fn transport(seed: u64) -> Arc<quinn_proto::TransportConfig> {
    let mut config = quinn_proto::TransportConfig::default();
    config.max_concurrent_bidi_streams(VarInt::from_u32(1 + (seed % 7) as u32));
    config.max_concurrent_uni_streams(VarInt::from_u32(1 + (seed % 3) as u32));
    config.max_idle_timeout(Some(VarInt::from_u32(30_000).into()));
    config.initial_rtt(Duration::from_millis(100));
    config.keep_alive_interval(Some(Duration::from_millis(500)));
    if seed.is_multiple_of(3) {
        config.stream_receive_window(VarInt::from_u32(5000));
        config.receive_window(VarInt::from_u32(20_000));
    }
    if seed.is_multiple_of(5) {
        config.mtu_discovery_config(None);
    }
    Arc::new(config)
}

impl Other {
    pub fn new(side: Side, seed: u64, work: Work, retries: bool) -> Other {
        let port = if side.is_server() { 443 } else { 50_000 };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_ne_bytes());
        let crypto = QuicServerConfig::try_from(server_tls()).expect("TLS for a server");
        let mut server = quinn_proto::ServerConfig::with_crypto(Arc::new(crypto));
        server.transport_config(transport(seed));
        let crypto = QuicClientConfig::try_from(client_tls()).expect("TLS for a client");
        let mut client = quinn_proto::ClientConfig::new(Arc::new(crypto));
        client.transport_config(transport(seed));
        let server = side.is_server().then(|| Arc::new(server));
        let endpoint = quinn_proto::Endpoint::new(
            Arc::new(quinn_proto::EndpointConfig::default()),
            server,
            true,
            Some(bytes),
        );
        Other {
            addr: SocketAddr::from(([10, 0, 0, if side.is_server() { 1 } else { 2 }], port)),
            side,
            endpoint,
            members: BTreeMap::new(),
            ended: Vec::new(),
            work,
            retries,
            client,
        }
    }

    fn add(&mut self, handle: ConnectionHandle, connection: Connection) {
        let mut app = App::new(self.side, &self.work);
        // Content that fills its congestion window keeps it from sending lost parts of the handshake.
        app.waits = true;
        self.members
            .insert(handle.0, Member { connection, app, waits_to_open: [false; 2], is_connected: false });
    }

    fn answer(&self, sent: &quinn_proto::Transmit, buffer: &[u8], out: &mut Vec<Datagram>) {
        let ecn = sent.ecn.map_or(0, |ecn| ecn as u8);
        let size = sent.segment_size.unwrap_or(sent.size).max(1);
        for part in buffer[..sent.size].chunks(size) {
            out.push(Datagram { from: self.addr, to: sent.destination, ecn, bytes: part.to_vec() });
        }
    }

    fn turn_of(&mut self, handle: usize, now: Time, out: &mut Vec<Datagram>) {
        let Some(mut member) = self.members.remove(&handle) else { return };
        let at = instant(now);
        if member.connection.poll_timeout().is_some_and(|due| due <= at) {
            member.connection.handle_timeout(at);
        }
        let Member { app, connection, waits_to_open, is_connected } = &mut member;
        app.turn(now, &mut Peer { connection, waits_to_open, is_connected });
        let mut buffer = Vec::new();
        while let Some(sent) = member.connection.poll_transmit(at, 10, &mut buffer) {
            self.answer(&sent, &buffer, out);
            buffer.clear();
        }
        while let Some(event) = member.connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(ConnectionHandle(handle), event) {
                member.connection.handle_event(event);
            }
        }
        if member.connection.is_drained() {
            self.ended.push(member.app);
        } else {
            self.members.insert(handle, member);
        }
    }
}

impl Host for Other {
    fn addr(&self) -> SocketAddr {
        self.addr
    }

    fn begin(&mut self) {
        self.ended.clear();
    }

    fn connect(&mut self, now: Time, remote: SocketAddr) {
        let made = self.endpoint.connect(instant(now), self.client.clone(), remote, "h");
        let (handle, connection) = made.expect("a connection");
        self.add(handle, connection);
    }

    fn receive(&mut self, now: Time, datagram: &Datagram, out: &mut Vec<Datagram>) {
        let mut buffer = Vec::new();
        let (ecn, bytes) = (EcnCodepoint::from_bits(datagram.ecn), BytesMut::from(&datagram.bytes[..]));
        match self.endpoint.handle(instant(now), datagram.from, None, ecn, bytes, &mut buffer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(member) = self.members.get_mut(&handle.0) {
                    member.connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                if self.retries && incoming.may_retry() {
                    let sent = self.endpoint.retry(incoming, &mut buffer).expect("a Retry packet");
                    return self.answer(&sent, &buffer, out);
                }
                match self.endpoint.accept(incoming, instant(now), &mut buffer, None) {
                    Ok((handle, connection)) => self.add(handle, connection),
                    Err(error) => {
                        if let Some(sent) = error.response {
                            self.answer(&sent, &buffer, out);
                        }
                    }
                }
            }
            Some(DatagramEvent::Response(sent)) => self.answer(&sent, &buffer, out),
            None => {}
        }
    }

    fn turn(&mut self, now: Time, out: &mut Vec<Datagram>) {
        for handle in self.members.keys().copied().collect::<Vec<_>>() {
            self.turn_of(handle, now, out);
        }
    }

    fn deadline(&mut self, now: Time) -> Option<Time> {
        let members = self.members.values_mut();
        let all = members
            .filter_map(|m| m.connection.poll_timeout().map(time).into_iter().chain(m.app.wake(now)).min());
        all.min()
    }

    fn apps(&self) -> Vec<&App> {
        self.ended.iter().chain(self.members.values().map(|m| &m.app)).collect()
    }

    fn close(&mut self, now: Time, code: u64, reason: &[u8]) {
        for member in self.members.values_mut() {
            member.app.has_closed |= !member.connection.is_closed();
            let code = VarInt::from_u64(code).expect("a small number");
            member.connection.close(instant(now), code, Bytes::copy_from_slice(reason));
        }
    }

    fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    fn is_other(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        let all = self.apps().into_iter().map(|app| format!("\n  other: {}", app.describe()));
        all.collect()
    }
}

struct Peer<'c> {
    connection: &'c mut Connection,
    waits_to_open: &'c mut [bool; 2],
    is_connected: &'c mut bool,
}

fn dir(dir: Dir) -> quinn_proto::Dir {
    match dir {
        Dir::Bi => quinn_proto::Dir::Bi,
        Dir::Uni => quinn_proto::Dir::Uni,
    }
}

fn ours(id: quinn_proto::StreamId) -> StreamId {
    StreamId(VarInt::from(id).into_inner())
}

fn theirs(id: StreamId) -> quinn_proto::StreamId {
    let side = if id.opener().is_server() { quinn_proto::Side::Server } else { quinn_proto::Side::Client };
    quinn_proto::StreamId::new(side, dir(id.dir()), id.index())
}

fn varint(n: u64) -> VarInt {
    VarInt::from_u64(n).expect("a small number")
}

impl Transport for Peer<'_> {
    fn news(&mut self) -> Option<News> {
        for d in [Dir::Bi, Dir::Uni] {
            if *self.is_connected && std::mem::take(&mut self.waits_to_open[d as usize]) {
                return Some(News::Available(d));
            }
        }
        loop {
            return Some(match self.connection.poll()? {
                Event::Connected => {
                    *self.is_connected = true;
                    News::Connected
                }
                Event::ConnectionLost { reason } => News::Lost(match reason {
                    ConnectionError::ApplicationClosed(close) => {
                        End::Closed(close.error_code.into_inner(), close.reason.to_vec())
                    }
                    ConnectionError::TimedOut => End::TimedOut,
                    ConnectionError::Reset => End::Reset,
                    ConnectionError::LocallyClosed => continue,
                    ConnectionError::ConnectionClosed(close) if u64::from(close.error_code) == 0xc => {
                        End::ClosedEarly
                    }
                    other => End::Other(format!("{other:?}")),
                }),
                Event::Stream(StreamEvent::Opened { .. }) => News::Opened,
                Event::Stream(StreamEvent::Readable { id }) => News::Readable(ours(id)),
                Event::Stream(StreamEvent::Writable { id }) => News::Writable(ours(id)),
                Event::Stream(StreamEvent::Finished { id }) => News::Finished(ours(id)),
                Event::Stream(StreamEvent::Stopped { id, error_code }) => {
                    News::Stopped(ours(id), error_code.into_inner())
                }
                Event::Stream(StreamEvent::Available { dir: quinn_proto::Dir::Bi }) => {
                    News::Available(Dir::Bi)
                }
                Event::Stream(StreamEvent::Available { dir: quinn_proto::Dir::Uni }) => {
                    News::Available(Dir::Uni)
                }
                Event::DatagramReceived => News::Datagram,
                _ => continue,
            });
        }
    }

    fn open(&mut self, d: Dir) -> Option<StreamId> {
        let opened = self.connection.streams().open(dir(d));
        self.waits_to_open[d as usize] = opened.is_none() && !*self.is_connected;
        opened.map(ours)
    }

    fn accept(&mut self, d: Dir) -> Option<StreamId> {
        self.connection.streams().accept(dir(d)).map(ours)
    }

    fn write(&mut self, id: StreamId, content: Vec<u8>) -> Write {
        let mut taken = 0;
        loop {
            // It tells of room only after a write that found none.
            match self.connection.send_stream(theirs(id)).write(&content[taken..]) {
                Ok(n) if taken + n == content.len() => return Write::Taken(content.len()),
                Ok(n) => taken += n,
                Err(quinn_proto::WriteError::Blocked) if taken == 0 => return Write::Blocked,
                Err(quinn_proto::WriteError::Blocked) => return Write::Taken(taken),
                Err(quinn_proto::WriteError::Stopped(code)) => return Write::Stopped(code.into_inner()),
                Err(quinn_proto::WriteError::ClosedStream) => return Write::Closed,
            }
        }
    }

    fn finish(&mut self, id: StreamId) -> bool {
        self.connection.send_stream(theirs(id)).finish().is_ok()
    }

    fn reset(&mut self, id: StreamId, code: u64) {
        let _ = self.connection.send_stream(theirs(id)).reset(varint(code));
    }

    fn stop(&mut self, id: StreamId, code: u64) {
        let _ = self.connection.recv_stream(theirs(id)).stop(varint(code));
    }

    fn after_stop(&mut self, id: StreamId, code: u64) {
        self.reset(id, code);
    }

    fn read(&mut self, id: StreamId, most: usize) -> Read {
        let mut stream = self.connection.recv_stream(theirs(id));
        let Ok(mut chunks) = stream.read(true) else { return Read::Closed };
        let read = match chunks.next(most) {
            Ok(Some(chunk)) => Read::Some(chunk.bytes, false, true),
            Ok(None) => Read::End,
            Err(quinn_proto::ReadError::Blocked) => Read::Blocked,
            Err(quinn_proto::ReadError::Reset(code)) => Read::Reset(code.into_inner()),
        };
        let _ = chunks.finalize();
        read
    }

    fn prioritize(&mut self, id: StreamId, priority: i32) {
        let _ = self.connection.send_stream(theirs(id)).set_priority(priority);
    }

    fn send_datagram(&mut self, content: Bytes) {
        let _ = self.connection.datagrams().send(content, true);
    }

    fn receive_datagram(&mut self) -> Option<Bytes> {
        self.connection.datagrams().recv()
    }
}
