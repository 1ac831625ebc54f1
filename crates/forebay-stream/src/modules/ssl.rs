//! TLS of clients' connections (nginx: ngx_stream_ssl_module).

use crate::config::Server;
use crate::session::Session;
use crate::thread::{Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_core::config::Address;
use forebay_core::log::error::Entry;
use forebay_core::tls::accept::{Handshake, TlsServers};
use forebay_core::tls::demands::Demands;
use forebay_core::tls::drive::{Driven, Patience};
use forebay_core::tls::server::ServerTls;
use forebay_core::tls::verdict;
use forebay_net::wire::Wire;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Virtual servers of the stream block in one thread.
#[derive(Clone, Copy)]
struct StreamServers<'h> {
    thread: &'h Rc<Thread>,
    conf: &'h Rc<ThreadConfig>,
}

impl TlsServers for StreamServers<'_> {
    type Eval = Session;

    fn demands(&self, server: usize) -> Demands {
        self.conf.stream.servers.get(server).map_or(Demands::UNMEETABLE, |s| s.tls.demands)
    }

    fn tls(&self, server: usize) -> Option<&Arc<ServerTls>> {
        self.conf.stream.servers.get(server)?.tls.handshakes.as_ref()
    }

    fn offers_optional(&self, _server: usize, _address: Option<&Address>) -> bool {
        false
    }

    fn quic_protocols(&self, _server: usize) -> &'static [&'static [u8]] {
        &[]
    }

    fn evaluator(&self, client: &Rc<Client>, server: usize) -> Session {
        let conf = self.conf.clone();
        let mut session = Session::of(self.thread.clone(), conf, Wire::Closed, client.clone());
        session.server = server;
        session
    }

    fn shows_hello(&self) -> bool {
        self.conf.stream.shows_hello
    }

    fn serial(&self) -> u64 {
        self.conf.stream.serial
    }

    fn certificate_dir(&self) -> &Path {
        &self.conf.stream.conf_dir
    }

    fn is_logged(&self, client: &Client, level: Level) -> bool {
        let logs = self.conf.error_logs(client.default_server(self.conf));
        logs.iter().any(|l| level <= l.level)
    }

    fn log(&self, client: &Client, level: Level, message: &str, tail: &str) {
        let logs = self.conf.error_logs(client.default_server(self.conf));
        let entry = Entry { level, connection: Some(client.number), message, tail: tail.as_bytes() };
        forebay_core::log::error::write(self.thread, logs, &entry);
    }
}

/// Makes the handshake of an encrypted connection, and chooses the server by its name. Returns the status with which the session is
/// refused.
pub(crate) async fn accept(s: &mut Session, server: &Server) -> Option<u16> {
    // Without TLS there is nothing to do. Another listener may have decrypted the connection that it passed on.
    if !s.wire.is_tls() || s.client.tls.is_some() {
        return None;
    }
    let until = server.settings.alpn.deadline(&s.thread.io);
    let (thread, conf) = (s.thread.clone(), s.conf.clone());
    let mut handshake = Handshake {
        thread: &thread.worker,
        active: &conf.active,
        servers: StreamServers { thread: &thread, conf: &conf },
        wire: &mut s.wire,
        client: &mut s.client,
    };
    let text = match handshake.drive(Patience::Until(until)).await {
        Driven::Done => {
            let name = s.client.tls.as_ref().and_then(|tls| tls.name.clone());
            return name.and_then(|name| choose_server(s, &name));
        }
        Driven::Over => return Some(500),
        Driven::Plain(_) => "SSL_do_handshake() failed (SSL: wrong version number)",
        Driven::Paused | Driven::TimedOut => "client timed out (110: Connection timed out)",
    };
    s.log(Level::Info, &format!("{text} while SSL handshaking"));
    Some(500)
}

/// Sets the server of the name that the client asked for, and the groups of its pattern. Returns the status with which the
/// session is refused: a pattern has exceeded its limits.
pub(crate) fn choose_server(s: &mut Session, name: &[u8]) -> Option<u16> {
    let conf = s.conf.clone();
    let address = s.client.address(&conf)?;
    let found = match address.names.find(name) {
        Ok(found) => found,
        Err(p) => {
            p.log_failure(s, name);
            return Some(500);
        }
    };
    let (server, pattern) = found?;
    s.server = server;
    match pattern.map(|p| p.exec(s, name)) {
        Some(Err(_)) => Some(500),
        _ => None,
    }
}

/// Compares the client with the demands of the server. Returns the status with which the session is refused.
pub(crate) fn judge(s: &Session) -> Option<u16> {
    let servers = StreamServers { thread: &s.thread, conf: &s.conf };
    let demands = servers.demands(s.server);
    let Some(session) = s.client.tls.as_ref() else {
        // A listener without `ssl` demands nothing.
        let ssl = s.client.address(&s.conf).is_some_and(|a| a.options.ssl);
        return (ssl && demands.any()).then_some(500);
    };
    verdict::compare(&servers, &s.conf, &s.client);
    let refusal = demands.refuse(session)?;
    s.log(Level::Info, &format!("{} while SSL handshaking", refusal.text()));
    Some(500)
}
