//! BBR on a model of a network.

use super::*;
use crate::congestion::link::{MBIT, Network, SIZE};
use crate::congestion::{Algorithm, Controller};

const MS: Duration = Duration::from_millis(1);

fn network(mbit: f64, queue: u64, loss: f64) -> Network {
    Network::new(mbit, queue, loss).with(Algorithm::Bbr)
}

fn bbr(network: &Network) -> &Bbr {
    let Controller::Bbr(bbr) = network.flows[0].recovery.controller() else { panic!("another controller") };
    bbr
}

#[test]
fn startup_finds_bandwidth() {
    let mut network = network(100.0, 500, 0.0);
    // 10 packets, and twice as many in each of six more round trips: more than the path holds
    network.run(450 * MS);
    let bw = bbr(&network).max_bw() as f64 / MBIT;
    assert!((90.0..110.0).contains(&bw), "{bw}");
    let rate = network.goodput(600 * MS);
    assert!(rate > 90.0, "{rate}");
    assert!(bbr(&network).full_bw_reached && !bbr(&network).in_startup());
}

#[test]
fn startup_ends_when_the_queue_overflows() {
    for queue in [50, 100, 200, 500] {
        let mut network = network(100.0, queue, 0.0);
        while network.link.dropped == 0 {
            network.run(MS);
        }
        let start = network.now;
        while bbr(&network).in_startup() {
            network.run(MS);
        }
        // One round trip until the first loss shows, and one in which losses are counted
        let rtt = 50 * MS + Duration::from_secs_f64((queue * SIZE) as f64 / network.link.rate);
        let time = network.now.since(start);
        assert!(time < rtt.mul_f64(2.2), "{queue}: {time:?}");
        network.run(500 * MS);
        assert!(network.link.dropped < 1200, "{queue}: {}", network.link.dropped);
    }
}

#[test]
fn random_losses_are_tolerated() {
    for loss in [0.002, 0.01] {
        let mut network = network(100.0, 500, loss);
        network.run(1000 * MS);
        let (dropped, sent) = (network.link.dropped, network.flows[0].sent);
        let rate = network.goodput(10_000 * MS);
        assert!(rate > 90.0, "{loss}: {rate}");
        // Probes may fill the queue, but no more.
        let dropped = (network.link.dropped - dropped) as f64 / (network.flows[0].sent - sent) as f64;
        assert!(dropped < 0.006, "{loss}: {dropped}");
    }
}

#[test]
fn queue_stays_short() {
    let mut network = network(100.0, 5000, 0.0);
    network.run(2000 * MS);
    network.link.longest_queue = Duration::ZERO;
    let before = network.flows[0].delivered;
    let mut queues = Duration::ZERO;
    for _ in 0..10_000 {
        network.run(MS);
        queues += network.waiting();
    }
    let rate = (network.flows[0].delivered - before) as f64 / MBIT / 10.0;
    assert!(rate > 92.0, "{rate}");
    // A probe of some round trips fills it, and the time between probes drains it.
    assert!(network.link.longest_queue < 50 * MS, "{:?}", network.link.longest_queue);
    assert!(queues / 10_000 < 10 * MS, "{:?}", queues / 10_000);
}

#[test]
fn shallow_queue_is_not_flooded() {
    let mut network = network(100.0, 50, 0.0);
    network.run(2000 * MS);
    let (dropped, sent) = (network.link.dropped, network.flows[0].sent);
    let rate = network.goodput(10_000 * MS);
    assert!(rate > 75.0, "{rate}");
    let lost = (network.link.dropped - dropped) as f64 / (network.flows[0].sent - sent) as f64;
    assert!(lost < LOSS_THRESHOLD, "{lost}");
}

#[test]
fn bandwidth_is_followed() {
    let mut network = network(100.0, 500, 0.0);
    network.run(3000 * MS);
    network.link.rate /= 5.0;
    network.run(8000 * MS);
    let rate = network.goodput(4000 * MS);
    assert!(rate > 18.0, "{rate}");
    let bw = bbr(&network).max_bw() as f64 / MBIT;
    assert!(bw < 25.0, "{bw}");
    network.link.rate *= 5.0;
    network.run(8000 * MS);
    let rate = network.goodput(4000 * MS);
    assert!(rate > 85.0, "{rate}");
}

