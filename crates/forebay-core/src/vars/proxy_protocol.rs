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
    if let Some(inner) = name.strip_prefix(b"ssl_") {
        return find_in_ssl(tlvs, inner, out);
    }
    match name {
        b"aws_vpce_id" | b"azure_pel_id" | b"gcp_conn_id" => find_of_cloud(tlvs, name, out),
        _ => find_named(tlvs, name, &NAMES, out),
    }
}

/// Extension of Amazon Web Services. A byte with the kind of the value comes first.
const TLV_AWS: u8 = 0xea;
/// Extension of Microsoft Azure, in the same form.
const TLV_AZURE: u8 = 0xee;
/// Extension of Google Cloud.
const TLV_GCP: u8 = 0xe0;
/// Kind of the values of AWS and Azure that have variables: the identifier of an endpoint.
const ENDPOINT: u8 = 1;

/// Appends the identifier of an endpoint or connection that a cloud reports (nginx: ngx_http_proxy_protocol_vendor_module).
fn find_of_cloud(tlvs: &[u8], name: &[u8], out: &mut Vec<u8>) -> Result<bool, Broken> {
    let number = forebay_http::h1::response::number;
    match name {
        b"aws_vpce_id" => {
            let Some([ENDPOINT, id @ ..]) = tlv(tlvs, TLV_AWS)? else { return Ok(false) };
            out.extend_from_slice(id);
        }
        b"azure_pel_id" => {
            let Some(&[ENDPOINT, a, b, c, d]) = tlv(tlvs, TLV_AZURE)? else { return Ok(false) };
            number(out, u64::from(u32::from_le_bytes([a, b, c, d])));
        }
        _ => {
            let id = tlv(tlvs, TLV_GCP)?.and_then(|id| id.try_into().ok());
            let Some(id) = id else { return Ok(false) };
            number(out, u64::from_be_bytes(id));
        }
    }
    Ok(true)
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
    fn extensions_of_clouds() {
        let tlvs = b"\xea\x00\x07\x01vpce-1\xee\x00\x05\x01\x02\x01\x00\x00\xe0\x00\x08\0\0\0\0\0\0\x01\x00";
        let of = |tlvs: &[u8], name: &str| {
            let mut out = Vec::new();
            let found = find(tlvs, name.as_bytes(), &mut out).expect("whole");
            found.then(|| String::from_utf8(out).expect("UTF-8"))
        };
        for (name, value) in [("aws_vpce_id", "vpce-1"), ("azure_pel_id", "258"), ("gcp_conn_id", "256")] {
            assert_eq!(of(tlvs, name).as_deref(), Some(value), "{name}");
            assert_eq!(of(b"", name), None, "{name}");
        }
        // Other kinds and lengths.
        for other in
            [b"\xea\x00\x02\x02v".as_slice(), b"\xee\x00\x02\x01v", b"\xe0\x00\x01v", b"\xea\x00\x00"]
        {
            for name in ["aws_vpce_id", "azure_pel_id", "gcp_conn_id"] {
                assert_eq!(of(other, name), None, "{name} of {other:?}");
            }
        }
    }

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
