//! Cases of RFC 9002.

use super::*;

mod random;

const MS: Duration = Duration::from_millis(1);
const SIZE: u16 = 1200;

/// Recovery with a clock, whose packets carry their own numbers.
struct Case {
    recovery: Recovery<u64>,
    now: Time,
    acked: Vec<u64>,
    lost: Vec<u64>,
    late: Vec<u64>,
}

impl Case {
    fn new() -> Case {
        Case::with(&Config { algorithm: Algorithm::NewReno, ..Config::default() }, true)
    }

    fn with(config: &Config, is_server: bool) -> Case {
        let now = Time::from_nanos(1_000_000_000);
        let recovery = Recovery::new(config, is_server, now);
        Case { recovery, now, acked: Vec::new(), lost: Vec::new(), late: Vec::new() }
    }

    fn confirmed() -> Case {
        let mut case = Case::new();
        case.recovery.discard(Space::Initial, case.now, |_| {});
        case.recovery.discard(Space::Handshake, case.now, |_| {});
        case.recovery.set_handshake_confirmed();
        case
    }

    fn pass(&mut self, ms: u32) {
        self.now += MS * ms;
    }

    fn send(&mut self, space: Space) -> u64 {
        self.send_with(space, |_| {})
    }

    fn send_with(&mut self, space: Space, change: impl FnOnce(&mut SentPacket<u64>)) -> u64 {
        let number = self.recovery.next_number(space);
        let mut packet = SentPacket {
            number,
            size: SIZE,
            ack_eliciting: true,
            in_flight: true,
            mtu_probe: false,
            ect: false,
            content: number,
        };
        change(&mut packet);
        self.recovery.on_sent(space, self.now, packet);
        number
    }

    fn ack(&mut self, space: Space, ranges: &[(u64, u64)]) -> Result<AckResult, crate::error::Error> {
        self.ack_with(space, ranges, Duration::ZERO, None)
    }

    fn ack_with(
        &mut self,
        space: Space,
        ranges: &[(u64, u64)],
        delay: Duration,
        ecn: Option<[u64; 3]>,
    ) -> Result<AckResult, crate::error::Error> {
        let ack = Ack { largest: ranges[0].1, delay, ecn };
        let ranges = ranges.iter().map(|(a, b)| *a..=*b);
        let (acked, lost, late) = (&mut self.acked, &mut self.lost, &mut self.late);
        self.recovery.on_ack(space, self.now, &ack, ranges, |outcome| match outcome.fate {
            Fate::Acked => acked.push(outcome.content),
            Fate::Lost => lost.push(outcome.content),
            Fate::LateAcked => late.push(outcome.content),
        })
    }

    fn time_out(&mut self) -> Timeout {
        self.now = self.recovery.deadline(false).expect("a timer");
        let lost = &mut self.lost;
        self.recovery.on_timeout(self.now, |outcome| lost.push(outcome.content))
    }
}

#[test]
fn acknowledged_packets_come_back_in_order() {
    let mut case = Case::confirmed();
    for _ in 0..10 {
        case.send(Space::Data);
    }
    assert_eq!(case.recovery.in_flight(), 12_000);
    case.pass(50);
    let result = case.ack(Space::Data, &[(0, 4)]).expect("valid");
    assert!(result.newly && result.sampled && !result.lost);
    assert_eq!((case.acked.as_slice(), case.recovery.in_flight()), (&[0, 1, 2, 3, 4][..], 6000));
    assert_eq!(case.recovery.rtt().latest(), 50 * MS);
    // What is known already changes nothing.
    let result = case.ack(Space::Data, &[(0, 4)]).expect("valid");
    assert_eq!((result, case.acked.len()), (AckResult::default(), 5));
    case.ack(Space::Data, &[(7, 9), (0, 5)]).expect("valid");
    assert_eq!(case.acked, [0, 1, 2, 3, 4, 7, 8, 9, 5]);
    assert_eq!(case.recovery.unacked(Space::Data).collect::<Vec<_>>(), [] as [u64; 0]);
    assert_eq!(case.lost, [6]);
    assert_eq!(case.recovery.in_flight(), 0);
}

