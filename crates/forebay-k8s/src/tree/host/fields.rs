//! The fields of requests of which the server is the author: which they are, their values, and that none comes from a client.
//!
//! They stand in the location that passes the request on. A snippet with a `proxy_set_header` would end the inheritance of what
//! stands further out. A field without a value is empty, so that the upstream does not get the one of the client.

use super::super::{merge, node};
use super::{Out, is_exempt};
use crate::ingress::Globals;
use crate::model::{Protocol, Route, Server};
use forebay_conf::Node;
use std::collections::BTreeSet;

/// Name and value of a field.
pub(super) type Field = (String, String);

/// Kind of directives that set fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Proxy,
    Grpc,
    /// Fields are parameters of the name `HTTP_*`.
    Fastcgi,
}

impl Family {
    pub(super) fn of(protocol: Protocol) -> Family {
        match protocol {
            Protocol::Grpc | Protocol::Grpcs => Family::Grpc,
            Protocol::Fcgi => Family::Fastcgi,
            Protocol::Http | Protocol::Https | Protocol::Auto => Family::Proxy,
        }
    }

    fn directive(self) -> &'static str {
        match self {
            Family::Proxy => "proxy_set_header",
            Family::Grpc => "grpc_set_header",
            Family::Fastcgi => "fastcgi_param",
        }
    }

    /// Makes the directives of fields.
    pub(super) fn set(self, fields: &[Field]) -> Vec<Node> {
        // These are about one connection of HTTP/1.
        let own = |name: &str| matches!(name, "Upgrade" | "Connection");
        let some = fields.iter().filter(|(name, _)| self == Family::Proxy || !own(name));
        some.map(|(name, value)| match self {
            // A field without a value is not sent. The client's own is not either way.
            Family::Fastcgi => {
                let name = format!("HTTP_{}", name.to_ascii_uppercase().replace('-', "_"));
                node(self.directive(), [name, value.clone(), "if_not_empty".to_owned()])
            }
            _ => node(self.directive(), [name.clone(), value.clone()]),
        })
        .collect()
    }
}

/// Returns the fields of a helper's request: the general ones, those of certificates, and own ones in place of their namesakes.
pub(super) fn with(out: &Out<'_>, own: &[Field]) -> Vec<Node> {
    let general = Family::Proxy.set(&out.globals.headers);
    let certificate = Family::Proxy.set(&certificate(out.server, false));
    merge::join(merge::join(general, &certificate), &Family::Proxy.set(own))
}

/// Returns the fields of a request that goes elsewhere in place of a route's upstream, or beside it. Those that an authentication
/// service gives are empty, and those of the operator's snippets are there.
pub(super) fn beside(out: &Out<'_>, route: &Route, own: &[Field]) -> Vec<Node> {
    let mut fields = unauthorized(out, route);
    fields.extend(own.iter().cloned());
    let mut general = Family::Proxy.set(&out.globals.headers);
    for snippet in [&out.globals.snippets.http, &out.globals.snippets.server, &out.globals.snippets.location]
    {
        let set = |n: &&Node| n.name == Family::Proxy.directive().as_bytes();
        let own: Vec<Node> = snippet.iter().filter(set).cloned().collect();
        general = merge::join(general, &own);
    }
    let certificate = Family::Proxy.set(&certificate(out.server, false));
    merge::join(merge::join(general, &certificate), &Family::Proxy.set(&fields))
}

/// Returns the directives of the fields that a route's upstream gets. `authorized`: those that an authentication service gives.
pub(super) fn of_route(out: &Out<'_>, route: &Route, family: Family, authorized: Vec<Field>) -> Vec<Node> {
    let globals = out.globals;
    let mut nodes = family.set(&globals.headers);
    // Fields of the operator's snippets would not reach a location with fields of its own.
    for snippet in [&globals.snippets.http, &globals.snippets.server] {
        let set = |n: &&Node| n.name == family.directive().as_bytes();
        let own: Vec<Node> = snippet.iter().filter(set).cloned().collect();
        nodes = merge::join(nodes, &own);
    }
    let policy = &route.policy;
    let mut own = certificate(out.server, policy.clients.as_ref().is_some_and(|c| c.pass));
    own.extend(password(out, route));
    own.extend(unauthorized(out, route));
    own.extend(policy.headers.iter().cloned());
    nodes = merge::join(nodes, &family.set(&own));
    merge::join(nodes, &family.set(&authorized))
}

