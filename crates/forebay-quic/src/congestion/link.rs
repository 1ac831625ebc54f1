//! Model of a network for tests: flows through one bottleneck, driven by events in simulated time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Algorithm, mix};
use crate::recovery::{Ack, Acks, Config, EcnMark, Fate, Recovery, SentPacket, Space, Timeout};
use crate::time::Time;

/// Bytes of a packet.
pub(super) const SIZE: u64 = 1200;

/// Bytes a second of a Mbit/s.
pub(super) const MBIT: f64 = 125_000.0;

const MAX_ACK_DELAY: Duration = Duration::from_millis(25);

/// Bottleneck.
pub(super) struct Link {
    /// Bytes per second.
    pub(super) rate: f64,
    /// Delay of each way.
    pub(super) delay: Duration,
    /// Most additional delay of a packet, at random.
    pub(super) jitter: Duration,
    /// Bytes that wait at most.
    pub(super) queue: f64,
    /// Bytes that wait above which packets are marked.
    pub(super) mark_above: f64,
    /// Part of the packets that are lost.
    pub(super) loss: f64,
    /// The link drops everything.
    pub(super) is_dead: bool,
    /// Time at which the bottleneck is free.
    free: Time,
    random: u64,
    pub(super) longest_queue: Duration,
    pub(super) dropped: u64,
}

impl Link {
    fn chance(&mut self) -> f64 {
        self.random = mix(self.random);
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Takes a packet. Returns when it arrives and whether it is marked, unless it is lost.
    fn pass(&mut self, now: Time) -> Option<(Time, bool)> {
        let waiting = self.free.since(now);
        let waiting_bytes = waiting.as_secs_f64() * self.rate;
        if self.is_dead || waiting_bytes > self.queue {
            self.dropped += 1;
            return None;
        }
        if self.chance() < self.loss {
            return None;
        }
        self.longest_queue = self.longest_queue.max(waiting);
        self.free = self.free.max(now) + Duration::from_secs_f64(SIZE as f64 / self.rate);
        let jitter = self.jitter.mul_f64(self.chance());
        Some((self.free + self.delay + jitter, waiting_bytes > self.mark_above))
    }
}

/// Packet or acknowledgment that arrives at an end.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Packet {
        flow: usize,
        number: u64,
        marked: bool,
    },
    Ack {
        flow: usize,
        delay: Duration,
        ranges: Vec<(u64, u64)>,
        ecn: Option<[u64; 3]>,
    },
    /// The receiver learns that its ACK frame arrived.
    AckAcked {
        flow: usize,
        largest: u64,
    },
}

/// Sender and receiver.
pub(super) struct Flow {
    pub(super) recovery: Recovery<()>,
    acks: Acks,
    /// Bytes that the application has.
    pub(super) backlog: u64,
    /// Bytes that were acknowledged.
    pub(super) delivered: u64,
    pub(super) sent: u64,
    paced_until: Option<Time>,
}

/// Flows and their bottleneck.
pub(super) struct Network {
    pub(super) link: Link,
    pub(super) flows: Vec<Flow>,
    pub(super) now: Time,
    /// The receiver of each ACK frame acknowledges it.
    pub(super) acks_are_acked: bool,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    count: u64,
}

impl Network {
    /// Creates a bottleneck of `mbit` Mbit/s with 25 ms each way and a queue of `queue` packets.
    pub(super) fn new(mbit: f64, queue: u64, loss: f64) -> Network {
        let now = Time::from_nanos(1_000_000_000);
        let link = Link {
            rate: mbit * MBIT,
            delay: Duration::from_millis(25),
            jitter: Duration::ZERO,
            queue: (queue * SIZE) as f64,
            mark_above: f64::INFINITY,
            loss,
            is_dead: false,
            free: now,
            random: 3,
            longest_queue: Duration::ZERO,
            dropped: 0,
        };
        Network { link, flows: Vec::new(), now, acks_are_acked: false, events: BinaryHeap::new(), count: 0 }
    }

    /// Adds a flow that has always something to send.
    pub(super) fn add(&mut self, algorithm: Algorithm) {
        let config = Config { algorithm, seed: 7 + self.flows.len() as u64, ..Config::default() };
        let mut recovery = Recovery::new(&config, true, self.now);
        for space in [Space::Initial, Space::Handshake] {
            recovery.discard(space, self.now, |()| {});
        }
        recovery.set_handshake_confirmed();
        self.flows.push(Flow {
            recovery,
            acks: Acks::new(),
            backlog: u64::MAX / 2,
            delivered: 0,
            sent: 0,
            paced_until: None,
        });
    }

    pub(super) fn with(mut self, algorithm: Algorithm) -> Network {
        self.add(algorithm);
        self
    }

