//! After `101 (Switching Protocols)`: bytes are passed both ways until one side ends (RFC 9110, section 7.8).
//! One buffer a direction; nothing more is read before it has been written.

use super::conn::Conn;
use crate::request::Request;
use crate::thread::Thread;
use forebay_conf::error::Level;
use forebay_net::io::Io;
use forebay_net::wire::{Then, Wire};
use rustix::io::Errno;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Bytes read at once.
const READ: usize = 16 * 1024;

/// How long a tunnel waits when nothing passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// For the upstream to send something (nginx: proxy_read_timeout).
    pub read: Duration,
    /// For the upstream to take what it is sent (nginx: proxy_send_timeout).
    pub send: Duration,
}

/// One direction.
struct Way {
    buf: Vec<u8>,
    /// Written of `buf`.
    at: usize,
    ended: bool,
    blocked: bool,
    passed: u64,
}

/// What a step came to.
#[derive(PartialEq, Eq)]
enum Step {
    Progress,
    Idle,
    Over,
}

impl Way {
    fn new(buf: Vec<u8>) -> Way {
        Way { buf, at: 0, ended: false, blocked: false, passed: 0 }
    }

    fn step(&mut self, io: &Io, from: &mut Wire, to: &mut Wire) -> Step {
        if !self.is_writing(to) {
            self.buf.clear();
            self.at = 0;
            if self.ended {
                return Step::Over;
            }
            if !from.is_readable(io) {
                return Step::Idle;
            }
            self.buf.reserve(READ);
            return match from.read(io, &mut self.buf) {
                Ok(0) => {
                    self.ended = true;
                    Step::Progress
                }
                Ok(_) => Step::Progress,
                Err(Errno::AGAIN) => Step::Idle,
                Err(_) => Step::Over,
            };
        }
        let rest = self.buf.get(self.at..).unwrap_or_default();
        match to.send(io, rest, Then::Nothing) {
            Ok(sent) if sent.bytes > 0 || !sent.full => {
                self.at += sent.bytes;
                self.passed += sent.bytes as u64;
                Step::Progress
            }
            Ok(_) => {
                self.blocked = true;
                Step::Idle
            }
            Err(Errno::AGAIN) => {
                self.blocked = true;
                Step::Idle
            }
            Err(_) => Step::Over,
        }
    }

    /// Whether the receiver is waited for, and not the sender.
    fn is_writing(&self, to: &Wire) -> bool {
        self.at < self.buf.len() || to.has_unsent()
    }

    fn ready(&mut self, io: &Io, from: &Wire, to: &Wire, cx: &mut std::task::Context<'_>) -> bool {
        if !self.is_writing(to) {
            return from.poll_readable(io, false, cx).is_ready();
        }
        let clear = std::mem::take(&mut self.blocked);
        to.poll_writable(io, clear, cx).is_ready()
    }
}

/// Who is waited for when nothing passes, and how long. A client may be silent, but neither side may refuse what it is sent,
/// and the upstream is to say something unless the client takes nothing.
fn patience(req: &Request, conn: &Conn, (up, down): (&Way, &Way), times: Times) -> (Duration, &'static str) {
    let upstream = if up.is_writing(&conn.wire()) { times.send } else { Duration::MAX };
    if down.is_writing(&req.conn.wire) {
        let client = req.http().location(req).settings.core.send_timeout.0;
        return if upstream < client { (upstream, "upstream") } else { (client, "client") };
    }
    (upstream.min(times.read), "upstream")
}

/// Passes bytes until one side ends or one is waited for too long. `early`: what the upstream sent behind its head.
pub async fn relay(thread: &Rc<Thread>, req: &mut Request, conn: &Conn, early: Vec<u8>, times: Times) {
    // What stands between is the request's body, and has been passed on as such.
    let from_client = req.head.buf.get(req.body.consumed(req.head.len)..).unwrap_or_default().to_vec();
    let mut up = Way::new(from_client);
    let mut down = Way::new(early);
    conn.hurry();
    loop {
        let (a, b) = {
            let (client, upstream) = (&mut req.conn.wire, &mut *conn.wire());
            (up.step(&thread.io, client, upstream), down.step(&thread.io, upstream, client))
        };
        if a == Step::Over || b == Step::Over {
            break;
        }
        if a == Step::Progress || b == Step::Progress {
            continue;
        }
        let (timeout, whose) = patience(req, conn, (&up, &down), times);
        let deadline = Instant::now() + timeout;
        let ready = std::future::poll_fn(|cx| {
            let (client, upstream) = (&req.conn.wire, &*conn.wire());
            let (a, b) =
                (up.ready(&thread.io, client, upstream, cx), down.ready(&thread.io, upstream, client, cx));
            if a || b { Poll::Ready(()) } else { Poll::Pending }
        });
        if thread.io.poller.deadline(deadline, ready).await.is_none() {
            let text =
                format!("{whose} timed out (110: Connection timed out) while proxying upgraded connection");
            req.log(Level::Info, &text);
            break;
        }
    }
    req.sent += down.passed;
    req.received += up.passed;
    if let Some(a) = req.modules.upstream.current() {
        a.sent += up.passed;
        a.received += down.passed;
    }
}
