//! Rules for HTTP/3.

use super::Check;
use super::checks;
use crate::facts::host::Host;
use crate::scene::Scene;
use forebay_conf::address::Address;

/// Receive buffer that Forebay asks for, bytes.
const DATAGRAM_ROOM: u64 = 4 << 20;

/// Returns the `listen` directives with `quic`.
fn quic<'s>(s: &'s Scene<'_>) -> impl Iterator<Item = usize> + 's {
    s.all("listen").filter(|l| s.has(*l, "quic"))
}

/// Returns the port of a `listen` directive.
fn port(s: &Scene<'_>, listen: usize) -> Option<u16> {
    Address::parse(s.arg(listen, 0), Some(80)).and_then(|a| a.port())
}

/// Returns the ports of `h3` in a value of `Alt-Svc` (RFC 7838, section 3).
fn advertised(value: &str) -> Vec<u16> {
    let entries = value.split(',').filter_map(|e| e.trim().strip_prefix("h3="));
    let authorities = entries.filter_map(|e| e.trim_start_matches(['"', '\\']).split(['"', '\\']).next());
    authorities.filter_map(|a| a.rsplit_once(':')?.1.parse().ok()).collect()
}

/// Returns the `add_header Alt-Svc` directives of servers that listen for QUIC, with those servers.
fn by_hand<'s>(s: &'s Scene<'_>) -> impl Iterator<Item = (usize, usize)> + 's {
    let fields = s.all("add_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("alt-svc"));
    fields.filter_map(move |n| {
        let server = s.around(n, "server")?;
        quic(s).any(|l| s.parent(l) == Some(server)).then_some((n, server))
    })
}

/// Returns `true` if the rules of a firewall, as `nft list ruleset` or `iptables-save` print them, let a port of a protocol pass.
fn opens(rules: &str, protocol: &str, port: u16) -> bool {
    let port = port.to_string();
    let names_port = |line: &str| {
        line.split(|c: char| !c.is_ascii_digit()).any(|n| n == port)
            || port == "443" && line.split([' ', '{', '}', ',']).any(|w| w == "https")
    };
    let is_about = |line: &str| {
        line.contains(&format!("{protocol} dport"))
            || line.contains(&format!("-p {protocol} ")) && line.contains("dport")
            || line.contains("th dport") && line.contains(protocol)
    };
    let accepts = |line: &str| line.contains("accept") || line.contains("-j ACCEPT");
    rules.lines().any(|line| is_about(line) && accepts(line) && names_port(line))
}

checks! { Check;
    "quic-without-tcp" |s, _, found| for l in quic(s) {
        let (Some(server), Some(own)) = (s.parent(l), port(s, l)) else { continue };
        let mut beside = s.children(Some(server), "listen");
        let is_tcp = |n: usize| !s.has(n, "quic") && s.has(n, "ssl");
        if !beside.any(is_tcp) {
            found(s.span(l), format!("no client finds HTTP/3 at port {own} by itself"));
        }
    },
    "alt-svc-wrong-port" |s, _, found| for (n, server) in by_hand(s) {
        let here: Vec<u16> = quic(s).filter(|l| s.parent(*l) == Some(server)).filter_map(|l| port(s, l)).collect();
        let missing = advertised(s.arg(n, 1)).into_iter().find(|p| !here.contains(p));
        if let Some(p) = missing {
            found(s.arg_span(n, 1), format!("this server has no listen ... quic with port {p}"));
        }
    },
    "alt-svc-by-hand" |s, _, found| for (n, _) in by_hand(s) {
        found(s.span(n), "Forebay sends Alt-Svc by itself".to_owned());
    },
    "quic-gso-off" |s, _, found| for l in quic(s).take(1) {
        if !s.on(s.parent(l), "quic_gso") {
            found(s.span(l), "nginx sends datagrams one at a time".to_owned());
        }
    },
    "quic-bpf" |s, _, found| for n in s.all("quic_bpf").filter(|n| s.arg(*n, 0) == "on") {
        found(s.span(n), "Forebay needs no program in the kernel".to_owned());
    },
    "quic-retry" |s, _, found| for n in s.all("quic_retry").filter(|n| s.arg(*n, 0) == "on") {
        found(s.span(n), "every connection costs one round trip more".to_owned());
    },
    "quic-host-key" |s, _, found| for l in quic(s).take(1) {
        if s.effective(s.parent(l), "quic_host_key").is_none() {
            found(s.span(l), "clients do not learn of a restart".to_owned());
        }
    },
    "udp-receive-buffer" |s, h, found| if let (Some(l), Some((most, from))) = (quic(s).next(), h.number("net.core.rmem_max"))
        && most < DATAGRAM_ROOM
    {
        found(s.span(l), format!("net.core.rmem_max = {most}{from}"));
    },
    // The counter is one of the whole machine since its start.
    "udp-drops" |s, h, found| if let (Some(l), Some(n), Some(_)) = (quic(s).next(), h.counters.get("RcvbufErrors").filter(|n| **n > 0), &h.running) {
        found(s.span(l), format!("{n} datagrams dropped so far on this machine"));
    },
    "udp-firewall" |s, h, found| for l in quic(s) {
        if let Some(p) = port(s, l).filter(|p| blocks(h, *p)) {
            found(s.span(l), format!("the firewall of this machine has a rule for TCP port {p}, and none for UDP port {p}"));
        }
    },
}

/// Returns `true` if the firewall names a port for TCP and not for UDP.
fn blocks(h: &Host, port: u16) -> bool {
    h.firewall.as_deref().is_some_and(|rules| opens(rules, "tcp", port) && !opens(rules, "udp", port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_both_kinds_of_firewalls() {
        let nft = "chain input {\n type filter hook input priority filter; policy drop;\n tcp dport { 22, 80, 443 } accept\n udp dport 53 accept\n}";
        assert!(opens(nft, "tcp", 443) && !opens(nft, "udp", 443) && !opens(nft, "tcp", 44));
        let iptables = "-A INPUT -p tcp -m tcp --dport 443 -j ACCEPT\n-A INPUT -p udp -m multiport --dports 53,443 -j ACCEPT";
        assert!(opens(iptables, "tcp", 443) && opens(iptables, "udp", 443) && !opens(iptables, "udp", 80));
        let both = "meta l4proto { tcp, udp } th dport 443 accept\ntcp dport https drop";
        assert!(opens(both, "tcp", 443) && opens(both, "udp", 443));
        assert!(opens("udp dport https accept", "udp", 443));
    }

    #[test]
    fn ports_of_alt_svc() {
        assert_eq!(advertised("h3=\":443\"; ma=86400"), [443]);
        assert_eq!(advertised("h2=\":1\", h3=\"a.example:8443\"; ma=1,h3-29=\":5\""), [8443]);
        assert!(advertised("clear").is_empty());
    }
}
