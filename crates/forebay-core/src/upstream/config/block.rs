//! The directives of an `upstream` block that mean the same in every front end (nginx: the modules of the balancing methods).

use super::fallback::Written;
use super::server;
use crate::config::value::first;
use crate::config::{Build, Context, Scope};
use crate::upstream::balance::{Load, Method, Timed};
use crate::upstream::group::{Group, Keepalive};
use crate::upstream::queue::Queue;
use crate::upstream::servers::{Discovery, Server};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use std::sync::Arc;
use std::time::Duration;

/// `upstream` block that is being read.
#[derive(Debug)]
pub struct Block {
    /// The group.
    pub group: Group,
    pub(super) servers: Vec<Server>,
    /// `fallback`.
    pub(super) fallback: Option<Written>,
    /// Names of `zone`s; `true`: with a size.
    pub(super) zones: Vec<(Vec<u8>, bool)>,
    /// The process starts even if the name of a `server` cannot be resolved (`upstream_start_unresolved`).
    unresolved: bool,
    /// Names of the directives of [`ONCE`] that were read.
    seen: Vec<Vec<u8>>,
}

/// Directives that are allowed once in a block.
const ONCE: &[&[u8]] = &[
    b"fallback",
    b"keepalive",
    b"peers",
    b"keepalive_requests",
    b"keepalive_time",
    b"keepalive_timeout",
    b"resolver_timeout",
];

impl Block {
    /// Begins a block. `start_unresolved`: `upstream_start_unresolved` of the level above.
    pub fn new(d: &Directive, start_unresolved: bool) -> Block {
        // It applies to all servers of the block, those before it as well.
        let named = d.block.iter().flatten().filter(|i| i.name.text == b"upstream_start_unresolved");
        let own = named.last().map(|i| first(i).eq_ignore_ascii_case(b"on"));
        Block {
            group: Group::new(first(d).to_ascii_lowercase(), true, Keepalive::default()),
            servers: Vec::new(),
            fallback: None,
            zones: Vec::new(),
            unresolved: own.unwrap_or(start_unresolved),
            seen: Vec::new(),
        }
    }

    /// Reads a directive of the block.
    ///
    /// # Errors
    /// In nginx's words.
    pub fn directive<C: Context>(&mut self, d: &Directive, cx: &mut Scope<'_, C>) -> Result<(), Error> {
        self.once(d, cx)?;
        match d.name.text.as_slice() {
            name @ (b"server" | b"peers") => {
                let (method, unresolved) = (self.group.method, self.unresolved);
                let block = server::In { method, unresolved, sessions: C::BLOCK == "stream" };
                let read = if name == b"peers" { server::external } else { server::parse };
                self.servers.push(read(d, cx, block)?);
            }
            b"hash" | b"ip_hash" | b"least_conn" | b"least_time" | b"random" => self.method(d, cx)?,
            b"state" => state(d, cx)?,
            b"fallback" => self.fallback = Some(Written::parse(d, cx)?),
            b"queue" => self.group.queue = Some(queue(d, cx)?),
            b"zone" => {
                let (name, size) = zone(d, cx)?;
                cx.share_zone(d, &name, (C::BLOCK, "upstream"), size)?;
                self.zones.push((name, size.is_some()));
            }
            b"resolver" => self.resolver(d, cx)?,
            b"resolver_timeout" => self.group.resolver_timeout = duration(d, cx)?,
            _ => keepalive(&mut self.group.keepalive, d, cx)?,
        }
        Ok(())
    }

    /// Refuses a second directive of a name in [`ONCE`].
    fn once(&mut self, d: &Directive, cx: &Build<'_>) -> Result<(), Error> {
        let name = &d.name.text;
        if !ONCE.contains(&name.as_slice()) {
            return Ok(());
        }
        if self.seen.contains(name) {
            return Err(cx.directive_error(d, "is duplicate"));
        }
        self.seen.push(name.clone());
        Ok(())
    }

