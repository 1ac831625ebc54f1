//! Steps of a run.

use crate::checks::{Checks, chosen};
use crate::input::Input;
use crate::lab::{Lab, Stage, address};
use crate::packets;
use crate::raw::Raw;
use crate::setup::Setup;
use bytes::Bytes;
use forebay_quic::congestion::Algorithm;
use forebay_quic::connection::{Config, Connection};
use forebay_quic::id::{Dir, Side, StreamId};
use forebay_quic::packet::Kind;
use forebay_quic::parameters::TransportParameters;
use forebay_quic::time::Time;
use forebay_quic::varint;
use forebay_quic::version::Version;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

/// Most steps of a run.
const STEPS: usize = 300;
/// Most connections of a run.
const CONNECTIONS: u32 = 3;
/// Most times that a connection does something while nothing comes.
const TURNS: usize = 5000;

/// Settings of the tested side.
const CONFIGS: [fn(&mut Config); 5] = [
    |_| {},
    |c| (c.congestion, c.is_paced, c.searches_mtu, c.most_mtu) = (Algorithm::Bbr, true, true, 1452),
    |c| (c.congestion, c.is_paced, c.keep_alive) = (Algorithm::Cubic, true, Some(Duration::from_secs(10))),
    |c| (c.idle, c.datagrams, c.gives_token) = (Duration::ZERO, 1200, true),
    |c| (c.limits.stream_window, c.limits.window, c.datagrams) = (1 << 16, 1 << 17, u16::MAX),
];

/// Transport parameters of the peer.
const PARAMETERS: [fn(&mut TransportParameters); 4] = [
    |_| {},
    |p| (p.max_idle_timeout, p.ack_delay_exponent, p.max_datagram_frame_size) = (0, 20, 65_535),
    |p| (p.initial_max_data, p.initial_max_stream_data_bidi_local) = (1 << 40, 1 << 40),
    |p| (p.max_udp_payload_size, p.active_connection_id_limit, p.grease_quic_bit) = (1200, 8, true),
];

/// Configurations of TLS without resumption, which every run has.
static TLS: LazyLock<Setup> = LazyLock::new(|| tls(false));

/// Makes configurations of TLS. Certificates are not compressed, which takes long.
fn tls(early: bool) -> Setup {
    let mut setup = Setup { early, ..Setup::default() };
    let (mut client, mut server) = ((*setup.client_tls()).clone(), (*setup.server_tls()).clone());
    client.cert_decompressors = Vec::new();
    server.cert_compressors = Vec::new();
    if !early {
        client.resumption = rustls::client::Resumption::disabled();
    }
    (setup.client, setup.server) = (Some(client.into()), Some(server.into()));
    setup
}

/// Returns configurations of TLS with which the next connection sends early data.
fn early(side: Side) -> Setup {
    let setup = tls(true);
    drop(Lab::new(side, Stage::Connected, &setup));
    setup
}

/// Datagram of the peer.
#[derive(Clone, Default)]
struct Made {
    bytes: Vec<u8>,
    /// It has a Handshake packet, which proves the address it comes from.
    proves: bool,
}

pub struct Run<'i> {
    input: Input<'i>,
    lab: Lab,
    checks: Checks,
    /// What the peer has sent last.
    history: VecDeque<Made>,
    steps: usize,
    /// Connections end when the peer is silent.
    ends: bool,
    /// The peer works as it should, but for its frames.
    is_sound: bool,
}