#[test]
fn three_later_packets_make_a_loss() {
    let mut case = Case::confirmed();
    for _ in 0..5 {
        case.send(Space::Data);
    }
    case.pass(50);
    case.ack(Space::Data, &[(1, 2)]).expect("valid");
    assert!(case.lost.is_empty());
    assert_eq!(case.recovery.unacked(Space::Data).collect::<Vec<_>>(), [0, 3, 4]);
    let before = case.recovery.window();
    assert!(case.ack(Space::Data, &[(1, 3)]).expect("valid").lost);
    assert_eq!((case.lost.as_slice(), case.recovery.window()), (&[0][..], before / 2));
}

#[test]
fn time_makes_a_loss() {
    let mut case = Case::confirmed();
    let start = case.now;
    case.send(Space::Data);
    case.pass(5);
    case.send(Space::Data);
    case.pass(72);
    case.ack(Space::Data, &[(1, 1)]).expect("valid");
    // 9/8 of the round-trip time after it was sent
    assert_eq!(case.recovery.deadline(true), Some(start + 81 * MS));
    assert_eq!(case.time_out(), Timeout::Lost);
    assert_eq!(case.lost, [0]);
    assert_eq!(case.recovery.deadline(false), None);
}

#[test]
fn probes_back_off() {
    let mut case = Case::confirmed();
    case.send(Space::Data);
    let pto = 999 * MS + 25 * MS;
    assert_eq!(case.recovery.deadline(false), Some(case.now + pto));
    assert_eq!(case.recovery.deadline(true), None);
    let early = case.now + MS;
    assert_eq!(case.recovery.on_timeout(early, |_| {}), Timeout::Nothing);
    for n in 1..5 {
        assert_eq!(case.time_out(), Timeout::Probe(Space::Data));
        case.send(Space::Data);
        assert_eq!(case.recovery.deadline(false), Some(case.now + pto * (1 << n)));
    }
    assert_eq!((case.recovery.pto_count(), case.lost.len()), (4, 0));
    case.ack(Space::Data, &[(4, 4)]).expect("valid");
    assert_eq!((case.recovery.pto_count(), case.lost.as_slice()), (0, &[0, 1, 2, 3][..]));
}

/// At the limit of RFC 9000, section 8.1, a timer may run out while nothing may leave.
#[test]
fn a_probe_that_cannot_leave_is_due_once() {
    let mut case = Case::new();
    for space in [Space::Initial, Space::Handshake] {
        case.send(space);
    }
    let sent = case.now;
    case.pass(60_000);
    let timeout = case.recovery.on_timeout(case.now, |_| {});
    assert!(matches!(timeout, Timeout::Probe(_)));
    assert_eq!(case.recovery.deadline(false), Some(case.now + 2 * 999 * MS), "sent at {sent:?}");
    assert_eq!((case.recovery.pto_count(), case.recovery.deadline(true)), (1, None));
}

#[test]
fn data_waits_for_the_handshake() {
    let mut case = Case::new();
    case.send(Space::Data);
    assert_eq!(case.recovery.deadline(false), None);
    case.pass(1);
    case.send(Space::Handshake);
    assert_eq!(case.recovery.deadline(false), Some(case.now + 999 * MS));
    assert_eq!(case.time_out(), Timeout::Probe(Space::Handshake));
    // A space that ends takes its packets out of flight and begins the backoff anew.
    let mut forgotten = Vec::new();
    case.recovery.discard(Space::Handshake, case.now, |x| forgotten.push(x));
    assert_eq!(
        (forgotten.as_slice(), case.recovery.in_flight(), case.recovery.pto_count()),
        (&[0][..], 1200, 0)
    );
    assert!(!case.ack(Space::Handshake, &[(0, 0)]).expect("ignored").newly);
}

#[test]
fn a_client_probes_without_anything_in_flight() {
    let mut case = Case::with(&Config::default(), false);
    case.send(Space::Initial);
    case.pass(100);
    case.ack(Space::Initial, &[(0, 0)]).expect("valid");
    assert_eq!(case.recovery.deadline(false), Some(case.now + 300 * MS));
    assert_eq!(case.time_out(), Timeout::Probe(Space::Initial));
    case.recovery.set_handshake_keys();
    assert_eq!(case.recovery.deadline(false), Some(case.now + 600 * MS));
    assert_eq!(case.time_out(), Timeout::Probe(Space::Handshake));
    // The backoff stays until the server has validated the address.
    case.send(Space::Initial);
    case.ack(Space::Initial, &[(1, 1)]).expect("valid");
    assert_eq!(case.recovery.pto_count(), 2);
    case.recovery.set_peer_validated();
    assert_eq!(case.recovery.deadline(false), None);
}

