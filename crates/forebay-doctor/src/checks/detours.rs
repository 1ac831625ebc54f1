//! Checks of where requests end up: redirects to other places than meant, guards that are walked around, sources that are sent.

use super::ask::{http_server, http_servers, is_guarded, is_local, parameter, pass_of, refuses_all};
use super::patterns::conditions;
use super::{Check, checks};
use crate::routes;
use crate::scene::{Scene, Table};
use crate::variables::named;
use forebay_conf::tree::Span;
use std::collections::HashSet;

/// Returns the targets of redirects: the directives with the number of the argument.
fn redirects<'s>(s: &'s Scene<'_>) -> impl Iterator<Item = (usize, usize)> + 's {
    let returns = s.all("return").filter_map(|n| {
        let args = s.args(n);
        match args {
            [target] if target.contains("://") || target.starts_with('$') => Some((n, 0)),
            [code, _] if code.starts_with('3') => Some((n, 1)),
            _ => None,
        }
    });
    let is_sent =
        |n: &usize| s.arg(*n, 1).contains("://") || ["redirect", "permanent"].contains(&s.last_arg(*n));
    returns.chain(s.all("rewrite").filter(is_sent).map(|n| (n, 1)))
}

/// Returns the host that an address names.
fn host_in(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let end = rest.find(['/', ':', '?']).unwrap_or(rest.len());
    // `$host$request_uri` has no slash between the two.
    match rest.get(1..).and_then(|more| more.find('$')) {
        Some(next) if next < end => rest.get(..next.saturating_add(1)).unwrap_or_default(),
        _ => rest.get(..end).unwrap_or_default(),
    }
}

/// Reports redirects to the host of the request in a server that takes all names, and has one of its own.
fn unchecked_hosts(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for (n, arg) in redirects(s) {
        let Some(server) = http_server(s, n) else { continue };
        let is_default =
            s.children(Some(server), "listen").any(|l| s.has(l, "default_server") || s.has(l, "default"));
        let mut names = s.children(Some(server), "server_name").flat_map(|n| s.args(n));
        let own =
            names.clone().next().is_some() && names.all(|n| n.contains('.') && !n.contains(['*', '~', '$']));
        let host = host_in(s.arg(n, arg));
        if is_default
            && own
            && s.arg(n, arg).contains("://")
            && ["$host", "$http_host", "${host}"].contains(&host)
        {
            found(
                s.arg_span(n, arg),
                format!("requests for any other name come here too, and {host} sends them there"),
            );
        }
    }
}

/// Returns `true` if all sockets of a server speak TLS.
fn is_tls_only(s: &Scene<'_>, server: usize) -> bool {
    let mut listens = s.children(Some(server), "listen").peekable();
    listens.peek().is_some() && listens.all(|l| s.has(l, "ssl") || s.has(l, "quic"))
}

/// Reports redirects from TLS to the same site in the clear.
fn to_plain(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let names: HashSet<&str> =
        s.all("server_name").flat_map(|n| s.args(n)).map(|name| &**name).filter(|n| *n != "_").collect();
    for (n, arg) in redirects(s).filter(|(n, arg)| s.arg(*n, *arg).starts_with("http://")) {
        let Some(server) = http_server(s, n).filter(|server| is_tls_only(s, *server)) else { continue };
        let host = host_in(s.arg(n, arg));
        let same = ["$host", "$http_host", "$server_name"].contains(&host) || names.contains(host);
        // A port of its own is another program.
        let port = s.arg(n, arg).trim_start_matches("http://").trim_start_matches(host).starts_with(':');
        if same && !port && server != n {
            found(s.arg_span(n, arg), "who came with TLS goes on without it".to_owned());
        }
    }
}

/// Endings of programs whose source nobody is to get.
const SCRIPTS: [&str; 4] = [".php", ".cgi", ".pl", ".py"];

/// Reports locations that take scripts away from the location that runs them.
fn sources_sent(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s) {
        let locations = || s.named_inside(server, "location");
        let ending = |l: usize| {
            let pattern = routes::pattern(s, l).filter(|_| pass_of(s, l).is_some())?;
            SCRIPTS.into_iter().find(|e| pattern.contains(&format!("\\{e}")) || pattern.ends_with(&e[1..]))
        };
        let Some(run) = locations().find_map(ending) else { continue };
        for l in locations() {
            let text = s.text(l);
            let exact = text.starts_with('=') && text.ends_with(run);
            let kept = text.starts_with("^~")
                && ["wp-admin", "phpmyadmin", "wp-login"].iter().any(|w| text.contains(w));
            let answers =
                ["return", "rewrite", "alias", "proxy_pass", "if", "fastcgi_pass", "uwsgi_pass", "grpc_pass"];
            let own =
                s.inside(l).any(|n| answers.iter().any(|a| s.is(n, a))) || s.is_partial() || included(s, l);
            let first = s.child(Some(l), "try_files").map(|t| s.arg(t, 0));
            let sends = first.is_none_or(|f| f.starts_with("$uri") || f == "$request_filename");
            if (exact || kept) && !own && sends && !refuses_all(s, l) {
                found(s.span(l), format!("the location that runs {run} is not asked, so the source is sent"));
            }
        }
    }
}

