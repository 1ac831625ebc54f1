//! Servers of SCGI and uwsgi.

use crate::accept;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Request of a gateway: parameters, a line `NAME=VALUE` each, and content.
pub struct Call {
    /// Parameters; over uwsgi after a line with the modifiers.
    pub params: String,
    /// Content.
    pub content: Vec<u8>,
}

impl Call {
    /// Returns the value of a parameter, empty if there is none.
    pub fn get(&self, name: &str) -> &str {
        let values = self.params.lines().filter_map(|line| line.split_once('='));
        values.filter(|(n, _)| *n == name).map(|(_, value)| value).next().unwrap_or_default()
    }
}

/// Reads content of which the parameter `CONTENT_LENGTH` tells the length.
fn call(stream: &mut TcpStream, params: Vec<u8>) -> Option<Call> {
    let mut call = Call { params: String::from_utf8_lossy(&params).into_owned(), content: Vec::new() };
    call.content.resize(call.get("CONTENT_LENGTH").parse().unwrap_or(0), 0);
    stream.read_exact(&mut call.content).ok()?;
    Some(call)
}

/// Reads a request of SCGI.
pub fn scgi(stream: &mut TcpStream) -> Option<Call> {
    let (mut digits, mut byte) = (String::new(), [0]);
    loop {
        stream.read_exact(&mut byte).ok()?;
        match byte[0] {
            b':' => break,
            digit => digits.push(char::from(digit)),
        }
    }
    let mut all = vec![0; digits.parse::<usize>().expect("a length") + 1];
    stream.read_exact(&mut all).ok()?;
    assert_eq!(all.pop(), Some(b','));
    assert_eq!(all.pop(), Some(0));
    let parts: Vec<&[u8]> = all.split(|b| *b == 0).collect();
    call(stream, parts.chunks(2).flat_map(|p| [p[0], b"=", p[1], b"\n"].concat()).collect())
}

/// Reads a request of uwsgi.
pub fn uwsgi(stream: &mut TcpStream) -> Option<Call> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).ok()?;
    let mut all = vec![0; usize::from(u16::from_le_bytes([header[1], header[2]]))];
    stream.read_exact(&mut all).ok()?;
    let mut params = format!("modifiers {} {}\n", header[0], header[3]).into_bytes();
    let mut rest = all.as_slice();
    let part = |rest: &mut &[u8]| {
        let (len, after) = rest.split_at(2);
        let (text, after) = after.split_at(usize::from(u16::from_le_bytes([len[0], len[1]])));
        *rest = after;
        text.to_vec()
    };
    // A string of `uwsgi_string` has no length.
    while !rest.is_empty() && !rest.starts_with(b"--") {
        let (name, value) = (part(&mut rest), part(&mut rest));
        params.extend([name.as_slice(), b"=", &value, b"\n"].concat());
    }
    params.extend_from_slice(rest);
    call(stream, params)
}

/// Starts a server that reads one request of each connection by `read`, and sends what `answer` makes of it.
pub fn start(
    read: fn(&mut TcpStream) -> Option<Call>,
    answer: impl Fn(&Call) -> Vec<u8> + Send + Sync + 'static,
) -> SocketAddr {
    accept(move |mut stream, _| {
        let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
        if let Some(call) = read(&mut stream) {
            let _ = stream.write_all(&answer(&call));
        }
    })
}
