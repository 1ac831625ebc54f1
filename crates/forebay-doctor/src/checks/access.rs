//! Checks of access: who gets what.

use super::ask::{
    carried, children, http_server, http_servers, is_guarded, is_guarded_itself, is_local, is_wide, pass_of,
    refuses_all, serves,
};
use super::{Check, checks};
use crate::routes;
use crate::scene::Scene;
use crate::variables::{named, sources};
use forebay_conf::tree::Span;
use std::collections::HashSet;
use std::path::Path;

/// Names of folders that users write to.
const UPLOADS: [&str; 9] = [
    "upload",
    "media",
    "attachment",
    "avatar",
    "userfiles",
    "user_content",
    "usercontent",
    "user-content",
    "files",
];

/// Returns `true` if a directive is in a location whose name says that its files are not for everybody.
pub(super) fn is_of_secrets(s: &Scene<'_>, n: usize) -> bool {
    let words = ["backup", "private", "admin", "upload", "config", "log", "secret", "internal", "dump"];
    let prefix =
        s.parent(n).filter(|p| s.is(*p, "location")).and_then(|l| routes::prefix(s, l)).unwrap_or_default();
    prefix.to_ascii_lowercase().split('/').any(|part| words.iter().any(|w| part.starts_with(w)))
}

/// Returns `true` if a part of a path begins as folders for uploads do.
pub(crate) fn is_for_uploads(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    lower.split('/').any(|part| UPLOADS.iter().any(|u| part.starts_with(u)))
}

/// Directives that run scripts.
const RUNNERS: [&str; 3] = ["fastcgi_pass", "uwsgi_pass", "scgi_pass"];

/// Directives that show or change the state of the server.
const INTERFACES: [&str; 3] = ["api", "dashboard", "metrics"];

/// Returns `true` if a block hands requests to an interpreter.
fn runs(s: &Scene<'_>, block: usize) -> bool {
    RUNNERS.iter().any(|name| s.child(Some(block), name).is_some())
}

/// Returns `true` if a location for scripts makes sure that the script is there.
fn looks_first(s: &Scene<'_>, block: usize) -> bool {
    let tested = children(s, block, "if").any(|n| s.text(n).contains("-f"));
    let tried = s.effective(Some(block), "try_files").is_some_and(|n| s.arg(n, 0).contains("$"));
    tested || tried
}

/// Returns paths below a prefix that another location might take.
fn samples(prefix: &str) -> Vec<String> {
    let slash = if prefix.ends_with('/') { "" } else { "/" };
    [".php", ".html", ".css", ".js", ".jpg", ".png", ".json", ".txt", ".zip", ".pdf"]
        .iter()
        .map(|ending| format!("{prefix}{slash}x{ending}"))
        .collect()
}

/// Returns `true` if a location gives away what another one guards: it runs the scripts or serves the files there, or asks the same
/// upstream.
pub(crate) fn gives_the_same(s: &Scene<'_>, guarded: usize, taker: usize) -> bool {
    let pass = |block: usize| pass_of(s, block);
    let own = ["stub_status", "api", "metrics", "dashboard", "return", "empty_gif"];
    let root = |block: usize| s.effective(Some(block), "root").map(|n| s.arg(n, 0));
    if own.iter().any(|name| s.child(Some(guarded), name).is_some()) {
        return false;
    }
    match (pass(guarded), pass(taker)) {
        (None, None) => root(guarded) == root(taker) && s.child(Some(guarded), "alias").is_none(),
        (None, Some(_)) => true,
        (Some(own), Some(other)) => own == other,
        (Some(_), None) => false,
    }
}

/// Returns a path below a guarded location that another location takes, which lets everybody in.
fn bypass(s: &Scene<'_>, server: usize, location: usize) -> Option<(String, usize)> {
    let prefix = routes::prefix(s, location)?;
    samples(prefix).into_iter().find_map(|path| {
        let taker = routes::chosen(s, server, &path);
        let elsewhere = !s.is_within(taker, location) && s.is(taker, "location");
        let open = elsewhere && !is_guarded(s, Some(taker)) && s.child(Some(taker), "return").is_none();
        (open && gives_the_same(s, location, taker)).then_some((path, taker))
    })
}

/// Hidden files: what a pattern about them names, and a path that it should catch.
const HIDDEN: [(&str, &str); 5] = [
    (".git", "/.git/config"),
    (".svn", "/.svn/entries"),
    (".env", "/.env"),
    (".ht", "/.htpasswd"),
    (".hg", "/.hg/store"),
];

