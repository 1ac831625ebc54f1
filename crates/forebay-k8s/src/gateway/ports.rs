//! Ports: the listeners of all Gateways at one address and port, and which of them may have it.
//!
//! Gateways without an address of their own share all addresses of this machine, also with the servers of Ingresses.

use super::attach::covers;
use super::gateways::Ours;
use super::listener::{Attached, Clients, Speaks};
use super::objects::{AllAside, Aside, GatewayKind};
use super::place::Placed;
use crate::ingress::Globals;
use crate::objects::Key;
use crate::options::Options;
use crate::tree;
use forebay_conf::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// What listens beside Gateways: the servers of Ingresses, and those of the options.
pub(crate) struct Others<'a> {
    /// Settings and options.
    pub globals: &'a Globals,
    /// Returns `true` if a server of an Ingress has a name.
    pub has_name: &'a dyn Fn(&str) -> bool,
    /// An Ingress has rules for all hosts without a server.
    pub has_rest: bool,
    /// TCP ports that are in use, but not by the servers of Ingresses.
    pub tcp: BTreeSet<u16>,
    /// UDP ports that are in use.
    pub udp: BTreeSet<u16>,
    /// Addresses that another program has, `true` for UDP, with the reason.
    pub taken: &'a BTreeMap<(bool, SocketAddr), String>,
    /// Objects that are set aside.
    pub aside: &'a AllAside,
}

impl Others<'_> {
    /// Returns what is done with an object that is set aside.
    pub(crate) fn aside(&self, kind: GatewayKind, key: &Key) -> Option<&Aside> {
        // There are none, nearly always.
        (!self.aside.is_empty()).then(|| self.aside.get(&(kind, key.clone())))?
    }

    /// Returns why an object is closed.
    pub(crate) fn refusal(&self, kind: GatewayKind, key: &Key) -> Option<String> {
        match self.aside(kind, key)? {
            Aside::Closed(why) => Some(format!("the server refuses it: {why}")),
            Aside::Absent => None,
        }
    }

    /// Returns the protocol of the servers of Ingresses at a port.
    fn protocol(&self, address: Option<IpAddr>, port: u16) -> Option<&'static str> {
        let listens_at = |a: IpAddr| self.globals.addresses.iter().any(|own| own.parse() == Ok(a));
        if !address.is_none_or(listens_at) {
            return None;
        }
        let options = &self.globals.options;
        match port {
            _ if port == options.http_port => Some("HTTP"),
            _ if port == options.https_port => Some("HTTPS"),
            _ => None,
        }
    }

    /// Returns why a listener cannot have its port.
    fn forbids(&self, address: Option<IpAddr>, port: u16, speaks: Speaks) -> Option<String> {
        let options = &self.globals.options;
        let (taken, service) = if speaks == Speaks::Udp { (&self.udp, "UDP") } else { (&self.tcp, "TCP") };
        if taken.contains(&port) {
            return Some(format!("the controller or a {service} service uses port {port}"));
        }
        if let Some(why) = self.taken_by_others(address, port, speaks == Speaks::Udp) {
            return Some(why);
        }
        if speaks == Speaks::Udp {
            return None;
        }
        // The stream block has this port at all addresses.
        if options.enable_ssl_passthrough && port == options.https_port && address.is_some() {
            return Some(format!("port {port} looks for TLS sessions to pass on (--enable-ssl-passthrough)"));
        }
        // The servers of Ingresses listen in another block, and two blocks cannot share a port of the machine.
        let all = !speaks.is_http() && self.globals.addresses.is_empty();
        let theirs =
            self.protocol(address.filter(|_| !all), port).filter(|theirs| *theirs != speaks.name())?;
        Some(format!("Ingresses use port {port} with the protocol {theirs}"))
    }

    /// Returns why a port could not be opened at an address, or at one of those that are shared.
    fn taken_by_others(&self, address: Option<IpAddr>, port: u16, udp: bool) -> Option<String> {
        let shared = |ip: IpAddr| self.globals.addresses.iter().any(|own| own.parse() == Ok(ip));
        let is_here = |ip: IpAddr| match address {
            Some(own) => ip == own,
            None => ip.is_unspecified() || shared(ip),
        };
        let mut all = self.taken.iter().filter(|((of_udp, place), _)| *of_udp == udp && place.port() == port);
        all.find(|((_, place), _)| is_here(place.ip())).map(|(_, why)| format!("{why}; it is tried again"))
    }

    /// Returns `true` if an Ingress serves requests for a host at a port. An empty text stands for all other hosts.
    pub(crate) fn serve(&self, address: Option<IpAddr>, port: u16, host: &str) -> bool {
        let theirs = if host.is_empty() { self.has_rest } else { (self.has_name)(host) };
        theirs && self.protocol(address, port).is_some()
    }
}

