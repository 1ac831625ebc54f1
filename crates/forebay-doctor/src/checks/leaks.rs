//! Checks of what gets out or in by a list, a field, a table or a folder that says more than is meant.

use super::ask::{http_server, http_servers, is_local, pass_of, serves};
use super::patterns::conditions;
use super::{Check, checks};
use crate::routes;
use crate::scene::{Scene, Table};
use forebay_conf::tree::Span;
use std::collections::HashSet;
use std::net::Ipv4Addr;

/// A network of IPv4.
#[derive(Clone, Copy)]
struct Network {
    address: u32,
    bits: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Network> {
        let (address, bits) = text.split_once('/').unwrap_or((text, "32"));
        let address = u32::from(address.parse::<Ipv4Addr>().ok()?);
        let bits = bits.parse::<u32>().ok().filter(|b| *b <= 32)?;
        Some(Network { address, bits })
    }

    /// Returns `true` if all addresses of the other one are in this one.
    fn has(self, other: Network) -> bool {
        let mask = u32::MAX.checked_shl(32 - self.bits).unwrap_or(0);
        self.bits <= other.bits && self.address & mask == other.address & mask
    }
}

/// Rules of access in reading order, by their blocks.
type Rules = Table<Option<usize>, Vec<usize>>;

/// Returns the rules of access.
fn all_rules(s: &Scene<'_>) -> Rules {
    let mut nodes: Vec<usize> = s.all("allow").chain(s.all("deny")).collect();
    nodes.sort_unstable();
    let mut rules = Rules::default();
    for n in nodes {
        rules.entry(s.parent(n)).or_default().push(n);
    }
    rules
}

/// Returns the rules of access that those of a block replace.
fn replaced<'r>(s: &Scene<'_>, rules: &'r Rules, block: usize) -> Option<&'r [usize]> {
    let mut at = s.parent(block);
    while let Some(outer) = at {
        if let Some(own) = rules.get(&Some(outer)) {
            return Some(own);
        }
        at = s.parent(outer);
    }
    None
}

/// Returns `true` if rules let a network in: the first that fits decides.
fn lets_in(s: &Scene<'_>, rules: &[usize], network: Network) -> bool {
    let fits = |n: &&usize| {
        s.arg(**n, 0) == "all" || Network::parse(s.arg(**n, 0)).is_some_and(|own| own.has(network))
    };
    rules.iter().find(fits).is_none_or(|n| s.is(*n, "allow"))
}

/// Most lines of one list that are looked at: a long list is one of blocked strangers, and its first lines say enough.
const MOST_RULES: usize = 20;

/// Reports rules of access that let those in whom the rules around them refuse.
fn replaced_rules(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let rules = all_rules(s);
    let own = |block: Option<usize>| Some((block.filter(|b| s.is(*b, "location"))?, rules.get(&block)?));
    for (block, own) in rules.keys().filter_map(|block| own(*block)) {
        let Some(outer) = replaced(s, &rules, block) else { continue };
        let Some(first) = own.first() else { continue };
        let is_all = |n: &usize| s.arg(*n, 0) == "all";
        let refuses = outer.last().is_some_and(|n| is_all(n) && s.is(*n, "deny"));
        let mut barred = outer.iter().take(MOST_RULES).filter(|n| s.is(**n, "deny"));
        let free = barred.find(|d| Network::parse(s.arg(**d, 0)).is_some_and(|net| lets_in(s, own, net)));
        // A list that lets everybody in says so.
        let opens = own.iter().all(|n| is_all(n) && s.is(*n, "allow"));
        if let Some(d) = free.filter(|_| !opens) {
            let text = format!("\"deny {}\" further out does not count here, and lets them in", s.arg(*d, 0));
            found(s.span(*first), text);
        } else if refuses && !own.iter().any(is_all) {
            found(
                s.span(*first),
                "\"deny all\" further out does not count here, and the rest gets in".to_owned(),
            );
        }
    }
}

