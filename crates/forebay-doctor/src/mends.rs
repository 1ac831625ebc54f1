//! Edits of fixes that are more than a row of data.

use crate::checks::ask::refuses_all;
use crate::checks::openings::loose_dot;
use crate::fix::{Edit, after, arguments, before, removal};
use crate::scene::Scene;
use forebay_conf::print::{Node, print};
use forebay_conf::tree::{Directive, Span, Word};

/// Returns the edits that mend a finding of a rule at a directive; `None` if there is no rule for it, or they would not be sound here.
pub(crate) fn edits(rule: &str, s: &Scene<'_>, node: usize, span: Span) -> Option<Vec<Edit>> {
    let d = s.nodes.get(node)?.d;
    let argument = || d.args.iter().find(|a| a.span == span);
    match rule {
        "keepalive-http10" => http11(s, node, d),
        "header-lost" | "proxy-header-lost" | "fastcgi-param-lost" => repeated(s, node, d),
        "cache-without-lock" => Some(vec![after(d, &format!("{}_lock on;", d.name.as_str()))]),
        "server-tokens" if s.is(node, "server_tokens") => Some(vec![arguments(d, "off")]),
        "server-tokens" => first_in(s, node, "server_tokens off;"),
        "listen-http2" => http2_on(s, node, d),
        "alias-traversal" => closed_prefix(s, node),
        "connection-claimed" => known_by_server(d),
        "auth-location-open" | "internal-missing" => first_in(s, node, "internal;"),
        "dot-unescaped" => escaped_dots(d),
        "grpc-without-http2" => spoken_http2(s, node),
        "host-spoofing" => Some(vec![rewritten(argument()?, |text| text.replace("$http_host", "$host"))]),
        "valid-referers" => Some(vec![Edit { span: argument()?.span, text: String::new() }]),
        // Behind a rule that fits everybody it would refuse nobody.
        "allow-without-deny" if lets_all_in(s, node) => None,
        "allow-without-deny" => behind_last(s, node, "allow", "deny all;"),
        // Rules that stand here already would come behind "deny all".
        "stub-status-open" | "interface-open" if s.child(s.parent(node), "allow").is_some() => None,
        "stub-status-open" | "interface-open" => {
            Some(vec![after(d, "allow 127.0.0.1;\nallow ::1;\ndeny all;")])
        }
        "uploads-run" => final_prefix(d),
        // A guard that lets some in may need the scripts of the other location, and would send their sources.
        "guard-bypassed" if refuses_all(s, node) && s.child(Some(node), "allow").is_none() => final_prefix(d),
        "php-any-file" => first_in(s, node, "try_files $uri =404;"),
        "alias-glued" => Some(vec![rewritten(d.args.first()?, |text| format!("{text}/"))]),
        "httpoxy" => Some(vec![Edit { span: d.args.get(1)?.span, text: "\"\"".to_owned() }]),
        "limit-key-client" => {
            Some(vec![Edit { span: d.args.first()?.span, text: "$binary_remote_addr".to_owned() }])
        }
        "client-address-passed" => remote_address(d),
        "cache-stores-cookies" | "cache-ignores-vary" | "cache-ignores-private" => {
            without_word(d, argument()?)
        }
        "cache-key-method" => without_post(d),
        "cache-bypass-stores" => counterpart(d, "_cache_bypass", "_no_cache"),
        "cache-serves-members" => counterpart(d, "_no_cache", "_cache_bypass"),
        "field-not-always" => Some(vec![inserted(d.args.last()?.span.end, d, " always")]),
        "retry-acts" | "retry-acts-grpc" | "gzip-events" | "cache-stale-denied" => {
            without_word(d, argument()?)
        }
        "upstream-connection-close" => kept_connection(s, node, d),
        "limit-status" => Some(vec![after(d, &format!("{}_status 429;", d.name.as_str()))]),
        "try-files-slash" => Some(vec![rewritten(d.args.last()?, |text| format!("/{text}"))]),
        "log-json-escape" => Some(vec![inserted(d.args.first()?.span.end, d, " escape=json")]),
        "log-name-client" => log_by_server(d),
        "error-log-quiet" => Some(vec![quiet(d)]),
        "log-unbuffered" => buffered(d),
        "backlog-small" => without_word(d, argument()?),
        "regex-unanchored" => Some(vec![rewritten(d.args.last()?, |text| format!("{text}$"))]),
        _ => None,
    }
}

/// Returns the edit that adds text behind a place in a directive.
fn inserted(at: u32, d: &Directive, text: &str) -> Edit {
    Edit { span: Span { start: at, end: at, ..d.name.span }, text: text.to_owned() }
}

/// Has a prefix location end the search for patterns.
fn final_prefix(d: &Directive) -> Option<Vec<Edit>> {
    let only = d.args.first().filter(|_| d.args.len() == 1)?;
    Some(vec![inserted(only.span.start, d, "^~ ")])
}

