//! Checks of networks that are let in or kept out.

use super::patterns::lines;
use super::{Check, checks};
use crate::scene::Scene;
use forebay_conf::tree::Span;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

/// A network `ADDRESS/BITS`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Network {
    ip: IpAddr,
    bits: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Network> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let ip: IpAddr = address.parse().ok()?;
        let whole = if ip.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(whole), |b| b.parse().ok())?;
        (bits <= whole).then_some(Network { ip, bits })
    }

    /// Returns the address as a number with its first bit in the highest place.
    fn number(self) -> u128 {
        match self.ip {
            IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
            IpAddr::V6(ip) => ip.to_bits(),
        }
    }

    fn covers(self, other: Network) -> bool {
        let shift = 128_u32.saturating_sub(self.bits);
        let head = |n: u128| n.checked_shr(shift).unwrap_or(0);
        let same_family = self.ip.is_ipv4() == other.ip.is_ipv4();
        same_family && self.bits <= other.bits && head(self.number()) == head(other.number())
    }

    /// Returns `true` if bits behind the mask are set.
    fn has_low_bits(self) -> bool {
        self.number().checked_shl(self.bits).unwrap_or(0) != 0
    }

    /// Returns the bits of the own network in which an address lies; `None` for public ones.
    fn own_bits(self) -> Option<u32> {
        const OWN: [([u8; 4], u32); 6] = [
            ([10, 0, 0, 0], 8),
            ([172, 16, 0, 0], 12),
            ([192, 168, 0, 0], 16),
            ([127, 0, 0, 0], 8),
            ([169, 254, 0, 0], 16),
            ([100, 64, 0, 0], 10),
        ];
        let network = |(a, bits): ([u8; 4], u32)| Network { ip: IpAddr::V4(Ipv4Addr::from(a)), bits };
        let single = Network { bits: if self.ip.is_ipv4() { 32 } else { 128 }, ..self };
        OWN.into_iter().find(|n| network(*n).covers(single)).map(|(_, bits)| bits)
    }

    /// Returns what is wrong about the mask of a network that is to be trusted.
    fn fault(self) -> Option<String> {
        let size = || 1_u128.checked_shl(32_u32.saturating_sub(self.bits)).unwrap_or(0);
        match self.own_bits() {
            Some(own) if self.bits < own && self.ip.is_ipv4() => {
                Some(format!("/{} has public addresses, too: the own network is /{own}", self.bits))
            }
            _ if self.ip.is_ipv4() && (1..8).contains(&self.bits) => {
                Some(format!("{} addresses of all the world", size()))
            }
            _ => None,
        }
    }
}

/// Reports networks in a place where they are trusted, with masks that are too wide.
fn wide_networks(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let mut report = |span: Span, text: &str| {
        if let Some(fault) = Network::parse(text).and_then(Network::fault) {
            found(span, format!("{text}: {fault}"));
        }
    };
    for n in ["allow", "set_real_ip_from"].into_iter().flat_map(|name| s.all(name)) {
        report(s.arg_span(n, 0), s.arg(n, 0));
    }
    for e in s.all("geo").flat_map(|n| lines(s, n)) {
        report(e.name.span, &e.name.as_str());
    }
}

/// Reports networks whose address has more than its mask keeps.
fn low_bits(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in ["allow", "deny", "set_real_ip_from"].into_iter().flat_map(|name| s.all(name)) {
        let network = Network::parse(s.arg(n, 0)).filter(|n| n.has_low_bits() && n.fault().is_none());
        if let Some(network) = network {
            found(s.arg_span(n, 0), format!("/{} is the whole network, not {}", network.bits, network.ip));
        }
    }
}

/// Line of an access list.
#[derive(Clone, Copy)]
struct AccessRule {
    node: usize,
    is_deny: bool,
    /// `None` for `all`, `unix:` and variables.
    network: Option<Network>,
    is_all: bool,
}

