//! An `upstream` for each host that `proxy_pass` names.

use super::{keeping_needs, replace_argument};
use forebay_copy::patch::{Edit, View};
use forebay_copy::scene::NEW_UPSTREAM;

/// Makes an `upstream` of each host that `proxy_pass` names, so that connections to it are kept.
pub(super) fn new_upstreams(view: &View<'_>, level: &str) -> Vec<Edit> {
    let Some(http) = view.child(None, "http") else { return Vec::new() };
    let known: Vec<String> = view.all("upstream").filter_map(|u| view.args(u).first().cloned()).collect();
    let mut hosts: Vec<String> = Vec::new();
    let mut edits = Vec::new();
    for pass in view.all("proxy_pass").filter(|p| view.within(*p, http)) {
        let target = view.args(pass).first().cloned().unwrap_or_default();
        let Some(host) = literal_host(&target).filter(|h| known.iter().all(|k| k != h)) else { continue };
        let number = hosts.iter().position(|h| h == host).unwrap_or(hosts.len());
        if number == hosts.len() {
            hosts.push(host.to_owned());
        }
        let path = target.strip_prefix("http://").and_then(|t| t.strip_prefix(host)).unwrap_or_default();
        edits.extend(replace_argument(view, pass, 0, format!("http://{NEW_UPSTREAM}{}{path}", number + 1)));
        edits.extend(keeping_needs(view, pass));
        edits.extend(host_field(view, pass, host));
    }
    for (n, host) in hosts.iter().enumerate() {
        // A server without a port would have another default than proxy_pass.
        let port = if host.contains(':') { "" } else { ":80" };
        let block = format!("upstream {NEW_UPSTREAM}{} {{ server {host}{port}; {level} }}", n + 1);
        edits.push(view.insert(Some(http), &block));
    }
    merged(edits)
}

/// Returns the host of a target without variables, plain HTTP over TCP.
fn literal_host(target: &str) -> Option<&str> {
    let rest = target.strip_prefix("http://")?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-~:/".contains(&b);
    let host = rest.split('/').next().filter(|h| !h.is_empty() && !h.starts_with("unix:"))?;
    rest.bytes().all(plain).then_some(host)
}

/// Sends the `Host` that was sent before: by default it is what `proxy_pass` names.
fn host_field(view: &View<'_>, pass: usize, host: &str) -> Option<Edit> {
    let location = view.nodes[pass].parent;
    let fields = view.effective(location, "proxy_set_header").map(|n| view.nodes[n].parent);
    let block = fields.unwrap_or(location);
    let sets_host = |n: usize| {
        view.name(n) == "proxy_set_header"
            && view.args(n).first().is_some_and(|a| a.eq_ignore_ascii_case("host"))
    };
    // Fields of a block around it are for other locations too, whose host is another one.
    (block == location && !view.children(block).any(sets_host))
        .then(|| view.insert(block, &format!("proxy_set_header Host {host};")))
}

/// Joins insertions at one place, of which [`forebay_copy::patch::apply`] would keep all, and drops those that are there twice.
fn merged(edits: Vec<Edit>) -> Vec<Edit> {
    let mut out: Vec<Edit> = Vec::new();
    for e in edits {
        if !out.contains(&e) {
            out.push(e);
        }
    }
    out
}
