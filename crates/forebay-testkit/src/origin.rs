//! Upstreams over HTTP/1 whose every answer a test chooses.

use crate::{DEADLINE, field};
use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A request as an upstream received it.
pub struct Asked {
    /// Head and, if the upstream waits for it, the body that `Content-Length` announces.
    pub text: String,
    /// The socket it came by.
    pub stream: TcpStream,
    /// Address of the other end.
    pub peer: SocketAddr,
    /// Number of the connection, from 0.
    pub conn: usize,
    /// Bytes that were received after the head and are not read yet.
    pub buffer: Vec<u8>,
}

impl Asked {
    /// Returns the head.
    pub fn head(&self) -> &str {
        self.text.split_inclusive("\r\n\r\n").next().unwrap_or_default()
    }

    /// Returns the body, as far as it is in the text.
    pub fn body(&self) -> &str {
        crate::body(&self.text)
    }

    /// Returns the method.
    pub fn method(&self) -> &str {
        self.text.split(' ').next().unwrap_or_default()
    }

    /// Returns the target of the request line.
    pub fn target(&self) -> &str {
        self.text.split(' ').nth(1).unwrap_or_default()
    }

    /// Returns the value of a field, empty if there is none.
    pub fn field(&self, name: &str) -> &str {
        field(&self.text, name).unwrap_or_default()
    }

    /// Returns the range of a `Range` of one range: its first byte, and the one after its last, at most `length`.
    pub fn range(&self, length: usize) -> Option<(usize, usize)> {
        let (first, last) = self.field("Range").strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().map_or(length, |last: usize| (last + 1).min(length))))
    }

    /// Writes an answer with this body, after fields with their line ends. Returns `false` if the client is gone.
    pub fn answer(&mut self, status: &str, fields: &str, body: impl AsRef<[u8]>) -> bool {
        let body = body.as_ref();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{fields}\r\n", body.len());
        self.write([head.as_bytes(), body].concat())
    }

    /// Writes a part of some content, as `Range` asks for it, after fields with their line ends.
    pub fn part(&mut self, fields: &str, content: &[u8]) -> bool {
        let (from, to) = self.range(content.len()).expect("a range");
        let range = format!("Content-Range: bytes {from}-{}/{}\r\n{fields}", to - 1, content.len());
        self.answer("206 Partial Content", &range, &content[from..to])
    }

    /// Writes 200 with a body that names the connection.
    pub fn name(&mut self) -> bool {
        let name = format!("conn{}", self.conn);
        self.answer("200 OK", "", name)
    }

    /// Writes bytes. Returns `false` if the client is gone.
    pub fn write(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Writes bytes and closes the connection.
    pub fn close_with(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.write(bytes);
        false
    }

    /// Reads so many bytes after the head, or those that there are.
    pub fn take(&mut self, n: usize) -> Vec<u8> {
        while self.buffer.len() < n && self.more() {}
        let n = n.min(self.buffer.len());
        self.buffer.drain(..n).collect()
    }

    /// Reads more. Returns `false` at the end.
    pub fn more(&mut self) -> bool {
        let mut buf = [0; 65536];
        let n = self.stream.read(&mut buf).unwrap_or(0);
        self.buffer.extend_from_slice(&buf[..n]);
        n > 0
    }

    /// Reads the body by `Content-Length` or in chunks.
    pub fn take_body(&mut self) -> Vec<u8> {
        if let Ok(length) = self.field("Content-Length").parse() {
            return self.take(length);
        }
        let mut body = Vec::new();
        if self.field("Transfer-Encoding").is_empty() {
            return body;
        }
        loop {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                line.extend(self.take(1));
            }
            let length = usize::from_str_radix(String::from_utf8_lossy(&line).trim(), 16).expect("a length");
            body.extend(self.take(length));
            self.take(2);
            if length == 0 {
                return body;
            }
        }
    }

    /// Resets the connection, once the answer says that it does not go on.
    pub fn reset(&self) {
        reset(&self.stream);
    }
}

/// Has a connection end with a reset when it is closed.
pub fn reset(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// An upstream, which runs as long as the test program. `{}` shows its address.
#[derive(Clone, Copy)]
pub struct Origin {
    /// Its address.
    pub addr: SocketAddr,
    seen: &'static Seen,
}

/// What an upstream has seen.
#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<String>>,
    opened: AtomicUsize,
    closed: AtomicUsize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.addr.fmt(f)
    }
}

impl Deref for Origin {
    type Target = SocketAddr;

    fn deref(&self) -> &SocketAddr {
        &self.addr
    }
}