/// Reports networks that have the private ones in them, and strangers.
fn wider_than_private(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let private = [("172.16.0.0", 12), ("192.168.0.0", 16)];
    for n in ["allow", "set_real_ip_from"].into_iter().flat_map(|name| s.all(name)) {
        let Some(own) = Network::parse(s.arg(n, 0)).filter(|own| own.bits >= 8) else { continue };
        let meant = private.iter().find(|(first, bits)| {
            let net = first.parse::<Ipv4Addr>().map(|a| Network { address: u32::from(a), bits: *bits });
            // `172.0.0.0/8`, and `172.10.0.0/8`, which is the same.
            net.is_ok_and(|net| own.bits < net.bits && own.has(net))
        });
        if let Some((first, bits)) = meant {
            found(s.arg_span(n, 0), format!("the private network is {first}/{bits}: the rest are strangers"));
        }
    }
}

/// Reports ciphers by a word that stands for nearly all.
fn all_ciphers(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in ["ssl_ciphers", "proxy_ssl_ciphers"].into_iter().flat_map(|name| s.all(name)) {
        let words = || s.arg(n, 0).split([':', ',', ' ']);
        let all = words().find(|w| {
            ["ALL", "DEFAULT", "COMPLEMENTOFDEFAULT"].contains(&w.split('@').next().unwrap_or_default())
        });
        let closed = words().any(|w| ["!kRSA", "!RSA", "!SHA1"].contains(&w));
        if let Some(word) = all.filter(|_| !closed) {
            found(s.arg_span(n, 0), format!("{word} has ciphers without forward secrecy in it"));
        }
    }
}

/// Names of folders that are made for being served.
const SERVED: [&str; 19] = [
    "public",
    "static",
    "www",
    "html",
    "htdocs",
    "web",
    "webroot",
    "dist",
    "build",
    "media",
    "assets",
    "site",
    "docs",
    "pub",
    "files",
    "wwwroot",
    "public_html",
    "staticfiles",
    "share",
];

/// Names that upstreams have where they run programs that lie as files.
const RUNNERS: [&str; 9] =
    ["django", "gunicorn", "uwsgi", "flask", "node", "express", "rails", "puma", "unicorn"];

/// Returns `true` if an address is that of a program in Python, Ruby or JavaScript.
fn runs_program(address: &str) -> bool {
    let host = address.split_once("://").map_or(address, |(_, rest)| rest);
    host.split(['/', '.', '-', '_', ':']).any(|w| RUNNERS.contains(&w))
}

/// Reports the folder of an application as a root from which files are sent.
fn program_folders(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s) {
        let Some(root) = s.child(Some(server), "root").filter(|r| serves(s, *r)) else { continue };
        let path = s.arg(root, 0);
        let made = path.split('/').any(|p| SERVED.contains(&p) || p.contains("static") || p.contains("html"));
        let uwsgi = s.named_inside(server, "uwsgi_pass").next().is_some();
        let proxied = || s.named_inside(server, "proxy_pass").any(|n| runs_program(s.arg(n, 0)));
        let tries = s
            .named_inside(server, "try_files")
            .any(|t| s.arg(t, 0) == "$uri" && s.last_arg(t).starts_with('@'));
        if path.starts_with('/') && !path.contains('$') && !made && tries && (uwsgi || proxied()) {
            found(s.arg_span(root, 0), format!("programs and settings below {path} are files like others"));
        }
    }
    for root in s.all("root").filter(|r| serves(s, *r)) {
        let last = s.arg(root, 0).trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        if ["node_modules", "venv", ".venv", "site-packages", ".git", "vendor"].contains(&last) {
            found(s.arg_span(root, 0), format!("{last} is no folder for visitors"));
        }
    }
}

/// Reports keys below a root where both are relative.
fn keys_below(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for name in ["ssl_certificate_key", "auth_basic_user_file", "ssl_session_ticket_key", "ssl_password_file"]
    {
        for n in s.all(name) {
            let path = s.arg(n, 0).trim_start_matches("./");
            let server = http_server(s, n).or_else(|| s.parent(n));
            let Some(root) = s.effective(server, "root") else { continue };
            let folder = s.arg(root, 0).trim_start_matches("./").trim_end_matches('/');
            let below = path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
            if below && !folder.is_empty() && !folder.starts_with('/') && serves(s, root) {
                found(s.arg_span(n, 0), format!("it is below the root {folder}, and is sent like a page"));
            }
        }
    }
}

