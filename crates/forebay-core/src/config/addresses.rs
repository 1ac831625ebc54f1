//! Listen directives, grouped by socket.

use super::listen::{AddressOptions, ListenDirective};
use super::names::{NameTable, ServerName};
use super::scope::Build;
use super::{Address, ListenAddr, Listener, plain};
use forebay_conf::error::{Error, Level};
use std::collections::HashMap;

/// A virtual server with the addresses that it listens on.
#[derive(Clone, Copy, Debug)]
pub struct Listening<'s> {
    /// Its names.
    pub names: &'s [ServerName],
    /// Its `listen` directives.
    pub listens: &'s [ListenDirective],
    /// Position of the `server` directive in the file.
    pub ordinal: u32,
}

/// Listen directives of one address, with the numbers of their servers.
type Listens<'b> = Vec<(usize, &'b ListenDirective)>;

/// Groups the listen directives of a front end's servers by socket. Keeps errors such as duplicate addresses among the
/// messages of the build.
pub fn listeners(servers: &[Listening<'_>], front: u8, cx: &mut Build<'_>) -> Vec<Listener> {
    let mut sockets = Vec::new();
    for (addr, listens) in &by_address(servers, cx) {
        let default = address(servers, listens, cx);
        // Directives without options have the defaults of their front end.
        let set = listens.iter().find(|(_, l)| l.set).or(listens.first());
        let options = set.map(|(_, l)| l.options.clone()).unwrap_or_default();
        let bind = listens.iter().any(|(_, l)| l.bind);
        let listener = Listener::new(addr.clone(), options, front, default);
        sockets.push((listener, bind));
    }
    fold(sockets)
}

/// TLS setting that a server lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// A certificate.
    Certificate,
    /// TLS 1.3, without which there is no QUIC.
    Tls13,
}

/// Checks that the default server of each TLS address has a certificate, which servers without one use, too, and the version that
/// QUIC needs. Keeps errors among the messages of the build.
pub fn check_certificates(
    listeners: &[Listener],
    servers: &[Listening<'_>],
    lacks: impl Fn(usize) -> Option<Lacking>,
    cx: &mut Build<'_>,
) {
    let addresses =
        listeners.iter().flat_map(|l| std::iter::once(&l.default).chain(l.exact.iter().map(|e| &e.1)));
    for a in addresses.filter(|a| a.options.ssl || a.options.quic) {
        let quic = a.options.quic;
        let Some(lacking) = lacks(a.default_server).filter(|l| quic || *l == Lacking::Certificate) else {
            continue;
        };
        let listens = servers.get(a.default_server).map(|s| s.listens).unwrap_or_default();
        let same = |l: &&ListenDirective| if quic { l.address_options.quic } else { l.address_options.ssl };
        let at = listens.iter().find(same).or(listens.first());
        let word = if quic { "quic" } else { "ssl" };
        let text = match lacking {
            Lacking::Certificate => {
                format!("no \"ssl_certificate\" is defined for the \"listen ... {word}\" directive")
            }
            Lacking::Tls13 => {
                format!("\"ssl_protocols\" must enable TLSv1.3 for the \"listen ... {word}\" directive")
            }
        };
        cx.keep_late(at.map_or_else(|| plain(&text), |l| l.error(text.clone())));
    }
}

/// Collects the listen directives of each address, in the order of the addresses. Duplicates are errors.
fn by_address<'b>(servers: &[Listening<'b>], cx: &mut Build<'_>) -> Vec<(ListenAddr, Listens<'b>)> {
    let mut places: HashMap<&'b ListenAddr, usize, foldhash::fast::RandomState> = HashMap::default();
    let mut all: Vec<(ListenAddr, Taken<'b>)> = Vec::new();
    for (i, l) in servers.iter().enumerate().flat_map(|(i, s)| s.listens.iter().map(move |l| (i, l))) {
        for addr in &l.addrs {
            let place = *places.entry(addr).or_insert(all.len());
            if place == all.len() {
                all.push((addr.clone(), Taken::default()));
            }
            let Some((_, at)) = all.get_mut(place) else { continue };
            // Servers come in order, so that an earlier directive of this one can only be the last.
            if at.listens.last().is_some_and(|(n, _)| *n == i) {
                cx.keep_late(l.error(format!("a duplicate listen {addr}")));
                continue;
            }
            for fault in at.conflicts(l) {
                cx.keep_late(l.error(format!("{fault} {addr}")));
            }
            at.push(i, l);
        }
    }
    all.into_iter().map(|(addr, at)| (addr, at.listens)).collect()
}

/// Directives of an address so far.
#[derive(Default)]
struct Taken<'b> {
    listens: Listens<'b>,
    /// One of them sets options of the socket.
    set: bool,
    /// One of them has `default_server`.
    has_default: bool,
}

