//! Any answer of an OCSP responder: it is refused, since nobody signed it, and never more than that.
#![no_main]

use forebay_net::tls::ocsp_message::{Signers, Subject, check, is_response};
use libfuzzer_sys::fuzz_target;

/// A certificate that signed itself.
const CERT: &[u8] = include_bytes!("../seeds/ocsp/cert.der");

fuzz_target!(|data: &[u8]| {
    let subject = Subject::of(CERT, CERT);
    let _ = is_response(data);
    // Only what the key of the seed has signed may pass, and that key is gone.
    let _ = check(data, &subject, Signers(&[]), 1_790_000_000);
});
