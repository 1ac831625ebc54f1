//! The private copy of a configuration that is measured: the user's files with other ports, logs, temporary files and
//! upstreams, and what can be asked of it.

use crate::patch::{self, Edit, Source, View, normal};
use forebay_bench::observe::shares;
use forebay_bench::ports::free_port;
use forebay_conf::tree::FileId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};

/// How the copy differs from the original.
#[derive(Clone, Debug)]
pub struct Place {
    /// Directory of the copy.
    pub dir: PathBuf,
    /// Prefix of relative paths in the original.
    pub prefix: PathBuf,
    /// Stand-in for all upstreams; `None`: the real ones.
    pub upstream: Option<u16>,
    /// Directory that replaces every `root`.
    pub root: Option<PathBuf>,
}

/// Something to ask for.
#[derive(Clone, Debug)]
pub struct Target {
    /// URL at the copy's port.
    pub url: String,
    /// The `Host` field, if the server has a name.
    pub host: Option<String>,
    /// Passed on to an upstream.
    pub proxied: bool,
    /// Bytes of the file.
    pub size: u64,
}

/// A private copy.
#[derive(Debug)]
pub struct Copy {
    /// Where it is.
    pub place: Place,
    /// Ports by original address.
    pub ports: BTreeMap<String, u16>,
    edits: Vec<Edit>,
    /// Where lines for syslog go: nobody reads them.
    sink: Option<UdpSocket>,
}

/// A statement as it is measured: the server has a part of the machine's CPUs, so `worker_processes` is less in the same
/// proportion. nginx's `auto` would count CPUs that it does not have.
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

fn quote(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('\\', "\\\\").replace('"', "\\\""))
}

