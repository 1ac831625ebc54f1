//! Any datagram to the name server for ACME challenges: it is answered or not, and an answer is neither long nor a query.
#![no_main]

use forebay_acme::dns::{DnsTransport, Served, answer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for transport in [DnsTransport::Udp, DnsTransport::Tcp] {
        let find = |name: &[u8]| {
            assert!(name.len() <= 255);
            let known = name.first().is_none_or(|b| b % 2 == 0);
            known.then(|| Served { values: vec!["x".repeat(name.len()); name.len() % 8], ttl: 60 })
        };
        if let Some(a) = answer(data, transport, find) {
            assert!(a.len() >= 12 && a[2] & 0x80 != 0 && a[..2] == data[..2]);
            assert!(transport == DnsTransport::Tcp || a.len() <= 1232);
        }
    }
});
