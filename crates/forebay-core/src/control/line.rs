//! A connection of the client, plain or encrypted.

use forebay_net::addr::PeerAddr;
use forebay_net::blame::{self, Blamed};
use forebay_net::dial::LocalAddress;
use forebay_sys::sockets;
use rustix::io::Errno;
use rustls::ClientConnection;
use rustls::pki_types::CertificateDer;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UnixStream};

/// Bytes read at once.
const READ: usize = 16 * 1024;

/// Result of opening a connection.
pub type Opened = std::result::Result<Line, Blamed<Error>>;

trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// A connection.
pub struct Line {
    socket: Box<dyn Socket>,
    tls: Option<Box<ClientConnection>>,
    /// Time at which it was opened.
    pub opened: Instant,
}

impl Line {
    /// Opens a connection.
    ///
    /// # Errors
    /// Those of the socket, with the side at fault.
    pub async fn open(addr: &PeerAddr) -> Opened {
        match addr {
            PeerAddr::Inet(a) => Ok(Line::over(TcpStream::connect(a).await.map_err(Blamed::from)?)),
            PeerAddr::Unix(p) => match UnixStream::connect(p).await {
                Ok(socket) => Ok(Line::over(socket)),
                Err(e) if Errno::from_io_error(&e).is_some_and(blame::is_own_of_unix) => Err(Blamed::Own(e)),
                Err(e) => Err(Blamed::Peer(e)),
            },
        }
    }

    /// Opens a connection that comes from a local address. Unix sockets have none.
    ///
    /// # Errors
    /// As [`Line::open`].
    pub async fn open_from(local: LocalAddress, addr: &PeerAddr) -> Opened {
        let PeerAddr::Inet(addr) = addr else { return Line::open(addr).await };
        // Up to here the server has no part in it, whatever the error.
        let socket = bound(local, addr.is_ipv4()).map_err(Blamed::Own)?;
        Ok(Line::over(socket.connect(*addr).await.map_err(Blamed::from)?))
    }

    pub(super) fn over(socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Line {
        Line { socket: Box::new(socket), tls: None, opened: Instant::now() }
    }

    /// Encrypts the connection. Returns the server's certificates, its own first, which the caller has to verify.
    ///
    /// # Errors
    /// Those of the socket and of the handshake.
    pub async fn secure(&mut self, tls: ClientConnection) -> Result<&[CertificateDer<'static>]> {
        self.tls = Some(Box::new(tls));
        while self.tls.as_ref().is_some_and(|t| t.is_handshaking()) {
            self.flush().await?;
            if self.tls.as_ref().is_some_and(|t| t.wants_read()) && self.fill().await? == 0 {
                return Err(Error::new(ErrorKind::UnexpectedEof, "peer closed connection in SSL handshake"));
            }
        }
        self.flush().await?;
        Ok(self.tls.as_ref().and_then(|t| t.peer_certificates()).unwrap_or_default())
    }

    /// Sends the records that wait.
    async fn flush(&mut self) -> Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        let mut records = Vec::new();
        while tls.wants_write() {
            // Into memory, since the socket can only be written to asynchronously.
            tls.write_tls(&mut records)?;
        }
        self.socket.write_all(&records).await
    }

    /// Reads records. Returns the number of their bytes; 0 is the end.
    async fn fill(&mut self) -> Result<usize> {
        let Some(tls) = &mut self.tls else { return Ok(0) };
        let mut raw = [0; READ];
        let n = self.socket.read(&mut raw).await?;
        let mut rest = raw.get(..n).unwrap_or_default();
        while !rest.is_empty() {
            // May take only a part, as far as its buffer has room: processing makes room for the rest.
            tls.read_tls(&mut rest)?;
            if let Err(e) = tls.process_new_packets() {
                // Sends the alert that gives the reason.
                let _ = self.flush().await;
                return Err(Error::other(e));
            }
        }
        Ok(n)
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// Those of the socket and of the encryption.
    pub async fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.tls {
            Some(tls) => {
                tls.writer().write_all(bytes)?;
                self.flush().await
            }
            None => self.socket.write_all(bytes).await,
        }
    }

    /// Closes the direction to the peer.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn shutdown(&mut self) -> Result<()> {
        self.socket.shutdown().await
    }

    /// Appends bytes that have come. Returns their number; 0 is the end.
    ///
    /// # Errors
    /// As [`Line::write_all`].
    pub async fn read(&mut self, buf: &mut Vec<u8>) -> Result<usize> {
        loop {
            let Some(tls) = &mut self.tls else { return self.socket.read_buf(buf).await };
            let mut piece = [0; READ];
            match tls.reader().read(&mut piece) {
                Ok(n) => {
                    buf.extend_from_slice(piece.get(..n).unwrap_or_default());
                    return Ok(n);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
            self.flush().await?;
            if self.fill().await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Creates a TCP socket with a local address.
fn bound(local: LocalAddress, v4: bool) -> Result<TcpSocket> {
    let socket = if v4 { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if local.transparent {
        sockets::set_transparent(&socket, local.addr.is_ipv6())?;
    }
    socket.bind(local.addr)?;
    Ok(socket)
}
