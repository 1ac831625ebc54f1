//! Issuers and clients of a configuration, and the directives of the http level about all of them.

use super::client::Client;
use forebay_acme::{Issuer, Program};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::config::value::first;
use forebay_server::config::Scope;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

/// Port of name servers.
pub(super) const DNS_PORT: u16 = 53;

/// Issuers that a configuration defines.
#[derive(Default)]
pub(super) struct Issuers {
    /// `acme_issuer`s.
    pub(super) defined: Vec<Issuer>,
    /// The issuer of `acme on` is defined, and without `state_path`.
    pub(super) default_lacks_path: bool,
    /// `acme_client`s.
    pub(super) clients: Vec<Client>,
    /// `acme_client_path`.
    pub(super) path: Option<PathBuf>,
    /// Whether `acme_shared_zone` has been read.
    zone: bool,
    /// `acme_dns_port`; empty without the directive.
    pub(super) dns: Vec<SocketAddr>,
    /// `acme_dns_ttl`, seconds.
    pub(super) dns_ttl: Option<u32>,
    /// `acme_dns_program`.
    pub(super) program: Option<Program>,
    /// `acme_http_port`.
    pub(super) http: Option<SocketAddr>,
    /// `acme_max_response_size`, bytes.
    pub(super) max_response: Option<usize>,
}

/// Sets a value. A second directive with the same name is an error.
fn set_once<T>(place: &mut Option<T>, value: T) -> Result<(), &'static str> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err("is duplicate"),
    }
}

/// Reads an address, `*:PORT` or a port.
fn address(text: &str) -> Option<SocketAddr> {
    let any = |port: &str| port.parse().ok().map(|port: u16| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
    let found = match text.strip_prefix("*:") {
        Some(port) => any(port),
        // A lone number is a port. Anything else has to be an address with a port, as IPv6 addresses have
        // colons of their own.
        None => any(text).or_else(|| text.parse().ok()),
    };
    // The authority asks at a fixed port, so the kernel must not choose one.
    found.filter(|a| a.port() != 0)
}

/// Reads `acme_dns_port`: the addresses at which questions about challenges are answered.
pub(crate) fn dns_port(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    if !cx.tables.parts.get_mut::<Issuers>().dns.is_empty() {
        return Err(cx.error(d, "\"acme_dns_port\" directive is duplicate"));
    }
    for w in &d.args {
        let invalid = || cx.error_at(d, w, format!("invalid port \"{}\"", w.as_str()));
        let addr = address(&w.as_str()).ok_or_else(invalid)?;
        cx.tables.parts.get_mut::<Issuers>().dns.push(addr);
    }
    Ok(())
}

/// Reads `acme_dns_ttl`: the time for which answers about challenges may be kept.
pub(crate) fn dns_ttl(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let ttl = units::time_secs(first(d)).and_then(|s| u32::try_from(s).ok());
    let ttl = ttl.ok_or_else(|| cx.directive_error(d, "invalid value"))?;
    set_once(&mut cx.tables.parts.get_mut::<Issuers>().dns_ttl, ttl)
        .map_err(|text| cx.directive_error(d, text))
}

/// Reads `acme_http_port`: the port at which the authority looks for HTTP-01.
pub(crate) fn http_port(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let addr = address(&String::from_utf8_lossy(first(d)));
    let addr = addr.ok_or_else(|| cx.directive_error(d, "invalid value"))?;
    set_once(&mut cx.tables.parts.get_mut::<Issuers>().http, addr).map_err(|text| cx.directive_error(d, text))
}

/// Reads `acme_max_response_size`: the longest response of an authority.
pub(crate) fn max_response_size(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let size = units::size(first(d)).and_then(|s| usize::try_from(s).ok()).filter(|s| *s > 0);
    let size = size.ok_or_else(|| cx.directive_error(d, "invalid value"))?;
    set_once(&mut cx.tables.parts.get_mut::<Issuers>().max_response, size)
        .map_err(|text| cx.directive_error(d, text))
}

/// Reads `acme_dns_program` of the http level.
pub(crate) fn dns_program(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let program = program(d, cx)?;
    set_once(&mut cx.tables.parts.get_mut::<Issuers>().program, program)
        .map_err(|text| cx.directive_error(d, text))
}

/// Reads `[delay=TIME] PATH [ARGUMENT ...]`.
pub(super) fn program(d: &Directive, cx: &Scope<'_>) -> Result<Program, Error> {
    let mut words = d.args.iter().peekable();
    let mut delay = Duration::ZERO;
    if let Some(text) = words.peek().and_then(|w| w.text.strip_prefix(b"delay=")) {
        delay = units::duration_secs(text).ok_or_else(|| cx.directive_error(d, "invalid \"delay\""))?;
        // Only the first word can be `delay=`. A program may have an argument that looks like it.
        words.next();
    }
    let path = words.next().ok_or_else(|| cx.directive_error(d, "needs the path of a program"))?;
    let arguments = words.map(|w| OsString::from_vec(w.text.clone())).collect();
    Ok(Program { path: cx.conf_path(&path.text), arguments, delay })
}

/// Reads `acme_shared_zone`. All threads share the memory of the process, so the zone has no other use.
pub(crate) fn shared_zone(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    if std::mem::replace(&mut cx.tables.parts.get_mut::<Issuers>().zone, true) {
        return Err(cx.error(d, "\"acme_shared_zone\" directive is duplicate"));
    }
    let text = String::from_utf8_lossy(first(d)).into_owned();
    let invalid = || cx.error(d, format!("invalid zone \"{text}\""));
    let (name, size) = text.strip_prefix("zone=").and_then(|z| z.split_once(':')).ok_or_else(invalid)?;
    let size = units::size(size.as_bytes()).filter(|_| !name.is_empty()).ok_or_else(invalid)?;
    cx.share_zone(d, name.as_bytes(), ("http", "acme"), Some(size))
}

/// Reads `acme_client_path`: the directory of accounts and certificates of `acme on`.
pub(crate) fn client_path(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    if cx.tables.parts.get_mut::<Issuers>().path.is_some() {
        return Err(cx.error(d, "\"acme_client_path\" directive is duplicate"));
    }
    let path = cx.full_path(first(d));
    cx.directory(d, &path, Some(Vec::new()))?;
    cx.tables.parts.get_mut::<Issuers>().path = Some(path);
    Ok(())
}
