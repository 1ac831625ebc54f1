//! The URL of `proxy_pass`: where a request goes and with which URI. Hot path.

use crate::upstream::CALL;
use crate::upstream::codec::Codec;
use crate::upstream::codec::facts::Facts;
use crate::upstream::exchange::Target;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Span};
use forebay_core::config::resolver::{Absence, Chosen};
use forebay_core::trace::{self, Step};
use forebay_core::upstream::servers::Server;
use forebay_core::vars::Template;
use forebay_http::uri::{Escape, escape};
use forebay_net::addr::PeerAddr;
use forebay_net::addr::Place;
use forebay_net::resolver::Resolver;
use forebay_server::config::Scope;
use forebay_server::config::upstreams::{Named, Upstream};
use forebay_server::modules::resolver;
use forebay_server::request::Request;
use forebay_server::way;
use std::net::SocketAddr;
use std::sync::Arc;

/// A `proxy_pass`.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Name of the location around it, if that is a prefix or exact one.
    pub location: Option<Vec<u8>>,
    /// Destination.
    pub to: To,
    /// Way in which the upstream is spoken to. That of `proxy_pass` is HTTP/1.1, until the version is known.
    pub codec: Codec,
    /// Key that the upstream is asked for ([`Facts::key`]).
    pub key: Option<Template>,
    pub(crate) at: WrittenAt,
}

/// Places of the word and of the end of the directive, for errors that are found later.
#[derive(Clone, Copy)]
pub(crate) struct WrittenAt(Span, Span);

// The text leaves the places out, because what a reload takes over is equal wherever it is written.
impl std::fmt::Debug for WrittenAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WrittenAt")
    }
}

/// Destination of a `proxy_pass`.
#[derive(Clone, Debug)]
pub enum To {
    /// A constant URL.
    Fixed {
        /// `https`.
        encrypted: bool,
        /// Group.
        group: Named,
        /// `$proxy_host`.
        host: Vec<u8>,
        /// `$proxy_port`.
        port: Vec<u8>,
        /// Replacement for the location's name; `None`: the request's own URI is passed on.
        uri: Option<Vec<u8>>,
        /// The URL as written.
        url: Vec<u8>,
    },
    /// With variables.
    Template(Template),
}

/// Destination of a request. A cache is asked before a name is looked up.
pub enum Destination {
    /// Servers of the configuration.
    Known(Target),
    /// A place that has come up while the request is served, and its default port; 0 is none.
    Place(Place, u16),
}

impl Destination {
    /// Returns the servers; looks the name up if need be.
    ///
    /// # Errors
    /// The status to answer with.
    pub async fn find(self, req: &mut Request) -> Result<Target, u16> {
        match self {
            Destination::Known(target) => Ok(target),
            Destination::Place(place, default_port) => find(req, &place, default_port).await,
        }
    }
}

/// The pieces of a URL.
struct Parts<'t> {
    encrypted: bool,
    place: Place,
    /// Host and port as written.
    authority: &'t [u8],
    uri: Option<&'t [u8]>,
}

fn split(url: &[u8]) -> Result<Parts<'_>, String> {
    let show = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    let lower = url.get(..8).unwrap_or(url).to_ascii_lowercase();
    let encrypted = lower.starts_with(b"https://");
    if !encrypted && !lower.starts_with(b"http://") {
        return Err("invalid URL prefix".into());
    }
    let rest = &url[if encrypted { 8 } else { 7 }..];
    let (authority, uri) = split_uri(rest);
    let place = Place::parse(authority).map_err(|m| format!("{m} in upstream \"{}\"", show(rest)))?;
    Ok(Parts { encrypted, place, authority, uri })
}

/// Splits a URL without its scheme in front of its path or query. A colon ends the path of a socket.
fn split_uri(rest: &[u8]) -> (&[u8], Option<&[u8]>) {
    if rest.starts_with(b"unix:") {
        return match memchr::memchr(b':', &rest[5..]) {
            Some(at) => (&rest[..5 + at], Some(&rest[6 + at..]).filter(|u| !u.is_empty())),
            None => (rest, None),
        };
    }
    match rest.iter().position(|b| matches!(b, b'/' | b'?')) {
        Some(at) => (&rest[..at], Some(&rest[at..])),
        None => (rest, None),
    }
}

