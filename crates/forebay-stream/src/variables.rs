//! Built-in variables of stream by name (nginx: ngx_stream_core_module, Embedded Variables).

use crate::modules::{limit_conn, preread, proxy, realip};
use crate::session::Session;
use forebay_core::tls;
use forebay_core::vars::proxy_protocol;
use forebay_core::vars::{Getter, RowSource, Source, VarError};
use forebay_net::addr::Peer;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Built-in variable.
pub(crate) type Row = forebay_core::vars::Row<Session>;

type HasValue = Result<bool, VarError>;

/// Creates a row of a variable that cannot be set.
pub(crate) const fn row(name: &'static str, get: Getter<Session>) -> Row {
    Row { name, get: RowSource::Get(get), settable: false }
}

/// Rows of all built-in variables.
pub(crate) fn all() -> impl Iterator<Item = &'static Row> {
    let modules = [
        VARIABLES,
        PROXY_PROTOCOL,
        proxy::VARIABLES,
        limit_conn::VARIABLES,
        realip::VARIABLES,
        preread::VARIABLES,
        tls::vars::Variables::ROWS,
    ];
    modules.into_iter().flatten()
}

/// Finds a built-in variable: its source, and whether `set` and the like may define it.
pub(crate) fn builtin(name: &[u8]) -> (Source<Session>, bool) {
    for row in all() {
        match row.get {
            RowSource::Get(get) if row.name.as_bytes() == name => return (Source::Get(get), row.settable),
            RowSource::Prefix(get) => {
                let prefix = row.name.trim_end_matches('*');
                if let Some(rest) = name.strip_prefix(prefix.as_bytes()) {
                    return (Source::Prefix(get, rest.into()), row.settable);
                }
            }
            RowSource::Get(_) => {}
        }
    }
    (Source::Unknown, true)
}

const PROXY_PROTOCOL: &[Row] = &proxy_protocol::rows();

const VARIABLES: &[Row] = &[
    // The certificate of an `acme_client` and its key, as values of `ssl_certificate` and `ssl_certificate_key`. Elsewhere they have
    // no value.
    Row { name: "acme_cert_*", get: RowSource::Prefix(|_, _, _| Ok(false)), settable: false },
    row("binary_remote_addr", |s, o| {
        match s.peer {
            Peer::Inet(a) => match a.ip() {
                IpAddr::V4(ip) => o.extend_from_slice(&ip.octets()),
                IpAddr::V6(ip) => o.extend_from_slice(&ip.octets()),
            },
            Peer::Unix => s.push_client(s.peer, o),
        }
        Ok(true)
    }),
    row("bytes_received", |s, o| number(o, s.received)),
    row("bytes_sent", |s, o| number(o, s.sent)),
    row("connection", |s, o| number(o, s.client.number)),
    row("hostname", |_, o| text(o, rustix::system::uname().nodename().to_bytes())),
    row("msec", |s, o| {
        seconds(o, s.thread.clock.msec());
        Ok(true)
    }),
    row("nginx_version", |_, o| text(o, forebay_core::NGINX_VERSION.as_bytes())),
    row("pid", |s, o| number(o, u64::from(s.thread.pid))),
    row("protocol", |s, o| text(o, if s.udp.is_some() { b"UDP" } else { b"TCP" })),
    row("remote_addr", |s, o| {
        s.push_client(s.peer, o);
        Ok(true)
    }),
    row("remote_port", |s, o| push_port(s.peer, o)),
    row("server_addr", |s, o| match local(s) {
        Some(a) => text(o, a.ip().to_string().as_bytes()),
        None => text(o, s.client.listener_text(&s.conf).as_bytes()),
    }),
    row("server_name", |s, o| {
        let stream = s.stream();
        text(o, stream.servers.get(s.server).map_or(b"".as_slice(), |server| &server.name))
    }),
    row("server_port", |s, o| match local(s) {
        Some(a) => number(o, u64::from(a.port())),
        None => Ok(true),
    }),
    row("session_time", |s, o| {
        seconds(o, s.begun.elapsed());
        Ok(true)
    }),
    row("status", |s, o| match s.status {
        0 => text(o, b"000"),
        status => number(o, u64::from(status)),
    }),
    row("time_iso8601_ms", |s, o| text(o, &s.thread.clock.iso8601_ms())),
    row("time_iso8601", |s, o| text(o, &s.thread.clock.iso8601())),
    row("time_local", |s, o| text(o, &s.thread.clock.log_time())),
];

/// Appends the port of an address; nothing if there is none.
pub(crate) fn push_port(peer: Peer, out: &mut Vec<u8>) -> HasValue {
    match peer {
        Peer::Inet(a) if a.port() > 0 => number(out, u64::from(a.port())),
        _ => Ok(true),
    }
}

fn local(s: &Session) -> Option<SocketAddr> {
    s.client.local_address(&s.conf)
}

fn text(out: &mut Vec<u8>, text: &[u8]) -> HasValue {
    out.extend_from_slice(text);
    Ok(true)
}

fn number(out: &mut Vec<u8>, n: u64) -> HasValue {
    text(out, n.to_string().as_bytes())
}

/// Appends seconds with three decimals.
pub(crate) fn seconds(out: &mut Vec<u8>, d: Duration) {
    out.extend_from_slice(format!("{}.{:03}", d.as_secs(), d.subsec_millis()).as_bytes());
}
