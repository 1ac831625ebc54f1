//! Listen directives, grouped by socket.

use super::build::{Builder, ServerBuild};
use super::{Address, ListenerAddresses};
use crate::config::listen::{AddressOptions, ListenDirective};
use crate::config::names::{NameTable, ServerName};
use crate::config::{ListenAddr, Listener};
use forebay_conf::error::{Error, Level};
use std::collections::BTreeMap;

/// Listen directives of one address, with the numbers of their servers.
type Listens<'b> = Vec<(usize, &'b ListenDirective)>;

impl Builder<'_, '_> {
    /// Groups the listen directives by socket.
    pub(super) fn addresses(&mut self) -> (Vec<ListenerAddresses>, Vec<Listener>) {
        let servers = std::mem::take(&mut self.servers);
        let (order, by_addr) = self.by_address(&servers);
        let mut sockets = Vec::new();
        for addr in &order {
            let Some(listens) = by_addr.get(addr) else { continue };
            let address = self.address(&servers, listens);
            let set = listens.iter().find(|(_, l)| l.set);
            let options = set.map(|(_, l)| l.options.clone()).unwrap_or_default();
            let bind = listens.iter().any(|(_, l)| l.bind);
            let text = listens.first().map(|(_, l)| l.text(addr)).unwrap_or_default();
            let listener = Listener { addr: addr.clone(), text, options };
            sockets.push((listener, ListenerAddresses { default: address, exact: Vec::new() }, bind));
        }
        self.servers = servers;
        fold(sockets).into_iter().map(|(l, a)| (a, l)).unzip()
    }

    /// Collects the listen directives of each address, and the addresses in order. Duplicates are errors.
    fn by_address<'b>(
        &mut self,
        servers: &'b [ServerBuild],
    ) -> (Vec<ListenAddr>, BTreeMap<ListenAddr, Listens<'b>>) {
        let mut by_addr: BTreeMap<ListenAddr, Listens<'b>> = BTreeMap::new();
        let mut order: Vec<ListenAddr> = Vec::new();
        for (i, l) in servers.iter().enumerate().flat_map(|(i, s)| s.listens.iter().map(move |l| (i, l))) {
            for addr in &l.addrs {
                if !by_addr.contains_key(addr) {
                    order.push(addr.clone());
                }
                let at = by_addr.entry(addr.clone()).or_default();
                if at.iter().any(|(n, _)| *n == i) {
                    self.cx.keep_late(l.error(format!("a duplicate listen {}", l.text(addr))));
                    continue;
                }
                if l.set && at.iter().any(|(_, o)| o.set) {
                    let message = format!("duplicate listen options for {}", l.text(addr));
                    self.cx.keep_late(l.error(message));
                }
                if at.iter().any(|(_, o)| o.default_server && l.default_server) {
                    let message = format!("a duplicate default server for {}", l.text(addr));
                    self.cx.keep_late(l.error(message));
                }
                at.push((i, l));
            }
        }
        (order, by_addr)
    }

    /// Makes the address of its listen directives: default server, table of names, options.
    fn address(&mut self, servers: &[ServerBuild], listens: &Listens<'_>) -> Address {
        let default = listens.iter().find(|(_, l)| l.default_server).or(listens.first());
        let default_server = default.map_or(0, |(i, _)| *i);
        let mut names = NameTable::default();
        let mut options = AddressOptions::default();
        for (i, l) in listens {
            options.merge(&l.address_options);
            let Some(server) = servers.get(*i) else { continue };
            for n in &server.names {
                let added = names.add(n, *i);
                // As in nginx, whose tables of names are only built where there is a choice.
                if listens.len() > 1 {
                    self.check_name(server, n, l, added);
                }
            }
        }
        Address { default_server, names, options }
    }

    /// Reports a name that is malformed, or that the address has already (`added` is false).
    fn check_name(&mut self, server: &ServerBuild, n: &ServerName, l: &ListenDirective, added: bool) {
        let at = l.addrs.first().map(|addr| l.text(addr)).unwrap_or_default();
        if !n.is_well_formed() {
            let name = String::from_utf8_lossy(&n.written()).into_owned();
            let text = format!("invalid server name or wildcard \"{name}\" on {at}");
            self.cx.keep_late(crate::config::plain(&text));
        }
        if !added {
            let name = String::from_utf8_lossy(&n.text()).into_owned();
            self.cx.warnings.push(Error {
                level: Level::Warn,
                message: format!("conflicting server name \"{name}\" on {at}, ignored"),
                span: None,
                at: None,
                hint: None,
                ordinal: server.ordinal_directive.as_ref().map_or(0, |e| e.ordinal),
            });
        }
    }
}

/// Has each wildcard address take over the sockets of addresses with the same port, unless they ask for one of their own
/// (nginx: `listen ... bind`).
fn fold(sockets: Vec<(Listener, ListenerAddresses, bool)>) -> Vec<(Listener, ListenerAddresses)> {
    let mut result: Vec<(Listener, ListenerAddresses)> = Vec::new();
    let mut folded = Vec::new();
    for (l, a, bind) in sockets {
        match &l.addr {
            ListenAddr::Inet(s) if !s.ip().is_unspecified() && !bind => folded.push((*s, l, a)),
            _ => result.push((l, a)),
        }
    }
    for (s, l, a) in folded {
        let wildcard = result.iter_mut().find(|(w, _)| match &w.addr {
            ListenAddr::Inet(w) => {
                w.ip().is_unspecified() && w.port() == s.port() && w.is_ipv4() == s.is_ipv4()
            }
            ListenAddr::Unix(_) => false,
        });
        match wildcard {
            Some((_, w)) => w.exact.push((s, a.default)),
            None => result.push((l, a)),
        }
    }
    result
}