/// Returns `true` if a part of a block is in another file.
fn included(s: &Scene<'_>, block: usize) -> bool {
    s.child(Some(block), "include").is_some()
}

/// Reports a slash in front of a path that begins with one.
fn double_slashes(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let passes = s.all("proxy_pass").map(|n| (n, 0));
    for (n, arg) in redirects(s).chain(passes) {
        let text = s.arg(n, arg);
        let double = named(text).into_iter().find(|(at, name)| {
            let before = text.get(..*at).unwrap_or_default();
            ["request_uri", "uri", "document_uri"].contains(name)
                && before.ends_with('/')
                && !before.ends_with("://")
        });
        let Some((at, name)) = double else { continue };
        // In an address with a question mark before it, it is an argument.
        if text.get(..at).unwrap_or_default().contains('?') {
            continue;
        }
        let what = if text.starts_with("/$") || text.starts_with("/${") {
            format!("/${name} is //name for the path /name, which is another host for a browser")
        } else {
            format!("${name} begins with a slash of its own: the path gets two")
        };
        found(s.arg_span(n, arg), what);
    }
}

/// Reports rewrites that send the client to what it wrote behind a prefix.
fn rewrites_to_anywhere(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("rewrite") {
        let (pattern, target) = (s.arg(n, 0), s.arg(n, 1));
        let sent = target.contains("://") || ["redirect", "permanent"].contains(&s.last_arg(n));
        let host =
            target.trim_start_matches("https:").trim_start_matches("http:").trim_start_matches("$scheme:");
        let bare = host.trim_start_matches("//");
        let Some(rest) = bare.strip_prefix("$1").filter(|r| r.is_empty() || r.starts_with(['?', '/'])) else {
            continue;
        };
        let Some((before, group)) = pattern.split_once('(') else { continue };
        let free = [".*", ".+"].iter().any(|g| group.strip_prefix(g).is_some_and(|r| r.starts_with(')')));
        // Behind `^/(.*)` a path is relative, which leaves the site only with a scheme in front.
        let deep = before.len() > 2 || target.contains("://");
        if sent && free && before.ends_with('/') && deep && !rest.starts_with("/$") {
            found(
                s.arg_span(n, 1),
                format!("{}https://other.example leads there", before.trim_start_matches('^')),
            );
        }
    }
}

/// Reports rewrites that leave a location before it passes the request on.
fn left_early(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("rewrite").filter(|n| s.last_arg(*n) == "last") {
        let Some(l) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let (Some(prefix), Some(pass), Some(server)) =
            (routes::prefix(s, l), pass_of(s, l), http_server(s, n))
        else {
            continue;
        };
        let base = prefix.trim_end_matches('/');
        let pattern = s.arg(n, 0).trim_end_matches('$');
        let behind = pattern.strip_prefix('^').and_then(|p| p.strip_prefix(base));
        let all = behind.is_some_and(|b| ["/(.*)", "(.*)", "/?(.*)", "(/.*)", "/(.+)", ""].contains(&b));
        let target = s.arg(n, 1).replace("$1", "x");
        if !all || target.contains('$') || !target.starts_with('/') {
            continue;
        }
        let path = target.split('?').next().unwrap_or_default().replace("//", "/");
        let taker = routes::chosen(s, server, &path);
        if taker != l && pass_of(s, taker) != Some(pass) && !s.is_within(taker, l) {
            found(
                s.span(n),
                format!("{path} is looked for among all locations again, and {pass} is never asked"),
            );
        }
    }
}

/// Words of variables that say who somebody is.
const WHO: [&str; 9] = ["allow", "trusted", "office", "internal", "admin", "auth", "vpn", "deny", "banned"];

/// Returns `true` if a condition about this variable is about who somebody is.
pub(super) fn is_who(variable: &str) -> bool {
    let own = ["remote_addr", "realip_remote_addr", "remote_user", "http_authorization"];
    own.contains(&variable)
        || variable.starts_with("ssl_client_")
        || variable.starts_with("cookie_")
        || !variable.starts_with("http_") && WHO.iter().any(|w| variable.contains(w))
}

