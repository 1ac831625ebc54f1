//! Any bytes of a peer on streams of all kinds of an HTTP/3 connection, for each role, in any cut. The cut makes no difference, and what
//! one end writes is right for the other.
#![no_main]

use bytes::Bytes;
use forebay_http::compression::{Field, Sink};
use forebay_http::h3::connection::{Connection, Event, Offer, Role};
use forebay_http::h3::input::{Failure, Input, Next};
use forebay_http::h3::output::Output;
use forebay_http::h3::tables::{Acknowledge, Required};
use forebay_http::h3::transport::{Follows, Received, Transport, Unwritten};
use forebay_http::h3::{Code, Fatal, encode};
use libfuzzer_sys::fuzz_target;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

const OFFER: Offer = Offer { table: 220, blocked_streams: 3, requests: 4 };
const ROLES: [Role; 2] = [Role::Client, Role::Server];

struct Ignore;

impl Sink for Ignore {
    fn field(&mut self, _: Field<'_>) {}
}

/// Streams in memory.
#[derive(Default)]
struct Quic {
    input: RefCell<BTreeMap<u64, VecDeque<Received>>>,
    opened: RefCell<VecDeque<u64>>,
    output: RefCell<BTreeMap<u64, Vec<u8>>>,
    /// Bytes that a write takes at a time; 0: all.
    portion: Cell<usize>,
    next: Cell<u64>,
}

impl Quic {
    fn push(&self, id: u64, received: Received) {
        self.input.borrow_mut().entry(id).or_default().push_back(received);
    }
}

impl Transport for Quic {
    fn open(&self) -> Option<u64> {
        self.next.set(self.next.get() + 4);
        Some(self.next.get() + 3)
    }

    fn accept(&self) -> Option<u64> {
        self.opened.borrow_mut().pop_front()
    }

    fn read(&self, id: u64, max: usize) -> Received {
        let mut input = self.input.borrow_mut();
        let Some(queue) = input.get_mut(&id) else { return Received::Blocked };
        match queue.pop_front() {
            Some(Received::Bytes(mut bytes, follows)) if bytes.len() > max => {
                let first = bytes.split_to(max);
                queue.push_front(Received::Bytes(bytes, follows));
                Received::Bytes(first, Follows::More)
            }
            Some(received) => received,
            None => Received::Blocked,
        }
    }

