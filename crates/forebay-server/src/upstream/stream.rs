//! The body of an upstream's response, pulled while it is sent to the client: memory is bounded by the
//! pieces, and a slow client slows the upstream. Hot path.

use super::conn::{For, Waited, Watch};
use super::exchange::Lease;
use crate::modules::static_file::errno_text;
use crate::request::Request;
use forebay_conf::error::Level;
use forebay_http::h1::chunked::{Chunked, Step};
use forebay_http::request::Framing;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// The rest of a response.
#[derive(Debug)]
pub struct Body {
    lease: Option<Lease>,
    framing: Framing,
    /// Bytes to come, where the length is known.
    left: u64,
    chunked: Chunked,
    /// Received and not decoded yet.
    raw: Vec<u8>,
    reusable: bool,
    read_timeout: Duration,
    ignore_abort: bool,
    /// `proxy_pass_trailers`.
    pass_trailers: bool,
    /// The protocol was switched: what came behind the head.
    switched: Option<Vec<u8>>,
}

/// What a pull gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// Bytes were appended, more may follow.
    Data,
    /// Nothing there for now.
    Blocked,
    /// The body is over; bytes may have been appended.
    End,
    /// It breaks off.
    Failed,
}

/// Room for one read, bytes.
const READ: usize = 32 * 1024;

impl Body {
    /// A body of which nothing has been decoded. `reusable`: the connection may serve another request.
    pub fn new(lease: Lease, framing: Framing, reusable: bool, read_timeout: Duration) -> Body {
        let left = match framing {
            Framing::Length(n) => n,
            _ => 0,
        };
        Body {
            lease: Some(lease),
            framing,
            left,
            chunked: Chunked::default(),
            raw: Vec::new(),
            reusable: reusable && framing != Framing::Stream,
            read_timeout,
            ignore_abort: false,
            pass_trailers: false,
            switched: None,
        }
    }

    /// Whether the client's leaving is of no interest, and whether trailers are passed on.
    pub fn set(&mut self, ignore_abort: bool, pass_trailers: bool) {
        self.ignore_abort = ignore_abort;
        self.pass_trailers = pass_trailers;
    }

    /// The connection of a protocol that was switched to.
    pub fn switched(lease: Lease, early: Vec<u8>, read_timeout: Duration) -> Body {
        Body { switched: Some(early), ..Body::new(lease, Framing::Stream, false, read_timeout) }
    }

    /// Passes bytes both ways where the protocol was switched. `false`: it was not.
    pub async fn relay(&mut self, req: &mut Request) -> bool {
        let Some(early) = self.switched.take() else { return false };
        let thread = req.thread.clone();
        if let Some(conn) = self.lease.as_ref().and_then(|l| l.conn.as_ref()) {
            super::tunnel::relay(&thread, req, conn, early, self.read_timeout).await;
        }
        true
    }

    /// Takes bytes that have been received; appends what is content.
    pub fn feed(&mut self, req: &mut Request, input: &[u8], out: &mut Vec<u8>) -> Pulled {
        let before = out.len();
        let done = match self.framing {
            Framing::None => {
                self.reusable &= input.is_empty();
                true
            }
            Framing::Length(_) => {
                let n = self.left.min(input.len() as u64) as usize;
                out.extend_from_slice(input.get(..n).unwrap_or_default());
                self.left -= n as u64;
                if n < input.len() {
                    self.reusable = false;
                    req.log(
                        Level::Warn,
                        "upstream sent more data than specified in \"Content-Length\" header while reading \
                         upstream",
                    );
                }
                self.left == 0
            }
            Framing::Stream => {
                out.extend_from_slice(input);
                false
            }
            Framing::Chunked => match self.dechunk(input, out) {
                Ok(done) => done,
                Err(()) => {
                    req.log(Level::Error, "upstream sent invalid chunked response while reading upstream");
                    return Pulled::Failed;
                }
            },
        };
        if let Some(a) = req.modules.upstream.current() {
            a.length += (out.len() - before) as u64;
        }
        if done {
            self.finish(req);
            return Pulled::End;
        }
        if out.len() > before { Pulled::Data } else { Pulled::Blocked }
    }