/// Returns the ports of the servers that options add, such as that of `/healthz`.
pub(crate) fn of_options(options: &Options) -> BTreeSet<u16> {
    fn collect(nodes: &[Node], ports: &mut BTreeSet<u16>) {
        for node in nodes {
            if node.name == b"listen" {
                let word = node.args.first().map(|word| String::from_utf8_lossy(word)).unwrap_or_default();
                let port = word.rsplit(':').next().and_then(|port| port.parse().ok());
                // An address alone means port 80 (nginx: listen).
                ports.insert(port.unwrap_or(80));
            }
            collect(node.block.as_deref().unwrap_or_default(), ports);
        }
    }
    let mut ports = BTreeSet::new();
    collect(&options.http, &mut ports);
    ports.extend(Some(options.status_port).filter(|port| *port != 0));
    if options.enable_ssl_passthrough {
        let own = options.ssl_passthrough_proxy_port;
        ports.extend([own, own.saturating_sub(1).max(1)]);
    }
    ports
}

/// Refuses listeners whose port belongs to something else: the servers of Ingresses, or a listener of an older Gateway. `ours` is in the
/// order of age.
pub(crate) fn settle(ours: &mut [Ours], others: &Others<'_>) {
    let mut claims = Claims::default();
    for o in ours.iter_mut().filter(|o| o.problem.is_none()) {
        let (address, key) = (o.address, &o.key);
        for l in o.listeners.iter_mut().filter(|l| l.conflict.is_none()) {
            let Some(speaks) = l.speaks else { continue };
            if let Some(why) = others.forbids(address, l.listener.port, speaks) {
                l.unavailable = Some(why);
                continue;
            }
            match claims.claim(address, key, speaks, l) {
                Claim::Granted => {}
                Claim::Unavailable(why) => l.unavailable = Some(why),
                Claim::Conflict(reason, why) => l.conflict = Some((reason, why)),
            }
        }
    }
}

/// Port at an address, of UDP or TCP.
type Socket = (Option<IpAddr>, (bool, u16));

/// Ports and hosts that listeners have.
#[derive(Default)]
struct Claims {
    protocols: BTreeMap<Socket, (Speaks, Key)>,
    hosts: BTreeMap<(Socket, String), (Clients, Speaks, Key)>,
}

/// Answer to a listener that asks for its port and host.
enum Claim {
    Granted,
    Unavailable(String),
    /// Reason of the condition `Conflicted`, and message.
    Conflict(&'static str, String),
}

impl Claims {
    /// Asks for the port and host of a listener of a Gateway.
    fn claim(&mut self, address: Option<IpAddr>, key: &Key, speaks: Speaks, l: &Attached) -> Claim {
        let socket = (address, l.port());
        let (first, by) = self.protocols.entry(socket).or_insert_with(|| (speaks, key.clone()));
        let text = format!("Gateway {by} has port {} for {}", l.listener.port, first.name());
        if first.shared() != speaks.shared() {
            return Claim::Conflict("ProtocolConflict", text);
        }
        // Without names of hosts, nothing tells two listeners apart.
        if !speaks.has_hosts() && by != key {
            return Claim::Unavailable(text);
        }
        // The server of a host has one rule about certificates of clients. Whichever of two it were, one of the Gateways would
        // get requests that it does not want.
        let own = || (l.clients.clone(), speaks, key.clone());
        let (clients, other, by) = self.hosts.entry((socket, l.host())).or_insert_with(own);
        let why = if *other != speaks {
            format!("for {}", other.name())
        } else if !clients.is_same(&l.clients) {
            "with other rules for certificates of clients".to_owned()
        } else {
            return Claim::Granted;
        };
        Claim::Conflict("HostnameConflict", format!("Gateway {by} has the same host and port {why}"))
    }
}

/// Listener of a port.
#[derive(Clone, Copy)]
pub(crate) struct Member<'a> {
    /// Index of the Gateway.
    pub gateway: usize,
    /// The Gateway.
    pub ours: &'a Ours,
    /// Index of the listener in the Gateway.
    pub listener: usize,
    /// The listener.
    pub attached: &'a Attached,
}

/// A port at an address, with the listeners of all Gateways that have it.
pub(crate) struct Port<'a> {
    /// Address; `None`: all.
    pub address: Option<IpAddr>,
    /// Port.
    pub number: u16,
    /// Protocol of all listeners. `TlsTerminate` stands for TLS that passes, too.
    pub speaks: Speaks,
    /// The servers of Ingresses are here, too, and get requests for hosts without a server.
    pub of_ingresses: bool,
    /// Listeners, those of the oldest Gateway first. Those that cannot serve are among them: nobody else gets their hosts.
    pub members: Vec<Member<'a>>,
}

