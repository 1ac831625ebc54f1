//! Checks of the ways of requests: redirects, rewrites, and pages in the place of files.

use super::ask::{children, http_server, pass_of};
use super::{Check, checks};
use crate::routes;
use crate::scene::Scene;
use crate::variables::named;
use forebay_conf::tree::Span;

/// Parts of paths of files that belong to pages.
const ASSETS: [&str; 8] = ["assets", "static", "css", "js", "images", "img", "fonts", "dist"];

/// Reports files of pages in whose place a page is sent.
fn pages_for_files(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("try_files") {
        let Some(location) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let path = s.last_arg(location).replace('\\', "");
        let plain: Vec<&str> =
            path.split(['/', '|', '(', ')', '.', '$', '^', '?', ':']).filter(|p| !p.is_empty()).collect();
        let last = s.last_arg(n);
        // An application behind index.php can answer 404 itself.
        let page = last == "/index.html" || last == "/index.htm" || last == "=200";
        let assets = plain.first().is_some_and(|p| ASSETS.contains(p))
            && plain.iter().all(|p| ASSETS.contains(p) || p.len() < 6);
        if assets && page {
            found(s.span(n), format!("a script or picture that is missing is answered with {last}"));
        } else if last == "=200" {
            found(s.span(n), "what is missing is answered with an empty page".to_owned());
        }
    }
}

/// Returns the path of a redirect that stays on the site.
fn local_path(s: &Scene<'_>, server: usize, url: &str) -> Option<String> {
    let path = match url.split_once("://") {
        None => url.to_owned(),
        Some((_, rest)) => {
            let (host, path) = rest.split_once('/')?;
            let named = || children(s, server, "server_name").any(|n| s.args(n).iter().any(|a| a == host));
            (["$host", "$http_host", "$server_name"].contains(&host) || named())
                .then(|| format!("/{path}"))?
        }
    };
    path.starts_with('/').then(|| path.split('?').next().unwrap_or_default().to_owned())
}

/// Returns a path with its variables filled in.
fn filled(path: &str, uri: &str) -> String {
    let mut out = path.to_owned();
    for name in ["${request_uri}", "$request_uri", "$uri", "$document_uri"] {
        out = out.replace(name, uri);
    }
    for (_, name) in named(path) {
        out = out.replace(&format!("${name}"), "x").replace(&format!("${{{name}}}"), "x");
    }
    out.replace("//", "/")
}

/// Returns `true` if the scheme changes on the way, so that another server answers.
fn changes_scheme(s: &Scene<'_>, server: usize, url: &str) -> bool {
    let tls = super::secrecy::speaks_tls(s, server);
    let plain = children(s, server, "listen")
        .any(|l| !super::ask::has(s, l, "ssl") && !super::ask::has(s, l, "quic"));
    url.starts_with("https://") && (!tls || plain) || url.starts_with("http://") && tls
}

/// Reports redirects that the location where they stand answers again.
fn circles(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("return").filter(|n| ["301", "302", "303", "307", "308"].contains(&s.arg(*n, 0))) {
        let Some(location) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let (Some(server), url) = (http_server(s, n), s.arg(n, 1)) else { continue };
        // A condition before it may end the circle.
        let conditional = s.child(Some(location), "if").is_some() || s.args(location) == ["/"];
        let prefix = routes::prefix(s, location).unwrap_or_else(|| s.last_arg(location));
        let Some(path) = local_path(s, server, url).map(|p| filled(&p, prefix)) else { continue };
        if !conditional && !changes_scheme(s, server, url) && routes::chosen(s, server, &path) == location {
            found(
                s.arg_span(n, 1),
                format!("{path} is taken by the same location, and is redirected for ever"),
            );
        }
    }
}