/// Returns the hidden files that a location is about.
fn hidden(text: &str) -> Vec<&'static str> {
    // Pages are no hidden files.
    let plain = text.replace(['\\', '[', ']'], "").replace(".html", "").replace(".htm", "");
    let is_about = |name: &str| {
        let bare = name.trim_start_matches('.');
        plain.contains(name) || (plain.contains("/.(") || plain.contains(".(")) && plain.contains(bare)
    };
    HIDDEN.iter().filter(|(name, _)| is_about(name)).map(|(_, path)| *path).collect()
}

/// Reports locations that are to hide files and do not.
fn missed(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s) {
        let refusing = s.named_inside(server, "location").filter(|n| refuses_all(s, *n));
        for n in refusing {
            let text = s.text(n);
            let open = hidden(&text).into_iter().find(|path| {
                let taker = routes::chosen(s, server, path);
                let is_exact = s.is(taker, "location") && s.arg(taker, 0) == "=";
                !refuses_all(s, taker) && !is_guarded(s, Some(taker)) && !is_exact
            });
            if let Some(path) = open {
                found(s.span(n), format!("{path} is not refused by this"));
            }
        }
    }
}

/// Returns the path that a rewrite with `last` makes, with plain text for its captures; `None` if other variables are in it.
pub(super) fn rewritten(s: &Scene<'_>, n: usize) -> Option<String> {
    let target = s.arg(n, 1);
    let mut path = target.split('?').next()?.to_owned();
    for (_, name) in named(target) {
        let number = name.bytes().all(|b| b.is_ascii_digit());
        path = if number { path.replace(&format!("${name}"), "x") } else { return None };
    }
    path.starts_with('/').then_some(path)
}

/// Reports rewrites in a location whose result comes to the same location and is rewritten again.
fn loops(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("rewrite").filter(|n| !matches!(s.arg(*n, 2), "break" | "redirect" | "permanent")) {
        let Some(location) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let (Some(path), Some(server)) = (rewritten(s, n), http_server(s, n)) else { continue };
        let again = forebay_core::pattern::matcher(s.arg(n, 0).as_bytes(), false)
            .is_some_and(|p| p.is_match(path.as_bytes()).unwrap_or(false));
        let first = s.level(Some(location)).iter().find(|c| s.is(**c, "rewrite") || s.is(**c, "return"));
        if again && first == Some(&n) && routes::chosen(s, server, &path) == location {
            found(s.span(n), format!("{path} is rewritten by the same line again"));
        }
    }
}

/// Returns `true` if a URL leads back to the server block of the redirect.
fn leads_here(s: &Scene<'_>, server: usize, url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let host = rest.split(['/', '$']).next().unwrap_or_default();
    let host = if host.is_empty() { rest.split('/').next().unwrap_or_default() } else { host };
    let own = ["$host", "$http_host", "$server_name"]
        .iter()
        .any(|v| rest.starts_with(v) && !rest.starts_with("$host."));
    let named = children(s, server, "server_name").flat_map(|n| s.args(n)).any(|name| name == host);
    let listens: Vec<usize> = children(s, server, "listen").collect();
    let is_tls = |l: &usize| s.args(*l).iter().any(|a| a == "ssl" || a == "quic");
    let spoken = match scheme {
        "https" => listens.iter().any(is_tls),
        "http" => listens.iter().any(|l| !is_tls(l)) || listens.is_empty(),
        "$scheme" => true,
        _ => false,
    };
    let port_is_usual = !rest.split('/').next().unwrap_or_default().contains(':');
    spoken && (own || named) && port_is_usual
}

/// Returns `true` if a redirect keeps the path, so that the same one comes again.
fn keeps_path(url: &str) -> bool {
    url.ends_with("$request_uri")
        || url.ends_with("$uri")
        || url.ends_with("$uri$is_args$args")
        || url.ends_with("$1")
}

/// Returns the client's variable that decides where a redirect leads.
fn redirect_by_client(s: &Scene<'_>, n: usize, url: &str) -> Option<String> {
    let host = match url.split_once("://") {
        Some((_, rest)) => rest.split('/').next().unwrap_or_default(),
        None if url.starts_with("//") => url.trim_start_matches('/').split('/').next().unwrap_or_default(),
        None if url.starts_with('$') => url,
        None => return None,
    };
    let first = named(host).first().map(|(at, name)| (*at, (*name).to_owned()))?;
    let families = ["arg_", "cookie_", "http_"];
    let carried = carried(s, s.parent(n), &format!("${}", first.1));
    let whole = first.0 == 0;
    carried.into_iter().find(|v| {
        let own = families.iter().any(|f| v.starts_with(f)) && v != "http_host";
        whole && (own || (v.starts_with(|c: char| c.is_ascii_digit()) && url.contains("://$")))
    })
}

