//! Peers that move, and identifiers of paths (RFC 9000, sections 8.2 and 9).

use crate::lab::{Lab, Stage, address};
use crate::raw::{Shape, eight};
use crate::rows::made;
use crate::setup::Setup;
use forebay_quic::frame;
use forebay_quic::id::{ConnectionId, Dir, Side};
use forebay_quic::packet::Kind;
use std::net::SocketAddr;
use std::time::Duration;

/// Gives identifiers 1 to `n`.
fn give(lab: &mut Lab, n: u8) {
    for n in 1..=n {
        let frame = made(|out| frame::push_new_connection_id(out, n.into(), 0, &eight(n), &[n; 16]));
        lab.frames(Kind::OneRtt, &frame);
    }
    lab.wait(Duration::from_millis(30));
    let ack = lab.raw.ack(Kind::OneRtt);
    lab.frames(Kind::OneRtt, &ack);
}

fn up(spare: u8) -> Lab {
    crate::lab::seed(20);
    let mut lab = Lab::server(Stage::Connected);
    give(&mut lab, spare);
    lab.raw.got.clear();
    lab
}

/// Sends frames from an address, to an identifier of the tested side if one is given.
fn from(lab: &mut Lab, addr: SocketAddr, dst: Option<ConnectionId>, frames: &[u8]) {
    let packet = lab.raw.shaped(Kind::OneRtt, frames, &Shape { dst, ..Shape::default() });
    lab.send_from(addr, &packet);
}

/// Answers the question that came last to an address.
fn answer(lab: &mut Lab, addr: SocketAddr) {
    let question = lab.raw.challenges.iter().rfind(|(to, _)| *to == addr);
    let (_, data) = *question.expect("a question");
    from(lab, addr, None, &made(|out| frame::push_path_response(out, data)));
}

/// Returns the identifiers that packets to an address had.
fn ids_to(lab: &Lab, addr: SocketAddr) -> Vec<ConnectionId> {
    let mut all: Vec<_> = lab.raw.got.iter().filter(|got| got.to == addr).map(|got| got.dst).collect();
    all.dedup();
    all
}

fn probe(n: u8) -> Vec<u8> {
    made(|out| frame::push_path_challenge(out, [n; 8]))
}

const HOME: u16 = 40_000;

fn home() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 9], HOME))
}

#[test]
fn a_probe_of_another_host_is_answered_with_an_unused_identifier() {
    let mut lab = up(2);
    let new = address(5, 1234);
    from(&mut lab, new, None, &[&probe(1)[..], &[0; 100]].concat());
    assert_eq!(ids_to(&lab, new), [eight(1)]);
    assert_eq!(lab.raw.count("PathResponse"), 1);
    // The path in use goes on with its own, and the server does not move.
    let local = lab.raw.local;
    lab.frames(Kind::OneRtt, &[1]);
    lab.wait(Duration::from_millis(30));
    assert_eq!(ids_to(&lab, home()), [local]);
    // The same probe again takes no other.
    from(&mut lab, new, None, &[&probe(2)[..], &[0; 100]].concat());
    assert_eq!(ids_to(&lab, new), [eight(1)]);
    assert_eq!(lab.only().proved_remote(), home());
}

#[test]
fn the_identifier_of_a_probed_path_becomes_the_active_one() {
    let mut lab = up(2);
    let new = address(5, 1234);
    from(&mut lab, new, None, &[&probe(1)[..], &[0; 100]].concat());
    from(&mut lab, new, None, &[&[1][..], &[0; 500]].concat());
    answer_all(&mut lab, new);
    lab.raw.got.clear();
    from(&mut lab, new, None, &[1]);
    lab.wait(Duration::from_millis(30));
    assert_eq!(ids_to(&lab, new), [eight(1)]);
    // The one before is retired, once the new path is proved.
    assert!(lab.is_open() && lab.raw.retired.contains(&0));
    assert_eq!(lab.only().proved_remote(), new);
}

/// Answers the question to an address that the peer has moved to.
fn answer_all(lab: &mut Lab, addr: SocketAddr) {
    lab.wait(Duration::from_millis(5));
    answer(lab, addr);
    lab.wait(Duration::from_millis(5));
}