    fn method<C: Context>(&mut self, d: &Directive, cx: &mut Scope<'_, C>) -> Result<(), Error> {
        if self.group.method != Method::RoundRobin {
            cx.warn(d, "load balancing method redefined");
        }
        self.group.method = match d.name.text.as_slice() {
            b"ip_hash" => Method::IpHash,
            b"least_conn" => Method::Least(Load::Connections),
            b"hash" => self.hash(d, cx)?,
            b"least_time" => least_time(d, C::TIMES, cx)?,
            _ => random(d, C::TIMES, cx)?,
        };
        Ok(())
    }

    fn hash<C: Context>(&mut self, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Method, Error> {
        let Some(w) = d.args.first() else { return Err(cx.error(d, "no key")) };
        self.group.key = Some(cx.template(d, w)?);
        match d.args.get(1) {
            None => Ok(Method::Hash),
            Some(w) if w.text == b"consistent" => Ok(Method::Consistent),
            Some(w) => Err(invalid(d, w, cx)),
        }
    }

    fn resolver(&mut self, d: &Directive, cx: &Build<'_>) -> Result<(), Error> {
        if self.group.resolver.is_some() {
            return Err(cx.error(d, "\"resolver\" directive is duplicate"));
        }
        self.group.resolver = Some(Arc::new(crate::config::resolver::parse(d, cx)?));
        Ok(())
    }

    /// Checks a block whose directives have all been read.
    ///
    /// # Errors
    /// In nginx's words.
    pub fn check(&self, d: &Directive, cx: &Build<'_>) -> Result<(), Error> {
        if let Some(s) = d.block.iter().flatten().find(|i| i.name.text == b"state") {
            // The servers of its file have been read with those of the block, so the block must have none of its own. A file
            // that does not exist yet has none: such a group is empty.
            let of_file = s.block.iter().flatten().filter(|i| i.name.text == b"server").count();
            if of_file < self.servers.len() {
                return Err(cx.error(s, "\"state\" cannot be used together with \"server\""));
            }
        } else if self.servers.is_empty() && self.fallback.is_none() {
            return Err(cx.error(d, "no servers are inside upstream"));
        }
        let external = |s: &Server| s.source == Discovery::External;
        if self.servers.len() > 1 && self.servers.iter().any(external) {
            return Err(cx.error(d, "\"peers\" cannot be used together with \"server\""));
        }
        // As in nginx: backups alone are no group.
        if !self.servers.is_empty() && self.servers.iter().all(|s| s.template.backup) {
            let name = String::from_utf8_lossy(&self.group.name);
            return Err(cx.error(d, format!("no servers in upstream \"{name}\"")));
        }
        Ok(())
    }
}

fn invalid(d: &Directive, w: &Word, cx: &Build<'_>) -> Error {
    cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()))
}

fn duration(d: &Directive, cx: &Build<'_>) -> Result<Duration, Error> {
    units::duration_ms(first(d)).ok_or_else(|| cx.directive_error(d, "invalid value"))
}

fn keepalive(k: &mut Keepalive, d: &Directive, cx: &Build<'_>) -> Result<(), Error> {
    match d.name.text.as_slice() {
        b"keepalive" => (k.connections, k.local) = connections(d, cx)?,
        b"keepalive_requests" => {
            k.requests = units::number(first(d)).ok_or_else(|| cx.directive_error(d, "invalid number"))?;
        }
        b"keepalive_time" => k.time = duration(d, cx)?,
        b"keepalive_timeout" => k.timeout = duration(d, cx)?,
        _ => {}
    }
    Ok(())
}

