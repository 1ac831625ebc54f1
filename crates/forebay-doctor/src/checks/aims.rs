//! Checks of what directives aim at: locations that are not there, patterns that take all, fallbacks that are never reached.

use super::ask::{http_server, pass_of};
use super::patterns::{conditions, lines};
use super::{Check, checks};
use crate::routes;
use crate::scene::{Scene, Table};
use forebay_conf::tree::Span;
use std::collections::HashSet;

/// Directives that may send a request to a location with a name, which is their last word.
const NAMERS: [&str; 3] = ["error_page", "try_files", "post_action"];

/// Reports names of locations that their server does not have.
fn named_missing(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let mut known: Table<Option<usize>, HashSet<&str>> = Table::default();
    for l in s.all("location").filter(|l| s.arg(*l, 0).starts_with('@')) {
        known.entry(s.parent(l)).or_default().insert(s.arg(l, 0));
    }
    for n in NAMERS.into_iter().flat_map(|name| s.all(name)) {
        let name = s.last_arg(n);
        let Some(server) = http_server(s, n).filter(|_| name.starts_with('@') && !name.contains('$')) else {
            continue;
        };
        let there = known.get(&Some(server)).is_some_and(|names| names.contains(name));
        // A file that is not here may have it.
        let included = s.child(Some(server), "include").is_some();
        if !there && !included {
            found(
                s.arg_span(n, s.args(n).len().saturating_sub(1)),
                format!("no location of the server is called {name}"),
            );
        }
    }
}

/// Returns `true` if one alternative of a pattern is empty.
fn has_empty_alternative(pattern: &str) -> bool {
    let bare = pattern.trim_start_matches('^').trim_end_matches('$');
    let escaped = bare.replace("\\|", "").replace("\\(", "").replace("\\)", "");
    let in_class = escaped.contains('[');
    let empty = ["||", "(|", "|)", "(?:|"].iter().any(|w| escaped.contains(w));
    !in_class && (empty || escaped.starts_with('|') || escaped.ends_with('|'))
}

/// Returns `true` if a pattern takes all texts because one of its alternatives is empty.
fn takes_all(s: &Scene<'_>, pattern: &str) -> bool {
    let texts = ["", "/", "Mozilla/5.0 q", "~"];
    has_empty_alternative(pattern)
        && s.pattern(pattern, true)
            .is_some_and(|p| texts.iter().all(|t| p.is_match(t.as_bytes()).unwrap_or(false)))
}

/// Reports patterns with an empty alternative, which take all.
fn empty_alternatives(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let text = |pattern: &str| format!("an alternative of {pattern} is empty, so everything fits");
    for c in conditions(s).filter(|c| c.operator.contains('~') && takes_all(s, &c.value)) {
        found(s.span(c.node), text(&c.value));
    }
    for l in s.all("location") {
        if let Some(p) = routes::pattern(s, l).filter(|p| takes_all(s, p)) {
            found(s.span(l), text(&p));
        }
    }
    for n in s.all("map") {
        for e in lines(s, n) {
            let key = e.name.as_str();
            let Some(pattern) = key.strip_prefix('~').map(|k| k.trim_start_matches('*')) else { continue };
            if takes_all(s, pattern) {
                found(e.name.span, text(pattern));
            }
        }
    }
}

/// Reports an application that loses its arguments by its own fallback.
fn arguments_lost(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("try_files") {
        let args = s.args(n);
        let Some((last, before)) = args.split_last() else { continue };
        let script = last.starts_with('/') && last.ends_with(".php") && !last.contains('$');
        let front = ["/index.php", "/app.php", "/public/index.php"].contains(&&**last)
            || last.ends_with("/index.php");
        let files = before.first().is_some_and(|f| f == "$uri");
        // Some applications take the address itself.
        let l = s.parent(n).filter(|p| s.is(*p, "location") && pass_of(s, *p).is_none());
        let own = l.is_some_and(|l| routes::prefix(s, l).is_some_and(|p| p.ends_with('/')));
        let runs = http_server(s, n).is_some_and(|b| s.named_inside(b, "fastcgi_pass").next().is_some());
        if script && front && files && own && runs {
            found(
                s.arg_span(n, args.len().saturating_sub(1)),
                format!("{last} gets no arguments: /search?q=1 becomes {last} alone"),
            );
        }
    }
}

/// Reports files of `try_files` that are always there, before other ones.
fn never_tried(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("try_files") {
        let args = s.args(n);
        let Some((last, before)) = args.split_last() else { continue };
        let fixed = before.iter().position(|a| a.ends_with("/index.html") && !a.contains('$'));
        let tried = before.first().is_some_and(|f| f.contains("$uri"));
        let serves = s.parent(n).is_some_and(|p| pass_of(s, p).is_none());
        if let Some(at) = fixed.filter(|at| *at > 0 && tried && serves && last.starts_with('=')) {
            let text = format!("{} is always there, so \"{last}\" is never reached", s.arg(n, at));
            found(s.arg_span(n, at), text);
        }
    }
}

/// Reports rewrites of a whole server to the very same address.
fn rewritten_to_itself(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("rewrite") {
        let Some(block) = s.parent(n) else { continue };
        let whole = s.is(block, "server") || s.is(block, "location") && s.args(block) == ["/"];
        let Some(server) = http_server(s, n).filter(|_| whole) else { continue };
        let Some((scheme, rest)) = s.arg(n, 1).split_once("://") else { continue };
        let host = rest.split(['/', '$', '?']).next().unwrap_or_default();
        let path = rest.strip_prefix(host).unwrap_or_default().trim_end_matches('?');
        let all =
            ["^", ".*", "^.*$", "^.*", "^(.*)$", "^(.*)", "^/(.*)$", "(.*)", "^/(.*)"].contains(&s.arg(n, 0));
        let keeps = ["$request_uri", "$1", "/$1", "$uri"].contains(&path);
        let tls = |l: usize| s.has(l, "ssl") || s.has(l, "quic");
        let same_scheme = |l: usize| tls(l) == (scheme == "https");
        let mut listens = s.children(Some(server), "listen").peekable();
        let fits = listens.peek().is_some() && listens.all(same_scheme);
        let mut names = s.children(Some(server), "server_name").flat_map(|n| s.args(n));
        if all && keeps && fits && !host.is_empty() && names.any(|name| name == host) {
            found(s.arg_span(n, 1), format!("{scheme}://{host} is this server, which redirects again"));
        }
    }
}

checks! { Check;
    "named-missing" |s, _, found| named_missing(s, found),
    "alternative-empty" |s, _, found| empty_alternatives(s, found),
    "arguments-lost" |s, _, found| arguments_lost(s, found),
    "try-files-never" |s, _, found| never_tried(s, found),
    "rewrite-to-itself" |s, _, found| rewritten_to_itself(s, found),
}
