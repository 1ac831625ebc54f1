//! Ingresses to the model: which are ours, their hosts and paths, and the server of each host.

mod policy;
mod tls;

use crate::annotations::Annotations;
use crate::groups::{Spec, port_text};
use crate::model::{Action, Forward, HostName, Origin, PathMatch, Policy, Route, Server, Tls};
use crate::objects::{Ingress, IngressBackend, Key, Kind, Objects, PortRef};
use crate::options::Options;
use crate::problem::Problem;
use crate::settings::Settings;
use crate::view::View;
use std::collections::BTreeMap;
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
}

impl Parsed {
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
    let namespace = &ingress.metadata.namespace;
    if !options.watch_namespaces.is_empty() && !options.watch_namespaces.contains(namespace) {
        return false;
    }
    // As in ingress-nginx: the old annotation counts if it is there.
    if let Some(class) =
        ingress.metadata.annotations.get("kubernetes.io/ingress.class").filter(|c| !c.is_empty())
    {
        return *class == options.ingress_class;
    }
    let class = match &ingress.spec.ingress_class_name {
        Some(name) => objects.classes().find(|(key, _)| key.name == *name),
        None if options.watch_ingress_without_class => return true,
        None => objects.classes().find(|(_, class)| {
            let default =
                class.object.metadata.annotations.get("ingressclass.kubernetes.io/is-default-class");
            default.is_some_and(|v| v == "true")
        }),
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

/// Reads an Ingress.
pub fn parse(ingress: &Arc<Ingress>, globals: &Globals) -> Parsed {
    let key = Key::new(ingress.metadata.namespace.as_str(), ingress.metadata.name.as_str());
    let mut problems = Vec::new();
    let prefix = &globals.options.annotations_prefix;
    let annotations = Annotations::read(ingress, prefix, &globals.settings, &mut problems);
    let canary = annotations.flag("canary");
    let mut parsed =
        Parsed { ingress: ingress.clone(), key, annotations, rules: Vec::new(), problems, canary };
    parsed.rules = rules(&mut parsed, globals);
    parsed
}

/// Longest list of hosts and paths of one Ingress.
const MAX_PATHS: usize = 5000;

fn rules(parsed: &mut Parsed, globals: &Globals) -> Vec<HostRules> {
    let ingress = parsed.ingress.clone();
    let mut found: Vec<HostRules> = Vec::new();
    let mut count = 0;
    let strict = globals.settings.flag("strict-validate-path-type");
    let regex = uses_regex(&parsed.annotations);
    for (i, rule) in ingress.spec.rules.iter().enumerate() {
        let Some(host) = host(parsed, i, &rule.host) else { continue };
        let mut paths = Vec::new();
        for (j, path) in rule.http.iter().flat_map(|http| &http.paths).enumerate() {
            count += 1;
            if count > MAX_PATHS {
                let text = format!("an Ingress has at most {MAX_PATHS} paths, the rest is not served");
                parsed.problems.push(parsed.problem("spec.rules", text).reason("TooManyPaths"));
                return found;
            }
            let field = format!("spec.rules[{i}].http.paths[{j}]");
            let kind = path.path_type.as_deref().unwrap_or("ImplementationSpecific");
            match path_match(&path.path, kind, strict, regex) {
                Ok(condition) => {
                    paths.push(HostPath { path: condition, backend: backend(&path.backend), field })
                }
                Err(invalid) => {
                    let problem = parsed.problem(format!("{field}.path"), "the path is not served");
                    parsed.problems.push(problem.invalid(&path.path, &invalid).reason("InvalidPath"));
                }
            }
        }
        match found.iter_mut().find(|r| r.host == host) {
            Some(rules) => rules.paths.extend(paths),
            None => found.push(HostRules { host, paths }),
        }
    }
    default_backend(&ingress, &mut found);
    found
}

/// Adds `spec.defaultBackend` as `/` of each host of the Ingress, or of all hosts if it has none.
fn default_backend(ingress: &Ingress, found: &mut Vec<HostRules>) {
    let Some(default) = &ingress.spec.default_backend else { return };
    if found.is_empty() {
        found.push(HostRules::default());
    }
    let root = PathMatch::Prefix("/".into());
    for rules in found {
        if !rules.paths.iter().any(|p| p.path == root) {
            let field = "spec.defaultBackend".to_owned();
            rules.paths.push(HostPath { path: root.clone(), backend: backend(default), field });
        }
    }
}

fn backend(backend: &IngressBackend) -> Option<(String, PortRef)> {
    backend.service.as_ref().map(|s| (s.name.clone(), s.port.clone()))
}

/// Reads a host. `Some(None)`: all hosts.
#[allow(clippy::option_option, reason = "the outer one is an error that has been reported")]
fn host(parsed: &mut Parsed, index: usize, text: &str) -> Option<Option<String>> {
    let host = text.trim_end_matches('.').to_ascii_lowercase();
    if host.is_empty() && text.is_empty() {
        return Some(None);
    }
    if is_host(&host) {
        return Some(Some(host));
    }
    let problem = parsed
        .problem(format!("spec.rules[{index}].host"), "the host is not a DNS name, the rule is not served");
    let at = text
        .char_indices()
        .find(|(_, c)| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '.')))
        .map_or(0, |(at, _)| at);
    parsed.problems.push(problem.reason("InvalidHost").at(text, at));
    None
}

