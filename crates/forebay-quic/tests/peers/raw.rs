//! A peer that completes handshakes and sends whatever a test wants.

use crate::random;
use crate::setup::Setup;
use forebay_quic::frame::{self, Frame, Frames};
use forebay_quic::id::{ConnectionId, Side};
use forebay_quic::packet::header::{FIXED, LONG};
use forebay_quic::packet::{Head, Header, Kind, LongKind, Packet, build, number, protect};
use forebay_quic::parameters::TransportParameters;
use forebay_quic::ranges::RangeSet;
use forebay_quic::version::Version;
use rustls::quic::{Connection as Tls, DirectionalKeys, KeyChange, Keys, PacketKey, Secrets};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Frame that came.
#[derive(Clone, Debug)]
pub struct Got {
    pub kind: Kind,
    /// Address that it was sent to.
    pub to: SocketAddr,
    /// Identifier that it was sent to.
    pub dst: ConnectionId,
    /// Bytes of its datagram.
    pub size: usize,
    pub frame: String,
}

/// CONNECTION_CLOSE that came: its code, and the type of the frame that caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    pub kind: Kind,
    pub code: u64,
    pub frame: Option<u64>,
}

/// What is unusual about a packet.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    pub number: Option<u64>,
    /// Bytes of the packet number.
    pub len: Option<usize>,
    pub version: Option<Version>,
    pub dst: Option<ConnectionId>,
    pub src: Option<ConnectionId>,
    pub token: Option<Vec<u8>>,
    /// Reserved bits that are set.
    pub reserved: u8,
    /// The fixed bit is 0.
    pub is_not_fixed: bool,
    /// The bit of the key phase is the other one.
    pub other_phase: bool,
    /// Nothing is added to make the packet long enough.
    pub is_bare: bool,
}

/// Peer.
pub struct Raw {
    pub side: Side,
    pub version: Version,
    pub addr: SocketAddr,
    pub local: ConnectionId,
    pub remote: ConnectionId,
    /// Identifier of the first packet of the client.
    pub original: ConnectionId,
    /// Identifier of the very first packet of the client, before Retry.
    first: Option<ConnectionId>,
    pub token: Vec<u8>,
    pub tls: Option<Tls>,
    pub initial: Option<Keys>,
    pub handshake: Option<Keys>,
    pub early: Option<DirectionalKeys>,
    pub data: Option<Keys>,
    pub secrets: Option<Secrets>,
    old: Option<Box<dyn PacketKey>>,
    pub phase: bool,
    pub next: [u64; 3],
    pub seen: [RangeSet; 3],
    /// Bytes of the handshake that were sent, and those that are to be sent.
    pub sent: [u64; 3],
    pub unsent: [Vec<u8>; 3],
    write: usize,
    incoming: [BTreeMap<u64, Vec<u8>>; 3],
    read: [u64; 3],
    pub got: Vec<Got>,
    pub closes: Vec<Close>,
    /// Identifiers that the tested side gave: sequence number, identifier, token.
    pub ids: Vec<(u64, ConnectionId, [u8; 16])>,
    /// Datagrams that could not be opened.
    pub others: Vec<Vec<u8>>,
    pub challenges: Vec<(SocketAddr, [u8; 8])>,
    /// Sequence numbers of identifiers that the tested side does not use any more.
    pub retired: Vec<u64>,
    /// First message of a client.
    hello: Vec<u8>,
    setup: Setup,
    /// TLS failed.
    pub error: Option<String>,
}

pub fn index(kind: Kind) -> usize {
    match kind {
        Kind::Initial => 0,
        Kind::Handshake => 1,
        Kind::ZeroRtt | Kind::OneRtt => 2,
    }
}

fn id(len: usize) -> ConnectionId {
    let bytes: Vec<u8> = (0..len).map(|_| random::shared() as u8).collect();
    ConnectionId::new(&bytes).expect("at most 20 bytes")
}

/// Returns an identifier of eight equal bytes.
pub fn eight(n: u8) -> ConnectionId {
    ConnectionId::new(&[n; 8]).expect("eight bytes")
}

