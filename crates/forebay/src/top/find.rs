//! Finds the locations with `dashboard` or `api` in a configuration.

use super::client::{Address, Target};
use crate::cli::Options;
use forebay_conf::files::Files;
use forebay_conf::parse::parse;
use forebay_conf::tree::{Block, Directive};
use std::path::{Path, PathBuf};

/// Returns the places of a configuration's locations, plain ones on this machine first.
///
/// # Errors
/// The configuration cannot be read.
pub(super) fn targets(options: &Options) -> Result<Vec<Target>, String> {
    let (environment, _) = options.places();
    let mut files = Files::disk();
    let directory = environment.conf_path.parent().unwrap_or(Path::new("/"));
    let parsed = parse(&environment.conf_path, &environment.globals, directory, &mut files);
    if parsed.tree.root.items.is_empty() {
        let why = parsed.errors.first().map_or_else(|| "it is empty".to_owned(), |e| files.render(e));
        return Err(format!("the configuration cannot be read: {why}"));
    }
    Ok(in_tree(&parsed.tree.root, &environment.prefix))
}

/// Returns the blocks of this name in a block.
fn blocks<'b>(block: &'b Block, name: &'static str) -> impl Iterator<Item = &'b Block> {
    block.iter().filter(move |d| d.name.text == name.as_bytes()).filter_map(|d| d.block.as_ref())
}

fn in_tree(root: &Block, prefix: &Path) -> Vec<Target> {
    let mut found = Vec::new();
    for server in blocks(root, "http").flat_map(|http| blocks(http, "server")) {
        let mut paths = Vec::new();
        locations(server, &mut paths);
        let listens = listens(server, prefix);
        let host = server.iter().find(|d| d.name.text == b"server_name").and_then(|d| d.args.first());
        let host = host.map(|word| word.as_str().into_owned());
        for path in paths {
            found.extend(listens.iter().map(|(address, tls)| Target {
                host: host_field(host.as_deref(), address),
                address: address.clone(),
                path: path.clone(),
                tls: *tls,
                // It is this machine, and the certificate is for another name.
                insecure: *tls,
            }));
        }
    }
    found.sort_by_key(|target| target.tls);
    found
}

/// Returns the name of a server that a request asks for. Patterns and the empty name are no names.
fn host_field(name: Option<&str>, address: &Address) -> String {
    match (name, address) {
        (Some(name), _)
            if !name.is_empty()
                && name != "_"
                && !name.contains(['*', '~', '$'])
                && !name.starts_with('.') =>
        {
            name.to_owned()
        }
        (_, Address::Host(host, port)) if host.contains(':') => format!("[{host}]:{port}"),
        (_, Address::Host(host, port)) => format!("{host}:{port}"),
        (_, Address::Inet(address)) => address.to_string(),
        (_, Address::Unix(_)) => "localhost".to_owned(),
    }
}

/// Adds the paths of locations that have the figures, also of those in locations.
fn locations(block: &Block, paths: &mut Vec<String>) {
    for d in block.iter().filter(|d| d.name.text == b"location") {
        let Some(inner) = &d.block else { continue };
        if inner.iter().any(|d| matches!(d.name.text.as_slice(), b"dashboard" | b"api")) {
            paths.extend(path(d));
        }
        locations(inner, paths);
    }
}

/// Returns the path of a prefix location.
fn path(d: &Directive) -> Option<String> {
    let words: Vec<_> = d.args.iter().map(|word| word.as_str()).collect();
    let path = match words.as_slice() {
        [path] => path,
        [kind, path] if kind == "^~" => path,
        _ => return None,
    };
    path.starts_with('/').then(|| path.clone().into_owned())
}

/// Returns the addresses of a server, with `true` for those with TLS.
fn listens(server: &Block, prefix: &Path) -> Vec<(Address, bool)> {
    let lines = server.iter().filter(|d| d.name.text == b"listen");
    let all: Vec<_> = lines
        .filter_map(|d| {
            let words: Vec<_> = d.args.iter().map(|word| word.as_str()).collect();
            let has = |word: &str| words.iter().any(|w| w == word);
            let (address, rest) = (words.first()?, !has("quic") && !has("proxy_protocol"));
            Some((self::address(address, prefix)?, has("ssl"))).filter(|_| rest)
        })
        .collect();
    if all.is_empty() { vec![(Address::Host("127.0.0.1".to_owned(), 80), false)] } else { all }
}

/// Reads an address of `listen`. A wildcard is reached at this machine's own address.
fn address(text: &str, prefix: &Path) -> Option<Address> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Some(Address::Unix(prefix.join(PathBuf::from(path))));
    }
    if let Ok(port) = text.parse() {
        return Some(Address::Host("127.0.0.1".to_owned(), port));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        _ => (text, 80),
    };
    let host = match host.trim_matches(['[', ']']) {
        "*" | "0.0.0.0" => "127.0.0.1",
        "::" => "::1",
        host => host,
    };
    Some(Address::Host(host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(conf: &str) -> Vec<String> {
        let mut files = Files::recorded([("/srv/nginx.conf", conf)]);
        let parsed = parse(Path::new("/srv/nginx.conf"), "", Path::new("/srv"), &mut files);
        let targets = in_tree(&parsed.tree.root, Path::new("/srv"));
        targets.iter().map(|t| format!("{t} {}", t.host)).collect()
    }

    #[test]
    fn plain_addresses_of_this_machine_come_first() {
        let conf = "events {} http { server { listen 443 ssl; listen [::]:8080; server_name a_b.test; location / { location ^~ /d/ { \
             dashboard; } } } server { listen unix:/run/x; server_name _; location /api { api; } location = /d { dashboard; } } \
             server { listen 81; location / { return 404; } } server { location /x { dashboard; } } }";
        assert_eq!(
            found(conf),
            [
                "http://::1:8080/d/ a_b.test",
                "/run/x:/api localhost",
                "http://127.0.0.1:80/x 127.0.0.1:80",
                "https://127.0.0.1:443/d/ a_b.test"
            ]
        );
        assert!(found("events {} http { server { location ~ x { api; } } }").is_empty());
    }
}
