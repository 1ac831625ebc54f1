use super::*;
use crate::error::{Code, Error};
use crate::id::{ConnectionId, Dir, Side, StreamId};
use crate::packet::Kind;
use crate::ranges::RangeSet;
use crate::varint::{MAX, Reader};

fn read(payload: &[u8]) -> Result<Vec<(u64, Frame<'_>)>, Error> {
    Frames::new(payload, Kind::OneRtt, Side::Server)?.collect()
}

/// Returns code and frame type of the error that bytes cause.
fn error(payload: &[u8]) -> Option<(Code, u64)> {
    read(payload).err().map(|error| (error.code, error.frame))
}

fn ack(bytes: &[u8]) -> AckFrame<'_> {
    AckFrame::read(&mut Reader::new(bytes), false).expect("well-formed")
}

/// One frame of each type, with numbers of each length.
fn samples() -> Vec<(u64, Frame<'static>)> {
    let id = StreamId(70);
    let connection_id = ConnectionId::new(&[7; 20]).expect("20 bytes");
    let ecn = AckFrame::read(&mut Reader::new(&[9, 1, 0, 9, 1, 2, 3]), true).expect("well-formed");
    vec![
        (0x00, Frame::Padding(3)),
        (0x01, Frame::Ping),
        (0x02, Frame::Ack(ack(&[0x44, 0, 5, 2, 3, 0, 1, 1, 0x41, 0]))),
        (0x03, Frame::Ack(ecn)),
        (0x04, Frame::ResetStream { id, code: MAX, final_size: 1 << 20 }),
        (0x05, Frame::StopSending { id, code: 5 }),
        (0x06, Frame::Crypto { offset: 1 << 14, data: b"hello" }),
        (0x07, Frame::NewToken(b"token")),
        (0x0a, Frame::Stream { id, offset: 0, data: b"", fin: false }),
        (0x0b, Frame::Stream { id, offset: 0, data: b"abc", fin: true }),
        (0x0e, Frame::Stream { id, offset: 1, data: b"abc", fin: false }),
        (0x0f, Frame::Stream { id, offset: MAX - 3, data: b"abc", fin: true }),
        (0x10, Frame::MaxData(0)),
        (0x11, Frame::MaxStreamData { id, limit: MAX }),
        (0x12, Frame::MaxStreams { dir: Dir::Bi, limit: 1 << 60 }),
        (0x13, Frame::MaxStreams { dir: Dir::Uni, limit: 64 }),
        (0x14, Frame::DataBlocked(1 << 30)),
        (0x15, Frame::StreamDataBlocked { id, limit: 7 }),
        (0x16, Frame::StreamsBlocked { dir: Dir::Bi, limit: 0 }),
        (0x17, Frame::StreamsBlocked { dir: Dir::Uni, limit: 1 << 60 }),
        (0x18, Frame::NewConnectionId { sequence: 5, retire_prior_to: 5, id: connection_id, token: [3; 16] }),
        (0x19, Frame::RetireConnectionId(300)),
        (0x1a, Frame::PathChallenge(*b"12345678")),
        (0x1b, Frame::PathResponse(*b"abcdefgh")),
        (0x1c, Frame::ConnectionClose { code: 0x128, frame: Some(6), reason: b"no" }),
        (0x1d, Frame::ConnectionClose { code: 0x100, frame: None, reason: b"" }),
        (0x1e, Frame::HandshakeDone),
        (0x31, Frame::Datagram(b"data")),
    ]
}

#[test]
fn frames_come_back() {
    let mut packet = Vec::new();
    for (kind, frame) in samples() {
        let mut out = Vec::new();
        frame.push(&mut out);
        assert_eq!(out[0], kind as u8, "{frame:?}");
        assert_eq!(read(&out), Ok(vec![(kind, frame)]));
        packet.extend_from_slice(&out);
    }
    assert_eq!(read(&packet), Ok(samples()));
}

#[test]
fn cut_off_frames_are_refused() {
    for (kind, frame) in samples().into_iter().skip(1) {
        let mut out = Vec::new();
        frame.push(&mut out);
        for len in 1..out.len() {
            assert_eq!(error(&out[..len]), Some((Code::FRAME_ENCODING_ERROR, kind)), "{frame:?} {len}");
        }
    }
}

#[test]
fn content_without_a_length_reaches_to_the_end() {
    let mut out = Vec::new();
    push_stream(&mut out, StreamId(4), 9, b"content", true, true);
    assert_eq!(out[0], 0x0d);
    let stream = Frame::Stream { id: StreamId(4), offset: 9, data: b"content", fin: true };
    assert_eq!(read(&out), Ok(vec![(0x0d, stream)]));
    out.clear();
    push_datagram(&mut out, b"content", true);
    assert_eq!(read(&out), Ok(vec![(0x30, Frame::Datagram(b"content"))]));
}

