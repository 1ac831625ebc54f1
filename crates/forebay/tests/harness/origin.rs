//! An upstream whose every answer a test chooses.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A request as an upstream received it.
pub struct Asked {
    /// Head and, if `Content-Length` says so, body.
    pub text: String,
    /// The socket it came by.
    pub stream: TcpStream,
    /// Address of the other end.
    pub peer: SocketAddr,
}

impl Asked {
    /// The target of the request line.
    pub fn target(&self) -> &str {
        self.text.split(' ').nth(1).unwrap_or_default()
    }

    /// Value of a field, empty if there is none.
    pub fn field(&self, name: &str) -> &str {
        let line =
            self.text.lines().find(|l| l.split_once(':').is_some_and(|(n, _)| n.eq_ignore_ascii_case(name)));
        line.and_then(|l| l.split_once(':')).map_or("", |(_, v)| v.trim())
    }

    /// Writes an answer with this body, fields with their line ends before it.
    pub fn answer(&mut self, status: &str, fields: &str, body: &str) {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{fields}\r\n{body}", body.len());
        self.write(head.as_bytes());
    }

    /// Writes bytes; a client that is gone is no error.
    pub fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Resets the connection, once the answer says that it does not go on.
    pub fn reset(self) {
        let _ = rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
    }
}

/// Reads a request; `None` at the end of the connection.
fn read(stream: &mut TcpStream) -> Option<String> {
    let mut got = Vec::new();
    let mut buf = [0; 8192];
    loop {
        let n = stream.read(&mut buf).ok().filter(|n| *n > 0)?;
        got.extend_from_slice(&buf[..n]);
        let text = String::from_utf8_lossy(&got);
        let Some(end) = text.find("\r\n\r\n") else { continue };
        let length = text[..end].lines().find_map(|l| {
            let (name, value) = l.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        if got.len() >= end + 4 + length.unwrap_or(0) {
            return Some(String::from_utf8_lossy(&got).into_owned());
        }
    }
}

/// Starts one; `answer` is called for each request, and says whether the connection goes on.
pub fn start(answer: impl Fn(Asked) -> bool + Send + Sync + 'static) -> SocketAddr {
    serve(TcpListener::bind("127.0.0.1:0").expect("bind"), answer)
}

/// The same on a socket that is there.
pub fn serve(listener: TcpListener, answer: impl Fn(Asked) -> bool + Send + Sync + 'static) -> SocketAddr {
    let addr = listener.local_addr().expect("address");
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let Ok(peer) = stream.peer_addr() else { return };
                let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
                while let Some(text) = read(&mut stream) {
                    let Ok(own) = stream.try_clone() else { return };
                    if !answer(Asked { text, stream: own, peer }) {
                        return;
                    }
                }
            });
        }
    });
    addr
}
