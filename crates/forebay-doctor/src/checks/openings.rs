//! Checks of what is open: guards that something goes around, and places that should have one.

use super::access::is_for_uploads;
use super::ask::{children, group_of, http_server, http_servers, is_guarded, is_local, is_wide, pass_of};
use super::safety::is_near;
use super::{Check, checks};
use crate::routes;
use crate::scene::{Scene, Table};
use forebay_conf::tree::Span;
use std::net::IpAddr;
use std::path::Path;

/// Sockets by which programs are started on the machine.
const SOCKETS: [&str; 4] = ["docker.sock", "containerd.sock", "podman.sock", "crio.sock"];

/// Ports of tools that ask nobody for a password, with the word that has to be near a port that others use, too.
const TOOLS: [(&str, &str, &str); 12] = [
    ("2375", "Docker", ""),
    ("9093", "Alertmanager", ""),
    ("9200", "Elasticsearch", ""),
    ("8500", "Consul", ""),
    ("2379", "etcd", ""),
    ("5601", "Kibana", ""),
    ("9090", "Prometheus", "prom"),
    ("9091", "the Pushgateway", "push"),
    ("9100", "the node exporter", "node"),
    ("9113", "the nginx exporter", "metric"),
    ("8983", "Solr", "solr"),
    ("4040", "Spark", "spark"),
];

/// Parts of paths behind which programs show what they are.
const INSIDES: [&str; 23] = [
    "jolokia",
    "phpmyadmin",
    "pma",
    "_profiler",
    "h2-console",
    "server-status",
    "traefik",
    "fpm-status",
    "php-status",
    "prometheus",
    "alertmanager",
    "metrics",
    "actuator",
    "pprof",
    "debug",
    "_cat",
    "server-info",
    "phpinfo.php",
    "info.php",
    "adminer.php",
    "adminer",
    "dashboard.html",
    "__debug__",
];

/// Names of folders that are not for everybody.
const KEPT: [&str; 14] = [
    "secure",
    "secured",
    "restricted",
    "confidential",
    "secrets",
    "protected",
    "internal",
    "private",
    "x-accel",
    "xaccel",
    "accel",
    "protected-files",
    "protected_files",
    "private_files",
];

/// Returns the parts of the path of a location.
fn parts(s: &Scene<'_>, location: usize) -> Vec<String> {
    let path = s.last_arg(location).to_ascii_lowercase();
    let plain: String =
        path.chars().filter(|c| !matches!(c, '~' | '^' | '$' | '*' | '\\' | '(' | ')' | '=' | '?')).collect();
    plain.split(['/', '|']).map(str::to_owned).collect()
}

/// Returns `true` if strangers can come to a directive of a location.
fn is_open(s: &Scene<'_>, location: usize) -> bool {
    let server = http_server(s, location);
    let internal = s.effective(Some(location), "internal").is_some();
    server.is_some_and(|b| !is_local(s, b)) && !internal && !is_guarded(s, Some(location))
}

/// Returns the last number of an address, if it is one of the own network.
fn near_port(url: &str) -> Option<&str> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest).split('/').next()?;
    let (host, port) = rest.rsplit_once(':')?;
    let near = host == "localhost" || !host.contains('.') || host.parse::<IpAddr>().is_ok_and(is_near);
    near.then_some(port)
}

/// Returns what a location shows of the insides of a program.
fn insides(s: &Scene<'_>, location: usize) -> Option<String> {
    let pass = pass_of(s, location);
    let group = pass.and_then(|url| group_of(s, url));
    let servers = group.into_iter().flat_map(|g| children(s, g, "server")).map(|n| s.arg(n, 0));
    let near = || -> String {
        let names = s.around(location, "server").into_iter().flat_map(|b| children(s, b, "server_name"));
        let words = names.flat_map(|n| s.args(n)).chain(s.args(location)).map(|word| &**word);
        words.chain(pass).collect()
    };
    let is_tool = |port: &str, (own, _, word): &(&str, &str, &str)| {
        *own == port && near().to_ascii_lowercase().contains(word)
    };
    let mut ports = pass.into_iter().chain(servers).filter_map(near_port);
    let tool = ports.find_map(|port| TOOLS.iter().find(|tool| is_tool(port, tool)));
    if let Some((port, name, _)) = tool {
        return Some(format!("{name} (port {port})"));
    }
    let shows = pass.is_some()
        || s.child(Some(location), "root").is_some()
        || s.child(Some(location), "alias").is_some();
    if !shows {
        return None;
    }
    let part = parts(s, location).into_iter().find(|p| INSIDES.contains(&p.as_str()))?;
    (pass.is_some() || part.ends_with(".html")).then(|| format!("/{part}"))
}

/// Endings of names that are meant with a dot before them.
const ENDINGS: [&str; 12] =
    ["php", "phtml", "cgi", "html", "css", "js", "jpg", "png", "git", "env", "ht", "sql"];

