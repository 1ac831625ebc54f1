//! Description of a load: requests, their order, and how they are sent.

use crate::Error;
use crate::raw::{Answer, Message};
use crate::schedule::{Random, Rate};
use crate::url::{Address, Scheme, Url};
use forebay_http::h2::encode;
use forebay_http::h3;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::sync::Arc;
use std::time::Duration;

/// Protocol of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/1.0, as ab speaks it.
    Http10,
    /// HTTP/2, by ALPN over TLS and by prior knowledge without.
    Http2,
    /// HTTP/3, over QUIC.
    Http3,
    /// Bytes of any protocol.
    Raw,
}

/// Condition that ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After this time, warm-up not counted.
    After(Duration),
    /// After this many requests, or the time, whichever comes first.
    Count(u64, Option<Duration>),
}

/// One request before it is encoded.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Target.
    pub url: Url,
    /// `GET` and so on.
    pub method: String,
    /// Further fields. `Host` and `User-Agent` replace those that are sent anyway.
    pub fields: Vec<(String, String)>,
    /// Content, sent with its length.
    pub body: Vec<u8>,
    /// Frequency relative to that of the others.
    pub weight: u32,
}

impl Wanted {
    /// Creates a plain GET.
    pub fn get(url: Url) -> Wanted {
        Wanted { url, method: "GET".into(), fields: Vec::new(), body: Vec::new(), weight: 1 }
    }

    /// Returns the value of a field, if it is set.
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    fn fields_but_host(&self) -> impl Iterator<Item = &(String, String)> {
        self.fields.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("host"))
    }

    /// Returns the fields for HTTP/2 and HTTP/3, where those of the connection have no place (RFC 9113, section 8.2.2; RFC 9114,
    /// section 4.2).
    fn fields_but_connection(&self) -> impl Iterator<Item = &(String, String)> {
        let of_connection = |name: &str| {
            ["connection", "keep-alive", "transfer-encoding", "upgrade"]
                .iter()
                .any(|n| name.eq_ignore_ascii_case(n))
        };
        self.fields_but_host().filter(move |(name, _)| !of_connection(name))
    }
}

/// Checks of an answer. Unset: anything is right.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// Statuses that are right. `None`: 200 to 399.
    pub status: Option<Vec<u16>>,
    /// Bytes of content.
    pub length: Option<u64>,
    /// All answers must have the length of the first one (ab).
    pub same_length: bool,
    /// Bytes that the content must contain.
    pub contains: Option<Vec<u8>>,
}

impl Checks {
    pub(crate) fn status_ok(&self, status: u16) -> bool {
        match &self.status {
            None => (200..400).contains(&status),
            Some(list) => list.contains(&status),
        }
    }
}

/// One place that connections go to.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Name for reports.
    pub name: String,
    /// Resolved address.
    pub address: Address,
    /// Name for TLS; `None`: no TLS.
    pub server_name: Option<ServerName<'static>>,
    /// Requests in the order in which they are sent, then again from the first; indices of
    /// [`Load::requests`].
    pub order: Vec<u32>,
    /// Share of all requests.
    pub weight: u64,
}

/// An encoded request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Whole message in HTTP/1.1, or in a raw protocol.
    pub h1: Vec<u8>,
    /// Field block in HTTP/2.
    pub h2: Vec<u8>,
    /// HEADERS frame in HTTP/3, and the head of a DATA frame if there is content.
    pub h3: Vec<u8>,
    /// Content for HTTP/2 and HTTP/3.
    pub body: Vec<u8>,
    /// The method is HEAD.
    pub head: bool,
    /// For reports: method and path; empty for raw messages.
    pub name: String,
}

/// A run.
#[derive(Clone)]
pub struct Load {
    /// Places that requests go to, at least one.
    pub origins: Vec<Origin>,
    /// Requests, at least one.
    pub requests: Vec<Request>,
    /// Connections kept open or in the making.
    pub connections: usize,
    /// CPUs, one thread each. Empty: one thread that is not pinned.
    pub cpus: Vec<usize>,
    /// Open loop; `None`: each connection sends its next request when it has an answer.
    pub rate: Option<Rate>,
    /// Condition that ends the run.
    pub stop: Stop,
    /// Time at the start that does not count.
    pub warmup: Duration,
    /// Longest time for connecting, and for a request.
    pub timeout: Duration,
    /// Time that answers are awaited after the end. `None`: as [`Load::timeout`].
    pub drain: Option<Duration>,
    /// Pause of a connection between answer and next request.
    pub think: Duration,
    /// Protocol.
    pub protocol: Protocol,
    /// End of each answer in a raw protocol.
    pub answer: Answer,
    /// Requests under way on a connection: depth of the pipeline, or streams. At least 1.
    pub parallel: usize,
    /// Requests on a connection before it is closed; 1: a new connection each. 0: no limit.
    pub per_connection: u64,
    /// Configuration of TLS.
    pub tls: Option<Arc<ClientConfig>>,
    /// Sessions are resumed.
    pub resume: bool,
    /// Checks of answers.
    pub checks: Checks,
    /// Seed of everything random.
    pub seed: u64,
    /// Bytes asked for as receive buffer of sockets (ab -b); 0: the system's default.
    pub receive_buffer: usize,
    /// Description of the message of a raw protocol, for reports.
    pub message: Option<String>,
    /// Times are also taken apart as ab does: connecting, waiting, processing (HTTP/1 without a pipeline).
    pub split: bool,
}

