//! The connection after a switch of protocols, or of a tunnel: its bytes are passed on as they are (RFC 9110, sections
//! 7.8 and 9.3.6). Hot path.

use forebay_core::upstream::conn::Conn;
use forebay_core::upstream::lease::Lease;
use forebay_net::relay::{Pair, Rules, Side, Timeouts};
use forebay_server::connection::switched::relayed;
use forebay_server::request::Request;
use std::time::Duration;

/// Connection to an upstream whose bytes are passed on as they are.
#[derive(Debug)]
pub struct Switched {
    /// Bytes received after the head.
    pub early: Vec<u8>,
    /// Times of the upstream.
    pub timeouts: Timeouts,
}

impl Switched {
    /// Prepares the relay between the client of a request and an upstream.
    pub fn pair(self, req: &Request, conn: &Conn) -> (Pair, Rules) {
        // The bytes are often short messages, which Nagle's algorithm would delay.
        conn.hurry();
        // Only bytes after the body of the request are left: the body itself has been passed on before.
        let early = req.head.buf.get(req.body.consumed(req.head.len)..).unwrap_or_default().to_vec();
        // A client may be silent for any time, but neither side may refuse to take bytes for longer than its timeout.
        let send = req.own_location().settings.core.send_timeout.0;
        let client = Timeouts { read: Duration::MAX, send };
        let rules = Rules { client, server: self.timeouts, ..Rules::default() };
        (Pair::new(&req.thread.io, early, self.early), rules)
    }

    /// Passes bytes between the client and an upstream until one of them ends, or the upstream has been removed.
    pub(super) async fn relay(self, req: &mut Request, conn: &mut Conn, lease: &Lease) {
        let thread = req.thread.clone();
        let (mut pair, rules) = self.pair(req, conn);
        let wires = (&mut req.conn.wire, conn.wire_mut());
        let ended = pair.run(&thread.io, wires, &rules, || lease.is_revoked()).await;
        let (from_client, from_server) = (pair.passed_from(Side::Client), pair.passed_from(Side::Server));
        let log = |req: &mut Request, level, text: &str| req.log(level, text);
        relayed(req, ended, from_server, log);
        count(req, from_client, from_server);
    }
}

/// Counts the bytes of a relay that is over for its server.
pub(super) fn count(req: &mut Request, from_client: u64, from_server: u64) {
    if let Some(a) = req.modules.upstream.current() {
        a.sent += from_client;
        a.received += from_server;
    }
}
