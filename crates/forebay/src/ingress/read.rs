//! Files of manifests.

use forebay_k8s::Objects;
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

/// Returns the name servers of `/etc/resolv.conf`.
pub(super) fn name_servers() -> Vec<String> {
    let text = files::read_text(Path::new("/etc/resolv.conf"), files::MAX_WHOLE).unwrap_or_default();
    let address = |line: &str| {
        let word = line.strip_prefix("nameserver")?.split_whitespace().next()?;
        let address: std::net::IpAddr = word.parse().ok()?;
        Some(if address.is_ipv6() { format!("[{address}]") } else { address.to_string() })
    };
    text.lines().filter_map(address).collect()
}