impl std::fmt::Debug for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.origins.iter().map(|o| o.name.as_str()).collect();
        write!(f, "Load({names:?}, {} requests, {} connections)", self.requests.len(), self.connections)
    }
}

/// Longest sequence that a weighted mix is laid out in.
const SEQUENCE: usize = 65_536;

/// Order of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// At random by weight.
    Mixed,
    /// In the order of the list.
    Listed,
}

impl Load {
    /// Creates a closed loop of 50 connections for ten seconds.
    ///
    /// # Errors
    /// No request, hosts without address, a method or field that cannot be sent.
    pub fn new(wanted: &[Wanted], protocol: Protocol, order: Order, seed: u64) -> Result<Load, Error> {
        if wanted.is_empty() {
            return Err(Error::Usage("there is no URL".into()));
        }
        let mut gathered = Gathered::default();
        let mut requests = Vec::new();
        for (number, want) in wanted.iter().enumerate() {
            gathered.add(number, want, protocol)?;
            requests.push(encode(want, protocol)?);
        }
        Ok(Load {
            origins: gathered.in_order(order, seed)?,
            requests,
            connections: 50,
            cpus: Vec::new(),
            rate: None,
            stop: Stop::After(Duration::from_secs(10)),
            warmup: Duration::ZERO,
            timeout: Duration::from_secs(10),
            drain: None,
            think: Duration::ZERO,
            protocol,
            answer: Answer::First,
            parallel: 1,
            per_connection: 0,
            tls: None,
            resume: false,
            checks: Checks::default(),
            seed,
            receive_buffer: 0,
            message: None,
            split: false,
        })
    }

    /// Creates a closed loop of 50 connections for ten seconds that send bytes to these URLs.
    ///
    /// # Errors
    /// No URL, or hosts without address.
    pub fn raw(urls: &[Url], message: Message, seed: u64) -> Result<Load, Error> {
        let wanted = |url: &Url| Wanted { body: message.bytes.clone(), ..Wanted::get(url.clone()) };
        let wanted: Vec<Wanted> = urls.iter().map(wanted).collect();
        let mut load = Load::new(&wanted, Protocol::Raw, Order::Mixed, seed)?;
        load.answer = message.answer;
        load.per_connection = u64::from(message.answer == Answer::Close);
        load.message = Some(message.name);
        if load.has_datagrams() {
            load.checks.length = message.length;
        }
        Ok(load)
    }

    /// Makes every request the last one of its connection, with `Connection: close`.
    pub fn close_each(wanted: &mut [Wanted]) {
        for want in wanted {
            if !want.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("connection")) {
                want.fields.push(("Connection".into(), "close".into()));
            }
        }
    }

    /// Returns the seconds that the run takes with warm-up, if that is known.
    pub(crate) fn seconds(&self) -> Option<f64> {
        match self.stop {
            Stop::After(time) | Stop::Count(_, Some(time)) => Some((time + self.warmup).as_secs_f64()),
            Stop::Count(_, None) => None,
        }
    }

    /// Returns the number of requests that the run takes, if that is how it ends.
    pub(crate) fn count(&self) -> Option<u64> {
        if let Stop::Count(n, _) = self.stop { Some(n) } else { None }
    }

    /// Returns `true` if it sends datagrams.
    pub(crate) fn has_datagrams(&self) -> bool {
        self.origins.iter().any(|o| matches!(o.address, Address::Udp(_)))
    }

    /// Returns `true` if any origin is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.origins.iter().any(|o| o.server_name.is_some())
    }
}

/// The places that requests go to, while they are gathered.
#[derive(Default)]
struct Gathered {
    origins: Vec<Origin>,
    /// Keys of the origins: scheme, host, port and unix socket.
    keys: Vec<(&'static str, String, u16, Option<std::path::PathBuf>)>,
    /// Numbers and weights of each origin's requests.
    members: Vec<Vec<(u32, u32)>>,
}

impl Gathered {
    fn add(&mut self, number: usize, want: &Wanted, protocol: Protocol) -> Result<(), Error> {
        let url = &want.url;
        let key = (url.scheme.name(), url.host.to_ascii_lowercase(), url.port, url.socket.clone());
        let at = match self.keys.iter().position(|k| *k == key) {
            Some(at) => at,
            None => {
                self.origins.push(origin(url, protocol)?);
                self.keys.push(key);
                self.members.push(Vec::new());
                self.keys.len() - 1
            }
        };
        self.members[at].push((number as u32, want.weight));
        Ok(())
    }