/// Longest list that is looked at line against line.
const LONGEST: usize = 200;

/// Returns the access lists of all blocks, line by line.
fn access_lists(s: &Scene<'_>) -> Vec<Vec<AccessRule>> {
    let mut lists: HashMap<Option<usize>, Vec<AccessRule>> = HashMap::new();
    let mut nodes: Vec<usize> = s.all("allow").chain(s.all("deny")).collect();
    nodes.sort_unstable();
    for node in nodes {
        let (is_deny, is_all) = (s.is(node, "deny"), s.arg(node, 0) == "all");
        let rule = AccessRule { node, is_deny, network: Network::parse(s.arg(node, 0)), is_all };
        lists.entry(s.parent(node)).or_default().push(rule);
    }
    let mut lists: Vec<_> = lists.into_values().filter(|list| list.len() <= LONGEST).collect();
    lists.sort_by_key(|list| list.first().map(|rule| rule.node));
    lists
}

/// Reports rules of access that an earlier one has decided already.
fn covered_rules(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for list in access_lists(s) {
        for (at, rule) in list.iter().enumerate() {
            let Some(own) = rule.network else { continue };
            let earlier = list.iter().take(at).filter(|e| e.is_deny != rule.is_deny);
            let covering = earlier.into_iter().find(|e| e.network.is_some_and(|n| n.covers(own)));
            if let Some(first) = covering {
                let text = format!("an earlier line has decided about it: {}", s.arg(first.node, 0));
                found(s.span(rule.node), text);
            }
        }
    }
}

/// Reports lists that let some addresses in and end without refusing the others.
fn open_lists(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for list in access_lists(s) {
        // `allow-without-deny` speaks about lists of allow alone.
        let denies = list.iter().any(|r| r.is_deny);
        if !denies || list.iter().any(|r| r.is_deny && r.is_all) {
            continue;
        }
        let open = list.iter().enumerate().find(|(at, rule)| {
            let mut behind = list.iter().skip(at.saturating_add(1)).filter(|r| r.is_deny);
            let covers = |deny: &AccessRule| {
                rule.network.zip(deny.network).is_none_or(|(own, refused)| refused.covers(own))
            };
            !rule.is_deny && !rule.is_all && !behind.any(covers)
        });
        if let Some((_, rule)) = open {
            found(s.span(rule.node), "nobody else is refused behind it, so everybody gets in".to_owned());
        }
    }
}

checks! { Check;
    "network-wide" |s, _, found| wide_networks(s, found),
    "network-low-bits" |s, _, found| low_bits(s, found),
    "access-covered" |s, _, found| covered_rules(s, found),
    "allow-list-open" |s, _, found| open_lists(s, found),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_cover_and_have_faults() {
        let network = |text: &str| Network::parse(text).expect(text);
        assert!(network("10.0.0.0/8").covers(network("10.8.3.7")));
        assert!(
            network("0.0.0.0/0").covers(network("1.2.3.4")) && network("::/0").covers(network("fe80::1"))
        );
        assert!(!network("10.8.0.0/16").covers(network("10.9.0.0/16")));
        assert!(!network("10.0.0.0/8").covers(network("::1")));
        assert!(network("10.1.2.3/8").has_low_bits() && !network("10.1.2.3").has_low_bits());
        assert!(!network("10.0.0.0/8").has_low_bits() && network("fd00::1/8").has_low_bits());
        for text in ["192.168.0.0/8", "172.16.0.0/8", "10.0.0.0/7", "0.0.0.0/1", "100.64.0.0/8"] {
            assert!(network(text).fault().is_some(), "{text}");
        }
        for text in
            ["10.0.0.0/8", "192.168.1.0/24", "203.0.113.0/24", "0.0.0.0/0", "::/0", "fc00::/7", "1.2.3.4"]
        {
            assert!(network(text).fault().is_none(), "{text}");
        }
    }
}
