//! Checks of TLS: what peers prove, what connections can be read, and what HTTP/3 needs.

use super::ask::{children, group_of, has, http_server, http_servers};
use super::secrecy::{far_host, is_far, speaks_tls};
use super::{Check, checks};
use crate::scene::Scene;
use forebay_conf::tree::Span;
use std::collections::HashSet;
use std::net::IpAddr;

/// Directives by which requests are passed on over TLS: their schemes, and the family of their settings.
const TLS_PASSES: [(&str, &str, &str); 3] = [
    ("proxy_pass", "https://", "proxy"),
    ("grpc_pass", "grpcs://", "grpc"),
    ("uwsgi_pass", "suwsgi://", "uwsgi"),
];

/// Returns the directives that pass requests on over TLS, with the family of their settings.
fn tls_passes<'s>(s: &'s Scene<'_>) -> impl Iterator<Item = (usize, &'static str)> + 's {
    TLS_PASSES.into_iter().flat_map(move |(name, scheme, family)| {
        s.all(name).filter(move |n| s.arg(*n, 0).starts_with(scheme)).map(move |n| (n, family))
    })
}

/// Returns the host and the port of an address.
fn host_and_port(url: &str) -> (String, Option<u16>) {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    if let Some((host, after)) = authority.strip_prefix('[').and_then(|r| r.split_once(']')) {
        return (host.to_owned(), after.strip_prefix(':').and_then(|p| p.parse().ok()));
    }
    match authority.rsplit_once(':') {
        Some((host, port)) => (host.to_owned(), port.parse().ok()),
        None => (authority.to_owned(), None),
    }
}