/// Reports conditions that guard a prefix from which a pattern takes paths.
fn conditions_bypassed(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for c in conditions(s).filter(|c| is_who(&c.variable) && c.refuses(s)) {
        let Some(l) = s.parent(c.node).filter(|p| s.is(*p, "location")) else { continue };
        let (Some(prefix), Some(server)) = (routes::prefix(s, l), s.parent(l).filter(|p| s.is(*p, "server")))
        else {
            continue;
        };
        let exact = s.text(l).starts_with(['=', '^', '@']);
        if exact
            || prefix.len() < 2
            || s.children(Some(l), "location").any(|n| routes::pattern(s, n).is_some())
        {
            continue;
        }
        let taker = s.children(Some(server), "location").find(|t| {
            let ending =
                routes::pattern(s, *t).is_some_and(|p| p.starts_with("\\.") || p.starts_with(".*\\."));
            let same = pass_of(s, *t).is_some_and(|p| pass_of(s, l).is_none_or(|own| own == p));
            ending && same && !is_closed(s, *t) && !refuses_all(s, *t)
        });
        if let Some(t) = taker {
            found(s.span(c.node), format!("\"location {}\" takes paths below {prefix} before it", s.text(t)));
        }
    }
}

/// Returns `true` if not everybody gets into a block. A list of some who are refused guards nothing.
pub(super) fn is_closed(s: &Scene<'_>, block: usize) -> bool {
    is_guarded(s, Some(block)) && !refuses_few(s, block)
}

/// Returns `true` if all that guards a block is a list of some who are refused.
fn refuses_few(s: &Scene<'_>, block: usize) -> bool {
    let is_set = |name: &&str| s.effective(Some(block), name).is_some_and(|n| s.arg(n, 0) != "off");
    let others = ["auth_basic", "auth_request", "auth_jwt", "auth_oidc", "internal", "ssl_verify_client"];
    let mut at = Some(block);
    while let Some(b) = at {
        let is_refusal = |n| s.child(Some(n), "return").is_some_and(|r| s.arg(r, 0).starts_with('4'));
        if s.children(Some(b), "if").any(is_refusal) || s.child(Some(b), "limit_except").is_some() {
            return false;
        }
        at = s.parent(b);
    }
    is_set(&"deny")
        && !others.iter().any(is_set)
        && !s.all_effective(Some(block), "deny").any(|n| s.arg(n, 0) == "all")
}

/// Reports a guard for the name of a folder that its contents do not have.
fn folders_open(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for l in s.all("location").filter(|l| s.arg(*l, 0) == "=" || s.arg(*l, 0).starts_with("=/")) {
        let Some(server) = s.parent(l).filter(|p| s.is(*p, "server") && s.around(*p, "http").is_some())
        else {
            continue;
        };
        let text = s.text(l);
        let path = text.trim_start_matches('=').trim();
        let own =
            ["auth_basic", "auth_request", "allow", "deny"].iter().any(|g| s.child(Some(l), g).is_some());
        let folder = format!("{}/", path.trim_end_matches('/'));
        if !own || folder.len() < 3 || path.contains('.') || !is_guarded(s, Some(l)) {
            continue;
        }
        let sends = s.inside(l).any(|n| s.args(n).iter().any(|a| a.starts_with(&folder)));
        let taker = routes::chosen(s, server, &format!("{folder}x"));
        let files = pass_of(s, taker).is_none() && s.child(Some(taker), "return").is_none();
        if sends && files && taker != l && !is_closed(s, taker) {
            found(
                s.span(l),
                format!("{folder} and what is below it is not {path}, and nobody is asked there"),
            );
        }
    }
}

/// Words of paths that strangers are not to reach.
pub(super) const INNER: [&str; 8] =
    ["internal", "admin", "private", "manage", "management", "backoffice", "actuator", "debug"];

/// Reports places for insiders that are excepted from the login of the site.
fn login_off(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in ["auth_basic", "auth_request", "auth_jwt"].into_iter().flat_map(|name| s.all(name)) {
        let Some(l) = s.parent(n).filter(|p| s.is(*p, "location") && s.arg(n, 0) == "off") else { continue };
        let path = s.last_arg(l).to_ascii_lowercase();
        let inner =
            path.split(['/', '^', '$', '~', '(', ')', '|', '.', '-', '_']).find(|p| INNER.contains(p));
        if let Some(word) = inner.filter(|_| !is_closed(s, l) && !refuses_all(s, l) && !included(s, l)) {
            found(s.span(n), format!("everybody reaches what is called {word}"));
        }
    }
}

/// Directives by which a login is asked for.
const LOGINS: [&str; 3] = ["auth_basic", "auth_request", "auth_jwt"];

