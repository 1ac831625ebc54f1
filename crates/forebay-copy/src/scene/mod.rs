//! The private copy of a configuration that is measured: the user's files with other ports, logs, temporary files and
//! upstreams, and its targets.

mod rewrite;

use crate::patch::{self, Edit, Source, View, normal};
use forebay_bench::observe::shares;
use forebay_conf::print;
use forebay_conf::tree::{Block, FileId};
use rewrite::Rewrite;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Place of a copy, and the differences to the original that follow from it.
#[derive(Clone, Debug)]
pub struct CopyPlace {
    /// Directory of the copy.
    pub dir: PathBuf,
    /// Prefix of relative paths in the original.
    pub prefix: PathBuf,
    /// Address at which the copy listens.
    pub address: Ipv4Addr,
    /// Ports that are given already, by original address. Two copies at two addresses can have the same.
    pub ports: BTreeMap<String, u16>,
    /// Place to which requests to upstreams go.
    pub upstreams: Upstreams,
    /// Directory that replaces every `root`.
    pub root: Option<PathBuf>,
}

/// Place to which a copy's requests to upstreams go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upstreams {
    /// The real ones.
    Real,
    /// A stand-in that speaks HTTP/1, at this port of the loopback. Other protocols find nobody.
    Http(u16),
    /// A recorder for all protocols, at this port of the copy's address. It tells them by their first bytes.
    Recorder(u16),
}

impl CopyPlace {
    /// Returns a place with the real upstreams, listening at 127.0.0.1.
    pub fn new(dir: PathBuf, prefix: PathBuf) -> CopyPlace {
        let (address, ports, upstreams) = (Ipv4Addr::LOCALHOST, BTreeMap::new(), Upstreams::Real);
        CopyPlace { dir, prefix, address, ports, upstreams, root: None }
    }
}

/// A URL that can be requested.
#[derive(Clone, Debug)]
pub struct Target {
    /// URL at the copy's port.
    pub url: String,
    /// The `Host` field, if the server has a name.
    pub host: Option<String>,
    /// Number of the location that passes the request on in the view of the source, if the path was taken from it.
    pub location: Option<usize>,
    /// The request is passed on to an upstream.
    pub proxied: bool,
    /// Bytes of the file.
    pub size: u64,
}

/// A private copy.
#[derive(Debug)]
pub struct Copy {
    /// Place of the copy.
    pub place: CopyPlace,
    /// Ports by original address.
    pub ports: BTreeMap<String, u16>,
    edits: Vec<Edit>,
    /// Socket that takes the lines for syslog; nothing reads them.
    _sink: Option<UdpSocket>,
}

/// Returns a statement as it is measured: the server has a part of the machine's CPUs, so `worker_processes` is less in the
/// same proportion. nginx's `auto` would count CPUs that it does not have.
pub fn scaled(text: &str) -> String {
    let machine = forebay_sys::affinity::allowed().map_or(1, |c| c.len());
    scaled_to(text, machine, shares().0.len())
}

fn scaled_to(text: &str, machine: usize, share: usize) -> String {
    const NAME: &str = "worker_processes ";
    let Some((before, rest)) = text.split_once(NAME) else { return text.to_owned() };
    let Some((number, after)) = rest.split_once(';') else { return text.to_owned() };
    let workers = match number.trim().parse::<usize>() {
        _ if number.trim() == "auto" => share,
        Ok(n) if n > machine => share.saturating_add(n - machine),
        Ok(n) => (n * share).div_ceil(machine.max(1)),
        Err(_) => return text.to_owned(),
    };
    format!("{before}{NAME}{workers};{after}")
}

/// Returns a path as it is written in a configuration. It may have variables.
fn quote(path: &Path) -> String {
    text_of(print::quoted(path.as_os_str().as_bytes()))
}

/// Returns a path of ours for a directive that takes variables. A dollar sign in it begins none.
fn literal(path: &Path) -> String {
    text_of(print::literal(path.as_os_str().as_bytes()))
}

/// Returns a folder of ours as the beginning of a path that may have variables.
fn literal_folder(path: &Path) -> PathBuf {
    PathBuf::from(OsString::from_vec(print::without_variables(path.as_os_str().as_bytes())))
}

