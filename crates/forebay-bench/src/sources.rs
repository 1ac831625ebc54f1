//! Sources of requests: lists, access logs, an nginx.conf.

use crate::Error;
use crate::load::Wanted;
use crate::url::{Scheme, Url};
use forebay_conf::files::Files;
use forebay_conf::tree::Block;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Most requests that are taken from a log or a folder.
const MOST: usize = 100_000;

fn read(path: &Path) -> Result<String, Error> {
    let bytes = std::fs::read(path).map_err(Error::io(path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a file with `[METHOD] URL [WEIGHT]` lines; empty ones and those that begin with `#` are skipped.
///
/// # Errors
/// A line that is none of these, with its number.
pub fn list(path: &Path) -> Result<Vec<Wanted>, Error> {
    let mut all = Vec::new();
    for (number, line) in read(path)?.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let bad = |why: String| Error::Usage(format!("{}:{}: {why}", path.display(), number + 1));
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let method =
            words.first().filter(|w| w.bytes().all(|b| b.is_ascii_uppercase())).map(|w| (*w).to_owned());
        if method.is_some() && words.len() > 1 {
            words.remove(0);
        }
        let (url, weight) = match words.as_slice() {
            [url] => (url, 1),
            [url, weight] => {
                (url, weight.parse().map_err(|_| bad(format!("weight \"{weight}\" is not a number")))?)
            }
            _ => return Err(bad("expected [METHOD] URL [WEIGHT]".into())),
        };
        let mut wanted = Wanted::get(Url::parse(url).map_err(|e| bad(e.to_string()))?);
        wanted.weight = weight;
        wanted.method = method.unwrap_or(wanted.method);
        all.push(wanted);
    }
    some(all, path)
}

fn some(all: Vec<Wanted>, path: &Path) -> Result<Vec<Wanted>, Error> {
    if all.is_empty() { Err(Error::Usage(format!("{}: no request in it", path.display()))) } else { Ok(all) }
}

/// Reads an access log in combined or common format: GET and HEAD requests, each as often as it is in the log.
/// The requests are sent to `base`.
///
/// # Errors
/// The log has no such request.
pub fn access_log(path: &Path, base: &Url) -> Result<Vec<Wanted>, Error> {
    let mut all: Vec<Wanted> = Vec::new();
    let mut known: HashMap<(String, String), usize> = HashMap::new();
    for line in read(path)?.lines() {
        let Some((method, target)) = log_request(line) else { continue };
        let key = (method.to_owned(), target.to_owned());
        if let Some(at) = known.get(&key).copied() {
            if let Some(wanted) = all.get_mut(at) {
                wanted.weight += 1;
            }
            continue;
        }
        if all.len() == MOST {
            continue;
        }
        known.insert(key, all.len());
        let url = Url { path: target.to_owned(), ..base.clone() };
        all.push(Wanted { method: method.to_owned(), ..Wanted::get(url) });
    }
    some(all, path)
}

/// Reads method and target of a line like `1.2.3.4 - - [date] "GET /a HTTP/1.1" 200 ...`.
fn log_request(line: &str) -> Option<(&str, &str)> {
    let request = line.split('"').nth(1)?;
    let mut words = request.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let safe = matches!(method, "GET" | "HEAD")
        && target.starts_with('/')
        && target.bytes().all(|b| b > b' ' && b != 0x7f);
    safe.then_some((method, target))
}

/// Reads the servers of an nginx.conf on this machine, each with the files below its `root` (100 at most).
///
/// # Errors
/// A configuration that cannot be read, or without a server that could be asked.
pub fn nginx_conf(path: &Path) -> Result<Vec<Wanted>, Error> {
    let mut files = Files::disk();
    let path = std::path::absolute(path).map_err(Error::io(path.display()))?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let parsed = forebay_conf::parse::parse(&path, "", dir, &mut files);
    if let Some(error) = parsed.fatal() {
        return Err(Error::Usage(files.render(error)));
    }
    let mut all = Vec::new();
    for http in block(&parsed.tree.root, "http") {
        for server in block(http, "server") {
            servers_files(http, server, dir, &mut all);
        }
    }
    some(all, &path)
}

fn block<'a>(within: &'a Block, name: &'a str) -> impl Iterator<Item = &'a Block> {
    within.iter().filter(move |d| d.name.text == name.as_bytes()).filter_map(|d| d.block.as_ref())
}

fn values(within: &Block, name: &str) -> Vec<Vec<String>> {
    let found = within.iter().filter(|d| d.name.text == name.as_bytes());
    found.map(|d| d.args.iter().map(|w| w.as_str().into_owned()).collect()).collect()
}

/// Adds the files of a server.
fn servers_files(http: &Block, server: &Block, dir: &Path, all: &mut Vec<Wanted>) {
    let root = values(server, "root")
        .into_iter()
        .chain(values(http, "root"))
        .next()
        .and_then(|r| r.into_iter().next());
    let root: PathBuf = dir.join(root.unwrap_or_else(|| "html".into()));
    let mut paths = Vec::new();
    walk(&root, &root, &mut paths);
    if paths.is_empty() {
        paths.push("/".to_owned());
    }
    let Some(base) = address_of(server) else { return };
    let name = plain_name(server);
    for path in paths {
        let mut wanted = Wanted::get(Url { path, ..base.clone() });
        wanted.fields.extend(name.clone().map(|name| ("Host".into(), name)));
        all.push(wanted);
    }
}

/// Returns the first name of a server that is no pattern.
fn plain_name(server: &Block) -> Option<String> {
    let is_plain = |n: &String| {
        !n.is_empty() && n != "_" && !n.starts_with(['~', '*', '.']) && !n.ends_with('*') && !n.contains('$')
    };
    values(server, "server_name").into_iter().flatten().find(is_plain)
}

/// Returns the host and the port of a `listen`; the host may be `*`.
fn host_and_port(address: &str, tls: bool) -> (&str, &str) {
    match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ if address.bytes().all(|b| b.is_ascii_digit()) => ("*", address),
        _ => (address, if tls { "443" } else { "80" }),
    }
}

/// Returns where the first `listen` of a server is reached.
fn address_of(server: &Block) -> Option<Url> {
    let listens = values(server, "listen");
    let default = vec!["80".into()];
    let listen = listens.first().unwrap_or(&default);
    let address = listen.first()?;
    let tls = listen.iter().any(|w| w == "ssl");
    if let Some(socket) = address.strip_prefix("unix:") {
        let socket = Some(socket.into());
        return Some(Url {
            scheme: Scheme::Http,
            host: "localhost".into(),
            port: 0,
            path: "/".into(),
            socket,
        });
    }
    let (host, port) = host_and_port(address, tls);
    let host = if matches!(host, "*" | "0.0.0.0" | "[::]") { "127.0.0.1" } else { host };
    let scheme = if tls { "https" } else { "http" };
    Url::parse(&format!("{scheme}://{host}:{port}/")).ok()
}

fn walk(root: &Path, dir: &Path, paths: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type());
        match kind {
            Ok(kind) if kind.is_dir() => walk(root, &path, paths),
            Ok(kind) if kind.is_file() && paths.len() < 100 => paths.extend(plain_path(root, &path)),
            _ => {}
        }
    }
}

