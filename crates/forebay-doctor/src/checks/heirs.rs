//! Checks of what inner blocks have from outer ones and what they have not, where somebody relies on it.

use super::ask::{http_server, http_servers, is_guarded_itself, pass_of, refuses_all};
use super::detours::{is_closed, is_who};
use super::doors::{has_lock, has_word};
use super::patterns::{conditions, lines};
use super::{Check, checks};
use crate::routes;
use crate::scene::Scene;
use forebay_conf::tree::Span;

/// Endings of files that are no secret in themselves.
const ASSETS: [&str; 6] = ["css", "js", "png", "jpg", "svg", "woff"];

/// Returns `true` if a location is about files that belong to pages.
fn is_of_assets(s: &Scene<'_>, location: usize) -> bool {
    routes::pattern(s, location).is_some_and(|p| ASSETS.iter().any(|ending| p.contains(ending)))
}

/// Returns `true` if a location answers with what it has: it passes requests on or sends files.
fn gives(s: &Scene<'_>, location: usize) -> bool {
    let ends = ["return", "internal", "stub_status", "rewrite"];
    !ends.iter().any(|name| s.child(Some(location), name).is_some()) && !refuses_all(s, location)
}

/// Reports conditions of a location that those inside of it do not have.
fn conditions_left(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for c in conditions(s).filter(|c| is_who(&c.variable) && c.refuses(s)) {
        let Some(outer) = s.parent(c.node).filter(|p| s.is(*p, "location")) else { continue };
        for l in s.children(Some(outer), "location") {
            let asks =
                s.child(Some(l), "if").is_some() || has_lock(s, l) || s.child(Some(l), "include").is_some();
            if !asks && gives(s, l) && !is_of_assets(s, l) {
                found(
                    s.span(l),
                    format!(
                        "the \"if\" of \"location {}\" is not asked here: who is refused there gets in",
                        s.text(outer)
                    ),
                );
            }
        }
    }
}

/// Reports guards of methods that the locations inside do not have.
fn methods_left(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("limit_except").filter(|n| is_guarded_itself(s, *n)) {
        let Some(outer) = s.parent(n) else { continue };
        for l in s.children(Some(outer), "location") {
            let writes = pass_of(s, l).is_some()
                || s.effective(Some(l), "dav_methods").is_some_and(|d| s.arg(d, 0) != "off");
            let own = s.child(Some(l), "limit_except").is_some() || has_lock(s, l) || is_of_assets(s, l);
            if writes && !own && gives(s, l) {
                found(
                    s.span(l),
                    format!(
                        "the limit_except of \"location {}\" does not hold here: all methods are free",
                        s.text(outer)
                    ),
                );
            }
        }
    }
}

/// Directives that give a location something to answer with.
const HANDLERS: [&str; 12] = [
    "return",
    "root",
    "alias",
    "try_files",
    "internal",
    "stub_status",
    "rewrite",
    "if",
    "empty_gif",
    "deny",
    "include",
    "api",
];

/// Reports locations inside of one that passes requests on, which do not.
fn passes_left(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for l in s.all("location") {
        let Some(outer) = s.parent(l).filter(|p| s.is(*p, "location")) else { continue };
        let Some(pass) = pass_of(s, outer) else { continue };
        let other = HANDLERS.iter().any(|name| s.child(Some(l), name).is_some());
        let has_inner =
            s.child(Some(l), "location").is_some() || s.child(Some(l), "memcached_pass").is_some();
        let rooted = s.effective(Some(l), "root").is_some();
        if pass_of(s, l).is_none() && !other && !has_inner && !rooted {
            found(
                s.span(l),
                format!("requests do not go to {pass} here, but are looked for as files, and are not found"),
            );
        }
    }
}

/// Returns the first words of the lines of a list on one level.
fn entries<'s>(s: &'s Scene<'_>, block: Option<usize>, name: &str) -> Vec<&'s str> {
    s.children(block, name).map(|n| s.arg(n, 0)).collect()
}