fn text_of(word: Vec<u8>) -> String {
    String::from_utf8(word).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// Beginning of the names of groups that knobs add. Each is an edit of its own, with one server.
pub const NEW_UPSTREAM: &str = "tuned_";

/// Folder of the cache that a knob adds.
pub const NEW_CACHE: &str = "/var/cache/tuned";

/// Directives with a folder for temporary files.
const TEMP_PATHS: [&str; 5] =
    ["client_body_temp_path", "proxy_temp_path", "fastcgi_temp_path", "uwsgi_temp_path", "scgi_temp_path"];

impl Copy {
    /// Prepares a copy in `place`.
    ///
    /// # Errors
    /// Directories cannot be made, or there is no port.
    pub fn new(source: &Source, place: CopyPlace) -> Result<Copy, String> {
        for sub in ["conf", "logs", "temp", "cache"] {
            std::fs::create_dir_all(place.dir.join(sub))
                .map_err(|e| format!("{}: {e}", place.dir.display()))?;
        }
        let mut rewrite = Rewrite::new(source, &place);
        rewrite.all()?;
        let Rewrite { ports, edits, sink, .. } = rewrite;
        let copy = Copy { place, ports, edits, _sink: sink };
        copy.set_modes();
        Ok(copy)
    }

    /// Lets workers of another user in.
    fn set_modes(&self) {
        use std::os::unix::fs::PermissionsExt;
        for sub in ["", "conf", "temp", "cache", "logs"] {
            // Logs with variables in their names are made by the workers.
            let mode = if matches!(sub, "temp" | "cache" | "logs") { 0o1777 } else { 0o755 };
            let _ = std::fs::set_permissions(self.place.dir.join(sub), std::fs::Permissions::from_mode(mode));
        }
    }

    /// Writes the copy with further edits; the path of its main file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, source: &Source, knobs: &[Edit]) -> Result<PathBuf, String> {
        let conf = self.place.dir.join("conf");
        let name = |id: FileId| conf.join(format!("{}.conf", id.0));
        // The order matters: a knob's edit of a directive replaces the one that this copy would make.
        let measured = |e: &Edit| Edit { text: self.at_home(&scaled(&e.text)), ..e.clone() };
        let mut edits: Vec<Edit> = knobs.iter().map(measured).collect();
        for e in &self.edits {
            let clash = knobs.iter().any(|k| k.file == e.file && k.start < e.end && e.start < k.end);
            if !clash {
                // Lines keep their numbers, which messages of the server name.
                edits.push(Edit { text: e.text.replace('\n', " "), ..e.clone() });
            }
        }
        includes(&source.tree.root, &name, &mut edits);
        for (id, path, bytes) in source.files.iter() {
            let to = name(id);
            let new = patch::apply(bytes, id, &edits);
            std::fs::write(&to, new).map_err(|e| format!("{} for {}: {e}", to.display(), path.display()))?;
        }
        Ok(name(FileId(0)))
    }

    /// Keeps what a knob adds within the copy.
    fn at_home(&self, text: &str) -> String {
        let cache = quote(&self.place.dir.join("cache/tuned"));
        let path = format!("proxy_cache_path {NEW_CACHE} ");
        self.with_stand_in(text).replace(&path, &format!("proxy_cache_path {cache} "))
    }

    /// Leads a group that a knob adds to the stand-in, as all others are.
    fn with_stand_in(&self, text: &str) -> String {
        let (address, port) = match self.place.upstreams {
            Upstreams::Real => return text.to_owned(),
            Upstreams::Http(port) => (Ipv4Addr::LOCALHOST, port),
            Upstreams::Recorder(port) => (self.place.address, port),
        };
        let Some((before, rest)) = text.split_once(&format!("upstream {NEW_UPSTREAM}")) else {
            return text.to_owned();
        };
        let Some((name, server)) = rest.split_once("server ") else { return text.to_owned() };
        let after = server.split_once(';').map_or("", |(_, after)| after);
        format!("{before}upstream {NEW_UPSTREAM}{name}server {address}:{port};{after}")
    }

    /// Returns the addresses at which the server accepts connections over TCP.
    pub fn addresses(&self, source: &Source) -> Vec<SocketAddr> {
        let view = source.view();
        let listens: Vec<Vec<String>> = view.all("listen").map(|n| view.args(n)).collect();
        let is_at = |l: &&Vec<String>, address: &str| l.first().is_some_and(|a| normal(a) == address);
        let is_tcp = |address: &str| {
            let mut here = listens.iter().filter(|l| is_at(l, address)).peekable();
            // Servers without a listen have the address that stands for it.
            here.peek().is_none() || here.any(|l| !l.iter().any(|w| w == "quic" || w == "udp"))
        };
        let tcp = self.ports.iter().filter(|(address, _)| is_tcp(address));
        tcp.map(|(_, port)| (self.place.address, *port).into()).collect()
    }

    /// Removes the logs of the last run: they are of no use after it.
    pub fn clear_logs(&self) {
        if let Ok(entries) = std::fs::read_dir(self.place.dir.join("logs")) {
            for e in entries.flatten() {
                let _ = std::fs::remove_file(e.path());
            }
        }
    }

    /// Notes the pid of the server, for cleaning up after a tuner that was killed.
    pub fn note_server(&self, pid: u32) {
        let _ = std::fs::write(self.place.dir.join("server.pid"), pid.to_string());
    }

    /// Returns the targets that can be requested over TCP, or over QUIC: files below the roots and locations that pass requests on.
    pub fn targets(&self, source: &Source, quic: bool) -> Vec<Target> {
        let view = source.view();
        let mut out = Vec::new();
        let Some(http) = view.child(None, "http") else { return out };
        for server in view.servers(http) {
            let paths = self.paths(&view, server);
            for front in self.fronts(&view, server).iter().filter(|f| f.quic == quic) {
                out.extend(paths.iter().map(|path| front.target(path)));
            }
        }
        out
    }

    /// Returns the addresses at which a server is reached: the first one without TLS, the first one with it, and the first one over QUIC.
    fn fronts(&self, view: &View<'_>, server: usize) -> Vec<Front> {
        let mut listens: Vec<Vec<String>> =
            view.children(Some(server)).filter(|n| view.name(*n) == "listen").map(|n| view.args(n)).collect();
        if listens.is_empty() {
            listens.push(vec!["80".to_owned()]);
        }
        let host = view.child(Some(server), "server_name").and_then(|n| {
            view.args(n).into_iter().find(|h| !h.contains(['*', '~', '_', '$']) && !h.is_empty())
        });
        let mut seen = BTreeSet::new();
        let mut fronts = Vec::new();
        for listen in listens.iter().filter(|l| !l[0].starts_with("unix:")) {
            let Some(port) = self.ports.get(&normal(&listen[0])) else { continue };
            let quic = listen.iter().any(|w| w == "quic");
            let tls = quic || listen.iter().any(|w| w == "ssl");
            if seen.insert((tls, quic)) {
                fronts.push(Front {
                    address: self.place.address,
                    tls,
                    quic,
                    port: *port,
                    host: host.clone(),
                });
            }
        }
        fronts
    }

    /// Returns the directives whose locations answer. The stand-in for upstreams speaks HTTP only.
    fn passes(&self) -> &'static [&'static str] {
        match self.place.upstreams {
            Upstreams::Real => &["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass"],
            Upstreams::Http(_) | Upstreams::Recorder(_) => &["proxy_pass"],
        }
    }

    /// Returns the paths of a server that can be requested.
    fn paths(&self, view: &View<'_>, server: usize) -> Vec<Requested> {
        let mut out = Vec::new();
        for name in self.passes() {
            for pass in view.all(name).filter(|p| view.within(*p, server)) {
                let location = view.nodes[pass].parent;
                let path = location_path(view, pass);
                out.extend(path.map(|path| Requested { path, location, proxied: true, size: 0 }));
            }
        }
        let scripts = self.passes().len() > 1 && view.all("fastcgi_pass").any(|p| view.within(p, server));
        if let Some(root) = self.root_of(view, server) {
            let mut found = Vec::new();
            walk(&root, "", 0, &mut found);
            let step = found.len().div_ceil(20).max(1);
            let file = |(path, size): (String, u64)| {
                let proxied = scripts && path.ends_with(".php");
                Requested { path, location: None, proxied, size: if proxied { 0 } else { size } }
            };
            out.extend(found.into_iter().step_by(step).map(file));
        }
        out
    }

    /// Returns the root of a server, or the root of its location `/`.
    fn root_of(&self, view: &View<'_>, server: usize) -> Option<PathBuf> {
        if let Some(root) = &self.place.root {
            return Some(root.clone());
        }
        let of_location = || {
            let is_all =
                |l: &usize| view.name(*l) == "location" && view.args(*l).first().is_some_and(|a| a == "/");
            view.child(Some(view.children(Some(server)).find(is_all)?), "root")
        };
        let root = view.effective(Some(server), "root").or_else(of_location)?;
        Some(self.place.prefix.join(view.args(root).first().cloned().unwrap_or_default()))
    }
}