/// Reports redirects in a location that takes other words with the same beginning, too.
fn loose_redirects(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("return").filter(|n| s.arg(*n, 0) == "301" || s.arg(*n, 0) == "308") {
        let Some(location) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let prefix = routes::prefix(s, location).filter(|p| p.len() > 1 && !p.ends_with('/'));
        let word = |p: &&str| {
            p.rsplit('/').next().is_some_and(|w| w.len() < 12 && w.bytes().all(|b| b.is_ascii_alphabetic()))
        };
        // A slash at the end is what is meant.
        let slash = |p: &&str| s.arg(n, 1).split('?').next().is_some_and(|u| u.ends_with(&format!("{p}/")));
        // A redirect that keeps the path leads to the right page.
        let keeps = s.arg(n, 1).contains("$request_uri") || s.arg(n, 1).contains("$uri");
        if let Some(prefix) = prefix.filter(|p| word(p) && !slash(p) && !keeps) {
            found(s.span(location), format!("{prefix}er and {prefix}-x are redirected, too"));
        }
    }
}

/// Reports rewrites after which another location answers than the one that passes the request on.
fn leaving_rewrites(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("rewrite").filter(|n| s.arg(*n, 2).is_empty()) {
        let Some(location) = s.parent(n).filter(|p| s.is(*p, "location") && pass_of(s, *p).is_some()) else {
            continue;
        };
        let (Some(server), target) = (http_server(s, n), s.arg(n, 1)) else { continue };
        let path = target.split('?').next().unwrap_or_default();
        let taker = routes::chosen(s, server, &filled(path, "/x"));
        // A rewrite of the location's own path. Others go to another location on purpose.
        // By its pattern a location takes some paths, and all of them are rewritten.
        let own = routes::prefix(s, location).filter(|p| p.len() > 1);
        let is_own = routes::pattern(s, location).is_some()
            || own.is_some_and(|p| s.arg(n, 0).trim_start_matches('^').starts_with(p));
        if path.starts_with('/') && taker != location && is_own {
            let name = if s.is(taker, "server") {
                "the server".to_owned()
            } else {
                format!("\"location {}\"", s.args(taker).join(" "))
            };
            found(s.span(n), format!("without \"break\" a location is looked for again, and {name} answers"));
        }
    }
}

/// Reports patterns that are meant as prefixes, and that take such a word anywhere in a path.
fn floating_prefixes(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("location") {
        let Some(pattern) = routes::pattern(s, n) else { continue };
        let rest = pattern.trim_start_matches("(?i)").strip_prefix('/').unwrap_or_default();
        let word = rest.trim_start_matches(['(', '?', ':']);
        let plain = word.starts_with(|c: char| c.is_ascii_alphabetic())
            && !rest.contains("\\.")
            && !rest.ends_with('$');
        if plain && pass_of(s, n).is_some() {
            found(s.span(n), format!("/any/where{pattern} is taken, too, and before all prefixes"));
        }
    }
}

checks! { Check;
    "missing-as-200" |s, _, found| for n in s.all("error_page") {
        let args = s.args(n);
        let last = args.last().cloned().unwrap_or_default();
        let missing = args.iter().any(|a| a == "404" || a == "410");
        // Pages that choose their content in the browser have one file for all addresses.
        let app = last.starts_with('@') || last.starts_with("/index.") || last == "/";
        if missing && args.iter().any(|a| a == "=200") && !app {
            found(s.span(n), "search engines and caches keep what is not there".to_owned());
        }
    },
    "asset-as-page" |s, _, found| pages_for_files(s, found),
    "redirect-circle" |s, _, found| circles(s, found),
    "redirect-prefix" |s, _, found| loose_redirects(s, found),
    "rewrite-leaves" |s, _, found| leaving_rewrites(s, found),
    "pattern-floating" |s, _, found| floating_prefixes(s, found),
    "if-file" |s, _, found| for n in s.all("if") {
        let earlier = s.level(s.parent(n)).iter().take_while(|c| **c != n).any(|c| s.is(*c, "if") && s.args(*c).iter().any(|a| a.contains("-f") || a.contains("-e") || a.contains("-d")));
        if earlier {
            continue;
        }
        let args = s.args(n);
        let words: Vec<&str> = args.iter().map(|a| a.trim_matches(['(', ')', '!', ' '])).filter(|a| !a.is_empty()).collect();
        let test = words.first().is_some_and(|w| ["-f", "-e", "-d"].contains(w));
        if test && s.child(Some(n), "rewrite").is_some() && s.around(n, "location").or(s.around(n, "server")).is_some() {
            found(s.span(n), "a look at the disk for each request, in a way that goes wrong beside other directives".to_owned());
        }
    },
}