/// Reports lists that an inner level has in place of the outer one. `name`: the directive, of which each line is one entry.
fn list_left(s: &Scene<'_>, name: &str, found: &mut dyn FnMut(Span, Vec<&str>)) {
    for n in s.all(name).filter(|n| s.child(s.parent(*n), name) == Some(*n)) {
        let Some(block) = s.parent(n) else { continue };
        let Some(outer) = s.effective(s.parent(block), name) else { continue };
        let own = entries(s, Some(block), name);
        let mut lost = entries(s, s.parent(outer), name);
        lost.retain(|field| !own.iter().any(|o| o.eq_ignore_ascii_case(field)));
        if !lost.is_empty() {
            found(s.span(n), lost);
        }
    }
}

/// Returns the codes of the pages for errors on one level.
fn codes<'s>(s: &'s Scene<'_>, block: Option<usize>) -> Vec<&'s str> {
    let all = s.children(block, "error_page").flat_map(|n| s.args(n));
    all.map(|a| &**a).filter(|a| a.len() == 3 && a.bytes().all(|b| b.is_ascii_digit())).collect()
}

/// Reports pages for errors that a location with one of its own does not have.
fn pages_left(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("error_page").filter(|n| s.child(s.parent(*n), "error_page") == Some(*n)) {
        let Some(block) = s.parent(n).filter(|b| s.is(*b, "location") && pass_of(s, *b).is_some()) else {
            continue;
        };
        let Some(outer) = s.effective(s.parent(block), "error_page") else { continue };
        let own = codes(s, Some(block));
        let mut lost = codes(s, s.parent(outer));
        lost.retain(|code| code.starts_with('5') && !own.contains(code));
        if lost.contains(&"502") || lost.contains(&"504") {
            found(s.span(n), format!("clients see the page of the server itself for {}", lost.join(", ")));
        }
    }
}

/// Words of paths below which a page finds its parts.
const PARTS: [&str; 8] = ["static", "assets", "dist", "build", "app", "js", "css", "public"];

/// Reports types in place of all inherited ones where pages are sent.
fn types_replaced(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("types") {
        let Some(block) = s.parent(n).filter(|b| s.is(*b, "server") || s.is(*b, "location")) else {
            continue;
        };
        let included = s.nodes.get(n).and_then(|n| n.d.block.as_ref()).into_iter();
        let included = included.flat_map(|b| b.items.iter()).any(|d| d.name.text == b"include");
        let endings: Vec<String> =
            lines(s, n).flat_map(|line| line.args.iter().map(|a| a.as_str().into_owned())).collect();
        // Without types all files are meant to be of the default one.
        let is_purpose = endings.is_empty() && s.effective(Some(block), "default_type").is_some();
        let known = ["html", "css", "js"].iter().any(|ending| endings.iter().any(|e| e == ending));
        let is_site = if s.is(block, "server") {
            s.effective(Some(block), "root").is_some()
        } else {
            let page = s.child(Some(block), "try_files").is_some_and(|t| s.last_arg(t).contains(".html"));
            s.args(block) == ["/"] || page || routes::prefix(s, block).is_some() && has_word(s, block, &PARTS)
        };
        if !included && !is_purpose && !known && is_site && pass_of(s, block).is_none() {
            let default = s.effective(Some(block), "default_type").map_or("text/plain", |d| s.arg(d, 0));
            found(
                s.span(n),
                format!("these are all types that are known here: css, js and html are sent as {default}"),
            );
        }
    }
}

/// Reports checks of `auth_request` that always say yes.
fn always_yes(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for &l in s.asked() {
        let answer = s.child(Some(l), "return").filter(|r| s.arg(*r, 0).starts_with('2'));
        let conditional = s.child(Some(l), "if").is_some() || s.child(Some(l), "rewrite").is_some();
        if let Some(answer) = answer.filter(|_| !conditional && http_server(s, l).is_some()) {
            found(
                s.span(answer),
                "auth_request lets in everybody for whom this answers, which is everybody".to_owned(),
            );
        }
    }
}

