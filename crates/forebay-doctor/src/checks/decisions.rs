//! Checks of what decides on access: tables, conditions, signed links, and the order of phases.

use super::ask::{http_server, http_servers, pass_of};
use super::patterns::{Condition, conditions, defined};
use super::{Check, checks};
use crate::routes;
use crate::scene::Scene;
use crate::variables::{entries_of_tables, named, sources, written_by_set};
use forebay_conf::tree::Span;
use std::collections::HashMap;

/// Returns the values that a variable can have, if only tables with plain values define it.
fn known_values(s: &Scene<'_>, c: &Condition, tables: &HashMap<String, Vec<usize>>) -> Option<Vec<String>> {
    let block = Some(c.node);
    let defining = tables.get(&c.variable).into_iter().flatten();
    let tables: Vec<usize> =
        defining.copied().filter(|t| s.outermost(*t) == s.outermost(c.node)).take(2).collect();
    let included = |t: &usize| {
        let lines = s.nodes.get(*t).and_then(|n| n.d.block.as_ref()).into_iter().flatten();
        lines.into_iter().any(|e| e.name.text == b"include")
    };
    let [table] = tables.as_slice() else { return None };
    if included(table) || written_by_set(s, block, &c.variable).next().is_some() {
        return None;
    }
    let entries = entries_of_tables(s, block, &c.variable);
    let mut values: Vec<String> = entries.iter().map(|e| e.value.clone()).collect();
    if !entries.iter().any(|e| e.takes_all()) {
        values.push(String::new());
    }
    values.iter().all(|v| !v.contains('$')).then_some(values)
}

/// Reports conditions that no value of a table meets.
fn never_met(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let mut tables: HashMap<String, Vec<usize>> = HashMap::new();
    for t in ["map", "geo"].into_iter().flat_map(|name| s.all(name)) {
        tables.entry(defined(s, t)).or_default().push(t);
    }
    for c in conditions(s).filter(|c| c.refuses(s)) {
        let Some(values) = known_values(s, &c, &tables) else { continue };
        let meets = |v: &String| match c.operator.as_str() {
            "" => !v.is_empty() && v != "0",
            "=" => *v == c.value,
            "!=" => *v != c.value,
            _ => true,
        };
        if !values.iter().any(meets) {
            let entries = entries_of_tables(s, Some(c.node), &c.variable);
            let default = entries.iter().find(|e| e.takes_all()).map(|e| e.span);
            found(
                default.unwrap_or(s.span(c.node)),
                format!("${} has no value for which \"if\" refuses, so everybody gets in", c.variable),
            );
        }
    }
}

/// Reports tables by which nothing is decided, as all of their lines say the same.
fn constants(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in ["map", "geo"].into_iter().flat_map(|name| s.all(name)) {
        let variable = defined(s, n);
        let entries = entries_of_tables(s, Some(n), &variable);
        let own: Vec<String> = super::patterns::lines(s, n)
            .filter_map(|e| Some(e.args.first()?.as_str().into_owned()))
            .collect();
        let includes = s
            .nodes
            .get(n)
            .and_then(|n| n.d.block.as_ref())
            .into_iter()
            .flatten()
            .any(|e| e.name.text == b"include");
        let same = own.len() > 1 && own.iter().all(|v| Some(v) == own.first()) && own.len() == entries.len();
        let default = entries.iter().any(|e| e.key == "default");
        if same && default && !includes {
            found(
                s.span(n),
                format!("${variable} is always \"{}\"", own.first().cloned().unwrap_or_default()),
            );
        }
    }
}

/// Reports tables of addresses by which everybody is trusted who is in no line.
fn trusted_defaults(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let names = ["trusted", "whitelist", "white_list", "exempt", "internal", "office", "vpn", "lan"];
    for n in s.all("geo").chain(s.all("map").filter(|n| s.arg(*n, 0).contains("remote_addr"))) {
        let variable = defined(s, n);
        let trusts = variable.split('_').any(|p| names.contains(&p))
            || names.iter().take(4).any(|w| variable.contains(w));
        let negated =
            ["not", "no", "non", "un", "external"].iter().any(|w| variable.split('_').any(|p| p == *w))
                || variable.contains("untrusted");
        let entries = entries_of_tables(s, Some(n), &variable);
        let default = entries.iter().find(|e| e.key == "default" || e.key == "0.0.0.0/0");
        if let Some(line) =
            default.filter(|e| trusts && !negated && ["1", "yes", "true", "on"].contains(&e.value.as_str()))
        {
            found(line.span, format!("who is in no line has ${variable}, too"));
        }
    }
}

