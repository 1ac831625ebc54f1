//! `upstream` blocks, and the groups that `proxy_pass` implies (nginx: ngx_http_upstream_module and the modules
//! of its balancing methods).

use super::balance::{Load, Method, Timed};
use super::health::{Check, Match};
use super::queue::Queue;
use super::sticky::Sticky;
use super::{Found, Group, Keepalive, Peer, Server, Source};
use crate::config::Scope;
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_net::addr::PeerAddr;
use forebay_net::addr::Place;
use forebay_net::resolver::Resolver;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A group that is being built.
#[derive(Debug)]
struct Entry {
    group: Group,
    place: Place,
    default_port: u16,
    servers: Vec<Server>,
    /// An error at the directive that first named it, with an empty text.
    at: Error,
}

/// All groups of a configuration under construction.
#[derive(Debug, Default)]
pub struct Groups {
    entries: Vec<Entry>,
    zones: Vec<(Vec<u8>, bool)>,
    matches: Vec<(Vec<u8>, Arc<Match>)>,
    /// `upstream_start_unresolved` of the http level.
    pub start_unresolved: bool,
}

impl Groups {
    /// Number of the group of a place named by `proxy_pass`.
    pub fn reference(&mut self, place: &Place, default_port: u16, at: Error) -> usize {
        let name = place.host();
        let port = |p: &Place, default: u16| match p {
            Place::Host(_, port) => port.unwrap_or(default),
            Place::Unix(_) => 0,
        };
        let no_port = matches!(place, Place::Host(_, None));
        let known = self.entries.iter().position(|e| {
            e.group.name == name
                && if e.group.explicit {
                    no_port
                } else {
                    port(&e.place, e.default_port) == port(place, default_port)
                        && no_port == matches!(e.place, Place::Host(_, None))
                }
        });
        known.unwrap_or_else(|| {
            let group = Group::new(name, false, Keepalive::implied());
            self.entries.push(Entry { group, place: place.clone(), default_port, servers: Vec::new(), at });
            self.entries.len() - 1
        })
    }

    /// The health of this group is checked.
    pub fn check(&mut self, group: usize, check: Check) {
        if let Some(e) = self.entries.get_mut(group) {
            e.group.checks.push(check);
        }
    }

    /// Ends the construction: names that no block defines are looked up. `resolver`: that of the http level. The errors of all
    /// groups: `host not found in upstream "x"`, `no resolver defined to resolve names at run time in upstream "x"`.
    pub fn finish(self, resolver: Option<&Arc<Resolver>>) -> (Vec<Group>, Vec<Error>) {
        let (mut done, mut errors) = (Vec::new(), Vec::new());
        for (zone, _) in &self.zones {
            if !self.zones.iter().any(|(z, sized)| z == zone && *sized) {
                let text = String::from_utf8_lossy(zone);
                errors.push(crate::config::plain(&format!("zero size shared memory zone \"{text}\"")));
            }
        }
        let explicit: Vec<Vec<u8>> =
            self.entries.iter().filter(|e| e.group.explicit).map(|e| e.group.name.clone()).collect();
        for mut e in self.entries {
            let text = String::from_utf8_lossy(&e.group.name).into_owned();
            if !e.group.explicit {
                match implied_server(e.place, e.default_port, &text, &explicit, self.start_unresolved) {
                    Ok(server) => e.servers.push(server),
                    Err(message) => errors.push(Error { message, ..e.at.clone() }),
                }
            }
            if e.group.resolver.is_none() {
                e.group.resolver = resolver.cloned();
            }
            let at_run_time = e.servers.iter().any(|s| matches!(s.source, Source::Resolve(_)));
            if at_run_time && e.group.resolver.is_none() {
                let message =
                    format!("no resolver defined to resolve names at run time in upstream \"{text}\"");
                errors.push(Error { message, ..e.at });
            }
            for c in &mut e.group.checks {
                let Some(name) = &c.matching else { continue };
                c.conditions = self.matches.iter().find(|(n, _)| n == name).map(|(_, m)| m.clone());
                if c.conditions.is_none() {
                    let message = format!("match \"{}\" not found", String::from_utf8_lossy(name));
                    errors.push(Error { message, ..c.at.clone() });
                }
            }
            e.group.set_servers(e.servers);
            done.push(e.group);
        }
        (done, errors)
    }
}

