//! The files of a translation.

use super::hosts::{HostPart, Hosts};
use super::{MAIN, Translation, gateways, stream};
use crate::ingress::{self, Globals};
use crate::model::{CertificateFiles, File};
use crate::objects::{Kind, Metadata};
use crate::options::Options;
use crate::problem::Problem;
use crate::tree;
use crate::view::View;
use forebay_conf::Node;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What the main file is made of, beside what all parts share.
#[derive(Clone, PartialEq)]
struct Key {
    certificate: Option<CertificateFiles>,
    auth_cache: bool,
    stream: stream::Parts,
    gateway_stream: bool,
}

impl Key {
    /// Makes the directives of the main file.
    fn nodes(&self, globals: &Globals) -> Vec<Node> {
        tree::main(&tree::Main {
            globals,
            certificate: self.certificate.clone(),
            auth_cache: self.auth_cache,
            stream: &self.stream.ports,
            passthrough: self.stream.passthrough.clone(),
            stream_snippets: self.stream.snippets.clone(),
            stream_file: self.gateway_stream.then_some(gateways::STREAM_FILE),
        })
    }
}

/// Parts of a translation that have files.
pub(super) struct Parts<'a> {
    pub(super) globals: &'a Globals,
    pub(super) hosts: &'a Hosts,
    /// Files of groups with their paths.
    pub(super) groups: &'a BTreeMap<String, Arc<[u8]>>,
    pub(super) gateways: &'a gateways::Kept,
    /// Certificate of hosts without one.
    pub(super) certificate: Option<CertificateFiles>,
    pub(super) stream: stream::Parts,
}

/// Files that are kept between translations.
#[derive(Default)]
pub(super) struct Kept {
    main: Option<(Key, Arc<[u8]>)>,
    /// Certificates and the like, and the number of hosts that name each.
    others: BTreeMap<Arc<Path>, (Arc<[u8]>, usize)>,
    /// Number of hosts that keep answers of an authentication service.
    auth_caches: usize,
}

impl Kept {
    /// Takes the files of a host in place of those that it had.
    pub(super) fn replace(&mut self, old: Option<&HostPart>, new: Option<&HostPart>) {
        for (path, bytes) in new.iter().flat_map(|part| &part.files) {
            let entry = self.others.entry(path.clone()).or_insert_with(|| (bytes.clone(), 0));
            entry.0 = bytes.clone();
            entry.1 += 1;
        }
        for (path, _) in old.iter().flat_map(|part| &part.files) {
            if let Some(entry) = self.others.get_mut(path) {
                entry.1 = entry.1.saturating_sub(1);
                if entry.1 == 0 {
                    self.others.remove(path);
                }
            }
        }
        self.auth_caches += usize::from(new.is_some_and(|p| p.auth_cache));
        self.auth_caches = self.auth_caches.saturating_sub(usize::from(old.is_some_and(|p| p.auth_cache)));
    }

    /// Collects all files.
    pub(super) fn collect(&mut self, parts: Parts<'_>, out: &mut Translation) {
        let Parts { globals, hosts, groups, gateways, .. } = parts;
        let gateway_stream = gateways.stream_text();
        let key = Key {
            certificate: parts.certificate,
            auth_cache: self.auth_caches > 0 || gateways.keeps_answers(),
            stream: parts.stream,
            gateway_stream: gateway_stream.is_some(),
        };
        let main = self.main(globals, &key, &mut out.problems);
        out.files.push((Path::new(MAIN).into(), main));
        out.files.extend(groups.iter().map(|(path, bytes)| (Path::new(path).into(), bytes.clone())));
        out.files.extend(hosts.parts().map(|part| (part.path.clone(), part.bytes.clone())));
        out.files.extend(self.others.iter().map(|(path, (bytes, _))| (path.clone(), bytes.clone())));
        out.files.extend(gateways.text().map(|bytes| (Path::new(gateways::FILE).into(), bytes)));
        out.files.extend(gateway_stream.map(|bytes| (Path::new(gateways::STREAM_FILE).into(), bytes)));
        out.files.extend(gateways.files());
        let default = key.certificate.iter().flat_map(|c| [&c.chain, &c.key]);
        for file in default.filter(|f| !self.others.contains_key(Path::new(&f.path))) {
            out.files.push((Path::new(&file.path).into(), file.bytes.clone()));
        }
        out.files.extend(of_tickets(globals));
    }

    fn main(&mut self, globals: &Globals, key: &Key, problems: &mut Vec<Problem>) -> Arc<[u8]> {
        if let Some((_, bytes)) = self.main.as_ref().filter(|(old, _)| old == key) {
            return bytes.clone();
        }
        match forebay_conf::print(&key.nodes(globals)) {
            Ok(bytes) => {
                let bytes: Arc<[u8]> = match self.main.take().filter(|(_, old)| **old == *bytes) {
                    Some((_, old)) => old,
                    None => bytes.into(),
                };
                self.main = Some((key.clone(), bytes.clone()));
                bytes
            }
            Err(error) => {
                let name = globals.options.config_map.clone().unwrap_or_default();
                let metadata = Metadata { namespace: name.namespace, name: name.name, ..Metadata::default() };
                let problem = Problem::new(Kind::ConfigMap, &metadata, "data", error.to_string());
                problems.push(problem.reason("InvalidValue"));
                // Something that works, if there has been anything.
                self.main.as_ref().map(|(_, bytes)| bytes.clone()).unwrap_or_default()
            }
        }
    }
}

/// Returns the certificate of hosts without one.
pub(super) fn default_certificate(view: &View<'_>, options: &Options) -> Option<CertificateFiles> {
    let secret = options
        .default_ssl_certificate
        .as_ref()
        .and_then(|key| ingress::certificate_files(key, &*view.secret(key)?).ok());
    let made = options.made_certificate.as_ref().map(|c| CertificateFiles {
        chain: File { path: "secrets/default.crt".into(), bytes: c.chain.clone() },
        key: File { path: "secrets/default.key".into(), bytes: c.key.clone() },
    });
    secret.or(made)
}

/// Returns the files of a certificate with their paths.
pub(super) fn of_certificate(certificate: Option<&CertificateFiles>) -> crate::judge::Files {
    let files = certificate.into_iter().flat_map(|c| [&c.chain, &c.key]);
    files.map(|f| (Path::new(&f.path).into(), f.bytes.clone())).collect()
}

/// Returns the files of the keys of session tickets.
pub(super) fn of_tickets(globals: &Globals) -> impl Iterator<Item = (Arc<Path>, Arc<[u8]>)> {
    let keys = globals.ticket_keys.iter().enumerate();
    keys.map(|(index, key)| (Path::new(&ingress::ticket_path(index)).into(), key.clone()))
}