#[test]
fn sizes_are_told_before() {
    for (id, offset, len) in [(0, 0, 0), (64, 1, 63), (1 << 14, 64, 64), (1 << 30, MAX - 70_000, 70_000)] {
        let (id, data) = (StreamId(id), vec![0; len]);
        for last in [false, true] {
            let mut out = Vec::new();
            push_stream(&mut out, id, offset, &data, false, last);
            assert_eq!(out.len(), stream_head_len(id, offset, (!last).then_some(len)) + len);
            out.clear();
            push_datagram(&mut out, &data, last);
            assert_eq!(out.len(), datagram_head_len(len, last) + len);
        }
        let mut out = Vec::new();
        push_crypto(&mut out, offset, &data);
        assert_eq!(out.len(), crypto_head_len(offset, len) + len);
        out.clear();
        push_new_token(&mut out, &data);
        assert_eq!(out.len(), new_token_len(&data));
    }
}

#[test]
fn a_frame_that_does_not_fit_is_left_out() {
    let mut out = vec![1];
    assert!(fit(&mut out, 3, |out| push_max_data(out, 5)));
    assert!(!fit(&mut out, 4, |out| push_max_data(out, 5)));
    assert_eq!(out, [1, 0x10, 5]);
}

#[test]
fn a_packet_needs_a_frame() {
    assert_eq!(error(&[]), Some((Code::PROTOCOL_VIOLATION, 0)));
    assert_eq!(read(&[0; 1200]), Ok(vec![(0, Frame::Padding(1200))]));
}

#[test]
fn types_are_checked() {
    assert_eq!(error(&[0x1f]), Some((Code::FRAME_ENCODING_ERROR, 0x1f)));
    assert_eq!(error(&[0x80, 0, 0x75, 0x30]), Some((Code::FRAME_ENCODING_ERROR, 0x7530)));
    assert_eq!(error(&[0x40, 1]), Some((Code::PROTOCOL_VIOLATION, 1)), "not the shortest form");
    assert_eq!(error(&[1, 0x40]), Some((Code::FRAME_ENCODING_ERROR, 0)), "half of a type");
}

/// Values that RFC 9000, section 19, forbids.
#[test]
fn values_are_checked() {
    let fields = |kind: u8, fields: &[u64], rest: &[u8]| {
        let mut out = vec![kind];
        fields.iter().for_each(|field| crate::varint::push(&mut out, *field));
        out.extend_from_slice(rest);
        out
    };
    let cases = [
        fields(0x06, &[MAX, 1], b"a"),
        fields(0x07, &[0], b""),
        fields(0x0c, &[4, MAX], b"a"),
        fields(0x0e, &[4, MAX - 1, 2], b"ab"),
        fields(0x12, &[(1 << 60) + 1], b""),
        fields(0x13, &[(1 << 60) + 1], b""),
        fields(0x16, &[(1 << 60) + 1], b""),
        fields(0x17, &[(1 << 60) + 1], b""),
        fields(0x18, &[1, 2, 1], &[0; 17]),
        fields(0x18, &[1, 1, 0], &[0; 16]),
        fields(0x18, &[1, 1, 21], &[0; 37]),
    ];
    for case in cases {
        assert_eq!(error(&case), Some((Code::FRAME_ENCODING_ERROR, case[0].into())), "{case:?}");
    }
    let empty_at_the_end = fields(0x0c, &[4, MAX], b"");
    assert!(read(&empty_at_the_end).is_ok());
}

/// RFC 9000, table 3, with section 12.5 for 0-RTT packets.
#[test]
fn frames_are_allowed_in_some_packets() {
    let packets = [Kind::Initial, Kind::Handshake, Kind::ZeroRtt, Kind::OneRtt];
    for (kind, frame) in samples() {
        let expected = match kind {
            0x00 | 0x01 | 0x1c => [true; 4],
            0x02 | 0x03 | 0x06 => [true, true, false, true],
            0x07 | 0x19 | 0x1b | 0x1e => [false, false, false, true],
            _ => [false, false, true, true],
        };
        let mut out = Vec::new();
        frame.push(&mut out);
        for (packet, expected) in packets.into_iter().zip(expected) {
            assert_eq!(kind::allowed(kind, packet), expected, "{frame:?} in {packet:?}");
            let result = Frames::new(&out, packet, Side::Server).expect("not empty").next();
            let code = result.and_then(Result::err).map(|error| (error.code, error.frame));
            assert_eq!(code, (!expected).then_some((Code::PROTOCOL_VIOLATION, kind)));
        }
        let from_client = Frames::new(&out, Kind::OneRtt, Side::Client).expect("not empty").next();
        let code = from_client.and_then(Result::err).map(|error| error.code);
        assert_eq!(code, matches!(kind, 0x07 | 0x1e).then_some(Code::PROTOCOL_VIOLATION));
    }
}

