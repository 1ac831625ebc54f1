//! Ingresses to the model: which are ours, their hosts and paths, and the server of each host.

mod canary;
mod globals;
mod overlap;
mod policy;
mod route_policy;
mod tls;

use crate::annotations::Annotations;
use crate::groups::{Balance, Spec, Sticky, port_text, short_hash};
use crate::model::{
    Action, AppRoot, Forward, HostName, Origin, PathMatch, Policy, Protocol, Route, Server, Tls,
};
use crate::objects::{Ingress, IngressBackend, Key, Kind, Objects, PortRef};
use crate::options::Options;
use crate::problem::{Problem, Severity};
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
    let namespace = &ingress.metadata.namespace;
    if !options.watch_namespaces.is_empty() && !options.watch_namespaces.contains(namespace) {
        return false;
    }
    if !options.namespace_selector.is_empty() {
        let known = objects.namespace(namespace);
        if !known.is_some_and(|n| options.namespace_selector.matches(&n.object.metadata.labels)) {
            return false;
        }
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
                    let slash = path.path.len() > 1 && path.path.ends_with('/');
                    paths.push(HostPath { path: condition, slash, backend: backend(&path.backend), field })
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
    if globals.options.disable_catch_all {
        catch_all(parsed, &mut found);
    }
    found
}

/// Removes what is for all hosts: rules without a host and, as in ingress-nginx, an Ingress with a default backend as a whole.
fn catch_all(parsed: &mut Parsed, found: &mut Vec<HostRules>) {
    let before = found.len();
    let text = if parsed.ingress.spec.default_backend.is_some() {
        found.clear();
        "the Ingress is not served: it has a default backend (--disable-catch-all)"
    } else {
        found.retain(|rules| rules.host.is_some());
        "nothing is served for all hosts (--disable-catch-all)"
    };
    if found.len() < before {
        parsed.problems.push(parsed.problem("spec", text).reason("CatchAllDisabled"));
    }
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
            rules.paths.push(HostPath { path: root.clone(), slash: false, backend: backend(default), field });
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
        let inner = l.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
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
    /// Its name.
    pub name: Arc<str>,
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

/// Names that depend on the other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Names of `server-alias` that no other server has.
    pub aliases: Vec<String>,
    /// Name of `from-to-www-redirect`, if no server has it.
    pub redirected_from: Option<String>,
}

/// Makes the server of a host.
pub(crate) fn server(
    host: &HostName,
    members: &Members,
    names: &Names,
    globals: &Globals,
    view: &View<'_>,
) -> Made {
    let own_host = matches!(host, HostName::Name(_)) && !names.aliases.iter().any(|a| a.starts_with('~'));
    let (uses, problems, files) = (Vec::new(), Vec::new(), Vec::new());
    let authorities = members.iter().filter(|(p, _)| !p.canary).find_map(|(p, _)| {
        let name = p.annotations.get("auth-tls-secret")?;
        let key = Key::parse(name).unwrap_or_else(|| Key::new(p.key.namespace.as_str(), name));
        Some((key, p.key.clone()))
    });
    let closed = false;
    let mut making = Making { globals, view, uses, problems, files, own_host, closed, authorities };
    let (snippet, refused) = making.server_snippet(members);
    let regex = members.iter().any(|(p, _)| uses_regex(&p.annotations));
    let (mut routes, mut zones) = (BTreeMap::<PathMatch, Route>::new(), Vec::new());
    for (parsed, index) in members.iter().filter(|(p, _)| !p.canary) {
        making.closed = parsed.annotations.closed || !globals.settings.closed.is_empty();
        making.closed |= refused.contains(&parsed.key);
        let policy = making.policy(parsed, *index == 0);
        if policy.limits.defined_here && !policy.limits.limits.is_empty() {
            zones.push(policy.clone());
        }
        for path in parsed.rules.get(*index).iter().flat_map(|r| &r.paths) {
            making.route(parsed, path, &policy, &mut routes);
        }
    }
    for (parsed, index) in members.iter().filter(|(p, _)| p.canary) {
        making.closed = false;
        for path in parsed.rules.get(*index).iter().flat_map(|r| &r.paths) {
            making.canary(parsed, path, &mut routes);
        }
    }
    let tls = making.tls(host, members);
    let wants_tls = wants_tls(host, members);
    let app_root = members.iter().find_map(|(p, _)| making.app_root(p));
    let server = Server {
        host: host.clone(),
        aliases: names.aliases.clone(),
        tls,
        routes: routes.into_values().collect(),
        regex,
        app_root,
        redirected_from: names.redirected_from.clone(),
        wants_tls,
        zones,
        snippet,
    };
    Made { server, uses: making.uses, problems: making.problems, files: making.files }
}

