//! Certificates for tests, made by `openssl`.

use super::pem;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::process::Command;

/// Options of a key of the curve P-256.
pub(crate) const P256: &str = "ec -pkeyopt ec_paramgen_curve:P-256";

/// Makes a certificate of its own for the name `h`, and its key. Returns both in PEM. `key`: options of the key, `more`: others. `None`:
/// openssl is missing.
pub(crate) fn in_pem(key: &str, more: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let dir = tempfile::tempdir().unwrap();
    let args = format!("req -x509 -newkey {key} -nodes -keyout key -out crt -days 9 -subj /CN=h {more}");
    let done = Command::new("openssl").args(args.split_whitespace()).current_dir(dir.path()).output();
    let Ok(done) = done else {
        assert!(std::env::var_os("CI").is_none(), "openssl is missing");
        println!("skipped: openssl is missing");
        return None;
    };
    assert!(done.status.success(), "{args}: {}", String::from_utf8_lossy(&done.stderr));
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    Some((read("crt"), read("key")))
}

/// Makes the same and reads it.
pub(crate) fn certificate(more: &str) -> Option<(CertificateDer<'static>, PrivateKeyDer<'static>)> {
    let (crt, key) = in_pem(P256, more)?;
    Some((pem::certificates(&crt).remove(0), pem::private_key(&key, &[]).ok().unwrap()))
}
