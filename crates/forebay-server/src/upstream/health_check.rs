//! Health checks by HTTP requests (nginx Plus: health_check and match; ngx_http_upstream_hc_module). `health.rs` decides when
//! a server is checked.

#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

mod line;
mod require;

use super::config::Upstream;
use super::health::{self, Probe, Schedule};
use super::peer::Peer;
use crate::config::Scope;
use crate::config::http::Http;
use crate::modules::proxy;
use crate::tls::client::ClientTls;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::pattern::{LimitExceeded, Pattern};
use forebay_core::tasks::Log;
use forebay_core::vars::VarId;
use forebay_http::field::Name;
use forebay_http::h1::chunked::{Chunked, Step};
use forebay_http::h1::client::{self, ResponseHead, framing_of_response};
use forebay_http::h1::request::Status;
use forebay_http::proxy_protocol;
use forebay_http::request::Framing;
use forebay_sys::errno::errno;
use line::Line;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

pub use require::{Ask, Question};

/// `health_check`.
#[derive(Clone, Debug)]
pub struct Check {
    /// Its times.
    pub schedule: Schedule,
    uri: Vec<u8>,
    port: Option<u16>,
    keepalive_time: Duration,
    /// `match=`.
    pub matching: Option<Vec<u8>>,
    /// What the name stands for.
    pub conditions: Option<Arc<Match>>,
    host: Vec<u8>,
    /// `$proxy_host`, and whether the location speaks TLS to it.
    upstream: Vec<u8>,
    encrypted: bool,
    /// `proxy_protocol` of the location.
    announce: Option<proxy_protocol::Version>,
    /// Number of the location.
    location: usize,
    connect_timeout: Duration,
    read_timeout: Duration,
    /// The directive, with an empty text.
    pub at: Error,
}

impl Check {
    /// Reads `health_check`.
    ///
    /// # Errors
    /// `invalid parameter "x"`.
    pub fn parse(d: &Directive, cx: &Scope<'_>) -> Result<Check, Error> {
        let mut c = Check {
            schedule: Schedule::default(),
            uri: b"/".to_vec(),
            port: None,
            keepalive_time: Duration::ZERO,
            matching: None,
            conditions: None,
            host: Vec::new(),
            upstream: Vec::new(),
            encrypted: false,
            announce: None,
            location: 0,
            connect_timeout: Duration::ZERO,
            read_timeout: Duration::ZERO,
            at: cx.error(d, ""),
        };
        for w in &d.args {
            let invalid = || cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()));
            let (key, value) = match memchr::memchr(b'=', &w.text) {
                Some(at) => (&w.text[..at], Some(&w.text[at + 1..])),
                None => (w.text.as_slice(), None),
            };
            let time = |v| units::duration_ms(v).filter(|d| !d.is_zero()).ok_or_else(invalid);
            let count = |v| units::number(v).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
            match (key, value) {
                (b"interval", Some(v)) => c.schedule.interval = time(v)?,
                (b"jitter", Some(v)) => c.schedule.jitter = units::duration_ms(v).ok_or_else(invalid)?,
                (b"fails", Some(v)) => c.schedule.fails = count(v).ok_or_else(invalid)?,
                (b"passes", Some(v)) => c.schedule.passes = count(v).ok_or_else(invalid)?,
                (b"uri", Some(v)) if v.first() == Some(&b'/') && !v.iter().any(u8::is_ascii_control) => {
                    c.uri = v.to_vec();
                }
                (b"mandatory", None) => c.schedule.mandatory = true,
                (b"persistent", None) if c.schedule.mandatory => c.schedule.persistent = true,
                (b"match", Some(v)) => c.matching = Some(v.to_vec()),
                (b"port", Some(v)) => {
                    let n = units::number(v).and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
                    c.port = Some(n.ok_or_else(invalid)?);
                }
                (b"keepalive_time", Some(v)) => c.keepalive_time = time(v)?,
                (b"type", Some(b"http")) => {}
                (b"type", Some(_)) => {
                    return Err(cx.error_at(d, w, "health checks of this type are not supported yet"));
                }
                _ => return Err(invalid()),
            }
        }
        Ok(c)
    }

    /// Takes over what the location says, which has this number.
    pub fn bind(&mut self, host: &[u8], encrypted: bool, location: usize, s: &proxy::Settings) {
        (self.upstream, self.encrypted, self.location) = (host.to_vec(), encrypted, location);
        let set = s.set_header.0.iter().find(|h| h.id == Name::Host);
        self.host = set.and_then(|h| h.value.as_const()).unwrap_or(host).to_vec();
        self.announce = s.protocol_header.version();
        (self.connect_timeout, self.read_timeout) = (s.connect_timeout.0, s.read_timeout.0);
    }
}

