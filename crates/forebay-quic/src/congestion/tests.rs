//! All controllers on a model of a network.

use std::time::Duration;

use super::Algorithm;
use super::link::{Network, SIZE};

const MS: Duration = Duration::from_millis(1);
const ALL: [Algorithm; 3] = [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Bbr];

/// Packets that a path of 100 Mbit/s and 50 ms holds.
const BDP: u64 = 520;

#[test]
fn a_clean_link_is_filled() {
    for algorithm in ALL {
        for (mbit, queue) in [(100.0, BDP), (10.0, BDP / 10)] {
            let mut network = Network::new(mbit, queue, 0.0).with(algorithm);
            network.run(3000 * MS);
            let rate = network.goodput(5000 * MS) / mbit;
            assert!(rate > 0.95, "{algorithm:?}: {rate}");
            let stats = network.flows[0].recovery.stats();
            assert_eq!((stats.persistent_congestion, stats.late), (0, 0), "{algorithm:?}");
        }
    }
}

#[test]
fn random_losses_hurt_bbr_least() {
    let [reno, cubic, bbr] = ALL.map(|algorithm| {
        let mut network = Network::new(100.0, BDP, 0.01).with(algorithm);
        network.run(1000 * MS);
        network.goodput(10_000 * MS)
    });
    assert!(reno > 1.0 && cubic > 1.0, "{reno} {cubic}");
    assert!(bbr > 90.0 && bbr > 10.0 * cubic, "{bbr} {cubic}");
}

#[test]
fn slow_start_ends_before_a_deep_queue_overflows() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
        let mut network = Network::new(100.0, 10 * BDP, 0.0).with(algorithm);
        network.run(4000 * MS);
        let recovery = &network.flows[0].recovery;
        assert!(!recovery.controller().in_slow_start(), "{algorithm:?}");
        assert_eq!((network.link.dropped, recovery.stats().lost), (0, 0), "{algorithm:?}");
        assert!(network.goodput(3000 * MS) > 99.0, "{algorithm:?}");
    }
}

#[test]
fn flows_share() {
    for (first, second, least) in [
        (Algorithm::NewReno, Algorithm::NewReno, 5.0),
        (Algorithm::Cubic, Algorithm::Cubic, 5.0),
        (Algorithm::Cubic, Algorithm::NewReno, 3.0),
        (Algorithm::Cubic, Algorithm::Bbr, 4.0),
        (Algorithm::Bbr, Algorithm::Cubic, 3.0),
        (Algorithm::Bbr, Algorithm::Bbr, 5.0),
    ] {
        let mut network = Network::new(20.0, BDP / 5, 0.0).with(first);
        network.run(3000 * MS);
        network.add(second);
        network.run(10_000 * MS);
        let rates = network.goodputs(20_000 * MS);
        assert!(rates.iter().all(|x| *x > least), "{first:?} and {second:?}: {rates:?}");
        assert!(rates.iter().sum::<f64>() > 19.0, "{first:?} and {second:?}: {rates:?}");
    }
}

#[test]
fn reordered_packets_are_no_congestion_for_long() {
    for algorithm in ALL {
        let mut network = Network::new(50.0, BDP, 0.0).with(algorithm);
        network.link.jitter = 8 * MS;
        network.run(5000 * MS);
        let rate = network.goodput(5000 * MS);
        assert!(rate > 40.0, "{algorithm:?}: {rate}");
        let stats = *network.flows[0].recovery.stats();
        assert!(stats.late > 0, "{algorithm:?}");
        network.run(2000 * MS);
        let later = network.flows[0].recovery.stats().lost - stats.lost;
        assert!(later < 100, "{algorithm:?}: {later}");
    }
}

/// A receiver whose ACK frames were acknowledged drops older packets that come late (RFC 9000, section 13.2.3). They are late by more than a
/// round-trip time then, and count as lost long since.
#[test]
fn acknowledged_acknowledgments_cost_nothing_on_paths_that_reorder() {
    for algorithm in ALL {
        for jitter in [8 * MS, 40 * MS] {
            let [kept, dropped] = [false, true].map(|acks_are_acked| {
                let mut network = Network::new(50.0, BDP, 0.0).with(algorithm);
                (network.link.jitter, network.acks_are_acked) = (jitter, acks_are_acked);
                network.run(5000 * MS);
                network.goodput(5000 * MS)
            });
            assert!(dropped > 0.95 * kept, "{algorithm:?}, {jitter:?}: {dropped} instead of {kept}");
        }
    }
}

#[test]
fn marks_replace_losses() {
    for algorithm in ALL {
        let mut network = Network::new(100.0, 4 * BDP, 0.0).with(algorithm);
        network.link.mark_above = (BDP * SIZE) as f64;
        network.run(3000 * MS);
        let rate = network.goodput(10_000 * MS);
        assert!(rate > 95.0, "{algorithm:?}: {rate}");
        let stats = network.flows[0].recovery.stats();
        assert_eq!(stats.lost, 0, "{algorithm:?}");
        assert!(algorithm == Algorithm::Bbr || stats.congestion_marks > 0, "{algorithm:?}");
    }
}

#[test]
fn an_outage_passes() {
    for algorithm in ALL {
        let mut network = Network::new(20.0, BDP / 5, 0.0).with(algorithm);
        network.run(3000 * MS);
        network.link.is_dead = true;
        network.run(4000 * MS);
        network.link.is_dead = false;
        network.run(6000 * MS);
        let rate = network.goodput(5000 * MS);
        assert!(rate > 15.0, "{algorithm:?}: {rate}");
        let stats = network.flows[0].recovery.stats();
        assert!(stats.probe_timeouts >= 3 && stats.persistent_congestion > 0, "{algorithm:?}: {stats:?}");
    }
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    for algorithm in ALL {
        let mut network = Network::new(1000.0, 10 * BDP, 0.0).with(algorithm);
        for _ in 0..100 {
            network.flows[0].backlog = 5 * SIZE;
            network.run(100 * MS);
        }
        let window = network.flows[0].recovery.window();
        assert!(window <= 30 * SIZE, "{algorithm:?}: {window}");
    }
}
