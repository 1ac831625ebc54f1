//! Checks of what is kept: secrets in the file itself, files in folders of everybody, logs without what they are for, caches.

use super::ask::{FAMILIES, children, is_guarded, parameter};
use super::patterns::{conditions, lines};
use super::{Check, checks};
use crate::scene::Scene;
use crate::variables::{entries_of_tables, named};
use forebay_conf::tree::Span;

/// Parts of names of settings and fields that hold a secret.
const SECRETS: [&str; 14] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "apikey",
    "private_key",
    "access_key",
    "credential",
    "db_pass",
    "auth_key",
    "_pwd",
    "authorization",
];

/// Returns `true` if a name is that of a secret.
fn is_secret_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase().replace('-', "_");
    let about =
        ["url", "uri", "header", "name", "type", "expires", "path", "file", "endpoint", "length", "realm"];
    SECRETS.iter().any(|w| lower.contains(w)) && !about.iter().any(|w| lower.ends_with(w))
}

/// Returns `true` if a value is a secret itself: neither a variable, a switch, a file nor an address.
fn is_literal(value: &str) -> bool {
    let word = ["true", "false", "none", "null", "yes", "off", "default", "bearer", "basic", "changeme"];
    value.len() >= 4
        && !value.contains('$')
        && !value.starts_with(['/', '~', '^'])
        && !word.contains(&value.to_ascii_lowercase().as_str())
}

/// Returns `true` if a variable of the client is a key or a password.
pub(super) fn is_credential(variable: &str) -> bool {
    let rest = ["http_", "arg_", "cookie_"].iter().find_map(|f| variable.strip_prefix(f));
    rest.is_some_and(|r| {
        is_secret_name(r) || ["key", "auth", "x_key", "x_auth", "pass", "x_api_key", "apikey"].contains(&r)
    })
}

/// Reports keys and passwords that stand in the configuration.
fn secrets(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("map").filter(|n| is_credential(s.arg(*n, 0).trim_matches(['$', '{', '}']))) {
        let line = lines(s, n).find(|e| {
            e.name.text != b"default" && is_literal(&e.name.as_str()) && e.name.as_str().len() >= 6
        });
        if let Some(e) = line {
            found(e.name.span, format!("a key of a client, to be compared with {}", s.arg(n, 0)));
        }
    }
    for c in conditions(s)
        .filter(|c| is_credential(&c.variable) && c.operator.trim_start_matches('!').starts_with(['=', '~']))
    {
        let plain = c.value.trim_matches(['^', '$', '"']);
        if is_literal(plain) && !plain.contains(['.', '(', '[', '*', '+']) {
            found(s.span(c.node), format!("the secret that is compared with ${}", c.variable));
        }
    }
    for n in s.all("env") {
        if let Some((name, _)) =
            s.arg(n, 0).split_once('=').filter(|(name, value)| is_secret_name(name) && is_literal(value))
        {
            found(s.arg_span(n, 0), format!("{name}, which all accounts that may read the file know"));
        }
    }
    let named = [
        "fastcgi_param",
        "uwsgi_param",
        "scgi_param",
        "auth_http_header",
        "proxy_set_header",
        "grpc_set_header",
        "set",
    ];
    for n in named.into_iter().flat_map(|name| s.all(name)) {
        let (name, value) = (s.arg(n, 0), s.arg(n, 1));
        // Without a guard `login-lent` speaks about fields.
        let open_field = s.is(n, "proxy_set_header")
            && ["authorization", "x-api-key", "x-auth-token", "x-access-token"]
                .contains(&name.to_ascii_lowercase().as_str())
            && !by_login(s, n);
        if is_secret_name(name.trim_start_matches('$')) && is_literal(value) && value.len() > 5 && !open_field
        {
            found(s.arg_span(n, 1), format!("{name}, which all accounts that may read the file know"));
        }
    }
    for n in s.all("proxy_pass") {
        let url = s.arg(n, 0);
        let authority =
            url.split_once("://").and_then(|(_, rest)| rest.split('/').next()).unwrap_or_default();
        if authority.split_once('@').is_some_and(|(login, _)| login.contains(':')) {
            found(s.arg_span(n, 0), "a login in an address, which error logs repeat".to_owned());
        }
    }
}

fn by_login(s: &Scene<'_>, n: usize) -> bool {
    is_guarded(s, s.parent(n))
}

/// Directives with files that others must not make before the server does, or read.
const FILES: [&str; 17] = [
    "pid",
    "lock_file",
    "working_directory",
    "ssl_certificate_key",
    "ssl_password_file",
    "ssl_session_ticket_key",
    "auth_basic_user_file",
    "include",
    "load_module",
    "error_log",
    "access_log",
    "js_import",
    "js_path",
    "perl_modules",
    "perl_require",
    "quic_host_key",
    "control_socket",
];

/// Returns `true` if every account of the machine may write into the folder of a path.
fn is_of_everybody(path: &str) -> bool {
    let bare = path.strip_prefix("unix:").unwrap_or(path);
    let rest = ["/tmp", "/var/tmp", "/dev/shm"].iter().find_map(|folder| bare.strip_prefix(folder));
    // A folder below may be closed to others.
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') && !rest.trim_matches('/').contains('/'))
}

/// Reports files and sockets in folders of everybody.
fn open_folders(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in FILES.into_iter().flat_map(|name| s.all(name)) {
        let path = s.arg(n, 0);
        if is_of_everybody(path) {
            let name = s.nodes.get(n).map(|n| n.d.name.as_str().into_owned()).unwrap_or_default();
            found(s.arg_span(n, 0), format!("another account may put its own {name} there"));
        }
    }
    let sockets = ["listen", "server", "proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass"];
    for n in sockets.into_iter().flat_map(|name| s.all(name)) {
        let address = s.arg(n, 0);
        let socket = address
            .find("unix:")
            .and_then(|at| address.get(at..))
            .map(|a| a.trim_end_matches(':').split(":/").take(2).collect::<Vec<_>>().join(":/"));
        if socket.is_some_and(|a| is_of_everybody(&a)) {
            found(s.arg_span(n, 0), "another account may put its own socket there".to_owned());
        }
    }
}

