//! Connection that a health check is made over.

#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

use crate::control::{Line, Opened};
use crate::tls::client::ClientTls;
use forebay_http::proxy_protocol::{self, HeaderVersion};
use forebay_net::addr::PeerAddr;
use forebay_net::blame::Blamed;
use forebay_net::dial::LocalAddress;
use forebay_sys::errno::errno;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Connection to the server of a check, to be opened.
#[derive(Debug)]
pub struct Visit<'c> {
    /// Address of the server.
    pub addr: &'c PeerAddr,
    /// Address that the connection comes from (nginx: proxy_bind); `None` leaves it to the system.
    pub local: Option<LocalAddress>,
    /// Header of the PROXY protocol that the connection begins with (nginx: proxy_protocol).
    pub announce: Option<HeaderVersion>,
    /// Encryption (nginx: proxy_ssl).
    pub tls: Option<&'c Arc<ClientTls>>,
    /// Name of the server for TLS, unless `proxy_ssl_name` gives another.
    pub host: &'c [u8],
    /// Protocols offered by ALPN.
    pub protocols: &'c [&'c [u8]],
    /// Time limit for the connection, and again for the handshake.
    pub timeout: Duration,
}

impl Visit<'_> {
    /// Opens a connection.
    ///
    /// # Errors
    /// The step that failed, for the log, with the side at fault.
    pub async fn open(&self) -> Result<Line, Blamed<String>> {
        let mut line = step("connecting to", self.timeout, self.connect()).await?;
        if let Some(version) = self.announce {
            let mut header = Vec::new();
            // There is no client to announce.
            proxy_protocol::write(version, None, b"", &mut header);
            let sent = line.write_all(&header).await;
            sent.map_err(|e| {
                Blamed::from(e).map(|e| format!("sending PROXY protocol header to upstream ({})", errno(&e)))
            })?;
        }
        if let Some(tls) = self.tls {
            step("SSL handshaking to", self.timeout, self.secure(&mut line, tls)).await?;
        }
        Ok(line)
    }

    async fn connect(&self) -> Opened {
        match self.local {
            Some(local) => Line::open_from(local, self.addr).await,
            None => Line::open(self.addr).await,
        }
    }

    /// Encrypts a connection. Verifies the server's certificate if `proxy_ssl_verify` asks for it.
    async fn secure(&self, line: &mut Line, tls: &ClientTls) -> Result<(), Blamed<io::Error>> {
        let begun = tls.begin_check(self.host, self.protocols);
        let (name, connection) = begun.map_err(|e| Blamed::Own(io::Error::other(e)))?;
        let certificates = line.secure(connection).await.map_err(Blamed::from)?;
        tls.judge(certificates, &name).map_err(|e| Blamed::Peer(io::Error::other(e)))
    }
}

/// Limits the time of a step of a check. `doing`: the step, in the words of the log.
///
/// # Errors
/// The text about the failure, with the side at fault.
pub async fn step<T, E: Into<Blamed<io::Error>>>(
    doing: &str,
    limit: Duration,
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, Blamed<String>> {
    match timeout(limit, step).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(e)) => Err(e.into().map(|e| format!("{doing} upstream ({})", errno(&e)))),
        Err(_) => Err(Blamed::Peer(format!("{doing} upstream (timed out)"))),
    }
}
