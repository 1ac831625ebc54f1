//! HTTP/1, HTTP/2 and gRPC, as an upstream speaks them.

use super::answer::Reply;
use super::{Connection, PATIENCE};
use crate::h2::{Message, Session};
use crate::message::{Field, Received, field, text};
use crate::wire::{self, Body, Framing};
use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

/// Time for which content that a head has announced may stay away. The client waits for longer.
const CONTENT_PATIENCE: Duration = Duration::from_secs(2);

/// Serves a request of HTTP/1.
pub(super) fn one(connection: &mut Connection<'_>) -> io::Result<()> {
    let mut line = text(&wire::line(&mut connection.reader)?);
    let mut before = Vec::new();
    // The header of the PROXY protocol.
    if line.starts_with("PROXY ") {
        before.push(("PROXY".to_owned(), "1".to_owned()));
        line = text(&wire::line(&mut connection.reader)?);
    }
    let mut fields = wire::fields(&mut connection.reader)?;
    let framing = wire::framing(&fields, Framing::Nothing);
    connection.reader.get_ref().set_read_timeout(Some(CONTENT_PATIENCE))?;
    let body = wire::body(&mut connection.reader, framing);
    connection.reader.get_ref().set_read_timeout(Some(PATIENCE))?;
    // Content that was announced and does not come has no end that another request could follow.
    let is_missing =
        body.as_ref().is_err_and(|e| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    let body = if is_missing { Body::default() } else { body? };
    fields.extend(before);
    fields.extend(body.trailers);
    let body = body.bytes;
    let close = is_missing
        || line.ends_with("HTTP/1.0")
        || field(&fields, "connection").is_some_and(|v| v.eq_ignore_ascii_case("close"));
    let (head, old) = (line.starts_with("HEAD "), line.ends_with("HTTP/1.0"));
    let reply = connection.answer(Received { protocol: "HTTP/1", line, fields, body });
    connection.write(&response(&reply, head, old))?;
    if close { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// Returns a response of HTTP/1.
fn response(reply: &Reply, head: bool, old: bool) -> Vec<u8> {
    let reason = forebay_http::h1::response::reason(reply.status);
    let mut out = format!("HTTP/1.1 {} {}\r\n", reply.status, reason).into_bytes();
    for (name, value) in &reply.fields {
        out.extend(format!("{name}: {value}\r\n").bytes());
    }
    let chunked = reply.chunked && !old;
    match reply.status {
        204 | 304 => {}
        _ if chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        _ if field(&reply.fields, "content-length").is_some() => {}
        _ => out.extend(format!("Content-Length: {}\r\n", reply.body.len()).bytes()),
    }
    out.extend_from_slice(b"\r\n");
    if head || matches!(reply.status, 204 | 304) {
        return out;
    }
    if !chunked {
        out.extend_from_slice(&reply.body);
        return out;
    }
    for part in reply.body.chunks(500) {
        out.extend(format!("{:x}\r\n", part.len()).bytes());
        out.extend_from_slice(part);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

/// A reader and a writer as one.
struct Both<'c, 's>(&'c mut Connection<'s>);

impl Read for Both<'_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.reader.read(buf)
    }
}

impl Write for Both<'_, '_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.writer.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serves a connection of HTTP/2.
pub(super) fn two(connection: &mut Connection<'_>) -> io::Result<()> {
    wire::exactly(&mut connection.reader, forebay_http::h2::frame::PREFACE.len())?;
    let mut session = Session::begin(Both(connection), false)?;
    loop {
        let message = session.receive()?;
        let stream = message.stream;
        let received = received(message);
        let grpc = field(&received.fields, "content-type").is_some_and(|v| v.starts_with("application/grpc"));
        let head = received.line.starts_with("HEAD ");
        let reply = session.stream.0.answer(received);
        let mut fields = vec![(":status".to_owned(), reply.status.to_string())];
        fields.extend(reply.fields.iter().filter(|(n, _)| !grpc || n != "Content-Type").cloned());
        let body: &[u8] = if head { b"" } else { &reply.body };
        if grpc {
            fields.push(("content-type".into(), "application/grpc".into()));
            let trailers = [("grpc-status".to_owned(), "0".to_owned())];
            session.send_with_trailers(stream, &fields, &grpc_message(body), &trailers)?;
        } else {
            session.send(stream, &fields, body)?;
        }
    }
}

/// Returns a message of gRPC: its length is before it.
fn grpc_message(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or_default().to_be_bytes();
    [&[0], length.as_slice(), body].concat()
}

/// Makes the request of its pseudo-header fields.
fn received(message: Message) -> Received {
    let pseudo = |name: &str| field(&message.fields, name).unwrap_or("-").to_owned();
    let line = format!("{} {} HTTP/2.0", pseudo(":method"), pseudo(":path"));
    let renamed = |(name, value): &Field| match name.as_str() {
        ":method" | ":path" => None,
        ":authority" => Some(("host".to_owned(), value.clone())),
        _ => Some((name.clone(), value.clone())),
    };
    let fields = message.fields.iter().chain(&message.trailers).filter_map(renamed).collect();
    Received { protocol: "HTTP/2", line, fields, body: message.body }
}