/// A `match` block: all must hold.
#[derive(Debug, Default)]
pub struct Match {
    /// `!`, ranges.
    status: Option<(bool, Vec<(u16, u16)>)>,
    headers: Vec<(Vec<u8>, Test)>,
    body: Option<(bool, Pattern)>,
    /// `require`: neither empty nor 0.
    required: Vec<VarId>,
}

#[derive(Debug)]
enum Test {
    Present(bool),
    Is(bool, Vec<u8>),
    Like(bool, Pattern),
}

impl Match {
    /// Reads `match NAME { ... }`.
    ///
    /// # Errors
    /// With the place of what is not understood.
    pub fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Match, Error> {
        let mut m = Match::default();
        for line in d.block.iter().flatten() {
            let words: Vec<&[u8]> = line.args.iter().map(|w| w.text.as_slice()).collect();
            let bad =
                |cx: &Scope<'_>| cx.error(line, format!("invalid \"{}\" in \"match\"", line.name.as_str()));
            match (line.name.text.as_slice(), words.as_slice()) {
                (b"status", [not @ .., _]) if m.status.is_none() => {
                    let negated = not.first() == Some(&b"!".as_slice());
                    let ranges = words.iter().skip(usize::from(negated)).map(|w| range(w)).collect();
                    m.status = Some((negated, Option::<Vec<_>>::ok_or_else(ranges, || bad(cx))?));
                }
                (b"header", [name]) => m.headers.push((name.to_vec(), Test::Present(true))),
                (b"header", [b"!", name]) => m.headers.push((name.to_vec(), Test::Present(false))),
                (b"header", [name, op @ (b"=" | b"!="), value]) => {
                    m.headers.push((name.to_vec(), Test::Is(*op == b"=", value.to_vec())));
                }
                (b"header", [name, op @ (b"~" | b"!~"), value]) => {
                    let p = cx.pattern(line, value, false)?;
                    m.headers.push((name.to_vec(), Test::Like(*op == b"~", p)));
                }
                (b"body", [op @ (b"~" | b"!~"), value]) if m.body.is_none() => {
                    m.body = Some((*op == b"~", cx.pattern(line, value, false)?));
                }
                (b"require", [_, ..]) => {
                    for w in &line.args {
                        let variable = cx.template(line, w)?.as_var();
                        let invalid =
                            || cx.error_at(line, w, format!("invalid variable name \"{}\"", w.as_str()));
                        m.required.push(variable.ok_or_else(invalid)?);
                    }
                }
                _ => return Err(bad(cx)),
            }
        }
        Ok(m)
    }

    /// The first condition that does not hold.
    fn fault(&self, head: &ResponseHead, body: &[u8]) -> Option<&'static str> {
        let good = match &self.status {
            Some((negated, ranges)) => {
                ranges.iter().any(|(a, b)| (*a..=*b).contains(&head.status)) != *negated
            }
            None => true,
        };
        if !good {
            return Some("status");
        }
        for (name, test) in &self.headers {
            let values = || {
                let named = head.fields.iter().filter(|f| f.name.of(&head.buf).eq_ignore_ascii_case(name));
                named.map(|f| f.value.of(&head.buf))
            };
            let good = match test {
                Test::Present(want) => values().next().is_some() == *want,
                Test::Is(want, v) => values().any(|x| x == v) == *want,
                // A pattern that exceeds its limits proves nothing.
                Test::Like(want, p) => any_matches(p, values()) == Ok(*want),
            };
            if !good {
                return Some("header");
            }
        }
        match &self.body {
            Some((want, p)) if p.is_match(body) != Ok(*want) => Some("body"),
            _ => None,
        }
    }
}

