//! Bodies: the client's is read or thrown away, the response's is sent by writev or sendfile. Hot path.

pub mod compose;

use crate::file_cache::OpenFile;
use crate::request::Request;
use crate::response::Part;
use crate::thread::Thread;
use crate::upstream::stream::{Body, Pulled};
use crate::wire::{self, Then};
use forebay_conf::error::Level;
use forebay_http::h1::chunked::{Chunked, Step};
use forebay_http::request::{Framing, Version};
use rustix::io::{Errno, IoSlice, ReadWriteFlags};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Reading state of a request's body.
#[derive(Debug, Default)]
pub struct RequestBody {
    pub(crate) framing: Framing,
    /// Bytes of a body with a length that are still to come.
    left: u64,
    chunked: Chunked,
    /// Offset in the head's buffer up to which bytes are used.
    at: usize,
    done: bool,
    /// `100 (Continue)` has been sent, or need not be.
    pub continued: bool,
    /// Bytes of content read so far.
    pub len: u64,
    /// The whole of it is to be in a file of its own that can be renamed.
    pub in_file: bool,
    /// The whole body, once [`read_all`] has been called.
    pub stored: Stored,
}

/// A body that has been read.
#[derive(Debug, Default)]
pub struct Stored {
    /// Whether it is complete.
    pub complete: bool,
    /// The body, as far as it is not in the file.
    pub mem: Vec<u8>,
    /// What did not fit into `client_body_buffer_size`.
    pub file: Option<Rc<std::fs::File>>,
    /// Name of the file (`$request_body_file`).
    pub path: Option<std::path::PathBuf>,
    /// Bytes in the file.
    pub in_file: u64,
    /// The file is removed when the request is over.
    remove: bool,
}

impl Stored {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.mem.len() as u64 + self.in_file
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ready for another request.
    fn clear(&mut self) {
        self.complete = false;
        self.mem.clear();
        if self.mem.capacity() > 1 << 16 {
            self.mem = Vec::new();
        }
        self.file = None;
        self.in_file = 0;
        if let Some(path) = self.path.take()
            && self.remove
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.clear();
    }
}

impl RequestBody {
    /// Starts a body behind a head of `len` bytes.
    pub fn begin(&mut self, framing: Framing, len: usize) {
        self.framing = framing;
        self.at = len;
        self.continued = false;
        self.len = 0;
        self.in_file = false;
        self.stored.clear();
        (self.left, self.done) = match framing {
            Framing::None => (0, true),
            Framing::Length(n) => (n, n == 0),
            Framing::Chunked | Framing::Stream => {
                self.chunked.reset();
                (0, false)
            }
        };
    }

    /// The body of a request that is made for this one, as far as it has been read.
    pub fn share(&self) -> RequestBody {
        let s = &self.stored;
        let stored = Stored {
            complete: true,
            mem: s.mem.clone(),
            file: s.file.clone(),
            path: s.path.clone(),
            in_file: s.in_file,
            remove: false,
        };
        RequestBody {
            framing: self.framing,
            at: self.at,
            done: true,
            len: self.len,
            stored,
            ..Default::default()
        }
    }

    /// The request is over: files are removed.
    pub fn end(&mut self) {
        self.stored.clear();
    }

    /// Whether some of it came with the head and has not been taken.
    pub fn is_buffered(&self, head: &[u8]) -> bool {
        !self.done && self.at < head.len()
    }

    /// Whether all of it has been read.
    pub fn done(&self) -> bool {
        self.done
    }

    /// Bytes of the head's buffer that head and body used.
    pub fn consumed(&self, head: usize) -> usize {
        self.at.max(head)
    }