/// Reports files that are sent to whoever writes anything in the place of a key.
fn any_credential(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for c in conditions(s).filter(|c| c.refuses(s) && super::keeping::is_credential(&c.variable)) {
        let Some(block) = s.parent(c.node) else { continue };
        let generic = [
            "",
            ".",
            ".+",
            "^.+$",
            "^.+",
            "^Bearer ",
            "^Bearer",
            "Bearer",
            "^Basic ",
            "^Basic",
            "^Bearer .+",
            "^Bearer .+$",
        ];
        let any = c.operator == "=" && c.value.is_empty()
            || c.operator.starts_with("!~")
                && (generic.contains(&c.value.as_str())
                    || c.value.starts_with("^[") && c.value.ends_with('+'));
        // An application behind it may look at the key itself.
        let asked = || std::iter::once(block).chain(s.inside(block)).any(|b| pass_of(s, b).is_some());
        let compared = || about(s, block, &c.variable).any(|o| o.node != c.node);
        let table = || s.all("map").any(|m| s.arg(m, 0).contains(&format!("${}", c.variable)));
        if any && !s.is_partial() && !asked() && !compared() && !table() {
            found(s.span(c.node), format!("any text in ${} will do", c.variable));
        }
    }
}

/// Returns the files of a location that nobody is to get.
fn kept_files(s: &Scene<'_>, location: usize) -> Option<String> {
    let path = s.last_arg(location);
    let hidden = path
        .strip_prefix("/.")
        .is_some_and(|p| !p.starts_with("well-known") && p.starts_with(|c: char| c.is_ascii_alphabetic()));
    if hidden {
        return Some(path.to_owned());
    }
    let endings = ["sql", "bak", "swp", "orig", "env", "pem", "key", "htpasswd", "sqlite"];
    let pattern = routes::pattern(s, location).filter(|p| p.starts_with("\\.") || p.starts_with(".*\\."))?;
    let ending = pattern.split(['(', ')', '|', '$', '.', '\\', '?', ':']).find(|w| endings.contains(w))?;
    Some(format!("files that end in .{ending}"))
}

/// Names of variables for those who are not limited.
const EXEMPT: [&str; 10] = [
    "whitelist",
    "white_list",
    "allow",
    "trusted",
    "exempt",
    "safe",
    "internal",
    "office",
    "friend",
    "nolimit",
];

/// Returns `true` if a variable is called after those who are exempt, and not after the others (`untrusted`, `not_office`).
fn is_exempt(name: &str) -> bool {
    let words: Vec<&str> = name.split('_').collect();
    !words.iter().any(|w| ["not", "no", "non", "un", "is_not"].contains(w))
        && EXEMPT
            .iter()
            .any(|exempt| name == *exempt || words.contains(exempt) || name.ends_with(&format!("_{exempt}")))
}

/// Reports limits that count those who are exempt, and nobody else.
fn inverted_limits(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for zone in ["limit_req_zone", "limit_conn_zone"].into_iter().flat_map(|name| s.all(name)) {
        for (_, name) in named(s.arg(zone, 0)) {
            let exempt = sources(s, s.parent(zone), &format!("${name}")).into_iter().find(|v| is_exempt(v));
            let entries = entries_of_tables(s, s.parent(zone), name);
            let counted = entries
                .iter()
                .find(|e| matches!(e.key.as_str(), "1" | "yes" | "true") && !e.value.is_empty());
            let free =
                entries.iter().any(|e| matches!(e.key.as_str(), "0" | "default" | "") && e.value.is_empty());
            if let (Some(line), Some(exempt)) = (counted.filter(|_| free), exempt) {
                found(line.span, format!("those of ${exempt} are counted, and all others have an empty key"));
            }
        }
    }
}

/// Returns the conditions about a variable in a block and below it, and right in the blocks around it.
fn about<'s>(s: &'s Scene<'_>, block: usize, variable: &'s str) -> impl Iterator<Item = Condition> + 's {
    conditions(s).filter(move |c| {
        let parent = s.parent(c.node);
        c.variable == variable
            && (s.is_within(c.node, block) || parent.is_some_and(|p| s.is_within(block, p)))
    })
}

