//! The system's resolver settings, resolv.conf(5) and hosts(5), for configurations without `resolver`.

use super::{Addresses, Parameters, Resolver};
use forebay_sys::files;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Largest number of name servers and of suffixes that are used, as in glibc.
const MAX_SERVERS: usize = 3;
const MAX_SEARCH: usize = 6;

/// Lifetime of an address from the hosts file.
const HOSTS_TTL: Duration = Duration::from_secs(60);

/// Names and rules of the system.
#[derive(Debug)]
pub(super) struct System {
    hosts: HashMap<Vec<u8>, Vec<IpAddr>>,
    search: Vec<Vec<u8>>,
    ndots: usize,
}

impl Resolver {
    /// Creates the system's resolver from its files. A file that cannot be read counts as empty, as in glibc.
    pub fn system() -> Resolver {
        Resolver::of_system(&read("/etc/resolv.conf"), &read("/etc/hosts"))
    }

    /// Creates the system's resolver with parameters of one's own; their name servers do not count.
    pub fn system_with(p: Parameters) -> Resolver {
        let Resolver { servers, system, .. } = Resolver::system();
        // Names of the system's files are in its cache, which is therefore its own.
        Resolver { system, cache: Arc::default(), ..Resolver::new(Parameters { servers, ..p }) }
    }

    /// Creates a resolver that asks the system's name servers for names as they are, without the hosts file and suffixes: what
    /// others find by DNS.
    pub fn name_servers() -> Resolver {
        let all = Resolver::of_system(&read("/etc/resolv.conf"), b"");
        Resolver::asking(all.servers)
    }

    fn of_system(resolv: &[u8], hosts: &[u8]) -> Resolver {
        let mut servers = Vec::new();
        let mut system = System { hosts: named(hosts), search: Vec::new(), ndots: 1 };
        for line in lines(resolv, b"#;") {
            match line.split_first() {
                Some((&b"nameserver", words)) => servers.extend(words.first().and_then(|a| name_server(a))),
                // The last line counts (resolv.conf(5)).
                Some((&(b"search" | b"domain"), names)) => system.search = suffixes(names),
                Some((&b"options", options)) => system.ndots = ndots(options).unwrap_or(system.ndots),
                _ => {}
            }
        }
        servers.truncate(MAX_SERVERS);
        if servers.is_empty() {
            // resolv.conf(5): without a name server, the one of this machine is asked.
            servers.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 53));
        }
        Resolver { system: Some(system), ..Resolver::asking(servers) }
    }
}

/// Reads a file of the system, empty if that fails.
fn read(path: &str) -> Vec<u8> {
    files::read_file(Path::new(path), files::MAX_WHOLE).unwrap_or_default()
}

/// Parses the address of a name server. One with a zone cannot be used, since it belongs to one link.
fn name_server(address: &[u8]) -> Option<SocketAddr> {
    let ip = std::str::from_utf8(address).ok()?.parse::<IpAddr>().ok()?;
    Some(SocketAddr::new(ip, 53))
}

fn suffixes(names: &[&[u8]]) -> Vec<Vec<u8>> {
    let suffix = |n: &&[u8]| n.strip_suffix(b".").unwrap_or(n).to_ascii_lowercase();
    names.iter().map(suffix).filter(|n| !n.is_empty()).take(MAX_SEARCH).collect()
}

fn ndots(options: &[&[u8]]) -> Option<usize> {
    let dots = options.iter().find_map(|o| o.strip_prefix(b"ndots:"))?;
    let dots = std::str::from_utf8(dots).ok()?.parse::<usize>().ok()?;
    // The limit of resolv.conf(5).
    Some(dots.min(15))
}

impl System {
    /// Returns the addresses of a name in the hosts file, which always has `localhost` (RFC 6761, section 6.3).
    pub(super) fn host(&self, name: &[u8]) -> Option<Addresses> {
        let ips = match self.hosts.get(name) {
            Some(ips) => ips.clone(),
            None if name == b"localhost" || name.ends_with(b".localhost") => vec![Ipv4Addr::LOCALHOST.into()],
            None => return None,
        };
        Some(Addresses { ips, ttl: HOSTS_TTL })
    }

