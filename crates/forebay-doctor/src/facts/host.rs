//! Facts about the machine, for the rules.

use crate::scene::Scene;
use crate::target::Target;
use forebay_conf::version::NginxVersion;
use forebay_net::tls::{pem, verify};
use forebay_sys::cpus::{self, CpuBudget};
use forebay_sys::files;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Relation of a configuration to this machine. It decides for all rules whether facts of the machine say anything about the
/// configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Home {
    /// It has not been found out.
    #[default]
    Unknown,
    /// Its server runs on another machine, as far as is known.
    Elsewhere,
    /// Its server runs here.
    Here,
}

/// The known properties of a machine.
#[derive(Debug, Default)]
pub struct Host {
    /// Where the server of the configuration runs. Facts of the machine are there only if it is this one.
    pub home: Home,
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
    /// Rules of the firewall, where they can be read.
    pub firewall: Option<String>,
    /// Counters of TcpExt and of Udp.
    pub counters: BTreeMap<String, u64>,
    /// File systems that the configuration uses.
    pub disks: crate::facts::disk::Disks,
    /// Certificates, by the directives that name them.
    pub certificates: BTreeMap<usize, Certificate>,
    /// The nginx that is installed, and its TLS library.
    pub nginx: Option<String>,
    /// Certificates by ACME.
    pub acme: crate::facts::acme::Acme,
    /// Seconds since 1970; 0 = not looked at.
    pub now: i64,
    /// The server that runs with the configuration.
    pub running: Option<crate::facts::live::Running>,
}

/// Facts about a certificate, for the rules.
#[derive(Clone, Debug, Default)]
pub struct Certificate {
    /// Its key is an RSA key.
    pub rsa: bool,
    /// It names a responder for OCSP.
    pub responder: bool,
    /// Times at which it becomes valid and expires, seconds since 1970.
    pub validity: (i64, i64),
    /// DNS names that it is for, in lower case.
    pub names: Vec<String>,
}

/// rsaEncryption, 1.2.840.113549.1.1.1 (RFC 8017, appendix C), as DER.
const RSA: [u8; 11] = [6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];

impl Certificate {
    /// Reads the first certificate of a file.
    pub(crate) fn read(path: &Path) -> Option<Certificate> {
        let chain = pem::certificates(&files::read_file(path, files::MAX_WHOLE).ok()?);
        let leaf = chain.first()?;
        let key = verify::public_key(leaf)?;
        Some(Certificate {
            rsa: key.windows(RSA.len()).any(|w| w == RSA),
            responder: verify::responder(leaf).is_some(),
            validity: verify::validity(leaf)?,
            names: verify::names(leaf)
                .iter()
                .map(|n| forebay_sys::printable::printable(n).to_ascii_lowercase())
                .collect(),
        })
    }

    /// Reads all certificates that a configuration names and that can be read.
    pub fn find(scene: &Scene<'_>, dir: &Path) -> BTreeMap<usize, Certificate> {
        let named = scene.all("ssl_certificate").filter(|n| !scene.arg(*n, 0).contains('$'));
        named.filter_map(|n| Some((n, Certificate::read(&dir.join(scene.arg(n, 0)))?))).collect()
    }
}

/// Asks a program for its version.
///
/// # Errors
/// There is no such program, or it is no nginx.
pub fn version_of_nginx(program: Option<&Path>) -> Result<NginxVersion, String> {
    let usual = || PROGRAMS.iter().map(Path::new).find(|p| p.exists());
    let program =
        program.or_else(usual).ok_or("there is no nginx in the usual places; name it by --program")?;
    NginxVersion::of_program(program)
}

/// Returns `true` if a program says that it is Forebay.
fn is_forebay(program: &Path) -> bool {
    let out = std::process::Command::new(program).arg("-v").stdin(std::process::Stdio::null()).output();
    out.is_ok_and(|out| String::from_utf8_lossy(&out.stderr).contains("(forebay "))
}