impl Copy {
    /// Prepares a copy in `place`.
    ///
    /// # Errors
    /// Directories cannot be made, or there is no port.
    pub fn new(source: &Source, place: Place) -> Result<Copy, String> {
        let say = |e: std::io::Error| format!("{}: {e}", place.dir.display());
        for sub in ["conf", "logs", "temp", "cache"] {
            std::fs::create_dir_all(place.dir.join(sub)).map_err(say)?;
        }
        let mut copy = Copy { place: place.clone(), ports: BTreeMap::new(), edits: Vec::new(), sink: None };
        let view = source.view();
        let mut edits = Vec::new();
        let conf_dir = source.path.parent().unwrap_or(Path::new("/")).to_owned();
        for n in 0..view.nodes.len() {
            let args = view.args(n);
            let first = args.first().cloned().unwrap_or_default();
            let rest = |from: usize| -> String {
                let words = &view.nodes[n].d.args;
                let (Some(a), Some(b)) = (words.get(from), words.last()) else { return String::new() };
                let bytes = source.files.bytes(a.span.file);
                let text = bytes.get(a.span.start as usize..b.span.end as usize).unwrap_or_default();
                format!(" {}", String::from_utf8_lossy(text))
            };
            let name = view.name(n).to_owned();
            let put = |text: String| view.replace(n, &text);
            match name.as_str() {
                "daemon" | "pid" | "lock_file" | "master_process" | "worker_cpu_priority" => {
                    edits.push(put(String::new()))
                }
                "worker_processes" => edits.push(put(scaled(&format!("{name} {first};")))),
                // Masks may name CPUs of the load generator.
                "worker_cpu_affinity" if first != "auto" => edits.push(put(format!("{name} auto;"))),
                "listen" if first.starts_with("unix:") => {
                    edits.push(put(format!("listen unix:{}{};", place.dir.join("sock").display(), rest(1))));
                }
                "listen" => {
                    let key = normal(&first);
                    let port = match copy.ports.get(&key) {
                        Some(p) => *p,
                        None => {
                            let p = free_port().map_err(say)?;
                            copy.ports.insert(key, p);
                            p
                        }
                    };
                    let word = &view.nodes[n].d.args[0].span;
                    edits.push(Edit {
                        file: word.file,
                        start: word.start,
                        end: word.end,
                        text: format!("127.0.0.1:{port}"),
                    });
                    for w in view.nodes[n].d.args.iter().filter(|w| w.text.starts_with(b"ipv6only")) {
                        edits.push(Edit {
                            file: w.span.file,
                            start: w.span.start,
                            end: w.span.end,
                            text: String::new(),
                        });
                    }
                }
                "access_log" | "error_log" if first != "off" && first != "stderr" => {
                    let text = match first.strip_prefix("syslog:") {
                        Some(parameters) => copy.sunk(parameters)?,
                        None => quote(&place.dir.join("logs").join(first.replace('/', "_"))),
                    };
                    // Only the path: a knob may add parameters to the same line.
                    let word = &view.nodes[n].d.args[0].span;
                    edits.push(Edit { file: word.file, start: word.start, end: word.end, text });
                }
                // A PUT of an access log would write below the user's own root, and so would a stored response.
                "dav_methods" | "proxy_store" | "fastcgi_store" | "uwsgi_store" | "scgi_store" => {
                    edits.push(put(format!("{name} off;")));
                }
                "client_body_temp_path"
                | "proxy_temp_path"
                | "fastcgi_temp_path"
                | "uwsgi_temp_path"
                | "scgi_temp_path" => {
                    edits.push(put(format!("{name} {};", quote(&place.dir.join("temp").join(&name)))))
                }
                "proxy_cache_path" | "fastcgi_cache_path" | "uwsgi_cache_path" | "scgi_cache_path" => {
                    let file = place.dir.join("cache").join(first.replace('/', "_"));
                    edits.push(put(format!("{name} {}{};", quote(&file), rest(1))));
                }
                "root" if place.root.is_some() => {
                    edits.push(put(format!(
                        "root {};",
                        quote(place.root.as_deref().unwrap_or(Path::new("/")))
                    )));
                }
                "root" | "alias" | "load_module" | "auth_basic_user_file"
                    if !first.starts_with('/') && !first.starts_with('$') =>
                {
                    let base = if name == "auth_basic_user_file" { &conf_dir } else { &place.prefix };
                    edits.push(put(format!("{name} {}{};", quote(&base.join(&first)), rest(1))));
                }
                _ if (name.starts_with("ssl_") || name.starts_with("proxy_ssl_"))
                    && ["certificate", "_key", "dhparam", "crl", "_file"]
                        .iter()
                        .any(|s| name.ends_with(s))
                    && !first.contains(':')
                    && !first.starts_with(['/', '$'])
                    && view.nodes[n].d.args.len() == 1 =>
                {
                    edits.push(put(format!("{name} {};", quote(&conf_dir.join(&first)))));
                }
                "server" if view.nodes[n].d.block.is_none() => {
                    if let Some(port) = place.upstream {
                        edits.push(put(format!("server 127.0.0.1:{port}{};", rest(1))));
                    }
                }
                "proxy_pass" => {
                    let (scheme, target) = first.split_once("://").unwrap_or(("", &first));
                    let (host, path) = target.find('/').map_or((target, ""), |i| target.split_at(i));
                    let named = view.all("upstream").any(|u| view.args(u).first().is_some_and(|a| a == host));
                    match place.upstream {
                        Some(port) if target.contains('$') || scheme.is_empty() => {
                            edits.push(put(format!("proxy_pass http://127.0.0.1:{port};")));
                        }
                        Some(port) => {
                            let host = if named { host.to_owned() } else { format!("127.0.0.1:{port}") };
                            edits.push(put(format!("proxy_pass http://{host}{path};")));
                        }
                        None => {}
                    }
                }
                // The stand-in speaks HTTP only. Where nobody listens the answer is 502 at once, and is left out.
                "fastcgi_pass" | "uwsgi_pass" | "scgi_pass" | "grpc_pass" | "memcached_pass"
                    if place.upstream.is_some() =>
                {
                    edits.push(put(format!("{name} 127.0.0.1:1;")));
                }
                _ => {}
            }
        }
        edits.extend(source.unserved.iter().cloned());
        copy.head(&view, &mut edits)?;
        copy.edits = edits;
        copy.own();
        Ok(copy)
    }

    /// The target of a log that goes to syslog, with a server of our own: the real one gets no line.
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

