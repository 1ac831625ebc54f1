use std::collections::VecDeque;

use rand::rngs::StdRng;

use super::*;

const MTU: u64 = 1200;
const MS: Duration = Duration::from_millis(1);

/// Flows through one bottleneck
struct Link {
    /// Bytes per second
    rate: u64,
    /// Delay of each way
    delay: Duration,
    /// Bytes that wait for the bottleneck at most
    queue: u64,
    loss: f64,
    /// Time at which the bottleneck is free
    free: Instant,
    now: Instant,
    rng: StdRng,
    longest_queue: Duration,
    dropped: u64,
}

struct Packet {
    number: u64,
    sent: Instant,
    /// Time at which its acknowledgment arrives, if it does
    acked: Option<Instant>,
}

struct Flow {
    bbr: Bbr,
    rtt: RttEstimator,
    packets: VecDeque<Packet>,
    next: u64,
    in_flight: u64,
    /// Time at which the pacer allows the next packet
    paced: Instant,
    /// Bytes that the application has
    backlog: u64,
    delivered: u64,
}

impl Flow {
    fn new(now: Instant) -> Self {
        let mut bbr = Bbr::new(Arc::new(BbrConfig::default()), now, MTU as u16);
        bbr.rng = Pcg32::seed_from_u64(7);
        Self {
            bbr,
            rtt: RttEstimator::new(100 * MS),
            packets: VecDeque::new(),
            next: 0,
            in_flight: 0,
            paced: now,
            backlog: u64::MAX,
            delivered: 0,
        }
    }

    fn may_send(&self, now: Instant) -> bool {
        self.paced <= now && self.backlog >= MTU && self.in_flight + MTU < self.bbr.window()
    }

    fn send_packet(&mut self, link: &mut Link) {
        self.backlog -= MTU;
        self.in_flight += MTU;
        let acked = link.pass();
        self.packets.push_back(Packet {
            number: self.next,
            sent: link.now,
            acked,
        });
        self.next += 1;
        if let Some(rate) = self.bbr.pacing_rate() {
            // Bursts of a millisecond, as timers allow
            let burst = Duration::from_secs_f64(MTU as f64 / rate as f64);
            self.paced = self.paced.max(link.now - MS) + burst;
        }
    }

    /// Tells the controller that the packets from number `first` on were sent
    fn end_sending(&mut self, now: Instant, first: u64) {
        if self.next > first {
            self.bbr
                .on_sent(now, (self.next - first) * MTU, self.in_flight);
        }
        if self.backlog < MTU && self.in_flight + MTU < self.bbr.window() {
            self.bbr.on_app_limited(self.in_flight);
        }
    }

    fn receive(&mut self, link: &Link) {
        let now = link.now;
        let mut newest = None;
        // The link keeps packets in order.
        let mut unacked = Vec::new();
        while let Some(x) = self.packets.front() {
            match x.acked {
                Some(at) if at > now => break,
                Some(_) => {
                    newest = Some((x.number, x.sent));
                    self.in_flight -= MTU;
                    self.delivered += MTU;
                    self.bbr.on_ack(now, x.sent, MTU, false, &self.rtt);
                    self.packets.pop_front();
                }
                None => unacked.extend(self.packets.pop_front()),
            }
        }
        if let Some((newest, sent)) = newest {
            self.bbr
                .on_end_acks(now, self.in_flight, false, Some(newest), &self.rtt);
            self.rtt.update(Duration::ZERO, now - sent);
        }
        let mut lost = 0;
        let mut last = None;
        for x in unacked.into_iter().rev() {
            if newest.is_some_and(|(newest, _)| x.number + 3 <= newest) {
                lost += MTU;
                last = last.max(Some(x.sent));
            } else {
                self.packets.push_front(x);
            }
        }
        self.in_flight -= lost;
        if let Some(sent) = last {
            self.bbr.on_congestion_event(now, sent, false, lost);
            self.backlog = self.backlog.saturating_add(lost);
        }
    }

