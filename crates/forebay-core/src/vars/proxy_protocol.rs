//! Variables of a PROXY protocol header (nginx: `$proxy_protocol_addr` and others).

use super::{Evaluate, Row, RowSource, VarError};
use forebay_conf::error::Level;
use forebay_http::proxy_protocol::{Broken, Header, TLV_SSL, tlv};
use forebay_net::addr::{Peer, push_peer};
use std::net::SocketAddr;

/// Returns the rows of all of them.
pub const fn rows<E: Evaluate>() -> [Row<E>; 5] {
    const fn row<E>(name: &'static str, get: super::Getter<E>) -> Row<E> {
        Row { name, get: RowSource::Get(get), settable: false }
    }
    [
        row("proxy_protocol_addr", |e, o| address(e, o, |h| h.client)),
        row("proxy_protocol_port", |e, o| port(e, o, |h| h.client)),
        row("proxy_protocol_server_addr", |e, o| address(e, o, |h| h.server)),
        row("proxy_protocol_server_port", |e, o| port(e, o, |h| h.server)),
        Row { name: "proxy_protocol_tlv_*", get: RowSource::Prefix(extension), settable: false },
    ]
}

fn address<E: Evaluate>(
    e: &mut E,
    out: &mut Vec<u8>,
    which: fn(&Header) -> SocketAddr,
) -> Result<bool, VarError> {
    let Some(a) = e.proxied().map(which) else { return Ok(false) };
    push_peer(Peer::Inet(a), out);
    Ok(true)
}

/// Appends a port; nothing for port 0.
fn port<E: Evaluate>(
    e: &mut E,
    out: &mut Vec<u8>,
    which: fn(&Header) -> SocketAddr,
) -> Result<bool, VarError> {
    let Some(a) = e.proxied().map(which) else { return Ok(false) };
    if a.port() > 0 {
        out.extend_from_slice(a.port().to_string().as_bytes());
    }
    Ok(true)
}

/// Types of extensions by their names.
const NAMES: [(&[u8], u8); 5] =
    [(b"alpn", 0x01), (b"authority", 0x02), (b"unique_id", 0x05), (b"ssl", TLV_SSL), (b"netns", 0x30)];

/// Types inside the TLS extension.
const SSL_NAMES: [(&[u8], u8); 5] =
    [(b"version", 0x21), (b"cn", 0x22), (b"cipher", 0x23), (b"sig_alg", 0x24), (b"key_alg", 0x25)];

/// Returns the type of an extension by its name, such as `alpn`, or by its number, such as `0x01`.
pub fn extension_type(name: &[u8]) -> Option<u8> {
    kind(name, &NAMES)
}

fn kind(name: &[u8], names: &[(&[u8], u8)]) -> Option<u8> {
    if let Some((_, kind)) = names.iter().find(|(n, _)| *n == name) {
        return Some(*kind);
    }
    let hex = std::str::from_utf8(name.strip_prefix(b"0x")?).ok()?;
    u8::from_str_radix(hex, 16).ok()
}

fn extension<E: Evaluate>(e: &mut E, name: &[u8], out: &mut Vec<u8>) -> Result<bool, VarError> {
    let Some(h) = e.proxied() else { return Ok(false) };
    match find(&h.tlvs, name, out) {
        Ok(found) => Ok(found),
        Err(_) => {
            e.log_with(Level::Error, |line| line.extend_from_slice(b"broken PROXY protocol TLV"));
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