/// Returns the fields about the client's certificate. They are there whenever a server asks for certificates. `whole`: with the
/// certificate itself.
pub(super) fn certificate(server: &Server, whole: bool) -> Vec<Field> {
    if server.tls.clients.is_none() {
        return Vec::new();
    }
    let fields = [
        ("ssl-client-verify", "$ssl_client_verify"),
        ("ssl-client-subject-dn", "$ssl_client_s_dn"),
        ("ssl-client-issuer-dn", "$ssl_client_i_dn"),
        ("ssl-client-cert", if whole { "$ssl_client_escaped_cert" } else { "" }),
    ];
    fields.map(|(n, v)| (n.to_owned(), v.to_owned())).into()
}

/// Returns the field that keeps the password of `auth_basic` from the upstream.
pub(super) fn password(out: &Out<'_>, route: &Route) -> Option<Field> {
    let exempt = is_exempt(out.globals, "no-auth-locations", route.path.path());
    let checked = route.policy.passwords.is_some() && !exempt;
    checked.then(|| ("Authorization".to_owned(), String::new()))
}

/// Returns the fields that an authentication service would set for a path that it is not asked for, empty. Those in which clients
/// show who they are stay.
fn unauthorized(out: &Out<'_>, route: &Route) -> Vec<Field> {
    let general = out.globals.settings.list("global-auth-response-headers");
    let general = general.flat_map(|part| part.split_ascii_whitespace()).map(str::to_owned);
    let own = route.policy.authority.iter().flat_map(|a| a.response_headers.iter().cloned());
    let names: BTreeSet<String> = match out.globals.settings.some("global-auth-url") {
        Some(_) => general.chain(own).collect(),
        None => own.collect(),
    };
    let shown =
        |name: &str| name.eq_ignore_ascii_case("Authorization") || name.eq_ignore_ascii_case("Cookie");
    names.into_iter().filter(|n| n != "*" && !shown(n)).map(|n| (n, String::new())).collect()
}

/// Names of the fields that tell a default backend why it is asked.
const REASONS: [&str; 7] = [
    "X-Code",
    "X-Format",
    "X-Original-URI",
    "X-Namespace",
    "X-Ingress-Name",
    "X-Service-Name",
    "X-Service-Port",
];

/// Returns the same fields, empty, for a default backend that is asked because no rule takes the request.
pub(super) fn no_reasons() -> Vec<Field> {
    let own = REASONS.iter().filter(|name| **name != "X-Original-URI");
    own.map(|name| ((*name).to_owned(), String::new())).collect()
}

/// Returns the fields that tell a default backend why it is asked in place of the upstream of a route.
pub(super) fn reasons(code: u16, route: &Route) -> Vec<Field> {
    let origin = route.origin.clone();
    let values = [
        code.to_string(),
        "$http_accept".to_owned(),
        "$request_uri".to_owned(),
        origin.object.namespace,
        origin.object.name,
        origin.service,
        origin.port,
    ];
    REASONS.iter().map(|name| (*name).to_owned()).zip(values).collect()
}

/// Makes the directives of `http`: the value of `Forwarded`, which only trusted proxies may send, whether cookies are for encrypted
/// connections only, and the removal of fields whose names are the ones above with `_` in place of `-`. Many programs take them for
/// the same.
pub(in crate::tree) fn http(globals: &Globals) -> Vec<Node> {
    let forwarded = if globals.settings.flag("use-forwarded-headers") {
        let entries = vec![node("default", [""]), node("1", ["$http_forwarded"])];
        node("map", ["$forwarded_trusted", "$trusted_forwarded"]).block(entries)
    } else {
        node("map", ["$host", "$trusted_forwarded"]).block(vec![node("default", [""])])
    };
    let secure = vec![node("default", [""]), node("https", ["1"])];
    let secure = node("map", ["$pass_access_scheme", "$secure_cookie"]).block(secure);
    [forwarded, secure].into_iter().chain(removal(globals, general(globals))).collect()
}