/// Returns the path of a file in URLs, unless it has characters that need escaping.
fn plain_path(root: &Path, file: &Path) -> Option<String> {
    let text = file.strip_prefix(root).ok()?.to_str()?;
    let is_plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-~".contains(&b));
    is_plain.then(|| format!("/{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_with_weights() {
        let dir = tempfile::tempdir().expect("temporary");
        let file = dir.path().join("urls");
        std::fs::write(&file, "# mix\nhttp://127.0.0.1/a 3\n\nPOST http://127.0.0.1/b\n").expect("write");
        let all = list(&file).expect("good");
        assert_eq!(
            all.iter().map(|w| (w.method.as_str(), w.weight)).collect::<Vec<_>>(),
            [("GET", 3), ("POST", 1)]
        );
        for bad in ["http://a/ x", "ftp://a/", "a b c d", ""] {
            std::fs::write(&file, bad).expect("write");
            assert!(list(&file).is_err(), "{bad}");
        }
    }

    #[test]
    fn logs_keep_their_mix() {
        let dir = tempfile::tempdir().expect("temporary");
        let file = dir.path().join("access.log");
        let line = |request: &str| {
            format!("1.2.3.4 - - [10/Oct/2026:13:55:36 +0000] \"{request}\" 200 5 \"-\" \"x\"\n")
        };
        let text: String = [
            "GET /a HTTP/1.1",
            "GET /b?x HTTP/1.1",
            "GET /a HTTP/1.1",
            "POST /c HTTP/1.1",
            "\\x16",
            "HEAD /a HTTP/1.0",
        ]
        .iter()
        .map(|r| line(r))
        .collect();
        std::fs::write(&file, text).expect("write");
        let all = access_log(&file, &Url::parse("http://127.0.0.1:81/").expect("good")).expect("good");
        let got: Vec<_> = all.iter().map(|w| (w.method.as_str(), w.url.to_string(), w.weight)).collect();
        assert_eq!(
            got,
            [
                ("GET", "http://127.0.0.1:81/a".to_owned(), 2),
                ("GET", "http://127.0.0.1:81/b?x".to_owned(), 1),
                ("HEAD", "http://127.0.0.1:81/a".to_owned(), 1)
            ]
        );
    }

    #[test]
    fn configurations_name_servers_and_files() {
        let dir = tempfile::tempdir().expect("temporary");
        std::fs::create_dir_all(dir.path().join("www/css")).expect("folder");
        std::fs::write(dir.path().join("www/index.html"), "x").expect("write");
        std::fs::write(dir.path().join("www/css/a.css"), "x").expect("write");
        let conf = dir.path().join("nginx.conf");
        let text = "events {} http { root www; server { listen 8081; server_name _ a.example; } \
                    server { listen 127.0.0.1:8443 ssl; root /nonexistent; } }";
        std::fs::write(&conf, text).expect("write");
        let all = nginx_conf(&conf).expect("good");
        let urls: Vec<String> = all.iter().map(|w| w.url.to_string()).collect();
        assert_eq!(
            urls,
            [
                "http://127.0.0.1:8081/css/a.css",
                "http://127.0.0.1:8081/index.html",
                "https://127.0.0.1:8443/"
            ]
        );
        assert_eq!(all[0].fields, [("Host".to_owned(), "a.example".to_owned())]);
        std::fs::write(&conf, "bogus;").expect("write");
        assert!(nginx_conf(&conf).is_err());
    }
}
