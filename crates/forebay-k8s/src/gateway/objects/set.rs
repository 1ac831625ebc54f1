//! The objects of a cluster.

use super::{
    BackendTlsPolicy, ClusterTrustBundle, Gateway, GatewayClass, GatewayKind, ListenerSet, ReferenceGrant,
    Route, RoutePolicy, TelemetryPolicy,
};
use crate::objects::{Key, Metadata};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// The objects of a cluster.
#[derive(Clone, Debug, Default)]
pub struct GatewayObjects {
    /// Number that grows with each change.
    pub version: u64,
    /// GatewayClasses.
    pub classes: BTreeMap<Key, Arc<GatewayClass>>,
    /// Gateways.
    pub gateways: BTreeMap<Key, Arc<Gateway>>,
    /// HTTPRoutes.
    pub http_routes: BTreeMap<Key, Arc<Route>>,
    /// GRPCRoutes.
    pub grpc_routes: BTreeMap<Key, Arc<Route>>,
    /// TLSRoutes.
    pub tls_routes: BTreeMap<Key, Arc<Route>>,
    /// TCPRoutes.
    pub tcp_routes: BTreeMap<Key, Arc<Route>>,
    /// UDPRoutes.
    pub udp_routes: BTreeMap<Key, Arc<Route>>,
    /// ReferenceGrants.
    pub grants: BTreeMap<Key, Arc<ReferenceGrant>>,
    /// BackendTLSPolicies.
    pub tls_policies: BTreeMap<Key, Arc<BackendTlsPolicy>>,
    /// ListenerSets.
    pub listener_sets: BTreeMap<Key, Arc<ListenerSet>>,
    /// XTelemetryPolicies.
    pub telemetry_policies: BTreeMap<Key, Arc<TelemetryPolicy>>,
    /// ClusterTrustBundles.
    pub trust_bundles: BTreeMap<Key, Arc<ClusterTrustBundle>>,
    /// RoutePolicies.
    pub route_policies: BTreeMap<Key, Arc<RoutePolicy>>,
    /// Addresses that the server could not open, `true` for UDP, with the reason. Listeners at them are set aside.
    pub taken: BTreeMap<(bool, SocketAddr), String>,
    /// Gateways, routes and RoutePolicies that the server has refused. They are closed until they change.
    pub aside: AllAside,
}

/// Object of the API by its kind and name.
pub type Place = (GatewayKind, Key);

/// Objects that are set aside.
pub type AllAside = BTreeMap<Place, Aside>;

/// Treatment of an object that is set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aside {
    /// It is closed, and this is why.
    Closed(String),
    /// It counts as if it were not there. A search for what is to blame needs this.
    Absent,
}

impl GatewayObjects {
    /// Adds an object, or replaces it.
    ///
    /// # Errors
    /// The object does not have the shape of its kind. The former one stays, except that a route is closed.
    pub fn apply(&mut self, kind: GatewayKind, key: Key, value: Value) -> Result<bool, String> {
        let place = (kind, key.clone());
        let changed = match kind {
            GatewayKind::GatewayClass => add(&mut self.classes, key, read(&value)?),
            GatewayKind::Gateway => {
                let mut object: Gateway = read(&value)?;
                object.unread = unread(&value, &object.spec);
                add(&mut self.gateways, key, object)
            }
            GatewayKind::HttpRoute => add(&mut self.http_routes, key, route(&value)),
            GatewayKind::GrpcRoute => add(&mut self.grpc_routes, key, route(&value)),
            GatewayKind::TlsRoute => add(&mut self.tls_routes, key, route(&value)),
            GatewayKind::TcpRoute => add(&mut self.tcp_routes, key, route(&value)),
            GatewayKind::UdpRoute => add(&mut self.udp_routes, key, route(&value)),
            GatewayKind::ReferenceGrant => {
                let mut object: ReferenceGrant = read(&value)?;
                object.unread = unread(&value, &object.spec);
                add(&mut self.grants, key, object)
            }
            GatewayKind::BackendTlsPolicy => {
                let mut object: BackendTlsPolicy = read(&value)?;
                object.unread = unread(&value, &object.spec);
                add(&mut self.tls_policies, key, object)
            }
            GatewayKind::ListenerSet => {
                let mut object: ListenerSet = read(&value)?;
                object.unread = unread(&value, &object.spec);
                add(&mut self.listener_sets, key, object)
            }
            GatewayKind::TelemetryPolicy => add(&mut self.telemetry_policies, key, read(&value)?),
            GatewayKind::ClusterTrustBundle => add(&mut self.trust_bundles, key, read(&value)?),
            GatewayKind::RoutePolicy => add(&mut self.route_policies, key, read(&value)?),
        };
        self.version += u64::from(changed);
        if changed {
            self.aside.remove(&place);
        }
        Ok(changed)
    }

