//! Health checks by HTTP requests (nginx Plus: health_check and match; ngx_http_upstream_hc_module).
//! [`forebay_core::upstream::health`] decides when a server is checked.

mod matching;
mod probe;
mod require;

use crate::modules::proxy;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::tasks::Log;
use forebay_core::upstream::group::Group;
use forebay_core::upstream::health::{self, HealthCheck, Matches, Refusal};
use forebay_core::upstream::peer::Peer;
use forebay_http::field::Name;
use forebay_http::h1::client::ResponseHead;
use forebay_http::proxy_protocol;
use forebay_server::config::http::{Http, LocationId};
use forebay_server::config::parts::Parts;
use forebay_server::config::upstreams::Upstream;
use forebay_server::config::{HttpTables, Scope};
use probe::{CheckedServer, HttpProbe};
use std::sync::Arc;
use std::time::Duration;

pub use matching::Match;
pub use require::Ask;

/// `health_check`.
#[derive(Clone, Debug)]
pub struct Check {
    /// Parameters that every protocol has.
    pub common: HealthCheck,
    uri: Vec<u8>,
    keepalive_time: Duration,
    /// The block that `match=` names.
    pub conditions: Option<Arc<Match>>,
    host: Vec<u8>,
    /// `$proxy_host`.
    upstream: Vec<u8>,
    /// `true` if the location encrypts its connections.
    encrypted: bool,
    /// `proxy_protocol` of the location.
    announce: Option<proxy_protocol::HeaderVersion>,
    /// Number of the location.
    location: (usize, LocationId),
    connect_timeout: Duration,
    read_timeout: Duration,
}

/// Health checks of a group, in the order of the group's schedules.
#[derive(Debug, Default)]
pub struct Checks(pub Vec<Check>);

impl Checks {
    /// Adds a check to a group.
    pub fn add(check: Check, group: &mut Group, parts: &mut Parts) {
        group.checks.push(check.common.schedule);
        parts.get_mut::<Checks>().0.push(check);
    }
}

/// Finds the `match` blocks that the checks of a group name.
pub(super) fn complete(parts: &mut Parts, tables: &HttpTables, errors: &mut Vec<Error>) {
    if parts.get::<Checks>().is_none() {
        return;
    }
    let none = Matches::default();
    let matches = tables.parts.get::<Matches<Match>>().unwrap_or(&none);
    for check in &mut parts.get_mut::<Checks>().0 {
        match matches.of(&check.common) {
            Ok(conditions) => check.conditions = conditions,
            Err(e) => errors.push(e),
        }
    }
}

/// Reads `match NAME { ... }`.
///
/// # Errors
/// With the place of what is not understood.
pub(super) fn matching(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let conditions = Match::parse(d, cx)?;
    let Scope { tables, build, .. } = cx;
    tables.parts.get_mut::<Matches<Match>>().define(d, conditions, build)
}

impl Check {
    fn new(common: HealthCheck) -> Check {
        Check {
            common,
            uri: b"/".to_vec(),
            keepalive_time: Duration::ZERO,
            conditions: None,
            host: Vec::new(),
            upstream: Vec::new(),
            encrypted: false,
            announce: None,
            location: (0, 0),
            connect_timeout: Duration::ZERO,
            read_timeout: Duration::ZERO,
        }
    }

    /// Reads `health_check`.
    ///
    /// # Errors
    /// `invalid parameter "x"`.
    pub fn parse(d: &Directive, cx: &Scope<'_>) -> Result<Check, Error> {
        let mut check = Check::new(HealthCheck::new(d, cx));
        health::parameters(d, cx, |name, value| check.parameter(name, value))?;
        Ok(check)
    }

    fn parameter(&mut self, name: &[u8], value: Option<&[u8]>) -> Result<(), Refusal> {
        match (name, value) {
            (b"uri", Some(v)) if is_uri(v) => self.uri = v.to_vec(),
            (b"keepalive_time", Some(v)) => self.keepalive_time = health::time(v)?,
            (b"type", Some(b"http")) => {}
            (b"type", Some(_)) => {
                return Err(Refusal::Unsupported("health checks of this type are not supported yet"));
            }
            _ => self.common.parameter(name, value)?,
        }
        Ok(())
    }

    /// Takes over the settings of the location of this number.
    pub fn bind(&mut self, host: &[u8], encrypted: bool, location: (usize, LocationId), s: &proxy::Settings) {
        (self.upstream, self.encrypted, self.location) = (host.to_vec(), encrypted, location);
        // Requests of the location name this host, so checks name it as well. A value with variables cannot be used,
        // since a check has no client's request.
        let set = s.set_header.0.iter().find(|h| h.id == Name::Host);
        self.host = set.and_then(|h| h.value.as_const()).unwrap_or(host).to_vec();
        self.announce = s.protocol_header.version();
        (self.connect_timeout, self.read_timeout) = (s.connect_timeout.0, s.read_timeout.0);
    }

    /// Returns `true` if a connection may serve several checks.
    fn keeps_alive(&self) -> bool {
        !self.keepalive_time.is_zero()
    }

    /// Returns the request without a `Connection` field.
    fn bare_request(&self) -> Vec<u8> {
        self.request_with(b"")
    }

    fn request(&self) -> Vec<u8> {
        self.request_with(if self.keeps_alive() { b"" } else { b"Connection: close\r\n" })
    }

    fn request_with(&self, fields: &[u8]) -> Vec<u8> {
        [b"GET ", self.uri.as_slice(), b" HTTP/1.1\r\nHost: ", &self.host, b"\r\n", fields, b"\r\n"].concat()
    }

    /// Returns the part of a response for which a condition does not hold.
    fn fault(&self, head: &ResponseHead, body: &[u8]) -> Option<&'static str> {
        match &self.conditions {
            Some(m) => m.fault(head, body),
            // As in NGINX Plus, a status of 2xx or 3xx passes without a `match` block.
            None => (!(200..400).contains(&head.status)).then_some("status"),
        }
    }
}

fn is_uri(v: &[u8]) -> bool {
    // A line break would end the request line, and the rest would be sent as fields.
    v.first() == Some(&b'/') && !v.iter().any(u8::is_ascii_control)
}

/// Checks the servers of a group until it is aborted.
pub async fn watch(config: Arc<Http>, upstream: Arc<Upstream>, log: Log, ask: Ask) {
    let group = upstream.group.clone();
    let probe = move |peer: &Peer, number: usize| {
        let (upstream, config, ask) = (upstream.clone(), config.clone(), ask.clone());
        HttpProbe { subject: CheckedServer { peer: peer.clone(), upstream, number, config, ask }, line: None }
    };
    health::watch(group, log, probe).await;
}