/// Places where nginx is installed.
const PROGRAMS: [&str; 3] = ["/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/local/nginx/sbin/nginx"];

/// Returns the version and TLS library of the nginx that is installed, by its own words.
fn installed_nginx() -> Option<String> {
    let program = PROGRAMS.into_iter().find(|p| Path::new(p).exists())?;
    let out = std::process::Command::new(program).arg("-V").output().ok()?;
    words_of_nginx(&String::from_utf8_lossy(&out.stderr))
}

fn words_of_nginx(text: &str) -> Option<String> {
    let version = text.lines().find_map(|l| l.strip_prefix("nginx version: "))?;
    // The running library may be of another release than the one that nginx was built with.
    let tls = ["running with ", "built with "]
        .iter()
        .find_map(|p| text.lines().find_map(|l| l.split(p).nth(1).filter(|t| t.contains("SSL"))));
    let tls = tls.map(|t| {
        t.split(')')
            .next()
            .unwrap_or_default()
            .split(" (")
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    });
    Some(format!("{version} with {}", tls.unwrap_or_else(|| "no TLS library".to_owned())))
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
    "net.core.rmem_max",
    "fs.file-max",
    "fs.nr_open",
];

/// Returns the seconds since 1970.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64)
}

/// Returns `true` if a file lies where servers look for their configurations.
pub(crate) fn is_usual_place(conf: &Path) -> bool {
    const PLACES: [&str; 4] = ["/etc/nginx", "/usr/local/nginx/conf", "/usr/local/etc/nginx", "/etc/forebay"];
    PLACES.iter().any(|place| conf.starts_with(place))
}

impl Host {
    /// Returns `true` if a configuration is one of this machine: a server runs with it, or it lies where servers look for theirs.
    /// Otherwise the machine and the programs of this one say nothing about it.
    pub fn has(&self, conf: &Path) -> bool {
        self.is_here() || is_usual_place(conf)
    }

    /// Returns `true` if the server of the configuration runs on this machine. A rule about the machine, or about a version that was
    /// not named, is silent otherwise.
    pub fn is_here(&self) -> bool {
        self.home == Home::Here
    }

    /// Returns the server that runs the configuration, or Forebay if none does.
    pub fn runner(&self) -> Target {
        // Forebay may have been installed as nginx, and says so with -v.
        let nginx = self.running.as_ref().filter(|r| r.name == "nginx" && !is_forebay(&r.program));
        nginx.map_or(Target::Forebay, |r| Target::Nginx(NginxVersion::of_program(&r.program).ok()))
    }

    /// Returns what is known about the machine itself, and nothing about directives of a configuration.
    pub(crate) fn without_places(&self) -> Host {
        Host {
            cpus: self.cpus,
            online: self.online,
            memory: self.memory,
            descriptors: self.descriptors,
            sysctls: self.sysctls.clone(),
            now: self.now,
            home: self.home,
            ..Host::default()
        }
    }

    /// This machine.
    pub fn detect() -> Host {
        let budget: CpuBudget = cpus::detect();
        let mut host = Host {
            cpus: budget.workers,
            online: budget.online,
            memory: cpus::detect_memory().bytes,
            descriptors: forebay_sys::limits::descriptors(),
            nginx: installed_nginx(),
            now: now(),
            home: Home::Here,
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
            host.counters = counters(&text, "TcpExt: ");
        }
        if let Ok(text) = std::fs::read_to_string("/proc/net/snmp") {
            host.counters.extend(counters(&text, "Udp: ").remove_entry("RcvbufErrors"));
        }
        host.firewall = firewall();
        host
    }

