//! Bodies: the client's is read or thrown away, the response's is sent by writev or sendfile. Hot path.

use crate::file_cache::OpenFile;
use crate::reactor::Token;
use crate::request::Request;
use crate::response::Part;
use crate::thread::Thread;
use forebay_conf::error::Level;
use forebay_http::h1::chunked::{Chunked, Step};
use forebay_http::request::Framing;
use rustix::io::{Errno, IoSlice, ReadWriteFlags};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Reading state of a request's body.
#[derive(Debug, Default)]
pub struct RequestBody {
    framing: Framing,
    /// Bytes of a body with a length that are still to come.
    left: u64,
    chunked: Chunked,
    /// Offset in the head's buffer up to which bytes are used.
    at: usize,
    done: bool,
    /// `100 (Continue)` has been sent, or need not be.
    pub continued: bool,
}

impl RequestBody {
    /// Starts a body behind a head of `len` bytes.
    pub fn begin(&mut self, framing: Framing, len: usize) {
        self.framing = framing;
        self.at = len;
        self.continued = false;
        (self.left, self.done) = match framing {
            Framing::None => (0, true),
            Framing::Length(n) => (n, n == 0),
            Framing::Chunked | Framing::Stream => {
                self.chunked.reset();
                (0, false)
            }
        };
    }

    /// Whether all of it has been read.
    pub fn done(&self) -> bool {
        self.done
    }

    /// Bytes of the head's buffer that head and body used.
    pub fn consumed(&self, head: usize) -> usize {
        self.at.max(head)
    }

    /// Takes bytes; gives how many belonged to the body.
    fn take(&mut self, input: &[u8]) -> Result<usize, ()> {
        match self.framing {
            Framing::None => Ok(0),
            Framing::Length(_) | Framing::Stream => {
                let n = self.left.min(input.len() as u64);
                self.left -= n;
                self.done = self.left == 0;
                Ok(n as usize)
            }
            Framing::Chunked => {
                let mut at = 0;
                loop {
                    match self.chunked.decode(input.get(at..).unwrap_or_default()) {
                        Ok(Step::Data { end, .. }) => at += end,
                        Ok(Step::More) => return Ok(input.len()),
                        Ok(Step::End { consumed }) => {
                            self.done = true;
                            return Ok(at + consumed);
                        }
                        Err(_) => return Err(()),
                    }
                }
            }
        }
    }
}

/// Throws away what of the body came with the head. `false`: it is malformed.
pub fn discard_buffered(req: &mut Request) -> bool {
    if req.body.done {
        return true;
    }
    let at = req.body.at;
    match req.body.take(req.head.buf.get(at..).unwrap_or_default()) {
        Ok(n) => {
            req.body.at = at + n;
            req.received += n as u64;
            true
        }
        Err(()) => {
            req.log(Level::Info, "client sent invalid chunked body");
            req.body.done = true;
            // The head's buffer holds nothing that could be trusted any more.
            if req.error_status == 0 {
                crate::error_page::built_in(req, 400);
            }
            false
        }
    }
}

/// Reads the rest of a body that nobody wants. `false`: the connection is of no more use.
pub async fn discard(thread: &Rc<Thread>, req: &mut Request, token: Token) -> bool {
    let http = req.http();
    let core = &http.location(req).settings.core;
    let end = Instant::now() + core.lingering_time.0;
    let mut scratch = req.take_buf();
    let mut ok = true;
    while !req.body.done && ok {
        scratch.clear();
        scratch.reserve(16384);
        let got = thread
            .reactor
            .with_fd(token, |fd| rustix::io::read(fd, rustix::buffer::spare_capacity(&mut scratch)));
        ok = match got {
            Some(Ok(n)) if n > 0 => match req.body.take(&scratch) {
                Ok(used) => {
                    req.received += used as u64;
                    // Bytes of the next request stay for it.
                    if used < scratch.len() {
                        let len = req.head.len;
                        req.head.buf.truncate(len.max(req.body.at));
                        req.head.buf.extend_from_slice(&scratch[used..]);
                        let rest = scratch.len() - used;
                        req.body.at = req.head.buf.len() - rest;
                    }
                    true
                }
                Err(()) => false,
            },
            Some(Err(Errno::INTR)) => true,
            Some(Err(Errno::AGAIN)) => {
                let until = (Instant::now() + core.lingering_timeout.0).min(end);
                thread.reactor.deadline(until, thread.reactor.readable(token)).await.is_some()
            }
            _ => false,
        };
    }
    req.give_buf(scratch);
    ok && req.body.done
}