    /// Removes an object.
    pub fn delete(&mut self, kind: GatewayKind, key: &Key) {
        self.version += 1;
        self.aside.remove(&(kind, key.clone()));
        match kind {
            GatewayKind::GatewayClass => drop(self.classes.remove(key)),
            GatewayKind::Gateway => drop(self.gateways.remove(key)),
            GatewayKind::HttpRoute => drop(self.http_routes.remove(key)),
            GatewayKind::GrpcRoute => drop(self.grpc_routes.remove(key)),
            GatewayKind::TlsRoute => drop(self.tls_routes.remove(key)),
            GatewayKind::TcpRoute => drop(self.tcp_routes.remove(key)),
            GatewayKind::UdpRoute => drop(self.udp_routes.remove(key)),
            GatewayKind::ReferenceGrant => drop(self.grants.remove(key)),
            GatewayKind::BackendTlsPolicy => drop(self.tls_policies.remove(key)),
            GatewayKind::ListenerSet => drop(self.listener_sets.remove(key)),
            GatewayKind::TelemetryPolicy => drop(self.telemetry_policies.remove(key)),
            GatewayKind::ClusterTrustBundle => drop(self.trust_bundles.remove(key)),
            GatewayKind::RoutePolicy => drop(self.route_policies.remove(key)),
        }
    }

    /// Returns `true` if a listener of a Gateway or ListenerSet wants a port.
    pub fn wants_port(&self, udp: bool, port: u16) -> bool {
        let of_gateways = self.gateways.values().flat_map(|g| &g.spec.listeners);
        let of_sets = self.listener_sets.values().flat_map(|s| &s.spec.listeners);
        of_gateways.chain(of_sets).any(|l| l.port == port && (l.protocol == "UDP") == udp)
    }

    /// Closes an object that the server has refused. Returns `true` if that changes anything.
    pub fn set_aside(&mut self, place: Place, reason: String) -> bool {
        let aside = Aside::Closed(reason);
        let changed = self.aside.get(&place) != Some(&aside);
        self.version += u64::from(changed);
        self.aside.insert(place, aside);
        changed
    }

    /// Takes all objects back that the server has refused. Returns `true` if there are any.
    pub fn take_back(&mut self) -> bool {
        let changed = !std::mem::take(&mut self.aside).is_empty();
        self.version += u64::from(changed);
        changed
    }

    /// Returns the metadata of a Gateway, a route or a RoutePolicy.
    pub(crate) fn metadata(&self, place: &Place) -> Option<&Metadata> {
        let (kind, key) = place;
        let routes = match kind {
            GatewayKind::Gateway => return self.gateways.get(key).map(|g| &g.metadata),
            GatewayKind::RoutePolicy => return self.route_policies.get(key).map(|p| &p.metadata),
            GatewayKind::HttpRoute => &self.http_routes,
            GatewayKind::GrpcRoute => &self.grpc_routes,
            GatewayKind::TlsRoute => &self.tls_routes,
            GatewayKind::TcpRoute => &self.tcp_routes,
            GatewayKind::UdpRoute => &self.udp_routes,
            _ => return None,
        };
        routes.get(key).map(|route| &route.metadata)
    }

    /// Sets an address aside that could not be opened, or takes it back (`None`). Returns `true` if that changes anything.
    pub fn set_taken(&mut self, place: (bool, SocketAddr), reason: Option<String>) -> bool {
        let changed = match reason {
            Some(reason) => self.taken.insert(place, reason.clone()) != Some(reason),
            None => self.taken.remove(&place).is_some(),
        };
        self.version += u64::from(changed);
        changed
    }
}

