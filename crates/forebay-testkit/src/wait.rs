//! Waits with a deadline, and ports.

use std::time::{Duration, Instant};

/// Time after which a test fails that waits for something.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Waits until `done` returns something. Panics with `what` after [`DEADLINE`].
pub fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < end, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a condition holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || holds().then_some(()));
}

/// Returns a TCP port of 127.0.0.1 that is free, that no other test of this program got and that no client takes.
pub fn free_port() -> u16 {
    forebay_bench::ports::free_port().expect("a free port")
}

/// Returns the second of two ports in a row that are free.
pub fn free_pair() -> u16 {
    let mut before = free_port();
    loop {
        let port = free_port();
        if port == before + 1 {
            return port;
        }
        before = port;
    }
}