/// Answers `Expect: 100-continue`.
pub async fn send_continue(thread: &Rc<Thread>, req: &mut Request, token: Token) -> bool {
    req.body.continued = true;
    write_all(thread, req, token, b"HTTP/1.1 100 Continue\r\n\r\n").await
}

/// Waits until the socket takes more. `false`: `send_timeout` is over.
async fn room(thread: &Rc<Thread>, req: &mut Request, token: Token) -> bool {
    let http = req.http();
    let timeout = http.location(req).settings.core.send_timeout.0;
    let ready =
        thread.reactor.deadline(Instant::now() + timeout, thread.reactor.writable(token)).await.is_some();
    if !ready {
        req.timed_out = true;
        req.log(Level::Info, "client timed out (110: Connection timed out) while sending response to client");
    }
    ready
}

/// Writes bytes, all of them.
pub async fn write_all(thread: &Rc<Thread>, req: &mut Request, token: Token, bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        match thread.reactor.with_fd(token, |fd| rustix::net::send(fd, rest, SendFlags::NOSIGNAL)) {
            Some(Ok(n)) => {
                req.sent += n as u64;
                rest = rest.get(n..).unwrap_or_default();
                // A short write means that the socket is full: asking it again would only say so.
                if !rest.is_empty() && !room(thread, req, token).await {
                    return false;
                }
            }
            Some(Err(Errno::INTR)) => {}
            Some(Err(Errno::AGAIN)) => {
                if !room(thread, req, token).await {
                    return false;
                }
            }
            _ => return false,
        }
    }
    true
}

/// Longest body that is copied behind its head, bytes.
const COPY: u64 = 4096;

/// Sends head and body.
pub async fn send(
    thread: &Rc<Thread>,
    req: &mut Request,
    token: Token,
    head: &mut Vec<u8>,
    chunked: bool,
) -> bool {
    let rate = limit_rate(req);
    if req.resp.filters.is_empty() && rate.is_none() && !chunked && all_in_memory(&req.resp.body) {
        // Copying a small body costs less than describing two pieces to the kernel.
        if req.resp.body_len() <= COPY {
            for p in &req.resp.body {
                head.extend_from_slice(memory(&req.resp.text, p));
            }
            return write_all(thread, req, token, head).await;
        }
        return send_memory(thread, req, token, head).await;
    }
    let mut pace = Pace::new(rate, head.len());
    let parts = std::mem::take(&mut req.resp.body);
    let text = std::mem::take(&mut req.resp.text);
    let ok = send_parts(thread, req, token, head, (&parts, &text), chunked, &mut pace).await;
    req.resp.text = text;
    req.resp.body = parts;
    ok
}

fn all_in_memory(parts: &[Part]) -> bool {
    parts.len() <= 6 && parts.iter().all(|p| !matches!(p, Part::File { file, .. } if file.content.is_none()))
}

/// The bytes of a part that is in memory.
fn memory<'p>(text: &'p [u8], p: &'p Part) -> &'p [u8] {
    match p {
        Part::Text { start, end } => text.get(*start as usize..*end as usize).unwrap_or_default(),
        Part::Static(b) => b,
        Part::Bytes(b) => b,
        Part::File { file, start, end } => {
            file.content.as_ref().and_then(|c| c.get(*start as usize..*end as usize)).unwrap_or_default()
        }
    }
}

