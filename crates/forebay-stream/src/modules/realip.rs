//! `set_real_ip_from` (nginx: ngx_stream_realip_module).

use crate::config::Server;
use crate::session::Session;
use crate::variables::{Row, push_port, row};
use forebay_core::config::networks::Networks;
use forebay_core::limit::cidr;
use forebay_net::addr::Peer;

forebay_core::settings! {
    /// `set_real_ip_from`: trusted proxies.
    "set_real_ip_from" => from: Networks = Networks::default();
}

/// Variables of this module.
pub(crate) const VARIABLES: &[Row] = &[
    row("realip_remote_addr", |s, o| {
        s.push_client(s.client.peer, o);
        Ok(true)
    }),
    row("realip_remote_port", |s, o| push_port(s.client.peer, o)),
];

/// Replaces the client's address by that of the PROXY protocol header of a trusted proxy.
pub(crate) fn replace(s: &mut Session, server: &Server) {
    if let Some(header) = &s.client.proxied
        && cidr::any_contains(server.settings.realip.from.networks(), s.client.peer)
    {
        s.peer = Peer::Inet(header.client);
    }
}