/// Returns `true` if an Ingress asks for TLS for a host, be it with the default certificate.
fn wants_tls(host: &HostName, members: &Members) -> bool {
    let HostName::Name(name) = host else { return false };
    let named = |tls: &crate::objects::IngressTls| {
        tls.hosts.is_empty() || tls.hosts.iter().any(|h| tls::covers(h, name))
    };
    members.iter().filter(|(p, _)| !p.canary).any(|(p, _)| p.ingress.spec.tls.iter().any(named))
}

/// State while a server is made.
struct Making<'a> {
    globals: &'a Globals,
    view: &'a View<'a>,
    uses: Vec<Use>,
    problems: Vec<Problem>,
    files: Vec<crate::model::File>,
    /// The server has a name, so that `$host` is none that a client chose.
    own_host: bool,
    /// Access to the Ingress at hand cannot be checked as it wishes: its paths answer 503.
    closed: bool,
    /// Secret by which clients of the host are verified, and the Ingress that names it.
    authorities: Option<(Key, Key)>,
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
            Route { path: path.path.clone(), slash: path.slash, origin, action, policy: policy.clone() },
        );
    }

    fn action(&mut self, parsed: &Parsed, path: &HostPath) -> (Action, String, String) {
        let (service, port) = path.backend.clone().unwrap_or_default();
        let text = port_text(&port);
        if self.closed {
            return (Action::Answer(503), service, text);
        }
        if let Some(redirect) = self.redirect(parsed) {
            return (redirect, service, text);
        }
        if path.backend.is_none() {
            let text_of = "the backend is no Service; the path answers 404";
            self.problems
                .push(parsed.problem(format!("{}.backend", path.field), text_of).reason("InvalidBackend"));
            return (Action::Answer(404), service, text);
        }
        let Some(spec) = self.spec(parsed, path) else { return (Action::Answer(503), service, text) };
        let group = self.use_group(parsed, spec, &format!("{}.backend", path.field));
        let forward = Forward {
            group,
            alternatives: Vec::new(),
            protocol: protocol(parsed),
            rewrite: parsed
                .annotations
                .get("rewrite-target")
                .map(|to| (path.path.path().to_owned(), to.to_owned())),
        };
        (Action::Forward(forward), service, text)
    }

    fn redirect(&mut self, parsed: &Parsed) -> Option<Action> {
        let a = &parsed.annotations;
        let kinds = [
            ("temporal-redirect", "temporal-redirect-code", 302),
            ("permanent-redirect", "permanent-redirect-code", 301),
        ];
        for (name, code, default) in kinds {
            let Some(url) = a.get(name) else { continue };
            if crate::reach::is_link(url) {
                return Some(Action::Redirect {
                    code: a.number(code).unwrap_or(default),
                    url: url.to_owned(),
                });
            }
            let problem = parsed.annotation_problem(name, "it must be a path or a URL");
            self.problems.push(problem.reason("InvalidValue").at(url, 0));
        }
        None
    }

    /// Returns what the group of a path is made from. `None`: the backend is wrong, and has been reported.
    fn spec(&mut self, parsed: &Parsed, path: &HostPath) -> Option<Spec> {
        let (service, port) = path.backend.as_ref()?;
        if !is_name(service) || !is_name(&port_text(port)) || !is_name(&parsed.key.namespace) {
            let text = "the Service or its port has an invalid name; the path answers 503";
            self.problems
                .push(parsed.problem(format!("{}.backend", path.field), text).reason("InvalidBackend"));
            return None;
        }
        let a = &parsed.annotations;
        let settings = &self.globals.settings;
        let stands_in = self.default_backend(parsed).is_some();
        let service_upstream = a.get("service-upstream").and_then(crate::value::parse_bool);
        let spec = Spec {
            service: Key::new(parsed.key.namespace.as_str(), service.as_str()),
            port: port.clone(),
            balance: balance(parsed, settings),
            sticky: sticky(parsed, path),
            service_upstream: service_upstream.unwrap_or_else(|| settings.flag("service-upstream")),
            fallback: stands_in.then(|| format!("={}", crate::groups::NO_SERVERS)),
            ..Spec::default()
        };
        Some(spec.beside(&self.globals.taken))
    }

    fn app_root(&self, parsed: &Parsed) -> Option<AppRoot> {
        let path = parsed.annotations.get("app-root").filter(|_| !parsed.canary)?;
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Some(AppRoot { path, https: self.https(parsed) })
    }

    fn use_group(&mut self, parsed: &Parsed, spec: Spec, field: &str) -> String {
        let name = spec.name();
        self.uses.push(Use {
            spec: Arc::new(spec),
            name: name.as_str().into(),
            origin: parsed.ingress.clone(),
            field: field.to_owned(),
        });
        name
    }

    /// Parses the snippet of the oldest Ingress that has one. Returns it, and the Ingresses whose snippets decide on access and are
    /// refused.
    fn server_snippet(&mut self, members: &Members) -> (Vec<forebay_conf::Node>, Vec<Key>) {
        let (mut found, mut refused) = (Vec::new(), Vec::new());
        let mut owner: Option<&Parsed> = None;
        let is_there = |p: &Parsed| !p.canary && p.annotations.get("server-snippet").is_some();
        for (parsed, _) in members.iter().filter(|(p, _)| is_there(p)) {
            if let Some(owner) = owner {
                let text =
                    format!("the snippet is ignored: the older Ingress {} has one for the host", owner.key);
                self.problems
                    .push(parsed.annotation_problem("server-snippet", text).reason("SnippetConflict"));
                continue;
            }
            self.closed = false;
            let parts = self.snippet(parsed, "server-snippet", forebay_conf::grammar::Contexts::SERVER);
            if self.closed {
                refused.push(parsed.key.clone());
            }
            if let Some(nodes) = parts {
                let fields = ["proxy_set_header", "grpc_set_header"];
                if nodes.iter().any(|n| fields.iter().any(|f| f.as_bytes() == n.name)) {
                    let text = "fields of requests that stand in the server do not reach the paths of Ingresses, which have \
                                fields of their own; use configuration-snippet";
                    let problem = parsed.annotation_problem("server-snippet", text);
                    self.problems.push(problem.severity(Severity::Differs).reason("Differs"));
                }
                found = nodes;
                owner = Some(parsed);
            }
        }
        (found, refused)
    }
}

