//! A connection for health checks, plain or encrypted as the location's `proxy_ssl_*` say.

use crate::tls::client::ClientTls;
use forebay_net::addr::PeerAddr;
use rustls::ClientConnection;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::sync::Arc;
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// Bytes read at once.
const READ: usize = 16 * 1024;

trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// A connection.
pub struct Line {
    socket: Box<dyn Socket>,
    tls: Option<Box<ClientConnection>>,
    /// When it was opened.
    pub opened: Instant,
}

impl Line {
    /// Opens one; `port` instead of that of the address.
    ///
    /// # Errors
    /// That it cannot.
    pub async fn open(addr: &PeerAddr, port: Option<u16>) -> Result<Line> {
        let socket: Box<dyn Socket> = match addr {
            PeerAddr::Inet(a) => {
                let mut a = *a;
                if let Some(port) = port {
                    a.set_port(port);
                }
                Box::new(TcpStream::connect(a).await?)
            }
            PeerAddr::Unix(p) => Box::new(UnixStream::connect(p).await?),
        };
        Ok(Line { socket, tls: None, opened: Instant::now() })
    }

    /// From now on encrypted. The server's certificate is judged where `proxy_ssl_verify` asks for it.
    ///
    /// # Errors
    /// That it cannot, or that the certificate is not good.
    pub async fn secure(&mut self, tls: &Arc<ClientTls>, host: &[u8]) -> Result<()> {
        let (name, connection) = tls.begin_check(host).map_err(Error::other)?;
        self.tls = Some(Box::new(connection));
        while self.tls.as_ref().is_some_and(|t| t.is_handshaking()) {
            self.flush().await?;
            if self.tls.as_ref().is_some_and(|t| t.wants_read()) && !self.fill().await? {
                return Err(Error::new(ErrorKind::UnexpectedEof, "peer closed connection in SSL handshake"));
            }
        }
        self.flush().await?;
        let certificates = self.tls.as_ref().and_then(|t| t.peer_certificates()).unwrap_or_default();
        tls.judge(certificates, &name).map_err(Error::other)
    }

    /// Sends what the encryption has to send.
    async fn flush(&mut self) -> Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        let mut records = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut records)?;
        }
        self.socket.write_all(&records).await
    }

    /// Takes records in. `false`: there are no more.
    async fn fill(&mut self) -> Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(false) };
        let mut raw = [0; READ];
        let n = self.socket.read(&mut raw).await?;
        let mut rest = raw.get(..n).unwrap_or_default();
        while !rest.is_empty() {
            tls.read_tls(&mut rest)?;
            if let Err(e) = tls.process_new_packets() {
                // The alert that says why.
                let _ = self.flush().await;
                return Err(Error::other(e));
            }
        }
        Ok(n > 0)
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// Those of the socket and the encryption.
    pub async fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.tls {
            Some(tls) => {
                tls.writer().write_all(bytes)?;
                self.flush().await
            }
            None => self.socket.write_all(bytes).await,
        }
    }

    /// Appends what comes; 0 is the end.
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
            if !self.fill().await? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
