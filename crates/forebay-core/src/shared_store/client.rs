//! Connection to the store.

use super::directive::Settings;
use super::resp::{self, Reply, command};
use crate::control::Line;
use forebay_net::addr::PeerAddr;
use forebay_sys::errno::errno_text;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io;
use std::sync::Arc;
use zeroize::Zeroizing;

/// A connection over which commands may be sent.
pub(super) struct Connection {
    line: Line,
    received: Vec<u8>,
    /// Whether a reply could not be read.
    pub(super) garbled: bool,
}

/// Most bytes of a reply.
const MAX_REPLY: usize = 8 << 20;

impl Connection {
    /// Opens a connection, with the first address of the store's name that accepts one.
    ///
    /// # Errors
    /// The text for the error log.
    pub(super) async fn open(s: &Settings, tls: Option<&Arc<ClientConfig>>) -> Result<Connection, String> {
        let mut line = dial(s).await?;
        if let Some(config) = tls {
            let name = ServerName::try_from(s.host.clone()).map_err(|e| e.to_string())?;
            let tls = ClientConnection::new(config.clone(), name).map_err(|e| e.to_string())?;
            line.secure(tls).await.map_err(|e| failed("TLS handshake", &e))?;
        }
        let mut connection = Connection { line, received: Vec::new(), garbled: false };
        connection.begin(s).await?;
        Ok(connection)
    }

    /// Authenticates, and chooses the database.
    async fn begin(&mut self, s: &Settings) -> Result<(), String> {
        // The password must not stay in memory that is freed.
        let mut out = Zeroizing::new(Vec::with_capacity(4096));
        let mut count = 0;
        if let Some(password) = &s.password {
            let mut words: Vec<&[u8]> = vec![b"AUTH"];
            words.extend(s.user.as_ref().map(String::as_bytes));
            words.push(password);
            command(&mut out, &words);
            count += 1;
        }
        if s.database != 0 {
            command(&mut out, &[b"SELECT", s.database.to_string().as_bytes()]);
            count += 1;
        }
        if count == 0 {
            return Ok(());
        }
        for reply in self.exchange(&out, count).await? {
            if let Reply::Error(text) = reply {
                return Err(text);
            }
        }
        Ok(())
    }

    /// Sends commands and returns their replies.
    ///
    /// # Errors
    /// The text for the error log.
    pub(super) async fn exchange(&mut self, commands: &[u8], count: usize) -> Result<Vec<Reply>, String> {
        self.line.write_all(commands).await.map_err(|e| failed("send()", &e))?;
        let mut replies = Vec::with_capacity(count);
        let mut done = 0;
        while replies.len() < count {
            let rest = self.received.get(done..).unwrap_or_default();
            let Ok(reply) = resp::reply(rest) else {
                self.garbled = true;
                return Err("its reply is not RESP".to_owned());
            };
            if let Some((reply, length)) = reply {
                replies.push(reply);
                done += length;
                continue;
            }
            self.received.drain(..done);
            done = 0;
            if self.received.len() > MAX_REPLY {
                self.garbled = true;
                return Err("its reply is too long".to_owned());
            }
            let read = self.line.read(&mut self.received).await.map_err(|e| failed("recv()", &e))?;
            if read == 0 {
                return Err("it closed the connection".to_owned());
            }
        }
        self.received.drain(..done);
        Ok(replies)
    }
}

/// Describes a failure, with errors of the system in nginx's form.
fn failed(what: &str, e: &io::Error) -> String {
    match rustix::io::Errno::from_io_error(e) {
        Some(errno) => format!("{what} failed {}", errno_text(errno)),
        None => format!("{what} failed: {e}"),
    }
}

async fn dial(s: &Settings) -> Result<Line, String> {
    let host = s.host.clone();
    let found = tokio::net::lookup_host((host.as_str(), s.port)).await;
    let found = found.map_err(|e| failed("resolving its name", &e))?;
    let mut last = "host not found".to_owned();
    for addr in found {
        match Line::open(&PeerAddr::Inet(addr)).await {
            Ok(line) => return Ok(line),
            Err(e) => last = failed("connect()", e.inner()),
        }
    }
    Err(last)
}

/// Makes the TLS configuration. Reads files if the system's authorities are to be trusted.
///
/// # Errors
/// The text for the error log.
pub(super) fn tls_config(s: &Settings) -> Result<Option<Arc<ClientConfig>>, String> {
    let Some(tls) = &s.tls else { return Ok(None) };
    let mut roots = RootCertStore::empty();
    let given = tls.authorities.clone();
    roots.add_parsable_certificates(given.unwrap_or_else(|| rustls_native_certs::load_native_certs().certs));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| e.to_string())?;
    Ok(Some(Arc::new(builder.with_root_certificates(roots).with_no_client_auth())))
}
