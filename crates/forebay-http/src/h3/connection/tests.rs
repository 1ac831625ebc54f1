use super::super::transport::memory::Memory;
use super::*;
use crate::h3::encode;
use crate::h3::tables::{Acknowledge, FAILED, Required};

const OFFER: Offer = Offer { table: 4096, blocked_streams: 2, requests: 10 };
const SERVER: Role = Role::Server;
/// SETTINGS without a setting.
const SETTINGS: [u8; 2] = [4, 0];

/// A connection, and the streams below it.
struct End {
    quic: Memory,
    connection: Connection,
}

impl End {
    fn new(role: Role) -> End {
        End { quic: Memory::default(), connection: Connection::new(role, OFFER) }
    }

    /// Returns an end whose peer has sent SETTINGS on stream 2.
    fn settled(role: Role) -> End {
        let mut end = End::new(role);
        assert_eq!(end.opened(2, &[&[0], &SETTINGS[..]].concat()), Ok(vec![]));
        end
    }

    /// Has the peer open a stream with these bytes.
    fn opened(&mut self, id: u64, bytes: &[u8]) -> Result<Vec<Event>, Fatal> {
        self.quic.opened.borrow_mut().push_back(id);
        assert_eq!(self.connection.accept(&self.quic)?, Some(id));
        self.sent(id, bytes)
    }

    /// Has the peer send bytes on a stream that it has opened.
    fn sent(&mut self, id: u64, bytes: &[u8]) -> Result<Vec<Event>, Fatal> {
        self.quic.push(id, bytes);
        self.events(id)
    }

    fn events(&mut self, id: u64) -> Result<Vec<Event>, Fatal> {
        let mut events = Vec::new();
        while let Some(event) = self.connection.receive(&self.quic, id)? {
            events.push(event);
        }
        Ok(events)
    }

    /// Returns the code with which the connection ends after bytes on the control stream.
    fn error(role: Role, control: &[u8]) -> Option<Code> {
        End::settled(role).sent(2, control).err().map(|e| e.code)
    }
}

#[test]
fn our_streams_begin_with_their_types_and_settings() {
    let mut end = End::new(SERVER);
    end.connection.open(&end.quic).expect("two streams");
    end.connection.send(&end.quic);
    assert_eq!(end.quic.take(3), [0, 4, 7, 1, 0x50, 0, 7, 2, 8, 1]);
    assert_eq!(end.quic.take(7), [3]);
    assert_eq!(end.connection.own().collect::<Vec<_>>(), [3, 7]);
    assert_eq!(end.connection.stopped(3).map_err(|e| e.code), Err(Code::ClosedCriticalStream));
    assert_eq!(end.connection.stopped(11), Ok(()));
    let mut end = End::new(Role::Client);
    end.quic.allowed.set(1);
    assert_eq!(end.connection.open(&end.quic).map_err(|e| e.code), Err(Code::StreamCreationError));
    end.connection.send(&end.quic);
    assert_eq!(end.quic.take(3), [0, 4, 5, 1, 0x50, 0, 7, 2], "without CONNECT of a server");
}

#[test]
fn the_cut_of_a_control_stream_makes_no_difference() {
    let bytes = [0, 4, 2, 0x21, 7, 7, 1, 12, 0x21, 0, 7, 1, 8];
    let want = vec![Event::GoAway(12), Event::GoAway(8)];
    assert_eq!(End::new(Role::Client).opened(2, &bytes), Ok(want.clone()));
    let (mut end, mut events) = (End::new(Role::Client), Vec::new());
    events.extend(end.opened(2, &[]).expect("nothing"));
    for byte in bytes {
        events.extend(end.sent(2, &[byte]).expect("no error"));
    }
    assert_eq!((events, end.connection.goaway()), (want, Some(8)));
    assert_eq!(end.connection.received(), bytes.len() as u64 - 1);
}