/// The server of a group that no `upstream` block defines; an error is the message.
fn implied_server(
    place: Place,
    default_port: u16,
    text: &str,
    explicit: &[Vec<u8>],
    start_unresolved: bool,
) -> Result<Server, String> {
    if let Place::Host(_, Some(port)) = &place
        && explicit.iter().any(|name| name == text.as_bytes())
    {
        return Err(format!("upstream \"{text}\" may not have port {port}"));
    }
    if default_port == 0 && matches!(place, Place::Host(_, None)) {
        return Err(format!("no port in upstream \"{text}\""));
    }
    let mut server = plain_server(place, default_port);
    if server.found.is_empty() {
        if !start_unresolved {
            return Err(format!("host not found in upstream \"{text}\""));
        }
        server.source = Source::Later;
    }
    Ok(server)
}

/// A server of which no more than its place is known. Looks its name up.
fn plain_server(place: Place, default_port: u16) -> Server {
    let found: Vec<Found> = place.addresses(default_port).into_iter().map(Found::plain).collect();
    let mut template = Peer::new(PeerAddr::Unix(PathBuf::new()));
    template.server = place.host();
    Server { template, place, default_port, source: Source::Fixed, found }
}

/// Directives of `upstream` that may stand there once.
const ONCE: &[&[u8]] =
    &[b"keepalive", b"keepalive_requests", b"keepalive_time", b"keepalive_timeout", b"resolver_timeout"];

/// `upstream NAME { ... }`.
///
/// # Errors
/// In nginx's words.
pub fn block(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let name = crate::config::value::first(d).to_ascii_lowercase();
    let text = String::from_utf8_lossy(&name).into_owned();
    let mut group = Group::new(name.clone(), true, Keepalive::default());
    let mut servers = Vec::new();
    let mut unresolved = cx.tables.upstreams.start_unresolved;
    for inner in d.block.iter().flatten().filter(|i| i.name.text == b"upstream_start_unresolved") {
        unresolved = crate::config::value::first(inner).eq_ignore_ascii_case(b"on");
    }
    let mut seen = Vec::new();
    for inner in d.block.iter().flatten() {
        if ONCE.contains(&inner.name.text.as_slice()) {
            if seen.contains(&inner.name.text) {
                return Err(cx.directive_error(inner, "is duplicate"));
            }
            seen.push(inner.name.text.clone());
        }
        directive(inner, cx, &mut group, &mut servers, unresolved)?;
    }
    let state = d.block.iter().flatten().find(|i| i.name.text == b"state");
    if let Some(s) = state {
        // Its file has the servers; where there is none yet, so are the servers.
        let of_file = s.block.iter().flatten().filter(|i| i.name.text == b"server").count();
        if of_file < servers.len() {
            return Err(cx.error(s, "\"state\" cannot be used together with \"server\""));
        }
    } else if servers.is_empty() {
        return Err(cx.error(d, "no servers are inside upstream"));
    }
    if !servers.is_empty() && servers.iter().all(|s| s.template.backup) {
        return Err(cx.error(d, format!("no servers in upstream \"{text}\"")));
    }
    let at = cx.error(d, "");
    let no_port = |e: &Entry| matches!(e.place, Place::Host(_, None));
    match cx.tables.upstreams.entries.iter_mut().find(|e| e.group.name == name && no_port(e)) {
        Some(e) if e.group.explicit => return Err(cx.error(d, format!("duplicate upstream \"{text}\""))),
        Some(e) => (e.group, e.servers) = (group, servers),
        None => {
            let place = Place::Host(name, None);
            cx.tables.upstreams.entries.push(Entry { group, place, default_port: 80, servers, at });
        }
    }
    Ok(())
}