/// Reads a place that is not part of a URL, as in `fastcgi_pass`. Returns `true` if connections are encrypted, the place, and
/// its text without the scheme.
fn place<'t>(text: &'t [u8], facts: &Facts) -> Result<(bool, Place, &'t [u8]), String> {
    if facts.takes_scheme {
        for encrypted in [true, false] {
            let scheme = facts.scheme(encrypted);
            if let Some((start, rest)) = text.split_at_checked(scheme.len())
                && start.eq_ignore_ascii_case(scheme)
            {
                return bare_place(rest).map(|place| (encrypted, place, rest));
            }
        }
    }
    bare_place(text).map(|place| (false, place, text))
}

fn bare_place(text: &[u8]) -> Result<Place, String> {
    let show = || String::from_utf8_lossy(text).into_owned();
    if !text.starts_with(b"unix:") && text.contains(&b'/') {
        return Err(format!("invalid host in upstream \"{}\"", show()));
    }
    // The path of a socket may end in a colon, as it does in front of a URI.
    let end =
        if text.starts_with(b"unix:") { memchr::memchr(b':', &text[5..]).map(|at| at + 5) } else { None };
    Place::parse(&text[..end.unwrap_or(text.len())]).map_err(|m| format!("{m} in upstream \"{}\"", show()))
}

impl Parts<'_> {
    fn default_port(&self) -> u16 {
        if self.encrypted { 443 } else { 80 }
    }
}

impl Pass {
    /// Returns `true` if connections may have to be encrypted.
    pub fn may_encrypt(&self) -> bool {
        self.codec.facts().encrypted_scheme.is_some()
            && !matches!(self.to, To::Fixed { encrypted: false, .. })
    }

    /// Returns `true` if the URL is one of HTTP without encryption.
    pub fn is_unencrypted(&self) -> bool {
        self.codec.facts().takes_url && matches!(self.to, To::Fixed { encrypted: false, .. })
    }

    /// Gives an error the place of the directive.
    pub fn place(&self, error: Error) -> Error {
        let WrittenAt(span, at) = self.at;
        Error { span: Some(span), at: Some(at), ..error }
    }

    /// Reads the directive. `location`: the name of a prefix or exact location.
    ///
    /// # Errors
    /// In nginx's words.
    pub fn parse(d: &Directive, location: Option<Vec<u8>>, cx: &mut Scope<'_>) -> Result<Pass, Error> {
        let Some(word) = d.args.first() else { return Err(cx.error(d, "no URL")) };
        let template = cx.template(d, word)?;
        let Some(url) = template.as_const() else {
            return Ok(Pass {
                location,
                to: To::Template(template),
                codec: Codec::HTTP1,
                key: None,
                at: WrittenAt(word.span, d.end),
            });
        };
        let parts = split(url).map_err(|m| cx.error_at(d, word, m))?;
        // Without a literal name of the location, nothing says which part of the path the URI replaces.
        if parts.uri.is_some() && location.is_none() {
            return Err(cx.error(
                d,
                "\"proxy_pass\" cannot have URI part in location given by regular expression, or inside named \
                 location, or inside \"if\" statement, or inside \"limit_except\" block",
            ));
        }
        let at = cx.error_at(d, word, "");
        let group = cx.tables.upstreams.reference(&parts.place, parts.default_port(), at);
        let (host, port) = host_and_port(&parts);
        let encrypted = parts.encrypted;
        let to =
            To::Fixed { encrypted, group, host, port, uri: parts.uri.map(<[u8]>::to_vec), url: url.to_vec() };
        Ok(Pass { location, to, codec: Codec::HTTP1, key: None, at: WrittenAt(word.span, d.end) })
    }

    /// Reads the directive of another protocol, whose parameter is a place without a URI.
    ///
    /// # Errors
    /// In nginx's words.
    pub fn parse_place(d: &Directive, codec: Codec, cx: &mut Scope<'_>) -> Result<Pass, Error> {
        let Some(word) = d.args.first() else { return Err(cx.error(d, "no place")) };
        let template = cx.template(d, word)?;
        let to = match template.as_const() {
            None => To::Template(template),
            Some(text) => {
                let (encrypted, place, written) =
                    place(text, codec.facts()).map_err(|m| cx.error_at(d, word, m))?;
                let group = cx.tables.upstreams.reference(&place, 0, cx.error_at(d, word, ""));
                let (host, port, uri) = (authority(&place, written), Vec::new(), None);
                To::Fixed { encrypted, group, host, port, uri, url: text.to_vec() }
            }
        };
        let key = codec.facts().key.map(|key| Template::compile(key, &mut cx.vars));
        let key = key.transpose().map_err(|m| forebay_core::config::plain(&m))?;
        Ok(Pass { location: None, to, codec, key, at: WrittenAt(word.span, d.end) })
    }