/// Leaves one word out; the directive with it if it is the only one.
fn without_word(d: &Directive, word: &Word) -> Option<Vec<Edit>> {
    Some(vec![match d.args.len() {
        1 => removal(d),
        _ => Edit { span: word.span, text: String::new() },
    }])
}

fn without_post(d: &Directive) -> Option<Vec<Edit>> {
    without_word(d, d.args.iter().find(|a| a.text == b"POST")?)
}

/// Adds the directive that belongs to another one, with the same arguments.
fn counterpart(d: &Directive, own: &str, other: &str) -> Option<Vec<Edit>> {
    let name = d.name.as_str().replace(own, other);
    let node = Node { name: name.into_bytes(), ..Node::of(d) };
    Some(vec![after(d, printed_nodes(&[node]).trim())])
}

fn remote_address(d: &Directive) -> Option<Vec<Edit>> {
    // Addresses alone: a user has none.
    let field = d.args.first()?.as_str().to_ascii_lowercase();
    // It has a form of its own.
    if field == "forwarded" {
        return None;
    }
    let text = if field == "x-forwarded-for" { "$proxy_add_x_forwarded_for" } else { "$remote_addr" };
    Some(vec![Edit { span: d.args.get(1)?.span, text: text.to_owned() }])
}

/// Empties the field Connection for an upstream, where the directive that closes connections is at hand.
fn kept_connection(s: &Scene<'_>, node: usize, d: &Directive) -> Option<Vec<Edit>> {
    let value = d.args.get(1).filter(|_| s.is(node, "proxy_set_header"))?;
    Some(vec![Edit { span: value.span, text: "\"\"".to_owned() }])
}

fn log_by_server(d: &Directive) -> Option<Vec<Edit>> {
    let word = d.args.first().filter(|w| w.as_str().contains("$host"))?;
    Some(vec![rewritten(word, |text| {
        text.replace("$http_host", "$server_name").replace("$host", "$server_name")
    })])
}

fn quiet(d: &Directive) -> Edit {
    let level = d.args.iter().skip(1).find(|a| matches!(a.text.as_slice(), b"crit" | b"alert" | b"emerg"));
    match level {
        Some(word) => Edit { span: word.span, text: "warn".to_owned() },
        None => arguments(d, "stderr warn"),
    }
}

/// Buffers of a log, which need the name of a format before them.
fn buffered(d: &Directive) -> Option<Vec<Edit>> {
    let text = if d.args.len() == 1 { " combined buffer=64k flush=1s" } else { " buffer=64k flush=1s" };
    let format = d.args.get(1).map_or(d.args.first()?.span.end, |f| f.span.end);
    Some(vec![inserted(format, d, text)])
}

/// Returns a word as it has to be written.
pub(crate) fn quoted(text: &[u8]) -> String {
    printed_nodes(&[Node::new(text.to_vec())]).trim_end_matches(['\n', ';']).to_owned()
}

/// Returns the edit that changes the text of a word, and keeps its quotes where it had any.
fn rewritten(word: &Word, change: impl Fn(&str) -> String) -> Edit {
    let new = change(&word.as_str());
    let text = match (quoted(new.as_bytes()), word.quoted) {
        (text, true) if !text.starts_with(['"', '\'']) => format!("\"{text}\""),
        (text, _) => text,
    };
    Edit { span: word.span, text }
}

/// Returns a directive as text in one line.
fn printed(d: &Directive) -> String {
    printed_nodes(&[Node::of(d)]).trim().to_owned()
}

