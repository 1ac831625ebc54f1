//! Checks of doors that stand open: insides without a guard, guards of a part only, links that anybody signs, locks without a door.

use super::ask::{http_server, is_guarded, is_local, is_wide, pass_of, serves};
use super::detours::is_closed;
use super::patterns::{Condition, conditions, lines};
use super::{Check, checks};
use crate::routes;
use crate::scene::Scene;
use crate::variables::named;
use forebay_conf::tree::Span;
use std::collections::HashSet;

/// Returns the words of a location's path, in small letters.
pub(super) fn words(s: &Scene<'_>, location: usize) -> Vec<String> {
    let path = s.last_arg(location).to_ascii_lowercase();
    let parts = path.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    parts.filter(|p| !p.is_empty()).map(str::to_owned).collect()
}

/// Returns `true` if a location's path has one of these words.
pub(super) fn has_word(s: &Scene<'_>, location: usize, list: &[&str]) -> bool {
    words(s, location).iter().any(|w| list.contains(&w.as_str()))
}

/// Returns `true` if a file that is included here could hold a guard.
fn may_be_guarded_elsewhere(s: &Scene<'_>, block: Option<usize>) -> bool {
    let mut at = block;
    while let Some(b) = at {
        let other = |n: usize| {
            let file = s.arg(n, 0);
            !["params", "mime.types", "fastcgi.conf", "fastcgi"].iter().any(|end| file.contains(end))
        };
        if s.children(Some(b), "include").any(other) {
            return true;
        }
        at = s.parent(b).filter(|p| !s.is(*p, "http"));
    }
    false
}

/// Returns `true` if strangers come to a server: it has a name or an address that others than the own network use.
pub(super) fn is_for_strangers(s: &Scene<'_>, server: usize) -> bool {
    const NEAR: [&str; 6] = ["10.", "192.168.", "172.", "127.", "unix:", "[::1]"];
    const OWN: [&str; 5] = [".local", ".internal", ".lan", ".intranet", ".test"];
    let mut names = s.children(Some(server), "server_name").flat_map(|n| s.args(n));
    let own =
        names.any(|n| n == "localhost" || n.starts_with("internal.") || OWN.iter().any(|o| n.ends_with(o)));
    let mut listens = s.children(Some(server), "listen").peekable();
    let near = |l: usize| NEAR.iter().any(|p| s.arg(l, 0).starts_with(p));
    let inner = listens.peek().is_some() && listens.all(near);
    !own && !inner && !is_local(s, server)
}

/// Returns `true` if everybody gets to what a location passes on.
fn is_open(s: &Scene<'_>, location: usize) -> bool {
    let server = http_server(s, location).filter(|b| is_for_strangers(s, *b));
    server.is_some() && !is_closed(s, location) && !may_be_guarded_elsewhere(s, Some(location))
}

/// Reports paths that are called internal and are for everybody.
fn open_insides(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    const INNER: [&str; 5] = ["internal", "_internal", "backoffice", "intern", "_private"];
    for l in s.all("location").filter(|l| pass_of(s, *l).is_some()) {
        let path = s.last_arg(l).trim_start_matches(['=', '^', '~', '*']);
        if !path.starts_with('/') {
            continue;
        }
        let inner = path.split('/').find(|p| INNER.contains(&p.to_ascii_lowercase().as_str()));
        // Conditions, and exceptions from a login, have rules of their own.
        let others = ["if", "valid_referers", "auth_basic", "auth_request", "auth_jwt"];
        let judged = others.iter().any(|name| s.child(Some(l), name).is_some());
        if let Some(word) = inner.filter(|_| !judged && is_open(s, l)) {
            found(s.span(l), format!("everybody reaches what is called {word}"));
        }
    }
}

/// Parts of addresses of Java programs that show all of them.
const WHOLE: [&str; 13] = [
    "actuator",
    "env",
    "heapdump",
    "threaddump",
    "beans",
    "configprops",
    "loggers",
    "shutdown",
    "mappings",
    "jolokia",
    "h2-console",
    "pprof",
    "server-status",
];

/// Reports insides of a program below a name that sounds harmless.
fn renamed_insides(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("proxy_pass") {
        let Some(l) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let url = s.arg(n, 0);
        let Some((_, path)) = url.split_once("://").and_then(|(_, rest)| rest.split_once('/')) else {
            continue;
        };
        let path = path.split('?').next().unwrap_or_default();
        let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let inside = WHOLE.contains(&last) && (last != "env" || path.contains("actuator"));
        // A location that has the name itself is told of by its name.
        let plain = s.last_arg(l).contains(last);
        let below = routes::prefix(s, l).is_some() || !["actuator", "pprof"].contains(&last);
        if inside && !plain && below && is_open(s, l) {
            found(s.arg_span(n, 0), format!("everybody reaches /{path} by the name {}", s.last_arg(l)));
        }
    }
}

