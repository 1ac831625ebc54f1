//! Checks of what is believed: fields that the client writes, and that the application or the configuration takes for the truth.

use super::ask::{
    FAMILIES, children, client_field, has, http_server, http_servers, is_guarded, is_local, parameter,
};
use super::{Check, checks};
use crate::scene::Scene;
use crate::variables::{Entry, by_client, entries_of_tables, group, is_name, named, sources};
use forebay_conf::tree::Span;
use std::collections::HashSet;

/// Fields about the connection, which only a proxy can know.
const CONNECTION: [&str; 14] = [
    "request-scheme",
    "uwsgi-scheme",
    "x-url-scheme",
    "front-end-https",
    "x-original-host",
    "x-original-proto",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-protocol",
    "x-forwarded-scheme",
    "x-forwarded-port",
    "x-forwarded-ssl",
    "x-forwarded-server",
    "x-scheme",
];

/// Parts of names of fields that say who somebody is.
const PERSONS: [&str; 31] = [
    "authenticated",
    "authorized",
    "workspace",
    "team",
    "company",
    "organisation",
    "member",
    "principal",
    "permissions",
    "scope",
    "scopes",
    "user",
    "username",
    "userid",
    "uid",
    "tenant",
    "org",
    "organization",
    "account",
    "customer",
    "role",
    "roles",
    "group",
    "groups",
    "admin",
    "email",
    "verify",
    "verified",
    "dn",
    "cert",
    "subject",
];

/// Parts of names of fields that prove something, or that say what a program is called.
const PROOFS: [&str; 9] =
    ["token", "key", "signature", "csrf", "agent", "session", "secret", "hash", "nonce"];

/// Parts of names of fields that tell something about somebody, not who it is.
const TRAITS: [&str; 5] = ["ip", "addr", "address", "lang", "language"];

/// Directives that give fields to an application.
const PASSED: [&str; 5] =
    ["proxy_set_header", "grpc_set_header", "fastcgi_param", "uwsgi_param", "scgi_param"];

/// Returns the name of a field as it is in a request: `HTTP_X_USER` is `x-user`.
fn field_name(name: &str) -> String {
    let lower = name.to_ascii_lowercase().replace('_', "-");
    lower.strip_prefix("http-").map_or(lower.clone(), str::to_owned)
}

/// Returns `true` if an application takes a field of this name for who somebody is.
fn is_of_person(name: &str) -> bool {
    let parts: Vec<&str> = name.split('-').collect();
    let has = |words: &[&str]| parts.iter().any(|p| words.contains(p));
    has(&PERSONS) && !has(&PROOFS) && !has(&TRAITS)
}

/// Reports fields for an application that repeat what the client wrote.
fn passed(s: &Scene<'_>, fits: impl Fn(&str) -> bool, text: &str, found: &mut dyn FnMut(Span, String)) {
    for n in PASSED.into_iter().flat_map(|name| s.all(name)) {
        let name = field_name(s.arg(n, 0));
        let by = client_field(s, s.parent(n), s.arg(n, 1)).filter(|v| v != "http_host");
        // Behind another server of this machine the fields are that one's.
        let near = http_server(s, n).is_some_and(|b| is_local(s, b))
            || s.effective(s.parent(n), "internal").is_some();
        if let Some(v) = by.filter(|_| fits(&name) && !near) {
            found(
                s.arg_span(n, 1),
                format!("${v} is whatever the client writes, and {text} {}", s.arg(n, 0)),
            );
        }
    }
}

/// Words in names of variables by which somebody is let in.
const RANKS: [&str; 16] = [
    "role",
    "admin",
    "staff",
    "group",
    "internal",
    "trusted",
    "debug",
    "employee",
    "privilege",
    "logged",
    "authenticated",
    "vip",
    "premium",
    "allow",
    "access",
    "level",
];

/// Returns `true` if a variable of the client tells a rank, or the name of a program, and nothing secret.
fn is_claim(v: &str) -> bool {
    let families = ["cookie_", "http_", "arg_"];
    let Some(name) = families.iter().find_map(|f| v.strip_prefix(f)) else { return false };
    let is_cors = name.starts_with("access_control_");
    let rank = RANKS.iter().any(|w| name.contains(w)) || name.split('_').any(|p| p == "user");
    v == "http_user_agent" || rank && !is_cors && !PROOFS.iter().any(|w| name.contains(w))
}

