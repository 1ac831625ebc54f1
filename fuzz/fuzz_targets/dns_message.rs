//! Any datagram of a name server: it is read or refused, and what is read has bounds.
#![no_main]

use forebay_net::resolver::message::{Data, Kind, answers, parse, query};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = answers(data, 0, b"a.example", Kind::A);
    if let Some(r) = parse(data) {
        assert!(r.records.len() <= 256);
        for record in &r.records {
            assert!(record.owner.len() <= 255);
            if let Data::Cname(name) | Data::Srv { target: name, .. } = &record.data {
                assert!(name.len() <= 255);
            }
        }
    }
    if let Some(q) = query(7, data, Kind::Srv) {
        assert!(q.len() <= data.len() + 18);
    }
});