/// Returns `true` if a path is written down as a whole.
fn is_known_path(path: &str) -> bool {
    path.starts_with('/') && !path.contains('$')
}

/// Reports files that are inside of a folder that is served.
fn secrets_below_roots(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let kinds = [
        ("auth_basic_user_file", "passwords"),
        ("ssl_certificate_key", "a key"),
        ("access_log", "a log"),
        ("error_log", "a log"),
        ("ssl_password_file", "passwords"),
        ("client_body_temp_path", "bodies of requests"),
        ("proxy_temp_path", "responses to others"),
        ("fastcgi_temp_path", "responses to others"),
        ("uwsgi_temp_path", "responses to others"),
        ("scgi_temp_path", "responses to others"),
    ];
    let is_folder = |r: &usize| s.arg(*r, 0).len() > 1 && is_known_path(s.arg(*r, 0)) && serves(s, *r);
    let roots = ["root", "alias"].into_iter().flat_map(|name| s.all(name)).filter(is_folder);
    let folders: HashSet<&Path> = roots.map(|r| Path::new(s.arg(r, 0))).collect();
    for (name, what) in kinds {
        for n in s.all(name).filter(|n| is_known_path(s.arg(*n, 0))) {
            if Path::new(s.arg(n, 0)).ancestors().any(|folder| folders.contains(folder)) {
                found(s.arg_span(n, 0), format!("{what} in a folder that is served"));
            }
        }
    }
}