/// Returns the name of a Service's upstream in ingress-nginx's spelling.
pub(crate) fn upstream_name(namespace: &str, service: &str, port: &str) -> String {
    format!("{namespace}-{service}-{port}")
}

fn protocol(parsed: &Parsed) -> Protocol {
    match parsed.annotations.get("backend-protocol").unwrap_or_default().to_ascii_uppercase().as_str() {
        "HTTPS" => Protocol::Https,
        "AUTO_HTTP" => Protocol::Auto,
        "GRPC" => Protocol::Grpc,
        "GRPCS" => Protocol::Grpcs,
        "FCGI" => Protocol::Fcgi,
        _ => Protocol::Http,
    }
}

fn balance(parsed: &Parsed, settings: &Settings) -> Balance {
    let a = &parsed.annotations;
    if let Some(key) = a.get("upstream-hash-by").or_else(|| settings.set("upstream-hash-by")) {
        return Balance::Hash(key.to_owned());
    }
    match a.get("load-balance").unwrap_or_else(|| settings.get("load-balance")) {
        "ewma" => Balance::LeastTime,
        _ => Balance::RoundRobin,
    }
}

/// Makes the cookie of `affinity: cookie`.
fn sticky(parsed: &Parsed, path: &HostPath) -> Option<Sticky> {
    let a = &parsed.annotations;
    a.get("affinity")?;
    let mut words = Vec::new();
    let seconds = |name: &'static str| a.number(name).filter(|n| *n > 0);
    words.extend(seconds("session-cookie-expires").map(|n| format!("expires={n}s")));
    words.extend(seconds("session-cookie-max-age").map(|n| format!("max_age={n}s")));
    words.extend(a.get("session-cookie-domain").map(|d| format!("domain={d}")));
    let own = path.path.path();
    let default = if uses_regex(a) { "/" } else { own };
    words.push(format!("path={}", a.get("session-cookie-path").unwrap_or(default)));
    words.extend(a.get("session-cookie-samesite").map(|s| format!("samesite={}", s.to_ascii_lowercase())));
    let always = a.flag("session-cookie-secure");
    words.push(if always { "secure".into() } else { "secure=$secure_cookie".into() });
    words.push("httponly".into());
    if !a.flag("session-cookie-change-on-failure") {
        words.push("change_on_failure=off".into());
    }
    Some(Sticky { name: a.or_default("session-cookie-name").to_owned(), words, field: false })
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

pub(crate) use globals::read as read_globals;
pub use overlap::overlaps;
pub(crate) use policy::{general_authority, general_networks};
pub(crate) use route_policy::{RoutePolicy, route_policy};
pub(crate) use tls::of_secret as certificate_files;

#[cfg(test)]
mod tests {
    use super::*;

    /// `strict-validate-path-type`: ingress-nginx's letters for Exact and Prefix.
    #[test]
    fn strict_paths() {
        for (path, kind, fine) in [
            ("/a-b_c.d~/e", "Prefix", true),
            ("/a,b", "Prefix", false),
            ("/a(b)", "Exact", false),
            ("/a(b)", "ImplementationSpecific", true),
        ] {
            assert_eq!(path_match(path, kind, true, false).is_ok(), fine, "{path}");
            assert!(path_match(path, kind, false, false).is_ok(), "{path}");
        }
    }
}
