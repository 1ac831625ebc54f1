//! What costs a peer little and could cost this side much. Each attack has a budget.

use crate::lab::{Lab, Stage, address};
use crate::node::Plain;
use crate::raw::{Raw, Shape, eight};
use crate::rows::{fields, made, own};
use crate::setup::{IDS, STREAM_WINDOW, Setup};
use forebay_quic::connection::{Event, Reason};
use forebay_quic::error::Code;
use forebay_quic::frame::{self, kind};
use forebay_quic::id::{Dir, Side};
use forebay_quic::packet::{Kind, protect};
use forebay_quic::varint;
use std::time::Duration;

const SIDES: [Side; 2] = [Side::Server, Side::Client];

fn up(side: Side) -> Lab {
    crate::lab::seed(2);
    Lab::new(side, Stage::Connected, &Setup::default())
}

/// Returns the bytes and the frames that come back for what `act` sends.
fn answered(lab: &mut Lab, act: impl FnOnce(&mut Lab)) -> (usize, usize) {
    let before = (lab.sent.iter().map(|d| d.bytes.len()).sum::<usize>(), lab.raw.got.len());
    act(lab);
    lab.wait(Duration::from_millis(30));
    (lab.sent.iter().map(|d| d.bytes.len()).sum::<usize>() - before.0, lab.raw.got.len() - before.1)
}

/// The code with which the tested side closed the connection.
fn code(lab: &Lab) -> Option<Code> {
    lab.lost().and_then(Reason::code)
}

#[test]
fn new_connection_ids_that_retire_each_other_end_the_connection() {
    for side in SIDES {
        let mut lab = up(side);
        let mut sent = 0;
        for n in 1..1000u64 {
            let id = forebay_quic::id::ConnectionId::new(&n.to_be_bytes()).unwrap();
            lab.frames(Kind::OneRtt, &made(|out| frame::push_new_connection_id(out, n, n, &id, &[1; 16])));
            if !lab.is_open() {
                break;
            }
            sent = n;
        }
        // Nothing of it was acknowledged.
        assert!(sent <= 60, "{side:?}: {sent}");
        assert_eq!(code(&lab), Some(Code::CONNECTION_ID_LIMIT_ERROR));
    }
}

#[test]
fn new_connection_ids_that_are_acknowledged_cost_a_frame_each() {
    for side in SIDES {
        let mut lab = up(side);
        let (bytes, _) = answered(&mut lab, |lab| {
            for n in 1..500u64 {
                let id = forebay_quic::id::ConnectionId::new(&n.to_be_bytes()).unwrap();
                let mut frames = lab.raw.ack(Kind::OneRtt);
                frame::push_new_connection_id(&mut frames, n, n, &id, &[1; 16]);
                lab.frames(Kind::OneRtt, &frames);
            }
        });
        assert!(lab.is_open() && bytes < 500 * 60, "{side:?}: {bytes}");
    }
}

#[test]
fn gaps_between_numbers_of_connection_ids_are_bounded() {
    for side in SIDES {
        let mut lab = up(side);
        for n in 1..200u64 {
            let id = forebay_quic::id::ConnectionId::new(&n.to_be_bytes()).unwrap();
            let mut frames = lab.raw.ack(Kind::OneRtt);
            frame::push_new_connection_id(&mut frames, 2 * n, 2 * n, &id, &[1; 16]);
            lab.frames(Kind::OneRtt, &frames);
        }
        assert_eq!(code(&lab), Some(Code::CONNECTION_ID_LIMIT_ERROR), "{side:?}");
    }
}

#[test]
fn retirements_cost_an_identifier_each_and_keep_none() {
    for side in SIDES {
        let mut lab = up(side);
        let (bytes, _) = answered(&mut lab, |lab| {
            for n in 1..1000u64 {
                let mut frames = lab.raw.ack(Kind::OneRtt);
                frame::push_retire_connection_id(&mut frames, n);
                lab.frames(Kind::OneRtt, &frames);
            }
        });
        assert!(lab.is_open() && bytes < 1000 * 80, "{side:?}: {bytes}");
        assert!(lab.raw.ids.len() <= 1002);
    }
}

