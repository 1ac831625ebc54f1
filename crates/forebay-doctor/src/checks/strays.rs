//! Checks of private places that the order of locations, an exception or a listing opens.

use super::access::is_of_secrets;
use super::ask::{http_server, http_servers, is_guarded, is_guarded_itself, is_wide, pass_of, refuses_all};
use super::detours::{INNER, is_closed};
use super::doors::{has_word, words};
use super::{Check, checks};
use crate::routes;
use crate::scene::Scene;
use forebay_conf::tree::Span;

/// Returns `true` if a block sends files to everybody.
fn sends_files(s: &Scene<'_>, block: usize) -> bool {
    let other = ["return", "internal", "stub_status", "include"];
    pass_of(s, block).is_none()
        && !other.iter().any(|name| s.child(Some(block), name).is_some())
        && !is_guarded(s, Some(block))
        && !refuses_all(s, block)
}

/// Returns the names of files that a pattern about endings takes.
fn names(pattern: &str) -> Vec<String> {
    if !pattern.starts_with("\\.") && !pattern.starts_with(".*\\.") {
        return Vec::new();
    }
    let all = routes::samples(pattern).into_iter();
    all.filter_map(|path| Some(path.rsplit('/').next()?.to_owned()))
        .filter(|name| !name.ends_with('.'))
        .collect()
}

/// Reports folders that are looked up before the pattern that refuses some of their files.
fn endings_sent(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s) {
        let refusing = s.children(Some(server), "location").filter(|l| refuses_all(s, *l));
        let refused: Vec<(usize, Vec<String>)> = refusing
            .filter_map(|l| Some((l, names(&routes::pattern(s, l)?))))
            .filter(|(_, names)| !names.is_empty())
            .collect();
        if refused.is_empty() {
            continue;
        }
        for l in s.children(Some(server), "location").filter(|l| s.text(*l).starts_with("^~")) {
            let Some(prefix) = routes::prefix(s, l).filter(|p| !p.contains("well-known")) else { continue };
            let folder = prefix.trim_end_matches('/');
            let sent = refused.iter().find_map(|(guard, names)| {
                let path = format!("{folder}/{}", names.first()?);
                let taker = routes::chosen(s, server, &path);
                (s.is_within(taker, l) && sends_files(s, taker)).then_some((path, *guard))
            });
            if let Some((path, guard)) = sent {
                found(
                    s.span(l),
                    format!("{path} is sent, because \"location {}\" is not looked at for it", s.text(guard)),
                );
            }
        }
    }
}

/// Reports guarded folders of which an earlier pattern sends files by their endings.
fn folders_after(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s) {
        for l in
            s.children(Some(server), "location").filter(|l| refuses_all(s, *l) || is_guarded_itself(s, *l))
        {
            let Some(pattern) = routes::pattern(s, l).filter(|p| p.starts_with("^/") && !p.ends_with('$'))
            else {
                continue;
            };
            let Some(folder) = routes::samples(&pattern).into_iter().next() else { continue };
            let earlier = s.children(Some(server), "location").take_while(|t| *t != l);
            let sent = earlier.filter(|t| sends_files(s, *t)).find_map(|t| {
                let name = names(&routes::pattern(s, t)?).into_iter().next()?;
                let path = format!("{}/{name}", folder.trim_end_matches('/'));
                let is_inside =
                    s.pattern(&pattern, false).is_some_and(|p| p.is_match(path.as_bytes()).unwrap_or(false));
                (is_inside && routes::chosen(s, server, &path) == t).then_some((path, t))
            });
            // An application behind the guard has no files here.
            if let Some((path, t)) = sent.filter(|_| pass_of(s, l).is_none()) {
                found(
                    s.span(l),
                    format!("{path} is sent by \"location {}\", which stands before it", s.text(t)),
                );
            }
        }
    }
}

/// Words of paths with data of others.
const DATA: [&str; 26] = [
    "export",
    "exports",
    "report",
    "reports",
    "invoice",
    "invoices",
    "billing",
    "account",
    "accounts",
    "customer",
    "customers",
    "orders",
    "backup",
    "backups",
    "dump",
    "dumps",
    "upload",
    "uploads",
    "documents",
    "attachments",
    "settings",
    "payroll",
    "finance",
    "audit",
    "logs",
    "archive",
];

/// Words of paths that are for everybody.
const PUBLIC: [&str; 15] = [
    "public", "login", "register", "signup", "webhook", "webhooks", "callback", "health", "healthz",
    "static", "assets", "shared", "css", "js", "images",
];

/// Reports places with data that are excepted from the login around them.
fn data_excepted(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for name in ["auth_basic", "auth_request", "auth_jwt", "auth_oidc"] {
        for n in s.all(name).filter(|n| s.arg(*n, 0) == "off") {
            let Some(l) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
            let asked = s.effective(s.parent(l), name).is_some_and(|o| s.arg(o, 0) != "off");
            let own = words(s, l);
            // Other rules tell of insides and of endings.
            let told = own.iter().any(|w| PUBLIC.contains(&w.as_str()) || INNER.contains(&w.as_str()));
            let is_open = !is_closed(s, l) && !refuses_all(s, l) && s.child(Some(l), "return").is_none();
            let data = own.iter().find(|w| DATA.contains(&w.as_str()));
            if let Some(word) = data.filter(|_| asked && !told && is_open) {
                found(
                    s.span(n),
                    format!("everybody reaches {word} without the login that is asked for around it"),
                );
            }
        }
    }
}

/// Words of folders that are not for everybody.
const PRIVATE: [&str; 19] = [
    "masters",
    "master",
    "originals",
    "raws",
    "export",
    "exports",
    "report",
    "reports",
    "customers",
    "members",
    "staff",
    "payroll",
    "finance",
    "contracts",
    "keys",
    "certs",
    "database",
    "db",
    "recordings",
];

/// Words of folders of which the location may have another name.
const BEHIND: [&str; 9] =
    ["private", "secret", "secrets", "backup", "backups", "dump", "dumps", "logs", "incoming"];

/// Returns the word by which a listed folder is not for everybody.
fn private_word(s: &Scene<'_>, n: usize, l: usize) -> Option<String> {
    let own = words(s, l).into_iter().find(|w| PRIVATE.contains(&w.as_str()));
    let folder = s.child(Some(l), "alias").or_else(|| s.child(Some(l), "root"));
    let folder = folder.map_or("", |f| s.arg(f, 0)).to_ascii_lowercase();
    let behind = || {
        let mut parts = folder.split('/');
        parts.find(|w| PRIVATE.contains(w) || BEHIND.contains(w)).map(str::to_owned)
    };
    own.or_else(behind).filter(|_| !is_of_secrets(s, n))
}

/// Reports listings of folders that are not for everybody.
fn private_listings(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("autoindex").filter(|n| s.arg(*n, 0) == "on" && !is_wide(s, *n)) {
        let Some(l) = s.parent(n).filter(|p| s.is(*p, "location") && http_server(s, *p).is_some()) else {
            continue;
        };
        let public = has_word(s, l, &["public", "pub", "mirror"]);
        let open = !public && !is_guarded(s, Some(l)) && s.child(Some(l), "internal").is_none();
        if let Some(word) = private_word(s, n, l).filter(|_| open) {
            found(s.span(n), format!("everybody sees and fetches all files of \"{word}\""));
        }
    }
}

checks! { Check;
    "endings-sent" |s, _, found| endings_sent(s, found),
    "folder-after-pattern" |s, _, found| folders_after(s, found),
    "login-off-data" |s, _, found| data_excepted(s, found),
    "listing-private" |s, _, found| private_listings(s, found),
}
