//! The raw client: sends bytes as they are, and reads answers by their framing.

use crate::{Answer, DEADLINE, field};
use std::fmt::Display;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;

/// Opens a connection whose reads have a deadline.
pub fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&addr, DEADLINE).expect("connect");
    stream.set_nodelay(true).expect("option");
    stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
    stream
}

/// Opens a connection that receives little at a time, so that the server has unsent bytes.
pub fn connect_with_small_buffer(addr: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    socket.connect(&addr.into()).expect("connection");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
    stream
}

/// Sends bytes and reads until the server closes or is silent for two seconds.
pub fn raw(addr: SocketAddr, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let mut stream = TcpStream::connect_timeout(&addr, DEADLINE).expect("connect");
    // A server that has begun and pauses is done, unless it was asked to close: then only the close counts. A busy machine
    // may pause for seconds.
    let closes = bytes.windows(17).any(|w| w.eq_ignore_ascii_case(b"connection: close"));
    let pause = if closes { DEADLINE } else { DEADLINE / 10 };
    stream.set_read_timeout(Some(DEADLINE / 2)).expect("timeout");
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut buffer = [0; 16384];
    while let Ok(length) = stream.read(&mut buffer) {
        if length == 0 {
            break;
        }
        answer.extend_from_slice(&buffer[..length]);
        stream.set_read_timeout(Some(pause)).expect("timeout");
    }
    answer
}

/// As [`raw`], and returns text.
pub fn ask(addr: SocketAddr, bytes: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(&raw(addr, bytes)).into_owned()
}

/// Returns a request for a target after which the connection is closed.
pub fn get(target: impl Display) -> String {
    get_with(target, "")
}

/// The same with more fields, each with its line end.
pub fn get_with(target: impl Display, fields: impl Display) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}Connection: close\r\n\r\n")
}

/// Returns a request, `METHOD target`, after which the connection is closed. A body, or any method but GET, HEAD and the like, has
/// its length.
pub fn request(line: impl Display, fields: impl Display, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let line = line.to_string();
    let has_length = !body.is_empty() || ["POST", "PUT", "PATCH"].iter().any(|m| line.starts_with(m));
    let length = if has_length { format!("Content-Length: {}\r\n", body.len()) } else { String::new() };
    let head = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}{length}\r\n");
    [head.as_bytes(), body].concat()
}

/// Returns a body in chunks of a length.
pub fn chunked(body: &[u8], length: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in body.chunks(length) {
        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

/// Returns the results of threads that must not panic.
pub fn join_all<T>(threads: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

/// A conversation over a connection of any kind.
pub trait Talk: Read + Write {
    /// Sends bytes.
    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.write_all(bytes.as_ref()).expect("sent");
    }

    /// Sends bytes and reads as many back.
    fn echo(&mut self, bytes: impl AsRef<[u8]>) -> Vec<u8> {
        self.send(&bytes);
        let mut answer = vec![0; bytes.as_ref().len()];
        self.read_exact(&mut answer).expect("an answer");
        answer
    }

    /// Sends a `GET` of a target on a connection that goes on.
    fn get(&mut self, target: impl Display) {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    }

    /// Reads until the text ends so, or the connection does.
    fn until(&mut self, end: &str) -> String {
        let (mut text, mut byte) = (Vec::new(), [0]);
        while !text.ends_with(end.as_bytes()) && matches!(self.read(&mut byte), Ok(1)) {
            text.push(byte[0]);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// As [`Talk::until`], for long texts after which nothing comes: it reads as much as there is.
    fn all_until(&mut self, end: &str) -> String {
        let (mut text, mut buf) = (Vec::new(), [0; 65536]);
        while !text.ends_with(end.as_bytes()) {
            match self.read(&mut buf) {
                Ok(n @ 1..) => text.extend_from_slice(&buf[..n]),
                _ => break,
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Reads a head, with the empty line.
    fn head(&mut self) -> String {
        self.until("\r\n\r\n")
    }

    /// Reads to the end. Fails if there is none in time.
    fn rest(&mut self) -> String {
        String::from_utf8_lossy(&self.rest_bytes()).into_owned()
    }

    /// As [`Talk::rest`], and returns bytes.
    fn rest_bytes(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        self.read_to_end(&mut all).expect("the rest");
        all
    }

    /// Reads one answer: its head, and its content by `Content-Length`, chunks, or the end of the connection.
    fn answer(&mut self) -> Answer {
        let head = self.head();
        let head = head.trim_end().to_owned();
        let lower = head.to_ascii_lowercase();
        let mut body = Vec::new();
        let status = crate::status(&head);
        if status.starts_with('1') || ["204", "304", ""].contains(&status) {
            return Answer { head, body };
        }
        if let Some(length) = field(&head, "Content-Length") {
            body.resize(length.parse().expect("a length"), 0);
            self.read_exact(&mut body).expect("the content");
        } else if lower.contains("transfer-encoding: chunked") {
            loop {
                let line = self.until("\r\n");
                let length = usize::from_str_radix(line.trim_end(), 16).expect("the size of a chunk");
                let from = body.len();
                body.resize(from + length, 0);
                self.read_exact(&mut body[from..]).expect("a chunk");
                if length == 0 {
                    while !["\r\n", ""].contains(&self.until("\r\n").as_str()) {}
                    break;
                }
                assert_eq!(self.until("\r\n"), "\r\n", "the end of a chunk");
            }
        } else {
            body = self.rest_bytes();
        }
        Answer { head, body }
    }
}

impl<S: Read + Write> Talk for S {}
