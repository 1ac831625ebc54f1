//! Sends a request whose body was read before, over HTTP/1 and the protocols that are framed like it. Hot path.

use super::CALL;
use super::codec;
use super::exchange::Outgoing;
use super::fault::{Fault, SENDING, client_gone, send_failed, send_timeout};
use crate::modules::proxy::NextUpstream;
use forebay_conf::error::Level;
use forebay_core::upstream::conn::Conn;
use forebay_net::wait::{For, Waited};
use forebay_net::wire::Watch;
use forebay_server::draft::Readable;
use forebay_server::request::Request;
use forebay_sys::errno::errno_text;
use rustix::io::Errno;
use std::time::Duration;

/// Longest content that is copied into one buffer with its head, bytes: for longer content, describing two pieces to the
/// kernel costs less.
const COPY: usize = 4096;

/// Largest number of bytes of a file that one call sends.
const PIECE: u64 = 1 << 20;

/// Writer of a request.
pub(super) struct Sender<'s> {
    pub(super) conn: &'s Conn,
    /// Longest time for which the server may read nothing (nginx: proxy_send_timeout).
    pub(super) timeout: Duration,
    pub(super) watch: &'s mut Watch,
}

/// Bytes to be written, and content that follows them, without a copy.
struct Unwritten<'b> {
    bytes: &'b [u8],
    content: Content<'b>,
    /// Number of bytes of the content that are written.
    at: usize,
}

/// Content of a request.
#[derive(Clone, Copy)]
enum Content<'b> {
    Bytes(&'b [u8]),
    /// The client's body, which is in memory. It stays in the request, which may be sent to another server.
    Stored,
}

impl<'b> Unwritten<'b> {
    /// Returns the rest of the content.
    fn content<'r>(&self, req: &'r Request) -> &'r [u8]
    where
        'b: 'r,
    {
        let all = match self.content {
            Content::Bytes(bytes) => bytes,
            Content::Stored => &req.body.stored.mem,
        };
        all.get(self.at..).unwrap_or_default()
    }

    /// Counts bytes that are written.
    fn advance(&mut self, n: usize) {
        self.at += n.saturating_sub(self.bytes.len());
        self.bytes = self.bytes.get(n..).unwrap_or_default();
    }
}

/// End of a write.
pub(super) enum Wrote {
    All,
    /// The server answers already, or reads no more.
    Early,
}

/// Readiness of a server that took nothing.
enum Room {
    Some,
    /// The server answers instead.
    Answer,
}