fn printed_nodes(nodes: &[Node]) -> String {
    print(nodes).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn first_in(s: &Scene<'_>, block: usize, text: &str) -> Option<Vec<Edit>> {
    let d = s.nodes.get(block)?.d;
    // As written: an include is a line of this block, what it includes is in another file.
    let edit = match d.block.as_ref()?.items.first() {
        Some(first) => before(first, text),
        None => Edit { span: Span { start: d.end.end, ..d.end }, text: format!(" {text} ") },
    };
    Some(vec![edit])
}

fn behind_last(s: &Scene<'_>, node: usize, name: &str, text: &str) -> Option<Vec<Edit>> {
    let last = s.level(s.parent(node)).iter().rfind(|n| s.is(**n, name))?;
    Some(vec![after(s.nodes.get(*last)?.d, text)])
}

/// HTTP/1.1 to an upstream, with an empty Connection where no list of fields of an outer level is hidden by it.
fn http11(s: &Scene<'_>, node: usize, d: &Directive) -> Option<Vec<Edit>> {
    let block = s.parent(node);
    let own = s.child(block, "proxy_set_header").is_some();
    if !own && s.effective(block, "proxy_set_header").is_some() {
        return None;
    }
    let named =
        |n: &&usize| s.is(**n, "proxy_set_header") && s.arg(**n, 0).eq_ignore_ascii_case("connection");
    let has_field = s.level(block).iter().any(|n| named(&n));
    let field = if has_field { "" } else { "\nproxy_set_header Connection \"\";" };
    Some(vec![match s.child(block, "proxy_http_version") {
        Some(n) => arguments(s.nodes.get(n)?.d, "1.1"),
        None => after(d, &format!("proxy_http_version 1.1;{field}")),
    }])
}

/// Repeats the directives of the outer level that the first one of a level hides.
fn repeated(s: &Scene<'_>, node: usize, d: &Directive) -> Option<Vec<Edit>> {
    let name = d.name.as_str().into_owned();
    let block = s.parent(node)?;
    let outer = s.effective(s.parent(block), &name)?;
    let own: Vec<&str> = of_name(s, Some(block), &name).map(|n| s.arg(n, 0)).collect();
    let is_lost = |n: &usize| !own.iter().any(|o| o.eq_ignore_ascii_case(s.arg(*n, 0)));
    let lost = of_name(s, s.parent(outer), &name)
        .filter(|n| is_lost(n) && !is_faulty(s, *n))
        .filter_map(|n| s.nodes.get(n));
    let lines: Vec<String> = lost.map(|n| printed(n.d)).collect();
    (!lines.is_empty()).then(|| vec![before(d, &lines.join("\n"))])
}

/// Returns `true` if a line is not worth a copy: it has browsers forget that the site is on TLS.
fn is_faulty(s: &Scene<'_>, n: usize) -> bool {
    let value = s.arg(n, 1).replace(' ', "").to_ascii_lowercase();
    s.arg(n, 0).eq_ignore_ascii_case("strict-transport-security")
        && (value == "max-age=0" || value.starts_with("max-age=0;"))
}

/// Returns `true` if a rule beside an `allow` fits every address.
fn lets_all_in(s: &Scene<'_>, node: usize) -> bool {
    let fits = |n: usize| matches!(s.arg(n, 0), "all" | "0.0.0.0/0" | "::/0");
    of_name(s, s.parent(node), "allow").any(fits)
}

/// Puts in place of a field of the request what the server knows itself.
fn known_by_server(d: &Directive) -> Option<Vec<Edit>> {
    let text = match d.args.first()?.as_str().to_ascii_lowercase().as_str() {
        "x-forwarded-host" | "host" => "$host",
        "x-forwarded-proto" | "x-forwarded-protocol" | "x-forwarded-scheme" | "x-scheme" => "$scheme",
        "x-forwarded-port" => "$server_port",
        _ => return None,
    };
    Some(vec![Edit { span: d.args.get(1)?.span, text: text.to_owned() }])
}

/// Escapes the dots before the endings of names in a pattern.
fn escaped_dots(d: &Directive) -> Option<Vec<Edit>> {
    let word = d.args.last()?;
    let mut text = word.as_str().into_owned();
    // One finding may be about several dots.
    while let Some(at) = loose_dot(&text).map(|(at, _)| at) {
        text.insert(at, '\\');
    }
    // As people write it: without quotes a backslash before a letter stays one.
    let is_plain = !text.contains([' ', ';', '{', '}', '"', '\'', '#', '\t', '\n'])
        && !["\\\\", "\\t", "\\r", "\\n"].iter().any(|escape| text.contains(escape));
    Some(vec![match is_plain && !word.quoted {
        true => Edit { span: word.span, text },
        false => rewritten(word, |_| text.clone()),
    }])
}

fn spoken_http2(s: &Scene<'_>, node: usize) -> Option<Vec<Edit>> {
    let server = s.around(node, "server")?;
    if let Some(off) = s.child(Some(server), "http2") {
        return Some(vec![arguments(s.nodes.get(off)?.d, "on")]);
    }
    let last = of_name(s, Some(server), "listen").last()?;
    Some(vec![after(s.nodes.get(last)?.d, "http2 on;")])
}

fn of_name<'s, 't>(
    s: &'s Scene<'t>,
    block: Option<usize>,
    name: &str,
) -> impl Iterator<Item = usize> + use<'s, 't> {
    s.children(block, name)
}

/// `http2 on;` once in the server, and no such word in `listen`.
fn http2_on(s: &Scene<'_>, node: usize, d: &Directive) -> Option<Vec<Edit>> {
    let word = d.args.iter().find(|a| a.text == b"http2")?;
    let mut edits = vec![Edit { span: word.span, text: String::new() }];
    let listens = || of_name(s, s.parent(node), "listen");
    let first = listens().find(|n| s.has(*n, "http2"));
    if first == Some(node) && s.child(s.parent(node), "http2").is_none() {
        edits.push(after(s.nodes.get(listens().last()?)?.d, "http2 on;"));
    }
    Some(edits)
}

/// Ends the prefix of the location around an `alias` with a slash.
fn closed_prefix(s: &Scene<'_>, node: usize) -> Option<Vec<Edit>> {
    let location = s.nodes.get(s.parent(node)?)?.d;
    Some(vec![rewritten(location.args.last()?, |text| format!("{text}/"))])
}
