//! Files of manifests.

use forebay_k8s::Objects;
use forebay_k8s::ingress::is_host;
use forebay_k8s::objects::{Manifests, Skipped};
use forebay_sys::files;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Longest file in bytes.
const MAX_FILE: u64 = 256 << 20;

/// Deepest directory.
const MAX_DEPTH: usize = 32;

/// Objects of files.
#[derive(Default)]
pub(super) struct Found {
    pub(super) objects: Objects,
    /// Documents that were not read, with the names of their files.
    pub(super) skipped: Vec<(String, Skipped)>,
    /// Kinds and objects of a cluster that could not be read.
    pub(super) unread: Vec<String>,
    /// File and line of each object, by kind, namespace and name.
    pub(super) places: BTreeMap<String, String>,
}

/// Reads files and directories.
pub(super) fn read(paths: &[PathBuf]) -> Result<Found, String> {
    let mut found = Found::default();
    for path in paths {
        let mut files = Vec::new();
        collect(path, 0, &mut files).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        files.sort();
        for file in files {
            let text = text(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
            found.add(&file.display().to_string(), &text);
        }
    }
    Ok(found)
}

impl Found {
    fn add(&mut self, name: &str, text: &str) {
        let read = Manifests::read(text);
        self.skipped.extend(read.skipped.into_iter().map(|s| (name.to_owned(), s)));
        for document in read.documents {
            let id = format!("{} {}", document.object.kind().name(), document.object.key());
            self.places.insert(id, format!("{name}:{}", document.line));
            self.objects.apply(document.object);
        }
        for document in read.gateway {
            let (kind, key, line) = (document.kind, document.key, document.line);
            self.places.insert(format!("{} {key}", kind.name()), format!("{name}:{line}"));
            if let Err(error) = self.objects.gateway.apply(kind, key, document.value) {
                let reason = format!("the {} cannot be read: {error}", kind.name());
                self.skipped.push((name.to_owned(), Skipped { line, reason, other_kind: false }));
            }
        }
    }
}

fn collect(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if path.as_os_str() == "-" || !std::fs::metadata(path)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    if depth > MAX_DEPTH {
        return Err(io::Error::other("directories are nested too deeply"));
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let path = entry.path();
        let manifest = path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        if entry.file_type()?.is_dir() || manifest {
            collect(&path, depth + 1, files)?;
        }
    }
    Ok(())
}

/// Reads a file, or the standard input.
pub(super) fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    if path.as_os_str() == "-" {
        io::stdin().lock().take(MAX_FILE).read_to_end(&mut bytes)?;
    } else {
        bytes = files::read_file(path, MAX_FILE)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes a file. Private keys only their owner may read; files of passwords are read by the worker, which may be another user.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        files::create_directories(parent, 0o755)?;
    }
    let secret = path.extension().is_some_and(|e| e == "key");
    files::write(path, bytes, if secret { 0o600 } else { 0o644 })
}

/// What `/etc/resolv.conf` says.
pub(super) struct ResolvConf {
    /// Addresses of name servers.
    pub(super) servers: Vec<String>,
    /// Domains below which names are looked for.
    pub(super) search: Vec<String>,
    /// Names with so many dots are not looked for there.
    pub(super) ndots: usize,
}

/// Reads `/etc/resolv.conf`.
pub(super) fn resolv_conf() -> ResolvConf {
    let path = Path::new("/etc/resolv.conf");
    parse_resolv_conf(&files::read_text(path, files::MAX_WHOLE).unwrap_or_default())
}

fn parse_resolv_conf(text: &str) -> ResolvConf {
    let address = |line: &str| {
        let word = line.strip_prefix("nameserver")?.split_whitespace().next()?;
        let address: std::net::IpAddr = word.parse().ok()?;
        Some(if address.is_ipv6() { format!("[{address}]") } else { address.to_string() })
    };
    let words = |line: &str, name: &str| -> Option<Vec<String>> {
        let rest = line.strip_prefix(name)?.strip_prefix([' ', '\t'])?;
        Some(rest.split_whitespace().map(str::to_owned).collect())
    };
    // The last line of a kind counts.
    let search = text.lines().filter_map(|l| words(l, "search").or_else(|| words(l, "domain"))).next_back();
    let domain = |d: &String| Some(d.trim_end_matches('.').to_ascii_lowercase()).filter(|d| is_host(d));
    let options = text.lines().filter_map(|l| words(l, "options")).flatten();
    let ndots = options.filter_map(|o| o.strip_prefix("ndots:")?.parse().ok()).next_back();
    ResolvConf {
        servers: text.lines().filter_map(address).collect(),
        search: search.unwrap_or_default().iter().filter_map(domain).take(32).collect(),
        ndots: ndots.unwrap_or(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_is_read() {
        let text = "nameserver 10.96.0.10\nnameserver fd00::1\nsearch web.svc.cluster.local SVC.cluster.local. *\noptions ndots:5 edns0\n";
        let conf = parse_resolv_conf(text);
        assert_eq!(conf.servers, ["10.96.0.10", "[fd00::1]"]);
        assert_eq!(conf.search, ["web.svc.cluster.local", "svc.cluster.local"]);
        assert_eq!(conf.ndots, 5);
        assert_eq!(parse_resolv_conf("").ndots, 1);
    }
}