/// Returns `true` if an address is one of this machine.
fn is_of_machine(host: &str) -> bool {
    host == "localhost" || host == "unix" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Reports upstreams of the own network whose certificates nobody looks at, once for each.
fn unverified(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let mut seen: Vec<String> = Vec::new();
    for (n, family) in tls_passes(s) {
        let url = s.arg(n, 0);
        let (host, _) = host_and_port(url);
        let servers =
            group_of(s, url).into_iter().flat_map(|g| children(s, g, "server")).map(|n| s.arg(n, 0));
        let near = servers.map(|a| host_and_port(a).0).chain([host.clone()]).any(|h| is_of_machine(&h));
        // Another machine, and "off" in so many words, have a rule of their own.
        let spoken = s.effective(s.parent(n), &format!("{family}_ssl_verify")).is_some();
        let other = far_host(s, url).is_some() || spoken || near || host.contains('$');
        if !other && !s.is_partial() && !seen.contains(&host) {
            found(
                s.arg_span(n, 0),
                format!("any certificate will do for {host}: {family}_ssl_verify is off by default"),
            );
            seen.push(host);
        }
    }
}

/// Reports upstreams that are numbers, and whose certificates are compared with these numbers.
fn number_names(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for (n, family) in tls_passes(s) {
        let (host, _) = host_and_port(s.arg(n, 0));
        let asks = |rest: &str| s.on(s.parent(n), &format!("{family}_ssl_{rest}"));
        let named = s.effective(s.parent(n), &format!("{family}_ssl_name")).is_some();
        if host.parse::<IpAddr>().is_ok() && !named && (asks("verify") || asks("server_name")) {
            found(
                s.arg_span(n, 0),
                format!("the certificate would have to be for {host}, and no name is sent"),
            );
        }
    }
}

/// Ends of names that are not for the Internet.
const OWN_ENDS: [&str; 16] = [
    "local",
    "internal",
    "lan",
    "home",
    "svc",
    "consul",
    "corp",
    "intra",
    "intranet",
    "private",
    "test",
    "docker",
    "localhost",
    "localdomain",
    "invalid",
    "arpa",
];

/// Returns the public host to which an address leads in the clear.
fn plain_host(s: &Scene<'_>, url: &str) -> Option<String> {
    let secure = ["https://", "grpcs://", "suwsgi://", "unix:"].iter().any(|p| url.starts_with(p));
    let written = host_and_port(url).0;
    // The end of a name that begins with a variable.
    let end = || written.rsplit_once('$').and_then(|(_, rest)| rest.split_once('.')).map(|(_, end)| end);
    let far = far_host(s, url).or_else(end).filter(|h| h.contains('.') || h.contains(':'));
    let host = far.filter(|_| !secure).map(|h| host_and_port(h).0)?;
    if host.parse::<IpAddr>().is_ok() {
        return Some(host);
    }
    let end = host.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let public = !OWN_ENDS.contains(&end.as_str()) && end.bytes().all(|b| b.is_ascii_alphabetic());
    let own = host.contains(".svc.") || host.contains("internal");
    (public && !own && !end.is_empty()).then_some(host)
}

/// Directives that send requests elsewhere.
const PASSES: [&str; 6] = ["proxy_pass", "grpc_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "auth_http"];

/// Files with the authorities of the public web.
const PUBLIC_AUTHORITIES: [&str; 8] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "tls-ca-bundle.pem",
    "/etc/pki/tls/cert.pem",
    "cacert.pem",
    "isrgrootx1.pem",
];

/// Returns what an option of OpenSSL opens.
fn opened(s: &Scene<'_>, n: usize) -> Option<String> {
    let (name, value) = (s.arg(n, 0).to_ascii_lowercase(), s.arg(n, 1));
    let unsafe_option = value.split(',').map(str::trim).find(|o| {
        ["UnsafeLegacyRenegotiation", "UnsafeLegacyServerConnect", "Compression"]
            .contains(&o.trim_start_matches('+'))
    });
    match name.as_str() {
        "options" => unsafe_option.map(|o| format!("{o} opens what has been closed for years")),
        "cipherstring" | "ciphersuites" => {
            let weak = ["NULL", "RC4", "DES", "EXPORT", "aNULL", "MD5", "SECLEVEL=0", "ALL"];
            let word = value
                .split([':', '@', ','])
                .find(|w| !w.starts_with(['!', '-']) && weak.iter().any(|b| w.contains(b)));
            word.map(|w| format!("{w} is weak"))
        }
        _ => None,
    }
}

/// Returns the cipher of a list that has no ephemeral key exchange, beside others that have one.
fn static_exchange(list: &str) -> Option<&str> {
    let words: Vec<&str> = list.split([':', ',', ' ']).collect();
    let has_ephemeral =
        words.iter().any(|w| w.starts_with("ECDHE") || w.starts_with("DHE") || w.starts_with("EECDH"));
    let is_static = |w: &&str| {
        let suite = [
            "AES128-",
            "AES256-",
            "CAMELLIA128-",
            "CAMELLIA256-",
            "DES-CBC3",
            "ARIA128",
            "ARIA256",
            "SEED-",
            "AES128-GCM",
            "AES256-CCM",
        ];
        suite.iter().any(|p| w.starts_with(p))
            || ["kRSA", "RSA", "RSA+AES", "RSA+AESGCM", "RSA+3DES"].contains(w)
    };
    words.into_iter().find(is_static).filter(|_| has_ephemeral)
}

/// Reports the redirect of a default server to a name that clients choose.
fn host_redirects(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let is_named = |b: usize| {
        let mut names = children(s, b, "server_name").flat_map(|n| s.args(n));
        names.any(|n| n.contains('.') && !n.contains(['~', '$']))
    };
    if !http_servers(s).any(is_named) || s.is_partial() {
        return;
    }
    for n in s.all("return").filter(|n| s.arg(*n, 0).starts_with('3')) {
        let url = s.last_arg(n);
        let echoed = ["$host", "${host}", "$http_host"]
            .iter()
            .any(|v| url.split_once("://").is_some_and(|(_, rest)| rest.starts_with(v)));
        let Some(server) = http_server(s, n).filter(|_| echoed) else { continue };
        let defaults =
            children(s, server, "listen").any(|l| has(s, l, "default_server") || has(s, l, "default"));
        if defaults && !is_named(server) {
            found(s.span(n), "whatever name a client writes becomes the target, also in caches".to_owned());
        }
    }
}

/// Reports servers that answer TLS clients for any name with the certificate and the pages of one site.
fn lone_defaults(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let marked = s
        .all("listen")
        .any(|l| has(s, l, "default_server") && (has(s, l, "ssl") || s.arg(l, 0).ends_with("443")));
    let first = http_servers(s).find(|b| speaks_tls(s, *b));
    let Some(server) = first.filter(|_| !marked && !s.is_partial()) else { return };
    let mut names = children(s, server, "server_name").flat_map(|n| s.args(n));
    // By a pattern or a wildcard the site depends on the name, so a foreign name matters.
    let by_name = names.any(|n| n.starts_with('~') || n.starts_with("*.") || n.starts_with('.'));
    if let Some(listen) = children(s, server, "listen").find(|l| has(s, *l, "ssl")).filter(|_| by_name) {
        found(s.span(listen), "names that no server has come here, too".to_owned());
    }
}

/// Reports sockets for HTTP/3 that lack what TLS beside them has.
fn quic_sockets(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s) {
        let quic: Vec<usize> = children(s, server, "listen").filter(|l| has(s, *l, "quic")).collect();
        let Some(first) = quic.first() else { continue };
        let six = |l: &usize| s.arg(*l, 0).starts_with('[');
        let tls_six = children(s, server, "listen").any(|l| has(s, l, "ssl") && six(&l));
        if tls_six && !quic.iter().any(six) {
            found(s.span(*first), "clients with IPv6 have TLS here, and no HTTP/3".to_owned());
        }
    }
}

