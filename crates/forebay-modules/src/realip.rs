//! `set_real_ip_from` and related directives (nginx: ngx_http_realip_module).

use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::networks::Networks;
use forebay_core::config::value::{Setting, first, once};
use forebay_core::limit::cidr;
use forebay_core::vars::RowSource;
use forebay_net::addr::{Peer, push_peer};
use forebay_server::config::Scope;
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::{Module, Phase, PhaseHook, Step, Verdict};
use forebay_server::modules::vars::port;
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;
use forebay_server::request::{Origin, Request, field_lines};
use forebay_server::variables::Row;

forebay_server::module_settings! {
    /// `set_real_ip_from`: trusted proxies.
    "set_real_ip_from" => from: Networks = Networks::default();
    /// `real_ip_header`.
    "real_ip_header" => header: Header = Header::Field(b"X-Real-IP".as_slice().into());
    /// `real_ip_recursive`.
    "real_ip_recursive" => recursive: bool = false;
}

/// Source of the client address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Header {
    /// All lines of `X-Forwarded-For`.
    ForwardedFor,
    /// The first line of another field.
    Field(Box<[u8]>),
    /// Header of the PROXY protocol.
    ProxyProtocol,
    /// Header of the PROXY protocol, if there is one. A field counts in addition if the address in the header is a trusted one.
    ProxyProtocolAnd(Box<Header>),
}

impl Header {
    fn field(name: &[u8]) -> Header {
        if name.eq_ignore_ascii_case(b"X-Forwarded-For") {
            Header::ForwardedFor
        } else {
            Header::Field(name.into())
        }
    }
}

impl Setting<forebay_server::config::HttpContext> for Header {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        match (first(d), d.args.get(1)) {
            (b"proxy_protocol", None) => Ok(Header::ProxyProtocol),
            // nginx has no second source. A proxy of connections may stand in front of one of requests, so a
            // listener may get both.
            (b"proxy_protocol", Some(field)) => {
                Ok(Header::ProxyProtocolAnd(Box::new(Header::field(&field.text))))
            }
            (name, None) => Ok(Header::field(name)),
            (_, Some(_)) => Err(cx.error(d, "invalid number of arguments in \"real_ip_header\" directive")),
        }
    }
}

/// Address of the connection, if it has been replaced.
static STATE: Slot<Replaced> = Slot::new();

/// Address of the connection, if it has been replaced.
#[derive(Debug, Default)]
struct Replaced(Option<Peer>);

impl Unused for Replaced {
    const UNUSED: &'static Replaced = &Replaced(None);

    fn clear(&mut self) {
        self.0 = None;
    }

    fn for_request(&self, _: Origin) -> Option<Replaced> {
        Some(Replaced(self.0))
    }
}

/// `realip`. It runs in both phases, since a location may trust other proxies than its server.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    variables: &[VARIABLES],
    hooks: &[
        PhaseHook::new(Phase::PostRead, enabled, replace),
        PhaseHook::new(Phase::PreAccess, enabled, replace),
    ],
    ..Module::NONE
};

const VARIABLES: &[Row] = &[
    Row {
        name: "realip_remote_addr",
        get: RowSource::Get(|r, o| {
            push_peer(original(r), o);
            Ok(true)
        }),
        settable: false,
    },
    Row { name: "realip_remote_port", get: RowSource::Get(|r, o| port(original(r), o)), settable: false },
];

/// Returns the address of the connection.
fn original(req: &Request) -> Peer {
    STATE.of(req).0.unwrap_or(req.peer)
}

/// Returns `true` if a location trusts proxies.
fn enabled(s: &LocationSettings) -> bool {
    !SETTINGS.of(s).from.networks().is_empty()
}

/// Replaces the client address by the one from a trusted proxy, once per request.
fn replace(req: &mut Request) -> Step<'_> {
    // The address that was found must not count as the one of a proxy in the second phase.
    if STATE.of(req).0.is_some() {
        return Verdict::Declined.into();
    }
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    if let Some(found) = real_address(req, s) {
        STATE.of_mut(req).0 = Some(req.peer);
        req.peer = found;
        req.remote.clear();
        push_peer(found, &mut req.remote);
    }
    Verdict::Declined.into()
}

fn real_address(req: &Request, s: &Settings) -> Option<Peer> {
    if !cidr::any_contains(s.from.networks(), req.peer) {
        return None;
    }
    let proxied = || req.conn.client.proxied.as_ref().map(|h| Peer::Inet(h.client));
    match &s.header {
        Header::ProxyProtocol => proxied(),
        Header::ProxyProtocolAnd(field) => {
            let told = proxied();
            named(req, s, field, told.unwrap_or(req.peer)).or(told)
        }
        field => named(req, s, field, req.peer),
    }
}

/// Returns the address that a field names, if it comes from a trusted one.
fn named(req: &Request, s: &Settings, field: &Header, peer: Peer) -> Option<Peer> {
    let (from, recursive) = (s.from.networks(), s.recursive);
    if !cidr::any_contains(from, peer) {
        return None;
    }
    let found = match field {
        Header::Field(name) => {
            let first = field_lines(&req.head, name).next();
            cidr::forwarded(peer, first.into_iter(), from, recursive)
        }
        _ => cidr::forwarded(peer, field_lines(&req.head, b"X-Forwarded-For"), from, recursive),
    };
    found.map(Peer::Inet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn replaced(conf: &str, lines: &str) -> (String, String) {
        let conf = format!(
            "server {{ set_real_ip_from 127.0.0.1; {conf} }} map $realip_remote_addr$remote_addr $x {{ default 1; }}"
        );
        let mut req = testing::request(&conf, "");
        req.peer = Peer::Inet(([127, 0, 0, 1], 5).into());
        testing::head(&mut req, lines);
        replace(&mut req);
        replace(&mut req);
        let value = testing::value(&mut req, "realip_remote_addr").unwrap_or_default();
        (value, String::from_utf8_lossy(&req.remote).into_owned())
    }

    #[test]
    fn a_field_after_the_header_of_the_connection() {
        let both = "real_ip_header proxy_protocol X-Forwarded-For;";
        assert_eq!(replaced(both, "X-Forwarded-For: 1.2.3.4\n").1, "1.2.3.4");
        assert_eq!(replaced(both, "").1, "");
    }

    #[test]
    fn fields() {
        let was = "127.0.0.1".to_owned();
        assert_eq!(replaced("", "X-Real-IP: 1.2.3.4\n"), (was.clone(), "1.2.3.4".into()));
        assert_eq!(replaced("", "X-Forwarded-For: 1.2.3.4\n").1, "");
        let xff = "real_ip_header x-forwarded-for; set_real_ip_from 192.0.2.0/24;";
        let lines = "X-Forwarded-For: 1.1.1.1\nX-Forwarded-For: 192.0.2.1\n";
        assert_eq!(replaced(xff, lines), (was.clone(), "192.0.2.1".into()));
        assert_eq!(replaced(&format!("{xff} real_ip_recursive on;"), lines), (was, "1.1.1.1".into()));
        let any = "real_ip_header X-Any;";
        assert_eq!(replaced(any, "X-Any: 1.1.1.1\nX-Any: 2.2.2.2\n").1, "1.1.1.1");
        assert_eq!(replaced("real_ip_header proxy_protocol;", "X-Real-IP: 1.2.3.4\n").1, "");
    }
}