    /// Runs for a time.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        for flow in 0..self.flows.len() {
            self.drive(flow);
        }
        while let Some((at, flow)) = self.next(end) {
            self.now = at;
            let flow = flow.unwrap_or_else(|| self.arrive());
            self.drive(flow);
        }
        self.now = end;
    }

    /// Returns the time of the next event, and the flow if it is a timer.
    fn next(&self, end: Time) -> Option<(Time, Option<usize>)> {
        let event = self.events.peek().map(|Reverse((time, ..))| (*time, None));
        let timers = self.flows.iter().enumerate().filter_map(|(n, flow)| {
            let timers = [flow.recovery.deadline(false), flow.acks.deadline(), flow.paced_until];
            Some((timers.into_iter().flatten().min()?, Some(n)))
        });
        let (time, flow) = timers.chain(event).min_by_key(|x| x.0)?;
        (time <= end).then_some((time.max(self.now), flow))
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    /// Takes the next event. Returns its flow.
    fn arrive(&mut self) -> usize {
        let Some(Reverse((_, _, event))) = self.events.pop() else { panic!("no event") };
        match event {
            Event::Packet { flow, number, marked } => {
                let acks = &mut self.flows[flow].acks;
                if !acks.is_duplicate(number) {
                    let mark = if marked { EcnMark::Ce } else { EcnMark::Ect0 };
                    acks.on_received(number, self.now, true, Some(mark), MAX_ACK_DELAY);
                }
                flow
            }
            Event::Ack { flow, delay, ranges, ecn } => {
                if self.acks_are_acked {
                    let largest = ranges.first().map_or(0, |range| range.1);
                    self.schedule(self.now + self.link.delay, Event::AckAcked { flow, largest });
                }
                self.flows[flow].take_ack(self.now, delay, &ranges, ecn);
                flow
            }
            Event::AckAcked { flow, largest } => {
                self.flows[flow].acks.on_acked(largest);
                flow
            }
        }
    }

    /// Lets a flow do what is due.
    fn drive(&mut self, n: usize) {
        let now = self.now;
        let flow = &mut self.flows[n];
        if let Some(ack) = flow.make_ack(n, now) {
            self.schedule(now + self.link.delay, ack);
        }
        let flow = &mut self.flows[n];
        let mut probes = 0;
        if flow.recovery.deadline(false).is_some_and(|x| x <= now) {
            let backlog = &mut flow.backlog;
            let timeout = flow.recovery.on_timeout(now, |outcome| *backlog += u64::from(outcome.size));
            probes = 2 * usize::from(matches!(timeout, Timeout::Probe(_)));
        }
        while self.flows[n].may_send(now, probes) {
            probes = probes.saturating_sub(1);
            let number = self.flows[n].send(now);
            if let Some((at, marked)) = self.link.pass(now) {
                self.schedule(at, Event::Packet { flow: n, number, marked });
            }
        }
    }

    /// Runs for a time. Returns the goodput of each flow in Mbit/s.
    pub(super) fn goodputs(&mut self, time: Duration) -> Vec<f64> {
        let before: Vec<_> = self.flows.iter().map(|x| x.delivered).collect();
        self.run(time);
        let after = self.flows.iter().zip(before);
        after.map(|(flow, before)| (flow.delivered - before) as f64 / MBIT / time.as_secs_f64()).collect()
    }

    /// Runs the only flow for a time. Returns its goodput in Mbit/s.
    pub(super) fn goodput(&mut self, time: Duration) -> f64 {
        self.goodputs(time)[0]
    }

    /// Returns the time that a packet waits now.
    pub(super) fn waiting(&self) -> Duration {
        self.link.free.since(self.now)
    }
}

impl Flow {
    fn make_ack(&mut self, flow: usize, now: Time) -> Option<Event> {
        if !self.acks.is_due(now) {
            return None;
        }
        self.acks.on_sent();
        let ranges = self.acks.ranges().iter().rev().map(|x| (x.start, x.end - 1)).collect();
        Some(Event::Ack { flow, delay: self.acks.delay(now), ranges, ecn: self.acks.ecn() })
    }

    fn take_ack(&mut self, now: Time, delay: Duration, ranges: &[(u64, u64)], ecn: Option<[u64; 3]>) {
        let ack = Ack { largest: ranges[0].1, delay, ecn };
        let ranges = ranges.iter().map(|(a, b)| -> RangeInclusive<u64> { *a..=*b });
        let (backlog, delivered) = (&mut self.backlog, &mut self.delivered);
        let result = self.recovery.on_ack(Space::Data, now, &ack, ranges, |outcome| match outcome.fate {
            Fate::Acked => *delivered += u64::from(outcome.size),
            Fate::Lost => *backlog += u64::from(outcome.size),
            Fate::LateAcked => {}
        });
        result.expect("only packets that were sent");
    }

    fn may_send(&mut self, now: Time, probes: usize) -> bool {
        self.paced_until = None;
        if probes > 0 {
            return true;
        }
        if self.backlog < SIZE {
            self.recovery.on_app_limited();
            return false;
        }
        if self.recovery.room() < SIZE {
            return false;
        }
        self.paced_until = self.recovery.blocked_until(now);
        self.paced_until.is_none()
    }

    fn send(&mut self, now: Time) -> u64 {
        let number = self.recovery.next_number(Space::Data);
        let packet = SentPacket {
            number,
            size: SIZE as u16,
            ack_eliciting: true,
            in_flight: true,
            mtu_probe: false,
            ect: self.recovery.marks_packets(),
            content: (),
        };
        self.recovery.on_sent(Space::Data, now, packet);
        self.backlog = self.backlog.saturating_sub(SIZE);
        self.sent += 1;
        number
    }
}
