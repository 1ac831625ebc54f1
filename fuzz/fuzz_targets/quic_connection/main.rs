//! A live connection and a peer that has its keys and sends anything.
//!
//! The first bytes of the input say how the connection begins, each further group is a step: a packet with any frames, a datagram that is
//! cut, joined with another or changed, time that passes, or what the application does. The peer is that of the tests of `forebay-quic`.
#![no_main]

mod checks;
mod input;
mod packets;
mod run;

#[allow(dead_code)]
#[path = "../../../crates/forebay-quic/tests/peers/lab.rs"]
mod lab;
#[allow(dead_code)]
#[path = "../../../crates/forebay-quic/tests/peers/node.rs"]
mod node;
#[allow(dead_code)]
#[path = "../../../crates/forebay-quic/tests/peers/random.rs"]
mod random;
#[allow(dead_code)]
#[path = "../../../crates/forebay-quic/tests/peers/raw.rs"]
mod raw;
#[allow(dead_code)]
#[path = "../../../crates/forebay-quic/tests/peers/setup.rs"]
mod setup;

use forebay_sys::alloc::CountingAllocator;
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fuzz_target!(|input: &[u8]| {
    lab::seed(1);
    if let Some(mut run) = run::Run::begin(input) {
        while run.step() {}
        run.end();
    }
});