    /// Describes the machine in lines of text; empty if it was not looked at.
    pub fn text(&self) -> String {
        if self.home == Home::Elsewhere {
            return "This machine was not looked at, because no server here runs with this file. With --here it is.\n".to_owned();
        }
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
        out.push_str("TLS: Forebay with rustls and aws-lc");
        if let Some(nginx) = &self.nginx {
            out.push_str(&format!("; {nginx}"));
        }
        out.push('\n');
        out.push_str(&self.disks.text());
        if let Some(why) = &self.acme.refused {
            out.push_str(&format!("certificates by ACME were not looked at: {why}\n"));
        }
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

    /// Adds the settings in the machine's own files, in the order in which they are read at its start.
    pub fn take_own_sysctl_files(&mut self, etc: &Path) {
        let entries = std::fs::read_dir(etc.join("sysctl.d")).into_iter().flatten().flatten();
        let mut files: Vec<_> =
            entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "conf")).collect();
        files.sort();
        files.push(etc.join("sysctl.conf"));
        for file in files {
            if let Ok(text) = files::read_text(&file, files::MAX_WHOLE) {
                self.take_sysctl_file(&file, &text);
            }
        }
    }

    /// Adds the settings in a file like sysctl.conf.
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

    /// Returns a setting as it will be, by a file or else by the kernel, and its source.
    pub fn sysctl(&self, name: &str) -> Option<(String, String)> {
        if let Some((v, file)) = self.wanted.get(name) {
            return Some((v.clone(), format!(" ({file})")));
        }
        self.sysctls.get(name).map(|v| (v.clone(), String::new()))
    }

    /// Returns a setting that is a number.
    pub fn number(&self, name: &str) -> Option<(u64, String)> {
        let (v, from) = self.sysctl(name)?;
        Some((v.parse().ok()?, from))
    }
}

/// Returns the rules of nftables, or else of iptables. Both need privileges.
fn firewall() -> Option<String> {
    let programs = [("nft", &["list", "ruleset"][..]), ("iptables-save", &[])];
    programs.into_iter().find_map(|(program, args)| {
        // A user's path has no directories for the administrator.
        let places = ["/usr/sbin", "/sbin"].map(|dir| Path::new(dir).join(program));
        let path = places.into_iter().find(|p| p.exists())?;
        let out =
            std::process::Command::new(path).args(args).stdin(std::process::Stdio::null()).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
    })
}

/// Returns the counters of one kind in a file such as /proc/net/netstat: a line of names, and a line of values.
fn counters(text: &str, kind: &str) -> BTreeMap<String, u64> {
    let mut lines = text.lines().filter_map(|l| l.strip_prefix(kind));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return BTreeMap::new() };
    names.split(' ').map(str::to_owned).zip(values.split(' ').filter_map(|v| v.parse().ok())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_machine_are_read_in_order() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("sysctl.d")).expect("made");
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("written");
        put("sysctl.d/90-b.conf", "net.ipv4.tcp_tw_recycle = 1\nnet.core.somaxconn = 2\n");
        put("sysctl.d/10-a.conf", "net.core.somaxconn=1\n");
        put("sysctl.d/README", "net.core.somaxconn=9\n");
        let mut host = Host::default();
        host.take_own_sysctl_files(dir.path());
        let value = |name: &str| host.wanted.get(name).map(|(v, _)| v.as_str());
        assert_eq!((value("net.core.somaxconn"), value("net.ipv4.tcp_tw_recycle")), (Some("2"), Some("1")));
    }

    #[test]
    fn the_version_output_of_nginx_is_read() {
        let text = "nginx version: nginx/1.22.1\nbuilt with OpenSSL 3.0.8 7 Feb 2023 (running with OpenSSL 3.0.17 1 Jul 2025)\n\
                    TLS SNI support enabled\n";
        assert_eq!(words_of_nginx(text).as_deref(), Some("nginx/1.22.1 with OpenSSL 3.0.17"));
        let text = "nginx version: nginx/1.29.0\nbuilt by gcc 12.2.0 (Debian 12.2.0-14)\nbuilt with OpenSSL 3.0.15 3 Sep 2024\n";
        assert_eq!(words_of_nginx(text).as_deref(), Some("nginx/1.29.0 with OpenSSL 3.0.15"));
        assert_eq!(
            words_of_nginx("nginx version: nginx/1.0\n").as_deref(),
            Some("nginx/1.0 with no TLS library")
        );
    }
}