#[test]
fn retirements_of_one_packet_get_few_identifiers() {
    let mut lab = up(Side::Server);
    let all = made(|out| (1..=2).cycle().take(400).for_each(|n| frame::push_retire_connection_id(out, n)));
    let before = lab.raw.ids.len();
    lab.frames(Kind::OneRtt, &all);
    assert!(lab.is_open() && lab.raw.ids.len() - before == 2);
}

/// Each identifier that is retired is replaced, so that the numbers of those to come are known.
#[test]
fn retirements_of_identifiers_that_were_not_sent_end_the_connection() {
    for side in SIDES {
        let mut lab = up(side);
        let all = made(|out| (1..=400).for_each(|n| frame::push_retire_connection_id(out, n)));
        lab.frames(Kind::OneRtt, &all);
        assert_eq!(code(&lab), Some(Code::PROTOCOL_VIOLATION), "{side:?}");
    }
}

#[test]
fn path_challenges_get_one_answer_a_packet() {
    for side in SIDES {
        let mut lab = up(side);
        let all = made(|out| (0..100).for_each(|n| frame::push_path_challenge(out, [n; 8])));
        let (bytes, _) = answered(&mut lab, |lab| (0..50).for_each(|_| lab.frames(Kind::OneRtt, &all)));
        // The congestion window is full, as nothing was acknowledged.
        assert!((10..=50).contains(&lab.raw.count("PathResponse")));
        assert!(lab.is_open() && bytes <= 60 * 1200, "{bytes}");
    }
}

#[test]
fn path_challenges_from_everywhere_get_no_more_than_three_times_their_bytes() {
    let mut lab = up(Side::Server);
    for n in 1..IDS {
        let frame = made(|out| frame::push_new_connection_id(out, n, 0, &eight(n as u8), &[n as u8; 16]));
        lab.frames(Kind::OneRtt, &frame);
    }
    for n in 0..200u8 {
        let packet = lab.raw.packet(Kind::OneRtt, &made(|out| frame::push_path_challenge(out, [n; 8])));
        let from = address(n, 1000);
        lab.send_from(from, &packet);
        lab.wait(Duration::from_millis(1));
        assert!(lab.sent_to(from) <= 3 * packet.len(), "{n}");
    }
    lab.wait(Duration::from_secs(5));
    assert!(lab.is_open());
    // Each has its answer (RFC 9000, section 8.2.2), which costs no identifier for long.
    let answered = (0..200).filter(|n| lab.sent_to(address(*n, 1000)) > 0).count();
    assert!(answered > 0, "{answered}");
    let retired = lab.raw.count("RetireConnectionId");
    assert!(retired <= 50, "{retired}");
}

#[test]
fn a_client_that_pretends_to_move_gets_no_more_than_three_times_its_bytes_there() {
    let mut lab = up(Side::Server);
    for n in 0..100u8 {
        let packet = lab.raw.packet(Kind::OneRtt, &[1]);
        let from = address(n, 1000);
        lab.send_from(from, &packet);
        lab.wait(Duration::from_millis(2));
        assert!(lab.sent_to(from) <= 3 * packet.len(), "{n}: {}", lab.sent_to(from));
    }
    lab.wait(Duration::from_secs(3));
    for n in 0..100u8 {
        assert!(lab.sent_to(address(n, 1000)) <= 3 * 60, "{n}");
    }
}

#[test]
fn a_server_sends_three_times_the_bytes_of_an_unproved_client() {
    for count in [1, 2, 5] {
        crate::lab::seed(3);
        let mut lab = Lab::server(Stage::Fresh);
        lab.flight();
        for _ in 0..count {
            // Initial packets without end: some with PING, which ask for acknowledgments.
            lab.frames(Kind::Initial, &[1]);
            assert!(lab.sent_to(lab.raw.addr) <= 3 * lab.received);
        }
        lab.wait(Duration::from_secs(20));
        let sent = lab.sent_to(lab.raw.addr);
        assert!(sent <= 3 * lab.received, "{sent} for {}", lab.received);
    }
}

