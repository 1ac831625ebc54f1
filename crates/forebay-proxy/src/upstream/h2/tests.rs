//! A session at one end of a socket that keeps the borders of messages: what leaves with one send is one message, and so for reads.

use super::session::Session;
use super::{Key, Need, Stream};
use crate::upstream::pooled::{ProblemKind, RequestStream, Session as _, Stage};
use forebay_core::upstream::conn::Conn;
use forebay_core::upstream::group::Keepalive;
use forebay_http::h2::encode;
use forebay_http::h2::frame::{self, Code, FrameHeader, flag, kind};
use forebay_net::addr::PeerAddr;
use forebay_net::io::Io;
use forebay_net::mux::Mux;
use forebay_net::reactor::Direct;
use forebay_net::wire::Wire;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// A session and the server's end of its connection.
struct World {
    session: Rc<Session>,
    server: OwnedFd,
}

impl World {
    fn new() -> World {
        let io = Rc::new(Io::new().expect("epoll"));
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (client, server) = pair.expect("sockets");
        let addr = PeerAddr::Unix("/a".into());
        let key = Key { addr, local: None, made_for: 0, limits: (), group: 0, opener: 0 };
        let (keep, timeout) = (Some(Keepalive::default()), std::time::Duration::ZERO);
        let need = Need { key, keep, may_be_idle: true, longest: 4096, timeout };
        let session = Rc::new(Session::new(&io, Direct { front: 0, kind: 0, number: 0 }, &need));
        let conn = Conn::opened(&io, Wire::Plain(io.poller.insert(client)), io.poller.now());
        session.connected(conn, false);
        World { session, server }
    }

    /// Begins a request.
    fn request(&self, end: bool) -> Rc<Stream> {
        let stream = self.session.opened(4096).expect("room").stream;
        stream.request(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", false, end, &mut Vec::new());
        stream
    }

    /// Takes what the session has sent: the kinds of frames of each message.
    fn sent(&self) -> Vec<Vec<(u8, u32)>> {
        let mut all = Vec::new();
        let mut buf = vec![0; 1 << 18];
        while let Ok((n @ 1.., _)) = rustix::net::recv(&self.server, &mut buf[..], RecvFlags::empty()) {
            let (mut at, mut kinds) = (0, Vec::new());
            if buf.starts_with(frame::PREFACE) {
                at = frame::PREFACE.len();
            }
            while let Some(h) = buf.get(at..n).and_then(FrameHeader::parse) {
                kinds.push((h.kind, h.stream));
                at += frame::HEADER_LEN + h.len;
            }
            all.push(kinds);
        }
        all
    }

    fn send(&self, frames: &[Vec<u8>]) {
        let bytes = frames.concat();
        assert_eq!(rustix::net::send(&self.server, &bytes, SendFlags::NOSIGNAL), Ok(bytes.len()));
        self.session.note_input();
    }

    /// Has the settings of the server come.
    fn settle(&self) {
        let mut settings = Vec::new();
        frame::push_settings(&mut settings, &[]);
        self.send(&[settings]);
        self.session.step();
        self.sent();
    }
}

fn headers(stream: u32, flags: u8) -> Vec<u8> {
    let (mut block, mut out) = (Vec::new(), Vec::new());
    encode::status(&mut block, 200);
    frame::push_header(&mut out, block.len(), kind::HEADERS, flags | flag::END_HEADERS, stream);
    [out, block].concat()
}

fn data(stream: u32, text: &[u8], flags: u8) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_header(&mut out, text.len(), kind::DATA, flags, stream);
    [&out, text].concat()
}

fn read(stream: &Stream) -> Result<Vec<u8>, rustix::io::Errno> {
    let mut out = Vec::with_capacity(100_000);
    stream.read(&mut out).map(|_| out)
}

/// Fifty requests leave with one send, and their answers come with one read.
#[test]
fn requests_of_a_turn_cost_one_call_each_way() {
    let world = World::new();
    world.settle();
    for _ in 0..3 {
        let streams: Vec<_> = (0..50).map(|_| world.request(true)).collect();
        assert_eq!(world.sent(), [[]; 0], "nothing before the end of the turn");
        world.session.step();
        let sent = world.sent();
        assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [50]);
        let answers =
            sent.concat().into_iter().map(|(_, id)| [headers(id, 0), data(id, b"text", 1)].concat());
        world.send(&answers.collect::<Vec<_>>());
        world.session.step();
        for stream in &streams {
            let mut head = Vec::new();
            assert_eq!(stream.next_head(4096, &mut head), Ok(true));
            assert_eq!((read(stream), read(stream)), (Ok(b"text".to_vec()), Ok(Vec::new())));
        }
        drop(streams);
        world.session.step();
        assert_eq!(world.sent(), [[]; 0]);
        assert!(world.session.is_idle() && world.session.life().idle_since().is_some());
    }
}