/// Returns the text of a format, and whether a log uses it.
fn formats<'s>(s: &'s Scene<'_>) -> impl Iterator<Item = (usize, String)> + 's {
    s.all("log_format").map(|n| (n, s.args(n).iter().skip(1).map(|w| &**w).collect::<String>()))
}

/// Reports formats that have the address that a client claims, and not the one it has.
fn claimed_addresses(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for (n, text) in formats(s) {
        let names: Vec<&str> = named(&text).into_iter().map(|(_, v)| v).collect();
        let own = ["remote_addr", "binary_remote_addr", "realip_remote_addr", "proxy_protocol_addr"];
        let claimed = [
            "http_x_forwarded_for",
            "http_x_real_ip",
            "http_cf_connecting_ip",
            "http_true_client_ip",
            "proxy_add_x_forwarded_for",
        ];
        let claim = names.iter().find(|v| claimed.contains(v));
        let carried = super::ask::carried(s, s.parent(n), &text);
        if let Some(v) = claim.filter(|_| !carried.iter().any(|v| own.contains(&v.as_str()))) {
            found(s.span(n), format!("${v} is what the client says, and $remote_addr is not written down"));
        }
    }
}

/// Reports logs that leave out requests that failed.
fn logs_without_errors(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("access_log") {
        let Some(condition) = parameter(s, n, "if") else { continue };
        let others = children(s, s.parent(n).unwrap_or(usize::MAX), "access_log").count() > 1;
        for (_, name) in named(condition) {
            let by_status =
                s.all("map").any(|m| s.arg(m, 0) == "$status" && super::patterns::defined(s, m) == name);
            let silent = |value: &str| value.is_empty() || value == "0";
            let entries = entries_of_tables(s, s.parent(n), name);
            let left_out = entries.iter().find(|e| silent(&e.value) && is_of_errors(&e.key));
            if let Some(line) = left_out.filter(|_| by_status && !others) {
                found(line.span, "attacks and failures are what is left out of the log".to_owned());
            }
        }
    }
}

/// Returns `true` if a key stands for all errors of a class.
fn is_of_errors(key: &str) -> bool {
    let plain = key.trim_start_matches(['~', '*', '^']).trim_start_matches('(');
    ["4", "5", "[45]", "[4-5]", "[4", "[5"].contains(&plain)
        || ["4..", "5..", "4\\d", "5\\d", "[45]", "[4-5]", "4[0-9]", "5[0-9]"]
            .iter()
            .any(|p| plain.starts_with(p))
}

checks! { Check;
    "secret-in-file" |s, _, found| secrets(s, found),
    "folder-of-everybody" |s, _, found| open_folders(s, found),
    "master-off" |s, _, found| for n in s.all("master_process").filter(|n| s.arg(*n, 0) == "off") {
        found(s.span(n), "one process for everything, as the user that started it".to_owned());
    },
    "cores-kept" |s, _, found| for n in s.all("worker_rlimit_core").filter(|n| s.arg(*n, 0) != "0") {
        found(s.span(n), "keys and requests of clients are written to the disk when a worker dies".to_owned());
    },
    "log-claimed-address" |s, _, found| claimed_addresses(s, found),
    "log-without-errors" |s, _, found| logs_without_errors(s, found),
    "stream-log-off" |s, _, found| for stream in s.all("stream") {
        let off = s.child(Some(stream), "access_log").filter(|n| s.arg(*n, 0) == "off");
        let other = s.inside(stream).any(|n| s.is(n, "access_log") && s.arg(n, 0) != "off");
        if let Some(n) = off.filter(|_| !other && !s.is_partial()) {
            found(s.span(n), "there will be no trace of who connected to what".to_owned());
        }
    },
    "cache-one-folder" |s, _, found| for n in FAMILIES.into_iter().flat_map(|f| s.all(match f { "proxy" => "proxy_cache_path", "fastcgi" => "fastcgi_cache_path", "uwsgi" => "uwsgi_cache_path", _ => "scgi_cache_path" })) {
        let room = parameter(s, n, "max_size").and_then(|m| forebay_conf::units::offset(m.as_bytes()));
        if parameter(s, n, "levels").is_none() && room.is_none_or(|r| r >= 1 << 30) {
            found(s.span(n), "all files lie in one folder, which gets slow with many of them".to_owned());
        }
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_their_names_and_values() {
        assert!(is_secret_name("LDAP_PASSWORD") && is_secret_name("X-Api-Key") && is_credential("arg_key"));
        assert!(!is_secret_name("TOKEN_URL") && !is_credential("http_host"));
        assert!(
            is_literal("geheim") && !is_literal("$token") && !is_literal("/run/secret") && !is_literal("off")
        );
    }

    #[test]
    fn folders_of_everybody() {
        for path in ["/tmp/nginx.pid", "/tmp", "unix:/tmp/php.sock", "/dev/shm/x"] {
            assert!(is_of_everybody(path), "{path}");
        }
        for path in ["/tmp/own/x.sock", "/run/x.pid", "/tmpfs/x"] {
            assert!(!is_of_everybody(path), "{path}");
        }
        assert!(
            is_of_errors("~^[45]") && is_of_errors("~^4") && !is_of_errors("~^[23]") && !is_of_errors("499")
        );
    }
}
