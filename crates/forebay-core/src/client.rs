//! Clients of connections, as far as they are known.

use crate::config::Address;
use crate::limit::concurrency::Counted;
use crate::limit::shares::Network;
use crate::thread::ActiveConfig;
use crate::tls::Session;
use forebay_http::proxy_protocol::Header;
use forebay_net::addr::{Peer, push_peer};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

/// Client at the other end of a connection. All requests of the connection share it.
#[derive(Clone, Debug)]
pub struct Client {
    /// Serial number of the connection (`$connection`).
    pub number: u64,
    /// Address of the socket.
    pub peer: Peer,
    /// Local address, where the listener's is a wildcard.
    pub local: Option<SocketAddr>,
    /// Slot of the listener; see [`ActiveConfig::listeners`].
    pub listener: u32,
    /// Time at which the connection was accepted.
    pub accepted: Instant,
    /// PROXY protocol header.
    pub proxied: Option<Box<Header>>,
    /// Outcome of the TLS handshake.
    pub tls: Option<Rc<Session>>,
    /// Listener that has passed the connection on to this one.
    pub passed_from: Option<Rc<PassedFrom>>,
    /// The client sent plain bytes to a TLS port.
    pub unencrypted: bool,
}

/// State of a connection at a listener that has passed it on (nginx: ngx_stream_pass_module).
#[derive(Debug)]
pub struct PassedFrom {
    /// Places in zones of `limit_conn`, which the connection keeps until it ends.
    pub counted: Counted,
    /// Number of listeners that have passed it on.
    pub passes: u8,
    /// The listener before.
    pub earlier: Option<Rc<PassedFrom>>,
}

impl Client {
    /// Creates a client without a connection.
    pub fn none(accepted: Instant) -> Client {
        Client {
            number: 0,
            peer: Peer::Unix,
            local: None,
            listener: 0,
            accepted,
            proxied: None,
            tls: None,
            passed_from: None,
            unencrypted: false,
        }
    }

    /// Returns the number of the connection's listener in a configuration; `None` if a reload has removed it.
    fn listener(&self, conf: &ActiveConfig) -> Option<usize> {
        conf.listeners.get(self.listener as usize).copied().flatten()
    }

    /// Returns the listen address that the connection came to.
    pub fn address<'c>(&self, conf: &'c ActiveConfig) -> Option<&'c Address> {
        conf.config.listeners.get(self.listener(conf)?)?.address(self.local)
    }

    /// Returns the default server of that address, as an index among those of its front end.
    #[inline]
    pub fn default_server(&self, conf: &ActiveConfig) -> usize {
        self.address(conf).map_or(0, |a| a.default_server)
    }

    /// Returns the server whose settings apply to the connection before a request names one, as an index among those of its
    /// front end: that of the TLS server name (SNI) where `by_name`, else the default server.
    pub fn server(&self, conf: &ActiveConfig, by_name: bool) -> usize {
        let Some(address) = self.address(conf) else { return 0 };
        let name = self.tls.as_ref().filter(|_| by_name).and_then(|tls| tls.name.as_deref());
        let named = name.and_then(|name| address.names.find(name).ok().flatten());
        named.map_or(address.default_server, |(server, _)| server)
    }

    /// Returns the local address of the connection.
    pub fn local_address(&self, conf: &ActiveConfig) -> Option<SocketAddr> {
        if let Some(l) = self.local {
            return Some(l);
        }
        conf.config.listeners.get(self.listener(conf)?)?.addr.inet()
    }

    /// Returns `true` if the listener sets the size of its connections' send buffers (nginx: `listen sndbuf=`).
    pub fn has_fixed_send_buffer(&self, conf: &ActiveConfig) -> bool {
        let listener = self.listener(conf).and_then(|n| conf.config.listeners.get(n));
        listener.is_some_and(|l| l.options.sndbuf.is_some())
    }

    /// Returns the listen address as text (`$server_addr` of unix sockets).
    pub fn listener_text(&self, conf: &ActiveConfig) -> String {
        let listener = self.listener(conf).and_then(|n| conf.config.listeners.get(n));
        listener.map(|l| l.text.clone()).unwrap_or_default()
    }

    /// Returns the end of a line of the error log about the connection: client and listener.
    pub fn tail(&self, conf: &ActiveConfig) -> String {
        format!(", client: {}, server: {}", self.text(), self.listener_text(conf))
    }

    /// Returns the network of the client, or of the client that a proxy names (PROXY protocol).
    pub fn network(&self) -> Network {
        let proxied = self.proxied.as_ref().map(|p| p.client.ip());
        Network::of(proxied.or_else(|| self.peer.ip()))
    }

    /// Returns the protocol chosen by ALPN; `None` without TLS.
    pub fn alpn(&self) -> Option<Option<&[u8]>> {
        self.tls.as_ref().map(|s| s.alpn.as_deref())
    }

    /// Returns the address of the socket as text.
    pub fn text(&self) -> String {
        let mut text = Vec::new();
        push_peer(self.peer, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}
