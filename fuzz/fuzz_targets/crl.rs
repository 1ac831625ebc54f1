//! Any bytes as a revocation list: with it no certificate passes, since nobody signed it.
#![no_main]

use forebay_net::tls::crl;
use forebay_net::tls::verify::{Purpose, Trust};
use libfuzzer_sys::fuzz_target;

/// A certificate that signed itself.
const CERT: &[u8] = include_bytes!("../seeds/ocsp/cert.der");

fuzz_target!(|data: &[u8]| {
    let _ = crl::is_list(data);
    let cert = vec![CERT.to_vec().into()];
    let trust = Trust::new(cert.clone(), Vec::new(), vec![data.to_vec()], 9);
    // Only what the key of the seed has signed may pass, and that key is gone.
    assert!(trust.verify(&cert, Purpose::Client, 1_790_000_000).is_err());
});