#[test]
fn kinds_of_frames() {
    let eliciting = |kind: u64| !matches!(kind, 0 | 2 | 3 | 0x1c | 0x1d);
    for (kind, _) in samples() {
        assert!(kind::is_known(kind));
        assert_eq!(kind::is_ack_eliciting(kind), eliciting(kind));
        assert_eq!(kind::is_probing(kind), matches!(kind, 0 | 0x18 | 0x1a | 0x1b));
    }
    assert!(!kind::is_known(0x1f) && !kind::is_known(0x2f) && !kind::is_known(0x32));
}

#[test]
fn nothing_follows_an_error() {
    let mut frames = Frames::new(&[1, 0x1f, 1, 1], Kind::OneRtt, Side::Client).expect("not empty");
    assert_eq!(frames.next(), Some(Ok((1, Frame::Ping))));
    assert!(frames.next().is_some_and(|frame| frame.is_err()));
    assert_eq!(frames.next(), None);
}

#[test]
fn ranges_of_an_ack() {
    let mut set = RangeSet::new();
    for range in [3..4, 10..20, 1000..1001, 5_000_000..5_000_100] {
        set.insert(range);
    }
    let mut out = Vec::new();
    assert_eq!(push_ack(&mut out, &set, 77, Some([1, 2, 1 << 40]), 1000), 4);
    let frames = read(&out).expect("well-formed");
    let [(kind::ACK_ECN, Frame::Ack(ack))] = frames[..] else { panic!("{frames:?}") };
    assert_eq!((ack.largest, ack.delay, ack.ecn), (5_000_099, 77, Some([1, 2, 1 << 40])));
    let ranges: Vec<_> = ack.ranges().collect();
    assert_eq!(ranges, [5_000_000..=5_000_099, 1000..=1000, 10..=19, 3..=3]);
}

/// As many ranges as fit are in the frame, never more bytes than there is room.
#[test]
fn an_ack_fits_into_any_room() {
    let mut set = RangeSet::new();
    for n in 0..200 {
        set.insert(n * n * 50..n * n * 50 + n + 1);
    }
    assert_eq!(push_ack(&mut Vec::new(), &RangeSet::new(), 0, None, 100), 0);
    let mut before = 0;
    for room in 0..1200 {
        let mut out = vec![0xff];
        let ranges = push_ack(&mut out, &set, 1 << 14, None, room);
        assert!(ranges >= before && out.len() <= room + 1);
        before = ranges;
        if ranges == 0 {
            assert_eq!(out.len(), 1);
            continue;
        }
        let frames = read(&out[1..]).expect("well-formed");
        let [(kind::ACK, Frame::Ack(ack))] = frames[..] else { panic!("{frames:?}") };
        let expected = set.iter().rev().take(ranges).map(|range| range.start..=range.end - 1);
        assert!(ack.ranges().eq(expected));
    }
    assert_eq!(before, 200);
}

#[test]
fn acks_below_zero_are_refused() {
    // Largest, delay, count, first; then gaps and lengths.
    let cases: [&[u8]; 5] =
        [&[2, 0, 0, 3], &[5, 0, 1, 5, 0, 0], &[5, 0, 1, 3, 1, 0], &[5, 0, 1, 2, 0, 2], &[5, 0, 63, 0, 0, 0]];
    for case in cases {
        assert_eq!(AckFrame::read(&mut Reader::new(case), false), None, "{case:?}");
    }
    assert_eq!(ack(&[5, 0, 1, 2, 0, 1]).ranges().collect::<Vec<_>>(), [3..=5, 0..=1]);
    assert_eq!(ack(&[0, 0, 0, 0]).ranges().collect::<Vec<_>>(), [0..=0]);
    let huge = [0x02, 5, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0];
    assert_eq!(error(&huge), Some((Code::FRAME_ENCODING_ERROR, 2)));
}

#[test]
fn the_reason_of_a_close_is_cut() {
    let mut out = Vec::new();
    for room in 0..40 {
        out.clear();
        if !push_connection_close(&mut out, 10, Some(6), &[b'r'; 70], room) {
            assert!(room < 4 && out.is_empty(), "{room}");
            continue;
        }
        assert!(out.len() <= room && out.len() + 2 > room.min(4), "{room} {}", out.len());
        assert!(read(&out).is_ok());
    }
    assert!(push_connection_close(&mut out, 10, None, b"reason", 100));
}

/// Random bytes end with frames or an error and never panic.
#[test]
fn garbage_is_read_without_a_panic() {
    let mut random = 88_172_645_463_325_252_u64;
    for round in 0..20_000 {
        let bytes: Vec<u8> = (0..round % 40 + 1)
            .map(|_| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                if random & 0x300 == 0 { random as u8 } else { random as u8 & 0x1f }
            })
            .collect();
        let Ok(frames) = read(&bytes) else { continue };
        let mut again = Vec::new();
        frames.iter().for_each(|(_, frame)| frame.push(&mut again));
        let content = |frames: Vec<(u64, Frame<'_>)>| {
            format!("{:?}", frames.into_iter().map(|(_, f)| f).collect::<Vec<_>>())
        };
        assert_eq!(content(read(&again).expect("written here")), content(frames));
    }
}