/// `match NAME { ... }`.
///
/// # Errors
/// With the place of what is not understood.
pub fn matching(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let name = crate::config::value::first(d).to_vec();
    let m = Match::parse(d, cx)?;
    if cx.tables.upstreams.matches.iter().any(|(n, _)| *n == name) {
        return Err(cx.error(d, format!("duplicate match \"{}\"", String::from_utf8_lossy(&name))));
    }
    cx.tables.upstreams.matches.push((name, Arc::new(m)));
    Ok(())
}

/// Directives of the block that [`directive`] takes.
#[cfg(test)]
pub const DIRECTIVES: &[&str] = &[
    "server",
    "keepalive",
    "keepalive_requests",
    "keepalive_time",
    "keepalive_timeout",
    "hash",
    "ip_hash",
    "least_conn",
    "least_time",
    "random",
    "sticky",
    "queue",
    "zone",
    "resolver",
    "resolver_timeout",
    "upstream_start_unresolved",
    "state",
];

fn directive(
    d: &Directive,
    cx: &mut Scope<'_>,
    group: &mut Group,
    servers: &mut Vec<Server>,
    unresolved: bool,
) -> Result<(), Error> {
    let keepalive = &mut group.keepalive;
    let first = crate::config::value::first(d);
    let bad = |cx: &Scope<'_>| cx.directive_error(d, "invalid value");
    match d.name.text.as_slice() {
        b"server" => server(d, cx, &group.method, servers, unresolved)?,
        b"keepalive" => {
            keepalive.connections = units::number(first).ok_or_else(|| {
                cx.error(
                    d,
                    format!(
                        "invalid value \"{}\" in \"keepalive\" directive",
                        String::from_utf8_lossy(first)
                    ),
                )
            })? as usize;
            keepalive.local = match d.args.get(1) {
                None => false,
                Some(w) if w.text == b"local" => true,
                Some(w) => return Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()))),
            };
        }
        b"keepalive_requests" => {
            keepalive.requests =
                units::number(first).ok_or_else(|| cx.directive_error(d, "invalid number"))?;
        }
        b"keepalive_time" => keepalive.time = units::duration_ms(first).ok_or_else(|| bad(cx))?,
        b"keepalive_timeout" => keepalive.timeout = units::duration_ms(first).ok_or_else(|| bad(cx))?,
        b"hash" | b"ip_hash" | b"least_conn" | b"least_time" | b"random" => {
            if !matches!(group.method, Method::RoundRobin) {
                cx.warn(d, "load balancing method redefined");
            }
            group.method = method(d, cx)?;
        }
        b"sticky" => {
            if group.sticky.is_some() {
                return Err(cx.error(d, "\"sticky\" directive is duplicate"));
            }
            group.sticky = Some(Sticky::parse(d, cx)?);
        }
        b"state" => state(d, cx)?,
        b"queue" => group.queue = Some(queue(d, cx)?),
        b"zone" => zone(d, cx)?,
        b"resolver" => {
            if group.resolver.is_some() {
                return Err(cx.error(d, "\"resolver\" directive is duplicate"));
            }
            group.resolver = Some(Arc::new(crate::resolver::parse(d, cx)?));
        }
        b"resolver_timeout" => {
            group.resolver_timeout =
                units::duration_ms(first).ok_or_else(|| cx.directive_error(d, "invalid value"))?;
        }
        _ => {}
    }
    Ok(())
}