#[test]
fn small_datagrams_of_an_unproved_client_count_as_they_are() {
    crate::lab::seed(4);
    let mut lab = Lab::server(Stage::Hello);
    for _ in 0..2000 {
        lab.send(&[0xc0; 30]);
        assert!(lab.sent_to(lab.raw.addr) <= 3 * lab.received);
    }
    lab.wait(Duration::from_secs(5));
    assert!(lab.sent_to(lab.raw.addr) <= 3 * lab.received);
}

#[test]
fn nothing_is_kept_for_packets_that_are_not_authentic() {
    let mut lab = Lab::server(Stage::Fresh);
    for n in 0..500u64 {
        let mut packet = lab.raw.packet(Kind::Initial, &[0; 1200]);
        let at = packet.len() - 1 - (n % 16) as usize;
        packet[at] ^= 1;
        packet[6..14].copy_from_slice(&n.to_be_bytes());
        lab.send(&packet);
    }
    assert!(lab.node.connections.is_empty() && lab.sent.is_empty());
    assert_eq!(format!("{:?}", lab.node.endpoint), "Endpoint { ids: 0, .. }");
}

#[test]
fn closed_connections_are_forgotten() {
    let mut lab = up(Side::Server);
    for n in 0..20u64 {
        lab.raw = Raw::new(Side::Client, &lab.setup);
        lab.connect();
        assert!(lab.is_open(), "{n}");
        lab.frames(Kind::OneRtt, &[0x3f]);
        lab.wait(Duration::from_secs(40));
    }
    assert!(lab.node.connections.is_empty());
    assert_eq!(format!("{:?}", lab.node.endpoint), "Endpoint { ids: 0, .. }");
}

#[test]
fn packets_without_keys_are_held_within_a_bound() {
    crate::lab::seed(5);
    let mut lab = Lab::server(Stage::Hello);
    let frames = fields(kind::MAX_DATA, &[1]);
    for _ in 0..1000 {
        lab.frames(Kind::OneRtt, &frames);
    }
    let before = lab.only().stats().received_frames;
    lab.connect();
    let handled = lab.only().stats().received_frames - before;
    assert!(lab.is_open() && handled < 30, "{handled}");
}

#[test]
fn gaps_in_the_handshake_are_bounded() {
    crate::lab::seed(6);
    let mut lab = Lab::server(Stage::Fresh);
    for n in 0..3000u64 {
        let frame = made(|out| frame::push_crypto(out, 2 + 2 * n, &[1]));
        lab.frames(Kind::Initial, &frame);
        if !lab.node.connections.values().any(|c| !c.is_closed()) {
            assert!((900..=1100).contains(&n), "{n}");
            return;
        }
    }
    panic!("no end");
}

#[test]
fn gaps_in_the_handshake_have_a_bound_of_bytes() {
    for side in SIDES {
        let mut lab = up(side);
        for n in 1..100u64 {
            lab.frames(Kind::OneRtt, &made(|out| frame::push_crypto(out, lab_offset(n), &[1; 1000])));
            if !lab.is_open() {
                assert!(n <= 66, "{n}");
                break;
            }
        }
        assert_eq!(code(&lab), Some(Code::CRYPTO_BUFFER_EXCEEDED));
    }
}

fn lab_offset(n: u64) -> u64 {
    5000 + n * 1000
}

#[test]
fn gaps_in_a_stream_are_bounded() {
    for side in SIDES {
        crate::lab::seed(7);
        let setup = Setup {
            config: |c| (c.limits.stream_window, c.limits.window) = (1 << 20, 1 << 20),
            ..Setup::default()
        };
        let mut lab = Lab::new(side, Stage::Connected, &setup);
        let id = own(&lab, Dir::Bi, 0);
        let mut ended = None;
        for n in 0..40u64 {
            let all = made(|out| {
                (0..100).for_each(|k| frame::push_stream(out, id, 1 + 2 * (100 * n + k), &[1], false, false));
            });
            lab.frames(Kind::OneRtt, &all);
            if !lab.is_open() {
                ended = Some(n);
                break;
            }
        }
        assert!(matches!(ended, Some(9..=11)), "{ended:?}");
        assert_eq!(code(&lab), Some(Code::INTERNAL_ERROR));
    }
}

