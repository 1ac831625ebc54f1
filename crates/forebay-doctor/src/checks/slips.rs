//! Checks of small slips: endings left open, limits for a site that are meant for one client, guards by what clients write.

use super::ask::{children, has, http_server, http_servers, is_local, is_wide, parameter, pass_of};
use super::general::number;
use super::patterns::conditions;
use super::{Check, checks};
use crate::routes;
use crate::scene::Scene;
use forebay_conf::tree::Span;
use forebay_conf::units;

/// Parts of paths that are not for everybody.
const KEPT: [&str; 14] = [
    "admin",
    "internal",
    "private",
    "manage",
    "management",
    "metrics",
    "status",
    "debug",
    "console",
    "actuator",
    "backoffice",
    "wp-admin",
    "secure",
    "restricted",
];

/// Fields that a program writes as it likes, and that tell nothing about who it is.
const WRITTEN: [&str; 5] = ["host", "http_host", "http_x_requested_with", "http_origin", "ssl_server_name"];

/// Reports guards by the name that was asked for, or another field that its sender writes.
fn written_guards(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let negated = |operator: &str| operator.starts_with('!');
    for c in conditions(s).filter(|c| WRITTEN.contains(&c.variable.as_str()) && negated(&c.operator)) {
        let Some(location) = s.parent(c.node).filter(|p| s.is(*p, "location") && c.refuses(s)) else {
            continue;
        };
        let path = s.args(location).join(" ").to_ascii_lowercase();
        if let Some(part) = path.split(['/', '^', '$', '(', ')', '|', ' ']).find(|p| KEPT.contains(p)) {
            found(
                s.span(c.node),
                format!("all that keeps strangers out of /{part} is ${}, which they write", c.variable),
            );
        }
    }
}

/// Returns the ending of a pattern that other endings begin with: `.js` of `.json`.
fn open_ending(pattern: &str) -> Option<(&'static str, &'static str)> {
    const LONGER: [(&str, &str); 7] = [
        ("js", "json"),
        ("php", "php.jpg"),
        ("phtml", "phtml.jpg"),
        ("htm", "html.bak"),
        ("cgi", "cgi.txt"),
        ("pl", "plist"),
        ("py", "pyc"),
    ];
    let bare = pattern.strip_prefix("\\.")?;
    let plain = bare.trim_start_matches("(?:").trim_start_matches('(').trim_end_matches(')');
    let closed = plain.contains(['$', '/', '\\', '?', '*', '+', '(', '[']);
    LONGER.into_iter().find(|(own, _)| !closed && plain.split('|').any(|w| w == *own))
}

/// Reports patterns for endings after which a name may go on.
fn open_endings(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("location") {
        let Some(pattern) = routes::pattern(s, n) else { continue };
        // A pattern for PHP alone has a rule of its own, and refusing more does no harm.
        let other = pattern.contains("\\.php") || super::ask::refuses_all(s, n);
        if let Some((own, longer)) = open_ending(&pattern).filter(|_| !other) {
            found(s.span(n), format!("without $ it takes .{longer} for .{own}"));
        }
    }
}

/// Returns the requests a minute of a zone.
fn rate(s: &Scene<'_>, zone: &str) -> Option<u64> {
    let is_it = |n: &usize| parameter(s, *n, "zone").is_some_and(|z| z.split(':').next() == Some(zone));
    let rate = parameter(s, s.all("limit_req_zone").find(is_it)?, "rate")?;
    let (count, unit) = rate.split_once("r/")?;
    let count: u64 = count.parse().ok()?;
    Some(if unit == "s" { count.saturating_mul(60) } else { count })
}

/// Reports limits for a whole site under which one page with its pictures does not load.
fn tight_limits(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("limit_req").filter(|n| is_wide(s, *n) && s.around(*n, "http").is_some()) {
        let burst = parameter(s, n, "burst").and_then(|b| b.parse::<u64>().ok()).unwrap_or(0);
        let rate = rate(s, parameter(s, n, "zone").unwrap_or_default());
        if let Some(rate) = rate.filter(|r| *r <= 120 && burst < 10) {
            found(
                s.span(n),
                format!(
                    "{rate} requests a minute and a burst of {burst}: a page with its pictures needs more"
                ),
            );
        }
    }
    for n in s.all("limit_conn").filter(|n| is_wide(s, *n) && s.around(*n, "http").is_some()) {
        let count = s.arg(n, 1).parse::<u64>().ok();
        let zone = s.arg(n, 0);
        let own = s.all("limit_conn_zone").any(|z| {
            s.arg(z, 0).contains("remote_addr")
                && parameter(s, z, "zone").is_some_and(|p| p.split(':').next() == Some(zone))
        });
        if let Some(count) = count.filter(|c| *c <= 2 && own) {
            found(
                s.span(n),
                format!(
                    "{count} at a time: a browser asks for six things at once, and with HTTP/2 for a hundred"
                ),
            );
        }
    }
}

