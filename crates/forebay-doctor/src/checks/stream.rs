//! Rules for the stream block. What they say about nginx was tried with it.

use super::Check;
use super::checks;
use super::general::workers;
use super::safety::is_near;
use crate::scene::Scene;
use crate::variables::{named, sources, values};
use forebay_conf::address::{Address, Host};
use forebay_conf::units;
use std::collections::HashMap;

/// Ports of databases and caches, whose clients keep silent connections in pools. Those of AMQP and Cassandra send heartbeats.
const POOLED: [(u16, &str); 6] = [
    (5432, "PostgreSQL"),
    (3306, "MySQL"),
    (6379, "Redis"),
    (27017, "MongoDB"),
    (1433, "SQL Server"),
    (11211, "memcached"),
];

/// Ports of protocols in which each datagram of a client has one answer.
const ANSWERED: [(u16, &str); 5] =
    [(53, "DNS"), (123, "NTP"), (161, "SNMP"), (1812, "RADIUS"), (1813, "RADIUS")];

/// Longest `proxy_timeout`, in ms, at which sessions without an expected number of answers do not pile up.
const BRIEF: u64 = 60_000;

/// Shortest `proxy_timeout`, in ms, that needs probes to find clients that have vanished.
const LONG: u64 = 3_600_000;

/// Variables with the first bytes of a client, and the directive that reads them.
const PREREAD: [(&str, &str); 3] =
    [("ssl_preread_", "ssl_preread"), ("mqtt_preread_", "mqtt_preread"), ("rdp_cookie", "rdp_preread")];

/// Variables that limits do not know yet: those of TLS and of the first bytes.
const LATE: [&str; 3] = ["ssl_", "mqtt_preread_", "rdp_cookie"];

/// A `server` of the stream block.
#[derive(Clone, Copy)]
struct Server<'s, 't> {
    scene: &'s Scene<'t>,
    node: usize,
}

impl<'s, 't> Server<'s, 't> {
    fn all(scene: &'s Scene<'t>) -> impl Iterator<Item = Server<'s, 't>> {
        let servers = scene.all("server");
        let in_stream = move |n: &usize| scene.parent(*n).is_some_and(|p| scene.is(p, "stream"));
        servers.filter(in_stream).map(move |node| Server { scene, node })
    }