/// Returns `true` if a block refuses a request.
fn refuses(s: &Scene<'_>, block: usize) -> bool {
    children(s, block, "return").any(|r| ["401", "403", "404", "444"].contains(&s.arg(r, 0)))
}

/// Returns `true` if a block gives something away.
fn gives(s: &Scene<'_>, block: usize) -> bool {
    ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "root", "alias"]
        .iter()
        .any(|d| s.child(Some(block), d).is_some())
}

/// Returns `true` if a value of a table is true for nginx.
fn is_true(value: &str) -> bool {
    !value.is_empty() && value != "0"
}

/// Returns the variable by whose table the client names its rank, with the line that lets in: without it the table says "no".
fn claimed_by_table(s: &Scene<'_>, block: Option<usize>, variable: &str) -> Option<(String, Span)> {
    let by = sources(s, block, &format!("${variable}")).into_iter().find(|v| is_claim(v))?;
    let entries = entries_of_tables(s, block, variable);
    let is_default = |e: &&Entry| e.key == "default";
    let default = entries.iter().find(is_default).map(|e| e.value.as_str()).unwrap_or_default();
    let lets_in = entries.iter().find(|e| e.key != "default" && is_true(&e.value))?;
    (!is_true(default)).then_some((by, lets_in.span))
}

/// Returns the variable by which `set` under a condition lets the client name its rank, with the place of the condition.
fn claimed_by_set(s: &Scene<'_>, block: usize, variable: &str) -> Option<(String, Span)> {
    let server = http_server(s, block);
    let sets = s
        .all("set")
        .filter(|n| is_name(s, *n, variable) && http_server(s, *n) == server && is_true(s.arg(*n, 1)));
    let conditions = sets.filter_map(|n| s.parent(n).filter(|p| s.is(*p, "if")));
    conditions.filter(|c| !s.args(*c).iter().any(|a| a.starts_with('!'))).find_map(|c| {
        let words = s.text(c);
        let by = named(&words).into_iter().map(|(_, v)| v.to_owned()).find(|v| is_claim(v))?;
        Some((by, s.span(c)))
    })
}

/// Reports conditions that let in who calls himself by the right name.
fn claims(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("if") {
        let words: Vec<String> = s
            .args(n)
            .iter()
            .map(|a| a.trim_matches(['(', ')', ' ']).to_owned())
            .filter(|a| !a.is_empty())
            .collect();
        let Some(v) = words.first().and_then(|w| w.strip_prefix('$')) else { continue };
        let (operator, value) =
            (words.get(1).map(String::as_str).unwrap_or_default(), words.get(2).cloned().unwrap_or_default());
        let negated = operator.starts_with('!');
        let is_empty = value.trim_matches(['"', '\'']).is_empty();
        let none = operator == "=" && is_empty && v != "http_user_agent";
        let direct = is_claim(v)
            && (negated && refuses(s, n) && !is_empty
                || none && refuses(s, n)
                || !negated && gives(s, n) && v != "http_user_agent");
        let table = claimed_by_table(s, Some(n), v).or_else(|| claimed_by_set(s, n, v));
        let of_table = !is_claim(v)
            && (operator.is_empty() && gives(s, n)
                || refuses(s, n)
                    && (negated || operator == "=" && !is_true(value.trim_matches(['"', '\'']))));
        if let Some((by, span)) = table.filter(|_| of_table) {
            found(span, format!("who writes the right ${by} gets in"));
        } else if direct {
            found(s.span(n), format!("who writes the right ${v} gets in"));
        }
    }
}

/// Reports passwords that are not asked for where the client says so.
fn realms(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("auth_basic") {
        for (_, name) in named(s.arg(n, 0)) {
            let off = entries_of_tables(s, s.parent(n), name)
                .into_iter()
                .find(|e| e.key != "default" && e.value == "off");
            let by = sources(s, s.parent(n), &format!("${name}")).into_iter().find(|v| is_claim(v));
            if let (Some(off), Some(by)) = (off, by) {
                found(off.span, format!("who writes the right ${by} is asked for no password"));
            }
        }
    }
}