fn method(d: &Directive, cx: &mut Scope<'_>) -> Result<Method, Error> {
    let words: Vec<&[u8]> = d.args.iter().map(|w| w.text.as_slice()).collect();
    let invalid =
        |cx: &Scope<'_>, w: &Word| cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()));
    match d.name.text.as_slice() {
        b"ip_hash" => Ok(Method::IpHash),
        b"least_conn" => Ok(Method::Least(Load::Connections)),
        b"hash" => {
            let Some(w) = d.args.first() else { return Err(cx.error(d, "no key")) };
            let key = cx.template(d, w)?;
            match d.args.get(1) {
                None => Ok(Method::Hash(key)),
                Some(w) if w.text == b"consistent" => Ok(Method::Consistent(key)),
                Some(w) => Err(invalid(cx, w)),
            }
        }
        b"least_time" => {
            let timed = match words.first() {
                Some(&b"header") => Timed::Header,
                Some(&b"last_byte") => Timed::LastByte,
                _ => {
                    let w = d.args.first().map(Word::as_str).unwrap_or_default();
                    return Err(cx.error(d, format!("invalid value \"{w}\"")));
                }
            };
            match d.args.get(1) {
                Some(w) if w.text != b"inflight" || timed == Timed::Header => Err(invalid(cx, w)),
                inflight => Ok(Method::Least(Load::Time { timed, inflight: inflight.is_some() })),
            }
        }
        _ => {
            let timed = |timed, inflight| Some(Load::Time { timed, inflight });
            let load = match words.get(1) {
                None | Some(&b"least_conn") => Some(Load::Connections),
                Some(&b"least_time=header") => timed(Timed::Header, false),
                Some(&b"least_time=last_byte") => timed(Timed::LastByte, false),
                Some(_) => None,
            };
            match (d.args.first(), load) {
                (None, _) => Ok(Method::Random(None)),
                (Some(w), _) if w.text != b"two" => Err(invalid(cx, w)),
                (_, Some(load)) => Ok(Method::Random(Some(load))),
                (Some(w), None) => Err(invalid(cx, d.args.get(1).unwrap_or(w))),
            }
        }
    }
}

/// `state FILE`, which has `server` lines (NGINX Plus). Nothing here changes servers at run time, so that it is
/// only read.
fn state(d: &Directive, cx: &Scope<'_>) -> Result<(), Error> {
    match d.block.iter().flatten().find(|i| i.name.text != b"server") {
        Some(other) => {
            Err(cx.error(other, format!("\"{}\" is not allowed in a state file", other.name.as_str())))
        }
        None => Ok(()),
    }
}

fn queue(d: &Directive, cx: &Scope<'_>) -> Result<Queue, Error> {
    let length = units::number(crate::config::value::first(d)).and_then(|n| usize::try_from(n).ok());
    let length = length.ok_or_else(|| cx.directive_error(d, "invalid number"))?;
    let mut timeout = Duration::from_secs(60);
    if let Some(w) = d.args.get(1) {
        let value = w.text.strip_prefix(b"timeout=").and_then(units::duration_ms);
        timeout = value.ok_or_else(|| cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str())))?;
    }
    Ok(Queue { length, timeout })
}

/// `zone`. What it asks for holds anyway: all threads share the state of a group.
fn zone(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let name = crate::config::value::first(d).to_vec();
    if name.is_empty() {
        return Err(cx.error(d, "invalid zone name \"\""));
    }
    if let Some(w) = d.args.get(1) {
        let size = units::size(&w.text)
            .ok_or_else(|| cx.error_at(d, w, format!("invalid zone size \"{}\"", w.as_str())))?;
        // Eight pages.
        if size < 32 * 1024 {
            let text = String::from_utf8_lossy(&name).into_owned();
            return Err(cx.error(d, format!("zone \"{text}\" is too small")));
        }
    }
    cx.tables.upstreams.zones.push((name, d.args.len() > 1));
    Ok(())
}

fn takes_backup(m: &Method) -> bool {
    matches!(m, Method::RoundRobin | Method::Least(_))
}

