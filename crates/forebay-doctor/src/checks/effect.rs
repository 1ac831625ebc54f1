//! Checks of settings towards upstreams and of caches that have no effect, or another one than they seem to have.

use super::ask::{FAMILIES, carried, children, has, parameter};
use super::general::number;
use super::traffic::passing;
use super::{Check, checks};
use crate::scene::Scene;
use forebay_conf::units;
use std::collections::HashSet;
use std::net::IpAddr;

/// Returns the directives of a name in each family of protocols.
fn of_families<'s>(s: &'s Scene<'_>, rest: &'s str) -> impl Iterator<Item = (&'static str, usize)> + 's {
    FAMILIES.into_iter().flat_map(move |family| s.all(&format!("{family}_{rest}")).map(move |n| (family, n)))
}

/// Parts of paths that are not for everybody.
const GUARDED: [&str; 9] =
    ["admin", "internal", "private", "members", "member", "premium", "paid", "secure", "account"];

/// Variables that are another text with nearly every request.
const EVER_NEW: [&str; 10] = [
    "request_id",
    "msec",
    "time_iso8601",
    "time_local",
    "remote_addr",
    "binary_remote_addr",
    "remote_port",
    "connection",
    "http_user_agent",
    "http_cookie",
];

/// Directives whose sizes are in bytes, k or m.
const SIZES: [&str; 13] = [
    "client_body_buffer_size",
    "client_header_buffer_size",
    "large_client_header_buffers",
    "output_buffers",
    "limit_rate",
    "limit_rate_after",
    "sendfile_max_chunk",
    "ssl_buffer_size",
    "gzip_min_length",
    "postpone_output",
    "subrequest_output_buffer_size",
    "connection_pool_size",
    "request_pool_size",
];

/// Ends of the names of such directives of the families of protocols.
const SIZES_OF_FAMILIES: [&str; 5] =
    ["_buffer_size", "_buffers", "_busy_buffers_size", "_max_temp_file_size", "_temp_file_write_size"];

/// Returns the beginning of the argument with the size, if a directive has sizes in bytes, k or m.
fn before_size(name: &str) -> Option<&'static str> {
    let family = FAMILIES.into_iter().find_map(|family| name.strip_prefix(family));
    match name {
        "limit_req_zone" | "limit_conn_zone" => Some("zone="),
        "ssl_session_cache" => Some("shared:"),
        _ if name.ends_with("_cache_path") => Some("keys_zone="),
        _ if SIZES.contains(&name) => Some(""),
        _ => family.filter(|rest| SIZES_OF_FAMILIES.contains(rest)).map(|_| ""),
    }
}

/// Returns the size with `g` in an argument of a directive that takes none.
fn size_in_g<'a>(s: &Scene<'_>, n: usize, argument: &'a str) -> Option<&'a str> {
    let before = before_size(&s.nodes.get(n)?.d.name.as_str())?;
    let rest = argument.strip_prefix(before)?;
    // Behind the name of a zone.
    let size = if before.is_empty() { rest } else { rest.rsplit_once(':')?.1 };
    let digits = size.strip_suffix(['g', 'G'])?;
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then_some(size)
}