/// Returns `true` if the settings drop fields whose names have a `_`.
fn drops_underscores(globals: &Globals) -> bool {
    let s = &globals.settings;
    !s.flag("enable-underscores-in-headers") && s.flag("ignore-invalid-headers")
}

/// Names of the fields that an authentication service gets.
const OF_SERVICES: [&str; 5] =
    ["X-Original-URI", "X-Original-URL", "X-Original-Method", "X-Sent-From", "X-Auth-Request-Redirect"];

/// Returns the names of fields that all requests have, and of those that services of the server get.
fn general(globals: &Globals) -> impl Iterator<Item = &str> {
    let certificate =
        ["ssl-client-verify", "ssl-client-subject-dn", "ssl-client-issuer-dn", "ssl-client-cert"];
    let general = globals.headers.iter().map(|(name, _)| name.as_str());
    let answers = globals.settings.list("global-auth-response-headers");
    let answers = answers.flat_map(|part| part.split_ascii_whitespace());
    general.chain(certificate).chain(answers).chain(OF_SERVICES).chain(REASONS)
}

/// Makes the removal of fields that look like those that all requests have, and like those that services of the server get.
pub(crate) fn lookalikes(globals: &Globals) -> Node {
    node("more_clear_input_headers", general(globals).flat_map(spelled).collect::<BTreeSet<_>>())
}

/// Makes the same of the fields that a route has in addition.
pub(super) fn lookalikes_of(out: &Out<'_>, route: &Route, authorized: &[Field]) -> Option<Node> {
    let policy = &route.policy;
    let asked = policy.authority.iter().flat_map(|a| a.headers.iter());
    let unauthorized = unauthorized(out, route);
    let own = authorized.iter().chain(&unauthorized).chain(asked).chain(&policy.headers);
    removal(out.globals, own.map(|(name, _)| name.as_str()))
}

/// Makes the removal of other spellings of names, as far as the settings let such fields in.
fn removal<'a>(globals: &Globals, names: impl Iterator<Item = &'a str>) -> Option<Node> {
    let mut removal = other_spellings(names)?;
    if drops_underscores(globals) {
        removal.args.retain(|name| !name.contains(&b'_'));
    }
    (!removal.args.is_empty()).then_some(removal)
}

/// Makes the removal of fields whose names look like these. `None`: there are no such names.
pub(crate) fn other_spellings<'a>(names: impl Iterator<Item = &'a str>) -> Option<Node> {
    let names: BTreeSet<String> = names.flat_map(spelled).collect();
    (!names.is_empty()).then(|| node("more_clear_input_headers", names))
}

/// Most places of a name whose other spellings are listed.
const MOST_PLACES: usize = 10;

/// Returns the other spellings of a name: each `-` may be a `_`, and each `_` a `-`.
fn spelled(name: &str) -> Vec<String> {
    let places: Vec<usize> = name.match_indices(['-', '_']).map(|(i, _)| i).take(MOST_PLACES).collect();
    let spelling = |bits: u32| {
        let at = |i: usize| places.iter().position(|h| *h == i).is_some_and(|n| bits & (1 << n) != 0);
        let other = |c| if c == '-' { '_' } else { '-' };
        name.char_indices().map(|(i, c)| if at(i) { other(c) } else { c.to_ascii_lowercase() }).collect()
    };
    (1..1 << places.len()).map(spelling).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings() {
        assert_eq!(spelled("Host"), [""; 0]);
        assert_eq!(spelled("X-Real-IP"), ["x_real-ip", "x-real_ip", "x_real_ip"]);
        assert_eq!(spelled("X_User-ID"), ["x-user-id", "x_user_id", "x-user_id"]);
        assert_eq!(spelled("A-B-C-D-E-F-G-H").len(), 127);
    }

    #[test]
    fn families() {
        let fields = [("X-Real-IP".to_owned(), "$remote_addr".to_owned()), ("Upgrade".into(), "x".into())];
        let names = |family: Family| {
            let made = family.set(&fields);
            made.iter().map(|n| String::from_utf8_lossy(&n.args[0]).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(Family::Proxy), ["X-Real-IP", "Upgrade"]);
        assert_eq!(names(Family::Grpc), ["X-Real-IP"]);
        assert_eq!(names(Family::Fastcgi), ["HTTP_X_REAL_IP"]);
    }
}
