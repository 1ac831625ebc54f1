//! The server of a host, made of the Ingresses that have rules for it.

use super::{Globals, HostPath, Parsed, tls, uses_regex};
use crate::groups::{Balance, Spec, Sticky, port_text};
use crate::model::{Action, AppRoot, Forward, HostName, Origin, PathMatch, Policy, Protocol, Route, Server};
use crate::objects::{Ingress, Key};
use crate::problem::{Problem, Severity};
use crate::settings::Settings;
use crate::view::View;
use std::collections::BTreeMap;
use std::sync::Arc;

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
    let mut making = Making::new(globals, view);
    making.own_host = own_host;
    making.authorities = authorities(members);
    let (snippet, refused) = making.server_snippet(members);
    let Routes { routes, zones } = making.routes(members, &refused);
    let server = Server {
        host: host.clone(),
        aliases: names.aliases.clone(),
        tls: tls::of_host(&mut making, host, members),
        routes: routes.into_values().collect(),
        regex: members.iter().any(|(p, _)| uses_regex(&p.annotations)),
        app_root: members.iter().find_map(|(p, _)| making.app_root(p)),
        redirected_from: names.redirected_from.clone(),
        wants_tls: wants_tls(host, members),
        zones,
        snippet,
    };
    Made { server, uses: making.uses, problems: making.problems, files: making.files }
}

/// Returns the Secret by which clients of a host are verified, and the Ingress that names it.
fn authorities(members: &Members) -> Option<(Key, Key)> {
    members.iter().filter(|(p, _)| !p.canary).find_map(|(p, _)| {
        let name = p.annotations.get("auth-tls-secret")?;
        let key = Key::parse(name).unwrap_or_else(|| Key::new(p.key.namespace.as_str(), name));
        Some((key, p.key.clone()))
    })
}

/// Routes of a server.
struct Routes {
    routes: BTreeMap<PathMatch, Route>,
    /// Policies whose limits have their zones in the file of the server.
    zones: Vec<Arc<Policy>>,
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
pub(super) struct Making<'a> {
    pub(super) globals: &'a Globals,
    pub(super) view: &'a View<'a>,
    pub(super) uses: Vec<Use>,
    pub(super) problems: Vec<Problem>,
    pub(super) files: Vec<crate::model::File>,
    /// The server has a name, so that `$host` is none that a client chose.
    pub(super) own_host: bool,
    /// Access to the Ingress at hand cannot be checked as it wishes: its paths answer 503.
    pub(super) closed: bool,
    /// Secret by which clients of the host are verified, and the Ingress that names it.
    pub(super) authorities: Option<(Key, Key)>,
}

impl<'a> Making<'a> {
    /// Makes the state of a server without a name.
    pub(super) fn new(globals: &'a Globals, view: &'a View<'a>) -> Making<'a> {
        let (uses, problems, files) = (Vec::new(), Vec::new(), Vec::new());
        Making { globals, view, uses, problems, files, own_host: false, closed: false, authorities: None }
    }

    /// Makes the routes of all Ingresses. `refused`: those whose snippets are refused and decide on access.
    fn routes(&mut self, members: &Members, refused: &[Key]) -> Routes {
        let (mut routes, mut zones) = (BTreeMap::new(), Vec::new());
        for (parsed, index) in members.iter().filter(|(p, _)| !p.canary) {
            self.closed = parsed.annotations.closed || !self.globals.settings.closed.is_empty();
            self.closed |= refused.contains(&parsed.key);
            let policy = self.policy(parsed, *index == 0);
            if policy.limits.defined_here && !policy.limits.limits.is_empty() {
                zones.push(policy.clone());
            }
            for path in parsed.rules.get(*index).iter().flat_map(|r| &r.paths) {
                self.route(parsed, path, &policy, &mut routes);
            }
        }
        for (parsed, index) in members.iter().filter(|(p, _)| p.canary) {
            self.closed = false;
            for path in parsed.rules.get(*index).iter().flat_map(|r| &r.paths) {
                self.canary(parsed, path, &mut routes);
            }
        }
        Routes { routes, zones }
    }

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
    pub(super) fn spec(&mut self, parsed: &Parsed, path: &HostPath) -> Option<Spec> {
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

    pub(super) fn use_group(&mut self, parsed: &Parsed, spec: Spec, field: &str) -> String {
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
                self.warn_of_fields(parsed, &nodes);
                found = nodes;
                owner = Some(parsed);
            }
        }
        (found, refused)
    }

    /// Reports that fields of requests in the snippet of a server have no effect.
    fn warn_of_fields(&mut self, parsed: &Parsed, nodes: &[forebay_conf::Node]) {
        if nodes.iter().any(|n| n.name == b"proxy_set_header" || n.name == b"grpc_set_header") {
            let text = "fields of requests that stand in the server do not reach the paths of Ingresses, which have fields of \
                        their own; use configuration-snippet";
            let problem = parsed.annotation_problem("server-snippet", text);
            self.problems.push(problem.severity(Severity::Differs).reason("Differs"));
        }
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

pub(super) fn balance(parsed: &Parsed, settings: &Settings) -> Balance {
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
pub(super) fn sticky(parsed: &Parsed, path: &HostPath) -> Option<Sticky> {
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
