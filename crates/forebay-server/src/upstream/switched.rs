//! The connection of a protocol that was switched to, or of a tunnel: its bytes are passed on as they are (RFC 9110, sections
//! 7.8 and 9.3.6). Hot path.

use crate::request::Request;
use forebay_conf::error::Level;
use forebay_core::upstream::conn::Conn;
use forebay_net::relay::{End, Ended, Side, Timeouts, relay};
use std::time::Duration;

/// Connection to an upstream whose bytes are passed on as they are.
#[derive(Debug)]
pub(super) struct Switched {
    /// Bytes received after the head.
    pub early: Vec<u8>,
    /// Times of the upstream.
    pub timeouts: Timeouts,
}

impl Switched {
    /// Passes bytes between the client and an upstream until one of them ends.
    pub(super) async fn relay(self, req: &mut Request, conn: &mut Conn) {
        conn.hurry();
        let thread = req.thread.clone();
        // The bytes in between are the request's body, which has been passed on as such.
        let early = req.head.buf.get(req.body.consumed(req.head.len)..).unwrap_or_default().to_vec();
        // A client may be silent, but neither side may refuse what it is sent.
        let send = req.http().location(req).settings.core.send_timeout.0;
        let timeouts = Timeouts { read: Duration::MAX, send };
        let client = End { wire: &mut req.conn.wire, early, timeouts };
        let server = End { wire: conn.wire_mut(), early: self.early, timeouts: self.timeouts };
        let relayed = relay(&thread.io, client, server).await;
        if let Ended::TimedOut(side) = relayed.ended {
            let side = match side {
                Side::Client => "client",
                Side::Server => "upstream",
            };
            let text =
                format!("{side} timed out (110: Connection timed out) while proxying upgraded connection");
            req.log(Level::Info, &text);
        }
        req.sent += relayed.from_server;
        req.received += relayed.from_client;
        if let Some(a) = req.modules.upstream.current() {
            a.sent += relayed.from_client;
            a.received += relayed.from_server;
        }
    }
}
