//! Earlier certificates for some names of an order. Such a one is presented until the order has its own, since names of servers change.

use crate::settings::Order;
use crate::state_dir::StateDir;
use crate::x509;
use forebay_net::tls::certified::certified;
use forebay_net::tls::pem;
use rustls::SignatureAlgorithm;
use rustls::sign::CertifiedKey;

/// Certificate with the number of names that it is for.
struct Candidate {
    made: CertifiedKey,
    names: usize,
    from: i64,
    until: i64,
}

/// Returns the certificate in a directory that is for most names of an order, has a key of its kind and has not expired.
pub(crate) fn find(order: &Order, state: &StateDir, now: i64) -> Option<CertifiedKey> {
    let candidates = state.orders().into_iter().filter_map(|file| read(order, state, &file));
    let valid = candidates.filter(|c| c.names > 0 && (c.from..c.until).contains(&now));
    valid.max_by_key(|c| (c.names, c.until)).map(|c| c.made)
}

fn read(order: &Order, state: &StateDir, file: &str) -> Option<Candidate> {
    let files = state.certificate(file).ok().flatten()?;
    let made = certified(("acme", &files.chain), ("acme", &files.key), &[]).ok()?;
    let is_rsa = made.key.algorithm() == SignatureAlgorithm::RSA;
    let first =
        pem::certificates(&files.chain).into_iter().next().filter(|_| is_rsa == order.key.is_rsa())?;
    let names = order.identifiers.iter().filter(|i| x509::covers(&first, std::slice::from_ref(i))).count();
    let leaf = x509::leaf(&first)?;
    Some(Candidate { made, names, from: leaf.from, until: leaf.until })
}
