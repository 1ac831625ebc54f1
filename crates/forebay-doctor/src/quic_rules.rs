//! Rules for HTTP/3.

use super::conf_rules::Check;
use super::host::Host;
use super::rule_table;
use super::scene::Scene;
use forebay_conf::address::Address;

/// Receive buffer that Forebay asks for, bytes.
const DATAGRAM_ROOM: u64 = 4 << 20;

/// Returns the `listen` directives with `quic`.
fn quic<'s>(s: &'s Scene<'_>) -> impl Iterator<Item = usize> + 's {
    s.all("listen").filter(|l| s.args(*l).iter().any(|a| a == "quic"))
}

/// Returns the port of a `listen` directive.
fn port(s: &Scene<'_>, listen: usize) -> Option<u16> {
    Address::parse(&s.arg(listen, 0), Some(80)).and_then(|a| a.port())
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

rule_table! { Check;
    "quic-without-tcp" Warning "HTTP/3 without a listener for TLS over TCP"
    "Browsers come over TCP first and learn of HTTP/3 by Alt-Svc, and clients in networks that drop UDP stay there. A server that listens for QUIC alone is found by neither."
    "listen 443 ssl; beside listen 443 quic;"
    |s, _, found| for l in quic(s) {
        let (Some(server), Some(own)) = (s.parent(l), port(s, l)) else { continue };
        let beside = s.level(Some(server)).iter().copied().filter(|n| s.is(*n, "listen"));
        let is_tcp = |n: usize| !s.args(n).iter().any(|a| a == "quic") && s.args(n).iter().any(|a| a == "ssl");
        if !beside.clone().any(is_tcp) {
            found(s.span(l), format!("no client finds HTTP/3 at port {own} by itself"));
        }
    },
    "alt-svc-wrong-port" Warning "Alt-Svc for a port at which nothing speaks HTTP/3"
    "Clients try the port in the background, fail, and stay with TCP. Nothing is logged."
    "The port of listen ... quic, or the one that is forwarded to it."
    |s, _, found| for (n, server) in by_hand(s) {
        let here: Vec<u16> = quic(s).filter(|l| s.parent(*l) == Some(server)).filter_map(|l| port(s, l)).collect();
        let missing = advertised(&s.arg(n, 1)).into_iter().find(|p| !here.contains(p));
        if let Some(p) = missing {
            found(s.arg_span(n, 1), format!("this server has no listen ... quic with port {p}"));
        }
    },
    "alt-svc-by-hand" NoEffect "Alt-Svc by add_header"
    "Forebay sends it by itself over TLS where the server listens for QUIC, with the right port. A field by add_header takes its place, is easily forgotten where another add_header of a location hides it, and stays behind when the listener goes. nginx needs it."
    "Remove it; http3_alt_svc changes the value."
    |s, _, found| for (n, _) in by_hand(s) {
        found(s.span(n), "Forebay sends Alt-Svc by itself".to_owned());
    },
    "quic-gso-off" Advice "quic_gso left off"
    "nginx hands each datagram to the kernel by itself unless quic_gso is on: a file of 1 MB cost it three times the CPU time in a trial with AWS-LC. Forebay always hands over many at a time."
    "quic_gso on;"
    |s, _, found| for l in quic(s).take(1) {
        if !s.on(s.parent(l), "quic_gso") {
            found(s.span(l), "nginx sends datagrams one at a time".to_owned());
        }
    },
    "quic-bpf" NoEffect "quic_bpf"
    "Its program leads packets of clients that move to their worker in nginx. Forebay passes them on in the process."
    "Remove it once nginx is gone."
    |s, _, found| for n in s.all("quic_bpf").filter(|n| s.arg(*n, 0) == "on") {
        found(s.span(n), "Forebay needs no program in the kernel".to_owned());
    },
    "quic-retry" Advice "quic_retry for every client"
    "Each new connection waits one round trip more. Forebay asks clients to prove their addresses by itself once 64 handshakes of a thread are open; nginx never does."
    "Remove it for Forebay."
    |s, _, found| for n in s.all("quic_retry").filter(|n| s.arg(*n, 0) == "on") {
        found(s.span(n), "every connection costs one round trip more".to_owned());
    },
    "quic-host-key" Advice "HTTP/3 without quic_host_key"
    "After a restart, or on another machine behind one address, clients of earlier connections get no stateless reset: they wait for their idle timeout, up to 30 seconds, before they come back."
    "quic_host_key FILE; with at least 64 random bytes, the same on all machines of a group."
    |s, _, found| for l in quic(s).take(1) {
        if s.effective(s.parent(l), "quic_host_key").is_none() {
            found(s.span(l), "clients do not learn of a restart".to_owned());
        }
    },
    "udp-receive-buffer" Advice "a small limit for receive buffers of UDP"
    "Datagrams that come while a thread is busy wait in the socket, and the kernel's limit of 208 KB holds 150 large ones. Forebay takes 4 MB where it starts as root or with CAP_NET_ADMIN, whatever the limit; without, and for nginx with rcvbuf=, the limit counts."
    "net.core.rmem_max = 4194304 if the server does not start as root."
    |s, h, found| if let (Some(l), Some((most, from))) = (quic(s).next(), h.number("net.core.rmem_max"))
        && most < DATAGRAM_ROOM
    {
        found(s.span(l), format!("net.core.rmem_max = {most}{from}"));
    },
    "udp-drops" Warning "datagrams were dropped for want of room"
    "RcvbufErrors counts them for all UDP sockets since the machine started. For QUIC each is a packet to be sent again, and a reason to slow down."
    "listen ... rcvbuf=8m; or more threads. forebay_quic_dropped_datagrams_total counts those of Forebay."
    |s, h, found| if let (Some(l), Some(n)) = (quic(s).next(), h.counters.get("RcvbufErrors").filter(|n| **n > 0)) {
        found(s.span(l), format!("{n} datagrams dropped so far on this machine"));
    },
    "udp-firewall" Harm "a firewall that lets TCP pass and not UDP"
    "HTTP/3 comes over UDP to the same port number. Without it every client stays with TCP, and nothing says so."
    "A rule that accepts UDP to that port."
    |s, h, found| for l in quic(s) {
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
