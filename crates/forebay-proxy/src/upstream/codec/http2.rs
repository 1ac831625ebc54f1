//! A request over HTTP/2 (nginx: proxy_http_version 2, grpc_pass). Many streams share a connection, which `upstream/h2/` has. Hot path.

use super::decoder::{Content, Decoded, Input, TOO_LONG};
use super::facts::Facts;
use super::http1::{self, Form, HTTP};
use super::muxed::{self, Ask, Terms};
use super::{Asked, Came, Place, Speak, Written};
use crate::upstream::CALL;
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

/// HTTP/2 (`proxy_http_version 2`), and gRPC (`grpc_pass`), which is HTTP/2 with other settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2 {
    is_grpc: bool,
}

static FACTS: Facts = HTTP2;

const HTTP2: Facts = Facts {
    // The letters "h2", so that an idle connection is never used by another protocol.
    made_for: 0x6832_0000_0000_0000,
    alpn: &[b"h2"],
    is_multiplexed: true,
    ends_apart: true,
    // As nginx does: a gRPC server may tell a message that ended from one that never began.
    sends_empty: true,
    judges_end: true,
    ..HTTP
};

static FACTS_OF_GRPC: Facts = Facts {
    prefix: "grpc_",
    scheme: b"grpc://",
    encrypted_scheme: Some(b"grpcs://"),
    takes_url: false,
    takes_scheme: true,
    logs_path: false,
    passes_te: true,
    is_empty_after_head: true,
    hides: b"",
    ..HTTP2
};

/// The form of a head for HTTP/2.
const FORM: Form = Form { keeps_framing: true, upgrades: false, ..Form::STREAM };

/// Text for content that ends before the announced length.
const TOO_SHORT: &str =
    "upstream sent response body smaller than indicated content length while reading upstream";

impl Http2 {
    /// HTTP.
    pub const HTTP: Http2 = Http2 { is_grpc: false };
    /// gRPC.
    pub const GRPC: Http2 = Http2 { is_grpc: true };
}

impl Speak for Http2 {
    fn facts(&self) -> &'static Facts {
        if self.is_grpc { &FACTS_OF_GRPC } else { &FACTS }
    }

    fn can_stream(&self, _framing: Framing) -> bool {
        true
    }

    fn write_request(&self, req: &mut Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Written {
        http1::write_head(req, asked, &Form { passes_te: self.is_grpc, ..FORM }, out)
    }

    fn parse_head(&self, req: &mut Request, limit: usize, _headless: bool) -> Result<Came, Fault> {
        muxed::parse_head(req, limit)
    }

    fn keeps_alive(&self, req: &Request) -> bool {
        req.modules.upstream.head.keep_alive
    }

    fn at_once(&self, conn: &Conn) -> Option<Place> {
        // Only if all of the response has come, and no trailers with it, nothing is left to be read.
        stream(conn).is_some_and(|stream| stream.is_bare()).then_some(Place::Early)
    }

    fn decode(&mut self, c: &mut Content, req: &mut Request, input: Input<'_>, out: &mut Vec<u8>) -> Decoded {
        let before = out.len();
        out.append(&mut req.modules.upstream.early);
        out.extend_from_slice(input.bytes);
        let length = (out.len() - before) as u64;
        match c.framing {
            Framing::None => {
                out.truncate(before);
                return Decoded { length, ..Decoded::content(0, true) };
            }
            // A response whose content differs from its `content-length` is malformed (RFC 9113, section 8.1.1).
            Framing::Length(_) if length > c.left => {
                out.truncate(before);
                return Decoded::failed(length, TOO_LONG);
            }
            Framing::Length(_) => c.left -= length,
            _ => {}
        }
        // The end of the stream counts only after the content that came before it, so that nothing is lost.
        let over = input.conn.and_then(stream).is_none_or(|stream| stream.is_over());
        if over && c.left > 0 {
            return Decoded::failed(length, TOO_SHORT);
        }
        Decoded { length, ..Decoded::content(out.len() - before, over) }
    }

    fn ends_with_connection(&self, _c: &Content) -> bool {
        false
    }

    fn note_trailers(&self, c: &Content, req: &mut Request, conn: Option<&Conn>) {
        muxed::note_trailers(c, req, conn);
    }
}

/// Returns the stream of a connection, if that is one of HTTP/2.
pub fn stream(conn: &Conn) -> Option<Rc<Stream>> {
    let any: Rc<dyn Any> = conn.wire().as_mux()?.clone();
    any.downcast().ok()
}

/// Returns what a request needs of its connection.
fn need(req: &Request, contact: &Contact, ask: &Ask<'_>) -> Need {
    let terms = Terms { addr: ask.addr.clone(), limits: (), timeout: ask.settings.connect_timeout.0 };
    muxed::need(req, contact, ask, terms)
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
        Err(trouble) => Err(open::no_stream(req, ask.addr, ask.local, trouble)),
    }
}

/// Notes the length of a gRPC response that has ended with its head. As in nginx, it has a length whatever its status is, and in
/// answer to HEAD, too.
pub(super) fn note_empty(req: &mut Request, contact: &Contact) {
    let is_empty_after_head = CALL.of(req).codec.facts().is_empty_after_head;
    let head = &mut req.modules.upstream.head;
    if is_empty_after_head
        && head.content_length.is_none()
        && contact.conn().and_then(stream).is_some_and(|stream| stream.has_ended_with_head())
    {
        head.content_length = Some(0);
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
