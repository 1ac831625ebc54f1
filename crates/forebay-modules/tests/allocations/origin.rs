//! An upstream for the paths of `paths.rs`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

/// Where requests for an event wait for the next one to be due.
pub(crate) type Ticks = Arc<Mutex<Receiver<()>>>;

/// Starts an upstream for HTTP and FastCGI. `/N` is answered with N bytes, or with the range of them that is asked for, `/events` with an
/// event for each tick, in chunks.
pub(crate) fn start(ticks: Ticks) -> (SocketAddr, SocketAddr) {
    (serve(move |stream| http(stream, &ticks)), serve(fastcgi))
}

/// Calls a function for each connection, in a thread of its own.
fn serve(each: impl Fn(TcpStream) -> Option<()> + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (each, stream) = (each.clone(), stream.expect("a connection"));
            stream.set_nodelay(true).expect("an option");
            std::thread::spawn(move || each(stream));
        }
    });
    addr
}

/// Reads a head. Returns it and what has come behind it.
fn head(stream: &mut TcpStream) -> Option<(String, usize)> {
    let (mut read, mut buf) = (Vec::new(), [0; 65536]);
    loop {
        if let Some(end) = read.windows(4).position(|w| w == b"\r\n\r\n") {
            return Some((String::from_utf8_lossy(&read[..end]).to_ascii_lowercase(), read.len() - end - 4));
        }
        match stream.read(&mut buf) {
            Ok(n) if n > 0 => read.extend_from_slice(&buf[..n]),
            _ => return None,
        }
    }
}

/// The value of a field in a head of small letters.
fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Answers requests until the connection ends.
fn http(mut stream: TcpStream, ticks: &Ticks) -> Option<()> {
    let mut buf = vec![0; 65536];
    loop {
        let (head, mut got) = head(&mut stream)?;
        let len = field(&head, "content-length").map_or(0, |len| len.parse().expect("a number"));
        while got < len {
            got += stream.read(&mut buf).ok().filter(|n| *n > 0)?;
        }
        let path = head.split(' ').nth(1)?.trim_start_matches('/').split('?').next()?;
        if path == "events" {
            return events(stream, ticks);
        }
        let mut content = vec![b'x'; path.parse().unwrap_or(7)];
        let mut status = "200 OK".to_owned();
        if let Some(range) = field(&head, "range").and_then(|range| range.strip_prefix("bytes=")) {
            let (from, to) = range.split_once('-')?;
            let (from, to): (usize, usize) = (from.parse().ok()?, to.parse().ok()?);
            status = format!("206 Partial Content\r\nContent-Range: bytes {from}-{to}/{}", content.len());
            content.truncate(to - from + 1);
        }
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nETag: \"1\"\r\n\r\n",
            content.len()
        );
        stream.write_all(&[answer.as_bytes(), &content].concat()).ok()?;
    }
}

/// Sends an event for each tick.
fn events(mut stream: TcpStream, ticks: &Ticks) -> Option<()> {
    let ticks = ticks.lock().ok()?;
    stream
        .write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        )
        .ok()?;
    while ticks.recv().is_ok() {
        stream.write_all(b"a\r\ndata: abc\n\r\n").ok()?;
    }
    None
}

/// Answers one request of FastCGI, and ends the connection.
fn fastcgi(mut stream: TcpStream) -> Option<()> {
    loop {
        let mut record = [0; 8];
        stream.read_exact(&mut record).ok()?;
        let len = u16::from_be_bytes([record[4], record[5]]);
        let mut content = vec![0; usize::from(len) + usize::from(record[6])];
        stream.read_exact(&mut content).ok()?;
        // The last record of the request's body is empty.
        if record[1] == 5 && len == 0 {
            break;
        }
    }
    let content = b"Content-Type: text/plain\r\n\r\nfastcgi";
    let mut answer = vec![1, 6, 0, 1, 0, content.len() as u8, 0, 0];
    answer.extend_from_slice(content);
    answer.extend_from_slice(&[1, 3, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    stream.write_all(&answer).ok()
}
