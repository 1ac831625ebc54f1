//! Many seeds.

use crate::scenario::Scenario;
use forebay_quic::id::Side;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// The last panic was one of the other implementation.
    static PEER_BROKE: Cell<bool> = const { Cell::new(false) };
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a scenario for each seed. All that fail are named.
pub fn each_seed(default: u64, run: impl Fn(&Scenario)) {
    let seeds = match number("FOREBAY_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FOREBAY_TEST_SEEDS").unwrap_or(default),
    };
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let is_of_peer = info.location().is_some_and(|at| at.file().contains("quinn-proto"));
        PEER_BROKE.set(is_of_peer);
        if !is_of_peer {
            previous(info);
        }
    }));
    let (mut failed, mut broken, count) = (Vec::new(), 0, seeds.clone().count());
    for seed in seeds {
        let scenario = Scenario::new(seed);
        if catch_unwind(AssertUnwindSafe(|| run(&scenario))).is_err() {
            if PEER_BROKE.get() {
                broken += 1;
                continue;
            }
            eprintln!("FOREBAY_TEST_SEED={seed} cargo test -p forebay-quic --test simulation\n{scenario:?}");
            failed.push(seed);
            if failed.len() >= 10 {
                break;
            }
        }
    }
    assert!(failed.is_empty(), "seeds {failed:?} fail");
    assert!(broken <= count / 10, "the peer broke {broken} of {count} times");
}

#[test]
fn everything_arrives() {
    each_seed(2000, Scenario::run);
}

#[test]
fn everything_arrives_at_another_server() {
    each_seed(300, |scenario| scenario.milder().run_with_other(Side::Server));
}

#[test]
fn everything_arrives_from_another_client() {
    each_seed(300, |scenario| scenario.milder().run_with_other(Side::Client));
}
