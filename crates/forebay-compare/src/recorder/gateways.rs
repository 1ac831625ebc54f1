//! FastCGI, SCGI, uwsgi and memcached, as upstreams speak them.

use super::answer::Reply;
use crate::message::{Field, Received, field, text};
use crate::wire;
use std::io::{self, BufRead, Read};

/// Most bytes of parameters.
const MOST_PARAMS: usize = 4 << 20;

fn bad() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// Takes bytes off the front.
fn take<'b>(bytes: &mut &'b [u8], n: usize) -> io::Result<&'b [u8]> {
    let (head, rest) = bytes.split_at_checked(n).ok_or_else(bad)?;
    *bytes = rest;
    Ok(head)
}

fn array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Makes the request of parameters and content.
fn received(protocol: &'static str, params: Vec<Field>, body: Vec<u8>) -> Received {
    let value = |name: &str| field(&params, name).unwrap_or("-").to_owned();
    let line = format!("{} {} {}", value("REQUEST_METHOD"), value("REQUEST_URI"), value("SERVER_PROTOCOL"));
    Received { protocol, line, fields: params, body }
}

fn length_of(params: &[Field]) -> usize {
    field(params, "CONTENT_LENGTH").and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// Reads a request of FastCGI; `true`: the connection is to be kept.
pub(super) fn fastcgi(from: &mut impl BufRead) -> io::Result<(Received, bool)> {
    let (mut params, mut body, mut keep) = (Vec::new(), Vec::new(), false);
    loop {
        let [version, kind, _, _, high, low, padding, _] = array(from)?;
        let content = wire::exactly(from, usize::from(u16::from_be_bytes([high, low])))?;
        wire::exactly(from, usize::from(padding))?;
        match (version, kind) {
            (1, 1) => keep = content.get(2).is_some_and(|flags| flags & 1 == 1),
            (1, 4) => params.extend(content),
            (1, 5) if content.is_empty() => break,
            (1, 5) => body.extend(content),
            _ => return Err(bad()),
        }
        if params.len() > MOST_PARAMS || body.len() > crate::message::MOST_BODY {
            return Err(bad());
        }
    }
    Ok((received("FastCGI", pairs(&params)?, body), keep))
}

/// Reads names and values with their lengths before them.
fn pairs(mut bytes: &[u8]) -> io::Result<Vec<Field>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (name, value) = (pair_length(&mut bytes)?, pair_length(&mut bytes)?);
        let name = text(take(&mut bytes, name)?);
        all.push((name, text(take(&mut bytes, value)?)));
    }
    Ok(all)
}

fn pair_length(bytes: &mut &[u8]) -> io::Result<usize> {
    match *take(bytes, 1)? {
        [first @ 0..128] => Ok(first.into()),
        [first] => {
            let rest = take(bytes, 3)?.iter().fold(usize::from(first & 127), |n, b| n << 8 | usize::from(*b));
            Ok(rest)
        }
        _ => Err(bad()),
    }
}

/// Reads a request of SCGI.
pub(super) fn scgi(from: &mut impl BufRead) -> io::Result<Received> {
    let mut digits = Vec::new();
    from.take(12).read_until(b':', &mut digits)?;
    let length = text(&digits).trim_end_matches(':').parse().map_err(|_| bad())?;
    if length > MOST_PARAMS {
        return Err(bad());
    }
    let all = wire::exactly(from, length)?;
    wire::exactly(from, 1)?;
    let words: Vec<&[u8]> = all.split(|b| *b == 0).collect();
    let pair = |p: &[&[u8]]| Some((text(p.first()?), text(p.get(1)?)));
    let params: Vec<Field> = words.chunks(2).filter_map(pair).collect();
    let body = wire::exactly(from, length_of(&params))?;
    Ok(received("SCGI", params, body))
}