#[test]
fn without_an_unused_identifier_a_host_with_the_known_one_is_answered() {
    let mut lab = up(0);
    let new = address(5, 1234);
    from(&mut lab, new, None, &[&probe(1)[..], &[0; 100]].concat());
    lab.wait(Duration::from_secs(1));
    // Its packets show that it is the same peer, so that the answer may show it, too (RFC 9000, section 9.5).
    assert_eq!(ids_to(&lab, new), [lab.raw.local]);
    assert!(lab.is_open());
    // Another port of the same host may be a new binding of an address translator.
    let local = lab.raw.local;
    let port = SocketAddr::new(home().ip(), 9);
    from(&mut lab, port, None, &[&probe(2)[..], &[0; 100]].concat());
    assert_eq!(ids_to(&lab, port), [local]);
}

#[test]
fn a_rebinding_of_the_port_keeps_the_identifier() {
    let mut lab = up(2);
    let (local, port) = (lab.raw.local, SocketAddr::new(home().ip(), 9));
    from(&mut lab, port, None, &[&[1][..], &[0; 500]].concat());
    answer_all(&mut lab, port);
    from(&mut lab, port, None, &[1]);
    lab.wait(Duration::from_millis(30));
    assert_eq!(ids_to(&lab, port), [local]);
    assert!(lab.raw.retired.is_empty() && lab.only().proved_remote() == port);
}

#[test]
fn a_peer_that_moves_with_another_identifier_gets_another_one() {
    let mut lab = up(2);
    let dst = lab.raw.ids[0].1;
    let port = SocketAddr::new(home().ip(), 9);
    from(&mut lab, port, Some(dst), &[&[1][..], &[0; 500]].concat());
    lab.raw.remote = dst;
    answer_all(&mut lab, port);
    from(&mut lab, port, None, &[1]);
    lab.wait(Duration::from_millis(30));
    assert_eq!(ids_to(&lab, port), [eight(1)]);
    assert!(lab.raw.retired.contains(&0), "{:?}", lab.raw.retired);
}

#[test]
fn a_move_without_an_unused_identifier_goes_on_with_the_one_in_use() {
    let mut lab = up(0);
    let (local, new) = (lab.raw.local, address(5, 1234));
    from(&mut lab, new, None, &[&[1][..], &[0; 500]].concat());
    answer_all(&mut lab, new);
    from(&mut lab, new, None, &[1]);
    lab.wait(Duration::from_millis(30));
    assert_eq!(ids_to(&lab, new), [local]);
    assert!(lab.is_open() && lab.only().proved_remote() == new);
}

#[test]
fn the_old_path_is_asked_and_taken_again() {
    let mut lab = up(2);
    let (local, new) = (lab.raw.local, address(5, 1234));
    // Somebody sends a packet of the peer from his own address.
    from(&mut lab, new, None, &[&[1][..], &[0; 500]].concat());
    lab.wait(Duration::from_millis(5));
    let asked: Vec<_> =
        lab.raw.got.iter().filter(|got| got.frame.starts_with("PathChallenge")).map(|got| got.to).collect();
    assert!(asked.contains(&home()) && asked.contains(&new), "{asked:?}");
    assert_eq!(ids_to(&lab, home()), [local]);
    // The peer goes on where it was.
    answer(&mut lab, home());
    lab.frames(Kind::OneRtt, &[1]);
    lab.wait(Duration::from_millis(30));
    lab.raw.got.clear();
    lab.wait(Duration::from_secs(10));
    lab.frames(Kind::OneRtt, &[1]);
    lab.wait(Duration::from_millis(30));
    assert_eq!(ids_to(&lab, home()), [local]);
    assert!(lab.is_open() && lab.raw.retired.contains(&1), "{:?}", lab.raw.retired);
    assert_eq!(ids_to(&lab, new), [], "nothing is sent there after that");
}

#[test]
fn a_path_that_does_not_answer_is_left_for_the_old_one() {
    let mut lab = up(2);
    let (local, new) = (lab.raw.local, address(5, 1234));
    from(&mut lab, new, None, &[&[1][..], &[0; 500]].concat());
    lab.wait(Duration::from_millis(5));
    answer(&mut lab, home());
    lab.wait(Duration::from_secs(10));
    assert!(lab.is_open());
    lab.raw.got.clear();
    lab.frames(Kind::OneRtt, &[1]);
    lab.wait(Duration::from_millis(30));
    assert_eq!(ids_to(&lab, home()), [local]);
    assert!(lab.raw.retired.contains(&1));
}