/// An address at which a server is reached.
struct Front {
    address: Ipv4Addr,
    tls: bool,
    quic: bool,
    port: u16,
    host: Option<String>,
}

/// A path that can be requested.
struct Requested {
    path: String,
    location: Option<usize>,
    proxied: bool,
    size: u64,
}

impl Front {
    fn target(&self, requested: &Requested) -> Target {
        let scheme = if self.tls { "https" } else { "http" };
        Target {
            url: format!("{scheme}://{}:{}{}", self.address, self.port, requested.path),
            host: self.host.clone(),
            location: requested.location,
            proxied: requested.proxied,
            size: requested.size,
        }
    }
}

/// Returns the path of the location that a directive is in, unless it is an expression.
fn location_path(view: &View<'_>, directive: usize) -> Option<String> {
    let location = view.nodes[directive].parent.filter(|l| view.name(*l) == "location")?;
    match view.args(location).as_slice() {
        [path] if path.starts_with('/') => Some(path.clone()),
        [modifier, path] if modifier == "=" || modifier == "^~" => Some(path.clone()),
        _ => None,
    }
}

/// Largest file that is asked for: a window of a minute holds some of them over a slow network.
const LARGEST: u64 = 64 << 20;

fn walk(dir: &Path, path: &str, depth: u32, found: &mut Vec<(String, u64)>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for e in entries {
        let name = e.file_name().to_string_lossy().into_owned();
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-~".contains(&b));
        if found.len() >= 400 || !plain || name.starts_with('.') {
            continue;
        }
        let Ok(meta) = e.path().metadata() else { continue };
        if meta.is_dir() && depth < 4 {
            walk(&e.path(), &format!("{path}/{name}"), depth + 1, found);
        } else if meta.is_file() && meta.len() <= LARGEST {
            found.push((format!("{path}/{name}"), meta.len()));
        }
    }
}

