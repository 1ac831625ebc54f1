//! After `101 (Switching Protocols)`: bytes are passed both ways until one side ends (RFC 9110, section 7.8).
//! One buffer a direction; nothing more is read before it has been written.

use super::conn::Conn;
use crate::reactor::Token;
use crate::request::Request;
use crate::thread::Thread;
use forebay_conf::error::Level;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Bytes read at once.
const READ: usize = 16 * 1024;

/// One end of the tunnel.
#[derive(Clone, Copy)]
struct End(Token);

impl End {
    fn call<R>(self, t: &Thread, f: impl FnOnce(&OwnedFd) -> Result<R, Errno>) -> Result<R, Errno> {
        t.reactor.with_fd(self.0, f).unwrap_or(Err(Errno::BADF))
    }
}

/// One direction.
struct Way {
    from: End,
    to: End,
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
    fn new(from: Token, to: Token, buf: Vec<u8>) -> Way {
        Way { from: End(from), to: End(to), buf, at: 0, ended: false, blocked: false, passed: 0 }
    }

    fn step(&mut self, t: &Thread) -> Step {
        if self.at >= self.buf.len() {
            self.buf.clear();
            self.at = 0;
            if self.ended {
                return Step::Over;
            }
            if !t.reactor.is_readable(self.from.0) {
                return Step::Idle;
            }
            self.buf.reserve(READ);
            let buf = &mut self.buf;
            let got = self
                .from
                .call(t, |fd| rustix::net::recv(fd, rustix::buffer::spare_capacity(buf), RecvFlags::empty()));
            return match got {
                Ok((0, _)) => {
                    self.ended = true;
                    Step::Progress
                }
                Ok(_) | Err(Errno::INTR) => Step::Progress,
                Err(Errno::AGAIN) => {
                    t.reactor.drained(self.from.0);
                    Step::Idle
                }
                Err(_) => Step::Over,
            };
        }
        let rest = self.buf.get(self.at..).unwrap_or_default();
        match self.to.call(t, |fd| rustix::net::send(fd, rest, SendFlags::NOSIGNAL)) {
            Ok(n) => {
                self.at += n;
                self.passed += n as u64;
                Step::Progress
            }
            Err(Errno::INTR) => Step::Progress,
            Err(Errno::AGAIN) => {
                self.blocked = true;
                Step::Idle
            }
            Err(_) => Step::Over,
        }
    }

    fn ready(&mut self, t: &Thread, cx: &mut std::task::Context<'_>) -> bool {
        if self.at >= self.buf.len() {
            return t.reactor.poll_readable(self.from.0, false, cx).is_ready();
        }
        let clear = std::mem::take(&mut self.blocked);
        t.reactor.poll_writable(self.to.0, clear, cx).is_ready()
    }
}

/// Passes bytes until one side ends or both are silent for `timeout`. `early`: what the upstream sent behind
/// its head.
pub async fn relay(thread: &Rc<Thread>, req: &mut Request, conn: &Conn, early: Vec<u8>, timeout: Duration) {
    let from_client = req.head.buf.get(req.head.len..).unwrap_or_default().to_vec();
    let mut up = Way::new(req.token, conn.token(), from_client);
    let mut down = Way::new(conn.token(), req.token, early);
    loop {
        let (a, b) = (up.step(thread), down.step(thread));
        if a == Step::Over || b == Step::Over {
            break;
        }
        if a == Step::Progress || b == Step::Progress {
            continue;
        }
        let deadline = Instant::now() + timeout;
        let ready = std::future::poll_fn(|cx| {
            let (a, b) = (up.ready(thread, cx), down.ready(thread, cx));
            if a || b { Poll::Ready(()) } else { Poll::Pending }
        });
        if thread.reactor.deadline(deadline, ready).await.is_none() {
            req.log(
                Level::Error,
                "upstream timed out (110: Connection timed out) while proxying upgraded connection",
            );
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