#[test]
fn two_moves_without_an_answer_lead_back_to_the_proved_path() {
    let mut lab = up(0);
    from(&mut lab, address(5, 1), None, &[1]);
    from(&mut lab, address(6, 1), None, &[1]);
    lab.wait(Duration::from_secs(20));
    assert!(lab.is_open() && lab.raw.closes.is_empty());
    lab.raw.got.clear();
    lab.frames(Kind::OneRtt, &[1]);
    lab.wait(Duration::from_millis(30));
    assert!(!ids_to(&lab, home()).is_empty());
}

#[test]
fn probes_do_not_move_and_old_packets_do_not_either() {
    let mut lab = up(2);
    let new = address(5, 1234);
    let late = lab.raw.packet(Kind::OneRtt, &[1]);
    lab.frames(Kind::OneRtt, &[1]);
    lab.send_from(new, &late);
    assert_eq!(lab.only().proved_remote(), home(), "a packet that was overtaken");
    let frames = made(|out| {
        frame::push_padding(out, 10);
        frame::push_path_challenge(out, [1; 8]);
        frame::push_new_connection_id(out, 3, 0, &eight(3), &[3; 16]);
    });
    from(&mut lab, new, None, &frames);
    assert_eq!(lab.only().proved_remote(), home(), "a packet of probing frames");
}

#[test]
fn a_question_is_answered_on_its_path_only() {
    let mut lab = up(2);
    let new = address(5, 1234);
    from(&mut lab, new, None, &[&probe(1)[..], &[0; 450]].concat());
    let answers: Vec<_> = lab.raw.got.iter().filter(|got| got.frame.starts_with("PathResponse")).collect();
    assert!(answers.len() == 1 && answers[0].to == new && answers[0].size >= 1200, "{answers:?}");
}

#[test]
fn wrong_answers_prove_nothing() {
    let mut lab = up(2);
    let new = address(5, 1234);
    from(&mut lab, new, None, &[1]);
    for n in 0..50 {
        from(&mut lab, new, None, &made(|out| frame::push_path_response(out, [n; 8])));
    }
    answer(&mut lab, home());
    let sent = lab.sent_to(new);
    assert!(sent <= 3 * lab.received, "{sent}");
    lab.wait(Duration::from_secs(10));
    assert_eq!(lab.only().proved_remote(), home(), "the path before it");
}

/// Paths that a peer pretends to move to must not overwrite the state of the proved path.
#[test]
fn the_path_that_is_left_over_keeps_its_round_trip_time() {
    let mut lab = up(2);
    let before = lab.only().rtt();
    for n in 5..7 {
        from(&mut lab, address(n, 1234), None, &[&[1][..], &[0; 500]].concat());
        assert_ne!(lab.only().rtt(), before, "nothing is known of the new path");
    }
    lab.wait(Duration::from_secs(20));
    assert!(lab.is_open());
    assert_eq!((lab.only().proved_remote(), lab.only().rtt()), (home(), before));
}

#[test]
fn the_largest_datagram_of_the_peer_holds_on_all_paths() {
    const MOST: u16 = 1250;
    crate::lab::seed(20);
    let setup = Setup {
        config: |config| (config.most_mtu, config.searches_mtu) = (1452, true),
        parameters: |parameters| parameters.max_udp_payload_size = MOST.into(),
        ..Setup::default()
    };
    let mut lab = Lab::new(Side::Server, Stage::Connected, &setup);
    give(&mut lab, 2);
    let new = address(5, 1234);
    from(&mut lab, new, None, &[&[1][..], &[0; 1000]].concat());
    answer_all(&mut lab, new);
    let streams = lab.only().streams();
    let id = streams.open(Dir::Uni).expect("a stream");
    assert_eq!(streams.write_slice(id, &[0; 5000]), Ok(5000));
    lab.wait(Duration::from_millis(100));
    let sizes = lab.sent.iter().filter(|sent| sent.to == new).map(|sent| sent.bytes.len());
    assert_eq!(sizes.max(), Some(MOST.into()), "{}", lab.only().mtu());
}