    /// Returns the origins, each with the order of its requests.
    fn in_order(self, order: Order, seed: u64) -> Result<Vec<Origin>, Error> {
        let mut origins = self.origins;
        let mut random = Random::new(seed);
        for (origin, members) in origins.iter_mut().zip(&self.members) {
            origin.weight = members.iter().map(|(_, weight)| u64::from(*weight)).sum();
            if origin.weight == 0 {
                return Err(Error::Usage("all weights are 0".into()));
            }
            origin.order = sequence(members, order, &mut random);
        }
        Ok(origins)
    }
}

fn sequence(members: &[(u32, u32)], order: Order, random: &mut Random) -> Vec<u32> {
    let same = members.windows(2).all(|pair| pair[0].1 == pair[1].1);
    if order == Order::Listed || members.len() == 1 {
        return members.iter().map(|(number, _)| *number).collect();
    }
    // Each exactly as often as it should be, then shuffled.
    let total: u64 = members.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let wanted = (members.len() * 64).clamp(1024, SEQUENCE).max(members.len()) as u64;
    let mut list: Vec<u32> = Vec::new();
    for (number, weight) in members {
        let share = if same { wanted / members.len() as u64 } else { wanted * u64::from(*weight) / total };
        let least = u64::from(*weight > 0);
        list.extend(std::iter::repeat_n(*number, share.max(least) as usize));
    }
    for i in (1..list.len()).rev() {
        list.swap(i, random.below(i + 1));
    }
    list
}

fn origin(url: &Url, protocol: Protocol) -> Result<Origin, Error> {
    if protocol == Protocol::Http3 && url.scheme != Scheme::Https {
        return Err(Error::Usage(format!("{url}: HTTP/3 is always encrypted: the URL begins with https://")));
    }
    let server_name = if url.scheme.is_encrypted() {
        let name = ServerName::try_from(url.host.clone());
        Some(name.map_err(|_| Error::Usage(format!("\"{}\" is not a name that TLS knows", url.host)))?)
    } else {
        None
    };
    let name = match &url.socket {
        Some(socket) => format!("unix:{}", socket.display()),
        None => format!("{}://{}", url.scheme.name(), url.authority()),
    };
    let datagrams = protocol == Protocol::Http3 || url.scheme == Scheme::Udp;
    let address = url.resolve(datagrams)?;
    Ok(Origin { name, address, server_name, order: Vec::new(), weight: 1 })
}

/// Encodes a request for all versions of HTTP, or as it is for a raw protocol.
fn encode(want: &Wanted, protocol: Protocol) -> Result<Request, Error> {
    if protocol == Protocol::Raw {
        return Ok(Request { h1: want.body.clone(), ..Request::default() });
    }
    check(want)?;
    let authority = want.url.authority();
    let host = want.field("host").unwrap_or(&authority);
    let has_content = !want.body.is_empty() || matches!(want.method.as_str(), "POST" | "PUT" | "PATCH");
    let length = (has_content && want.field("content-length").is_none()).then(|| want.body.len().to_string());
    let h2 = encode_h2(want, host, length.as_deref());
    if h2.len() > forebay_http::h2::frame::MAX_FRAME {
        return Err(Error::Usage("the fields are longer than a frame of HTTP/2".into()));
    }
    Ok(Request {
        h1: encode_h1(want, protocol, host, length.as_deref()),
        h2,
        h3: encode_h3(want, host, length.as_deref()),
        body: want.body.clone(),
        head: want.method == "HEAD",
        name: format!("{} {}", want.method, want.url.path),
    })
}

/// Checks that a request can be sent (RFC 9110, section 5.6.2: tokens).
fn check(want: &Wanted) -> Result<(), Error> {
    if want.url.scheme.is_raw() {
        return Err(Error::Usage(format!("{} is not HTTP: only \"forebay bench URL\" takes it", want.url)));
    }
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if want.method.is_empty() || !want.method.bytes().all(token) {
        return Err(Error::Usage(format!("method \"{}\" has characters that no method has", want.method)));
    }
    for (name, value) in &want.fields {
        if name.is_empty() || !name.bytes().all(token) {
            return Err(Error::Usage(format!("field name \"{name}\" is not possible")));
        }
        if value.bytes().any(|b| matches!(b, b'\r' | b'\n' | 0)) {
            return Err(Error::Usage(format!("value of field \"{name}\" has a line end in it")));
        }
    }
    Ok(())
}

/// Returns the whole message in HTTP/1. `length`: the value of `Content-Length` to add.
fn encode_h1(want: &Wanted, protocol: Protocol, host: &str, length: Option<&str>) -> Vec<u8> {
    let version = if protocol == Protocol::Http10 { "1.0" } else { "1.1" };
    let mut h1 = format!("{} {} HTTP/{version}\r\nHost: {host}\r\n", want.method, want.url.path);
    for (name, value) in want.fields_but_host() {
        h1.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(length) = length {
        h1.push_str(&format!("Content-Length: {length}\r\n"));
    }
    h1.push_str("\r\n");
    let mut h1 = h1.into_bytes();
    h1.extend_from_slice(&want.body);
    h1
}

fn encode_method(h2: &mut Vec<u8>, method: &str) {
    match method {
        "GET" => h2.push(0x82),
        "POST" => h2.push(0x83),
        other => encode::indexed(h2, encode::METHOD, other.as_bytes()),
    }
}

/// Returns the HEADERS frame in HTTP/3 and the head of the DATA frame, if there is content. It does not refer to the dynamic table.
fn encode_h3(want: &Wanted, host: &str, length: Option<&str>) -> Vec<u8> {
    let mut section = Vec::new();
    h3::encode::prefix(&mut section);
    let scheme = want.url.scheme.name();
    for (name, value) in [
        (":method", want.method.as_str()),
        (":scheme", scheme),
        (":authority", host),
        (":path", &want.url.path),
    ] {
        h3::encode::field(&mut section, name.as_bytes(), value.as_bytes());
    }
    let fields = want.fields_but_connection().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in fields.chain(length.map(|length| ("content-length", length))) {
        h3::encode::field(&mut section, name.as_bytes(), value.as_bytes());
    }
    let mut out = Vec::new();
    let head = |kind, len: usize| h3::frame::Header { kind, len: len as u64 };
    head(h3::frame::kind::HEADERS, section.len()).push(&mut out);
    out.extend_from_slice(&section);
    if !want.body.is_empty() {
        head(h3::frame::kind::DATA, want.body.len()).push(&mut out);
    }
    out
}

/// Returns the field block in HTTP/2, without the dynamic table: it is the same on every connection.
fn encode_h2(want: &Wanted, host: &str, length: Option<&str>) -> Vec<u8> {
    let mut h2 = Vec::new();
    encode_method(&mut h2, &want.method);
    h2.push(if want.url.scheme.is_encrypted() { 0x87 } else { 0x86 });
    encode::indexed(&mut h2, encode::AUTHORITY, host.as_bytes());
    match want.url.path.as_str() {
        "/" => h2.push(0x84),
        path => encode::indexed(&mut h2, encode::PATH, path.as_bytes()),
    }
    for (name, value) in want.fields_but_connection() {
        encode::field(&mut h2, name.as_bytes(), value.as_bytes());
    }
    if let Some(length) = length {
        encode::field(&mut h2, b"content-length", length.as_bytes());
    }
    h2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(url: &str) -> Wanted {
        Wanted::get(Url::parse(url).expect("good"))
    }

    #[test]
    fn messages() {
        let mut w = want("http://127.0.0.1:81/a?b");
        w.fields = vec![("X".into(), "y".into()), ("host".into(), "h".into())];
        w.method = "POST".into();
        w.body = b"abc".to_vec();
        let load = Load::new(&[w.clone()], Protocol::Http1, Order::Mixed, 0).expect("good");
        let text = "POST /a?b HTTP/1.1\r\nHost: h\r\nX: y\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(String::from_utf8_lossy(&load.requests[0].h1), text);
        for (method, name, value) in
            [("G T", "X", "y"), ("", "X", "y"), ("GET", "X Y", "y"), ("GET", "X", "a\nb")]
        {
            w.method = method.into();
            w.fields = vec![(name.into(), value.into())];
            assert!(Load::new(&[w.clone()], Protocol::Http1, Order::Mixed, 0).is_err(), "{method} {name}");
        }
        assert!(Load::new(&[], Protocol::Http1, Order::Mixed, 0).is_err());
    }

    #[test]
    fn mixes_have_their_shares() {
        let mut all = [want("http://127.0.0.1/a"), want("http://127.0.0.1/b"), want("http://127.0.0.1/c")];
        all[1].weight = 3;
        all[2].weight = 0;
        let load = Load::new(&all, Protocol::Http1, Order::Mixed, 1).expect("good");
        assert_eq!(load.origins.len(), 1);
        let count = |n: u32| load.origins[0].order.iter().filter(|r| **r == n).count();
        assert_eq!(count(1), 3 * count(0));
        assert_eq!(count(2), 0);
        let listed = Load::new(&all, Protocol::Http1, Order::Listed, 1).expect("good");
        assert_eq!(listed.origins[0].order, [0, 1, 2]);
    }
}