    /// Returns target and URI of the request if the destination is constant. Sets `$proxy_host` and `$proxy_port`.
    pub fn fixed(&self, req: &mut Request) -> Option<(Target, Vec<u8>)> {
        let To::Fixed { group, host, port, uri, encrypted, .. } = &self.to else { return None };
        let http = req.http();
        let target = Target::of(req, http.upstreams.get(*group)?);
        CALL.of_mut(req).encrypted = *encrypted;
        if !self.codec.facts().is_http {
            return Some((target, Vec::new()));
        }
        set_host(req, host, port);
        // The buffer comes back as the path for the log when the request has been written, so nothing is allocated.
        let mut out = std::mem::take(&mut req.modules.upstream.log_path);
        out.clear();
        self.uri(req, uri.as_deref(), &mut out);
        Some((target, out))
    }

    /// Returns destination and URI of the request, even if they have variables. The codec of the request is set before.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn destination(&self, req: &mut Request) -> Result<(Destination, Vec<u8>), u16> {
        if let Some((target, uri)) = self.fixed(req) {
            return Ok((Destination::Known(target), uri));
        }
        let To::Template(t) = &self.to else { return Err(500) };
        let text = t.value(req).map_err(|_| 500u16)?;
        if self.codec.facts().takes_url {
            self.destination_of_url(req, &text)
        } else {
            self.destination_of_place(req, &text)
        }
    }

    fn destination_of_place(&self, req: &mut Request, text: &[u8]) -> Result<(Destination, Vec<u8>), u16> {
        let read = place(text, self.codec.facts()).inspect_err(|m| req.log(Level::Error, m));
        let (encrypted, place, written) = read.map_err(|_| 500u16)?;
        CALL.of_mut(req).encrypted = encrypted;
        let mut uri = Vec::new();
        if self.codec.facts().is_http {
            set_host(req, &authority(&place, written), b"");
            self.uri(req, None, &mut uri);
        }
        Ok((Destination::Place(place, 0), uri))
    }

    fn destination_of_url(&self, req: &mut Request, url: &[u8]) -> Result<(Destination, Vec<u8>), u16> {
        let parts = split(url).map_err(|why| invalid_url(req, url, why))?;
        CALL.of_mut(req).encrypted = parts.encrypted;
        let (host, port) = host_and_port(&parts);
        set_host(req, &host, &port);
        let mut uri = Vec::new();
        match parts.uri {
            // As in nginx, a URI that comes from variables replaces the whole URI of the request.
            Some(u) => {
                if u.first() == Some(&b'?') {
                    uri.push(b'/');
                }
                uri.extend_from_slice(u);
            }
            None => self.uri(req, None, &mut uri),
        }
        let port = parts.default_port();
        Ok((Destination::Place(parts.place, port), uri))
    }

    /// Appends the URI for the upstream (nginx: proxy_pass, "if the directive is specified with a URI").
    fn uri(&self, req: &Request, replacement: Option<&[u8]>, out: &mut Vec<u8>) {
        let changed = req.uri.rewritten;
        let replacement = replacement.filter(|_| req.uri.valid_location);
        if replacement.is_none() && !changed {
            // The URI is passed on as the client wrote it, so that escapes and double slashes keep their form.
            out.extend_from_slice(req.head.target.of(&req.head.buf));
            return;
        }
        let mut path = req.uri.path.as_slice();
        if let (Some(r), Some(l)) = (replacement, &self.location) {
            // A request line needs a path, which the directive may leave out in front of a query.
            if r.first() == Some(&b'?') {
                out.push(b'/');
            }
            out.extend_from_slice(r);
            path = path.get(l.len()..).unwrap_or_default();
        }
        // The path was decoded for the choice of the location, so it is escaped again.
        escape(path, Escape::Uri, out);
        if !req.uri.args.is_empty() {
            out.push(b'?');
            out.extend_from_slice(&req.uri.args);
        }
    }
}

/// Logs that a URL cannot be used. Returns the status to answer with.
#[cold]
fn invalid_url(req: &mut Request, url: &[u8], why: String) -> u16 {
    let text = match why.as_str() {
        "invalid URL prefix" => format!("{why} in \"{}\"", String::from_utf8_lossy(url)),
        _ => why,
    };
    req.log(Level::Error, &text);
    500
}

