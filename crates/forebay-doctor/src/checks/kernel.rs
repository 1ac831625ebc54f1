//! Rules for the kernel's settings: those in effect, or those that a sysctl file asks for.

use super::checks;
use crate::facts::host::Host;
use crate::scene::Scene;

/// Looks for one problem, and reports it.
pub(crate) type Check = fn(&Scene<'_>, &Host, &mut dyn FnMut(String));

/// Reports a setting that a file asks for.
pub(crate) fn wanted(h: &Host, name: &str, text: &str, found: &mut dyn FnMut(String)) {
    if let Some((v, file)) = h.wanted.get(name) {
        found(format!("{name} = {v} ({file}): {text}"));
    }
}

/// Settings that are wrong at any value: rule, name, and text.
pub(crate) const SETTINGS: &[(&str, &str, &str)] = &[
    ("tw-recycle", "net.ipv4.tcp_tw_recycle", "no such setting since Linux 4.12"),
    ("tw-reuse", "net.ipv4.tcp_tw_reuse", "for outgoing connections only"),
    ("syn-backlog", "net.ipv4.tcp_max_syn_backlog", "only read without SYN cookies"),
    ("fin-timeout", "net.ipv4.tcp_fin_timeout", "does not shorten TIME_WAIT"),
    (
        "netdev-backlog",
        "net.core.netdev_max_backlog",
        "only if the second column of /proc/net/softnet_stat counts up",
    ),
    ("max-orphans", "net.ipv4.tcp_max_orphans", "the default follows the memory"),
];

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

checks! { Check;
    "idle-recipe" |_, h, found| {
        let asked: Vec<&str> = RECIPE.into_iter().filter(|n| h.wanted.contains_key(*n)).collect();
        if asked.len() >= 6 {
            found(format!("{} settings of that recipe: {}", asked.len(), asked.join(", ")));
        }
    },
    "syncookies-off" |_, h, found| if let Some((0, from)) = h.number("net.ipv4.tcp_syncookies") {
        found(format!("net.ipv4.tcp_syncookies = 0{from}"));
    },
    "somaxconn-alone" |s, h, found| if !s.all("listen").any(|n| s.args(n).iter().any(|a| a.starts_with("backlog="))) {
        wanted(h, "net.core.somaxconn", "the queue stays at the 511 that nginx asks for", found);
    },
    // The counter is one of the whole machine since its start.
    "listen-overflows" |_, h, found| if let (Some(n), Some(_)) = (h.counters.get("ListenOverflows").filter(|n| **n > 0), &h.running) {
        found(format!("{n} connections dropped so far"));
    },
    "fastopen" |s, h, found| if !s.all("listen").any(|n| s.args(n).iter().any(|a| a.starts_with("fastopen="))) {
        wanted(h, "net.ipv4.tcp_fastopen", "no listen asks for it", found);
    },
    "port-range" |_, h, found| if let Some((v, from)) = h.sysctl("net.ipv4.ip_local_port_range") {
        let low = v.split(' ').next().and_then(|n| n.parse::<u32>().ok()).unwrap_or(32768);
        let reserved = h.sysctl("net.ipv4.ip_local_reserved_ports").is_some_and(|(r, _)| !r.is_empty());
        if low < 10000 && !reserved {
            found(format!("net.ipv4.ip_local_port_range = {v}{from}: ports of local services can be taken"));
        }
    },
    "file-max" |_, h, found| if let Some((v, file)) = h.wanted.get("fs.file-max") {
        let want: u64 = v.parse().unwrap_or(0);
        let now = h.sysctls.get("fs.file-max").and_then(|n| n.parse::<u64>().ok()).unwrap_or(800_000);
        if want < now {
            found(format!("fs.file-max = {want} ({file}) lowers it; without it there are {now}"));
        }
    },
    "tcp-buffers" |_, h, found| for (name, middle) in [("net.ipv4.tcp_rmem", 65536u64), ("net.ipv4.tcp_wmem", 16384)] {
        if let Some((v, from)) = h.sysctl(name) {
            let n: Vec<u64> = v.split(' ').filter_map(|n| n.parse().ok()).collect();
            if n.get(1).is_some_and(|m| *m < middle) {
                found(format!("{name} = {v}{from}: connections begin with {} bytes", n[1]));
            }
        }
    },
    "tcp-mem" |_, h, found| if let Some((v, file)) = h.wanted.get("net.ipv4.tcp_mem") {
        let top = v.split(' ').next_back().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0).saturating_mul(4096);
        found(format!("net.ipv4.tcp_mem = {v} ({file}): pages, that is up to {} GiB", top >> 30));
    },
    "core-buffers" |s, h, found| {
        // UDP has no sizes of its own.
        let has_udp = s.all("listen").any(|n| s.args(n).iter().any(|a| a == "quic" || a == "udp"));
        for name in ["net.core.rmem_default", "net.core.wmem_default", "net.core.rmem_max", "net.core.wmem_max"] {
            if !has_udp {
                wanted(h, name, "TCP sizes its buffers by tcp_rmem and tcp_wmem", found);
            }
        }
    },
    "slow-start-after-idle" |_, h, found| if let Some((1, from)) = h.number("net.ipv4.tcp_slow_start_after_idle") {
        found(format!("net.ipv4.tcp_slow_start_after_idle = 1{from}"));
    },
    "congestion-control" |_, h, found| if let Some((v, from)) = h.sysctl("net.ipv4.tcp_congestion_control") && ["reno", "bic", "westwood", "vegas", "veno", "highspeed"].contains(&v.as_str()) {
        found(format!("net.ipv4.tcp_congestion_control = {v}{from}"));
    },
    "notsent-lowat" |_, h, found| if let Some((v, from)) = h.number("net.ipv4.tcp_notsent_lowat").filter(|(v, _)| *v < 16384) {
        found(format!("net.ipv4.tcp_notsent_lowat = {v}{from}"));
    },
}