#[test]
fn frames_of_the_control_stream_are_checked() {
    for (role, bytes, code) in [
        (SERVER, &SETTINGS[..], Some(Code::FrameUnexpected)),
        (SERVER, &[0, 0], Some(Code::FrameUnexpected)),
        (SERVER, &[2, 0], Some(Code::FrameUnexpected)),
        (SERVER, &[7, 1, 3], None),
        (SERVER, &[7, 1, 3, 7, 1, 4], Some(Code::IdError)),
        (SERVER, &[7, 2, 3, 3], Some(Code::FrameError)),
        (SERVER, &[13, 1, 3, 13, 1, 3], None),
        (SERVER, &[13, 1, 3, 13, 1, 2], Some(Code::IdError)),
        (SERVER, &[3, 1, 0], Some(Code::IdError)),
        (SERVER, &[0x80, 0x0f, 0x07, 0x00, 1, 36], None),
        (SERVER, &[0x80, 0x0f, 0x07, 0x00, 1, 40], Some(Code::IdError)),
        (SERVER, &[0x80, 0x0f, 0x07, 0x00, 1, 3], Some(Code::IdError)),
        (SERVER, &[0x80, 0x0f, 0x07, 0x01, 1, 0], Some(Code::IdError)),
        (SERVER, &[0x21, 0x50, 0x01], Some(Code::ExcessiveLoad)),
        (Role::Client, &[7, 1, 3], Some(Code::IdError)),
        (Role::Client, &[7, 1, 4, 7, 1, 8], Some(Code::IdError)),
        (Role::Client, &[13, 1, 3], Some(Code::FrameUnexpected)),
        (Role::Client, &[3, 1, 0], Some(Code::IdError)),
        (Role::Client, &[0x80, 0x0f, 0x07, 0x00, 1, 0], Some(Code::FrameUnexpected)),
    ] {
        assert_eq!(End::error(role, bytes), code, "{role:?} {bytes:?}");
    }
    let mut end = End::new(SERVER);
    assert_eq!(end.opened(2, &[0, 7, 1, 0]).map_err(|e| e.code), Err(Code::MissingSettings));
    let mut end = End::new(SERVER);
    assert_eq!(end.opened(2, &[0, 4, 2, 2, 1]).map_err(|e| e.code), Err(Code::SettingsError));
}

#[test]
fn critical_streams_come_once_and_stay() {
    for kind in [0, 2, 3] {
        let mut end = End::settled(SERVER);
        if kind != 0 {
            assert_eq!(end.opened(6, &[kind]), Ok(vec![]));
        }
        let again = end.opened(10, &[kind]).map_err(|e| e.code);
        assert_eq!(again, Err(Code::StreamCreationError), "{kind}");
        let mut end = End::settled(SERVER);
        let id = if kind == 0 { 2 } else { 6 };
        if kind != 0 {
            assert_eq!(end.opened(6, &[kind]), Ok(vec![]));
        }
        end.quic.end(id);
        assert_eq!(end.events(id).map_err(|e| e.code), Err(Code::ClosedCriticalStream), "{kind}");
    }
    let pushed = |role| End::settled(role).opened(6, &[1]).map_err(|e| e.code);
    assert_eq!(pushed(SERVER), Err(Code::StreamCreationError));
    assert_eq!(pushed(Role::Client), Err(Code::IdError));
}

#[test]
fn streams_of_unknown_types_are_stopped() {
    let mut end = End::settled(SERVER);
    assert_eq!(end.opened(6, &[0x40]), Ok(vec![]), "half a type");
    assert_eq!(end.sent(6, &[0x21, 1, 2, 3]), Ok(vec![]));
    assert_eq!(*end.quic.stopped.borrow(), [(6, Code::StreamCreationError)]);
    assert_eq!(end.sent(6, &[1, 2, 3]), Ok(vec![]));
    // One may end before its type is there.
    assert_eq!(end.opened(10, &[0x40]), Ok(vec![]));
    end.quic.end(10);
    assert_eq!(end.events(10), Ok(vec![]));
}

#[test]
fn priorities_wait_for_their_requests() {
    let mut end = End::settled(SERVER);
    let update = |id: u8| [&[0x80, 0x0f, 0x07, 0x00, 4, id], &b"u=1"[..]].concat();
    assert_eq!(end.sent(2, &update(4)), Ok(vec![]));
    let priority = Priority::parse(b"u=1");
    assert_eq!(end.connection.begin_request(0), None);
    assert_eq!(end.connection.begin_request(4), Some(priority));
    assert_eq!(end.sent(2, &update(0)), Ok(vec![Event::Priority { stream: 0, priority }]));
}

