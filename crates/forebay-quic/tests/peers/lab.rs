//! A tested side and a wrong peer, without a network between them.

use crate::node::{Datagram, Node};
use crate::random;
use crate::raw::{Raw, Shape};
use crate::setup::Setup;
use forebay_quic::connection::{Connection, Event, Reason};
use forebay_quic::id::Side;
use forebay_quic::packet::Kind;
use forebay_quic::time::Time;
use std::net::SocketAddr;
use std::time::Duration;

/// How far the handshake is when a test begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The client has said nothing, or nobody has answered it.
    Fresh,
    /// The server has said everything, and the client has not answered it.
    Hello,
    /// The handshake is confirmed.
    Connected,
}

/// Both.
pub struct Lab {
    pub now: Time,
    pub node: Node,
    pub raw: Raw,
    pub setup: Setup,
    /// Datagrams that the tested side sent.
    pub sent: Vec<Datagram>,
    /// Bytes that the wrong peer sent, from all addresses.
    pub received: usize,
}

impl Lab {
    /// Begins a test of a side.
    pub fn new(tested: Side, stage: Stage, setup: &Setup) -> Lab {
        let mut lab = Lab {
            now: Time::from_nanos(1_000_000_000),
            node: Node::new(tested, setup),
            raw: Raw::new(tested.other(), setup),
            setup: setup.clone(),
            sent: Vec::new(),
            received: 0,
        };
        if tested.is_client() {
            let addr = lab.raw.addr;
            lab.node.connect(lab.now, addr, setup);
            lab.turn();
        }
        match stage {
            Stage::Fresh => {}
            Stage::Hello => lab.flight(),
            Stage::Connected => lab.connect(),
        }
        lab
    }

    pub fn server(stage: Stage) -> Lab {
        Lab::new(Side::Server, stage, &Setup::default())
    }

    pub fn client(stage: Stage) -> Lab {
        Lab::new(Side::Client, stage, &Setup::default())
    }

    /// Sends what the handshake of the peer has to send now.
    pub fn flight(&mut self) {
        self.raw.drive();
        for datagram in self.raw.flight() {
            self.send(&datagram);
        }
        self.raw.drive();
    }

    /// Completes the handshake.
    pub fn connect(&mut self) {
        for _ in 0..6 {
            self.flight();
        }
        let is_done = self.raw.tls.as_ref().is_some_and(|tls| !tls.is_handshaking());
        if is_done && self.raw.side.is_server() && self.is_open() {
            let mut frames = Vec::new();
            forebay_quic::frame::push_handshake_done(&mut frames);
            self.frames(Kind::OneRtt, &frames);
        }
        if is_done && self.is_open() {
            self.wait(Duration::from_millis(30));
            let ack = self.raw.ack(Kind::OneRtt);
            self.frames(Kind::OneRtt, &ack);
        }
    }

    /// Sends a datagram from the address of the peer.
    pub fn send(&mut self, datagram: &[u8]) {
        let from = self.raw.addr;
        self.send_from(from, datagram);
    }

    /// Sends a datagram from any address.
    pub fn send_from(&mut self, from: SocketAddr, datagram: &[u8]) {
        self.received += datagram.len();
        let answers = self.node.receive(self.now, from, datagram, &self.setup);
        self.take(answers);
        self.turn();
    }

    /// Sends a packet with some frames. An Initial packet gets a datagram that is large enough.
    pub fn frames(&mut self, kind: Kind, frames: &[u8]) {
        self.shaped(kind, frames, &Shape::default());
    }

    /// Sends an unusual packet.
    pub fn shaped(&mut self, kind: Kind, frames: &[u8], shape: &Shape) {
        let mut frames = frames.to_vec();
        if kind == Kind::Initial && !shape.is_bare {
            frames.resize(frames.len().max(1170), 0);
        }
        let packet = self.raw.shaped(kind, &frames, shape);
        self.send(&packet);
    }

    /// Takes what the tested side sends now.
    pub fn turn(&mut self) {
        let sent = self.node.turn(self.now);
        self.take(sent);
    }

    fn take(&mut self, datagrams: Vec<Datagram>) {
        for datagram in datagrams {
            self.raw.receive(datagram.to, &datagram.bytes);
            self.sent.push(datagram);
        }
    }

    /// Lets time pass.
    pub fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self.node.deadline().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.turn();
        }
        self.now = end;
        self.turn();
    }

    pub fn only(&mut self) -> &mut Connection {
        self.node.only()
    }

    /// Returns `true` if the tested side has a connection that is open.
    pub fn is_open(&self) -> bool {
        self.node.connections.values().any(|c| !c.is_closed())
    }

    /// Returns the reason for which the connection ended.
    pub fn lost(&self) -> Option<&Reason> {
        self.node.events.iter().find_map(|event| match event {
            Event::Lost(reason) => Some(reason),
            _ => None,
        })
    }

    /// Returns the bytes that the tested side sent to an address.
    pub fn sent_to(&self, to: SocketAddr) -> usize {
        self.sent.iter().filter(|datagram| datagram.to == to).map(|datagram| datagram.bytes.len()).sum()
    }
}

/// Returns another address of a host.
pub fn address(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, host], port))
}

/// Begins the random numbers anew.
pub fn seed(n: u64) {
    random::seed_shared(n);
}