impl Sender<'_> {
    /// Sends a head and the content after it.
    pub(super) async fn request(
        &mut self,
        req: &mut Request,
        head: &[u8],
        body: &Outgoing,
    ) -> Result<Wrote, Fault> {
        let mut both = Vec::new();
        let (mut rest, file) = unwritten(req, head, body, &mut both);
        // Boxed: most requests wait for their answer only, and keep no room for the state of a write that had to wait.
        let wrote = match self.write_at_once(req, &mut rest)? {
            Some(wrote) => wrote,
            None => Box::pin(self.write_rest(req, rest)).await?,
        };
        match (wrote, file) {
            (Wrote::All, Some(file)) => Box::pin(self.file(req, &file)).await,
            (wrote, _) => Ok(wrote),
        }
    }

    /// Writes all bytes unless the server answers before it has read them.
    async fn write(&mut self, req: &mut Request, bytes: &[u8]) -> Result<Wrote, Fault> {
        let mut rest = Unwritten { bytes, content: Content::Bytes(b""), at: 0 };
        match self.write_at_once(req, &mut rest)? {
            Some(wrote) => Ok(wrote),
            None => self.write_rest(req, rest).await,
        }
    }

    /// Writes as [`Sender::write`] does, once there is room.
    async fn write_rest(&mut self, req: &mut Request, mut rest: Unwritten<'_>) -> Result<Wrote, Fault> {
        loop {
            if let Room::Answer = self.room(req).await? {
                return Ok(Wrote::Early);
            }
            if let Some(wrote) = self.write_at_once(req, &mut rest)? {
                return Ok(wrote);
            }
        }
    }

    /// Writes as much as there is room for, and removes it from `rest`. Returns `None` if there is no room for the rest.
    fn write_at_once(&self, req: &mut Request, rest: &mut Unwritten<'_>) -> Result<Option<Wrote>, Fault> {
        loop {
            let content = rest.content(req);
            if rest.bytes.is_empty() && content.is_empty() && !self.conn.wire().has_unsent() {
                return Ok(Some(Wrote::All));
            }
            match self.conn.send_both(rest.bytes, content) {
                Ok(sent) => {
                    rest.advance(sent.bytes);
                    count(req, sent.bytes);
                }
                Err(Errno::AGAIN) => return Ok(None),
                // The server may have answered before it stopped reading, for example with 413.
                Err(Errno::PIPE | Errno::CONNRESET) if !self.conn.reused && self.conn.has_input() => {
                    return Ok(Some(Wrote::Early));
                }
                Err(e) => return Err(send_failed(req, e)),
            }
        }
    }

    /// Waits until the server reads on.
    async fn room(&mut self, req: &mut Request) -> Result<Room, Fault> {
        let deadline = req.thread.io.poller.after(self.timeout);
        match self.conn.wait(For::Both, deadline, self.watch).await {
            Waited::Ready => {}
            Waited::Timeout => return Err(send_timeout(req)),
            Waited::ClientGone => return Err(client_gone(req, "sending request to upstream")),
        }
        let came = if self.conn.wire().is_tls() {
            // TLS 1.3 servers send session tickets at any time (RFC 8446, section 4.6.1), so readable bytes are not
            // necessarily an answer.
            if !self.conn.readable() {
                return Ok(Room::Some);
            }
            let got = codec::read_into_head(req, self.conn);
            if let (Ok(n), Some(a)) = (got, req.modules.upstream.current()) {
                a.received += n as u64;
            }
            got
        } else {
            // If nothing has come, this marks the connection as drained. Otherwise the next wait would end at once.
            self.conn.peek()
        };
        Ok(if came == Err(Errno::AGAIN) { Room::Some } else { Room::Answer })
    }

    /// Sends the part of the client's body that is in a file.
    async fn file(&mut self, req: &mut Request, file: &Readable) -> Result<Wrote, Fault> {
        let codec = CALL.of(req).codec;
        let end = req.body.stored.in_file;
        let mut offset = 0;
        let mut frame = Vec::new();
        while offset < end {
            frame.clear();
            let to = offset + codec.push_file_piece(end - offset, &mut frame);
            if let Wrote::Early = self.write(req, &frame).await? {
                return Ok(Wrote::Early);
            }
            if let Wrote::Early = self.file_piece(req, file, &mut offset, to).await? {
                return Ok(Wrote::Early);
            }
        }
        frame.clear();
        codec.push_end(&mut frame);
        // Over TLS the last bytes of the file may not have left yet.
        self.write(req, &frame).await
    }

    /// Sends a file from `offset` up to `to`.
    async fn file_piece(
        &mut self,
        req: &mut Request,
        file: &Readable,
        offset: &mut u64,
        to: u64,
    ) -> Result<Wrote, Fault> {
        while *offset < to {
            let piece = (to - *offset).min(PIECE) as usize;
            match self.conn.send_file(file, offset, piece) {
                // The file is shorter than it was, so the announced length cannot be kept.
                Ok(sent) if sent.bytes == 0 && !sent.full => {
                    return Err(Fault::new(NextUpstream::Error, 500));
                }
                Ok(sent) => count(req, sent.bytes),
                Err(Errno::AGAIN) => {
                    if let Room::Answer = self.room(req).await? {
                        return Ok(Wrote::Early);
                    }
                }
                Err(Errno::PIPE | Errno::CONNRESET) if self.conn.has_input() => return Ok(Wrote::Early),
                Err(e) => {
                    req.log(Level::Error, &format!("sendfile() failed {} {SENDING}", errno_text(e)));
                    return Err(Fault::new(NextUpstream::Error, 502));
                }
            }
        }
        Ok(Wrote::All)
    }
}

/// Returns the bytes that are written first, and the file that follows. `both` is memory for a head together with its
/// content.
fn unwritten<'b>(
    req: &Request,
    head: &'b [u8],
    body: &'b Outgoing,
    both: &'b mut Vec<u8>,
) -> (Unwritten<'b>, Option<Readable>) {
    let (content, file) = parts(req, body);
    let codec = CALL.of(req).codec;
    let rest = if codec.sends_plain() && content.len() > COPY {
        let content = if let Outgoing::Bytes(bytes) = body { Content::Bytes(bytes) } else { Content::Stored };
        Unwritten { bytes: head, content, at: 0 }
    } else if content.is_empty() && (codec.sends_plain() || matches!(body, Outgoing::None)) {
        // Without content, the head has the end of the request already.
        Unwritten { bytes: head, content: Content::Bytes(b""), at: 0 }
    } else {
        // 64 bytes have room for the framing of one piece: the lines around a chunk, or the header of a record.
        both.reserve_exact(head.len() + content.len() + 64);
        both.extend_from_slice(head);
        codec.push_content(content, both);
        if file.is_none() {
            codec.push_end(both);
        }
        Unwritten { bytes: both, content: Content::Bytes(b""), at: 0 }
    };
    (rest, file)
}

/// Returns the content that is in memory, and the file with the rest.
fn parts<'p>(req: &'p Request, body: &'p Outgoing) -> (&'p [u8], Option<Readable>) {
    match (body, req.body.stored.file()) {
        (Outgoing::Bytes(b), _) => (b, None),
        (Outgoing::Stored, Some(file)) => (&[], Some(file)),
        (Outgoing::Stored, None) => (&req.body.stored.mem, None),
        _ => (&[], None),
    }
}

/// Counts bytes of a request (`$upstream_bytes_sent`).
fn count(req: &mut Request, bytes: usize) {
    if let Some(a) = req.modules.upstream.current() {
        a.sent += bytes as u64;
    }
}