/// Returns the ending before which a pattern has a dot that means any letter.
pub(crate) fn loose_dot(pattern: &str) -> Option<(usize, String)> {
    pattern.match_indices('.').find_map(|(at, _)| {
        let before = pattern.get(..at).unwrap_or_default();
        let rest = pattern.get(at.saturating_add(1)..)?;
        let escaped = before.ends_with('\\')
            || before.rfind('[').is_some_and(|open| !before.get(open..).unwrap_or_default().contains(']'));
        let bare = rest.trim_start_matches(['(', '?', ':']);
        let word: String = bare.chars().take_while(char::is_ascii_alphanumeric).collect();
        let end = bare.get(word.len()..).unwrap_or_default();
        let fits =
            ENDINGS.contains(&word.as_str()) && (end.is_empty() || end.starts_with(['$', ')', '|', '?']));
        (!escaped && fits).then_some((at, word))
    })
}

/// Reports folders that are served under another name and hold those of other locations.
fn above(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s) {
        let folders: Vec<(usize, &str)> = s.named_inside(server, "alias").map(|n| (n, s.arg(n, 0))).collect();
        // The first folder below each.
        let mut first_below: Table<&Path, &str> = Table::default();
        for (_, folder) in &folders {
            for outer in Path::new(folder).ancestors().skip(1) {
                first_below.entry(outer).or_insert(folder);
            }
        }
        for (n, folder) in
            folders.iter().filter(|(_, f)| f.starts_with('/') && f.len() > 1 && !f.contains('$'))
        {
            let Some(prefix) = s.parent(*n).and_then(|l| routes::prefix(s, l)) else { continue };
            let own = Path::new(folder);
            let same_name =
                own.file_name().is_some_and(|f| prefix.trim_matches('/').ends_with(&*f.to_string_lossy()));
            if let Some(below) = first_below.get(own).filter(|_| !same_name && !is_guarded(s, s.parent(*n))) {
                found(
                    s.arg_span(*n, 0),
                    format!("{prefix} has all of {folder}, where {below} is only a part"),
                );
            }
        }
    }
}

/// Returns `true` if reading is refused to some: `limit_except` alone leaves it open.
fn guards_reading(s: &Scene<'_>, block: Option<usize>) -> bool {
    let own = ["deny", "auth_basic", "auth_request", "auth_jwt", "auth_oidc", "internal"];
    own.iter().filter_map(|d| s.effective(block, d)).any(|n| s.arg(n, 0) != "off")
        || s.effective(block, "ssl_verify_client").is_some_and(|n| s.arg(n, 0) == "on")
}

/// Methods by which files are written.
const WRITING: [&str; 6] = ["PUT", "DELETE", "MKCOL", "COPY", "MOVE", "POST"];

/// Returns the sockets of a server, as they are written.
fn sockets<'s>(s: &'s Scene<'_>, server: usize) -> Vec<&'s str> {
    let sockets: Vec<&str> = children(s, server, "listen").map(|l| s.arg(l, 0)).collect();
    if sockets.is_empty() { vec!["80"] } else { sockets }
}

/// Reports names that an earlier server at the same socket has.
fn name_twice(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    // The first server of each socket and name.
    let mut first: Table<(&str, String), usize> = Table::default();
    for server in http_servers(s) {
        let sockets = sockets(s, server);
        for n in children(s, server, "server_name") {
            for (i, name) in s.args(n).iter().enumerate().filter(|(_, name)| !name.is_empty() && *name != "_")
            {
                let name = name.to_ascii_lowercase();
                let owners =
                    sockets.iter().map(|socket| *first.entry((socket, name.clone())).or_insert(server));
                // Each socket gets its entry.
                if owners.filter(|owner| *owner != server).count() > 0 {
                    found(
                        s.arg_span(n, i),
                        format!("an earlier server has {name} at the same socket, so this one never gets it"),
                    );
                }
            }
        }
    }
}

