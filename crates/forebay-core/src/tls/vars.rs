//! `$ssl_*` (nginx: ngx_http_ssl_module, ngx_stream_ssl_module, embedded variables).

use super::{Session, Verdict};
use crate::vars::{Evaluate, Registry, Row, RowSource, VarError};
use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forebay_net::tls::ciphers;
use std::marker::PhantomData;
use x509_parser::asn1_rs::{Any, Oid, Tag, ToDer};
use x509_parser::prelude::*;

type Got = Result<bool, VarError>;

macro_rules! rows {
    // As in nginx all of them can be set.
    ($($name:literal => $get:expr,)*) => { &[$(Row { name: $name, get: RowSource::Get($get), settable: true },)*] };
}

/// Variables of the client's session for requests or sessions of the type `E`.
#[derive(Debug)]
pub struct Variables<E>(PhantomData<E>);

impl<E: Evaluate + 'static> Variables<E> {
    /// Table of the variables.
    pub const ROWS: &'static [Row<E>] = rows! {
        "ssl_alpn_protocol" => |r, o| of(r, o, |s, o| s.alpn.as_ref().is_some_and(|a| { o.extend_from_slice(a); true })),
        "ssl_cipher" => |r, o| of(r, o, |s, o| text(o, ciphers::suite_name(s.suite).unwrap_or_default())),
        "ssl_ciphers" => |r, o| of(r, o, |s, o| offered(s.hello.as_ref().map(|h| &h.ciphers), ciphers::suite_name, o)),
        "ssl_curve" => |r, o| of(r, o, |s, o| s.group != 0 && text(o, ciphers::group_name(s.group).unwrap_or_default())),
        "ssl_curves" => |r, o| of(r, o, |s, o| offered(s.hello.as_ref().map(|h| &h.groups), ciphers::group_name, o)),
        "ssl_sigalgs" => |r, o| of(r, o, |s, o| offered(s.hello.as_ref().map(|h| &h.sigalgs), ciphers::sigalg_name, o)),
        "ssl_protocol" => |r, o| of(r, o, |s, o| text(o, if s.v13 { "TLSv1.3" } else { "TLSv1.2" })),
        "ssl_server_name" => |r, o| of(r, o, |s, o| {
            let name = s.written_name.as_ref().or(s.name.as_ref());
            name.is_some_and(|n| { o.extend_from_slice(n); true })
        }),
        "ssl_session_reused" => |r, o| of(r, o, |s, o| text(o, if s.resumed { "r" } else { "." })),
        "ssl_session_id" => |r, o| of(r, o, |s, o| s.id.as_ref().is_some_and(|id| hex(id, false, o))),
        "ssl_ech_status" => |r, o| of(r, o, |_, o| text(o, "NOT_CONFIGURED")),
        "ssl_ech_outer_server_name" => |_, _| Ok(false),
        "ssl_client_verify" => |r, o| of(r, o, |s, o| match s.verdict.get() {
            Verdict::None => text(o, "NONE"),
            Verdict::Success => text(o, "SUCCESS"),
            Verdict::Failed(f) => text(o, "FAILED:") && text(o, f.text()),
            Verdict::Refused(what) => text(o, "FAILED:") && text(o, what),
        }),
        "ssl_client_raw_cert" => |r, o| of(r, o, |s, o| pem(s, o) && text(o, "\n")),
        "ssl_client_cert" => |r, o| of(r, o, |s, o| {
            let mut raw = Vec::new();
            let some = pem(s, &mut raw);
            let lines = raw.split(|b| *b == b'\n').filter(|l| !l.is_empty());
            for (i, line) in lines.enumerate() {
                if i > 0 {
                    o.extend_from_slice(b"\n\t");
                }
                o.extend_from_slice(line);
            }
            some
        }),
        "ssl_client_escaped_cert" => |r, o| of(r, o, |s, o| {
            let mut raw = Vec::new();
            let some = pem(s, &mut raw);
            if some {
                raw.push(b'\n');
            }
            for b in raw {
                if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~') {
                    o.push(b);
                } else {
                    o.extend_from_slice(format!("%{b:02X}").as_bytes());
                }
            }
            some
        }),
        "ssl_client_s_dn" => |r, o| with_cert(r, o, |c, o| dn(c.subject(), o)),
        "ssl_client_i_dn" => |r, o| with_cert(r, o, |c, o| dn(c.issuer(), o)),
        "ssl_client_s_dn_legacy" => |r, o| with_cert(r, o, |c, o| legacy_dn(c.subject(), o)),
        "ssl_client_i_dn_legacy" => |r, o| with_cert(r, o, |c, o| legacy_dn(c.issuer(), o)),
        "ssl_client_serial" => |r, o| with_cert(r, o, |c, o| {
            let raw = c.raw_serial();
            let short = raw.iter().position(|b| *b != 0).map_or(&[0][..], |at| raw.get(at..).unwrap_or_default());
            hex(short, true, o)
        }),
        "ssl_client_fingerprint" => |r, o| of(r, o, |s, o| s.peer.first().is_some_and(|c| {
            hex(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, c).as_ref(), false, o)
        })),
        "ssl_client_sigalg" => |r, o| of(r, o, |s, o| sigalg(s.client_sigalg, o)),
        "ssl_sigalg" => |r, o| of(r, o, |s, o| sigalg(s.sigalg, o)),
        "ssl_client_v_start" => |r, o| with_cert(r, o, |c, o| time(c.validity().not_before.timestamp(), o)),
        "ssl_client_v_end" => |r, o| with_cert(r, o, |c, o| time(c.validity().not_after.timestamp(), o)),
        "ssl_client_v_remain" => |r, o| with_cert(r, o, |c, o| {
            let left = (c.validity().not_after.timestamp() - forebay_net::tls::verify::now()).max(0) / 86400;
            text(o, &left.to_string())
        }),
    };
}

