//! Rules for the kernel's settings: those in effect, or those that a sysctl file asks for.

use super::host::Host;
use super::scene::Scene;
use super::{Rule, Severity, rule_table};

/// Looks for one problem, and reports it.
pub(super) type Check = fn(&Scene<'_>, &Host, &mut dyn FnMut(String));

/// Reports a setting that a file asks for.
pub(super) fn wanted(h: &Host, name: &str, text: &str, found: &mut dyn FnMut(String)) {
    if let Some((v, file)) = h.wanted.get(name) {
        found(format!("{name} = {v} ({file}): {text}"));
    }
}

/// Settings that are wrong at any value: id, severity, name, text, reason, advice.
macro_rules! settings {
    ($($id:literal $severity:ident $name:literal $text:literal $why:literal $instead:literal,)*) => {
        /// Settings that are wrong at any value, with their texts. Their titles are their names.
        pub(super) const SETTINGS: &[(Rule, &str)] = &[$((
            Rule { id: $id, severity: Severity::$severity, title: $name, why: $why, instead: $instead },
            $text,
        ),)*];
    };
}

settings! {
    "tw-recycle" Harm "net.ipv4.tcp_tw_recycle" "no such setting since Linux 4.12"
    "Removed in Linux 4.12; before that it broke clients behind address translation."
    "Remove it.",
    "tw-reuse" NoEffect "net.ipv4.tcp_tw_reuse" "for outgoing connections only"
    "It helps outgoing connections only; the default is 2 since 4.19. A server's own TIME_WAIT sockets do not hinder accepting."
    "Keep connections to upstreams open instead.",
    "syn-backlog" NoEffect "net.ipv4.tcp_max_syn_backlog" "only read without SYN cookies"
    "Only read when SYN cookies are off; the default follows the memory."
    "Remove it.",
    "fin-timeout" NoEffect "net.ipv4.tcp_fin_timeout" "does not shorten TIME_WAIT"
    "It shortens FIN_WAIT_2 of orphans; TIME_WAIT stays at 60 s."
    "Remove it.",
    "netdev-backlog" NoEffect "net.core.netdev_max_backlog" "only if the second column of /proc/net/softnet_stat counts up"
    "It matters for RPS, loopback and veth only; the second column of /proc/net/softnet_stat says whether anything was dropped."
    "Raise it only if that counts up.",
    "max-orphans" NoEffect "net.ipv4.tcp_max_orphans" "the default follows the memory"
    "The default follows the memory."
    "Remove it.",
}

/// Settings of a recipe of 2010 for idle connections, which articles copy number for number.
const RECIPE: [&str; 9] = [
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.core.rmem_default",
    "net.core.wmem_default",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_max_orphans",
    "net.ipv4.tcp_max_syn_backlog",
];

rule_table! { Check;
    "idle-recipe" Harm "the recipe for idle connections"
    "Number for number the settings of a test around 2010 with two million idle connections on Linux 2.6: made to save memory for each idle socket, not to serve requests."
    "Remove all of them."
    |_, h, found| {
        let asked: Vec<&str> = RECIPE.into_iter().filter(|n| h.wanted.contains_key(*n)).collect();
        if asked.len() >= 6 {
            found(format!("{} settings of that recipe: {}", asked.len(), asked.join(", ")));
        }
    },
    "syncookies-off" Harm "net.ipv4.tcp_syncookies = 0"
    "They are only used when the queue is full, which is when they are needed: without them a flood of SYN packets shuts the server."
    "Remove it: the default is 1."
    |_, h, found| if let Some((0, from)) = h.number("net.ipv4.tcp_syncookies") {
        found(format!("net.ipv4.tcp_syncookies = 0{from}"));
    },
    "somaxconn-alone" NoEffect "net.core.somaxconn without backlog="
    "nginx asks for 511, so the queue stays 511; and a socket that listens already keeps its queue until listen() is called again. The default is 4096 since 5.4."
    "listen ... backlog=4096; and only if ListenOverflows grows."
    |s, h, found| if !s.all("listen").any(|n| s.args(n).iter().any(|a| a.starts_with("backlog="))) {
        wanted(h, "net.core.somaxconn", "the queue stays at the 511 that nginx asks for", found);
    },
    "listen-overflows" Warning "connections were dropped from a listen queue"
    "ListenOverflows counts them since the machine started; neither nginx nor its stub_status shows them."
    "listen ... backlog= with net.core.somaxconn, or more workers."
    |_, h, found| if let Some(n) = h.counters.get("ListenOverflows").filter(|n| **n > 0) {
        found(format!("{n} connections dropped so far"));
    },
    "fastopen" NoEffect "net.ipv4.tcp_fastopen without fastopen="
    "The server also needs listen ... fastopen=N; browsers have dropped it and middleboxes break it."
    "Remove it."
    |s, h, found| if !s.all("listen").any(|n| s.args(n).iter().any(|a| a.starts_with("fastopen="))) {
        wanted(h, "net.ipv4.tcp_fastopen", "no listen asks for it", found);
    },
    "port-range" Warning "net.ipv4.ip_local_port_range from 1024"
    "Outgoing connections may then take the ports of local services that are not running yet."
    "Keep connections to upstreams open; otherwise name the services in net.ipv4.ip_local_reserved_ports."
    |_, h, found| if let Some((v, from)) = h.sysctl("net.ipv4.ip_local_port_range") {
        let low = v.split(' ').next().and_then(|n| n.parse::<u32>().ok()).unwrap_or(32768);
        let reserved = h.sysctl("net.ipv4.ip_local_reserved_ports").is_some_and(|(r, _)| !r.is_empty());
        if low < 10000 && !reserved {
            found(format!("net.ipv4.ip_local_port_range = {v}{from}: ports of local services can be taken"));
        }
    },
    "file-max" Harm "fs.file-max lowered"
    "The default is about a tenth of the memory in kB, and systemd raises it to the maximum: a number from an article lowers it."
    "Remove it."
    |_, h, found| if let Some((v, file)) = h.wanted.get("fs.file-max") {
        let want: u64 = v.parse().unwrap_or(0);
        let now = h.sysctls.get("fs.file-max").and_then(|n| n.parse::<u64>().ok()).unwrap_or(800_000);
        if want < now {
            found(format!("fs.file-max = {want} ({file}) lowers it; without it there are {now}"));
        }
    },
    "tcp-buffers" Harm "tcp_rmem or tcp_wmem with small first sizes"
    "The middle number is what a connection begins with: 4096 makes tiny windows. The default maximum of the receive side is 32 MB."
    "Remove it: the kernel sizes them by itself."
    |_, h, found| for (name, middle) in [("net.ipv4.tcp_rmem", 65536u64), ("net.ipv4.tcp_wmem", 16384)] {
        if let Some((v, from)) = h.sysctl(name) {
            let n: Vec<u64> = v.split(' ').filter_map(|n| n.parse().ok()).collect();
            if n.get(1).is_some_and(|m| *m < middle) {
                found(format!("{name} = {v}{from}: connections begin with {} bytes", n[1]));
            }
        }
    },
    "tcp-mem" Harm "net.ipv4.tcp_mem above the memory"
    "The unit is pages of 4 kB, not bytes; the default follows the memory."
    "Remove it."
    |_, h, found| if let Some((v, file)) = h.wanted.get("net.ipv4.tcp_mem") {
        let top = v.split(' ').next_back().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0).saturating_mul(4096);
        found(format!("net.ipv4.tcp_mem = {v} ({file}): pages, that is up to {} GiB", top >> 30));
    },
    "core-buffers" NoEffect "net.core.rmem and wmem"
    "They do not rule TCP's automatic sizes."
    "Remove them."
    |s, h, found| {
        // UDP has no sizes of its own.
        let has_udp = s.all("listen").any(|n| s.args(n).iter().any(|a| a == "quic" || a == "udp"));
        for name in ["net.core.rmem_default", "net.core.wmem_default", "net.core.rmem_max", "net.core.wmem_max"] {
            if !has_udp {
                wanted(h, name, "TCP sizes its buffers by tcp_rmem and tcp_wmem", found);
            }
        }
    },
    "slow-start-after-idle" Advice "net.ipv4.tcp_slow_start_after_idle = 1"
    "A kept connection begins slowly again after a pause, which costs round trips to far clients."
    "Measure with 0 where responses are large and clients far."
    |_, h, found| if let Some((1, from)) = h.number("net.ipv4.tcp_slow_start_after_idle") {
        found(format!("net.ipv4.tcp_slow_start_after_idle = 1{from}"));
    },
}