checks! { Check;
    "auth-location-open" |s, _, found| for &n in s.asked() {
        if s.effective(Some(n), "internal").is_none() && pass_of(s, n).is_some() && s.arg(n, 0) != "/" {
            found(s.span(n), "strangers may ask it directly, as often as they like".to_owned());
        }
    },
    "auth-body-passed" |s, _, found| for &n in s.asked() {
        let off = s.effective(Some(n), "proxy_pass_request_body").is_some_and(|b| s.arg(b, 0) == "off");
        let pass = s.child(Some(n), "proxy_pass").filter(|_| !off);
        if let Some(pass) = pass {
            found(s.span(pass), "it is promised a body that does not come".to_owned());
        }
    },
    "refusal-as-200" |s, _, found| for n in s.all("error_page") {
        let args = s.args(n);
        if args.iter().any(|a| a == "=200") && args.iter().any(|a| a == "401" || a == "403") {
            found(s.span(n), "programs take the page about the refusal for the answer".to_owned());
        }
    },
    "dot-unescaped" |s, _, found| for n in s.all("location") {
        let Some((_, ending)) = routes::pattern(s, n).as_deref().and_then(loose_dot) else { continue };
        found(s.span(n), format!("the dot before \"{ending}\" is any letter"));
    },
    "control-socket" |s, _, found| for n in ["proxy_pass", "grpc_pass"].into_iter().flat_map(|name| s.all(name)) {
        let url = s.arg(n, 0);
        let by_group = group_of(s, url).into_iter().flat_map(|g| children(s, g, "server")).map(|n| s.arg(n, 0));
        let socket = std::iter::once(url).chain(by_group).any(|a| SOCKETS.iter().any(|w| a.contains(w)));
        let guarded = if s.around(n, "stream").is_some() { s.effective(s.parent(n), "deny").is_some() } else { s.parent(n).is_some_and(|b| !is_open(s, b)) };
        if socket && !guarded {
            found(s.arg_span(n, 0), "whoever reaches it starts what he likes, as root".to_owned());
        }
    },
    "insides-open" |s, _, found| for n in s.all("location").filter(|n| is_open(s, *n)) {
        if let Some(what) = insides(s, n) {
            let pass = s.child(Some(n), "proxy_pass").filter(|_| what.contains("port"));
            found(pass.map_or(s.span(n), |p| s.arg_span(p, 0)), format!("everybody sees {what}"));
        }
    },
    "dav-access-all" |s, _, found| for n in s.all("dav_access").chain(s.all("proxy_store_access")).chain(s.all("fastcgi_store_access")) {
        if let Some(i) = s.args(n).iter().position(|a| a == "all:rw") {
            found(s.arg_span(n, i), "every account of the machine may change the files".to_owned());
        }
    },
    "limit-except-writes" |s, _, found| for n in s.all("limit_except") {
        let Some(dav) = s.effective(s.parent(n), "dav_methods").filter(|d| s.arg(*d, 0) != "off") else { continue };
        let open: Vec<&str> = s.args(n).iter().map(|m| &**m).filter(|m| WRITING.contains(m) && s.has(dav, m)).collect();
        if !open.is_empty() && !guards_reading(s, s.parent(n)) {
            found(s.span(n), format!("{} is excepted from the guard: everybody may write", open.join(", ")));
        }
    },
    "autoindex-read" |s, _, found| for n in s.all("autoindex").filter(|n| s.arg(*n, 0) == "on") {
        let block = s.parent(n);
        let only_methods = is_guarded(s, block) && !guards_reading(s, block) && s.child(block, "limit_except").is_some();
        let dropped = block.filter(|b| s.is(*b, "location")).is_some_and(|b| parts(s, b).iter().any(|p| ["incoming", "dropbox", "inbox", "staging", "drafts", "tmp", "temp", "old", "bak"].contains(&p.as_str())) || parts(s, b).iter().any(|p| ["upload", "attachment", "userfiles", "user_content"].iter().any(|u| p.starts_with(u))));
        if only_methods && is_wide(s, n) || dropped && !is_guarded(s, block) {
            found(s.span(n), "every folder without an index shows what it has".to_owned());
        }
    },
    "internal-missing" |s, _, found| for n in s.all("location").filter(|n| is_open(s, *n)) {
        let is_kept = |p: &String| KEPT.contains(&p.as_str()) || p.starts_with("protected") || p.starts_with("private");
        let kept = parts(s, n).iter().any(is_kept);
        let files = s.child(Some(n), "alias").is_some() || s.child(Some(n), "root").is_some();
        let checked = s.child(Some(n), "secure_link").is_some() || s.child(Some(n), "return").is_some() || s.child(Some(n), "if").is_some();
        if kept && files && pass_of(s, n).is_none() && !checked {
            found(s.span(n), "everybody may fetch what the application is to hand out".to_owned());
        }
    },
    "alias-above" |s, _, found| above(s, found),
    "server-name-twice" |s, _, found| name_twice(s, found),
    "uploads-as-html" |s, _, found| for n in s.all("default_type").filter(|n| s.arg(*n, 0) == "text/html") {
        let Some(block) = s.parent(n).filter(|b| s.is(*b, "location")) else { continue };
        // A folder has no file of its own.
        if routes::pattern(s, block).is_some_and(|p| p.ends_with("/$")) {
            continue;
        }
        let emptied = s.child(Some(block), "types").is_some();
        if is_for_uploads(&s.text(block)) || emptied && pass_of(s, block).is_none() && s.child(Some(block), "return").is_none() {
            found(s.arg_span(n, 0), "a file without a known ending runs as a page of the site".to_owned());
        }
    },
}
