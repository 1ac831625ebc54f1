//! Options of the controller, named as ingress-nginx's flags.

use crate::objects::Key;
use std::sync::Arc;

/// Certificate and key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Chain, the certificate of the server first.
    pub chain: Arc<[u8]>,
    /// Private key.
    pub key: Arc<[u8]>,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificate")
    }
}

/// Options of a translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `--ingress-class`: the name of the class, also in the annotation `kubernetes.io/ingress.class`.
    pub ingress_class: String,
    /// `--controller-class`: `spec.controller` of the classes that are ours.
    pub controller_class: String,
    /// `--ingress-class-by-name`: classes of the name [`Options::ingress_class`] are ours, whatever their controller.
    pub ingress_class_by_name: bool,
    /// `--watch-ingress-without-class`.
    pub watch_ingress_without_class: bool,
    /// `--watch-namespace`; empty: all.
    pub watch_namespaces: Vec<String>,
    /// `--watch-namespace-selector`: Ingresses of other namespaces, and of those that are not known, are not served.
    pub namespace_selector: crate::selector::Selector,
    /// `--disable-catch-all`: Ingresses with a default backend and rules without a host are not served.
    pub disable_catch_all: bool,
    /// `--topology-zone`: endpoints that EndpointSlices hint to this zone are preferred. Empty: all are used.
    pub topology_zone: String,
    /// `--configmap`.
    pub config_map: Option<Key>,
    /// `--default-backend-service`.
    pub default_backend_service: Option<Key>,
    /// `--default-ssl-certificate`: a Secret.
    pub default_ssl_certificate: Option<Key>,
    /// Certificate for hosts without one while there is no [`Options::default_ssl_certificate`]. The caller makes it.
    pub made_certificate: Option<Certificate>,
    /// `--tcp-services-configmap`.
    pub tcp_services: Option<Key>,
    /// `--udp-services-configmap`.
    pub udp_services: Option<Key>,
    /// `--http-port`.
    pub http_port: u16,
    /// `--https-port`.
    pub https_port: u16,
    /// Ports of redirects and of `X-Forwarded-Port`, if a Service maps others to those above.
    pub public_https_port: u16,
    /// `--enable-ssl-passthrough`.
    pub enable_ssl_passthrough: bool,
    /// Port of 127.0.0.1 to which the stream block passes TLS sessions that are no passthrough. The one before it is used, too.
    pub ssl_passthrough_proxy_port: u16,
    /// Secret of which [`TICKET_KEYS`] are keys of TLS session tickets.
    pub session_tickets: Option<Key>,
    /// `--ignore-missing-waf`: what asks for ModSecurity is served without it.
    pub ignore_missing_waf: bool,
    /// `--disable-svc-external-name`.
    pub disable_svc_external_name: bool,
    /// `--annotations-prefix`.
    pub annotations_prefix: String,
    /// `--enable-annotation-validation`: with `false`, values that have a wrong shape are still refused, since nothing else could
    /// be done with them; it is here so that a command line carries over.
    pub enable_annotation_validation: bool,
    /// `--healthz-port`-like location of the status: `server` on 127.0.0.1 with `stub_status`; 0: none.
    pub status_port: u16,
    /// Name servers for ExternalName Services, as words of `resolver`. Empty: `resolver` is left out, and such Services are refused.
    pub resolvers: Vec<String>,
    /// Domains below which names of ExternalName Services are looked for first (`search` of resolv.conf).
    pub search: Vec<String>,
    /// Names with at least so many dots are not looked for there (`ndots` of resolv.conf).
    pub ndots: usize,
    /// Addresses that are never an upstream: the API server's.
    pub api_server: Vec<String>,
    /// Endpoints are printed as `server` lines. `false`: groups are empty in the files, and the caller gives the running process
    /// the peers of each group by its name.
    pub endpoints_in_files: bool,
    /// Path of the access log without `access-log-path`.
    pub access_log: String,
    /// Directory of kept answers of authentication services, if any Ingress asks for it.
    pub cache_directory: String,
    /// Addresses to listen at; empty: all of both families.
    pub bind_addresses: Vec<String>,
    /// Hosts and clients are told over IPv6, too.
    pub ipv6: bool,
    /// The Gateway API.
    pub gateway: crate::gateway::GatewayOptions,
    /// Values of the ConfigMap that the server has refused although the judge takes them, by their keys. Another value of the key is
    /// judged anew.
    pub refused: std::collections::BTreeMap<&'static str, RefusedValue>,
    /// Judge of values and snippets.
    pub judge: crate::judge::Judge,
    /// Directives of main that the caller adds at the top, such as `user` or `pid`.
    pub main: Vec<forebay_conf::Node>,
    /// Directives of `http` that the caller adds at the top.
    pub http: Vec<forebay_conf::Node>,
}

/// Value that the server has refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedValue {
    /// The value.
    pub value: String,
    /// Words of the server.
    pub reason: String,
}

/// Names of the keys of TLS session tickets in their Secret. The first one encrypts; tickets of the others are accepted.
pub const TICKET_KEYS: [&str; 3] = ["current", "previous", "next"];

/// Length of such a key in bytes (`ssl_session_ticket_key`).
pub const TICKET_KEY_BYTES: usize = 80;

impl Default for Options {
    fn default() -> Options {
        Options {
            ingress_class: "forebay".into(),
            controller_class: "forebay.io/ingress".into(),
            ingress_class_by_name: false,
            watch_ingress_without_class: false,
            watch_namespaces: Vec::new(),
            namespace_selector: Default::default(),
            disable_catch_all: false,
            topology_zone: String::new(),
            config_map: None,
            default_backend_service: None,
            default_ssl_certificate: None,
            made_certificate: None,
            tcp_services: None,
            udp_services: None,
            http_port: 80,
            https_port: 443,
            public_https_port: 443,
            enable_ssl_passthrough: false,
            ssl_passthrough_proxy_port: 442,
            session_tickets: None,
            ignore_missing_waf: false,
            disable_svc_external_name: false,
            annotations_prefix: "nginx.ingress.kubernetes.io".into(),
            enable_annotation_validation: true,
            status_port: 0,
            resolvers: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            api_server: Vec::new(),
            endpoints_in_files: false,
            access_log: "/dev/stdout".into(),
            cache_directory: "auth-cache".into(),
            bind_addresses: Vec::new(),
            ipv6: true,
            gateway: Default::default(),
            refused: Default::default(),
            judge: Default::default(),
            main: Vec::new(),
            http: Vec::new(),
        }
    }
}
