//! The connection of a protocol that was switched to, or of a tunnel: its bytes are passed on as they are (RFC 9110, sections
//! 7.8 and 9.3.6). Hot path.

use crate::request::Request;
use forebay_conf::error::Level;
use forebay_core::upstream::conn::Conn;
use forebay_net::relay::{Ended, Pair, Rules, Side, Timeouts};
use forebay_sys::errno::errno_text;
use std::time::Duration;

/// Connection to an upstream whose bytes are passed on as they are.
#[derive(Debug)]
pub(crate) struct Switched {
    /// Bytes received after the head.
    pub early: Vec<u8>,
    /// Times of the upstream.
    pub timeouts: Timeouts,
}

/// Bytes that have been passed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relayed {
    /// Cause of the end.
    pub ended: Ended,
    /// Bytes of the client that the upstream has taken.
    pub from_client: u64,
    /// Bytes of the upstream that the client has taken.
    pub from_server: u64,
}

impl Switched {
    /// Prepares the relay between the client of a request and an upstream.
    pub(crate) fn pair(self, req: &Request, conn: &Conn) -> (Pair, Rules) {
        conn.hurry();
        // The bytes in between are the request's body, which has been passed on as such.
        let early = req.head.buf.get(req.body.consumed(req.head.len)..).unwrap_or_default().to_vec();
        // A client may be silent, but neither side may refuse what it is sent.
        let send = req.own_location().settings.core.send_timeout.0;
        let client = Timeouts { read: Duration::MAX, send };
        let rules = Rules { client, server: self.timeouts, ..Rules::default() };
        (Pair::new(&req.thread.io, early, self.early), rules)
    }

    /// Passes bytes between the client and an upstream until one of them ends.
    pub(super) async fn relay(self, req: &mut Request, conn: &mut Conn) {
        let thread = req.thread.clone();
        let (mut pair, rules) = self.pair(req, conn);
        let ended = pair.run(&thread.io, &mut req.conn.wire, conn.wire_mut(), &rules).await;
        let (from_client, from_server) = (pair.passed_from(Side::Client), pair.passed_from(Side::Server));
        let log = |req: &mut Request, level, text: &str| req.log(level, text);
        relayed(req, Relayed { ended, from_client, from_server }, log);
    }
}

/// Counts the bytes of a relay that is over. Those of the client are not part of its request (nginx: $request_length). Calls `log`
/// with a line if the relay has ended by a timeout or an error.
pub(crate) fn relayed(req: &mut Request, relayed: Relayed, log: impl FnOnce(&mut Request, Level, &str)) {
    if let Some((level, what)) = failure(relayed.ended) {
        log(req, level, &format!("{what} while proxying upgraded connection"));
    }
    req.sent += relayed.from_server;
    if let Some(a) = req.modules.upstream.current() {
        a.sent += relayed.from_client;
        a.received += relayed.from_server;
    }
}

/// Returns the level and the words for an end that is none by a side's own will.
fn failure(ended: Ended) -> Option<(Level, String)> {
    match ended {
        Ended::TimedOut(side) => {
            let name = match side {
                Side::Client => "client",
                Side::Server => "upstream",
            };
            Some((Level::Info, format!("{name} timed out (110: Connection timed out)")))
        }
        Ended::Failed(side, call, e) => {
            let level = match side {
                Side::Client => Level::Info,
                Side::Server => Level::Error,
            };
            Some((level, format!("{} failed {}", call.name(), errno_text(e))))
        }
        Ended::Closed(_) | Ended::Idle | Ended::CutOff => None,
    }
}