/// Reports guards of a location that a rewrite leaves before they are asked.
fn guards_left(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("rewrite").filter(|n| matches!(s.arg(*n, 2), "last" | "")) {
        let Some(l) = s.parent(n).filter(|p| s.is(*p, "location") && is_guarded_itself(s, *p)) else {
            continue;
        };
        let (Some(path), Some(server)) = (super::access::rewritten(s, n), http_server(s, n)) else {
            continue;
        };
        let taker = routes::chosen(s, server, &path);
        let is_kept = s.child(Some(l), "internal").is_some() || s.is_within(taker, l);
        let answers = s.child(Some(taker), "return").is_none() && !refuses_all(s, taker);
        if !is_kept && answers && s.is(taker, "location") && !is_closed(s, taker) && is_closed(s, l) {
            found(
                s.span(n),
                format!(
                    "the request goes on as {path} to \"location {}\" before anybody is asked, and there nobody is",
                    s.text(taker)
                ),
            );
        }
    }
}

/// Reports refusals in whose place a named location gives what was refused.
fn refusals_served(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("error_page").filter(|n| s.last_arg(*n).starts_with('@')) {
        let (Some(block), Some(server)) = (s.parent(n), http_server(s, n)) else { continue };
        if !s.has(n, "403") && !s.has(n, "401") {
            continue;
        }
        let named = s.children(Some(server), "location").find(|l| s.arg(*l, 0) == s.last_arg(n));
        let Some(named) = named.filter(|l| s.child(Some(*l), "rewrite").is_none() && !is_closed(s, *l))
        else {
            continue;
        };
        let Some(pass) = pass_of(s, named) else { continue };
        let is_refused = |l: usize| {
            let own = s.effective(Some(l), "error_page").is_some_and(|e| s.parent(e) == s.parent(n));
            own && has_lock(s, l) && pass_of(s, l) == Some(pass)
        };
        let inside = s.named_inside(block, "location").chain(s.is(block, "location").then_some(block));
        if let Some(l) = inside.into_iter().find(|l| is_refused(*l)) {
            found(
                s.span(n),
                format!("who is refused by \"location {}\" gets the answer of {pass} after all", s.text(l)),
            );
        }
    }
}

/// Reports guards of one script that the same script with a path behind its name does not have.
fn scripts_bypassed(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s) {
        for l in s.children(Some(server), "location").filter(|l| is_guarded_itself(s, *l)) {
            let text = s.text(l);
            let Some(script) = text.strip_prefix('=').map(str::trim).filter(|p| p.ends_with(".php")) else {
                continue;
            };
            let path = format!("{script}/x.php");
            let other = [format!("{script}/x"), path].into_iter().find(|path| {
                let taker = routes::chosen(s, server, path);
                let runs = s.child(Some(taker), "fastcgi_pass").is_some();
                let looks = s.effective(Some(taker), "try_files").is_some_and(|t| s.parent(t) == Some(taker))
                    || s.child(Some(taker), "if").is_some();
                runs && !looks && !is_closed(s, taker) && s.child(Some(taker), "include").is_none()
            });
            if let Some(path) = other {
                found(s.span(l), format!("{path} runs the same script, and nobody is asked"));
            }
        }
    }
}

checks! { Check;
    "condition-left" |s, _, found| conditions_left(s, found),
    "methods-left" |s, _, found| methods_left(s, found),
    "pass-left" |s, _, found| passes_left(s, found),
    "hidden-fields-left" |s, _, found| for name in ["proxy_hide_header", "fastcgi_hide_header"] {
        list_left(s, name, &mut |span, lost| found(span, format!("sent to clients again: {}", lost.join(", "))));
    },
    "error-pages-left" |s, _, found| pages_left(s, found),
    "types-replaced" |s, _, found| types_replaced(s, found),
    "auth-always" |s, _, found| always_yes(s, found),
    "guard-left-early" |s, _, found| guards_left(s, found),
    "refusal-served" |s, _, found| refusals_served(s, found),
    "script-with-path" |s, _, found| scripts_bypassed(s, found),
}
