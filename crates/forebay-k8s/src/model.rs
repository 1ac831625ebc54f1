//! The inner model: servers, routes, actions and groups. Ingresses become it, and it becomes directives.
//!
//! It knows nothing of Kubernetes' kinds and nothing of the syntax of directives, so that routes of other APIs fit in as well.

use crate::objects::Key;
use forebay_conf::Node;
use std::sync::Arc;

/// Names of a virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostName {
    /// One name, or `*.NAME`.
    Name(String),
    /// All hosts that no other server has.
    Any,
}

impl HostName {
    /// Returns the name; `_` for all hosts.
    pub fn as_str(&self) -> &str {
        match self {
            HostName::Name(name) => name,
            HostName::Any => "_",
        }
    }
}

/// A file in memory, by the path that directives name it with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Path relative to the directory of the main file.
    pub path: String,
    /// Content.
    pub bytes: Arc<[u8]>,
}

/// Certificate and key of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Chain.
    pub chain: File,
    /// Private key.
    pub key: File,
}

/// Certificates that clients must show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientCertificates {
    /// Authorities.
    pub authorities: Option<File>,
    /// Revoked certificates.
    pub revoked: Option<File>,
    /// `on`, `off`, `optional` or `optional_no_ca`.
    pub verify: String,
    /// Longest chain.
    pub depth: i64,
    /// Page for those without one.
    pub error_page: Option<String>,
    /// Pattern of their subjects, for all paths of the host.
    pub match_cn: Option<String>,
}

/// TLS of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificate; `None`: the default one, if there is any.
    pub certificate: Option<CertificateFiles>,
    /// Client certificates.
    pub clients: Option<ClientCertificates>,
    /// `ssl_ciphers`.
    pub ciphers: Option<String>,
    /// `ssl_prefer_server_ciphers`.
    pub prefer_server_ciphers: Option<bool>,
}

/// A virtual server.
#[derive(Clone, Debug)]
pub struct Server {
    /// Name.
    pub host: HostName,
    /// More names.
    pub aliases: Vec<String>,
    /// TLS.
    pub tls: Tls,
    /// Routes in the order of their files.
    pub routes: Vec<Route>,
    /// Paths are regular expressions without regard to case.
    pub regex: bool,
    /// Redirect of `/`.
    pub app_root: Option<AppRoot>,
    /// Names that redirect to this one.
    pub redirected_from: Option<String>,
    /// The default certificate is enough for redirects to https: the Ingress asks for TLS without a Secret.
    pub wants_tls: bool,
    /// Limits whose zones the file of the server defines, whether its routes use them or not: those of other hosts may.
    pub zones: Vec<Arc<Policy>>,
    /// Directives of a snippet.
    pub snippet: Vec<Node>,
}

/// Redirect of `/` to another path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppRoot {
    /// Path.
    pub path: String,
    /// Whether requests without TLS are redirected to https first.
    pub https: Https,
}

/// Redirect of requests without TLS to https.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Https {
    /// There is none.
    #[default]
    Optional,
    /// There is one if the server has a certificate.
    WithCertificate,
    /// There is one in any case.
    Always,
}

impl Https {
    /// Returns the redirect of the settings `ssl-redirect` and `force-ssl-redirect`.
    pub fn new(wanted: bool, forced: bool) -> Https {
        match (wanted, forced) {
            (_, true) => Https::Always,
            (true, false) => Https::WithCertificate,
            (false, false) => Https::Optional,
        }
    }
}

/// Condition of a route on the path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathMatch {
    /// The whole path.
    Exact(String),
    /// Whole segments at the beginning.
    Prefix(String),
    /// Characters at the beginning (ImplementationSpecific).
    Start(String),
}

impl PathMatch {
    /// Returns the path.
    pub fn path(&self) -> &str {
        match self {
            PathMatch::Exact(p) | PathMatch::Prefix(p) | PathMatch::Start(p) => p,
        }
    }
}

/// Origin of a route, for variables and reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Namespace and name of the object.
    pub object: Key,
    /// Name of the Service.
    pub service: String,
    /// Port of the Service as written.
    pub port: String,
}

/// Route of a server.
#[derive(Clone, Debug)]
pub struct Route {
    /// Condition.
    pub path: PathMatch,
    /// The path is written with a slash at its end, which matters where paths are regular expressions.
    pub slash: bool,
    /// Origin.
    pub origin: Origin,
    /// What is done with the request.
    pub action: Action,
    /// Everything else.
    pub policy: Arc<Policy>,
}

/// What is done with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It goes to a group.
    Forward(Forward),
    /// It is redirected.
    Redirect {
        /// Status.
        code: i64,
        /// Target, with variables.
        url: String,
    },
    /// It is answered with a status.
    Answer(u16),
}

/// Protocol to the servers of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Protocol {
    #[default]
    Http,
    Https,
    /// As the client came: `http` or `https`.
    Auto,
    Grpc,
    Grpcs,
    Fcgi,
}

/// Forwarding to a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forward {
    /// Name of the group.
    pub group: String,
    /// Groups that take a part of the requests, in the order in which they are asked.
    pub alternatives: Vec<Alternative>,
    /// Protocol.
    pub protocol: Protocol,
    /// Regular expression and replacement of the path.
    pub rewrite: Option<(String, String)>,
}