/// Reports sites that answer with and without TLS, and send nobody from one to the other.
fn plain_files(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s).filter(|b| !is_local(s, *b) && !s.is_partial()) {
        let listens = || s.children(Some(server), "listen");
        let tls = listens().any(|l| s.has(l, "ssl"));
        let plain = listens().find(|l| {
            !s.has(*l, "ssl") && !s.has(*l, "quic") && (s.arg(*l, 0) == "80" || s.arg(*l, 0).ends_with(":80"))
        });
        let Some(l) = plain.filter(|_| tls) else { continue };
        let sends_away = ["return", "rewrite", "if", "error_page"].iter().any(|name| {
            s.named_inside(server, name).any(|n| {
                s.text(n).contains("https")
                    || s.text(n).contains("$scheme")
                    || s.parent(n) == Some(server) && s.is(n, "return")
            })
        });
        let named = s.children(Some(server), "server_name").any(|n| s.arg(n, 0).contains('.'));
        let personal = s.named_inside(server, "location").any(|n| pass_of(s, n).is_some());
        if named && !personal && !sends_away {
            found(
                s.span(l),
                "what is asked for at port 80 is sent in the clear, and no redirect leads to TLS".to_owned(),
            );
        }
    }
}

/// Reports lists of referers by which nothing is decided.
fn referers_unused(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let mut tested: HashSet<usize> = HashSet::new();
    for mention in s.with_text("$invalid_referer") {
        let mut at = Some(mention);
        while let Some(block) = at.filter(|b| tested.insert(*b)) {
            at = s.parent(block);
        }
        if s.is(mention, "map") {
            return;
        }
    }
    for n in s.all("valid_referers").filter(|_| !s.is_partial()) {
        if s.parent(n).is_some_and(|block| !tested.contains(&block)) {
            found(s.span(n), "nothing looks at $invalid_referer here, so everybody gets in".to_owned());
        }
    }
}

/// Words of fields by which a client calls itself one who may.
const CLAIMS: [&str; 14] = [
    "internal",
    "verify",
    "verified",
    "admin",
    "role",
    "trusted",
    "staff",
    "bypass",
    "skip",
    "employee",
    "office",
    "vpn",
    "authenticated",
    "superuser",
];

/// Reports guards and their exceptions by a field that the client may send.
fn claimed(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let deciding: HashSet<String> = conditions(s).filter(|c| c.refuses(s)).map(|c| c.variable).collect();
    for c in conditions(s) {
        let Some(field) = c.variable.strip_prefix("http_") else { continue };
        let claim = field.split('_').any(|w| CLAIMS.contains(&w));
        let secret =
            ["token", "key", "secret", "signature"].iter().any(|w| field.contains(w)) || c.value.len() > 15;
        let sets = || {
            let mut names = s.children(Some(c.node), "set").filter_map(|n| s.arg(n, 0).strip_prefix('$'));
            names.any(|name| deciding.contains(name))
        };
        let local = http_server(s, c.node).is_some_and(|server| is_local(s, server));
        // A client that is refused for the value would not send it.
        let lets_in = c.operator.starts_with('!') && c.refuses(s) || !c.operator.starts_with('!') && sets();
        if claim && !secret && !local && lets_in {
            found(s.span(c.node), format!("${} is what the client writes", c.variable));
        }
    }
}

/// Reports names with `*` in tables that compare them as they are.
fn plain_wildcards(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let hosts = ["$host", "$http_host", "$ssl_server_name", "$server_name", "$ssl_preread_server_name"];
    for n in s.all("map").filter(|n| hosts.contains(&s.arg(*n, 0))) {
        let lines = || s.nodes.get(n).and_then(|n| n.d.block.as_ref()).into_iter().flatten();
        if lines().any(|l| l.name.text == b"hostnames") {
            continue;
        }
        for line in lines() {
            let key = line.name.as_str();
            if key.starts_with("*.")
                || key.starts_with('.') && key.len() > 1
                || key.ends_with(".*") && !key.starts_with('~')
            {
                found(line.name.span, format!("without \"hostnames\" no name is {key}"));
            }
        }
    }
}

