//! Checks of answers: fields with values that nobody knows, pages made of requests, redirects and files in the place of others.

use super::ask::{is_guarded, seconds};
use super::{Check, checks};
use crate::scene::Scene;
use crate::variables::named;
use forebay_conf::tree::Span;
use forebay_conf::units;

/// Policies of Referrer-Policy.
const REFERRER: [&str; 8] = [
    "no-referrer",
    "no-referrer-when-downgrade",
    "origin",
    "origin-when-cross-origin",
    "same-origin",
    "strict-origin",
    "strict-origin-when-cross-origin",
    "unsafe-url",
];

/// Words of policies that have to stand in quotes.
const QUOTED: [&str; 6] = ["self", "none", "unsafe-inline", "unsafe-eval", "strict-dynamic", "unsafe-hashes"];

/// Returns what is wrong about the value of a field.
fn fault_of_value(name: &str, value: &str) -> Option<String> {
    let one_of = |values: &[&str]| {
        // Some are items with parameters (RFC 9651, section 3.3).
        let item = value.split(';').next().unwrap_or_default().trim();
        let known = values.contains(&item.to_ascii_lowercase().as_str());
        (!known).then(|| format!("\"{value}\" is none of {}", values.join(", ")))
    };
    match name {
        "x-content-type-options" => one_of(&["nosniff"]),
        "access-control-allow-credentials" => one_of(&["true"]),
        "cross-origin-opener-policy" => {
            one_of(&["same-origin", "same-origin-allow-popups", "noopener-allow-popups", "unsafe-none"])
        }
        "cross-origin-embedder-policy" => one_of(&["require-corp", "credentialless", "unsafe-none"]),
        "cross-origin-resource-policy" => one_of(&["same-site", "same-origin", "cross-origin"]),
        "referrer-policy" => value
            .split(',')
            .map(str::trim)
            .find(|v| !REFERRER.contains(&v.to_ascii_lowercase().as_str()))
            .map(|v| format!("\"{v}\" is no policy")),
        "access-control-allow-origin" => origin_fault(value),
        "content-security-policy" | "content-security-policy-report-only" => {
            let word = value.split([' ', ';']).find(|w| QUOTED.contains(w));
            word.map(|w| format!("{w} without quotes is the host of that name"))
        }
        "permissions-policy" => {
            let old = ["'none'", "'self'"].into_iter().find(|w| value.contains(w));
            old.map(|w| format!("{w} is of the old Feature-Policy, where this field has =() and =(self)"))
        }
        _ => None,
    }
}

fn origin_fault(value: &str) -> Option<String> {
    if value.contains(',') || value.split_whitespace().count() > 1 {
        Some("a browser takes one origin, not a list".to_owned())
    } else if value.contains('*') && value != "*" {
        Some("a browser takes * alone, or a whole origin".to_owned())
    } else if value.split_once("://").is_none() && !["*", "null", ""].contains(&value) {
        Some(format!("\"{value}\" has no scheme, so no origin is equal to it"))
    } else if value.split_once("://").is_some_and(|(_, host)| host.contains('/')) {
        Some("an origin has no path, so none is equal to it".to_owned())
    } else {
        None
    }
}

/// Reports pages of HTML that repeat what is in a request.
fn echoes(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("return").filter(|n| s.args(*n).len() > 1 && !s.arg(*n, 0).starts_with('3')) {
        let block = s.parent(n).map(|p| if s.is(p, "if") { s.parent(p).unwrap_or(p) } else { p });
        let is_html = |text: &str| ["html", "svg", "javascript", "xml"].iter().any(|t| text.contains(t));
        let by_type = s.effective(block, "default_type").is_some_and(|t| is_html(s.arg(t, 0)));
        let by_field = s.level(block).iter().any(|h| {
            s.is(*h, "add_header")
                && s.arg(*h, 0).eq_ignore_ascii_case("content-type")
                && is_html(s.arg(*h, 1))
        });
        let own = ["arg_", "http_", "cookie_"];
        let raw = ["args", "query_string", "uri", "document_uri", "request_uri", "request", "request_body"];
        let text = s.arg(n, 1);
        let names = named(text);
        let name = names.iter().find(|(_, v)| own.iter().any(|o| v.starts_with(o)) || raw.contains(v));
        if let Some((_, v)) = name.filter(|_| by_type || by_field) {
            found(s.arg_span(n, 1), format!("scripts in ${v} run in the page"));
        }
    }
}