/// Reports a second way to an application whose first one asks for somebody.
fn second_doors(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let asks = |server: usize| {
        let verify = s.effective(Some(server), "ssl_verify_client").map_or("", |v| s.arg(v, 0));
        let checked = || s.children(Some(server), "if").any(|i| s.text(i).contains("$ssl_client_verify"));
        verify == "on" || verify.starts_with("optional") && checked()
    };
    let mut known: Table<usize, bool> = Table::default();
    let mut guarded: HashSet<&str> = HashSet::new();
    let mut open: Vec<(usize, &str)> = Vec::new();
    for n in
        ["proxy_pass", "grpc_pass", "uwsgi_pass", "fastcgi_pass"].into_iter().flat_map(|name| s.all(name))
    {
        let Some(server) = http_server(s, n) else { continue };
        let address = s.arg(n, 0);
        let target = address.split_once("://").map_or(address, |(_, rest)| rest).trim_end_matches('/');
        let whole = s.parent(n).filter(|l| s.text(*l) == "/");
        let login = |name: &str| s.effective(whole, name).is_some_and(|a| s.arg(a, 0) != "off");
        if *known.entry(server).or_insert_with(|| asks(server))
            || whole.is_some() && LOGINS.into_iter().any(login)
        {
            guarded.insert(target);
        } else if whole.is_some() && !is_local(s, server) {
            open.push((n, target));
        }
    }
    for (n, target) in
        open.into_iter().filter(|(_, target)| guarded.contains(target) && !target.contains('$'))
    {
        if s.parent(n).is_some_and(|l| !is_closed(s, l)) {
            found(
                s.span(n),
                format!(
                    "another server asks for a certificate or login before {target}, and this one for nothing"
                ),
            );
        }
    }
}

/// Reports limit_except with a login for the methods that are left, while those that write need none.
fn writers_free(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("limit_except") {
        let login = ["auth_basic", "auth_jwt"]
            .iter()
            .any(|g| s.child(Some(n), g).is_some_and(|a| s.arg(a, 0) != "off"));
        let writes = s.args(n).iter().find(|a| ["POST", "PUT", "DELETE", "PATCH"].contains(&&***a));
        let Some(l) = s.parent(n).filter(|_| login) else { continue };
        let names = ["auth_basic", "auth_request", "auth_jwt"];
        let outer = names.iter().any(|g| s.effective(Some(l), g).is_some_and(|a| s.arg(a, 0) != "off"));
        if let Some(method) =
            writes.filter(|_| !outer && !s.all_effective(Some(l), "deny").any(|d| s.arg(d, 0) == "all"))
        {
            found(s.span(n), format!("{method} is one of the methods for which no password is asked"));
        }
    }
}

checks! { Check;
    "redirect-host-unchecked" |s, _, found| unchecked_hosts(s, found),
    "redirect-to-plain" |s, _, found| to_plain(s, found),
    "source-sent" |s, _, found| sources_sent(s, found),
    "slash-doubled" |s, _, found| double_slashes(s, found),
    "rewrite-anywhere" |s, _, found| rewrites_to_anywhere(s, found),
    "rewrite-before-pass" |s, _, found| left_early(s, found),
    "condition-bypassed" |s, _, found| conditions_bypassed(s, found),
    "folder-unguarded" |s, _, found| folders_open(s, found),
    "login-off-inside" |s, _, found| login_off(s, found),
    "second-door" |s, _, found| second_doors(s, found),
    "limit-except-login" |s, _, found| writers_free(s, found),
    "path-decoded-passed" |s, _, found| for n in s.all("proxy_pass") {
        let text = s.arg(n, 0);
        let path = named(text).into_iter().find(|(_, v)| ["uri", "document_uri"].contains(v));
        // Behind a question mark it is an argument.
        let before = |at: usize| text.get(..at).unwrap_or_default();
        if let Some((_, v)) = path.filter(|(at, _)| before(*at).contains("://") && !before(*at).contains('?')) {
            found(s.arg_span(n, 0), format!("${v} is decoded: %0D%0A in a path is the end of a line for the upstream"));
        }
    },
    "geo-proxy-any" |s, _, found| for n in s.all("geo") {
        let lines = s.nodes.get(n).and_then(|n| n.d.block.as_ref()).into_iter().flatten();
        for line in lines.filter(|line| line.name.text == b"proxy") {
            let wide = line.args.first().is_some_and(|a| matches!(&*a.text, b"0.0.0.0/0" | b"::/0"));
            if wide {
                found(line.name.span, "every client is a trusted proxy, and X-Forwarded-For is what it says".to_owned());
            }
        }
    },
    "proxy-protocol-plain" |s, _, found| for n in s.with_text("$proxy_protocol_addr") {
        let Some(server) = http_server(s, n) else { continue };
        let plain = s.children(Some(server), "listen").find(|l| !s.has(*l, "proxy_protocol"));
        let field = s.is(n, "proxy_set_header") || s.is(n, "fastcgi_param") || s.is(n, "uwsgi_param") || s.is(n, "grpc_set_header");
        if let Some(l) = plain.filter(|_| field && parameter(s, n, "if").is_none()) {
            found(s.span(n), format!("it is empty for clients of \"listen {}\"", s.text(l)));
        }
    },
}