impl<'i> Run<'i> {
    /// Begins a run; `None` if there is no input.
    pub fn begin(input: &'i [u8]) -> Option<Run<'i>> {
        let mut input = Input::new(input);
        if input.is_empty() {
            return None;
        }
        let mut checks = Checks::begin();
        let begin = input.byte();
        let (config, parameters) = (input.below(CONFIGS.len()), input.below(PARAMETERS.len()));
        let side = if begin & 1 == 0 { Side::Server } else { Side::Client };
        let stage = match begin >> 1 & 7 {
            0 => Stage::Fresh,
            1 => Stage::Hello,
            _ => Stage::Connected,
        };
        let mut setup = Setup {
            version: if begin & 0x10 == 0 { Version::V1 } else { Version::V2 },
            config: CONFIGS[config],
            parameters: PARAMETERS[parameters],
            ..if begin & 0xe0 == 0xe0 { early(side) } else { TLS.clone() }
        };
        let ends = config != 3;
        setup.retries = begin & 0xe0 == 0x20 && stage == Stage::Fresh;
        let mut lab = Lab::new(side, stage, &setup);
        checks.received(lab.raw.addr, lab.received);
        checks.has_timers = side.is_server() || stage == Stage::Connected;
        if let Some(addr) = chosen(&lab).or((stage == Stage::Connected).then_some(lab.raw.addr)) {
            checks.prove(addr);
        }
        checks.check(&mut lab);
        Some(Run { input, lab, checks, history: VecDeque::new(), steps: 0, ends, is_sound: true })
    }

    /// Does a step. Returns `false` if there is none.
    pub fn step(&mut self) -> bool {
        if self.input.is_empty()
            || self.steps >= STEPS
            || self.lab.node.connections.is_empty() && self.steps > 20
        {
            return false;
        }
        self.steps += 1;
        match self.input.below(24) {
            0..10 => self.packets(),
            10 | 11 => {
                let time = Duration::from_micros(u64::from(self.input.byte()) << (self.input.byte() % 20));
                self.wait(time);
            }
            12 => self.flight(),
            13 => self.acknowledge(),
            14 => self.replay(),
            15 => self.noise(),
            16..23 => self.application(),
            _ => self.rare(),
        }
        self.settle();
        true
    }

    /// Has the peer send nothing more, and checks how it ends.
    pub fn end(mut self) {
        self.is_alive();
        // Without an idle timeout it sends probes forever, and remembers them.
        let hours = if self.ends { 30 * 24 } else { 1 };
        self.wait(Duration::from_secs(hours * 3600));
        self.checks.check(&mut self.lab);
        self.checks.end(&self.lab, self.ends);
    }

    /// An open connection of a sound peer takes packets.
    fn is_alive(&mut self) {
        let is_up = self.lab.is_open() && self.lab.node.connections.values().all(|c| !c.is_handshaking());
        if !is_up || !self.is_sound || !packets::has_keys(&self.lab.raw, Kind::OneRtt) {
            return;
        }
        let before = self.lab.node.taken();
        let ping = self.lab.raw.packet(Kind::OneRtt, &packets::ping());
        self.deliver(self.lab.raw.addr, Made { bytes: ping, proves: false });
        assert!(self.lab.node.taken() > before, "{:?} {:?}", self.lab.node.connections, self.lab.raw.closes);
    }

    fn wait(&mut self, time: Duration) {
        let end: Time = self.lab.now + time;
        let mut turns = 0;
        while let Some(next) = self.lab.node.deadline().filter(|next| *next <= end) {
            self.lab.now = self.lab.now.max(next);
            self.settle();
            turns += 1;
            assert!(turns < TURNS, "{}", self.lab.only().recovery());
        }
        self.lab.now = end;
    }

    /// Has the tested side do what is due, and checks it. A timer may be followed by another one that is due.
    fn settle(&mut self) {
        self.lab.turn();
        for _ in 0..4 {
            if self.lab.node.deadline().is_some_and(|at| at <= self.lab.now) {
                self.lab.turn();
            }
        }
        self.checks.check(&mut self.lab);
    }

    fn deliver(&mut self, from: SocketAddr, made: Made) {
        self.checks.received(from, made.bytes.len());
        if made.proves {
            self.checks.prove(from);
        }
        self.checks.has_timers &= from == self.lab.raw.addr;
        self.lab.send_from(from, &made.bytes);
        self.history.push_back(made);
        if self.history.len() > 8 {
            self.history.pop_front();
        }
    }

    /// Returns where the next datagram comes from.
    fn from(&mut self) -> SocketAddr {
        match self.input.byte() {
            n @ 0..4 => address(n % 2, 1000),
            4 => SocketAddr::new(self.lab.raw.addr.ip(), 1),
            // Clients move, servers do not.
            5 if self.lab.node.side.is_server() => {
                let addr = address(2, 2000);
                self.checks.has_timers = false;
                self.lab.raw.addr = addr;
                addr
            }
            _ => self.lab.raw.addr,
        }
    }

    fn flight(&mut self) {
        self.lab.raw.drive();
        let before = self.lab.received;
        if packets::has_keys(&self.lab.raw, Kind::Handshake) {
            self.checks.prove(self.lab.raw.addr);
        }
        self.lab.flight();
        self.checks.received(self.lab.raw.addr, self.lab.received - before);
        // Keys of the handshake may have come within.
        if packets::has_keys(&self.lab.raw, Kind::Handshake) {
            self.checks.prove(self.lab.raw.addr);
        }
    }

    /// Sends one or several packets in a datagram.
    fn packets(&mut self) {
        let mut made = Made::default();
        for _ in 0..=usize::from(self.input.seldom(8)) * 2 {
            let one = self.packet();
            made.bytes.extend(one.bytes);
            made.proves |= one.proves;
        }
        let from = self.from();
        self.deliver(from, made);
    }

    fn packet(&mut self) -> Made {
        const KINDS: [Kind; 4] = [Kind::OneRtt, Kind::Handshake, Kind::Initial, Kind::ZeroRtt];
        let first = [0, 0, 0, 0, 0, 1, 2, 3][self.input.below(8)];
        let kinds = (0..4).map(|n| KINDS[(first + n) % 4]);
        let Some(kind) = kinds.into_iter().find(|kind| packets::has_keys(&self.lab.raw, *kind)) else {
            return Made::default();
        };
        let mut payload = packets::payload(&mut self.input, &self.lab, kind);
        let is_plain = self.input.byte() < 160;
        let shape =
            if is_plain { <_>::default() } else { packets::shape(&mut self.input, &self.lab.raw, kind) };
        // A packet has to be long enough for a sample of its protection.
        let len = shape.len.unwrap_or(4);
        payload.resize(payload.len().max(4 - len), 0);
        if kind == Kind::Initial && !shape.is_bare {
            payload.resize(payload.len().max(1170), 0);
        }
        self.is_sound &= shape.number.is_none() && !payload.contains(&0x19);
        for (addr, data) in &self.lab.raw.challenges {
            if payload.windows(8).any(|part| part == data) {
                self.checks.prove(*addr);
            }
        }
        let bytes = self.lab.raw.shaped(kind, &payload, &shape);
        Made { bytes, proves: kind == Kind::Handshake }
    }

    fn acknowledge(&mut self) {
        for kind in [Kind::Initial, Kind::Handshake, Kind::OneRtt] {
            let space = crate::raw::index(kind);
            if packets::has_keys(&self.lab.raw, kind) && self.lab.raw.seen[space].max().is_some() {
                let mut frames = self.lab.raw.ack(kind);
                if kind == Kind::Initial {
                    frames.resize(1170, 0);
                }
                let bytes = self.lab.raw.packet(kind, &frames);
                self.deliver(self.lab.raw.addr, Made { bytes, proves: kind == Kind::Handshake });
            }
        }
    }

    /// Sends what was sent before: whole, cut, joined, changed.
    fn replay(&mut self) {
        let at = self.input.below(self.history.len());
        let Some(mut made) = self.history.get(at).cloned() else { return };
        match self.input.below(5) {
            0 => made.bytes.truncate(self.input.byte().into()),
            1 => {
                let n = made.bytes.len().saturating_sub(self.input.byte().into());
                made.bytes.truncate(n);
            }
            2 => {
                if let Some(other) = self.history.back() {
                    made.bytes.extend(&other.bytes);
                    made.proves |= other.proves;
                }
            }
            3 => {
                let at = if self.input.seldom(2) { self.input.byte().into() } else { self.input.below(32) };
                if let Some(byte) = made.bytes.get_mut(at) {
                    *byte ^= self.input.byte();
                }
            }
            _ => {}
        }
        made.bytes.truncate(4000);
        let from = self.from();
        self.deliver(from, made);
    }

    /// Sends bytes that are no packet, but may look like one.
    fn noise(&mut self) {
        let len = self.input.below(120);
        let mut bytes = self.input.bytes(len).to_vec();
        if self.input.seldom(2) && bytes.len() > 9 {
            bytes[0] = bytes[0] & 0x3f | 0x40;
            let dst = self.lab.raw.remote;
            bytes.splice(1..9, dst.iter().copied());
        }
        if self.input.seldom(4) {
            bytes.resize(1200, 0);
        }
        let from = self.from();
        self.deliver(from, Made { bytes, proves: false });
    }

    fn rare(&mut self) {
        match self.input.below(4) {
            0 if self.lab.raw.secrets.is_some() => {
                self.is_sound = false;
                self.lab.raw.update_keys();
            }
            1 => {
                let retry = self.lab.raw.others.iter().rfind(|datagram| packets::is_retry(datagram)).cloned();
                if let Some((token, src)) = retry.as_deref().and_then(packets::retry_of) {
                    self.checks.retried.iter().for_each(|addr| self.checks.proved.extend([*addr]));
                    self.lab.raw.retry(&token, src);
                }
            }
            2 if self.lab.node.side.is_server() && self.lab.node.begun < CONNECTIONS => {
                self.is_sound = false;
                self.lab.raw = Raw::new(Side::Client, &self.lab.setup);
            }
            _ => {}
        }
    }

    /// Does what an application could.
    fn application(&mut self) {
        let (input, now) = (&mut self.input, self.lab.now);
        let Some(connection) = self.lab.node.connections.values_mut().next() else { return };
        match input.below(40) {
            0..34 => streams(input, connection),
            34 | 35 => {
                let len = usize::from(input.byte()) * 8;
                connection.send_datagram(Bytes::from(vec![1; len]));
            }
            36 => while connection.receive_datagram().is_some() {},
            37 => connection.shrink(now),
            38 if input.seldom(4) => {
                self.checks.closed += usize::from(!connection.is_closed());
                let (code, len) = (input.value(0x100), usize::from(input.byte()) * 8);
                connection.close(now, code, &vec![b'r'; len]);
            }
            _ => drop((connection.take_facts(), connection.proved_remote(), connection.longest_datagram())),
        }
    }
}

fn streams(input: &mut Input<'_>, connection: &mut Connection) {
    let what = input.below(16);
    let dir = if input.seldom(3) { Dir::Uni } else { Dir::Bi };
    let id = StreamId(if input.seldom(16) { input.value(0) } else { input.byte().into() } % varint::MAX);
    let n = usize::from(input.byte());
    let streams = connection.streams();
    match what {
        0 | 1 => drop(streams.open(dir)),
        2..5 => drop(streams.write_slice(id, &vec![7; n])),
        5 | 6 => drop(streams.write(id, &mut Bytes::from(vec![8; n * 64]))),
        7 => drop(streams.finish(id)),
        8 => drop(streams.reset(id, n as u64)),
        9 => drop(streams.stop(id, n as u64)),
        10 | 11 => drop(streams.read(id, n * 16)),
        12 => {
            while let Some(id) = streams.accept(dir) {
                while matches!(streams.read(id, 1000), Ok(Some(_))) {}
            }
        }
        13 => drop(streams.set_priority(id, n as i32 - 100)),
        14 => drop((streams.received_reset(id), streams.stopped(id), streams.is_open(id))),
        _ => {
            streams.set_receive_window(n as u64 * 256);
            streams.set_send_window(n as u64 * 256);
            streams.set_max_streams(dir, n as u64);
        }
    }
}