    /// Returns the full names that a name may stand for, in the order in which they are tried.
    pub(super) fn candidates(&self, name: &[u8]) -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = self.search.iter().map(|s| [name, b".", s].concat()).collect();
        let dots = name.iter().filter(|b| **b == b'.').count();
        // resolv.conf(5): a name with enough dots is tried as it is at first, any other one at last.
        let at = if dots >= self.ndots { 0 } else { all.len() };
        all.insert(at, name.to_vec());
        all
    }
}

/// Returns the words of each line that has any, without comments.
fn lines<'a>(text: &'a [u8], comment: &'a [u8]) -> impl Iterator<Item = Vec<&'a [u8]>> {
    text.split(|b| *b == b'\n').filter_map(move |line| {
        let line = line.split(|b| comment.contains(b)).next()?;
        let words: Vec<&[u8]> = line.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()).collect();
        (!words.is_empty()).then_some(words)
    })
}

fn named(hosts: &[u8]) -> HashMap<Vec<u8>, Vec<IpAddr>> {
    let mut all: HashMap<Vec<u8>, Vec<IpAddr>> = HashMap::new();
    for line in lines(hosts, b"#") {
        let Some((address, names)) = line.split_first() else { continue };
        let Some(ip) = std::str::from_utf8(address).ok().and_then(|a| a.parse::<IpAddr>().ok()) else {
            continue;
        };
        for name in names {
            let ips = all.entry(name.to_ascii_lowercase()).or_default();
            // IPv4 first, as everywhere here.
            let at = if ip.is_ipv4() { ips.iter().filter(|i| i.is_ipv4()).count() } else { ips.len() };
            if !ips.contains(&ip) {
                ips.insert(at, ip);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(names: &[Vec<u8>]) -> Vec<String> {
        names.iter().map(|n| String::from_utf8_lossy(n).into_owned()).collect()
    }

    #[test]
    fn the_systems_files_are_understood() {
        let r = Resolver::of_system(
            b"# made by hand\nnameserver 10.0.0.1 ; first\nnameserver fe80::1%eth0\nnameserver ::1\nnameserver x\n\
              search ns.svc.Cluster.local svc.cluster.local.\noptions rotate ndots:2 timeout:1\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n",
            b"127.0.0.1 localhost me # both\n::1 localhost ip6\n127.0.1.1\tMe.example me\nbad line\n",
        );
        let addr = |a: &str| a.parse::<SocketAddr>().expect("address");
        assert_eq!(r.servers, [addr("10.0.0.1:53"), addr("[::1]:53"), addr("10.0.0.2:53")]);
        let s = r.system.as_ref().expect("a system");
        let host =
            |n: &str| s.host(n.as_bytes()).map(|a| a.ips.iter().map(IpAddr::to_string).collect::<Vec<_>>());
        assert_eq!(host("localhost"), Some(vec!["127.0.0.1".into(), "::1".into()]));
        assert_eq!(host("me"), Some(vec!["127.0.0.1".into(), "127.0.1.1".into()]));
        assert_eq!(host("me.example"), Some(vec!["127.0.1.1".into()]));
        assert_eq!(host("line"), None);
        assert_eq!(text(&s.candidates(b"app")), ["app.ns.svc.cluster.local", "app.svc.cluster.local", "app"]);
        assert_eq!(text(&s.candidates(b"a.b.c"))[0], "a.b.c");
    }

    #[test]
    fn a_system_that_says_nothing_has_a_server_of_its_own() {
        let r = Resolver::of_system(b"", b"");
        assert_eq!(r.servers, ["127.0.0.1:53".parse().expect("address")]);
        let s = r.system.as_ref().expect("a system");
        assert_eq!(text(&s.candidates(b"app")), ["app"]);
        assert_eq!(s.host(b"a.localhost").expect("known").ips, [IpAddr::from(Ipv4Addr::LOCALHOST)]);
    }
}