    /// Takes bytes and appends what is content to `out`; gives how many belonged to the body.
    fn take_into(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, ()> {
        if self.framing != Framing::Chunked {
            let n = self.take(input)?;
            out.extend_from_slice(input.get(..n).unwrap_or_default());
            self.len += n as u64;
            return Ok(n);
        }
        let mut at = 0;
        loop {
            let rest = input.get(at..).unwrap_or_default();
            match self.chunked.decode(rest) {
                Ok(Step::Data { start, end }) => {
                    out.extend_from_slice(rest.get(start..end).unwrap_or_default());
                    self.len += (end - start) as u64;
                    at += end;
                }
                Ok(Step::More) => return Ok(input.len()),
                Ok(Step::End { consumed }) => {
                    self.done = true;
                    return Ok(at + consumed);
                }
                Err(_) => return Err(()),
            }
        }
    }

    /// Takes bytes; gives how many belonged to the body.
    fn take(&mut self, input: &[u8]) -> Result<usize, ()> {
        match self.framing {
            Framing::None => Ok(0),
            Framing::Stream => Ok(input.len()),
            Framing::Length(_) => {
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
pub async fn discard(thread: &Rc<Thread>, req: &mut Request) -> bool {
    let http = req.http();
    let core = &http.location(req).settings.core;
    let end = Instant::now() + core.lingering_time.0;
    let mut scratch = req.take_buf();
    let mut ok = true;
    while !req.body.done && ok {
        scratch.clear();
        scratch.reserve(16384);
        ok = match req.conn.wire.read(thread, &mut scratch) {
            Ok(n) if n > 0 => match req.body.take(&scratch) {
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
            Err(Errno::AGAIN) => {
                let until = (Instant::now() + core.lingering_timeout.0).min(end);
                thread.reactor.deadline(until, req.conn.wire.wait_readable(thread)).await.is_some()
            }
            _ => false,
        };
    }
    req.give_buf(scratch);
    ok && req.body.done
}

/// Why the client's body could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// To be answered with this status.
    Status(u16),
    /// The client is gone or too slow: there is nobody to answer.
    Gone,
}

/// Appends the next piece of the client's body to `out`. `false`: that was the last.
///
/// # Errors
/// A malformed or too large body, a client that is slow (`client_body_timeout`) or gone.
pub async fn read_piece(req: &mut Request, out: &mut Vec<u8>) -> Result<bool, BodyError> {
    if req.body.done {
        return Ok(false);
    }
    let thread = req.thread.clone();
    if req.head.expect_continue && !req.body.continued && req.head.version >= Version::Http11 {
        if !send_continue(&thread, req).await {
            return Err(BodyError::Gone);
        }
        req.sent = 0;
    }
    let at = req.body.at;
    if at < req.head.buf.len() {
        let buffered = std::mem::take(&mut req.head.buf);
        let taken = req.body.take_into(buffered.get(at..).unwrap_or_default(), out);
        req.head.buf = buffered;
        req.body.at = at + accept(req, taken)?;
        if !out.is_empty() || req.body.done {
            return Ok(!req.body.done);
        }
    }
    let mut scratch = req.take_buf();
    let got = loop {
        match receive(req, &mut scratch).await {
            Ok(true) => {}
            Ok(false) => {
                req.body.done = true;
                break Ok(false);
            }
            Err(e) => break Err(e),
        }
        let taken = req.body.take_into(&scratch, out);
        let used = match accept(req, taken) {
            Ok(used) => used,
            Err(e) => break Err(e),
        };
        if used < scratch.len() {
            // Bytes of the next request stay for it.
            let len = req.head.len;
            req.head.buf.truncate(len);
            req.head.buf.extend_from_slice(scratch.get(used..).unwrap_or_default());
            req.body.at = len;
        }
        if !out.is_empty() || req.body.done {
            break Ok(!req.body.done);
        }
    };
    req.give_buf(scratch);
    got
}

/// Whether more of the body follows behind what [`read_piece`] gave last, whose result is `more`; does not wait. The end
/// of an HTTP/2 stream mostly comes together with the last content, and can then be passed on with it. `None`: all that
/// was announced has come, but the stream is not over, and more would be an error: see [`wait_for_end`].
///
/// # Errors
/// As [`read_piece`].
pub fn follows(req: &mut Request, out: &mut Vec<u8>, more: bool) -> Result<Option<bool>, BodyError> {
    let looked_for = match req.body.framing {
        Framing::Stream => more,
        Framing::Length(_) => !more,
        _ => false,
    };
    if !looked_for || req.head.version != Version::Http2 {
        return Ok(Some(more));
    }
    let thread = req.thread.clone();
    let mut scratch = req.take_buf();
    scratch.reserve(16384);
    let follows = match req.conn.wire.read(&thread, &mut scratch) {
        Ok(0) => {
            req.body.done = true;
            Ok(Some(false))
        }
        Ok(_) if more => {
            let taken = req.body.take_into(&scratch, out);
            accept(req, taken).map(|_| Some(true))
        }
        Err(Errno::AGAIN) if more => Ok(Some(true)),
        Err(Errno::AGAIN) => Ok(None),
        // What is wrong is found by whoever reads next.
        Err(_) if more => Ok(Some(true)),
        _ => Err(too_much(req)),
    };
    req.give_buf(scratch);
    follows
}

/// Waits for the end of an HTTP/2 stream of which all content has come that was announced.
///
/// # Errors
/// As [`read_piece`].
pub async fn wait_for_end(req: &mut Request) -> Result<(), BodyError> {
    let mut scratch = req.take_buf();
    let got = receive(req, &mut scratch).await;
    req.give_buf(scratch);
    match got {
        Ok(false) => Ok(()),
        Ok(true) => Err(too_much(req)),
        Err(e) => Err(e),
    }
}

fn too_much(req: &mut Request) -> BodyError {
    req.log(Level::Info, "client sent a body of another length than \"Content-Length\" says");
    req.body.done = true;
    BodyError::Status(400)
}

/// Judges what was taken of the body.
fn accept(req: &mut Request, taken: Result<usize, ()>) -> Result<usize, BodyError> {
    let Ok(used) = taken else {
        req.log(Level::Info, "client sent invalid chunked body");
        req.body.done = true;
        req.keep_alive = false;
        return Err(BodyError::Status(400));
    };
    req.received += used as u64;
    let http = req.http();
    let max = http.location(req).settings.core.client_max_body_size.0;
    if max != 0 && matches!(req.body.framing, Framing::Chunked | Framing::Stream) && req.body.len > max {
        let text = format!("client intended to send too large chunked body: {} bytes", req.body.len);
        req.log(Level::Error, &text);
        req.keep_alive = false;
        return Err(BodyError::Status(413));
    }
    Ok(used)
}

/// One read of the client's body into an empty buffer. `false`: it has ended (without a length, with its stream).
async fn receive(req: &mut Request, scratch: &mut Vec<u8>) -> Result<bool, BodyError> {
    let thread = req.thread.clone();
    let http = req.http();
    let timeout = http.location(req).settings.core.client_body_timeout.0;
    loop {
        scratch.clear();
        scratch.reserve(16384);
        match req.conn.wire.read(&thread, scratch) {
            Ok(n) if n > 0 => return Ok(true),
            Ok(_) if req.body.framing == Framing::Stream || req.body.done => return Ok(false),
            Err(Errno::PROTO) => return Err(too_much(req)),
            Err(Errno::AGAIN) => {
                let until = Instant::now() + timeout;
                if thread.reactor.deadline(until, req.conn.wire.wait_readable(&thread)).await.is_none() {
                    let text =
                        "client timed out (110: Connection timed out) while reading client request body";
                    req.log(Level::Info, text);
                    req.timed_out = true;
                    req.resp.status = 408;
                    return Err(BodyError::Gone);
                }
            }
            _ => {
                req.log(Level::Info, "client prematurely closed connection");
                req.resp.status = 400;
                return Err(BodyError::Gone);
            }
        }
    }
}

/// Reads the whole body into `RequestBody::stored`: up to `client_body_buffer_size` in memory, beyond that
/// into a file.
///
/// # Errors
/// As [`read_piece`]; status 500 when the file cannot be written.
pub async fn read_all(req: &mut Request) -> Result<(), BodyError> {
    if req.body.stored.complete {
        return Ok(());
    }
    let http = req.http();
    let core = &http.location(req).settings.core;
    let max = core.client_body_buffer_size.0;
    let only_file =
        req.body.in_file || core.client_body_in_file_only != crate::modules::core::BodyInFile::Off;
    let mut mem = std::mem::take(&mut req.body.stored.mem);
    let read = loop {
        match read_piece(req, &mut mem).await {
            Err(e) => break Err(e),
            Ok(more) => {
                let spill = mem.len() as u64 > max || (only_file && !more);
                if (spill || (!more && req.body.stored.file.is_some()))
                    && let Err(e) = write_temporary(req, &mut mem).await
                {
                    break Err(e);
                }
                if !more {
                    break Ok(());
                }
            }
        }
    };
    req.body.stored.mem = mem;
    req.body.stored.complete = read.is_ok();
    read
}

/// Appends to the temporary file of the body and empties `mem`.
async fn write_temporary(req: &mut Request, mem: &mut Vec<u8>) -> Result<(), BodyError> {
    if req.body.stored.file.is_none() {
        open_temporary(req)?;
    }
    let Some(file) = req.body.stored.file.clone() else { return Err(BodyError::Status(500)) };
    let offset = req.body.stored.in_file;
    let n = mem.len() as u64;
    let bytes = std::mem::take(mem);
    let Ok(copy) = file.try_clone() else { return Err(BodyError::Status(500)) };
    let written = tokio::task::spawn_blocking(move || {
        use std::os::unix::fs::FileExt;
        let done = copy.write_all_at(&bytes, offset);
        (done, bytes)
    })
    .await;
    match written {
        Ok((Ok(()), mut bytes)) => {
            bytes.clear();
            *mem = bytes;
            req.body.stored.in_file += n;
            Ok(())
        }
        Ok((Err(e), _)) => {
            let path = req.body.stored.path.clone().unwrap_or_default();
            req.log(Level::Crit, &format!("pwrite() \"{}\" failed ({e})", path.display()));
            Err(BodyError::Status(500))
        }
        Err(_) => Err(BodyError::Status(500)),
    }
}

fn open_temporary(req: &mut Request) -> Result<(), BodyError> {
    use crate::modules::core::BodyInFile;
    let http = req.http();
    let core = &http.location(req).settings.core;
    let given = core.client_body_temp_path.0.clone();
    let dir = given.unwrap_or_else(|| req.conf.config.client_body_temp.clone());
    let open = |path: &std::path::Path| {
        std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(path)
    };
    let mut opened = None;
    for _ in 0..16 {
        let path = dir.join(format!("{:010}", crate::request::next_serial()));
        match open(&path) {
            Ok(f) => {
                opened = Some((f, path));
                break;
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                if let Err(e) = std::fs::create_dir_all(&dir) {
                    req.log(Level::Crit, &format!("mkdir() \"{}\" failed ({e})", dir.display()));
                    return Err(BodyError::Status(500));
                }
            }
            Err(e) => {
                let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
                let text = crate::modules::static_file::errno_text(errno);
                req.log(Level::Crit, &format!("open() \"{}\" failed {text}", path.display()));
                return Err(BodyError::Status(500));
            }
        }
    }
    let Some((file, path)) = opened else { return Err(BodyError::Status(500)) };
    match core.client_body_in_file_only {
        _ if req.body.in_file => req.body.stored.remove = true,
        BodyInFile::Off => drop(std::fs::remove_file(&path)),
        BodyInFile::Clean => req.body.stored.remove = true,
        BodyInFile::On => req.body.stored.remove = false,
    }
    let text = format!("a client request body is buffered to a temporary file {}", path.display());
    req.log(Level::Warn, &text);
    req.body.stored.file = Some(Rc::new(file));
    req.body.stored.path = Some(path);
    Ok(())
}

/// Answers `Expect: 100-continue`.
pub async fn send_continue(thread: &Rc<Thread>, req: &mut Request) -> bool {
    req.body.continued = true;
    if let Some(s) = req.conn.wire.as_stream() {
        s.send_status(100);
        return true;
    }
    write_all(thread, req, b"HTTP/1.1 100 Continue\r\n\r\n").await
}

/// Waits until the socket takes more. `false`: `send_timeout` is over.
async fn room(thread: &Rc<Thread>, req: &mut Request) -> bool {
    let http = req.http();
    let timeout = http.location(req).settings.core.send_timeout.0;
    let until = Instant::now() + timeout;
    let ready = thread.reactor.deadline(until, req.conn.wire.wait_writable(thread)).await.is_some();
    ready || too_slow(req)
}

/// Logs that a response cannot be sent, which mostly is the client's doing.
fn failed(req: &mut Request, call: &str, e: Errno) -> bool {
    if e != Errno::BADF {
        let gone = matches!(e, Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN | Errno::TIMEDOUT);
        let level = if gone { Level::Info } else { Level::Alert };
        req.log_with(level, |out| {
            let text = crate::modules::static_file::errno_text(e);
            for piece in [call, " failed ", &text, " while sending response to client"] {
                out.extend_from_slice(piece.as_bytes());
            }
        });
    }
    false
}

/// Writes bytes, all of them.
pub async fn write_all(thread: &Rc<Thread>, req: &mut Request, bytes: &[u8]) -> bool {
    write_with(thread, req, bytes, Then::Nothing).await
}

/// Writes the last bytes of a response. If the connection is closed behind it, the kernel holds them back for
/// the few instructions until then, so that data and FIN are one packet instead of two.
pub async fn write_last(thread: &Rc<Thread>, req: &mut Request, bytes: &[u8]) -> bool {
    let then = after_last(req);
    write_with(thread, req, bytes, then).await
}

fn after_last(req: &Request) -> Then {
    if req.closes_at_once { Then::Close } else { Then::Nothing }
}

async fn write_with(thread: &Rc<Thread>, req: &mut Request, bytes: &[u8], then: Then) -> bool {
    let mut rest = bytes;
    let mut full = false;
    while !rest.is_empty() || full {
        match req.conn.wire.send(thread, rest, then) {
            Ok(sent) => {
                req.sent += sent.bytes as u64;
                rest = rest.get(sent.bytes..).unwrap_or_default();
                full = sent.full;
            }
            Err(Errno::AGAIN) => full = true,
            Err(e) => return failed(req, "writev()", e),
        }
        // Asking a full socket again would only say so.
        if full && !room(thread, req).await {
            return false;
        }
    }
    true
}

/// Longest body that is copied behind its head, bytes.
const COPY: u64 = 4096;

/// Sends head and body.
pub async fn send(thread: &Rc<Thread>, req: &mut Request, head: &mut Vec<u8>, chunked: bool) -> bool {
    if let Some(join) = req.resp.join.take() {
        return Box::pin(compose::send(req, head, chunked, join)).await;
    }
    let rate = limit_rate(req);
    if let Some(source) = req.resp.source.take() {
        return send_source(thread, req, head, source, chunked, rate).await;
    }
    if req.resp.filters.is_empty() && rate.is_none() && !chunked && all_in_memory(&req.resp.body) {
        // Copying a small body costs less than describing two pieces to the kernel.
        if req.resp.body_len() <= COPY && req.conn.wire.as_stream().is_none() {
            for p in &req.resp.body {
                head.extend_from_slice(memory(&req.resp.text, p));
            }
            return write_last(thread, req, head).await;
        }
        return send_memory(thread, req, head).await;
    }
    let mut pace = Pace::new(rate, head.len());
    let parts = std::mem::take(&mut req.resp.body);
    let text = std::mem::take(&mut req.resp.text);
    let ok = send_parts(thread, req, head, (&parts, &text), chunked, &mut pace).await;
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
async fn send_memory(thread: &Rc<Thread>, req: &mut Request, head: &[u8]) -> bool {
    let mut done = 0usize;
    let then = after_last(req);
    let mut full = false;
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
        if n == 0 && !full {
            return true;
        }
        match req.conn.wire.send_pieces(thread, &slices[..n], then) {
            Ok(sent) => {
                req.sent += sent.bytes as u64;
                done += sent.bytes;
                full = sent.full;
            }
            Err(Errno::AGAIN) => full = true,
            Err(e) => return failed(req, "writev()", e),
        }
        if full && !room(thread, req).await {
            return false;
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
    /// When it began, where there is a rate.
    started: Option<Instant>,
}

impl Pace {
    fn new(rate: Option<(u64, u64)>, _head: usize) -> Pace {
        let (rate, after) = rate.unwrap_or((0, 0));
        Pace { rate, after, sent: 0, started: (rate > 0).then(Instant::now) }
    }

    /// How many bytes may go now, or how long to wait.
    fn allowance(&self, want: u64) -> Result<u64, Duration> {
        if self.rate == 0 {
            return Ok(want);
        }
        let elapsed = self.started.map_or(Duration::ZERO, |t| t.elapsed());
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
    head: &[u8],
    (parts, text): (&[Part], &[u8]),
    chunked: bool,
    pace: &mut Pace,
) -> bool {
    let mut pending = req.take_buf();
    pending.extend_from_slice(head);
    let filtered = !req.resp.filters.is_empty();
    // Empty parts behind it must not keep the filters from learning that it is the last.
    let total = parts.iter().rposition(|p| !p.is_empty()).map_or(0, |i| i + 1);
    let limit = if filtered {
        piece_limit(req)
    } else if chunked {
        32 * 1024
    } else {
        PIECE
    };
    for (i, part) in parts.iter().take(total).enumerate() {
        let last = i + 1 == total;
        let len = part.len();
        let mut at = 0;
        while at < len {
            let want = (len - at).min(limit);
            let n = match pace.allowance(want) {
                Ok(n) => n,
                Err(wait) => {
                    if !flush_parts(thread, req, &mut pending).await {
                        return false;
                    }
                    if client_gone_within(thread, req, wait).await {
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
                if !send_head_more(thread, req, &mut pending).await
                    || !send_file(thread, req, file, start + at, n).await
                {
                    return false;
                }
            } else {
                let mut piece = req.take_buf();
                if !load(text, part, at, n, &mut piece).await {
                    return false;
                }
                let follows = if last && at + n == len { Follows::End } else { Follows::More };
                let sound = push_piece(req, &piece, follows, chunked, &mut pending);
                req.give_buf(piece);
                if !sound {
                    flush_parts(thread, req, &mut pending).await;
                    return false;
                }
                if filtered && follows == Follows::More {
                    // Filters compute: others of the thread have their turn, too.
                    thread.reactor.yield_now().await;
                }
                if pending.len() >= 64 * 1024 && !flush_parts(thread, req, &mut pending).await {
                    return false;
                }
            }
            at += n;
            pace.sent += n;
        }
    }
    if total == 0 && !push_piece(req, b"", Follows::End, chunked, &mut pending) {
        return false;
    }
    if chunked {
        end_chunks(req, &mut pending);
    }
    let ok = flush_parts(thread, req, &mut pending).await;
    req.give_buf(pending);
    ok
}

/// Sends head, parts and what comes from an upstream. What the client does not take at once is read ahead as far
/// as the configuration allows.
async fn send_source(
    thread: &Rc<Thread>,
    req: &mut Request,
    head: &[u8],
    mut source: Box<Body>,
    chunked: bool,
    rate: Option<(u64, u64)>,
) -> bool {
    let mut pace = Pace::new(rate, head.len());
    // Nothing is done with the bytes: they are read to where they are sent from.
    let direct = req.resp.filters.is_empty() && !chunked && rate.is_none();
    let mut pending = thread.large.take();
    pending.extend_from_slice(head);
    let mut piece = req.take_buf();
    let into = if direct { &mut pending } else { &mut piece };
    let before = into.len();
    for p in std::mem::take(&mut req.resp.body) {
        into.extend_from_slice(memory(&req.resp.text, &p));
    }
    let mut ok;
    let mut state = if into.len() == before { Pulled::Blocked } else { Pulled::Data };
    loop {
        if state == Pulled::Blocked {
            let into = if direct { &mut pending } else { &mut piece };
            state = source.pull(req, into);
            if source.unsettled() {
                source.settle(req).await;
            }
            if state == Pulled::Stored {
                state = source.load(req, into).await;
            }
        }
        if state == Pulled::End && crate::modules::slice::wants_more(req) {
            state = match Box::pin(crate::modules::slice::next(req)).await {
                Some(next) => {
                    source.abandon(req);
                    *source = next;
                    Pulled::Data
                }
                None => Pulled::Failed,
            };
        }
        if state == Pulled::Failed {
            if !crate::modules::slice::active(req) {
                flush(thread, req, &mut pending, &mut source).await;
            }
            ok = false;
            break;
        }
        let last = state == Pulled::End;
        let follows = match state {
            Pulled::End => Follows::End,
            Pulled::Blocked if source.unbuffered() => Follows::Pause,
            _ => Follows::More,
        };
        ok = if direct {
            last || pending.len() < GATHERED || flush(thread, req, &mut pending, &mut source).await
        } else {
            send_piece(thread, req, &piece, follows, chunked, &mut pace, &mut pending, &mut source).await
        };
        if !ok {
            break;
        }
        piece.clear();
        if last {
            break;
        }
        if state == Pulled::Blocked
            && (!flush(thread, req, &mut pending, &mut source).await || !source.wait(req).await)
        {
            ok = false;
            break;
        }
        state = Pulled::Blocked;
    }
    if ok {
        if chunked {
            end_chunks(req, &mut pending);
        }
        ok = flush(thread, req, &mut pending, &mut source).await;
    }
    // What is to be stored is read to its end for the next client.
    source.drain(req).await;
    source.abandon(req);
    req.give_buf(piece);
    thread.large.give(pending);
    ok
}

/// Bytes that are sent without waiting for more of a source.
const GATHERED: usize = 16 * 1024;

/// Puts a piece through the filters and sends what has gathered, no faster than the rate allows.
#[allow(clippy::too_many_arguments)]
async fn send_piece(
    thread: &Rc<Thread>,
    req: &mut Request,
    piece: &[u8],
    follows: Follows,
    chunked: bool,
    pace: &mut Pace,
    pending: &mut Vec<u8>,
    source: &mut Body,
) -> bool {
    let mut rest = piece;
    let filtered = !req.resp.filters.is_empty();
    let limit = if filtered { piece_limit(req) } else { u64::MAX };
    loop {
        let n = match pace.allowance((rest.len() as u64).min(limit)) {
            Ok(n) => n as usize,
            Err(_) if rest.is_empty() => 0,
            Err(wait) => {
                if !flush(thread, req, pending, source).await {
                    return false;
                }
                source.meanwhile(req, false, Instant::now() + wait).await;
                if client_gone_within(thread, req, Duration::ZERO).await {
                    return false;
                }
                continue;
            }
        };
        let (now, later) = rest.split_at(n.min(rest.len()));
        rest = later;
        let then = if rest.is_empty() { follows } else { Follows::More };
        if !push_piece(req, now, then, chunked, pending) {
            flush(thread, req, pending, source).await;
            return false;
        }
        pace.sent += now.len() as u64;
        if filtered && then == Follows::More && !now.is_empty() {
            // Filters compute: others of the thread have their turn, too.
            thread.reactor.yield_now().await;
        }
        if pending.len() >= GATHERED && !flush(thread, req, pending, source).await {
            return false;
        }
        if rest.is_empty() {
            return true;
        }
    }
}

/// Writes what has gathered; while the client takes nothing, the source is read ahead.
async fn flush(thread: &Rc<Thread>, req: &mut Request, pending: &mut Vec<u8>, source: &mut Body) -> bool {
    let mut rest = pending.as_slice();
    let mut ok = true;
    let mut full = false;
    while (!rest.is_empty() || full) && ok {
        match req.conn.wire.send(thread, rest, Then::Nothing) {
            Ok(sent) => {
                req.sent += sent.bytes as u64;
                rest = rest.get(sent.bytes..).unwrap_or_default();
                full = sent.full;
            }
            Err(Errno::AGAIN) => full = true,
            Err(e) => {
                ok = failed(req, "writev()", e);
                continue;
            }
        }
        if full {
            let http = req.http();
            let until = Instant::now() + http.location(req).settings.core.send_timeout.0;
            if !source.meanwhile(req, true, until).await {
                ok = too_slow(req);
            }
        }
    }
    pending.clear();
    ok
}

/// Logs a client that takes nothing in time.
fn too_slow(req: &mut Request) -> bool {
    req.timed_out = true;
    req.log(Level::Info, "client timed out (110: Connection timed out) while sending response to client");
    false
}

fn end_chunks(req: &mut Request, pending: &mut Vec<u8>) {
    crate::modules::headers::trailers(req);
    pending.extend_from_slice(b"0\r\n");
    for (name, value) in req.resp.trailers.iter() {
        pending.extend_from_slice(name);
        pending.extend_from_slice(b": ");
        pending.extend_from_slice(value);
        pending.extend_from_slice(b"\r\n");
    }
    pending.extend_from_slice(b"\r\n");
}

/// Waits; `true` if the client resets the connection meanwhile. One that has only said that it will send no
/// more may still be reading.
async fn client_gone_within(thread: &Rc<Thread>, req: &Request, wait: Duration) -> bool {
    let gone = async {
        if let Some(s) = req.conn.wire.as_stream() {
            return std::future::poll_fn(|cx| s.poll_broken(cx)).await;
        }
        loop {
            match wire::peek(&thread.reactor, req.conn.wire.token()) {
                Err(Errno::AGAIN) => req.conn.wire.wait_readable(thread).await,
                // The next request or the end is here already; it will be read later.
                Ok(_) => std::future::pending().await,
                Err(_) => return,
            }
        }
    };
    thread.reactor.deadline(Instant::now() + wait, gone).await.is_some()
}

/// Most of a body that is put through filters at once, bytes.
fn piece_limit(req: &Request) -> u64 {
    if req.resp.filters.iter().any(|f| f.expands()) { 2 * 1024 } else { 32 * 1024 }
}

/// What follows a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follows {
    /// More, soon.
    More,
    /// Nothing for a while: what the filters hold is to leave.
    Pause,
    /// Nothing.
    End,
}

/// Sends a piece through the filters and frames it. `false`: a filter cannot go on.
fn push_piece(req: &mut Request, piece: &[u8], follows: Follows, chunked: bool, out: &mut Vec<u8>) -> bool {
    if req.resp.filters.is_empty() {
        frame(piece, chunked, out);
        return true;
    }
    let (mut from, mut to) = (req.take_buf(), req.take_buf());
    let mut done = Ok(());
    for (i, f) in req.resp.filters.iter_mut().enumerate() {
        let input = if i == 0 { piece } else { from.as_slice() };
        done = f.feed(input, follows == Follows::End, &mut to);
        if done.is_ok() && follows == Follows::Pause {
            done = f.flush(&mut to);
        }
        if done.is_err() {
            break;
        }
        std::mem::swap(&mut from, &mut to);
        to.clear();
    }
    if done.is_ok() {
        frame(&from, chunked, out);
    }
    req.give_buf(from);
    req.give_buf(to);
    if let Err(crate::response::Broken(what)) = done {
        req.log(Level::Error, &format!("{what} while sending response to client"));
    }
    done.is_ok()
}

/// Appends bytes of a body, as a chunk where it goes in chunks.
fn frame(bytes: &[u8], chunked: bool, out: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    if !chunked {
        out.extend_from_slice(bytes);
        return;
    }
    let digits = (usize::BITS - bytes.len().leading_zeros()).div_ceil(4);
    for i in (0..digits).rev() {
        out.push(b"0123456789abcdef"[bytes.len() >> (4 * i) & 15]);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

async fn flush_parts(thread: &Rc<Thread>, req: &mut Request, pending: &mut Vec<u8>) -> bool {
    if pending.is_empty() {
        return true;
    }
    let ok = write_all(thread, req, pending).await;
    pending.clear();
    ok
}

/// The head before a file: held back by the kernel so that it leaves with the first bytes of the file.
async fn send_head_more(thread: &Rc<Thread>, req: &mut Request, pending: &mut Vec<u8>) -> bool {
    if pending.is_empty() {
        return true;
    }
    if let Ok(sent) = req.conn.wire.send(thread, pending, Then::More) {
        req.sent += sent.bytes as u64;
        pending.drain(..sent.bytes);
    }
    flush_parts(thread, req, pending).await
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
async fn send_file(thread: &Rc<Thread>, req: &mut Request, file: &Rc<OpenFile>, start: u64, n: u64) -> bool {
    let mut offset = start;
    let end = start + n;
    let mut checked = start;
    while offset < end {
        if offset >= checked {
            if offset > start {
                // A client that reads as fast as the file is sent must not hold up the thread.
                thread.reactor.yield_now().await;
            }
            let stretch = (end - offset).min(PIECE);
            if !resident(file, offset, stretch) {
                warm(file, offset, stretch).await;
            }
            checked = offset + stretch;
        }
        let count = (checked - offset) as usize;
        match req.conn.wire.send_file(thread, &file.fd, &mut offset, count) {
            // The file became shorter: what was promised cannot be kept.
            Ok(sent) if sent.bytes == 0 && !sent.full => {
                req.log(Level::Alert, &format!("sendfile() reported that file was truncated at {offset}"));
                return false;
            }
            Ok(sent) => {
                req.sent += sent.bytes as u64;
                if sent.full && !room(thread, req).await {
                    return false;
                }
            }
            Err(Errno::AGAIN) => {
                if !room(thread, req).await {
                    return false;
                }
            }
            Err(e) => return failed(req, "sendfile()", e),
        }
    }
    // Over TLS the last bytes may not have left yet.
    flush_wire(thread, req).await
}

/// Sends what the connection owes the socket; nothing where it is plain.
async fn flush_wire(thread: &Rc<Thread>, req: &mut Request) -> bool {
    while req.conn.wire.owes() {
        match req.conn.wire.send(thread, b"", Then::Nothing) {
            Ok(sent) if !sent.full => break,
            Ok(_) | Err(Errno::AGAIN) => {
                if !room(thread, req).await {
                    return false;
                }
            }
            Err(e) => return failed(req, "writev()", e),
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
