//! Variables of the PROXY protocol header (nginx: ngx_http_core_module, embedded variables).

use super::vars::port;
use crate::request::Request;
use crate::variables::{HasValue, Row};
use forebay_conf::error::Level;
use forebay_core::vars::RowSource;
use forebay_http::proxy_protocol::{Broken, Header, TLV_SSL, tlv};
use forebay_net::addr::Peer;
use std::net::SocketAddr;

/// The rows.
pub(crate) const VARIABLES: &[Row] = &[
    row("proxy_protocol_addr", |r, o| address(r, o, |h| h.client)),
    row("proxy_protocol_port", |r, o| port_of(r, o, |h| h.client)),
    row("proxy_protocol_server_addr", |r, o| address(r, o, |h| h.server)),
    row("proxy_protocol_server_port", |r, o| port_of(r, o, |h| h.server)),
    Row { name: "proxy_protocol_tlv_*", get: RowSource::Prefix(extension), settable: false },
];

const fn row(name: &'static str, get: forebay_core::vars::Getter<Request>) -> Row {
    Row { name, get: RowSource::Get(get), settable: false }
}

fn address(r: &mut Request, out: &mut Vec<u8>, which: fn(&Header) -> SocketAddr) -> HasValue {
    let Some(a) = r.conn.client.proxied.as_ref().map(|h| which(h)) else { return Ok(false) };
    forebay_net::addr::push_peer(Peer::Inet(a), out);
    Ok(true)
}

fn port_of(r: &mut Request, out: &mut Vec<u8>, which: fn(&Header) -> SocketAddr) -> HasValue {
    let Some(a) = r.conn.client.proxied.as_ref().map(|h| which(h)) else { return Ok(false) };
    port(Peer::Inet(a), out)
}

/// Types of extensions by their names.
const NAMES: [(&[u8], u8); 5] =
    [(b"alpn", 0x01), (b"authority", 0x02), (b"unique_id", 0x05), (b"ssl", TLV_SSL), (b"netns", 0x30)];

/// Types inside the TLS extension.
const SSL_NAMES: [(&[u8], u8); 5] =
    [(b"version", 0x21), (b"cn", 0x22), (b"cipher", 0x23), (b"sig_alg", 0x24), (b"key_alg", 0x25)];

/// Returns the type of an extension, named as `alpn` or as `0x01`.
fn kind(name: &[u8], names: &[(&[u8], u8)]) -> Option<u8> {
    if let Some((_, kind)) = names.iter().find(|(n, _)| *n == name) {
        return Some(*kind);
    }
    let hex = std::str::from_utf8(name.strip_prefix(b"0x")?).ok()?;
    u8::from_str_radix(hex, 16).ok()
}

fn extension(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> HasValue {
    let Some(h) = &r.conn.client.proxied else { return Ok(false) };
    match find(&h.tlvs, name, out) {
        Ok(found) => Ok(found),
        Err(_) => {
            r.log(Level::Error, "broken PROXY protocol TLV");
            Ok(false)
        }
    }
}

fn find(tlvs: &[u8], name: &[u8], out: &mut Vec<u8>) -> Result<bool, Broken> {
    match name.strip_prefix(b"ssl_") {
        Some(inner) => find_in_ssl(tlvs, inner, out),
        None => find_named(tlvs, name, &NAMES, out),
    }
}

/// Appends a part of the TLS extension.
fn find_in_ssl(tlvs: &[u8], name: &[u8], out: &mut Vec<u8>) -> Result<bool, Broken> {
    let Some(ssl) = tlv(tlvs, TLV_SSL)? else { return Ok(false) };
    let (&[_, a, b, c, d], ssl) = ssl.split_first_chunk::<5>().ok_or(Broken::Header)?;
    if name == b"verify" {
        forebay_http::h1::response::number(out, u64::from(u32::from_be_bytes([a, b, c, d])));
        return Ok(true);
    }
    find_named(ssl, name, &SSL_NAMES, out)
}

fn find_named(tlvs: &[u8], name: &[u8], names: &[(&[u8], u8)], out: &mut Vec<u8>) -> Result<bool, Broken> {
    let value = kind(name, names).map_or(Ok(None), |k| tlv(tlvs, k))?;
    Ok(value.map(|v| out.extend_from_slice(v)).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions() {
        let tlvs = b"\x01\x00\x02h2\x20\x00\x0c\x01\x00\x00\x00\x07\x21\x00\x04TLSv\xae\x00\x02ae";
        let of = |name: &str| {
            let mut out = Vec::new();
            let found = find(tlvs, name.as_bytes(), &mut out).expect("whole");
            found.then(|| String::from_utf8_lossy(&out).into_owned())
        };
        assert_eq!(of("alpn").as_deref(), Some("h2"));
        assert_eq!(of("0x01").as_deref(), Some("h2"));
        assert_eq!(of("0xae").as_deref(), Some("ae"));
        assert_eq!(of("ssl_verify").as_deref(), Some("7"));
        assert_eq!(of("ssl_version").as_deref(), Some("TLSv"));
        assert_eq!(of("ssl_0x21").as_deref(), Some("TLSv"));
        assert_eq!(of("ssl_cn"), None);
        assert_eq!(of("authority"), None);
        assert_eq!(of("junk"), None);
        assert_eq!(of("0x1ff"), None);
    }
}