#[test]
fn packets_never_sent_are_a_violation() {
    let mut case = Case::confirmed();
    case.send(Space::Data);
    let error = case.ack(Space::Data, &[(0, 1)]).expect_err("not sent");
    assert_eq!(error.code, crate::error::Code::PROTOCOL_VIOLATION);

    // A skipped number, while packets around it are in flight and after those before are gone
    for acknowledge in [false, true] {
        let mut case = Case::confirmed();
        let (mut next, mut skipped) = (0, None);
        while skipped.is_none() {
            let number = case.send(Space::Data);
            skipped = (number != next).then_some(next);
            if acknowledge && skipped.is_none() {
                case.ack(Space::Data, &[(0, number)]).expect("valid");
            }
            next = number + 1;
        }
        let skipped = skipped.expect("one");
        assert!((64..512).contains(&skipped), "{skipped}");
        case.ack(Space::Data, &[(skipped + 1, skipped + 1)]).expect("valid");
        case.ack(Space::Data, &[(0, skipped + 1)]).expect_err("never sent");
    }
}

#[test]
fn acknowledgments_alone_are_not_kept() {
    let mut case = Case::confirmed();
    for _ in 0..1000 {
        case.send_with(Space::Data, |packet| (packet.ack_eliciting, packet.in_flight) = (false, false));
    }
    assert_eq!((case.recovery.in_flight(), case.recovery.deadline(false)), (0, None));
    assert_eq!(case.recovery.spaces.data.sent.places(), 0);
    let last = case.send(Space::Data);
    case.ack(Space::Data, &[(last, last)]).expect("valid");
    assert_eq!(case.acked, [last]);
}

#[test]
fn late_packets_undo_the_reduction() {
    let mut case = Case::confirmed();
    for _ in 0..10 {
        case.send(Space::Data);
    }
    case.pass(50);
    let before = case.recovery.window();
    case.ack(Space::Data, &[(5, 5)]).expect("valid");
    assert_eq!(case.lost, [0, 1, 2]);
    assert!(case.recovery.window() < before);
    case.ack(Space::Data, &[(5, 6), (1, 2)]).expect("valid");
    assert!(case.recovery.window() < before);
    case.ack(Space::Data, &[(5, 6), (0, 2)]).expect("valid");
    assert!(case.recovery.window() >= before);
    assert_eq!((case.late.as_slice(), case.recovery.stats().late), (&[1, 2, 0][..], 3));
    // From now on the path may reorder that much.
    assert_eq!(case.recovery.packet_threshold, 7);
}

#[test]
fn persistent_congestion() {
    for answered in [false, true] {
        let mut case = Case::confirmed();
        case.send(Space::Data);
        case.pass(100);
        case.ack(Space::Data, &[(0, 0)]).expect("valid");
        // 3 * (100 + 4 * 50 + 25) ms
        for _ in 0..11 {
            case.pass(100);
            case.send(Space::Data);
        }
        case.pass(100);
        let ranges: &[_] = if answered { &[(11, 11), (6, 6)] } else { &[(11, 11)] };
        let result = case.ack(Space::Data, ranges).expect("valid");
        assert_eq!(result.persistent_congestion, !answered);
        assert_eq!(case.recovery.window() <= 3 * 1200, !answered);
    }
}

#[test]
fn probes_of_the_datagram_size_are_no_congestion() {
    let mut case = Case::confirmed();
    case.send_with(Space::Data, |packet| packet.mtu_probe = true);
    for _ in 0..5 {
        case.send(Space::Data);
    }
    case.pass(50);
    let before = case.recovery.window();
    assert!(!case.ack(Space::Data, &[(1, 5)]).expect("valid").lost);
    assert_eq!(case.lost, [0]);
    assert!(case.recovery.window() >= before);
    assert_eq!((case.recovery.stats().lost_mtu_probes, case.recovery.in_flight()), (1, 0));
}