/// Returns `true` for a DNS name, also with `*.` before it.
pub fn is_host(host: &str) -> bool {
    let name = host.strip_prefix("*.").unwrap_or(host);
    let label = |l: &str| {
        let inner = l.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_');
        !l.is_empty() && l.len() <= 63 && inner && !l.starts_with('-') && !l.ends_with('-')
    };
    name.len() <= 253 && !name.is_empty() && name.split('.').all(label)
}

/// Returns `true` if an Ingress makes the paths of its hosts regular expressions.
pub fn uses_regex(annotations: &Annotations) -> bool {
    annotations.flag("use-regex") || annotations.get("rewrite-target").is_some()
}

/// Reads a path.
fn path_match(path: &str, kind: &str, strict: bool, regex: bool) -> Result<PathMatch, crate::value::Invalid> {
    use crate::value::Invalid;
    let path = if path.is_empty() { "/" } else { path };
    if !path.starts_with('/') {
        return Err(Invalid::new(0, "a path begins with \"/\""));
    }
    if path.len() > 1500 {
        return Err(Invalid::new(0, "the path is longer than 1500 bytes"));
    }
    if let Some((at, c)) = path.char_indices().find(|(_, c)| c.is_control() || *c == ' ') {
        return Err(Invalid::new(
            at,
            format!("the character U+{:04X} is not allowed in a path", u32::from(c)),
        ));
    }
    if regex && let Some(reason) = crate::value::regex_lint(path) {
        return Err(Invalid::new(0, reason));
    }
    let exact = match kind {
        "Exact" => true,
        "Prefix" => false,
        "ImplementationSpecific" => {
            // The two are the same, so that they are found to be taken.
            let root = path == "/";
            return Ok(if root { PathMatch::Prefix("/".into()) } else { PathMatch::Start(path.into()) });
        }
        _ => return Err(Invalid::new(0, "its pathType is none of Exact, Prefix and ImplementationSpecific")),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_/.~".contains(c);
    if strict
        && !regex
        && let Some((at, c)) = path.char_indices().find(|(_, c)| !allowed(*c))
    {
        let text = format!(
            "'{}' is not allowed in a path of this pathType (strict-validate-path-type)",
            c.escape_debug()
        );
        return Err(Invalid::new(at, text));
    }
    if exact {
        return Ok(PathMatch::Exact(path.into()));
    }
    let trimmed = path.trim_end_matches('/');
    Ok(PathMatch::Prefix(if trimmed.is_empty() { "/".into() } else { trimmed.into() }))
}

/// A group that a server needs, and the field that needs it.
#[derive(Clone, Debug)]
pub struct Use {
    /// The group.
    pub spec: Arc<Spec>,
    /// Object that names it.
    pub origin: Arc<Ingress>,
    /// Field that names it.
    pub field: String,
}

/// A server and what came of making it.
pub struct Made {
    /// The server.
    pub server: Server,
    /// Groups that it needs.
    pub uses: Vec<Use>,
    /// Problems of Ingresses.
    pub problems: Vec<Problem>,
    /// Files that its directives name.
    pub files: Vec<crate::model::File>,
}

/// Ingresses of one host, the oldest first, with the index of the rules for the host.
pub type Members = Vec<(Arc<Parsed>, usize)>;

/// Makes the server of a host.
pub(crate) fn server(
    host: &HostName,
    members: &Members,
    aliases: Vec<String>,
    globals: &Globals,
    view: &View<'_>,
) -> Made {
    let mut making = Making { globals, view, uses: Vec::new(), problems: Vec::new(), files: Vec::new() };
    let regex = members.iter().any(|(p, _)| uses_regex(&p.annotations));
    let mut routes: BTreeMap<PathMatch, Route> = BTreeMap::new();
    for (parsed, index) in members.iter().filter(|(p, _)| !p.canary) {
        let policy = making.policy(parsed);
        for path in parsed.rules.get(*index).iter().flat_map(|r| &r.paths) {
            making.route(parsed, path, &policy, &mut routes);
        }
    }
    let tls = making.tls(host, members);
    let routes = routes.into_values().collect();
    let server = Server {
        host: host.clone(),
        aliases,
        tls,
        routes,
        regex,
        app_root: None,
        redirected_from: None,
        snippet: Vec::new(),
    };
    Made { server, uses: making.uses, problems: making.problems, files: making.files }
}

/// State while a server is made.
struct Making<'a> {
    globals: &'a Globals,
    view: &'a View<'a>,
    uses: Vec<Use>,
    problems: Vec<Problem>,
    files: Vec<crate::model::File>,
}

