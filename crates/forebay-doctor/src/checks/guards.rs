//! Checks of guards that something goes around.

use super::access::gives_the_same;
use super::ask::{children, http_servers, is_guarded, is_guarded_itself, pass_of};
use super::{Check, checks};
use crate::routes;
use crate::scene::Scene;
use forebay_conf::tree::Span;

/// Names of paths behind which somebody administers.
const ADMIN: [&str; 13] = [
    "actuator",
    "wp-admin",
    "phpmyadmin",
    "admin",
    "manage",
    "management",
    "manager",
    "console",
    "dashboard",
    "internal",
    "private",
    "debug",
    "backoffice",
];

/// Reports conditions about the raw address of a request that are to refuse a path.
fn raw_guards(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("if") {
        let words = s.text(n);
        let Some((_, rest)) = words.split_once("$request_uri") else { continue };
        let rest = rest.trim_start_matches(['}', '"', ' ']);
        let positive = rest.starts_with(['~', '=']);
        let pattern =
            rest.trim_start_matches(['~', '*', '=', ' ', '"', '\'']).trim_end_matches([')', ' ', '"', '\'']);
        let path = pattern.trim_start_matches(['^', '(']).trim_start_matches("?:");
        let first = path.strip_prefix('/').or_else(|| path.strip_prefix("\\."));
        let is_path = first.is_some_and(|p| p.starts_with(|c: char| c.is_ascii_alphabetic() || c == '('));
        let letter = path.bytes().find(u8::is_ascii_alphabetic).unwrap_or(b'a');
        let refused = children(s, n, "return").any(|r| ["401", "403", "404", "444"].contains(&s.arg(r, 0)));
        if positive && is_path && refused {
            found(
                s.span(n),
                format!("another form of the same path, with %{letter:02x} in it, goes around {pattern}"),
            );
        }
    }
}

/// Reports tables of raw addresses that decide who is refused.
fn raw_tables(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("map").filter(|n| s.arg(*n, 0).contains("$request_uri")) {
        let variable = s.arg(n, 1);
        let decides = |c: usize| {
            let refuses = s.is(c, "if") && children(s, c, "return").any(|r| s.arg(r, 0).starts_with('4'));
            refuses || s.is(c, "auth_basic")
        };
        let line = s.nodes.get(n).and_then(|n| n.d.block.as_ref()).into_iter().flatten().find(|e| {
            let key = e.name.as_str();
            let path = key.trim_start_matches(['~', '*', '^', '(']);
            path.strip_prefix('/').is_some_and(|p| p.starts_with(|c: char| c.is_ascii_alphabetic()))
        });
        if let Some(line) = line.filter(|_| s.with_text(variable).any(decides)) {
            let text = format!("another form of the same path goes around {}", line.name.as_str());
            found(line.name.span, text);
        }
    }
}

/// Reports guards of one exact path whose neighbours reach the same application.
fn exact_guards(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s) {
        for n in s
            .named_inside(server, "location")
            .filter(|n| is_guarded_itself(s, *n) && s.child(Some(*n), "internal").is_none())
        {
            let text = s.text(n);
            let pattern = routes::pattern(s, n).filter(|p| {
                p.starts_with("^/")
                    && p.ends_with('$')
                    && p.trim_end_matches('$')
                        .bytes()
                        .skip(2)
                        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'-' | b'_'))
            });
            let exact = text
                .strip_prefix('=')
                .map(|p| p.trim().to_owned())
                .filter(|p| ADMIN.contains(&p.trim_matches('/')));
            let Some(path) = pattern.map(|p| p.trim_matches(['^', '$']).to_owned()).or(exact) else {
                continue;
            };
            let bare = path.trim_end_matches('/');
            let open = [format!("{bare}/"), format!("{bare}/x")].into_iter().find(|other| {
                let taker = routes::chosen(s, server, other);
                let same = *other != path && taker != n && pass_of(s, taker).is_some();
                same && gives_the_same(s, n, taker) && !is_guarded(s, Some(taker))
            });
            if let Some(other) = open {
                found(s.span(n), format!("{other} reaches the same application, and is open"));
            }
        }
    }
}

/// Reports locations inside of guarded patterns that end the search before the pattern.
fn final_prefixes(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s) {
        let guarded: Vec<usize> =
            s.named_inside(server, "location").filter(|n| is_guarded_itself(s, *n)).collect();
        for n in s.named_inside(server, "location").filter(|n| s.arg(*n, 0) == "^~") {
            let path = s.arg(n, 1);
            let taken = guarded.iter().find(|g| {
                let plain = routes::pattern(s, **g).filter(|p| !p.contains("\\.") && !p.contains('['));
                plain
                    .and_then(|p| s.pattern(&p, true))
                    .is_some_and(|p| p.is_match(path.as_bytes()).unwrap_or(false))
            });
            if let Some(g) = taken.filter(|_| pass_of(s, n).is_some() && !is_guarded(s, Some(n))) {
                found(
                    s.span(n),
                    format!("it is taken before \"location {}\", which guards {path}", s.text(*g)),
                );
            }
        }
    }
}

checks! { Check;
    "raw-path-guard" |s, _, found| {
        raw_guards(s, found);
        raw_tables(s, found);
    },
    "guard-exact" |s, _, found| exact_guards(s, found),
    "guard-after-prefix" |s, _, found| final_prefixes(s, found),
}