    fn head(&mut self, view: &View<'_>, edits: &mut Vec<Edit>) -> Result<(), String> {
        let dir = self.place.dir.clone();
        let mut head = format!("daemon off; pid {};", quote(&dir.join("pid")));
        let error_log = view.child(None, "error_log").is_some();
        if !error_log {
            head.push_str(&format!(" error_log {};", quote(&dir.join("logs/error.log"))));
        }
        edits.push(view.insert(None, &head));
        let Some(http) = view.child(None, "http") else { return Ok(()) };
        let mut text = String::new();
        for name in [
            "client_body_temp_path",
            "proxy_temp_path",
            "fastcgi_temp_path",
            "uwsgi_temp_path",
            "scgi_temp_path",
        ] {
            if view.child(Some(http), name).is_none() {
                text.push_str(&format!("{name} {}; ", quote(&dir.join("temp").join(name))));
            }
        }
        if view.child(Some(http), "access_log").is_none() {
            text.push_str(&format!("access_log {}; ", quote(&dir.join("logs/access.log"))));
        }
        if let (None, Some(root)) = (view.child(Some(http), "root"), &self.place.root) {
            text.push_str(&format!("root {}; ", quote(root)));
        }
        edits.push(view.insert(Some(http), &text));
        for s in view.all("server").filter(|s| view.nodes[*s].parent == Some(http)) {
            if view.child(Some(s), "listen").is_none() {
                let port = match self.ports.get("0.0.0.0:80") {
                    Some(p) => *p,
                    None => free_port().map_err(|e| e.to_string())?,
                };
                self.ports.insert("0.0.0.0:80".into(), port);
                edits.push(view.insert(Some(s), &format!("listen 127.0.0.1:{port};")));
            }
        }
        Ok(())
    }

    /// Workers of another user have to come in.
    fn own(&self) {
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
        // Ordered: a setting of a knob that replaces a directive goes before what this copy would do with it.
        let measured = |e: &Edit| Edit { text: scaled(&e.text), ..e.clone() };
        let mut edits: Vec<Edit> = knobs.iter().map(measured).collect();
        for e in &self.edits {
            let clash = knobs.iter().any(|k| k.file == e.file && k.start < e.end && e.start < k.end);
            if !clash {
                edits.push(e.clone());
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

    /// What can be asked for: files below the roots and locations that pass requests on.
    pub fn targets(&self, source: &Source) -> Vec<Target> {
        let view = source.view();
        let mut out = Vec::new();
        let Some(http) = view.child(None, "http") else { return out };
        for s in view.all("server").filter(|s| view.nodes[*s].parent == Some(http)) {
            let listens: Vec<Vec<String>> =
                view.children(Some(s)).filter(|n| view.name(*n) == "listen").map(|n| view.args(n)).collect();
            let mut seen = BTreeSet::new();
            let listens = if listens.is_empty() { vec![vec!["80".to_owned()]] } else { listens };
            for l in listens.iter().filter(|l| !l[0].starts_with("unix:") && !l.iter().any(|w| w == "quic")) {
                let Some(port) = self.ports.get(&normal(&l[0])) else { continue };
                let tls = l.iter().any(|w| w == "ssl");
                if !seen.insert(tls) {
                    continue;
                }
                let scheme = if tls { "https" } else { "http" };
                let host = view.child(Some(s), "server_name").and_then(|n| {
                    view.args(n).into_iter().find(|h| !h.contains(['*', '~', '_', '$']) && !h.is_empty())
                });
                let mut add = |path: &str, proxied: bool, size: u64| {
                    let url = format!("{scheme}://127.0.0.1:{port}{path}");
                    out.push(Target { url, host: host.clone(), proxied, size });
                };
                for p in view.all("proxy_pass").filter(|p| view.within(*p, s)) {
                    let Some(l) = view.nodes[p].parent.filter(|l| view.name(*l) == "location") else {
                        continue;
                    };
                    let args = view.args(l);
                    match args.as_slice() {
                        [path] if path.starts_with('/') => add(path, true, 0),
                        [m, path] if m == "=" || m == "^~" => add(path, true, 0),
                        _ => {}
                    }
                }
                let root = match &self.place.root {
                    Some(r) => Some(r.clone()),
                    None => view
                        .effective(Some(s), "root")
                        .or_else(|| {
                            let at = view.children(Some(s)).find(|l| {
                                view.name(*l) == "location" && view.args(*l).first().is_some_and(|a| a == "/")
                            })?;
                            view.child(Some(at), "root")
                        })
                        .map(|n| self.place.prefix.join(view.args(n).first().cloned().unwrap_or_default())),
                };
                if let Some(root) = root {
                    let mut found = Vec::new();
                    walk(&root, "", 0, &mut found);
                    let step = found.len().div_ceil(20).max(1);
                    for (path, size) in found.iter().step_by(step) {
                        add(path, false, *size);
                    }
                }
            }
        }
        out
    }
}

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
        } else if meta.is_file() && meta.len() <= 4 << 20 {
            found.push((format!("{path}/{name}"), meta.len()));
        }
    }
}