    fn write(&self, id: u64, bytes: &[u8]) -> Result<usize, Unwritten> {
        let n = match self.portion.get() {
            0 => bytes.len(),
            portion => bytes.len().min(portion),
        };
        self.output.borrow_mut().entry(id).or_default().extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn write_shared(&self, id: u64, bytes: &mut Bytes) -> Result<usize, Unwritten> {
        let n = self.write(id, bytes)?;
        drop(bytes.split_to(n));
        Ok(n)
    }

    fn finish(&self, _: u64) {}

    fn stop(&self, _: u64, _: Code) {}
}

/// What happened on a connection.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    events: Vec<Event>,
    sections: Vec<Vec<u8>>,
    content: Vec<u8>,
    failed: Option<Fatal>,
}

/// Passes `bytes` to a connection on streams that the first bytes name, in pieces.
fn run(role: Role, bytes: &[u8], piece: usize) -> Seen {
    let (quic, mut connection, mut seen) = (Quic::default(), Connection::new(role, OFFER), Seen::default());
    let _ = connection.open(&quic);
    // Lengths of what comes on the control, encoder, decoder, another and the request stream.
    let (lengths, mut rest) = bytes.split_at(bytes.len().min(5));
    for (at, len) in lengths.iter().enumerate() {
        let (now, later) = rest.split_at(usize::from(*len).min(rest.len()));
        rest = later;
        let id = 4 * at as u64 + 2;
        let done = match at {
            4 => request((&quic, role), &mut connection, &mut seen, now, piece),
            _ => stream(&quic, &mut connection, &mut seen, (id, now), piece),
        };
        if let Err(fatal) = done {
            seen.failed = Some(fatal);
            return seen;
        }
        if let Some(id) = connection.begin_request(4 * at as u64).map(|_| id) {
            assert_eq!(role, ROLES[1], "{id}");
        }
        connection.send(&quic);
    }
    seen
}

/// Has a unidirectional stream come in pieces.
fn stream(
    quic: &Quic,
    connection: &mut Connection,
    seen: &mut Seen,
    (id, bytes): (u64, &[u8]),
    piece: usize,
) -> Result<(), Fatal> {
    quic.opened.borrow_mut().push_back(id);
    assert_eq!(connection.accept(quic)?, Some(id));
    for part in bytes.chunks(piece) {
        quic.push(id, Received::Bytes(Bytes::copy_from_slice(part), Follows::Blocked));
        while let Some(event) = connection.receive(quic, id)? {
            // Insertions are counted up, in as many steps as there are pieces.
            match (seen.events.last_mut(), event) {
                (Some(Event::Inserted(last)), Event::Inserted(more)) => {
                    assert!(more > *last && more == connection.tables.inserted());
                    *last = more;
                }
                _ => seen.events.push(event),
            }
        }
    }
    if bytes.first() == Some(&0x40) {
        quic.push(id, Received::End);
        connection.receive(quic, id)?;
    }
    Ok(())
}

/// Has a request stream come in pieces.
fn request(
    (quic, role): (&Quic, Role),
    connection: &mut Connection,
    seen: &mut Seen,
    bytes: &[u8],
    piece: usize,
) -> Result<(), Fatal> {
    let (id, mut input) = (0, Input::new(role, 0, 100));
    let mut parts: Vec<Received> = bytes
        .chunks(piece)
        .map(|part| Received::Bytes(Bytes::copy_from_slice(part), Follows::Blocked))
        .collect();
    parts.push(Received::End);
    for part in parts {
        quic.push(id, part);
        input.note_readable();
        loop {
            let mut content = Vec::with_capacity(3);
            let next = match (input.awaits_head(), piece % 2) {
                (true, _) => input.head(quic, false),
                (false, 0) => input.read(quic, &mut content),
                (false, _) => input.drain(quic, |part| content.extend_from_slice(part)),
            };
            seen.content.extend(content);
            match next {
                Ok(Next::Section(section)) => section_of(connection, seen, &section)?,
                Ok(Next::TooLarge) => seen.sections.push(b"too large".to_vec()),
                Ok(Next::Content) => {}
                Ok(Next::Nothing) => {
                    assert!(!input.may_give() && !input.has_ended());
                    break;
                }
                Ok(Next::End) => {
                    assert!(input.has_ended() && input.is_empty() && input.received() == bytes.len() as u64);
                    return Ok(());
                }
                Err(Failure::Connection(fatal)) => return Err(fatal),
                Err(Failure::Reset) => unreachable!("nobody resets it"),
            }
        }
    }
    unreachable!("the end has come");
}

fn section_of(connection: &mut Connection, seen: &mut Seen, section: &[u8]) -> Result<(), Fatal> {
    if let Required::Here(required) = connection.tables.required(section, || 0)? {
        let read = connection.tables.decode(|decoder, scratch| decoder.decode(section, scratch, &mut Ignore));
        assert!(read.is_err() || read == Ok(required > 0));
        connection.tables.acknowledge(0, Acknowledge::AtOnce);
    }
    seen.sections.push(section.to_vec());
    Ok(())
}

/// Has a server answer a client, which takes what it writes: each byte is a response, or a step.
fn both_ends(steps: &[u8], portion: usize) {
    let ends = ROLES.map(|role| (Quic::default(), RefCell::new(Connection::new(role, OFFER))));
    for (quic, connection) in &ends {
        quic.portion.set(portion);
        connection.borrow_mut().open(quic).expect("streams are allowed");
    }
    let [client, server] = &ends;
    for (n, step) in steps.iter().enumerate() {
        let id = 4 * n as u64;
        let mut section = Vec::new();
        encode::prefix(&mut section);
        encode::field(
            &mut section,
            &b"x-ab"[..2 + usize::from(step % 3)],
            &b"some value"[..usize::from(step % 11)],
        );
        let mut output = Output::new(id, false);
        server.1.borrow_mut().push_section(&server.0, id, &section, output.frames());
        let content = vec![*step; usize::from(*step) * 40];
        assert_eq!(output.send(&server.0, &content), Ok(content.len()));
        output.end();
        assert_eq!(output.flush(&server.0), Ok(true));
        assert!(output.has_ended() && !output.is_cut());
        for (from, to) in [(server, client), (client, server)] {
            from.1.borrow_mut().send(&from.0);
            pass(from, to);
        }
        let mut input = Input::new(Role::Client, id, usize::MAX);
        client.0.push(id, Received::End);
        let mut to = client.1.borrow_mut();
        let Ok(Next::Section(head)) = input.head(&client.0, false) else { panic!("no head") };
        assert!(matches!(to.tables.required(&head, || 0), Ok(Required::Here(_))), "it must not wait");
        let read = to.tables.decode(|decoder, scratch| decoder.decode(&head, scratch, &mut Ignore));
        if read.expect("it is right") {
            to.tables.acknowledge(id, Acknowledge::AtOnce);
        }
        input.note_readable();
        let mut got = Vec::new();
        assert_eq!(input.drain(&client.0, |part| got.extend_from_slice(part)), Ok(Next::End));
        assert_eq!(got, content);
        // So that both may go on.
        to.budget.finished();
        server.1.borrow_mut().budget.finished();
    }
}

type End = (Quic, RefCell<Connection>);

/// Passes what an end has written to the other one.
fn pass(from: &End, to: &End) {
    for (id, bytes) in from.0.output.take() {
        let is_new = !to.0.input.borrow().contains_key(&id);
        to.0.push(id, Received::Bytes(Bytes::from(bytes), Follows::Blocked));
        if id % 4 < 2 {
            continue;
        }
        let mut connection = to.1.borrow_mut();
        if is_new {
            to.0.opened.borrow_mut().push_back(id);
            assert_eq!(connection.accept(&to.0), Ok(Some(id)));
        }
        while connection.receive(&to.0, id).expect("what the other end writes is right").is_some() {}
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((piece, bytes)) = input.split_first() else { return };
    for role in ROLES {
        let whole = run(role, bytes, usize::MAX);
        let pieces = run(role, bytes, usize::from(*piece).max(1));
        let flooded = |seen: &Seen| seen.failed.is_some_and(|e| e.code == Code::ExcessiveLoad);
        // A frame counts each time that some of it comes.
        if !flooded(&whole) && !flooded(&pieces) {
            assert_eq!(whole.failed, pieces.failed);
            if whole.failed.is_none() {
                assert_eq!(whole, pieces);
            }
        }
    }
    both_ends(&bytes[..bytes.len().min(200)], usize::from(piece % 7));
});