    fn dechunk(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<bool, ()> {
        let mut at = 0;
        loop {
            let rest = input.get(at..).unwrap_or_default();
            match self.chunked.decode(rest) {
                Ok(Step::Data { start, end }) => {
                    out.extend_from_slice(rest.get(start..end).unwrap_or_default());
                    at += end;
                }
                Ok(Step::More) => return Ok(false),
                Ok(Step::End { consumed }) => {
                    self.reusable &= at + consumed == input.len();
                    return Ok(true);
                }
                Err(_) => return Err(()),
            }
        }
    }

    /// Appends what has come, without waiting.
    pub fn pull(&mut self, req: &mut Request, out: &mut Vec<u8>) -> Pulled {
        if self.lease.is_none() {
            return Pulled::End;
        }
        let mut raw = std::mem::take(&mut self.raw);
        raw.clear();
        let got = match self.lease.as_ref().and_then(|l| l.conn.as_ref()) {
            Some(c) if c.readable() => c.read(&mut raw, READ),
            Some(_) => Err(Errno::AGAIN),
            None => Err(Errno::BADF),
        };
        let pulled = match got {
            Ok(0) => self.at_end(req),
            Ok(n) => {
                if let Some(a) = req.modules.upstream.current() {
                    a.received += n as u64;
                }
                self.feed(req, &raw, out)
            }
            Err(Errno::AGAIN) => Pulled::Blocked,
            Err(e) => {
                let text = format!("recv() failed {} while reading upstream", errno_text(e));
                self.fail(req, Level::Error, &text)
            }
        };
        self.raw = raw;
        pulled
    }

    fn at_end(&mut self, req: &mut Request) -> Pulled {
        if self.framing == Framing::Stream {
            self.reusable = false;
            self.finish(req);
            return Pulled::End;
        }
        self.fail(req, Level::Error, "upstream prematurely closed connection while reading upstream")
    }

    fn fail(&mut self, req: &mut Request, level: Level, text: &str) -> Pulled {
        req.log(level, text);
        self.reusable = false;
        self.finish(req);
        Pulled::Failed
    }

    /// Waits until there may be more. `false`: too long, or the client is gone.
    pub async fn wait(&mut self, req: &mut Request) -> bool {
        let mut watch = if self.ignore_abort { Watch::Nobody } else { Watch::new(&req.conn.wire) };
        let deadline = Instant::now() + self.read_timeout;
        let waited = match self.lease.as_ref().and_then(|l| l.conn.as_ref()) {
            Some(c) => c.wait(For::Read, deadline, &mut watch).await,
            None => Waited::Ready,
        };
        match waited {
            Waited::Ready => true,
            Waited::Timeout => {
                let text = "upstream timed out (110: Connection timed out) while reading upstream";
                self.fail(req, Level::Error, text);
                false
            }
            Waited::ClientGone => {
                let text = "epoll_wait() reported that client prematurely closed connection, so upstream \
                            connection is closed too while reading upstream";
                self.fail(req, Level::Info, text);
                false
            }
        }
    }

    /// The response is over: times are taken, the connection is kept or closed.
    fn finish(&mut self, req: &mut Request) {
        let Some(lease) = self.lease.take() else { return };
        if let Some(a) = req.modules.upstream.current() {
            a.response = Some(a.started.elapsed());
        }
        let u = &mut req.modules.upstream;
        for (_, name, value) in self.chunked.trailers() {
            u.trailers.push(name, value);
            if self.pass_trailers {
                req.resp.trailers.push(name, value);
            }
        }
        lease.ended(req);
        if self.reusable {
            lease.keep();
        }
    }

    /// Ends a response whose rest nobody reads.
    pub fn abandon(&mut self, req: &mut Request) {
        self.reusable = false;
        self.finish(req);
    }
}