/// Runs for a time. Returns how often the flow was in ProbeRtt, and the bytes it had least in flight there.
fn probe_rtts(network: &mut Network, time: Duration) -> (u32, u64) {
    let end = network.now + time;
    let (mut states, mut least) = (0, u64::MAX);
    while network.now < end {
        let before = bbr(network).state;
        network.run(MS);
        if bbr(network).state == State::ProbeRtt {
            states += u32::from(before != State::ProbeRtt);
            least = least.min(network.flows[0].recovery.in_flight());
        }
    }
    (states, least)
}

#[test]
fn probe_rtt_drains() {
    let mut network = network(100.0, 500, 0.0);
    for (delay, time, least_rtt) in [(25 * MS, 20_000, 50 * MS), (40 * MS, 15_000, 80 * MS)] {
        // When the path becomes longer, only an expired minimum can follow.
        network.link.delay = delay;
        let (states, least) = probe_rtts(&mut network, time * MS);
        assert!((2..=4).contains(&states), "{states}");
        let bbr = bbr(&network);
        assert!(least <= bbr.bdp(bbr.max_bw(), 0.6), "{least}");
        let min_rtt = bbr.min_rtt.expect("samples");
        assert!((least_rtt..least_rtt + 5 * MS).contains(&min_rtt), "{min_rtt:?}");
    }
}

#[test]
fn pauses_make_probe_rtt_needless() {
    let mut network = network(100.0, 500, 0.0);
    for n in 0..40 {
        network.flows[0].backlog = 2_000_000 / SIZE * SIZE;
        let (states, _) = probe_rtts(&mut network, 500 * MS);
        assert_eq!((network.flows[0].backlog / SIZE, states), (0, 0), "{n}");
    }
}

#[test]
fn application_limited_samples_do_not_lower_bandwidth() {
    let mut network = network(100.0, 500, 0.01);
    network.run(3000 * MS);
    let bw = bbr(&network).max_bw();
    // Ten seconds with 3 packets each 10 ms, 2.9 Mbit/s
    for _ in 0..1000 {
        network.flows[0].backlog = 3 * SIZE;
        network.run(10 * MS);
    }
    assert!(bbr(&network).bw() > bw * 9 / 10, "{} {bw}", bbr(&network).bw());
    network.flows[0].backlog = u64::MAX / 2;
    network.run(60 * MS);
    let rate = network.goodput(500 * MS);
    assert!(rate > 85.0, "{rate}");
}

#[test]
fn files_one_after_another() {
    let mut network = network(100.0, 500, 0.01);
    let mut times = Vec::new();
    for _ in 0..50 {
        network.flows[0].backlog = 2_000_000 / SIZE * SIZE;
        let start = network.now;
        while network.flows[0].backlog >= SIZE || network.flows[0].recovery.in_flight() > 0 {
            network.run(MS);
        }
        times.push(network.now.since(start));
        network.run(25 * MS);
    }
    times.sort();
    // 160 ms at the link's rate, 50 ms until the last acknowledgment, and as much for a loss
    assert!(times[25] < 275 * MS, "{times:?}");
    assert!(bbr(&network).full_bw_reached);
}

#[test]
fn persistent_congestion_is_left_again() {
    let mut network = network(100.0, 500, 0.0);
    network.run(2000 * MS);
    network.link.is_dead = true;
    network.run(3000 * MS);
    network.link.is_dead = false;
    network.run(3000 * MS);
    assert!(network.flows[0].recovery.stats().persistent_congestion > 0);
    let rate = network.goodput(3000 * MS);
    assert!(rate > 70.0, "{rate}");
}

/// Marks slow it down, so that the queue stays below the threshold of the link most of the time.
#[test]
fn marks_bound_the_queue() {
    let mut network = network(100.0, 5000, 0.0);
    network.link.mark_above = (50 * SIZE) as f64;
    network.run(2000 * MS);
    let before = network.flows[0].delivered;
    let mut queues = Duration::ZERO;
    for _ in 0..10_000 {
        network.run(MS);
        queues += network.waiting();
    }
    let rate = (network.flows[0].delivered - before) as f64 / MBIT / 10.0;
    assert!(network.flows[0].recovery.stats().congestion_marks > 0);
    assert!(rate > 75.0 && queues / 10_000 < 4 * MS, "{rate} {:?}", queues / 10_000);
}
