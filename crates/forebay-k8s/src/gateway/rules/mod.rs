//! Rules of routes to `route` lines and named locations.
//!
//! A rule that asks for something that is not supported is closed: it answers 500 to what it matches (`faults.rs`).

mod access;
mod backends;
mod cors;
mod external_auth;
pub(crate) mod faults;
mod fields;
mod limits;
pub(crate) mod matches;
mod mirror;
mod paths;
pub(crate) mod persistence;
pub(crate) mod tls;

pub(crate) use access::SHOWN;
pub(crate) use backends::{Backend, BackendTls, Choice, Lookup, Unresolved, backend};

use super::cluster::Cluster;
use super::objects::{Cors, Filter, GatewayKind, Match, Redirect, Route, Rule};
use super::route_policy::Applied;
use crate::groups::{Spec, port_text};
use crate::ingress::Globals;
use crate::model::{self, CertificateFiles, File};
use crate::tree::guard::{self, Guard};
use crate::value::parse_size;
use backends::Protocol;
use fields::{Headers, answer_fields};
use forebay_conf::{Node, print};
use persistence::{Stay, staying};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What the rules of a route are served with.
#[derive(Clone, Copy)]
pub(crate) struct Serving<'a> {
    /// Objects.
    pub cluster: Cluster<'a>,
    /// Settings and options.
    pub globals: &'a Globals,
    /// Route.
    pub route: &'a Route,
    /// Its kind.
    pub kind: GatewayKind,
}

/// A rule with what was found out about it.
#[derive(Clone, Copy)]
pub(crate) struct Ruled<'a> {
    /// As written.
    pub rule: &'a Rule,
    /// Its backends.
    pub choices: &'a [Choice],
    /// What it asks for and does not get.
    pub faults: &'a [String],
    /// Policies that hold for it.
    pub policy: &'a Applied,
}

/// Place that a rule is served at.
#[derive(Clone, Debug)]
pub(crate) struct Place<'a> {
    /// Text that no other server has.
    pub server: &'a str,
    /// Text that no other rule has, for names of locations and variables.
    pub id: String,
    /// Port of the listener.
    pub port: u16,
    /// Match, with the prefix that filters may replace.
    pub found: &'a Match,
    /// Clients show certificates.
    pub verified: bool,
    /// Certificate that backends see.
    pub certificate: Option<&'a CertificateFiles>,
    /// Index of the backend that the place is of, if the rule has several.
    pub index: Option<usize>,
}

/// Directives for one match of a rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Served {
    /// Directives of the http level.
    pub http: Vec<Node>,
    /// `route` lines.
    pub routes: Vec<Node>,
    /// Locations.
    pub locations: Vec<Node>,
    /// Files.
    pub files: Vec<File>,
    /// Groups.
    pub specs: Vec<Arc<Spec>>,
}

/// Returns text as a word without variables.
pub(crate) fn literal(text: &str) -> String {
    String::from_utf8_lossy(&print::without_variables(text.as_bytes())).into_owned()
}

fn node<W: Into<Vec<u8>>>(name: &str, words: impl IntoIterator<Item = W>) -> Node {
    Node::new(name).args(words)
}

/// Returns a share as a word of `split_clients`.
pub(crate) fn percent(part: u64, total: u64) -> String {
    let hundredths = part * 10_000 / total.max(1);
    format!("{}.{:02}%", hundredths / 100, hundredths % 100)
}

/// Path that names no file. `try_files` with it leads on to another location after access has been checked: `return` and `if` answer
/// before that.
const NO_FILE: &str = "/.forebay/none";

/// Makes a named location whose body comes after the checks of access in `gate`. `early`: the body answers before such checks.
fn gated(name: &str, gate: Vec<Node>, mut body: Vec<Node>, early: bool) -> Vec<Node> {
    if gate.is_empty() || !early {
        let size = |n: &Node| n.name == b"client_max_body_size";
        body.retain(|n| !(size(n) && gate.iter().any(size)));
        return vec![node("location", [name]).block(gate.into_iter().chain(body).collect())];
    }
    let then = format!("{name}_then");
    let mut first = gate;
    first.push(node("try_files", [NO_FILE, &then]));
    vec![node("location", [name]).block(first), node("location", [then.as_str()]).block(body)]
}