/// Has each `include` name the copies of its files.
fn includes(block: &Block, name: &dyn Fn(FileId) -> PathBuf, edits: &mut Vec<Edit>) {
    for d in &block.items {
        let Some(inner) = &d.block else { continue };
        if d.name.text == b"include" {
            let s = d.name.span;
            edits.push(Edit { file: s.file, start: s.start, end: d.end.end, text: copies_of(inner, name) });
        }
        includes(inner, name, edits);
    }
}

/// Returns an `include` for each file of an included block.
fn copies_of(included: &Block, name: &dyn Fn(FileId) -> PathBuf) -> String {
    let mut text = String::new();
    let mut seen = Vec::new();
    for item in &included.items {
        let id = item.name.span.file;
        if !seen.contains(&id) {
            seen.push(id);
            text.push_str(&format!("include {}; ", quote(&name(id))));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_bench::ports::free_port;

    #[test]
    fn workers_are_as_many_for_the_servers_cpus() {
        for (text, machine, share, want) in [
            ("worker_processes auto;", 8, 4, "worker_processes 4;"),
            ("worker_processes 8;", 8, 4, "worker_processes 4;"),
            ("worker_processes 4;", 8, 4, "worker_processes 2;"),
            ("a b;\nworker_processes 9;\n", 8, 4, "a b;\nworker_processes 5;\n"),
            ("worker_processes 1;", 2, 1, "worker_processes 1;"),
            ("worker_processes 1;", 1, 1, "worker_processes 1;"),
            ("worker_processes $n;", 2, 1, "worker_processes $n;"),
            ("worker_connections 5;", 2, 1, "worker_connections 5;"),
        ] {
            assert_eq!(scaled_to(text, machine, share), want);
        }
    }

    #[test]
    fn no_connection_takes_the_ports_of_the_copy() {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("a range");
        let low: u16 = range.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number");
        let held = free_port().and_then(|p| std::net::TcpListener::bind(("127.0.0.1", p))).expect("a port");
        let other = free_port().expect("a port");
        assert_ne!(held.local_addr().map(|a| a.port()).ok(), Some(other));
        assert!(other < low || low < 10_001, "{other} of {low}");
    }

    #[test]
    fn directives_of_nginx_alone_are_no_obstacle() {
        let dir = tempfile::tempdir().expect("dir");
        let conf = dir.path().join("nginx.conf");
        let text = "load_module modules/ngx_http_image_filter_module.so;\nevents {}\nstream {\n server { listen 127.0.0.1:5; } \
                    # }\n}\nhttp { fancyindex on; server { listen 80; root /srv; image_filter off; } }\n";
        std::fs::write(&conf, text).expect("written");
        assert!(Source::read(&conf).is_err());
        let source = Source::of_nginx(&conf).expect("parses");
        assert_eq!(source.unserved_names().collect::<Vec<_>>(), ["stream"]);
        let (prefix, dir) = ("/usr/share/nginx".into(), dir.path().join("copy"));
        let copy = Copy::new(&source, CopyPlace::new(dir, prefix)).expect("made");
        let new = std::fs::read_to_string(copy.write(&source, &[]).expect("written")).expect("there");
        for part in
            ["/usr/share/nginx/modules/ngx_http_image", "fancyindex on;", "image_filter off;", "127.0.0.1:"]
        {
            assert!(new.contains(part), "{part}: {new}");
        }
        assert!(!new.contains("stream") && !new.contains("127.0.0.1:5;"), "{new}");
        assert_eq!(copy.ports.keys().collect::<Vec<_>>(), ["0.0.0.0:80"]);
    }
}
