//! Checks of requests on their way to applications: what they are told, which server they come to, and how long they wait.

use super::ask::{children, group_of, has, http_server};
use super::patterns::conditions;
use super::traffic::{passing, path_with};
use super::{Check, checks};
use crate::scene::Scene;
use crate::variables::named;
use forebay_conf::tree::Span;
use std::collections::HashMap;

/// Variables that are another text with each request or connection.
const EVER_NEW: [&str; 9] = [
    "request_id",
    "msec",
    "connection",
    "connection_requests",
    "remote_port",
    "time_iso8601",
    "request_time",
    "request_length",
    "pid",
];

/// Parts of paths of protocols that need the same server for all requests of a client.
const STICKY: [&str; 5] = ["socket.io", "sockjs", "sockjs-node", "signalr", "engine.io"];

/// Methods of balancing by which a client stays at its server.
const STICKY_METHODS: [&str; 4] = ["ip_hash", "hash", "sticky", "sticky_cookie"];

/// Methods of balancing that count what a server is doing.
const COUNTING: [&str; 3] = ["least_conn", "least_time", "random"];

/// Returns the servers of a group that get requests.
fn active(s: &Scene<'_>, group: usize) -> Vec<usize> {
    children(s, group, "server").filter(|n| !has(s, *n, "down") && !has(s, *n, "backup")).collect()
}

/// Reports groups whose clients have to stay at one server and do not.
fn unsticky(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for (n, block) in passing(s) {
        let Some(path) = path_with(s, block, &STICKY) else { continue };
        let Some(group) = group_of(s, s.arg(n, 0)).filter(|g| active(s, *g).len() > 1) else { continue };
        if !STICKY_METHODS.iter().any(|m| s.child(Some(group), m).is_some()) {
            found(
                s.span(n),
                format!("{path} needs one server for all requests of a client, and the group takes turns"),
            );
        }
    }
}

/// Returns `true` if a server is reached over TLS only.
fn is_of_tls(s: &Scene<'_>, server: usize) -> bool {
    let mut listens = children(s, server, "listen").peekable();
    let tls = |l: usize| has(s, l, "ssl") || has(s, l, "quic") || s.arg(l, 0).ends_with("443");
    listens.peek().is_some() && listens.all(tls)
}

/// Directives that give fields to an application.
const PASSED: [&str; 5] =
    ["proxy_set_header", "grpc_set_header", "fastcgi_param", "uwsgi_param", "scgi_param"];

/// Reports applications that are told another scheme than that of the server.
fn wrong_scheme(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in PASSED.into_iter().flat_map(|name| s.all(name)) {
        let (name, value) =
            (s.arg(n, 0).to_ascii_lowercase().replace('_', "-"), s.arg(n, 1).to_ascii_lowercase());
        let name = name.trim_start_matches("http-");
        let wrong = match name {
            "x-forwarded-proto"
            | "x-forwarded-protocol"
            | "x-forwarded-scheme"
            | "x-scheme"
            | "request-scheme"
            | "x-url-scheme" => ["http", "ws"].contains(&value.as_str()),
            "x-forwarded-port" | "server-port" => value == "80",
            "x-forwarded-ssl" | "front-end-https" | "https" => value == "off",
            _ => false,
        };
        if wrong && http_server(s, n).is_some_and(|b| is_of_tls(s, b)) {
            found(
                s.arg_span(n, 1),
                "clients come over TLS, and the application redirects them for ever or drops their cookies"
                    .to_owned(),
            );
        }
    }
}

/// Names of fields by which an application knows who somebody is.
fn is_of_person(name: &str) -> bool {
    let lower = name.to_ascii_lowercase().replace('_', "-");
    let parts = [
        "remote-user",
        "forwarded-user",
        "auth-user",
        "auth-request-user",
        "webauth-user",
        "x-user",
        "auth-email",
        "forwarded-email",
        "x-email",
        "forwarded-groups",
        "x-groups",
        "x-roles",
        "auth-roles",
        "client-dn",
        "client-cert",
        "client-verify",
        "client-s-dn",
        "x-tenant",
        "authenticated-user",
    ];
    parts.iter().any(|p| lower.trim_start_matches("http-").contains(p))
}