/// Makes the directives for one match of a rule. `made` has the names of what the server has already.
pub(crate) fn serve(
    serving: Serving<'_>,
    ruled: Ruled<'_>,
    place: &Place<'_>,
    made: &mut BTreeSet<String>,
) -> Served {
    let mut served = Served::default();
    let matches = matches::words(place.found, serving.kind, false);
    let closed = match matches.faults.is_empty() {
        true => access::closed(&ruled),
        false => Some("500"),
    };
    if let Some(status) = closed {
        let name = format!("@{}", place.id);
        served.routes.push(route_line(&name, &matches.words, []));
        served.locations.push(node("location", [name]).block(vec![node("return", [status])]));
        return served;
    }
    let guard = access::guard(&ruled, place, serving.globals, made);
    served.http.extend(guard.http.iter().cloned());
    served.locations.extend(guard.helpers.iter().cloned());
    if let Some(cors) = wanted_cors(&ruled) {
        let asked = matches::words(place.found, serving.kind, true);
        cors::preflight(cors, &asked.words, &guard.lists, place, &mut served);
    }
    RuleBuilder { serving, ruled, guard: &guard, served: &mut served }.serve(&matches.words, place);
    served
}

/// Joins the checks of policies and those of a filter. Of two limits of bodies the smaller one holds; that of the ConfigMap is one, if
/// no policy has any.
fn gate(guard: &Guard, check: Vec<Node>, globals: &Globals) -> Vec<Node> {
    let is_size = |n: &Node| n.name == b"client_max_body_size";
    let mut own: Vec<Node> = guard.gate.clone();
    if check.iter().any(is_size) && !own.iter().any(is_size) {
        own.extend(
            parse_size(globals.settings.get("proxy-body-size"))
                .map(|size| node("client_max_body_size", [size])),
        );
    }
    let (sizes, mut all): (Vec<Node>, Vec<Node>) = own.into_iter().chain(check).partition(is_size);
    let bytes =
        |n: &Node| n.args.first().and_then(|word| forebay_conf::units::size(word)).filter(|size| *size > 0);
    all.extend(sizes.into_iter().min_by_key(|n| bytes(n).unwrap_or(u64::MAX)));
    all
}

fn route_line<const N: usize>(name: &str, conditions: &[String], more: [String; N]) -> Node {
    let words = std::iter::once(name.to_owned()).chain(conditions.iter().cloned()).chain(more);
    let mut words: Vec<String> = words.collect();
    if words.len() == 1 {
        // A match of which no part can be used is one of all requests, and a line needs a condition.
        words.extend(["$uri", "^/"].map(str::to_owned));
    }
    node("route", words)
}

/// Returns the answers to pages of other origins: those of the rule, else those of the policy.
fn wanted_cors<'a>(ruled: &Ruled<'a>) -> Option<&'a Cors> {
    let own = ruled.rule.filters.iter().find_map(|f| f.cors.as_ref());
    own.or(ruled.policy.cors.as_ref())
}

/// Builder of the directives of a rule for one match.
struct RuleBuilder<'a> {
    serving: Serving<'a>,
    ruled: Ruled<'a>,
    guard: &'a Guard,
    served: &'a mut Served,
}

