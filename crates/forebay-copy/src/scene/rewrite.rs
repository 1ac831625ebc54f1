//! Edits that turn a configuration into its private copy: other ports, logs, temporary files and upstreams.

use super::{CopyPlace, TEMP_PATHS, Upstreams, literal, literal_folder, quote, scaled};
use crate::patch::{Edit, Source, View, normal};
use forebay_bench::ports::free_port;
use forebay_conf::print;
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The edits that make a private copy of a configuration, and what they use.
pub(super) struct Rewrite<'a> {
    source: &'a Source,
    view: View<'a>,
    place: &'a CopyPlace,
    /// Base of relative paths that follow the configuration file.
    conf_dir: PathBuf,
    /// Ports by original address.
    pub(super) ports: BTreeMap<String, u16>,
    /// Number of unix sockets that the copy listens at.
    sockets: usize,
    /// Socket that takes the lines for syslog; nothing reads them.
    pub(super) sink: Option<UdpSocket>,
    pub(super) edits: Vec<Edit>,
}

/// A directive, with its number in the view.
struct Statement {
    n: usize,
    name: String,
    /// The first argument, empty if there is none.
    first: String,
}

impl<'a> Rewrite<'a> {
    pub(super) fn new(source: &'a Source, place: &'a CopyPlace) -> Rewrite<'a> {
        Rewrite {
            source,
            view: source.view(),
            place,
            conf_dir: source.path.parent().unwrap_or(Path::new("/")).to_owned(),
            ports: place.ports.clone(),
            sockets: 0,
            sink: None,
            edits: Vec::new(),
        }
    }

    /// Rewrites all directives and adds those that the copy needs.
    pub(super) fn all(&mut self) -> Result<(), String> {
        for n in 0..self.view.nodes.len() {
            let first = self.view.args(n).first().cloned().unwrap_or_default();
            self.directive(&Statement { n, name: self.view.name(n).to_owned(), first })?;
        }
        self.edits.extend(self.source.unserved.iter().cloned());
        self.edits.push(self.main_directives());
        if let Some(http) = self.view.child(None, "http") {
            self.edits.push(self.http_directives(http));
            self.implicit_listens(http)?;
        }
        Ok(())
    }

    fn directive(&mut self, s: &Statement) -> Result<(), String> {
        match s.name.as_str() {
            "daemon" | "pid" | "lock_file" | "master_process" | "worker_cpu_priority" => self.put(s, ""),
            "worker_processes" => self.put(s, &scaled(&format!("{} {};", s.name, s.first))),
            "worker_cpu_affinity" => self.affinity(s),
            "listen" => self.listen(s)?,
            "access_log" | "error_log" => self.log(s)?,
            // A PUT would write below the user's own root, and so would a stored response.
            "dav_methods" | "proxy_store" | "fastcgi_store" | "uwsgi_store" | "scgi_store" => {
                self.put(s, &format!("{} off;", s.name));
            }
            name if TEMP_PATHS.contains(&name) => self.temp_path(s),
            "proxy_cache_path" | "fastcgi_cache_path" | "uwsgi_cache_path" | "scgi_cache_path" => {
                self.cache_path(s);
            }
            "root" => self.root(s),
            "alias" | "load_module" => self.relative_path(s, &self.place.prefix.clone()),
            "auth_basic_user_file" => self.relative_path(s, &self.conf_dir.clone()),
            "server" => self.upstream_server(s),
            "proxy_pass" if self.view.in_stream(s.n) => self.stream_pass(s),
            "proxy_pass" => self.proxy_pass(s),
            "fastcgi_pass" | "uwsgi_pass" | "scgi_pass" | "grpc_pass" | "memcached_pass" => {
                self.other_pass(s)
            }
            "ssl_stapling" | "uri" | "state_path" => self.authority(s),
            name if name.starts_with("ssl_") || name.starts_with("proxy_ssl_") => self.tls_file(s),
            _ => {}
        }
        Ok(())
    }

    /// Replaces a directive.
    fn put(&mut self, s: &Statement, text: &str) {
        let edit = self.view.replace(s.n, text);
        self.edits.push(edit);
    }

    /// Replaces one argument of a directive and keeps the others: a knob may add parameters to the same line.
    fn put_argument(&mut self, s: &Statement, index: usize, text: String) {
        if let Some(word) = self.view.nodes[s.n].d.args.get(index).map(|w| w.span) {
            self.edits.push(Edit { file: word.file, start: word.start, end: word.end, text });
        }
    }

    /// Returns the arguments from a number on as they are in the file, after a space.
    fn rest(&self, s: &Statement, from: usize) -> String {
        let words = &self.view.nodes[s.n].d.args;
        let (Some(a), Some(b)) = (words.get(from), words.last()) else { return String::new() };
        let bytes = self.source.files.bytes(a.span.file);
        let text = bytes.get(a.span.start as usize..b.span.end as usize).unwrap_or_default();
        format!(" {}", String::from_utf8_lossy(text))
    }

    fn affinity(&mut self, s: &Statement) {
        // Masks may name CPUs of the load generator.
        if s.first != "auto" {
            self.put(s, &format!("{} auto;", s.name));
        }
    }

    fn listen(&mut self, s: &Statement) -> Result<(), String> {
        if s.first.starts_with("unix:") {
            self.sockets += 1;
            let socket = self.place.dir.join(format!("sock{}", self.sockets));
            let text = format!("listen unix:{}{};", socket.display(), self.rest(s, 1));
            self.put(s, &text);
            return Ok(());
        }
        let port = self.port_for(normal(&s.first))?;
        self.put_argument(s, 0, format!("{}:{port}", self.place.address));
        // The copy listens on IPv4 only.
        for index in 0..self.view.nodes[s.n].d.args.len() {
            if self.view.nodes[s.n].d.args[index].text.starts_with(b"ipv6only") {
                self.put_argument(s, index, String::new());
            }
        }
        Ok(())
    }

    /// Returns the port that replaces an address, the same each time.
    fn port_for(&mut self, address: String) -> Result<u16, String> {
        if let Some(port) = self.ports.get(&address) {
            return Ok(*port);
        }
        let port = free_port().map_err(|e| format!("{}: {e}", self.place.dir.display()))?;
        self.ports.insert(address, port);
        Ok(port)
    }

    fn log(&mut self, s: &Statement) -> Result<(), String> {
        if s.first == "off" || s.first == "stderr" {
            return Ok(());
        }
        let text = match s.first.strip_prefix("syslog:") {
            Some(parameters) => self.sunk(parameters)?,
            None => quote(&literal_folder(&self.place.dir).join("logs").join(s.first.replace('/', "_"))),
        };
        self.put_argument(s, 0, text);
        Ok(())
    }

    /// Returns the target of a log that goes to syslog, with a socket of this process in place of the real server, which gets
    /// no lines.
    fn sunk(&mut self, parameters: &str) -> Result<String, String> {
        let socket = match self.sink.take() {
            Some(s) => s,
            None => UdpSocket::bind("127.0.0.1:0").map_err(|e| e.to_string())?,
        };
        let server = format!("server={}", socket.local_addr().map_err(|e| e.to_string())?);
        self.sink = Some(socket);
        let others = parameters.split(',').filter(|p| !p.starts_with("server="));
        Ok(format!("syslog:{}", std::iter::once(server.as_str()).chain(others).collect::<Vec<_>>().join(",")))
    }

    fn temp_path(&mut self, s: &Statement) {
        let path = self.place.dir.join("temp").join(&s.name);
        self.put(s, &format!("{} {};", s.name, quote(&path)));
    }

    fn cache_path(&mut self, s: &Statement) {
        let path = self.place.dir.join("cache").join(s.first.replace('/', "_"));
        let text = format!("{} {}{};", s.name, quote(&path), self.rest(s, 1));
        self.put(s, &text);
    }

    fn root(&mut self, s: &Statement) {
        match &self.place.root {
            Some(root) => self.put(s, &format!("root {};", literal(root))),
            None => self.relative_path(s, &self.place.prefix.clone()),
        }
    }

    /// Makes the first argument absolute, as the copy has another prefix.
    fn relative_path(&mut self, s: &Statement, base: &Path) {
        if !s.first.starts_with(['/', '$']) {
            // The first argument may have variables, what is put in front of it has none.
            let base = if s.name == "load_module" { base.to_owned() } else { literal_folder(base) };
            let text = format!("{} {}{};", s.name, quote(&base.join(&s.first)), self.rest(s, 1));
            self.put(s, &text);
        }
    }

    /// Makes the path of a key, a certificate or a list absolute.
    fn tls_file(&mut self, s: &Statement) {
        let is_file =
            ["certificate", "_key", "dhparam", "crl", "_file"].iter().any(|end| s.name.ends_with(end));
        let is_single = self.view.nodes[s.n].d.args.len() == 1;
        // An argument with a colon names an engine or inline data.
        if is_file && is_single && !s.first.contains(':') && !s.first.starts_with(['/', '$']) {
            // Of these only certificates that are shown, and their keys, may have variables.
            let shown = ["ssl_certificate", "ssl_certificate_key"].iter().any(|end| s.name.ends_with(end));
            let dir = if shown { literal_folder(&self.conf_dir) } else { self.conf_dir.clone() };
            let text = format!("{} {};", s.name, quote(&dir.join(&s.first)));
            self.put(s, &text);
        }
    }

    /// Returns the address of the stand-in for upstreams.
    fn stand_in(&self) -> Option<String> {
        match self.place.upstreams {
            Upstreams::Real => None,
            Upstreams::Http(port) => Some(format!("127.0.0.1:{port}")),
            Upstreams::Recorder(port) => Some(format!("{}:{port}", self.place.address)),
        }
    }

    fn records(&self) -> bool {
        matches!(self.place.upstreams, Upstreams::Recorder(_))
    }

    /// Returns `true` if the configuration has an upstream of this name.
    fn is_upstream(&self, host: &str) -> bool {
        self.view.all("upstream").any(|u| self.view.args(u).first().is_some_and(|a| a == host))
    }

    fn upstream_server(&mut self, s: &Statement) {
        if let Some(address) = self.stand_in().filter(|_| self.view.nodes[s.n].d.block.is_none()) {
            let text = format!("server {address}{};", self.rest(s, 1));
            self.put(s, &text);
        }
    }

    fn proxy_pass(&mut self, s: &Statement) {
        let Some(address) = self.stand_in() else { return };
        let (scheme, target) = s.first.split_once("://").unwrap_or(("", &s.first));
        if target.contains('$') || scheme.is_empty() {
            let to = if self.records() { variable(target, &address) } else { address };
            return self.put(s, &format!("proxy_pass {};", quoted(&format!("http://{to}"))));
        }
        let (host, path) = host_and_path(target);
        let host = if self.is_upstream(host) { host } else { &address };
        self.put(s, &format!("proxy_pass {};", quoted(&format!("http://{host}{path}"))));
    }

    /// Leads a stream to the stand-in. A variable stays if it can only be the name of an upstream.
    fn stream_pass(&mut self, s: &Statement) {
        let Some(address) = self.stand_in() else { return };
        if !self.is_upstream(&s.first) && !self.names_upstreams(&s.first) {
            self.put(s, &format!("proxy_pass {address};"));
        }
    }

    /// Returns `true` for the variable of a `map` whose values all name upstreams.
    fn names_upstreams(&self, variable: &str) -> bool {
        let map = self.view.all("map").find(|m| self.view.args(*m).get(1).is_some_and(|v| v == variable));
        let block = map.and_then(|m| self.view.nodes.get(m)?.d.block.as_ref());
        let values = |b: &forebay_conf::tree::Block| {
            let named = |d: &forebay_conf::tree::Directive| match d.name.text.as_slice() {
                b"hostnames" | b"volatile" => true,
                _ => d.args.first().is_some_and(|v| self.is_upstream(&v.as_str())),
            };
            b.iter().all(named)
        };
        block.is_some_and(values)
    }

    fn other_pass(&mut self, s: &Statement) {
        let Some(address) = self.stand_in() else { return };
        if !self.records() {
            // The stand-in speaks HTTP only. A port without a listener answers 502 at once, and the location is left out.
            return self.put(s, &format!("{} 127.0.0.1:1;", s.name));
        }
        let target = s.first.split_once("://").map_or(s.first.as_str(), |(_, target)| target);
        let host = if self.is_upstream(target) { target } else { &address };
        let scheme = if s.name == "grpc_pass" { "grpc://" } else { "" };
        self.put(s, &format!("{} {scheme}{host};", s.name));
    }

    /// Keeps certificates from being asked about, or asked for, at the places that the configuration names.
    fn authority(&mut self, s: &Statement) {
        let in_issuer = self.view.nodes[s.n].parent.is_some_and(|p| self.view.name(p) == "acme_issuer");
        match s.name.as_str() {
            "ssl_stapling" => self.put(s, "ssl_stapling off;"),
            "uri" if in_issuer => self.put(s, "uri https://127.0.0.1:1/;"),
            "state_path" if in_issuer => {
                let path = quote(&self.place.dir.join("temp/acme"));
                self.put(s, &format!("state_path {path};"));
            }
            _ => {}
        }
    }

    /// Returns the directives that the copy needs at the top.
    fn main_directives(&self) -> Edit {
        let dir = &self.place.dir;
        let mut text = format!("daemon off; pid {};", quote(&dir.join("pid")));
        if self.view.child(None, "error_log").is_none() {
            text.push_str(&format!(" error_log {};", quote(&dir.join("logs/error.log"))));
        }
        self.view.insert(None, &text)
    }

    /// Returns the directives that the copy needs in `http`, where the configuration has the defaults.
    fn http_directives(&self, http: usize) -> Edit {
        let dir = &self.place.dir;
        let missing = |name: &str| self.view.child(Some(http), name).is_none();
        let mut text = String::new();
        for name in TEMP_PATHS.into_iter().filter(|name| missing(name)) {
            text.push_str(&format!("{name} {}; ", quote(&dir.join("temp").join(name))));
        }
        if missing("access_log") {
            text.push_str(&format!("access_log {}; ", literal(&dir.join("logs/access.log"))));
        }
        if let Some(root) = self.place.root.as_ref().filter(|_| missing("root")) {
            text.push_str(&format!("root {}; ", literal(root)));
        }
        let ours =
            [Some(&self.place.dir), self.place.root.as_ref(), Some(&self.place.prefix), Some(&self.conf_dir)];
        let dollar = |path: &PathBuf| print::needs_dollar_sign(path.as_os_str().as_bytes());
        if self.records() {
            let address = self.stand_in().unwrap_or_default();
            text.push_str(&format!("map \"\" $forebay_recorder {{ default {address}; }} "));
        }
        if ours.into_iter().flatten().any(dollar) {
            text.push_str(print::DOLLAR_SIGN);
        }
        self.view.insert(Some(http), &text)
    }

    /// Gives servers without `listen`, which mean port 80, a port of their own.
    fn implicit_listens(&mut self, http: usize) -> Result<(), String> {
        let servers: Vec<usize> = self.view.servers(http).collect();
        for server in servers {
            if self.view.child(Some(server), "listen").is_none() {
                let port = match self.ports.get("0.0.0.0:80") {
                    Some(p) => *p,
                    None => free_port().map_err(|e| e.to_string())?,
                };
                self.ports.insert("0.0.0.0:80".into(), port);
                let edit = self.view.insert(Some(server), &format!("listen {}:{port};", self.place.address));
                self.edits.push(edit);
            }
        }
        Ok(())
    }
}