/// Variables whose value a client knows.
fn is_known(name: &str) -> bool {
    const KNOWN: [&str; 13] = [
        "secure_link_expires",
        "uri",
        "document_uri",
        "request_uri",
        "remote_addr",
        "host",
        "args",
        "http_host",
        "query_string",
        "server_name",
        "scheme",
        "request_method",
        "realip_remote_addr",
    ];
    let families = ["arg_", "http_", "cookie_"];
    KNOWN.contains(&name)
        || families.iter().any(|f| name.starts_with(f))
        || name.starts_with(|c: char| c.is_ascii_digit())
}

/// Reports signed links whose signature has nothing in it that the client does not know.
fn unsigned_links(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("secure_link_md5") {
        let text = s.text(n);
        let mut rest = text.replace(['{', '}'], "");
        for (_, name) in named(&text) {
            rest = rest.replacen(&format!("${name}"), "", 1);
        }
        let literal = rest.chars().any(|c| c.is_ascii_alphanumeric());
        if !literal && named(&text).iter().all(|(_, name)| is_known(name)) {
            found(s.arg_span(n, 0), "no secret is in it: everybody can compute the signature".to_owned());
        }
    }
}

/// Endings that patterns take from prefixes.
const ENDINGS: [&str; 9] = ["pdf", "jpg", "png", "css", "js", "html", "mp4", "zip", "svg"];

/// Reports guarded folders by `alias` of which a pattern sends the same files.
fn aliases_bypassed(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for alias in s.all("alias") {
        let Some(l) = s.parent(alias).filter(|p| s.is(*p, "location")) else { continue };
        let (Some(prefix), Some(server)) = (routes::prefix(s, l), s.parent(l).filter(|p| s.is(*p, "server")))
        else {
            continue;
        };
        if s.arg(l, 0) == "^~" || !is_closed(s, l) || s.around(l, "http").is_none() {
            continue;
        }
        let own = |ending: &str| format!("{}x.{ending}", s.arg(alias, 0));
        let same = ENDINGS.into_iter().find_map(|ending| {
            let path = format!("{prefix}x.{ending}");
            let taker = routes::chosen(s, server, &path);
            let root = s.effective(Some(taker), "root").map(|r| s.arg(r, 0).trim_end_matches('/'))?;
            let sends = pass_of(s, taker).is_none()
                && s.child(Some(taker), "return").is_none()
                && s.child(Some(taker), "alias").is_none();
            let open = taker != l && !s.is_within(taker, l) && !is_closed(s, taker);
            (open && sends && format!("{root}{path}") == own(ending)).then_some((path, taker))
        });
        if let Some((path, taker)) = same {
            let text = s.text(taker);
            found(s.span(taker), format!("\"location {text}\" sends {path} to those whom {prefix} refuses"));
        }
    }
}

/// Reports lists of addresses for the name of a folder, whose contents only a login guards.
fn lists_of_one_path(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    const ADMIN: [&str; 8] =
        ["admin", "manage", "management", "console", "dashboard", "internal", "private", "backoffice"];
    for l in s.all("location").filter(|l| s.arg(*l, 0).starts_with('=')) {
        let Some(server) = s.parent(l).filter(|p| s.is(*p, "server")) else { continue };
        let path = s.last_arg(l).trim_start_matches('=').trim_end_matches('/');
        let Some(deny) = s.child(Some(l), "deny").filter(|_| ADMIN.contains(&path.trim_matches('/'))) else {
            continue;
        };
        let taker = routes::chosen(s, server, &format!("{path}/x"));
        let answers = s.child(Some(taker), "return").is_none() && pass_of(s, taker) == pass_of(s, l);
        let elsewhere = s.effective(Some(taker), "deny").is_none() && taker != l;
        let lists = s.children(Some(l), "deny").any(|n| s.arg(n, 0) == "all");
        // Where nobody is asked at all, another rule tells.
        if answers && elsewhere && lists && is_guarded(s, Some(taker)) {
            found(s.span(deny), format!("{path}/ and what is below it is not {path}, and has no list"));
        }
    }
}

/// Reports files of passwords and keys for which nothing asks.
fn locks_without_doors(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for (file, asks) in [("auth_basic_user_file", "auth_basic"), ("auth_jwt_key_file", "auth_jwt")] {
        for n in s.all(file) {
            let block = s.parent(n);
            let asked = s.effective(block, asks).is_some()
                || block.is_some_and(|b| s.named_inside(b, asks).next().is_some());
            let inner = block.is_some_and(|b| s.is(b, "location") || s.is(b, "server"));
            if inner && !asked && !may_be_guarded_elsewhere(s, block) {
                found(s.span(n), format!("without {asks} nobody is asked"));
            }
        }
    }
}

/// Reports error pages by which browsers are never asked for a password.
fn challenges_lost(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("error_page").filter(|n| s.has(*n, "401")) {
        let Some(block) = s.parent(n) else { continue };
        let target = s.last_arg(n);
        let redirects = target.contains("://") || s.args(n).iter().any(|a| a.starts_with("=30"));
        let is_on = |name: &str| {
            let inside = s.named_inside(block, name).chain(s.effective(Some(block), name));
            inside.filter(|n| s.arg(*n, 0) != "off").count() > 0
        };
        if redirects && is_on("auth_basic") && !is_on("auth_request") && !is_on("auth_oidc") {
            found(
                s.arg_span(n, s.args(n).len().saturating_sub(1)),
                "a redirect asks for no password".to_owned(),
            );
        }
    }
}

