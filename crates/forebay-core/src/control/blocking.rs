//! Blocking face of the client, for tools that ask a server and end.
//!
//! A connection brings a runtime of its own. Its operations end when the time is up, as those of a socket with a time limit.

#![allow(clippy::disallowed_methods, reason = "no connection of a server: tools have no reactor")]

use super::{Failure, Line, Read};
use forebay_http::h1::client::ResponseHead;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustls::ClientConnection;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Sleep, sleep};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Address and port.
    Inet(SocketAddr),
    /// Host and port. The first address of the host that accepts is taken.
    Host(String, u16),
    /// Unix socket.
    Unix(PathBuf),
}

/// Longest wait.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// For each operation.
    Each(Duration),
    /// For all operations, until a time.
    Until(Instant),
}

impl Patience {
    fn left(self) -> io::Result<Duration> {
        let left = match self {
            Patience::Each(time) => time,
            Patience::Until(end) => end.saturating_duration_since(Instant::now()),
        };
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// Longest parts of a response, bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Head.
    pub head: usize,
    /// Body. A longer one is read in part.
    pub body: usize,
}

/// Response to a GET request.
#[derive(Debug)]
pub struct Response {
    /// Head as it came.
    pub head: Vec<u8>,
    /// Status.
    pub status: u16,
    /// Content.
    pub body: Vec<u8>,
    /// Part of the content that was read.
    pub read: Read,
    /// The connection may serve another request.
    pub keeps: bool,
}

/// Why there is no response.
#[derive(Debug)]
pub enum NoResponse {
    /// Its head is longer than the limit.
    LongHead,
    /// The exchange has failed.
    Failed(Failure),
}

impl From<Failure> for NoResponse {
    fn from(failure: Failure) -> NoResponse {
        NoResponse::Failed(failure)
    }
}

/// Connection to a server.
pub struct Connection {
    line: Line,
    runtime: Runtime,
}

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// Those of the socket, and the end of the time.
    pub fn open(address: &Address, patience: Patience) -> io::Result<Connection> {
        match address {
            Address::Inet(address) => {
                Connection::over_tcp(TcpStream::connect_timeout(address, patience.left()?)?, patience)
            }
            Address::Host(host, port) => Connection::over_tcp(connect_host(host, *port, patience)?, patience),
            Address::Unix(path) => Connection::over_unix(connect_unix(path, patience)?, patience),
        }
    }

    fn over_tcp(socket: TcpStream, patience: Patience) -> io::Result<Connection> {
        socket.set_nonblocking(true)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let inner = {
            let _guard = runtime.enter();
            tokio::net::TcpStream::from_std(socket)?
        };
        Ok(Connection { line: Line::over(Timed { inner, patience, timer: None }), runtime })
    }

    fn over_unix(socket: UnixStream, patience: Patience) -> io::Result<Connection> {
        socket.set_nonblocking(true)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let inner = {
            let _guard = runtime.enter();
            tokio::net::UnixStream::from_std(socket)?
        };
        Ok(Connection { line: Line::over(Timed { inner, patience, timer: None }), runtime })
    }

    /// Encrypts the connection. The configuration of `tls` verifies the server.
    ///
    /// # Errors
    /// Those of the socket and of the handshake.
    pub fn secure(&mut self, tls: ClientConnection) -> io::Result<()> {
        self.runtime.block_on(self.line.secure(tls)).map(|_| ())
    }

    /// Sends a request.
    ///
    /// # Errors
    /// [`Failure::Send`].
    pub fn request(&mut self, text: &[u8]) -> Result<(), Failure> {
        self.runtime.block_on(self.line.request(text))
    }

    /// Closes the direction to the server.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn end(&mut self) -> io::Result<()> {
        self.runtime.block_on(self.line.shutdown())
    }

    /// Reads the first bytes of what comes, or all of it if the connection ends before.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn beginning(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.runtime.block_on(async {
            while bytes.len() < len && self.line.read(&mut bytes).await? > 0 {}
            bytes.truncate(len);
            Ok(bytes)
        })
    }

    /// Reads the head of a response that has no content, since the method of its request was HEAD.
    ///
    /// # Errors
    /// As [`Connection::response`].
    pub fn head(&mut self, limit: usize) -> Result<Vec<u8>, NoResponse> {
        let head = self.runtime.block_on(final_head(&mut self.line, limit))?;
        Ok(head.buf.get(..head.len).unwrap_or_default().to_vec())
    }

    /// Reads a response.
    ///
    /// # Errors
    /// Those of the connection, and a response that is not valid or has too long a head.
    pub fn response(&mut self, limits: Limits) -> Result<Response, NoResponse> {
        self.runtime.block_on(async {
            let head = final_head(&mut self.line, limits.head).await?;
            let body = self.line.body(&head, limits.body).await?;
            let keeps = body.read == Read::All && head.keep_alive;
            let text = head.buf.get(..head.len).unwrap_or_default().to_vec();
            Ok(Response { head: text, status: head.status, body: body.bytes, read: body.read, keeps })
        })
    }
}

