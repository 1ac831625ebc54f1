//! Rules for the safety of a configuration: what lets requests or data where they should not go.

use super::conf_rules::{Check, word};
use super::rule_table;

rule_table! { Check;
    "alias-traversal" Harm "alias that lets requests out of its directory"
    "A prefix location without a final slash and an alias with one: /x../secret is looked up beside the directory."
    "End both with a slash, or neither."
    |s, _, found| for n in s.all("alias") {
        let Some(l) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let args = s.args(l);
        let name = match args.as_slice() { [name] => name, [m, name] if m == "^~" => name, _ => continue };
        if !name.ends_with('/') && s.arg(n, 0).ends_with('/') {
            found(s.span(n), format!("{name}../ reaches outside of {}", s.arg(n, 0)));
        }
    },
    "if-evil" Warning "if in a location with more than return or rewrite"
    "An if block is a location of its own: directives around it are copied or lost in ways that surprise."
    "map, try_files, or locations; inside if only return and rewrite ... last."
    |s, _, found| for n in s.all("if").filter(|n| s.parent(*n).is_some_and(|p| s.is(p, "location"))) {
        if let Some(c) = s.nodes[n].children.iter().find(|c| !["return", "rewrite", "set", "break"].iter().any(|d| s.is(**c, d))) {
            found(s.span(*c), format!("\"{}\" inside \"if\"", String::from_utf8_lossy(&s.nodes[*c].d.name.text)));
        }
    },
    "ssrf" Harm "proxy_pass to a host that the client names"
    "Whoever can send a request chooses where the server connects to, inside the network too."
    "Take the host from a map with known values."
    |s, _, found| for n in s.all("proxy_pass") {
        let url = s.arg(n, 0);
        let host = url.split("://").nth(1).unwrap_or(&url).split('/').next().unwrap_or_default();
        // A path behind the name is no part of it.
        let cut = ["$uri", "$request_uri"].iter().filter_map(|v| host.find(v)).filter(|at| *at > 0).min();
        let host = &host[..cut.unwrap_or(host.len())];
        if ["$http_", "$arg_", "$cookie_", "$host", "$1", "$2", "$uri", "$request_uri", "$args"].iter().any(|v| host.contains(v)) {
            found(s.arg_span(n, 0), format!("the client chooses {host}"));
        }
    },
    "host-spoofing" Warning "$http_host passed on"
    "$http_host is the field as the client wrote it, even where the request line names another host; applications build links and resets from it."
    "proxy_set_header Host $host;"
    |s, _, found| for n in s.all("proxy_set_header") {
        if s.arg(n, 0).eq_ignore_ascii_case("host") && s.arg(n, 1).contains("$http_host") {
            found(s.arg_span(n, 1), "the client's own text, unchecked".to_owned());
        }
    },
    "splitting" Harm "a decoded path in a header or redirect"
    "$uri and $document_uri are decoded: %0d%0a in a request becomes a line of its own in the response."
    "$request_uri."
    |s, _, found| for name in ["return", "rewrite", "add_header", "proxy_set_header"] {
        for n in s.all(name) {
            for (i, a) in s.args(n).iter().enumerate() {
                let is_target = name == "return" && (a.starts_with("http") || s.arg(n, 0).starts_with('3')) || name != "return" && name != "rewrite";
                if is_target && (a.contains("$uri") || a.contains("$document_uri")) {
                    found(s.arg_span(n, i), "the decoded path".to_owned());
                }
            }
        }
    },
    "missing-resolver" Harm "a name with variables and no resolver"
    "Names that are known only when a request comes need a resolver; without one each request is answered with 502."
    "resolver ADDRESS; with the address of the name server."
    |s, _, found| for n in s.all("proxy_pass").filter(|n| s.arg(*n, 0).contains('$')) {
        if s.effective(s.parent(n), "resolver").is_none() {
            let url = s.arg(n, 0);
            let host = url.split("://").nth(1).unwrap_or(&url).split(['/', ':']).next().unwrap_or_default();
            if host.contains('$') {
                found(s.arg_span(n, 0), "no resolver here or around".to_owned());
            }
        }
    },
    "valid-referers" Warning "valid_referers none"
    "Whoever leaves the field out passes."
    "Leave \"none\" out where the check guards anything."
    |s, _, found| word(s, found, "valid_referers", "none", "requests without Referer pass"),
    "allow-without-deny" Harm "allow without deny"
    "A list of allow alone lets everybody in."
    "deny all; behind it."
    |s, _, found| for n in s.all("allow") {
        let block = s.parent(n);
        let first = s.child(block, "allow") == Some(n);
        if first && s.child(block, "deny").is_none() && s.arg(n, 0) != "all" {
            found(s.span(n), "nobody is denied".to_owned());
        }
    },
    "return-before-access" Harm "return in a block with allow or deny"
    "return acts before addresses and passwords are looked at: whoever is denied gets the answer too."
    "Put what is guarded into a location of its own, or use geo with if."
    |s, _, found| for n in s.all("return").filter(|n| !s.parent(*n).is_some_and(|p| s.is(p, "if"))) {
        let block = s.parent(n);
        if ["deny", "auth_basic", "auth_request"].iter().any(|d| s.child(block, d).is_some()) {
            found(s.span(n), "answered before access is checked".to_owned());
        }
    },
    "regex-unanchored" Warning "a location for scripts that does not end with $"
    "location ~ \\.php also takes /upload/x.php.jpg, and hands it to the interpreter."
    "location ~ \\.php$"
    |s, _, found| for n in s.all("location").filter(|n| s.arg(*n, 0).starts_with('~')) {
        let pattern = s.args(n).last().cloned().unwrap_or_default().trim_start_matches(['~', '*']).to_owned();
        let script = ["\\.php", "\\.cgi", "\\.pl", "\\.py"].iter().any(|e| pattern.ends_with(e));
        if script {
            found(s.span(n), format!("{pattern} also matches in the middle of a name"));
        }
    },
    "stub-status-open" Warning "stub_status for everybody"
    "It tells strangers how busy the server is."
    "allow 127.0.0.1; deny all; beside it."
    |s, _, found| for n in s.all("stub_status") {
        let guarded = ["deny", "auth_basic", "auth_request"].iter().any(|d| s.effective(s.parent(n), d).is_some());
        let local = s.around(n, "server").is_some_and(|b| {
            let mut listens = s.level(Some(b)).iter().filter(|l| s.is(**l, "listen")).peekable();
            listens.peek().is_some() && listens.all(|l| ["127.", "[::1]", "unix:", "localhost"].iter().any(|p| s.arg(*l, 0).starts_with(p)))
        });
        if !guarded && !local {
            found(s.span(n), "no allow and deny beside it".to_owned());
        }
    },
    "origin-unanchored" Harm "an origin or referer that only has to contain a name"
    "A pattern without ^ and $ is matched by https://example.com.evil.net too."
    "^https://example\\.com$"
    |s, _, found| for n in s.all("if") {
        let words = s.args(n).join(" ");
        let Some((_, pattern)) = words.split_once('~').filter(|(w, _)| w.contains("$http_origin") || w.contains("$http_referer")) else { continue };
        if !(pattern.contains('^') && pattern.trim_end_matches([')', ' ', '"']).ends_with('$')) {
            found(s.span(n), "any name that contains it passes".to_owned());
        }
    },
    "error-log-off" Harm "error_log off"
    "There is no such value: a file named \"off\" is written."
    "error_log /dev/null crit; if nothing shall be kept, which is rarely wise."
    |s, _, found| word(s, found, "error_log", "off", "writes a file of that name"),
}