#[test]
fn goaway_names_the_next_request() {
    let mut end = End::settled(SERVER);
    end.connection.open(&end.quic).expect("two streams");
    end.connection.send(&end.quic);
    end.quic.take(3);
    end.connection.begin_request(8);
    end.connection.announce();
    assert!(!end.connection.is_leaving());
    end.connection.leave();
    end.connection.send(&end.quic);
    assert_eq!(end.quic.take(3), [7, 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfc, 7, 1, 12]);
    assert!(end.connection.is_leaving());
}

#[test]
fn what_costs_a_peer_little_is_bounded() {
    let mut end = End::settled(SERVER);
    let flood = [0x21, 0].repeat(2000);
    assert_eq!(end.sent(2, &flood).map_err(|e| e.code), Err(Code::ExcessiveLoad));
    let mut end = End::settled(SERVER);
    assert_eq!(end.opened(6, &[2]), Ok(vec![]));
    // Set Dynamic Table Capacity
    let flood = [0x20].repeat(2000);
    assert_eq!(end.sent(6, &flood).map_err(|e| e.code), Err(Code::ExcessiveLoad));
    let mut end = End::settled(SERVER);
    let opened: Result<Vec<_>, _> = (1..2000).map(|n| end.opened(4 * n + 2, &[0x21])).collect();
    assert_eq!(opened.map_err(|e| e.code), Err(Code::ExcessiveLoad));
    let mut end = End::settled(SERVER);
    assert_eq!(end.opened(6, &[2]), Ok(vec![]));
    // An insertion of a long name.
    let long = [&[0x5f, 0xe1, 0x1f][..], &[b'a'; 9000]].concat();
    assert_eq!(end.sent(6, &long).map_err(|e| e.code), Err(Code::EncoderStreamError));
}

/// Has both ends of a connection exchange what they have written.
fn exchange(server: &mut End, client: &mut End) -> Vec<Event> {
    let mut events = Vec::new();
    for turn in 0..4 {
        let (from, to) =
            if turn % 2 == 0 { (&mut *server, &mut *client) } else { (&mut *client, &mut *server) };
        from.connection.send(&from.quic);
        for id in [3, 7, 11] {
            let bytes = from.quic.take(id);
            if bytes.is_empty() {
                continue;
            }
            let opened = to.connection.received() == 0 || !to.quic.input.borrow().contains_key(&id);
            let received = if opened { to.opened(id, &bytes) } else { to.sent(id, &bytes) };
            events.extend(received.expect("what we send is right"));
        }
    }
    events
}

#[test]
fn both_ends_understand_each_other() {
    let (mut server, mut client) = (End::new(SERVER), End::new(Role::Client));
    for end in [&mut server, &mut client] {
        end.connection.open(&end.quic).expect("two streams");
    }
    exchange(&mut server, &mut client);
    let mut section = Vec::new();
    encode::prefix(&mut section);
    encode::field(&mut section, b"x-some-name", b"a value that comes again");
    let (mut events, mut frame) = (Vec::new(), Vec::new());
    for n in 0..3 {
        frame.clear();
        server.connection.push_section(&server.quic, 4 * n, &section, &mut frame);
        events.extend(exchange(&mut server, &mut client));
    }
    assert_eq!(events, [Event::Inserted(1)], "at the second time");
    let (header, len) = Header::read(&frame).expect("a frame");
    assert_eq!((header.kind, header.len as usize), (kind::HEADERS, frame.len() - len));
    assert!(frame.len() < section.len(), "it refers to the table");
    let tables = &mut client.connection.tables;
    assert_eq!(tables.required(&frame[len..], || 0), Ok(Required::Here(1)));
    tables.acknowledge(8, Acknowledge::AtOnce);
    exchange(&mut server, &mut client);
}

#[test]
fn only_so_many_streams_wait_for_insertions() {
    let end = End::settled(SERVER);
    // It needs one insertion.
    let section = [2, 0, 0x80];
    let tables = &end.connection.tables;
    assert_eq!(tables.required(&section, || 1), Ok(Required::Awaited(1)));
    assert_eq!(tables.required(&section, || 2).map_err(|e| e.code), Err(Code::DecompressionFailed));
    assert_eq!(tables.required(&[], || 0), Err(FAILED));
}
