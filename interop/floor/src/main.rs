//! A server that gives every request the same response over HTTP/3, with quinn-proto and nothing else that costs: no fields are read,
//! no files are opened, nothing is logged. It shows about what that library costs by itself. It is no strict bound: a server may use
//! better tables and timers, or be compiled along a profile. One thread.
//!
//!     floor ADDRESS CERTIFICATE KEY SIZE
//!
//! CERTIFICATE and KEY are PEM files. SIZE is the length of the content in bytes.

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event, Incoming, ReadError,
    ServerConfig, StreamEvent, StreamId, TransportConfig, WriteError,
};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most datagrams of a connection that leave in one piece.
const SEGMENTS: usize = 32;

/// One connection.
struct Session {
    quinn: Connection,
    /// Content that flow control has kept back.
    unsent: HashMap<StreamId, Bytes>,
    /// Time of its entry among the timers.
    armed: Option<Instant>,
    is_dirty: bool,
}

struct Server {
    endpoint: Endpoint,
    sessions: HashMap<ConnectionHandle, Session>,
    dirty: Vec<ConnectionHandle>,
    timers: BTreeMap<(Instant, usize), ()>,
    response: Bytes,
}

impl Server {
    fn mark(&mut self, handle: ConnectionHandle) {
        if let Some(session) = self.sessions.get_mut(&handle)
            && !session.is_dirty
        {
            session.is_dirty = true;
            self.dirty.push(handle);
        }
    }

    fn datagram(
        &mut self,
        now: Instant,
        meta: &RecvMeta,
        bytes: BytesMut,
        buf: &mut Vec<u8>,
    ) -> Option<quinn_proto::Transmit> {
        buf.clear();
        let ecn = meta.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
        match self.endpoint.handle(now, meta.addr, meta.dst_ip, ecn, bytes, buf)? {
            DatagramEvent::ConnectionEvent(handle, event) => {
                if let Some(session) = self.sessions.get_mut(&handle) {
                    session.quinn.handle_event(event);
                    self.mark(handle);
                }
                None
            }
            DatagramEvent::NewConnection(incoming) => self.accept(now, incoming, buf),
            DatagramEvent::Response(transmit) => Some(transmit),
        }
    }

    fn accept(
        &mut self,
        now: Instant,
        incoming: Incoming,
        buf: &mut Vec<u8>,
    ) -> Option<quinn_proto::Transmit> {
        match self.endpoint.accept(incoming, now, buf, None) {
            Ok((handle, quinn)) => {
                let session = Session { quinn, unsent: HashMap::new(), armed: None, is_dirty: false };
                self.sessions.insert(handle, session);
                self.mark(handle);
                None
            }
            Err(e) => e.response,
        }
    }
}

/// Writes what flow control allows. Returns `true` if all of it was written.
fn write(quinn: &mut Connection, id: StreamId, rest: &mut Bytes) -> bool {
    let mut stream = quinn.send_stream(id);
    while !rest.is_empty() {
        match stream.write_chunks(std::slice::from_mut(rest)) {
            Ok(_) => {}
            Err(WriteError::Blocked) => return false,
            Err(_) => return true,
        }
    }
    let _ = stream.finish();
    true
}

/// Reads and drops what a stream has. Returns `true` at its end.
fn drain(quinn: &mut Connection, id: StreamId) -> bool {
    let mut stream = quinn.recv_stream(id);
    let Ok(mut chunks) = stream.read(true) else { return false };
    loop {
        match chunks.next(usize::MAX) {
            Ok(Some(_)) => {}
            Ok(None) => break true,
            Err(ReadError::Blocked) => {
                let _ = chunks.finalize();
                return false;
            }
            Err(ReadError::Reset(_)) => break false,
        }
    }
}

impl Session {
    fn request(&mut self, id: StreamId, response: &Bytes) {
        if !drain(&mut self.quinn, id) {
            return;
        }
        let mut rest = response.clone();
        if !write(&mut self.quinn, id, &mut rest) {
            self.unsent.insert(id, rest);
        }
    }