/// One vectored write for head and body; more only if the socket is full.
async fn send_memory(thread: &Rc<Thread>, req: &mut Request, token: Token, head: &[u8]) -> bool {
    let mut done = 0usize;
    loop {
        let mut slices: [IoSlice<'_>; 7] = [IoSlice::new(&[]); 7];
        let mut skip = done;
        let mut n = 0;
        for b in std::iter::once(head).chain(req.resp.body.iter().map(|p| memory(&req.resp.text, p))) {
            if skip >= b.len() {
                skip -= b.len();
                continue;
            }
            slices[n] = IoSlice::new(&b[skip..]);
            skip = 0;
            n += 1;
        }
        if n == 0 {
            return true;
        }
        let want: usize = slices[..n].iter().map(|s| s.len()).sum();
        let got = thread.reactor.with_fd(token, |fd| match n {
            1 => rustix::net::send(fd, &slices[0], SendFlags::NOSIGNAL),
            _ => rustix::net::sendmsg(
                fd,
                &slices[..n],
                &mut SendAncillaryBuffer::default(),
                SendFlags::NOSIGNAL,
            ),
        });
        match got {
            Some(Ok(sent)) => {
                req.sent += sent as u64;
                done += sent;
                if sent == want {
                    return true;
                }
                if !room(thread, req, token).await {
                    return false;
                }
            }
            Some(Err(Errno::INTR)) => {}
            Some(Err(Errno::AGAIN)) => {
                if !room(thread, req, token).await {
                    return false;
                }
            }
            _ => return false,
        }
    }
}

/// `limit_rate` and `limit_rate_after` in effect, bytes/s and bytes.
fn limit_rate(req: &mut Request) -> Option<(u64, u64)> {
    let http = req.http();
    let core = &http.location(req).settings.core;
    let set = req.resp.limit_rate;
    if set == 0 && core.limit_rate.0.is_none() {
        return None;
    }
    let eval = |t: &Option<crate::config::template::Template>, req: &mut Request| {
        let v = t.as_ref().and_then(|t| t.value(req).ok()).unwrap_or_default();
        forebay_conf::units::size(&v).unwrap_or(0)
    };
    let rate = if set != 0 { set } else { eval(&core.limit_rate.0, req) };
    let after = eval(&core.limit_rate_after.0, req);
    (rate > 0).then_some((rate, after))
}

/// Keeps a response at its rate (nginx: limit_rate).
struct Pace {
    rate: u64,
    after: u64,
    sent: u64,
    started: Instant,
}

impl Pace {
    fn new(rate: Option<(u64, u64)>, _head: usize) -> Pace {
        let (rate, after) = rate.unwrap_or((0, 0));
        Pace { rate, after, sent: 0, started: Instant::now() }
    }

    /// How many bytes may go now, or how long to wait.
    fn allowance(&self, want: u64) -> Result<u64, Duration> {
        if self.rate == 0 {
            return Ok(want);
        }
        let elapsed = self.started.elapsed();
        let allowed =
            (elapsed.as_millis() as u64 / 1000 + 1).saturating_mul(self.rate).saturating_add(self.after);
        if self.sent < allowed {
            return Ok(want.min(allowed - self.sent));
        }
        let over = self.sent - allowed + 1;
        Err(Duration::from_millis((over.saturating_mul(1000) / self.rate).max(1) + 1))
    }
}

/// Longest piece sent at once where the file is not in memory, bytes.
const PIECE: u64 = 2 * 1024 * 1024;

async fn send_parts(
    thread: &Rc<Thread>,
    req: &mut Request,
    token: Token,
    head: &[u8],
    (parts, text): (&[Part], &[u8]),
    chunked: bool,
    pace: &mut Pace,
) -> bool {
    let mut pending = req.take_buf();
    pending.extend_from_slice(head);
    let filtered = !req.resp.filters.is_empty();
    let total = parts.len();
    for (i, part) in parts.iter().enumerate() {
        let last = i + 1 == total;
        let len = part.len();
        let mut at = 0;
        while at < len {
            let want = if filtered || chunked { (len - at).min(32 * 1024) } else { (len - at).min(PIECE) };
            let n = match pace.allowance(want) {
                Ok(n) => n,
                Err(wait) => {
                    if !flush(thread, req, token, &mut pending).await {
                        return false;
                    }
                    if client_gone_within(thread, token, wait).await {
                        req.log(
                            Level::Info,
                            "client prematurely closed connection while sending response to client",
                        );
                        return false;
                    }
                    continue;
                }
            };
            if !filtered
                && !chunked
                && let Part::File { file, start, .. } = part
                && file.content.is_none()
            {
                if !send_head_more(thread, req, token, &mut pending).await
                    || !send_file(thread, req, token, file, start + at, n).await
                {
                    return false;
                }
            } else {
                let mut piece = req.take_buf();
                if !load(text, part, at, n, &mut piece).await {
                    return false;
                }
                push_piece(req, &piece, last && at + n == len, chunked, &mut pending);
                req.give_buf(piece);
                if pending.len() >= 64 * 1024 && !flush(thread, req, token, &mut pending).await {
                    return false;
                }
            }
            at += n;
            pace.sent += n;
        }
    }
    if chunked {
        if total == 0 || parts.iter().all(Part::is_empty) {
            push_piece(req, b"", true, true, &mut pending);
        }
        pending.extend_from_slice(b"0\r\n");
        for (name, value) in req.resp.trailers.iter() {
            pending.extend_from_slice(name);
            pending.extend_from_slice(b": ");
            pending.extend_from_slice(value);
            pending.extend_from_slice(b"\r\n");
        }
        pending.extend_from_slice(b"\r\n");
    }
    let ok = flush(thread, req, token, &mut pending).await;
    req.give_buf(pending);
    ok
}

/// Waits; `true` if the client closes the connection meanwhile.
async fn client_gone_within(thread: &Rc<Thread>, token: Token, wait: Duration) -> bool {
    let gone = async {
        loop {
            let mut byte = [0u8; 1];
            let got =
                thread.reactor.with_fd(token, |fd| rustix::net::recv(fd, &mut byte[..], RecvFlags::PEEK));
            match got {
                Some(Err(Errno::AGAIN)) => thread.reactor.readable(token).await,
                Some(Err(Errno::INTR)) => {}
                // The next request is here already: the client is alive and will be read from later.
                Some(Ok((n, _))) if n > 0 => std::future::pending().await,
                _ => return,
            }
        }
    };
    thread.reactor.deadline(Instant::now() + wait, gone).await.is_some()
}

/// Sends a piece through the filters and frames it.
fn push_piece(req: &mut Request, piece: &[u8], last: bool, chunked: bool, out: &mut Vec<u8>) {
    let mut filters = std::mem::take(&mut req.resp.filters);
    let mut current = piece.to_vec();
    for f in &mut filters {
        let mut next = Vec::with_capacity(current.len());
        f.feed(&current, last, &mut next);
        current = next;
    }
    req.resp.filters = filters;
    if current.is_empty() {
        return;
    }
    if chunked {
        out.extend_from_slice(format!("{:x}\r\n", current.len()).as_bytes());
        out.extend_from_slice(&current);
        out.extend_from_slice(b"\r\n");
    } else {
        out.extend_from_slice(&current);
    }
}

async fn flush(thread: &Rc<Thread>, req: &mut Request, token: Token, pending: &mut Vec<u8>) -> bool {
    if pending.is_empty() {
        return true;
    }
    let ok = write_all(thread, req, token, pending).await;
    pending.clear();
    ok
}

/// The head before a file: held back by the kernel so that it leaves with the first bytes of the file.
async fn send_head_more(thread: &Rc<Thread>, req: &mut Request, token: Token, pending: &mut Vec<u8>) -> bool {
    if pending.is_empty() {
        return true;
    }
    let got = thread
        .reactor
        .with_fd(token, |fd| rustix::net::send(fd, pending, SendFlags::MORE | SendFlags::NOSIGNAL));
    if let Some(Ok(n)) = got {
        req.sent += n as u64;
        pending.drain(..n);
    }
    flush(thread, req, token, pending).await
}

/// Brings bytes of a part into memory.
async fn load(text: &[u8], part: &Part, at: u64, n: u64, out: &mut Vec<u8>) -> bool {
    let Part::File { file, start, .. } = part else {
        out.extend_from_slice(memory(text, part).get(at as usize..(at + n) as usize).unwrap_or_default());
        return true;
    };
    if file.content.is_some() {
        out.extend_from_slice(memory(text, part).get(at as usize..(at + n) as usize).unwrap_or_default());
        return true;
    }
    let offset = start + at;
    if resident(file, offset, n) {
        out.resize(n as usize, 0);
        return rustix::io::pread(&file.fd, out.as_mut_slice(), offset).is_ok_and(|got| got as u64 == n);
    }
    let Ok(fd) = file.fd.try_clone() else { return false };
    let read = tokio::task::spawn_blocking(move || {
        let mut buf = vec![0; n as usize];
        rustix::io::pread(&fd, buf.as_mut_slice(), offset).map(|got| {
            buf.truncate(got);
            buf
        })
    });
    match read.await {
        Ok(Ok(buf)) if buf.len() as u64 == n => {
            out.extend_from_slice(&buf);
            true
        }
        _ => false,
    }
}

/// Whether the last byte of a stretch can be read without waiting for the disk. Reading ahead fills files
/// from the front, so the last byte speaks for the others.
fn resident(file: &OpenFile, offset: u64, n: u64) -> bool {
    let mut byte = [0u8; 1];
    let mut bufs = [rustix::io::IoSliceMut::new(&mut byte)];
    let at = offset + n.saturating_sub(1);
    !matches!(rustix::io::preadv2(&file.fd, &mut bufs, at, ReadWriteFlags::NOWAIT), Err(Errno::AGAIN))
}

/// Sends a stretch of a file without copying it to user space.
async fn send_file(
    thread: &Rc<Thread>,
    req: &mut Request,
    token: Token,
    file: &Rc<OpenFile>,
    start: u64,
    n: u64,
) -> bool {
    let mut offset = start;
    let end = start + n;
    let mut checked = start;
    while offset < end {
        if offset >= checked {
            let stretch = (end - offset).min(PIECE);
            if !resident(file, offset, stretch) {
                warm(file, offset, stretch).await;
            }
            checked = offset + stretch;
        }
        let got = thread.reactor.with_fd(token, |fd| {
            let count = (checked - offset) as usize;
            rustix::fs::sendfile(fd, &file.fd, Some(&mut offset), count)
        });
        match got {
            // The file became shorter: what was promised cannot be kept.
            Some(Ok(0)) => {
                req.log(Level::Alert, &format!("sendfile() reported that file was truncated at {offset}"));
                return false;
            }
            Some(Ok(n)) => {
                req.sent += n as u64;
                if offset < checked && !room(thread, req, token).await {
                    return false;
                }
            }
            Some(Err(Errno::INTR)) => {}
            Some(Err(Errno::AGAIN)) => {
                if !room(thread, req, token).await {
                    return false;
                }
            }
            _ => return false,
        }
    }
    true
}

/// Brings a stretch of a file into the page cache without blocking the thread.
async fn warm(file: &Rc<OpenFile>, offset: u64, n: u64) {
    let Ok(fd) = file.fd.try_clone() else { return };
    let read = tokio::task::spawn_blocking(move || {
        let mut buf = vec![0; 64 * 1024];
        let mut at = offset;
        while at < offset + n {
            match rustix::io::pread(&fd, buf.as_mut_slice(), at) {
                Ok(got) if got > 0 => at += got as u64,
                _ => return,
            }
        }
    });
    let _ = read.await;
}