impl Raw {
    pub fn new(side: Side, setup: &Setup) -> Raw {
        let mut raw = Raw {
            side,
            version: setup.version,
            addr: SocketAddr::from(([10, 0, 0, 9], if side.is_server() { 443 } else { 40_000 })),
            local: id(setup.id_len),
            remote: id(8),
            original: ConnectionId::default(),
            first: None,
            token: Vec::new(),
            tls: None,
            initial: None,
            handshake: None,
            early: None,
            data: None,
            secrets: None,
            old: None,
            phase: false,
            next: [0; 3],
            seen: Default::default(),
            sent: [0; 3],
            unsent: Default::default(),
            write: 0,
            incoming: Default::default(),
            read: [0; 3],
            got: Vec::new(),
            closes: Vec::new(),
            ids: Vec::new(),
            others: Vec::new(),
            challenges: Vec::new(),
            retired: Vec::new(),
            hello: Vec::new(),
            setup: setup.clone(),
            error: None,
        };
        if side.is_client() {
            raw.original = raw.remote;
            raw.initial = protect::initial_keys(raw.version, &raw.original, side).ok();
            raw.begin_tls();
        }
        raw
    }

    fn parameters(&self) -> Vec<u8> {
        let mut parameters = TransportParameters {
            max_idle_timeout: 60_000,
            initial_max_data: 100_000,
            initial_max_stream_data_bidi_local: 10_000,
            initial_max_stream_data_bidi_remote: 10_000,
            initial_max_stream_data_uni: 10_000,
            initial_max_streams_bidi: 3,
            initial_max_streams_uni: 3,
            active_connection_id_limit: 4,
            initial_source_connection_id: Some(self.local),
            original_destination_connection_id: self.first.filter(|_| self.side.is_server()),
            ..TransportParameters::default()
        };
        (self.setup.parameters)(&mut parameters);
        let mut encoded = Vec::new();
        parameters.push(&mut encoded, self.side, 1 << 40);
        (self.setup.encoded)(&mut encoded);
        encoded
    }

    fn begin_tls(&mut self) {
        let (version, parameters) = (self.version.for_tls(), self.parameters());
        let tls = match self.side {
            Side::Client => {
                let name = "h".try_into().expect("a name");
                let tls =
                    rustls::quic::ClientConnection::new(self.setup.client_tls(), version, name, parameters);
                Tls::Client(tls.expect("a client"))
            }
            Side::Server => {
                let tls = rustls::quic::ServerConnection::new(self.setup.server_tls(), version, parameters);
                Tls::Server(tls.expect("a server"))
            }
        };
        self.early = tls.zero_rtt_keys();
        self.tls = Some(tls);
        self.drive();
        self.hello = self.unsent[0].clone();
    }

    /// Begins again with the token of a Retry packet.
    pub fn retry(&mut self, token: &[u8], src: ConnectionId) {
        self.token = token.to_vec();
        self.remote = src;
        self.initial = protect::initial_keys(self.version, &src, self.side).ok();
        self.unsent[0] = self.hello.clone();
        self.sent[0] = 0;
    }

    /// Forgets the handshake of a server that asks for the proof of an address.
    pub fn forget(&mut self) {
        (self.tls, self.handshake, self.data, self.write) = (None, None, None, 0);
        (self.unsent, self.incoming) = Default::default();
        (self.sent, self.read) = Default::default();
    }

    /// Returns the first message of a client.
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Lets TLS read and write.
    pub fn drive(&mut self) {
        let Some(tls) = &mut self.tls else { return };
        for level in 0..3 {
            while let Some((offset, bytes)) = self.incoming[level].pop_first() {
                if offset > self.read[level] {
                    self.incoming[level].insert(offset, bytes);
                    break;
                }
                let known = (self.read[level] - offset) as usize;
                if let Some(new) = bytes.get(known..).filter(|new| !new.is_empty()) {
                    if let Err(e) = tls.read_hs(new) {
                        self.error.get_or_insert(e.to_string());
                    }
                    self.read[level] += new.len() as u64;
                }
            }
        }
        loop {
            let mut bytes = Vec::new();
            let change = tls.write_hs(&mut bytes);
            if bytes.is_empty() && change.is_none() {
                return;
            }
            if !bytes.is_empty() {
                (self.setup.edit)(self.write, &mut bytes);
            }
            self.unsent[self.write].extend(bytes);
            match change {
                Some(KeyChange::Handshake { keys }) => (self.handshake, self.write) = (Some(keys), 1),
                Some(KeyChange::OneRtt { keys, next }) => {
                    (self.data, self.secrets, self.write) = (Some(keys), Some(next), 2);
                }
                None => {}
            }
        }
    }

