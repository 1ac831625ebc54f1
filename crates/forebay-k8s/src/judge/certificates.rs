//! Certificates and keys, judged by a server that has nothing else.

use super::{Build, Judge, Refusal};
use crate::objects::Secret;
use forebay_conf::Node;
use std::path::Path;
use std::sync::Arc;

/// Longest file of a certificate, key or list that is judged, bytes. An object of the API server has 1.5 MB at most.
const LONGEST: usize = 1 << 20;

/// Names of the files within the configuration that is built.
const CHAIN: &str = "judged.crt";
const KEY: &str = "judged.key";
const AUTHORITIES: &str = "judged.ca";
const REVOKED: &str = "judged.crl";

/// Returns `true` if a text has a certificate in PEM, be it a broken one.
pub fn is_list_of_certificates(bytes: &[u8]) -> bool {
    bytes.windows(11).any(|w| w == b"-----BEGIN ")
}

impl Judge {
    /// Judges the certificates of a Secret. Returns it without the parts that no server can use.
    pub fn secret(&self, secret: Arc<Secret>) -> Arc<Secret> {
        if !self.judges() {
            return secret;
        }
        let part = |name: &str| secret.data.get(name).filter(|bytes| is_list_of_certificates(bytes));
        let mut refused = Vec::new();
        if let (Some(chain), Some(key)) = (part("tls.crt"), part("tls.key"))
            && let Some(why) = self.certificate(chain, key)
        {
            refused.push(("tls.crt", why));
        }
        if let Some(list) = part("ca.crt") {
            match (self.authorities(list), secret.data.get("ca.crl").filter(|list| !list.is_empty())) {
                (Some(why), _) => refused.push(("ca.crt", why)),
                (None, Some(revoked)) if !is_list_of_certificates(revoked) => {
                    refused.push(("ca.crl", "it is no PEM".into()));
                }
                (None, Some(revoked)) => {
                    refused.extend(self.revoked(list, revoked).map(|why| ("ca.crl", why)));
                }
                (None, None) => {}
            }
        }
        if refused.is_empty() {
            return secret;
        }
        let mut usable = Secret::clone(&secret);
        refused.iter().for_each(|(name, _)| drop(usable.data.remove(*name)));
        usable.refused = refused.into_iter().collect();
        Arc::new(usable)
    }

    /// Returns why a server cannot use a chain of certificates with its key. `None`: it can.
    pub fn certificate(&self, chain: &[u8], key: &[u8]) -> Option<Arc<str>> {
        let lines = [("ssl_certificate", CHAIN), ("ssl_certificate_key", KEY)];
        self.files("certificate", &[(CHAIN, chain), (KEY, key)], &[&lines])
    }

    /// Returns why a server cannot use a list of authorities (`ca.crt`). `None`: it can.
    pub fn authorities(&self, list: &[u8]) -> Option<Arc<str>> {
        self.files("authorities", &[(AUTHORITIES, list)], &[&CLIENTS, &UPSTREAM])
    }

    /// Returns why a server cannot use a list of revoked certificates with its authorities. `None`: it can.
    pub fn revoked(&self, authorities: &[u8], list: &[u8]) -> Option<Arc<str>> {
        let lines = [CLIENTS.as_slice(), &[("ssl_crl", REVOKED)]].concat();
        self.files("revoked", &[(AUTHORITIES, authorities), (REVOKED, list)], &[&lines])
    }

    /// Judges files by servers of some lines. Returns the first error. `kind` separates files of different meanings.
    fn files(&self, kind: &'static str, files: &[(&str, &[u8])], servers: &[&[Line]]) -> Option<Arc<str>> {
        if files.iter().any(|(_, bytes)| bytes.len() > LONGEST) {
            return Some(format!("it is longer than {LONGEST} bytes").into());
        }
        let contents: Vec<&[u8]> = files.iter().map(|(_, bytes)| *bytes).collect();
        self.once(kind, &contents, |build| servers.iter().find_map(|lines| refusal(build, lines, files)))
    }
}

/// Directive and its word.
type Line = (&'static str, &'static str);

/// Lines for a list of authorities of clients.
const CLIENTS: [Line; 3] =
    [("ssl_reject_handshake", "on"), ("ssl_client_certificate", AUTHORITIES), ("ssl_verify_client", "on")];

/// Lines for a list of authorities of upstreams.
const UPSTREAM: [Line; 4] = [
    ("ssl_reject_handshake", "on"),
    ("proxy_ssl_trusted_certificate", AUTHORITIES),
    ("proxy_ssl_verify", "on"),
    ("proxy_pass", "https://127.0.0.1:1"),
];

/// Builds a server of these lines and files. Returns its first error, in which no file is named.
fn refusal(build: &dyn Build, lines: &[Line], files: &[(&str, &[u8])]) -> Option<String> {
    let mut server = vec![Node::new("listen").args(["127.0.0.1:1", "ssl"])];
    let is_of_location = |name: &str| name == "proxy_pass";
    server.extend(lines.iter().filter(|(n, _)| !is_of_location(n)).map(|(n, word)| Node::new(*n).arg(*word)));
    let inner: Vec<Node> =
        lines.iter().filter(|(n, _)| is_of_location(n)).map(|(n, word)| Node::new(*n).arg(*word)).collect();
    if !inner.is_empty() {
        server.push(Node::new("location").arg("/").block(inner));
    }
    let main = [
        Node::new("events").block(Vec::new()),
        Node::new("http").block(vec![Node::new("server").block(server)]),
    ];
    // Made of words of this file alone.
    let main = forebay_conf::print(&main).unwrap_or_default();
    let of = |(path, bytes): &(&str, &[u8])| (Arc::from(Path::new(path)), Arc::from(*bytes));
    let all: super::Files =
        std::iter::once(&(crate::translate::MAIN, main.as_slice())).chain(files).map(of).collect();
    build.errors(&all).into_iter().next().map(shown)
}

/// Returns the text of an error without the names of files that nobody has.
fn shown(refusal: Refusal) -> String {
    let mut text = refusal.message;
    for (name, instead) in
        [(CHAIN, "tls.crt"), (KEY, "tls.key"), (AUTHORITIES, "ca.crt"), (REVOKED, "ca.crl")]
    {
        while let Some(end) = text.find(name) {
            // The directory before the name.
            let start = text.get(..end).and_then(|t| t.rfind(['"', ' ', '(']).map(|i| i + 1)).unwrap_or(0);
            text.replace_range(start..end + name.len(), instead);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_key_of_the_secret() {
        let refusal = Refusal::plain("cannot load certificate \"/x/judged.crt\": (fopen(/x/judged.key, r))");
        assert_eq!(shown(refusal), "cannot load certificate \"tls.crt\": (fopen(tls.key, r))");
    }
}
