//! Ingresses to the model: which are ours, their hosts and paths, and the server of each host.

mod canary;
mod globals;
mod overlap;
mod policy;
mod route_policy;
mod rules;
mod server;
mod tls;

pub(crate) use globals::read as read_globals;
pub use overlap::overlaps;
pub(crate) use policy::{general_authority, general_networks};
pub(crate) use route_policy::{RoutePolicy, route_policy};
pub use rules::{is_host, uses_regex};
pub use server::{Made, Members, Names, Use, is_name};
pub(crate) use server::{server, upstream_name};
pub(crate) use tls::of_secret as certificate_files;

use crate::annotations::Annotations;
use crate::groups::{Spec, short_hash};
use crate::model::PathMatch;
use crate::objects::{Ingress, IngressClass, Key, Kind, Objects, PortRef};
use crate::options::Options;
use crate::problem::Problem;
use crate::settings::Settings;
use rules::{path_match, rules};
use server::{Making, balance, sticky};
use std::sync::Arc;

/// What all parts of a translation share.
#[derive(Clone, Debug)]
pub struct Globals {
    /// Options of the controller.
    pub options: Options,
    /// Keys of its ConfigMap.
    pub settings: Settings,
    /// Group of the default backend.
    pub default_backend: Option<Spec>,
    /// A certificate exists for hosts without one.
    pub default_certificate: bool,
    /// Groups in general.
    pub groups: crate::groups::Common,
    /// Variables that are set in each location because something refers to them.
    pub variables: Vec<&'static str>,
    /// Fields of requests to all upstreams.
    pub headers: Vec<(String, String)>,
    /// Fields of all answers.
    pub response_headers: Vec<(String, String)>,
    /// Snippets of the ConfigMap.
    pub snippets: Snippets,
    /// Names of groups and zones that the operator's directives define.
    pub taken: crate::taken::Taken,
    /// Addresses to listen at; empty: all.
    pub addresses: Vec<String>,
    /// Addresses of IPv6 are among them.
    pub ipv6: bool,
    /// Keys of session tickets. The first one encrypts.
    pub ticket_keys: Vec<Arc<[u8]>>,
    /// Keys `global-auth-*` are there, and one of them is not valid: the paths that they protect answer 503.
    pub broken_authority: bool,
}

impl Globals {
    /// Reports whether the ConfigMap asks for a firewall that Forebay does not have, so that nothing is served.
    pub(crate) fn lacks_firewall(&self) -> bool {
        self.settings.wants_firewall && !self.options.ignore_missing_waf
    }

    /// Reports whether `http-snippet` names a `shared_store`, so that `forebay.io/limit-scope: cluster` can be obeyed.
    pub(crate) fn shared_store(&self) -> bool {
        self.snippets.http.iter().any(|node| node.name == b"shared_store")
    }
}

/// Returns the path of a key of session tickets.
pub(crate) fn ticket_path(index: usize) -> String {
    format!("secrets/ticket.{index}.key")
}

/// Snippets of the ConfigMap, parsed.
#[derive(Clone, Debug, Default)]
pub struct Snippets {
    /// `main-snippet`.
    pub main: Vec<forebay_conf::Node>,
    /// `http-snippet`.
    pub http: Vec<forebay_conf::Node>,
    /// `server-snippet`.
    pub server: Vec<forebay_conf::Node>,
    /// `location-snippet`.
    pub location: Vec<forebay_conf::Node>,
    /// `stream-snippet`.
    pub stream: Vec<forebay_conf::Node>,
    /// `global-auth-snippet`.
    pub authority: Vec<forebay_conf::Node>,
}

/// Paths of an Ingress for one host.
#[derive(Clone, Debug, Default)]
pub struct HostRules {
    /// Host in lower case; `None`: all hosts without rules.
    pub host: Option<String>,
    /// Paths, their Services and their fields.
    pub paths: Vec<HostPath>,
}

/// Path of an Ingress.
#[derive(Clone, Debug)]
pub struct HostPath {
    /// Condition.
    pub path: PathMatch,
    /// The path is written with a slash at its end.
    pub slash: bool,
    /// Service and port; `None`: the backend is no Service.
    pub backend: Option<(String, PortRef)>,
    /// Path of the field.
    pub field: String,
}

/// An Ingress, read once.
#[derive(Debug)]
pub struct Parsed {
    /// The object.
    pub ingress: Arc<Ingress>,
    /// Namespace and name.
    pub key: Key,
    /// Valid annotations.
    pub annotations: Annotations,
    /// Hosts and paths.
    pub rules: Vec<HostRules>,
    /// What was refused so far.
    pub problems: Vec<Problem>,
    /// It only adds alternatives to the paths of others.
    pub canary: bool,
    /// Directives of its snippet for the stream block.
    pub stream_snippet: Vec<forebay_conf::Node>,
    /// Number of this version of the object in the set.
    pub revision: u64,
}

impl Parsed {
    /// Returns the same Ingress with other annotations, and without the problems of its own.
    pub(crate) fn with(&self, annotations: Annotations) -> Parsed {
        Parsed {
            ingress: self.ingress.clone(),
            key: self.key.clone(),
            annotations,
            rules: self.rules.clone(),
            problems: Vec::new(),
            canary: self.canary,
            stream_snippet: Vec::new(),
            revision: self.revision,
        }
    }

