//! Any bytes as a session ticket: none opens that was not sealed here, and what was opens as it was.
#![no_main]

use forebay_net::tls::sessions::{TicketKey, Tickets, context};
use libfuzzer_sys::fuzz_target;
use rustls::server::ProducesTickets;
use std::time::Duration;

fn tickets(key: u8, server: &[u8]) -> Tickets {
    let keys = vec![TicketKey::new(&[key; 80]).expect("a key")];
    Tickets { keys, context: context([server].into_iter()), timeout: Duration::from_secs(300) }
}

fuzz_target!(|data: &[u8]| {
    let own = tickets(1, b"server");
    assert_eq!(own.decrypt(data), None);
    // As if it were sealed with the key of this server.
    let named = [&[1; 16][..], data].concat();
    assert_eq!(own.decrypt(&named), None);
    let _ = TicketKey::new(data);
    let Some(ticket) = own.encrypt(data) else { return };
    assert_eq!(own.decrypt(&ticket).as_deref(), Some(data));
    assert_eq!(tickets(1, b"another server").decrypt(&ticket), None);
    assert_eq!(tickets(2, b"server").decrypt(&ticket), None);
    let mut changed = ticket.clone();
    let at = data.len() % changed.len();
    changed[at] ^= 1;
    assert_eq!(own.decrypt(&changed), None);
});
