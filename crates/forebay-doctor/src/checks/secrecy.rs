//! Checks of TLS and of the fields of responses.

use super::ask::{carried, fields_of, has, http_server, http_servers};
use super::safety::is_near;
use super::{Check, checks};
use crate::scene::Scene;
use crate::variables::named;
use forebay_conf::tree::Span;
use std::collections::HashSet;
use std::net::IpAddr;

/// Directives by which requests reach an upstream over TLS: their schemes, and the family of their settings.
const TLS_PASSES: [(&str, &str, &str); 3] = [
    ("proxy_pass", "https://", "proxy"),
    ("grpc_pass", "grpcs://", "grpc"),
    ("uwsgi_pass", "suwsgi://", "uwsgi"),
];

/// Fields that protect a page, and that an error page needs as well.
const PROTECTING: [&str; 8] = [
    "strict-transport-security",
    "content-security-policy",
    "x-frame-options",
    "x-content-type-options",
    "referrer-policy",
    "permissions-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
];

/// Response fields that browsers ignore today.
const OBSOLETE: [&str; 4] = ["public-key-pins", "expect-ct", "x-ua-compatible", "feature-policy"];

/// Returns the host in an address that is on another machine; `None` for addresses nearby.
pub(super) fn far_host<'a>(s: &'a Scene<'_>, url: &'a str) -> Option<&'a str> {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest).split('/').next()?;
    if let Some(group) = super::ask::group_of(s, url) {
        return super::ask::children(s, group, "server").map(|n| s.arg(n, 0)).find(|a| is_far(a));
    }
    is_far(host).then_some(host)
}

pub(super) fn is_far(address: &str) -> bool {
    let bare = match address.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => address.split(':').next().unwrap_or_default(),
    };
    match bare.parse::<IpAddr>() {
        Ok(ip) => !is_near(ip),
        // A name without a dot is one of the own network, as of a container.
        Err(_) => bare.contains('.') && !bare.starts_with('$'),
    }
}

/// Returns the seconds of `max-age` in a value of Strict-Transport-Security.
fn max_age(value: &str) -> Option<u64> {
    let lower = value.to_ascii_lowercase();
    let rest = lower.split_once("max-age")?.1.trim_start().strip_prefix('=')?.trim_start().trim_matches('"');
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn is_field(s: &Scene<'_>, n: usize, name: &str) -> bool {
    s.arg(n, 0).eq_ignore_ascii_case(name)
}

/// Returns `true` if a text is the origin of any request: no list restricts it.
fn is_any_origin(s: &Scene<'_>, block: Option<usize>, text: &str) -> bool {
    // Under a condition about the origin, the condition is what restricts.
    let mut at = block;
    while let Some(b) = at {
        if s.is(b, "if") && restricts_origin(&s.text(b)) {
            return false;
        }
        at = s.parent(b);
    }
    named(text)
        .into_iter()
        .any(|(_, name)| name == "http_origin" || by_default(s, block, name) || by_set(s, block, name))
}

/// Returns `true` if a condition lets some origins through only.
fn restricts_origin(condition: &str) -> bool {
    let Some((_, rest)) = condition.split_once("$http_origin") else { return false };
    let compares = rest.contains('~') || rest.contains('=');
    compares && !rest.contains("!=") && rest.contains(|c: char| c.is_ascii_alphanumeric())
}

/// Returns `true` if the default of a map is the origin of the request, or a pattern of it takes all.
fn by_default(s: &Scene<'_>, block: Option<usize>, name: &str) -> bool {
    let variable = format!("${name}");
    let maps = s.all("map").filter(|n| s.arg(*n, 1) == variable);
    maps.filter_map(|n| s.nodes.get(n)?.d.block.as_ref()).flat_map(|b| b.iter()).any(|entry| {
        let key = entry.name.as_str();
        let all = [
            "default",
            "~.",
            "~.*",
            "~.+",
            "~^",
            "~^.*$",
            "~*.*",
            "~^https?://",
            "~*^https?://.*$",
            "~^https?://.*$",
        ];
        let value = entry.args.first().map(|a| a.as_str().into_owned()).unwrap_or_default();
        all.contains(&key.as_ref())
            && (carried(s, block, &value).iter().any(|v| v == "http_origin")
                || value.starts_with('$') && key != "default")
    })
}

/// Returns `true` if `set` gives a variable the origin of the request, outside of a condition about it.
fn by_set(s: &Scene<'_>, block: Option<usize>, name: &str) -> bool {
    let Some(server) = block.and_then(|b| http_server(s, b)) else { return false };
    let variable = format!("${name}");
    let sets = s.named_inside(server, "set").filter(|n| s.arg(*n, 0) == variable);
    sets.filter(|n| s.arg(*n, 1).contains("$http_origin"))
        .any(|n| s.parent(n).is_some_and(|p| !s.is(p, "if") || !restricts_origin(&s.text(p))))
}

/// Reports sharing of responses with other origins.
fn shared(s: &Scene<'_>, with_credentials: bool, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("add_header").filter(|n| is_field(s, *n, "access-control-allow-origin")) {
        let block = s.parent(n);
        let beside = fields_of(s, block);
        let truly = |c: &&usize| {
            is_field(s, **c, "access-control-allow-credentials")
                && !s.arg(**c, 1).eq_ignore_ascii_case("false")
                && !s.arg(**c, 1).is_empty()
        };
        let credentials = beside.iter().any(|c| truly(&c));
        let value = s.arg(n, 1);
        if credentials != with_credentials {
            continue;
        }
        if is_any_origin(s, block, value) {
            let text = if credentials {
                "every site may act as the visitor and read the answers"
            } else {
                "every site may read the answers"
            };
            found(s.arg_span(n, 1), text.to_owned());
        } else if credentials && value == "*" {
            found(s.arg_span(n, 1), "browsers refuse * together with credentials".to_owned());
        }
    }
}

