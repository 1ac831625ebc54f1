//! `http3_alt_svc`: the `Alt-Svc` field, which tells clients that come over TCP of HTTP/3 (RFC 7838; RFC 9114, section 3.1.1).

use crate::config::Scope;
use crate::request::Request;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::ListenAddr;
use forebay_core::config::listen::ListenDirective;
use forebay_core::config::value::{Setting, first, once};
use forebay_http::field;
use forebay_http::h2;
use forebay_http::request::Version;
use std::net::{IpAddr, SocketAddr};

/// Name of the field.
pub const NAME: &[u8] = b"Alt-Svc";

/// `http3_alt_svc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AltSvc {
    /// The port at which the server takes HTTP/3, for a day. Nothing, if it takes none.
    Auto,
    /// No field.
    Off,
    /// This value.
    Value(Vec<u8>),
}

impl Setting<crate::config::HttpContext> for AltSvc {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        match first(d) {
            b"auto" => Ok(AltSvc::Auto),
            b"off" => Ok(AltSvc::Off),
            b"" => Err(cx.directive_error(d, "invalid value")),
            value if field::check(NAME, value).is_err() => Err(cx.directive_error(d, "invalid value")),
            value => Ok(AltSvc::Value(value.to_vec())),
        }
    }
}

/// The field in the forms in which it is sent.
#[derive(Debug)]
pub struct Encoded {
    /// Port of the TCP connections that carry it.
    pub port: u16,
    /// Value.
    pub value: Box<[u8]>,
    /// Line of HTTP/1.
    pub line: Box<[u8]>,
    /// Field line of HPACK.
    pub hpack: Box<[u8]>,
}

impl Encoded {
    fn new(port: u16, value: &[u8]) -> Encoded {
        let mut hpack = Vec::new();
        h2::encode::field(&mut hpack, NAME, value);
        Encoded {
            port,
            value: value.into(),
            line: [NAME, b": ", value, b"\r\n"].concat().into(),
            hpack: hpack.into(),
        }
    }
}

/// Fields of a server, by the ports at which it accepts TCP connections.
#[derive(Debug, Default)]
pub struct Fields(Vec<Encoded>);

impl Fields {
    /// Makes the fields of a server.
    pub fn new(choice: &AltSvc, http3: bool, listens: &[ListenDirective]) -> Fields {
        let addresses = || listens.iter().flat_map(|l| &l.addrs);
        let quic: Vec<SocketAddr> = match choice {
            AltSvc::Auto if http3 => {
                addresses().filter(|a| a.is_udp()).filter_map(ListenAddr::inet).collect()
            }
            _ => Vec::new(),
        };
        let mut fields: Vec<Encoded> = Vec::new();
        for tcp in addresses().filter(|a| !a.is_udp()).filter_map(ListenAddr::inet) {
            if fields.iter().any(|f| f.port == tcp.port()) {
                continue;
            }
            let port = || best(tcp, &quic).map(|port| format!("h3=\":{port}\"; ma=86400"));
            match choice {
                AltSvc::Value(value) => fields.push(Encoded::new(tcp.port(), value)),
                _ => fields.extend(port().map(|value| Encoded::new(tcp.port(), value.as_bytes()))),
            }
        }
        Fields(fields)
    }
}

/// Returns the port for HTTP/3 of clients that reach a TCP address: the same one if possible, else the first.
fn best(tcp: SocketAddr, quic: &[SocketAddr]) -> Option<u16> {
    let reaches = |udp: IpAddr| udp.is_unspecified() || tcp.ip().is_unspecified() || udp == tcp.ip();
    let ports = || quic.iter().filter(|udp| reaches(udp.ip())).map(|udp| udp.port());
    ports().find(|port| *port == tcp.port()).or(ports().next())
}

/// Returns the field for responses on the connection of a request.
#[inline]
pub fn of_connection<'s>(req: &Request, fields: &'s Fields) -> Option<&'s Encoded> {
    if fields.0.is_empty() || req.head.version == Version::Http3 || !req.is_encrypted() {
        return None;
    }
    let port = req.local_address()?.port();
    fields.0.iter().find(|f| f.port == port)
}

/// Returns the field of a response; `None` if it has one of its own.
#[inline]
pub fn of_response<'s>(req: &Request, fields: &'s Fields) -> Option<&'s Encoded> {
    of_connection(req, fields).filter(|_| req.resp.fields.get(NAME).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_port_is_best_and_addresses_have_to_fit() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let quic = ["10.0.0.1:443", "0.0.0.0:8443", "127.0.0.1:9443"].map(address);
        for (tcp, port) in [
            ("0.0.0.0:443", Some(443)),
            ("0.0.0.0:8443", Some(8443)),
            ("0.0.0.0:80", Some(443)),
            ("127.0.0.1:443", Some(8443)),
            ("127.0.0.1:9443", Some(9443)),
            ("[::]:9443", Some(9443)),
        ] {
            assert_eq!(best(address(tcp), &quic), port, "{tcp}");
        }
        assert_eq!(best(address("10.0.0.2:443"), &quic[..1]), None);
    }
}