/// Variables about the insides of the server.
const INSIDES: [&str; 14] = [
    "upstream_addr",
    "server_addr",
    "document_root",
    "realpath_root",
    "request_filename",
    "pid",
    "nginx_version",
    "proxy_host",
    "upstream_http_server",
    "upstream_http_x_powered_by",
    "upstream_http_x_accel_redirect",
    "ssl_session_id",
    "remote_user",
    "http_authorization",
];

/// Fields that an upstream does not say to clients.
const HIDDEN: [&str; 8] = [
    "x-accel-redirect",
    "x-accel-expires",
    "x-accel-limit-rate",
    "x-accel-buffering",
    "x-accel-charset",
    "server",
    "x-powered-by",
    "x-aspnet-version",
];

/// Fields that protect a page.
const PROTECTING: [&str; 5] = [
    "strict-transport-security",
    "content-security-policy",
    "x-frame-options",
    "x-content-type-options",
    "referrer-policy",
];

/// Parts of names of files that have to be new: those that name the others, and lists of live streams.
const LIVE: [&str; 10] = [
    "sw.js",
    "service-worker",
    "serviceworker",
    "m3u8",
    "mpd",
    "version.json",
    "manifest.json",
    "asset-manifest",
    "remoteentry.js",
    "latest.yml",
];