/// Reads `keepalive NUMBER [local]`.
fn connections(d: &Directive, cx: &Build<'_>) -> Result<(usize, bool), Error> {
    let number = units::number(first(d)).ok_or_else(|| {
        let text = String::from_utf8_lossy(first(d));
        cx.error(d, format!("invalid value \"{text}\" in \"keepalive\" directive"))
    })?;
    let local = match d.args.get(1) {
        None => false,
        Some(w) if w.text == b"local" => true,
        Some(w) => return Err(invalid(d, w, cx)),
    };
    Ok((number as usize, local))
}

/// Times of a context by their names.
type Times = [(&'static str, Timed)];

fn find(times: &Times, name: &[u8]) -> Option<Timed> {
    times.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, timed)| *timed)
}

/// Reads `least_time TIME [inflight]`.
fn least_time(d: &Directive, times: &Times, cx: &Build<'_>) -> Result<Method, Error> {
    let Some(timed) = find(times, first(d)) else {
        let w = d.args.first().map(Word::as_str).unwrap_or_default();
        return Err(cx.error(d, format!("invalid value \"{w}\"")));
    };
    match d.args.get(1) {
        Some(w) if w.text != b"inflight" => Err(invalid(d, w, cx)),
        inflight => Ok(Method::Least(Load::Time { timed, inflight: inflight.is_some() })),
    }
}

/// Reads `random [two [METHOD]]`.
fn random(d: &Directive, times: &Times, cx: &Build<'_>) -> Result<Method, Error> {
    let Some(two) = d.args.first() else { return Ok(Method::Random(None)) };
    if two.text != b"two" {
        return Err(invalid(d, two, cx));
    }
    let Some(w) = d.args.get(1) else { return Ok(Method::Random(Some(Load::Connections))) };
    if w.text == b"least_conn" {
        return Ok(Method::Random(Some(Load::Connections)));
    }
    match w.text.strip_prefix(b"least_time=").and_then(|name| find(times, name)) {
        Some(timed) => Ok(Method::Random(Some(Load::Time { timed, inflight: false }))),
        None => Err(invalid(d, w, cx)),
    }
}

/// Checks the directives in the file of `state FILE` (NGINX Plus). Its `server` lines are read as if they were in the block. The
/// file is never written, since servers do not change at run time.
fn state(d: &Directive, cx: &Build<'_>) -> Result<(), Error> {
    match d.block.iter().flatten().find(|i| i.name.text != b"server") {
        Some(other) => {
            Err(cx.error(other, format!("\"{}\" is not allowed in a state file", other.name.as_str())))
        }
        None => Ok(()),
    }
}

/// Reads `queue NUMBER [timeout=TIME]`.
fn queue(d: &Directive, cx: &Build<'_>) -> Result<Queue, Error> {
    let length = units::number(first(d)).and_then(|n| usize::try_from(n).ok());
    let length = length.ok_or_else(|| cx.directive_error(d, "invalid number"))?;
    let mut timeout = Duration::from_secs(60);
    if let Some(w) = d.args.get(1) {
        let value = w.text.strip_prefix(b"timeout=").and_then(units::duration_ms);
        timeout = value.ok_or_else(|| invalid(d, w, cx))?;
    }
    Ok(Queue { length, timeout })
}

/// Reads `zone`: its name and its size in bytes. It is only checked, since all threads share the state of a group
/// anyway.
fn zone(d: &Directive, cx: &Build<'_>) -> Result<(Vec<u8>, Option<u64>), Error> {
    let name = first(d).to_vec();
    if name.is_empty() {
        return Err(cx.error(d, "invalid zone name \"\""));
    }
    let Some(w) = d.args.get(1) else { return Ok((name, None)) };
    let size = units::size(&w.text)
        .ok_or_else(|| cx.error_at(d, w, format!("invalid zone size \"{}\"", w.as_str())))?;
    // As in nginx: eight pages.
    if size < 32 * 1024 {
        let text = String::from_utf8_lossy(&name).into_owned();
        return Err(cx.error(d, format!("zone \"{text}\" is too small")));
    }
    Ok((name, Some(size)))
}