/// A group that takes a part of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alternative {
    /// Name of the group.
    pub group: String,
    /// Name for logs, in ingress-nginx's spelling.
    pub name: String,
    /// Cookie of affinity, and the mark of its values that belong to the group.
    pub sticky: Option<(String, String)>,
    /// Header that decides.
    pub header: Option<HeaderChoice>,
    /// Cookie that decides: `always` and `never`.
    pub cookie: Option<String>,
    /// Share of the other requests, in ten thousandths.
    pub share: u32,
}

/// Header that decides on an alternative.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChoice {
    /// Name.
    pub name: String,
    /// Value; `None`: `always` and `never`.
    pub value: Option<HeaderValue>,
}

/// Value of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValue {
    /// This one.
    Exact(String),
    /// Those that a regular expression matches.
    Regex(String),
}

/// A directive of one annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Name.
    pub name: &'static str,
    /// Words.
    pub words: Vec<String>,
}

/// Networks that are let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    /// These are not.
    pub deny: Vec<String>,
    /// Only these are, if there are any.
    pub allow: Vec<String>,
}

/// Names and passwords.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passwords {
    /// Realm.
    pub realm: String,
    /// File of names and hashed passwords.
    pub path: String,
}

/// Service that decides on requests (`auth_request`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authority {
    /// URL with variables.
    pub url: String,
    /// Host of the URL, the value of the `Host` field; empty: as the client sent it.
    pub host: String,
    /// Method of the subrequest.
    pub method: Option<String>,
    /// Page to log in at, and the name of the parameter with the URL of the request.
    pub signin: Option<(String, String)>,
    /// Value of `X-Auth-Request-Redirect`.
    pub redirect: Option<String>,
    /// Fields of its answer that the upstream gets.
    pub response_headers: Vec<String>,
    /// Fields of the subrequest.
    pub headers: Vec<(String, String)>,
    /// Key of kept answers, and how long they are kept by status.
    pub cache: Option<(String, Vec<Vec<String>>)>,
    /// Connections that are kept open, and their `keepalive_requests` and `keepalive_timeout`.
    pub keepalive: Option<(i64, i64, i64)>,
    /// Its cookies are set whatever the status.
    pub always_set_cookie: bool,
    /// Directives of a snippet.
    pub snippet: Vec<Node>,
}

/// Unit of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// Requests a second.
    Second,
    /// Requests a minute.
    Minute,
    /// Connections at a time.
    Connections,
}

/// Limit of requests or connections of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Name of the zone.
    pub zone: String,
    /// Unit.
    pub kind: LimitKind,
    /// Number.
    pub number: i64,
    /// Requests above the rate that pass at once.
    pub burst: i64,
    /// All replicas count together.
    pub cluster: bool,
}

/// Limits of an Ingress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Limits.
    pub limits: Vec<Limit>,
    /// Networks without limits.
    pub free: Vec<String>,
    /// The zones are defined in the file of this host; they are for all hosts of the Ingress.
    pub defined_here: bool,
}

/// Answers to requests of pages of other origins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cors {
    /// Origins; empty: all.
    pub origins: Vec<String>,
    /// `Access-Control-Allow-Methods`.
    pub methods: String,
    /// `Access-Control-Allow-Headers`.
    pub headers: String,
    /// `Access-Control-Expose-Headers`.
    pub expose: String,
    /// `Access-Control-Allow-Credentials`.
    pub credentials: bool,
    /// `Access-Control-Max-Age`.
    pub max_age: i64,
}

/// Pages for statuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Statuses.
    pub codes: Vec<u16>,
    /// Group that answers in their place.
    pub group: String,
}

/// Copies of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirror {
    /// URL with variables.
    pub target: String,
    /// Value of the `Host` field.
    pub host: String,
    /// Bodies are copied, too.
    pub body: bool,
}

/// Conditions on the certificate of the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientPolicy {
    /// Regular expression for the subject.
    pub match_cn: Option<String>,
    /// The upstream gets the certificate.
    pub pass: bool,
    /// The route needs a certificate that has been verified, whatever the mode of the host is.
    pub required: bool,
}

/// Everything about a route but its condition and action. Routes of one Ingress share it.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Text that no other Ingress has, for names of locations and variables.
    pub id: String,
    /// Directives that need no more than their words.
    pub plain: Vec<Plain>,
    /// Whether requests without TLS are redirected to https.
    pub https: Https,
    /// Networks that are let in.
    pub networks: Networks,
    /// Names and passwords.
    pub passwords: Option<Passwords>,
    /// Service that decides on requests.
    pub authority: Option<Authority>,
    /// Conditions on the certificate of the client.
    pub clients: Option<ClientPolicy>,
    /// Limits.
    pub limits: Limits,
    /// Pages of other origins.
    pub cors: Option<Cors>,
    /// Pages for statuses.
    pub errors: Option<Errors>,
    /// Group that answers while the one of a route has no servers.
    pub stand_in: Option<String>,
    /// Copies of requests.
    pub mirror: Option<Mirror>,
    /// Fields of requests to the upstream, in place of the general ones of the same names.
    pub headers: Vec<(String, String)>,
    /// Fields of answers.
    pub response_headers: Vec<(String, String)>,
    /// Parameters for FastCGI.
    pub fastcgi: Vec<(String, String)>,
    /// Directives of a snippet.
    pub snippet: Vec<Node>,
}