fn any_matches<'a>(p: &Pattern, mut values: impl Iterator<Item = &'a [u8]>) -> Result<bool, LimitExceeded> {
    values.try_fold(false, |found, value| Ok(found || p.is_match(value)?))
}

/// `200` or `200-399`.
fn range(text: &[u8]) -> Option<(u16, u16)> {
    let code =
        |t: &[u8]| units::number(t).and_then(|n| u16::try_from(n).ok()).filter(|n| (100..600).contains(n));
    match memchr::memchr(b'-', text) {
        Some(at) => Some((code(&text[..at])?, code(&text[at + 1..])?)),
        None => code(text).map(|n| (n, n)),
    }
}

/// Longest head of a response, bytes.
const MAX_HEAD: usize = 64 * 1024;
/// So much of a body is read and looked at, bytes.
const MAX_BODY: usize = 256 * 1024;

/// Checks the servers of a group until it is aborted.
pub async fn watch(config: Arc<Http>, upstream: Arc<Upstream>, log: Log, ask: Ask) {
    let group = upstream.group.clone();
    let probe = move |peer: &Peer, n: usize| {
        let (upstream, config, ask) = (upstream.clone(), config.clone(), ask.clone());
        HttpProbe { subject: Subject { peer: peer.clone(), upstream, number: n, config, ask }, line: None }
    };
    health::watch(group, log, probe).await;
}

/// Checks one server by HTTP requests.
struct HttpProbe {
    subject: Subject,
    /// Connection of the last check, if it may be used again.
    line: Option<Line>,
}

/// A server, and the way in which it is checked.
struct Subject {
    peer: Peer,
    upstream: Arc<Upstream>,
    /// Number of the check in its group.
    number: usize,
    config: Arc<Http>,
    ask: Ask,
}

impl Probe for HttpProbe {
    async fn check(&mut self) -> Result<(), String> {
        let mut line = self.line.take();
        one(&self.subject, &mut line).await?;
        self.line = line;
        Ok(())
    }
}

impl Subject {
    /// Returns the check, and how its location speaks to upstreams where that is encrypted.
    fn settings(&self) -> Option<(&Check, Option<&Arc<ClientTls>>)> {
        let check = self.upstream.extras.checks.get(self.number)?;
        let location = self.config.locations.get(check.location);
        Some((check, location.and_then(|l| l.upstream_tls.as_ref())))
    }
}

/// One check.
async fn one(target: &Subject, line: &mut Option<Line>) -> Result<(), String> {
    let Some((check, tls)) = target.settings() else { return Ok(()) };
    let peer = &target.peer;
    let kept = line.take().filter(|l| l.opened.elapsed() < check.keepalive_time);
    let mut used = match kept {
        Some(l) => l,
        None => {
            let open = timeout(check.connect_timeout, Line::open(&peer.addr, check.port)).await;
            let mut line = open
                .map_err(|_| "connecting to upstream (timed out)".to_owned())?
                .map_err(|e| format!("connecting to upstream ({})", errno(&e)))?;
            if let Some(version) = check.announce {
                // A check is for no client.
                let mut header = Vec::new();
                proxy_protocol::write(version, None, &mut header);
                let sent = line.write_all(&header).await;
                sent.map_err(|e| format!("sending PROXY protocol header to upstream ({})", errno(&e)))?;
            }
            if let Some(tls) = tls.filter(|_| check.encrypted) {
                let agreed = timeout(check.connect_timeout, line.secure(tls, &check.upstream)).await;
                agreed
                    .map_err(|_| "SSL handshaking to upstream (timed out)".to_owned())?
                    .map_err(|e| format!("SSL handshaking to upstream ({})", errno(&e)))?;
            }
            line
        }
    };
    let keep = !check.keepalive_time.is_zero();
    let ask = timeout(check.read_timeout, ask(&mut used, target, check, keep)).await;
    if ask.map_err(|_| "reading response from upstream (timed out)".to_owned())?? && keep {
        *line = Some(used);
    }
    Ok(())
}