impl RuleBuilder<'_> {
    fn serve(&mut self, conditions: &[String], place: &Place<'_>) {
        let name = format!("@{}", place.id);
        if let Some(redirect) = self.ruled.rule.filters.iter().find_map(|f| f.request_redirect.as_ref()) {
            self.served.routes.push(route_line(&name, conditions, []));
            return self.redirect(&name, redirect, place);
        }
        let used: Vec<&Choice> = self.ruled.choices.iter().filter(|c| c.weight > 0).collect();
        if used.len() < 2 {
            self.served.routes.push(route_line(&name, conditions, []));
            return self.location(&name, used.first().copied(), place);
        }
        let variable = self.choose(&used, place);
        for (index, choice) in used.iter().enumerate() {
            let name = format!("@{}_{index}", place.id);
            self.served.routes.push(route_line(&name, conditions, [variable.clone(), format!("={index}")]));
            let id = format!("{}_{index}", place.id);
            self.location(&name, Some(choice), &Place { id, index: Some(index), ..place.clone() });
        }
    }

    /// Adds the location of a redirect.
    fn redirect(&mut self, name: &str, redirect: &Redirect, place: &Place<'_>) {
        let check = self.external(place);
        let gate = gate(self.guard, check.gate, self.serving.globals);
        let mut body = check.after;
        body.extend(paths::redirect_body(redirect, self.ruled.rule, place));
        self.served.locations.extend(gated(name, gate, body, true));
    }

    /// Makes the variable with the number of the backend of a request. The choice is a condition like the others. It stays the same for a
    /// request, as its number does.
    fn choose(&mut self, used: &[&Choice], place: &Place<'_>) -> String {
        let variable = format!("$choice_{}", place.id);
        let total: u64 = used.iter().map(|c| u64::from(c.weight)).sum();
        let mut parts = Vec::new();
        for (index, choice) in used.iter().enumerate() {
            let share = match index + 1 == used.len() {
                true => "*".to_owned(),
                false => percent(u64::from(choice.weight), total),
            };
            // A share that is rounded to nothing cannot be written.
            if share != "0.00%" {
                parts.push(node(&share, [index.to_string()]));
            }
        }
        self.served.http.push(node("split_clients", ["$request_id", &variable]).block(parts));
        match self.stay(&place.id) {
            Some(stay) => self.keep_choice(&stay, variable, used.len(), place),
            None => variable,
        }
    }

    /// Makes the variable with the number of the backend that the cookie of a client names, else that of `variable`.
    fn keep_choice(&mut self, stay: &Stay, variable: String, backends: usize, place: &Place<'_>) -> String {
        let mut entries = vec![node("default", [variable])];
        let mut source = String::new();
        for index in 0..backends {
            let (variable, pattern) = persistence::sign(stay, index);
            source = variable;
            entries.push(node(&pattern, [index.to_string()]));
        }
        let chosen = format!("$stay_{}", place.id);
        self.served.http.push(node("map", [source.as_str(), &chosen]).block(entries));
        chosen
    }

    /// Returns the server that clients stay with: the wish of the rule, else that of the policy.
    fn stay(&self, id: &str) -> Option<Stay> {
        match &self.ruled.rule.session_persistence {
            Some(wish) => persistence::read(wish, id).ok(),
            None => self.ruled.policy.stay.clone(),
        }
    }

    /// Makes the check by the service that a filter names.
    fn external(&mut self, place: &Place<'_>) -> external_auth::Check {
        let filter = self.ruled.rule.filters.iter().find_map(|f| f.external_auth.as_ref());
        let Some(filter) = filter else { return external_auth::Check::default() };
        let Serving { cluster, route, kind, .. } = self.serving;
        let mut check = match backend(cluster, route, kind, &filter.backend_ref) {
            Ok(backend) => {
                self.served.specs.push(backend.spec.clone());
                external_auth::check(filter, &backend, place, &mut self.served.files)
            }
            // The rule is closed before it comes to this.
            Err(_) => {
                external_auth::Check { gate: vec![node("deny", ["all"])], ..external_auth::Check::default() }
            }
        };
        self.served.locations.append(&mut check.locations);
        check
    }

    /// Makes the location for a backend.
    fn location(&mut self, name: &str, choice: Option<&Choice>, place: &Place<'_>) {
        let Some((choice, backend)) = choice.and_then(|c| Some((c, c.backend.as_ref()?))) else {
            self.served.locations.push(node("location", [name]).block(vec![node("return", ["500"])]));
            return;
        };
        let check = self.external(place);
        let gate = gate(self.guard, check.gate, self.serving.globals);
        let early = !check.after.is_empty();
        let mut body = check.after;
        body.extend(self.body(choice, backend, check.fields, place));
        self.served.locations.extend(gated(name, gate, body, early));
    }

    /// Makes the body of the location for a backend. `given` are fields that a service has given.
    fn body(
        &mut self,
        choice: &Choice,
        backend: &Backend,
        given: Vec<(String, String)>,
        place: &Place<'_>,
    ) -> Vec<Node> {
        let backend = Backend { spec: self.group(backend, place), ..backend.clone() };
        self.served.specs.push(backend.spec.clone());
        let filters: Vec<&Filter> = self.ruled.rule.filters.iter().chain(&choice.filters).collect();
        let mut location = LocationBuilder::new(self.serving, &backend);
        location.add_policy(self.ruled.policy);
        filters.iter().for_each(|filter| location.add_filter(filter, place));
        // Nobody but this server and the service set these.
        let shown = access::shown(place.verified);
        for (name, value) in shown.chain(given).chain(self.guard.fields.iter().cloned()) {
            location.headers.set(&name, value);
        }
        let mut nodes = location.nodes;
        if let Some(cors) = wanted_cors(&self.ruled) {
            cors::answer(cors, &place.id, &mut self.served.http, &mut nodes);
        }
        let copies = filters.iter().filter_map(|f| f.request_mirror.as_ref());
        let fields = location.headers.of_copy(self.serving.globals);
        nodes.extend(mirror::mirrors(&self.serving, copies, &fields, place, self.served));
        nodes.extend(location.rewrites);
        nodes.extend(location.headers.nodes());
        nodes.extend(self.settings(backend.protocol));
        nodes.extend(tls::pass(&backend, place.certificate, &mut self.served.files));
        nodes
    }

    /// Returns the group of a backend, with what the rule and the policy say about the choice of its servers.
    fn group(&self, backend: &Backend, place: &Place<'_>) -> Arc<Spec> {
        let spec = staying(&backend.spec, self.stay(&place.id).as_ref(), place.index);
        match self.ruled.policy.balance.clone() {
            Some(balance) => Arc::new(Spec { balance, ..Spec::clone(&spec) }),
            None => spec,
        }
    }

    /// Returns the settings of the rule, and those of the policy that the rule does not have itself.
    fn settings(&self, protocol: Protocol) -> Vec<Node> {
        let own = limits::limits(self.ruled.rule, protocol);
        let protocol = match protocol {
            Protocol::Grpc => model::Protocol::Grpc,
            Protocol::Http | Protocol::Http2 => model::Protocol::Http,
        };
        let mut nodes = guard::settings(&self.ruled.policy.policy, protocol);
        nodes.retain(|n| !own.iter().any(|o| o.name == n.name));
        nodes.extend(own);
        nodes
    }
}