    /// Makes a problem of the Ingress.
    pub fn problem(&self, field: impl Into<String>, text: impl Into<String>) -> Problem {
        Problem::new(Kind::Ingress, &self.ingress.metadata, field, text)
    }

    /// Makes a problem of an annotation, at a place in its value.
    pub fn annotation_problem(&self, name: &str, text: impl Into<String>) -> Problem {
        let full = self.annotation_name(name);
        self.problem(format!("metadata.annotations[{full}]"), text)
    }

    /// Returns the name of an annotation as it is written, with its prefix.
    fn annotation_name(&self, name: &str) -> String {
        let names = self.ingress.metadata.annotations.keys();
        let row = crate::annotations::row(name);
        let same = |full: &&String| {
            let short = full.split_once('/').map(|(_, short)| short);
            short.and_then(crate::annotations::row).map(|r| r.name) == row.map(|r| r.name) && row.is_some()
        };
        names.into_iter().find(same).cloned().unwrap_or_else(|| name.to_owned())
    }
}

/// Returns `true` if an Ingress is to be served.
pub fn is_ours(ingress: &Ingress, objects: &Objects, options: &Options) -> bool {
    if !watches(&ingress.metadata.namespace, objects, options) {
        return false;
    }
    // As in ingress-nginx: the old annotation counts if it is there.
    let old = ingress.metadata.annotations.get("kubernetes.io/ingress.class");
    if let Some(class) = old.filter(|class| !class.is_empty()) {
        return *class == options.ingress_class;
    }
    let is_default = |class: &IngressClass| {
        let default = class.metadata.annotations.get("ingressclass.kubernetes.io/is-default-class");
        default.is_some_and(|v| v == "true")
    };
    let class = match &ingress.spec.ingress_class_name {
        Some(name) => objects.classes().find(|(key, _)| key.name == *name),
        None if options.watch_ingress_without_class => return true,
        None => objects.classes().find(|(_, class)| is_default(&class.object)),
    };
    match class {
        Some((key, class)) => {
            class.object.spec.controller == options.controller_class
                || (options.ingress_class_by_name && key.name == options.ingress_class)
        }
        // Manifests often come without their class.
        None => ingress.spec.ingress_class_name.as_deref() == Some(options.ingress_class.as_str()),
    }
}

/// Returns `true` if Ingresses of a namespace are served.
fn watches(namespace: &str, objects: &Objects, options: &Options) -> bool {
    let selector = &options.namespace_selector;
    let is_selected =
        || objects.namespace(namespace).is_some_and(|n| selector.matches(&n.object.metadata.labels));
    (options.watch_namespaces.is_empty() || options.watch_namespaces.iter().any(|n| n == namespace))
        && (selector.is_empty() || is_selected())
}

/// Reads an Ingress. `revision`: the number of this version of it in the set.
pub fn parse(ingress: &Arc<Ingress>, revision: u64, globals: &Globals) -> Parsed {
    let key = Key::new(ingress.metadata.namespace.as_str(), ingress.metadata.name.as_str());
    let mut problems = Vec::new();
    let annotations = Annotations::read(ingress, &globals.options, &globals.settings, &mut problems);
    let canary = annotations.flag("canary");
    let mut parsed = Parsed {
        ingress: ingress.clone(),
        key,
        annotations,
        rules: Vec::new(),
        problems,
        canary,
        stream_snippet: Vec::new(),
        revision,
    };
    if parsed.annotations.banned {
        return parsed;
    }
    parsed.rules = rules(&mut parsed, globals);
    stream_snippet(&mut parsed, globals);
    if parsed.annotations.flag("ssl-passthrough") && !globals.options.enable_ssl_passthrough {
        let text = "TLS sessions do not pass as they are without --enable-ssl-passthrough";
        parsed.problems.push(parsed.annotation_problem("ssl-passthrough", text).reason("NotEnabled"));
    }
    parsed
}

fn stream_snippet(parsed: &mut Parsed, globals: &Globals) {
    let Some(text) = parsed.annotations.raw("stream-snippet") else { return };
    let author = crate::snippet::Author::Tenant { own_host: false };
    match crate::snippet::parse(
        text,
        forebay_conf::grammar::Contexts::STREAM,
        author,
        &globals.options,
        &globals.settings.defined,
    ) {
        Ok(nodes) => parsed.stream_snippet = with_own_zones(nodes, &parsed.key),
        Err(invalid) => {
            let problem =
                parsed.annotation_problem("stream-snippet", "the snippet is refused").invalid(text, &invalid);
            parsed.problems.push(problem.reason("SnippetRefused"));
        }
    }
}

/// Gives the zones of the groups of a snippet names of their own: all groups and limits of the server share the names of zones.
fn with_own_zones(mut nodes: Vec<forebay_conf::Node>, owner: &Key) -> Vec<forebay_conf::Node> {
    for inner in nodes.iter_mut().filter(|n| n.name == b"upstream").flat_map(|n| n.block.iter_mut().flatten())
    {
        if let Some(name) = inner.args.first_mut().filter(|_| inner.name == b"zone") {
            let text = String::from_utf8_lossy(name);
            *name = format!("{text}_{}", short_hash(&format!("{owner} {text}"))).into_bytes();
        }
    }
    nodes
}
