//! Connections of HTTP/1 whose bytes are passed on as they are: tunnels, and protocols that were switched to (RFC 9110, sections
//! 7.8 and 9.3.6). No runner serves them, and their requests keep only what the log phase needs.
//!
//! The connection leaves its runner, and the relay ([`forebay_net::relay`]) becomes an entry of `Thread::relays`. A stream of HTTP/2
//! keeps its runner instead, and the runner waits in `Pair::run`.

use super::{Connection, Guard, Work};
use crate::request::rare::Rare;
use crate::request::states::States;
use crate::request::upstream::Attempt;
use crate::request::{Origin, Request};
use crate::response::streamed::{RelayContact, Streamed};
use crate::thread::{SWITCHED, Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_core::log::access::Target;
use forebay_core::vars::{Captures, Source, Stored, Template, VarId, VarStore};
use forebay_net::addr::Peer;
use forebay_net::reactor::{Job, Token};
use forebay_net::relay::{Ended, Owner, Pair, Pairs, Side};
use forebay_net::wire::Wire;
use forebay_sys::errno::errno_text;
use std::rc::Rc;
use std::time::Instant;

/// Relays of a thread.
pub type Relays = Pairs<Relaying>;

/// Creates the table of a thread.
pub fn relays(worker: &forebay_core::thread::Thread, front: u8) -> Relays {
    Pairs::new(worker.io.clone(), front, SWITCHED)
}

/// State of a request whose bytes are passed on.
#[derive(Debug)]
pub struct Suspended {
    conf: Rc<ThreadConfig>,
    conn: Connection,
    contact: Box<dyn RelayContact>,
    server: usize,
    location: usize,
    started: Instant,
    status: u16,
    sent: u64,
    sent_head: u64,
    received: u64,
    peer: Peer,
    remote: Vec<u8>,
    /// Values of the variables in the lines of the access logs, except the values that can still change.
    vars: VarStore,
    captures: Rare<Captures>,
    attempts: Vec<Attempt>,
    states: States,
    processing: Option<crate::counting::Processing>,
    /// End of a line of the error log; empty if no log takes it.
    description: Box<[u8]>,
}

/// Connection to a server, with the suspended request.
pub struct Relaying {
    thread: Rc<Thread>,
    token: Token,
    request: Box<Suspended>,
    upstream: forebay_core::upstream::conn::Conn,
}

/// A relay that is over.
#[derive(Debug)]
pub struct Over {
    request: Box<Suspended>,
    ended: Ended,
    from_client: u64,
    from_server: u64,
}

impl Owner for Relaying {
    fn wires(&mut self) -> (&mut Wire, &mut Wire) {
        (&mut self.request.conn.wire, self.upstream.wire_mut())
    }

    fn is_revoked(&self) -> bool {
        self.request.contact.is_revoked()
    }

    fn over(self, pair: Pair, ended: Ended) {
        let (from_client, from_server) = (pair.passed_from(Side::Client), pair.passed_from(Side::Server));
        let work = Work::Relayed(Box::new(Over { request: self.request, ended, from_client, from_server }));
        self.thread.start_work(Job { token: self.token, work });
    }
}

/// Returns `true` if the bytes of a response can be passed on without its request and a runner. This is not so for streams of HTTP/2, and
/// where something at the end needs the whole request.
pub fn can_suspend(req: &Request, source: &dyn Streamed) -> bool {
    let http = req.http();
    source.is_suspendable()
        && req.origin == Origin::Client
        && !req.conn.wire.is_multiplexed()
        // Hooks of the log phase may need all of the request, of which only a part is kept.
        && !http.location(req).plan.log.iter().any(|log| (log.concerns)(req))
}

/// Result of [`begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relay {
    /// The relay has the connection.
    Begun,
    /// The response begins no tunnel and no other protocol, or needs a runner.
    NotNeeded,
}

/// Passes the bytes of a request on if its response begins a tunnel or another protocol.
pub(super) fn begin(thread: &Rc<Thread>, req: &mut Request, guard: &mut Guard<'_>) -> Relay {
    let Some(source) = req.resp.source.take() else { return Relay::NotNeeded };
    if !source.is_suspendable() {
        req.resp.source = Some(source);
        return Relay::NotNeeded;
    }
    let Some(relay) = source.suspend(req) else { return Relay::NotNeeded };
    let request = Box::new(Suspended::new(req, relay.contact));
    // The connection stays open, and stays counted as one that is sending a response.
    guard.open = false;
    guard.state = None;
    let upstream = relay.upstream;
    let owner = Relaying { thread: thread.clone(), token: guard.token, request, upstream };
    thread.relays.add(relay.pair, relay.rules, owner);
    Relay::Begun
}

/// Ends a request whose bytes have been passed on.
pub(super) async fn end(thread: &Rc<Thread>, req: &mut Request, token: Token, over: Over) {
    let _guard = Guard { thread, token, open: true, state: Some(|c| &c.writing) };
    let Over { request, ended, from_client, from_server } = over;
    req.head.clear();
    let (contact, description) = request.restore(req);
    relayed(req, ended, from_server, |req, level, text| {
        if req.logs(level) {
            req.log_described(level, text, &description);
        }
    });
    contact.over(req, from_client, from_server);
    req.tally.complete = true;
    crate::response::respond::finish(req);
    super::h1::end(thread, req, false).await;
    req.without_head = false;
    drop(req.end_connection());
}