/// Returns `true` if TLS ends at a server.
pub(super) fn speaks_tls(s: &Scene<'_>, server: usize) -> bool {
    super::ask::children(s, server, "listen").any(|l| has(s, l, "ssl") || has(s, l, "quic"))
        || s.effective(Some(server), "ssl").is_some_and(|n| s.arg(n, 0) == "on")
}

checks! { Check;
    "early-data" |s, _, found| for n in s.all("ssl_early_data").filter(|n| s.arg(*n, 0) == "on") {
        let told = s.with_text("$ssl_early_data").next().is_some();
        let passes = super::general::proxies(s);
        if !told && passes {
            found(s.span(n), "a copied request is carried out again, and the application cannot tell".to_owned());
        }
    },
    "upstream-unverified" |s, _, found| for (name, scheme, family) in TLS_PASSES {
        for n in s.all(name).filter(|n| s.arg(*n, 0).starts_with(scheme) && s.around(*n, "http").is_some()) {
            let verify = s.effective(s.parent(n), &format!("{family}_ssl_verify"));
            let verified = verify.is_some_and(|v| s.arg(v, 0) == "on");
            // Turned off in so many words, it counts for machines nearby as well.
            let off = verify.is_some_and(|v| s.arg(v, 0) == "off");
            let named = off.then(|| s.arg(n, 0).trim_start_matches(scheme).split('/').next().unwrap_or_default());
            if let Some(host) = far_host(s, s.arg(n, 0)).or(named).filter(|_| !verified) {
                let at = verify.filter(|v| off && s.around(*v, "http").is_some()).map_or(s.arg_span(n, 0), |v| s.span(v));
                found(at, format!("nothing shows that it is {host} that answers"));
            }
        }
    },
    "upstream-sni" |s, _, found| for n in s.all("proxy_pass").filter(|n| s.arg(*n, 0).starts_with("https://") && s.around(*n, "http").is_some()) {
        let host = far_host(s, s.arg(n, 0)).filter(|h| h.split(':').next().is_some_and(|h| h.parse::<IpAddr>().is_err()));
        if let Some(host) = host.filter(|_| !s.on(s.parent(n), "proxy_ssl_server_name")) {
            found(s.arg_span(n, 0), format!("{host} is not told which certificate is wanted"));
        }
    },
    "client-certificate-unchecked" |s, _, found| for n in s.all("ssl_verify_client").filter(|n| s.arg(*n, 0).starts_with("optional")) {
        // A line in a log refuses nobody.
        let used = |c: usize| !s.is(c, "log_format");
        if !s.with_text("$ssl_client_verify").any(used) && !s.is_partial() {
            found(s.arg_span(n, 0), "nothing looks at $ssl_client_verify, so every client gets in".to_owned());
        }
    },
    "hsts-short" |s, _, found| for n in s.all("add_header").filter(|n| is_field(s, *n, "strict-transport-security")) {
        match max_age(s.arg(n, 1)) {
            Some(0) => found(s.arg_span(n, 1), "it has browsers forget that the site is on TLS".to_owned()),
            Some(age) if age < 2_592_000 => found(s.arg_span(n, 1), format!("forgotten after {} hours", age / 3600)),
            Some(age) if age < 31_536_000 && s.arg(n, 1).contains("preload") => found(s.arg_span(n, 1), "lists for browsers take a year at least".to_owned()),
            None if !s.arg(n, 1).contains('$') => found(s.arg_span(n, 1), "without max-age browsers ignore it".to_owned()),
            _ => {}
        }
    },
    "hsts-plain" |s, _, found| for n in s.all("add_header").filter(|n| is_field(s, *n, "strict-transport-security")) {
        let server = http_server(s, n).filter(|b| s.child(Some(*b), "listen").is_some());
        let behind = server.is_some_and(|b| super::ask::children(s, b, "listen").any(|l| has(s, l, "proxy_protocol") || s.arg(l, 0).ends_with("443")));
        if server.is_some_and(|b| !speaks_tls(s, b)) && !behind {
            found(s.span(n), "browsers ignore it over plain HTTP".to_owned());
        }
    },
    "no-forward-secrecy" |s, _, found| for n in s.all("ssl_ciphers") {
        let list = s.arg(n, 0).to_ascii_uppercase();
        let wanted: Vec<&str> = list.split([':', ' ', ',']).filter(|w| !w.is_empty() && !w.starts_with(['!', '-', '@', '+'])).collect();
        let agrees = |w: &str| ["ECDH", "DHE", "EDH", "EECDH", "HIGH", "MEDIUM", "DEFAULT", "ALL", "PROFILE", "TLS_", "CHACHA", "$"].iter().any(|p| w.contains(p));
        if !wanted.is_empty() && !wanted.iter().any(|w| agrees(w)) {
            found(s.arg_span(n, 0), "whoever gets the key reads what was recorded".to_owned());
        }
    },
    "weak-curve" |s, _, found| for n in s.all("ssl_ecdh_curve") {
        let list = s.arg(n, 0).to_ascii_lowercase();
        if let Some(curve) = list.split(':').find(|c| ["192", "160", "163", "112", "128", "224", "233"].iter().any(|b| c.contains(b))) {
            found(s.arg_span(n, 0), format!("{curve} is too small"));
        }
    },
    "curve-slow" |s, _, found| for n in s.all("ssl_ecdh_curve") {
        let list = s.arg(n, 0).to_ascii_lowercase();
        let first = list.split(':').next().unwrap_or_default().to_owned();
        if first.contains("521") || first.contains("384") {
            found(s.arg_span(n, 0), format!("{first} first: each full handshake takes several times the time of x25519"));
        }
    },
    "tls13-off" |s, _, found| for n in s.all("ssl_protocols").filter(|n| has(s, *n, "TLSv1.2") && !has(s, *n, "TLSv1.3")) {
        found(s.span(n), "handshakes take a round trip more".to_owned());
    },
    "tls-port-plain" |s, _, found| { let with_tls: HashSet<&str> = s.all("listen").filter(|o| has(s, *o, "ssl")).map(|o| s.arg(o, 0)).collect(); for server in http_servers(s) {
        let keyed = s.effective(Some(server), "ssl_certificate").is_some();
        let elsewhere = |l: usize| with_tls.contains(s.arg(l, 0));
        let is_usual = |l: &usize| s.arg(*l, 0) == "443" || s.arg(*l, 0).ends_with(":443");
        for l in super::ask::children(s, server, "listen").filter(is_usual) {
            let old = s.effective(Some(server), "ssl").is_some_and(|n| s.arg(n, 0) == "on") || s.is_refused("ssl");
            if keyed && !old && !speaks_tls(s, server) && !has(s, l, "proxy_protocol") && !elsewhere(l) {
                found(s.span(l), "without \"ssl\" it speaks plain HTTP".to_owned());
            }
        }
    } },
    "session-cache-builtin" |s, _, found| for n in s.all("ssl_session_cache").filter(|n| s.args(*n).iter().any(|a| a.starts_with("builtin"))) {
        found(s.span(n), "each worker has its own, so most returning clients are not known".to_owned());
    },
    "session-cache-small" |s, _, found| for n in s.all("ssl_session_cache") {
        for a in s.args(n) {
            let size = a.strip_prefix("shared:").and_then(|z| forebay_conf::units::size(z.rsplit(':').next()?.as_bytes()));
            if let Some(size) = size.filter(|b| *b < 1 << 20) {
                found(s.span(n), format!("room for some {} sessions", size / 256));
            }
        }
    },
    "http2-off" |s, h, found| {
        let faulty = h.target.nginx().is_some_and(super::faults::http2_is_faulty);
        let until = if faulty { ", once nginx is a version without open faults of HTTP/2" } else { "" };
        // A server that only redirects has one request for each client.
        let refuses = |l: usize| s.on(s.parent(l), "ssl_reject_handshake") || s.child(s.parent(l), "return").is_some();
        let tls = s.all("listen").find(|l| has(s, *l, "ssl") && s.around(*l, "http").is_some() && !refuses(*l));
        let spoken = s.all("http2").any(|n| s.arg(n, 0) == "on") || s.all("listen").any(|l| has(s, l, "http2"));
        if let Some(l) = tls.filter(|_| !spoken) {
            found(s.span(l), format!("browsers open up to six connections for what one could carry{until}"));
        }
    },
    "ssl-buffer-small" |s, _, found| for n in s.all("ssl_buffer_size") {
        if let Some(size) = super::general::size(s, n, 0).filter(|b| *b < 4096) {
            found(s.arg_span(n, 0), format!("a record for each {size} bytes"));
        }
    },
    "cors-credentials" |s, _, found| shared(s, true, found),
    "cors-any" |s, _, found| shared(s, false, found),
    "field-not-always" |s, _, found| for n in s.all("add_header") {
        if PROTECTING.iter().any(|f| is_field(s, n, f)) && !has(s, n, "always") {
            found(s.span(n), format!("{} is missing on error pages", s.arg(n, 0)));
        }
    },
    "field-obsolete" |s, _, found| for n in s.all("add_header") {
        if let Some(f) = OBSOLETE.iter().find(|f| is_field(s, n, f)) {
            found(s.span(n), format!("browsers ignore {f}"));
        }
    },
    "frame-options-value" |s, _, found| for n in s.all("add_header").filter(|n| is_field(s, *n, "x-frame-options")) {
        let value = s.arg(n, 1);
        if !value.contains('$') && !["deny", "sameorigin"].contains(&value.to_ascii_lowercase().trim_end_matches(';').trim()) {
            found(s.arg_span(n, 1), format!("\"{value}\" is no value of it, and ignored"));
        }
    },
    "cookie-flags" |s, _, found| {
        for n in s.all("proxy_cookie_flags") {
            if let Some(i) = s.args(n).iter().position(|a| matches!(a.to_ascii_lowercase().as_str(), "nosecure" | "nohttponly" | "nosamesite")) {
                found(s.arg_span(n, i), format!("{} takes a flag from the cookies of the application", s.arg(n, i)));
            }
        }
        for n in s.all("add_header").filter(|n| is_field(s, *n, "set-cookie")) {
        let lower = s.arg(n, 1).to_ascii_lowercase();
        let missing: Vec<&str> = ["secure", "httponly", "samesite"].into_iter().filter(|f| !lower.contains(f)).collect();
        if !missing.is_empty() && !lower.contains("$upstream") {
            found(s.arg_span(n, 1), format!("without {}", missing.join(", ")));
        }
    }
    },
    "csp-unsafe" |s, _, found| for n in s.all("add_header").filter(|n| is_field(s, *n, "content-security-policy")) {
        let value = s.arg(n, 1);
        let of = |name: &str| value.split(';').map(str::trim).find_map(|d| d.strip_prefix(name).map(str::to_owned));
        let scripts = of("script-src ").or_else(|| of("default-src ")).unwrap_or_default();
        let strict = scripts.contains("nonce-") || scripts.contains("sha256-") || scripts.contains("strict-dynamic");
        if scripts.contains("'unsafe-inline'") && !strict {
            found(s.arg_span(n, 1), "scripts in the page run, which is what the policy is to prevent".to_owned());
        } else if scripts.split(' ').any(|w| w == "*") {
            found(s.arg_span(n, 1), "scripts of every site run".to_owned());
        }
    },
}