fn server(
    d: &Directive,
    cx: &mut Scope<'_>,
    method: &Method,
    servers: &mut Vec<Server>,
    unresolved: bool,
) -> Result<(), Error> {
    let Some((word, options)) = d.args.split_first() else { return Err(cx.error(d, "no host")) };
    let mut p = Peer::new(PeerAddr::Unix(PathBuf::new()));
    let text = word.as_str();
    let (mut resolve, mut service) = (false, None);
    for w in options {
        let invalid = || cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()));
        let number = |t: &[u8]| units::number(t).and_then(|n| u32::try_from(n).ok());
        let unfit =
            |what: &str| cx.error_at(d, w, format!("balancing method does not support parameter \"{what}\""));
        match w.text.as_slice() {
            b"backup" if !takes_backup(method) => return Err(unfit("backup")),
            b"backup" => p.backup = true,
            b"down" => p.down = true,
            b"drain" => p.drain = true,
            b"resolve" => resolve = true,
            t if t.starts_with(b"weight=") => {
                p.weight = number(&t[7..]).filter(|n| *n > 0).map(i64::from).ok_or_else(invalid)?;
            }
            t if t.starts_with(b"max_fails=") => p.max_fails = number(&t[10..]).ok_or_else(invalid)?,
            t if t.starts_with(b"max_conns=") => p.max_conns = number(&t[10..]).ok_or_else(invalid)?,
            t if t.starts_with(b"fail_timeout=") => {
                p.fail_timeout = units::duration_secs(&t[13..]).ok_or_else(invalid)?;
            }
            t if t.starts_with(b"slow_start=") => {
                p.slow_start = units::duration_secs(&t[11..]).ok_or_else(invalid)?;
                if !takes_backup(method) {
                    return Err(unfit("slow_start"));
                }
            }
            t if t.starts_with(b"route=") => {
                if t.len() == 6 {
                    return Err(cx.error_at(d, w, "route is empty"));
                }
                if t.len() > 6 + 256 {
                    return Err(cx.error_at(d, w, "route is too long"));
                }
                (p.sid, p.routed) = (t[6..].to_vec(), true);
            }
            t if t.starts_with(b"service=") => {
                if t.len() == 8 {
                    return Err(cx.error_at(d, w, "service is empty"));
                }
                service = Some(String::from_utf8_lossy(&t[8..]).into_owned());
            }
            _ => return Err(invalid()),
        }
    }
    let place =
        Place::parse(&word.text).map_err(|m| cx.error_at(d, word, format!("{m} in upstream \"{text}\"")))?;
    let is_name = place.literal(80).is_none();
    if service.is_some() {
        let wrong = match (resolve, is_name, place.port()) {
            (false, ..) => "requires \"resolve\" parameter",
            (_, false, _) => "requires domain name",
            (_, _, Some(_)) => "may not have port",
            _ => "",
        };
        if !wrong.is_empty() {
            return Err(cx.error_at(d, word, format!("service upstream \"{text}\" {wrong}")));
        }
    }
    p.server = word.text.clone();
    let mut s = if resolve && is_name {
        let srv = service.map(|s| srv_name(&s, &place.host()));
        Server { template: p, place, default_port: 80, source: Source::Resolve(srv), found: Vec::new() }
    } else {
        Server { template: p, ..plain_server(place, 80) }
    };
    if s.found.is_empty() && s.source == Source::Fixed {
        if !unresolved {
            return Err(cx.error_at(d, word, format!("host not found in upstream \"{text}\"")));
        }
        s.source = Source::Later;
    }
    servers.push(s);
    Ok(())
}

