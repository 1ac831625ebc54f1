//! A request over HTTP/2 (nginx: proxy_http_version 2, grpc_pass). Many streams share a connection, which `upstream/h2/` has. Hot path.

use super::decoder::{Decoded, Decoder, TOO_LONG};
use super::muxed::{self, Ask};
use crate::upstream::contact::Contact;
use crate::upstream::exchange::READ;
use crate::upstream::fault::Fault;
use crate::upstream::h2::{self, Dial, Need, Stream};
use crate::upstream::open::{self, Open};
use crate::upstream::pooled::Opened;
use forebay_core::tls::client::Wanted;
use forebay_core::upstream::conn::Conn;
use forebay_http::request::Framing;
use forebay_net::wire::{Watch, Wire};
use forebay_server::request::Request;
use forebay_server::request::upstream::Upstreamed;
use std::any::Any;
use std::rc::Rc;

/// Tells connections of this version from others.
pub const MADE_FOR: u64 = 0x6832_0000_0000_0000;

/// Text for content that ends before the announced length.
const TOO_SHORT: &str =
    "upstream sent response body smaller than indicated content length while reading upstream";

/// Returns the stream behind a connection, if that is one of HTTP/2.
pub fn stream(conn: &Conn) -> Option<Rc<Stream>> {
    let any: Rc<dyn Any> = conn.wire().as_mux()?.clone();
    any.downcast().ok()
}

/// Returns what a request needs of its connection.
fn need(req: &Request, contact: &Contact, ask: &Ask<'_>) -> Need {
    muxed::need(req, contact, ask, (ask.addr.clone(), (), ask.settings.connect_timeout.0))
}

/// Makes a stream the connection of a request.
fn take(req: &Request, opened: Opened<Stream>, ask: &Ask<'_>) -> Conn {
    let now = req.thread.io.poller.now();
    let mut conn = Conn::opened(&req.thread.io, Wire::Mux(opened.stream), now);
    (conn.reused, conn.made_for) = (opened.reused, ask.made_for);
    conn
}

/// Opens a stream at once on a connection that there is, where one has room.
pub fn find(req: &Request, contact: &Contact, ask: &Ask<'_>) -> Option<Conn> {
    let now = req.thread.io.poller.now();
    let opened = h2::POOL.of(&req.thread).open_now(&need(req, contact, ask), now)?;
    Some(take(req, opened, ask))
}

/// Opens a stream on a connection that has just been opened, and leaves the connection to other requests, too.
pub fn adopt(req: &Request, contact: &Contact, ask: &Ask<'_>, conn: Conn) -> Option<Conn> {
    let opened = h2::POOL.of(&req.thread).adopt(&req.thread, &need(req, contact, ask), conn)?;
    Some(take(req, opened, ask))
}

/// Opens a stream, where [`find`] has found no connection.
pub async fn open(
    req: &mut Request,
    contact: &Contact,
    wanted: Option<&Wanted>,
    ask: &Ask<'_>,
    watch: &mut Watch,
) -> Result<Conn, Fault> {
    let (thread, conf) = (req.thread.clone(), req.conf.clone());
    let s = ask.settings;
    let greeting = open::greeting(req, s.protocol_header);
    let (timeout, keepalive) = (s.connect_timeout.0, s.socket_keepalive);
    let o = Open { addr: ask.addr, local: ask.local, timeout, keepalive, greeting: &greeting };
    let dial = Dial { settings: open::settings(req, &o), wanted, base: &conf.http.conf_dir };
    let need = need(req, contact, ask);
    match h2::POOL.of(&thread).open(&thread, &need, &dial, watch).await {
        Ok(opened) => Ok(take(req, opened, ask)),
        Err(trouble) => Err(open::no_stream(req, (ask.addr, ask.local), trouble)),
    }
}

/// Takes content that has come together with the head, so that it is judged before the head is passed on.
pub(super) fn take_early(req: &mut Request, contact: &Contact) {
    let Some(conn) = contact.conn().filter(|conn| stream(conn).is_some()) else { return };
    let Upstreamed { attempts, early, .. } = &mut req.modules.upstream;
    if !conn.readable() {
        return;
    }
    if early.capacity() == 0 {
        *early = req.thread.io.large.take();
    }
    if let (Ok(n), Some(a)) = (conn.read(early, READ), attempts.last_mut()) {
        a.received += n as u64;
    }
}

/// Returns `true` if all of the response has been taken, and has no trailers.
pub fn is_whole(conn: Option<&Conn>) -> bool {
    conn.and_then(stream).is_some_and(|stream| stream.is_bare())
}

/// Decodes the content of a response.
pub(super) fn decode(
    c: &mut Decoder,
    req: &mut Request,
    conn: Option<&Conn>,
    input: &[u8],
    out: &mut Vec<u8>,
) -> Decoded {
    let before = out.len();
    out.append(&mut req.modules.upstream.early);
    out.extend_from_slice(input);
    let length = (out.len() - before) as u64;
    match c.framing {
        Framing::None => {
            out.truncate(before);
            return Decoded { length, ..Decoded::content(0, true) };
        }
        Framing::Length(_) if length > c.left => {
            out.truncate(before);
            return Decoded::failed(length, TOO_LONG);
        }
        Framing::Length(_) => c.left -= length,
        _ => {}
    }
    let over = conn.and_then(stream).is_none_or(|stream| stream.is_over());
    if over && c.left > 0 {
        return Decoded::failed(length, TOO_SHORT);
    }
    Decoded { length, ..Decoded::content(out.len() - before, over) }
}
