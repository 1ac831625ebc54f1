//! `server` lines of an `upstream` block.

use crate::config::Build;
use crate::config::value::split_parameter;
use crate::upstream::balance::Method;
use crate::upstream::greeting::SendProxy;
use crate::upstream::peer::Peer;
use crate::upstream::servers::{Discovery, Found, Server};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_net::addr::{PeerAddr, Place};
use std::path::PathBuf;

/// Port if none is written.
const PORT: u16 = 80;
/// Longest value of `route=` and `sid=`, bytes.
const MAX_ROUTE: usize = 256;

/// Creates a server with default parameters. Looks its name up.
pub(super) fn plain_server(place: Place, default_port: u16) -> Server {
    let found: Vec<Found> = place.addresses(default_port).into_iter().map(Found::plain).collect();
    let mut template = Peer::new(PeerAddr::Unix(PathBuf::new()));
    template.server = place.host();
    Server { template, place, default_port, source: Discovery::Fixed, found }
}

/// Properties of the block that a `server` line is in.
#[derive(Clone, Copy, Debug)]
pub(super) struct In {
    /// Balancing method.
    pub method: Method,
    /// Names may be unknown at the start.
    pub unresolved: bool,
    /// The group serves sessions, not requests.
    pub sessions: bool,
}

/// Reads a `server` line.
///
/// # Errors
/// In nginx's words.
pub(super) fn parse(d: &Directive, cx: &Build<'_>, block: In) -> Result<Server, Error> {
    let Some((word, options)) = d.args.split_first() else { return Err(cx.error(d, "no host")) };
    let peer = Peer::new(PeerAddr::Unix(PathBuf::new()));
    let mut line = ServerLine { d, word, cx, block, peer, resolve: false, service: None, search: Vec::new() };
    for w in options {
        line.parameter(w)?;
    }
    line.server()
}

/// Reads `peers external [PARAMETER ...]`. The parameters are those of a `server` line, and hold for all servers that the
/// controller of this process names.
///
/// # Errors
/// The source is another one, or a parameter is wrong.
pub(super) fn external(d: &Directive, cx: &Build<'_>, block: In) -> Result<Server, Error> {
    let Some((word, options)) = d.args.split_first() else { return Err(cx.error(d, "no source")) };
    if word.text != b"external" {
        return Err(cx.error_at(
            d,
            word,
            format!("invalid source \"{}\", it must be \"external\"", word.as_str()),
        ));
    }
    let peer = Peer::new(PeerAddr::Unix(PathBuf::new()));
    let mut line = ServerLine { d, word, cx, block, peer, resolve: false, service: None, search: Vec::new() };
    for w in options {
        match split_parameter(&w.text).0 {
            b"max_fails" | b"fail_timeout" | b"max_conns" | b"slow_start" | b"proxy_protocol" => {
                line.parameter(w)?
            }
            _ => return Err(line.error(w, format!("invalid parameter \"{}\"", w.as_str()))),
        }
    }
    let place = Place::Host(word.text.clone(), None);
    Ok(Server {
        template: line.peer,
        place,
        default_port: PORT,
        source: Discovery::External,
        found: Vec::new(),
    })
}

/// Most domains of `search=`. Each is another question for a name that is not found.
const MAX_SEARCH: usize = 32;

/// A `server` line that is being read.
struct ServerLine<'l> {
    d: &'l Directive,
    /// The server.
    word: &'l Word,
    cx: &'l Build<'l>,
    block: In,
    peer: Peer,
    resolve: bool,
    service: Option<String>,
    /// Domains below which the name is looked for first.
    search: Vec<String>,
}

