//! Sessions whose bytes pass between the client and a server. No task serves them. Hot path.

use crate::session::Session;
use crate::thread::{PAIR, Thread};
use forebay_conf::error::Level;
use forebay_core::upstream::balance::Timed;
use forebay_core::upstream::conn::Conn;
use forebay_core::upstream::lease::Lease;
use forebay_net::relay::{Call, Ended, Owner, Pair, Pairs, Rules, Side};
use forebay_net::wire::Wire;
use forebay_sys::errno::errno_text;

/// Connection to a server, ready for the bytes of the client.
#[derive(Debug)]
pub(crate) struct Connected {
    /// Place at the server.
    pub lease: Lease,
    /// The connection.
    pub conn: Conn,
    /// Rules by which bytes pass.
    pub rules: Rules,
    /// PROXY protocol header in front of the first datagram; empty over TCP, where it has been sent.
    pub header: Vec<u8>,
}

/// Session that is passed on, with its connection to a server.
pub(crate) struct Passing {
    session: Box<Session>,
    lease: Lease,
    conn: Conn,
}

/// Sessions of a thread that are passed on.
pub(crate) type Sessions = Pairs<Passing>;

/// Creates the table of a thread.
pub(crate) fn sessions(thread: &forebay_core::thread::Thread, front: u8) -> Sessions {
    Pairs::new(thread.io.clone(), front, PAIR)
}

/// Passes a session on until one side ends.
pub(crate) fn begin(thread: &Thread, mut session: Box<Session>, connected: Connected) {
    let Connected { lease, conn, rules, .. } = connected;
    let early = std::mem::take(&mut session.early);
    let pair = Pair::new(&thread.io, early, Vec::new());
    thread.passing.add(pair, rules, Passing { session, lease, conn });
}

impl Owner for Passing {
    fn wires(&mut self) -> (&mut Wire, &mut Wire) {
        (&mut self.session.wire, self.conn.wire_mut())
    }

    fn answered(&mut self) {
        self.lease.reached(Timed::Header);
    }

    fn is_revoked(&self) -> bool {
        self.lease.is_revoked()
    }

    fn over(self, pair: Pair, ended: Ended) {
        let Passing { session: mut s, lease, conn } = self;
        s.received = pair.received_from(Side::Client);
        s.sent += pair.passed_from(Side::Server);
        let now = s.thread.io.poller.now();
        if let Some(attempt) = s.upstream.as_mut().and_then(|u| u.present()) {
            let figures = attempt.relayed(&pair, now);
            lease.count(&figures, now);
        }
        // Before the line in the log, which may be read at once: the session is no longer active then.
        drop((lease, conn));
        log_end(&s, ended);
        s.end(200);
    }
}

fn log_end(s: &Session, ended: Ended) {
    let (side, failed) = match ended {
        Ended::TimedOut(_) | Ended::Idle => {
            s.log(Level::Info, "connection timed out (110: Connection timed out) while proxying connection");
            return;
        }
        Ended::CutOff => {
            s.log(Level::Info, "shutdown timeout while proxying connection");
            return;
        }
        Ended::Revoked => {
            s.log(Level::Info, "the server was removed from its group while proxying connection");
            return;
        }
        Ended::Closed(side) => (side, None),
        Ended::Failed(side, call, error) => (side, Some((call, error))),
    };
    let (name, level) = match side {
        Side::Client => ("client", Level::Info),
        Side::Server => ("upstream", Level::Error),
    };
    if let Some((call, error)) = failed {
        let doing = match call {
            Call::Recv => "reading from",
            Call::Send => "sending to",
        };
        let (call, error) = (call.name(), errno_text(error));
        s.log(level, &format!("{call} failed {error} while proxying and {doing} {name}"));
    }
    if s.logs_connections() {
        s.log_bare(Level::Info, &format!("{name} disconnected{}", s.traffic()));
    }
}