fn add<T: PartialEq>(all: &mut BTreeMap<Key, Arc<T>>, key: Key, object: T) -> bool {
    let changed = all.get(&key).is_none_or(|before| **before != object);
    if changed {
        all.insert(key, Arc::new(object));
    }
    changed
}

fn read<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    T::deserialize(value).map_err(|e| e.to_string())
}

/// Reads a route. One without the shape of its kind keeps what tells whose it is, and is closed: to keep its former rules would let
/// in whom the new ones do not.
fn route(value: &Value) -> Route {
    match read::<Route>(value) {
        Ok(mut route) => {
            route.unread = unread(value, &route.spec);
            route
        }
        Err(error) => {
            let field = |path: &str| value.pointer(path).unwrap_or(&Value::Null);
            let mut route = Route {
                metadata: read(field("/metadata")).unwrap_or_default(),
                unread: vec![format!(": {error}")],
                ..Route::default()
            };
            route.spec.parent_refs = read(field("/spec/parentRefs")).unwrap_or_default();
            route.spec.hostnames = read(field("/spec/hostnames")).unwrap_or_default();
            route
        }
    }
}

/// Former names of fields.
const FORMER: &[(&str, &str)] = &[("cookieConfig", "cookie")];

/// Most fields that are named.
const MOST_UNREAD: usize = 20;

/// Returns the paths of fields that an object has and that were not read, below `spec`.
fn unread(value: &Value, read: &impl serde::Serialize) -> Vec<String> {
    let mut found = Vec::new();
    let known = serde_json::to_value(read).unwrap_or_default();
    compare(value.get("spec").unwrap_or(&Value::Null), &known, "", &mut found);
    found
}

fn compare(value: &Value, known: &Value, path: &str, found: &mut Vec<String>) {
    match (value, known) {
        (Value::Object(fields), Value::Object(known)) => {
            for (name, field) in fields {
                let former = FORMER.iter().find(|(former, _)| former == name).map(|(_, now)| *now);
                let own = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match known.get(former.unwrap_or(name)) {
                    Some(known) => compare(field, known, &own, found),
                    None if field.is_null() || found.len() >= MOST_UNREAD => {}
                    None => found.push(own),
                }
            }
        }
        (Value::Array(items), Value::Array(known)) => {
            for (index, (item, known)) in items.iter().zip(known).enumerate() {
                compare(item, known, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn applied(spec: Value) -> Route {
        let mut objects = GatewayObjects::default();
        let value = json!({ "metadata": { "name": "a", "namespace": "b" }, "spec": spec });
        objects.apply(GatewayKind::HttpRoute, Key::new("b", "a"), value).expect("a route");
        Route::clone(&objects.http_routes[&Key::new("b", "a")])
    }

    #[test]
    fn unread_fields() {
        let unread = |spec: Value| applied(spec).unread;
        assert_eq!(
            unread(json!({ "rules": [{ "name": "x", "matches": [{ "path": { "value": "/" } }] }] })),
            [""; 0]
        );
        let rules = json!([{}, { "filters": [{ "type": "X", "x": { "y": 1 } }], "backendRefs": [{ "name": "a", "z": 1 }] }]);
        assert_eq!(
            unread(json!({ "rules": rules, "more": true, "none": null })),
            ["more", "rules[1].backendRefs[0].z", "rules[1].filters[0].x"]
        );
        let persistence = json!({ "cookieConfig": { "lifetimeType": "Session", "odd": 1 } });
        let paths = unread(json!({ "rules": [{ "sessionPersistence": persistence }] }));
        assert_eq!(paths, ["rules[0].sessionPersistence.cookieConfig.odd"]);
    }

    #[test]
    fn a_route_of_another_shape_is_closed() {
        let spec =
            json!({ "parentRefs": [{ "name": "g" }], "hostnames": ["a.test"], "rules": [{ "matches": 5 }] });
        let route = applied(spec);
        assert_eq!((route.spec.rules.len(), route.spec.parent_refs.len()), (0, 1));
        assert_eq!(route.spec.hostnames, ["a.test"]);
        assert_eq!(route.unread.len(), 1);
    }
}
