//! What the rules know of the machine.

use forebay_sys::cpus::{self, CpuBudget};
use std::collections::BTreeMap;
use std::path::Path;

/// A machine, or what is known of it.
#[derive(Debug, Default)]
pub struct Host {
    /// CPUs that may be used, fractions rounded up; 0 = not looked at.
    pub cpus: usize,
    /// Online CPUs.
    pub online: usize,
    /// Memory in bytes; 0 = not looked at.
    pub memory: u64,
    /// Limit of descriptors, soft and hard.
    pub descriptors: (u64, u64),
    /// Settings of the kernel, by their names.
    pub sysctls: BTreeMap<String, String>,
    /// Settings that a file asks for, with that file.
    pub wanted: BTreeMap<String, (String, String)>,
    /// Counters of TcpExt.
    pub counters: BTreeMap<String, u64>,
    /// File systems that the configuration uses.
    pub disks: super::disk::Disks,
    /// The server that runs with the configuration.
    pub running: Option<super::live::Running>,
}

/// Settings that rules look at.
const SYSCTLS: &[&str] = &[
    "net.core.somaxconn",
    "net.core.netdev_max_backlog",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_fastopen",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_max_orphans",
    "net.ipv4.ip_local_reserved_ports",
    "fs.file-max",
    "fs.nr_open",
];

impl Host {
    /// This machine.
    pub fn detect() -> Host {
        let budget: CpuBudget = cpus::detect();
        let mut host = Host {
            cpus: budget.workers,
            online: budget.online,
            memory: memory(),
            descriptors: forebay_sys::limits::descriptors(),
            ..Host::default()
        };
        for name in SYSCTLS {
            let path = format!("/proc/sys/{}", name.replace('.', "/"));
            if let Ok(text) = std::fs::read_to_string(path) {
                host.sysctls
                    .insert((*name).to_owned(), text.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
        if let Ok(text) = std::fs::read_to_string("/proc/net/netstat") {
            host.counters = netstat(&text);
        }
        host
    }

    /// What was looked at, in lines for people; nothing if nothing was.
    pub fn text(&self) -> String {
        if self.cpus == 0 {
            return String::new();
        }
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let control = self.sysctls.get("net.ipv4.tcp_congestion_control").map_or("?", String::as_str);
        let somaxconn = self.sysctls.get("net.core.somaxconn").map_or("?", String::as_str);
        let mut out = format!(
            "this machine: Linux {}, {} of {} CPUs, {} MB of memory, {} descriptors ({} at most), listen queues up to {somaxconn}, \
             congestion control {control}, kernel TLS {}\n",
            kernel.trim(),
            self.cpus,
            self.online,
            self.memory >> 20,
            self.descriptors.0,
            self.descriptors.1,
            if Path::new("/proc/net/tls_stat").exists() { "loaded" } else { "not loaded" },
        );
        out.push_str(&self.disks.text());
        if let Some(r) = &self.running {
            out.push_str(&format!("running server: pid {}, {} processes", r.pid, r.descriptors.len()));
            if let Some((log, _)) = &r.log {
                out.push_str(&format!(", {} read", log.display()));
            }
            if let Some((accepted, _)) = r.accepted {
                out.push_str(&format!(", {accepted} connections accepted so far"));
            }
            out.push('\n');
        }
        out
    }

    /// Adds what a file in the manner of sysctl.conf asks for.
    pub fn take_sysctl_file(&mut self, path: &Path, text: &str) {
        for line in text.lines() {
            let line = line.trim().trim_start_matches('-');
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            let Some((name, value)) = line.split_once('=') else { continue };
            let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
            self.wanted.insert(name.trim().replace('/', "."), (value, path.display().to_string()));
        }
    }

    /// A setting as it will be: what a file asks for, else what the kernel has; with where it is from.
    pub fn sysctl(&self, name: &str) -> Option<(String, String)> {
        if let Some((v, file)) = self.wanted.get(name) {
            return Some((v.clone(), format!(" ({file})")));
        }
        self.sysctls.get(name).map(|v| (v.clone(), String::new()))
    }

    /// A setting that is a number.
    pub fn number(&self, name: &str) -> Option<(u64, String)> {
        let (v, from) = self.sysctl(name)?;
        Some((v.parse().ok()?, from))
    }
}

fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn netstat(text: &str) -> BTreeMap<String, u64> {
    let mut lines = text.lines().filter_map(|l| l.strip_prefix("TcpExt: "));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return BTreeMap::new() };
    names.split(' ').map(str::to_owned).zip(values.split(' ').filter_map(|v| v.parse().ok())).collect()
}