/// Builder of the location of a backend.
struct LocationBuilder {
    nodes: Vec<Node>,
    /// Lines with new paths. `rewrite ... break` ends the directives of its kind, so they come after all `set` and `if`.
    rewrites: Vec<Node>,
    /// Fields of requests.
    headers: Headers,
}

impl LocationBuilder {
    fn new(serving: Serving<'_>, backend: &Backend) -> LocationBuilder {
        let headers = Headers::new(backend.protocol, serving.globals);
        LocationBuilder { nodes: names(serving, backend), rewrites: Vec::new(), headers }
    }

    /// Adds the fields that policies set.
    fn add_policy(&mut self, applied: &Applied) {
        if applied.policy.passwords.is_some() {
            // The password is for this server.
            self.headers.set("Authorization", String::new());
        }
        for (name, value) in access::unasked(applied) {
            self.headers.set(name, value);
        }
        for (name, value) in &applied.policy.headers {
            self.headers.set(name, value.clone());
        }
        let fields = applied.policy.response_headers.iter();
        self.nodes.extend(fields.map(|(name, value)| node("more_set_headers", [format!("{name}: {value}")])));
    }

    /// Adds what a filter changes of requests and answers.
    fn add_filter(&mut self, filter: &Filter, place: &Place<'_>) {
        if let Some(changes) = &filter.request_header_modifier {
            self.headers.change(changes, &place.id, &mut self.nodes);
        }
        if let Some(changes) = &filter.response_header_modifier {
            answer_fields(changes, &mut self.nodes);
        }
        if let Some(rewrite) = &filter.url_rewrite {
            if let Some(host) = &rewrite.hostname {
                self.headers.set("Host", literal(host));
            }
            let path = rewrite.path.iter();
            self.rewrites.extend(path.flat_map(|p| paths::rewrite_path(p, &paths::prefix(place.found))));
        }
    }
}

/// Returns the variables that logs and metrics show, in the spelling of Ingresses.
fn names(serving: Serving<'_>, backend: &Backend) -> Vec<Node> {
    let Spec { service, port, .. } = &*backend.spec;
    let (port, route) = (port_text(port), serving.route);
    let mut own = vec![
        ("$proxy_upstream_name", format!("{}-{}-{port}", service.namespace, service.name)),
        ("$namespace", route.metadata.namespace.clone()),
        ("$ingress_name", route.metadata.name.clone()),
        ("$service_name", service.name.clone()),
        ("$service_port", port),
    ];
    let is_wanted =
        |name: &str| serving.globals.variables.iter().any(|wanted| name.strip_prefix('$') == Some(wanted));
    own.retain(|(name, _)| *name == "$proxy_upstream_name" || is_wanted(name));
    own.into_iter().map(|(name, value)| node("set", [name.to_owned(), literal(&value)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        assert_eq!(percent(1, 3), "33.33%");
        assert_eq!(percent(1, 100_000), "0.00%");
        assert_eq!(percent(100, 100), "100.00%");
    }

    #[test]
    fn answers_that_come_early_come_behind_their_checks() {
        let gate = || vec![node("deny", ["all"])];
        let body = || vec![node("return", ["301"])];
        assert_eq!(gated("@a", Vec::new(), body(), true).len(), 1);
        assert_eq!(gated("@a", gate(), body(), false).len(), 1);
        let both = gated("@a", gate(), body(), true);
        let text = String::from_utf8(print(&both).expect("words")).expect("UTF-8");
        assert!(text.contains("try_files /.forebay/none @a_then;"), "{text}");
        assert!(text.find("return").expect("it") > text.find("location @a_then").expect("it"), "{text}");
    }
}