    /// Declares everything in flight as lost, since no acknowledgment comes any more
    fn time_out(&mut self, now: Instant) {
        let Some(last) = self.packets.back().map(|x| x.sent) else {
            return;
        };
        if now - last > 4 * self.rtt.get() {
            self.packets.clear();
            let lost = std::mem::take(&mut self.in_flight);
            self.bbr.on_congestion_event(now, last, false, lost);
            self.backlog = self.backlog.saturating_add(lost);
        }
    }
}

impl Link {
    /// A link of `mbit` Mbit/s with 25 ms each way and a queue of `queue` packets
    fn new(mbit: u64, queue: u64, loss: f64) -> Self {
        let now = Instant::now();
        Self {
            rate: mbit * 125_000,
            delay: 25 * MS,
            queue: queue * MTU,
            loss,
            free: now,
            now,
            rng: StdRng::seed_from_u64(3),
            longest_queue: Duration::ZERO,
            dropped: 0,
        }
    }

    /// Sends a packet now. Returns the time at which its acknowledgment arrives, unless it is lost.
    fn pass(&mut self) -> Option<Instant> {
        let waiting = self.free.saturating_duration_since(self.now);
        if waiting.as_secs_f64() * self.rate as f64 > self.queue as f64 {
            self.dropped += 1;
            return None;
        }
        if self.rng.random_bool(self.loss) {
            return None;
        }
        self.longest_queue = self.longest_queue.max(waiting);
        self.free =
            self.free.max(self.now) + Duration::from_secs_f64(MTU as f64 / self.rate as f64);
        Some(self.free + 2 * self.delay)
    }

    fn run(&mut self, flows: &mut [Flow], time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += MS / 2;
            for flow in flows.iter_mut() {
                flow.receive(self);
                flow.time_out(self.now);
            }
            let first: Vec<_> = flows.iter().map(|x| x.next).collect();
            // Packets reach the queue in the order of their pacing, or one flow would fill it before
            // the others.
            while let Some(flow) = flows
                .iter_mut()
                .filter(|x| x.may_send(self.now))
                .min_by_key(|x| x.paced)
            {
                flow.send_packet(self);
            }
            for (flow, first) in flows.iter_mut().zip(first) {
                flow.end_sending(self.now, first);
            }
        }
    }
}

/// Runs one flow. Returns its goodput in Mbit/s.
fn goodput(link: &mut Link, flow: &mut Flow, time: Duration) -> f64 {
    let before = flow.delivered;
    link.run(std::slice::from_mut(flow), time);
    (flow.delivered - before) as f64 / 125_000.0 / time.as_secs_f64()
}

#[test]
fn startup_finds_bandwidth() {
    let mut link = Link::new(100, 500, 0.0);
    let mut flow = Flow::new(link.now);
    // 10 packets, and twice as many in each of six more round trips: more than the path holds
    goodput(&mut link, &mut flow, 450 * MS);
    let bw = flow.bbr.max_bw() as f64 / 125_000.0;
    assert!((90.0..110.0).contains(&bw), "{bw}");
    let rate = goodput(&mut link, &mut flow, 600 * MS);
    assert!(rate > 90.0, "{rate}");
    assert!(flow.bbr.full_bw_reached);
    assert_ne!(flow.bbr.state, State::Startup);
}

#[test]
fn startup_ends_when_the_queue_overflows() {
    for queue in [50, 100, 200, 500] {
        let mut link = Link::new(100, queue, 0.0);
        let mut flow = Flow::new(link.now);
        while link.dropped == 0 {
            goodput(&mut link, &mut flow, MS);
        }
        let start = link.now;
        while flow.bbr.state == State::Startup {
            goodput(&mut link, &mut flow, MS);
        }
        // One round trip until the first loss shows, and one in which losses are counted
        let rtt = 50 * MS + Duration::from_secs_f64((queue * MTU) as f64 / link.rate as f64);
        assert!(
            link.now - start < rtt.mul_f64(2.2),
            "{queue}: {:?}",
            link.now - start
        );
        goodput(&mut link, &mut flow, 500 * MS);
        assert!(link.dropped < 900, "{queue}: {}", link.dropped);
    }
}