/// Returns the part of the path of a location by which its files have to be new.
fn live_name(s: &Scene<'_>, location: usize) -> Option<&'static str> {
    let text = s.args(location).join(" ").to_ascii_lowercase().replace('\\', "");
    // A pattern for many endings is about ordinary files.
    let many = ["css", "png", "jpg", "woff"].iter().any(|e| text.contains(e));
    LIVE.into_iter().find(|name| text.contains(name) && !many)
}

/// Returns the seconds for which browsers or a cache keep responses by a directive.
fn kept(s: &Scene<'_>, n: usize) -> Option<u64> {
    if s.is(n, "add_header") {
        let value = s.arg(n, 1).to_ascii_lowercase();
        let field = s.arg(n, 0).eq_ignore_ascii_case("cache-control");
        return value.split_once("max-age=").filter(|_| field)?.1.split([',', ' ']).next()?.parse().ok();
    }
    let last = s.last_arg(n);
    if last == "max" {
        Some(u64::from(u32::MAX))
    } else {
        units::time_secs(last.trim_start_matches("modified").trim().as_bytes())
    }
}

/// Reports files that have to be new and are kept.
fn stale_files(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let names = ["expires", "add_header", "proxy_cache_valid", "fastcgi_cache_valid"];
    for n in names.into_iter().flat_map(|name| s.all(name)) {
        let Some(location) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let errors = s.is(n, "proxy_cache_valid")
            && s.args(n).len() > 1
            && !s.args(n).iter().any(|a| a == "200" || a == "any");
        let Some(name) = live_name(s, location).filter(|_| !errors) else { continue };
        let most = if name == "m3u8" || name == "mpd" { 60 } else { 3600 };
        if let Some(t) = kept(s, n).filter(|t| *t > most) {
            found(s.span(n), format!("{name} has to be new, and is kept for {} min", t / 60));
        }
    }
}

checks! { Check;
    "field-value" |s, _, found| for n in s.all("add_header").filter(|n| !s.arg(*n, 1).contains('$')) {
        if let Some(fault) = fault_of_value(&s.arg(n, 0).to_ascii_lowercase(), s.arg(n, 1).trim()) {
            found(s.arg_span(n, 1), fault);
        }
    },
    "referrer-unsafe" |s, _, found| for n in s.all("add_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("referrer-policy")) {
        if s.arg(n, 1).trim().ends_with("unsafe-url") {
            found(s.arg_span(n, 1), "whole addresses, with what is secret in them, go to every other site".to_owned());
        }
    },
    "page-of-request" |s, _, found| echoes(s, found),
    "default-type-html" |s, _, found| for n in s.all("default_type").filter(|n| s.arg(*n, 0) == "text/html") {
        if s.parent(n).is_some_and(|p| s.is(p, "http") || s.is(p, "server")) {
            found(s.arg_span(n, 0), "files of unknown types are shown as pages, with the scripts in them".to_owned());
        }
    },
    "insides-in-field" |s, _, found| {
        for n in s.all("add_header").chain(s.all("add_trailer")) {
            let value = s.arg(n, 1);
            let names = named(value);
            if let Some((_, v)) = names.iter().find(|(_, v)| INSIDES.contains(v)).filter(|_| !is_guarded(s, s.parent(n))) {
                found(s.arg_span(n, 1), format!("every client is told ${v}"));
            }
        }
        for n in ["proxy_pass_header", "fastcgi_pass_header", "uwsgi_pass_header", "scgi_pass_header", "grpc_pass_header"].into_iter().flat_map(|name| s.all(name)) {
            let name = s.arg(n, 0).to_ascii_lowercase();
            if HIDDEN.contains(&name.as_str()) && name != "x-accel-expires" {
                found(s.arg_span(n, 0), format!("every client is told {}", s.arg(n, 0)));
            }
        }
    },
    "protection-hidden" |s, _, found| for n in ["proxy_hide_header", "fastcgi_hide_header", "uwsgi_hide_header", "scgi_hide_header"].into_iter().flat_map(|name| s.all(name)) {
        let name = s.arg(n, 0).to_ascii_lowercase();
        let own = |block: Option<usize>| super::ask::fields_of(s, block).iter().any(|h| s.arg(*h, 0).eq_ignore_ascii_case(&name));
        let below = s.parent(n).is_some_and(|p| s.inside(p).any(|h| s.is(h, "add_header") && s.arg(h, 0).eq_ignore_ascii_case(&name)));
        if PROTECTING.contains(&name.as_str()) && !own(s.parent(n)) && !below && !s.is_partial() {
            found(s.arg_span(n, 0), format!("{} of the application is taken away, and nothing is in its place", s.arg(n, 0)));
        }
    },
    "cookie-domain-any" |s, _, found| for n in ["proxy_cookie_domain"].into_iter().flat_map(|name| s.all(name)) {
        let any = ["~.*", "~.", "~.+", "~^.*$", "~^.+$", "~"].contains(&s.arg(n, 0));
        if any && s.arg(n, 1).contains('.') {
            found(s.span(n), format!("every cookie goes to all hosts of {}", s.arg(n, 1)));
        }
    },
    "validators-off" |s, _, found| {
        for n in s.all("if_modified_since").filter(|n| s.arg(*n, 0) == "off") {
            found(s.span(n), "a file that a browser has is sent again".to_owned());
        }
        // With times alone it works as well; without both of them nothing does.
        let no_times = |n: usize| s.effective(s.parent(n), "if_modified_since").is_some_and(|t| s.arg(t, 0) == "off");
        for n in s.all("etag").filter(|n| s.arg(*n, 0) == "off" && no_times(*n)) {
            found(s.span(n), "a file is known neither by its tag nor by its time".to_owned());
        }
    },
    "live-file-kept" |s, _, found| stale_files(s, found),
    "redirects-cached" |s, _, found| for n in super::ask::FAMILIES.into_iter().flat_map(|f| s.all(match f { "proxy" => "proxy_cache_valid", "fastcgi" => "fastcgi_cache_valid", "uwsgi" => "uwsgi_cache_valid", _ => "scgi_cache_valid" })) {
        let args = s.args(n);
        let temporary = args.iter().find(|a| ["302", "303", "307"].contains(&&***a));
        let time = args.len().checked_sub(1).and_then(|last| seconds(s, n, last));
        if let (Some(code), Some(t)) = (temporary, time.filter(|t| *t > 86_400)) {
            found(s.span(n), format!("{code} is for the moment, and is kept for {} days", t / 86_400));
        }
    },
}
