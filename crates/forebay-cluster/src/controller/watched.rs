//! The kinds of objects that are watched, and one look at all of them.

use crate::api::{Api, Error};
use crate::watch::{self, Change, Receiver, Resource};
use forebay_k8s::gateway::GatewayKind;
use forebay_k8s::objects::{Kind, Object};
use forebay_k8s::{Key, Objects, Options};
use serde_json::Value;
use std::cell::RefCell;

/// Kind of objects that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Watched {
    /// Of Kubernetes itself.
    Core(Kind),
    /// Of the Gateway API, which a cluster may lack.
    Gateway(GatewayKind),
}

impl Watched {
    pub(super) fn name(self) -> &'static str {
        match self {
            Watched::Core(kind) => kind.name(),
            Watched::Gateway(kind) => kind.name(),
        }
    }

    /// Returns what is watched of a kind, in some namespaces or, without any, in all.
    fn resources(self, selector: &str, namespaces: &[String]) -> Vec<(Watched, Resource)> {
        let (group, plural) = match self {
            Watched::Core(kind) => of_core(kind),
            Watched::Gateway(kind) => (format!("/apis/{}/{}", kind.group(), kind.version()), kind.plural()),
        };
        let optional =
            matches!(self, Watched::Gateway(GatewayKind::TelemetryPolicy | GatewayKind::ClusterTrustBundle));
        let selector = selector.to_owned();
        let resource = |namespace| Resource {
            group: group.clone(),
            plural,
            namespace,
            optional,
            selector: selector.clone(),
        };
        match namespaces {
            [] => vec![(self, resource(None))],
            some => some.iter().map(|n| (self, resource(Some(n.clone())))).collect(),
        }
    }
}

/// Returns the path of the group and version of a kind, and its plural name.
fn of_core(kind: Kind) -> (String, &'static str) {
    let (group, plural) = match kind {
        Kind::Ingress => ("/apis/networking.k8s.io/v1", "ingresses"),
        Kind::IngressClass => ("/apis/networking.k8s.io/v1", "ingressclasses"),
        Kind::Service => ("/api/v1", "services"),
        Kind::EndpointSlice => ("/apis/discovery.k8s.io/v1", "endpointslices"),
        Kind::Secret => ("/api/v1", "secrets"),
        Kind::ConfigMap => ("/api/v1", "configmaps"),
        Kind::Namespace => ("/api/v1", "namespaces"),
    };
    (group.to_owned(), plural)
}

/// Objects of these kinds are large, and no Ingress refers to them.
const SECRETS: &str = "&fieldSelector=type!%3Dhelm.sh/release.v1,type!%3Dkubernetes.io/service-account-token";
const CONFIG_MAPS: &str = "&fieldSelector=metadata.name!%3Dkube-root-ca.crt";

/// Returns what is watched.
pub(super) fn resources(options: &Options) -> Vec<(Watched, Resource)> {
    let own = options.watch_namespaces.as_slice();
    let wide = named_namespaces(options);
    let core = |kind, selector, namespaces| Watched::Core(kind).resources(selector, namespaces);
    let mut all = [
        core(Kind::Ingress, "", own),
        core(Kind::IngressClass, "", &[]),
        core(Kind::Service, "", &wide),
        core(Kind::EndpointSlice, "", &wide),
        core(Kind::Secret, SECRETS, &wide),
        core(Kind::ConfigMap, CONFIG_MAPS, &wide),
    ]
    .concat();
    // Labels of namespaces decide which routes may attach, and which Ingresses are served.
    if !options.gateway.controller.is_empty() || !options.namespace_selector.is_empty() {
        all.extend(core(Kind::Namespace, "", &[]));
    }
    if !options.gateway.controller.is_empty() {
        for kind in GatewayKind::ALL {
            let namespaces = if kind.namespaced() { own } else { &[] };
            all.extend(Watched::Gateway(kind).resources("", namespaces));
        }
    }
    all
}

/// Returns the namespaces that are watched and those of the objects that options name; none for all.
fn named_namespaces(options: &Options) -> Vec<String> {
    let mut all = options.watch_namespaces.clone();
    if !all.is_empty() {
        let named = [
            &options.config_map,
            &options.default_backend_service,
            &options.default_ssl_certificate,
            &options.tcp_services,
            &options.udp_services,
            &options.session_tickets,
        ];
        all.extend(named.into_iter().flatten().map(|key| key.namespace.clone()));
        all.sort();
        all.dedup();
    }
    all
}

/// Objects of a cluster at one time, for tools that look and go.
#[derive(Debug, Default)]
pub struct Seen {
    /// Objects that Ingresses and the Gateway API consist of.
    pub objects: Objects,
    /// Kinds and objects that could not be read, with the reasons.
    pub unread: Vec<String>,
}

/// Reads the objects that Ingresses consist of, once. A kind that must not be read is noted, except Ingresses.
///
/// # Errors
/// The API server cannot be reached, or refuses the list of Ingresses.
pub async fn look(api: &Api, options: &Options) -> Result<Seen, Error> {
    let mut seen = Seen::default();
    for (kind, resource) in resources(options) {
        let values = RefCell::new(Vec::new());
        let take = async |change| {
            if let Change::Page(page) = change {
                values.borrow_mut().extend(page);
            }
            Receiver::There
        };
        match watch::list(api, &resource, &take).await {
            Ok(_) => {}
            Err(error) if kind == Watched::Core(Kind::Ingress) => return Err(error),
            // Not all clusters have the Gateway API.
            Err(error) if matches!(kind, Watched::Gateway(_)) && error.is_not_found() => continue,
            Err(error) => {
                seen.unread.push(format!("{}: {error}", resource.plural));
                continue;
            }
        }
        values.into_inner().into_iter().for_each(|value| seen.add(kind, value));
    }
    Ok(seen)
}

impl Seen {
    fn add(&mut self, kind: Watched, value: Value) {
        let key = key_of(&value);
        let applied = match kind {
            Watched::Core(kind) => Object::of(kind, value).map(|object| self.objects.apply(object)),
            Watched::Gateway(kind) => self.objects.gateway.apply(kind, key.clone(), value),
        };
        if let Err(error) = applied {
            self.unread.push(format!("{} {key}: {error}", kind.name()));
        }
    }
}

/// Returns the namespace and name of an object.
pub(super) fn key_of(value: &Value) -> Key {
    let text = |pointer| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    Key::new(text("/metadata/namespace"), text("/metadata/name"))
}