/// Reads heads up to the final one.
async fn final_head(line: &mut Line, limit: usize) -> Result<ResponseHead, NoResponse> {
    let mut head = ResponseHead::default();
    loop {
        match line.head(&mut head, limit).await {
            Err(Failure::InvalidHead) if head.buf.len() >= limit => return Err(NoResponse::LongHead),
            read => read?,
        }
        if !head.is_interim() {
            return Ok(head);
        }
        let len = head.len;
        head.advance(len);
    }
}

/// Connects to the first address of a host that accepts.
fn connect_host(host: &str, port: u16, patience: Patience) -> io::Result<TcpStream> {
    let mut failure = None;
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience.left()?) {
            Ok(stream) => return Ok(stream),
            Err(e) => failure = Some(e),
        }
    }
    Err(failure.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"))))
}

/// Connects to a unix socket. While its queue is full, the kernel waits as long as a write may take.
fn connect_unix(path: &Path, patience: Patience) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience.left()?))?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(UnixStream::from(socket)),
        Err(Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
        Err(e) => Err(e.into()),
    }
}

/// Socket whose operations end when the time is up.
struct Timed<S> {
    inner: S,
    patience: Patience,
    /// Timer of the operation that waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> Timed<S> {
    /// Ends an operation that is ready, or whose time is up.
    fn limit<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.timer = None;
            return poll;
        }
        let patience = self.patience;
        let timer = match &mut self.timer {
            Some(timer) => timer,
            None => self.timer.insert(Box::pin(sleep(patience.left()?))),
        };
        ready!(timer.as_mut().poll(cx));
        self.timer = None;
        // As a socket with a time limit.
        Poll::Ready(Err(Errno::AGAIN.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.inner).poll_read(cx, buf);
        self.limit(cx, poll)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.limit(cx, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const LIMITS: Limits = Limits { head: 64 << 10, body: 1 << 20 };

    /// Reads a response from a connection that ends after it.
    fn of(text: &str) -> Result<Response, NoResponse> {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        let text = text.to_owned();
        let writer = std::thread::spawn(move || {
            // The reader may have had enough.
            let _ = theirs.write_all(text.as_bytes());
        });
        let patience = Patience::Each(Duration::from_secs(20));
        let response = Connection::over_unix(ours, patience).expect("a connection").response(LIMITS);
        writer.join().expect("an end");
        response
    }

    #[test]
    fn a_response_ends_with_its_length_or_the_connection() {
        let kept = of("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").expect("a response");
        assert_eq!((kept.status, kept.body, kept.keeps), (200, b"{}".to_vec(), true));
        let closed = of("HTTP/1.1 404 No\r\n\r\nabc").expect("a response");
        assert_eq!((closed.status, closed.body, closed.keeps), (404, b"abc".to_vec(), false));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
        let chunked = of(chunked).expect("a response");
        assert_eq!((chunked.body, chunked.keeps), (b"{}".to_vec(), true));
        assert!(of("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}").is_err());
        assert!(of("HTTP/1.1").is_err() && of("hello\r\n\r\n").is_err());
        let endless = format!("HTTP/1.1 200 OK\r\n{}", "a: b\r\n".repeat(LIMITS.head));
        assert!(matches!(of(&endless), Err(NoResponse::LongHead)));
    }

    #[test]
    fn a_silent_server_has_its_time() {
        let (ours, _theirs) = UnixStream::pair().expect("sockets");
        let patience = Patience::Each(Duration::from_millis(20));
        let mut connection = Connection::over_unix(ours, patience).expect("a connection");
        let failure = connection.beginning(12).expect_err("no answer");
        assert_eq!(failure.kind(), io::ErrorKind::WouldBlock);
    }
}