impl<'b> Taken<'b> {
    /// Returns the conflicts of a directive with those of other servers.
    fn conflicts(&self, l: &ListenDirective) -> impl Iterator<Item = &'static str> + use<> {
        let faults = [
            (l.set && self.set, "duplicate listen options for"),
            (l.default_server && self.has_default, "a duplicate default server for"),
        ];
        faults.into_iter().filter(|(is, _)| *is).map(|(_, text)| text)
    }

    fn push(&mut self, server: usize, l: &'b ListenDirective) {
        self.set |= l.set;
        self.has_default |= l.default_server;
        self.listens.push((server, l));
    }
}

/// Makes the address of its listen directives: default server, table of names, options.
fn address(servers: &[Listening<'_>], listens: &Listens<'_>, cx: &mut Build<'_>) -> Address {
    let default = listens.iter().find(|(_, l)| l.default_server).or(listens.first());
    let default_server = default.map_or(0, |(i, _)| *i);
    let mut names = NameTable::default();
    let mut options = AddressOptions::default();
    for (i, l) in listens {
        options.merge(&l.address_options);
        let Some(server) = servers.get(*i) else { continue };
        for n in server.names {
            let added = names.add(n, *i);
            // As in nginx, whose tables of names are only built where there is a choice.
            if listens.len() > 1 {
                check_name(server, n, l, added, cx);
            }
        }
    }
    Address { default_server, names, options, has_one_server: listens.len() == 1 }
}

/// Reports a name that is malformed, or that the address has already (`added` is false).
fn check_name(server: &Listening<'_>, n: &ServerName, l: &ListenDirective, added: bool, cx: &mut Build<'_>) {
    let at = l.addrs.first().map(ListenAddr::to_string).unwrap_or_default();
    if !n.is_well_formed() {
        let name = String::from_utf8_lossy(&n.written()).into_owned();
        cx.keep_late(plain(&format!("invalid server name or wildcard \"{name}\" on {at}")));
    }
    if !added {
        let name = String::from_utf8_lossy(&n.text()).into_owned();
        let message = format!("conflicting server name \"{name}\" on {at}, ignored");
        cx.warnings.push(Error { level: Level::Warn, ordinal: server.ordinal, ..plain(&message) });
    }
}

/// Has each wildcard address take over the sockets of addresses with the same port, unless they ask for one of their own
/// (nginx: `listen ... bind`).
fn fold(sockets: Vec<(Listener, bool)>) -> Vec<Listener> {
    let mut result: Vec<Listener> = Vec::new();
    let mut folded = Vec::new();
    for (l, bind) in sockets {
        match l.addr.inet() {
            Some(s) if !s.ip().is_unspecified() && !bind => folded.push((s, l)),
            _ => result.push(l),
        }
    }
    for (s, l) in folded {
        match result.iter_mut().find(|w| covers(&w.addr, &l.addr)) {
            Some(w) => w.exact.push((s, l.default)),
            None => result.push(l),
        }
    }
    result
}

/// Returns `true` if an address is the wildcard of the other's protocol, IP version and port.
fn covers(wildcard: &ListenAddr, other: &ListenAddr) -> bool {
    let (Some(w), Some(o)) = (wildcard.inet(), other.inet()) else { return false };
    let same = wildcard.is_udp() == other.is_udp() && w.port() == o.port() && w.is_ipv4() == o.is_ipv4();
    w.ip().is_unspecified() && same
}