impl ServerLine<'_> {
    fn error(&self, w: &Word, text: impl Into<String>) -> Error {
        self.cx.error_at(self.d, w, text)
    }

    fn parameter(&mut self, w: &Word) -> Result<(), Error> {
        let invalid = || self.cx.error_at(self.d, w, format!("invalid parameter \"{}\"", w.as_str()));
        let number = |t: &[u8]| units::number(t).and_then(|n| u32::try_from(n).ok()).ok_or_else(invalid);
        let seconds = |t: &[u8]| units::duration_secs(t).ok_or_else(invalid);
        match split_parameter(&w.text) {
            (b"down", None) => self.peer.down = true,
            (b"drain", None) => self.peer.drain = true,
            (b"resolve", None) => self.resolve = true,
            (b"weight", Some(t)) => match number(t)? {
                0 => return Err(invalid()),
                n => self.peer.weight = i64::from(n),
            },
            (b"max_fails", Some(t)) => self.peer.max_fails = number(t)?,
            (b"max_conns", Some(t)) => self.peer.max_conns = number(t)?,
            (b"fail_timeout", Some(t)) => self.peer.fail_timeout = seconds(t)?,
            (b"slow_start", Some(t)) => {
                self.peer.slow_start = seconds(t)?;
                self.takes_backup(w, "slow_start")?;
            }
            (b"backup", None) => {
                self.peer.backup = true;
                self.takes_backup(w, "backup")?;
            }
            (b"proxy_protocol", Some(t)) if self.block.sessions => {
                self.peer.proxy_protocol = Some(SendProxy::of(t).ok_or_else(invalid)?);
            }
            (b"route", Some(t)) => self.route(w, "route", t)?,
            // Angie's name of it.
            (b"sid", Some(t)) if self.block.sessions => self.route(w, "sid", t)?,
            (b"service", Some(t)) => self.service(w, t)?,
            (b"search", Some(t)) => self.search(w, t)?,
            _ => return Err(invalid()),
        }
        Ok(())
    }

    /// Checks that the balancing method knows backups and a slow start.
    fn takes_backup(&self, w: &Word, parameter: &str) -> Result<(), Error> {
        match self.block.method {
            Method::RoundRobin | Method::Least(_) => Ok(()),
            _ => {
                let text = format!("balancing method does not support parameter \"{parameter}\"");
                Err(self.error(w, text))
            }
        }
    }

    /// Reads the name of the server in sticky sessions.
    fn route(&mut self, w: &Word, parameter: &str, route: &[u8]) -> Result<(), Error> {
        match route.len() {
            0 => return Err(self.error(w, format!("{parameter} is empty"))),
            1..=MAX_ROUTE => {}
            _ => return Err(self.error(w, format!("{parameter} is too long"))),
        }
        (self.peer.sid, self.peer.routed) = (route.to_vec(), true);
        Ok(())
    }

    fn service(&mut self, w: &Word, service: &[u8]) -> Result<(), Error> {
        if service.is_empty() {
            return Err(self.error(w, "service is empty"));
        }
        self.service = Some(String::from_utf8_lossy(service).into_owned());
        Ok(())
    }

    /// Reads `search=DOMAIN,...`.
    fn search(&mut self, w: &Word, domains: &[u8]) -> Result<(), Error> {
        let text = String::from_utf8_lossy(domains).into_owned();
        let is_name = |d: &str| {
            let fine = |l: &str| {
                let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
                (1..=63).contains(&l.len()) && l.bytes().all(allowed)
            };
            d.len() <= 253 && d.split('.').all(fine)
        };
        let all: Vec<String> = text.split(',').map(str::to_owned).collect();
        if all.len() > MAX_SEARCH || !all.iter().all(|d| is_name(d)) {
            return Err(self.error(w, format!("invalid parameter \"{}\"", w.as_str())));
        }
        self.search = all;
        Ok(())
    }

    fn server(mut self) -> Result<Server, Error> {
        let text = self.word.as_str();
        let parsed = Place::parse(&self.word.text);
        let place = parsed.map_err(|m| self.error(self.word, format!("{m} in upstream \"{text}\"")))?;
        self.check_service(&place)?;
        self.peer.server = self.word.text.clone();
        let is_name = place.literal(PORT).is_none();
        if self.resolve && is_name {
            let source = match &self.service {
                None if !self.search.is_empty() => Discovery::Search(self.search.into()),
                service => Discovery::Resolve(service.as_ref().map(|s| srv_name(s, &place.host()))),
            };
            let template = self.peer;
            return Ok(Server { template, place, default_port: PORT, source, found: Vec::new() });
        }
        let mut server = plain_server(place, PORT);
        if server.found.is_empty() {
            if !self.block.unresolved {
                return Err(self.error(self.word, format!("host not found in upstream \"{text}\"")));
            }
            server.source = Discovery::Later;
        }
        server.template = self.peer;
        Ok(server)
    }

    /// Checks what `service=` needs.
    fn check_service(&self, place: &Place) -> Result<(), Error> {
        if !self.search.is_empty() && (self.service.is_some() || !self.resolve) {
            let text = "\"search\" requires \"resolve\", and cannot be used together with \"service\"";
            return Err(self.error(self.word, text));
        }
        if self.service.is_none() {
            return Ok(());
        }
        let is_name = place.literal(PORT).is_none();
        let wrong = match (self.resolve, is_name, place.port()) {
            (false, ..) => "requires \"resolve\" parameter",
            (_, false, _) => "requires domain name",
            (_, _, Some(_)) => "may not have port",
            _ => return Ok(()),
        };
        let text = self.word.as_str();
        Err(self.error(self.word, format!("service upstream \"{text}\" {wrong}")))
    }
}

/// Returns the name of the SRV records of a service: `http` means `_http._tcp`; a service with a dot is a complete name (nginx:
/// server, service).
fn srv_name(service: &str, host: &[u8]) -> String {
    let host = String::from_utf8_lossy(host);
    if service.contains('.') { format!("{service}.{host}") } else { format!("_{service}._tcp.{host}") }
}