/// Counts the bytes of a relay that is over. The bytes of the client are left out, since they are no part of its request (nginx:
/// $request_length). Calls `log` with a line if the relay has ended by a timeout or an error.
pub fn relayed(
    req: &mut Request,
    ended: Ended,
    from_server: u64,
    log: impl FnOnce(&mut Request, Level, &str),
) {
    if let Some((level, what)) = failure(ended) {
        log(req, level, &format!("{what} while proxying upgraded connection"));
    }
    req.tally.sent += from_server;
}

/// Returns the level and the words for an end that neither side has asked for.
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
                // A client may leave at any time, so that its failures are no errors.
                Side::Client => Level::Info,
                Side::Server => Level::Error,
            };
            Some((level, format!("{} failed {}", call.name(), errno_text(e))))
        }
        Ended::Revoked => Some((Level::Error, "upstream server was removed from its group".to_owned())),
        Ended::Closed(_) | Ended::Idle | Ended::CutOff => None,
    }
}

impl Suspended {
    /// Takes what the log phase needs from a request.
    fn new(req: &mut Request, contact: Box<dyn RelayContact>) -> Suspended {
        keep_logged(req);
        // The line is written when the relay is over, so the end of this request must not write it.
        req.unlogged = false;
        let mut description = Vec::new();
        if req.logs(Level::Error) {
            req.describe(&mut description);
        }
        let mut attempts = std::mem::take(&mut req.modules.upstream.attempts);
        // A tunnel may stay open for days, so it keeps no spare memory.
        attempts.shrink_to_fit();
        let mut vars = std::mem::take(&mut req.vars);
        vars.shrink();
        Suspended {
            conf: req.conf.clone(),
            contact,
            server: req.server,
            location: req.location,
            started: req.tally.started,
            status: req.resp.status,
            sent: req.tally.sent,
            sent_head: req.tally.sent_head,
            received: req.tally.received,
            peer: req.peer,
            remote: req.remote.as_slice().to_vec(),
            vars,
            captures: std::mem::take(&mut req.captures),
            attempts,
            states: std::mem::take(&mut req.modules.states),
            processing: req.modules.processing.take(),
            description: description.into(),
            conn: req.end_connection(),
        }
    }

    /// Gives its state to a request without a head. Returns the server and the end of lines of the error log.
    fn restore(self, req: &mut Request) -> (Box<dyn RelayContact>, Box<[u8]>) {
        req.take_connection(self.conn);
        req.begin_request();
        // The log phase must not look for fields in a head that is gone.
        req.without_head = true;
        // HTTP has ended on this connection, so no further request can follow.
        req.ending.close();
        req.conf = self.conf;
        (req.server, req.location) = (self.server, self.location);
        req.tally.started = self.started;
        req.resp.status = self.status;
        (req.tally.sent, req.tally.sent_head, req.tally.received) =
            (self.sent, self.sent_head, self.received);
        req.peer = self.peer;
        req.remote = self.remote;
        req.vars = self.vars;
        req.captures = self.captures;
        req.modules.upstream.attempts = self.attempts;
        req.modules.states = self.states;
        req.modules.processing = self.processing;
        (self.contact, self.description)
    }
}

/// Built-in variables whose values change until the end of a request. They are evaluated at the end, without the head.
const LATE: &[&[u8]] = &[
    b"body_bytes_sent",
    b"bytes_sent",
    b"connection_time",
    b"connections_active",
    b"connections_reading",
    b"connections_waiting",
    b"connections_writing",
    b"msec",
    b"request_completion",
    b"request_length",
    b"request_time",
    b"tcpinfo_rcv_space",
    b"tcpinfo_rtt",
    b"tcpinfo_rttvar",
    b"tcpinfo_snd_cwnd",
    b"time_iso8601",
    b"time_iso8601_ms",
    b"time_local",
    b"upstream_bytes_received",
    b"upstream_bytes_sent",
    b"upstream_response_length",
    b"upstream_response_time",
];

/// Stores the values of the variables in the access logs of a request, except the values that can still change.
fn keep_logged(req: &mut Request) {
    let http = req.http();
    let Some(location) = http.level(req.server, req.location) else { return };
    for log in location.settings.log.access_log.0.iter() {
        let path = match &log.target {
            Target::Path(path) => Some(path),
            Target::File(_) | Target::Syslog(_) => None,
        };
        let format = http.log_formats.get(log.format).map(|f| &f.template);
        for id in [format, log.condition.as_ref(), path].into_iter().flatten().flat_map(Template::variables) {
            keep(req, id, 0);
        }
    }
}

/// Maximum nesting of variables.
const DEPTH: u8 = 100;

/// Stores the value of a variable, and the values from which it is computed.
fn keep(req: &mut Request, id: VarId, depth: u8) {
    let http = req.http();
    let Some(var) = http.vars.get(usize::from(id.0)) else { return };
    // Variables may be defined by each other in a circle, so the depth is bounded.
    if req.vars.get(id) != Stored::Empty || depth > DEPTH {
        return;
    }
    match &var.source {
        Source::Get(_) if LATE.contains(&&*var.name) => {}
        Source::Get(_) | Source::Prefix(..) => {
            let mut value = Vec::new();
            // The same error comes again when the line is written, and is reported then.
            if let Ok(found) = req.var(id, &mut value) {
                req.vars.store(id, found.then_some(&value));
            }
        }
        // The variables in it may still change, so it is computed at the end.
        Source::Computed(computed) => computed.variables().for_each(|id| keep(req, id, depth + 1)),
        Source::Stored | Source::Absent | Source::Unknown => {}
    }
}