checks! { Check;
    "user-root" |s, _, found| for n in s.all("user").filter(|n| s.args(*n).iter().any(|a| matches!(&**a, "root" | "0"))) {
        found(s.arg_span(n, 0), "requests are handled by a process that may do everything".to_owned());
    },
    "uploads-run" |s, _, found| for server in http_servers(s) {
        for n in s.named_inside(server, "location") {
            let Some(prefix) = routes::prefix(s, n).filter(|p| is_for_uploads(p)) else { continue };
            let path = format!("{}/x.php", prefix.trim_end_matches('/'));
            let taker = routes::chosen(s, server, &path);
            // A script is run in the root of its own location.
            let root = |block| s.effective(Some(block), "root").map(|r| s.arg(r, 0));
            let is_alias = s.child(Some(n), "alias").is_some();
            if !runs(s, n) && runs(s, taker) && !is_alias && root(n) == root(taker) {
                found(s.span(n), format!("{path} is run, not sent"));
            }
        }
    },
    "php-any-file" |s, _, found| for n in s.all("fastcgi_pass") {
        let Some(location) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let php = routes::pattern(s, location).is_some_and(|p| p.contains(".php") && (p.ends_with("php$") || p.ends_with("php") || p.ends_with("php(/|$)") && !p.starts_with("^/")));
        // An included file may hold the test.
        if php && !looks_first(s, location) && !s.is_partial() {
            found(s.span(location), "/picture.jpg/x.php reaches the interpreter, which may run the picture".to_owned());
        }
    },
    "satisfy-any-open" |s, _, found| for n in s.all("satisfy").filter(|n| s.arg(*n, 0) == "any") {
        let open = |a: &usize| matches!(s.arg(*a, 0), "all" | "0.0.0.0/0" | "::/0");
        let rules: Vec<usize> = s.effective(s.parent(n), "allow").map(|a| children(s, s.parent(a).unwrap_or(0), "allow").collect()).unwrap_or_default();
        if rules.iter().any(open) {
            found(s.span(n), "every address satisfies it, so nobody is asked for more".to_owned());
        }
    },
    "satisfy-any" |s, _, found| for n in s.all("satisfy").filter(|n| s.arg(*n, 0) == "any") {
        let block = s.parent(n);
        let auth = ["auth_basic", "auth_request", "auth_jwt"].iter().any(|d| s.effective(block, d).is_some());
        if auth && s.effective(block, "allow").is_some() {
            found(s.span(n), "whoever comes from an allowed address needs no password".to_owned());
        }
    },
    "dav-open" |s, _, found| for n in s.all("dav_methods").filter(|n| s.arg(*n, 0) != "off") {
        if !is_guarded(s, s.parent(n)) && !s.around(n, "server").is_some_and(|b| is_local(s, b)) {
            found(s.span(n), format!("everybody may {}", s.args(n).join(", ")));
        }
    },
    "interface-open" |s, _, found| for name in INTERFACES {
        for n in s.all(name).filter(|n| s.around(*n, "server").is_some() && s.arg(*n, 0) != "off") {
            if !is_guarded(s, s.parent(n)) && !s.around(n, "server").is_some_and(|b| is_local(s, b)) {
                let writes = s.has(n, "write=on");
                found(s.span(n), if writes { "everybody may change the upstreams".to_owned() } else { format!("everybody may see what \"{name}\" shows") });
            }
        }
    },
    "dot-files-missed" |s, _, found| missed(s, found),
    "alias-pattern" |s, _, found| for n in s.all("alias") {
        let Some(pattern) = s.parent(n).filter(|p| s.is(*p, "location")).and_then(|l| routes::pattern(s, l)) else { continue };
        if named(s.arg(n, 0)).is_empty() {
            found(s.span(n), format!("every path that matches {pattern} is the same file"));
        }
    },
    "alias-glued" |s, _, found| for n in s.all("alias") {
        let prefix = s.parent(n).filter(|p| s.is(*p, "location")).and_then(|l| routes::prefix(s, l));
        let alias = s.arg(n, 0);
        if let Some(prefix) = prefix.filter(|p| p.ends_with('/') && p.len() > 1 && !alias.ends_with('/') && !alias.contains('$')) {
            found(s.arg_span(n, 0), format!("{prefix}x is looked for at {alias}x"));
        }
    },
    "root-doubled" |s, _, found| for n in s.all("root") {
        let prefix = s.parent(n).filter(|p| s.is(*p, "location")).and_then(|l| routes::prefix(s, l));
        let (Some(prefix), root) = (prefix, s.arg(n, 0)) else { continue };
        let bare = prefix.trim_end_matches('/');
        if bare.len() > 1 && root.trim_end_matches('/').ends_with(bare) && s.child(s.parent(n), "rewrite").is_none() {
            found(s.arg_span(n, 0), format!("{bare}/x is looked for at {}{bare}/x", root.trim_end_matches('/')));
        }
    },
    "guard-bypassed" |s, _, found| for server in http_servers(s) {
        for n in s.named_inside(server, "location").filter(|n| is_guarded_itself(s, *n)) {
            if let Some((path, taker)) = bypass(s, server, n) {
                found(s.span(n), format!("{path} is taken by \"location {}\", where nobody is refused", s.text(taker)));
            }
        }
    },
    "rewrite-loop" |s, _, found| loops(s, found),
    "redirect-loop" |s, _, found| for n in s.all("return").filter(|n| s.arg(*n, 0).starts_with('3')) {
        let Some(server) = s.parent(n) else { continue };
        let here = if s.is(server, "server") { Some(server) } else {
            s.parent(server).filter(|_| s.is(server, "location") && s.args(server) == ["/"]).filter(|p| s.is(*p, "server"))
        };
        let url = s.arg(n, 1);
        if here.is_some_and(|server| leads_here(s, server, url)) && keeps_path(url) {
            found(s.arg_span(n, 1), "it leads to the server that it stands in".to_owned());
        }
    },
    "location-unreachable" |s, _, found| for server in http_servers(s) {
        for n in s.named_inside(server, "location") {
            if let Some((path, taker)) = routes::shadow(s, server, n) {
                found(s.span(n), format!("{path} is taken by \"location {}\" already", s.text(taker)));
            }
        }
    },
    "name-unanchored" |s, _, found| for n in s.all("server_name") {
        for (i, name) in s.args(n).iter().enumerate().filter(|(_, a)| a.starts_with('~')) {
            if !name.contains('^') || !name.ends_with('$') {
                found(s.arg_span(n, i), "names that only contain it are taken, too".to_owned());
            }
        }
    },
    "autoindex-wide" |s, _, found| for n in s.all("autoindex").filter(|n| s.arg(*n, 0) == "on" && (is_wide(s, *n) || is_of_secrets(s, *n))) {
        if !is_guarded(s, s.parent(n)) {
            found(s.span(n), "every folder without an index shows what it has".to_owned());
        }
    },
    "access-order" |s, _, found| for name in ["allow", "deny"] {
        for n in s.all(name).filter(|n| s.arg(*n, 0) == "all") {
            let level = s.level(s.parent(n));
            let later = level.iter().skip_while(|c| **c != n).skip(1).find(|c| s.is(**c, "allow") || s.is(**c, "deny"));
            if let Some(later) = later {
                found(s.span(*later), format!("\"{name} all\" before it has decided already"));
            }
        }
    },
    "auth-without-file" |s, _, found| for n in s.all("auth_basic").filter(|n| s.arg(*n, 0) != "off") {
        let has_file = |b: Option<usize>| s.effective(b, "auth_basic_user_file").is_some();
        let below = s.parent(n).is_some_and(|p| s.named_inside(p, "auth_basic_user_file").next().is_some());
        if !has_file(s.parent(n)) && !below {
            found(s.span(n), "without auth_basic_user_file nobody is asked for a password".to_owned());
        }
    },
    "secure-link-unchecked" |s, _, found| {
        // $secure_link, not $secure_link_expires.
        let used = |c: &usize| s.args(*c).iter().any(|a| named(a).iter().any(|(_, v)| *v == "secure_link"));
        let looks: Vec<usize> = s.with_text("secure_link").filter(used).collect();
        // A table is asked wherever its own variable is used.
        let is_table = looks.iter().any(|c| s.around(*c, "server").is_none());
        for n in s.all("secure_link").chain(s.all("secure_link_secret")).filter(|_| !s.is_partial() && !is_table) {
            let here = |c: &usize| s.parent(n).is_some_and(|block| s.is_within(*c, block));
            if !looks.iter().any(here) {
                found(s.span(n), "nothing looks at $secure_link, so every link is served".to_owned());
            }
        }
    },
    "merge-slashes-off" |s, _, found| for n in s.all("merge_slashes").filter(|n| s.arg(*n, 0) == "off") {
        found(s.span(n), "//admin is not taken by \"location /admin\"".to_owned());
    },
    "httpoxy" |s, _, found| {
        for n in ["fastcgi_param", "uwsgi_param", "scgi_param"].into_iter().flat_map(|name| s.all(name)) {
            if s.arg(n, 0).eq_ignore_ascii_case("http_proxy") && !s.arg(n, 1).is_empty() {
                found(s.span(n), "the client chooses the proxy of the application".to_owned());
            }
        }
        for n in s.all("proxy_set_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("proxy") && !s.arg(*n, 1).is_empty()) {
            found(s.span(n), "the client chooses the proxy of the application".to_owned());
        }
    },
    "open-redirect" |s, _, found| {
        for n in s.all("return").filter(|n| s.arg(*n, 0).starts_with('3') || s.args(*n).len() == 1) {
            let at = s.args(n).len().saturating_sub(1);
            if let Some(v) = redirect_by_client(s, n, s.arg(n, at)) {
                found(s.arg_span(n, at), format!("${v} decides where people are sent"));
            }
        }
        for n in s.all("rewrite") {
            let url = s.arg(n, 1);
            let moved = url.contains("://") || url.starts_with('$') || matches!(s.arg(n, 2), "redirect" | "permanent");
            if let Some(v) = redirect_by_client(s, n, url).filter(|_| moved && !url.starts_with("$1")) {
                found(s.arg_span(n, 1), format!("${v} decides where people are sent"));
            }
        }
    },
    "secret-below-root" |s, _, found| secrets_below_roots(s, found),
    "plain-password" |s, _, found| for n in s.all("auth_basic").filter(|n| s.arg(*n, 0) != "off") {
        let Some(server) = http_server(s, n) else { continue };
        let mut listens = children(s, server, "listen").peekable();
        let plain = |l: usize| !s.args(l).iter().any(|a| a == "ssl" || a == "quic" || a == "proxy_protocol") && !s.arg(l, 0).ends_with("443");
        let legacy = s.effective(Some(server), "ssl").is_some();
        if listens.peek().is_some() && listens.all(plain) && !legacy && !is_local(s, server) {
            found(s.span(n), "passwords come in the clear".to_owned());
        }
    },
    "purge-open" |s, _, found| for name in ["proxy_cache_purge", "fastcgi_cache_purge", "uwsgi_cache_purge", "scgi_cache_purge"] {
        for n in s.all(name) {
            let by = sources(s, s.parent(n), &s.text(n));
            let addresses = ["remote_addr", "binary_remote_addr", "realip_remote_addr", "ssl_client_verify", "http_authorization"];
            let geo = s.all("geo").any(|g| by.iter().any(|v| s.args(g).last().is_some_and(|w| w.trim_start_matches('$') == v)));
            if !geo && !by.iter().any(|v| addresses.contains(&v.as_str())) && !is_guarded(s, s.parent(n)) {
                found(s.span(n), "everybody may empty the cache".to_owned());
            }
        }
    },
}