/// Reads a request of uwsgi.
pub(super) fn uwsgi(from: &mut impl BufRead) -> io::Result<Received> {
    let [first, low, high, second] = array(from)?;
    let all = wire::exactly(from, usize::from(u16::from_le_bytes([low, high])))?;
    let mut rest = all.as_slice();
    let mut params = vec![("modifiers".to_owned(), format!("{first} {second}"))];
    while !rest.is_empty() {
        let Ok(name) = sized(&mut rest) else { break };
        params.push((name, sized(&mut rest)?));
    }
    let body = wire::exactly(from, length_of(&params))?;
    Ok(received("uwsgi", params, body))
}

fn sized(bytes: &mut &[u8]) -> io::Result<String> {
    let &[low, high] = take(bytes, 2)? else { return Err(bad()) };
    Ok(text(take(bytes, usize::from(u16::from_le_bytes([low, high])))?))
}

/// Reads a request of memcached.
pub(super) fn memcached(from: &mut impl BufRead) -> io::Result<Received> {
    let line = text(&wire::line(from)?);
    Ok(Received { protocol: "memcached", line, ..Received::default() })
}

/// Returns the output of a program behind a gateway.
fn output(reply: &Reply) -> Vec<u8> {
    let reason = forebay_http::h1::response::reason(reply.status);
    let mut out = format!("Status: {} {reason}\r\n", reply.status).into_bytes();
    for (name, value) in &reply.fields {
        out.extend(format!("{name}: {value}\r\n").bytes());
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(&reply.body);
    out
}

/// Returns an answer of FastCGI.
pub(super) fn fastcgi_answer(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::new();
    for part in output(reply).chunks(32_768) {
        push_record(&mut out, 6, part);
    }
    push_record(&mut out, 6, b"");
    push_record(&mut out, 3, &[0; 8]);
    out
}

fn push_record(out: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let [high, low] = u16::try_from(content.len()).unwrap_or_default().to_be_bytes();
    out.extend_from_slice(&[1, kind, 0, 1, high, low, 0, 0]);
    out.extend_from_slice(content);
}

/// Returns an answer of SCGI or uwsgi.
pub(super) fn plain_answer(reply: &Reply) -> Vec<u8> {
    output(reply)
}

/// Returns an answer of memcached: keys with `missing` have no value.
pub(super) fn memcached_answer(line: &str, reply: &Reply) -> Vec<u8> {
    let key = line.strip_prefix("get ").unwrap_or_default();
    if key.is_empty() || key.contains("missing") {
        return b"END\r\n".to_vec();
    }
    let head = format!("VALUE {key} 0 {}\r\n", reply.body.len()).into_bytes();
    [head.as_slice(), &reply.body, b"\r\nEND\r\n"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_gateways() {
        let mut record = vec![1, 1, 0, 1, 0, 8, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 4, 0, 1, 0, 19, 0, 0, 14, 3];
        record.extend_from_slice(b"REQUEST_METHODGET");
        record.extend_from_slice(&[1, 4, 0, 1, 0, 0, 0, 0, 1, 5, 0, 1, 0, 0, 0, 0]);
        let (asked, keep) = fastcgi(&mut record.as_slice()).expect("a request");
        assert_eq!((asked.line.as_str(), keep), ("GET - -", true));

        let asked = scgi(&mut b"17:CONTENT_LENGTH\x002\0,xy".as_slice()).expect("a request");
        assert_eq!(asked.body, b"xy");

        let packet = b"\x00\x09\x00\x00\x01\x00A\x04\x00".as_slice();
        assert!(uwsgi(&mut &*packet).is_err(), "cut off");
        let packet = b"\x00\x06\x00\x00\x01\x00A\x01\x00b".as_slice();
        assert_eq!(uwsgi(&mut &*packet).expect("a request").fields[1], ("A".to_owned(), "b".to_owned()));
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        assert!(fastcgi(&mut [1, 4, 0, 1, 255, 255, 0, 0].as_slice()).is_err());
        assert!(pairs(&[255, 255, 255, 255, 1]).is_err());
        assert!(scgi(&mut b"99999999999:".as_slice()).is_err());
        assert!(scgi(&mut b"x:".as_slice()).is_err());
    }
}