#[test]
fn random_losses_are_tolerated() {
    for loss in [0.002, 0.01] {
        let mut link = Link::new(100, 500, loss);
        let mut flow = Flow::new(link.now);
        goodput(&mut link, &mut flow, 1000 * MS);
        let (dropped, sent) = (link.dropped, flow.next);
        let rate = goodput(&mut link, &mut flow, 20_000 * MS);
        assert!(rate > 88.0, "{loss}: {rate}");
        // Probes may fill the queue, but no more.
        let dropped = (link.dropped - dropped) as f64 / (flow.next - sent) as f64;
        assert!(dropped < 0.004, "{loss}: {dropped}");
    }
}

#[test]
fn queue_stays_short() {
    let mut link = Link::new(100, 5000, 0.0);
    let mut flow = Flow::new(link.now);
    goodput(&mut link, &mut flow, 2000 * MS);
    link.longest_queue = Duration::ZERO;
    let before = flow.delivered;
    let mut queues = Duration::ZERO;
    for _ in 0..20_000 {
        link.run(std::slice::from_mut(&mut flow), MS);
        queues += link.free.saturating_duration_since(link.now);
    }
    let rate = (flow.delivered - before) as f64 / 125_000.0 / 20.0;
    assert!(rate > 92.0, "{rate}");
    // A probe of some round trips fills it, and the time between probes drains it.
    assert!(link.longest_queue < 50 * MS, "{:?}", link.longest_queue);
    assert!(queues / 20_000 < 8 * MS, "{:?}", queues / 20_000);
}

#[test]
fn shallow_queue_is_not_flooded() {
    let mut link = Link::new(100, 50, 0.0);
    let mut flow = Flow::new(link.now);
    goodput(&mut link, &mut flow, 2000 * MS);
    let (dropped, sent) = (link.dropped, flow.next);
    let rate = goodput(&mut link, &mut flow, 20_000 * MS);
    assert!(rate > 75.0, "{rate}");
    let lost = (link.dropped - dropped) as f64 / (flow.next - sent) as f64;
    assert!(lost < LOSS_THRESHOLD, "{lost}");
}

#[test]
fn bandwidth_is_followed() {
    let mut link = Link::new(100, 500, 0.0);
    let mut flow = Flow::new(link.now);
    goodput(&mut link, &mut flow, 3000 * MS);
    link.rate /= 5;
    goodput(&mut link, &mut flow, 8000 * MS);
    let rate = goodput(&mut link, &mut flow, 4000 * MS);
    assert!(rate > 18.0, "{rate}");
    assert!(flow.bbr.max_bw() < 25 * 125_000, "{}", flow.bbr.max_bw());
    link.rate *= 5;
    goodput(&mut link, &mut flow, 8000 * MS);
    let rate = goodput(&mut link, &mut flow, 4000 * MS);
    assert!(rate > 85.0, "{rate}");
}

/// Runs one flow. Returns how often it was in ProbeRtt, and the bytes it had least in flight there.
fn probe_rtts(link: &mut Link, flow: &mut Flow, time: Duration) -> (u32, u64) {
    let end = link.now + time;
    let (mut states, mut least) = (0, u64::MAX);
    while link.now < end {
        let before = flow.bbr.state;
        link.run(std::slice::from_mut(flow), MS);
        if flow.bbr.state == State::ProbeRtt {
            states += u32::from(before != State::ProbeRtt);
            least = least.min(flow.in_flight);
        }
    }
    (states, least)
}

#[test]
fn probe_rtt_drains() {
    let mut link = Link::new(100, 500, 0.0);
    let mut flow = Flow::new(link.now);
    let (states, least) = probe_rtts(&mut link, &mut flow, 20_000 * MS);
    assert!((2..=4).contains(&states), "{states}");
    assert!(least <= flow.bbr.bdp(flow.bbr.max_bw(), 0.6), "{least}");
    let min_rtt = flow.bbr.min_rtt.unwrap();
    assert!((50 * MS..52 * MS).contains(&min_rtt), "{min_rtt:?}");

    // The path becomes longer, so only an expired minimum can follow.
    link.delay = 40 * MS;
    let (states, least) = probe_rtts(&mut link, &mut flow, 15_000 * MS);
    assert!((2..=4).contains(&states), "{states}");
    assert!(least <= flow.bbr.bdp(flow.bbr.max_bw(), 0.6), "{least}");
    let min_rtt = flow.bbr.min_rtt.unwrap();
    assert!((80 * MS..85 * MS).contains(&min_rtt), "{min_rtt:?}");
}