/// Returns the names of fields for the upstream in effect in a block.
fn fields<'s>(s: &'s Scene<'_>, block: usize, directive: &'static str) -> impl Iterator<Item = &'s str> {
    s.all_effective(Some(block), directive).map(|n| s.arg(n, 0))
}

/// Reports locations that pass a field about persons on as the client wrote it, where others of the same application set it.
fn gaps(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for (pass, set) in [("proxy_pass", "proxy_set_header"), ("grpc_pass", "grpc_set_header")] {
        // An application: its address in a server.
        let application = |n: usize, block: usize| {
            let host = s.arg(n, 0).split_once("://")?.1.split('/').next()?;
            Some((host, http_server(s, block)))
        };
        let passes = s.all(pass).filter_map(|n| Some((n, s.parent(n)?, application(n, s.parent(n)?)?)));
        let mut of_persons: HashMap<_, Vec<&str>> = HashMap::new();
        for (_, block, application) in passes.clone() {
            let known = of_persons.entry(application).or_default();
            let fresh = fields(s, block, set).filter(|f| is_of_person(f));
            for field in fresh {
                if !known.iter().any(|k| k.eq_ignore_ascii_case(field)) {
                    known.push(field);
                }
            }
        }
        for (n, block, application) in passes {
            let known = of_persons.get(&application).map(Vec::as_slice).unwrap_or_default();
            let is_set = |name: &str| fields(s, block, set).any(|own| own.eq_ignore_ascii_case(name));
            let missing = known.iter().find(|name| !is_set(name));
            if let Some(name) = missing.filter(|_| !s.is(block, "limit_except") && !s.is(block, "if")) {
                let text = "is set for this application elsewhere, and here it is what the client writes";
                found(s.span(n), format!("{name} {text}"));
            }
        }
    }
}

/// Reports requests that are chosen for something at random, each anew.
fn ever_new(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("hash") {
        if let Some(v) =
            named(s.arg(n, 0)).into_iter().map(|(_, v)| v.to_owned()).find(|v| EVER_NEW.contains(&v.as_str()))
        {
            found(s.arg_span(n, 0), format!("${v} is new each time, so no client stays at its server"));
        }
    }
    for n in s.all("split_clients") {
        let key = s.arg(n, 0);
        let new = named(key).into_iter().map(|(_, v)| v.to_owned()).find(|v| EVER_NEW.contains(&v.as_str()));
        let variable = s.last_arg(n);
        let uses = [
            "proxy_pass",
            "proxy_set_header",
            "root",
            "alias",
            "rewrite",
            "return",
            "try_files",
            "fastcgi_pass",
            "fastcgi_param",
            "uwsgi_pass",
            "add_header",
        ];
        let decides =
            uses.into_iter().flat_map(|u| s.all(u)).any(|u| s.args(u).iter().any(|a| a.contains(variable)));
        if let Some(v) = new.filter(|_| decides) {
            found(
                s.arg_span(n, 0),
                format!("${v} is new each time, so a client has another variant with each request"),
            );
        }
    }
}

/// Endings of names of calls that answer as long as something happens.
const WATCHES: [&str; 7] = ["watch", "subscribe", "stream", "listen", "tail", "follow", "events"];

/// Reports calls of gRPC that are cut after a minute of silence.
fn cut_calls(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("grpc_pass") {
        let Some(location) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let path = s.last_arg(location).to_ascii_lowercase();
        let word =
            path.split(['/', '.']).find(|p| WATCHES.iter().any(|w| p.ends_with(w) || p.starts_with(w)));
        if let Some(word) = word.filter(|_| s.effective(Some(location), "grpc_read_timeout").is_none()) {
            found(s.span(n), format!("a quiet {word} ends after 60 s, the default of grpc_read_timeout"));
        }
    }
}

