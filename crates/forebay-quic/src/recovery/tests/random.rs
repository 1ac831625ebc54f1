//! Random packets, acknowledgments and timers.

use std::collections::BTreeMap;

use super::*;
use crate::congestion::mix;

/// What is known about a packet that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Lost,
    Gone,
}

struct Model {
    recovery: Recovery<u64>,
    now: Time,
    random: u64,
    /// Packets by their numbers, with the bytes that they have in flight.
    packets: BTreeMap<u64, (State, u64)>,
}

impl Model {
    fn new(algorithm: Algorithm, seed: u64) -> Model {
        let now = Time::from_nanos(1_000_000_000);
        let mut recovery = Recovery::new(&Config { algorithm, seed, ..Config::default() }, true, now);
        recovery.set_handshake_confirmed();
        Model { recovery, now, random: seed, packets: BTreeMap::new() }
    }

    fn draw(&mut self, n: u64) -> u64 {
        self.random = mix(self.random);
        self.random % n
    }

    fn send(&mut self) {
        let number = self.recovery.next_number(Space::Data);
        let kind = self.draw(10);
        let packet = SentPacket {
            number,
            size: 100 + self.draw(1300) as u16,
            ack_eliciting: kind > 1,
            in_flight: kind > 0,
            mtu_probe: kind == 2,
            ect: self.recovery.marks_packets(),
            content: number,
        };
        self.recovery.on_sent(Space::Data, self.now, packet);
        let size = if packet.in_flight { u64::from(packet.size) } else { 0 };
        let state = if kind > 0 { State::Open } else { State::Gone };
        self.packets.insert(number, (state, size));
    }

    /// Acknowledges random ranges of what was sent, but no skipped numbers.
    fn acknowledge(&mut self) {
        let Some((&last, _)) = self.packets.last_key_value() else { return };
        let mut top = last - self.draw(20).min(last);
        let mut ranges = Vec::new();
        for _ in 0..=self.draw(4) {
            let bottom = top - self.draw(30).min(top);
            let is_sent = (bottom..=top).all(|number| self.packets.contains_key(&number));
            if is_sent {
                ranges.push(bottom..=top);
            }
            let Some(next) = bottom.checked_sub(2 + self.draw(3)) else { break };
            top = next;
        }
        let Some(first) = ranges.first() else { return };
        let ack = Ack { largest: *first.end(), delay: Duration::from_micros(self.draw(30_000)), ecn: None };
        let packets = &mut self.packets;
        let result = self.recovery.on_ack(Space::Data, self.now, &ack, ranges, |x| decide(packets, x));
        result.expect("all were sent");
    }

    fn time_out(&mut self) {
        if let Some(deadline) = self.recovery.deadline(false) {
            self.now = self.now.max(deadline);
            let packets = &mut self.packets;
            let timeout = self.recovery.on_timeout(self.now, |x| decide(packets, x));
            assert_ne!(timeout, Timeout::Nothing);
            if timeout == Timeout::Probe(Space::Data) {
                self.send();
            }
        }
    }

    fn check(&self) {
        let open = self.packets.values().filter(|x| x.0 == State::Open);
        assert_eq!(self.recovery.in_flight(), open.map(|x| x.1).sum::<u64>());
        assert!(self.recovery.window() >= 2 * 1200);
        if self.recovery.awaits_acks(Space::Data) {
            assert!(self.recovery.deadline(false).is_some());
        }
    }
}

/// Each packet is acknowledged or lost once, and a late acknowledgment comes after its loss.
fn decide(packets: &mut BTreeMap<u64, (State, u64)>, outcome: Outcome<u64>) {
    let (state, size) = packets.get_mut(&outcome.number).expect("a packet that was sent");
    assert_eq!(outcome.content, outcome.number);
    assert!(*size == 0 || *size == u64::from(outcome.size));
    let (before, after) = match outcome.fate {
        Fate::Acked => (State::Open, State::Gone),
        Fate::Lost => (State::Open, State::Lost),
        Fate::LateAcked => (State::Lost, State::Gone),
    };
    assert_eq!(std::mem::replace(state, after), before, "{outcome:?}");
}

#[test]
fn each_packet_has_one_fate() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Bbr] {
        for seed in 0..4 {
            let mut model = Model::new(algorithm, seed);
            for _ in 0..3000 {
                match model.draw(16) {
                    0..9 => model.send(),
                    9..12 => {
                        let micros = model.draw(20_000);
                        model.now += Duration::from_micros(micros);
                    }
                    12..15 => model.acknowledge(),
                    _ => model.time_out(),
                }
                model.check();
                let old = model.packets.len().saturating_sub(1000);
                if old > 200 && model.packets.values().take(old).all(|x| x.0 != State::Open) {
                    model.packets = model.packets.into_iter().skip(old).collect();
                }
            }
            assert!(model.recovery.stats().lost > 10, "{algorithm:?} {seed}");
        }
    }
}

/// A window's worth of packets is sent and acknowledged again and again.
#[test]
fn places_are_used_again() {
    let mut model = Model::new(Algorithm::Cubic, 1);
    let mut capacity = 0;
    for round in 0..1000 {
        while model.recovery.room() >= 1200 && model.recovery.in_flight() < 100_000 {
            model.send();
        }
        model.now += Duration::from_millis(20);
        model.time_out();
        let last = *model.packets.last_key_value().expect("packets").0;
        let mut ranges = Vec::new();
        let mut end = last;
        while let Some((&number, _)) = model.packets.range(..=end).next_back() {
            let start = (0..=number).rev().take_while(|x| model.packets.contains_key(x)).last();
            let Some(start) = start.filter(|_| ranges.len() < 3) else { break };
            ranges.push(start..=number);
            let Some(next) = start.checked_sub(1) else { break };
            end = next;
        }
        let packets = &mut model.packets;
        let ack = Ack { largest: last, ..Ack::default() };
        model
            .recovery
            .on_ack(Space::Data, model.now, &ack, ranges, |x| decide(packets, x))
            .expect("all were sent");
        model.check();
        let forget = last.saturating_sub(500);
        model.packets.retain(|number, _| *number >= forget);
        if round == 100 {
            capacity = model.recovery.spaces.data.sent.capacity();
        }
    }
    assert_eq!(model.recovery.spaces.data.sent.capacity(), capacity);
}
