//! Peers that say little during the handshake, and what probes say to them (RFC 9002, section 6.2.4).

use crate::lab::{Lab, Stage, seed};
use crate::rows::made;
use crate::setup::Setup;
use forebay_quic::frame;
use forebay_quic::id::Side;
use forebay_quic::packet::Kind;
use forebay_quic::ranges::RangeSet;
use std::time::Duration;

/// Any of the probes may be the only one that arrives, so each has to carry the handshake on. With post-quantum keys its first message takes
/// two packets, of which the peer acknowledges none or the second here.
#[test]
fn each_probe_of_the_handshake_repeats_its_bytes() {
    for (tested, stage) in [(Side::Client, Stage::Fresh), (Side::Server, Stage::Hello)] {
        for acknowledged in [None, Some(1)] {
            seed(7);
            let mut lab = Lab::new(tested, stage, &Setup::default());
            if let Some(number) = acknowledged {
                let mut numbers = RangeSet::default();
                numbers.insert_one(number);
                let ack = made(|out| {
                    frame::push_ack(out, &numbers, 0, None, 1000);
                });
                lab.frames(Kind::Initial, &ack);
            }
            let before = lab.raw.got.len();
            lab.wait(Duration::from_secs(3));
            let probes: Vec<_> =
                lab.raw.got[before..].iter().filter(|got| got.kind == Kind::Initial).collect();
            let count = |text: &str| probes.iter().filter(|got| got.frame.starts_with(text)).count();
            assert!(count("Crypto") >= 2, "{tested:?} {acknowledged:?}: {probes:?}");
            assert_eq!(count("Ping"), 0, "{tested:?} {acknowledged:?}: {probes:?}");
        }
    }
}
