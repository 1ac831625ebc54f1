//! Any text as PEM: blocks, certificates, keys with a password, and names and constraints of certificates.
#![no_main]

use forebay_net::tls::pem::{self, Blocks};
use forebay_net::tls::verify::{self, Purpose, Trust};
use forebay_net::tls::{dn, rsa_pss};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let blocks: Vec<_> = Blocks::new(data).collect();
    // Nothing comes behind an error.
    assert!(blocks.iter().rev().skip(1).all(Result::is_ok));
    assert!(pem::blocks(data).len() <= blocks.len());
    let lenient = pem::certificates(data);
    if let Ok(all) = pem::all_certificates(data) {
        assert_eq!(all, lenient);
        assert!(all.iter().all(|c| verify::public_key(c).is_some()));
        let trust = Trust::new(all.clone(), all.clone(), Vec::new(), 9);
        for purpose in [Purpose::Client, Purpose::Server, Purpose::Issuer] {
            let _ = trust.verify(&all, purpose, 1_790_000_000);
        }
    }
    for cert in lenient {
        let _ = verify::names(&cert);
        let _ = verify::is_for_host(&cert, "example.com");
        let _ = verify::validity(&cert);
    }
    // A form is its own form only by chance, but equal names have equal forms.
    assert_eq!(dn::canonical(data), dn::canonical(&data.to_vec()));
    let passwords = pem::passwords(b"password\n");
    for passwords in [&[][..], &passwords] {
        if let Ok(key) = pem::private_key(data, passwords) {
            if rsa_pss::is_pss(&key) {
                let _ = rsa_pss::signing_key(&key, data);
            }
        }
    }
});