    /// Returns its `listen` directives.
    fn listens(self) -> impl Iterator<Item = usize> + 's {
        self.scene.children(Some(self.node), "listen")
    }

    fn has_udp(self) -> bool {
        self.listens().any(|l| has_word(self.scene, l, "udp"))
    }

    fn has_tcp(self) -> bool {
        self.listens().any(|l| !has_word(self.scene, l, "udp"))
    }

    /// Returns the setting in effect.
    fn setting(self, name: &str) -> Option<usize> {
        self.scene.effective(Some(self.node), name)
    }

    fn is_on(self, name: &str) -> bool {
        self.scene.on(Some(self.node), name)
    }

    /// Returns `proxy_timeout` in ms if it is set.
    fn timeout(self) -> Option<u64> {
        self.setting("proxy_timeout").and_then(|n| milliseconds(self.scene, n))
    }

    /// Returns its `proxy_pass`.
    fn proxy_pass(self) -> Option<usize> {
        self.scene.child(Some(self.node), "proxy_pass")
    }

    /// Returns the addresses that its sessions may be passed to, as far as they are written down.
    fn targets(self) -> Vec<String> {
        let Some(pass) = self.proxy_pass() else { return Vec::new() };
        let written = written(self.scene, self.node, self.scene.arg(pass, 0));
        written.into_iter().flat_map(|target| self.servers_of(target)).collect()
    }

    /// Returns the group with this name.
    fn group(self, name: &str) -> Option<usize> {
        let s = self.scene;
        s.groups(name).find(|u| s.around(*u, "stream").is_some())
    }

    /// Returns the servers of the group with this name, or the address itself.
    fn servers_of(self, target: String) -> Vec<String> {
        let s = self.scene;
        let Some(group) = self.group(&target) else { return vec![target] };
        s.children(Some(group), "server").map(|n| s.arg(n, 0).to_owned()).collect()
    }

    /// Returns the directives that choose where a session goes: `proxy_pass`, `pass`, and `hash` and `sticky` of the groups.
    fn choices(self) -> Vec<usize> {
        let s = self.scene;
        let passes: Vec<usize> =
            ["proxy_pass", "pass"].into_iter().filter_map(|name| s.child(Some(self.node), name)).collect();
        let names = passes.iter().flat_map(|n| written(s, self.node, s.arg(*n, 0)));
        let groups: Vec<usize> = names.filter_map(|name| self.group(&name)).collect();
        passes
            .into_iter()
            .chain(groups.into_iter().flat_map(|group| {
                ["hash", "sticky"].into_iter().filter_map(move |name| s.child(Some(group), name))
            }))
            .collect()
    }

    /// Returns the entry of a table of ports for the first address of `addresses` that has one of them.
    fn known_port(table: &[(u16, &'static str)], addresses: &[String]) -> Option<(u16, &'static str)> {
        let ports = addresses.iter().filter_map(|a| Address::parse(a, None));
        ports.filter_map(|a| a.port()).find_map(|port| table.iter().copied().find(|(p, _)| *p == port))
    }

    /// Returns the protocol of its UDP clients if each datagram has one answer there.
    fn answered(self) -> Option<(u16, &'static str)> {
        let udp = self.listens().filter(|l| has_word(self.scene, *l, "udp"));
        let mut addresses: Vec<String> = udp.map(|l| self.scene.arg(l, 0).to_owned()).collect();
        if !addresses.is_empty() {
            addresses.extend(self.targets());
        }
        Self::known_port(&ANSWERED, &addresses)
    }
}

fn has_word(s: &Scene<'_>, n: usize, word: &str) -> bool {
    s.args(n).iter().any(|a| a == word)
}

fn milliseconds(s: &Scene<'_>, n: usize) -> Option<u64> {
    units::time_ms(s.arg(n, 0).as_bytes())
}

/// Returns the values of an argument: itself, or those that its only variable can have.
fn written(s: &Scene<'_>, block: usize, argument: &str) -> Vec<String> {
    match named(argument).as_slice() {
        [] => vec![argument.to_owned()],
        [(0, name)] if argument.trim_matches(['$', '{', '}']) == *name => {
            values(s, Some(block), name).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Returns the addresses at which the configuration accepts connections.
fn listening(s: &Scene<'_>) -> Vec<Address> {
    let servers = s.all("server").filter(|n| s.nodes.get(*n).is_some_and(|n| n.d.block.is_some()));
    let mut found = Vec::new();
    for server in servers {
        let http = s.parent(server).is_some_and(|p| s.is(p, "http"));
        let default_port = http.then_some(80);
        let mut listens = s.children(Some(server), "listen").peekable();
        if http && listens.peek().is_none() {
            found.extend(Address::parse("*:80", None));
        }
        let tcp = listens.filter(|l| !has_word(s, *l, "udp"));
        found.extend(tcp.filter_map(|l| Address::parse(s.arg(l, 0), default_port)));
    }
    found
}

/// Socket of a `listen` directive, however the address is written: `443` and `*:443`.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Socket {
    /// Text that is the same for the same address.
    address: String,
    is_udp: bool,
}

impl Socket {
    pub(super) fn of(s: &Scene<'_>, listen: usize) -> Option<Socket> {
        let address = format!("{:?}", Address::parse(s.arg(listen, 0), None)?);
        Some(Socket { address, is_udp: has_word(s, listen, "udp") })
    }
}

/// Sockets of the servers of the stream block, with the `listen` directives about each.
struct Sockets<'s, 't>(HashMap<Socket, Vec<(Server<'s, 't>, usize)>>);

impl<'s, 't> Sockets<'s, 't> {
    fn of(s: &'s Scene<'t>) -> Sockets<'s, 't> {
        let mut all: HashMap<Socket, Vec<(Server<'s, 't>, usize)>> = HashMap::new();
        for server in Server::all(s) {
            for listen in server.listens() {
                if let Some(socket) = Socket::of(s, listen) {
                    all.entry(socket).or_default().push((server, listen));
                }
            }
        }
        Sockets(all)
    }

    /// Returns `true` if a listener at the socket of a `listen` directive has a property.
    fn any(&self, listen: usize, s: &Scene<'_>, has: impl Fn(Server<'s, 't>, usize) -> bool) -> bool {
        let there = Socket::of(s, listen).and_then(|socket| self.0.get(&socket));
        there.into_iter().flatten().any(|(server, l)| has(*server, *l))
    }

    /// Returns `true` if a listener at a socket of a server has a property.
    fn any_of(&self, server: Server<'s, 't>, has: impl Fn(Server<'s, 't>, usize) -> bool) -> bool {
        server.listens().any(|l| self.any(l, server.scene, &has))
    }
}

/// Returns the key of a zone of `limit_conn` in the stream block; empty if there is no such zone.
fn limit_key<'s>(s: &'s Scene<'_>, zone: &str) -> &'s str {
    let is_named = |n: &usize| {
        let names = s.args(*n);
        names.iter().filter_map(|a| a.strip_prefix("zone=")?.split(':').next()).any(|name| name == zone)
    };
    let mut zones = s.all("limit_conn_zone").filter(|n| s.around(*n, "stream").is_some());
    zones.find(is_named).map(|n| s.arg(n, 0)).unwrap_or_default()
}

checks! { Check;
    "stream-timeout-zero" |s, _, found| for n in s.all("proxy_timeout").filter(|n| milliseconds(s, *n) == Some(0)) {
        found(s.arg_span(n, 0), "each session ends at once".to_owned());
    },
    "stream-database-timeout" |s, _, found| for server in Server::all(s).filter(|server| server.has_tcp() && server.setting("proxy_timeout").is_none()) {
        if let (Some(pass), Some((port, name))) = (server.proxy_pass(), Server::known_port(&POOLED, &server.targets())) {
            found(s.span(pass), format!("idle connections to port {port} ({name}) are cut after ten minutes"));
        }
    },
    "stream-vanished-clients" |s, _, found| for server in Server::all(s) {
        let long = server.timeout().filter(|t| *t >= LONG);
        let Some(timeout) = long.filter(|_| server.proxy_pass().is_some()) else { continue };
        for n in server.listens().filter(|l| !has_word(s, *l, "udp")) {
            let probes = s.args(n).iter().any(|a| a.starts_with("so_keepalive=") && a != "so_keepalive=off");
            if !probes && !s.arg(n, 0).starts_with("unix:") {
                found(s.span(n), format!("a client that has vanished keeps its session for {} h", timeout / LONG));
            }
        }
    },
    "udp-settings-unused" |s, _, found| for name in ["proxy_requests", "proxy_responses"] {
        for n in s.all(name) {
            let own = s.parent(n).filter(|p| s.is(*p, "server")).map(|node| Server { scene: s, node });
            let is_beside = |server: &Server<'_, '_>| s.parent(server.node) == s.parent(n);
            let has_udp = own.map_or_else(|| Server::all(s).filter(is_beside).any(Server::has_udp), Server::has_udp);
            if !has_udp {
                found(s.span(n), "nothing here listens for datagrams".to_owned());
            }
        }
    },
    "udp-answers-dropped" |s, _, found| for server in Server::all(s) {
        let none = server.setting("proxy_responses").filter(|n| s.arg(*n, 0) == "0");
        if let (Some(n), Some((port, name))) = (none, server.answered()) {
            found(s.arg_span(n, 0), format!("answers of port {port} ({name}) are dropped"));
        }
    },
    "udp-sessions-linger" |s, _, found| for server in Server::all(s) {
        let brief = server.timeout().is_some_and(|t| t <= BRIEF);
        if brief || server.setting("proxy_responses").is_some() {
            continue;
        }
        if let (Some(pass), Some((port, name))) = (server.proxy_pass(), server.answered()) {
            found(s.span(pass), format!("a session for port {port} ({name}) outlives its answer"));
        }
    },
    "udp-without-reuseport" |s, h, found| { let sockets = Sockets::of(s); for server in Server::all(s).filter(|_| workers(s, h) > 1) {
        // One datagram and its answer are a session in any worker.
        let single = server.setting("proxy_responses").is_some_and(|n| matches!(s.arg(n, 0), "0" | "1"));
        let reuses = |l: usize| sockets.any(l, s, |_, o| has_word(s, o, "reuseport"));
        for n in server.listens().filter(|l| !single && has_word(s, *l, "udp") && !reuses(*l)) {
            found(s.span(n), "nginx may spread the datagrams of one client over several workers".to_owned());
        }
    } },
    "pass-without-listener" |s, _, found| { let listening = listening(s); for n in s.all("pass") {
        let Some(server) = s.parent(n) else { continue };
        for target in written(s, server, s.arg(n, 0)) {
            let address = Address::parse(&target, None);
            if address.is_some_and(|a| !listening.iter().any(|l| l.takes(&a))) {
                found(s.arg_span(n, 0), format!("no listen in this configuration takes {target}"));
            }
        }
    } },
    "preread-behind-tls" |s, _, found| for server in Server::all(s).filter(|server| server.is_on("ssl_preread")) {
        for n in server.listens().filter(|l| has_word(s, *l, "ssl")) {
            found(s.span(n), "there is no ClientHello left for ssl_preread".to_owned());
        }
    },
    "preread-off" |s, _, found| { let sockets = Sockets::of(s); for server in Server::all(s) {
        for n in server.choices() {
            let used = sources(s, Some(server.node), &s.text(n));
            let reader = |v: &str| PREREAD.iter().find(|(prefix, _)| v.starts_with(prefix)).map(|(_, reader)| *reader);
            // The default server of the address reads for all of them.
            let is_read = |reader: &str| sockets.any_of(server, |other, _| other.is_on(reader));
            let unread = used.iter().find(|v| reader(v).is_some_and(|reader| !is_read(reader)));
            if let Some(name) = unread {
                let at = s.args(n).iter().position(|a| a.contains('$')).unwrap_or(0);
                found(s.arg_span(n, at), format!("${name} is always empty here"));
            }
        }
    } },
    "limit-before-bytes" |s, _, found| for n in s.all("limit_conn").filter(|n| s.around(*n, "stream").is_some()) {
        let used = sources(s, s.parent(n), limit_key(s, s.arg(n, 0)));
        let is_late = |v: &&String| LATE.iter().any(|prefix| v.starts_with(prefix));
        if let Some(name) = used.iter().find(is_late) {
            found(s.arg_span(n, 0), format!("${name} is empty when this is judged"));
        }
    },
    "stream-name-unused" |s, _, found| { let sockets = Sockets::of(s); for server in Server::all(s) {
        let Some(n) = s.child(Some(server.node), "server_name") else { continue };
        if !sockets.any_of(server, |other, l| has_word(s, l, "ssl") || other.is_on("ssl_preread")) {
            found(s.span(n), "nothing here reads a name".to_owned());
        }
    } },
    "stream-real-ip" |s, _, found| for server in Server::all(s).filter(|server| server.setting("set_real_ip_from").is_none()) {
        let judged = ["deny", "allow", "limit_conn"].into_iter().find_map(|name| server.setting(name));
        let Some(n) = server.listens().find(|l| has_word(s, *l, "proxy_protocol")).and(judged) else { continue };
        found(s.span(n), "the address of the balancer is judged, not that of the client".to_owned());
    },
    "stream-tls-unverified" |s, _, found| for server in Server::all(s).filter(|server| server.is_on("proxy_ssl") && !server.is_on("proxy_ssl_verify")) {
        // Turned off in so many words, it counts for machines nearby as well.
        let off = server.setting("proxy_ssl_verify").is_some();
        let far = server.targets().into_iter().find(|target| off || match Address::parse(target, None) {
            Some(Address::Inet(Host::Ip(ip), _)) => !is_near(ip),
            Some(Address::Inet(Host::Name(name), _)) => name != "localhost",
            _ => false,
        });
        if let (Some(pass), Some(far)) = (server.proxy_pass(), far) {
            let at = server.setting("proxy_ssl_verify").unwrap_or(pass);
            found(s.span(at), format!("nothing shows that it is {far} that answers"));
        }
    },
}