/// Returns `true` if requests go to a store of objects: its documents ask for fields and responses as they are.
fn is_for_objects(s: &Scene<'_>, n: usize) -> bool {
    let Some(block) = s.parent(n) else { return false };
    let mut passes =
        std::iter::once(block).chain(s.inside(block)).filter_map(|b| s.child(Some(b), "proxy_pass"));
    passes.any(|p| {
        ["minio", "s3", "ceph", "seaweed", "console", ":9000", ":9001"]
            .iter()
            .any(|w| s.arg(p, 0).contains(w))
    })
}

/// Returns what a setting of PHP opens.
fn php_setting(text: &str) -> Option<&'static str> {
    let plain = text.to_ascii_lowercase().replace([' ', '"'], "");
    let on = |name: &str| {
        [format!("{name}=on"), format!("{name}=1"), format!("{name}=true"), format!("{name}=stdout")]
            .iter()
            .any(|w| plain.contains(w))
    };
    let empty = |name: &str| {
        plain
            .lines()
            .any(|l| l == format!("{name}=") || l == format!("{name}=none") || l == format!("{name}=/"))
    };
    if on("allow_url_include") {
        Some("a script can include code from any host")
    } else if on("display_errors") {
        Some("every visitor sees paths and texts of errors")
    } else if on("enable_dl") {
        Some("scripts can load code into the interpreter")
    } else if empty("disable_functions") || empty("open_basedir") {
        Some("what the settings of PHP forbid is allowed again")
    } else if plain.contains('$') && plain.contains("_file=") {
        Some("a request has a part in what is included")
    } else {
        None
    }
}