/// Reports lists that refuse the rest of IPv4 only.
fn v4_lists(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("deny").filter(|n| s.arg(*n, 0) == "0.0.0.0/0") {
        let others = ["all", "::/0"];
        if !s.level(s.parent(n)).iter().any(|d| s.is(*d, "deny") && others.contains(&s.arg(*d, 0))) {
            found(s.span(n), "clients with IPv6 pass".to_owned());
        }
    }
}

/// Reports sites that answer in the clear beside TLS.
fn plain_beside_tls(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s).filter(|b| !is_local(s, *b)) {
        let mut listens = children(s, server, "listen");
        let tls = children(s, server, "listen").any(|l| has(s, l, "ssl"));
        let plain = listens.find(|l| {
            let bare = !has(s, *l, "ssl") && !has(s, *l, "quic") && !has(s, *l, "proxy_protocol");
            bare && (s.arg(*l, 0) == "80" || s.arg(*l, 0).ends_with(":80"))
        });
        // A condition or a redirect may send plain requests away.
        let sent_away = s.inside(server).any(|n| {
            let redirects = (s.is(n, "return") || s.is(n, "rewrite"))
                && s.args(n).iter().any(|a| a.starts_with("https://"));
            redirects || s.is(n, "return") && s.parent(n) == Some(server)
        });
        let personal = s.inside(server).any(|n| s.is(n, "location") && pass_of(s, n).is_some());
        let catch_all =
            children(s, server, "server_name").all(|n| s.arg(n, 0) == "_" || s.arg(n, 0).is_empty());
        if let Some(l) = plain.filter(|_| tls && personal && !sent_away && !catch_all && !s.is_partial()) {
            found(
                s.span(l),
                "what is asked for without TLS is answered without it, cookies included".to_owned(),
            );
        }
    }
}

checks! { Check;
    "guard-by-name" |s, _, found| written_guards(s, found),
    "ending-open" |s, _, found| open_endings(s, found),
    "limit-tight" |s, _, found| tight_limits(s, found),
    "deny-v4-only" |s, _, found| v4_lists(s, found),
    "plain-beside-tls" |s, _, found| plain_beside_tls(s, found),
    "script-by-client" |s, _, found| for n in ["fastcgi_param", "uwsgi_param", "scgi_param"].into_iter().flat_map(|name| s.all(name)) {
        let path = ["SCRIPT_FILENAME", "SCRIPT_NAME", "DOCUMENT_ROOT", "PATH_TRANSLATED", "UWSGI_FILE", "UWSGI_CHDIR", "UWSGI_MODULE"].contains(&s.arg(n, 0));
        if let Some(v) = super::ask::client_field(s, s.parent(n), s.arg(n, 1)).filter(|v| path && v != "http_host") {
            found(s.arg_span(n, 1), format!("${v} chooses the file that is run"));
        }
    },
    "error-as-redirect" |s, _, found| for n in s.all("error_page") {
        let args = s.args(n);
        let code = args.iter().find(|a| *a == "404" || *a == "410" || a.len() == 3 && a.starts_with('5'));
        let moved = args.iter().any(|a| ["=301", "=302", "=303", "=307", "=308"].contains(&&**a));
        if let Some(code) = code.filter(|_| moved) {
            found(s.span(n), format!("clients, search engines and monitors see a redirect, and never the {code}"));
        }
    },
    "try-files-circle" |s, _, found| for n in s.all("try_files") {
        let Some(location) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let last = s.last_arg(n);
        let prefix = routes::prefix(s, location).filter(|p| p.len() > 1 && *p == last);
        // A folder or a file of that name ends it.
        if prefix.is_some() && http_server(s, n).is_some() && !last.contains('.') && !last.ends_with('/') {
            found(s.span(n), format!("{last} comes to this location again, until the server gives up with 500"));
        }
    },
    "names-kept-long" |s, _, found| for n in s.all("resolver") {
        let valid = parameter(s, n, "valid").and_then(|t| units::time_secs(t.as_bytes()));
        if let Some(t) = valid.filter(|t| *t > 3600) {
            found(s.span(n), format!("an upstream that has moved is looked for at its old address for {} h", t / 3600));
        }
    },
    "connections-none" |s, _, found| for n in s.all("worker_connections") {
        if let Some(count) = number(s, n).filter(|c| *c < 32) {
            found(s.arg_span(n, 0), format!("{count} connections, those to upstreams and the listeners included"));
        }
    },
}