#[test]
fn padding_and_tiny_packets_are_not_answered() {
    for side in SIDES {
        let mut lab = up(side);
        let (bytes, frames) = answered(&mut lab, |lab| {
            for _ in 0..2000 {
                lab.shaped(Kind::OneRtt, &[0, 0, 0, 0], &Shape { len: Some(1), ..Shape::default() });
            }
        });
        assert_eq!((bytes, frames), (0, 0), "{side:?}");
        assert!(lab.is_open());
    }
}

#[test]
fn pings_are_acknowledged_half_as_often() {
    for side in SIDES {
        let mut lab = up(side);
        let (bytes, _) = answered(&mut lab, |lab| (0..1000).for_each(|_| lab.frames(Kind::OneRtt, &[1])));
        assert!(lab.is_open() && bytes < 1000 * 25, "{bytes}");
    }
}

#[test]
fn acknowledgments_keep_few_ranges() {
    for side in SIDES {
        let mut lab = up(side);
        let (bytes, _) = answered(&mut lab, |lab| {
            for n in 0..2000u64 {
                let number = 100 + 2 * n;
                lab.shaped(Kind::OneRtt, &[1], &Shape { number: Some(number), ..Shape::default() });
            }
        });
        // An acknowledgment for each, as they are out of order, of at most 64 ranges.
        assert!(lab.is_open() && bytes < 2000 * 220, "{bytes}");
    }
}

#[test]
fn ranges_without_end_cost_nothing() {
    for side in SIDES {
        let mut lab = up(side);
        // As many ranges as a packet has room for, of numbers that are over.
        let largest = lab.raw.seen[2].max().unwrap();
        let ack = lab.raw.ack(Kind::OneRtt);
        let (bytes, _) = answered(&mut lab, |lab| {
            for _ in 0..1000 {
                lab.frames(
                    Kind::OneRtt,
                    &[&ack[..], &fields(kind::ACK, &[largest, 0, 0, 0])].concat().repeat(20),
                );
            }
        });
        assert!(lab.is_open() && bytes == 0, "{bytes}");
    }
}

#[test]
fn optimistic_acknowledgments_are_found_out() {
    for side in SIDES {
        let mut lab = up(side);
        let id = lab.only().streams().open(Dir::Bi).unwrap();
        lab.frames(Kind::OneRtt, &fields(kind::MAX_STREAM_DATA, &[id.0, varint::MAX]));
        lab.frames(Kind::OneRtt, &fields(kind::MAX_DATA, &[varint::MAX]));
        let mut acked = 0;
        for _ in 0..2000 {
            let _ = lab.only().streams().write_slice(id, &[1; 2000]);
            lab.turn();
            acked = lab.raw.seen[2].max().unwrap();
            // Numbers are acknowledged whether they came or not.
            lab.frames(Kind::OneRtt, &fields(kind::ACK, &[acked, 0, 0, acked.min(100)]));
            if !lab.is_open() {
                break;
            }
        }
        assert_eq!(code(&lab), Some(Code::PROTOCOL_VIOLATION), "{side:?}");
        assert!(acked < 400, "{acked}");
    }
}

#[test]
fn key_updates_without_acknowledgments_end_the_connection() {
    for side in SIDES {
        let mut lab = up(side);
        for _ in 0..100 {
            lab.raw.update_keys();
            lab.frames(Kind::OneRtt, &[0]);
        }
        assert_eq!(code(&lab), Some(Code::KEY_UPDATE_ERROR), "{side:?}");
    }
}

#[test]
fn streams_that_come_and_go_leave_nothing() {
    for side in SIDES {
        let mut lab = up(side);
        for n in 0..2000u64 {
            let id = own(&lab, Dir::Uni, n);
            let mut frames = lab.raw.ack(Kind::OneRtt);
            frames.extend(fields(kind::RESET_STREAM, &[id.0, 1, 0]));
            lab.frames(Kind::OneRtt, &frames);
            while let Some(id) = lab.only().streams().accept(Dir::Uni) {
                let _ = lab.only().streams().read(id, 10);
            }
            lab.turn();
            if !lab.is_open() {
                panic!("{side:?}: {n}: {:?}", lab.lost());
            }
        }
        assert_eq!(lab.only().streams().send_streams(), 0);
    }
}