/// Reports tables of raw addresses that decide over a variable or another table who is refused.
fn raw_tables(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let deciding: HashSet<String> =
        conditions(s).filter(|c| c.refuses(s)).map(|c| c.variable.clone()).collect();
    let sets = |c: &Condition| {
        let mut names = s.children(Some(c.node), "set").filter_map(|n| s.arg(n, 0).strip_prefix('$'));
        names.any(|name| deciding.contains(name))
    };
    let mut over: HashSet<String> = conditions(s).filter(|c| sets(c)).map(|c| c.variable.clone()).collect();
    let tables = s.all("map").filter(|n| deciding.contains(s.arg(*n, 1).trim_start_matches('$')));
    over.extend(tables.flat_map(|n| named(s.arg(n, 0))).map(|(_, v)| v.to_owned()));
    for n in s.all("map").filter(|n| s.arg(*n, 0) == "$request_uri") {
        let variable = s.arg(n, 1).trim_start_matches('$');
        let line = lines(s, n).find(|e| {
            let key = e.name.as_str();
            let path = key.trim_start_matches(['~', '*', '^', '(']);
            path.strip_prefix('/').is_some_and(|p| p.starts_with(|c: char| c.is_ascii_alphabetic()))
        });
        if let Some(line) = line.filter(|_| over.contains(variable) && !deciding.contains(variable)) {
            found(
                line.name.span,
                format!("another form of the same path goes around {}", line.name.as_str()),
            );
        }
    }
}

/// Words of paths that are for those who work on a site, and that have no other rule.
const STAFF: [&str; 10] =
    ["backoffice", "intranet", "staff", "manager", "manage", "cms", "console", "ops", "panel", "office"];

/// Returns `true` if a login or a list that ends is in effect in a block. A condition or a list of some refuses others.
pub(super) fn has_lock(s: &Scene<'_>, block: usize) -> bool {
    let asks = ["auth_basic", "auth_request", "auth_jwt", "auth_oidc", "internal"];
    asks.iter().any(|g| s.effective(Some(block), g).is_some_and(|n| s.arg(n, 0) != "off"))
        || s.all_effective(Some(block), "deny").any(|n| s.arg(n, 0) == "all")
}

checks! { Check;
    "internal-open" |s, _, found| open_insides(s, found),
    "insides-renamed" |s, _, found| renamed_insides(s, found),
    "secure-link-unsigned" |s, _, found| unsigned_links(s, found),
    "alias-bypassed" |s, _, found| aliases_bypassed(s, found),
    "folder-by-login" |s, _, found| lists_of_one_path(s, found),
    "password-file-alone" |s, _, found| locks_without_doors(s, found),
    "challenge-lost" |s, _, found| challenges_lost(s, found),
    "raw-path-table" |s, _, found| raw_tables(s, found),
    "referer-staff" |s, _, found| for n in s.all("if").filter(|n| s.text(*n).contains("$invalid_referer")) {
        let refuses = s.children(Some(n), "return").any(|r| s.arg(r, 0).starts_with('4'));
        let l = s.parent(n).filter(|p| s.is(*p, "location") && refuses && has_word(s, *p, &STAFF));
        if let Some(l) = l.filter(|l| !has_lock(s, *l)) {
            found(s.span(n), format!("all that keeps strangers out of {} is a field that they write", s.last_arg(l)));
        }
    },
    "root-waiting" |s, _, found| for n in s.all("root") {
        let whole = ["/", "/etc", "/root", "/home"].contains(&s.arg(n, 0));
        let outer = s.parent(n).is_some_and(|p| s.is(p, "server") || s.is(p, "http"));
        if whole && outer && !serves(s, n) {
            found(s.arg_span(n, 0), format!("the next location without a root of its own sends all of {}", s.arg(n, 0)));
        }
    },
    "listing-uploads" |s, _, found| for n in s.all("autoindex").filter(|n| s.arg(*n, 0) == "on" && !is_wide(s, *n)) {
        let Some(l) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        // Folders called uploads or private have a rule of their own.
        let sure = ["attachments", "avatars", "userfiles", "invoices", "receipts", "scans"];
        let told = ["upload", "private", "internal", "backup", "admin"].iter().any(|w| s.last_arg(l).contains(w));
        let application = || http_server(s, n).is_some_and(|b| s.named_inside(b, "location").any(|l| pass_of(s, l).is_some()));
        let stored = has_word(s, l, &sure) || has_word(s, l, &["media"]) && application();
        if stored && !told && !is_guarded(s, Some(l)) {
            found(s.span(n), format!("everybody sees what others have stored below {}", s.last_arg(l)));
        }
    },
}