    fn events(&mut self, response: &Bytes) {
        while let Some(event) = self.quinn.poll() {
            match event {
                Event::Connected => {
                    // A control stream with empty SETTINGS.
                    if let Some(id) = self.quinn.streams().open(Dir::Uni) {
                        let _ = self.quinn.send_stream(id).write(&[0, 4, 0]);
                    }
                }
                Event::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(id) = self.quinn.streams().accept(dir) {
                        match dir {
                            Dir::Bi => self.request(id, response),
                            Dir::Uni => _ = drain(&mut self.quinn, id),
                        }
                    }
                }
                Event::Stream(StreamEvent::Readable { id }) if id.dir() == Dir::Bi => {
                    self.request(id, response)
                }
                Event::Stream(StreamEvent::Readable { id }) => _ = drain(&mut self.quinn, id),
                Event::Stream(StreamEvent::Writable { id }) => {
                    if let Some(mut rest) = self.unsent.remove(&id)
                        && !write(&mut self.quinn, id, &mut rest)
                    {
                        self.unsent.insert(id, rest);
                    }
                }
                _ => {}
            }
        }
    }
}

fn configuration(certificate: &str, key: &str) -> Result<ServerConfig, Box<dyn Error>> {
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    let mut tls =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(128u32.into())
        .datagram_receive_buffer_size(None)
        .send_window(4 << 20);
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// Returns the HEADERS frame of a 200 and a DATA frame.
fn response(size: usize) -> Bytes {
    // A prefix without a dynamic table, and `:status: 200` of the static table (RFC 9204).
    let mut out = vec![1, 3, 0, 0, 0xc0 | 25, 0];
    out.extend((0x8000_0000 | size as u32).to_be_bytes());
    out.resize(out.len() + size, b'x');
    out.into()
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, address, certificate, key, size] = &args[..] else {
        return Err("usage: floor ADDRESS CERTIFICATE KEY SIZE".into());
    };
    let socket = UdpSocket::bind(address.parse::<SocketAddr>()?)?;
    let state = UdpSocketState::new((&socket).into())?;
    let config = Arc::new(configuration(certificate, key)?);
    let mut server = Server {
        endpoint: Endpoint::new(Arc::new(EndpointConfig::default()), Some(config), true, None),
        sessions: HashMap::new(),
        dirty: Vec::new(),
        timers: BTreeMap::new(),
        response: response(size.parse()?),
    };
    let mut memory = vec![0u8; BATCH_SIZE * 65536];
    let mut metas = [RecvMeta::default(); BATCH_SIZE];
    let mut buf = Vec::new();
    let send = |transmit: &quinn_proto::Transmit, bytes: &[u8]| {
        let ecn = transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8));
        let _ = state.send(
            (&socket).into(),
            &Transmit {
                destination: transmit.destination,
                ecn,
                contents: &bytes[..transmit.size],
                segment_size: transmit.segment_size,
                src_ip: transmit.src_ip,
            },
        );
    };
    loop {
        let next =
            server.timers.first_key_value().map(|((at, _), ())| at.saturating_duration_since(Instant::now()));
        let timeout = next.unwrap_or(Duration::from_secs(1));
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout))?;
        let now = Instant::now();
        let mut slices: Vec<IoSliceMut<'_>> = memory.chunks_mut(65536).map(IoSliceMut::new).collect();
        let count = state.recv((&socket).into(), &mut slices, &mut metas).unwrap_or(0);
        drop(slices);
        for (meta, piece) in metas.iter().zip(memory.chunks(65536)).take(count) {
            for bytes in piece[..meta.len].chunks(meta.stride.max(1)) {
                if let Some(transmit) = server.datagram(now, meta, bytes.into(), &mut buf) {
                    send(&transmit, &buf);
                }
            }
        }
        while let Some(entry) = server.timers.first_entry() {
            let (at, number) = *entry.key();
            if at > now {
                break;
            }
            entry.remove();
            if let Some(session) = server.sessions.get_mut(&ConnectionHandle(number)) {
                session.armed = None;
                session.quinn.handle_timeout(now);
                server.mark(ConnectionHandle(number));
            }
        }
        for handle in std::mem::take(&mut server.dirty) {
            let Some(session) = server.sessions.get_mut(&handle) else { continue };
            session.is_dirty = false;
            session.events(&server.response);
            loop {
                buf.clear();
                let Some(transmit) = session.quinn.poll_transmit(now, SEGMENTS, &mut buf) else { break };
                send(&transmit, &buf);
            }
            while let Some(event) = session.quinn.poll_endpoint_events() {
                if let Some(event) = server.endpoint.handle_event(handle, event) {
                    session.quinn.handle_event(event);
                }
            }
            let due = session.quinn.poll_timeout();
            if let Some(armed) = session.armed {
                server.timers.remove(&(armed, handle.0));
            }
            session.armed = due;
            if let Some(at) = due {
                server.timers.insert((at, handle.0), ());
            }
            if session.quinn.is_drained() {
                server.sessions.remove(&handle);
            }
        }
    }
}
