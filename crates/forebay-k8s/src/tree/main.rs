//! The main file: settings of the ConfigMap, and the includes of the other files.

mod forwarded;
mod http;
mod stream;

pub(crate) use http::is_pattern;
pub(crate) use stream::{TLS_HERE, group as stream_group};

use super::node;
use crate::groups::{Servers, Spec};
use crate::ingress::Globals;
use crate::model::CertificateFiles;
use forebay_conf::Node;
use std::sync::Arc;

/// Least `worker_rlimit_nofile`: with few more than the files that the server has open, it starts and answers nothing.
const LEAST_OPEN_FILES: i64 = 1024;

/// Parts of the main file.
pub struct Main<'a> {
    /// Settings and options.
    pub globals: &'a Globals,
    /// Certificate of hosts without one.
    pub certificate: Option<CertificateFiles>,
    /// A host keeps answers of an authentication service.
    pub auth_cache: bool,
    /// Ports of the stream block.
    pub stream: &'a [StreamPort],
    /// Hosts whose TLS sessions pass as they are, and their groups.
    pub passthrough: Vec<(String, String)>,
    /// Directives of the snippets of Ingresses for the stream block.
    pub stream_snippets: Vec<Node>,
    /// Path of a file of the stream block.
    pub stream_file: Option<&'a str>,
}

/// Port of the stream block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPort {
    /// Port to listen at; 0: none, the entry is for its group alone.
    pub port: u16,
    /// It is one of UDP.
    pub udp: bool,
    /// Clients send a PROXY header.
    pub decode_proxy: bool,
    /// Servers get a PROXY header.
    pub encode_proxy: bool,
    /// Group.
    pub spec: Arc<Spec>,
    /// Name of the group in the stream block.
    pub group: String,
    /// Servers of the group.
    pub servers: Servers,
}

/// Makes the directives of the main file.
pub fn main(parts: &Main<'_>) -> Vec<Node> {
    let globals = parts.globals;
    let s = &globals.settings;
    let mut nodes = globals.options.main.clone();
    let workers = s.get("worker-processes");
    let workers = if workers.parse::<u16>().is_ok_and(|n| n > 0) { workers } else { "auto" };
    nodes.push(node("worker_processes", [workers]));
    if let Some(affinity) = s
        .some("worker-cpu-affinity")
        .filter(|a| *a == "auto" || a.bytes().all(|b| matches!(b, b'0' | b'1' | b' ')))
    {
        nodes.push(node("worker_cpu_affinity", affinity.split_ascii_whitespace()));
    }
    if s.number("max-worker-open-files") > 0 {
        let files = s.number("max-worker-open-files").max(LEAST_OPEN_FILES);
        nodes.push(node("worker_rlimit_nofile", [files.to_string()]));
    }
    nodes.push(node("worker_shutdown_timeout", [s.get("worker-shutdown-timeout")]));
    nodes.push(node("error_log", ["stderr", s.get("error-log-level")]));
    let connections = s.number("max-worker-connections").clamp(64, 10_000_000).to_string();
    nodes.push(Node::new("events").block(vec![node("worker_connections", [connections])]));
    nodes.push(Node::new("http").block(http::block(parts)));
    nodes.extend(stream::block(parts));
    super::merge::join(nodes, &globals.snippets.main)
}