#[test]
fn pauses_make_probe_rtt_needless() {
    let mut link = Link::new(100, 500, 0.0);
    let mut flow = Flow::new(link.now);
    for n in 0..40 {
        flow.backlog = 2_000_000 / MTU * MTU;
        let (states, _) = probe_rtts(&mut link, &mut flow, 500 * MS);
        assert_eq!((flow.backlog / MTU, states), (0, 0), "{n}");
    }
}

#[test]
fn application_limited_samples_do_not_lower_bandwidth() {
    let mut link = Link::new(100, 500, 0.01);
    let mut flow = Flow::new(link.now);
    goodput(&mut link, &mut flow, 3000 * MS);
    let bw = flow.bbr.max_bw();
    // Ten seconds with 3 packets each 10 ms, 2.9 Mbit/s
    for _ in 0..1000 {
        flow.backlog = 3 * MTU;
        goodput(&mut link, &mut flow, 10 * MS);
    }
    assert!(flow.bbr.bw() > bw * 9 / 10, "{} {bw}", flow.bbr.bw());
    flow.backlog = u64::MAX;
    goodput(&mut link, &mut flow, 60 * MS);
    let rate = goodput(&mut link, &mut flow, 500 * MS);
    assert!(rate > 85.0, "{rate}");
}

#[test]
fn files_one_after_another() {
    let mut link = Link::new(100, 500, 0.01);
    let mut flow = Flow::new(link.now);
    let mut times = Vec::new();
    for _ in 0..50 {
        flow.backlog = 2_000_000 / MTU * MTU;
        let start = link.now;
        while flow.backlog >= MTU || flow.in_flight > 0 {
            link.run(std::slice::from_mut(&mut flow), MS);
        }
        times.push(link.now - start);
        link.run(std::slice::from_mut(&mut flow), 25 * MS);
    }
    times.sort();
    // 160 ms at the link's rate, 50 ms until the last acknowledgment, and as much for a loss
    assert!(times[25] < 275 * MS, "{times:?}");
    assert!(flow.bbr.full_bw_reached);
}

#[test]
fn flows_share() {
    for seed in 0..4 {
        let mut link = Link::new(100, 500, 0.0);
        let mut flows = vec![Flow::new(link.now)];
        flows[0].bbr.rng = Pcg32::seed_from_u64(100 + seed);
        link.run(&mut flows, 3000 * MS);
        flows.push(Flow::new(link.now));
        flows[1].bbr.rng = Pcg32::seed_from_u64(200 + seed);
        link.run(&mut flows, 20_000 * MS);
        let (dropped, before) = (link.dropped, [0, 1].map(|n| flows[n].delivered));
        link.run(&mut flows, 10_000 * MS);
        let [a, b] = [0, 1].map(|n| flows[n].delivered - before[n]);
        assert!(a.min(b) * 4 > a + b, "{seed}: {a} {b}");
        assert!(a + b > 95 * 10 * 125_000, "{seed}: {a} {b}");
        let lost = (link.dropped - dropped) as f64 * MTU as f64 / (a + b) as f64;
        assert!(lost < LOSS_THRESHOLD, "{seed}: {lost}");
    }
}

#[test]
fn persistent_congestion_and_marks() {
    let mut link = Link::new(100, 500, 0.0);
    let mut flow = Flow::new(link.now);
    goodput(&mut link, &mut flow, 2000 * MS);
    let sent = flow.packets.back().unwrap().sent;
    flow.bbr.on_congestion_event(link.now, sent, true, MTU);
    assert_eq!(flow.bbr.window(), 4 * MTU);
    let rate = goodput(&mut link, &mut flow, 3000 * MS);
    assert!(rate > 70.0, "{rate}");

    // Marks in each round trip slow it down.
    let bw = flow.bbr.bw();
    for _ in 0..10 {
        let sent = flow.packets.back().unwrap().sent;
        flow.bbr.on_congestion_event(link.now, sent, false, 0);
        goodput(&mut link, &mut flow, 50 * MS);
    }
    assert!(flow.bbr.inflight_short != u64::MAX || flow.bbr.bw() < bw);
}