/// Returns the field of a request that decides about a variable, and that is no secret.
fn open_field(s: &Scene<'_>, block: Option<usize>, variable: &str) -> Option<String> {
    let is_secret = |v: &str| v.contains("auth") || PROOFS.iter().any(|w| *w != "agent" && v.contains(w));
    let own = |v: &String| ["http_", "cookie_", "arg_"].iter().any(|f| v.starts_with(f)) && !is_secret(v);
    sources(s, block, &format!("${variable}")).into_iter().find(own)
}

/// Reports limits that the client lifts by a field.
fn lifted(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in ["limit_req_zone", "limit_conn_zone"].into_iter().flat_map(|name| s.all(name)) {
        for (_, name) in named(s.arg(n, 0)) {
            let entries = entries_of_tables(s, s.parent(n), name);
            let default = entries.iter().find(|e| e.key == "default");
            let counts =
                default.map_or(entries.iter().any(|e| e.value.contains('$')), |e| !e.value.is_empty());
            let lifts =
                entries.iter().find(|e| e.key != "default" && !e.key.is_empty() && e.value.is_empty());
            let by = open_field(s, s.parent(n), name).filter(|_| counts);
            if let (Some(by), Some(line)) = (by, lifts) {
                found(line.span, format!("with this ${by} the key is empty, and nothing is limited"));
            }
        }
    }
}

/// Returns the requests a minute of a zone.
fn rate(s: &Scene<'_>, n: usize) -> Option<u64> {
    let rate = parameter(s, n, "rate")?;
    let (count, unit) = rate.split_once("r/")?;
    let count: u64 = count.parse().ok()?;
    Some(if unit == "s" { count.saturating_mul(60) } else { count })
}

/// Variables that are the same for all clients of a site.
const COMMON: [&str; 9] = [
    "server_name",
    "host",
    "http_host",
    "scheme",
    "server_port",
    "server_addr",
    "request_method",
    "uri",
    "document_uri",
];

/// Returns the client's variable that a table gives where it knows nothing, with the place of that line.
fn open_default(s: &Scene<'_>, block: Option<usize>, text: &str) -> Option<(String, Span)> {
    named(text).into_iter().find_map(|(_, name)| {
        let open = entries_of_tables(s, block, name).into_iter().find(Entry::takes_all)?;
        let captured = |v: &str| group(&open.key, v).is_some();
        let whole = named(&open.value).into_iter().any(|(_, v)| captured(v));
        let compared = || {
            sources(s, block, &format!("${name}"))
                .into_iter()
                .find_map(|v| by_client(s, block, &format!("${v}")))
        };
        Some((
            by_client(s, block, &open.value).filter(|_| !whole).or_else(|| compared().filter(|_| whole))?,
            open.span,
        ))
    })
}