checks! { Check;
    "size-in-g" |s, _, found| for n in s.with_name(|name| before_size(name).is_some()) {
        for (i, argument) in s.args(n).iter().enumerate() {
            if let Some(size) = size_in_g(s, n, argument) {
                found(s.arg_span(n, i), format!("\"{size}\" is no size here, and the server does not start"));
            }
        }
    },
    "referer-guard" |s, _, found| for n in s.all("if").filter(|n| s.text(*n).contains("$invalid_referer")) {
        let Some(location) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let path = s.text(location).to_ascii_lowercase();
        let part = path.split(['/', '^', '$', '(', ')', '|', ' ']).find(|p| GUARDED.contains(p));
        let refuses = children(s, n, "return").any(|r| s.arg(r, 0).starts_with('4'));
        if let Some(part) = part.filter(|_| refuses) {
            found(s.span(n), format!("all that keeps strangers out of /{part} is a field that they write"));
        }
    },
    "upstream-timeout-tiny" |s, _, found| for (rest, least) in [("read_timeout", 2_000), ("connect_timeout", 50)] {
        for (_, n) in of_families(s, rest).filter(|(_, n)| s.around(*n, "http").is_some()) {
            let time = units::time_ms(s.arg(n, 0).as_bytes());
            if let Some(t) = time.filter(|t| *t < least && !super::traffic::upgrades(s, s.parent(n))) {
                found(s.arg_span(n, 0), format!("what takes longer than {t} ms is answered with 504"));
            }
        }
    },
    "request-fields-dropped" |s, _, found| {
        let asked = s.asked();
        for (_, n) in of_families(s, "pass_request_headers").filter(|(_, n)| s.arg(*n, 0) == "off") {
            if !s.parent(n).is_some_and(|b| asked.contains(&b)) {
                found(s.span(n), "cookies, logins, types and lengths do not reach the application".to_owned());
            }
        }
    },
    "intercept-alone" |s, _, found| for (_, n) in of_families(s, "intercept_errors").filter(|(_, n)| s.arg(*n, 0) == "on") {
        let below = s.parent(n).is_some_and(|p| s.named_inside(p, "error_page").next().is_some());
        if s.effective(s.parent(n), "error_page").is_none() && !below && !s.is_partial() {
            found(s.span(n), "there is no error_page here".to_owned());
        }
    },
    "cache-stale-denied" |s, _, found| for (_, n) in of_families(s, "cache_use_stale") {
        if let Some(i) = s.args(n).iter().position(|a| a == "http_403" || a == "http_404") {
            found(s.arg_span(n, i), "what the application has taken back is still given away".to_owned());
        }
    },
    "cache-unused" |s, _, found| if !s.is_partial() {
        for family in FAMILIES {
            let cache = format!("{family}_cache");
            let used: HashSet<&str> = s.all(&cache).map(|c| s.arg(c, 0)).collect();
            if used.iter().any(|name| name.contains('$')) {
                continue;
            }
            for n in s.all(&format!("{family}_cache_path")) {
                let zone = parameter(s, n, "keys_zone").and_then(|z| z.split(':').next()).unwrap_or_default();
                if !zone.is_empty() && !used.contains(zone) {
                    found(s.span(n), format!("no {cache} uses \"{zone}\", so nothing is kept"));
                }
            }
        }
    },
    "cache-key-apart" |s, _, found| for (family, n) in of_families(s, "cache_key") {
        let variables = carried(s, s.parent(n), &s.text(n));
        let used = s.parent(n).and_then(|p| s.effective(Some(p), &format!("{family}_cache")));
        let personal = used.is_some() && ["auth_basic", "auth_request"].iter().any(|d| s.effective(s.parent(n), d).is_some());
        let asked = s.parent(n).is_some_and(|b| s.asked().contains(&b));
        if let Some(v) = variables.iter().find(|v| EVER_NEW.contains(&v.as_str())).filter(|_| !personal && !asked) {
            found(s.span(n), format!("each ${v} has entries of its own: hardly anything is found again"));
        }
    },
    "cache-background" |s, _, found| for (family, n) in of_families(s, "cache_background_update").filter(|(_, n)| s.arg(*n, 0) == "on") {
        let stale = s.effective(s.parent(n), &format!("{family}_cache_use_stale"));
        let name = format!("{family}_cache_use_stale");
        let below = s.parent(n).is_some_and(|p| s.named_inside(p, &name).any(|c| has(s, c, "updating")));
        if !stale.is_some_and(|u| has(s, u, "updating")) && !below {
            found(s.span(n), "without \"updating\" in use_stale a request waits all the same".to_owned());
        }
    },
    "cache-min-uses" |s, _, found| for (_, n) in of_families(s, "cache_min_uses") {
        if let Some(uses) = number(s, n).filter(|u| *u >= 50) {
            found(s.arg_span(n, 0), format!("kept after {uses} requests only"));
        }
    },
    "retry-alone" |s, _, found| for (n, block) in passing(s) {
        let group = super::ask::group_of(s, s.arg(n, 0));
        let servers: Vec<&str> =
            group.into_iter().flat_map(|g| children(s, g, "server")).map(|n| s.arg(n, 0)).collect();
        // A name may have several addresses.
        let is_one = |a: &&str| a.starts_with("unix:") || a.split(':').next().is_some_and(|h| h.parse::<IpAddr>().is_ok());
        let alone = servers.len() == 1 && servers.iter().all(is_one);
        if let Some(next) = s.child(Some(block), "proxy_next_upstream").filter(|x| alone && s.arg(*x, 0) != "off") {
            found(s.span(next), "there is no other server to ask".to_owned());
        }
    },
}