/// Each `include` names the copies of its files.
fn includes(block: &forebay_conf::tree::Block, name: &dyn Fn(FileId) -> PathBuf, edits: &mut Vec<Edit>) {
    for d in &block.items {
        let Some(inner) = &d.block else { continue };
        if d.name.text == b"include" {
            let mut text = String::new();
            let mut seen = Vec::new();
            for item in &inner.items {
                let id = item.name.span.file;
                if !seen.contains(&id) {
                    seen.push(id);
                    text.push_str(&format!("include {}; ", quote(&name(id))));
                }
            }
            let s = d.name.span;
            edits.push(Edit { file: s.file, start: s.start, end: d.end.end, text });
        }
        includes(inner, name, edits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::KNOBS;

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
    fn nothing_of_the_live_server_is_left() {
        let dir = tempfile::tempdir().expect("dir");
        std::fs::create_dir(dir.path().join("sub")).expect("made");
        let conf = dir.path().join("nginx.conf");
        let main = "pid /run/nginx.pid;\nevents {}\nhttp { access_log /var/log/nginx/a.log combined; access_log \
                    /var/log/nginx/$host.log; access_log syslog:server=10.0.0.2:514,tag=x,severity=info combined; include \
                    sub/*; }\n";
        std::fs::write(&conf, main).expect("written");
        let server = "server { listen 80; listen [::]:80 ipv6only=on; location / { proxy_pass http://10.0.0.1; } location /a { \
             set $b 1; proxy_pass http://10.0.0.$b:80$request_uri; } location ~ \\.php$ { fastcgi_pass unix:/run/php.sock; } \
             location /d { dav_methods PUT DELETE; } location /s { proxy_store on; \
             proxy_pass http://10.0.0.1/; } }";
        std::fs::write(dir.path().join("sub/a"), server).expect("written");
        let source = Source::read(&conf).expect("parses");
        let place = Place {
            dir: dir.path().join("copy"),
            prefix: "/usr/share/nginx".into(),
            upstream: Some(4242),
            root: None,
        };
        let copy = Copy::new(&source, place).expect("made");
        let view = source.view();
        let knobs: Vec<Edit> =
            KNOBS.iter().flat_map(|k| view.edits(k, &crate::knobs::level_text(k.levels[0], 2))).collect();
        for edits in [Vec::new(), knobs] {
            copy.write(&source, &edits).expect("written");
            let all: String = ["0.conf", "1.conf"]
                .map(|f| std::fs::read_to_string(dir.path().join("copy/conf").join(f)).expect("there"))
                .concat();
            for live in [
                "/var/log",
                "/run/nginx.pid",
                "listen 80",
                "[::]",
                "10.0.0.",
                "ipv6only",
                "sub/*",
                "/run/php",
                "PUT",
                "store on",
            ] {
                assert!(!all.contains(live), "{live}: {all}");
            }
            assert!(all.contains("http://127.0.0.1:4242"), "{all}");
            assert!(
                all.contains("_var_log_nginx_$host.log") && all.contains(",tag=x,severity=info"),
                "{all}"
            );
            Source::read(&dir.path().join("copy/conf/0.conf")).unwrap_or_else(|e| panic!("{e}: {all}"));
        }
        assert_eq!(copy.ports.len(), 2);
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
    fn what_only_nginx_knows_is_no_obstacle() {
        let dir = tempfile::tempdir().expect("dir");
        let conf = dir.path().join("nginx.conf");
        let text = "load_module modules/ngx_http_image_filter_module.so;\nevents {}\nstream {\n server { listen 127.0.0.1:5; } \
                    # }\n}\nhttp { more_set_headers \"A: b\"; server { listen 80; root /srv; image_filter off; } }\n";
        std::fs::write(&conf, text).expect("written");
        assert!(Source::read(&conf).is_err());
        let source = Source::of_nginx(&conf).expect("parses");
        let (prefix, dir) = ("/usr/share/nginx".into(), dir.path().join("copy"));
        let copy = Copy::new(&source, Place { dir, prefix, upstream: None, root: None }).expect("made");
        let new = std::fs::read_to_string(copy.write(&source, &[]).expect("written")).expect("there");
        for part in [
            "/usr/share/nginx/modules/ngx_http_image",
            "more_set_headers \"A: b\";",
            "image_filter off;",
            "127.0.0.1:",
        ] {
            assert!(new.contains(part), "{part}: {new}");
        }
        assert!(!new.contains("stream") && !new.contains("127.0.0.1:5;"), "{new}");
        assert_eq!(copy.ports.keys().collect::<Vec<_>>(), ["0.0.0.0:80"]);
    }
}