checks! { Check;
    "connection-claimed" |s, _, found| if s.all("set_real_ip_from").next().is_none() {
        passed(s, |name| CONNECTION.contains(&name) || matches!(name, "https" | "host"), "the application builds links by", found);
    },
    "identity-passed" |s, _, found| passed(s, is_of_person, "the application believes", found),
    "underscores-in-headers" |s, _, found| for n in s.all("underscores_in_headers").filter(|n| s.arg(*n, 0) == "on") {
        found(s.span(n), "X_Real_IP of a client is X-Real-IP to many applications".to_owned());
    },
    "access-by-claim" |s, _, found| {
        claims(s, found);
        realms(s, found);
    },
    "limit-lifted" |s, _, found| lifted(s, found),
    "limit-shared" |s, _, found| for n in s.all("limit_req_zone") {
        let key = s.arg(n, 0);
        let names = named(key);
        let common = names.iter().all(|(_, v)| COMMON.contains(v));
        if let Some(rate) = rate(s, n).filter(|r| common && *r <= 300) {
            found(s.arg_span(n, 0), format!("all clients together have {rate} requests a minute"));
        }
    },
    "root-by-client" |s, _, found| for name in ["root", "alias"] {
        for n in s.all(name) {
            if let Some(v) = client_field(s, s.parent(n), s.arg(n, 0)).filter(|v| v != "http_host") {
                found(s.arg_span(n, 0), format!("${v} chooses the folder, \"..\" in it as well"));
            }
        }
    },
    "path-by-client" |s, _, found| for n in s.all("try_files") {
        for (i, a) in s.args(n).iter().enumerate() {
            let path = a.split('?').next().unwrap_or_default();
            let own = |v: &&str| ["cookie_", "arg_", "http_"].iter().any(|f| v.starts_with(f)) && *v != "http_host";
            if let Some(v) = named(path).into_iter().map(|(_, v)| v).find(own) {
                found(s.arg_span(n, i), format!("${v} is a part of the path, with \"..\" in it if the client likes"));
            }
        }
    },
    "log-name-table" |s, _, found| for n in s.all("access_log").filter(|n| !s.arg(*n, 0).starts_with("syslog:")) {
        if let Some((v, span)) = open_default(s, s.parent(n), s.arg(n, 0)) {
            found(span, format!("it names a log: each new ${v} makes a file"));
        }
    },
    "login-lent" |s, _, found| for n in ["proxy_set_header", "grpc_set_header"].into_iter().flat_map(|name| s.all(name)) {
        let proof = ["authorization", "x-api-key", "x-auth-token", "x-access-token"].iter().any(|f| s.arg(n, 0).eq_ignore_ascii_case(f));
        let fixed = s.arg(n, 1).len() > 6 && !s.arg(n, 1).contains('$');
        let local = http_server(s, n).is_some_and(|b| is_local(s, b));
        if proof && fixed && !local && !is_guarded(s, s.parent(n)) {
            found(s.arg_span(n, 1), format!("everybody reaches the application with this {}", s.arg(n, 0)));
        }
    },
    "proxy-protocol-address" |s, _, found| for server in http_servers(s) {
        let Some(listen) = children(s, server, "listen").find(|l| has(s, *l, "proxy_protocol")) else { continue };
        if s.effective(Some(server), "set_real_ip_from").is_some() || s.is_partial() {
            continue;
        }
        let judging = ["deny", "limit_req", "limit_conn"];
        let judged = judging.iter().any(|d| s.effective(Some(server), d).is_some() || s.named_inside(server, d).next().is_some());
        let by_protocol = s.with_text("$proxy_protocol_addr").any(|n| !s.is(n, "log_format") && !s.is(n, "proxy_set_header"));
        if judged && !by_protocol {
            found(s.span(listen), "the address of the balancer is judged, not that of the client".to_owned());
        }
    },
    "target-by-default" |s, _, found| for n in ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "grpc_pass"].into_iter().flat_map(|name| s.all(name)) {
        let url = s.arg(n, 0);
        let host = url.split_once("://").map_or(url, |(_, rest)| rest).split('/').next().unwrap_or_default();
        if let Some((v, span)) = open_default(s, s.parent(n), host) {
            found(span, format!("what is in no other line is connected to as ${v} says"));
        }
        let preread = named(host).first().is_some_and(|(at, v)| *at == 0 && *v == "ssl_preread_server_name");
        if preread && s.around(n, "stream").is_some() && s.effective(s.parent(n), "deny").is_none() {
            found(s.arg_span(n, 0), "$ssl_preread_server_name is any name that a client asks for".to_owned());
        }
    },
    "sub-filter-compressed" |s, _, found| {
        let mut seen: HashSet<usize> = HashSet::new();
        for n in s.all("sub_filter").filter(|n| s.around(*n, "http").is_some() && !s.is_partial()) {
            let Some(block) = s.parent(n).filter(|b| seen.insert(*b)) else { continue };
            let passes = |b: usize| s.child(Some(b), "proxy_pass").is_some();
            let Some(passing) = std::iter::once(block).chain(s.inside(block)).find(|b| passes(*b)) else { continue };
            let clears = |h: usize| s.arg(h, 0).eq_ignore_ascii_case("accept-encoding") && !s.arg(h, 1).contains('$');
            let cleared = s.all_effective(Some(passing), "proxy_set_header").any(clears);
            if !cleared && !s.on(Some(passing), "gunzip") {
                found(s.span(n), "in a compressed response of the upstream nothing is replaced".to_owned());
            }
        }
    },
    "host-fixed" |s, _, found| for n in FAMILIES.into_iter().skip(1).flat_map(|f| s.all(match f { "fastcgi" => "fastcgi_param", "uwsgi" => "uwsgi_param", _ => "scgi_param" })) {
        let value = s.arg(n, 1);
        let bare = value.split(':').next().unwrap_or_default();
        if s.arg(n, 0) == "HTTP_HOST" && (bare == "localhost" || bare.parse::<std::net::IpAddr>().is_ok()) {
            found(s.arg_span(n, 1), format!("the application sees {bare} whatever was asked for"));
        }
    },
}