impl<'a> Port<'a> {
    /// Returns the ports that have servers.
    pub(crate) fn all(ours: &'a [Ours], others: &Others<'_>) -> Vec<Port<'a>> {
        let mut ports: BTreeMap<(Option<IpAddr>, (bool, u16)), Port<'a>> = BTreeMap::new();
        for (gateway, o) in ours.iter().enumerate().filter(|(_, o)| o.problem.is_none()) {
            let own = o.listeners.iter().enumerate().filter(|(_, l)| l.has_port());
            for (listener, attached) in own {
                let Some(speaks) = attached.speaks else { continue };
                let (address, number) = (o.address, attached.listener.port);
                let port = ports.entry((address, attached.port())).or_insert_with(|| Port {
                    address,
                    number,
                    speaks: speaks.shared(),
                    of_ingresses: speaks.is_http() && others.protocol(address, number).is_some(),
                    members: Vec::new(),
                });
                port.members.push(Member { gateway, ours: o, listener, attached });
            }
        }
        ports.into_values().filter(|port| port.members.iter().any(|m| m.attached.works())).collect()
    }

    /// Returns the listener with an index, if it serves.
    pub(crate) fn member(&self, gateway: usize, listener: usize) -> Option<Member<'a>> {
        let found = self.members.iter().find(|m| (m.gateway, m.listener) == (gateway, listener));
        found.copied().filter(|m| m.attached.works())
    }

    /// Returns the host of the listeners that get requests for a host: the most specific one.
    pub(crate) fn owner(&self, host: &str) -> Option<String> {
        let hosts = self.members.iter().map(|m| m.attached.host()).filter(|own| covers(own, host));
        hosts.max_by_key(|own| specificity(own))
    }

    /// Returns the hosts of all listeners, each once, in the order of the listeners.
    pub(crate) fn hosts(&self) -> Vec<String> {
        let mut hosts = Vec::new();
        for host in self.members.iter().map(|m| m.attached.host()) {
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        hosts
    }

    /// Returns `true` if TLS ends at the port, for some of its hosts at least.
    pub(crate) fn encrypted(&self) -> bool {
        self.members.iter().any(|m| m.attached.works() && m.attached.ends_tls())
    }

    /// Returns a text that no other port of its protocol has, the first argument of `listen`.
    pub(crate) fn name(&self) -> String {
        match self.address {
            None => self.number.to_string(),
            Some(IpAddr::V4(a)) => format!("{a}:{}", self.number),
            Some(IpAddr::V6(a)) => format!("[{a}]:{}", self.number),
        }
    }

    /// Returns the `listen` lines of a server. `default`: it gets requests for hosts without a server.
    pub(crate) fn listen(&self, default: bool, globals: &Globals) -> Vec<Node> {
        if self.address.is_none() && self.of_ingresses {
            return if self.encrypted() {
                tree::listen_https(globals, default)
            } else {
                tree::listen_http(globals, default)
            };
        }
        let addresses = match self.address {
            Some(_) => vec![self.name()],
            None => tree::addresses(globals, self.number),
        };
        // What is in front of shared addresses is the same for all ports.
        let shared = self.address.is_none() || self.of_ingresses;
        let udp = self.speaks == Speaks::Udp;
        let proxy = shared && !udp && globals.settings.flag("use-proxy-protocol");
        let line = |address: String| {
            Node::new("listen")
                .arg(address)
                .args(self.encrypted().then_some("ssl"))
                .args(udp.then_some("udp"))
                .args(default.then_some("default_server"))
                .args(proxy.then_some("proxy_protocol"))
        };
        addresses.into_iter().map(line).collect()
    }
}

/// Returns a host as the first word of an entry of a `map` with `hostnames`; empty for all.
pub(crate) fn map_word(host: &str) -> String {
    match host {
        "" => "default".to_owned(),
        // They mean something else in a `map`.
        "default" | "hostnames" | "include" | "volatile" => format!("\\{host}"),
        _ => host.to_owned(),
    }
}

/// Rank of a host: exact names before wildcards, longer ones before shorter ones.
pub(crate) fn specificity(host: &str) -> (bool, usize) {
    (!host.is_empty() && !host.starts_with('*'), host.len())
}

/// Tells routes which of their hosts Ingresses serve at the same port. A route that has no other is not accepted.
pub(crate) fn yield_hosts(ours: &[Ours], routes: &mut [Placed<'_>], others: &Others<'_>) {
    for parent in routes.iter_mut().flat_map(|r| r.parents.iter_mut().flatten()) {
        let Some(o) = ours.get(parent.gateway) else { continue };
        let (mut theirs, mut keeps_some) = (BTreeSet::new(), false);
        for (listener, hosts) in &parent.listeners {
            let Some(l) = o.listeners.get(*listener) else { continue };
            for host in hosts.iter().map(|common| &common.host) {
                if l.is_http() && others.serve(o.address, l.listener.port, host) {
                    theirs.insert(if host.is_empty() { "all without a name" } else { host });
                } else {
                    keeps_some = true;
                }
            }
        }
        if theirs.is_empty() {
            continue;
        }
        let names: Vec<&str> = theirs.into_iter().collect();
        let text = format!("Ingresses serve hosts of it at the same port: {}", names.join(", "));
        parent.accepted = if keeps_some { (parent.accepted.0, text) } else { ("HostnameConflict", text) };
        if !keeps_some {
            parent.listeners.clear();
        }
    }
}