impl Origin {
    /// Starts one that answers whole requests. The function says whether the connection goes on.
    pub fn start(answer: impl Fn(&mut Asked) -> bool + Send + Sync + 'static) -> Origin {
        Origin::on(TcpListener::bind("127.0.0.1:0").expect("bind"), answer)
    }

    /// The same on a socket that is there.
    pub fn on(listener: TcpListener, answer: impl Fn(&mut Asked) -> bool + Send + Sync + 'static) -> Origin {
        Origin::serve(listener, true, answer)
    }

    /// Starts one that answers as soon as a head has come.
    pub fn at_head(answer: impl Fn(&mut Asked) -> bool + Send + Sync + 'static) -> Origin {
        Origin::serve(TcpListener::bind("127.0.0.1:0").expect("bind"), false, answer)
    }

    /// `waits`: for the body that `Content-Length` announces.
    fn serve(
        listener: TcpListener,
        waits: bool,
        answer: impl Fn(&mut Asked) -> bool + Send + Sync + 'static,
    ) -> Origin {
        let addr = listener.local_addr().expect("address");
        let seen: &Seen = Box::leak(Box::default());
        serve_connections(listener, move |stream, conn| {
            seen.opened.fetch_add(1, SeqCst);
            converse(stream, conn, |asked| {
                if waits {
                    let length = asked.field("Content-Length").parse().unwrap_or(0);
                    let body = asked.take(length);
                    if body.len() < length {
                        return false;
                    }
                    asked.text.push_str(&String::from_utf8_lossy(&body));
                }
                seen.requests.lock().unwrap_or_else(PoisonError::into_inner).push(asked.text.clone());
                answer(asked)
            });
            seen.closed.fetch_add(1, SeqCst);
        });
        Origin { addr, seen }
    }

    /// Returns how many requests have come.
    pub fn asked(&self) -> usize {
        self.requests().len()
    }

    /// Returns the requests, with the bodies that it waits for.
    pub fn requests(&self) -> Vec<String> {
        self.seen.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets the requests.
    pub fn forget(&self) {
        self.seen.requests.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns how many connections have been opened.
    pub fn opened(&self) -> usize {
        self.seen.opened.load(SeqCst)
    }

    /// Returns how many connections have ended.
    pub fn closed(&self) -> usize {
        self.seen.closed.load(SeqCst)
    }
}

/// Reads requests of a connection and has each answered.
fn converse(stream: TcpStream, conn: usize, answer: impl Fn(&mut Asked) -> bool) {
    let _ = stream.set_read_timeout(Some(DEADLINE * 3));
    let Ok(peer) = stream.peer_addr() else { return };
    let mut asked = Asked { text: String::new(), stream, peer, conn, buffer: Vec::new() };
    loop {
        let end = loop {
            match asked.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                Some(at) => break at + 4,
                None if !asked.more() => return,
                None => {}
            }
        };
        let head: Vec<u8> = asked.buffer.drain(..end).collect();
        asked.text = String::from_utf8_lossy(&head).into_owned();
        if !answer(&mut asked) {
            return;
        }
    }
}

/// Serves each connection of a listener on a thread of its own, with its number from 0.
fn serve_connections(listener: TcpListener, serve: impl Fn(TcpStream, usize) + Send + Sync + 'static) {
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream, number));
        }
    });
}

/// Starts a server for anything: it gets each connection on a thread of its own, with its number from 0.
pub fn accept(serve: impl Fn(TcpStream, usize) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    serve_connections(listener, serve);
    addr
}

/// Starts a server that sends back what it receives, until the client has ended. Counts the connections on which something
/// arrives: a test opens others to find out whether the server listens.
pub fn echo() -> (SocketAddr, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let addr = accept(move |mut stream, _| {
        let mut from = stream.try_clone().expect("clone");
        if matches!(from.peek(&mut [0]), Ok(1)) {
            counted.fetch_add(1, SeqCst);
        }
        let _ = std::io::copy(&mut from, &mut stream);
    });
    (addr, count)
}

/// Starts a server that accepts connections and neither reads nor answers, and counts them.
pub fn silent() -> (SocketAddr, Arc<AtomicUsize>) {
    let (open, count) = (Mutex::new(Vec::new()), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    let addr = accept(move |stream, _| {
        open.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        counted.fetch_add(1, SeqCst);
    });
    (addr, count)
}

/// Returns the content of chunks that may break off.
pub fn fragments(mut rest: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(end) = rest.windows(2).position(|w| w == b"\r\n") {
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        let Ok(length @ 1..) = usize::from_str_radix(&line, 16) else { break };
        rest = &rest[end + 2..];
        let (piece, after) = rest.split_at(length.min(rest.len()));
        all.extend_from_slice(piece);
        rest = after.get(2..).unwrap_or_default();
    }
    all
}