    /// Returns datagrams with the bytes of the handshake that are to be sent.
    pub fn flight(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for (level, kind) in [Kind::Initial, Kind::Handshake, Kind::OneRtt].into_iter().enumerate() {
            while !self.unsent[level].is_empty() {
                let bytes: Vec<u8> = self.unsent[level].drain(..self.unsent[level].len().min(1000)).collect();
                let mut frames = Vec::new();
                frame::push_crypto(&mut frames, self.sent[level], &bytes);
                self.sent[level] += bytes.len() as u64;
                if kind == Kind::Initial {
                    let more = 1170usize.saturating_sub(frames.len() + self.token.len());
                    frame::push_padding(&mut frames, more);
                }
                all.push(self.packet(kind, &frames));
            }
        }
        all
    }

    /// Puts a packet together.
    pub fn packet(&mut self, kind: Kind, frames: &[u8]) -> Vec<u8> {
        self.shaped(kind, frames, &Shape::default())
    }

    /// Puts an unusual packet together.
    pub fn shaped(&mut self, kind: Kind, frames: &[u8], shape: &Shape) -> Vec<u8> {
        let space = index(kind);
        let number = shape.number.unwrap_or(self.next[space]);
        self.next[space] = self.next[space].max(number + 1);
        let len = shape.len.unwrap_or(4);
        let (dst, src) = (shape.dst.unwrap_or(self.remote), shape.src.unwrap_or(self.local));
        let version = shape.version.unwrap_or(self.version);
        let mut out = Vec::new();
        let long = match kind {
            Kind::Initial => Some(LongKind::Initial),
            Kind::ZeroRtt => Some(LongKind::ZeroRtt),
            Kind::Handshake => Some(LongKind::Handshake),
            Kind::OneRtt => None,
        };
        let token = shape.token.as_deref().unwrap_or(if kind == Kind::Initial { &self.token } else { &[] });
        let mut place = match long {
            Some(kind) => Head { kind, version, dst: &dst, src: &src, token }.push(&mut out, number, len),
            None => build::push_short(&mut out, &dst, false, self.phase != shape.other_phase, number, len),
        };
        out[0] |= shape.reserved;
        if shape.is_not_fixed {
            out[0] &= !FIXED;
        }
        out.extend_from_slice(frames);
        if !shape.is_bare {
            place.finish(&mut out);
        } else {
            out.extend([0; build::TAG]);
            place.end = out.len();
            if place.long {
                let len = (place.end - place.number_at) as u16;
                forebay_quic::varint::put_u14(&mut out[place.number_at - 2..], len);
            }
        }
        let keys = match kind {
            Kind::Initial => self.initial.as_ref().map(|k| &k.local),
            Kind::ZeroRtt => self.early.as_ref(),
            Kind::Handshake => self.handshake.as_ref().map(|k| &k.local),
            Kind::OneRtt => self.data.as_ref().map(|k| &k.local),
        };
        let Some(keys) = keys else { panic!("no keys for {kind:?}: {:?} {:?}", self.error, self.closes) };
        protect::seal(&*keys.header, &*keys.packet, &mut out, &place).expect("sealed");
        out
    }

    /// Changes the keys of 1-RTT packets.
    pub fn update_keys(&mut self) {
        let next = self.secrets.as_mut().expect("secrets").next_packet_keys();
        let data = self.data.as_mut().expect("keys");
        data.local.packet = next.local;
        self.old = Some(std::mem::replace(&mut data.remote.packet, next.remote));
        self.phase = !self.phase;
    }