/// Returns the addresses of sockets for HTTP/3 that no server opens with reuseport.
fn shared_quic(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let one =
        s.all("worker_processes").any(|n| s.arg(n, 0) == "1") || s.all("worker_processes").next().is_none();
    let sockets = s.all("listen").filter(|l| has(s, *l, "quic"));
    let opened: HashSet<&str> =
        sockets.clone().filter(|l| has(s, *l, "reuseport")).map(|l| s.arg(l, 0)).collect();
    let mut seen: HashSet<&str> = HashSet::new();
    for l in sockets.filter(|_| !one) {
        if seen.insert(s.arg(l, 0)) && !opened.contains(s.arg(l, 0)) {
            found(
                s.span(l),
                "all workers share one socket, and packets of a connection come to the wrong one".to_owned(),
            );
        }
    }
}

checks! { Check;
    "upstream-unverified-near" |s, _, found| unverified(s, found),
    "upstream-name-number" |s, _, found| number_names(s, found),
    "upstream-sessions-off" |s, _, found| for n in ["proxy_ssl_session_reuse", "grpc_ssl_session_reuse", "uwsgi_ssl_session_reuse"].into_iter().flat_map(|name| s.all(name)) {
        if s.arg(n, 0) == "off" {
            found(s.span(n), "each connection to the upstream pays for a whole handshake".to_owned());
        }
    },
    "plain-to-public" |s, _, found| for n in PASSES.into_iter().flat_map(|name| s.all(name)) {
        let http = s.around(n, "stream").is_none();
        if let Some(host) = plain_host(s, s.arg(n, 0)).filter(|_| http) {
            found(s.arg_span(n, 0), format!("whoever is on the way to {host} can read and change it"));
        }
    },
    "ticket-key-static" |s, _, found| for n in s.all("ssl_session_ticket_key") {
        if children(s, s.parent(n).unwrap_or(usize::MAX), "ssl_session_ticket_key").count() == 1 {
            found(s.span(n), "with this one file, all sessions that were resumed can be read later".to_owned());
        }
    },
    "client-authority-public" |s, _, found| for n in ["ssl_client_certificate", "ssl_trusted_certificate"].into_iter().flat_map(|name| s.all(name)) {
        let file = s.arg(n, 0);
        let asks = s.effective(s.parent(n), "ssl_verify_client").is_some_and(|v| s.arg(v, 0) != "off");
        let own = s.is(n, "ssl_client_certificate") || s.effective(s.parent(n), "ssl_client_certificate").is_none();
        if asks && own && PUBLIC_AUTHORITIES.iter().any(|p| file == *p || file.ends_with(&format!("/{p}"))) {
            found(s.arg_span(n, 0), "whoever buys a certificate for any site is let in".to_owned());
        }
    },
    "dh-group-small" |s, _, found| for n in s.all("ssl_dhparam") {
        let file = s.arg(n, 0);
        let size = file.split(|c: char| !c.is_ascii_digit()).find(|d| ["512", "768", "1024"].contains(d));
        if let Some(bits) = size {
            found(s.arg_span(n, 0), format!("a group of {bits} bits can be broken"));
        }
    },
    "tls-options" |s, _, found| for n in ["ssl_conf_command", "proxy_ssl_conf_command", "grpc_ssl_conf_command", "uwsgi_ssl_conf_command"].into_iter().flat_map(|name| s.all(name)) {
        if let Some(text) = opened(s, n) {
            found(s.span(n), text);
        }
    },
    "static-key-exchange" |s, _, found| for n in s.all("ssl_ciphers") {
        let list = s.args(n).join(":");
        if let Some(cipher) = static_exchange(&list) {
            found(s.arg_span(n, 0), format!("{cipher} among them: with the key of the server, recorded connections can be read"));
        }
    },
    "redirect-to-any-host" |s, _, found| host_redirects(s, found),
    "tls-default-missing" |s, _, found| lone_defaults(s, found),
    "quic-v4-only" |s, _, found| quic_sockets(s, found),
    "quic-reuseport" |s, _, found| shared_quic(s, found),
    "http3-off" |s, _, found| for n in s.all("http3").filter(|n| s.arg(*n, 0) == "off") {
        let server = http_server(s, n);
        if server.is_some_and(|b| children(s, b, "listen").any(|l| has(s, l, "quic"))) {
            found(s.span(n), "clients are sent to a socket that does not speak HTTP/3 to them".to_owned());
        }
    },
    "mail-without-login" |s, _, found| for n in s.all("smtp_auth").filter(|n| has(s, *n, "none")) {
        let at = s.args(n).iter().position(|a| a == "none").unwrap_or(0);
        found(s.arg_span(n, at), "mail is taken from everybody, who need not say who he is".to_owned());
    },
    "mail-plain" |s, _, found| for server in s.all("server").filter(|n| s.around(*n, "mail").is_some()) {
        let tls = s.on(Some(server), "ssl") || children(s, server, "listen").any(|l| has(s, l, "ssl"));
        let starttls = s.effective(Some(server), "starttls");
        let listen = s.child(Some(server), "listen").filter(|_| !tls);
        let near = listen.is_some_and(|l| is_of_machine(&host_and_port(s.arg(l, 0)).0));
        // Port 25 takes mail from other servers, of which some speak no TLS.
        let between = listen.is_some_and(|l| s.arg(l, 0).split(':').next_back() == Some("25"));
        match starttls.map(|n| (n, s.arg(n, 0))) {
            Some((_, "only")) => {}
            Some((n, value)) if value == "on" && !between && listen.is_some() => found(s.span(n), "a client may send its password before TLS".to_owned()),
            Some((n, _)) if listen.is_some() && !between && !near && s.around(n, "mail").is_some() => found(s.span(n), "passwords come in the clear".to_owned()),
            None if !between && !near => if let Some(l) = listen {
                found(s.span(l), "passwords come in the clear: there is neither ssl nor starttls".to_owned());
            },
            _ => {}
        }
    },
    "upstream-port-scheme" |s, _, found| for n in ["proxy_pass", "grpc_pass"].into_iter().flat_map(|name| s.all(name)).filter(|n| s.around(*n, "http").is_some()) {
        let url = s.arg(n, 0);
        let tls = url.starts_with("https://") || url.starts_with("grpcs://");
        let servers: Vec<(usize, u16)> = group_of(s, url).into_iter().flat_map(|g| children(s, g, "server"))
            .filter_map(|n| Some((n, host_and_port(s.arg(n, 0)).1.or_else(|| (!s.arg(n, 0).starts_with("unix:")).then_some(80))?))).collect();
        let own = host_and_port(url).1.filter(|_| servers.is_empty()).map(|p| (n, p));
        for (at, port) in servers.into_iter().chain(own) {
            let fits = if tls { port != 80 && port != 8080 } else { port != 443 && port != 8443 };
            if !fits && !url.contains('$') {
                let text = if tls { "is asked over TLS at" } else { "is asked without TLS at" };
                found(s.span(at), format!("{} {text} port {port}", host_and_port(s.arg(at, 0)).0));
            }
        }
    },
    "memcached-far" |s, _, found| for n in s.all("memcached_pass").filter(|n| is_far(s.arg(*n, 0))) {
        found(s.arg_span(n, 0), "memcached has no login and no TLS".to_owned());
    },
}