#[test]
fn retry_begins_anew() {
    let mut case = Case::with(&Config::default(), false);
    let config = Config::default();
    case.send(Space::Initial);
    case.send(Space::Data);
    let mut resend = Vec::new();
    case.recovery.on_retry(&config, case.now, Some(40 * MS), |space, content| resend.push((space, content)));
    assert_eq!(resend, [(Space::Initial, 0), (Space::Data, 0)]);
    assert_eq!((case.recovery.in_flight(), case.send(Space::Initial)), (0, 1));
    assert_eq!(case.recovery.pto(Space::Initial), 120 * MS);
}

#[test]
fn a_new_path_begins_anew() {
    let config = Config { algorithm: Algorithm::NewReno, ..Config::default() };
    let mut case = Case::confirmed();
    case.send(Space::Data);
    case.pass(50);
    case.ack(Space::Data, &[(0, 0)]).expect("valid");
    for _ in 0..5 {
        case.send(Space::Data);
    }
    let old = case.recovery.change_path(&config, case.now, None);
    assert_eq!((case.recovery.in_flight(), case.recovery.rtt().is_sampled()), (0, false));
    case.pass(70);
    // Packets of the old path give no sample, and their loss is no congestion.
    let result = case.ack(Space::Data, &[(5, 5)]).expect("valid");
    assert!(result.newly && !result.sampled && !result.lost);
    assert_eq!(case.lost, [1, 2]);
    case.recovery.change_path(&config, case.now, Some(old));
    assert_eq!(case.recovery.rtt().latest(), 50 * MS);
}

#[test]
fn idle_connections_keep_little() {
    let mut case = Case::confirmed();
    for _ in 0..1000 {
        let number = case.send(Space::Data);
        case.pass(1);
        if number.is_multiple_of(10) {
            case.ack(Space::Data, &[(number, number)]).expect("valid");
        }
    }
    case.pass(1000);
    case.recovery.shrink(case.now);
    let data = &case.recovery.spaces.data;
    assert!(data.sent.places() < 10 && data.sent.capacity() < 16, "{}", data.sent.places());
}

#[test]
fn marks_are_congestion() {
    let mut case = Case::confirmed();
    for _ in 0..10 {
        assert!(case.recovery.marks_packets());
        case.send_with(Space::Data, |packet| packet.ect = true);
    }
    assert!(!case.recovery.marks_packets());
    case.pass(50);
    let before = case.recovery.window();
    case.ack_with(Space::Data, &[(0, 3)], Duration::ZERO, Some([4, 0, 0])).expect("valid");
    assert_eq!((case.recovery.ecn(), case.recovery.window() > before), (EcnState::Capable, true));
    let before = case.recovery.window();
    case.ack_with(Space::Data, &[(0, 5)], Duration::ZERO, Some([5, 0, 1])).expect("valid");
    assert_eq!((case.recovery.window(), case.recovery.stats().congestion_marks), (before / 2, 1));
    // Once for a round trip
    case.ack_with(Space::Data, &[(0, 7)], Duration::ZERO, Some([5, 0, 3])).expect("valid");
    assert_eq!(case.recovery.window(), before / 2);
    // A frame that does not raise the largest number proves nothing.
    case.ack_with(Space::Data, &[(0, 9)], Duration::ZERO, Some([7, 0, 3])).expect("valid");
    case.ack_with(Space::Data, &[(0, 8)], Duration::ZERO, Some([6, 0, 3])).expect("valid");
    assert_eq!(case.recovery.ecn(), EcnState::Capable);
}

#[test]
fn delays_are_limited_once_the_handshake_is_confirmed() {
    for (confirmed, expected) in [(false, 100_000), (true, 101_875)] {
        let mut case = if confirmed { Case::confirmed() } else { Case::new() };
        for sample in [100, 140] {
            let number = case.send(Space::Data);
            case.pass(sample);
            case.ack_with(Space::Data, &[(number, number)], 40 * MS, None).expect("valid");
        }
        // 7/8 * 100 + 1/8 * (140 - delay)
        assert_eq!(case.recovery.rtt().smoothed(), Duration::from_micros(expected));
    }
}