/// Reports signed links whose conditions let forged or old ones pass.
fn half_checked_links(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("secure_link") {
        let Some(block) = s.parent(n) else { continue };
        let all: Vec<Condition> = about(s, block, "secure_link").collect();
        let equal = |value: &str| all.iter().find(|c| c.operator == "=" && c.value == value);
        let other = all.iter().any(|c| c.operator != "=" || !["", "0"].contains(&c.value.as_str()));
        match (equal(""), equal("0")) {
            (None, Some(c)) if !other => {
                found(s.span(c.node), "a forged link makes $secure_link empty, not 0".to_owned());
            }
            (Some(c), None) if !other && s.arg(n, 0).contains(',') => {
                found(s.span(c.node), "a link that has expired makes $secure_link 0, not empty".to_owned());
            }
            _ => {}
        }
    }
}

/// Reports signed links that are good for other files or times than those they were made for.
fn loose_links(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("secure_link_md5") {
        let text = s.args(n).join(" ");
        let link = s.effective(s.parent(n), "secure_link").map(|l| s.arg(l, 0)).unwrap_or_default();
        let names: Vec<&str> = named(&text).into_iter().map(|(_, v)| v).collect();
        let expires = link.split_once(',').is_some_and(|(_, time)| {
            let time = named(time).into_iter().map(|(_, v)| v.to_owned()).collect::<Vec<_>>();
            !names.contains(&"secure_link_expires") && !time.iter().any(|t| names.contains(&t.as_str()))
        });
        let path = ["uri", "request_uri", "document_uri", "request_filename", "host", "1", "2"];
        let captured = |v: &&&str| path.contains(v) || !v.starts_with("secure_link") && !v.contains("addr");
        if expires {
            found(s.span(n), "the time is not signed, so whoever has a link can write another".to_owned());
        } else if !names.iter().any(|v| captured(&v)) {
            found(s.span(n), "the path is not signed, so a link opens every file".to_owned());
        }
    }
}

/// Reports conditions about client certificates that those without any pass.
fn half_verified(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for c in conditions(s).filter(|c| c.variable == "ssl_client_verify" && c.refuses(s)) {
        let Some(block) = s.parent(c.node) else { continue };
        let asked =
            s.effective(s.parent(c.node), "ssl_verify_client").map(|v| s.arg(v, 0)).unwrap_or_default();
        let positive = matches!(c.operator.as_str(), "=" | "~" | "~*");
        let others = about(s, block, "ssl_client_verify").any(|o| o.node != c.node);
        if positive && c.value.contains("FAILED") && !c.value.contains("NONE") && !others && asked != "on" {
            found(s.span(c.node), "clients without a certificate (NONE) pass".to_owned());
        } else if c.operator == "=" && c.value == "NONE" && asked == "optional_no_ca" && !others {
            found(s.span(c.node), "certificates of any authority (FAILED) pass".to_owned());
        }
    }
}

/// Directives by which a password or a token is asked for.
const LOGINS: [&str; 5] = ["auth_basic", "auth_request", "auth_jwt", "auth_oidc", "auth_digest"];

/// Reports patterns for endings that need no login, in front of an application that does.
fn open_endings(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in LOGINS.into_iter().flat_map(|name| s.all(name)).filter(|n| s.arg(*n, 0) == "off") {
        let Some(location) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let name = s.nodes.get(n).map(|n| n.d.name.as_str().into_owned()).unwrap_or_default();
        let around = s.effective(s.parent(location), &name).is_some_and(|o| s.arg(o, 0) != "off");
        let ending = routes::pattern(s, location).filter(|p| !p.starts_with('^'));
        if let Some(pattern) = ending.filter(|_| around && pass_of(s, location).is_some()) {
            found(
                s.span(n),
                format!("every path that matches {pattern} reaches the application without a login"),
            );
        }
    }
}

/// Returns the `return` of a location, unless a `break` before it may end the phase.
fn answering_return(s: &Scene<'_>, location: usize) -> Option<usize> {
    let answer = s.child(Some(location), "return")?;
    let ends = |n: usize| s.is(n, "break") || s.is(n, "rewrite") && s.arg(n, 2) == "break";
    let before = s.level(Some(location)).iter().take_while(|n| **n != answer);
    let is_passed =
        before.copied().any(|n| ends(n) || s.is(n, "if") && s.level(Some(n)).iter().any(|c| ends(*c)));
    (!is_passed).then_some(answer)
}

/// Reports limits beside an answer that is given before they count.
fn late_limits(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in ["limit_req", "limit_conn"].into_iter().flat_map(|name| s.all(name)) {
        let Some(location) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        if answering_return(s, location).is_some() && http_server(s, n).is_some() {
            found(s.span(n), "\"return\" answers before anything is counted".to_owned());
        }
    }
}