/// Returns `true` if a variable that is in use may show a part of the ClientHello, or the identifier that comes from it.
pub fn shows_hello<E>(vars: &Registry<E>) -> bool {
    let of_hello = [b"ssl_ciphers".as_slice(), b"ssl_curves", b"ssl_sigalgs", b"ssl_session_id"];
    of_hello.iter().any(|name| vars.uses_prefix(name))
}

fn of(r: &impl Evaluate, out: &mut Vec<u8>, f: impl FnOnce(&Session, &mut Vec<u8>) -> bool) -> Got {
    Ok(r.session().is_some_and(|s| f(s, out)))
}

fn with_cert(
    r: &impl Evaluate,
    out: &mut Vec<u8>,
    f: impl FnOnce(&X509Certificate<'_>, &mut Vec<u8>) -> bool,
) -> Got {
    of(r, out, |s, out| {
        let parsed = s.peer.first().and_then(|c| X509Certificate::from_der(c).ok());
        parsed.is_some_and(|(_, c)| f(&c, out))
    })
}

fn text(out: &mut Vec<u8>, t: &str) -> bool {
    out.extend_from_slice(t.as_bytes());
    true
}

fn hex(bytes: &[u8], upper: bool, out: &mut Vec<u8>) -> bool {
    for b in bytes {
        let pair = if upper { format!("{b:02X}") } else { format!("{b:02x}") };
        out.extend_from_slice(pair.as_bytes());
    }
    true
}

fn sigalg(number: u16, out: &mut Vec<u8>) -> bool {
    match ciphers::sigalg_name(number) {
        Some(name) => text(out, name),
        None => number != 0 && text(out, &format!("0x{number:04x}")),
    }
}

/// Appends the names of a list, or numbers for unknown ones. Leaves out GREASE values (RFC 8701).
fn offered(list: Option<&Vec<u16>>, name: fn(u16) -> Option<&'static str>, out: &mut Vec<u8>) -> bool {
    let Some(list) = list else { return false };
    let real = list.iter().filter(|n| *n & 0x0f0f != 0x0a0a && **n != 0x00ff);
    for (i, n) in real.enumerate() {
        if i > 0 {
            out.push(b':');
        }
        match name(*n) {
            Some(name) => text(out, name),
            None => text(out, &format!("0x{n:04x}")),
        };
    }
    true
}

/// Appends the client's certificate in PEM, without the final newline.
fn pem(s: &Session, out: &mut Vec<u8>) -> bool {
    let Some(cert) = s.peer.first() else { return false };
    out.extend_from_slice(b"-----BEGIN CERTIFICATE-----\n");
    for line in STANDARD.encode(cert).as_bytes().chunks(64) {
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.extend_from_slice(b"-----END CERTIFICATE-----");
    true
}

/// Appends a time as OpenSSL prints it: `Jan  1 00:00:00 2030 GMT`.
fn time(unix: i64, out: &mut Vec<u8>) -> bool {
    let Ok(t) = jiff::Timestamp::from_second(unix) else { return false };
    let t = t.to_zoned(jiff::tz::TimeZone::UTC);
    text(out, &t.strftime("%b %e %H:%M:%S %Y GMT").to_string())
}

/// Returns OpenSSL's short name of an attribute type.
fn short(oid: &Oid<'_>) -> Option<&'static str> {
    let id = oid.to_id_string();
    ATTRIBUTES.iter().find(|(known, _)| *known == id).map(|(_, name)| *name)
}

/// OpenSSL's short names of attribute types.
const ATTRIBUTES: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.13", "description"),
    ("2.5.4.15", "businessCategory"),
    ("2.5.4.16", "postalAddress"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.20", "telephoneNumber"),
    ("2.5.4.41", "name"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.44", "generationQualifier"),
    ("2.5.4.45", "x500UniqueIdentifier"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.65", "pseudonym"),
    ("2.5.4.72", "role"),
    ("2.5.4.97", "organizationIdentifier"),
    ("2.5.4.98", "c3"),
    ("2.5.4.99", "n3"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.3", "mail"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.44", "uid"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
    ("1.2.840.113549.1.9.2", "unstructuredName"),
    ("1.2.840.113549.1.9.8", "unstructuredAddress"),
    ("1.3.6.1.4.1.311.60.2.1.1", "jurisdictionL"),
    ("1.3.6.1.4.1.311.60.2.1.2", "jurisdictionST"),
    ("1.3.6.1.4.1.311.60.2.1.3", "jurisdictionC"),
];

/// Appends the name of an attribute type, or its number.
fn attribute(a: &AttributeTypeAndValue<'_>, out: &mut Vec<u8>) {
    match short(a.attr_type()) {
        Some(name) => text(out, name),
        None => text(out, &a.attr_type().to_id_string()),
    };
    out.push(b'=');
}

/// Returns a value in UTF-8, or `None` if its type is not a string.
fn characters(value: &Any<'_>) -> Option<Vec<u8>> {
    let wide = |size: usize| {
        let units = value.data.chunks(size);
        let units = units.map(|u| u.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)));
        let text: String = units.map(|n| char::from_u32(n).unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
        text.into_bytes()
    };
    Some(match value.tag() {
        Tag::Utf8String => value.data.to_vec(),
        Tag::BmpString => wide(2),
        Tag::UniversalString => wide(4),
        // OpenSSL reads these types as Latin-1.
        Tag::T61String
        | Tag::PrintableString
        | Tag::Ia5String
        | Tag::NumericString
        | Tag::VisibleString
        | Tag::GeneralString => wide(1),
        _ => return None,
    })
}

/// Appends a name by RFC 2253: the last part first, values of unnamed attribute types in their encoding.
fn dn(name: &X509Name<'_>, out: &mut Vec<u8>) -> bool {
    let parts: Vec<_> = name.iter_rdn().collect();
    for (i, rdn) in parts.iter().rev().enumerate() {
        let attributes: Vec<_> = rdn.iter().collect();
        for (j, a) in attributes.iter().rev().enumerate() {
            match (i, j) {
                (0, 0) => {}
                (_, 0) => out.push(b','),
                _ => out.push(b'+'),
            }
            attribute(a, out);
            value(a, out);
        }
    }
    true
}

/// Appends the value of an attribute by RFC 2253.
fn value(a: &AttributeTypeAndValue<'_>, out: &mut Vec<u8>) {
    match characters(a.attr_value()).filter(|_| short(a.attr_type()).is_some()) {
        Some(text) => escaped(&text, out),
        None => {
            out.push(b'#');
            hex(&a.attr_value().to_der_vec().unwrap_or_default(), true, out);
        }
    }
}

/// Appends characters with the escapes of RFC 2253, section 2.4.
fn escaped(characters: &[u8], out: &mut Vec<u8>) {
    let last = characters.len().saturating_sub(1);
    for (i, b) in characters.iter().enumerate() {
        let at_edge = (i == 0 && matches!(b, b' ' | b'#')) || (i == last && *b == b' ');
        if at_edge || matches!(b, b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';') {
            out.push(b'\\');
            out.push(*b);
        } else if b.is_ascii_control() || !b.is_ascii() {
            text(out, &format!("\\{b:02X}"));
        } else {
            out.push(*b);
        }
    }
}

/// Appends a name as `/C=US/CN=x`, like nginx before 1.11.6 and X509_NAME_oneline() of OpenSSL 3.0. Writes bytes that
/// are not printable ASCII as `\xHH`, and escapes separators with a backslash so that different names never look alike.
fn legacy_dn(name: &X509Name<'_>, out: &mut Vec<u8>) -> bool {
    for rdn in name.iter_rdn() {
        for (i, a) in rdn.iter().enumerate() {
            out.push(if i == 0 { b'/' } else { b'+' });
            attribute(a, out);
            legacy_value(a.attr_value().data, out);
        }
    }
    true
}

fn legacy_value(value: &[u8], out: &mut Vec<u8>) {
    for b in value {
        match b {
            b'/' | b'+' => out.extend_from_slice(&[b'\\', *b]),
            b' '..=b'~' => out.push(*b),
            _ => {
                text(out, &format!("\\x{b:02X}"));
            }
        }
    }
}