/// Sends the request and judges the response. `true`: the connection may be used again.
async fn ask(line: &mut Line, target: &Subject, check: &Check, keep: bool) -> Result<bool, String> {
    let started = Instant::now();
    let mut request = [b"GET ", check.uri.as_slice(), b" HTTP/1.1\r\nHost: ", &check.host].concat();
    request.extend_from_slice(if keep { b"\r\n\r\n" } else { b"\r\nConnection: close\r\n\r\n" });
    line.write_all(&request).await.map_err(|e| format!("sending request to upstream ({})", errno(&e)))?;
    let mut head = ResponseHead::default();
    loop {
        if !head.buf.is_empty() {
            match client::parse(&mut head, MAX_HEAD) {
                Ok(Status::Complete) if head.is_interim() => {
                    let len = head.len;
                    head.advance(len);
                    continue;
                }
                Ok(Status::Complete) => break,
                Ok(Status::Partial) => {}
                Err(_) => return Err("reading response header from upstream (invalid header)".into()),
            }
        }
        if !more(line, &mut head.buf).await? {
            return Err("reading response header from upstream (closed connection)".into());
        }
    }
    let framing = framing_of_response(&head, false);
    let early = head.buf.get(head.len..).unwrap_or_default().to_vec();
    let (body, whole) = read_body(line, framing, early).await?;
    let fault = match &check.conditions {
        Some(m) => m.fault(&head, &body),
        None => (!(200..400).contains(&head.status)).then_some("status"),
    };
    if let Some(what) = fault {
        return Err(format!("checking {what} of response (status {})", head.status));
    }
    let (status, again) = (head.status, whole && head.keep_alive);
    if check.conditions.as_ref().is_some_and(|m| !m.required.is_empty()) {
        let response = (head, body.len() as u64, started);
        if !require::holds(&target.ask, &target.config, (check, &target.peer.name), response).await {
            return Err(format!("checking what is required of response (status {status})"));
        }
    }
    Ok(again)
}

async fn more(line: &mut Line, buf: &mut Vec<u8>) -> Result<bool, String> {
    let n = line.read(buf).await.map_err(|e| format!("reading response from upstream ({})", errno(&e)))?;
    Ok(n > 0)
}

/// The body, as far as it is looked at, and whether it has been read to its end.
async fn read_body(line: &mut Line, framing: Framing, mut raw: Vec<u8>) -> Result<(Vec<u8>, bool), String> {
    let broken = || Err("reading response from upstream (incomplete)".to_owned());
    match framing {
        Framing::None => Ok((Vec::new(), raw.is_empty())),
        Framing::Length(len) => {
            let want = usize::try_from(len).unwrap_or(usize::MAX);
            while raw.len() < want.min(MAX_BODY) {
                if !more(line, &mut raw).await? {
                    return broken();
                }
            }
            let whole = raw.len() == want;
            raw.truncate(want);
            Ok((raw, whole))
        }
        Framing::Stream => {
            while raw.len() < MAX_BODY && more(line, &mut raw).await? {}
            Ok((raw, false))
        }
        Framing::Chunked => {
            let (mut chunked, mut body) = (Chunked::default(), Vec::new());
            loop {
                let mut rest = raw.as_slice();
                loop {
                    match chunked.decode(rest) {
                        Ok(Step::Data { start, end }) => {
                            body.extend_from_slice(rest.get(start..end).unwrap_or_default());
                            rest = rest.get(end..).unwrap_or_default();
                        }
                        Ok(Step::More) => break,
                        Ok(Step::End { consumed }) => return Ok((body, consumed == rest.len())),
                        Err(_) => return broken(),
                    }
                }
                if body.len() >= MAX_BODY {
                    return Ok((body, false));
                }
                raw.clear();
                if !more(line, &mut raw).await? {
                    return broken();
                }
            }
        }
    }
}
