//! Stand-in for all upstreams of a request that is explained: it keeps what it receives, and answers over HTTP/1.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Largest part of a request that is kept, bytes.
const LARGEST: u64 = 256 << 10;

/// Longest time without a byte.
const PATIENCE: Duration = Duration::from_secs(10);

/// Response of the stand-in.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// Status.
    pub status: u16,
    /// Field lines.
    pub fields: Vec<String>,
}

/// A request that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Received {
    /// Request line and field lines.
    pub lines: Vec<String>,
    /// Bytes of content.
    pub content: u64,
}

/// The requests that were received so far.
#[derive(Clone, Default)]
pub(super) struct AllReceived(Arc<Mutex<Vec<Received>>>);

impl AllReceived {
    fn add(&self, received: Received) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(received);
    }

    /// Takes them.
    pub(super) fn take(&self) -> Vec<Received> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Starts it on a port of its own.
///
/// # Errors
/// Errors of the socket.
pub(super) fn start(answer: Answer) -> io::Result<(SocketAddr, AllReceived)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let all = AllReceived::default();
    let received = all.clone();
    std::thread::Builder::new().name("upstreams".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let (answer, received) = (answer.clone(), received.clone());
            std::thread::spawn(move || serve(&stream, &answer, &received));
        }
    })?;
    Ok((address, all))
}

/// Serves a connection until it ends.
fn serve(stream: &TcpStream, answer: &Answer, all: &AllReceived) -> Option<()> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let lines = head(&mut reader)?;
        let field = |name: &str| {
            let named =
                |line: &&String| line.split_once(':').is_some_and(|(n, _)| n.eq_ignore_ascii_case(name));
            lines
                .iter()
                .find(named)
                .and_then(|line| line.split_once(':'))
                .map(|(_, value)| value.trim().to_owned())
        };
        let length: u64 = field("Content-Length").and_then(|n| n.parse().ok()).unwrap_or(0);
        let is_chunked = field("Transfer-Encoding").is_some();
        let is_head = lines.first().is_some_and(|line| line.starts_with("HEAD "));
        let content = match is_chunked {
            true => chunks(&mut reader)?,
            false => io::copy(&mut (&mut reader).take(length), &mut io::sink()).ok()?,
        };
        all.add(Received { lines, content });
        (&mut &*stream).write_all(response(answer, is_head).as_bytes()).ok()?;
    }
}

/// Reads a head. `None`: the connection has ended, or what comes is not HTTP/1.
fn head(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    // Other protocols begin with a number or a byte that is no letter.
    reader.fill_buf().ok()?.first().filter(|b| b.is_ascii_uppercase())?;
    let mut reader = reader.take(LARGEST);
    loop {
        let mut line = Vec::new();
        reader.read_until(b'\n', &mut line).ok()?;
        let text = line.strip_suffix(b"\n")?;
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if text.is_empty() {
            return Some(lines).filter(|lines| !lines.is_empty());
        }
        lines.push(String::from_utf8_lossy(text).into_owned());
    }
}

/// Reads content in chunks. Returns its length.
fn chunks(reader: &mut impl BufRead) -> Option<u64> {
    let mut all = 0;
    loop {
        let mut line = String::new();
        reader.take(LARGEST).read_line(&mut line).ok()?;
        let length = u64::from_str_radix(line.trim().split(';').next()?, 16).ok()?;
        let wanted = length.checked_add(2)?;
        if io::copy(&mut reader.take(wanted), &mut io::sink()).ok()? != wanted {
            return None;
        }
        if length == 0 {
            return Some(all);
        }
        all += length;
    }
}

/// Makes the response.
fn response(answer: &Answer, is_head: bool) -> String {
    let body = if is_head || matches!(answer.status, 204 | 304) { "" } else { "stand-in\n" };
    let mut text = format!("HTTP/1.1 {} Stand-in\r\n", answer.status);
    let named = |name: &str| answer.fields.iter().any(|l| l.to_ascii_lowercase().starts_with(name));
    if !named("content-type:") {
        text.push_str("Content-Type: text/plain\r\n");
    }
    if !matches!(answer.status, 204 | 304) && !named("content-length:") {
        text.push_str("Content-Length: 9\r\n");
    }
    for line in &answer.fields {
        text.push_str(&format!("{line}\r\n"));
    }
    text.push_str("\r\n");
    text.push_str(body);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_kept_and_answered() {
        let answer = Answer { status: 404, fields: vec!["X-A: b".into()] };
        let (address, all) = start(answer).expect("a socket");
        let mut stream = TcpStream::connect(address).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let text = "POST /a HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        stream.write_all(text.as_bytes()).expect("send");
        let expected = "HTTP/1.1 404 Stand-in\r\nContent-Type: text/plain\r\nContent-Length: 9\r\nX-A: b\r\n\r\nstand-in\n";
        let mut came = vec![0; expected.len()];
        stream.read_exact(&mut came).expect("a response");
        assert_eq!(String::from_utf8_lossy(&came), expected);
        let lines = ["POST /a HTTP/1.1", "Host: b", "Transfer-Encoding: chunked"].map(str::to_owned).to_vec();
        assert_eq!(all.take(), [Received { lines, content: 3 }]);
    }
}