/// The preface goes with the first request; further ones wait until the server has said how many it allows.
#[test]
fn a_connection_begins_with_one_request() {
    let world = World::new();
    let first = world.request(true);
    assert!(world.session.opened(4096).is_none());
    world.session.step();
    let begin = [(kind::SETTINGS, 0), (kind::WINDOW_UPDATE, 0), (kind::HEADERS, 1)];
    assert_eq!(world.sent(), [begin.to_vec()]);
    world.settle();
    assert!(world.session.has_room());
    drop(first);
}

/// Requests begin in the order in which they are sent, whatever the order of their places.
#[test]
fn identifiers_follow_the_order_of_requests() {
    let world = World::new();
    world.settle();
    let [one, two] = [(); 2].map(|()| world.session.opened(4096).expect("room").stream);
    two.request(b"GET /two HTTP/1.1\r\n\r\n", false, true, &mut Vec::new());
    drop(one);
    let three = world.request(true);
    world.session.step();
    assert_eq!(world.sent(), [[(kind::HEADERS, 1), (kind::HEADERS, 3)]]);
    assert_eq!(world.session.streams(), 2);
    drop((two, three));
}

/// Reads content that came before the end of the connection; a response that is not whole fails after it.
#[test]
fn the_end_of_the_connection() {
    let world = World::new();
    world.settle();
    let (whole, part, none) = (world.request(true), world.request(true), world.request(true));
    world.session.step();
    world.send(&[headers(1, 0), data(1, b"whole", 1), headers(3, 0), data(3, b"part", 0)]);
    rustix::net::shutdown(&world.server, rustix::net::Shutdown::Write).expect("shut down");
    world.session.step();
    world.session.note_input();
    world.session.step();
    assert_eq!(world.session.life().stage(), Stage::Closed);
    let mut head = Vec::new();
    assert_eq!(whole.next_head(4096, &mut head), Ok(true));
    assert_eq!((read(&whole), read(&whole)), (Ok(b"whole".to_vec()), Ok(Vec::new())));
    assert_eq!(part.next_head(4096, &mut head), Ok(true));
    assert_eq!((read(&part), read(&part)), (Ok(b"part".to_vec()), Err(rustix::io::Errno::CONNRESET)));
    let problem = none.next_head(4096, &mut head).expect_err("no head");
    assert_eq!(problem.kind, ProblemKind::Gone);
    assert!(whole.problem().is_none() && part.problem().is_some());
}

/// An error of the protocol ends all requests, with a code for the server.
#[test]
fn an_error_of_the_protocol() {
    let world = World::new();
    world.settle();
    let stream = world.request(true);
    world.session.step();
    world.sent();
    world.send(&[data(5, b"x", 0)]);
    world.session.step();
    assert_eq!(world.sent(), [[(kind::GOAWAY, 0)]]);
    assert_eq!(stream.problem().map(|p| p.kind), Some(ProblemKind::Invalid));
}

/// A connection on which nothing has come since a request that times out began takes no others.
#[test]
fn a_silent_connection_is_left() {
    let world = World::new();
    world.settle();
    let stream = world.request(true);
    world.session.step();
    stream.timed_out();
    assert_eq!(world.session.life().stage(), Stage::Leaving);
    drop(stream);
    world.session.step();
    let reset = world.sent().concat();
    assert_eq!(reset.last(), Some(&(kind::RST_STREAM, 1)));
    assert_eq!(world.session.life().stage(), Stage::Closed);
}

/// Resets a stream with CANCEL if its response is given up, and with NO_ERROR if its response is whole.
#[test]
fn codes_of_resets() {
    for (answer, code) in [(vec![], Code::Cancel), (headers(1, flag::END_STREAM), Code::NoError)] {
        let world = World::new();
        world.settle();
        let stream = world.request(false);
        world.session.step();
        world.sent();
        if !answer.is_empty() {
            world.send(&[answer]);
            world.session.step();
            assert_eq!(stream.send(b"more"), Err(rustix::io::Errno::PIPE));
        }
        drop(stream);
        world.session.step();
        let mut buf = [0; 64];
        let (n, _) = rustix::net::recv(&world.server, &mut buf[..], RecvFlags::empty()).expect("a reset");
        let mut reset = Vec::new();
        frame::push_reset(&mut reset, 1, code);
        assert_eq!(buf[..n], reset);
    }
}