/// The name of the SRV records of a service: `http` stands for `_http._tcp`; what has a dot is complete (nginx:
/// server, service).
fn srv_name(service: &str, host: &[u8]) -> String {
    let host = String::from_utf8_lossy(host);
    if service.contains('.') { format!("{service}.{host}") } else { format!("_{service}._tcp.{host}") }
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, warnings};

    fn says(block: &str) -> Option<String> {
        error(&format!("upstream u {{ {block} }}"))
    }

    #[test]
    fn mistakes_have_nginx_s_words() {
        let cases = [
            (
                "server a.invalid resolve;",
                "no resolver defined to resolve names at run time in upstream \"u\"",
            ),
            ("server a:1 resolve service=x;", "service upstream \"a:1\" may not have port"),
            ("server a service=x;", "service upstream \"a\" requires \"resolve\" parameter"),
            ("server 127.0.0.1 resolve service=x;", "service upstream \"127.0.0.1\" requires domain name"),
            ("server 127.0.0.1 route=;", "route is empty"),
            ("server 127.0.0.1 service=;", "service is empty"),
            ("hash $uri; server 127.0.0.1 backup;", "balancing method does not support parameter \"backup\""),
            ("server 127.0.0.1 backup; hash $uri;", "no servers in upstream \"u\""),
            ("server 127.0.0.1; hash $uri foo;", "invalid parameter \"foo\""),
            ("server 127.0.0.1; random three;", "invalid parameter \"three\""),
            ("server 127.0.0.1; random two foo;", "invalid parameter \"foo\""),
            ("server 127.0.0.1; least_time foo;", "invalid value \"foo\""),
            ("server 127.0.0.1; sticky foo bar;", "unknown parameter \"foo\""),
            ("server 127.0.0.1; sticky cookie a foo=b;", "unknown parameter \"foo=b\""),
            ("server 127.0.0.1; sticky route foo;", "invalid variable name \"foo\""),
            (
                "server 127.0.0.1; sticky learn create=$uri;",
                "\"sticky\" directive \"lookup\" parameter is not specified",
            ),
            (
                "server 127.0.0.1; sticky learn zone=x:1 create=$uri lookup=$uri;",
                "\"sticky\" directive zone is too small",
            ),
            ("server 127.0.0.1; sticky cookie a; sticky cookie b;", "\"sticky\" directive is duplicate"),
            ("server 127.0.0.1; zone z;", "zero size shared memory zone \"z\""),
            ("server 127.0.0.1; zone z 1k;", "zone \"z\" is too small"),
            ("state /nonexistent; server 127.0.0.1;", "\"state\" cannot be used together with \"server\""),
            ("server a.invalid;", "host not found in upstream \"a.invalid\""),
        ];
        for (block, want) in cases {
            assert_eq!(says(block).as_deref(), Some(want), "{block}");
        }
        let resolvers = [
            ("resolver 127.0.0.1 valid=x;", "invalid parameter: valid=x"),
            ("resolver 127.0.0.1:99999;", "invalid port in resolver \"127.0.0.1:99999\""),
            ("resolver 127.0.0.1 ipv4=off ipv6=off;", "\"ipv4\" and \"ipv6\" cannot both be \"off\""),
            ("resolver a.invalid;", "host not found in resolver \"a.invalid\""),
        ];
        for (line, want) in resolvers {
            assert_eq!(error(line).as_deref(), Some(want), "{line}");
        }
    }

    #[test]
    fn what_is_well() {
        let good = [
            "server 127.0.0.1 drain route=a max_conns=1 slow_start=5s; queue 5 timeout=1s; zone z 64k;",
            "server a.invalid resolve service=http; resolver 127.0.0.1 valid=1s; resolver_timeout 3s;",
            "server a.invalid; upstream_start_unresolved on;",
            "zone z 64k; state /nonexistent;",
            "least_time last_byte inflight; server 127.0.0.1; random two least_time=header;",
        ];
        for block in good {
            assert_eq!(says(block), None, "{block}");
        }
        assert_eq!(
            warnings("upstream u { server 127.0.0.1; hash $uri; ip_hash; }"),
            ["load balancing method redefined"]
        );
        assert_eq!(error("upstream_start_unresolved on; upstream u { server a.invalid; }"), None);
    }
}