checks! { Check;
    "stickiness-missing" |s, _, found| unsticky(s, found),
    "scheme-wrong" |s, _, found| wrong_scheme(s, found),
    "identity-gap" |s, _, found| gaps(s, found),
    "choice-ever-new" |s, _, found| ever_new(s, found),
    "zone-missing" |s, _, found| for u in s.all("upstream").filter(|u| s.child(Some(*u), "zone").is_none() && active(s, *u).len() > 1) {
        let counting = COUNTING
            .iter()
            .find_map(|m| s.child(Some(u), m))
            .filter(|n| !s.is(*n, "random") || s.arg(*n, 0) == "two");
        let bounded = children(s, u, "server").find(|n| s.args(*n).iter().any(|a| a.starts_with("max_conns=")));
        // One worker is the default.
        let one = s.all("worker_processes").last().is_none_or(|n| s.arg(n, 0) == "1") && !s.is_partial();
        if let Some(n) = counting.or(bounded).filter(|_| !one) {
            found(s.span(n), "without a zone each worker counts for itself".to_owned());
        }
    },
    "retry-limited" |s, _, found| for n in ["proxy_next_upstream", "fastcgi_next_upstream", "uwsgi_next_upstream", "grpc_next_upstream", "scgi_next_upstream"].into_iter().flat_map(|name| s.all(name)) {
        if let Some(i) = s.args(n).iter().position(|a| a == "http_429") {
            found(s.arg_span(n, i), "who asks too often is asked for at the next server, so the load doubles".to_owned());
        }
    },
    "grpc-te" |s, _, found| for n in s.all("grpc_set_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("te") && s.arg(*n, 1) != "trailers") {
        found(s.span(n), "servers of gRPC refuse calls without \"TE: trailers\"".to_owned());
    },
    "grpc-quiet-cut" |s, _, found| cut_calls(s, found),
    "grpc-reflection-open" |s, _, found| for n in s.all("grpc_pass") {
        let Some(location) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let path = s.last_arg(location).replace('\\', "").to_ascii_lowercase();
        let inner = ["grpc.reflection", "serverreflection", "grpc.channelz"].into_iter().find(|w| path.contains(w));
        // What guards the whole service lets its clients in here as well.
        if let Some(name) = inner.filter(|_| !super::ask::refuses_all(s, location) && !super::ask::is_guarded_itself(s, location)) {
            found(s.span(n), format!("{name} tells every client what the service can do"));
        }
    },
    "certificate-field-broken" |s, _, found| for n in PASSED.into_iter().flat_map(|name| s.all(name)) {
        let value = s.arg(n, 1);
        // Parameters of FastCGI and its relatives may have line breaks.
        let is_field = s.nodes.get(n).is_some_and(|n| !n.d.name.text.ends_with(b"_param"));
        if named(value).iter().any(|(_, v)| matches!(*v, "ssl_client_cert" | "ssl_client_raw_cert")) && is_field {
            found(s.arg_span(n, 1), "a certificate has line breaks, which a field cannot have".to_owned());
        }
    },
    "chunks-off" |s, _, found| for n in s.all("chunked_transfer_encoding").filter(|n| s.arg(*n, 0) == "off" && !is_for_objects(s, *n)) {
        found(s.span(n), "a response that was cut off looks complete, and no connection is kept".to_owned());
    },
    "invalid-fields-passed" |s, _, found| for n in s.all("ignore_invalid_headers").filter(|n| s.arg(*n, 0) == "off" && !is_for_objects(s, *n)) {
        found(s.span(n), "fields with odd names reach the application, which may read them as others".to_owned());
    },
    "framing-set" |s, _, found| for n in ["proxy_set_header", "grpc_set_header"].into_iter().flat_map(|name| s.all(name)) {
        let name = s.arg(n, 0).to_ascii_lowercase();
        let odd = name == "transfer-encoding" && !s.arg(n, 1).is_empty()
            || name == "content-length" && named(s.arg(n, 1)).iter().any(|(_, v)| *v == "http_content_length");
        if odd {
            found(s.span(n), "the client says where a request ends, and two servers may not agree".to_owned());
        }
    },
    "php-opened" |s, _, found| for n in s.all("fastcgi_param").filter(|n| matches!(s.arg(*n, 0), "PHP_ADMIN_VALUE" | "PHP_VALUE" | "PHP_ADMIN_FLAG" | "PHP_FLAG")) {
        if let Some(text) = php_setting(s.arg(n, 1)) {
            found(s.arg_span(n, 1), text.to_owned());
        }
    },
    "ssi-everywhere" |s, _, found| for n in s.all("ssi").filter(|n| s.arg(*n, 0) == "on") {
        let types = s.effective(s.parent(n), "ssi_types").is_some_and(|t| has(s, t, "*"));
        let uploads = s.parent(n).is_some_and(|p| s.is(p, "location") && path_with(s, p, &["uploads", "upload", "media", "files", "user", "users", "documents", "attachments"]).is_some());
        if types || uploads {
            found(s.span(n), "whoever may store a file has commands in it carried out".to_owned());
        }
    },
    "autoindex-system" |s, _, found| for n in s.all("autoindex").filter(|n| s.arg(*n, 0) == "on") {
        let folder = ["alias", "root"].into_iter().find_map(|d| s.child(s.parent(n), d)).map(|d| s.arg(d, 0));
        let system = ["/", "/etc", "/home", "/root", "/var", "/usr", "/tmp", "/opt", "/var/log", "/boot", "/proc", "/sys"];
        if let Some(folder) = folder.filter(|f| system.contains(&f.trim_end_matches('/')) || *f == "/") {
            found(s.span(n), format!("everything in {folder} is listed"));
        }
    },
    "referer-access" |s, _, found| for c in conditions(s).filter(|c| c.variable == "http_referer" && c.operator.starts_with('!') && c.refuses(s)) {
        let location = s.parent(c.node).filter(|p| s.is(*p, "location"));
        let kind = location.map(|l| s.args(l).join(" ")).unwrap_or_default();
        // Pictures and films on other pages cost traffic only.
        let hotlink = ["png", "jpg", "gif", "mp4", "webp", "mp3", "image", "img", "video", "media", "zip", "download"].iter().any(|w| kind.contains(w));
        if location.is_some_and(|l| super::ask::pass_of(s, l).is_some()) && !hotlink {
            found(s.span(c.node), "the page that a request comes from is what its sender writes".to_owned());
        }
    },
}
