//! `bench`, ab and wrk against a server that stops.

use crate::alone;
use forebay_testkit::{accept, program, run};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Answers at once, but stops for one second in every ten, five seconds after the start: what it has read by then, it
/// answers a second later.
fn stalling() -> SocketAddr {
    let start = Instant::now();

    accept(move |mut stream, _| {
        let due = || (start.elapsed().as_secs() + 5) / 10;
        let (mut buf, mut stops) = ([0; 4096], due());
        while stream.read(&mut buf).is_ok_and(|n| n > 0) {
            let due = due();
            if stops < due {
                stops = due;
                std::thread::sleep(Duration::from_secs(1));
            }
            if stream
                .write_all(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello")
                .is_err()
            {
                return;
            }
        }
    })
}

/// Coordinated omission: a closed loop sends nothing while the server stops, so that of the stop nothing is left in its
/// p99; nor in those of ab and wrk. (wrk 4 adds to its latencies what it thinks it has missed, but leaves out whole what
/// took longer than its timeout: with one of a second the stop is gone from its p99 as it is from the others'.)
#[test]
fn a_stop_of_the_server_is_seen_by_an_open_loop_only() {
    let _machine = alone();
    let url = format!("http://{}/", stalling());
    let p99 = |args: &[&str]| {
        let fixed = ["-q", "-d", "10s", "-w", "0s", "--json", "-", url.as_str()];
        let (code, text, errors) = run(program(), &[&["bench"], args, &fixed].concat()).expect("runs");
        let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        // Where the machine has no time left, that is said; the stop is seen all the same.
        assert!(code == 0 || report["client_limited"] == true, "{code} {errors} {text}");
        report["latency_us"]["p99"].as_f64().expect("p99") / 1e3
    };
    // One after the other, so that they do not share a CPU; each meets one stop.
    let (closed, open) = (p99(&["-c", "4"]), p99(&["-c", "8", "-r", "200"]));
    assert!(closed < 200.0 && (500.0..1500.0).contains(&open), "{closed} {open}");
    let ab = ["-q", "-k", "-t", "10", "-n", "10000000", "-c", "4", url.as_str()];
    let Some((_, text, _)) = run("ab", &ab) else { return eprintln!("skipped: ab is not installed") };
    let ranks = text.lines().filter_map(|l| l.trim().strip_prefix("99%"));
    let theirs: Vec<u64> = ranks.filter_map(|l| l.trim().parse().ok()).collect();
    assert!(theirs.len() == 1 && theirs[0] < 200, "{text}");

    let wrk = ["-t1", "-c4", "-d10s", "-T1s", "--latency", url.as_str()];
    let Some((_, text, _)) = run("wrk", &wrk) else { return eprintln!("skipped: wrk is not installed") };
    let p99 = text.lines().find_map(|l| l.trim().strip_prefix("99%")).expect("99%").trim();
    let millis = match p99.strip_suffix("us") {
        Some(us) => us.parse::<f64>().expect("a number") / 1e3,
        None => p99.strip_suffix("ms").expect("below a second").parse().expect("a number"),
    };
    assert!(millis < 200.0 && text.contains("timeout 4"), "{text}");
}