#[test]
fn empty_datagrams_have_a_bound() {
    for side in SIDES {
        crate::lab::seed(8);
        let setup = Setup { config: |c| c.datagrams = 1200, ..Setup::default() };
        let mut lab = Lab::new(side, Stage::Connected, &setup);
        let all = made(|out| (0..500).for_each(|_| frame::push_datagram(out, &[], false)));
        (0..100).for_each(|_| lab.frames(Kind::OneRtt, &all));
        let mut kept = 0;
        while lab.only().receive_datagram().is_some() {
            kept += 1;
        }
        assert!(lab.is_open() && kept <= 1024, "{kept}");
    }
}

#[test]
fn limits_of_the_peer_do_not_make_this_side_keep_more() {
    for side in SIDES {
        let mut lab = up(side);
        let id = lab.only().streams().open(Dir::Bi).unwrap();
        lab.frames(Kind::OneRtt, &fields(kind::MAX_STREAM_DATA, &[id.0, varint::MAX]));
        lab.frames(Kind::OneRtt, &fields(kind::MAX_DATA, &[varint::MAX]));
        let mut kept = 0;
        for _ in 0..1000 {
            kept += lab.only().streams().write_slice(id, &[1; 10_000]).unwrap_or(0);
        }
        assert_eq!(kept, 64 << 10);
    }
}

#[test]
fn small_pieces_do_not_open_the_window() {
    for side in SIDES {
        let mut lab = up(side);
        let id = own(&lab, Dir::Bi, 0);
        for n in 0..STREAM_WINDOW {
            lab.frames(Kind::OneRtt, &made(|out| frame::push_stream(out, id, n, &[1], false, false)));
        }
        assert!(lab.is_open());
        assert_eq!(lab.raw.count("MaxStreamData") + lab.raw.count("MaxData"), 0, "nothing was read");
    }
}

#[test]
fn resets_are_rare_and_shorter_than_what_they_answer() {
    crate::lab::seed(9);
    let setup = Setup { resets: Duration::from_millis(100), ..Setup::default() };
    let mut lab = Lab::new(Side::Server, Stage::Fresh, &setup);
    for n in 0..1000u64 {
        let mut datagram = vec![0x41; 22 + (n % 1200) as usize];
        datagram[1..9].copy_from_slice(&n.to_be_bytes());
        let sent = lab.sent.len();
        lab.send(&datagram);
        if let Some(answer) = lab.sent.get(sent) {
            assert!(answer.bytes.len() < datagram.len() && answer.bytes.len() >= 21, "{n}");
        }
        lab.wait(Duration::from_millis(1));
    }
    assert!((9..=11).contains(&lab.sent.len()), "{}", lab.sent.len());
}

/// A reset that answers a reset gets shorter each time, and ends.
#[test]
fn two_endpoints_do_not_reset_each_other_forever() {
    let mut lab = Lab::server(Stage::Fresh);
    let mut datagram = vec![0x41; 60];
    for n in 0..60 {
        let sent = lab.sent.len();
        lab.send(&datagram);
        let Some(answer) = lab.sent.get(sent) else {
            assert!(n < 40, "{n}");
            return;
        };
        datagram = answer.bytes.clone();
    }
    panic!("no end");
}

/// What a token of a reset is made of cannot be asked for: identifiers in use get no reset, and all others are alike.
#[test]
fn resets_are_no_oracle() {
    let mut lab = up(Side::Server);
    let ids = lab.raw.ids.clone();
    assert!(!ids.is_empty());
    for (_, id, token) in ids {
        let sent = lab.sent.len();
        let mut datagram = vec![0x41; 100];
        datagram[1..9].copy_from_slice(&id);
        lab.send(&datagram);
        assert!(!lab.sent[sent..].iter().any(|d| d.bytes.ends_with(&token)), "it is in use");
        assert_eq!(lab.sent.len(), sent);
    }
}

