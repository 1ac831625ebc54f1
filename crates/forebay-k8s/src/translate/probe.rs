//! Files that use the keys of the ConfigMap: the main file, and hosts of nobody that use as much as hosts can.

use super::{MAIN, groups, hosts};
use crate::groups::Spec;
use crate::ingress::{self, Globals, Members, Names, Use};
use crate::judge::Files;
use crate::model::CertificateFiles;
use crate::objects::{Ingress, Key, Objects, PortRef};
use crate::tree::{self, StreamPort};
use forebay_conf::Node;
use std::path::Path;
use std::sync::Arc;

/// Host of nobody: `.invalid` is reserved (RFC 2606).
const HOST: &str = "probe.forebay.invalid";

/// Makes the main file with what the caller has of it.
pub(super) fn main(
    globals: &Globals,
    certificate: Option<CertificateFiles>,
    stream: &[StreamPort],
    stream_snippets: &[Node],
    stream_file: Option<&str>,
) -> (Arc<Path>, Arc<[u8]>) {
    let nodes = tree::main(&tree::Main {
        globals,
        certificate,
        auth_cache: true,
        stream,
        passthrough: Vec::new(),
        stream_snippets: stream_snippets.to_vec(),
        stream_file,
    });
    let bytes = forebay_conf::print(&nodes).unwrap_or_else(|error| unprintable(&error.to_string()));
    (Path::new(MAIN).into(), bytes.into())
}

/// Returns a file that no server accepts, whose error has the reason.
fn unprintable(reason: &str) -> Vec<u8> {
    forebay_conf::print(&[Node::new("unprintable").arg(reason.get(..200).unwrap_or(reason))])
        .unwrap_or_default()
}

/// Makes all files that show whether the keys of the ConfigMap work.
pub(super) fn files(globals: &Globals, certificate: Option<CertificateFiles>) -> Files {
    let mut open = globals.clone();
    // Paths that answer 503 use nothing.
    open.settings.closed.clear();
    let globals = &open;
    let objects = Objects::new();
    let ports = [port(false), port(true)];
    let mut all = super::files::of_certificate(certificate.as_ref());
    all.push(main(globals, certificate, &ports, &[], None));
    let mut uses = Vec::new();
    for (name, members) in [(hosts::ANY, Members::new()), (HOST, members(globals))] {
        let part = hosts::make(&objects, globals, name, &members, &Names::default());
        let bytes = if part.bytes.is_empty() { unprintable("a host").into() } else { part.bytes };
        all.push((part.path, bytes));
        all.extend(part.files);
        uses.extend(part.uses);
    }
    let default = globals.default_backend.clone().map(Arc::new);
    let specs = uses.iter().map(|u: &Use| u.spec.clone()).chain(default);
    all.push(groups_of(specs, globals));
    all.extend(super::files::of_tickets(globals));
    all
}

/// Makes a file of groups, each without servers.
pub(super) fn groups_of(
    specs: impl IntoIterator<Item = Arc<Spec>>,
    globals: &Globals,
) -> (Arc<Path>, Arc<[u8]>) {
    let mut seen = std::collections::BTreeSet::new();
    let mut text = Vec::new();
    for spec in specs {
        let name = spec.name();
        if seen.insert(name.clone()) {
            text.extend(groups::block(&name, &spec, &Default::default(), globals));
        }
    }
    (Path::new("groups.conf").into(), text.into())
}

fn port(udp: bool) -> StreamPort {
    let service = Key::new("forebay", "probe");
    let port = PortRef { name: None, number: Some(80) };
    StreamPort {
        port: if udp { 2 } else { 1 },
        udp,
        decode_proxy: !udp,
        encode_proxy: !udp,
        spec: Arc::new(Spec { service, port, udp, ..Spec::default() }),
        group: format!("probe_{udp}"),
        servers: Default::default(),
    }
}

/// Annotations of the Ingresses of the host. Each uses other parts of a location.
const ANNOTATIONS: [&[(&str, &str)]; 4] = [
    &[],
    &[
        ("limit-rps", "5"),
        ("limit-rpm", "5"),
        ("limit-connections", "5"),
        ("enable-cors", "true"),
        ("affinity", "cookie"),
        ("custom-http-errors", "404"),
        ("rewrite-target", "/$1"),
        ("proxy-cookie-path", "/a /b"),
    ],
    &[("backend-protocol", "GRPC")],
    &[("backend-protocol", "FCGI")],
];

fn members(globals: &Globals) -> Members {
    let prefix = &globals.options.annotations_prefix;
    let one = |(index, annotations): (usize, &&[(&str, &str)])| {
        let annotations: serde_json::Map<String, serde_json::Value> =
            annotations.iter().map(|(name, value)| (format!("{prefix}/{name}"), (*value).into())).collect();
        let path = |path: String| {
            serde_json::json!({"path": path, "pathType": "Prefix",
                "backend": {"service": {"name": "probe", "port": {"number": 80}}}})
        };
        let ingress: Ingress = serde_json::from_value(serde_json::json!({
            "metadata": {"name": format!("probe{index}"), "namespace": "forebay", "annotations": annotations},
            "spec": {"tls": [{"hosts": [HOST]}],
                "rules": [{"host": HOST, "http": {"paths": [path(format!("/{index}"))]}}]}
        }))
        .ok()?;
        Some((Arc::new(ingress::parse(&Arc::new(ingress), 0, globals)), 0))
    };
    ANNOTATIONS.iter().enumerate().filter_map(one).collect()
}