/// Separates the address of an upstream from the path behind it. In that of a unix socket a colon is between them.
fn host_and_path(target: &str) -> (&str, &str) {
    if target.starts_with("unix:") {
        let rest = target.get(5..).unwrap_or_default();
        let (socket, path) = rest.split_once(':').unwrap_or((rest, ""));
        return (socket, path);
    }
    target.find('/').map_or((target, ""), |i| target.split_at(i))
}

/// Returns what goes to the address in place of a target with variables. A path and what follows it stay as they are; a
/// target without a path stays one that is known at run time only.
fn variable(target: &str, address: &str) -> String {
    const PATHS: [&str; 6] =
        ["$request_uri", "$uri", "$document_uri", "${request_uri}", "${uri}", "$is_args"];
    let (host, path) = host_and_path(target);
    let at = PATHS.iter().filter_map(|p| host.find(p)).min();
    let path = at.and_then(|at| target.get(at..)).unwrap_or(path);
    if path.is_empty() { "${forebay_recorder}".to_owned() } else { format!("{address}{path}") }
}

fn quoted(text: &str) -> String {
    String::from_utf8_lossy(&print::quoted(text.as_bytes())).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_upstreams() {
        assert_eq!(host_and_path("10.0.0.1:80/a/b"), ("10.0.0.1:80", "/a/b"));
        assert_eq!(host_and_path("unix:/run/x.sock:/a"), ("/run/x.sock", "/a"));
        assert_eq!(host_and_path("unix:/run/x.sock"), ("/run/x.sock", ""));
        assert_eq!(host_and_path("app"), ("app", ""));
    }

    #[test]
    fn targets_with_variables_keep_their_paths() {
        let at = "127.0.0.1:9";
        assert_eq!(variable("$host:80$request_uri", at), "127.0.0.1:9$request_uri");
        assert_eq!(variable("$host/a/$1", at), "127.0.0.1:9/a/$1");
        assert_eq!(variable("$backend", at), "${forebay_recorder}");
    }
}