#[test]
fn a_wrong_token_changes_nothing_wherever_it_differs() {
    for side in SIDES {
        for at in 0..16 {
            let mut lab = up(side);
            let token = [0x55; 16];
            lab.frames(
                Kind::OneRtt,
                &made(|out| frame::push_new_connection_id(out, 1, 1, &eight(1), &token)),
            );
            let mut wrong = token;
            wrong[at] ^= 0x80;
            let mut datagram = vec![0x41; 30];
            datagram[1..9].copy_from_slice(&lab.raw.remote);
            datagram.extend(wrong);
            let (bytes, frames) = answered(&mut lab, |lab| lab.send(&datagram));
            assert!(lab.is_open(), "{at}");
            // What was to be acknowledged before comes, and nothing else.
            assert!(bytes < 100 && frames <= 2, "{at}: {bytes} {frames}");
        }
    }
}

/// Somebody who does not see the packets of a client cannot end its connection by Version Negotiation or Retry.
#[test]
fn spoofed_negotiations_and_retries_mean_nothing() {
    crate::lab::seed(10);
    let mut lab = Lab::client(Stage::Fresh);
    let sent = lab.sent.len();
    for n in 0..200u8 {
        let mut negotiation = vec![0x80 | n, 0, 0, 0, 0, 8];
        negotiation.extend(&*lab.raw.remote);
        negotiation.push(8);
        negotiation.extend([n; 8]);
        negotiation.extend([0x0a; 4]);
        lab.send(&negotiation);
        let mut retry = vec![0xf0, 0, 0, 0, 1, 8];
        retry.extend(&*lab.raw.remote);
        retry.push(8);
        retry.extend([n; 8]);
        retry.extend([n; 40]);
        lab.send(&retry);
    }
    assert!(lab.is_open() && lab.sent.len() == sent);
    lab.connect();
    assert!(lab.is_open() && lab.node.taken() > 0);
}

/// An Initial packet of somebody else who sees the identifiers ends nothing unless it is authentic.
#[test]
fn injected_handshake_packets_mean_nothing() {
    crate::lab::seed(11);
    let mut lab = Lab::server(Stage::Hello);
    let other = protect::initial_keys(lab.raw.version, &eight(9), Side::Client).ok();
    let keys = std::mem::replace(&mut lab.raw.initial, other);
    for _ in 0..100 {
        lab.frames(Kind::Initial, &[0x3f]);
    }
    lab.raw.initial = keys;
    lab.connect();
    assert!(lab.is_open());
}

/// Tokens of Retry packets do not serve at another address, and cost no state.
#[test]
fn tokens_do_not_amplify() {
    crate::lab::seed(12);
    let setup = Setup { retries: true, ..Setup::default() };
    let mut lab = Lab::new(Side::Server, Stage::Fresh, &setup);
    for n in 0..300u16 {
        lab.raw = Raw::new(Side::Client, &setup);
        lab.raw.addr.set_port(1000 + n);
        lab.flight();
        assert!(lab.sent_to(lab.raw.addr) < lab.received / 3);
    }
    assert!(lab.node.connections.is_empty());
    let mut token = Vec::new();
    let addr = address(1, 1);
    let time = crate::node::UNIX;
    assert!(Plain::tokens().push_retry(&mut token, lab.raw.version, addr, &lab.raw.original, time, [1; 16]));
    lab.raw = Raw::new(Side::Client, &setup);
    lab.raw.token = token;
    lab.flight();
    assert!(lab.node.connections.is_empty());
}

/// What comes behind the end is answered ever more rarely.
#[test]
fn closed_connections_answer_rarely() {
    for side in SIDES {
        let mut lab = up(side);
        lab.frames(Kind::OneRtt, &[0x3f]);
        let mut datagram = vec![0x41; 60];
        datagram[1..9].copy_from_slice(&lab.raw.remote);
        let (bytes, _) = answered(&mut lab, |lab| (0..1000).for_each(|_| lab.send(&datagram)));
        assert!(bytes < 12 * 1200, "{bytes}");
    }
}

/// The first packet of a later connection has no room beside them.
#[test]
fn long_tokens_are_not_kept() {
    for (len, is_kept) in [(1, true), (512, true), (513, false), (1100, false)] {
        let mut lab = up(Side::Client);
        lab.frames(Kind::OneRtt, &made(|out| frame::push_new_token(out, &vec![7; len])));
        let kept =
            lab.node.events.iter().any(|event| matches!(event, Event::Token(token) if token.len() == len));
        assert_eq!((kept, lab.is_open()), (is_kept, true), "{len}");
    }
}
