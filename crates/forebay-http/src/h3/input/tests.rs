use super::super::transport::memory::Memory;
use super::*;

fn input(bytes: &[u8], ended: bool) -> Input {
    Input { raw: Bytes::copy_from_slice(bytes), ended, readable: false, ..Input::new(Role::Server, 0, 100) }
}

fn section(bytes: &[u8]) -> Next {
    Next::Section(Bytes::copy_from_slice(bytes))
}

#[test]
fn bytes_are_put_together() {
    let all: Vec<u8> = (0..=255).collect();
    let datagram = Bytes::from(all.clone());
    let mut raw = datagram.slice(..1);
    for at in 1..all.len() {
        raw = append(raw, Bytes::copy_from_slice(&all[at..=at]));
    }
    assert_eq!((&raw[..], &datagram[..]), (&all[..], &all[..]));
}

#[test]
fn a_request_is_taken_apart() {
    // An unknown frame, HEADERS, two DATA frames with an empty one between, trailers.
    let mut i = input(&[0x21, 1, 9, 1, 2, 7, 8, 0, 3, b'a', b'b', b'c', 0, 0, 0, 1, b'd', 1, 1, 5], true);
    assert_eq!(i.next(), Ok(section(&[7, 8])));
    assert_eq!(i.whole(), None, "trailers follow");
    let mut out = Vec::with_capacity(2);
    assert_eq!((i.next(), i.take_content(&mut out)), (Ok(Next::Content), 2));
    out.reserve(8);
    assert_eq!((i.next(), i.take_content(&mut out)), (Ok(Next::Content), 1));
    assert_eq!((i.next(), i.take_content(&mut out)), (Ok(Next::Content), 1));
    assert_eq!(out, b"abcd");
    assert_eq!((i.next(), i.next()), (Ok(section(&[5])), Ok(Next::End)));
    let mut i = input(&[1, 0, 0, 2, b'a', b'b', 0x21, 0, 0, 2, b'c'], true);
    assert_eq!((i.next(), i.next()), (Ok(section(&[])), Ok(Next::Content)));
    i.skip_content(&mut |_| {});
    assert_eq!((i.next(), i.is_cut(), i.is_empty()), (Ok(Next::Content), false, false));
    i.skip_content(&mut |_| {});
    assert!(i.is_cut() && i.is_drained() && !i.is_empty(), "a byte is missing");
    let mut i = input(&[1, 0, 0, 2, b'a', b'b', 0, 1, b'c'], true);
    i.next().expect("a section");
    assert_eq!(i.whole(), Some(3));
}

/// A task that waits for more must not be told that there is something.
#[test]
fn the_begin_of_a_frame_gives_nothing() {
    for begin in [&[1u8][..], &[1, 2], &[1, 2, 7], &[1, 0, 0], &[1, 0, 0x21]] {
        let mut i = input(begin, false);
        assert!(i.may_give(), "nothing has been looked for: {begin:?}");
        while i.next() != Ok(Next::Nothing) {}
        assert!(!i.is_drained() && !i.may_give(), "{begin:?}");
    }
    let mut i = input(&[1, 0, 0, 2, b'a'], false);
    assert_eq!((i.next(), i.next(), i.may_give()), (Ok(section(&[])), Ok(Next::Content), true));
}

#[test]
fn frames_out_of_order_end_the_connection() {
    for (bytes, code) in [
        (&[0u8, 1, 1][..], Code::FrameUnexpected),
        (&[4, 0], Code::FrameUnexpected),
        (&[2, 0], Code::FrameUnexpected),
        (&[5, 1, 0], Code::FrameUnexpected),
        (&[1, 2, 0], Code::FrameError),
        (&[0x21], Code::FrameError),
    ] {
        let failed = input(bytes, true).next();
        assert!(matches!(failed, Err(Failure::Connection(e)) if e.code == code), "{bytes:?}: {failed:?}");
    }
    let promise = Input { role: Role::Client, ..input(&[5, 1, 0], true) }.next();
    assert!(matches!(promise, Err(Failure::Connection(e)) if e.code == Code::IdError));
    let mut i = input(&[1, 0, 1, 0, 1, 0], true);
    assert_eq!((i.next(), i.next()), (Ok(section(&[])), Ok(section(&[]))));
    assert!(i.next().is_err(), "a section behind the trailers");
    // Sections that are too large are skipped as they come.
    let large = [1, 0x40, 0x65];
    let mut i = input(&[&large, &[0; 0x65][..], &[0, 1, b'a'], &large, &[0; 0x64]].concat(), true);
    assert_eq!((i.next(), i.next()), (Ok(Next::TooLarge), Ok(Next::Content)));
    i.skip_content(&mut |_| {});
    assert_eq!((i.next(), i.next()), (Ok(Next::TooLarge), Err(CUT)));
    let mut many = input(&[vec![1, 0], [0x21, 0].repeat(101)].concat(), true);
    many.next().expect("a section");
    assert!(matches!(many.next(), Err(Failure::Connection(e)) if e.code == Code::ExcessiveLoad));
}

#[test]
fn a_request_is_read_as_it_comes() {
    let (quic, mut i) = (Memory::default(), Input::new(Role::Server, 0, 100));
    quic.push(0, &[1, 2, 7]);
    assert_eq!((i.head(&quic, false), i.may_give()), (Ok(Next::Nothing), false));
    quic.push(0, &[8, 0, 2, b'a']);
    i.note_readable();
    assert_eq!((i.head(&quic, false), i.received()), (Ok(section(&[7, 8])), 7));
    let mut out = Vec::with_capacity(8);
    assert_eq!((i.read(&quic, &mut out), i.read(&quic, &mut out)), (Ok(Next::Content), Ok(Next::Nothing)));
    quic.push(0, &[b'b', 1, 1, 5, 0x21, 0]);
    quic.end(0);
    i.note_readable();
    assert_eq!((i.read(&quic, &mut out), i.read(&quic, &mut out)), (Ok(Next::Content), Ok(section(&[5]))));
    assert_eq!((i.drain(&quic, |_| {}), i.has_ended()), (Ok(Next::End), true));
    assert_eq!(out, b"ab");
    // The end may come with the last content.
    let mut i = Input::new(Role::Server, 8, 100);
    quic.input
        .borrow_mut()
        .entry(8)
        .or_default()
        .push_back(Received::Bytes(Bytes::from_static(&[1, 0, 0, 1, b'a']), Follows::End));
    assert_eq!((i.head(&quic, false), i.drain(&quic, |_| {})), (Ok(section(&[])), Ok(Next::End)));
    // All content is passed on, and the end must not be within a frame.
    let (mut i, mut all) = (Input::new(Role::Server, 4, 100), Vec::new());
    quic.push(4, &[1, 0, 0, 2, b'a', b'b', 0, 2, b'c']);
    quic.end(4);
    assert_eq!(i.head(&quic, false), Ok(section(&[])));
    assert_eq!((i.drain(&quic, |piece| all.extend_from_slice(piece)), &all[..]), (Err(CUT), &b"abc"[..]));
}

#[test]
fn a_request_line_ends_with_the_stream() {
    let (quic, mut i) = (Memory::default(), Input::new(Role::Server, 0, 100));
    quic.push(0, b"GET /");
    assert_eq!(i.head(&quic, true), Ok(Next::Nothing));
    quic.end(0);
    i.note_readable();
    assert_eq!(i.head(&quic, true), Ok(section(b"GET /\n")));
    assert_eq!(i.head(&quic, true), Ok(Next::End));
}