/// Returns the resolver of the location, or the resolver of the system; `None` with `resolver off`.
fn resolver_of(req: &Request) -> Option<Arc<Resolver>> {
    let http = req.http();
    match &resolver::SETTINGS.of(&http.location(req).settings).resolver {
        Chosen(Some(r), _) => Some(r.clone()),
        Chosen(None, Absence::Off) => None,
        Chosen(None, Absence::Unsaid) => {
            Some(http.system_resolver.get_or_init(|| Arc::new(Resolver::system())).clone())
        }
    }
}

/// Finds the group of the configuration, or the addresses, of a place that is known only while the request is served. A
/// `default_port` of 0 is none.
async fn find(req: &mut Request, place: &Place, default_port: u16) -> Result<Target, u16> {
    let http = req.http();
    let name = place.host();
    // As in nginx, an `upstream` block of the name has precedence over the name service.
    if let Some(u) = http.upstreams.with_name(&name).find(|u| stands_for(u, place, default_port)) {
        return Ok(Target::of(req, u));
    }
    // Protocols other than HTTP have no port that could be assumed.
    if default_port == 0 && matches!(place, Place::Host(_, None)) {
        let text = String::from_utf8_lossy(&name).into_owned();
        req.log(Level::Error, &format!("no port in upstream \"{text}\""));
        return Err(500);
    }
    // An address needs no name server, so it works without a `resolver` directive.
    if let Some(addr) = place.literal(default_port) {
        return Ok(Target::Direct(vec![addr]));
    }
    if let Some(stand_in) = trace::stand_in() {
        way::note(req, || Step::new("resolver").fact("name", &name).fact("result", "not asked"));
        return Ok(Target::Direct(vec![stand_in]));
    }
    let Some(resolver) = resolver_of(req) else {
        req.log(Level::Error, &format!("no resolver defined to resolve {}", String::from_utf8_lossy(&name)));
        return Err(502);
    };
    let addrs = look_up(req, &resolver, &name, place.port().unwrap_or(default_port)).await?;
    Ok(Target::Direct(addrs))
}

/// Returns `true` if a group with the name of a place stands for the place. A group that another directive has made of an
/// address stands for this address and port alone.
fn stands_for(u: &Upstream, place: &Place, default_port: u16) -> bool {
    let g = &u.group;
    let port = match place {
        Place::Unix(_) => return true,
        Place::Host(_, None) if g.explicit => return true,
        Place::Host(_, port) => port.unwrap_or(default_port),
    };
    let has_port = |s: &Server| s.place.port().unwrap_or(s.default_port) == port;
    port > 0 && !g.explicit && g.with_servers(|all| all.iter().any(has_port))
}

/// Resolves a name that became known while the request is served.
async fn look_up(
    req: &mut Request,
    resolver: &Arc<Resolver>,
    name: &[u8],
    port: u16,
) -> Result<Vec<PeerAddr>, u16> {
    let timeout = resolver::SETTINGS.of(&req.own_location().settings).timeout.0;
    let thread = req.thread.clone();
    let until = thread.io.poller.now() + timeout;
    let found = thread.io.poller.deadline(until, resolver.addresses(name, false)).await;
    match found.unwrap_or(Err(forebay_net::resolver::Failure::Timeout)) {
        Ok(a) => Ok(a.ips.into_iter().map(|ip| PeerAddr::Inet(SocketAddr::new(ip, port))).collect()),
        Err(e) => {
            let text = String::from_utf8_lossy(name).into_owned();
            req.log(Level::Error, &format!("{text} could not be resolved ({e})"));
            Err(502)
        }
    }
}

fn host_and_port(parts: &Parts<'_>) -> (Vec<u8>, Vec<u8>) {
    match &parts.place {
        Place::Unix(_) => (authority(&parts.place, b""), Vec::new()),
        Place::Host(_, port) => {
            (parts.authority.to_vec(), port.unwrap_or(parts.default_port()).to_string().into_bytes())
        }
    }
}

/// Returns the default of `Host`: the authority as written, `localhost` for a unix socket.
fn authority(place: &Place, written: &[u8]) -> Vec<u8> {
    match place {
        Place::Unix(_) => b"localhost".to_vec(),
        Place::Host(..) => written.to_vec(),
    }
}

fn set_host(req: &mut Request, host: &[u8], port: &[u8]) {
    let u = &mut req.modules.upstream;
    u.host.clear();
    u.host.extend_from_slice(host);
    u.port.clear();
    u.port.extend_from_slice(port);
}