impl Making<'_> {
    fn route(
        &mut self,
        parsed: &Parsed,
        path: &HostPath,
        policy: &Arc<Policy>,
        routes: &mut BTreeMap<PathMatch, Route>,
    ) {
        if let Some(taken) = routes.get(&path.path) {
            if taken.origin.object != parsed.key || path.field != "spec.defaultBackend" {
                let text = format!(
                    "the path \"{}\" is taken by the older Ingress {}",
                    path.path.path(),
                    taken.origin.object
                );
                let problem = parsed.problem(format!("{}.path", path.field), text);
                self.problems.push(problem.reason("PathConflict"));
            }
            return;
        }
        let (action, service, port) = self.action(parsed, path);
        let origin = Origin { object: parsed.key.clone(), service, port };
        routes.insert(
            path.path.clone(),
            Route { path: path.path.clone(), origin, action, policy: policy.clone() },
        );
    }

    fn action(&mut self, parsed: &Parsed, path: &HostPath) -> (Action, String, String) {
        let Some((service, port)) = &path.backend else {
            let text = "the backend is no Service; the path answers 503";
            self.problems
                .push(parsed.problem(format!("{}.backend", path.field), text).reason("InvalidBackend"));
            return (Action::Answer(503), String::new(), String::new());
        };
        let port_text = port_text(port);
        if !is_name(service) || !is_name(&port_text) || !is_name(&parsed.key.namespace) {
            let text = "the Service or its port has an invalid name; the path answers 503";
            self.problems
                .push(parsed.problem(format!("{}.backend", path.field), text).reason("InvalidBackend"));
            return (Action::Answer(503), String::new(), String::new());
        }
        if parsed.annotations.closed {
            return (Action::Answer(503), service.clone(), port_text);
        }
        let group =
            self.group(parsed, Key::new(parsed.key.namespace.as_str(), service.as_str()), port, &path.field);
        let forward = Forward { group, ..Forward::default() };
        (Action::Forward(forward), service.clone(), port_text)
    }

    /// Adds a group, and returns its name.
    fn group(&mut self, parsed: &Parsed, service: Key, port: &PortRef, field: &str) -> String {
        let fallback = self.globals.default_backend.as_ref().map(Spec::name);
        let spec = Spec { service, port: port.clone(), fallback, ..Spec::default() };
        self.use_group(parsed, spec, &format!("{field}.backend"))
    }

    fn use_group(&mut self, parsed: &Parsed, spec: Spec, field: &str) -> String {
        let name = spec.name();
        self.uses.push(Use { spec: Arc::new(spec), origin: parsed.ingress.clone(), field: field.to_owned() });
        name
    }
}

/// Returns `true` for a part of a name that the API server accepts, so that no two groups or files have the same name.
pub fn is_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    !text.is_empty() && text.len() <= 253 && text.bytes().all(allowed) && !text.starts_with('.')
}

impl Making<'_> {
    fn tls(&mut self, host: &HostName, members: &Members) -> Tls {
        tls::of_host(self, host, members)
    }
}

pub(crate) use tls::of_secret as certificate_files;