/// Directives that give an answer, and that come too late behind `return`.
const ANSWERS: [&str; 9] = [
    "proxy_pass",
    "fastcgi_pass",
    "uwsgi_pass",
    "scgi_pass",
    "grpc_pass",
    "memcached_pass",
    "try_files",
    "autoindex",
    "stub_status",
];

/// Reports what gives no answer because `return` has given one.
fn dead_answers(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in ANSWERS.into_iter().flat_map(|name| s.all(name)).filter(|n| s.arg(*n, 0) != "off") {
        let Some(location) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        if let Some(r) = answering_return(s, location) {
            found(s.span(n), format!("\"return {}\" has answered before", s.args(r).join(" ")));
        }
    }
    for n in s.all("rewrite") {
        let level = s.level(s.parent(n));
        let earlier = level.iter().take_while(|c| **c != n).find(|c| s.is(**c, "return"));
        let ends = level.iter().take_while(|c| **c != n).any(|c| s.is(*c, "break") || s.is(*c, "if"));
        if let Some(r) = earlier.filter(|_| !ends) {
            found(s.span(n), format!("\"return {}\" has answered before", s.args(*r).join(" ")));
        }
    }
}

/// Reports mirrors and other locations for subrequests that strangers may ask.
fn open_mirrors(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("mirror").filter(|n| s.arg(*n, 0).starts_with('/')) {
        let servers: Vec<usize> =
            http_server(s, n).map_or_else(|| http_servers(s).collect(), |server| vec![server]);
        for server in servers {
            let location = routes::chosen(s, server, s.arg(n, 0));
            let own = s.is(location, "location")
                && s.args(location).iter().any(|a| a.contains("mirror") || *a == s.arg(n, 0));
            if own && s.child(Some(location), "internal").is_none() {
                found(s.span(location), format!("strangers may ask for {}, too", s.arg(n, 0)));
            }
        }
    }
}

/// Reports guards against some hidden files that leave the others open.
fn hidden_files(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s) {
        let partial = s.inside(server).find(|n| {
            let guards = s.is(*n, "location") && super::ask::refuses_all(s, *n);
            guards
                && routes::pattern(s, *n)
                    .is_some_and(|p| p.trim_end_matches('$').trim_start_matches('^') == "/\\.ht")
        });
        let Some(location) = partial.filter(|_| s.effective(Some(server), "root").is_some()) else {
            continue;
        };
        let open = ["/.git/config", "/.env"].into_iter().find(|path| {
            let taker = routes::chosen(s, server, path);
            let answered = s.child(Some(taker), "return").is_some() || pass_of(s, taker).is_some();
            !answered && !super::ask::is_guarded(s, Some(taker))
        });
        if let Some(path) = open {
            found(s.span(location), format!("{path} is sent to everybody who asks"));
        }
    }
}

checks! { Check;
    "table-constant" |s, _, found| constants(s, found),
    "trusted-by-default" |s, _, found| trusted_defaults(s, found),
    "credential-any" |s, _, found| any_credential(s, found),
    "kept-files-sent" |s, _, found| for n in s.all("location").filter(|n| http_server(s, *n).is_some()) {
        let open = || !super::ask::refuses_all(s, n) && !super::ask::is_guarded(s, Some(n)) && pass_of(s, n).is_none();
        if let Some(what) = kept_files(s, n).filter(|_| open()) {
            found(s.span(n), format!("{what} are sent to everybody who asks"));
        }
    },
    "condition-never" |s, _, found| never_met(s, found),
    "limit-inverted" |s, _, found| inverted_limits(s, found),
    "secure-link-half" |s, _, found| half_checked_links(s, found),
    "secure-link-loose" |s, _, found| loose_links(s, found),
    "secure-link-forever" |s, _, found| for n in s.all("secure_link").filter(|n| !s.arg(*n, 0).contains(',')) {
        found(s.arg_span(n, 0), "there is no time in it: a link is good for ever, and for everybody".to_owned());
    },
    "verify-half" |s, _, found| half_verified(s, found),
    "auth-off-ending" |s, _, found| open_endings(s, found),
    "limit-before-return" |s, _, found| late_limits(s, found),
    "answer-dead" |s, _, found| dead_answers(s, found),
    "mirror-open" |s, _, found| open_mirrors(s, found),
    "hidden-files-some" |s, _, found| hidden_files(s, found),
}