    /// Handles a datagram.
    pub fn receive(&mut self, to: SocketAddr, datagram: &[u8]) {
        let mut rest = datagram;
        let mut opened = false;
        while let Some(found) = Packet::parse(rest, self.local.len()) {
            let (packet, more) = rest.split_at(found.len.min(rest.len()));
            opened |= self.open(to, packet, &found, datagram.len());
            // The next packet may need keys from this one.
            self.drive();
            rest = more;
        }
        if !opened {
            self.others.push(datagram.to_vec());
        }
    }

    fn open(&mut self, to: SocketAddr, packet: &[u8], found: &Packet, size: usize) -> bool {
        let Some(kind) = found.level() else { return false };
        let dst = match &found.header {
            Header::Short { dst } => *dst,
            Header::Long(long) => {
                if self.side.is_server() && self.tls.is_none() {
                    (self.original, self.remote) = (long.dst, long.src);
                    self.first.get_or_insert(long.dst);
                    self.initial = protect::initial_keys(long.version, &long.dst, self.side).ok();
                    self.begin_tls();
                } else if self.side.is_client() {
                    self.remote = long.src;
                }
                long.dst
            }
            _ => return false,
        };
        let keys = match kind {
            Kind::Initial => self.initial.as_ref().map(|k| &k.remote),
            Kind::Handshake => self.handshake.as_ref().map(|k| &k.remote),
            Kind::ZeroRtt => self.early.as_ref(),
            Kind::OneRtt => self.data.as_ref().map(|k| &k.remote),
        };
        let Some(keys) = keys else { return false };
        let mut packet = packet.to_vec();
        let Some(header) = protect::unprotect(&*keys.header, &mut packet, found.number_at) else {
            return false;
        };
        let space = index(kind);
        let expected = self.seen[space].max().map_or(0, |max| max + 1);
        let number = number::expand(header.number, header.number_len, expected);
        let is_old = kind == Kind::OneRtt && (header.first & 4 != 0) != self.phase;
        let key = if is_old { self.old.as_ref() } else { Some(&keys.packet) };
        let Some(key) = key else { return false };
        let Some(payload) = protect::open(&**key, &mut packet, found.number_at, header.number_len, number)
        else {
            return false;
        };
        // Long headers have the fixed bit, short ones may be without it (RFC 9287).
        let is_fixed = header.first & LONG == 0 || header.first & FIXED != 0;
        assert!(protect::check_reserved(header.first).is_ok() && is_fixed);
        self.seen[space].insert_one(number);
        let payload = packet[payload].to_vec();
        for next in Frames::new(&payload, kind, self.side.other()).expect("frames") {
            let (_, frame) = next.expect("a frame");
            self.note(kind, to, &frame);
            let text = format!("{frame:?}");
            self.got.push(Got { kind, to, dst, size, frame: text });
        }
        true
    }

    fn note(&mut self, kind: Kind, to: SocketAddr, frame: &Frame<'_>) {
        match frame {
            Frame::Crypto { offset, data } => {
                self.incoming[index(kind)].insert(*offset, data.to_vec());
            }
            Frame::ConnectionClose { code, frame, .. } => {
                self.closes.push(Close { kind, code: *code, frame: *frame });
            }
            Frame::NewConnectionId { sequence, id, token, .. } => self.ids.push((*sequence, *id, *token)),
            Frame::PathChallenge(data) => self.challenges.push((to, *data)),
            Frame::RetireConnectionId(number) => self.retired.push(*number),
            _ => {}
        }
    }

    /// Returns an ACK frame for everything that came.
    pub fn ack(&self, kind: Kind) -> Vec<u8> {
        let mut out = Vec::new();
        frame::push_ack(&mut out, &self.seen[index(kind)], 0, None, 1000);
        out
    }

    /// Returns the number of frames that came and begin with a text.
    pub fn count(&self, text: &str) -> usize {
        self.got.iter().filter(|got| got.frame.starts_with(text)).count()
    }
}