/// Reports certificates named by whatever the client asks for.
fn certificates_by_name(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("ssl_certificate_key") {
        let Some(server) = http_server(s, n).filter(|_| s.arg(n, 0).contains("$ssl_server_name")) else {
            continue;
        };
        let mut names = s.children(Some(server), "server_name").flat_map(|n| s.args(n)).peekable();
        let open =
            names.peek().is_none() || names.any(|n| n.contains('*') || n.starts_with(['~', '.']) || n == "_");
        if open {
            found(
                s.arg_span(n, 0),
                "each handshake reads the file that its client names, as the account of the workers"
                    .to_owned(),
            );
        }
    }
}

/// Consoles of programs: the first part of their paths, and what they are.
const CONSOLES: [(&str, &str); 8] = [
    ("minio", "the administration of MinIO"),
    ("_cluster", "the cluster of Elasticsearch"),
    ("_nodes", "the insides of Elasticsearch"),
    ("elasticsearch", "Elasticsearch"),
    ("jmx-console", "the insides of a Java program"),
    ("kibana", "Kibana"),
    ("consul", "Consul"),
    ("flower", "the queues of Celery"),
];

/// Reports consoles of known programs that nobody guards.
fn consoles(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for l in s.all("location").filter(|l| pass_of(s, *l).is_some()) {
        let Some(path) = routes::prefix(s, l) else { continue };
        let first = path.trim_start_matches(['=', ' ', '/']).split('/').next().unwrap_or_default();
        let console = CONSOLES.iter().find(|(name, _)| *name == first);
        let local = || http_server(s, l).is_none_or(|server| is_local(s, server) || !is_public(s, server));
        if let Some((_, what)) = console.filter(|_| !super::detours::is_closed(s, l) && !local()) {
            found(s.span(l), format!("everybody reaches {what}"));
        }
    }
}

/// Returns `true` if a server has a name or a socket that others than its own machine use.
fn is_public(s: &Scene<'_>, server: usize) -> bool {
    let mut names = s.children(Some(server), "server_name").flat_map(|n| s.args(n));
    !names
        .any(|n| n == "localhost" || n.ends_with(".local") || n.ends_with(".internal") || n.ends_with(".lan"))
}

checks! { Check;
    "access-replaced" |s, _, found| replaced_rules(s, found),
    "network-beyond-private" |s, _, found| wider_than_private(s, found),
    "ciphers-all" |s, _, found| all_ciphers(s, found),
    "program-folder" |s, _, found| program_folders(s, found),
    "key-below-root" |s, _, found| keys_below(s, found),
    "files-beside-tls" |s, _, found| plain_files(s, found),
    "referers-unused" |s, _, found| referers_unused(s, found),
    "guard-by-claim" |s, _, found| claimed(s, found),
    "map-wildcard" |s, _, found| plain_wildcards(s, found),
    "certificate-by-client" |s, _, found| certificates_by_name(s, found),
    "console-open" |s, _, found| consoles(s, found),
    "root-by-host" |s, _, found| for n in s.all("root").chain(s.all("alias")) {
        if super::ask::carried(s, s.parent(n), s.arg(n, 0)).iter().any(|v| v == "http_host") {
            found(s.arg_span(n, 0), "the field Host chooses the folder, with its port and as the client writes it".to_owned());
        }
    },
    "dot-files-allowed" |s, _, found| for l in s.all("location") {
        let dots = routes::pattern(s, l).is_some_and(|p| ["/\\.", "/\\..*", "(^|/)\\.", "/\\.(?!well-known)", "/\\.(?!well-known).*", "/\\.ht", "/\\.git"].contains(&&*p));
        let allows = s.children(Some(l), "allow").find(|n| s.arg(*n, 0) == "all");
        if let Some(n) = allows.filter(|_| dots && s.child(Some(l), "deny").is_none()) {
            found(s.span(n), "everybody gets files like .git and .htpasswd".to_owned());
        }
    },
}
